/* What config.json of a model of several parts means whose language part is a family of its own: fields that the part leaves out, and those that its
 * whole has. */
#include "tests/unit/proc_worker/config_said.h"

static struct model_config c;

static void good(const char *whole, const char *more)
{
	said_good(&c, whole, "\"model_type\": \"whole\"", more);
}

static void refused(const char *whole, const char *more, enum err expected, const char *text)
{
	said_refused(whole, "\"model_type\": \"whole\"", more, expected, text);
}

Test(config_parts, fields_that_a_part_leaves_out_are_those_of_its_configuration_class)
{
	static const struct {
		const char *whole, *type, *family;
		u32 vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, context;
		double eps;
	} cases[] = {
		{"LlavaForConditionalGeneration", "llama", "LlamaForCausalLM", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6},
		{"LlavaNextForConditionalGeneration", "mistral", "MistralForCausalLM", 32000, 4096, 14336, 32, 32, 8, 128, 131072, 1e-6},
		{"Ovis2ForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6},
		{"InternVLForConditionalGeneration", "qwen3", "Qwen3ForCausalLM", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6},
		{"AyaVisionForConditionalGeneration", "cohere2", "Cohere2ForCausalLM", 256000, 8192, 22528, 40, 64, 64, 128, 8192, 1e-5},
		{"Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_text", "Qwen2ForCausalLM", 152064, 3584, 18944, 28, 28, 4, 128, 32768, 1e-6},
		{"Glm4vForConditionalGeneration", "glm4v_text", "Glm4vTextModel", 151552, 4096, 13696, 40, 32, 2, 128, 32768, 1e-5},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char more[256];
		snprintf(more, sizeof(more), "\"text_config\": {\"model_type\": \"%s\"}", cases[i].type);
		good(cases[i].whole, more);
		cr_assert_str_eq(c.arch->name, cases[i].family);
		cr_expect(c.vocab_size == cases[i].vocab && c.hidden == cases[i].hidden && c.intermediate == cases[i].intermediate, "%s", cases[i].type);
		cr_expect(c.layers == cases[i].layers && c.heads == cases[i].heads && c.kv_heads == cases[i].kv_heads, "%s", cases[i].type);
		cr_expect(c.head_dim == cases[i].head_dim && c.context_max == cases[i].context, "%s", cases[i].type);
		cr_expect_float_eq((double)c.norm_eps, cases[i].eps, 1e-9, "%s", cases[i].type);
	}
	good("LlavaForConditionalGeneration",
	     "\"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 32064, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-05}");
	cr_assert(c.vocab_size == 32064 && c.context_max == 4096 && c.hidden == 4096);
	cr_assert_float_eq((double)c.norm_eps, 1e-5, 1e-9);
}

Test(config_parts, other_models_must_say_what_they_are)
{
	said_refused("LlamaForCausalLM", "\"model_type\": \"llama\"", "", ERR_FORMAT, "\"vocab_size\" is missing");
	refused("LlavaForConditionalGeneration", "\"text_config\": {\"model_type\": \"llama\", \"hidden_size\": null}", ERR_FORMAT, "\"hidden_size\" is missing");
	refused("Gemma4ForConditionalGeneration", "\"text_config\": {\"model_type\": \"gemma4_text\"}", ERR_FORMAT, "is missing");
	refused("LlavaForConditionalGeneration", "\"text_config\": {\"model_type\": \"phi3\"}", ERR_UNSUPPORTED,
		"'llama' or 'mistral' or 'qwen2', found 'phi3'");
	refused("InternVLForConditionalGeneration", "\"text_config\": {\"model_type\": \"gpt_oss\"}", ERR_UNSUPPORTED, "found 'gpt_oss'");
	refused("LlavaForConditionalGeneration", "\"text_config\": {\"model_type\": \"llama\", \"clip_qkv\": 3}", ERR_UNSUPPORTED, "clip_qkv");
}

/* Names of such a part are its family's, and so are those in errors. */
Test(config_parts, a_part_with_names_of_its_own_leaves_the_whole_as_it_is)
{
	static const char part[] = "\"torch_dtype\": \"bfloat16\", \"eos_token_id\": [5, 6], \"tie_word_embeddings\": true, "
				   "\"text_config\": {\"model_type\": \"glm4v_moe_text\", \"hidden_size\": 64, \"num_attention_heads\": 8, "
				   "\"num_hidden_layers\": 3, \"n_routed_experts\": 16%s}";
	char more[512];

	snprintf(more, sizeof(more), part, "");
	good("Glm4vMoeForConditionalGeneration", more);
	cr_assert(c.has_dtype && c.dtype == KERN_BF16 && c.eos_count == 2 && c.eos_ids[1] == 6 && c.tied_embeddings);
	cr_assert(c.experts == 16 && c.experts_per_token == 8 && c.expert_intermediate == 1408 && c.attention_bias && c.head_dim == 8);
	snprintf(more, sizeof(more), part, ", \"num_experts_per_tok\": 17");
	refused("Glm4vMoeForConditionalGeneration", more, ERR_INVALID, "n_routed_experts");
	good("Lfm2VlForConditionalGeneration", "\"tie_word_embeddings\": false, \"text_config\": {\"model_type\": \"lfm2\", \"full_attn_idxs\": [2, 5], "
					       "\"num_hidden_layers\": 6, \"block_ff_dim\": 6656, \"tie_embedding\": true}");
	cr_assert(!c.tied_embeddings && c.intermediate < 6656 && c.intermediate > 4000 && !(c.layer_flags[2] & LAYER_RECURRENT));
}

Test(config_parts, embeddings_may_be_tied_where_the_whole_does_not_say_it_and_there_is_no_head)
{
	static const struct {
		const char *whole, *type, *more;
		bool headless, tied;
	} cases[] = {
		{"InternVLForConditionalGeneration", "qwen2", "", true, true},
		{"AyaVisionForConditionalGeneration", "cohere2", "", true, true},
		{"InternVLForConditionalGeneration", "qwen2", ", \"tie_word_embeddings\": false", true, true},
		{"InternVLForConditionalGeneration", "qwen2", ", \"tie_word_embeddings\": true", true, true},
		{"Idefics3ForConditionalGeneration", "llama", ", \"tie_word_embeddings\": true", true, true},
		{"Idefics3ForConditionalGeneration", "llama", ", \"tie_word_embeddings\": false", false, false},
		{"InternVLForConditionalGeneration", "qwen2", "}, \"tie_word_embeddings\": true, \"x\": {", false, true},
		{"Ovis2ForConditionalGeneration", "qwen2", ", \"tie_word_embeddings\": null", true, true},
		{"LlavaForConditionalGeneration", "llama", "", false, false},
		{"LlavaForConditionalGeneration", "llama", ", \"tie_word_embeddings\": true", false, true},
		{"LlavaForConditionalGeneration", "llama", "}, \"tie_word_embeddings\": false, \"x\": {", false, false},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char more[256];
		snprintf(more, sizeof(more), "\"text_config\": {\"model_type\": \"%s\"%s}", cases[i].type, cases[i].more);
		good(cases[i].whole, more);
		cr_expect(c.tied_headless == cases[i].headless && c.tied_embeddings == cases[i].tied, "%zu", i);
	}
}

/* A backbone's files may have an lm_head nevertheless, which tensor_names_find_unsaid finds. */
Test(config_parts, a_backbone_is_of_its_family_and_has_no_head_unless_its_embeddings_are_tied)
{
	static const char sizes[] = "\"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 2, "
				    "\"intermediate_size\": 96, \"vocab_size\": 100, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 64%s";
	static const struct {
		const char *name, *family, *more;
		bool headless;
	} cases[] = {
		{"MistralModel", "MistralForCausalLM", "", true},
		{"MistralModel", "MistralForCausalLM", ", \"tie_word_embeddings\": false", true},
		{"Qwen3Model", "Qwen3ForCausalLM", ", \"tie_word_embeddings\": true", false},
		{"MistralForCausalLM", "MistralForCausalLM", "", false},
		{"Gemma3TextModel", "Gemma3ForCausalLM", ", \"tie_word_embeddings\": false", true},
		{"Gemma3TextModel", "Gemma3ForCausalLM", "", false},
		{"GPT2Model", "GPT2LMHeadModel", ", \"rms_norm_eps\": null, \"tie_word_embeddings\": false", true},
		{"GPT2LMHeadModel", "GPT2LMHeadModel", ", \"rms_norm_eps\": null", false},
	};
	char more[512];

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		snprintf(more, sizeof(more), sizes, cases[i].more);
		good(cases[i].name, more);
		cr_expect_str_eq(c.arch->name, cases[i].family);
		cr_expect(c.headless == cases[i].headless && c.tied_headless == cases[i].headless, "%zu", i);
	}
	snprintf(more, sizeof(more), sizes, "");
	refused("BertModel", more, ERR_UNSUPPORTED, "unknown architecture 'BertModel'");
	refused("Model", more, ERR_UNSUPPORTED, "unknown architecture 'Model'");
	refused("TextModel", more, ERR_UNSUPPORTED, "unknown architecture 'TextModel'");
	refused("MistralLMHeadModel", more, ERR_UNSUPPORTED, "unknown architecture 'MistralLMHeadModel'");
	snprintf(more, sizeof(more), sizes, ", \"is_causal\": false");
	refused("Qwen2Model", more, ERR_UNSUPPORTED, "is_causal");
}

/* What such a class has for itself. */
Test(config_parts, multipliers_and_bases_of_rotation_are_those_of_the_class_too)
{
	struct model_config said;

	good("GraniteDoclingForConditionalGeneration",
	     "\"text_config\": {\"model_type\": \"granite_docling_text\", \"embedding_multiplier\": 12, \"residual_multiplier\": 0.263, "
	     "\"attention_multiplier\": 0.015625, \"logits_scaling\": 4}");
	said = c;
	good("GraniteDoclingForConditionalGeneration", "\"text_config\": {\"model_type\": \"granite_docling_text\"}");
	cr_assert(c.vocab_size == 133800 && c.hidden == 1024 && c.intermediate == 2048 && c.layers == 28 && c.heads == 16 && c.kv_heads == 4);
	cr_assert(c.context_max == 32768 && c.attention_scale == 0.015625f && c.embed_scale != 1 && c.norm_eps == said.norm_eps);
	cr_assert(c.embed_scale == said.embed_scale && c.logits_scale == said.logits_scale && memcmp(c.scales, said.scales, sizeof(c.scales)) == 0);
	good("Qwen2_5OmniThinkerForConditionalGeneration", "\"text_config\": {\"model_type\": \"qwen2_5_omni_text\"}");
	cr_assert(c.rope.theta == 1e6f);
	good("Qwen2_5OmniThinkerForConditionalGeneration",
	     "\"text_config\": {\"model_type\": \"qwen2_5_omni_text\", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000}}");
	cr_assert(c.rope.theta == 5000);
}

Test(config_parts, paddleocr_vl_may_lie_flat_in_the_whole)
{
	static const char flat[] = "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
				   "\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, \"compression_ratio\": 1.0, "
				   "\"ignored_index\": -100, \"weight_share_add_bias\": true, \"rope_is_neox_style\": true, \"vision_config\": {}, \"use_3d_rope\": %s%s";
	char more[768];

	snprintf(more, sizeof(more), flat, "true", ", \"tie_word_embeddings\": false");
	good("PaddleOCRVLForConditionalGeneration", more);
	cr_assert(c.hidden == 48 && !c.tied_embeddings && c.rope.theta == 500000);
	snprintf(more, sizeof(more), flat, "false", "");
	refused("PaddleOCRVLForConditionalGeneration", more, ERR_UNSUPPORTED, "\"use_3d_rope\" must be true");
	snprintf(more, sizeof(more), "\"text_config\": {\"model_type\": \"paddleocr_vl_text\", %s}, \"tie_word_embeddings\": false",
		 "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"max_position_embeddings\": 128");
	good("PaddleOCRVLForConditionalGeneration", more); /* what a part does not say its class does, and either of both ties */
	cr_assert(c.tied_embeddings);
}

Test(config_parts, of_glm_4v_queries_have_biases_and_whole_heads_rotate_unless_it_says_otherwise)
{
	good("Glm4vForConditionalGeneration", "\"text_config\": {\"model_type\": \"glm4v_text\"}");
	cr_assert(c.attention_bias && c.rope.dim == 128 && c.interleaved);
	good("Glm4vForConditionalGeneration", "\"text_config\": {\"model_type\": \"glm4v_text\", \"partial_rotary_factor\": 0.5, \"attention_bias\": true}");
	cr_assert(c.rope.dim == 64);
	refused("Glm4vForConditionalGeneration", "\"text_config\": {\"model_type\": \"glm4v_text\", \"attention_bias\": false}", ERR_UNSUPPORTED,
		"\"attention_bias\" must be true");
}

Test(config_parts, parts_whose_types_have_two_names_are_of_the_same_family)
{
	static const char sizes[] = "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
				    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6";
	static const char latent[] = ", \"kv_lora_rank\": 24, \"q_lora_rank\": 20, \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, \"v_head_dim\": 12, "
				     "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 24";
	static const struct {
		const char *whole, *type, *family, *more;
	} cases[] = {
		{"Exaone4_5_ForConditionalGeneration", "exaone4", "Exaone4ForCausalLM", ", \"num_key_value_heads\": 2"},
		{"Exaone4_5_ForConditionalGeneration", "exaone4_5_text", "Exaone4ForCausalLM", ", \"num_key_value_heads\": 2"},
		{"KimiK25ForConditionalGeneration", "kimi_k2", "DeepseekV3ForCausalLM", latent},
		{"KimiK25ForConditionalGeneration", "deepseek_v3", "DeepseekV3ForCausalLM", latent},
		{"Kimi_K25ForConditionalGeneration", "kimi_k2", "DeepseekV3ForCausalLM", latent},
		{"Glm46VForConditionalGeneration", "glm4v_text", "Glm4vTextModel", ""},
		{"HCXVisionV2ForCausalLM", "hyperclovax", "HyperCLOVAXForCausalLM", ", \"use_post_norm\": true"},
		{"LightOnOCRForConditionalGeneration", "qwen3", "Qwen3ForCausalLM", ", \"num_key_value_heads\": 2, \"head_dim\": 12"},
		{"Exaone4_5_ForConditionalGeneration", "exaone4_5_text", "Exaone4ForCausalLM", ", \"num_key_value_heads\": 2, \"sliding_window\": null, \"sliding_window_pattern\": 0"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char more[1024];
		snprintf(more, sizeof(more), "\"text_config\": {\"model_type\": \"%s\", %s%s}", cases[i].type, sizes, cases[i].more);
		good(cases[i].whole, more);
		cr_expect_str_eq(c.arch->name, cases[i].family);
	}
	refused("KimiK25ForConditionalGeneration", "\"text_config\": {\"model_type\": \"llama\"}", ERR_UNSUPPORTED, "'deepseek_v3' or 'kimi_k2', found 'llama'");
}

Test(config_parts, who_also_speaks_describes_its_thoughts_in_a_part_of_its_own)
{
	static const char text[] = "\"text_config\": {\"model_type\": \"%s\", \"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, "
				   "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, "
				   "\"rms_norm_eps\": 1e-6, \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]%s}%s}";
	char part[768], more[1024];

	snprintf(part, sizeof(part), text, "qwen2_5_omni_text", "", "");
	snprintf(more, sizeof(more), "\"thinker_config\": {\"tie_word_embeddings\": true, \"eos_token_id\": 7, %s}, \"tie_word_embeddings\": false", part);
	good("Qwen2_5OmniForConditionalGeneration", more);
	cr_assert(c.eos_count == 1 && c.eos_ids[0] == 7);
	cr_assert(!strcmp(c.arch->name, "Qwen2ForCausalLM") && c.tied_embeddings && c.hidden == 48);
	good("Qwen2_5OmniModel", more);
	good("Qwen2_5OmniThinkerForConditionalGeneration", part);
	cr_assert(!c.tied_embeddings);
	snprintf(part, sizeof(part), text, "qwen3_omni_moe_text", ", \"interleaved\": true, \"mrope_interleaved\": true",
		 ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"shared_expert_intermediate_size\": 0, \"use_qk_norm\": true");
	snprintf(more, sizeof(more), "\"thinker_config\": {%s}", part);
	good("Qwen3OmniMoeForConditionalGeneration", more);
	cr_assert(c.experts == 8 && c.normalize_experts && !c.tied_embeddings && !c.interleaved && c.rope.kind == ROPE_PLAIN);
	refused("Qwen3OmniMoeForConditionalGeneration", part, ERR_UNSUPPORTED, "\"text_config\" of a Qwen3OmniMoeForConditionalGeneration must be an object");
	refused("Qwen3VLForConditionalGeneration", "\"text_config\": {\"model_type\": \"qwen3_vl_text\", \"vocab_size\": 64, \"hidden_size\": 48, "
		"\"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
		"\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6, \"rope_scaling\": {\"rope_type\": \"default\", \"interleaved\": true}}", ERR_UNSUPPORTED, "\"interleaved\" in rope_scaling");
}
