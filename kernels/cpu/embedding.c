/* Rows of the embedding table for AVX2: bf16 widened by vectors. */
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

static void widen(float *out, const u16 *in, u32 count)
{
	u32 i = 0;
	for (; i + VEC_LANES <= count; i += VEC_LANES)
		vec_store(out + i, vec_load_bf16(in + i));
	if (i < count)
		vec_store_n(out + i, vec_load_bf16_n(in + i, count - i), count - i);
}

static void scale_row(float *out, float scale, u32 count)
{
	vec s = vec_set1(scale);
	u32 i = 0;
	for (; i + VEC_LANES <= count; i += VEC_LANES)
		vec_store(out + i, vec_mul(vec_load(out + i), s));
	if (i < count)
		vec_store_n(out + i, vec_mul(vec_load_n(out + i, count - i), s), count - i);
}

static void rows(void *arg, u32 task, u32 thread)
{
	const struct kern_embedding_args *a = arg;
	u32 count = kern_rows_a_task(a->hidden), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		float *out = a->out + (size_t)t * a->hidden;
		u32 row = a->ids[t] - a->first; /* wraps to a large number below `first` */
		size_t at = (size_t)row * a->hidden;
		if (row >= a->rows)
			memset(out, 0, a->hidden * sizeof(float));
		else if (a->table_dtype == KERN_BF16)
			widen(out, (const u16 *)a->table + at, a->hidden);
		else
			kern_convert(out, KERN_F32,
				     (const char *)a->table + at * kern_dtype_bytes(a->table_dtype),
				     a->table_dtype, a->hidden);
		if (a->scale != 0 && a->scale != 1)
			scale_row(out, a->scale, a->hidden);
	}
}

enum err VARIANT(embedding)(struct kern_ctx *ctx, const struct kern_embedding_args *a)
{
	struct kern_embedding_args args = *a;
	ASSERT(!a->accumulate);
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens, kern_rows_a_task(a->hidden)), rows, &args);
	return ERR_OK;
}
