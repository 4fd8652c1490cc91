/* cp.async: what a thread copies into shared memory while it goes on. The destination holds poison from the call until
 * the thread waits for the copy's group; the source is read at the one time or the other, as the schedule has it,
 * since a device may read it at any time in between. */
#include <stdlib.h>

#include "tests/cuda_emu/emu_priv.h"

struct emu_copy {
	unsigned char *to;
	const unsigned char *from; /* NULL: `data` holds what was read */
	u32 bytes, group;
	unsigned char data[16];
	struct emu_site site;
};

static void append(struct emu_copies *c, const struct emu_copy *copy)
{
	if (c->count == c->capacity) {
		c->capacity = c->capacity == 0 ? 32 : 2 * c->capacity;
		c->list = static_cast<struct emu_copy *>(realloc(c->list, c->capacity * sizeof(*c->list)));
		if (c->list == NULL)
			abort();
	}
	c->list[c->count++] = *copy;
}

void emu_cp_async(void *shared, const void *global, u32 bytes, bool valid, struct emu_site site)
{
	struct emu_copy copy = {static_cast<unsigned char *>(shared), NULL, bytes, emu_self->copies.group, {}, {NULL, 0}};
	bool late = emu_now->schedule->order % 2 == 0;
	emu_align(shared, bytes, "cp.async: a destination", site.file, site.line);
	if (!emu_shared_contains(&emu_now->shared, shared, bytes))
		emu_trap(cudaErrorIllegalAddress, site.file, site.line, "cp.async: the destination %p is not in shared memory",
			 shared);
	emu_align(global, bytes, "cp.async: a source", site.file, site.line);
	if (valid && late)
		copy.from = static_cast<const unsigned char *>(global);
	else if (valid)
		memcpy(copy.data, global, bytes);
	emu_touch(shared, bytes, EMU_WRITE, site);
	copy.site = site;
	memset(shared, EMU_POISON, bytes);
	append(&emu_self->copies, &copy);
}

void emu_cp_wait(u32 groups)
{
	struct emu_copies *c = &emu_self->copies;
	u32 done = 0;
	while (done < c->count && c->list[done].group + groups < c->group) {
		struct emu_copy *copy = &c->list[done++];
		emu_self->unfenced = true;
		emu_touch(copy->to, copy->bytes, EMU_WRITE, copy->site);
		memcpy(copy->to, copy->from != NULL ? copy->from : copy->data, copy->bytes);
	}
	if (done > 0) /* else there may be no list */
		memmove(c->list, c->list + done, (c->count - done) * sizeof(*c->list));
	c->count -= done;
}
