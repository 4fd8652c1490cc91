/* The variants of the CPU, by instruction set: X(op, isa). A variant is listed here when it beats what it replaces. */
#ifndef TERCET_KERNELS_CPU_VARIANTS_PRIV_H
#define TERCET_KERNELS_CPU_VARIANTS_PRIV_H

#include "kernels/kern_priv.h"

#if defined(__x86_64__)
#define KERN_HAVE_X86 1
#endif

#define KERN_AVX2_OPS(X)
#define KERN_AVX512_OPS(X)
#define KERN_AVX512_BF16_OPS(X)

#define KERN_DECLARE_VARIANT(op, isa) KERN_DECLARE(op, isa);
KERN_AVX2_OPS(KERN_DECLARE_VARIANT)
KERN_AVX512_OPS(KERN_DECLARE_VARIANT)
KERN_AVX512_BF16_OPS(KERN_DECLARE_VARIANT)
#undef KERN_DECLARE_VARIANT

#endif
