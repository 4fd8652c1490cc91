/* Collective operations of the ranks of a tensor-parallel group on one host, through a file that all map (in
 * the run directory). Every rank calls the same operations with the same sizes in the same order; each
 * operation is one barrier. A rank that died, is stuck or has gone on to another epoch is an error, never a
 * hang.
 *
 *     float *part = collectives_buffer(c);      fill it
 *     collectives_all_reduce(c, out, count)     out = sum of the parts of all ranks, in the order of ranks:
 * the same bits everywhere
 *
 * The buffer alternates between two halves, so that a fast rank may fill the next part while a slow one still
 * reads. */
#ifndef TERCET_PROC_WORKER_COLLECTIVES_H
#define TERCET_PROC_WORKER_COLLECTIVES_H

#include "common/err.h"
#include "common/types.h"
#include "kernels/kernels.h"

enum { COLLECTIVES_RANKS_MAX = 64 };

struct collectives_config {
	const char *run_dir;
	u32 rank, ranks;
	size_t buffer_bytes;	      /* of a part; the same on all ranks */
	u32 join_timeout_ms;	      /* for the others to appear */
	struct kern_threads *threads; /* sums long buffers; NULL: the caller alone */
};

struct collectives;

/* Rank 0 makes the file, the others wait for it; returns when all have joined. ERR_TIMEOUT names the ranks
 * that are missing; ERR_IO, ERR_INVALID (another group size or buffer size), ERR_NO_MEMORY. The caller owns
 * `*out`. */
MUST_CHECK enum err collectives_join(struct collectives **out, const struct collectives_config *config,
				     struct err_msg *em);
void collectives_leave(struct collectives **c);

/* How long an operation waits for a rank that lives. */
void collectives_set_timeout(struct collectives *c, u32 timeout_ms);

/* Begins an epoch: waits until all ranks have begun it. Epochs grow. ERR_ABORTED: another rank is in a later
 * one, so this one is over. */
MUST_CHECK enum err collectives_begin(struct collectives *c, u64 epoch, struct err_msg *em);

/* This rank's part of the next operation; buffer_bytes, 64-byte aligned. */
void *collectives_buffer(struct collectives *c);

/* Errors of both: ERR_GONE: a rank has died. ERR_TIMEOUT: a rank lives but did not come. ERR_ABORTED: a rank
 * has begun another epoch, what this step computes is of no use any more. After an error only begin helps. */
MUST_CHECK enum err collectives_all_reduce(struct collectives *c, float *out, size_t count,
					   struct err_msg *em);
/* parts[r] is rank r's part, valid until this rank's next operation. */
MUST_CHECK enum err collectives_all_gather(struct collectives *c, const void **parts, struct err_msg *em);

#endif
