/* Matrix products by cuBLASLt: which algorithm for which shape, and the file that remembers it. */
#ifndef TERCET_KERNELS_CUDA_LT_CUH
#define TERCET_KERNELS_CUDA_LT_CUH

#include <cublasLt.h>

#include "kernels/cuda/device.cuh"

enum { LT_ENTRIES_MAX = 1024, LT_TRIES = 8, LT_HEADS_MAX = 1024 };

/* A product of `m` tokens (rounded up to a power of two) with W[n][k]. `align`: 16, 4 or 2 bytes, of the output and of
 * each of its rows; an algorithm that stores wider words than that would fault. */
struct lt_shape {
	u32 n, k, m, out_f32, align;
};

struct lt_entry {
	struct lt_shape shape;
	cublasLtMatmulAlgo_t algo;
	u32 timed; /* by measuring, so worth remembering */
};

struct kern_cuda {
	cublasLtHandle_t handle;
	void *workspace;
	size_t workspace_bytes;
	u32 *head_counts; /* [LT_HEADS_MAX] on the device, zeros between launches (matmul_skinny.cuh) */
	char *cache_path; /* NULL: nothing is remembered */
	char device[80];  /* that entries were measured on: library, architecture, multiprocessors */
	struct lt_entry entries[LT_ENTRIES_MAX];
	u32 count;
};

struct lt_shape lt_shape_of(const struct kern_matmul_args *a);
struct lt_entry *lt_find(struct kern_cuda *c, const struct lt_shape *shape);
/* Adds or replaces; a full table forgets the newest. */
void lt_put(struct kern_cuda *c, const struct lt_entry *entry);
/* Entries of another device or library are left out; a file that is none is ignored. */
void lt_cache_read(struct kern_cuda *c);
/* Writes beside it and renames. ERR_IO. */
enum err lt_cache_write(const struct kern_cuda *c);

/* out (+)= x W^T. ERR_UNSUPPORTED: cuBLASLt has no algorithm. */
enum err lt_matmul(struct kern_ctx *ctx, const struct kern_matmul_args *a);

#endif
