/* Shared memory of a block: every array has its exact size, red zones around it, and poison in it when a block
 * begins. Under AddressSanitizer the red zones trap; otherwise they are looked at when the block ends. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/emu_asan.h"
#include "tests/cuda_emu/emu_priv.h"

/* The dynamic array is aligned as SHARED_DYNAMIC_1024 promises. */
enum { RED_ZONE = 64, DYNAMIC_AT = 1024 };
enum { ARENA_BYTES = EMU_SHARED_MAX + EMU_SHARED_STATIC_MAX + (EMU_SHARED_ARRAYS + 1) * 4 * RED_ZONE + 2 * DYNAMIC_AT };

static unsigned char *place(struct emu_shared *s, const void *key, const char *name, size_t bytes, size_t offset)
{
	struct emu_shared_array *a = &s->array[s->count++];
	a->key = key;
	a->name = name;
	a->data = s->arena + offset;
	a->bytes = bytes;
	s->used = (offset + bytes + RED_ZONE + 127) & ~(size_t)127;
	EMU_UNPOISON(a->data, bytes);
	memset(a->data, EMU_POISON, bytes);
	return a->data;
}

void emu_shared_begin(struct emu_shared *s, size_t dynamic_bytes)
{
	if (s->arena == NULL) {
		s->arena = static_cast<unsigned char *>(aligned_alloc(DYNAMIC_AT, (ARENA_BYTES + DYNAMIC_AT - 1) & ~(DYNAMIC_AT - 1)));
		if (s->arena == NULL)
			abort();
		s->used = ARENA_BYTES;
	}
	EMU_UNPOISON(s->arena, s->used);
	memset(s->arena, EMU_POISON, s->used);
	EMU_POISON_MEMORY(s->arena, ARENA_BYTES);
	s->count = 0;
	s->static_bytes = 0;
	s->dynamic_bytes = dynamic_bytes;
	place(s, NULL, "the dynamic array", dynamic_bytes, DYNAMIC_AT);
}

void emu_shared_end(struct emu_shared *s)
{
	if (s->arena != NULL)
		EMU_UNPOISON(s->arena, ARENA_BYTES);
	free(s->arena);
	s->arena = NULL;
}

void emu_shared_poison(struct emu_shared *s)
{
	for (u32 i = 0; i < s->count; i++)
		memset(s->array[i].data, EMU_POISON, s->array[i].bytes);
}

/* Static arrays are aligned to 16 bytes and not more: code that needs more has to say so by being dynamic. */
void *emu_shared_array(struct emu_shared *s, const void *key, const char *name, size_t bytes)
{
	for (u32 i = 1; i < s->count; i++) {
		if (s->array[i].key == key)
			return s->array[i].data;
	}
	if (s->count == EMU_SHARED_ARRAYS || s->static_bytes + bytes > EMU_SHARED_STATIC_MAX ||
	    s->static_bytes + bytes + s->dynamic_bytes > EMU_SHARED_MAX)
		return NULL;
	s->static_bytes += bytes;
	return place(s, key, name, bytes, s->used + 16);
}

static bool intact(const unsigned char *p, size_t bytes)
{
	/* each byte is the one before it */
	return *p == EMU_POISON && memcmp(p, p + 1, bytes - 1) == 0;
}

const char *emu_shared_overrun(const struct emu_shared *s)
{
#ifndef EMU_ASAN /* there it has trapped already */
	for (u32 i = 0; i < s->count; i++) {
		const struct emu_shared_array *a = &s->array[i];
		if (!intact(a->data - RED_ZONE, RED_ZONE) || !intact(a->data + a->bytes, RED_ZONE))
			return a->name;
	}
#else
	(void)s;
	(void)intact;
#endif
	return NULL;
}

size_t emu_shared_arena_bytes(void)
{
	return ARENA_BYTES;
}

bool emu_shared_contains(const struct emu_shared *s, const void *p, size_t bytes)
{
	const unsigned char *at = static_cast<const unsigned char *>(p);
	for (u32 i = 0; i < s->count; i++) {
		const struct emu_shared_array *a = &s->array[i];
		if (at >= a->data && at + bytes <= a->data + a->bytes)
			return true;
	}
	return false;
}
