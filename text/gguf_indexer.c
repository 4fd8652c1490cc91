/* Owns what config.json says of an indexer, which chooses the tokens that layers attend to, as a file in GGUF has it. Runs once while a model is
 * imported. */
#include <stdio.h>

#include "text/gguf_config_priv.h"

/* Layers without tensors of their own take over what others have chosen. */
static void write_types(struct gguf_config *c)
{
	char name[64];

	gguf_config_know(c, "attention.indexer.types"); /* the same in words that differ from file to file */
	if (!gguf_config_layers_have(c, "indexer.attn_k.weight"))
		return;
	json_key(&c->w, "indexer_types");
	json_array_begin(&c->w);
	for (u32 i = 0; i < c->layers; i++) {
		snprintf(name, sizeof(name), "blk.%u.indexer.attn_k.weight", i);
		json_write_cstr(&c->w, gguf_config_has_tensor(c, name) ? "full" : "shared");
	}
	json_array_end(&c->w);
}

void gguf_config_write_indexer(struct gguf_config *c)
{
	gguf_config_write_uint(c, "index_topk", gguf_config_need_int(c, "attention.indexer.top_k"));
	gguf_config_write_uint(c, "index_n_heads", gguf_config_need_int(c, "attention.indexer.head_count"));
	gguf_config_write_uint(c, "index_head_dim", gguf_config_need_int(c, "attention.indexer.key_length"));
	write_types(c);
}
