/* Checks of attention and block_copy against formulas in double, for every type of KV cache. */
#include <math.h>
#include <string.h>

#include "tests/kern/check_attention.h"

enum { BLOCKS = 64 };

/* ---------------------------------------------------------------- attention */

struct attention_case {
	u32 heads, kv_heads, head_dim, block_size;
	const u32 (*rows)[2]; /* context, queries */
	u32 row_count;
	enum kern_dtype type;
	bool outliers;
	u32 window;
	float soft_cap;
	bool sinks, chunked;
	bool slopes, slopes_rounded;
};

/* Whether the variant computes with products of bfloat16, hence queries and weights are rounded to it. Tiles (AMX) multiply 32 dimensions. */
static bool rounds_to_bf16(const struct check *c, u32 target, enum kern_dtype type, u32 head_dim)
{
	const char *variant = c->targets[target].ops.attention_variant;
	return type == KERN_BF16 && (strcmp(variant, "avx512_bf16") == 0 || (strncmp(variant, "amx", 3) == 0 && head_dim % 32 == 0));
}

/* Whether the variant has this type itself: objects for some instructions have the types that these are for, and pass others on to what is a
 * variant of its own. */
static bool has_type(const struct check *c, u32 target, enum kern_dtype type)
{
	const char *variant = c->targets[target].ops.attention_variant;
	if (strcmp(variant, "avx512_bf16") == 0 || strncmp(variant, "amx", 3) == 0)
		return type == KERN_BF16;
	if (strcmp(variant, "avx512_vnni") == 0 || strcmp(variant, "avx_vnni") == 0)
		return type == KERN_I8 || type == KERN_I16;
	return true;
}

/* As large as scores are, some far above them all and some far below. */
static float *attention_sinks(struct check *c, const struct attention_case *m)
{
	float *sinks = check_floats(c, m->heads, false);
	for (u32 h = 0; h < m->heads; h++)
		sinks[h] = sinks[h] * 4 + (h % 4 == 1 ? 60 : h % 4 == 3 ? -200 : 0);
	return sinks;
}

/* From those that let no far key count down to nearly none, of numbers of bfloat16, as all are where they are rounded; one is none. */
static float *attention_slopes(struct check *c, const struct attention_case *m)
{
	float *slopes = check_alloc(c, m->heads * sizeof(float));
	for (u32 h = 0; h < m->heads; h++)
		slopes[h] = h == 3 ? 0 : (h % 3 == 1 ? 1.4140625f : 1) / (float)(1u << (2 * h % 9));
	return slopes;
}

/* A cache in which only the keys of the rows are numbers, in blocks in random order. */
static void attention_inputs(struct check *c, const struct attention_case *m, struct kern_attention_args *a)
{
	u32 blocks = 1, tokens = 0, widest = 1, next = 0;
	u32 *start = check_alloc(c, (m->row_count + 1) * 4), *context = check_alloc(c, m->row_count * 4);
	for (u32 r = 0; r < m->row_count; r++) {
		u32 needed = (m->rows[r][0] + m->block_size - 1) / m->block_size;
		widest = needed > widest ? needed : widest;
		blocks += needed;
		start[r] = tokens;
		tokens += m->rows[r][1];
		context[r] = m->rows[r][0];
	}
	start[m->row_count] = tokens;
	*a = (struct kern_attention_args){.query_start = start, .context = context, .block_stride = widest};
	a->kv = (struct kern_kv){.dtype = m->type,
				 .block_size = m->block_size,
				 .kv_heads = m->kv_heads,
				 .head_dim = m->head_dim};
	check_kv_apart(c, &a->kv);
	check_kv_alloc(c, &a->kv, blocks);
	u32 *tables = check_alloc(c, (size_t)m->row_count * widest * 4), *order = check_alloc(c, blocks * 4);
	for (u32 i = 0; i < blocks; i++) {
		u32 j = check_random(c, i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	for (u32 r = 0; r < m->row_count; r++)
		for (u32 key = 0; key < context[r]; key++) {
			u32 at = r * widest + key / m->block_size, offset = key % m->block_size;
			if (offset == 0)
				tables[at] = order[next++];
			for (u32 h = 0; h < m->kv_heads; h++) {
				struct check_kv_place p = {false, tables[at], h, offset, 0};
				check_kv_fill(c, &a->kv, p, m->outliers ? 30 : 1);
				p.value = true;
				check_kv_fill(c, &a->kv, p, 1);
			}
		}
	a->q = check_floats(c, (size_t)tokens * m->heads * m->head_dim, m->outliers);
	a->block_tables = tables;
	a->rows = m->row_count;
	a->tokens = tokens;
	a->heads = m->heads;
	a->scale = 1 / sqrtf((float)m->head_dim) * (m->outliers ? 0.2f : 2);
	a->soft_cap = m->soft_cap;
	a->window = m->window;
	a->chunked = m->chunked;
	a->sinks = m->sinks ? attention_sinks(c, m) : NULL;
	a->slopes = m->slopes ? attention_slopes(c, m) : NULL;
	a->slopes_rounded = m->slopes_rounded;
}

/* The same queries as rows of one query each, a step for every one: decode instead of prefill. */
static const char *attention_alone(struct check *c, u32 target, const struct kern_attention_args *a,
				   const struct kern_limits *limits)
{
	size_t width = (size_t)a->heads * a->kv.head_dim;
	float *alone = check_alloc(c, a->tokens * width * 4);
	for (u32 r = 0; r < a->rows; r++)
		for (u32 t = a->query_start[r]; t < a->query_start[r + 1]; t++) {
			struct kern_attention_args one = *a;
			struct kern_ctx ctx;
			const u32 start[2] = {0, 1};
			u32 context = a->context[r] - (a->query_start[r + 1] - t) + 1;
			one.out = alone + t * width;
			one.q = a->q + t * width;
			one.query_start = start;
			one.context = &context;
			one.block_tables = a->block_tables + (size_t)r * a->block_stride;
			one.rows = one.tokens = 1;
			check_ctx(c, &ctx, limits, t % CHECK_POOLS);
			if (c->targets[target].ops.attention(&ctx, &one) != ERR_OK)
				return "an error alone";
			if (memcmp(alone + t * width, a->out + t * width, width * 4) != 0)
				return "a query alone gives other bits than in its chunk";
		}
	return NULL;
}

/* Outputs that take the place of their queries, among other numbers, have the bits of others. */
static const char *attention_in_place(struct check *c, u32 target, const struct kern_attention_args *apart, const struct kern_limits *limits)
{
	const size_t width = (size_t)apart->heads * apart->kv.head_dim, beside = 2 * (size_t)apart->kv.head_dim, stride = width + beside;
	for (u32 pool = 0; pool < CHECK_POOLS; pool++) {
		struct kern_attention_args a = *apart;
		struct kern_ctx ctx;
		float *q = check_alloc(c, a.tokens * stride * sizeof(float)), *others = check_floats(c, a.tokens * beside, false);
		for (u32 t = 0; t < a.tokens; t++) {
			memcpy(q + t * stride, apart->q + t * width, width * sizeof(float));
			memcpy(q + t * stride + width, others + t * beside, beside * sizeof(float));
		}
		a.q = a.out = q;
		a.stride = (u32)stride;
		check_ctx(c, &ctx, limits, pool);
		if (c->targets[target].ops.attention(&ctx, &a) != ERR_OK)
			return "an error in place";
		for (u32 t = 0; t < a.tokens; t++) {
			if (memcmp(q + t * stride, apart->out + t * width, width * sizeof(float)) != 0)
				return "outputs in the place of queries have other bits";
			if (memcmp(q + t * stride + width, others + t * beside, beside * sizeof(float)) != 0)
				return "wrote beside the place of queries";
		}
	}
	return NULL;
}

static void attention_case(struct check *c, u32 target, const struct attention_case *m)
{
	struct kern_attention_args a;
	const char *problem = NULL;
	float *out[CHECK_RUNS];
	if (!has_type(c, target, m->type) && m->heads > 1)
		return; /* with one head are enough for passing on */
	attention_inputs(c, m, &a);
	struct kern_limits limits = {.tokens = a.tokens,
				     .rows = a.rows,
				     .heads = m->heads,
				     .kv_heads = m->kv_heads,
				     .head_dim = m->head_dim};
	for (u32 r = 0; r < a.rows; r++)
		limits.context = a.context[r] > limits.context ? a.context[r] : limits.context;
	size_t count = (size_t)a.tokens * m->heads * m->head_dim;
	bool rounded = rounds_to_bf16(c, target, m->type, m->head_dim);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		a.out = out[run] = check_alloc(c, count * 4);
		if (c->targets[target].ops.attention(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(out[0], out[run], count * 4) != 0)
			problem = "another run gives other bits";
	}
	const u32 group = m->heads / m->kv_heads;
	for (u32 row = 0; row < a.rows * m->kv_heads && !problem; row++) {
		const u32 r = row / m->kv_heads, first = row % m->kv_heads * group;
		struct check_attention_row cache = check_attention_read(&a, r, row % m->kv_heads);
		for (u32 i = 0; i < m->rows[r][1] * group && !problem; i++) {
			struct check_attention_want want;
			const u32 h = first + i % group;
			size_t at = ((size_t)a.query_start[r] + i / group) * m->heads + h;
			check_attention_want(&a, &cache, r, i / group, h, rounded, &want);
			problem = check_attention_close(&a, out[0] + at * m->head_dim, &want, rounded, m->outliers);
		}
		check_attention_free(&cache);
	}
	if (!problem)
		problem = attention_alone(c, target, &a, &limits);
	if (!problem)
		problem = attention_in_place(c, target, &a, &limits);
	check_case_end(c, problem,
		       "attention=%s %s heads=%u/%u head_dim=%u block=%u rows=%u context=%u queries=%u "
		       "outliers=%d window=%u cap=%g sinks=%d chunked=%d slopes=%d",
		       c->targets[target].ops.attention_variant, check_kv_name(m->type), m->heads,
		       m->kv_heads, m->head_dim, m->block_size, m->row_count, m->rows[0][0], m->rows[0][1],
		       m->outliers, m->window, (double)m->soft_cap, m->sinks, m->chunked, m->slopes + m->slopes_rounded);
}

/* Scores of any size: each key's is the query's first number times one common to all keys, plus a small whole number (of octaves, where
 * these are counted), all exact in bfloat16 and their sums in float, so that weights are known whatever the arithmetic. */
static void attention_large(struct check *c, u32 target, enum kern_dtype type, float score, u32 heads)
{
	enum { CONTEXT = 600, DIM = 64, KEY_BLOCK = 16 };
	static const u32 rows[][2] = {{CONTEXT, 2}};
	const struct attention_case m = {heads, 1, DIM, KEY_BLOCK, rows, 1, type, false, 0, 0};
	struct kern_limits limits = {
		.tokens = 2, .rows = 1, .heads = heads, .kv_heads = 1, .head_dim = DIM, .context = CONTEXT};
	const bool rounded = rounds_to_bf16(c, target, type, DIM);
	struct kern_attention_args a;
	struct kern_ctx ctx;
	const char *problem = NULL;
	attention_inputs(c, &m, &a);
	float *q = check_alloc(c, (size_t)2 * heads * DIM * 4);
	for (u32 i = 0; i < 2 * heads * DIM; i++)
		q[i] = i % DIM == 0 ? score : i % DIM > 1 ? 0 : rounded ? CHECK_ATTENTION_STEPS : 1;
	for (u32 key = 0; key < CONTEXT; key++) {
		struct check_kv_place p = check_attention_key(&a, 0, 0, key, false);
		for (p.dim = 0; p.dim < DIM; p.dim++) {
			float x = p.dim == 0 ? 1 : p.dim == 1 ? (float)check_random(c, 4) + (float)(key / 256) : 0;
			kern_convert((char *)a.kv.k + check_kv_at(&a.kv, &p), type, &x, KERN_F32, 1);
		}
	}
	a.q = q;
	a.scale = rounded ? check_attention_step : 1;
	a.out = check_alloc(c, (size_t)2 * heads * DIM * 4);
	check_ctx(c, &ctx, &limits, 0);
	if (c->targets[target].ops.attention(&ctx, &a) != ERR_OK)
		problem = "an error";
	struct check_attention_row cache = check_attention_read(&a, 0, 0);
	for (u32 row = 0; row < 2 * heads && !problem; row++) {
		struct check_attention_want want;
		check_attention_want(&a, &cache, 0, row / heads, row % heads, rounded, &want);
		problem = check_attention_close(&a, a.out + (size_t)row * DIM, &want, rounded, false);
	}
	check_attention_free(&cache);
	check_case_end(c, problem, "attention=%s %s heads=%u/1 scores=%g", c->targets[target].ops.attention_variant,
		       check_kv_name(type), heads, (double)score);
}

/* A key or value whose scale is no number, or infinite, as of a token whose activations have overflown: queries before it have the bits that
 * they have without. Of whole numbers of 16 bits, those that see such a value are told by NaN. */
static void attention_lost(struct check *c, u32 target, enum kern_dtype type, bool value, float none)
{
	enum { CONTEXT = 300, QUERIES = 60, LOST = 270, HEADS = 6, KV_HEADS = 2, DIM = 48 };
	static const u32 rows[][2] = {{CONTEXT, QUERIES}};
	const struct attention_case m = {HEADS, KV_HEADS, DIM, 16, rows, 1, type, false, 0, 0};
	const struct kern_limits limits = {
		.tokens = QUERIES, .rows = 1, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM, .context = CONTEXT};
	struct kern_attention_args a;
	const char *problem = NULL;
	float *out[2];
	attention_inputs(c, &m, &a);
	for (u32 run = 0; run < 2 && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, 0);
		for (u32 h = 0; h < HEADS && run > 0; h += HEADS / KV_HEADS) {
			const struct check_kv_place p = check_attention_key(&a, 0, h, LOST, value);
			memcpy((char *)(value ? a.kv.v : a.kv.k) + check_kv_scale_at(&a.kv, &p), &none, sizeof(none));
		}
		a.out = out[run] = check_alloc(c, (size_t)QUERIES * HEADS * DIM * sizeof(float));
		if (c->targets[target].ops.attention(&ctx, &a) != ERR_OK)
			problem = "an error";
	}
	for (u32 i = 0; i < QUERIES && !problem; i++) {
		const size_t at = (size_t)i * HEADS * DIM;
		const bool sees = CONTEXT - QUERIES + i >= LOST;
		if (!sees && memcmp(out[0] + at, out[1] + at, HEADS * DIM * sizeof(float)) != 0)
			problem = "a query has other bits for a token that it does not see";
		for (u32 d = 0; d < HEADS * DIM && sees && value && type == KERN_I16 && isnan(none); d++)
			if (!isnan(out[1][at + d]))
				problem = "a query does not say that a value that it sees is none";
	}
	check_case_end(c, problem, "attention=%s %s %s with a scale of %g", c->targets[target].ops.attention_variant,
		       check_kv_name(type), value ? "value" : "key", (double)none);
}

/* Decoding, where all KV heads of a row may take turns. */
static void attention_in_turns(struct check *c, u32 target)
{
	static const u32 long_decode[][2] = {{2600, 1}, {0, 0}, {1030, 1}, {700, 1}, {16, 1}, {5, 1}}, single[][2] = {{4090, 1}};
	for (u32 i = 0; i < 4 * CHECK_KV_TYPES; i++) {
		/* Over several parts and segments. */
		struct attention_case m = {i % 2 ? 12 : 8, i % 2 ? 3 : 8, i % 4 == 3 ? 56 : i % 4 == 2 ? 96 : 32, 16, long_decode, COUNT_OF(long_decode),
					   check_kv_types[i / 4], false, i % 4 == 1 ? 300 : 0, i % 4 == 2 ? 20 : 0};
		m.sinks = i % 4 == 0;
		attention_case(c, target, &m);
	}
	for (u32 i = 0; i < 2 * CHECK_KV_TYPES; i++) {
		/* One row, whose segments the threads share. */
		struct attention_case m = {i % 2 ? 9 : 8, i % 2 ? 3 : 2, 32, 16, single, 1, check_kv_types[i / 2], false, 0, 0};
		m.sinks = i % 2;
		attention_case(c, target, &m);
	}
}

/* Query heads of one KV head that are so many that threads share them out: those of one token, of a few, and over several segments. */
static void attention_of_many_heads(struct check *c, u32 target)
{
	static const u32 one[][2] = {{90, 1}}, few[][2] = {{300, 2}, {0, 0}, {7, 1}}, single[][2] = {{4090, 1}}, both[][2] = {{1500, 3}};
	static const u32 heads[][2] = {{16, 1}, {20, 1}, {48, 1}, {62, 1}, {32, 2}};
	for (u32 i = 0; i < COUNT_OF(heads) * CHECK_KV_TYPES; i++) {
		const u32 *h = heads[i % COUNT_OF(heads)];
		struct attention_case m = {h[0], h[1], 32, 16, one, 1, check_kv_types[i / COUNT_OF(heads)], false, 0, 0};
		m.sinks = i % 2;
		attention_case(c, target, &m);
		m.rows = few;
		m.row_count = COUNT_OF(few);
		m.window = i % 3 ? 0 : 40;
		attention_case(c, target, &m);
		m.rows = i % 2 ? single : both;
		m.row_count = 1;
		m.window = 0;
		attention_case(c, target, &m);
	}
}

/* Prompts of so many rows that tiles (AMX) have tasks of twice as many, over two segments, and where keys are gathered, beside what segments leave;
 * others have tasks of one size. */
static void attention_of_many_rows(struct check *c, u32 target)
{
	static const u32 rows[][2] = {{1090, 150}, {70, 70}, {300, 1}}, heads[][2] = {{16, 2}, {15, 3}};
	for (u32 i = 0; i < COUNT_OF(heads) && strncmp(c->targets[target].ops.attention_variant, "amx", 3) == 0; i++) {
		struct attention_case m = {heads[i][0], heads[i][1], i % 2 ? 64 : 32, i % 2 ? 16 : 8, rows, COUNT_OF(rows), KERN_BF16, false, i % 2 ? 90 : 0, 0};
		m.sinks = i % 2;
		attention_case(c, target, &m);
	}
}

/* Windows that are chunks: of a few keys, one that ends inside a part, and one that is longer than a segment. */
static void attention_of_chunks(struct check *c, u32 target)
{
	static const u32 rows[][2] = {{40, 1}, {70, 21}, {19, 19}, {1, 1}, {290, 7}, {2600, 3}};
	static const u32 sizes[] = {1, 8, 33, 300, 1100};
	for (u32 i = 0; i < COUNT_OF(sizes) * CHECK_KV_TYPES; i++) {
		struct attention_case m = {4, 2, 64, 16, rows, COUNT_OF(rows), check_kv_types[i / COUNT_OF(sizes)], false, sizes[i % COUNT_OF(sizes)], 0};
		m.chunked = true;
		attention_case(c, target, &m);
	}
}

/* Scores that fall with the distance of keys: over parts and segments, in turns, of many rows, beside whatever else scores have. */
static void attention_of_slopes(struct check *c, u32 target)
{
	static const u32 rows[][2] = {{40, 1}, {0, 0}, {70, 21}, {19, 19}, {1, 1}, {290, 7}, {2600, 3}};
	static const u32 long_decode[][2] = {{2600, 1}, {0, 0}, {1030, 1}, {700, 1}, {16, 1}, {5, 1}}, single[][2] = {{4090, 1}}, many[][2] = {{1090, 150}, {70, 70}};
	static const u32 heads[][3] = {{1, 1, 20}, {8, 8, 64}, {12, 3, 32}, {7, 1, 128}};
	for (u32 i = 0; i < 2 * COUNT_OF(heads) * CHECK_KV_TYPES; i += CHECK_STRIDE) {
		const u32 *h = heads[i / 2 % COUNT_OF(heads)];
		struct attention_case m = {h[0], h[1], h[2], i % 4 < 2 ? 16 : 5, rows, COUNT_OF(rows), check_kv_types[i / 2 / COUNT_OF(heads)], false, 0, 0};
		m.slopes = true;
		m.slopes_rounded = i % 2;
		attention_case(c, target, &m);
		m.window = i % 3 == 1 ? 300 : 0;
		m.soft_cap = i % 3 == 2 ? 20 : 0;
		m.sinks = i % 3 == 0;
		m.rows = i % 5 == 1 ? single : i % 5 == 2 ? many : long_decode;
		m.row_count = i % 5 == 1 ? COUNT_OF(single) : i % 5 == 2 ? COUNT_OF(many) : COUNT_OF(long_decode);
		attention_case(c, target, &m);
	}
}

static void attention_cases(struct check *c, u32 target)
{
	static const u32 decode[][2] = {{1, 1},	 {2, 1},   {15, 1},  {16, 1}, {17, 1},
					{33, 1}, {100, 1}, {257, 1}, {300, 1}};
	static const u32 prefill[][2] = {{37, 37}};
	static const u32 mixture[][2] = {{0, 0}, {40, 1}, {70, 21}, {5, 0}, {19, 19}, {1, 1}, {290, 7}};
	static const u32 lengthy[][2] = {{2600, 3}}, passing[][2] = {{1060, 70}}, large[][2] = {{110, 60}, {75, 75}};
	static const u32 heads[][3] = {{1, 1, 32},  {2, 1, 64},	 {8, 4, 32}, {9, 3, 80},
				       {8, 2, 96},  {5, 1, 128}, {6, 1, 48}, {7, 1, 64},
				       {8, 1, 256}, {3, 3, 20},	 {4, 2, 2}};
	static const u32 blocks[] = {16, 16, 32, 1, 8, 48, 16, 5};
	for (u32 h = 0; h < COUNT_OF(heads); h++)
		for (u32 bits = 0; bits < 4 * CHECK_KV_TYPES; bits++) {
			struct attention_case m = {heads[h][0],
						   heads[h][1],
						   heads[h][2],
						   blocks[(h + bits + bits / 4) % COUNT_OF(blocks)],
						   mixture,
						   COUNT_OF(mixture),
						   check_kv_types[bits / 4],
						   bits & 1,
						   0,
						   0};
			if (bits & 2) {
				m.rows = prefill;
				m.row_count = COUNT_OF(prefill);
				m.window = h % 3 == 0 ? 9 : 0;
			} else if (h % 2) {
				m.rows = decode;
				m.row_count = COUNT_OF(decode);
				m.window = h % 4 == 1 ? 20 : 0;
			}
			m.soft_cap = h % 5 == 2 ? 30 : 0;
			attention_case(c, target, &m);
			m.sinks = true;
			if (h % 3 == 0)
				attention_case(c, target, &m);
		}
	for (u32 i = 0; i < 2 * CHECK_KV_TYPES; i++) {
		struct attention_case m = {4,	  2, 32, i % 2 ? 32 : 16, lengthy, 1, check_kv_types[i / 2],
					   false, 0, 0};
		m.window = i % 2 ? 700 : 0;
		attention_case(c, target, &m);
		m.sinks = true; /* merged segments, too */
		attention_case(c, target, &m);
	}
	for (u32 i = 0; i < CHECK_KV_TYPES; i++) {
		/* Chunks whose keys end in the first segment, and others of the same prompt that see two. */
		struct attention_case m = {6, 2, 32, 16, passing, 1, check_kv_types[i], false, 0, 0};
		attention_case(c, target, &m);
		/* More queries than a core's caches hold. */
		struct attention_case more = {8, 2, 128, 16, large, COUNT_OF(large), check_kv_types[i], false, 0, 0};
		attention_case(c, target, &more);
	}
	attention_in_turns(c, target);
	attention_of_chunks(c, target);
	attention_of_many_heads(c, target);
	for (u32 i = 0; i < 8; i++)
		attention_large(c, target, i % 2 ? KERN_F32 : KERN_BF16, i & 2 ? -0x1.3p21f : 0x1.1p20f, i & 4 ? 2 : 8);
	for (u32 i = 0; i < 2 * CHECK_KV_TYPES; i++)
		if (check_kv_has_scales(check_kv_types[i / 2]))
			for (u32 none = 0; none < 2; none++)
				attention_lost(c, target, check_kv_types[i / 2], i % 2, none ? INFINITY : NAN);
	/* Sums of many dimensions in whole numbers. */
	struct attention_case wide = {2, 1, 1024, 16, prefill, 1, KERN_I8, false, 0, 0};
	attention_case(c, target, &wide);
	wide.head_dim = 512;
	attention_case(c, target, &wide);
	wide.type = KERN_I16;
	attention_case(c, target, &wide);
	wide.head_dim = 1024;
	attention_case(c, target, &wide);
}

/* ---------------------------------------------------------------- block_copy */

static void block_copy_case(struct check *c, u32 target, enum kern_dtype type)
{
	const u32 src[] = {3, 9, 3, 0}, dst[] = {5, 63, 1, 2};
	struct kern_kv kv = {.dtype = type, .block_size = 5, .kv_heads = 3, .head_dim = 6};
	check_kv_apart(c, &kv);
	struct kern_kv layers[2] = {kv, kv};
	size_t block = check_kv_bytes(&kv, 1), all = check_kv_bytes(&kv, BLOCKS);
	struct kern_ctx ctx;
	struct kern_limits limits = {.tokens = 1};
	const char *problem = NULL;
	for (u32 l = 0; l < 2; l++) {
		check_kv_alloc(c, &layers[l], BLOCKS);
		for (size_t i = 0; i < all; i++) {
			((unsigned char *)layers[l].k)[i] = (unsigned char)check_random(c, 256);
			((unsigned char *)layers[l].v)[i] = (unsigned char)check_random(c, 256);
		}
	}
	unsigned char *before = check_alloc(c, 4 * all);
	for (u32 i = 0; i < 4; i++)
		memcpy(before + i * all, i % 2 ? layers[i / 2].v : layers[i / 2].k, all);
	struct kern_block_copy_args a = {
		.layers = layers, .layer_count = 2, .src = src, .dst = dst, .count = 4};
	check_ctx(c, &ctx, &limits, 1);
	if (kern_kv_block_bytes(&kv) != block)
		problem = "another size of a block than its elements and scales have";
	else if (c->targets[target].ops.block_copy(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 i = 0; i < 4; i++) {
		for (u32 j = 0; j < 4; j++) {
			const struct check_kv_place to = {.block = dst[j]}, from = {.block = src[j]};
			memmove(before + i * all + check_kv_at(&kv, &to), before + i * all + check_kv_at(&kv, &from), block);
		}
		if (memcmp(before + i * all, i % 2 ? layers[i / 2].v : layers[i / 2].k, all) != 0)
			problem = "other bytes than those of the source block";
	}
	check_case_end(c, problem, "block_copy=%s %s", c->targets[target].ops.block_copy_variant,
		       check_kv_name(type));
}

void check_attention(struct check *c)
{
	for (u32 i = 0; i < c->target_count; i++) {
		if (CHECK_DISTINCT(c, i, attention)) {
			attention_cases(c, i);
			attention_of_many_rows(c, i);
			attention_of_slopes(c, i);
		}
		for (u32 t = 0; t < CHECK_KV_TYPES && CHECK_DISTINCT(c, i, block_copy); t++)
			block_copy_case(c, i, check_kv_types[t]);
	}
}
