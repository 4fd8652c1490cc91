/* Quantizing the rows of a weight, in the variants of cpu/quantize.c. */
#ifndef TERCET_KERNELS_CPU_QUANTIZE_PRIV_H
#define TERCET_KERNELS_CPU_QUANTIZE_PRIV_H

#include "kernels/cpu/variants_priv.h"

/* Rows [first, first + rows) of `w`, from plain values or (where `ready` is set) from quantized ones. */
struct quantize_job {
	struct kern_weight *w;
	const void *src;
	enum kern_dtype src_dtype;
	size_t src_stride;
	const struct kern_quantized_rows *ready;
	u32 first, rows;
};

/* Those of the rows that lie in this panel. */
typedef void (*quantize_fn)(const struct quantize_job *j, u32 panel);
void quantize_panel_generic(const struct quantize_job *j, u32 panel);
#ifdef KERN_HAVE_X86
void quantize_panel_avx2(const struct quantize_job *j, u32 panel);
void quantize_panel_avx512(const struct quantize_job *j, u32 panel);
#endif

#endif
