/* The detokenizer over real sockets: the test plays scheduler, worker and clients in the same thread. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/finish.h"
#include "proc_detok/detok.h"
#include "stream_fixture.h"

struct peer {
	struct ipc_channel *ch;
	struct client_view *view;
	bool numbers_only; /* looks at chunk numbers, not into chunks */
	u64 id;
	u64 last_chunk;
	u64 next_chunk; /* of ATTACHED */
	u32 detached;	/* code */
	char detached_text[200];
	u64 stopped[16];
	u32 stopped_count;
	u32 hellos;
};

static char run_dir[64];
static struct detok d;
static struct ipc_context *ctx;
static struct stats_page *stats;
static struct peer sched, worker;

static struct peer peer_open(const char *name, enum ipc_pattern pattern, enum ipc_role role, u64 id,
			     u32 queue)
{
	struct peer p = {.id = id};
	char endpoint[128];
	struct err_msg em;
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), run_dir, name, &em), ERR_OK);
	struct ipc_channel_config config = {
		.name = name,
		.endpoint = endpoint,
		.pattern = pattern,
		.role = role,
		.client_id = id,
		.epoch = 1,
		.queue_max = queue,
	};
	cr_assert_eq(ipc_channel_open(&p.ch, ctx, &config, &em), ERR_OK, "%s", em.text);
	return p;
}

static void setup_with(u64 retention_bytes)
{
	struct err_msg em = {.text = ""};
	strcpy(run_dir, "/tmp/test-detok-XXXXXX");
	cr_assert_not_null(mkdtemp(run_dir));
	cr_assert_eq(stats_create(&stats, NULL, "detok", &em), ERR_OK);
	struct detok_config config = {.run_dir = run_dir,
				      .stats = stats,
				      .streams_max = 64,
				      .retention_bytes = retention_bytes,
				      .retention_s = 60};
	cr_assert_eq(detok_open(&d, &config, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(ipc_context_create(&ctx, &em), ERR_OK);
	sched = peer_open("streams", IPC_DEALER, IPC_ROLE_SCHEDULER, 0, 0);
	worker = peer_open("tokens", IPC_PUSH, IPC_ROLE_WORKER, 0, 0);
}

static void setup(void)
{
	setup_with(1 << 20);
}

static void teardown(void)
{
	char path[128];
	ipc_channel_close(&sched.ch);
	ipc_channel_close(&worker.ch);
	ipc_context_destroy(&ctx);
	detok_close(&d);
	stats_destroy(&stats);
	const char *names[] = {"streams", "tokens", "output", "tap"};
	for (u32 i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%s", run_dir, names[i]);
		unlink(path);
	}
	rmdir(run_dir);
}

TestSuite(detok, .init = setup, .fini = teardown, .timeout = 120);

static void peer_message(struct peer *p, const struct ipc_msg *msg)
{
	switch (msg->type) {
	case IPC_TYPE_ATTACHED:
		p->next_chunk = msg->attached.next_chunk;
		break;
	case IPC_TYPE_CHUNK:
		cr_assert_eq(msg->chunk.client_id, p->id);
		cr_assert_eq(msg->chunk.chunk, p->last_chunk + 1, "chunk %llu behind %llu",
			     (unsigned long long)msg->chunk.chunk, (unsigned long long)p->last_chunk);
		p->last_chunk = msg->chunk.chunk;
		if (!p->numbers_only)
			view_add(p->view, &msg->chunk);
		break;
	case IPC_TYPE_DETACHED:
		p->detached = msg->detached.code;
		snprintf(p->detached_text, sizeof(p->detached_text), "%.*s", (int)msg->detached.text_count,
			 (const char *)msg->detached.text);
		break;
	case IPC_TYPE_STOPPED:
		p->stopped[p->stopped_count++ % 16] = msg->stopped.seq;
		break;
	default:
		cr_assert_eq(msg->type, IPC_TYPE_HELLO);
		p->hellos++;
	}
}

static void peer_read(struct peer *p)
{
	struct ipc_msg msg;
	struct err_msg em;
	ipc_peer from;
	enum err e;
	while ((e = ipc_recv(p->ch, &from, &msg, &em)) != ERR_AGAIN)
		if (e == ERR_OK)
			peer_message(p, &msg);
}

/* Turns of the detokenizer until `*done` is at least `want`, with `p` reading. */
static void turn_until(struct peer *p, const void *done, size_t bytes, u64 want)
{
	u64 end = clock_now_ns() + 10000000000ull;
	for (;;) {
		u64 have = bytes == 8 ? *(const u64 *)done : *(const u32 *)done;
		if (have >= want)
			return;
		cr_assert_lt(clock_now_ns(), end, "%llu never came", (unsigned long long)want);
		cr_assert_eq(ipc_loop_turn(d.loop, 1), ERR_OK);
		peer_read(p);
	}
}
#define TURN_UNTIL(p, field, want) turn_until(&(p), &(p).field, sizeof((p).field), want)

/* Turns until nothing has happened for a while. */
static void turn_some(struct peer *p)
{
	for (int i = 0; i < 30; i++) {
		cr_assert_eq(ipc_loop_turn(d.loop, 1), ERR_OK);
		if (p)
			peer_read(p);
	}
}

static void peer_send(struct peer *p, const struct ipc_msg *msg)
{
	cr_assert_eq(ipc_send(p->ch, (ipc_peer){0}, msg), ERR_OK);
}

static struct peer client_open(u64 id, u64 last_chunk, u32 queue, struct client_view *view)
{
	struct peer p = peer_open("output", IPC_DEALER, IPC_ROLE_CLIENT, id, queue);
	struct ipc_msg msg = {.type = IPC_TYPE_ATTACH, .attach = {.client_id = id, .last_chunk = last_chunk}};
	p.view = view ? view : calloc(1, sizeof(*p.view));
	p.last_chunk = last_chunk;
	peer_send(&p, &msg);
	return p;
}

static void client_close_free(struct peer *p)
{
	ipc_channel_close(&p->ch);
	free(p->view);
}

static void sched_open(u64 seq, u64 client_id, u64 req_id)
{
	struct ipc_msg msg = {.type = IPC_TYPE_OPEN, .open = fixture_open(seq, client_id, req_id)};
	peer_send(&sched, &msg);
}

static void worker_push(u64 seq, u32 position, u32 token)
{
	struct ipc_msg msg = {.type = IPC_TYPE_RESULT,
			      .result = {.seq = &seq,
					 .seq_count = 1,
					 .position = &position,
					 .position_count = 1,
					 .token = &token,
					 .token_count = 1}};
	enum err e;
	while ((e = ipc_send(worker.ch, (ipc_peer){0}, &msg)) == ERR_BUSY)
		cr_assert_eq(ipc_loop_turn(d.loop, 1), ERR_OK);
	cr_assert_eq(e, ERR_OK);
}

Test(detok, tokens_become_chunks_of_the_right_client)
{
	struct peer a = client_open(7, 0, 0, NULL), b = client_open(8, 0, 0, NULL);
	sched_open(1, 7, 100);
	sched_open(2, 8, 200);
	worker_push(1, 0, 'x');
	worker_push(2, 0, 'y');
	worker_push(1, 1, TOK_EOS);
	TURN_UNTIL(a, last_chunk, 1);
	TURN_UNTIL(b, last_chunk, 1);
	turn_some(&a);
	cr_assert_eq(a.next_chunk, 1);
	cr_assert_str_eq(view_request(a.view, 100)->text, "x");
	cr_assert_eq(view_request(a.view, 100)->finish, FINISH_STOP);
	cr_assert_str_eq(view_request(b.view, 200)->text, "y");
	client_close_free(&a);
	client_close_free(&b);
}

Test(detok, reattached_client_goes_on_exactly_behind_the_chunk_it_saw)
{
	struct peer a = client_open(7, 0, 0, NULL);
	sched_open(1, 7, 100);
	TURN_UNTIL(a, next_chunk, 1);
	for (u32 i = 0; i < 10; i++) {
		worker_push(1, i, 'a' + i);
		TURN_UNTIL(a, last_chunk, i + 1);
	}
	/* it forgets what came behind chunk 6, as one that died before it wrote it down */
	struct client_view *view = calloc(1, sizeof(*view));
	struct request_view *r = view_request(view, 100);
	memcpy(r, view_request(a.view, 100), sizeof(*r));
	r->token_count = r->text_bytes = 6;
	client_close_free(&a);
	for (u32 i = 10; i < 15; i++)
		worker_push(1, i, 'a' + i);
	turn_some(NULL);
	a = client_open(7, 6, 0, view);
	worker_push(1, 15, TOK_EOS);
	TURN_UNTIL(a, view->requests[0].finishes, 1);
	cr_assert_eq(a.next_chunk, 7);
	cr_assert_str_eq(r->text, "abcdefghijklmno");
	cr_assert_eq(r->token_count, 16);
	client_close_free(&a);
}

Test(detok, acknowledged_chunks_are_gone)
{
	struct peer a = client_open(7, 0, 0, NULL);
	sched_open(1, 7, 100);
	for (u32 i = 0; i < 5; i++) {
		worker_push(1, i, 'a');
		TURN_UNTIL(a, last_chunk, i + 1);
	}
	struct ipc_msg ack = {.type = IPC_TYPE_ACK, .ack = {.client_id = 7, .chunk = 4}};
	peer_send(&a, &ack);
	turn_some(&a);
	struct peer again = client_open(7, 2, 0, NULL);
	TURN_UNTIL(again, detached, 1);
	cr_assert_eq(again.detached, ERR_GONE);
	cr_assert(strstr(again.detached_text, "chunks 3 to 4"), "%s", again.detached_text);
	/* nobody reads its request any longer */
	TURN_UNTIL(sched, stopped_count, 1);
	cr_assert_eq(sched.stopped[0], 1);
	client_close_free(&a);
	client_close_free(&again);
}

Test(detok, second_socket_replaces_the_first_which_is_told)
{
	struct peer a = client_open(7, 0, 0, NULL);
	TURN_UNTIL(a, next_chunk, 1);
	struct peer b = client_open(7, 0, 0, NULL);
	TURN_UNTIL(b, next_chunk, 1);
	TURN_UNTIL(a, detached, 1);
	cr_assert_eq(a.detached, ERR_EXISTS);
	sched_open(1, 7, 100);
	worker_push(1, 0, 'x');
	TURN_UNTIL(b, last_chunk, 1);
	turn_some(&a);
	cr_assert_eq(a.last_chunk, 0);
	client_close_free(&a);
	client_close_free(&b);
}

Test(detok, stop_strings_reach_the_scheduler)
{
	struct peer a = client_open(7, 0, 0, NULL);
	struct stop_list list;
	struct ipc_msg msg = {.type = IPC_TYPE_OPEN, .open = fixture_open(5, 7, 100)};
	fixture_stops(&msg.open, &list, (const char *[]){"bc"}, 1);
	peer_send(&sched, &msg);
	for (u32 i = 0; i < 3; i++)
		worker_push(5, i, 'a' + i);
	TURN_UNTIL(sched, stopped_count, 1);
	cr_assert_eq(sched.stopped[0], 5);
	TURN_UNTIL(a, view->requests[0].finishes, 1);
	cr_assert_str_eq(view_request(a.view, 100)->text, "a");
	client_close_free(&a);
}

Test(detok, stopped_waits_for_a_scheduler_that_is_away)
{
	struct peer a = client_open(7, 0, 0, NULL);
	sched_open(1, 7, 100);
	worker_push(1, 0, 'x');
	TURN_UNTIL(a, last_chunk, 1);
	ipc_channel_close(&sched.ch);
	usleep(300000); /* until the transport has noticed; what it takes before that goes to a dead life */
	struct ipc_msg bye = {.type = IPC_TYPE_BYE, .bye = {.client_id = 7}};
	peer_send(&a, &bye);
	turn_some(&a);
	sched = peer_open("streams", IPC_DEALER, IPC_ROLE_SCHEDULER, 0, 0);
	TURN_UNTIL(sched, stopped_count, 1);
	cr_assert_eq(sched.stopped[0], 1);
	client_close_free(&a);
}

Test(detok, missing_results_are_asked_for_and_filled_in)
{
	struct peer a = client_open(7, 0, 0, NULL);
	u32 tokens[] = {'a', 'b', 'c'};
	sched_open(1, 7, 100);
	worker_push(1, 0, 'a');
	TURN_UNTIL(a, last_chunk, 1);
	TURN_UNTIL(sched, hellos, 1);
	worker_push(1, 3, 'd');
	u32 hellos = sched.hellos;
	TURN_UNTIL(sched, hellos, hellos + 1);
	struct ipc_msg msg = {.type = IPC_TYPE_OPEN, .open = fixture_open(1, 7, 100)};
	msg.open.output_tokens = tokens;
	msg.open.output_tokens_count = 3;
	peer_send(&sched, &msg);
	worker_push(1, 4, TOK_EOS);
	TURN_UNTIL(a, view->requests[0].finishes, 1);
	cr_assert_str_eq(view_request(a.view, 100)->text, "abcd");
	client_close_free(&a);
}

Test(detok, worker_that_connects_anew_makes_it_ask_what_was_lost)
{
	struct peer a = client_open(7, 0, 0, NULL);
	sched_open(1, 7, 100);
	worker_push(1, 0, 'a');
	TURN_UNTIL(a, last_chunk, 1);
	turn_some(&sched);
	u32 hellos = sched.hellos;
	ipc_channel_close(&worker.ch);
	worker = peer_open("tokens", IPC_PUSH, IPC_ROLE_WORKER, 0, 0);
	TURN_UNTIL(sched, hellos, hellos + 1);
	client_close_free(&a);
}

Test(detok, tap_sees_the_chunks_of_all_clients)
{
	struct peer tap = peer_open("tap", IPC_SUB, IPC_ROLE_CLIENT, 0, 0);
	struct peer a = client_open(7, 0, 0, NULL), b = client_open(8, 0, 0, NULL);
	struct ipc_msg msg;
	struct err_msg em;
	ipc_peer from;
	bool seen[2] = {false};
	sched_open(1, 7, 100);
	sched_open(2, 8, 200);
	/* a subscription takes its time; what came before is lost by design */
	for (u32 i = 0; i < 1000 && !(seen[0] && seen[1]); i++) {
		usleep(i * 20);
		worker_push(1, i, 'x');
		worker_push(2, i, 'y');
		cr_assert_eq(ipc_loop_turn(d.loop, 1), ERR_OK);
		while (ipc_recv(tap.ch, &from, &msg, &em) == ERR_OK)
			if (msg.type == IPC_TYPE_CHUNK)
				seen[msg.chunk.client_id - 7] = true;
	}
	cr_assert(seen[0] && seen[1]);
	ipc_channel_close(&tap.ch);
	client_close_free(&a);
	client_close_free(&b);
}

Test(detok, slow_client_is_closed_with_a_reason_and_others_do_not_notice)
{
	teardown();
	setup_with(65536);
	fixture_words[0] = malloc(4001);
	memset((char *)(uintptr_t)fixture_words[0], 'w', 4000);
	((char *)(uintptr_t)fixture_words[0])[4000] = 0;
	struct peer slow = client_open(7, 0, 2, NULL), fast = client_open(8, 0, 0, NULL);
	slow.numbers_only = true;
	TURN_UNTIL(slow, next_chunk, 1);
	TURN_UNTIL(fast, next_chunk, 1);
	struct ipc_msg open = {.type = IPC_TYPE_OPEN, .open = fixture_open(1, 7, 100)};
	open.open.output_max = 100000;
	peer_send(&sched, &open);
	sched_open(2, 8, 200);
	u64 worst_ns = 0;
	u32 at = 0;
	while (sched.stopped_count == 0) {
		cr_assert_lt(at, 3000, "it was never closed");
		worker_push(1, at, TOK_WORDS);
		worker_push(2, at, 'y');
		u64 begin_ns = clock_now_ns();
		TURN_UNTIL(fast, last_chunk, fast.last_chunk + 1);
		if (clock_now_ns() - begin_ns > worst_ns)
			worst_ns = clock_now_ns() - begin_ns;
		peer_read(&sched);
		struct client *c = clients_find(&d.output.clients, 7);
		if (c)
			cr_assert_leq(c->ring.bytes, 65536 + 5000, "memory is bounded");
		at++;
	}
	cr_assert_eq(sched.stopped[0], 1);
	cr_assert_eq(atomic_load(&stats->values[STATS_CLIENTS_CLOSED_SLOW]), 1);
	/* it hears why as soon as it reads again */
	TURN_UNTIL(slow, detached, 1);
	cr_assert_eq(slow.detached, ERR_BUSY);
	cr_assert(strstr(slow.detached_text, "did not read"), "%s", slow.detached_text);
	worker_push(2, at, TOK_EOS);
	TURN_UNTIL(fast, view->requests[0].finishes, 1);
	cr_assert_eq(view_request(fast.view, 200)->token_count, at + 1);
	cr_assert_lt(worst_ns, 5000000000ull);
	client_close_free(&slow);
	client_close_free(&fast);
	free((void *)(uintptr_t)fixture_words[0]);
	fixture_words[0] = NULL;
}

Test(detok, new_detokenizer_and_returning_client_leave_no_gap)
{
	struct peer a = client_open(7, 0, 0, NULL);
	sched_open(1, 7, 100);
	for (u32 i = 0; i < 4; i++) {
		worker_push(1, i, 'a' + i);
		TURN_UNTIL(a, last_chunk, i + 1);
	}
	struct detok_config config = d.config;
	struct err_msg em;
	struct client_view *view = a.view;
	ipc_channel_close(&a.ch);
	ipc_channel_close(&sched.ch);
	ipc_channel_close(&worker.ch);
	detok_close(&d);
	cr_assert_eq(detok_open(&d, &config, &em), ERR_OK, "%s", em.text);

	/* the scheduler has two tokens more than the client */
	u32 tokens[] = {'a', 'b', 'c', 'd', 'e', 'f'};
	sched = peer_open("streams", IPC_DEALER, IPC_ROLE_SCHEDULER, 0, 0);
	worker = peer_open("tokens", IPC_PUSH, IPC_ROLE_WORKER, 0, 0);
	struct ipc_msg msg = {.type = IPC_TYPE_OPEN, .open = fixture_open(1, 7, 100)};
	msg.open.output_tokens = tokens;
	msg.open.output_tokens_count = 6;
	peer_send(&sched, &msg);
	worker_push(1, 6, 'g');
	turn_some(NULL);
	u64 live_req = 100;
	u32 live_tokens = 4, live_bytes = 4;
	a = peer_open("output", IPC_DEALER, IPC_ROLE_CLIENT, 7, 0);
	a.view = view;
	a.last_chunk = 4;
	struct ipc_msg attach = {
		.type = IPC_TYPE_ATTACH,
		.attach = {.client_id = 7,
			   .last_chunk = 4,
			   .live_req_id = &live_req,
			   .live_req_id_count = 1,
			   .live_token_count = &live_tokens,
			   .live_token_count_count = 1,
			   .live_text_bytes = &live_bytes,
			   .live_text_bytes_count = 1},
	};
	peer_send(&a, &attach);
	worker_push(1, 7, TOK_EOS);
	TURN_UNTIL(a, view->requests[0].finishes, 1);
	cr_assert_eq(a.next_chunk, 5);
	cr_assert_str_eq(view_request(view, 100)->text, "abcdefg");
	cr_assert_eq(view_request(view, 100)->token_count, 8);
	client_close_free(&a);
}

Test(detok, endpoint_in_use_is_named)
{
	struct detok other;
	struct err_msg em = {.text = ""};
	struct detok_config config = d.config;
	config.run_dir = "/nonexistent/run";
	cr_assert_eq(detok_open(&other, &config, &em), ERR_IO);
	cr_assert(strstr(em.text, "/nonexistent/run"), "%s", em.text);
	cr_assert_null(other.loop);
}
