/* Owns what config.json says of models with several residual streams (Gemma 3n), as a file in GGUF has it. Runs once while a model is imported. */
#include <math.h>

#include "text/gguf_config_priv.h"

/* So many rows as a tensor has; 0: it is not there, or has not two dimensions. */
static u32 rows_of(const struct gguf_config *c, const char *name)
{
	const struct gguf_tensor *t = gguf_tensor_find(c->g, name);

	return t && t->dims == 2 && t->shape[0] <= GGUF_COUNT_MAX ? (u32)t->shape[0] : 0;
}

/* A size that only a tensor says. */
static void write_rows(struct gguf_config *c, const char *field, const char *tensor)
{
	const u32 rows = rows_of(c, tensor);

	if (rows == 0)
		gguf_config_fail(c, ERR_FORMAT, "the tensor %s is missing, or has not two dimensions", tensor);
	gguf_config_write_uint(c, field, rows);
}

/* Matrices of all streams but the first, together in one tensor; without it the checkpoint has none. */
static void check_streams(struct gguf_config *c, const char *tensor, u32 streams)
{
	const struct gguf_tensor *t = gguf_tensor_find(c->g, tensor);

	if (t && streams > 1 && (t->dims != 3 || t->shape[0] != streams - 1))
		gguf_config_fail(c, ERR_FORMAT, "the tensor %s must have three dimensions, the first one of %u streams (%s.altup.num_inputs, less the first)", tensor,
				 streams - 1, c->arch);
}

/* Files have by how many standard deviations gates must be above the mean, -infinity where all count; config.json has the share that is below it. */
static void write_sparsity(struct gguf_config *c)
{
	double deviations = 0;
	u64 count;

	gguf_config_know(c, "activation_sparsity_scale");
	if (c->e != ERR_OK || !gguf_has(c->g, c->key)) /* as of the models that there are */
		return;
	if (!gguf_array(c->g, c->key, &count) || count != c->layers) {
		gguf_config_fail(c, ERR_FORMAT, "%s must have a number for each of the %u layers", c->key, c->layers);
		return;
	}
	json_key(&c->w, "activation_sparsity_pattern");
	json_array_begin(&c->w);
	for (u64 i = 0; i < count; i++) {
		const bool number = gguf_array_float(c->g, c->key, i, &deviations);
		const double share = erfc(-deviations / sqrt(2)) / 2;
		if (!number || !((float)share < 1))
			gguf_config_fail(c, ERR_FORMAT, "%s must be numbers, by how many standard deviations a layer's gates are above their mean; that of layer "
					 "%llu is none, or so large that no gate is", c->key, (unsigned long long)i);
		json_write_double(&c->w, c->e == ERR_OK ? share : 0);
	}
	json_array_end(&c->w);
}

void gguf_config_write_streams(struct gguf_config *c)
{
	const u32 streams = gguf_config_need_int(c, "altup.num_inputs");
	u32 active = 0, shared = 0;

	gguf_config_write_uint(c, "altup_num_inputs", streams);
	check_streams(c, "altup_proj.weight", streams);
	check_streams(c, "altup_unembd_proj.weight", streams);
	(void)gguf_config_int(c, "altup.active_idx", &active);
	gguf_config_write_uint(c, "altup_active_idx", active);
	gguf_config_write_bool(c, "altup_correct_scale", gguf_config_layers_have(c, "altup_correct_scale.weight"));
	write_rows(c, "laurel_rank", "blk.0.laurel_l.weight");
	gguf_config_write_uint(c, "hidden_size_per_layer_input", gguf_config_need_int(c, "embedding_length_per_layer_input"));
	write_rows(c, "vocab_size_per_layer_input", "per_layer_token_embd.weight");
	if (!gguf_config_int(c, "attention.shared_kv_layers", &shared))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be the number of layers that have no keys and values of their own", c->key);
	gguf_config_write_uint(c, "num_kv_shared_layers", shared);
	write_sparsity(c);
}
