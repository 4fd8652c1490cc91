/* Reads adapter_config.json. Runs in the worker while it loads. Owns nothing; believes nothing that the file says. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "proc_worker/model/lora_config.h"

#include <errno.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/assert.h"

static const char FILE_NAME[] = "adapter_config.json";
enum { RANK_MAX = 1 << 16 };

/* ---------------------------------------------------------------- what there may be */

/* How a field is taken: read here; says nothing about what is computed; or must be off, for what it asks for is not done. */
enum field_use { FIELD_READ, FIELD_IGNORED, FIELD_OFF };

static const struct field {
	const char *name;
	enum field_use use;
	const char *what; /* of FIELD_OFF */
} FIELDS[] = {
	{"r", FIELD_READ, NULL},
	{"lora_alpha", FIELD_READ, NULL},
	{"use_rslora", FIELD_READ, NULL},
	{"target_modules", FIELD_READ, NULL},
	{"layers_to_transform", FIELD_READ, NULL},
	{"layers_pattern", FIELD_READ, NULL},
	{"rank_pattern", FIELD_READ, NULL},
	{"alpha_pattern", FIELD_READ, NULL},
	{"exclude_modules", FIELD_READ, NULL},
	{"peft_type", FIELD_READ, NULL},
	{"bias", FIELD_READ, NULL},
	{"init_lora_weights", FIELD_READ, NULL},
	{"base_model_name_or_path", FIELD_IGNORED, NULL},
	{"auto_mapping", FIELD_IGNORED, NULL},
	{"inference_mode", FIELD_IGNORED, NULL},
	{"lora_dropout", FIELD_IGNORED, NULL},
	{"revision", FIELD_IGNORED, NULL},
	{"task_type", FIELD_IGNORED, NULL},
	{"peft_version", FIELD_IGNORED, NULL},
	{"megatron_core", FIELD_IGNORED, NULL},
	{"runtime_config", FIELD_IGNORED, NULL},
	{"loftq_config", FIELD_IGNORED, NULL},
	{"eva_config", FIELD_IGNORED, NULL},
	{"corda_config", FIELD_IGNORED, NULL},
	{"qalora_group_size", FIELD_IGNORED, NULL},
	{"fan_in_fan_out", FIELD_IGNORED, NULL}, /* how a model keeps its weights; A and B are the same either way */
	{"ensure_weight_tying", FIELD_IGNORED, NULL},
	{"use_dora", FIELD_OFF, "weights taken apart into size and direction (DoRA)"},
	{"use_qalora", FIELD_OFF, "grouped inputs (QALoRA)"},
	{"use_bdlora", FIELD_OFF, "matrices in blocks (BD-LoRA)"},
	{"modules_to_save", FIELD_OFF, "modules that are trained as a whole"},
	{"lora_bias", FIELD_OFF, "biases"},
	{"megatron_config", FIELD_OFF, "layers of Megatron"},
	{"layer_replication", FIELD_OFF, "layers that are there several times"},
	{"trainable_token_indices", FIELD_OFF, "trained embeddings"},
	{"alora_invocation_tokens", FIELD_OFF, "adapters that begin with a token (aLoRA)"},
	{"target_parameters", FIELD_OFF, "parameters that are no linear layers"},
};

static bool is_off(json_val v)
{
	bool on = true;

	if (!json_present(v) || (json_bool(v, &on) && !on))
		return true;
	return (json_type(v) == JSON_ARRAY || json_type(v) == JSON_OBJECT) && json_count(v) == 0;
}

static enum err check_fields(json_val root, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(root); json_next(&it);) {
		const struct field *f = NULL;
		for (size_t i = 0; !f && i < COUNT_OF(FIELDS); i++)
			f = strcmp(FIELDS[i].name, it.key) ? NULL : &FIELDS[i];
		if (is_off(it.value) || (f && f->use != FIELD_OFF))
			continue;
		return err_set(em, ERR_UNSUPPORTED, "%s: \"%.100s\" is not supported%s%s; only without it can the adapter be used",
			       FILE_NAME, it.key, f ? ": " : " (an unknown field)", f ? f->what : "");
	}
	return ERR_OK;
}

/* Of a field that must be one of these words, or missing. */
static enum err check_word(json_val root, const char *name, const char *const *words, size_t count, struct err_msg *em)
{
	json_val v = json_get(root, name);

	for (size_t i = 0; i < count; i++)
		if (!json_present(v) || json_type(v) == JSON_BOOL || json_string_equals(v, words[i]))
			return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "%s: \"%s\" is \"%.100s\"; supported is \"%s\"", FILE_NAME, name,
		       json_cstr(v, json_type_name(v)), words[0]);
}

/* ---------------------------------------------------------------- numbers and patterns */

static enum err read_number(json_val v, const char *name, double most, bool whole, double *out, struct err_msg *em)
{
	if (json_double(v, out) && *out > 0 && *out <= most && (!whole || *out == floor(*out)))
		return ERR_OK;
	return err_set(em, ERR_INVALID, "%s: \"%.100s\" must be %s above 0 and at most %g, and is %s", FILE_NAME, name,
		       whole ? "a whole number" : "a number", most, json_type(v) == JSON_MISSING ? "missing" : "another value");
}

static enum err check_patterns(json_val v, const char *name, double most, bool whole, struct err_msg *em)
{
	double ignored;
	enum err e = ERR_OK;

	if (json_present(v) && json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "%s: \"%s\" must be an object; it is of the type %s", FILE_NAME, name, json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);)
		e = read_number(it.value, it.key, most, whole, &ignored, em);
	return e;
}

static enum err check_targets(json_val v, struct err_msg *em)
{
	bool good = json_type(v) == JSON_STRING || (json_type(v) == JSON_ARRAY && json_count(v) > 0);

	for (struct json_iter it = json_iterate(v); good && json_next(&it);)
		good = *json_cstr(it.value, "") != '\0';
	return good ? ERR_OK
		    : err_set(em, ERR_FORMAT, "%s: \"target_modules\" must be a list of names, an expression or \"all-linear\"",
			      FILE_NAME);
}

/* A text, a list of them, or nothing. */
static enum err check_texts(json_val v, const char *name, struct err_msg *em)
{
	bool good = is_off(v) || json_type(v) == JSON_STRING || json_type(v) == JSON_ARRAY;

	for (struct json_iter it = json_iterate(v); good && json_next(&it);)
		good = json_type(it.value) == JSON_STRING;
	return good ? ERR_OK : err_set(em, ERR_FORMAT, "%s: \"%s\" must be a text or a list of texts", FILE_NAME, name);
}

static enum err check_layers(json_val v, json_val targets, struct err_msg *em)
{
	u64 layer;
	bool good = !json_present(v) || json_uint(v, &layer) || json_type(v) == JSON_ARRAY;

	if (!is_off(v) && json_type(targets) == JSON_STRING)
		return err_set(em, ERR_INVALID,
			       "%s: \"layers_to_transform\" goes with a list of \"target_modules\" alone; an expression names layers itself",
			       FILE_NAME);

	for (struct json_iter it = json_iterate(v); good && json_next(&it);)
		good = json_uint(it.value, &layer);
	return good ? ERR_OK
		    : err_set(em, ERR_FORMAT, "%s: \"layers_to_transform\" must be a layer's number or a list of them", FILE_NAME);
}

static enum err read_fields(struct lora_config *c, json_val root, struct err_msg *em)
{
	static const char *const types[] = {"LORA"}, *const biases[] = {"none"};
	/* Others change the model's own weights when they begin, and would have to do so here. */
	static const char *const inits[] = {"gaussian", "eva", "orthogonal"};
	double rank = 0;

	enum err e = check_fields(root, em);
	if (!e)
		e = check_word(root, "peft_type", types, COUNT_OF(types), em);
	if (!e)
		e = check_word(root, "bias", biases, COUNT_OF(biases), em);
	if (!e)
		e = check_word(root, "init_lora_weights", inits, COUNT_OF(inits), em);
	if (!e)
		e = read_number(json_get(root, "r"), "r", RANK_MAX, true, &rank, em);
	if (!e)
		e = read_number(json_get(root, "lora_alpha"), "lora_alpha", 1e6, false, &c->alpha, em);
	c->rank = e ? 0 : (u32)rank; /* after an error it may be a number that none of 32 bits is */
	json_bool(json_get(root, "use_rslora"), &c->by_root);
	c->targets = json_get(root, "target_modules");
	c->layers = json_get(root, "layers_to_transform");
	c->layers_patterns = json_get(root, "layers_pattern");
	c->ranks = json_get(root, "rank_pattern");
	c->alphas = json_get(root, "alpha_pattern");
	c->excludes = json_get(root, "exclude_modules");
	if (!e)
		e = check_targets(c->targets, em);
	if (!e)
		e = check_layers(c->layers, c->targets, em);
	if (!e)
		e = check_texts(c->layers_patterns, "layers_pattern", em);
	if (!e)
		e = check_texts(c->excludes, "exclude_modules", em);
	if (!e)
		e = check_patterns(c->ranks, "rank_pattern", RANK_MAX, true, em);
	if (!e)
		e = check_patterns(c->alphas, "alpha_pattern", 1e6, false, em);
	return e;
}

static enum err finish(struct lora_config *c, enum err e, struct err_msg *em)
{
	if (!e && json_type(json_root(c->doc)) != JSON_OBJECT)
		e = err_set(em, ERR_FORMAT, "%s: it must be a JSON object", FILE_NAME);
	const char *nul = e ? NULL : json_text_with_nul(json_root(c->doc)); /* what it begins with may be the name of something */
	if (nul)
		e = err_set(em, ERR_FORMAT, "%s: there is a NUL in \"%.64s\\u0000...\"; no name or pattern may have one", FILE_NAME, nul);
	if (!e)
		e = read_fields(c, json_root(c->doc), em);
	if (e)
		lora_config_fini(c);
	return e;
}

enum err lora_config_parse(struct lora_config *c, const char *text, size_t bytes, struct err_msg *em)
{
	*c = (struct lora_config){0};
	return finish(c, json_parse(&c->doc, text, bytes, em), em);
}

enum err lora_config_read(struct lora_config *c, const char *dir, struct err_msg *em)
{
	char path[4096];

	*c = (struct lora_config){0};
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, FILE_NAME) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the adapter's path is longer than %zu bytes", sizeof(path) - 1);
	if (access(path, F_OK) < 0)
		return err_set(em, ERR_NOT_FOUND, "there is no %s", FILE_NAME);
	return finish(c, json_parse_file(&c->doc, path, em), em);
}

void lora_config_fini(struct lora_config *c)
{
	json_free(&c->doc);
	*c = (struct lora_config){0};
}

/* ---------------------------------------------------------------- modules */

/* Whether `text`, an expression made of `pattern`, fits `module`; `options` of PCRE2. */
static enum err search(const char *text, u32 options, const char *pattern, const char *module, bool *out, struct err_msg *em)
{
	PCRE2_SIZE at;
	int code;

	*out = false;
	pcre2_code *re = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
	if (!re)
		return err_set(em, ERR_FORMAT, "%s: the pattern \"%.200s\" is no regular expression", FILE_NAME, pattern);
	pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	code = data ? pcre2_match(re, (PCRE2_SPTR)module, strlen(module), 0, 0, data, NULL) : PCRE2_ERROR_NOMEMORY;
	pcre2_match_data_free(data);
	pcre2_code_free(re);
	*out = code >= 0;
	return code >= 0 || code == PCRE2_ERROR_NOMATCH
		       ? ERR_OK
		       : err_set(em, ERR_FORMAT, "%s: the pattern \"%.200s\" cannot be matched", FILE_NAME, pattern);
}

/* Whether the end of `module`, behind a dot or whole, is `pattern`, or matches it as an expression. */
static enum err matches(const char *pattern, const char *module, bool *out, struct err_msg *em)
{
	char text[1024];

	if ((size_t)snprintf(text, sizeof(text), "^(?:.*\\.)?(?:%s)$", pattern) >= sizeof(text))
		return err_set(em, ERR_FORMAT, "%s: the pattern \"%.100s...\" is too long", FILE_NAME, pattern);
	return search(text, 0, pattern, module, out, em);
}

/* The number of the first pattern that fits; `fallback` where none does. */
static enum err look_up(json_val patterns, const char *module, double fallback, double *out, struct err_msg *em)
{
	bool fits = false;
	enum err e = ERR_OK;

	*out = fallback;
	for (struct json_iter it = json_iterate(patterns); !e && !fits && json_next(&it);) {
		e = matches(it.key, module, &fits, em);
		if (!e && fits)
			fits = json_double(it.value, out);
	}
	return e;
}

enum err lora_config_module(const struct lora_config *c, const char *module, u32 *rank, double *scale, struct err_msg *em)
{
	double r, alpha;

	enum err e = look_up(c->ranks, module, c->rank, &r, em);
	if (!e)
		e = look_up(c->alphas, module, c->alpha, &alpha, em);
	if (e)
		return e;
	*rank = (u32)r;
	*scale = alpha / (c->by_root ? sqrt(r) : r);
	return ERR_OK;
}

bool lora_config_is_name(const char *module, const char *name)
{
	size_t bytes = strlen(module), own = strlen(name);

	return own <= bytes && !strcmp(module + bytes - own, name) && (own == bytes || module[bytes - own - 1] == '.');
}

enum err lora_config_names(json_val names, const char *module, bool *out, struct err_msg *em)
{
	const char *expression = json_cstr(names, NULL);

	*out = false;
	if (expression)
		return search(expression, PCRE2_ANCHORED | PCRE2_ENDANCHORED, expression, module, out, em);
	for (struct json_iter it = json_iterate(names); !*out && json_next(&it);)
		*out = lora_config_is_name(module, json_cstr(it.value, ""));
	return ERR_OK;
}

static bool has_layer(json_val layers, u32 layer)
{
	u64 number;

	if (json_uint(layers, &number))
		return number == layer;
	for (struct json_iter it = json_iterate(layers); json_next(&it);)
		if (json_uint(it.value, &number) && number == layer)
			return true;
	return false;
}

/* Whether one of "layers_pattern" is what stands in front of the layer's number. */
static enum err pattern_fits(json_val patterns, const char *module, u32 layer, bool *out, struct err_msg *em)
{
	const char *only = json_cstr(patterns, NULL);
	struct json_iter it = json_iterate(patterns);
	char text[1024];
	enum err e = ERR_OK;

	*out = is_off(patterns) || (only && !*only);
	while (!e && !*out && (only || json_next(&it))) {
		const char *pattern = only ? only : json_cstr(it.value, "");
		if ((size_t)snprintf(text, sizeof(text), "^.*\\.(?:%s)\\.%u\\.", pattern, layer) >= sizeof(text))
			return err_set(em, ERR_FORMAT, "%s: the pattern \"%.100s...\" is too long", FILE_NAME, pattern);
		e = search(text, 0, pattern, module, out, em);
		if (only)
			break;
	}
	return e;
}

/* Of a module that a list of targets names: by its end alone, the layers decide as well. */
static enum err check_layer(const struct lora_config *c, const char *module, u32 layer, const char **by, struct err_msg *em)
{
	bool fits;

	if (is_off(c->layers))
		return ERR_OK;
	for (struct json_iter it = json_iterate(c->targets); json_next(&it);)
		if (json_string_equals(it.value, module))
			return ERR_OK;
	enum err e = pattern_fits(c->layers_patterns, module, layer, &fits, em);
	if (e)
		return e;
	*by = !fits ? "layers_pattern" : !has_layer(c->layers, layer) ? "layers_to_transform" : NULL;
	return ERR_OK;
}

bool lora_config_is_all_linear(const struct lora_config *c)
{
	return json_string_equals(c->targets, "all-linear");
}

enum err lora_config_use(const struct lora_config *c, const char *module, u32 layer, enum lora_use *use, const char **by,
			 struct err_msg *em)
{
	bool named = false;
	enum err e = ERR_OK;

	*by = NULL;
	if (!is_off(c->excludes))
		e = lora_config_names(c->excludes, module, &named, em);
	if (named)
		*by = "exclude_modules";
	if (!e && !*by && !lora_config_is_all_linear(c)) {
		e = lora_config_names(c->targets, module, &named, em);
		if (!e && !named)
			*by = "target_modules";
		else if (!e)
			e = check_layer(c, module, layer, by, em);
	}
	*use = *by ? LORA_USE_NO : json_type(c->targets) == JSON_ARRAY ? LORA_USE_YES : LORA_USE_OPEN;
	return e;
}
