#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proc_worker/node_link.h"

static u8 key[CLUSTER_KEY_BYTES] = {1, 2, 3}, other_key[CLUSTER_KEY_BYTES] = {1, 2, 4};
static char content[NODE_LINK_FRAME_MAX];

/* Two ends of one TCP connection. */
static void tcp_pair(int fds[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(a);
	struct err_msg em;

	int listener = node_link_listen((struct sockaddr *)&a, sizeof(a));
	cr_assert(listener >= 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&a, &bytes), 0);
	cr_assert_eq(node_link_connect(&fds[0], "127.0.0.1", ntohs(a.sin_port), 10000, &em), ERR_OK, "%s", em.text);
	struct pollfd p = {.fd = listener, .events = POLLIN};
	cr_assert_eq(poll(&p, 1, 10000), 1);
	fds[1] = accept(listener, NULL, NULL);
	cr_assert(fds[1] >= 0);
	close(listener);
}

struct opening {
	struct node_link *l;
	int fd;
	const u8 *secret;
	enum err e;
};

static void *respond(void *arg)
{
	struct opening *o = arg;
	struct err_msg em;

	o->e = node_link_open(o->l, o->fd, false, o->secret, 2000, &em);
	return NULL;
}

static void open_pair(struct node_link l[2], const u8 *second_key)
{
	int fds[2];
	pthread_t thread;
	struct err_msg em;

	tcp_pair(fds);
	struct opening o = {.l = &l[1], .fd = fds[1], .secret = second_key};
	pthread_create(&thread, NULL, respond, &o);
	cr_assert_eq(node_link_open(&l[0], fds[0], true, key, 2000, &em), ERR_OK, "%s", em.text);
	pthread_join(thread, NULL);
	cr_assert_eq(o.e, ERR_OK);
}

TestSuite(node_link, .timeout = 120);

Test(node_link, frames_arrive_whole_and_in_order_in_both_directions)
{
	struct node_link l[2];
	static char big[NODE_LINK_FRAME_MAX - 4];
	size_t bytes;

	open_pair(l, key);
	for (u32 i = 0; i < 20; i++) {
		u32 from = i % 2;
		big[0] = (char)i;
		big[sizeof(big) - 1] = (char)~i;
		cr_assert_eq(node_link_send(&l[from], "abc", 4, big, i % 3 ? i : sizeof(big), NULL), ERR_OK);
		cr_assert_eq(node_link_wait(&l[1 - from], content, &bytes, 2000), ERR_OK);
		cr_assert_eq(bytes, 4 + (i % 3 ? i : sizeof(big)));
		cr_assert_str_eq(content, "abc");
		cr_assert_eq(memcmp(content + 4, big, bytes - 4), 0);
	}
	cr_assert_eq(node_link_send(&l[0], NULL, 0, NULL, 0, NULL), ERR_OK, "an empty one");
	cr_assert_eq(node_link_wait(&l[1], content, &bytes, 2000), ERR_OK);
	cr_assert_eq(bytes, 0);
	cr_assert_eq(node_link_receive(&l[1], content, &bytes), ERR_AGAIN);
	cr_assert_eq(node_link_wait(&l[1], content, &bytes, 50), ERR_TIMEOUT);
	node_link_close(&l[0]);
	cr_assert_eq(node_link_wait(&l[1], content, &bytes, 2000), ERR_GONE);
	node_link_close(&l[1]);
}

Test(node_link, another_secret_shows_with_the_first_frame)
{
	struct node_link l[2];
	size_t bytes;

	open_pair(l, other_key);
	cr_assert_eq(node_link_send(&l[0], "hello", 5, NULL, 0, NULL), ERR_OK);
	cr_assert_eq(node_link_wait(&l[1], content, &bytes, 2000), ERR_DENIED);
	cr_assert_eq(node_link_send(&l[1], "hello", 5, NULL, 0, NULL), ERR_OK);
	cr_assert_eq(node_link_wait(&l[0], content, &bytes, 2000), ERR_DENIED);
	node_link_close(&l[0]);
	node_link_close(&l[1]);
}

/* Somebody in between: takes what the first sends, and gives the second `frame` of it. */
Test(node_link, a_changed_a_repeated_and_a_foreign_frame_are_denied)
{
	size_t bytes;

	for (u32 kind = 0; kind < 4; kind++) {
		struct node_link l[2];
		u8 wire[256];
		open_pair(l, key);
		int hidden[2];
		tcp_pair(hidden);
		int own = l[0].fd;
		l[0].fd = hidden[0]; /* now its frames are ours to pass on */
		cr_assert_eq(node_link_send(&l[0], "content", 7, NULL, 0, NULL), ERR_OK);
		ssize_t n = recv(hidden[1], wire, sizeof(wire), 0);
		cr_assert_eq(n, 4 + 7 + NODE_LINK_TAG);
		if (kind == 0)
			wire[6] ^= 1;
		if (kind == 3)
			memset(wire, 0xff, 4); /* a frame of 4 GiB */
		cr_assert_eq(write(own, wire, (size_t)n), n);
		enum err e = node_link_wait(&l[1], content, &bytes, 2000);
		if (kind == 1) { /* the same once more */
			cr_assert_eq(e, ERR_OK);
			cr_assert_eq(write(own, wire, (size_t)n), n);
			e = node_link_wait(&l[1], content, &bytes, 2000);
		}
		if (kind == 2) { /* whatever a stranger makes up */
			cr_assert_eq(e, ERR_OK);
			cr_assert_eq(write(own, "\x1e\0\0\0what a stranger may make up...", 34), 34);
			e = node_link_wait(&l[1], content, &bytes, 2000);
		}
		cr_assert_eq(e, ERR_DENIED, "case %u: %d", kind, e);
		close(own);
		close(hidden[1]);
		node_link_close(&l[0]);
		node_link_close(&l[1]);
	}
}

Test(node_link, something_else_than_a_node_is_no_node)
{
	int fds[2];
	struct node_link l;
	struct err_msg em;

	tcp_pair(fds);
	cr_assert_eq(write(fds[0], "HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n", 41), 41);
	cr_assert_eq(node_link_open(&l, fds[1], true, key, 1000, &em), ERR_FORMAT, "%s", em.text);
	close(fds[0]);
	tcp_pair(fds);
	cr_assert_eq(node_link_open(&l, fds[1], true, key, 100, &em), ERR_TIMEOUT, "%s", em.text);
	close(fds[0]);
	tcp_pair(fds);
	close(fds[0]);
	cr_assert_eq(node_link_open(&l, fds[1], true, key, 1000, &em), ERR_GONE, "%s", em.text);
	cr_assert_eq(node_link_connect(&fds[0], "no.such.host.invalid", 1, 500, &em), ERR_NOT_FOUND);
}

Test(node_link, a_full_connection_waits_until_it_is_told_to_stop)
{
	struct node_link l[2];
	static char big[NODE_LINK_FRAME_MAX];
	_Atomic u32 stop = 0;
	enum err e;

	open_pair(l, key);
	atomic_store(&stop, 1);
	u32 sent = 0;
	while ((e = node_link_send(&l[0], NULL, 0, big, sizeof(big), &stop)) == ERR_OK && sent < 10000)
		sent++;
	cr_assert_eq(e, ERR_ABORTED);
	cr_assert_gt(sent, 0);
	node_link_close(&l[0]);
	node_link_close(&l[1]);
}
