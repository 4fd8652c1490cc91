/* Paged attention for AVX2 and AVX-512 (one object each): decode and prefill in one loop.
 *
 * The query heads of one KV head, and neighbouring queries of a chunk, are rows of a tile and share every
 * load of K and V; in decoding the tiles of all KV heads may take turns, for memory's sake. The context is
 * cut at fixed places: parts of 256 keys have one softmax step, segments of 1,024 keys start afresh and are
 * merged in order. Both ends of a range of keys are masked by -inf, which adds exact zeros. So a query's
 * result depends neither on the chunk it came in, nor on its neighbours, nor on how many threads share a
 * long context.
 *
 * A lane of a score is a key (K lies transposed inside its block), a lane of an output is a dimension.
 *
 * Arithmetic by the type of the cache: float32 in float32. bfloat16 where VDPBF16PS is used in products of
 * bfloat16 (queries and weights rounded once), else in float32. 8-bit integers in whole numbers: queries and
 * the products of weight and scale become 16-bit integers of a row's and part's own unit, sums are exact. So do
 * 16-bit integers. E4M3 in float32. Objects with VNNI or BF16 have the types that these are for, and pass the others on. */
#include "kernels/cpu/attention_asks_priv.h"
#include "kernels/cpu/attention_keys_priv.h"
#include "kernels/cpu/attention_queries_priv.h"
#include "kernels/cpu/attention_scores_bf16_priv.h"
#include "kernels/cpu/attention_scores_priv.h"
#include "kernels/cpu/attention_softmax_bf16_priv.h"
#include "kernels/cpu/attention_softmax_priv.h"
#include "kernels/cpu/attention_tile_priv.h"
#include "kernels/cpu/attention_tiles_priv.h"
#include "kernels/cpu/attention_values_priv.h"
#include "kernels/cpu/attention_wholes_priv.h"
#include "kernels/cpu/variants_priv.h"

/* ---------------------------------------------------------------- merging, outputs */

/* What a first segment leaves, as if merged into nothing: no sum is a negative zero. */
static void take_row(struct attention_partial into, struct attention_partial part, u32 width)
{
	for (u32 d = 0; d < width; d += VEC_LANES)
		vec_store(into.acc + d, vec_add(vec_load(part.acc + d), vec_zero()));
	*into.sum = *part.sum;
	*into.best = *part.best;
}

/* into += part: softmax sums with their maxima brought to the larger one. */
static void merge_row(const struct kern_attention_args *a, struct attention_partial into, struct attention_partial part, u32 width)
{
	const float unit = score_unit(a);
	float best = *into.best > *part.best ? *into.best : *part.best, base = best > -INFINITY ? best : 0;
	vec old = vec_exp(vec_set1((*into.best - base) * unit)), new = vec_exp(vec_set1((*part.best - base) * unit));
	for (u32 d = 0; d < width; d += VEC_LANES)
		vec_store(into.acc + d,
			  vec_fma(vec_load(part.acc + d), new, vec_mul(vec_load(into.acc + d), old)));
	*into.sum = *into.sum * vec_first(old) + *part.sum * vec_first(new);
	*into.best = best;
}

/* `total`: by its address, for a copy would wait until its pointers, just stored, are in the cache. `at`: of the output. */
static void write_row(const struct kern_attention_args *a, const struct attention_partial *total, size_t at)
{
	float *out = a->out + at, unit = a->kv.dtype == KERN_F8E4M3 ? F8_HALF_BIAS : 1;
	float sum = *total->sum;
	if (a->sinks) { /* both sums by the larger of the two maxima; the sums of values only shrink with theirs */
		float sink = a->sinks[at % kern_attention_stride(a) / a->kv.head_dim];
		float best = *total->best * score_unit(a), base = fmaxf(best, sink), shrink = expf(best - base);
		sum = sum * shrink + expf(sink - base);
		unit *= shrink;
	}
	write_sums(out, total->acc, a->kv.head_dim, block_vecs(a->kv.dtype), unit / sum);
}

/* ---------------------------------------------------------------- rows */

/* Where the query, and the output, of one query head of the task begin in the batch. */
static size_t row_at(const struct kern_attention_args *a, const struct attention_task *task, u32 query, u32 head)
{
	size_t token = a->query_start[task->row] + query;
	return token * kern_attention_stride(a) + (task->kv_head * (a->heads / a->kv.kv_heads) + task->head + head) * a->kv.head_dim;
}

/* Rows [r0, r0 + count) of the task, its i-th tile. Row r is query head kv_head * group + head + r of its chunk, counted through
 * the task's query heads and the chunk's tokens. */
static void rows_begin(struct tile *t, const struct attention_task *task, u32 i, u32 r0, u32 count)
{
	const struct kern_attention_args *a = t->a;
	struct attention_rows *of = &t->lane.rows[i];
	size_t floats = (size_t)i * ATTENTION_ROWS * t->lane.width;
	u32 heads = task->heads, query = task->query + r0 / heads, head = r0 % heads;
	of->row = r0;
	of->begun = false;
	of->count = count;
	of->asks = t->together || r0 == 0;
	of->head_at = t->together ? i * kern_kv_slab(&a->kv) : 0;
	of->q = t->lane.q + (ATTENTION_TILES ? (size_t)i * ATTENTION_ROWS * t->words : floats);
	of->acc = t->lane.acc + floats;
	of->part = &t->lane.parts[t->together ? i : ATTENTION_TILES ? i % 2 : 0];
	for (u32 r = 0; r < count; r++) {
		u32 last = a->context[task->row] - task->queries_of_row + query;
		of->at[r] = row_at(a, task, query, head);
		of->last[r] = last;
		of->first[r] = kern_attention_first(a, last);
		if (++head == heads) {
			head = 0;
			query++;
		}
	}
	of->end = of->last[count - 1] + 1;
}

/* All rows of a task: tiles of as many as are computed side by side, or one for each KV head. Returns their count. */
static u32 task_rows_begin(struct tile *t, const struct attention_task *task)
{
	const struct kern_attention_args *a = t->a;
	const u32 side = a->kv.dtype == KERN_I8 || a->kv.dtype == KERN_F8E4M3 ? ATTENTION_ROWS : TILE_ROWS;
	const u32 rows = task->queries * task->heads;
	const u32 tiles = t->together ? task->kv_heads : kern_ceil(rows, side);
	for (u32 i = 0; i < tiles; i++) {
		u32 first = (u32)((u64)rows * i / tiles);
		rows_begin(t, task, i, first, (u32)((u64)rows * (i + 1) / tiles) - first);
	}
	return tiles;
}

/* ---------------------------------------------------------------- segments, tasks */

/* Rows come to keys [begin, end): those that they see, or more, for rows that others follow, which are masked. */
static void part_enter(struct tile *t, struct attention_rows *of, u32 begin, u32 end)
{
	tile_turn(t, of);
	t->begin = begin;
	t->count = end - begin;
	t->writes = ATTENTION_DOTS_BF16 && t->a->kv.dtype == KERN_BF16 && (ATTENTION_TILES || weighs_beside(t)) && t->whole &&
		    end >= of->end && !t->a->sinks;
	if (!of->begun)
		queries_begin(t);
	of->begun = true;
}

static void part_leave(struct tile *t)
{
	struct attention_rows *of = t->of;
	of->fresh = false;
	for (u32 r = 0; r < of->count && t->begin + t->count >= of->end && t->whole && !t->writes; r++) {
		struct attention_partial total = {&of->best[r], &of->sum[r], of->acc + (size_t)r * t->lane.width};
		write_row(t->a, &total, of->at[r]);
	}
}

#if ATTENTION_TILES
/* Rows that lie in memory as `count` tiles do, one or two: products are those of all of them. */
static void rows_part(struct tile *t, struct attention_rows *of, u32 count, u32 begin, u32 end)
{
	VARIANT(amx_rows_alike)(count * ATTENTION_ROWS);
	for (u32 i = count; i-- > 0;)
		part_enter(t, &of[i], begin, end);
	scores_tiles(t);
	for (u32 i = 0; i < count; i++) {
		part_enter(t, &of[i], begin, end);
		scores_end_tiles(t);
		part_softmax(t, begin);
	}
	tile_turn(t, of);
	values_tiles(t, 0, t->count);
	for (u32 i = 0; i < count; i++) {
		part_enter(t, &of[i], begin, end);
		values_end_tiles(t);
		part_leave(t);
	}
}
#else
/* Queries are read, and outputs written, beside other rows' arithmetic, not all at once: their memory is far. */
static void rows_part(struct tile *t, struct attention_rows *of, u32 count, u32 begin, u32 end)
{
	(void)count;
	part_enter(t, of, begin, end);
#if ATTENTION_DOTS_BF16
	if (t->a->kv.dtype == KERN_BF16)
		part_scores_bf16(t, 0, kern_ceil(t->count, GROUP));
	else
#endif
	if (ATTENTION_IS(t->a->kv.dtype, KERN_I16))
		part_scores_i16(t);
	else
		part_scores(t);
	part_softmax(t, begin);
	if (ATTENTION_IS(t->a->kv.dtype, KERN_I16))
		part_values_i16(t);
	else
		part_values(t);
	part_leave(t);
}
#endif

#if ATTENTION_DOTS_BF16
/* Of the rows in turn, keys as far as they are side by side in memory. */
static void rows_part_scores(struct tile *t, u32 tiles)
{
	enum { AT_ONCE = ATTENTION_TILES ? 4 : 1 }; /* groups: as many as scores_groups computes */
	const u32 groups = kern_ceil(t->count, GROUP);
	for (u32 g = 0; g < groups; g += AT_ONCE)
		for (u32 i = 0; i < tiles; i++) {
			tile_turn(t, &t->lane.rows[i]);
#if ATTENTION_TILES
			scores_groups(t, g, groups - g > 2, false, false);
#else
			part_scores_bf16(t, g, g + 1);
#endif
		}
}

static void rows_part_values(struct tile *t, u32 tiles)
{
	for (u32 key = 0; key < t->count; key += CHUNK)
		for (u32 i = 0; i < tiles; i++) {
			const u32 end = kern_min(key + CHUNK, t->count);
			tile_turn(t, &t->lane.rows[i]);
#if ATTENTION_TILES
			t->laced_keys = key; /* those of the KV head before lie there */
			values_tiles(t, key, end);
#else
			part_values_bf16(t, key, end);
#endif
		}
}

/* `tiles` of rows that see the same keys take turns, so that memory is read in the order in which it lies. Of keys, each of whose groups is
 * read line by line, a group at a time, though more would be computed in less time, or by matrix tiles four; of values, which lie one after the
 * other, some. */
static void rows_part_together(struct tile *t, u32 tiles, u32 begin, u32 end)
{
	struct attention_rows *rows = t->lane.rows;
#if ATTENTION_TILES
	VARIANT(amx_rows_alike)(ATTENTION_ROWS);
#endif
	for (u32 i = 0; i < tiles; i++)
		part_enter(t, &rows[i], begin, end);
	ASSERT(ATTENTION_TILES || !weighs_beside(t));
	rows_part_scores(t, tiles);
	for (u32 i = 0; i < tiles; i++) {
		tile_turn(t, &rows[i]);
#if ATTENTION_TILES
		scores_end_tiles(t);
#endif
		part_softmax(t, begin);
	}
	rows_part_values(t, tiles);
	for (u32 i = 0; i < tiles; i++) {
		tile_turn(t, &rows[i]);
#if ATTENTION_TILES
		values_end_tiles(t);
#endif
		part_leave(t);
	}
}
#else
static void rows_part_together(struct tile *t, u32 tiles, u32 begin, u32 end)
{
	(void)t, (void)tiles, (void)begin, (void)end;
	ASSERT(false);
}
#endif

/* Whether any of them sees one of keys [begin, end). */
static bool see_any(const struct attention_rows *of, u32 begin, u32 end)
{
	const u32 own_end = kern_min(end, of->end);
	return own_end > begin && own_end > of->first[0];
}

/* Tile by tile, or two of one KV head as one. */
static void rows_part_in_turn(struct tile *t, u32 tiles, u32 begin, u32 end)
{
	for (u32 i = 0, count = 1; i < tiles; i += count) {
		struct attention_rows *of = &t->lane.rows[i];
		const bool two = ATTENTION_TILES && !t->together && i % 2 == 0 && i + 1 < tiles;
		count = two && see_any(of, begin, end) && see_any(of + 1, begin, end) ? 2 : 1;
		if (t->together)
			t->laced_keys = 0; /* those of the KV head before lie there */
		if (see_any(of, begin, end))
			rows_part(t, of, count, begin, kern_min(end, of[count - 1].end));
	}
}

/* Has the part behind the one from key `at` on asked for, be that the task's or the next one's. False: it will not be. */
static bool ask_for_next(struct tile *t, u32 at)
{
#if ATTENTION_TILES
	const struct attention_task *of = t->task;
	u32 begin = at + ATTENTION_PART, end = kern_min(t->end, of->segment_end * ATTENTION_SEGMENT);
	if (!t->decodes)
		return false;
	if (begin >= end) {
		of = t->next;
		if (!of)
			return false;
		task_keys(t->a, of, &begin, &end);
	}
	return asks_begin(t->asks, t->a, of->row, of->kv_head, of->kv_heads, begin, end);
#else
	(void)t, (void)at;
	return false;
#endif
}

/* Rows of the task, `tiles` times up to ATTENTION_ROWS, over keys [begin, end). In turns they see the same of these, else each
 * its own part. */
static void segment_run(struct tile *t, u32 tiles, u32 begin, u32 end)
{
	for (u32 i = 0; i < tiles; i++) {
		struct attention_rows *of = &t->lane.rows[i];
		for (u32 r = 0; r < of->count; r++) {
			of->best[r] = -INFINITY;
			of->sum[r] = 0;
		}
		of->fresh = true;
	}
	for (u32 at = begin; at < end; at += ATTENTION_PART) {
		u32 part_end = kern_min(at + ATTENTION_PART, end);
		if (part_end <= t->lane.rows[0].first[0])
			continue; /* before the window of all rows: rows start in rising order */
		part_begin(t, at, part_end);
		const bool asks = ask_for_next(t, at);
		if (t->together && !t->asked)
			rows_part_together(t, tiles, at, part_end);
		else
			rows_part_in_turn(t, tiles, at, part_end);
#if ATTENTION_TILES
		asks_end(t->asks);
#endif
		t->asked = asks;
	}
	for (u32 i = 0; i < tiles; i++) {
		struct attention_rows *of = &t->lane.rows[i];
		if (of->fresh)
			memset(of->acc, 0, (size_t)of->count * t->lane.width * sizeof(float));
	}
}

/* Brings what segment `s` left of the rows to what the segments before it left. */
static void segment_end(const struct attention_plan *plan, const struct attention_task *task, const struct tile *t,
			u32 tiles, u32 s, u32 thread)
{
	for (u32 i = 0; i < tiles; i++) {
		struct attention_rows *of = &t->lane.rows[i];
		for (u32 r = 0; r < of->count; r++) {
			struct attention_partial to = attention_partial(plan, task, thread, of->row + r);
			struct attention_partial from = {&of->best[r], &of->sum[r],
							 of->acc + (size_t)r * t->lane.width};
			if (s == task->segment)
				take_row(to, from, t->lane.width);
			else
				merge_row(t->a, to, from, t->lane.width);
		}
	}
}

/* What several segments left of the rows. */
static void write_merged(const struct attention_plan *plan, const struct attention_task *task, const struct tile *t, u32 tiles,
			 u32 thread)
{
	for (u32 i = 0; i < tiles; i++) {
		const struct attention_rows *of = &t->lane.rows[i];
		for (u32 r = 0; r < of->count; r++) {
			struct attention_partial total = attention_partial(plan, task, thread, of->row + r);
			write_row(plan->a, &total, of->at[r]);
		}
	}
}

/* What a thread has asked for of the task that it takes next. */
struct thread_asks {
	struct part_asks asks;
	u32 task; /* UINT32_MAX: none's */
};

/* `next`: the task that this thread takes afterwards, or the same one. */
static void run_task(const struct attention_plan *plan, u32 index, u32 next, u32 thread, struct thread_asks *own)
{
	const struct kern_attention_args *a = plan->a;
	struct attention_task task = attention_task(plan, index), following = attention_task(plan, next);
	struct tile t;
	t.a = a;
	t.lane = attention_lane(plan, thread);
	t.row = task.row;
	t.kv_head = task.kv_head;
	t.together = task.kv_heads > 1;
	t.words = kern_kv_words(&a->kv);
	t.following_count = 0;
	t.following_queries = 0;
	t.task = &task;
	t.next = next != index ? &following : NULL;
	t.asks = &own->asks;
	t.decodes = plan->follows && a->rows > 1 && a->kv.block_size % GROUP == 0; /* of one row it was no faster */
	t.asked = own->task == index;
	if (t.next && a->kv.block_size % GROUP == 0)
		find_following(&t);
	if (next != index && plan->large)
		t.following_queries = (row_at(a, &following, following.query, 0) - row_at(a, &task, task.query, 0)) * sizeof(float);
	const u32 tiles = task_rows_begin(&t, &task);
	t.end = t.lane.rows[tiles - 1].end;
	t.whole = !plan->divided && t.end <= ATTENTION_SEGMENT;
	if (t.whole) {
		segment_run(&t, tiles, 0, t.end);
	} else {
		for (u32 s = task.segment; s < task.segment_end; s++) {
			u32 begin = s * ATTENTION_SEGMENT, end = kern_min(begin + ATTENTION_SEGMENT, t.end);
			segment_run(&t, tiles, begin, end > begin ? end : begin);
			segment_end(plan, &task, &t, tiles, s, thread);
		}
	}
	if (!plan->divided && !t.whole)
		write_merged(plan, &task, &t, tiles, thread);
	own->task = t.asked ? next : UINT32_MAX;
}

/* What the caller has written since the layer before, for the first task that this thread takes. */
static void fetch_first(struct attention_plan *plan, u32 share)
{
	const struct kern_attention_args *a = plan->a;
	u32 index;
	__builtin_prefetch(&plan->shares.of[share % plan->shares.count], 1, 3);
	__builtin_prefetch(plan->task_start, 0, 3);
	if (!plan->follows || a->rows > 1 || !shares_next(&plan->shares, share, &index))
		return;
	u32 floats = a->heads / a->kv.kv_heads * plan->heads_a_task / plan->cuts * a->kv.head_dim;
	for (u32 i = 0; i < floats; i += LINE / sizeof(float))
		__builtin_prefetch(a->q + (size_t)index * floats + i, 0, 3);
}

/* Prompts begin with their last queries, which see most keys, so that what a thread takes from another's share at the end is short. Its own
 * share are about the tokens that are its own in other ops, too: see shares_priv.h. */
static u32 task_at(const struct attention_plan *plan, u32 place)
{
	return plan->follows ? place : plan->tasks - 1 - place;
}

static void run_tasks(void *arg, u32 task, u32 thread)
{
	struct attention_plan *plan = arg;
	const u32 shares = plan->shares.count, share = plan->follows ? thread : shares - 1 - thread % shares;
	struct thread_asks own = {.task = UINT32_MAX};
	u32 place, end, next;
	(void)task;
	if (thread > 0)
		fetch_first(plan, share);
	while (shares_take(&plan->shares, share, &place, &end)) {
		if (!(plan->follows || plan->large) || !shares_next(&plan->shares, share, &next))
			next = place;
		run_task(plan, task_at(plan, place), task_at(plan, next), thread, &own);
	}
}

/* Merges the segments of one chunk, in order. */
static void merge_task(void *arg, u32 index, u32 thread)
{
	const struct attention_plan *plan = arg;
	const struct kern_attention_args *a = plan->a;
	struct attention_task first = attention_task(plan, index * plan->segments);
	u32 group = first.heads;
	for (u32 r = 0; r < first.queries * group; r++) {
		struct attention_partial total = attention_partial(plan, &first, thread, r);
		for (u32 s = 1; s < plan->segments; s++) {
			struct attention_task part = first;
			part.index = first.index + s;
			merge_row(a, total, attention_partial(plan, &part, thread, r), plan->width);
		}
		write_row(a, &total, row_at(a, &first, first.query + r / group, r % group));
	}
}

/* A type that this object has not. */
static enum err pass_on(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	if (VEC_LANES == 8)
		return attention_avx2(ctx, a);
	if (ATTENTION_DOTS_BF16 && (a->kv.dtype == KERN_I8 || a->kv.dtype == KERN_I16))
		return attention_avx512_vnni(ctx, a);
	return attention_avx512(ctx, a);
}

enum err VARIANT(attention)(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	struct attention_plan plan;
	if (!ATTENTION_HAS(a->kv.dtype) || (ATTENTION_TILES && a->kv.head_dim % TILE_DIMS != 0))
		return pass_on(ctx, a);
	const bool many = (size_t)a->tokens * a->heads >= (size_t)TASKS_MANY * TASK_ROWS_MANY * kern_thread_count(ctx);
	attention_plan_init(&plan, ctx, a, many ? TASK_ROWS_MANY : TASK_ROWS, TASK_ROWS_FEW,
			    ATTENTION_DOTS_BF16 && a->kv.dtype == KERN_BF16, ATTENTION_TILES);
	if (plan.tasks == 0)
		return ERR_OK;
	plan.follows = a->tokens <= a->rows;
	plan.large = !plan.follows && (size_t)a->tokens * a->heads * a->kv.head_dim > LARGE_FLOATS;
	shares_init(&plan.shares, plan.tasks, plan.threads, 1);
	kern_parallel(ctx, kern_min(plan.tasks, plan.threads), run_tasks, &plan);
	if (plan.divided)
		kern_parallel(ctx, plan.tasks / plan.segments, merge_task, &plan);
	return ERR_OK;
}
