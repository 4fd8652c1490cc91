/* Chunks in a list, newest first. Belongs to one thread; memory comes from malloc only when a chunk is full.
 */
#include "common/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_CHUNK_BYTES = 16 * 1024 };

struct arena_chunk {
	struct arena_chunk *next;
	size_t bytes; /* usable */
	size_t used;
	alignas(ARENA_ALIGN) char memory[];
};

static struct arena_chunk *chunk_create(struct arena *a, size_t bytes)
{
	size_t usable = a->chunk_bytes != 0 ? a->chunk_bytes : ARENA_CHUNK_BYTES;

	if (usable < bytes)
		usable = bytes;
	struct arena_chunk *c = malloc(sizeof(*c) + usable);
	if (c == NULL)
		return NULL;
	c->bytes = usable;
	c->used = 0;
	c->next = a->head;
	a->head = c;
	return c;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
	if (bytes == 0)
		bytes = ARENA_ALIGN; /* every allocation has an address of its own */
	if (a->limit_bytes != 0 && (a->used_bytes > a->limit_bytes || bytes > a->limit_bytes - a->used_bytes))
		return NULL;
	struct arena_chunk *c = a->head;
	if (c == NULL || bytes > c->bytes - c->used) {
		c = chunk_create(a, bytes);
		if (c == NULL)
			return NULL;
	}
	void *p = c->memory + c->used;
	c->used += bytes;
	a->used_bytes += bytes;
	return p;
}

void *arena_zalloc(struct arena *a, size_t bytes)
{
	void *p = arena_alloc(a, bytes);

	if (p != NULL)
		memset(p, 0, bytes);
	return p;
}

char *arena_strndup(struct arena *a, const char *text, size_t bytes)
{
	if (bytes == SIZE_MAX)
		return NULL;
	char *p = arena_alloc(a, bytes + 1);
	if (p == NULL)
		return NULL;
	if (bytes != 0)
		memcpy(p, text, bytes);
	p[bytes] = '\0';
	return p;
}

char *arena_strdup(struct arena *a, const char *text)
{
	return arena_strndup(a, text, strlen(text));
}

void arena_reset(struct arena *a)
{
	struct arena_chunk *largest = NULL;

	for (struct arena_chunk *c = a->head; c != NULL; c = c->next)
		if (largest == NULL || c->bytes > largest->bytes)
			largest = c;
	for (struct arena_chunk *c = a->head; c != NULL;) {
		struct arena_chunk *next = c->next;
		if (c != largest)
			free(c);
		c = next;
	}
	if (largest != NULL) {
		largest->next = NULL;
		largest->used = 0;
	}
	a->head = largest;
	a->used_bytes = 0;
}

void arena_fini(struct arena *a)
{
	for (struct arena_chunk *c = a->head; c != NULL;) {
		struct arena_chunk *next = c->next;
		free(c);
		c = next;
	}
	a->head = NULL;
	a->used_bytes = 0;
}
