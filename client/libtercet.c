/* libtercet's public functions about the handle itself: opening, closing, and handing out events. Runs in the client's
 * thread; owns the handle and everything in it. Nothing but tercet_wait, tercet_wait_ready and tercet_close ever waits. */
#include "client/libtercet_priv.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/finish.h"

enum {
	REQUESTS_MAX_DEFAULT = 4096,
	DISPATCH_MAX = 4096,
	GOODBYE_MS = 100,  /* what closing may wait for the good-bye to leave */
	RETRY_MS = 5,      /* until a full queue is tried again */
};

#define SAME_RESULT(name) _Static_assert((int)TERCET_##name == (int)ERR_##name, "results are errors");
SAME_RESULT(OK) SAME_RESULT(AGAIN) SAME_RESULT(BUSY) SAME_RESULT(GONE) SAME_RESULT(INVALID) SAME_RESULT(TOO_LONG)
SAME_RESULT(NOT_FOUND) SAME_RESULT(EXISTS) SAME_RESULT(UNSUPPORTED) SAME_RESULT(FORMAT) SAME_RESULT(VERSION)
SAME_RESULT(SEQUENCE) SAME_RESULT(IO) SAME_RESULT(NO_MEMORY) SAME_RESULT(NEVER_FITS) SAME_RESULT(ABORTED)
SAME_RESULT(TIMEOUT) SAME_RESULT(SHUTDOWN) SAME_RESULT(INTERNAL) SAME_RESULT(CONFLICT) SAME_RESULT(DROPPED)
#define SAME_FLAG(name) _Static_assert((int)TERCET_##name == (int)SAMPLING_##name, "flags are the table's");
SAME_FLAG(IGNORE_EOS) SAME_FLAG(SKIP_SPECIAL) SAME_FLAG(INCLUDE_STOP) SAME_FLAG(SPACES_BETWEEN_SPECIAL)
SAME_FLAG(NO_CACHE_READ) SAME_FLAG(NO_TEXT) SAME_FLAG(EARLY_STOPPING)
_Static_assert((int)TERCET_SESSION_BEGIN == (int)SESSION_BEGIN && (int)TERCET_SESSION_STEP == (int)SESSION_STEP &&
	       (int)TERCET_SESSION_END == (int)SESSION_END, "flags are the engine's");
_Static_assert((int)TERCET_FINISH_ERROR == (int)FINISH_ERROR && (int)TERCET_FINISH_ABORT == (int)FINISH_ABORT &&
	       (int)TERCET_FINISH_LENGTH == (int)FINISH_LENGTH, "finish reasons are the rule's");
_Static_assert(sizeof(struct tercet_error) == sizeof(struct err_msg), "one shape of error texts");

/* ---------------------------------------------------------------- small things */

void tercet_params_init(struct tercet_params *params)
{
	struct sampling_params p;
	sampling_params_default(&p);
	*params = (struct tercet_params){0};
#define COPY_PARAM(A, type, name, def, min, max) params->name = p.name;
	SAMPLING_TABLE(COPY_PARAM, 0)
#undef COPY_PARAM
}

void tercet_request_init(struct tercet_request *request)
{
	*request = (struct tercet_request){0};
	tercet_params_init(&request->params);
	request->length_penalty = 1;
}

bool tercet_event_is_last(const struct tercet_event *event)
{
	return event->type == TERCET_EVENT_REFUSED ||
	       (event->type == TERCET_EVENT_OUTPUT && event->finish != TERCET_FINISH_NONE);
}

const char *tercet_finish_name(enum tercet_finish finish)
{
	return finish_reason_name((enum finish_reason)finish);
}

const char *tercet_result_text(enum tercet_result result)
{
	return err_text((enum err)result);
}

uint64_t tercet_client_id(const struct tercet *t)
{
	return t->client_id;
}

uint64_t tercet_last_chunk(const struct tercet *t)
{
	return t->delivered_chunk;
}

uint32_t tercet_unfinished_count(const struct tercet *t)
{
	return t->requests.count - t->requests.over_count;
}

bool tercet_is_ready(const struct tercet *t)
{
	return t->told_ready;
}

int tercet_fd(const struct tercet *t)
{
	return t->epoll_fd;
}

bool tercet_get_engine(const struct tercet *t, struct tercet_engine *out)
{
	if (!t->engine_known)
		return false;
	*out = (struct tercet_engine){
		.max_model_len = t->engine.max_model_len,
		.vocab_size = t->engine.vocab_size,
		.block_size = t->engine.block_size,
		.block_count = t->engine.block_count,
		.max_num_seqs = t->engine.max_num_seqs,
		.client_lease_s = t->engine.client_lease_s,
		.embedding_width = t->engine.embedding_width,
		.eos_id_count = t->engine.eos_ids_count,
		.eos_ids = t->eos_ids,
		.model = t->model,
	};
	return true;
}

/* ---------------------------------------------------------------- life */

static enum err open_channel(struct tercet *t, struct ipc_channel **out, const char *name, const char *endpoint,
			     const struct tercet_config *config, struct err_msg *em)
{
	char built[256];
	enum err e = ERR_OK;
	if (!endpoint) {
		e = ipc_endpoint(built, sizeof(built), config->run_dir, name, em);
		endpoint = built;
	}
	struct ipc_channel_config channel = {.name = name,
					     .endpoint = endpoint,
					     .pattern = IPC_DEALER,
					     .role = IPC_ROLE_CLIENT,
					     .client_id = t->client_id,
					     .process = t->name,
					     .linger_ms = GOODBYE_MS,
					     .record_dir = config->record_dir};
	return e == ERR_OK ? ipc_channel_open(out, t->ipc, &channel, em) : e;
}

static bool watch(struct tercet *t, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
	return epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

/* One descriptor for all: ZeroMQ's two per channel, the timer, and our own for what a send of ours has uncovered. */
static enum err open_descriptors(struct tercet *t, struct err_msg *em)
{
	t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	t->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->epoll_fd < 0 || t->timer_fd < 0 || t->wake_fd < 0 || !watch(t, t->timer_fd) || !watch(t, t->wake_fd) ||
	    !watch(t, ipc_channel_fd(t->submit)) || !watch(t, ipc_channel_monitor_fd(t->submit)) ||
	    !watch(t, ipc_channel_fd(t->output)) || !watch(t, ipc_channel_monitor_fd(t->output)))
		return err_set(em, ERR_IO, "cannot watch the engine's sockets: %s", strerror(errno));
	return ERR_OK;
}

static enum err random_id(u64 *id, struct err_msg *em)
{
	while (*id == 0)
		if (getrandom(id, sizeof(*id), 0) != sizeof(*id))
			return err_set(em, ERR_IO, "no random client id: %s", strerror(errno));
	return ERR_OK;
}

static enum err open_handle(struct tercet *t, const struct tercet_config *config, struct err_msg *em)
{
	enum err e = random_id(&t->client_id, em);
	if (e == ERR_OK)
		e = ipc_context_create(&t->ipc, em);
	if (e == ERR_OK)
		e = open_channel(t, &t->submit, "submit", config->submit_endpoint, config, em);
	if (e == ERR_OK)
		e = open_channel(t, &t->output, "output", config->output_endpoint, config, em);
	if (e == ERR_OK)
		e = open_descriptors(t, em);
	if (e != ERR_OK)
		return e;
	e = tercet_held_init(&t->requests, config->max_requests ? config->max_requests : REQUESTS_MAX_DEFAULT);
	return e == ERR_OK ? e : err_set(em, e, "no memory for the table of requests");
}

enum tercet_result tercet_open(struct tercet **out, const struct tercet_config *config, struct tercet_error *error)
{
	*out = NULL;
	if (!config->run_dir && !(config->submit_endpoint && config->output_endpoint))
		return (enum tercet_result)err_set(message_of(error), ERR_INVALID,
						   "neither run_dir nor both endpoints are given");
	struct tercet *t = calloc(1, sizeof(*t));
	if (!t)
		return (enum tercet_result)err_set(message_of(error), ERR_NO_MEMORY, "no memory for a handle");
	t->epoll_fd = t->timer_fd = t->wake_fd = -1;
	t->client_id = config->client_id;
	t->manual_ack = config->manual_ack;
	t->follow = config->follow;
	t->seen_chunk = t->delivered_chunk = t->acked_chunk = config->last_chunk;
	t->attach_due_ns = UINT64_MAX; /* the detokenizer's HELLO comes first */
	snprintf(t->name, sizeof(t->name), "%s", config->name ? config->name : "client");
	enum err e = open_handle(t, config, message_of(error));
	if (e != ERR_OK)
		tercet_leave(&t);
	*out = t;
	return (enum tercet_result)e;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void tercet_leave(struct tercet **out)
{
	struct tercet *t = *out;
	if (!t)
		return;
	close_fd(t->epoll_fd);
	close_fd(t->timer_fd);
	close_fd(t->wake_fd);
	ipc_channel_close(&t->submit);
	ipc_channel_close(&t->output);
	ipc_context_destroy(&t->ipc);
	tercet_held_fini(&t->requests);
	tercet_session_fini(&t->queries);
	free(t);
	*out = NULL;
}

void tercet_close(struct tercet **out)
{
	struct tercet *t = *out;
	if (!t)
		return;
	struct ipc_msg bye = {.type = IPC_TYPE_BYE, .bye = {t->client_id}};
	/* An engine that does not hear it finds out by the lease. */
	if (t->engine_there)
		(void)!ipc_send(t->submit, (ipc_peer){0}, &bye);
	if (t->attached)
		(void)!ipc_send(t->output, (ipc_peer){0}, &bye);
	tercet_leave(out);
}

/* ---------------------------------------------------------------- waking up */

static void wake(struct tercet *t)
{
	u64 one = 1;
	if (t->woken)
		return;
	t->woken = write(t->wake_fd, &one, sizeof(one)) == sizeof(one);
}

void tercet_handle_wake(struct tercet *t)
{
	if (t->requests.failed_count || t->notice_count || ipc_channel_readable(t->submit) ||
	    ipc_channel_readable(t->output))
		wake(t);
}

static void set_timer(struct tercet *t, u64 now_ns)
{
	u64 due = t->alive_due_ns;
	if (!t->attached && t->attach_due_ns < due)
		due = t->attach_due_ns;
	if ((t->requests.due_count || t->queries.due_count) && t->engine_there)
		due = now_ns + RETRY_MS * 1000000ull;
	if (due <= now_ns)
		due = now_ns + RETRY_MS * 1000000ull;
	if (due == t->timer_ns)
		return;
	struct itimerspec when = {.it_value = {.tv_sec = (time_t)(due / 1000000000u),
					       .tv_nsec = (long)(due % 1000000000u)}};
	t->timer_ns = timerfd_settime(t->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0 ? due : 0;
}

void tercet_handle_sent(struct tercet *t)
{
	set_timer(t, clock_now_ns());
	tercet_handle_wake(t);
}

/* Nothing is left to hand out: sends what is due and arms the descriptor. True when that uncovered something. */
static bool settle(struct tercet *t)
{
	u64 count;
	u64 now = clock_now_ns();
	if (t->woken && read(t->wake_fd, &count, sizeof(count)) == sizeof(count))
		t->woken = false;
	if (t->timer_ns && now >= t->timer_ns) {
		(void)!read(t->timer_fd, &count, sizeof(count)); /* it may not have fired quite yet */
		t->timer_ns = 0;
	}
	tercet_handle_send_due(t, now);
	set_timer(t, now);
	return t->notice_count || t->requests.failed_count || ipc_channel_readable(t->submit) ||
	       ipc_channel_readable(t->output);
}

/* ---------------------------------------------------------------- events */

static void emit_notice(struct tercet *t, struct tercet_event *event)
{
	t->delivered = t->notices[t->notice_first];
	t->notice_first = (t->notice_first + 1) % NOTICES_MAX;
	t->notice_count--;
	const struct notice *n = &t->delivered;
	*event = (struct tercet_event){.type = n->type,
				       .req_id = n->req_id,
				       .user = n->user,
				       .code = n->code,
				       .error_text = n->text,
				       .text = "",
				       .retry_after_ms = n->retry_after_ms,
				       .waiting = n->waiting,
				       .session = n->session};
}

static void emit_last(struct tercet *t, struct held_request *r, struct tercet_event *event, enum tercet_result code,
		      const char *text)
{
	snprintf(t->delivered.text, sizeof(t->delivered.text), "%s", r->aborted ? "" : text);
	*event = (struct tercet_event){.type = TERCET_EVENT_OUTPUT,
				       .req_id = r->req_id,
				       .user = r->user,
				       .code = r->aborted ? TERCET_OK : code,
				       .error_text = t->delivered.text,
				       .text = "",
				       .first_token = r->output_count,
				       .prompt_count = r->prompt_count,
				       .answer = r->answer,
				       .finish = r->aborted ? TERCET_FINISH_ABORT : TERCET_FINISH_ERROR};
	tercet_held_remove(&t->requests, r);
}

/* The last event of a request that ends on this side. */
static bool emit_failed(struct tercet *t, struct tercet_event *event)
{
	while (t->requests.failed_count) {
		struct held_request *r = tercet_held_next(&t->requests, NULL);
		while (!r->failed)
			r = tercet_held_next(&t->requests, r);
		bool discarded = r->discarded;
		emit_last(t, r, event, t->fail_code, t->fail_text);
		if (!discarded)
			return true;
	}
	return false;
}

/* Tokens between what was delivered and this entry are lost: the request cannot be told right any more. */
static void emit_gap(struct tercet *t, struct held_request *r, struct tercet_event *event)
{
	struct err_msg em;
	struct ipc_msg msg = {.type = IPC_TYPE_ABORT, .abort = {t->client_id, r->req_id}};
	(void)err_set(&em, ERR_SEQUENCE, "output %u came when %u was due", event->first_token, r->output_count);
	(void)!ipc_send(t->submit, (ipc_peer){0}, &msg); /* should it not go out, its chunks are ignored */
	emit_last(t, r, event, TERCET_SEQUENCE, em.text);
}

/* Entries of requests that nobody here knows (any more) are passed over. */
static bool emit_entry(struct tercet *t, struct tercet_event *event)
{
	while (tercet_chunk_next(&t->cursor, event)) {
		struct held_request *r = tercet_held_find(&t->requests, event->req_id);
		struct output_part part;
		if (!r && t->follow)
			return true;
		if (!r || r->failed || r->over)
			continue;
		if (!tercet_held_take_output(r, event->first_token, event->tokens, event->token_count,
					 event->text_bytes, &part) ||
		    r->tokens.failed) {
			bool mine = !r->discarded;
			emit_gap(t, r, event);
			if (mine)
				return true;
			continue;
		}
		if (r->state == REQUEST_SENT)
			tercet_held_set_state(&t->requests, tercet_held_first(&t->requests, r), REQUEST_ACCEPTED);
		bool silent = r->discarded;
		event->user = r->user;
		event->answer = r->answer;
		if (event->finish == TERCET_FINISH_ERROR && t->cursor.chunk.error_text_count) {
			snprintf(t->delivered.text, sizeof(t->delivered.text), "%.*s",
				 (int)t->cursor.chunk.error_text_count, (const char *)t->cursor.chunk.error_text);
			event->error_text = t->delivered.text;
			event->code = TERCET_INTERNAL;
		}
		bool repeats = part.skip_tokens || event->prompt_logprobs.count;
		tercet_chunk_skip(event, &part);
		tercet_held_take_prompt(r, &event->prompt_logprobs);
		silent |= event->finish == TERCET_FINISH_NONE && !event->token_count &&
			  !event->prompt_logprobs.count && repeats;
		if (event->finish != TERCET_FINISH_NONE)
			tercet_held_remove(&t->requests, r);
		if (!silent)
			return true;
	}
	t->delivered_chunk = t->cursor.chunk.chunk;
	return false;
}

enum tercet_result tercet_next(struct tercet *t, struct tercet_event *event)
{
	do {
		do {
			if (t->notice_count) {
				emit_notice(t, event);
				return TERCET_OK;
			}
			if (t->requests.failed_count && emit_failed(t, event))
				return TERCET_OK;
			if (t->cursor.in_hand && emit_entry(t, event))
				return TERCET_OK;
		} while (tercet_handle_receive_submit(t) || tercet_handle_receive_output(t));
	} while (settle(t));
	*event = (struct tercet_event){.type = TERCET_EVENT_NONE, .error_text = "", .text = ""};
	return TERCET_AGAIN;
}

/* Waits for the descriptor until `deadline_ns`. */
static enum tercet_result wait_readable(struct tercet *t, u64 deadline_ns)
{
	struct pollfd p = {.fd = t->epoll_fd, .events = POLLIN};
	u64 now = clock_now_ns();
	if (now >= deadline_ns)
		return TERCET_TIMEOUT;
	u64 ms = (deadline_ns - now + 999999) / 1000000;
	if (poll(&p, 1, deadline_ns == UINT64_MAX || ms > 3600000 ? 3600000 : (int)ms) < 0 && errno != EINTR)
		return TERCET_IO;
	return TERCET_OK;
}

static u64 deadline_of(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + (u64)timeout_ms * 1000000u;
}

enum tercet_result tercet_wait(struct tercet *t, int timeout_ms, struct tercet_event *event)
{
	u64 deadline = deadline_of(timeout_ms);
	enum tercet_result r;
	while ((r = tercet_next(t, event)) == TERCET_AGAIN)
		if ((r = wait_readable(t, deadline)) != TERCET_OK)
			break;
	return r;
}

/* Receives without handing out anything, and only what has to come before the first chunk. */
enum tercet_result tercet_wait_ready(struct tercet *t, int timeout_ms, struct tercet_error *error)
{
	u64 deadline = deadline_of(timeout_ms);
	enum tercet_result r = TERCET_OK;
	while (r == TERCET_OK && !t->told_ready) {
		while (!t->told_ready && t->refused_code == TERCET_OK &&
		       ((!t->engine_there && tercet_handle_receive_submit(t)) || (!t->attached && tercet_handle_receive_output(t))))
			;
		if (t->refused_code != TERCET_OK) {
			if (error)
				*message_of(error) = t->refused_text;
			return t->refused_code;
		}
		if (!t->told_ready && !settle(t))
			r = wait_readable(t, deadline);
	}
	wake(t); /* events and messages that came meanwhile */
	if (r == TERCET_TIMEOUT)
		(void)err_set(message_of(error), ERR_TIMEOUT, "the engine did not answer within %d ms%s", timeout_ms,
			      t->engine_there ? ": the scheduler did, the detokenizer did not" : "");
	return r;
}

uint32_t tercet_dispatch(struct tercet *t, tercet_event_fn fn, void *ctx)
{
	struct tercet_event event;
	u32 count = 0;
	while (count < DISPATCH_MAX && tercet_next(t, &event) == TERCET_OK) {
		fn(ctx, &event);
		count++;
	}
	if (count == DISPATCH_MAX)
		wake(t);
	return count;
}
