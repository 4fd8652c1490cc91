/* The words of kernels/cuda/cu.h for g++: device code as ordinary code whose threads are fibers. Include cu.h, not
 * this. Every function that can wait or go wrong takes the place it is called from, for reports. */
#ifndef CUDA_EMU_DEVICE_H
#define CUDA_EMU_DEVICE_H

#ifndef CUDA_EMU_RUNTIME_H
#error "tests/cuda_emu/include has to come before the CUDA toolkit's headers"
#endif

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/types.h"
#include "tests/cuda_emu/emu_numbers.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMU_SITE \
	{ \
		file, line \
	}

struct emu_site {
	const char *file;
	int line;
};

struct emu_fiber;

/* A product of four warps as every lane of one calls it: A in shared memory (`from`), or in registers and B transposed. */
struct emu_wgmma_call {
	u64 from, by;
	u32 n, steps, row; /* the warp's first row of A */
	bool add, transposed;
	struct emu_site site;
};

/* What a lane brings to an operation of its warp, and takes back. A lane is in one operation at a time, so it has one of
 * these for all. */
struct emu_lane {
	union {
		struct {
			u64 value, result;
			u32 operand; /* lane, bits or distance of a shuffle */
		} shuffle;
		struct {
			u32 a[8], b[4], d[8];
		} matrix;
		struct {
			const void *row;
			u32 out[4];
		} load; /* ldmatrix */
		struct {
			struct emu_wgmma_call what;
			float *d;
			const u32 *a;
			bool tainted;
		} product;
	};
};

/* A thread's cp.async, oldest first. */
struct emu_copies {
	struct emu_copy *list;
	u32 count, capacity, group;
};

/* A thread of the running block. */
struct emu_thread {
	uint3 index;
	u32 lane, warp;
	struct emu_lane *exchange;
	struct emu_fiber *fiber; /* NULL before its first instruction */
	struct emu_copies copies;
	struct { /* what it waits for */
		const char *what;
		struct emu_site site;
		u32 mask;
		i32 barrier; /* -1: none */
	} wait;
	bool vote, finished;
	bool unfenced; /* has copied by cp.async what products may not read yet */
	bool tainted;  /* has been at a barrier with such a thread */
};

/* Where the running thread is. One block runs at a time in a process. */
struct emu_place {
	uint3 block_index;
	dim3 block_dim, grid_dim;
};
extern struct emu_thread *emu_self;
extern struct emu_place emu_place;

#define threadIdx (emu_self->index)
#define blockIdx (emu_place.block_index)
#define blockDim (emu_place.block_dim)
#define gridDim (emu_place.grid_dim)

/* ---------------------------------------------------------------- host */

/* A kernel with its arguments, copied when it was launched. */
struct emu_launch {
	const char *name;
	const void *kernel;
	dim3 grid, block;
	size_t shared_bytes;
	bool dependent;
	size_t args_bytes;
	std::function<void()> thread;
};
cudaError_t emu_launch(struct emu_launch &&launch, cudaStream_t stream);

template <typename... P, typename... A>
static inline cudaError_t emu_launch_args(const char *name, bool dependent, void (*kernel)(P...), dim3 grid,
					  dim3 block, size_t shared_bytes, cudaStream_t stream, A &&...args)
{
	static_assert(sizeof...(P) == sizeof...(A), "as many arguments as parameters");
	std::tuple<P...> values(std::forward<A>(args)...);
	return emu_launch({name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, dependent,
			   sizeof(values), [kernel, values] { std::apply(kernel, values); }},
			  stream);
}

/* Any library is the emulation's NCCL (library.cc). */
void *cu_library_open(const char *name, char *problem, size_t bytes);
void *cu_library_symbol(void *library, const char *name);

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
	emu_launch_args(#kernel, false, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define LAUNCH_DEPENDENT(kernel, grid, block, shared_bytes, stream, ...) \
	emu_launch_args(#kernel, true, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define CU_SHARED_LIMIT(kernel, bytes) \
	cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, \
			     (int)(bytes))

/* The emulated device has wgmma. */
#define CU_HAS_WGMMA 1
#define CU_WGMMA_BOUNDS(threads)

template <typename... P> static inline bool cu_takes_threads(void (*)(P...), u32)
{
	return true;
}

/* ---------------------------------------------------------------- block */

void *emu_shared_dynamic(void);
/* The block's array that belongs to `key`, made at its first use. */
void *emu_shared_static(const void *key, const char *name, size_t bytes);

#define SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(emu_shared_dynamic())
#define SHARED_DYNAMIC_1024(type, name) SHARED_DYNAMIC(type, name)
#define SHARED(type, name, count) \
	static const char name##_key = 0; \
	type(&name)[count] = *static_cast<type(*)[count]>(emu_shared_static(&name##_key, #name, sizeof(type) * (count)))

/* Ends the kernel with a report: "KERNEL, block (..), thread (..), FILE:LINE: ...". */
[[noreturn]] void emu_trap(cudaError_t error, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* All threads; gives how many had v. */
u32 emu_barrier_all(bool v, const char *what, struct emu_site site);
void emu_barrier_named(u32 id, u32 threads, bool wait, struct emu_site site);
void emu_pause(struct emu_site site);
void emu_grid_wait(struct emu_site site);

static inline void cu_sync(EMU_HERE)
{
	(void)emu_barrier_all(false, "cu_sync", EMU_SITE);
}

static inline bool cu_sync_or(bool v, EMU_HERE)
{
	return emu_barrier_all(v, "cu_sync_or", EMU_SITE) != 0;
}

static inline bool cu_sync_and(bool v, EMU_HERE)
{
	return emu_barrier_all(!v, "cu_sync_and", EMU_SITE) == 0;
}

static inline u32 cu_sync_count(bool v, EMU_HERE)
{
	return emu_barrier_all(v, "cu_sync_count", EMU_SITE);
}

template <u32 id> static inline void cu_barrier_sync(u32 threads, EMU_HERE)
{
	static_assert(id >= 1 && id <= 15, "0 is cu_sync's");
	emu_barrier_named(id, threads, true, EMU_SITE);
}

template <u32 id> static inline void cu_barrier_arrive(u32 threads, EMU_HERE)
{
	static_assert(id >= 1 && id <= 15, "0 is cu_sync's");
	emu_barrier_named(id, threads, false, EMU_SITE);
}

void emu_phase_init(u64 *barrier, u32 count, struct emu_site site);
void emu_phase_arrive(u64 *barrier, struct emu_site site);
void emu_phase_arrive_copied(u64 *barrier, struct emu_site site);
void emu_phase_wait(u64 *barrier, u32 parity, struct emu_site site);

static inline void cu_phase_init(u64 *barrier, u32 count, EMU_HERE)
{
	emu_phase_init(barrier, count, EMU_SITE);
}

static inline void cu_phase_arrive(u64 *barrier, EMU_HERE)
{
	emu_phase_arrive(barrier, EMU_SITE);
}

static inline void cu_phase_arrive_copied(u64 *barrier, EMU_HERE)
{
	emu_phase_arrive_copied(barrier, EMU_SITE);
}

static inline void cu_phase_wait(u64 *barrier, u32 parity, EMU_HERE)
{
	emu_phase_wait(barrier, parity, EMU_SITE);
}

template <u32 count> static inline void cu_registers_more()
{
	static_assert(count % 8 == 0 && count >= 24 && count <= 256, "as setmaxnreg takes them");
}

template <u32 count> static inline void cu_registers_fewer()
{
	static_assert(count % 8 == 0 && count >= 24 && count <= 256, "as setmaxnreg takes them");
}

static inline void cu_pause(EMU_HERE)
{
	emu_pause(EMU_SITE);
}

static inline void cu_trap(EMU_HERE)
{
	emu_trap(cudaErrorLaunchFailure, file, line, "cu_trap");
}

static inline void cu_grid_wait(EMU_HERE)
{
	emu_grid_wait(EMU_SITE);
}

static inline void cu_grid_launch()
{
}

/* ---------------------------------------------------------------- warp */

/* Computes the results of all lanes in `mask` once they are all there. */
typedef void (*emu_warp_fn)(struct emu_lane lanes[32], u32 mask);
/* The running lane has filled in its emu_self->exchange, and finds its results there. */
void emu_warp_sync(u32 mask, emu_warp_fn fn, bool aligned, const char *what, struct emu_site);

void emu_op_sync(struct emu_lane lanes[32], u32 mask);
void emu_op_shfl(struct emu_lane lanes[32], u32 mask);
void emu_op_shfl_xor(struct emu_lane lanes[32], u32 mask);
void emu_op_shfl_up(struct emu_lane lanes[32], u32 mask);
void emu_op_shfl_down(struct emu_lane lanes[32], u32 mask);
void emu_op_ballot(struct emu_lane lanes[32], u32 mask);
void emu_op_reduce_add(struct emu_lane lanes[32], u32 mask);
void emu_op_reduce_min(struct emu_lane lanes[32], u32 mask);
void emu_op_reduce_max(struct emu_lane lanes[32], u32 mask);

static inline void cu_syncwarp(u32 mask = CU_ALL, EMU_HERE)
{
	emu_warp_sync(mask, emu_op_sync, false, "cu_syncwarp", EMU_SITE);
}

template <typename T>
static inline T emu_shuffle(T v, u32 operand, u32 mask, emu_warp_fn fn, const char *what, struct emu_site site)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
	struct emu_lane *l = emu_self->exchange;
	u64 value = 0;
	memcpy(&value, &v, sizeof(T));
	l->shuffle.value = value;
	l->shuffle.operand = operand;
	emu_warp_sync(mask, fn, false, what, site);
	memcpy(&v, &l->shuffle.result, sizeof(T));
	return v;
}

template <typename T> static inline T cu_shfl(T v, u32 lane, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, lane, mask, emu_op_shfl, "cu_shfl", EMU_SITE);
}

template <typename T> static inline T cu_shfl_xor(T v, u32 bits, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, bits, mask, emu_op_shfl_xor, "cu_shfl_xor", EMU_SITE);
}

template <typename T> static inline T cu_shfl_up(T v, u32 by, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, by, mask, emu_op_shfl_up, "cu_shfl_up", EMU_SITE);
}

template <typename T> static inline T cu_shfl_down(T v, u32 by, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, by, mask, emu_op_shfl_down, "cu_shfl_down", EMU_SITE);
}

static inline u32 cu_ballot(bool v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle((u32)v, 0, mask, emu_op_ballot, "cu_ballot", EMU_SITE);
}

static inline bool cu_any(bool v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle((u32)v, 0, mask, emu_op_ballot, "cu_any", EMU_SITE) != 0;
}

static inline bool cu_all(bool v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle((u32)!v, 0, mask, emu_op_ballot, "cu_all", EMU_SITE) == 0;
}

static inline u32 cu_reduce_add(u32 v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, 0, mask, emu_op_reduce_add, "cu_reduce_add", EMU_SITE);
}

static inline u32 cu_reduce_min(u32 v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, 0, mask, emu_op_reduce_min, "cu_reduce_min", EMU_SITE);
}

static inline u32 cu_reduce_max(u32 v, u32 mask = CU_ALL, EMU_HERE)
{
	return emu_shuffle(v, 0, mask, emu_op_reduce_max, "cu_reduce_max", EMU_SITE);
}

#include "tests/cuda_emu/emu_matrix.h"

/* ---------------------------------------------------------------- memory */

static inline void emu_align(const void *p, size_t bytes, const char *what, const char *file, int line)
{
	if (((uintptr_t)p & (bytes - 1)) != 0)
		emu_trap(cudaErrorMisalignedAddress, file, line, "%s of %zu bytes at the address %p", what, bytes, p);
}

template <typename T> static inline T cu_load(const void *p, EMU_HERE)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	T v;
	emu_align(p, sizeof(T), "a load", file, line);
	memcpy(&v, p, sizeof(T));
	return v;
}

/* A device may give what was there before the kernel began: so this is to be memory that the kernel does not write. */
void emu_read_only(const void *p, size_t bytes, const char *file, int line);

template <typename T> static inline T cu_load_stream(const void *p, EMU_HERE)
{
	emu_read_only(p, sizeof(T), file, line);
	return cu_load<T>(p, file, line);
}

template <typename T> static inline T cu_load_const(const void *p, EMU_HERE)
{
	emu_read_only(p, sizeof(T), file, line);
	return cu_load<T>(p, file, line);
}

/* Not deduced from the value, as under nvcc a store of another width would be. */
template <typename T> static inline void cu_store(void *p, T v, EMU_HERE)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
	emu_align(p, sizeof(T), "a store", file, line);
	memcpy(p, &v, sizeof(T));
}

void emu_cp_async(void *shared, const void *global, u32 bytes, bool valid, struct emu_site site);
void emu_cp_wait(u32 groups);

static inline void cu_cp_async16(void *shared, const void *global, bool valid = true, EMU_HERE)
{
	emu_cp_async(shared, global, 16, valid, EMU_SITE);
}

static inline void cu_cp_async4(void *shared, const void *global, bool valid = true, EMU_HERE)
{
	emu_cp_async(shared, global, 4, valid, EMU_SITE);
}

static inline void cu_cp_commit()
{
	emu_self->copies.group++;
}

template <u32 n> static inline void cu_cp_wait()
{
	emu_cp_wait(n);
}

/* Threads of one launch never interleave inside these; mapped host memory is also the host's. */
#define EMU_ATOMIC(name, type, result) \
	static inline type name(type *p, type v, EMU_HERE) \
	{ \
		emu_align(p, sizeof(type), #name, file, line); \
		type old = __atomic_load_n(p, __ATOMIC_RELAXED); \
		__atomic_store_n(p, result, __ATOMIC_RELAXED); \
		return old; \
	}
EMU_ATOMIC(cu_atomic_add, u32, old + v)
EMU_ATOMIC(cu_atomic_add, i32, (i32)((u32)old + (u32)v))
EMU_ATOMIC(cu_atomic_add, u64, old + v)
EMU_ATOMIC(cu_atomic_max, u32, old > v ? old : v)
EMU_ATOMIC(cu_atomic_max, i32, old > v ? old : v)
EMU_ATOMIC(cu_atomic_max, u64, old > v ? old : v)
EMU_ATOMIC(cu_atomic_min, u32, old < v ? old : v)
EMU_ATOMIC(cu_atomic_min, i32, old < v ? old : v)
EMU_ATOMIC(cu_atomic_min, u64, old < v ? old : v)
EMU_ATOMIC(cu_atomic_or, u32, old | v)
EMU_ATOMIC(cu_atomic_exch, u32, v)
#undef EMU_ATOMIC

static inline float cu_atomic_add(float *p, float v, EMU_HERE)
{
	emu_align(p, sizeof(float), "cu_atomic_add", file, line);
	float old = *p;
	*p = old + v;
	return old;
}

template <typename T> static inline T cu_atomic_cas(T *p, T expected, std::common_type_t<T> v, EMU_HERE)
{
	static_assert(std::is_same_v<T, u32> || std::is_same_v<T, u64>, "u32 or u64");
	emu_align(p, sizeof(T), "cu_atomic_cas", file, line);
	T old = __atomic_load_n(p, __ATOMIC_RELAXED);
	if (old == expected)
		__atomic_store_n(p, v, __ATOMIC_RELAXED);
	return old;
}

static inline void cu_fence_block()
{
}

/* Blocks run one after another: a fence is only something to look for (race.cc). */
void emu_fence(void);

static inline void cu_fence()
{
	emu_fence();
}

static inline void cu_fence_system()
{
	emu_fence();
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline u32 cu_load_acquire(const u32 *p, EMU_HERE)
{
	emu_align(p, 4, "cu_load_acquire", file, line);
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void cu_store_release(u32 *p, u32 v, EMU_HERE)
{
	emu_align(p, 4, "cu_store_release", file, line);
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline u32 cu_load_acquire_system(const u32 *p, EMU_HERE)
{
	return cu_load_acquire(p, file, line);
}

static inline void cu_store_release_system(u32 *p, u32 v, EMU_HERE)
{
	cu_store_release(p, v, file, line);
}

#undef EMU_HERE
#undef EMU_SITE
#endif
