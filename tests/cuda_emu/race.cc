/* Races, in shared and in global memory: two threads touch a byte, one of them writes, and nothing orders them. It does not
 * matter in which order the schedule had them run.
 *
 * Within a block barriers order everything before them with everything after; cu_syncwarp orders lanes of its warp;
 * shuffles, votes and matrix instructions order nothing (PTX ISA, memory consistency model). Named barriers count as
 * barriers of the block, so races across them are not found.
 *
 * Blocks of a launch are ordered only by a cell in memory: one goes through a fence and changes the cell by an atomic
 * operation, the other one does so later and then goes through a fence. Which of a block's threads do so is not looked at,
 * nor what a block does behind its atomic operation. */
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <set>
#include <vector>

#include "tests/cuda_emu/emu_priv.h"

/* Who touched a byte, and when: the block's and the warp's count of barriers. */
struct emu_touch {
	u32 block_epoch; /* no two blocks have the same */
	u16 thread;
	u16 warp_epoch : 15, atomic : 1;
};

struct emu_cell {
	struct emu_touch write, read, other; /* `other`: a reader of another warp than `read`'s */
};

static bool checking; /* set before anything else is there */
static u32 first;     /* epoch of the launch that runs */
static struct {
	bool global;		/* the memory that is being touched */
	u32 epoch, ordinal;	/* the last that a block or barrier took; the last that a block took */
	std::vector<u32> owner; /* ordinals by epoch, from `first` on */
	/* Of the launch: the blocks that have changed a cell behind a fence. Of the running block: has it been through a fence,
	 * the blocks that it will see behind its next one, and those that it sees. */
	std::map<const void *, std::set<u32>> released;
	u32 running;
	bool fenced;
	std::set<u32> found, seen;
} &races = *new std::remove_reference_t<decltype(races)>();

size_t emu_cell_bytes(void)
{
	return sizeof(struct emu_cell);
}

void emu_race_check(bool on)
{
	checking = on;
}

void emu_race_begin_launch(void)
{
	first = races.epoch + 1;
	races.owner.clear();
	races.released.clear();
}

static void next_epoch(struct emu_block *b)
{
	b->epoch = ++races.epoch;
	races.owner.resize(b->epoch - first);
	races.owner.push_back(b->ordinal);
}

/* A block that began early comes and goes. */
static void is_running(const struct emu_block *b)
{
	if (races.running == b->ordinal)
		return;
	races.running = b->ordinal;
	races.fenced = false;
	races.found.clear();
	races.seen.clear();
}

void emu_race_begin_block(struct emu_block *b)
{
	if (!checking)
		return;
	b->ordinal = ++races.ordinal;
	if (b->shared.cells == NULL)
		b->shared.cells = static_cast<struct emu_cell *>(calloc(emu_shared_arena_bytes(), sizeof(struct emu_cell)));
	if (b->shared.cells == NULL)
		abort();
	next_epoch(b); /* from 1 on: cells of 0 are nobody's */
	b->barrier_site = {NULL, 0};
	for (struct emu_warp &w : b->warp)
		w.epoch = 0;
}

void emu_race_barrier(struct emu_block *b, struct emu_site site)
{
	if (checking)
		next_epoch(b);
	b->barrier_site = site;
}

void emu_fence(void)
{
	if (!checking || emu_now == NULL)
		return;
	is_running(emu_now);
	races.fenced = true;
	races.seen.insert(races.found.begin(), races.found.end());
}

static void change_cell(const struct emu_block *b, const void *cell)
{
	std::set<u32> &blocks = races.released[cell];
	is_running(b);
	races.found.insert(blocks.begin(), blocks.end());
	if (races.fenced)
		blocks.insert(b->ordinal);
}

/* Was `t` another block of this launch? */
static bool is_of_another(const struct emu_block *b, const struct emu_touch *t)
{
	return t->block_epoch >= first && races.global && races.owner[t->block_epoch - first] != b->ordinal;
}

static bool blocks_unordered(const struct emu_block *b, const struct emu_touch *t, bool atomic)
{
	if (!is_of_another(b, t) || (atomic && t->atomic))
		return false;
	is_running(b);
	return races.seen.count(races.owner[t->block_epoch - first]) == 0;
}

/* Does `t`, which was before, go without order beside an access of `thread` now? */
static inline bool unordered(const struct emu_block *b, const struct emu_touch *t, const struct emu_thread *thread, bool atomic)
{
	if (t->block_epoch != b->epoch)
		return t->block_epoch >= first && blocks_unordered(b, t, atomic);
	if (&b->thread[t->thread] == thread || (atomic && t->atomic))
		return false;
	return b->thread[t->thread].warp != thread->warp || t->warp_epoch == (b->warp[thread->warp].epoch & 0x7fff);
}

/* "byte 4 of NAME" */
static void describe(const struct emu_block *b, const unsigned char *p, char *text, size_t bytes)
{
	for (u32 i = 0; i < b->shared.count; i++) {
		const struct emu_shared_array *a = &b->shared.array[i];
		if (p >= a->data && p < a->data + a->bytes) {
			snprintf(text, bytes, "shared memory, byte %zu of %s", (size_t)(p - a->data), a->name);
			return;
		}
	}
	snprintf(text, bytes, "global memory, %p", (const void *)p);
}

[[noreturn]] static void report(const struct emu_block *b, const unsigned char *p, const struct emu_touch *t,
				const char *before, const char *now, struct emu_site site)
{
	const uint3 *other = &b->thread[t->thread].index;
	char where[200], since[200] = "before any barrier";
	describe(b, p, where, sizeof(where));
	if (is_of_another(b, t))
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "race in %s: this thread %s what another block %s, without a fence, an atomic operation and a fence "
			 "between", where, now, before);
	if (b->barrier_site.file != NULL)
		snprintf(since, sizeof(since), "after the barrier at %s:%d", b->barrier_site.file, b->barrier_site.line);
	emu_trap(cudaErrorLaunchFailure, site.file, site.line,
		 "race in %s: this thread %s what thread (%u, %u, %u) %s, both %s", where, now, other->x, other->y, other->z,
		 before, since);
}

static void touch_write(const struct emu_block *b, const unsigned char *p, struct emu_cell *c, const struct emu_touch *now,
			struct emu_site site)
{
	const char *what = now->atomic ? "changes" : "writes";
	if (unordered(b, &c->write, emu_self, now->atomic))
		report(b, p, &c->write, "wrote", what, site);
	if (unordered(b, &c->read, emu_self, now->atomic))
		report(b, p, &c->read, "read", what, site);
	if (unordered(b, &c->other, emu_self, now->atomic))
		report(b, p, &c->other, "read", what, site);
	c->write = *now;
}

static void touch_read(const struct emu_block *b, const unsigned char *p, struct emu_cell *c, const struct emu_touch *now,
		       struct emu_site site)
{
	if (unordered(b, &c->write, emu_self, now->atomic))
		report(b, p, &c->write, "wrote", "reads", site);
	if (c->read.block_epoch == b->epoch && b->thread[c->read.thread].warp != emu_self->warp)
		c->other = c->read;
	c->read = *now;
}

/* The allocation of device memory around p. Accesses stay with one for long. */
static const struct emu_cells *memory_around(const unsigned char *p)
{
	enum { KEPT = 4 };
	static struct emu_cells kept[KEPT];
	static u32 next;
	for (u32 i = 0; i < KEPT; i++) {
		if ((size_t)(p - kept[i].start) < kept[i].bytes && kept[i].frees == emu_memory_frees)
			return &kept[i];
	}
	next = (next + 1) % KEPT;
	kept[next] = emu_memory_cells(p);
	return &kept[next];
}

/* Device code that runs here touches the emulation's own memory, too: quickly told apart, where it is easy. */
static bool of_the_host(const struct emu_block *b, const unsigned char *p)
{
	return emu_fiber_is_stack(p) || (size_t)(p - (const unsigned char *)b) < sizeof(*b);
}

/* The cells of the bytes from p on, at most *bytes of them; NULL: memory that is not looked at. */
static struct emu_cell *cells_of(const struct emu_block *b, const unsigned char *p, size_t *bytes)
{
	size_t offset = (size_t)(p - b->shared.arena), all = emu_shared_arena_bytes();
	struct emu_cell *cells = b->shared.cells;
	races.global = offset >= all;
	if (offset >= all) { /* an address below wraps to a large one */
		const struct emu_cells *around = of_the_host(b, p) ? NULL : memory_around(p);
		if (around == NULL || around->bytes == 0)
			return NULL;
		offset = (size_t)(p - around->start);
		all = around->bytes;
		cells = around->cells;
	}
	if (*bytes > all - offset)
		*bytes = all - offset;
	return cells + offset;
}

void emu_read_only(const void *address, size_t bytes, const char *file, int line)
{
	const struct emu_block *b = emu_now;
	const unsigned char *p = static_cast<const unsigned char *>(address);
	if (!checking || b == NULL || b->shared.cells == NULL)
		return;
	const struct emu_cell *c = cells_of(b, p, &bytes);
	for (size_t i = 0; c != NULL && races.global && i < bytes; i++) {
		if (c[i].write.block_epoch >= first)
			emu_trap(cudaErrorLaunchFailure, file, line,
				 "%p is read as what nobody writes during the kernel, which has written it", address);
	}
}

void emu_touch(const void *address, size_t bytes, enum emu_access access, struct emu_site site)
{
	const struct emu_block *b = emu_now;
	const unsigned char *p = static_cast<const unsigned char *>(address);
	if (!checking || b == NULL || b->shared.cells == NULL)
		return;
	struct emu_cell *c = cells_of(b, p, &bytes);
	struct emu_touch now = {b->epoch, (u16)(emu_self - b->thread), (u16)(b->warp[emu_self->warp].epoch & 0x7fff),
				access == EMU_ATOMIC_ACCESS};
	if (c != NULL && now.atomic && races.global)
		change_cell(b, p);
	for (size_t i = 0; c != NULL && i < bytes; i++) {
		if (access == EMU_READ)
			touch_read(b, p + i, c + i, &now, site);
		else
			touch_write(b, p + i, c + i, &now, site);
	}
}
