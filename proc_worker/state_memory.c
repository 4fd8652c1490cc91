/* Owns the memory of recurrent layers' states. Runs in the worker. Never decides whose a slot is: it is the row's of the batch. */
#include "proc_worker/state_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/region.h"

enum { FLOATS_A_LINE = 16 };

static size_t round_up(size_t floats)
{
	return (floats + FLOATS_A_LINE - 1) / FLOATS_A_LINE * FLOATS_A_LINE;
}

enum err state_memory_lay_out(struct state_memory *s, const size_t *floats, u32 layers, u32 slots, struct err_msg *em)
{
	*s = (struct state_memory){0};
	for (u32 i = 0; i < layers; i++)
		s->stride += round_up(floats[i]);
	if (s->stride == 0)
		return ERR_OK;
	s->offsets = calloc((size_t)layers + 1, sizeof(*s->offsets));
	if (!s->offsets) {
		*s = (struct state_memory){0};
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	}
	for (u32 i = 1; i <= layers; i++)
		s->offsets[i] = s->offsets[i - 1] + round_up(floats[i - 1]);
	s->slots = slots;
	return ERR_OK;
}

enum err state_memory_init(struct state_memory *s, const size_t *floats, u32 layers, u32 slots, struct err_msg *em)
{
	enum err e = state_memory_lay_out(s, floats, layers, slots, em);

	if (e || s->stride == 0)
		return e;
	const size_t bytes = s->stride * slots * sizeof(float);
	s->data = region_reserve(bytes);
	if (!s->data) {
		state_memory_fini(s);
		return region_refuse(em, "cannot reserve %zu bytes for the states of %u sequences; lower --max-num-seqs", bytes, slots);
	}
	s->memory_bytes = bytes;
	madvise(s->data, s->memory_bytes, MADV_HUGEPAGE);
	return ERR_OK;
}

void state_memory_fini(struct state_memory *s)
{
	if (s->data)
		region_release(s->data, s->memory_bytes);
	free(s->offsets);
	*s = (struct state_memory){0};
}

void state_memory_copy(const struct state_memory *s, u32 from, u32 to)
{
	ASSERT(from < s->slots && to < s->slots);
	memcpy(s->data + to * s->stride, s->data + from * s->stride, s->stride * sizeof(float));
}

void state_memory_copy_layer(const struct state_memory *s, u32 layer, u32 from, u32 to)
{
	size_t first = s->offsets[layer];

	ASSERT(from < s->slots && to < s->slots);
	memcpy(s->data + to * s->stride + first, s->data + from * s->stride + first, (s->offsets[layer + 1] - first) * sizeof(float));
}
