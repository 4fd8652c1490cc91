/* Paged attention in the compiler's own vectors, for processors that no other variant is for (NEON, SSE2).
 *
 * Cut as the others are (attention_plan_priv.h): parts of 256 keys have one softmax step, segments of 1,024 start afresh and
 * are merged in order. The query heads of a KV head, and neighbouring queries of a chunk, are rows of a tile: they share what
 * is widened of keys and values. All arithmetic is in floats; a lane of a score is a key, a lane of an output a dimension. A
 * row's result depends neither on its neighbours nor on how a long context is shared out. */
#include <math.h>

#include "kernels/cpu/attention_alibi_priv.h"
#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_portable_priv.h"
#include "kernels/kv_priv.h"

enum {
	GROUP = 16, /* keys, or values, that are widened at once */
	GROUP_VECS = GROUP / LANES,
	SIDE_ROWS = 4, /* rows, */
#if defined(__aarch64__)
	SIDE_VECS = 4, /* and vectors of sums that are computed side by side: as there are registers for */
#else
	SIDE_VECS = 2,
#endif
};

/* What a thread works on: rows of one KV head. */
struct tile {
	const struct kern_attention_args *a;
	struct attention_lane lane;
	struct attention_rows *rows;
	u32 row, kv_head;
	u32 begin, count; /* of the part */
	float rescale[ATTENTION_ROWS]; /* what sums of the parts before are multiplied by */
	_Alignas(64) float wide[KERN_HEAD_DIM_MAX * GROUP]; /* keys: [head_dim][GROUP]; values: [GROUP][width] */
};

static size_t block_of(const struct tile *t, u32 key)
{
	return t->a->block_tables[(size_t)t->row * t->a->block_stride + key / t->a->kv.block_size];
}

/* ---------------------------------------------------------------- scores */

/* Value i of a word of each of four keys. */
static ALWAYS_INLINE vec word_value(enum kern_dtype type, uvec w, u32 i)
{
	switch (type) {
	case KERN_F32:
		return floats_of(w);
	case KERN_BF16:
		return floats_of(i == 0 ? w << 16 : w & 0xffff0000u);
	case KERN_I16:
		return __builtin_convertvector((i == 0 ? (ivec)(w << 16) : (ivec)w) >> 16, vec);
	case KERN_I8:
		return __builtin_convertvector((ivec)(w >> 8 * i & 255), vec) - vec_set1(KERN_KV_OFFSET);
	default: { /* E4M3: its bits at their places in a float, which then is too small by 2^120 */
		const uvec code = w >> 8 * i & 255;
		return floats_of((code & 128) << 24 | (code & 127) << 20) * vec_set1(0x1p120f);
	}
	}
}

static ALWAYS_INLINE void widen_words(struct tile *t, enum kern_dtype type, u32 values, const u32 *from)
{
	const u32 count = kern_kv_words(&t->a->kv), stride = t->a->kv.block_size;
	for (u32 w = 0; w < count; w++)
		for (u32 v = 0; v < GROUP_VECS; v++) {
			const uvec at = load_words(from + (size_t)w * stride + v * LANES);
			for (u32 i = 0; i < values; i++)
				store_floats(&t->wide[(w * values + i) * GROUP + v * LANES], word_value(type, at, i));
		}
}

/* Keys [key, end), GROUP at most, as floats, those of a dimension side by side; their scales, of types that have some. */
static void widen_keys(struct tile *t, u32 key, u32 end, float scales[GROUP])
{
	const struct kern_kv *kv = &t->a->kv;
	if (kv->block_size % GROUP != 0) { /* one by one */
		float one[KERN_HEAD_DIM_MAX];
		const float unit = 1;
		for (u32 i = 0; i < GROUP && key + i < end; i++) {
			const u32 offset = (key + i) % kv->block_size;
			const size_t block = block_of(t, key + i);
			kern_kv_load(kv, one, kern_kv_key(kv, block, t->kv_head, offset), kv->block_size, &unit);
			for (u32 d = 0; d < kv->head_dim; d++)
				t->wide[d * GROUP + i] = one[d];
			if (kern_kv_is_quantized(kv))
				scales[i] = *kern_kv_scale(kv, kv->k, block, t->kv_head, offset);
		}
		return;
	}
	const u32 offset = key % kv->block_size;
	const size_t block = block_of(t, key);
	const u32 *from = kern_kv_key(kv, block, t->kv_head, offset);
	if (kern_kv_is_quantized(kv))
		memcpy(scales, kern_kv_scale(kv, kv->k, block, t->kv_head, offset), GROUP * sizeof(float));
	if (kv->dtype == KERN_F32)
		widen_words(t, KERN_F32, 1, from);
	else if (kv->dtype == KERN_BF16)
		widen_words(t, KERN_BF16, 2, from);
	else if (kv->dtype == KERN_I16)
		widen_words(t, KERN_I16, 2, from);
	else if (kv->dtype == KERN_I8)
		widen_words(t, KERN_I8, 4, from);
	else
		widen_words(t, KERN_F8E4M3, 4, from);
}

/* `stride`: floats from a row to the next. */
static ALWAYS_INLINE void store_sums(float *to, u32 stride, const u32 rows, vec (*sums)[SIDE_VECS])
{
#pragma GCC unroll 4
	for (u32 j = 0; j < rows; j++)
#pragma GCC unroll 4
		for (u32 i = 0; i < SIDE_VECS; i++)
			store_floats(to + (size_t)j * stride + i * LANES, sums[j][i]);
}

/* Scores of the widened keys and `rows` rows from r on. */
static ALWAYS_INLINE void score_rows(const struct tile *t, u32 r, const u32 rows, float *to)
{
	const u32 dim = t->a->kv.head_dim;
	const float *q = t->rows->q + (size_t)r * t->lane.width;
	for (u32 v = 0; v < GROUP_VECS; v += SIDE_VECS) {
		vec sums[SIDE_ROWS][SIDE_VECS] = {{{0}}};
		for (u32 d = 0; d < dim; d++) {
			vec keys[SIDE_VECS];
#pragma GCC unroll 4
			for (u32 i = 0; i < SIDE_VECS; i++)
				keys[i] = load_floats(&t->wide[d * GROUP + (v + i) * LANES]);
#pragma GCC unroll 4
			for (u32 j = 0; j < rows; j++) {
				const vec x = vec_set1(q[(size_t)j * t->lane.width + d]);
#pragma GCC unroll 4
				for (u32 i = 0; i < SIDE_VECS; i++)
					sums[j][i] = add_product(sums[j][i], x, keys[i]);
			}
		}
		store_sums(to + v * LANES, ATTENTION_PART, rows, sums);
	}
}

static void part_scores(struct tile *t)
{
	float scales[GROUP] = {0}, *scores = t->rows->part->scores;
	const u32 count = t->rows->count, end = t->begin + t->count;
	for (u32 key = t->begin; key < end; key += GROUP) {
		float *to = scores + (key - t->begin);
		u32 r = 0;
		widen_keys(t, key, end, scales);
		for (; r + SIDE_ROWS <= count; r += SIDE_ROWS)
			score_rows(t, r, SIDE_ROWS, to + r * ATTENTION_PART);
		for (; r < count; r++)
			score_rows(t, r, 1, to + r * ATTENTION_PART);
		for (r = 0; r < count && kern_kv_is_quantized(&t->a->kv); r++)
			for (u32 i = 0; i < GROUP; i += LANES) {
				float *at = to + r * ATTENTION_PART + i;
				store_floats(at, load_floats(at) * load_floats(scales + i));
			}
	}
}

/* ---------------------------------------------------------------- softmax */

static ALWAYS_INLINE float exp_one(float x)
{
	return exp_negative(vec_set1(x))[0];
}

/* Caps the scores of row r and masks those of keys that it does not see; returns the largest. */
static float row_mask(const struct tile *t, u32 r)
{
	const struct attention_rows *of = t->rows;
	float *s = of->part->scores + r * ATTENTION_PART;
	const u32 end = t->begin + t->count, lanes = kern_ceil(t->count, LANES) * LANES;
	const u32 from = of->first[r] <= t->begin ? 0 : kern_min(of->first[r], end) - t->begin;
	const u32 to = of->last[r] < t->begin ? 0 : kern_min(of->last[r] + 1, end) - t->begin;
	vec best = vec_set1(-INFINITY);
	for (u32 i = from; i < to && t->a->soft_cap > 0; i++)
		s[i] = t->a->soft_cap * tanhf(s[i] / t->a->soft_cap);
	if (t->a->slopes)
		alibi_add(t->a, of->at[r], of->last[r], t->begin, lanes, 1, s);
	for (u32 i = 0; i < from; i++)
		s[i] = -INFINITY;
	for (u32 i = to; i < lanes; i++)
		s[i] = -INFINITY;
	for (u32 i = 0; i < lanes; i += LANES)
		best = larger(load_floats(s + i), best);
	return largest_lane(best);
}

/* Scores become weights. A weight of 0 stays 0 whatever the scale of its value, for a key that is not seen may not be felt. */
static void part_softmax(struct tile *t, const float value_scales[ATTENTION_PART])
{
	struct attention_rows *of = t->rows;
	for (u32 r = 0; r < of->count; r++) {
		float *s = of->part->scores + r * ATTENTION_PART;
		const float highest = row_mask(t, r), best = highest > of->best[r] ? highest : of->best[r];
		const vec base = vec_set1(best > -INFINITY ? best : 0);
		vec sum = vec_set1(0);
		for (u32 i = 0; i < t->count; i += LANES) {
			vec p = exp_negative(load_floats(s + i) - base);
			sum += p;
			if (value_scales)
				p = select_lanes(p > vec_set1(0), p * load_floats(value_scales + i), p);
			store_floats(s + i, p);
		}
		t->rescale[r] = exp_one(of->best[r] - base[0]);
		of->sum[r] = of->sum[r] * t->rescale[r] + sum_of_lanes(sum);
		of->best[r] = best;
	}
}

/* ---------------------------------------------------------------- values */

static const float *part_scales(const struct tile *t, float scales[ATTENTION_PART])
{
	const struct kern_kv *kv = &t->a->kv;
	if (!kern_kv_is_quantized(kv))
		return NULL;
	for (u32 i = 0; i < t->count; i++)
		scales[i] = *kern_kv_scale(kv, kv->v, block_of(t, t->begin + i), t->kv_head, (t->begin + i) % kv->block_size);
	for (u32 i = t->count; i % LANES != 0; i++)
		scales[i] = 0;
	return scales;
}

/* Sums of `rows` rows from r on, of all dimensions, += weights of `count` keys times their widened values. */
static ALWAYS_INLINE void value_rows(const struct tile *t, u32 r, const u32 rows, const float *weights, u32 count)
{
	const u32 width = t->lane.width;
	float *acc = t->rows->acc + (size_t)r * width;
	for (u32 d = 0; d < t->a->kv.head_dim; d += SIDE_VECS * LANES) {
		vec sums[SIDE_ROWS][SIDE_VECS];
#pragma GCC unroll 4
		for (u32 j = 0; j < rows; j++)
#pragma GCC unroll 4
			for (u32 i = 0; i < SIDE_VECS; i++)
				sums[j][i] = load_floats(acc + (size_t)j * width + d + i * LANES);
		for (u32 k = 0; k < count; k++) {
			vec values[SIDE_VECS];
#pragma GCC unroll 4
			for (u32 i = 0; i < SIDE_VECS; i++)
				values[i] = load_floats(&t->wide[k * width + d + i * LANES]);
#pragma GCC unroll 4
			for (u32 j = 0; j < rows; j++) {
				const vec p = vec_set1(weights[j * ATTENTION_PART + k]);
#pragma GCC unroll 4
				for (u32 i = 0; i < SIDE_VECS; i++)
					sums[j][i] = add_product(sums[j][i], p, values[i]);
			}
		}
		store_sums(acc + d, width, rows, sums);
	}
}

static void part_values(struct tile *t)
{
	const struct kern_kv *kv = &t->a->kv;
	const u32 rows = t->rows->count, width = t->lane.width;
	const float unit = 1;
	for (u32 r = 0; r < rows; r++)
		for (u32 d = 0; d < width && t->rescale[r] != 1; d += LANES) {
			float *acc = t->rows->acc + (size_t)r * width + d;
			store_floats(acc, load_floats(acc) * vec_set1(t->rescale[r]));
		}
	for (u32 key = 0; key < t->count; key += GROUP) {
		const u32 count = kern_min(t->count - key, GROUP);
		const float *weights = t->rows->part->scores + key;
		u32 r = 0;
		for (u32 k = 0; k < count; k++) {
			float *to = &t->wide[k * width];
			const u32 at = t->begin + key + k;
			kern_kv_load(kv, to, kern_kv_value(kv, block_of(t, at), t->kv_head, at % kv->block_size), 1, &unit);
			for (u32 d = kv->head_dim; d < width; d++)
				to[d] = 0;
		}
		for (; r + SIDE_ROWS <= rows; r += SIDE_ROWS)
			value_rows(t, r, SIDE_ROWS, weights + r * ATTENTION_PART, count);
		for (; r < rows; r++)
			value_rows(t, r, 1, weights + r * ATTENTION_PART, count);
	}
}

/* ---------------------------------------------------------------- rows */

/* Rows [r0, r0 + count) of the task: row r is query head r % heads of its token r / heads. */
static void rows_begin(struct tile *t, const struct attention_task *task, u32 r0, u32 count)
{
	const struct kern_attention_args *a = t->a;
	struct attention_rows *of = t->rows;
	const u32 dim = a->kv.head_dim, first_head = task->kv_head * (a->heads / a->kv.kv_heads) + task->head;
	of->row = r0;
	of->count = count;
	of->q = t->lane.q;
	of->acc = t->lane.acc;
	of->part = t->lane.parts;
	for (u32 r = 0; r < count; r++) {
		const u32 query = task->query + (r0 + r) / task->heads, head = first_head + (r0 + r) % task->heads;
		const u32 last = a->context[task->row] - task->queries_of_row + query;
		const size_t token = a->query_start[task->row] + query;
		of->at[r] = token * kern_attention_stride(a) + (size_t)head * dim;
		of->last[r] = last;
		of->first[r] = kern_attention_first(a, last);
		for (u32 d = 0; d < dim; d++)
			of->q[(size_t)r * t->lane.width + d] = a->q[of->at[r] + d] * a->scale;
	}
	of->end = of->last[count - 1] + 1;
}

/* The rows over keys [begin, end), those that they see. */
static void segment_run(struct tile *t, u32 begin, u32 end)
{
	struct attention_rows *of = t->rows;
	float scales[ATTENTION_PART];
	for (u32 r = 0; r < of->count; r++) {
		of->best[r] = -INFINITY;
		of->sum[r] = 0;
	}
	memset(of->acc, 0, (size_t)of->count * t->lane.width * sizeof(float));
	end = kern_min(end, of->end);
	for (u32 at = begin; at < end; at += ATTENTION_PART) {
		t->begin = at;
		t->count = kern_min(end - at, ATTENTION_PART);
		if (at + t->count <= of->first[0])
			continue; /* before the window of all rows: rows start in rising order */
		part_scores(t);
		part_softmax(t, part_scales(t, scales));
		part_values(t);
	}
}

/* into += part: sums with their maxima brought to the larger one. */
static void merge_row(struct attention_partial into, struct attention_partial part, u32 width)
{
	const float best = *into.best > *part.best ? *into.best : *part.best, base = best > -INFINITY ? best : 0;
	const float old = exp_one(*into.best - base), new = exp_one(*part.best - base);
	for (u32 d = 0; d < width; d += LANES)
		store_floats(into.acc + d,
			     add_product(load_floats(into.acc + d) * vec_set1(old), load_floats(part.acc + d), vec_set1(new)));
	*into.sum = *into.sum * old + *part.sum * new;
	*into.best = best;
}

static void write_row(const struct kern_attention_args *a, struct attention_partial total, size_t at)
{
	float sum = *total.sum, unit = 1;
	if (a->sinks) { /* both sums by the larger of the two maxima; the sums of values only shrink with theirs */
		const float sink = a->sinks[at % kern_attention_stride(a) / a->kv.head_dim], base = fmaxf(*total.best, sink);
		unit = expf(*total.best - base);
		sum = sum * unit + expf(sink - base);
	}
	unit /= sum;
	for (u32 d = 0; d < a->kv.head_dim; d++)
		a->out[at + d] = total.acc[d] * unit;
}

static struct attention_partial row_sums(const struct tile *t, u32 r)
{
	struct attention_rows *of = t->rows;
	return (struct attention_partial){&of->best[r], &of->sum[r], of->acc + (size_t)r * t->lane.width};
}

/* What segment `s` left of the rows to what the segments before it left. */
static void segment_end(const struct attention_plan *plan, const struct attention_task *task, const struct tile *t, u32 s, u32 thread)
{
	const u32 width = t->lane.width;
	for (u32 r = 0; r < t->rows->count; r++) {
		const struct attention_partial to = attention_partial(plan, task, thread, t->rows->row + r), from = row_sums(t, r);
		if (s > task->segment) {
			merge_row(to, from, width);
			continue;
		}
		*to.best = *from.best;
		*to.sum = *from.sum;
		memcpy(to.acc, from.acc, width * sizeof(float));
	}
}

static void run_rows(const struct attention_plan *plan, const struct attention_task *task, struct tile *t, u32 thread)
{
	const bool whole = !plan->divided && t->rows->end <= ATTENTION_SEGMENT;
	if (whole)
		segment_run(t, 0, t->rows->end);
	for (u32 s = task->segment; s < task->segment_end && !whole; s++) {
		segment_run(t, s * ATTENTION_SEGMENT, (s + 1) * ATTENTION_SEGMENT);
		segment_end(plan, task, t, s, thread);
	}
	for (u32 r = 0; r < t->rows->count && !plan->divided; r++)
		write_row(t->a, whole ? row_sums(t, r) : attention_partial(plan, task, thread, t->rows->row + r), t->rows->at[r]);
}

static void run_task(void *arg, u32 index, u32 thread)
{
	const struct attention_plan *plan = arg;
	const struct attention_task task = attention_task(plan, index);
	struct tile t;
	t.a = plan->a;
	t.lane = attention_lane(plan, thread);
	t.rows = t.lane.rows;
	t.row = task.row;
	t.kv_head = task.kv_head;
	for (u32 r = 0; r < task.queries * task.heads; r += ATTENTION_ROWS) {
		rows_begin(&t, &task, r, kern_min(task.queries * task.heads - r, ATTENTION_ROWS));
		run_rows(plan, &task, &t, thread);
	}
}

/* Merges the segments of one chunk, in order. */
static void merge_task(void *arg, u32 index, u32 thread)
{
	const struct attention_plan *plan = arg;
	const struct kern_attention_args *a = plan->a;
	const struct attention_task first = attention_task(plan, index * plan->segments);
	const u32 head = first.kv_head * (a->heads / a->kv.kv_heads) + first.head;
	for (u32 r = 0; r < first.queries * first.heads; r++) {
		const struct attention_partial total = attention_partial(plan, &first, thread, r);
		const size_t token = a->query_start[first.row] + first.query + r / first.heads;
		for (u32 s = 1; s < plan->segments; s++) {
			struct attention_task part = first;
			part.index = first.index + s;
			merge_row(total, attention_partial(plan, &part, thread, r), plan->width);
		}
		write_row(a, total, token * kern_attention_stride(a) + (size_t)(head + r % first.heads) * a->kv.head_dim);
	}
}

enum err attention_portable(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	struct attention_plan plan;
	attention_plan_init(&plan, ctx, a, ATTENTION_ROWS, ATTENTION_ROWS, false, false);
	kern_parallel(ctx, plan.tasks, run_task, &plan);
	if (plan.divided)
		kern_parallel(ctx, plan.tasks / plan.segments, merge_task, &plan);
	return ERR_OK;
}
