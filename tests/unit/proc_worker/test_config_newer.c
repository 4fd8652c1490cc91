/* What config.json says in the families that transformers came to know last, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/rope.h"
#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 5, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

#define NANOCHAT "NanoChatForCausalLM"

Test(config_newer, nanochat_norms_without_weights_and_turns_backwards)
{
	struct rope_tables forth, back;
	struct rope_config turned;
	struct err_msg em;

	good(NANOCHAT, "");
	cr_assert(c.head_norms && c.logits_soft_cap == 15 && c.norm_eps == 1e-6f && c.activation == KERN_RELU_SQUARED && c.rope.backwards && c.embed_scale == 1);
	cr_assert(c.arch->plain_norms && c.arch->plain_head_norms && c.arch->norm_behind && c.arch->embed_norm && !c.tied_embeddings);
	turned = c.rope;
	turned.backwards = false;
	cr_assert_eq(rope_tables_init(&back, &c.rope, NULL, 9, 8, &em), ERR_OK);
	cr_assert_eq(rope_tables_init(&forth, &turned, NULL, 9, 8, &em), ERR_OK);
	for (u32 i = 0; i < 9 * c.rope.dim / 2; i++)
		cr_assert(back.cos[i] == forth.cos[i] && back.sin[i] == -forth.sin[i]);
	rope_tables_fini(&forth);
	rope_tables_fini(&back);
	good(NANOCHAT, "\"rms_norm_eps\": 1e-3, \"final_logit_softcapping\": null");
	cr_assert(c.norm_eps == 1e-3f && c.logits_soft_cap == 0);
	refused(NANOCHAT, "\"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false for " NANOCHAT);
	refused(NANOCHAT, "\"attn_logit_softcapping\": 50", ERR_UNSUPPORTED, "\"attn_logit_softcapping\" is set, which is not supported for " NANOCHAT);
}

#define APERTUS "Apertus1p5TextForCausalLM"
#define APERTUS_ROPE \
	"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}"

Test(config_newer, apertus_1_5_may_have_fewer_outputs_than_embeddings)
{
	good(APERTUS, APERTUS_ROPE ", \"output_vocab_size\": 50");
	cr_assert(c.vocab_size == 50 && c.embed_vocab == 64);
	good(APERTUS, APERTUS_ROPE ", \"output_vocab_size\": null, \"tie_word_embeddings\": true");
	cr_assert(c.vocab_size == 64 && c.embed_vocab == 64 && c.tied_embeddings);
	refused(APERTUS, APERTUS_ROPE ", \"output_vocab_size\": 65", ERR_INVALID, "\"output_vocab_size\" is 65; it must be vocab_size, which is 64, at most");
	refused(APERTUS, APERTUS_ROPE ", \"output_vocab_size\": 50, \"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false for " APERTUS);
	refused(APERTUS, APERTUS_ROPE ", \"output_vocab_size\": 50, \"eos_token_id\": 50", ERR_INVALID, "\"eos_token_id\" 50 is not below output_vocab_size 50");
	refused("ApertusForCausalLM", APERTUS_ROPE ", \"output_vocab_size\": 50", ERR_UNSUPPORTED, "\"output_vocab_size\" is set");
}

#define KOLIBRI "Kolibri1ForCausalLM"
#define KOLIBRI_SIZES                                                                                    \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, " \
	"\"max_position_embeddings\": 128, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, " \
	"\"shared_expert_intermediate_size\": 32"

Test(config_newer, kolibri_chooses_experts_by_logits_in_all_layers)
{
	said_good(&c, KOLIBRI, KOLIBRI_SIZES, "");
	cr_assert(c.experts == 8 && c.shared_intermediate == 32 && c.router.sigmoid && c.arch->router_by_logits && !c.normalize_experts && c.kv_heads == 4);
	for (u32 i = 0; i < 6; i++) {
		cr_assert(c.layer_flags[i] & LAYER_EXPERTS);
		cr_assert(!(c.layer_flags[i] & LAYER_WINDOW) == (i == 4) && !(c.layer_flags[i] & LAYER_NO_ROPE) == (i != 4), "%u", i);
	}
	cr_assert(c.window == 513 && c.head_dim == 128);
	said_good(&c, KOLIBRI, KOLIBRI_SIZES, "\"norm_topk_prob\": true");
	cr_assert(c.normalize_experts);
	said_good(&c, KOLIBRI, KOLIBRI_SIZES, "\"sliding_window_pattern\": \"LLLLG\"");
	said_refused(KOLIBRI, KOLIBRI_SIZES, "\"sliding_window_pattern\": 3", ERR_UNSUPPORTED, "\"sliding_window_pattern\" is 3; of a " KOLIBRI " it must be 5");
	said_refused(KOLIBRI, KOLIBRI_SIZES, "\"sliding_window\": null", ERR_UNSUPPORTED, "\"sliding_window\" is null");
	said_refused(KOLIBRI, KOLIBRI_SIZES, "\"n_group\": 2", ERR_UNSUPPORTED, "\"n_group\" is set, which is not supported for " KOLIBRI);
	said_refused(KOLIBRI, KOLIBRI_SIZES, "\"routed_scaling_factor\": 2", ERR_UNSUPPORTED, "\"routed_scaling_factor\" is set");
}

/* Of a part. */
#define MUSE(more) \
	"\"model_type\": \"muse_glimmer\", \"text_config\": {\"model_type\": \"muse_glimmer_text\", " SIZES more "}"
#define MUSE_WHOLE "MuseGlimmerForConditionalGeneration"

Test(config_newer, muse_glimmer_counts_layers_from_the_last)
{
	said_good(&c, MUSE_WHOLE, MUSE(""), "\"tie_word_embeddings\": false");
	for (u32 i = 0; i < 5; i++)
		cr_assert(!(c.layer_flags[i] & LAYER_WINDOW) == (i % 4 == 0) && !(c.layer_flags[i] & LAYER_NO_ROPE) == (i % 4 != 0), "%u", i);
	cr_assert(c.window == 2048 && c.norm_offset == 1 && c.post_norm_eps == 1e-8f && c.norm_eps == 1e-5f && c.logits_soft_cap == 20 && c.output_gate);
	cr_assert_float_eq(c.attention_scale, 3.87 / sqrt(128), 1e-6);
	cr_assert_float_eq(c.logits_scale, 0.19611613513818404, 1e-7);
	said_good(&c, MUSE_WHOLE, MUSE(", \"layer_rope_theta\": [10000, 0, 0, 10000.0, 10000], \"qk_scale_factor\": 2"), "\"tie_word_embeddings\": false");
	for (u32 i = 0; i < 5; i++)
		cr_assert(!(c.layer_flags[i] & LAYER_NO_ROPE) == (i != 1 && i != 2), "%u", i);
	said_refused(MUSE_WHOLE, MUSE(", \"layer_rope_theta\": [10000, 0, 0, 500000, 10000]"), "\"tie_word_embeddings\": false", ERR_UNSUPPORTED,
		     "\"layer_rope_theta\"[3] is 500000; of a MuseGlimmerTextModel it must be 0 or \"rope_theta\", which is 10000");
	said_refused(MUSE_WHOLE, MUSE(", \"attention_bias\": true"), "", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	said_refused(MUSE_WHOLE, MUSE(", \"post_norm_eps\": 2"), "", ERR_INVALID, "\"post_norm_eps\" must be a number from");
	said_good(&c, MUSE_WHOLE, MUSE(", \"tie_word_embeddings\": true"), "");
	cr_assert(c.tied_headless, "what the part says leaves it to the files");
	said_refused(MUSE_WHOLE, MUSE(""), "\"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false");
	refused("LlamaForCausalLM", "\"rms_norm_eps\": 1e-5, \"qk_scale_factor\": 2", ERR_UNSUPPORTED, "\"qk_scale_factor\" is set");
}

#define ERNIE_WHOLE "Ernie4_5_VLMoeForConditionalGeneration"
#define ERNIE_OF(experts, more) \
	"\"model_type\": \"ernie4_5_vl_moe\", \"text_config\": {\"model_type\": \"ernie4_5_vl_moe_text\", " SIZES \
	", \"moe_num_experts\": " experts ", \"moe_k\": 2" more "}"
#define ERNIE(more) ERNIE_OF("8", more)

Test(config_newer, ernie_vl_has_experts_for_text_of_the_first_width)
{
	said_good(&c, ERNIE_WHOLE, ERNIE(", \"moe_intermediate_size\": [24, 12], \"moe_norm_min\": 1e-12"), "");
	cr_assert(c.experts == 8 && c.expert_intermediate == 24 && c.shared_intermediate == 48 && c.tied_embeddings && c.interleaved && c.normalize_experts);
	for (u32 i = 0; i < 5; i++)
		cr_assert(!(c.layer_flags[i] & LAYER_EXPERTS) == (i == 0), "%u", i);
	cr_assert(c.tied_headless, "an lm_head in the files counts where nothing is said");
	said_good(&c, ERNIE_WHOLE, ERNIE(", \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\", \"dense\", \"dense\"], \"moe_num_shared_experts\": 1"), "");
	cr_assert(c.expert_intermediate == 1536 && c.shared_intermediate == 1536 && (c.layer_flags[0] & LAYER_EXPERTS) && !(c.layer_flags[1] & LAYER_EXPERTS));
	said_refused(ERNIE_WHOLE, ERNIE(", \"moe_intermediate_size\": 24"), "", ERR_FORMAT, "\"moe_intermediate_size\" of a Ernie4_5_VLMoeTextModel must be an array of two");
	said_refused(ERNIE_WHOLE, ERNIE(", \"moe_intermediate_size\": [24, 0]"), "", ERR_FORMAT, "\"moe_intermediate_size\" of a");
	said_refused(ERNIE_WHOLE, ERNIE_OF("[8, 8]", ""), "", ERR_FORMAT, "\"moe_num_experts\"");
	said_refused(ERNIE_WHOLE, ERNIE(", \"use_bias\": true"), "", ERR_UNSUPPORTED, "\"use_bias\" is set");
}

#define LAGUNA "LagunaForCausalLM"
#define LAGUNA_ROPE(full, sliding) "\"rope_parameters\": {\"full_attention\": {" full "}, \"sliding_attention\": {" sliding "}}, "
#define LAGUNA_MORE \
	LAGUNA_ROPE("\"rope_theta\": 500000.0, \"partial_rotary_factor\": 0.5", "\"rope_theta\": 10000.0") \
	"\"head_dim\": 16, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"shared_expert_intermediate_size\": 40"

Test(config_newer, layers_of_laguna_have_heads_of_their_own_number)
{
	struct model_shard s;
	struct err_msg em;

	good(LAGUNA, LAGUNA_MORE ", \"num_attention_heads_per_layer\": [4, 8, 8, 4, 6], \"moe_routed_scaling_factor\": 2.5, \"sliding_window\": 8, \"layer_types\": "
				 "[\"full_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]");
	cr_assert(c.heads == 8 && model_heads(&c, 0) == 4 && model_heads(&c, 4) == 6 && c.rope.dim == 8 && c.local_rope.dim == 16 && c.router.scale == 2.5f);
	cr_assert(c.output_gate && c.gate_by_head && c.shared_intermediate == 40 && c.normalize_experts && c.router.sigmoid && c.window == 8);
	cr_assert(!(c.layer_flags[0] & (LAYER_EXPERTS | LAYER_WINDOW)) && (c.layer_flags[1] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_LOCAL_ROPE));
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK);
	cr_assert(s.heads == 4 && model_shard_heads(&s, &c, 0) == 2 && model_shard_heads(&s, &c, 4) == 3);
	cr_assert_eq(model_shard_init(&s, &c, 1, 4, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the 6 attention heads of layer 4 cannot be divided by it"), "%s", em.text);
	good(LAGUNA, LAGUNA_MORE ", \"gating\": \"per-element\"");
	cr_assert(!c.gate_by_head && model_heads(&c, 3) == 4 && !(c.layer_flags[1] & LAYER_WINDOW));
	refused(LAGUNA, LAGUNA_MORE ", \"gating\": false", ERR_UNSUPPORTED, "\"gating\" is 'false'; supported: true, per-head, per-element");
	refused(LAGUNA, LAGUNA_MORE ", \"gating\": \"none\"", ERR_UNSUPPORTED, "\"gating\" is 'none'");
	refused(LAGUNA, LAGUNA_MORE ", \"num_attention_heads_per_layer\": [4, 8, 8, 4]", ERR_FORMAT, "\"num_attention_heads_per_layer\" must be an array of 5 numbers");
	refused(LAGUNA, LAGUNA_MORE ", \"num_attention_heads_per_layer\": [4, 8, 8, 4, 5]", ERR_INVALID, "\"num_attention_heads_per_layer\"[4] must be a multiple of");
	good(LAGUNA, LAGUNA_MORE ", \"norm_topk_prob\": true");
	refused(LAGUNA, LAGUNA_MORE ", \"norm_topk_prob\": false", ERR_UNSUPPORTED, "\"norm_topk_prob\" must be true for " LAGUNA);
	refused(LAGUNA, LAGUNA_MORE ", \"routed_scaling_factor\": 2.5", ERR_UNSUPPORTED,
		"\"routed_scaling_factor\" is called \"moe_routed_scaling_factor\" by a " LAGUNA);
	refused(LAGUNA, LAGUNA_MORE ", \"moe_router_logit_softcapping\": 30.0", ERR_UNSUPPORTED, "\"moe_router_logit_softcapping\" is set");
	refused(LAGUNA, LAGUNA_MORE ", \"moe_apply_router_weight_on_input\": true", ERR_UNSUPPORTED, "\"moe_apply_router_weight_on_input\" is set");
	refused(LAGUNA, LAGUNA_MORE ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set");
	refused(LAGUNA, "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"shared_expert_intermediate_size\": 40", ERR_FORMAT,
		"(or \"rope_parameters\") is missing");
}
