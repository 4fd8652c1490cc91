/* Owns the string methods that cut: split, rsplit, splitlines, partition. Runs where chat templates are rendered. */
#include <string.h>

#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define METHOD(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

static bool add_part(struct jinja *j, struct jv self, size_t from, size_t to, struct jlist *list)
{
	struct jv v;
	if (!jv_string(j, self.s->data + from, to - from, &v))
		return false;
	v.safe = self.safe;
	return jlist_push(j, list, v);
}

/* Runs of white space separate; none at the ends. */
static bool split_spaces(struct jinja *j, struct jv self, int64_t max, struct jlist *list)
{
	size_t from, to, rest, end;
	jstr_strip(self.s, NULL, true, false, &from, &end);
	for (; from < end; from = rest) {
		to = from;
		rest = from;
		if (max >= 0 && (int64_t)list->count == max)
			return add_part(j, self, from, end, list); /* with its trailing white space */
		for (bool space = false; rest < end && !space;) {
			to = rest;
			space = jstr_is_space(unicode_next(self.s->data, &rest));
			if (!space)
				to = rest;
		}
		if (!add_part(j, self, from, to, list))
			return false;
		while (rest < end) {
			size_t next = rest;
			if (!jstr_is_space(unicode_next(self.s->data, &next)))
				break;
			rest = next;
		}
	}
	return true;
}

static bool split_at(struct jinja *j, struct jv self, const struct jstr *sep, int64_t max, struct jlist *list)
{
	const char *data = self.s->data;
	size_t from = 0;
	while (max < 0 || (int64_t)list->count < max) {
		const char *hit = memmem(data + from, self.s->bytes - from, sep->data, sep->bytes);
		if (hit == NULL)
			break;
		if (!add_part(j, self, from, (size_t)(hit - data), list))
			return false;
		from = (size_t)(hit - data) + sep->bytes;
	}
	return add_part(j, self, from, self.s->bytes, list);
}

static void reverse(struct jlist *list)
{
	for (size_t i = 0; i < list->count / 2; i++) {
		struct jv v = list->items[i];
		list->items[i] = list->items[list->count - 1 - i];
		list->items[list->count - 1 - i] = v;
	}
}

/* Offset of the last `what` (not empty) in front of `end`; SIZE_MAX when there is none. False at the limit of steps: a
 * text may nearly match at every place. */
static bool last_match(struct jinja *j, const struct jstr *s, size_t end, const struct jstr *what, size_t *at)
{
	size_t room = end >= what->bytes ? end - what->bytes + 1 : 0;
	for (const char *hit; (hit = memrchr(s->data, what->data[0], room)) != NULL; room = (size_t)(hit - s->data)) {
		*at = (size_t)(hit - s->data);
		if (memcmp(hit, what->data, what->bytes) == 0)
			return true;
		if (!jinja_charge(j, what->bytes))
			return false;
	}
	*at = SIZE_MAX;
	return true;
}

static bool rsplit_at(struct jinja *j, struct jv self, const struct jstr *sep, int64_t max, struct jlist *list)
{
	size_t end = self.s->bytes;
	while (max < 0 || (int64_t)list->count < max) {
		size_t at;
		if (!last_match(j, self.s, end, sep, &at))
			return false;
		if (at == SIZE_MAX)
			break;
		if (!add_part(j, self, at + sep->bytes, end, list))
			return false;
		end = at;
	}
	if (!add_part(j, self, 0, end, list))
		return false;
	reverse(list);
	return true;
}

static bool rsplit_spaces(struct jinja *j, struct jv self, int64_t max, struct jlist *list)
{
	size_t begin, end, from;
	jstr_strip(self.s, NULL, true, true, &begin, &end);
	while (end > begin) {
		if (max >= 0 && (int64_t)list->count == max) {
			if (!add_part(j, self, 0, end, list)) /* with its leading white space */
				return false;
			break;
		}
		for (from = end; from > begin;) {
			size_t last = unicode_prev(self.s->data, from), next = last;
			if (jstr_is_space(unicode_next(self.s->data, &next)))
				break;
			from = last;
		}
		if (!add_part(j, self, from, end, list))
			return false;
		struct jstr head = {.data = self.s->data, .bytes = from};
		size_t ignored;
		jstr_strip(&head, NULL, false, true, &ignored, &end);
	}
	reverse(list);
	return true;
}

static bool split(struct jinja *j, struct jv self, const struct jv *args, bool right, struct jv *out)
{
	int64_t max;
	struct jstr *sep = NULL;
	if (!jinja_arg_int(j, args[1], -1, &max) || !jv_list(j, JV_LIST, 0, out))
		return false;
	if (args[0].type == JV_MISSING || args[0].type == JV_NONE)
		return right ? rsplit_spaces(j, self, max, out->l) : split_spaces(j, self, max, out->l);
	if (!jinja_arg_string(j, args[0], "the separator", &sep))
		return false;
	if (sep->bytes == 0)
		return jinja_fail(j, "empty separator");
	return right ? rsplit_at(j, self, sep, max, out->l) : split_at(j, self, sep, max, out->l);
}

METHOD(str_split)
{
	(void)all;
	return split(j, self, args, false, out);
}

METHOD(str_rsplit)
{
	(void)all;
	return split(j, self, args, true, out);
}

METHOD(str_splitlines)
{
	(void)all;
	bool keep = jinja_arg_bool(args[0], false);
	if (!jv_list(j, JV_LIST, 0, out))
		return false;
	for (size_t from = 0, next; from < self.s->bytes; from = next) {
		size_t end = jstr_line(self.s, from, &next);
		if (!add_part(j, self, from, keep ? next : end, out->l))
			return false;
	}
	return true;
}

static bool partition(struct jinja *j, struct jv self, struct jv separator, bool right, struct jv *out)
{
	struct jstr *sep;
	if (!jinja_arg_string(j, separator, "the separator", &sep) || !jv_list(j, JV_TUPLE, 3, out))
		return false;
	if (sep->bytes == 0)
		return jinja_fail(j, "empty separator");
	size_t n = self.s->bytes, at = SIZE_MAX;
	const char *hit = right ? NULL : memmem(self.s->data, n, sep->data, sep->bytes);
	if (hit != NULL)
		at = (size_t)(hit - self.s->data);
	if (right && !last_match(j, self.s, n, sep, &at))
		return false;
	size_t cuts[4] = {0, at, at + sep->bytes, n};
	if (at == SIZE_MAX)
		cuts[1] = cuts[2] = right ? 0 : n;
	for (int i = 0; i < 3; i++)
		if (!add_part(j, self, cuts[i], cuts[i + 1], out->l))
			return false;
	return true;
}

METHOD(str_partition)
{
	(void)all;
	return partition(j, self, args[0], false, out);
}

METHOD(str_rpartition)
{
	(void)all;
	return partition(j, self, args[0], true, out);
}

const struct builtin jinja_split_methods[] = {
	{"split", str_split, "sep,maxsplit", 0},
	{"rsplit", str_rsplit, "sep,maxsplit", 0},
	{"splitlines", str_splitlines, "keepends", 0},
	{"partition", str_partition, "sep", 1},
	{"rpartition", str_rpartition, "sep", 1},
	{NULL, NULL, NULL, 0},
};
