/* Sharing out the panels of a matrix: every thread has neighbouring ones of its own and reads them in order, as one
 * stream of memory; one that is done takes from the end of who has most left. Lives on the stack of a product. */
#ifndef TERCET_KERNELS_CPU_PANELS_PRIV_H
#define TERCET_KERNELS_CPU_PANELS_PRIV_H

#include <stdatomic.h>

#include "kernels/kern_priv.h"

enum { PANELS_SHARES_MAX = 64 };

struct panels {
	u32 shares, at_once; /* at_once: panels that are taken at a time */
	struct {
		_Alignas(64) _Atomic u64 left; /* end << 32 | first */
	} of[PANELS_SHARES_MAX];
};

/* Panels of a share, the same for all but the last ones. */
static inline u32 panels_a_share(u32 panels, u32 threads)
{
	return kern_ceil(panels, kern_min(threads, PANELS_SHARES_MAX));
}

static inline void panels_init(struct panels *p, u32 panels, u32 threads, u32 at_once)
{
	u32 each = panels_a_share(panels, threads);
	p->shares = kern_ceil(panels, each);
	p->at_once = at_once;
	for (u32 i = 0; i < p->shares; i++)
		atomic_init(&p->of[i].left, (u64)kern_min((i + 1) * each, panels) << 32 | i * each);
}

static inline u32 panels_left(u64 left)
{
	return (u32)(left >> 32) - (u32)left;
}

/* Takes up to at_once panels from a share's front or, for another thread's, from its end. */
static inline bool panels_take_from(struct panels *p, u32 share, bool front, u32 *first, u32 *end)
{
	u64 seen = atomic_load_explicit(&p->of[share].left, memory_order_relaxed), rest;
	do {
		u32 count = kern_min(panels_left(seen), p->at_once);
		if (count == 0)
			return false;
		*first = front ? (u32)seen : (u32)(seen >> 32) - count;
		*end = *first + count;
		rest = front ? seen + count : seen - ((u64)count << 32);
	} while (!atomic_compare_exchange_weak_explicit(&p->of[share].left, &seen, rest, memory_order_relaxed,
							memory_order_relaxed));
	return true;
}

/* Panels [first, end) for this thread; false when all are taken. */
static inline bool panels_take(struct panels *p, u32 thread, u32 *first, u32 *end)
{
	if (panels_take_from(p, thread % p->shares, true, first, end))
		return true;
	for (;;) {
		u32 most = 0, victim = 0;
		for (u32 i = 0; i < p->shares; i++) {
			u32 left = panels_left(atomic_load_explicit(&p->of[i].left, memory_order_relaxed));
			if (left > most) {
				most = left;
				victim = i;
			}
		}
		if (most == 0)
			return false;
		if (panels_take_from(p, victim, false, first, end))
			return true;
	}
}

#endif
