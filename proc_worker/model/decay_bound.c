/* What stands between the first product of such a layer and its recurrence. Runs in the worker, in every step; owns no memory. */
#include "proc_worker/model/decay_bound.h"

#include <math.h>

enum { HEADS_A_TASK = 16 };

/* Softplus of it is next to nothing, and exponentials are floats. */
static const float LEAST = -80;

/* The x whose softplus is `y`, above 0. */
static float softplus_of(float y)
{
	const float x = y + logf(-expm1f(-y));

	return x > LEAST ? x : LEAST;
}

static void bound_head(const struct decay_bound_args *a, float *x, u32 head)
{
	const float rate = expf(a->rate_log[head]);
	const float *bias = a->bias + (size_t)head * a->key_dim;

	for (u32 i = 0; i < a->key_dim; i++)
		x[i] = softplus_of(a->bound / (1 + expf(-rate * (x[i] + bias[i]))));
}

static void bound_task(void *arg, u32 task, u32 thread)
{
	const struct decay_bound_args *a = arg;
	const size_t all = (size_t)a->tokens * a->heads, end = (size_t)(task + 1) * HEADS_A_TASK;

	(void)thread;
	for (size_t i = (size_t)task * HEADS_A_TASK; i < end && i < all; i++) {
		const u32 head = (u32)(i % a->heads);
		bound_head(a, a->decay + i / a->heads * a->stride + (size_t)head * a->key_dim, head);
	}
}

void decay_bound(struct kern_ctx *ctx, const struct decay_bound_args *a)
{
	const u32 tasks = (u32)(((size_t)a->tokens * a->heads + HEADS_A_TASK - 1) / HEADS_A_TASK);
	struct decay_bound_args copy = *a;

	if (ctx->threads)
		kern_threads_run(ctx->threads, tasks, bound_task, &copy);
	for (u32 i = 0; i < tasks && !ctx->threads; i++)
		bound_task(&copy, i, 0);
}
