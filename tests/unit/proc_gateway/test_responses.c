/* /v1/responses: what its bodies become, what comes back whole and as events, and what is refused. */
#include "items_fixture.h"

#include "proc_gateway/responses.h"

/* ---------------------------------------------------------------- reading */

static const struct {
	const char *response, *chat;
} same[] = {
	{"{\"input\": \"Hi\"}", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"},
	{"{\"instructions\": \"Be.\", \"input\": [{\"role\": \"developer\", \"content\": \"Do.\"}, {\"type\": \"message\", \"role\": "
	 "\"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"a\"}, {\"type\": \"input_text\", \"text\": \"b\"}]}, "
	 "{\"role\": \"system\", \"content\": \"late\"}]}",
	 "{\"messages\": [{\"role\": \"system\", \"content\": \"Be.\\n\\nDo.\"}, {\"role\": \"user\", \"content\": \"a\\nb\"}, "
	 "{\"role\": \"system\", \"content\": \"late\"}]}"},
	{"{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"type\": \"reasoning\", \"summary\": [], \"content\": [{\"type\": "
	 "\"reasoning_text\", \"text\": \"hm\"}]}, {\"type\": \"message\", \"role\": \"assistant\", \"content\": [{\"type\": "
	 "\"output_text\", \"text\": \"Let me see.\", \"annotations\": []}]}, {\"type\": \"function_call\", \"call_id\": \"c1\", "
	 "\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}, {\"type\": \"function_call\", \"call_id\": \"c2\", \"name\": \"g\", "
	 "\"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"c1\", \"output\": \"one\"}, {\"type\": "
	 "\"function_call_output\", \"call_id\": \"c2\", \"output\": [{\"type\": \"input_text\", \"text\": \"two\"}]}], "
	 "\"tools\": [{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"type\": \"object\"}}]}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"Let me see.\", "
	 "\"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
	 "\"arguments\": \"{\\\"x\\\": 1}\"}}, {\"id\": \"c2\", \"type\": \"function\", \"function\": {\"name\": \"g\", \"arguments\": "
	 "\"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"one\"}, {\"role\": \"tool\", \"tool_call_id\": "
	 "\"c2\", \"content\": \"two\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
	 "{\"type\": \"object\"}}}]}"},
	{"{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": "
	 "\"assistant\", \"content\": \"b\"}], \"max_output_tokens\": 7, \"temperature\": 0, \"seed\": 5, \"stop\": \"x\"}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": "
	 "\"assistant\", \"content\": \"b\"}], \"max_completion_tokens\": 7, \"temperature\": 0, \"seed\": 5, \"stop\": \"x\"}"},
	{"{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"type\": \"reasoning\", \"content\": [{\"type\": \"reasoning_text\", \"text\": "
	 "\"a\"}]}, {\"type\": \"reasoning\", \"summary\": []}, {\"type\": \"reasoning\", \"content\": [{\"type\": \"reasoning_text\", \"text\": "
	 "\"b\"}, {\"type\": \"reasoning_text\", \"text\": \"c\"}]}, {\"role\": \"assistant\", \"content\": \"d\"}]}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"d\", \"reasoning_content\": "
	 "\"a\\n\\nb\\nc\"}]}"},
	{"{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"type\": \"function_call\", \"call_id\": \"c\\u0000d\", \"name\": \"f\\u0000g\", "
	 "\"arguments\": \"{}\\u0000\"}, {\"type\": \"function_call_output\", \"call_id\": \"c\\u0000d\", \"output\": \"o\"}]}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": "
	 "\"c\\u0000d\", \"type\": \"function\", \"function\": {\"name\": \"f\\u0000g\", \"arguments\": \"{}\\u0000\"}}]}, {\"role\": \"tool\", "
	 "\"tool_call_id\": \"c\\u0000d\", \"content\": \"o\"}]}"},
	{"{\"input\": [{\"type\": \"reasoning\", \"summary\": []}, {\"role\": \"user\", \"content\": \"q\"}, {\"type\": \"reasoning\", \"encrypted_content\": "
	 "\"x\", \"summary\": []}, {\"role\": \"user\", \"content\": \"r\"}]}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"user\", \"content\": \"r\"}]}"},
	{"{\"input\": \"q\", \"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"n\", \"schema\": {\"type\": \"integer\"}}}}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"response_format\": {\"type\": \"json_schema\", "
	 "\"json_schema\": {\"name\": \"n\", \"schema\": {\"type\": \"integer\"}}}}"},
	{"{\"input\": \"q\", \"tools\": [{\"type\": \"function\", \"name\": \"f\"}], \"tool_choice\": {\"type\": \"function\", \"name\": "
	 "\"f\"}}",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": "
	 "\"f\"}}], \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}}"},
};

Test(responses, bodies_are_those_of_chats)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	for (u32 i = 0; i < COUNT_OF(same); i++) {
		struct peer p = engine_connect(&f), other = engine_connect(&f);
		ask(&f, &p, "/v1/responses", same[i].response);
		ask(&f, &other, "/v1/chat/completions", same[i].chat);
		const struct fake_request *a = &f.requests[2 * i], *b = &f.requests[2 * i + 1];
		cr_expect_eq(a->token_count, b->token_count, "%s", same[i].response);
		cr_expect_arr_eq(a->tokens, b->tokens, b->token_count * sizeof(u32), "%s", same[i].response);
		cr_expect_eq(a->submit.max_tokens, b->submit.max_tokens, "%s", same[i].response);
		cr_expect_eq(a->submit.temperature, b->submit.temperature, "%s", same[i].response);
		cr_expect_eq(a->submit.grammar_kind, b->submit.grammar_kind, "%s", same[i].response);
		peer_fini(&p);
		peer_fini(&other);
	}
	engine_teardown(&f);
}

static const struct {
	const char *body, *wanted;
} wrong[] = {
	{"", "The request body is empty"},
	{"[1]", "must be"},
	{"{\"input\": ", "not valid JSON"},
	{"{}", "Field 'input' is missing; it must be a string or an array of items."},
	{"{\"input\": 5}", "Field 'input': 5 is not input"},
	{"{\"input\": [5]}", "Field 'input[0]': 5 is no item"},
	{"{\"input\": [{\"type\": 5, \"role\": \"user\", \"content\": \"x\"}]}", "is no item; it must be"},
	{"{\"input\": [{\"type\": \"reasoning\", \"content\": {}}]}", "Field 'input[0]': {} is no content"},
	{"{\"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": \"reasoning\", \"content\": [null]}]}", "Field 'input[1]': null is a kind of content"},
	{"{\"input\": \"x\", \"reasoning\": \"high\"}", "Field 'reasoning': \\\"high\\\" is not an object; it must be {\\\"effort\\\": \\\"...\\\"}."},
	{"{\"input\": \"x\", \"reasoning\": {\"effort\": 5}}", "Field 'reasoning.effort'"},
	{"{\"input\": \"x\", \"background\": \"true\"}", "Field 'background': \\\"true\\\" is not true or false"},
	{"{\"input\": \"x\", \"include\": \"message.output_text.logprobs\"}", "Field 'include'"},
	{"{\"input\": [{\"role\": \"robot\", \"content\": \"x\"}]}", "has no role that is known"},
	{"{\"input\": [{\"role\": \"user\"}]}", "is no content"},
	{"{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}", "a kind of content that this server does not take"},
	{"{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\"}]}]}", "has no text"},
	{"{\"input\": [{\"type\": \"computer_call\"}]}", "a kind of item that this server does not take"},
	{"{\"input\": [{\"type\": \"function_call\", \"name\": \"f\"}]}", "is no call of a function"},
	{"{\"input\": [{\"type\": \"function_call_output\", \"output\": \"x\"}]}", "is no output of a function"},
	{"{\"input\": \"x\", \"instructions\": 1}", "Field 'instructions': 1 is not a string"},
	{"{\"input\": \"x\", \"previous_response_id\": \"resp_1\"}", "Field 'previous_response_id': responses are not kept"},
	{"{\"input\": \"x\", \"conversation\": \"c\"}", "Field 'conversation': responses are not kept"},
	{"{\"input\": \"x\", \"prompt\": {\"id\": \"p\"}}", "Field 'prompt': this server keeps no prompts"},
	{"{\"input\": \"x\", \"session_id\": \"s\"}", "Field 'session_id': sessions"},
	{"{\"input\": \"x\", \"background\": true}", "Field 'background'"},
	{"{\"input\": \"x\", \"truncation\": \"auto\"}", "Field 'truncation'"},
	{"{\"input\": \"x\", \"truncation\": 5}", "Field 'truncation'"},
	{"{\"input\": \"x\", \"top_logprobs\": 2}", "Field 'top_logprobs'"},
	{"{\"input\": \"x\", \"top_logprobs\": \"2\"}", "Field 'top_logprobs'"},
	{"{\"input\": \"x\", \"include\": [\"message.output_text.logprobs\"]}", "Field 'include'"},
	{"{\"input\": \"x\", \"tools\": {}}", "Field 'tools': {} is not a list"},
	{"{\"input\": \"x\", \"tools\": [{\"type\": \"web_search\"}]}", "a tool that this server does not have"},
	{"{\"input\": \"x\", \"tool_choice\": {\"type\": \"file_search\"}}", "Field 'tool_choice'"},
	{"{\"input\": \"x\", \"text\": \"json\"}", "Field 'text': \\\"json\\\" is not an object"},
	{"{\"input\": \"x\", \"text\": {\"format\": {\"type\": \"json_schema\"}}}", "Field 'text.format.schema' is missing"},
	{"{\"input\": \"x\", \"text\": {\"format\": {\"type\": \"yaml\"}}}", "Field 'text.format.type': \\\"yaml\\\" is not known"},
	{"{\"input\": \"x\", \"max_output_tokens\": 0}", "Field 'max_output_tokens'"},
	{"{\"input\": \"x\", \"max_output_tokens\": 100000}", "'max_output_tokens' asks for 100000 more"},
	{"{\"input\": \"x\", \"reasoning_format\": \"left\"}", "Field 'reasoning_format'"},
	{"{\"input\": \"x\", \"model\": \"gpt\"}", "The model 'gpt' does not exist"},
};

Test(responses, what_is_deeper_in_another_form_is_refused)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	expect_too_deep(&f, "/v1/responses",
			"{\"input\": \"x\", \"tools\": [{\"type\": \"function\", \"name\": \"f\"}], \"tool_choice\": {\"type\": "
			"\"function\", \"name\": ",
			JSON_LEVELS_MAX - 2, "}}", "Field 'tool_choice'");
	expect_too_deep(&f, "/v1/responses",
			"{\"input\": \"x\", \"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"name\": \"f\", "
			"\"parameters\": {\"examples\": ",
			JSON_LEVELS_MAX - 6, "}}]}", "nested too deeply for a call that is asked for; they may have 54 levels");
	expect_too_deep(&f, "/v1/chat/completions",
			"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"structured_outputs\": {\"structural_tag\": "
			"\"{\\\"structures\\\": [], \\\"triggers\\\": [], \\\"x\\\": ",
			JSON_LEVELS_MAX - 1, "}\"}}", "is nested too deeply");
	/* the item's own number, not that of the message that it is a part of */
	expect_too_deep(&f, "/v1/responses",
			"{\"instructions\": \"Be.\", \"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"type\": \"reasoning\", \"summary\": []}, "
			"{\"role\": \"assistant\", \"content\": \"a\"}, {\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
			"\"arguments\": \"{\\\"x\\\": ",
			JSON_LEVELS_MAX - 5, "}\"}]}", "Field 'input[3]'");
	expect_too_deep(&f, "/v1/chat/completions",
			"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [{\"id\": "
			"\"c\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": ",
			JSON_LEVELS_MAX - 5, "}\"}}]}]}", "Field 'messages[1]'");
	cr_assert_eq(f.count, 0);
	engine_teardown(&f);
}

Test(responses, what_is_wrong_is_named)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	for (size_t i = 0; i < COUNT_OF(wrong); i++) {
		struct peer p = engine_connect(&f);
		peer_post(&p, "/v1/responses", wrong[i].body);
		cr_expect(engine_wait(&f, &p, 0, wrong[i].wanted), "%s: %s", wrong[i].body, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 40"), "%s", wrong[i].body);
		peer_fini(&p);
	}
	/* tools as deep as a body may be would be deeper in a chat's */
	struct buf deep = {0};
	buf_append_str(&deep, "{\"input\": \"x\", \"tools\": [{\"type\": \"function\", \"name\": \"f\", \"parameters\": ");
	for (u32 i = 0; i < JSON_LEVELS_MAX - 3; i++)
		buf_append_char(&deep, '[');
	for (u32 i = 0; i < JSON_LEVELS_MAX - 3; i++)
		buf_append_char(&deep, ']');
	buf_append_str(&deep, "}]}");
	struct peer p = engine_connect(&f);
	peer_post(&p, "/v1/responses", buf_cstr(&deep));
	cr_expect(engine_wait(&f, &p, 0, "is nested too deeply"), "%s", buf_cstr(&p.got));
	peer_fini(&p);
	buf_fini(&deep);
	cr_assert_eq(f.count, 0);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- replies */

#define TOOLS "\"tools\": [{\"type\": \"function\", \"name\": \"add\"}]"
#define THOUGHT "<think>hm</think>\n\nSo. "
#define CALL	"<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": 1}}</tool_call>"

static void check_items(json_val output, const char *behind)
{
	json_val thought = json_at(output, 0), message = json_at(output, 1), call = json_at(output, 2);
	cr_assert_str_eq(cstr_at(thought, "type"), "reasoning");
	cr_assert_str_eq(cstr_at(json_at(json_get(thought, "content"), 0), "text"), "hm");
	cr_assert_str_eq(cstr_at(message, "type"), "message");
	cr_assert_str_eq(cstr_at(message, "role"), "assistant");
	cr_assert_str_eq(cstr_at(call, "type"), "function_call");
	cr_assert_str_eq(cstr_at(call, "name"), "add");
	cr_assert_str_eq(cstr_at(call, "arguments"), "{\"x\": 1}");
	cr_assert_str_eq(cstr_at(call, "status"), "completed");
	if (!behind)
		return;
	cr_assert_str_eq(cstr_at(json_at(json_get(message, "content"), 0), "text"), "So.");
	cr_assert_eq(json_count(output), 4);
	cr_assert_str_eq(cstr_at(json_at(json_get(json_at(output, 3), "content"), 0), "text"), behind);
}

Test(responses, replies_have_items)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\", \"metadata\": {\"k\": \"v\"}, \"instructions\": \"Be.\", " TOOLS "}");
	emit(&f, THOUGHT, FAKE_GOES_ON);
	emit(&f, CALL, FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 1, "\"truncation\":\"disabled\"}"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = json_behind(buf_cstr(&p.got), "\r\n\r\n");
	json_val root = json_root(doc), usage = json_get(root, "usage");
	cr_assert_str_eq(cstr_at(root, "object"), "response");
	cr_assert_str_eq(cstr_at(root, "status"), "completed");
	cr_assert_str_eq(cstr_at(root, "instructions"), "Be.");
	cr_assert_str_eq(cstr_at(json_get(root, "metadata"), "k"), "v");
	cr_assert_eq(strncmp(cstr_at(root, "id"), "resp_", 5), 0);
	check_items(json_get(root, "output"), NULL);
	cr_assert_eq(json_count(json_get(root, "output")), 3);
	u64 number = 0;
	cr_assert(json_uint(json_get(usage, "output_tokens"), &number) && number == 2);
	cr_assert(json_uint(json_get(usage, "total_tokens"), &number) && number == f.requests[0].token_count + 2u);
	json_free(&doc);
	peer_fini(&p);

	/* reasoning_tokens: of five pieces of a token each, so many are thought */
	static const char *const pieces[][5] = {{"<think>", "a ", "b</think>", "\n\n", "c"},
						{"<|channel|>analysis<|message|>", "a", "<|end|>", "<|start|>assistant<|channel|>final<|message|>", "c"}};
	static const struct { enum thought_format format; const char *wanted; } counts[] = {
		{THOUGHT_FORMAT_THINK, "\"reasoning_tokens\":4}"}, {THOUGHT_FORMAT_HARMONY, "\"reasoning_tokens\":2}"}};
	for (u32 i = 0; i < COUNT_OF(counts); i++) {
		f.gateway.model.thought_format = counts[i].format;
		p = engine_connect(&f);
		ask(&f, &p, "/v1/responses", "{\"input\": \"x\"}");
		for (u32 k = 0; k < 5; k++)
			emit(&f, pieces[i][k], k < 4 ? FAKE_GOES_ON : FAKE_STOP);
		cr_assert(engine_wait(&f, &p, 2 + i, counts[i].wanted), "%s", buf_cstr(&p.got));
		peer_fini(&p);
	}
	f.gateway.model.thought_format = THOUGHT_FORMAT_THINK;

	p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\"}");
	emit(&f, "cut", FAKE_LENGTH);
	cr_assert(engine_wait(&f, &p, 4, "\"status\":\"incomplete\",\"background\":false,\"error\":null,\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"),
		  "%s", buf_cstr(&p.got));
	peer_fini(&p);

	p = engine_connect(&f); /* what came last is cut off, and nothing else; ids are text */
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\", \"request_id\": \"a\\\"b\\\\\"}");
	emit(&f, "<think>hm</think>So", FAKE_LENGTH);
	cr_assert(engine_wait(&f, &p, 5, "\"truncation\":\"disabled\"}"), "%s", buf_cstr(&p.got));
	doc = json_behind(buf_cstr(&p.got), "\r\n\r\n");
	json_val output = json_get(json_root(doc), "output");
	cr_assert_str_eq(cstr_at(json_at(output, 0), "status"), "completed");
	cr_assert_str_eq(cstr_at(json_at(output, 1), "status"), "incomplete");
	cr_assert_str_eq(cstr_at(json_at(output, 1), "id"), "msg_a\"b\\_1");
	json_free(&doc);
	peer_fini(&p);

	p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\"}");
	emit(&f, "", FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 6, "\"content\":[{\"type\":\"output_text\",\"text\":\"\","), "%s", buf_cstr(&p.got));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(responses, a_call_that_a_stop_ended_is_incomplete)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\", \"stop\": \"1\", " TOOLS "}");
	fake_emit(&f, &(struct fake_output){.request = 0, .text = CALL "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": ",
					    .finish = FAKE_STOP, .stop_kind = TERCET_STOP_STRING});
	cr_assert(engine_wait(&f, &p, 1, "\"truncation\":\"disabled\"}"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = json_behind(buf_cstr(&p.got), "\r\n\r\n");
	json_val output = json_get(json_root(doc), "output");
	cr_assert_str_eq(cstr_at(json_at(output, 0), "status"), "completed");
	cr_assert_str_eq(cstr_at(json_at(output, 1), "type"), "function_call");
	cr_assert_str_eq(cstr_at(json_at(output, 1), "status"), "incomplete");
	cr_assert_str_eq(cstr_at(json_root(doc), "status"), "completed");
	json_free(&doc);
	peer_fini(&p);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- events */

/* The types in their order, numbers without a gap, and the deltas of a kind together. */
static void check_events(const char *got, const char *const *types, size_t count)
{
	size_t i = 0;
	for (const char *at = strstr(got, "event: "); at; at = strstr(at + 1, "event: "), i++) {
		char head[128];
		cr_assert_lt(i, count, "more events: %s", at);
		snprintf(head, sizeof(head), "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%zu,", types[i], types[i], i);
		cr_assert_eq(strncmp(at, head, strlen(head)), 0, "%s is not %s", at, head);
	}
	cr_assert_eq(i, count, "%s", got);
}

Test(responses, streams_have_events)
{
	static struct engine_fixture f;
	char path[32];
	setup_forms(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\", \"stream\": true, " TOOLS "}");
	emit(&f, "<think>h", FAKE_GOES_ON);
	emit(&f, "m</think>\n\nSo", FAKE_GOES_ON);
	emit(&f, ". <tool_call>{\"name\": \"add\", \"argu", FAKE_GOES_ON);
	emit(&f, "ments\": {\"x\"", FAKE_GOES_ON);
	emit(&f, ": 1}}</tool_call>\nDone.", FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 1, "event: response.completed"), "%s", buf_cstr(&p.got));
	cr_assert(engine_wait(&f, &p, 1, "\"truncation\":\"disabled\"}}"));
	static const char *const types[] = {
		"response.created", "response.in_progress",
		"response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
		"response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
		"response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done",
		"response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.delta",
		"response.function_call_arguments.done", "response.output_item.done",
		"response.output_item.added", "response.content_part.added", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done",
		"response.completed"};
	const char *got = buf_cstr(&p.got);
	check_events(got, types, COUNT_OF(types));
	cr_assert_not_null(strstr(got, "\"delta\":\"{\\\"x\\\"\"}"), "%s", got);
	cr_assert_not_null(strstr(got, "\"delta\":\": 1}\"}"), "%s", got);
	cr_assert_not_null(strstr(got, ",\"arguments\":\"{\\\"x\\\": 1}\",\"name\":\"add\"}"), "%s", got);
	cr_assert_null(strstr(got, "[DONE]"));
	struct json_doc *doc = json_behind(got, "\ndata: ");
	check_items(json_get(json_get(json_root(doc), "response"), "output"), "Done.");
	json_free(&doc);
	peer_fini(&p);
	engine_teardown(&f);
}

Test(responses, a_stream_that_fails_says_so)
{
	static struct engine_fixture f;
	char path[32];
	setup(&f, path);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/v1/responses", "{\"input\": \"x\", \"stream\": true}");
	emit(&f, "So", FAKE_GOES_ON);
	fake_emit(&f, &(struct fake_output){.request = 0, .finish = FAKE_ERROR, .error = "a worker broke"});
	cr_assert(engine_wait(&f, &p, 1, "\"message\":\"The engine ended the request: a worker broke.\"}"), "%s", buf_cstr(&p.got));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"));
	peer_fini(&p);
	engine_teardown(&f);
}
