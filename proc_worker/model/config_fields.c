/* Fields of config.json: reads single ones, and those that a family has under a name of its own. Runs in the worker at start. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

/* ---------------------------------------------------------------- single fields */

enum err config_need_u32(json_val v, const char *name, u32 max, u32 *out, struct err_msg *em)
{
	json_val field = json_get(v, name);
	u64 n;

	if (!json_present(field))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"%s\" is missing; it must be an integer from 1 to %u", name,
			       max);
	if (!json_uint(field, &n))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"%s\" must be an integer from 1 to %u, found %s", name, max,
			       json_type_name(field));
	if (n < 1 || n > max)
		return err_set(em, ERR_INVALID, "config.json: \"%s\" is %llu; it must be 1 to %u", name,
			       (unsigned long long)n, max);
	*out = (u32)n;
	return ERR_OK;
}

enum err config_may_u32(json_val v, const char *name, u32 max, u32 fallback, u32 *out, struct err_msg *em)
{
	*out = fallback;
	return json_present(json_get(v, name)) ? config_need_u32(v, name, max, out, em) : ERR_OK;
}

enum err config_need_positive(json_val v, const char *name, double *out, struct err_msg *em)
{
	json_val field = json_get(v, name);

	if (!json_present(field))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" is missing; it must be a number above 0",
			       name);
	if (!json_double(field, out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be a number above 0, found %s", name, json_type_name(field));
	if (!(*out > 0) || !isfinite(*out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be a number above 0, found %g", name, *out);
	return ERR_OK;
}

enum err config_may_positive(json_val v, const char *name, double fallback, double *out, struct err_msg *em)
{
	*out = fallback;
	return json_present(json_get(v, name)) ? config_need_positive(v, name, out, em) : ERR_OK;
}

enum err config_may_bool(json_val v, const char *name, bool fallback, bool *out, struct err_msg *em)
{
	json_val field = json_get(v, name);

	*out = fallback;
	if (json_present(field) && !json_bool(field, out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be true or false, found %s", name,
			       json_type_name(field));
	return ERR_OK;
}

enum err config_may_count(json_val v, const char *name, u32 max, u32 fallback, u32 *out, struct err_msg *em)
{
	json_val field = json_get(v, name);
	u64 n = fallback;

	if (json_present(field) && !json_uint(field, &n))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an integer from 0 to %u, found %s", name, max,
			       json_type_name(field));
	if (n > max)
		return err_set(em, ERR_INVALID, "config.json: \"%s\" is %llu; it must be 0 to %u", name, (unsigned long long)n, max);
	*out = (u32)n;
	return ERR_OK;
}

enum err config_check_float(const char *name, double value, struct err_msg *em)
{
	if (value >= (double)FLT_MIN && value <= (double)FLT_MAX)
		return ERR_OK;
	return err_set(em, ERR_INVALID, "config.json: \"%s\" must be a number from %g to %g, found %g", name, (double)FLT_MIN,
		       (double)FLT_MAX, value);
}

enum err config_may_float(json_val v, const char *name, double fallback, f32 *out, struct err_msg *em)
{
	double value;

	enum err e = config_may_positive(v, name, fallback, &value, em);
	if (!e)
		e = config_check_float(name, value, em);
	*out = e ? 0 : (f32)value;
	return e;
}

/* ---------------------------------------------------------------- names of families */

/* What the family's field `name` is called here; NULL: the same. */
static const char *name_here(const struct arch *arch, const char *name)
{
	for (size_t i = 0; i < ARCH_FIELDS_MAX && arch->fields[i].file; i++)
		if (!strcmp(arch->fields[i].file, name))
			return arch->fields[i].here;
	return NULL;
}

/* Numbers by value, however they are written: 10000 is 10000.0. Members of objects in their order. */
bool config_same_value(json_val x, json_val y)
{
	double a, b;
	i64 i, j;
	u64 m, n;
	bool p, q;
	const char *text, *other;
	size_t bytes, other_bytes;

	if (json_int(x, &i) && json_int(y, &j)) /* doubles are too coarse for large ones */
		return i == j;
	if (json_uint(x, &m) && json_uint(y, &n))
		return m == n;
	if (json_double(x, &a) && json_double(y, &b))
		return a == b;
	if (json_type(x) != json_type(y) || json_count(x) != json_count(y))
		return false;
	if (json_bool(x, &p) && json_bool(y, &q))
		return p == q;
	if (json_string(x, &text, &bytes) && json_string(y, &other, &other_bytes))
		return bytes == other_bytes && memcmp(text, other, bytes) == 0;
	struct json_iter there = json_iterate(y);
	for (struct json_iter here = json_iterate(x); json_next(&here) && json_next(&there);)
		if (here.key_bytes != there.key_bytes || (here.key && memcmp(here.key, there.key, here.key_bytes) != 0) ||
		    !config_same_value(here.value, there.value))
			return false;
	return true;
}

enum err config_check_pair(json_val v, const char *one, const char *other, struct err_msg *em)
{
	json_val x = json_get(v, one), y = json_get(v, other);

	if (!json_present(x) || !json_present(y) || config_same_value(x, y))
		return ERR_OK;
	return err_set(em, ERR_INVALID,
		       "config.json: \"%s\" and \"%s\" say the same, but not the same value; take one of them out", one, other);
}

/* Some files have both names. */
static enum err check_twice(const struct arch *arch, json_val v, struct err_msg *em)
{
	for (size_t i = 0; i < ARCH_FIELDS_MAX && arch->fields[i].file; i++) {
		const struct arch_field *f = &arch->fields[i];
		json_val file = json_get(v, f->file), here = json_get(v, f->here);
		if (arch->names_alone && json_type(here) != JSON_MISSING && json_type(file) == JSON_MISSING)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is called \"%s\" by a %s, which takes no notice of it", f->here, f->file, arch->name);
		if (json_type(file) != JSON_MISSING && json_type(here) != JSON_MISSING && !config_same_value(file, here))
			return err_set(em, ERR_INVALID,
				       "config.json: \"%s\" and \"%s\" are the same field of a %s, but not the same value; take one "
				       "of them out",
				       f->file, f->here, arch->name);
	}
	return ERR_OK;
}

enum err config_rename(struct json_doc **out, const struct arch *arch, json_val v, struct err_msg *em)
{
	struct buf text = {0};
	struct json_writer w;

	*out = NULL;
	if (!arch->fields[0].file)
		return ERR_OK;
	enum err e = check_twice(arch, v, em);
	json_begin(&w, &text);
	json_object_begin(&w);
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		const char *here = name_here(arch, it.key);
		json_key(&w, here ? here : it.key);
		json_write_value(&w, it.value);
	}
	json_object_end(&w);
	if (!e && !buf_ok(&text))
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!e)
		e = json_parse(out, text.data, text.bytes, em);
	buf_fini(&text);
	return e;
}

/* Whether `name` stands in the text as a word, in quotes or not. */
static bool names(const char *text, const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

	for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
		const char *end = at + strlen(name);
		if ((at == text || !strchr(letters, at[-1])) && (!*end || !strchr(letters, *end)))
			return true;
	}
	return false;
}

void config_name_in_file(const struct arch *arch, json_val file, struct err_msg *em)
{
	const size_t said = strlen(em->text);

	for (size_t i = 0; i < ARCH_FIELDS_MAX && arch->fields[i].file; i++) {
		const struct arch_field *f = &arch->fields[i];
		const size_t used = strlen(em->text);
		const char end = em->text[said];
		em->text[said] = '\0'; /* what is appended has names, too */
		const bool named = names(em->text, f->here);
		em->text[said] = end;
		if (named && (json_type(json_get(file, f->file)) != JSON_MISSING || json_type(json_get(file, f->here)) == JSON_MISSING))
			snprintf(em->text + used, sizeof(em->text) - used, " (the field \"%s\" of a %s)", f->file, arch->name);
	}
}
