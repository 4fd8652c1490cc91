/* The HTTP server over real loopback sockets: keep-alive, pipelining, limits, slow and vanishing clients. */
#include "http_fixture.h"

#include <stdlib.h>

#include "proc_gateway/http_server_priv.h"

struct fixture {
	struct event_base *base;
	struct http_server *server;
	struct http_request *held; /* by path /hold */
	unsigned requests;
	unsigned closed;
	char last_body[256];
	size_t last_body_bytes;
};

static void on_close(void *ctx, struct http_request *r)
{
	struct fixture *f = ctx;
	cr_assert_eq(f->held, r);
	f->held = NULL;
	f->closed++;
}

static void on_request(void *ctx, struct http_request *r)
{
	struct fixture *f = ctx;
	f->requests++;
	const char *body = http_request_body(r, &f->last_body_bytes);
	snprintf(f->last_body, sizeof(f->last_body), "%s", body);
	const char *path = http_request_head(r)->path;
	if (strcmp(path, "/hold") == 0 || strcmp(path, "/stream") == 0) {
		f->held = r;
		http_request_on_close(r, on_close, f);
		if (strcmp(path, "/stream") == 0)
			http_stream_begin(r, 200, "text/event-stream");
		return;
	}
	http_reply_header(r, "X-Path", path);
	http_reply(r, 200, "text/plain", path, strlen(path));
}

static void on_head(void *ctx, struct http_request *r)
{
	(void)ctx;
	if (strcmp(http_request_head(r)->path, "/secret") == 0)
		http_reply(r, 401, "text/plain", "no", 2);
}

static void error_body(void *ctx, const char *path, int status, const char *text, struct buf *out, const char **type)
{
	(void)ctx;
	(void)path;
	*type = "application/json";
	buf_printf(out, "{\"code\":%d,\"message\":\"%s\"}", status, text);
}

static void setup(struct fixture *f, const struct http_server_config *over)
{
	*f = (struct fixture){.base = event_base_new()};
	struct http_server_config config = *over;
	config.host = "127.0.0.1";
	config.on_head = on_head;
	config.on_request = on_request;
	config.error_body = error_body;
	config.ctx = f;
	if (!config.connections_max)
		config.connections_max = 100;
	if (!config.body_bytes_max)
		config.body_bytes_max = 1000;
	if (!config.read_timeout_ms)
		config.read_timeout_ms = 30000;
	struct err_msg em;
	cr_assert_eq(http_server_create(&f->server, f->base, &config, &em), ERR_OK, "%s", em.text);
}

static void teardown(struct fixture *f)
{
	http_server_destroy(&f->server);
	event_base_free(f->base);
}

#define WITH_SERVER(f, p, ...)                                \
	struct fixture f;                                     \
	setup(&f, &(struct http_server_config){__VA_ARGS__}); \
	struct peer p = peer_connect(http_server_port(f.server))
#define DONE_WITH(f, p) \
	peer_fini(&p);  \
	teardown(&f)

Test(http_server, keep_alive_serves_requests_one_after_the_other)
{
	WITH_SERVER(f, p, 0);
	for (int i = 0; i < 3; i++) {
		buf_clear(&p.got);
		peer_send(&p, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
		cr_assert(peer_wait(f.base, &p, "\r\n\r\n/a"));
		cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 200 OK\r\n"));
		cr_assert_not_null(strstr(buf_cstr(&p.got), "X-Path: /a\r\n"));
	}
	cr_assert_eq(f.requests, 3);
	cr_assert_eq(http_server_get_stats(f.server)->connections, 1);
	DONE_WITH(f, p);
}

Test(http_server, pipelined_requests_are_answered_in_order)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nPOST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: "
		      "3\r\n\r\nabc"
		      "\r\nGET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, NULL));
	const char *one = strstr(buf_cstr(&p.got), "\n/1HTTP"), *two = strstr(buf_cstr(&p.got), "\n/2HTTP");
	const char *three = strstr(buf_cstr(&p.got), "\n/3");
	cr_assert(one && two && three && one < two && two < three, "%s", buf_cstr(&p.got));
	DONE_WITH(f, p);
}

Test(http_server, requests_behind_a_held_one_wait_for_its_late_reply)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
	pump_for_ms(f.base, &p, 20);
	cr_assert_eq(f.requests, 1);
	http_reply(f.held, 200, "text/plain", "late", 4);
	cr_assert(peer_wait(f.base, &p, "\n/b"));
	cr_assert(strstr(buf_cstr(&p.got), "late") < strstr(buf_cstr(&p.got), "\n/b"));
	DONE_WITH(f, p);
}

Test(http_server, body_arrives_whole_by_length_and_by_chunks_at_any_pace)
{
	WITH_SERVER(f, p, 0);
	const char *text = "POST /l HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
	for (const char *c = text; *c; c++) {
		char one[2] = {*c, 0};
		peer_send(&p, one);
		peer_pump(f.base, &p);
	}
	cr_assert(peer_wait(f.base, &p, "\n/l"));
	cr_assert_str_eq(f.last_body, "hello");
	peer_send(&p,
		  "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, "\n/c"));
	cr_assert_str_eq(f.last_body, "abc");
	DONE_WITH(f, p);
}

Test(http_server, expectation_of_100_is_met_before_the_body)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, "HTTP/1.1 100 Continue\r\n\r\n"));
	cr_assert_eq(f.requests, 0);
	peer_send(&p, "ok");
	cr_assert(peer_wait(f.base, &p, "\n/e"));
	DONE_WITH(f, p);
}

Test(http_server, too_long_bodies_get_413_without_being_read)
{
	const char *cases[] = {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n",
			       "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\nxx"};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		WITH_SERVER(f, p, 0);
		peer_send(&p, cases[i]);
		cr_assert(peer_wait(f.base, &p, NULL), "case %zu", i);
		cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 413 "), "%s", buf_cstr(&p.got));
		cr_assert_not_null(strstr(buf_cstr(&p.got), "{\"code\":413"));
		cr_assert(!p.reset);
		cr_assert_eq(f.requests, 0);
		DONE_WITH(f, p);
	}
}

Test(http_server, too_long_heads_get_431)
{
	WITH_SERVER(f, p, .head_bytes_max = 200);
	peer_send(&p, "GET / HTTP/1.1\r\nHost: x\r\nX-Long: ");
	for (int i = 0; i < 20; i++)
		peer_send(&p, "0123456789");
	cr_assert(peer_wait(f.base, &p, NULL));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 431 "));
	DONE_WITH(f, p);
}

Test(http_server, malformed_requests_get_400_and_the_connection_ends)
{
	const char *cases[] = {
		"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"\x16\x03\x01 not http\n", "GET / HTTP/1.1\r\n\r\n"};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		WITH_SERVER(f, p, 0);
		peer_send(&p, cases[i]);
		cr_assert(peer_wait(f.base, &p, NULL), "case %zu", i);
		cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 400 "), "%s", buf_cstr(&p.got));
		cr_assert_not_null(strstr(buf_cstr(&p.got), "Connection: close\r\n"));
		cr_assert_eq(http_server_get_stats(f.server)->errors, 1);
		DONE_WITH(f, p);
	}
}

Test(http_server, head_callback_refuses_before_the_body_is_read)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\npart");
	cr_assert(peer_wait(f.base, &p, NULL));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 401 "));
	cr_assert_eq(f.requests, 0);
	DONE_WITH(f, p);
}

Test(http_server, a_trickling_request_ends_with_408)
{
	WITH_SERVER(f, p, .read_timeout_ms = 300);
	peer_send(&p, "GET / HTTP/1.1\r\nHost: x\r\n");
	for (int i = 0; i < 40 && !p.closed; i++) { /* a byte now and then keeps no one waiting for ever */
		send(p.fd, "a", 1, MSG_NOSIGNAL);
		pump_for_ms(f.base, &p, 60);
	}
	cr_assert(p.closed);
	cr_assert_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 408 "), "%s", buf_cstr(&p.got));
	DONE_WITH(f, p);
}

Test(http_server, idle_connections_end_but_silent_streams_do_not)
{
	WITH_SERVER(f, idle, .read_timeout_ms = 300, .idle_timeout_ms = 300);
	struct peer stream = peer_connect(http_server_port(f.server));
	peer_send(&stream, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
	cr_assert(peer_wait(f.base, &stream, "\r\n\r\n"));
	cr_assert(peer_wait(f.base, &idle, NULL));
	pump_for_ms(f.base, &stream, 1200);
	cr_assert(!stream.closed);
	cr_assert_eq(http_stream_write(f.held, "data: x\n\n", 9), ERR_OK);
	http_stream_end(f.held);
	cr_assert(peer_wait(f.base, &stream, "9\r\ndata: x\n\n\r\n0\r\n\r\n"));
	peer_fini(&stream);
	DONE_WITH(f, idle);
}

Test(http_server, a_vanished_client_is_noticed_at_once_held_or_streaming)
{
	const char *paths[] = {"/hold", "/stream"};
	for (size_t i = 0; i < 2; i++) {
		for (int half = 0; half < 2; half++) {
			WITH_SERVER(f, p, 0);
			char request[100];
			snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i]);
			peer_send(&p, request);
			pump_for_ms(f.base, &p, 10);
			cr_assert_not_null(f.held);
			struct peer other = peer_connect(http_server_port(f.server));
			if (half)
				shutdown(p.fd, SHUT_WR);
			else
				peer_fini(&p);
			pump_for_ms(f.base, &other, 10);
			cr_assert_eq(f.closed, 1);
			cr_assert_eq(http_server_active_count(f.server), 0);
			peer_fini(&other);
			DONE_WITH(f, p);
		}
	}
}

/* The engine's news can come between the break of a connection and its close callback. */
Test(http_server, a_stream_may_begin_on_a_connection_that_broke_in_the_same_turn)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	pump_for_ms(f.base, &p, 20);
	conn_kill(f.held->conn);
	http_reply_header(f.held, "X-Some", "thing");
	http_stream_begin(f.held, 200, "text/event-stream");
	cr_assert_eq(http_stream_write(f.held, "data", 4), ERR_GONE);
	cr_assert_eq(f.closed, 0);
	pump_for_ms(f.base, &p, 20);
	cr_assert_eq(f.closed, 1);
	DONE_WITH(f, p);
}

Test(http_server, a_client_that_leaves_behind_unread_pipelined_bytes_is_noticed)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	pump_for_ms(f.base, &p, 10);
	static char junk[100 * 1024];
	memset(junk, 'x', sizeof(junk));
	cr_assert_eq(send(p.fd, junk, sizeof(junk), MSG_DONTWAIT), sizeof(junk));
	struct peer other = peer_connect(http_server_port(f.server));
	pump_for_ms(f.base, &other, 30);
	cr_assert_eq(f.closed, 0);
	peer_fini(&p);
	pump_for_ms(f.base, &other, 30);
	cr_assert_eq(f.closed, 1);
	peer_fini(&other);
	DONE_WITH(f, p);
}

Test(http_server, a_slow_reader_of_a_stream_is_closed_at_the_limit)
{
	WITH_SERVER(f, p, .stream_pending_max = 100000);
	peer_send(&p, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, "\r\n\r\n"));
	static char event[10000];
	memset(event, 'e', sizeof(event));
	int writes = 0;
	while (writes < 10000 && http_stream_write(f.held, event, sizeof(event)) == ERR_OK)
		writes++;
	cr_assert_lt(writes, 10000);
	event_base_loop(f.base, EVLOOP_NONBLOCK);
	cr_assert_eq(f.closed, 1);
	cr_assert_eq(http_server_get_stats(f.server)->closed_slow, 1);
	DONE_WITH(f, p);
}

Test(http_server, a_large_reply_reaches_a_client_that_reads_late)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /hold HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	for (int i = 0; i < 100 && !f.held; i++)
		event_base_loop(f.base, EVLOOP_NONBLOCK);
	size_t bytes = 20 * 1024 * 1024;
	char *body = malloc(bytes);
	memset(body, 'b', bytes);
	http_reply(f.held, 200, "text/plain", body, bytes);
	free(body);
	cr_assert_eq(http_server_pending_count(f.server), 1);
	cr_assert(peer_wait(f.base, &p, NULL));
	cr_assert_gt(p.got.bytes, bytes);
	cr_assert(!p.reset);
	DONE_WITH(f, p);
}

Test(http_server, connections_over_the_limit_are_told_503)
{
	WITH_SERVER(f, p, .connections_max = 1);
	pump_for_ms(f.base, &p, 5);
	struct peer second = peer_connect(http_server_port(f.server));
	cr_assert(peer_wait(f.base, &second, NULL));
	cr_assert_not_null(strstr(buf_cstr(&second.got), "HTTP/1.1 503 "));
	cr_assert_not_null(strstr(buf_cstr(&second.got), "Retry-After: 1\r\n"));
	peer_send(&p, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, "\n/a"));
	peer_fini(&second);
	DONE_WITH(f, p);
}

Test(http_server, http_10_streams_end_with_the_connection)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "GET /stream HTTP/1.0\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, "\r\n\r\n"));
	cr_assert_eq(http_stream_write(f.held, "data\n", 5), ERR_OK);
	http_stream_end(f.held);
	cr_assert(peer_wait(f.base, &p, NULL));
	cr_assert_null(strstr(buf_cstr(&p.got), "Transfer-Encoding"));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "\r\n\r\ndata\n"));
	DONE_WITH(f, p);
}

Test(http_server, head_requests_get_the_length_and_no_body)
{
	WITH_SERVER(f, p, 0);
	peer_send(&p, "HEAD /abc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	cr_assert(peer_wait(f.base, &p, NULL));
	cr_assert_not_null(strstr(buf_cstr(&p.got), "Content-Length: 4\r\n"));
	cr_assert_str_eq(buf_cstr(&p.got) + p.got.bytes - 4, "\r\n\r\n");
	DONE_WITH(f, p);
}

Test(http_server, draining_ends_idle_connections_and_tells_the_others)
{
	WITH_SERVER(f, idle, 0);
	struct peer busy = peer_connect(http_server_port(f.server));
	peer_send(&busy, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	pump_for_ms(f.base, &busy, 10);
	http_server_drain(f.server);
	cr_assert(peer_wait(f.base, &idle, NULL));
	http_reply(f.held, 200, "text/plain", "done", 4);
	cr_assert(peer_wait(f.base, &busy, NULL));
	cr_assert_not_null(strstr(buf_cstr(&busy.got), "done"));
	peer_fini(&busy);
	DONE_WITH(f, idle);
}

Test(http_server, a_port_in_use_gives_one_clear_error)
{
	WITH_SERVER(f, p, 0);
	struct http_server *second = NULL;
	struct http_server_config config = {.host = "127.0.0.1",
					    .port = http_server_port(f.server),
					    .connections_max = 1,
					    .on_request = on_request};
	struct err_msg em;
	cr_assert_eq(http_server_create(&second, f.base, &config, &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "in use"), "%s", em.text);
	cr_assert_not_null(strstr(em.text, "--port"));
	config.host = "no.such.host.invalid";
	cr_assert_eq(http_server_create(&second, f.base, &config, &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "no.such.host.invalid"));
	DONE_WITH(f, p);
}

Test(http_server, of_servers_that_share_a_port_those_that_listen_are_reached)
{
	struct fixture a, b;
	struct err_msg em;
	struct peer p;
	setup(&a, &(struct http_server_config){.share_port = true});
	setup(&b, &(struct http_server_config){.share_port = true, .port = http_server_port(a.server)});
	cr_assert_eq(http_server_port(a.server), http_server_port(b.server));
	cr_assert_eq(http_server_listen(a.server, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(http_server_listen(a.server, &em), ERR_OK, "a second time is harmless");
	/* by chance the kernel would choose b for one of twenty */
	for (int i = 0; i < 20; i++) {
		p = peer_connect(http_server_port(b.server));
		peer_send(&p, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
		cr_assert(peer_wait(a.base, &p, "\r\n\r\n/a"));
		peer_fini(&p);
	}
	cr_assert_eq(http_server_listen(b.server, &em), ERR_OK, "%s", em.text);
	teardown(&a);
	p = peer_connect(http_server_port(b.server));
	peer_send(&p, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
	cr_assert(peer_wait(b.base, &p, "\r\n\r\n/a"));
	peer_fini(&p);
	teardown(&b);
}
