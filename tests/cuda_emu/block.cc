/* Runs the blocks of a launch: which thread goes on next, and when a block is done, stuck or stopped. A thread runs
 * until it has to wait for others; then the next one is entered directly. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/emu_priv.h"

enum { WAIT_GRID = -2 }; /* as the barrier that a thread waits for */

struct emu_thread *emu_self;
struct emu_place emu_place;
struct emu_block *emu_now;

/* ---------------------------------------------------------------- who is next */

static u32 lowest(u32 set)
{
	return (u32)__builtin_ctz(set);
}

static u32 highest(u32 set)
{
	return 31 - (u32)__builtin_clz(set);
}

/* One of a set of lanes or warps, as the schedule likes them; those above `after` come first. */
static u32 choose(struct emu_schedule *s, u32 set, u32 after)
{
	u32 above = after >= 31 ? 0 : set & ~0u << (after + 1), below = after > 31 ? set : set & ((1u << after) - 1);
	u32 even = set & 0x55555555u, turn;
	switch (s->order) {
	case EMU_REVERSE:
		return highest(below != 0 ? below : set);
	case EMU_STRIDED:
		return even != 0 ? lowest(even) : highest(set);
	case EMU_RANDOM:
		turn = emu_random_below(&s->random, 32);
		return lowest((set >> turn) != 0 ? set >> turn << turn : set);
	case EMU_FORWARD:
	case EMU_AHEAD:
		break;
	}
	return lowest(above != 0 ? above : set);
}

static u32 next_warp(struct emu_block *b)
{
	u32 now = b->warp_now;
	if (b->schedule->order == EMU_AHEAD && (b->ready_warps >> b->favourite & 1) != 0)
		return b->favourite;
	if (b->schedule->order != EMU_RANDOM && now < b->warps && (b->ready_warps >> now & 1) != 0)
		return now; /* a warp goes on until all its lanes wait */
	return choose(b->schedule, b->ready_warps, now);
}

/* Takes the next thread off the ready ones, or gives NULL. */
EMU_PLAIN static struct emu_thread *next_thread(struct emu_block *b)
{
	const bool forward = b->schedule->order == EMU_FORWARD;
	struct emu_warp *w;
	u32 lane;
	if (b->ready_warps == 0)
		return NULL;
	/* Of most switches by far: forward, and lanes of this warp are left. */
	if (!forward || b->warp_now >= b->warps || b->warp[b->warp_now].ready == 0)
		b->warp_now = next_warp(b);
	w = &b->warp[b->warp_now];
	lane = forward ? lowest(w->ready) : choose(b->schedule, w->ready, 32);
	w->ready &= ~(1u << lane);
	if (w->ready == 0)
		b->ready_warps &= ~(1u << b->warp_now);
	return &b->thread[b->warp_now * 32 + lane];
}

void emu_make_ready(struct emu_block *b, u32 warp, u32 lanes)
{
	b->warp[warp].ready |= lanes;
	if (b->warp[warp].ready != 0)
		b->ready_warps |= 1u << warp;
}

/* ---------------------------------------------------------------- threads on fibers */

static void thread_main(void);

/* Suspends the running fiber and goes on with `t`, or with the host. */
static void enter(struct emu_fiber *from, struct emu_thread *t)
{
	if (t == NULL) {
		emu_fiber_switch(from, emu_fiber_host());
		return;
	}
	emu_counted.switches++;
	if (t->fiber == NULL)
		t->fiber = emu_fiber_take(thread_main);
	emu_self = t;
	emu_fiber_switch(from, t->fiber);
}

static bool waits_for_grid(const struct emu_block *b)
{
	for (u32 i = 0; i < b->threads; i++) {
		const struct emu_thread *t = &b->thread[i];
		if (!t->finished && t->fiber != NULL && t->wait.barrier == WAIT_GRID)
			return true;
	}
	return false;
}

static void leave_to_host(struct emu_block *b, struct emu_fiber *from)
{
	if (b->state == EMU_RUNNING && b->alive > 0 && !b->may_go_on && waits_for_grid(b))
		b->state = EMU_EARLY;
	else if (b->state == EMU_RUNNING && b->alive > 0) {
		b->error = cudaErrorLaunchFailure;
		b->state = EMU_STOPPED;
		emu_report_deadlock(b);
	} else if (b->state == EMU_RUNNING)
		b->state = EMU_DONE;
	enter(from, NULL);
}

static void thread_end(struct emu_block *b, struct emu_thread *t)
{
	t->finished = true;
	b->alive--;
	b->warp[t->warp].alive &= ~(1u << t->lane);
	emu_warp_lane_gone(b, t->warp);
	emu_barrier_thread_gone(b);
}

/* A fiber runs one thread after another; a thread that has not begun yet needs no stack of its own. */
static void thread_main(void)
{
	for (;;) {
		struct emu_block *b = emu_now;
		struct emu_fiber *own = emu_self->fiber;
		struct emu_thread *next;
		b->launch->thread();
		thread_end(b, emu_self);
		next = next_thread(b);
		if (next != NULL && next->fiber == NULL) {
			next->fiber = own;
			emu_self = next;
			continue;
		}
		emu_fiber_give(own);
		if (next == NULL)
			leave_to_host(b, own);
		else
			enter(own, next);
	}
}

EMU_PLAIN void emu_wait(const char *what, struct emu_site site, u32 mask, i32 barrier)
{
	struct emu_block *b = emu_now;
	struct emu_thread *t = emu_self, *next;
	t->wait.what = what;
	t->wait.site = site;
	t->wait.mask = mask;
	t->wait.barrier = barrier;
	next = next_thread(b);
	if (next == t)
		emu_self = t;
	else if (next == NULL)
		leave_to_host(b, t->fiber);
	else
		enter(t->fiber, next);
}

void emu_maybe_yield(void)
{
	struct emu_block *b = emu_now;
	if (b->schedule->order != EMU_RANDOM || emu_random_below(&b->schedule->random, 4) != 0)
		return;
	emu_make_ready(b, emu_self->warp, 1u << emu_self->lane);
	emu_wait("its turn", {"", 0}, 0, -1);
}

void emu_pause(struct emu_site site)
{
	struct emu_block *b = emu_now;
	u32 others = b->ready_warps;
	if (others == 0)
		emu_trap(cudaErrorLaunchTimeout, site.file, site.line, "cu_pause: nobody is left to be waited for");
	/* Another warp first, whatever the schedule says: this one has nothing to do. */
	emu_make_ready(b, emu_self->warp, 1u << emu_self->lane);
	b->warp_now = (b->warp_now + 1) % b->warps;
	emu_wait("cu_pause", site, 0, -1);
}

/* ---------------------------------------------------------------- blocks */

static void begin_block(struct emu_block *b, uint3 index)
{
	b->place.block_index = index;
	b->alive = b->threads;
	b->ready_warps = b->warps == 32 ? ~0u : (1u << b->warps) - 1;
	b->favourite = emu_random_below(&b->schedule->random, b->warps);
	b->warp_now = EMU_WARPS_MAX; /* none yet */
	b->state = EMU_RUNNING;
	b->error = cudaSuccess;
	for (u32 w = 0; w < b->warps; w++) {
		b->warp[w].alive = b->warp[w].ready = ~0u;
		b->warp[w].meetings = 0;
		b->warp[w].products.count = b->warp[w].products.group = 0;
		b->warp[w].products.fenced = false;
		for (struct emu_meeting &m : b->warp[w].meeting)
			m.mask = m.arrived = 0;
	}
	for (struct emu_barrier &r : b->barrier) {
		r.arrived = r.expected = r.votes = 0;
		r.unfenced = false;
		memset(r.waiting, 0, b->warps * sizeof(*r.waiting));
	}
	memset(b->phase, 0, sizeof(b->phase));
	for (u32 i = 0; i < b->threads; i++) {
		struct emu_thread *t = &b->thread[i];
		t->fiber = NULL;
		t->unfenced = t->tainted = false;
		t->copies.count = t->copies.group = 0;
		t->wait.barrier = -1;
		t->finished = false;
	}
	emu_shared_poison(&b->shared);
	emu_race_begin_block(b);
}

static void begin_launch(struct emu_block *b, const struct emu_launch *l, struct emu_schedule *schedule)
{
	b->launch = l;
	b->schedule = schedule;
	b->threads = l->block.x * l->block.y * l->block.z;
	b->warps = b->threads / 32;
	b->place.block_dim = l->block;
	b->place.grid_dim = l->grid;
	for (u32 i = 0; i < b->threads; i++) {
		struct emu_thread *t = &b->thread[i];
		t->index = {i % l->block.x, i / l->block.x % l->block.y, i / (l->block.x * l->block.y)};
		t->lane = i % 32;
		t->warp = i / 32;
		t->exchange = &b->warp[i / 32].lane[i % 32];
	}
	emu_shared_begin(&b->shared, l->shared_bytes);
}

/* Goes on with the block until it is done, stopped or waits for the kernel before it. */
static void go_on(struct emu_block *b)
{
	struct emu_block *outer = emu_now;
	struct emu_thread *first = next_thread(b);
	const char *overrun;
	emu_now = b;
	emu_place = b->place;
	enter(emu_fiber_host(), first);
	emu_now = outer;
	emu_self = NULL;
	if (b->state == EMU_STOPPED)
		emu_fiber_reset();
	overrun = b->state == EMU_DONE ? emu_shared_overrun(&b->shared) : NULL;
	if (overrun != NULL) {
		char text[200];
		snprintf(text, sizeof(text), "cuda_emu: kernel %s, block (%u, %u, %u) has written beside shared memory: %s\n",
			 b->launch->name, b->place.block_index.x, b->place.block_index.y, b->place.block_index.z,
			 overrun);
		emu_report_set(text);
		b->state = EMU_STOPPED;
		b->error = cudaErrorIllegalAddress;
	}
}

static uint3 index_of(const struct emu_launch *l, u64 i)
{
	return {(u32)(i % l->grid.x), (u32)(i / l->grid.x % l->grid.y), (u32)(i / l->grid.x / l->grid.y)};
}

/* The blocks that run now and that began early; their stacks and shared memory are used again. */
static struct {
	struct emu_block now, early;
	bool waited; /* any block of the launch in cu_grid_wait */
} blocks;

struct emu_block *emu_run_early(const struct emu_launch *launch, struct emu_schedule *schedule, cudaError_t *error)
{
	struct emu_block *b = &blocks.early;
	u64 count = (u64)launch->grid.x * launch->grid.y * launch->grid.z;
	emu_faults_catch();
	begin_launch(b, launch, schedule);
	b->number = emu_random_next(&schedule->random) % count;
	b->may_go_on = false;
	begin_block(b, index_of(launch, b->number));
	go_on(b);
	*error = b->state == EMU_STOPPED ? b->error : cudaSuccess;
	return b->state == EMU_STOPPED ? NULL : b;
}

static cudaError_t finish_early(struct emu_block *b)
{
	b->may_go_on = true;
	if (b->state != EMU_EARLY)
		return cudaSuccess; /* it had ended without waiting */
	for (u32 i = 0; i < b->threads; i++) {
		struct emu_thread *t = &b->thread[i];
		if (!t->finished && t->fiber != NULL && t->wait.barrier == WAIT_GRID) {
			t->wait.barrier = -1;
			emu_make_ready(b, t->warp, 1u << t->lane);
		}
	}
	b->state = EMU_RUNNING;
	go_on(b);
	return b->state == EMU_STOPPED ? b->error : cudaSuccess;
}

static cudaError_t check_waited(const struct emu_launch *launch)
{
	char text[300];
	if (!launch->dependent || blocks.waited)
		return cudaSuccess;
	snprintf(text, sizeof(text),
		 "cuda_emu: kernel %s was launched as dependent and no thread of it has called cu_grid_wait\n", launch->name);
	emu_report_set(text);
	return cudaErrorLaunchFailure;
}

cudaError_t emu_run(const struct emu_launch *launch, struct emu_schedule *schedule, struct emu_block *early)
{
	struct emu_block *b = &blocks.now;
	u64 count = (u64)launch->grid.x * launch->grid.y * launch->grid.z;
	u64 first = schedule->order == EMU_RANDOM ? emu_random_next(&schedule->random) % count : 0;
	cudaError_t e = cudaSuccess;
	emu_faults_catch();
	begin_launch(b, launch, schedule);
	emu_race_begin_launch();
	b->may_go_on = true;
	blocks.waited = early != NULL && early->state == EMU_EARLY;
	for (u64 i = 0; i < count && e == cudaSuccess; i++) {
		u64 n = (first + i) % count;
		b->number = schedule->order == EMU_REVERSE ? count - 1 - n : n;
		if (early != NULL && early->number == b->number) {
			e = finish_early(early);
			continue;
		}
		begin_block(b, index_of(launch, b->number));
		go_on(b);
		e = b->state == EMU_STOPPED ? b->error : cudaSuccess;
	}
	emu_counted.launches++;
	emu_counted.blocks += count;
	return e == cudaSuccess ? check_waited(launch) : e;
}

void *emu_shared_dynamic(void)
{
	return emu_now->shared.array[0].data;
}

void *emu_shared_static(const void *key, const char *name, size_t bytes)
{
	void *p = emu_shared_array(&emu_now->shared, key, name, bytes);
	if (p == NULL)
		emu_trap(cudaErrorLaunchOutOfResources, name, 0,
			 "static shared memory: %zu more bytes go beyond %d KiB, or beyond %d KiB with the dynamic one", bytes,
			 EMU_SHARED_STATIC_MAX >> 10, EMU_SHARED_MAX >> 10);
	return p;
}

void emu_grid_wait(struct emu_site site)
{
	blocks.waited = true;
	if (!emu_now->may_go_on)
		emu_wait("cu_grid_wait", site, 0, WAIT_GRID);
}

void emu_trap(cudaError_t error, const char *file, int line, const char *fmt, ...)
{
	struct emu_block *b = emu_now;
	const uint3 *t = &emu_self->index, *i = &b->place.block_index;
	char text[1000];
	va_list args;
	int n = snprintf(text, sizeof(text), "cuda_emu: kernel %s, block (%u, %u, %u), thread (%u, %u, %u), %s:%d:\n  ",
			 b->launch->name, i->x, i->y, i->z, t->x, t->y, t->z, file, line);
	va_start(args, fmt);
	n += vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, args);
	va_end(args);
	snprintf(text + (n < (int)sizeof(text) - 2 ? n : (int)sizeof(text) - 2), 2, "\n");
	emu_report_set(text);
	b->error = error;
	b->state = EMU_STOPPED;
	enter(emu_self->fiber, NULL);
	abort();
}
