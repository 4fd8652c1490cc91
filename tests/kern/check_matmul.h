/* Matrices for the checks of matmul: random weights of every type, and what they stand for. */
#ifndef TERCET_TESTS_KERN_CHECK_MATMUL_H
#define TERCET_TESTS_KERN_CHECK_MATMUL_H

#include "tests/kern/check.h"

/* The types of weights, in the order in which cases go through them. */
enum { CHECK_MATMUL_TYPES = 7 };
extern const enum kern_dtype check_matmul_types[CHECK_MATMUL_TYPES];

struct matmul_case {
	u32 n, k, tokens;
	enum kern_dtype dtype;
	bool outliers, bias, accumulate, order;
	int exponent; /* every third row's inputs are times two to this */
	bool zero_bias; /* and negative */
	int weights_exponent; /* in 8 bits: and every third group's scales, or all if the former is above 104 */
};

/* The weight and what it stands for. */
struct check_matrix {
	struct kern_weight packed;
	float *values; /* [n][k] */
};

/* [n][k] of the case, packed for `caps`, in memory of the running case. */
void check_matrix_make(struct check *c, const struct matmul_case *m, u32 caps, struct check_matrix *out);

#endif
