/* Scores of an indexer. A lane is a key. Some keys of a row are brought to floats, a dimension's side by side, and then meet all heads of all queries that
 * a task has of that row, some heads at a time, whose sums stay in registers. A score is the same whatever stands beside it: its dots add up over
 * rising dimensions, and then over rising heads. */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"
#include "kernels/index_priv.h"
#include "kernels/kv_priv.h"

enum {
	VECS = 2,
	KEYS = VECS * VEC_LANES,	  /* that are brought to floats at once */
	HEADS = VEC_LANES == 16 ? 8 : 4,  /* as many as there are registers for */
	TASK_QUERIES = 8,
	TASK_KEYS = 512,
};
_Static_assert(KERN_INDEX_KEYS % KEYS == 0, "scores are written in whole vectors");

struct job {
	const struct kern_index_choose_args *a;
	u32 parts; /* of the keys */
};

/* Of one thread at work. */
struct tile {
	const struct kern_index_choose_args *a;
	float f8[KERN_INDEX_CODES]; /* what the codes of KERN_F8E4M3 stand for */
	_Alignas(64) float keys[(size_t)KERN_HEAD_DIM_MAX * KEYS]; /* [dim][KEYS] */
};

/* ---------------------------------------------------------------- keys */

/* Words of `count` neighbours of a block, a word's side by side, as floats without their scales. */
static void unpack(struct tile *t, u32 to, const u32 *words, size_t stride, u32 count)
{
	const struct kern_kv *kv = t->a->kv;
	const u32 group = kern_kv_group(kv);
	for (u32 w = 0; w < kern_kv_words(kv); w++, words += stride) {
		float *out = t->keys + (size_t)w * group * KEYS + to;
		switch (kv->dtype) { /* a last word may have dimensions that are none: zeros, or of I8 what is read nowhere */
		case KERN_F32:
			memcpy(out, words, count * sizeof(*out));
			break;
		case KERN_BF16:
			for (u32 j = 0; j < count; j++) {
				const u32 low = words[j] << 16, high = words[j] & 0xffff0000u;
				memcpy(out + j, &low, sizeof(low));
				memcpy(out + KEYS + j, &high, sizeof(high));
			}
			break;
		case KERN_I16:
			for (u32 j = 0; j < count; j++) {
				out[j] = (float)(int16_t)(words[j] & 0xffff);
				out[KEYS + j] = (float)(int16_t)(words[j] >> 16);
			}
			break;
		case KERN_I8:
			for (u32 i = 0; i < group; i++)
				for (u32 j = 0; j < count; j++)
					out[i * KEYS + j] = (float)((i32)(words[j] >> 8 * i & 255) - KERN_KV_OFFSET);
			break;
		default:
			for (u32 i = 0; i < group; i++)
				for (u32 j = 0; j < count; j++)
					out[i * KEYS + j] = t->f8[words[j] >> 8 * i & 255];
		}
	}
}

static void scale_keys(struct tile *t, const float *scales)
{
	for (u32 i = 0; i < t->a->kv->head_dim; i++)
		for (u32 v = 0; v < VECS; v++) {
			float *at = t->keys + (size_t)i * KEYS + v * VEC_LANES;
			vec_store(at, vec_mul(vec_load(at), vec_load(scales + v * VEC_LANES)));
		}
}

/* Keys [first, end) of a row, KEYS at most, with zeros behind them. */
static void keys_load(struct tile *t, u32 row, u32 first, u32 end)
{
	const struct kern_index_choose_args *a = t->a;
	const struct kern_kv *kv = a->kv;
	const u32 *table = a->block_tables + (size_t)row * a->block_stride;
	_Alignas(64) float scales[KEYS] = {0};
	if (end - first < KEYS)
		memset(t->keys, 0, (size_t)kern_kv_words(kv) * kern_kv_group(kv) * KEYS * sizeof(float));
	for (u32 k = first; k < end;) {
		const size_t block = table[k / kv->block_size];
		const u32 offset = k % kv->block_size, count = kern_min(kv->block_size - offset, end - k);
		unpack(t, k - first, kern_kv_key(kv, block, 0, offset), kv->block_size, count);
		if (kern_kv_is_quantized(kv))
			memcpy(scales + (k - first), kern_kv_scale(kv, kv->k, block, 0, offset), count * sizeof(float));
		k += count;
	}
	if (kern_kv_is_quantized(kv))
		scale_keys(t, scales);
}

/* ---------------------------------------------------------------- scores */

/* What `heads` of a query add to the sums of all keys of the tile. */
static ALWAYS_INLINE void add_heads(const struct tile *t, const float *query, const float *weights, const u32 heads, vec *sums)
{
	const u32 dim = t->a->kv->head_dim;
	vec dots[HEADS][VECS];
#pragma GCC unroll 8
	for (u32 h = 0; h < heads; h++)
#pragma GCC unroll 2
		for (u32 v = 0; v < VECS; v++)
			dots[h][v] = vec_zero();
	for (u32 i = 0; i < dim; i++) {
		const vec one = vec_load(t->keys + (size_t)i * KEYS), two = vec_load(t->keys + (size_t)i * KEYS + VEC_LANES);
#pragma GCC unroll 8
		for (u32 h = 0; h < heads; h++) {
			const vec q = vec_set1(query[(size_t)h * dim + i]);
			dots[h][0] = vec_fma(q, one, dots[h][0]);
			dots[h][1] = vec_fma(q, two, dots[h][1]);
		}
	}
#pragma GCC unroll 8
	for (u32 h = 0; h < heads; h++)
#pragma GCC unroll 2
		for (u32 v = 0; v < VECS; v++)
			sums[v] = vec_fma(vec_set1(weights[h]), vec_max(dots[h][v], vec_zero()), sums[v]);
}

static void query_scores(const struct tile *t, u32 at, u32 first)
{
	const struct kern_index_choose_args *a = t->a;
	const u32 token = a->list[at].token, dim = a->kv->head_dim;
	const float *query = a->queries + (size_t)token * a->heads * dim, *weights = a->weights + (size_t)token * a->heads;
	float *out = a->scores + (size_t)at * a->score_stride + first;
	vec sums[VECS] = {vec_zero(), vec_zero()};
	u32 h = 0;
	for (; h + HEADS <= a->heads; h += HEADS)
		add_heads(t, query + (size_t)h * dim, weights + h, HEADS, sums);
	for (; h < a->heads; h++)
		add_heads(t, query + (size_t)h * dim, weights + h, 1, sums);
	vec_store(out, sums[0]);
	vec_store(out + VEC_LANES, sums[1]);
}

/* Queries [begin, end) of the list, all of one row, over keys [first, last) of those that they see. */
static void row_scores(struct tile *t, u32 begin, u32 end, u32 first, u32 last)
{
	const struct kern_index_query *list = t->a->list;
	u32 most = 0;
	for (u32 i = begin; i < end; i++)
		most = list[i].visible > most ? list[i].visible : most;
	last = kern_min(last, most);
	for (u32 k = first; k < last; k += KEYS) {
		keys_load(t, list[begin].row, k, kern_min(k + KEYS, last));
		for (u32 i = begin; i < end; i++)
			if (list[i].visible > k)
				query_scores(t, i, k);
	}
}

static void scores_of(void *arg, u32 task, u32 thread)
{
	const struct job *job = arg;
	const struct kern_index_choose_args *a = job->a;
	const u32 begin = task / job->parts * TASK_QUERIES, end = kern_min(begin + TASK_QUERIES, a->count), first = task % job->parts * TASK_KEYS;
	struct tile t;
	(void)thread;
	t.a = a;
	if (a->kv->dtype == KERN_F8E4M3)
		kern_index_codes(t.f8);
	for (u32 i = begin, next; i < end; i = next) {
		for (next = i + 1; next < end && a->list[next].row == a->list[i].row;)
			next++;
		row_scores(&t, i, next, first, first + TASK_KEYS);
	}
}

enum err VARIANT(index_choose)(struct kern_ctx *ctx, const struct kern_index_choose_args *a)
{
	struct job job = {.a = a};
	u32 most = 0;
	ASSERT(a->kv->kv_heads == 1 && a->kv->head_dim <= KERN_HEAD_DIM_MAX);
	for (u32 i = 0; i < a->count; i++)
		most = a->list[i].visible > most ? a->list[i].visible : most;
	job.parts = kern_ceil(most, TASK_KEYS);
	kern_parallel(ctx, kern_ceil(a->count, TASK_QUERIES) * job.parts, scores_of, &job);
	kern_index_select_all(ctx, a);
	return ERR_OK;
}
