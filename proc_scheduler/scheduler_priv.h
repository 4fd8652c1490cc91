/* What the files of the scheduler's I/O shell share. */
#ifndef TERCET_PROC_SCHEDULER_SCHEDULER_PRIV_H
#define TERCET_PROC_SCHEDULER_SCHEDULER_PRIV_H

#include "common/trace.h"
#include "proc_scheduler/clients.h"
#include "proc_scheduler/sched.h"
#include "proc_scheduler/scheduler.h"
#include "proc_scheduler/streams.h"
#include "proc_scheduler/workers.h"

struct scheduler {
	const struct options *options;
	struct boot *boot;
	struct stats_page *stats;
	struct trace *trace;
	struct ipc_context *ipc;
	struct ipc_loop *loop;
	struct ipc_channel *submit_channel, *step_channel, *stream_channel;
	struct clients clients;
	struct outbox submit_outbox;
	struct workers workers;
	struct streams streams;
	struct sched *sched; /* NULL until all workers were ready for the first time */
	struct buf frame;    /* the STEP in the making */
	u64 epoch;
	u64 busy_since_ns;	/* 0: there was no work at the last turn */
	u32 fruitless_restarts; /* worker epochs in a row without a result */
	u32 flush_timer;
	bool flush_timer_set;
	bool announced; /* the supervisor was told that we are ready */
	bool draining;
	bool drain_told;
	enum err fatal; /* why the loop was stopped */
	struct err_msg fatal_text;
	u8 secret[PREFIX_SECRET_BYTES];
};

/* scheduler_submit.c: messages of clients. */
void scheduler_on_client(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg);
/* Tells a client what engine this is. */
void scheduler_send_engine(struct scheduler *s, ipc_peer to);
void scheduler_expire_clients(struct scheduler *s, u64 now_ns);

/* scheduler_step.c: messages of workers, and the steps. */
void scheduler_on_worker(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg);
/* Plans and sends steps while there is room for them in flight. */
void scheduler_plan(struct scheduler *s);

/* scheduler.c */
void scheduler_fail(struct scheduler *s, enum err e, const struct err_msg *em);

#endif
