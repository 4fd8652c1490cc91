#include "grammar_text.h"

#include "text/grammar_priv.h"

static void demo_init(struct tongue *t)
{
	tongue_init(t, SOURCE_ROOT "/demo");
}

Test(grammar_json, any_object)
{
	struct tongue t;
	demo_init(&t);
	CHECK(&t, GRAMMAR_JSON_OBJECT, "", {"{}", true}, {"{\"a\": 1}", true}, {"{\"a\":[1,2,{\"b\":null}],\"c\":\"x\"}", true}, {"[]", false},
	      {"{\n  \"a\": [\n    -1.5e-3,\n    true\n  ]\n}", true}, {"{\"a\"}", false}, {"{\"a\":1,}", false}, {"{\"a\":01}", false},
	      {"{\"a\":\"\\u00e9\\ud83d\\ude00\\n\"}", true}, {"{\"a\":\"\\ud83d\"}", false}, {"{\"a\":\"\n\"}", false}, {"{\"a\":  1}", false},
	      {"{\"\xc3\xa9\":\"\xf0\x9f\x98\x80\"}", true}, {"{\n\n}", false}, {" {}", false}, {"{} ", false});
	tongue_fini(&t);
}

Test(grammar_json, objects_have_their_properties_in_order)
{
	struct tongue t;
	demo_init(&t);
	const char *source = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{\"type\":\"boolean\"}},"
			     "\"required\":[\"b\"]}";
	SCHEMA(&t, source, {"{\"a\":1,\"b\":\"x\",\"c\":true}", true}, {"{\"b\":\"x\"}", true}, {"{\"a\": 1, \"b\": \"x\"}", true},
	       {"{\"b\":\"x\",\"c\":false}", true}, {"{\"b\":\"x\",\"a\":1}", false}, {"{\"a\":1}", false}, {"{}", false},
	       {"{\"b\":\"x\",\"d\":1}", false}, {"{\n\t\"b\": \"x\"\n}", true});
	SCHEMA(&t, "{\"properties\":{\"a\":{\"type\":\"null\"}}}", {"{}", true}, {"{\"a\":null}", true}, {"{,\"a\":null}", false});
	SCHEMA(&t, "{\"properties\":{\"a\":false,\"b\":true},\"required\":[\"z\"]}", {"{\"b\":[],\"z\":0}", true}, {"{\"z\":{}}", true}, {"{\"b\":1}", false});
	tongue_fini(&t);
}

Test(grammar_json, further_members)
{
	struct tongue t;
	demo_init(&t);
	const char *source = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"no\":{}},\"required\":[\"name\"],"
			     "\"additionalProperties\":{\"type\":\"integer\"}}";
	SCHEMA(&t, source, {"{\"name\":\"x\"}", true}, {"{\"name\":\"x\",\"n\":1}", true}, {"{\"name\":\"x\",\"nam\":1,\"names\":2}", true},
	       {"{\"name\":\"x\",\"name\":1}", false}, {"{\"name\":\"x\",\"n\":\"1\"}", false}, {"{\"name\":\"x\",\"no\":true,\"\xc3\xa9\":1}", true},
	       {"{\"name\":\"x\",\"\":1}", true}, {"{\"name\":\"x\",\"\\u006eo\":1}", false});
	SCHEMA(&t, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"},\"minProperties\":1,\"maxProperties\":2}", {"{\"a\":null}", true},
	       {"{\"a\":null,\"b\":null}", true}, {"{}", false}, {"{\"a\":null,\"b\":null,\"c\":null}", false}, {"{\"a\":1}", false});
	SCHEMA(&t, "{\"type\":\"object\",\"patternProperties\":{\"^x-[a-z]+$\":{\"type\":\"integer\"}},\"properties\":{\"a\":{}},\"additionalProperties\":false}",
	       {"{\"a\":[],\"x-b\":1}", true}, {"{\"x-b\":1}", true}, {"{\"y\":1}", false}, {"{\"x-1\":1}", false});
	SCHEMA(&t, "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-c]$\"},\"additionalProperties\":{\"type\":\"integer\"}}", {"{\"a\":1,\"c\":2}", true},
	       {"{\"d\":1}", false});
	SCHEMA(&t, "{\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":\"null\"}}", {"{\"a\":null,\"b\":null}", true}, {"{\"c\":null}", false});
	SCHEMA(&t, "{\"type\":\"object\"}", {"{\"x\":{\"y\":[0]}}", true}, {"[]", false});
	SCHEMA(&t, "{\"type\":\"object\",\"additionalProperties\":false}", {"{}", true}, {"{ }", true}, {"{\"a\":1}", false});
	tongue_fini(&t);
}

Test(grammar_json, arrays)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", {"[1,2]", true}, {"[1, 2, 3]", true},
	       {"[1]", false}, {"[1,2,3,4]", false}, {"[]", false}, {"[1,\"2\"]", false}, {"[\n  1,\n  2\n]", true});
	SCHEMA(&t, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"}}", {"[]", true},
	       {"[1]", true}, {"[1,\"a\"]", true}, {"[1,\"a\",null,null]", true}, {"[\"a\"]", false}, {"[1,\"a\",2]", false});
	SCHEMA(&t, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"minItems\":1}", {"[1]", true}, {"[]", false}, {"[1,2]", false});
	SCHEMA(&t, "{\"type\":\"array\"}", {"[]", true}, {"[1,\"a\",{}]", true}, {"[1,]", false});
	SCHEMA(&t, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":0}", {"[]", true}, {"[1]", false});
	tongue_fini(&t);
}

Test(grammar_json, strings)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", {"\"ab\"", true}, {"\"\xc3\xa9\xf0\x9f\x98\x80\\n\"", true}, {"\"a\"", false},
	       {"\"abcd\"", false}, {"\"\\ud83d\\ude00a\"", true});
	SCHEMA(&t, "{\"type\":\"string\",\"minLength\":3}", {"\"abc\"", true}, {"\"abcdefghij\"", true}, {"\"ab\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}\\\\d+$\"}", {"\"AB12\"", true}, {"\"AB\"", false}, {"\"xAB1\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"b+\"}", {"\"abbc\"", true}, {"\"b\"", true}, {"\"ac\"", false}, {"\"\\\\b\\\"\"", true});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"^\\\"\\\\n.$\"}", {"\"\\\"\\nx\"", true}, {"\"\\\"\\n\\\\\"", true}, {"\"\"\n\"\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"^[a-z\\n]+-[0-9]*$\",\"minLength\":3,\"maxLength\":6}", {"\"a-1\"", true}, {"\"abc-12\"", true}, {"\"a\\n-\"", true},
	       {"\"a-\"", false}, {"\"abc-123\"", false}, {"\"abcdef\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"pattern\":\"b\",\"minLength\":3}", {"\"abc\"", true}, {"\"\xc3\xa9""b\xf0\x9f\x98\x80 and more\"", true}, {"\"ab\"", false},
	       {"\"aaaa\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"date-time\"}", {"\"2024-02-29T23:59:59Z\"", true}, {"\"2023-02-29T00:00:00Z\"", false},
	       {"\"2000-02-29T00:00:00.5+01:00\"", true}, {"\"1900-02-29T00:00:00Z\"", false}, {"\"2024-04-31T00:00:00Z\"", false}, {"\"2024-01-01\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\"", true}, {"\"123e4567\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"ipv4\"}", {"\"192.168.0.255\"", true}, {"\"192.168.0.256\"", false}, {"\"1.2.3\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b+c@example.org\"", true}, {"\"a@b\"", false}, {"\"@x.y\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"format\":\"of our own\"}", {"\"anything\"", true});
	tongue_fini(&t);
}

Test(grammar_json, numbers)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"type\":\"integer\"}", {"0", true}, {"-12", true}, {"1.0", false}, {"007", false}, {"9223372036854775807", true});
	SCHEMA(&t, "{\"type\":\"number\"}", {"0", true}, {"-1.25", true}, {"6.02e23", true}, {"1.", false}, {"+1", false}, {"1e400", false});
	SCHEMA(&t, "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120}", {"-5", true}, {"-6", false}, {"0", true}, {"120", true}, {"121", false},
	       {"99", true}, {"119", true}, {"200", false}, {"-0", false}, {"1000", false});
	SCHEMA(&t, "{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":12.5}", {"9", false}, {"10", true}, {"12", true}, {"13", false});
	SCHEMA(&t, "{\"type\":\"integer\",\"minimum\":1.5}", {"1", false}, {"2", true}, {"123456", true}, {"-2", false});
	SCHEMA(&t, "{\"type\":\"integer\",\"maximum\":-10}", {"-10", true}, {"-9", false}, {"-100", true}, {"10", false}, {"0", false});
	SCHEMA(&t, "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", {"0", true}, {"0.5", true}, {"1", true}, {"1.0", true}, {"1.01", false}, {"-0.1", false},
	       {"0.000", true}, {"2", false});
	SCHEMA(&t, "{\"type\":\"number\",\"exclusiveMinimum\":0.25,\"maximum\":10.5}", {"0.25", false}, {"0.250", false}, {"0.2501", true}, {"0.3", true},
	       {"10.5", true}, {"10.50", true}, {"10.51", false}, {"10", true}, {"9.99", true}, {"0", false}, {"11", false});
	SCHEMA(&t, "{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":-0.5}", {"-1.5", true}, {"-0.5", false}, {"-0.51", true}, {"-1", true},
	       {"-1.51", false}, {"0", false});
	SCHEMA(&t, "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}", {"1.25", true}, {"1.255", false}, {"3", true});
	SCHEMA(&t, "{\"type\":\"number\",\"minimum\":0,\"exclusiveMinimum\":true,\"maximum\":3}", {"0", false}, {"0.1", true}, {"3", true});
	tongue_fini(&t);
}

Test(grammar_json, literals)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"enum\":[\"red\",\"re\\\"d\",3,1.5,null,true,[1,\"x\"],{\"a\":{}}]}", {"\"red\"", true}, {"\"re\\\"d\"", true}, {"3", true}, {"1.5", true},
	       {"null", true}, {"true", true}, {"[1, \"x\"]", true}, {"{\"a\":{}}", true}, {"false", false}, {"\"blue\"", false}, {"31", false});
	SCHEMA(&t, "{\"const\":\"\xc3\xa9\\n\"}", {"\"\xc3\xa9\\n\"", true}, {"\"e\"", false});
	SCHEMA(&t, "{\"type\":\"string\",\"enum\":[1,\"a\"]}", {"\"a\"", true}, {"1", false});
	SCHEMA(&t, "{\"enum\":[1,2,3,\"ab\",\"\xc3\xa9\"],\"minimum\":1.5,\"exclusiveMaximum\":3,\"maxLength\":1}", {"2", true}, {"\"\xc3\xa9\"", true}, {"1", false},
	       {"3", false}, {"\"ab\"", false});
	SCHEMA(&t, "{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"const\":3}", {"3", true}, {"2", false});
	tongue_fini(&t);
}

Test(grammar_json, unions_and_conjunctions)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"type\":[\"string\",\"null\"]}", {"\"a\"", true}, {"null", true}, {"1", false});
	SCHEMA(&t, "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", {"12", true}, {"\"a\"", true}, {"\"ab\"", false});
	SCHEMA(&t, "{\"oneOf\":[{\"const\":1},{\"const\":2}]}", {"1", true}, {"2", true}, {"3", false});
	SCHEMA(&t, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
	       {"{\"a\":1}", true}, {"{\"b\":1}", true}, {"{}", false});
	SCHEMA(&t, "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"b\":{},\"a\":{\"maximum\":5}}}]}",
	       {"{\"a\":4}", true}, {"{\"a\":4,\"b\":0}", true}, {"{\"a\":6}", false}, {"{\"a\":2}", false}, {"{\"b\":0}", false});
	SCHEMA(&t, "{\"type\":\"string\",\"nullable\":true}", {"null", true}, {"\"\"", true});
	SCHEMA(&t, "true", {"[{}]", true}, {"null", true}, {"", false});
	tongue_fini(&t);
}

Test(grammar_json, references_and_recursion)
{
	struct tongue t;
	demo_init(&t);
	const char *tree = "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},"
			   "{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}";
	SCHEMA(&t, tree, {"{\"v\":1,\"next\":null}", true}, {"{\"v\":1,\"next\":{\"v\":2,\"next\":null}}", true}, {"{\"v\":1,\"next\":{\"v\":2}}", false});
	SCHEMA(&t, "{\"$defs\":{\"n\":{\"properties\":{\"l\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}],\"type\":[\"object\",\"null\"],\"x-order\":1}}}},"
		   "\"allOf\":[{\"$ref\":\"#/$defs/n\"}],\"description\":\"recursion with a keyword beside it\"}",
	       {"{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":null}}}}}}}}}", true}, {"{\"l\":{\"l\":1}}", false});
	SCHEMA(&t, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", true}, {"[[],[[]]]", true}, {"[1]", false});
	SCHEMA(&t, "{\"definitions\":{\"a/b\":{\"type\":\"null\"}},\"properties\":{\"x\":{\"$ref\":\"#/definitions/a~1b\",\"title\":\"t\"}}}", {"{\"x\":null}", true},
	       {"{\"x\":1}", false});
	SCHEMA(&t, "{\"$defs\":{\"s\":{\"type\":\"string\"},\"t\":{\"$ref\":\"#/$defs/s\",\"minLength\":1}},\"allOf\":[{\"$ref\":\"#/$defs/t\"},{\"$ref\":\"#/$defs/t\"},"
		   "{\"$ref\":\"#/$defs/s\"}]}", {"\"a\"", true}, {"\"\"", false});
	SCHEMA(&t, "{\"$defs\":{\"s\":{\"type\":\"string\"}},\"$ref\":\"#/$defs/s\",\"maxLength\":1}", {"\"a\"", true}, {"\"ab\"", false});
	tongue_fini(&t);
}

Test(grammar_json, what_constrains_and_is_not_supported_is_named)
{
	static const struct {
		const char *source, *word;
		enum err wanted;
	} cases[] = {
		{"{\"properties\":{\"a/b\":{\"not\":{\"minimum\":1}}}}", "#/properties/a~1b/not/minimum is not supported", ERR_UNSUPPORTED},
		{"{\"type\":\"string\",\"not\":{\"const\":\"a\"}}", "where an enum says what else there is", ERR_UNSUPPORTED},
		{"{\"type\":\"array\",\"uniqueItems\":true}", "#/uniqueItems", ERR_UNSUPPORTED},
		{"{\"if\":{\"maxLength\":3},\"then\":{}}", "#/if/maxLength is not supported", ERR_UNSUPPORTED},
		{"{\"$ref\":\"http://x\"}", "only references into the schema itself", ERR_UNSUPPORTED},
		{"{\"$ref\":\"#/$defs/x\"}", "does not exist", ERR_INVALID},
		{"{\"$ref\":\"#\"}", "# refers to itself", ERR_INVALID},
		{"{\"$defs\":{\"e\":{\"$ref\":\"#/$defs/e\"}},\"$ref\":\"#/$defs/e\"}", "refers to itself", ERR_INVALID},
		{"{\"maxLength\":3,\"$ref\":\"#/$defs/e\",\"$defs\":{\"e\":{\"anyOf\":[{\"$ref\":\"#/$defs/e\"},{\"type\":\"string\"}]}}}", "refers to itself", ERR_INVALID},
		{"{\"type\":\"integer\",\"multipleOf\":3}", "#/multipleOf", ERR_UNSUPPORTED},
		{"{\"type\":\"strin\"}", "strin is no type", ERR_FORMAT},
		{"{\"type\":\"string\",\"pattern\":\"a(?=b)\"}", "#/pattern: the group at byte 1", ERR_UNSUPPORTED},
		{"{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":65000}", "#/pattern: with this expression, lengths up to 65000", ERR_TOO_LONG},
		{"{\"type\":\"string\",\"pattern\":\"^a+$\",\"minLength\":3,\"maxLength\":2}", "no text matches", ERR_INVALID},
		{"{\"type\":\"string\",\"maxLength\":-1}", "#/maxLength is to be a count", ERR_FORMAT},
		{"{\"type\":\"string\",\"maxLength\":100000000}", "#/maxLength: at most", ERR_TOO_LONG},
		{"{\"properties\":[]}", "#/properties is to be an object", ERR_FORMAT},
		{"{\"items\":3}", "#/items is to be a schema", ERR_FORMAT},
		{"{\"enum\":[]}", "#/enum is to have a value", ERR_FORMAT},
		{"{\"enum\":[1],\"minimum\":2}", "no text matches", ERR_INVALID},
		{"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "no text matches", ERR_INVALID},
		{"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "no text matches", ERR_INVALID},
		{"{\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}", "never ends", ERR_INVALID},
		{"false", "no text matches", ERR_INVALID},
		{"{\"a\":", "no JSON", ERR_FORMAT},
		{"[]", "is to be a schema", ERR_FORMAT},
		{"{\"propertyNames\":{\"properties\":{}}}", "#/propertyNames/properties is not supported for names", ERR_UNSUPPORTED},
		{"{\"propertyNames\":{\"enum\":[1]}}", "#/propertyNames: names are strings", ERR_INVALID},
		{"{\"enum\":[\"a\"],\"pattern\":\"b\"}", "no text matches", ERR_INVALID},
		{"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":3}", "#/minProperties: at most one more", ERR_UNSUPPORTED},
		{"{\"properties\":{\"a\":{}},\"propertyNames\":{\"maxLength\":0},\"required\":[\"a\"]}", "no text matches", ERR_INVALID},
		{"{\"patternProperties\":{\"(\":{}}}", "#/patternProperties/(: the ( at byte 0", ERR_FORMAT},
		{"{\"contains\":{},\"prefixItems\":[{}]}", "#/contains is supported without prefixItems", ERR_UNSUPPORTED},
		{"{\"contains\":{},\"maxContains\":2}", "#/maxContains is not supported", ERR_UNSUPPORTED},
		{"{\"items\":{\"enum\":[1]},\"uniqueItems\":true,\"minItems\":2}", "no text matches", ERR_INVALID},
		{"{\"pattern\":\"a(?!b)\"}", "at the very front", ERR_UNSUPPORTED},
		{"{\"pattern\":\"(?!b)a\"}", "begins with ^", ERR_UNSUPPORTED},
		{"{\"minProperties\":2}", "#/minProperties: only 1 is supported", ERR_UNSUPPORTED},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++)
		refused(GRAMMAR_JSON_SCHEMA, cases[i].source, cases[i].wanted, cases[i].word);
}

Test(grammar_json, nesting_is_bounded_and_always_ends)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}");
	struct grammar_state *s;
	cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
	u32 levels = 0;
	while (grammar_state_advance(s, t.byte_token['[']) == ERR_OK)
		levels++;
	cr_assert_geq(levels, GRAMMAR_JSON_LEVELS_MAX);
	cr_assert_leq(levels, JSON_LEVELS_MAX + 2);
	while (levels-- > 0)
		cr_assert_eq(grammar_state_advance(s, t.byte_token[']']), ERR_OK);
	cr_assert(grammar_state_must_end(s));
	grammar_state_destroy(&s);
	grammar_unref(&g);
	tongue_fini(&t);
}

Test(grammar_json, compact_has_no_white_space)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g;
	struct err_msg em;
	cr_assert_eq(grammar_compile(&g, GRAMMAR_JSON_OBJECT, GRAMMAR_COMPACT, "", 0, &em), ERR_OK);
	cr_assert(takes_text(&t, g, "{\"a\":[1,2]}", 11));
	cr_assert(!takes_text(&t, g, "{\"a\": 1}", 8));
	cr_assert(!takes_text(&t, g, "{ }", 3));
	grammar_unref(&g);
	tongue_fini(&t);
}

Test(grammar_json, ebnf)
{
	struct tongue t;
	demo_init(&t);
	const char *sums = "# sums\nroot ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
			   "term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]{1,3} ws\nws ::= [ \\t\\n]*\n";
	CHECK(&t, GRAMMAR_EBNF, sums, {"a +1 = 2\n", true}, {"(a*(b-3))=x\n(1)=2\n", true}, {"a+=2\n", false}, {"a=1234\n", false}, {"(a=1\n", false});
	CHECK(&t, GRAMMAR_EBNF, "root ::= \"a\"\n  | other # words\nother ::= [^a-z\\n]+ | .\"\\x41\\u00e9\"", {"a", true}, {"AB", true}, {"b", false},
	      {"zA\xc3\xa9", true});
	CHECK(&t, GRAMMAR_EBNF, "root ::= \"(\" root \")\" | \"\"", {"", true}, {"(())", true}, {"(()", false});
	refused(GRAMMAR_EBNF, "a ::= \"x\"", ERR_INVALID, "rule root is missing");
	refused(GRAMMAR_EBNF, "root ::= b", ERR_INVALID, "rule b is missing");
	refused(GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", ERR_UNSUPPORTED, "root calls itself before");
	refused(GRAMMAR_EBNF, "root ::= e root\ne ::= \"\" | \"x\"", ERR_UNSUPPORTED, "left recursion");
	refused(GRAMMAR_EBNF, "root ::= \"a\" root", ERR_INVALID, "never ends");
	refused(GRAMMAR_EBNF, "root ::= \"a", ERR_FORMAT, "line 1: the literal is not closed");
	refused(GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", ERR_FORMAT, "line 2: the rule root is there already");
	refused(GRAMMAR_EBNF, "root = \"a\"", ERR_FORMAT, "a rule was expected");
	refused(GRAMMAR_EBNF, "root ::= \"a\"{9,2}", ERR_FORMAT, "{least,most}");
	tongue_fini(&t);
}

Test(grammar_json, parts)
{
	struct tongue t;
	demo_init(&t);
	const char *calls = "[{\"repeat\":[\"<call>\\n\",{\"json_schema\":{\"$defs\":{\"a\":{\"type\":\"integer\"}},\"properties\":{\"n\":{\"$ref\":\"#/$defs/a\"}},"
			    "\"required\":[\"n\"]}},\"\\n</call>\"]},{\"any\":[[\"!\"],[{\"regex\":\"[0-9]+\"}]]}]";
	CHECK(&t, GRAMMAR_PARTS, calls, {"<call>\n{\"n\":1}\n</call>!", true}, {"<call>\n{\"n\":1}\n</call><call>\n{\"n\": 2}\n</call>42", true},
	      {"!", false}, {"<call>\n{}\n</call>!", false});
	refused(GRAMMAR_PARTS, "[1]", ERR_FORMAT, "#/0 is to be a string or an object");
	refused(GRAMMAR_PARTS, "[{\"json_schema\":{\"not\":{\"minimum\":1}}}]", ERR_UNSUPPORTED, "#/0/json_schema/not");
	refused(GRAMMAR_PARTS, "[{\"repeat\":3}]", ERR_FORMAT, "#/0/repeat is to be an array of parts");
	refused(GRAMMAR_PARTS, "{}", ERR_FORMAT, "array of parts");
	tongue_fini(&t);
}

/* At every place of the text each token is in the mask if, and only if, a copy of the state takes it. */
static void check_masks(struct tongue *t, struct grammar *g, const char *text)
{
	struct grammar_state *s, *copy;
	u32 size = tokenizer_vocab_size(t->tokenizer);
	u32 *bits = calloc(grammar_mask_words(size), sizeof(*bits));
	cr_assert_eq(grammar_state_create(&s, g, t->vocab), ERR_OK);
	for (size_t i = 0; i <= strlen(text); i++) {
		cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
		for (u32 id = 0; id < size; id++) {
			cr_assert_eq(grammar_state_copy(&copy, s), ERR_OK);
			bool taken = grammar_state_advance(copy, id) == ERR_OK;
			cr_assert_eq((bits[id / 32] >> id % 32 & 1) != 0, taken, "token %u (%s) behind %.*s", id, tokenizer_token_text(t->tokenizer, id), (int)i, text);
			grammar_state_destroy(&copy);
		}
		cr_assert(text[i] == '\0' || grammar_state_advance(s, t->byte_token[(u8)text[i]]) == ERR_OK, "%.*s", (int)i + 1, text);
	}
	grammar_state_destroy(&s);
	free(bits);
}

Test(grammar_json, masks_are_what_is_taken_also_when_grammars_share_what_they_learn)
{
	static const char *const cases[][2] = {
		{"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\"]}", "{\"a\": \"x\\u00e9 y\", \"b\": 12}"},
		{"{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"number\"],\"maxLength\":30}}", "[\n  \"it was\",\n  -1.5e3\n]"},
		{"{\"type\":\"string\",\"maxLength\":22}", "\"the sea was calm and c\""},
		{"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":19}", "[1,2,3,4,5,6,7,8,9,0,1,2,3,4]"},
		{"{\"additionalProperties\":{\"type\":\"integer\"}}", "{\"a b\":1,\n\t\"c\": 2}"},
		{"{\"properties\":{\"name\":{\"pattern\":\"^[a-z ]{2,40}$\"}},\"additionalProperties\":true}", "{\"name\":\"the sea\",\"n\":[{}]}"},
	};
	struct tongue t;
	demo_init(&t);
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, cases[i][0]);
		check_masks(&t, g, cases[i][1]);
		grammar_unref(&g);
	}
	tongue_fini(&t);
}

Test(grammar_json, special_tokens_come_only_where_a_part_names_them)
{
	struct tongue t;
	char path[4096];
	if (!vectors_path(path, sizeof(path), "tokenizers/llama3/tokenizer.json"))
		cr_skip_test("no shared data");
	*strrchr(path, '/') = '\0';
	tongue_init(&t, path);
	u32 python;
	cr_assert(tokenizer_find(t.tokenizer, "<|python_tag|>", &python) && tokenizer_is_special(t.tokenizer, python));
	struct grammar *g = compiled(GRAMMAR_PARTS, "[\"<|python_tag|>\",{\"json_schema\":{\"type\":\"string\"}}]");
	u32 ids[] = {python, t.byte_token['"'], t.byte_token['"']};
	cr_assert(takes_tokens(&t, g, ids, 3));
	cr_assert(takes_text(&t, g, "<|python_tag|>\"x\"", 17));
	ids[0] = t.byte_token['"'];
	ids[1] = python;
	grammar_unref(&g);
	g = compiled(GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\"}");
	cr_assert(!takes_tokens(&t, g, ids, 3));
	grammar_unref(&g);
	tongue_fini(&t);
}

Test(grammar_json, what_can_be_read_in_very_many_ways_is_read_in_some)
{
	struct tongue t;
	demo_init(&t);
	CHECK(&t, GRAMMAR_EBNF, "root ::= a | b\na ::= \"x\" b \"y\" | \"x\" a \"z\" | \".\"\nb ::= \"x\" a \"z\" | \"x\" b \"y\" | \".\"", {"xxx.yyy", true},
	      {"xxx.yzy", true}, {"xxx.yz", false});
	struct grammar *g = compiled(GRAMMAR_EBNF, "root ::= a | b\na ::= \"x\" b \"y\" | \"x\" a \"z\" | \".\"\nb ::= \"x\" a \"z\" | \"x\" b \"y\" | \".\"");
	struct grammar_state *s;
	cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
	for (int i = 0; i < 60; i++)
		cr_assert_eq(grammar_state_advance(s, t.byte_token['x']), ERR_OK, "%d", i);
	cr_assert_eq(grammar_state_advance(s, t.byte_token['.']), ERR_OK);
	for (int i = 0; i < 60; i++)
		cr_assert(grammar_state_advance(s, t.byte_token['y']) == ERR_OK || grammar_state_advance(s, t.byte_token['z']) == ERR_OK, "%d", i);
	cr_assert(grammar_state_must_end(s));
	grammar_state_destroy(&s);
	grammar_unref(&g);
	tongue_fini(&t);
}

Test(grammar_json, states_keep_their_places_when_the_cache_forgets)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g = compiled(GRAMMAR_JSON_OBJECT, "");
	struct grammar_state *s[3];
	static const char *const texts[] = {"{\"a\": [1, {\"b", "{", "{\"x\": tr"};
	size_t words = grammar_mask_words(tokenizer_vocab_size(t.tokenizer));
	u32 *before[3], *after = calloc(words, sizeof(*after));
	for (u32 i = 0; i < 3; i++) {
		cr_assert_eq(grammar_state_create(&s[i], g, t.vocab), ERR_OK);
		for (const char *p = texts[i]; *p != '\0'; p++)
			cr_assert_eq(grammar_state_advance(s[i], t.byte_token[(u8)*p]), ERR_OK);
		before[i] = calloc(words, sizeof(u32));
		cr_assert_eq(grammar_state_mask(s[i], before[i]), ERR_OK);
	}
	u32 places = s[0]->cache->place_count;
	cr_assert_eq(cache_flush(s[0]->cache), ERR_OK);
	cr_assert_lt(s[0]->cache->place_count, places);
	for (u32 i = 0; i < 3; i++) {
		cr_assert_eq(grammar_state_mask(s[i], after), ERR_OK);
		cr_assert_eq(memcmp(before[i], after, words * sizeof(u32)), 0);
		free(before[i]);
	}
	for (const char *p = "\":0}]}"; *p != '\0'; p++)
		cr_assert_eq(grammar_state_advance(s[0], t.byte_token[(u8)*p]), ERR_OK);
	cr_assert(grammar_state_must_end(s[0]));
	for (u32 i = 0; i < 3; i++)
		grammar_state_destroy(&s[i]);
	free(after);
	grammar_unref(&g);
	tongue_fini(&t);
}

Test(grammar_json, all_grammars_together_learn_within_a_bound)
{
	struct tongue t;
	demo_init(&t);
	u32 *bits = calloc(grammar_mask_words(tokenizer_vocab_size(t.tokenizer)), sizeof(*bits));
	struct grammar *g[3];
	struct grammar_state *s[3];
	static const char *const sources[] = {"{\"type\":\"string\",\"maxLength\":60}", "{\"type\":\"object\"}", "{\"type\":\"array\"}"};
	static const char *const texts[] = {"\"the sea was calm\"", "{\"a\": [1, 2, {\"b\": null}]}", "[[[[1.5, \"x\"]]]]"};
	size_t empty = grammar_vocab_bytes(t.vocab), largest = 0;
	t.vocab->learnt_bytes_max = 100 * 1000;
	for (u32 i = 0; i < 3; i++) {
		g[i] = compiled(GRAMMAR_JSON_SCHEMA, sources[i]);
		cr_assert_eq(grammar_state_create(&s[i], g[i], t.vocab), ERR_OK);
		for (const char *p = texts[i]; *p != '\0'; p++) {
			cr_assert_eq(grammar_state_mask(s[i], bits), ERR_OK);
			cr_assert_eq(grammar_state_advance(s[i], t.byte_token[(u8)*p]), ERR_OK, "%s", p);
			largest = t.vocab->learnt_bytes > largest ? t.vocab->learnt_bytes : largest;
		}
	}
	for (u32 i = 0; i < 3; i++)
		cr_assert(grammar_state_must_end(s[i]));
	cr_assert_gt(largest, 10 * 1000);
	cr_assert_leq(largest, 100 * 1000);
	for (u32 i = 0; i < 3; i++) {
		grammar_state_destroy(&s[i]);
		grammar_unref(&g[i]);
	}
	cr_assert_eq(t.vocab->learnt_bytes, 0);
	cr_assert_geq(grammar_vocab_bytes(t.vocab), empty);
	free(bits);
	tongue_fini(&t);
}

/* `before`, `count` numbers from `first` on by `step`, and what closes a list and its object. */
static void put_numbers(struct buf *out, const char *before, i64 first, i64 step, u32 count)
{
	char number[32];
	buf_append_str(out, before);
	for (u32 i = 0; i < count; i++) {
		snprintf(number, sizeof(number), "%s%lld", i > 0 ? "," : "", (long long)(first + step * i));
		buf_append_str(out, number);
	}
	buf_append_str(out, "]}");
}

Test(grammar_json, large_enums_compile_in_linear_time_and_what_multiplies_is_refused)
{
	struct buf source = {0};
	struct err_msg em;
	struct grammar *g = NULL;
	put_numbers(&source, "{\"enum\":[", 10000, 1, 18000);
	cr_assert_eq(grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, source.data, source.bytes, &em), ERR_OK, "%s", em.text);
	grammar_unref(&g);
	source.bytes = 0;
	put_numbers(&source, "{\"allOf\":[{\"enum\":[", 10000, 1, 300);
	put_numbers(&source, ",{\"enum\":[", 10299, -1, 300);
	buf_append_str(&source, "]}");
	cr_assert_eq(grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, source.data, source.bytes, &em), ERR_OK, "%s", em.text);
	grammar_unref(&g);
	source.bytes = 0;
	put_numbers(&source, "{\"allOf\":[{\"enum\":[", 10000, 1, 6000);
	put_numbers(&source, ",{\"enum\":[", 15999, -1, 6000);
	buf_append_str(&source, "]}");
	cr_assert_eq(grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, source.data, source.bytes, &em), ERR_TOO_LONG);
	cr_assert(strstr(em.text, "enums have too many values"), "%s", em.text);
	buf_fini(&source);
}

/* 16 KiB of schema that would have been read for seconds: every branch looks through all keywords again. */
Test(grammar_json, keywords_that_branches_multiply_are_counted)
{
	struct buf source = {0};
	struct err_msg em;
	struct grammar *g = NULL;
	buf_append_char(&source, '{');
	for (u32 i = 0; i < 1000; i++)
		buf_printf(&source, "\"x%u\":1,", i);
	buf_append_str(&source, "\"anyOf\":[{}");
	for (u32 i = 0; i < 2000; i++)
		buf_append_str(&source, ",{}");
	buf_append_str(&source, "]}");
	cr_assert_eq(grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, source.data, source.bytes, &em), ERR_TOO_LONG);
	cr_assert(strstr(em.text, "multiply to more than 600000 keywords"), "%s", em.text);
	buf_fini(&source);
}

/* The first elements of several layers go on beside each other. */
Test(grammar_json, first_elements_of_conjunctions)
{
	struct tongue t;
	demo_init(&t);
	SCHEMA(&t, "{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"},{\"minimum\":3},{}]},{\"type\":\"array\",\"prefixItems\":[{\"maximum\":2}],"
		   "\"items\":{\"type\":\"number\",\"maximum\":9}}]}",
	       {"[]", true}, {"[2]", true}, {"[3]", false}, {"[2, 2]", false}, {"[2, 4, 9, 9]", true}, {"[2, 10]", false}, {"[2, 4, 9, 10]", false});
	tongue_fini(&t);
}

/* Strings of bounded length share how they go on: 60 of them were too large a grammar. */
Test(grammar_json, lengths_of_many_strings_are_counted_once)
{
	struct tongue t;
	demo_init(&t);
	struct buf source = {0};
	buf_append_str(&source, "{\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3},\"b\":{\"type\":\"string\",\"minLength\":2},"
				"\"c\":{\"pattern\":\"^x*$\",\"maxLength\":2000},\"d\":{\"pattern\":\"^x*$\",\"maxLength\":2000}");
	for (u32 i = 0; i < 60; i++)
		buf_printf(&source, ",\"p%u\":{\"type\":\"string\",\"maxLength\":%u}", i, i % 2 ? 2000 : 1941 + i);
	buf_append_str(&source, ",\"z\":{\"maxLength\":1}}}");
	SCHEMA(&t, buf_cstr(&source), {"{\"a\":\"\xc3\xa9\\n\",\"b\":\"long enough\",\"z\":\"\"}", true}, {"{\"a\":\"1234\"}", false}, {"{\"a\":\"1\"}", false},
	       {"{\"b\":\"1\"}", false}, {"{\"c\":\"xxx\",\"d\":\"x\",\"p3\":\"\"}", true}, {"{\"d\":\"xy\"}", false}, {"{\"z\":\"12\"}", false}, {"{\"z\":\"\\u00e9\"}", true});
	struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, buf_cstr(&source));
	cr_assert_lt(g->node_count, 20000);
	grammar_unref(&g);
	/* Near the end of the longest and of a shorter one, masks are what steps take (takes_text). */
	for (u32 count = 1940; count <= 2001; count += count < 1998 ? 29 : 1) {
		struct buf text = {0};
		buf_append_str(&text, "{\"p0\":\"x\",\"p1\":\"");
		for (u32 i = 0; i < count; i++)
			buf_append_char(&text, "the sea "[i % 8]);
		buf_append_str(&text, "\"}");
		g = compiled(GRAMMAR_JSON_SCHEMA, buf_cstr(&source));
		cr_assert_eq(takes_text(&t, g, text.data, text.bytes), count <= 2000, "%u", count);
		grammar_unref(&g);
		buf_fini(&text);
	}
	buf_fini(&source);
	tongue_fini(&t);
}

/* What is not known yet takes effort that a state may owe; its tokens pay for it. */
Test(grammar_json, masks_that_take_too_long_are_refused)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g = compiled(GRAMMAR_REGEX, "x*(y.{30}|[a-z]{9})*z");
	struct grammar_state *s, *other;
	u32 *bits = calloc(grammar_mask_words(tokenizer_vocab_size(t.tokenizer)), sizeof(*bits));
	cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
	cr_assert_eq(grammar_state_create(&other, g, t.vocab), ERR_OK);
	s->debt = 402 * 1000 * 1000;
	cr_assert_eq(grammar_state_mask(s, bits), ERR_TIMEOUT);
	cr_assert_eq(grammar_state_mask(other, bits), ERR_OK);
	cr_assert_gt(other->debt, 1000);
	cr_assert_eq(grammar_state_mask(s, bits), ERR_OK, "what is known takes nothing");
	cr_assert_eq(grammar_state_advance(s, t.byte_token['y']), ERR_OK, "steps are never refused");
	cr_assert_lt(s->debt, 398 * 1000 * 1000);
	cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
	s->debt = UINT32_MAX;
	cr_assert_eq(grammar_state_replay(s, &t.byte_token['x'], 1, NULL), ERR_OK);
	cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
	grammar_state_destroy(&s);
	grammar_state_destroy(&other);
	grammar_unref(&g);
	free(bits);
	tongue_fini(&t);
}
