/* Logits of one prompt without an engine: for checking a model against another implementation. */
#ifndef TERCET_PROC_WORKER_LOGITS_H
#define TERCET_PROC_WORKER_LOGITS_H

#include <stdio.h>

#include "common/err.h"
#include "common/options.h"

struct logits_request {
	const u32 *ids;
	u32 count;
	u32 top;  /* ids per position, best first; 0: the whole vocabulary in its order */
	bool all; /* after every token of the prompt, not only after the last */
};

/* Words of a command line: "last" or "all", the number of best, ids "1,2,3". The caller owns q->ids (free).
 * ERR_INVALID: says which and what would be right. ERR_NO_MEMORY. */
MUST_CHECK enum err logits_parse(struct logits_request *q, const char *which, const char *top,
				 const char *ids, struct err_msg *em);

/* Loads the model in this process, on a device with --device cuda alone (every rank of --tensor-parallel-size in a thread
 * of its own; devices take one), computes the prompt in chunks of at most --max-num-batched-tokens, and writes a JSON
 * line for each position:
 * {"position": of the last token that is known, "token_count": of the prompt, "vocab_size", "dtype", "ids":
 * [...], "logits": [...], "logprobs": [...]}. The errors of runner_create; ERR_INVALID: an id outside the
 * vocabulary, more ids than the model's context (on a device: one less); ERR_UNSUPPORTED: several ranks on devices;
 * ERR_INVALID: more than one adapter; with one (--lora-modules) every token goes through it;
 * ERR_IO. A rank that fails alone ends the process, since the others would wait for it. Blocks. */
MUST_CHECK enum err logits_print(const struct options *o, const struct logits_request *q, FILE *out,
				 struct err_msg *em);

#endif
