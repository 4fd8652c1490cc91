/* Owns what is known of the worker ranks; runs in the scheduler's I/O shell. Never blocks. A group is
 * restarted as a whole, so one rank that begins anew makes all of them not ready. */
#include "proc_scheduler/workers.h"

#include <string.h>

#include "common/assert.h"

enum { OUTBOX_ITEMS_MAX = 1024, STATE_SLOTS_MAX = 1 << 20 /* far more than memory there is for states */ };
static const u64 OUTBOX_BYTES_MAX = 512u << 20;

enum err workers_init(struct workers *w, struct ipc_channel *channel, u32 count)
{
	ASSERT(count > 0 && count <= WORKERS_MAX);
	memset(w, 0, sizeof(*w));
	w->count = count;
	return outbox_init(&w->outbox, channel, OUTBOX_ITEMS_MAX, OUTBOX_BYTES_MAX);
}

void workers_fini(struct workers *w)
{
	outbox_fini(&w->outbox);
}

void workers_lost(struct workers *w)
{
	w->up = false;
	outbox_clear(&w->outbox);
}

enum err workers_greeted(struct workers *w, u32 rank, ipc_peer peer, struct err_msg *em)
{
	if (rank >= w->count)
		return err_set(em, ERR_INVALID, "a worker with rank %u came; there are %u ranks from 0", rank,
			       w->count);
	if (w->ranks[rank].ready)
		workers_lost(w);
	w->ranks[rank].ready = false;
	w->ranks[rank].peer = peer;
	return ERR_OK;
}

enum err workers_ready(struct workers *w, ipc_peer peer, const struct ipc_worker_ready *m, struct err_msg *em)
{
	if (m->rank >= w->count || w->ranks[m->rank].peer.v != peer.v)
		return err_set(em, ERR_INVALID,
			       "WORKER_READY of rank %u comes from a peer that did not greet as it", m->rank);
	if (m->block_count == 0 || m->max_model_len < 2 || m->vocab_size == 0 ||
	    m->eos_ids_count > EOS_IDS_MAX)
		return err_set(em, ERR_UNSUPPORTED,
			       "worker %u offers %u KV blocks, a context length of %u and a vocabulary of "
			       "%u; none may be empty",
			       m->rank, m->block_count, m->max_model_len, m->vocab_size);
	if ((u64)m->block_count + m->host_block_count >= UINT32_MAX)
		return err_set(em, ERR_UNSUPPORTED, "worker %u offers %u KV blocks and %u in host memory: more than ids",
			       m->rank, m->block_count, m->host_block_count);
	if (m->recurrent ? m->host_block_count > 0 || m->state_slots > STATE_SLOTS_MAX : m->state_slots > 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "worker %u, whose rows %s, offers %u slots for states and %u KV blocks in host memory; it must be at most %u and %s", m->rank,
			       m->recurrent ? "keep a state" : "keep no state", m->state_slots, m->host_block_count, m->recurrent ? STATE_SLOTS_MAX : 0,
			       m->recurrent ? "none" : "any number");
	if (m->embedding_width > EMBEDDING_MAX)
		return err_set(em, ERR_UNSUPPORTED, "worker %u offers embeddings of %u numbers; at most %u", m->rank, m->embedding_width,
			       (u32)EMBEDDING_MAX);
	struct worker_rank *r = &w->ranks[m->rank];
	r->info = *m;
	if (m->eos_ids_count)
		memcpy(r->eos, m->eos_ids, m->eos_ids_count * sizeof(u32));
	r->info.eos_ids = r->eos;
	if (m->no_grammars_count)
		memcpy(r->no_grammars, m->no_grammars, m->no_grammars_count);
	r->info.no_grammars = r->no_grammars;
	if (m->no_embeddings_count)
		memcpy(r->no_embeddings, m->no_embeddings, m->no_embeddings_count);
	r->info.no_embeddings = r->no_embeddings;
	r->ready = true;
	return ERR_OK;
}

bool workers_all_ready(const struct workers *w)
{
	for (u32 i = 0; i < w->count; i++)
		if (!w->ranks[i].ready || w->ranks[i].info.group != w->ranks[0].info.group)
			return false;
	return true;
}

struct ipc_worker_ready workers_common(const struct workers *w)
{
	struct ipc_worker_ready least = w->ranks[0].info;

	for (u32 i = 1; i < w->count; i++) {
		const struct ipc_worker_ready *info = &w->ranks[i].info;
		if (info->block_count < least.block_count)
			least.block_count = info->block_count;
		if (info->host_block_count < least.host_block_count)
			least.host_block_count = info->host_block_count;
		if (info->state_slots < least.state_slots)
			least.state_slots = info->state_slots;
		if (info->max_model_len < least.max_model_len)
			least.max_model_len = info->max_model_len;
	}
	return least;
}

enum err workers_send(struct workers *w, char *frame, size_t bytes)
{
	for (u32 i = 0; i < w->count; i++) {
		enum err e = outbox_send_frame(&w->outbox, w->ranks[i].peer, frame, bytes);
		if (e) {
			workers_lost(w);
			return e;
		}
	}
	return ERR_OK;
}
