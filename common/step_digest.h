/* The rolling digest by which a worker proves in every step that its state equals the scheduler's mirror of it.
 *
 * The state of a row is the multiset of its items: (row, sequence, prompt and known tokens, tokens computed when
 * added) and (row, index in the block table, block). The set sum is the wrapping sum of the items' hashes, so adding
 * and removing are O(changes). The step's digest mixes in what the rule "a computed prompt runs one token" adds: how
 * many rows ran, how many tokens, and the sum of computed counts over all rows before the step. */
#ifndef TERCET_COMMON_STEP_DIGEST_H
#define TERCET_COMMON_STEP_DIGEST_H

#include "common/types.h"

/* splitmix64's finaliser (Steele, Lea, Flood 2014). */
static inline u64 step_digest_mix(u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline u64 step_digest_row(u32 row, u64 seq, u32 prompt_count, u32 token_count, u32 computed)
{
	u64 a = step_digest_mix(seq + 0x9e3779b97f4a7c15u * (row + 1ull));
	return step_digest_mix(a ^ ((u64)prompt_count << 32 | token_count)) ^ step_digest_mix(a + computed);
}

static inline u64 step_digest_block(u32 row, u32 index, u32 block)
{
	return step_digest_mix((u64)row << 40 ^ (u64)index << 20 ^ block ^ 0x5851f42d4c957f2du * (index + 1ull));
}

/* `computed_sum`: over all rows present, the computed count before this step's tokens are added. */
static inline u64 step_digest_step(u64 step, u64 set_sum, u32 rows_run, u32 tokens_run, u64 computed_sum)
{
	u64 a = step_digest_mix(set_sum + step);
	a = step_digest_mix(a ^ ((u64)rows_run << 32 | tokens_run));
	return step_digest_mix(a + computed_sum);
}

#endif
