/* /v1/messages: what its bodies become, what comes back whole and as events, and what is refused. */
#include "items_fixture.h"

#include "proc_gateway/messages.h"

#define MAX   "\"max_tokens\": 9"
#define HI    "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"
#define TOOLS "\"tools\": [{\"name\": \"add\", \"input_schema\": {\"type\": \"object\"}}]"

/* ---------------------------------------------------------------- reading */

static const struct {
	const char *message, *chat;
} same[] = {
	{"{" MAX ", " HI "}", "{" MAX ", " HI "}"},
	/* system texts, blocks, turns in a row; what says nothing here is passed over */
	{"{" MAX ", \"system\": [{\"type\": \"text\", \"text\": \"Be.\", \"cache_control\": {\"type\": \"ephemeral\"}}, {\"type\": \"text\", "
	 "\"text\": \"Do.\"}], \"metadata\": {\"user_id\": \"u\"}, \"service_tier\": \"auto\", \"anything\": 1, \"messages\": [{\"role\": "
	 "\"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"user\", "
	 "\"content\": \"c\"}, {\"role\": \"system\", \"content\": \"late\"}, {\"role\": \"user\", \"content\": \"d\"}]}",
	 "{" MAX ", \"messages\": [{\"role\": \"system\", \"content\": \"Be.\\nDo.\"}, {\"role\": \"user\", \"content\": \"a\\nb\\nc\"}, "
	 "{\"role\": \"system\", \"content\": \"late\"}, {\"role\": \"user\", \"content\": \"d\"}]}"},
	/* thoughts, calls and their results */
	{"{" MAX ", \"system\": \"S\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
	 "[{\"type\": \"thinking\", \"thinking\": \"hm\", \"signature\": \"s\"}, {\"type\": \"redacted_thinking\", \"data\": \"x\"}, "
	 "{\"type\": \"text\", \"text\": \"See.\"}, {\"type\": \"tool_use\", \"id\": \"toolu_1\", \"name\": \"f\", \"input\": {\"x\": 1}}, "
	 "{\"type\": \"tool_use\", \"id\": \"toolu_ABCDEFGHI\", \"name\": \"g\", \"input\": {}}]}, {\"role\": \"user\", \"content\": "
	 "[{\"type\": \"tool_result\", \"tool_use_id\": \"toolu_1\", \"content\": \"one\"}, {\"type\": \"tool_result\", \"tool_use_id\": "
	 "\"toolu_ABCDEFGHI\", \"is_error\": true, \"content\": [{\"type\": \"text\", \"text\": \"two\"}]}, {\"type\": \"text\", \"text\": "
	 "\"go\"}]}], \"tools\": [{\"type\": \"custom\", \"name\": \"f\", \"description\": \"d\", \"input_schema\": {\"type\": \"object\"}, "
	 "\"cache_control\": {\"type\": \"ephemeral\"}}]}",
	 "{" MAX ", \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
	 "\"assistant\", \"content\": \"See.\", \"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": \"toolu_1\", \"type\": \"function\", "
	 "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}, {\"id\": \"ABCDEFGHI\", \"type\": \"function\", \"function\": "
	 "{\"name\": \"g\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"toolu_1\", \"content\": \"one\"}, {\"role\": "
	 "\"tool\", \"tool_call_id\": \"ABCDEFGHI\", \"content\": \"Error: two\"}, {\"role\": \"user\", \"content\": \"go\"}], \"tools\": "
	 "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}}]}"},
	/* a result of nothing; one that says that it is an error already */
	{"{" MAX ", \"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", \"name\": \"f\", \"input\": "
	 "{}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"a\"}, {\"type\": \"tool_result\", "
	 "\"tool_use_id\": \"b\", \"is_error\": true, \"content\": \"Error 5\"}]}]}",
	 "{" MAX ", \"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", "
	 "\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"\"}, "
	 "{\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"Error 5\"}]}"},
	/* the beginning of the answer, of two turns in a row */
	{"{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"The\"}, {\"role\": "
	 "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"best is (\"}]}]}",
	 "{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"The\\nbest is (\"}], "
	 "\"continue_final_message\": true, \"add_generation_prompt\": false}"},
	/* which is none when it is empty */
	{"{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", "
	 "\"thinking\": \"hm\"}]}]}",
	 "{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", "
	 "\"reasoning_content\": \"hm\"}]}"},
	{"{\"max_tokens\": 7.0, \"temperature\": 0, \"top_p\": 0.5, \"top_k\": 3, \"seed\": 5, \"stop_sequences\": [\"x\", \"y\"], \"system\": "
	 "\"\", " HI "}",
	 "{\"max_tokens\": 7, \"temperature\": 0, \"top_p\": 0.5, \"top_k\": 3, \"seed\": 5, \"stop\": [\"x\", \"y\"], " HI "}"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, \"output_config\": {\"effort\": \"max\"}}",
	 "{" MAX ", " HI ", \"chat_template_kwargs\": {\"enable_thinking\": true, \"reasoning_effort\": \"high\"}}"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"disabled\"}, \"output_config\": {\"effort\": \"low\"}}",
	 "{" MAX ", " HI ", \"chat_template_kwargs\": {\"enable_thinking\": false}, \"reasoning_effort\": \"low\"}"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"disabled\"}, \"chat_template_kwargs\": {\"enable_thinking\": 5}}",
	 "{" MAX ", " HI ", \"chat_template_kwargs\": {\"enable_thinking\": 5}}"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"adaptive\"}}", "{" MAX ", " HI "}"},
	{"{" MAX ", " HI ", \"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": {\"type\": \"integer\"}}}}",
	 "{" MAX ", " HI ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"integer\"}}}}"},
	{"{" MAX ", " HI ", \"output_format\": {\"type\": \"json_schema\", \"schema\": {\"type\": \"integer\"}}}",
	 "{" MAX ", " HI ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"integer\"}}}}"},
	{"{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"tool\", \"name\": \"add\"}}",
	 "{" MAX ", " HI ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\"}}}], "
	 "\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"add\"}}}"},
	{"{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"any\", \"disable_parallel_tool_use\": true}}",
	 "{" MAX ", " HI ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\"}}}], "
	 "\"tool_choice\": \"required\", \"parallel_tool_calls\": false}"},
	{"{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"none\"}}", "{" MAX ", " HI "}"},
};

Test(messages, bodies_are_those_of_chats)
{
	static struct engine_fixture f;
	char path[32], counted[64];
	setup(&f, path);
	for (u32 i = 0; i < COUNT_OF(same); i++) {
		struct peer p = engine_connect(&f), other = engine_connect(&f), counter = engine_connect(&f);
		ask(&f, &p, "/v1/messages?beta=true", same[i].message);
		ask(&f, &other, "/v1/chat/completions", same[i].chat);
		const struct fake_request *a = &f.requests[2 * i], *b = &f.requests[2 * i + 1];
		cr_expect_eq(a->token_count, b->token_count, "%s", same[i].message);
		cr_expect_arr_eq(a->tokens, b->tokens, b->token_count * sizeof(u32), "%s", same[i].message);
		cr_expect_eq(a->submit.max_tokens, b->submit.max_tokens, "%s", same[i].message);
		cr_expect_eq(a->submit.temperature, b->submit.temperature, "%s", same[i].message);
		cr_expect_eq(a->submit.top_k, b->submit.top_k, "%s", same[i].message);
		cr_expect_eq(a->submit.grammar_kind, b->submit.grammar_kind, "%s", same[i].message);
		snprintf(counted, sizeof(counted), "{\"input_tokens\":%u}", a->token_count);
		peer_post(&counter, "/v1/messages/count_tokens", same[i].message);
		cr_expect(engine_wait(&f, &counter, 0, counted), "%s: %s", same[i].message, buf_cstr(&counter.got));
		peer_fini(&p);
		peer_fini(&other);
		peer_fini(&counter);
	}
	engine_teardown(&f);
}

#define SAID(blocks) "{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": [" blocks "]}]}"
#define DID(blocks)  "{" MAX ", \"messages\": [{\"role\": \"assistant\", \"content\": [" blocks "]}]}"

static const struct {
	const char *body, *wanted;
} wrong[] = {
	{"", "The request body is empty"},
	{"[1]", "must be a JSON object"},
	{"{\"messages\": ", "not valid JSON"},
	{"{" HI "}", "Field 'max_tokens' is missing; it must be an integer of at least 1."},
	{"{" HI ", \"max_tokens\": 0}", "Field 'max_tokens': 0 is out of range; it must be an integer of at least 1."},
	{"{" HI ", \"max_tokens\": \"9\"}", "Field 'max_tokens': \\\"9\\\" is no number of tokens"},
	{"{" HI ", \"max_tokens\": 1.5}", "Field 'max_tokens': 1.5 is no number of tokens"},
	{"{" MAX "}", "Field 'messages' is missing"},
	{"{" MAX ", \"messages\": []}", "Field 'messages': [] are no messages"},
	{"{" MAX ", \"messages\": \"x\"}", "Field 'messages': \\\"x\\\" are no messages"},
	{"{" MAX ", \"messages\": [5]}", "Field 'messages[0]': 5 is no message"},
	{"{" MAX ", \"messages\": [{\"content\": \"x\"}]}", "Field 'messages[0]'"},
	{"{" MAX ", \"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", "Field 'messages[0].role': \\\"tool\\\" is not known"},
	{"{" MAX ", \"messages\": [{\"role\": \"user\"}]}", "Field 'messages[0].content'"},
	{"{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": []}]}", "Field 'messages[0].content': [] is empty"},
	{SAID("5"), "Field 'messages[0].content[0]': 5 is no block of content; it must be {\\\"type\\\": \\\"text\\\", \\\"text\\\": \\\"...\\\"}."},
	{SAID("{\"type\": \"text\"}"), "has no text"},
	{SAID("{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"image\", \"source\": {\"type\": \"base64\", \"data\": \"AAAA\"}}"),
	 "Field 'messages[0].content[1]': \\\"image\\\" is a kind of content that this server does not take here; it must be \\\"text\\\" or"},
	{SAID("{\"type\": \"document\"}"), "\\\"document\\\" is a kind of content"},
	{SAID("{\"type\": \"tool_use\", \"id\": \"a\", \"name\": \"f\", \"input\": {}}"), "\\\"tool_use\\\" is a kind of content"},
	{SAID("{\"type\": \"tool_result\"}"), "is no result of a tool"},
	{SAID("{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"is_error\": 1}"), "Field 'messages[0].content[0]': 1 as 'is_error' is no switch"},
	{SAID("{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": 5}"), "Field 'messages[0].content[0].content': 5 is no text"},
	{SAID("{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": [{\"type\": \"image\"}]}"),
	 "Field 'messages[0].content[0].content[0]': \\\"image\\\" is a kind of content"},
	{DID("{\"type\": \"tool_use\", \"id\": \"a\", \"name\": \"f\", \"input\": \"{}\"}"), "is no call of a tool"},
	{DID("{\"type\": \"tool_use\", \"id\": \"a\", \"name\": \"f\", \"input\": {}}"), "Field 'messages[0]': it calls a tool, and nothing follows"},
	{DID("{\"type\": \"thinking\"}"), "has no thoughts"},
	{DID("{\"type\": \"server_tool_use\"}"), "\\\"server_tool_use\\\" is a kind of content"},
	{"{" MAX ", " HI ", \"system\": 5}", "Field 'system': 5 is no text"},
	{"{" MAX ", " HI ", \"system\": [{\"type\": \"image\"}]}", "Field 'system[0]': \\\"image\\\" is a kind of content"},
	{"{" MAX ", " HI ", \"stop_sequences\": \"x\"}", "Field 'stop_sequences': \\\"x\\\" is not a list"},
	{"{" MAX ", " HI ", \"stop_sequences\": [\"\"]}", "Field 'stop_sequences': \\\"\\\" is empty"},
	{"{" MAX ", " HI ", \"temperature\": -1}", "Field 'temperature': -1 is out of range"},
	{"{" MAX ", " HI ", \"stream\": 1}", "Field 'stream'"},
	{"{" MAX ", " HI ", \"min_tokens\": 10}", "Field 'min_tokens': 10 is more than the 9 tokens"},
	{"{" MAX ", " HI ", \"container\": \"c\"}", "Field 'container': this server runs no code"},
	{"{" MAX ", " HI ", \"mcp_servers\": [{}]}", "Field 'mcp_servers'"},
	{"{" MAX ", " HI ", \"session_id\": \"s\"}", "Field 'session_id': sessions"},
	{"{" MAX ", " HI ", \"thinking\": true}", "Field 'thinking': true is not known"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"some\"}}", "Field 'thinking'"},
	{"{" MAX ", " HI ", \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 0}}", "Field 'thinking.budget_tokens': 0 is no number of tokens"},
	{"{" MAX ", " HI ", \"output_config\": 5}", "Field 'output_config': 5 is no object"},
	{"{" MAX ", " HI ", \"output_config\": {\"effort\": 5}}", "Field 'output_config.effort'"},
	{"{" MAX ", " HI ", \"output_config\": {\"format\": {\"type\": \"json\"}}}", "Field 'output_config.format'"},
	{"{" MAX ", " HI ", \"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": 5}}}", "Field 'output_config.format"},
	{"{" MAX ", " HI ", \"output_format\": 5}", "Field 'output_format': 5 is not known"},
	{"{" MAX ", " HI ", \"chat_template_kwargs\": 5}", "Field 'chat_template_kwargs'"},
	{"{" MAX ", " HI ", \"tools\": {}}", "Field 'tools': {} is not a list"},
	{"{" MAX ", " HI ", \"tools\": [{\"type\": \"web_search_20250305\", \"name\": \"web_search\"}]}",
	 "Field 'tools[0]': \\\"web_search_20250305\\\" is a tool that this server does not have"},
	{"{" MAX ", " HI ", \"tools\": [{\"name\": \"f\"}]}", "Field 'tools[0]': {\\\"name\\\":\\\"f\\\"} is no tool"},
	{"{" MAX ", " HI ", \"tools\": [{\"name\": \"\", \"input_schema\": {}}]}", "is no tool"},
	{"{" MAX ", " HI ", \"tools\": [5]}", "Field 'tools[0]': 5 is no tool"},
	{"{" MAX ", " HI ", \"tool_choice\": \"any\"}", "Field 'tool_choice': \\\"any\\\" is not known"},
	{"{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"tool\"}}", "Field 'tool_choice'"},
	{"{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"tool\", \"name\": \"sub\"}}", "names the function 'sub'"},
	{"{" MAX ", " HI ", \"tool_choice\": {\"type\": \"any\"}}", "there are no 'tools'"},
	{"{" MAX ", " HI ", \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": 1}}", "Field 'tool_choice.disable_parallel_tool_use'"},
};

Test(messages, what_is_wrong_is_named)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	for (size_t i = 0; i < COUNT_OF(wrong); i++) {
		struct peer p = engine_connect(&f);
		peer_post(&p, "/v1/messages", wrong[i].body);
		cr_expect(engine_wait(&f, &p, 0, wrong[i].wanted), "%s: %s", wrong[i].body, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 400"), "%s", wrong[i].body);
		cr_expect_not_null(strstr(buf_cstr(&p.got), "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\""),
				   "%s: %s", wrong[i].body, buf_cstr(&p.got));
		peer_fini(&p);
	}
	expect_too_deep(&f, "/v1/messages", "{" MAX ", " HI ", \"tools\": [{\"name\": \"f\", \"input_schema\": {\"x\": ", JSON_LEVELS_MAX - 4,
			"}}]}", "Field 'tools'");
	expect_too_deep(&f, "/v1/messages", "{" MAX ", " HI ", \"output_format\": {\"type\": \"json_schema\", \"schema\": ",
			JSON_LEVELS_MAX - 2, "}}", "Field 'output_format'");
	expect_too_deep(&f, "/v1/messages", "{" MAX ", " HI ", \"tool_choice\": {\"type\": \"tool\", \"name\": ", JSON_LEVELS_MAX - 2, "}}",
			"Field 'tool_choice'");
	cr_assert_eq(f.count, 0);
	/* as deep as a body may be is not too deep for arguments */
	struct buf body = {0};
	buf_append_str(&body, "{" MAX ", \"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", \"name\": "
			      "\"f\", \"input\": {\"x\": ");
	for (u32 i = 0; i < 2 * (JSON_LEVELS_MAX - 6); i++)
		buf_append_char(&body, i < JSON_LEVELS_MAX - 6 ? '[' : ']');
	buf_append_str(&body, "}}]}, {\"role\": \"user\", \"content\": \"x\"}]}");
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/messages", buf_cstr(&body));
	peer_fini(&p);
	buf_fini(&body);
	engine_teardown(&f);
}

/* Errors of what stands in front of the reader, each in the form of this API. */
Test(messages, errors_of_common_code_have_the_form)
{
	static struct engine_fixture f;
	engine_setup(&f, "api_key", "sk-one");
	static const struct {
		const char *request, *status, *type;
	} cases[] = {
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 401", "authentication_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: sk-two\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 401", "authentication_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nanthropic-version: 2023-06-01\r\nanthropic-beta: a,b\r\n"
		 "Content-Length: 2\r\n\r\n{}", "HTTP/1.1 400", "invalid_request_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-one\r\nContent-Length: 99\r\n\r\n{" MAX ", " HI
		 ", \"model\": \"claude-x\"}                ", "HTTP/1.1 404", "not_found_error"},
		{"GET /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\n\r\n", "HTTP/1.1 405", "invalid_request_error"},
		{"POST /v1/messages/batches HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 404", "not_found_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 413", "request_too_large"},
		/* of heads that are refused */
		{"POST /v1/messages?beta=true HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 415", "invalid_request_error"},
		{"POST /v1/messages/count_tokens HTTP/1.1\r\nHost: x\r\nContent-Length: a\r\n\r\n", "HTTP/1.1 400", "invalid_request_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501", "api_error"},
		{"POST /v1/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400", "invalid_request_error"},
		{"POST /v1/messages HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 505", "api_error"},
		{"POST http://x/v1/messages HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", "HTTP/1.1 400", "invalid_request_error"},
		{"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nx-api-key: sk-one\r\n\r\nzz\r\n", "HTTP/1.1 400", "invalid_request_error"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char body[96];
		struct peer p = engine_connect(&f);
		peer_send(&p, cases[i].request);
		snprintf(body, sizeof(body), "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"", cases[i].type);
		cr_expect(engine_wait(&f, &p, 0, body), "%s: %s", cases[i].request, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), cases[i].status), "%s: %s", cases[i].request, buf_cstr(&p.got));
		peer_fini(&p);
	}
	f.gateway.draining = true;
	struct peer p = engine_connect(&f);
	peer_send(&p, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 2\r\n\r\n{}");
	cr_expect(engine_wait(&f, &p, 0, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","), "%s", buf_cstr(&p.got));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 529 Overloaded\r\n"));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "Retry-After: 1\r\n"));
	peer_fini(&p);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- replies */

#define THOUGHT "<think>hm</think>\n\nSo. "
#define CALL	"<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": 1}}</tool_call>"

/* The reply to `body` when the model answers `text`; to be freed by json_free. */
static struct json_doc *answer(struct engine_fixture *f, const char *body, const struct fake_output *output)
{
	static const u32 ids[] = {100, 101, 102, 103, 104};
	struct peer p = engine_connect(f);
	struct fake_output o = *output;
	ask(f, &p, "/v1/messages", body);
	o.request = f->count - 1;
	o.tokens = ids;
	o.token_count = 1;
	fake_emit(f, &o);
	cr_assert(engine_wait(f, &p, 0, "\"usage\":{"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = json_behind(buf_cstr(&p.got), "\r\n\r\n");
	peer_fini(&p);
	return doc;
}

static u64 uint_at(json_val v, const char *key)
{
	u64 number = 12345678;
	json_uint(json_get(v, key), &number);
	return number;
}

Test(messages, replies_have_blocks)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	struct json_doc *doc = answer(&f, "{" MAX ", " HI ", " TOOLS "}", &(struct fake_output){.text = THOUGHT CALL CALL, .finish = FAKE_STOP, .cached = 3});
	json_val root = json_root(doc), content = json_get(root, "content"), usage = json_get(root, "usage");
	cr_assert_str_eq(cstr_at(root, "type"), "message");
	cr_assert_str_eq(cstr_at(root, "role"), "assistant");
	cr_assert_str_eq(cstr_at(root, "model"), "demo");
	cr_assert_eq(strncmp(cstr_at(root, "id"), "msg_", 4), 0);
	cr_assert_str_eq(cstr_at(root, "stop_reason"), "tool_use");
	cr_assert_eq(json_type(json_get(root, "stop_sequence")), JSON_NULL);
	cr_assert_eq(json_count(content), 4);
	cr_assert_str_eq(cstr_at(json_at(content, 0), "type"), "thinking");
	cr_assert_str_eq(cstr_at(json_at(content, 0), "thinking"), "hm");
	cr_assert_eq(json_type(json_get(json_at(content, 0), "signature")), JSON_STRING);
	cr_assert_str_eq(cstr_at(json_at(content, 1), "text"), "So.");
	cr_assert_str_eq(cstr_at(json_at(content, 2), "type"), "tool_use");
	cr_assert_str_eq(cstr_at(json_at(content, 2), "name"), "add");
	cr_assert_eq(strncmp(cstr_at(json_at(content, 2), "id"), "toolu_", 6), 0);
	cr_assert_eq(strlen(cstr_at(json_at(content, 2), "id")), 30);
	cr_assert_str_neq(cstr_at(json_at(content, 2), "id"), cstr_at(json_at(content, 3), "id"));
	cr_assert_eq(uint_at(json_get(json_at(content, 2), "input"), "x"), 1);
	cr_assert_eq(uint_at(usage, "input_tokens"), f.requests[0].token_count - 3);
	cr_assert_eq(uint_at(usage, "cache_read_input_tokens"), 3);
	cr_assert_eq(uint_at(usage, "output_tokens"), 1);
	json_free(&doc);

	/* one call alone, and thoughts that are not to be */
	doc = answer(&f, "{" MAX ", " HI ", " TOOLS ", \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": true}, \"thinking\": {\"type\": "
			 "\"disabled\"}}",
		     &(struct fake_output){.text = "<think>hm</think>" CALL CALL, .finish = FAKE_STOP});
	cr_assert_eq(json_count(json_get(json_root(doc), "content")), 1);
	cr_assert_str_eq(cstr_at(json_at(json_get(json_root(doc), "content"), 0), "type"), "tool_use");
	json_free(&doc);
	engine_teardown(&f);
}

/* Templates of Mistral's models take ids of nine letters and digits: what is shown has the mark, what comes back loses it. */
Test(messages, short_ids_of_calls_come_back_as_they_were)
{
	static struct engine_fixture f;
	char path[32], body[1024];
	setup(&f, path);
	f.gateway.model.tool_format = TOOL_FORMAT_MISTRAL;
	struct json_doc *doc = answer(&f, "{" MAX ", " HI ", " TOOLS "}",
				      &(struct fake_output){.text = "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"x\": 1}}]", .finish = FAKE_STOP});
	json_val call = json_at(json_get(json_root(doc), "content"), 0);
	const char *id = cstr_at(call, "id");
	cr_assert_eq(strlen(id), strlen("toolu_") + 9, "%s", id);
	struct peer p = engine_connect(&f), other = engine_connect(&f);
	snprintf(body, sizeof(body), "{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": "
				     "\"%s\", \"content\": \"1\"}]}]}", id);
	ask(&f, &p, "/v1/messages", body);
	snprintf(body, sizeof(body), "{" MAX ", \"messages\": [{\"role\": \"tool\", \"tool_call_id\": \"%s\", \"content\": \"1\"}]}", id + 6);
	ask(&f, &other, "/v1/chat/completions", body);
	cr_assert_eq(f.requests[1].token_count, f.requests[2].token_count);
	cr_assert_arr_eq(f.requests[1].tokens, f.requests[2].tokens, f.requests[1].token_count * sizeof(u32));
	json_free(&doc);
	peer_fini(&p);
	peer_fini(&other);
	engine_teardown(&f);
}

Test(messages, replies_say_why_they_end)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	static const struct {
		const char *body;
		struct fake_output output;
		const char *reason, *sequence;
		u32 blocks;
	} cases[] = {
		{"{" MAX ", " HI "}", {.text = "So", .finish = FAKE_STOP}, "end_turn", "", 1},
		{"{" MAX ", " HI "}", {.text = "", .finish = FAKE_STOP}, "end_turn", "", 0},
		{"{" MAX ", " HI "}", {.text = "cut", .finish = FAKE_LENGTH}, "max_tokens", "", 1},
		{"{\"max_tokens\": 100000, " HI "}", {.text = "cut", .finish = FAKE_LENGTH}, "model_context_window_exceeded", "", 1},
		{"{" MAX ", " HI ", \"stop_sequences\": [\"x\", \"y\"]}",
		 {.text = "So", .finish = FAKE_STOP, .stop_kind = TERCET_STOP_STRING, .stop_value = 1}, "stop_sequence", "y", 1},
		{"{" MAX ", " HI ", \"stop_token_ids\": [7]}",
		 {.text = "So", .finish = FAKE_STOP, .stop_kind = TERCET_STOP_ID, .stop_value = 7}, "end_turn", "", 1},
		/* an object that is not whole is none */
		{"{" MAX ", " HI ", " TOOLS "}", {.text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": ", .finish = FAKE_LENGTH},
		 "max_tokens", "", 1},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct json_doc *doc = answer(&f, cases[i].body, &cases[i].output);
		json_val root = json_root(doc);
		cr_expect_str_eq(cstr_at(root, "stop_reason"), cases[i].reason, "%zu: %s", i, cstr_at(root, "stop_reason"));
		cr_expect_str_eq(cstr_at(root, "stop_sequence"), cases[i].sequence, "%zu", i);
		cr_expect_eq(json_count(json_get(root, "content")), cases[i].blocks, "%zu", i);
		json_free(&doc);
	}
	cr_assert_eq(f.requests[3].submit.max_tokens, FAKE_MODEL_LEN - f.requests[3].token_count);
	engine_teardown(&f);
}

Test(messages, more_than_the_context_is_counted)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	struct buf body = {0};
	buf_append_str(&body, "{" MAX ", \"messages\": [{\"role\": \"user\", \"content\": \"");
	for (u32 i = 0; i < 2 * FAKE_MODEL_LEN; i++)
		buf_append_str(&body, "word ");
	buf_append_str(&body, "\"}]}");
	struct peer p = engine_connect(&f);
	peer_post(&p, "/v1/messages", buf_cstr(&body));
	cr_assert(engine_wait(&f, &p, 0, "\"message\":\"prompt is too long: This model's maximum context length"), "%s", buf_cstr(&p.got));
	peer_fini(&p);
	p = engine_connect(&f);
	peer_post(&p, "/v1/messages/count_tokens", buf_cstr(&body));
	cr_assert(engine_wait(&f, &p, 0, "{\"input_tokens\":"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = json_behind(buf_cstr(&p.got), "\r\n\r\n");
	cr_assert_gt(uint_at(json_root(doc), "input_tokens"), 2 * FAKE_MODEL_LEN - 1);
	json_free(&doc);
	peer_fini(&p);
	buf_fini(&body);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- events */

/* The types in their order. */
static void check_events(const char *got, const char *const *types, size_t count)
{
	size_t i = 0;
	for (const char *at = strstr(got, "event: "); at; at = strstr(at + 1, "event: "), i++) {
		char head[128];
		cr_assert_lt(i, count, "more events: %s", at);
		snprintf(head, sizeof(head), "event: %s\ndata: {\"type\":\"%s\"", types[i], types[i]);
		cr_assert_eq(strncmp(at, head, strlen(head)), 0, "%s is not %s", at, head);
	}
	cr_assert_eq(i, count, "%s", got);
}

Test(messages, streams_have_events)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/messages", "{" MAX ", " HI ", \"stream\": true, " TOOLS "}");
	emit(&f, "<think>h", FAKE_GOES_ON);
	emit(&f, "m</think>\n\nSo", FAKE_GOES_ON);
	emit(&f, ". <tool_call>{\"name\": \"add\", \"argu", FAKE_GOES_ON);
	emit(&f, "ments\": {\"x\"", FAKE_GOES_ON);
	emit(&f, ": 1}}</tool_call>\nDone.", FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 1, "data: {\"type\":\"message_stop\"}\n\n"), "%s", buf_cstr(&p.got));
	static const char *const types[] = {
		"message_start",
		"content_block_start", "ping", "content_block_delta", "content_block_delta", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop"};
	static const char *const wanted[] = {
		",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":",
		"\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}",
		"{\"type\":\"ping\"}",
		"\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"h\"}}",
		"\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"m\"}}",
		"\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}",
		"{\"type\":\"content_block_stop\",\"index\":0}",
		"\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}",
		"\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"So\"}}",
		"\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_",
		"\",\"name\":\"add\",\"input\":{}}}",
		"\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"x\\\"\"}}",
		"\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\": 1}\"}}",
		"\"index\":3,\"delta\":{\"type\":\"text_delta\",\"text\":\"Done.\"}}",
		"\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":",
		"\"output_tokens\":5,"};
	const char *got = buf_cstr(&p.got), *at = got;
	check_events(got, types, COUNT_OF(types));
	for (size_t i = 0; i < COUNT_OF(wanted); i++) {
		at = strstr(at, wanted[i]);
		cr_assert_not_null(at, "%s: %s", wanted[i], got);
	}
	cr_assert_null(strstr(got, "[DONE]"));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(messages, a_stream_of_nothing_begins_and_ends)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/messages", "{" MAX ", " HI ", \"stream\": true}");
	cr_assert(engine_wait(&f, &p, 1, "message_start"), "%s", buf_cstr(&p.got)); /* before there is a token */
	emit(&f, "", FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 1, "message_stop\"}\n\n"), "%s", buf_cstr(&p.got));
	static const char *const types[] = {"message_start", "message_delta", "message_stop"};
	check_events(buf_cstr(&p.got), types, COUNT_OF(types));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(messages, a_stream_that_fails_says_so)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/messages", "{" MAX ", " HI ", \"stream\": true}");
	emit(&f, "So", FAKE_GOES_ON);
	fake_emit(&f, &(struct fake_output){.request = 0, .finish = FAKE_ERROR, .error = "a worker broke"});
	cr_assert(engine_wait(&f, &p, 1,
			      "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"The engine ended the request: "
			      "a worker broke.\"}}\n\n"), "%s", buf_cstr(&p.got));
	peer_fini(&p);

	f.refuse = ERR_BUSY;
	p = engine_connect(&f);
	peer_post(&p, "/v1/messages", "{" MAX ", " HI ", \"stream\": true}");
	cr_assert(engine_wait(&f, &p, 2, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\""), "%s", buf_cstr(&p.got));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 429"));
	peer_fini(&p);
	engine_teardown(&f);
}
