/* What config.json says of experts in families with fields of their own, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6"
#define QWEN_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

Test(config_experts, experts_of_granite_are_as_wide_as_the_file_says)
{
	good("GraniteMoeForCausalLM", "\"num_local_experts\": 8, \"num_experts_per_tok\": 3, \"residual_multiplier\": 0.5, "
				      "\"embedding_multiplier\": 6, \"logits_scaling\": 4, \"attention_multiplier\": 0.25");
	cr_assert(c.experts == 8 && c.experts_per_token == 3 && c.expert_intermediate == 80 && c.normalize_experts);
	cr_assert(c.embed_scale == 12 && c.logits_scale == 0.25f && c.attention_scale == 0.25f);
	cr_assert((c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[3] & LAYER_EXPERTS) && !c.attention_bias);
	refused("GraniteMoeForCausalLM", "\"num_experts_per_tok\": 2", ERR_FORMAT, "\"num_local_experts\" is missing");
	refused("GraniteMoeForCausalLM",
		"\"num_local_experts\": 8, \"num_experts_per_tok\": 3, \"shared_intermediate_size\": 64", ERR_UNSUPPORTED,
		"\"shared_intermediate_size\" is set, which is not supported for GraniteMoeForCausalLM");
	good("GraniteMoeSharedForCausalLM",
	     "\"num_local_experts\": 8, \"num_experts_per_tok\": 3, \"shared_intermediate_size\": 64");
	cr_assert(c.shared_intermediate == 64 && c.expert_intermediate == 80);
	good("GraniteMoeSharedForCausalLM", "\"num_local_experts\": 8, \"num_experts_per_tok\": 3");
	cr_assert_eq(c.shared_intermediate, 0);
	refused("GraniteMoeSharedForCausalLM",
		"\"num_local_experts\": 8, \"num_experts_per_tok\": 3, \"shared_intermediate_size\": -1", ERR_FORMAT,
		"\"shared_intermediate_size\" must be an integer from 0");
}

#define MIXER "\"num_local_experts\": 4, \"num_experts_per_tok\": 2"
/* 6 factors for heads of 12 dimensions. */
#define MIXER_ROPE(scales) \
	MIXER ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1], " \
	      "\"long_factor\": [2, 2, 2, 2, 2, 2], \"original_max_position_embeddings\": 64" scales "}"
Test(config_experts, experts_of_phi_are_weighed_among_those_near_them)
{
	static const char *const names[] = {"PhiMoEForCausalLM", "PhimoeForCausalLM"};

	for (u32 i = 0; i < 2; i++) {
		good(names[i], MIXER ", \"router_jitter_noise\": 0.25, \"input_jitter_noise\": 0.01, \"attention_bias\": true, "
				     "\"lm_head_bias\": true, \"hidden_dropout\": 0.0, \"sliding_window\": 200");
		cr_assert(c.router.mixer == 0.5f && c.attention_bias && c.lm_head_bias && c.arch->layer_norm && c.window == 200);
		cr_assert(c.experts == 4 && c.expert_intermediate == 80 && (c.layer_flags[0] & LAYER_EXPERTS));
	}
	good(names[0], MIXER);
	cr_assert(c.router.mixer == 0.02f && !c.lm_head_bias && !c.attention_bias && c.rope.theta == 1000000);
	good(names[0], MIXER_ROPE(", \"short_mscale\": 1.25, \"long_mscale\": 1.5"));
	cr_assert(c.rope.attention_factor == 1.25 && c.rope.far_factor == 1.5 && c.rope.original_context == 64);
	refused(names[0], MIXER_ROPE(""), ERR_FORMAT, "\"short_mscale\" is missing");
	refused(names[0], MIXER_ROPE(", \"short_mscale\": 1.25, \"long_mscale\": 0"), ERR_FORMAT, "\"long_mscale\" must be");
	refused("LlamaForCausalLM", MIXER_ROPE(", \"short_mscale\": 1.25, \"long_mscale\": 1.5"), ERR_UNSUPPORTED,
		"\"short_mscale\" in rope_scaling of type 'longrope'");
	refused(names[0], "\"num_local_experts\": 4, \"num_experts_per_tok\": 3", ERR_UNSUPPORTED, "\"num_experts_per_tok\" is 3");
	refused(names[0], MIXER ", \"router_jitter_noise\": 0", ERR_FORMAT, "\"router_jitter_noise\" must be a number above 0");
	refused(names[0], MIXER ", \"router_jitter_noise\": 2", ERR_INVALID, "\"router_jitter_noise\" is 2; it must be");
	refused("MixtralForCausalLM", MIXER ", \"lm_head_bias\": true", ERR_UNSUPPORTED, "\"lm_head_bias\" is set");
	good("MixtralForCausalLM", MIXER ", \"lm_head_bias\": false, \"router_jitter_noise\": 0.1");
	cr_assert(c.router.mixer == 0);
}

#define GLM_EXPERTS "\"n_routed_experts\": 8, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24"
Test(config_experts, experts_of_glm_are_chosen_by_biases_and_groups)
{
	good("Glm4MoeForCausalLM", GLM_EXPERTS);
	cr_assert(c.experts == 8 && c.expert_intermediate == 24 && c.shared_intermediate == 24 && c.normalize_experts);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS) && c.rope.dim == 6 && !c.head_norms);
	cr_assert(c.router.sigmoid && c.router.groups == 1 && c.router.scale == 1 && c.router.sum_plus == 1e-20f && c.router.sum_least == 0);
	good("Glm4MoeForCausalLM", GLM_EXPERTS ", \"first_k_dense_replace\": 3, \"n_shared_experts\": 2, \"norm_topk_prob\": false, "
					       "\"n_group\": 4, \"topk_group\": 2, \"routed_scaling_factor\": 2.5, "
					       "\"use_qk_norm\": true, \"num_nextn_predict_layers\": 1");
	cr_assert(!(c.layer_flags[2] & LAYER_EXPERTS) && (c.layer_flags[3] & LAYER_EXPERTS) && c.shared_intermediate == 48);
	cr_assert(c.router.groups == 4 && c.router.groups_top == 2 && c.router.scale == 2.5f && !c.normalize_experts && c.head_norms);
}

Test(config_experts, experts_of_glm_that_cannot_be_chosen_are_refused)
{
	refused("Glm4MoeForCausalLM", "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24", ERR_FORMAT,
		"\"num_experts\" is missing; it must be an integer from 1 to 4096 (the field \"n_routed_experts\"");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_group\": 3", ERR_INVALID, "\"n_group\" is 3; it must divide the 8 experts");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_group\": 8, \"topk_group\": 8", ERR_INVALID, "groups of at least two");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_group\": 2, \"topk_group\": 3", ERR_INVALID, "there are only 2 groups");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_group\": 4, \"topk_group\": 1", ERR_INVALID, "have only 2 experts");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_group\": 65", ERR_INVALID, "\"n_group\" is 65; it must be 1 to 64");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"routed_scaling_factor\": 1e39", ERR_INVALID, "\"routed_scaling_factor\" must be a");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"routed_scaling_factor\": 0", ERR_FORMAT, "\"routed_scaling_factor\" must be a");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"n_shared_experts\": 4096, \"first_k_dense_replace\": \"x\"", ERR_FORMAT,
		"\"first_k_dense_replace\" must be an integer from 0");
	refused("Glm4MoeForCausalLM",
		"\"n_routed_experts\": 8, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1024, \"n_shared_experts\": 4096",
		ERR_INVALID, "they are wider than 1048576");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"decoder_sparse_step\": 2", ERR_UNSUPPORTED, "\"decoder_sparse_step\" is set");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_local_experts\": 8", ERR_UNSUPPORTED, "\"num_local_experts\" is set");
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"n_group\": 2", ERR_UNSUPPORTED, "\"n_group\" is set");
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"routed_scaling_factor\": 2", ERR_UNSUPPORTED, "\"routed_scaling_factor\" is set");
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"first_k_dense_replace\": 1", ERR_UNSUPPORTED, "\"first_k_dense_replace\" is set");
	good("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 1.0");
	cr_assert(!c.router.sigmoid && c.router.groups == 0 && c.router.scale == 0);
}

#define ERNIE_EXPERTS "\"moe_num_experts\": 8, \"moe_k\": 2, \"moe_intermediate_size\": 24"
Test(config_experts, experts_of_ernie_are_in_the_layers_between_two)
{
	good("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS);
	cr_assert(c.experts == 8 && c.experts_per_token == 2 && c.shared_intermediate == 48 && c.tied_embeddings && c.normalize_experts);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS) && (c.layer_flags[3] & LAYER_EXPERTS));
	cr_assert(!c.router.sigmoid && c.router.sum_least == 1e-12f && c.router.sum_plus == 0 && c.rope.theta == 500000);
	good("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"moe_layer_start_index\": 0, \"moe_layer_end_index\": 2, "
						      "\"moe_layer_interval\": 2, \"moe_num_shared_experts\": 0, \"moe_norm_min\": 0.5, "
						      "\"moe_capacity\": [8, 8, 8], \"moe_use_aux_free\": true, \"use_bias\": false");
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS) && !(c.layer_flags[3] & LAYER_EXPERTS));
	cr_assert(c.shared_intermediate == 0 && c.router.sum_least == 0.5f);
	refused("Ernie4_5_MoeForCausalLM", "\"moe_k\": 2, \"moe_intermediate_size\": 24", ERR_FORMAT, "\"moe_num_experts\"");
	refused("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"use_bias\": true", ERR_UNSUPPORTED, "\"use_bias\" is set");
	refused("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"moe_use_aux_free\": false", ERR_UNSUPPORTED,
		"\"moe_use_aux_free\" must be true");
	refused("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"moe_layer_end_index\": -2", ERR_FORMAT, "\"moe_layer_end_index\" must be");
	refused("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"moe_norm_min\": 0", ERR_FORMAT, "\"moe_norm_min\" must be a number above 0");
	refused("LlamaForCausalLM", "\"moe_layer_interval\": 1", ERR_UNSUPPORTED, "\"moe_layer_interval\" is set");
}

Test(config_experts, an_expert_of_all_tokens_has_a_width_of_its_own)
{
	struct model_shard s;
	struct err_msg em;

	good("Qwen2MoeForCausalLM", QWEN_EXPERTS ", \"shared_expert_intermediate_size\": 66");
	cr_assert(c.shared_intermediate == 66 && c.attention_bias && c.window == 0);
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(s.shared_intermediate, 33);
	good("Qwen2MoeForCausalLM",
	     QWEN_EXPERTS ", \"shared_expert_intermediate_size\": 65, \"qkv_bias\": false");
	cr_assert(!c.attention_bias);
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the shared expert's intermediate size 65 cannot be divided"), "%s", em.text);
	refused("Qwen2MoeForCausalLM", QWEN_EXPERTS, ERR_FORMAT, "\"shared_expert_intermediate_size\" is missing");
	refused("Qwen2MoeForCausalLM",
		QWEN_EXPERTS ", \"shared_expert_intermediate_size\": 64, \"use_sliding_window\": true, "
		"\"sliding_window\": 8",
		ERR_UNSUPPORTED, "needs \"layer_types\"");
}

#define MINIMAX "MiniMaxM2ForCausalLM"
#define MINIMAX_EXPERTS "\"num_local_experts\": 8, \"num_experts_per_tok\": 3"
Test(config_experts, experts_of_minimax_are_chosen_by_a_bias)
{
	good(MINIMAX, MINIMAX_EXPERTS ", \"rotary_dim\": 6, \"head_dim\": 12, \"attn_type_list\": [1, 1, 1, 1], \"scoring_func\": \"sigmoid\", "
			      "\"use_routing_bias\": true, \"use_qk_norm\": true, \"qk_norm_type\": \"per_layer\", \"use_mtp\": true");
	cr_assert(c.router.sigmoid && c.rope.dim == 6 && c.head_dim == 12 && c.expert_intermediate == 80);
	good(MINIMAX, MINIMAX_EXPERTS);
	cr_assert(c.head_dim == 128 && c.rope.dim == 128 && c.kv_heads == 2);
	refused(MINIMAX, MINIMAX_EXPERTS ", \"rotary_dim\": 5", ERR_INVALID, "\"rotary_dim\" is 5; it must be even");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"rotary_dim\": 130", ERR_INVALID, "\"rotary_dim\" is 130; it must be 1 to 128");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"attn_type_list\": [1, 0, 1, 1]", ERR_UNSUPPORTED, "\"attn_type_list\"[1] is not 1");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"attn_type_list\": [1]", ERR_FORMAT, "an array of 4 numbers (num_hidden_layers), found array of 1");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"scoring_func\": \"softmax\"", ERR_UNSUPPORTED, "\"scoring_func\" is 'softmax'; of a " MINIMAX " it must be 'sigmoid'");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"use_routing_bias\": false", ERR_UNSUPPORTED, "\"use_routing_bias\" must be true for " MINIMAX);
	refused(MINIMAX, MINIMAX_EXPERTS ", \"qk_norm_type\": \"per_head\"", ERR_UNSUPPORTED, "\"qk_norm_type\"");
	refused(MINIMAX, MINIMAX_EXPERTS ", \"use_qk_norm\": false", ERR_UNSUPPORTED, "\"use_qk_norm\" must be true");
	refused("LlamaForCausalLM", "\"rotary_dim\": 6", ERR_UNSUPPORTED, "\"rotary_dim\" is set, which is not supported for LlamaForCausalLM");
	refused("LlamaForCausalLM", "\"use_routing_bias\": true", ERR_UNSUPPORTED, "unknown field \"use_routing_bias\"");
}

Test(config_experts, experts_of_qwen_3_vl_are_normalized_unless_it_says_otherwise)
{
	static const char whole[] = "\"text_config\": {\"model_type\": \"qwen3_vl_moe_text\", " SIZES ", " QWEN_EXPERTS "%s}";
	char more[1024];
	struct err_msg em;

	for (u32 i = 0; i < 3; i++) {
		const char *said[] = {"", ", \"norm_topk_prob\": false", ", \"norm_topk_prob\": true"};
		snprintf(more, sizeof(more), whole, said[i]);
		cr_assert_eq(said_parse(&c, "Qwen3VLMoeForConditionalGeneration", "\"model_type\": \"qwen3_vl_moe\"", more, &em), ERR_OK, "%s", em.text);
		cr_assert(c.normalize_experts == (i != 1) && (c.layer_flags[3] & LAYER_EXPERTS) && c.expert_intermediate == 24);
	}
	cr_assert_eq(said_parse(&c, "Qwen3VLMoeTextForCausalLM", SIZES, "", &em), ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "Qwen3VLMoeForConditionalGeneration") && !strstr(em.text, "Qwen3VLMoeTextModel"), "%s", em.text);
}

#define EXAONE_MOE "ExaoneMoeForCausalLM"
#define EXAONE_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 24"
Test(config_experts, layers_of_exaone_moe_with_a_window_rotate)
{
	good(EXAONE_MOE, EXAONE_EXPERTS);
	cr_assert(c.router.sigmoid && c.normalize_experts && c.router.scale == 2.5f && c.shared_intermediate == 24 && c.window == 4096);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS) && !(c.layer_flags[2] & LAYER_NO_ROPE));
	cr_assert((c.layer_flags[2] & LAYER_WINDOW) && !(c.layer_flags[3] & LAYER_WINDOW) && (c.layer_flags[3] & LAYER_NO_ROPE));
	good("ExaoneMoEForCausalLM", EXAONE_EXPERTS ", \"sliding_window\": 8, \"sliding_window_pattern\": \"LG\", \"num_shared_experts\": 2, "
						    "\"is_moe_layer\": [false, true, true, true], \"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\"");
	cr_assert(c.window == 8 && !(c.layer_flags[1] & LAYER_WINDOW) && (c.layer_flags[2] & LAYER_WINDOW) && c.shared_intermediate == 48);
	good(EXAONE_MOE, EXAONE_EXPERTS ", \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\", \"sparse\"], \"is_moe_layer\": [true, false, true, true]");
	cr_assert((c.layer_flags[0] & LAYER_EXPERTS) && !(c.layer_flags[1] & LAYER_EXPERTS));
	refused(EXAONE_MOE, EXAONE_EXPERTS ", \"is_moe_layer\": [true, true, true, true]", ERR_INVALID,
		"\"is_moe_layer\"[0] is true, but by \"mlp_layer_types\" or \"first_k_dense_replace\" the layer has no experts");
	refused(EXAONE_MOE, EXAONE_EXPERTS ", \"is_moe_layer\": [false, 1, true, true]", ERR_FORMAT, "\"is_moe_layer\"[1] must be true or false, found");
	refused(EXAONE_MOE, EXAONE_EXPERTS ", \"is_moe_layer\": [false]", ERR_FORMAT, "for each of the 4 layers, found array of 1");
	refused(EXAONE_MOE, EXAONE_EXPERTS ", \"topk_method\": \"greedy\"", ERR_UNSUPPORTED, "\"topk_method\" is 'greedy'");
	refused(EXAONE_MOE, EXAONE_EXPERTS ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused("Exaone4ForCausalLM", "\"is_moe_layer\": [false, true, true, true]", ERR_UNSUPPORTED, "\"is_moe_layer\" is set");
}

#define HUNYUAN_MOE "HunYuanMoEV1ForCausalLM"
#define HUNYUAN_EXPERTS "\"num_experts\": 8, \"moe_topk\": [3, 3, 3, 3]"
Test(config_experts, numbers_of_hunyuans_experts_may_be_arrays)
{
	good(HUNYUAN_MOE, "\"num_experts\": [8, 8, 8, 8], \"moe_topk\": 3, \"moe_intermediate_size\": 80");
	cr_assert(c.experts == 8 && c.experts_per_token == 3 && c.expert_intermediate == 80 && c.shared_intermediate == 80);
	good(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"moe_intermediate_size\": [80, 80, 80, 80], \"num_shared_expert\": [1, 1, 1, 1], \"attention_head_dim\": 16, "
					  "\"norm_topk_prob\": true, \"use_mixed_mlp_moe\": true, \"use_qk_norm\": true, \"capacity_factor\": 1.0");
	cr_assert(c.experts_per_token == 3 && c.normalize_experts && (c.layer_flags[0] & LAYER_EXPERTS) && c.head_dim == 16);
	refused(HUNYUAN_MOE, "\"num_experts\": 8, \"moe_topk\": [3, 3, 2, 3]", ERR_UNSUPPORTED, "layers whose experts differ are not supported");
	refused(HUNYUAN_MOE, "\"num_experts\": 8, \"moe_topk\": [3, 3, 3]", ERR_FORMAT, "an array of one for each of the 4 layers");
	refused(HUNYUAN_MOE, "\"num_experts\": 8, \"moe_topk\": [0, 0, 0, 0]", ERR_FORMAT, "\"num_experts_per_tok\" must be an integer from 1");
	refused(HUNYUAN_MOE, "\"num_experts\": [5000, 5000, 5000, 5000], \"moe_topk\": 1", ERR_INVALID, "\"num_experts\" is 5000; it must be 1 to 4096");
	refused(HUNYUAN_MOE, "\"num_experts\": 8, \"moe_topk\": 9", ERR_INVALID, "(the field \"moe_topk\" of a " HUNYUAN_MOE ")");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"moe_intermediate_size\": 64", ERR_UNSUPPORTED, "it must be \"intermediate_size\", which is 80");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"num_shared_expert\": [2, 2, 2, 2]", ERR_UNSUPPORTED, "\"num_shared_expert\" is 2; of a " HUNYUAN_MOE " it must be 1");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"norm_topk_prob\": false", ERR_UNSUPPORTED, "\"norm_topk_prob\" must be true");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"use_mixed_mlp_moe\": false", ERR_UNSUPPORTED, "\"use_mixed_mlp_moe\" must be true");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"moe_layer_num_skipped\": 1", ERR_UNSUPPORTED, "\"moe_layer_num_skipped\" is set");
	refused(HUNYUAN_MOE, HUNYUAN_EXPERTS ", \"use_cla\": true", ERR_UNSUPPORTED, "\"use_cla\" must be false");
	refused("MixtralForCausalLM", "\"num_local_experts\": [8, 8, 8, 8], \"num_experts_per_tok\": 2", ERR_FORMAT, "\"num_local_experts\" must be an integer");
	refused("LlamaForCausalLM", "\"num_shared_expert\": 1", ERR_UNSUPPORTED, "unknown field \"num_shared_expert\"");
}

#define AFMOE "AfmoeForCausalLM"
#define AFMOE_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"

Test(config_experts, afmoe_has_names_of_its_own_for_the_router)
{
	good(AFMOE, AFMOE_EXPERTS ", \"route_scale\": 2.5, \"num_shared_experts\": 3, \"num_dense_layers\": 2, \"mup_enabled\": true, \"score_func\": \"sigmoid\", "
				  "\"route_norm\": true, \"num_expert_groups\": 1, \"global_attn_every_n_layers\": 2, \"sliding_window\": 8");
	cr_assert(c.router.sigmoid && c.router.scale == 2.5f && c.normalize_experts && c.shared_intermediate == 72 && c.output_gate);
	cr_assert(!(c.layer_flags[1] & LAYER_EXPERTS) && (c.layer_flags[2] & LAYER_EXPERTS));
	cr_assert((c.layer_flags[0] & LAYER_WINDOW) && !(c.layer_flags[0] & LAYER_NO_ROPE) && (c.layer_flags[1] & LAYER_NO_ROPE) && c.window == 8);
	cr_assert_float_eq(c.embed_scale, sqrt(48), 1e-5);
	good(AFMOE, AFMOE_EXPERTS);
	cr_assert(c.embed_scale == 1 && c.window == 1024 && c.head_dim == 128 && c.shared_intermediate == 48 && (c.layer_flags[1] & LAYER_EXPERTS));
	refused(AFMOE, AFMOE_EXPERTS ", \"sliding_window\": null", ERR_UNSUPPORTED, "\"sliding_window\" is null; of a " AFMOE " it must be a number");
	refused(AFMOE, AFMOE_EXPERTS ", \"route_norm\": false", ERR_UNSUPPORTED, "\"route_norm\" must be true for " AFMOE);
	refused(AFMOE, AFMOE_EXPERTS ", \"score_func\": \"softmax\"", ERR_UNSUPPORTED, "of a " AFMOE " it must be 'sigmoid' (the field \"score_func\"");
	refused(AFMOE, AFMOE_EXPERTS ", \"n_group\": 2", ERR_UNSUPPORTED, "\"n_group\" is set, which is not supported for " AFMOE);
	refused(AFMOE, AFMOE_EXPERTS ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
}

#define COHERE2_MOE "Cohere2MoeForCausalLM"
#define COHERE2_EXPERTS "\"layer_norm_eps\": 1e-5, \"num_experts\": 8, \"num_experts_per_tok\": 2"
#define COHERE2_SIZES                                                                                      \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 24, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"max_position_embeddings\": 128"

Test(config_experts, cohere_2_has_layers_without_experts_in_front)
{
	said_good(&c, COHERE2_MOE, COHERE2_SIZES,
		  COHERE2_EXPERTS ", \"first_k_dense_replace\": 1, \"prefix_dense_intermediate_size\": 80, \"num_shared_experts\": 2, \"sliding_window_pattern\": 2");
	cr_assert(c.intermediate == 80 && c.expert_intermediate == 24 && c.shared_intermediate == 48 && c.router.scale == 0.5f && c.scales[SCALE_SHARED] == 0.5f);
	cr_assert(!(c.layer_flags[0] & (LAYER_EXPERTS | LAYER_WINDOW | LAYER_NO_ROPE)), "the first layer sees all and rotates");
	cr_assert((c.layer_flags[1] & LAYER_WINDOW) && (c.layer_flags[1] & LAYER_EXPERTS));
	cr_assert(!(c.layer_flags[2] & LAYER_WINDOW) && (c.layer_flags[2] & LAYER_NO_ROPE));
	cr_assert(!c.router.sigmoid && c.normalize_experts && c.arch->layer_norm && c.tied_embeddings);
	said_good(&c, COHERE2_MOE, COHERE2_SIZES,
		  COHERE2_EXPERTS ", \"rms_norm_eps\": 1e-6, \"expert_selection_fn\": \"sigmoid\", \"norm_topk_prob\": false, \"num_shared_experts\": 1, "
				  "\"shared_expert_combination_strategy\": \"sum\"");
	cr_assert(!c.arch->layer_norm && c.norm_eps == 1e-6f && c.router.sigmoid && !c.normalize_experts && c.router.scale == 1 && c.intermediate == 24);
	said_refused(COHERE2_MOE, COHERE2_SIZES, COHERE2_EXPERTS ", \"expert_selection_fn\": \"relu\"", ERR_UNSUPPORTED,
		     "\"expert_selection_fn\" is 'relu'; supported: softmax, sigmoid");
	said_refused(COHERE2_MOE, COHERE2_SIZES, COHERE2_EXPERTS ", \"shared_expert_combination_strategy\": \"max\"", ERR_UNSUPPORTED, "supported: average, sum");
	said_refused(COHERE2_MOE, COHERE2_SIZES, COHERE2_EXPERTS ", \"sliding_window\": null", ERR_UNSUPPORTED, "\"sliding_window\" is null");
	said_refused(COHERE2_MOE, COHERE2_SIZES, COHERE2_EXPERTS ", \"moe_intermediate_size\": 16", ERR_UNSUPPORTED, "\"moe_intermediate_size\" is set");
}

#define LING "BailingMoeV2ForCausalLM"
Test(config_experts, ling_2_is_sarvam_with_heads_that_rotate_in_part)
{
	good(LING, QWEN_EXPERTS ", \"num_shared_experts\": 1, \"moe_shared_expert_intermediate_size\": 24, \"use_qk_norm\": true, \"use_qkv_bias\": false, "
			   "\"use_bias\": false, \"use_rmsnorm\": true, \"norm_head\": false, \"score_function\": \"sigmoid\", \"router_dtype\": \"fp32\", "
			   "\"moe_router_enable_expert_bias\": true, \"first_k_dense_replace\": 1, \"n_group\": 2, \"topk_group\": 1, "
			   "\"routed_scaling_factor\": 2.5, \"partial_rotary_factor\": 0.5, \"mtp_loss_scaling_factor\": 0, \"head_dim\": 16");
	cr_assert(c.rope.dim == 8 && c.head_dim == 16 && !c.attention_bias && c.shared_intermediate == 24);
	cr_assert(c.router.sigmoid && c.router.groups == 2 && c.router.scale == 2.5f && c.normalize_experts);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS));
	refused(LING, QWEN_EXPERTS ", \"norm_head\": true", ERR_UNSUPPORTED, "\"norm_head\" must be false for " LING);
	refused(LING, QWEN_EXPERTS ", \"use_rmsnorm\": false", ERR_UNSUPPORTED, "\"use_rmsnorm\" must be true for " LING);
	refused(LING, QWEN_EXPERTS ", \"score_function\": \"softmax\"", ERR_UNSUPPORTED, "(the field \"score_function\" of a " LING ")");
	refused(LING, QWEN_EXPERTS ", \"moe_router_enable_expert_bias\": false", ERR_UNSUPPORTED, "must be true for " LING);
}

#define SARVAM "SarvamMoEForCausalLM"
Test(config_experts, sarvam_is_glm_4_5_under_other_names)
{
	good(SARVAM, QWEN_EXPERTS ", \"num_shared_experts\": 3, \"use_qk_norm\": true, \"use_qkv_bias\": true, \"num_mtp_layers\": 0, \"use_bias\": false, "
			     "\"score_function\": \"sigmoid\", \"moe_router_enable_expert_bias\": true, \"first_k_dense_replace\": 2, \"n_group\": 2, \"topk_group\": 1");
	cr_assert(c.head_dim == 64 && c.rope.dim == 64 && c.rope.theta == 8000000 && c.attention_bias && c.shared_intermediate == 72);
	cr_assert(c.router.sigmoid && c.router.groups == 2 && c.router.scale == 2.5f && c.normalize_experts && c.router.sum_plus == 1e-20f);
	cr_assert(!(c.layer_flags[1] & LAYER_EXPERTS) && (c.layer_flags[2] & LAYER_EXPERTS));
	good(SARVAM, "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"n_shared_experts\": 1, \"attention_bias\": false, "
		     "\"num_nextn_predict_layers\": 0, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000, \"partial_rotary_factor\": 1.0}");
	cr_assert(c.experts == 8 && c.shared_intermediate == 24 && !c.attention_bias && c.rope.theta == 5000 && (c.layer_flags[1] & LAYER_EXPERTS));
	/* what the published files say beside it, and names that others of this lineage have */
	good(SARVAM, QWEN_EXPERTS ", \"num_shared_experts\": 1, \"moe_shared_expert_intermediate_size\": 24, \"embedding_dropout\": 0.0, \"output_dropout\": 0.0, "
			     "\"attn_implementation\": \"eager\", \"max_window_layers\": 19, \"moe_router_enable_routed_scaling\": true, "
			     "\"moe_router_enable_shared_expert\": true");
	cr_assert(c.shared_intermediate == 24 && c.router.scale == 2.5f);
	good(SARVAM, QWEN_EXPERTS ", \"num_shared_experts\": 2, \"moe_shared_expert_intermediate_size\": 48");
	refused(SARVAM, QWEN_EXPERTS ", \"moe_shared_expert_intermediate_size\": 25", ERR_UNSUPPORTED,
		"\"moe_shared_expert_intermediate_size\" is 25; of a " SARVAM " it must be \"n_shared_experts\" times \"moe_intermediate_size\", which is 24");
	refused(SARVAM, QWEN_EXPERTS ", \"num_shared_experts\": 2, \"moe_shared_expert_intermediate_size\": 24", ERR_UNSUPPORTED, "which is 48");
	refused(SARVAM, QWEN_EXPERTS ", \"moe_shared_expert_intermediate_size\": -24", ERR_FORMAT, "\"moe_shared_expert_intermediate_size\" must be an integer");
	refused(SARVAM, QWEN_EXPERTS ", \"moe_router_enable_routed_scaling\": false", ERR_UNSUPPORTED, "\"moe_router_enable_routed_scaling\" must be true for " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"moe_router_enable_shared_expert\": false", ERR_UNSUPPORTED, "\"moe_router_enable_shared_expert\" must be true for " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"n_routed_experts\": 16", ERR_INVALID, "\"n_routed_experts\" and \"num_experts\" are the same field of a " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"score_function\": \"softmax\"", ERR_UNSUPPORTED, "(the field \"score_function\" of a " SARVAM ")");
	refused(SARVAM, QWEN_EXPERTS ", \"use_qk_norm\": false", ERR_UNSUPPORTED, "\"use_qk_norm\" must be true for " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"moe_router_enable_expert_bias\": false", ERR_UNSUPPORTED, "\"moe_router_enable_expert_bias\" must be true for " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"use_bias\": true", ERR_UNSUPPORTED, "\"use_bias\" is set, which is not supported for " SARVAM);
	refused(SARVAM, QWEN_EXPERTS ", \"partial_rotary_factor\": 0.5", ERR_UNSUPPORTED, "\"partial_rotary_factor\" is set");
}
