/* What loading adapters and checking their configuration against the model share. */
#ifndef TERCET_PROC_WORKER_MODEL_LORA_PRIV_H
#define TERCET_PROC_WORKER_MODEL_LORA_PRIV_H

#include "proc_worker/model/lora.h"
#include "proc_worker/model/lora_config.h"

/* The weights that adapters can change. */
struct lora_product_slot {
	enum weight_slot slot;
	bool dense; /* only where the layer has one MLP */
};
extern const struct lora_product_slot LORA_PRODUCT_SLOTS[LORA_PRODUCTS];

/* The module that a tensor of the table belongs to in `layer`, of experts in the first: its name without ".weight", as the adapter calls it. False: it
 * is no module's weight. */
bool lora_module_name(char *out, size_t bytes, const struct lora_config *c, const struct arch_tensor *t, u32 layer);

/* ERR_UNSUPPORTED: adapters of this model are not computed; says why. */
MUST_CHECK enum err lora_check_model(const struct weights_plan *plan, struct err_msg *em);

/* Refuses what names nothing of the model: ERR_INVALID, with the names or layers, and those that would do; ERR_FORMAT: a
 * pattern is no regular expression. */
MUST_CHECK enum err lora_check_config(const struct lora_config *c, const struct weights_plan *plan, struct err_msg *em);

#endif
