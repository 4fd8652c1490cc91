/* Channels over real ipc:// sockets. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/ipc/channel_fixture.h"

Test(channel, without_threads_there_is_no_context_but_a_message)
{
	struct ipc_context *ctx;
	struct err_msg em;
	pthread_attr_t before, huge;

	cr_assert_eq(pthread_getattr_default_np(&before), 0);
	cr_assert_eq(pthread_attr_init(&huge), 0);
	cr_assert_eq(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0); /* more than there are addresses */
	cr_assert_eq(pthread_setattr_default_np(&huge), 0);
	cr_assert_eq(ipc_context_create(&ctx, &em), ERR_NO_MEMORY);
	cr_assert_not_null(strstr(em.text, "ulimit -u"), "%s", em.text);
	cr_assert_eq(pthread_setattr_default_np(&before), 0);
	cr_assert_eq(ipc_context_create(&ctx, &em), ERR_OK);
	ipc_context_destroy(&ctx);
}

Test(channel, dealer_and_router_greet_and_number_their_messages)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer, nobody;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 0);
	cr_assert_eq(send_bye(dealer, (ipc_peer){0}, 1), ERR_OK);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	cr_assert_eq(msg.sequence, 1);
	cr_assert_eq(msg.epoch, 9);
	cr_assert_eq(msg.hello.client_id, 42);
	cr_assert_eq(msg.hello.role, IPC_ROLE_CLIENT);
	cr_assert_eq(msg.hello.name_count, 6);
	cr_assert_neq(peer.v, 0);
	expect(router, IPC_TYPE_BYE, &peer, &msg);
	cr_assert_eq(msg.sequence, 2);
	cr_assert_eq(send_bye(router, peer, 2), ERR_OK);
	ipc_channel_set_epoch(router, 6);
	cr_assert_eq(send_bye(router, peer, 3), ERR_OK);
	expect(dealer, IPC_TYPE_HELLO, &nobody, &msg);
	cr_assert_eq(msg.hello.role, IPC_ROLE_SCHEDULER);
	cr_assert_eq(nobody.v, 0);
	expect(dealer, IPC_TYPE_BYE, &nobody, &msg);
	cr_assert(msg.sequence == 2 && msg.epoch == 5 && msg.bye.client_id == 2);
	expect(dealer, IPC_TYPE_BYE, &nobody, &msg);
	cr_assert(msg.sequence == 3 && msg.epoch == 6 && msg.bye.client_id == 3);
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel, unknown_and_vanished_peers_are_gone)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	cr_assert_eq(send_bye(router, (ipc_peer){0}, 1), ERR_GONE);
	cr_assert_eq(send_bye(router, (ipc_peer){123456789}, 1), ERR_GONE);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	cr_assert_eq(send_bye(router, peer, 1), ERR_OK);
	ipc_channel_close(&dealer);
	enum err e = ERR_OK;
	for (u32 i = 0; i < 20000 && e == ERR_OK; i++) {
		usleep(1000);
		e = send_bye(router, peer, 1);
	}
	cr_assert_eq(e, ERR_GONE);
	cr_assert_eq(send_bye(router, peer, 1), ERR_GONE);
	ipc_channel_close(&router);
	fixture_end(&f);
}

/* Fills until ERR_BUSY, then reads all: what was accepted arrives, in order, and sending goes on. */
static void fill_and_drain(struct ipc_channel *from, ipc_peer to, struct ipc_channel *reader, u64 first_sequence)
{
	struct ipc_msg msg;
	ipc_peer peer;
	u32 sent = 0;
	static u8 filler[700];
	struct ipc_msg big = {.type = IPC_TYPE_CLOSE, .close = {.text = filler, .text_count = 700}};
	enum err e = ERR_OK;
	while (sent < 100000 && (e = ipc_send(from, to, &big)) == ERR_OK)
		sent++;
	cr_assert_eq(e, ERR_BUSY);
	cr_assert_geq(sent, 5);
	cr_assert_eq(ipc_send(from, to, &big), ERR_BUSY);
	for (u32 i = 0; i < sent; i++) {
		expect(reader, IPC_TYPE_CLOSE, &peer, &msg);
		cr_assert_eq(msg.sequence, first_sequence + i);
	}
	for (u32 i = 0; i < 20000 && (e = ipc_send(from, to, &big)) == ERR_BUSY; i++)
		usleep(1000);
	cr_assert_eq(e, ERR_OK);
	expect(reader, IPC_TYPE_CLOSE, &peer, &msg);
	cr_assert_eq(msg.sequence, first_sequence + sent);
}

Test(channel, full_queue_is_busy_and_nothing_is_lost_router_to_dealer)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer, nobody;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 10);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 10);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	expect(dealer, IPC_TYPE_HELLO, &nobody, &msg);
	fill_and_drain(router, peer, dealer, 2);
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel, full_queue_is_busy_and_nothing_is_lost_push_to_pull)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer;
	fixture_begin(&f);
	struct ipc_channel *pull = open_channel(&f, IPC_PULL, true, 10);
	struct ipc_channel *push = open_channel(&f, IPC_PUSH, false, 10);
	expect(pull, IPC_TYPE_HELLO, &peer, &msg);
	fill_and_drain(push, (ipc_peer){0}, pull, 2);
	ipc_channel_close(&push);
	ipc_channel_close(&pull);
	fixture_end(&f);
}

Test(channel, one_frame_is_numbered_for_each_of_its_receivers)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peers[2], nobody;
	struct buf frame = {0};
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct ipc_channel *first = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peers[0], &msg);
	cr_assert_eq(send_bye(router, peers[0], 1), ERR_OK);
	struct ipc_channel *second = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peers[1], &msg);
	struct ipc_msg step = {.type = IPC_TYPE_STEP, .epoch = 5, .step = {.step = 11}};
	ipc_encode(&step, &frame);
	for (u32 i = 0; i < 2; i++)
		cr_assert_eq(ipc_send_frame(router, peers[i], frame.data, frame.bytes), ERR_OK);
	expect(first, IPC_TYPE_HELLO, &nobody, &msg);
	expect(first, IPC_TYPE_BYE, &nobody, &msg);
	expect(first, IPC_TYPE_STEP, &nobody, &msg);
	cr_assert_eq(msg.sequence, 3);
	expect(second, IPC_TYPE_HELLO, &nobody, &msg);
	expect(second, IPC_TYPE_STEP, &nobody, &msg);
	cr_assert_eq(msg.sequence, 2);
	buf_fini(&frame);
	ipc_channel_close(&first);
	ipc_channel_close(&second);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel, a_restarted_router_is_greeted_again)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer, nobody;
	struct err_msg em;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	expect(dealer, IPC_TYPE_HELLO, &nobody, &msg);
	cr_assert_geq(ipc_channel_monitor_fd(dealer), 0);
	ipc_channel_close(&router);
	cr_assert_eq(recv_any(dealer, &nobody, &msg, &em), ERR_GONE);
	cr_assert_eq(send_bye(dealer, (ipc_peer){0}, 7), ERR_OK); /* queued for a life that has ended */
	router = open_channel(&f, IPC_ROUTER, true, 0);
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_SEQUENCE);
	/* The dealer hears nothing of that refusal; what it hears next is the new life's HELLO. */
	enum err at_router = ERR_AGAIN;
	enum err at_dealer = ERR_AGAIN;
	struct ipc_msg greeting = {0};
	for (u32 i = 0; i < 20000 && at_dealer == ERR_AGAIN; i++) {
		at_dealer = ipc_recv(dealer, &nobody, &msg, &em);
		if (at_router == ERR_AGAIN)
			at_router = ipc_recv(router, &peer, &greeting, &em);
		usleep(1000);
	}
	cr_assert(at_router == ERR_OK && greeting.type == IPC_TYPE_HELLO && greeting.sequence == 1);
	cr_assert(at_dealer == ERR_OK && msg.type == IPC_TYPE_HELLO && msg.sequence == 1);
	cr_assert_eq(send_bye(dealer, (ipc_peer){0}, 8), ERR_OK);
	/* Reconnected and told that it is unknown, the dealer may have greeted for either reason. */
	cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_OK, "%s", em.text);
	if (msg.type == IPC_TYPE_HELLO)
		cr_assert_eq(recv_any(router, &peer, &msg, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(msg.type, IPC_TYPE_BYE);
	cr_assert_eq(msg.bye.client_id, 8);
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel, a_router_that_greets_again_begins_a_new_life_of_its_own)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer, nobody;
	fixture_begin(&f);
	struct ipc_channel *router = open_channel(&f, IPC_ROUTER, true, 0);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	expect(dealer, IPC_TYPE_HELLO, &nobody, &msg);
	cr_assert_eq(send_bye(router, peer, 1), ERR_OK);
	cr_assert_eq(ipc_greet(router, peer), ERR_OK);
	cr_assert_eq(send_bye(router, peer, 2), ERR_OK);
	expect(dealer, IPC_TYPE_BYE, &nobody, &msg);
	expect(dealer, IPC_TYPE_HELLO, &nobody, &msg);
	cr_assert_eq(msg.sequence, 1);
	expect(dealer, IPC_TYPE_BYE, &nobody, &msg);
	cr_assert(msg.sequence == 2 && msg.bye.client_id == 2);
	/* The other direction goes on as it was. */
	cr_assert_eq(send_bye(dealer, (ipc_peer){0}, 3), ERR_OK);
	expect(router, IPC_TYPE_BYE, &peer, &msg);
	cr_assert_eq(msg.sequence, 2);
	cr_assert_eq(ipc_greet(router, (ipc_peer){99}), ERR_GONE);
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	fixture_end(&f);
}

Test(channel, a_restarted_pull_gets_a_hello_from_push)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer nobody;
	struct err_msg em;
	fixture_begin(&f);
	struct ipc_channel *pull = open_channel(&f, IPC_PULL, true, 0);
	struct ipc_channel *push = open_channel(&f, IPC_PUSH, false, 0);
	expect(pull, IPC_TYPE_HELLO, &nobody, &msg);
	ipc_channel_close(&pull);
	usleep(50000);
	pull = open_channel(&f, IPC_PULL, true, 0);
	enum err e = ERR_AGAIN;
	for (u32 i = 0; i < 20000 && e != ERR_OK; i++) {
		cr_assert_eq(send_bye(push, (ipc_peer){0}, 1), ERR_OK);
		usleep(1000);
		e = ipc_recv(pull, &nobody, &msg, &em);
	}
	cr_assert_eq(e, ERR_OK);
	cr_assert(msg.type == IPC_TYPE_HELLO && msg.sequence == 1);
	ipc_channel_close(&push);
	ipc_channel_close(&pull);
	fixture_end(&f);
}

Test(channel, late_subscribers_are_greeted_and_gaps_are_theirs)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer nobody;
	struct err_msg em;
	fixture_begin(&f);
	struct ipc_channel *pub = open_channel(&f, IPC_PUB, true, 0);
	for (u32 i = 0; i < 5; i++)
		cr_assert_eq(send_bye(pub, (ipc_peer){0}, i), ERR_OK);
	struct ipc_channel *subs[2];
	for (u32 s = 0; s < 2; s++) {
		subs[s] = open_channel(&f, IPC_SUB, false, 0);
		enum err e = ERR_AGAIN;
		for (u32 i = 0; i < 20000 && e == ERR_AGAIN; i++) {
			cr_assert_eq(send_bye(pub, (ipc_peer){0}, 100 + s), ERR_OK);
			usleep(1000);
			e = ipc_recv(subs[s], &nobody, &msg, &em);
		}
		cr_assert_eq(e, ERR_OK, "%s", em.text);
		cr_assert_eq(msg.type, IPC_TYPE_HELLO);
		cr_assert_eq(send_bye(pub, (ipc_peer){0}, 200), ERR_OK);
		while (msg.type == IPC_TYPE_HELLO || msg.bye.client_id != 200)
			expect(subs[s], IPC_TYPE_BYE, &nobody, &msg);
	}
	ipc_channel_close(&subs[0]);
	ipc_channel_close(&subs[1]);
	ipc_channel_close(&pub);
	fixture_end(&f);
}

Test(channel, opening_says_what_is_wrong)
{
	struct ipc_context *ctx;
	struct err_msg em;
	char endpoint[300];
	char dir[200];
	cr_assert_eq(ipc_context_create(&ctx, NULL), ERR_OK);
	struct ipc_channel *ch = NULL;
	struct ipc_channel_config config = {.name = "submit", .endpoint = "ipc:///nonexistent/dir/submit",
					    .pattern = IPC_ROUTER, .bind = true};
	cr_assert_eq(ipc_channel_open(&ch, ctx, &config, &em), ERR_IO);
	cr_assert_null(ch);
	cr_assert(strstr(em.text, "submit") && strstr(em.text, "/nonexistent/dir"), "%s", em.text);
	memset(dir, 'd', sizeof(dir) - 1);
	dir[sizeof(dir) - 1] = '\0';
	dir[0] = '/';
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), dir, "submit", &em), ERR_TOO_LONG);
	cr_assert_not_null(strstr(em.text, "at most 107"), "%s", em.text);
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), "/run/x", "submit", &em), ERR_OK);
	cr_assert_str_eq(endpoint, "ipc:///run/x/submit");
	ipc_context_destroy(&ctx);
}

Test(channel, frames_above_the_limit_are_not_sent)
{
	struct fixture f;
	fixture_begin(&f);
	char endpoint[128];
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f.dir, "c", NULL), ERR_OK);
	struct ipc_channel *ch;
	struct ipc_channel_config config = {.name = "c", .endpoint = endpoint, .pattern = IPC_PUSH,
					    .frame_bytes_max = 1000};
	cr_assert_eq(ipc_channel_open(&ch, f.ctx, &config, NULL), ERR_OK);
	static u32 tokens[1000];
	struct ipc_msg msg = {.type = IPC_TYPE_RESULT, .result = {.token = tokens, .token_count = 1000}};
	cr_assert_eq(ipc_send(ch, (ipc_peer){0}, &msg), ERR_TOO_LONG);
	ipc_channel_close(&ch);
	fixture_end(&f);
}

Test(channel, recordings_hold_every_frame_of_both_directions)
{
	struct fixture f;
	struct ipc_msg msg;
	ipc_peer peer;
	fixture_begin(&f);
	char endpoint[128];
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f.dir, "c", NULL), ERR_OK);
	struct ipc_channel *router;
	struct ipc_channel_config config = {.name = "step", .endpoint = endpoint, .pattern = IPC_ROUTER,
					    .bind = true, .role = IPC_ROLE_SCHEDULER, .record_dir = f.dir};
	cr_assert_eq(ipc_channel_open(&router, f.ctx, &config, NULL), ERR_OK);
	struct ipc_channel *dealer = open_channel(&f, IPC_DEALER, false, 0);
	expect(router, IPC_TYPE_HELLO, &peer, &msg);
	cr_assert_eq(send_bye(router, peer, 1), ERR_OK);
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	char path[256];
	snprintf(path, sizeof(path), "%s/scheduler.step.msgs", f.dir);
	FILE *file = fopen(path, "rb");
	cr_assert_not_null(file);
	cr_assert_eq(ipc_record_begin(file, NULL), ERR_OK);
	static const struct {
		u8 sent;
		u32 type;
	} expected[] = {{0, IPC_TYPE_HELLO}, {1, IPC_TYPE_HELLO}, {1, IPC_TYPE_BYE}};
	struct ipc_record head;
	struct buf frame = {0};
	struct ipc_scratch scratch = {0};
	for (u32 i = 0; i < COUNT_OF(expected); i++) {
		cr_assert_eq(ipc_record_read(file, &head, &frame, NULL), ERR_OK);
		cr_assert_eq(ipc_decode(frame.data, frame.bytes, &scratch, &msg, NULL), ERR_OK);
		cr_assert(head.sent == expected[i].sent && msg.type == expected[i].type && head.peer == peer.v);
	}
	cr_assert_eq(ipc_record_read(file, &head, &frame, NULL), ERR_AGAIN);
	fclose(file);
	buf_fini(&frame);
	ipc_scratch_fini(&scratch);
	fixture_end(&f);
}

Test(channel, a_full_peer_table_forgets_the_one_not_heard_of_for_longest)
{
	struct ipc_peers *peers;
	cr_assert_eq(ipc_peers_create(&peers), ERR_OK);
	ipc_peer first = {0};
	ipc_peer second = {0};
	for (u32 i = 0; i < IPC_PEERS_MAX; i++) {
		struct ipc_peer_state *p = ipc_peers_take(peers, (const u8 *)&i, sizeof(i));
		p->sent = i;
		if (i == 0)
			first = ipc_peers_handle(peers, p);
		if (i == 1)
			second = ipc_peers_handle(peers, p);
	}
	u32 zero = 0;
	cr_assert_eq(ipc_peers_handle(peers, ipc_peers_take(peers, (const u8 *)&zero, 4)).v, first.v);
	u32 fresh = 1000000;
	struct ipc_peer_state *p = ipc_peers_take(peers, (const u8 *)&fresh, sizeof(fresh));
	cr_assert_eq(p->sent, 0);
	cr_assert_not_null(ipc_peers_find(peers, first));
	cr_assert_null(ipc_peers_find(peers, second));
	ipc_peers_drop(peers, p);
	cr_assert_null(ipc_peers_find(peers, (ipc_peer){0}));
	ipc_peers_destroy(&peers);
}
