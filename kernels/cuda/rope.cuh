/* Bias, norm and rotation of heads and their way into the cache, for rope_kv and for the projection that has
 * it fused. What few families ask for, and large heads, is struct rope_rich, which rope_kv alone takes: the others' kernels have neither its
 * branches nor its registers. */
#ifndef TERCET_KERNELS_CUDA_ROPE_CUH
#define TERCET_KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/device.cuh"

enum {
	ROPE_HEAD_DIM_MAX = 256,
	ROPE_UNITS = 2, /* of a lane; a unit is four values */
	ROPE_RICH_UNITS = 5,
	ROPE_RICH_DIM_MAX = 4 * ROPE_RICH_UNITS * CU_WARP,
};

struct rope {
	u16 *q;
	const float *qkv, *bias, *q_norm, *k_norm, *cos, *sin;
	const u32 *positions;
	const i64 *slots;
	u8 *k, *v;
	enum kern_dtype kv_dtype;
	float norm_eps;
	u32 heads, kv_heads, head_dim, rope_dim, block_size;
	const float *q_scales;
	float clip;
	bool norm_behind;
	bool interleaved; /* the pairs of what is read are neighbours; what is written are halves all the same */
};

struct rope_rich : rope {
	u32 apart; /* from a rotated value to its partner */
	bool norm_v, v_is_k;
};

/* Four values of a head: two neighbours and the two that they rotate with, or, behind rope_dim, any others.
 */
struct rope_unit {
	float x[4];
};

/* Values of a token in qkv. */
static inline u32 rope_width(const struct kern_rope_kv_args *a)
{
	return (a->heads + (a->v_is_k ? 1 : 2) * a->kv.kv_heads) * a->kv.head_dim;
}

static inline bool rope_is_rich(const struct kern_rope_kv_args *a)
{
	return a->rope_apart > 0 || a->norm_v || a->v_is_k || a->kv.kv_heads == 0 || a->kv.head_dim > ROPE_HEAD_DIM_MAX;
}

/* What both kinds of args ask for; a cache only where there are KV heads. */
static inline enum err rope_fill(const struct kern_rope_kv_args *a, struct rope *p)
{
	*p = {a->q_bf16,      a->qkv,	    a->bias,	    a->q_norm,	    a->k_norm,	   a->cos,
	      a->sin,	      a->positions, a->slots,	    (u8 *)a->kv.k,  (u8 *)a->kv.v, a->kv.dtype,
	      a->norm_eps,    a->heads,	    a->kv.kv_heads, a->kv.head_dim, a->rope_dim,   a->kv.block_size,
	      a->q_scales,    a->clip,	    a->norm_behind, a->interleaved};
	const bool bytes = p->kv_dtype == KERN_I8 || p->kv_dtype == KERN_F8E4M3;
	if ((a->norm_behind && a->interleaved) || a->layer_norms || a->dtype != KERN_BF16 || (p->kv_heads > 0 && p->kv_dtype != KERN_BF16 && !bytes) ||
	    p->head_dim % 4 != 0 || p->rope_dim % 4 != 0)
		return ERR_UNSUPPORTED;
	if (p->rope_dim > p->head_dim || (p->kv_heads > 0 && p->block_size == 0))
		return ERR_INVALID;
	return ERR_OK;
}

static inline enum err rope_of_args(const struct kern_rope_kv_args *a, struct rope *p)
{
	const enum err e = rope_fill(a, p);
	return e == ERR_OK && rope_is_rich(a) ? ERR_UNSUPPORTED : e;
}

static inline enum err rope_rich_of_args(const struct kern_rope_kv_args *a, struct rope_rich *p)
{
	const enum err e = rope_fill(a, p);
	p->apart = a->rope_apart > 0 ? a->rope_apart : a->rope_dim / 2;
	p->norm_v = a->norm_v;
	p->v_is_k = a->v_is_k;
	if (e != ERR_OK)
		return e;
	if (p->head_dim > ROPE_RICH_DIM_MAX || p->apart % 2 != 0)
		return ERR_UNSUPPORTED;
	if (p->apart < p->rope_dim / 2 || p->apart + p->rope_dim / 2 > p->head_dim ||
	    (a->interleaved && (a->rope_apart > 0 || a->v_is_k)) || (a->norm_behind && a->norm_v))
		return ERR_INVALID;
	return ERR_OK;
}

/* Where in qkv and in the biases head `head` stands; those of v follow k's. */
CU_INLINE u32 rope_source(const struct rope *p, u32 head)
{
	(void)p;
	return head;
}

CU_INLINE u32 rope_source(const struct rope_rich *p, u32 head)
{
	return p->v_is_k && head >= p->heads + p->kv_heads ? head - p->kv_heads : head;
}

/* Whether heads of v are divided by their root mean square. */
CU_INLINE bool rope_norms_v(const struct rope *p)
{
	(void)p;
	return false;
}

CU_INLINE bool rope_norms_v(const struct rope_rich *p)
{
	return p->norm_v;
}

/* Where in the head the unit's two pairs begin. */
CU_INLINE void rope_places(const struct rope *p, u32 unit, u32 *low, u32 *high)
{
	const u32 rotated = p->rope_dim / 4;
	*low = unit < rotated ? 2 * unit : p->rope_dim + 2 * (unit - rotated);
	*high = *low + (unit < rotated ? p->rope_dim : p->head_dim - p->rope_dim) / 2;
}

/* Of the values that do not rotate, pair `i`: between those that do, and behind them. */
CU_INLINE u32 rope_rest_place(const struct rope_rich *p, u32 i)
{
	const u32 half = p->rope_dim / 2, at = half + 2 * i;
	return at < p->apart ? at : at + half;
}

CU_INLINE void rope_places(const struct rope_rich *p, u32 unit, u32 *low, u32 *high)
{
	const u32 rotated = p->rope_dim / 4, rest = p->head_dim / 4 - rotated;
	*low = unit < rotated ? 2 * unit : rope_rest_place(p, unit - rotated);
	*high = unit < rotated ? *low + p->apart : rope_rest_place(p, unit - rotated + rest);
}

/* The unit's values of a head, or of its norm's weights or its biases, that begin at `in`. `turns`: it is one of q or k. */
template <typename R> CU_INLINE struct rope_unit rope_read(const R *p, const float *in, bool turns, u32 unit)
{
	struct rope_unit u;
	u32 low, high;
	rope_places(p, unit, &low, &high);
	const bool neighbours = p->interleaved && turns && unit < p->rope_dim / 4;
	const float2 a = cu_load<float2>(in + (neighbours ? 4 * unit : low)),
		     b = cu_load<float2>(in + (neighbours ? 4 * unit + 2 : high));
	u.x[0] = a.x;
	u.x[1] = neighbours ? b.x : a.y;
	u.x[2] = neighbours ? a.y : b.x;
	u.x[3] = b.y;
	return u;
}

/* From head `head`, whose values begin at `in`. */
template <typename R> CU_INLINE struct rope_unit rope_load(const R *p, const float *in, u32 head, u32 unit)
{
	const bool turns = head < p->heads + p->kv_heads;
	struct rope_unit u = rope_read(p, in, turns, unit);
	if (p->bias) {
		const struct rope_unit bias = rope_read(p, p->bias + (size_t)rope_source(p, head) * p->head_dim, turns, unit);
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			u.x[e] += bias.x[e];
	}
#pragma unroll
	for (u32 e = 0; e < 4; e++) /* a NaN stays one */
		if (p->clip > 0 && fabsf(u.x[e]) > p->clip)
			u.x[e] = copysignf(p->clip, u.x[e]);
	return u;
}

template <typename R> CU_INLINE void rope_scale(const R *p, const float *norm, float scale, u32 unit, struct rope_unit *u)
{
	const struct rope_unit weight = rope_read(p, norm, true, unit);
#pragma unroll
	for (u32 e = 0; e < 4; e++)
		u->x[e] *= scale * weight.x[e];
}

CU_INLINE void rope_rotate(const struct rope *p, u32 position, u32 unit, struct rope_unit *u)
{
	if (unit >= p->rope_dim / 4)
		return;
	const size_t at = (size_t)position * (p->rope_dim / 2) + 2 * unit;
	const float2 c = cu_load<float2>(p->cos + at), s = cu_load<float2>(p->sin + at);
	const float low0 = u->x[0], low1 = u->x[1];
	u->x[0] = low0 * c.x - u->x[2] * s.x;
	u->x[1] = low1 * c.y - u->x[3] * s.y;
	u->x[2] = u->x[2] * c.x + low0 * s.x;
	u->x[3] = u->x[3] * c.y + low1 * s.y;
}

CU_INLINE bool rope_bytes(const struct rope *p)
{
	return p->kv_dtype != KERN_BF16;
}

/* Where the part of the cache begins that holds KV head `head` of the block of `slot`. */
CU_INLINE u8 *rope_cache_head(const struct rope *p, bool is_k, i64 slot, u32 head)
{
	const size_t token = rope_bytes(p) ? p->head_dim + sizeof(float) : 2 * p->head_dim;
	const size_t block = (u64)slot / p->block_size;
	return (is_k ? p->k : p->v) + (block * p->kv_heads + head) * p->block_size * token;
}

template <u32 UNITS, typename R>
CU_INLINE void rope_store_bf16(const R *p, u16 *to, u32 lane, const struct rope_unit u[UNITS])
{
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		u32 low, high;
		if (unit >= p->head_dim / 4)
			continue;
		rope_places(p, unit, &low, &high);
		cu_store(to + low, cu_pack_bf16(u[j].x[0], u[j].x[1]));
		cu_store(to + high, cu_pack_bf16(u[j].x[2], u[j].x[3]));
	}
}

/* `head`: the part of the cache; `offset`: the token's place in the block. */
template <u32 UNITS, typename R>
CU_INLINE void rope_store_bytes(const R *p, u8 *head, u32 offset, u32 lane,
				const struct rope_unit u[UNITS])
{
	const bool f8 = p->kv_dtype == KERN_F8E4M3;
	const float range = f8 ? CUDA_F8_MAX : CUDA_I8_MAX;
	u16 *to = (u16 *)(head + (size_t)offset * p->head_dim);
	float largest = 0;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++)
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			if (lane + j * CU_WARP < p->head_dim / 4)
				largest = fmaxf(largest, fabsf(u[j].x[e]));
	largest = warp_max(largest);
	const float inverse = largest > 0 ? range / largest : 0;
	if (lane == 0)
		((float *)(head + (size_t)p->block_size * p->head_dim))[offset] = largest / range;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		u32 low, high;
		if (unit >= p->head_dim / 4)
			continue;
		rope_places(p, unit, &low, &high);
		to[low / 2] = (u16)(quantize(u[j].x[0], inverse, f8) | quantize(u[j].x[1], inverse, f8) << 8);
		to[high / 2] =
			(u16)(quantize(u[j].x[2], inverse, f8) | quantize(u[j].x[3], inverse, f8) << 8);
	}
}

/* A whole head of token `t`, of which this lane of a warp has units lane, lane + 32, ... */
template <u32 UNITS, typename R>
CU_INLINE void rope_store(const R *p, u32 t, u32 head, u32 lane, const struct rope_unit u[UNITS])
{
	if (head < p->heads) {
		rope_store_bf16<UNITS>(p, p->q + ((size_t)t * p->heads + head) * p->head_dim, lane, u);
		return;
	}
	const bool is_k = head < p->heads + p->kv_heads;
	const i64 slot = p->slots[t];
	if (slot < 0)
		return;
	u8 *part = rope_cache_head(p, is_k, slot, head - p->heads - (is_k ? 0 : p->kv_heads));
	const u32 offset = (u32)((u64)slot % p->block_size);
	if (rope_bytes(p))
		rope_store_bytes<UNITS>(p, part, offset, lane, u);
	else
		rope_store_bf16<UNITS>(p, (u16 *)part + (size_t)offset * p->head_dim, lane, u);
}

/* All that happens to head `head` of token `t`, whose values begin at `in`, by a warp. A lane holds pairs of neighbouring values and the
 * pairs that they rotate with, so nothing but the norm crosses lanes. */
template <u32 UNITS, typename R> CU_INLINE void rope_head(const R *p, const float *in, u32 t, u32 head, u32 lane)
{
	const u32 units = p->head_dim / 4;
	const bool turns = head < p->heads + p->kv_heads;
	const float *norm = head < p->heads ? p->q_norm : turns ? p->k_norm : NULL;
	const bool plain = !turns && rope_norms_v(p);
	const u32 position = p->positions[t];
	const float times = p->q_scales && head < p->heads ? p->q_scales[position] : 1;
	struct rope_unit u[UNITS];
	float sum = 0;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		if (unit >= units)
			continue;
		u[j] = rope_load(p, in, head, unit);
		if (turns && p->norm_behind)
			rope_rotate(p, position, unit, &u[j]);
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			sum += u[j].x[e] * u[j].x[e];
	}
	const float scale = norm || plain ? cu_rsqrt(warp_sum(sum) / (float)p->head_dim + p->norm_eps) : 1;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		if (unit >= units)
			continue;
		if (norm)
			rope_scale(p, norm, scale, unit, &u[j]);
		if (turns && !p->norm_behind)
			rope_rotate(p, position, unit, &u[j]);
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			u[j].x[e] *= plain ? scale : times;
	}
	rope_store<UNITS>(p, t, head, lane, u);
}

/* The same where tokens lie one after the other. */
CU_INLINE void rope_head(const struct rope *p, u32 t, u32 head, u32 lane)
{
	const u32 heads = p->heads + 2 * p->kv_heads;
	rope_head<ROPE_UNITS>(p, p->qkv + ((size_t)t * heads + head) * p->head_dim, t, head, lane);
}

/* Whether they do. */
static inline bool rope_is_dense(const struct kern_rope_kv_args *a)
{
	return a->qkv_stride == 0 || a->qkv_stride == rope_width(a);
}

#endif
