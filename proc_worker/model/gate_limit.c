/* Bounds between an MLP's first product and its activation. Runs in the worker, in every step of models that have some; owns no memory. */
#include "proc_worker/model/gate_limit.h"

enum { VALUES_A_TASK = 1 << 15 };

struct bounded {
	float *gate_up;
	f32 gate, up;
	u32 tokens, size, tokens_a_task;
};

static void bound_task(void *arg, u32 task, u32 thread)
{
	const struct bounded *b = arg;

	(void)thread;
	for (u32 t = task * b->tokens_a_task; t < b->tokens && t < (task + 1) * b->tokens_a_task; t++) {
		float *gate = b->gate_up + 2 * (size_t)t * b->size, *up = gate + b->size;
		for (u32 i = 0; i < b->size; i++) {
			gate[i] = gate[i] > b->gate ? b->gate : gate[i]; /* what is no number stays what it is, and is found */
			up[i] = up[i] > b->up ? b->up : up[i] < -b->up ? -b->up : up[i];
		}
	}
}

void gate_limit(struct kern_ctx *ctx, const struct gate_limit *l, float *gate_up, u32 tokens, u32 size)
{
	const u32 each = 1 + VALUES_A_TASK / (2 * size + 1), tasks = (tokens + each - 1) / each;
	struct bounded b = {.gate_up = gate_up, .gate = l->gate, .up = l->up, .tokens = tokens, .size = size, .tokens_a_task = each};

	if (l->up == 0)
		return;
	if (ctx->threads)
		kern_threads_run(ctx->threads, tasks, bound_task, &b);
	for (u32 i = 0; i < tasks && !ctx->threads; i++)
		bound_task(&b, i, 0);
}
