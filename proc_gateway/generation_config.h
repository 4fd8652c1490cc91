/* Default sampling parameters, from the model's generation_config.json. */
#ifndef TERCET_PROC_GATEWAY_GENERATION_CONFIG_H
#define TERCET_PROC_GATEWAY_GENERATION_CONFIG_H

#include "common/err.h"
#include "common/types.h"

struct generation_config {
	f64 temperature;
	f64 top_p;
	f64 min_p;
	i64 top_k;
	f64 repetition_penalty;
	i64 max_new_tokens; /* 0: no limit of its own */
};

/* What the API says when the model says nothing: temperature 1, everything else off. */
void generation_config_default(struct generation_config *c);
/* Overrides what MODEL_DIR/generation_config.json sets; a missing file is fine. ERR_FORMAT, ERR_INVALID and
 * ERR_IO name the file, the field, its value and the range. */
MUST_CHECK enum err generation_config_load(struct generation_config *c, const char *model_dir,
					   struct err_msg *em);

#endif
