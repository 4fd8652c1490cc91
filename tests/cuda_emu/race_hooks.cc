/* Device code that is compiled with -fsanitize=thread calls these at every access to memory, and no runtime of
 * ThreadSanitizer is linked: what it would look at is host threads, and here are the device's. */
#include <stdlib.h>

#include "tests/cuda_emu/emu_priv.h"

/* The program's image, from the linker: no memory of the device is in it, but the running thread is known by a variable
 * that is. */
extern "C" const unsigned char __executable_start[], _end[];

/* The compiler gives no place; the report names array, threads and the last barrier. */
static inline void touch(const void *p, size_t bytes, enum emu_access access)
{
	if ((size_t)(static_cast<const unsigned char *>(p) - __executable_start) >= (size_t)(_end - __executable_start))
		emu_touch(p, bytes, access, {"?", 0});
}

extern "C" {

void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);

void __tsan_init(void)
{
	emu_race_check(true);
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit(void)
{
}

#define ACCESS(bytes) \
	void __tsan_read##bytes(void *p); \
	void __tsan_write##bytes(void *p); \
	void __tsan_unaligned_read##bytes(void *p); \
	void __tsan_unaligned_write##bytes(void *p); \
	void __tsan_volatile_read##bytes(void *p); \
	void __tsan_volatile_write##bytes(void *p); \
	void __tsan_read##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_READ); \
	} \
	void __tsan_write##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_WRITE); \
	} \
	void __tsan_unaligned_read##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_READ); \
	} \
	void __tsan_unaligned_write##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_WRITE); \
	} \
	void __tsan_volatile_read##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_READ); \
	} \
	void __tsan_volatile_write##bytes(void *p) \
	{ \
		touch(p, bytes, EMU_WRITE); \
	}
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);
void __tsan_vptr_update(void **p, void *value);
void __tsan_vptr_read(void **p);

void __tsan_read_range(void *p, size_t bytes)
{
	touch(p, bytes, EMU_READ);
}

void __tsan_write_range(void *p, size_t bytes)
{
	touch(p, bytes, EMU_WRITE);
}

void __tsan_vptr_update(void **, void *)
{
}

void __tsan_vptr_read(void **)
{
}

/* Atomics of cu.h are a load and a store; what else the compiler makes of C++'s is host code. */
#define ATOMIC(bits, type) \
	type __tsan_atomic##bits##_load(const volatile type *p, int order); \
	void __tsan_atomic##bits##_store(volatile type *p, type v, int order); \
	type __tsan_atomic##bits##_exchange(volatile type *p, type v, int order); \
	type __tsan_atomic##bits##_fetch_add(volatile type *p, type v, int order); \
	type __tsan_atomic##bits##_fetch_sub(volatile type *p, type v, int order); \
	int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, type v, int order, int fail); \
	int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *expected, type v, int order, int fail); \
	type __tsan_atomic##bits##_load(const volatile type *p, int) \
	{ \
		touch(const_cast<const type *>(p), sizeof(type), EMU_ATOMIC_ACCESS); \
		return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
	} \
	void __tsan_atomic##bits##_store(volatile type *p, type v, int) \
	{ \
		touch(const_cast<type *>(p), sizeof(type), EMU_ATOMIC_ACCESS); \
		__atomic_store_n(p, v, __ATOMIC_SEQ_CST); \
	} \
	type __tsan_atomic##bits##_exchange(volatile type *p, type v, int) \
	{ \
		return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
	} \
	type __tsan_atomic##bits##_fetch_add(volatile type *p, type v, int) \
	{ \
		return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); \
	} \
	type __tsan_atomic##bits##_fetch_sub(volatile type *p, type v, int) \
	{ \
		return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); \
	} \
	int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, type v, int, int) \
	{ \
		return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
	} \
	int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *expected, type v, int, int) \
	{ \
		return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
	}
ATOMIC(8, u8)
ATOMIC(32, u32)
ATOMIC(64, u64)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}
}
