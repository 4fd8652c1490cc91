/* Owns the reading of generation_config.json; runs in the gateway at start. Never takes do_sample into
 * account: clients ask for greedy decoding by temperature 0. */
#include <stdio.h>
#include <unistd.h>

#include "common/json.h"
#include "proc_gateway/generation_config.h"

void generation_config_default(struct generation_config *c)
{
	*c = (struct generation_config){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

static enum err read_real(json_val root, const char *key, double min, double max, f64 *out,
			  struct err_msg *em)
{
	json_val v = json_get(root, key);
	double value;
	if (!json_present(v))
		return ERR_OK;
	if (!json_double(v, &value))
		return err_set(em, ERR_INVALID, "%s has to be a number from %g to %g, not %s", key, min, max,
			       json_type_name(v));
	if (!(value >= min && value <= max))
		return err_set(em, ERR_INVALID, "%s is %g, but has to be from %g to %g", key, value, min,
			       max);
	*out = value;
	return ERR_OK;
}

static enum err read_int(json_val root, const char *key, i64 min, i64 *out, struct err_msg *em)
{
	json_val v = json_get(root, key);
	i64 value;
	if (!json_present(v))
		return ERR_OK;
	if (!json_int(v, &value))
		return err_set(em, ERR_INVALID, "%s has to be an integer, not %s", key, json_type_name(v));
	if (value < min || value > 0x7fffffff)
		return err_set(em, ERR_INVALID, "%s is %lld, but has to be at least %lld", key,
			       (long long)value, (long long)min);
	*out = value;
	return ERR_OK;
}

static enum err read_all(struct generation_config *c, json_val root, struct err_msg *em)
{
	if (json_type(root) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "it has to be a JSON object, not %s", json_type_name(root));
	enum err e = read_real(root, "temperature", 0, 100, &c->temperature, em);
	if (!e)
		e = read_real(root, "top_p", 1e-6, 1, &c->top_p, em);
	if (!e)
		e = read_real(root, "min_p", 0, 1, &c->min_p, em);
	if (!e)
		e = read_real(root, "repetition_penalty", 0.01, 100, &c->repetition_penalty, em);
	if (!e)
		e = read_int(root, "top_k", -1, &c->top_k, em);
	if (!e)
		e = read_int(root, "max_new_tokens", 1, &c->max_new_tokens, em);
	return e;
}

enum err generation_config_load(struct generation_config *c, const char *model_dir, struct err_msg *em)
{
	char path[4200];
	struct json_doc *doc;
	snprintf(path, sizeof(path), "%s/generation_config.json", model_dir);
	if (access(path, F_OK) != 0)
		return ERR_OK;
	enum err e = json_parse_file(&doc, path, em);
	if (e)
		return e;
	e = read_all(c, json_root(doc), em);
	if (e)
		err_prefix(em, "%s", path);
	json_free(&doc);
	return e;
}
