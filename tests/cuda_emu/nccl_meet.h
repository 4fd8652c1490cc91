/* Where the ranks of an emulated NCCL communicator meet: a piece of shared memory that the unique id names. */
#ifndef CUDA_EMU_NCCL_MEET_H
#define CUDA_EMU_NCCL_MEET_H

#include <nccl.h>

#include "common/types.h"

enum { MEET_RANKS_MAX = 16, MEET_CHUNK_BYTES = 64 << 10, MEET_TEXT = 200 };

/* What a rank is about to do: all have to agree. */
struct meet_call {
	u32 kind, type, op, root;
	u64 count;
};

struct meet_shared {
	u32 ranks, joined, left, failed; /* failed: a rank has aborted, died or disagreed */
	i32 pid[MEET_RANKS_MAX];
	u64 arrived[MEET_RANKS_MAX]; /* how many times the rank has come by */
	struct meet_call call[MEET_RANKS_MAX];
	unsigned char chunk[MEET_RANKS_MAX][MEET_CHUNK_BYTES];
};

struct meet {
	struct meet_shared *shared;
	u32 rank, ranks;
	u64 rounds;
	double timeout_s; /* 0: waits for ever, for the dead, too */
	u32 given_up;	  /* atomic: by meet_give_up */
	char problem[MEET_TEXT]; /* why the last call failed */
};

ncclResult_t meet_id(ncclUniqueId *id);
/* Waits until all ranks are there. ncclInvalidArgument, ncclInvalidUsage (ranks of one process, a rank taken twice),
 * ncclSystemError (no shared memory, not all came within the time), ncclRemoteError. */
ncclResult_t meet_join(struct meet *m, const ncclUniqueId *id, u32 ranks, u32 rank);
void meet_leave(struct meet *m);
/* Makes all waits of all ranks end with ncclRemoteError. */
void meet_abort(struct meet *m);
/* The same for the waits of this rank, now and later. Any thread. */
void meet_give_up(struct meet *m);
/* All ranks have come to the same call, or: ncclInvalidUsage, ncclRemoteError. */
ncclResult_t meet_agree(struct meet *m, const struct meet_call *call);
/* All ranks have come by. */
ncclResult_t meet_wait(struct meet *m);

#endif
