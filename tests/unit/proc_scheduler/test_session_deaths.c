/* Turns that are submitted again because the scheduler died, once and twice in a row, at every place: whatever the journal had of
 * them, each stands in its conversation once, and nothing stands behind a stop string. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "proc_scheduler/session_journal.h"
#include "tests/unit/proc_scheduler/fixture.h"

enum { FINGERPRINT = 5, PROMPT = 20, TURN = 5, OUTPUTS = 6, STOP = 3 };

struct life {
	char dir[64];
	struct sched_config config;
	struct session_journal journal;
	struct fixture *f;
	u32 answer[OUTPUTS]; /* of the turn that is submitted again */
};

static void start(struct life *l)
{
	struct sessions_config sc = {.session_max = 4, .token_max = 4096, .secret = 3};
	struct err_msg em;

	l->config = fixture_config();
	l->config.block_size = 16;
	l->config.max_model_len = 256;
	l->config.max_num_batched_tokens = 256;
	cr_assert_eq(sessions_create(&l->config.sessions, &sc, NULL), ERR_OK);
	cr_assert_eq(session_journal_open(&l->journal, l->dir, FINGERPRINT, l->config.sessions, &em), ERR_OK, "%s", em.text);
	l->f = fixture_create(&l->config);
}

/* Nothing is written by that. */
static void die(struct life *l)
{
	session_journal_close(&l->journal);
	fixture_destroy(&l->f);
	sessions_destroy(&l->config.sessions);
}

static void restart(struct life *l)
{
	die(l);
	start(l);
}

static struct session *talk(struct life *l)
{
	return sessions_find(l->config.sessions, 0, (const u8 *)"talk", 4);
}

static u64 submit(struct life *l, const struct ipc_submit *m)
{
	struct sched_admission a;
	struct err_msg em;

	cr_assert_eq(sched_submit(l->f->s, m, l->f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

static struct ipc_submit message(u64 req_id, u32 first, u32 count, u32 outputs, u32 flags)
{
	struct ipc_submit m = fixture_message(req_id, first, count, outputs);

	m.session = (const u8 *)"talk";
	m.session_count = 4;
	m.session_flags = flags;
	return m;
}

/* The turn, with the outputs that its client has, `step`: behind so many tokens of the history. */
static u64 submit_turn(struct life *l, u32 flags, u32 step, u32 held)
{
	u32 tokens[TURN + OUTPUTS];
	struct ipc_submit m = message(2, 600, TURN, OUTPUTS, flags | (step ? SESSION_STEP : 0));

	m.session_step = step;
	memcpy(tokens, m.tokens, TURN * sizeof(u32));
	memcpy(tokens + TURN, l->answer, held * sizeof(u32));
	m.tokens = tokens;
	m.tokens_count = TURN + held;
	m.output_count = held;
	return submit(l, &m);
}

static void begin(struct life *l)
{
	log_init("test", LOG_LEVEL_ERROR, false);
	strcpy(l->dir, "/tmp/test_deaths_XXXXXX");
	cr_assert_not_null(mkdtemp(l->dir));
	start(l);
	struct ipc_submit m = message(1, 1, PROMPT, 4, SESSION_BEGIN);
	submit(l, &m);
	fixture_run(l->f);
	cr_assert_eq(talk(l)->token_count, PROMPT + 4);
}

static void end(struct life *l)
{
	char command[128];

	die(l);
	snprintf(command, sizeof(command), "rm -r %s", l->dir);
	cr_assert_eq(system(command), 0);
}

static void run_steps(struct life *l, u32 steps)
{
	for (u32 i = 0; i < steps; i++) {
		fixture_plan(l->f);
		fixture_deliver(l->f);
	}
}

/* The turn as it must stand in the end, behind `base` tokens, whatever life it was kept by. */
static void check(struct life *l, u32 base, u32 outputs)
{
	u32 tokens[PROMPT + 4 + TURN + OUTPUTS], count = base + TURN + outputs;

	for (u32 round = 0; round < 2; round++) {
		cr_assert_eq(talk(l)->token_count, count, "round %u: %u tokens", round, talk(l)->token_count);
		cr_assert_eq(talk(l)->turn_count, 2);
		cr_assert_not(talk(l)->cut_off);
		sessions_read(l->config.sessions, talk(l), tokens, count);
		cr_assert_eq(tokens[base], 600);
		cr_assert_eq(memcmp(tokens + base + TURN, l->answer, outputs * sizeof(u32)), 0);
		restart(l);
	}
}

/* The turn ends, with outputs behind a stop string (or, `shortened`, without), and nobody has heard of it. The scheduler dies, the
 * turn is begun again, runs `steps` steps, and the scheduler dies again. The third life finds out where it ends. */
static void twice(u32 step, bool shortened, u32 steps, u32 held)
{
	struct life l;
	u32 base = step ? step : PROMPT + 4;
	begin(&l);
	u64 seq = submit_turn(&l, 0, step, 0);
	fixture_run(l.f);
	memcpy(l.answer, fixture_end_of(l.f, seq)->tokens + base + TURN, sizeof(l.answer));
	if (shortened)
		sched_stopped(l.f->s, seq, STOP, l.f->now_ns);
	restart(&l);
	cr_assert_eq(talk(&l)->token_count, base + TURN + (shortened ? STOP : OUTPUTS));
	submit_turn(&l, SESSION_AGAIN, step, held);
	run_steps(&l, steps);
	restart(&l);
	cr_assert_eq(talk(&l)->token_count, base + TURN + (shortened ? STOP : OUTPUTS), "what was kept stays");
	seq = submit_turn(&l, SESSION_AGAIN, step, held);
	run_steps(&l, 1);
	sched_stopped(l.f->s, seq, STOP, l.f->now_ns);
	fixture_run(l.f);
	cr_assert_eq(fixture_end_of(l.f, seq)->prompt_count, base + TURN);
	check(&l, base, STOP);
	end(&l);
}

Test(session_deaths, a_turn_stands_once_and_ends_at_its_stop_string_after_two_deaths)
{
	for (u32 shortened = 0; shortened < 2; shortened++)
		for (u32 held = 0; held < STOP; held++)
			for (u32 steps = 0; steps < STOP - held; steps++) {
				twice(0, shortened, steps, held);
				twice(7, shortened, steps, held);
			}
}

/* The last turn of a session ends, and its client hears of that no end: detokenizer and scheduler died together. It is sent again as
 * often as that happens, also from a journal that was rewritten, and for all others the session is over. */
Test(session_deaths, a_last_turn_that_ended_is_there_to_be_sent_again)
{
	struct life l;
	struct ipc_session q = {.session = (const u8 *)"talk", .session_count = 4};
	struct ipc_session_state st;
	struct sched_admission a;
	struct err_msg em;

	for (u32 step = 0; step < 20; step += 7) {
		begin(&l);
		u64 seq = submit_turn(&l, SESSION_END, step, 0);
		fixture_run(l.f);
		u32 base = step ? step : PROMPT + 4;
		memcpy(l.answer, fixture_end_of(l.f, seq)->tokens + base + TURN, sizeof(l.answer));
		for (u32 held = 0; held < 3; held++) {
			if (held == 1)
				sessions_expire(l.config.sessions, (i64)(l.f->now_ns + (SESSION_OVER_S - 1) * 1000000000ull));
			if (held == 2)
				l.journal.next_minimum = 0;
			for (u64 i = 0; held == 2 && l.journal.next_minimum == 0; i++)
				session_journal_tick(&l.journal, i);
			if (held)
				restart(&l);
			cr_assert_eq(sched_session_get(l.f->s, &q, l.f->now_ns, &st, &em), ERR_DROPPED);
			struct ipc_submit other = message(3, 1, 2, 4, 0);
			cr_assert_eq(sched_submit(l.f->s, &other, l.f->now_ns, &a, &em), ERR_DROPPED);
			seq = submit_turn(&l, SESSION_END | SESSION_AGAIN, step, held);
			run_steps(&l, 1);
			if (held)
				restart(&l); /* also while it runs */
			else
				fixture_run(l.f);
			if (held)
				seq = submit_turn(&l, SESSION_END | SESSION_AGAIN, step, held);
			fixture_run(l.f);
			cr_assert_eq(fixture_end_of(l.f, seq)->prompt_count, base + TURN);
			cr_assert_eq(memcmp(fixture_end_of(l.f, seq)->tokens + base + TURN, l.answer, sizeof(l.answer)), 0);
		}
		cr_assert_eq(sched_session_end(l.f->s, &q, l.f->now_ns, &st, &em), ERR_OK, "its client ends it, too");
		cr_assert_eq(st.token_count, PROMPT + 4);
		struct ipc_submit anew = message(4, 1, 2, 4, SESSION_BEGIN);
		submit(&l, &anew);
		fixture_run(l.f);
		restart(&l);
		cr_assert_eq(talk(&l)->token_count, 6);
		end(&l);
	}
}

/* Its file is rewritten while the turn is redone. */
Test(session_deaths, a_turn_that_is_redone_is_whole_in_a_rewritten_journal)
{
	struct life l;
	begin(&l);
	u64 seq = submit_turn(&l, 0, 0, 0);
	fixture_run(l.f);
	memcpy(l.answer, fixture_end_of(l.f, seq)->tokens + PROMPT + 4 + TURN, sizeof(l.answer));
	restart(&l);
	submit_turn(&l, SESSION_AGAIN, 0, 0);
	run_steps(&l, 2);
	l.journal.next_minimum = 0;
	for (u64 i = 0; l.journal.next_minimum == 0; i++)
		session_journal_tick(&l.journal, i);
	restart(&l);
	check(&l, PROMPT + 4, OUTPUTS);
	end(&l);
}

/* The journal of a release before has the beginning of a turn that it redid: the turn takes its own place all the same. */
Test(session_deaths, a_turn_that_the_journal_has_begun_twice_takes_its_own_place)
{
	struct life l;
	begin(&l);
	u64 seq = submit_turn(&l, 0, 0, 0);
	fixture_run(l.f);
	memcpy(l.answer, fixture_end_of(l.f, seq)->tokens + PROMPT + 4 + TURN, sizeof(l.answer));
	sessions_begin_turn(l.config.sessions, talk(&l), 77, 1);
	restart(&l);
	cr_assert(talk(&l)->cut_off);
	seq = submit_turn(&l, SESSION_AGAIN, 0, 0);
	fixture_run(l.f);
	cr_assert_eq(fixture_end_of(l.f, seq)->prompt_count, PROMPT + 4 + TURN);
	cr_assert_eq(talk(&l)->token_count, PROMPT + 4 + TURN + OUTPUTS);
	end(&l);
}

/* Nothing of it is left, in the next life either. */
Test(session_deaths, a_turn_that_is_redone_and_given_up_is_gone_from_the_journal)
{
	struct life l;
	begin(&l);
	submit_turn(&l, 0, 0, 0);
	fixture_run(l.f);
	restart(&l);
	submit_turn(&l, SESSION_AGAIN, 0, 0);
	cr_assert(sched_abort(l.f->s, 1, 2, l.f->now_ns));
	for (u32 round = 0; round < 2; round++) {
		cr_assert_eq(talk(&l)->token_count, PROMPT + 4);
		cr_assert_eq(talk(&l)->turn_count, 1);
		restart(&l);
	}
	struct ipc_submit m = message(3, 1, 2, 4, 0);
	submit(&l, &m);
	fixture_run(l.f);
	restart(&l);
	cr_assert_eq(talk(&l)->token_count, PROMPT + 4 + 6);
	cr_assert_eq(talk(&l)->turn_count, 2);
	end(&l);
}
