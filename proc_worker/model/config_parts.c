/* Models of several parts, of which the one that describes the language is read: where it is, and which fields are its own and which the whole
 * model's. Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

enum err config_read_text_part(struct model_config *c, json_val *text, const char *name, const char *known,
			       struct err_msg *em)
{
	char types[128];
	json_val part = json_get(*text, "text_config");

	if (!json_present(part) && json_present(json_get(*text, "hidden_size")))
		c->arch = arch_find_text_part(name, NULL, types, sizeof(types));
	else
		c->arch = arch_find_text_part(name, json_cstr(json_get(part, "model_type"), ""), types, sizeof(types));
	if (c->arch && json_type(part) == JSON_OBJECT)
		*text = part;
	if (c->arch)
		return ERR_OK;
	if (!types[0])
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: unknown architecture '%.128s'; supported: %s", name, known);
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"text_config\" of a %s must be an object with \"model_type\" %s, found '%.64s'", name,
		       types, json_cstr(json_get(part, "model_type"), json_type_name(part)));
}

json_val config_whose(json_val whole, json_val text, const char *name)
{
	return json_present(json_get(text, name)) ? text : whole;
}

enum err config_read_tied(struct model_config *c, json_val whole, json_val text, struct err_msg *em)
{
	static const char name[] = "tie_word_embeddings";
	const bool usual = c->arch->traits & ARCH_TIED;
	bool of_text = usual;

	enum err e = config_may_bool(text, name, usual, &of_text, em);
	if (!e)
		e = config_may_bool(whole, name, of_text, &c->tied_embeddings, em);
	if (!e && arch_ties_either(json_cstr(json_at(json_get(whole, "architectures"), 0), "")) && of_text && json_present(json_get(text, name)))
		c->tied_embeddings = true;
	return e;
}
