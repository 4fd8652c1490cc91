/* What a pickle names and calls: classes and functions by the caller's table, none of which is ever resolved or run. */
#include "proc_worker/model/pickle_priv.h"

#include <string.h>

enum { NAME_BYTES_MAX = 256 };

static bool text_is(const char *known, const char *text, u32 bytes)
{
	return strlen(known) == bytes && !memcmp(known, text, bytes);
}

static enum err push_global(struct pickle_machine *m, const char *module, u32 module_bytes, const char *name, u32 name_bytes)
{
	char in[NAME_BYTES_MAX], called[NAME_BYTES_MAX];

	for (u32 i = 0; i < m->global_count; i++)
		if (text_is(m->globals[i].module, module, module_bytes) && text_is(m->globals[i].name, name, name_bytes))
			return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_GLOBAL, .global = &m->globals[i]});
	pickle_print_text(in, sizeof(in), module, module_bytes);
	pickle_print_text(called, sizeof(called), name, name_bytes);
	return err_set(m->em, ERR_UNSUPPORTED,
		       "it wants %s.%s, which weights do not need: nothing of the file was run, and nothing will be; save the model's weights with "
		       "safetensors (save_pretrained), or as a dictionary of plain tensors",
		       in, called);
}

enum err pickle_named_by_lines(struct pickle_machine *m)
{
	const char *module, *name;
	u32 module_bytes, name_bytes;

	enum err e = pickle_take_line(m, &module, &module_bytes);
	if (!e)
		e = pickle_take_line(m, &name, &name_bytes);
	return e ? e : push_global(m, module, module_bytes, name, name_bytes);
}

enum err pickle_named_by_stack(struct pickle_machine *m)
{
	struct pickle_value **v;

	enum err e = pickle_top(m, 2, &v);
	if (e)
		return e;
	if (v[0]->kind != PICKLE_STRING || v[1]->kind != PICKLE_STRING)
		return err_set(m->em, ERR_FORMAT, "something is named by %s and %s; both must be strings", pickle_kind_name(v[0]->kind),
			       pickle_kind_name(v[1]->kind));
	m->depth -= 2;
	return push_global(m, v[0]->text, v[0]->count, v[1]->text, v[1]->count);
}

/* A dictionary of a list of pairs, as Python 2 has ordered ones made. */
static enum err push_mapping(struct pickle_machine *m, const struct pickle_value *arguments)
{
	struct pickle_value dict = {.kind = PICKLE_DICT};
	const struct pickle_value *list = arguments->count ? arguments->items[0] : NULL;
	enum err e = ERR_OK;

	if (arguments->count > 1 || (list && list->kind != PICKLE_LIST))
		return err_set(m->em, ERR_FORMAT, "an ordered dictionary of something other than a list of pairs");
	for (u32 i = 0; list && !e && i < list->count; i++) {
		const struct pickle_value *pair = list->items[i];
		if ((pair->kind != PICKLE_LIST && pair->kind != PICKLE_TUPLE) || pair->count != 2)
			return err_set(m->em, ERR_FORMAT, "an ordered dictionary of something other than pairs");
		e = pickle_append(m, &dict, (struct pickle_value *const *)pair->items, 2);
	}
	return e ? e : pickle_push_new(m, dict);
}

enum err pickle_call(struct pickle_machine *m)
{
	struct pickle_value **v;

	enum err e = pickle_top(m, 2, &v);
	if (e)
		return e;
	struct pickle_value *what = v[0], *arguments = v[1];
	if (what->kind != PICKLE_GLOBAL || arguments->kind != PICKLE_TUPLE)
		return err_set(m->em, ERR_UNSUPPORTED, "it calls %s with %s; only classes and functions that weights need are understood, with tuples",
			       pickle_kind_name(what->kind), pickle_kind_name(arguments->kind));
	if (what->global->use == PICKLE_NAMED)
		return err_set(m->em, ERR_UNSUPPORTED, "it calls %s.%s, which weights do not need: nothing of the file was run, and nothing will be",
			       what->global->module, what->global->name);
	m->depth -= 2;
	if (what->global->use == PICKLE_MAPPING)
		return push_mapping(m, arguments);
	return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_CALL, .count = arguments->count, .capacity = arguments->count, .items = arguments->items,
						 .global = what->global});
}

/* Attributes, of which ordered dictionaries of weights have some ("_metadata": versions of modules). */
enum err pickle_build(struct pickle_machine *m)
{
	struct pickle_value **v;

	enum err e = pickle_top(m, 2, &v);
	if (!e && v[0]->kind != PICKLE_DICT)
		e = err_set(m->em, ERR_UNSUPPORTED, "it gives attributes to %s; only dictionaries may have some", pickle_kind_name(v[0]->kind));
	if (!e)
		m->depth--;
	return e;
}

enum err pickle_persistent(struct pickle_machine *m)
{
	struct pickle_value **v;

	enum err e = pickle_top(m, 1, &v);
	if (e)
		return e;
	if (v[0]->kind != PICKLE_TUPLE)
		return err_set(m->em, ERR_UNSUPPORTED, "a persistent id that is %s; it must be a tuple", pickle_kind_name(v[0]->kind));
	m->depth--;
	e = pickle_push_new(m, (struct pickle_value){.kind = PICKLE_PERSISTENT, .count = v[0]->count, .capacity = v[0]->count, .items = v[0]->items,
					      .before = m->persistent});
	if (!e)
		m->persistent = m->stack[m->depth - 1];
	return e;
}
