/* Times of sparse attention's ops in the shapes of a layer of DeepSeek V3.2: what is chosen of 32,768 tokens, by one query and by some of a prompt, and
 * brought side by side. */
#include <stdio.h>
#include <string.h>

#include "tests/kern/bench.h"

enum { CONTEXT = 32768, BLOCK = 32, BLOCKS = CONTEXT / BLOCK, HEADS = 64, DIM = 128, TOP = 2048, LATENT = 576, ROPE = 64, QUERIES = 16 };

static const struct kern_limits limits = {.tokens = 1, .rows = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .hidden = 2};

BENCH_RUNNER(index_choose)
BENCH_RUNNER(index_gather)

static void kv_alloc(struct check *c, struct kern_kv *kv, u32 blocks)
{
	const size_t bytes = blocks * kern_kv_block_bytes(kv);
	kv->k = memset(check_alloc(c, bytes), 0, bytes);
	kv->v = memset(check_alloc(c, bytes), 0, bytes);
}

/* The last of a prompt's tokens. */
static const struct kern_index_query *queries(struct check *c, u32 count)
{
	struct kern_index_query *list = check_alloc(c, count * sizeof(*list));
	for (u32 i = 0; i < count; i++)
		list[i] = (struct kern_index_query){i, 0, CONTEXT - count + 1 + i};
	return list;
}

static const u32 *blocks_in_turn(struct check *c)
{
	u32 *table = check_alloc(c, BLOCKS * sizeof(u32));
	for (u32 i = 0; i < BLOCKS; i++)
		table[i] = i * 5 % BLOCKS;
	return table;
}

static void bench_choose(struct check *c, u32 target, u32 pool, enum kern_dtype dtype, u32 count)
{
	struct kern_kv kv = {.dtype = dtype, .block_size = BLOCK, .kv_heads = 1, .head_dim = DIM};
	char shape[100];
	kv_alloc(c, &kv, BLOCKS);
	struct kern_index_choose_args a = {.kv = &kv, .score_stride = CONTEXT, .block_stride = BLOCKS, .count = count, .heads = HEADS, .top = TOP};
	float *keys = check_floats(c, (size_t)CONTEXT * DIM, false);
	i64 *slots = check_alloc(c, CONTEXT * sizeof(*slots));
	for (u32 i = 0; i < CONTEXT; i++)
		slots[i] = i;
	const struct kern_index_keys_args put = {.keys = keys, .slots = slots, .kv = &kv, .tokens = CONTEXT};
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &limits, pool);
	(void)!c->targets[target].ops.index_keys(&ctx, &put);
	a.queries = check_floats(c, (size_t)count * HEADS * DIM, false);
	a.weights = check_floats(c, (size_t)count * HEADS, false);
	a.list = queries(c, count);
	a.block_tables = blocks_in_turn(c);
	a.chosen = check_alloc(c, (size_t)count * TOP * sizeof(u32));
	a.scores = check_alloc(c, (size_t)count * CONTEXT * sizeof(float));
	snprintf(shape, sizeof(shape), "%s context=%d heads=%d dim=%d top=%d queries=%u", kern_dtype_name(dtype), CONTEXT, HEADS, DIM, TOP, count);
	BENCH(index_choose, c, target, pool, &a, &limits, shape, 2.0 * count * CONTEXT * HEADS * DIM, (double)BLOCKS * (double)kern_kv_block_bytes(&kv));
	check_case_end(c, NULL, "index_choose");
}

static void bench_gather(struct check *c, u32 target, u32 pool, enum kern_dtype dtype, u32 count)
{
	struct kern_kv from = {.dtype = dtype, .block_size = BLOCK, .kv_heads = 1, .head_dim = LATENT}, to = from;
	char shape[100];
	kv_alloc(c, &from, BLOCKS);
	kv_alloc(c, &to, count * TOP / BLOCK);
	u32 *chosen = check_alloc(c, (size_t)count * TOP * sizeof(u32));
	for (u32 i = 0; i < count * TOP; i++)
		chosen[i] = i % TOP * (CONTEXT / TOP) + i % 7;
	struct kern_index_gather_args a = {.from = &from, .to = &to, .chosen = chosen, .list = queries(c, count), .block_tables = blocks_in_turn(c),
					   .block_stride = BLOCKS, .count = count, .top = TOP, .apart = ROPE};
	snprintf(shape, sizeof(shape), "%s context=%d width=%d top=%d queries=%u", kern_dtype_name(dtype), CONTEXT, LATENT, TOP, count);
	BENCH(index_gather, c, target, pool, &a, &limits, shape, 0, 4.0 * count * TOP / BLOCK * (double)kern_kv_block_bytes(&to));
	check_case_end(c, NULL, "index_gather");
}

void bench_index(struct check *c, u32 target, u32 pool, const char *only)
{
	static const enum kern_dtype types[] = {KERN_F32, KERN_BF16, KERN_I16, KERN_I8};
	for (u32 t = 0; t < COUNT_OF(types); t++)
		for (u32 count = 1; count <= QUERIES; count *= QUERIES) {
			if (CHECK_DISTINCT(c, target, index_choose) && (!only || strcmp(only, "index_choose") == 0))
				bench_choose(c, target, pool, types[t], count);
			if (CHECK_DISTINCT(c, target, index_gather) && (!only || strcmp(only, "index_gather") == 0))
				bench_gather(c, target, pool, types[t], count);
		}
}
