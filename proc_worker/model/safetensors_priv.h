/* What the files that read safetensors share, and readers of other formats need of them: one table of types for all. */
#ifndef TERCET_PROC_WORKER_MODEL_SAFETENSORS_PRIV_H
#define TERCET_PROC_WORKER_MODEL_SAFETENSORS_PRIV_H

#include "common/arena.h"
#include "proc_worker/model/safetensors.h"

struct st_file {
	const char *name;
	const char *map;
	u64 bytes;
	u64 data_begin; /* of safetensors */
	u64 header_hash; /* of all that is not data */
	i64 changed[2]; /* seconds and nanoseconds */
};

struct safetensors {
	struct arena arena; /* names */
	struct st_file *files;
	u32 file_count, file_capacity;
	struct gguf *gguf; /* instead of files */
	struct st_tensor *tensors;
	u32 tensor_count, tensor_capacity;
};

/* Gives `t` the type of that name ("BF16"), whose elements have `*bits`. False: there is none of that name. */
bool safetensors_set_type(struct st_tensor *t, const char *name, u32 *bits);

/* Adds the tensors of a mapped file to the table, and sets its data_begin and header_hash. Tensors cover the data without gap and overlap.
 * ERR_FORMAT, ERR_UNSUPPORTED, ERR_TOO_LONG, ERR_NO_MEMORY: *em names the file, and the tensor if it is one's. */
MUST_CHECK enum err safetensors_read_header(struct safetensors *st, struct st_file *f, struct err_msg *em);

/* Room for `extra` tensors behind those of the table. ERR_TOO_LONG, ERR_NO_MEMORY. */
MUST_CHECK enum err safetensors_grow(struct safetensors *st, size_t extra, struct err_msg *em);

/* ERR_FORMAT. Names are C strings here: what one begins with may be the name of another. */
enum err safetensors_refuse_nul(const char *file, const char *text, struct err_msg *em);

#endif
