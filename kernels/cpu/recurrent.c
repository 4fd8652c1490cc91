/* Linear recurrences. Columns of a state depend on nothing but themselves, so a task has some of one head: of these a tile at a time is
 * copied, which the first-level cache holds (where it lies, every row of it would be in the same few sets of the cache), and goes through
 * the tokens of the row there. A token is one pass over it: as a row is updated, it is added to that token's outputs and, of the delta rule,
 * to what the next token's key finds. All sums are over rising i, in one lane for each column: the same wherever a call or a block of tokens ends. */
#include <math.h>

#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"

enum {
	BLOCK = 256,		/* tokens whose factors are computed at once */
	TILE_FLOATS = 8192,	/* most of a first-level cache */
	PART_COLUMNS = 64,	/* of a task, where heads are too few for the threads */
	TASKS_A_THREAD = 4,
	VECS = VEC_LANES == 8 ? 2 : 4, /* side by side, as many as there are registers for */
};

/* Of the tokens of a block, for one head. */
struct factors {
	_Alignas(64) float w[BLOCK], add[BLOCK]; /* what the state is multiplied by; and what is added to it */
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
		f->found[t] = f->w[t] * length;
		f->add[t] *= length;
		f->out[t] = 1 / sqrtf((squares_of(s->q + (size_t)t * a->stride, a->key_dim) + 1e-6f) * dim);
	}
}

static void factors_of(struct span *s, u32 h, const float *decay, const float *beta)
{
	const struct kern_recurrent_args *a = s->a;
	struct factors *f = &s->f;
	const u32 whole = kern_ceil(s->tokens, VEC_LANES) * VEC_LANES;
	for (u32 t = 0; t < whole; t++)
		f->w[t] = t < s->tokens ? decay[(size_t)t * a->stride + h] : 0;
	decay_factors(f, a, h, s->tokens);
	if (a->kind != KERN_DELTA)
		return;
	for (u32 t = 0; t < whole; t++)
		f->add[t] = t < s->tokens ? beta[(size_t)t * a->stride + h] : 0;
	delta_factors(f, s, s->tokens);
}

/* ---------------------------------------------------------------- tiles */

/* Copies a tile of `vecs` vectors a row, the last of n lanes; of the delta rule with what the first token's key finds. */
static ALWAYS_INLINE void tile_take(struct span *s, const float *state, vec *found, const u32 vecs, u32 n, const bool delta)
{
	const u32 keys = s->a->key_dim, stride = s->a->value_dim;
	float *tile = s->tile;
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		found[v] = vec_zero();
	if (s->begins) {
		memset(tile, 0, (size_t)keys * vecs * VEC_LANES * sizeof(float));
		return;
	}
	for (u32 i = 0; i < keys; i++) {
		const vec k = vec_set1(s->k[i]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const float *at = state + (size_t)i * stride + v * VEC_LANES;
			const vec x = vecs == 1 ? vec_load_n(at, n) : vec_load(at);
			vec_store(tile + (i * vecs + v) * VEC_LANES, x);
			if (delta)
				found[v] = vec_fma(k, x, found[v]);
		}
	}
}

/* One token but the last: the tile stays where it is. */
static ALWAYS_INLINE void tile_pass(struct span *s, u32 t, const vec *add, vec *out, vec *found, const u32 vecs, const bool delta)
{
	const u32 keys = s->a->key_dim;
	const float *q = s->q + (size_t)t * s->a->stride, *k = s->k + (size_t)t * s->a->stride, *next = k + s->a->stride;
	const vec w = vec_set1(s->f.w[t]);
	float *at = s->tile;
	vec sums[VECS], finds[VECS];
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		sums[v] = finds[v] = vec_zero();
	for (u32 i = 0; i < keys; i++, at += vecs * VEC_LANES) {
		const vec key = vec_set1(k[i]), query = vec_set1(q[i]), next_key = vec_set1(next[i]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const vec x = vec_fma(key, add[v], vec_mul(w, vec_load(at + v * VEC_LANES)));
			vec_store(at + v * VEC_LANES, x);
			sums[v] = vec_fma(query, x, sums[v]);
			if (delta)
				finds[v] = vec_fma(next_key, x, finds[v]);
		}
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		out[v] = sums[v];
		found[v] = finds[v];
	}
}

/* The last one: the tile goes where it came from, and others are asked for. */
static ALWAYS_INLINE void tile_give(struct span *s, u32 t, float *state, const vec *add, vec *out, const u32 vecs, u32 n)
{
	const u32 keys = s->a->key_dim, stride = s->a->value_dim;
	const float *q = s->q + (size_t)t * s->a->stride, *k = s->k + (size_t)t * s->a->stride, *at = s->tile, *ahead = s->ahead;
	const vec w = vec_set1(s->f.w[t]);
	vec sums[VECS];
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		sums[v] = vec_zero();
	for (u32 i = 0; i < keys; i++, at += vecs * VEC_LANES, state += stride, ahead += stride) {
		const vec key = vec_set1(k[i]), query = vec_set1(q[i]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const vec x = vec_fma(key, add[v], vec_mul(w, vec_load(at + v * VEC_LANES)));
			if (v * VEC_LANES % 16 == 0)
				__builtin_prefetch(ahead + v * VEC_LANES, 1, 3);
			if (vecs == 1)
				vec_store_n(state, x, n);
			else
				vec_store(state + v * VEC_LANES, x);
			sums[v] = vec_fma(query, x, sums[v]);
		}
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		out[v] = sums[v];
}

/* Columns [j, j + vecs * VEC_LANES) of the head, the last vector of which has n. */
static ALWAYS_INLINE void tile_run(struct span *s, u32 j, const u32 vecs, u32 n, const bool delta)
{
	const struct kern_recurrent_args *a = s->a;
	vec add[VECS], out[VECS], found[VECS];
	tile_take(s, s->state + j, found, vecs, n, delta);
	for (u32 t = 0; t < s->tokens; t++) {
		const size_t at = (size_t)t * a->stride + j;
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const vec x = vec_load_n(s->v + at + v * VEC_LANES, v + 1 < vecs ? VEC_LANES : n);
			add[v] = delta ? vec_sub(x, vec_mul(found[v], vec_set1(s->f.found[t]))) : x;
			add[v] = vec_mul(add[v], vec_set1(s->f.add[t]));
		}
		if (t + 1 < s->tokens)
			tile_pass(s, t, add, out, found, vecs, delta);
		else
			tile_give(s, t, s->state + j, add, out, vecs, n);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const u32 lanes = v + 1 < vecs ? VEC_LANES : n;
			if (delta)
				out[v] = vec_mul(out[v], vec_set1(s->f.out[t]));
			else
				out[v] = vec_fma(vec_set1(s->skip), vec_load_n(s->v + at + v * VEC_LANES, lanes), out[v]);
			vec_store_n(s->out + at + v * VEC_LANES, out[v], lanes);
		}
	}
}

#define TILE_RUN(name, vecs, delta)                                  \
	static void name(struct span *s, u32 j, u32 n)               \
	{                                                            \
		tile_run(s, j, vecs, vecs == 1 ? n : VEC_LANES, delta); \
	}
TILE_RUN(delta_one, 1, true)
TILE_RUN(delta_two, 2, true)
TILE_RUN(scan_one, 1, false)
TILE_RUN(scan_two, 2, false)
#if VEC_LANES != 8
TILE_RUN(delta_four, 4, true)
TILE_RUN(scan_four, 4, false)
#endif

/* Columns [first, end) of the head, for a block of tokens. */
static void columns_run(struct span *s, u32 first, u32 end, const float *ahead)
{
	const bool delta = s->a->kind == KERN_DELTA;
	const u32 most = TILE_FLOATS / s->a->key_dim / VEC_LANES;
	for (u32 j = first, vecs; j < end; j += vecs * VEC_LANES) {
		const u32 left = end - j;
		for (vecs = VECS; vecs > 1 && (vecs > most || vecs * VEC_LANES > left);)
			vecs /= 2;
		s->ahead = left > vecs * VEC_LANES ? s->state + j + vecs * VEC_LANES : ahead;
#if VEC_LANES != 8
		if (vecs == 4) {
			(delta ? delta_four : scan_four)(s, j, VEC_LANES);
			continue;
		}
#endif
		if (vecs == 2)
			(delta ? delta_two : scan_two)(s, j, VEC_LANES);
		else
			(delta ? delta_one : scan_one)(s, j, kern_min(left, VEC_LANES));
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
		s.tokens = kern_min(end - t, BLOCK);
		s.begins = t == first && a->state.context[r] == end - first;
		factors_of(&s, h, a->decay + row, a->kind == KERN_DELTA ? a->beta + row : NULL);
		columns_run(&s, column, column_end, ahead);
	}
}

enum err VARIANT(recurrent)(struct kern_ctx *ctx, const struct kern_recurrent_args *a)
{
	struct job j = {.a = a, .parts = 1, .columns = a->value_dim};
	const u32 heads = a->state.rows * a->heads;
	ASSERT(a->key_dim >= 1 && a->key_dim <= KERN_RECURRENT_DIM_MAX && a->value_dim >= 1 && a->heads % a->key_heads == 0);
	if (heads < TASKS_A_THREAD * kern_thread_count(ctx)) {
		j.columns = PART_COLUMNS;
		j.parts = kern_ceil(a->value_dim, j.columns);
	}
	parallel_near(ctx, a->state.rows, heads * j.parts, part, &j);
	return ERR_OK;
}
