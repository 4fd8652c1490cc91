/* A handle in its normal life: connecting, submitting, receiving, aborting. */
#include <math.h>
#include <poll.h>
#include <zmq.h>

#include "fake_engine.h"

static const struct tercet_config plain;

Test(libtercet, ready_comes_when_both_sides_have_answered)
{
	struct fake_engine f;
	struct tercet_engine engine;
	fake_begin(&f);
	struct tercet_config config = {.run_dir = f.dir, .name = "probe"};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	cr_assert_not(tercet_get_engine(f.t, &engine));
	struct ipc_msg hello = fake_expect(&f, f.submit, IPC_TYPE_HELLO);
	cr_assert_eq(hello.hello.role, IPC_ROLE_CLIENT);
	cr_assert_eq(hello.hello.client_id, tercet_client_id(f.t));
	cr_assert(hello.hello.name_count == 5 && !memcmp(hello.hello.name, "probe", 5));
	fake_send_engine(&f);
	struct ipc_msg attach = fake_expect(&f, f.output, IPC_TYPE_ATTACH);
	cr_assert_eq(attach.attach.last_chunk, 0);
	cr_assert_eq(attach.attach.live_req_id_count, 0);
	expect_nothing(&f);
	cr_assert_not(tercet_is_ready(f.t));
	fake_send_attached(&f, attach.attach.client_id, 1);
	expect_event(&f, TERCET_EVENT_READY);
	cr_assert(tercet_is_ready(f.t));
	cr_assert(tercet_get_engine(f.t, &engine));
	cr_assert(engine.max_model_len == 2048 && engine.eos_id_count == 2 && engine.eos_ids[1] == 3);
	cr_assert_str_eq(engine.model, "demo");
	fake_end(&f);
}

Test(libtercet, wait_ready_leaves_the_event_and_times_out_with_a_reason)
{
	struct fake_engine f;
	struct tercet_error error;
	fake_begin(&f);
	struct tercet_config config = {.run_dir = f.dir};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	cr_assert_eq((int)tercet_wait_ready(f.t, 50, &error), TERCET_TIMEOUT);
	cr_assert_not_null(strstr(error.text, "did not answer within 50 ms"));
	fake_expect(&f, f.submit, IPC_TYPE_HELLO);
	fake_send_engine(&f);
	for (u32 i = 0; i < 400 && !strstr(error.text, "the detokenizer did not"); i++)
		cr_assert_eq((int)tercet_wait_ready(f.t, 50, &error), TERCET_TIMEOUT);
	cr_assert_not_null(strstr(error.text, "the scheduler did, the detokenizer did not"), "%s", error.text);
	struct ipc_msg attach = fake_expect(&f, f.output, IPC_TYPE_ATTACH);
	fake_send_attached(&f, attach.attach.client_id, 1);
	cr_assert_eq((int)tercet_wait_ready(f.t, 20000, &error), TERCET_OK);
	expect_event(&f, TERCET_EVENT_READY);
	fake_end(&f);
}

Test(libtercet, a_request_travels_whole_and_its_output_comes_back)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	static const u32 prompt[] = {5, 6, 7, 8};
	static const u32 stop_ids[] = {9};
	static const char *const stops[] = {"END", "\n\n"};
	static const u32 bias_ids[] = {1, 2};
	static const float bias_values[] = {-1.5f, 100};
	struct tercet_request q;
	tercet_request_init(&q);
	q.tokens = prompt;
	q.token_count = 4;
	q.stop_ids = stop_ids;
	q.stop_id_count = 1;
	q.stop_strings = stops;
	q.stop_string_count = 2;
	q.bias_ids = bias_ids;
	q.bias_values = bias_values;
	q.bias_count = 2;
	q.cache_salt = 77;
	q.priority = -3;
	q.user = &f;
	q.params.temperature = 0.25f;
	q.params.seed = UINT64_MAX;
	q.params.max_tokens = 99;
	u64 id = 0;
	cr_assert_eq((int)tercet_submit(f.t, &q, &id, NULL), TERCET_OK);
	cr_assert_neq(id, 0);
	struct ipc_submit m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.client_id == tercet_client_id(f.t) && m.req_id == id && m.cache_salt == 77 && m.priority == -3);
	cr_assert(m.tokens_count == 4 && m.tokens[3] == 8 && m.output_count == 0);
	cr_assert(m.temperature == 0.25f && m.seed == UINT64_MAX && m.max_tokens == 99 && m.logprobs == -1);
	cr_assert(m.stop_ids_count == 1 && m.stop_ids[0] == 9);
	cr_assert(m.stop_string_bytes_count == 2 && m.stop_string_bytes[0] == 3 && m.stop_string_bytes[1] == 2);
	cr_assert(m.stop_strings_count == 5 && !memcmp(m.stop_strings, "END\n\n", 5));
	cr_assert(m.bias_ids_count == 2 && m.bias_values[1] == 100);
	fake_accept(&f, id);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_ACCEPTED);
	cr_assert(e.req_id == id && e.user == &f && e.waiting == 4);
	fake_send_entry(&f, 1, id, 0, 2, "Hello", 0);
	expect_output(&f, id, 0, 2, "Hello", TERCET_FINISH_NONE);
	fake_send_entry(&f, 2, id, 2, 1, " you", TERCET_FINISH_STOP);
	expect_output(&f, id, 2, 1, " you", TERCET_FINISH_STOP);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	expect_nothing(&f);
	cr_assert_eq(tercet_last_chunk(f.t), 2);
	fake_end(&f);
}

Test(libtercet, requests_submitted_before_the_engine_answers_are_sent_in_order)
{
	struct fake_engine f;
	fake_begin(&f);
	struct tercet_config config = {.run_dir = f.dir};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	for (u64 id = 1; id <= 3; id++)
		submit_simple(&f, id);
	fake_expect(&f, f.submit, IPC_TYPE_HELLO);
	fake_send_engine(&f);
	for (u64 id = 1; id <= 3; id++)
		cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit.req_id, id);
	fake_end(&f);
}

Test(libtercet, a_refusal_is_the_last_event_and_says_when_to_try_again)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u64 id = submit_simple(&f, 5);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	struct ipc_msg msg = {.type = IPC_TYPE_REFUSED,
			      .refused = {.req_id = id, .code = ERR_BUSY, .retry_after_ms = 1500,
					  .text = (const u8 *)"queue is full", .text_count = 13}};
	fake_send(f.submit, f.submit_peer, &msg);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_REFUSED);
	cr_assert(e.req_id == 5 && e.user == (void *)5000 && e.code == TERCET_BUSY && e.retry_after_ms == 1500);
	cr_assert_str_eq(e.error_text, "queue is full");
	cr_assert(tercet_event_is_last(&e));
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	fake_end(&f);
}

Test(libtercet, a_chunk_of_many_requests_comes_apart_with_its_logprobs)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	for (u64 id = 1; id <= 3; id++) {
		submit_simple(&f, id);
		fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	}
	u64 ids[] = {1, 2, 3};
	u32 first[] = {0, 0, 0};
	u32 count[] = {2, 0, 1};
	u32 text_bytes[] = {3, 0, 2};
	u32 threes[] = {3, 3, 3};
	u32 zeros[] = {0, 0, 0};
	u8 finish[] = {0, TERCET_FINISH_ERROR, TERCET_FINISH_STOP};
	u8 kind[] = {0, 0, TERCET_STOP_STRING};
	u32 value[] = {0, 0, 1};
	u32 tokens[] = {100, 101, 100};
	u32 lp_token[] = {0, 1, 2};
	u32 lp_count[] = {2, 2, 1};
	u32 lp_rank[] = {1, 2, 1};
	u32 lp_ids[] = {100, 7, 101, 8, 100};
	f32 lp_values[] = {-0.1f, -2, -0.3f, -0.2f, -0.5f};
	u32 plp_entry[] = {0, 0};
	u32 plp_position[] = {1, 2};
	u32 plp_count[] = {1, 1};
	u32 plp_rank[] = {4, 5};
	u32 plp_ids[] = {11, 12};
	f32 plp_values[] = {-3, -4};
	struct ipc_msg msg = {
		.type = IPC_TYPE_CHUNK,
		.chunk = {.chunk = 1, .req_id = ids, .req_id_count = 3, .first_token = first, .first_token_count = 3,
			  .token_count = count, .token_count_count = 3, .text_bytes = text_bytes,
			  .text_bytes_count = 3, .prompt_count = threes, .prompt_count_count = 3,
			  .cached_count = zeros, .cached_count_count = 3, .finish = finish, .finish_count = 3,
			  .stop_kind = kind, .stop_kind_count = 3, .stop_value = value, .stop_value_count = 3,
			  .tokens = tokens, .tokens_count = 3, .text = (const u8 *)"abcde", .text_count = 5,
			  .lp_token = lp_token, .lp_token_count = 3, .lp_count = lp_count, .lp_count_count = 3,
			  .lp_rank = lp_rank, .lp_rank_count = 3, .lp_ids = lp_ids, .lp_ids_count = 5,
			  .lp_values = lp_values, .lp_values_count = 5, .plp_entry = plp_entry, .plp_entry_count = 2,
			  .plp_position = plp_position, .plp_position_count = 2, .plp_count = plp_count,
			  .plp_count_count = 2, .plp_rank = plp_rank, .plp_rank_count = 2, .plp_ids = plp_ids,
			  .plp_ids_count = 2, .plp_values = plp_values, .plp_values_count = 2,
			  .error_text = (const u8 *)"it burned", .error_text_count = 9}};
	fake_send(f.output, f.output_peer, &msg);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 1 && e.token_count == 2 && e.text_bytes == 3 && !memcmp(e.text, "abc", 3));
	cr_assert(e.logprobs.count == 2 && e.logprobs.counts[1] == 2 && e.logprobs.ids[2] == 101);
	cr_assert(e.logprobs.ranks[1] == 2 && fabsf(e.logprobs.values[3] + 0.2f) < 1e-6f);
	cr_assert(e.prompt_logprobs.count == 2 && e.prompt_logprobs.positions[1] == 2);
	cr_assert(e.prompt_logprobs.ids[1] == 12 && e.prompt_logprobs.ranks[0] == 4);
	e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 2 && e.finish == TERCET_FINISH_ERROR && e.token_count == 0 && e.logprobs.count == 0);
	cr_assert_str_eq(e.error_text, "it burned");
	e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 3 && !memcmp(e.text, "de", 2) && e.logprobs.count == 1 && e.logprobs.ids[0] == 100);
	cr_assert(e.stop_kind == TERCET_STOP_STRING && e.stop_value == 1 && e.prompt_logprobs.count == 0);
	cr_assert_eq(tercet_unfinished_count(f.t), 1);
	fake_end(&f);
}

Test(libtercet, abort_ends_in_the_engines_last_event)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u64 id = submit_simple(&f, 8);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	cr_assert_eq((int)tercet_abort(f.t, id), TERCET_OK);
	cr_assert_eq((int)tercet_abort(f.t, id), TERCET_OK);
	cr_assert_eq((int)tercet_abort(f.t, 999), TERCET_NOT_FOUND);
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 8);
	fake_send_entry(&f, 1, id, 0, 0, "", TERCET_FINISH_ABORT);
	expect_output(&f, id, 0, 0, "", TERCET_FINISH_ABORT);
	cr_assert_eq((int)tercet_abort(f.t, id), TERCET_NOT_FOUND);
	fake_end(&f);
}

Test(libtercet, abort_before_the_engine_heard_of_it_ends_here)
{
	struct fake_engine f;
	fake_begin(&f);
	struct tercet_config config = {.run_dir = f.dir};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	submit_simple(&f, 1);
	submit_simple(&f, 2);
	cr_assert_eq((int)tercet_abort(f.t, 1), TERCET_OK);
	expect_output(&f, 1, 0, 0, "", TERCET_FINISH_ABORT);
	fake_expect(&f, f.submit, IPC_TYPE_HELLO);
	fake_send_engine(&f);
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit.req_id, 2);
	fake_end(&f);
}

Test(libtercet, a_discarded_request_is_aborted_and_never_heard_of_again)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u64 id = submit_simple(&f, 8);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	cr_assert_eq((int)tercet_discard(f.t, id), TERCET_OK);
	fake_expect(&f, f.submit, IPC_TYPE_ABORT);
	fake_accept(&f, id);
	fake_send_entry(&f, 1, id, 0, 2, "ab", 0);
	fake_send_entry(&f, 2, id, 2, 1, "c", TERCET_FINISH_ABORT);
	for (u32 i = 0; i < 2000 && tercet_unfinished_count(f.t); i++)
		expect_nothing(&f);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	fake_end(&f);
}

Test(libtercet, what_is_wrong_with_a_request_is_said_at_once)
{
	struct fake_engine f;
	struct tercet_error error;
	fake_begin(&f);
	struct tercet_config config = {.run_dir = f.dir, .max_requests = 2};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	struct tercet_request q = simple_request(1);
	q.params.temperature = -1;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	cr_assert_not_null(strstr(error.text, "temperature"), "%s", error.text);
	q = simple_request(1);
	q.token_count = 0;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	static const char *const empty[] = {"x", ""};
	q = simple_request(1);
	q.stop_strings = empty;
	q.stop_string_count = 2;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	cr_assert_not_null(strstr(error.text, "stop string 1 is empty"));
	q.stop_string_count = 17;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	q = simple_request(1);
	q.stop_id_count = 65;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	q = simple_request(1);
	q.bias_count = 1025;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, NULL), TERCET_INVALID);
	u32 many = (IPC_FRAME_BYTES_MAX - 14000) / 4; /* with room for everything else a request can have */
	q = simple_request(1);
	q.tokens = calloc(many + 1000, sizeof(u32));
	q.token_count = many + 1000;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_TOO_LONG);
	cr_assert_not_null(strstr(error.text, "tokens, at most 16774"), "%s", error.text);
	q.req_id = 77;
	q.token_count = many;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_OK, "%s", error.text);
	free((void *)(uintptr_t)q.tokens);
	cr_assert_eq((int)tercet_discard(f.t, 77), TERCET_OK);
	struct tercet_event none;
	cr_assert_eq((int)tercet_next(f.t, &none), TERCET_AGAIN);
	submit_simple(&f, 1);
	q = simple_request(1);
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_EXISTS);
	submit_simple(&f, 0);
	cr_assert_eq((int)tercet_submit(f.t, &(struct tercet_request){0}, NULL, &error), TERCET_INVALID);
	q = simple_request(9);
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_BUSY);
	cr_assert_str_eq(error.text, "2 requests are unfinished, more are not possible");
	fake_end(&f);
	cr_assert_eq((int)tercet_open(&f.t, &(struct tercet_config){0}, &error), TERCET_INVALID);
	cr_assert_null(f.t);
}

Test(libtercet, the_lease_is_renewed_well_within_its_time)
{
	struct fake_engine f;
	struct tercet_event event;
	fake_begin(&f);
	f.lease_s = 1;
	fake_connect(&f, &plain);
	u64 begin = clock_now_ns();
	u32 alive = 0;
	/* fifty times 20 ms and more, if the machine is busy, which does not count */
	for (u32 i = 0; i < 55; i++) {
		struct ipc_msg msg;
		ipc_peer from;
		cr_assert_eq((int)tercet_wait(f.t, 20, &event), TERCET_TIMEOUT);
		while (ipc_recv(f.submit, &from, &msg, NULL) == ERR_OK)
			alive += msg.type == IPC_TYPE_ALIVE && msg.alive.client_id == tercet_client_id(f.t);
	}
	cr_assert_geq(alive, 3);
	cr_assert_leq(alive, 1 + (clock_now_ns() - begin) / 150000000);
	fake_end(&f);
}

/* The last one that comes, within a while or as soon as it is `wanted`. */
static u64 last_ack(struct fake_engine *f, u64 wanted)
{
	struct ipc_msg msg;
	ipc_peer from;
	u64 chunk = 0;
	for (u32 i = 0; i < 30 || (chunk < wanted && i < 20000); i++) {
		while (ipc_recv(f->output, &from, &msg, NULL) == ERR_OK)
			if (msg.type == IPC_TYPE_ACK)
				chunk = msg.ack.chunk;
		usleep(1000);
	}
	return chunk;
}

Test(libtercet, chunks_are_acknowledged_once_they_were_delivered)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u64 id = submit_simple(&f, 8);
	for (u32 i = 0; i < 20; i++)
		fake_send_entry(&f, 1 + i, id, i, 1, "x", 0);
	usleep(20000);
	cr_assert_eq(last_ack(&f, 0), 0);
	for (u32 i = 0; i < 20; i++)
		expect_output(&f, id, i, 1, "x", TERCET_FINISH_NONE);
	expect_nothing(&f);
	cr_assert_eq(last_ack(&f, 20), 20);
	fake_end(&f);
}

Test(libtercet, with_manual_ack_only_the_caller_acknowledges)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &(struct tercet_config){.manual_ack = true});
	u64 id = submit_simple(&f, 8);
	for (u32 i = 0; i < 20; i++)
		fake_send_entry(&f, 1 + i, id, i, 1, "x", 0);
	for (u32 i = 0; i < 20; i++)
		expect_output(&f, id, i, 1, "x", TERCET_FINISH_NONE);
	expect_nothing(&f);
	cr_assert_eq(last_ack(&f, 0), 0);
	tercet_ack(f.t, 7);
	cr_assert_eq(last_ack(&f, 7), 7);
	fake_end(&f);
}

static void count_events(void *ctx, const struct tercet_event *event)
{
	cr_assert_neq(event->type, TERCET_EVENT_NONE);
	++*(u32 *)ctx;
}

static bool readable(struct tercet *t, int timeout_ms)
{
	struct pollfd p = {.fd = tercet_fd(t), .events = POLLIN};
	return poll(&p, 1, timeout_ms) == 1;
}

/* A foreign loop: sleeps on the descriptor, dispatches, submits in between. No message may be left behind. */
Test(libtercet, the_descriptor_tells_a_foreign_loop_of_everything)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u32 events = 0;
	tercet_dispatch(f.t, count_events, &events);
	cr_assert_eq(events, 0);
	u64 id = submit_simple(&f, 100);
	for (u32 round = 0; round < 30; round++) {
		events = 0;
		fake_send_entry(&f, 1 + round, id, round, 1, "x", 0);
		usleep(2000);
		submit_simple(&f, 1 + round); /* its send swallows the edge of ZeroMQ's descriptor */
		cr_assert(readable(f.t, 20000));
		for (u32 i = 0; i < 100 && !events; i++) {
			tercet_dispatch(f.t, count_events, &events);
			if (!events)
				cr_assert(readable(f.t, 20000));
		}
		cr_assert_eq(events, 1, "round %u", round);
	}
	u32 awake = 0; /* what the transport says to itself may come late */
	for (; awake < 100 && readable(f.t, 50); awake++)
		tercet_dispatch(f.t, count_events, &events);
	cr_assert_lt(awake, 100, "it sleeps when there is nothing");
	fake_end(&f);
}

Test(libtercet, closing_says_good_bye_to_both)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	u64 id = tercet_client_id(f.t);
	tercet_close(&f.t);
	cr_assert_null(f.t);
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_BYE).bye.client_id, id);
	cr_assert_eq(fake_expect(&f, f.output, IPC_TYPE_BYE).bye.client_id, id);
	fake_end(&f);
}

Test(libtercet, an_engine_of_another_version_is_named)
{
	struct fake_engine f;
	struct tercet_error error;
	fake_begin(&f);
	ipc_channel_close(&f.submit);
	void *zmq = zmq_ctx_new();
	void *router = zmq_socket(zmq, ZMQ_ROUTER);
	char endpoint[128];
	char id[64];
	char frame[512];
	int zero = 0;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/submit", f.dir);
	cr_assert_eq(zmq_bind(router, endpoint), 0);
	struct tercet_config config = {.run_dir = f.dir};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	int id_bytes = zmq_recv(router, id, sizeof(id), 0);
	cr_assert_gt(zmq_recv(router, frame, sizeof(frame), 0), 0);
	struct ipc_msg msg = {.type = IPC_TYPE_ERROR, .sequence = 1,
			      .error = {.code = ERR_VERSION, .text = (const u8 *)"version 1 and version 2",
					.text_count = 23}};
	struct buf out = {0};
	ipc_encode(&msg, &out);
	zmq_send(router, id, (size_t)id_bytes, ZMQ_SNDMORE);
	zmq_send(router, out.data, out.bytes, 0);
	cr_assert_eq((int)tercet_wait_ready(f.t, 20000, &error), TERCET_VERSION);
	cr_assert_str_eq(error.text, "version 1 and version 2");
	struct tercet_event e = expect_event(&f, TERCET_EVENT_ERROR);
	cr_assert_eq((int)e.code, TERCET_VERSION);
	buf_fini(&out);
	zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof(zero));
	zmq_close(router);
	zmq_ctx_term(zmq);
	fake_end(&f);
}
