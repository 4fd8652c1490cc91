/* Writes a Llama checkpoint of a few kilobytes, whole or with something wrong. For tests. */
#ifndef TERCET_TESTS_TINY_MODEL_H
#define TERCET_TESTS_TINY_MODEL_H

#include "common/types.h"

struct tiny_model {
	char dir[64];
	/* What to change; zeroed: nothing. */
	const char *config;	 /* whole config.json instead of the usual one; "" writes none */
	const char *generation;	 /* generation_config.json; NULL: none */
	const char *config_from; /* a piece of the usual config.json ... */
	const char *config_to;	 /* ... and what stands in its place */
	const char *skip;	 /* tensor that is left out */
	const char *reshape;	 /* tensor whose two dimensions are exchanged */
	const char *dtype;	 /* of the tensor `dtype_of` in the header */
	const char *dtype_of;
	const char *header;	 /* the whole header instead */
	const char *header_from; /* a piece of the header ... */
	const char *header_to;	 /* ... and what stands in its place */
	i64 cut;		 /* bytes that are missing at the end; negative: that many are too much */
	u64 header_length;	 /* instead of the true one */
	bool odd;		 /* data begins at an odd address */
	bool half;		 /* all tensors are in float16 */
	bool sharded;		 /* two files and an index */
	bool fused;		 /* as Phi 3 has it: q, k and v in one tensor, gate and up in one */
	/* What is to be added to a value of a matrix; NULL: nothing. */
	double (*more)(void *ctx, const char *tensor, u32 row, u32 column);
	void *more_ctx;
	const char *index_from, *index_to;
};

/* Makes a folder under /tmp. */
void tiny_model_write(struct tiny_model *m);
void tiny_model_remove(struct tiny_model *m);

#endif
