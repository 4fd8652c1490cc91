/* Channels between nodes over tcp:// on the loopback: who has the secret, and who has not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "ipc/ipc.h"

static struct ipc_context *ctx, *far; /* of node 0, of another node */
static struct ipc_curve curve, other;
static char dir[64], local[128], endpoint[64];
static u32 port;

static void set_up(void)
{
	struct cluster_secret secret;
	struct err_msg em;

	snprintf(dir, sizeof(dir), "/tmp/tercet_curve_XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(ipc_endpoint(local, sizeof(local), dir, "c", &em), ERR_OK);
	cr_assert_eq(cluster_secret_set(&secret, "a secret of the test", 20, "here", &em), ERR_OK);
	ipc_curve_init(&curve, &secret);
	cr_assert_eq(cluster_secret_set(&secret, "another of the tests", 20, "here", &em), ERR_OK);
	ipc_curve_init(&other, &secret);
	cr_assert_eq(ipc_context_create(&ctx, &em), ERR_OK);
	cr_assert_eq(ipc_context_create(&far, &em), ERR_OK);
}

static void tear_down(void)
{
	ipc_context_destroy(&ctx);
	ipc_context_destroy(&far);
	unlink(local + strlen("ipc://"));
	rmdir(dir);
}

TestSuite(curve, .init = set_up, .fini = tear_down, .timeout = 120);

static struct ipc_channel *open_router(void)
{
	struct ipc_channel_config c = {
		.name = "c", .endpoint = local, .pattern = IPC_ROUTER, .bind = true, .role = IPC_ROLE_SCHEDULER};
	struct ipc_channel *ch;
	struct err_msg em;
	enum err e = ERR_BUSY;

	cr_assert_eq(ipc_channel_open(&ch, ctx, &c, &em), ERR_OK, "%s", em.text);
	for (port = 9000 + (u32)getpid() % 900; e == ERR_BUSY; port += e == ERR_BUSY) {
		cr_assert_eq(ipc_tcp_endpoint(endpoint, sizeof(endpoint), "127.0.0.1", port, &em), ERR_OK);
		e = ipc_channel_listen(ch, endpoint, &curve, &em);
	}
	cr_assert_eq(e, ERR_OK, "%s", em.text);
	return ch;
}

static struct ipc_channel *open_dealer(const char *to, const struct ipc_curve *keys)
{
	struct ipc_channel_config c = {.name = "c", .endpoint = to, .pattern = IPC_DEALER, .role = IPC_ROLE_WORKER, .rank = 1,
				       .curve = keys};
	struct ipc_channel *ch;
	struct err_msg em;

	cr_assert_eq(ipc_channel_open(&ch, far, &c, &em), ERR_OK, "%s", em.text);
	return ch;
}

/* The next message within `ms`. */
static enum err wait_for(struct ipc_channel *ch, ipc_peer *from, struct ipc_msg *msg, u32 ms)
{
	struct err_msg em;
	enum err e = ERR_AGAIN;

	for (u32 i = 0; e == ERR_AGAIN && i < ms; i++) {
		e = ipc_recv(ch, from, msg, &em);
		if (e == ERR_AGAIN)
			usleep(1000);
	}
	return e;
}

static void check_conversation(struct ipc_channel *router, struct ipc_channel *dealer)
{
	struct ipc_msg msg, init = {.type = IPC_TYPE_INIT, .init = {7, 8}};
	ipc_peer peer, nobody;

	cr_assert_eq(wait_for(router, &peer, &msg, 20000), ERR_OK);
	cr_assert_eq(msg.type, IPC_TYPE_HELLO);
	cr_assert_eq(msg.hello.rank, 1);
	cr_assert_eq(wait_for(dealer, &nobody, &msg, 20000), ERR_OK);
	cr_assert_eq(msg.type, IPC_TYPE_HELLO);
	cr_assert_eq(ipc_send(router, peer, &init), ERR_OK);
	cr_assert_eq(wait_for(dealer, &nobody, &msg, 20000), ERR_OK);
	cr_assert_eq(msg.init.block_count, 7);
}

Test(curve, a_node_with_the_secret_and_a_process_of_the_host_both_talk_to_one_router)
{
	struct ipc_channel *router = open_router();
	struct ipc_channel *node = open_dealer(endpoint, &curve), *process = NULL;

	check_conversation(router, node);
	process = open_dealer(local, NULL);
	check_conversation(router, process);
	ipc_channel_close(&node);
	ipc_channel_close(&process);
	ipc_channel_close(&router);
}

Test(curve, nobody_else_gets_a_word_through)
{
	struct ipc_channel *router = open_router();
	struct ipc_curve half = curve; /* knows where the scheduler is, but is no node */
	struct ipc_msg msg;
	ipc_peer from;

	memcpy(half.node_public, other.node_public, sizeof(half.node_public));
	memcpy(half.node_secret, other.node_secret, sizeof(half.node_secret));
	struct ipc_channel *plain = open_dealer(endpoint, NULL), *wrong = open_dealer(endpoint, &other),
			   *stranger = open_dealer(endpoint, &half);
	cr_assert_eq(wait_for(router, &from, &msg, 1500), ERR_AGAIN);
	cr_assert_eq(wait_for(plain, &from, &msg, 100), ERR_AGAIN);
	cr_assert_eq(wait_for(wrong, &from, &msg, 100), ERR_AGAIN);
	cr_assert_eq(wait_for(stranger, &from, &msg, 100), ERR_AGAIN);
	struct ipc_channel *node = open_dealer(endpoint, &curve);
	check_conversation(router, node); /* and they keep nobody out */
	ipc_channel_close(&plain);
	ipc_channel_close(&wrong);
	ipc_channel_close(&stranger);
	ipc_channel_close(&node);
	ipc_channel_close(&router);
}

Test(curve, a_port_in_use_and_a_foreign_address_are_told_apart)
{
	struct ipc_channel *router = open_router();
	struct err_msg em;

	cr_assert_eq(ipc_channel_listen(router, endpoint, &curve, &em), ERR_BUSY);
	cr_assert(strstr(em.text, endpoint), "%s", em.text);
	cr_assert_eq(ipc_channel_listen(router, "tcp://192.0.2.1:23456", &curve, &em), ERR_NOT_FOUND, "%s", em.text);
	cr_assert_eq(ipc_channel_listen(router, "tcp://127.0.0.1", &curve, &em), ERR_IO);
	ipc_channel_close(&router);
}

Test(curve, endpoints_of_ipv6_addresses_have_brackets)
{
	char out[64];
	struct err_msg em;

	cr_assert_eq(ipc_tcp_endpoint(out, sizeof(out), "::1", 80, &em), ERR_OK);
	cr_assert_str_eq(out, "tcp://[::1]:80");
	cr_assert_eq(ipc_tcp_endpoint(out, 12, "host.example.org", 80, &em), ERR_TOO_LONG);
}
