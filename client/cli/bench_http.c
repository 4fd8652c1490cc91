/* The load generator's HTTP client. Runs in tercet bench serve; owns its sockets. It trusts the server no further than
 * its buffers reach: what is malformed ends the request with an error. */
#include "client/cli/bench_http.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/assert.h"

enum { HEAD_BYTES_MAX = 65536, READ_BYTES = 65536 };

/* ---------------------------------------------------------------- target */

enum err bench_target_parse(struct bench_target *t, const char *url, struct err_msg *em)
{
	char host[200];
	char port[16] = "80";
	if (strncmp(url, "http://", 7) != 0)
		return err_set(em, ERR_INVALID, "the URL \"%.100s\" must begin with http://", url);
	const char *at = url + 7;
	size_t bytes = strcspn(at, "/");
	const char *colon = memrchr(at, ':', bytes);
	if (colon && memchr(colon, ']', bytes - (size_t)(colon - at)))
		colon = NULL; /* inside of an IPv6 address */
	size_t host_bytes = colon ? (size_t)(colon - at) : bytes;
	if (colon)
		snprintf(port, sizeof(port), "%.*s", (int)(bytes - host_bytes - 1), colon + 1);
	bool bracketed = host_bytes > 2 && at[0] == '[';
	snprintf(host, sizeof(host), "%.*s", (int)(host_bytes - (bracketed ? 2 : 0)), at + (bracketed ? 1 : 0));
	if (!host[0] || !port[0])
		return err_set(em, ERR_INVALID, "the URL \"%.100s\" has no host or no port", url);
	snprintf(t->host, sizeof(t->host), "%.*s", (int)bytes, at);
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	int rc = getaddrinfo(host, port, &hints, &found);
	if (rc)
		return err_set(em, ERR_NOT_FOUND, "%.100s: %s", url, gai_strerror(rc));
	memcpy(&t->address, found->ai_addr, found->ai_addrlen);
	t->address_bytes = found->ai_addrlen;
	freeaddrinfo(found);
	return ERR_OK;
}

/* ---------------------------------------------------------------- request */

void bench_http_close(struct bench_http *h)
{
	if (h->fd >= 0)
		close(h->fd);
	h->fd = -1;
	h->state = BENCH_HTTP_CLOSED;
}

void bench_http_fini(struct bench_http *h)
{
	bench_http_close(h);
	buf_fini(&h->out);
	buf_fini(&h->in);
	buf_fini(&h->body);
}

static enum err connect_to(struct bench_http *h, const struct bench_target *t, struct err_msg *em)
{
	int one = 1;
	h->fd = socket(t->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (h->fd < 0)
		return err_set(em, ERR_IO, "no socket: %s", strerror(errno));
	setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(h->fd, (const struct sockaddr *)&t->address, t->address_bytes) && errno != EINPROGRESS) {
		err_set(em, ERR_IO, "cannot connect to %s: %s", t->host, strerror(errno));
		bench_http_close(h);
		return ERR_IO;
	}
	h->state = BENCH_HTTP_CONNECTING;
	return ERR_OK;
}

enum err bench_http_begin(struct bench_http *h, const struct bench_target *t, const char *path, const char *body,
			  size_t body_bytes, struct err_msg *em)
{
	bool reuse = h->state == BENCH_HTTP_COMPLETE && h->keep_alive;
	if (!reuse)
		bench_http_close(h);
	buf_clear(&h->out);
	buf_clear(&h->in);
	buf_clear(&h->body);
	h->out_sent = h->events_taken = 0;
	buf_printf(&h->out, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\nUser-Agent: tercet-bench\r\n",
		   body ? "POST" : "GET", path, t->host);
	if (t->api_key)
		buf_printf(&h->out, "Authorization: Bearer %s\r\n", t->api_key);
	if (body)
		buf_printf(&h->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body_bytes);
	buf_append_str(&h->out, "\r\n");
	if (body)
		buf_append(&h->out, body, body_bytes);
	if (!buf_ok(&h->out))
		return err_set(em, ERR_NO_MEMORY, "no memory for a request");
	h->state = BENCH_HTTP_HEAD;
	return reuse ? ERR_OK : connect_to(h, t, em);
}

bool bench_http_wants_write(const struct bench_http *h)
{
	return h->state == BENCH_HTTP_CONNECTING || (h->fd >= 0 && h->out_sent < h->out.bytes);
}

/* ---------------------------------------------------------------- response */

/* The value of a header in `head` (which ends in an empty line), or NULL. */
static const char *find_header(const char *head, const char *name, size_t *bytes)
{
	size_t name_bytes = strlen(name);
	for (const char *line = strstr(head, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n")) {
		const char *at = line + 2;
		if (strncasecmp(at, name, name_bytes) != 0 || at[name_bytes] != ':')
			continue;
		at += name_bytes + 1;
		while (*at == ' ')
			at++;
		*bytes = strcspn(at, "\r");
		return at;
	}
	return NULL;
}

static bool header_is(const char *head, const char *name, const char *value)
{
	size_t bytes;
	const char *found = find_header(head, name, &bytes);
	return found && bytes == strlen(value) && strncasecmp(found, value, bytes) == 0;
}

static enum err read_head(struct bench_http *h, struct err_msg *em)
{
	char *head = (char *)buf_cstr(&h->in);
	char *end = strstr(head, "\r\n\r\n");
	size_t bytes;
	if (!end)
		return h->in.bytes > HEAD_BYTES_MAX ? err_set(em, ERR_FORMAT, "the response head has no end")
						    : ERR_AGAIN;
	if (sscanf(head, "HTTP/1.%*c %3d", &h->status) != 1)
		return err_set(em, ERR_FORMAT, "no HTTP response: \"%.40s\"", head);
	end[2] = '\0'; /* find_header sees the head only */
	h->chunked = header_is(head, "Transfer-Encoding", "chunked");
	h->keep_alive = !header_is(head, "Connection", "close");
	const char *length = find_header(head, "Content-Length", &bytes);
	h->left = length ? strtoull(length, NULL, 10) : 0;
	h->until_close = !h->chunked && !length;
	h->in_chunk = false;
	buf_consume(&h->in, (size_t)(end + 4 - head));
	h->state = BENCH_HTTP_BODY;
	return ERR_OK;
}

static void move_body(struct bench_http *h, size_t limit)
{
	size_t n = h->in.bytes < limit ? h->in.bytes : limit;
	buf_append(&h->body, h->in.data, n);
	buf_consume(&h->in, n);
}

/* ERR_AGAIN: the chunk at hand is not complete. ERR_OK: that was the last one. */
static enum err read_chunks(struct bench_http *h, struct err_msg *em)
{
	for (;;) {
		if (h->in_chunk) {
			size_t before = h->in.bytes;
			move_body(h, h->left);
			h->left -= before - h->in.bytes;
			if (h->left || h->in.bytes < 2)
				return ERR_AGAIN;
			buf_consume(&h->in, 2);
			h->in_chunk = false;
		}
		const char *text = buf_cstr(&h->in);
		const char *end = strstr(text, "\r\n");
		if (!end)
			return h->in.bytes > 100 ? err_set(em, ERR_FORMAT, "a chunk without a size") : ERR_AGAIN;
		char *digits_end;
		h->left = strtoull(text, &digits_end, 16);
		if (digits_end == text)
			return err_set(em, ERR_FORMAT, "a chunk without a size: \"%.20s\"", text);
		if (h->left == 0) { /* trailers are not used by any server we know */
			if (h->in.bytes < (size_t)(end - text) + 4)
				return ERR_AGAIN;
			buf_clear(&h->in);
			return ERR_OK;
		}
		buf_consume(&h->in, (size_t)(end + 2 - text));
		h->in_chunk = true;
	}
}

static enum err read_body(struct bench_http *h, bool closed, struct err_msg *em)
{
	enum err e = ERR_AGAIN;
	if (h->chunked) {
		e = read_chunks(h, em);
	} else {
		size_t before = h->in.bytes;
		move_body(h, h->until_close ? SIZE_MAX : h->left);
		if (!h->until_close)
			h->left -= before - h->in.bytes;
		if (h->until_close ? closed : h->left == 0)
			e = ERR_OK;
	}
	if (e == ERR_OK)
		h->state = BENCH_HTTP_COMPLETE;
	if (e == ERR_AGAIN && closed)
		return err_set(em, ERR_IO, "the server closed the connection in the middle of its response");
	return buf_ok(&h->body) ? e : err_set(em, ERR_NO_MEMORY, "no memory for a response");
}

static enum err send_out(struct bench_http *h, struct err_msg *em)
{
	int error = 0;
	socklen_t size = sizeof(error);
	if (h->state == BENCH_HTTP_CONNECTING) {
		if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
			return err_set(em, ERR_IO, "cannot connect: %s", strerror(error ? error : errno));
		h->state = BENCH_HTTP_HEAD;
	}
	while (h->out_sent < h->out.bytes) {
		ssize_t n = send(h->fd, h->out.data + h->out_sent, h->out.bytes - h->out_sent, MSG_NOSIGNAL);
		if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
			return ERR_AGAIN;
		if (n < 0)
			return err_set(em, ERR_IO, "cannot send: %s", strerror(errno));
		h->out_sent += (size_t)n;
	}
	return ERR_OK;
}

enum err bench_http_step(struct bench_http *h, struct err_msg *em)
{
	ASSERT(h->fd >= 0);
	enum err e = send_out(h, em);
	if (e != ERR_OK && e != ERR_AGAIN)
		return e;
	if (!buf_reserve(&h->in, READ_BYTES))
		return err_set(em, ERR_NO_MEMORY, "no memory for a response");
	ssize_t n = recv(h->fd, h->in.data + h->in.bytes, READ_BYTES - 1, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN))
		return ERR_AGAIN;
	if (n < 0)
		return err_set(em, ERR_IO, "cannot receive: %s", strerror(errno));
	h->in.bytes += (size_t)n;
	if (h->state == BENCH_HTTP_HEAD) {
		e = read_head(h, em);
		if (e == ERR_AGAIN && n == 0)
			return err_set(em, ERR_IO, "the server closed the connection without a response");
		if (e != ERR_OK)
			return e;
	}
	return read_body(h, n == 0, em);
}

bool bench_http_next_event(struct bench_http *h, const char **data, size_t *bytes)
{
	while (h->events_taken < h->body.bytes) {
		const char *line = h->body.data + h->events_taken;
		const char *end = memchr(line, '\n', h->body.bytes - h->events_taken);
		if (!end)
			return false;
		h->events_taken += (size_t)(end + 1 - line);
		if (end - line < 5 || memcmp(line, "data:", 5) != 0)
			continue; /* a comment or an empty line */
		*data = line + 5;
		while (**data == ' ')
			++*data;
		*bytes = (size_t)(end - *data);
		return true;
	}
	if (h->events_taken) { /* all given out: the buffer begins anew */
		buf_clear(&h->body);
		h->events_taken = 0;
	}
	return false;
}
