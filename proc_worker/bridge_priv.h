/* The inside of a bridge, shared by bridge.c (the work) and bridge_join.c (coming together). */
#ifndef TERCET_PROC_WORKER_BRIDGE_PRIV_H
#define TERCET_PROC_WORKER_BRIDGE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "proc_worker/bridge.h"
#include "proc_worker/node_link.h"

enum bridge_frame { BRIDGE_INFO = 1, BRIDGE_BOOK, BRIDGE_PART, BRIDGE_EPOCH, BRIDGE_PULSE, BRIDGE_BYE };

/* In front of every frame, little-endian. */
struct bridge_head {
	u32 kind; /* enum bridge_frame */
	u32 unused;
	u64 sequence; /* PART: the operation; EPOCH: the epoch */
	u64 total;    /* PART: bytes of the whole part; EPOCH: the base */
	u64 offset;   /* PART: of what follows */
};

enum { BRIDGE_CONTENT_MAX = NODE_LINK_FRAME_MAX - (int)sizeof(struct bridge_head), BRIDGE_ADDRESS_MAX = 64 };

struct bridge_peer {
	struct node_link link; /* fd -1: none */
	pthread_mutex_t sending; /* one frame at a time: the rank's thread and the bridge's */
	u32 rank;
	_Atomic u64 sent_ns; /* when the last frame went out */
	/* The bridge's thread alone: */
	u64 heard_ns;
	u64 sequence, have; /* of the part that is coming in */
	_Atomic u32 lost;   /* enum bridge_loss */
	char address[BRIDGE_ADDRESS_MAX]; /* numeric, as it is seen from here */
};

struct bridge {
	struct bridge_config config;
	struct bridge_peer peers[NODES_MAX]; /* by node; that of the own node is unused */
	pthread_t thread;
	bool running;
	_Atomic u32 stop;
	int wake_fd; /* ends the thread's sleep */
	int lost_fd;
	u8 *content; /* [NODE_LINK_FRAME_MAX], of the thread that receives */
};

static inline u32 bridge_ranks_each(const struct bridge_config *c)
{
	return c->ranks / c->nodes;
}

/* The counterpart of this rank on `node`. */
static inline u32 bridge_counterpart(const struct bridge_config *c, u32 node)
{
	return node * bridge_ranks_each(c) + c->rank % bridge_ranks_each(c);
}

/* bridge_join.c: makes the connections. The errors of bridge_join. */
MUST_CHECK enum err bridge_connect_all(struct bridge *b, u64 *group, struct err_msg *em);

#endif
