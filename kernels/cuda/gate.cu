/* Norms and gates in front of a block's last product. Without a norm a thread has some values. With one a warp has a group, or, of wide ones, a
 * block, and the group lies in registers between the sum of its squares and what is written; what is not aligned, or wider, is read twice. */
#include "kernels/cuda/recurrent.cuh"

enum {
	THREADS = 256,
	WARPS = THREADS / CU_WARP,
	VECTOR = 4,
};

/* V values of token t, from column c on. */
template <u32 V> CU_INLINE void gate_load(const struct kern_gate_args *a, u32 t, u32 c, float x[V])
{
	if (a->x)
		load_values<V>(a->x + (size_t)t * a->stride + c, x);
	else
		load_values<V>(a->out_bf16 + (size_t)t * a->out_stride + c, x);
}

template <u32 V> CU_INLINE void gate_store(const struct kern_gate_args *a, u32 t, u32 c, const float x[V])
{
	if (a->out_bf16)
		store_values<V>(a->out_bf16 + (size_t)t * a->out_stride + c, x);
	else
		store_values<V>(a->x + (size_t)t * a->stride + c, x);
}

/* f(gate). */
CU_INLINE float gate_factor(const struct kern_gate_args *a, float gate)
{
	return a->sigmoid ? sigmoid(gate) : gate * sigmoid(gate);
}

template <u32 V> static __global__ void __launch_bounds__(THREADS) gate_kernel(const struct kern_gate_args a)
{
	cu_grid_begin();
	const u32 c = (blockIdx.x * THREADS + threadIdx.x) * V;
	if (c >= a.groups * a.width)
		return;
	for (u32 t = blockIdx.y; t < a.tokens; t += gridDim.y) {
		float x[V], gate[V];
		gate_load<V>(&a, t, c, x);
		load_values<V>(a.gate + (size_t)t * a.stride + c, gate);
#pragma unroll
		for (u32 e = 0; e < V; e++)
			x[e] *= gate_factor(&a, gate[e]);
		gate_store<V>(&a, t, c, x);
	}
}

template <u32 V> CU_INLINE float squares(const float x[V], float sum)
{
#pragma unroll
	for (u32 e = 0; e < V; e++)
		sum = fmaf(x[e], x[e], sum);
	return sum;
}

/* Of the group, from each thread's sum. */
template <u32 LANES> CU_INLINE float norm_scale(const struct kern_gate_args *a, float sum, float *shared)
{
	if constexpr (LANES == CU_WARP)
		sum = warp_sum(sum);
	else
		sum = block_sum(sum, shared);
	return cu_rsqrt(sum / (float)a->width + a->eps);
}

/* What a thread has of a group: LANES threads have it, each VECTORS vectors at most. */
template <u32 LANES, u32 VECTORS, typename T>
CU_INLINE void group_load(const T *from, u32 width, u32 lane, float x[VECTORS][VECTOR])
{
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * LANES + lane) * VECTOR;
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			x[j][e] = 0;
		if (i < width)
			load_values<VECTOR>(from + i, x[j]);
	}
}

template <u32 LANES, u32 VECTORS> static __global__ void __launch_bounds__(THREADS) gate_norm_kernel(const struct kern_gate_args a, u32 count)
{
	SHARED(float, shared, WARPS);
	cu_grid_begin();
	const u32 lane = threadIdx.x % LANES, number = (blockIdx.x * THREADS + threadIdx.x) / LANES;
	if (number >= count) /* all LANES */
		return;
	const u32 t = number / a.groups, c = number % a.groups * a.width;
	float x[VECTORS][VECTOR], f[VECTORS][VECTOR], sum = 0;
	if (a.x)
		group_load<LANES, VECTORS>(a.x + (size_t)t * a.stride + c, a.width, lane, x);
	else
		group_load<LANES, VECTORS>(a.out_bf16 + (size_t)t * a.out_stride + c, a.width, lane, x);
	group_load<LANES, VECTORS>(a.gate + (size_t)t * a.stride + c, a.width, lane, f);
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++) {
			f[j][e] = gate_factor(&a, f[j][e]);
			x[j][e] *= a.gate_first ? f[j][e] : 1;
		}
		sum = squares<VECTOR>(x[j], sum);
	}
	const float scale = norm_scale<LANES>(&a, sum, shared);
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * LANES + lane) * VECTOR;
		float weight[VECTOR];
		if (i >= a.width)
			continue;
		load_values<VECTOR>(a.weight + (a.weights_apart ? c : 0) + i, weight);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			x[j][e] *= scale * weight[e] * (a.gate_first ? 1 : f[j][e]);
		gate_store<VECTOR>(&a, t, c + i, x[j]);
	}
}

/* Groups of any width, value by value. */
static __global__ void __launch_bounds__(THREADS) gate_norm_any_kernel(const struct kern_gate_args a)
{
	SHARED(float, shared, WARPS);
	cu_grid_begin();
	const u32 t = blockIdx.x / a.groups, c = blockIdx.x % a.groups * a.width;
	const float *gate = a.gate + (size_t)t * a.stride + c, *weight = a.weight + (a.weights_apart ? c : 0);
	float x[1], sum = 0;
	for (u32 i = threadIdx.x; i < a.width; i += THREADS) {
		gate_load<1>(&a, t, c + i, x);
		x[0] *= a.gate_first ? gate_factor(&a, gate[i]) : 1;
		sum = squares<1>(x, sum);
	}
	const float scale = norm_scale<THREADS>(&a, sum, shared);
	for (u32 i = threadIdx.x; i < a.width; i += THREADS) {
		gate_load<1>(&a, t, c + i, x);
		x[0] *= gate_factor(&a, gate[i]) * scale * weight[i];
		gate_store<1>(&a, t, c + i, x);
	}
}

template <u32 LANES, u32 VECTORS> static cudaError_t launch_norm(const struct kern_gate_args *a, cudaStream_t stream)
{
	const u32 count = a->tokens * a->groups;
	return LAUNCH_DEPENDENT((gate_norm_kernel<LANES, VECTORS>), cuda_ceil(count, THREADS / LANES), THREADS, 0, stream, *a, count);
}

static cudaError_t run_norm(const struct kern_gate_args *a, bool vectors, cudaStream_t stream)
{
	if (!vectors || a->width > 8 * THREADS * VECTOR)
		return LAUNCH_DEPENDENT(gate_norm_any_kernel, a->tokens * a->groups, THREADS, 0, stream, *a);
	if (a->width <= CU_WARP * VECTOR)
		return launch_norm<CU_WARP, 1>(a, stream);
	if (a->width <= 4 * CU_WARP * VECTOR)
		return launch_norm<CU_WARP, 4>(a, stream);
	if (a->width <= 4 * THREADS * VECTOR)
		return launch_norm<THREADS, 4>(a, stream);
	return launch_norm<THREADS, 8>(a, stream);
}

CUDA_OP(gate)
{
	const u32 columns = a->groups * a->width, widths = a->width | a->stride | (a->out_bf16 ? a->out_stride : 0);
	const bool vectors = widths % VECTOR == 0 && cuda_aligned(a->x) && cuda_aligned(a->gate) && cuda_aligned(a->weight) &&
			     (uintptr_t)a->out_bf16 % sizeof(uint2) == 0;
	if (!a->x && !a->out_bf16)
		return ERR_INVALID;
	if ((u64)a->tokens * columns > UINT32_MAX)
		return ERR_UNSUPPORTED;
	if (a->tokens == 0 || columns == 0)
		return ERR_OK;
	if (a->weight)
		return cuda_launched(run_norm(a, vectors, cuda_stream(ctx)));
	const dim3 grid(cuda_ceil(columns, THREADS * (vectors ? VECTOR : 1)), least(a->tokens, CUDA_GRID_Y_MAX));
	return cuda_launched(LAUNCH_DEPENDENT(vectors ? gate_kernel<VECTOR> : gate_kernel<1>, grid, THREADS, 0, cuda_stream(ctx), *a));
}
