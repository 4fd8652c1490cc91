/* Guesses what a row says next: what stood behind its newest tokens when they stood there before ("prompt lookup"). The
 * guess follows from the row's tokens and from how earlier ones fared, so every rank makes the same. */
#ifndef TERCET_PROC_WORKER_DRAFT_LOOKUP_H
#define TERCET_PROC_WORKER_DRAFT_LOOKUP_H

#include "proc_worker/batch_state.h"

struct draft_lookup_config {
	u32 rows_max, max_model_len;
	u32 tokens_min, tokens_max; /* that are looked for: the longest that are found count; 1 <= min <= max */
};

struct draft_lookup;

/* Address space for an index over every row's tokens; memory is used as it is written. ERR_NO_MEMORY. The caller owns
 * `*out`. */
MUST_CHECK enum err draft_lookup_create(struct draft_lookup **out, const struct draft_lookup_config *config,
					struct err_msg *em);
void draft_lookup_destroy(struct draft_lookup **l);

/* Writes at most `max` tokens that may follow the known ones of `row`, and returns how many: 0 where nothing was found, and
 * for a while after guesses of this row that were all wrong. Of places that match equally long the newest counts; of at
 * most 64 places. Amortized over a row's life the work is a few nanoseconds a token. */
u32 draft_lookup_find(struct draft_lookup *l, const struct batch_state *b, u32 row, u32 max, u32 *out);
/* Of a row's guess `accepted` tokens came true. */
void draft_lookup_tell(struct draft_lookup *l, u32 row, u32 accepted);

#endif
