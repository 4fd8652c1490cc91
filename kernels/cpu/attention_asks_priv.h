/* Decoding by matrix tiles: the keys and values that a thread reads after the part at hand are asked for beside that one's arithmetic, a line of four
 * groups in turn wherever a few instructions have been done. So they are in the L2 cache when their part begins, and memory has no pause while weights
 * are computed. Included by attention.c alone.
 *
 * They are asked for as they lie, all KV heads of four groups, and are read KV head by KV head then. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_ASKS_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_ASKS_PRIV_H

#include "kernels/cpu/attention_tile_priv.h"

#if defined(VEC_LANES) && ATTENTION_TILES

/* Comes to the next KV head of up to four groups, or to the next groups. Of fewer than four, halves or quarters of a group's memory take turns. */
static void asks_turn(struct part_asks *a)
{
	a->line = a->lines = 0;
	if (a->head == a->heads) {
		a->head = 0;
		if (++a->side == ASKS_SIDES) {
			a->side = 0;
			a->group += ASKS_STREAMS;
		}
	}
	if (a->group >= a->groups)
		return;
	const u32 left = a->groups - a->group, groups = left < ASKS_STREAMS ? left : ASKS_STREAMS;
	const u32 parts = groups == 1 ? 4 : groups == 2 ? 2 : 1;
	a->lines = a->group_lines / parts;
	for (u32 i = 0; i < ASKS_STREAMS; i++) {
		const u32 g = kern_min(i / parts, groups - 1);
		a->stream[i] = a->memory[a->side][a->group + g] + a->head * a->slab + i % parts * a->lines * (size_t)LINE;
	}
	a->head++;
}

/* Asks for four lines. */
static ALWAYS_INLINE void asks_go_on(struct part_asks *a)
{
	if (a->lines == 0)
		return;
	const size_t at = (size_t)a->line * LINE;
	__builtin_prefetch(a->stream[0] + at, 0, 2);
	__builtin_prefetch(a->stream[1] + at, 0, 2);
	__builtin_prefetch(a->stream[2] + at, 0, 2);
	__builtin_prefetch(a->stream[3] + at, 0, 2);
	if (++a->line == a->lines)
		asks_turn(a);
}

/* All that is left. */
static void asks_end(struct part_asks *a)
{
	while (a->lines > 0)
		asks_go_on(a);
}

/* From now on keys [begin, end) of `heads` KV heads of a row, from kv_head on, are asked for, ATTENTION_PART of them at most. False, and nothing is:
 * there are none, or so many bytes that they would not be in the cache any more when they are read. Blocks hold whole groups. */
static bool asks_begin(struct part_asks *a, const struct kern_attention_args *args, u32 row, u32 kv_head, u32 heads, u32 begin, u32 end)
{
	const struct kern_kv *kv = &args->kv;
	const u32 words = kern_kv_words(kv);
	*a = (struct part_asks){.heads = heads, .slab = kern_kv_slab(kv), .group_lines = words * GROUP * (u32)sizeof(u32) / LINE};
	end = kern_min(end, begin + ATTENTION_PART);
	if (begin >= end || (size_t)heads * (end - begin) * words * sizeof(u32) * ASKS_SIDES > ASKS_BYTES)
		return false;
	for (u32 key = begin; key < end; key += GROUP, a->groups++) {
		const size_t block = args->block_tables[(size_t)row * args->block_stride + key / kv->block_size];
		const size_t offset = (size_t)(key % kv->block_size) * words * sizeof(u32);
		a->memory[0][a->groups] = kern_kv_head(kv, kv->k, block, kv_head) + offset;
		a->memory[1][a->groups] = kern_kv_head(kv, kv->v, block, kv_head) + offset;
	}
	asks_turn(a);
	return true;
}

#endif

#endif
