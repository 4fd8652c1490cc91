/* Turns of sessions through the scheduling core: what is put together, what is refused, what is kept, and that only
 * new tokens are computed. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/talk.h"

Test(session_turns, the_second_turn_has_the_first_in_front_and_computes_only_what_is_new)
{
	for (u32 depth = 0; depth <= SCHED_DEPTH_MAX; depth++) {
		struct sched_config c = config_with_sessions();
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		struct ipc_submit first = message(1, 1, 21, 6, SESSION_BEGIN);
		u64 a = good(f, &first);
		fixture_run(f);
		const struct fixture_end *e = fixture_end_of(f, a);
		cr_assert_eq(talk(f)->token_count, 27);
		struct ipc_submit second = message(2, 500, 3, 6, 0);
		u64 b = good(f, &second);
		const struct ipc_step *step = fixture_plan(f);
		/* Of 27 tokens the last one was never computed, and at most `depth` others were unknown when the
		   row was given up: the block behind the first is copied. */
		cr_assert_geq(step->add_computed[0], 26 - depth, "depth %u: %u", depth, step->add_computed[0]);
		cr_assert_leq(step->add_computed[0], 26);
		cr_assert_eq(step->copy_src_count, 1);
		cr_assert_eq(step->add_prompt_count[0], 30);
		fixture_run(f);
		const struct fixture_end *g = fixture_end_of(f, b);
		cr_assert_eq(g->prompt_count, 30);
		cr_assert_eq(memcmp(g->tokens, e->tokens, 27 * sizeof(u32)), 0);
		cr_assert_eq(g->tokens[27], 500);
		cr_assert(fixture_is_solo_run(g));
		cr_assert_eq(talk(f)->token_count, 36);
		cr_assert_eq(talk(f)->turn_count, 2);
		destroy(f, &c);
	}
}

Test(session_turns, a_history_whose_blocks_are_gone_is_computed_anew)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit first = message(1, 1, 40, 4, SESSION_BEGIN), second = message(2, 600, 3, 4, 0);
	good(f, &first);
	fixture_run(f);
	sched_restart_workers(f->s, c.block_count, 0, 0, f->now_ns);
	fake_worker_reset(&f->worker, c.block_count, f->s->context_max);
	second = message(2, 600, 3, 4, 0);
	u64 b = good(f, &second);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 0);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	destroy(f, &c);
}

Test(session_turns, what_cannot_be_is_refused_and_changes_nothing)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	static const struct {
		u32 tokens, flags, step, join;
		const char *name;
		enum err e;
		const char *text;
	} cases[] = {
		{3, SESSION_BEGIN, 0, 0, "talk", ERR_CONFLICT, "is there already"},
		{3, 0, 0, 0, "other", ERR_NOT_FOUND, "no session 'other'"},
		{3, 0, 0, 0, "a b", ERR_INVALID, "letters"},
		{3, 16, 0, 0, "talk", ERR_INVALID, "session_flags is 16"},
		{3, SESSION_STEP, 25, 0, "talk", ERR_INVALID, "session_step is 25; session 'talk' has 24 tokens"},
		{3, SESSION_STEP | SESSION_BEGIN, 0, 0, "talk", ERR_INVALID, "begins"},
		{3, 0, 5, 0, "talk", ERR_INVALID, "without its flag"},
		{3, 0, 0, 4, "talk", ERR_INVALID, "session_join is 4"},
		{0, SESSION_STEP, 0, 0, "talk", ERR_INVALID, "empty"},
		{0, SESSION_BEGIN, 0, 0, "new", ERR_INVALID, "empty"},
		{232, 0, 0, 0, "talk", ERR_TOO_LONG, "the session has 24 tokens and the new turn 232"},
		{3, SESSION_BEGIN, 0, 0, "", ERR_INVALID, "without a session"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct err_msg em = {""};
		m = message(2, 1, cases[i].tokens, 4, cases[i].flags);
		m.session_step = cases[i].step;
		m.session_join = cases[i].join;
		m.session = (const u8 *)cases[i].name;
		m.session_count = (u32)strlen(cases[i].name);
		cr_assert_eq(submit(f, &m, NULL, &em), cases[i].e, "%zu: %s", i, em.text);
		cr_assert(strstr(em.text, cases[i].text), "%zu: %s", i, em.text);
		cr_assert_eq(talk(f)->token_count, 24);
		cr_assert_eq(talk(f)->running, 0);
		cr_assert_eq(c.sessions->count, 1);
	}
	m = message(2, 1, 231, 4, 0); /* one less fits */
	good(f, &m);
	destroy(f, &c);
}

Test(session_turns, one_at_a_time)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	struct err_msg em;
	good(f, &m);
	m = message(2, 1, 20, 4, 0);
	cr_assert_eq(submit(f, &m, NULL, &em), ERR_CONFLICT);
	cr_assert(strstr(em.text, "in work"), "%s", em.text);
	m = message(1, 1, 20, 4, SESSION_BEGIN | SESSION_AGAIN); /* itself, once more */
	cr_assert_eq(submit(f, &m, NULL, &em), ERR_EXISTS);
	fixture_run(f);
	m = message(3, 1, 20, 4, 0);
	good(f, &m);
	destroy(f, &c);
}

Test(session_turns, an_aborted_turn_keeps_what_it_has_and_one_without_output_nothing)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 9, SESSION_BEGIN);
	good(f, &m);
	cr_assert(sched_abort(f->s, 1, 1, f->now_ns));
	cr_assert_null(talk(f)); /* it may be begun again */
	m = message(2, 1, 20, 9, SESSION_BEGIN);
	good(f, &m);
	for (u32 i = 0; i < 3; i++) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	cr_assert(sched_abort(f->s, 1, 2, f->now_ns));
	cr_assert_eq(talk(f)->token_count, 23);
	m = message(3, 1, 5, 9, 0);
	good(f, &m);
	cr_assert(sched_abort(f->s, 1, 3, f->now_ns));
	cr_assert_eq(talk(f)->token_count, 23);
	cr_assert_eq(talk(f)->turn_count, 1);
	fixture_run(f);
	destroy(f, &c);
}

Test(session_turns, an_answer_is_generated_again_from_a_step_back)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 8, SESSION_BEGIN);
	u64 a = good(f, &m);
	fixture_run(f);
	m = message(2, 0, 0, 8, SESSION_STEP);
	m.session_step = 20;
	u64 b = good(f, &m);
	fixture_run(f);
	cr_assert_eq(memcmp(fixture_end_of(f, a)->tokens, fixture_end_of(f, b)->tokens, 28 * sizeof(u32)), 0);
	cr_assert_eq(talk(f)->token_count, 28);
	m = message(3, 700, 2, 4, SESSION_STEP);
	m.session_step = 24;
	u64 d = good(f, &m);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, d)->prompt_count, 26);
	cr_assert_eq(fixture_end_of(f, d)->tokens[24], 700);
	cr_assert_eq(talk(f)->token_count, 30);
	m = message(4, 0, 0, 4, 0); /* nothing new: the answer goes on */
	u64 g = good(f, &m);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, g)->prompt_count, 30);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, g)));
	destroy(f, &c);
}

Test(session_turns, a_turn_that_was_sent_again_takes_its_own_place)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	m = message(2, 600, 5, 4, 0);
	u64 a = good(f, &m);
	fixture_run(f);
	u32 tokens[7] = {600, 601, 602, 603, 604};
	memcpy(tokens + 5, fixture_end_of(f, a)->tokens + 29, 2 * sizeof(u32));
	m = message(2, 600, 5, 4, SESSION_AGAIN); /* the client has two of the four outputs */
	m.tokens = tokens;
	m.tokens_count = 7;
	m.output_count = 2;
	u64 b = good(f, &m);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, b)->prompt_count, 29);
	cr_assert_eq(memcmp(fixture_end_of(f, a)->tokens, fixture_end_of(f, b)->tokens, 33 * sizeof(u32)), 0);
	cr_assert_eq(talk(f)->token_count, 33);
	cr_assert_eq(talk(f)->turn_count, 2);
	destroy(f, &c);
}

/* As of any turn that is given up in front of its first token, nothing of it is left: its client has heard of no end. */
Test(session_turns, a_turn_that_is_sent_again_and_given_up_leaves_the_session_as_it_was)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	m = message(2, 600, 5, 4, 0);
	good(f, &m);
	fixture_run(f);
	m = message(2, 600, 5, 4, SESSION_AGAIN);
	good(f, &m);
	cr_assert(sched_abort(f->s, 1, 2, f->now_ns));
	cr_assert_eq(talk(f)->token_count, 24);
	cr_assert_eq(talk(f)->turn_count, 1);
	m = message(3, 700, 2, 4, 0);
	u64 next = good(f, &m);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, next)->prompt_count, 26);
	cr_assert_eq(talk(f)->turn_count, 2);
	destroy(f, &c);
}

/* The detokenizer gives an end out when it is told; by then it must be kept. */
Test(session_turns, an_end_is_told_when_it_is_kept)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	u64 a = good(f, &m);
	fixture_run(f);
	cr_assert_eq(f->closed_count, 1);
	cr_assert_eq(f->closed[0], a);
	cr_assert_eq(f->closed_reason[0], FINISH_NONE);
	m = message(2, 600, 5, 4, 0);
	good(f, &m);
	fixture_plan(f);
	fixture_deliver(f);
	cr_assert(sched_abort(f->s, 1, 2, f->now_ns));
	cr_assert_eq(f->closed_count, 2);
	cr_assert_eq(f->closed_reason[1], FINISH_ABORT);
	cr_assert(f->closed_kept[0] && f->closed_kept[1]);
	cr_assert_eq(talk(f)->token_count, 30);
	fixture_run(f);
	fixture_submit(f, 1, 5, 3);
	fixture_run(f);
	cr_assert_eq(f->closed_count, 2, "what is in no session needs no word");
	destroy(f, &c);
}

/* Its client has heard the end of a turn with SESSION_END; of that the journal knows the beginning alone. */
Test(session_turns, a_session_whose_last_turn_was_cut_off_is_over_for_all_but_that_turn)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_session q = {.session = (const u8 *)"talk", .session_count = 4};
	struct ipc_session_state st;
	struct err_msg em;
	struct ipc_submit m = message(1, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	struct session *s = talk(f);
	s->turn_client = 1;
	s->turn_req = 2;
	s->turn_base = s->token_count;
	s->cut_off = s->ending = true;
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_DROPPED);
	m = message(3, 600, 5, 4, 0);
	cr_assert_eq(submit(f, &m, NULL, &em), ERR_DROPPED);
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_OK, "its client has ended it");
	cr_assert_eq(st.token_count, 24);
	m = message(2, 600, 5, 4, SESSION_END | SESSION_AGAIN);
	u64 again = good(f, &m);
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_OK);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, again)->prompt_count, 29);
	cr_assert(session_is_over(talk(f)));
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_DROPPED);

	m = message(4, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	talk(f)->cut_off = talk(f)->ending = true;
	m = message(5, 7, 3, 4, SESSION_BEGIN);
	u64 anew = good(f, &m);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, anew)->prompt_count, 3);
	cr_assert_eq(talk(f)->token_count, 7);
	cr_assert_not(talk(f)->ending);
	destroy(f, &c);
}

Test(session_turns, what_ends_an_answer_is_not_said_twice)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	static const struct {
		u32 history[3], own[3], join, prompt[5], prompt_count;
	} cases[] = {
		{{1, 2, 50}, {50, 51, 9}, 2, {1, 2, 50, 51, 9}, 5},   /* the model said the first of two */
		{{1, 50, 51}, {50, 51, 9}, 2, {1, 50, 51, 9}, 4},     /* both */
		{{1, 2, 3}, {50, 51, 9}, 1, {1, 2, 3, 50, 51}, 5},    /* neither; cut to five for the test */
		{{1, 2, 999}, {50, 51, 9}, 2, {1, 2, 50, 51, 9}, 5},  /* another end-of-sequence token */
		{{1, 2, 999}, {50, 51, 9}, 0, {1, 2, 999, 50, 51}, 5}, /* without a join nothing is touched */
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct session *s;
		struct err_msg em;
		cr_assert_eq(sessions_add(c.sessions, 0, (const u8 *)"talk", 4, 0, &s), ERR_OK);
		cr_assert_eq(sessions_append(c.sessions, s, cases[i].history, 3), ERR_OK);
		struct ipc_submit m = message(10 + i, 0, 3, 1, 0);
		m.tokens = cases[i].own;
		m.session_join = cases[i].join;
		u64 seq;
		cr_assert_eq(submit(f, &m, &seq, &em), ERR_OK, "%s", em.text);
		fixture_run(f);
		cr_assert_eq(memcmp(fixture_end_of(f, seq)->tokens, cases[i].prompt,
				    cases[i].prompt_count * sizeof(u32)), 0, "case %zu", i);
		sessions_drop(c.sessions, talk(f), SESSION_END_ASKED);
	}
	destroy(f, &c);
}

Test(session_turns, state_and_end)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_session q = {.session = (const u8 *)"talk", .session_count = 4};
	struct ipc_session_state st;
	struct err_msg em;
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_NOT_FOUND);
	struct ipc_submit m = message(1, 1, 20, 8, SESSION_BEGIN);
	good(f, &m);
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_OK);
	cr_assert_eq(st.running, 1);
	fixture_run(f);
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns + 3000000000u, &st, &em), ERR_OK);
	cr_assert_eq(st.token_count, 28);
	cr_assert_eq(st.turn_count, 1);
	cr_assert_eq(st.cached_count, 27, "%u", st.cached_count);
	cr_assert_eq(st.idle_s, 3);
	m = message(2, 1, 5, 8, 0);
	u64 seq = good(f, &m);
	fixture_plan(f);
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_OK);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_ABORT);
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "was ended"), "%s", em.text);
	fixture_run(f);
	m = message(3, 1, 5, 8, SESSION_BEGIN | SESSION_END);
	good(f, &m);
	fixture_run(f);
	cr_assert_null(talk(f));
	/* Its last turn has ended it, which is what is asked for. */
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_OK);
	cr_assert_eq(sched_session_get(f->s, &q, f->now_ns, &st, &em), ERR_DROPPED);
	destroy(f, &c);
}

Test(session_turns, an_end_that_is_asked_for_again_is_answered_as_the_first_time)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_session q = {.session = (const u8 *)"talk", .session_count = 4};
	struct ipc_session_state st;
	struct err_msg em;
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_NOT_FOUND);
	struct ipc_submit m = message(1, 1, 20, 8, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	for (u32 i = 0; i < 3; i++) {
		q.req_id = 7 + i;
		cr_assert_eq(sched_session_end(f->s, &q, f->now_ns + i * 1000000000ull, &st, &em), ERR_OK, "%u: %s", i, em.text);
		cr_assert_eq(st.req_id, q.req_id);
		cr_assert_eq(st.token_count, 28);
		cr_assert_eq(st.turn_count, 1);
		cr_assert_eq(st.idle_s, i);
		cr_assert_eq(st.running, 0);
	}
	/* One that left for another reason was not ended, nor is one of its name that has begun since. */
	m = message(2, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_OK);
	cr_assert_eq(st.token_count, 24);
	m = message(3, 1, 20, 4, SESSION_BEGIN);
	good(f, &m);
	fixture_run(f);
	sessions_drop(c.sessions, talk(f), SESSION_END_EXPIRED);
	cr_assert_eq(sched_session_end(f->s, &q, f->now_ns, &st, &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "--session-ttl"), "%s", em.text);
	destroy(f, &c);
}
