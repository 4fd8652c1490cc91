/* Owns what config.json says of which token's embedding a model was made for, as a file in GGUF has it (llama.cpp's llama_pooling_type). Runs once while a
 * model is imported. */
#include "text/gguf_config_priv.h"

void gguf_config_write_pooling(struct gguf_config *c)
{
	static const char *const ways[] = {NULL, "mean", "cls", NULL, "rank"};
	u32 way;

	if (!gguf_config_int(c, "pooling_type", &way))
		return;
	if (way >= COUNT_OF(ways)) {
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u, which is not known; it must be 0 to %zu", c->key, way, COUNT_OF(ways) - 1);
	} else if (ways[way]) {
		json_key(&c->w, "_pooling_mode");
		json_write_cstr(&c->w, ways[way]);
	}
}
