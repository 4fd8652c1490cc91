/* Owns the table of adapters: items of --lora-modules taken apart. Runs in every process that knows adapters, at start. Reads
 * no folder. */
#include "common/lora_modules.h"

#include <stdlib.h>
#include <string.h>

#include "common/hub_cache.h"
#include "common/json.h"

static const char FORM[] = "it must be NAME=PATH, or {\"name\": NAME, \"path\": PATH}";

/* Whether the engine's model answers to the name. */
static bool is_model_name(const struct options *o, const char *name)
{
	const struct option_list *names = &o->served_model_name;
	char own[256];

	for (u32 i = 0; i < names->count; i++)
		if (!strcmp(names->items[i], name))
			return true;
	hub_cache_name_of(own, sizeof(own), o->model);
	return names->count == 0 && !strcmp(own, name);
}

static enum err check_name(const struct lora_modules *m, const struct options *o, const char *name, const char *path,
			   const char *item, struct err_msg *em)
{
	if (!*name || !*path)
		return err_set(em, ERR_INVALID, "--lora-modules: \"%.200s\": %s", item, FORM);
	if (strlen(name) > LORA_NAME_MAX)
		return err_set(em, ERR_INVALID, "--lora-modules: the name \"%.200s...\" has %zu bytes; at most %d", name,
			       strlen(name), LORA_NAME_MAX);
	if (lora_modules_find(m, name, strlen(name)))
		return err_set(em, ERR_INVALID, "--lora-modules: there are two adapters \"%s\"", name);
	if (is_model_name(o, name))
		return err_set(em, ERR_INVALID, "--lora-modules: \"%s\" is the model's own name (--served-model-name)", name);
	return ERR_OK;
}

static enum err add(struct lora_modules *m, const struct options *o, const char *name, const char *path, const char *item,
		    struct err_msg *em)
{
	enum err e = check_name(m, o, name, path, item, em);

	if (e)
		return e;
	struct lora_module *l = &m->items[m->count++];
	l->name = strdup(name);
	l->path = strdup(path);
	return l->name && l->path ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static enum err check_members(json_val v, const char *item, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if ((strcmp(it.key, "name") && strcmp(it.key, "path") && strcmp(it.key, "base_model_name")) ||
		    (json_type(it.value) != JSON_STRING && json_present(it.value)))
			return err_set(em, ERR_FORMAT,
				       "--lora-modules: \"%.300s\": \"%.100s\" must not be there, or be no %s; known are the texts "
				       "\"name\", \"path\" and \"base_model_name\"",
				       item, it.key, json_type_name(it.value));
	return ERR_OK;
}

static enum err add_json(struct lora_modules *m, const struct options *o, const char *item, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	enum err e = json_parse(&doc, item, strlen(item), em);
	if (e) {
		err_prefix(em, "--lora-modules: \"%.300s\"", item);
		return e;
	}
	json_val v = json_root(doc);
	const char *nul = json_text_with_nul(v); /* what it begins with would be taken for the whole */
	if (nul) {
		e = err_set(em, ERR_FORMAT, "--lora-modules: \"%.300s\": there is a NUL in \"%.100s\\u0000...\"; no name or path may have one",
			    item, nul);
		json_free(&doc);
		return e;
	}
	const char *base = json_cstr(json_get(v, "base_model_name"), "");
	e = check_members(v, item, em);
	if (!e && *base && !is_model_name(o, base))
		e = err_set(em, ERR_INVALID,
			    "--lora-modules: \"%.300s\": the base_model_name is no name of this model (--served-model-name)", item);
	if (!e)
		e = add(m, o, json_cstr(json_get(v, "name"), ""), json_cstr(json_get(v, "path"), ""), item, em);
	json_free(&doc);
	return e;
}

static enum err add_pair(struct lora_modules *m, const struct options *o, const char *item, struct err_msg *em)
{
	const char *equals = strchr(item, '=');
	char name[LORA_NAME_MAX + 2];

	if (!equals)
		return err_set(em, ERR_INVALID, "--lora-modules: \"%.200s\": %s", item, FORM);
	snprintf(name, sizeof(name), "%.*s", (int)(equals - item < LORA_NAME_MAX + 1 ? equals - item : LORA_NAME_MAX + 1), item);
	return add(m, o, name, equals + 1, item, em);
}

static enum err check_count(const struct options *o, struct err_msg *em)
{
	u32 count = o->lora_modules.count;

	if (count && !o->enable_lora)
		return err_set(em, ERR_INVALID, "--lora-modules names adapters, but --enable-lora is not given");
	if (count > LORA_MODULES_MAX)
		return err_set(em, ERR_INVALID, "--lora-modules names %u adapters; at most %d", count, LORA_MODULES_MAX);
	if (o->max_loras && count > (u32)o->max_loras)
		return err_set(em, ERR_INVALID,
			       "--lora-modules names %u adapters, of which workers hold every one, but --max-loras is %u", count,
			       (u32)o->max_loras);
	return ERR_OK;
}

enum err lora_modules_read(struct lora_modules *m, const struct options *o, struct err_msg *em)
{
	const struct option_list *list = &o->lora_modules;

	*m = (struct lora_modules){.rank_max = (u32)o->max_lora_rank};
	enum err e = check_count(o, em);
	if (e || list->count == 0)
		return e;
	m->items = calloc(list->count, sizeof(*m->items));
	if (!m->items)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u32 i = 0; !e && i < list->count; i++)
		e = list->items[i][0] == '{' ? add_json(m, o, list->items[i], em) : add_pair(m, o, list->items[i], em);
	if (e)
		lora_modules_fini(m);
	return e;
}

void lora_modules_fini(struct lora_modules *m)
{
	for (u32 i = 0; i < m->count; i++) {
		free(m->items[i].name);
		free(m->items[i].path);
	}
	free(m->items);
	*m = (struct lora_modules){0};
}

u32 lora_modules_find(const struct lora_modules *m, const char *name, size_t bytes)
{
	for (u32 i = 0; i < m->count; i++)
		if (strlen(m->items[i].name) == bytes && !memcmp(m->items[i].name, name, bytes))
			return i + 1;
	return 0;
}
