/* The scheduler's side of the step channel: which ranks are there and ready, and what every one of them is
 * sent. */
#ifndef TERCET_PROC_SCHEDULER_WORKERS_H
#define TERCET_PROC_SCHEDULER_WORKERS_H

#include "proc_scheduler/outbox.h"

enum { WORKERS_MAX = 64 };

struct worker_rank {
	ipc_peer peer;
	bool ready;
	struct ipc_worker_ready info; /* its arrays are those below */
	u32 eos[EOS_IDS_MAX];
	u8 no_grammars[IPC_ERROR_TEXT_MAX];
	u8 no_embeddings[IPC_ERROR_TEXT_MAX];
};

struct workers {
	u32 count;
	struct worker_rank ranks[WORKERS_MAX];
	struct outbox outbox;
	bool up; /* all ranks are ready and belong to one epoch */
};

/* ERR_NO_MEMORY. The channel is borrowed. */
MUST_CHECK enum err workers_init(struct workers *w, struct ipc_channel *channel, u32 count);
void workers_fini(struct workers *w); /* zeroed accepted */
/* A HELLO: the rank is not ready until it says so, and the group is down until all are ready and of one group. Ranks
 * that are still there stay ready: when only a connection broke, nobody but that rank says WORKER_READY again. ERR_INVALID:
 * no such rank. */
MUST_CHECK enum err workers_greeted(struct workers *w, u32 rank, ipc_peer peer, struct err_msg *em);
/* WORKER_READY. ERR_INVALID: not the peer that greeted as this rank; ERR_UNSUPPORTED: it is, with numbers that
 * cannot be. */
MUST_CHECK enum err workers_ready(struct workers *w, ipc_peer peer, const struct ipc_worker_ready *m,
				  struct err_msg *em);
/* All ranks are ready and came together: those of an earlier group are on their way out. */
bool workers_all_ready(const struct workers *w);
/* What all ranks can do: the least block counts and context length; the rest is rank 0's. */
struct ipc_worker_ready workers_common(const struct workers *w);
/* Sends the frame to every rank; what a full channel does not take waits. ERR_GONE, ERR_BUSY: a rank cannot
 * be reached, the group is down until all are ready again. */
MUST_CHECK enum err workers_send(struct workers *w, char *frame, size_t bytes);
/* The group is down: nothing more is sent to it. */
void workers_lost(struct workers *w);

#endif
