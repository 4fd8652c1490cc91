/* Channels whose peers misbehave: those are bare sockets. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>
#include <zmq.h>

#include "tests/unit/ipc/channel_fixture.h"

struct bare {
	void *socket;
};

static struct bare bare_open(struct fixture *f, int type)
{
	static void *zmq; /* one per test process */
	if (!zmq)
		zmq = zmq_ctx_new();
	char endpoint[128];
	int zero = 0;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/c", f->dir);
	struct bare b = {zmq_socket(zmq, type)};
	zmq_setsockopt(b.socket, ZMQ_LINGER, &zero, sizeof(zero));
	cr_assert_eq(zmq_connect(b.socket, endpoint), 0);
	return b;
}

static void bare_send(struct bare b, const struct ipc_msg *msg)
{
	struct buf frame = {0};
	ipc_encode(msg, &frame);
	cr_assert_eq(zmq_send(b.socket, frame.data, frame.bytes, 0), (int)frame.bytes);
	buf_fini(&frame);
}

static struct ipc_msg good_hello(void)
{
	return (struct ipc_msg){.type = IPC_TYPE_HELLO, .sequence = 1,
				.hello = {.version = IPC_PROTOCOL_VERSION, .schema_hash = ipc_schema_hash()}};
}

/* Receives with a limit of five seconds; the message's arrays live in a scratch of the test. */
static struct ipc_msg bare_recv(struct bare b)
{
	static struct ipc_scratch scratch;
	static char frame[65536];
	int limit = 5000;
	struct ipc_msg msg;
	zmq_setsockopt(b.socket, ZMQ_RCVTIMEO, &limit, sizeof(limit));
	int n = zmq_recv(b.socket, frame, sizeof(frame), 0);
	cr_assert_gt(n, 0, "nothing came");
	cr_assert_eq(ipc_decode(frame, (size_t)n, &scratch, &msg, NULL), ERR_OK);
	return msg;
}

Test(channel_hostile, another_version_or_schema_is_refused_with_both_named)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer;
	struct err_msg em;
	char ours[32];
	fixture_begin(&f);
	snprintf(ours, sizeof(ours), "0x%016llx", (unsigned long long)ipc_schema_hash());
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct bare b = bare_open(&f, ZMQ_DEALER);
	struct ipc_msg hello = good_hello();
	hello.hello.version = 99;
	bare_send(b, &hello);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_VERSION);
	cr_assert_neq(peer.v, 0);
	cr_assert(strstr(em.text, "version 99") && strstr(em.text, "version 1") && strstr(em.text, ours), "%s",
		  em.text);
	msg = bare_recv(b);
	cr_assert_eq(msg.type, IPC_TYPE_ERROR);
	cr_assert_eq(msg.error.code, ERR_VERSION);
	cr_assert_not_null(memmem(msg.error.text, msg.error.text_count, "version 99", 10));
	/* What it says afterwards is ignored, and it cannot be spoken to. */
	struct ipc_msg bye = {.type = IPC_TYPE_BYE, .sequence = 2};
	bare_send(b, &bye);
	usleep(50000);
	cr_assert_eq(ipc_recv(router, &(ipc_peer){0}, &msg, &em), ERR_AGAIN);
	cr_assert_eq(send_bye(router, peer, 1), ERR_GONE);
	hello = good_hello();
	hello.hello.schema_hash = 0xabcdef;
	bare_send(b, &hello);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_VERSION);
	cr_assert(strstr(em.text, "0x0000000000abcdef") && strstr(em.text, ours), "%s", em.text);
	/* A good HELLO makes it welcome. */
	hello = good_hello();
	bare_send(b, &hello);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	cr_assert_eq(send_bye(router, peer, 1), ERR_OK);
	zmq_close(b.socket);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel_hostile, a_gap_is_an_error_and_the_message_behind_it_comes_next)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer, again;
	struct err_msg em;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct bare b = bare_open(&f, ZMQ_DEALER);
	struct ipc_msg hello = good_hello();
	bare_send(b, &hello);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	struct ipc_msg bye = {.type = IPC_TYPE_BYE, .sequence = 5, .bye = {55}};
	bare_send(b, &bye);
	cr_assert_eq(recv_any(router, &again, &msg, &em), ERR_SEQUENCE);
	cr_assert_eq(again.v, peer.v);
	cr_assert_not_null(strstr(em.text, "3 messages before BYE number 5 are missing"), "%s", em.text);
	cr_assert_eq(ipc_recv(router, &again, &msg, &em), ERR_OK);
	cr_assert_eq(again.v, peer.v);
	cr_assert_eq(msg.bye.client_id, 55);
	bare_send(b, &bye); /* the same again */
	cr_assert_eq(recv_any(router, &again, &msg, &em), ERR_SEQUENCE);
	cr_assert_not_null(strstr(em.text, "came again"));
	cr_assert_eq(ipc_recv(router, &again, &msg, &em), ERR_AGAIN);
	bye.sequence = 6;
	bare_send(b, &bye);
	expect(router, IPC_TYPE_BYE, &peer, &msg);
	/* A new HELLO begins a new life in both directions. */
	cr_assert_eq(send_bye(router, peer, 1), ERR_OK);
	bare_send(b, &hello);
	expect(router, IPC_TYPE_HELLO, &again, &msg);
	cr_assert_eq(again.v, peer.v);
	cr_assert_eq(bare_recv(b).sequence, 1);
	cr_assert_eq(bare_recv(b).sequence, 2);
	msg = bare_recv(b);
	cr_assert(msg.type == IPC_TYPE_HELLO && msg.sequence == 1);
	zmq_close(b.socket);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel_hostile, bad_frames_are_answered_and_do_not_count_as_missing)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer;
	struct err_msg em;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct bare b = bare_open(&f, ZMQ_DEALER);
	struct ipc_msg bye = {.type = IPC_TYPE_BYE, .sequence = 1};
	bare_send(b, &bye);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_SEQUENCE);
	cr_assert_not_null(strstr(em.text, "before a HELLO"));
	cr_assert_eq(bare_recv(b).error.code, ERR_SEQUENCE);
	struct ipc_msg hello = good_hello();
	bare_send(b, &hello);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	cr_assert_eq(bare_recv(b).type, IPC_TYPE_HELLO);
	/* BYE with nil for its id, sequence 2 */
	static const char bad[] = "\x94\x15\x02\x00\xc0";
	zmq_send(b.socket, bad, 5, 0);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_FORMAT);
	msg = bare_recv(b);
	cr_assert_eq(msg.error.code, ERR_FORMAT);
	cr_assert_not_null(memmem(msg.error.text, msg.error.text_count, "BYE: field client_id", 20));
	bye.sequence = 3;
	bare_send(b, &bye);
	expect(router, IPC_TYPE_BYE, &peer, &msg);
	zmq_send(b.socket, "", 0, ZMQ_SNDMORE);
	zmq_send(b.socket, bad, 5, 0);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_FORMAT);
	cr_assert_not_null(strstr(em.text, "several ZeroMQ parts"), "%s", em.text);
	zmq_send(b.socket, "", 0, 0);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_FORMAT);
	bye.sequence = 4;
	bare_send(b, &bye);
	expect(router, IPC_TYPE_BYE, &peer, &msg);
	zmq_close(b.socket);
	ipc_channel_close(&router);
	fixture_end(&f);
}
