/* Every field of the table: wrong types and values out of range are refused by name, value and range. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proc_gateway/openai_fields.h"

struct outcome {
	bool ok;
	struct openai_fields f;
	struct api_error e;
};

static struct outcome read_json(enum openai_endpoint endpoint, const char *json)
{
	struct outcome o = {0};
	struct json_doc *doc;
	struct err_msg em;
	cr_assert_eq(json_parse(&doc, json, strlen(json), &em), ERR_OK, "%s: %s", json, em.text);
	o.ok = openai_fields_read(&o.f, endpoint, json_root(doc), 20, &o.e);
	json_free(&doc);
	return o;
}

static enum openai_endpoint some_endpoint(u32 where)
{
	return where & OPENAI_COMPLETIONS ? OPENAI_COMPLETIONS
	       : where & OPENAI_CHAT	  ? OPENAI_CHAT
	       : where & OPENAI_TOKENIZE  ? OPENAI_TOKENIZE
	       : where & OPENAI_EMBEDDINGS ? OPENAI_EMBEDDINGS
					  : OPENAI_DETOKENIZE;
}

static void expect_refused(u32 where, const char *name, const char *value, const char *in_message)
{
	char json[256];
	snprintf(json, sizeof(json), "{\"%s\": %s}", name, value);
	struct outcome o = read_json(some_endpoint(where), json);
	cr_expect(!o.ok, "%s was taken", json);
	cr_expect_eq(o.e.status, 400);
	cr_expect_str_eq(o.e.param, name, "%s: param is '%s'", json, o.e.param);
	cr_expect_not_null(strstr(o.e.message, name), "%s: %s", json, o.e.message);
	cr_expect_not_null(strstr(o.e.message, "must be"), "%s: %s", json, o.e.message);
	if (in_message)
		cr_expect_not_null(strstr(o.e.message, in_message), "%s: %s", json, o.e.message);
}

Test(openai_fields, every_field_refuses_every_wrong_type)
{
#define EXPECT_B(name, where, def)                          \
	expect_refused(where, #name, "\"yes\"", "\"yes\""); \
	expect_refused(where, #name, "1", "true or false"); \
	expect_refused(where, #name, "[true]", NULL);
#define EXPECT_I(name, where, def, min, max)                \
	expect_refused(where, #name, "\"7\"", "\"7\"");     \
	expect_refused(where, #name, "true", "an integer"); \
	expect_refused(where, #name, "1.5", "1.5");         \
	expect_refused(where, #name, "-1e300", "1e+300");   \
	expect_refused(where, #name, "{}", NULL);
#define EXPECT_F(name, where, def, min, max)                \
	expect_refused(where, #name, "\"hot\"", "\"hot\""); \
	expect_refused(where, #name, "false", "a number");  \
	expect_refused(where, #name, "[]", NULL);
#define EXPECT_S(name, where)                             \
	expect_refused(where, #name, "5", "a string");    \
	expect_refused(where, #name, "{\"a\": 1}", NULL); \
	expect_refused(where, #name, "\"a\\u0000b\"", "NUL");
#define EXPECT_V(name, where, types)                            \
	expect_refused(where, #name, "5", NULL);                \
	if (!((types)&TYPE_STRING))                             \
		expect_refused(where, #name, "\"x\"", "\"x\""); \
	if (!((types)&TYPE_OBJECT))                             \
		expect_refused(where, #name, "{}", NULL);       \
	if (!((types)&TYPE_ARRAY))                              \
		expect_refused(where, #name, "[]", NULL);
	OPENAI_FIELDS(EXPECT_B, EXPECT_I, EXPECT_F, EXPECT_S, EXPECT_V)
}

static void expect_number(u32 where, const char *name, double value, bool ok)
{
	char json[256];
	snprintf(json, sizeof(json), "{\"%s\": %.17g, \"logprobs\": %s}", name, value,
		 some_endpoint(where) == OPENAI_CHAT ? "true" : "1");
	struct outcome o = read_json(some_endpoint(where), json);
	cr_expect_eq(o.ok, ok, "%s: %s", json, o.ok ? "taken" : o.e.message);
	if (!ok) {
		cr_expect_str_eq(o.e.param, name);
		cr_expect_not_null(strstr(o.e.message, "range"), "%s", o.e.message);
	}
}

Test(openai_fields, every_number_is_taken_inside_its_range_and_refused_outside)
{
#define RANGE_B(name, where, def)
#define RANGE_I(name, where, def, min, max)                  \
	expect_number(where, #name, (double)(min), true);    \
	expect_number(where, #name, (double)(max), true);    \
	expect_number(where, #name, (double)(min)-1, false); \
	expect_number(where, #name, (double)(max) + 1, false);
#define RANGE_F(name, where, def, min, max)              \
	expect_number(where, #name, min, true);          \
	expect_number(where, #name, max, true);          \
	expect_number(where, #name, (min)-0.001, false); \
	expect_number(where, #name, (max) + 0.001, false);
#define RANGE_S(name, where)
#define RANGE_V(name, where, types)
	OPENAI_FIELDS(RANGE_B, RANGE_I, RANGE_F, RANGE_S, RANGE_V)
}

Test(openai_fields, absent_and_null_fields_have_their_defaults)
{
	struct outcome o = read_json(OPENAI_COMPLETIONS,
				     "{\"temperature\": null, \"max_tokens\": null, \"stop\": null}");
	cr_assert(o.ok);
	cr_assert(!o.f.has_temperature && !o.f.has_max_tokens && !o.f.has_stop && !o.f.has_seed);
	cr_assert_float_eq(o.f.temperature, 1.0, 0);
	cr_assert_eq(o.f.max_tokens, 16);
	cr_assert_eq(o.f.n, 1);
	cr_assert(o.f.skip_special_tokens && o.f.add_special_tokens && !o.f.stream);
	cr_assert_eq(o.f.logprobs, -1);
}

Test(openai_fields, unknown_fields_and_fields_of_other_endpoints_are_ignored)
{
	cr_assert(read_json(OPENAI_CHAT, "{\"no_such_field\": [1, {}], \"prompt\": 5, \"suffix\": 7}").ok);
	cr_assert(read_json(OPENAI_DETOKENIZE, "{\"temperature\": \"hot\", \"guided_json\": {\"a\": 1}}").ok);
}

Test(openai_fields, integral_doubles_count_as_integers)
{
	struct outcome o = read_json(OPENAI_COMPLETIONS, "{\"max_tokens\": 32.0}");
	cr_assert(o.ok, "%s", o.e.message);
	cr_assert_eq(o.f.max_tokens, 32);
}

Test(openai_fields, seeds_have_64_bits)
{
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"seed\": 18446744073709551615}").f.seed, UINT64_MAX);
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"seed\": -1}").f.seed, UINT64_MAX);
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"seed\": 7}").f.seed, 7);
	expect_refused(OPENAI_CHAT, "seed", "1.5", "2^64 - 1");
	expect_refused(OPENAI_CHAT, "seed", "\"7\"", "is a string");
	expect_refused(OPENAI_CHAT, "seed", "18446744073709551616", "2^64 - 1");
}

Test(openai_fields, logprobs_is_a_number_in_completions_and_a_switch_in_chats)
{
	cr_assert_eq(read_json(OPENAI_COMPLETIONS, "{\"logprobs\": 3}").f.logprobs, 3);
	cr_assert_eq(read_json(OPENAI_COMPLETIONS, "{\"logprobs\": 0}").f.logprobs, 0);
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"logprobs\": true}").f.logprobs, 0);
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"logprobs\": true, \"top_logprobs\": 5}").f.logprobs, 5);
	cr_assert_eq(read_json(OPENAI_CHAT, "{\"logprobs\": false}").f.logprobs, -1);
	expect_refused(OPENAI_COMPLETIONS, "logprobs", "21", "20");
	expect_refused(OPENAI_COMPLETIONS, "logprobs", "-1", "range");
	expect_refused(OPENAI_COMPLETIONS, "logprobs", "\"3\"", "is a string");
	expect_refused(OPENAI_CHAT, "logprobs", "3", "top_logprobs");
	expect_refused(OPENAI_CHAT, "top_logprobs", "3", "logprobs");
}

Test(openai_fields, fields_that_would_change_the_output_are_refused_unless_neutral){
#define EXPECT_UNSUPPORTED(name)                                                          \
	{                                                                                 \
		struct outcome o = read_json(OPENAI_CHAT, "{\"" #name "\": {\"a\": 1}}"); \
		cr_expect(!o.ok && o.e.status == 400);                                    \
		cr_expect_str_eq(o.e.code, "unsupported_parameter");                      \
		cr_expect_not_null(strstr(o.e.message, #name));                           \
		cr_expect(read_json(OPENAI_CHAT, "{\"" #name "\": null}").ok);            \
		cr_expect(read_json(OPENAI_CHAT, "{\"" #name "\": []}").ok);              \
		cr_expect(read_json(OPENAI_CHAT, "{\"" #name "\": false}").ok);           \
	}
	OPENAI_REFUSED(EXPECT_UNSUPPORTED)}

Test(openai_fields, what_other_servers_call_otherwise_is_refused_with_its_name_here)
{
#define EXPECT_FOREIGN(name, neutral, instead)                                                          \
	{                                                                                               \
		struct outcome o = read_json(OPENAI_CHAT, "{\"" #name "\": 0.37}");                     \
		cr_expect(!o.ok && o.e.status == 400 && strstr(o.e.message, #name));                    \
		cr_expect_str_eq(o.e.code, "unsupported_parameter");                                    \
		cr_expect_not_null(strstr(o.e.message, instead ? instead : "set it to " #neutral "."),  \
				   "%s", o.e.message);                                                  \
		cr_expect(read_json(OPENAI_CHAT, "{\"" #name "\": " #neutral "}").ok);                  \
		cr_expect(read_json(OPENAI_CHAT, "{\"" #name "\": null}").ok);                          \
	}
	OPENAI_FOREIGN(EXPECT_FOREIGN)
	cr_expect(read_json(OPENAI_COMPLETIONS, "{\"n_predict\": 8, \"max_tokens\": 8}").ok);
	cr_expect(read_json(OPENAI_CHAT, "{\"max_new_tokens\": 8, \"max_completion_tokens\": 8}").ok);
	cr_expect(read_json(OPENAI_CHAT, "{\"top_n_sigma\": -1, \"n_predict\": -2}").ok);
	cr_expect(read_json(OPENAI_CHAT, "{\"stop_sequences\": [\"a\"], \"stop\": [\"a\"]}").ok);
	cr_expect_not(read_json(OPENAI_COMPLETIONS, "{\"stop_sequences\": [\"a\"]}").ok);
	cr_expect_not(read_json(OPENAI_COMPLETIONS, "{\"mirostat\": \"2\"}").ok);
}

Test(openai_fields, a_body_that_is_no_object_is_refused)
{
	struct outcome o = read_json(OPENAI_CHAT, "[1, 2]");
	cr_assert(!o.ok);
	cr_assert_not_null(strstr(o.e.message, "JSON object"), "%s", o.e.message);
	cr_assert_not_null(strstr(o.e.message, "an array"), "%s", o.e.message);
}

Test(openai_fields, long_values_are_cut_in_messages_at_whole_characters)
{
	char json[4000] = "{\"temperature\": \"";
	for (int i = 0; i < 500; i++)
		strcat(json, "é");
	strcat(json, "\"}");
	struct outcome o = read_json(OPENAI_CHAT, json);
	cr_assert(!o.ok);
	cr_assert_lt(strlen(o.e.message), 250);
	cr_assert_not_null(strstr(o.e.message, "é..."), "%s", o.e.message);
}

Test(openai_fields, error_bodies_have_the_form_of_openai)
{
	struct api_error e;
	struct buf out = {0};
	api_error_set(&e, 404, "model", "model_not_found", "There is no \"%s\".", "x");
	api_error_write(&e, API_OPENAI, &out);
	cr_assert_str_eq(buf_cstr(&out),
			 "{\"error\":{\"message\":\"There is no \\\"x\\\".\",\"type\":\"not_found_error\","
			 "\"param\":\"model\",\"code\":\"model_not_found\"}}");
	buf_clear(&out);
	api_error_set(&e, 400, NULL, NULL, "Bad.");
	api_error_write(&e, API_OPENAI, &out);
	cr_assert_str_eq(buf_cstr(&out),
			 "{\"error\":{\"message\":\"Bad.\",\"type\":\"invalid_request_error\",\"param\":null,"
			 "\"code\":400}}");
	buf_fini(&out);
}

Test(openai_fields, every_field_is_documented)
{
	struct buf text = {0};
	FILE *file = fopen(DOCS_DIR "/HTTP_API.md", "r");
	cr_assert_not_null(file);
	char line[1024];
	while (fgets(line, sizeof(line), file))
		buf_append_str(&text, line);
	fclose(file);
#define DOCUMENTED(name, ...) \
	cr_expect_not_null(strstr(buf_cstr(&text), "`" #name "`"), "%s is not in docs/HTTP_API.md", #name);
	OPENAI_FIELDS(DOCUMENTED, DOCUMENTED, DOCUMENTED, DOCUMENTED, DOCUMENTED)
	buf_fini(&text);
}
