/* Layers with a real-gated linear recurrent unit, as config.json describes them: which layers of a model these are, and of what sizes they are. Runs in the
 * worker at start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum { TAPS = 4 };

static const char *const USUAL[] = {"recurrent", "recurrent", "attention"};

/* Kind `i` of the pattern, "block_types" or what is usual. ERR_FORMAT, ERR_UNSUPPORTED. */
static enum err is_recurrent(json_val types, u32 i, bool *recurrent, struct err_msg *em)
{
	const bool usual = json_type(types) == JSON_MISSING;
	const size_t count = usual ? COUNT_OF(USUAL) : json_count(types);

	if (!usual && (json_type(types) != JSON_ARRAY || count == 0))
		return err_set(em, ERR_FORMAT, "config.json: \"block_types\" must be an array of strings, each recurrent or attention, found %s of %zu",
			       json_type_name(types), count);
	const char *word = usual ? USUAL[i % count] : json_cstr(json_at(types, i % count), "");
	*recurrent = !strcmp(word, "recurrent");
	if (!*recurrent && strcmp(word, "attention") != 0)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"block_types\"[%zu] is '%.64s'; supported: recurrent, attention", i % count, word);
	return ERR_OK;
}

/* Whose heads are as wide as the hidden size says, whatever else a file does. */
static enum err check_head_dim(const struct model_config *c, struct err_msg *em)
{
	if (c->hidden % c->heads == 0 && c->head_dim == c->hidden / c->heads)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"head_dim\" is %u; of a %s it must be hidden_size / num_attention_heads, %u / %u", c->head_dim, c->arch->name,
		       c->hidden, c->heads);
}

enum err config_mark_lru(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val types = json_get(v, "block_types");
	enum err e = check_head_dim(c, em);
	u16 rounded;

	for (u32 i = 0; !e && i < c->layers; i++) {
		bool recurrent = false;
		e = is_recurrent(types, i, &recurrent, em);
		c->layer_flags[i] |= recurrent ? LAYER_RECURRENT : LAYER_WINDOW;
	}
	/* The family multiplies by a number that is rounded, in whatever type it computes. */
	kern_convert(&rounded, KERN_BF16, &c->embed_scale, KERN_F32, 1);
	kern_convert(&c->embed_scale, KERN_F32, &rounded, KERN_BF16, 1);
	return e;
}

enum err config_read_lru(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;
	u32 width;

	enum err e = config_may_u32(v, "lru_width", CONFIG_DIM_MAX, c->hidden, &width, em);
	if (!e && width % c->heads)
		e = err_set(em, ERR_INVALID, "config.json: \"lru_width\" is %u; it must be a multiple of num_attention_heads, which is %u", width, c->heads);
	if (!e && width / c->heads > CONFIG_HEAD_DIM_MAX)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"lru_width\" is %u; at most %d values for each of %u heads (num_attention_heads) are supported", width,
			    CONFIG_HEAD_DIM_MAX, c->heads);
	if (e)
		return e;
	r->heads = r->key_heads = c->heads;
	r->key_dim = 1;
	r->value_dim = width / c->heads;
	r->bias = r->conv_bias = true;
	r->normed = false;
	return config_read_taps(c, v, "conv1d_width", TAPS, em);
}
