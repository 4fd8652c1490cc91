/* Checks of products of heads, each with a matrix of its own, against the formula in double: heads that lie apart, values that stand
 * beside a product; and that a row's bits do not depend on its neighbours. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/check.h"

enum { HEADS_MOST = 7, LOOSE = 3 /* values between heads, and between rows, that no head has */ };

struct heads_case {
	u32 n, k, tokens, heads, beside;
	bool bf16;
};

static struct kern_weight *pack_heads(struct check *c, const struct heads_case *s, u32 caps, float **plain)
{
	const enum kern_dtype dtype = s->bf16 ? KERN_BF16 : KERN_F32;
	const size_t count = (size_t)s->n * s->k;
	struct kern_weight *w = check_alloc(c, s->heads * sizeof(*w));
	struct err_msg em = {""};
	u16 half;
	for (u32 h = 0; h < s->heads; h++) {
		plain[h] = check_floats(c, count, false);
		for (size_t i = 0; i < count && s->bf16; i++) {
			kern_convert(&half, KERN_BF16, &plain[h][i], KERN_F32, 1);
			kern_convert(&plain[h][i], KERN_F32, &half, KERN_BF16, 1);
		}
		void *memory = check_alloc(c, kern_weight_bytes(s->n, s->k, dtype, caps));
		if (kern_weight_pack(&w[h], plain[h], KERN_F32, s->k, s->n, s->k, dtype, memory, c->pools[1], caps, &em) != ERR_OK)
			printf("kern_weight_pack: %s\n", em.text);
	}
	return w;
}

/* One row of one head. */
static const char *head_right(const struct heads_case *s, const float *out, const float *x, const float *plain, double error)
{
	if (s->beside > 0 && memcmp(out, x + s->k, s->beside * sizeof(float)) != 0)
		return "what stands beside a product is not as it was";
	for (u32 n = 0; n < s->n; n++) {
		double want = 0, size = 1e-30;
		for (u32 k = 0; k < s->k; k++) {
			double term = (double)x[k] * plain[(size_t)n * s->k + k];
			want += term;
			size += fabs(term);
		}
		const char *problem = check_close(&out[s->beside + n], &want, &size, 1, error);
		if (problem)
			return problem;
	}
	return NULL;
}

/* Each row of each head as the only one. */
static const char *heads_alone(struct check *c, u32 target, struct kern_ctx *ctx, const struct heads_case *s,
			       const struct kern_head_matmul_args *a)
{
	struct kern_head_matmul_args one = *a;
	const size_t width = s->beside + s->n;
	one.out = check_alloc(c, width * sizeof(float));
	one.tokens = one.heads = 1;
	for (u32 t = 0; t < s->tokens; t++)
		for (u32 h = 0; h < s->heads; h++) {
			one.x = a->x + (size_t)t * a->x_stride + h * a->x_apart;
			one.w = &a->w[h];
			if (c->targets[target].ops.head_matmul(ctx, &one) != ERR_OK)
				return "an error";
			if (memcmp(one.out, a->out + (size_t)t * a->out_stride + h * a->out_apart, width * sizeof(float)) != 0)
				return "a row alone gives other bits than among others";
		}
	return NULL;
}

/* Runs it into `out`, and whether what lies between heads is as it was. */
static const char *heads_run(struct check *c, u32 target, struct kern_ctx *ctx, struct kern_head_matmul_args *a, float *out, size_t count)
{
	const u32 width = a->beside + a->w->n;
	float *before = check_alloc(c, count * sizeof(float));
	memcpy(before, out, count * sizeof(float));
	a->out = out;
	if (c->targets[target].ops.head_matmul(ctx, a) != ERR_OK)
		return "an error";
	for (size_t i = 0; i < count; i++) {
		u32 in_row = (u32)(i % a->out_stride), head = in_row / a->out_apart;
		if ((head >= a->heads || in_row % a->out_apart >= width) && memcmp(&before[i], &out[i], sizeof(float)) != 0)
			return "what is no head's was written";
	}
	return NULL;
}

static void heads_case(struct check *c, u32 target, const struct heads_case *s)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	const struct kern_limits limits = {
		.tokens = s->tokens, .heads = s->heads, .kv_heads = 1, .head_dim = 2, .hidden = s->k, .attended = s->k};
	float *plain[HEADS_MOST], *out[CHECK_RUNS];
	const char *problem = NULL;
	struct kern_ctx ctx;
	struct kern_head_matmul_args a = {.w = pack_heads(c, s, c->targets[target].caps, plain),
					  .tokens = s->tokens,
					  .heads = s->heads,
					  .beside = s->beside,
					  .x_apart = s->k + s->beside + LOOSE,
					  .out_apart = s->n + s->beside + LOOSE,
					  .ops = ops};
	a.x_stride = s->heads * a.x_apart + LOOSE;
	a.out_stride = s->heads * a.out_apart + LOOSE;
	const size_t count = (size_t)s->tokens * a.out_stride;
	a.x = check_floats(c, (size_t)s->tokens * a.x_stride, false);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		out[run] = check_alloc(c, count * sizeof(float));
		problem = heads_run(c, target, &ctx, &a, out[run], count);
		if (!problem && memcmp(out[0], out[run], count * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	const bool rounds = s->bf16 && (c->targets[target].caps & (KERN_CAP_AVX512_BF16 | KERN_CAP_AMX));
	const double error = (rounds ? 0x1p-8 : 0) + 0x1p-24 * (4 + 3 * sqrt(s->k));
	for (u32 t = 0; t < s->tokens && !problem; t++)
		for (u32 h = 0; h < s->heads && !problem; h++)
			problem = head_right(s, a.out + (size_t)t * a.out_stride + h * a.out_apart,
					     a.x + (size_t)t * a.x_stride + h * a.x_apart, plain[h], error);
	if (!problem)
		problem = heads_alone(c, target, &ctx, s, &a);
	check_case_end(c, problem, "head_matmul=%s/%s %s n=%u k=%u tokens=%u heads=%u beside=%u", ops->head_matmul_variant,
		       ops->matmul_variant, s->bf16 ? "bf16" : "f32", s->n, s->k, s->tokens, s->heads, s->beside);
}

void check_heads(struct check *c)
{
	static const u32 shapes[][2] = {{1, 1}, {17, 33}, {64, 64}, {70, 255}, {512, 128}}, tokens[] = {0, 1, 2, 17, 50, 300};
	for (u32 i = 0; i < c->target_count; i++)
		for (u32 s = 0; s < COUNT_OF(shapes) && CHECK_DISTINCT(c, i, matmul); s++)
			for (u32 t = 0; t < COUNT_OF(tokens) && (tokens[t] < 300 || s == 1); t++)
				for (u32 bits = 0; bits < 4; bits++) {
					struct heads_case one = {shapes[s][0],	     shapes[s][1], tokens[t], 1 + (s + t) % HEADS_MOST,
								 bits & 2 ? 6 : 0, bits & 1};
					heads_case(c, i, &one);
				}
}
