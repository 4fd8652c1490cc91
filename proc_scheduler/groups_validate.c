/* Judges what a SUBMIT says of a beam search. Runs inside the scheduling core, changes nothing. What a search cannot
 * do is refused by name, and what can never fit with the numbers. */
#include <math.h>

#include "proc_scheduler/sched_priv.h"

#define LENGTH_PENALTY_MAX 10.0

static enum err check_neutral(const struct ipc_submit *m, struct err_msg *em)
{
	const struct {
		const char *name;
		f64 value, neutral;
	} fields[] = {
		{"temperature", (f64)m->temperature, 0},
		{"top_p", (f64)m->top_p, 1},
		{"min_p", (f64)m->min_p, 0},
		{"top_k", (f64)m->top_k, 0},
		{"repetition_penalty", (f64)m->repetition_penalty, 1},
		{"presence_penalty", (f64)m->presence_penalty, 0},
		{"frequency_penalty", (f64)m->frequency_penalty, 0},
		{"the number of stop strings", (f64)m->stop_string_bytes_count, 0},
		{"output_count", (f64)m->output_count, 0},
	};

	for (size_t i = 0; i < COUNT_OF(fields); i++)
		if (fields[i].value != fields[i].neutral)
			return err_set(em, ERR_INVALID, "%s is %g; with beam search it must be %g", fields[i].name,
				       fields[i].value, fields[i].neutral);
	return ERR_OK;
}

static enum err check_rows(const struct sched *s, u32 width, struct err_msg *em)
{
	if (width > s->config.max_num_seqs)
		return err_set(em, ERR_NEVER_FITS, "beam_width is %u, and each beam is a row; --max-num-seqs allows %u", width,
			       s->config.max_num_seqs);
	if (width > s->config.max_num_batched_tokens)
		return err_set(em, ERR_NEVER_FITS,
			       "beam_width is %u, and each beam runs a token a step; --max-num-batched-tokens allows %u", width,
			       s->config.max_num_batched_tokens);
	return ERR_OK;
}

/* At worst the beams part with the first output and share the full blocks of the prompt only; where rows keep states, and a search has been
 * preempted, not even those. */
static enum err check_blocks(const struct sched *s, const struct ipc_submit *m, u32 output_max, struct err_msg *em)
{
	u32 block_size = s->config.block_size, width = m->beam_width;
	u64 tokens = (u64)m->tokens_count + output_max - 1; /* the last output is never run */
	u64 total = (tokens + block_size - 1) / block_size;
	u64 shared = width > 1 && !s->config.recurrent ? m->tokens_count / block_size : 0;
	u64 needed = shared + width * (total - shared);

	if (needed <= s->kv.count)
		return ERR_OK;
	return err_set(em, ERR_NEVER_FITS,
		       "%u beams behind a prompt of %u tokens can need %llu KV blocks of %u for %u outputs each; the pool has "
		       "%u. Lower max_tokens or the number of beams",
		       width, m->tokens_count, (unsigned long long)needed, block_size, output_max, s->kv.count);
}

enum err groups_validate(const struct sched *s, const struct ipc_submit *m, u32 output_max, struct err_msg *em)
{
	if (m->beam_width == 0) {
		if (m->answer_count > 1)
			return err_set(em, ERR_INVALID, "answer_count is %u; without beam search it must be 0 or 1",
				       m->answer_count);
		return ERR_OK;
	}
	if (m->answer_count > m->beam_width)
		return err_set(em, ERR_INVALID, "answer_count is %u; it must be at most beam_width, %u", m->answer_count,
			       m->beam_width);
	if (m->req_id > UINT64_MAX - m->answer_count)
		return err_set(em, ERR_INVALID, "req_id is %llu, which leaves no ids behind it for the other answers",
			       (unsigned long long)m->req_id);
	if (!(fabs(m->length_penalty) <= LENGTH_PENALTY_MAX))
		return err_set(em, ERR_INVALID, "length_penalty is %g; it must be between %g and %g", m->length_penalty,
			       -LENGTH_PENALTY_MAX, LENGTH_PENALTY_MAX);
	if (m->session_count)
		return err_set(em, ERR_UNSUPPORTED,
			       "a session goes on with one answer, and a beam search has several; leave out session or beam_width");
	enum err e = check_neutral(m, em);
	if (!e)
		e = check_rows(s, m->beam_width, em);
	return e ? e : check_blocks(s, m, output_max, em);
}

enum err groups_check_room(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	for (u32 i = 1; i < m->answer_count; i++)
		if (seqs_find_request(&s->seqs, m->client_id, m->req_id + i))
			return err_set(em, ERR_EXISTS,
				       "request %llu of this client, which answer %u would be, is there already",
				       (unsigned long long)(m->req_id + i), i);
	if (s->groups.used == GROUPS_MAX)
		return err_set(em, ERR_BUSY, "%u beam searches are waiting or running, which is the most; try again later",
			       GROUPS_MAX);
	if (s->seqs.free_count < m->beam_width)
		return err_set(em, ERR_BUSY, "%u slots for requests are left, and the beam search needs %u; try again later",
			       s->seqs.free_count, m->beam_width);
	return ERR_OK;
}
