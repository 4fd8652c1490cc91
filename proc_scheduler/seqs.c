/* Owns the memory of all sequences; runs inside the scheduling core. Address space for every slot is reserved
 * at start and becomes memory as it is written; slots are handed out last freed first, so that memory stays
 * what the busiest moment needed. Never allocates later, never decides anything. */
#include "proc_scheduler/seqs.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"

/* With a NULL base it only measures. */
static size_t lay_out(struct seqs *t, char *base)
{
	size_t n = t->slot_count;
	size_t offset = 0;

	t->slots = region_carve(base, &offset, n * sizeof(*t->slots));
	t->free_slots = region_carve(base, &offset, n * sizeof(*t->free_slots));
	t->extras = region_carve(base, &offset, n * sizeof(*t->extras));
	t->tokens = region_carve(base, &offset, n * t->token_stride * sizeof(*t->tokens));
	t->hashes = region_carve(base, &offset, n * t->hash_stride * sizeof(*t->hashes));
	t->grammars = region_carve(base, &offset, n * GRAMMAR_SOURCE_MAX);
	return offset;
}

enum err seqs_init(struct seqs *t, u32 slot_count, u32 token_max, u32 block_size, u64 first_number,
		   u64 secret, struct err_msg *em)
{
	ASSERT(slot_count > 0 && slot_count <= SEQ_SLOTS_MAX);
	memset(t, 0, sizeof(*t));
	t->slot_count = slot_count;
	/* Odd numbers of cache lines: the newest tokens of all sequences must not fall into one cache set. */
	t->token_stride = ((size_t)token_max / 16 + 1) * 16 + 16;
	t->hash_stride = (size_t)token_max / block_size + 1;
	t->next_number = first_number + 1;
	t->secret = secret;
	t->memory_bytes = lay_out(t, NULL);
	void *memory = region_reserve(t->memory_bytes);
	if (!memory)
		return region_refuse(
			em,
			"cannot reserve %zu bytes for %u requests of %u tokens; lower --max-queued-requests, "
			"--max-num-seqs or --max-model-len",
			t->memory_bytes, slot_count, token_max);
	t->memory = memory;
	lay_out(t, memory);
	enum err e = map_init(&t->by_request, slot_count, secret);
	if (e) {
		seqs_fini(t);
		return err_set(em, e, "out of memory for the index of %u requests", slot_count);
	}
	for (u32 i = 0; i < slot_count; i++)
		t->free_slots[i] = slot_count - 1 - i;
	t->free_count = slot_count;
	return ERR_OK;
}

void seqs_fini(struct seqs *t)
{
	region_release(t->memory, t->memory_bytes);
	map_fini(&t->by_request);
	memset(t, 0, sizeof(*t));
}

/* Two different pairs with one key are as likely as a collision of a keyed 64-bit hash. */
static u64 request_key(const struct seqs *t, u64 client_id, u64 req_id)
{
	return step_digest_mix(step_digest_mix(client_id ^ t->secret) + req_id);
}

/* The slot on top of the stack, zeroed, with its id. */
static struct seq *take_slot(struct seqs *t, u64 client_id)
{
	u32 slot = t->free_slots[--t->free_count];
	struct seq *q = &t->slots[slot];
	struct seq_extra *x = &t->extras[slot];

	memset(q, 0, sizeof(*q));
	q->id = t->next_number++ << SEQ_SLOT_BITS | slot;
	q->client_id = client_id;
	q->prev = q->next = SEQ_NONE;
	x->host_count = x->host_computed = 0;
	x->stop_count = x->bias_count = x->stop_string_count = x->stop_string_bytes_sum = 0;
	x->grammar_kind = x->grammar_flags = x->grammar_bytes = x->lora = 0;
	return q;
}

enum err seqs_add(struct seqs *t, u64 client_id, u64 req_id, struct seq **out)
{
	*out = NULL;
	if (t->free_count == 0)
		return ERR_BUSY;
	enum err e = map_put(&t->by_request, request_key(t, client_id, req_id), t->free_slots[t->free_count - 1]);
	if (e)
		return e;
	*out = take_slot(t, client_id);
	(*out)->req_id = req_id;
	return ERR_OK;
}

enum err seqs_add_unnamed(struct seqs *t, u64 client_id, struct seq **out)
{
	*out = NULL;
	if (t->free_count == 0)
		return ERR_BUSY;
	*out = take_slot(t, client_id);
	(*out)->unnamed = true;
	return ERR_OK;
}

void seqs_remove(struct seqs *t, struct seq *q)
{
	ASSERT(q->id != 0);
	bool there = q->unnamed || map_remove(&t->by_request, request_key(t, q->client_id, q->req_id));
	ASSERT(there);
	q->id = 0;
	q->state = SEQ_FREE;
	t->free_slots[t->free_count++] = seqs_slot(t, q);
}

struct seq *seqs_find_request(const struct seqs *t, u64 client_id, u64 req_id)
{
	u32 slot;

	if (!map_get(&t->by_request, request_key(t, client_id, req_id), &slot))
		return NULL;
	struct seq *q = &t->slots[slot];
	return q->client_id == client_id && q->req_id == req_id ? q : NULL;
}
