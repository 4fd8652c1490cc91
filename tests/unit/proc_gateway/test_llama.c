/* llama-server's own API: what its bodies become, what comes back whole and as events, what ends an answer, and what is
 * refused. */
#include "items_fixture.h"

#include "proc_gateway/llama.h"

#define P "\"prompt\": \"The fox\""
#define N "\"temperature\": 0, \"seed\": 7"
/* What completions take for the same defaults, which the demo's generation_config.json has. */
#define D "\"min_p\": 0, \"top_k\": 0"
/* Every field, as clients that send all of them do. */
#define ALL_NEUTRAL                                                                                                       \
	"\"typical_p\": 1.0, \"top_n_sigma\": -1, \"dynatemp_range\": 0, \"dynatemp_exponent\": 1, \"xtc_probability\": 0, "    \
	"\"xtc_threshold\": 0.1, \"dry_multiplier\": 0, \"dry_base\": 1.75, \"dry_allowed_length\": 2, "                        \
	"\"dry_penalty_last_n\": -1, \"dry_sequence_breakers\": [\"\\n\", \":\"], \"mirostat\": 0, \"mirostat_tau\": 5, "       \
	"\"mirostat_eta\": 0.1, \"adaptive_target\": -1, \"min_keep\": 0, \"n_keep\": 0, \"n_discard\": 0, \"cache_prompt\": true, " \
	"\"id_slot\": -1, \"lora\": [], \"n_probs\": 0, \"post_sampling_probs\": false, \"grammar\": \"\", \"logit_bias\": [], " \
	"\"grammar_lazy\": false, \"grammar_triggers\": [], \"stop\": [], \"repeat_penalty\": 1, \"repeat_last_n\": 64, "       \
	"\"presence_penalty\": 0, \"frequency_penalty\": 0, \"ignore_eos\": false, \"n_indent\": 0, \"t_max_predict_ms\": 0, "  \
	"\"t_max_prompt_ms\": 500, \"return_tokens\": false, \"timings_per_token\": false, \"return_progress\": false, "        \
	"\"response_fields\": [], \"speculative.n_max\": 16, \"reasoning_budget_tokens\": -1, \"stream\": false"

static const struct {
	const char *native, *same;
} same[] = {
	{"{" P ", " N ", \"n_predict\": 9}", "{" P ", " N ", " D ", \"max_tokens\": 9}"},
	{"{" P ", " N ", \"n_predict\": 9, " ALL_NEUTRAL "}", "{" P ", " N ", " D ", \"max_tokens\": 9}"},
	{"{" P ", \"seed\": 3, \"n_predict\": 4.0}", "{" P ", \"seed\": 3, \"max_tokens\": 4, \"temperature\": 0.6, \"top_p\": 0.9}"},
	{"{" P ", " N "}", "{" P ", " N ", \"max_tokens\": -1}"},
	{"{" P ", " N ", \"n_predict\": -1}", "{" P ", " N ", \"max_tokens\": -1}"},
	{"{" P ", " N ", \"n_predict\": 100000}", "{" P ", " N ", \"max_tokens\": -1}"},
	{"{" P ", " N ", \"max_tokens\": 5}", "{" P ", " N ", \"max_tokens\": 5}"},
	{"{" P ", " N ", \"n_predict\": 6, \"max_tokens\": 5}", "{" P ", " N ", \"max_tokens\": 6}"},
	/* prompts */
	{"{\"prompt\": [5, 6], " N ", \"n_predict\": 9}", "{\"prompt\": [5, 6], " N ", \"max_tokens\": 9}"},
	{"{\"prompt\": {\"prompt_string\": \"The fox\"}, " N ", \"n_predict\": 9}", "{" P ", " N ", \"max_tokens\": 9}"},
	{"{\"prompt\": [\"The fox\"], " N ", \"n_predict\": 9}", "{" P ", " N ", \"max_tokens\": 9}"},
	{"{\"prompt\": [\"\", 5, 6], " N ", \"n_predict\": 9}", "{\"prompt\": [4091, 5, 6], " N ", \"max_tokens\": 9}"},
	{"{\"prompt\": [5, \"<|end|>\", 6], " N ", \"n_predict\": 9}", "{\"prompt\": [5, 4095, 6], " N ", \"max_tokens\": 9}"},
	{"{\"prompt\": [[5, \"<|end|>\", 6]], " N ", \"n_predict\": 9}", "{\"prompt\": [5, 4095, 6], " N ", \"max_tokens\": 9}"},
	/* sampling */
	{"{" P ", \"seed\": 1, \"temperature\": 0.7, \"top_k\": 40, \"top_p\": 0.5, \"min_p\": 0.1, \"n_predict\": 2}",
	 "{" P ", \"seed\": 1, \"temperature\": 0.7, \"top_k\": 40, \"top_p\": 0.5, \"min_p\": 0.1, \"max_tokens\": 2}"},
	{"{" P ", \"seed\": 1, \"temperature\": -1, \"top_k\": -5, \"top_p\": 2, \"min_p\": -1, \"n_predict\": 2}",
	 "{" P ", \"seed\": 1, \"temperature\": 0, \"top_k\": 0, \"top_p\": 1, \"min_p\": 0, \"max_tokens\": 2}"},
	{"{" P ", \"seed\": 1, \"top_k\": 40, \"top_p\": 0.5, \"min_p\": 0.1, \"samplers\": [\"top_k\", \"infill\"], \"n_predict\": 2}",
	 "{" P ", \"seed\": 1, \"temperature\": 1, \"top_k\": 40, \"top_p\": 1, \"min_p\": 0, \"max_tokens\": 2}"},
	{"{" P ", \"seed\": 1, \"top_k\": 40, \"top_p\": 0.5, \"samplers\": \"kpt\", \"temperature\": 2, \"typical_p\": 0.5, \"n_predict\": 2}",
	 "{" P ", \"seed\": 1, \"temperature\": 2, \"top_k\": 40, \"top_p\": 0.5, \"min_p\": 0, \"max_tokens\": 2}"},
	{"{" P ", \"seed\": 1, \"samplers\": [], \"n_predict\": 2}", "{" P ", \"seed\": 1, \"temperature\": 1, \"top_p\": 1, \"max_tokens\": 2}"},
	{"{" P ", " N ", \"xtc_probability\": 0.5, \"xtc_threshold\": 0.6, \"n_predict\": 2}", "{" P ", " N ", \"max_tokens\": 2}"},
	{"{" P ", " N ", \"repeat_penalty\": 1.3, \"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"repeat_last_n\": -1, \"n_predict\": 2}",
	 "{" P ", " N ", \"repetition_penalty\": 1.3, \"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"max_tokens\": 2}"},
	{"{" P ", " N ", \"repeat_penalty\": 1.3, \"repeat_last_n\": 0, \"n_predict\": 2}", "{" P ", " N ", \"max_tokens\": 2}"},
	/* the rest */
	{"{" P ", " N ", \"stop\": [\"x\", \"\", \"y\"], \"ignore_eos\": true, \"n_probs\": 3, \"n_predict\": 2}",
	 "{" P ", " N ", \"stop\": [\"x\", \"y\"], \"ignore_eos\": true, \"logprobs\": 3, \"max_tokens\": 2}"},
	{"{" P ", " N ", \"json_schema\": {\"type\": \"integer\"}, \"grammar\": \"\", \"n_predict\": 2}",
	 "{" P ", " N ", \"json_schema\": {\"type\": \"integer\"}, \"max_tokens\": 2}"},
	{"{" P ", " N ", \"grammar\": \"root ::= [a-z]+\", \"n_predict\": 2}", "{" P ", " N ", \"grammar\": \"root ::= [a-z]+\", \"max_tokens\": 2}"},
	{"{" P ", " N ", \"logit_bias\": [[5, 1], [5, 1.5], [6, false]], \"n_predict\": 2}", "{" P ", " N ", \"logit_bias\": {\"5\": 2.5, \"6\": -100}, \"max_tokens\": 2}"},
};

static void expect_same(const struct ipc_submit *a, const struct ipc_submit *b, const char *body)
{
	cr_expect_eq(a->max_tokens, b->max_tokens, "%s: %u, %u", body, a->max_tokens, b->max_tokens);
	cr_expect_eq(a->seed, b->seed, "%s", body);
	cr_expect_eq(a->temperature, b->temperature, "%s: %g", body, (double)a->temperature);
	cr_expect_eq(a->top_k, b->top_k, "%s", body);
	cr_expect_eq(a->top_p, b->top_p, "%s: %g", body, (double)a->top_p);
	cr_expect_eq(a->min_p, b->min_p, "%s", body);
	cr_expect_eq(a->repetition_penalty, b->repetition_penalty, "%s", body);
	cr_expect_eq(a->presence_penalty, b->presence_penalty, "%s", body);
	cr_expect_eq(a->frequency_penalty, b->frequency_penalty, "%s", body);
	cr_expect_eq(a->flags, b->flags, "%s", body);
	cr_expect_eq(a->logprobs, b->logprobs, "%s", body);
	cr_expect_eq(a->grammar_kind, b->grammar_kind, "%s", body);
	cr_expect_eq(a->bias_ids_count, b->bias_ids_count, "%s", body);
	cr_expect_eq(a->stop_strings_count, b->stop_strings_count, "%s", body);
}

Test(llama, bodies_are_those_of_completions)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	for (u32 i = 0; i < COUNT_OF(same); i++) {
		struct peer p = engine_connect(&f), other = engine_connect(&f);
		ask(&f, &p, i % 2 ? "/completions" : "/completion", same[i].native);
		ask(&f, &other, "/v1/completions", same[i].same);
		const struct fake_request *a = &f.requests[2 * i], *b = &f.requests[2 * i + 1];
		cr_assert_eq(a->token_count, b->token_count, "%s", same[i].native);
		cr_expect_arr_eq(a->tokens, b->tokens, b->token_count * sizeof(u32), "%s", same[i].native);
		expect_same(&a->submit, &b->submit, same[i].native);
		peer_fini(&p);
		peer_fini(&other);
	}
	engine_teardown(&f);
}

Test(llama, what_a_model_does_not_say_is_as_llama_server_has_it)
{
	static struct engine_fixture f;
	engine_setup(&f, "generation_config", "none");
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/completion", "{" P ", \"n_predict\": 2}");
	const struct ipc_submit *s = &f.requests[0].submit;
	cr_expect_float_eq(s->temperature, 0.8f, 1e-6f);
	cr_expect_float_eq(s->top_p, 0.95f, 1e-6f);
	cr_expect_float_eq(s->min_p, 0.05f, 1e-6f);
	cr_expect_eq(s->top_k, 40);
	cr_expect_leq(s->seed, 0xffffffffu, "a seed that was drawn fits what clients keep it in");
	peer_fini(&p);
	struct peer q = engine_connect(&f);
	peer_get(&q, "/props");
	cr_assert(engine_wait(&f, &q, 0, "is_sleeping"), "%s", buf_cstr(&q.got));
	struct json_doc *doc = peer_json(&q);
	json_val props = json_root(doc), params = json_get(json_get(props, "default_generation_settings"), "params");
	f64 temperature = 0;
	u64 number = 0;
	cr_assert(json_double(json_get(params, "temperature"), &temperature));
	cr_expect_float_eq(temperature, 0.8, 1e-6);
	cr_assert(json_uint(json_get(json_get(props, "default_generation_settings"), "n_ctx"), &number));
	cr_expect_eq(number, FAKE_MODEL_LEN);
	cr_assert(json_uint(json_get(props, "total_slots"), &number));
	cr_expect_eq(number, 256);
	cr_expect_str_eq(cstr_at(props, "model_alias"), "demo");
	cr_expect_str_eq(cstr_at(props, "bos_token"), "<|begin_of_text|>");
	cr_expect_not_null(strstr(cstr_at(props, "chat_template"), "<|assistant|>"));
	json_free(&doc);
	peer_fini(&q);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- what is wrong */

static const struct {
	const char *body, *wanted;
} wrong[] = {
	{"", "The request body is empty"},
	{"[1]", "must be a JSON object"},
	{"{\"prompt\": ", "not valid JSON"},
	{"{}", "Field 'prompt' is missing"},
	{"{\"prompt\": 5}", "Field 'prompt': 5 is no prompt"},
	{"{\"prompt\": []}", "Field 'prompt': [] is empty"},
	{"{\"prompt\": [1, true]}", "Field 'prompt': true"},
	{"{\"prompt\": [1, \"a\", 4096]}", "Field 'prompt': 4096 is no token of this model"},
	{"{\"prompt\": [1, \"a\", -1]}", "Field 'prompt': -1 is no token"},
	{"{\"prompt\": [\"a\", [\"b\", [1]]]}", "Field 'prompt': [1] is no token"},
	{"{\"prompt\": [\"a\", null]}", "Field 'prompt': null"},
	{"{\"prompt\": {\"prompt_string\": 5}}", "as 'prompt_string' is no text"},
	{"{\"prompt\": {\"prompt_string\": \"a\", \"multimodal_data\": [\"AAAA\"]}}", "takes no images"},
	{"{" P ", \"n_predict\": \"9\"}", "Field 'n_predict': \\\"9\\\" is not a number"},
	{"{" P ", \"n_predict\": 1.5}", "Field 'n_predict': 1.5 is not an integer"},
	{"{" P ", \"n_predict\": 1e300}", "Field 'n_predict'"},
	{"{" P ", \"temperature\": \"hot\"}", "Field 'temperature': \\\"hot\\\" is not a number"},
	{"{" P ", \"temperature\": 101}", "Field 'temperature': 101"},
	{"{" P ", \"top_p\": -1}", "Field 'top_p': -1"},
	{"{" P ", \"top_k\": true}", "Field 'top_k': true is not a number"},
	{"{" P ", \"min_p\": 2}", "Field 'min_p': 2"},
	{"{" P ", \"typical_p\": 0.5}", "Field 'typical_p' is not supported by this server; leave it out or set it to 1."},
	{"{" P ", \"top_n_sigma\": 2}", "Field 'top_n_sigma' is not supported"},
	{"{" P ", \"dynatemp_range\": 0.5}", "Field 'dynatemp_range' is not supported"},
	{"{" P ", \"xtc_probability\": 0.5}", "Field 'xtc_probability' is not supported"},
	{"{" P ", \"dry_multiplier\": 0.8}", "Field 'dry_multiplier' is not supported"},
	{"{" P ", \"mirostat\": 2}", "Field 'mirostat' is not supported by this server; leave it out or set it to 0."},
	{"{" P ", \"adaptive_target\": 0.5}", "Field 'adaptive_target' is not supported"},
	{"{" P ", \"min_keep\": 2}", "Field 'min_keep' is not supported"},
	{"{" P ", \"reasoning_budget_tokens\": 10}", "Field 'reasoning_budget_tokens' is not supported"},
	{"{" P ", \"repeat_penalty\": 1.1, \"repeat_last_n\": 64}", "Field 'repeat_last_n': penalties of this server look at all tokens, not at the last 64"},
	{"{" P ", \"presence_penalty\": 1, \"repeat_last_n\": 64}", "Field 'repeat_last_n'"},
	{"{" P ", \"repeat_last_n\": -2}", "Field 'repeat_last_n': -2 is out of range"},
	{"{" P ", \"repeat_penalty\": 0}", "Field 'repeat_penalty': 0"},
	{"{" P ", \"samplers\": [\"top_k\", \"magic\"]}", "Field 'samplers'"},
	{"{" P ", \"samplers\": [5]}", "Field 'samplers': 5 is no name of a sampler"},
	{"{" P ", \"samplers\": \"kz\"}", "Field 'samplers': \\\"kz\\\" has a sampler that is not known"},
	{"{" P ", \"samplers\": {}}", "Field 'samplers': {} is no list"},
	{"{" P ", \"n_probs\": 21}", "Field 'n_probs': 21 is out of range"},
	{"{" P ", \"n_probs\": 2, \"post_sampling_probs\": true}", "Field 'post_sampling_probs': log-probabilities are those in front of sampling"},
	{"{" P ", \"post_sampling_probs\": 1}", "Field 'post_sampling_probs': 1 is not a switch"},
	{"{" P ", \"grammar_lazy\": true}", "Field 'grammar_lazy'"},
	{"{" P ", \"grammar\": \"root ::= (\"}", "'grammar'"},
	{"{" P ", \"grammar\": \"root ::= [a]\", \"json_schema\": {}}", "only one of them can be given"},
	{"{" P ", \"json_schema\": 5}", "Field 'json_schema': 5"},
	{"{" P ", \"lora\": [{\"id\": 0, \"scale\": 1}]}", "Field 'lora': there is no adapter 0"},
	{"{" P ", \"lora\": {\"id\": 0}}", "Field 'lora': {\\\"id\\\":0} is no list"},
	{"{" P ", \"lora\": [{\"scale\": 1}]}", "Field 'lora': {\\\"scale\\\":1} is no adapter"},
	{"{" P ", \"stop\": [5]}", "Field 'stop': 5 is not a string"},
	{"{" P ", \"stream\": 1}", "Field 'stream': 1 is not a switch"},
	{"{" P ", \"seed\": \"x\"}", "Field 'seed'"},
	{"{" P ", \"n_cmpl\": 0}", "Field 'n_cmpl': 0"},
	{"{" P ", \"n\": 129}", "Field 'n': 129"},
	{"{" P ", \"logit_bias\": 5}", "Field 'logit_bias': 5 are no biases"},
	{"{" P ", \"logit_bias\": [5]}", "Field 'logit_bias': 5 is no pair"},
	{"{" P ", \"logit_bias\": [[5]]}", "Field 'logit_bias': [5] is no pair"},
	{"{" P ", \"logit_bias\": [[5, true]]}", "Field 'logit_bias': [5,true] has no bias"},
	{"{" P ", \"logit_bias\": [[4096, 1]]}", "Field 'logit_bias': [4096,1] is not of a token of this model"},
	{"{" P ", \"logit_bias\": [[-1, 1]]}", "Field 'logit_bias': [-1,1] names no token"},
	{"{" P ", \"logit_bias\": [[5, 60], [5, 60]]}", "Field 'logit_bias': 120"},
	{"{" P ", \"logit_bias\": {\"4096\": 1}}", "is not of a token of this model"},
	{"{" P ", \"logit_bias\": {\"5\": null}}", "has no bias"},
	{"{" P ", \"n_indent\": \"a\"}", "Field 'n_indent'"},
	{"{" P ", \"t_max_predict_ms\": []}", "Field 't_max_predict_ms'"},
	{"{" P ", \"timings_per_token\": 2}", "Field 'timings_per_token'"},
	{"{" P ", \"response_fields\": \"content\"}", "Field 'response_fields': \\\"content\\\" is no list"},
	{"{" P ", \"response_fields\": [1]}", "Field 'response_fields': 1 is no name"},
	{"{" P ", \"min_tokens\": 9, \"n_predict\": 3}", "Field 'min_tokens': 9 is more than the 3 tokens"},
};

Test(llama, what_is_wrong_is_named)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	for (size_t i = 0; i < COUNT_OF(wrong); i++) {
		struct peer p = engine_connect(&f);
		peer_post(&p, "/completion", wrong[i].body);
		cr_expect(engine_wait(&f, &p, 0, wrong[i].wanted), "%s: %s", wrong[i].body, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 400"), "%s", wrong[i].body);
		cr_expect_not_null(strstr(buf_cstr(&p.got), "{\"error\":{\"code\":400,\"message\":\""), "%s: %s", wrong[i].body, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "\"type\":\"invalid_request_error\""), "%s: %s", wrong[i].body, buf_cstr(&p.got));
		peer_fini(&p);
	}
	cr_assert_eq(f.count, 0);
	engine_teardown(&f);
}

Test(llama, errors_have_the_form)
{
	static struct engine_fixture f;
	engine_setup(&f, "api_key", "sk-one");
	static const struct {
		const char *request, *status, *type;
	} cases[] = {
		{"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 401", "authentication_error"},
		{"GET /props HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 401", "authentication_error"},
		{"GET /completion HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\n\r\n", "HTTP/1.1 405", "invalid_request_error"},
		{"POST /props HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 405", "invalid_request_error"},
		{"POST /completion HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 413", "invalid_request_error"},
		{"POST /infill HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 40\r\n\r\n{\"input_prefix\":\"a\", \"input_suffix\": \"\"} ",
		 "HTTP/1.1 501", "not_supported_error"},
		{"POST /completion HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 29\r\n\r\n{\"prompt\":\"a\",\"model\": \"bad\"}", "HTTP/1.1 404",
		 "not_found_error"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char type[64];
		struct peer p = engine_connect(&f);
		peer_send(&p, cases[i].request);
		snprintf(type, sizeof(type), "\"type\":\"%s\"", cases[i].type);
		cr_expect(engine_wait(&f, &p, 0, type), "%s: %s", cases[i].request, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), cases[i].status), "%s: %s", cases[i].request, buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "{\"error\":{\"code\":"), "%s", buf_cstr(&p.got));
		peer_fini(&p);
	}
	f.gateway.draining = true;
	struct peer p = engine_connect(&f);
	peer_send(&p, "POST /completion HTTP/1.1\r\nHost: x\r\nx-api-key: sk-one\r\nContent-Length: 2\r\n\r\n{}");
	cr_expect(engine_wait(&f, &p, 0, "\"type\":\"unavailable_error\""), "%s", buf_cstr(&p.got));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 503"));
	peer_fini(&p);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- replies */

static u64 uint_at(json_val v, const char *key)
{
	u64 number = 12345678;
	json_uint(json_get(v, key), &number);
	return number;
}

static bool true_at(json_val v, const char *key)
{
	bool value = false;
	return json_bool(json_get(v, key), &value) && value;
}

/* The whole reply to `body` when the model answers so; to be freed by json_free. */
static struct json_doc *answer(struct engine_fixture *f, const char *body, const struct fake_output *output)
{
	static const u32 ids[] = {100, 101, 102};
	struct peer p = engine_connect(f);
	struct fake_output o = *output;
	ask(f, &p, "/completion", body);
	o.request = f->count - 1;
	o.tokens = ids;
	o.token_count = 2;
	fake_emit(f, &o);
	cr_assert(engine_wait(f, &p, 0, "\r\n\r\n"), "%s", buf_cstr(&p.got));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 200"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = peer_json(&p);
	peer_fini(&p);
	return doc;
}

Test(llama, a_reply_tells_what_it_is_made_of)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	struct json_doc *doc = answer(&f, "{" P ", " N ", \"n_predict\": 9, \"stop\": [\"x\", \"yes\"], \"return_tokens\": true, \"n_probs\": 1}",
				      &(struct fake_output){.text = "a\nb", .finish = FAKE_STOP, .stop_kind = TERCET_STOP_STRING, .stop_value = 1,
							    .cached = 2, .logprobs = 2});
	json_val r = json_root(doc), settings = json_get(r, "generation_settings"), probs = json_get(r, "completion_probabilities");
	cr_expect_str_eq(cstr_at(r, "content"), "a\nb");
	cr_expect_eq(json_count(json_get(r, "tokens")), 2);
	cr_expect(true_at(r, "stop") && true_at(r, "has_new_line") && !true_at(r, "truncated"));
	cr_expect_str_eq(cstr_at(r, "stop_type"), "word");
	cr_expect_str_eq(cstr_at(r, "stopping_word"), "yes");
	cr_expect_str_eq(cstr_at(r, "model"), "demo");
	cr_expect_str_eq(cstr_at(r, "prompt"), "<|begin_of_text|>The fox");
	cr_expect_eq(uint_at(r, "tokens_predicted"), 2);
	cr_expect_eq(uint_at(r, "tokens_evaluated"), f.requests[0].token_count);
	cr_expect_eq(uint_at(r, "tokens_cached"), 2);
	cr_expect_eq(uint_at(json_get(r, "timings"), "prompt_n"), f.requests[0].token_count - 2);
	cr_expect_eq(uint_at(json_get(r, "timings"), "predicted_n"), 2);
	cr_expect_eq(uint_at(settings, "seed"), 7);
	cr_expect_eq(uint_at(settings, "n_predict"), 9);
	cr_expect_eq(json_count(json_get(settings, "stop")), 2);
	cr_assert_eq(json_count(probs), 2);
	cr_expect_eq(uint_at(json_at(probs, 0), "id"), 100);
	cr_expect_eq(uint_at(json_at(json_get(json_at(probs, 0), "top_logprobs"), 0), "id"), 1);
	cr_expect_eq(json_count(json_get(json_at(probs, 1), "top_logprobs")), 1);
	json_free(&doc);
	doc = answer(&f, "{" P ", " N "}", &(struct fake_output){.text = "ab", .finish = FAKE_STOP});
	cr_expect_str_eq(cstr_at(json_root(doc), "stop_type"), "eos");
	cr_expect_eq(json_count(json_get(json_root(doc), "tokens")), 0);
	json_free(&doc);
	doc = answer(&f, "{" P ", " N "}", &(struct fake_output){.text = "ab", .finish = FAKE_LENGTH});
	cr_expect(true_at(json_root(doc), "truncated"), "the context ended it");
	json_free(&doc);
	doc = answer(&f, "{" P ", " N ", \"n_predict\": 2, \"response_fields\": [\"content\", \"generation_settings/top_k\", \"no/such\", \"\"]}",
		     &(struct fake_output){.text = "ab", .finish = FAKE_LENGTH});
	cr_expect_eq(json_count(json_root(doc)), 2);
	cr_expect_str_eq(cstr_at(json_root(doc), "content"), "ab");
	cr_expect_eq(uint_at(json_root(doc), "generation_settings/top_k"), 0);
	json_free(&doc);
	doc = answer(&f, "{" P ", \"n_predict\": 0}", &(struct fake_output){.text = "ab", .finish = FAKE_LENGTH});
	cr_expect_str_eq(cstr_at(json_root(doc), "content"), "");
	cr_expect_eq(uint_at(json_root(doc), "tokens_predicted"), 0);
	json_free(&doc);
	engine_teardown(&f);
}

Test(llama, several_answers_are_a_list)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	struct peer p = engine_connect(&f);
	peer_post(&p, "/completion", "{\"prompt\": [\"a\", [5, 6]], \"n_cmpl\": 2, " N ", \"n_predict\": 2}");
	cr_assert(engine_wait(&f, &p, 4, NULL), "%s", buf_cstr(&p.got));
	for (u32 i = 0; i < 4; i++) {
		static const char *const texts[] = {"0", "1", "2", "3"};
		fake_emit(&f, &(struct fake_output){.request = i, .tokens = (const u32[]){100}, .token_count = 1, .text = texts[i], .finish = FAKE_LENGTH});
	}
	cr_assert(engine_wait(&f, &p, 0, "timings"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = peer_json(&p);
	cr_assert_eq(json_count(json_root(doc)), 4);
	for (u32 i = 0; i < 4; i++) {
		json_val r = json_at(json_root(doc), i);
		cr_expect_eq(uint_at(r, "index"), i);
		cr_expect_eq(cstr_at(r, "content")[0], (char)('0' + i));
	}
	json_free(&doc);
	peer_fini(&p);
	engine_teardown(&f);
}

Test(llama, streams_end_with_an_event_that_says_so)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/completion", "{" P ", " N ", \"n_predict\": 5, \"stream\": true, \"timings_per_token\": true}");
	emit(&f, "one", FAKE_GOES_ON);
	cr_assert(engine_wait(&f, &p, 0, "\n\n"), "%s", buf_cstr(&p.got));
	struct json_doc *doc = json_behind(buf_cstr(&p.got), "data: ");
	json_val r = json_root(doc);
	cr_expect_str_eq(cstr_at(r, "content"), "one");
	cr_expect_eq(json_type(json_get(r, "stop")), JSON_BOOL);
	cr_expect(!true_at(r, "stop"));
	cr_expect_eq(json_count(json_get(r, "tokens")), 1, "streams tell the tokens");
	cr_expect_eq(uint_at(json_get(r, "timings"), "predicted_n"), 1);
	json_free(&doc);
	emit(&f, " two", FAKE_STOP);
	cr_assert(engine_wait(&f, &p, 0, "\"stop\":true"), "%s", buf_cstr(&p.got));
	doc = json_behind(buf_cstr(&p.got), "data: ");
	cr_expect_str_eq(cstr_at(json_root(doc), "content"), " two");
	cr_expect_str_eq(cstr_at(json_root(doc), "stop_type"), "eos");
	json_free(&doc);
	cr_expect_null(strstr(buf_cstr(&p.got), "[DONE]"));
	cr_expect_eq(count_of_text(buf_cstr(&p.got), "data: "), 2);
	peer_fini(&p);

	struct peer q = engine_connect(&f);
	ask(&f, &q, "/completion", "{" P ", " N ", \"stream\": true}");
	fake_emit(&f, &(struct fake_output){.request = f.count - 1, .finish = FAKE_ERROR, .error = "a worker died"});
	cr_expect(engine_wait(&f, &q, 0, "data: {\"error\":{\"code\":500,\"message\":\"The engine ended the request: a worker died.\",\"type\":\"server_error\"}}"),
		  "%s", buf_cstr(&q.got));
	cr_expect_null(strstr(buf_cstr(&q.got), "[DONE]"));
	peer_fini(&q);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- what ends an answer */

/* The engine hears that nobody wants more of it. */
static void expect_aborts(struct engine_fixture *f, struct peer *p, u32 count)
{
	u64 end = clock_now_ns() + 20000000000ull;
	while (f->aborts < count && clock_now_ns() < end)
		engine_pump(f, p);
	cr_expect_eq(f->aborts, count);
	cr_expect_eq(f->gateway.requests.choice_count, 0);
}

Test(llama, a_line_of_less_indentation_ends_the_answer)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	for (u32 stream = 0; stream < 2; stream++) {
		char body[256];
		struct peer p = engine_connect(&f);
		snprintf(body, sizeof(body), "{" P ", " N ", \"n_predict\": 50, \"n_indent\": 4, \"stream\": %s}", stream ? "true" : "false");
		ask(&f, &p, "/completion", body);
		emit(&f, "x = 1\n", FAKE_GOES_ON);
		emit(&f, "  ", FAKE_GOES_ON);
		emit(&f, "  y\n\n    z\n\t", FAKE_GOES_ON);
		emit(&f, "end", FAKE_GOES_ON);
		cr_assert(engine_wait(&f, &p, 0, "\"stop_type\":\"limit\""), "%s", buf_cstr(&p.got));
		cr_expect_null(strstr(buf_cstr(&p.got), "end"), "%s", buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "z\\n\\t"), "%s", buf_cstr(&p.got));
		cr_expect_not_null(strstr(buf_cstr(&p.got), "\"truncated\":false"));
		expect_aborts(&f, &p, stream + 1);
		peer_fini(&p);
	}
	engine_teardown(&f);
}

Test(llama, time_ends_an_answer_behind_a_whole_line)
{
	static struct engine_fixture f;
	engine_setup(&f, NULL, NULL);
	struct peer p = engine_connect(&f);
	ask(&f, &p, "/completion", "{" P ", " N ", \"n_predict\": 50, \"t_max_predict_ms\": 5, \"stream\": true}");
	emit(&f, "a", FAKE_GOES_ON);
	pump_for_ms(f.gateway.base, &p, 20);
	emit(&f, " b", FAKE_GOES_ON); /* late, but there is no line yet */
	cr_assert(engine_wait(&f, &p, 0, "\" b\""), "%s", buf_cstr(&p.got));
	cr_expect_eq(f.aborts, 0);
	emit(&f, "\nc", FAKE_GOES_ON);
	cr_assert(engine_wait(&f, &p, 0, "\"stop_type\":\"limit\""), "%s", buf_cstr(&p.got));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "\\nc"));
	expect_aborts(&f, &p, 1);
	peer_fini(&p);
	engine_teardown(&f);
}

/* ---------------------------------------------------------------- filling in */

/* The demo's tokenizer with its added tokens renamed: id 4091 + i is names[i]. */
static struct tokenizer *renamed(const char *const names[5])
{
	static const char *const old[5] = {"<|begin_of_text|>", "<|end_of_text|>", "<|user|>", "<|assistant|>", "<|end|>"};
	struct buf json = {0}, made = {0};
	struct tokenizer *t = NULL;
	struct err_msg em;
	FILE *file = fopen(DEMO_DIR "/tokenizer.json", "r");
	cr_assert_not_null(file);
	for (int byte; (byte = fgetc(file)) != EOF;)
		buf_append_char(&json, (char)byte);
	fclose(file);
	for (const char *at = buf_cstr(&json); *at;) {
		u32 i = 0;
		while (i < 5 && strncmp(at, old[i], strlen(old[i])) != 0)
			i++;
		buf_append(&made, i < 5 ? names[i] : at, i < 5 ? strlen(names[i]) : 1);
		at += i < 5 ? strlen(old[i]) : 1;
	}
	cr_assert_eq(tokenizer_parse(&t, made.data, made.bytes, &em), ERR_OK, "%s", em.text);
	buf_fini(&json);
	buf_fini(&made);
	return t;
}

static void expect_text(const struct tokenizer *t, const char *body, struct openai_model *m, const char *wanted)
{
	struct openai_request r;
	struct api_error e = {0};
	struct buf text = {0};
	m->tokenizer = t;
	cr_assert(llama_read(&r, m, OPENAI_LLAMA_INFILL, body, strlen(body), 0, &e), "%s: %s", body, e.message);
	tokenizer_decode(t, r.ids.data, r.ids.count, false, &text);
	cr_expect_str_eq(buf_cstr(&text), wanted, "%s: %s", body, buf_cstr(&text));
	buf_fini(&text);
	openai_request_fini(&r);
}

Test(llama, further_files_have_their_names_where_there_are_tokens_for_it)
{
	static const char *const whole[] = {"<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};
	static const char *const deepseek[] = {"<|begin_of_text|>", "<|end_of_text|>", "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>",
					       "<\uff5cfim\u2581end\uff5c>"};
	static const char *const lacking[] = {"<|begin_of_text|>", "<|end_of_text|>", "<PRE>", "<|assistant|>", "<MID>"};
	static const char *const names[] = {"demo"};
	static const char body[] = "{\"input_prefix\": \"a<|fim_middle|>\", \"input_suffix\": \"b\", \"prompt\": \"c\", \"n_predict\": 3, \"input_extra\": [{\"filename\": "
				   "\"x.c\", \"text\": \"one\"}, {\"text\": \"two\"}]}";
	struct tokenizer *t = renamed(whole);
	struct openai_model m = {.names = names, .name_count = 1, .max_model_len = FAKE_MODEL_LEN, .vocab_size = FAKE_VOCAB, .token_bytes_max = 32};
	struct openai_request r;
	struct api_error e = {0};
	u32 stops[8];
	generation_config_default(&m.defaults);
	cr_assert_eq(text_scratch_create(&m.scratch), ERR_OK);
	expect_text(t, body, &m, "<|repo_name|>myproject\n<|file_sep|>x.c\none<|file_sep|>tmp\ntwo<|file_sep|>filename\n<|fim_prefix|>a<|fim_middle|>c"
				 "<|fim_suffix|>b<|fim_middle|>");
	cr_assert_eq(llama_infill_stops(&m, stops), 2);
	cr_expect(stops[0] == 4091 && stops[1] == 4092, "what begins another file ends the answer");
	tokenizer_free(&t);
	t = renamed(deepseek);
	expect_text(t, body, &m, "\n\n--- snippet ---\n\none\n\n--- snippet ---\n\ntwo<\uff5cfim\u2581begin\uff5c>a<|fim_middle|>c<\uff5cfim\u2581hole\uff5c>b"
				 "<\uff5cfim\u2581end\uff5c>");
	cr_assert_eq(llama_infill_stops(&m, stops), 0);
	tokenizer_free(&t);
	t = renamed(lacking);
	m.tokenizer = t;
	cr_assert(!llama_read(&r, &m, OPENAI_LLAMA_INFILL, body, sizeof(body) - 1, 0, &e));
	cr_expect_eq(e.status, 501);
	cr_expect_not_null(strstr(e.message, "no token for the suffix;"), "%s", e.message);
	openai_request_fini(&r);
	tokenizer_free(&t);
	text_scratch_free(&m.scratch);
}
