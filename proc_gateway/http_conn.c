/* Owns a connection's input: reading, framing of requests, pipelining, and the ways a connection ends. Runs
 * in the gateway. Never frees a connection while a caller may still hold it (see conn_kill), never buffers
 * more input than one body and a bounded run of pipelined bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "proc_gateway/http_server_priv.h"

enum {
	READS_PER_TURN = 8,
	PIPELINE_BYTES_MAX = 64 * 1024, /* read ahead while a request is being handled */
	OUTPUT_AHEAD_MAX = 1024 * 1024, /* pending output at which pipelined requests wait */
	INPUT_KEEP_BYTES = 4 * 1024,	/* larger buffers are given back after the request */
};

void conn_kill(struct conn *c)
{
	if (c->state == CONN_DEAD)
		return;
	c->state = CONN_DEAD;
	event_del(&c->read_event);
	event_del(&c->write_event);
	c->dead_next = c->server->dead;
	c->server->dead = c;
	event_active(&c->server->dead_event, EV_TIMEOUT, 1);
}

void conn_free(struct conn *c)
{
	struct http_request *r = &c->request;
	if (r->open) {
		r->open = false;
		c->server->active--;
		if (r->on_close)
			r->on_close(r->close_ctx, r);
	}
	event_del(&c->read_event);
	event_del(&c->write_event);
	close(c->fd);
	if (c->previous)
		c->previous->next = c->next;
	else
		c->server->conns = c->next;
	if (c->next)
		c->next->previous = c->previous;
	c->server->stats.connections--;
	buf_fini(&c->in);
	buf_fini(&c->out);
	buf_fini(&r->head_bytes);
	buf_fini(&r->body);
	buf_fini(&r->reply_headers);
	free(c);
}

/* ---------------------------------------------------------------- reading */

static void on_readable(evutil_socket_t fd, short what, void *arg);

/* While the input buffer is full enough, only the client's closing is waited for. */
static void watch_input(struct conn *c, bool paused)
{
	if (c->read_paused == paused)
		return;
	c->read_paused = paused;
	event_del(&c->read_event);
	short what = paused ? EV_CLOSED : EV_READ;
	event_assign(&c->read_event, c->server->base, c->fd, what | EV_PERSIST, on_readable, c);
	event_add(&c->read_event, NULL);
}

/* One recv. False when there is nothing more to read now, or ever. */
static bool read_some(struct conn *c)
{
	struct http_server *s = c->server;
	ssize_t n = recv(c->fd, s->read_bytes, sizeof(s->read_bytes), MSG_DONTWAIT);
	if (n > 0) {
		if (c->state != CONN_LINGER && c->state != CONN_CLOSING)
			buf_append(&c->in, s->read_bytes, (size_t)n);
		if (buf_ok(&c->in))
			return true;
		conn_kill(c);
		return false;
	}
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return false;
	conn_kill(c); /* closed, or half-closed, which cannot be told apart: nobody waits for a reply */
	return false;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	struct conn *c = arg;
	if (c->state == CONN_DEAD)
		return;
	if (what & EV_CLOSED) {
		conn_kill(c);
		return;
	}
	for (u32 i = 0; i < READS_PER_TURN; i++) {
		bool more = !c->read_paused && read_some(c);
		if (c->state == CONN_DEAD)
			return;
		conn_advance(c);
		if (!more || c->state == CONN_DEAD)
			return;
	}
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	conn_write_ready(arg);
}

struct conn *conn_create(struct http_server *s, int fd)
{
	struct conn *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->server = s;
	c->fd = fd;
	c->keep_alive = true;
	c->progress_ns = clock_now_ns();
	c->request.conn = c;
	event_assign(&c->read_event, s->base, fd, EV_READ | EV_PERSIST, on_readable, c);
	event_assign(&c->write_event, s->base, fd, EV_WRITE | EV_PERSIST, on_writable, c);
	if (event_add(&c->read_event, NULL) != 0) {
		free(c);
		return NULL;
	}
	c->next = s->conns;
	if (s->conns)
		s->conns->previous = c;
	s->conns = c;
	s->stats.connections++;
	return c;
}

/* ---------------------------------------------------------------- requests */

/* The head was not read: of the client's wishes no more is known than what its first line says. */
static void open_unread(struct conn *c)
{
	struct http_request *r = &c->request;
	const char *end = c->in.bytes ? memchr(c->in.data, '\n', c->in.bytes) : NULL;
	r->open = true;
	c->server->active++;
	c->server->stats.requests++;
	buf_clear(&r->reply_headers);
	buf_clear(&r->head_bytes);
	if (end)
		buf_append(&r->head_bytes, c->in.data, (size_t)(end - c->in.data) + 1);
	http_head_peek(r->head_bytes.data, r->head_bytes.bytes, &r->head);
}

void conn_fail(struct conn *c, int status, const char *text)
{
	struct http_request *r = &c->request;
	struct http_server *s = c->server;
	if (!r->open)
		open_unread(c);
	c->keep_alive = false;
	struct buf body = {0};
	const char *type = "text/plain";
	if (s->config.error_body)
		s->config.error_body(s->config.ctx, r->head.path, status, text, &body, &type);
	else
		buf_append_str(&body, text);
	http_reply(r, status, type, body.data ? body.data : "", body.bytes);
	buf_fini(&body);
}

static void fail_too_long(struct conn *c, int status, const char *part, u64 limit)
{
	char text[96];
	snprintf(text, sizeof(text), "The request %s is longer than the limit of %llu bytes.", part, (unsigned long long)limit);
	conn_fail(c, status, text);
}

/* Moves a whole head out of the input buffer and asks the owner about it. False: the connection is ending. */
static bool take_head(struct conn *c, size_t head_bytes)
{
	struct http_request *r = &c->request;
	struct http_server *s = c->server;
	buf_clear(&r->head_bytes);
	buf_append(&r->head_bytes, c->in.data, head_bytes);
	if (!buf_ok(&r->head_bytes)) {
		conn_kill(c);
		return false;
	}
	struct http_fault fault;
	if (!http_head_parse(r->head_bytes.data, head_bytes, &r->head, &fault)) {
		conn_fail(c, fault.status, fault.text);
		return false;
	}
	buf_consume(&c->in, head_bytes);
	c->in_scanned = 0;
	buf_clear(&r->body);
	buf_clear(&r->reply_headers);
	memset(&r->chunked, 0, sizeof(r->chunked));
	r->on_close = NULL;
	r->user = NULL;
	r->chunked_reply = false;
	r->open = true;
	s->active++;
	s->stats.requests++;
	c->keep_alive = r->head.keep_alive && !s->draining;
	c->state = CONN_BODY;
	if (r->head.content_length > s->config.body_bytes_max) {
		fail_too_long(c, 413, "body", s->config.body_bytes_max);
		return false;
	}
	if (s->config.on_head) {
		bool has_body = r->head.chunked || r->head.content_length > 0;
		bool keep_alive = c->keep_alive;
		if (has_body) /* a reply now leaves the body unread */
			c->keep_alive = false;
		s->config.on_head(s->config.ctx, r);
		if (!r->open)
			return c->state == CONN_HEAD;
		c->keep_alive = keep_alive;
	}
	if (r->head.expect_continue && c->in.bytes == 0 && (r->head.chunked || r->head.content_length > 0)) {
		static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
		return conn_send(c, go_on, sizeof(go_on) - 1);
	}
	return true;
}

/* False: more input is needed, or the connection is ending. */
static bool advance_head(struct conn *c)
{
	struct http_server *s = c->server;
	if (conn_pending_bytes(c) > OUTPUT_AHEAD_MAX)
		return false;
	while (c->in_scanned == 0 && c->in.bytes >= 2 && memcmp(c->in.data, "\r\n", 2) == 0)
		buf_consume(&c->in, 2); /* some clients send an empty line behind a body (RFC 9112 2.2) */
	if (c->in.bytes == 0)
		return false;
	if (c->request.begin_ns == 0)
		c->request.begin_ns = clock_now_ns();
	size_t head_bytes = 0;
	struct http_fault fault = {0};
	enum http_parse found = http_head_find(c->in.data, c->in.bytes, &c->in_scanned, &head_bytes, &fault);
	size_t seen = found == HTTP_PARSE_DONE ? head_bytes : c->in.bytes;
	if (seen > s->config.head_bytes_max) {
		fail_too_long(c, 431, "head", s->config.head_bytes_max);
		return false;
	}
	if (found == HTTP_PARSE_BAD) {
		conn_fail(c, fault.status, fault.text);
		return false;
	}
	return found == HTTP_PARSE_DONE && take_head(c, head_bytes);
}

static bool advance_body(struct conn *c)
{
	struct http_request *r = &c->request;
	bool done;
	if (r->head.chunked) {
		size_t used;
		struct http_fault fault;
		enum http_parse got = http_chunked_read(&r->chunked, c->in.data, c->in.bytes, &used, &r->body,
							c->server->config.body_bytes_max, &fault);
		buf_consume(&c->in, used);
		if (got == HTTP_PARSE_BAD && fault.status == 413)
			fail_too_long(c, 413, "body", c->server->config.body_bytes_max);
		else if (got == HTTP_PARSE_BAD)
			conn_fail(c, fault.status, fault.text);
		if (got == HTTP_PARSE_BAD)
			return false;
		done = got == HTTP_PARSE_DONE;
	} else {
		u64 left = r->head.content_length - r->body.bytes;
		size_t n = c->in.bytes < left ? c->in.bytes : (size_t)left;
		buf_append(&r->body, c->in.data, n);
		buf_consume(&c->in, n);
		done = r->body.bytes == r->head.content_length;
	}
	buf_cstr(&r->body);
	if (!buf_ok(&r->body)) {
		conn_fail(c, 503, "There is no memory for the request body.");
		return false;
	}
	if (!done)
		return false;
	c->state = CONN_HANDLING;
	c->server->config.on_request(c->server->config.ctx, r);
	return c->state == CONN_HEAD;
}

/* Thousands of idle connections should not each hold what their largest request needed. */
static void trim_input(struct conn *c)
{
	if (c->state != CONN_HEAD && c->state != CONN_HANDLING && c->state != CONN_STREAMING)
		return;
	if (c->in.bytes == 0 && c->in.capacity > INPUT_KEEP_BYTES)
		buf_fini(&c->in);
	if (c->state == CONN_HEAD && c->request.body.capacity > INPUT_KEEP_BYTES)
		buf_fini(&c->request.body);
}

void conn_advance(struct conn *c)
{
	if (c->advancing)
		return;
	c->advancing = true;
	bool more = true;
	while (more) {
		if (c->state == CONN_HEAD) {
			more = advance_head(c);
		} else if (c->state == CONN_BODY) {
			more = advance_body(c);
		} else {
			more = false;
		}
	}
	c->advancing = false;
	trim_input(c);
	bool busy = c->state == CONN_HANDLING || c->state == CONN_STREAMING ||
		    (c->state == CONN_HEAD && conn_pending_bytes(c) > OUTPUT_AHEAD_MAX);
	if (c->state != CONN_DEAD)
		watch_input(c, busy && c->in.bytes >= PIPELINE_BYTES_MAX);
}

void conn_linger(struct conn *c)
{
	c->state = CONN_LINGER;
	c->linger_ns = clock_now_ns();
	buf_clear(&c->in);
	if (shutdown(c->fd, SHUT_WR) != 0)
		conn_kill(c);
	else
		watch_input(c, false);
}
