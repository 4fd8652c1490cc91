/* What the op of low-rank adapters needs of the scratch. */
#ifndef TERCET_KERNELS_CPU_LORA_PRIV_H
#define TERCET_KERNELS_CPU_LORA_PRIV_H

#include "kernels/kern_priv.h"

/* Of a group: the numbers of its first tasks, and where its products with A begin. */
struct lora_place {
	u32 shrink, expand;
	size_t h;
};

/* Places of all groups, of which a step has no more than tokens, and the tokens' products with A; the reference has those of
 * one token in double. */
static inline size_t lora_scratch_bytes(const struct kern_limits *l)
{
	if (!l->lora_rank)
		return 0;
	return kern_align((l->tokens + 1) * sizeof(struct lora_place)) +
	       kern_align((size_t)l->tokens * l->lora_rank * sizeof(float) + l->lora_rank * sizeof(double));
}

#endif
