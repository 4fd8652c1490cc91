/* A gateway over a fake engine: the two ROUTER sockets that the scheduler and the detokenizer bind, played by
 * the test, which decides what is accepted and what is generated. Everything runs in one thread. */
#ifndef TERCET_TESTS_ENGINE_FIXTURE_H
#define TERCET_TESTS_ENGINE_FIXTURE_H

#include "http_fixture.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "common/json.h"
#include "common/log.h"
#include "ipc/ipc.h"
#include "proc_gateway/gateway.h"

#ifndef DEMO_DIR
#define DEMO_DIR "demo"
#endif

enum { FAKE_REQUESTS_MAX = 64, FAKE_MODEL_LEN = 512, FAKE_VOCAB = 4096 };

struct fake_request {
	u64 req_id;
	u32 token_count;
	u32 tokens[FAKE_MODEL_LEN];
	struct ipc_submit submit; /* arrays are not valid any more */
	u32 made;		  /* tokens generated */
	bool ended;
	bool aborted;
};

struct engine_fixture {
	char run_dir[64];
	struct ipc_context *ctx;
	struct ipc_channel *submit, *output;
	ipc_peer submit_peer, output_peer;
	u64 client_id, chunk;
	bool attached;
	struct fake_request requests[FAKE_REQUESTS_MAX];
	u32 count;
	u32 aborts;
	/* what is done with submissions */
	enum err refuse;
	u32 refuse_after; /* only from this request on */
	u32 retry_after_ms;
	struct options options;
	struct gateway gateway;
};

static inline struct ipc_channel *fake_channel(struct engine_fixture *f, const char *name, enum ipc_role role)
{
	struct ipc_channel *ch;
	struct err_msg em;
	char endpoint[128];
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f->run_dir, name, &em), ERR_OK);
	struct ipc_channel_config config = {.name = name,
					    .endpoint = endpoint,
					    .pattern = IPC_ROUTER,
					    .bind = true,
					    .epoch = 1,
					    .role = role};
	cr_assert_eq(ipc_channel_open(&ch, f->ctx, &config, &em), ERR_OK, "%s", em.text);
	return ch;
}

static inline void fake_send(struct ipc_channel *ch, ipc_peer to, const struct ipc_msg *msg)
{
	cr_assert_eq(ipc_send(ch, to, msg), ERR_OK);
}

static inline void fake_send_engine(struct engine_fixture *f)
{
	static const u32 eos[] = {4092, 4095};
	struct ipc_msg m = {.type = IPC_TYPE_ENGINE};
	m.engine = (struct ipc_engine){.max_model_len = FAKE_MODEL_LEN,
				       .vocab_size = FAKE_VOCAB,
				       .block_size = 16,
				       .block_count = 1000,
				       .max_num_seqs = 256,
				       .client_lease_s = 30,
				       .eos_ids = eos,
				       .eos_ids_count = 2,
				       .model = (const u8 *)"demo",
				       .model_count = 4};
	fake_send(f->submit, f->submit_peer, &m);
}

/* Token i of a fake answer is the id `first_id` + i; `text` is the text of all of them. */
struct fake_output {
	u32 request;
	const u32 *tokens;
	u32 token_count;
	const char *text;
	enum finish_reason { FAKE_GOES_ON, FAKE_STOP, FAKE_LENGTH, FAKE_ABORT, FAKE_ERROR } finish;
	u8 stop_kind;
	u32 stop_value;
	u32 cached;
	const char *error;
	u32 logprobs; /* ids listed per token; 0: none. Token, then ids 1, 2, ... with values -1, -2, ... */
	u32 prompt_logprobs; /* the same, for every prompt position from 1 */
};

struct fake_columns {
	u32 index[FAKE_MODEL_LEN], count[FAKE_MODEL_LEN], rank[FAKE_MODEL_LEN], ids[FAKE_MODEL_LEN * 8];
	f32 values[FAKE_MODEL_LEN * 8];
	u32 elements, listed;
};

static inline void fake_list(struct fake_columns *c, u32 index, u32 token, u32 listed)
{
	c->index[c->elements] = index;
	c->count[c->elements] = listed;
	c->rank[c->elements++] = 1;
	for (u32 k = 0; k < listed; k++, c->listed++) {
		c->ids[c->listed] = k == 0 ? token : k;
		c->values[c->listed] = -(f32)(k == 0 ? 0.5f : (f32)k);
	}
}

static inline void fake_emit(struct engine_fixture *f, const struct fake_output *o)
{
	static struct fake_columns lp, plp;
	struct fake_request *r = &f->requests[o->request];
	u64 req_id = r->req_id;
	u32 first = r->made, text_bytes = (u32)strlen(o->text ? o->text : ""), prompt = r->token_count;
	u8 finish = (u8)o->finish;
	u32 zero = 0;
	lp.elements = lp.listed = plp.elements = plp.listed = 0;
	for (u32 i = 0; i < o->token_count && o->logprobs > 0; i++)
		fake_list(&lp, i, o->tokens[i], o->logprobs);
	for (u32 i = 1; i < prompt && o->prompt_logprobs > 0; i++)
		fake_list(&plp, i, r->tokens[i], o->prompt_logprobs);
	for (u32 i = 0; i < plp.elements; i++)
		plp.index[i] = 0;
	static u32 positions[FAKE_MODEL_LEN];
	for (u32 i = 0; i < FAKE_MODEL_LEN; i++)
		positions[i] = i + 1;
	struct ipc_msg m = {.type = IPC_TYPE_CHUNK};
	struct ipc_chunk *c = &m.chunk;
	c->client_id = f->client_id;
	c->chunk = ++f->chunk;
	c->req_id = &req_id;
	c->first_token = &first;
	c->token_count = &o->token_count;
	c->text_bytes = &text_bytes;
	c->prompt_count = &prompt;
	c->cached_count = &o->cached;
	c->finish = &finish;
	c->stop_kind = &o->stop_kind;
	c->stop_value = &o->stop_value;
	c->req_id_count = c->first_token_count = c->token_count_count = c->text_bytes_count = 1;
	c->prompt_count_count = c->cached_count_count = c->finish_count = 1;
	c->stop_kind_count = c->stop_value_count = 1;
	c->tokens = o->tokens ? o->tokens : &zero;
	c->tokens_count = o->token_count;
	c->text = (const u8 *)(o->text ? o->text : "");
	c->text_count = text_bytes;
	c->lp_token = lp.index, c->lp_token_count = lp.elements;
	c->lp_count = lp.count, c->lp_count_count = lp.elements;
	c->lp_rank = lp.rank, c->lp_rank_count = lp.elements;
	c->lp_ids = lp.ids, c->lp_ids_count = lp.listed;
	c->lp_values = lp.values, c->lp_values_count = lp.listed;
	c->plp_entry = plp.index, c->plp_entry_count = plp.elements;
	c->plp_position = positions, c->plp_position_count = plp.elements;
	c->plp_count = plp.count, c->plp_count_count = plp.elements;
	c->plp_rank = plp.rank, c->plp_rank_count = plp.elements;
	c->plp_ids = plp.ids, c->plp_ids_count = plp.listed;
	c->plp_values = plp.values, c->plp_values_count = plp.listed;
	c->error_text = (const u8 *)(o->error ? o->error : "");
	c->error_text_count = (u32)strlen(o->error ? o->error : "");
	r->made += o->token_count;
	r->ended |= o->finish != FAKE_GOES_ON;
	fake_send(f->output, f->output_peer, &m);
}

static inline void fake_on_submit(struct engine_fixture *f, const struct ipc_submit *s)
{
	struct ipc_msg m = {.type = IPC_TYPE_ACCEPTED};
	static const char busy[] = "the queue is full";
	if (f->refuse && f->count >= f->refuse_after) {
		m.type = IPC_TYPE_REFUSED;
		m.refused = (struct ipc_refused){.req_id = s->req_id,
						 .code = f->refuse,
						 .retry_after_ms = f->retry_after_ms,
						 .text = (const u8 *)busy,
						 .text_count = sizeof(busy) - 1};
		f->count++;
		fake_send(f->submit, f->submit_peer, &m);
		return;
	}
	cr_assert_lt(f->count, FAKE_REQUESTS_MAX);
	struct fake_request *r = &f->requests[f->count++];
	*r = (struct fake_request){.req_id = s->req_id, .token_count = s->tokens_count, .submit = *s};
	cr_assert_leq(s->tokens_count, FAKE_MODEL_LEN);
	if (s->tokens_count) /* a session's turn may have none */
		memcpy(r->tokens, s->tokens, s->tokens_count * sizeof(u32));
	m.accepted = (struct ipc_accepted){.req_id = s->req_id, .seq = f->count};
	fake_send(f->submit, f->submit_peer, &m);
}

static inline void fake_on_abort(struct engine_fixture *f, u64 req_id)
{
	f->aborts++;
	for (u32 i = 0; i < f->count; i++) {
		if (f->requests[i].req_id != req_id || f->requests[i].ended)
			continue;
		f->requests[i].aborted = true;
		fake_emit(f, &(struct fake_output){.request = i, .finish = FAKE_ABORT});
	}
}

static inline void fake_on_message(struct engine_fixture *f, ipc_peer from, const struct ipc_msg *m)
{
	struct ipc_msg reply = {.type = IPC_TYPE_ATTACHED};
	switch (m->type) {
	case IPC_TYPE_SUBMIT:
		fake_on_submit(f, &m->submit);
		break;
	case IPC_TYPE_ABORT:
		fake_on_abort(f, m->abort.req_id);
		break;
	case IPC_TYPE_ATTACH:
		f->output_peer = from;
		f->client_id = m->attach.client_id;
		f->attached = true;
		reply.attached = (struct ipc_attached){.client_id = f->client_id, .next_chunk = f->chunk + 1};
		fake_send(f->output, from, &reply);
		break;
	default:
		break;
	}
}

static inline void fake_poll(struct engine_fixture *f)
{
	struct ipc_msg m;
	ipc_peer from;
	struct err_msg em;
	enum err e;
	while ((e = ipc_recv(f->submit, &from, &m, &em)) != ERR_AGAIN) {
		cr_assert_eq(e, ERR_OK, "%s", em.text);
		if (m.type == IPC_TYPE_HELLO) {
			f->submit_peer = from;
			fake_send_engine(f);
		}
		fake_on_message(f, from, &m);
	}
	while ((e = ipc_recv(f->output, &from, &m, &em)) != ERR_AGAIN) {
		cr_assert_eq(e, ERR_OK, "%s", em.text);
		fake_on_message(f, from, &m);
	}
}

static inline void engine_pump(struct engine_fixture *f, struct peer *p)
{
	fake_poll(f);
	peer_pump(f->gateway.base, p);
}

/* Pumps until the engine has `count` requests and the peer (may be NULL) has received `text` (may be NULL).
 */
static inline bool engine_wait(struct engine_fixture *f, struct peer *p, u32 count, const char *text)
{
	struct peer none = {.fd = -1, .closed = true};
	u64 end = clock_now_ns() + 20000000000ull;
	while (clock_now_ns() < end) {
		engine_pump(f, p ? p : &none);
		if (f->count >= count && (!text || strstr(buf_cstr(&p->got), text)))
			return true;
		usleep(300);
	}
	return false;
}

static inline void engine_setup(struct engine_fixture *f, const char *option, const char *value)
{
	struct err_msg em;
	memset(f, 0, sizeof(*f));
	snprintf(f->run_dir, sizeof(f->run_dir), "/tmp/tercet-test-XXXXXX");
	cr_assert_not_null(mkdtemp(f->run_dir));
	cr_assert_eq(ipc_context_create(&f->ctx, &em), ERR_OK);
	f->submit = fake_channel(f, "submit", IPC_ROLE_SCHEDULER);
	f->output = fake_channel(f, "output", IPC_ROLE_DETOK);
	cr_assert_eq(options_init(&f->options), ERR_OK);
	cr_assert_eq(options_set(&f->options, "model", DEMO_DIR, "test", &em), ERR_OK);
	cr_assert_eq(options_set(&f->options, "run_dir", f->run_dir, "test", &em), ERR_OK);
	cr_assert_eq(options_set(&f->options, "port", "0", "test", &em), ERR_OK);
	cr_assert_eq(options_set(&f->options, "log_level", "error", "test", &em), ERR_OK);
	if (option)
		cr_assert_eq(options_set(&f->options, option, value, "test", &em), ERR_OK, "%s", em.text);
	log_init("test", LOG_LEVEL_ERROR, false);
	cr_assert_eq(gateway_init(&f->gateway, &f->options, 0, &em), ERR_OK, "%s", em.text);
	u64 end = clock_now_ns() + 20000000000ull;
	struct peer none = {.fd = -1, .closed = true};
	while ((!f->gateway.ready || !f->attached) && clock_now_ns() < end) {
		engine_pump(f, &none);
		usleep(300);
	}
	cr_assert(f->gateway.ready && f->attached, "the gateway does not find the engine");
}

static inline void engine_teardown(struct engine_fixture *f)
{
	char command[128];
	gateway_fini(&f->gateway);
	options_fini(&f->options);
	ipc_channel_close(&f->submit);
	ipc_channel_close(&f->output);
	ipc_context_destroy(&f->ctx);
	snprintf(command, sizeof(command), "rm -rf %s", f->run_dir);
	cr_assert_eq(system(command), 0);
}

static inline struct peer engine_connect(struct engine_fixture *f)
{
	return peer_connect(http_server_port(f->gateway.http));
}

/* Sends one POST of a JSON body. */
static inline void peer_post(struct peer *p, const char *path, const char *json)
{
	char head[512];
	snprintf(head, sizeof(head),
		 "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
		 "%zu\r\n\r\n",
		 path, strlen(json));
	peer_send(p, head);
	peer_send(p, json);
}

static inline void peer_get(struct peer *p, const char *path)
{
	char head[512];
	snprintf(head, sizeof(head), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
	peer_send(p, head);
}

/* The body of the last whole reply with a Content-Length; to be freed by json_free. */
static inline struct json_doc *peer_json(struct peer *p)
{
	struct json_doc *doc;
	struct err_msg em;
	const char *text = buf_cstr(&p->got), *body = strstr(text, "\r\n\r\n");
	cr_assert_not_null(body, "%s", text);
	cr_assert_eq(json_parse(&doc, body + 4, strlen(body + 4), &em), ERR_OK, "%s: %s", em.text, text);
	return doc;
}

#endif
