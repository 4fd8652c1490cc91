/* Low-rank adapters for AVX2 and AVX-512 (one object each): first every token's products with A, then what B makes of them.
 * A token's sums are taken in one order whatever tile it is in, so they do not depend on its neighbours. */
#include "kernels/cpu/lora_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

/* Of a task: enough work for a microsecond, few enough rows of x for a cache. */
enum { TASK_TOKENS = 32, TASK_RANKS = 8, TASK_PANELS = 8 };
/* Of a tile: as many sums as there are registers for beside what is multiplied. */
enum { TILE_TOKENS = 4, TILE_RANKS = 4, TILE_ALONE = 8, TILE_VECS = VEC_LANES == 16 ? 4 : 2 };

struct run {
	const struct kern_lora_args *a;
	struct lora_place *places; /* [group_count + 1] */
	float *h;
};

static inline vec load(const void *p, bool bf16, size_t i)
{
	return bf16 ? vec_load_bf16((const u16 *)p + i) : vec_load((const float *)p + i);
}

static inline vec load_n(const void *p, bool bf16, size_t i, u32 n)
{
	return bf16 ? vec_load_bf16_n((const u16 *)p + i, n) : vec_load_n((const float *)p + i, n);
}

/* The group that a task belongs to: the last one whose tasks begin at or before it. */
static u32 find_group(const struct run *run, u32 task, bool shrink)
{
	u32 low = 0, high = run->a->group_count;
	while (high - low > 1) {
		u32 middle = low + (high - low) / 2;
		const struct lora_place *p = &run->places[middle];
		if ((shrink ? p->shrink : p->expand) <= task)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* ---------------------------------------------------------------- h = A x */

/* h[t][r] of some tokens and rows of A; both numbers are constants where it is called. */
static inline __attribute__((always_inline)) void dots(const float *const *x, const struct kern_lora *l, u32 rank, float *h,
						       const u32 tokens, const u32 ranks, const bool bf16)
{
	vec sums[TILE_TOKENS][TILE_ALONE], w[TILE_ALONE];
	const u32 k = l->k;
	u32 i = 0;
	for (u32 t = 0; t < tokens; t++)
		for (u32 r = 0; r < ranks; r++)
			sums[t][r] = vec_zero();
	for (; i + VEC_LANES <= k; i += VEC_LANES) {
		for (u32 r = 0; r < ranks; r++)
			w[r] = load(l->a, bf16, (size_t)(rank + r) * k + i);
		for (u32 t = 0; t < tokens; t++) {
			vec v = vec_load(x[t] + i);
			for (u32 r = 0; r < ranks; r++)
				sums[t][r] = vec_fma(v, w[r], sums[t][r]);
		}
	}
	for (u32 r = 0; r < ranks && i < k; r++) {
		vec rest = load_n(l->a, bf16, (size_t)(rank + r) * k + i, k - i);
		for (u32 t = 0; t < tokens; t++)
			sums[t][r] = vec_fma(vec_load_n(x[t] + i, k - i), rest, sums[t][r]);
	}
	for (u32 t = 0; t < tokens; t++)
		for (u32 r = 0; r < ranks; r++)
			h[(size_t)t * l->rank + rank + r] = vec_sum(sums[t][r]);
}

static inline __attribute__((always_inline)) void shrink_rows(const float *const *x, u32 tokens, const struct kern_lora *l,
							      u32 rank, u32 end, float *h, const bool bf16)
{
	u32 t = 0, r;
	for (; t + TILE_TOKENS <= tokens; t += TILE_TOKENS) {
		float *to = h + (size_t)t * l->rank;
		for (r = rank; r + TILE_RANKS <= end; r += TILE_RANKS)
			dots(x + t, l, r, to, TILE_TOKENS, TILE_RANKS, bf16);
		for (; r < end; r++)
			dots(x + t, l, r, to, TILE_TOKENS, 1, bf16);
	}
	for (; t < tokens; t++) {
		float *to = h + (size_t)t * l->rank;
		for (r = rank; r + TILE_ALONE <= end; r += TILE_ALONE)
			dots(x + t, l, r, to, 1, TILE_ALONE, bf16);
		for (; r < end; r++)
			dots(x + t, l, r, to, 1, 1, bf16);
	}
}

static void shrink(void *arg, u32 task, u32 thread)
{
	const struct run *run = arg;
	const struct kern_lora_args *a = run->a;
	u32 g = find_group(run, task, true);
	const struct kern_lora_group *group = &a->groups[g];
	const struct kern_lora *l = group->lora;
	u32 chunks = kern_ceil(l->rank, TASK_RANKS), own = task - run->places[g].shrink;
	u32 first = own / chunks * TASK_TOKENS, rank = own % chunks * TASK_RANKS;
	u32 tokens = kern_min(group->count - first, TASK_TOKENS), end = kern_min(rank + TASK_RANKS, l->rank);
	float *h = run->h + run->places[g].h + (size_t)first * l->rank;
	const float *x[TASK_TOKENS];
	(void)thread;
	for (u32 t = 0; t < tokens; t++)
		x[t] = a->x + (size_t)(group->tokens[first + t] - a->first) * a->x_stride;
	if (l->dtype == KERN_BF16)
		shrink_rows(x, tokens, l, rank, end, h, true);
	else
		shrink_rows(x, tokens, l, rank, end, h, false);
}

/* ---------------------------------------------------------------- out += scale * B h */

/* TILE_VECS vectors of some tokens' outputs, of which `columns` are there. */
static inline __attribute__((always_inline)) void add_tile(float *const *out, const float *h, size_t h_stride, const void *b,
							   size_t at, u32 rank, u32 columns, float scale, const u32 tokens,
							   const bool bf16)
{
	vec sums[TILE_TOKENS][TILE_VECS], w[TILE_VECS], factor = vec_set1(scale);
	for (u32 t = 0; t < tokens; t++)
		for (u32 v = 0; v < TILE_VECS; v++)
			sums[t][v] = vec_zero();
	for (u32 r = 0; r < rank; r++) {
		for (u32 v = 0; v < TILE_VECS; v++)
			w[v] = load(b, bf16, at + (size_t)r * KERN_LORA_COLUMNS + v * VEC_LANES);
		for (u32 t = 0; t < tokens; t++) {
			vec s = vec_set1(h[t * h_stride + r]);
			for (u32 v = 0; v < TILE_VECS; v++)
				sums[t][v] = vec_fma(s, w[v], sums[t][v]);
		}
	}
	for (u32 t = 0; t < tokens; t++)
		for (u32 v = 0; v < TILE_VECS && v * VEC_LANES < columns; v++) {
			u32 n = kern_min(columns - v * VEC_LANES, VEC_LANES);
			float *to = out[t] + v * VEC_LANES;
			vec_store_n(to, vec_fma(sums[t][v], factor, vec_load_n(to, n)), n);
		}
}

/* One panel. */
static inline __attribute__((always_inline)) void add_panel(float *const *out, u32 tokens, const float *h, size_t h_stride,
							    const struct kern_lora_part *p, u32 panel, const bool bf16)
{
	size_t at = (size_t)panel * p->rank * KERN_LORA_COLUMNS;
	for (u32 c = 0; c < KERN_LORA_COLUMNS; c += TILE_VECS * VEC_LANES) {
		u32 column = panel * KERN_LORA_COLUMNS + c, t = 0;
		float *to[TASK_TOKENS];
		if (column >= p->n)
			return;
		for (u32 i = 0; i < tokens; i++)
			to[i] = out[i] + p->first + column;
		for (; t + TILE_TOKENS <= tokens; t += TILE_TOKENS)
			add_tile(to + t, h + t * h_stride, h_stride, p->b, at + c, p->rank, p->n - column, p->scale,
				 TILE_TOKENS, bf16);
		for (; t < tokens; t++)
			add_tile(to + t, h + t * h_stride, h_stride, p->b, at + c, p->rank, p->n - column, p->scale, 1, bf16);
	}
}

static u32 panels_of(const struct kern_lora_part *p)
{
	return kern_ceil(p->n, KERN_LORA_COLUMNS);
}

/* Tasks for each TASK_TOKENS of its tokens. */
static u32 panel_tasks(const struct kern_lora *l)
{
	u32 tasks = 0;
	for (u32 p = 0; p < l->part_count; p++)
		tasks += kern_ceil(panels_of(&l->parts[p]), TASK_PANELS);
	return tasks;
}

static void expand(void *arg, u32 task, u32 thread)
{
	const struct run *run = arg;
	const struct kern_lora_args *a = run->a;
	u32 g = find_group(run, task, false);
	const struct kern_lora_group *group = &a->groups[g];
	const struct kern_lora *l = group->lora;
	u32 own = task - run->places[g].expand, each = panel_tasks(l), first = own / each * TASK_TOKENS, part = 0;
	u32 tokens = kern_min(group->count - first, TASK_TOKENS);
	float *out[TASK_TOKENS];
	(void)thread;
	for (own %= each; own >= kern_ceil(panels_of(&l->parts[part]), TASK_PANELS); part++)
		own -= kern_ceil(panels_of(&l->parts[part]), TASK_PANELS);
	const struct kern_lora_part *p = &l->parts[part];
	const float *h = run->h + run->places[g].h + (size_t)first * l->rank + p->rank_first;
	u32 end = kern_min((own + 1) * TASK_PANELS, panels_of(p));
	for (u32 t = 0; t < tokens; t++)
		out[t] = a->out + (size_t)(group->tokens[first + t] - a->first) * a->out_stride;
	for (u32 panel = own * TASK_PANELS; panel < end; panel++)
		if (l->dtype == KERN_BF16)
			add_panel(out, tokens, h, l->rank, p, panel, true);
		else
			add_panel(out, tokens, h, l->rank, p, panel, false);
}

enum err VARIANT(lora)(struct kern_ctx *ctx, const struct kern_lora_args *a)
{
	struct lora_place *places = ctx->scratch, at = {0, 0, 0};
	size_t head = kern_align((a->group_count + 1) * sizeof(*places));
	struct run run = {a, places, (float *)(void *)((char *)ctx->scratch + head)};
	for (u32 g = 0; g < a->group_count; g++) {
		const struct kern_lora_group *group = &a->groups[g];
		u32 chunks = kern_ceil(group->count, TASK_TOKENS);
		places[g] = at;
		at.shrink += chunks * kern_ceil(group->lora->rank, TASK_RANKS);
		at.expand += chunks * panel_tasks(group->lora);
		at.h += (size_t)group->count * group->lora->rank;
	}
	ASSERT(head + at.h * sizeof(float) <= ctx->scratch_bytes);
	kern_parallel(ctx, at.shrink, shrink, &run);
	kern_parallel(ctx, at.expand, expand, &run);
	return ERR_OK;
}
