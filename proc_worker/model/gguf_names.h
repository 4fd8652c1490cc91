/* The tensors of GGUF files under the names that checkpoints of Hugging Face have, which the tables of architectures know. */
#ifndef TERCET_PROC_WORKER_MODEL_GGUF_NAMES_H
#define TERCET_PROC_WORKER_MODEL_GGUF_NAMES_H

#include "common/arena.h"
#include "common/gguf.h"
#include "proc_worker/model/safetensors.h"

/* All tensors of `g`, by its "general.architecture", in no order; experts of a layer, which are one tensor in the file, one by one.
 * Those that no table has keep their names, behind "model.layers.N." if they are of a layer. `*out` is the caller's, to free, also after
 * an error; names lie in the arena, data in `g`. ERR_UNSUPPORTED: the architecture is not known; ERR_FORMAT: there is none;
 * ERR_TOO_LONG, ERR_NO_MEMORY. */
MUST_CHECK enum err gguf_names_read(struct st_tensor **out, u32 *count, const struct gguf *g, struct arena *arena, struct err_msg *em);

#endif
