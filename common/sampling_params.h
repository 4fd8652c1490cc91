/* Sampling parameters of a request: one table from which the struct, the SUBMIT scalars and the STEP columns
 * expand. */
#ifndef TERCET_COMMON_SAMPLING_PARAMS_H
#define TERCET_COMMON_SAMPLING_PARAMS_H

#include "common/err.h"
#include "common/types.h"

/* Bits of `flags`. */
enum sampling_flag {
	SAMPLING_IGNORE_EOS = 1u << 0,
	SAMPLING_SKIP_SPECIAL = 1u << 1,          /* special tokens give no text */
	SAMPLING_INCLUDE_STOP = 1u << 2,          /* the stop string / stop token stays in the text */
	SAMPLING_SPACES_BETWEEN_SPECIAL = 1u << 3, /* shown ones: the space that some decoders put between tokens stays */
	SAMPLING_NO_CACHE_READ = 1u << 4,         /* do not read the prefix cache (still writes it) */
	SAMPLING_NO_TEXT = 1u << 5,               /* tokens only: the detokenizer does not decode */
	SAMPLING_EARLY_STOPPING = 1u << 6,        /* a beam search ends with its beam_width-th finished answer */
	SAMPLING_EMBEDDING = 1u << 7,             /* the prompt's embedding is told with the first output */
};

/* F(A, type, name, default, min, max): A is passed through. Ranges are checked by sampling_params_check. */
#define SAMPLING_TABLE(F, A)                                                                                 \
	F(A, f32, temperature, 1.0f, 0.0f, 100.0f)       /* 0: greedy */                                     \
	F(A, f32, top_p, 1.0f, 0.0f, 1.0f)               /* (0, 1] */                                        \
	F(A, f32, min_p, 0.0f, 0.0f, 1.0f)                                                                   \
	F(A, u32, top_k, 0, 0, 0x7fffffff)               /* 0: off */                                        \
	F(A, f32, repetition_penalty, 1.0f, 0.01f, 100.0f)                                                   \
	F(A, f32, presence_penalty, 0.0f, -2.0f, 2.0f)                                                       \
	F(A, f32, frequency_penalty, 0.0f, -2.0f, 2.0f)                                                      \
	F(A, u64, seed, 0, 0, UINT64_MAX)                                                                    \
	F(A, u32, max_tokens, 16, 1, 0x7fffffff)                                                             \
	F(A, u32, min_tokens, 0, 0, 0x7fffffff)                                                              \
	F(A, i32, logprobs, -1, -1, 20)                  /* -1: none; n: the sampled token and the n best */ \
	F(A, i32, prompt_logprobs, -1, -1, 20)                                                               \
	F(A, u32, flags, SAMPLING_SKIP_SPECIAL, 0, 0xff)                                                     \
	F(A, u32, beam_width, 0, 0, 10)                  /* beam search: 0: none; at most BEAM_WIDTH_MAX */

struct sampling_params {
#define SAMPLING_MEMBER(A, type, name, def, min, max) type name;
	SAMPLING_TABLE(SAMPLING_MEMBER, 0)
#undef SAMPLING_MEMBER
};

/* Limits of the lists that go with the parameters. */
enum {
	STOP_IDS_MAX = 64,
	STOP_STRINGS_MAX = 16,
	STOP_STRING_BYTES_MAX = 1024, /* all stop strings of a request together */
	BIAS_MAX = 1024,
	EOS_IDS_MAX = 32,
	LOGPROBS_MAX = 20,
	EMBEDDING_MAX = 65536, /* numbers of an embedding */
	BEAM_WIDTH_MAX = LOGPROBS_MAX / 2, /* every beam offers the 2 * width best tokens */
};

/* How many best tokens are listed with every one that is sampled; -1: no list. */
static inline i32 sampling_listed(const struct sampling_params *p)
{
	i32 beams = p->beam_width ? 2 * (i32)p->beam_width : -1;

	return p->logprobs > beams ? p->logprobs : beams;
}

void sampling_params_default(struct sampling_params *p);
/* ERR_INVALID with the field, its value and the range in `em`. */
MUST_CHECK enum err sampling_params_check(const struct sampling_params *p, struct err_msg *em);

#endif
