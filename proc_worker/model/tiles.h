/* The order that heads have in GGUF files of some families with the gated delta rule. Where several heads of values read one key head, in
 * checkpoints they are neighbours; in these files first come those that are the first of each key head, then the second ones, and so on, so
 * that a program may lay the key heads beside them again and again. */
#ifndef TERCET_PROC_WORKER_MODEL_TILES_H
#define TERCET_PROC_WORKER_MODEL_TILES_H

#include "common/types.h"

struct tiles {
	u32 width; /* rows, or columns, of a head; 0: heads are in order */
	u32 heads, key_heads;
};

/* Of [first, first + count), at least one, those from the first on that lie side by side in the file: how many, and from `*at` on. */
static inline u32 tiles_run(const struct tiles *t, u32 first, u32 count, u32 *at)
{
	*at = first;
	if (t->width == 0)
		return count;
	const u32 head = first / t->width, within = first % t->width, left = t->width - within, of_key = t->heads / t->key_heads;
	*at = (head % of_key * t->key_heads + head / of_key) * t->width + within;
	return count < left ? count : left;
}

#endif
