/* Messages that a full channel did not take yet: kept in order per peer, bounded, sent when there is room. */
#ifndef TERCET_PROC_SCHEDULER_OUTBOX_H
#define TERCET_PROC_SCHEDULER_OUTBOX_H

#include "common/err.h"
#include "ipc/ipc.h"

struct outbox_item {
	ipc_peer to;
	u32 bytes;
	char *frame; /* owned */
};

struct outbox {
	struct ipc_channel *channel; /* borrowed */
	struct outbox_item *items;   /* [capacity], oldest first */
	u32 count, capacity;
	u64 bytes, bytes_max;
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err outbox_init(struct outbox *ob, struct ipc_channel *channel, u32 capacity, u64 bytes_max);
void outbox_fini(struct outbox *ob); /* zeroed accepted */
/* Sends, or keeps the message. Never blocks. ERR_BUSY: the bound is reached, nothing was kept. ERR_GONE: no
 * such peer. */
MUST_CHECK enum err outbox_send(struct outbox *ob, ipc_peer to, const struct ipc_msg *msg);
/* The same for an encoded frame, which is copied if it has to wait. */
MUST_CHECK enum err outbox_send_frame(struct outbox *ob, ipc_peer to, char *frame, size_t bytes);
/* Sends what goes; what is for vanished peers is let go. True when nothing is left. */
bool outbox_flush(struct outbox *ob);
/* Forgets what waits. */
void outbox_clear(struct outbox *ob);

#endif
