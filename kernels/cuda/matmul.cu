/* The matrix product: which kernel takes it. */
#include "kernels/cuda/lt.cuh"
#include "kernels/cuda/matmul_skinny.cuh"
#include "kernels/weight_device_priv.h"

enum err skinny_of_args(const struct kern_matmul_args *a, struct skinny *p)
{
	const struct kern_weight *w = a->w;
	const size_t row_bytes = weight_device_row_bytes(w->k, w->dtype);
	*p = {};
	p->w = (const u8 *)w->data;
	p->scales = p->w + w->n * row_bytes;
	p->zeros = p->scales + weight_device_scales_bytes(w->n, w->k, w->dtype);
	p->order = w->order;
	p->x = a->x;
	p->bias = a->bias;
	p->out = a->out;
	p->tokens = a->tokens;
	p->n = w->n;
	p->k = w->k;
	p->units = (u32)(row_bytes / WEIGHT_DEVICE_UNIT);
	p->scale_rows = weight_device_scale_rows(w->n);
	p->groups = weight_device_groups(w->k, w->dtype);
	while (p->groups > 0 && 1u << p->group_shift < weight_device_group(w->dtype))
		p->group_shift++;
	p->x_stride = a->x_stride;
	p->out_stride = a->out_stride;
	p->accumulate = a->accumulate;
	p->out_f32 = a->out_dtype == KERN_F32;
	if (!cuda_aligned(p->x) || !cuda_aligned(p->w) || !cuda_aligned(p->order) || p->x_stride % 8 != 0)
		return ERR_INVALID;
	return ERR_OK;
}

/* Whole heads have to be there before their norms and scales are known, or neighbours meet: the product lies in `qkv` in
 * between. So it does where few families do more, which costs the others nothing then. */
static enum err skinny_fuse_heads(const struct kern_cuda *device, const struct kern_rope_kv_args *a, struct skinny *p)
{
	const struct rope *r = &p->rope;
	if (!device || r->heads + 2 * r->kv_heads > LT_HEADS_MAX || r->head_dim % 16 != 0 || !r->qkv)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(r->qkv))
		return ERR_INVALID;
	p->rows = SKINNY_HEADS;
	p->head_counts = device->head_counts;
	p->out = (void *)a->qkv;
	p->out_stride = p->n;
	p->out_f32 = true;
	return ERR_OK;
}

static enum err skinny_fuse(const struct kern_cuda *device, const struct kern_matmul_fusion *f,
			    const struct kern_weight *w, struct skinny *p)
{
	p->norm_weight = f->norm_weight;
	p->norm_eps = f->norm_eps;
	if (!cuda_aligned(f->norm_weight) || (f->act_mul && f->rope) || (f->norm_weight && w->order))
		return ERR_INVALID;
	if (f->act_mul) {
		p->rows = SKINNY_ACT;
		p->act = f->act;
		return w->n % 2 == 0 ? ERR_OK : ERR_INVALID;
	}
	if (!f->rope)
		return ERR_OK;
	const enum err e = rope_of_args(f->rope, &p->rope);
	if (e != ERR_OK)
		return e;
	if (!rope_is_dense(f->rope))
		return ERR_UNSUPPORTED;
	const struct rope *r = &p->rope;
	p->rows = SKINNY_ROPE;
	p->accumulate = false;
	if (w->n != (r->heads + 2 * r->kv_heads) * r->head_dim)
		return ERR_INVALID;
	if (r->q_norm || r->k_norm || r->interleaved || r->q_scales || r->clip > 0 || r->kv_dtype != KERN_BF16)
		return skinny_fuse_heads(device, f->rope, p);
	if (r->head_dim % 16 != 0 || r->rope_dim % 16 != 0)
		return ERR_UNSUPPORTED;
	p->bias = r->bias ? r->bias : p->bias;
	return ERR_OK;
}

static enum err ring_run(enum kern_dtype type, const struct skinny *p, cudaStream_t stream)
{
	switch (type) {
	case KERN_BF16:
		return ring_run_bf16(p, stream);
	case KERN_I8:
		return ring_run_i8(p, stream);
	case KERN_F8E4M3:
		return ring_run_f8(p, stream);
	default:
		return ring_run_i4(p, stream);
	}
}

static enum err skinny_run(enum kern_dtype type, const struct skinny *p, cudaStream_t stream)
{
	const enum err e = ring_run(type, p, stream);
	if (e != ERR_UNSUPPORTED)
		return e;
	switch (type) {
	case KERN_BF16:
		return skinny_run_bf16(p, stream);
	case KERN_I8:
		return skinny_run_i8(p, stream);
	case KERN_F8E4M3:
		return skinny_run_f8(p, stream);
	default:
		return skinny_run_i4(p, stream);
	}
}

/* More tokens than the kernel takes, in slices: the weight is read again for each. */
static enum err skinny_slices(struct skinny *p, enum kern_dtype type, cudaStream_t stream)
{
	const u32 tokens = p->tokens;
	const size_t element = p->out_f32 ? sizeof(float) : sizeof(u16);
	enum err e = ERR_OK;
	for (u32 t = 0; t < tokens && e == ERR_OK; t += KERN_FUSED_TOKENS) {
		p->tokens = tokens - t < KERN_FUSED_TOKENS ? tokens - t : (u32)KERN_FUSED_TOKENS;
		e = skinny_run(type, p, stream);
		p->x = (const u16 *)p->x + (size_t)p->tokens * p->x_stride;
		p->out = (char *)p->out + (size_t)p->tokens * p->out_stride * element;
	}
	return e;
}

/* Products with narrow weights, of a router, say, take cuBLASLt longer to begin than to compute. */
enum { NARROW = 512 };

/* Of bf16 the ring of few tokens reads as fast as cuBLASLt, which takes what the ring does not. Slices of a weight of b bits
 * read it ceil(tokens / 16) times; the other way reads it, writes it as bf16 and reads that. */
static bool slices_worth(const struct kern_weight *w, u32 tokens)
{
	if (w->dtype != KERN_BF16)
		return tokens <= 4 * KERN_FUSED_TOKENS;
	return tokens <= KERN_FUSED_TOKENS && (w->n < NARROW || (w->n % 16 == 0 && (tokens <= 8 || w->k % 128 == 0)));
}

/* Whether a product of more than few tokens is quicker in tiles of the quantized weight: not where cuBLASLt, which computes
 * twice as fast, makes up for the widening; of small weights a device has too few tiles; groups of 32 cost most. Measured on
 * an H100. */
static bool dense_worth(const struct kern_matmul_args *a)
{
	enum { LARGE = 20 << 20 };
	const enum kern_dtype type = a->w->dtype;
	if (type == KERN_BF16 || a->tokens <= KERN_FUSED_TOKENS)
		return false;
	if ((u64)a->w->n * a->w->k < LARGE || type == KERN_I4_32)
		return a->tokens <= 64;
	return a->tokens <= (weight_device_is_int4(type) ? 128 : 192);
}

/* Products without fusion by what takes more than few tokens. ERR_UNSUPPORTED: none of it, or for want of memory. */
static enum err not_skinny(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	enum err e = ERR_UNSUPPORTED;
	if (!ctx->device || a->fusion)
		return ERR_UNSUPPORTED;
	if (dense_worth(a))
		e = matmul_dense(ctx, a);
	if (e == ERR_UNSUPPORTED && !slices_worth(a->w, a->tokens))
		e = matmul_many(ctx, a);
	if (e == ERR_UNSUPPORTED && a->w->dtype != KERN_BF16 && a->tokens > KERN_FUSED_TOKENS && !dense_worth(a))
		e = matmul_dense(ctx, a);
	return e;
}

CUDA_OP(matmul)
{
	const struct kern_weight *w = a->w;
	const bool norm = a->fusion && a->fusion->norm_weight; /* of the residual stream */
	struct skinny p;
	if (a->dtype != (norm ? KERN_F32 : KERN_BF16) || (a->out_dtype != KERN_BF16 && a->out_dtype != KERN_F32) ||
	    weight_device_columns(w->dtype) == 0 || w->k % SKINNY_SLAB != 0)
		return ERR_UNSUPPORTED;
	if (a->tokens == 0)
		return ERR_OK;
	if (a->fusion && (a->fusion->then || a->tokens > KERN_FUSED_TOKENS))
		return ERR_UNSUPPORTED;
	enum err e = not_skinny(ctx, a);
	if (e != ERR_UNSUPPORTED)
		return e;
	e = skinny_of_args(a, &p);
	if (e == ERR_OK && a->fusion)
		e = skinny_fuse((const struct kern_cuda *)ctx->device, a->fusion, w, &p);
	return e != ERR_OK ? e : skinny_slices(&p, w->dtype, cuda_stream(ctx));
}
