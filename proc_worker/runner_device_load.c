/* Makes and unmakes what a runner has on a device. Runs in the worker at start. */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "proc_worker/host_memory.h"
#include "proc_worker/kv_memory.h"
#include "proc_worker/runner_device.h"

enum { COMM_TIMEOUT_MS = 60 * 1000, SWAP_GIB_AUTOMATIC = 4, SWAP_SHARE = 4 };

enum err runner_device_open(struct runner *r, struct err_msg *em)
{
	u32 here = runner_ranks_here(r);
	struct device device;

	enum err e = device_choose(&device, r->config.device, r->config.rank % here, here, em);
	if (e || !device.api)
		return e;
	r->device = calloc(1, sizeof(*r->device));
	if (!r->device)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	r->device->device = device;
	r->device->fd = -1;
	return ERR_OK;
}

static void on_progress(void *ctx, double share, const char *what)
{
	const struct runner *r = ctx;

	if (r->config.progress)
		r->config.progress(r->config.progress_ctx, 0.05 + 0.9 * share, what);
}

static struct gpu_config config_of(struct runner *r)
{
	return (struct gpu_config){.device = &r->device->device,
				   .model = &r->model,
				   .shard = &r->shard,
				   .weights = &r->plan,
				   .rope = &r->rope,
				   .states = &r->states,
				   .limits = {.rows_max = r->config.limits.rows_max,
					      .tokens_max = r->config.limits.tokens_max,
					      .max_model_len = r->max_model_len,
					      .block_size = r->config.limits.block_size},
				   .kv_dtype = r->kv_shape.dtype,
				   .graphs = !r->config.enforce_eager,
				   .memory_utilization = r->config.memory_utilization,
				   .kv_cache_memory = r->config.kv_cache_memory,
				   .comm = r->device->comm,
				   .progress = on_progress,
				   .progress_ctx = r};
}

enum err runner_device_check(struct runner *r, struct err_msg *em)
{
	struct gpu_config c = config_of(r);
	bool adapts = r->config.loras && r->config.loras->count;
	enum err e = adapts ? err_set(em, ERR_UNSUPPORTED,
				      "adapters (--lora-modules) are computed on the CPU only: use --device cpu, or merge them "
				      "into the model")
			    : gpu_check(&c, em);

	if (!e)
		LOG_INFO("DEVICE_CHOSEN", "device=cuda name=\"%s\"", r->device->device.info.name);
	if (e != ERR_UNSUPPORTED || r->config.device != OPTION_DEVICE_AUTO)
		return e;
	LOG_WARN("DEVICE_CHOSEN", "device=cpu reason=\"%s\"", em->text);
	device_close(&r->device->device);
	free(r->device);
	r->device = NULL;
	return ERR_OK;
}

/* ---------------------------------------------------------------- ranks */

/* A rank that is gone never comes to the collective that the device waits in, and the host may wait with it: for room to
 * queue more. */
static void on_rank_lost(void *ctx)
{
	const struct runner_device *d = ctx;

	d->device.api->comm_abort(d->comm);
}

static enum err join(struct runner *r, struct err_msg *em)
{
	const struct kern_device_api *api = r->device->device.api;
	const void *parts[COLLECTIVES_RANKS_MAX];
	u8 id[KERN_COMM_ID_BYTES] = {0};
	bool first = r->config.rank == 0;

	enum err e = first ? api->comm_id(id, em) : ERR_OK;
	if (e)
		return e;
	if (first)
		memcpy(collectives_buffer(r->collectives), id, sizeof(id));
	e = collectives_all_gather(r->collectives, first ? sizeof(id) : 0, parts, em);
	if (e)
		return e;
	memcpy(id, parts[0], sizeof(id));
	e = api->comm_create(&r->device->comm, id, r->config.rank, r->config.ranks, COMM_TIMEOUT_MS, em);
	if (!e)
		collectives_on_lost(r->collectives, on_rank_lost, r->device);
	return e;
}

/* The scheduler has one table of blocks for all ranks. */
static enum err least_blocks(struct runner *r, u32 *blocks, struct err_msg *em)
{
	const void *parts[COLLECTIVES_RANKS_MAX];

	*blocks = gpu_block_count(r->device->gpu);
	if (!r->collectives)
		return ERR_OK;
	memcpy(collectives_buffer(r->collectives), blocks, sizeof(*blocks));
	enum err e = collectives_all_gather(r->collectives, sizeof(*blocks), parts, em);
	for (u32 i = 0; !e && i < r->config.ranks; i++) {
		u32 theirs;
		memcpy(&theirs, parts[i], sizeof(theirs));
		*blocks = theirs < *blocks ? theirs : *blocks;
	}
	return e;
}

/* ---------------------------------------------------------------- swap space */

/* Automatic: the least of 4 GiB, of a quarter of what the host has left, and of the size of the KV pool. */
static u64 automatic_swap_blocks(const struct runner *r, u64 available)
{
	u64 bytes = (u64)SWAP_GIB_AUTOMATIC << 30;

	bytes = available / SWAP_SHARE < bytes ? available / SWAP_SHARE : bytes;
	u64 blocks = bytes / r->kv_block_bytes;
	return blocks < r->block_count ? blocks : r->block_count;
}

static enum err take_swap_space(struct runner *r, struct err_msg *em)
{
	struct kv_budget budget = {.workers = 1, .block_bytes = r->kv_block_bytes, .block_size = r->config.limits.block_size};
	bool automatic = r->config.swap_space < 0;
	u32 blocks = 0;

	if (r->config.swap_space == 0 || r->model.recurrent.kind) /* what came back without its row's state would be of no use */
		return ERR_OK;
	enum err e = host_memory_available("", &budget.available, em);
	budget.available /= runner_ranks_here(r);
	if (!e && automatic)
		blocks = (u32)automatic_swap_blocks(r, budget.available);
	else if (!e)
		e = kv_budget_swap(&budget, r->config.swap_space, &blocks, em);
	if (!e && blocks)
		e = gpu_take_host_blocks(r->device->gpu, blocks, em);
	if (e && automatic) { /* hosts may limit how much memory a process pins */
		LOG_WARN("NO_SWAP_SPACE", "blocks=%u reason=\"%s\"", blocks, em->text);
		return ERR_OK;
	}
	if (e)
		err_prefix(em, "--swap-space %g", r->config.swap_space);
	r->host_block_count = e ? 0 : blocks;
	return e;
}

/* ---------------------------------------------------------------- life */

enum err runner_device_create(struct runner *r, struct err_msg *em)
{
	u32 blocks = 0;
	enum err e = rope_tables_init(&r->rope, &r->model.rope, model_local_rope(&r->model), r->max_model_len,
				      r->config.limits.tokens_max, em);

	if (!e)
		e = runner_make_states(r, em);
	if (!e && r->collectives)
		e = join(r, em);
	if (e)
		return e;
	struct gpu_config c = config_of(r);
	e = gpu_create(&r->device->gpu, &c, em);
	if (!e)
		e = least_blocks(r, &blocks, em);
	if (!e)
		e = gpu_take_blocks(r->device->gpu, blocks, em);
	if (e)
		return e;
	safetensors_trim(r->checkpoint);
	r->block_count = blocks;
	r->state_slots = gpu_state_slots(r->device->gpu);
	r->weight_bytes = gpu_weight_bytes(r->device->gpu);
	r->kv_block_bytes = gpu_kv_block_bytes(r->device->gpu);
	e = take_swap_space(r, em);
	return e ? e : runner_device_start(r, em);
}

void runner_device_destroy(struct runner *r)
{
	struct runner_device *d = r->device;

	if (!d)
		return;
	r->device = NULL;
	if (r->collectives)
		collectives_on_lost(r->collectives, NULL, NULL);
	if (!runner_device_stop(d)) {
		LOG_ERROR("DEVICE_STUCK", "name=\"%s\" reason=\"it does not end what was queued\"", d->device.info.name);
		return; /* the thread still uses it; the process ends */
	}
	/* What is queued behind a step that failed may never end, and freeing waits for it. */
	if (!d->failed) {
		gpu_destroy(&d->gpu);
		if (d->comm)
			d->device.api->comm_destroy(d->comm);
	}
	device_close(&d->device);
	free(d);
}

void runner_device_log(const struct runner *r)
{
	const struct kern_device_info *info = &r->device->device.info;
	char types[256];

	gpu_weight_types(r->device->gpu, types, sizeof(types));
	LOG_INFO("MODEL_LOADED",
		 "arch=%s device=\"%s\" dtype=%s matrices=\"%s\" kv_dtype=%s rank=%u/%u weights=%lluMiB max_model_len=%u "
		 "kv_blocks=%u host_blocks=%u kv=%lluMiB states=%lluMiB memory=%lluMiB graphs=%d",
		 r->model.arch->name, info->name, kern_dtype_name(r->dtype), types, kv_dtype_name(r->kv_shape.dtype), r->config.rank, r->config.ranks,
		 (unsigned long long)(r->weight_bytes >> 20), r->max_model_len, r->block_count, r->host_block_count,
		 (unsigned long long)(r->kv_block_bytes * r->block_count >> 20),
		 (unsigned long long)(gpu_state_bytes(r->device->gpu) >> 20),
		 (unsigned long long)(info->memory_total >> 20), !r->config.enforce_eager);
}
