/* Log-probabilities for a detokenizer that begins anew. An OPEN carries tokens only; what a RESULT listed beside them
 * would be lost with the process that received it. So the scheduler keeps the listed rows of the last results, and
 * opens such a stream again with the outputs in front of them: the kept results bring the others. */
#ifndef TERCET_PROC_SCHEDULER_KEPT_RESULTS_H
#define TERCET_PROC_SCHEDULER_KEPT_RESULTS_H

#include "common/map.h"
#include "ipc/ipc.h"

/* For the tests; of the last minute, a second of 25,000 tokens with 20 log-probabilities each fits four times. */
enum { KEPT_RESULTS_MAX = 16384, KEPT_RESULTS_AGE_S = 60, KEPT_RESULTS_BYTES_MAX = 16 << 20 };

struct kept_result {
	u64 time_ns;
	u64 prompts; /* a bit, seq % 64, for each sequence with rows of its prompt */
	u32 bytes;
	char *frame; /* owned: a RESULT of the listed rows only */
};

struct kept_results {
	struct kept_result *ring; /* [KEPT_RESULTS_MAX] */
	u32 first, count;
	u64 bytes;
	struct buf scratch;
	struct ipc_scratch decoded;
	/* Between kept_results_begin and _end: the first kept output of every sequence, and whether it was asked for. */
	struct map index;
	u32 *firsts; /* owned */
	bool *wanted;
	u32 index_count;
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err kept_results_init(struct kept_results *k);
void kept_results_fini(struct kept_results *k); /* zeroed accepted */
/* Keeps the rows of a RESULT that list log-probabilities and are no beams, and those of prompts. The oldest results give way. Without
 * memory nothing is kept. */
void kept_results_add(struct kept_results *k, const struct ipc_result *m, u64 now_ns);
/* Forgets what is too old. */
void kept_results_expire(struct kept_results *k, u64 now_ns);

/* Begins to tell a detokenizer everything again. Without memory it is told of tokens only. */
void kept_results_begin(struct kept_results *k);
/* The outputs of `seq` that its OPEN should carry: `output_count`, or fewer when the others are kept. The results of
 * that sequence are then given out. Outside of begin and end: output_count. */
u32 kept_results_open(struct kept_results *k, u64 seq, u32 output_count);
/* Whether `seq` was asked for and only rows of its prompt are kept. */
bool kept_results_only_prompt(const struct kept_results *k, u64 seq);
/* Gives the rows of all sequences asked for, oldest first. The message lives for the call. */
typedef void (*kept_results_fn)(void *ctx, const struct ipc_result *m);
void kept_results_give(struct kept_results *k, kept_results_fn fn, void *ctx);
void kept_results_end(struct kept_results *k);
/* Gives the rows of the prompt of `seq`, oldest first, at any time but between begin and end. The message lives for the call. */
void kept_results_give_prompt(struct kept_results *k, u64 seq, kept_results_fn fn, void *ctx);

#endif
