/* Checkpoints in the safetensors format (github.com/huggingface/safetensors): one file, or shards with an
 * index; or else in ggml's format (common/gguf.h), under the names that they would have there; or else in PyTorch's (torch_file.h).
 * The files are mapped, not read; a header that lies is found here and not by a fault later. */
#ifndef TERCET_PROC_WORKER_MODEL_SAFETENSORS_H
#define TERCET_PROC_WORKER_MODEL_SAFETENSORS_H

#include "common/err.h"
#include "common/types.h"
#include "kernels/kernels.h"

enum { ST_DIMS_MAX = 8 };

/* A tensor in the mapped file; row-major, little-endian. `data` need not be aligned to the element size. */
struct st_tensor {
	const char *name;
	const char *file;	/* the shard's name, for messages */
	const char *dtype_name; /* "BF16", ... as in a file of safetensors; of one that is not usable for how it lies, that as well */
	u32 block_type;		/* of a GGUF file: enum gguf_type; else 0 */
	u32 dims;
	u64 shape[ST_DIMS_MAX];
	const void *data;
	u64 bytes;
	const void *times; /* of a GGUF file's matrix: a float that multiplies all its values; NULL: none does */
	const void *turns; /* rows take turns with those that lie there: half of all are at `data`; NULL: all are */
	bool usable; /* dtype is one of those that `dtype` can say */
	enum kern_dtype dtype;
};

/* Where a row of so many bytes is. */
static inline const u8 *safetensors_row(const struct st_tensor *t, u64 row, u64 row_bytes)
{
	const u8 *data = t->turns && row % 2 ? t->turns : t->data;

	return data + (t->turns ? row / 2 : row) * row_bytes;
}

struct safetensors;

/* Maps model.safetensors of `dir`, or every shard that model.safetensors.index.json names (consolidated.safetensors, or its index, where common/mistral_folder.h
 * says so), or where there is neither model.gguf (with
 * the files beside it, if it has such), or else pytorch_model.bin or the shards of pytorch_model.bin.index.json, and checks the headers: lengths,
 * types, shapes, offsets inside the file, no overlap, no gap (tensors of torch.save may share memory). ERR_NOT_FOUND: no checkpoint,
 * or a shard is missing. ERR_FORMAT: names file and tensor, what was found and what was expected. ERR_UNSUPPORTED: a
 * GGUF file of an architecture whose tensors' names are not known, or as torch_file_read. ERR_IO, ERR_NO_MEMORY. The caller owns `*out`; tensors
 * live as long as it does. */
MUST_CHECK enum err safetensors_open(struct safetensors **out, const char *dir, struct err_msg *em);
/* The same for the one file `dir`/`file`: of torch.save if its name ends in ".bin", else of safetensors. */
MUST_CHECK enum err safetensors_open_file(struct safetensors **out, const char *dir, const char *file, struct err_msg *em);
void safetensors_close(struct safetensors **st);

/* Everything was read: gives back the memory of the mapped pages. Tensors can still be read. */
void safetensors_trim(struct safetensors *st);

/* Of the files' names, sizes, times of change and headers: tells a checkpoint from another and from itself before a
 * change, without reading the tensors. */
u64 safetensors_identity(const struct safetensors *st);

u32 safetensors_count(const struct safetensors *st);
/* In the order of their names. */
const struct st_tensor *safetensors_at(const struct safetensors *st, u32 index);
/* Names `count` more tensors, or parts of tensors, whose data lies in the mapped files; names are copied. Pointers to
 * tensors that were given out before are not valid any more. ERR_FORMAT: a name is there already. ERR_NO_MEMORY,
 * ERR_TOO_LONG. */
MUST_CHECK enum err safetensors_add(struct safetensors *st, const struct st_tensor *tensors, u32 count,
				    struct err_msg *em);

/* NULL when there is none. */
const struct st_tensor *safetensors_find(const struct safetensors *st, const char *name);
/* What safetensors_open checks in one file, for a file in memory. */
MUST_CHECK enum err safetensors_check(const void *file, size_t bytes, struct err_msg *em);

/* "[512, 64]" into `out`. */
void safetensors_print_shape(char *out, size_t bytes, const u64 *shape, u32 dims);

#endif
