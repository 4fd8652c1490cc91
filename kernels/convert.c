/* Conversions between element types. Runs in the worker while weights load; pure. */
#include "kernels/kern_priv.h"

size_t kern_dtype_bytes(enum kern_dtype t)
{
	switch (t) {
	case KERN_F32:
		return 4;
	case KERN_BF16:
	case KERN_F16:
	case KERN_I16:
		return 2;
	case KERN_I8:
	case KERN_F8E4M3:
		return 1;
	case KERN_I4_32:
	case KERN_I4_64:
	case KERN_I4_128:
	case KERN_I4_STEPS:
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
	case KERN_I4_STEPS:
		return "int4 (groups of 32 in steps)";
	case KERN_I16:
		return "int16";
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
	case KERN_I16:
		return 0;
	case KERN_I8:
		return KERN_I8_GROUP;
	case KERN_I4_32:
		return 32;
	case KERN_I4_64:
		return 64;
	case KERN_I4_128:
	case KERN_I4_STEPS:
		return 128;
	}
	return 0;
}

enum kern_dtype kern_dtype_int4(u32 caps)
{
	const u32 all = KERN_CAP_AVX2 | KERN_CAP_AVX512 | KERN_CAP_AVX512_VNNI;
	return (caps & all) == all ? KERN_I4_STEPS : KERN_I4_64;
}

enum kern_dtype kern_dtype_kv(u32 caps, u32 head_dim)
{
	const bool tiles = (caps & KERN_CAP_AMX) && head_dim % 32 == 0;
	return (caps & KERN_CAP_AVX2) && !(caps & KERN_CAP_AVX512_BF16) && !tiles ? KERN_I16 : KERN_BF16;
}

/* Values as a checkpoint holds them: its tensors begin at any byte. */
typedef u16 stored_half __attribute__((aligned(1)));
typedef float stored_float __attribute__((aligned(1)));
typedef u32 stored_word __attribute__((aligned(1), may_alias));

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

/* ---------------------------------------------------------------- what is finite */

/* The least bits, without the sign, of what is not finite in `as`, or would not be. */
static u32 limit_of(enum kern_dtype type, enum kern_dtype as)
{
	bool halves = kern_dtype_group(as) > 0 && as != KERN_I8; /* the scales of such a group, which may be one of its values */

	if (type == KERN_F16)
		return 0x7c00;
	if (type == KERN_BF16)
		return halves ? 0x4780 : 0x7f80;
	return halves ? 0x477ff000 : as == KERN_BF16 ? 0x7f7f8000 : 0x7f800000; /* half way to 65536 or 2^128 rounds up */
}

/* Without branches, and with signed numbers, of which every processor has a vector's greatest. */
static int16_t most_of_halves(const stored_half *bits, size_t count)
{
	int16_t most = 0;

	for (size_t i = 0; i < count; i++) {
		int16_t size = (int16_t)(bits[i] & 0x7fff);
		most = size > most ? size : most;
	}
	return most;
}

static i32 most_of_words(const stored_word *bits, size_t count)
{
	i32 most = 0;

	for (size_t i = 0; i < count; i++) {
		i32 size = (i32)(bits[i] & 0x7fffffff);
		most = size > most ? size : most;
	}
	return most;
}

bool kern_all_finite(const void *src, enum kern_dtype type, enum kern_dtype as, size_t count)
{
	ASSERT(type == KERN_F32 || type == KERN_BF16 || type == KERN_F16);
	i32 most = type == KERN_F32 ? most_of_words(src, count) : most_of_halves(src, count);
	return (u32)most < limit_of(type, as);
}
