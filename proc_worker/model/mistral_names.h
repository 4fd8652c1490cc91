/* Names of tensors in Mistral AI's own format. */
#ifndef TERCET_PROC_WORKER_MODEL_MISTRAL_NAMES_H
#define TERCET_PROC_WORKER_MODEL_MISTRAL_NAMES_H

#include <stddef.h>

#include "proc_worker/model/config.h"
#include "proc_worker/model/safetensors.h"

/* Adds the names of the family's table to the tensors of a model that was read from params.json (c->from_params): "model.layers.0.self_attn.q_proj.weight"
 * to "layers.0.attention.wq.weight", ".weight_scale" to ".qscale_weight". Those of parts for images and sound get none. Which rows of q and k rotate
 * together is not changed: c->interleaved says it. ERR_FORMAT: a tensor is there under two names. ERR_NO_MEMORY, ERR_TOO_LONG. */
MUST_CHECK enum err mistral_names_add(struct safetensors *st, const struct model_config *c, struct err_msg *em);

/* Puts the names that tensors have in the files where `text` has those of the table. Cut to fit `bytes`. */
void mistral_names_in_file(char *text, size_t bytes, const struct model_config *c);

#endif
