/* A device's engine on the emulated device, step by step: what a diff brings, what start keeps, what is refused, what goes
 * wrong on the way. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proc_worker/gpu/gpu_priv.h"
#include "tests/unit/proc_worker/gpu_fixture.h"

/* ---------------------------------------------------------------- diffs */

Test(gpu_steps, copied_blocks_hold_what_their_sources_did, .timeout = 120)
{
	static const u32 blocks[] = {30, 3, 11}, copies[] = {7, 22, 1};
	u32 tokens[17];

	open_model(LLAMA, 17);
	make_tokens(tokens, 17);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 17, 0, blocks, 3);
	mirror_run(&run.mirror, 0, 17);
	struct gpu_result r = do_step(mirror_end(&run.mirror));
	cr_assert_eq(r.count, 1);
	u32 first = r.tokens[0];
	mirror_begin(&run.mirror);
	mirror_drop(&run.mirror, 0);
	mirror_copy(&run.mirror, blocks[0], copies[0]);
	mirror_copy(&run.mirror, blocks[1], copies[1]);
	add_row(2, tokens, 17, 16, copies, 3);
	r = do_step(mirror_end(&run.mirror));
	cr_assert_eq(r.count, 1);
	cr_assert_eq(r.tokens[0], first);
	close_model();
}

/* As if sequences were longer than what goes up at once. */
Test(gpu_steps, a_diff_larger_than_a_piece_arrives_whole, .timeout = 120)
{
	static struct driver_request whole[REQUESTS];
	static struct sampling_params params;

	random_model_write(&model, LLAMA, 18);
	set_params(&params);
	for (u32 pieces = 0; pieces < 2; pieces++) {
		struct device_run_config c = gpu_test_config();
		u32 count = make_requests(REQUESTS, 101, 6);
		for (u32 i = 0; i < count; i++)
			requests[i].params = &params;
		device_run_open(&run, &c);
		if (pieces)
			run.gpu->stage_bytes = 110 * sizeof(u32); /* a prompt of 48 tokens, not two */
		device_run_requests(&run, requests, count);
		device_run_close(&run);
		if (!pieces)
			memcpy(whole, requests, sizeof(whole));
		else
			expect_same(whole, requests, count, "in pieces");
	}
	random_model_remove(&model);
}

/* An empty diff is nothing at all on the way up, but that the rule holds again after exceptions. */
Test(gpu_steps, a_step_in_which_nothing_changes_uploads_nothing, .timeout = 120)
{
	static const u32 blocks[] = {0, 1, 2};
	static const u32 tokens[] = {5, 6, 7, 8};

	open_model(LLAMA, 19);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 4, 0, blocks, 3);
	mirror_run(&run.mirror, 0, 4);
	(void)do_step(mirror_end(&run.mirror));
	u32 used = run.gpu->next_stage;
	for (u32 i = 0; i < 6; i++) {
		mirror_begin(&run.mirror);
		struct gpu_result r = do_step(mirror_end(&run.mirror));
		cr_assert_eq(r.count, 1);
	}
	cr_assert_eq(run.gpu->next_stage, used);
	close_model();
}

Test(gpu_steps, begin_empties_the_batch, .timeout = 120)
{
	static const u32 blocks[] = {4, 9};
	static const u32 tokens[] = {5, 6, 7, 8, 9};
	struct device_run_config c = gpu_test_config();
	u32 first[2];

	open_model(LLAMA, 20);
	for (u32 epoch = 0; epoch < 2; epoch++) {
		OK(gpu_begin(run.gpu, &em));
		OK(batch_state_reset(run.batch, c.blocks, c.max_model_len, &em));
		mirror_init(&run.mirror, c.block_size);
		mirror_begin(&run.mirror);
		add_row(epoch, tokens, 5, 0, blocks, 2);
		mirror_run(&run.mirror, epoch, 5);
		struct gpu_result r = do_step(mirror_end(&run.mirror));
		cr_assert_eq(r.count, 1); /* and not the row of the epoch before */
		first[epoch] = r.tokens[0];
		cr_assert_eq(gpu_result(run.gpu, 2, &r, &em), ERR_NOT_FOUND);
		cr_assert_eq(gpu_wait(run.gpu, 2, &em), ERR_NOT_FOUND);
	}
	cr_assert_eq(first[0], first[1]);
	close_model();
}

/* With a place to remember them products are measured once: the second start finds what the first one wrote.
 */
Test(gpu_steps, measured_products_are_kept_in_the_weights_cache, .timeout = 120)
{
	struct device_run_config c = gpu_test_config();
	struct stat first, second;
	char dir[96], path[128];
	struct gpu *gpu;

	random_model_write(&model, LLAMA, 26);
	device_run_read(&run, &c);
	snprintf(dir, sizeof(dir), "%s/cache", model.dir);
	snprintf(path, sizeof(path), "%s/products.cublaslt", dir);
	run.plan.cache_dir = dir;
	struct gpu_config gc = device_run_config(&run);
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	cr_assert_eq(stat(path, &first), 0);
	cr_assert_gt(first.st_size, 8 * 16); /* four matrices for two sizes of steps */
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	cr_assert_eq(stat(path, &second), 0);
	cr_assert_eq(first.st_ino, second.st_ino, "measured again");
	run.plan.cache_dir = "/proc/nowhere"; /* a warning, not an error */
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- refusals */

Test(gpu_steps, what_the_kernels_cannot_is_refused_by_name, .timeout = 120)
{
	open_model(LLAMA, 21);
	struct gpu_config good = device_run_config(&run), bad = good;
	struct model_config m = run.model;
	bad.model = &m;
	run.plan.dtype = KERN_F32;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--dtype bfloat16, or --device cpu");
	run.plan.dtype = KERN_BF16;
	bad.kv_dtype = KERN_F32;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--kv-cache-dtype");
	bad.kv_dtype = KERN_BF16;
	bad.limits.block_size = 12;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--block-size 12");
	bad.limits.block_size = 8;
	m.head_dim = 36;
	expect_refusal(&bad, ERR_UNSUPPORTED, "36 values");
	m.head_dim = 32;
	m.hidden = 40;
	expect_refusal(&bad, ERR_UNSUPPORTED, "hidden_size is 40");
	close_model();
}

Test(gpu_steps, too_little_memory_is_explained_with_what_would_fit, .timeout = 120)
{
	open_model(LLAMA, 22);
	struct gpu_config bad = device_run_config(&run);
	bad.kv_cache_memory = 6 * gpu_kv_block_bytes(run.gpu); /* of 8 tokens each */
	expect_refusal(&bad, ERR_NO_SPACE, "--max-model-len 48");
	bad.kv_cache_memory = 1ull << 40;
	expect_refusal(&bad, ERR_NO_SPACE, "at most");
	bad.kv_cache_memory = 0;
	bad.memory_utilization = 0.001;
	expect_refusal(&bad, ERR_NO_SPACE, "a higher --gpu-memory-utilization would do");
	close_model();
}

Test(gpu_steps, weights_that_do_not_fit_are_refused_with_the_number, .timeout = 120)
{
	struct device_run_config c = gpu_test_config();

	random_model_write(&model, LLAMA, 23);
	setenv("CUDA_EMU_MEMORY", "33554432", 1);
	device_run_read(&run, &c);
	struct gpu_config bad = device_run_config(&run);
	struct kern_device_info now;
	void *rest;
	OK(run.device.api->memory(&now, &em));
	OK(run.device.api->alloc(&rest, now.memory_free - 100000, &em));
	expect_refusal(&bad, ERR_NO_SPACE, "--quantization int8");
	run.device.api->release(rest);
	expect_refusal(&bad, ERR_NO_SPACE, "--max-num-batched-tokens");
	close_model();
}

/* ---------------------------------------------------------------- what goes wrong on the way */

Test(gpu_steps, a_fault_of_the_device_ends_the_step_in_its_words, .timeout = 120)
{
	static const u32 blocks[] = {0}, tokens[] = {5, 6, 7};
	struct device_run_config c = gpu_test_config();

	random_model_write(&model, LLAMA, 24);
	/* cudaErrorLaunchFailure; the calls before are those that load the 21 parts of the weights, but for
	 * two */
	setenv("CUDA_EMU_INJECT", "cudaEventSynchronize:20:719", 1);
	device_run_open(&run, &c);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 3, 0, blocks, 1);
	mirror_run(&run.mirror, 0, 3);
	const struct ipc_step *s = mirror_end(&run.mirror);
	OK(batch_state_apply(run.batch, s, &em));
	OK(gpu_forward(run.gpu, run.batch, s, &em));
	OK(gpu_sample(run.gpu, run.batch, NULL, &em));
	cr_assert_eq(gpu_wait(run.gpu, 1, &em), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "cudaErrorLaunchFailure"), NULL, "%s", em.text);
	random_model_remove(&model);
}

static const struct kern_device_api *counted;
static u32 released;

static void count_released(void *p)
{
	released += p != NULL;
	counted->host_release(p);
}

Test(gpu_steps, swap_space_that_fails_on_the_way_keeps_no_pinned_memory, .timeout = 120)
{
	struct device_run_config c = gpu_test_config();

	random_model_write(&model, LLAMA, 24);
	setenv("CUDA_EMU_INJECT", "cudaStreamCreateWithFlags:3:2", 1); /* the swap's; cudaErrorMemoryAllocation */
	device_run_read(&run, &c);
	counted = run.device.api;
	struct kern_device_api api = *counted;
	api.host_release = count_released;
	run.device.api = &api;
	struct gpu_config gc = device_run_config(&run);
	OK(gpu_create(&run.gpu, &gc, &em));
	OK(gpu_take_blocks(run.gpu, c.blocks, &em));
	released = 0;
	cr_assert_eq(gpu_take_host_blocks(run.gpu, 4, &em), ERR_NO_MEMORY);
	cr_assert_eq(released, 1);
	close_model();
}
