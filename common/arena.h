/* Bump allocation for things that die together: one request, one parsed file. Grows by chunks. */
#ifndef TERCET_COMMON_ARENA_H
#define TERCET_COMMON_ARENA_H

#include <stddef.h>

struct arena_chunk;

/* Zero-initialised is empty and valid. */
struct arena {
	struct arena_chunk *head;
	size_t chunk_bytes; /* 0: 16 KiB */
	size_t limit_bytes; /* 0: none; else allocation beyond it answers NULL */
	size_t used_bytes;
};

/* 16-byte aligned, uninitialised; NULL when memory or the limit ran out. Owned by the arena. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_zalloc(struct arena *a, size_t bytes);
/* Copy with a NUL behind it. */
char *arena_strndup(struct arena *a, const char *text, size_t bytes);
char *arena_strdup(struct arena *a, const char *text);
/* Forgets everything, keeps the largest chunk. */
void arena_reset(struct arena *a);
void arena_fini(struct arena *a);

#endif
