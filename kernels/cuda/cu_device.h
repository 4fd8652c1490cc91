/* The words of kernels/cuda/cu.h for nvcc: thin shells around intrinsics and PTX. Include cu.h, not this. */
#ifndef TERCET_KERNELS_CUDA_CU_DEVICE_H
#define TERCET_KERNELS_CUDA_CU_DEVICE_H

#include <dlfcn.h>
#include <stdio.h>

#define CU_DEVICE static __device__ __forceinline__

/* ---------------------------------------------------------------- host */

static inline void *cu_library_open(const char *name, char *problem, size_t bytes)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		snprintf(problem, bytes, "%s", dlerror());
	return library;
}

static inline void *cu_library_symbol(void *library, const char *name)
{
	return dlsym(library, name);
}

/* Whether the device of this process knows programmatic stream serialisation. */
static inline bool cu_is_programmatic()
{
	static const bool is = [] {
		int device = 0, major = 0;
		return cudaGetDevice(&device) == cudaSuccess &&
		       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
	}();

	return is;
}

template <typename... P, typename... A>
static inline cudaError_t cu_launch(bool dependent, void (*kernel)(P...), dim3 grid, dim3 block,
				    size_t shared_bytes, cudaStream_t stream, A &&...args)
{
	cudaLaunchAttribute attr;
	cudaLaunchConfig_t config = {};
	attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid;
	config.blockDim = block;
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	config.attrs = &attr;
	config.numAttrs = dependent && cu_is_programmatic() ? 1 : 0;
	return cudaLaunchKernelEx(&config, kernel, static_cast<A &&>(args)...);
}

/* A kernel's name loses its parentheses by being an expression. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
	cu_launch(false, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define LAUNCH_DEPENDENT(kernel, grid, block, shared_bytes, stream, ...) \
	cu_launch(true, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define CU_SHARED_LIMIT(kernel, bytes) \
	cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))

/* A kernel that is none on the architecture it was compiled for is bound to blocks of a warp. */
template <typename... P> static inline bool cu_takes_threads(void (*kernel)(P...), u32 threads)
{
	cudaFuncAttributes a;
	return cudaFuncGetAttributes(&a, (const void *)kernel) == cudaSuccess && a.maxThreadsPerBlock >= (int)threads;
}

/* Code of the host never runs what is between, so it may have it. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define CU_HAS_WGMMA 1
#else
#define CU_HAS_WGMMA 0
#endif
#define CU_WGMMA_BOUNDS(threads) __launch_bounds__(CU_HAS_WGMMA ? (threads) : 32, 1)

/* ---------------------------------------------------------------- block */

#define SHARED_DYNAMIC(type, name) \
	extern __shared__ __align__(128) unsigned char cu_shared_dynamic[]; \
	type *const name = reinterpret_cast<type *>(cu_shared_dynamic)
#define SHARED_DYNAMIC_1024(type, name) \
	extern __shared__ __align__(1024) unsigned char cu_shared_dynamic_1024[]; \
	type *const name = reinterpret_cast<type *>(cu_shared_dynamic_1024)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]

CU_DEVICE void cu_sync()
{
	__syncthreads();
}

CU_DEVICE bool cu_sync_or(bool v)
{
	return __syncthreads_or(v) != 0;
}

CU_DEVICE bool cu_sync_and(bool v)
{
	return __syncthreads_and(v) != 0;
}

CU_DEVICE u32 cu_sync_count(bool v)
{
	return (u32)__syncthreads_count(v);
}

template <u32 id> CU_DEVICE void cu_barrier_sync(u32 threads)
{
	static_assert(id >= 1 && id <= 15, "0 is cu_sync's");
	asm volatile("barrier.sync %0, %1;" ::"n"(id), "r"(threads) : "memory");
}

template <u32 id> CU_DEVICE void cu_barrier_arrive(u32 threads)
{
	static_assert(id >= 1 && id <= 15, "0 is cu_sync's");
	asm volatile("barrier.arrive %0, %1;" ::"n"(id), "r"(threads) : "memory");
}

CU_DEVICE void cu_pause()
{
#if __CUDA_ARCH__ >= 700
	__nanosleep(20);
#endif
}

CU_DEVICE void cu_trap()
{
	__trap();
}

/* ---------------------------------------------------------------- warp */

CU_DEVICE void cu_syncwarp(u32 mask = CU_ALL)
{
	__syncwarp(mask);
}

template <typename T> CU_DEVICE T cu_shfl(T v, u32 lane, u32 mask = CU_ALL)
{
	return __shfl_sync(mask, v, (int)lane);
}

template <typename T> CU_DEVICE T cu_shfl_xor(T v, u32 bits, u32 mask = CU_ALL)
{
	return __shfl_xor_sync(mask, v, (int)bits);
}

template <typename T> CU_DEVICE T cu_shfl_up(T v, u32 by, u32 mask = CU_ALL)
{
	return __shfl_up_sync(mask, v, by);
}

template <typename T> CU_DEVICE T cu_shfl_down(T v, u32 by, u32 mask = CU_ALL)
{
	return __shfl_down_sync(mask, v, by);
}

CU_DEVICE u32 cu_ballot(bool v, u32 mask = CU_ALL)
{
	return __ballot_sync(mask, v);
}

CU_DEVICE bool cu_any(bool v, u32 mask = CU_ALL)
{
	return __any_sync(mask, v) != 0;
}

CU_DEVICE bool cu_all(bool v, u32 mask = CU_ALL)
{
	return __all_sync(mask, v) != 0;
}

CU_DEVICE u32 cu_reduce_add(u32 v, u32 mask = CU_ALL)
{
	return __reduce_add_sync(mask, v);
}

CU_DEVICE u32 cu_reduce_min(u32 v, u32 mask = CU_ALL)
{
	return __reduce_min_sync(mask, v);
}

CU_DEVICE u32 cu_reduce_max(u32 v, u32 mask = CU_ALL)
{
	return __reduce_max_sync(mask, v);
}

/* ---------------------------------------------------------------- matrix unit */

#define CU_MMA_OPERANDS(kind) \
	: "+" kind(d[0]), "+" kind(d[1]), "+" kind(d[2]), "+" kind(d[3]) \
	: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])

CU_DEVICE void cu_mma_bf16(float d[4], const u32 a[4], const u32 b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" CU_MMA_OPERANDS("f"));
}

CU_DEVICE void cu_mma_bf16_k32(float d[4], const u32 a[8], const u32 b[4])
{
	cu_mma_bf16(d, a, b);
	cu_mma_bf16(d, a + 4, b + 2);
}

CU_DEVICE void cu_mma_bf16_n16(float d[2][4], const u32 a[4], const u32 b[4])
{
	cu_mma_bf16(d[0], a, b);
	cu_mma_bf16(d[1], a, b + 2);
}

CU_DEVICE void cu_mma_f16(float d[4], const u32 a[4], const u32 b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" CU_MMA_OPERANDS("f"));
}

CU_DEVICE void cu_mma_f16_n16(float d[2][4], const u32 a[4], const u32 b[4])
{
	cu_mma_f16(d[0], a, b);
	cu_mma_f16(d[1], a, b + 2);
}

CU_DEVICE void cu_mma_s8(int d[4], const u32 a[4], const u32 b[2])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" CU_MMA_OPERANDS("r"));
}

CU_DEVICE u32 cu_shared_address(const void *p)
{
	return (u32)__cvta_generic_to_shared(p);
}

CU_DEVICE void cu_ldmatrix_x4(u32 r[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(cu_shared_address(row))
		     : "memory");
}

CU_DEVICE void cu_ldmatrix_x2(u32 r[2], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1])
		     : "r"(cu_shared_address(row))
		     : "memory");
}

CU_DEVICE void cu_ldmatrix_x4_trans(u32 r[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(cu_shared_address(row))
		     : "memory");
}

CU_DEVICE void cu_ldmatrix_x2_trans(u32 r[2], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1])
		     : "r"(cu_shared_address(row))
		     : "memory");
}

#include "kernels/cuda/cu_wgmma.h"

/* ---------------------------------------------------------------- memory */

template <typename T> CU_DEVICE T cu_load(const void *p)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	return *static_cast<const T *>(p);
}

template <typename T> CU_DEVICE void cu_store(void *p, T v)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	*static_cast<T *>(p) = v;
}

template <typename T> CU_DEVICE T cu_load_const(const void *p)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	return __ldg(static_cast<const T *>(p));
}

/* Weights and KV are read once: they would only drive other data out of L1. */
template <typename T> CU_DEVICE T cu_load_stream(const void *p)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	union {
		T value;
		u32 word[sizeof(T) / 4];
	} u;
	if constexpr (sizeof(T) == 16)
		asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
			     : "=r"(u.word[0]), "=r"(u.word[1]), "=r"(u.word[2]), "=r"(u.word[3])
			     : "l"(p));
	else if constexpr (sizeof(T) == 8)
		asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
			     : "=r"(u.word[0]), "=r"(u.word[1])
			     : "l"(p));
	else
		asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(u.word[0]) : "l"(p));
	return u.value;
}

CU_DEVICE void cu_cp_async16(void *shared, const void *global, bool valid = true)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cu_shared_address(shared)),
		     "l"(global), "r"(valid ? 16 : 0)
		     : "memory");
}

CU_DEVICE void cu_cp_async4(void *shared, const void *global, bool valid = true)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cu_shared_address(shared)),
		     "l"(global), "r"(valid ? 4 : 0)
		     : "memory");
}

CU_DEVICE void cu_cp_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <u32 n> CU_DEVICE void cu_cp_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

CU_DEVICE u32 cu_atomic_add(u32 *p, u32 v)
{
	return atomicAdd(p, v);
}

CU_DEVICE i32 cu_atomic_add(i32 *p, i32 v)
{
	return atomicAdd(p, v);
}

CU_DEVICE u64 cu_atomic_add(u64 *p, u64 v)
{
	return atomicAdd(reinterpret_cast<unsigned long long *>(p), (unsigned long long)v);
}

CU_DEVICE float cu_atomic_add(float *p, float v)
{
	return atomicAdd(p, v);
}

CU_DEVICE u32 cu_atomic_max(u32 *p, u32 v)
{
	return atomicMax(p, v);
}

CU_DEVICE i32 cu_atomic_max(i32 *p, i32 v)
{
	return atomicMax(p, v);
}

CU_DEVICE u64 cu_atomic_max(u64 *p, u64 v)
{
	return atomicMax(reinterpret_cast<unsigned long long *>(p), (unsigned long long)v);
}

CU_DEVICE u32 cu_atomic_min(u32 *p, u32 v)
{
	return atomicMin(p, v);
}

CU_DEVICE i32 cu_atomic_min(i32 *p, i32 v)
{
	return atomicMin(p, v);
}

CU_DEVICE u64 cu_atomic_min(u64 *p, u64 v)
{
	return atomicMin(reinterpret_cast<unsigned long long *>(p), (unsigned long long)v);
}

CU_DEVICE u32 cu_atomic_or(u32 *p, u32 v)
{
	return atomicOr(p, v);
}

CU_DEVICE u32 cu_atomic_exch(u32 *p, u32 v)
{
	return atomicExch(p, v);
}

CU_DEVICE u32 cu_atomic_cas(u32 *p, u32 expected, u32 v)
{
	return atomicCAS(p, expected, v);
}

CU_DEVICE u64 cu_atomic_cas(u64 *p, u64 expected, u64 v)
{
	return atomicCAS(reinterpret_cast<unsigned long long *>(p), (unsigned long long)expected,
			 (unsigned long long)v);
}

CU_DEVICE void cu_fence_block()
{
	__threadfence_block();
}

CU_DEVICE void cu_fence()
{
	__threadfence();
}

CU_DEVICE void cu_fence_system()
{
	__threadfence_system();
}

CU_DEVICE u32 cu_load_acquire(const u32 *p)
{
	u32 v;
	asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

CU_DEVICE void cu_store_release(u32 *p, u32 v)
{
	asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

CU_DEVICE u32 cu_load_acquire_system(const u32 *p)
{
	u32 v;
	asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

CU_DEVICE void cu_store_release_system(u32 *p, u32 v)
{
	asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

CU_DEVICE void cu_grid_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

CU_DEVICE void cu_grid_launch()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#include "kernels/cuda/cu_numbers.h"

#endif
