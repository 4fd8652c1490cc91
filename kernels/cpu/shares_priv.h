/* Sharing out units of work that follow each other in memory, panels of a matrix or heads of sequences: every thread has
 * neighbouring ones of its own and takes them in order, so that it knows which one comes next; one that is done takes
 * from the end of who has most left. Lives on the stack of an op. */
#ifndef TERCET_KERNELS_CPU_SHARES_PRIV_H
#define TERCET_KERNELS_CPU_SHARES_PRIV_H

#include <stdatomic.h>

#include "kernels/kern_priv.h"

enum { SHARES_MAX = 64 };

struct shares {
	u32 count, at_once; /* at_once: units that are taken at a time */
	u32 keep; /* a share's last units that are its thread's alone once it has begun; before, it may be asleep */
	struct {
		_Alignas(64) _Atomic u64 left; /* end << 32 | first */
		u32 first; /* at the beginning */
	} of[SHARES_MAX];
};

/* Units of a share, the same for all but the last ones. */
static inline u32 shares_units(u32 units, u32 threads)
{
	return kern_ceil(units, kern_min(threads, SHARES_MAX));
}

static inline void shares_init_one(struct shares *p, u32 share, u32 first, u32 end)
{
	p->of[share].first = first;
	atomic_init(&p->of[share].left, (u64)end << 32 | first);
}

/* `each`: units of a share. */
static inline void shares_init_each(struct shares *p, u32 units, u32 each, u32 at_once)
{
	p->count = kern_ceil(units, each);
	p->at_once = at_once;
	p->keep = 0;
	for (u32 i = 0; i < p->count; i++)
		shares_init_one(p, i, i * each, kern_min((i + 1) * each, units));
}

/* Shares that differ by one unit at most, so that keeping units makes nobody wait for more than that. */
static inline void shares_init_even(struct shares *p, u32 units, u32 threads, u32 at_once, u32 keep)
{
	p->count = kern_min(kern_min(threads, units), SHARES_MAX);
	p->at_once = at_once;
	p->keep = keep;
	for (u32 i = 0; i < p->count; i++)
		shares_init_one(p, i, (u32)((u64)units * i / p->count), (u32)((u64)units * (i + 1) / p->count));
}

static inline void shares_init(struct shares *p, u32 units, u32 threads, u32 at_once)
{
	shares_init_each(p, units, shares_units(units, threads), at_once);
}

static inline u32 shares_left(u64 left)
{
	return (u32)(left >> 32) - (u32)left;
}

/* How many units of a share others may take, of which these are left. */
static inline u32 shares_free(const struct shares *p, u32 share, u64 seen)
{
	u32 left = shares_left(seen), keep = (u32)seen == p->of[share].first ? 0 : p->keep;
	return left > keep ? left - keep : 0;
}

/* Takes up to at_once units from a share's front or, for another thread's, from its end; of few, half: who is done waits
 * for a short piece only. Of a single share nobody waits. */
static inline bool shares_take_from(struct shares *p, u32 share, bool front, u32 *first, u32 *end)
{
	u64 seen = atomic_load_explicit(&p->of[share].left, memory_order_relaxed), rest;
	do {
		const u32 free = front ? shares_left(seen) : shares_free(p, share, seen);
		const u32 count = kern_min(kern_ceil(free, p->count > 1 ? 2 : 1), p->at_once);
		if (count == 0)
			return false;
		*first = front ? (u32)seen : (u32)(seen >> 32) - count;
		*end = *first + count;
		rest = front ? seen + count : seen - ((u64)count << 32);
	} while (!atomic_compare_exchange_weak_explicit(&p->of[share].left, &seen, rest, memory_order_relaxed,
							memory_order_relaxed));
	return true;
}

/* Units [first, end) for this thread; false when all are taken, or kept. */
static inline bool shares_take(struct shares *p, u32 thread, u32 *first, u32 *end)
{
	if (shares_take_from(p, thread % p->count, true, first, end))
		return true;
	for (;;) {
		u32 most = 0, victim = 0;
		for (u32 i = 0; i < p->count; i++) {
			u32 free = shares_free(p, i, atomic_load_explicit(&p->of[i].left, memory_order_relaxed));
			if (free > most) {
				most = free;
				victim = i;
			}
		}
		if (most == 0)
			return false;
		if (shares_take_from(p, victim, false, first, end))
			return true;
	}
}

/* kern_parallel, but every thread has neighbouring tasks, and of as many tasks always the same ones: rows that one op left in a
 * core's cache are that core's in the next. Where cores have no cache in common another one waits for every line, and the owner of what
 * another has taken waits for these lines again in the next op: so a thread that has begun keeps its last tasks, where they are short. */
struct near_run {
	struct shares shares;
	kern_task_fn fn;
	void *arg;
};

enum {
	NEAR_ROWS = 64, /* a thread has at least, where products give it rows of its own */
	NEAR_KEEP = 3,	/* tasks of few rows, some microseconds each */
};

static inline void near_tasks(void *arg, u32 task, u32 thread)
{
	struct near_run *n = arg;
	u32 first, end;
	(void)task;
	while (shares_take(&n->shares, thread, &first, &end))
		for (; first < end; first++)
			n->fn(n->arg, first, thread);
}

/* Of `rows` rows. */
static inline void parallel_near(struct kern_ctx *ctx, u32 rows, u32 tasks, kern_task_fn fn, void *arg)
{
	struct near_run n = {.fn = fn, .arg = arg};
	u32 threads = kern_thread_count(ctx);
	if (threads == 1 || tasks <= 1) {
		kern_parallel(ctx, tasks, fn, arg);
		return;
	}
	shares_init_even(&n.shares, tasks, threads, 1, rows / threads >= NEAR_ROWS ? NEAR_KEEP : 0);
	kern_parallel(ctx, n.shares.count, near_tasks, &n);
}

/* Where the units end that the thread takes after those up to `end`, which it has just taken, in their order. */
static inline u32 shares_run_end(const struct shares *p, u32 thread, u32 end)
{
	u64 left = atomic_load_explicit(&p->of[thread % p->count].left, memory_order_relaxed);
	return (u32)left == end ? (u32)(left >> 32) : end;
}

/* The unit that this thread takes next unless another is faster; false: none of its own. */
static inline bool shares_next(const struct shares *p, u32 thread, u32 *next)
{
	u64 left = atomic_load_explicit(&p->of[thread % p->count].left, memory_order_relaxed);
	*next = (u32)left;
	return shares_left(left) > 0;
}

#endif
