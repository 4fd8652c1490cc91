/* A scheduler and a detokenizer made of two bare channels, played by the test in its own thread. */
#ifndef TERCET_TESTS_FAKE_ENGINE_H
#define TERCET_TESTS_FAKE_ENGINE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/tercet.h"
#include "common/clock.h"
#include "ipc/ipc.h"

struct fake_engine {
	char dir[64];
	struct ipc_context *ctx;
	struct ipc_channel *submit;
	struct ipc_channel *output;
	ipc_peer submit_peer;
	ipc_peer output_peer;
	struct tercet *t;
	u32 lease_s;
	u64 chunk; /* last one sent */
};

static inline struct ipc_channel *fake_bind(struct fake_engine *f, const char *name, enum ipc_role role)
{
	char endpoint[128];
	struct ipc_channel *ch;
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f->dir, name, NULL), ERR_OK);
	struct ipc_channel_config config = {
		.name = name, .endpoint = endpoint, .pattern = IPC_ROUTER, .bind = true, .role = role};
	cr_assert_eq(ipc_channel_open(&ch, f->ctx, &config, NULL), ERR_OK);
	return ch;
}

static inline void fake_begin(struct fake_engine *f)
{
	*f = (struct fake_engine){.dir = "/tmp/tercet_client_XXXXXX", .lease_s = 30};
	cr_assert_not_null(mkdtemp(f->dir));
	cr_assert_eq(ipc_context_create(&f->ctx, NULL), ERR_OK);
	f->submit = fake_bind(f, "submit", IPC_ROLE_SCHEDULER);
	f->output = fake_bind(f, "output", IPC_ROLE_DETOK);
}

static inline void fake_end(struct fake_engine *f)
{
	tercet_close(&f->t);
	ipc_channel_close(&f->submit);
	ipc_channel_close(&f->output);
	ipc_context_destroy(&f->ctx);
	DIR *d = opendir(f->dir);
	for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) {
		char path[512];
		snprintf(path, sizeof(path), "%s/%s", f->dir, entry->d_name);
		unlink(path);
	}
	closedir(d);
	rmdir(f->dir);
}

/* The next message of `type` on a channel within twenty seconds; others (ALIVE, ACK) are passed over. The client's
 * handle is kept going meanwhile: no event may come of that unless `event` takes it. */
static inline struct ipc_msg fake_expect(struct fake_engine *f, struct ipc_channel *ch, u32 type)
{
	struct ipc_msg msg;
	struct tercet_event event;
	ipc_peer from;
	for (u32 i = 0; i < 20000; i++) {
		struct err_msg em = {.text = ""};
		enum err e = ipc_recv(ch, &from, &msg, &em);
		if (e == ERR_OK) {
			if (ch == f->submit)
				f->submit_peer = from;
			else
				f->output_peer = from;
			if (msg.type == type)
				return msg;
			continue;
		}
		if (f->t) {
			enum tercet_result r = tercet_next(f->t, &event);
			cr_assert(r == TERCET_AGAIN, "unexpected event %d: %s", event.type, event.error_text);
		}
		usleep(1000);
	}
	cr_assert(false, "no %s came", ipc_type_name(type));
	return msg;
}

static inline void fake_send(struct ipc_channel *ch, ipc_peer to, const struct ipc_msg *msg)
{
	cr_assert_eq(ipc_send(ch, to, msg), ERR_OK);
}

static inline void fake_send_engine(struct fake_engine *f)
{
	static const u32 eos[] = {2, 3};
	struct ipc_msg msg = {.type = IPC_TYPE_ENGINE,
			      .engine = {.max_model_len = 2048, .vocab_size = 4096, .block_size = 16,
					 .block_count = 100, .max_num_seqs = 8, .client_lease_s = f->lease_s,
					 .eos_ids = eos, .eos_ids_count = 2, .model = (const u8 *)"demo",
					 .model_count = 4}};
	fake_send(f->submit, f->submit_peer, &msg);
}

static inline void fake_send_attached(struct fake_engine *f, u64 client_id, u64 next_chunk)
{
	struct ipc_msg msg = {.type = IPC_TYPE_ATTACHED, .attached = {client_id, next_chunk}};
	f->chunk = next_chunk - 1;
	fake_send(f->output, f->output_peer, &msg);
}

/* An event within twenty seconds. */
static inline struct tercet_event expect_event(struct fake_engine *f, enum tercet_event_type type)
{
	struct tercet_event event;
	enum tercet_result r = tercet_wait(f->t, 20000, &event);
	cr_assert_eq((int)r, TERCET_OK, "%s instead of event %d", tercet_result_text(r), type);
	cr_assert_eq((int)event.type, (int)type, "event %d instead of %d: %s", event.type, type, event.error_text);
	return event;
}

static inline void expect_nothing(struct fake_engine *f)
{
	struct tercet_event event;
	for (u32 i = 0; i < 20; i++) {
		cr_assert_eq((int)tercet_next(f->t, &event), TERCET_AGAIN, "event %d", event.type);
		usleep(1000);
	}
}

/* Opens a handle and plays both sides until READY was delivered. */
static inline void fake_connect(struct fake_engine *f, const struct tercet_config *like)
{
	struct tercet_config config = *like;
	struct tercet_error error = {.text = ""};
	config.run_dir = f->dir;
	cr_assert_eq((int)tercet_open(&f->t, &config, &error), TERCET_OK, "%s", error.text);
	fake_expect(f, f->submit, IPC_TYPE_HELLO);
	fake_send_engine(f);
	fake_expect(f, f->output, IPC_TYPE_HELLO);
	struct ipc_msg attach = fake_expect(f, f->output, IPC_TYPE_ATTACH);
	fake_send_attached(f, attach.attach.client_id, attach.attach.last_chunk + 1);
	expect_event(f, TERCET_EVENT_READY);
}

static inline struct tercet_request simple_request(u64 req_id)
{
	static const u32 prompt[] = {10, 11, 12};
	struct tercet_request q;
	tercet_request_init(&q);
	q.req_id = req_id;
	q.tokens = prompt;
	q.token_count = 3;
	q.user = (void *)(uintptr_t)(req_id * 1000);
	return q;
}

static inline u64 submit_simple(struct fake_engine *f, u64 req_id)
{
	struct tercet_request q = simple_request(req_id);
	struct tercet_error error = {.text = ""};
	cr_assert_eq((int)tercet_submit(f->t, &q, &req_id, &error), TERCET_OK, "%s", error.text);
	return req_id;
}

static inline void fake_accept(struct fake_engine *f, u64 req_id)
{
	struct ipc_msg msg = {.type = IPC_TYPE_ACCEPTED, .accepted = {req_id, 1, 4}};
	fake_send(f->submit, f->submit_peer, &msg);
}

/* A chunk with one entry: tokens numbered like their output (100 + n), the text as given. */
static inline void fake_send_entry(struct fake_engine *f, u64 chunk, u64 req_id, u32 first, u32 count,
				   const char *text, u8 finish)
{
	u32 tokens[64];
	u32 text_bytes = (u32)strlen(text);
	u32 prompt_count = 3;
	u32 zero = 0;
	u8 none = 0;
	for (u32 i = 0; i < count; i++)
		tokens[i] = 100 + first + i;
	struct ipc_msg msg = {
		.type = IPC_TYPE_CHUNK,
		.chunk = {.chunk = chunk,
			  .req_id = &req_id, .req_id_count = 1,
			  .first_token = &first, .first_token_count = 1,
			  .token_count = &count, .token_count_count = 1,
			  .text_bytes = &text_bytes, .text_bytes_count = 1,
			  .prompt_count = &prompt_count, .prompt_count_count = 1,
			  .cached_count = &zero, .cached_count_count = 1,
			  .finish = &finish, .finish_count = 1,
			  .stop_kind = &none, .stop_kind_count = 1,
			  .stop_value = &zero, .stop_value_count = 1,
			  .tokens = tokens, .tokens_count = count,
			  .text = (const u8 *)text, .text_count = text_bytes}};
	if (finish == TERCET_FINISH_ERROR) {
		msg.chunk.error_text = (const u8 *)"it burned";
		msg.chunk.error_text_count = 9;
	}
	f->chunk = chunk;
	fake_send(f->output, f->output_peer, &msg);
}

static inline void expect_output(struct fake_engine *f, u64 req_id, u32 first, u32 count, const char *text,
				 enum tercet_finish finish)
{
	struct tercet_event e = expect_event(f, TERCET_EVENT_OUTPUT);
	cr_assert_eq(e.req_id, req_id);
	cr_assert_eq(e.first_token, first, "first token %u instead of %u", e.first_token, first);
	cr_assert_eq(e.token_count, count, "%u tokens instead of %u", e.token_count, count);
	for (u32 i = 0; i < count; i++)
		cr_assert_eq(e.tokens[i], 100 + first + i);
	cr_assert(e.text_bytes == strlen(text) && !memcmp(e.text, text, e.text_bytes), "text \"%.*s\", not \"%s\"",
		  (int)e.text_bytes, e.text, text);
	cr_assert_eq((int)e.finish, (int)finish);
}

#endif
