/* The rule of beam search. Pure: numbers in, numbers out. It is that of vLLM, and so the answers are:
 *
 *   - The log-probability of a beam is the sum of those of its tokens, in f64.
 *   - In every round each beam offers its 2 * width best tokens. Those that end a sequence (common/finish.h) make an
 *     answer; of the others, of all beams together, the `width` best go on.
 *   - The score of an answer is sum / length ^ length_penalty, where the length is that of prompt and outputs, without
 *     the token that ended it. Only the `width` best answers are kept. Beams that reach the last allowed output are
 *     answers, too.
 *   - The search is over when no beam can become one of the `width` best answers any more, so the result is that of a
 *     search to the end; with early_stopping as soon as there are `width` answers.
 *
 * Equal sums go in the order of beams (the best first), then of token ids; equal scores in the order in which the
 * answers were found. So the same numbers always give the same answers. */
#ifndef TERCET_PROC_SCHEDULER_BEAM_H
#define TERCET_PROC_SCHEDULER_BEAM_H

#include "common/err.h"
#include "common/finish.h"
#include "common/sampling_params.h"
#include "common/types.h"

struct beam_rule {
	u32 width;	  /* 1 to BEAM_WIDTH_MAX */
	u32 prompt_count; /* at least 1 */
	f64 length_penalty;
	bool early_stopping;
	struct finish_rule finish;
};

/* What one beam offers: the best tokens and their log-probabilities, best first. What is not finite is no offer. */
struct beam_offer {
	f64 sum; /* of the beam */
	const u32 *ids;
	const f32 *values;
	u32 count; /* the first 2 * width are looked at */
};

struct beam_pick {
	u32 beam, place; /* of the offer; place in its list */
	u32 token;
	f32 value;
	f64 sum;
};

struct beam_picks {
	struct beam_pick next[BEAM_WIDTH_MAX]; /* those that go on, best first */
	u32 next_count;
	struct beam_pick ended[BEAM_WIDTH_MAX]; /* the best that ended, best first: more could not be kept */
	u32 ended_count;
};

/* `outputs`: what the beams have before this round. Beams are numbered by their offers. */
void beam_pick(const struct beam_rule *r, const struct beam_offer *offers, u32 offer_count, u32 outputs,
	       struct beam_picks *out);
/* The score of an answer with that many outputs; `stopped`: the last of them ended it. */
f64 beam_score(const struct beam_rule *r, f64 sum, u32 outputs, bool stopped);

struct beam_answer {
	u32 node; /* the caller's name of its tokens */
	u32 outputs;
	f64 sum, score;
	enum finish_reason reason; /* FINISH_STOP or FINISH_LENGTH */
};

/* The best answers so far, best first. Zeroed: none. */
struct beam_answers {
	struct beam_answer best[BEAM_WIDTH_MAX];
	u32 count;
};

/* Gives the node that found no place or lost it: its own, or that of another answer; false: none. */
bool beam_answers_add(struct beam_answers *a, const struct beam_rule *r, struct beam_answer answer, u32 *lost);
/* Whether the search is over, when the best beam has that sum after that many outputs. */
bool beam_is_over(const struct beam_rule *r, const struct beam_answers *a, f64 best_sum, u32 outputs);

#endif
