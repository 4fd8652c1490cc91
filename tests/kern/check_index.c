/* Checks of sparse attention's ops: keys of an indexer in a cache, what they choose against scores in double, and that what was chosen lies side by
 * side to the bit. */
#include <math.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/check_kv.h"

enum { ROWS = 3, BLOCKS_OF_ROW = 24, BLOCKS = ROWS * BLOCKS_OF_ROW, HEADS_MOST = 19, TOP_MOST = 256 };

static const struct kern_limits small_limits = {
	.tokens = 64, .rows = 64, .heads = 8, .kv_heads = 8, .head_dim = 64, .hidden = 512, .intermediate = 1024, .vocab = 512, .context = 128};

struct index_case {
	enum kern_dtype dtype;
	u32 block_size, dim, heads, top, count;
	bool ties; /* all scores are 0 */
};

/* Every block once, in some order. */
static u32 *tables(struct check *c)
{
	u32 *t = check_alloc(c, BLOCKS * sizeof(u32));
	for (u32 i = 0; i < BLOCKS; i++) {
		const u32 j = check_random(c, i + 1);
		t[i] = t[j];
		t[j] = i;
	}
	return t;
}

static struct check_kv_place place_of(const struct kern_kv *kv, const u32 *blocks, u32 row, u32 key, bool value)
{
	return (struct check_kv_place){.value = value, .block = blocks[row * BLOCKS_OF_ROW + key / kv->block_size], .offset = key % kv->block_size};
}

/* ---------------------------------------------------------------- keys */

/* A key at slot 3 t + 1, but of every fifth token none; then all of them read back. */
static void keys_case(struct check *c, u32 target, const struct index_case *s)
{
	struct kern_kv kv = {.dtype = s->dtype, .block_size = s->block_size, .kv_heads = 1, .head_dim = s->dim, .keys_alone = true};
	const u32 tokens = BLOCKS * s->block_size / 3;
	i64 *slots = check_alloc(c, tokens * sizeof(*slots));
	const char *problem = NULL;
	double read[KERN_HEAD_DIM_MAX];
	struct kern_ctx ctx;
	check_kv_apart(c, &kv);
	kv.k = check_alloc(c, check_kv_bytes(&kv, BLOCKS));
	for (u32 t = 0; t < tokens; t++)
		slots[t] = t % 5 == 4 ? -1 : (i64)(3 * t + 1);
	const struct kern_index_keys_args a = {.keys = check_floats(c, (size_t)tokens * s->dim, false), .slots = slots, .kv = &kv, .tokens = tokens};
	check_ctx(c, &ctx, &small_limits, target % CHECK_POOLS);
	if (c->targets[target].ops.index_keys(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 t = 0; t < tokens && !problem; t++) {
		const struct check_kv_place p = {.block = (3 * t + 1) / s->block_size, .offset = (3 * t + 1) % s->block_size};
		double largest = 0;
		for (u32 i = 0; i < s->dim; i++)
			largest = fmax(largest, fabs(a.keys[(size_t)t * s->dim + i]));
		check_kv_load_head(&kv, p, read);
		for (u32 i = 0; i < s->dim && t % 5 != 4; i++) {
			const double wanted = a.keys[(size_t)t * s->dim + i];
			if (!(fabs(read[i] - wanted) <= check_kv_error(&kv, wanted, largest)))
				problem = "a key is another one";
		}
	}
	check_case_end(c, problem, "index_keys=%s %s block=%u dim=%u", c->targets[target].ops.index_keys_variant, check_kv_name(s->dtype), s->block_size, s->dim);
}

/* ---------------------------------------------------------------- choosing */

/* The score of a key and how large what it is made of is. */
static double score_of(const struct kern_index_choose_args *a, const struct kern_index_query *q, u32 k, double *size)
{
	double key[KERN_HEAD_DIM_MAX], score = 0;
	*size = 1e-30;
	check_kv_load_head(a->kv, place_of(a->kv, a->block_tables, q->row, k, false), key);
	for (u32 h = 0; h < a->heads; h++) {
		const double weight = a->weights[(size_t)q->token * a->heads + h];
		double dot = 0, terms = 0;
		for (u32 i = 0; i < a->kv->head_dim; i++) {
			const double term = a->queries[((size_t)q->token * a->heads + h) * a->kv->head_dim + i] * key[i];
			dot += term;
			terms += fabs(term);
		}
		score += weight * fmax(dot, 0);
		*size += fabs(weight) * terms;
	}
	return score;
}

/* Rising, and none that is left out is better than one that is not. */
static const char *chosen_right(const struct kern_index_choose_args *a, const struct kern_index_query *q, bool ties)
{
	const u32 *chosen = a->chosen + (size_t)q->token * a->top;
	double least = INFINITY, best = -INFINITY, most = 0, size;
	for (u32 i = 0; i < a->top; i++)
		if (chosen[i] >= q->visible || (i > 0 && chosen[i] <= chosen[i - 1]))
			return "what is chosen does not rise, or is not seen";
	for (u32 k = 0, i = 0; k < q->visible; k++) {
		const double score = score_of(a, q, k, &size);
		most = fmax(most, size);
		if (i < a->top && chosen[i] == k) {
			least = fmin(least, score);
			i++;
		} else {
			best = fmax(best, score);
		}
	}
	if (ties && chosen[a->top - 1] != a->top - 1)
		return "of equal scores the first are not chosen";
	return best > least + 1e-6 * most ? "a better key is left out" : NULL;
}

/* The last query as the only one. */
static const char *chosen_alone(struct check *c, u32 target, const struct kern_index_choose_args *a)
{
	struct kern_index_choose_args one = *a;
	const size_t at = (size_t)a->list[a->count - 1].token * a->top;
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &small_limits, 0);
	one.list += a->count - 1;
	one.count = 1;
	one.chosen = check_alloc(c, (at + a->top) * sizeof(u32));
	if (c->targets[target].ops.index_choose(&ctx, &one) != ERR_OK)
		return "an error";
	return memcmp(one.chosen + at, a->chosen + at, a->top * sizeof(u32)) ? "a query alone chooses otherwise than among others" : NULL;
}

/* Queries of rows in turn, tokens in another order than the list's. */
static struct kern_index_query *queries_of(struct check *c, const struct index_case *s)
{
	struct kern_index_query *list = check_alloc(c, s->count * sizeof(*list));
	const u32 most = BLOCKS_OF_ROW * s->block_size;
	for (u32 i = 0; i < s->count; i++)
		list[i] = (struct kern_index_query){s->count - 1 - i, i * ROWS / s->count, i % 4 ? s->top + check_random(c, most - s->top + 1) : s->top};
	return list;
}

static void choose_case(struct check *c, u32 target, const struct index_case *s)
{
	struct kern_kv kv = {.dtype = s->dtype, .block_size = s->block_size, .kv_heads = 1, .head_dim = s->dim};
	const size_t stride = kern_ceil(BLOCKS_OF_ROW * s->block_size, KERN_INDEX_KEYS) * KERN_INDEX_KEYS;
	const char *problem = NULL;
	u32 *first = NULL;
	struct kern_index_choose_args a = {.kv = &kv, .block_stride = BLOCKS_OF_ROW, .count = s->count, .heads = s->heads, .top = s->top,
					   .score_stride = stride};
	check_kv_apart(c, &kv);
	check_kv_alloc(c, &kv, BLOCKS);
	for (u32 k = 0; k < BLOCKS * s->block_size; k++)
		check_kv_fill(c, &kv, (struct check_kv_place){.block = k / s->block_size, .offset = k % s->block_size}, 2);
	float *weights = check_floats(c, (size_t)s->count * s->heads, false);
	for (size_t i = 0; i < (size_t)s->count * s->heads && s->ties; i++)
		weights[i] = 0;
	a.weights = weights;
	a.queries = check_floats(c, (size_t)s->count * s->heads * s->dim, false);
	a.list = queries_of(c, s);
	a.block_tables = tables(c);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		a.chosen = check_alloc(c, (size_t)s->count * s->top * sizeof(u32));
		a.scores = check_alloc(c, s->count * stride * sizeof(float));
		if (c->targets[target].ops.index_choose(&ctx, &a) != ERR_OK)
			problem = "an error";
		first = first ? first : a.chosen;
		if (!problem && memcmp(first, a.chosen, (size_t)s->count * s->top * sizeof(u32)) != 0)
			problem = "another run chooses otherwise";
	}
	for (u32 i = 0; i < s->count && !problem; i++)
		problem = chosen_right(&a, &a.list[i], s->ties);
	if (!problem)
		problem = chosen_alone(c, target, &a);
	check_case_end(c, problem, "index_choose=%s %s block=%u dim=%u heads=%u top=%u count=%u ties=%d", c->targets[target].ops.index_choose_variant,
		       check_kv_name(s->dtype), s->block_size, s->dim, s->heads, s->top, s->count, s->ties);
}

/* ---------------------------------------------------------------- gathering */

/* To the bit, but of what is rounded once more. */
static const char *gathered_right(const struct kern_index_gather_args *a)
{
	const bool bytes = a->to->dtype == KERN_I8 || a->to->dtype == KERN_F8E4M3;
	const u32 size = a->to->block_size, blocks = kern_ceil(a->top, size), apart = bytes ? a->to->head_dim : a->apart;
	double from[KERN_HEAD_DIM_MAX], to[KERN_HEAD_DIM_MAX];
	for (u32 i = 0; i < a->count * blocks * size * 2; i++) {
		const u32 j = i / 2 % (blocks * size), query = i / 2 / (blocks * size);
		const struct kern_index_query *q = &a->list[query];
		const bool value = i % 2;
		check_kv_load_head(a->to, (struct check_kv_place){.value = value, .block = query * blocks + j / size, .offset = j % size}, to);
		memset(from, 0, sizeof(from));
		if (j < a->top) {
			struct check_kv_place p = place_of(a->from, a->block_tables, q->row, a->chosen[(size_t)q->token * a->top + j], value);
			check_kv_load_head(a->from, p, from);
			p.value = true;
			if (!value && apart < a->to->head_dim) { /* what follows is the value's */
				double values[KERN_HEAD_DIM_MAX];
				check_kv_load_head(a->from, p, values);
				memcpy(from + apart, values + apart, (a->to->head_dim - apart) * sizeof(*from));
			}
		}
		const struct check_kv_place own = {.block = query * blocks + j / size, .offset = j % size};
		const double unit = !value && a->to->dtype == KERN_I16 ? 0.501 * check_kv_scale(a->to, &own) : 0;
		for (u32 d = 0; d < a->to->head_dim; d++)
			if (!(fabs(from[d] - to[d]) <= (d < apart ? 0 : unit)))
				return value ? "a value is another one" : "a key is another one";
	}
	return NULL;
}

static void gather_case(struct check *c, u32 target, const struct index_case *s, u32 to_size, u32 apart)
{
	struct kern_kv from = {.dtype = s->dtype, .block_size = s->block_size, .kv_heads = 1, .head_dim = s->dim}, to = from;
	struct kern_index_gather_args a = {.from = &from, .to = &to, .block_stride = BLOCKS_OF_ROW, .count = s->count, .top = s->top, .apart = apart};
	const char *problem = NULL;
	struct kern_ctx ctx;
	to.block_size = to_size;
	check_kv_apart(c, &from);
	check_kv_alloc(c, &from, BLOCKS);
	check_kv_alloc(c, &to, s->count * kern_ceil(s->top, to_size));
	for (u32 k = 0; k < 2 * BLOCKS * s->block_size; k++) { /* no value is larger than its key */
		const struct check_kv_place p = {.value = k % 2, .block = k / 2 / s->block_size, .offset = k / 2 % s->block_size};
		struct check_kv_place key = p;
		key.value = false;
		check_kv_fill(c, &from, p, 2);
		if (s->dtype == KERN_I16 && p.value && check_kv_scale(&from, &p) > check_kv_scale(&from, &key))
			memcpy((char *)from.k + check_kv_scale_at(&from, &key), (char *)from.v + check_kv_scale_at(&from, &p), sizeof(float));
	}
	u32 *chosen = check_alloc(c, (size_t)s->count * s->top * sizeof(u32));
	a.list = queries_of(c, s);
	a.block_tables = tables(c);
	for (u32 i = 0; i < s->count; i++)
		for (u32 j = 0; j < s->top; j++)
			chosen[a.list[i].token * s->top + j] = (u32)((u64)j * a.list[i].visible / s->top);
	a.chosen = chosen;
	check_ctx(c, &ctx, &small_limits, (target + s->count) % CHECK_POOLS);
	if (c->targets[target].ops.index_gather(&ctx, &a) != ERR_OK)
		problem = "an error";
	if (!problem)
		problem = gathered_right(&a);
	check_case_end(c, problem, "index_gather=%s %s block=%u to=%u dim=%u apart=%u top=%u count=%u", c->targets[target].ops.index_gather_variant,
		       check_kv_name(s->dtype), s->block_size, to_size, s->dim, apart, s->top, s->count);
}

void check_index(struct check *c)
{
	static const u32 shapes[][5] = {{1, 2, 1, 1, 1}, {5, 6, 3, 7, 4}, {16, 24, 8, 33, 19}, {32, 128, 12, 100, 9}, {7, 34, HEADS_MOST, 64, 25}, {64, 10, 4, TOP_MOST, 6}};
	for (u32 i = 0; i < c->target_count; i++)
		for (u32 n = 0; n < COUNT_OF(shapes); n++)
			for (u32 t = 0; t < CHECK_KV_TYPES; t++) {
				struct index_case s = {check_kv_types[t], shapes[n][0], shapes[n][1], shapes[n][2], shapes[n][3], shapes[n][4], false};
				if (CHECK_DISTINCT(c, i, index_choose))
					choose_case(c, i, &s);
				s.ties = true;
				if (CHECK_DISTINCT(c, i, index_choose) && t == n % CHECK_KV_TYPES)
					choose_case(c, i, &s);
				if (CHECK_DISTINCT(c, i, index_keys))
					keys_case(c, i, &s);
				if (CHECK_DISTINCT(c, i, index_gather)) {
					gather_case(c, i, &s, 32, s.dim);
					gather_case(c, i, &s, s.block_size, s.dim / 4 * 2);
				}
			}
}
