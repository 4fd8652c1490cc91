/* Checks of matrix products with what surrounds them: the bits of the ops one after the other. */
#include <string.h>

#include "tests/kern/check_matmul.h"

/* ---------------------------------------------------------------- the activation */

enum { TILES_UNFUSED_TOKENS = 64, TILES_GROUP = 64 };

/* More rows than decoding has, and a variant that computes them in blocks: tiles (AMX) do so with more rows where groups' weights in 4 bits are theirs. */
static bool matmul_blocks(const struct check_target *t, const struct matmul_case *m)
{
	bool floats = m->dtype == KERN_BF16 || m->dtype == KERN_F32;
	u32 needed = floats ? KERN_CAP_AVX512 : KERN_CAP_AVX512_VNNI;
	bool nibbles = m->dtype != KERN_I8 && kern_dtype_group(m->dtype) >= TILES_GROUP;
	bool avx2 = (t->caps & KERN_CAP_AVX2) && !(t->caps & KERN_CAP_AVX512) && m->dtype != KERN_I4_STEPS;
	u32 unfused = nibbles && (t->caps & KERN_CAP_AMX) ? TILES_UNFUSED_TOKENS : KERN_CPU_UNFUSED_TOKENS;
	return (avx2 || (t->caps & needed)) && m->tokens > unfused;
}

/* Whole panels of gate and up as well. */
static bool matmul_fuses(const struct check_target *t, const struct matmul_case *m)
{
	return matmul_blocks(t, m) && m->n % 64 == 0 && !m->accumulate;
}

/* What the product and then the activation write, to the bit; where that is refused, nothing. */
static const char *fused_result(const struct check_target *t, const struct matmul_case *m, const float *before,
				const float *apart, const float *out, u32 stride, enum err e)
{
	if (!matmul_fuses(t, m)) {
		if (e != ERR_UNSUPPORTED)
			return "no refusal of a fusion that it does not have";
		return memcmp(before, out, (size_t)m->tokens * stride * sizeof(float)) ? "wrote though it refused" : NULL;
	}
	if (e != ERR_OK)
		return "an error for a fusion that it has";
	for (u32 row = 0; row < m->tokens; row++) {
		const float *got = out + (size_t)row * stride, *was = before + (size_t)row * stride;
		if (memcmp(got, apart + (size_t)row * (m->n / 2), m->n / 2 * sizeof(float)) != 0)
			return "other bits than product and activation apart";
		if (memcmp(got + m->n / 2, was + m->n / 2, (stride - m->n / 2) * sizeof(float)) != 0)
			return "wrote between rows";
	}
	return NULL;
}

static void fused_case(struct check *c, u32 target, const struct matmul_case *m, enum kern_activation act)
{
	const struct check_target *t = &c->targets[target];
	const struct kern_matmul_fusion fusion = {.act_mul = true, .act = act};
	struct kern_limits limits = {.tokens = m->tokens, .hidden = m->k, .intermediate = m->n};
	u32 size = m->n / 2, stride = size + check_random(c, 3);
	size_t count = (size_t)m->tokens * stride;
	float *product = check_alloc(c, (size_t)m->tokens * m->n * sizeof(float));
	float *apart = check_alloc(c, (size_t)m->tokens * size * sizeof(float));
	float *before = check_floats(c, count, false), *out = check_alloc(c, count * sizeof(float));
	struct check_matrix w;
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &limits, 1);
	check_matrix_make(c, m, t->caps, &w);
	struct kern_matmul_args a = {.w = &w.packed, .tokens = m->tokens, .x_stride = m->k, .out_stride = m->n, .out = product};
	a.x = check_floats(c, (size_t)m->tokens * m->k, false);
	a.bias = m->bias ? check_floats(c, m->n, false) : NULL;
	struct kern_act_mul_args activation = {
		.out = apart, .gate_up = product, .tokens = m->tokens, .size = size, .act = act};
	enum err e = t->ops.matmul(&ctx, &a);
	if (!e)
		e = t->ops.act_mul(&ctx, &activation);
	const char *problem = e ? "an error of the ops apart" : NULL;
	a.fusion = &fusion;
	a.out = out;
	a.out_stride = stride;
	a.accumulate = m->accumulate;
	memcpy(out, before, count * sizeof(float));
	e = t->ops.matmul(&ctx, &a);
	if (!problem)
		problem = fused_result(t, m, before, apart, out, stride, e);
	kern_weight_fini(&w.packed);
	check_case_end(c, problem, "matmul=%s with act_mul %s n=%u k=%u tokens=%u act=%d bias=%d accumulate=%d",
		       t->ops.matmul_variant, kern_dtype_name(m->dtype), m->n, m->k, m->tokens, act, m->bias, m->accumulate);
}

static void fused_cases(struct check *c, u32 target)
{
	/* The second has as many pieces of k as half a tile's rows, eleven: where activations are made beside them, two rows at a time, the last row's is made
	 * beside the last one. The last three are refused: too few rows, half a panel, sums that are added to. */
	static const struct matmul_case cases[] = {
		{.n = 64, .k = 33, .tokens = 33},   {.n = 320, .k = 352, .tokens = 66}, {.n = 320, .k = 200, .tokens = 70, .bias = true},
		{.n = 192, .k = 1100, .tokens = 40, .bias = true}, {.n = 128, .k = 64, .tokens = 300},
		{.n = 128, .k = 64, .tokens = 32},  {.n = 96, .k = 64, .tokens = 40},
		{.n = 64, .k = 64, .tokens = 40, .accumulate = true}};
	static const enum kern_activation acts[] = {KERN_SILU, KERN_GELU_TANH, KERN_GELU, KERN_RELU};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
			struct matmul_case m = cases[i];
			m.dtype = check_matmul_types[d];
			fused_case(c, target, &m, acts[(i + d) % COUNT_OF(acts)]);
		}
}

/* ---------------------------------------------------------------- the norm in front */

/* A norm and then the product, apart and at once; where that is refused, nothing written. */
static const char *norm_runs(struct check *c, u32 target, const struct matmul_case *m, struct kern_matmul_args *a, const float *before)
{
	const struct check_target *t = &c->targets[target];
	const struct kern_limits limits = {.tokens = m->tokens, .hidden = m->k, .intermediate = m->n};
	const size_t count = (size_t)m->tokens * a->out_stride, inputs = (size_t)m->tokens * m->k;
	const float *weight = check_floats(c, m->k, false), eps = 1e-5f;
	const struct kern_matmul_fusion fusion = {.norm_weight = weight, .norm_eps = eps};
	float *x = check_floats(c, inputs, m->outliers), *kept = check_alloc(c, inputs * sizeof(float));
	float *normed = check_alloc(c, inputs * sizeof(float)), *want = check_alloc(c, count * sizeof(float));
	struct kern_rmsnorm_args norm = {.out = normed, .x = x, .weight = weight, .eps = eps, .tokens = m->tokens, .hidden = m->k};
	struct kern_matmul_args apart = *a;
	struct kern_ctx ctx;
	memcpy(kept, x, inputs * sizeof(float));
	memcpy(want, before, count * sizeof(float));
	apart.x = normed;
	apart.out = want;
	a->x = x;
	a->fusion = &fusion;
	check_ctx(c, &ctx, &limits, 1);
	if (t->ops.rmsnorm(&ctx, &norm) != ERR_OK || t->ops.matmul(&ctx, &apart) != ERR_OK)
		return "an error of the ops apart";
	for (u32 run = 0; run <= CHECK_POOLS; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		memcpy(a->out, before, count * sizeof(float));
		enum err e = t->ops.matmul(&ctx, a);
		if (e != (matmul_blocks(t, m) && !m->order ? ERR_OK : ERR_UNSUPPORTED))
			return "another answer than whether it has that";
		if (memcmp(a->out, e ? before : want, count * sizeof(float)) != 0)
			return "other bits than norm and product apart, or written though refused";
	}
	return memcmp(x, kept, inputs * sizeof(float)) ? "wrote to the stream" : NULL;
}

static void norm_case(struct check *c, u32 target, const struct matmul_case *m)
{
	const struct check_target *t = &c->targets[target];
	const u32 stride = m->n + check_random(c, 3);
	const size_t count = (size_t)m->tokens * stride;
	struct check_matrix w;
	check_matrix_make(c, m, t->caps, &w);
	struct kern_matmul_args a = {.w = &w.packed, .tokens = m->tokens, .x_stride = m->k, .out_stride = stride, .accumulate = m->accumulate};
	a.out = check_alloc(c, count * sizeof(float));
	a.bias = m->bias ? check_floats(c, m->n, false) : NULL;
	const char *problem = norm_runs(c, target, m, &a, check_floats(c, count, false));
	kern_weight_fini(&w.packed);
	check_case_end(c, problem, "matmul=%s of a norm %s n=%u k=%u tokens=%u bias=%d accumulate=%d order=%d", t->ops.matmul_variant,
		       kern_dtype_name(m->dtype), m->n, m->k, m->tokens, m->bias, m->accumulate, m->order);
}

static void norm_cases(struct check *c, u32 target)
{
	/* The last two are refused: inputs in an order of their own, too few rows. */
	static const struct matmul_case cases[] = {{.n = 40, .k = 31, .tokens = 33, .bias = true},
						   {.n = 70, .k = 576, .tokens = 40, .outliers = true},
						   {.n = 33, .k = 1000, .tokens = 128, .accumulate = true},
						   {.n = 64, .k = 2085, .tokens = 71, .bias = true},
						   {.n = 32, .k = 384, .tokens = 300},
						   {.n = 40, .k = 128, .tokens = 64, .order = true},
						   {.n = 40, .k = 128, .tokens = 32}};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
			struct matmul_case m = cases[i];
			m.dtype = check_matmul_types[d];
			m.order = m.order && kern_dtype_group(m.dtype) > 0;
			norm_case(c, target, &m);
		}
}

/* ---------------------------------------------------------------- and the next product */

/* gate and up, [2 * m->k of down][hidden], the activation, and down, [n][k]. */
struct chain {
	struct check_matrix gate_up, down;
	struct kern_matmul_args first, second;
	struct kern_limits limits;
	float *before; /* in the way of the second's results */
	size_t count;
};

static void chain_make(struct check *c, u32 caps, const struct matmul_case *m, u32 hidden, struct chain *out)
{
	struct matmul_case gate_up = {.n = 2 * m->k, .k = hidden, .tokens = m->tokens, .dtype = m->dtype};
	u32 stride = m->n + check_random(c, 3);
	check_matrix_make(c, &gate_up, caps, &out->gate_up);
	check_matrix_make(c, m, caps, &out->down);
	out->limits = (struct kern_limits){.tokens = m->tokens, .hidden = hidden > m->n ? hidden : m->n, .intermediate = m->k};
	out->count = (size_t)m->tokens * stride;
	out->before = check_floats(c, out->count, false);
	out->first = (struct kern_matmul_args){.out = check_alloc(c, (size_t)m->tokens * m->k * sizeof(float)),
					       .x = check_floats(c, (size_t)m->tokens * hidden, m->outliers),
					       .w = &out->gate_up.packed,
					       .bias = m->bias ? check_floats(c, 2 * m->k, false) : NULL,
					       .tokens = m->tokens,
					       .x_stride = hidden,
					       .out_stride = m->k};
	out->second = (struct kern_matmul_args){.x = out->first.out,
						.w = &out->down.packed,
						.bias = m->bias ? check_floats(c, m->n, false) : NULL,
						.tokens = m->tokens,
						.x_stride = m->k,
						.out_stride = stride,
						.accumulate = m->accumulate};
}

/* The product, but for the first run of a norm, with its activation, and the other, apart and at once. Where nothing is fused: that both ways refuse. */
static const char *chain_runs(struct check *c, u32 target, const struct matmul_case *m, struct chain *chain, enum kern_activation act)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	struct kern_matmul_fusion apart = {.norm_eps = 1e-5f, .act_mul = true, .act = act}, at_once;
	float *want = check_alloc(c, chain->count * sizeof(float)), *got = check_alloc(c, chain->count * sizeof(float));
	struct kern_ctx ctx;
	for (u32 run = 0; run <= CHECK_POOLS; run++) {
		apart.norm_weight = run > 0 ? check_floats(c, chain->first.w->k, false) : NULL;
		at_once = apart;
		check_ctx(c, &ctx, &chain->limits, run % CHECK_POOLS);
		memcpy(want, chain->before, chain->count * sizeof(float));
		memcpy(got, chain->before, chain->count * sizeof(float));
		chain->first.fusion = &apart;
		chain->second.out = want;
		enum err e = ops->matmul(&ctx, &chain->first);
		if (e == ERR_OK && ops->matmul(&ctx, &chain->second) != ERR_OK)
			return "an error of the second product";
		check_ctx(c, &ctx, &chain->limits, run % CHECK_POOLS);
		check_poison(chain->first.out, (size_t)m->tokens * m->k * sizeof(float));
		at_once.then = &chain->second;
		chain->first.fusion = &at_once;
		chain->second.out = got;
		if (ops->matmul(&ctx, &chain->first) != e)
			return "another error than without what follows";
		if (memcmp(want, got, chain->count * sizeof(float)) != 0)
			return "other bits than one after the other";
	}
	return NULL;
}

static void chain_case(struct check *c, u32 target, const struct matmul_case *m, u32 hidden, enum kern_activation act)
{
	const struct check_target *t = &c->targets[target];
	struct chain chain;
	chain_make(c, t->caps, m, hidden, &chain);
	const char *problem = chain_runs(c, target, m, &chain, act);
	kern_weight_fini(&chain.gate_up.packed);
	kern_weight_fini(&chain.down.packed);
	check_case_end(c, problem, "matmul=%s with act_mul and another %s hidden=%u k=%u n=%u tokens=%u act=%d bias=%d accumulate=%d order=%d",
		       t->ops.matmul_variant, kern_dtype_name(m->dtype), hidden, m->k, m->n, m->tokens, act, m->bias, m->accumulate, m->order);
}

static void chain_cases(struct check *c, u32 target)
{
	/* The second but last has k that is no whole group, the last inputs in an order of their own: they are not packed at once. */
	static const struct matmul_case cases[] = {
		{.n = 70, .k = 64, .tokens = 33, .accumulate = true},
		{.n = 40, .k = 128, .tokens = 64, .bias = true},
		{.n = 33, .k = 384, .tokens = 71, .accumulate = true, .outliers = true},
		{.n = 64, .k = 1280, .tokens = 130, .accumulate = true},
		{.n = 64, .k = 256, .tokens = 300, .bias = true},
		{.n = 64, .k = 128, .tokens = 525, .accumulate = true},
		{.n = 40, .k = 96, .tokens = 140, .accumulate = true},
		{.n = 40, .k = 128, .tokens = 140, .order = true}};
	static const u32 hidden[] = {33, 128, 200, 64, 1100, 96, 72, 64};
	static const enum kern_activation acts[] = {KERN_SILU, KERN_GELU_TANH, KERN_GELU, KERN_RELU};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
			struct matmul_case m = cases[i];
			m.dtype = check_matmul_types[d];
			m.order = m.order && kern_dtype_group(m.dtype) > 0;
			chain_case(c, target, &m, hidden[i], acts[(i + d) % COUNT_OF(acts)]);
		}
}

void check_fused(struct check *c)
{
	for (u32 i = 0; i < c->target_count; i++)
		if (CHECK_DISTINCT(c, i, matmul)) {
			fused_cases(c, i);
			norm_cases(c, i);
			chain_cases(c, i);
		}
}
