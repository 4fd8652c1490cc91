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
	json_val layers_patterns; /* "layers_pattern": what stands in front of a layer's number; a text, a list, or nothing */
	json_val excludes;	  /* "exclude_modules": a list of names, an expression, or nothing */
	json_val ranks, alphas;	  /* "rank_pattern", "alpha_pattern": objects */
	const char *whole; /* what modules are called by in place of "model.", of models of several parts; NULL: by that. Set by who opens the matrices */
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
/* Whether `names`, a list of names' ends or an expression for a whole name, name the module. ERR_FORMAT: it is no regular
 * expression. */
MUST_CHECK enum err lora_config_names(json_val names, const char *module, bool *out, struct err_msg *em);
/* Whether `name` is the module's, or what it ends with behind a dot. */
bool lora_config_is_name(const char *module, const char *name);
/* Whether "target_modules" is the word for all of them. */
bool lora_config_is_all_linear(const struct lora_config *c);

/* Whether a module has matrices in the file. An expression and "all-linear" leave that open: they are written for more models
 * than one. */
enum lora_use { LORA_USE_YES, LORA_USE_OPEN, LORA_USE_NO };
/* What the configuration says of the module of `layer`. `*by` of LORA_USE_NO: the field that leaves it out. ERR_FORMAT: a
 * pattern is no regular expression. */
MUST_CHECK enum err lora_config_use(const struct lora_config *c, const char *module, u32 layer, enum lora_use *use,
				    const char **by, struct err_msg *em);

#endif
