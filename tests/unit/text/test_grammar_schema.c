/* What schemas say besides types: counts, names, patterns, cases; and tags in free text. */
#include "grammar_text.h"

static void demo_init(struct tongue *t)
{
	tongue_init(t, SOURCE_ROOT "/demo");
}

Test(grammar_schema, elements_that_differ_and_elements_that_are_wanted)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"items\":{\"$ref\":\"#/$defs/e\"},\"uniqueItems\":true,\"minItems\":1,\"$defs\":{\"e\":{\"enum\":[\"a\",1,\"b\",\"a\"]}}}", {"[\"a\"]", true},
	       {"[\"b\", \"a\", 1]", true}, {"[\"b\", \"b\"]", false}, {"[]", false}, {"[1, \"a\", 1]", false}, {"[\n  1,\n  \"a\"\n]", true});
	SCHEMA(&t, "{\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14]},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":3}", {"[1, 14]", true}, {"[2, 3, 9]", true},
	       {"[1]", false}, {"[3, 2]", false}, {"[3, 3]", false}, {"[1, 2, 3, 4]", false});
	SCHEMA(&t, "{\"items\":{\"type\":\"integer\"},\"uniqueItems\":true,\"maxItems\":1}", {"[]", true}, {"[3]", true}, {"[3, 4]", false});
	SCHEMA(&t, "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5}}", {"[5]", true}, {"[1, 9, 2]", true}, {"[]", false}, {"[1, 2]", false});
	SCHEMA(&t, "{\"contains\":{\"type\":\"null\"},\"minContains\":2,\"maxItems\":3}", {"[null, 1, null]", true}, {"[null, 1]", false}, {"[1, 2, null, null]", false},
	       {"[null, null, null]", true});
	tongue_fini(&t);
}

Test(grammar_schema, numbers_of_members)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"b\"],\"minProperties\":2}", {"{\"b\":1}", false}, {"{\"a\":1,\"b\":1}", true},
	       {"{\"b\":1,\"c\":1}", true}, {"{\"a\":1,\"b\":1,\"c\":1}", true}, {"{\"a\":1,\"c\":1}", false});
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":1,\"maxProperties\":2}", {"{}", false}, {"{\"c\":1}", true}, {"{\"a\":1,\"c\":1}", true},
	       {"{\"a\":1,\"b\":1,\"c\":1}", false});
	SCHEMA(&t, "{\"properties\":{\"a\":{}},\"additionalProperties\":{},\"minProperties\":2,\"maxProperties\":3}", {"{\"a\":1}", false}, {"{\"x\":1}", false},
	       {"{\"a\":1,\"x\":1}", true}, {"{\"a\":1,\"x\":1,\"y\":1}", true}, {"{\"a\":1,\"x\":1,\"y\":1,\"z\":1}", false});
	SCHEMA(&t, "{\"type\":\"object\",\"properties\":{}}", {"{}", true}, {"{\"a\":1}", false});
	tongue_fini(&t);
}

Test(grammar_schema, names_by_their_patterns)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"properties\":{\"x-a\":{\"minimum\":5}},\"patternProperties\":{\"^x-\":{\"type\":\"integer\"},\"z$\":{\"maximum\":9}},\"additionalProperties\":{\"type\":\"null\"}}",
	       {"{\"x-a\":5}", true}, {"{\"x-a\":4}", false}, {"{\"x-a\":5.5}", false}, {"{\"x-b\":1}", true}, {"{\"x-b\":null}", false}, {"{\"y\":null}", true},
	       {"{\"y\":1}", false}, {"{\"x-z\":9}", true}, {"{\"x-z\":10}", false}, {"{\"az\":1.5}", true}, {"{\"az\":null}", false}, {"{\"x-b\":1,\"x-a\":1}", false},
	       {"{\"q\\\"z\":1}", true});
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"toolong\":{}},\"propertyNames\":{\"$ref\":\"#/$defs/n\"},\"additionalProperties\":true,\"$defs\":{\"n\":{\"maxLength\":3}}}",
	       {"{\"a\":1,\"b\":2}", true}, {"{\"toolong\":1}", false}, {"{\"long\":1}", false}, {"{\"abc\":1}", true}, {"{\"b\":1,\"a\":1}", false});
	SCHEMA(&t, "{\"propertyNames\":{\"enum\":[\"k\\\"1\",\"k2\"]}}", {"{\"k\\\"1\":1,\"k2\":2}", true}, {"{\"k\":1}", false});
	tongue_fini(&t);
}

/* Each pattern alone is small; what is known of both at once is not. */
Test(grammar_schema, patterns_that_are_too_large_together_are_refused)
{
	refused(GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"pattern\":\"a.{12}$\"},{\"pattern\":\"b.{13}$\"}]}", ERR_TOO_LONG, "too large together");
	struct buf source = {0};
	buf_append_str(&source, "{\"patternProperties\":{\"^(?:x{300}|y{300}|z{300})*$\":{}},\"properties\":{\"a\":{}");
	for (u32 i = 0; i < 4000; i++)
		buf_printf(&source, ",\"x%u\":{}", i);
	buf_append_str(&source, "}}");
	struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, buf_cstr(&source));
	grammar_unref(&g);
	buf_fini(&source);
}

Test(grammar_schema, several_patterns_of_one_string)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"},{\"maxLength\":3}]}", {"\"ab\"", true}, {"\"axb\"", true}, {"\"a\\nb\"", true}, {"\"axxb\"", false},
	       {"\"a\"", false}, {"\"b\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^2024-\"}", {"\"2024-02-29\"", true}, {"\"2023-02-28\"", false}, {"\"2024-02-30\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}", {"\"-1.50\"", true}, {"\".5\"", true}, {"\"-.\"", false}, {"\"\"", false},
	       {"\"0\"", true}, {"\"1.2.3\"", false});
	SCHEMA(&t, "{\"pattern\":\"^(?!^[-+.]*$)[+-]?[0-9.]*$\",\"maxLength\":3}", {"\"-1.\"", true}, {"\"-1.5\"", false}, {"\"-\"", false});
	SCHEMA(&t, "{\"pattern\":\"^(?=.*[0-9])(?=.*[a-z])[a-z0-9]+$\"}", {"\"a1\"", true}, {"\"aa\"", false}, {"\"11\"", false});
	SCHEMA(&t, "{\"pattern\":\"^$|^[a-z]+$|x-\"}", {"\"\"", true}, {"\"ab\"", true}, {"\"A\"", false}, {"\"1x-2\"", true}, {"\"a1\"", false});
	SCHEMA(&t, "{\"enum\":[\"ab\",\"ac\",\"b\",3],\"pattern\":\"^a\",\"type\":\"string\"}", {"\"ab\"", true}, {"\"b\"", false}, {"3", false});
	tongue_fini(&t);
}

Test(grammar_schema, tags_in_free_text)
{
	struct tongue t;
	demo_init(&t);
	CHECK(&t, GRAMMAR_PARTS,
	      "[{\"tags\":{\"triggers\":[\"<f=\",\"<f=b\",\"{{\"],\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</f>\"},"
	      "{\"begin\":\"<f=b>\",\"schema\":{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"type\":\"null\"}}},\"end\":\"\"},{\"begin\":\"{{\",\"schema\":true,\"end\":\"}}\"}]}}]",
	      {"", true}, {"free text, even <f and { and <<f>", true}, {"x <f=a>12</f> y <f=a>3</f>", true}, {"<f=a>x</f>", false}, {"<f=a>12", false}, {"<f=b>null", true},
	      {"<f=b>null<f=b>1", false}, {"<f=c>", false}, {"<f=", false}, {"{{{\"a\": 1}}}!", true}, {"\xc3\xa9<<f=a>1</f>", true}, {"\xc3", false});
	refused(GRAMMAR_PARTS, "[{\"tags\":{\"triggers\":[\"<f=\"],\"structures\":[{\"begin\":\"<g\",\"schema\":{},\"end\":\"\"}]}}]", ERR_INVALID, "begins with none of the triggers");
	refused(GRAMMAR_PARTS, "[{\"tags\":{\"triggers\":[\"<f\",\"x\"],\"structures\":[{\"begin\":\"<f\",\"schema\":{},\"end\":\"\"}]}}]", ERR_INVALID, "no structure begins with \"x\"");
	refused(GRAMMAR_PARTS, "[{\"tags\":{\"triggers\":[],\"structures\":[]}}]", ERR_FORMAT, "not empty");
	refused(GRAMMAR_PARTS, "[{\"tags\":{\"triggers\":[\"a\"],\"structures\":[{\"begin\":\"a\",\"end\":\"\"}]}}]", ERR_FORMAT, "/structures/0/schema is missing");
	refused(GRAMMAR_PARTS, "[{\"tags\":{\"triggers\":[\"a\"],\"structures\":[{\"begin\":\"a\",\"end\":\"\",\"schema\":{\"$ref\":\"#/x\",\"x\":{\"not\":{\"minimum\":1}}}}]}}]",
		ERR_UNSUPPORTED, "/structures/0/schema/x/not");
	tongue_fini(&t);
}

Test(grammar_schema, white_space_that_a_pattern_allows)
{
	static const struct {
		const char *pattern;
		u32 flags;
	} cases[] = {{"[ \\n\\t]*", 0}, {"\\s*", 0}, {"[ ]?", GRAMMAR_COMPACT}, {"", GRAMMAR_COMPACT}, {"[\\n ]{0,20}", GRAMMAR_COMPACT}};
	struct err_msg em = {.text = ""};
	u32 flags;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert_eq(grammar_space_flags(&flags, cases[i].pattern, strlen(cases[i].pattern), &em), ERR_OK, "%s", em.text);
		cr_assert_eq(flags, cases[i].flags, "%s", cases[i].pattern);
	}
	cr_assert_eq(grammar_space_flags(&flags, " +", 2, &em), ERR_UNSUPPORTED);
	cr_assert_not_null(strstr(em.text, "empty text"));
	cr_assert_eq(grammar_space_flags(&flags, "(", 1, &em), ERR_FORMAT);
}

Test(grammar_schema, keywords_that_are_cases_of_others)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"c\":[\"a\"]}}", {"{}", true}, {"{\"a\":1}", false}, {"{\"a\":1,\"b\":1}", true},
	       {"{\"b\":1}", true}, {"{\"c\":1}", false}, {"{\"a\":1,\"b\":1,\"c\":1}", true}, {"{\"b\":1,\"c\":1}", false});
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"b\":{\"type\":\"integer\"}},\"dependencies\":{\"a\":{\"properties\":{\"b\":{\"minimum\":5}}}}}", {"{\"a\":1,\"b\":5}", true},
	       {"{\"a\":1,\"b\":4}", false}, {"{\"b\":4}", true}, {"{\"a\":1}", true});
	const char *kinds = "{\"properties\":{\"kind\":{\"enum\":[\"a\",\"b\",\"c\"]},\"v\":{\"type\":\"integer\"}},\"required\":[\"kind\"],\"if\":{\"properties\":{\"kind\":{\"const\":\"a\"}}},"
			    "\"then\":{\"required\":[\"v\"]},\"else\":{\"properties\":{\"v\":{\"maximum\":3}}}}";
	SCHEMA(&t, kinds, {"{\"kind\":\"a\"}", false}, {"{\"kind\":\"a\",\"v\":9}", true}, {"{\"kind\":\"b\"}", true}, {"{\"kind\":\"c\",\"v\":9}", false}, {"{\"kind\":\"b\",\"v\":3}", true});
	SCHEMA(&t, "{\"properties\":{\"on\":{\"type\":\"boolean\"},\"v\":{}},\"required\":[\"on\"],\"if\":{\"properties\":{\"on\":{\"const\":true}}},\"then\":{\"required\":[\"v\"]}}",
	       {"{\"on\":true}", false}, {"{\"on\":false}", true}, {"{\"on\":true,\"v\":1}", true});
	SCHEMA(&t, "{\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"required\":[\"a\",\"b\"]}}", {"{\"a\":1}", true}, {"{\"b\":1}", true}, {"{}", true}, {"{\"a\":1,\"b\":1}", false});
	SCHEMA(&t, "{\"enum\":[\"a\",\"b\",1],\"not\":{\"enum\":[\"b\",2]}}", {"\"a\"", true}, {"1", true}, {"\"b\"", false});
	tongue_fini(&t);
}
