/* The KV cache of a device's engine: what each layer has of a block, layers whose attention is planned together, how many blocks fit, and
 * their memory. Runs in the worker at start. Never decides which block is whose: the scheduler does. */
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/profile.h"

enum { MARGIN_SHARE = 64 };

static const u64 MIB = 1 << 20, MARGIN_MAX = 256 << 20;

static unsigned long long mib_up(u64 bytes)
{
	return (bytes + MIB - 1) / MIB;
}

static u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}

/* ---------------------------------------------------------------- layers */

bool gpu_attends(const struct gpu *g, u32 layer)
{
	return model_attends(g->config.model, layer);
}

bool gpu_has_kv(const struct gpu *g, u32 layer)
{
	return gpu_attends(g, layer) && !(g->config.model->layer_flags[layer] & LAYER_SHARED_KV);
}

struct kern_kv gpu_kv_of(const struct gpu *g, u32 layer)
{
	const struct gpu_config *c = &g->config;

	return (struct kern_kv){.dtype = c->kv_dtype,
				.block_size = c->limits.block_size,
				.kv_heads = model_shard_kv_heads(c->shard, c->model, layer),
				.head_dim = model_head_dim(c->model, layer)};
}

u64 gpu_kv_bytes(const struct gpu *g)
{
	u64 bytes = 0;

	for (u32 i = 0; i < g->config.model->layers; i++) {
		const struct kern_kv kv = gpu_kv_of(g, i);
		bytes += gpu_has_kv(g, i) ? 2ull * kern_kv_block_bytes(&kv) : 0;
	}
	return bytes;
}

static struct gpu_attention attention_of(const struct gpu *g, u32 layer)
{
	const struct model_config *m = g->config.model;
	const struct kern_kv kv = gpu_kv_of(g, layer);
	bool windowed = m->layer_flags[layer] & LAYER_WINDOW && m->window < g->config.limits.max_model_len;

	return (struct gpu_attention){windowed ? m->window : 0, kv.kv_heads, kv.head_dim};
}

/* Or as many as there are. */
static u32 find_attention(const struct gpu *g, const struct gpu_attention *a)
{
	u32 i = 0;

	while (i < g->attention_count && memcmp(&g->attentions[i], a, sizeof(*a)) != 0)
		i++;
	return i;
}

void gpu_list_attentions(struct gpu *g)
{
	g->attention_count = 0;
	for (u32 i = 0; i < g->config.model->layers; i++) {
		if (!gpu_attends(g, i))
			continue;
		const struct gpu_attention a = attention_of(g, i);
		const u32 k = find_attention(g, &a);
		ASSERT(k < GPU_ATTENTIONS);
		g->attentions[k] = a;
		g->attention_count += k == g->attention_count;
	}
}

u32 gpu_attention_of(const struct gpu *g, u32 layer)
{
	const struct gpu_attention a = attention_of(g, layer);

	return find_attention(g, &a);
}

struct kern_attention_limits gpu_attention_limits(const struct gpu *g, const struct gpu_attention *a, bool decode)
{
	u32 tokens = g->config.limits.tokens_max, length = g->config.limits.max_model_len;

	return (struct kern_attention_limits){.tokens = decode ? g->samples_max : tokens,
					      .rows = g->config.limits.rows_max,
					      .queries = decode		   ? 1
							 : tokens < length ? tokens
									   : length,
					      .heads = g->config.shard->heads,
					      .kv_heads = a->kv_heads,
					      .head_dim = a->head_dim,
					      .blocks = 2 * g->config.device->info.processors};
}

/* ---------------------------------------------------------------- how many blocks */

/* Settings that would do, as a list for people. */
static void list_remedies(const struct gpu *g, u64 fits, bool is_there, char *out, size_t bytes)
{
	const struct gpu_config *c = &g->config;
	size_t n = 0;

	out[0] = 0;
	if (is_there)
		n += (size_t)snprintf(out + n, bytes - n, "; a higher --gpu-memory-utilization would do");
	if (fits >= CONTEXT_MIN)
		n += (size_t)snprintf(out + n, bytes - n, "; --max-model-len %llu fits",
				      (unsigned long long)fits);
	bool narrow = true; /* of wide heads 8 bits are refused */
	for (u32 i = 0; i < g->attention_count; i++)
		narrow = narrow && g->attentions[i].head_dim <= GPU_LARGE_HEADS;
	if (c->kv_dtype == KERN_BF16 && narrow)
		n += (size_t)snprintf(out + n, bytes - n, "; --kv-cache-dtype int8 needs half");
	if (g->states.data)
		n += (size_t)snprintf(out + n, bytes - n, "; a lower --max-num-seqs leaves more, for a sequence's state takes %llu MiB",
				      mib_up(c->states->stride * sizeof(float)));
	if (n == 0)
		snprintf(out, bytes,
			 "; lower --max-num-batched-tokens or --max-num-seqs, or use more devices");
}

static enum err explain_too_few(const struct gpu *g, u64 bytes, u64 one, u64 free_bytes, struct err_msg *em)
{
	const struct gpu_config *c = &g->config;
	u64 fits = bytes / g->block_bytes * c->limits.block_size;
	char remedies[384];

	list_remedies(g, fits, !c->kv_cache_memory && one <= free_bytes, remedies, sizeof(remedies));
	if (c->kv_cache_memory)
		return err_set(
			em, ERR_NO_SPACE,
			"--kv-cache-memory %llu bytes is too small: one sequence of %u tokens needs %llu "
			"MiB on each device%s",
			(unsigned long long)c->kv_cache_memory, c->limits.max_model_len, mib_up(one),
			remedies);
	return err_set(
		em, ERR_NO_SPACE,
		"not enough memory on the device: the KV cache of one sequence of %u tokens needs %llu "
		"MiB, %llu MiB are left (%llu MiB are free, --gpu-memory-utilization %.2f)%s",
		c->limits.max_model_len, mib_up(one), (unsigned long long)(bytes / MIB),
		(unsigned long long)(free_bytes / MIB), c->memory_utilization, remedies);
}

enum err gpu_memory_left(const struct gpu *g, u64 *bytes, u64 *free_bytes, struct err_msg *em)
{
	const struct gpu_config *c = &g->config;
	struct kern_device_info now = {0};

	enum err e = g->api->memory(&now, em);
	if (e)
		return e;
	u64 before = c->device->info.memory_free;
	u64 used = before > now.memory_free ? before - now.memory_free : 0; /* by this process */
	u64 cap = (u64)(c->memory_utilization * (double)now.memory_total);
	u64 margin = least(now.memory_total / MARGIN_SHARE, MARGIN_MAX); /* graphs, and what libraries load late */
	u64 left = now.memory_free > margin ? now.memory_free - margin : 0, under = cap > used + margin ? cap - used - margin : 0;
	*free_bytes = left;
	*bytes = under < left ? under : left;
	return ERR_OK;
}

enum err gpu_count_blocks(struct gpu *g, u32 *blocks, struct err_msg *em)
{
	const struct gpu_config *c = &g->config;
	u64 bytes, left, per_row = (c->limits.max_model_len + c->limits.block_size - 1) / c->limits.block_size;

	enum err e = gpu_memory_left(g, &bytes, &left, em);
	if (e)
		return e;
	if (c->kv_cache_memory > left)
		return err_set(
			em, ERR_NO_SPACE,
			"not enough memory on the device: --kv-cache-memory asks for %llu MiB, at most "
			"%lluMiB fits",
			mib_up(c->kv_cache_memory), (unsigned long long)(left / MIB));
	if (c->kv_cache_memory)
		bytes = c->kv_cache_memory;
	if (bytes < per_row * g->block_bytes)
		return explain_too_few(g, bytes, per_row * g->block_bytes, left, em);
	u64 count = bytes / g->block_bytes;
	*blocks = count < UINT32_MAX ? (u32)count : UINT32_MAX;
	return ERR_OK;
}

/* ---------------------------------------------------------------- the pool */

enum err gpu_pool_init(struct gpu *g, u32 blocks, struct err_msg *em)
{
	const struct gpu_config *c = &g->config;
	u32 count = 0;
	size_t bytes = (size_t)blocks * g->block_bytes;
	struct gpu_stage *s;
	void *memory;

	enum err e = g->api->alloc(&memory, bytes, em);
	if (e) {
		err_prefix(em, "%u KV blocks", blocks);
		return e;
	}
	g->kv_memory = memory;
	e = g->api->zero(g->ctx.stream, memory, bytes, em);
	if (!e)
		e = gpu_stage_take(g, &s, em);
	if (e)
		return e;
	ASSERT(g->kv_count * sizeof(*g->kv) <= g->stage_bytes);
	struct kern_kv *list = (struct kern_kv *)(void *)s->memory;
	u8 *at = memory;
	for (u32 i = 0; i < c->model->layers; i++) {
		struct kern_kv *kv = &g->kv[i];
		if (!gpu_has_kv(g, i)) {
			if (gpu_attends(g, i)) /* to an earlier one's */
				*kv = g->kv[model_kv_layer(c->model, i)];
			continue;
		}
		*kv = gpu_kv_of(g, i);
		const size_t half = blocks * kern_kv_block_bytes(kv);
		kv->k = at;
		kv->v = at + half;
		list[count++] = *kv;
		at += 2 * half;
	}
	e = gpu_stage_copy(g, s, g->arena.kv_layers, 0, count * sizeof(*list), em);
	return e ? e : gpu_stage_sent(g, s, em);
}

void gpu_pool_fini(struct gpu *g)
{
	g->api->release(g->kv_memory);
	g->kv_memory = NULL;
}
