/* Owns a connection's output: status lines, headers, chunk framing, direct sends, and what is kept when the
 * client takes bytes more slowly than we make them. Runs in the gateway. Never waits for a client and never
 * keeps more than a stream's limit for one. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "proc_gateway/http_server_priv.h"

struct status_text {
	int status;
	const char *text;
};

static const struct status_text statuses[] = {
	{200, "OK"},
	{204, "No Content"},
	{304, "Not Modified"},
	{400, "Bad Request"},
	{401, "Unauthorized"},
	{403, "Forbidden"},
	{404, "Not Found"},
	{405, "Method Not Allowed"},
	{408, "Request Timeout"},
	{409, "Conflict"},
	{410, "Gone"},
	{413, "Content Too Large"},
	{415, "Unsupported Media Type"},
	{417, "Expectation Failed"},
	{429, "Too Many Requests"},
	{431, "Request Header Fields Too Large"},
	{500, "Internal Server Error"},
	{501, "Not Implemented"},
	{503, "Service Unavailable"},
	{505, "HTTP Version Not Supported"},
	{529, "Overloaded"}, /* Anthropic's own */
};

const char *http_status_text(int status)
{
	for (size_t i = 0; i < COUNT_OF(statuses); i++) {
		if (statuses[i].status == status)
			return statuses[i].text;
	}
	return "Error";
}

/* ---------------------------------------------------------------- bytes */

static void keep_unsent(struct conn *c, const struct iovec *iov, u32 count, size_t sent)
{
	for (u32 i = 0; i < count; i++) {
		if (sent >= iov[i].iov_len) {
			sent -= iov[i].iov_len;
			continue;
		}
		buf_append(&c->out, (const char *)iov[i].iov_base + sent, iov[i].iov_len - sent);
		sent = 0;
	}
}

/* Sends at once when nothing is pending; what the socket does not take is kept. */
static bool send_parts(struct conn *c, struct iovec *iov, u32 count)
{
	if (c->state == CONN_DEAD)
		return false;
	size_t total = 0, sent = 0;
	for (u32 i = 0; i < count; i++)
		total += iov[i].iov_len;
	if (conn_pending_bytes(c) == 0) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count};
		ssize_t n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
			conn_kill(c);
			return false;
		}
		sent = n > 0 ? (size_t)n : 0;
		if (sent == total)
			return true;
		buf_clear(&c->out);
		c->out_sent = 0;
		c->progress_ns = clock_now_ns();
	}
	keep_unsent(c, iov, count, sent);
	if (!buf_ok(&c->out)) {
		conn_kill(c);
		return false;
	}
	if (!c->writing) {
		c->writing = true;
		event_add(&c->write_event, NULL);
	}
	return true;
}

bool conn_send(struct conn *c, const char *data, size_t bytes)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	return send_parts(c, &iov, 1);
}

void conn_write_ready(struct conn *c)
{
	if (c->state == CONN_DEAD)
		return;
	ssize_t n =
		send(c->fd, c->out.data + c->out_sent, conn_pending_bytes(c), MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0) {
		if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
			conn_kill(c);
		return;
	}
	c->out_sent += (size_t)n;
	c->progress_ns = clock_now_ns();
	if (conn_pending_bytes(c) > 0)
		return;
	buf_fini(&c->out); /* rare: clients usually take what they are sent */
	c->out_sent = 0;
	c->writing = false;
	event_del(&c->write_event);
	if (c->state == CONN_CLOSING)
		conn_linger(c);
	else if (c->state == CONN_HEAD)
		conn_advance(c); /* pipelined requests may have waited for this */
}

/* ---------------------------------------------------------------- replies */

static const char *date_now(struct http_server *s)
{
	i64 now = clock_wall_s();
	if (now != s->date_s) {
		time_t t = (time_t)now;
		struct tm tm;
		gmtime_r(&t, &tm);
		strftime(s->date, sizeof(s->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
		s->date_s = now;
	}
	return s->date;
}

void http_reply_header(struct http_request *r, const char *name, const char *value)
{
	ASSERT(r->open);
	buf_append_str(&r->reply_headers, name);
	buf_append_str(&r->reply_headers, ": ");
	for (const char *p = value; *p; p++) {
		if ((unsigned char)*p >= ' ' && *p != 0x7f)
			buf_append_char(&r->reply_headers, *p);
	}
	buf_append_str(&r->reply_headers, "\r\n");
}

static void write_head(struct http_request *r, int status, const char *content_type, struct buf *out)
{
	struct http_server *s = r->conn->server;
	buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: tercet\r\n", status, http_status_text(status),
		   date_now(s));
	if (content_type)
		buf_printf(out, "Content-Type: %s\r\n", content_type);
	if (!r->conn->keep_alive)
		buf_append_str(out, "Connection: close\r\n");
	else if (r->head.minor_version == 0)
		buf_append_str(out, "Connection: keep-alive\r\n");
	buf_append(out, r->reply_headers.data ? r->reply_headers.data : "", r->reply_headers.bytes);
	if (status >= 400)
		s->stats.errors++;
}

/* The reply is complete: on to the next request, or to the end of the connection. */
static void finish_request(struct http_request *r)
{
	struct conn *c = r->conn;
	r->open = false;
	r->on_close = NULL;
	r->begin_ns = 0;
	c->server->active--;
	if (c->state == CONN_DEAD)
		return;
	if (c->keep_alive && !c->server->draining) {
		c->state = CONN_HEAD;
		if (conn_pending_bytes(c) == 0)
			c->progress_ns = clock_now_ns();
		if (!c->advancing &&
		    c->in.bytes > 0) /* a late reply: somebody has to look at what is waiting */
			event_active(&c->read_event, EV_READ, 1);
		return;
	}
	c->state = CONN_CLOSING;
	if (conn_pending_bytes(c) == 0)
		conn_linger(c);
}

void http_reply(struct http_request *r, int status, const char *content_type, const char *body, size_t bytes)
{
	ASSERT(r->open && r->conn->state != CONN_STREAMING);
	struct conn *c = r->conn;
	struct buf *head = &c->server->scratch;
	buf_clear(head);
	write_head(r, status, content_type, head);
	if (status != 204)
		buf_printf(head, "Content-Length: %zu\r\n", bytes);
	buf_append_str(head, "\r\n");
	if (!buf_ok(head)) {
		conn_kill(c);
	} else {
		struct iovec iov[2] = {{.iov_base = head->data, .iov_len = head->bytes},
				       {.iov_base = (void *)(uintptr_t)body, .iov_len = bytes}};
		bool no_body = r->head.method == HTTP_METHOD_HEAD || bytes == 0 || status == 204;
		send_parts(c, iov, no_body ? 1 : 2);
	}
	finish_request(r);
}

void http_stream_begin(struct http_request *r, int status, const char *content_type)
{
	struct conn *c = r->conn;
	ASSERT(r->open && (c->state == CONN_HANDLING || c->state == CONN_DEAD));
	if (c->state == CONN_DEAD) /* it broke in this very turn; its close callback follows */
		return;
	r->chunked_reply = r->head.minor_version == 1;
	if (!r->chunked_reply)
		c->keep_alive = false;
	struct buf *head = &c->server->scratch;
	buf_clear(head);
	write_head(r, status, content_type, head);
	buf_append_str(head, r->chunked_reply ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
	c->state = CONN_STREAMING;
	c->stream_ns = clock_now_ns();
	if (!buf_ok(head))
		conn_kill(c);
	else
		conn_send(c, head->data, head->bytes);
}

enum err http_stream_write(struct http_request *r, const char *data, size_t bytes)
{
	struct conn *c = r->conn;
	ASSERT(r->open);
	if (c->state != CONN_STREAMING)
		return ERR_GONE;
	if (bytes == 0)
		return ERR_OK; /* an empty chunk would end the body */
	if (conn_pending_bytes(c) + bytes > c->server->config.stream_pending_max) {
		c->server->stats.closed_slow++;
		LOG_WARN("STREAM_CLOSED_SLOW", "fd=%d pending_bytes=%zu limit=%u", c->fd,
			 conn_pending_bytes(c), c->server->config.stream_pending_max);
		conn_kill(c);
		return ERR_GONE;
	}
	c->stream_ns = clock_now_ns();
	bool sent;
	if (r->chunked_reply) {
		char size[24];
		int size_bytes = snprintf(size, sizeof(size), "%zx\r\n", bytes);
		static const char end[] = "\r\n";
		struct iovec iov[3] = {{.iov_base = size, .iov_len = (size_t)size_bytes},
				       {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes},
				       {.iov_base = (void *)(uintptr_t)end, .iov_len = 2}};
		sent = send_parts(c, iov, 3);
	} else {
		sent = conn_send(c, data, bytes);
	}
	return sent ? ERR_OK : ERR_GONE;
}

void http_stream_end(struct http_request *r)
{
	ASSERT(r->open);
	struct conn *c = r->conn;
	if (c->state == CONN_STREAMING && r->chunked_reply)
		conn_send(c, "0\r\n\r\n", 5);
	finish_request(r);
}
