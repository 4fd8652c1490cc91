/* Shared by http_server.c (listening, limits over time), http_conn.c (reading) and http_reply.c (writing). */
#ifndef TERCET_PROC_GATEWAY_HTTP_SERVER_PRIV_H
#define TERCET_PROC_GATEWAY_HTTP_SERVER_PRIV_H

#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/listener.h>

#include "common/buf.h"
#include "proc_gateway/http_server.h"

enum conn_state {
	CONN_HEAD, /* between requests, or inside a head */
	CONN_BODY,
	CONN_HANDLING, /* the handler has the request and has not replied */
	CONN_STREAMING,
	CONN_CLOSING, /* the last reply is complete; what is pending is still sent */
	CONN_LINGER,  /* our side is shut down; input is dropped until the client closes (no reset on our last
			 bytes) */
	CONN_DEAD,    /* on the list of the dead; freed at the end of the turn */
};

struct http_request {
	struct conn *conn;
	struct http_head head;
	struct buf head_bytes; /* what `head` points into */
	struct buf body;
	struct http_chunked chunked;
	struct buf reply_headers;
	u64 begin_ns;
	bool open; /* head read, reply not complete */
	bool chunked_reply;
	http_close_fn on_close;
	void *close_ctx;
	void *user;
};

struct conn {
	struct http_server *server;
	struct conn *previous, *next; /* all connections */
	struct conn *dead_next;
	int fd;
	enum conn_state state;
	bool keep_alive;
	bool advancing;	  /* inside conn_advance */
	bool read_paused; /* only a closing client wakes us */
	bool writing;	  /* write_event is pending */
	struct event read_event;
	struct event write_event;
	struct buf in;
	size_t in_scanned;
	struct buf out;
	size_t out_sent;
	u64 progress_ns; /* idle since; or, with output pending, the last time the client took some */
	u64 stream_ns;	 /* last write of a stream */
	u64 linger_ns;
	struct http_request request;
};

struct http_server {
	struct event_base *base;
	struct http_server_config config;
	struct evconnlistener *listener;
	struct event sweep_event;
	struct event dead_event;
	struct conn *conns;
	struct conn *dead;
	struct http_server_stats stats;
	u32 active;
	u16 port;
	bool listening;
	bool draining;
	bool sweeping;	    /* sweep_event is pending */
	bool accept_paused; /* out of file descriptors: sweep tries again */
	struct buf scratch; /* of one reply */
	char read_bytes[64 * 1024];
	char date[64];
	i64 date_s;
};

/* http_conn.c */
struct conn *conn_create(struct http_server *s, int fd);
/* Ends the connection at once. It is freed, and its request's close callback runs, at the end of the turn. */
void conn_kill(struct conn *c);
void conn_free(struct conn *c);
/* Replies with an error of the server's own and ends the connection. */
void conn_fail(struct conn *c, int status, const char *text);
/* Takes what is in the input buffer as far as it goes. */
void conn_advance(struct conn *c);
/* All output was sent in state CONN_CLOSING. */
void conn_linger(struct conn *c);

/* http_reply.c */
void conn_write_ready(struct conn *c);
/* Sends what fits, keeps the rest. False: the connection was killed. */
bool conn_send(struct conn *c, const char *data, size_t bytes);
static inline size_t conn_pending_bytes(const struct conn *c)
{
	return c->out.bytes - c->out_sent;
}

#endif
