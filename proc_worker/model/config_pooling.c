/* Which token's hidden state is a text's embedding, as models made for it say. Runs in the worker at load. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proc_worker/model/config_priv.h"

#define POOLING_FILE "1_Pooling/config.json"

/* The first way that the file asks for and that is not the last token's; NULL: none. Newer files name one. */
static const char *other_way(json_val v)
{
	static const char *const ways[] = {"pooling_mode_cls_token",	      "pooling_mode_mean_tokens",	  "pooling_mode_max_tokens",
					   "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"};
	const char *one = json_cstr(json_get(v, "pooling_mode"), "");
	bool asked = false;

	if (*one && strcmp(one, "lasttoken") != 0)
		return one;
	for (size_t i = 0; i < COUNT_OF(ways); i++)
		if (json_bool(json_get(v, ways[i]), &asked) && asked)
			return ways[i];
	return NULL;
}

enum err config_read_pooling(struct model_config *c, json_val whole, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;

	if ((size_t)snprintf(path, sizeof(path), "%s/" POOLING_FILE, dir) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the path of " POOLING_FILE " is longer than %zu bytes", sizeof(path) - 1);
	const char *of_gguf = json_cstr(json_get(whole, "_pooling_mode"), "");
	if (*of_gguf)
		snprintf(c->no_embeddings, sizeof(c->no_embeddings), "the file's pooling_type is '%.40s', and only those of the last token are made here",
			 of_gguf);
	if (access(path, F_OK) < 0)
		return ERR_OK;
	enum err e = json_parse_file(&doc, path, em);
	const char *way = e ? NULL : other_way(json_root(doc));
	if (way)
		snprintf(c->no_embeddings, sizeof(c->no_embeddings), POOLING_FILE " asks for '%.40s', and only those of the last token are made here", way);
	json_free(&doc);
	return e;
}
