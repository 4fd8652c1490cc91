/* A device's engine on the emulated device, of models some of whose layers keep a state of each sequence: every family against the CPU, and
 * states that are saved in the middle of a step, loaded, and copied. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_worker/gpu/gpu_priv.h"
#include "tests/unit/proc_worker/gpu_fixture.h"

#define SIZES                                                                                                                      \
	"\"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
	"\"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3"
#define TWO SIZES ", \"num_hidden_layers\": 2, \"head_dim\": 32"
#define LINEAR(key, value, key_heads, heads)                                                                                      \
	", \"rms_norm_eps\": 1e-6, \"layer_types\": [\"linear_attention\", \"full_attention\"], \"linear_conv_kernel_dim\": 4, "    \
	"\"linear_key_head_dim\": " #key ", \"linear_value_head_dim\": " #value ", \"linear_num_key_heads\": " #key_heads             \
	", \"linear_num_value_heads\": " #heads
#define MIXTURE ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 48"
#define FAMILY(name, more) "{\"architectures\": [\"" name "\"], " TWO more "}"
#define QWEN FAMILY("Qwen3_5ForCausalLM", LINEAR(16, 16, 2, 4))
#define SHORT_CONV(more) ", \"norm_eps\": 1e-5, \"layer_types\": [\"conv\", \"full_attention\"], \"conv_L_cache\": 3" more
#define LFM2(more) FAMILY("Lfm2ForCausalLM", SHORT_CONV(", \"block_auto_adjust_ff_dim\": false" more))
#define MAMBA(groups, state)                                                                                               \
	", \"rms_norm_eps\": 1e-5, \"mamba_d_conv\": 4, \"mamba_d_head\": 16, \"mamba_n_heads\": 8, \"mamba_expand\": 2, \"mamba_n_groups\": " \
	#groups ", \"mamba_d_state\": " #state
#define GRANITE(more)                                                                                                          \
	FAMILY("GraniteMoeHybridForCausalLM", MAMBA(1, 16) ", \"layer_types\": [\"mamba\", \"attention\"], \"embedding_multiplier\": 3.0, " \
					      "\"residual_multiplier\": 0.4, \"attention_multiplier\": 0.1, \"logits_scaling\": 2.0" more)
/* The first product of a layer with a state has an odd number of outputs. */
#define NEMOTRON(pattern, layers, more)                                                                                              \
	"{\"architectures\": [\"NemotronHForCausalLM\"], " SIZES ", \"head_dim\": 32, \"num_hidden_layers\": " #layers                  \
	", \"hybrid_override_pattern\": \"" pattern "\", \"layer_norm_epsilon\": 1e-5, \"mamba_num_heads\": 3, \"mamba_head_dim\": 32, "  \
	"\"ssm_state_size\": 18, \"n_groups\": 3, \"conv_kernel\": 4, \"expand\": 2, \"mlp_hidden_act\": \"relu2\"" more "}"
#define ROUTED                                                                                                                      \
	", \"n_routed_experts\": 4, \"n_shared_experts\": 1, \"num_experts_per_tok\": 2, \"n_group\": 1, \"topk_group\": 1, "            \
	"\"moe_intermediate_size\": 48, \"moe_shared_expert_intermediate_size\": 40, \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.5"

/* ---------------------------------------------------------------- families */

Test(gpu_recurrent, every_family_answers_as_on_the_cpu, .timeout = 120)
{
	static const struct {
		const char *what, *text;
		double worst; /* 0: 0.2 */
	} families[] = {
		{"the delta rule, gates of queries", QWEN},
		{"heads of odd sizes, a bias of q, k, v and gates", FAMILY("Qwen3_5ForCausalLM", LINEAR(12, 20, 4, 8) ", \"attention_bias\": true")},
		{"norms behind blocks of attention alone, a beta of two",
		 FAMILY("OlmoHybridForCausalLM", LINEAR(16, 32, 4, 4) ", \"linear_allow_neg_eigval\": true, \"rope_parameters\": {\"rope_theta\": null}"),
		 .worst = 0.25}, /* a CPU that rounds no inputs of products is so far away */
		{"short convolutions", LFM2("")},
		{"short convolutions with biases", LFM2(", \"conv_bias\": true")},
		{"short convolutions, windows, one gate a head",
		 "{\"architectures\": [\"Lfm3ForCausalLM\"], " SIZES
		 ", \"num_hidden_layers\": 4, \"head_dim\": 32, \"norm_eps\": 1e-5, \"sliding_window\": 8, \"rope_parameters\": {\"sliding_attention\": "
		 "{\"rope_type\": \"default\", \"rope_theta\": 10000}, \"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000, "
		 "\"partial_rotary_factor\": 0.5}}, \"layer_types\": [\"conv\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"]}",
		 .worst = 0.3}, /* of norms behind blocks, in twice as many layers */
		{"Mamba 2", GRANITE(", \"num_local_experts\": 0, \"shared_intermediate_size\": 96")},
		{"Mamba 2 with several keys, biases",
		 FAMILY("BambaForCausalLM", MAMBA(2, 20) ", \"attn_layer_indices\": [1], \"attn_rotary_emb\": 16, \"mamba_proj_bias\": true, "
						       "\"mlp_bias\": true, \"time_step_limit\": [0.1, 0.9]")},
		{"one block in each layer, an MLP last", NEMOTRON("M*M-", 4, ", \"mlp_bias\": true")},
	};

	for (size_t i = 0; i < COUNT_OF(families); i++)
		check_family(families[i].what, families[i].text, families[i].worst > 0 ? families[i].worst : 0.2);
}

Test(gpu_recurrent, mixtures_of_experts_answer_as_on_the_cpu, .timeout = 120)
{
	check_experts("Qwen 3.5", FAMILY("Qwen3_5MoeForCausalLM", LINEAR(16, 16, 2, 4) MIXTURE), 0.1);
	check_experts("Qwen 3 Next", FAMILY("Qwen3NextForCausalLM", LINEAR(8, 16, 2, 4) MIXTURE), 0.1);
	check_experts("LFM2", FAMILY("Lfm2MoeForCausalLM", SHORT_CONV(", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
								      "\"num_dense_layers\": 1, \"norm_topk_prob\": true, \"use_expert_bias\": true")),
		      0.1);
	check_experts("Granite", GRANITE(", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"shared_intermediate_size\": 48"), 0.1);
	check_experts("Nemotron H", NEMOTRON("ME*", 3, ROUTED), 0.1);
}

/* The CPU rounds inputs to 8 bits, too. */
Test(gpu_recurrent, quantized_weights_answer_as_on_the_cpu, .timeout = 120)
{
	static const char *const texts[] = {QWEN, NEMOTRON("M*M-", 4, "")};

	for (size_t i = 0; i < COUNT_OF(texts); i++) {
		random_model_write(&model, texts[i], 15);
		struct device_run_config c = gpu_test_config();
		u32 count = make_requests(3, 101, 5);
		c.matrix_dtype = KERN_I8;
		c.kv_dtype = KERN_I8;
		run_model(&c, count);
		expect_near(&c, count, 0.8);
		random_model_remove(&model);
	}
}

/* Of a part whose rows are not side by side in the file, too: queries and their gates. */
Test(gpu_recurrent, fp8_checkpoints_stay_fp8_and_answer_as_on_the_cpu, .timeout = 120)
{
	static const char text[] =
		"{\"architectures\": [\"Qwen3_5ForCausalLM\"], \"vocab_size\": 101, \"hidden_size\": 128, \"intermediate_size\": 128, "
		"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"num_hidden_layers\": 2, "
		"\"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\"" LINEAR(32, 32, 2, 4)
		", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 128]}}";
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(3, 101, 5);

	random_model_write(&model, text, 25);
	device_run_open(&run, &c);
	for (u32 i = 0; i < 2; i++) {
		const struct layer_weights *w = &run.gpu->weights.layers[i];
		cr_expect(w->qkv.dtype == KERN_F8E4M3 && w->attn_out.dtype == KERN_F8E4M3 && w->down.dtype == KERN_F8E4M3, "%s, %s",
			  kern_dtype_name(w->qkv.dtype), kern_dtype_name(w->attn_out.dtype));
	}
	device_run_requests(&run, requests, count);
	device_run_close(&run);
	expect_near(&c, count, 0.5);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- ways through a step */

/* Saving does not change the row that is saved, and no step but the one that says so saves. */
Test(gpu_recurrent, answers_do_not_depend_on_graphs_steps_in_flight_or_saves, .timeout = 120)
{
	static const struct step_way ways[] = {{"as it comes", false, 0, 3}, {"graphs, two steps ahead", true, 2, 3}, {"six steps ahead", true, 6, 3}};

	check_ways(QWEN, ways, COUNT_OF(ways));
}

static void check_preempted(const char *text, u32 save_every)
{
	random_model_write(&model, text, 13);
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(REQUESTS, 101, 16);
	c.preempt_every = 9;
	c.save_every = save_every;
	c.chunk = 11;
	run_model(&c, count);
	cr_assert_gt(run.rows.next_seq, count, "nothing was preempted");
	cr_assert(save_every ? run.saves > 20 && run.loads > 2 : run.loads == 0, "%u saves, %u loads", run.saves, run.loads);
	expect_near(&c, count, 0.2);
	random_model_remove(&model);
}

Test(gpu_recurrent, preempted_rows_are_computed_again, .timeout = 120)
{
	check_preempted(LFM2(""), 0);
}

Test(gpu_recurrent, preempted_rows_go_on_with_saved_states, .timeout = 120)
{
	check_preempted(QWEN, 2);
	check_preempted(LFM2(", \"conv_bias\": true"), 2);
	check_preempted(NEMOTRON("M*", 2, ""), 2);
}

/* ---------------------------------------------------------------- step by step */

enum { KNOWN = 18, ALONE = 5, FORKED = ALONE - 1 }; /* blocks have 8 tokens, and three hold them all */

/* What follows `tokens`, in a row by itself. */
static void answer_alone(u32 row, const u32 *tokens, u32 count, const u32 *blocks, u32 *out)
{
	mirror_begin(&run.mirror);
	add_row(row, tokens, count, 0, blocks, 4);
	mirror_run(&run.mirror, row, count);
	out[0] = do_step(mirror_end(&run.mirror)).tokens[0];
	for (u32 i = 1; i < ALONE; i++) {
		mirror_begin(&run.mirror);
		out[i] = do_step(mirror_end(&run.mirror)).tokens[0];
	}
	mirror_begin(&run.mirror);
	mirror_drop(&run.mirror, row);
	(void)do_step(mirror_end(&run.mirror));
}

/* Of one prompt up to its middle, saved in the step that runs all of it, and of another in the same slot afterwards. */
Test(gpu_recurrent, a_row_begins_with_what_was_saved_in_the_middle_of_another, .timeout = 120)
{
	static const u32 blocks[] = {30, 3, 11, 12}, others[] = {30, 3, 21, 22}, unused[] = {1, 2, 4, 5};
	u32 tokens[KNOWN], wanted[ALONE], got[ALONE];

	open_model(QWEN, 17);
	make_tokens(tokens, KNOWN);
	answer_alone(1, tokens, KNOWN, unused, wanted);
	u32 last = tokens[KNOWN - 1];
	tokens[KNOWN - 1] = (last + 50) % 101; /* behind what is saved they differ */
	mirror_begin(&run.mirror);
	add_row(0, tokens, KNOWN, 0, blocks, 4);
	mirror_run(&run.mirror, 0, KNOWN);
	mirror_save(&run.mirror, 0, 7, 16);
	(void)do_step(mirror_end(&run.mirror));
	tokens[KNOWN - 1] = last;
	mirror_begin(&run.mirror);
	add_row(3, tokens, KNOWN, 16, others, 4);
	mirror_load(&run.mirror, 7);
	mirror_run(&run.mirror, 3, KNOWN - 16);
	mirror_run(&run.mirror, 0, 0);
	mirror_save(&run.mirror, 3, 7, KNOWN); /* into the slot that it has come from */
	got[0] = do_step(mirror_end(&run.mirror)).tokens[0];
	for (u32 i = 1; i < ALONE; i++) {
		mirror_begin(&run.mirror);
		mirror_run(&run.mirror, 0, 0);
		got[i] = do_step(mirror_end(&run.mirror)).tokens[0];
	}
	cr_expect_arr_eq(got, wanted, sizeof(got));
	close_model();
}

/* A copy goes on as its source would, whatever that has become. */
Test(gpu_recurrent, copies_of_rows_have_their_states, .timeout = 120)
{
	static const u32 blocks[] = {30, 3, 11, 12}, unused[] = {1, 2, 4, 5};
	u32 tokens[KNOWN + 2], wanted[ALONE], first[ALONE], got[ALONE];

	open_model(QWEN, 17);
	make_tokens(tokens, KNOWN);
	answer_alone(1, tokens, KNOWN, unused, first);
	u32 other = (first[0] + 40) % 101;
	tokens[KNOWN] = other;
	answer_alone(1, tokens, KNOWN + 1, unused, wanted);
	mirror_begin(&run.mirror);
	add_row(0, tokens, KNOWN, 0, blocks, 3);
	mirror_run(&run.mirror, 0, KNOWN);
	cr_expect_eq(do_step(mirror_end(&run.mirror)).tokens[0], first[0]);
	mirror_begin(&run.mirror);
	mirror_copy(&run.mirror, 11, 33);
	mirror_fork(&run.mirror, 2, 0, 900, 33);
	mirror_set(&run.mirror, 2, other);
	struct gpu_result r = do_step(mirror_end(&run.mirror));
	cr_assert_eq(r.count, 2);
	cr_expect_eq(r.tokens[0], first[1]);
	got[0] = r.tokens[1];
	for (u32 i = 1; i < FORKED; i++) {
		mirror_begin(&run.mirror);
		r = do_step(mirror_end(&run.mirror));
		cr_expect_eq(r.tokens[0], first[1 + i]);
		got[i] = r.tokens[1];
	}
	cr_expect_arr_eq(got, wanted, FORKED * sizeof(u32));
	close_model();
}

/* Nothing goes up, and nothing is copied, where nobody is saved, loaded or copied. */
Test(gpu_recurrent, a_step_that_saves_nothing_uploads_nothing, .timeout = 120)
{
	static const u32 blocks[] = {0, 1, 2};
	u32 tokens[KNOWN];

	open_model(QWEN, 17);
	make_tokens(tokens, KNOWN);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 4, 0, blocks, 3);
	mirror_run(&run.mirror, 0, 4);
	mirror_save(&run.mirror, 0, 2, 3);
	(void)do_step(mirror_end(&run.mirror));
	u32 used = run.gpu->next_stage;
	for (u32 i = 0; i < 6; i++) {
		mirror_begin(&run.mirror);
		cr_assert_eq(do_step(mirror_end(&run.mirror)).count, 1);
	}
	cr_assert_eq(run.gpu->next_stage, used);
	close_model();
}

/* ---------------------------------------------------------------- memory */

Test(gpu_recurrent, states_are_counted_before_blocks_and_refused_by_number, .timeout = 120)
{
	open_model(QWEN, 17);
	struct gpu_config bad = device_run_config(&run);
	struct state_memory large = run.states;
	bad.states = &large;
	cr_assert_eq(gpu_state_slots(run.gpu), run.states.slots - run.config.rows_max);
	cr_assert_eq(gpu_state_bytes(run.gpu), run.states.slots * run.states.stride * sizeof(float));
	large.stride = (size_t)1 << 40;
	expect_refusal(&bad, ERR_NO_SPACE, "keeps a state of every sequence, 4194304 MiB, and");
	large.stride = run.device.info.memory_total / 8 / sizeof(float);
	expect_refusal(&bad, ERR_NO_SPACE, "for --max-num-seqs 4, and");
	expect_refusal(&bad, ERR_NO_SPACE, "; --max-num-seqs 3 fits");
	large.stride = run.device.info.memory_total / 32 / sizeof(float); /* two of these are a sixteenth */
	bad.kv_cache_memory = 1 << 20;
	struct gpu *gpu;
	OK(gpu_create(&gpu, &bad, &em));
	cr_expect_eq(gpu_state_slots(gpu), 2);
	gpu_destroy(&gpu);
	close_model();
}

Test(gpu_recurrent, what_the_kernels_cannot_is_refused_by_name, .timeout = 120)
{
	open_model(QWEN, 17);
	struct gpu_config bad = device_run_config(&run);
	struct model_config m = run.model;
	bad.model = &m;
	m.recurrent.value_dim = 12;
	expect_refusal(&bad, ERR_UNSUPPORTED, "the width of a worker's layers that keep a state is 48; the device's kernels want a multiple of 32: use --device cpu");
	m.recurrent.value_dim = 16;
	m.experts = 513;
	m.recurrent.kind = RECURRENT_SELECTIVE;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices have no kernel for the layers of a Qwen3_5ForCausalLM that are of Mamba's first generation: use --device cpu");
	m.recurrent.kind = RECURRENT_LRU;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices have no kernel for the layers of a Qwen3_5ForCausalLM that keep a state: use --device cpu");
	m.recurrent.kind = RECURRENT_SCAN;
	struct arch alone = *m.arch;
	alone.attention_free = true;
	m.arch = &alone;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, no layer of which is of attention: use --device cpu");
	alone = *run.model.arch;
	alone.differential = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, half of whose heads take away from the others: use --device cpu");
	alone = *run.model.arch;
	alone.head_experts = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, whose heads are a mixture of experts: use --device cpu");
	alone = *run.model.arch;
	alone.normed_residual = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, whose blocks add to what they read: use --device cpu");
	alone = *run.model.arch;
	alone.shared_blocks = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, whose layers share blocks of attention (num_mem_blocks): use --device cpu");
	alone = *run.model.arch;
	alone.head_norm_biases = m.head_norms = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "the heads of this Qwen3_5ForCausalLM have norms with biases (qk_layernorm); devices have no kernel for that: use --device cpu");
	m.head_norms = run.model.head_norms;
	alone = *run.model.arch;
	alone.shortcut = true;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices do not compute a Qwen3_5ForCausalLM, whose experts skip every other layer (zero_expert_num): use --device cpu");
	alone = *run.model.arch;
	alone.by_layer = true;
	u32 attends = 0;
	while (!model_attends(&m, attends))
		attends++;
	for (u32 i = 0; i < m.layers; i++)
		m.kv_heads_by_layer[i] = m.kv_heads + (i == attends);
	expect_refusal(&bad, ERR_UNSUPPORTED, "others have");
	m.layer_flags[0] |= LAYER_LINEAR_MLP;
	expect_refusal(&bad, ERR_UNSUPPORTED, "layer 0 of this Qwen3_5ForCausalLM has a matrix in place of a block (replace_with_linear)");
	m.layer_flags[0] &= (u16)~LAYER_LINEAR_MLP;
	expect_refusal(&bad, ERR_UNSUPPORTED, "devices compute layers of one number: use --device cpu");
	m.arch = run.model.arch;
	m.recurrent.kind = RECURRENT_DELTA;
	m.experts_narrow = 24;
	expect_refusal(&bad, ERR_UNSUPPORTED,
		       "devices do not compute the experts of this Qwen3_5ForCausalLM, which read another width than the stream has (moe_latent_size): use --device cpu");
	m.experts_narrow = 0;
	expect_refusal(&bad, ERR_UNSUPPORTED, "the number of experts is 513; the device's kernels take 512 at most: use --device cpu");
	close_model();
}
