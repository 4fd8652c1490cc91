/* Low-rank adapters in the layout that the op reads. Runs in the worker while it loads. */
#include "kernels/cpu/lora_priv.h"

size_t kern_lora_a_bytes(u32 rank, u32 k, enum kern_dtype dtype)
{
	return kern_align((size_t)rank * k * kern_dtype_bytes(dtype));
}

size_t kern_lora_b_bytes(u32 n, u32 rank, enum kern_dtype dtype)
{
	return kern_align((size_t)kern_ceil(n, KERN_LORA_COLUMNS) * KERN_LORA_COLUMNS * rank * kern_dtype_bytes(dtype));
}

void kern_lora_set_a(void *a, enum kern_dtype dtype, u32 first, u32 rows, u32 k, const void *src, enum kern_dtype src_dtype,
		     size_t src_stride)
{
	char *to = (char *)a + (size_t)first * k * kern_dtype_bytes(dtype);
	ASSERT(dtype == KERN_F32 || dtype == KERN_BF16);
	for (size_t i = 0; i < rows; i++)
		kern_convert(to + i * k * kern_dtype_bytes(dtype), dtype,
			     (const char *)src + i * src_stride * kern_dtype_bytes(src_dtype), src_dtype, k);
}

void kern_lora_set_b(void *b, enum kern_dtype dtype, u32 n, u32 rank, const void *src, enum kern_dtype src_dtype,
		     size_t src_stride)
{
	ASSERT(dtype == KERN_F32 || dtype == KERN_BF16);
	memset(b, 0, kern_lora_b_bytes(n, rank, dtype));
	for (u32 j = 0; j < n; j++)
		for (u32 r = 0; r < rank; r++)
			kern_store(b, dtype, kern_lora_b_index(rank, j, r), kern_load(src, src_dtype, j * src_stride + r));
}
