/* Activations in double precision, for the reference of the ops that have them. */
#ifndef TERCET_KERNELS_REF_ACTIVATION_PRIV_H
#define TERCET_KERNELS_REF_ACTIVATION_PRIV_H

#include <math.h>

#include "common/assert.h"
#include "kernels/kernels.h"

static inline double ref_activate(enum kern_activation act, double x)
{
	switch (act) {
	case KERN_SILU:
		return x / (1 + exp(-x));
	case KERN_GELU_TANH: /* Hendrycks, Gimpel 2016; 0.79788... = sqrt(2 / pi) */
		return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
	case KERN_GELU: /* 0.70710... = sqrt(1 / 2) */
		return 0.5 * x * erfc(-0.70710678118654752440 * x);
	case KERN_RELU:
		return x < 0 ? 0 : x;
	case KERN_RELU_SQUARED: /* So et al. 2021 */
		return x < 0 ? 0 : x * x;
	}
	ASSERT(!"an activation");
	return 0;
}

#endif
