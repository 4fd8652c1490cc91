/* What the variants of index_choose share: how the best of many scores are found. */
#ifndef TERCET_KERNELS_INDEX_PRIV_H
#define TERCET_KERNELS_INDEX_PRIV_H

#include "kernels/kern_priv.h"

/* chosen [top] = the places of the `top` largest of `count` >= top scores, in rising order, of equal ones the first. In O(count), whatever they are. */
void kern_index_select(const float *scores, u32 count, u32 top, u32 *chosen);
/* The same for all queries of the list, by their scores in `a`, on the pool. */
void kern_index_select_all(struct kern_ctx *ctx, const struct kern_index_choose_args *a);
/* What the codes of KERN_F8E4M3 stand for. */
enum { KERN_INDEX_CODES = 256 };
void kern_index_codes(float table[KERN_INDEX_CODES]);

#endif
