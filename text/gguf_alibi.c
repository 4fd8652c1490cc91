/* Owns what becomes of the values of MPT's files in GGUF that say how its heads attend. Runs once while a model is imported. */
#include <math.h>

#include "text/gguf_config_priv.h"

enum { BIAS_MOST = 64 }; /* "alibi_bias_max" */

/* Slopes, or learned positions: the file has the number that slopes follow from, 0 where there are none. */
static void write_slopes(struct gguf_config *c)
{
	double most = 0;

	(void)gguf_config_float(c, "attention.max_alibi_bias", &most);
	if (c->e == ERR_OK && (!(most >= 0 && most <= BIAS_MOST) || most > floor(most)))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %g; it must be a whole number from 0 to %d", c->key, most, BIAS_MOST);
	gguf_config_write_bool(c, "alibi", most > 0);
	if (c->e == ERR_OK && most > 0)
		gguf_config_write_uint(c, "alibi_bias_max", (u32)most);
}

void gguf_config_write_attention(struct gguf_config *c, u32 kv)
{
	double clip = 0;
	u32 width = 0;

	json_key(&c->w, "attn_config");
	json_object_begin(&c->w);
	json_key(&c->w, "attn_type");
	json_write_cstr(&c->w, kv < c->heads ? "grouped_query_attention" : "multihead_attention");
	gguf_config_write_uint(c, "kv_n_heads", kv);
	if (gguf_config_float(c, "attention.clamp_kqv", &clip) && clip > 0)
		gguf_config_write_float(c, "clip_qkv", clip);
	gguf_config_write_bool(c, "qk_ln", gguf_config_layers_have(c, "attn_q_norm.weight"));
	write_slopes(c);
	json_object_end(&c->w);
	gguf_config_write_bool(c, "no_bias", !gguf_config_layers_have(c, "ffn_down.bias"));
	if (gguf_config_int(c, "feed_forward_length", &width) && c->hidden > 0)
		gguf_config_write_uint(c, "expansion_ratio", width / c->hidden);
}
