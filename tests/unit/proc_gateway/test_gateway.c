/* The whole gateway over loopback, in front of a fake engine. */
#include "engine_fixture.h"

static const u32 ids[] = {100, 101, 102, 103, 104, 105};

#define SETUP(f, p, option, value)       \
	static struct engine_fixture f;  \
	engine_setup(&f, option, value); \
	struct peer p = engine_connect(&f)
#define TEARDOWN(f, p) \
	peer_fini(&p); \
	engine_teardown(&f)

static bool wait_reply(struct engine_fixture *f, struct peer *p, const char *status)
{
	char line[64];
	snprintf(line, sizeof(line), "HTTP/1.1 %s ", status);
	if (!engine_wait(f, p, 0, line))
		return false;
	/* whole bodies come in one write with their head, or soon after */
	for (int i = 0; i < 20; i++) {
		engine_pump(f, p);
		usleep(300);
	}
	return true;
}

static void wait_aborts(struct engine_fixture *f, u32 count)
{
	struct peer none = {.fd = -1, .closed = true};
	u64 end = clock_now_ns() + 20000000000ull;
	while (f->aborts < count && clock_now_ns() < end) {
		engine_pump(f, &none);
		usleep(300);
	}
}

/* Until nobody is served any more. */
static void wait_idle(struct engine_fixture *f)
{
	struct peer none = {.fd = -1, .closed = true};
	u64 end = clock_now_ns() + 20000000000ull;
	while ((f->gateway.requests.group_count || f->gateway.requests.choice_count ||
		http_server_active_count(f->gateway.http)) && clock_now_ns() < end) {
		engine_pump(f, &none);
		usleep(300);
	}
	cr_assert_eq(f->gateway.requests.group_count, 0);
	cr_assert_eq(f->gateway.requests.choice_count, 0);
	cr_assert_eq(http_server_active_count(f->gateway.http), 0);
}

static json_val choice_at(const struct json_doc *doc, size_t index)
{
	return json_at(json_get(json_root(doc), "choices"), index);
}

static u64 usage_of(const struct json_doc *doc, const char *name)
{
	u64 value = 0;
	cr_assert(json_uint(json_get(json_get(json_root(doc), "usage"), name), &value), "no usage.%s", name);
	return value;
}

Test(gateway, completion_is_put_together_from_outputs)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions", "{\"prompt\": \"Once upon\", \"max_tokens\": 5, \"seed\": 7}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].submit.seed, 7);
	cr_assert_eq(f.requests[0].submit.max_tokens, 5);
	cr_assert_float_eq(f.requests[0].submit.temperature, 0.6, 1e-6, "from generation_config.json");
	fake_emit(
		&f,
		&(struct fake_output){
			.request = 0, .tokens = ids, .token_count = 2, .text = " a t\xc3\xa9", .cached = 1});
	fake_emit(&f, &(struct fake_output){.request = 0,
					    .tokens = ids,
					    .token_count = 3,
					    .text = "xt\n",
					    .finish = FAKE_LENGTH,
					    .cached = 1});
	cr_assert(wait_reply(&f, &p, "200"));
	struct json_doc *doc = peer_json(&p);
	cr_assert(json_string_equals(json_get(choice_at(doc, 0), "text"), " a t\xc3\xa9xt\n"));
	cr_assert(json_string_equals(json_get(choice_at(doc, 0), "finish_reason"), "length"));
	cr_assert(json_string_equals(json_get(json_root(doc), "object"), "text_completion"));
	cr_assert_eq(usage_of(doc, "completion_tokens"), 5);
	cr_assert_eq(usage_of(doc, "prompt_tokens"), f.requests[0].token_count);
	cr_assert_eq(usage_of(doc, "total_tokens"), f.requests[0].token_count + 5);
	cr_assert_not_null(strstr(buf_cstr(&p.got), "\"cached_tokens\":1"));
	json_free(&doc);
	TEARDOWN(f, p);
}

Test(gateway, chat_is_rendered_by_the_models_template_and_streamed)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/chat/completions",
		  "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
		  "\"Hi\"}]}], "
		  "\"stream\": true, \"stream_options\": {\"include_usage\": true}, \"temperature\": 0}");
	cr_assert(engine_wait(&f, &p, 1, "\r\n\r\n"));
	cr_assert_eq(f.requests[0].tokens[0], 4091, "the template writes the beginning-of-text token, once");
	cr_assert_neq(f.requests[0].tokens[1], 4091);
	cr_assert_eq(f.requests[0].submit.max_tokens, FAKE_MODEL_LEN - f.requests[0].token_count);
	cr_assert_float_eq(f.requests[0].submit.temperature, 0, 0);
	fake_emit(&f, &(struct fake_output){.request = 0, .tokens = ids, .token_count = 1, .text = "He"});
	cr_assert(engine_wait(&f, &p, 1, "\"content\":\"He\""));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "Content-Type: text/event-stream"));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "\"delta\":{\"role\":\"assistant\",\"content\":\"He\"}"));
	fake_emit(&f, &(struct fake_output){.request = 0, .tokens = ids, .token_count = 1, .text = ""});
	fake_emit(
		&f,
		&(struct fake_output){
			.request = 0, .tokens = ids, .token_count = 1, .text = "y\"\n", .finish = FAKE_STOP});
	cr_assert(engine_wait(&f, &p, 1, "data: [DONE]\n\n\r\n0\r\n\r\n"));
	const char *got = buf_cstr(&p.got);
	cr_assert_not_null(strstr(got, "\"delta\":{\"content\":\"y\\\"\\n\"}"), "%s", got);
	cr_assert_not_null(strstr(got, "\"finish_reason\":\"stop\""));
	cr_assert_not_null(strstr(got, "\"choices\":[],\"usage\":{\"prompt_tokens\":"));
	cr_assert_not_null(strstr(got, "\"completion_tokens\":3"));
	cr_assert_eq(count_of_text(got, "data: "), 4,
		     "two chunks, usage, done: a chunk without text is not sent");
	cr_assert_eq(count_of_text(got, "\"role\":"), 1);
	TEARDOWN(f, p);
}

Test(gateway, choices_and_prompts_are_ordered_prompt_major_with_seeds_of_their_own)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": [[5, 6, 7], [8, 9]], \"n\": 2, \"seed\": 100, \"max_tokens\": 2}");
	cr_assert(engine_wait(&f, &p, 4, NULL));
	for (u32 i = 0; i < 4; i++) {
		cr_assert_eq(f.requests[i].submit.seed, 100 + i);
		cr_assert_eq(f.requests[i].token_count, i < 2 ? 3 : 2);
	}
	const char *texts[] = {"zero", "one", "two", "three"};
	for (int i = 3; i >= 0; i--)
		fake_emit(&f, &(struct fake_output){.request = (u32)i,
						    .tokens = ids,
						    .token_count = 2,
						    .text = texts[i],
						    .finish = FAKE_LENGTH,
						    .cached = 2});
	cr_assert(wait_reply(&f, &p, "200"));
	struct json_doc *doc = peer_json(&p);
	for (u32 i = 0; i < 4; i++)
		cr_assert(json_string_equals(json_get(choice_at(doc, i), "text"), texts[i]));
	cr_assert_eq(usage_of(doc, "prompt_tokens"), 5, "each prompt counts once");
	cr_assert_eq(usage_of(doc, "completion_tokens"), 8);
	json_free(&doc);
	struct buf out = {0};
	stats_export(&out, &(const struct stats_page *){f.gateway.stats}, 1, "m");
	cr_expect_not_null(strstr(buf_cstr(&out), "vllm:request_params_n_bucket{model_name=\"m\",le=\"1\"} 0\n"));
	cr_expect_not_null(strstr(buf_cstr(&out), "vllm:request_params_n_sum{model_name=\"m\"} 4\n"),
			   "each prompt is a request of two answers");
	cr_expect_not_null(
		strstr(buf_cstr(&out), "vllm:request_max_num_generation_tokens_sum{model_name=\"m\"} 4\n"));
	buf_fini(&out);
	TEARDOWN(f, p);
}

Test(gateway, streams_of_several_choices_keep_their_index)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": \"a\", \"n\": 3, \"stream\": true, \"max_tokens\": 4}");
	cr_assert(engine_wait(&f, &p, 3, NULL));
	for (u32 i = 0; i < 3; i++)
		fake_emit(&f, &(struct fake_output){.request = 2 - i,
						    .tokens = ids,
						    .token_count = 1,
						    .text = "x",
						    .finish = FAKE_LENGTH});
	cr_assert(engine_wait(&f, &p, 3, "[DONE]"));
	const char *got = buf_cstr(&p.got);
	for (u32 i = 0; i < 3; i++) {
		char index[64];
		snprintf(index, sizeof(index), "\"index\":%u,\"text\":\"x\"", i);
		cr_assert_eq(count_of_text(got, index), 1, "%s", got);
	}
	cr_assert_eq(count_of_text(got, "\"finish_reason\":\"length\""), 3);
	TEARDOWN(f, p);
}

Test(gateway, a_client_that_leaves_is_aborted_streaming_or_not)
{
	const char *bodies[] = {"{\"prompt\": \"a\", \"n\": 2, \"max_tokens\": 400}",
				"{\"prompt\": \"a\", \"n\": 2, \"max_tokens\": 400, \"stream\": true}"};
	for (size_t i = 0; i < 2; i++) {
		SETUP(f, p, NULL, NULL);
		peer_post(&p, "/v1/completions", bodies[i]);
		cr_assert(engine_wait(&f, &p, 2, NULL));
		fake_emit(&f,
			  &(struct fake_output){.request = 0, .tokens = ids, .token_count = 1, .text = "x"});
		for (int k = 0; k < 20; k++)
			engine_pump(&f, &p);
		peer_fini(&p);
		wait_aborts(&f, 2);
		cr_assert_eq(f.aborts, 2);
		cr_assert(f.requests[0].aborted && f.requests[1].aborted);
		wait_idle(&f);
		TEARDOWN(f, p);
	}
}

Test(gateway, refusals_become_429_with_retry_after_and_abort_the_other_choices)
{
	SETUP(f, p, NULL, NULL);
	f.refuse = ERR_BUSY;
	f.refuse_after = 1;
	f.retry_after_ms = 2500;
	peer_post(&p, "/v1/completions", "{\"prompt\": \"a\", \"n\": 2, \"stream\": true}");
	cr_assert(wait_reply(&f, &p, "429"));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "Retry-After: 3\r\n"), "%s", buf_cstr(&p.got));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "the queue is full"));
	wait_aborts(&f, 1);
	cr_assert_eq(f.aborts, 1);
	TEARDOWN(f, p);
}

Test(gateway, refusals_by_code_have_their_status)
{
	struct {
		enum err code;
		const char *status;
	} cases[] = {{ERR_SHUTDOWN, "503"}, {ERR_NEVER_FITS, "400"}, {ERR_INTERNAL, "500"}};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		SETUP(f, p, NULL, NULL);
		f.refuse = cases[i].code;
		peer_post(&p, "/v1/completions", "{\"prompt\": \"a\"}");
		cr_assert(wait_reply(&f, &p, cases[i].status), "%s", buf_cstr(&p.got));
		TEARDOWN(f, p);
	}
}

Test(gateway, errors_of_the_engine_end_replies_and_streams_with_an_error)
{
	SETUP(f, p, NULL, NULL);
	struct peer q = engine_connect(&f);
	peer_post(&p, "/v1/completions", "{\"prompt\": \"a\"}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	peer_post(&q, "/v1/completions", "{\"prompt\": \"a\", \"stream\": true}");
	cr_assert(engine_wait(&f, &q, 2, NULL));
	fake_emit(&f,
		  &(struct fake_output){.request = 0, .finish = FAKE_ERROR, .error = "the device failed"});
	fake_emit(&f, &(struct fake_output){.request = 1, .tokens = ids, .token_count = 1, .text = "x"});
	fake_emit(&f,
		  &(struct fake_output){.request = 1, .finish = FAKE_ERROR, .error = "the device failed"});
	cr_assert(wait_reply(&f, &p, "500"));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "the device failed"));
	cr_assert(engine_wait(&f, &q, 2, "[DONE]"));
	cr_assert_not_null(strstr(buf_cstr(&q.got), "data: {\"error\":{\"message\":"));
	peer_fini(&q);
	TEARDOWN(f, p);
}

Test(gateway, stop_reasons_say_what_stopped)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": \"a\", \"n\": 3, \"stop\": [\"END\", \"x\\ny\"], \"stop_token_ids\": [77]}");
	cr_assert(engine_wait(&f, &p, 3, NULL));
	fake_emit(&f, &(struct fake_output){.request = 0,
					    .tokens = ids,
					    .token_count = 1,
					    .finish = FAKE_STOP,
					    .stop_kind = 2,
					    .stop_value = 1});
	fake_emit(&f, &(struct fake_output){.request = 1,
					    .tokens = ids,
					    .token_count = 1,
					    .finish = FAKE_STOP,
					    .stop_kind = 1,
					    .stop_value = 77});
	fake_emit(&f,
		  &(struct fake_output){.request = 2, .tokens = ids, .token_count = 1, .finish = FAKE_STOP});
	cr_assert(wait_reply(&f, &p, "200"));
	struct json_doc *doc = peer_json(&p);
	u64 id = 0;
	cr_assert(json_string_equals(json_get(choice_at(doc, 0), "stop_reason"), "x\ny"));
	cr_assert(json_uint(json_get(choice_at(doc, 1), "stop_reason"), &id) && id == 77);
	cr_assert_eq(json_type(json_get(choice_at(doc, 2), "stop_reason")), JSON_NULL);
	json_free(&doc);
	TEARDOWN(f, p);
}

Test(gateway, echo_with_no_new_tokens_scores_the_prompt)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": \"The fox\", \"echo\": true, \"max_tokens\": 0, \"logprobs\": 2, "
		  "\"return_token_ids\": true}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].submit.max_tokens, 1);
	cr_assert_eq(f.requests[0].submit.prompt_logprobs, 2);
	fake_emit(&f, &(struct fake_output){.request = 0, .prompt_logprobs = 3});
	fake_emit(&f, &(struct fake_output){.request = 0,
					    .tokens = ids,
					    .token_count = 1,
					    .text = "unwanted",
					    .finish = FAKE_STOP,
					    .logprobs = 3});
	cr_assert(wait_reply(&f, &p, "200"));
	struct json_doc *doc = peer_json(&p);
	json_val choice = choice_at(doc, 0), logprobs = json_get(choice, "logprobs");
	cr_assert(json_string_equals(json_get(choice, "text"), "The fox"));
	cr_assert_eq(usage_of(doc, "completion_tokens"), 0);
	cr_assert_eq(json_count(json_get(logprobs, "tokens")), f.requests[0].token_count);
	cr_assert_eq(json_type(json_at(json_get(logprobs, "token_logprobs"), 0)), JSON_NULL);
	cr_assert_eq(json_type(json_at(json_get(logprobs, "token_logprobs"), 1)), JSON_DOUBLE);
	cr_assert_eq(json_count(json_at(json_get(logprobs, "top_logprobs"), 1)), 3);
	cr_assert_eq(json_count(json_get(choice, "token_ids")), f.requests[0].token_count);
	json_free(&doc);
	TEARDOWN(f, p);
}

Test(gateway, echo_puts_the_prompt_in_front_of_a_stream_once)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": \"The fox\", \"echo\": true, \"stream\": true, \"logprobs\": 0}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	fake_emit(&f, &(struct fake_output){.request = 0, .prompt_logprobs = 1});
	fake_emit(&f, &(struct fake_output){
			      .request = 0, .tokens = ids, .token_count = 1, .text = " ran", .logprobs = 1});
	fake_emit(&f, &(struct fake_output){.request = 0,
					    .tokens = ids,
					    .token_count = 1,
					    .text = ".",
					    .finish = FAKE_STOP,
					    .logprobs = 1});
	cr_assert(engine_wait(&f, &p, 1, "[DONE]"));
	const char *got = buf_cstr(&p.got);
	cr_assert_not_null(strstr(got, "\"text\":\"The fox ran\""), "%s", got);
	cr_assert_not_null(strstr(got, "\"text\":\".\""));
	cr_assert_not_null(strstr(got, "\"token_logprobs\":[null,-0.5"));
	TEARDOWN(f, p);
}

Test(gateway, chat_logprobs_and_token_ids_ride_along)
{
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/chat/completions",
		  "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"logprobs\": true, "
		  "\"top_logprobs\": 2, "
		  "\"return_token_ids\": true, \"max_completion_tokens\": 3}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].submit.logprobs, 2);
	fake_emit(&f, &(struct fake_output){.request = 0,
					    .tokens = ids,
					    .token_count = 3,
					    .text = "abc",
					    .finish = FAKE_LENGTH,
					    .logprobs = 3});
	cr_assert(wait_reply(&f, &p, "200"));
	struct json_doc *doc = peer_json(&p);
	json_val content = json_get(json_get(choice_at(doc, 0), "logprobs"), "content");
	cr_assert_eq(json_count(content), 3);
	cr_assert_eq(json_count(json_get(json_at(content, 0), "top_logprobs")), 2);
	cr_assert_eq(json_count(json_get(choice_at(doc, 0), "token_ids")), 3);
	cr_assert_eq(json_count(json_get(json_root(doc), "prompt_token_ids")), f.requests[0].token_count);
	cr_assert(json_string_equals(json_get(json_get(choice_at(doc, 0), "message"), "content"), "abc"));
	json_free(&doc);
	TEARDOWN(f, p);
}

/* {"prompt": "a", "user": "xxx..."}: long enough to be read by the thread. */
static char *long_body(const char *rest)
{
	struct buf b = {0};
	buf_printf(&b, "{\"prompt\": \"a\", %s \"user\": \"", rest);
	for (u32 i = 0; i < 2 * READER_BODY_BYTES; i++)
		buf_append_char(&b, 'x');
	buf_append_str(&b, "\"}");
	cr_assert(buf_ok(&b));
	return buf_reserve(&b, 1) ? (b.data[b.bytes] = '\0', b.data) : NULL;
}

Test(gateway, long_bodies_are_read_beside_the_loop_with_the_same_result)
{
	SETUP(f, p, NULL, NULL);
	char *body = long_body("\"seed\": 9,"), *bad = long_body("\"n\": 0,");
	peer_post(&p, "/v1/completions", body);
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].submit.seed, 9);
	fake_emit(&f,
		  &(struct fake_output){
			  .request = 0, .tokens = ids, .token_count = 1, .text = "yes", .finish = FAKE_STOP});
	cr_assert(engine_wait(&f, &p, 1, "\"text\":\"yes\""));
	peer_post(&p, "/v1/completions", bad);
	cr_assert(engine_wait(&f, &p, 1, "HTTP/1.1 400 "));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "'n'"));
	peer_post(&p, "/tokenize", body);
	cr_assert(engine_wait(&f, &p, 1, "\"count\":"));
	free(body);
	free(bad);
	TEARDOWN(f, p);
}

Test(gateway, what_may_have_a_grammar_is_compiled_beside_the_loop)
{
	static const char *const bodies[] = {"{\"guided_json\": {}, \"prompt\": \"a\"}", "{\"response_format\": {\"type\": \"json_object\"}}",
					     "{\"tool_choice\": \"required\"}", "{\"structured_outputs\":{}}"};
	for (size_t i = 0; i < COUNT_OF(bodies); i++)
		cr_assert(reader_is_for(bodies[i], strlen(bodies[i])), "%s", bodies[i]);
	const char *plain = "{\"prompt\": \"a\", \"max_tokens\": 3}";
	cr_assert(!reader_is_for(plain, strlen(plain)));
	SETUP(f, p, NULL, NULL);
	peer_post(&p, "/v1/completions", "{\"prompt\": \"a\", \"guided_regex\": \"(a\"}");
	cr_assert(engine_wait(&f, &p, 0, "HTTP/1.1 400 "));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "is not closed"));
	peer_post(&p, "/v1/completions",
		  "{\"prompt\": \"a\", \"response_format\": {\"type\": \"structural_tag\", \"triggers\": [\"<f\"], \"structures\": [{\"begin\": "
		  "\"<f>\", \"schema\": {\"type\": \"integer\"}, \"end\": \"</f>\"}]}}");
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].submit.grammar_kind, TERCET_GRAMMAR_PARTS);
	TEARDOWN(f, p);
}

Test(gateway, a_client_may_leave_while_its_long_body_is_read)
{
	SETUP(f, p, NULL, NULL);
	char *body = long_body("");
	struct peer none = {.fd = -1, .closed = true};
	for (int i = 0; i < 20; i++) {
		struct peer q = engine_connect(&f);
		peer_post(&q, "/v1/completions", body);
		for (int k = 0; k < i % 4; k++)
			engine_pump(&f, &none);
		peer_fini(&q);
	}
	for (int k = 0; k < 100; k++) { /* what is sent is not there at once */
		engine_pump(&f, &none);
		usleep(500);
	}
	wait_idle(&f);
	free(body);
	TEARDOWN(f, p);
}

Test(gateway, ending_while_a_long_body_is_read_leaves_nothing_behind)
{
	SETUP(f, p, NULL, NULL);
	char *body = long_body("");
	peer_post(&p, "/v1/completions", body);
	for (int k = 0; k < 3; k++)
		engine_pump(&f, &p);
	free(body);
	TEARDOWN(f, p);
}

#define OWN_TEMPLATE(source)                                                                                      \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"upon\"}], \"max_tokens\": 2, \"chat_template\": \"" source \
	"\"}"

Test(gateway, a_template_of_the_request_is_rendered_when_that_is_allowed)
{
	SETUP(f, p, "trust_request_chat_template", "true");
	struct u32_vec ids_wanted = {0};
	struct err_msg em;
	cr_assert_eq(tokenizer_encode(f.gateway.tokenizer, f.gateway.scratch, "Once upon", 9, 0, &ids_wanted, &em), ERR_OK);
	peer_post(&p, "/v1/chat/completions", OWN_TEMPLATE("Once {{ messages[0].content }}"));
	cr_assert(engine_wait(&f, &p, 1, NULL));
	cr_assert_eq(f.requests[0].token_count, ids_wanted.count);
	cr_assert_arr_eq(f.requests[0].tokens, ids_wanted.data, ids_wanted.count * sizeof(u32));
	u32_vec_fini(&ids_wanted);
	TEARDOWN(f, p);
}

Test(gateway, a_template_of_the_request_is_refused_with_its_error)
{
	SETUP(f, p, "trust_request_chat_template", "true");
	peer_post(&p, "/v1/chat/completions", OWN_TEMPLATE("{% if %}"));
	cr_assert(wait_reply(&f, &p, "400"));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "'chat_template': line 1, column "), "%s", buf_cstr(&p.got));
	TEARDOWN(f, p);
}
