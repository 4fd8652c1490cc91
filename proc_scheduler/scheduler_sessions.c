/* Opens and closes the store of sessions with its journal, and answers SESSION. Runs in the scheduler's loop. Without
 * --session-dir the journal lies in the run directory and goes with it: it is for the scheduler's own death. */
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/scheduler_priv.h"

enum { NS_PER_S = 1000000000 };

enum err scheduler_open_sessions(struct scheduler *s, struct err_msg *em)
{
	const struct options *o = s->options;
	char dir[4096];
	u64 token_count;
	u32 count;

	s->journal = (struct session_journal){.lock_fd = -1, .fd = -1, .next_fd = -1};
	if (!o->max_sessions)
		return ERR_OK;
	struct sessions_config config = {.session_max = (u32)o->max_sessions,
					 .token_max = (u32)o->session_tokens,
					 .ttl_ns = (u64)o->session_ttl * NS_PER_S};
	memcpy(&config.secret, s->secret + sizeof(u64), sizeof(config.secret));
	enum err e = sessions_create(&s->sessions, &config, em);
	if (e)
		return e;
	int n = o->session_dir[0] ? snprintf(dir, sizeof(dir), "%s", o->session_dir)
				  : snprintf(dir, sizeof(dir), "%s/sessions", o->run_dir);
	if (n < 0 || n >= (int)sizeof(dir))
		return err_set(em, ERR_TOO_LONG, "the path of the session directory is too long");
	u64 begin = clock_now_ns();
	e = session_journal_open(&s->journal, dir, session_journal_fingerprint(o->model), s->sessions, em);
	if (e)
		return e;
	sessions_totals(s->sessions, &count, &token_count);
	if (count)
		LOG_INFO("SESSIONS_RESTORED", "dir=\"%s\" sessions=%u tokens=%" PRIu64 " ms=%" PRIu64, dir, count, token_count,
			 (clock_now_ns() - begin) / 1000000);
	return ERR_OK;
}

void scheduler_close_sessions(struct scheduler *s)
{
	session_journal_close(&s->journal);
	sessions_destroy(&s->sessions);
}

void scheduler_check_sessions(struct scheduler *s, u32 vocab_size)
{
	u32 dropped = s->sessions ? sessions_check_vocab(s->sessions, vocab_size) : 0;

	if (dropped)
		LOG_WARN("SESSIONS_DROPPED", "count=%u reason=\"they have tokens that are not below the vocabulary size, %u\"",
			 dropped, vocab_size);
}

void scheduler_on_session(struct scheduler *s, ipc_peer from, const struct ipc_session *m)
{
	struct ipc_msg msg = {.type = IPC_TYPE_SESSION_STATE, .epoch = s->epoch};
	struct err_msg em = {""};
	enum err e;

	msg.session_state.req_id = m->req_id;
	if (!s->sched)
		e = err_set(&em, ERR_BUSY, "the model is still loading; try again later");
	else if (m->action == SESSION_GET)
		e = sched_session_get(s->sched, m, s->streams.now_ns, &msg.session_state, &em);
	else if (m->action == SESSION_DELETE)
		e = sched_session_end(s->sched, m, s->streams.now_ns, &msg.session_state, &em);
	else
		e = err_set(&em, ERR_INVALID, "action is %u; it must be %d (state) or %d (end)", m->action, SESSION_GET,
			    SESSION_DELETE);
	msg.session_state.code = e;
	msg.session_state.text = (const u8 *)em.text;
	msg.session_state.text_count = (u32)strlen(em.text);
	scheduler_reply(s, from, m->client_id, &msg);
}

void scheduler_tick_sessions(struct scheduler *s, u64 now_ns)
{
	u64 token_count;
	u32 count;

	if (!s->sessions)
		return;
	sessions_expire(s->sessions, (i64)now_ns);
	session_journal_tick(&s->journal, now_ns);
	sessions_totals(s->sessions, &count, &token_count);
	stats_set(s->stats, STATS_SESSIONS, count);
	stats_set(s->stats, STATS_SESSION_TOKENS, token_count);
}
