/* --speculative-config: tokens that are proposed ahead and checked in one step. The form is vLLM's. */
#ifndef TERCET_COMMON_SPECULATIVE_H
#define TERCET_COMMON_SPECULATIVE_H

#include "common/err.h"
#include "common/types.h"

enum {
	SPECULATIVE_TOKENS_MAX = 32, /* proposed for a row in one step */
	SPECULATIVE_LOOKUP_MAX = 64, /* tokens that are looked for */
};

struct speculative {
	u32 tokens;		    /* num_speculative_tokens; 0: off */
	u32 lookup_max, lookup_min; /* the newest so many tokens are looked for among those before them */
	u32 batch_max; /* disable_by_batch_size: nothing is proposed while more rows than this are there; 0: whoever computes
			  decides how many tokens a step may have */
};

/* Reads a JSON object like {"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":5,"prompt_lookup_min":2};
 * "" is off. Of the two lengths one that is missing is as the other; without both they are 5. ERR_INVALID names the
 * field, its value and what would be right; ERR_UNSUPPORTED: a method other than "ngram". ERR_NO_MEMORY. */
MUST_CHECK enum err speculative_parse(struct speculative *out, const char *text, struct err_msg *em);

#endif
