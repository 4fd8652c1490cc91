/* Races in shared memory: two threads touch a byte, one of them writes, and no barrier lies between. It does not matter in
 * which order the schedule had them run. Barriers of the block order everything before them with everything after;
 * cu_syncwarp orders lanes of its warp; shuffles, votes and matrix instructions order nothing (PTX ISA, memory
 * consistency model). Named barriers count as barriers of the block, so races across them are not found. */
#include <stdlib.h>

#include "tests/cuda_emu/emu_priv.h"


/* Who touched a byte, and when: the block's and the warp's count of barriers. */
struct emu_touch {
	u32 block_epoch, warp_epoch;
	u16 thread, atomic;
};

struct emu_cell {
	struct emu_touch write, read, other; /* `other`: a reader of another warp than `read`'s */
};

static bool checking;

void emu_race_check(bool on)
{
	checking = on;
}

void emu_race_begin_block(struct emu_block *b)
{
	if (!checking)
		return;
	if (b->shared.cells == NULL)
		b->shared.cells = static_cast<struct emu_cell *>(calloc(emu_shared_arena_bytes(), sizeof(struct emu_cell)));
	if (b->shared.cells == NULL)
		abort();
	b->epoch++; /* begins at 1: cells of 0 are nobody's */
	b->barrier_site = {NULL, 0};
	for (struct emu_warp &w : b->warp)
		w.epoch = 0;
}

void emu_race_barrier(struct emu_block *b, struct emu_site site)
{
	b->epoch++;
	b->barrier_site = site;
}

/* Does `t`, which was before, go without order beside an access of `thread` now? */
static bool unordered(const struct emu_block *b, const struct emu_touch *t, const struct emu_thread *thread, bool atomic)
{
	if (t->block_epoch != b->epoch || &b->thread[t->thread] == thread || (atomic && t->atomic))
		return false;
	return b->thread[t->thread].warp != thread->warp || t->warp_epoch == b->warp[thread->warp].epoch;
}

[[noreturn]] static void report(const struct emu_block *b, size_t offset, const struct emu_touch *t, const char *before,
				const char *now, struct emu_site site)
{
	const uint3 *other = &b->thread[t->thread].index;
	const char *name = "?";
	size_t at = 0;
	for (u32 i = 0; i < b->shared.count; i++) {
		const struct emu_shared_array *a = &b->shared.array[i];
		size_t first = (size_t)(a->data - b->shared.arena);
		if (offset >= first && offset < first + a->bytes) {
			name = a->name;
			at = offset - first;
		}
	}
	if (b->barrier_site.file != NULL)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "race in shared memory, byte %zu of %s: this thread %s what thread (%u, %u, %u) %s, both after the barrier at "
			 "%s:%d",
			 at, name, now, other->x, other->y, other->z, before, b->barrier_site.file, b->barrier_site.line);
	emu_trap(cudaErrorLaunchFailure, site.file, site.line,
		 "race in shared memory, byte %zu of %s: this thread %s what thread (%u, %u, %u) %s, both before any barrier", at,
		 name, now, other->x, other->y, other->z, before);
}

static void touch_write(const struct emu_block *b, size_t offset, const struct emu_touch *now, struct emu_site site)
{
	struct emu_cell *c = &b->shared.cells[offset];
	const char *what = now->atomic ? "changes" : "writes";
	if (unordered(b, &c->write, emu_self, now->atomic))
		report(b, offset, &c->write, "wrote", what, site);
	if (unordered(b, &c->read, emu_self, now->atomic))
		report(b, offset, &c->read, "read", what, site);
	if (unordered(b, &c->other, emu_self, now->atomic))
		report(b, offset, &c->other, "read", what, site);
	c->write = *now;
}

static void touch_read(const struct emu_block *b, size_t offset, const struct emu_touch *now, struct emu_site site)
{
	struct emu_cell *c = &b->shared.cells[offset];
	if (unordered(b, &c->write, emu_self, now->atomic))
		report(b, offset, &c->write, "wrote", "reads", site);
	if (c->read.block_epoch == b->epoch && b->thread[c->read.thread].warp != emu_self->warp)
		c->other = c->read;
	c->read = *now;
}

void emu_touch(const void *p, size_t bytes, enum emu_access access, struct emu_site site)
{
	const struct emu_block *b = emu_now;
	if (!checking || b == NULL || b->shared.cells == NULL)
		return;
	size_t offset = (size_t)(static_cast<const unsigned char *>(p) - b->shared.arena);
	if (offset >= emu_shared_arena_bytes()) /* an address below wraps to a large one */
		return;
	struct emu_touch now = {b->epoch, b->warp[emu_self->warp].epoch, (u16)(emu_self - b->thread),
				access == EMU_ATOMIC_ACCESS};
	for (size_t i = offset; i < offset + bytes && i < emu_shared_arena_bytes(); i++) {
		if (access == EMU_READ)
			touch_read(b, i, &now, site);
		else
			touch_write(b, i, &now, site);
	}
}
