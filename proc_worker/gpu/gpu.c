/* The life of a device's engine: streams, weights, arenas, states, libraries, a dummy step, the pool; in this order,
 * so that what is left for KV blocks is known and not guessed. Runs in the worker at start and at INIT. */
#include "proc_worker/gpu/gpu.h"

#include <stdlib.h>

#include "common/assert.h"
#include "common/log.h"
#include "proc_worker/gpu/gpu_priv.h"

enum { DUMMY_TOKENS = KERN_FUSED_TOKENS + 4 }; /* more than the fused kernels take */

static void report(const struct gpu *g, double share, const char *what)
{
	if (g->config.progress)
		g->config.progress(g->config.progress_ctx, share, what);
}

/* ---------------------------------------------------------------- the dummy step */

/* A row of some tokens, and the exception that runs them all. */
static enum err add_dummy(struct gpu *g, u32 tokens, u32 blocks, struct err_msg *em)
{
	struct gpu_stage *stage;
	enum { RUN = KERN_DIFF_WORDS, OFFSET = RUN + 2, RECORD = OFFSET + 1 };

	enum err e = gpu_stage_take(g, &stage, em);
	if (e)
		return e;
	u32 *diff = (u32 *)(void *)stage->memory, *record = diff + RECORD;
	for (u32 i = 0; i < RECORD + KERN_ADD_WORDS + tokens; i++)
		diff[i] = 0;
	diff[KERN_DIFF_RUNS] = diff[KERN_DIFF_ADDS] = 1;
	diff[RUN + 1] = tokens;
	diff[OFFSET] = RECORD;
	record[KERN_ADD_TOKENS] = record[KERN_ADD_PROMPT] = tokens;
	record[KERN_ADD_BLOCKS] = blocks;
	for (u32 i = 0; i < blocks; i++)
		record[KERN_ADD_WORDS + tokens + i] = i;
	e = gpu_stage_copy(g, stage, g->arena.upload, 0,
			   (RECORD + KERN_ADD_WORDS + tokens + blocks) * sizeof(u32), em);
	if (!e)
		e = gpu_stage_sent(g, stage, em);
	struct kern_apply_diff_args a = {.batch = &g->arena.batch,
					 .diff = (const u32 *)(const void *)g->arena.upload};
	return e ? e : gpu_op(g->device_ops.apply_diff(&g->ctx, &a), "apply_diff", em);
}

/* A small prompt and a token behind it: the kernels of both kinds of steps, and what libraries load when they
 * are first used. */
static enum err dummy_steps(struct gpu *g, struct err_msg *em)
{
	const u32 limits[] = {DUMMY_TOKENS, g->config.limits.tokens_max, g->config.limits.max_model_len - 1};
	u32 tokens = limits[0];

	for (size_t i = 1; i < COUNT_OF(limits); i++)
		tokens = limits[i] < tokens ? limits[i] : tokens;
	u32 blocks = tokens / g->config.limits.block_size + 1;
	struct gpu_shape prompt = {.tokens = tokens, .samples = 1}, token = {1, 1, true, true};
	struct kern_apply_diff_args rule = {.batch = &g->arena.batch, .diff = g->arena.no_diff};
	struct err_msg ignored;

	enum err e = gpu_pool_init(g, blocks, em);
	if (!e)
		e = add_dummy(g, tokens, blocks, em);
	if (!e)
		e = gpu_queue(g, &prompt, true, em);
	if (!e)
		e = gpu_op(g->device_ops.apply_diff(&g->ctx, &rule), "apply_diff", em);
	if (!e)
		e = gpu_queue(g, &token, true, em);
	enum err waited = g->api->stream_sync(g->ctx.stream, e ? &ignored : em);
	gpu_pool_fini(g);
	if (e || waited)
		err_prefix(em, "a first step");
	return e ? e : waited;
}

/* ---------------------------------------------------------------- create, destroy */

static enum err make_library(struct gpu *g, struct err_msg *em)
{
	struct kern_cuda_config c = {.workspace = g->arena.workspace,
				     .workspace_bytes = GPU_WORKSPACE_BYTES,
				     .cache_path = gpu_tune_path(g)};

	enum err e = g->device_ops.create(&g->ctx.device, &c, em);
	if (e || !c.cache_path)
		return e;
	report(g, 1, "choosing matrix products");
	return gpu_tune(g, em);
}

static enum err make_all(struct gpu *g, struct err_msg *em)
{
	enum err e = gpu_check(&g->config, em);

	if (!e)
		e = g->api->stream_create(&g->ctx.stream, em);
	if (!e)
		e = g->api->stream_create(&g->side, em);
	if (!e)
		e = gpu_load_weights(g, em);
	if (!e) {
		report(g, 1, "taking device memory");
		e = gpu_memory_init(g, em);
	}
	if (!e)
		e = gpu_states_init(g, em);
	if (!e)
		e = make_library(g, em);
	if (!e) {
		report(g, 1, "running a first step");
		gpu_graphs_init(g);
		e = dummy_steps(g, em);
	}
	if (!e)
		e = gpu_begin(g, em);
	return e ? e : gpu_count_blocks(g, &g->block_count, em);
}

enum err gpu_create(struct gpu **out, const struct gpu_config *config, struct err_msg *em)
{
	*out = NULL;
	struct gpu *g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	g->config = *config;
	g->api = config->device->api;
	g->api->ops_init(&g->ops, &g->device_ops);
	for (u32 i = 0; i < config->model->layers; i++)
		g->kv_count += gpu_has_kv(g, i);
	g->block_bytes = gpu_kv_bytes(g);
	enum err e = make_all(g, em);
	if (e) {
		gpu_destroy(&g);
		return e;
	}
	LOG_INFO("DEVICE_READY",
		 "weights=%lluMiB arena=%zuMiB states=%lluMiB pinned=%zuMiB kv_blocks=%u kv_block=%lluKiB graphs=%d",
		 (unsigned long long)(g->weight_bytes >> 20), g->arena.memory_bytes >> 20,
		 (unsigned long long)(g->states.bytes >> 20), g->pinned_bytes >> 20, g->block_count, (unsigned long long)(g->block_bytes >> 10),
		 g->config.graphs);
	*out = g;
	return ERR_OK;
}

void gpu_destroy(struct gpu **out)
{
	struct gpu *g = *out;
	struct err_msg ignored;

	if (!g)
		return;
	/* What fails here has failed before, and the process ends with it. */
	enum err waited = g->ctx.stream ? g->api->stream_sync(g->ctx.stream, &ignored) : ERR_OK;
	if (!waited && g->side)
		waited = g->api->stream_sync(g->side, &ignored);
	if (waited)
		LOG_WARN("DEVICE_LOST", "error=\"%s\"", ignored.text);
	gpu_swap_fini(g);
	gpu_graphs_fini(g);
	if (g->ctx.device)
		g->device_ops.destroy(&g->ctx.device);
	gpu_pool_fini(g);
	gpu_states_fini(g);
	gpu_memory_fini(g);
	model_weights_fini(&g->weights);
	g->api->release(g->weight_memory);
	g->api->stream_destroy(g->side);
	g->api->stream_destroy(g->ctx.stream);
	free(g);
	*out = NULL;
}

enum err gpu_take_blocks(struct gpu *g, u32 blocks, struct err_msg *em)
{
	ASSERT(!g->kv_memory && blocks > 0 && blocks <= g->block_count);
	enum err e = gpu_pool_init(g, blocks, em);
	if (!e)
		e = g->api->stream_sync(g->ctx.stream, em);
	if (!e)
		g->block_count = blocks;
	return e;
}

enum err gpu_begin(struct gpu *g, struct err_msg *em)
{
	const struct kern_batch *b = &g->arena.batch;
	u32 *const emptied[] = {b->known, b->computed, b->run};

	enum err e = g->api->stream_sync(g->ctx.stream, em);
	if (!e)
		e = g->api->stream_sync(g->side, em);
	if (!e)
		e = gpu_swap_begin(g, em);
	for (u32 i = 0; !e && i < COUNT_OF(emptied); i++)
		e = g->api->zero(g->ctx.stream, emptied[i], b->rows * sizeof(u32), em);
	if (!e)
		e = gpu_states_begin(g, em);
	if (!e)
		e = g->api->stream_sync(g->ctx.stream, em);
	for (u32 i = 0; i < GPU_RING; i++)
		g->slots[i].step = 0;
	g->has_exceptions = false;
	return e;
}

u32 gpu_block_count(const struct gpu *g)
{
	return g->block_count;
}

u32 gpu_state_slots(const struct gpu *g)
{
	return g->states.saved;
}

u64 gpu_state_bytes(const struct gpu *g)
{
	return g->states.bytes;
}

u64 gpu_weight_bytes(const struct gpu *g)
{
	return g->weight_bytes;
}

void gpu_weight_types(const struct gpu *g, char *text, size_t bytes)
{
	model_weights_types(&g->weights, text, bytes);
}

u64 gpu_kv_block_bytes(const struct gpu *g)
{
	return g->block_bytes;
}
