/* The supervisor's state, shared by its files. */
#ifndef TERCET_PROC_SUPERVISOR_SUPERVISOR_PRIV_H
#define TERCET_PROC_SUPERVISOR_SUPERVISOR_PRIV_H

#include <sys/types.h>

#include "common/shm_stats.h"
#include "ipc/ipc.h"
#include "proc_supervisor/child.h"
#include "proc_supervisor/console.h"
#include "proc_supervisor/plan.h"
#include "proc_supervisor/run_dir.h"
#include "proc_supervisor/watch.h"

struct child {
	const struct child_spec *spec;
	enum child_state state;
	pid_t pid;
	int pidfd, boot_fd; /* -1: none */
	char line[2048];    /* what came of a line that is not whole */
	size_t line_bytes;
	u64 spawn_at_ns; /* not before */
	u64 heard_ns;	 /* of the last line, or of the spawn */
	u64 ready_ns;
	u64 pinged_ns;	  /* when the last ping was sent */
	bool ping_is_out; /* and not answered yet */
	u64 stopped_ns;	  /* when it was seen to be stopped (SIGSTOP); 0: it is not */
	double progress;
	bool drained;	   /* nothing is left to finish */
	char facts[1024];  /* of the ready line */
	char failure[1024]; /* of the failed line */
	struct restart_history restarts;
	const struct stats_page *stats;
};

enum phase {
	PHASE_START, /* until every process is ready once */
	PHASE_RUN,
	PHASE_DRAIN_GATEWAYS, /* HTTP requests end */
	PHASE_DRAIN_ENGINE,   /* requests of other clients end */
	PHASE_STOP,	      /* every process ends */
};

struct supervisor {
	struct options *options;
	struct plan plan;
	struct child children[PLAN_CHILDREN_MAX];
	struct run_dir run_dir;
	struct watch watch;
	struct console console;
	struct boot parent; /* fd -1: started from a shell or a service manager */
	enum phase phase;
	int status;
	bool was_ready; /* PHASE_RUN was reached */
	u32 stop_signals;
	u64 started_ns;
	u64 deadline_ns;      /* of the phase; 0: none */
	u32 stop_stage;	      /* in PHASE_STOP: whose turn it is to end */
	u64 stage_ns;	      /* since when */
	bool killed;	      /* in PHASE_STOP: the deadline has passed */
	u64 liveness_from_ns; /* nobody is judged by what was before */
	u64 liveness_checked_ns; /* when that was done last; 0: never */
};

/* ---- supervisor_children.c ---- */

/* Runs the event through the child's table and does what it says. */
void supervisor_apply(struct supervisor *s, struct child *c, enum child_event event, u64 now_ns);
void supervisor_apply_all(struct supervisor *s, enum child_event event, u64 now_ns);
/* Reads the lines of a child, and its end. */
void supervisor_on_line(struct supervisor *s, struct child *c, u64 now_ns);
void supervisor_on_exit(struct supervisor *s, struct child *c, u64 now_ns);
/* SIGCHLD: also reaps what was adopted from children that died. */
void supervisor_reap(struct supervisor *s, u64 now_ns);
/* Spawns whose time has come. */
void supervisor_spawn_due(struct supervisor *s, u64 now_ns);
/* Decides when `c`, and with it its group, starts again; too often, and everything ends. */
void supervisor_restart(struct supervisor *s, struct child *c, u64 now_ns, const char *why);
/* One line down the boot socket. */
void supervisor_send(struct child *c, const char *line);
/* When the supervisor has to look again although nothing happened; UINT64_MAX: never. */
u64 supervisor_next_deadline(const struct supervisor *s, u64 now_ns);

/* ---- supervisor_liveness.c ---- */

/* Restarts one process that owes an answer or has work and completes none, if there is one. */
void supervisor_check_liveness(struct supervisor *s, u64 now_ns);
/* SIGCHLD, too: who was stopped by a signal, and who goes on. */
void supervisor_note_stops(struct supervisor *s, u64 now_ns);
/* When to check next; UINT64_MAX: never. */
u64 supervisor_next_liveness(const struct supervisor *s, u64 now_ns);

/* ---- supervisor.c ---- */

/* Something failed that cannot be mended: says so once and stops everything with status 1. */
void supervisor_fail(struct supervisor *s, u64 now_ns, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A process that is needed to finish requests is gone: stops everything. */
void supervisor_stop(struct supervisor *s, u64 now_ns);

#endif
