/* Where the parts of a weight lie that is laid out for devices (KERN_LAYOUT_DEVICE): for the code that makes
 * it and for the launchers that read it. Compiles as C11 and as CUDA C++. */
#ifndef TERCET_KERNELS_WEIGHT_DEVICE_PRIV_H
#define TERCET_KERNELS_WEIGHT_DEVICE_PRIV_H

#include "kernels/kernels.h"

enum { WEIGHT_DEVICE_UNIT = 64 /* bytes of a row that the four lanes of a matrix unit's row load at once */ };

static inline bool weight_device_is_int4(enum kern_dtype t)
{
	return t == KERN_I4_32 || t == KERN_I4_64 || t == KERN_I4_128;
}

/* Columns of a unit; 0: no type of devices. */
static inline u32 weight_device_columns(enum kern_dtype t)
{
	if (t == KERN_I8 || t == KERN_F8E4M3)
		return 64;
	return t == KERN_BF16 ? 32 : weight_device_is_int4(t) ? 128 : 0;
}

/* Columns that share a scale; 0: there are none. */
static inline u32 weight_device_group(enum kern_dtype t)
{
	if (t == KERN_I4_32)
		return 32;
	if (t == KERN_I4_64)
		return 64;
	return t == KERN_BF16 ? 0 : 128;
}

static inline size_t weight_device_row_bytes(u32 k, enum kern_dtype t)
{
	u32 columns = weight_device_columns(t);
	return (size_t)((k + columns - 1) / columns) * WEIGHT_DEVICE_UNIT;
}

static inline u32 weight_device_groups(u32 k, enum kern_dtype t)
{
	u32 group = weight_device_group(t);
	return group > 0 ? (k + group - 1) / group : 0;
}

/* Rows that the scales of a group are laid out for: so that those of eight begin at a multiple of 16 bytes. */
static inline u32 weight_device_scale_rows(u32 n)
{
	return (n + 7) & ~7u;
}

/* Of the scales, and of the zeros where there are any. */
static inline size_t weight_device_scales_bytes(u32 n, u32 k, enum kern_dtype t)
{
	size_t bytes = (size_t)weight_device_scale_rows(n) * weight_device_groups(k, t) *
		       (weight_device_is_int4(t) ? sizeof(u16) : sizeof(float));
	return (bytes + 63) & ~(size_t)63;
}

#endif
