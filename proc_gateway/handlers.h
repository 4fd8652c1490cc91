/* What the routes lead to. Each replies, or hands the request to requests.c, which will. */
#ifndef TERCET_PROC_GATEWAY_HANDLERS_H
#define TERCET_PROC_GATEWAY_HANDLERS_H

#include "proc_gateway/gateway.h"

enum { ROUTES_ID_BYTES = 130 };
/* The request's id: the client's X-Request-Id when it is a plain word, else one of ours. */
void routes_request_id(const struct gateway *g, const struct http_request *r, char out[ROUTES_ID_BYTES]);

/* For reader_create: a long body was read; ctx is the gateway. */
void handlers_on_read(void *ctx, struct reader_job *job);

void handle_chat(struct gateway *g, struct http_request *r);
void handle_messages(struct gateway *g, struct http_request *r);
void handle_count_tokens(struct gateway *g, struct http_request *r);
void handle_responses(struct gateway *g, struct http_request *r);
void handle_embeddings(struct gateway *g, struct http_request *r);
void handle_completions(struct gateway *g, struct http_request *r);
/* llama-server's own API. */
void handle_llama_completion(struct gateway *g, struct http_request *r);
void handle_llama_infill(struct gateway *g, struct http_request *r);
void handle_llama_embedding(struct gateway *g, struct http_request *r);
void handle_llama_template(struct gateway *g, struct http_request *r);
void handle_llama_props(struct gateway *g, struct http_request *r);
void handle_models(struct gateway *g, struct http_request *r);
void handle_model(struct gateway *g, struct http_request *r);
/* GET and DELETE of /v1/sessions/{id}. */
void handle_session(struct gateway *g, struct http_request *r);
void handle_tokenize(struct gateway *g, struct http_request *r);
void handle_detokenize(struct gateway *g, struct http_request *r);
void handle_health(struct gateway *g, struct http_request *r);
void handle_version(struct gateway *g, struct http_request *r);
void handle_load(struct gateway *g, struct http_request *r);
void handle_metrics(struct gateway *g, struct http_request *r);
void handle_page(struct gateway *g, struct http_request *r);

#endif
