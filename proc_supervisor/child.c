/* State x event table of a child process, and the back-off. Pure; the supervisor carries out what is decided
 * here. */
#include "proc_supervisor/child.h"

#include <string.h>

#include "common/assert.h"

/* clang-format off */
#define STAY(state)        {CHILD_##state, CHILD_DO_NONE}
#define MOVE(next, action) {CHILD_##next, CHILD_DO_##action}

/* Every pair is listed: what cannot happen, or changes nothing, stays where it is. */
static const struct child_move table[CHILD_STATE_COUNT][CHILD_EVENT_COUNT] = {
	[CHILD_WAITING] = {
		[CHILD_ON_SPAWN] = MOVE(STARTING, SPAWN),
		[CHILD_ON_READIED] = STAY(WAITING),
		[CHILD_ON_EXITED] = STAY(WAITING),
		[CHILD_ON_DRAIN] = MOVE(GONE, NONE),
		[CHILD_ON_STOP] = MOVE(GONE, NONE),
		[CHILD_ON_KILL] = MOVE(GONE, NONE),
		[CHILD_ON_RECYCLE] = STAY(WAITING),
	},
	[CHILD_STARTING] = {
		[CHILD_ON_SPAWN] = STAY(STARTING),
		[CHILD_ON_READIED] = MOVE(READY, ANNOUNCE),
		[CHILD_ON_EXITED] = MOVE(WAITING, LOST),
		/* It has nothing to finish, and does not listen while it loads. */
		[CHILD_ON_DRAIN] = MOVE(KILLING, KILL),
		[CHILD_ON_STOP] = MOVE(KILLING, KILL),
		[CHILD_ON_KILL] = MOVE(KILLING, KILL),
		[CHILD_ON_RECYCLE] = MOVE(RECYCLING, KILL),
	},
	[CHILD_READY] = {
		[CHILD_ON_SPAWN] = STAY(READY),
		[CHILD_ON_READIED] = STAY(READY),
		[CHILD_ON_EXITED] = MOVE(WAITING, LOST),
		[CHILD_ON_DRAIN] = MOVE(DRAINING, SEND_DRAIN),
		[CHILD_ON_STOP] = MOVE(STOPPING, SEND_STOP),
		[CHILD_ON_KILL] = MOVE(KILLING, KILL),
		[CHILD_ON_RECYCLE] = MOVE(RECYCLING, KILL),
	},
	[CHILD_DRAINING] = {
		[CHILD_ON_SPAWN] = STAY(DRAINING),
		[CHILD_ON_READIED] = STAY(DRAINING),
		[CHILD_ON_EXITED] = MOVE(GONE, FINISHED),
		[CHILD_ON_DRAIN] = STAY(DRAINING),
		[CHILD_ON_STOP] = MOVE(STOPPING, SEND_STOP),
		[CHILD_ON_KILL] = MOVE(KILLING, KILL),
		[CHILD_ON_RECYCLE] = MOVE(KILLING, KILL), /* stuck while it drains: it does not come back */
	},
	[CHILD_STOPPING] = {
		[CHILD_ON_SPAWN] = STAY(STOPPING),
		[CHILD_ON_READIED] = STAY(STOPPING),
		[CHILD_ON_EXITED] = MOVE(GONE, FINISHED),
		[CHILD_ON_DRAIN] = STAY(STOPPING),
		[CHILD_ON_STOP] = STAY(STOPPING),
		[CHILD_ON_KILL] = MOVE(KILLING, KILL),
		[CHILD_ON_RECYCLE] = MOVE(KILLING, KILL),
	},
	[CHILD_KILLING] = {
		[CHILD_ON_SPAWN] = STAY(KILLING),
		[CHILD_ON_READIED] = STAY(KILLING),
		[CHILD_ON_EXITED] = MOVE(GONE, FINISHED),
		[CHILD_ON_DRAIN] = STAY(KILLING),
		[CHILD_ON_STOP] = STAY(KILLING),
		[CHILD_ON_KILL] = STAY(KILLING),
		[CHILD_ON_RECYCLE] = STAY(KILLING),
	},
	[CHILD_RECYCLING] = {
		[CHILD_ON_SPAWN] = STAY(RECYCLING),
		[CHILD_ON_READIED] = STAY(RECYCLING),
		[CHILD_ON_EXITED] = MOVE(WAITING, RESTART),
		[CHILD_ON_DRAIN] = MOVE(KILLING, NONE), /* dying already, and now for good */
		[CHILD_ON_STOP] = MOVE(KILLING, NONE),
		[CHILD_ON_KILL] = MOVE(KILLING, NONE),
		[CHILD_ON_RECYCLE] = STAY(RECYCLING),
	},
	[CHILD_GONE] = {
		[CHILD_ON_SPAWN] = STAY(GONE),
		[CHILD_ON_READIED] = STAY(GONE),
		[CHILD_ON_EXITED] = STAY(GONE),
		[CHILD_ON_DRAIN] = STAY(GONE),
		[CHILD_ON_STOP] = STAY(GONE),
		[CHILD_ON_KILL] = STAY(GONE),
		[CHILD_ON_RECYCLE] = STAY(GONE),
	},
};
/* clang-format on */

struct child_move child_move(enum child_state state, enum child_event event)
{
	ASSERT(state < CHILD_STATE_COUNT && event < CHILD_EVENT_COUNT);
	return table[state][event];
}

const char *child_state_name(enum child_state state)
{
	static const char *const names[] = {
#define CHILD_NAME(name) #name,
		CHILD_STATES(CHILD_NAME)
#undef CHILD_NAME
	};

	ASSERT(state < CHILD_STATE_COUNT);
	return names[state];
}

bool child_has_process(enum child_state state)
{
	return state != CHILD_WAITING && state != CHILD_GONE;
}

enum restart_scope child_restart_scope(enum ipc_role role)
{
	return role == IPC_ROLE_WORKER ? RESTART_GROUP : RESTART_SELF;
}

bool restart_is_for_ever(enum ipc_role role)
{
	return role == IPC_ROLE_GATEWAY;
}

bool restart_allowed(struct restart_history *h, bool for_ever, u64 now_ns, u32 *delay_ms)
{
	u32 recent = 0;

	for (u32 i = 0; i < h->count; i++)
		recent += now_ns - h->at_ns[i] < RESTART_WINDOW_S * 1000000000ull;
	if (recent == RESTARTS_MAX && !for_ever)
		return false;
	*delay_ms = RESTART_DELAY_MS_MIN << recent;
	if (recent == RESTARTS_MAX || *delay_ms > RESTART_DELAY_MS_MAX)
		*delay_ms = RESTART_DELAY_MS_MAX;
	if (h->count == RESTARTS_MAX)
		memmove(h->at_ns, h->at_ns + 1, --h->count * sizeof(h->at_ns[0]));
	h->at_ns[h->count++] = now_ns;
	return true;
}
