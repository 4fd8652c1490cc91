/* The activations of gated MLPs, for the kernels that apply them. */
#ifndef TERCET_KERNELS_CUDA_ACTIVATION_CUH
#define TERCET_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/device.cuh"

/* tanh x = 1 - 2 / (e^2x + 1): exact at both ends, where e^2x is 0 or infinite. */
CU_INLINE float tanh_fast(float x)
{
	return 1 - 2 / (cu_exp2(x * 2.885390082f) + 1); /* 2 / ln 2 */
}

CU_INLINE float activate(enum kern_activation act, float x)
{
	if (act == KERN_SILU)
		return x / (1 + cu_exp2(x * -1.442695041f)); /* -1 / ln 2 */
	/* Hendrycks, Gimpel 2016; 0.79788... = sqrt(2 / pi) */
	return 0.5f * x * (1 + tanh_fast(0.7978845608f * (x + 0.044715f * x * x * x)));
}

#endif
