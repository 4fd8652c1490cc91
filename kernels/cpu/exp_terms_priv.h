/* The numbers that softmax weights are computed by, in all widths of vectors. */
#ifndef TERCET_KERNELS_CPU_EXP_TERMS_PRIV_H
#define TERCET_KERNELS_CPU_EXP_TERMS_PRIV_H

static const float LOG2_E = 1.44269504088896341f;

/* What is below e^EXP_LEAST is 0, for denormal numbers would take a hundred cycles each; EXP_LEAST_POWER: the same as a power of two. */
enum { EXP_LEAST = -62, EXP_LEAST_POWER = -89 }; /* -62 log2 e, rounded */

/* 2^x for |x| <= 1/2, to 2^-24 of itself: exactly 1 for 0. */
#define EXP2_LIST(OF)                                                                                                \
	OF(1.5326462744e-4f), OF(1.3390806271e-3f), OF(9.6185058355e-3f), OF(5.5503599346e-2f), OF(2.4022647738e-1f), \
		OF(6.9314718246e-1f), OF(1)
static const float EXP2_TERMS[] = {EXP2_LIST(+)};

#endif
