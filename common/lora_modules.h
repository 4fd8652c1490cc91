/* The adapters that an engine serves beside its model (--lora-modules): which names stand for which folders. Every process
 * reads them from the same options, so all number them alike. */
#ifndef TERCET_COMMON_LORA_MODULES_H
#define TERCET_COMMON_LORA_MODULES_H

#include "common/options.h"

enum { LORA_MODULES_MAX = 1024, LORA_NAME_MAX = 200 };

struct lora_module {
	char *name; /* by which requests ask for it */
	char *path; /* its folder, with adapter_config.json */
};

struct lora_modules {
	struct lora_module *items; /* owned; adapter number i + 1 is items[i], number 0 is the model alone */
	u32 count;
	u32 rank_max; /* --max-lora-rank */
};

/* Reads and checks the items: NAME=PATH, or a JSON object with "name" and "path" (and "base_model_name", which must be a
 * name of the model). ERR_INVALID, ERR_FORMAT: which item is wrong, and what would be right; a name that is there
 * twice or is the model's; adapters without --enable-lora; more than --max-loras. ERR_NO_MEMORY. The caller owns `*m`
 * (zeroed after an error). */
MUST_CHECK enum err lora_modules_read(struct lora_modules *m, const struct options *o, struct err_msg *em);
void lora_modules_fini(struct lora_modules *m); /* zeroed accepted */

/* The adapter's number, from 1; 0: there is none of that name. */
u32 lora_modules_find(const struct lora_modules *m, const char *name, size_t bytes);

#endif
