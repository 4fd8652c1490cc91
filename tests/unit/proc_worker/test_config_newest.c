/* What config.json says in the families of transformers 5.24 that came last, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

static struct model_config c;

#define STEP "Step3p5ForCausalLM"
#define STEP_SIZES                                                                                                              \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, \"num_nextn_predict_layers\": 1, " \
	"\"num_attention_heads\": 4, \"num_attention_groups\": 2, \"head_dim\": 16, \"max_position_embeddings\": 128, \"moe_num_experts\": 8, " \
	"\"moe_top_k\": 2, \"moe_intermediate_size\": 24, \"share_expert_dim\": 40"
#define STEP_KINDS "\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"]"

#define step(more)			 said_good(&c, STEP, STEP_SIZES, more)
#define step_refused(more, error, text) said_refused(STEP, STEP_SIZES, more, error, text)

Test(config_newest, lists_of_step_go_on_behind_the_layers)
{
	step(STEP_KINDS ", \"moe_layers_enum\": \"1, 3,4\", \"attention_other_setting\": {\"attention_type\": \"sliding_attention\", \"num_attention_heads\": 6, "
			"\"num_attention_groups\": 2}, \"rope_theta\": [5e6, 1e4, 1e4, 5e6, 1e4], \"partial_rotary_factors\": [0.5, 1, 1.0, 0.5, 1], "
			"\"moe_router_scaling_factor\": 3.0");
	cr_assert(c.layers == 4 && c.kv_heads == 2 && c.heads == 6 && model_heads(&c, 0) == 4 && model_heads(&c, 2) == 6 && model_heads(&c, 3) == 4);
	cr_assert(c.rope.theta == 5e6 && c.local_rope.theta == 1e4 && c.rope.dim == 8 && c.local_rope.dim == 16 && c.window == 8);
	cr_assert(!(c.layer_flags[0] & (LAYER_EXPERTS | LAYER_WINDOW)) && c.layer_flags[1] & LAYER_EXPERTS && c.layer_flags[1] & LAYER_WINDOW);
	cr_assert(!(c.layer_flags[2] & LAYER_EXPERTS) && c.layer_flags[3] & LAYER_EXPERTS && !c.limited);
	cr_assert(c.experts == 8 && c.experts_per_token == 2 && c.shared_intermediate == 40 && c.router.sigmoid && c.router.scale == 3 && c.normalize_experts);
	cr_assert(c.gate_by_head && c.output_gate && c.norm_offset == 1 && fabsf(c.attention_scale - 0.25f) < 1e-7f);
	step("\"query_pre_attn_scalar\": 4");
	cr_assert(c.attention_scale == 0.5f && !(c.layer_flags[2] & LAYER_EXPERTS) && c.layer_flags[3] & LAYER_EXPERTS && c.rope.theta == 10000);
	step(STEP_KINDS ", \"num_attention_heads\": 4, \"per_layer_config\": {\"1\": {\"num_attention_heads\": 2}}, \"num_sliding_attention_heads\": 8, \"rope_parameters\": "
			"{\"full_attention\": {\"rope_theta\": 7e5}, \"sliding_attention\": {\"rope_theta\": 3e4, \"partial_rotary_factor\": 0.25}}");
	cr_assert(model_heads(&c, 1) == 2 && model_heads(&c, 2) == 4 && c.rope.theta == 7e5 && c.local_rope.theta == 3e4 && c.local_rope.dim == 4);
}

Test(config_newest, gates_of_step_end_where_what_the_activation_makes_does)
{
	step("\"swiglu_limits\": [0.0, 7, null, 0.5, 3], \"swiglu_limits_shared\": [0, 0, 16.0, 0]");
	cr_assert(c.limited && c.expert_limits[0].up == 0 && c.expert_limits[1].up == 7 && c.expert_limits[2].up == 0 && c.expert_limits[3].up == 0.5f);
	for (u32 i = 1; i < 4; i += 2) {
		const double gate = (double)c.expert_limits[i].gate;
		cr_assert(fabs(gate / (1 + exp(-gate)) - (double)c.expert_limits[i].up) < 1e-6, "%g", gate);
	}
	cr_assert(c.mlp_limits[2].up == 16 && fabsf(c.mlp_limits[2].gate - 16) < 1e-4f && c.mlp_limits[1].up == 0);
	step("\"swiglu_limits\": [0, 0.0, null, 0], \"hidden_act\": \"swigluoai\"");
	cr_assert(!c.limited && c.activation == KERN_SILU);
	step_refused("\"swiglu_limits\": [7, 7]", ERR_FORMAT, "\"swiglu_limits\" must be an array of one for each of the 4 layers");
	step_refused("\"swiglu_limits\": [7, 7, -1, 7]", ERR_FORMAT, "\"swiglu_limits\"[2] must be a number above 0");
	step_refused("\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " STEP " it must be silu");
}

Test(config_newest, what_step_may_not_say_is_refused_by_name)
{
	step_refused("\"layer_types\": [\"full_attention\"]", ERR_FORMAT, "\"layer_types\" must be an array of one for each of the 4 layers");
	step_refused("\"layer_types\": [\"full_attention\", \"full_attention\", \"linear_attention\", \"full_attention\"]", ERR_UNSUPPORTED,
		     "\"layer_types\"[2] is 'linear_attention'; supported: full_attention, sliding_attention");
	step_refused("\"moe_layers_enum\": \"1,x\"", ERR_FORMAT, "\"moe_layers_enum\" must hold numbers of layers, found 'x'");
	step_refused("\"moe_layers_enum\": [1, \"2\"]", ERR_FORMAT, "\"moe_layers_enum\" must hold numbers of layers, found ");
	step_refused(STEP_KINDS ", \"rope_theta\": [1e4, 1e4, 2e4, 1e4]", ERR_UNSUPPORTED, "\"rope_theta\"[2] must be the number that other layers of its kind");
	step_refused(STEP_KINDS ", \"attention_other_setting\": {\"head_dim\": 8}", ERR_UNSUPPORTED, "\"head_dim\" of \"attention_other_setting\"");
	step_refused(STEP_KINDS ", \"per_layer_config\": {\"1\": {\"head_dim\": 8}}", ERR_UNSUPPORTED, "\"1\" of \"per_layer_config\" must be a layer's number");
	step_refused("\"per_layer_config\": [{\"num_attention_heads\": 2}]", ERR_FORMAT, "\"per_layer_config\" must be an object, found array");
	step_refused("\"per_layer_config\": {\"\": {\"num_attention_heads\": 2}}", ERR_UNSUPPORTED, "\"\" of \"per_layer_config\" must be a layer's number");
	step_refused("\"attention_other_setting\": 6", ERR_FORMAT, "\"attention_other_setting\" must be an object, found ");
	step_refused("\"moe_layers_enum\": \"-1\"", ERR_FORMAT, "\"moe_layers_enum\" must hold numbers of layers, found '-1'");
	step_refused(STEP_KINDS ", \"rope_parameters\": {\"full_attention\": {}}", ERR_FORMAT, "\"rope_parameters\" must hold an object for each of the kinds");
	step_refused("\"yarn_only_types\": [\"sliding_attention\"]", ERR_UNSUPPORTED, "\"yarn_only_types\" must be full_attention alone");
	step_refused("\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]", ERR_INVALID, "no \"sliding_window\" is in force");
	step_refused("\"use_rope_layers\": [1, 0]", ERR_UNSUPPORTED, "unknown field \"use_rope_layers\"");
	step_refused("\"norm_expert_weight\": false", ERR_UNSUPPORTED, "\"norm_expert_weight\" must be true for " STEP);
	step_refused("\"zero_centered\": false", ERR_UNSUPPORTED, "\"zero_centered\" must be true for " STEP);
	step_refused("\"use_head_wise_attn_gate\": false", ERR_UNSUPPORTED, "\"use_head_wise_attn_gate\" must be true for " STEP);
	step_refused("\"first_k_dense_replace\": 1", ERR_UNSUPPORTED, "\"first_k_dense_replace\" is set");
	step_refused("\"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	said_refused("LlamaForCausalLM", "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
		     "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5", "\"swiglu_limits\": [7, 7, 7, 7]", ERR_UNSUPPORTED, "\"swiglu_limits\" is set");
}

#define LING "BailingHybridForCausalLM"
#define LING_SIZES                                                                                                                  \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 7, \"num_attention_heads\": 4, "    \
	"\"max_position_embeddings\": 128, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 10, " \
	"\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"
#define ling(more)			 said_good(&c, LING, LING_SIZES, more)
#define ling_refused(more, error, text) said_refused(LING, LING_SIZES, more, error, text)

Test(config_newest, every_so_many_layers_of_ling_attend_to_latents_and_the_others_keep_a_state)
{
	ling("");
	for (u32 i = 0; i < 7; i++)
		cr_assert(!!(c.layer_flags[i] & LAYER_RECURRENT) == (i != 5) && !!(c.layer_flags[i] & LAYER_EXPERTS) == (i > 1) && !(c.layer_flags[i] & LAYER_NO_ROPE));
	cr_assert(c.recurrent.kind == RECURRENT_KDA && c.recurrent.taps == 4 && c.recurrent.heads == 4 && c.recurrent.key_dim == 128 && c.recurrent.value_dim == 128);
	cr_assert(c.recurrent.decay_bound == 5 && c.latent.q_rank == 0 && c.interleaved && c.rope.theta == 6e6 && c.rope.dim == 8 && c.norm_eps == 1e-6f);
	cr_assert(c.output_gate && c.gate_by_head && c.router.groups == 8 && c.router.groups_top == 4 && c.router.scale == 2.5f && c.normalize_experts);
	ling("\"layer_group_size\": 2, \"head_dim\": 6, \"short_conv_kernel_size\": 3, \"kda_lower_bound\": -0.5, \"q_lora_rank\": 20");
	cr_assert(c.recurrent.key_dim == 6 && c.recurrent.taps == 3 && c.recurrent.decay_bound == 0.5f && c.latent.q_rank == 20 && !(c.layer_flags[1] & LAYER_RECURRENT));
	ling("\"head_dim\": 8, \"linear_head_dim\": 6, \"linear_num_heads\": 2, \"linear_conv_kernel_dim\": 2, \"kda_safe_gate\": false, \"layer_types\": [\"full_attention\", "
	     "\"linear_attention\", \"linear_attention\", \"linear_attention\", \"linear_attention\", \"linear_attention\", \"linear_attention\"]");
	cr_assert(c.recurrent.key_dim == 6 && c.recurrent.heads == 2 && c.recurrent.taps == 2 && c.recurrent.decay_bound == 0 && !(c.layer_flags[0] & LAYER_RECURRENT));
	ling_refused("\"kda_lower_bound\": 0", ERR_FORMAT, "\"kda_lower_bound\" must be a number below 0");
	ling_refused("\"kda_lower_bound\": -1e-60", ERR_INVALID, "\"kda_lower_bound\"");
	ling_refused("\"layer_group_size\": 8", ERR_UNSUPPORTED, "none of the layers is one of attention");
	ling_refused("\"short_conv_kernel_size\": 1", ERR_UNSUPPORTED, "\"short_conv_kernel_size\" is 1; convolutions over 2 to 8 tokens are supported");
	ling_refused("\"linear_attn_config\": {\"kda_layers\": [1]}", ERR_UNSUPPORTED, "\"linear_attn_config\" is set, which is not supported for " LING);
	ling_refused("\"attention_bias\": true, \"q_lora_rank\": 20", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	ling_refused("\"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false for " LING);
	said_refused("KimiLinearForCausalLM", LING_SIZES, "\"q_lora_rank\": null, \"kda_safe_gate\": true", ERR_FORMAT, "\"linear_attn_config\" is missing");
}

#define HY4 "HYV4ForCausalLM"
#define HY4_SIZES                                                                                                                   \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "     \
	"\"max_position_embeddings\": 4096, \"kv_lora_rank\": 16, \"q_lora_rank\": 20, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, " \
	"\"v_head_dim\": 10, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"
#define hy4(more)			said_good(&c, HY4, HY4_SIZES, more)
#define hy4_refused(more, error, text) said_refused(HY4, HY4_SIZES, more, error, text)

Test(config_newest, streams_of_hy4_are_gated)
{
	hy4("");
	cr_assert(c.hyper.streams == 4 && c.hyper.magnitude == 2 && c.hyper.eps == 1e-6f && c.limited && c.expert_limits[1].gate == 10 && c.expert_limits[1].up == 10);
	cr_assert(c.mlp_limits[1].up == 0 && c.output_gate && !c.gate_by_head && !c.interleaved && c.latent.q_rank == 20 && c.router.scale == 2.827f && c.router.sigmoid);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && c.layer_flags[1] & LAYER_EXPERTS && c.layer_flags[2] & LAYER_EXPERTS && c.shared_intermediate == 24);
	cr_assert(c.context_max == 2048 && !strcmp(c.context_bound, "index_topk"));
	hy4("\"hc_mult\": 2, \"hc_magnitude\": 0.5, \"hc_eps\": 0.25, \"swiglu_limit\": 3, \"index_topk\": 8192, \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\"], "
	    "\"indexer_types\": [\"full\", \"shared\", \"shared\"], \"layer_types\": [\"indexed_attention\", \"indexed_attention\", \"indexed_attention\"]");
	cr_assert(c.hyper.streams == 2 && c.hyper.magnitude == 0.5f && c.hyper.eps == 0.25f && c.expert_limits[0].up == 3 && c.context_max == 4096 && !c.context_bound);
	cr_assert(c.layer_flags[0] & LAYER_EXPERTS && !(c.layer_flags[1] & LAYER_EXPERTS));
	hy4_refused("\"hc_mult\": 9", ERR_INVALID, "\"hc_mult\" is 9; it must be 1 to 8");
	hy4_refused("\"hc_magnitude\": 0", ERR_FORMAT, "\"hc_magnitude\" must be a number above 0");
	hy4_refused("\"hc_eps\": -1", ERR_FORMAT, "\"hc_eps\" must be a number above 0");
	hy4_refused("\"swiglu_limit\": 0", ERR_FORMAT, "\"swiglu_limit\" must be a number above 0");
	hy4_refused("\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " HY4 " it must be silu");
	hy4_refused("\"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	hy4_refused("\"first_k_dense_replace\": 2", ERR_UNSUPPORTED, "\"first_k_dense_replace\" is set");
	hy4_refused("\"rope_interleave\": true", ERR_UNSUPPORTED, "\"rope_interleave\" is set");
	said_refused("DeepseekV3ForCausalLM", HY4_SIZES, "\"n_group\": 1, \"topk_group\": 1, \"hc_mult\": 4", ERR_UNSUPPORTED, "\"hc_mult\" is set, which is not supported for DeepseekV3ForCausalLM");
}
