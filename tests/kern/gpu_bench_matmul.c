/* Times of matrix products of models of 8e9 and 1e9 weights, and of a mixture of experts. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "kernels/weight_device_priv.h"
#include "tests/kern/gpu_bench.h"

struct product {
	struct kern_weight w;
	struct kern_matmul_args a;
	struct kern_matmul_fusion fusion;
	size_t bytes; /* of the weight */
};

static enum err queue_product(struct gpu_bench *b, void *arg, u32 i)
{
	struct product *p = arg;

	p->w.data = gpu_bench_place(b, p->bytes, i);
	return b->d.ops.matmul(&b->d.ctx, &p->a);
}

/* What notes on the design expected, as shares of the ceiling: few tokens by the kernel that reads the weight
 * once, more by cuBLASLt. */
static void predict(struct gpu_case *c, const struct product *p)
{
	const bool narrow = p->w.k <= 2048;

	if (p->a.tokens <= 8) {
		c->predicted_low = narrow ? 0.75 : 0.85;
		c->predicted_high = narrow ? 0.85 : 0.90;
	} else if (p->a.tokens <= 16) {
		c->predicted_low = c->predicted_high = narrow ? 0.75 : 0.80;
	} else if (p->a.tokens <= 128) {
		c->predicted_low = 0.70;
		c->predicted_high = 0.85;
	} else if (p->a.tokens >= 512) {
		c->predicted_low = 0.85;
		c->predicted_high = 0.92;
	}
	if (p->w.dtype != KERN_BF16) /* only the width of 4 bits was thought about */
		c->predicted_low = c->predicted_high = 0;
	if (weight_device_is_int4(p->w.dtype) && p->a.tokens <= 16) {
		c->predicted_low = 0.75;
		c->predicted_high = 0.80;
	}
}

/* Where the engine has a product go to. */
enum into { BF16, F32, STREAM }; /* STREAM: added, in floats */

struct matrix {
	const char *model, *what;
	u32 n, k;
	enum into into;
};

static void product_case(struct gpu_bench *b, const struct matrix *m, u32 tokens, enum kern_dtype type)
{
	const u32 n = m->n, k = m->k;
	struct product p = {.w = {.n = n, .k = k, .dtype = type, .packed = KERN_LAYOUT_DEVICE},
			    .bytes = kern_weight_device_bytes(n, k, type)};
	struct gpu_case c = {.op = "matmul", .bound = tokens <= 256 ? GPU_READ : GPU_COMPUTE};

	p.a = (struct kern_matmul_args){.w = &p.w,
					.tokens = tokens,
					.x_stride = k,
					.out_stride = n,
					.accumulate = m->into == STREAM,
					.dtype = KERN_BF16,
					.out_dtype = m->into == BF16 ? KERN_BF16 : KERN_F32};
	p.a.x_bf16 = gpu_bench_place(b, (size_t)tokens * k * sizeof(u16), 0);
	p.a.out = (float *)(void *)b->out;
	p.w.data = gpu_bench_place(b, p.bytes, 0);
	c.work = c.bound == GPU_READ ? (double)p.bytes : 2.0 * n * k * tokens;
	predict(&c, &p);
	snprintf(c.shape, sizeof(c.shape), "%s %s %s n=%u k=%u tokens=%u", m->model, m->what,
		 kern_dtype_name(type), n, k, tokens);
	if (tokens > 16 && type == KERN_BF16) {
		const enum err e = kern_cuda_tune(&b->d.ctx, &p.a);
		if (e != ERR_OK) {
			gpu_bench_failed(b, c.shape, err_text(e));
			return;
		}
	}
	gpu_bench_case(b, &c, queue_product, &p);
}

static void dense_cases(struct gpu_bench *b)
{
	static const struct matrix large[] = {
		{"8b", "qkv", 6144, 4096, F32},	     {"8b", "out", 4096, 4096, STREAM},
		{"8b", "gate_up", 28672, 4096, BF16}, {"8b", "down", 4096, 14336, STREAM},
		{"8b", "head", 128256, 4096, BF16},  {"1b", "qkv", 3072, 2048, F32},
		{"1b", "out", 2048, 2048, STREAM},   {"1b", "gate_up", 16384, 2048, BF16},
		{"1b", "down", 2048, 8192, STREAM},
	};
	static const struct matrix little[] = {{"tiny", "qkv", 96, 64, F32}, {"tiny", "down", 64, 96, STREAM}};
	static const u32 many[] = {1, 8, 16, 32, 64, 128, 256, 2048}, few[] = {1, 20};
	static const enum kern_dtype types[] = {KERN_I8, KERN_F8E4M3, KERN_I4_128};
	const struct matrix *m = b->small ? little : large;
	const u32 *tokens = b->small ? few : many, count = b->small ? COUNT_OF(few) : COUNT_OF(many);

	for (u32 i = 0; i < (b->small ? COUNT_OF(little) : COUNT_OF(large)); i++)
		for (u32 t = 0; t < count; t++)
			product_case(b, &m[i], tokens[t], KERN_BF16);
	if (!b->small)
		product_case(b, &m[2], 8192, KERN_BF16);
	for (u32 i = 0; i < COUNT_OF(types); i++)
		for (u32 t = 0; t < count; t++)
			if (tokens[t] <= 256 || tokens[t] == 2048)
				product_case(b, &m[b->small ? 0 : 2], tokens[t], types[i]);
}

/* ---------------------------------------------------------------- what is fused with a product of few tokens
 */

static void fused_case(struct gpu_bench *b, u32 n, u32 k, u32 tokens)
{
	struct product p = {.w = {.n = n, .k = k, .dtype = KERN_BF16, .packed = KERN_LAYOUT_DEVICE},
			    .bytes = kern_weight_device_bytes(n, k, KERN_BF16),
			    .fusion = {.norm_eps = 1e-5f, .act_mul = true, .act = KERN_SILU}};
	struct gpu_case c = {
		.op = "matmul with norm and act_mul", .bound = GPU_READ, .work = (double)p.bytes};

	p.fusion.norm_weight = gpu_bench_place(b, k * sizeof(float), 0);
	p.a = (struct kern_matmul_args){.w = &p.w,
					.tokens = tokens,
					.x_stride = k,
					.out_stride = n / 2,
					.dtype = KERN_F32,
					.out_dtype = KERN_BF16,
					.fusion = &p.fusion};
	p.a.x = gpu_bench_place(b, (size_t)tokens * k * sizeof(float), 0);
	p.a.out_bf16 = (u16 *)(void *)b->out;
	predict(&c, &p);
	snprintf(c.shape, sizeof(c.shape), "bfloat16 n=%u k=%u tokens=%u", n, k, tokens);
	gpu_bench_case(b, &c, queue_product, &p);
}

/* ---------------------------------------------------------------- a mixture of experts */

enum { EXPERTS_MAX = 128 };

struct mixture {
	struct kern_moe_route_args route;
	struct kern_moe_matmul_args up;
	struct kern_moe_combine_args combine;
	struct kern_weight weights[EXPERTS_MAX];
	size_t bytes; /* of an expert */
};

static enum err queue_route(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.ops.moe_route(&b->d.ctx, &((struct mixture *)arg)->route);
}

static enum err queue_experts(struct gpu_bench *b, void *arg, u32 i)
{
	struct mixture *m = arg;
	const u8 *all = gpu_bench_place(b, m->up.experts * m->bytes, i);

	for (u32 e = 0; e < m->up.experts; e++)
		m->weights[e].data = all + e * m->bytes;
	return b->d.ops.moe_matmul(&b->d.ctx, &m->up);
}

static enum err queue_combine(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.ops.moe_combine(&b->d.ctx, &((struct mixture *)arg)->combine);
}

struct mixture_shape {
	u32 tokens, experts, top, n, k;
	enum kern_dtype type;
};

static void combine_case(struct gpu_bench *b, const struct mixture_shape *s, struct mixture *m)
{
	const u32 count = s->tokens * s->top;
	struct gpu_case c = {.op = "moe_combine",
			     .bound = GPU_READ,
			     .work = (double)s->k * (count * sizeof(u16) + 2.0 * s->tokens * sizeof(float))};

	m->combine = (struct kern_moe_combine_args){.weights = m->route.weights,
						    .assignments = m->route.assignments,
						    .tokens = s->tokens,
						    .top = s->top,
						    .hidden = s->k,
						    .accumulate = true,
						    .dtype = KERN_BF16};
	m->combine.x_bf16 = gpu_bench_place(b, (size_t)count * s->k * sizeof(u16), 0);
	m->combine.out = (float *)(void *)b->out;
	snprintf(c.shape, sizeof(c.shape), "tokens=%u top=%u hidden=%u", s->tokens, s->top, s->k);
	gpu_bench_case(b, &c, queue_combine, m);
}

/* Tiles read weights as fast as memory gives them while an expert has few tokens. With many the matrix unit counts,
 * of which its synchronous instructions reach some 60 % on Hopper, and what widening quantized weights leaves of it. */
static void experts_case(struct gpu_bench *b, const struct mixture_shape *s, struct mixture *m)
{
	const u32 count = s->tokens * s->top, mean = count / s->experts;
	struct gpu_case c = {.op = "moe_matmul", .bound = mean < 128 ? GPU_READ : GPU_COMPUTE};
	u32 starts[EXPERTS_MAX + 1], busy = 0;

	for (u32 e = 0; e < s->experts; e++)
		m->weights[e] = (struct kern_weight){
			.n = s->n, .k = s->k, .dtype = s->type, .packed = KERN_LAYOUT_DEVICE};
	m->bytes = kern_weight_device_bytes(s->n, s->k, s->type);
	m->up = (struct kern_moe_matmul_args){.source = m->route.tokens_of,
					      .w = m->weights,
					      .expert_start = m->route.expert_start,
					      .experts = s->experts,
					      .assignments = count,
					      .tokens = s->tokens,
					      .dtype = KERN_BF16};
	m->up.x_bf16 = gpu_bench_place(b, (size_t)s->tokens * s->k * sizeof(u16), 0);
	m->up.out_bf16 = (u16 *)(void *)b->out;
	(void)cudaMemcpy(starts, m->route.expert_start, (s->experts + 1) * sizeof(u32), cudaMemcpyDeviceToHost);
	for (u32 e = 0; e < s->experts; e++)
		busy += starts[e + 1] > starts[e];
	c.work = c.bound == GPU_READ ? (double)m->bytes * busy : 2.0 * s->n * s->k * count;
	if (mean >= KERN_EXPERT_TILED && s->type == KERN_BF16) {
		c.predicted_low = c.bound == GPU_READ ? 0.70 : 0.45;
		c.predicted_high = c.bound == GPU_READ ? 0.85 : 0.60;
	}
	snprintf(c.shape, sizeof(c.shape), "%s n=%u k=%u tokens=%u experts=%u of %u", kern_dtype_name(s->type), s->n,
		 s->k, s->tokens, busy, s->experts);
	gpu_bench_case(b, &c, queue_experts, m);
}

/* Random logits, so that experts have unequal work; how many distinct ones have any decides what is read. */
static void mixture_case(struct gpu_bench *b, const struct mixture_shape *s)
{
	struct device *d = &b->d;
	struct mixture m = {.bytes = 0};
	const u32 kept = d->buffer_count, count = s->tokens * s->top;
	struct gpu_case c = {.op = "moe_route",
			     .bound = GPU_READ,
			     .work = (double)s->tokens * s->experts * sizeof(float)};
	float *logits;

	(void)device_floats(d, (size_t)s->tokens * s->experts, false, &logits);
	m.route = (struct kern_moe_route_args){
		.logits = logits, .tokens = s->tokens, .experts = s->experts, .top = s->top, .normalize = true};
	m.route.weights = device_alloc(d, count * sizeof(float));
	m.route.assignments = device_alloc(d, count * sizeof(u32));
	m.route.tokens_of = device_alloc(d, count * sizeof(u32));
	m.route.expert_start = device_alloc(d, (s->experts + 1) * sizeof(u32));
	if (s->type == KERN_BF16) {
		snprintf(c.shape, sizeof(c.shape), "tokens=%u experts=%u top=%u", s->tokens, s->experts, s->top);
		gpu_bench_case(b, &c, queue_route, &m);
	} else if (d->ops.moe_route(&d->ctx, &m.route) != ERR_OK || cudaDeviceSynchronize() != cudaSuccess) {
		gpu_bench_failed(b, "moe_route", "the experts of a benchmark");
	}
	experts_case(b, s, &m);
	if (s->type == KERN_BF16)
		combine_case(b, s, &m);
	(void)device_release(d, kept);
	(void)check_release(&d->check, 0);
}

/* Layers of Qwen3-30B-A3B and Mixtral 8x7B, up to a long prefill. */
static void mixture_cases(struct gpu_bench *b)
{
	static const struct mixture_shape large[] = {
		{1, 128, 8, 1536, 2048, KERN_BF16},	{16, 128, 8, 1536, 2048, KERN_BF16},
		{128, 128, 8, 1536, 2048, KERN_BF16},	{256, 128, 8, 1536, 2048, KERN_BF16},
		{1024, 128, 8, 1536, 2048, KERN_BF16},	{4096, 128, 8, 1536, 2048, KERN_BF16},
		{4096, 128, 8, 1536, 2048, KERN_I8},	{4096, 128, 8, 1536, 2048, KERN_F8E4M3},
		{4096, 128, 8, 1536, 2048, KERN_I4_128}, {256, 128, 8, 1536, 2048, KERN_I4_128},
		{16, 8, 2, 28672, 4096, KERN_BF16},	{64, 8, 2, 28672, 4096, KERN_BF16},
		{256, 8, 2, 28672, 4096, KERN_BF16},	{2048, 8, 2, 28672, 4096, KERN_BF16},
		{2048, 8, 2, 28672, 4096, KERN_I8},	{64, 8, 2, 28672, 4096, KERN_I8},
	};
	static const struct mixture_shape little[] = {
		{5, 4, 2, 32, 64, KERN_BF16}, {30, 4, 2, 32, 64, KERN_BF16}, {100, 4, 2, 32, 64, KERN_I8}};
	const struct mixture_shape *shapes = b->small ? little : large;

	for (u32 i = 0; i < (b->small ? COUNT_OF(little) : COUNT_OF(large)); i++)
		mixture_case(b, &shapes[i]);
}

void gpu_bench_matmul(struct gpu_bench *b)
{
	dense_cases(b);
	if (b->small) {
		fused_case(b, 64, 96, 3);
	} else {
		fused_case(b, 28672, 4096, 1);
		fused_case(b, 28672, 4096, 8); /* what the engine fuses at most: GPU_NORM_BYTES */
		fused_case(b, 28672, 4096, 16);
	}
	mixture_cases(b);
}
