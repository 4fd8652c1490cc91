/* What the files that read blocks of GGUF types share: numbers in blocks, the types by lattices and by signs, and the lattices' points. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_GGUF_PRIV_H
#define TERCET_PROC_WORKER_MODEL_QUANT_GGUF_PRIV_H

#include "common/types.h"

/* A little-endian half at any address. */
static inline float quant_gguf_half(const u8 *at)
{
	u32 half = at[0] | (u32)at[1] << 8, size = half & 0x7fff;
	union {
		u32 bits;
		float value;
	} x = {.bits = (size << 13) + (size < 0x7c00 ? 112u << 23 : 224u << 23)};

	if (size < 0x400)
		x.value = (float)size * 0x1p-24f;
	return half & 0x8000 ? -x.value : x.value;
}

static inline u32 quant_gguf_word(const u8 *at)
{
	return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
}

/* The 256 values of a block, each ggml's to the bit. Any bytes are a block. */
void quant_gguf_iq1_s(const u8 *restrict block, float *restrict out);
void quant_gguf_iq1_m(const u8 *restrict block, float *restrict out);
void quant_gguf_iq2_xxs(const u8 *restrict block, float *restrict out);
void quant_gguf_iq2_xs(const u8 *restrict block, float *restrict out);
void quant_gguf_iq2_s(const u8 *restrict block, float *restrict out);
void quant_gguf_iq3_xxs(const u8 *restrict block, float *restrict out);
void quant_gguf_iq3_s(const u8 *restrict block, float *restrict out);
void quant_gguf_tq1_0(const u8 *restrict block, float *restrict out);
void quant_gguf_tq2_0(const u8 *restrict block, float *restrict out);
/* Likewise 128 values. */
void quant_gguf_q1_0(const u8 *restrict block, float *restrict out);

/* Run `run` of 32 values of a block as scale * (code - zero) with codes from 0 to 15; `codes` NULL: not wanted. Exact. */
void quant_gguf_iq1_s_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);
void quant_gguf_iq3_s_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);
void quant_gguf_tq1_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);
void quant_gguf_tq2_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);
void quant_gguf_q1_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);

/* Points of 8 numbers from 0 to 2, two bits each. */
extern const u16 QUANT_GGUF_IQ1[2048], QUANT_GGUF_IQ2_XXS[256], QUANT_GGUF_IQ2_XS[512], QUANT_GGUF_IQ2_S[1024];
/* Points of 4 numbers from 0 to 7, four bits each. */
extern const u16 QUANT_GGUF_IQ3_XXS[256], QUANT_GGUF_IQ3_S[512];

#endif
