/* Stop strings in turns of sessions: where the history ends, and when the word on one is waited for. */
#include <criterion/criterion.h>

#include "tests/unit/proc_scheduler/talk.h"

/* The last that was told is that of `seq` so many outputs are kept. */
static void expect_told(const struct fixture *f, u64 seq, u32 output_count)
{
	u32 last = f->closed_count - 1;

	cr_assert_gt(f->closed_count, 0);
	cr_assert_eq(f->closed[last], seq);
	cr_assert_eq(f->closed_reason[last], FINISH_NONE);
	cr_assert_eq(f->closed_outputs[last], output_count);
	cr_assert(f->closed_kept[last]);
}

Test(session_stops, a_stop_string_ends_the_history_where_it_ends)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 30, SESSION_BEGIN);
	u64 a = good(f, &m);
	for (u32 i = 0; i < 5; i++) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	sched_stopped(f->s, a, 3, f->now_ns); /* found late */
	expect_told(f, a, 3);
	cr_assert_eq(talk(f)->token_count, 23);
	m = message(2, 1, 2, 30, 0);
	u64 b = good(f, &m);
	fixture_plan(f);
	sched_stopped(f->s, b, 1, f->now_ns); /* found before its result came here */
	cr_assert_neq(talk(f)->running, 0);
	fixture_deliver(f);
	cr_assert_eq(talk(f)->token_count, 26);
	cr_assert_eq(talk(f)->running, 0);
	expect_told(f, b, 1);
	fixture_run(f);
	destroy(f, &c);
}

Test(session_stops, without_sessions_nobody_waits_for_a_word_on_a_late_stop_string)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	u64 a = fixture_submit(f, 1, 20, 5);
	fixture_run(f);
	sched_stopped(f->s, a, 3, f->now_ns);
	cr_assert_eq(f->closed_count, 0);
	fixture_destroy(&f);
}

Test(session_stops, a_stop_string_that_is_found_behind_the_end_ends_the_history_too)
{
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = message(1, 1, 20, 5, SESSION_BEGIN);
	u64 a = good(f, &m);
	fixture_run(f);
	cr_assert_eq(talk(f)->token_count, 25);
	sched_stopped(f->s, a, 0, f->now_ns);
	sched_stopped(f->s, a, 5, f->now_ns);
	sched_stopped(f->s, a + 1000, 3, f->now_ns);
	cr_assert_eq(talk(f)->token_count, 25);
	expect_told(f, a + 1000, 3); /* whoever holds its end must not do so for ever */
	sched_stopped(f->s, a, 3, f->now_ns);
	cr_assert_eq(talk(f)->token_count, 23);
	expect_told(f, a, 3);
	sched_stopped(f->s, a, 4, f->now_ns);
	cr_assert_eq(talk(f)->token_count, 23);
	m = message(2, 1, 2, 5, 0);
	u64 b = good(f, &m);
	sched_stopped(f->s, a, 1, f->now_ns); /* too late: the next turn goes on behind it */
	expect_told(f, a, 1);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, b)->token_count, 30);
	sched_stopped(f->s, a, 1, f->now_ns);
	cr_assert_eq(talk(f)->token_count, 30);
	sched_stopped(f->s, b, 2, f->now_ns);
	cr_assert_eq(talk(f)->token_count, 27);
	destroy(f, &c);
}

/* Its client need not wait for its end to send the next one, which another gateway may bring. */
Test(session_stops, behind_a_turn_that_was_given_up_the_word_on_its_stop_string_is_waited_for)
{
	static const u32 bytes = 1;
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct sched_admission admission;
	struct ipc_session name = {.session = (const u8 *)"talk", .session_count = 4};
	struct err_msg em;
	for (u32 i = 0; i < 4; i++) {
		bool stops = i < 3, answered = i < 2;
		struct ipc_submit m = message(10 * i + 1, 1, 20, 30, SESSION_BEGIN);
		m.stop_string_bytes = &bytes;
		m.stop_strings = (const u8 *)"x";
		m.stop_string_bytes_count = m.stop_strings_count = stops;
		u64 a = good(f, &m);
		for (u32 step = 0; step < 5; step++) {
			fixture_plan(f);
			fixture_deliver(f);
		}
		cr_assert(sched_abort(f->s, 1, m.req_id, f->now_ns));
		cr_assert_eq(talk(f)->token_count, 25);
		m = message(10 * i + 2, 1, 2, 4, 0);
		cr_assert_eq(sched_session_runs(f->s, &name, f->now_ns), stops);
		if (stops) {
			cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &admission, &em), ERR_CONFLICT);
			cr_assert(admission.turn_runs, "it may wait");
		}
		if (answered)
			sched_stopped(f->s, a, i == 0 ? 3 : 5, f->now_ns);
		else if (stops) /* the detokenizer may have died */
			f->now_ns += 250 * 1000000ull;
		cr_assert_not(sched_session_runs(f->s, &name, f->now_ns));
		u64 b = good(f, &m);
		fixture_run(f);
		cr_assert_eq(fixture_end_of(f, b)->prompt_count, i == 0 ? 25 : 27);
		sessions_drop(f->s->config.sessions, talk(f), SESSION_END_ASKED);
	}
	destroy(f, &c);
}

/* It ended by its tokens here just before, and its client has not heard of that. */
Test(session_stops, so_it_is_when_the_turn_had_ended_already)
{
	static const u32 bytes = 1;
	static const struct {
		bool stops, aborts, told;
		u64 later_ms;
		bool waits;
	} cases[] = {{true, true, true, 0, true},   {true, true, false, 0, true},   {true, false, false, 0, false},
		     {false, true, false, 0, false}, {true, true, false, 300, false}};
	struct sched_config c = config_with_sessions();
	struct fixture *f = fixture_create(&c);
	struct ipc_session name = {.session = (const u8 *)"talk", .session_count = 4};
	for (u32 i = 0; i < COUNT_OF(cases); i++) {
		struct ipc_submit m = message(10 * i + 1, 1, 20, 5, SESSION_BEGIN);
		m.stop_string_bytes = &bytes;
		m.stop_strings = (const u8 *)"x";
		m.stop_string_bytes_count = m.stop_strings_count = cases[i].stops;
		u64 a = good(f, &m);
		fixture_run(f);
		f->now_ns += cases[i].later_ms * 1000000;
		cr_assert_not(sched_abort(f->s, 2, m.req_id, f->now_ns), "another client's");
		cr_assert_not(sched_session_runs(f->s, &name, f->now_ns));
		if (cases[i].aborts)
			cr_assert_not(sched_abort(f->s, 1, m.req_id, f->now_ns), "it has ended");
		cr_assert_eq(sched_session_runs(f->s, &name, f->now_ns), cases[i].waits, "%u", i);
		if (cases[i].told)
			sched_stopped(f->s, a, 3, f->now_ns);
		else if (cases[i].waits)
			f->now_ns += 250 * 1000000ull;
		cr_assert_not(sched_session_runs(f->s, &name, f->now_ns));
		cr_assert_eq(talk(f)->token_count, cases[i].told ? 23 : 25);
		if (cases[i].aborts)
			cr_assert_not(sched_abort(f->s, 1, m.req_id, f->now_ns));
		cr_assert_not(sched_session_runs(f->s, &name, f->now_ns), "once");
		sessions_drop(f->s->config.sessions, talk(f), SESSION_END_ASKED);
	}
	destroy(f, &c);
}
