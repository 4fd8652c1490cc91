/* Owns every request between its reading and the end of its reply: the engine requests behind it, what they
 * have produced, and who hears of it. Runs in the gateway, in the event loop. Never keeps an engine request
 * alive without a client that waits for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/session.h"
#include "proc_gateway/api_error.h"
#include "proc_gateway/llama.h"
#include "proc_gateway/openai_response.h"
#include "proc_gateway/reply_items.h"
#include "proc_gateway/requests.h"
#include "proc_gateway/sse.h"

void requests_open(struct requests *rs, struct tercet *engine, const struct openai_model *model,
		   struct stats_page *stats)
{
	*rs = (struct requests){.engine = engine, .model = model, .stats = stats};
}

/* ---------------------------------------------------------------- life of a group */

static void choice_fini(struct choice *c)
{
	if (c->req_id != 0) { /* nobody waits for it any more */
		if (tercet_discard(c->group->requests->engine, c->req_id) != TERCET_OK)
			LOG_DEBUG("DISCARD_UNKNOWN", "req=%llu", (unsigned long long)c->req_id);
		c->group->requests->choice_count--;
	}
	buf_fini(&c->text);
	thoughts_fini(&c->thoughts);
	buf_fini(&c->thought);
	tool_calls_fini(&c->tools);
	u32_vec_fini(&c->tokens);
	logprobs_fini(&c->logprobs);
	prompt_logprobs_fini(&c->prompt_logprobs);
}

static void group_free(struct group *g)
{
	struct requests *rs = g->requests;
	for (u32 i = 0; i < g->choice_count; i++)
		choice_fini(&g->choices[i]);
	if (g->previous)
		g->previous->next = g->next;
	else
		rs->groups = g->next;
	if (g->next)
		g->next->previous = g->previous;
	rs->group_count--;
	reply_items_fini(&g->items);
	openai_request_fini(&g->request);
	free(g);
}

/* The client went away: what runs for it is aborted now. */
static void on_http_close(void *ctx, struct http_request *http)
{
	struct group *g = ctx;
	(void)http;
	LOG_DEBUG("CLIENT_GONE", "req=%s choices=%u done=%u", g->id, g->choice_count, g->done_count);
	group_free(g);
}

static void stream_end(const struct group *g, struct http_request *http)
{
	if (llama_is_form_of(&g->request)) /* whose last event says so itself */
		http_stream_end(http);
	else
		sse_end(http);
}

/* Ends the reply with an error and frees the group. */
static void group_fail(struct group *g, const struct api_error *e)
{
	struct requests *rs = g->requests;
	if (g->gone) /* its close callback frees it */
		return;
	http_request_on_close(g->http, NULL, NULL);
	if (g->streaming && reply_form_of(&g->request)) {
		reply_items_stream_error(g, e);
		http_stream_end(g->http);
	} else if (g->streaming) {
		sse_event_begin(&rs->out);
		api_error_write(e, llama_is_form_of(&g->request) ? API_LLAMA : API_OPENAI, &rs->out);
		if (sse_event_send(g->http, &rs->out) != ERR_OK)
			LOG_DEBUG("STREAM_GONE", "req=%s", g->id);
		stream_end(g, g->http);
	} else {
		api_error_reply(e, g->http);
	}
	group_free(g);
}

static void group_fail_memory(struct group *g)
{
	struct api_error e;
	api_error_set(&e, 503, NULL, NULL, "There is no memory for the reply.");
	group_fail(g, &e);
}

/* ---------------------------------------------------------------- writing */

static void stream_begin(struct group *g)
{
	if (g->streaming || !g->request.fields.stream)
		return;
	g->streaming = true;
	sse_begin(g->http);
}

/* False: the client is gone, nothing more can be written. */
static bool stream_event(struct group *g)
{
	if (sse_event_send(g->http, &g->requests->out) == ERR_OK)
		return true;
	g->gone = true;
	return false;
}

static bool stream_choice(struct choice *c)
{
	struct group *g = c->group;
	stream_begin(g);
	if (reply_form_of(&g->request))
		return reply_items_stream(c);
	if (!openai_chunk_due(c))
		return true;
	sse_event_begin(&g->requests->out);
	openai_chunk_write(c, &g->requests->out);
	return stream_event(g);
}

/* Per prompt: each is a request of its own to who counts them. */
static void group_count(const struct group *g)
{
	u32 n = g->request.n, samples = g->request.samples;
	for (u32 first = 0; first < g->choice_count; first += samples) {
		u32 longest = 0;
		for (u32 i = first; i < first + n; i++)
			if (g->choices[i].token_count > longest)
				longest = g->choices[i].token_count;
		stats_observe(g->requests->stats, STATS_PARAMS_N, n);
		stats_observe(g->requests->stats, STATS_MAX_OUTPUT_LEN, longest);
	}
}

static void group_complete(struct group *g)
{
	struct requests *rs = g->requests;
	requests_choose_best(g);
	group_count(g);
	LOG_DEBUG("REQUEST_DONE", "req=%s choices=%u prompt_tokens=%u stream=%d", g->id, g->choice_count,
		  g->choices[0].prompt->count, g->streaming);
	struct http_request *http = g->http;
	if (g->streaming) {
		if (reply_form_of(&g->request)) {
			http_request_on_close(http, NULL, NULL);
			http_stream_end(http);
			group_free(g);
			return;
		}
		if (g->request.include_usage) {
			sse_event_begin(&rs->out);
			openai_usage_chunk_write(g, &rs->out);
			if (!stream_event(g))
				return;
		}
		http_request_on_close(http, NULL, NULL);
		stream_end(g, http);
	} else {
		buf_clear(&rs->out);
		if (reply_form_of(&g->request))
			reply_items_write(g, &rs->out);
		else if (g->request.endpoint == OPENAI_EMBEDDINGS)
			openai_embeddings_write(g, &rs->out);
		else
			openai_response_write(g, &rs->out);
		if (!buf_ok(&rs->out)) {
			group_fail_memory(g);
			return;
		}
		http_request_on_close(http, NULL, NULL);
		http_reply(http, 200, "application/json", rs->out.data, rs->out.bytes);
	}
	group_free(g);
	if (rs->out.capacity > 1024 * 1024) /* one huge reply should not be kept for ever */
		buf_fini(&rs->out);
}

/* ---------------------------------------------------------------- events of the engine */

/* Whose prompt log-probabilities stand for all: those of a search come with its first answer. */
static struct prompt_logprobs *prompt_logprobs_of(struct choice *c)
{
	return c->group->request.beam_width ? &(c - c->index % c->group->request.n)->prompt_logprobs : &c->prompt_logprobs;
}

/* What is said is left in the scratch; thoughts that nobody asked for are dropped. */
static struct buf *choice_think(struct choice *c, const char *text, size_t bytes, bool end)
{
	struct buf *said = &c->group->requests->said;
	buf_clear(said);
	thoughts_feed(&c->thoughts, text, bytes, &c->thought, said);
	if (end)
		thoughts_end(&c->thoughts, &c->thought, said);
	c->thought_any |= c->thought.bytes > 0;
	c->text.failed |= said->failed | c->thought.failed;
	if (!c->group->request.fields.include_reasoning)
		buf_clear(&c->thought);
	return said;
}

/* A message that the answer continues is the answer's beginning: what it thinks is a thought, whether it ends inside of it or not.
 * Without echo the answer goes on in the middle of it. */
static void choice_begin_message(struct choice *c, const char *message, size_t bytes)
{
	const struct openai_fields *f = &c->group->request.fields;
	struct buf said = {.data = (char *)(uintptr_t)message, .bytes = bytes};
	if (*thought_format_end(c->thoughts.format) && f->continue_final_message && bytes > 0) {
		c->thoughts.state = THOUGHTS_BEFORE;
		if (f->echo)
			said = *choice_think(c, message, bytes, false);
		else
			thoughts_continue(&c->thoughts, message, bytes);
	}
	if (f->echo)
		buf_append(&c->text, said.data, said.bytes);
}

/* What stands in front of the first generated token: with echo the prompt. All prompt log-probabilities are
 * there by then. */
static void choice_echo(struct choice *c)
{
	const struct group *g = c->group;
	const struct openai_request *r = &g->request;
	const u32 *ids = r->ids.data + c->prompt->first;
	if (r->endpoint == OPENAI_CHAT) {
		choice_begin_message(c, r->chat_begun, r->chat_begun_bytes);
		return;
	}
	if (!r->fields.echo)
		return;
	if (c->prompt->text)
		buf_append(&c->text, c->prompt->text, c->prompt->text_bytes);
	else
		tokenizer_decode(c->logprobs.tokenizer, ids, c->prompt->count, r->fields.skip_special_tokens,
				 &c->text);
	if (r->fields.return_token_ids)
		u32_vec_append(&c->tokens, ids, c->prompt->count);
	prompt_logprobs_echo(prompt_logprobs_of(c), ids, c->prompt->count, &c->logprobs);
}

static void choice_take_text(struct choice *c, const char *text, size_t bytes, bool end)
{
	if (c->thoughts.format != THOUGHT_FORMAT_NONE) {
		const struct buf *said = choice_think(c, text, bytes, end);
		text = said->data;
		bytes = said->bytes;
	}
	if (c->tools.format == TOOL_FORMAT_NONE)
		buf_append(&c->text, text, bytes);
	else
		tool_calls_feed(&c->tools, text, bytes, &c->text);
	if (end && c->tools.format != TOOL_FORMAT_NONE)
		tool_calls_end(&c->tools, &c->text);
}

static void choice_take_tokens(struct choice *c, const struct tercet_event *event)
{
	const struct tercet_logprobs *l = &event->logprobs;
	size_t listed = 0;
	c->token_count += event->token_count;
	choice_take_text(c, event->text, event->text_bytes, false);
	if (thoughts_in_thought(&c->thoughts))
		c->thought_tokens += event->token_count;
	if (c->group->request.fields.return_token_ids)
		u32_vec_append(&c->tokens, event->tokens, event->token_count);
	for (u32 i = 0; i < l->count; i++) {
		struct token_logprobs t = {.token = event->tokens[i],
					   .rank = l->ranks[i],
					   .count = l->counts[i],
					   .ids = l->ids + listed,
					   .values = l->values + listed};
		if (t.count > 0)
			c->logprob_sum += (f64)t.values[0];
		c->logprob_lost |= t.count == 0;
		listed += l->counts[i];
		logprobs_add(&c->logprobs, &t);
	}
	c->logprob_lost |= l->count < event->token_count;
}

static void choice_end(struct choice *c, const struct tercet_event *event)
{
	struct group *g = c->group;
	c->done = true;
	c->req_id = 0;
	g->requests->choice_count--;
	c->finish = g->request.scoring ? TERCET_FINISH_LENGTH : event->finish;
	c->stop_kind = g->request.scoring ? TERCET_STOP_NONE : event->stop_kind;
	c->stop_value = event->stop_value;
	choice_take_text(c, "", 0, true);
	g->done_count++;
}

/* The answer is long enough: what the engine would go on with is nobody's. */
static void choice_cut(struct choice *c)
{
	if (!c->done) {
		if (tercet_discard(c->group->requests->engine, c->req_id) != TERCET_OK)
			LOG_DEBUG("DISCARD_UNKNOWN", "req=%llu", (unsigned long long)c->req_id);
		choice_end(c, &(struct tercet_event){.finish = TERCET_FINISH_LENGTH});
	}
	c->finish = TERCET_FINISH_LENGTH;
	c->stop_kind = TERCET_STOP_NONE;
}

static void group_refused(struct group *g, enum tercet_result code, const char *text, u32 retry_after_ms)
{
	struct api_error e;
	requests_refusal(&e, code, text, retry_after_ms);
	group_fail(g, &e);
}

static enum tercet_result submit_choice(struct choice *c, struct tercet_error *error);

/* Embeddings may be lost with the process that had them, or with output that waited too long for this one: no client is told, for
 * the same text gives the same embedding again. True: the choice begins anew, or its group is gone. */
static bool embed_again(struct choice *c, const struct tercet_event *event)
{
	enum { TRIES = 8 };
	struct group *g = c->group;
	struct tercet_error error = {""};

	if (g->request.endpoint != OPENAI_EMBEDDINGS || event->finish == TERCET_FINISH_NONE || g->gone)
		return false;
	if ((openai_embedding_is_whole(c) && event->finish != TERCET_FINISH_ERROR) || ++c->tries == TRIES)
		return false;
	LOG_WARN("EMBEDDING_AGAIN", "req=%s index=%u tries=%u reason=\"%s\"", g->id, c->index, c->tries,
		 *event->error_text ? event->error_text : "it came incomplete");
	prompt_logprobs_fini(&c->prompt_logprobs);
	c->prompt_logprobs = (struct prompt_logprobs){0};
	c->req_id = 0;
	g->requests->choice_count--;
	enum tercet_result result = submit_choice(c, &error);
	if (result != TERCET_OK)
		group_refused(g, result, error.text, 0);
	return true;
}

static void on_output(struct choice *c, const struct tercet_event *event)
{
	struct group *g = c->group;
	struct api_error e;
	if (event->prompt_logprobs.count > 0 &&
	    !prompt_logprobs_add(&c->prompt_logprobs, &event->prompt_logprobs)) {
		group_fail_memory(g);
		return;
	}
	if (embed_again(c, event))
		return;
	if (!c->echoed && (event->token_count > 0 || event->finish != TERCET_FINISH_NONE)) {
		c->echoed = true;
		choice_echo(c);
	}
	c->cached_count = event->cached_count;
	if (g->request.fields.session_id)
		c->prompt_count = event->prompt_count;
	const size_t told = c->text.bytes;
	if (!g->request.scoring)
		choice_take_tokens(c, event);
	if (event->finish != TERCET_FINISH_NONE)
		choice_end(c, event);
	if (llama_is_form_of(&g->request) && llama_follow(c, told, event->token_count, clock_now_ns()))
		choice_cut(c);
	if (event->finish == TERCET_FINISH_ERROR) {
		api_error_set(&e, 500, NULL, NULL, "The engine ended the request: %s.",
			      *event->error_text ? event->error_text : "internal error");
		group_fail(g, &e);
		return;
	}
	if (c->done && g->request.endpoint == OPENAI_EMBEDDINGS && !openai_embedding_check(c, &e)) {
		group_fail(g, &e);
		return;
	}
	if (!buf_ok(&c->text) || c->tokens.failed || !tool_calls_ok(&c->tools)) {
		group_fail_memory(g);
		return;
	}
	if (g->gone || (g->request.fields.stream && !stream_choice(c)))
		return;
	if (g->done_count == g->choice_count)
		group_complete(g);
}

/* Choices of one engine request. */
static u32 answers_each(const struct group *g)
{
	return g->request.beam_width ? g->request.n : 1;
}

static void on_accepted(struct choice *c)
{
	struct group *g = c->group;
	if (c->accepted)
		return;
	for (u32 i = 0; i < answers_each(g); i++)
		c[i].accepted = true;
	g->accepted_count += answers_each(g);
	if (g->accepted_count < g->choice_count || g->gone)
		return;
	stream_begin(g);
	if (g->streaming && reply_form_of(&g->request)) /* a failure shows in `gone` */
		(void)reply_items_stream(c);
}

static void on_refused(struct choice *c, const struct tercet_event *event)
{
	struct group *g = c->group;
	for (u32 i = 0; i < answers_each(g); i++)
		c[i].req_id = 0;
	g->requests->choice_count -= answers_each(g);
	group_refused(g, event->code, event->error_text, event->retry_after_ms);
}

void requests_on_event(void *requests, const struct tercet_event *event)
{
	struct choice *c = event->user;
	(void)requests;
	if (!c)
		return;
	switch (event->type) {
	case TERCET_EVENT_ACCEPTED:
		on_accepted(c);
		break;
	case TERCET_EVENT_REFUSED:
		on_refused(c, event);
		break;
	case TERCET_EVENT_OUTPUT:
		on_output(c + event->answer, event);
		break;
	default:
		break; /* of the connection, not of a request: handled by the owner */
	}
}

/* ---------------------------------------------------------------- starting */

static enum tercet_result submit_choice(struct choice *c, struct tercet_error *error)
{
	struct group *g = c->group;
	const struct openai_request *r = &g->request;
	struct tercet_request q;
	tercet_request_init(&q);
	q.user = c;
	q.tokens = r->ids.data + c->prompt->first;
	q.token_count = c->prompt->count;
	q.params = r->params;
	q.params.seed += c->index; /* of the whole request: equal prompts in a list differ too */
	if (q.params.seed == 0)
		q.params.seed = 0x9e3779b97f4a7c15u; /* any fixed one: 0 would make the scheduler draw one */
	q.stop_ids = r->stop_ids;
	q.stop_id_count = r->stop_id_count;
	q.stop_strings = r->stops;
	q.stop_string_count = r->stop_count;
	q.bias_ids = r->bias_ids.data;
	q.bias_values = r->bias_values;
	q.bias_count = (u32)r->bias_ids.count;
	q.grammar_kind = r->grammar_kind;
	q.grammar_flags = r->grammar_flags;
	q.grammar = r->grammar.data;
	q.grammar_bytes = (uint32_t)r->grammar.bytes;
	q.lora = r->lora;
	q.cache_salt = r->cache_salt;
	q.priority = (int32_t)r->fields.priority;
	q.answer_count = answers_each(g);
	q.length_penalty = r->fields.length_penalty;
	if (r->fields.session_id) {
		q.session = r->fields.session_id;
		q.session_owner = r->session_owner;
		q.session_flags = (r->fields.session_start ? TERCET_SESSION_BEGIN : 0) |
				  (r->fields.session_end ? TERCET_SESSION_END : 0) |
				  (r->fields.has_session_step ? TERCET_SESSION_STEP : 0);
		q.session_step = (u32)r->fields.session_step;
		q.session_join = r->session_join < SESSION_JOIN_MAX ? r->session_join : SESSION_JOIN_MAX;
	}
	u64 req_id;
	enum tercet_result result = tercet_submit(g->requests->engine, &q, &req_id, error);
	if (result != TERCET_OK)
		return result;
	for (u32 i = 0; i < q.answer_count; i++)
		c[i].req_id = req_id + i;
	g->requests->choice_count += q.answer_count;
	return TERCET_OK;
}

static void choice_init(struct group *g, u32 index)
{
	const struct openai_request *r = &g->request;
	struct choice *c = &g->choices[index];
	c->group = g;
	c->index = index;
	c->prompt = &r->prompts[index / r->samples];
	c->prompt_count = c->prompt->count;
	c->logprobs.tokenizer = g->requests->model->tokenizer;
	c->logprobs.skip_special = r->fields.skip_special_tokens;
	c->logprobs.as_ids = r->fields.return_tokens_as_token_ids;
	c->thoughts.format = r->thought_format;
	c->thoughts.state = r->thought_open ? THOUGHTS_BEGIN : THOUGHTS_BEFORE;
	c->thoughts.calls = r->tool_format != TOOL_FORMAT_NONE;
	c->tools.format = r->tool_format;
	c->tools.tools = r->fields.tools;
	c->tools.one = !r->fields.parallel_tool_calls;
	c->tools.id_seed = XXH3_64bits_withSeed(g->id, strlen(g->id), index);
	if (r->fields.logprobs < 0)
		return;
	c->logprobs.form = llama_is_form_of(r) ? LOGPROBS_LLAMA : r->endpoint == OPENAI_CHAT ? LOGPROBS_CHAT : LOGPROBS_COMPLETIONS;
	c->logprobs.top = (u32)r->fields.logprobs;
}

void requests_start(struct requests *rs, struct http_request *http, struct openai_request *request,
		    const char *id)
{
	u32 count = request->prompt_count * request->samples;
	ASSERT(count > 0 && count <= OPENAI_CHOICES_MAX);
	struct group *g = calloc(1, sizeof(*g) + count * sizeof(struct choice));
	if (!g) {
		struct api_error e;
		openai_request_fini(request);
		api_error_set(&e, 503, NULL, NULL, "There is no memory for the request.");
		api_error_reply(&e, http);
		return;
	}
	g->requests = rs;
	g->http = http;
	g->request = *request;
	memset(request, 0, sizeof(*request));
	g->created_s = clock_wall_s();
	g->choice_count = count;
	snprintf(g->id, sizeof(g->id), "%s%s",
		 reply_form_of(&g->request)		    ? reply_form_of(&g->request)->id_prefix
		 : g->request.endpoint == OPENAI_CHAT	    ? "chatcmpl-"
		 : g->request.endpoint == OPENAI_EMBEDDINGS ? "embd-"
							    : "cmpl-",
		 id);
	g->next = rs->groups;
	if (rs->groups)
		rs->groups->previous = g;
	rs->groups = g;
	rs->group_count++;
	for (u32 i = 0; i < count; i++)
		choice_init(g, i);
	http_request_on_close(http, on_http_close, g);
	for (u32 i = 0; i < count; i += answers_each(g)) {
		struct tercet_error error = {""};
		enum tercet_result result = submit_choice(&g->choices[i], &error);
		if (result != TERCET_OK) {
			group_refused(g, result, error.text, 0);
			return;
		}
	}
}

void requests_fail_all(struct requests *rs, const char *text)
{
	struct api_error e;
	api_error_set(&e, 503, NULL, NULL, "%s", text);
	for (struct group *g = rs->groups, *next; g; g = next) {
		next = g->next;
		group_fail(g, &e);
	}
}

void requests_close(struct requests *rs)
{
	requests_fail_all(rs, "The server is shutting down.");
	buf_fini(&rs->out);
	buf_fini(&rs->said);
}
