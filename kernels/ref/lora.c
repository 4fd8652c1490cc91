/* Reference: low-rank adapters, one token after the other. */
#include "kernels/kern_priv.h"

static void add_part(const struct kern_lora *l, const struct kern_lora_part *p, const double *h, float *out)
{
	for (u32 j = 0; j < p->n; j++) {
		double sum = 0;
		for (u32 r = 0; r < p->rank; r++)
			sum += h[p->rank_first + r] * kern_load(p->b, l->dtype, kern_lora_b_index(p->rank, j, r));
		out[p->first + j] = (float)(out[p->first + j] + p->scale * sum);
	}
}

enum err lora_ref(struct kern_ctx *ctx, const struct kern_lora_args *a)
{
	double *h = ctx->scratch;
	for (u32 g = 0; g < a->group_count; g++) {
		const struct kern_lora *l = a->groups[g].lora;
		ASSERT(l->rank * sizeof(double) <= ctx->scratch_bytes);
		for (u32 i = 0; i < a->groups[g].count; i++) {
			size_t t = a->groups[g].tokens[i] - a->first;
			for (u32 r = 0; r < l->rank; r++) {
				h[r] = 0;
				for (u32 k = 0; k < l->k; k++)
					h[r] += (double)a->x[t * a->x_stride + k] *
						kern_load(l->a, l->dtype, (size_t)r * l->k + k);
			}
			for (u32 p = 0; p < l->part_count; p++)
				add_part(l, &l->parts[p], h, a->out + t * a->out_stride);
		}
	}
	return ERR_OK;
}
