/* Tool calls in the text of answers: every text whole, byte by byte, and in pieces of every size in between
 * says the same. */
#include "engine_fixture.h"

#include "proc_gateway/tool_calls.h"

struct expected_call {
	const char *name, *arguments;
};

struct tool_case {
	const char *what;
	enum tool_format format;
	const char *text, *content;
	struct expected_call calls[4];
	bool one;
};

#define CALL  "{\"name\": \"look_up\", \"arguments\": {\"q\": \"a}\\\"{\"}}"
#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"look_up\"}}, {\"name\": \"add\"}]"

/* Tools of calls in tags, whose arguments have types. */
#define TYPED                                                                                                          \
	"[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {" \
	"\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, \"b\": {\"type\": [\"boolean\", \"null\"]}, "           \
	"\"o\": {\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"array\"}]}, \"e\": {\"anyOf\": [{\"type\": \"integer\"}, "  \
	"{\"type\": \"string\"}]}, \"r\": {\"$ref\": \"#/$defs/r\"}}}}}]"
#define TAGGED(parameters) "<tool_call>\n<function=f>\n" parameters "</function>\n</tool_call>"
#define PARAMETER(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"

static const struct tool_case cases[] = {
	{"no call", TOOL_FORMAT_HERMES, "Just <text> and a < b.\n", "Just <text> and a < b.\n", {{0}}, false},
	{"one call",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>\n" CALL "\n</tool_call>",
	 "",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}},
	 false},
	{"content, two calls, content",
	 TOOL_FORMAT_HERMES,
	 "Let me see.\n\n<tool_call>" CALL
	 "</tool_call>\n<tool_call>{\"arguments\": {\"x\": [1, {\"y\": null}]}, "
	 "\"name\": \"add\"}</tool_call>\nSo.",
	 "Let me see.So.",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}, {"add", "{\"x\": [1, {\"y\": null}]}"}},
	 false},
	{"only the first",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>" CALL "</tool_call><tool_call>" CALL "</tool_call>",
	 "",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}},
	 true},
	{"a call without its end mark",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>" CALL,
	 "",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}},
	 false},
	{"arguments as a string of JSON",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
	 "",
	 {{"add", "{\"x\": 1}"}},
	 false},
	{"no arguments, and null",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"name\": "
	 "\"add\"}</tool_call><tool_call>{\"name\":\"add\",\"arguments\":null}</tool_call>",
	 "",
	 {{"add", "{}"}, {"add", "{}"}},
	 false},
	{"names and members with escapes, others in between",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"id\": 7.5e1, \"name\": \"\\u0061dd\", \"deep\": {\"name\": \"no\", \"arguments\": "
	 "{}}, "
	 "\"arguments\": { }, \"k\": true}</tool_call>",
	 "",
	 {{"add", "{ }"}},
	 false},
	{"no JSON behind the mark: content, and the next one counts",
	 TOOL_FORMAT_HERMES,
	 "a <tool_call>print(1) <tool_call>" CALL "</tool_call>",
	 "a <tool_call>print(1)",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}},
	 false},
	{"JSON that is broken before anything was told",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"name\" \"add\"}</tool_call>",
	 "<tool_call>{\"name\" \"add\"}</tool_call>",
	 {{0}},
	 false},
	{"JSON without a name",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"arguments\": {}}</tool_call>.",
	 "<tool_call>{\"arguments\": {}}</tool_call>.",
	 {{0}},
	 false},
	{"a name that is no string",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"name\": 5, \"arguments\": {}}",
	 "<tool_call>{\"name\": 5, \"arguments\": {}}",
	 {{0}},
	 false},
	{"cut off in the arguments",
	 TOOL_FORMAT_HERMES,
	 "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": [1, ",
	 "",
	 {{"add", "{\"x\": [1, "}},
	 false},
	{"cut off before them",
	 TOOL_FORMAT_HERMES,
	 "Hm <tool_call>{\"name\": \"ad",
	 "Hm <tool_call>{\"name\": \"ad",
	 {{0}},
	 false},
	{"cut off in a mark", TOOL_FORMAT_HERMES, "Hm \n<tool_c", "Hm \n<tool_c", {{0}}, false},
	{"Llama 3",
	 TOOL_FORMAT_LLAMA3,
	 "{\"name\": \"look_up\", \"parameters\": {\"q\": \"x\"}}",
	 "",
	 {{"look_up", "{\"q\": \"x\"}"}},
	 false},
	{"Llama 3 with its tag, several",
	 TOOL_FORMAT_LLAMA3,
	 "\n<|python_tag|>{\"name\": \"look_up\", \"parameters\": {}}; {\"type\": \"function\", \"name\": "
	 "\"add\", "
	 "\"parameters\": {\"a\": 1}}",
	 "",
	 {{"look_up", "{}"}, {"add", "{\"a\": 1}"}},
	 false},
	{"Llama 3, JSON that is an answer",
	 TOOL_FORMAT_LLAMA3,
	 "{\"name\": \"Ada\", \"parameters\": {\"born\": 1815}} is it.",
	 "{\"name\": \"Ada\", \"parameters\": {\"born\": 1815}} is it.",
	 {{0}},
	 false},
	{"Llama 3, text with a call inside stays text",
	 TOOL_FORMAT_LLAMA3,
	 "I'd call {\"name\": \"add\", \"parameters\": {}}",
	 "I'd call {\"name\": \"add\", \"parameters\": {}}",
	 {{0}},
	 false},
	{"Llama 3, code behind the tag",
	 TOOL_FORMAT_LLAMA3,
	 "<|python_tag|>look_up.call(q=1)",
	 "<|python_tag|>look_up.call(q=1)",
	 {{0}},
	 false},
	{"Mistral, a list",
	 TOOL_FORMAT_MISTRAL,
	 "[TOOL_CALLS] [" CALL ", {\"name\": \"add\", \"arguments\": {\"x\": 1}}]",
	 "",
	 {{"look_up", "{\"q\": \"a}\\\"{\"}"}, {"add", "{\"x\": 1}"}},
	 false},
	{"Mistral, names without quotes",
	 TOOL_FORMAT_MISTRAL,
	 "Well.[TOOL_CALLS]look_up{\"name\": \"n\", \"arguments\": "
	 "{}}[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{}",
	 "Well.",
	 {{"look_up", "{\"name\": \"n\", \"arguments\": {}}"}, {"add", "{}"}},
	 false},
	{"tags, text that means something in JSON",
	 TOOL_FORMAT_QWEN3_CODER,
	 "Hm.\n\n" TAGGED(PARAMETER("s", "a \"b\"\n\\ </param {\n") PARAMETER("other", "17")) "\nSo.",
	 "Hm.So.",
	 {{"f", "{\"s\": \"a \\\"b\\\"\\n\\\\ </param {\\n\", \"other\": \"17\"}"}},
	 false},
	{"tags, by the schema",
	 TOOL_FORMAT_QWEN3_CODER,
	 TAGGED(PARAMETER("n", "42") PARAMETER("b", "True") PARAMETER("o", "{\"k\": [1,\n2]}") PARAMETER("e", "7") PARAMETER("r", "[]")),
	 "",
	 {{"f", "{\"n\": 42, \"b\": true, \"o\": {\"k\": [1,\n2]}, \"e\": \"7\", \"r\": []}"}},
	 false},
	{"tags, what is no JSON is a string",
	 TOOL_FORMAT_QWEN3_CODER,
	 TAGGED(PARAMETER("n", "many") PARAMETER("b", "None") PARAMETER("o", "") PARAMETER("r", "{1")),
	 "",
	 {{"f", "{\"n\": \"many\", \"b\": null, \"o\": \"\", \"r\": \"{1\"}"}},
	 false},
	{"tags, several, none of an argument, and as JSON",
	 TOOL_FORMAT_QWEN3_CODER,
	 TAGGED("") "\n" TAGGED(PARAMETER("s", "<b>x</b>")) "<tool_call>" CALL "</tool_call>",
	 "",
	 {{"f", "{}"}, {"f", "{\"s\": \"<b>x</b>\"}"}, {"look_up", "{\"q\": \"a}\\\"{\"}"}},
	 false},
	{"tags, on one line, of no tool, some of them forgotten",
	 TOOL_FORMAT_QWEN3_CODER,
	 "<tool_call><function= g ><parameter=s>a</parameter> and <parameter= n >b</function></tool_call>"
	 "<tool_call><function=f><parameter=n>1</parameter></tool_call>",
	 "",
	 {{"g", "{\"s\": \"a\", \"n\": \"b\"}"}, {"f", "{\"n\": 1}"}},
	 false},
	{"tags, the first alone",
	 TOOL_FORMAT_QWEN3_CODER,
	 TAGGED(PARAMETER("n", "1")) TAGGED(PARAMETER("n", "2")),
	 "",
	 {{"f", "{\"n\": 1}"}},
	 true},
	{"tags, cut off in a text",
	 TOOL_FORMAT_QWEN3_CODER,
	 "<tool_call>\n<function=f>\n<parameter=s>\nso far\n</par",
	 "",
	 {{"f", "{\"s\": \"so far\\n</par"}},
	 false},
	{"tags, cut off in a number, and behind an argument",
	 TOOL_FORMAT_QWEN3_CODER,
	 "<tool_call>\n<function=f>\n<parameter=n>\n12",
	 "",
	 {{"f", "{\"n\": 12"}},
	 false},
	{"tags, cut off behind an argument",
	 TOOL_FORMAT_QWEN3_CODER,
	 "<tool_call>\n<function=f>\n" PARAMETER("n", "12") "<para",
	 "",
	 {{"f", "{\"n\": 12}"}},
	 false},
	{"tags, something else behind the mark",
	 TOOL_FORMAT_QWEN3_CODER,
	 "<tool_call>\n<functions>x</functions></tool_call> <tool_call><function=></function>",
	 "<tool_call>\n<functions>x</functions></tool_call> <tool_call><function=></function>",
	 {{0}},
	 false},
	{"Mistral, a list of something else",
	 TOOL_FORMAT_MISTRAL,
	 "[TOOL_CALLS] [1, 2]",
	 "[TOOL_CALLS] [1, 2]",
	 {{0}},
	 false},
};

static struct tool_calls reader_of(const struct tool_case *c, const struct json_doc *tools)
{
	return (struct tool_calls){
		.format = c->format, .tools = json_root(tools), .one = c->one, .id_seed = 99};
}

static void check_calls(const struct tool_case *c, const struct tool_calls *t, const char *content,
			size_t piece)
{
	u32 count = 0;
	while (count < COUNT_OF(c->calls) && c->calls[count].name)
		count++;
	cr_assert_str_eq(content, c->content, "%s, pieces of %zu: content '%s'", c->what, piece, content);
	cr_assert_eq(t->count, count, "%s, pieces of %zu: %u calls", c->what, piece, t->count);
	for (u32 i = 0; i < count; i++) {
		struct tool_call *call = &t->calls[i];
		cr_assert_str_eq(buf_cstr(&call->name), c->calls[i].name, "%s", c->what);
		cr_assert_str_eq(buf_cstr(&call->arguments), c->calls[i].arguments, "%s, pieces of %zu: '%s'",
				 c->what, piece, buf_cstr(&call->arguments));
		cr_assert_eq(strlen(call->id), c->format == TOOL_FORMAT_MISTRAL ? 9 : 29);
		cr_assert(i == 0 || strcmp(call->id, t->calls[0].id) != 0, "ids differ");
	}
}

Test(tool_calls, texts_say_the_same_in_pieces_of_any_size)
{
	struct json_doc *tools = NULL;
	struct json_doc *plain = NULL, *typed = NULL;
	cr_assert_eq(json_parse(&plain, TOOLS, sizeof(TOOLS) - 1, NULL), ERR_OK);
	cr_assert_eq(json_parse(&typed, TYPED, sizeof(TYPED) - 1, NULL), ERR_OK);
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		const struct tool_case *c = &cases[i];
		tools = c->format == TOOL_FORMAT_QWEN3_CODER ? typed : plain;
		size_t bytes = strlen(c->text);
		for (size_t piece = 1; piece <= bytes; piece++) {
			struct tool_calls t = reader_of(c, tools);
			struct buf content = {0};
			for (size_t at = 0; at < bytes; at += piece)
				tool_calls_feed(&t, c->text + at, piece < bytes - at ? piece : bytes - at,
						&content);
			tool_calls_end(&t, &content);
			cr_assert(tool_calls_ok(&t));
			check_calls(c, &t, buf_cstr(&content), piece);
			buf_fini(&content);
			tool_calls_fini(&t);
		}
	}
	json_free(&plain);
	json_free(&typed);
}

/* What a client puts together from deltas. */
struct client_call {
	char name[64], arguments[256];
	u32 names;
};

static void take_delta(struct client_call *calls, const char *json, size_t bytes)
{
	struct json_doc *doc = NULL;
	cr_assert_eq(json_parse(&doc, json, bytes, NULL), ERR_OK, "%.*s", (int)bytes, json);
	for (struct json_iter it = json_iterate(json_root(doc)); json_next(&it);) {
		u64 index = 99;
		json_val function = json_get(it.value, "function");
		cr_assert(json_uint(json_get(it.value, "index"), &index) && index < 4);
		struct client_call *call = &calls[index];
		if (json_present(json_get(it.value, "id"))) {
			cr_assert(json_string_equals(json_get(it.value, "type"), "function"));
			snprintf(call->name, sizeof(call->name), "%s",
				 json_cstr(json_get(function, "name"), "?"));
			call->names++;
		}
		strncat(call->arguments, json_cstr(json_get(function, "arguments"), "?"),
			sizeof(call->arguments) - strlen(call->arguments) - 1);
	}
	json_free(&doc);
}

/* `calls`: how many it has. Returns the JSON of all. */
static struct buf add_up(const struct tool_case *c, u32 count)
{
	struct tool_calls t = reader_of(c, NULL);
	struct client_call calls[4] = {0};
	struct buf content = {0}, out = {0};
	u32 deltas = 0;
	for (const char *at = c->text; *at; at++) {
		tool_calls_feed(&t, at, 1, &content);
		if (!tool_calls_due(&t))
			continue;
		buf_clear(&out);
		tool_calls_write_delta(&t, &out);
		take_delta(calls, out.data, out.bytes);
		cr_assert_not(tool_calls_due(&t));
		deltas++;
	}
	tool_calls_end(&t, &content);
	cr_assert_gt(deltas, strlen(c->calls[0].arguments) / 2, "arguments come as the model writes them");
	for (u32 i = 0; i < count; i++) {
		cr_assert_eq(calls[i].names, 1);
		cr_assert_str_eq(calls[i].name, c->calls[i].name);
		cr_assert_str_eq(calls[i].arguments, c->calls[i].arguments);
	}
	buf_clear(&out);
	tool_calls_write(&t, &out);
	buf_fini(&content);
	tool_calls_fini(&t);
	return out;
}

Test(tool_calls, deltas_add_up_to_the_calls_and_come_before_these_end)
{
	static const struct tool_case tags = {
		"a text in tags", TOOL_FORMAT_QWEN3_CODER, TAGGED(PARAMETER("s", "a \"b\" and more of it, long enough to be told in pieces")), "",
		{{"f", "{\"s\": \"a \\\"b\\\" and more of it, long enough to be told in pieces\"}"}}, false};
	struct buf out = add_up(&cases[2], 2);
	cr_assert_not_null(
		strstr(buf_cstr(&out), "\"arguments\":\"{\\\"x\\\": [1, {\\\"y\\\": null}]}\"}}]"));
	buf_fini(&out);
	out = add_up(&tags, 1);
	buf_fini(&out);
}

static enum tool_format format_of(const char *source)
{
	struct chat_template *t = NULL;
	struct err_msg em = {.text = ""};
	cr_assert_eq(chat_template_parse(&t, source, strlen(source), &em), ERR_OK, "%s", em.text);
	enum tool_format format = tool_format_of_template(t);
	chat_template_free(&t);
	return format;
}

#define TURNS	  "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
#define END_TURNS "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"

Test(tool_calls, the_form_is_what_the_template_writes)
{
	cr_expect_eq(tool_format_of_template(NULL), TOOL_FORMAT_NONE);
	cr_expect_eq(format_of("{% for m in messages %}{{ m.content }}{% endfor %}"), TOOL_FORMAT_NONE);
	cr_expect_eq(format_of("{{ raise_exception('no tools') }}"), TOOL_FORMAT_NONE);
	cr_expect_eq(format_of("{{ tools | tojson }}" TURNS
			       "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
			       "{{ c.function.arguments | tojson }}}\n</tool_call>" END_TURNS),
		     TOOL_FORMAT_HERMES);
	cr_expect_eq(format_of("{{ tools | tojson }}" TURNS
			       "{\"name\": \"{{ c.function.name }}\", \"parameters\": "
			       "{{ c.function.arguments | tojson }}}" END_TURNS),
		     TOOL_FORMAT_LLAMA3);
	cr_expect_eq(format_of(TURNS "[TOOL_CALLS] [{{ c.function | tojson }}]" END_TURNS),
		     TOOL_FORMAT_MISTRAL);
	cr_expect_eq(format_of(TURNS "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | "
				     "tojson }}" END_TURNS),
		     TOOL_FORMAT_MISTRAL_ARGS);
	cr_expect_eq(format_of(TURNS "[TOOL_CALLS]{{ c.function.name }}{{ c.function.arguments | tojson }}" END_TURNS), TOOL_FORMAT_MISTRAL);
	cr_expect_eq(format_of(TURNS "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}"
			       "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>" END_TURNS),
		     TOOL_FORMAT_QWEN3_CODER);
	cr_expect_eq(format_of(TURNS "<tool_call>\n<function={{ c.function.name }}>" END_TURNS),
		     TOOL_FORMAT_NONE, "no arguments");
	cr_expect_eq(format_of("{{ tools | tojson }}{{ messages[0].content }}"), TOOL_FORMAT_NONE,
		     "the list of tools is no call");
}

/* ---------------------------------------------------------------- through the gateway */

static const u32 ids[] = {100, 101, 102};

#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void ask(struct engine_fixture *f, struct peer *p, const char *fields)
{
	char body[1024];
	snprintf(body, sizeof(body), "{" CHAT ", \"tools\": " TOOLS "%s}", fields);
	peer_post(p, "/v1/chat/completions", body);
	cr_assert(engine_wait(f, p, f->count + 1, NULL));
}

static void answer(struct engine_fixture *f, const char *first, const char *second)
{
	u32 request = f->count - 1;
	fake_emit(f,
		  &(struct fake_output){.request = request, .tokens = ids, .token_count = 1, .text = first});
	fake_emit(f, &(struct fake_output){.request = request,
					   .tokens = ids,
					   .token_count = 2,
					   .text = second,
					   .finish = FAKE_STOP});
}

Test(tool_calls, replies_carry_them)
{
	static struct engine_fixture f;
	engine_setup(&f, "tool_call_parser", "hermes");
	struct peer p = engine_connect(&f);
	ask(&f, &p, "");
	answer(&f, "\n<tool_call>{\"name\": \"add\", \"argu", "ments\": {\"x\": 1}}</tool_call>");
	cr_assert(engine_wait(&f, &p, 1, "\"finish_reason\":\"tool_calls\""), "%s", buf_cstr(&p.got));
	const char *got = buf_cstr(&p.got);
	cr_assert_not_null(strstr(got, "\"message\":{\"role\":\"assistant\",\"content\":null,"), "%s", got);
	cr_assert_not_null(strstr(
		got,
		"\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"x\\\": 1}\"}}]"));
	peer_fini(&p);
	p = engine_connect(&f);
	ask(&f, &p, ", \"tool_choice\": \"none\"");
	answer(&f, "<tool_call>{\"name\": \"add\"}", "</tool_call>");
	cr_assert(
		engine_wait(&f, &p, 2, "\"content\":\"<tool_call>{\\\"name\\\": \\\"add\\\"}</tool_call>\""),
		"%s", buf_cstr(&p.got));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "\"finish_reason\":\"stop\""));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(tool_calls, parameters_that_cannot_be_followed_are_named_with_their_function)
{
	static struct engine_fixture f;
	engine_setup(&f, "tool_call_parser", "hermes");
	struct peer p = engine_connect(&f);
	peer_post(&p, "/v1/chat/completions",
		  "{" CHAT ", \"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"good\"}}, {\"type\": \"function\", "
		  "\"function\": {\"name\": \"bad\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"strin\"}}}}}]}");
	cr_assert(engine_wait(&f, &p, 0, "HTTP/1.1 400 "));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "the parameters of the function 'bad': #/properties/x/type: strin is no type"), "%s", buf_cstr(&p.got));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(tool_calls, streams_carry_them)
{
	static struct engine_fixture f;
	engine_setup(&f, "tool_call_parser", "mistral");
	struct peer p = engine_connect(&f);
	ask(&f, &p, ", \"stream\": true");
	cr_assert_eq(f.requests[0].submit.flags & TERCET_SKIP_SPECIAL, 0, "the mark is a special token");
	answer(&f, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"x", "\": 1}}]");
	cr_assert(engine_wait(&f, &p, 1, "data: [DONE]"));
	const char *got = buf_cstr(&p.got);
	cr_assert_not_null(strstr(got, "\"delta\":{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
				       "\"index\":0,\"id\":\""),
			   "%s", got);
	cr_assert_not_null(strstr(got, "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"x\"}}]}"));
	cr_assert_not_null(strstr(
		got, "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\": 1}\"}}]}"));
	cr_assert_not_null(strstr(got, "\"finish_reason\":\"tool_calls\""));
	peer_fini(&p);
	engine_teardown(&f);
}
