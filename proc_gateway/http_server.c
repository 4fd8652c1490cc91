/* Owns the listening socket, the list of connections and the sweep that ends what takes too long. Runs in the
 * gateway. Never lets a client hold a connection by doing nothing, and never dies of running out of file
 * descriptors. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "proc_gateway/http_server_priv.h"

enum {
	BACKLOG = 1024,
	SWEEP_MS = 1000,
	PING_MS = 15000,
	LINGER_MS = 2000,
	REFUSED_READS_MAX = 16,
};

static u64 ms_since(u64 now_ns, u64 then_ns)
{
	return now_ns > then_ns ? (now_ns - then_ns) / 1000000 : 0;
}

/* ---------------------------------------------------------------- time */

static void sweep_stream(struct conn *c, u64 now_ns)
{
	const char *ping = c->server->config.stream_ping;
	if (!ping || conn_pending_bytes(c) > 0 || ms_since(now_ns, c->stream_ns) < PING_MS)
		return;
	if (http_stream_write(&c->request, ping, strlen(ping)) != ERR_OK)
		LOG_DEBUG("STREAM_GONE", "fd=%d", c->fd);
}

static void sweep_conn(struct conn *c, u64 now_ns)
{
	struct http_server *s = c->server;
	const struct http_server_config *config = &s->config;
	bool pending = conn_pending_bytes(c) > 0;
	if (c->state == CONN_DEAD)
		return;
	if (pending && ms_since(now_ns, c->progress_ns) > config->write_timeout_ms) {
		s->stats.closed_slow++;
		conn_kill(c);
	} else if (c->state == CONN_LINGER && ms_since(now_ns, c->linger_ns) > LINGER_MS) {
		conn_kill(c);
	} else if (c->state == CONN_STREAMING) {
		sweep_stream(c, now_ns);
	} else if (c->state == CONN_HEAD && c->request.begin_ns == 0) {
		if (!pending && (s->draining || ms_since(now_ns, c->progress_ns) > config->idle_timeout_ms))
			conn_kill(c);
	} else if ((c->state == CONN_HEAD || c->state == CONN_BODY) &&
		   ms_since(now_ns, c->request.begin_ns) > config->read_timeout_ms) {
		s->stats.closed_slow++;
		conn_fail(c, 408, "The request took too long to arrive.");
	}
}

static void sweep_schedule(struct http_server *s)
{
	struct timeval period = {.tv_sec = SWEEP_MS / 1000, .tv_usec = SWEEP_MS % 1000 * 1000};
	s->sweeping = true;
	event_add(&s->sweep_event, &period);
}

/* Runs only while there are connections, so that an idle gateway sleeps. */
static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_server *s = arg;
	s->sweeping = false;
	if (s->accept_paused) {
		s->accept_paused = false;
		evconnlistener_enable(s->listener);
	}
	u64 now_ns = clock_now_ns();
	for (struct conn *c = s->conns; c; c = c->next)
		sweep_conn(c, now_ns);
	if (s->conns)
		sweep_schedule(s);
}

static void free_dead(struct http_server *s)
{
	while (s->dead) {
		struct conn *c = s->dead;
		s->dead = c->dead_next;
		conn_free(c);
	}
}

static void on_dead(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	free_dead(arg);
}

/* ---------------------------------------------------------------- accepting */

static void refuse_connection(struct http_server *s, int fd)
{
	struct buf body = {0}, reply = {0};
	const char *type = "text/plain";
	if (s->config.error_body)
		s->config.error_body(s->config.ctx, "", 503, "Too many connections; try again.", &body, &type);
	buf_printf(&reply,
		   "HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
		   "Retry-After: 1\r\nConnection: close\r\n\r\n",
		   type, body.bytes);
	buf_append(&reply, body.data ? body.data : "", body.bytes);
	s->stats.requests++;
	s->stats.errors++;
	if (buf_ok(&reply) && send(fd, reply.data, reply.bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		shutdown(fd, SHUT_WR);
	/* unread input would turn the close into a reset that can overtake the reply; who sends without end may have
	   the reset */
	for (u32 i = 0; i < REFUSED_READS_MAX; i++)
		if (recv(fd, s->read_bytes, sizeof(s->read_bytes), MSG_DONTWAIT) <= 0)
			break;
	close(fd);
	buf_fini(&body);
	buf_fini(&reply);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
		      int bytes, void *arg)
{
	(void)listener;
	(void)address;
	(void)bytes;
	struct http_server *s = arg;
	int on = 1, keep_idle_s = 60;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* a peer that vanished without a word */
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_idle_s, sizeof(keep_idle_s));
	if (s->stats.connections >= s->config.connections_max) {
		refuse_connection(s, fd);
		return;
	}
	if (!conn_create(s, fd)) {
		close(fd);
		return;
	}
	if (!s->sweeping)
		sweep_schedule(s);
}

static void on_accept_error(struct evconnlistener *listener, void *arg)
{
	struct http_server *s = arg;
	LOG_WARN("ACCEPT_FAILED", "reason=\"%s\" connections=%u", strerror(errno), s->stats.connections);
	s->accept_paused = true; /* the listener would be ready again at once */
	evconnlistener_disable(listener);
	if (!s->sweeping)
		sweep_schedule(s);
}

/* ---------------------------------------------------------------- listening */

static enum err listen_failed(const struct http_server_config *c, int error, struct err_msg *em)
{
	if (error == EADDRINUSE)
		return err_set(
			em, ERR_IO,
			"%s port %u is in use by another program; choose another --port, or --port 0 for any "
			"free one",
			*c->host ? c->host : "every address,", c->port);
	if (error == EACCES)
		return err_set(em, ERR_IO,
			       "port %u needs privileges this process does not have; choose a --port above "
			       "1023",
			       c->port);
	return err_set(em, ERR_IO, "cannot listen on %s port %u: %s", *c->host ? c->host : "*", c->port,
		       strerror(error));
}

static int try_address(const struct addrinfo *a, bool share_port)
{
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
	if (fd < 0)
		return -1;
	int on = 1, off = 0;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (share_port)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	if (a->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	/* of those that share a port, the kernel hands connections only to those that listen */
	if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && (share_port || listen(fd, BACKLOG) == 0))
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

static enum err open_listener(const struct http_server_config *c, int *out, struct err_msg *em)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	struct addrinfo *list;
	char port[16];
	snprintf(port, sizeof(port), "%u", c->port);
	int rc = getaddrinfo(*c->host ? c->host : NULL, port, &hints, &list);
	if (rc != 0)
		return err_set(em, ERR_IO, "the address \"%s\" of --host is not known here: %s", c->host,
			       gai_strerror(rc));
	int error = 0, fd = -1;
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = try_address(a, c->share_port);
		if (fd < 0)
			error = errno;
		if (fd < 0 && error == EADDRINUSE)
			break; /* another family of the same name would hide the real trouble */
	}
	freeaddrinfo(list);
	if (fd < 0)
		return listen_failed(c, error, em);
	*out = fd;
	return ERR_OK;
}

static u16 bound_port(int fd)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);
	if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
		return 0;
	if (address.ss_family == AF_INET6)
		return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
	return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static void default_limits(struct http_server_config *c)
{
	if (c->head_bytes_max == 0)
		c->head_bytes_max = 32 * 1024;
	if (c->idle_timeout_ms == 0)
		c->idle_timeout_ms = 75 * 1000;
	if (c->write_timeout_ms == 0)
		c->write_timeout_ms = 60 * 1000;
	if (c->stream_pending_max == 0)
		c->stream_pending_max = 1024 * 1024;
}

enum err http_server_create(struct http_server **out, struct event_base *base,
			    const struct http_server_config *config, struct err_msg *em)
{
	ASSERT(config->on_request && config->connections_max > 0);
	struct http_server *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(em, ERR_NO_MEMORY, "no memory for the HTTP server");
	s->base = base;
	s->config = *config;
	default_limits(&s->config);
	event_assign(&s->sweep_event, base, -1, 0, on_sweep, s);
	event_assign(&s->dead_event, base, -1, 0, on_dead, s);
	int fd = -1;
	enum err e = open_listener(&s->config, &fd, em);
	if (e)
		goto fail;
	s->port = bound_port(fd);
	s->listening = !s->config.share_port;
	s->listener = evconnlistener_new(base, on_accept, s,
					 LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
						 (s->listening ? 0 : LEV_OPT_DISABLED),
					 0, fd);
	if (!s->listener) {
		close(fd);
		e = err_set(em, ERR_NO_MEMORY, "no memory for the HTTP listener");
		goto fail;
	}
	evconnlistener_set_error_cb(s->listener, on_accept_error);
	*out = s;
	return ERR_OK;
fail:
	free(s);
	return e;
}

enum err http_server_listen(struct http_server *s, struct err_msg *em)
{
	if (s->listening)
		return ERR_OK;
	if (listen(evconnlistener_get_fd(s->listener), BACKLOG) != 0)
		return listen_failed(&s->config, errno, em);
	s->listening = true;
	evconnlistener_enable(s->listener);
	return ERR_OK;
}

void http_server_destroy(struct http_server **server)
{
	struct http_server *s = *server;
	if (!s)
		return;
	for (struct conn *c = s->conns; c; c = c->next)
		conn_kill(c);
	free_dead(s);
	evconnlistener_free(s->listener);
	event_del(&s->sweep_event);
	event_del(&s->dead_event);
	buf_fini(&s->scratch);
	free(s);
	*server = NULL;
}

u16 http_server_port(const struct http_server *s)
{
	return s->port;
}

const struct http_server_stats *http_server_get_stats(const struct http_server *s)
{
	return &s->stats;
}

void http_server_drain(struct http_server *s)
{
	s->draining = true;
	for (struct conn *c = s->conns; c; c = c->next) {
		if (c->state == CONN_HEAD && c->request.begin_ns == 0 && conn_pending_bytes(c) == 0)
			conn_kill(c);
	}
}

u32 http_server_active_count(const struct http_server *s)
{
	return s->active;
}

u32 http_server_pending_count(const struct http_server *s)
{
	u32 count = 0;
	for (const struct conn *c = s->conns; c; c = c->next) {
		if (c->state != CONN_DEAD && conn_pending_bytes(c) > 0)
			count++;
	}
	return count;
}

/* ---------------------------------------------------------------- one request */

const struct http_head *http_request_head(const struct http_request *r)
{
	return &r->head;
}

const char *http_request_body(const struct http_request *r, size_t *bytes)
{
	*bytes = r->body.bytes;
	return r->body.data ? r->body.data : "";
}

void http_request_take_body(struct http_request *r, struct buf *out)
{
	ASSERT(!out->data);
	*out = r->body;
	r->body = (struct buf){0};
}

u64 http_request_begin_ns(const struct http_request *r)
{
	return r->begin_ns;
}

void http_request_on_close(struct http_request *r, http_close_fn fn, void *ctx)
{
	r->on_close = fn;
	r->close_ctx = ctx;
}

void http_request_set_user(struct http_request *r, void *user)
{
	r->user = user;
}

void *http_request_user(const struct http_request *r)
{
	return r->user;
}
