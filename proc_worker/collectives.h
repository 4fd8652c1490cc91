/* Collective operations of the ranks of a tensor-parallel group: on one host through a file that all map (in the run
 * directory), between hosts through a bridge (bridge.h), which puts what comes from afar into the same file. Every rank
 * calls the same operations with the same sizes in the same order; each operation is one barrier. A rank that died,
 * is stuck or has gone on to another epoch is an error, never a hang.
 *
 *     float *part = collectives_buffer(c);      fill it
 *     collectives_all_reduce(c, out, count)     out = sum of the parts of all ranks, in the order of ranks:
 * the same bits everywhere, however the ranks are spread over hosts
 *
 * The buffer alternates between two halves, so that a fast rank may fill the next part while a slow one still
 * reads. */
#ifndef TERCET_PROC_WORKER_COLLECTIVES_H
#define TERCET_PROC_WORKER_COLLECTIVES_H

#include "common/cluster_secret.h"
#include "common/err.h"
#include "common/types.h"
#include "kernels/kernels.h"

enum { COLLECTIVES_RANKS_MAX = 64, COLLECTIVES_TIMES = 20 };

/* The nodes that the ranks are spread over, `ranks / count` in a row on each. */
struct collectives_nodes {
	u32 index, count;
	const char *address; /* of node 0 */
	u32 port;	     /* rank r listens on port + 1 + r */
	const struct cluster_secret *secret;
	u64 options_hash;    /* of whatever must be the same on all ranks */
	u32 join_timeout_ms; /* for the other nodes to appear */
	void (*waiting)(void *ctx, const char *what); /* called while it waits for them; NULL: not */
	void *waiting_ctx;
};

struct collectives_config {
	const char *run_dir;
	u32 rank, ranks;
	size_t buffer_bytes;	      /* of a part; the same on all ranks */
	u32 join_timeout_ms;	      /* for the others of the host to appear */
	struct kern_threads *threads; /* sums long buffers; NULL: the caller alone */
	const struct collectives_nodes *nodes; /* NULL: all ranks are on this host */
};

struct collectives;

/* The first rank of a host makes the file, the others wait for it; returns when all have joined, those of other hosts
 * included. ERR_TIMEOUT names the ranks that are missing; ERR_IO, ERR_INVALID (another group size or buffer size),
 * ERR_NO_MEMORY; with several nodes also the errors of bridge_join. The caller owns `*out`. */
MUST_CHECK enum err collectives_join(struct collectives **out, const struct collectives_config *config,
				     struct err_msg *em);
void collectives_leave(struct collectives **c);
/* `fn` is called, in another thread, when a rank on another node is lost, unless that was meant; at once if one is already.
 * NULL: nothing any more, and it is not running either when this returns. Without other nodes nothing. */
void collectives_on_lost(struct collectives *c, void (*fn)(void *ctx), void *ctx);
/* Before leaving: the ranks of other nodes are to know that this is meant, and no failure. */
void collectives_farewell(struct collectives *c);

/* Names this coming together of the ranks: the same number on all of them, another one after each restart. */
u64 collectives_group(const struct collectives *c);
/* Readable when a rank on another node is lost, for loops that are not in an operation; -1: no such ranks. */
int collectives_lost_fd(const struct collectives *c);
/* ERR_GONE says which node is lost, and why; ERR_SHUTDOWN: node 0 has left, so the engine was stopped; else ERR_OK. */
MUST_CHECK enum err collectives_check(const struct collectives *c, struct err_msg *em);

/* How long an operation waits for a rank that lives: COLLECTIVES_TIMES as long as this rank worked for its own part, or
 * as operations took lately, within [least_ms, most_ms]. Ranks have equal shares, so one that takes much longer is stuck.
 * Time in which this process could not run does not count. A beginning of an epoch always waits most_ms. */
void collectives_set_timeout(struct collectives *c, u32 least_ms, u32 most_ms);
/* A step begins: what was before is no work for its first operation. */
void collectives_step(struct collectives *c);
/* This rank is late because it waits for somebody outside the group: those that wait for it begin to count anew. To be
 * called again and again meanwhile. Other nodes do not see it: they always give rank 0 the longest time. */
void collectives_beat(struct collectives *c);
/* Changes with each beat of any rank on this host. Any thread. */
u64 collectives_beats(const struct collectives *c);

/* Begins an epoch: waits until all ranks have begun it. Epochs grow. ERR_ABORTED: another rank is in a later
 * one, so this one is over. */
MUST_CHECK enum err collectives_begin(struct collectives *c, u64 epoch, struct err_msg *em);

/* This rank's part of the next operation; buffer_bytes, 64-byte aligned. */
void *collectives_buffer(struct collectives *c);

/* Errors of all three: ERR_GONE: a rank has died or its node is lost. ERR_TIMEOUT: a rank lives but did not come.
 * ERR_ABORTED: a rank has begun another epoch, what this step computes is of no use any more. After an error only begin
 * helps. */
MUST_CHECK enum err collectives_all_reduce(struct collectives *c, float *out, size_t count,
					   struct err_msg *em);
/* parts[r] is rank r's part, valid until this rank's next operation. `bytes`: how many of this rank's part others
 * read; ranks may differ. */
MUST_CHECK enum err collectives_all_gather(struct collectives *c, size_t bytes, const void **parts,
					   struct err_msg *em);
/* The same for parts that only rank 0 reads: to the others `parts` means nothing. */
MUST_CHECK enum err collectives_gather(struct collectives *c, size_t bytes, const void **parts,
				       struct err_msg *em);

#endif
