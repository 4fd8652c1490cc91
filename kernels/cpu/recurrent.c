/* Linear recurrences. Columns of a state depend on nothing but themselves, so a task has some of one head: of these a tile at a time is
 * copied, which the first-level cache holds (where it lies, every row of it would be in the same few sets of the cache), and goes through
 * the tokens of the row there. A token is one pass over it: as a row is updated, it is added to that token's outputs and, of the delta rule,
 * to what the next token's key finds. Where every value of a key fades by itself, keys are multiplied by how much is left. All sums are over
 * rising i, in one lane for each column: the same wherever a call or a block of tokens ends. */
#include <math.h>

#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"

enum {
	BLOCK = 256,		/* tokens whose factors are computed at once */
	TILE_FLOATS = 8192,	/* most of a first-level cache */
	FADES = 8192,		/* of KERN_KDA: values of keys of the tokens whose factors are computed at once */
	TASKS_A_THREAD = 4,
	COLUMNS_MOST = 64, /* of a task, where heads are fewer than that; */
	COLUMNS_LEAST = 16,	/* as few as this, where threads would have none */
	LINE = 16,		/* floats */
	AHEAD = 3,		/* tokens */
	/* Vectors side by side, as many as there are registers for: of several tokens, and of one. */
	VECS_MANY = VEC_LANES == 8 ? 2 : 4,
	VECS_ONE = VEC_LANES == 16 ? 4 : 8,
};

#define EACH_VEC(v, vecs) _Pragma("GCC unroll 8") for (u32 v = 0; v < (vecs); v++)

/* Of the tokens of a block, for one head. */
struct factors {
	_Alignas(64) float w[BLOCK], add[BLOCK]; /* what the state is multiplied by, but of KERN_KDA; and what is added to it */
	_Alignas(64) float found[BLOCK], out[BLOCK]; /* what sums with k and q are multiplied by */
};

struct job {
	const struct kern_recurrent_args *a;
	u32 parts, columns; /* of a head, and of a part */
};

/* Some tokens of a row, and one of its heads. */
struct span {
	const struct kern_recurrent_args *a;
	float *state;
	const float *q, *k, *v; /* of the first token */
	float *out;
	const float *ahead; /* columns that are likely to be needed next */
	float skip;
	u32 tokens;
	bool begins;
	struct factors f;
	_Alignas(64) float tile[TILE_FLOATS];
	/* Of KERN_KDA, [tokens][key_dim]: what the rows of the state are multiplied by, and keys times that. */
	_Alignas(64) float fades[FADES], faded[FADES];
};

/* ---------------------------------------------------------------- factors */

static float squares_of(const float *x, u32 count)
{
	vec sums[2] = {vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + 2 * VEC_LANES <= count; i += 2 * VEC_LANES)
#pragma GCC unroll 2
		for (u32 s = 0; s < 2; s++) {
			const vec v = vec_load(x + i + s * VEC_LANES);
			sums[s] = vec_fma(v, v, sums[s]);
		}
	for (; i < count; i += VEC_LANES) {
		const vec v = vec_load_n(x + i, kern_min(count - i, VEC_LANES));
		sums[0] = vec_fma(v, v, sums[0]);
	}
	return vec_sum(vec_add(sums[0], sums[1]));
}

/* w and d, from what `w` has of `decay`; d in `add`. */
static void decay_factors(struct factors *f, const struct kern_recurrent_args *a, u32 h, u32 tokens)
{
	const vec bias = vec_set1(a->decay_bias[h]), rate = vec_set1(-expf(a->rate_log[h]));
	for (u32 t = 0; t < tokens; t += VEC_LANES) {
		vec d = vec_softplus(vec_add(vec_load(f->w + t), bias));
		if (a->kind == KERN_SCAN && a->step_max > 0)
			d = vec_min(vec_max(d, vec_set1(a->step_min)), vec_set1(a->step_max));
		vec_store(f->w + t, vec_exp_negative(vec_mul(d, rate)));
		vec_store(f->add + t, d);
	}
}

/* What k and q are divided by, and what b is, go into what sums and values are multiplied by. */
static void delta_factors(struct factors *f, const struct span *s, u32 tokens)
{
	const struct kern_recurrent_args *a = s->a;
	const float scale = a->beta_scale > 0 ? a->beta_scale : 1, dim = (float)a->key_dim;
	for (u32 t = 0; t < tokens; t += VEC_LANES) {
		const vec beta = vec_load(f->add + t);
		vec b;
		vec_sigmoids(&beta, 1, &b);
		vec_store(f->add + t, vec_mul(b, vec_set1(scale)));
	}
	for (u32 t = 0; t < tokens; t++) {
		const float length = 1 / sqrtf(squares_of(s->k + (size_t)t * a->stride, a->key_dim) + 1e-6f);
		f->found[t] = a->kind == KERN_KDA ? length : f->w[t] * length;
		f->add[t] *= length;
		f->out[t] = 1 / sqrtf((squares_of(s->q + (size_t)t * a->stride, a->key_dim) + 1e-6f) * dim);
	}
}

/* The same for every value of a key. */
static void fade_factors(struct span *s, u32 h, const float *decay)
{
	const struct kern_recurrent_args *a = s->a;
	const float *bias = a->decay_bias + (size_t)h * a->key_dim;
	const vec rate = vec_set1(-expf(a->rate_log[h]));
	for (u32 t = 0; t < s->tokens; t++) {
		const float *row = decay + (size_t)t * a->stride + (size_t)h * a->key_dim, *k = s->k + (size_t)t * a->stride;
		float *fades = s->fades + (size_t)t * a->key_dim, *faded = s->faded + (size_t)t * a->key_dim;
		for (u32 i = 0; i < a->key_dim; i += VEC_LANES) {
			const u32 n = kern_min(a->key_dim - i, VEC_LANES);
			const vec d = vec_softplus(vec_add(vec_load_n(row + i, n), vec_load_n(bias + i, n)));
			const vec w = vec_exp_negative(vec_mul(d, rate));
			vec_store_n(fades + i, w, n);
			vec_store_n(faded + i, vec_mul(w, vec_load_n(k + i, n)), n);
		}
	}
}

static void factors_of(struct span *s, u32 h, const float *decay, const float *beta)
{
	const struct kern_recurrent_args *a = s->a;
	struct factors *f = &s->f;
	const u32 whole = kern_ceil(s->tokens, VEC_LANES) * VEC_LANES;
	for (u32 t = 0; t < whole && a->kind != KERN_KDA; t++)
		f->w[t] = t < s->tokens ? decay[(size_t)t * a->stride + h] : 0;
	if (a->kind == KERN_KDA)
		fade_factors(s, h, decay);
	else
		decay_factors(f, a, h, s->tokens);
	if (a->kind == KERN_SCAN)
		return;
	for (u32 t = 0; t < whole; t++)
		f->add[t] = t < s->tokens ? beta[(size_t)t * a->stride + h] : 0;
	delta_factors(f, s, s->tokens);
}

/* ---------------------------------------------------------------- tiles */

/* A tile is `vecs` vectors of a row, the last of n lanes. */
static ALWAYS_INLINE vec load_of(const float *row, u32 v, const u32 vecs, u32 n)
{
	return v + 1 < vecs ? vec_load(row + v * VEC_LANES) : vec_load_n(row + v * VEC_LANES, n);
}

static ALWAYS_INLINE void store_of(float *row, u32 v, vec x, const u32 vecs, u32 n)
{
	if (v + 1 < vecs)
		vec_store(row + v * VEC_LANES, x);
	else
		vec_store_n(row + v * VEC_LANES, x, n);
}

/* Asks for the lines of a row of the tile that comes next that begin in vectors [first, end). */
static ALWAYS_INLINE void ask_ahead(const float *row, const u32 first, const u32 end)
{
	for (u32 v = first; v < end; v++)
		if (v * VEC_LANES % LINE == 0)
			__builtin_prefetch(row + v * VEC_LANES, 0, 2);
}

/* What the first token's key finds in columns at `state`, which with `tile` are copied there. Half of what comes next is asked for meanwhile: all
 * of it beside the pass that follows would leave memory idle here. */
static ALWAYS_INLINE void tile_take(const struct span *s, const float *state, float *tile, vec *found, const u32 vecs, u32 n,
				   const enum kern_recurrence kind)
{
	const float *ahead = s->ahead, *key = kind == KERN_KDA ? s->faded : s->k;
	EACH_VEC(v, vecs) found[v] = vec_zero();
	for (u32 i = 0; i < s->a->key_dim; i++, state += s->a->value_dim, ahead += s->a->value_dim) {
		const vec k = vec_set1(key[i]);
		ask_ahead(ahead, 0, vecs / 2);
		EACH_VEC(v, vecs)
		{
			const vec x = load_of(state, v, vecs, n);
			if (tile)
				vec_store(tile + (i * vecs + v) * VEC_LANES, x);
			if (kind != KERN_SCAN)
				found[v] = vec_fma(k, x, found[v]);
		}
	}
}

/* What token t adds to a row, before its key. */
static ALWAYS_INLINE void tile_add(const struct span *s, u32 t, u32 j, const vec *found, vec *add, const u32 vecs, u32 n,
				  const enum kern_recurrence kind)
{
	const float *row = s->v + (size_t)t * s->a->stride + j;
	EACH_VEC(v, vecs)
	{
		add[v] = load_of(row, v, vecs, n);
		if (kind != KERN_SCAN)
			add[v] = vec_sub(add[v], vec_mul(found[v], vec_set1(s->f.found[t])));
		add[v] = vec_mul(add[v], vec_set1(s->f.add[t]));
	}
}

static ALWAYS_INLINE void tile_out(const struct span *s, u32 t, u32 j, vec *sums, const u32 vecs, u32 n, const enum kern_recurrence kind)
{
	const size_t at = (size_t)t * s->a->stride + j;
	EACH_VEC(v, vecs)
	{
		if (kind != KERN_SCAN)
			sums[v] = vec_mul(sums[v], vec_set1(s->f.out[t]));
		else
			sums[v] = vec_fma(vec_set1(s->skip), load_of(s->v + at, v, vecs, n), sums[v]);
		store_of(s->out + at, v, sums[v], vecs, n);
	}
}

/* A token but the last: the tile stays where it is. */
static ALWAYS_INLINE void tile_pass(struct span *s, u32 t, const vec *add, vec *sums, vec *found, const u32 vecs,
				   const enum kern_recurrence kind)
{
	const size_t token = (size_t)t * s->a->stride;
	const float *q = s->q + token, *k = s->k + token, *fades = s->fades + (size_t)t * s->a->key_dim;
	const float *next = kind == KERN_KDA ? s->faded + (size_t)(t + 1) * s->a->key_dim : k + s->a->stride;
	vec w = vec_set1(kind == KERN_KDA ? 0 : s->f.w[t]);
	float *at = s->tile;
	EACH_VEC(v, vecs) sums[v] = found[v] = vec_zero();
	for (u32 i = 0; i < s->a->key_dim; i++, at += vecs * VEC_LANES) {
		const vec key = vec_set1(k[i]), query = vec_set1(q[i]), next_key = vec_set1(next[i]);
		if (kind == KERN_KDA)
			w = vec_set1(fades[i]);
		EACH_VEC(v, vecs)
		{
			const vec x = vec_fma(key, add[v], vec_mul(w, vec_load(at + v * VEC_LANES)));
			vec_store(at + v * VEC_LANES, x);
			sums[v] = vec_fma(query, x, sums[v]);
			if (kind != KERN_SCAN)
				found[v] = vec_fma(next_key, x, found[v]);
		}
	}
}

/* The last token: from rows at `from`, `apart` from each other, into the state. Vectors [ask, vecs) of what comes next are asked for meanwhile. */
static ALWAYS_INLINE void tile_give(const struct span *s, u32 t, const float *from, size_t apart, float *state, const vec *add, vec *sums, const u32 vecs,
				    u32 n, const u32 ask, const enum kern_recurrence kind)
{
	const size_t token = (size_t)t * s->a->stride, stride = s->a->value_dim;
	const float *q = s->q + token, *k = s->k + token, *ahead = s->ahead, *fades = s->fades + (size_t)t * s->a->key_dim;
	vec w = vec_set1(kind == KERN_KDA ? 0 : s->f.w[t]);
	EACH_VEC(v, vecs) sums[v] = vec_zero();
	for (u32 i = 0; i < s->a->key_dim; i++, from += apart, state += stride, ahead += stride) {
		const vec key = vec_set1(k[i]), query = vec_set1(q[i]);
		if (kind == KERN_KDA)
			w = vec_set1(fades[i]);
		ask_ahead(ahead, ask, vecs);
		EACH_VEC(v, vecs)
		{
			const vec x = vec_fma(key, add[v], vec_mul(w, load_of(from, v, vecs, n)));
			store_of(state, v, x, vecs, n);
			sums[v] = vec_fma(query, x, sums[v]);
		}
	}
}

/* Asks for what token t has for columns [j, j + width): tokens lie pages apart, where no prefetcher follows. */
static void ask_token(const struct span *s, u32 t, u32 j, u32 width)
{
	const size_t token = (size_t)t * s->a->stride;
	if (t >= s->tokens)
		return;
	for (u32 i = 0; i < s->a->key_dim; i += LINE) {
		__builtin_prefetch(s->k + token + i, 0, 3);
		__builtin_prefetch(s->q + token + i, 0, 3);
	}
	for (u32 i = 0; i < width; i += LINE) {
		__builtin_prefetch(s->v + token + j + i, 0, 3);
		__builtin_prefetch(s->out + token + j + i, 1, 3);
	}
}

/* Columns from j on, of several tokens or of a row that begins. */
static ALWAYS_INLINE void tile_many(struct span *s, u32 j, const u32 vecs, u32 n, const enum kern_recurrence kind)
{
	vec add[VECS_MANY], sums[VECS_MANY], found[VECS_MANY];
	u32 t = 0;
	if (s->begins) {
		memset(s->tile, 0, (size_t)s->a->key_dim * vecs * VEC_LANES * sizeof(float));
		EACH_VEC(v, vecs) found[v] = vec_zero();
	} else
		tile_take(s, s->state + j, s->tile, found, vecs, n, kind);
	for (; t + 1 < s->tokens; t++) {
		ask_token(s, t + AHEAD, j, vecs * VEC_LANES);
		tile_add(s, t, j, found, add, vecs, n, kind);
		tile_pass(s, t, add, sums, found, vecs, kind);
		tile_out(s, t, j, sums, vecs, n, kind);
	}
	tile_add(s, t, j, found, add, vecs, n, kind);
	tile_give(s, t, s->tile, vecs * VEC_LANES, s->state + j, add, sums, vecs, n, vecs / 2, kind);
	tile_out(s, t, j, sums, vecs, n, kind);
}

/* Of one token: a copy would not pay. */
static ALWAYS_INLINE void tile_one(struct span *s, u32 j, const u32 vecs, u32 n, const enum kern_recurrence kind)
{
	vec add[VECS_ONE], sums[VECS_ONE], found[VECS_ONE];
	if (kind != KERN_SCAN)
		tile_take(s, s->state + j, NULL, found, vecs, n, kind);
	tile_add(s, 0, j, found, add, vecs, n, kind);
	tile_give(s, 0, s->state + j, s->a->value_dim, s->state + j, add, sums, vecs, n, kind != KERN_SCAN ? vecs / 2 : 0, kind);
	tile_out(s, 0, j, sums, vecs, n, kind);
}

typedef void (*tile_fn)(struct span *s, u32 j, u32 n);
#define TILE(name, of, vecs, kind)                                    \
	static void name(struct span *s, u32 j, u32 n)                \
	{                                                             \
		of(s, j, vecs, (vecs) == 1 ? n : VEC_LANES, kind);    \
	}
#define TILES(vecs, of)                                        \
	TILE(delta_##of##_##vecs, tile_##of, vecs, KERN_DELTA) \
	TILE(scan_##of##_##vecs, tile_##of, vecs, KERN_SCAN)   \
	TILE(kda_##of##_##vecs, tile_##of, vecs, KERN_KDA)
TILES(1, many)
TILES(2, many)
TILES(1, one)
TILES(2, one)
TILES(4, one)
#if VEC_LANES != 8
TILES(4, many)
#endif
#if VEC_LANES != 16
TILES(8, one)
#endif

/* By the power of two that their vectors are, up to VECS_ONE and VECS_MANY. */
enum { POWERS = 4, KINDS = KERN_KDA + 1 };
#if VEC_LANES != 16
#define TILES_ONE(kind) {kind##_one_1, kind##_one_2, kind##_one_4, kind##_one_8}
#else
#define TILES_ONE(kind) {kind##_one_1, kind##_one_2, kind##_one_4}
#endif
#if VEC_LANES != 8
#define TILES_MANY(kind) {kind##_many_1, kind##_many_2, kind##_many_4}
#else
#define TILES_MANY(kind) {kind##_many_1, kind##_many_2}
#endif
#define EACH_KIND(tiles) {[KERN_DELTA] = tiles(delta), [KERN_SCAN] = tiles(scan), [KERN_KDA] = tiles(kda)}
static const tile_fn tiles_one[KINDS][POWERS] = EACH_KIND(TILES_ONE), tiles_many[KINDS][POWERS] = EACH_KIND(TILES_MANY);

/* Columns [first, end) of the head, for a block of tokens. */
static void columns_run(struct span *s, u32 first, u32 end, const float *ahead)
{
	const bool one = s->tokens == 1 && !s->begins;
	const u32 most = one ? VECS_ONE * VEC_LANES : kern_min(VECS_MANY * VEC_LANES, TILE_FLOATS / s->a->key_dim);
	for (u32 j = first, width; j < end; j += width) {
		u32 power = POWERS - 1;
		while (power > 0 && (u32)VEC_LANES << power > kern_min(most, end - j))
			power--;
		width = (u32)VEC_LANES << power;
		s->ahead = end - j > width ? s->state + j + width : ahead;
		(one ? tiles_one : tiles_many)[s->a->kind][power](s, j, kern_min(end - j, VEC_LANES));
	}
}

/* ---------------------------------------------------------------- tasks */

/* The state of head h of row r, or of what comes first behind it. */
static float *state_of(const struct kern_recurrent_args *a, u32 r, u32 h)
{
	return a->state.data + a->state.slots[r] * a->state.stride + (size_t)h * a->key_dim * a->value_dim;
}

static void part(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	const struct kern_recurrent_args *a = j->a;
	const u32 h = task / j->parts % a->heads, r = task / j->parts / a->heads, column = task % j->parts * j->columns;
	const u32 first = a->state.query_start[r], end = a->state.query_start[r + 1], column_end = kern_min(column + j->columns, a->value_dim);
	const u32 block = a->kind == KERN_KDA ? kern_min(BLOCK, FADES / a->key_dim) : BLOCK;
	const float *ahead = h + 1 < a->heads ? state_of(a, r, h + 1) : r + 1 < a->state.rows ? state_of(a, r + 1, 0) : state_of(a, r, h);
	struct span s;
	(void)thread;
	s.a = a;
	s.skip = a->kind == KERN_SCAN ? a->skip[h] : 0;
	for (u32 t = first; t < end; t += s.tokens) {
		const size_t row = (size_t)t * a->stride, key = row + (size_t)h * a->key_heads / a->heads * a->key_dim, value = row + (size_t)h * a->value_dim;
		s.state = state_of(a, r, h);
		s.q = a->q + key;
		s.k = a->k + key;
		s.v = a->v + value;
		s.out = a->out + value;
		s.tokens = kern_min(end - t, block);
		s.begins = t == first && a->state.context[r] == end - first;
		factors_of(&s, h, a->decay + row, a->kind == KERN_SCAN ? NULL : a->beta + row);
		columns_run(&s, column, column_end, ahead);
	}
}

enum err VARIANT(recurrent)(struct kern_ctx *ctx, const struct kern_recurrent_args *a)
{
	struct job j = {.a = a, .columns = a->value_dim};
	const u32 heads = a->state.rows * a->heads;
	ASSERT(a->key_dim >= 1 && a->key_dim <= KERN_RECURRENT_DIM_MAX && a->value_dim >= 1);
	const u32 threads = kern_thread_count(ctx);
	if (heads < TASKS_A_THREAD * threads)
		for (j.columns = COLUMNS_MOST; heads * kern_ceil(a->value_dim, j.columns) < threads && j.columns > COLUMNS_LEAST;)
			j.columns /= 2;
	j.parts = kern_ceil(a->value_dim, j.columns);
	parallel_near(ctx, a->state.rows, heads * j.parts, part, &j);
	return ERR_OK;
}
