/* The one context of a gateway process, made in main.c and passed down in pieces. */
#ifndef TERCET_PROC_GATEWAY_GATEWAY_H
#define TERCET_PROC_GATEWAY_GATEWAY_H

#include "common/lora_modules.h"
#include "common/options.h"
#include "common/shm_stats.h"
#include "common/trace.h"
#include "ipc/ipc.h"
#include "proc_gateway/auth.h"
#include "proc_gateway/cors.h"
#include "proc_gateway/http_server.h"
#include "proc_gateway/reader.h"
#include "proc_gateway/requests.h"
#include "proc_gateway/session_calls.h"

struct event;
struct event_base;

struct gateway {
	const struct options *options;
	u32 rank;
	struct event_base *base;
	struct event *engine_event, *boot_event, *term_event, *int_event;
	struct event *listen_event; /* with a shared port: the wait for the engine is over */
	struct boot boot;
	struct http_server *http;
	struct tercet *engine;
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct chat_template *chat_template;
	char default_name[256]; /* of the model, from its directory */
	const char *only_name;	/* &default_name, for model.names */
	char root[4096];	/* where the model came from: its directory, or the file in GGUF */
	struct lora_modules loras;
	struct openai_model model;
	struct requests requests;
	struct session_calls session_calls;
	struct reader *reader;
	struct auth auth;
	struct cors cors;
	struct stats_page *stats;
	struct trace *trace;
	i64 start_s;
	u64 id_secret; /* random; request ids are made of it and a count */
	u64 id_count;
	bool ready; /* the engine has answered once */
	bool draining;
	bool stopping;
	bool failed; /* could not begin to serve */
};

/* Loads tokenizer and templates, listens, and begins to connect to the engine. `em` is for people. */
MUST_CHECK enum err gateway_init(struct gateway *g, const struct options *o, u32 rank, struct err_msg *em);
/* Serves until drained or told to stop; the exit status of the process. */
int gateway_run(struct gateway *g);
void gateway_fini(struct gateway *g);

/* http_routes.c: the callbacks of the HTTP server; ctx is the gateway. */
void routes_on_head(void *ctx, struct http_request *r);
void routes_on_request(void *ctx, struct http_request *r);
void routes_error_body(void *ctx, const char *path, int status, const char *text, struct buf *out, const char **content_type);

/* page.c */
extern const unsigned char page_html[];
extern const unsigned int page_html_bytes;

#endif
