/* Layers of one block each, as config.json lists them: a letter a layer, or a word. Runs in the worker at start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

static const struct {
	char letter;
	const char *word, *older; /* of files before transformers 5 */
	u16 flags;
} KINDS[] = {
	{'M', "linear_attention", "mamba", LAYER_RECURRENT | LAYER_NO_MLP},
	{'*', "full_attention", "attention", LAYER_NO_ROPE | LAYER_NO_MLP},
	{'-', "mlp", "mlp", LAYER_NO_MIXER},
	{'E', "moe", "moe", LAYER_NO_MIXER | LAYER_EXPERTS},
};
#define KINDS_TEXT "M (linear_attention), * (full_attention), - (mlp), E (moe)"

static enum err read_pattern(struct model_config *c, json_val pattern, struct err_msg *em)
{
	const char *text;
	size_t bytes, kind;

	if (!json_string(pattern, &text, &bytes) || bytes < 1 || bytes > MODEL_LAYERS_MAX)
		return err_set(em, ERR_FORMAT, "config.json: \"hybrid_override_pattern\" must be a string of a letter for each layer, 1 to %d, found %s of %zu",
			       MODEL_LAYERS_MAX, json_type_name(pattern), json_string(pattern, &text, &bytes) ? bytes : json_count(pattern));
	for (u32 i = 0; i < bytes; i++) {
		for (kind = 0; kind < COUNT_OF(KINDS) && KINDS[kind].letter != text[i];)
			kind++;
		if (kind == COUNT_OF(KINDS))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"hybrid_override_pattern\" has '%c' for layer %u; supported: " KINDS_TEXT, text[i], i);
		c->layer_flags[i] = KINDS[kind].flags;
	}
	c->layers = (u32)bytes;
	return ERR_OK;
}

/* `patterned`: the pattern has filled `c` before, and says the same. */
static enum err read_list(struct model_config *c, json_val list, bool patterned, struct err_msg *em)
{
	const size_t count = json_count(list);
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || count < 1 || count > MODEL_LAYERS_MAX || (patterned && count != c->layers))
		return err_set(em, ERR_FORMAT, "config.json: \"layer_types\" must be an array of a word for each layer, %u to %u, found %s of %zu",
			       patterned ? c->layers : 1, patterned ? c->layers : MODEL_LAYERS_MAX, json_type_name(list), count);
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		size_t kind = 0;
		while (kind < COUNT_OF(KINDS) && !json_string_equals(it.value, KINDS[kind].word) && !json_string_equals(it.value, KINDS[kind].older))
			kind++;
		if (kind == COUNT_OF(KINDS))
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"layer_types\"[%u] is '%.64s'; supported: linear_attention (or mamba), full_attention (or attention), mlp, moe", i,
				       json_cstr(it.value, json_type_name(it.value)));
		if (patterned && c->layer_flags[i] != KINDS[kind].flags)
			return err_set(em, ERR_INVALID, "config.json: \"layer_types\"[%u] is '%s', which is not what \"hybrid_override_pattern\" says of the layer", i,
				       json_cstr(it.value, ""));
		c->layer_flags[i] = KINDS[kind].flags;
	}
	c->layers = (u32)count;
	return ERR_OK;
}

/* Fields that programs ignore here, each of which says what the model would compute elsewhere, or is said again. */
static enum err check_others(const struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const ropes[] = {"rope_scaling", "rope_parameters"};
	u32 layers;

	for (size_t i = 0; i < COUNT_OF(ropes); i++)
		if (json_present(json_get(v, ropes[i])))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is set; in a %s nothing rotates", ropes[i], c->arch->name);
	enum err e = config_may_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX, c->layers, &layers, em);
	if (!e && layers != c->layers)
		e = err_set(em, ERR_INVALID, "config.json: \"num_hidden_layers\" is %u, but \"hybrid_override_pattern\" or \"layer_types\" has %u", layers,
			    c->layers);
	return e ? e : config_check_pair(v, "norm_eps", "rms_norm_eps", em);
}

enum err config_read_blocks(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val pattern = json_get(v, "hybrid_override_pattern"), list = json_get(v, "layer_types");
	enum err e = ERR_OK;

	if (!json_present(pattern) && !json_present(list))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"hybrid_override_pattern\" is missing; of a %s it must be a string of a letter for each layer, " KINDS_TEXT
			       ", or \"layer_types\" an array of these words",
			       c->arch->name);
	if (json_present(pattern))
		e = read_pattern(c, pattern, em);
	if (!e && json_present(list))
		e = read_list(c, list, json_present(pattern), em);
	if (!e)
		e = check_others(c, v, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		if (!(c->layer_flags[i] & LAYER_NO_MIXER))
			c->own_kv_layers = i + 1;
	return e;
}
