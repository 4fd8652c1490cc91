/* References of sparse attention's ops; of index_keys and index_gather, which move bytes, the only variants. */
#include "kernels/index_priv.h"
#include "kernels/kv_priv.h"

enum { KEYS_TOKENS = 16 /* of a task */ };

/* ---------------------------------------------------------------- keys */

static void keys_store(void *arg, u32 task, u32 thread)
{
	const struct kern_index_keys_args *a = arg;
	const struct kern_kv *kv = a->kv;
	(void)thread;
	for (u32 t = task * KEYS_TOKENS, end = kern_min(t + KEYS_TOKENS, a->tokens); t < end; t++) {
		if (a->slots[t] < 0)
			continue;
		const size_t block = (size_t)a->slots[t] / kv->block_size;
		const u32 offset = (u32)((size_t)a->slots[t] % kv->block_size);
		kern_kv_store(kv, kern_kv_key(kv, block, 0, offset), kv->block_size, kern_kv_scale(kv, kv->k, block, 0, offset),
			      a->keys + (size_t)t * kv->head_dim);
	}
}

enum err index_keys_ref(struct kern_ctx *ctx, const struct kern_index_keys_args *a)
{
	struct kern_index_keys_args args = *a;
	ASSERT(a->kv->kv_heads == 1 && a->kv->head_dim <= KERN_HEAD_DIM_MAX);
	kern_parallel(ctx, kern_ceil(a->tokens, KEYS_TOKENS), keys_store, &args);
	return ERR_OK;
}

/* ---------------------------------------------------------------- choosing */

static void scores_of(void *arg, u32 task, u32 thread)
{
	const struct kern_index_choose_args *a = arg;
	const struct kern_index_query *q = &a->list[task];
	const struct kern_kv *kv = a->kv;
	const float *weights = a->weights + (size_t)q->token * a->heads;
	float key[KERN_HEAD_DIM_MAX];
	(void)thread;
	for (u32 k = 0; k < q->visible; k++) {
		const size_t block = a->block_tables[(size_t)q->row * a->block_stride + k / kv->block_size];
		const u32 offset = k % kv->block_size;
		double sum = 0;
		kern_kv_load(kv, key, kern_kv_key(kv, block, 0, offset), kv->block_size, kern_kv_scale(kv, kv->k, block, 0, offset));
		for (u32 h = 0; h < a->heads; h++) {
			const float *query = a->queries + ((size_t)q->token * a->heads + h) * kv->head_dim;
			double dot = 0;
			for (u32 i = 0; i < kv->head_dim; i++)
				dot += (double)query[i] * key[i];
			sum += dot > 0 ? weights[h] * dot : 0;
		}
		a->scores[(size_t)task * a->score_stride + k] = (float)sum;
	}
}

enum err index_choose_ref(struct kern_ctx *ctx, const struct kern_index_choose_args *a)
{
	struct kern_index_choose_args args = *a;
	ASSERT(a->kv->kv_heads == 1 && a->kv->head_dim <= KERN_HEAD_DIM_MAX);
	kern_parallel(ctx, a->count, scores_of, &args);
	kern_index_select_all(ctx, a);
	return ERR_OK;
}

/* ---------------------------------------------------------------- gathering */

/* Where a chosen key lies. */
struct place {
	size_t block;
	u32 offset;
};

static struct place place_of(const struct kern_index_gather_args *a, const struct kern_index_query *q, u32 key)
{
	const u32 size = a->from->block_size;
	return (struct place){a->block_tables[(size_t)q->row * a->block_stride + key / size], key % size};
}

static void gather_scales(const struct kern_index_gather_args *a, const void *from, const void *to, size_t block, const struct place *places, u32 count)
{
	for (u32 j = 0; j < a->to->block_size; j++)
		*kern_kv_scale(a->to, to, block, 0, j) = j < count ? *kern_kv_scale(a->from, from, places[j].block, 0, places[j].offset) : 0;
}

/* Values row by row, and of keys the words that are no value's. */
static void gather_words(const struct kern_index_gather_args *a, size_t block, const struct place *places, u32 count, u32 own)
{
	const u32 words = kern_kv_words(a->to), size = a->to->block_size, from_size = a->from->block_size;
	for (u32 j = 0; j < size; j++) {
		u32 *key = kern_kv_key(a->to, block, 0, j), *value = kern_kv_value(a->to, block, 0, j);
		if (j >= count) {
			memset(value, 0, words * sizeof(*value));
			for (u32 w = 0; w < own; w++)
				key[(size_t)w * size] = 0;
			continue;
		}
		const u32 *from = kern_kv_key(a->from, places[j].block, 0, places[j].offset);
		for (u32 w = 0; w < own; w++)
			key[(size_t)w * size] = from[(size_t)w * from_size];
		memcpy(value, kern_kv_value(a->from, places[j].block, 0, places[j].offset), words * sizeof(*value));
	}
}

/* Of KERN_I16, whose keys' scales may be larger than their values': words from `own` on of a key, from its value's. */
static void rescale(const struct kern_index_gather_args *a, size_t block, u32 offset, u32 own, float ratio)
{
	const u32 words = kern_kv_words(a->to), size = a->to->block_size;
	u32 *key = kern_kv_key(a->to, block, 0, offset), scaled[KERN_HEAD_DIM_MAX / 2];
	const int16_t *value = (const int16_t *)(const void *)kern_kv_value(a->to, block, 0, offset);
	int16_t *to = (int16_t *)(void *)scaled;
	for (u32 i = 2 * own; i < 2 * words; i++)
		to[i] = kern_float_to_i16((float)value[i] * ratio);
	for (u32 w = own; w < words; w++)
		key[(size_t)w * size] = scaled[w];
}

static void rescale_values(const struct kern_index_gather_args *a, size_t block, u32 own)
{
	for (u32 j = 0; j < a->to->block_size; j++) {
		const float key = *kern_kv_scale(a->to, a->to->k, block, 0, j), value = *kern_kv_scale(a->to, a->to->v, block, 0, j);
		rescale(a, block, j, own, key > 0 ? value / key : 0); /* 0 and NaN: whatever is stored */
	}
}

/* The other words of keys: a column of keys is a row of values, some of both at once that they lie in few lines. */
static void turn_values(const struct kern_index_gather_args *a, size_t block, u32 own)
{
	enum { WORDS = 16 };
	const u32 words = kern_kv_words(a->to), size = a->to->block_size;
	u32 *keys = kern_kv_key(a->to, block, 0, 0);
	const u32 *values = kern_kv_value(a->to, block, 0, 0);
	for (u32 first = own; first < words; first += WORDS)
		for (u32 j = 0; j < size; j++)
			for (u32 w = first, end = kern_min(first + WORDS, words); w < end; w++)
				keys[(size_t)w * size + j] = values[(size_t)j * words + w];
}

/* One block of one query. */
static void gather_block(void *arg, u32 task, u32 thread)
{
	enum { KEYS_MOST = 256 };
	const struct kern_index_gather_args *a = arg;
	const u32 size = a->to->block_size, blocks = kern_ceil(a->top, size), first = task % blocks * size, count = kern_min(size, a->top - first);
	const struct kern_index_query *q = &a->list[task / blocks];
	const u32 *chosen = a->chosen + (size_t)q->token * a->top + first, words = kern_kv_words(a->to);
	const bool bytes = a->to->dtype == KERN_I8 || a->to->dtype == KERN_F8E4M3;
	const u32 own = bytes ? words : kern_min(words, a->apart / kern_kv_group(a->to));
	struct place places[KEYS_MOST];
	(void)thread;
	ASSERT(size <= KEYS_MOST);
	for (u32 j = 0; j < count; j++)
		places[j] = place_of(a, q, chosen[j]);
	gather_words(a, task, places, count, own);
	if (!kern_kv_is_quantized(a->to)) {
		turn_values(a, task, own);
		return;
	}
	gather_scales(a, a->from->k, a->to->k, task, places, count);
	gather_scales(a, a->from->v, a->to->v, task, places, count);
	if (!bytes)
		rescale_values(a, task, own);
}

enum err index_gather_ref(struct kern_ctx *ctx, const struct kern_index_gather_args *a)
{
	struct kern_index_gather_args args = *a;
	ASSERT(a->from->kv_heads == 1 && a->to->kv_heads == 1 && a->from->head_dim == a->to->head_dim && a->from->dtype == a->to->dtype &&
	       a->apart % 2 == 0);
	kern_parallel(ctx, a->count * kern_ceil(a->top, a->to->block_size), gather_block, &args);
	return ERR_OK;
}
