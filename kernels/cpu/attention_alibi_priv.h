/* What scores of attention fall by with the distance of their keys (ALiBi), of a query head and neighbouring keys. Plain loops, which the compiler makes
 * vectors of: beside the products of a query and a key's dimensions there are few. A score's number depends on its key and query alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_ALIBI_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_ALIBI_PRIV_H

#include <string.h>

#include "kernels/kv_priv.h"

/* To nearest even. Of finite numbers that stay so. */
static inline float alibi_as_bf16(float x)
{
	u32 bits;
	memcpy(&bits, &x, sizeof(bits));
	bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static inline float alibi_rounded(float slope, u32 key)
{
	return alibi_as_bf16(slope * alibi_as_bf16((float)(i32)key));
}

/* Of `count` scores from key `begin` on, of the query whose own key is `last` and whose output is at `at`. `units`: that a score counts to 1. What
 * is masked stays so. */
static inline void alibi_add(const struct kern_attention_args *a, size_t at, u32 last, u32 begin, u32 count, float units, float *scores)
{
	const float slope = a->slopes[at % kern_attention_stride(a) / a->kv.head_dim];
	if (a->slopes_rounded) {
		const float by = a->scale * units, own = alibi_rounded(slope, last);
		for (u32 i = 0; i < count; i++)
			scores[i] += (alibi_rounded(slope, begin + i) - own) * by;
		return;
	}
	const float by = slope * units;
	for (u32 i = 0; i < count; i++)
		scores[i] += (float)((i32)(begin + i) - (i32)last) * by;
}

#endif
