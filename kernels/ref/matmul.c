/* Reference: matrix product with the weight in any layout. */
#include "kernels/kern_priv.h"

enum { COLUMNS_A_TASK = 16, TOKENS_AT_ONCE = 64, VALUES_AT_ONCE = KERN_GROUP_MAX };

/* W[n][first] to W[n][first + count - 1], where `first` begins a group. */
static void look_up(const struct kern_weight *w, u32 n, u32 first, u32 count, float *values)
{
	if (w->packed != KERN_LAYOUT_GROUPS) {
		for (u32 i = 0; i < count; i++)
			values[i] = kern_weight_at(w, n, first + i);
		return;
	}
	const enum kern_dtype type = w->dtype;
	const u32 width = kern_dtype_group(type);
	for (u32 i = 0; i < count; i += width) {
		const char *group = (const char *)w->data + kern_group_offset(w, n, first + i);
		for (u32 within = 0; within < width && i + within < count; within++)
			values[i + within] = kern_group_value(type, group, n, within);
	}
}

/* In double, in four sums of every fourth product. */
static double products(const float *x, const u32 *order, const float *weights, u32 count)
{
	double sums[4] = {0};
	u32 i = 0;
	for (; !order && i + 4 <= count; i += 4)
		for (u32 s = 0; s < 4; s++)
			sums[s] += (double)x[i + s] * weights[i + s];
	for (; i < count; i++)
		sums[i % 4] += (double)x[order ? order[i] : i] * weights[i];
	return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/* Column n of `count` tokens, for which a weight is looked up once. */
static void tokens(const struct kern_matmul_args *a, u32 n, u32 first, u32 count)
{
	const struct kern_weight *w = a->w;
	const float *x = a->x + (size_t)first * a->x_stride;
	float *out = a->out + (size_t)first * a->out_stride + n, weights[VALUES_AT_ONCE];
	double sums[TOKENS_AT_ONCE];
	for (u32 t = 0; t < count; t++)
		sums[t] = a->bias ? a->bias[n] : 0;
	for (u32 k = 0; k < w->k; k += VALUES_AT_ONCE) {
		const u32 values = kern_min(w->k - k, VALUES_AT_ONCE), *order = w->order ? w->order + k : NULL;
		look_up(w, n, k, values, weights);
		for (u32 t = 0; t < count; t++)
			sums[t] += products(x + (size_t)t * a->x_stride + (order ? 0 : k), order, weights, values);
	}
	for (u32 t = 0; t < count; t++)
		out[(size_t)t * a->out_stride] = (float)(a->accumulate ? out[(size_t)t * a->out_stride] + sums[t] : sums[t]);
}

static void columns(void *arg, u32 task, u32 thread)
{
	const struct kern_matmul_args *a = arg;
	const struct kern_weight *w = a->w;
	u32 end = kern_min((task + 1) * COLUMNS_A_TASK, w->n);
	(void)thread;
	for (u32 n = task * COLUMNS_A_TASK; n < end; n++)
		for (u32 t = 0; t < a->tokens; t += TOKENS_AT_ONCE)
			tokens(a, n, t, kern_min(a->tokens - t, TOKENS_AT_ONCE));
}

enum err matmul_ref(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_matmul_args args = *a;
	if (a->fusion)
		return ERR_UNSUPPORTED;
	kern_parallel(ctx, kern_ceil(a->w->n, COLUMNS_A_TASK), columns, &args);
	return ERR_OK;
}
