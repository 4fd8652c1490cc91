/* Which processes an engine consists of, and where their programs are. */
#ifndef TERCET_PROC_SUPERVISOR_PLAN_H
#define TERCET_PROC_SUPERVISOR_PLAN_H

#include "common/err.h"
#include "common/options.h"
#include "ipc/ipc.h"

/* One scheduler, one detokenizer, up to 64 workers and 64 gateways. */
enum { PLAN_CHILDREN_MAX = 2 + 64 + 64 };

struct child_spec {
	enum ipc_role role;
	u32 rank;
	char name[24];	      /* "worker-0": also its statistics page and trace */
	const char *program;  /* "tercet-worker" */
	bool needs_scheduler; /* spawned once the scheduler is ready */
};

struct plan {
	struct child_spec specs[PLAN_CHILDREN_MAX];
	u32 count;
};

/* The processes of this node in the order in which they are spawned: those that bind sockets first. Nodes other than
 * node 0 have workers only. */
void plan_make(struct plan *p, const struct options *o);

/* Whether a process of ours may open as many files as the engine's processes and some clients need of each other's sockets: the
 * transport ends a process that gets none. Looks at the soft limit, which boot_attach raises as far as it goes. ERR_INVALID:
 * says what the limit is, what is needed and how to raise it. */
MUST_CHECK enum err plan_check_files(const struct plan *p, struct err_msg *em);

/* The path of `program`: in $TERCET_LIBEXEC when it is set; else beside the running executable as it was
 * installed
 * (../libexec/tercet/PROGRAM) or built (../../proc_X/tercet-X for tercet-X, ../../bench/ for tercet-bench-X).
 * ERR_NOT_FOUND names the places. */
MUST_CHECK enum err plan_find_program(char *out, size_t bytes, const char *program, struct err_msg *em);

/* Whether the gateways could bind host:port, before anything is loaded. A port of 0 is replaced by a free
 * one, so that every gateway, also a restarted one, gets the same. ERR_BUSY, ERR_DENIED, ERR_INVALID with one
 * clear line. */
MUST_CHECK enum err plan_claim_port(const char *host, i64 *port, struct err_msg *em);

#endif
