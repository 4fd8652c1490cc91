/* An HTTP/1.1 server on libevent for many long-lived streams: own connection handling over http_parse.h, with
 * limits on everything a client can make large or slow. One thread, the one of `base`; nothing here blocks.
 */
#ifndef TERCET_PROC_GATEWAY_HTTP_SERVER_H
#define TERCET_PROC_GATEWAY_HTTP_SERVER_H

#include "common/err.h"
#include "common/types.h"
#include "proc_gateway/http_parse.h"

struct event_base;
struct http_server;
/* One exchange. Valid from the first callback until http_reply or http_stream_end is called with it, or until
 * its close callback returns; belongs to the server. */
struct http_request;

/* After the head was read, before the body is. A callback that replies here (http_reply) refuses the request:
 * its body is not read and the connection ends. */
typedef void (*http_head_fn)(void *ctx, struct http_request *r);
/* The whole request is there. The callback replies at once or keeps `r` and replies later. */
typedef void (*http_request_fn)(void *ctx, struct http_request *r);
/* The client went away, or was too slow, before the reply was complete. `r` dies when this returns. */
typedef void (*http_close_fn)(void *ctx, struct http_request *r);
/* Writes the body of the server's own errors (malformed requests, limits), for a request of that path ("": its head was not
 * read); `content_type` is set to a static text. */
typedef void (*http_error_body_fn)(void *ctx, const char *path, int status, const char *text, struct buf *out,
				   const char **content_type);

struct http_server_config {
	const char *host; /* address or name; "" is every address */
	u16 port;	  /* 0: any free one */
	bool share_port;  /* SO_REUSEPORT: several gateways listen side by side, each from its http_server_listen on */
	u32 connections_max;
	u64 body_bytes_max;
	u32 head_bytes_max;	 /* 0: 32 KiB */
	u32 read_timeout_ms;	 /* from the first byte of a request to its last */
	u32 idle_timeout_ms;	 /* between requests; 0: 75 s */
	u32 write_timeout_ms;	 /* without the client taking a byte of what is pending; 0: 60 s */
	u32 stream_pending_max;	 /* bytes a stream may lag behind before it is closed; 0: 1 MiB */
	const char *stream_ping; /* sent on streams silent for 15 s; NULL: nothing */
	http_head_fn on_head;	 /* may be NULL */
	http_request_fn on_request;
	http_error_body_fn error_body;
	void *ctx;
};

struct http_server_stats {
	u32 connections; /* open now */
	u64 requests;	 /* heads read, and those too malformed to be read */
	u64 errors;	 /* replies of 400 and above */
	u64 closed_slow; /* streams that lagged too far behind, requests that took too long */
};

/* Takes the address; with share_port connections come only after http_server_listen, else at once. ERR_IO names address,
 * reason and, when the port is taken, what to do. */
MUST_CHECK enum err http_server_create(struct http_server **out, struct event_base *base,
				       const struct http_server_config *config, struct err_msg *em);
/* Closes all connections (their close callbacks run) and frees. NULL accepted. */
void http_server_destroy(struct http_server **s);
/* Accepts connections from now on; harmless when it does already. ERR_IO: the system refuses. */
MUST_CHECK enum err http_server_listen(struct http_server *s, struct err_msg *em);
u16 http_server_port(const struct http_server *s);
const struct http_server_stats *http_server_get_stats(const struct http_server *s);
/* From now on every connection ends after the reply in progress; idle ones end now. New ones are still
 * accepted, so that they can be told. */
void http_server_drain(struct http_server *s);
/* Requests between head and end of reply. */
u32 http_server_active_count(const struct http_server *s);
/* Connections with bytes of a reply still unsent. */
u32 http_server_pending_count(const struct http_server *s);

/* ---------------------------------------------------------------- one request */

const struct http_head *http_request_head(const struct http_request *r);
/* The body; a NUL stands behind it. Borrowed until the reply is complete. */
const char *http_request_body(const struct http_request *r, size_t *bytes);
/* Moves the body into `out` (which must be empty): it outlives the request then. */
void http_request_take_body(struct http_request *r, struct buf *out);
u64 http_request_begin_ns(const struct http_request *r); /* clock_now_ns of its first byte */
void http_request_on_close(struct http_request *r, http_close_fn fn, void *ctx);
/* A pointer of the handler's. */
void http_request_set_user(struct http_request *r, void *user);
void *http_request_user(const struct http_request *r);

/* Adds a header to the reply. Before http_reply / http_stream_begin. Control characters in `value` are
 * dropped. */
void http_reply_header(struct http_request *r, const char *name, const char *value);
/* The whole reply. `r` is dead afterwards. */
void http_reply(struct http_request *r, int status, const char *content_type, const char *body, size_t bytes);
/* Begins a reply of unknown length (chunked; HTTP/1.0: until close). */
void http_stream_begin(struct http_request *r, int status, const char *content_type);
/* Sends now, straight to the socket when nothing is pending. ERR_GONE: the connection is broken or lags too
 * far behind: write no more; the close callback follows. */
MUST_CHECK enum err http_stream_write(struct http_request *r, const char *data, size_t bytes);
/* `r` is dead afterwards. */
void http_stream_end(struct http_request *r);

/* "Not Found"; "Error" for statuses not known here. */
const char *http_status_text(int status);

#endif
