/* What others may find of a sequence: its full blocks, and, of a model whose rows keep states, what these were behind some of them. Runs inside the
 * scheduling core; the rules of sched.c hold.
 *
 * Of states few can be kept, so what is saved is what is likely to be asked for again (as Pan et al. 2025, "Marconi", choose): behind the last full
 * block of a prompt, where the next turn of its conversation goes on; behind the newest full block of its answer, likewise; and, when a prompt has
 * blocks in the cache beyond the last state that is there, behind these, where it parts from what another one had: the next that has so much in
 * common with both finds it. All of it is written while the tokens run, and costs a copy in memory. */
#include "common/assert.h"
#include "common/step_digest.h"
#include "proc_scheduler/sched_priv.h"

/* Whose KV a sequence can share: that of others with the same tokens, salt and kind. 0: the usual one. */
static u64 kv_kind(const struct sched *s, const struct seq *q)
{
	if (!q->beyond)
		return 0;
	return s->config.kv_by_prompt ? q->prompt_count : 1;
}

void sched_place(struct sched *s, struct seq *q)
{
	u32 length = s->config.kv_by_prompt ? q->prompt_count : q->known;
	bool beyond = s->config.kv_switch_len && length > s->config.kv_switch_len;

	if (beyond != q->beyond) {
		q->hashed = 0;
		sched_swap_forget(s, q);
	}
	q->beyond = beyond;
}

struct block_hash sched_hash_root(const struct sched *s, const struct seq *q)
{
	u64 kind = kv_kind(s, q);

	return prefix_cache_root(&s->cache, kind ? q->cache_salt ^ step_digest_mix(kind) : q->cache_salt);
}

void sched_hash_blocks(struct sched *s, struct seq *q)
{
	u32 block_size = s->config.block_size;
	struct block_hash *hashes = seqs_hashes(&s->seqs, q);
	const u32 *tokens = seqs_tokens(&s->seqs, q);

	if (!s->config.prefix_caching)
		return;
	while ((u64)(q->hashed + 1) * block_size <= q->known) {
		struct block_hash parent =
			q->hashed ? hashes[q->hashed - 1] : sched_hash_root(s, q);
		hashes[q->hashed] =
			prefix_cache_chain(&s->cache, parent, tokens + (size_t)q->hashed * block_size);
		q->hashed++;
	}
}

/* ---------------------------------------------------------------- states */

/* That names its first `tokens`, which are full blocks, all known and hashed. */
static struct block_hash hash_behind(const struct sched *s, const struct seq *q, u32 tokens)
{
	DASSERT(tokens % s->config.block_size == 0 && tokens / s->config.block_size <= q->hashed);
	return seqs_hashes(&s->seqs, q)[tokens / s->config.block_size - 1];
}

/* Behind how many tokens the state is worth keeping when `count` more run; 0: nowhere. */
static u32 save_point(const struct sched *s, const struct seq *q, u32 count)
{
	u32 size = s->config.block_size, end = q->computed + count, last = (q->known - 1) / size * size;

	if (q->branch > q->computed && q->branch <= end)
		return q->branch;
	if (last > q->computed && last <= end)
		return last;
	return count == 1 && end >= q->known && end % size == 0 ? end : 0; /* not of prompts that run token by token */
}

/* Of an answer the newest one is enough. */
static void file_newest(struct sched *s, struct seq *q, u32 slot, u32 tokens, u64 step)
{
	if (q->saved_tokens)
		state_cache_forget(&s->states, q->saved_slot, hash_behind(s, q, q->saved_tokens), step);
	state_cache_file(&s->states, slot, hash_behind(s, q, tokens), step);
	q->saved_slot = slot;
	q->saved_tokens = tokens;
}

void sched_save_state(struct sched *s, struct seq *q, u32 count, u64 step)
{
	u32 tokens = s->states.count && !q->group ? save_point(s, q, count) : 0;

	if (!tokens)
		return;
	sched_hash_blocks(s, q);
	bool known = tokens <= q->known, answer = tokens > q->prompt_count;
	if (known && state_cache_has(&s->states, hash_behind(s, q, tokens)))
		return;
	if (q->pending_tokens) /* its tokens did not become known in time */
		state_cache_give_back(&s->states, q->pending_slot);
	q->pending_tokens = 0;
	u32 slot = state_cache_take(&s->states, step);
	if (slot == STATE_SLOT_NONE)
		return;
	step_diff_save(&s->diff, q->row, slot, tokens);
	if (!known) {
		q->pending_slot = slot;
		q->pending_tokens = tokens;
	} else if (answer) {
		file_newest(s, q, slot, tokens, step);
	} else {
		state_cache_file(&s->states, slot, hash_behind(s, q, tokens), step);
	}
}

/* The state that waited for the values of its tokens, of which so many are known. */
static void file_pending(struct sched *s, struct seq *q, u32 known, u64 step)
{
	if (!q->pending_tokens || known < q->pending_tokens)
		return;
	if (state_cache_has(&s->states, hash_behind(s, q, q->pending_tokens)))
		state_cache_give_back(&s->states, q->pending_slot);
	else
		file_newest(s, q, q->pending_slot, q->pending_tokens, step);
	q->pending_tokens = 0;
}

void sched_forget_saved(struct sched *s, struct seq *q)
{
	if (q->pending_tokens)
		state_cache_give_back(&s->states, q->pending_slot);
	q->pending_tokens = q->saved_tokens = q->branch = 0;
}

u32 sched_find_state(struct sched *s, const struct seq *q, u32 *blocks, u64 step)
{
	u32 slot = STATE_SLOT_NONE;

	for (; *blocks; (*blocks)--) {
		slot = state_cache_find(&s->states, seqs_hashes(&s->seqs, q)[*blocks - 1], step);
		if (slot != STATE_SLOT_NONE)
			break;
	}
	return slot;
}

/* So many tokens more are worth a step, in which nobody behind it is admitted either. */
enum { WORTH_WAITING_TOKENS = 64 };

bool sched_state_is_coming(const struct sched *s, const struct seq *q, u32 computed, u64 step)
{
	u32 size = s->config.block_size, most = (q->known - 1) / size;

	for (u32 i = 0; i < s->running.count; i++) {
		const struct seq *other = sched_running(s, i);
		u32 last = (other->known - 1) / size, tokens = last * size;
		if (other->group || last > most || last > other->hashed || last > q->hashed || tokens < computed + WORTH_WAITING_TOKENS)
			continue;
		struct block_hash mine = hash_behind(s, q, tokens), theirs = hash_behind(s, other, tokens);
		bool comes = other->computed < tokens || state_cache_is_saved_by(&s->states, theirs, step);
		if (comes && mine.low == theirs.low && mine.high == theirs.high)
			return true;
	}
	return false;
}

void sched_file_blocks(struct sched *s, struct seq *q, u64 step)
{
	u32 tokens = q->known < q->computed ? q->known : q->computed;

	if (!s->config.prefix_caching)
		return;
	sched_hash_blocks(s, q);
	u32 full = tokens / s->config.block_size;
	for (; q->filed < full; q->filed++)
		prefix_cache_put(&s->cache, sched_blocks(s, q)[q->filed], seqs_hashes(&s->seqs, q)[q->filed],
				 step);
	file_pending(s, q, tokens, step);
}
