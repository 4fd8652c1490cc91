#include <criterion/criterion.h>

#include "proc_supervisor/child.h"

static enum child_state after(enum child_state s, enum child_event e)
{
	return child_move(s, e).next;
}

Test(child, a_normal_life)
{
	enum child_state s = CHILD_WAITING;

	cr_assert_eq(child_move(s, CHILD_ON_SPAWN).action, CHILD_DO_SPAWN);
	s = after(s, CHILD_ON_SPAWN);
	cr_assert_eq(child_move(s, CHILD_ON_READIED).action, CHILD_DO_ANNOUNCE);
	s = after(s, CHILD_ON_READIED);
	cr_assert_eq(child_move(s, CHILD_ON_DRAIN).action, CHILD_DO_SEND_DRAIN);
	s = after(s, CHILD_ON_DRAIN);
	cr_assert_eq(child_move(s, CHILD_ON_STOP).action, CHILD_DO_SEND_STOP);
	s = after(s, CHILD_ON_STOP);
	cr_assert_eq(child_move(s, CHILD_ON_EXITED).action, CHILD_DO_FINISHED);
	cr_assert_eq(after(s, CHILD_ON_EXITED), CHILD_GONE);
}

Test(child, an_end_that_nobody_asked_for_is_a_loss)
{
	cr_assert_eq(child_move(CHILD_STARTING, CHILD_ON_EXITED).action, CHILD_DO_LOST);
	cr_assert_eq(child_move(CHILD_READY, CHILD_ON_EXITED).action, CHILD_DO_LOST);
	cr_assert_eq(after(CHILD_READY, CHILD_ON_EXITED), CHILD_WAITING);
	cr_assert_eq(child_move(CHILD_STOPPING, CHILD_ON_EXITED).action, CHILD_DO_FINISHED);
	cr_assert_eq(child_move(CHILD_KILLING, CHILD_ON_EXITED).action, CHILD_DO_FINISHED);
}

Test(child, recycling_ends_in_a_restart)
{
	cr_assert_eq(child_move(CHILD_READY, CHILD_ON_RECYCLE).action, CHILD_DO_KILL);
	cr_assert_eq(after(CHILD_READY, CHILD_ON_RECYCLE), CHILD_RECYCLING);
	cr_assert_eq(child_move(CHILD_RECYCLING, CHILD_ON_EXITED).action, CHILD_DO_RESTART);
	cr_assert_eq(after(CHILD_RECYCLING, CHILD_ON_EXITED), CHILD_WAITING);
}

Test(child, a_stop_during_recycling_is_final)
{
	cr_assert_eq(after(CHILD_RECYCLING, CHILD_ON_STOP), CHILD_KILLING);
	cr_assert_eq(after(after(CHILD_RECYCLING, CHILD_ON_STOP), CHILD_ON_EXITED), CHILD_GONE);
}

Test(child, whoever_waits_for_a_restart_does_not_come_back_after_a_stop)
{
	cr_assert_eq(after(CHILD_WAITING, CHILD_ON_STOP), CHILD_GONE);
	cr_assert_eq(after(CHILD_WAITING, CHILD_ON_DRAIN), CHILD_GONE);
}

Test(child, what_is_gone_stays_gone)
{
	for (int e = 0; e < CHILD_EVENT_COUNT; e++) {
		cr_assert_eq(after(CHILD_GONE, (enum child_event)e), CHILD_GONE);
		cr_assert_eq(child_move(CHILD_GONE, (enum child_event)e).action, CHILD_DO_NONE);
	}
}

Test(child, stop_kill_and_exit_end_every_state)
{
	for (int s = 0; s < CHILD_STATE_COUNT; s++) {
		cr_assert_eq(after(after((enum child_state)s, CHILD_ON_STOP), CHILD_ON_EXITED), CHILD_GONE,
			     "%s", child_state_name((enum child_state)s));
		enum child_state killed = after(after((enum child_state)s, CHILD_ON_STOP), CHILD_ON_KILL);
		cr_assert_eq(after(killed, CHILD_ON_EXITED), CHILD_GONE);
	}
}

/* A process exists exactly in the states that say so: spawn makes one, exit takes it away, nothing else does.
 */
Test(child, only_spawn_and_exit_change_whether_there_is_a_process)
{
	for (int s = 0; s < CHILD_STATE_COUNT; s++)
		for (int e = 0; e < CHILD_EVENT_COUNT; e++) {
			bool before = child_has_process((enum child_state)s);
			struct child_move m = child_move((enum child_state)s, (enum child_event)e);
			if (e == CHILD_ON_EXITED)
				cr_assert_not(child_has_process(m.next));
			else if (m.action == CHILD_DO_SPAWN)
				cr_assert(!before && child_has_process(m.next));
			else
				cr_assert_eq(before, child_has_process(m.next));
		}
}

Test(child, ranks_restart_together_and_others_alone)
{
	cr_assert_eq(child_restart_scope(IPC_ROLE_WORKER), RESTART_GROUP);
	cr_assert_eq(child_restart_scope(IPC_ROLE_SCHEDULER), RESTART_SELF);
	cr_assert_eq(child_restart_scope(IPC_ROLE_DETOK), RESTART_SELF);
	cr_assert_eq(child_restart_scope(IPC_ROLE_GATEWAY), RESTART_SELF);
}

static const u64 second = 1000000000;

Test(restarts, delays_double_within_a_minute_and_then_there_is_an_end)
{
	struct restart_history h = {.count = 0};
	u64 now = 1000 * second;
	u32 delay, expected[] = {100, 200, 400, 800, 1600};

	for (int i = 0; i < RESTARTS_MAX; i++, now += second) {
		cr_assert(restart_allowed(&h, false, now, &delay));
		cr_assert_eq(delay, expected[i]);
	}
	cr_assert_not(restart_allowed(&h, false, now, &delay));
}

Test(restarts, what_is_older_than_a_minute_is_forgiven)
{
	struct restart_history h = {.count = 0};
	u64 now = 1000 * second;
	u32 delay;

	for (int i = 0; i < 100; i++, now += 20 * second) {
		cr_assert(restart_allowed(&h, false, now, &delay));
		cr_assert_leq(delay, 800);
	}
	now += 100 * second;
	cr_assert(restart_allowed(&h, false, now, &delay));
	cr_assert_eq(delay, 100);
}

Test(restarts, a_gateway_is_started_for_ever_but_ever_more_slowly)
{
	struct restart_history h = {.count = 0};
	u64 now = 1000 * second;
	u32 delay, expected[] = {100, 200, 400, 800, 1600, 5000, 5000, 5000};

	cr_assert(restart_is_for_ever(IPC_ROLE_GATEWAY));
	cr_assert_not(restart_is_for_ever(IPC_ROLE_SCHEDULER));
	cr_assert_not(restart_is_for_ever(IPC_ROLE_DETOK));
	cr_assert_not(restart_is_for_ever(IPC_ROLE_WORKER));
	for (u32 i = 0; i < COUNT_OF(expected); i++, now += second) {
		cr_assert(restart_allowed(&h, true, now, &delay));
		cr_assert_eq(delay, expected[i]);
	}
	now += 61 * second;
	cr_assert(restart_allowed(&h, true, now, &delay));
	cr_assert_eq(delay, 100);
}
