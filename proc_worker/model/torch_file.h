/* Checkpoints as torch.save writes them (pytorch_model.bin): a dictionary of tensors as a pickle, and the bytes of their storages, in a ZIP
 * archive (PyTorch 1.6 and later) or one behind the other (before that). Nothing of the file is run (pickle.h). */
#ifndef TERCET_PROC_WORKER_MODEL_TORCH_FILE_H
#define TERCET_PROC_WORKER_MODEL_TORCH_FILE_H

#include "common/arena.h"
#include "proc_worker/model/safetensors.h"

/* The tensors of the mapped file `name`, in the order of its dictionary; values that are no tensors are passed over. `*out` is the caller's,
 * to free, also after an error; names lie in the arena, data in the file, where tensors may share it. *identity: a hash of everything but the
 * storages. ERR_FORMAT: it is no such file, is truncated or contradicts itself: names the entry or the tensor, what was found and what is
 * right; ERR_UNSUPPORTED: what weights do not need (names of other classes or functions, compressed entries, big-endian data), or a tensor
 * whose elements do not lie row by row; ERR_TOO_LONG, ERR_NO_MEMORY. */
MUST_CHECK enum err torch_file_read(struct st_tensor **out, u32 *count, u64 *identity, const char *name, const void *file, u64 bytes,
				    struct arena *arena, struct err_msg *em);
/* The same checks for a file in memory. */
MUST_CHECK enum err torch_file_check(const void *file, size_t bytes, struct err_msg *em);

#endif
