/* How much scratch the ops need for steps of a given size: the largest need of any op, for they run one after
 * the other and share it. */
#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/kern_priv.h"

enum { SCRATCH_LEAST = 4096 };

/* Inputs rounded to bf16, rows filled up to whole vectors; or to 8 bits with a scale and a sum for groups of
 * at least 32, rows filled up to whole groups. */
static size_t matmul_bytes(const struct kern_limits *l)
{
	u32 heads = l->heads * l->head_dim,
	    widest = l->hidden > l->intermediate ? l->hidden : l->intermediate;
	widest = heads > widest ? heads : widest;
	size_t halves = (widest + 31) * sizeof(u16);
	size_t bytes = kern_align(widest + KERN_GROUP_MAX - 1 + ((size_t)widest / 32 + 1) * 2 * sizeof(float));
	u32 threads = l->threads > 0 ? l->threads : 1;
	return kern_align(l->tokens * (halves > bytes ? halves : bytes)) +
	       threads * matmul_blocked_lane_bytes(l->tokens);
}

/* The rows of one expert, beside what their product needs. */
static size_t gather_bytes(const struct kern_limits *l)
{
	return l->experts ? kern_align((size_t)l->tokens * l->hidden * sizeof(float)) : 0;
}

size_t kern_scratch_bytes(const struct kern_limits *l)
{
	size_t matmul = matmul_bytes(l) + gather_bytes(l), attention = attention_scratch_bytes(l);
	return SCRATCH_LEAST + kern_align(matmul > attention ? matmul : attention);
}
