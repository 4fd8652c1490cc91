/* The way between the nodes of a tensor-parallel group. Every node has as many ranks as any other; the ranks with the
 * same place on their nodes ("counterparts": rank r, r + n, r + 2n with n ranks a node) form a mesh of encrypted
 * connections (node_link.h). Each sends its own part of an operation to its counterparts, which put it where all ranks
 * of their node read it. So a part crosses to every other node once, whatever the number of ranks there.
 *
 * A thread of the bridge receives, sends a pulse twice a second where nothing else goes, and takes a counterpart for
 * lost that is silent for 3 seconds: a frozen or unreachable node is seen as surely as a dead one, while a long
 * computation is no silence. */
#ifndef TERCET_PROC_WORKER_BRIDGE_H
#define TERCET_PROC_WORKER_BRIDGE_H

#include "common/cluster_secret.h"
#include "common/err.h"
#include "common/nodes.h"
#include "common/types.h"

enum { BRIDGE_PULSE_MS = 500, BRIDGE_SILENCE_MS = 3000 };

/* Why a counterpart is lost; 0: it is not. */
enum bridge_loss { BRIDGE_NO_LOSS, BRIDGE_CLOSED, BRIDGE_SILENT, BRIDGE_GARBLED, BRIDGE_LEFT };
const char *bridge_loss_text(enum bridge_loss loss); /* "has closed the connection" */

/* What the bridge does with what it receives; called in its thread. */
struct bridge_sink {
	void *ctx;
	/* Where the part of `rank` in operation `sequence` belongs; part_bytes_max of them. */
	void *(*part)(void *ctx, u32 rank, u64 sequence);
	void (*arrived)(void *ctx, u32 rank, u64 sequence); /* that part is whole */
	void (*epoch)(void *ctx, u32 rank, u64 epoch, u64 base);
	void (*lost)(void *ctx, u32 rank, enum bridge_loss loss);
};

struct bridge_config {
	u32 rank, ranks, node, nodes; /* ranks / nodes on each node */
	const char *address;          /* of node 0 */
	u32 port;                     /* rank r listens on port + 1 + r */
	u8 key[CLUSTER_KEY_BYTES];
	u64 options_hash; /* of whatever must be the same on all ranks */
	size_t part_bytes_max;
	u32 join_timeout_ms;
	void (*waiting)(void *ctx, const char *what); /* called about once a second while it joins; NULL: not */
	void *waiting_ctx;
	struct bridge_sink sink;
};

struct bridge;

/* Connects with the counterparts on all other nodes, waiting for them. `*group` names the group of rank 0 and comes
 * from there. ERR_TIMEOUT names the nodes that are missing; ERR_DENIED: another secret; ERR_INVALID: another model or
 * other options; ERR_BUSY: the port is in use; ERR_IO, ERR_NO_MEMORY. The caller owns `*out`. Blocks. */
MUST_CHECK enum err bridge_join(struct bridge **out, const struct bridge_config *config, u64 *group, struct err_msg *em);
/* Ends the connections; `farewell` says to the counterparts that this is meant. Empty accepted. */
void bridge_leave(struct bridge **b, bool farewell);

/* Sends this rank's part of operation `sequence` to the counterparts, or, with `first_node_only`, to that on node 0,
 * and to the others that it has arrived. ERR_GONE: one is lost. Blocks while a connection is full. */
MUST_CHECK enum err bridge_send_part(struct bridge *b, u64 sequence, const void *data, size_t bytes, bool first_node_only);
MUST_CHECK enum err bridge_send_epoch(struct bridge *b, u64 epoch, u64 base);

/* Becomes readable, and stays so, when a counterpart is lost. */
int bridge_lost_fd(const struct bridge *b);
/* A counterpart that is lost: its node, address and why. BRIDGE_NO_LOSS: none. */
enum bridge_loss bridge_first_loss(const struct bridge *b, u32 *node, const char **address);

#endif
