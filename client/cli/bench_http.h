/* One HTTP/1.1 connection of the load generator: a request out, an event stream or a plain body back, without ever
 * blocking. Kept open for the next request when the server allows. */
#ifndef TERCET_CLIENT_CLI_BENCH_HTTP_H
#define TERCET_CLIENT_CLI_BENCH_HTTP_H

#include <sys/socket.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/types.h"

enum bench_http_state {
	BENCH_HTTP_CLOSED,
	BENCH_HTTP_CONNECTING,
	BENCH_HTTP_HEAD,     /* request going out, or response head coming in */
	BENCH_HTTP_BODY,
	BENCH_HTTP_COMPLETE, /* the whole response is there */
};

/* Zero-initialised with fd -1 is a closed connection. */
struct bench_http {
	int fd;
	enum bench_http_state state;
	struct buf out;
	size_t out_sent;
	struct buf in;         /* as received */
	struct buf body;       /* chunks taken off */
	size_t events_taken;   /* bytes of the body already given out as events */
	int status;
	bool chunked;
	bool until_close;      /* neither chunked nor of a known length */
	bool keep_alive;
	bool in_chunk;
	u64 left;              /* bytes of this chunk, or of the body */
};

/* Where to connect, and what every request carries. */
struct bench_target {
	struct sockaddr_storage address;
	socklen_t address_bytes;
	char host[256];    /* for the Host header, with port */
	const char *api_key; /* NULL: none */
};

/* From "http://host:port" (port 80 without one). ERR_INVALID, ERR_NOT_FOUND. Blocks for name resolution. */
MUST_CHECK enum err bench_target_parse(struct bench_target *t, const char *url, struct err_msg *em);

/* Begins a request; `body` NULL: GET. Reuses the connection where that is possible, else connects. ERR_IO. */
MUST_CHECK enum err bench_http_begin(struct bench_http *h, const struct bench_target *t, const char *path,
				     const char *body, size_t body_bytes, struct err_msg *em);
/* Goes on after the descriptor became readable or writable. ERR_OK: the response is complete. ERR_AGAIN: more will
 * come. ERR_IO, ERR_FORMAT: it is over. */
MUST_CHECK enum err bench_http_step(struct bench_http *h, struct err_msg *em);
/* Whether it waits to write, for epoll. */
bool bench_http_wants_write(const struct bench_http *h);
/* The next whole "data:" line of an event stream; borrowed until the next call. False: none is complete. */
bool bench_http_next_event(struct bench_http *h, const char **data, size_t *bytes);
void bench_http_close(struct bench_http *h);
void bench_http_fini(struct bench_http *h);

#endif
