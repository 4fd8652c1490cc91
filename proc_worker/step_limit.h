/* How long a step of a device may take before it counts as one that hangs: from what steps of its size have taken.
 * Decision code: no clock, no lock, no allocation. */
#ifndef TERCET_PROC_WORKER_STEP_LIMIT_H
#define TERCET_PROC_WORKER_STEP_LIMIT_H

#include "common/types.h"

enum {
	STEP_LIMIT_SIZES = 33,	   /* by the number of bits of the number of tokens */
	STEP_LIMIT_SETTLED = 3,	   /* steps until a size is known: the first ones load and record what later ones have */
	STEP_LIMIT_TIMES = 20,	   /* longer contexts and busy hosts make steps slower, but not by that */
	STEP_LIMIT_LEAST_MS = 4000 /* whatever hiccup a host or a driver has is over by then */
};

struct step_limit {
	u64 most_ns; /* 0: steps may take for ever */
	struct {
		u64 usual_ns; /* the longest, forgotten by a sixteenth with every later step */
		u32 steps;
	} sizes[STEP_LIMIT_SIZES];
};

void step_limit_init(struct step_limit *l, u64 most_ns);
/* A step of so many tokens took so long. */
void step_limit_learn(struct step_limit *l, u32 tokens, u64 took_ns);
/* What steps of about so many tokens take; 0: not known. */
u64 step_limit_usual_ns(const struct step_limit *l, u32 tokens);
/* STEP_LIMIT_TIMES what is usual, at least STEP_LIMIT_LEAST_MS and at most most_ns, which is also the limit where
 * nothing is usual; 0: none. */
u64 step_limit_ns(const struct step_limit *l, u32 tokens);

#endif
