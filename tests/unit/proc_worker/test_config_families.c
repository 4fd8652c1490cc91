/* What config.json says in families with fields of their own, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/rope.h"
#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6"
#define QWEN_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"
#define QUERIES "\"rope_type\": \"yarn\", \"factor\": 4, \"llama_4_scaling_beta\": 0.1"
#define QUERIES_ROPE "\"rope_parameters\": {" QUERIES ", \"original_max_position_embeddings\": 32}"
#define GLM_EXPERTS "\"n_routed_experts\": 8, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24"
#define ERNIE_EXPERTS "\"moe_num_experts\": 8, \"moe_k\": 2, \"moe_intermediate_size\": 24"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

Test(config_families, layers_of_ministral_need_not_be_alike)
{
	static const char types[] = "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
				    "\"sliding_attention\", \"sliding_attention\"]";

	good("MinistralForCausalLM", types);
	cr_assert(c.window == 8 && (c.layer_flags[0] & LAYER_WINDOW) && !(c.layer_flags[1] & LAYER_WINDOW));
	good("MinistralForCausalLM", "\"head_dim\": 16");
	cr_assert(c.window == 4096 && (c.layer_flags[1] & LAYER_WINDOW));
	refused("MistralForCausalLM", types, ERR_UNSUPPORTED, "in a MistralForCausalLM all layers are alike");
}

Test(config_families, queries_far_behind_the_original_context_count_more)
{
	struct rope_tables t;
	struct err_msg em;

	good("Ministral3ForCausalLM", QUERIES_ROPE);
	cr_assert(c.head_dim == 128 && c.rope.theta == 1000000 && c.rope.query_beta == 0.1 && c.rope.original_context == 32);
	cr_assert_eq(rope_tables_init(&t, &c.rope, NULL, 100, 8, &em), ERR_OK);
	cr_assert_eq(t.q_scales[31], 1);
	cr_assert_float_eq(t.q_scales[32], 1 + 0.1 * log(2), 1e-6);
	cr_assert_float_eq(t.q_scales[99], 1 + 0.1 * log(4), 1e-6);
	rope_tables_fini(&t);
	good("Ministral3ForCausalLM", "\"rope_parameters\": {\"rope_type\": \"default\"}");
	cr_assert_eq(rope_tables_init(&t, &c.rope, NULL, 100, 8, &em), ERR_OK);
	cr_assert_null(t.q_scales);
	rope_tables_fini(&t);
}

Test(config_families, what_queries_count_is_refused_where_it_contradicts_itself)
{
	refused("Ministral3ForCausalLM", "\"rope_theta\": 1000", ERR_FORMAT,
		"\"rope_parameters\" is missing, which a Ministral3ForCausalLM must have");
	refused("Ministral3ForCausalLM", "\"rope_parameters\": {" QUERIES "}", ERR_FORMAT,
		"\"original_max_position_embeddings\" is missing");
	refused("Ministral3ForCausalLM",
		"\"original_max_position_embeddings\": 64, " QUERIES_ROPE, ERR_INVALID, "is 32 in rope_parameters, but elsewhere 64");
	refused("Ministral3ForCausalLM",
		"\"rope_parameters\": {" QUERIES ", \"max_position_embeddings\": 64, \"original_max_position_embeddings\": 32}",
		ERR_INVALID, "\"max_position_embeddings\" is 64 in rope_parameters, but 128 beside the sizes");
	refused("Ministral3ForCausalLM", "\"rope_parameters\": {\"llama_4_scaling_beta\": -1}", ERR_FORMAT,
		"\"llama_4_scaling_beta\" must be a number above 0");
	refused("Ministral3ForCausalLM", "\"rope_parameters\": {\"llama_4_scaling_beta\": 1e308}", ERR_INVALID,
		"\"llama_4_scaling_beta\" is 1e+308; it must be at most 65536");
	refused("LlamaForCausalLM", QUERIES_ROPE, ERR_UNSUPPORTED, "\"llama_4_scaling_beta\" in rope_scaling of type 'yarn'");
}

Test(config_families, multipliers_become_scales_that_the_decoder_has)
{
	good("GraniteForCausalLM",
	     "\"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.25, \"attention_multiplier\": 0.02, "
	     "\"logits_scaling\": 8.0");
	cr_assert(c.embed_scale == 48 && c.logits_scale == 0.125f && c.attention_scale == 0.02f);
	cr_assert_float_eq(c.norm_eps, 1.6e-5, 1e-9);
	good("GraniteForCausalLM", "");
	cr_assert(c.embed_scale == 1 && c.logits_scale == 1 && c.attention_scale == 1);
	good("LlamaForCausalLM", "\"logits_scaling\": 1.0");
	cr_assert_eq(c.logits_scale, 1);
	refused("GraniteForCausalLM", "\"residual_multiplier\": 0", ERR_FORMAT, "\"residual_multiplier\" must be a number above 0");
	refused("LlamaForCausalLM", "\"attention_multiplier\": 0.1", ERR_UNSUPPORTED, "\"attention_multiplier\" is set");
}

Test(config_families, norms_of_olmo_have_one_epsilon_and_its_projections_may_have_bounds)
{
	good("OlmoForCausalLM", "");
	cr_assert(c.norm_eps == 1e-5f && c.clip == 0 && c.kv_heads == 2 && !c.attention_bias);
	good("OlmoForCausalLM", "\"clip_qkv\": 8.0, \"layer_norm_eps\": 1e-5");
	cr_assert(c.clip == 8);
	good("OlmoeForCausalLM", "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"clip_qkv\": 0.5");
	cr_assert(c.clip == 0.5f);
	refused("OlmoForCausalLM", "\"layer_norm_eps\": 1e-6", ERR_UNSUPPORTED, "of a OlmoForCausalLM it must be 1e-05");
	refused("OlmoForCausalLM", "\"clip_qkv\": 0", ERR_FORMAT, "\"clip_qkv\" must be a number above 0");
	refused("OlmoForCausalLM", "\"clip_qkv\": 1e39", ERR_INVALID, "\"clip_qkv\" must be a number of a float");
	refused("Olmo2ForCausalLM", "\"clip_qkv\": 8", ERR_UNSUPPORTED, "\"clip_qkv\" is set");
}

#define ALPHA "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1.0, \"beta_fast\": 32, \"mscale\": 1.0, \"alpha\": "
Test(config_families, dynamic_scaling_of_hunyuan_is_another_theta)
{
	good("HunYuanDenseV1ForCausalLM", "\"head_dim\": 12, \"attention_head_dim\": 12, \"norm_type\": \"rms\", \"use_cla\": false, "
					  "\"use_qk_norm\": true, \"use_rotary_pos_emb\": true, " ALPHA "1000}");
	cr_assert_eq(c.rope.kind, ROPE_PLAIN);
	cr_assert_float_eq(c.rope.theta, 10000 * pow(1000, 1.2), 1);
	cr_assert_eq(c.context_max, 128);
	good("HunYuanDenseV1ForCausalLM", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}");
	cr_assert(c.rope.kind == ROPE_DYNAMIC && c.rope.theta == 10000);
	refused("HunYuanDenseV1ForCausalLM", ALPHA "0}", ERR_FORMAT, "\"alpha\" must be a number above 0");
	refused("HunYuanDenseV1ForCausalLM", ALPHA "1e9}", ERR_INVALID, "\"alpha\" of rope_scaling is 1e+09; it must be at most 65536");
	refused("HunYuanDenseV1ForCausalLM", "\"head_dim\": 12, \"attention_head_dim\": 16", ERR_INVALID,
		"\"attention_head_dim\" and \"head_dim\" are the same field");
	refused("HunYuanDenseV1ForCausalLM", "\"use_cla\": true", ERR_UNSUPPORTED, "\"use_cla\" must be false");
	refused("HunYuanDenseV1ForCausalLM", "\"use_qk_norm\": false", ERR_UNSUPPORTED, "\"use_qk_norm\" must be true");
	refused("HunYuanDenseV1ForCausalLM", "\"norm_type\": \"fused\"", ERR_UNSUPPORTED, "\"norm_type\"");
	refused("LlamaForCausalLM", ALPHA "1000}", ERR_UNSUPPORTED, "in rope_scaling of type 'dynamic' is not supported");
}

Test(config_families, numbers_that_are_only_checked_are_checked)
{
	static const char next[] = "\"num_nextn_predict_layers\" ";

	good("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": 0");
	good("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": null");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": \"one\"", ERR_FORMAT, next);
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": -1", ERR_FORMAT, "must be an integer from 0 to 4096");
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": 0.5", ERR_FORMAT, next);
	refused("Glm4MoeForCausalLM", GLM_EXPERTS ", \"num_nextn_predict_layers\": 4097", ERR_INVALID, "is 4097; it must be 0 to 4096");
	refused("Ernie4_5_MoeForCausalLM", ERNIE_EXPERTS ", \"num_nextn_predict_layers\": true", ERR_FORMAT, next);
	good("Qwen2ForCausalLM", "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 70");
	cr_assert(!(c.layer_flags[3] & LAYER_WINDOW));
	refused("Qwen2ForCausalLM", "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": \"3\"", ERR_FORMAT,
		"\"max_window_layers\" must be an integer from 0");
	refused("Qwen2ForCausalLM", "\"max_window_layers\": -1", ERR_FORMAT, "\"max_window_layers\"");
}

Test(config_families, numbers_that_a_float_cannot_hold_are_refused)
{
	refused("Gemma2ForCausalLM", "\"query_pre_attn_scalar\": 1e300", ERR_INVALID, "\"query_pre_attn_scalar\" must be a number from");
	refused("Gemma2ForCausalLM", "\"attn_logit_softcapping\": 1e-60", ERR_INVALID, "\"attn_logit_softcapping\" must be");
	refused("Gemma2ForCausalLM", "\"final_logit_softcapping\": 1e60", ERR_INVALID, "\"final_logit_softcapping\" must be");
	refused("GraniteForCausalLM", "\"embedding_multiplier\": 1e60", ERR_INVALID, "\"embedding_multiplier\" must be");
	refused("GraniteForCausalLM", "\"logits_scaling\": 1e-60", ERR_INVALID, "\"logits_scaling\" must be");
	refused("GraniteForCausalLM", "\"residual_multiplier\": 1e-30", ERR_INVALID, "\"residual_multiplier\" is 1e-30");
	refused("CohereForCausalLM", "\"layer_norm_eps\": 1e-5, \"logit_scale\": 1e60", ERR_INVALID, "\"logit_scale\" must be");
	good("Gemma2ForCausalLM", "\"attn_logit_softcapping\": 1e19, \"final_logit_softcapping\": 4e9");
	cr_assert(c.attention_soft_cap == 1e19f && c.logits_soft_cap == 4e9f);
	good("Gemma2ForCausalLM", "\"attn_logit_softcapping\": 1e21, \"final_logit_softcapping\": 3e38");
	cr_assert(c.attention_soft_cap == 0 && c.logits_soft_cap == 0);
	refused("LlamaForCausalLM", "\"rope_theta\": 1e300", ERR_INVALID, "\"rope_theta\" must be a number from");
	refused("LlamaForCausalLM", "\"rope_theta\": 1e-300", ERR_INVALID, "\"rope_theta\" must be a number from");
	refused("LlamaForCausalLM", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"attention_factor\": 1e60}", ERR_INVALID,
		"\"attention_factor\" must be a number from");
}

Test(config_families, two_names_of_one_field_do_not_contradict_each_other)
{
	static const char both[] = "\"num_experts\" and \"num_local_experts\" say the same, but not the same value";

	good("GraniteMoeForCausalLM", "\"num_local_experts\": 8, \"num_experts\": 8, \"num_experts_per_tok\": 3");
	good("GraniteMoeForCausalLM", "\"num_local_experts\": 8, \"num_experts\": null, \"num_experts_per_tok\": 3");
	refused("GraniteMoeForCausalLM", "\"num_local_experts\": 8, \"num_experts\": 4, \"num_experts_per_tok\": 3", ERR_INVALID, both);
	refused("MixtralForCausalLM", "\"num_local_experts\": 8, \"num_experts\": 4, \"num_experts_per_tok\": 2", ERR_INVALID, both);
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"num_local_experts\": 4", ERR_INVALID, both);
	good("LlamaForCausalLM", "\"torch_dtype\": \"bfloat16\", \"dtype\": \"bfloat16\"");
	refused("LlamaForCausalLM", "\"torch_dtype\": \"bfloat16\", \"dtype\": \"float32\"", ERR_INVALID,
		"\"torch_dtype\" and \"dtype\" say the same");
	good("LlamaForCausalLM", "\"rope_scaling\": null, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}");
	good("LlamaForCausalLM", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
				 "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0}");
	refused("LlamaForCausalLM", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
				    "\"rope_parameters\": {\"rope_type\": \"default\"}",
		ERR_INVALID, "\"rope_parameters\" and \"rope_scaling\" say the same");
}

#define HYBRID "GraniteMoeHybridForCausalLM"
#define FOUR(word) "[\"" word "\", \"" word "\", \"" word "\", \"" word "\"]"
#define MAMBA ", \"mamba_n_heads\": 128, \"mamba_d_head\": \"auto\", \"mamba_conv_bias\": true, \"num_local_experts\": 0"
Test(config_families, granites_of_attention_alone_are_no_hybrids)
{
	good(HYBRID, "\"layer_types\": " FOUR("attention") ", \"position_embedding_type\": \"rope\", \"shared_intermediate_size\": 80" MAMBA);
	cr_assert(c.intermediate == 80 && c.experts == 0 && !(c.layer_flags[3] & LAYER_NO_ROPE));
	good(HYBRID, "\"layer_types\": " FOUR("full_attention") ", \"position_embedding_type\": \"nope\", \"shared_intermediate_size\": 96" MAMBA);
	cr_assert(c.intermediate == 96 && c.recurrent.kind == RECURRENT_NONE && c.recurrent.taps == 0);
	cr_assert((c.layer_flags[0] & LAYER_NO_ROPE) && (c.layer_flags[3] & LAYER_NO_ROPE));
	good(HYBRID, "\"layer_types\": " FOUR("attention") ", \"position_embedding_type\": null, \"shared_intermediate_size\": 80" MAMBA);
	cr_assert(c.layer_flags[1] & LAYER_NO_ROPE);
	refused(HYBRID, "\"shared_intermediate_size\": 80" MAMBA, ERR_FORMAT,
		"\"layer_types\" is missing; of a " HYBRID " it must be an array of 4 strings (num_hidden_layers), each mamba or full_attention");
	refused(HYBRID, "\"layer_types\": " FOUR("attention") MAMBA, ERR_FORMAT, "\"shared_intermediate_size\" is missing");
	refused(HYBRID, "\"layer_types\": " FOUR("attention"), ERR_FORMAT, "\"num_local_experts\" is missing");
	refused(HYBRID, "\"layer_types\": " FOUR("attention") ", \"position_embedding_type\": \"alibi\", \"shared_intermediate_size\": 80" MAMBA,
		ERR_UNSUPPORTED, "\"position_embedding_type\" is 'alibi'; supported: rope, nope or null");
	refused("GraniteForCausalLM", "\"mamba_n_heads\": 128", ERR_UNSUPPORTED, "unknown field \"mamba_n_heads\"");
	refused("LlamaForCausalLM", "\"layer_types\": " FOUR("attention"), ERR_UNSUPPORTED, "'attention'; supported: full_attention, sliding_attention");
}

Test(config_families, small_differences_of_families)
{
	good("VaultGemmaForCausalLM", "\"sliding_window\": 8");
	cr_assert(c.tied_embeddings && c.window == 8 && (c.layer_flags[0] & LAYER_WINDOW) && !(c.layer_flags[1] & LAYER_WINDOW));
	cr_assert(c.attention_soft_cap == 50 && c.logits_soft_cap == 30 && c.norm_offset == 1);
	good("HeliumForCausalLM", "\"head_dim\": 12");
	cr_assert(c.interleaved && c.head_dim == 12 && !c.attention_bias && !c.mlp_bias);
	good("MiMoForCausalLM", "\"num_nextn_predict_layers\": 1, \"use_sliding_window\": false");
	cr_assert(c.attention_bias && c.window == 0);
	good("MiniCPMForCausalLM", "\"scale_emb\": 12, \"scale_depth\": 1.4, \"dim_model_base\": 24");
	cr_assert_float_eq(c.logits_scale, 0.5, 1e-6);
	good("MiniCPMForCausalLM", "\"hidden_act\": \"silu\"");
	cr_assert_float_eq(c.logits_scale, 1 / 48.0, 1e-6);
	good("SolarOpenForCausalLM", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"partial_rotary_factor\": 1.0");
	cr_assert(c.router.sigmoid && c.head_dim == 128 && (c.layer_flags[0] & LAYER_EXPERTS) && c.shared_intermediate == 24);
	refused("SolarOpenForCausalLM", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"partial_rotary_factor\": 0.5",
		ERR_UNSUPPORTED, "\"partial_rotary_factor\" is set");
	good("Dots1ForCausalLM", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"first_k_dense_replace\": 1");
	cr_assert(c.router.sigmoid && !(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS) && c.shared_intermediate == 0);
	cr_assert(!(c.layer_flags[1] & LAYER_WINDOW)); /* there are fewer than 62 layers */
	good("Dots1ForCausalLM", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"sliding_window\": 16, \"max_window_layers\": 1");
	cr_assert(c.window == 16 && !(c.layer_flags[0] & LAYER_WINDOW) && (c.layer_flags[1] & LAYER_WINDOW));
}

/* As transformers takes them: the whole's word counts, and the part's where that says nothing, but Qwen 2 VL's either. */
Test(config_families, whole_and_part_may_differ_about_tied_embeddings)
{
	static const struct {
		const char *name, *type;
		const char *whole, *part;
		bool tied;
	} cases[] = {
		{"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "false", "true", false}, {"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "true", "false", true},
		{"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "null", "true", true}, {"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "null", "null", false},
		{"Gemma3ForConditionalGeneration", "gemma3_text", "false", "true", false}, {"Gemma3ForConditionalGeneration", "gemma3_text", "true", "false", true},
		{"Gemma3ForConditionalGeneration", "gemma3_text", "null", "false", false}, {"Gemma3ForConditionalGeneration", "gemma3_text", "null", "null", true},
		{"Mistral3ForConditionalGeneration", "mistral", "false", "true", false}, {"Mistral3ForConditionalGeneration", "mistral", "true", "false", true},
		{"Qwen2VLForConditionalGeneration", "qwen2_vl_text", "false", "true", true}, {"Qwen2VLForConditionalGeneration", "qwen2_vl_text", "true", "false", true},
		{"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", "false", "true", true},
		{"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", "false", "null", false},
	};
	char more[1024];
	struct err_msg em;

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		snprintf(more, sizeof(more), "\"tie_word_embeddings\": %s, \"text_config\": {\"model_type\": \"%s\", \"tie_word_embeddings\": %s, " SIZES "}",
			 cases[i].whole, cases[i].type, cases[i].part);
		cr_assert_eq(said_parse(&c, cases[i].name, "\"model_type\": \"whole\"", more, &em), ERR_OK, "%zu: %s", i, em.text);
		cr_expect_eq(c.tied_embeddings, cases[i].tied, "%s: %s and %s", cases[i].name, cases[i].whole, cases[i].part);
	}
	snprintf(more, sizeof(more), "\"tie_word_embeddings\": true, \"text_config\": {\"model_type\": \"mistral\", \"tie_word_embeddings\": 1, " SIZES "}");
	cr_assert_eq(said_parse(&c, "Mistral3ForConditionalGeneration", "\"model_type\": \"whole\"", more, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "\"tie_word_embeddings\" must be true or false"), "%s", em.text);
}

#define LLAMA3_STRETCH \
	"{\"rope_type\": \"llama3\", \"factor\": 16, \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}"
#define CWM "CwmForCausalLM"
#define CWM_ROPE "\"rope_scaling\": " LLAMA3_STRETCH
Test(config_families, every_fourth_layer_of_cwm_has_no_window)
{
	good(CWM, CWM_ROPE);
	cr_assert(c.window == 8192 && c.head_dim == 128 && c.rope.theta == 1000000 && c.rope.kind == ROPE_LLAMA3);
	cr_assert(!(c.layer_flags[0] & LAYER_WINDOW) && (c.layer_flags[1] & LAYER_WINDOW) && (c.layer_flags[3] & LAYER_WINDOW));
	good(CWM, CWM_ROPE ", \"head_dim\": null, \"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
			   "\"full_attention\", \"sliding_attention\"]");
	cr_assert(c.window == 8 && c.head_dim == 12 && (c.layer_flags[0] & LAYER_WINDOW) && !(c.layer_flags[1] & LAYER_WINDOW));
	refused(CWM, "\"rope_theta\": 1000000", ERR_FORMAT, "is missing; of a " CWM " it must be an object, as in {\"rope_type\": \"llama3\", \"factor\": 16.0");
	refused(CWM, CWM_ROPE ", \"sliding_window_pattern\": 4", ERR_UNSUPPORTED, "\"sliding_window_pattern\" is set, which is not supported for " CWM);
	refused(CWM, CWM_ROPE ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused(CWM, CWM_ROPE ", \"initial_context_length\": 32", ERR_UNSUPPORTED, "\"initial_context_length\" is set");
	refused(CWM, CWM_ROPE ", \"sliding_window\": null, \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
		ERR_INVALID, "\"layer_types\"[1] is 'sliding_attention', but no \"sliding_window\" is in force");
}

#define APERTUS "ApertusForCausalLM"
Test(config_families, apertus_has_the_activation_that_it_has_learned)
{
	good(APERTUS, CWM_ROPE ", \"hidden_act\": \"xielu\", \"qk_norm\": true, \"post_norm\": false, \"mlp_bias\": false");
	cr_assert(c.rope.theta == 12000000 && c.rope.kind == ROPE_LLAMA3 && c.head_dim == 12 && !c.attention_bias);
	good(APERTUS, CWM_ROPE ", \"attention_bias\": true");
	cr_assert(c.attention_bias);
	refused(APERTUS, CWM_ROPE ", \"hidden_act\": \"silu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'silu'; of a " APERTUS " it must be xielu");
	refused(APERTUS, "\"hidden_act\": \"xielu\"", ERR_FORMAT, "\"rope_scaling\" (or \"rope_parameters\") is missing; of a " APERTUS);
	refused(APERTUS, CWM_ROPE ", \"qk_norm\": false", ERR_UNSUPPORTED, "\"qk_norm\" must be true");
	refused(APERTUS, CWM_ROPE ", \"post_norm\": true", ERR_UNSUPPORTED, "unknown field \"post_norm\"");
	refused(APERTUS, CWM_ROPE ", \"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
	refused("ArceeForCausalLM", "\"hidden_act\": \"xielu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'xielu'; supported: silu");
}

Test(config_families, iquest_coder_is_llama)
{
	good("IQuestCoderForCausalLM", "\"head_dim\": 16, \"clip_qkv\": null, \"use_sliding_window\": false");
	cr_assert(c.head_dim == 16 && c.window == 0 && !c.attention_bias);
	good("IQuestCoderForCausalLM", "\"attention_bias\": true");
	cr_assert(c.head_dim == 128 && c.attention_bias);
	refused("IQuestCoderForCausalLM", "\"clip_qkv\": 8", ERR_UNSUPPORTED, "\"clip_qkv\" is set");
	refused("IQuestCoderForCausalLM", "\"use_sliding_window\": true", ERR_UNSUPPORTED, "\"use_sliding_window\" is set");
}

#define OPT "OPTForCausalLM"
Test(config_families, positions_of_opt_are_learned)
{
	good(OPT, "\"ffn_dim\": 80, \"activation_function\": \"relu\", \"do_layer_norm_before\": true, \"word_embed_proj_dim\": 48");
	cr_assert(c.tied_embeddings && c.attention_bias && c.mlp_bias && c.activation == KERN_RELU && (c.layer_flags[0] & LAYER_NO_ROPE));
	good(OPT, "\"enable_bias\": false");
	cr_assert(!c.attention_bias && !c.mlp_bias && c.norm_eps == 1e-5f);
	refused(OPT, "\"do_layer_norm_before\": false", ERR_UNSUPPORTED, "\"do_layer_norm_before\" must be true");
	refused(OPT, "\"word_embed_proj_dim\": 24", ERR_UNSUPPORTED, "\"word_embed_proj_dim\" is 24; only embeddings of hidden_size");
	refused(OPT, "\"layer_norm_elementwise_affine\": false", ERR_UNSUPPORTED, "\"layer_norm_elementwise_affine\" must be true");
	refused(OPT, "\"_remove_final_layer_norm\": true", ERR_UNSUPPORTED, "\"_remove_final_layer_norm\" must be false");
	refused(OPT, "\"rope_theta\": 10000", ERR_UNSUPPORTED, "\"rope_theta\" is set");
}

#define SWA "GraniteSWAForCausalLM"
Test(config_families, layers_of_granite_with_windows_may_not_rotate)
{
	good(SWA, "\"layer_rope_theta\": [0, 5000, 5000.0, 0], \"rope_theta\": 10000");
	cr_assert(c.rope.theta == 5000 && (c.layer_flags[0] & LAYER_NO_ROPE) && !(c.layer_flags[1] & LAYER_NO_ROPE));
	cr_assert(c.window == 128 && !(c.layer_flags[0] & LAYER_WINDOW) && (c.layer_flags[3] & LAYER_WINDOW) && c.tied_embeddings);
	good("GraniteMoeSWAForCausalLM", "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"shared_intermediate_size\": 24, \"sliding_window\": 8");
	cr_assert(c.window == 8 && c.shared_intermediate == 24 && c.rope.theta == 10000 && !(c.layer_flags[0] & LAYER_NO_ROPE));
	refused(SWA, "\"layer_rope_theta\": [0, 5000, 10000, 0]", ERR_UNSUPPORTED, "\"layer_rope_theta\"[2] is 10000; layers that rotate by several bases");
	refused(SWA, "\"layer_rope_theta\": [0, -1, 0, 0]", ERR_FORMAT, "\"layer_rope_theta\"[1] must be a number above 0, or 0");
	refused(SWA, "\"layer_rope_theta\": [0, 1, 0, 0], \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32}", ERR_INVALID,
		"\"layer_rope_theta\"[1] is 1 with rope_scaling of type 'yarn'");
	refused(SWA, "\"layer_rope_theta\": 10000", ERR_FORMAT, "\"layer_rope_theta\" must be an array of 4 numbers");
	refused("GraniteForCausalLM", "\"layer_rope_theta\": [0, 0, 0, 0]", ERR_UNSUPPORTED, "\"layer_rope_theta\" is set");
}

#define MELLUM "MellumForCausalLM"
Test(config_families, kinds_of_layers_of_mellum_are_listed)
{
	good(MELLUM, QWEN_EXPERTS ", \"num_mtp_layers\": 1, \"mtp_layer_types\": [\"sliding_attention\"]");
	cr_assert(c.normalize_experts && (c.layer_flags[0] & LAYER_EXPERTS) && !(c.layer_flags[1] & LAYER_WINDOW) && c.rope.theta == 500000);
	good(MELLUM, QWEN_EXPERTS ", \"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\"], "
				  "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"dense\"]");
	cr_assert((c.layer_flags[0] & LAYER_WINDOW) && (c.layer_flags[0] & LAYER_LOCAL_ROPE) && !(c.layer_flags[0] & LAYER_EXPERTS));
	cr_assert(!(c.layer_flags[1] & LAYER_LOCAL_ROPE) && (c.layer_flags[1] & LAYER_EXPERTS) && c.local_rope.theta == 10000);
	refused(MELLUM, QWEN_EXPERTS ", \"decoder_sparse_step\": 2", ERR_UNSUPPORTED, "\"decoder_sparse_step\" is set, which is not supported for " MELLUM);
	refused(MELLUM, QWEN_EXPERTS ", \"mlp_layer_types\": [\"dense\"]", ERR_FORMAT, "\"mlp_layer_types\" must be an array");
	refused(MELLUM, QWEN_EXPERTS ", \"use_sliding_window\": true", ERR_UNSUPPORTED, "\"use_sliding_window\" is set");
}

#define CLOVA "HyperCLOVAXForCausalLM"
#define CLOVA_SCALES "\"embedding_multiplier\": 6.0, \"residual_multiplier\": 0.5, \"attention_multiplier\": 0.125, \"logits_scaling\": 0.25"
Test(config_families, norms_behind_blocks_of_hyperclova_x_take_the_blocks_multiplier)
{
	good(CLOVA, CLOVA_SCALES ", \"use_post_norm\": true, \"attention_bias\": true, \"mlp_bias\": true, \"end_token_id\": 5");
	cr_assert(c.post_norms && c.embed_scale == 6 && c.scales[SCALE_POST_NORM] == 0.5f && c.norm_eps == 1e-6f && c.attention_bias && c.mlp_bias);
	cr_assert(c.attention_scale == 0.125f && c.logits_scale == 0.25f && !c.tied_embeddings && c.rope.theta == 10000);
	good(CLOVA, CLOVA_SCALES ", \"use_post_norm\": false");
	cr_assert(!c.post_norms && c.embed_scale == 12 && c.scales[SCALE_POST_NORM] == 1 && c.norm_eps == 4e-6f);
	good(CLOVA, "\"head_dim\": 16, \"use_post_norm\": true, \"attention_multiplier\": null");
	cr_assert(c.attention_scale == 0.25f && c.embed_scale == 1 && c.logits_scale == 1 && c.scales[SCALE_POST_NORM] == 1);
	good("GraniteForCausalLM", CLOVA_SCALES);
	cr_assert(c.embed_scale == 12 && c.logits_scale == 4 && c.scales[SCALE_POST_NORM] == 1);
	refused(CLOVA, CLOVA_SCALES, ERR_FORMAT, "\"use_post_norm\" is missing; of a " CLOVA " it must be true or false");
	refused(CLOVA, CLOVA_SCALES ", \"use_post_norm\": 1", ERR_FORMAT, "\"use_post_norm\" must be true or false, found");
	refused(CLOVA, "\"use_post_norm\": true, \"residual_multiplier\": 0", ERR_FORMAT, "\"residual_multiplier\" must be a number above 0");
	refused("GraniteForCausalLM", "\"use_post_norm\": true", ERR_UNSUPPORTED, "\"use_post_norm\" is set, which is not supported for GraniteForCausalLM");
}

Test(config_families, adapters_of_phi_4_multimodal_for_images_say_nothing_of_text)
{
	good("Phi4MMForCausalLM", "\"vision_lora\": {\"r\": 4}, \"speech_lora\": {\"r\": 4}, \"full_attn_mod\": 1, \"interpolate_factor\": 1, \"embd_layer\": {}");
	refused("Phi4MMForCausalLM", "\"interpolate_factor\": 2", ERR_UNSUPPORTED, "\"interpolate_factor\" is set");
	refused("Phi3ForCausalLM", "\"vision_lora\": {\"r\": 4}", ERR_UNSUPPORTED, "\"vision_lora\" is set");
}

#define MLLAMA "MllamaForConditionalGeneration"
#define MLLAMA_SIZES \
	"\"model_type\": \"mllama\", \"image_token_index\": 64, \"vision_config\": {}, \"text_config\": {\"model_type\": \"mllama_text_model\", \"hidden_act\": \"silu\", " SIZES
Test(config_families, layers_that_attend_to_images_are_left_out)
{
	said_good(&c, MLLAMA, MLLAMA_SIZES, "\"cross_attention_layers\": [3, 0]}");
	cr_assert(c.layers == 2 && c.left_out_count == 2 && c.left_out[0] && !c.left_out[1] && !c.left_out[2] && c.left_out[3] && c.own_kv_layers == 2);
	said_good(&c, MLLAMA, MLLAMA_SIZES, "\"cross_attention_layers\": []}");
	cr_assert(c.layers == 4 && c.left_out_count == 0);
	said_refused(MLLAMA, MLLAMA_SIZES, "\"dropout\": 0}", ERR_FORMAT, "\"cross_attention_layers\" must be an array of layers' numbers");
	said_refused(MLLAMA, MLLAMA_SIZES, "\"cross_attention_layers\": [0, 4]}", ERR_INVALID, "\"cross_attention_layers\"[1] must be a number of a layer, 0 to 3");
	said_refused(MLLAMA, MLLAMA_SIZES, "\"cross_attention_layers\": [1, 1]}", ERR_INVALID, "that stands there once");
	said_refused(MLLAMA, MLLAMA_SIZES, "\"cross_attention_layers\": [0, 1, 2, 3]}", ERR_INVALID, "has all 4 layers");
	refused("LlamaForCausalLM", "\"cross_attention_layers\": [1]", ERR_UNSUPPORTED, "\"cross_attention_layers\" is set");
}
