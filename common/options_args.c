/* Options from the command line and the environment, and the suggestion for a mistyped name. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cluster_secret.h"
#include "common/options.h"
#include "common/options_priv.h"
#include "common/suggest.h"

/* ---------------------------------------------------------------- suggestion */

const char *option_suggest(const char *name, size_t bytes)
{
	const char *best = NULL;
	size_t best_distance = SIZE_MAX;

	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		size_t distance = suggest_distance(name, bytes, d->name);
		if (distance < best_distance) {
			best_distance = distance;
			best = d->name;
		}
	}
	for (const struct option_alias *a = option_aliases; a->name != NULL; a++) {
		size_t distance = suggest_distance(name, bytes, a->name);
		if (distance < best_distance && strlen(a->name) > 3) {
			best_distance = distance;
			best = a->name;
		}
	}
	return suggest_is_near(best_distance, bytes) ? best : NULL;
}

void option_suggest_text(char *out, size_t out_bytes, const char *name, size_t name_bytes, const char *dashes)
{
	const char *known = option_suggest(name, name_bytes);
	char dashed[OPTION_NAME_BYTES_MAX];

	out[0] = '\0';
	if (known == NULL)
		return;
	option_dashed(dashed, sizeof(dashed), known);
	snprintf(out, out_bytes, "; did you mean %s%s?", dashes, dashed);
}

/* ---------------------------------------------------------------- command line */

/* The word at hand, split. */
struct arg {
	struct option_match match; /* desc NULL: a plain word or --config */
	bool is_config;
	const char *text;  /* a plain word */
	const char *value; /* NULL: none */
	char where[OPTION_NAME_BYTES_MAX + 8];
};

struct arg_reader {
	int argc, at;
	char **argv;
	bool only_words; /* "--" was seen */
};

/* The value of an option whose word carried none. */
static enum err take_value(struct arg_reader *r, struct arg *a, struct err_msg *em)
{
	if (a->value != NULL || a->match.is_flag)
		return ERR_OK;
	if (r->at == r->argc || strncmp(r->argv[r->at], "--", 2) == 0)
		return err_set(em, ERR_INVALID,
			       "%s needs a value (a value that begins with dashes: %s=VALUE)", a->where,
			       a->where);
	a->value = r->argv[r->at++];
	return ERR_OK;
}

/* Takes the next word and its value. ERR_AGAIN: there is none. */
static enum err next_arg(struct arg_reader *r, struct arg *a, struct err_msg *em)
{
	*a = (struct arg){0};
	if (r->at == r->argc)
		return ERR_AGAIN;
	const char *word = r->argv[r->at++];
	if (!r->only_words && strcmp(word, "--") == 0) {
		r->only_words = true;
		return next_arg(r, a, em);
	}
	if (r->only_words || word[0] != '-' || word[1] == '\0') {
		a->text = word;
		return ERR_OK;
	}
	const char *name = word + (word[1] == '-' ? 2 : 1);
	size_t bytes = strcspn(name, "=");
	snprintf(a->where, sizeof(a->where), "%.*s", (int)(name + bytes - word), word);
	if (name[bytes] == '=')
		a->value = name + bytes + 1;
	if (bytes == 6 && strncmp(name, "config", 6) == 0) {
		a->is_config = true;
		return take_value(r, a, em);
	}
	/* One dash is for the short aliases only (-tp), so that "-port" is not half understood. */
	bool known = option_find(name, bytes, &a->match);
	if (!known || (word[1] != '-' && (a->match.alias == NULL || bytes > 3))) {
		char suggestion[OPTION_NAME_BYTES_MAX + 32];
		const char *hint = option_hint(name, bytes);
		if (hint)
			return err_set(em, ERR_NOT_FOUND, "there is no option %s: %s", a->where, hint);
		option_suggest_text(suggestion, sizeof(suggestion), name, bytes, "--");
		return err_set(em, ERR_NOT_FOUND, "there is no option %s%s (see --help)", a->where,
			       suggestion);
	}
	return take_value(r, a, em);
}

/* First pass: the file's name, and every word is known. */
static enum err find_config(int argc, char **argv, const char **config, struct err_msg *em)
{
	struct arg_reader r = {.argc = argc, .at = 1, .argv = argv};
	struct arg a;
	enum err e;

	while ((e = next_arg(&r, &a, em)) == ERR_OK)
		if (a.is_config)
			*config = a.value;
	return e == ERR_AGAIN ? ERR_OK : e;
}

/* Plain words behind the model, for commands that take some. */
struct plain_words {
	const char **items; /* [max] */
	u32 max;
	u32 count;
};

static enum err set_model(struct options *o, const char *text, bool *have_model, struct plain_words *more,
			  struct err_msg *em)
{
	if (*have_model && more->count < more->max) {
		more->items[more->count++] = text;
		return ERR_OK;
	}
	if (*have_model)
		return err_set(em, ERR_INVALID, "unexpected word \"%.100s\": the model is \"%.100s\" already",
			       text, o->model);
	*have_model = true;
	return options_set(o, "model", text, "the model", em);
}

/* --lora-modules takes several words: NAME=PATH or a JSON object. */
static bool is_adapter(const char *word)
{
	size_t name = strcspn(word, "=/");

	return word[0] == '{' || (name != 0 && word[name] == '=');
}

/* Whether a plain word is one more of the list before it, as in vLLM's --served-model-name a b: if there is nothing else that it
 * could be; of adapters, if it is one. */
static bool goes_on(const struct option_match *list, const char *word, bool words_are_full)
{
	if (list->desc == NULL)
		return false;
	return strcmp(list->desc->name, "lora_modules") == 0 ? is_adapter(word) : words_are_full;
}

/* Second pass. */
static enum err apply_args(struct options *o, int argc, char **argv, struct plain_words *more,
			   struct err_msg *em)
{
	struct arg_reader r = {.argc = argc, .at = 1, .argv = argv};
	bool seen[OPTION_TABLE_MAX] = {false};
	bool have_model = false;
	struct option_match list = {.desc = NULL}; /* was the last word before plain ones */
	struct arg a;
	enum err e;

	while ((e = next_arg(&r, &a, em)) == ERR_OK) {
		if (a.text != NULL && goes_on(&list, a.text, have_model && more->count == more->max)) {
			e = option_apply(o, &list, a.text, true, list.desc->name, em);
			if (e != ERR_OK)
				return e;
			continue;
		}
		list.desc = a.match.desc != NULL && a.match.desc->type == OPTION_LIST ? a.match.desc : NULL;
		if (a.is_config)
			continue;
		if (a.text != NULL || strcmp(a.match.desc->name, "model") == 0) {
			e = set_model(o, a.text != NULL ? a.text : a.value, &have_model, more, em);
		} else {
			size_t row = (size_t)(a.match.desc - option_table);
			e = option_apply(o, &a.match, a.value, seen[row], a.where, em);
			seen[row] = true;
		}
		if (e != ERR_OK)
			return e;
	}
	return e == ERR_AGAIN ? ERR_OK : e;
}

enum err options_read_args(struct options *o, int argc, char **argv, struct err_msg *em)
{
	return options_read_words(o, argc, argv, NULL, 0, NULL, em);
}

enum err options_read_words(struct options *o, int argc, char **argv, const char **words, u32 max, u32 *count,
			    struct err_msg *em)
{
	struct plain_words more = {.items = words, .max = max};
	const char *config = getenv("TERCET_CONFIG");
	enum err e;

	e = find_config(argc, argv, &config, em);
	if (e != ERR_OK)
		return e;
	e = options_read_env(o, em);
	if (e != ERR_OK)
		return e;
	if (config != NULL && config[0] != '\0') {
		e = options_read_yaml(o, config, em);
		if (e != ERR_OK)
			return e;
	}
	e = apply_args(o, argc, argv, &more, em);
	if (count != NULL)
		*count = more.count;
	return e;
}

/* ---------------------------------------------------------------- environment */

static void env_name(char *out, size_t bytes, const char *option)
{
	size_t i = (size_t)snprintf(out, bytes, "TERCET_");

	for (; *option != '\0' && i + 1 < bytes; option++)
		out[i++] = (char)toupper((unsigned char)*option);
	out[i] = '\0';
}

bool options_owns_env(const char *variable)
{
	char name[OPTION_NAME_BYTES_MAX + 8];
	size_t bytes = strcspn(variable, "=");

	if (bytes == strlen("TERCET_CONFIG") && strncmp(variable, "TERCET_CONFIG", bytes) == 0)
		return true;
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		env_name(name, sizeof(name), d->name);
		if (strlen(name) == bytes && strncmp(name, variable, bytes) == 0)
			return true;
	}
	return false;
}

enum err options_read_env(struct options *o, struct err_msg *em)
{
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		char name[OPTION_NAME_BYTES_MAX + 8];
		env_name(name, sizeof(name), d->name);
		const char *value = getenv(name);
		/* An empty variable counts as unset, but for the key: option_apply says why. */
		if (value == NULL || (value[0] == '\0' && strcmp(d->name, "api_key") != 0))
			continue;
		struct option_match match = {.desc = d, .is_flag = d->type == OPTION_FLAG};
		enum err e = option_apply(o, &match, value, false, name, em);
		if (e != ERR_OK)
			return e;
	}
	return ERR_OK;
}

void options_check_env(FILE *out)
{
	char name[OPTION_NAME_BYTES_MAX + 8], near[sizeof(name)];

	for (char **v = environ; *v != NULL; v++) {
		size_t bytes = strcspn(*v, "="), best = SIZE_MAX;
		if (strncmp(*v, "TERCET_", 7) != 0 || options_owns_env(*v) ||
		    strncmp(*v, CLUSTER_SECRET_ENV "=", sizeof(CLUSTER_SECRET_ENV)) == 0)
			continue;
		for (const struct option_desc *d = option_table; d->name != NULL; d++) {
			env_name(name, sizeof(name), d->name);
			size_t distance = suggest_distance(*v + 7, bytes - 7, name + 7);
			if (distance < best) {
				best = distance;
				snprintf(near, sizeof(near), "%s", name);
			}
		}
		if (suggest_is_near(best, bytes - 7))
			fprintf(out, "tercet: warning: the variable %.*s is no option; did you mean %s?\n",
				(int)(bytes < 100 ? bytes : 100), *v, near);
	}
}
