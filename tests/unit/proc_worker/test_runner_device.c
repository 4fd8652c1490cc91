/* Steps of a device, queued ahead and collected: the runner around an engine that the test controls. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/proc_worker/device_fixture.h"
#include "tests/unit/proc_worker/fake_gpu.h"
#include "tests/unit/proc_worker/step_builder.h"
#include "tests/unit/proc_worker/tiny_model.h"

enum { PROMPT = 5, VOCAB = 20 };

static struct runner *runner;
static struct mirror mirror;
static struct tiny_model model;
static struct err_msg em;

static void begin(u64 epoch)
{
	cr_assert_eq(runner_begin(runner, epoch, runner->block_count, 60, &em), ERR_OK, "%s", em.text);
	mirror_init(&mirror, 16);
}

static void open_runner(void)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	tiny_model_write(&model);
	struct runner_config c = device_config(model.dir);
	cr_assert_eq(runner_create(&runner, &c, &em), ERR_OK, "%s", em.text);
	begin(1);
}

static void close_runner(void)
{
	runner_destroy(&runner);
	tiny_model_remove(&model);
}

TestSuite(runner_device, .init = open_runner, .fini = close_runner, .timeout = 120);

static const char *grammar; /* of the rows that are added: an expression; NULL: none */

static void add_row(u32 row, u64 seq, float repetition_penalty)
{
	static const u32 tokens[PROMPT] = {5, 6, 7, 8, 9};
	const u32 blocks[] = {row * 4, row * 4 + 1, row * 4 + 2, row * 4 + 3};
	struct sampling_params params;

	sampling_params_default(&params);
	params.temperature = 0;
	params.max_tokens = 50;
	params.flags = SAMPLING_IGNORE_EOS;
	params.repetition_penalty = repetition_penalty;
	struct mirror_add add = {.row = row,
				 .seq = seq,
				 .tokens = tokens,
				 .token_count = PROMPT,
				 .prompt_count = PROMPT,
				 .blocks = blocks,
				 .block_count = 4,
				 .params = &params,
				 .grammar_kind = grammar ? GRAMMAR_REGEX : GRAMMAR_KIND_NONE,
				 .grammar = grammar};

	mirror_add(&mirror, &add);
	mirror_run(&mirror, row, PROMPT);
}

/* The scheduler's side counts on without having seen a token, as with asynchronous scheduling. */
static enum err submit(void)
{
	static const u32 unseen[MIRROR_ROWS];
	const struct ipc_step *step = mirror_end(&mirror);

	enum err e = runner_submit(runner, step, &em);
	mirror_commit(&mirror, unseen);
	return e;
}

static void submit_next(void)
{
	mirror_begin(&mirror);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

static void collect(void)
{
	struct pollfd fd = {.fd = runner_fd(runner), .events = POLLIN};
	enum err e;

	while ((e = runner_collect(runner, &em)) == ERR_AGAIN)
		cr_assert_eq(poll(&fd, 1, 20000), 1, "nothing came");
	cr_assert_eq(e, ERR_OK, "%s", em.text);
}

static void expect_token(u64 seq, u32 position, u32 token)
{
	const struct ipc_result *r = &runner->result;

	cr_assert_eq(r->seq_count, 1);
	cr_assert_eq(r->seq[0], seq);
	cr_assert_eq(r->position[0], position);
	cr_assert_eq(r->token[0], token);
}

Test(runner_device, steps_are_queued_ahead_and_collected_in_order)
{
	enum { AHEAD = 4 };
	fake_gpu.step_us = 20000;
	fake_gpu.held_from = 1; /* whoever waited for the device would wait for ever */
	mirror_begin(&mirror);
	add_row(3, 77, 1.5f); /* penalties look at earlier tokens, but the device has them */
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	for (u32 i = 1; i < AHEAD; i++)
		submit_next();
	cr_assert_eq(runner->in_flight, AHEAD);
	cr_assert_eq(runner_collect(runner, &em), ERR_AGAIN);
	fake_gpu.held_from = 0;
	u64 last = 0;
	for (u32 i = 0; i < AHEAD; i++) {
		collect();
		cr_assert_eq(runner->result.step, i + 1);
		expect_token(77, i, fake_gpu_token(77, i, VOCAB));
		cr_assert_eq(batch_state_tokens(runner->batch, 3)[PROMPT + i], fake_gpu_token(77, i, VOCAB));
		const struct runner_times *t = &runner->times;
		cr_assert(t->begin <= t->applied && t->applied <= t->queued && t->queued < t->sampled);
		cr_assert_geq(t->built, last, "the device works on one step at a time");
		cr_assert_geq(t->sampled - t->built, 19000000u);
		last = t->sampled;
	}
	cr_assert_eq(runner->in_flight, 0);
	cr_assert_eq(runner_wait(runner, &em), ERR_AGAIN);
	cr_assert(runner_is_live(runner));
}

Test(runner_device, a_row_that_was_dropped_meanwhile_leaves_its_successor_alone)
{
	mirror_begin(&mirror);
	add_row(2, 11, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	submit_next();
	mirror_begin(&mirror);
	mirror_drop(&mirror, 2);
	add_row(2, 12, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	submit_next();
	for (u32 i = 0; i < 4; i++) {
		collect();
		expect_token(i < 2 ? 11 : 12, i % 2, fake_gpu_token(i < 2 ? 11 : 12, i % 2, VOCAB));
	}
	const u32 *tokens = batch_state_tokens(runner->batch, 2);
	cr_assert_eq(tokens[PROMPT], fake_gpu_token(12, 0, VOCAB));
	cr_assert_eq(tokens[PROMPT + 1], fake_gpu_token(12, 1, VOCAB));
}

Test(runner_device, when_full_one_waits_for_the_oldest)
{
	fake_gpu.step_us = 2000;
	mirror_begin(&mirror);
	add_row(1, 8, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	for (u32 i = 1; i < 40; i++) {
		if (runner_is_full(runner)) {
			cr_assert_eq(runner_wait(runner, &em), ERR_OK, "%s", em.text);
			cr_assert_eq(runner_collect(runner, &em), ERR_OK, "%s", em.text);
			u32 at = i - RUNNER_FLIGHTS_MAX;
			expect_token(8, at, fake_gpu_token(8, at, VOCAB));
		}
		submit_next();
	}
}

Test(runner_device, an_init_forgets_what_is_in_flight_and_begins_anew)
{
	fake_gpu.step_us = 10000;
	for (u64 epoch = 2; epoch < 5; epoch++) {
		mirror_begin(&mirror);
		add_row(3, epoch, 1);
		cr_assert_eq(submit(), ERR_OK, "%s", em.text);
		for (u32 i = 0; i < epoch; i++)
			submit_next();
		begin(epoch);
		cr_assert_eq(runner->in_flight, 0);
		cr_assert_eq(runner_collect(runner, &em), ERR_AGAIN);
		cr_assert_eq(runner->batch->row_count, 0);
	}
	cr_assert_eq(fake_gpu.begins, 4);
	mirror_begin(&mirror);
	add_row(4, 9, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	collect();
	cr_assert_eq(runner->result.step, 1);
	expect_token(9, 0, fake_gpu_token(9, 0, VOCAB));
}

Test(runner_device, a_state_error_leaves_the_steps_before_it_good)
{
	mirror_begin(&mirror);
	add_row(0, 1, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	mirror_begin(&mirror);
	mirror_end(&mirror);
	mirror.msg.digest++;
	cr_assert_eq(runner_submit(runner, &mirror.msg, &em), ERR_DIVERGED);
	collect();
	expect_token(1, 0, fake_gpu_token(1, 0, VOCAB));
	cr_assert_eq(runner_look(runner, &em), ERR_OK);
	begin(2);
	mirror_begin(&mirror);
	add_row(0, 2, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	collect();
	expect_token(2, 0, fake_gpu_token(2, 0, VOCAB));
}

/* ---------------------------------------------------------------- grammars */

/* Token n is the n-th letter. */
static void open_constrained(void)
{
	char path[96];

	runner_destroy(&runner);
	snprintf(path, sizeof(path), "%s/tokenizer.json", model.dir);
	FILE *f = fopen(path, "w");
	cr_assert_not_null(f);
	fprintf(f, "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
	for (u32 i = 0; i < VOCAB; i++)
		fprintf(f, "%s\"%c\": %u", i ? ", " : "", (char)('a' + i), i);
	fprintf(f, "}}}");
	fclose(f);
	struct runner_config c = device_config(model.dir);
	c.constrains = true;
	cr_assert_eq(runner_create(&runner, &c, &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(constraints_problem(runner->constraints), "");
	unlink(path);
	begin(1);
}

Test(runner_device, a_constrained_row_waits_for_its_token_and_holds_up_no_layers)
{
	open_constrained();
	fake_gpu.held_from = 1;
	mirror_begin(&mirror);
	add_row(1, 8, 1);
	grammar = "(cog){9}";
	add_row(3, 77, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	cr_assert(!runner->awaits_tokens, "its first token waits for none");
	cr_assert_eq(runner->constrained->failure_count, 0, "%s", runner->constrained->failures[0].text.text);
	submit_next();
	cr_assert(runner->awaits_tokens && runner_is_full(runner));
	for (u32 i = 0; i < 12; i++) {
		fake_gpu.held_from = i + 2;
		collect();
		const struct ipc_result *r = &runner->result;
		cr_assert_eq(r->step, i + 1);
		cr_assert_eq(r->token[0], fake_gpu_token(8, i, VOCAB), "who has no grammar gets what it gets alone");
		cr_assert_eq(r->token[1], (u32)("cog"[i % 3] - 'a'), "output %u is %u", i, r->token[1]);
		cr_assert_eq(runner_collect(runner, &em), ERR_AGAIN, "the rest of the step behind it is queued now");
		cr_assert(!runner_is_full(runner));
		submit_next();
		cr_assert(runner->awaits_tokens);
	}
	cr_assert_eq(runner->in_flight, 2);
	fake_gpu.held_from = 0;
}

Test(runner_device, steps_are_queued_ahead_as_ever_when_the_constrained_row_has_gone)
{
	open_constrained();
	mirror_begin(&mirror);
	add_row(1, 8, 1);
	grammar = "(cog){9}";
	add_row(3, 77, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	mirror_begin(&mirror);
	mirror_drop(&mirror, 3);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	cr_assert(!runner->awaits_tokens);
	submit_next();
	cr_assert_eq(runner->in_flight, 3);
	collect();
	collect();
	expect_token(8, 1, fake_gpu_token(8, 1, VOCAB));
}

Test(runner_device, an_init_ends_a_step_that_waits_for_tokens)
{
	open_constrained();
	fake_gpu.step_us = 5000;
	for (u64 epoch = 2; epoch < 5; epoch++) {
		mirror_begin(&mirror);
		grammar = "(cog){9}";
		add_row(3, epoch, 1);
		cr_assert_eq(submit(), ERR_OK, "%s", em.text);
		submit_next();
		cr_assert(runner->awaits_tokens);
		begin(epoch);
		cr_assert_eq(runner->in_flight, 0);
		cr_assert(!runner_is_full(runner));
		cr_assert_eq(runner_collect(runner, &em), ERR_AGAIN);
	}
	mirror_begin(&mirror);
	add_row(4, 9, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	collect();
	expect_token(9, 0, 'c' - 'a');
}

/* ---------------------------------------------------------------- devices that fail */

enum { IMPATIENT_MS = 400 };

static void open_impatient(void)
{
	struct runner_config c = device_config(model.dir);

	runner_destroy(&runner);
	c.step_timeout_ms = IMPATIENT_MS;
	cr_assert_eq(runner_create(&runner, &c, &em), ERR_OK, "%s", em.text);
	fake_gpu.destroyed = 0;
	begin(1);
}

static void submit_two(void)
{
	mirror_begin(&mirror);
	add_row(0, 1, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	submit_next();
}

static enum err look_for_trouble(u64 ms_max)
{
	u64 end = clock_now_ns() + ms_max * 1000000;
	struct pollfd fd = {.fd = runner_fd(runner), .events = POLLIN};
	enum err e = ERR_OK;

	while (!e && clock_now_ns() < end) {
		poll(&fd, 1, 20);
		e = runner_collect(runner, &em);
		if (e == ERR_AGAIN)
			e = runner_look(runner, &em);
	}
	return e;
}

Test(runner_device, the_words_of_a_step_that_failed_arrive)
{
	fake_gpu.fail_at = 2;
	submit_two();
	collect();
	cr_assert_eq(look_for_trouble(20000), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "step 2 on CUDA device 0"), NULL, "%s", em.text);
	cr_assert_neq(strstr(em.text, "an illegal memory access"), NULL, "%s", em.text);
	cr_assert_eq(runner_collect(runner, &em), ERR_DEVICE, "and it stays so");
	cr_assert_eq(runner_begin(runner, 2, runner->block_count, 60, &em), ERR_DEVICE);
	runner_destroy(&runner);
	cr_assert_eq(fake_gpu.destroyed, 0, "what came behind that step may never end");
}

Test(runner_device, a_step_that_cannot_be_queued_names_device_and_step)
{
	fake_gpu.refuse_at = 1;
	mirror_begin(&mirror);
	add_row(0, 1, 1);
	cr_assert_eq(submit(), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "the fake refuses"), NULL, "%s", em.text);
	cr_assert_neq(strstr(em.text, "step 1 on CUDA device 0"), NULL, "%s", em.text);
	mirror_begin(&mirror);
	cr_assert_eq(submit(), ERR_DIVERGED, "the state is lost");
	cr_assert_eq(runner_begin(runner, 2, runner->block_count, 60, &em), ERR_DEVICE, "and no INIT helps");
	cr_assert_neq(strstr(em.text, "the fake refuses"), NULL, "%s", em.text);
}

/* The watch says why, and then aborts. */
static void expect_abort(void)
{
	u64 end = clock_now_ns() + 20000000000u;

	while (!fake_gpu.aborts && clock_now_ns() < end)
		poll(NULL, 0, 1);
	cr_assert_eq(fake_gpu.aborts, 1);
}

Test(runner_device, a_step_that_hangs_is_aborted_after_the_timeout)
{
	open_impatient();
	fake_gpu.hang_at = 2;
	u64 start = clock_now_ns();
	submit_two();
	collect();
	cr_assert_eq(look_for_trouble(20000), ERR_DEVICE);
	u64 took_ms = (clock_now_ns() - start) / 1000000;
	cr_assert(took_ms >= IMPATIENT_MS && took_ms < 20000, "%llu ms", (unsigned long long)took_ms);
	cr_assert_neq(strstr(em.text, "has not ended step 2 within 400 ms (half of --progress-timeout)"), NULL, "%s", em.text);
	expect_abort();
}

/* Half of the default --progress-timeout would be 30 s. */
Test(runner_device, a_step_that_takes_far_longer_than_its_like_is_aborted_within_seconds)
{
	enum { SETTLED = 5 };
	unsigned long long limit_ms = 0;

	fake_gpu.step_us = 1000;
	fake_gpu.hang_at = SETTLED + 1;
	mirror_begin(&mirror);
	add_row(0, 1, 1);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	for (u32 i = 1; i < SETTLED; i++) {
		collect();
		submit_next();
	}
	collect();
	submit_next();
	u64 start = clock_now_ns();
	cr_assert_eq(look_for_trouble(50000), ERR_DEVICE);
	u64 took_ms = (clock_now_ns() - start) / 1000000;
	const char *says = strstr(em.text, "has not ended step 6 within ");
	cr_assert(says && sscanf(says, "has not ended step 6 within %llu ms", &limit_ms) == 1, "%s", em.text);
	/* 4000, unless the machine took 20 ms and more for what takes one */
	cr_assert(limit_ms >= 4000 && limit_ms < 30000 && took_ms + 100 >= limit_ms, "%llu ms of %llu",
		  (unsigned long long)took_ms, limit_ms);
	cr_assert_neq(strstr(says, "(steps of its size take "), NULL, "%s", em.text);
	expect_abort();
}

Test(runner_device, who_waits_for_a_step_that_hangs_does_not_hang)
{
	open_impatient();
	fake_gpu.hang_at = 1;
	submit_two();
	cr_assert_eq(runner_begin(runner, 2, runner->block_count, 60, &em), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "has not ended step 1"), NULL, "%s", em.text);
}

Test(runner_device, a_device_that_does_not_even_abort_is_left_behind)
{
	open_impatient();
	fake_gpu.hang_at = 1;
	fake_gpu.stubborn = true;
	submit_two();
	u64 start = clock_now_ns();
	runner_destroy(&runner);
	cr_assert_lt(clock_now_ns() - start, 30000000000u);
	cr_assert_eq(fake_gpu.aborts, 1);
	cr_assert_eq(fake_gpu.destroyed, 0, "its thread still uses it");
}
