/* A client side for tests: non-blocking sockets on loopback, pumped together with the server's event loop in
 * one thread, so that every test is deterministic and needs no sleeping. */
#ifndef TERCET_TESTS_HTTP_FIXTURE_H
#define TERCET_TESTS_HTTP_FIXTURE_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"

struct peer {
	int fd;
	struct buf got;
	bool closed; /* end of file, or reset */
	bool reset;
};

static inline struct peer peer_connect(uint16_t port)
{
	struct peer p = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(connect(p.fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return p;
}

static inline void peer_send(struct peer *p, const char *text)
{
	size_t bytes = strlen(text);
	cr_assert_eq(send(p->fd, text, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

static inline void peer_fini(struct peer *p)
{
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
	buf_fini(&p->got);
}

/* Runs the server and reads what comes. */
static inline void peer_pump(struct event_base *base, struct peer *p)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
	char bytes[65536];
	while (!p->closed) {
		ssize_t n = recv(p->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (n > 0) {
			buf_append(&p->got, bytes, (size_t)n);
			continue;
		}
		if (n < 0 && errno == EAGAIN)
			break;
		p->closed = true;
		p->reset = n < 0;
	}
}

/* Pumps until `text` has come, the connection is closed (text NULL), or 20 s are over. */
static inline bool peer_wait(struct event_base *base, struct peer *p, const char *text)
{
	uint64_t end = clock_now_ns() + 20000000000ull;
	while (clock_now_ns() < end) {
		peer_pump(base, p);
		if (text && strstr(buf_cstr(&p->got), text))
			return true;
		if (p->closed)
			return text == NULL;
		usleep(500);
	}
	return false;
}

/* However busy the machine is, the server has its turns. */
static inline void pump_for_ms(struct event_base *base, struct peer *p, unsigned ms)
{
	uint64_t end = clock_now_ns() + ms * 1000000ull;
	for (unsigned turns = 0; turns < 20 || clock_now_ns() < end; turns++) {
		peer_pump(base, p);
		usleep(500);
	}
}

static inline unsigned count_of_text(const char *all, const char *part)
{
	unsigned count = 0;
	for (const char *p = strstr(all, part); p; p = strstr(p + 1, part))
		count++;
	return count;
}

#endif
