/* What config.json says of heads that share a latent, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 6, " \
	"\"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6"
#define RANKS "\"kv_lora_rank\": 24, \"q_lora_rank\": 20"
#define HEADS "\"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, \"v_head_dim\": 12"
#define EXPERTS "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24"
#define ALL RANKS ", " HEADS ", " EXPERTS
#define V2 "DeepseekV2ForCausalLM"
#define V3 "DeepseekV3ForCausalLM"
#define LITE "Glm4MoeLiteForCausalLM"
#define MINI "MiniCPM3ForCausalLM"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

static u32 expert_layers(void)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & LAYER_EXPERTS ? 1 : 0) << i;
	return bits;
}

Test(config_latent, a_token_is_one_latent_and_one_rotated_key)
{
	good(V3, ALL ", \"num_key_value_heads\": 4, \"head_dim\": 6, \"qk_head_dim\": 16");
	cr_assert(c.head_dim == 30 && c.kv_heads == 1 && c.heads == 4 && c.rope.dim == 6 && c.interleaved);
	cr_assert(c.latent.rank == 24 && c.latent.q_rank == 20 && c.latent.key == 10 && c.latent.rope == 6 && c.latent.value == 12);
	cr_assert_float_eq(c.attention_scale, 0.25, 1e-7);
	good(V2, "\"kv_lora_rank\": 24, \"q_lora_rank\": null, " HEADS ", " EXPERTS ", \"rope_interleave\": false");
	cr_assert(c.latent.q_rank == 0 && !c.interleaved);
	good(LITE, ALL ", \"attention_bias\": true");
	cr_assert(c.attention_bias && c.interleaved && expert_layers() == 62);
}

Test(config_latent, sizes_of_heads_are_refused_where_they_are_missing_or_contradict_each_other)
{
	refused(V3, "\"q_lora_rank\": 20, " HEADS ", " EXPERTS, ERR_FORMAT, "\"kv_lora_rank\" is missing");
	refused(V3, "\"kv_lora_rank\": 24, " HEADS ", " EXPERTS, ERR_FORMAT, "\"q_lora_rank\" is missing; it must be");
	refused(V2, RANKS ", \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, " EXPERTS, ERR_FORMAT, "\"v_head_dim\" is missing");
	refused(V3, ALL ", \"num_key_value_heads\": 2", ERR_UNSUPPORTED, "\"num_key_value_heads\" is 2; it must be \"num_attention_heads\"");
	refused(V3, ALL ", \"head_dim\": 16", ERR_UNSUPPORTED, "\"head_dim\" is 16; it must be \"qk_rope_head_dim\", which is 6");
	refused(V3, ALL ", \"qk_head_dim\": 18", ERR_UNSUPPORTED, "\"qk_head_dim\" is 18; it must be");
	refused(V3, "\"kv_lora_rank\": 24, \"q_lora_rank\": 20, \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 5, \"v_head_dim\": 12, " EXPERTS,
		ERR_UNSUPPORTED, "must be even");
	refused(V3, "\"kv_lora_rank\": 1024, \"q_lora_rank\": 20, " HEADS ", " EXPERTS, ERR_UNSUPPORTED, "together at most 1024");
	refused(V3, "\"kv_lora_rank\": 24, \"q_lora_rank\": null, " HEADS ", " EXPERTS ", \"attention_bias\": true", ERR_UNSUPPORTED,
		"\"attention_bias\" is true and \"q_lora_rank\" null");
	refused("LlamaForCausalLM", RANKS, ERR_UNSUPPORTED, "\"kv_lora_rank\"");
	refused(V3, ALL ", \"sliding_window\": 16", ERR_UNSUPPORTED, "\"sliding_window\" is set");
	refused(V3, ALL ", \"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
	refused(V3, ALL ", \"index_topk\": 2048", ERR_UNSUPPORTED, "unknown field \"index_topk\"");
}

#define YARN_OF(more) ALL ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32" more "}"
Test(config_latent, yarn_scales_scores_by_what_it_says_of_all_dimensions)
{
	const double all = 0.1 * 0.5 * log(4) + 1, part = 0.1 * 0.8 * log(4) + 1;

	good(V3, YARN_OF(", \"mscale\": 0.8, \"mscale_all_dim\": 0.5"));
	cr_assert_float_eq(c.attention_scale, 0.25 * all * all, 1e-6);
	cr_assert_float_eq(c.rope.attention_factor, part / all, 1e-9);
	good(V2, YARN_OF(""));
	cr_assert_float_eq(c.attention_scale, 0.25, 1e-7);
	good("LlamaForCausalLM", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 0.8, \"mscale_all_dim\": 0.5}");
	cr_assert_float_eq(c.attention_scale, 1 / sqrt(12), 1e-7); /* which has it in the rotation alone */
}

Test(config_latent, routers_are_those_of_the_family)
{
	good(V3, ALL ", \"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\"");
	cr_assert(c.router.sigmoid && c.router.groups == 8 && c.router.groups_top == 4 && c.router.scale == 2.5f && c.normalize_experts);
	cr_assert(expert_layers() == 56 && c.shared_intermediate == 24 && !c.router.groups_best);
	good(V3, ALL ", \"moe_layer_freq\": 2, \"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 1, \"norm_topk_prob\": false");
	cr_assert(expert_layers() == 20 && !c.normalize_experts);
	good(V3, ALL ", \"num_mtp_layers\": 1, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"ep_size\": 1");
	good(V2, ALL ", \"topk_method\": \"greedy\", \"n_group\": 4, \"topk_group\": 2, \"scoring_func\": \"softmax\"");
	cr_assert(!c.router.sigmoid && c.router.groups <= 1 && c.router.scale == 1 && !c.normalize_experts);
	cr_assert(expert_layers() == 63 && c.shared_intermediate == 48);
	good(V2, ALL ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 4, \"topk_group\": 2, \"routed_scaling_factor\": 16");
	cr_assert(c.router.groups_best && c.router.groups == 4 && c.router.groups_top == 2 && c.router.scale == 16);
	good(LITE, ALL ", \"mlp_layer_types\": [\"dense\", \"sparse\", \"dense\", \"sparse\", \"sparse\", \"dense\"], \"first_k_dense_replace\": 1");
	cr_assert(expert_layers() == 26 && c.router.scale == 1.8f && c.router.groups == 1);
}

Test(config_latent, routers_of_others_are_refused_by_name)
{
	refused(V3, ALL ", \"topk_method\": \"greedy\"", ERR_UNSUPPORTED, "\"topk_method\" is 'greedy'; of a " V3 " it must be 'noaux_tc'");
	refused(V3, ALL ", \"scoring_func\": \"softmax\"", ERR_UNSUPPORTED, "\"scoring_func\" is 'softmax'");
	refused(V3, ALL ", \"topk_method\": 3", ERR_UNSUPPORTED, "\"topk_method\"");
	refused(V2, ALL ", \"topk_method\": \"noaux_tc\"", ERR_UNSUPPORTED, "\"topk_method\" is 'noaux_tc'; of a " V2 " it must be 'greedy'");
	refused(V2, ALL ", \"norm_topk_prob\": true", ERR_UNSUPPORTED, "\"norm_topk_prob\" must be false");
	refused(V2, ALL ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 3", ERR_INVALID, "\"n_group\" is 3");
	refused(V2, ALL ", \"num_nextn_predict_layers\": 1", ERR_UNSUPPORTED, "\"num_nextn_predict_layers\" is set");
	refused(V3, ALL ", \"moe_layer_freq\": 0", ERR_INVALID, "\"moe_layer_freq\" is 0");
	refused(LITE, ALL ", \"mlp_layer_types\": [\"dense\"]", ERR_FORMAT, "a word for each of the 6 layers");
	refused(LITE, ALL ", \"mlp_layer_types\": [\"dense\", \"sparse\", \"x\", \"dense\", \"dense\", \"dense\"]", ERR_UNSUPPORTED,
		"\"mlp_layer_types\"[2] is 'x'");
	refused("Glm4MoeForCausalLM", EXPERTS ", \"num_key_value_heads\": 2, \"moe_layer_freq\": 2", ERR_UNSUPPORTED, "\"moe_layer_freq\" is set");
}

#define FP8(more) ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]" more "}"
Test(config_latent, scales_of_fp8_may_be_powers_of_two)
{
	good(V3, ALL FP8(", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", \"scale_fmt\": \"ue8m0\""));
	const struct quant_scheme *q = c.quant.schemes;
	cr_assert(c.quant.count == 1 && q->format == QUANT_FP8 && q->block_rows == 128 && q->scale_inverse);
	good(V3, ALL FP8(", \"scale_fmt\": null"));
	refused(V3, ALL FP8(", \"scale_fmt\": \"e5m2\""), ERR_UNSUPPORTED, "\"scale_fmt\" is 'e5m2'; supported: float, ue8m0");
}

#define DENSE RANKS ", \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6"
Test(config_latent, minicpm_counts_blocks_by_the_number_of_layers)
{
	good(MINI, DENSE ", \"scale_emb\": 3, \"scale_depth\": 1.5, \"dim_model_base\": 12");
	cr_assert(c.latent.value == 12 && !c.interleaved && c.tied_embeddings && !c.experts);
	cr_assert_float_eq(c.embed_scale, 3 * sqrt(6) / 1.5, 1e-5);
	cr_assert_float_eq(c.norm_eps, 1e-6 * 6 / (1.5 * 1.5), 1e-10);
	cr_assert_float_eq(c.logits_scale, 0.25, 1e-7);
	cr_assert_float_eq(c.attention_scale, 0.25, 1e-7);
	good(MINI, DENSE);
	cr_assert_float_eq(c.embed_scale, 12 * sqrt(6) / 1.4, 1e-5);
	cr_assert_float_eq(c.logits_scale, 256.0 / 48, 1e-6);
	refused(MINI, DENSE ", \"scale_depth\": 0", ERR_FORMAT, "\"scale_depth\" must be a number above 0");
	refused(MINI, DENSE ", \"scale_depth\": 1e-30", ERR_INVALID, "\"scale_depth\" is 1e-30");
	refused(MINI, DENSE ", \"n_routed_experts\": 8", ERR_UNSUPPORTED, "\"n_routed_experts\"");
	refused("LlamaForCausalLM", "\"scale_emb\": 12", ERR_UNSUPPORTED, "\"scale_emb\" is set");
}

#define MISTRAL "Mistral4ForCausalLM"
#define FAR "\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32, \"llama_4_scaling_beta\": 0.1"
Test(config_latent, heads_of_mistral_4_are_stated_as_a_whole)
{
	good(MISTRAL, ALL ", \"head_dim\": 16, \"rope_parameters\": {" FAR ", \"partial_rotary_factor\": 0.375}");
	cr_assert(c.rope.dim == 6 && c.latent.rope == 6 && c.rope.query_beta == 0.1 && c.interleaved && expert_layers() == 63);
	cr_assert(!c.router.sigmoid && c.normalize_experts && c.shared_intermediate == 24);
	good(MISTRAL, ALL ", \"first_k_dense_replace\": 2, \"rope_parameters\": {" FAR "}");
	cr_assert(c.rope.dim == 6 && expert_layers() == 60);
	refused(MISTRAL, ALL ", \"head_dim\": 16", ERR_FORMAT, "\"rope_parameters\" is missing, which a " MISTRAL " must have");
	refused(MISTRAL, ALL ", \"head_dim\": 6, \"rope_parameters\": {" FAR "}", ERR_UNSUPPORTED, "\"head_dim\" is 6; it must be");
	refused(MISTRAL, ALL ", \"rope_parameters\": {" FAR ", \"partial_rotary_factor\": 0.5}", ERR_INVALID, "rotates 3 of a head's 6");
	refused(V3, ALL ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.375}", ERR_UNSUPPORTED,
		"\"partial_rotary_factor\" is set, which is not supported for " V3);
	refused(V3, ALL ", \"llama_4_scaling_beta\": 0.1", ERR_UNSUPPORTED, "unknown field \"llama_4_scaling_beta\"");
}

Test(config_latent, youtu_has_no_experts)
{
	good("YoutuForCausalLM", RANKS ", " HEADS ", \"rope_theta\": 1600000, \"embedding_initializer_range\": 0.04");
	cr_assert(c.tied_embeddings && c.interleaved && c.experts == 0 && c.rope.theta == 1600000);
	refused("YoutuForCausalLM", ALL, ERR_UNSUPPORTED, "unknown field \"n_routed_experts\"");
}

#define SARVAM "SarvamMLAForCausalLM"
#define SARVAM_ALL "\"kv_lora_rank\": 24, \"q_lora_rank\": null, " HEADS ", \"num_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24"
Test(config_latent, sarvam_is_deepseek_v3_under_other_names)
{
	good(SARVAM, SARVAM_ALL ", \"num_shared_experts\": 2, \"head_dim\": 30, \"q_head_dim\": 16, \"score_function\": \"sigmoid\", \"rope_scaling\": "
				"{\"type\": \"deepseek_yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32, \"mscale_all_dim\": 1.0, \"mscale\": 1.0}");
	cr_assert(c.latent.q_rank == 0 && c.interleaved && c.rope.kind == ROPE_YARN && c.rope.attention_factor == 1 && c.shared_intermediate == 48);
	cr_assert(c.router.sigmoid && c.router.groups == 1 && c.router.scale == 2.5f && expert_layers() == 62);
	cr_assert_float_eq(c.attention_scale, 0.25 * pow(0.1 * log(4) + 1, 2), 1e-6);
	good(SARVAM, ALL ", \"head_dim\": 6, \"num_mtp_layers\": 0, \"n_shared_experts\": 1");
	cr_assert(c.latent.q_rank == 20 && c.shared_intermediate == 24);
	refused(SARVAM, SARVAM_ALL ", \"q_head_dim\": 18", ERR_UNSUPPORTED, "(the field \"q_head_dim\" of a " SARVAM ")");
	refused(SARVAM, SARVAM_ALL ", \"moe_router_enable_expert_bias\": false", ERR_UNSUPPORTED, "\"moe_router_enable_expert_bias\" must be true");
	refused("LlamaForCausalLM", "\"rope_scaling\": {\"type\": \"deepseek_yarn\", \"factor\": 4}", ERR_UNSUPPORTED,
		"rope_scaling of type 'deepseek_yarn' is not supported");
}

#define INDEXED "\"index_n_heads\": 4, \"index_head_dim\": 16, "
Test(config_latent, layers_attend_to_chosen_tokens_of_contexts_that_have_more)
{
	static const char *const families[] = {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"};

	for (size_t i = 0; i < COUNT_OF(families); i++) {
		good(families[i], INDEXED ALL ", \"index_topk\": 64");
		cr_assert(c.context_max == 128 && !c.context_bound && c.interleaved && expert_layers() == 56 && c.router.scale == 2.5f);
		cr_assert(c.index.top == 64 && c.index.heads == 4 && c.index.width == 16 && c.index.interleaved == (i == 1));
		for (u32 layer = 0; layer < c.layers; layer++)
			cr_assert(model_chooses(&c, layer));
		cr_assert_eq(c.router.groups, i == 0 ? 8 : 1);
		good(families[i], ALL ", \"index_topk\": 64, \"rope_interleave\": true, \"indexer_rope_interleave\": true, "
				      "\"indexer_types\": [\"full\", \"full\", \"full\", \"full\", \"full\", \"full\"], "
				      "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32}, "
				      "\"layer_types\": [\"indexed_attention\", \"indexed_attention\"]");
		cr_assert(c.context_max == 128 && c.rope.original_context == 32 && c.rope.factor == 4 && c.index.interleaved);
		cr_assert(c.index.heads == (i == 0 ? 64 : 32) && c.index.width == 128);
		good(families[i], INDEXED ALL ", \"index_topk\": 128");
		cr_assert(c.context_max == 128 && c.index.top == 0 && !model_chooses(&c, 0));
		good(families[i], ALL);
		cr_assert(c.context_max == 128 && c.index.top == 0);
		refused(families[i], ALL ", \"index_head_dim\": 4", ERR_UNSUPPORTED, "\"index_head_dim\" is 4; it must be even, and no less than");
		refused(families[i], ALL ", \"index_head_dim\": 19", ERR_UNSUPPORTED, "\"index_head_dim\" is 19; it must be even");
		refused(families[i], ALL ", \"indexer_types\": [\"full\"]", ERR_FORMAT, "\"indexer_types\" must be an array of a word for each of the 6 layers");
		refused(families[i], ALL ", \"index_topk_pattern\": \"FFFFFX\"", ERR_UNSUPPORTED, "\"index_topk_pattern\"[5] is 'FFFFFX'; supported: full, shared");
		refused(families[i], ALL ", \"index_topk_pattern\": \"SFFFFF\"", ERR_INVALID, "layer 0 takes over what a layer before it has chosen");
		refused(families[i], ALL ", \"index_bias\": 1", ERR_UNSUPPORTED, "unknown field \"index_bias\"");
		refused(families[i], ALL ", \"index_topk\": 0", ERR_INVALID, "\"index_topk\" is 0");
		refused(families[i], ALL ", \"rope_interleave\": false", ERR_UNSUPPORTED, "\"rope_interleave\" must be true for");
		refused(families[i], ALL ", \"layer_types\": [\"full_attention\"]", ERR_UNSUPPORTED,
			"\"layer_types\" has 'full_attention'; of a");
		refused(families[i], "\"kv_lora_rank\": 24, \"q_lora_rank\": null, " HEADS ", " EXPERTS, ERR_UNSUPPORTED, "\"q_lora_rank\" is null; of a");
	}
}

/* The layers that choose, a bit each. */
static u32 choosers(void)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)model_chooses(&c, i) << i;
	return bits;
}

Test(config_latent, layers_take_over_what_others_have_chosen)
{
	static const char glm[] = "GlmMoeDsaForCausalLM";

	good(glm, ALL ", \"index_topk\": 64, \"indexer_types\": [\"full\", \"shared\", \"full\", \"shared\", \"shared\", \"full\", \"shared\"]");
	cr_assert_eq(choosers(), 0x25);
	good(glm, ALL ", \"index_topk\": 64, \"index_topk_pattern\": \"FFSSFS\"");
	cr_assert_eq(choosers(), 0x13);
	good(glm, ALL ", \"index_topk\": 64, \"index_topk_pattern\": [\"full\", \"shared\", \"shared\", \"shared\", \"full\", \"full\"]");
	cr_assert_eq(choosers(), 0x31);
	good(glm, ALL ", \"index_topk\": 64, \"index_topk_freq\": 3, \"index_skip_topk_offset\": 1");
	cr_assert_eq(choosers(), 0x9);
	good(glm, ALL ", \"index_topk\": 64, \"index_topk_freq\": 2");
	cr_assert_eq(choosers(), 0x2b);
	refused("DeepseekV32ForCausalLM", ALL ", \"index_topk\": 64, \"index_topk_freq\": 2", ERR_UNSUPPORTED,
		"layer 2 takes over what another has chosen; of a DeepseekV32ForCausalLM all layers choose by themselves");
}

Test(config_latent, a_x_k2_has_gates_of_norms_and_of_values)
{
	static const char axk2[] = "AXK2ForCausalLM";

	good(axk2, ALL ", \"index_topk\": 64, \"gated_norm_rank\": 5, \"n_group\": null, \"topk_group\": null, \"moe_layer_freq\": 2");
	cr_assert(c.norm_gate_rank == 5 && c.latent.gated && c.index.top == 64 && c.index.heads == 16 && !c.index.interleaved && c.interleaved);
	cr_assert(c.router.groups <= 1 && expert_layers() == 0x14);
	good(axk2, ALL);
	cr_assert(c.norm_gate_rank == 16 && expert_layers() == 62 && c.router.scale == 2.5f);
	refused(axk2, ALL ", \"gated_norm_rank\": 0", ERR_INVALID, "\"gated_norm_rank\" is 0");
	refused(V3, ALL ", \"gated_norm_rank\": 8", ERR_UNSUPPORTED, "\"gated_norm_rank\" is set, which is not supported for " V3);
	good(V3, ALL);
	cr_assert(c.norm_gate_rank == 0 && !c.latent.gated);
}

#define AXK1 "AXK1ForCausalLM"
Test(config_latent, a_x_k1_is_deepseek_v3_with_layers_of_experts_listed)
{
	good(AXK1, ALL ", \"topk_method\": \"noaux_tc\", \"moe_layer_freq\": 1, \"scoring_func\": \"sigmoid\", \"rope_interleave\": false");
	cr_assert(c.router.sigmoid && c.router.groups == 8 && c.router.groups_top == 4 && c.router.scale == 2.5f && !c.choice_bias && !c.interleaved);
	cr_assert(expert_layers() == 62 && c.shared_intermediate == 24);
	good(AXK1, ALL ", \"mlp_layer_types\": [\"dense\", \"sparse\", \"dense\", \"sparse\", \"sparse\", \"dense\"], \"n_group\": 1, \"topk_group\": 1");
	cr_assert(expert_layers() == 26 && c.router.groups == 1);
	refused(AXK1, ALL ", \"scoring_func\": \"softmax\"", ERR_UNSUPPORTED, "\"scoring_func\" is 'softmax'; of a " AXK1 " it must be 'sigmoid'");
	refused(AXK1, ALL ", \"index_topk\": 64", ERR_UNSUPPORTED, "unknown field \"index_topk\"");
}
