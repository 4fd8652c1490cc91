/* The products of a mixture's experts: which kernel takes them. */
#include "kernels/cuda/matmul_skinny.cuh"
#include "kernels/weight_device_priv.h"

CUDA_OP(moe_matmul)
{
	const struct kern_weight *w = a->w;
	struct skinny_experts x = {};
	struct skinny p;
	const struct skinny_work work = {a->experts, a->tokens, a->assignments};
	if (a->dtype != KERN_BF16 || a->experts == 0 || a->experts > SKINNY_EXPERTS_MAX ||
	    weight_device_columns(w->dtype) == 0 || w->k % SKINNY_SLAB != 0)
		return ERR_UNSUPPORTED;
	struct kern_matmul_args one = {};
	one.out_bf16 = a->out_bf16;
	one.x_bf16 = a->x_bf16;
	one.w = w;
	one.x_stride = w->k;
	one.out_stride = w->n;
	one.dtype = one.out_dtype = KERN_BF16;
	const enum err e = skinny_of_args(&one, &p);
	if (e != ERR_OK || a->assignments == 0)
		return e;
	p.source = a->source;
	p.bias = a->bias; /* of the first expert */
	x.expert_start = a->expert_start;
	x.scales_at = (size_t)(p.scales - p.w);
	x.zeros_at = (size_t)(p.zeros - p.w);
	x.w = (const u8 *)w->data;
	x.between = a->experts > 1 ? (size_t)((const u8 *)w[1].data - x.w) : 0;
	for (u32 i = 0; i < a->experts; i++) {
		if (w[i].n != w->n || w[i].k != w->k || w[i].dtype != w->dtype || !cuda_aligned(w[i].data) ||
		    (const u8 *)w[i].data != x.w + i * x.between)
			return ERR_INVALID;
		if (w[i].order)
			return ERR_UNSUPPORTED;
	}
	if ((u64)a->assignments >= (u64)KERN_EXPERT_TILED * a->experts && cuda_aligned(p.out) && moe_wgmma_serves(w->dtype))
		return moe_wgmma(w->dtype, &p, &x, &work, cuda_stream(ctx));
	if ((u64)a->assignments >= (u64)KERN_EXPERT_TILED * a->experts)
		return moe_tiled(w->dtype, &p, &x, &work, cuda_stream(ctx));
	switch (w->dtype) {
	case KERN_BF16:
		return skinny_experts_bf16(&p, &x, &work, cuda_stream(ctx));
	case KERN_I8:
		return skinny_experts_i8(&p, &x, &work, cuda_stream(ctx));
	case KERN_F8E4M3:
		return skinny_experts_f8(&p, &x, &work, cuda_stream(ctx));
	default:
		return skinny_experts_i4(&p, &x, &work, cuda_stream(ctx));
	}
}
