/* Products of heads, each with a matrix of its own. Runs in the worker in every step of models with latent attention; owns
 * nothing.
 *
 * The matrices are small and many: a task is a head, or some rows of it, and the thread that takes it packs and multiplies them
 * alone by the table's matmul, so that threads meet once and not once a head. Which rows are computed side by side is no
 * matter of a product's bits. */
#include <stdatomic.h>

#include "kernels/cpu/head_matmul_priv.h"
#include "kernels/cpu/variants_priv.h"

enum { TASKS_A_THREAD = 4, LEAST_ROWS = 16 /* of a task that is cut: fewer read the head's matrix too often */ };

struct job {
	const struct kern_head_matmul_args *a;
	char *scratch;
	size_t slice_bytes; /* of a thread */
	u32 chunks;	    /* of every head's rows */
	_Atomic u32 error;
};

static void run_task(void *arg, u32 number, u32 thread)
{
	struct job *j = arg;
	const struct kern_head_matmul_args *a = j->a;
	const u32 h = number / j->chunks, chunk = number % j->chunks;
	const u32 first = (u32)((u64)a->tokens * chunk / j->chunks), end = (u32)((u64)a->tokens * (chunk + 1) / j->chunks);
	const float *x = a->x + (size_t)first * a->x_stride + (size_t)h * a->x_apart;
	float *out = a->out + (size_t)first * a->out_stride + (size_t)h * a->out_apart;
	struct kern_ctx alone = {.scratch = j->scratch + thread * j->slice_bytes, .scratch_bytes = j->slice_bytes};
	struct kern_matmul_args m = {.out = out + a->beside,
				     .x = x,
				     .w = &a->w[h],
				     .tokens = end - first,
				     .x_stride = a->x_stride,
				     .out_stride = a->out_stride};
	for (u32 i = 0; i < end - first && a->beside > 0; i++)
		memcpy(out + (size_t)i * a->out_stride, x + (size_t)i * a->x_stride + a->w[h].k, a->beside * sizeof(float));
	enum err e = a->ops->matmul(&alone, &m);
	if (e)
		atomic_store_explicit(&j->error, (u32)e, memory_order_relaxed);
}

enum err VARIANT(head_matmul)(struct kern_ctx *ctx, const struct kern_head_matmul_args *a)
{
	const u32 threads = kern_thread_count(ctx);
	struct job j = {.a = a, .scratch = ctx->scratch, .chunks = kern_ceil(a->tokens, HEAD_CHUNK_ROWS)};
	const u32 wanted = kern_min(kern_ceil(TASKS_A_THREAD * threads, a->heads), kern_ceil(a->tokens, LEAST_ROWS));
	if (threads > 1 && wanted > j.chunks)
		j.chunks = wanted;
	j.slice_bytes = ctx->scratch_bytes / threads / KERN_ALIGN * KERN_ALIGN;
	kern_parallel(ctx, a->heads * j.chunks, run_task, &j);
	return (enum err)atomic_load_explicit(&j.error, memory_order_relaxed);
}
