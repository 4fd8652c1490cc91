/* Paged attention for AVX2 and AVX-512 (one object each): decode and prefill in one loop.
 *
 * The query heads of one KV head, and neighbouring queries of a chunk, are rows of a tile and share every
 * load of K and V. The context is cut at fixed places: parts of 256 keys have one softmax step, segments of
 * 1,024 keys start afresh and are merged in order. Both ends of a range of keys are masked by -inf, which
 * adds exact zeros. So a query's result depends neither on the chunk it came in, nor on its neighbours, nor
 * on how many threads share a long context.
 *
 * A lane of a score is a key (K lies transposed inside its block), a lane of an output is a dimension.
 *
 * Arithmetic by the type of the cache: float32 in float32. bfloat16 where there is VDPBF16PS in products of
 * bfloat16 (queries and weights rounded once), else in float32. 8-bit integers in whole numbers: queries and
 * the products of weight and scale become 16-bit integers of a row's and part's own unit, sums are exact.
 * E4M3 in float32. */
#include "kernels/cpu/attention_scores_priv.h"
#include "kernels/cpu/attention_tile_priv.h"
#include "kernels/cpu/attention_values_priv.h"
#include "kernels/cpu/variants_priv.h"

/* ---------------------------------------------------------------- keys of a part */

static size_t block_at(const struct tile *t, u32 key)
{
	return t->a->block_tables[(size_t)t->row * t->a->block_stride + key / t->a->kv.block_size];
}

/* Blocks that do not hold whole groups: copies the group's keys side by side. */
static const char *gather_group(const struct tile *t, u32 key, u32 end, u32 group)
{
	const struct kern_kv *kv = &t->a->kv;
	u32 *to = t->lane.gathered + (size_t)group * GROUP * t->words;
	for (u32 i = 0; i < GROUP; i++) {
		if (key + i >= end) {
			for (u32 d = 0; d < t->words; d++)
				to[d * GROUP + i] = 0;
			continue;
		}
		const u32 *from =
			kern_kv_key(kv, block_at(t, key + i), t->kv_head, (key + i) % kv->block_size);
		for (u32 d = 0; d < t->words; d++)
			to[d * GROUP + i] = from[(size_t)d * kv->block_size];
	}
	return (const char *)to;
}

/* Where the memory of a whole group of keys begins. */
static struct stream key_stream(const struct tile *t, u32 key)
{
	const char *at =
		(const char *)kern_kv_key(&t->a->kv, block_at(t, key), t->kv_head, key % t->a->kv.block_size);
	return (struct stream){at, t->key_stride};
}

/* What is read after the keys: the values, then the keys of the next part. */
static void streams_begin(struct tile *t, u32 begin, bool whole)
{
	u32 groups = kern_ceil(t->count, GROUP), n = 0, next = begin + ATTENTION_PART;
	for (u32 g = 0; g < groups; g++)
		t->streams[n++] = (struct stream){t->keys[g], t->key_stride};
	for (u32 g = 0; g < groups; g++)
		t->streams[n++] = (struct stream){t->values[g * GROUP], 16 * sizeof(u32)};
	for (u32 g = 0; g < AHEAD && whole && next + g * GROUP < t->end; g++)
		t->streams[n++] = key_stream(t, next + g * GROUP);
	/* Scores are computed for four groups at once: there may be more of them than groups. */
	for (u32 end = groups + 4 + AHEAD > 2 * groups + AHEAD ? groups + 4 + AHEAD : 2 * groups + AHEAD;
	     n < kern_min(end, COUNT_OF(t->streams));)
		t->streams[n++] = (struct stream){t->values[0], 0};
}

/* Finds the keys and values of [begin, end), block by block. `begin` is a multiple of GROUP. */
static void part_begin(struct tile *t, u32 begin, u32 end)
{
	const struct kern_kv *kv = &t->a->kv;
	const size_t bytes = t->words * sizeof(u32);
	bool whole = kv->block_size % GROUP == 0, scaled = kern_kv_is_quantized(kv);
	u32 groups = kern_ceil(end - begin, GROUP), offset = begin % kv->block_size;
	t->count = end - begin;
	t->key_stride = (whole ? kv->block_size : GROUP) * sizeof(u32);
	for (u32 i = 0; i < t->count; offset = 0) {
		size_t block = block_at(t, begin + i);
		const char *keys = (const char *)kern_kv_key(kv, block, t->kv_head, 0);
		const char *value = (const char *)kern_kv_value(kv, block, t->kv_head, offset);
		u32 stop = kern_min(i + kv->block_size - offset, t->count);
		for (u32 at = offset, g = i / GROUP; whole && g < kern_ceil(stop, GROUP); g++, at += GROUP)
			t->keys[g] = keys + at * sizeof(u32);
		if (scaled) {
			memcpy(t->lane.key_scales + i, kern_kv_scale(kv, kv->k, block, t->kv_head, offset),
			       (stop - i) * sizeof(float));
			memcpy(t->lane.value_scales + i, kern_kv_scale(kv, kv->v, block, t->kv_head, offset),
			       (stop - i) * sizeof(float));
		}
		for (; i < stop; i++, value += bytes)
			t->values[i] = value;
	}
	t->values[t->count] = t->values[t->count - 1]; /* the second of the last pair; its weight is zero */
	for (u32 g = 0; g < groups && !whole; g++)
		t->keys[g] = gather_group(t, begin + g * GROUP, end, g);
	/* Scores are computed for four groups at once; what is too many is masked. */
	for (u32 g = groups; g % 4 != 0; g++)
		t->keys[g] = t->keys[groups - 1];
	streams_begin(t, begin, whole);
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

/* The factor that brings a largest magnitude to `most`, and what a unit then stands for. */
static float unit_factor(float largest, float most, float *unit)
{
	largest = largest < KERN_KV_LEAST ? 0 : largest;
	*unit = largest / most;
	return largest > 0 ? most / largest : 0;
}

/* Weights of row r as the values' type wants them: times the values' scales, in 16 bits. */
static void row_weights(struct tile *t, u32 r)
{
	float *p = t->lane.scores + r * ATTENTION_PART;
	int16_t *to = t->lane.weights + r * ATTENTION_PART;
	u32 vecs = kern_ceil(t->count, VEC_LANES);
	vec largest = vec_zero();
	if (!kern_kv_is_quantized(&t->a->kv)) {
#if ATTENTION_DOTS_BF16
		for (u32 v = 0; v < vecs && t->a->kv.dtype == KERN_BF16; v++)
			_mm256_storeu_si256((__m256i *)(void *)(to + v * VEC_LANES),
					    (__m256i)_mm512_cvtneps_pbh(vec_load(p + v * VEC_LANES)));
#endif
		return;
	}
	for (u32 v = 0; v < vecs; v++) {
		u32 n = kern_min(t->count - v * VEC_LANES, VEC_LANES);
		vec scale = vec_load_n(t->lane.value_scales + v * VEC_LANES, n);
		vec weight = vec_mul(vec_load(p + v * VEC_LANES), scale);
		largest = vec_max(weight, largest);
		if (t->a->kv.dtype == KERN_F8E4M3)
			weight = vec_mul(weight, vec_set1(F8_HALF_BIAS));
		vec_store(p + v * VEC_LANES, weight);
	}
	if (t->a->kv.dtype != KERN_I8)
		return;
	/* 256 products of 16 bits and an unsigned byte stay below 2^31. */
	float factor = unit_factor(vec_highest(largest), I16_MAX, &t->weight_unit[r]);
	ivec sum = IVEC_BITS(setzero)();
	for (u32 v = 0; v < vecs; v++) {
		ivec whole = IVEC(cvtps_epi32)(vec_mul(vec_load(p + v * VEC_LANES), vec_set1(factor)));
		sum = IVEC(add_epi32)(sum, whole);
		ivec_store_i16(to + v * VEC_LANES, whole);
	}
	t->weight_excess[r] = KERN_KV_OFFSET * ivec_sum(sum);
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
		for (u32 r = 0; r < t->rows; r++) {
			row_softmax(t, r, at);
			row_weights(t, r);
		}
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
	float unit = a->kv.dtype == KERN_F8E4M3 ? F8_HALF_BIAS : 1;
	write_sums(out, total.acc, a->kv.head_dim, block_vecs(a->kv.dtype), unit / *total.sum);
}

/* ---------------------------------------------------------------- queries */

/* Whole numbers of 16 bits, in the order of scores_i8: dimensions 0 and 2, then 1 and 3 of each four. */
static void query_i8(struct tile *t, u32 r, float *x)
{
	/* Sums of products with bytes of at most 127 stay below 2^31. */
	const float most = t->a->kv.head_dim <= 512 ? I16_MAX : I16_MAX / 2;
	u32 *to = (u32 *)(void *)(t->lane.q + (size_t)r * t->lane.width), end = t->words * 4;
	int16_t wholes[KERN_HEAD_DIM_MAX + VEC_LANES];
	ivec sum = IVEC_BITS(setzero)();
	vec largest = vec_zero();
	for (u32 d = 0; d < end; d += VEC_LANES)
		largest = vec_max(vec_abs(vec_load(x + d)), largest);
	float factor = unit_factor(vec_highest(largest), most, &t->q_unit[r]);
	for (u32 d = 0; d < end; d += VEC_LANES) {
		ivec whole = IVEC(cvtps_epi32)(vec_mul(vec_load(x + d), vec_set1(factor)));
		sum = IVEC(add_epi32)(sum, whole);
		ivec_store_i16(wholes + d, whole);
	}
	for (u32 d = 0; d < end; d += 2) {
		u32 low = (u16)wholes[d / 4 * 4 + d % 4 / 2], high = (u16)wholes[d / 4 * 4 + d % 4 / 2 + 2];
		to[d / 2] = low | high << 16;
	}
	t->q_excess[r] = KERN_KV_OFFSET * ivec_sum(sum);
}

/* Row r's query, scaled, in the form that its scores want it in. */
static void query_begin(struct tile *t, u32 r, const float *q)
{
	const struct kern_attention_args *a = t->a;
	u32 dim = a->kv.head_dim, end = kern_ceil(dim, VEC_LANES) * VEC_LANES;
	float buffer[KERN_HEAD_DIM_MAX + VEC_LANES], *row = t->lane.q + (size_t)r * t->lane.width;
	bool whole = a->kv.dtype == KERN_I8, pairs = a->kv.dtype == KERN_BF16 && ATTENTION_DOTS_BF16;
	float *x = whole || pairs ? buffer : row;
	vec scale = vec_set1(a->kv.dtype == KERN_F8E4M3 ? a->scale * F8_HALF_BIAS : a->scale);
	for (u32 d = 0; d < end; d += VEC_LANES)
		vec_store(x + d, vec_mul(vec_load_n(q + d, kern_min(dim - d, VEC_LANES)), scale));
	if (whole)
		query_i8(t, r, x);
	for (u32 d = 0; d < end && pairs; d += VEC_LANES)
		vec_store_bf16((u16 *)(void *)row + d, vec_load(x + d));
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
	t->words = kern_kv_words(&a->kv);
	for (u32 r = 0; r < rows; r++) {
		u32 query = task->query + (r0 + r) / group, head = task->kv_head * group + (r0 + r) % group;
		size_t token = a->query_start[task->row] + query;
		u32 last = a->context[task->row] - task->queries_of_row + query;
		t->last[r] = last;
		t->first[r] = a->window > 0 && last >= a->window ? last - a->window + 1 : 0;
		query_begin(t, r, a->q + (token * a->heads + head) * dim);
	}
	t->end = t->last[rows - 1] + 1;
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
		for (u32 s = task.segment; s < task.segment_end; s++) {
			u32 begin = s * ATTENTION_SEGMENT,
			    segment_end = kern_min(begin + ATTENTION_SEGMENT, t.end);
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
