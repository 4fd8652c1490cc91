/* Owns the table of element types that files in the format of ggml have. Runs in any process. */
#include "common/gguf.h"

#include <stdio.h>

enum { SUPER = 256 }; /* elements of a block of the later types */

/* As ggml has them, those that nothing here computes with, too: their tensors are named when they are refused. */
static const struct {
	const char *name;
	u32 type, elements, bytes;
} TYPES[] = {
	{"F32", GGUF_F32, 1, 4},
	{"F16", GGUF_F16, 1, 2},
	{"Q4_0", GGUF_Q4_0, 32, 18},
	{"Q4_1", GGUF_Q4_1, 32, 20},
	{"Q5_0", GGUF_Q5_0, 32, 22},
	{"Q5_1", GGUF_Q5_1, 32, 24},
	{"Q8_0", GGUF_Q8_0, 32, 34},
	{"Q8_1", 9, 32, 36},
	{"Q2_K", GGUF_Q2_K, SUPER, 84},
	{"Q3_K", GGUF_Q3_K, SUPER, 110},
	{"Q4_K", GGUF_Q4_K, SUPER, 144},
	{"Q5_K", GGUF_Q5_K, SUPER, 176},
	{"Q6_K", GGUF_Q6_K, SUPER, 210},
	{"Q8_K", 15, SUPER, 292},
	{"IQ2_XXS", GGUF_IQ2_XXS, SUPER, 66},
	{"IQ2_XS", GGUF_IQ2_XS, SUPER, 74},
	{"IQ3_XXS", GGUF_IQ3_XXS, SUPER, 98},
	{"IQ1_S", GGUF_IQ1_S, SUPER, 50},
	{"IQ4_NL", GGUF_IQ4_NL, 32, 18},
	{"IQ3_S", GGUF_IQ3_S, SUPER, 110},
	{"IQ2_S", GGUF_IQ2_S, SUPER, 82},
	{"IQ4_XS", GGUF_IQ4_XS, SUPER, 136},
	{"I8", 24, 1, 1},
	{"I16", 25, 1, 2},
	{"I32", 26, 1, 4},
	{"I64", 27, 1, 8},
	{"F64", 28, 1, 8},
	{"IQ1_M", GGUF_IQ1_M, SUPER, 56},
	{"BF16", GGUF_BF16, 1, 2},
	{"TQ1_0", GGUF_TQ1_0, SUPER, 54},
	{"TQ2_0", GGUF_TQ2_0, SUPER, 66},
	{"MXFP4", GGUF_MXFP4, 32, 17},
	{"NVFP4", GGUF_NVFP4, 64, 36},
	{"Q1_0", GGUF_Q1_0, 128, 18},
};

bool gguf_type_block(u32 type, u32 *elements, u32 *bytes)
{
	for (size_t i = 0; i < COUNT_OF(TYPES); i++)
		if (TYPES[i].type == type) {
			*elements = TYPES[i].elements;
			*bytes = TYPES[i].bytes;
			return true;
		}
	return false;
}

const char *gguf_type_name(u32 type)
{
	static _Thread_local char unknown[24];

	for (size_t i = 0; i < COUNT_OF(TYPES); i++)
		if (TYPES[i].type == type)
			return TYPES[i].name;
	snprintf(unknown, sizeof(unknown), "type %u", type);
	return unknown;
}
