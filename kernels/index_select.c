/* The best of many scores, for every variant of index_choose: by counting how many have the same highest bits, then the next ones, then the last. Every
 * pass is one over the scores, however these lie, and none changes them. */
#include "kernels/index_priv.h"
#include "kernels/kv_priv.h"

enum { HIGH_BITS = 11, MIDDLE_BITS = 11, LOW_BITS = 10, COUNTS = 1 << HIGH_BITS };

/* A number that is larger where the score is, of NaNs some number. */
static inline u32 rank_of(float score)
{
	u32 bits;
	score += 0.0f; /* of two zeros one */
	memcpy(&bits, &score, sizeof(bits));
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Counts the ranks whose bits from `shift + bits` on are those of `like`, by the `bits` below; returns `like` with those of the `*wanted`-th largest,
 * and leaves in `*wanted` how many of these that is. */
static u32 narrow(const float *scores, u32 count, u32 like, u32 shift, u32 bits, u32 *wanted)
{
	u32 counts[COUNTS] = {0}, value = (1u << bits) - 1;
	const u32 mask = (1u << bits) - 1;
	const u64 above = (u64)like >> (shift + bits);

	for (u32 i = 0; i < count; i++) {
		const u32 rank = rank_of(scores[i]);
		if ((u64)rank >> (shift + bits) == above)
			counts[rank >> shift & mask]++;
	}
	for (; counts[value] < *wanted; value--)
		*wanted -= counts[value];
	return like | value << shift;
}

void kern_index_select(const float *scores, u32 count, u32 top, u32 *chosen)
{
	u32 equal = top, least = 0, n = 0;

	ASSERT(top > 0 && top <= count);
	least = narrow(scores, count, least, MIDDLE_BITS + LOW_BITS, HIGH_BITS, &equal);
	least = narrow(scores, count, least, LOW_BITS, MIDDLE_BITS, &equal);
	least = narrow(scores, count, least, 0, LOW_BITS, &equal);
	for (u32 i = 0; i < count && n < top; i++) {
		const u32 rank = rank_of(scores[i]);
		if (rank > least || (rank == least && equal > 0)) {
			equal -= rank == least;
			chosen[n++] = i;
		}
	}
	ASSERT(n == top);
}

static void select_one(void *arg, u32 task, u32 thread)
{
	const struct kern_index_choose_args *a = arg;
	const struct kern_index_query *q = &a->list[task];
	(void)thread;
	kern_index_select(a->scores + (size_t)task * a->score_stride, q->visible, a->top, a->chosen + (size_t)q->token * a->top);
}

void kern_index_select_all(struct kern_ctx *ctx, const struct kern_index_choose_args *a)
{
	struct kern_index_choose_args args = *a;
	kern_parallel(ctx, a->count, select_one, &args);
}

/* Not inlined: in the loop gcc takes what a branch sets for what nothing has set. */
static __attribute__((noinline)) float code_value(u32 code)
{
	return kern_f8_to_float((u8)code);
}

void kern_index_codes(float table[KERN_INDEX_CODES])
{
	for (u32 i = 0; i < KERN_INDEX_CODES; i++)
		table[i] = code_value(i);
}
