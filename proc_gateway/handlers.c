/* Owns the small endpoints and the way into the large ones; runs in the gateway. Never blocks. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "proc_gateway/api_error.h"
#include "proc_gateway/handlers.h"
#include "proc_gateway/llama.h"
#include "proc_gateway/metrics.h"
#include "proc_gateway/openai_response.h"

static const char json_type_text[] = "application/json";

static void reply_buf(struct http_request *r, int status, const char *type, struct buf *body)
{
	struct api_error e;
	if (buf_ok(body)) {
		http_reply(r, status, type, body->data ? body->data : "", body->bytes);
	} else {
		api_error_set(&e, 503, NULL, NULL, "There is no memory for the reply.");
		api_error_reply(&e, r);
	}
	buf_fini(body);
}

/* ---------------------------------------------------------------- what has a body */

/* What follows reading, wherever it was read. Takes `request` over, and `body`, the reply of those that the
 * engine has no part in. */
static void answer(struct gateway *g, struct http_request *r, struct openai_request *request, bool ok,
		   const struct api_error *e, struct buf *body)
{
	char id[ROUTES_ID_BYTES];
	if (!ok) {
		api_error_reply(e, r);
	} else if (openai_is_tokens(request->endpoint)) {
		reply_buf(r, 200, json_type_text, body);
	} else {
		const char *own = request->fields.has_request_id ? request->fields.request_id : NULL;
		routes_request_id(g, r, id);
		request->session_owner = auth_owner(&g->auth, auth_shown(http_request_head(r)));
		requests_start(&g->requests, r, request, own ? own : id);
		return;
	}
	openai_request_fini(request);
}

void handlers_on_read(void *ctx, struct reader_job *job)
{
	answer(ctx, job->http, &job->request, job->ok, &job->error, &job->reply);
	reader_job_free(job);
}

static void handle_body(struct gateway *g, struct http_request *r, enum openai_endpoint endpoint)
{
	struct openai_request request;
	struct buf reply = {0};
	struct api_error e;
	u64 tenant, begin_ns = clock_now_ns();
	size_t bytes;
	const char *body = http_request_body(r, &bytes);
	auth_check(&g->auth, auth_shown(http_request_head(r)), &tenant);
	if (reader_is_for(body, bytes) && reader_submit(g->reader, r, &g->model, endpoint, tenant))
		return;
	bool ok = openai_any_read(&request, &g->model, endpoint, body, bytes, tenant, &e);
	trace_add(g->trace, TRACE_HTTP, begin_ns, clock_now_ns(), 0, (u32)request.ids.count);
	if (ok && openai_is_tokens(endpoint))
		openai_tokens_write(&g->model, &request, &reply);
	answer(g, r, &request, ok, &e, &reply);
}

void handle_chat(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_CHAT);
}

void handle_completions(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_COMPLETIONS);
}

void handle_embeddings(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_EMBEDDINGS);
}

void handle_responses(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_RESPONSES);
}

void handle_messages(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_MESSAGES);
}

void handle_count_tokens(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_COUNT_TOKENS);
}

void handle_llama_completion(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_LLAMA_COMPLETION);
}

void handle_llama_infill(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_LLAMA_INFILL);
}

void handle_llama_embedding(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_LLAMA_EMBEDDING);
}

void handle_llama_template(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_LLAMA_TEMPLATE);
}

void handle_llama_props(struct gateway *g, struct http_request *r)
{
	struct buf body = {0};
	llama_props_write(g, &body);
	reply_buf(r, 200, json_type_text, &body);
}

void handle_tokenize(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_TOKENIZE);
}

void handle_detokenize(struct gateway *g, struct http_request *r)
{
	handle_body(g, r, OPENAI_DETOKENIZE);
}

void handle_session(struct gateway *g, struct http_request *r)
{
	const struct http_head *head = http_request_head(r);
	char *name = strdup(head->path + strlen("/v1/sessions/"));
	bool good = name && http_percent_decode(name);
	session_calls_start(&g->session_calls, r, good ? name : "", auth_owner(&g->auth, auth_shown(head)),
			    head->method == HTTP_METHOD_DELETE);
	free(name);
}

/* ---------------------------------------------------------------- models */

/* `lora`: of the adapter of that name; NULL: the model itself. */
static void write_model(struct json_writer *w, const struct gateway *g, const char *name, const struct lora_module *lora)
{
	json_object_begin(w);
	json_key(w, "id");
	json_write_cstr(w, name);
	json_key(w, "object");
	json_write_cstr(w, "model");
	json_key(w, "created");
	json_write_int(w, g->start_s);
	json_key(w, "owned_by");
	json_write_cstr(w, "tercet");
	json_key(w, "root");
	json_write_cstr(w, lora ? lora->path : g->root);
	json_key(w, "parent");
	if (lora)
		json_write_cstr(w, g->model.names[0]);
	else
		json_write_null(w);
	json_key(w, "max_model_len");
	json_write_uint(w, g->model.max_model_len);
	json_object_end(w);
}

void handle_models(struct gateway *g, struct http_request *r)
{
	struct buf body = {0};
	struct json_writer w;
	json_begin(&w, &body);
	json_object_begin(&w);
	json_key(&w, "object");
	json_write_cstr(&w, "list");
	json_key(&w, "data");
	json_array_begin(&w);
	for (u32 i = 0; i < g->model.name_count; i++)
		write_model(&w, g, g->model.names[i], NULL);
	for (u32 i = 0; i < g->loras.count; i++)
		write_model(&w, g, g->loras.items[i].name, &g->loras.items[i]);
	json_array_end(&w);
	json_object_end(&w);
	reply_buf(r, 200, json_type_text, &body);
}

void handle_model(struct gateway *g, struct http_request *r)
{
	struct buf body = {0}, served = {0};
	struct json_writer w;
	struct api_error e;
	char *name = strdup(http_request_head(r)->path + strlen("/v1/models/"));
	bool good = name && http_percent_decode(name);
	json_begin(&w, &body);
	for (u32 i = 0; good && i < g->model.name_count && body.bytes == 0; i++) {
		if (strcmp(name, g->model.names[i]) == 0)
			write_model(&w, g, g->model.names[i], NULL);
		buf_printf(&served, "%s'%.200s'", i ? ", " : "", g->model.names[i]);
	}
	for (u32 i = 0; good && i < g->loras.count && body.bytes == 0; i++) {
		if (strcmp(name, g->loras.items[i].name) == 0)
			write_model(&w, g, name, &g->loras.items[i]);
		buf_printf(&served, ", '%.200s'", g->loras.items[i].name);
	}
	if (body.bytes > 0) {
		reply_buf(r, 200, json_type_text, &body);
	} else {
		api_error_set(&e, 404, "model", "model_not_found",
			      "The model '%.200s' does not exist; this server has %s.", good ? name : "?",
			      buf_cstr(&served));
		api_error_reply(&e, r);
	}
	buf_fini(&served);
	free(name);
}

/* ---------------------------------------------------------------- the server itself */

void handle_health(struct gateway *g, struct http_request *r)
{
	struct buf body = {0};
	/* said before the supervisor acts on it; 0: it never does */
	u64 limit_s = g->options->progress_timeout > 0 ? (u64)g->options->progress_timeout : 60;
	bool engine = g->ready && tercet_is_ready(g->engine) && !g->draining;
	bool well = metrics_health_of(g->options->run_dir, engine, limit_s * 1000 / 2, clock_now_ns(), &body);
	http_reply_header(r, "Cache-Control", "no-store");
	reply_buf(r, well ? 200 : 503, json_type_text, &body);
}

void handle_version(struct gateway *g, struct http_request *r)
{
	static const char body[] = "{\"version\":\"" TERCET_RELEASE "\"}";
	(void)g;
	http_reply(r, 200, json_type_text, body, sizeof(body) - 1);
}

void handle_load(struct gateway *g, struct http_request *r)
{
	struct buf body = {0};
	buf_printf(&body, "{\"server_load\":%u}", g->requests.choice_count);
	reply_buf(r, 200, json_type_text, &body);
}

void handle_metrics(struct gateway *g, struct http_request *r)
{
	struct buf body = {0};
	struct err_msg em;
	struct api_error e;
	enum err err = metrics_write(g->options, g->model.names[0], &body, &em);
	if (err) {
		buf_fini(&body);
		api_error_set(&e, 500, NULL, NULL, "The statistics cannot be read: %s.", em.text);
		api_error_reply(&e, r);
		return;
	}
	reply_buf(r, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

void handle_page(struct gateway *g, struct http_request *r)
{
	(void)g;
	http_reply_header(r, "Cache-Control", "no-cache");
	/* nothing from elsewhere is loaded, and nothing may be */
	http_reply_header(r, "Content-Security-Policy",
			  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
			  "connect-src 'self'; "
			  "img-src data:; base-uri 'none'; form-action 'none'");
	http_reply(r, 200, "text/html; charset=utf-8", (const char *)page_html, page_html_bytes);
}
