/* Other names and layouts under which checkpoints of the same families are saved. */
#ifndef TERCET_PROC_WORKER_MODEL_TENSOR_NAMES_H
#define TERCET_PROC_WORKER_MODEL_TENSOR_NAMES_H

#include <stddef.h>

#include "proc_worker/model/config.h"
#include "proc_worker/model/safetensors.h"

/* Adds the names of the architecture's table to a checkpoint that has the tensors in another form:
 * - without "model." ("transformer." of GPT-2), as a decoder is saved without its head;
 * - with "language_model.model.", "model.language_model." or "model.text_model." instead, as the language part of a model of several parts;
 * - a layer's experts in one tensor "mlp.experts.gate_up_proj" [experts][2 intermediate][hidden] and one
 *   "mlp.experts.down_proj" [experts][hidden][intermediate], as transformers 5 has them in memory.
 * A checkpoint that has the table's names stays as it is. ERR_FORMAT: names the tensor, its shape and the one that it must
 * have by config.json. ERR_NO_MEMORY, ERR_TOO_LONG. */
MUST_CHECK enum err tensor_names_add(struct safetensors *st, const struct model_config *c, struct err_msg *em);

/* Of families with arch.shared_blocks: gives what the file has in lists of the first layer with a block, an adapter of each layer, the names of that layer. ERR_NO_MEMORY;
 * ERR_NOT_FOUND: names an adapter that there is not, and its layer; ERR_INVALID: one of attention that config.json says there is none of. tensor_names_shared.c. */
MUST_CHECK enum err tensor_names_add_shared(struct safetensors *st, const struct model_config *c, struct err_msg *em);

/* Which layers of such a family have a block of their own in the files, as transformers 5 saves models whose lm_head is not tied: c->blocks.first. After tensor_names_add. */
void tensor_names_find_blocks(const struct safetensors *st, struct model_config *c);

/* What config.json does not say and the checkpoint shows: of embeddings that are lm_head unless it has one (c->tied_headless), whether it has; of a family whose
 * experts may be chosen by biases as well, without a field for it, whether it has some (c->choice_bias). After tensor_names_add. */
void tensor_names_find_unsaid(const struct safetensors *st, struct model_config *c);

/* What names that begin with `before` have behind it where the table has "model.", in files of a model of several parts ("model.language_model." and
 * others): that of the first tensor that has any; NULL: none has. */
const char *tensor_names_of_whole(const struct safetensors *st, const char *before);

/* Puts the names that tensors have in the files where `text`, an error of a checkpoint for instance, has those of the table: "backbone." for
 * "model.", where the checkpoint begins its names so. Cut to fit `bytes`. */
void tensor_names_in_file(char *text, size_t bytes, const struct safetensors *st, const struct model_config *c);

#endif
