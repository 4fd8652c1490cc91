/* Which token's hidden state is a text's embedding, as models made for it say. Runs in the worker at load. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proc_worker/model/config_priv.h"

#define MODULES_FILE "modules.json"
#define POOLING_FILE "1_Pooling/config.json"

enum { PATH_BYTES = 4096 };

PRINTF_LIKE(2, 3) static enum err refuse(struct model_config *c, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(c->no_embeddings, sizeof(c->no_embeddings), fmt, args);
	va_end(args);
	return ERR_OK;
}

/* The first way that a pooling asks for and that is not the last token's; NULL: none. Newer files name one, or an array of ways that
 * are put together; a file that names none means the mean. */
static const char *other_way(json_val v)
{
	static const char *const ways[] = {"pooling_mode_cls_token",	      "pooling_mode_mean_tokens",	  "pooling_mode_max_tokens",
					   "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"};
	json_val mode = json_get(v, "pooling_mode");
	bool asked = false;

	if (json_type(mode) == JSON_ARRAY && json_count(mode) != 1)
		return "several ways";
	if (json_present(mode)) {
		const char *one = json_cstr(json_type(mode) == JSON_ARRAY ? json_at(mode, 0) : mode, "?");
		return strcmp(one, "lasttoken") == 0 ? NULL : one;
	}
	for (size_t i = 0; i < COUNT_OF(ways); i++)
		if (json_bool(json_get(v, ways[i]), &asked) && asked)
			return ways[i];
	return json_bool(json_get(v, "pooling_mode_lasttoken"), &asked) && asked ? NULL : "mean";
}

/* `file`: of a folder of the model, as errors name it; it must be there if it was `named`. */
static enum err read_pooling(struct model_config *c, const char *dir, const char *file, bool named, struct err_msg *em)
{
	char path[PATH_BYTES];
	struct json_doc *doc = NULL;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, file) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the path of %.100s is longer than %zu bytes", file, sizeof(path) - 1);
	if (access(path, F_OK) < 0)
		return named ? refuse(c, MODULES_FILE " names %.60s, which is not there", file) : ERR_OK;
	enum err e = json_parse_file(&doc, path, em);
	const char *way = e ? NULL : other_way(json_root(doc));
	if (way)
		(void)refuse(c, "%.60s asks for '%.40s', and only those of the last token are made here", file, way);
	json_free(&doc);
	return e;
}

static bool ends_in(const char *name, const char *end)
{
	size_t bytes = strlen(name), tail = strlen(end);

	return bytes >= tail && strcmp(name + bytes - tail, end) == 0;
}

/* What sentence-transformers runs one behind the other. */
static enum err read_modules(struct model_config *c, const char *dir, json_val modules, struct err_msg *em)
{
	char file[PATH_BYTES];
	enum err e = ERR_OK;

	for (struct json_iter it = json_iterate(modules); !e && !c->no_embeddings[0] && json_next(&it);) {
		const char *type = json_cstr(json_get(it.value, "type"), "?");
		if (ends_in(type, ".Transformer") || ends_in(type, ".Normalize"))
			continue;
		if (!ends_in(type, ".Pooling"))
			return refuse(c, MODULES_FILE " has a '%.60s', which is not computed here", type);
		if ((size_t)snprintf(file, sizeof(file), "%s/config.json", json_cstr(json_get(it.value, "path"), "?")) >= sizeof(file))
			return err_set(em, ERR_TOO_LONG, MODULES_FILE ": a \"path\" is longer than %zu bytes", sizeof(file) - 1);
		e = read_pooling(c, dir, file, true, em);
	}
	return e;
}

enum err config_read_pooling(struct model_config *c, json_val whole, const char *dir, struct err_msg *em)
{
	char path[PATH_BYTES];
	struct json_doc *doc = NULL;
	const char *of_gguf = json_cstr(json_get(whole, "_pooling_mode"), "");

	if (*of_gguf)
		return refuse(c, "the file's pooling_type is '%.40s', and only those of the last token are made here", of_gguf);
	if ((size_t)snprintf(path, sizeof(path), "%s/" MODULES_FILE, dir) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the path of " MODULES_FILE " is longer than %zu bytes", sizeof(path) - 1);
	if (access(path, F_OK) < 0)
		return read_pooling(c, dir, POOLING_FILE, false, em);
	enum err e = json_parse_file(&doc, path, em);
	if (!e)
		e = read_modules(c, dir, json_root(doc), em);
	json_free(&doc);
	return e;
}
