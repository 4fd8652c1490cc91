/* How much scratch the ops need for steps of a given size: the largest need of any op, for they run one after
 * the other and share it. */
#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/cpu/head_matmul_priv.h"
#include "kernels/cpu/lora_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/moe_matmul_priv.h"
#include "kernels/kern_priv.h"

enum { SCRATCH_LEAST = 4096 }; /* beside what is counted: tiles (AMX) read a row of 64 bytes behind the last inputs */

static size_t most(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* A row of inputs as they are (there may be weights in float32 where others have arithmetic of bf16), filled up to whole vectors; or rounded to 8 bits (16
 * where there are no products of bytes) with up to three words for groups of 32, seven for those of 128, filled up to whole groups. Beside
 * weights in 4 bits AVX2 has up to five words a group, and takes one byte of the 16 bits. */
static size_t inputs_bytes(const struct kern_limits *l, u32 k)
{
	size_t values = (k + 31) * sizeof(float);
	size_t rounded = l->caps & KERN_CAP_AVX512_VNNI ? 1 : 2;
	size_t bytes = kern_align((k + KERN_GROUP_MAX - 1) * rounded + (((size_t)k / 32 + 1) * 3 + 1) * sizeof(float));
	return most(values, bytes);
}

/* Of the widest product, and of the one before it where that packs its inputs. */
static size_t matmul_bytes(const struct kern_limits *l, u32 tokens, u32 threads)
{
	u32 heads = l->attended > 0 ? l->attended : l->heads * l->head_dim,
	    widest = l->hidden > l->intermediate ? l->hidden : l->intermediate;
	widest = heads > widest ? heads : widest;
	return kern_align(tokens * inputs_bytes(l, widest) + kern_min(tokens, BLOCKED_THEN_TOKENS) * inputs_bytes(l, l->hidden)) +
	       threads * matmul_blocked_lane_bytes(tokens);
}

/* The rows of an expert beside what their product needs: of one after the other, or some of several in every thread. */
static size_t moe_bytes(const struct kern_limits *l, u32 threads)
{
	size_t row = l->hidden * sizeof(float);
	u32 chunk = kern_min(l->tokens, MOE_CHUNK_ROWS);
	if (!l->experts)
		return 0;
	return most(kern_align(l->tokens * row) + matmul_bytes(l, l->tokens, threads),
		    threads * (kern_align(chunk * row) + matmul_bytes(l, chunk, 1) + KERN_ALIGN));
}

/* Some rows of a head in every thread. */
static size_t head_bytes(const struct kern_limits *l, u32 threads)
{
	return l->attended > 0 ? threads * (matmul_bytes(l, kern_min(l->tokens, HEAD_CHUNK_ROWS), 1) + KERN_ALIGN) : 0;
}

size_t kern_scratch_bytes(const struct kern_limits *l)
{
	u32 threads = l->threads > 0 ? l->threads : 1;
	size_t matmul = most(matmul_bytes(l, l->tokens, threads), moe_bytes(l, threads));
	size_t products = most(most(matmul, head_bytes(l, threads)), lora_scratch_bytes(l));
	return SCRATCH_LEAST + kern_align(most(products, attention_scratch_bytes(l)));
}
