/* The event loop over real sockets: ZeroMQ's descriptor is edge-triggered, the loop is not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.h"
#include "ipc/ipc_priv.h"

struct fixture {
	char dir[64];
	struct ipc_context *ctx;
	struct ipc_loop *loop;
	struct ipc_channel *router;
	struct ipc_channel *dealer;
	ipc_peer peer;
	u32 received;
	u32 echoes;
	u32 errors;
	u32 turns;
	u32 ticks;
	bool close_on_message;
};

static void on_message(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct fixture *f = ctx;
	(void)from;
	(void)ch;
	if (msg->type == IPC_TYPE_BYE)
		f->received++;
	if (msg->type == IPC_TYPE_BYE && f->close_on_message) {
		ipc_loop_remove_channel(f->loop, f->dealer);
		ipc_channel_close(&f->dealer);
	}
}

static void on_error(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e, const struct err_msg *em)
{
	struct fixture *f = ctx;
	(void)ch;
	(void)from;
	cr_assert(e != ERR_OK && em->text[0]);
	f->errors++;
}

static void on_turn(void *ctx, u64 now_ns)
{
	struct fixture *f = ctx;
	cr_assert_gt(now_ns, 0);
	f->turns++;
}

static void on_tick(void *ctx, u64 now_ns)
{
	struct fixture *f = ctx;
	(void)now_ns;
	f->ticks++;
}

static struct ipc_channel *open_end(struct fixture *f, enum ipc_pattern pattern)
{
	char endpoint[128];
	struct ipc_channel *ch;
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f->dir, "c", NULL), ERR_OK);
	struct ipc_channel_config config = {
		.name = "c", .endpoint = endpoint, .pattern = pattern, .bind = pattern == IPC_ROUTER};
	cr_assert_eq(ipc_channel_open(&ch, f->ctx, &config, NULL), ERR_OK);
	return ch;
}

/* The dealer is in the loop; the router is played by the test. Both have greeted. */
static void fixture_begin(struct fixture *f)
{
	struct ipc_msg msg;
	*f = (struct fixture){.dir = "/tmp/tercet_loop_XXXXXX"};
	cr_assert_not_null(mkdtemp(f->dir));
	cr_assert_eq(ipc_context_create(&f->ctx, NULL), ERR_OK);
	cr_assert_eq(ipc_loop_create(&f->loop, NULL), ERR_OK);
	f->router = open_end(f, IPC_ROUTER);
	f->dealer = open_end(f, IPC_DEALER);
	while (ipc_recv(f->router, &f->peer, &msg, NULL) == ERR_AGAIN)
		usleep(1000);
	cr_assert_eq(ipc_loop_add_channel(f->loop, f->dealer, on_message, on_error, f), ERR_OK);
	for (u32 i = 0; i < 20; i++)
		cr_assert_eq(ipc_loop_turn(f->loop, 5), ERR_OK);
}

static void fixture_end(struct fixture *f)
{
	char path[128];
	ipc_channel_close(&f->dealer);
	ipc_channel_close(&f->router);
	ipc_loop_destroy(&f->loop);
	ipc_context_destroy(&f->ctx);
	snprintf(path, sizeof(path), "%s/c", f->dir);
	unlink(path);
	rmdir(f->dir);
}

static void send_bye(struct ipc_channel *ch, ipc_peer to)
{
	struct ipc_msg msg = {.type = IPC_TYPE_BYE};
	cr_assert_eq(ipc_send(ch, to, &msg), ERR_OK);
}

/* Sends so many and gives them time to arrive: then one turn brings them all. The transport's thread may be late on a busy
 * machine, but not whatever time it is given. */
static void send_and_turn(struct fixture *f, u32 count, int timeout_ms)
{
	u32 first = 0;

	for (u32 ms = 30; first < count && ms < 20000; ms *= 4) {
		u32 before = f->received;
		for (u32 i = 0; i < count; i++)
			send_bye(f->router, f->peer);
		usleep(ms * 1000);
		f->turns = 0;
		cr_assert_eq(ipc_loop_turn(f->loop, timeout_ms), ERR_OK);
		first = f->received - before;
		for (u32 i = 0; i < 1000 && f->received - before < count; i++)
			cr_assert_eq(ipc_loop_turn(f->loop, 20), ERR_OK);
		cr_assert_eq(f->received - before, count);
	}
	cr_assert_eq(first, count);
}

Test(loop, five_messages_at_once_are_all_delivered)
{
	struct fixture f;
	fixture_begin(&f);
	send_and_turn(&f, 5, 1000);
	fixture_end(&f);
}

/* The send reads the socket's mailbox and with it swallows the edge: waiting on the descriptor alone would sleep. */
Test(loop, a_message_that_came_before_a_send_of_ours_does_not_wait)
{
	struct fixture f;
	fixture_begin(&f);
	for (u32 round = 0; round < 20; round++) {
		u32 before = f.received;
		send_bye(f.router, f.peer);
		usleep(3000);
		send_bye(f.dealer, (ipc_peer){0});
		u64 begin = clock_now_ns();
		while (f.received == before)
			cr_assert_eq(ipc_loop_turn(f.loop, 30000), ERR_OK);
		cr_assert_eq(f.received, before + 1);
		cr_assert_lt(clock_now_ns() - begin, 20000000000u);
	}
	fixture_end(&f);
}

Test(loop, a_flood_is_handed_out_in_bounded_turns_and_whole)
{
	struct fixture f;
	fixture_begin(&f);
	for (u32 i = 0; i < 600; i++)
		send_bye(f.router, f.peer);
	usleep(50000);
	u32 most = 0;
	u32 turns = 0;
	while (f.received < 600 && turns < 1000) {
		u32 before = f.received;
		cr_assert_eq(ipc_loop_turn(f.loop, 1000), ERR_OK);
		if (f.received - before > most)
			most = f.received - before;
		turns++;
	}
	cr_assert_eq(f.received, 600);
	cr_assert_leq(most, 256);
	fixture_end(&f);
}

Test(loop, every_turn_ends_in_one_call_after_all_input)
{
	struct fixture f;
	fixture_begin(&f);
	ipc_loop_on_turn(f.loop, on_turn, &f);
	send_and_turn(&f, 3, 0);
	cr_assert_eq(f.turns, 1);
	cr_assert_eq(ipc_loop_turn(f.loop, 0), ERR_OK);
	cr_assert_eq(f.turns, 2);
	fixture_end(&f);
}

Test(loop, a_channel_may_be_closed_by_its_own_message)
{
	struct fixture f;
	fixture_begin(&f);
	f.close_on_message = true;
	send_bye(f.router, f.peer);
	send_bye(f.router, f.peer);
	usleep(30000);
	while (f.received == 0)
		cr_assert_eq(ipc_loop_turn(f.loop, 1000), ERR_OK);
	cr_assert_eq(f.received, 1);
	cr_assert_null(f.dealer);
	cr_assert_eq(ipc_loop_turn(f.loop, 0), ERR_OK);
	fixture_end(&f);
}

Test(loop, errors_of_a_channel_reach_its_handler)
{
	struct fixture f;
	fixture_begin(&f);
	ipc_channel_close(&f.router);
	for (u32 i = 0; i < 400 && !f.errors; i++)
		cr_assert_eq(ipc_loop_turn(f.loop, 50), ERR_OK);
	cr_assert_eq(f.errors, 1); /* the connection broke */
	fixture_end(&f);
}

Test(loop, timers_fire_at_their_period_and_stop_when_removed)
{
	struct fixture f;
	u32 id;
	fixture_begin(&f);
	cr_assert_eq(ipc_loop_add_timer(f.loop, 20, on_tick, &f, &id), ERR_OK);
	u64 begin = clock_now_ns();
	u32 turns = 0;
	while (f.ticks < 5) {
		cr_assert_eq(ipc_loop_turn(f.loop, -1), ERR_OK);
		turns++;
	}
	u64 took_ms = (clock_now_ns() - begin) / 1000000;
	cr_assert_geq(took_ms, 99);
	cr_assert_leq(turns, 15); /* no spinning towards the deadline */
	ipc_loop_remove_timer(f.loop, id);
	cr_assert_eq(ipc_loop_turn(f.loop, 60), ERR_OK);
	cr_assert_eq(f.ticks, 5);
	for (u32 i = 0; i < 64; i++)
		cr_assert_eq(ipc_loop_add_timer(f.loop, 1000, on_tick, &f, NULL), ERR_OK);
	cr_assert_eq(ipc_loop_add_timer(f.loop, 1000, on_tick, &f, NULL), ERR_BUSY);
	fixture_end(&f);
}

static void on_pipe(void *ctx, int fd, u32 events)
{
	struct fixture *f = ctx;
	char c;
	cr_assert(events & EPOLLIN);
	cr_assert_eq(read(fd, &c, 1), 1);
	f->echoes++;
	if (c == 'q')
		ipc_loop_stop(f->loop);
}

Test(loop, descriptors_are_watched_until_removed_and_run_ends_on_stop)
{
	struct fixture f;
	int ends[2];
	fixture_begin(&f);
	cr_assert_eq(pipe(ends), 0);
	cr_assert_eq(ipc_loop_add_fd(f.loop, ends[0], EPOLLIN, on_pipe, &f), ERR_OK);
	cr_assert_eq(ipc_loop_add_fd(f.loop, ends[0], EPOLLIN, on_pipe, &f), ERR_EXISTS);
	cr_assert_eq(write(ends[1], "aq", 2), 2);
	cr_assert_eq(ipc_loop_run(f.loop), ERR_OK);
	cr_assert_eq(f.echoes, 2);
	ipc_loop_remove_fd(f.loop, ends[0]);
	cr_assert_eq(write(ends[1], "a", 1), 1);
	cr_assert_eq(ipc_loop_turn(f.loop, 20), ERR_OK);
	cr_assert_eq(f.echoes, 2);
	close(ends[0]);
	close(ends[1]);
	fixture_end(&f);
}

Test(loop, lines_that_a_peer_provokes_are_few_a_second_and_the_others_are_counted)
{
	struct fixture f;
	u32 logged = 0;
	FILE *log = tmpfile();
	int saved = dup(STDERR_FILENO);
	char text[4096];

	fixture_begin(&f);
	cr_assert_not_null(log);
	dup2(fileno(log), STDERR_FILENO);
	for (u32 i = 0; i < 100; i++)
		logged += ipc_channel_may_log(f.dealer);
	for (u64 end = clock_now_ns() + 1500000000ull; clock_now_ns() < end;)
		cr_assert_eq(ipc_loop_turn(f.loop, 100), ERR_OK);
	bool again = ipc_channel_may_log(f.dealer);
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(log);
	text[fread(text, 1, sizeof(text) - 1, log)] = '\0';
	fclose(log);
	cr_assert_eq(logged, (u32)IPC_LOG_BURST);
	cr_assert_not_null(strstr(text, "CHANNEL_LOG_MUTED channel=c lines=90"), "%s", text);
	cr_assert(again);
	fixture_end(&f);
}
