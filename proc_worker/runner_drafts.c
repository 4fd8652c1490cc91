/* Tokens that are guessed ahead: who gets which, and what of them came true. Runs in the worker within a step, on every
 * rank alike. Never decides what a token is: a draft counts when the sample in front of it says the same. */
#include "proc_worker/runner.h"

#include <string.h>

#include "common/assert.h"

void runner_draft(struct runner *r)
{
	struct batch_state *b = r->batch;
	u32 drafts[SPECULATIVE_TOKENS_MAX];

	if (!r->lookup)
		return;
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i], room = batch_state_draft_room(b, row);
		if (room == 0)
			continue;
		DASSERT(room <= SPECULATIVE_TOKENS_MAX);
		u32 count = draft_lookup_find(r->lookup, b, row, room, drafts);
		if (count == 0)
			continue;
		batch_state_draft(b, row, drafts, count);
		r->counts.drafts++;
	}
	batch_state_drafts_end(b);
	r->counts.draft_tokens = b->draft_count;
}

void runner_forget_unguided(struct runner *r)
{
	const struct batch_state *b = r->batch;
	const u32 *const *allowed = r->constrained ? r->constrained->allowed : NULL;

	for (u32 i = 0; allowed && b->draft_count && i < b->sample_count; i++)
		if (allowed[i - b->sample_ahead[i]] && !allowed[i])
			r->sampled[i] = BATCH_NO_TOKEN;
}

/* Lists of samples that are not kept leave; the others get their new numbers. */
static void keep_logprobs(struct sampler_logprobs *lp, const u32 *kept, u32 count)
{
	u32 entries = 0, ids = 0, from = 0, at = 0;

	for (u32 i = 0, n; i < lp->entries; i++, from += n) {
		n = lp->count[i];
		while (at < count && kept[at] < lp->entry[i])
			at++;
		if (at == count || kept[at] != lp->entry[i])
			continue;
		memmove(lp->ids + ids, lp->ids + from, n * sizeof(u32));
		memmove(lp->values + ids, lp->values + from, n * sizeof(f32));
		lp->rank[entries] = lp->rank[i];
		lp->entry[entries] = at;
		lp->count[entries++] = n;
		ids += n;
	}
	lp->entries = entries;
	lp->id_count = ids;
}

static void tell_lookup(struct runner *r)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0, next; i < b->sample_count; i = next) {
		u32 row = b->sample_rows[i];
		for (next = i + 1; next < b->sample_count && b->sample_rows[next] == row;)
			next++;
		if (b->drafts[row])
			draft_lookup_tell(r->lookup, row, next - i - 1);
	}
}

void runner_accept(struct runner *r)
{
	struct batch_state *b = r->batch;

	if (b->draft_count == 0)
		return;
	r->counts.accepted = batch_state_accept(b, r->sampled, r->kept, runner_ends, r);
	if (r->config.rank == 0)
		keep_logprobs(&r->columns.lp, r->kept, b->sample_count);
	tell_lookup(r);
}
