/* The edges of a tile of a matrix product: where its sums begin and where they go. For the files that compute
 * tiles, one object per instruction set. */
#ifndef TERCET_KERNELS_CPU_MATMUL_TILE_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_TILE_PRIV_H

#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

/* Columns of the tile's v-th vector that exist. */
static ALWAYS_INLINE u32 tile_columns_of(const struct matmul_tile *t, u32 v)
{
	u32 from = v * VEC_LANES;
	return t->columns <= from ? 0 : kern_min(t->columns - from, VEC_LANES);
}

static ALWAYS_INLINE vec tile_first_sum(const struct matmul_tile *t, u32 r, u32 v)
{
	u32 n = tile_columns_of(t, v);
	vec sum = t->resume ? vec_load_n(t->out + r * t->out_stride + v * VEC_LANES, n) : vec_zero();
	return t->bias ? vec_add(sum, vec_load_n(t->bias + v * VEC_LANES, n)) : sum;
}

static ALWAYS_INLINE void tile_store_sum(const struct matmul_tile *t, u32 r, u32 v, vec sum)
{
	u32 n = tile_columns_of(t, v);
	float *out = t->out + r * t->out_stride + v * VEC_LANES;
	if (n == VEC_LANES)
		vec_store(out, sum);
	else
		vec_store_n(out, sum, n);
}

/* matmul_kernel.pack of inputs that stay as they are, one a unit. */
static inline void tile_pack_floats(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	float *units = (float *)(void *)to + (size_t)first * rows + r;
	(void)j;
	if (rows == 1)
		memcpy(units, x + first, (end - first) * sizeof(float));
	else
		for (u32 k = first; k < end; k++, units += rows)
			*units = x[k];
}

/* A tile of two panels as two of one: the i-th. */
static ALWAYS_INLINE struct matmul_tile tile_of_pair(const struct matmul_tile *t, u32 i)
{
	struct matmul_tile one = *t;
	one.weights += i * t->panel_bytes;
	one.out += i * t->panel_columns;
	one.columns -= i * t->panel_columns;
	if (one.bias)
		one.bias += i * t->panel_columns;
	return one;
}

/* Asks for what follows in the stream that `at` is in, where the processor needs it: see matmul_tile. */
static ALWAYS_INLINE void tile_prefetch_near(const struct matmul_tile *t, const char *at)
{
	if (t->near_bytes == 0)
		return;
	at += t->near_bytes;
	if (t->prefetch_far == MATMUL_FAR) {
		const char *near = at - t->near_bytes / 2; /* once more: see MATMUL_TWICE_BYTES */
		_mm_prefetch(at, _MM_HINT_T1);
		_mm_prefetch(at + 64, _MM_HINT_T1);
		_mm_prefetch(near, _MM_HINT_T0);
		_mm_prefetch(near + 64, _MM_HINT_T0);
	} else {
		_mm_prefetch(at, _MM_HINT_T0);
		_mm_prefetch(at + 64, _MM_HINT_T0);
	}
}

/* What tiles ask for where each number of rows has code of its own: every line; every line in an order of its own, where the tile has a
 * prefetch_base; nothing, for even asking for a line that is there takes one of the places for loads that wait, and with them goes some of what the
 * processor looks ahead; a line now and then, which keeps it on the stream; or, of two panels, lines of both in turn. */
enum tile_asks { TILE_ASKS, TILE_ASKS_IN_ORDER, TILE_ASKS_NOTHING, TILE_ASKS_SELDOM, TILE_ASKS_PAIR };

/* What a tile asks for: where it is, and where it turns to other weights; lines that were asked far are asked near from `near` on. */
struct tile_fetch {
	const char *at;
	uintptr_t turn;
	const char *near;
	const char *base; /* see matmul_tile.prefetch_base */
	uintptr_t ordered;
	/* Of two panels: from the first one's lines to the second one's, and where `near` turns. */
	size_t apart, near_apart;
	uintptr_t near_turn;
};

static ALWAYS_INLINE struct tile_fetch tile_fetch_begin(const struct matmul_tile *t)
{
	return (struct tile_fetch){t->prefetch, t->prefetch_end ? (uintptr_t)t->prefetch_end : UINTPTR_MAX, t->weights + MATMUL_TWICE_BYTES,
				   t->prefetch_base, (uintptr_t)t->prefetch_ordered, 0, 0, UINTPTR_MAX};
}

static ALWAYS_INLINE struct tile_fetch tile_fetch_pair(const struct matmul_tile *t)
{
	struct tile_fetch f = tile_fetch_begin(t);
	f.near = t->weights + TILE_PAIR_AHEAD - TILE_PAIR_NEARER;
	f.apart = f.near_apart = t->panel_bytes;
	f.near_turn = f.turn;
	return f;
}

/* Asks for a line between the loads before and behind it: the compiler would gather what several units ask for, and the places for lines that wait
 * would be taken all at once. */
static ALWAYS_INLINE void tile_ask(const char *at, bool far)
{
	if (far)
		__asm__ volatile("prefetcht1 %0" : : "m"(*at) : "memory");
	else
		__asm__ volatile("prefetcht0 %0" : : "m"(*at) : "memory");
}

static ALWAYS_INLINE void tile_prefetch_as(const struct matmul_tile *t, struct tile_fetch *f, bool far)
{
	tile_ask(f->at, far);
	if (t->prefetch_step > 64)
		tile_ask(f->at + 64, far);
	f->at += t->prefetch_step;
	if (far && t->asks_twice) {
		tile_ask(f->near, false);
		tile_ask(f->near + 64, false);
		f->near += KERN_GROUP_UNIT;
	}
}

/* Where the line lies that is asked for instead of the one at `at`, both from the beginning of whole blocks of pages: first lines of all pages of a
 * block come before the second ones. */
static ALWAYS_INLINE size_t tile_ordered(size_t at)
{
	const size_t line = at / TILE_LINE % (TILE_ORDERED / TILE_LINE);
	return at / TILE_ORDERED * TILE_ORDERED + line % TILE_PAGES * TILE_PAGE + line / TILE_PAGES * TILE_LINE;
}

/* Asks for the unit at `at`: in whole blocks of pages for two lines of two of them. */
static ALWAYS_INLINE void tile_ask_in_order(const struct tile_fetch *f, const char *at, bool far)
{
	size_t apart = TILE_LINE;
	if ((uintptr_t)at < f->ordered) {
		at = f->base + tile_ordered((uintptr_t)at - (uintptr_t)f->base);
		apart = TILE_PAGE;
	}
	tile_ask(at, far);
	tile_ask(at + apart, far);
}

/* `far`, `twice`: into which cache first, and once more into the L1 cache. What is computed with one row, and tiles, leaves the time to ask the L1 cache
 * at once, which brings 5 to 9 % more; some rows in 4 bits lose as much by it. */
static ALWAYS_INLINE void tile_prefetch_in_order(struct tile_fetch *f, bool far, bool twice)
{
	tile_ask_in_order(f, f->at, far);
	if (twice) {
		tile_ask(f->near, false);
		tile_ask(f->near + TILE_LINE, false);
	}
	f->at += KERN_GROUP_UNIT;
	f->near += KERN_GROUP_UNIT;
}

/* Called for every group whose scales, of `bytes`, lie before its units: what units ask for would fall behind by as much, and a panel's last lines
 * be left to memory. */
static ALWAYS_INLINE void tile_prefetch_head(const struct matmul_tile *t, struct tile_fetch *f, u32 bytes, bool far)
{
	for (u32 at = 0; at < bytes; at += KERN_GROUP_UNIT)
		tile_prefetch_as(t, f, far);
}

static ALWAYS_INLINE void tile_prefetch_head_in_order(struct tile_fetch *f, u32 bytes, bool far, bool twice)
{
	for (u32 at = 0; at < bytes; at += KERN_GROUP_UNIT)
		tile_prefetch_in_order(f, far, twice);
}

/* Called for every unit: asks for a piece of the weights that come next. Unpacking those of 4 bits leaves a small L1 cache the time to wait. */
static ALWAYS_INLINE void tile_prefetch(const struct matmul_tile *t, struct tile_fetch *f)
{
	tile_prefetch_as(t, f, t->prefetch_far == MATMUL_FAR);
}

/* The same for weights that are used as they are. */
static ALWAYS_INLINE void tile_prefetch_bytes(const struct matmul_tile *t, struct tile_fetch *f)
{
	tile_prefetch_as(t, f, t->prefetch_far != MATMUL_NEAR);
}

/* The same where the compiler may ask for a few units at once, which one row of bytes gains by: it computes too little between two of them to matter. */
static ALWAYS_INLINE void tile_prefetch_loosely(const struct matmul_tile *t, struct tile_fetch *f)
{
	for (u32 at = 0; at < kern_min(t->prefetch_step, KERN_GROUP_UNIT); at += 64)
		if (t->asks_twice) {
			_mm_prefetch(f->at + at, _MM_HINT_T1);
			_mm_prefetch(f->near + at, _MM_HINT_T0);
		} else if (t->prefetch_far != MATMUL_NEAR) {
			_mm_prefetch(f->at + at, _MM_HINT_T1);
		} else {
			_mm_prefetch(f->at + at, _MM_HINT_T0);
		}
	f->at += t->prefetch_step;
	f->near += KERN_GROUP_UNIT;
}

/* Called once a group, of `bytes`, by tiles that ask seldom: for a line of every kilobyte that a group begins, as far ahead as was best on
 * Zen 4. Into the L2 cache, or it would take one of the L1 cache's few places until memory answers. */
static ALWAYS_INLINE void tile_prefetch_seldom(const char *group, u32 bytes)
{
	enum { SELDOM_APART = 1024, SELDOM_AHEAD = 1536 };
	for (u32 at = 0; at < bytes; at += SELDOM_APART)
		_mm_prefetch(group + SELDOM_AHEAD + at, _MM_HINT_T1);
}

/* Called once for the group of weights at `group`; not with bf16, which loses by it. */
static ALWAYS_INLINE void tile_prefetch_turn(const struct matmul_tile *t, struct tile_fetch *f, const char *group)
{
	f->near = group + MATMUL_TWICE_BYTES;
	if (t->prefetch_end && f->near >= t->prefetch_end)
		f->near = t->prefetch_then + (f->near - t->prefetch_end);
	if ((uintptr_t)f->at < f->turn)
		return;
	f->at = t->prefetch_then + ((uintptr_t)f->at - f->turn);
	f->turn = UINTPTR_MAX;
	f->base = t->prefetch_then;
	f->ordered = t->prefetch_base ? UINTPTR_MAX : 0;
}

/* Called for every unit of either panel: asks for a line of each. */
static ALWAYS_INLINE void tile_ask_pair(struct tile_fetch *f, bool twice)
{
	tile_ask(f->at, twice);
	tile_ask(f->at + f->apart, twice);
	if (twice) {
		tile_ask(f->near, false);
		tile_ask(f->near + f->near_apart, false);
	}
	f->at += TILE_LINE;
	f->near += TILE_LINE;
}

/* Called for every group of either panel, or for every piece of both. */
static ALWAYS_INLINE void tile_turn_pair(const struct matmul_tile *t, struct tile_fetch *f)
{
	if ((uintptr_t)f->at >= f->turn) {
		f->at = t->prefetch_then + ((uintptr_t)f->at - f->turn);
		f->apart = t->next_panel_bytes;
		f->turn = UINTPTR_MAX;
	}
	if ((uintptr_t)f->near >= f->near_turn) {
		f->near = t->prefetch_then + ((uintptr_t)f->near - f->near_turn);
		f->near_apart = t->next_panel_bytes;
		f->near_turn = UINTPTR_MAX;
	}
}

#endif
#endif
