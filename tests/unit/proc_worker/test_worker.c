/* The worker's loop against a scheduler and a detokenizer played by the test, over real sockets. Built twice: for the CPU,
 * and with CUDA_EMU_OBJECT for a device whose engine is the test's, too (fake_gpu.h). */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/shm_stats.h"
#include "proc_worker/worker.h"
#include "tests/unit/proc_worker/driver.h"

#ifdef CUDA_EMU_OBJECT
#include "tests/unit/proc_worker/fake_gpu.h"
#endif

enum { OUTPUTS = 4 };

struct world {
	char run_dir[64];
	struct options options;
	struct boot boot;
	int boot_fd; /* the supervisor's end */
	pthread_t thread;
	enum err e;
	struct err_msg em;
	struct ipc_context *ipc;
	struct ipc_channel *steps, *tokens;
	ipc_peer worker;
	u64 epoch;
	struct mirror mirror;
};

static void *worker_main(void *arg)
{
	struct world *w = arg;
	struct worker *worker;

	w->e = worker_create(&worker, &w->options, 0, &w->boot, &w->em);
	if (!w->e)
		w->e = worker_run(worker, &w->em);
	worker_destroy(&worker);
	return NULL;
}

static void bind_channel(struct world *w, const char *name, enum ipc_pattern pattern,
			 struct ipc_channel **out)
{
	char endpoint[128];
	struct err_msg em;
	struct ipc_channel_config c = {.name = name,
				       .endpoint = endpoint,
				       .pattern = pattern,
				       .bind = true,
				       .epoch = w->epoch,
				       .role = pattern == IPC_PULL ? IPC_ROLE_DETOK : IPC_ROLE_SCHEDULER};

	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), w->run_dir, name, &em), ERR_OK);
	cr_assert_eq(ipc_channel_open(out, w->ipc, &c, &em), ERR_OK, "%s", em.text);
}

/* The next message of that type; others are passed over. The message lives until the next receive. */
static struct ipc_msg *expect(struct world *w, struct ipc_channel *ch, u32 type)
{
	static struct ipc_msg msg;
	u64 end = clock_now_ns() + 20000000000ull;

	while (clock_now_ns() < end) {
		struct err_msg em;
		ipc_peer from;
		enum err e = ipc_recv(ch, &from, &msg, &em);
		if (!e && ch == w->steps)
			w->worker = from;
		if (!e && msg.type == type)
			return &msg;
		if (e)
			usleep(1000);
	}
	cr_assert(false, "no %s came", ipc_type_name(type));
	return NULL;
}

static void send_init(struct world *w)
{
	struct ipc_msg msg = {.type = IPC_TYPE_INIT, .init = {.block_count = 64, .max_model_len = 200}};

	ipc_channel_set_epoch(w->steps, ++w->epoch);
	mirror_init(&w->mirror, 16);
	cr_assert_eq(ipc_send(w->steps, w->worker, &msg), ERR_OK);
}

static void send_step(struct world *w)
{
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .step = *mirror_end(&w->mirror)};

	cr_assert_eq(ipc_send(w->steps, w->worker, &msg), ERR_OK);
}

#ifdef CUDA_EMU_OBJECT
static const char *progress_timeout = "60"; /* of the next world; a step may take half of it */

static void choose_device(struct world *w)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	cr_assert_eq(options_set(&w->options, "device", "cuda", "test", NULL), ERR_OK);
	cr_assert_eq(options_set(&w->options, "progress_timeout", progress_timeout, "test", NULL), ERR_OK);
	fake_gpu.step_us = 200;
}
#else
static void choose_device(struct world *w)
{
	cr_assert_eq(options_set(&w->options, "device", "cpu", "test", NULL), ERR_OK);
	cr_assert_eq(options_set(&w->options, "dtype", "float32", "test", NULL), ERR_OK);
}
#endif

static bool open_world(struct world *w)
{
	int fds[2];
	const char *dir = reference_dir("refmodels/llama-mha");

	if (!dir)
		return false;
	memset(w, 0, sizeof(*w));
	w->epoch = 100;
	snprintf(w->run_dir, sizeof(w->run_dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(w->run_dir));
	cr_assert_eq(options_init(&w->options), ERR_OK);
	cr_assert_eq(options_set(&w->options, "model", dir, "test", NULL), ERR_OK);
	cr_assert_eq(options_set(&w->options, "run_dir", w->run_dir, "test", NULL), ERR_OK);
	choose_device(w);
	cr_assert_eq(options_set(&w->options, "threads", "1", "test", NULL), ERR_OK);
	cr_assert_eq(options_set(&w->options, "max_num_seqs", "8", "test", NULL), ERR_OK);
	cr_assert_eq(options_set(&w->options, "max_num_batched_tokens", "64", "test", NULL), ERR_OK);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
	w->boot.fd = fds[0];
	w->boot_fd = fds[1];
	struct err_msg em;
	cr_assert_eq(ipc_context_create(&w->ipc, &em), ERR_OK);
	bind_channel(w, "step", IPC_ROUTER, &w->steps);
	bind_channel(w, "tokens", IPC_PULL, &w->tokens);
	cr_assert_eq(pthread_create(&w->thread, NULL, worker_main, w), 0);
	return true;
}

/* The worker has ended, or does so now. */
static void bury_world(struct world *w)
{
	pthread_join(w->thread, NULL);
	ipc_channel_close(&w->steps);
	ipc_channel_close(&w->tokens);
	ipc_context_destroy(&w->ipc);
	options_fini(&w->options);
	close(w->boot_fd);
	close(w->boot.fd);
	char command[128];
	snprintf(command, sizeof(command), "rm -r %s", w->run_dir);
	cr_assert_eq(system(command), 0);
}

static void close_world(struct world *w)
{
	cr_assert_eq(write(w->boot_fd, "stop\n", 5), 5);
	bury_world(w);
	cr_assert_eq(w->e, ERR_OK, "%s", w->em.text);
}

static void add_prompt(struct world *w, u64 seq)
{
	static const u32 tokens[] = {5, 6, 7}, blocks[] = {9};
	struct mirror_add add = {.row = 2,
				 .seq = seq,
				 .tokens = tokens,
				 .token_count = 3,
				 .prompt_count = 3,
				 .blocks = blocks,
				 .block_count = 1};

	mirror_begin(&w->mirror);
	mirror_add(&w->mirror, &add);
	mirror_run(&w->mirror, 2, 3);
	send_step(w);
}

/* Sends `OUTPUTS` steps of one sequence and reads what both channels say. */
static void generate(struct world *w, u64 seq, u32 *out)
{
	for (u32 i = 0; i < OUTPUTS; i++) {
		if (i == 0) {
			add_prompt(w, seq);
		} else {
			mirror_begin(&w->mirror);
			send_step(w);
		}
		struct ipc_msg *m = expect(w, w->steps, IPC_TYPE_RESULT);
		cr_assert_eq(m->epoch, w->epoch);
		cr_assert_eq(m->result.step, i + 1);
		cr_assert_eq(m->result.seq_count, 1);
		cr_assert_eq(m->result.seq[0], seq);
		cr_assert_eq(m->result.position[0], i);
		out[i] = m->result.token[0];
		m = expect(w, w->tokens, IPC_TYPE_RESULT);
		cr_assert_eq(m->epoch, w->epoch);
		cr_assert_eq(m->result.step, i + 1);
		cr_assert_eq(m->result.token[0], out[i]);
		mirror_commit(&w->mirror, &out[i]);
	}
}

Test(worker, both_receivers_get_every_token, .timeout = 120)
{
	static struct world w;
	u32 first[OUTPUTS], again[OUTPUTS];

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	struct ipc_msg *m = expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	cr_assert_eq(m->worker_ready.rank, 0);
	cr_assert_eq(m->worker_ready.vocab_size, 512);
	cr_assert_eq(m->worker_ready.max_model_len, 256);
#ifdef CUDA_EMU_OBJECT
	cr_assert_eq(m->worker_ready.block_count, FAKE_GPU_BLOCKS);
	cr_assert_eq(m->worker_ready.kv_bytes_per_block, 2048);
	cr_assert_eq(m->worker_ready.weight_bytes, 12345);
#else
	cr_assert_eq(m->worker_ready.block_count, 8 * 256 / 16);
	cr_assert_eq(m->worker_ready.kv_bytes_per_block, 2 * 2 * 16 * 64 * 4);
#endif
	cr_assert_eq(m->worker_ready.eos_ids_count, 1);
	cr_assert_eq(m->worker_ready.eos_ids[0], 508);
	send_init(&w);
	generate(&w, 1, first);
	send_init(&w);
	generate(&w, 1, again);
	cr_assert_arr_eq(first, again, sizeof(first));
	close_world(&w);
}

Test(worker, a_lost_state_is_reported_and_an_init_heals_it, .timeout = 120)
{
	static struct world w;
	u32 out[OUTPUTS];

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	generate(&w, 1, out);
	mirror_begin(&w.mirror);
	mirror_end(&w.mirror);
	w.mirror.msg.digest++;
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .step = w.mirror.msg};
	cr_assert_eq(ipc_send(w.steps, w.worker, &msg), ERR_OK);
	struct ipc_msg *m = expect(&w, w.steps, IPC_TYPE_ERROR);
	cr_assert_eq(m->error.code, ERR_DIVERGED);
	cr_assert_eq(m->epoch, w.epoch);
	cr_assert(memmem(m->error.text, m->error.text_count, "digest", 6));
	send_init(&w);
	generate(&w, 2, out);
	close_world(&w);
}

Test(worker, an_init_beyond_its_memory_is_refused, .timeout = 120)
{
	static struct world w;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	struct ipc_msg msg = {.type = IPC_TYPE_INIT, .init = {.block_count = 1000000, .max_model_len = 200}};
	ipc_channel_set_epoch(w.steps, ++w.epoch);
	cr_assert_eq(ipc_send(w.steps, w.worker, &msg), ERR_OK);
	struct ipc_msg *m = expect(&w, w.steps, IPC_TYPE_ERROR);
	cr_assert_eq(m->error.code, ERR_INVALID);
	cr_assert(memmem(m->error.text, m->error.text_count, "block_count is 1000000", 22));
	close_world(&w);
}

Test(worker, a_new_scheduler_gets_a_ready_and_begins_a_new_epoch, .timeout = 120)
{
	static struct world w;
	u32 first[OUTPUTS], again[OUTPUTS];

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	generate(&w, 1, first);
	ipc_channel_close(&w.steps);
	bind_channel(&w, "step", IPC_ROUTER, &w.steps);
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	generate(&w, 1, again);
	cr_assert_arr_eq(first, again, sizeof(first));
	close_world(&w);
}

/* The page is written behind the messages. */
static void wait_work_done(const struct stats_page *page, u64 count)
{
	for (u32 i = 0; i < 10000 && (atomic_load(&page->work_done) < count || atomic_load(&page->work_pending)); i++)
		usleep(1000);
	cr_assert_eq(atomic_load(&page->work_done), count);
}

Test(worker, steps_are_counted_and_waiting_is_time_with_rows_to_run, .timeout = 120)
{
	static struct world w;
	u32 out[OUTPUTS];
	const struct stats_page *page;
	u32 count;
	struct err_msg em;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	generate(&w, 1, out);
	cr_assert_eq(stats_map_all(&page, 1, &count, w.run_dir, &em), ERR_OK);
	cr_assert_eq(count, 1);
	u64 waited = atomic_load(&page->values[STATS_WAITED_NS]);
	usleep(150000); /* and its wait begins a little later than ours */
	mirror_begin(&w.mirror);
	send_step(&w);
	struct ipc_msg *m = expect(&w, w.steps, IPC_TYPE_RESULT);
	cr_assert_geq(m->result.wait_us, 75000);
	expect(&w, w.tokens, IPC_TYPE_RESULT);
	wait_work_done(page, OUTPUTS + 1);
	cr_assert_geq(atomic_load(&page->values[STATS_WAITED_NS]), waited + 75000000);
	cr_assert_gt(atomic_load(&page->values[STATS_FORWARD_NS]), 0);
	stats_unmap(&page, 1);
	close_world(&w);
}

/* Step `n` of an endless run of sequences of OUTPUTS tokens. */
static void send_nth(struct world *w, u64 n)
{
	mirror_begin(&w->mirror);
	if (n % OUTPUTS == 0) {
		static const u32 tokens[] = {5, 6, 7}, blocks[] = {9};
		struct mirror_add add = {.row = 2,
					 .seq = n + 1,
					 .tokens = tokens,
					 .token_count = 3,
					 .prompt_count = 3,
					 .blocks = blocks,
					 .block_count = 1};
		if (n)
			mirror_drop(&w->mirror, 2);
		mirror_add(&w->mirror, &add);
		mirror_run(&w->mirror, 2, 3);
	}
	send_step(w);
}

static bool poll_result(struct ipc_channel *ch, u32 timeout_ms, struct ipc_msg *msg)
{
	u64 end = clock_now_ns() + timeout_ms * 1000000ull;
	struct err_msg em;
	ipc_peer from;

	do {
		enum err e = ipc_recv(ch, &from, msg, &em);
		if (!e && msg->type == IPC_TYPE_RESULT)
			return true;
		if (e == ERR_AGAIN)
			usleep(20);
	} while (clock_now_ns() < end);
	return false;
}

/* The detokenizer reads nothing until the worker stands still; then it reads everything. */
Test(worker, a_slow_detokenizer_stops_the_worker_and_loses_nothing, .timeout = 120)
{
	static struct world w;
	struct ipc_msg msg;
	u64 steps = 0, told = 0;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	expect(&w, w.tokens, IPC_TYPE_HELLO);
	for (bool flows = true; flows && steps < 100000; steps++) {
		send_nth(&w, steps);
		flows = poll_result(w.steps, steps < 10 ? 5000 : 700, &msg);
		cr_assert(!flows || msg.result.step == steps + 1);
		u32 token = flows ? msg.result.token[0] : 0;
		if (flows)
			mirror_commit(&w.mirror, &token);
	}
	cr_assert_lt(steps, 100000, "the queue is bounded");
	while (poll_result(w.tokens, told + 1 < steps ? 5000 : 100, &msg))
		cr_assert_eq(msg.result.step, ++told);
	cr_assert_geq(told, steps - 1);
	close_world(&w);
}

Test(worker, a_rank_outside_the_group_is_refused)
{
	struct err_msg em;
	u32 rank = 9;

	cr_assert_eq(worker_parse_rank(NULL, 2, &rank, &em), ERR_OK);
	cr_assert_eq(rank, 0);
	cr_assert_eq(worker_parse_rank("1", 2, &rank, &em), ERR_OK);
	cr_assert_eq(rank, 1);
	cr_assert_eq(worker_parse_rank("2", 2, &rank, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "0 to 1"));
	cr_assert_eq(worker_parse_rank("x", 2, &rank, &em), ERR_INVALID);
	cr_assert_eq(worker_parse_rank("", 2, &rank, &em), ERR_INVALID);
}

#ifdef CUDA_EMU_OBJECT

/* A step that nobody has seen tokens of before; the sequence of add_prompt goes on. */
static void send_ahead(struct world *w)
{
	static const u32 unseen[MIRROR_ROWS];

	mirror_commit(&w->mirror, unseen);
	mirror_begin(&w->mirror);
	send_step(w);
}

Test(worker, steps_that_came_ahead_are_answered_in_order, .timeout = 120)
{
	enum { AHEAD = 10 }; /* more than there is room for */
	static struct world w;
	const struct stats_page *page;
	struct err_msg em;
	u32 count;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	fake_gpu.step_us = 500000; /* the first one, until the others have come */
	add_prompt(&w, 3);
	while (fake_gpu.sampled == 0)
		usleep(1000);
	fake_gpu.step_us = 10000;
	for (u32 i = 1; i < AHEAD; i++)
		send_ahead(&w);
	for (u32 i = 0; i < AHEAD; i++) {
		struct ipc_msg *m = expect(&w, w.steps, IPC_TYPE_RESULT);
		cr_assert_eq(m->result.step, i + 1);
		cr_assert_eq(m->result.position[0], i);
		cr_assert_eq(m->result.token[0], fake_gpu_token(3, i, 512));
		cr_assert_geq(m->result.forward_us, 9900);
		cr_assert(i == 0 || i >= RUNNER_FLIGHTS_MAX - 1 || m->result.wait_us < 1000);
		m = expect(&w, w.tokens, IPC_TYPE_RESULT);
		cr_assert_eq(m->result.token[0], fake_gpu_token(3, i, 512));
	}
	cr_assert_eq(stats_map_all(&page, 1, &count, w.run_dir, &em), ERR_OK);
	wait_work_done(page, AHEAD);
	cr_assert_eq(atomic_load(&page->work_pending), 0);
	cr_assert_geq(atomic_load(&page->values[STATS_FORWARD_NS]), AHEAD * 9900000u);
	stats_unmap(&page, 1);
	close_world(&w);
}

Test(worker, an_init_amid_queued_steps_ends_their_epoch, .timeout = 120)
{
	static struct world w;
	u32 out[OUTPUTS];

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	fake_gpu.step_us = 500000; /* the first one, which the INIT is to find in flight */
	add_prompt(&w, 3);
	while (fake_gpu.sampled == 0)
		usleep(1000);
	fake_gpu.step_us = 200;
	send_ahead(&w);
	send_ahead(&w);
	send_init(&w);
	generate(&w, 4, out);
	cr_assert_eq(out[1], fake_gpu_token(4, 1, 512));
	close_world(&w);
}

Test(worker, a_device_that_hangs_ends_the_worker_with_a_word_about_it, .timeout = 120)
{
	static struct world w;

	progress_timeout = "1";
	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	fake_gpu.hang_at = 2;
	add_prompt(&w, 3);
	send_ahead(&w);
	expect(&w, w.tokens, IPC_TYPE_RESULT);
	bury_world(&w);
	cr_assert_eq(w.e, ERR_DEVICE);
	cr_assert_neq(strstr(w.em.text, "has not ended step 2 within 500 ms"), NULL, "%s", w.em.text);
	cr_assert_gt(fake_gpu.aborts, 0);
}

Test(worker, a_device_error_ends_the_worker_in_the_words_of_the_device, .timeout = 120)
{
	static struct world w;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	fake_gpu.fail_at = 1;
	add_prompt(&w, 3);
	bury_world(&w);
	cr_assert_eq(w.e, ERR_DEVICE);
	cr_assert_neq(strstr(w.em.text, "an illegal memory access"), NULL, "%s", w.em.text);
}

Test(worker, a_stop_amid_queued_steps_is_no_failure, .timeout = 120)
{
	static struct world w;

	if (!open_world(&w))
		cr_skip_test("no reference models here");
	expect(&w, w.steps, IPC_TYPE_WORKER_READY);
	send_init(&w);
	fake_gpu.step_us = 100000;
	add_prompt(&w, 3);
	send_ahead(&w);
	expect(&w, w.steps, IPC_TYPE_RESULT);
	close_world(&w);
	cr_assert_eq(fake_gpu.destroyed, 1);
}

#endif
