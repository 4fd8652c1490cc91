/* Results of sequences that are not open yet: RESULT comes from the worker, OPEN from the scheduler, and the
 * two channels do not wait for each other. Bounded; the oldest give way. Pure. */
#ifndef TERCET_PROC_DETOK_EARLY_H
#define TERCET_PROC_DETOK_EARLY_H

#include "common/err.h"
#include "common/sampling_params.h"
#include "common/types.h"
#include "proc_detok/pending.h"

struct early_result {
	u64 seq;
	u64 epoch;
	u64 arrived_ns;
	u32 position;
	u32 token;
	u32 is_prompt; /* log-probabilities of prompt position `position`, no token */
	u32 rank;
	u32 count;
	u32 ids[LOGPROBS_MAX + 1];
	f32 values[LOGPROBS_MAX + 1];
	u32 *many; /* an embedding, which is longer than that: its ids, behind them its values; NULL: none. Owned by the pool */
};

struct early {
	struct early_result *results; /* owned; in the order of arrival */
	u32 count;
	u32 capacity;
	u64 dropped; /* results that gave way or grew too old, ever */
};

MUST_CHECK enum err early_init(struct early *e, u32 capacity);
void early_fini(struct early *e);
/* Everything is copied. A result for which there is no memory is dropped. */
void early_add(struct early *e, u64 seq, u64 epoch, u32 position, u32 token, bool is_prompt,
	       const struct token_logprobs *lp, u64 now_ns);

/* The list that came with it, borrowed from `r`. */
struct token_logprobs early_logprobs(const struct early_result *r);

/* True: keep it, it cannot be used yet. */
typedef bool (*early_fn)(void *ctx, const struct early_result *r);
/* Hands out the results of `seq` in the order of their arrival and forgets them, unless `fn` keeps them. `fn`
 * must not touch `e`. */
void early_take(struct early *e, u64 seq, early_fn fn, void *ctx);
/* Forgets what arrived before `oldest_ns`. */
void early_expire(struct early *e, u64 oldest_ns);

#endif
