/* What config.json says only to those who know the program that came with the checkpoint: Baichuan and Qwen 1. Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

enum {
	ROTARY_HIDDEN_MAX = 4096, /* of a Baichuan: 7B, and 13B is wider */
	FIRST_VOCAB = 64000,	  /* of 13B's generations */
	SECOND_VOCAB = 125696,
	ALIBI_BIAS_MAX = 8,
	ALIBI_CONTEXT = 4096,	  /* of 13B where its file does not say it */
	SEQ_LENGTH = 8192,	  /* of a Qwen 1 that does not say it */
};

/* Of 13B there are two generations under one name, the second of which divides rows of lm_head by their lengths. */
static enum err read_generation(struct model_config *c, json_val v, struct err_msg *em)
{
	c->unit_head = json_present(json_get(v, "z_loss_weight")) || c->embed_vocab == SECOND_VOCAB;
	if (c->unit_head || c->embed_vocab == FIRST_VOCAB)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"vocab_size\" is %u, which does not tell the generation of this %s of 13B: %d is the first's, %d or a \"z_loss_weight\" the second's",
		       c->embed_vocab, c->arch->name, FIRST_VOCAB, SECOND_VOCAB);
}

/* No field says how its heads know positions. 7B's files have their context here, 13B's in "model_max_length". */
enum err config_read_baichuan(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool stated = json_present(json_get(v, "max_position_embeddings"));

	c->unit_head = c->arch->unit_head;
	if (stated && c->hidden <= ROTARY_HIDDEN_MAX)
		return ERR_OK;
	if (!c->arch->unit_head) /* there is no 13B of that name */
		return err_set(em, ERR_UNSUPPORTED, "config.json: %s; of a %s it must be as of 7B, whose heads rotate",
			       stated ? "\"hidden_size\" is more than 4096" : "\"max_position_embeddings\" is missing", c->arch->name);
	c->alibi = (struct alibi_config){ALIBI_BELOW, ALIBI_BIAS_MAX};
	enum err e = read_generation(c, v, em);
	return e ? e : config_may_u32(v, "model_max_length", CONFIG_CONTEXT_MAX, ALIBI_CONTEXT, &c->context_max, em);
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
