/* Blocks of the types that GGUF files have: their values, and what of them are whole numbers with a scale and a zero. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_GGUF_H
#define TERCET_PROC_WORKER_MODEL_QUANT_GGUF_H

#include "common/types.h"

enum {
	QUANT_GGUF_GROUP = 32,	/* inputs that share a scale and a zero, of types that have such */
	QUANT_GGUF_BLOCK = 256, /* most elements of a block */
};

/* Whether a type (enum gguf_type) is one of those that are read here; elements and bytes of its blocks. */
bool quant_gguf_block(u32 type, u32 *elements, u32 *bytes);
/* "Q4_0, Q4_1, ...": all of them. */
extern const char QUANT_GGUF_NAMES[];

/* Values [first, first + count) of a row that begins at `row`, as floats: what ggml makes of them, to the bit. */
void quant_gguf_values(u32 type, const u8 *row, u32 first, u32 count, float *out);

/* Whether values are scale * (code - zero) with codes from 0 to 15 and a scale for 32 inputs. */
bool quant_gguf_is_linear(u32 type);
/* Only of these: codes (NULL: not wanted), scales and zeros of inputs [first, first + count), `first` a multiple of 32. Scales and zeros
 * as halves can hold them, or nearly so; a scale is NAN where a block has values that are no finite numbers or too large for that. */
void quant_gguf_codes(u32 type, const u8 *row, u32 first, u32 count, u8 *codes, float *scales, float *zeros);

#endif
