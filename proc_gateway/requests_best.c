/* Owns the choice of the best samples (best_of). Runs in the gateway; never talks to the engine. */
#include "proc_gateway/requests.h"

/* Samples of which not all log-probabilities are known go behind the others. */
static bool is_better(const struct choice *a, const struct choice *b)
{
	if (a->logprob_lost != b->logprob_lost)
		return b->logprob_lost;
	return a->logprob_sum > b->logprob_sum;
}

void requests_choose_best(struct group *g)
{
	u32 n = g->request.n, samples = g->request.samples;
	for (u32 first = 0; samples > n && first < g->choice_count; first += samples) {
		struct choice *c = &g->choices[first];
		for (u32 i = 1; i < samples; i++) {
			struct choice moved = c[i];
			u32 at = i;
			for (; at > 0 && is_better(&moved, &c[at - 1]); at--)
				c[at] = c[at - 1];
			c[at] = moved;
		}
		for (u32 i = 0; i < samples; i++) {
			c[i].index = first / samples * n + i;
			c[i].left_out = i >= n;
		}
	}
}
