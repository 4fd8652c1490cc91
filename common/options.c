/* The option table expanded: defaults, setting from text, printing back. Owns the strings inside struct
 * options. Reads no file and no command line (options_args.c, options_yaml.c). */
#include "common/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/json.h"
#include "common/options_priv.h"

/* clang-format off */
#define ROW(g, n, h, t) .group = #g, .name = #n, .help = h, .type = t, .offset = offsetof(struct options, n)
#define ROW_STR(g, n, def, h)            {ROW(g, n, h, OPTION_STR), .def_str = def},
#define ROW_INT(g, n, def, min, max, h)  {ROW(g, n, h, OPTION_INT), .def_int = def, .min_int = min, .max_int = max},
#define ROW_SIZE(g, n, def, min, h)      {ROW(g, n, h, OPTION_SIZE), .def_size = def, .min_size = min},
#define ROW_REAL(g, n, def, min, max, h) {ROW(g, n, h, OPTION_REAL), .def_real = def, .min_real = min, .max_real = max},
#define ROW_FLAG(g, n, def, h)           {ROW(g, n, h, OPTION_FLAG), .def_flag = def},
#define ROW_ENUM(g, n, def, ch, h)       {ROW(g, n, h, OPTION_ENUM), .def_enum = def, .choices = ch},
#define ROW_LIST(g, n, h)                {ROW(g, n, h, OPTION_LIST)},
/* clang-format on */

const struct option_desc option_table[] = {
	OPTIONS(ROW_STR, ROW_INT, ROW_SIZE, ROW_REAL, ROW_FLAG, ROW_ENUM, ROW_LIST){.name = NULL},
};
_Static_assert(COUNT_OF(option_table) <= OPTION_TABLE_MAX, "per-option arrays are too short");

const struct option_alias option_aliases[] = {
	{"tp", "tensor_parallel_size", NULL, NULL},
	{"asc", "api_server_count", NULL, NULL},
	{"kv_cache_memory_bytes", "kv_cache_memory", NULL, NULL},
	{"max_num_queued_requests", "max_queued_requests", NULL, NULL},
	{"async_scheduling", "async_depth", "2", "0"},
	{NULL, NULL, NULL, NULL},
};

static void *field(struct options *o, const struct option_desc *d)
{
	return (char *)o + d->offset;
}

/* ---------------------------------------------------------------- life */

enum err options_init(struct options *o)
{
	memset(o, 0, sizeof(*o));
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		void *f = field(o, d);
		switch (d->type) {
		case OPTION_STR:
			*(char **)f = strdup(d->def_str);
			if (*(char **)f == NULL) {
				options_fini(o);
				return ERR_NO_MEMORY;
			}
			break;
		case OPTION_INT:
			*(i64 *)f = d->def_int;
			break;
		case OPTION_SIZE:
			*(u64 *)f = d->def_size;
			break;
		case OPTION_REAL:
			*(f64 *)f = d->def_real;
			break;
		case OPTION_FLAG:
			*(bool *)f = d->def_flag;
			break;
		case OPTION_ENUM:
			*(u32 *)f = d->def_enum;
			break;
		case OPTION_LIST:
			break;
		}
	}
	return ERR_OK;
}

static void list_clear(struct option_list *l)
{
	for (uint32_t i = 0; i < l->count; i++)
		free(l->items[i]);
	free(l->items);
	*l = (struct option_list){0};
}

void options_fini(struct options *o)
{
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		if (d->type == OPTION_STR)
			free(*(char **)field(o, d));
		else if (d->type == OPTION_LIST)
			list_clear(field(o, d));
	}
	memset(o, 0, sizeof(*o));
}

/* ---------------------------------------------------------------- text to value */

static enum err set_str(char **f, const char *value, const char *where, struct err_msg *em)
{
	char *copy = strdup(value);

	if (copy == NULL)
		return err_set(em, ERR_NO_MEMORY, "%s: out of memory", where);
	free(*f);
	*f = copy;
	return ERR_OK;
}

static enum err set_int(const struct option_desc *d, i64 *f, const char *value, const char *where,
			struct err_msg *em)
{
	char *end;

	errno = 0;
	long long v = strtoll(value, &end, 10);
	if (end == value || *end != '\0' || errno != 0 || v < d->min_int || v > d->max_int)
		return err_set(em, ERR_INVALID,
			       "%s is \"%.100s\": it must be an integer between %" PRId64 " and %" PRId64,
			       where, value, d->min_int, d->max_int);
	*f = v;
	return ERR_OK;
}

/* A number and an optional unit: k, m, g, t, each also as "kb" and "kib", all powers of 1024. */
static bool parse_size(const char *value, u64 *out)
{
	static const char units[] = "kmgt";
	char *end;
	double scale = 1;

	if (!isdigit((unsigned char)value[0]) && value[0] != '.')
		return false;
	double v = strtod(value, &end);
	while (*end == ' ')
		end++;
	const char *unit = *end != '\0' ? strchr(units, tolower((unsigned char)*end)) : NULL;
	if (unit != NULL) {
		scale = ldexp(1.0, 10 * (int)(unit - units + 1));
		end++;
		if (tolower((unsigned char)*end) == 'i')
			end++;
	}
	if (tolower((unsigned char)*end) == 'b')
		end++;
	if (*end != '\0' || !(v * scale < 9e18))
		return false;
	*out = (u64)(v * scale);
	return true;
}

static enum err set_size(const struct option_desc *d, u64 *f, const char *value, const char *where,
			 struct err_msg *em)
{
	u64 v;

	if (!parse_size(value, &v))
		return err_set(em, ERR_INVALID,
			       "%s is \"%.100s\": it must be a number of bytes, such as 512M or 4GiB", where,
			       value);
	if (v < d->min_size)
		return err_set(em, ERR_INVALID, "%s is \"%.100s\": it must be at least %" PRIu64 " bytes",
			       where, value, d->min_size);
	*f = v;
	return ERR_OK;
}

static enum err set_real(const struct option_desc *d, f64 *f, const char *value, const char *where,
			 struct err_msg *em)
{
	char *end;
	double v = strtod(value, &end);

	if (end == value || *end != '\0' || !(v >= d->min_real && v <= d->max_real))
		return err_set(em, ERR_INVALID, "%s is \"%.100s\": it must be a number between %g and %g",
			       where, value, d->min_real, d->max_real);
	*f = v;
	return ERR_OK;
}

static bool parse_bool(const char *value, bool *out)
{
	static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

	for (size_t i = 0; i < COUNT_OF(words); i++)
		if (strcasecmp(value, words[i]) == 0) {
			*out = i % 2 == 1;
			return true;
		}
	return false;
}

static enum err set_enum(const struct option_desc *d, u32 *f, const char *value, const char *where,
			 struct err_msg *em)
{
	size_t bytes = strlen(value);
	u32 index = 0;

	for (const char *p = d->choices; *p != '\0'; index++) {
		size_t n = strcspn(p, "|");
		if (n == bytes && strncmp(p, value, n) == 0) {
			*f = index;
			return ERR_OK;
		}
		p += n;
		p += *p == '|';
	}
	const char *hint = option_value_hint(d->name, value);
	return err_set(em, ERR_INVALID, "%s is \"%.100s\": it must be one of %s%s%s", where, value, d->choices, hint ? "; " : "",
		       hint ? hint : "");
}

/* Bytes of the first item: up to a comma, but a JSON object is whole. */
static size_t item_bytes(const char *value)
{
	u32 depth = 0;
	bool in_string = false;

	if (value[0] != '{')
		return strcspn(value, ",");
	for (size_t i = 0; value[i] != '\0'; i++) {
		if (in_string && value[i] == '\\' && value[i + 1] != '\0')
			i++;
		else if (value[i] == '"')
			in_string = !in_string;
		else if (!in_string)
			depth += (value[i] == '{') - (value[i] == '}');
		if (depth == 0)
			return i + 1;
	}
	return strlen(value);
}

static enum err list_push(struct option_list *l, const char *item, size_t bytes, const char *where, struct err_msg *em)
{
	char **items = realloc(l->items, (l->count + 1) * sizeof(*items));

	if (items == NULL)
		return err_set(em, ERR_NO_MEMORY, "%s: out of memory", where);
	l->items = items;
	l->items[l->count] = strndup(item, bytes);
	if (l->items[l->count] == NULL)
		return err_set(em, ERR_NO_MEMORY, "%s: out of memory", where);
	l->count++;
	return ERR_OK;
}

/* ["a", "b"], as vLLM takes --allowed-origins. */
static enum err list_append_json(struct option_list *l, const char *value, const char *where, struct err_msg *em)
{
	struct json_doc *doc;
	enum err e = json_parse(&doc, value, strlen(value), em);

	if (e != ERR_OK) {
		err_prefix(em, "%s: %.100s", where, value);
		return e == ERR_NO_MEMORY ? e : ERR_INVALID;
	}
	for (struct json_iter it = json_iterate(json_root(doc)); e == ERR_OK && json_next(&it);) {
		const char *item = json_cstr(it.value, NULL);
		if (item == NULL || strchr(item, ',') != NULL)
			e = err_set(em, ERR_INVALID,
				    "%s is %.100s: it must be an array of strings without commas, or words with commas between them", where,
				    value);
		else if (item[0] != '\0')
			e = list_push(l, item, strlen(item), where, em);
	}
	json_free(&doc);
	return e;
}

/* Appends the comma-separated items of `value`; empty ones are left out. A key may be any text. */
static enum err list_append(const struct option_desc *d, struct option_list *l, const char *value, const char *where, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (value[0] == '[' && strcmp(d->name, "api_key") != 0)
		return list_append_json(l, value, where, em);
	while (e == ERR_OK && *value != '\0') {
		size_t n = item_bytes(value);
		if (n != 0)
			e = list_push(l, value, n, where, em);
		value += n;
		value += *value == ',';
	}
	return e;
}

enum err option_apply(struct options *o, const struct option_match *match, const char *value, bool append,
		      const char *where, struct err_msg *em)
{
	const struct option_desc *d = match->desc;
	void *f = field(o, d);

	if (match->is_flag) {
		bool v = true;
		if (value != NULL && !parse_bool(value, &v))
			return err_set(em, ERR_INVALID, "%s is \"%.100s\": it must be true or false", where,
				       value);
		v = v != match->negated;
		if (match->alias == NULL || match->alias->on == NULL) {
			*(bool *)f = v;
			return ERR_OK;
		}
		value = v ? match->alias->on : match->alias->off;
	}
	switch (d->type) {
	case OPTION_STR:
		return set_str(f, value, where, em);
	case OPTION_INT:
		return set_int(d, f, value, where, em);
	case OPTION_SIZE:
		return set_size(d, f, value, where, em);
	case OPTION_REAL:
		return set_real(d, f, value, where, em);
	case OPTION_ENUM:
		return set_enum(d, f, value, where, em);
	case OPTION_LIST:
		/* An unset shell variable must not open what a key was to close. */
		if (strcmp(d->name, "api_key") == 0 && value[strspn(value, ",")] == '\0')
			return err_set(
				em, ERR_INVALID,
				"%s is empty: it must be one or more keys; leave it out to serve everybody",
				where);
		if (!append)
			list_clear(f);
		return list_append(d, f, value, where, em);
	case OPTION_FLAG:
		break;
	}
	ASSERT(!"flags were handled above");
	return ERR_INTERNAL;
}

/* ---------------------------------------------------------------- names */

/* Equal but for '-' and '_'. */
static bool same_name(const char *known, const char *name, size_t bytes)
{
	if (strlen(known) != bytes)
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (known[i] != (name[i] == '-' ? '_' : name[i]))
			return false;
	return true;
}

static const struct option_desc *find_desc(const char *name, size_t bytes)
{
	for (const struct option_desc *d = option_table; d->name != NULL; d++)
		if (same_name(d->name, name, bytes))
			return d;
	return NULL;
}

static bool find_plain(const char *name, size_t bytes, struct option_match *out)
{
	*out = (struct option_match){.desc = find_desc(name, bytes)};
	if (out->desc == NULL) {
		const struct option_alias *a = option_aliases;
		while (a->name != NULL && !same_name(a->name, name, bytes))
			a++;
		if (a->name == NULL)
			return false;
		out->alias = a;
		out->desc = find_desc(a->target, strlen(a->target));
		ASSERT(out->desc != NULL);
	}
	out->is_flag = out->desc->type == OPTION_FLAG || (out->alias != NULL && out->alias->on != NULL);
	return true;
}

bool option_find(const char *name, size_t bytes, struct option_match *out)
{
	if (find_plain(name, bytes, out))
		return true;
	if (bytes > 3 && strncmp(name, "no", 2) == 0 && (name[2] == '-' || name[2] == '_') &&
	    find_plain(name + 3, bytes - 3, out) && out->is_flag) {
		out->negated = true;
		return true;
	}
	return false;
}

void option_dashed(char *out, size_t out_bytes, const char *name)
{
	size_t i = 0;

	for (; name[i] != '\0' && i + 1 < out_bytes; i++)
		out[i] = name[i] == '_' ? '-' : name[i];
	out[i] = '\0';
}

enum err options_set(struct options *o, const char *name, const char *value, const char *where,
		     struct err_msg *em)
{
	struct option_match match;

	if (!option_find(name, strlen(name), &match)) {
		char suggestion[OPTION_NAME_BYTES_MAX + 32];
		option_suggest_text(suggestion, sizeof(suggestion), name, strlen(name), "");
		return err_set(em, ERR_NOT_FOUND, "%s: there is no option \"%.100s\"%s", where, name,
			       suggestion);
	}
	return option_apply(o, &match, value, false, where, em);
}

/* ---------------------------------------------------------------- what values stand for */

enum err options_generation_dir(const struct options *o, const char **dir, struct err_msg *em)
{
	const char *value = o->generation_config;
	bool none = strcmp(value, "none") == 0 || strcmp(value, "vllm") == 0;
	char path[4200];

	*dir = none ? NULL : o->model;
	if (none || strcmp(value, "auto") == 0)
		return ERR_OK;
	*dir = value;
	int n = snprintf(path, sizeof(path), "%s/generation_config.json", value);
	if (value[0] != '\0' && n > 0 && (size_t)n < sizeof(path) && access(path, F_OK) == 0)
		return ERR_OK;
	return err_set(em, ERR_NOT_FOUND,
		       "--generation-config is \"%.200s\": it must be auto, none or vllm, or a folder with a generation_config.json",
		       value);
}

/* ---------------------------------------------------------------- value to text */

bool option_is_default(const struct options *o, const struct option_desc *d)
{
	const void *f = option_field(o, d);

	switch (d->type) {
	case OPTION_STR:
		return strcmp(*(char *const *)f, d->def_str) == 0;
	case OPTION_INT:
		return *(const i64 *)f == d->def_int;
	case OPTION_SIZE:
		return *(const u64 *)f == d->def_size;
	case OPTION_REAL:
		return *(const f64 *)f == d->def_real;
	case OPTION_FLAG:
		return *(const bool *)f == d->def_flag;
	case OPTION_ENUM:
		return *(const u32 *)f == d->def_enum;
	case OPTION_LIST:
		return ((const struct option_list *)f)->count == 0;
	}
	return false;
}

static void format_choice(const char *choices, u32 index, struct buf *out)
{
	for (; index > 0; index--)
		choices += strcspn(choices, "|") + 1;
	buf_append(out, choices, strcspn(choices, "|"));
}

void option_format(const struct options *o, const struct option_desc *d, struct buf *out)
{
	const void *f = option_field(o, d);
	const struct option_list *l = f;

	switch (d->type) {
	case OPTION_STR:
		buf_append_str(out, *(char *const *)f);
		break;
	case OPTION_INT:
		buf_printf(out, "%" PRId64, *(const i64 *)f);
		break;
	case OPTION_SIZE:
		buf_printf(out, "%" PRIu64, *(const u64 *)f);
		break;
	case OPTION_REAL:
		buf_printf(out, "%.17g", *(const f64 *)f);
		break;
	case OPTION_FLAG:
		buf_append_str(out, *(const bool *)f ? "true" : "false");
		break;
	case OPTION_ENUM:
		format_choice(d->choices, *(const u32 *)f, out);
		break;
	case OPTION_LIST:
		for (uint32_t i = 0; i < l->count; i++)
			buf_printf(out, "%s%s", i != 0 ? "," : "", l->items[i]);
		break;
	}
}

void options_to_args(const struct options *o, struct buf *out)
{
	char name[OPTION_NAME_BYTES_MAX];

	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		if (option_is_default(o, d) || strcmp(d->name, "api_key") == 0)
			continue;
		option_dashed(name, sizeof(name), d->name);
		buf_printf(out, "--%s=", name);
		option_format(o, d, out);
		buf_append_char(out, '\0');
	}
}
