/* What the files of the scheduler's I/O shell share. */
#ifndef TERCET_PROC_SCHEDULER_SCHEDULER_PRIV_H
#define TERCET_PROC_SCHEDULER_SCHEDULER_PRIV_H

#include "common/speculative.h"
#include "common/trace.h"
#include "proc_scheduler/clients.h"
#include "proc_scheduler/parked.h"
#include "proc_scheduler/sched.h"
#include "proc_scheduler/scheduler.h"
#include "proc_scheduler/session_journal.h"
#include "proc_scheduler/streams.h"
#include "proc_scheduler/workers.h"

struct scheduler {
	const struct options *options;
	struct lora_modules loras;
	struct speculative speculative; /* what the options say of it */
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
	struct sessions *sessions; /* NULL: none are kept */
	struct session_journal journal;
	struct parked parked;
	struct sched *sched; /* NULL until all workers were ready for the first time */
	struct buf frame;    /* the STEP in the making */
	u64 epoch;
	u64 busy_since_ns;	/* 0: there was no work at the last turn */
	u32 fruitless_restarts; /* worker epochs in a row without a result */
	u32 flush_timer, park_timer;
	bool flush_timer_set, park_timer_set;
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
/* Tries again what waits for the end of a turn; refuses what has waited too long. */
void scheduler_try_parked(struct scheduler *s, u64 now_ns);
/* Refuses all that wait for it. */
void scheduler_refuse_parked(struct scheduler *s, enum err code, const char *text);
void scheduler_expire_clients(struct scheduler *s, u64 now_ns);

/* Sends to a client; one that does not take it is treated as gone when `client_id` names it. */
void scheduler_reply(struct scheduler *s, ipc_peer to, u64 client_id, const struct ipc_msg *msg);

/* scheduler_sessions.c: the store, its journal, and what clients ask of it. */
MUST_CHECK enum err scheduler_open_sessions(struct scheduler *s, struct err_msg *em);
void scheduler_close_sessions(struct scheduler *s);
/* The workers' vocabulary is known. */
void scheduler_check_sessions(struct scheduler *s, u32 vocab_size);
void scheduler_on_session(struct scheduler *s, ipc_peer from, const struct ipc_session *m);
/* About once a second. */
void scheduler_tick_sessions(struct scheduler *s, u64 now_ns);

/* scheduler_step.c: messages of workers, and the steps. */
void scheduler_on_worker(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg);
/* Plans and sends steps while there is room for them in flight. */
void scheduler_plan(struct scheduler *s);

/* scheduler.c */
void scheduler_fail(struct scheduler *s, enum err e, const struct err_msg *em);

#endif
