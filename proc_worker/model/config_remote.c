/* What config.json says only to those who know the program that came with the checkpoint: Baichuan and Qwen 1. Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

enum {
	ROTARY_HIDDEN_MAX = 4096, /* of a Baichuan: 7B, and 13B is wider */
	SEQ_LENGTH = 8192,	  /* of a Qwen 1 that does not say it */
};

/* No field says how its heads know positions. 7B's files have their context here, 13B's in "model_max_length". */
enum err config_check_baichuan(const struct model_config *c, json_val v, struct err_msg *em)
{
	const bool stated = json_present(json_get(v, "max_position_embeddings"));

	if (stated && c->hidden <= ROTARY_HIDDEN_MAX)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: %s, as of a %s of 13B, whose heads have ALiBi in place of rotary embeddings, which is not supported; 7B is",
		       stated ? "\"hidden_size\" is more than 4096" : "\"max_position_embeddings\" is missing", c->arch->name);
}

/* Both would change what is computed beyond "seq_length" alone, so that the context ends there. */
enum err config_read_seq_length(struct model_config *c, json_val v, struct err_msg *em)
{
	bool dynamic = true, logarithm = true;
	u32 length = 0;

	enum err e = config_may_bool(v, "use_dynamic_ntk", true, &dynamic, em);
	if (!e)
		e = config_may_bool(v, "use_logn_attn", true, &logarithm, em);
	if (!e)
		e = config_may_u32(v, "seq_length", CONFIG_CONTEXT_MAX, SEQ_LENGTH, &length, em);
	if (!e && (dynamic || logarithm))
		config_bound_context(c, length, "seq_length");
	return e;
}
