/* A growable run of bytes, for cold paths and for buffers that reach a steady size and stay there. */
#ifndef TERCET_COMMON_BUF_H
#define TERCET_COMMON_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Zero-initialised is empty and valid. `data` is owned; bytes [bytes, capacity) are scratch.
 * Growth that fails sets `failed` and drops what was appended; check it once at the end (buf_ok). */
struct buf {
	char *data;
	size_t bytes;
	size_t capacity;
	bool failed;
};

void buf_fini(struct buf *b);  /* frees; leaves it empty and valid */
void buf_clear(struct buf *b); /* keeps the memory */
bool buf_ok(const struct buf *b);
/* Room for `extra` more bytes behind `bytes`; false (and `failed`) when memory ran out. */
bool buf_reserve(struct buf *b, size_t extra);
void buf_append(struct buf *b, const void *data, size_t bytes);
void buf_append_str(struct buf *b, const char *text);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The content as a C string: writes a NUL behind the content (not counted). "" when empty or failed. */
const char *buf_cstr(struct buf *b);
/* Removes the first `bytes` bytes. */
void buf_consume(struct buf *b, size_t bytes);

/* A growable array of token ids (same rules). */
struct u32_vec {
	uint32_t *data;
	size_t count;
	size_t capacity;
	bool failed;
};

void u32_vec_fini(struct u32_vec *v);
void u32_vec_clear(struct u32_vec *v);
bool u32_vec_reserve(struct u32_vec *v, size_t extra);
void u32_vec_push(struct u32_vec *v, uint32_t value);
void u32_vec_append(struct u32_vec *v, const uint32_t *values, size_t count);

#endif
