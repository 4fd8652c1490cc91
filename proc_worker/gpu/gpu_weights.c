/* The way of weights onto the device: two pinned rooms, one being filled while the other is copied. Runs in
 * the worker at start. */
#include <string.h>

#include "proc_worker/gpu/gpu_priv.h"

struct rooms {
	struct gpu *g;
	void *memory[GPU_ROOMS];
	struct kern_event *copied[GPU_ROOMS];
	bool queued[GPU_ROOMS];
	u32 current;
};

static enum err room(void *ctx, void **out, struct err_msg *em)
{
	struct rooms *r = ctx;

	r->current = (r->current + 1) % GPU_ROOMS;
	*out = r->memory[r->current];
	if (!r->queued[r->current])
		return ERR_OK;
	r->queued[r->current] = false;
	return r->g->api->event_sync(r->copied[r->current], em);
}

static enum err send(void *ctx, void *to, size_t bytes, struct err_msg *em)
{
	struct rooms *r = ctx;
	const struct kern_device_api *api = r->g->api;

	enum err e = api->copy(r->g->ctx.stream, to, r->memory[r->current], bytes, KERN_COPY_UP, em);
	if (!e)
		e = api->event_record(r->copied[r->current], r->g->ctx.stream, em);
	r->queued[r->current] = !e;
	return e;
}

static void progress(void *ctx, double share)
{
	const struct gpu_config *c = &((const struct gpu *)ctx)->config;

	if (c->progress)
		c->progress(c->progress_ctx, share, "loading weights");
}

static enum err upload(struct gpu *g, struct rooms *r, struct err_msg *em)
{
	struct weights_plan plan = *g->config.weights;
	struct weights_device d = {.memory = g->weight_memory,
				   .room_bytes = GPU_ROOM_BYTES,
				   .room = room,
				   .send = send,
				   .ctx = r};
	enum err e = ERR_OK;

	plan.progress = progress;
	plan.progress_ctx = g;
	for (u32 i = 0; !e && i < GPU_ROOMS; i++) {
		e = g->api->host_alloc(&r->memory[i], GPU_ROOM_BYTES, em);
		if (!e)
			e = g->api->event_create(&r->copied[i], true, em);
	}
	if (!e)
		e = model_weights_upload(&g->weights, &plan, &d, em);
	struct err_msg ignored;
	enum err waited = g->api->stream_sync(g->ctx.stream, e ? &ignored : em);
	for (u32 i = 0; i < GPU_ROOMS; i++) {
		g->api->event_destroy(r->copied[i]);
		g->api->host_release(r->memory[i]);
	}
	return e ? e : waited;
}

static enum err explain(const struct gpu *g, u64 bytes, u64 free_bytes, struct err_msg *em)
{
	const struct weights_plan *p = g->config.weights;
	const u64 mib = 1 << 20;
	const char *help = kern_dtype_group(p->matrix_dtype) == 0
				   ? "--quantization int8 needs about half of it"
				   : "use more devices (--tensor-parallel-size) or a smaller model";

	return err_set(em, ERR_NO_SPACE,
		       "not enough memory on the device: the weights need %llu MiB%s, %llu MiB are free: "
		       "%llu MiB are "
		       "missing; %s",
		       (unsigned long long)((bytes + mib - 1) / mib), p->shard->ranks > 1 ? " on each" : "",
		       (unsigned long long)(free_bytes / mib),
		       (unsigned long long)((bytes - free_bytes + mib - 1) / mib), help);
}

enum err gpu_load_weights(struct gpu *g, struct err_msg *em)
{
	struct kern_device_info info = {0};
	struct rooms r = {.g = g};

	enum err e = model_weights_device_bytes(g->config.weights, &g->weight_bytes, em);
	if (!e)
		e = g->api->memory(&info, em);
	if (!e && g->weight_bytes > info.memory_free)
		e = explain(g, g->weight_bytes, info.memory_free, em);
	if (!e)
		e = g->api->alloc(&g->weight_memory, g->weight_bytes, em);
	return e ? e : upload(g, &r, em);
}
