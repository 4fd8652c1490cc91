/* How attention is cut into tasks, and where each keeps its sums. The same for every instruction set. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_PLAN_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_PLAN_PRIV_H

#include "kernels/cpu/shares_priv.h"
#include "kernels/kern_priv.h"

enum {
	ATTENTION_ROWS = 8,	  /* query heads computed side by side, at most */
	ATTENTION_ROWS_LEAST = 6, /* the least that a variant computes side by side where there are more */
	ATTENTION_TASK_ROWS = 96, /* query heads of a task, at most, or one query of one KV head: whole tiles for most groups */
	ATTENTION_TOGETHER_ROWS = 48, /* the same of one query of all KV heads */
	ATTENTION_TOGETHER_GROUP = 4, /* query heads of a KV head, at most, where tasks of one query have all KV heads */
	ATTENTION_PART = 256,	  /* keys of a softmax step */
	ATTENTION_SEGMENT = 1024, /* keys of what threads may share out; changing it changes results */
};

struct attention_plan {
	const struct kern_attention_args *a; /* `args`, which lie here so that another thread fetches them with the plan */
	struct kern_attention_args args;
	u32 *task_start; /* [rows + 1] tasks of the rows before */
	u32 queries_a_task;
	u32 heads_a_task; /* KV heads: one or all */
	u32 cuts;	  /* of the query heads of a KV head, where one query's are too many for a task: equal parts, each a task's */
	u32 rows_a_task;  /* queries_a_task * its query heads */
	u32 segments;	 /* divided: tasks that share a chunk, each a segment */
	bool divided;
	u32 threads;
	u32 tasks;
	u32 width; /* floats of a row of sums: head_dim rounded up to vectors */
	char *lanes;
	size_t lane_apart, partials_at; /* apart: from one to the next; at: of a lane, where no task is divided, the partials of a task's rows */
	float *partials; /* divided: [tasks][rows_a_task] */
	bool follows; /* no prompts: a thread's next task is known, its first keys are asked for beside its last values, as where `large` */
	bool large;   /* the batch's queries and outputs leave a core's caches: it asks for its outputs, and for the queries of
			 the task that it most likely takes next */
	struct shares shares; /* of the tasks, where there are any */
};

struct attention_task {
	u32 index;
	u32 row, kv_head, kv_heads; /* the first KV head, and how many: all of them only of one query */
	u32 head, heads; /* of a query, counted from the KV head's first one on: the first, and how many of all its KV heads */
	u32 query, queries; /* the chunk within the row */
	u32 queries_of_row;
	u32 segment, segment_end;
};

/* What rows leave from one step over a part of the keys to the next. */
struct attention_part {
	float *scores;	  /* [ATTENTION_ROWS][ATTENTION_PART] */
	int16_t *weights; /* [ATTENTION_ROWS][ATTENTION_PART] softmax weights in 16 bits, where products want
			     them */
	i32 *sums;	  /* [ATTENTION_ROWS][width] of 8-bit integers */
	float exp_base[ATTENTION_ROWS]; /* what is subtracted from a row's scores */
	float rescale[ATTENTION_ROWS];	/* what earlier sums are multiplied by */
	float factor[ATTENTION_ROWS];	/* products of bfloat16: what sums become outputs by */
	/* Values of whole numbers: what those of the weights count, and what an offset of 8-bit values adds to a sum. */
	float weight_unit[ATTENTION_ROWS];
	u32 weight_excess[ATTENTION_ROWS];
	_Alignas(64) float highest[ATTENTION_ROWS][16]; /* of a row's scores by lanes, where products are of bfloat16 */
};

/* Query heads of a task that are computed side by side. */
struct attention_rows {
	u32 row, count; /* the first, of the task's; at most ATTENTION_ROWS */
	bool asks; /* for the memory of their KV head: the others of that head find it in the caches */
	size_t head_at; /* bytes, in a block, from the task's first KV head to theirs */
	u32 end;	/* of the keys that any of them sees */
	size_t at[ATTENTION_ROWS]; /* where the query and the output of each begin, in floats */
	u32 first[ATTENTION_ROWS], last[ATTENTION_ROWS]; /* keys that each sees */
	/* keys of whole numbers: what a row's own count, and what an offset of 8-bit keys adds to a sum */
	float q_unit[ATTENTION_ROWS];
	u32 q_excess[ATTENTION_ROWS];
	float *q; /* [width][ATTENTION_ROWS] scaled, in the form that the products want */
	/* of the segment so far */
	float best[ATTENTION_ROWS], sum[ATTENTION_ROWS];
	bool fresh; /* no part yet: `acc` is not yet written */
	bool begun; /* `q` is written */
	float *acc; /* [ATTENTION_ROWS][width] */
	struct attention_part *part;
};

/* The work area of a thread. */
struct attention_lane {
	struct attention_rows *rows; /* all of a task */
	struct attention_part *parts; /* of as many as may be at work in turns, with what they point to */
	float *q, *acc;	  /* of all `rows`, one after the other */
	/* Of blocks that hold no whole groups: [ATTENTION_PART / 16][words][16] keys, [ATTENTION_PART][words]
	 * values, [ATTENTION_PART / 16][2][16] scales. */
	u32 *gathered;
	u32 *laced; /* [ATTENTION_PART / 2][head_dim]: pairs of neighbouring keys' values, where the plan has them */
	u32 width;
};

/* The softmax sums of one query head over a range of keys. */
struct attention_partial {
	float *best, *sum;
	float *acc; /* [width] */
};

/* Tasks have up to `rows` query heads, or, where these would be few for the threads, up to `rows_few`; with `together` those of decoding have
 * all KV heads where that pays; with `laces` lanes have pairs of values. */
void attention_plan_init(struct attention_plan *plan, struct kern_ctx *ctx, const struct kern_attention_args *a, u32 rows,
			 u32 rows_few, bool together, bool laces);
struct attention_task attention_task(const struct attention_plan *plan, u32 index);
struct attention_lane attention_lane(const struct attention_plan *plan, u32 thread);
/* Row `r` of a task's chunk: in the thread's area, or, where the context is divided, in the task's own. */
struct attention_partial attention_partial(const struct attention_plan *plan,
					   const struct attention_task *task, u32 thread, u32 r);
size_t attention_scratch_bytes(const struct kern_limits *l);

#endif
