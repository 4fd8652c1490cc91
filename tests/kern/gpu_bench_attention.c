/* Times of attention, rope_kv, block_copy and swap in the shapes of a model of 8e9 weights. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/kern/gpu_bench.h"

enum { BLOCK_SIZE = 16 };

struct heads {
	u32 heads, kv_heads, head_dim;
};

/* Bytes of the keys, and as many of the values, of one token. */
static size_t token_bytes(const struct heads *h, enum kern_dtype type)
{
	return (size_t)h->kv_heads *
	       (h->head_dim * kern_dtype_bytes(type) + (type == KERN_BF16 ? 0 : sizeof(float)));
}

/* ---------------------------------------------------------------- attention */

struct step {
	struct heads shape;
	u32 rows, context, queries;
	enum kern_dtype type;
	struct kern_attention_plan plan;
	struct kern_attention_args a;
	size_t cache_bytes; /* of keys */
};

static enum err queue_attention(struct gpu_bench *b, void *arg, u32 i)
{
	struct step *s = arg;

	/* another layer's cache each time */
	s->a.kv.k = gpu_bench_place(b, s->cache_bytes, 2 * i);
	s->a.kv.v = gpu_bench_place(b, s->cache_bytes, 2 * i + 1);
	return b->d.ops.attention(&b->d.ctx, &s->a);
}

static enum err queue_plan(struct gpu_bench *b, void *arg, u32 i)
{
	struct step *s = arg;
	const struct kern_attention_plan_args p = {&s->plan, s->a.query_start, s->a.context, s->rows};

	(void)i;
	return b->d.device_ops.attention_plan(&b->d.ctx, &p);
}

/* Rows of one length, with blocks scattered over the whole cache. */
static void make_step(struct gpu_bench *b, struct step *s)
{
	struct check *c = &b->d.check;
	const u32 blocks = s->context / BLOCK_SIZE, all = s->rows * blocks, tokens = s->rows * s->queries;
	u32 *start = check_alloc(c, (s->rows + 1) * sizeof(u32)),
	    *context = check_alloc(c, s->rows * sizeof(u32)), *tables = check_alloc(c, all * sizeof(u32));

	for (u32 r = 0; r < s->rows; r++) {
		start[r] = r * s->queries;
		context[r] = s->context;
	}
	start[s->rows] = tokens;
	for (u32 i = 0; i < all; i++) {
		const u32 j = check_random(c, i + 1);
		tables[i] = tables[j];
		tables[j] = i;
	}
	s->cache_bytes = (size_t)all * BLOCK_SIZE * token_bytes(&s->shape, s->type);
	s->plan.limits = (struct kern_attention_limits){.tokens = tokens,
							.rows = s->rows,
							.queries = s->queries,
							.heads = s->shape.heads,
							.kv_heads = s->shape.kv_heads,
							.head_dim = s->shape.head_dim,
							.blocks = 2 * b->processors};
	s->plan.memory = device_alloc(&b->d, kern_attention_plan_bytes(&s->plan.limits));
	s->a = (struct kern_attention_args){.kv = {.dtype = s->type,
						   .block_size = BLOCK_SIZE,
						   .kv_heads = s->shape.kv_heads,
						   .head_dim = s->shape.head_dim},
					    .query_start =
						    device_upload(&b->d, start, (s->rows + 1) * sizeof(u32)),
					    .context = device_upload(&b->d, context, s->rows * sizeof(u32)),
					    .block_tables = device_upload(&b->d, tables, all * sizeof(u32)),
					    .block_stride = blocks,
					    .rows = s->rows,
					    .tokens = tokens,
					    .heads = s->shape.heads,
					    .scale = 1 / sqrtf((float)s->shape.head_dim),
					    .dtype = KERN_BF16,
					    .plan = &s->plan};
	s->a.q_bf16 =
		gpu_bench_place(b, (size_t)tokens * s->shape.heads * s->shape.head_dim * sizeof(u16), 0);
	s->a.out_bf16 = (u16 *)(void *)b->out;
}

static void attention_case(struct gpu_bench *b, const struct heads *h, u32 rows, u32 context, u32 queries,
			   enum kern_dtype type)
{
	struct step s = {.shape = *h, .rows = rows, .context = context, .queries = queries, .type = type};
	struct gpu_case c = {.op = queries == 1 ? "attention, decode" : "attention, prefill",
			     .bound = queries == 1 ? GPU_READ : GPU_COMPUTE};
	const double keys = (double)rows * context,
		     pairs = (double)rows * queries * (context - (queries - 1) / 2.0);
	const u32 kept = b->d.buffer_count;

	make_step(b, &s);
	c.work =
		queries == 1 ? 2 * keys * (double)token_bytes(h, type) : 4.0 * pairs * h->heads * h->head_dim;
	if (h->head_dim > 256) {
		; /* nothing was predicted */
	} else if (type == KERN_BF16 && queries == 1 && (context >= 1000 || rows == 1)) {
		c.predicted_low = rows == 1 ? 0.40 : 0.80;
		c.predicted_high = rows == 1 ? 0.60 : 0.88;
	} else if (type == KERN_BF16 && queries >= 512) { /* 280 to 350 of 780 TFLOP/s */
		c.predicted_low = 0.36;
		c.predicted_high = 0.45;
	}
	snprintf(c.shape, sizeof(c.shape), "%s heads=%u/%u head_dim=%u rows=%u context=%u queries=%u",
		 kern_dtype_name(type), h->heads, h->kv_heads, h->head_dim, rows, context, queries);
	const double us = gpu_bench_us(b, "attention_plan", queue_plan, &s, 10);
	if (us >= 0) {
		printf("{\"bench\":\"gpu_kernels\",\"op\":\"attention_plan\",\"shape\":\"rows=%u context=%u "
		       "queries=%u\",\"us\":%.2f}\n",
		       rows, context, queries, us);
		gpu_bench_case(b, &c, queue_attention, &s);
	}
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

/* ---------------------------------------------------------------- rope_kv */

static enum err queue_rope(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.ops.rope_kv(&b->d.ctx, arg);
}

static void rope_case(struct gpu_bench *b, const struct heads *h, u32 tokens, enum kern_dtype type)
{
	struct check *check = &b->d.check;
	const u32 all = h->heads + 2 * h->kv_heads, kept = b->d.buffer_count;
	const size_t cache = (size_t)tokens * token_bytes(h, type) + BLOCK_SIZE * token_bytes(h, type);
	u32 *positions = check_alloc(check, tokens * sizeof(u32));
	i64 *slots = check_alloc(check, tokens * sizeof(i64));
	float *cosine, *sine;
	struct kern_rope_kv_args a = {
		.tokens = tokens, .heads = h->heads, .rope_dim = h->head_dim, .dtype = KERN_BF16};
	struct gpu_case c = {.op = "rope_kv", .bound = GPU_READ, .repeats = 20};

	for (u32 t = 0; t < tokens; t++) {
		positions[t] = t;
		slots[t] = t;
	}
	(void)device_floats(&b->d, (size_t)tokens * h->head_dim / 2, false, &cosine);
	(void)device_floats(&b->d, (size_t)tokens * h->head_dim / 2, false, &sine);
	a.cos = cosine;
	a.sin = sine;
	a.positions = device_upload(&b->d, positions, tokens * sizeof(u32));
	a.slots = device_upload(&b->d, slots, tokens * sizeof(i64));
	a.qkv = gpu_bench_place(b, (size_t)tokens * all * h->head_dim * sizeof(float), 0);
	a.q_bf16 = (u16 *)(void *)b->out;
	a.kv = (struct kern_kv){
		.dtype = type, .block_size = BLOCK_SIZE, .kv_heads = h->kv_heads, .head_dim = h->head_dim};
	a.kv.k = device_alloc(&b->d, cache);
	a.kv.v = device_alloc(&b->d, cache);
	c.work = (double)tokens * (all * sizeof(float) + h->heads * sizeof(u16)) * h->head_dim +
		 2.0 * tokens * (double)token_bytes(h, type);
	if (tokens >= 2048)
		c.predicted_low = c.predicted_high = 0.85;
	snprintf(c.shape, sizeof(c.shape), "%s heads=%u/%u head_dim=%u tokens=%u", kern_dtype_name(type),
		 h->heads, h->kv_heads, h->head_dim, tokens);
	gpu_bench_case(b, &c, queue_rope, &a);
	(void)device_release(&b->d, kept);
	(void)check_release(check, 0);
}

/* ---------------------------------------------------------------- copies of blocks */

enum { COPY_LAYERS = 4 };

struct copies {
	struct kern_block_copy_args copy;
	struct kern_swap_args swap;
};

static enum err queue_block_copy(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.ops.block_copy(&b->d.ctx, &((struct copies *)arg)->copy);
}

static enum err queue_swap(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.device_ops.swap(&b->d.ctx, &((struct copies *)arg)->swap);
}

static void copies_case(struct gpu_bench *b, const struct heads *h, u32 pairs)
{
	struct device *d = &b->d;
	struct kern_kv kv = {.dtype = KERN_BF16,
			     .block_size = BLOCK_SIZE,
			     .kv_heads = h->kv_heads,
			     .head_dim = h->head_dim};
	struct kern_kv layers[COPY_LAYERS], host[COPY_LAYERS];
	const size_t block = BLOCK_SIZE * token_bytes(h, KERN_BF16), side = 2 * pairs * block;
	u32 *src = check_alloc(&d->check, pairs * sizeof(u32)),
	    *dst = check_alloc(&d->check, pairs * sizeof(u32));
	const u32 kept = d->buffer_count;
	char *pinned = NULL;
	struct copies c = {.copy = {.layer_count = COPY_LAYERS, .count = pairs},
			   .swap = {.layer_count = COPY_LAYERS, .count = pairs}};
	struct gpu_case g = {.op = "block_copy",
			     .bound = GPU_READ,
			     .repeats = 10,
			     .predicted_low = 0.85,
			     .predicted_high = 0.85};

	if (cudaMallocHost((void **)&pinned, 2 * COPY_LAYERS * side) != cudaSuccess) {
		gpu_bench_failed(b, "swap", "no pinned memory");
		return;
	}
	for (u32 i = 0; i < pairs; i++) {
		src[i] = i;
		dst[i] = pairs + i;
	}
	for (u32 l = 0; l < COPY_LAYERS; l++) {
		layers[l] = host[l] = kv;
		layers[l].k = gpu_bench_place(b, side, 2 * l);
		layers[l].v = gpu_bench_place(b, side, 2 * l + 1);
		host[l].k = pinned + 2 * l * side;
		host[l].v = pinned + (2 * l + 1) * side;
	}
	c.copy.layers = c.swap.from = device_upload(d, layers, sizeof(layers));
	c.swap.to = device_upload(d, host, sizeof(host));
	c.copy.src = c.swap.src = device_upload(d, src, pairs * sizeof(u32));
	c.copy.dst = c.swap.dst = device_upload(d, dst, pairs * sizeof(u32));
	g.work = 2.0 * 2 * COPY_LAYERS * pairs * (double)block; /* read and written, keys and values */
	snprintf(g.shape, sizeof(g.shape), "blocks=%u of %zu bytes, layers=%d", pairs, 2 * block,
		 COPY_LAYERS);
	gpu_bench_case(b, &g, queue_block_copy, &c);
	g.op = "swap to the host";
	g.bound = GPU_HOST;
	g.work /= 2;
	gpu_bench_case(b, &g, queue_swap, &c);
	(void)device_release(d, kept);
	(void)check_release(&d->check, 0);
	(void)cudaFreeHost(pinned);
}

/* ---------------------------------------------------------------- products of heads */

enum { HEADS_MOST = 128, LATENT = 512, TURNED = 64, PLAIN = 128 /* values of a latent, of a head that rotate, and that do not */ };

struct head_products {
	struct kern_head_matmul_args a;
	struct kern_weight w[HEADS_MOST];
	size_t bytes; /* of a head's */
};

static enum err queue_heads(struct gpu_bench *b, void *arg, u32 i)
{
	struct head_products *p = arg;

	for (u32 h = 0; h < p->a.heads; h++)
		p->w[h].data = gpu_bench_place(b, p->bytes, i * p->a.heads + h);
	return b->d.ops.head_matmul(&b->d.ctx, &p->a);
}

/* Queries into the space of latents, for rope_kv; or results of attention out of it, for a product. */
static void heads_case(struct gpu_bench *b, u32 heads, u32 tokens, bool queries)
{
	static struct head_products p;
	const u32 n = queries ? LATENT : PLAIN, k = queries ? PLAIN : LATENT, width = LATENT + TURNED;
	struct gpu_case c = {.op = queries ? "head_matmul, queries" : "head_matmul, values", .bound = tokens > 256 ? GPU_COMPUTE : GPU_READ};

	p = (struct head_products){.bytes = (size_t)n * k * sizeof(u16),
				   .a = {.w = p.w,
					 .tokens = tokens,
					 .heads = heads,
					 .beside = queries ? TURNED : 0,
					 .x_apart = queries ? PLAIN + TURNED : width,
					 .out_apart = queries ? width : PLAIN,
					 .dtype = KERN_BF16,
					 .out_dtype = queries ? KERN_F32 : KERN_BF16}};
	for (u32 h = 0; h < heads; h++)
		p.w[h] = (struct kern_weight){.n = n, .k = k, .dtype = KERN_BF16};
	p.a.x_stride = heads * p.a.x_apart;
	p.a.out_stride = heads * p.a.out_apart;
	p.a.x_bf16 = gpu_bench_place(b, (size_t)tokens * p.a.x_stride * sizeof(u16), 1);
	p.a.out = (float *)(void *)b->out;
	c.work = tokens > 256 ? 2.0 * tokens * heads * n * k
			      : (double)heads * ((double)p.bytes + tokens * (k * sizeof(u16) + n * (queries ? sizeof(float) : sizeof(u16))));
	snprintf(c.shape, sizeof(c.shape), "heads=%u n=%u k=%u tokens=%u", heads, n, k, tokens);
	gpu_bench_case(b, &c, queue_heads, &p);
}

/* Latent attention as models of some sizes have it, one KV head of the width of a latent and what rotates. */
static void latent_cases(struct gpu_bench *b)
{
	static const u32 tokens[] = {1, 32, 512};
	static const struct heads few = {16, 1, LATENT + TURNED}, many = {128, 1, LATENT + TURNED};

	attention_case(b, &few, 32, 4096, 1, KERN_BF16);
	attention_case(b, &many, 32, 4096, 1, KERN_BF16);
	attention_case(b, &few, 1, 512, 512, KERN_BF16);
	for (u32 i = 0; i < COUNT_OF(tokens) * 4; i++)
		heads_case(b, i & 1 ? 128 : 16, tokens[i / 4], i & 2);
}

void gpu_bench_attention(struct gpu_bench *b)
{
	static const struct heads large = {32, 8, 128}, narrow = {32, 8, 64}, tiny = {4, 2, 32}, wide = {2, 1, 320};
	static const u32 rows[] = {1, 8, 32, 64, 128, 256}, prompts[] = {512, 2048, 8192};

	if (b->small) {
		attention_case(b, &tiny, 2, 64, 1, KERN_BF16);
		attention_case(b, &tiny, 1, 32, 32, KERN_BF16);
		attention_case(b, &wide, 2, 32, 1, KERN_BF16);
		heads_case(b, 2, 3, true);
		heads_case(b, 2, 3, false);
		rope_case(b, &tiny, 5, KERN_I8);
		copies_case(b, &tiny, 2);
		return;
	}
	for (u32 i = 0; i < COUNT_OF(rows); i++)
		attention_case(b, &large, rows[i], 1024, 1, KERN_BF16);
	for (u32 i = 0; i < COUNT_OF(rows) - 2; i++)
		attention_case(b, &large, rows[i], 4096, 1, KERN_BF16);
	attention_case(b, &large, 64, 1024, 1, KERN_I8);
	attention_case(b, &large, 64, 1024, 1, KERN_F8E4M3);
	attention_case(b, &narrow, 64, 1024, 1, KERN_BF16);
	for (u32 i = 0; i < COUNT_OF(prompts); i++)
		attention_case(b, &large, 1, prompts[i], prompts[i], KERN_BF16);
	attention_case(b, &large, 1, 8192, 2048, KERN_BF16);
	attention_case(b, &narrow, 1, 2048, 2048, KERN_BF16);
	latent_cases(b);
	rope_case(b, &large, 1, KERN_BF16);
	rope_case(b, &large, 64, KERN_BF16);
	rope_case(b, &large, 2048, KERN_BF16);
	rope_case(b, &large, 2048, KERN_I8);
	copies_case(b, &large, 64);
}
