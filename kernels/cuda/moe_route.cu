/* Routing of a mixture of experts: a warp a token chooses its experts, then a block an expert numbers what it
 * has to do, in the order of tokens. Scratch: the chosen experts, until they are numbered.
 *
 * A model's own scores, biases and groups are another kernel: it computes in double, as the reference does, for what experts
 * are chosen by is rounded to float behind that, and another rounding before would choose others. */
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

/* Lanes would not agree on the order of a NaN. */
CU_INLINE float number(float x)
{
	return x == x ? x : -INFINITY;
}

CU_INLINE float exponential(float x)
{
	return cu_exp2(x * 1.4426950408889634f);
}

static __global__ void __launch_bounds__(THREADS)
	moe_choose_kernel(const struct kern_moe_route_args a, u32 *chosen)
{
	cu_grid_begin();
	const u32 t = blockIdx.x * WARPS + threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
	float logits[EXPERTS_LANE], best = 0, sum = 0, mine = 0;
	u32 taken = 0;	   /* a bit per logit of this lane */
	if (t >= a.tokens) /* the whole warp */
		return;
#pragma unroll
	for (u32 i = 0; i < EXPERTS_LANE; i++) {
		const u32 e = i * CU_WARP + lane;
		const float x = e < a.experts ? a.logits[(size_t)t * a.experts + e] : -INFINITY;
		logits[i] = number(x);
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

/* ---------------------------------------------------------------- scores, biases and groups of a model's own */

/* A token, as its warp's lanes see it: lane l has the experts l, l + 32, .. */
struct rich {
	const float *logits; /* [experts] */
	float best;
	double unit; /* what all scores are divided by */
	float *keys; /* [experts], shared: what experts are chosen by; each is its lane's */
};

CU_INLINE double warp_sum_double(double x)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		x += cu_shfl_xor(x, i);
	return x;
}

CU_INLINE double rich_score(const struct kern_moe_route_args *a, const struct rich *r, u32 e)
{
	const double x = (double)number(r->logits[e]);
	return a->sigmoid ? 1 / (1 + exp(-x)) : exp(x - (double)r->best);
}

CU_INLINE void rich_init(const struct kern_moe_route_args *a, struct rich *r, u32 t, u32 lane)
{
	r->logits = a->logits + (size_t)t * a->experts;
	r->unit = 1;
	float best = -INFINITY;
	for (u32 e = lane; e < a->experts; e += CU_WARP)
		best = fmaxf(best, number(r->logits[e]));
	r->best = warp_max(best);
	if (!a->sigmoid) {
		double sum = 0;
		for (u32 e = lane; e < a->experts; e += CU_WARP)
			sum += rich_score(a, r, e);
		r->unit = warp_sum_double(sum);
	}
	for (u32 e = lane; e < a->experts; e += CU_WARP) {
		float key = r->logits[e];
		if (a->bias || a->groups > 1)
			key = (float)((a->by_logits ? (double)number(key) : rich_score(a, r, e) / r->unit) + (a->bias ? (double)a->bias[e] : 0));
		r->keys[e] = number(key);
	}
}

/* The sum of the two largest keys of a group, or with `best` the largest, in each lane. */
CU_INLINE float rich_group(const struct rich *r, bool best, u32 from, u32 to, u32 lane)
{
	float first = -INFINITY, second = -INFINITY;
	for (u32 e = from / CU_WARP * CU_WARP + lane; e < to; e += CU_WARP) {
		const float k = e >= from ? r->keys[e] : -INFINITY;
		second = fmaxf(second, fminf(first, k));
		first = fmaxf(first, k);
	}
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const float k = cu_shfl_xor(first, i), l = cu_shfl_xor(second, i);
		second = fmaxf(fmaxf(second, l), fminf(first, k));
		first = fmaxf(first, k);
	}
	return best ? first : first + second;
}

/* The groups whose experts may be chosen, a bit each; lane l has the keys of groups l and l + 32. */
CU_INLINE u64 rich_groups(const struct kern_moe_route_args *a, const struct rich *r, u32 lane)
{
	float keys[2] = {-INFINITY, -INFINITY};
	u64 groups = 0;
	if (a->groups <= 1)
		return ~0ull;
	const u32 size = a->experts / a->groups;
	for (u32 g = 0; g < a->groups; g++) {
		const float key = rich_group(r, a->groups_best, g * size, (g + 1) * size, lane);
		keys[0] = g == lane ? key : keys[0];
		keys[1] = g == lane + CU_WARP ? key : keys[1];
	}
	for (u32 j = 0; j < a->groups_top; j++) {
		struct choice c = {-INFINITY, 0xffffffffu};
#pragma unroll
		for (u32 i = 0; i < 2; i++) {
			const u32 g = i * CU_WARP + lane;
			if (g < a->groups && !(groups >> g & 1) && (keys[i] > c.logit || c.expert == 0xffffffffu))
				c = {keys[i], g};
		}
		groups |= 1ull << warp_choice(c).expert;
	}
	return groups;
}

/* The best of a lane's experts that are not taken yet and whose group may be chosen. */
CU_INLINE struct choice rich_best(const struct kern_moe_route_args *a, const struct rich *r, u64 groups, u32 taken, u32 lane)
{
	const u32 size = a->groups > 1 ? a->experts / a->groups : a->experts;
	struct choice c = {-INFINITY, 0xffffffffu};
	for (u32 e = lane; e < a->experts; e += CU_WARP) {
		const float k = r->keys[e];
		if (!(taken >> e / CU_WARP & 1) && (groups >> e / size & 1) && (k > c.logit || c.expert == 0xffffffffu))
			c = {k, e};
	}
	return c;
}

/* kern_moe_route_args.mixer: the share of expert `chosen` among those near it that are not `taken`. */
CU_INLINE double rich_mixed(const struct kern_moe_route_args *a, const struct rich *r, u32 chosen, u32 taken, u32 lane)
{
	const double m = (double)number(r->logits[chosen]);
	double sum = 0;
	for (u32 e = lane; e < a->experts; e += CU_WARP) {
		const double x = (double)number(r->logits[e]), size = fabs(x) > m ? fabs(x) : m;
		if (!(taken >> e / CU_WARP & 1) && m - x <= (double)a->mixer * size)
			sum += exp(x - m);
	}
	return 1 / warp_sum_double(sum);
}

static __global__ void __launch_bounds__(THREADS)
	moe_choose_rich_kernel(const struct kern_moe_route_args a, u32 *chosen)
{
	SHARED(float, keys, WARPS * EXPERTS_MAX);
	cu_grid_begin();
	const u32 warp = threadIdx.x / CU_WARP, t = blockIdx.x * WARPS + warp, lane = threadIdx.x % CU_WARP;
	struct rich r = {.keys = keys + warp * EXPERTS_MAX};
	double sum = 0, mine = 0;
	u32 taken = 0;	   /* a bit per expert of this lane */
	if (t >= a.tokens) /* the whole warp */
		return;
	rich_init(&a, &r, t, lane);
	const u64 groups = rich_groups(&a, &r, lane);
	for (u32 j = 0; j < a.top; j++) {
		const u32 e = warp_choice(rich_best(&a, &r, groups, taken, lane)).expert;
		const double score = a.mixer > 0 ? rich_mixed(&a, &r, e, taken, lane) : rich_score(&a, &r, e);
		if (e % CU_WARP == lane)
			taken |= 1u << (e / CU_WARP);
		sum += score;
		mine = j == lane ? score : mine; /* top is at most a warp's lanes */
		if (lane == 0)
			chosen[(size_t)t * a.top + j] = e;
	}
	sum = fmax(sum + (double)a.sum_plus * r.unit, (double)a.sum_least * r.unit);
	if (a.mixer > 0)
		sum = 1;
	else if (!a.normalize)
		sum = r.unit;
	if (lane < a.top)
		a.weights[(size_t)t * a.top + lane] = (float)(mine / sum * (a.scale > 0 ? (double)a.scale : 1));
}

/* ---------------------------------------------------------------- numbers */

static __global__ void __launch_bounds__(THREADS)
	moe_number_kernel(const struct kern_moe_route_args a, const u32 *chosen)
{
	SHARED(u32, counts, WARPS);
	cu_grid_begin();
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
	if (a->groups > 1 && (a->groups > KERN_EXPERT_GROUPS_MAX || a->experts % a->groups || a->experts < 2 * a->groups ||
			      a->groups_top == 0 || a->groups_top > a->groups || a->top > a->experts / a->groups * a->groups_top))
		return ERR_INVALID;
	const bool rich =
		a->bias || a->sigmoid || a->groups > 1 || a->scale > 0 || a->sum_plus > 0 || a->sum_least > 0 || a->mixer > 0;
	if (a->experts > EXPERTS_MAX || a->top > CU_WARP || a->expert_scales ||
	    ctx->scratch_bytes < (size_t)a->tokens * a->top * sizeof(u32))
		return ERR_UNSUPPORTED;
	if (a->tokens > 0) {
		const u32 blocks = cuda_ceil(a->tokens, WARPS);
		const enum err e = cuda_launched(
			rich ? LAUNCH_DEPENDENT(moe_choose_rich_kernel, blocks, THREADS, 0, cuda_stream(ctx), *a, chosen)
			     : LAUNCH_DEPENDENT(moe_choose_kernel, blocks, THREADS, 0, cuda_stream(ctx), *a, chosen));
		if (e != ERR_OK)
			return e;
	}
	return cuda_launched(LAUNCH_DEPENDENT(moe_number_kernel, a->experts, THREADS, 0, cuda_stream(ctx), *a, chosen));
}
