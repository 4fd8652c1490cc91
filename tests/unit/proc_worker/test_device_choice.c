/* Which device a worker takes, and what it sizes by it: the runner around an engine that the test controls. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/proc_worker/device_fixture.h"
#include "tests/unit/proc_worker/fake_gpu.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/tiny_model.h"

static struct runner *runner;
static struct tiny_model model;
static struct err_msg em;

static enum err create_with(enum option_device device, enum option_dtype dtype)
{
	struct runner_config c = device_config(model.dir);
	c.device = device;
	c.dtype = dtype;
	tiny_model_write(&model);
	enum err e = runner_create(&runner, &c, &em);
	tiny_model_remove(&model);
	return e;
}

TestSuite(device_choice, .timeout = 120);

Test(device_choice, auto_takes_a_device_that_is_there)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	cr_assert_eq(create_with(OPTION_DEVICE_AUTO, OPTION_DTYPE_AUTO), ERR_OK, "%s", em.text);
	cr_assert_str_eq(runner_device_kind(runner), "cuda");
	cr_assert_eq(runner->block_count, FAKE_GPU_BLOCKS);
	cr_assert_eq(runner->weight_bytes, 12345);
	cr_assert_eq(runner->dtype, KERN_BF16, "a float32 checkpoint, too");
	runner_destroy(&runner);
	cr_assert_eq(fake_gpu.created, 1);
	cr_assert_eq(fake_gpu.destroyed, 1);
}

Test(device_choice, auto_computes_on_the_cpu_what_the_device_cannot)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	fake_gpu.unsupported = true;
	cr_assert_eq(create_with(OPTION_DEVICE_AUTO, OPTION_DTYPE_AUTO), ERR_OK, "%s", em.text);
	cr_assert_str_eq(runner_device_kind(runner), "cpu");
	cr_assert_eq(runner->dtype, KERN_F32, "as the checkpoint is stored");
	cr_assert_eq(runner_fd(runner), -1);
	runner_destroy(&runner);
	cr_assert_eq(create_with(OPTION_DEVICE_CUDA, OPTION_DTYPE_AUTO), ERR_UNSUPPORTED);
	cr_assert_neq(strstr(em.text, "the fake has no kernels"), NULL, "%s", em.text);
	cr_assert_eq(fake_gpu.created, 0);
}

static enum err create_with_swap_space(double gib)
{
	struct runner_config c = device_config(model.dir);
	c.swap_space = gib;
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	tiny_model_write(&model);
	enum err e = runner_create(&runner, &c, &em);
	tiny_model_remove(&model);
	return e;
}

Test(swap_space, is_what_was_asked_for_or_at_most_the_size_of_the_cache)
{
	cr_assert_eq(create_with_swap_space(0), ERR_OK, "%s", em.text);
	cr_assert_eq(runner->host_block_count, 0);
	runner_destroy(&runner);
	cr_assert_eq(create_with_swap_space(0.001), ERR_OK, "%s", em.text);
	cr_assert_eq(runner->host_block_count, 524, "of 2048 bytes");
	cr_assert_eq(fake_gpu.host_blocks, 524);
	runner_destroy(&runner);
	cr_assert_eq(create_with_swap_space(-1), ERR_OK, "%s", em.text);
	cr_assert_eq(runner->host_block_count, FAKE_GPU_BLOCKS);
	runner_destroy(&runner);
	cr_assert_eq(create_with_swap_space(60000), ERR_NO_SPACE);
	cr_assert_neq(strstr(em.text, "--swap-space asks for 60000 GiB"), NULL, "%s", em.text);
}

Test(swap_space, that_cannot_be_pinned_is_an_error_for_who_asked_and_none_for_others)
{
	fake_gpu.no_host_blocks = true;
	cr_assert_eq(create_with_swap_space(-1), ERR_OK, "%s", em.text);
	cr_assert_eq(runner->host_block_count, 0);
	cr_assert_eq(runner->batch->limits.host_block_count, 0);
	runner_destroy(&runner);
	cr_assert_eq(create_with_swap_space(0.001), ERR_NO_MEMORY);
	cr_assert_neq(strstr(em.text, "--swap-space 0.001: no pinned memory"), NULL, "%s", em.text);
}

/* What the scheduler is told does not depend on what computes. */
Test(swap_space, of_models_that_keep_a_state_is_none_and_saved_states_are_as_many_as_on_the_cpu)
{
	static const char text[] = "{\"architectures\": [\"Lfm2ForCausalLM\"], \"vocab_size\": 20, \"hidden_size\": 64, \"intermediate_size\": 96, "
				   "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, "
				   "\"norm_eps\": 1e-5, \"torch_dtype\": \"bfloat16\", \"conv_L_cache\": 3, \"conv_bias\": false, "
				   "\"block_auto_adjust_ff_dim\": false, \"layer_types\": [\"conv\", \"full_attention\"]}";
	static const enum option_device devices[] = {OPTION_DEVICE_CUDA, OPTION_DEVICE_CPU};
	struct random_model random;

	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	random_model_write(&random, text, 3);
	for (u32 i = 0; i < 4; i++) {
		struct runner_config c = device_config(model.dir);
		c.model_dir = random.dir;
		c.device = devices[i % 2];
		c.swap_space = 0.01;
		c.saves_states = i < 2;
		cr_assert_eq(runner_create(&runner, &c, &em), ERR_OK, "%s", em.text);
		cr_assert_eq(runner->device != NULL, c.device == OPTION_DEVICE_CUDA);
		cr_assert_eq(runner->host_block_count, 0);
		cr_assert_eq(runner->state_slots, i < 2 ? 32 : 0, "%u", runner->state_slots);
		cr_assert_eq(runner->batch->limits.state_slots, runner->state_slots);
		cr_assert(runner->batch->limits.recurrent);
		runner_destroy(&runner);
	}
	cr_assert_eq(fake_gpu.host_blocks, 0);
	random_model_remove(&random);
}

Test(device_choice, without_devices_auto_is_the_cpu_and_cuda_an_error)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	setenv("CUDA_EMU_DEVICES", "0", 1);
	cr_assert_eq(create_with(OPTION_DEVICE_AUTO, OPTION_DTYPE_AUTO), ERR_OK, "%s", em.text);
	cr_assert_str_eq(runner_device_kind(runner), "cpu");
	runner_destroy(&runner);
	cr_assert_eq(create_with(OPTION_DEVICE_CUDA, OPTION_DTYPE_AUTO), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "--device cuda: "), NULL, "%s", em.text);
	cr_assert_neq(strstr(em.text, "no CUDA-capable device"), NULL, "%s", em.text);
}

Test(device_choice, without_kernels_auto_is_the_cpu_and_cuda_an_error)
{
	setenv("TERCET_CUDA_KERNELS", "", 1);
	cr_assert_eq(create_with(OPTION_DEVICE_AUTO, OPTION_DTYPE_AUTO), ERR_OK, "%s", em.text);
	cr_assert_str_eq(runner_device_kind(runner), "cpu");
	runner_destroy(&runner);
	cr_assert_eq(create_with(OPTION_DEVICE_CUDA, OPTION_DTYPE_AUTO), ERR_NOT_FOUND);
	cr_assert_neq(strstr(em.text, "this build has no CUDA kernels"), NULL, "%s", em.text);
}

Test(device_choice, each_worker_of_a_machine_needs_a_device)
{
	struct device d;

	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	setenv("CUDA_EMU_DEVICES", "2", 1);
	cr_assert_eq(device_choose(&d, OPTION_DEVICE_CUDA, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_neq(strstr(d.info.name, "CUDA device 1 of 2"), NULL, "%s", d.info.name);
	for (u32 i = 0; i < 2; i++) { /* the first and the second of four find the same */
		cr_assert_eq(device_choose(&d, OPTION_DEVICE_AUTO, i, 4, &em), ERR_OK, "%s", em.text);
		cr_assert_null(d.api);
	}
	cr_assert_eq(device_choose(&d, OPTION_DEVICE_CUDA, 0, 4, &em), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "the 4 workers of this machine need a device each, and 2 are there"), NULL, "%s",
		      em.text);
	cr_assert_neq(strstr(em.text, "--tensor-parallel-size 2 fits"), NULL, "%s", em.text);
	cr_assert_eq(device_choose(&d, OPTION_DEVICE_CPU, 0, 4, &em), ERR_OK);
	cr_assert_null(d.api);
}
