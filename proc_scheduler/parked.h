/* Turns of sessions that came while the turn before was not over here. The end of a turn is told when it is over, but a
 * client that gives one up may send the next by another gateway, before the abort has come. Such a request waits for a
 * moment; only then it is a conflict. */
#ifndef TERCET_PROC_SCHEDULER_PARKED_H
#define TERCET_PROC_SCHEDULER_PARKED_H

#include "common/buf.h"
#include "ipc/ipc.h"

enum { PARKED_MAX = 256, PARKED_MS = 250 };

struct parked_item {
	ipc_peer from;
	u64 client_id, req_id;
	u64 due_ns; /* then it is refused */
	struct buf frame;
};

struct parked {
	struct parked_item items[PARKED_MAX]; /* in order of arrival */
	u32 count;
	u64 bytes;
	struct ipc_scratch scratch;
};

void parked_fini(struct parked *p); /* zeroed accepted */
/* Keeps a copy. False: too many wait, or it is too long to wait; nothing was kept. */
bool parked_add(struct parked *p, ipc_peer from, const struct ipc_msg *msg, u64 now_ns);
/* The message of one, as it came; it lives until the next call. False: it cannot be read (no memory). */
bool parked_get(struct parked *p, u32 index, struct ipc_msg *msg);
void parked_remove(struct parked *p, u32 index);
/* The place of a client's request, or PARKED_MAX. */
u32 parked_find(const struct parked *p, u64 client_id, u64 req_id);
/* All of a client are forgotten. */
void parked_forget_client(struct parked *p, u64 client_id);

#endif
