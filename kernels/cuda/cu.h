/* What device code may use. One header that nvcc and g++ compile: under nvcc every word below is the real thing,
 * under g++ it calls the emulation of tests/cuda_emu, which runs the same source on a CPU and reports what a
 * device would get wrong or leave undefined. docs/CUDA_EMULATION.md tells what it finds.
 *
 * The contract of a source that includes this:
 *
 * - Kernels are `static __global__ void name(...)`, block sizes are multiples of 32. They are started by LAUNCH
 *   or LAUNCH_DEPENDENT only, which give a cudaError_t. A template's name with commas goes into parentheses:
 *	cudaError_t e = LAUNCH((attention<128, 4>), grid, block, shared_bytes, stream, args);
 *   A kernel that takes more than 48 KiB of dynamic shared memory is allowed to by CU_SHARED_LIMIT first.
 * - Shared memory is SHARED_DYNAMIC(type, name) (the launch's bytes, at most one per kernel) and
 *   SHARED(type, name, count), a one-dimensional array. Both hold poison until written.
 * - Everything that concerns other threads, the memory system or the matrix unit is a cu_ function: barriers,
 *   shuffles, votes, mma, ldmatrix, cp.async, atomics, fences, wide loads. No inline assembly, no intrinsic with
 *   two leading underscores, no cooperative groups, no CUB, no textures, no printf.
 * - threadIdx, blockIdx, blockDim, gridDim, dim3, uint2, uint4, float2, float4, and <math.h>'s functions of floats
 *   (fmaxf, sqrtf, expf, tanhf, ...) are as usual.
 * - Nothing relies on lanes of a warp running together: what one lane writes to shared memory and another reads
 *   has a cu_syncwarp or cu_sync in between. A loop that waits for another thread of its block calls cu_pause;
 *   no block waits for another block of its launch (blocks run one after another here): the last one to finish
 *   is found by cu_block_is_last.
 * - A kernel started by LAUNCH_DEPENDENT calls cu_grid_wait before it touches what an earlier kernel wrote, or
 *   writes what an earlier kernel may still read. */
#ifndef TERCET_KERNELS_CUDA_CU_H
#define TERCET_KERNELS_CUDA_CU_H

#include <math.h>
#include <string.h>

#include <cuda_runtime.h>

#include "common/types.h"

enum { CU_WARP = 32 };
constexpr u32 CU_ALL = 0xffffffffu; /* every lane of a warp */

#ifdef __CUDACC__
#include "kernels/cuda/cu_device.h"
#else
#include "tests/cuda_emu/device.h"
#endif

/* ---------------------------------------------------------------- host
 * cudaError_t LAUNCH(kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t, args...)
 *	Never blocks. The launch's error only; errors of the running kernel show at the next synchronisation.
 * cudaError_t LAUNCH_DEPENDENT(...)
 *	The same with programmatic stream serialisation: the kernel may begin before the one before it in the
 *	stream has ended (its cu_grid_wait waits). Below compute capability 9.0 the same as LAUNCH.
 * cudaError_t CU_SHARED_LIMIT(kernel, size_t bytes)
 *	Once per kernel, before launches with more than 48 KiB of dynamic shared memory.
 * void *cu_library_open(const char *name, char *problem, size_t bytes), *cu_library_symbol(void *library, const char *name)
 *	As dlopen and dlsym; NULL: it is not there, `problem` says why. The emulation gives what it has of NCCL.
 *
 * bool cu_takes_threads(kernel, u32 threads)
 *	Whether the kernel may be started with so many: false for one of CU_WGMMA_BOUNDS on a device without wgmma.
 *
 * ---------------------------------------------------------------- block
 * SHARED_DYNAMIC(type, name);		type *name, 128-byte aligned
 * SHARED_DYNAMIC_1024(type, name);	the same, 1024-byte aligned: what swizzled operands of cu_wgmma need
 * SHARED(type, name, count);		type name[count], 16-byte aligned
 * void cu_sync();			all threads of the block that have not returned; one place in the source
 * bool cu_sync_or(bool), cu_sync_and(bool); u32 cu_sync_count(bool)
 * void cu_barrier_sync<id>(threads)	named barrier 1..15: waits until `threads` (a multiple of 32) have arrived
 * void cu_barrier_arrive<id>(threads)	counts as one of them without waiting
 * void cu_phase_init(u64 *barrier, u32 count)	a barrier in shared memory that any number of can be had (mbarrier, compute
 *	capability 9.0): its phases 0, 1, 2, .. end when `count` threads have arrived; cu_sync before others use it
 * void cu_phase_arrive(u64 *barrier)	does not wait; what the thread did before is seen by who waits
 * void cu_phase_arrive_copied(u64 *barrier)	arrives by itself when this thread's cp.async so far have come; what else the
 *	thread did before is not ordered
 * void cu_phase_wait(u64 *barrier, u32 parity)	until the youngest phase of that parity has ended; of one that
 *	has just been made, 1 has
 * void cu_registers_more<n>(), cu_registers_fewer<n>()	registers a thread from here on (setmaxnreg), all four warps of a
 *	warpgroup; nothing where there is no wgmma
 * void cu_pause();			in a loop that waits for another thread of the block
 * void cu_trap();			ends the kernel with an error
 *
 * ---------------------------------------------------------------- warp (mask: lanes that take part, all by default)
 * void cu_syncwarp(mask)
 * T cu_shfl(T v, u32 lane, mask), cu_shfl_xor(T v, u32 bits, mask), cu_shfl_up(T v, u32 by, mask),
 *   cu_shfl_down(T v, u32 by, mask)	T of 4 or 8 bytes; up and down give the own value beyond the warp
 * u32 cu_ballot(bool, mask); bool cu_any(bool, mask), cu_all(bool, mask)
 * u32 cu_reduce_add(u32, mask), cu_reduce_min(u32, mask), cu_reduce_max(u32, mask)
 *
 * ---------------------------------------------------------------- matrix unit (PTX ISA, fragments of mma.sync and ldmatrix)
 * void cu_mma_bf16(float d[4], const u32 a[4], const u32 b[2])	m16n8k16, d += a b
 * void cu_mma_bf16_k32(float d[4], const u32 a[8], const u32 b[4])	two of them, one after the other: m16n8k32
 * void cu_mma_bf16_n16(float d[2][4], const u32 a[4], const u32 b[4])	two of them with the same a: m16n16k16
 * void cu_mma_f16(float d[4], const u32 a[4], const u32 b[2])	m16n8k16
 * void cu_mma_f16_n16(float d[2][4], const u32 a[4], const u32 b[4])	two of them with the same a: m16n16k16
 * void cu_mma_s8(int d[4], const u32 a[4], const u32 b[2])	m16n8k32
 * void cu_ldmatrix_x4(u32 r[4], const void *row), cu_ldmatrix_x2(u32 r[2], const void *row)
 * void cu_ldmatrix_x4_trans(u32 r[4], const void *row), cu_ldmatrix_x2_trans(u32 r[2], const void *row)
 *	`row`: this lane's row of 16 bytes in shared memory, 16-byte aligned; lanes 8i..8i+7 give matrix i
 *
 * ---------------------------------------------------------------- matrix unit of four warps (wgmma)
 * For compute capability 9.0 (sm_90a) alone: a kernel with these has CU_WGMMA_BOUNDS(threads) as its launch bounds and
 * its code between #if CU_HAS_WGMMA and #endif. Four warps from a multiple of four on do each together, each with 16 of
 * the product's 64 rows. Results and inputs of a product are nobody's between its call and the wait for its group.
 * Operands in shared memory are panels of 64 columns of bf16, rows of 128 bytes, 1024-byte aligned, in which the 16
 * bytes at column 8c of row r lie at place c ^ r % 8.
 * u64 cu_wgmma_operand(const void *panel, u32 panel_bytes)	a row or column of panels, so many bytes from each other
 * void cu_wgmma_fence()	before the first product after registers it touches were, and after each wait
 * void cu_wgmma_rows<N, STEPS>(float (&d)[N / 2], u64 a, u64 b, bool add)	d = a b^T (+ d), the first 16 STEPS (at most
 *	64) columns of a panel of 64 rows and of one of N (64, 128 or 256) rows; d[4j..4j+3]: columns 8j.. as of cu_mma_bf16
 * void cu_wgmma_columns<N, STEPS>(float (&d)[N / 2], const u32 (&a)[4 * STEPS], u64 b)	d += a b, with a in registers, step
 *	by step as of cu_mma_bf16, and 16 STEPS rows of N / 64 panels b
 * void cu_wgmma_commit()
 * void cu_wgmma_wait<left>(float (&d)[n])	at most `left` of the newest groups are left in flight; d: what came. Without
 *	d: nothing that came is used yet, only operands in shared memory are free
 * void cu_fence_wgmma()	between writes to shared memory (and cp.async) and products that read them: by the thread that wrote,
 *	before the barrier at which it meets those of the products, or by these behind it
 *
 * ---------------------------------------------------------------- memory
 * T cu_load<T>(const void *), void cu_store<T>(void *, T)	4, 8 or 16 bytes, aligned to their size
 * T cu_load_stream<T>(const void *)	read once, by nobody written during the kernel: past L1
 * T cu_load_const<T>(const void *)	by nobody written during the kernel: read-only path
 * void cu_cp_async16(void *shared, const void *global, bool valid = true)	not valid: 16 zero bytes, nothing read
 * void cu_cp_async4(void *shared, const void *global, bool valid = true)
 * void cu_cp_commit(); void cu_cp_wait<n>()	at most the n newest groups are left in flight; a barrier then
 *						shows what came to other threads
 * T cu_atomic_add(T *, T) for u32, i32, u64, float; cu_atomic_max, cu_atomic_min for u32, i32, u64;
 *   u32 cu_atomic_or(u32 *, u32), cu_atomic_exch(u32 *, u32), cu_atomic_cas(u32 *, u32 expected, u32 value);
 *   u64 cu_atomic_cas(u64 *, ...)	relaxed; give the old value
 * void cu_fence_block(), cu_fence(), cu_fence_system()
 * u32 cu_load_acquire(const u32 *), void cu_store_release(u32 *, u32)		at device scope
 * u32 cu_load_acquire_system(const u32 *), void cu_store_release_system(u32 *, u32)	flags in host memory
 * bool cu_block_is_last(u32 *count, u32 blocks)	every thread of every block once, with a count that began
 *	at 0: true in the block that came last, which then sees what all wrote before; sets the count back to 0
 * void cu_grid_wait()		waits for the kernel before (LAUNCH_DEPENDENT)
 * void cu_grid_launch()		the kernel after may begin; says nothing about memory
 * void cu_grid_begin()		both: how a kernel begins that has nothing to do before
 *
 * ---------------------------------------------------------------- numbers
 * float cu_exp2(float), cu_log2(float), cu_rcp(float), cu_rsqrt(float), cu_tanh(float)	approximations of the device
 * u32 cu_bits(float), float cu_float(u32 bits)
 * u32 cu_popc(u32), cu_clz(u32), cu_ffs(u32), cu_mulhi(u32, u32), cu_byte_perm(u32 a, u32 b, u32 selector),
 *   cu_funnel_right(u32 lo, u32 hi, u32 shift); int cu_dp4a(u32 a, u32 b, int c); int cu_round(float) (to even)
 * float cu_bf16_to_f32(u16), cu_f16_to_f32(u16), cu_e4m3_to_f32(u8); u16 cu_f32_to_bf16(float), cu_f32_to_f16(float)
 * u32 cu_pack_bf16(float lo, float hi), cu_pack_f16(float lo, float hi); u8 cu_f32_to_e4m3(float) (saturating)
 * float cu_bf16_lo(u32), cu_bf16_hi(u32)	halves of a pair
 * u32 cu_fma_bf16x2(u32 a, u32 b, u32 c)	a b + c of both halves, rounded once
 * u32 cu_e4m3x2_to_f16x2(u16), cu_add_f16x2(u32, u32) (to even)
 * ---------------------------------------------------------------- both compilers from here on */

#define CU_INLINE __device__ __forceinline__
#define CU_BOTH	  __host__ __device__ __forceinline__

CU_INLINE float cu_bf16_to_f32(u16 v)
{
	return cu_float((u32)v << 16);
}

CU_INLINE float cu_bf16_lo(u32 pair)
{
	return cu_float(pair << 16);
}

CU_INLINE float cu_bf16_hi(u32 pair)
{
	return cu_float(pair & 0xffff0000u);
}

CU_INLINE u16 cu_f32_to_bf16(float v)
{
	return (u16)cu_pack_bf16(v, v);
}

CU_INLINE void cu_grid_begin()
{
	cu_grid_wait();
	cu_grid_launch();
}

/* The fence orders what this block wrote before its arrival, the second one what the last block reads after it;
 * cu_sync makes it the block's arrival and not only thread 0's. */
CU_INLINE bool cu_block_is_last(u32 *count, u32 blocks)
{
	bool first = (threadIdx.x | threadIdx.y | threadIdx.z) == 0, last = false;
	cu_fence();
	cu_sync();
	if (first) {
		last = cu_atomic_add(count, 1u) == blocks - 1;
		if (last)
			(void)cu_atomic_exch(count, 0u);
	}
	last = cu_sync_or(last);
	cu_fence();
	return last;
}

#endif
