/* The activations of MLPs, for the kernels that apply them. */
#ifndef TERCET_KERNELS_CUDA_ACTIVATION_CUH
#define TERCET_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/device.cuh"

/* tanh x = 1 - 2 / (e^2x + 1): exact at both ends, where e^2x is 0 or infinite. */
CU_INLINE float tanh_fast(float x)
{
	return 1 - 2 / (cu_exp2(x * 2.885390082f) + 1); /* 2 / ln 2 */
}

/* max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, where e^(z^2) erfc(z) / t is a polynomial of t = 1 / (1 + 0.4 z), fitted to 6e-8
 * of itself. */
CU_INLINE float gelu(float x)
{
	const float size = fabsf(x), z = size * 0.7071067812f, t = 1 / (1 + 0.4f * z);
	float p = 0.0402682871f;
	p = p * t - 0.135474890f;
	p = p * t + 0.0738498867f;
	p = p * t + 0.0997208581f;
	p = p * t + 0.0715142265f;
	p = p * t + 0.196960524f;
	p = p * t + 0.200959206f;
	p = p * t + 0.226575628f;
	p = p * t + 0.225626305f;
	return (x < 0 ? 0 : x) - 0.5f * size * p * t * cu_exp2(z * z * -1.442695041f); /* -1 / ln 2 */
}

CU_INLINE float activate(enum kern_activation act, float x)
{
	if (act == KERN_GELU)
		return gelu(x);
	if (act == KERN_RELU || act == KERN_RELU_SQUARED)
		return x < 0 ? 0 : act == KERN_RELU ? x : x * x;
	if (act == KERN_SILU)
		return x / (1 + cu_exp2(x * -1.442695041f)); /* -1 / ln 2 */
	/* Hendrycks, Gimpel 2016; 0.79788... = sqrt(2 / pi) */
	return 0.5f * x * (1 + tanh_fast(0.7978845608f * (x + 0.044715f * x * x * x)));
}

/* By the numbers at `n` (kern_act_mul_args). e^x - 1 - x near 0 by its series, where the difference would have few digits. */
CU_INLINE float xielu(const float *n, float x)
{
	const float beta = n[KERN_XIELU_BETA] * x;
	if (x > 0)
		return n[KERN_XIELU_POSITIVE] * x * x + beta;
	const float low = x > n[KERN_XIELU_EPS] ? n[KERN_XIELU_EPS] : x;
	float beyond = low * low *
		       (1 / 2.0f + low * (1 / 6.0f + low * (1 / 24.0f + low * (1 / 120.0f + low * (1 / 720.0f + low * (1 / 5040.0f))))));
	if (low < -0.35f)
		beyond = cu_exp2(low * 1.442695041f) - 1 - low; /* 1 / ln 2 */
	return n[KERN_XIELU_NEGATIVE] * (beyond + (low - x)) + beta;
}

#endif
