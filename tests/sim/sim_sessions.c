/* Conversations in the simulator: turns of sessions among the other requests, each with a model of its own of what the
 * history must be. A turn's request knows the whole conversation, so sim_check.c compares its tokens with those of the
 * same conversation sent whole. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim_world.h"

static struct sim_talk *any_talk(struct sim_world *w)
{
	return &w->talks[sim_random(&w->rng, SIM_TALKS)];
}

/* NULL: there is none, or it is over. */
static struct session *session_of(const struct sim_world *w, const struct sim_talk *t)
{
	struct session *s = sessions_find(w->config.sessions, t->owner, (const u8 *)t->name, (u32)strlen(t->name));

	return s && !session_is_over(s) ? s : NULL;
}

void sim_sessions_init(struct sim_world *w)
{
	static const char *const names[] = {"a", "b", "a", "long-name.of:a_session"};

	for (u32 i = 0; i < SIM_TALKS; i++)
		w->talks[i] = (struct sim_talk){.owner = i / 2, .name = names[i]};
}

/* First tokens of `own` that `count` tokens of the history end with; written from the rule, not from the code. */
static u32 overlap(const u32 *history, u32 count, const u32 *own, u32 join)
{
	u32 best = 0;

	for (u32 n = 1; n <= join && n <= count; n++)
		if (!memcmp(history + count - n, own, n * sizeof(u32)))
			best = n;
	return best;
}

/* The whole conversation up to the end of this turn goes into `r`; false: there is no room for it. */
static bool place(struct sim_world *w, const struct sim_talk *t, struct sim_request *r, struct ipc_submit *m,
		  const u32 *own, u32 own_count, u32 room)
{
	u32 base = m->session_flags & SESSION_STEP ? m->session_step : t->count;
	u32 skip = overlap(t->tokens, base, own, m->session_join);

	if (!skip && m->session_join && base >= 2 && t->tokens[base - 1] == w->config.eos_ids[0]) {
		base--;
		skip = overlap(t->tokens, base, own, m->session_join);
	}
	if (base + own_count - skip == 0 || base + own_count - skip > room)
		return false;
	memcpy(r->tokens, t->tokens, base * sizeof(u32));
	memcpy(r->tokens + base, own + skip, (own_count - skip) * sizeof(u32));
	r->prompt_count = base + own_count - skip;
	return true;
}

/* What must happen, from the model alone. */
static enum err expected(const struct sim_world *w, const struct sim_talk *t, const struct session *s,
			 const struct ipc_submit *m)
{
	bool begins = m->session_flags & SESSION_BEGIN;

	(void)w;
	if (t->busy)
		return ERR_CONFLICT;
	if (begins)
		return s ? ERR_CONFLICT : ERR_OK;
	return s ? ERR_OK : ERR_NOT_FOUND;
}

static void random_turn(struct sim_world *w, const struct sim_talk *t, struct ipc_submit *m, u32 *own, u32 *own_count)
{
	u32 tail = t->count < 3 ? t->count : 3;

	*own_count = sim_random(&w->rng, 12);
	m->session_flags = sim_random(&w->rng, 8) == 0 ? SESSION_BEGIN : 0;
	if (!t->count)
		m->session_flags = sim_random(&w->rng, 6) ? SESSION_BEGIN : 0;
	if (m->session_flags & SESSION_BEGIN)
		*own_count += *own_count == 0;
	for (u32 i = 0; i < *own_count; i++)
		own[i] = sim_random(&w->rng, 3);
	if (m->session_flags & SESSION_BEGIN)
		return;
	if (sim_random(&w->rng, 4) == 0) {
		m->session_flags |= SESSION_STEP;
		m->session_step = sim_random(&w->rng, t->count + 1);
	}
	if (sim_random(&w->rng, 3) == 0) {
		m->session_join = sim_random(&w->rng, *own_count + 1);
		if (m->session_join >= tail && sim_random(&w->rng, 2))
			memcpy(own, t->tokens + t->count - tail, tail * sizeof(u32));
	}
	if (sim_random(&w->rng, 15) == 0)
		m->session_flags |= SESSION_END;
}

void sim_submit_turn(struct sim_world *w, u32 room)
{
	struct sim_talk *t = any_talk(w);
	const struct session *s = session_of(w, t);
	struct sim_request *r = &w->requests[w->request_count];
	struct sched_admission admission;
	struct err_msg em;
	u32 own[16], own_count;

	if (!s && !t->busy)
		t->count = 0; /* others needed its room */
	*r = (struct sim_request){.client_id = 1 + sim_random(&w->rng, SIM_CLIENTS),
				  .req_id = w->request_count + 1,
				  .stop_id = UINT32_MAX};
	struct ipc_submit m = sim_submit_message(w, r);
	random_turn(w, t, &m, own, &own_count);
	if (!place(w, t, r, &m, own, own_count, room))
		return;
	m.tokens = own;
	m.tokens_count = own_count;
	m.session_owner = t->owner;
	m.session = (const u8 *)t->name;
	m.session_count = (u32)strlen(t->name);
	sim_set_limits(w, r, &m);
	enum err wanted = expected(w, t, s, &m);
	r->live = true;
	r->talk = wanted ? NULL : t;
	w->request_count++;
	enum err e = sched_submit(w->sched, &m, w->now_ns, &admission, &em);
	if (e == ERR_DROPPED)
		e = ERR_NOT_FOUND;
	if (e != wanted && e != ERR_BUSY)
		sim_fail(w, "a turn gave %s, %s was due: %s", err_name(e), err_name(wanted), em.text);
	if (e) {
		w->request_count--;
		return;
	}
	r->seq = admission.seq;
	w->accepted++;
	w->turns_taken++;
	t->busy = true;
}

void sim_session_told(struct sim_world *w, struct sim_request *r, enum finish_reason reason)
{
	const struct session *s = r->talk ? session_of(w, r->talk) : NULL;

	if (s && s->running == r->seq)
		sim_fail(w, "the end of request %" PRIu64 " is told before its turn is kept", r->req_id);
	if (!r->talk && reason == FINISH_NONE)
		sim_fail(w, "request %" PRIu64 " of no session is told to be kept", r->req_id);
	r->end_told = true;
}

void sim_session_ended(struct sim_world *w, struct sim_request *r, const struct seq *q, const u32 *tokens)
{
	struct sim_talk *t = r->talk;
	u32 outputs = seq_output_count(q);

	if (!t)
		return;
	if (q->opened && !r->end_told)
		sim_fail(w, "nobody was told that the turn of request %" PRIu64 " is kept", r->req_id);
	t->busy = false;
	r->talk = NULL;
	if (q->stop_count && q->stop_count < outputs)
		outputs = q->stop_count;
	if (q->session_flags & SESSION_END) {
		t->count = 0;
	} else if (outputs) {
		t->count = q->prompt_count + outputs;
		memcpy(t->tokens, tokens, t->count * sizeof(u32));
	}
	(void)w;
}

void sim_check_sessions(struct sim_world *w)
{
	u32 tokens[SIM_PROMPT_MAX], there = 0, count;
	u64 token_count;

	for (u32 i = 0; i < SIM_TALKS; i++) {
		const struct sim_talk *t = &w->talks[i];
		const struct session *s = session_of(w, t);
		if (!s && t->busy)
			sim_fail(w, "session %u has a turn in work and is not there", i);
		if (!s)
			continue;
		there++;
		if (s->token_count != t->count || (s->running != 0) != t->busy)
			sim_fail(w, "session %u has %u tokens, %u are due; running %d, %d is due", i, s->token_count, t->count,
				 s->running != 0, t->busy);
		sessions_read(w->config.sessions, s, tokens, s->token_count);
		if (memcmp(tokens, t->tokens, t->count * sizeof(u32)))
			sim_fail(w, "session %u has another history than its turns gave", i);
	}
	sessions_totals(w->config.sessions, &count, &token_count);
	if (there != count)
		sim_fail(w, "%u sessions are there, the count says %u", there, count);
}
