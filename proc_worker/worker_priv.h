/* The worker's own: shared by worker.c and worker_step.c. */
#ifndef TERCET_PROC_WORKER_WORKER_PRIV_H
#define TERCET_PROC_WORKER_WORKER_PRIV_H

#include "common/cluster_secret.h"
#include "common/shm_stats.h"
#include "common/trace.h"
#include "proc_worker/runner.h"
#include "proc_worker/worker.h"

struct worker {
	const struct options *options;
	struct boot *boot;
	u32 rank;
	struct cluster_secret secret; /* with several nodes, as the next */
	struct collectives_nodes nodes;
	struct runner *runner;
	struct stats_page *stats;
	struct trace *trace; /* NULL: off */
	struct lora_modules loras;
	struct ipc_context *ipc;
	struct ipc_channel *step_channel;
	struct ipc_channel *tokens_channel; /* rank 0 */
	struct ipc_loop *loop;
	struct buf frame;
	u64 epoch;   /* of the last INIT; 0: none yet */
	bool broken; /* the epoch's state is lost: STEPs are passed over until the next INIT */
	bool stopping;
	u64 idle_since_ns; /* end of the last step, when rows were left to run; else 0 */
	enum err fatal;
	struct err_msg fatal_text;
};

/* The process ends with this error; the first one counts. */
void worker_fail(struct worker *w, enum err e, const struct err_msg *em);
/* Another node is lost: this process can do nothing without it, and begins anew with it. When node 0 has stopped
 * the engine, it ends as it is meant to, and the supervisor of this node is told. True: it was so. */
bool worker_check_nodes(struct worker *w);
/* What the supervisor says. */
void worker_on_command(struct worker *w);

void worker_send_ready(struct worker *w);
/* INIT and STEP of the present epoch. */
void worker_begin_epoch(struct worker *w, u64 epoch, const struct ipc_init *m);
void worker_run_step(struct worker *w, const struct ipc_step *step);
/* Sends the results of all steps that are done. */
void worker_collect(struct worker *w);

#endif
