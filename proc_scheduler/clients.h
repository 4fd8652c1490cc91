/* The clients of the engine: which peer speaks for which client id, and when it was heard last. */
#ifndef TERCET_PROC_SCHEDULER_CLIENTS_H
#define TERCET_PROC_SCHEDULER_CLIENTS_H

#include "common/err.h"
#include "common/map.h"
#include "ipc/ipc.h"

enum { CLIENTS_MAX = 4096 };

struct client {
	u64 id; /* 0: free */
	ipc_peer peer;
	u64 heard_ns;
	bool busy; /* clients_mark_busy */
};

struct clients {
	struct client *slots; /* [CLIENTS_MAX] */
	struct map by_id;
	u32 count;
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err clients_init(struct clients *c, u64 secret);
void clients_fini(struct clients *c); /* zeroed accepted */
/* A HELLO: from now on this peer speaks for the client. ERR_BUSY: too many clients. */
MUST_CHECK enum err clients_greet(struct clients *c, u64 id, ipc_peer peer, u64 now_ns);
/* A message: notes that the client lives. One that was forgotten is taken in again. ERR_DENIED: another peer
 * speaks for it. ERR_INVALID: id 0. ERR_BUSY: too many clients. */
MUST_CHECK enum err clients_heard(struct clients *c, u64 id, ipc_peer peer, u64 now_ns);
void clients_forget(struct clients *c, u64 id);
/* Makes room where there is none: forgets the client not heard of for longest of those that were not marked since the last
 * call. False: all were. Whoever was forgotten is taken in again when it speaks. */
void clients_mark_busy(struct clients *c, u64 id);
bool clients_forget_idle(struct clients *c);
/* A client not heard of since `before_ns`, or NULL; the caller forgets it. */
const struct client *clients_find_silent(const struct clients *c, u64 before_ns);

#endif
