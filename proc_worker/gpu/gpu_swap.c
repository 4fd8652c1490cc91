/* KV blocks on their way to the host's memory and back: a pool of pinned memory, and a stream of its own
 * beside that of the kernels. Runs in the worker in every step that swaps; queues copies and the events that
 * order them, and never waits for the device.
 *
 * Out: begins when the steps before this one are done, and goes on beside this step and later ones. Only
 * those that hand out a block which is still being read wait for it: batch_state.c sees to it that a step
 * does not copy into such a block, so it is in a block table that a step extends or adds. The few that this
 * very step hands out go first. In: begins when the steps before this one are done, and this step waits for
 * it. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "ipc/ipc.h"
#include "proc_worker/gpu/gpu_priv.h"

/* ---------------------------------------------------------------- the pool */

static size_t round_up(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

static void lay_out(struct gpu *g, u32 blocks, u8 *at)
{
	struct kern_kv *kv = (struct kern_kv *)(void *)at;

	g->swap.layers = kv;
	at += round_up(g->kv_count * sizeof(*kv));
	for (u32 i = 0; i < g->config.model->layers; i++) {
		if (!gpu_has_kv(g, i))
			continue;
		*kv = gpu_kv_of(g, i);
		const size_t half = blocks * kern_kv_block_bytes(kv);
		kv->k = at;
		kv->v = at + half;
		at += 2 * half;
		kv++;
	}
}

enum err gpu_take_host_blocks(struct gpu *g, u32 blocks, struct err_msg *em)
{
	struct gpu_swap *w = &g->swap;
	size_t bytes = round_up(g->kv_count * sizeof(struct kern_kv)) + (size_t)blocks * g->block_bytes;
	void *memory;

	ASSERT(g->kv_memory && !w->memory && blocks > 0 && !g->states.data); /* who came back would have lost its state */
	enum err e = g->api->host_alloc(&memory, bytes, em);
	if (e)
		return e;
	w->memory = memory;
	lay_out(g, blocks, memory);
	w->stamp = calloc(g->block_count, sizeof(*w->stamp));
	if (!w->stamp)
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!e)
		e = g->api->stream_create(&w->stream, em);
	if (!e)
		e = g->api->event_create(&w->ready, false, em);
	if (!e)
		e = g->api->event_create(&w->done, false, em);
	if (e)
		gpu_swap_fini(g); /* the engine goes on without, and so does the host with its memory */
	else
		w->block_count = blocks;
	return e;
}

enum err gpu_swap_begin(struct gpu *g, struct err_msg *em)
{
	g->swap.fenced = g->swap.queued;
	return g->swap.stream ? g->api->stream_sync(g->swap.stream, em) : ERR_OK;
}

void gpu_swap_fini(struct gpu *g)
{
	struct gpu_swap *w = &g->swap;
	struct err_msg ignored;

	if (w->stream && g->api->stream_sync(w->stream, &ignored))
		LOG_WARN("DEVICE_LOST", "error=\"%s\"", ignored.text);
	g->api->event_destroy(w->ready);
	g->api->event_destroy(w->done);
	if (w->stream)
		g->api->stream_destroy(w->stream);
	g->api->host_release(w->memory);
	free(w->stamp);
	*w = (struct gpu_swap){0};
}

/* ---------------------------------------------------------------- order */

/* What follows in the stream of the copies begins when all is done that the kernels' stream has got. */
static enum err after_kernels(struct gpu *g, struct err_msg *em)
{
	enum err e = g->api->event_record(g->swap.ready, g->ctx.stream, em);

	return e ? e : g->api->stream_wait(g->swap.stream, g->swap.ready, em);
}

static enum err kernels_after(struct gpu *g, struct err_msg *em)
{
	return g->api->stream_wait(g->ctx.stream, g->swap.done, em);
}

/* Blocks that the step puts into tables. */
static u32 handed_out_count(const struct ipc_step *s)
{
	return s->grow_block_count + s->add_blocks_count;
}

static u32 handed_out(const struct ipc_step *s, u32 i)
{
	return i < s->grow_block_count ? s->grow_block[i] : s->add_blocks[i - s->grow_block_count];
}

/* Swap-outs of earlier steps that still read what this one will write. */
static enum err wait_for_earlier(struct gpu *g, const struct ipc_step *s, struct err_msg *em)
{
	struct gpu_swap *w = &g->swap;

	if (w->fenced == w->queued)
		return ERR_OK;
	for (u32 i = 0; i < handed_out_count(s); i++)
		if (w->stamp[handed_out(s, i)] > w->fenced) {
			w->fenced = w->queued;
			return kernels_after(g, em);
		}
	return ERR_OK;
}

/* ---------------------------------------------------------------- copies */

/* In the order in which they are queued. `stamp` tells the first two apart. */
enum direction { OUT_URGENT, OUT, IN };

static bool goes(const struct gpu *g, const struct batch_state *b, u32 i, enum direction d)
{
	const struct gpu_swap *w = &g->swap;
	u32 src = b->copy_src[i], dst = b->copy_dst[i];

	if (d == IN)
		return src >= b->limits.block_count;
	return dst >= b->limits.block_count && w->stamp[src] == w->queued + (d == OUT_URGENT);
}

/* The next piece of the list from `*at` on. */
static u32 write_pairs(const struct gpu *g, const struct batch_state *b, enum direction d, u32 *at, u32 most,
		       u32 *src, u32 *dst)
{
	u32 first = b->limits.block_count, n = 0;

	for (; *at < b->copy_count && n < most; ++*at) {
		if (!goes(g, b, *at, d))
			continue;
		src[n] = b->copy_src[*at] - (d == IN ? first : 0);
		dst[n] = b->copy_dst[*at] - (d == IN ? 0 : first);
		ASSERT((d == IN ? src[n] : dst[n]) < g->swap.block_count);
		n++;
	}
	return n;
}

/* Kernels read the lists where they are, in pinned memory. */
static enum err queue_pairs(struct gpu *g, const struct batch_state *b, enum direction d, struct err_msg *em)
{
	struct gpu_swap *w = &g->swap;
	u32 most = (u32)(g->stage_bytes / (2 * sizeof(u32)));
	struct kern_ctx ctx = g->ctx;
	enum err e = ERR_OK;

	ctx.stream = w->stream;
	for (u32 at = 0; !e && at < b->copy_count;) {
		struct gpu_stage *stage;
		e = gpu_stage_take(g, &stage, em);
		if (e)
			return e;
		u32 *src = (u32 *)(void *)stage->memory, *dst = src + most;
		struct kern_swap_args a = {.from = d == IN ? w->layers : g->arena.kv_layers,
					   .to = d == IN ? g->arena.kv_layers : w->layers,
					   .layer_count = g->kv_count,
					   .src = src,
					   .dst = dst,
					   .count = write_pairs(g, b, d, &at, most, src, dst)};
		if (a.count == 0)
			return ERR_OK;
		e = gpu_op(g->device_ops.swap(&ctx, &a), "swap", em);
		if (!e)
			e = g->api->event_record(stage->copied, w->stream, em);
		stage->queued = !e;
	}
	return e;
}

/* Stamps what is read; odd, if this step hands it out. Returns whether there is such a block. */
static bool stamp_sources(struct gpu *g, const struct batch_state *b, const struct ipc_step *s)
{
	struct gpu_swap *w = &g->swap;
	bool urgent = false;

	w->queued += 2;
	for (u32 i = 0; i < b->copy_count; i++)
		if (b->copy_dst[i] >= b->limits.block_count)
			w->stamp[b->copy_src[i]] = w->queued;
	for (u32 i = 0; i < handed_out_count(s); i++)
		if (w->stamp[handed_out(s, i)] == w->queued) {
			w->stamp[handed_out(s, i)]++;
			urgent = true;
		}
	return urgent;
}

static enum err swap_out(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			 struct err_msg *em)
{
	struct gpu_swap *w = &g->swap;
	bool urgent = stamp_sources(g, b, s);

	enum err e = after_kernels(g, em);
	if (!e && urgent) {
		e = queue_pairs(g, b, OUT_URGENT, em);
		if (!e)
			e = g->api->event_record(w->done, w->stream, em);
		if (!e)
			e = kernels_after(g, em);
	}
	if (!e)
		e = queue_pairs(g, b, OUT, em);
	for (u32 i = 0; i < handed_out_count(s); i++) /* they were waited for */
		w->stamp[handed_out(s, i)] = 0;
	return e ? e : g->api->event_record(w->done, w->stream, em);
}

static enum err swap_in(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	struct gpu_swap *w = &g->swap;
	enum err e = after_kernels(g, em);

	if (!e)
		e = queue_pairs(g, b, IN, em);
	if (!e)
		e = g->api->event_record(w->done, w->stream, em);
	w->fenced = w->queued; /* what was queued before is done by then, too */
	return e ? e : kernels_after(g, em);
}

enum err gpu_swap_blocks(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			 struct err_msg *em)
{
	u32 outs = 0, ins = 0;

	if (!g->swap.block_count)
		return ERR_OK;
	for (u32 i = 0; i < b->copy_count; i++) {
		outs += b->copy_dst[i] >= b->limits.block_count;
		ins += b->copy_src[i] >= b->limits.block_count;
	}
	enum err e = wait_for_earlier(g, s, em);
	if (!e && outs)
		e = swap_out(g, b, s, em);
	if (!e && ins)
		e = swap_in(g, b, em);
	return e;
}
