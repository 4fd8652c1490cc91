#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"

static struct json_doc *parsed(const char *text)
{
	struct json_doc *doc;
	struct err_msg em = {""};

	enum err e = json_parse(&doc, text, strlen(text), &em);
	cr_assert_eq(e, ERR_OK, "%s: %s", text, em.text);
	return doc;
}

static void refused(const char *text, size_t bytes, const char *word)
{
	struct json_doc *doc;
	struct err_msg em = {""};

	cr_assert_eq(json_parse(&doc, text, bytes, &em), ERR_FORMAT, "%s", text);
	cr_assert_null(doc);
	cr_assert_not_null(strstr(em.text, word), "%s: %s", text, em.text);
}

static const char *written(json_val v, bool spaced)
{
	static struct buf b;
	struct json_writer w;

	buf_clear(&b);
	json_begin(&w, &b);
	w.spaced = spaced;
	json_write_value(&w, v);
	return buf_cstr(&b);
}

/* ---------------------------------------------------------------- reading */

Test(json, members_elements_and_types_are_found)
{
	struct json_doc *doc =
		parsed("{\"a\": [1, -2, 2.5, true, null, \"x\"], \"b\": {\"c\": {}}, \"d\": \"e\"}");
	json_val root = json_root(doc), a = json_get(root, "a");
	int64_t i;
	double d;
	bool b;

	cr_assert_eq(json_type(root), JSON_OBJECT);
	cr_assert_eq(json_count(root), 3);
	cr_assert_eq(json_count(a), 6);
	cr_assert(json_int(json_at(a, 1), &i) && i == -2);
	cr_assert(json_double(json_at(a, 2), &d) && d == 2.5);
	cr_assert(json_double(json_at(a, 0), &d) && d == 1.0);
	cr_assert(json_bool(json_at(a, 3), &b) && b);
	cr_assert_eq(json_type(json_at(a, 4)), JSON_NULL);
	cr_assert_not(json_present(json_at(a, 4)));
	cr_assert(json_string_equals(json_at(a, 5), "x"));
	cr_assert_eq(json_type(json_at(a, 6)), JSON_MISSING);
	cr_assert_eq(json_count(json_get(json_get(root, "b"), "c")), 0);
	cr_assert_str_eq(json_cstr(json_get(root, "d"), "?"), "e");
	json_free(&doc);
	cr_assert_null(doc);
}

Test(json, what_is_missing_is_taken_by_every_reader)
{
	json_val none = {NULL};
	int64_t i = 5;
	uint64_t u = 5;
	double d = 5;
	bool b = true;
	const char *s = "s";
	size_t n = 5;

	cr_assert_eq(json_type(json_root(NULL)), JSON_MISSING);
	cr_assert_not(json_int(none, &i));
	cr_assert_not(json_uint(none, &u));
	cr_assert_not(json_double(none, &d));
	cr_assert_not(json_bool(none, &b));
	cr_assert_not(json_string(none, &s, &n));
	cr_assert_eq(json_type(json_get(none, "x")), JSON_MISSING);
	cr_assert_eq(json_count(none), 0);
	cr_assert_not(json_present(none));
	cr_assert_str_eq(json_type_name(none), "missing");
	cr_assert_str_eq(json_cstr(none, "fallback"), "fallback");
	struct json_iter it = json_iterate(none);
	cr_assert_not(json_next(&it));
	cr_assert(i == 5 && u == 5 && d == 5 && b && n == 5);
}

Test(json, last_of_duplicates_wins)
{
	struct json_doc *doc = parsed("{\"k\": 1, \"x\": [1,2,{\"k\": 9}], \"k\": 3}");
	int64_t i;

	cr_assert(json_int(json_get(json_root(doc), "k"), &i) && i == 3);
	cr_assert_eq(json_count(json_root(doc)), 3);
	json_free(&doc);
}

Test(json, iteration_keeps_the_order_and_skips_whole_subtrees)
{
	struct json_doc *doc = parsed("{\"a\": [[1],[2,[3]]], \"b\": {\"x\": {\"y\": []}}, \"c\": 7}");
	const char *keys[] = {"a", "b", "c"};
	size_t n = 0;

	for (struct json_iter it = json_iterate(json_root(doc)); json_next(&it); n++) {
		cr_assert_str_eq(it.key, keys[n]);
		cr_assert_eq(it.key_bytes, 1);
	}
	cr_assert_eq(n, 3);
	n = 0;
	for (struct json_iter it = json_iterate(json_get(json_root(doc), "a")); json_next(&it); n++) {
		cr_assert_null(it.key);
		cr_assert_eq(json_count(it.value), n + 1);
	}
	cr_assert_eq(n, 2);
	json_free(&doc);
}

Test(json, integers_keep_all_64_bits)
{
	struct json_doc *doc =
		parsed("[9223372036854775807, 18446744073709551615, -9223372036854775808, -1, 3.0]");
	json_val a = json_root(doc);
	int64_t i;
	uint64_t u;

	cr_assert(json_int(json_at(a, 0), &i) && i == INT64_MAX);
	cr_assert(json_uint(json_at(a, 0), &u) && u == INT64_MAX);
	cr_assert_not(json_int(json_at(a, 1), &i));
	cr_assert(json_uint(json_at(a, 1), &u) && u == UINT64_MAX);
	cr_assert(json_int(json_at(a, 2), &i) && i == INT64_MIN);
	cr_assert_not(json_uint(json_at(a, 3), &u));
	cr_assert_eq(json_type(json_at(a, 4)), JSON_DOUBLE);
	cr_assert_not(json_int(json_at(a, 4), &i));
	json_free(&doc);
}

Test(json, integers_beyond_64_bits_become_doubles)
{
	struct json_doc *doc =
		parsed("{\"quoted \\\"\": \"1000000000000000019884624838656\", \"n\": "
		       "1000000000000000019884624838656, \"m\": [-99999999999999999999, 1e25, 5]}");
	double d;
	int64_t i;

	cr_assert(json_double(json_get(json_root(doc), "n"), &d));
	cr_assert_float_eq(d, 1e30, 1e15);
	cr_assert(
		json_string_equals(json_get(json_root(doc), "quoted \""), "1000000000000000019884624838656"));
	cr_assert(json_double(json_at(json_get(json_root(doc), "m"), 0), &d) && d < -9e19);
	cr_assert(json_int(json_at(json_get(json_root(doc), "m"), 2), &i) && i == 5);
	json_free(&doc);
}

Test(json, texts_that_are_no_c_strings_are_found)
{
	static const struct {
		const char *text, *found;
	} cases[] = {
		{"{\"a\": [1, \"b\", {\"c\": null}]}", NULL},
		{"7", NULL},
		{"\"\\u0000\"", ""},
		{"{\"a\": [1, {\"b\": {\"cd\\u0000e\": 1}}], \"f\\u0000\": 1}", "cd"},
		{"[[\"a\", \"bc\\u0000\"], \"d\\u0000\"]", "bc"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct json_doc *doc = parsed(cases[i].text);
		const char *found = json_text_with_nul(json_root(doc));
		cr_assert(!found == !cases[i].found && (!found || !strcmp(found, cases[i].found)), "%s: %s", cases[i].text, found);
		json_free(&doc);
	}
}

Test(json, strings_may_hold_nuls_and_every_escape)
{
	const char text[] = "[\"a\\u0000b\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u00e9\\ud83d\\ude00\"]";
	struct json_doc *doc = parsed(text);
	const char *s;
	size_t n;

	cr_assert(json_string(json_at(json_root(doc), 0), &s, &n));
	cr_assert_eq(n, 3);
	cr_assert_eq(memcmp(s, "a\0b\0", 4), 0);
	cr_assert(json_string_equals(json_at(json_root(doc), 1), "\"\\/\b\f\n\r\t"));
	cr_assert(json_string_equals(json_at(json_root(doc), 2), "\xc3\xa9\xf0\x9f\x98\x80"));
	json_free(&doc);
}

Test(json, malformed_documents_are_refused_with_the_reason)
{
	static const struct {
		const char *text, *word;
	} cases[] = {
		{"", "empty"},
		{"   \n", "empty"},
		{"{", "it ends too early: a bracket or value is missing or misplaced (at byte 1)"},
		{"[1,]", "a value is missing or misplaced (at byte 3)"},
		{"[1 2]", "a comma or ] is missing or misplaced (at byte 3)"},
		{"{\"a\" 1}", "a colon is missing or misplaced (at byte 5)"},
		{"{a: 1}", "a key in double quotes is missing or misplaced (at byte 1)"},
		{"{'a': 1}", "a key in double quotes is missing or misplaced (at byte 1)"},
		{"{\n\"a\": 1,\n\"b\": [2}, \"c\": 3}", "a comma or ] is missing or misplaced (at byte 17, in line 3)"},
		{"{\"a\": {\"b\": [[], {}]}, \"c\": \"\\\"}\" 1}", "a comma or } is missing or misplaced (at byte 34)"},
		{"{\"a\": 1,}", "a key in double quotes is missing or misplaced (at byte 8)"},
		{"{\"a\":", "it ends too early"},
		{"1 2", "what stands behind the end is misplaced (at byte 2)"},
		{"[1] x", "what stands behind the end is misplaced (at byte 4)"},
		{"]", "misplaced (at byte 0)"},
		{"[01]", "number"},
		{"[1.]", "number"},
		{"[.5]", "misplaced"},
		{"[+1]", "misplaced"},
		{"[1e]", "number"},
		{"[1e400]", "number"},
		{"[--1]", "number"},
		{"[NaN]", "NaN and Infinity are no JSON; a number or null would be (at byte 1)"},
		{"{\"a\": -Infinity}", "NaN and Infinity are no JSON; a number or null would be (at byte 6)"},
		{"[Infinity]", "NaN and Infinity"},
		{"[truE]", "true, false, null (at byte 1)"},
		{"[nul]", "true, false, null"},
		{"[\"a]", "not closed"},
		{"[\"\\x\"]", "escape"},
		{"[\"\\ud800\"]", "escape"},
		{"[\"\\udc00\\ud800\"]", "escape"},
		{"[\"\\u12\"]", "escape"},
		{"[\"line\nbreak\"]", "control character"},
		{"// comment\n1", "misplaced"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refused(cases[i].text, strlen(cases[i].text), cases[i].word);
	refused("[1]\0", 4, "misplaced");
	refused("\0", 1, "misplaced");
}

Test(json, invalid_utf8_is_refused_with_its_place)
{
	refused("[\"ab\xff\"]", 7, "UTF-8 (at byte 4)");
	refused("[\"\xc0\x80\"]", 6, "UTF-8 (at byte 2)");
	refused("[\"\xed\xa0\x80\"]", 7, "UTF-8 (at byte 2)");
	refused("[\"\xe2\x82", 4, "");
}

Test(json, sixty_four_levels_are_taken_and_more_are_refused)
{
	char text[2 * 100000 + 1];

	for (int levels = 60; levels <= 64; levels++) {
		memset(text, '[', (size_t)levels);
		memset(text + levels, ']', (size_t)levels);
		text[2 * levels] = '\0';
		struct json_doc *doc = parsed(text);
		cr_assert_eq(strlen(written(json_root(doc), false)), 2 * (size_t)levels);
		json_free(&doc);
	}
	memset(text, '[', 65);
	memset(text + 65, ']', 65);
	refused(text, 130, "64 levels");
	memset(text, '[', 100000);
	memset(text + 100000, ']', 100000);
	refused(text, 200000, "64 levels");
	for (int i = 0; i < 30000; i++)
		memcpy(text + 6 * i, "{\"a\":1", 6);
	refused(text, 180000, "");
}

/* Every prefix and many one-byte changes of a document: none may crash, whatever the answer. */
Test(json, damaged_documents_never_crash)
{
	const char text[] = "{\"a\": [1, -2.5e3, true, null, \"x\\u00e9\\n\"], \"b\": {\"c\": {}}, \"\": "
			    "18446744073709551616}";
	struct json_doc *doc;
	char copy[sizeof(text)];

	for (size_t n = 0; n < sizeof(text) - 1; n++) {
		cr_assert_eq(json_parse(&doc, text, n, NULL), ERR_FORMAT);
		json_free(&doc);
	}
	srand(7);
	for (int i = 0; i < 50000; i++) {
		memcpy(copy, text, sizeof(text));
		for (int k = rand() % 3; k >= 0; k--)
			copy[(size_t)rand() % (sizeof(text) - 1)] = (char)rand();
		if (json_parse(&doc, copy, sizeof(text) - 1, NULL) == ERR_OK)
			cr_assert_gt(strlen(written(json_root(doc), false)), 0);
		json_free(&doc);
	}
}

Test(json, files_report_their_path)
{
	char path[] = "/tmp/test_json_XXXXXX";
	struct json_doc *doc;
	struct err_msg em;
	int fd = mkstemp(path);

	cr_assert_eq(write(fd, "\xef\xbb\xbf{\"a\":1}", 10), 10);
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_OK);
	cr_assert_eq(json_count(json_root(doc)), 1);
	json_free(&doc);
	cr_assert_eq(ftruncate(fd, 5), 0);
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_FORMAT);
	cr_assert_eq(strncmp(em.text, path, strlen(path)), 0, "%s", em.text);
	close(fd);
	unlink(path);
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "No such file"));
	cr_assert_eq(mkfifo(path, 0600), 0);
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_IO, "a pipe is not waited for");
	unlink(path);
	cr_assert_eq(json_parse_file(&doc, "/tmp", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "not a regular file"));
}

static enum err parse_python(struct json_doc **doc, const char *text, struct err_msg *em)
{
	char path[] = "/tmp/test_json_XXXXXX";
	int fd = mkstemp(path);

	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	enum err e = json_parse_python_file(doc, path, em);
	unlink(path);
	return e;
}

Test(json, infinity_of_python_is_an_object)
{
	struct json_doc *doc;
	struct err_msg em;

	cr_assert_eq(parse_python(&doc, "{\"a \\\" Infinity\": [0.0, Infinity, \"Infinity\", Infinity], \"b\": 1}", &em), ERR_OK, "%s", em.text);
	json_val list = json_get(json_root(doc), "a \" Infinity");
	cr_assert(json_count(list) == 4 && json_string_equals(json_get(json_at(list, 1), "__float__"), "Infinity"));
	cr_assert(json_string_equals(json_at(list, 2), "Infinity") && json_string_equals(json_get(json_at(list, 3), "__float__"), "Infinity"));
	json_free(&doc);
	const char *const wrong[] = {"[-Infinity]", "[NaN]", "[NaN, Infinity]", "[Infinity", "[xInfinity]", "\"Infinity"};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		cr_assert_eq(parse_python(&doc, wrong[i], &em), ERR_FORMAT, "%s", wrong[i]);
		cr_assert_null(doc);
	}
	cr_assert_eq(parse_python(&doc, "[NaN, Infinity]", &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "NaN and Infinity are no JSON; a number or null would be (at byte 1)"), "%s", em.text);
}

/* ---------------------------------------------------------------- writing */

Test(json_write, commas_and_colons_are_placed_by_the_writer)
{
	struct buf b = {0};
	struct json_writer w;

	json_begin(&w, &b);
	json_object_begin(&w);
	json_key(&w, "a");
	json_array_begin(&w);
	json_write_int(&w, -1);
	json_write_uint(&w, UINT64_MAX);
	json_write_bool(&w, false);
	json_write_null(&w);
	json_array_begin(&w);
	json_array_end(&w);
	json_object_begin(&w);
	json_object_end(&w);
	json_array_end(&w);
	json_key(&w, "b");
	json_write_cstr(&w, "x");
	json_key(&w, "c");
	json_write_raw(&w, "[1]", 3);
	json_object_end(&w);
	cr_assert_str_eq(buf_cstr(&b),
			 "{\"a\":[-1,18446744073709551615,false,null,[],{}],\"b\":\"x\",\"c\":[1]}");
	buf_fini(&b);
}

Test(json_write, documents_survive_reading_and_writing)
{
	const char *text = "{\"a\":[1,-2,2.5,true,null,\"x\\n\\\"\"],\"b\":{\"c\":{}},\"n\":"
			   "18446744073709551615,\"e\":[]}";
	struct json_doc *doc = parsed(text);

	cr_assert_str_eq(written(json_root(doc), false), text);
	cr_assert_str_eq(written(json_root(doc), true),
			 "{\"a\": [1, -2, 2.5, true, null, \"x\\n\\\"\"], \"b\": {\"c\": {}}, "
			 "\"n\": 18446744073709551615, \"e\": []}");
	json_free(&doc);
}

static const char *escaped(const char *text, size_t bytes)
{
	static struct buf b;

	buf_clear(&b);
	json_escape(&b, text, bytes);
	return buf_cstr(&b);
}

Test(json_write, only_what_must_be_is_escaped)
{
	cr_assert_str_eq(escaped("", 0), "\"\"");
	cr_assert_str_eq(escaped("a/b\x7f\xc3\xa9\xe2\x80\xa7", 9), "\"a/b\x7f\xc3\xa9\xe2\x80\xa7\"");
	/* what some readers take for the end of a line */
	cr_assert_str_eq(escaped("a\xc2\x85\xe2\x80\xa8\xe2\x80\xa9z", 10), "\"a\\u0085\\u2028\\u2029z\"");
	cr_assert_str_eq(escaped("\"\\\b\f\n\r\t", 7), "\"\\\"\\\\\\b\\f\\n\\r\\t\"");
	cr_assert_str_eq(escaped("\0\x01\x1f", 3), "\"\\u0000\\u0001\\u001f\"");
}

Test(json_write, ill_formed_utf8_becomes_replacement_characters)
{
	cr_assert_str_eq(escaped("a\xff"
				 "b",
				 3),
			 "\"a\xef\xbf\xbd"
			 "b\"");
	cr_assert_str_eq(escaped("\xe2\x82", 2), "\"\xef\xbf\xbd\"");
	cr_assert_str_eq(escaped("\xe2\x82\"", 3), "\"\xef\xbf\xbd\\\"\"");
	cr_assert_str_eq(escaped("\x80\x80", 2), "\"\xef\xbf\xbd\xef\xbf\xbd\"");
}

Test(json_write, any_bytes_give_a_string_that_reads_back)
{
	char bytes[24];
	struct json_doc *doc;

	srand(11);
	for (int i = 0; i < 20000; i++) {
		size_t n = (size_t)rand() % sizeof(bytes);
		for (size_t k = 0; k < n; k++)
			bytes[k] = (char)rand();
		const char *text = escaped(bytes, n);
		cr_assert_eq(json_parse(&doc, text, strlen(text), NULL), ERR_OK);
		json_free(&doc);
	}
}

static const char *number(double d)
{
	static struct buf b;
	struct json_writer w;

	buf_clear(&b);
	json_begin(&w, &b);
	json_write_double(&w, d);
	return buf_cstr(&b);
}

Test(json_write, doubles_have_their_shortest_form)
{
	cr_assert_str_eq(number(0.1), "0.1");
	cr_assert_str_eq(number(1.0), "1.0");
	cr_assert_str_eq(number(-0.0), "-0.0");
	cr_assert_str_eq(number(100000.0), "100000.0");
	cr_assert_str_eq(number(1e15), "1000000000000000.0");
	cr_assert_str_eq(number(1e16), "1e+16");
	cr_assert_str_eq(number(1.5e300), "1.5e+300");
	cr_assert_str_eq(number(0.0001), "0.0001");
	cr_assert_str_eq(number(0.00001), "1e-05");
	cr_assert_str_eq(number(5e-324), "5e-324");
	cr_assert_str_eq(number(1.7976931348623157e308), "1.7976931348623157e+308");
	cr_assert_str_eq(number(1.0 / 3.0), "0.3333333333333333");
	cr_assert_str_eq(number(123456789012345.67), "123456789012345.67");
	cr_assert_str_eq(number(NAN), "null");
	cr_assert_str_eq(number(-INFINITY), "null");
}

Test(json_write, doubles_of_all_sizes_read_back_the_same)
{
	srand(3);
	for (int i = 0; i < 200000; i++) {
		uint64_t bits = (uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand();
		double d;
		memcpy(&d, &bits, sizeof(d));
		if (!isfinite(d))
			continue;
		cr_assert_eq(strtod(number(d), NULL), d, "%a", d);
	}
}

Test(json_write, floats_are_shorter_than_doubles)
{
	struct buf b = {0};
	struct json_writer w;

	json_begin(&w, &b);
	json_array_begin(&w);
	json_write_float(&w, 0.1f);
	json_write_float(&w, -2.3025851f);
	json_write_float(&w, 3.0f);
	json_write_float(&w, NAN);
	json_array_end(&w);
	cr_assert_str_eq(buf_cstr(&b), "[0.1,-2.3025851,3.0,null]");
	buf_fini(&b);
}
