/* Owns what config.json says of models whose layers have heads of keys and MLPs of their own sizes, or lack one of both (DeciLM, Nemotron NAS), as a
 * file in GGUF has it: as "block_configs". Runs once while a model is imported. */
#include "text/gguf_config_priv.h"

#include <stdio.h>

static void begin_block(struct gguf_config *c, const char *name)
{
	json_key(&c->w, name);
	json_object_begin(&c->w);
}

/* A layer whose value is 0 has no such block, and so none of its tensors. */
static void check_none(struct gguf_config *c, u32 layer, const char *tensor)
{
	char name[64];

	snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, tensor);
	if (c->e == ERR_OK && gguf_config_has_tensor(c, name))
		gguf_config_fail(c, ERR_FORMAT, "%s has no value for layer %u, or 0, and the file has the tensor %s", c->key, layer, name);
}

/* A layer with heads but without any of keys has a matrix in place of attention. */
static void write_attention(struct gguf_config *c, u32 layer)
{
	u32 heads = 0, kv = 0;

	(void)gguf_config_layer_int(c, "attention.head_count", layer, &heads);
	if (heads == 0)
		check_none(c, layer, "attn_q");
	if (!gguf_config_layer_int(c, "attention.head_count_kv", layer, &kv))
		kv = heads;
	if (c->e == ERR_OK && kv > 0 && heads % kv)
		gguf_config_fail(c, ERR_FORMAT, "%s has %u for layer %u; it must divide %s.attention.head_count, which is %u", c->key, kv, layer, c->arch, heads);
	if (kv == 0)
		check_none(c, layer, "attn_k");
	begin_block(c, "attention");
	gguf_config_write_bool(c, "no_op", heads == 0);
	gguf_config_write_bool(c, "replace_with_linear", heads > 0 && kv == 0);
	if (c->e == ERR_OK && heads > 0 && kv > 0)
		gguf_config_write_uint(c, "n_heads_in_group", heads / kv);
	json_object_end(&c->w);
}

static void write_mlp(struct gguf_config *c, u32 layer)
{
	u32 width = 0;

	(void)gguf_config_layer_int(c, "feed_forward_length", layer, &width);
	if (width == 0)
		check_none(c, layer, "ffn_up");
	begin_block(c, "ffn");
	gguf_config_write_bool(c, "no_op", width == 0);
	if (width > 0)
		gguf_config_write_uint(c, "intermediate_size", width);
	json_object_end(&c->w);
}

void gguf_config_write_by_layer(struct gguf_config *c)
{
	u32 value = 0;

	if (!gguf_config_some_int(c, "attention.head_count", &c->heads))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing, or 0 for all layers; one must attend", c->key);
	if (!gguf_config_int(c, "attention.key_length", &c->head_dim) && c->e == ERR_OK)
		c->head_dim = c->hidden / c->heads;
	value = c->head_dim;
	if (gguf_config_int(c, "attention.value_length", &value) && value != c->head_dim)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u, but keys have %u dimensions; only heads with as many are supported", c->key, value,
				 c->head_dim);
	if (c->e == ERR_OK && c->head_dim == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s.attention.key_length is 0", c->arch);
	gguf_config_write_uint(c, "num_attention_heads", c->heads);
	gguf_config_write_uint(c, "head_dim", c->head_dim);
	json_key(&c->w, "block_configs");
	json_array_begin(&c->w);
	for (u32 i = 0; c->e == ERR_OK && i < c->layers; i++) {
		json_object_begin(&c->w);
		write_attention(c, i);
		write_mlp(c, i);
		json_object_end(&c->w);
	}
	json_array_end(&c->w);
}
