/* What attention should give, by formulas in double. For the checks of its variants. */
#ifndef TERCET_TESTS_KERN_CHECK_ATTENTION_H
#define TERCET_TESTS_KERN_CHECK_ATTENTION_H

#include "tests/kern/check_kv.h"

/* Where products are of bfloat16, scores that are not capped count 512 to an octave of their weights: queries are rounded as what gives these. */
enum { CHECK_ATTENTION_STEPS = 512 };
static const float check_attention_step = 0.693147180559945309f / CHECK_ATTENTION_STEPS;

/* Where a key lies, of K or of V. */
struct check_kv_place check_attention_key(const struct kern_attention_args *a, u32 r, u32 head, u32 key, bool value);

/* What a row has in the cache under one KV head: read once for all queries, for each takes long to find. */
struct check_attention_row {
	double *k, *v; /* [context][head_dim] */
	double *scale; /* [context] of values, 1 for types that have none */
	double *size;  /* [context]: sums of a key's magnitudes */
};
/* Of row r. The caller frees it. */
struct check_attention_row check_attention_read(const struct kern_attention_args *a, u32 r, u32 kv_head);
void check_attention_free(struct check_attention_row *c);

/* What one query head of a row should give, and how far whole numbers of 16 bits may take a variant from it.
 */
struct check_attention_want {
	double value[1024];
	double size[1024]; /* sums of the magnitudes whose sum `value` is */
	double slack[1024];
};
/* `c`: of row r and the head's KV head. `rounded`: the variant computes with products of bfloat16. */
void check_attention_want(const struct kern_attention_args *a, const struct check_attention_row *c, u32 r, u32 query, u32 head, bool rounded,
			  struct check_attention_want *w);
/* Whether one query head's output is as near as the arithmetic allows: NULL, or what is wrong, as check_close has it. `outliers`: of scores. */
const char *check_attention_close(const struct kern_attention_args *a, const float *got, const struct check_attention_want *w, bool rounded,
				  bool outliers);

#endif
