/* What config.json says of layers that keep a state, and what is refused in it. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128"
#define LFM2 "Lfm2ForCausalLM"
#define LFM2_MOE "Lfm2MoeForCausalLM"
#define QWEN "Qwen3_5ForCausalLM"
#define QWEN_MOE "Qwen3_5MoeForCausalLM"
#define NEXT "Qwen3NextForCausalLM"
#define GRANITE "GraniteMoeHybridForCausalLM"
#define BAMBA "BambaForCausalLM"
#define MAMBA2 "Mamba2ForCausalLM"
#define MAMBA2_SIZES "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_heads\": 8, \"head_dim\": 16, \"n_groups\": 4"
#define TYPES(a, b, c, d) "\"layer_types\": [\"" a "\", \"" b "\", \"" c "\", \"" d "\"]"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

static u32 layers_with(u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

#define CONV TYPES("conv", "full_attention", "conv", "conv")
Test(config_recurrent, short_convolutions_are_of_the_streams_width)
{
	good(LFM2, CONV ", \"conv_L_cache\": 4, \"conv_bias\": true, \"norm_eps\": 1e-4, \"block_auto_adjust_ff_dim\": false");
	cr_assert(c.recurrent.kind == RECURRENT_CONV && c.recurrent.taps == 4 && c.recurrent.bias && c.recurrent.conv_bias);
	cr_assert(layers_with(LAYER_RECURRENT) == 13 && c.intermediate == 90 && c.tied_embeddings && c.norm_eps == 1e-4f);
	cr_assert(!c.output_gate && c.own_kv_layers == 4 && c.rope.theta == 1000000 && c.rope.dim == 12);
	good(LFM2, "\"full_attn_idxs\": [0, 3], \"conv_dim\": 48, \"conv_dim_out\": 48, \"block_dim\": 48, \"num_heads\": 4, \"tie_embedding\": false, "
		   "\"use_pos_enc\": true, \"block_use_swiglu\": true, \"block_use_xavier_init\": true");
	cr_assert(layers_with(LAYER_RECURRENT) == 6 && c.recurrent.taps == 3 && !c.recurrent.bias && !c.tied_embeddings && c.norm_eps == 1e-5f);
	good(LFM2, TYPES("full_attention", "full_attention", "full_attention", "full_attention"));
	cr_assert(c.recurrent.kind == RECURRENT_NONE && c.recurrent.gate_eps == 0);
}

Test(config_recurrent, widths_of_lfm2_are_two_thirds_rounded_up)
{
	good(LFM2, CONV);
	cr_assert_eq(c.intermediate, 256);
	good(LFM2, CONV ", \"block_multiple_of\": 7");
	cr_assert_eq(c.intermediate, 63);
	good(LFM2, CONV ", \"block_multiple_of\": 7, \"block_ffn_dim_multiplier\": 1.3");
	cr_assert_eq(c.intermediate, 84); /* of 78 */
	good(LFM2, CONV ", \"block_ffn_dim_multiplier\": null");
	cr_assert_eq(c.intermediate, 60);
	good(LFM2, CONV ", \"block_ff_dim\": 90, \"block_multiple_of\": 1");
	cr_assert_eq(c.intermediate, 60);
	refused(LFM2, CONV ", \"block_ff_dim\": 91", ERR_INVALID, "\"block_ff_dim\" and \"intermediate_size\" are the same field of a " LFM2);
	refused(LFM2, CONV ", \"block_ffn_dim_multiplier\": 1e9", ERR_INVALID, "\"intermediate_size\" is 90, of which by");
	refused(LFM2, CONV ", \"block_multiple_of\": 0", ERR_INVALID, "\"block_multiple_of\" is 0");
}

Test(config_recurrent, what_lfm2_says_of_its_layers_is_checked)
{
	refused(LFM2, "\"conv_bias\": true", ERR_FORMAT, "\"layer_types\" is missing; of a " LFM2 " it must be an array of 4 strings");
	refused(LFM2, TYPES("conv", "attention", "conv", "conv"), ERR_UNSUPPORTED, "\"layer_types\"[1] is 'attention'; supported: conv, full_attention");
	refused(LFM2, TYPES("conv", "conv", "conv", "conv"), ERR_UNSUPPORTED, "none of the layers is one of attention (\"layer_types\"); a " LFM2);
	refused(LFM2, "\"layer_types\": [\"conv\"]", ERR_FORMAT, "an array of 4 strings (num_hidden_layers), found array of 1");
	refused(LFM2, CONV ", \"full_attn_idxs\": [2]", ERR_INVALID, "\"layer_types\"[1] is 'full_attention', but by \"full_attn_idxs\" the layer is conv");
	refused(LFM2, "\"full_attn_idxs\": [4]", ERR_FORMAT, "\"full_attn_idxs\" must hold numbers of layers, below num_hidden_layers, which is 4");
	refused(LFM2, "\"full_attn_idxs\": 2", ERR_FORMAT, "\"full_attn_idxs\" must be an array of numbers of layers, found");
	refused(LFM2, CONV ", \"conv_L_cache\": 1", ERR_UNSUPPORTED, "\"conv_L_cache\" is 1; convolutions over 2 to 8 tokens are supported");
	refused(LFM2, CONV ", \"conv_L_cache\": 0", ERR_UNSUPPORTED, "\"conv_L_cache\" is 0; convolutions over 2 to 8 tokens are supported");
	refused(LFM2, CONV ", \"conv_L_cache\": 4294967299", ERR_UNSUPPORTED, "\"conv_L_cache\" is 4294967299; convolutions");
	refused(LFM2, CONV ", \"conv_L_cache\": -3", ERR_FORMAT, "\"conv_L_cache\" must be an integer from 2 to 8, found integer");
	refused(LFM2, CONV ", \"conv_L_cache\": 9", ERR_UNSUPPORTED, "\"conv_L_cache\" is 9; convolutions");
	refused(LFM2, CONV ", \"conv_dim\": 64", ERR_UNSUPPORTED, "\"conv_dim\" is 64; it must be \"hidden_size\", which is 48");
	refused(LFM2, CONV ", \"num_heads\": 8", ERR_UNSUPPORTED, "\"num_heads\" is 8; it must be \"num_attention_heads\", which is 4");
	refused(LFM2, CONV ", \"norm_eps\": 1e-5, \"block_norm_eps\": 1e-6", ERR_INVALID, "\"block_norm_eps\" and \"rms_norm_eps\" say the same");
	refused(LFM2, CONV ", \"use_pos_enc\": false", ERR_UNSUPPORTED, "\"use_pos_enc\" must be true for " LFM2);
	refused(LFM2, CONV ", \"block_use_swiglu\": false", ERR_UNSUPPORTED, "\"block_use_swiglu\" must be true for " LFM2);
	refused(LFM2, CONV ", \"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " LFM2 " it must be silu");
	refused(LFM2, CONV ", \"linear_conv_kernel_dim\": 4", ERR_UNSUPPORTED, "unknown field \"linear_conv_kernel_dim\"");
	refused("LlamaForCausalLM", "\"conv_L_cache\": 3, \"rms_norm_eps\": 1e-5", ERR_UNSUPPORTED, "unknown field \"conv_L_cache\"");
	refused("LlamaForCausalLM", "\"conv_dim\": 48, \"rms_norm_eps\": 1e-5", ERR_UNSUPPORTED, "\"conv_dim\" is set, which is not supported for Llama");
}

#define MIXTURE "\"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20"
Test(config_recurrent, mixtures_of_lfm2_choose_by_biases)
{
	good(LFM2_MOE, CONV ", " MIXTURE);
	cr_assert(layers_with(LAYER_EXPERTS) == 12 && c.choice_bias && c.router.sigmoid && c.normalize_experts && c.router.sum_plus == 1e-6f);
	cr_assert(c.intermediate == 90 && c.expert_intermediate == 20 && c.shared_intermediate == 0);
	good(LFM2_MOE, CONV ", " MIXTURE ", \"num_dense_layers\": 1, \"use_expert_bias\": false, \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": false");
	cr_assert(layers_with(LAYER_EXPERTS) == 14 && !c.choice_bias && c.router.scale == 2.5f && !c.normalize_experts);
	refused(LFM2_MOE, CONV ", " MIXTURE ", \"block_multiple_of\": 256", ERR_UNSUPPORTED, "\"block_multiple_of\" is set, which is not supported for " LFM2_MOE);
	refused(LFM2_MOE, "\"full_attn_idxs\": [1], " MIXTURE, ERR_FORMAT, "\"layer_types\" is missing");
	refused(LFM2_MOE, CONV ", " MIXTURE ", \"use_expert_bias\": 1", ERR_FORMAT, "\"use_expert_bias\" must be true or false");
	refused(LFM2_MOE, CONV ", " MIXTURE ", \"num_dense_layers\": -1", ERR_FORMAT, "(the field \"num_dense_layers\" of a " LFM2_MOE ")");
}

#define STATE "\"linear_conv_kernel_dim\": 3, \"linear_key_head_dim\": 6, \"linear_value_head_dim\": 10, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 6"
#define DELTA "\"head_dim\": 16, " STATE ", \"rms_norm_eps\": 1e-4"
Test(config_recurrent, layers_of_the_delta_rule_have_heads_of_their_own)
{
	good(QWEN, DELTA ", \"full_attention_interval\": 2, \"attn_output_gate\": true, \"mamba_ssm_dtype\": \"float32\", \"mtp_num_hidden_layers\": 1");
	const struct recurrent_config *r = &c.recurrent;
	cr_assert(r->kind == RECURRENT_DELTA && r->taps == 3 && r->key_heads == 2 && r->heads == 6 && r->key_dim == 6 && r->value_dim == 10);
	cr_assert(!r->bias && !r->conv_bias && r->gate_eps == 1e-4f && r->beta_scale == 0 && layers_with(LAYER_RECURRENT) == 5);
	cr_assert(c.output_gate && c.norm_offset == 1 && c.rope.dim == 4 && c.rope.theta == 10000);
	good(QWEN, "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000, \"mrope_section\": [1, 1, 0], \"mrope_interleaved\": true, "
		   "\"partial_rotary_factor\": 0.5}");
	cr_assert(r->taps == 4 && r->key_heads == 16 && r->heads == 32 && r->key_dim == 128 && r->value_dim == 128 && layers_with(LAYER_RECURRENT) == 7);
	cr_assert(c.rope.dim == 128 && c.rope.theta == 5000 && c.head_dim == 256);
	good(QWEN, DELTA ", " TYPES("full_attention", "linear_attention", "linear_attention", "full_attention"));
	cr_assert_eq(layers_with(LAYER_RECURRENT), 6);
	good(QWEN, DELTA ", \"full_attention_interval\": 1, \"hidden_act\": \"gelu\"");
	cr_assert(c.recurrent.kind == RECURRENT_NONE && c.output_gate);
}

Test(config_recurrent, what_qwen_says_of_its_layers_is_checked)
{
	refused(QWEN, DELTA ", \"full_attention_interval\": 5", ERR_UNSUPPORTED, "none of the layers is one of attention");
	refused(QWEN, DELTA ", \"full_attention_interval\": 0", ERR_INVALID, "\"full_attention_interval\" is 0");
	refused(QWEN, DELTA ", \"full_attention_interval\": 2, " TYPES("full_attention", "linear_attention", "linear_attention", "full_attention"), ERR_INVALID,
		"\"layer_types\"[0] is 'full_attention', but by \"full_attention_interval\" the layer is linear_attention");
	refused(QWEN, DELTA ", " TYPES("linear_attention", "mamba", "linear_attention", "full_attention"), ERR_UNSUPPORTED,
		"\"layer_types\"[1] is 'mamba'; supported: linear_attention, full_attention");
	refused(QWEN, "\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 6", ERR_INVALID,
		"\"linear_num_value_heads\" 6 is not a multiple of \"linear_num_key_heads\" 4");
	refused(QWEN, "\"linear_num_value_heads\": 65536, \"linear_value_head_dim\": 1024", ERR_INVALID, "all of a kind together may have 1048576");
	refused(QWEN, "\"linear_key_head_dim\": 2000", ERR_INVALID, "\"linear_key_head_dim\" is 2000; it must be 1 to 512");
	refused(QWEN, "\"linear_key_head_dim\": 513", ERR_INVALID, "\"linear_key_head_dim\" is 513; it must be 1 to 512"); /* kernels take no more */
	refused(QWEN, "\"linear_value_head_dim\": 1025", ERR_INVALID, "\"linear_value_head_dim\" is 1025; it must be 1 to 1024");
	refused(QWEN, "\"linear_conv_kernel_dim\": 16", ERR_UNSUPPORTED, "\"linear_conv_kernel_dim\" is 16; convolutions over 2 to 8 tokens");
	refused(QWEN, DELTA ", \"hidden_act\": \"relu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'relu'; of a " QWEN " it must be silu");
	refused(QWEN, DELTA ", \"attn_output_gate\": false", ERR_UNSUPPORTED, "\"attn_output_gate\" must be true for " QWEN);
	good(QWEN, DELTA ", \"output_gate_type\": \"swish\"");
	refused(QWEN, DELTA ", \"output_gate_type\": \"sigmoid\"", ERR_UNSUPPORTED, "\"output_gate_type\" is 'sigmoid'; supported: swish, silu");
	refused(QWEN, DELTA ", \"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set");
	refused(QWEN, DELTA ", \"conv_bias\": true", ERR_UNSUPPORTED, "unknown field \"conv_bias\"");
	refused("Qwen3ForCausalLM", "\"linear_num_key_heads\": 2, \"rms_norm_eps\": 1e-6", ERR_UNSUPPORTED, "unknown field \"linear_num_key_heads\"");
}

Test(config_recurrent, mixtures_of_qwen_have_an_expert_of_all_tokens)
{
	good(QWEN_MOE, DELTA ", " MIXTURE ", \"shared_expert_intermediate_size\": 28, \"norm_topk_prob\": true, \"mlp_only_layers\": []");
	cr_assert(layers_with(LAYER_EXPERTS) == 15 && c.normalize_experts && c.shared_intermediate == 28 && c.expert_intermediate == 20);
	refused(QWEN_MOE, DELTA ", " MIXTURE, ERR_FORMAT, "\"shared_expert_intermediate_size\" is missing");
	refused(QWEN_MOE, DELTA ", " MIXTURE ", \"shared_expert_intermediate_size\": 28, \"mlp_only_layers\": [1]", ERR_UNSUPPORTED,
		"\"mlp_only_layers\" layer 1 has no experts; of a " QWEN_MOE " all layers have some");
	refused(QWEN_MOE, DELTA ", " MIXTURE ", \"shared_expert_intermediate_size\": 28, \"norm_topk_prob\": false", ERR_UNSUPPORTED,
		"\"norm_topk_prob\" must be true for " QWEN_MOE);
	good(NEXT, DELTA ", " MIXTURE ", \"shared_expert_intermediate_size\": 28, \"norm_topk_prob\": false, \"decoder_sparse_step\": 2, "
			 "\"partial_rotary_factor\": 0.5, \"use_sliding_window\": false");
	cr_assert(layers_with(LAYER_EXPERTS) == 10 && !c.normalize_experts && c.rope.dim == 8 && layers_with(LAYER_RECURRENT) == 7 && c.output_gate);
	refused(NEXT, DELTA ", " MIXTURE ", \"shared_expert_intermediate_size\": 28, \"attn_output_gate\": true", ERR_UNSUPPORTED,
		"unknown field \"attn_output_gate\"");
}

#define OLMO "OlmoHybridForCausalLM"
#define NO_ROPE ", \"rope_parameters\": {\"rope_theta\": null, \"rope_type\": \"default\"}"
Test(config_recurrent, states_of_olmo_follow_from_its_heads)
{
	good(OLMO, "\"linear_a_log_max\": 16.0, \"linear_dt_min\": 0.001" NO_ROPE);
	const struct recurrent_config *r = &c.recurrent;
	cr_assert(r->key_heads == 4 && r->heads == 4 && r->key_dim == 9 && r->value_dim == 18 && r->beta_scale == 2 && r->gate_eps == 1e-5f);
	cr_assert(c.norm_eps == 1e-6f && layers_with(LAYER_RECURRENT) == 7 && layers_with(LAYER_NO_ROPE) == 15 && !c.output_gate);
	good(OLMO, STATE ", \"linear_allow_neg_eigval\": false, \"rope_theta\": 5000, " TYPES("full_attention", "linear_attention", "linear_attention", "full_attention"));
	cr_assert(r->key_dim == 6 && r->heads == 6 && r->beta_scale == 1 && layers_with(LAYER_NO_ROPE) == 0 && c.rope.theta == 5000);
	good(OLMO, STATE ", \"rope_theta\": null");
	cr_assert_eq(layers_with(LAYER_NO_ROPE), 15);
	refused(OLMO, STATE, ERR_FORMAT, "\"rope_theta\" is missing; of a " OLMO " it must be a number above 0, or null if nothing rotates");
	refused(OLMO, "\"linear_num_key_heads\": 128, \"linear_num_value_heads\": 128" NO_ROPE, ERR_INVALID, "keys of 0 values and values of 0");
	refused(OLMO, STATE ", \"full_attention_interval\": 2" NO_ROPE, ERR_UNSUPPORTED, "\"full_attention_interval\" is set, which is not supported for " OLMO);
	refused(OLMO, STATE ", \"attn_output_gate\": true" NO_ROPE, ERR_UNSUPPORTED, "unknown field \"attn_output_gate\"");
}

#define MAMBA "\"mamba_d_state\": 9, \"mamba_n_groups\": 2, \"mamba_n_heads\": 6"
#define DENSE "\"num_local_experts\": 0, \"num_experts_per_tok\": 0, \"shared_intermediate_size\": 70"
#define SCAN TYPES("mamba", "attention", "mamba", "mamba") ", " MAMBA
Test(config_recurrent, layers_of_mamba_are_as_wide_as_their_heads)
{
	good(GRANITE, SCAN ", " DENSE ", \"residual_multiplier\": 0.5, \"rms_norm_eps\": 1e-4");
	const struct recurrent_config *r = &c.recurrent;
	cr_assert(r->kind == RECURRENT_SCAN && r->taps == 4 && r->key_heads == 2 && r->heads == 6 && r->key_dim == 9 && r->value_dim == 16);
	cr_assert(r->conv_bias && !r->bias && r->step_min == 0 && r->step_max == 0 && r->gate_eps == 1e-4f && c.norm_eps == 4e-4f);
	cr_assert(layers_with(LAYER_RECURRENT) == 13 && c.intermediate == 70 && c.experts == 0 && layers_with(LAYER_NO_ROPE) == 15);
	good(GRANITE, TYPES("linear_attention", "full_attention", "attention", "mamba") ", " MAMBA ", \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
			"\"shared_intermediate_size\": 28, \"mamba_d_head\": 24, \"mamba_expand\": 3, \"mamba_conv_bias\": false, \"mamba_proj_bias\": true, "
			"\"time_step_limit\": [0.25, {\"__float__\": \"Infinity\"}]");
	cr_assert(layers_with(LAYER_RECURRENT) == 9 && r->value_dim == 24 && !r->conv_bias && r->bias && r->step_min == 0.25f && r->step_max == FLT_MAX);
	cr_assert(layers_with(LAYER_EXPERTS) == 15 && c.expert_intermediate == 90 && c.shared_intermediate == 28 && c.normalize_experts);
	good(BAMBA, "\"attn_layer_indices\": [1], \"attn_rotary_emb\": 6, " MAMBA ", \"time_step_limit\": [0.0, {\"__float__\": \"Infinity\"}]");
	cr_assert(layers_with(LAYER_RECURRENT) == 13 && c.rope.dim == 6 && r->step_max == 0 && layers_with(LAYER_NO_ROPE) == 0);
}

Test(config_recurrent, what_files_say_of_mamba_is_checked)
{
	refused(BAMBA, MAMBA, ERR_FORMAT, "\"layer_types\" is missing; of a " BAMBA);
	refused(BAMBA, "\"attn_layer_indices\": [7], " MAMBA, ERR_FORMAT, "\"attn_layer_indices\" must hold numbers of layers");
	refused(GRANITE, SCAN ", " DENSE ", \"mamba_d_head\": 20", ERR_INVALID, "\"mamba_d_head\" is 20; by \"mamba_expand\", \"hidden_size\" and \"mamba_n_heads\" it must be 16");
	refused(GRANITE, TYPES("mamba", "attention", "mamba", "mamba") ", \"mamba_n_heads\": 7, " DENSE, ERR_INVALID,
		"\"mamba_expand\" times \"hidden_size\", 96, must be a multiple of \"mamba_n_heads\", which is 7");
	refused(GRANITE, TYPES("mamba", "attention", "mamba", "mamba") ", \"mamba_n_heads\": 6, \"mamba_n_groups\": 4, " DENSE, ERR_INVALID,
		"\"mamba_n_heads\" 6 is not a multiple of \"mamba_n_groups\" 4");
	refused(GRANITE, TYPES("mamba", "attention", "mamba", "mamba") ", \"mamba_n_heads\": 6, \"mamba_d_state\": 513, " DENSE, ERR_INVALID,
		"\"mamba_d_state\" is 513; it must be 1 to 512");
	refused(GRANITE, SCAN ", " DENSE ", \"time_step_limit\": [0.5, 0.5]", ERR_FORMAT, "\"time_step_limit\" must be an array of two numbers");
	refused(GRANITE, SCAN ", " DENSE ", \"time_step_limit\": [-1, 2]", ERR_FORMAT, "\"time_step_limit\" must be an array");
	refused(GRANITE, SCAN ", " DENSE ", \"time_step_limit\": 3", ERR_FORMAT, "\"time_step_limit\" must be an array");
	refused(GRANITE, SCAN ", " DENSE ", \"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " GRANITE " it must be silu");
	refused(GRANITE, TYPES("conv", "attention", "mamba", "mamba") ", " DENSE, ERR_UNSUPPORTED, "\"layer_types\"[0] is 'conv'; supported: mamba, full_attention");
	refused("GraniteForCausalLM", "\"mamba_n_heads\": 128, \"rms_norm_eps\": 1e-5", ERR_UNSUPPORTED, "unknown field \"mamba_n_heads\"");
}

#define FALCON "FalconH1ForCausalLM"
#define FALCON_SIZES "\"mamba_n_heads\": 6, \"mamba_d_head\": 12, \"mamba_d_ssm\": 72, \"mamba_d_state\": 9, \"mamba_n_groups\": 2"
#define MULTIPLIERS                                                                                                             \
	"\"embedding_multiplier\": 5.5, \"lm_head_multiplier\": 0.25, \"key_multiplier\": 0.5, \"attention_in_multiplier\": 2, "  \
	"\"attention_out_multiplier\": 0.75, \"ssm_in_multiplier\": 2, \"ssm_multipliers\": [1, 2, 3, 4, 5], "                   \
	"\"ssm_out_multiplier\": 0.125, \"mlp_multipliers\": [0.5, 0.25]"
Test(config_recurrent, every_layer_of_falcon_attends_and_keeps_a_state)
{
	const struct recurrent_config *r = &c.recurrent;
	good(FALCON, FALCON_SIZES ", " MULTIPLIERS ", \"mamba_use_mlp\": true, \"mlp_expansion_factor\": 8, \"projectors_bias\": false");
	cr_assert(layers_with(LAYER_RECURRENT) == 15 && layers_with(LAYER_BESIDE) == 15 && model_attends(&c, 3) && c.own_kv_layers == 4);
	cr_assert(r->kind == RECURRENT_SCAN && r->heads == 6 && r->value_dim == 12 && r->key_heads == 2 && r->key_dim == 9 && r->taps == 4);
	cr_assert(!r->normed && r->norm_first && r->conv_bias && !r->bias);
	cr_assert(c.embed_scale == 5.5f && c.logits_scale == 0.25f && c.attention_scale == (f32)(2 / sqrt(12)));
	const f32 wanted[SCALE_COUNT] = {[SCALE_NONE] = 1,	  [SCALE_STATE_GATE] = 2,   [SCALE_STATE_DECAY] = 10, [SCALE_STATE_V] = 4,  [SCALE_STATE_K] = 6,
					 [SCALE_STATE_Q] = 8,	  [SCALE_STATE_OUT] = 0.125f, [SCALE_ATTN_OUT] = 1.5f,  [SCALE_GATE] = 0.5f, [SCALE_DOWN] = 0.25f, [SCALE_SHARED] = 1, [SCALE_POST_NORM] = 1};
	cr_assert(memcmp(c.scales, wanted, sizeof(wanted)) == 0);
	good(FALCON, "\"mamba_n_heads\": 6, \"mamba_d_ssm\": null, \"mamba_rms_norm\": true, \"mamba_norm_before_gate\": false");
	cr_assert(r->value_dim == 16 && r->key_dim == 256 && r->normed && !r->norm_first && c.scales[SCALE_DOWN] == 1 && c.embed_scale == 1);
	good(FALCON, "\"mamba_n_heads\": 8, \"mamba_d_head\": \"auto\"");
	cr_assert_eq(r->value_dim, 128); /* of 1024 */
	good(GRANITE, SCAN ", " DENSE);
	cr_assert(r->normed && !r->norm_first && layers_with(LAYER_BESIDE) == 0 && c.scales[SCALE_STATE_GATE] == 1);
}

Test(config_recurrent, what_falcon_says_is_checked)
{
	refused(FALCON, "\"mamba_n_heads\": 6, \"mamba_d_head\": 12, \"mamba_d_ssm\": 96", ERR_INVALID,
		"\"mamba_d_head\" is 12; by \"mamba_d_ssm\" and \"mamba_n_heads\" it must be 16");
	refused(FALCON, "\"mamba_n_heads\": 7, \"mamba_d_ssm\": 96", ERR_INVALID, "\"mamba_d_ssm\", 96, must be a multiple of \"mamba_n_heads\", which is 7");
	refused(FALCON, FALCON_SIZES ", \"mamba_proj_bias\": true", ERR_UNSUPPORTED, "\"mamba_proj_bias\" is set, which is not supported for " FALCON);
	refused(FALCON, FALCON_SIZES ", \"projectors_bias\": true", ERR_UNSUPPORTED, "\"projectors_bias\" is set, which is not supported for " FALCON);
	refused(FALCON, FALCON_SIZES ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set, which is not supported for " FALCON);
	refused(FALCON, FALCON_SIZES ", \"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set, which is not supported for " FALCON);
	refused(FALCON, FALCON_SIZES ", \"mamba_use_mlp\": false", ERR_UNSUPPORTED, "\"mamba_use_mlp\" must be true for " FALCON);
	refused(FALCON, FALCON_SIZES ", \"ssm_multipliers\": [1, 2, 3, 4]", ERR_FORMAT, "\"ssm_multipliers\" must be an array of 5 numbers above 0, found array of 4");
	refused(FALCON, FALCON_SIZES ", \"mlp_multipliers\": 1", ERR_FORMAT, "\"mlp_multipliers\" must be an array of 2 numbers above 0");
	refused(FALCON, FALCON_SIZES ", \"mlp_multipliers\": [1, 0]", ERR_FORMAT, "\"mlp_multipliers\"[1] must be a number above 0");
	refused(FALCON, FALCON_SIZES ", \"ssm_in_multiplier\": 1e30, \"ssm_multipliers\": [1, 1e30, 1, 1, 1]", ERR_INVALID, "\"ssm_multipliers\"");
	refused(FALCON, FALCON_SIZES ", \"key_multiplier\": -1", ERR_FORMAT, "\"key_multiplier\"");
	refused(GRANITE, SCAN ", " DENSE ", \"ssm_out_multiplier\": 0.5", ERR_UNSUPPORTED, "unknown field \"ssm_out_multiplier\"");
}

#define NEMOTRON "NemotronHForCausalLM"
#define BLOCKS "\"hybrid_override_pattern\": \"M-*E\""
#define MAMBA_NAMES                                                                                                                      \
	"\"mamba_num_heads\": 6, \"mamba_head_dim\": 20, \"ssm_state_size\": 9, \"n_groups\": 2, \"conv_kernel\": 3, \"chunk_size\": 128, " \
	"\"use_conv_bias\": false, \"use_bias\": true, \"expand\": 2"
#define NEMOTRON_EXPERTS \
	"\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"moe_shared_expert_intermediate_size\": 28"
#define FULL_BLOCKS BLOCKS ", " MAMBA_NAMES ", " NEMOTRON_EXPERTS
Test(config_recurrent, layers_of_nemotron_are_one_block)
{
	good(NEMOTRON, FULL_BLOCKS ", \"mlp_bias\": true, \"layer_norm_epsilon\": 1e-4, \"norm_eps\": 1e-4, \"routed_scaling_factor\": 2.5");
	const struct recurrent_config *r = &c.recurrent;
	cr_assert(c.layers == 4 && layers_with(LAYER_RECURRENT) == 1 && layers_with(LAYER_NO_MIXER) == 10 && layers_with(LAYER_NO_MLP) == 5);
	cr_assert(layers_with(LAYER_EXPERTS) == 8 && layers_with(LAYER_NO_ROPE) == 4 && c.own_kv_layers == 3 && c.head_dim == 128);
	cr_assert(r->kind == RECURRENT_SCAN && r->heads == 6 && r->value_dim == 20 && r->key_dim == 9 && r->key_heads == 2 && r->taps == 3);
	cr_assert(r->bias && !r->conv_bias && r->step_max == 0 && r->gate_eps == 1e-4f && c.norm_eps == 1e-4f && c.mlp_bias && !c.attention_bias);
	cr_assert(c.activation == KERN_RELU_SQUARED && c.experts == 8 && c.expert_intermediate == 20 && c.shared_intermediate == 28 && c.intermediate == 90);
	cr_assert(c.router.sigmoid && c.router.scale == 2.5f && c.normalize_experts && c.router.groups == 1 && c.experts_narrow == 0);
	good(NEMOTRON, TYPES("mlp", "mamba", "linear_attention", "attention") ", \"moe_latent_size\": null, \"mlp_hidden_act\": \"silu\", \"n_routed_experts\": 8");
	cr_assert(layers_with(LAYER_RECURRENT) == 6 && layers_with(LAYER_NO_MIXER) == 1 && c.own_kv_layers == 4 && c.experts == 0 && !c.shared_intermediate);
	cr_assert(r->heads == 128 && r->value_dim == 64 && r->key_dim == 128 && r->key_heads == 8 && c.activation == KERN_SILU && c.norm_eps == 1e-5f);
	good(NEMOTRON, "\"layers_block_type\": [\"mamba\", \"mlp\", \"full_attention\", \"mlp\"], \"hybrid_override_pattern\": \"M-*-\"");
	cr_assert(layers_with(LAYER_NO_MIXER) == 10 && c.own_kv_layers == 3);
}

Test(config_recurrent, what_nemotron_says_of_its_layers_is_checked)
{
	refused(NEMOTRON, MAMBA_NAMES, ERR_FORMAT, "\"hybrid_override_pattern\" is missing; of a " NEMOTRON " it must be a string of a letter for each layer, M (");
	refused(NEMOTRON, "\"hybrid_override_pattern\": \"M-*x\"", ERR_UNSUPPORTED, "\"hybrid_override_pattern\" has 'x' for layer 3; supported: M (linear_attention)");
	refused(NEMOTRON, "\"hybrid_override_pattern\": [\"M\"]", ERR_FORMAT, "\"hybrid_override_pattern\" must be a string of a letter for each layer, 1 to 4096, found");
	refused(NEMOTRON, "\"hybrid_override_pattern\": \"M*\"", ERR_INVALID, "\"num_hidden_layers\" is 4, but \"hybrid_override_pattern\" or \"layer_types\" has 2");
	refused(NEMOTRON, "\"hybrid_override_pattern\": \"M-M-\"", ERR_UNSUPPORTED, "none of the layers is one of attention");
	refused(NEMOTRON, "\"hybrid_override_pattern\": \"*-*-\"", ERR_UNSUPPORTED, "none of the layers is linear_attention");
	refused(NEMOTRON, TYPES("mamba", "attention", "conv", "mlp"), ERR_UNSUPPORTED, "\"layer_types\"[2] is 'conv'; supported: linear_attention (or mamba)");
	refused(NEMOTRON, "\"layers_block_type\": 3", ERR_FORMAT, "(the field \"layers_block_type\" of a " NEMOTRON ")");
	refused(NEMOTRON, BLOCKS ", " TYPES("mamba", "mlp", "attention", "mlp"), ERR_INVALID, "\"layer_types\"[3] is 'mlp', which is not what \"hybrid_override_pattern\" says");
	refused(NEMOTRON, BLOCKS ", \"layer_types\": [\"mamba\"]", ERR_FORMAT, "\"layer_types\" must be an array of a word for each layer, 4 to 4, found array of 1");
	refused(NEMOTRON, FULL_BLOCKS ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", ERR_UNSUPPORTED, "\"rope_scaling\" is set; in a " NEMOTRON);
	refused(NEMOTRON, FULL_BLOCKS ", \"norm_eps\": 1e-6, \"layer_norm_epsilon\": 1e-5", ERR_INVALID, "\"norm_eps\" and \"rms_norm_eps\" say the same");
	refused(NEMOTRON, FULL_BLOCKS ", \"mamba_hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"mamba_hidden_act\" is 'gelu'; of a " NEMOTRON " it must be silu");
	refused(NEMOTRON, FULL_BLOCKS ", \"n_shared_experts\": 2", ERR_UNSUPPORTED, "\"n_shared_experts\" is 2; of a " NEMOTRON " it must be 1");
	refused(NEMOTRON, FULL_BLOCKS ", \"moe_latent_size\": -16", ERR_FORMAT, "\"moe_latent_size\"");
	refused("NemotronForCausalLM", "\"norm_eps\": 1e-5, \"moe_latent_size\": 16", ERR_UNSUPPORTED, "\"moe_latent_size\" is set, which is not supported for");
	refused(NEMOTRON, FULL_BLOCKS ", \"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false for " NEMOTRON);
	refused(NEMOTRON, FULL_BLOCKS ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused(NEMOTRON, BLOCKS ", " MAMBA_NAMES, ERR_FORMAT, "\"num_experts\" is missing; it must be an integer from 1 to 4096 (the field \"n_routed_experts\"");
	refused(NEMOTRON, "\"hybrid_override_pattern\": \"M-*-\", \"mamba_num_heads\": 6, \"n_groups\": 4", ERR_INVALID,
		"\"mamba_n_heads\" 6 is not a multiple of \"mamba_n_groups\" 4");
	refused("NemotronForCausalLM", "\"norm_eps\": 1e-5, \"hybrid_override_pattern\": \"M\"", ERR_UNSUPPORTED, "\"hybrid_override_pattern\" is set");
}

/* As NVIDIA's files have it. */
Test(config_recurrent, every_layer_of_mamba_2_keeps_a_state)
{
	const struct recurrent_config *r = &c.recurrent;

	said_good(&c, MAMBA2, "\"vocab_size\": 64, \"hidden_size\": 4096, \"num_hidden_layers\": 3", "");
	cr_assert(r->kind == RECURRENT_SCAN && r->heads == 128 && r->value_dim == 64 && r->key_heads == 8 && r->key_dim == 128 && r->taps == 4);
	cr_assert(r->conv_bias && !r->bias && r->normed && !r->norm_first && r->step_max == 0 && r->gate_eps == 1e-5f && c.norm_eps == 1e-5f);
	cr_assert(layers_with(LAYER_RECURRENT) == 7 && layers_with(LAYER_NO_MLP) == 7 && !model_attends(&c, 0) && !c.tied_embeddings);
	cr_assert(c.context_max == 1 << 20 && c.intermediate == 0);
	said_good(&c, MAMBA2, MAMBA2_SIZES, "\"intermediate_size\": 128, \"state_size\": 9, \"conv_kernel\": 3, \"expand\": 2, \"use_bias\": true, "
					    "\"use_conv_bias\": false, \"layer_norm_epsilon\": 1e-4, \"time_step_limit\": [0.25, 0.5], \"chunk_size\": 8, "
					    "\"tie_word_embeddings\": true, \"max_position_embeddings\": 77, \"norm_before_gate\": true, \"rms_norm\": true, "
					    "\"residual_in_fp32\": true, \"time_step_rank\": \"auto\", \"time_step_min\": 0.001, \"hidden_act\": \"silu\", "
					    "\"layer_types\": [\"linear_attention\", \"mamba\", \"linear_attention\"]");
	cr_assert(r->heads == 8 && r->value_dim == 16 && r->key_heads == 4 && r->key_dim == 9 && r->taps == 3 && r->bias && !r->conv_bias);
	cr_assert(r->step_min == 0.25f && r->step_max == 0.5f && !r->norm_first && r->gate_eps == 1e-4f && c.norm_eps == 1e-4f);
	cr_assert(c.tied_embeddings && c.context_max == 77);
}

#define refused2(more, error, text) said_refused(MAMBA2, MAMBA2_SIZES, more, error, text)
Test(config_recurrent, what_mamba_2_says_is_checked)
{
	refused2("\"expand\": 3", ERR_INVALID, "8 heads of 16 values (\"mamba_n_heads\", \"mamba_d_head\") are 128; they must be \"mamba_expand\" times hidden_size, 3 times 64");
	refused2("\"expand\": 3", ERR_INVALID, "(the field \"num_heads\" of a " MAMBA2 ")");
	refused2("\"expand\": 0", ERR_INVALID, "\"mamba_expand\" is 0; it must be 1 to");
	refused2("\"intermediate_size\": 100", ERR_UNSUPPORTED, "\"intermediate_size\" is 100; it must be \"mamba_n_heads\" times \"mamba_d_head\", which is 128");
	said_refused(MAMBA2, "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_heads\": 8, \"head_dim\": 16", "\"n_groups\": 3", ERR_INVALID,
		     "\"mamba_n_heads\" 8 is not a multiple of \"mamba_n_groups\" 3");
	said_refused(MAMBA2, "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 3", "", ERR_INVALID, "128 heads of 64 values");
	refused2("\"state_size\": 513", ERR_INVALID, "\"mamba_d_state\" is 513; it must be 1 to 512 (the field \"state_size\" of a " MAMBA2);
	refused2("\"conv_kernel\": 1", ERR_UNSUPPORTED, "\"mamba_d_conv\" is 1; convolutions over 2 to 8 tokens are supported");
	refused2("\"use_bias\": 1", ERR_FORMAT, "\"mamba_proj_bias\" must be true or false");
	refused2("\"rms_norm\": false", ERR_UNSUPPORTED, "\"rms_norm\" must be true for " MAMBA2);
	refused2("\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " MAMBA2 " it must be silu");
	refused2("\"time_step_limit\": [1, 0]", ERR_FORMAT, "\"time_step_limit\" must be an array of two numbers");
	refused2("\"num_attention_heads\": 4", ERR_UNSUPPORTED, "\"num_attention_heads\" is set; no layer of a " MAMBA2 " is of attention");
	refused2("\"layer_types\": [\"mamba\", \"attention\", \"mamba\"]", ERR_UNSUPPORTED, "1 of the layers are of attention");
	refused2("\"mamba_rms_norm\": true", ERR_UNSUPPORTED, "\"mamba_rms_norm\" is set, which is not supported for " MAMBA2);
	refused2("\"rope_theta\": 1e4", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for " MAMBA2);
	refused2("\"ssm_cfg\": {\"ngroups\": 4}", ERR_UNSUPPORTED, "unknown field \"ssm_cfg\"");
	said_refused("MambaForCausalLM", "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 3", "\"norm_before_gate\": true", ERR_UNSUPPORTED,
		     "\"norm_before_gate\" is set, which is not supported for MambaForCausalLM");
}

Test(config_recurrent, steps_without_a_bound_may_be_written_as_python_does)
{
	char dir[] = "/tmp/config_recurrent_XXXXXX", path[64];
	struct err_msg em;

	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/config.json", dir);
	FILE *f = fopen(path, "w");
	cr_assert_not_null(f);
	fputs("{\"architectures\": [\"" NEMOTRON "\"], " SIZES ", " FULL_BLOCKS ", \"time_step_limit\": [0.5, Infinity]}", f);
	fclose(f);
	cr_assert_eq(model_config_read(&c, dir, &em), ERR_OK, "%s", em.text);
	cr_assert(c.recurrent.step_min == 0.5f && c.recurrent.step_max == FLT_MAX);
	unlink(path);
	rmdir(dir);
}

static void expect_share(const char *family, const char *more, u32 ranks, const char *text)
{
	struct model_shard s;
	struct err_msg em = {""};

	good(family, more);
	cr_assert_eq(model_shard_init(&s, &c, 0, ranks, &em), ERR_INVALID);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
}

Test(config_recurrent, ranks_share_channels_and_key_heads)
{
	struct model_shard s;
	struct err_msg em;

	good(QWEN, DELTA);
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_key_heads == 1 && s.recurrent_heads == 3 && s.recurrent_channels == 0);
	good(LFM2, CONV ", \"block_auto_adjust_ff_dim\": false");
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_channels == 24 && s.recurrent_key_heads == 0 && s.recurrent_heads == 0);
	good("LlamaForCausalLM", "\"rms_norm_eps\": 1e-5");
	cr_assert_eq(model_shard_init(&s, &c, 0, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_channels == 0 && s.recurrent_heads == 0);
	said_good(&c, MAMBA2, MAMBA2_SIZES, "");
	cr_assert_eq(model_shard_init(&s, &c, 3, 4, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_key_heads == 1 && s.recurrent_heads == 2 && s.recurrent_channels == 0);
	cr_assert_eq(model_shard_init(&s, &c, 0, 8, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's 4 key heads of layers that keep a state cannot be divided by it; these counts would do: 1, 2, 4"), "%s", em.text);
	expect_share(QWEN, "\"linear_num_key_heads\": 3, \"linear_num_value_heads\": 6", 2,
		     "the model's 3 key heads of layers that keep a state cannot be divided by it; these counts would do: 1");
	expect_share(GRANITE, TYPES("mamba", "attention", "mamba", "mamba") ", \"mamba_n_heads\": 6, " DENSE, 2,
		     "the model's 1 key heads of layers that keep a state cannot be divided by it; these counts would do: 1");
}

#define LFM3 "Lfm3ForCausalLM"
#define LFM3_ROPES                                                                                                                  \
	"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 5000, \"partial_rotary_factor\": 0.5}, " \
	"\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 300}}"
#define LFM3_TYPES TYPES("conv", "sliding_attention", "full_attention", "conv")
Test(config_recurrent, lfm_3_has_windows_and_a_gate_a_head)
{
	good(LFM3, LFM3_TYPES ", " LFM3_ROPES);
	cr_assert(layers_with(LAYER_RECURRENT) == 9 && layers_with(LAYER_WINDOW) == 2 && layers_with(LAYER_LOCAL_ROPE) == 2 && c.window == 256);
	cr_assert(c.head_dim == 128 && c.output_gate && c.post_norms && c.recurrent.taps == 7 && c.tied_embeddings && c.norm_eps == 1e-5f);
	cr_assert(c.rope.kind == ROPE_PROPORTIONAL && c.rope.dim == 64 && c.rope.head == 128 && c.rope.theta == 5000);
	cr_assert(c.local_rope.kind == ROPE_PLAIN && c.local_rope.dim == 128 && c.local_rope.theta == 300);
	good(LFM3, LFM3_TYPES ", " LFM3_ROPES ", \"use_attention_gate\": false, \"use_sandwich_norm\": false, \"sliding_window\": 8, \"conv_L_cache\": 3, "
			      "\"head_dim\": 12, \"norm_eps\": 1e-6, \"attention_bias\": false");
	cr_assert(!c.output_gate && !c.post_norms && c.window == 8 && c.recurrent.taps == 3 && c.rope.dim == 6 && c.rope.head == 12);
	good(LFM3, LFM3_TYPES ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\"}, \"sliding_attention\": {\"rope_type\": \"default\"}}");
	cr_assert(c.rope.theta == 1000000 && c.local_rope.theta == 1000000);
	refused(LFM3, LFM3_ROPES, ERR_FORMAT, "each conv, sliding_attention or full_attention");
	refused(LFM3, LFM3_TYPES, ERR_FORMAT, "\"rope_scaling\" (or \"rope_parameters\") is missing; of a " LFM3 " it must be an object");
	refused(LFM3, TYPES("conv", "chunked_attention", "full_attention", "conv") ", " LFM3_ROPES, ERR_UNSUPPORTED,
		"\"layer_types\"[1] is 'chunked_attention'; supported: conv, full_attention, sliding_attention");
	refused(LFM3, LFM3_TYPES ", " LFM3_ROPES ", \"sliding_window\": null", ERR_INVALID, "\"layer_types\" has sliding_attention, but \"sliding_window\" is null");
	refused(LFM3, LFM3_TYPES ", " LFM3_ROPES ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused(LFM3, LFM3_TYPES ", " LFM3_ROPES ", \"use_attention_gate\": 1", ERR_FORMAT, "\"use_attention_gate\" must be true or false");
	refused(LFM2, LFM3_TYPES, ERR_UNSUPPORTED, "\"layer_types\"[1] is 'sliding_attention'; supported: conv, full_attention");
	refused(LFM2, CONV ", \"use_attention_gate\": true", ERR_UNSUPPORTED, "\"use_attention_gate\" is set");
	refused(LFM2, CONV ", \"rope_scaling\": {\"rope_type\": \"proportional\"}", ERR_UNSUPPORTED, "rope_scaling of type 'proportional' is not supported");
}
