/* Paged attention for AVX2 and AVX-512 (one object each): decode and prefill in one loop.
 *
 * The query heads of one KV head, and neighbouring queries of a chunk, are rows of a tile and share every
 * load of K and V. The context is cut at fixed places: parts of 256 keys have one softmax step, segments of
 * 1,024 keys start afresh and are merged in order. Both ends of a range of keys are masked by -inf, which
 * adds exact zeros. So a query's result depends neither on the chunk it came in, nor on its neighbours, nor
 * on how many threads share a long context.
 *
 * A lane of a score is a key (K lies transposed inside its block), a lane of an output is a dimension. */
#include <math.h>

#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
	GROUP = 16, /* keys of a score group: one vector of AVX-512, two of AVX2 */
	GROUP_VECS = GROUP / VEC_LANES,
	GROUPS = ATTENTION_PART / GROUP,
};

/* What a thread works on: rows of one KV head, and the keys at hand. */
struct tile {
	const struct kern_attention_args *a;
	struct attention_lane lane;
	u32 rows;
	u32 row, kv_head;				 /* of the batch */
	u32 first[ATTENTION_ROWS], last[ATTENTION_ROWS]; /* keys that a row of the tile sees */
	/* of the segment so far; `lane.acc` goes with them */
	float best[ATTENTION_ROWS], sum[ATTENTION_ROWS];
	float rescale[ATTENTION_ROWS];
	/* the keys of a part */
	u32 count;
	const char *keys[GROUPS];
	size_t key_stride; /* bytes from a dimension (a pair, in bf16) to the next */
	const void *values[ATTENTION_PART];
};

static size_t block_at(const struct tile *t, u32 key)
{
	return t->a->block_tables[(size_t)t->row * t->a->block_stride + key / t->a->kv.block_size];
}

/* Blocks that do not hold whole groups: copies the group's keys side by side. */
static const char *gather_group(const struct tile *t, u32 key, u32 end, u32 group)
{
	const struct kern_kv *kv = &t->a->kv;
	u32 words = kv->head_dim / kern_group(kv->dtype);
	u32 *to = t->lane.gathered + (size_t)group * GROUP * words;
	for (u32 i = 0; i < GROUP; i++) {
		if (key + i >= end) {
			for (u32 d = 0; d < words; d++)
				to[d * GROUP + i] = 0;
			continue;
		}
		size_t at = kern_k_index(kv, block_at(t, key + i), t->kv_head, (key + i) % kv->block_size, 0);
		const u32 *from = (const u32 *)kv->k + at / kern_group(kv->dtype);
		for (u32 d = 0; d < words; d++)
			to[d * GROUP + i] = from[(size_t)d * kv->block_size];
	}
	return (const char *)to;
}

/* Finds the keys and values of [begin, end), block by block. `begin` is a multiple of GROUP. */
static void part_begin(struct tile *t, u32 begin, u32 end)
{
	const struct kern_kv *kv = &t->a->kv;
	const size_t bytes = kern_dtype_bytes(kv->dtype), value_bytes = kv->head_dim * bytes;
	bool whole = kv->block_size % GROUP == 0;
	u32 groups = kern_ceil(end - begin, GROUP), offset = begin % kv->block_size;
	t->count = end - begin;
	t->key_stride = (whole ? kv->block_size : GROUP) * sizeof(u32);
	for (u32 i = 0; i < t->count; offset = 0) {
		size_t base = (block_at(t, begin + i) * kv->kv_heads + t->kv_head) * kv->block_size;
		const char *keys = (const char *)kv->k + base * value_bytes;
		const char *value = (const char *)kv->v + (base + offset) * value_bytes;
		u32 stop = kern_min(i + kv->block_size - offset, t->count);
		for (u32 at = offset, g = i / GROUP; whole && g < kern_ceil(stop, GROUP); g++, at += GROUP)
			t->keys[g] = keys + at * sizeof(u32);
		for (; i < stop; i++, value += value_bytes)
			t->values[i] = value;
	}
	for (u32 g = 0; g < groups && !whole; g++)
		t->keys[g] = gather_group(t, begin + g * GROUP, end, g);
	/* Scores are computed for four groups at once; what is too many is masked. */
	for (u32 g = groups; g % 4 != 0; g++)
		t->keys[g] = t->keys[groups - 1];
}

/* ---------------------------------------------------------------- scores */

static ALWAYS_INLINE const char *key_vec(const struct tile *t, u32 v)
{
	return t->keys[v / GROUP_VECS] + v % GROUP_VECS * sizeof(vec);
}

/* `rows` scores of `vecs` vectors of keys, from vector `v0` on: sums over the dimensions in rising order. */
static ALWAYS_INLINE void scores_f32(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const float *q = t->lane.q;
	u32 dim = t->a->kv.head_dim;
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = vec_zero();
	for (u32 d = 0; d < dim; d++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			vec key = vec_load(
				(const float *)(const void *)(key_vec(t, v0 + v) + d * t->key_stride));
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(q[(size_t)r * dim + d]), key, sum[r][v]);
		}
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			vec_store(t->lane.scores + r * ATTENTION_PART + (v0 + v) * VEC_LANES, sum[r][v]);
}

static ALWAYS_INLINE void scores_bf16(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const float *q = t->lane.q;
	u32 dim = t->a->kv.head_dim;
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = vec_zero();
	for (u32 d = 0; d < dim; d += 2)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const char *pairs = key_vec(t, v0 + v) + d / 2 * t->key_stride;
			vec key = vec_pair_first(pairs);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(q[(size_t)r * dim + d]), key, sum[r][v]);
			key = vec_pair_second(pairs);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(q[(size_t)r * dim + d + 1]), key, sum[r][v]);
		}
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			vec_store(t->lane.scores + r * ATTENTION_PART + (v0 + v) * VEC_LANES, sum[r][v]);
}

/* Vectors computed side by side for a number of rows: as many as fit into the registers. */
#if VEC_LANES == 16
#define SCORE_VECS(rows) ((rows) <= 4 ? 4 : 2)
#define VALUE_VECS(rows) ((rows) <= 4 ? 4 : 2)
#else
#define SCORE_VECS(rows) ((rows) <= 2 ? 4 : (rows) <= 5 ? 2 : 1)
#define VALUE_VECS(rows) ((rows) <= 2 ? 4 : (rows) <= 5 ? 2 : 1)
#endif

/* Calls body(n) with the constant n = t->rows. */
#define FOR_ROWS(body)         \
	switch (t->rows) {     \
	case 1:                \
		body(1) break; \
	case 2:                \
		body(2) break; \
	case 3:                \
		body(3) break; \
	case 4:                \
		body(4) break; \
	case 5:                \
		body(5) break; \
	case 6:                \
		body(6) break; \
	case 7:                \
		body(7) break; \
	default:               \
		body(8) break; \
	}

static void part_scores(const struct tile *t)
{
	u32 vecs = kern_ceil(t->count, GROUP) * GROUP_VECS;
#define SCORES_F32(n)                                 \
	for (u32 v = 0; v < vecs; v += SCORE_VECS(n)) \
		scores_f32(t, v, n, SCORE_VECS(n));
#define SCORES_BF16(n)                                \
	for (u32 v = 0; v < vecs; v += SCORE_VECS(n)) \
		scores_bf16(t, v, n, SCORE_VECS(n));
	if (t->a->kv.dtype == KERN_F32)
		FOR_ROWS(SCORES_F32)
	else
		FOR_ROWS(SCORES_BF16)
}

/* ---------------------------------------------------------------- softmax */

/* cap * tanh(x / cap); tanh(y) = 1 - 2 / (e^2y + 1) */
static vec capped(vec x, float cap)
{
	vec y = vec_exp(vec_min(vec_mul(x, vec_set1(2 / cap)), vec_set1(40)));
	y = vec_sub(vec_set1(1), vec_div(vec_set1(2), vec_add(y, vec_set1(1))));
	return vec_mul(y, vec_set1(cap));
}

/* Scores of row r become e^(score - maximum), zero where the row sees no key; updates its sum and maximum. */
static void row_softmax(struct tile *t, u32 r, u32 begin)
{
	float *s = t->lane.scores + r * ATTENTION_PART, best = t->best[r];
	u32 vecs = kern_ceil(t->count, VEC_LANES), end = begin + t->count;
	u32 from = t->first[r] <= begin ? 0 : kern_min(t->first[r], end) - begin;
	u32 to = t->last[r] < begin ? 0 : kern_min(t->last[r] + 1, end) - begin;
	vec highest = vec_set1(-INFINITY), sum = vec_zero();
	for (u32 v = 0; v < vecs && t->a->soft_cap > 0; v++)
		vec_store(s + v * VEC_LANES, capped(vec_load(s + v * VEC_LANES), t->a->soft_cap));
	for (u32 i = 0; i < from; i++)
		s[i] = -INFINITY;
	for (u32 i = to; i < vecs * VEC_LANES; i++)
		s[i] = -INFINITY;
	for (u32 v = 0; v < vecs; v++)
		highest = vec_max(highest, vec_load(s + v * VEC_LANES));
	float highest_here = vec_highest(highest);
	best = highest_here > best ? highest_here : best;
	/* While a row has seen no key its maximum is -inf; any finite number in its place leaves zeros. */
	float base = best > -INFINITY ? best : 0;
	for (u32 v = 0; v < vecs; v++) {
		vec p = vec_exp(vec_sub(vec_load(s + v * VEC_LANES), vec_set1(base)));
		vec_store(s + v * VEC_LANES, p);
		sum = vec_add(sum, p);
	}
	t->rescale[r] = vec_first(vec_exp(vec_set1(t->best[r] - base)));
	t->sum[r] = t->sum[r] * t->rescale[r] + vec_sum(sum);
	t->best[r] = best;
}

/* ---------------------------------------------------------------- values */

/* acc = acc * rescale + sum over keys, in order, of p * V, for dimensions [d0, d0 + vecs * VEC_LANES); the
 * last vector has `tail` dimensions. */
static ALWAYS_INLINE void values_tile(const struct tile *t, bool bf16, u32 d0, u32 rows, u32 vecs, u32 tail)
{
	vec sum[ATTENTION_ROWS][4];
	float *acc = t->lane.acc + d0;
	const float *p = t->lane.scores;
	u32 width = t->lane.width;
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = vec_mul(vec_load(acc + (size_t)r * width + v * VEC_LANES),
					    vec_set1(t->rescale[r]));
	for (u32 i = 0; i < t->count; i++) {
		const float *single = (const float *)t->values[i] + d0;
		const u16 *half = (const u16 *)t->values[i] + d0;
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			vec value;
			if (tail < VEC_LANES)
				value = bf16 ? vec_load_bf16_n(half, tail) : vec_load_n(single, tail);
			else
				value = bf16 ? vec_load_bf16(half + v * VEC_LANES)
					     : vec_load(single + v * VEC_LANES);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(p[r * ATTENTION_PART + i]), value, sum[r][v]);
		}
	}
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			vec_store(acc + (size_t)r * width + v * VEC_LANES, sum[r][v]);
}

/* All dimensions: as many vectors at once as fit, then single vectors, then what is less than one. */
static ALWAYS_INLINE void values_rows(const struct tile *t, bool bf16, u32 rows, u32 vecs)
{
	u32 d = 0, dim = t->a->kv.head_dim;
	for (; d + vecs * VEC_LANES <= dim; d += vecs * VEC_LANES)
		values_tile(t, bf16, d, rows, vecs, VEC_LANES);
	for (; d + VEC_LANES <= dim; d += VEC_LANES)
		values_tile(t, bf16, d, rows, 1, VEC_LANES);
	if (d < dim)
		values_tile(t, bf16, d, rows, 1, dim - d);
}

static void part_values(const struct tile *t)
{
#define VALUES_F32(n)  values_rows(t, false, n, VALUE_VECS(n));
#define VALUES_BF16(n) values_rows(t, true, n, VALUE_VECS(n));
	if (t->a->kv.dtype == KERN_F32)
		FOR_ROWS(VALUES_F32)
	else
		FOR_ROWS(VALUES_BF16)
}

/* ---------------------------------------------------------------- segments, merging */

static void segment_run(struct tile *t, u32 begin, u32 end)
{
	for (u32 r = 0; r < t->rows; r++) {
		t->best[r] = -INFINITY;
		t->sum[r] = 0;
	}
	memset(t->lane.acc, 0, (size_t)t->rows * t->lane.width * sizeof(float));
	for (u32 at = begin; at < end; at += ATTENTION_PART) {
		u32 part_end = kern_min(at + ATTENTION_PART, end);
		if (part_end <= t->first[0])
			continue; /* before the window of all rows: rows start in rising order */
		part_begin(t, at, part_end);
		part_scores(t);
		for (u32 r = 0; r < t->rows; r++)
			row_softmax(t, r, at);
		part_values(t);
	}
}

/* into += part: softmax sums with their maxima brought to the larger one. */
static void merge_row(struct attention_partial into, struct attention_partial part, u32 width)
{
	float best = *into.best > *part.best ? *into.best : *part.best, base = best > -INFINITY ? best : 0;
	vec old = vec_exp(vec_set1(*into.best - base)), new = vec_exp(vec_set1(*part.best - base));
	for (u32 d = 0; d < width; d += VEC_LANES)
		vec_store(into.acc + d,
			  vec_fma(vec_load(part.acc + d), new, vec_mul(vec_load(into.acc + d), old)));
	*into.sum = *into.sum * vec_first(old) + *part.sum * vec_first(new);
	*into.best = best;
}

static void write_row(const struct kern_attention_args *a, struct attention_partial total, size_t token,
		      u32 head)
{
	float *out = a->out + (token * a->heads + head) * a->kv.head_dim;
	vec inverse = vec_set1(1 / *total.sum);
	for (u32 d = 0; d < a->kv.head_dim; d += VEC_LANES)
		vec_store_n(out + d, vec_mul(vec_load(total.acc + d), inverse),
			    kern_min(a->kv.head_dim - d, VEC_LANES));
}

/* Row r of the tile is query head kv_head * group + r0 + r of its chunk, counted through the chunk's tokens.
 */
static void tile_begin(struct tile *t, const struct attention_task *task, u32 r0, u32 rows)
{
	const struct kern_attention_args *a = t->a;
	u32 dim = a->kv.head_dim, group = a->heads / a->kv.kv_heads;
	t->rows = rows;
	t->row = task->row;
	t->kv_head = task->kv_head;
	for (u32 r = 0; r < rows; r++) {
		u32 query = task->query + (r0 + r) / group, head = task->kv_head * group + (r0 + r) % group;
		size_t token = a->query_start[task->row] + query;
		const float *q = a->q + (token * a->heads + head) * dim;
		u32 last = a->context[task->row] - task->queries_of_row + query;
		t->last[r] = last;
		t->first[r] = a->window > 0 && last >= a->window ? last - a->window + 1 : 0;
		for (u32 d = 0; d < dim; d++)
			t->lane.q[r * dim + d] = q[d] * a->scale;
	}
}

static void run_task(void *arg, u32 index, u32 thread)
{
	const struct attention_plan *plan = arg;
	const struct kern_attention_args *a = plan->a;
	struct attention_task task = attention_task(plan, index);
	u32 group = a->heads / a->kv.kv_heads, rows = task.queries * group,
	    tiles = kern_ceil(rows, ATTENTION_ROWS);
	struct tile t;
	t.a = a;
	t.lane = attention_lane(plan, thread);
	for (u32 i = 0; i < tiles; i++) {
		u32 r0 = (u32)((u64)rows * i / tiles), count = (u32)((u64)rows * (i + 1) / tiles) - r0;
		tile_begin(&t, &task, r0, count);
		u32 end = t.last[count - 1] + 1;
		for (u32 s = task.segment; s < task.segment_end; s++) {
			u32 begin = s * ATTENTION_SEGMENT,
			    segment_end = kern_min(begin + ATTENTION_SEGMENT, end);
			segment_run(&t, begin, segment_end > begin ? segment_end : begin);
			for (u32 r = 0; r < count; r++) {
				struct attention_partial to = attention_partial(plan, &task, thread, r0 + r);
				struct attention_partial from = {&t.best[r], &t.sum[r],
								 t.lane.acc + (size_t)r * t.lane.width};
				if (s == task.segment) {
					*to.best = -INFINITY;
					*to.sum = 0;
					memset(to.acc, 0, t.lane.width * sizeof(float));
				}
				merge_row(to, from, t.lane.width);
			}
		}
		for (u32 r = 0; r < count && !plan->divided; r++)
			write_row(a, attention_partial(plan, &task, thread, r0 + r),
				  a->query_start[task.row] + task.query + (r0 + r) / group,
				  task.kv_head * group + (r0 + r) % group);
	}
}

/* Merges the segments of one chunk, in order. */
static void merge_task(void *arg, u32 index, u32 thread)
{
	const struct attention_plan *plan = arg;
	const struct kern_attention_args *a = plan->a;
	struct attention_task first = attention_task(plan, index * plan->segments);
	u32 group = a->heads / a->kv.kv_heads;
	for (u32 r = 0; r < first.queries * group; r++) {
		struct attention_partial total = attention_partial(plan, &first, thread, r);
		for (u32 s = 1; s < plan->segments; s++) {
			struct attention_task part = first;
			part.index = first.index + s;
			merge_row(total, attention_partial(plan, &part, thread, r), plan->width);
		}
		write_row(a, total, a->query_start[first.row] + first.query + r / group,
			  first.kv_head * group + r % group);
	}
}

enum err VARIANT(attention)(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	struct attention_plan plan;
	attention_plan_init(&plan, ctx, a);
	kern_parallel(ctx, plan.tasks, run_task, &plan);
	if (plan.divided)
		kern_parallel(ctx, plan.tasks / plan.segments, merge_task, &plan);
	return ERR_OK;
}
