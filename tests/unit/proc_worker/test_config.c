/* What config.json of every family says, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/rope.h"

#define SIZES_ALONE                                                                                      \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128"
#define SIZES SIZES_ALONE ", \"rms_norm_eps\": 1e-6"

#define QWEN_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"

/* A config.json of `family` with more members. */
static enum err parse(struct model_config *c, const char *family, const char *more, struct err_msg *em)
{
	char text[4096];
	int bytes = snprintf(text, sizeof(text), "{\"architectures\": [\"%s\"], " SIZES "%s%s}", family,
			     more[0] ? ", " : "", more);

	em->text[0] = 0;
	return model_config_parse(c, text, (size_t)bytes, em);
}

static void good(struct model_config *c, const char *family, const char *more)
{
	struct err_msg em;

	cr_assert_eq(parse(c, family, more, &em), ERR_OK, "%s {%s}: %s", family, more, em.text);
}

static void refused(const char *family, const char *more, enum err expected, const char *text)
{
	static struct model_config c;
	struct err_msg em;
	enum err e = parse(&c, family, more, &em);

	cr_assert_eq(e, expected, "%s {%s}: %s: %s", family, more, err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
}

static u32 windows(const struct model_config *c)
{
	u32 bits = 0;

	for (u32 i = 0; i < c->layers; i++)
		bits |= (u32)(c->layer_flags[i] & LAYER_WINDOW ? 1 : 0) << i;
	return bits;
}

Test(config, a_field_that_nobody_knows_is_refused_by_name)
{
	struct model_config c;

	refused("LlamaForCausalLM", "\"clip_qkv\": 8.0", ERR_UNSUPPORTED, "\"clip_qkv\" is set, which is not supported for LlamaForCausalLM");
	refused("LlamaForCausalLM", "\"alibi_bias_max\": 8", ERR_UNSUPPORTED, "unknown field \"alibi_bias_max\"");
	refused("LlamaForCausalLM", "\"use_qk_norm\": true", ERR_UNSUPPORTED, "\"use_qk_norm\" is set");
	refused("Qwen3ForCausalLM", "\"use_qk_norm\": \"rms\"", ERR_UNSUPPORTED, "\"use_qk_norm\" must be true");
	refused("Qwen3ForCausalLM", "\"use_qk_norm\": false", ERR_UNSUPPORTED, "\"use_qk_norm\" must be true");
	good(&c, "LlamaForCausalLM",
	     "\"output_past\": true, \"trust_remote_code\": true, \"chat_template\": \"{{ x }}\", \"max_new_tokens\": 20");
	good(&c, "LlamaForCausalLM", "\"clip_qkv\": null, \"alibi\": false, \"adapters\": []");
	good(&c, "LlamaForCausalLM",
	     "\"_name_or_path\": \"x\", \"use_cache\": true, \"pretraining_tp\": 1, \"bos_token_id\": 1");
}

Test(config, a_field_of_another_family_is_refused_unless_it_is_neutral)
{
	struct model_config c;

	refused("LlamaForCausalLM", "\"sliding_window\": 16", ERR_UNSUPPORTED,
		"\"sliding_window\" is set, which is not supported for LlamaForCausalLM");
	refused("LlamaForCausalLM", "\"final_logit_softcapping\": 30.0", ERR_UNSUPPORTED,
		"\"final_logit_softcapping\" is set");
	refused("MistralForCausalLM", "\"attention_bias\": true", ERR_UNSUPPORTED,
		"\"attention_bias\" is set, which is not supported for MistralForCausalLM");
	refused("Qwen3ForCausalLM", "\"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
	refused("LlamaForCausalLM", "\"num_experts\": 8", ERR_UNSUPPORTED, "\"num_experts\" is set");
	refused("LlamaForCausalLM", "\"partial_rotary_factor\": 0.5", ERR_UNSUPPORTED,
		"\"partial_rotary_factor\" is set");
	refused("LlamaForCausalLM", "\"residual_multiplier\": 0.22", ERR_UNSUPPORTED,
		"\"residual_multiplier\" is set");
	refused("GemmaForCausalLM", "\"use_bidirectional_attention\": true", ERR_UNSUPPORTED,
		"\"use_bidirectional_attention\"");
	good(&c, "LlamaForCausalLM",
	     "\"sliding_window\": null, \"num_experts\": 0, \"partial_rotary_factor\": 1.0, "
	     "\"residual_multiplier\": 1.0");
	good(&c, "LlamaForCausalLM", "\"sliding_window\": 4096, \"use_sliding_window\": false");
	cr_assert_eq(windows(&c), 0);
}

Test(config, biases_are_those_that_the_file_says)
{
	struct model_config c;

	good(&c, "LlamaForCausalLM", "\"attention_bias\": true, \"mlp_bias\": true");
	cr_assert(c.attention_bias && c.mlp_bias);
	good(&c, "Qwen3ForCausalLM", "\"attention_bias\": true, \"use_qk_norm\": true");
	cr_assert(c.attention_bias && !c.mlp_bias);
	good(&c, "LlamaForCausalLM", "");
	cr_assert(!c.attention_bias && !c.mlp_bias);
	good(&c, "SeedOssForCausalLM", "");
	cr_assert(c.attention_bias && !c.mlp_bias && c.head_dim == 128);
	good(&c, "SeedOssForCausalLM", "\"attention_bias\": false, \"attention_out_bias\": false");
	cr_assert(!c.attention_bias);
	refused("SeedOssForCausalLM", "\"attention_out_bias\": true", ERR_UNSUPPORTED, "\"attention_out_bias\" is set");
	refused("Olmo2ForCausalLM", "\"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused("LlamaForCausalLM", "\"attention_bias\": 1", ERR_FORMAT,
		"\"attention_bias\" must be true or false, found integer");
}

Test(config, what_a_file_does_not_say_is_what_the_family_has)
{
	struct model_config c;

	good(&c, "LlamaForCausalLM", "");
	cr_assert(!c.tied_embeddings && c.head_dim == 12 && c.embed_scale == 1 && c.norm_offset == 0);
	cr_assert_eq(c.activation, KERN_SILU);
	good(&c, "GemmaForCausalLM", "");
	cr_assert(c.tied_embeddings && c.head_dim == 256 && c.norm_offset == 1);
	cr_assert_eq(c.activation, KERN_GELU_TANH);
	cr_assert_float_eq(c.embed_scale, sqrt(48), 1e-6);
	cr_assert_eq(c.attention_soft_cap, 0);
	good(&c, "Gemma2ForCausalLM", "");
	cr_assert(c.attention_soft_cap == 50 && c.logits_soft_cap == 30 && c.window == 4096);
	cr_assert_float_eq(c.attention_scale, 1.0 / 16, 1e-7);
	good(&c, "Qwen3ForCausalLM", "");
	cr_assert_eq(c.head_dim, 128);
	good(&c, "MistralForCausalLM", "");
	cr_assert(c.window == 4096 && windows(&c) == 15);
	good(&c, "MixtralForCausalLM", "\"num_local_experts\": 4, \"num_experts_per_tok\": 2");
	cr_assert(c.window == 0 && c.rope.theta == 1e6 && windows(&c) == 0);
}

static u32 flagged(const struct model_config *c, u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c->layers; i++)
		bits |= (u32)(c->layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

Test(config, layers_with_windows_may_have_a_rope_of_their_own)
{
	struct model_config c;

	good(&c, "Gemma3ForCausalLM", "\"sliding_window\": 8, \"sliding_window_pattern\": 3");
	cr_assert(windows(&c) == 11 && flagged(&c, LAYER_LOCAL_ROPE) == 11 && c.window == 8);
	cr_assert(c.rope.theta == 1e6 && c.local_rope.theta == 1e4 && model_local_rope(&c) == &c.local_rope);
	cr_assert(c.attention_soft_cap == 0 && c.logits_soft_cap == 0 && c.norm_offset == 1);
	good(&c, "Gemma3ForCausalLM", ""); /* every sixth has none, and there are four */
	cr_assert(windows(&c) == 15 && c.window == 4096);
	good(&c, "Gemma3ForCausalLM",
	     "\"rope_theta\": 500000, \"rope_local_base_freq\": 20000, \"rope_scaling\": {\"rope_type\": \"linear\", "
	     "\"factor\": 8.0}");
	cr_assert(c.rope.theta == 5e5 && c.rope.kind == ROPE_LINEAR && c.context_max == 128);
	cr_assert(c.local_rope.theta == 2e4 && c.local_rope.kind == ROPE_PLAIN);
	good(&c, "Gemma3ForCausalLM",
	     "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 7000}, "
	     "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 300}}");
	cr_assert(c.rope.theta == 7000 && c.rope.factor == 4 && c.local_rope.theta == 300 && c.context_max == 128);
	refused("Gemma3ForCausalLM", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 300}", ERR_FORMAT,
		"must hold the objects \"full_attention\"");
	refused("Gemma3ForCausalLM",
		"\"rope_parameters\": {\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"dynamic\", "
		"\"factor\": 2}}",
		ERR_UNSUPPORTED, "goes by the sequence's length");
	refused("Gemma3ForCausalLM", "\"attn_logit_softcapping\": 50.0", ERR_UNSUPPORTED,
		"\"attn_logit_softcapping\" is set");
	good(&c, "Gemma2ForCausalLM", "");
	cr_assert(!model_local_rope(&c) && flagged(&c, LAYER_LOCAL_ROPE) == 0);
	refused("Gemma2ForCausalLM", "\"rope_local_base_freq\": 10000", ERR_UNSUPPORTED, "\"rope_local_base_freq\"");
}

Test(config, layers_may_go_without_rotation)
{
	struct model_config c;

	good(&c, "SmolLM3ForCausalLM", "");
	cr_assert(flagged(&c, LAYER_NO_ROPE) == 8 && windows(&c) == 0 && c.tied_embeddings && c.rope.theta == 2e6);
	good(&c, "SmolLM3ForCausalLM", "\"no_rope_layers\": [1, 0, 0, 1], \"no_rope_layer_interval\": 2");
	cr_assert_eq(flagged(&c, LAYER_NO_ROPE), 6);
	good(&c, "SmolLM3ForCausalLM",
	     "\"no_rope_layer_interval\": 2, \"use_sliding_window\": true, \"sliding_window\": 8");
	cr_assert(windows(&c) == 10 && c.window == 8);
	refused("SmolLM3ForCausalLM", "\"no_rope_layers\": [1, 0]", ERR_FORMAT, "must be an array of 4 numbers");
	refused("SmolLM3ForCausalLM", "\"no_rope_layers\": [1, 2, 1, 1]", ERR_FORMAT, "\"no_rope_layers\"[1] must be 0 or 1");
	refused("LlamaForCausalLM", "\"no_rope_layers\": [1, 1, 1, 0]", ERR_UNSUPPORTED, "\"no_rope_layers\" is set");
}

Test(config, windows_and_rotation_go_together_in_some_families)
{
	struct model_config c;

	good(&c, "Olmo3ForCausalLM", "\"sliding_window\": 8"); /* every fourth has none */
	cr_assert(windows(&c) == 7 && flagged(&c, LAYER_LOCAL_ROPE) == 7 && flagged(&c, LAYER_NO_ROPE) == 0);
	good(&c, "Olmo3ForCausalLM",
	     "\"rope_theta\": 7000, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}");
	cr_assert(c.rope.kind == ROPE_LINEAR && c.local_rope.kind == ROPE_PLAIN && c.local_rope.theta == 7000);
	good(&c, "Exaone4ForCausalLM", "\"sliding_window\": 8, \"sliding_window_pattern\": \"LLLG\"");
	cr_assert(windows(&c) == 7 && flagged(&c, LAYER_NO_ROPE) == 8 && flagged(&c, LAYER_LOCAL_ROPE) == 0);
	good(&c, "Exaone4ForCausalLM", "\"sliding_window\": 8, \"sliding_window_pattern\": 2");
	cr_assert(windows(&c) == 5 && flagged(&c, LAYER_NO_ROPE) == 10);
	good(&c, "Exaone4ForCausalLM", "\"sliding_window\": null, \"sliding_window_pattern\": null");
	cr_assert(windows(&c) == 0 && flagged(&c, LAYER_NO_ROPE) == 0);
	refused("Exaone4ForCausalLM", "\"sliding_window_pattern\": \"LGLL\"", ERR_UNSUPPORTED, "is 'LGLL'; supported");
	refused("Olmo2ForCausalLM", "\"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set");
}

static enum err parse_text(struct model_config *c, const char *text, struct err_msg *em)
{
	em->text[0] = 0;
	return model_config_parse(c, text, strlen(text), em);
}

#define GEMMA_PART                                                                                              \
	"{\"hidden_size\": 2560, \"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", "                    \
	"\"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "                \
	"\"sliding_window\": 1024}"

Test(config, of_a_model_with_parts_for_images_the_language_part_is_read)
{
	static const char WHOLE[] = "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"mm_tokens_per_image\": 256, "
				    "\"eos_token_id\": [1, 106], \"torch_dtype\": \"bfloat16\", \"text_config\": %s}";
	static struct model_config c;
	struct err_msg em;
	char text[1024];

	snprintf(text, sizeof(text), WHOLE, GEMMA_PART);
	cr_assert_eq(parse_text(&c, text, &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(c.arch->name, "Gemma3ForCausalLM");
	cr_assert(c.vocab_size == 262208 && c.heads == 8 && c.kv_heads == 4 && c.context_max == 131072);
	cr_assert(c.has_dtype && c.dtype == KERN_BF16 && c.eos_count == 2 && c.eos_ids[1] == 106 && c.tied_embeddings);
	cr_assert(c.window == 1024 && !(c.layer_flags[5] & LAYER_WINDOW) && (c.layer_flags[33] & LAYER_WINDOW));
	snprintf(text, sizeof(text), WHOLE, "[]");
	cr_assert_eq(parse_text(&c, text, &em), ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "\"text_config\" of a Gemma3ForConditionalGeneration must be an object"), "%s", em.text);
	snprintf(text, sizeof(text), WHOLE, "{\"model_type\": \"gemma4_text\"}");
	cr_assert_eq(parse_text(&c, text, &em), ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "'gemma3_text', found 'gemma4_text'"), "%s", em.text);
	snprintf(text, sizeof(text), WHOLE, "{\"model_type\": \"gemma3_text\", \"clip_qkv\": 3}");
	cr_assert_neq(parse_text(&c, text, &em), ERR_OK);
}

/* Families with LayerNorm name its epsilon themselves. */
static enum err parse_layer_norm(struct model_config *c, const char *family, const char *more, struct err_msg *em)
{
	char text[2048];

	snprintf(text, sizeof(text), "{\"architectures\": [\"%s\"], " SIZES_ALONE ", %s}", family, more);
	return parse_text(c, text, em);
}

Test(config, layer_norms_have_the_epsilon_of_their_family)
{
	static struct model_config c;
	struct err_msg em;

	cr_assert_eq(parse_layer_norm(&c, "Starcoder2ForCausalLM", "\"norm_epsilon\": 1e-4", &em), ERR_OK, "%s", em.text);
	cr_assert(c.attention_bias && c.mlp_bias && c.activation == KERN_GELU_TANH && c.tied_embeddings && !c.window);
	cr_assert_float_eq(c.norm_eps, 1e-4, 1e-9);
	cr_assert_eq(parse_layer_norm(&c, "Starcoder2ForCausalLM", "\"layer_norm_eps\": 1e-4", &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "\"norm_epsilon\" is missing"), "%s", em.text);
	cr_assert_eq(parse_layer_norm(&c, "Starcoder2ForCausalLM", "\"norm_epsilon\": 1e-4, \"norm_type\": \"rms\"", &em),
		     ERR_UNSUPPORTED);
	cr_assert_eq(parse_layer_norm(&c, "StableLmForCausalLM", "\"layer_norm_eps\": 1e-5, \"head_dim\": 16", &em), ERR_OK,
		     "%s", em.text);
	cr_assert(c.rope.dim == 4 && !c.attention_bias && !c.head_norms && !c.parallel);
	cr_assert_eq(parse_layer_norm(&c, "StableLmForCausalLM", "\"layer_norm_eps\": 1e-5, \"qk_layernorm\": true, \"head_dim\": 16, \"use_parallel_residual\": true", &em),
		     ERR_OK, "%s", em.text);
	cr_assert(c.head_norms && c.parallel);
	cr_assert_eq(parse_layer_norm(&c, "NemotronForCausalLM", "\"norm_eps\": 1e-5", &em), ERR_OK, "%s", em.text);
	cr_assert(c.norm_offset == 1 && c.activation == KERN_RELU_SQUARED && c.rope.dim == 6);
}

Test(config, families_have_names_of_their_own_for_fields)
{
	struct model_config c;

	good(&c, "InternLM2ForCausalLM", "");
	cr_assert(c.attention_bias && !c.mlp_bias);
	good(&c, "InternLM2ForCausalLM", "\"bias\": false, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}");
	cr_assert(!c.attention_bias && c.rope.kind == ROPE_DYNAMIC && c.context_max == 256);
	good(&c, "InternLM2ForCausalLM", "\"bias\": false, \"attention_bias\": false");
	refused("InternLM2ForCausalLM", "\"bias\": true, \"attention_bias\": false", ERR_INVALID,
		"\"bias\" and \"attention_bias\" are the same field of a InternLM2ForCausalLM");
	refused("InternLM2ForCausalLM", "\"bias\": 3", ERR_FORMAT, "(the field \"bias\" of a InternLM2ForCausalLM)");
	refused("InternLM2ForCausalLM", "\"qkv_bias\": true", ERR_UNSUPPORTED, "\"qkv_bias\" is set");
	refused("InternLM2ForCausalLM", "\"sliding_window\": 9", ERR_UNSUPPORTED, "\"sliding_window\" is set");
	good(&c, "InternLM3ForCausalLM", "\"bias\": true");
	cr_assert(!c.attention_bias && c.mlp_bias);
	good(&c, "InternLM3ForCausalLM", "\"qkv_bias\": true, \"head_dim\": 20");
	cr_assert(c.attention_bias && !c.mlp_bias && c.head_dim == 20);
	refused("LlamaForCausalLM", "\"bias\": true", ERR_UNSUPPORTED, "unknown field \"bias\"");
}

Test(config, a_field_under_two_names_has_one_value_however_it_is_written)
{
	static const char *const differ[] = {
		"\"rope_theta\": 10000, \"rotary_emb_base\": 10000.5",
		"\"rope_theta\": 9223372036854775807, \"rotary_emb_base\": 9223372036854775806",
		"\"rope_theta\": 18446744073709551615, \"rotary_emb_base\": 18446744073709551614",
		"\"rope_theta\": 1, \"rotary_emb_base\": true",
		"\"rope_theta\": true, \"rotary_emb_base\": false",
		"\"rope_theta\": \"1\", \"rotary_emb_base\": \"2\"",
		"\"rope_theta\": [1, 2], \"rotary_emb_base\": [1, 3]",
		"\"rope_theta\": [1], \"rotary_emb_base\": [1, 1]",
		"\"rope_theta\": {\"a\": 1}, \"rotary_emb_base\": {\"b\": 1}",
	};
	struct model_config c;

	good(&c, "GPTNeoXForCausalLM", "\"rope_theta\": 20000, \"rotary_emb_base\": 20000.0, \"rotary_pct\": 1.0, "
				       "\"partial_rotary_factor\": 1");
	cr_assert(c.rope.theta == 20000 && c.rope.dim == 12);
	good(&c, "GPTNeoXForCausalLM", "\"rope_theta\": 2e4, \"rotary_emb_base\": 20000, \"rotary_pct\": 1");
	for (size_t i = 0; i < COUNT_OF(differ); i++)
		refused("GPTNeoXForCausalLM", differ[i], ERR_INVALID, "are the same field of a GPTNeoXForCausalLM, but not the same value");
	/* The same value, and refused for what it is. */
	refused("GPTNeoXForCausalLM", "\"rope_theta\": [1, {\"a\": \"b\"}], \"rotary_emb_base\": [1.0, {\"a\": \"b\"}]", ERR_FORMAT,
		"\"rope_theta\" must be a number");
}

Test(config, a_name_with_a_nul_is_not_the_name_that_it_begins_with)
{
	static const struct {
		const char *family, *more, *name;
	} cut[] = {
		{"GPTNeoXForCausalLM", "\"rotary_pct\": 0.5, \"rotary_pct\\u0000x\": 1", "rotary_pct"},
		{"GPTNeoXForCausalLM", "\"rotary_emb_base\\u0000\": 1", "rotary_emb_base"},
		{"LlamaForCausalLM", "\"rope_theta\\u0000\": 1", "rope_theta"},
		{"LlamaForCausalLM", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"factor\\u0000\": 3}", "factor"},
		{"LlamaForCausalLM", "\"quantization_config\": {\"quant_method\\u0000\": \"awq\"}", "quant_method"},
		{"LlamaForCausalLM", "\"layer_types\": [\"full_attention\\u0000\"]", "full_attention"},
		{"LlamaForCausalLM\\u0000", "", "LlamaForCausalLM"},
	};
	char text[200];

	for (size_t i = 0; i < COUNT_OF(cut); i++) {
		snprintf(text, sizeof(text), "config.json: there is a NUL in \"%s\\u0000...\"", cut[i].name);
		refused(cut[i].family, cut[i].more, ERR_FORMAT, text);
	}
}

#define GPT2_SIZES "\"vocab_size\": 64, \"n_embd\": 48, \"n_layer\": 4, \"n_head\": 4, \"n_positions\": 128"

static enum err parse_gpt2(struct model_config *c, const char *sizes, const char *more, struct err_msg *em)
{
	char text[2048];

	snprintf(text, sizeof(text), "{\"architectures\": [\"GPT2LMHeadModel\"], %s%s}", sizes, more);
	return parse_text(c, text, em);
}

Test(config, gpt2_learns_its_positions)
{
	static const struct {
		const char *more, *words;
	} bad[] = {
		{", \"rope_theta\": 10000", "\"rope_theta\" is set, which is not supported for GPT2LMHeadModel"},
		{", \"scale_attn_weights\": false", "\"scale_attn_weights\" must be true for GPT2LMHeadModel"},
		{", \"scale_attn_by_inverse_layer_idx\": true", "\"scale_attn_by_inverse_layer_idx\""},
		{", \"add_cross_attention\": true", "\"add_cross_attention\""},
		{", \"n_inner\": \"x\"", "(the field \"n_inner\" of a GPT2LMHeadModel)"},
		{", \"word_embed_proj_dim\": 24", "\"word_embed_proj_dim\" is 24"},
	};
	static struct model_config c;
	struct err_msg em;

	cr_assert_eq(parse_gpt2(&c, GPT2_SIZES, "", &em), ERR_OK, "%s", em.text);
	cr_assert(c.hidden == 48 && c.intermediate == 192 && c.kv_heads == 4 && c.context_max == 128 && c.tied_embeddings);
	cr_assert(flagged(&c, LAYER_NO_ROPE) == 15 && c.activation == KERN_GELU_TANH);
	cr_assert_eq(parse_gpt2(&c, GPT2_SIZES, ", \"n_inner\": null, \"n_ctx\": 128, \"scale_attn_weights\": true", &em), ERR_OK, "%s",
		     em.text);
	for (size_t i = 0; i < COUNT_OF(bad); i++) {
		cr_assert_neq(parse_gpt2(&c, GPT2_SIZES, bad[i].more, &em), ERR_OK, "%s", bad[i].more);
		cr_assert(strstr(em.text, bad[i].words), "'%s' is not in '%s'", bad[i].words, em.text);
	}
	/* Four times the hidden size, where nothing else is said, has the limit of what is said. */
#define GPT2_WIDE(n_embd) "\"vocab_size\": 64, \"n_embd\": " n_embd ", \"n_layer\": 4, \"n_head\": 1024, \"n_positions\": 128"
	cr_assert_eq(parse_gpt2(&c, GPT2_WIDE("262144"), "", &em), ERR_OK, "%s", em.text);
	cr_assert_eq(c.intermediate, 1 << 20);
	cr_assert_eq(parse_gpt2(&c, GPT2_WIDE("264192"), "", &em), ERR_INVALID);
	cr_assert(strstr(em.text, "\"intermediate_size\" is missing, and 4 times hidden_size, which is 264192, is more than 1048576 (the "
				  "field \"n_embd\" of a GPT2LMHeadModel) (the field \"n_inner\" of a GPT2LMHeadModel)"), "%s", em.text);
	cr_assert_eq(parse_gpt2(&c, GPT2_WIDE("264192"), ", \"n_inner\": 1024", &em), ERR_OK, "%s", em.text);
	cr_assert_neq(parse_gpt2(&c, "\"vocab_size\": 64", "", &em), ERR_OK);
	cr_assert(strstr(em.text, "(the field \"n_embd\" of a GPT2LMHeadModel)"), "%s", em.text);
}

Test(config, neox_may_have_its_blocks_behind_each_other)
{
	static struct model_config c;
	struct err_msg em;

	cr_assert_eq(parse_layer_norm(&c, "GPTNeoXForCausalLM", "\"head_dim\": 16", &em), ERR_OK, "%s", em.text);
	cr_assert(c.parallel && c.attention_bias && c.rope.dim == 4 && c.rope.theta == 1e4 && c.activation == KERN_GELU);
	cr_assert_float_eq(c.norm_eps, 1e-5, 1e-9);
	cr_assert_eq(parse_layer_norm(&c, "GPTNeoXForCausalLM",
				      "\"use_parallel_residual\": false, \"rotary_pct\": 1.0, \"rotary_emb_base\": 500, "
				      "\"attention_bias\": false, \"layer_norm_eps\": 1e-6",
				      &em),
		     ERR_OK, "%s", em.text);
	cr_assert(!c.parallel && !c.attention_bias && c.rope.dim == 12 && c.rope.theta == 500);
	cr_assert_eq(parse_layer_norm(&c, "GPTNeoXForCausalLM", "\"rotary_pct\": 0.3", &em), ERR_INVALID);
	cr_assert(strstr(em.text, "(the field \"rotary_pct\" of a GPTNeoXForCausalLM)"), "%s", em.text);
	static const char *const out_of_bounds[] = {"1e-300", "1.5", "1e39"};
	for (size_t i = 0; i < COUNT_OF(out_of_bounds); i++) {
		char more[64];
		snprintf(more, sizeof(more), "\"layer_norm_eps\": %s", out_of_bounds[i]);
		cr_assert_eq(parse_layer_norm(&c, "GPTNeoXForCausalLM", more, &em), ERR_INVALID, "%s", more);
		cr_assert(strstr(em.text, "\"layer_norm_eps\" must be a number from"), "%s", em.text);
	}
	cr_assert_eq(parse_layer_norm(&c, "PhiForCausalLM", "\"layer_norm_eps\": 1e-5, \"use_parallel_residual\": true", &em),
		     ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "\"use_parallel_residual\" is set"), "%s", em.text);
}

Test(config, cohere_scales_logits_and_turns_neighbours)
{
	static struct model_config c;
	struct err_msg em;

	cr_assert_eq(parse_layer_norm(&c, "CohereForCausalLM", "\"layer_norm_eps\": 1e-5, \"use_qk_norm\": false", &em), ERR_OK,
		     "%s", em.text);
	cr_assert(c.logits_scale == 0.0625f && c.arch->interleaved && c.arch->parallel && c.tied_embeddings);
	cr_assert(!c.head_norms);
	cr_assert_eq(parse_layer_norm(&c, "CohereForCausalLM", "\"layer_norm_eps\": 1e-5, \"use_qk_norm\": true", &em), ERR_OK, "%s", em.text);
	cr_assert(c.head_norms && c.arch->head_layer_norms);
	cr_assert_eq(parse_layer_norm(&c, "Cohere2ForCausalLM", "\"layer_norm_eps\": 1e-5, \"use_qk_norm\": true", &em), ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "\"use_qk_norm\" is set, which is not supported for Cohere2ForCausalLM"), "%s", em.text);
	cr_assert_eq(parse_layer_norm(&c, "Cohere2ForCausalLM",
				      "\"layer_norm_eps\": 1e-5, \"logit_scale\": 0.25, \"sliding_window\": 9, "
				      "\"position_embedding_type\": \"rope_gptj\", \"layer_switch\": 4",
				      &em),
		     ERR_OK, "%s", em.text);
	cr_assert(windows(&c) == 7 && flagged(&c, LAYER_NO_ROPE) == 8 && c.logits_scale == 0.25f);
}

Test(config, activations_are_those_of_the_family)
{
	struct model_config c;

	good(&c, "GemmaForCausalLM", "\"hidden_act\": \"gelu\""); /* as the first files say */
	good(&c, "GemmaForCausalLM",
	     "\"hidden_act\": \"gelu\", \"hidden_activation\": \"gelu_pytorch_tanh\"");
	cr_assert_eq(c.activation, KERN_GELU_TANH);
	good(&c, "GemmaForCausalLM", "\"hidden_activation\": \"gelu\"");
	cr_assert_eq(c.activation, KERN_GELU);
	refused("GemmaForCausalLM", "\"hidden_activation\": \"mish\"", ERR_UNSUPPORTED,
		"\"hidden_activation\" is 'mish'; supported: silu, swish, gelu, gelu_pytorch_tanh");
	good(&c, "LlamaForCausalLM", "\"hidden_act\": \"gelu_new\"");
	cr_assert_eq(c.activation, KERN_GELU_TANH);
	good(&c, "LlamaForCausalLM", "\"hidden_act\": \"gelu\"");
	cr_assert_eq(c.activation, KERN_GELU);
	good(&c, "Qwen2ForCausalLM", "\"hidden_act\": \"relu\"");
	cr_assert_eq(c.activation, KERN_RELU);
	refused("Qwen2ForCausalLM", "\"hidden_act\": \"relu6\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'relu6'");
	refused("Qwen2ForCausalLM", "\"hidden_activation\": \"gelu\"", ERR_UNSUPPORTED,
		"\"hidden_activation\"");
}

Test(config, windows_are_in_the_layers_that_the_family_puts_them_in)
{
	struct model_config c;

	good(&c, "MistralForCausalLM", "\"sliding_window\": 8");
	cr_assert(c.window == 8 && windows(&c) == 15);
	good(&c, "MistralForCausalLM", "\"sliding_window\": null");
	cr_assert_eq(windows(&c), 0);
	good(&c, "Gemma2ForCausalLM", "\"sliding_window\": 8");
	cr_assert_eq(windows(&c), 5);
	good(&c, "Qwen2ForCausalLM", "\"sliding_window\": 8");
	cr_assert_eq(windows(&c), 0);
	good(&c, "Qwen2ForCausalLM",
	     "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 1");
	cr_assert(c.window == 8 && windows(&c) == 14);
	good(&c, "Qwen2ForCausalLM",
	     "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 4");
	cr_assert_eq(windows(&c), 0);
	good(&c, "Qwen3ForCausalLM",
	     "\"sliding_window\": 8, \"use_sliding_window\": true, \"layer_types\": [\"full_attention\", "
	     "\"sliding_attention\", \"full_attention\", \"full_attention\"]");
	cr_assert_eq(windows(&c), 2);
	refused("Qwen3ForCausalLM", "\"layer_types\": [\"full_attention\"]", ERR_FORMAT,
		"\"layer_types\" must be an array of 4 strings");
	refused("Qwen3ForCausalLM",
		"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", \"chunked\"]",
		ERR_UNSUPPORTED, "\"layer_types\"[3] is 'chunked'");
	refused("Qwen3ForCausalLM",
		"\"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\", "
		"\"full_attention\"]",
		ERR_INVALID, "but no \"sliding_window\" is in force");
	refused("MistralForCausalLM",
		"\"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\", "
		"\"sliding_attention\"]",
		ERR_UNSUPPORTED, "in a MistralForCausalLM all layers are alike");
	refused("Gemma2ForCausalLM", "\"sliding_window\": 8, \"sliding_window_size\": 16", ERR_INVALID,
		"\"sliding_window_size\" is 16, but \"sliding_window\" is 8");
	good(&c, "Gemma2ForCausalLM", "\"sliding_window\": 8, \"sliding_window_size\": 8");
	refused("MistralForCausalLM", "\"sliding_window\": \"8\"", ERR_FORMAT,
		"\"sliding_window\" must be an integer");
}

Test(config, experts_are_in_the_layers_that_the_file_says)
{
	struct model_config c;
	good(&c, "MixtralForCausalLM", "\"num_local_experts\": 4, \"num_experts_per_tok\": 2");
	cr_assert(c.experts == 4 && c.experts_per_token == 2 && c.expert_intermediate == 80 &&
		  c.normalize_experts);
	for (u32 i = 0; i < 4; i++)
		cr_assert_eq(c.layer_flags[i], LAYER_EXPERTS);
	good(&c, "Qwen3MoeForCausalLM", QWEN_EXPERTS);
	cr_assert(!c.normalize_experts && c.expert_intermediate == 24);
	good(&c, "Qwen3MoeForCausalLM",
	     QWEN_EXPERTS ", \"mlp_only_layers\": [1], \"decoder_sparse_step\": 2, \"norm_topk_prob\": true");
	cr_assert(c.normalize_experts && c.layer_flags[0] == 0 && c.layer_flags[1] == 0 &&
		  c.layer_flags[2] == 0 && c.layer_flags[3] == LAYER_EXPERTS);
	refused("MixtralForCausalLM", "\"num_local_experts\": 4, \"num_experts_per_tok\": 5", ERR_INVALID,
		"\"num_experts_per_tok\" is 5, but there are only 4 experts");
	refused("MixtralForCausalLM", "\"num_experts_per_tok\": 2", ERR_FORMAT,
		"\"num_local_experts\" is missing");
	refused("Qwen3MoeForCausalLM", "\"num_experts\": 8, \"num_experts_per_tok\": 2", ERR_FORMAT,
		"\"moe_intermediate_size\" is missing");
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"mlp_only_layers\": 3", ERR_FORMAT,
		"\"mlp_only_layers\" must be an array");
	refused("Qwen3MoeForCausalLM", QWEN_EXPERTS ", \"shared_expert_intermediate_size\": 64",
		ERR_UNSUPPORTED, "\"shared_expert_intermediate_size\" is set");
	good(&c, "OlmoeForCausalLM", "\"num_experts\": 4, \"num_experts_per_tok\": 2");
	cr_assert(flagged(&c, LAYER_EXPERTS) == 15 && c.expert_intermediate == 80 && !c.normalize_experts);
	good(&c, "OlmoeForCausalLM", "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true");
	cr_assert(c.normalize_experts);
}

Test(config, soft_caps_may_be_absent)
{
	struct model_config c;

	good(&c, "Gemma2ForCausalLM",
	     "\"attn_logit_softcapping\": null, \"final_logit_softcapping\": null, "
	     "\"query_pre_attn_scalar\": 24");
	cr_assert(c.attention_soft_cap == 0 && c.logits_soft_cap == 0);
	cr_assert_float_eq(c.attention_scale, 1 / sqrt(24), 1e-7);
	refused("Gemma2ForCausalLM", "\"attn_logit_softcapping\": -5", ERR_FORMAT,
		"\"attn_logit_softcapping\" must be a number above 0");
}
