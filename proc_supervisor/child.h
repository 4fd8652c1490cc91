/* The life of one child process as a table of states and events, and how often it may be started again. Pure: no
 * process is touched here. */
#ifndef TERCET_PROC_SUPERVISOR_CHILD_H
#define TERCET_PROC_SUPERVISOR_CHILD_H

#include "common/types.h"
#include "ipc/ipc.h"

#define CHILD_STATES(X)                                                                                      \
	X(WAITING)   /* no process: its turn has not come, or it backs off before a restart */               \
	X(STARTING)  /* a process that is not ready yet */                                                   \
	X(READY)                                                                                             \
	X(DRAINING)  /* finishes what it has */                                                              \
	X(STOPPING)  /* was told to end */                                                                   \
	X(KILLING)   /* was killed, for good */                                                              \
	X(RECYCLING) /* was killed, to be started again */                                                   \
	X(GONE)      /* no process, and none will come */

#define CHILD_EVENTS(X)                                                                                      \
	X(SPAWN)   /* its time has come */                                                                   \
	X(READIED) /* it says so */                                                                          \
	X(EXITED)                                                                                            \
	X(DRAIN)                                                                                             \
	X(STOP)                                                                                              \
	X(KILL)                                                                                              \
	X(RECYCLE) /* it is stuck, or its group starts again */

#define CHILD_ACTIONS(X)                                                                                     \
	X(NONE) X(SPAWN) X(ANNOUNCE) X(SEND_DRAIN) X(SEND_STOP) X(KILL)                                      \
	X(LOST)      /* it ended although nobody asked */                                                    \
	X(RESTART)   /* it ended as it was meant to and starts again */                                      \
	X(FINISHED)  /* it ended as it was meant to */

enum child_state {
#define CHILD_ENUM(name) CHILD_##name,
	CHILD_STATES(CHILD_ENUM)
#undef CHILD_ENUM
	CHILD_STATE_COUNT
};

enum child_event {
#define CHILD_ENUM(name) CHILD_ON_##name,
	CHILD_EVENTS(CHILD_ENUM)
#undef CHILD_ENUM
	CHILD_EVENT_COUNT
};

enum child_action {
#define CHILD_ENUM(name) CHILD_DO_##name,
	CHILD_ACTIONS(CHILD_ENUM)
#undef CHILD_ENUM
	CHILD_ACTION_COUNT
};

struct child_move {
	enum child_state next;
	enum child_action action;
};

struct child_move child_move(enum child_state state, enum child_event event);
const char *child_state_name(enum child_state state);
/* Whether there is a process in this state. */
bool child_has_process(enum child_state state);

/* What starts again with a process that was lost while the engine ran. */
enum restart_scope {
	RESTART_SELF,  /* its peers keep their state: scheduler, detokenizer, gateway */
	RESTART_GROUP, /* all of its role: the ranks of a group compute every layer together */
};
enum restart_scope child_restart_scope(enum ipc_role role);

/* The latest restarts of one process or group. Zero-initialised is none. */
enum { RESTARTS_MAX = 5, RESTART_WINDOW_S = 60, RESTART_DELAY_MS_MIN = 100, RESTART_DELAY_MS_MAX = 5000 };
struct restart_history {
	u64 at_ns[RESTARTS_MAX]; /* oldest first */
	u32 count;
};
/* Whether a process of this role may be started for ever: without a gateway the engine is sound, other gateways and
 * clients go on, and what makes it fail again and again comes from outside (a request that is sent once more). Without
 * one of the others nobody is served. */
bool restart_is_for_ever(enum ipc_role role);
/* Counts one more and says how long to wait before it: 100 ms, doubled with each restart of the last minute,
 * RESTART_DELAY_MS_MAX at most. False: it was started RESTARTS_MAX times within a minute already and again would not
 * help; never with `for_ever`. */
bool restart_allowed(struct restart_history *h, bool for_ever, u64 now_ns, u32 *delay_ms);

#endif
