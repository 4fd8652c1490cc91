/* The way of results to the host: the second half of a step ends here, and other threads wait here. */
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "proc_worker/gpu/gpu_priv.h"

/* The tokens leave arena.sampled before the next step writes there, and travel beside its kernels. */
static enum err send_down(struct gpu *g, struct gpu_slot *slot, u64 step, struct err_msg *em)
{
	size_t bytes = slot->count * sizeof(u32);
	u32 *kept = g->arena.sampled_ring + (step % GPU_RING) * g->samples_max;
	enum err e = ERR_OK;

	if (bytes)
		e = g->api->copy(g->ctx.stream, kept, g->arena.sampled, bytes, KERN_COPY_DEVICE, em);
	if (!e)
		e = g->api->event_record(g->computed, g->ctx.stream, em);
	if (!e)
		e = g->api->stream_wait(g->side, g->computed, em);
	if (!e && bytes)
		e = g->api->copy(g->side, slot->tokens, kept, bytes, KERN_COPY_DOWN, em);
	return e ? e : g->api->event_record(slot->done, g->side, em);
}

/* ---------------------------------------------------------------- embeddings */

static void list_embeddings(const struct gpu *g, const struct batch_state *b, struct gpu_slot *slot)
{
	for (u32 i = 0; i < b->sample_count; i++) {
		const struct batch_row *row = &b->rows[b->sample_rows[i]];
		if (!(row->params.flags & SAMPLING_EMBEDDING) || batch_state_sample_index(b, i) != row->prompt_count)
			continue;
		ASSERT(slot->embedding_count < g->embeddings_max);
		slot->embedded[slot->embedding_count++] = i;
	}
}

/* What the logits were made of, before anything else is picked out of the stream: on rank 0, whose results are read. Samples in a row are one copy. */
static enum err send_embeddings(struct gpu *g, const struct batch_state *b, struct gpu_slot *slot, struct err_msg *em)
{
	size_t hidden = g->config.model->hidden;

	if (g->config.shard->rank == 0)
		list_embeddings(g, b, slot);
	enum err e = slot->embedding_count ? gpu_norm_samples(g, g->picked, b->sample_count, em) : ERR_OK;
	for (u32 at = 0, n; !e && at < slot->embedding_count; at += n) {
		for (n = 1; at + n < slot->embedding_count && slot->embedded[at + n] == slot->embedded[at] + n;)
			n++;
		e = g->api->copy(g->ctx.stream, slot->embeddings + at * hidden, g->arena.picked_normed + slot->embedded[at] * hidden,
				 n * hidden * sizeof(u16), KERN_COPY_DOWN, em);
	}
	return e;
}

/* ---------------------------------------------------------------- the second half */

enum err gpu_sample(struct gpu *g, const struct batch_state *b, const u32 *const *allowed, struct err_msg *em)
{
	struct gpu_slot *slot = &g->slots[b->step % GPU_RING];
	bool rest = b->tokens_run > 0 && !g->tail_queued;
	enum err e = ERR_OK;

	ASSERT(b->applied);
	slot->count = b->sample_count;
	if (rest && allowed)
		e = gpu_send_allowed(g, allowed, b->sample_count, em);
	if (!e && rest)
		e = gpu_sample_rows(g, b, allowed, slot, em);
	if (!e && rest)
		e = gpu_queue_commit(g, em);
	if (!e && b->tokens_run)
		e = send_embeddings(g, b, slot, em);
	if (!e && b->tokens_run)
		e = gpu_prompt_logprobs(g, b, slot, em);
	if (!e)
		e = send_down(g, slot, b->step, em);
	if (!e)
		slot->step = b->step;
	return e;
}

static struct gpu_slot *slot_of(struct gpu *g, u64 step)
{
	struct gpu_slot *s = &g->slots[step % GPU_RING];

	return step != 0 && s->step == step ? s : NULL;
}

enum err gpu_wait(struct gpu *g, u64 step, struct err_msg *em)
{
	struct gpu_slot *s = slot_of(g, step);

	if (!s)
		return err_set(em, ERR_NOT_FOUND, "step %llu is not queued", (unsigned long long)step);
	enum err e = g->api->event_sync(s->done, em);
	if (!e && atomic_load_explicit(&s->done_ns, memory_order_relaxed) == 0)
		atomic_store_explicit(&s->done_ns, clock_now_ns(), memory_order_release);
	return e;
}

enum err gpu_result(struct gpu *g, u64 step, struct gpu_result *out, struct err_msg *em)
{
	struct gpu_slot *s = slot_of(g, step), *before = slot_of(g, step - 1);
	u64 done = s ? atomic_load_explicit(&s->done_ns, memory_order_acquire) : 0;

	if (!done)
		return err_set(em, ERR_NOT_FOUND, "step %llu has no results", (unsigned long long)step);
	u64 free_ns = before ? atomic_load_explicit(&before->done_ns, memory_order_acquire) : 0;
	*out = (struct gpu_result){.step = step,
				   .count = s->count,
				   .tokens = s->tokens,
				   .lp = {.entry = s->lp_entry,
					  .count = s->lp_count,
					  .rank = s->lp_rank,
					  .ids = s->lp_ids,
					  .values = s->lp_values,
					  .entries = s->lp_entries,
					  .id_count = s->lp_id_count},
				   .plp_seq = s->plp_seq,
				   .plp_position = s->plp_position,
				   .plp_count = s->plp_count,
				   .plp_rank = s->plp_rank,
				   .plp_ids = s->plp_ids,
				   .plp_values = s->plp_values,
				   .plp_entries = s->plp_entries,
				   .plp_id_count = s->plp_id_count,
				   .embeddings = s->embeddings,
				   .embedded = s->embedded,
				   .embedding_count = s->embedding_count,
				   .started_ns = free_ns > s->submitted_ns ? free_ns : s->submitted_ns,
				   .done_ns = done};
	return ERR_OK;
}

void gpu_abort(struct gpu *g)
{
	if (g->config.comm)
		g->api->comm_abort(g->config.comm);
}

/* ---------------------------------------------------------------- logits themselves */

/* By way of a stage. */
static enum err bring_down(struct gpu *g, float *out, const float *logits, size_t bytes, struct err_msg *em)
{
	struct gpu_stage *s;
	enum err e = ERR_OK;

	for (size_t at = 0, n; !e && at < bytes; at += n) {
		n = bytes - at < g->stage_bytes ? bytes - at : g->stage_bytes;
		e = gpu_stage_take(g, &s, em);
		if (!e)
			e = g->api->copy(g->ctx.stream, s->memory, (const u8 *)logits + at, n, KERN_COPY_DOWN, em);
		if (!e)
			e = g->api->stream_sync(g->ctx.stream, em);
		if (!e)
			memcpy((u8 *)out + at, s->memory, n);
	}
	return e;
}

static enum err read_some(struct gpu *g, const u32 *tokens, u32 count, float *out, struct err_msg *em)
{
	size_t bytes = (size_t)count * g->config.model->vocab_size * sizeof(float);
	struct gpu_stage *s;

	enum err e = gpu_stage_take(g, &s, em);
	if (e)
		return e;
	memcpy(s->memory, tokens, count * sizeof(u32));
	e = gpu_stage_copy(g, s, g->arena.upload, 0, count * sizeof(u32), em);
	if (!e)
		e = gpu_stage_sent(g, s, em);
	if (!e)
		e = gpu_logits(g, (const u32 *)(const void *)g->arena.upload, count, g->config.limits.tokens_max, em);
	return e ? e : bring_down(g, out, g->arena.logits, bytes, em);
}

enum err gpu_read_logits(struct gpu *g, const u32 *tokens, u32 count, float *out, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 at = 0, n; !e && at < count; at += n) {
		n = count - at < g->samples_max ? count - at : g->samples_max;
		e = read_some(g, tokens + at, n, out + (size_t)at * g->config.model->vocab_size, em);
	}
	return e;
}
