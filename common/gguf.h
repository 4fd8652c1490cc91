/* Model files in the format of ggml (GGUF, versions 2 and 3; github.com/ggml-org/ggml, docs/gguf.md): named values and tensors. The file
 * is mapped, not read; a header that lies is found when it is opened and not by a fault later. */
#ifndef TERCET_COMMON_GGUF_H
#define TERCET_COMMON_GGUF_H

#include "common/err.h"
#include "common/types.h"

enum { GGUF_DIMS_MAX = 4 };

/* Types of a tensor's elements, by their numbers in the file. */
enum gguf_type {
	GGUF_F32 = 0,
	GGUF_F16 = 1,
	GGUF_Q4_0 = 2,
	GGUF_Q4_1 = 3,
	GGUF_Q5_0 = 6,
	GGUF_Q5_1 = 7,
	GGUF_Q8_0 = 8,
	GGUF_Q2_K = 10,
	GGUF_Q3_K = 11,
	GGUF_Q4_K = 12,
	GGUF_Q5_K = 13,
	GGUF_Q6_K = 14,
	GGUF_IQ2_XXS = 16,
	GGUF_IQ2_XS = 17,
	GGUF_IQ3_XXS = 18,
	GGUF_IQ1_S = 19,
	GGUF_IQ4_NL = 20,
	GGUF_IQ3_S = 21,
	GGUF_IQ2_S = 22,
	GGUF_IQ4_XS = 23,
	GGUF_IQ1_M = 29,
	GGUF_BF16 = 30,
	GGUF_TQ1_0 = 34,
	GGUF_TQ2_0 = 35,
	GGUF_MXFP4 = 39,
	GGUF_NVFP4 = 40,
	GGUF_Q1_0 = 41,
};

struct gguf_tensor {
	const char *name;
	const char *file; /* the name of the one that it is in, for messages */
	u32 type;	  /* enum gguf_type, or one that is not known here */
	u32 dims;
	u64 shape[GGUF_DIMS_MAX]; /* rows first, as safetensors has it: the other way round than in the file */
	const void *data;	  /* may be NULL where the type is not known: its size is not, either */
	u64 bytes;
};

struct gguf;

/* Maps the file, and where it is the first of several ("split.count", NAME-00001-of-00003.gguf) the others beside it, or beside what
 * it is a link to; checks all lengths, types, names and offsets. ERR_NOT_FOUND: a file is missing; ERR_FORMAT: says what was found and what
 * was expected; ERR_UNSUPPORTED: another version, or big-endian; ERR_INVALID: it is one of several, and not the first, or not named as such;
 * ERR_TOO_LONG: more values or tensors than are read; ERR_IO, ERR_NO_MEMORY. The caller owns `*out`; everything below lives as long as it
 * does. Of one thread at a time. */
MUST_CHECK enum err gguf_open(struct gguf **out, const char *path, struct err_msg *em);
void gguf_close(struct gguf **g);
/* What gguf_open checks in one file, for a file in memory. */
MUST_CHECK enum err gguf_check(const void *file, size_t bytes, struct err_msg *em);

/* All of the files is going to be read in order (`keep`), or it was, and the memory of the mapped pages is given back: tensors can still be
 * read. */
void gguf_advise(const struct gguf *g, bool keep);
/* Of the files' names, sizes, times of change and headers: tells a model from another and from itself before a change, without reading the
 * tensors. */
u64 gguf_identity(const struct gguf *g);

/* Bytes that hold one block of a type, and how many elements a block has; false: the type is not known. */
bool gguf_type_block(u32 type, u32 *elements, u32 *bytes);
/* "Q4_K"; "type 99" of one that is not known. Static, or valid until the next call in this thread. */
const char *gguf_type_name(u32 type);

u32 gguf_tensor_count(const struct gguf *g);
/* In the order of the file. */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, u32 index);
/* NULL when there is none. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);

/* Values by their keys. False: there is none of that name, or it is of another kind; `*out` is left as it was. Strings are not ended by NUL
 * and may hold any bytes. Any integer type is an integer, any float type a float, and an integer is a float, too. */
bool gguf_has(const struct gguf *g, const char *key);
/* The keys of all values in alphabetical order; NULL behind the last one. */
const char *gguf_key_at(const struct gguf *g, u32 index);
bool gguf_string(const struct gguf *g, const char *key, const char **out, size_t *bytes);
bool gguf_int(const struct gguf *g, const char *key, i64 *out);
bool gguf_float(const struct gguf *g, const char *key, double *out);
bool gguf_bool(const struct gguf *g, const char *key, bool *out);
/* How many elements an array has; false: it is none. Truth values in arrays are the integers 0 and 1. */
bool gguf_array(const struct gguf *g, const char *key, u64 *count);
/* Elements of an array; reading all of them in order takes constant time each. */
bool gguf_array_string(const struct gguf *g, const char *key, u64 index, const char **out, size_t *bytes);
bool gguf_array_int(const struct gguf *g, const char *key, u64 index, i64 *out);
bool gguf_array_float(const struct gguf *g, const char *key, u64 index, double *out);

#endif
