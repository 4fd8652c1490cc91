/* Conversions between element types. Runs in the worker while weights load; pure. */
#include "kernels/kern_priv.h"

size_t kern_dtype_bytes(enum kern_dtype t)
{
	switch (t) {
	case KERN_F32:
		return 4;
	case KERN_BF16:
	case KERN_F16:
		return 2;
	case KERN_I8:
	case KERN_F8E4M3:
		return 1;
	case KERN_I4_32:
	case KERN_I4_64:
	case KERN_I4_128:
		return 0;
	}
	return 0;
}

const char *kern_dtype_name(enum kern_dtype t)
{
	switch (t) {
	case KERN_F32:
		return "float32";
	case KERN_BF16:
		return "bfloat16";
	case KERN_F16:
		return "float16";
	case KERN_I8:
		return "int8";
	case KERN_F8E4M3:
		return "float8 (e4m3)";
	case KERN_I4_32:
		return "int4 (groups of 32)";
	case KERN_I4_64:
		return "int4 (groups of 64)";
	case KERN_I4_128:
		return "int4 (groups of 128)";
	}
	return "?";
}

u32 kern_dtype_group(enum kern_dtype t)
{
	switch (t) {
	case KERN_F32:
	case KERN_BF16:
	case KERN_F16:
	case KERN_F8E4M3:
		return 0;
	case KERN_I8:
		return KERN_I8_GROUP;
	case KERN_I4_32:
		return 32;
	case KERN_I4_64:
		return 64;
	case KERN_I4_128:
		return 128;
	}
	return 0;
}

/* Values as a checkpoint holds them: its tensors begin at any byte. */
typedef u16 stored_half __attribute__((aligned(1)));
typedef float stored_float __attribute__((aligned(1)));

static void to_float(float *dst, const void *src, enum kern_dtype type, size_t count)
{
	const stored_half *half = src;
	if (type == KERN_F32)
		memmove(dst, src, count * sizeof(float));
	else if (type == KERN_BF16)
		for (size_t i = 0; i < count; i++)
			dst[i] = kern_bf16_to_float(half[i]);
	else
		for (size_t i = 0; i < count; i++)
			dst[i] = kern_f16_to_float(half[i]);
}

void kern_convert(void *dst, enum kern_dtype dst_type, const void *src, enum kern_dtype src_type,
		  size_t count)
{
	u16 *half = dst;
	ASSERT(kern_dtype_bytes(src_type) > 1 &&
	       (dst_type == KERN_F32 || dst_type == KERN_BF16 || dst_type == src_type));
	if (dst_type == src_type)
		memmove(dst, src, count * kern_dtype_bytes(src_type));
	else if (dst_type == KERN_F32)
		to_float(dst, src, src_type, count);
	else if (src_type == KERN_F32)
		for (size_t i = 0; i < count; i++)
			half[i] = kern_float_to_bf16(((const stored_float *)src)[i]);
	else
		for (size_t i = 0; i < count; i++)
			half[i] = kern_float_to_bf16(kern_f16_to_float(((const stored_half *)src)[i]));
}
