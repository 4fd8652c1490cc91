/* What a libtercet handle says to scheduler and detokenizer, and what it makes of their messages. Runs in the client's
 * thread. Never blocks, and never delivers: what comes in turns into notices, request states and the chunk in hand. */
#include "client/libtercet_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

static const u64 NS_PER_MS = 1000000;
enum {
	LEASE_S_DEFAULT = 30,
	ALIVE_PER_LEASE = 4,
	ATTACH_RETRY_MS = 1000,
	ATTACH_ANEW_MS = 50,
	ACK_CHUNKS = 16,
	LIVE_MAX = 65536,
};

/* ---------------------------------------------------------------- notices */

void tercet_handle_notify(struct tercet *t, const struct notice *n)
{
	if (t->notice_count == NOTICES_MAX) { /* connection news that nobody has asked for: the newest count */
		t->notice_first = (t->notice_first + 1) % NOTICES_MAX;
		t->notice_count--;
	}
	t->notices[(t->notice_first + t->notice_count++) % NOTICES_MAX] = *n;
}

static void notify_text(struct tercet *t, enum tercet_event_type type, u32 code, const void *text, size_t bytes)
{
	struct notice n = {.type = type, .code = (enum tercet_result)code};
	if (bytes > sizeof(n.text) - 1)
		bytes = sizeof(n.text) - 1;
	if (bytes)
		memcpy(n.text, text, bytes);
	tercet_handle_notify(t, &n);
}

static void notify_request(struct tercet *t, struct held_request *r, struct notice *n)
{
	n->req_id = r->req_id;
	n->user = r->user;
	if (!r->discarded)
		tercet_handle_notify(t, n);
}

static void tell_lost(struct tercet *t, const char *text)
{
	if (t->told_ready)
		notify_text(t, TERCET_EVENT_LOST, ERR_GONE, text, strlen(text));
	t->told_ready = false;
}

static void tell_ready(struct tercet *t)
{
	if (t->told_ready || !t->engine_there || !t->attached)
		return;
	t->told_ready = true;
	notify_text(t, TERCET_EVENT_READY, ERR_OK, "", 0);
}

void tercet_handle_fail_requests(struct tercet *t, enum tercet_result code, const char *text)
{
	t->fail_code = code;
	snprintf(t->fail_text, sizeof(t->fail_text), "%s", text);
	for (struct held_request *r = tercet_held_next(&t->requests, NULL); r; r = tercet_held_next(&t->requests, r))
		if (r->state != REQUEST_DUE || r->again)
			tercet_held_set_failed(&t->requests, r);
}

/* ---------------------------------------------------------------- sending */

/* True when it went out. What is not taken now is tried again by tercet_handle_send_due. */
static bool send_to_scheduler(struct tercet *t, struct ipc_msg *msg)
{
	return ipc_send(t->submit, (ipc_peer){0}, msg) == ERR_OK;
}

static void remove_all_answers(struct tercet *t, struct held_request *first)
{
	struct held_request *r;
	u64 first_id = first->req_id;
	while ((first = tercet_held_find(&t->requests, first_id)) &&
	       (r = tercet_held_next_answer(&t->requests, first, NULL)))
		tercet_held_remove(&t->requests, r);
}

static bool send_submit(struct tercet *t, struct held_request *r)
{
	struct ipc_msg msg = {.type = IPC_TYPE_SUBMIT, .submit = r->submit};
	msg.submit.tokens = r->tokens.data;
	msg.submit.tokens_count = (u32)r->tokens.count;
	msg.submit.output_count = r->submit.beam_width ? 0 : r->output_count;
	if (r->again && msg.submit.session_count)
		msg.submit.session_flags |= SESSION_AGAIN;
	enum err e = ipc_send(t->submit, (ipc_peer){0}, &msg);
	if (e == ERR_OK)
		tercet_held_set_state(&t->requests, r, REQUEST_SENT);
	if (e == ERR_OK || e == ERR_BUSY)
		return e == ERR_OK;
	struct notice n = {.type = TERCET_EVENT_REFUSED, .code = (enum tercet_result)e};
	if (e == ERR_TOO_LONG) /* it grew by what was generated before the engine lost it */
		snprintf(n.text, sizeof(n.text), "the request cannot be sent: its %zu tokens do not fit into a "
			 "message of %u bytes", r->tokens.count, IPC_FRAME_BYTES_MAX);
	else
		snprintf(n.text, sizeof(n.text), "the request cannot be sent: %s", err_text(e));
	notify_request(t, r, &n);
	remove_all_answers(t, r);
	return true;
}

/* Submissions and aborts in the order in which they were asked for. */
static void send_due_requests(struct tercet *t)
{
	struct held_request *next;
	if (!t->engine_there)
		return;
	for (struct held_request *r = tercet_held_next(&t->requests, NULL); r && t->requests.due_count; r = next) {
		next = tercet_held_next(&t->requests, r);
		if (t->notice_count == NOTICES_MAX)
			return;
		if (r->state == REQUEST_DUE && !r->failed && r->answer == 0 && !send_submit(t, r))
			return;
		if (r->state == REQUEST_FREE) /* and other answers with it */
			next = tercet_held_next(&t->requests, NULL);
		if (!r->abort_due || r->state == REQUEST_DUE || r->state == REQUEST_FREE)
			continue;
		struct ipc_msg msg = {.type = IPC_TYPE_ABORT, .abort = {t->client_id, r->req_id}};
		if (!send_to_scheduler(t, &msg))
			return;
		tercet_held_set_abort_due(&t->requests, r, false);
	}
}

/* Tokens and text that each live request has: where a detokenizer without memory goes on. */
static void fill_live(struct tercet *t, struct ipc_attach *m)
{
	u32 room = t->requests.count < LIVE_MAX ? t->requests.count : LIVE_MAX;
	u64 *ids = calloc(room ? room : 1, sizeof(*ids) + 2 * sizeof(u32));
	if (!ids)
		return; /* then it goes on where the scheduler says */
	u32 *tokens = (u32 *)(ids + room);
	u32 *bytes = tokens + room;
	u32 count = 0;
	for (struct held_request *r = tercet_held_next(&t->requests, NULL); r && count < room;
	     r = tercet_held_next(&t->requests, r)) {
		if ((r->state == REQUEST_DUE && !r->again) || r->over)
			continue;
		tercet_held_mark(r); /* what is still in hand may move on before the answer, which begins here */
		ids[count] = r->req_id;
		tokens[count] = r->output_count;
		bytes[count++] = (u32)r->text_bytes;
	}
	m->live_req_id = ids;
	m->live_token_count = tokens;
	m->live_text_bytes = bytes;
	m->live_req_id_count = m->live_token_count_count = m->live_text_bytes_count = count;
}

void tercet_handle_send_attach(struct tercet *t)
{
	t->attached = false;
	t->attach_due_ns = clock_now_ns() + ATTACH_RETRY_MS * NS_PER_MS;
	if (t->attach_refused)
		return;
	struct ipc_msg msg = {.type = IPC_TYPE_ATTACH,
			      .attach = {.client_id = t->client_id, .last_chunk = t->seen_chunk}};
	fill_live(t, &msg.attach);
	(void)!ipc_send(t->output, (ipc_peer){0}, &msg); /* repeated until ATTACHED comes */
	free((void *)msg.attach.live_req_id);
}

static void send_ack(struct tercet *t, u64 chunk)
{
	struct ipc_msg msg = {.type = IPC_TYPE_ACK, .ack = {t->client_id, chunk}};
	if (chunk > t->acked_chunk && t->attached && ipc_send(t->output, (ipc_peer){0}, &msg) == ERR_OK)
		t->acked_chunk = chunk;
}

void tercet_ack(struct tercet *t, uint64_t chunk)
{
	send_ack(t, chunk);
}

void tercet_handle_send_due(struct tercet *t, u64 now_ns)
{
	bool alive = now_ns >= t->alive_due_ns;
	if (t->requests.due_count)
		send_due_requests(t);
	if (t->queries.due_count)
		tercet_session_send_due(t);
	if (!t->attached && !t->attach_refused && now_ns >= t->attach_due_ns)
		tercet_handle_send_attach(t);
	if (!t->manual_ack && (alive || t->delivered_chunk >= t->acked_chunk + ACK_CHUNKS))
		send_ack(t, t->delivered_chunk);
	if (!alive)
		return;
	u32 lease_s = t->engine_known && t->engine.client_lease_s ? t->engine.client_lease_s : LEASE_S_DEFAULT;
	t->alive_due_ns = now_ns + lease_s * 1000 * NS_PER_MS / ALIVE_PER_LEASE;
	struct ipc_msg msg = {.type = IPC_TYPE_ALIVE, .alive = {t->client_id}};
	if (t->engine_there)
		(void)!send_to_scheduler(t, &msg); /* three more follow within the lease */
	/* Says nothing new, but one who was forgotten learns it by the answer. */
	msg = (struct ipc_msg){.type = IPC_TYPE_ACK, .ack = {t->client_id, t->acked_chunk}};
	if (t->attached)
		(void)!ipc_send(t->output, (ipc_peer){0}, &msg);
}

/* ---------------------------------------------------------------- from the scheduler */

static void keep_engine(struct tercet *t, const struct ipc_engine *m)
{
	u32 model_bytes = m->model_count < sizeof(t->model) - 1 ? m->model_count : sizeof(t->model) - 1;
	t->engine = *m;
	if (model_bytes)
		memcpy(t->model, m->model, model_bytes);
	t->model[model_bytes] = '\0';
	if (m->eos_ids_count)
		memcpy(t->eos_ids, m->eos_ids, m->eos_ids_count * sizeof(u32));
	t->engine.eos_ids = t->eos_ids;
	t->engine.model = NULL;
}

static void fail_unknown(struct tercet *t, struct held_request *r)
{
	tercet_held_set_failed(&t->requests, r);
	t->fail_code = TERCET_GONE;
	snprintf(t->fail_text, sizeof(t->fail_text),
		 "the scheduler was restarted, and the prompt of this adopted request is unknown here");
}

/* The scheduler has begun a new life and knows nothing: what it had goes there again, with the tokens so far. */
static void submit_again(struct tercet *t)
{
	for (struct held_request *r = tercet_held_next(&t->requests, NULL); r; r = tercet_held_next(&t->requests, r)) {
		if (r->state == REQUEST_DUE || r->answer)
			continue;
		struct held_request *a = tercet_held_next_answer(&t->requests, r, NULL);
		if (a->aborted && tercet_held_leaves_history(r)) {
			tercet_held_set_abort_due(&t->requests, r, true); /* goes behind it */
		} else if (a->adopted || a->aborted) {
			for (; a; a = tercet_held_next_answer(&t->requests, r, a))
				fail_unknown(t, a);
			continue;
		}
		for (; a; a = tercet_held_next_answer(&t->requests, r, a)) {
			a->again = true;
			tercet_held_mark(a);
		}
		r->again = true;
		tercet_held_set_state(&t->requests, r, REQUEST_DUE);
	}
}

static void on_engine(struct tercet *t, const struct ipc_engine *m)
{
	bool again = t->engine_known && !t->engine_there;
	keep_engine(t, m);
	t->engine_there = true;
	t->engine_known = true;
	t->refused_code = TERCET_OK;
	t->alive_due_ns = 0;
	if (again)
		submit_again(t);
	if (again)
		tercet_session_lost(t);
	tercet_handle_send_due(t, clock_now_ns());
	tell_ready(t);
}

static void on_refused(struct tercet *t, const struct ipc_refused *m)
{
	struct held_request *r = tercet_held_find(&t->requests, m->req_id);
	if (!r || (r->again && m->code == ERR_EXISTS))
		return; /* it had not been lost after all */
	struct notice n = {.type = TERCET_EVENT_REFUSED, .code = (enum tercet_result)m->code,
			   .retry_after_ms = m->retry_after_ms};
	if (m->text_count)
		memcpy(n.text, m->text, m->text_count);
	/* Refused when taken up again, it was admitted before and ends like one that ran. */
	if (r->again && (r->output_count || r->submit.beam_width)) {
		t->fail_code = n.code;
		memcpy(t->fail_text, n.text, sizeof(t->fail_text));
		for (struct held_request *a = tercet_held_next_answer(&t->requests, r, NULL); a;
		     a = tercet_held_next_answer(&t->requests, r, a))
			tercet_held_set_failed(&t->requests, a);
		return;
	}
	notify_request(t, r, &n);
	remove_all_answers(t, r);
}

static void on_accepted(struct tercet *t, const struct ipc_accepted *m)
{
	struct held_request *r = tercet_held_find(&t->requests, m->req_id);
	if (!r || r->state != REQUEST_SENT)
		return;
	tercet_held_set_state(&t->requests, r, REQUEST_ACCEPTED);
	struct notice n = {.type = TERCET_EVENT_ACCEPTED, .waiting = m->waiting};
	if (!r->again)
		notify_request(t, r, &n);
}

static void on_engine_error(struct tercet *t, const struct ipc_error *m)
{
	if (m->code == ERR_VERSION) {
		t->refused_code = TERCET_VERSION;
		(void)err_set(&t->refused_text, ERR_VERSION, "%.*s", (int)m->text_count, (const char *)m->text);
	}
	notify_text(t, TERCET_EVENT_ERROR, m->code, m->text, m->text_count);
}

bool tercet_handle_receive_submit(struct tercet *t)
{
	struct ipc_msg msg;
	struct err_msg em = {.text = ""};
	ipc_peer nobody;
	enum err e = ipc_recv(t->submit, &nobody, &msg, &em);
	if (e == ERR_AGAIN)
		return false;
	if (e == ERR_GONE) {
		t->engine_there = false;
		tell_lost(t, "the connection to the scheduler broke; waiting for it to come back");
		return true;
	}
	if (e != ERR_OK) {
		if (e == ERR_VERSION) {
			t->refused_code = TERCET_VERSION;
			t->refused_text = em;
		}
		notify_text(t, TERCET_EVENT_ERROR, e, em.text, strlen(em.text));
		return e != ERR_IO;
	}
	switch (msg.type) {
	case IPC_TYPE_HELLO:
		t->engine_there = false;
		break;
	case IPC_TYPE_ENGINE:
		on_engine(t, &msg.engine);
		break;
	case IPC_TYPE_ACCEPTED:
		on_accepted(t, &msg.accepted);
		break;
	case IPC_TYPE_REFUSED:
		on_refused(t, &msg.refused);
		break;
	case IPC_TYPE_SESSION_STATE:
		tercet_session_answer(t, &msg.session_state);
		break;
	case IPC_TYPE_ERROR:
		on_engine_error(t, &msg.error);
		break;
	default:
		break; /* not for clients */
	}
	return true;
}

/* ---------------------------------------------------------------- from the detokenizer */

static void on_attached(struct tercet *t, const struct ipc_attached *m)
{
	if (t->attached)
		return;
	t->attached = true;
	if (m->next_chunk)
		t->seen_chunk = m->next_chunk - 1;
	tell_ready(t);
}

/* What ran for this client has lost its way to it. With ERR_EXISTS another handle receives it now. */
static void end_output(struct tercet *t, const struct ipc_detached *m)
{
	struct err_msg text;
	(void)err_set(&text, m->code, "%.*s", (int)m->text_count, (const char *)m->text);
	notify_text(t, TERCET_EVENT_DETACHED, m->code, m->text, m->text_count);
	for (struct held_request *r = tercet_held_next(&t->requests, NULL); r; r = tercet_held_next(&t->requests, r)) {
		if (m->code == ERR_EXISTS || r->state == REQUEST_DUE)
			continue;
		struct ipc_msg msg = {.type = IPC_TYPE_ABORT, .abort = {t->client_id, r->req_id}};
		(void)!send_to_scheduler(t, &msg); /* should it not go out, its chunks are ignored */
	}
	tercet_handle_fail_requests(t, (enum tercet_result)m->code, text.text);
	t->seen_chunk = t->delivered_chunk = t->acked_chunk = 0;
}

static void on_detached(struct tercet *t, const struct ipc_detached *m)
{
	/* Too many clients at the socket: nothing of ours is lost, it is tried again. */
	bool not_admitted = m->code == ERR_BUSY && !t->attached;
	if (not_admitted)
		notify_text(t, TERCET_EVENT_ERROR, m->code, m->text, m->text_count);
	else
		end_output(t, m);
	t->attached = false;
	t->told_ready = false;
	t->attach_refused = m->code == ERR_EXISTS;
	t->attach_due_ns = clock_now_ns() + (not_admitted ? ATTACH_RETRY_MS : ATTACH_ANEW_MS) * NS_PER_MS;
}

static void on_chunk(struct tercet *t, const struct ipc_chunk *m)
{
	struct err_msg em;
	if (!t->attached || m->chunk <= t->seen_chunk)
		return; /* sent again after a re-attach that crossed it */
	if (m->chunk > t->seen_chunk + 1) {
		tercet_handle_send_attach(t);
		return;
	}
	t->seen_chunk = m->chunk;
	if (tercet_chunk_begin(&t->cursor, m, &em) == ERR_OK)
		return;
	t->delivered_chunk = m->chunk;
	notify_text(t, TERCET_EVENT_ERROR, ERR_FORMAT, em.text, strlen(em.text));
	tercet_handle_fail_requests(t, TERCET_FORMAT, em.text);
}

bool tercet_handle_receive_output(struct tercet *t)
{
	struct ipc_msg msg;
	struct err_msg em = {.text = ""};
	ipc_peer nobody;
	enum err e = ipc_recv(t->output, &nobody, &msg, &em);
	if (e == ERR_AGAIN)
		return false;
	if (e == ERR_GONE) {
		t->attached = false;
		t->attach_due_ns = UINT64_MAX; /* its HELLO comes first */
		tell_lost(t, "the connection to the detokenizer broke; waiting for it to come back");
		return true;
	}
	if (e == ERR_SEQUENCE) {
		tercet_handle_send_attach(t); /* what is missing is sent again from the last chunk on */
		return true;
	}
	if (e != ERR_OK) {
		notify_text(t, TERCET_EVENT_ERROR, e, em.text, strlen(em.text));
		return e != ERR_IO;
	}
	switch (msg.type) {
	case IPC_TYPE_HELLO:
		tercet_handle_send_attach(t);
		break;
	case IPC_TYPE_ATTACHED:
		on_attached(t, &msg.attached);
		break;
	case IPC_TYPE_CHUNK:
		on_chunk(t, &msg.chunk);
		break;
	case IPC_TYPE_DETACHED:
		on_detached(t, &msg.detached);
		break;
	case IPC_TYPE_ERROR:
		notify_text(t, TERCET_EVENT_ERROR, msg.error.code, msg.error.text, msg.error.text_count);
		break;
	default:
		break; /* not for clients */
	}
	return true;
}
