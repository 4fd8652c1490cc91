/* What a request does with its session: where its tokens go on, when it is refused, what is kept of it, and how the
 * last, partly filled block of a turn is found again by the next one. Runs inside the scheduling core; the rules of
 * sched.c hold. */
#include <inttypes.h>
#include <string.h>

#include "common/assert.h"
#include "proc_scheduler/sched_priv.h"

/* A turn that was given up may have had a stop string in it, of which the word is on its way. The detokenizer tells in any case
 * where such a turn ended; this long its answer is waited for. */
static const u64 SETTLES_NS = 200 * 1000000ull;

/* ---------------------------------------------------------------- before it is admitted */

static enum err check_fields(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	if (m->session_count == 0)
		return err_set(em, ERR_INVALID,
			       "session_flags, session_step or session_join are given without a session");
	if (!s->config.sessions)
		return err_set(em, ERR_UNSUPPORTED,
			       "the server keeps no sessions (--max-sessions 0); send the whole conversation");
	if (m->session_flags & ~(u32)SESSION_FLAGS)
		return err_set(em, ERR_INVALID, "session_flags is %u; known are bits up to %u", m->session_flags,
			       (u32)SESSION_FLAGS);
	if ((m->session_flags & SESSION_BEGIN) && (m->session_flags & SESSION_STEP))
		return err_set(em, ERR_INVALID, "a session that begins has no tokens to go back to: session_step is "
						"for one that is there");
	if (m->session_step && !(m->session_flags & SESSION_STEP))
		return err_set(em, ERR_INVALID, "session_step is %u without its flag", m->session_step);
	if (m->session_join > SESSION_JOIN_MAX || m->session_join > m->tokens_count - m->output_count)
		return err_set(em, ERR_INVALID,
			       "session_join is %u; it must be at most %d, and at most the %u tokens of the turn",
			       m->session_join, SESSION_JOIN_MAX, m->tokens_count - m->output_count);
	return session_name_check(m->session, m->session_count, em);
}

static enum err conflict(const struct session *c, struct err_msg *em, const char *what)
{
	return err_set(em, ERR_CONFLICT, "session '%s' (%u tokens, %u turns) %s", c->name, c->token_count, c->turn_count,
		       what);
}

/* Its last turn is in work, or where it ended is not known yet. */
static bool is_busy(const struct session *c, u64 now_ns)
{
	return c->running || now_ns < c->settles_ns;
}

/* Whether the session is there, or not, as the request supposes. */
static enum err check_there(const struct sched *s, const struct ipc_submit *m, const struct session *c, bool again,
			    u64 now_ns, struct err_msg *em)
{
	bool begins = m->session_flags & SESSION_BEGIN;

	if (!c)
		return begins ? ERR_OK
			      : sessions_missing(s->config.sessions, m->session_owner, m->session, m->session_count, em);
	if (c->running && again)
		return err_set(em, ERR_EXISTS, "request %" PRIu64 " of this client is there already", m->req_id);
	if (c->running || (!again && is_busy(c, now_ns)))
		return conflict(c, em, "has a turn in work; one at a time is possible: wait for its end, or abort it");
	if (again)
		return ERR_OK;
	if (begins && c->token_count == 0)
		return ERR_OK; /* its first turn was cut off */
	if (begins)
		return conflict(c, em, "is there already; go on without beginning it, or end it first");
	if (c->cut_off && !(m->session_flags & SESSION_STEP))
		return conflict(c, em, "lost its last turn when the scheduler was restarted; go on from the tokens that it "
				       "has with session_step, and send what is missing");
	if ((m->session_flags & SESSION_STEP) && m->session_step > c->token_count)
		return err_set(em, ERR_INVALID, "session_step is %u; session '%s' has %u tokens", m->session_step, c->name,
			       c->token_count);
	return ERR_OK;
}

/* How many first tokens of the turn the first `base` of the history end with. */
static u32 find_overlap(const struct sessions *ss, const struct session *c, u32 base, const struct ipc_submit *m)
{
	u32 most = m->session_join < base ? m->session_join : base;

	for (u32 n = most; n; n--) {
		u32 i = 0;
		while (i < n && sessions_token(ss, c, base - n + i) == m->tokens[i])
			i++;
		if (i == n)
			return n;
	}
	return 0;
}

static bool is_eos(const struct sched *s, u32 token)
{
	for (u32 i = 0; i < s->config.eos_count; i++)
		if (s->config.eos_ids[i] == token)
			return true;
	return false;
}

/* Where the history ends for this turn. What ends an answer in a chat stands at the beginning of the next turn; the
 * model may have said it already, or another end-of-sequence token instead, which then makes room for it. */
static void place(const struct sched *s, const struct ipc_submit *m, bool again, struct session_turn *t)
{
	const struct sessions *ss = s->config.sessions;
	const struct session *c = t->session;

	t->base = m->session_flags & SESSION_STEP ? m->session_step : c->token_count;
	if (again)
		t->base = c->turn_base;
	t->skip = find_overlap(ss, c, t->base, m);
	if (t->skip || again || !m->session_join || t->base < 2 || !is_eos(s, sessions_token(ss, c, t->base - 1)))
		return;
	t->base--;
	t->skip = find_overlap(ss, c, t->base, m);
}

enum err sched_check_turn(const struct sched *s, const struct ipc_submit *m, u64 now_ns, struct session_turn *t, struct err_msg *em)
{
	*t = (struct session_turn){0};
	if (!m->session_count && !m->session_flags && !m->session_step && !m->session_join)
		return ERR_OK;
	if (m->output_count > m->tokens_count)
		return err_set(em, ERR_INVALID, "output_count is %u, but there are only %u tokens", m->output_count,
			       m->tokens_count);
	enum err e = check_fields(s, m, em);
	if (e)
		return e;
	struct session *c = sessions_find(s->config.sessions, m->session_owner, m->session, m->session_count);
	bool mine = c && c->turn_client == m->client_id && c->turn_req == m->req_id;
	bool again = mine && ((m->session_flags & SESSION_AGAIN) || c->running);
	if (c && session_is_over(c) && !again)
		c = NULL; /* that turn may be sent again; for all others there is no such session */
	e = check_there(s, m, c, again, now_ns, em);
	t->runs = e == ERR_CONFLICT && c && is_busy(c, now_ns);
	if (e)
		return e;
	t->named = true;
	t->session = c;
	t->redone = again && !c->cut_off;
	if (c)
		place(s, m, again, t);
	return ERR_OK;
}

/* ---------------------------------------------------------------- begin and end */

enum err sched_begin_turn(struct sched *s, const struct ipc_submit *m, const struct session_turn *t, struct seq *q,
			  u64 now_ns, struct err_msg *em)
{
	struct sessions *ss = s->config.sessions;
	struct session *c = t->session;
	struct session *over = c ? NULL : sessions_find(ss, m->session_owner, m->session, m->session_count);

	if (over)
		sessions_drop(ss, over, SESSION_END_ASKED);
	if (!c && sessions_add(ss, m->session_owner, m->session, m->session_count, (i64)now_ns, &c))
		return err_set(em, ERR_BUSY, "%u sessions run, and more are not kept (--max-sessions); try again later",
			       ss->count);
	q->session = sessions_slot(ss, c) + 1;
	q->session_flags = m->session_flags;
	q->kv_tail = c->kv_tokens <= t->base ? c->kv_tokens : 0;
	c->turn_client = m->client_id;
	c->turn_req = m->req_id;
	c->turn_base = t->base;
	c->cache_salt = sched_cache_salt(s, m);
	c->ending = m->session_flags & SESSION_END;
	c->redone = t->redone;
	c->may_stop = false;
	c->settles_ns = 0;
	sessions_begin_turn(ss, c, q->id, (i64)now_ns);
	return ERR_OK;
}

void sched_end_turn(struct sched *s, struct seq *q, bool given_up, u64 now_ns)
{
	struct sessions *ss = s->config.sessions;
	struct session *c = &ss->slots[q->session - 1];
	u32 outputs = seq_kept_count(q);

	ASSERT(c->running == q->id);
	q->session = 0;
	if (c->ending) {
		sessions_retire(ss, c, (i64)now_ns);
		return;
	}
	if (q->session_flags & SESSION_END) { /* asked for by itself while the turn ran */
		sessions_drop(ss, c, SESSION_END_ASKED);
		return;
	}
	c->turn_prompt = q->prompt_count;
	bool may_stop = outputs && !q->stop_count && seqs_extra(&s->seqs, q)->stop_string_count;
	if (given_up && may_stop)
		c->settles_ns = now_ns + SETTLES_NS;
	c->may_stop = may_stop && !given_up;
	if (outputs)
		sessions_end_turn(ss, c, seqs_tokens(&s->seqs, q) + c->turn_base,
				  q->prompt_count + outputs - c->turn_base, q->kv_tail, (i64)now_ns);
	else
		sessions_undo_turn(ss, c, (i64)now_ns);
}

void sched_turn_stopped(struct sched *s, u64 seq, u32 output_count)
{
	struct sessions *ss = s->config.sessions;
	struct session *c = output_count ? sessions_last_turn(ss, seq) : NULL;

	if (c) {
		c->may_stop = false;
		c->settles_ns = 0;
	}
	if (c && (u64)c->turn_prompt + output_count < c->token_count)
		sessions_shorten(ss, c, c->turn_prompt + output_count);
}

void sched_give_up_ended(struct sched *s, u64 client_id, u64 req_id, u64 now_ns)
{
	struct session *c = s->config.sessions ? sessions_ended_turn(s->config.sessions, client_id, req_id, (i64)now_ns - (i64)SETTLES_NS) : NULL;

	if (!c || !c->may_stop)
		return;
	c->may_stop = false;
	c->settles_ns = (u64)c->used_ns + SETTLES_NS;
}

/* ---------------------------------------------------------------- the last block */

static struct block_hash tail_hash(const struct sched *s, const struct seq *q, u32 tokens)
{
	u32 full = tokens / s->config.block_size;
	struct block_hash parent = full ? seqs_hashes(&s->seqs, q)[full - 1] : sched_hash_root(s, q);

	return prefix_cache_chain_part(&s->cache, parent,
				       seqs_tokens(&s->seqs, q) + (size_t)full * s->config.block_size,
				       tokens % s->config.block_size);
}

void sched_keep_tail(struct sched *s, struct seq *q)
{
	u32 tokens = q->known < q->computed ? q->known : q->computed;

	if (!q->session || !s->config.prefix_caching)
		return;
	sched_file_blocks(s, q, s->diff.step);
	if (s->config.recurrent) /* no state is saved within a block */
		return;
	q->kv_tail = tokens;
	if (tokens % s->config.block_size == 0)
		return;
	u32 block = sched_blocks(s, q)[tokens / s->config.block_size];
	if (!prefix_cache_has(&s->cache, block))
		prefix_cache_put(&s->cache, block, tail_hash(s, q, tokens), s->diff.step);
}

u32 sched_find_tail(const struct sched *s, const struct seq *q, u32 shared, u32 *computed)
{
	u32 tail = q->kv_tail;

	if (tail % s->config.block_size == 0 || tail / s->config.block_size != shared || tail >= q->known)
		return KV_BLOCK_NONE;
	u32 block = prefix_cache_find(&s->cache, tail_hash(s, q, tail));
	if (block != KV_BLOCK_NONE && prefix_cache_step(&s->cache, block) <= s->diff.step)
		*computed = tail;
	else
		block = KV_BLOCK_NONE;
	return block;
}

/* ---------------------------------------------------------------- what clients may ask */

/* Whether the cache has the partly filled block that goes on behind `done` tokens, whose hash is `parent`. */
static bool has_tail(const struct sched *s, const struct session *c, u32 done, struct block_hash parent)
{
	u32 tokens[PREFIX_BLOCK_TOKENS_MAX], size = s->config.block_size;
	u32 count = c->kv_tokens % size;

	if (count == 0 || c->kv_tokens - count != done)
		return false;
	for (u32 i = 0; i < count; i++)
		tokens[i] = sessions_token(s->config.sessions, c, done + i);
	return prefix_cache_find(&s->cache, prefix_cache_chain_part(&s->cache, parent, tokens, count)) != KV_BLOCK_NONE;
}

/* Tokens at its beginning whose KV the prefix cache has. Of sequences whose KV depends on their length the usual kind
 * is looked up. */
static u32 count_cached(const struct sched *s, const struct session *c)
{
	const struct sessions *ss = s->config.sessions;
	struct block_hash h = prefix_cache_root(&s->cache, c->cache_salt);
	u32 tokens[PREFIX_BLOCK_TOKENS_MAX], size = s->config.block_size, done = 0, with_state = 0, chunk = c->first_chunk;

	if (!s->config.prefix_caching)
		return 0;
	for (; c->token_count - done >= size; done += size) {
		for (u32 at = done; at < done + size; at++) {
			if (at && at % SESSION_CHUNK_TOKENS == 0)
				chunk = ss->next_chunk[chunk];
			tokens[at - done] = ss->tokens[(size_t)chunk * SESSION_CHUNK_TOKENS + at % SESSION_CHUNK_TOKENS];
		}
		struct block_hash next = prefix_cache_chain(&s->cache, h, tokens);
		if (prefix_cache_find(&s->cache, next) == KV_BLOCK_NONE)
			break;
		h = next;
		if (state_cache_has(&s->states, h))
			with_state = done + size;
	}
	if (s->config.recurrent)
		return with_state;
	return has_tail(s, c, done, h) ? c->kv_tokens : done;
}

static u32 seconds(i64 ns)
{
	return ns < 0 ? 0 : (u32)(ns / 1000000000);
}

enum err sched_session_get(struct sched *s, const struct ipc_session *m, u64 now_ns, struct ipc_session_state *out,
			   struct err_msg *em)
{
	struct sessions *ss = s->config.sessions;

	*out = (struct ipc_session_state){.req_id = m->req_id};
	if (!ss)
		return err_set(em, ERR_UNSUPPORTED, "the server keeps no sessions (--max-sessions 0)");
	enum err e = session_name_check(m->session, m->session_count, em);
	if (e)
		return e;
	const struct session *c = sessions_find(ss, m->session_owner, m->session, m->session_count);
	if (!c || session_is_over(c))
		return sessions_missing(ss, m->session_owner, m->session, m->session_count, em);
	out->token_count = c->token_count;
	out->turn_count = c->turn_count;
	out->cached_count = count_cached(s, c);
	out->running = c->running != 0;
	out->age_s = seconds((i64)now_ns - c->begun_ns);
	out->idle_s = c->running ? 0 : seconds((i64)now_ns - c->used_ns);
	out->ttl_s = (u32)(ss->config.ttl_ns / 1000000000u);
	return ERR_OK;
}

bool sched_session_runs(const struct sched *s, const struct ipc_session *m, u64 now_ns)
{
	const struct session *c =
		s->config.sessions ? sessions_find(s->config.sessions, m->session_owner, m->session, m->session_count) : NULL;

	return c && is_busy(c, now_ns);
}

/* Ended before, and asked for again: the first answer was lost with a process, or its client did not wait for it. The session as
 * it was; one whose last turn may still be sent again stays for that. */
static bool was_ended(const struct sched *s, const struct ipc_session *m, u64 now_ns, struct ipc_session_state *out)
{
	const struct sessions *ss = s->config.sessions;
	const struct session *c = sessions_find(ss, m->session_owner, m->session, m->session_count);
	const struct session_gone *g = c ? NULL : sessions_find_gone(ss, m->session_owner, m->session, m->session_count);

	if (c ? !session_is_over(c) : !g || g->why != SESSION_END_ASKED)
		return false;
	out->token_count = c ? c->token_count : g->token_count;
	out->turn_count = c ? c->turn_count : g->turn_count;
	out->age_s = seconds((i64)now_ns - (c ? c->begun_ns : g->begun_ns));
	out->idle_s = seconds((i64)now_ns - (c ? c->used_ns : g->used_ns));
	out->ttl_s = (u32)(ss->config.ttl_ns / 1000000000u);
	return true;
}

enum err sched_session_end(struct sched *s, const struct ipc_session *m, u64 now_ns, struct ipc_session_state *out,
			   struct err_msg *em)
{
	enum err e = sched_session_get(s, m, now_ns, out, em);

	if ((e == ERR_NOT_FOUND || e == ERR_DROPPED) && was_ended(s, m, now_ns, out)) {
		*em = (struct err_msg){""};
		return ERR_OK;
	}
	if (e)
		return e;
	struct session *c = sessions_find(s->config.sessions, m->session_owner, m->session, m->session_count);
	struct seq *q = c->running ? seqs_find(&s->seqs, c->running) : NULL;
	if (q) {
		q->session_flags |= SESSION_END;
		sched_close(s, q, FINISH_ABORT, "", now_ns);
	} else {
		sessions_drop(s->config.sessions, c, SESSION_END_ASKED);
	}
	return ERR_OK;
}
