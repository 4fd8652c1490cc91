/* The end of a sequence, decided by one pure function that scheduler and detokenizer both run over the same
 * tokens, so that they cannot disagree and no message is needed. */
#ifndef TERCET_COMMON_FINISH_H
#define TERCET_COMMON_FINISH_H

#include <stdbool.h>
#include <stdint.h>

/* Append only: travels in CHUNK. */
enum finish_reason {
	FINISH_NONE,   /* goes on */
	FINISH_STOP,   /* end-of-sequence token, stop token or stop string */
	FINISH_LENGTH, /* max_tokens or the context length */
	FINISH_ABORT,  /* the client asked */
	FINISH_ERROR,  /* something failed; the text says what */
	FINISH_REASON_COUNT
};

/* "stop", "length", "abort", "error"; "" for FINISH_NONE. */
const char *finish_reason_name(enum finish_reason r);

/* Borrowed arrays. `output_max` is the resolved limit: min(max_tokens, context length - prompt tokens), >= 1.
 */
struct finish_rule {
	uint32_t output_max;
	uint32_t output_min; /* below it neither eos nor stop ids end the sequence */
	bool ignore_eos;
	const uint32_t *eos_ids;
	uint32_t eos_count;
	const uint32_t *stop_ids;
	uint32_t stop_count;
};

struct finish {
	enum finish_reason reason;
	bool by_stop_id; /* a stop id of the request (not eos) ended it: report it as stop_reason */
};

/* Judges the sequence after `token` became its output number `output_count` (1-based). Stop goes before
 * length when both hold at the same token. Pure. */
struct finish finish_check(const struct finish_rule *rule, uint32_t output_count, uint32_t token);

#endif
