/* How many KV blocks a worker can have: a dummy step, then what memory is left. */
#ifndef TERCET_PROC_WORKER_PROFILE_H
#define TERCET_PROC_WORKER_PROFILE_H

#include "common/err.h"
#include "common/types.h"

struct kv_budget {
	u64 available;	    /* bytes that the process may still take after a dummy step */
	double utilization; /* --gpu-memory-utilization */
	u64 requested;	    /* --kv-cache-memory; 0: automatic */
	u32 workers;	    /* that share this host's memory */
	u64 block_bytes; /* 0: no layer has keys and values */
	u32 block_size;
	u32 max_model_len, rows_max;
};

enum { CONTEXT_MIN = 2 };	   /* one token of a prompt and one of an answer */
enum { KV_AUTOMATIC_GIB_MAX = 4 }; /* a CPU engine does not take a host's whole memory unasked */
enum { KV_IDS_MIB_MAX = 16 }; /* of ids where blocks have nothing else: 4 million tokens */

/* Automatic: the least of 4 GiB, of utilization * available / workers, and of what max_num_seqs sequences of
 * max_model_len tokens can use. Without keys and values a block counts as the ids of its tokens, and unasked 16 MiB of them are the most. ERR_NO_SPACE: not even one sequence of max_model_len fits, or more was
 * requested than there is; says how much is needed, how much there is, and which setting fits. */
MUST_CHECK enum err kv_budget_blocks(const struct kv_budget *b, u32 *blocks, struct err_msg *em);

/* --swap-space: as many blocks as `gib` > 0 holds, taken off b->available. ERR_NO_SPACE: there is less, or it holds no
 * block; says how much there is. */
MUST_CHECK enum err kv_budget_swap(struct kv_budget *b, double gib, u32 *blocks, struct err_msg *em);

struct runner;

struct profile {
	u32 tokens; /* of the dummy step */
	u64 step_ns;
	u64 resident; /* bytes of this process after it */
	u64 available;
	u32 state_slots; /* for saved states, of recurrent layers, that there is room for */
};

/* Runs a small step, which shows that every op runs, and counts what memory is left when activations and
 * scratch, which are reserved for steps at the limits but become resident as they are used, are taken off.
 * All ranks call it together.
 */
MUST_CHECK enum err profile_run(struct runner *r, struct profile *p, struct err_msg *em);

#endif
