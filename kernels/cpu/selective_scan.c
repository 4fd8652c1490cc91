/* The recurrence of Mamba's first generation. Channels depend on nothing but themselves, so a task has some of them, of all rows: a tile of a
 * line at a time, whose rates are copied once and whose states once for each row, which then go through the row's tokens in the first-level cache
 * (where they lie, every row of a state would be in the same few sets of it). All sums are over rising i, in one lane for each channel: the same
 * wherever a call ends. */
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"

enum {
	TILE = 16, /* channels: a line */
	VECS = TILE / VEC_LANES,
	TASKS_A_THREAD = 4,
};

#define EACH_VEC(v) _Pragma("GCC unroll 4") for (u32 v = 0; v < VECS; v++)

struct job {
	const struct kern_selective_scan_args *a;
	u32 tiles; /* of a task */
};

/* Channels [c, c + n). Lanes behind them are zeros, and go nowhere. */
struct tile {
	const struct kern_selective_scan_args *a;
	u32 c, n;
	_Alignas(64) float step_bias[TILE], skip[TILE];
	_Alignas(64) float rates[KERN_SELECTIVE_DIM_MAX][TILE]; /* below 0 */
	_Alignas(64) float state[KERN_SELECTIVE_DIM_MAX][TILE];
};

/* How many of the tile's channels are in vector v. */
static ALWAYS_INLINE u32 lanes_of(const struct tile *w, u32 v)
{
	const u32 before = v * VEC_LANES;
	return w->n <= before ? 0 : kern_min(w->n - before, VEC_LANES);
}

static ALWAYS_INLINE vec take(const struct tile *w, const float *line, u32 v)
{
	const u32 n = lanes_of(w, v);
	return n == VEC_LANES ? vec_load(line + v * VEC_LANES) : n > 0 ? vec_load_n(line + v * VEC_LANES, n) : vec_zero();
}

static ALWAYS_INLINE void give(const struct tile *w, float *line, u32 v, vec x)
{
	const u32 n = lanes_of(w, v);
	if (n == VEC_LANES)
		vec_store(line + v * VEC_LANES, x);
	else if (n > 0)
		vec_store_n(line + v * VEC_LANES, x, n);
}

static void token(struct tile *w, u32 t)
{
	const struct kern_selective_scan_args *a = w->a;
	const float *x = a->x + (size_t)t * a->stride + w->c, *step = a->step + (size_t)t * a->step_stride + w->c;
	const float *k = a->k + (size_t)t * a->key_stride, *q = a->q + (size_t)t * a->key_stride;
	vec d[VECS], add[VECS], sums[VECS];
	EACH_VEC(v)
	{
		const vec value = take(w, x, v);
		d[v] = vec_softplus(vec_add(take(w, step, v), vec_load(w->step_bias + v * VEC_LANES)));
		add[v] = vec_mul(d[v], value);
		sums[v] = vec_mul(vec_load(w->skip + v * VEC_LANES), value);
	}
	for (u32 i = 0; i < a->state_dim; i++) {
		const vec key = vec_set1(k[i]), query = vec_set1(q[i]);
		EACH_VEC(v)
		{
			float *at = w->state[i] + v * VEC_LANES;
			const vec kept = vec_exp_negative(vec_mul(vec_load(w->rates[i] + v * VEC_LANES), d[v]));
			const vec s = vec_fma(kept, vec_load(at), vec_mul(key, add[v]));
			vec_store(at, s);
			sums[v] = vec_fma(s, query, sums[v]);
		}
	}
	EACH_VEC(v) give(w, a->out + (size_t)t * a->stride + w->c, v, sums[v]);
}

/* The tokens of row r. */
static void row(struct tile *w, u32 r)
{
	const struct kern_selective_scan_args *a = w->a;
	const u32 first = a->state.query_start[r], end = a->state.query_start[r + 1];
	const bool begins = a->state.context[r] == end - first;
	float *state = a->state.data + a->state.slots[r] * a->state.stride + w->c;
	if (first == end)
		return;
	for (u32 i = 0; i < a->state_dim; i++)
		EACH_VEC(v) vec_store(w->state[i] + v * VEC_LANES, begins ? vec_zero() : take(w, state + (size_t)i * a->channels, v));
	for (u32 t = first; t < end; t++)
		token(w, t);
	for (u32 i = 0; i < a->state_dim; i++)
		EACH_VEC(v) give(w, state + (size_t)i * a->channels, v, vec_load(w->state[i] + v * VEC_LANES));
}

static void tile_begin(struct tile *w, const struct kern_selective_scan_args *a, u32 c)
{
	w->a = a;
	w->c = c;
	w->n = kern_min(a->channels - c, TILE);
	EACH_VEC(v)
	{
		vec_store(w->step_bias + v * VEC_LANES, take(w, a->step_bias + c, v));
		vec_store(w->skip + v * VEC_LANES, take(w, a->skip + c, v));
	}
	for (u32 i = 0; i < a->state_dim; i++)
		EACH_VEC(v) vec_store(w->rates[i] + v * VEC_LANES, vec_sub(vec_zero(), take(w, a->rate + (size_t)i * a->channels + c, v)));
}

static void part(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	const u32 first = task * j->tiles * TILE, end = kern_min(first + j->tiles * TILE, j->a->channels);
	struct tile w;
	(void)thread;
	for (u32 c = first; c < end; c += TILE) {
		tile_begin(&w, j->a, c);
		for (u32 r = 0; r < j->a->state.rows; r++)
			row(&w, r);
	}
}

enum err VARIANT(selective_scan)(struct kern_ctx *ctx, const struct kern_selective_scan_args *a)
{
	const u32 tiles = kern_ceil(a->channels, TILE), tasks = TASKS_A_THREAD * kern_thread_count(ctx);
	const struct job j = {.a = a, .tiles = kern_ceil(tiles, tasks)};
	ASSERT(a->state_dim >= 1 && a->state_dim <= KERN_SELECTIVE_DIM_MAX);
	kern_parallel(ctx, kern_ceil(tiles, j.tiles), part, (void *)(uintptr_t)&j);
	return ERR_OK;
}
