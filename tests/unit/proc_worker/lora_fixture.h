/* Writes adapters for the tiny model, right or with something wrong, and knows what they add to its weights. For tests. */
#ifndef TERCET_TESTS_LORA_FIXTURE_H
#define TERCET_TESTS_LORA_FIXTURE_H

#include "common/types.h"

struct lora_fixture {
	char dir[64];
	u32 seed, rank; /* other seeds are other adapters */
	/* What to change; zeroed: nothing. */
	const char *config;	 /* adapter_config.json instead of the usual one; "" writes none */
	const char *more_config; /* members behind the usual ones: ", \"bias\": \"none\"" */
	double scale;		 /* by that config; 0: that of the usual one, 2 */
	const char *dtype;	 /* NULL: F32; BF16, F16 */
	const char *only;	 /* modules whose names have this piece */
	const char *skip;	 /* tensors whose names have this piece are left out */
	const char *extra;	 /* one more tensor */
	const char *longer;	 /* the tensor whose name has this piece has a row too many */
	const char *strange;	 /* the last value of the tensor whose name has this piece is strange_value */
	float strange_value;
	u32 double_rank_layer;	 /* from 1: that layer's q_proj has twice the rank */
	const char *whole;	 /* in names of tensors in place of "model." */
	bool fused;		 /* for the tiny model that is fused: B's of q, k, v and of gate, up stacked over one A */
	bool no_tensors;	 /* no file of them */
};

/* Makes a folder under /tmp. */
void lora_fixture_write(struct lora_fixture *f);
void lora_fixture_remove(struct lora_fixture *f);
/* What the adapter adds to a weight of the model (struct tiny_model.more, with the fixture as context). */
double lora_fixture_more(void *f, const char *tensor, u32 row, u32 column);

#endif
