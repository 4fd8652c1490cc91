/* adapter_config.json of a LoRA adapter, as the library PEFT writes it: which rank and scale each module's matrices have, and
 * what they must not have, since nothing here would compute it. */
#ifndef TERCET_PROC_WORKER_MODEL_LORA_CONFIG_H
#define TERCET_PROC_WORKER_MODEL_LORA_CONFIG_H

#include "common/err.h"
#include "common/json.h"
#include "common/types.h"

struct lora_config {
	struct json_doc *doc; /* owned; what follows lies in it */
	u32 rank;	      /* "r" */
	double alpha;	      /* "lora_alpha" */
	bool by_root;	      /* "use_rslora": scales are alpha / sqrt(rank), not alpha / rank */
	json_val targets;     /* "target_modules": a list of names, or one text */
	json_val layers;      /* "layers_to_transform": a number, a list, or nothing */
	json_val ranks, alphas; /* "rank_pattern", "alpha_pattern": objects */
	bool excludes;	      /* "exclude_modules" names some */
};

/* Reads `dir`/adapter_config.json. ERR_NOT_FOUND, ERR_IO, ERR_FORMAT; ERR_INVALID: a number is out of bounds; ERR_UNSUPPORTED
 * names the field that asks for something that is not computed here. The caller owns `*c` (zeroed after an error). */
MUST_CHECK enum err lora_config_read(struct lora_config *c, const char *dir, struct err_msg *em);
/* The same from a text; for tests. */
MUST_CHECK enum err lora_config_parse(struct lora_config *c, const char *text, size_t bytes, struct err_msg *em);
void lora_config_fini(struct lora_config *c); /* zeroed accepted */

/* Of the module with that full name ("model.layers.0.self_attn.q_proj"): its rank, and what its product is multiplied with.
 * ERR_FORMAT: a pattern is no regular expression. */
MUST_CHECK enum err lora_config_module(const struct lora_config *c, const char *module, u32 *rank, double *scale,
				       struct err_msg *em);
/* Whether the module has to have matrices: a list of targets names it, and its layer is one of those to transform. Where the
 * targets are an expression or "all-linear", or some are excluded, the file says what is there: false. */
bool lora_config_demands(const struct lora_config *c, const char *module, u32 layer);

#endif
