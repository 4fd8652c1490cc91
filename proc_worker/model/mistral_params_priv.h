/* What the two files that read params.json share. */
#ifndef TERCET_PROC_WORKER_MODEL_MISTRAL_PARAMS_PRIV_H
#define TERCET_PROC_WORKER_MODEL_MISTRAL_PARAMS_PRIV_H

#include "common/err.h"
#include "common/json.h"

/* What a member may say. */
enum mistral_rule { MISTRAL_READ, MISTRAL_PASSED, MISTRAL_ONLY_FALSE, MISTRAL_ONLY_TRUE, MISTRAL_ONLY_WORD };

struct mistral_member {
	const char *name; /* NULL ends a table */
	const char *word; /* of MISTRAL_ONLY_WORD */
	enum mistral_rule rule;
	const char *here; /* its name in config.json, where its value is taken over as it is */
};

/* Of the file; of its "yarn", "llama_4_scaling", "moe" (the names of models whose heads share a latent), "quantization" and "multimodal". */
extern const struct mistral_member MISTRAL_TOP[], MISTRAL_YARN[], MISTRAL_QUERIES[], MISTRAL_EXPERTS[], MISTRAL_ROUNDED[], MISTRAL_PARTS[];

/* Whether a field says that there is nothing of what it is about: null, false, or nothing in it. */
bool mistral_is_off(json_val v);
/* ` of "moe"`, or nothing for the file's own members. Answers `out`. */
const char *mistral_where(char *out, size_t bytes, const char *where);
/* Every member of `v` is in the table and says what it may; what is off, or begins with an underscore, may be any. ERR_FORMAT, ERR_UNSUPPORTED name it. */
MUST_CHECK enum err mistral_check_members(json_val v, const struct mistral_member *members, const char *where, struct err_msg *em);

#endif
