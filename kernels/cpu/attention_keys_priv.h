/* Keys and values of attention: which ones a task reads, where those of a part lie, group by group, and what of them memory is asked for before
 * it is needed. Included by attention.c alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_KEYS_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_KEYS_PRIV_H

#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

static size_t block_of(const struct kern_attention_args *a, u32 row, u32 key)
{
	return a->block_tables[(size_t)row * a->block_stride + key / a->kv.block_size];
}

static size_t block_at(const struct tile *t, u32 key)
{
	return block_of(t->a, t->row, key);
}

/* Blocks that do not hold whole groups: copies keys and values of one side by side. */
static void gather_group(struct tile *t, u32 key, u32 end, u32 group)
{
	const struct kern_kv *kv = &t->a->kv;
	size_t slot = (size_t)group * GROUP, part = (size_t)ATTENTION_PART * t->words;
	u32 *keys = t->lane.gathered + slot * t->words, *values = keys + part;
	float *scales = (float *)(void *)(t->lane.gathered + 2 * part) + 2 * slot;
	memset(keys, 0, GROUP * t->value_bytes);
	memset(scales, 0, 2 * GROUP * sizeof(float));
	for (u32 i = 0; i < GROUP && key + i < end; i++) {
		u32 offset = (key + i) % kv->block_size;
		size_t block = block_at(t, key + i);
		const u32 *from = kern_kv_key(kv, block, t->kv_head, offset);
		for (u32 d = 0; d < t->words; d++)
			keys[d * GROUP + i] = from[(size_t)d * kv->block_size];
		memcpy(values + i * t->words, kern_kv_value(kv, block, t->kv_head, offset), t->value_bytes);
		if (!kern_kv_is_quantized(kv))
			continue;
		scales[i] = *kern_kv_scale(kv, kv->k, block, t->kv_head, offset);
		scales[GROUP + i] = *kern_kv_scale(kv, kv->v, block, t->kv_head, offset);
	}
	t->keys[group] = (const char *)keys;
	t->values[group] = (const char *)values;
	t->key_scales[group] = scales;
	t->value_scales[group] = scales + GROUP;
}

/* Groups of a block share their lines: each group asks for its share of the block's memory. */
static const char *key_memory(const struct kern_attention_args *a, u32 row, u32 kv_head, u32 key)
{
	const struct kern_kv *kv = &a->kv;
	const char *head = kern_kv_head(kv, kv->k, block_of(a, row, key), kv_head);
	return head + key % kv->block_size * kern_kv_words(kv) * sizeof(u32);
}

/* Asks for the scales of the part of keys from `begin` on, before `end`: they lie apart, and are read all at once when it begins. */
static void scales_ahead(const struct kern_attention_args *a, u32 row, u32 kv_head, u32 begin, u32 end)
{
	const struct kern_kv *kv = &a->kv;
	for (u32 key = begin; kern_kv_is_quantized(kv) && key < end && key < begin + ATTENTION_PART; key += GROUP) {
		const size_t block = block_of(a, row, key);
		__builtin_prefetch(kern_kv_scale(kv, kv->k, block, kv_head, key % kv->block_size), 0, 2);
		__builtin_prefetch(kern_kv_scale(kv, kv->v, block, kv_head, key % kv->block_size), 0, 2);
	}
}

/* The keys that a task reads: from the part that the first one it sees is in. */
static void task_keys(const struct kern_attention_args *a, const struct attention_task *task, u32 *begin, u32 *end)
{
	const u32 last = a->context[task->row] - task->queries_of_row + task->query, first = kern_attention_first(a, last);
	*begin = task->segment * ATTENTION_SEGMENT;
	if (first > *begin)
		*begin = first / ATTENTION_PART * ATTENTION_PART;
	*end = kern_min(last + task->queries, task->segment_end * ATTENTION_SEGMENT);
}

/* Where the thread's next task begins to read. */
static void find_following(struct tile *t)
{
	const struct kern_attention_args *a = t->a;
	const struct attention_task *next = t->next;
	u32 begin, end;
	task_keys(a, next, &begin, &end);
	for (u32 key = begin; t->following_count < AHEAD && key < end; key += GROUP)
		t->following[t->following_count++] = key_memory(a, next->row, next->kv_head, key);
	scales_ahead(a, next->row, next->kv_head, begin, end);
}

/* Groups that lie whole in their blocks, from key `begin` on. Their memory, and that of the next part's first ones, into
 * `ahead`. */
static void find_groups(struct tile *t, u32 begin)
{
	const struct kern_kv *kv = &t->a->kv;
	const size_t slab = kern_kv_slab(kv), first = t->kv_head * slab, line = (size_t)kv->block_size * sizeof(u32);
	const u32 *block = t->a->block_tables + (size_t)t->row * t->a->block_stride + begin / kv->block_size;
	u32 offset = begin % kv->block_size, more = t->end > begin + ATTENTION_PART ? t->end - begin - ATTENTION_PART : 0;
	more = kern_min(kern_ceil(more, GROUP), AHEAD);
	for (u32 g = 0; g < t->groups + more; g++) {
		const size_t at = kern_kv_block_at(kv, *block) + first;
		const char *key = (const char *)kv->k + at, *value = (const char *)kv->v + at;
		if (g >= t->groups) {
			t->ahead[t->groups + g] = key + offset * t->value_bytes;
		} else {
			const size_t scale = t->words * line + offset * sizeof(float);
			t->ahead[g] = key + offset * t->value_bytes;
			t->keys[g] = key + offset * sizeof(u32);
			t->values[g] = value + offset * t->value_bytes;
			t->key_scales[g] = (const float *)(const void *)(key + scale);
			t->value_scales[g] = (const float *)(const void *)(value + scale);
		}
		offset += GROUP;
		if (offset == kv->block_size) {
			offset = 0;
			block++;
		}
	}
	t->ahead_count = 2 * t->groups + more;
	scales_ahead(t->a, t->row, t->kv_head, begin + ATTENTION_PART, t->end);
}

/* What else is asked for, behind what find_groups has found. */
static void ahead_begin(struct tile *t, bool whole)
{
	u32 groups = t->groups, n = whole ? t->ahead_count : 2 * groups;
	for (u32 g = 0; g < groups; g++) {
		if (!whole)
			t->ahead[g] = t->keys[g];
		t->ahead[groups + g] = t->values[g];
	}
	for (u32 g = 0; g < t->following_count && n < COUNT_OF(t->ahead); g++)
		t->ahead[n++] = t->following[g];
	while (n < COUNT_OF(t->ahead))
		t->ahead[n++] = t->values[0]; /* nothing more to ask for */
}

/* The scales of the part's `count` keys and values, side by side. */
static void find_scales(struct tile *t, u32 count)
{
	vec none = vec_zero();
	for (u32 g = 0; g < t->groups; g++)
		for (u32 i = 0; i < GROUP; i += VEC_LANES) {
			const u32 at = g * GROUP + i, n = count > at ? kern_min(count - at, VEC_LANES) : 0;
			const vec value = vec_load_n(t->value_scales[g] + i, n);
			vec_store(t->scales[0] + at, vec_load_n(t->key_scales[g] + i, n));
			vec_store(t->scales[1] + at, value);
			none = vec_add(none, vec_sub(value, value)); /* NaN where a scale is no number, or infinite */
		}
	t->finite = vec_sum(none) == 0;
	for (u32 g = t->groups; g % 4 != 0; g++) /* as far as scores are computed, of keys that are masked */
		for (u32 i = 0; i < GROUP; i += VEC_LANES) {
			vec_store(t->scales[0] + g * GROUP + i, vec_zero());
			vec_store(t->scales[1] + g * GROUP + i, vec_zero());
		}
}

/* Finds the keys and values of [begin, end), group by group. `begin` is a multiple of GROUP. */
static void part_begin(struct tile *t, u32 begin, u32 end)
{
	bool whole = t->a->kv.block_size % GROUP == 0;
	u32 groups = kern_ceil(end - begin, GROUP);
	t->groups = groups;
	t->value_bytes = t->words * sizeof(u32);
	t->key_stride = (whole ? t->a->kv.block_size : GROUP) * sizeof(u32);
	if (whole)
		find_groups(t, begin);
	for (u32 g = 0; g < groups && !whole; g++)
		gather_group(t, begin + g * GROUP, end, g);
	t->laced = (char *)t->lane.laced;
	t->laced_keys = 0;
	t->part_keys = end - begin;
	/* Scores are computed for four groups at once; what is too many is masked. */
	for (u32 g = groups; g % 4 != 0; g++)
		t->keys[g] = t->keys[groups - 1];
	if (kern_kv_is_quantized(&t->a->kv))
		find_scales(t, end - begin);
	ahead_begin(t, whole);
}

#endif

#endif
