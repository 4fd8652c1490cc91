/* Owns the drafts of a step: tokens that are guessed to follow a row's known ones, run and sampled behind in the same step.
 * Runs in the worker, between batch_state_apply and batch_state_commit. Never decides which tokens: whoever guesses does,
 * and has to guess the same on every rank. */
#include <string.h>

#include "common/assert.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state_priv.h"

_Static_assert((u32)BATCH_SAMPLES_MAX == (u32)IPC_ROWS_MAX, "a RESULT has room for all samples");

static u32 min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

static u32 left(u32 limit, u64 used)
{
	return limit > used ? (u32)(limit - used) : 0;
}

u32 batch_state_draft_room(const struct batch_state *b, u32 row)
{
	const struct batch_limits *l = &b->limits;
	const struct batch_row *r = &b->rows[row];
	u32 known = b->known[row];

	DASSERT(b->applied);
	if (l->draft_max == 0 || b->row_count > l->draft_rows || b->run[row] != 1 || r->params.beam_width || b->drafts[row])
		return 0;
	u64 token_end = (u64)r->prompt_count + r->params.max_tokens;
	u32 end = token_end < l->max_model_len ? (u32)token_end : l->max_model_len;
	u32 room = min_u32(l->draft_max, left(end, (u64)known + 1));
	room = min_u32(room, left(b->capacity[row], known));
	room = min_u32(room, left(l->tokens_max, (u64)b->tokens_run + b->draft_count));
	room = min_u32(room, left(batch_samples_max(&b->created), (u64)b->sample_count + b->draft_count));
	if (l->draft_share)
		room = min_u32(room, left(l->draft_share / b->row_count, 1));
	return known <= l->draft_end ? min_u32(room, l->draft_end - known) : room;
}

void batch_state_draft(struct batch_state *b, u32 row, const u32 *drafts, u32 count)
{
	ASSERT(count > 0 && count <= batch_state_draft_room(b, row));
	memcpy(b->tokens + row * b->token_stride + b->known[row], drafts, count * sizeof(u32));
	b->drafts[row] = count;
	b->draft_count += count;
}

/* From behind, so that nothing is overwritten that is still to be read. */
void batch_state_drafts_end(struct batch_state *b)
{
	u32 to = b->sample_count + b->draft_count;

	if (b->draft_count == 0)
		return;
	for (u32 i = b->sample_count; i-- > 0;) {
		u32 row = b->sample_rows[i];
		for (u32 ahead = b->drafts[row] + 1; ahead-- > 0;) {
			b->sample_rows[--to] = row;
			b->sample_ahead[to] = ahead;
		}
	}
	ASSERT(to == 0);
	b->sample_count += b->draft_count;
}

u32 batch_state_accept(struct batch_state *b, u32 *sampled, u32 *kept, batch_ends_fn ends, void *ctx)
{
	u32 to = 0, accepted = 0;
	bool goes_on = true; /* whether the row's next sample is behind drafts that came true */

	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i], ahead = b->sample_ahead[i], token = sampled[i];
		goes_on = ahead == 0 || (goes_on && token != BATCH_NO_TOKEN);
		if (!goes_on)
			continue;
		u32 at = b->known[row] + ahead;
		goes_on = ahead < b->drafts[row] && batch_state_tokens(b, row)[at] == token &&
			  !ends(ctx, row, at + 1 - b->rows[row].prompt_count, token);
		accepted += ahead > 0;
		kept[to] = i;
		b->sample_rows[to] = row;
		b->sample_ahead[to] = ahead;
		sampled[to++] = token;
	}
	b->sample_count = to;
	return accepted;
}

void batch_state_count_drafts(struct batch_state *b)
{
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i], came_true = b->sample_ahead[i] > 0;
		b->computed[row] += came_true;
		b->computed_sum += came_true;
		b->drafts[row] = 0;
	}
	memset(b->sample_ahead, 0, batch_samples_max(&b->created) * sizeof(u32));
	b->draft_count = 0;
}
