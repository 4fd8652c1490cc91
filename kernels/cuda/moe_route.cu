/* Routing of a mixture of experts: a warp a token chooses its experts, then a block an expert numbers what it
 * has to do, in the order of tokens. Scratch: the chosen experts, until they are numbered. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / CU_WARP, EXPERTS_LANE = 16, EXPERTS_MAX = EXPERTS_LANE * CU_WARP };

struct choice {
	float logit;
	u32 expert;
};

/* The greatest logit of the warp and, of equal ones, the lowest expert, in each lane. */
CU_INLINE struct choice warp_choice(struct choice c)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const float logit = cu_shfl_xor(c.logit, i);
		const u32 expert = cu_shfl_xor(c.expert, i);
		if (logit > c.logit || (logit == c.logit && expert < c.expert))
			c = {logit, expert};
	}
	return c;
}

CU_INLINE float exponential(float x)
{
	return cu_exp2(x * 1.4426950408889634f);
}

static __global__ void __launch_bounds__(THREADS)
	moe_choose_kernel(const struct kern_moe_route_args a, u32 *chosen)
{
	const u32 t = blockIdx.x * WARPS + threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
	float logits[EXPERTS_LANE], best = 0, sum = 0, mine = 0;
	u32 taken = 0;	   /* a bit per logit of this lane */
	if (t >= a.tokens) /* the whole warp */
		return;
#pragma unroll
	for (u32 i = 0; i < EXPERTS_LANE; i++) {
		const u32 e = i * CU_WARP + lane;
		const float x = e < a.experts ? a.logits[(size_t)t * a.experts + e] : -INFINITY;
		logits[i] = x == x ? x : -INFINITY; /* lanes would not agree on the order of a NaN */
	}
	for (u32 j = 0; j < a.top; j++) {
		struct choice c = {-INFINITY, 0xffffffffu};
#pragma unroll
		for (u32 i = 0; i < EXPERTS_LANE; i++) {
			const u32 e = i * CU_WARP + lane;
			if (e < a.experts && !(taken >> i & 1) &&
			    (logits[i] > c.logit || c.expert == 0xffffffffu))
				c = {logits[i], e};
		}
		c = warp_choice(c);
		if (c.expert % CU_WARP == lane)
			taken |= 1u << (c.expert / CU_WARP);
		best = j == 0 ? c.logit : best;
		const float p = exponential(c.logit - best);
		sum += p;
		mine = j == lane ? p : mine; /* top is at most a warp's lanes */
		if (lane == 0)
			chosen[(size_t)t * a.top + j] = c.expert;
	}
	if (!a.normalize) {
		float all = 0;
#pragma unroll
		for (u32 i = 0; i < EXPERTS_LANE; i++)
			all += i * CU_WARP + lane < a.experts ? exponential(logits[i] - best) : 0;
		sum = warp_sum(all);
	}
	if (lane < a.top)
		a.weights[(size_t)t * a.top + lane] = mine / sum;
}

static __global__ void __launch_bounds__(THREADS)
	moe_number_kernel(const struct kern_moe_route_args a, const u32 *chosen)
{
	SHARED(u32, counts, WARPS);
	const u32 expert = blockIdx.x, count = a.tokens * a.top, lane = threadIdx.x % CU_WARP,
		  warp = threadIdx.x / CU_WARP;
	u32 before = 0, next = 0;
	for (u32 i = threadIdx.x; i < count; i += THREADS)
		before += chosen[i] < expert;
	before = cu_reduce_add(before);
	if (lane == 0)
		counts[warp] = before;
	cu_sync(); /* all warps' counts are there */
	for (u32 w = 0; w < WARPS; w++)
		next += counts[w];
	if (threadIdx.x == 0) {
		a.expert_start[expert] = next;
		if (expert == 0)
			a.expert_start[a.experts] = count;
	}
	for (u32 first = 0; first < count; first += THREADS) {
		const u32 i = first + threadIdx.x;
		const bool is_mine = i < count && chosen[i] == expert;
		const u32 lanes = cu_ballot(is_mine);
		u32 at = next + cu_popc(lanes & ((1u << lane) - 1));
		cu_sync(); /* the counts before are used up */
		if (lane == 0)
			counts[warp] = cu_popc(lanes);
		cu_sync(); /* the counts are there */
		for (u32 w = 0; w < WARPS; w++) {
			at += w < warp ? counts[w] : 0;
			next += counts[w];
		}
		if (is_mine) {
			a.tokens_of[at] = i / a.top;
			a.assignments[i] = at;
		}
	}
}

CUDA_OP(moe_route)
{
	u32 *chosen = (u32 *)ctx->scratch;
	if (a->top == 0 || a->top > a->experts)
		return ERR_INVALID;
	if (a->bias || a->sigmoid || a->groups > 1 || a->scale > 0 || a->sum_plus > 0 || a->sum_least > 0 || a->mixer > 0)
		return ERR_UNSUPPORTED;
	if (a->experts > EXPERTS_MAX || a->top > CU_WARP ||
	    ctx->scratch_bytes < (size_t)a->tokens * a->top * sizeof(u32))
		return ERR_UNSUPPORTED;
	if (a->tokens > 0) {
		const enum err e = cuda_launched(LAUNCH(moe_choose_kernel, cuda_ceil(a->tokens, WARPS),
							THREADS, 0, cuda_stream(ctx), *a, chosen));
		if (e != ERR_OK)
			return e;
	}
	return cuda_launched(LAUNCH(moe_number_kernel, a->experts, THREADS, 0, cuda_stream(ctx), *a, chosen));
}
