/* Owns the tests behind "is". Runs where chat templates are rendered. */
#include <string.h>

#include "text/jinja_str_priv.h"

#define TEST(name)                                                                                           \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* Tests of the value's type alone. */
#define TYPE_TEST(name, condition)                                                                           \
	TEST(name)                                                                                           \
	{                                                                                                    \
		(void)j, (void)args, (void)all;                                                              \
		*out = JV_BOOLEAN(condition);                                                                \
		return true;                                                                                 \
	}

static bool is_iterable(u8 t)
{
	return t == JV_UNDEFINED || t == JV_STRING || t == JV_LIST || t == JV_TUPLE || t == JV_DICT || t == JV_RANGE ||
	       t == JV_VIEW || t == JV_ITERATOR || t == JV_LOOP;
}

static bool is_sequence(u8 t)
{
	return t == JV_UNDEFINED || t == JV_STRING || t == JV_LIST || t == JV_TUPLE || t == JV_DICT || t == JV_RANGE;
}

static bool is_callable(u8 t)
{
	return t == JV_UNDEFINED || t == JV_LOOP || t == JV_MACRO || t == JV_METHOD || t == JV_FUNCTION ||
	       t == JV_JOINER;
}

TYPE_TEST(test_defined, self.type != JV_UNDEFINED)
TYPE_TEST(test_undefined, self.type == JV_UNDEFINED)
TYPE_TEST(test_none, self.type == JV_NONE)
TYPE_TEST(test_boolean, self.type == JV_BOOL)
TYPE_TEST(test_true, self.type == JV_BOOL && self.b)
TYPE_TEST(test_false, self.type == JV_BOOL && !self.b)
TYPE_TEST(test_integer, self.type == JV_INT)
TYPE_TEST(test_float, self.type == JV_FLOAT)
TYPE_TEST(test_number, jv_is_number(self))
TYPE_TEST(test_string, self.type == JV_STRING)
TYPE_TEST(test_mapping, self.type == JV_DICT)
TYPE_TEST(test_iterable, is_iterable(self.type))
TYPE_TEST(test_sequence, is_sequence(self.type))
TYPE_TEST(test_callable, is_callable(self.type))
TYPE_TEST(test_escaped, self.type == JV_STRING && self.safe)

static bool test_case(struct jinja *j, struct jv self, bool upper, struct jv *out)
{
	if (!jv_to_string(j, self, &self))
		return false;
	*out = JV_BOOLEAN(jstr_all_case(self.s, upper));
	return true;
}

TEST(test_lower)
{
	(void)args, (void)all;
	return test_case(j, self, false, out);
}

TEST(test_upper)
{
	(void)args, (void)all;
	return test_case(j, self, true, out);
}

static bool test_remainder(struct jinja *j, struct jv self, struct jv by, int64_t wanted, struct jv *out)
{
	struct jv rest;
	bool same;
	if (!jv_binary(j, TOK_MOD, self, by, &rest) || !jv_equal(j, rest, JV_INTEGER(wanted), &same))
		return false;
	*out = JV_BOOLEAN(same);
	return true;
}

TEST(test_odd)
{
	(void)args, (void)all;
	return test_remainder(j, self, JV_INTEGER(2), 1, out);
}

TEST(test_even)
{
	(void)args, (void)all;
	return test_remainder(j, self, JV_INTEGER(2), 0, out);
}

TEST(test_divisibleby)
{
	(void)all;
	return test_remainder(j, self, args[0], 0, out);
}

TEST(test_eq)
{
	(void)all;
	out->type = JV_BOOL;
	return jv_equal(j, self, args[0], &out->b);
}

TEST(test_ne)
{
	if (!test_eq(j, self, args, all, out))
		return false;
	out->b = !out->b;
	return true;
}

TEST(test_lt)
{
	(void)all;
	int order;
	if (!jv_compare(j, self, args[0], "<", &order))
		return false;
	*out = JV_BOOLEAN(order == -1);
	return true;
}

TEST(test_le)
{
	(void)all;
	int order;
	if (!jv_compare(j, self, args[0], "<=", &order))
		return false;
	*out = JV_BOOLEAN(order <= 0);
	return true;
}

TEST(test_gt)
{
	(void)all;
	int order;
	if (!jv_compare(j, self, args[0], ">", &order))
		return false;
	*out = JV_BOOLEAN(order == 1);
	return true;
}

TEST(test_ge)
{
	(void)all;
	int order;
	if (!jv_compare(j, self, args[0], ">=", &order))
		return false;
	*out = JV_BOOLEAN(order == 0 || order == 1);
	return true;
}

TEST(test_in)
{
	(void)all;
	out->type = JV_BOOL;
	return jv_contains(j, args[0], self, &out->b);
}

/* The same object; small values are their own identity. */
TEST(test_sameas)
{
	(void)j, (void)all;
	struct jv other = args[0];
	bool same = self.type == other.type;
	if (same && self.type == JV_BOOL)
		same = self.b == other.b;
	else if (same && self.type == JV_STRING)
		same = self.s == other.s || (self.s->bytes == other.s->bytes && self.s->bytes < 2 &&
					     memcmp(self.s->data, other.s->data, self.s->bytes) == 0);
	else if (same && self.type != JV_NONE && self.type != JV_UNDEFINED)
		same = self.i == other.i;
	*out = JV_BOOLEAN(same);
	return true;
}

TEST(test_filter)
{
	(void)j, (void)args, (void)all;
	*out = JV_BOOLEAN(self.type == JV_STRING && jinja_filter_find(self.s->data) != NULL);
	return true;
}

TEST(test_test)
{
	(void)j, (void)args, (void)all;
	*out = JV_BOOLEAN(self.type == JV_STRING && jinja_test_find(self.s->data) != NULL);
	return true;
}

static const struct builtin tests[] = {
	{"defined", test_defined, "", 0},
	{"undefined", test_undefined, "", 0},
	{"none", test_none, "", 0},
	{"string", test_string, "", 0},
	{"mapping", test_mapping, "", 0},
	{"iterable", test_iterable, "", 0},
	{"sequence", test_sequence, "", 0},
	{"boolean", test_boolean, "", 0},
	{"true", test_true, "", 0},
	{"false", test_false, "", 0},
	{"integer", test_integer, "", 0},
	{"float", test_float, "", 0},
	{"number", test_number, "", 0},
	{"callable", test_callable, "", 0},
	{"escaped", test_escaped, "", 0},
	{"lower", test_lower, "", 0},
	{"upper", test_upper, "", 0},
	{"odd", test_odd, "", 0},
	{"even", test_even, "", 0},
	{"divisibleby", test_divisibleby, "num", 1},
	{"sameas", test_sameas, "other", 1},
	{"filter", test_filter, "", 0},
	{"test", test_test, "", 0},
	{"in", test_in, "seq", 1},
	{"==", test_eq, "b", 1},
	{"eq", test_eq, "b", 1},
	{"equalto", test_eq, "b", 1},
	{"!=", test_ne, "b", 1},
	{"ne", test_ne, "b", 1},
	{">", test_gt, "b", 1},
	{"gt", test_gt, "b", 1},
	{"greaterthan", test_gt, "b", 1},
	{">=", test_ge, "b", 1},
	{"ge", test_ge, "b", 1},
	{"<", test_lt, "b", 1},
	{"lt", test_lt, "b", 1},
	{"lessthan", test_lt, "b", 1},
	{"<=", test_le, "b", 1},
	{"le", test_le, "b", 1},
};

const struct builtin *jinja_test_find(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(tests); i++)
		if (strcmp(tests[i].name, name) == 0)
			return &tests[i];
	return NULL;
}
