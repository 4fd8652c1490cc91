/* The plan of an attention op: tasks are chunks of one row's queries under one KV head, or single queries
 * under all of them. When these are too few for the threads (few sequences, long contexts) each is divided
 * into segments of the context, merged afterwards. Runs in the worker; never allocates. */
#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/kv_priv.h"

enum {
	GROUP = 16,
	BLOCK = 64, /* dimensions that sums of 8-bit integers keep together */
	DIVIDED_ROWS = 8,
	TASKS_A_THREAD = 2, /* fewer than these, and a long context is divided */
	TASKS_ENOUGH = 4,   /* fewer than these for a thread, and tasks become smaller */
	PARTIAL_HEAD = 16,  /* floats in front of a partial's sums: maximum and sum */
	CUT_HEADS = 8, /* query heads of a task, at least, where those of a KV head are cut: each reads all keys */
	TOGETHER_BYTES = 4096, /* of a head's keys in a block: so long pieces are read as fast alone */
};

static u32 width_of(u32 head_dim)
{
	return (head_dim + BLOCK - 1) & ~(u32)(BLOCK - 1);
}

static size_t partial_bytes(u32 width)
{
	return (size_t)(PARTIAL_HEAD + width) * sizeof(float);
}

static u32 rows_a_task(u32 group, u32 limit)
{
	return group < limit ? limit / group * group : group;
}

/* How many times the query heads that are computed side by side so many are, at most. */
static u32 tiles_of(u32 rows)
{
	return kern_ceil(rows, ATTENTION_ROWS_LEAST);
}

/* The same of a task's. */
static u32 tiles_a_task(u32 group)
{
	return tiles_of(rows_a_task(group, ATTENTION_TASK_ROWS));
}

/* How many KV heads a task has room for, where each has few query heads: more of these have enough to compute while memory answers. */
static u32 heads_most(u32 group, u32 kv_heads)
{
	u32 rows = rows_a_task(group, ATTENTION_TOGETHER_ROWS), most = kern_min(rows / group, tiles_of(rows));
	return group <= ATTENTION_TOGETHER_GROUP ? kern_min(kv_heads, most) : 1;
}

/* Scores, weights in 16 bits, whole sums of rows at work. */
static size_t part_bytes(u32 width)
{
	return (size_t)ATTENTION_ROWS * (ATTENTION_PART * (sizeof(float) + sizeof(int16_t)) + width * sizeof(i32));
}

/* Of rows at work: what takes turns has its own, and matrix tiles take two at once. */
static u32 parts_of(u32 group, u32 kv_heads)
{
	return kern_ceil(heads_most(group, kv_heads), 2) * 2;
}

/* What is known of the rows and of those at work, what these have; the rows' queries and sums. */
static size_t rows_bytes(u32 width, u32 group, u32 kv_heads)
{
	size_t tiles = tiles_a_task(group), parts = parts_of(group, kv_heads);
	return kern_align(tiles * sizeof(struct attention_rows)) + parts * (sizeof(struct attention_part) + part_bytes(width)) +
	       2 * tiles * ATTENTION_ROWS * width * sizeof(float);
}

/* The above, partials, gathered keys. */
static size_t lane_bytes(u32 head_dim, u32 group, u32 kv_heads, bool gathers)
{
	u32 width = width_of(head_dim);
	size_t partials = rows_a_task(group, ATTENTION_TASK_ROWS) * partial_bytes(width);
	return kern_align(rows_bytes(width, group, kv_heads) + partials) +
	       (gathers ? kern_align(2 * (size_t)ATTENTION_PART * (head_dim + 1) * sizeof(float)) : 0);
}

size_t attention_scratch_bytes(const struct kern_limits *l)
{
	u32 threads = l->threads > 0 ? l->threads : 1;
	if (l->kv_heads == 0 || l->head_dim == 0)
		return 0;
	u32 group = l->heads / l->kv_heads;
	size_t bytes = kern_align((size_t)(l->rows + 1) * sizeof(u32)) +
		       threads * lane_bytes(l->head_dim, group, l->kv_heads, true);
	if (threads > 1 && l->context > ATTENTION_SEGMENT)
		bytes += (size_t)TASKS_A_THREAD * threads * kern_ceil(l->context, ATTENTION_SEGMENT) *
			 rows_a_task(group, DIVIDED_ROWS) * partial_bytes(width_of(l->head_dim));
	return bytes;
}

/* Fills task_start for chunks of `queries` each. */
static u32 count_tasks(struct attention_plan *p, u32 queries, u32 segments)
{
	const struct kern_attention_args *a = p->a;
	u32 tasks = 0;
	p->queries_a_task = queries;
	p->segments = segments;
	for (u32 r = 0; r < a->rows; r++) {
		p->task_start[r] = tasks;
		tasks += kern_ceil(a->query_start[r + 1] - a->query_start[r], queries) *
			 (a->kv.kv_heads / p->heads_a_task) * p->cuts * segments;
	}
	p->task_start[a->rows] = tasks;
	return tasks;
}

/* Tasks of up to `rows` query heads, undivided. */
static void plan_rows(struct attention_plan *p, u32 rows)
{
	u32 heads = p->a->heads / p->a->kv.kv_heads / p->cuts;
	p->rows_a_task = rows_a_task(heads, rows);
	p->tasks = count_tasks(p, p->rows_a_task / heads, 1);
}

/* Of the longest context. */
static u32 segments_most(const struct kern_attention_args *a)
{
	u32 context = 0;
	for (u32 r = 0; r < a->rows; r++)
		context = a->context[r] > context ? a->context[r] : context;
	return kern_ceil(context, ATTENTION_SEGMENT);
}

/* Tasks of single queries, and of some of their heads each where these are many, as many as the threads need beside what segments of the
 * context will give. Undivided. */
static void plan_cuts(struct attention_plan *p)
{
	const u32 group = p->a->heads / p->a->kv.kv_heads, enough = TASKS_A_THREAD * p->threads;
	if (group < 2 * CUT_HEADS)
		return;
	plan_rows(p, group);
	const u64 tasks = (u64)p->tasks * segments_most(p->a);
	for (u32 cuts = 2; cuts * CUT_HEADS <= group && p->cuts * tasks < enough; cuts++)
		if (group % cuts == 0)
			p->cuts = cuts;
	plan_rows(p, group / p->cuts);
}

/* Tasks of segments, where these are enough for the threads and `room` for their partials. */
static bool plan_segments(struct attention_plan *p, size_t room)
{
	const struct kern_attention_args *a = p->a;
	u32 heads = a->heads / a->kv.kv_heads / p->cuts, rows = rows_a_task(heads, DIVIDED_ROWS), segments = segments_most(a);
	u64 tasks = segments > 1 ? count_tasks(p, rows / heads, segments) : 0;
	if (tasks == 0 || tasks * rows * partial_bytes(p->width) > room)
		return false;
	p->divided = true;
	p->rows_a_task = rows;
	p->tasks = (u32)tasks;
	return true;
}

/* Whether tasks of whole rows, or of whole rows' segments, keep no thread waiting for the others for more than a fifth of the time: by the
 * longest if all are like it, or by what is left to the others when the longest begins last. */
static bool rows_end_together(const struct attention_plan *p)
{
	const struct kern_attention_args *a = p->a;
	u64 keys = 0, longest = 0, tasks = 0, threads = p->threads;
	for (u32 r = 0; r < a->rows; r++) {
		u32 context = a->query_start[r + 1] > a->query_start[r] ? a->context[r] : 0;
		u32 task = p->divided ? kern_min(context, ATTENTION_SEGMENT) : context;
		keys += context;
		longest = task > longest ? task : longest;
		tasks += p->divided ? kern_ceil(context, ATTENTION_SEGMENT) : context > 0;
	}
	return 4 * ((tasks + threads - 1) / threads) * longest * threads <= 5 * keys || 4 * (keys + (threads - 1) * longest) <= 5 * keys;
}

/* Decoding: tasks of one query and all KV heads, whose keys and values lie one after the other in a block, so that memory is read in the
 * order in which it lies. */
static void plan_heads(struct attention_plan *p, size_t room)
{
	const struct kern_attention_args *a = p->a;
	const u32 kv_heads = a->kv.kv_heads;
	if (a->tokens > a->rows || kv_heads == 1 || heads_most(a->heads / kv_heads, kv_heads) < kv_heads || a->kv.block_size % GROUP != 0 ||
	    kern_kv_slab(&a->kv) >= TOGETHER_BYTES || !rows_end_together(p))
		return;
	if (p->divided && (size_t)a->tokens * p->segments * a->heads * partial_bytes(p->width) > room)
		return;
	p->heads_a_task = kv_heads;
	p->rows_a_task = a->heads;
	p->tasks = count_tasks(p, 1, p->segments);
}

/* How tasks are cut. `room`: bytes for the partials of divided ones. */
static void plan_tasks(struct attention_plan *p, u32 rows, u32 rows_few, bool together, size_t room)
{
	const u32 group = p->a->heads / p->a->kv.kv_heads;
	p->heads_a_task = p->cuts = 1;
	plan_rows(p, rows);
	if (p->tasks < TASKS_ENOUGH * p->threads)
		plan_rows(p, rows_few);
	if (p->threads > 1 && p->tasks < TASKS_A_THREAD * p->threads)
		plan_cuts(p);
	if (p->threads > 1 && p->tasks < TASKS_A_THREAD * p->threads && !plan_segments(p, room))
		plan_rows(p, p->cuts > 1 ? group / p->cuts : rows_few);
	if (together)
		plan_heads(p, room);
}

void attention_plan_init(struct attention_plan *p, struct kern_ctx *ctx, const struct kern_attention_args *a, u32 rows,
			 u32 rows_few, bool together, bool laces)
{
	u32 group = a->heads / a->kv.kv_heads;
	char *at = ctx->scratch, *end = at + ctx->scratch_bytes;
	ASSERT(a->heads % a->kv.kv_heads == 0 && a->kv.head_dim % 2 == 0 &&
	       a->kv.head_dim <= KERN_HEAD_DIM_MAX);
	p->args = *a;
	p->a = &p->args;
	p->threads = kern_thread_count(ctx);
	p->width = width_of(a->kv.head_dim);
	p->divided = false;
	p->task_start = (u32 *)(void *)at;
	at += kern_align((size_t)(a->rows + 1) * sizeof(u32));
	p->lanes = at;
	const size_t lane = lane_bytes(a->kv.head_dim, group, a->kv.kv_heads, laces || a->kv.block_size % GROUP != 0);
	const size_t part = kern_scratch_part(ctx, p->threads);
	p->partials_at = rows_bytes(p->width, group, a->kv.kv_heads);
	at += p->threads * lane;
	ASSERT(at <= end && rows <= ATTENTION_TASK_ROWS && rows_few <= rows);
	p->partials = (float *)(void *)at;
	plan_tasks(p, rows, rows_few, together, (size_t)(end - at));
	/* Where no partials follow, a lane is in the thread's own part. */
	p->lane_apart = p->divided || (size_t)(p->lanes - (char *)ctx->scratch) + lane > part ? lane : part;
}

struct attention_task attention_task(const struct attention_plan *p, u32 index)
{
	const struct kern_attention_args *a = p->a;
	u32 low = 0, high = a->rows;
	/* The last row that starts at or before `index`; rows without tasks start where the next one does. */
	while (high - low > 1) {
		u32 middle = low + (high - low) / 2;
		if (p->task_start[middle] <= index)
			low = middle;
		else
			high = middle;
	}
	struct attention_task t = {.index = index, .row = low};
	u32 in_row = index - p->task_start[low], queries = a->query_start[low + 1] - a->query_start[low];
	const u32 parts = a->kv.kv_heads / p->heads_a_task, place = in_row / p->segments;
	t.heads = a->heads / parts / p->cuts;
	t.head = place % p->cuts * t.heads;
	t.kv_head = place / p->cuts % parts * p->heads_a_task;
	t.kv_heads = p->heads_a_task;
	t.query = place / p->cuts / parts * p->queries_a_task;
	t.queries = kern_min(p->queries_a_task, queries - t.query);
	t.queries_of_row = queries;
	t.segment = p->divided ? in_row % p->segments : 0;
	t.segment_end = p->divided ? t.segment + 1 : kern_ceil(a->context[low], ATTENTION_SEGMENT);
	return t;
}

struct attention_lane attention_lane(const struct attention_plan *p, u32 thread)
{
	u32 width = p->width, group = p->a->heads / p->a->kv.kv_heads, tiles = tiles_a_task(group);
	const u32 parts = parts_of(group, p->a->kv.kv_heads);
	struct attention_lane lane = {.width = width};
	char *base = p->lanes + thread * p->lane_apart;
	lane.rows = (struct attention_rows *)(void *)base;
	lane.parts = (struct attention_part *)(void *)(base + kern_align(tiles * sizeof(*lane.rows)));
	lane.q = (float *)(void *)((char *)(lane.parts + parts) + parts * part_bytes(width));
	lane.acc = lane.q + (size_t)tiles * ATTENTION_ROWS * width;
	/* What is gathered of 16 bits is half of what of 32 would be: pairs are behind it. */
	lane.gathered = (u32 *)(void *)(base + lane_bytes(p->a->kv.head_dim, group, p->a->kv.kv_heads, false));
	lane.laced = lane.gathered + (size_t)ATTENTION_PART * (p->a->kv.head_dim + 2);
	for (u32 i = 0; i < kern_ceil(p->heads_a_task, 2) * 2; i++) { /* two by two, what one has behind what the other has */
		struct attention_part *part = &lane.parts[i];
		float *scores = (float *)(void *)((char *)(lane.parts + parts) + i / 2 * 2 * part_bytes(width));
		int16_t *weights = (int16_t *)(void *)(scores + 2 * ATTENTION_ROWS * ATTENTION_PART);
		i32 *sums = (i32 *)(void *)(weights + 2 * ATTENTION_ROWS * ATTENTION_PART);
		part->scores = scores + i % 2 * ATTENTION_ROWS * ATTENTION_PART;
		part->weights = weights + i % 2 * ATTENTION_ROWS * ATTENTION_PART;
		part->sums = sums + i % 2 * ATTENTION_ROWS * width;
	}
	return lane;
}

struct attention_partial attention_partial(const struct attention_plan *p, const struct attention_task *task,
					   u32 thread, u32 r)
{
	char *rows = p->divided ? (char *)p->partials + (size_t)task->index * p->rows_a_task * partial_bytes(p->width)
				: p->lanes + thread * p->lane_apart + p->partials_at;
	float *at = (float *)(void *)(rows + r * partial_bytes(p->width));
	return (struct attention_partial){at, at + 1, at + PARTIAL_HEAD};
}
