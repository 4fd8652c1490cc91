/* Owns the pool of results that came before their OPEN; runs in the detokenizer. It is nearly always empty,
 * so the code is a plain array. Never grows. */
#include "proc_detok/early.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum err early_init(struct early *e, u32 capacity)
{
	ASSERT(capacity >= 4);
	*e = (struct early){.capacity = capacity};
	e->results = calloc(capacity, sizeof(*e->results));
	return e->results ? ERR_OK : ERR_NO_MEMORY;
}

void early_fini(struct early *e)
{
	for (u32 i = 0; i < e->count; i++)
		free(e->results[i].many);
	free(e->results);
	*e = (struct early){0};
}

static void oldest_drop(struct early *e, u32 count)
{
	for (u32 i = 0; i < count; i++)
		free(e->results[i].many);
	e->count -= count;
	e->dropped += count;
	memmove(e->results, e->results + count, e->count * sizeof(*e->results));
}

void early_add(struct early *e, u64 seq, u64 epoch, u32 position, u32 token, bool is_prompt,
	       const struct token_logprobs *lp, u64 now_ns)
{
	ASSERT(lp->count <= EMBEDDING_MAX);
	bool many = lp->count > LOGPROBS_MAX + 1;
	u32 *list = many ? malloc(2 * lp->count * sizeof(u32)) : NULL;

	if (many && !list) {
		e->dropped++;
		return;
	}
	/* a quarter at once, so that a flood does not move the whole array for every result */
	if (e->count == e->capacity)
		oldest_drop(e, e->capacity / 4);

	struct early_result *r = &e->results[e->count++];
	r->seq = seq;
	r->epoch = epoch;
	r->arrived_ns = now_ns;
	r->position = position;
	r->token = token;
	r->is_prompt = is_prompt;
	r->rank = lp->rank;
	r->count = lp->count;
	r->many = list;
	if (lp->count > 0) {
		memcpy(many ? list : r->ids, lp->ids, lp->count * sizeof(u32));
		memcpy(many ? (void *)(list + lp->count) : r->values, lp->values, lp->count * sizeof(f32));
	}
}

struct token_logprobs early_logprobs(const struct early_result *r)
{
	return (struct token_logprobs){.rank = r->rank,
				       .count = r->count,
				       .ids = r->many ? r->many : r->ids,
				       .values = r->many ? (const f32 *)(const void *)(r->many + r->count) : r->values};
}

void early_take(struct early *e, u64 seq, early_fn fn, void *ctx)
{
	u32 kept = 0;
	for (u32 i = 0; i < e->count; i++) {
		struct early_result *r = &e->results[i];
		if (r->seq == seq && !fn(ctx, r)) {
			free(r->many);
			continue;
		}
		if (kept++ != i)
			e->results[kept - 1] = *r;
	}
	e->count = kept;
}

void early_expire(struct early *e, u64 oldest_ns)
{
	u32 old = 0;
	while (old < e->count && e->results[old].arrived_ns < oldest_ns)
		old++;
	if (old > 0)
		oldest_drop(e, old);
}
