/* The words of kernels/cuda/cu.h for the matrix unit of four warps (compute capability 9.0) and the barriers in shared
 * memory that feed it, for nvcc: a part of cu_device.h. Include cu.h, not this. */
#ifndef TERCET_KERNELS_CUDA_CU_WGMMA_H
#define TERCET_KERNELS_CUDA_CU_WGMMA_H

/* ---------------------------------------------------------------- matrix unit of four warps */

#if CU_HAS_WGMMA
#define CU_WGMMA_REGISTERS_64 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CU_WGMMA_REGISTERS_128 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
	"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
	"%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CU_WGMMA_REGISTERS_256 \
	CU_WGMMA_REGISTERS_128 ", " \
	"%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
	"%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
	"%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
	"%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CU_WGMMA_8(at) \
	"+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), "+f"(d[at + 5]), \
		"+f"(d[at + 6]), "+f"(d[at + 7])
#define CU_WGMMA_32(at) CU_WGMMA_8(at), CU_WGMMA_8(at + 8), CU_WGMMA_8(at + 16), CU_WGMMA_8(at + 24)
/* `scale`: the operand that is 0 where d begins at 0. */
#define CU_WGMMA(n, scale, a, b, transposed) \
	"{ .reg .pred p; setp.ne.b32 p, " scale ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" \
		CU_WGMMA_REGISTERS_##n "}, " a ", " b ", p, 1, 1, " transposed "; }"
#endif

/* The descriptor of an operand in panels of 128 bytes, swizzled (PTX ISA, matrix descriptors). */
CU_DEVICE u64 cu_wgmma_operand(const void *shared, u32 panel_bytes)
{
	return (u64)(cu_shared_address(shared) >> 4 & 0x3fff) | (u64)(panel_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 |
	       (u64)1 << 62;
}

CU_DEVICE void cu_wgmma_fence()
{
#if CU_HAS_WGMMA
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

CU_DEVICE void cu_wgmma_commit()
{
#if CU_HAS_WGMMA
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <u32 left> CU_DEVICE void cu_wgmma_wait()
{
#if CU_HAS_WGMMA
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#endif
}

/* The values pass through, so that no use of them moves to before the wait. */
template <u32 left, u32 count> CU_DEVICE void cu_wgmma_wait(float (&d)[count])
{
	cu_wgmma_wait<left>();
#pragma unroll
	for (u32 i = 0; i < count; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

template <u32 N, u32 STEPS> CU_DEVICE void cu_wgmma_rows(float (&d)[N / 2], u64 a, u64 b, bool add)
{
	static_assert((N == 64 || N == 128 || N == 256) && STEPS <= 4, "a panel is 128 bytes wide");
#if CU_HAS_WGMMA
#pragma unroll
	for (u32 i = 0; i < STEPS; i++) {
		const u64 from = a + 2 * i, by = b + 2 * i;
		const int sum = add || i > 0;
		if constexpr (N == 64)
			asm volatile(CU_WGMMA(64, "%34", "%32", "%33", "0, 0")
				     : CU_WGMMA_32(0)
				     : "l"(from), "l"(by), "r"(sum));
		else if constexpr (N == 128)
			asm volatile(CU_WGMMA(128, "%66", "%64", "%65", "0, 0")
				     : CU_WGMMA_32(0), CU_WGMMA_32(32)
				     : "l"(from), "l"(by), "r"(sum));
		else
			asm volatile(CU_WGMMA(256, "%130", "%128", "%129", "0, 0")
				     : CU_WGMMA_32(0), CU_WGMMA_32(32), CU_WGMMA_32(64), CU_WGMMA_32(96)
				     : "l"(from), "l"(by), "r"(sum));
	}
#endif
}

template <u32 N, u32 STEPS> CU_DEVICE void cu_wgmma_columns(float (&d)[N / 2], const u32 (&a)[4 * STEPS], u64 b)
{
	static_assert(N == 64 || N == 128, "");
#if CU_HAS_WGMMA
#pragma unroll
	for (u32 i = 0; i < STEPS; i++) {
		const u64 by = b + (2048 >> 4) * i;
		if constexpr (N == 64)
			asm volatile(CU_WGMMA(64, "%37", "{%32, %33, %34, %35}", "%36", "1")
				     : CU_WGMMA_32(0)
				     : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), "l"(by), "r"(1));
		else
			asm volatile(CU_WGMMA(128, "%69", "{%64, %65, %66, %67}", "%68", "1")
				     : CU_WGMMA_32(0), CU_WGMMA_32(32)
				     : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), "l"(by), "r"(1));
	}
#endif
}

CU_DEVICE void cu_fence_wgmma()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

template <u32 count> CU_DEVICE void cu_registers_more()
{
#if CU_HAS_WGMMA
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

template <u32 count> CU_DEVICE void cu_registers_fewer()
{
#if CU_HAS_WGMMA
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

/* ---------------------------------------------------------------- barriers in shared memory */

CU_DEVICE void cu_phase_init(u64 *barrier, u32 count)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(cu_shared_address(barrier)), "r"(count) : "memory");
}

CU_DEVICE void cu_phase_arrive(u64 *barrier)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(cu_shared_address(barrier)) : "memory");
}

CU_DEVICE void cu_phase_arrive_copied(u64 *barrier)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(cu_shared_address(barrier)) : "memory");
}

CU_DEVICE void cu_phase_wait(u64 *barrier, u32 parity)
{
#if __CUDA_ARCH__ >= 900
	const u32 at = cu_shared_address(barrier);
	u32 done;
	do {
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
			     : "=r"(done)
			     : "r"(at), "r"(parity)
			     : "memory");
	} while (!done);
#else
	cu_trap();
#endif
}

#endif
