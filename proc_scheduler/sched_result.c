/* What a RESULT does to the scheduling core: whether it is the one that is due, whose tokens it has, and what they end. Runs
 * inside the scheduling core; the rules of sched.c hold. */
#include <string.h>

#include "proc_scheduler/sched_priv.h"

#define NS_PER_S 1e9

/* Rows of a batch got their last tokens at the same moment: one observation for all with the same gap. */
struct gap_tally {
	u64 ns;
	u32 count;
};

static void tally_flush(struct sched *s, struct gap_tally *t)
{
	if (t->count)
		stats_observe_many(s->stats, STATS_ITL, (double)t->ns / NS_PER_S, t->count);
	t->count = 0;
}

static void tally_token(struct sched *s, struct seq *q, u64 now_ns, struct gap_tally *t)
{
	if (q->token_ns) {
		u64 gap = now_ns - q->token_ns;
		if (gap != t->ns)
			tally_flush(s, t);
		t->ns = gap;
		t->count++;
	} else {
		stats_observe(s->stats, STATS_TTFT, (double)(now_ns - q->arrived_ns) / NS_PER_S);
		stats_observe(s->stats, STATS_PREFILL, (double)(now_ns - q->scheduled_ns) / NS_PER_S);
		q->first_token_ns = now_ns;
	}
	q->token_ns = now_ns;
}

/* Judges a sequence behind its newest output. */
static void judge_token(struct sched *s, struct seq *q, u32 token, u64 now_ns)
{
	struct finish_rule rule = sched_rule(s, q);
	struct finish f = finish_check(&rule, seq_output_count(q), token);
	if (f.reason == FINISH_NONE && q->stop_count && q->stop_count <= seq_output_count(q))
		f.reason = FINISH_STOP;
	if (f.reason != FINISH_NONE) {
		sched_finish(s, q, f.reason, "", now_ns);
		return;
	}
	if (q->state == SEQ_RUNNING && q->known >= (q->filed + 1) * s->config.block_size)
		sched_file_blocks(s, q, s->diff.step);
}

/* Appends an output that was due. */
static void push_token(struct sched *s, struct seq *q, u32 token, u64 now_ns)
{
	seqs_tokens(&s->seqs, q)[q->known++] = token;
	q->in_flight--;
	judge_token(s, q, token, now_ns);
}

/* Row `i` of a RESULT is one more output of the row before it: the worker had guessed that one right, and its KV is there.
 * NULL: it is not, or the sequence has ended. */
static struct seq *goes_on(struct sched *s, const struct ipc_result *m, u32 i)
{
	struct seq *q = i && m->seq[i] == m->seq[i - 1] ? seqs_find(&s->seqs, m->seq[i]) : NULL;

	if (!q || q->state != SEQ_RUNNING || q->group || q->in_flight || m->position[i] != seq_output_count(q))
		return NULL;
	return q;
}

/* Appends it. ERR_DIVERGED: nothing so long could be guessed. */
static enum err push_guessed(struct sched *s, struct seq *q, u32 token, u64 now_ns, struct err_msg *em)
{
	if (q->computed >= q->capacity || q->known >= q->token_end)
		return err_set(em, ERR_DIVERGED, "sequence %llu has more tokens than its %u blocks hold, or than %u",
			       (unsigned long long)q->id, q->block_count, q->token_end);
	seqs_tokens(&s->seqs, q)[q->known++] = token;
	q->computed++;
	step_diff_computed(&s->diff, 1);
	if (sched_is_ending(q))
		s->ending_count++;
	judge_token(s, q, token, now_ns);
	return ERR_OK;
}

/* The element of the lists of log-probabilities that belongs to a row, and where its ids begin. */
struct list_cursor {
	u32 lp, ids;
};

/* Goes on to row `i`. */
static void next_list(const struct ipc_result *m, u32 i, struct list_cursor *c)
{
	while (c->lp < m->lp_entry_count && m->lp_entry[c->lp] < i)
		c->ids += m->lp_count[c->lp++];
}

/* What the choice of beams reads is all there. */
static enum err check_lists(const struct sched *s, const struct ipc_result *m, struct err_msg *em)
{
	u64 ids = 0;
	u32 lp = 0;
	bool good = m->lp_count_count == m->lp_entry_count && m->lp_rank_count == m->lp_entry_count &&
		    m->lp_values_count == m->lp_ids_count;

	for (u32 i = 0; good && i < m->lp_entry_count; i++) {
		good = m->lp_count[i] > 0 && m->lp_entry[i] < m->seq_count && (i == 0 || m->lp_entry[i] > m->lp_entry[i - 1]);
		ids += m->lp_count[i];
	}
	good = good && ids == m->lp_ids_count;
	for (u32 i = 0; good && i < m->beam_entry_count; i++) {
		while (lp < m->lp_entry_count && m->lp_entry[lp] < m->beam_entry[i])
			lp++;
		good = lp < m->lp_entry_count && m->lp_entry[lp] == m->beam_entry[i];
	}
	for (u32 i = 0; good && i < m->lp_ids_count; i++)
		good = m->lp_ids[i] < s->config.vocab_size;
	return good ? ERR_OK
		    : err_set(em, ERR_DIVERGED, "RESULT of step %llu: the lists of its beams do not fit together",
			      (unsigned long long)m->step);
}

/* Finds the flight that `m` ends; `*apply` is false when there is none and `m` is to be ignored. */
static enum err match_flight(struct sched *s, const struct ipc_result *m, bool *apply, struct err_msg *em)
{
	*apply = false;
	if (s->flight_count == 0 || m->step < s->flights[0].step)
		return ERR_OK;
	if (m->step != s->flights[0].step) {
		for (u32 i = 1; i < s->flight_count; i++)
			if (m->step == s->flights[i].step)
				return err_set(em, ERR_SEQUENCE,
					       "RESULT of step %llu came, but that of step %llu is missing",
					       (unsigned long long)m->step,
					       (unsigned long long)s->flights[0].step);
		return ERR_OK;
	}
	if (m->position_count != m->seq_count || m->token_count != m->seq_count)
		return err_set(em, ERR_DIVERGED,
			       "RESULT of step %llu has %u sequences, %u positions and %u tokens",
			       (unsigned long long)m->step, m->seq_count, m->position_count, m->token_count);
	u32 rows = sched_count_rows(s, m);
	if (rows != s->flights[0].tokens_due)
		return err_set(em, ERR_DIVERGED, "RESULT of step %llu has %u tokens of %u rows; %u were due",
			       (unsigned long long)m->step, m->seq_count, rows, s->flights[0].tokens_due);
	for (u32 i = 0; i < m->token_count; i++)
		if (m->token[i] >= s->config.vocab_size)
			return err_set(em, ERR_DIVERGED,
				       "RESULT of step %llu: token %u is not below the vocabulary size, %u",
				       (unsigned long long)m->step, m->token[i], s->config.vocab_size);
	enum err e = s->groups.used ? check_lists(s, m, em) : ERR_OK;
	*apply = e == ERR_OK;
	return e;
}

enum err sched_result(struct sched *s, const struct ipc_result *m, u64 now_ns, struct err_msg *em)
{
	struct gap_tally tally = {0};
	bool apply;
	enum err e = match_flight(s, m, &apply, em);

	if (e || !apply)
		return e;
	s->flight_count--;
	memmove(&s->flights[0], &s->flights[1], s->flight_count * sizeof(s->flights[0]));
	struct list_cursor lists = {0};
	u32 pushed = 0;
	for (u32 i = 0; i < m->seq_count; i++) {
		struct seq *q = s->config.draft_max ? goes_on(s, m, i) : NULL;
		if (q) {
			if ((e = push_guessed(s, q, m->token[i], now_ns, em)))
				return e;
			pushed++;
			continue;
		}
		q = seqs_find(&s->seqs, m->seq[i]);
		next_list(m, i, &lists);
		if (!q || q->in_flight == 0 || m->position[i] != seq_output_count(q))
			continue;
		if (q->group) {
			groups_report(s, q, m, i, lists.lp, lists.ids, now_ns);
			continue;
		}
		tally_token(s, q, now_ns, &tally);
		push_token(s, q, m->token[i], now_ns);
		pushed++;
	}
	tally_flush(s, &tally);
	stats_add(s->stats, STATS_GENERATION_TOKENS, pushed);
	if (m->forward_us)
		s->step_us = s->step_us ? (3 * s->step_us + m->forward_us) / 4 : m->forward_us;
	return ERR_OK;
}
