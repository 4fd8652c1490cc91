/* What config.json says of a Falcon's blocks, and in families that may have it, whether heads share one key ("multi_query") or come in quarters.
 * Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

/* What is true where a file does not say it, and false where it says null. */
static enum err refuse_null(const struct model_config *c, json_val v, const char *name, struct err_msg *em)
{
	if (json_type(json_get(v, name)) != JSON_NULL)
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "config.json: \"%s\" is null; of a %s it must be true or false, or missing", name, c->arch->name);
}

static enum err read_newer(const struct model_config *c, json_val v, bool *newer, struct err_msg *em)
{
	*newer = false;
	return arch_has_own(c->arch, "new_decoder_architecture") ? config_may_bool(v, "new_decoder_architecture", false, newer, em) : ERR_OK;
}

enum err config_read_multi_query(struct model_config *c, json_val v, struct err_msg *em)
{
	bool newer, shared;

	enum err e = read_newer(c, v, &newer, em);
	if (!e)
		e = config_may_bool(v, "multi_query", true, &shared, em);
	if (e || newer)
		return e;
	e = refuse_null(c, v, "multi_query", em);
	if (e)
		return e;
	/* Programs write the number of heads even where it does not count. */
	if (c->kv_heads != c->heads && !(shared && c->kv_heads == 1))
		return err_set(em, ERR_INVALID, "config.json: \"num_key_value_heads\" is %u, and \"multi_query\" is %s: it must be %s%u, the number of heads",
			       c->kv_heads, shared ? "true" : "false", shared ? "1 or " : "", c->heads);
	if (shared)
		c->kv_heads = 1;
	return ERR_OK;
}

/* CodeGen 2 of 1B and 3.7B has eighths, and no field that says so but the size of its heads, which other CodeGens leave to be computed. */
enum err config_check_quarters(const struct model_config *c, json_val v, struct err_msg *em)
{
	if (json_present(json_get(v, "head_dim")))
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"head_dim\" is set, as of CodeGen 2, whose heads come in eighths; of a %s it must not be there, and heads come in quarters",
			       c->arch->name);
	if (c->heads * c->head_dim % 4)
		return err_set(em, ERR_INVALID, "config.json: %u heads of %u dimensions; of a %s they must have a multiple of 4 together", c->heads, c->head_dim,
			       c->arch->name);
	return ERR_OK;
}

/* How wide the MLP is, once more. */
static enum err check_width(const struct model_config *c, json_val v, struct err_msg *em)
{
	u32 factor = 0;

	enum err e = config_may_u32(v, "ff_factor", CONFIG_DIM_MAX, 0, &factor, em);
	if (e || factor == 0 || (u64)factor * c->hidden == c->intermediate)
		return e;
	return err_set(em, ERR_INVALID, "config.json: \"ff_factor\" is %u, which is an \"intermediate_size\" of %llu, but that is %u; take one of them out",
		       factor, (unsigned long long)((u64)factor * c->hidden), c->intermediate);
}

enum err config_read_falcon(struct model_config *c, json_val v, struct err_msg *em)
{
	bool alibi, newer = false;
	u32 norms = 1;

	enum err e = config_may_bool(v, "alibi", false, &alibi, em);
	if (!e && alibi)
		c->alibi = (struct alibi_config){ALIBI_ROUNDED, 8};
	if (!e)
		e = refuse_null(c, v, "use_parallel_residual", em);
	if (!e)
		e = read_newer(c, v, &newer, em);
	if (!e)
		e = config_may_u32(v, "num_ln_in_parallel_attn", 2, newer ? 2 : 1, &norms, em);
	if (e)
		return e;
	if (newer && !c->parallel)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"use_parallel_residual\" is false; with \"new_decoder_architecture\" it must be true: attention and MLP stand side by side");
	if (!newer && norms == 2)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"num_ln_in_parallel_attn\" is 2; without \"new_decoder_architecture\" it must be 1: attention and MLP read the same norm");
	c->norm_each = norms == 2;
	return check_width(c, v, em);
}
