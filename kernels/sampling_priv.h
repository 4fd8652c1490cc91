/* The arithmetic of sampling. Every variant on every device uses exactly these operations, so that equal
 * logits give the same token everywhere: double, no fused multiply-add (the folder is built with
 * -ffp-contract=off), no libm. */
#ifndef TERCET_KERNELS_SAMPLING_PRIV_H
#define TERCET_KERNELS_SAMPLING_PRIV_H

#include <math.h>
#include <string.h>

#include "common/types.h"

/* Device code is compiled without fused multiply-add, too. */
#ifdef __CUDACC__
#define SAMPLING_FN		  static __device__ __forceinline__
#define SAMPLING_LEADING_ZEROS(x) __clz((int)(x))
#else
#define SAMPLING_FN		  static inline
#define SAMPLING_LEADING_ZEROS(x) __builtin_clz(x)
#endif

/* Philox-4x32-10 of Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011). */
SAMPLING_FN void philox(const u32 counter[4], u64 seed, u32 out[4])
{
	u32 c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
	for (u32 round = 0; round < 10; round++) {
		u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
		c0 = (u32)(b >> 32) ^ c1 ^ k0;
		c2 = (u32)(a >> 32) ^ c3 ^ k1;
		c1 = (u32)b;
		c3 = (u32)a;
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* e^x for x <= 0, relative error below 1e-12; 0 below -700 and for a NaN. x = n ln 2 + r, |r| <= ln 2 / 2,
 * Taylor series in r. Without branches, so that compilers can make vectors of it. */
SAMPLING_FN double sampling_exp(double x)
{
	double inside = x > -700 ? x : -700;
	double shifted = inside * 1.4426950408889634 + 0x1.8p52; /* rounds to an integer in the low bits */
	double n = shifted - 0x1.8p52;
	double r = inside - n * 0x1.62e42fefa0000p-1 - n * 0x1.cf79abc9e3b3ap-40;
	double p = 1.0 / 39916800;
	u64 bits;
	double scale;
	p = p * r + 1.0 / 3628800;
	p = p * r + 1.0 / 362880;
	p = p * r + 1.0 / 40320;
	p = p * r + 1.0 / 5040;
	p = p * r + 1.0 / 720;
	p = p * r + 1.0 / 120;
	p = p * r + 1.0 / 24;
	p = p * r + 1.0 / 6;
	p = p * r + 0.5;
	p = p * r + 1.0;
	p = p * r + 1.0;
	memcpy(&bits, &shifted, 8);
	bits = (bits + 1023) << 52;
	memcpy(&scale, &bits, 8);
	return x > -700 ? p * scale : 0;
}

enum { SAMPLING_MASS_BITS = 40 }; /* mass of the best token; sums of 2^20 of them fit into 64 bits */

/* e^z for z <= 0 as an integer, so that sums do not depend on their order: 2^40 e^z to the nearest. Zero
 * below -28.5. */
SAMPLING_FN u64 sampling_mass(double z)
{
	double shifted = sampling_exp(z) * (double)(1ull << SAMPLING_MASS_BITS) + 0x1p52;
	u64 bits;
	memcpy(&bits, &shifted, 8);
	return bits & ((1ull << 52) - 1);
}

/* ln x for normal x > 0, absolute error below 1e-12. x = m 2^e, sqrt(1/2) <= m < sqrt(2); ln m = 2 atanh(s)
 * with s = (m - 1) / (m + 1), |s| < 0.1716. */
SAMPLING_FN double sampling_log(double x)
{
	const u64 sqrt_half = 0x3fe6a09e667f3bcdu;
	u64 bits;
	double m;
	memcpy(&bits, &x, 8);
	i64 e = (i64)(bits - sqrt_half) >> 52;
	bits -= (u64)e << 52;
	memcpy(&m, &bits, 8);
	double s = (m - 1) / (m + 1), t = s * s;
	double p = 1.0 / 15;
	p = p * t + 1.0 / 13;
	p = p * t + 1.0 / 11;
	p = p * t + 1.0 / 9;
	p = p * t + 1.0 / 7;
	p = p * t + 1.0 / 5;
	p = p * t + 1.0 / 3;
	p = p * t + 1.0;
	return 2 * s * p + (double)e * 0x1.62e42fefa39efp-1;
}

/* A draw of the standard Gumbel distribution from 32 random bits: -ln(-ln u), u = (bits + 1/2) / 2^32. */
SAMPLING_FN double sampling_gumbel(u32 bits)
{
	double u = ((double)bits + 0.5) * 0x1p-32;
	return -sampling_log(-sampling_log(u));
}

/* An upper bound of sampling_gumbel(bits), by leading ones only: with c of them 1 - u > 2^-(c+1), and -ln u
 * >= 1 - u. */
SAMPLING_FN double sampling_gumbel_bound(u32 bits)
{
	u32 ones = bits == 0xffffffffu ? 32 : (u32)SAMPLING_LEADING_ZEROS(~bits);
	return (ones + 1) * 0.693147180559946;
}

/* Unsigned keys in the order of the floats; NaN counts as -inf, -0 as 0. */
SAMPLING_FN u32 sampling_key(float x)
{
	u32 bits;
	float clean = x != x ? -INFINITY : x + 0.0f;
	memcpy(&bits, &clean, 4);
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

#endif
