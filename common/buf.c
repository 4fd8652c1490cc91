/* Growable bytes and token ids. Runs everywhere, never on a hot path that has not reached its steady size.
 * A failed growth makes every later append a no-op until the buffer is cleared, so that content never has
 * holes. */
#include "common/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum { BUF_FIRST_BYTES = 256, VEC_FIRST_COUNT = 64 };

void buf_fini(struct buf *b)
{
	free(b->data);
	*b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
	b->bytes = 0;
	b->failed = false;
}

bool buf_ok(const struct buf *b)
{
	return !b->failed;
}

/* The next capacity that holds `needed`: doubling keeps appends amortised O(1). 0 when it cannot be
 * represented. */
static size_t grown_capacity(size_t capacity, size_t needed, size_t first)
{
	if (needed > SIZE_MAX / 4)
		return 0;
	if (capacity < first)
		capacity = first;
	while (capacity < needed)
		capacity *= 2;
	return capacity;
}

bool buf_reserve(struct buf *b, size_t extra)
{
	if (b->failed)
		return false;
	if (extra <= b->capacity - b->bytes)
		return true;
	if (extra > SIZE_MAX - b->bytes) {
		b->failed = true;
		return false;
	}
	size_t capacity = grown_capacity(b->capacity, b->bytes + extra, BUF_FIRST_BYTES);
	char *data = capacity != 0 ? realloc(b->data, capacity) : NULL;
	if (data == NULL) {
		b->failed = true;
		return false;
	}
	b->data = data;
	b->capacity = capacity;
	return true;
}

void buf_append(struct buf *b, const void *data, size_t bytes)
{
	if (bytes == 0 || !buf_reserve(b, bytes))
		return;
	memcpy(b->data + b->bytes, data, bytes);
	b->bytes += bytes;
}

void buf_append_str(struct buf *b, const char *text)
{
	buf_append(b, text, strlen(text));
}

void buf_append_char(struct buf *b, char c)
{
	if (!buf_reserve(b, 1))
		return;
	b->data[b->bytes++] = c;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list args, again;

	if (!buf_reserve(b, 128)) /* most formatted pieces fit, so that they are formatted once */
		return;
	va_start(args, fmt);
	va_copy(again, args);
	size_t room = b->capacity - b->bytes;
	int n = vsnprintf(b->data + b->bytes, room, fmt, args);
	va_end(args);
	ASSERT(n >= 0);
	if ((size_t)n >= room && buf_reserve(b, (size_t)n + 1))
		vsnprintf(b->data + b->bytes, (size_t)n + 1, fmt, again);
	va_end(again);
	if (!b->failed)
		b->bytes += (size_t)n;
}

const char *buf_cstr(struct buf *b)
{
	if (b->bytes == 0 || !buf_reserve(b, 1))
		return "";
	b->data[b->bytes] = '\0';
	return b->data;
}

void buf_consume(struct buf *b, size_t bytes)
{
	ASSERT(bytes <= b->bytes);
	if (bytes == 0)
		return;
	memmove(b->data, b->data + bytes, b->bytes - bytes);
	b->bytes -= bytes;
}

void u32_vec_fini(struct u32_vec *v)
{
	free(v->data);
	*v = (struct u32_vec){0};
}

void u32_vec_clear(struct u32_vec *v)
{
	v->count = 0;
	v->failed = false;
}

bool u32_vec_reserve(struct u32_vec *v, size_t extra)
{
	if (v->failed)
		return false;
	if (extra <= v->capacity - v->count)
		return true;
	if (extra > SIZE_MAX / sizeof(uint32_t) - v->count) {
		v->failed = true;
		return false;
	}
	size_t capacity = grown_capacity(v->capacity, v->count + extra, VEC_FIRST_COUNT);
	uint32_t *data = NULL;
	if (capacity != 0 && capacity <= SIZE_MAX / sizeof(uint32_t))
		data = realloc(v->data, capacity * sizeof(uint32_t));
	if (data == NULL) {
		v->failed = true;
		return false;
	}
	v->data = data;
	v->capacity = capacity;
	return true;
}

void u32_vec_push(struct u32_vec *v, uint32_t value)
{
	if (!u32_vec_reserve(v, 1))
		return;
	v->data[v->count++] = value;
}

void u32_vec_append(struct u32_vec *v, const uint32_t *values, size_t count)
{
	if (count == 0 || !u32_vec_reserve(v, count))
		return;
	memcpy(v->data + v->count, values, count * sizeof(uint32_t));
	v->count += count;
}
