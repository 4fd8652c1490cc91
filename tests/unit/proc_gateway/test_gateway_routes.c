/* Routes, errors and everything around generation, over loopback in front of a fake engine. */
#include "engine_fixture.h"

#define SETUP(f, p, option, value)       \
	static struct engine_fixture f;  \
	engine_setup(&f, option, value); \
	struct peer p = engine_connect(&f)
#define TEARDOWN(f, p) \
	peer_fini(&p); \
	engine_teardown(&f)

/* One POST on a connection of its own; the reply stays in p. */
static const char *reply_to(struct engine_fixture *f, struct peer *p, const char *path, const char *json)
{
	peer_fini(p);
	*p = engine_connect(f);
	if (json)
		peer_post(p, path, json);
	else
		peer_get(p, path);
	cr_assert(engine_wait(f, p, 0, "\r\n\r\n"));
	for (int i = 0; i < 5; i++)
		engine_pump(f, p);
	return buf_cstr(&p->got);
}

static void expect_error(struct engine_fixture *f, struct peer *p, const char *path, const char *json,
			 int status, const char *words)
{
	char line[64];
	const char *got = reply_to(f, p, path, json);
	json = json ? json : "";
	snprintf(line, sizeof(line), "HTTP/1.1 %d ", status);
	cr_expect_not_null(strstr(got, line), "%s %s: %s", path, json, got);
	cr_expect_not_null(strstr(got, "{\"error\":{\"message\":"), "%s: %s", json, got);
	cr_expect_not_null(strstr(got, words), "%s: no '%s' in %s", json, words, got);
}

static const struct {
	const char *path, *json;
	int status;
	const char *words;
} bad_requests[] = {
	{"/v1/completions", "", 400, "empty"},
	{"/v1/completions", "{\"prompt\": ", 400, "not valid JSON"},
	{"/v1/completions", "{\"prompt\": \"\xff\xfe\"}", 400, "not valid JSON"},
	{"/v1/completions", "[1]", 400, "JSON object"},
	{"/v1/completions", "{}", 400, "'prompt' is missing"},
	{"/v1/completions", "{\"prompt\": \"\", \"add_special_tokens\": false}", 400, "empty"},
	{"/v1/completions", "{\"prompt\": []}", 400, "is empty"},
	{"/v1/completions", "{\"prompt\": [[]]}", 400, "empty"},
	{"/v1/completions", "{\"prompt\": [1, \"a\"]}", 400, "token"},
	{"/v1/completions", "{\"prompt\": [4096]}", 400, "0 to 4095"},
	{"/v1/completions", "{\"prompt\": [-1]}", 400, "0 to 4095"},
	{"/v1/completions", "{\"prompt\": \"a\", \"model\": \"nope\"}", 404, "'demo'"},
	{"/v1/completions", "{\"prompt\": \"a\", \"n\": 0}", 400, "'n'"},
	{"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 0}", 400, "at least 1"},
	{"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 512}", 400, "512"},
	{"/v1/completions", "{\"prompt\": \"a\", \"min_tokens\": 17}", 400, "min_tokens"},
	{"/v1/completions", "{\"prompt\": \"a\", \"stop\": \"\"}", 400, "stop"},
	{"/v1/completions", "{\"prompt\": \"a\", \"stop\": [1]}", 400, "stop"},
	{"/v1/completions", "{\"prompt\": \"a\", \"stop_token_ids\": [\"x\"]}", 400, "stop_token_ids"},
	{"/v1/completions", "{\"prompt\": \"a\", \"stop_token_ids\": [4096]}", 400, "4095"},
	{"/v1/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"4096\": 1}}", 400, "4095"},
	{"/v1/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"1\": 101}}", 400, "-100 to 100"},
	{"/v1/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}", 400, "'x'"},
	{"/v1/completions", "{\"prompt\": \"a\", \"stream_options\": {}}", 400, "stream_options"},
	{"/v1/completions",
	 "{\"prompt\": \"a\", \"stream\": true, \"stream_options\": {\"include_usage\": 1}}", 400,
	 "include_usage"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [1]}",
	 400, "tools[0]"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"name\": \"f\"}, "
	 "{\"type\": \"x\"}]}",
	 400, "tools[1]"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"use_beam_search\": true, "
	 "\"temperature\": 0, "
	 "\"max_completion_tokens\": 0}",
	 400, "max_completion_tokens"},
	{"/v1/completions", "{\"prompt\": \"a\", \"best_of\": 2, \"stream\": true}", 400, "best_of"},
	{"/v1/completions", "{\"prompt\": \"a\", \"best_of\": 2, \"n\": 3}", 400, "at least"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"best_of\": 129}", 400, "best_of"},
	{"/v1/completions", "{\"prompt\": \"a\", \"length_penalty\": 2}", 400, "beam search only"},
	{"/v1/completions", "{\"prompt\": \"a\", \"early_stopping\": true}", 400, "beam search only"},
	{"/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "suffix"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"temperature\": 1}", 400,
	 "temperature"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"top_p\": 0.5}", 400, "top_p"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"top_k\": 5}", 400, "top_k"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"min_p\": 0.1}", 400, "min_p"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"repetition_penalty\": 1.1}",
	 400, "repetition_penalty"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"presence_penalty\": 1}", 400,
	 "presence_penalty"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"frequency_penalty\": 1}", 400,
	 "frequency_penalty"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"stop\": [\"x\"]}", 400,
	 "stop_token_ids"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"n\": 11}", 400, "at most 10"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"best_of\": 11}", 400,
	 "at most 10"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"n\": 3, \"best_of\": 2}", 400,
	 "at least"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"length_penalty\": 11}", 400,
	 "-10 to 10"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"length_penalty\": \"x\"}", 400,
	 "length_penalty"},
	{"/v1/completions", "{\"prompt\": \"a\", \"use_beam_search\": true, \"early_stopping\": \"never\"}",
	 400, "early_stopping"},
	{"/v1/completions",
	 "{\"prompt\": \"a\", \"use_beam_search\": true, \"echo\": true, \"max_tokens\": 0}", 400,
	 "at least 1"},
	{"/v1/completions", "{\"prompt\": \"a\", \"truncate_prompt_tokens\": 512}", 400, "1 to 511"},
	{"/v1/completions", "{\"prompt\": \"a\", \"truncation_side\": \"top\"}", 400, "left"},
	{"/v1/completions", "{\"prompt\": \"a\", \"cache_salt\": \"\"}", 400, "cache_salt"},
	{"/v1/completions", "{\"prompt\": \"a\", \"guided_regex\": \"(a\"}", 400, "is not closed"},
	{"/v1/chat/completions", "{}", 400, "'messages' is missing"},
	{"/v1/chat/completions", "{\"messages\": []}", 400, "is empty"},
	{"/v1/chat/completions", "{\"messages\": [5]}", 400, "messages[0]"},
	{"/v1/chat/completions", "{\"messages\": [{\"content\": \"a\"}]}", 400, "role"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}", 400, "content"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", 400,
	 "messages[0]"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", 400,
	 "image_url"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"response_format\": {\"type\": "
	 "\"json_schema\"}}",
	 400, "response_format"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tool_choice\": \"required\"}", 400,
	 "tool_choice"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"modalities\": [\"audio\"]}", 400,
	 "modalities"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template\": \"{% if "
	 "%}\"}",
	 400, "chat_template"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"continue_final_message\": "
	 "true, "
	 "\"add_generation_prompt\": true}",
	 400, "continue_final_message"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [5]}]}", 400,
	 "Field 'messages[0]': 5 is no tool call"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": {}}]}", 400, "are no tool calls"},
	{"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": \"f\"}]}]}", 400,
	 "is no tool call"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"function\": {\"name\": \"\"}}]}", 400,
	 "\"param\":\"tools[0]\""},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"function\": {\"name\": \"f\", "
	 "\"parameters\": 5}}]}",
	 400, "Field 'tools[0]': 5 are no parameters; it must be a JSON Schema"},
	{"/tokenize", "{}", 400, "prompt"},
	{"/tokenize", "{\"prompt\": [1]}", 400, "a string"},
	{"/tokenize", "{\"content\": [1.5]}", 400, "content"},
	{"/tokenize", "{\"content\": 1}", 400, "content"},
	{"/tokenize", "{\"content\": \"a\", \"prompt\": \"a\"}", 400, "one of them must be given"},
	{"/tokenize", "{\"messages\": [], \"prompt\": \"a\"}", 400, "one of them must be given"},
	{"/tokenize", "{\"prompt\": \"a\", \"with_pieces\": true}", 400, "return_token_strs"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"documents\": [{\"text\": \"b\"}, \"c\"]}", 400,
	 "Field 'documents[1]': \\\"c\\\" is not a document"},
	{"/v1/chat/completions",
	 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"documents\": [[]]}", 400, "\"param\":\"documents[0]\""},
	{"/detokenize", "{}", 400, "tokens"},
	{"/detokenize", "{\"tokens\": [99999]}", 400, "4095"},
};

Test(gateway_routes, bad_requests_are_told_what_is_wrong)
{
	SETUP(f, p, NULL, NULL);
	for (size_t i = 0; i < COUNT_OF(bad_requests); i++)
		expect_error(&f, &p, bad_requests[i].path, bad_requests[i].json, bad_requests[i].status,
			     bad_requests[i].words);
	cr_assert_eq(f.count, 0, "nothing of this reaches the engine");
	TEARDOWN(f, p);
}

/* A string of JSON may nest as deeply as the body that it stands in. */
Test(gateway_routes, tool_calls_with_deeply_nested_arguments_are_refused)
{
	SETUP(f, p, NULL, NULL);
	for (int levels = 40; levels <= 80; levels += 20) {
		struct buf json = {0};
		buf_append_str(
			&json,
			"{\"max_tokens\": 1, \"messages\": [{\"role\": \"assistant\", \"content\": \"\", "
			"\"tool_calls\": [{\"function\": {\"arguments\": \"{\\\"a\\\": ");
		for (int i = 0; i < levels; i++)
			buf_append_char(&json, '[');
		for (int i = 0; i < levels; i++)
			buf_append_char(&json, ']');
		buf_append_str(&json, "}\"}}]}]}");
		if (levels == 60) /* with what stands around it there are too many */
			expect_error(&f, &p, "/v1/chat/completions", buf_cstr(&json), 400,
				     "nested too deeply");
		else /* fits, or is no JSON and stays a string */
			cr_expect_not_null(
				strstr(reply_to(&f, &p, "/tokenize", buf_cstr(&json)), "HTTP/1.1 200 "));
		buf_fini(&json);
	}
	TEARDOWN(f, p);
}

Test(gateway_routes, a_prompt_that_is_too_long_is_told_both_lengths)
{
	SETUP(f, p, NULL, NULL);
	struct buf json = {0};
	buf_append_str(&json, "{\"prompt\": [");
	for (int i = 0; i < 600; i++)
		buf_append_str(&json, i ? ",5" : "5");
	buf_append_str(&json, "]}");
	expect_error(&f, &p, "/v1/completions", buf_cstr(&json), 400, "maximum context length is 512 tokens");
	cr_expect_not_null(strstr(buf_cstr(&p.got), "600"));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "context_length_exceeded"));
	buf_clear(&json);
	buf_append_str(&json, "{\"prompt\": \"");
	for (int i = 0; i < 100000; i++)
		buf_append_str(&json, "word ");
	buf_append_str(&json, "\"}");
	expect_error(&f, &p, "/v1/completions", buf_cstr(&json), 400, "at least");
	buf_fini(&json);
	TEARDOWN(f, p);
}

Test(gateway_routes, truncation_keeps_the_end_or_the_beginning_of_a_prompt)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions", "{\"prompt\": [1, 2, 3, 4, 5], \"truncate_prompt_tokens\": 2}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].token_count, 2);
	cr_assert_eq(f.requests[0].tokens[0], 4);
	struct peer q = engine_connect(&f);
	peer_post(&q, "/v1/completions",
		  "{\"prompt\": [1, 2, 3, 4, 5], \"truncate_prompt_tokens\": 2, \"truncation_side\": "
		  "\"right\"}");
	cr_assert(engine_wait(&f, &q, 2, NULL));
	cr_assert_eq(f.requests[1].tokens[0], 1);
	peer_fini(&q);
	TEARDOWN(f, p);
}

Test(gateway_routes, wrong_paths_and_methods_are_told)
{
	SETUP(f, p, NULL, NULL);
	expect_error(&f, &p, "/nowhere", NULL, 404, "/nowhere");
	expect_error(&f, &p, "/v1/completions", NULL, 405, "POST");
	cr_expect_not_null(strstr(buf_cstr(&p.got), "Allow: POST\r\n"));
	expect_error(&f, &p, "/v1/models", "{}", 405, "GET");
	TEARDOWN(f, p);
}

Test(gateway_routes, models_are_listed_and_found_by_any_served_name)
{
	SETUP(f, p, "served_model_name", "first,org/second");
	const char *got = reply_to(&f, &p, "/v1/models", NULL);
	cr_expect_not_null(strstr(got, "\"id\":\"first\""), "%s", got);
	cr_expect_not_null(strstr(got, "\"max_model_len\":512"));
	cr_expect_not_null(
		strstr(reply_to(&f, &p, "/v1/models/org%2Fsecond", NULL), "\"id\":\"org/second\""));
	cr_expect_not_null(strstr(reply_to(&f, &p, "/v1/models/org/second", NULL), "\"id\":\"org/second\""));
	expect_error(&f, &p, "/v1/models/third", NULL, 404, "'first', 'org/second'");
	peer_fini(&p);
	p = engine_connect(&f);
	peer_post(&p, "/v1/completions", "{\"prompt\": \"a\", \"model\": \"org/second\"}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	u32 token = 9;
	fake_emit(
		&f,
		&(struct fake_output){
			.request = 0, .tokens = &token, .token_count = 1, .text = "x", .finish = FAKE_STOP});
	cr_assert(engine_wait(&f, &p, 1, "\"model\":\"org/second\""));
	TEARDOWN(f, p);
}

Test(gateway_routes, tokenize_and_detokenize_go_back_and_forth)
{
	SETUP(f, p, NULL, NULL);
	reply_to(&f, &p, "/tokenize",
		 "{\"prompt\": \"The fox\", \"add_special_tokens\": false, \"return_token_strs\": true}");
	struct json_doc *doc = peer_json(&p);
	u64 count = 0;
	cr_assert(json_uint(json_get(json_root(doc), "count"), &count));
	cr_assert_eq(json_count(json_get(json_root(doc), "tokens")), count);
	cr_assert_eq(json_count(json_get(json_root(doc), "token_strs")), count);
	struct buf back = {0};
	struct json_writer w;
	json_begin(&w, &back);
	json_object_begin(&w);
	json_key(&w, "tokens");
	json_write_value(&w, json_get(json_root(doc), "tokens"));
	json_object_end(&w);
	json_free(&doc);
	cr_assert_not_null(
		strstr(reply_to(&f, &p, "/detokenize", buf_cstr(&back)), "{\"prompt\":\"The fox\",\"content\":\"The fox\"}"));
	const char *got =
		reply_to(&f, &p, "/tokenize", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
	cr_assert_not_null(strstr(got, "\"tokens\":[4091,4093,"), "%s", got);
	buf_fini(&back);
	TEARDOWN(f, p);
}

/* Its name of the text, and what it puts around it if nothing is said. */
Test(gateway_routes, tokenize_takes_what_clients_of_llama_server_send)
{
	static const char *const pairs[][2] = {
		{"{\"content\": \"The fox\"}", "{\"prompt\": \"The fox\", \"add_special_tokens\": false}"},
		{"{\"content\": \"The fox\", \"add_special\": true}", "{\"prompt\": \"The fox\"}"},
		{"{\"content\": \"The fox\", \"add_special_tokens\": true}", "{\"prompt\": \"The fox\"}"},
		{"{\"content\": \"\"}", "{\"prompt\": \"\", \"add_special_tokens\": false}"},
		{"{\"content\": [\"The\", \" fox\"], \"add_special\": true}", "{\"prompt\": \"The fox\"}"},
		{"{\"content\": \"a <|end|>\", \"parse_special\": true}", "{\"prompt\": \"a <|end|>\", \"add_special_tokens\": false}"}};
	SETUP(f, p, NULL, NULL);
	for (size_t i = 0; i < COUNT_OF(pairs); i++) {
		struct json_doc *docs[2];
		for (u32 k = 0; k < 2; k++) {
			cr_assert(strstr(reply_to(&f, &p, "/tokenize", pairs[i][k]), "HTTP/1.1 200 "));
			docs[k] = peer_json(&p);
		}
		json_val a = json_get(json_root(docs[0]), "tokens"), b = json_get(json_root(docs[1]), "tokens");
		cr_assert_eq(json_count(a), json_count(b), "%s", pairs[i][0]);
		for (size_t t = 0; t < json_count(a); t++) {
			u64 x = 0, y = 1;
			cr_assert(json_uint(json_at(a, t), &x) && json_uint(json_at(b, t), &y) && x == y);
		}
		json_free(&docs[0]);
		json_free(&docs[1]);
	}
	TEARDOWN(f, p);
}

Test(gateway_routes, keys_guard_everything_but_health_and_the_page)
{
	SETUP(f, p, "api_key", "sk-one");
	expect_error(&f, &p, "/v1/models", NULL, 401, "invalid_api_key");
	expect_error(&f, &p, "/v1/completions", "{\"prompt\": \"a\"}", 401, "Bearer");
	expect_error(&f, &p, "/metrics", NULL, 401, "Bearer");
	cr_expect_not_null(strstr(reply_to(&f, &p, "/health", NULL), "HTTP/1.1 200"));
	cr_expect_not_null(strstr(reply_to(&f, &p, "/", NULL), "HTTP/1.1 200"));
	peer_fini(&p);
	p = engine_connect(&f);
	peer_send(&p, "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-one\r\n\r\n");
	cr_assert(engine_wait(&f, &p, 0, "HTTP/1.1 200"));
	TEARDOWN(f, p);
}

Test(gateway_routes, browsers_of_allowed_origins_may_ask)
{
	SETUP(f, p, "allowed_origins", "https://a.example");
	peer_send(&p, "OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
		      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, "
		      "x-y\r\n\r\n");
	cr_assert(engine_wait(&f, &p, 0, "HTTP/1.1 204"));
	const char *got = buf_cstr(&p.got);
	cr_expect_not_null(strstr(got, "Access-Control-Allow-Origin: https://a.example\r\n"));
	cr_expect_not_null(strstr(got, "Access-Control-Allow-Headers: authorization, x-y\r\n"));
	cr_expect_not_null(strstr(got, "Vary: Origin\r\n"));
	peer_fini(&p);
	p = engine_connect(&f);
	peer_send(&p, "OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://b.example\r\n"
		      "Access-Control-Request-Method: POST\r\n\r\n");
	cr_assert(engine_wait(&f, &p, 0, "HTTP/1.1 403"));
	cr_expect_null(strstr(buf_cstr(&p.got), "Access-Control-Allow-Origin"));
	TEARDOWN(f, p);
}

Test(gateway_routes, request_ids_are_taken_over_or_made)
{
	SETUP(f, p, NULL, NULL);
	peer_send(&p, "GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id.7\r\n\r\n");
	cr_assert(engine_wait(&f, &p, 0, "X-Request-Id: my-id.7\r\n"));
	peer_fini(&p);
	p = engine_connect(&f);
	peer_send(&p, "GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: bad\"id\r\n\r\n");
	cr_assert(engine_wait(&f, &p, 0, "X-Request-Id: "));
	cr_assert_null(strstr(buf_cstr(&p.got), "bad\"id")); /* "bad" alone may be in a made one */
	TEARDOWN(f, p);
}

Test(gateway_routes, page_version_load_metrics_and_health_answer)
{
	SETUP(f, p, NULL, NULL);
	const char *got = reply_to(&f, &p, "/", NULL);
	cr_expect_not_null(strstr(got, "Content-Type: text/html"));
	cr_expect_not_null(strstr(got, "<!doctype html>"));
	cr_expect_null(strstr(got, "src=\"http"));
	cr_expect_not_null(strstr(reply_to(&f, &p, "/version", NULL), "{\"version\":\""));
	cr_expect_not_null(strstr(reply_to(&f, &p, "/load", NULL), "{\"server_load\":0}"));
	cr_expect_not_null(strstr(reply_to(&f, &p, "/ping", NULL), "HTTP/1.1 200"));
	got = reply_to(&f, &p, "/health", NULL);
	cr_expect_not_null(strstr(got, "\"status\":\"ok\""), "%s", got);
	cr_expect_not_null(strstr(got, "gateway-0"));
	cr_assert(engine_wait(&f, &p, 0, NULL));
	got = reply_to(&f, &p, "/metrics", NULL);
	cr_expect_not_null(strstr(got, "vllm:time_to_first_token_seconds_bucket{model_name=\"demo\""), "%s",
			   got);
	cr_expect_not_null(strstr(got, "tercet_device_busy_ratio"));
	cr_expect_not_null(
		strstr(got, "vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\""), "%s",
		got);
	TEARDOWN(f, p);
}

Test(gateway_routes, draining_finishes_what_runs_and_refuses_the_rest)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions", "{\"prompt\": \"a\"}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	f.gateway.draining = true;
	http_server_drain(f.gateway.http);
	struct peer late = engine_connect(&f);
	peer_post(&late, "/v1/completions", "{\"prompt\": \"a\"}");
	cr_assert(engine_wait(&f, &late, 1, "HTTP/1.1 503 "));
	cr_assert_not_null(strstr(buf_cstr(&late.got), "Retry-After: 1\r\n"));
	cr_assert_eq(f.count, 1);
	u32 token = 9;
	fake_emit(
		&f,
		&(struct fake_output){
			.request = 0, .tokens = &token, .token_count = 1, .text = "x", .finish = FAKE_STOP});
	cr_assert(engine_wait(&f, &p, 1, "HTTP/1.1 200 "));
	cr_assert_eq(gateway_run(&f.gateway), 0);
	peer_fini(&late);
	TEARDOWN(f, p);
}

Test(gateway_routes, a_missing_model_and_bad_defaults_are_told_at_the_start)
{
	struct gateway g;
	struct options o;
	struct err_msg em = {""};
	cr_assert_eq(options_init(&o), ERR_OK);
	cr_assert_eq(options_set(&o, "model", "/no/such/model", "test", &em), ERR_OK);
	cr_assert_neq(gateway_init(&g, &o, 0, &em), ERR_OK);
	cr_assert_not_null(strstr(em.text, "/no/such/model"), "%s", em.text);
	requests_open(&g.requests, NULL, NULL, NULL);
	gateway_fini(&g);
	options_fini(&o);
}
