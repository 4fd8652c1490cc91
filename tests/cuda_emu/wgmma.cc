/* The matrix unit of four warps, a warp's 16 rows at a time: products run in the background until they are waited for.
 * Under half of the schedules they read their operands, and write their results, when they are called, under the
 * others at the wait; until then the results are poison. So whatever does not wait for the other side is wrong under
 * one of them. Layouts: PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma. */
#include "tests/cuda_emu/emu_priv.h"

enum { ROWS = 16, N_MAX = 256, K = 16, PANEL_ROW = 128, ATOM = 1024 };

/* ---------------------------------------------------------------- operands */

/* A descriptor holds what a device's does, with addresses from the beginning of the block's memory on. */
u64 emu_wgmma_operand(const void *panel, u32 panel_bytes, struct emu_site site)
{
	const struct emu_shared *s = &emu_now->shared;
	const size_t at = (size_t)(static_cast<const unsigned char *>(panel) - s->arena);
	if (!emu_shared_contains(s, panel, 16) || at >> 18 != 0)
		emu_trap(cudaErrorIllegalAddress, site.file, site.line, "cu_wgmma_operand: %p is not in shared memory", panel);
	if (at % ATOM != 0 || panel_bytes % ATOM != 0 || panel_bytes >> 18 != 0)
		emu_trap(cudaErrorMisalignedAddress, site.file, site.line,
			 "cu_wgmma_operand: byte %zu of shared memory, panels of %u: not a multiple of %d", at, panel_bytes, ATOM);
	return (u64)(at >> 4) | (u64)(panel_bytes >> 4) << 16 | (u64)(ATOM >> 4) << 32 | (u64)1 << 62;
}

/* Row and column of a row of panels, as bytes from the beginning of memory: 16 bytes that do not cross a swizzle. */
static u32 place(u64 operand, u32 row, u32 column)
{
	const u32 start = (u32)(operand & 0x3fff) << 4, panel = (u32)(operand >> 16 & 0x3fff) << 4;
	const u32 at = start + column / 64 * panel + row * PANEL_ROW + column % 64 * 2;
	return at ^ (at >> 7 & 7) << 4;
}

/* Eight values from there on. */
static void read8(u32 at, float *to, struct emu_site site)
{
	const struct emu_shared *s = &emu_now->shared;
	u16 raw[8];
	if (!emu_shared_contains(s, s->arena + at, sizeof(raw)))
		emu_trap(cudaErrorIllegalAddress, site.file, site.line, "an operand of wgmma is not all in shared memory");
	emu_touch(s->arena + at, sizeof(raw), EMU_READ, site);
	memcpy(raw, s->arena + at, sizeof(raw));
	for (u32 i = 0; i < 8; i++)
		to[i] = cu_bf16_to_f32(raw[i]);
}

/* ---------------------------------------------------------------- products */

struct product {
	float a[ROWS][K], b[K][N_MAX], d[ROWS][N_MAX];
	u32 n;
};

EMU_PLAIN static inline __attribute__((always_inline)) void multiply(struct product *p)
{
	const u32 n = p->n;
	for (u32 i = 0; i < ROWS; i++)
		for (u32 k = 0; k < K; k++)
			for (u32 j = 0; j < n; j++)
				p->d[i][j] += p->a[i][k] * p->b[k][j];
}

EMU_PLAIN EMU_AVX2 static void multiply_avx2(struct product *p)
{
	multiply(p);
}

EMU_PLAIN static void multiply_any(struct product *p)
{
	multiply(p);
}

/* Value e of D of lane l: row l / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (l % 4) + e % 2. */
static void results(struct product *p, const struct emu_wgmma *w, bool write)
{
	for (u32 l = 0; l < 32; l++)
		for (u32 e = 0; e < w->n / 2; e++) {
			float *at = &p->d[l / 4 + 8 * (e / 2 % 2)][8 * (e / 4) + 2 * (l % 4) + e % 2];
			if (write)
				w->d[l][e] = *at;
			else
				*at = w->add ? w->d[l][e] : 0;
		}
}

static void operands(struct product *p, const struct emu_wgmma *w, u32 step)
{
	float part[64];
	for (u32 l = 0; l < 32 && w->transposed; l++)
		for (u32 r = 0; r < 4; r++) {
			const u32 pair = w->a[l][4 * step + r], row = l / 4 + 8 * (r % 2), k = 2 * (l % 4) + 8 * (r / 2);
			p->a[row][k] = cu_bf16_lo(pair);
			p->a[row][k + 1] = cu_bf16_hi(pair);
		}
	for (u32 i = 0; i < ROWS && !w->transposed; i++)
		for (u32 k = 0; k < K; k += 8)
			read8(place(w->from, w->row + i, step * K + k), &p->a[i][k], w->site);
	if (w->transposed) {
		for (u32 k = 0; k < K; k++)
			for (u32 j = 0; j < w->n; j += 8)
				read8(place(w->by, step * K + k, j), &p->b[k][j], w->site);
		return;
	}
	for (u32 j = 0; j < w->n; j++) {
		for (u32 k = 0; k < K; k += 8)
			read8(place(w->by, j, step * K + k), part + k, w->site);
		for (u32 k = 0; k < K; k++)
			p->b[k][j] = part[k];
	}
}

static void compute(const struct emu_wgmma *w)
{
	static struct product p;
	p.n = w->n;
	results(&p, w, false);
	for (u32 step = 0; step < w->steps; step++) {
		operands(&p, w, step);
		(emu_has_avx2() ? multiply_avx2 : multiply_any)(&p);
	}
	results(&p, w, true);
}

/* ---------------------------------------------------------------- a warp's queue */

/* What d was before the first product that is in flight on it, and poison in its place. */
static void take_results(struct emu_warp *warp, struct emu_wgmma *w)
{
	for (u32 i = 0; i < warp->products.count; i++)
		if (warp->products.list[i].d[0] == w->d[0])
			return;
	w->first = true;
	for (u32 l = 0; l < 32; l++) {
		memcpy(w->before[l], w->d[l], w->n / 2 * sizeof(float));
		memset(w->d[l], EMU_POISON, w->n / 2 * sizeof(float));
	}
}

void emu_op_wgmma(struct emu_lane lanes[32], u32 mask)
{
	struct emu_warp *warp = &emu_now->warp[emu_self->warp];
	static struct emu_wgmma w;
	(void)mask;
	static_cast<struct emu_wgmma_call &>(w) = lanes[0].product.what;
	w.group = warp->products.group;
	w.first = false;
	for (u32 l = 0; l < 32; l++) {
		const struct emu_wgmma_call *c = &lanes[l].product.what;
		w.d[l] = lanes[l].product.d;
		w.a[l] = lanes[l].product.a;
		if (lanes[l].product.tainted)
			emu_trap(cudaErrorLaunchFailure, w.site.file, w.site.line,
				 "wgmma after copies to shared memory that have passed a barrier without cu_fence_wgmma");
		if (c->from != w.from || c->by != w.by || c->add != w.add)
			emu_trap(cudaErrorLaunchFailure, w.site.file, w.site.line, "wgmma: lanes of a warp give different operands");
	}
	if (!warp->products.fenced)
		emu_trap(cudaErrorLaunchFailure, w.site.file, w.site.line, "wgmma without a cu_wgmma_fence after the wait before it");
	if (emu_now->schedule->order % 2 != 0) {
		compute(&w);
		return;
	}
	take_results(warp, &w);
	if (warp->products.count == EMU_PRODUCTS)
		emu_trap(cudaErrorLaunchFailure, w.site.file, w.site.line, "more than %d products are in flight", EMU_PRODUCTS);
	warp->products.list[warp->products.count++] = w;
}

void emu_op_wgmma_wait(struct emu_lane lanes[32], u32 mask)
{
	struct emu_warp *warp = &emu_now->warp[emu_self->warp];
	struct emu_products *q = &warp->products;
	u32 done = 0;
	(void)mask;
	for (; done < q->count && q->list[done].group + lanes[0].shuffle.operand < q->group; done++) {
		const struct emu_wgmma *w = &q->list[done];
		for (u32 l = 0; l < 32 && w->first; l++)
			memcpy(w->d[l], w->before[l], w->n / 2 * sizeof(float));
		compute(w);
	}
	memmove(q->list, q->list + done, (q->count - done) * sizeof(*q->list));
	q->count -= done;
	q->fenced = false;
}

void emu_op_wgmma_fence(struct emu_lane lanes[32], u32 mask)
{
	(void)lanes;
	(void)mask;
	emu_now->warp[emu_self->warp].products.fenced = true;
}

void emu_op_wgmma_commit(struct emu_lane lanes[32], u32 mask)
{
	(void)lanes;
	(void)mask;
	emu_now->warp[emu_self->warp].products.group++;
}
