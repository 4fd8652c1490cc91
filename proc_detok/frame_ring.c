/* Owns the memory of one client's chunks; runs in the detokenizer. Grows by doubling until the client's load
 * is steady and then allocates no more. Never decides what may be forgotten. */
#include "proc_detok/frame_ring.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum { CAPACITY_MIN = 16 * 1024, PLACES_MIN = 64 };

void frame_ring_init(struct frame_ring *r, u64 next)
{
	*r = (struct frame_ring){.first = next, .next = next};
}

void frame_ring_fini(struct frame_ring *r)
{
	free(r->data);
	free(r->places);
	*r = (struct frame_ring){0};
}

static struct frame_place *place_of(const struct frame_ring *r, u64 number)
{
	return &r->places[number & (r->place_capacity - 1)];
}

static bool places_grow(struct frame_ring *r)
{
	u32 capacity = r->place_capacity ? 2 * r->place_capacity : PLACES_MIN;
	struct frame_place *places = malloc(capacity * sizeof(*places));
	if (!places)
		return false;
	for (u64 i = r->first; i < r->next; i++)
		places[i & (capacity - 1)] = *place_of(r, i);
	free(r->places);
	r->places = places;
	r->place_capacity = capacity;
	return true;
}

/* Moves everything to the beginning of a larger block. */
static bool data_grow(struct frame_ring *r, u32 bytes)
{
	u64 capacity = r->capacity ? r->capacity : CAPACITY_MIN;
	while (capacity < r->bytes + bytes || capacity == r->capacity)
		capacity *= 2;
	char *data = capacity <= UINT32_MAX ? malloc(capacity) : NULL;
	if (!data)
		return false;
	u32 at = 0;
	for (u64 i = r->first; i < r->next; i++) {
		struct frame_place *p = place_of(r, i);
		memcpy(data + at, r->data + p->offset, p->bytes);
		p->offset = at;
		at += p->bytes;
	}
	free(r->data);
	r->data = data;
	r->capacity = (u32)capacity;
	r->head = 0;
	r->tail = at;
	return true;
}

/* Where `bytes` fit in one piece; false: nowhere. */
static bool room_find(struct frame_ring *r, u32 bytes)
{
	if (r->first == r->next) {
		r->head = r->tail = 0;
		return bytes <= r->capacity;
	}
	if (r->tail > r->head) {
		if (bytes <= r->capacity - r->tail)
			return true;
		if (bytes >= r->head)
			return false;
		r->tail = 0;
		return true;
	}
	/* a full ring must not look like an empty one */
	return bytes < r->head - r->tail;
}

bool frame_ring_push(struct frame_ring *r, const char *frame, u32 bytes, u64 now_ns)
{
	ASSERT(bytes > 0);
	if (r->next - r->first == r->place_capacity && !places_grow(r))
		return false;
	if (!room_find(r, bytes) && !data_grow(r, bytes))
		return false;
	memcpy(r->data + r->tail, frame, bytes);
	*place_of(r, r->next) = (struct frame_place){.made_ns = now_ns, .offset = r->tail, .bytes = bytes};
	r->tail += bytes;
	r->bytes += bytes;
	r->next++;
	return true;
}

char *frame_ring_get(struct frame_ring *r, u64 number, u32 *bytes, u64 *made_ns)
{
	ASSERT(number >= r->first && number < r->next);
	const struct frame_place *p = place_of(r, number);
	if (bytes)
		*bytes = p->bytes;
	if (made_ns)
		*made_ns = p->made_ns;
	return r->data + p->offset;
}

void frame_ring_release(struct frame_ring *r, u64 number)
{
	while (r->first < number && r->first < r->next) {
		r->bytes -= place_of(r, r->first)->bytes;
		r->first++;
	}
	if (r->first < r->next)
		r->head = place_of(r, r->first)->offset;
}
