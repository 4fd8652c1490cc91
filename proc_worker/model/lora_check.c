/* Holds an adapter's configuration against the model, and its tensors against what numbers are. Runs in the worker at start,
 * on every rank over the same files, so that all of them say the same. */
#include "proc_worker/model/lora_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/weights_priv.h"

enum { NAME_BYTES = 256, LIST_BYTES = 600, LISTED_BYTES = 200 /* of a name */ };
static const char FILE_NAME[] = "adapter_config.json", SUFFIX[] = ".weight";

const struct lora_product_slot LORA_PRODUCT_SLOTS[LORA_PRODUCTS] = {
	[LORA_QKV] = {SLOT_QKV, false},
	[LORA_ATTN_OUT] = {SLOT_ATTN_OUT, false},
	[LORA_GATE_UP] = {SLOT_GATE_UP, true},
	[LORA_DOWN] = {SLOT_DOWN, true},
};

bool lora_module_name(char *out, size_t bytes, const struct lora_config *c, const struct arch_tensor *t, u32 layer)
{
	static const char model[] = "model.";
	char name[NAME_BYTES];

	arch_tensor_name(name, sizeof(name), t, layer, 0);
	const bool of_whole = c->whole && strncmp(name, model, sizeof(model) - 1) == 0;
	snprintf(out, bytes, "%s%s", of_whole ? c->whole : "", name + (of_whole ? sizeof(model) - 1 : 0));
	size_t length = strlen(out), suffix = strlen(SUFFIX);
	if (length < suffix || strcmp(out + length - suffix, SUFFIX) != 0)
		return false;
	out[length - suffix] = '\0';
	return true;
}

/* ---------------------------------------------------------------- names */

/* Whether any module of the model, adaptable or not, has the name at its end, or where that is NULL fits the expression that targets are. */
static enum err is_there(const struct lora_config *c, const char *name, const struct weights_plan *plan, bool *out, struct err_msg *em)
{
	const struct arch *arch = plan->config->arch;
	char module[NAME_BYTES];
	enum err e = ERR_OK;

	*out = false;
	for (u32 layer = 0; !e && !*out && layer < plan->config->layers; layer++)
		for (u32 i = 0; !e && !*out && i < arch->tensor_count; i++) {
			if (!weights_tensor_applies(plan, &arch->tensors[i], layer) ||
			    !lora_module_name(module, sizeof(module), c, &arch->tensors[i], layer))
				continue;
			if (name)
				*out = lora_config_is_name(module, name);
			else
				e = lora_config_names(c->targets, module, out, em);
		}
	return e;
}

static bool is_adaptable(const struct weights_plan *plan, const struct arch_tensor *t, u32 layer)
{
	for (u32 p = 0; p < LORA_PRODUCTS; p++)
		if (t->slot == LORA_PRODUCT_SLOTS[p].slot && weights_tensor_applies(plan, t, layer) &&
		    (!LORA_PRODUCT_SLOTS[p].dense || !(plan->config->layer_flags[layer] & LAYER_EXPERTS)))
			return true;
	return false;
}

/* Puts `name`, which is not empty, behind the others, once: its beginning where it is long, and nothing where the list is full. */
static void list_name(char list[LIST_BYTES], const char *name)
{
	size_t bytes = strlen(list), own = strnlen(name, LISTED_BYTES);

	ASSERT(own > 0);
	for (const char *at = strstr(list, name); at; at = strstr(at + 1, name))
		if ((at == list || at[-1] == ' ') && (at[own] == ',' || !at[own]))
			return;
	if (bytes + own + 3 < LIST_BYTES)
		snprintf(list + bytes, LIST_BYTES - bytes, "%s%.*s", bytes ? ", " : "", (int)own, name);
}

/* "q_proj, k_proj, ...": what targets may be of this model. */
static void list_targets(const struct lora_config *c, const struct weights_plan *plan, char list[LIST_BYTES])
{
	const struct arch *arch = plan->config->arch;
	char module[NAME_BYTES];

	list[0] = '\0';
	for (u32 layer = 0; layer < plan->config->layers; layer++)
		for (u32 i = 0; i < arch->tensor_count; i++)
			if (is_adaptable(plan, &arch->tensors[i], layer) &&
			    lora_module_name(module, sizeof(module), c, &arch->tensors[i], layer))
				list_name(list, strrchr(module, '.') ? strrchr(module, '.') + 1 : module);
}

static enum err check_targets(const struct lora_config *c, const struct weights_plan *plan, struct err_msg *em)
{
	const char *expression = json_cstr(c->targets, NULL);
	char strangers[LIST_BYTES] = "", targets[LIST_BYTES];
	bool there = true;
	enum err e = ERR_OK;

	if (lora_config_is_all_linear(c))
		return ERR_OK;
	if (expression) {
		e = is_there(c, NULL, plan, &there, em);
		if (!there)
			snprintf(strangers, sizeof(strangers), "\"%.500s\"", expression);
	}
	for (struct json_iter it = json_iterate(c->targets); !e && json_next(&it);) {
		e = is_there(c, json_cstr(it.value, ""), plan, &there, em);
		if (!there)
			list_name(strangers, json_cstr(it.value, ""));
	}
	if (e || !strangers[0])
		return e;
	list_targets(c, plan, targets);
	return err_set(em, ERR_INVALID, "%s: \"target_modules\": no module of the model is named by %s; adapters can change %s", FILE_NAME,
		       strangers, targets);
}

static enum err check_layer(u64 layer, const struct weights_plan *plan, struct err_msg *em)
{
	u32 layers = plan->config->layers;

	return layer < layers ? ERR_OK
			      : err_set(em, ERR_INVALID,
					"%s: \"layers_to_transform\" names layer %" PRIu64 "; the model has layers 0 to %u", FILE_NAME, layer,
					layers - 1);
}

enum err lora_check_model(const struct weights_plan *plan, struct err_msg *em)
{
	if (plan->config->arch->latent)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: its attention is latent", plan->config->arch->name);
	if (plan->config->arch->global_heads)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: its layers' heads differ in size", plan->config->arch->name);
	if (plan->config->arch->altup)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: its residual stream is several (altup_num_inputs)",
			       plan->config->arch->name);
	if (plan->config->recurrent.kind)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: some of its layers keep a state instead of keys and values",
			       plan->config->arch->name);
	if (plan->config->left_out_count)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: some of the file's layers are left out (cross_attention_layers)",
			       plan->config->arch->name);
	if (plan->config->arch->differential)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: half of its heads take away from the others", plan->config->arch->name);
	if (plan->config->arch->head_experts)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: its heads are a mixture of experts", plan->config->arch->name);
	if (plan->config->output_gate)
		return err_set(em, ERR_UNSUPPORTED, "adapters of a %s are not supported: its queries have gates", plan->config->arch->name);
	return ERR_OK;
}

enum err lora_check_config(const struct lora_config *c, const struct weights_plan *plan, struct err_msg *em)
{
	u64 layer;

	enum err e = check_targets(c, plan, em);
	if (!e && json_uint(c->layers, &layer))
		e = check_layer(layer, plan, em);
	for (struct json_iter it = json_iterate(c->layers); !e && json_next(&it);)
		if (json_uint(it.value, &layer))
			e = check_layer(layer, plan, em);
	return e;
}
