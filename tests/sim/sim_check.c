/* The simulator's judge: what must hold after every step and at the end of every request. Never changes
 * anything. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/step_digest.h"
#include "tests/sim/sim_world.h"

static void check_row(struct sim_world *w, const struct seq *q)
{
	const struct batch_state *b = w->worker.batch;
	const struct sched *s = w->sched;
	u32 row = q->row, guessed = sim_guessed(&w->results[w->result_count], q->id); /* which the scheduler does not know yet */

	if (b->known[row] == 0 || b->rows[row].seq != q->id)
		sim_fail(w, "row %u should hold sequence %" PRIu64, row, q->id);
	if (b->known[row] != q->known + q->in_flight + guessed)
		sim_fail(w, "row %u: %u tokens there, %u + %u + %u here", row, b->known[row], q->known, q->in_flight, guessed);
	if (b->computed[row] != q->computed + guessed)
		sim_fail(w, "row %u: %u computed there, %u + %u here", row, b->computed[row], q->computed, guessed);
	/* A group that had to pause has not yet told its newest tokens. */
	u32 told = q->known - (q->group && groups_of(s, q)->is_set[q->beam]);
	if (memcmp(batch_state_tokens(b, row), seqs_tokens(&s->seqs, q), told * sizeof(u32)))
		sim_fail(w, "row %u: tokens differ", row);
	if (b->rows[row].block_count != q->block_count ||
	    memcmp(batch_state_blocks(b, row), sched_blocks(s, q), q->block_count * sizeof(u32)))
		sim_fail(w, "row %u: block tables differ", row);
	if (q->computed > q->capacity || q->known + q->in_flight > q->token_end)
		sim_fail(w, "row %u: %u computed of %u, %u tokens of %u", row, q->computed, q->capacity,
			 q->known + q->in_flight, q->token_end);
}

/* The digest from nothing but the worker's tables. */
static void check_digest(struct sim_world *w)
{
	const struct batch_state *b = w->worker.batch;
	u64 set_sum = 0, computed_sum = 0;

	for (u32 row = 0; row < b->created.rows_max; row++) {
		if (!batch_state_present(b, row))
			continue;
		const struct batch_row *r = &b->rows[row];
		set_sum += step_digest_row(row, r->seq, r->prompt_count, r->added_tokens, r->added_computed);
		for (u32 i = 0; i < r->block_count; i++)
			set_sum += step_digest_block(row, i, batch_state_blocks(b, row)[i]);
		computed_sum += b->computed[row];
	}
	u32 guessed = sim_guessed(&w->results[w->result_count], 0);
	if (set_sum != w->sched->diff.set_sum || computed_sum != w->sched->diff.computed_sum + guessed)
		sim_fail(w, "the rolling digest is not that of the tables");
}

static void check_blocks(struct sim_world *w)
{
	const struct sched *s = w->sched;
	u32 free_count = 0, listed = 0;

	memset(w->refs, 0, s->kv.capacity * sizeof(u32));
	for (u32 i = 0; i < s->running.count; i++) {
		const struct seq *q = &s->seqs.slots[s->running.slots[i]];
		for (u32 j = 0; j < q->block_count; j++)
			w->refs[sched_blocks(s, q)[j]]++;
	}
	for (u32 b = 0; b < s->kv.count; b++) {
		if (w->refs[b] != kv_blocks_refs(&s->kv, b))
			sim_fail(w, "block %u has %u references, %u rows hold it", b,
				 kv_blocks_refs(&s->kv, b), w->refs[b]);
		free_count += w->refs[b] == 0;
	}
	for (u32 b = s->kv.blocks[s->kv.capacity].next; b != s->kv.capacity; b = s->kv.blocks[b].next) {
		if (w->refs[b] || listed++ > s->kv.count)
			sim_fail(w, "the free list holds block %u, which is in use, or it has a loop", b);
	}
	if (free_count != s->kv.free_count || listed != free_count)
		sim_fail(w, "%u blocks are free, the list has %u, the count says %u", free_count, listed,
			 s->kv.free_count);
}

static void mark_host(struct sim_world *w, u32 block, u32 count, const char *whose)
{
	const struct host_blocks *h = &w->sched->host;

	for (; count--; block = h->next[block])
		if (block >= h->count || w->host_refs[block]++)
			sim_fail(w, "host block %u, of %s, is none of %u or in two chains", block, whose, h->count);
	if (block != HOST_BLOCK_NONE)
		sim_fail(w, "a host chain of %s goes on behind its end", whose);
}

/* Of what is saved and waits for its tokens: a slot is one running sequence's, and nobody finds it. */
static void check_pending(struct sim_world *w)
{
	const struct sched *s = w->sched;
	u32 count = 0;

	for (u32 i = 0; i < s->seqs.slot_count; i++) {
		const struct seq *q = &s->seqs.slots[i];
		if (!q->id || !q->pending_tokens)
			continue;
		if (q->state != SEQ_RUNNING || q->pending_slot >= s->states.count)
			sim_fail(w, "sequence %" PRIu64 " in state %u waits for the tokens of slot %u", q->id, q->state, q->pending_slot);
		for (u32 j = 0; j < i; j++)
			if (s->seqs.slots[j].id && s->seqs.slots[j].pending_tokens && s->seqs.slots[j].pending_slot == q->pending_slot)
				sim_fail(w, "sequences %" PRIu64 " and %" PRIu64 " wait for slot %u", q->id, s->seqs.slots[j].id, q->pending_slot);
		count++;
	}
	if (s->states.filed + count > s->states.count)
		sim_fail(w, "%u states filed and %u pending in %u slots", s->states.filed, count, s->states.count);
}

/* Every host block is free or in the chain of one sequence, and that one waits. */
static void check_host_blocks(struct sim_world *w)
{
	const struct sched *s = w->sched;
	u32 swapped = 0, held = 0;

	memset(w->host_refs, 0, s->host.capacity * sizeof(u32));
	for (u32 i = 0; i < s->seqs.slot_count; i++) {
		const struct seq *q = &s->seqs.slots[i];
		const struct seq_extra *x = seqs_extra(&s->seqs, q);
		if (!q->id || !x->host_count)
			continue;
		if (q->state != SEQ_WAITING || x->host_computed >= q->known + q->in_flight ||
		    (x->host_computed + s->config.block_size - 1) / s->config.block_size != x->host_count)
			sim_fail(w, "sequence %" PRIu64 " in state %u has %u computed tokens in %u host blocks", q->id,
				 q->state, x->host_computed, x->host_count);
		mark_host(w, x->host_first, x->host_count, "a sequence");
		held += x->host_count;
		swapped++;
	}
	mark_host(w, s->host.first_free, s->host.free_count, "the free ones");
	if (held + s->host.free_count != s->host.count || swapped != s->swapped_count)
		sim_fail(w, "%u host blocks are held and %u free of %u; %u sequences hold them, the count says %u", held,
			 s->host.free_count, s->host.count, swapped, s->swapped_count);
}

/* Beams that are computed again share blocks that one of them computes; the others begin behind these. */
static bool is_shared_ahead(const struct sim_world *w, u32 block)
{
	const struct sched *s = w->sched;
	u32 group = 0;

	for (u32 i = 0; i < s->running.count; i++) {
		const struct seq *q = &s->seqs.slots[s->running.slots[i]];
		u32 at = 0;
		while (at < q->block_count && sched_blocks(s, q)[at] != block)
			at++;
		if (at == q->block_count)
			continue;
		bool writes = q->row == w->worker.writer_row[block];
		if (!q->group || (group && group != q->group) ||
		    (!writes && q->computed < (at + 1) * s->config.block_size))
			return false;
		group = q->group;
	}
	return true;
}

/* Nothing is written into a block that somebody may read as cached: what a step writes was filed in that step
 * at the earliest. */
static void check_writes(struct sim_world *w, u64 step)
{
	const struct sched *s = w->sched;

	for (u32 b = 0; b < s->kv.count; b++) {
		if (w->worker.writer_step[b] != step)
			continue;
		if (prefix_cache_has(&s->cache, b) && prefix_cache_step(&s->cache, b) < step)
			sim_fail(w,
				 "step %" PRIu64 " writes into block %u, which is cached since step %" PRIu64,
				 step, b, prefix_cache_step(&s->cache, b));
		if (w->refs[b] > 1 && !prefix_cache_has(&s->cache, b) && !is_shared_ahead(w, b))
			sim_fail(w, "step %" PRIu64 " writes into block %u, which is shared", step, b);
	}
}

/* Both orders are those of the priorities, and equals wait as they came. */
static void check_order(struct sim_world *w)
{
	const struct sched *s = w->sched;
	const struct seq *before = NULL;
	u32 count = 0;

	for (u32 i = 1; i < s->running.count; i++)
		if (s->seqs.slots[s->running.slots[i - 1]].priority > s->seqs.slots[s->running.slots[i]].priority)
			sim_fail(w, "running %u goes in front of one of a lower priority", i - 1);
	for (u32 slot = s->waiting.head; slot != SEQ_NONE; slot = s->seqs.slots[slot].next, count++) {
		const struct seq *q = &s->seqs.slots[slot];
		if (before && before->priority > q->priority)
			sim_fail(w, "%" PRIu64 " waits in front of one of a lower priority", before->id);
		if (before && before->priority == q->priority && before->id > q->id && !before->preempted)
			sim_fail(w, "%" PRIu64 " waits in front of one that came earlier", before->id);
		before = q;
	}
	if (count != s->waiting.count)
		sim_fail(w, "%u wait, the count says %u", count, s->waiting.count);
}

/* Whatever happened to its row, it has the grammar that the request came with, or none. */
static void check_grammar(const struct sim_world *w, const struct seq *q)
{
	const struct batch_state *b = w->worker.batch;
	const struct batch_row *r = &b->rows[q->row];
	char source[SIM_GRAMMAR_BYTES_MAX];
	u32 bytes = sim_grammar(q->client_id, q->req_id, &q->params, q->session != 0, source);

	if ((r->grammar_kind != GRAMMAR_KIND_NONE) != (bytes > 0) || r->grammar_bytes != bytes ||
	    memcmp(batch_state_grammar(b, q->row), source, bytes) != 0)
		sim_fail(w, "sequence %" PRIu64 " has another grammar than its request", q->id);
}

void sim_check_step(struct sim_world *w, const struct ipc_step *step)
{
	const struct sched *s = w->sched;
	const struct batch_state *b = w->worker.batch;

	if (b->row_count != s->running.count)
		sim_fail(w, "%u rows there, %u here", b->row_count, s->running.count);
	/* Who is admitted got a token of the budget that others had left: so it suffices for all in every step. */
	u32 rows = s->running.count + s->groups.spare_rows;
	if (rows + s->free_row_count != w->config.max_num_seqs)
		sim_fail(w, "%u rows run, %u are kept for beams and %u are free", s->running.count, s->groups.spare_rows,
			 s->free_row_count);
	if (rows > w->config.max_num_seqs || rows > w->config.max_num_batched_tokens ||
	    s->diff.tokens_run > w->config.max_num_batched_tokens)
		sim_fail(w, "%u rows and %u tokens run", s->running.count, s->diff.tokens_run);
	if (s->flight_count > w->config.async_depth + (w->config.async_depth == SCHED_DEPTH_MAX ? 2u : 1u))
		sim_fail(w, "%u steps are in flight", s->flight_count);
	for (u32 i = 0; i < s->running.count; i++)
		check_row(w, &s->seqs.slots[s->running.slots[i]]);
	for (u32 i = 0; i < s->running.count; i++)
		check_grammar(w, &s->seqs.slots[s->running.slots[i]]);
	check_order(w);
	check_digest(w);
	check_blocks(w);
	check_host_blocks(w);
	check_pending(w);
	check_writes(w, step->step);
}

static struct sim_request *request_of(struct sim_world *w, const struct seq *q)
{
	for (u32 i = w->request_count; i-- > 0;)
		if (w->requests[i].client_id == q->client_id && w->requests[i].req_id == q->req_id)
			return &w->requests[i];
	sim_fail(w, "request %" PRIu64 " of client %" PRIu64 " ended, but was never accepted", q->req_id,
		 q->client_id);
}

/* What the model says alone, with nobody else in the batch. */
static enum finish_reason solo_step(const struct sim_world *w, const struct sim_request *r, u32 *tokens,
				    u32 *count)
{
	struct finish_rule rule = {
		.output_max = r->output_max,
		.output_min = r->min_tokens,
		.ignore_eos = r->ignore_eos,
		.eos_ids = w->config.eos_ids,
		.eos_count = w->config.eos_count,
		.stop_ids = &r->stop_id,
		.stop_count = r->stop_id != UINT32_MAX,
	};

	tokens[*count] = fake_next_token(tokens, *count, w->config.vocab_size);
	++*count;
	return finish_check(&rule, *count - r->prompt_count, tokens[*count - 1]).reason;
}

void sim_check_result(struct sim_world *w, const struct ipc_result *m)
{
	for (u32 i = 0; i < m->seq_count; i++) {
		const struct seq *q = seqs_find(&w->sched->seqs, m->seq[i]);
		if (!q || !q->opened)
			sim_fail(w, "outputs were told of a sequence that is not open");
		struct sim_request *r = request_of(w, q);
		if (!r->width || m->position[i] != r->told_count || r->told_count == SIM_PROMPT_MAX)
			sim_fail(w, "request %" PRIu64 " was told output %u after %u", r->req_id, m->position[i],
				 r->told_count);
		r->told[r->told_count++] = m->token[i];
	}
}

/* Answers are those of a search on its own. */
static void check_answer(struct sim_world *w, struct sim_request *r, const struct seq *q, const u32 *tokens,
			 enum finish_reason reason)
{
	struct sim_beam *beams = calloc(BEAM_WIDTH_MAX, sizeof(*beams));

	ASSERT(beams);
	w->ends[reason]++;
	if (reason == FINISH_ABORT || (reason == FINISH_ERROR && w->restarts)) { /* the pool may have shrunk */
		if (q->known != q->prompt_count || r->told_count)
			sim_fail(w, "request %" PRIu64 " was given up after outputs", r->req_id);
		free(beams);
		return;
	}
	u32 count = sim_beam_search(w, r - r->answer, beams);
	const struct sim_beam *b = &beams[r->answer];
	if (r->answer >= count || b->count != q->known || memcmp(b->tokens, tokens, b->count * sizeof(u32)) ||
	    reason != (b->stopped ? FINISH_STOP : FINISH_LENGTH))
		sim_fail(w, "request %" PRIu64 ": answer %u has %u tokens and ended with %s; alone it has %u and %s (%u answers)",
			 r->req_id, r->answer, q->known, finish_reason_name(reason), b->count,
			 b->stopped ? "stop" : "length", count);
	if (r->told_count != q->known - q->prompt_count ||
	    memcmp(r->told, tokens + q->prompt_count, r->told_count * sizeof(u32)))
		sim_fail(w, "request %" PRIu64 ": %u of %u outputs were told", r->req_id, r->told_count,
			 q->known - q->prompt_count);
	w->answers++;
	free(beams);
}

void sim_check_told(struct sim_world *w, const struct seq *q, enum finish_reason reason)
{
	sim_session_told(w, request_of(w, q), reason);
}

void sim_check_request_end(struct sim_world *w, const struct seq *q, const u32 *tokens,
			   enum finish_reason reason)
{
	struct sim_request *r = request_of(w, q);
	u32 solo[2 * SIM_PROMPT_MAX];
	u32 count = r->prompt_count + r->start_count;
	enum finish_reason by_tokens = FINISH_NONE;

	if (r->end_count++)
		sim_fail(w, "request %" PRIu64 " ended twice", r->req_id);
	r->live = false;
	if (r->width) {
		check_answer(w, r, q, tokens, reason);
		return;
	}
	memcpy(solo, r->tokens, count * sizeof(u32));
	while (count < q->known && by_tokens == FINISH_NONE)
		by_tokens = solo_step(w, r, solo, &count);
	if (count != q->known || memcmp(solo, tokens, count * sizeof(u32)))
		sim_fail(w, "request %" PRIu64 " differs from its solo run: %u tokens here, %u alone",
			 r->req_id, q->known, count);
	if (by_tokens != FINISH_NONE && by_tokens != reason)
		sim_fail(w, "request %" PRIu64 " ended with %s; its tokens say %s", r->req_id,
			 finish_reason_name(reason), finish_reason_name(by_tokens));
	if (reason == FINISH_LENGTH && by_tokens == FINISH_NONE && r->start_count < r->output_max)
		sim_fail(w, "request %" PRIu64 " ended by length after %u tokens", r->req_id, count);
	w->ends[reason]++;
	sim_session_ended(w, r, q, tokens);
}

void sim_check_end(struct sim_world *w)
{
	const struct sched *s = w->sched;

	if (sched_live_count(s) || !sched_is_idle(s))
		sim_fail(w, "%u requests never ended", sched_live_count(s));
	if (s->kv.free_count != s->kv.count)
		sim_fail(w, "%u blocks leaked", s->kv.count - s->kv.free_count);
	if (s->host.free_count != s->host.count)
		sim_fail(w, "%u host blocks leaked", s->host.count - s->host.free_count);
	if (s->free_row_count != w->config.max_num_seqs || w->worker.batch->row_count)
		sim_fail(w, "rows leaked");
	for (u32 i = 0; i < w->request_count; i++)
		if (w->requests[i].end_count != 1)
			sim_fail(w, "request %" PRIu64 " ended %u times", w->requests[i].req_id,
				 w->requests[i].end_count);
	if (s->groups.used || s->groups.spare_rows)
		sim_fail(w, "%u groups and %u of their rows leaked", s->groups.used, s->groups.spare_rows);
	if (s->ending_count)
		sim_fail(w, "%u sequences are counted as ending, but none is there", s->ending_count);
}
