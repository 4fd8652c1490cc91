/* Reference: the products of each expert by the table's matmul, one expert after the other, all threads on each.
 * So every type of weights that matmul reads works here, too. */
#include "kernels/kern_priv.h"

struct gather {
	float *to;
	const float *from;
	const u32 *source;
	u32 rows, width;
};

static void gather_rows(void *arg, u32 task, u32 thread)
{
	const struct gather *g = arg;
	u32 count = kern_rows_a_task(g->width), end = kern_min((task + 1) * count, g->rows);
	(void)thread;
	for (u32 i = task * count; i < end; i++)
		memcpy(g->to + (size_t)i * g->width, g->from + (size_t)g->source[i] * g->width,
		       g->width * sizeof(float));
}

enum err moe_matmul_ref(struct kern_ctx *ctx, const struct kern_moe_matmul_args *a)
{
	u32 k = a->w[0].k, n = a->w[0].n;
	size_t gathered = a->source ? kern_align((size_t)a->tokens * k * sizeof(float)) : 0;
	struct kern_ctx inner = *ctx; /* without the end of the scratch, where the gathered rows are */
	ASSERT(gathered <= ctx->scratch_bytes && a->expert_start[a->experts] == a->assignments);
	inner.scratch_bytes -= gathered;
	float *rows = (float *)(void *)((char *)ctx->scratch + inner.scratch_bytes);
	for (u32 e = 0; e < a->experts; e++) {
		u32 first = a->expert_start[e], count = a->expert_start[e + 1] - first;
		struct kern_matmul_args m = {
			.w = &a->w[e], .tokens = count, .x_stride = k, .out_stride = n, .dtype = a->dtype};
		if (count == 0)
			continue;
		m.bias = a->bias ? a->bias + (size_t)e * n : NULL;
		ASSERT(count <= a->tokens);
		m.out = a->out + (size_t)first * n;
		m.x = a->x + (size_t)first * k;
		if (a->source) {
			struct gather g = {rows, a->x, a->source + first, count, k};
			kern_parallel(ctx, kern_ceil(count, kern_rows_a_task(k)), gather_rows, &g);
			m.x = rows;
		}
		enum err err = a->ops->matmul(&inner, &m);
		if (err)
			return err;
	}
	return ERR_OK;
}
