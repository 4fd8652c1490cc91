/* What config.json says of families in which nothing rotates: BLOOM, MPT, the first Falcons, GPT Neo, BioGPT and XGLM; slopes and sinusoids that follow
 * from it. Expected numbers are what the families' programs in Python compute. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/alibi.h"
#include "tests/unit/proc_worker/config_said.h"

#define BLOOM	    "BloomForCausalLM"
#define MPT	    "MPTForCausalLM"
#define FALCON	    "FalconForCausalLM"
#define NEO	    "GPTNeoForCausalLM"
#define BIOGPT	    "BioGptForCausalLM"
#define XGLM	    "XGLMForCausalLM"
#define BLOOM_SIZES "\"vocab_size\": 64, \"n_embed\": 96, \"n_layer\": 2, \"n_head\": 12"
#define MPT_SIZES   "\"vocab_size\": 64, \"d_model\": 96, \"n_layers\": 2, \"n_heads\": 12"
#define NEO_SIZES   "\"vocab_size\": 64, \"hidden_size\": 96, \"num_layers\": 4, \"num_heads\": 12, \"max_position_embeddings\": 128"

static struct model_config c;

static void slopes_are(const float *expected, u32 first, u32 count)
{
	float found[32];

	alibi_slopes(&c, first, count, found);
	for (u32 i = 0; i < count; i++)
		cr_assert(fabsf(found[i] - expected[i]) <= 1e-6f * expected[i], "%u: %g, not %g", first + i, (double)found[i], (double)expected[i]);
}

Test(config_unrotated, bloom_has_alibi_and_nothing_rotates)
{
	said_good(&c, BLOOM, BLOOM_SIZES, "\"seq_length\": 300, \"n_inner\": null, \"offset_alibi\": 100, \"skip_bias_add_qkv\": false, \"masked_softmax_fusion\": true");
	cr_assert(c.alibi.kind == ALIBI_BELOW && c.alibi.bias_max == 8 && c.context_max == 300 && c.intermediate == 384 && c.activation == KERN_GELU_TANH);
	cr_assert(c.layer_flags[0] & LAYER_NO_ROPE && c.layer_flags[1] & LAYER_NO_ROPE && c.tied_embeddings && c.kv_heads == 12);
	said_good(&c, BLOOM, "\"vocab_size\": 64, \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 12", "");
	cr_assert(c.context_max == 2048 && c.norm_eps == 1e-5f);
	said_refused(BLOOM, BLOOM_SIZES, "\"apply_residual_connection_post_layernorm\": true", ERR_UNSUPPORTED, "\"apply_residual_connection_post_layernorm\" must be false");
	said_refused(BLOOM, BLOOM_SIZES, "\"slow_but_exact\": true", ERR_UNSUPPORTED, "\"slow_but_exact\" must be false");
	said_refused(BLOOM, BLOOM_SIZES, "\"rope_theta\": 10000", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for BloomForCausalLM");
}

Test(config_unrotated, slopes_of_heads_that_are_no_power_of_two_follow_those_of_the_power_below)
{
	static const float eight[] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f};
	static const float rest[] = {0.70710677f, 0.35355338f, 0.17677669f, 0.088388346f};

	said_good(&c, BLOOM, BLOOM_SIZES, "");
	slopes_are(eight, 0, 8);
	slopes_are(rest, 8, 4);
	slopes_are(eight + 6, 6, 2); /* of a rank */
}

Test(config_unrotated, slopes_of_mpt_are_every_second_of_the_power_above_first)
{
	static const float first[] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f, 0.70710677f, 0.35355338f, 0.17677669f, 0.088388346f};
	static const float half[] = {0.70710677f, 0.5f, 0.35355338f, 0.25f, 0.17677669f, 0.125f, 0.088388346f, 0.0625f};

	said_good(&c, MPT, MPT_SIZES, "");
	slopes_are(first, 0, 12);
	said_good(&c, MPT, "\"vocab_size\": 64, \"d_model\": 96, \"n_layers\": 2, \"n_heads\": 8", "\"attn_config\": {\"alibi\": true, \"alibi_bias_max\": 4}");
	slopes_are(half, 0, 8);
}

Test(config_unrotated, slopes_of_falcon_are_numbers_of_bfloat16)
{
	static const float rounded[] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f, 0.70703125f, 0.353515625f, 0.1767578125f, 0.08837890625f};

	said_good(&c, FALCON, "\"vocab_size\": 64, \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 12",
		  "\"alibi\": true, \"multi_query\": false, \"parallel_attn\": false, \"bias\": true, \"rope_theta\": 10000.0, \"rope_scaling\": null");
	cr_assert(c.alibi.kind == ALIBI_ROUNDED && c.layer_flags[1] & LAYER_NO_ROPE && c.kv_heads == 12 && c.context_max == 2048);
	slopes_are(rounded, 0, 12);
	said_good(&c, FALCON, "\"vocab_size\": 64, \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 12", "\"alibi\": false");
	cr_assert(c.alibi.kind == ALIBI_NONE && !(c.layer_flags[1] & LAYER_NO_ROPE));
	said_refused(FALCON, "\"vocab_size\": 64, \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 12",
		     "\"alibi\": true, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", ERR_UNSUPPORTED, "\"rope_scaling\" is set, but the heads of this FalconForCausalLM");
}

Test(config_unrotated, attention_of_mpt_is_what_its_own_object_says)
{
	said_good(&c, MPT, MPT_SIZES,
		  "\"attn_config\": {\"alibi\": true, \"attn_impl\": \"triton\", \"attn_pdrop\": 0, \"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 4, \"clip_qkv\": 6, "
		  "\"softmax_scale\": 0.5, \"prefix_lm\": false, \"qk_ln\": false, \"sliding_window_size\": -1, \"rope\": false, \"rope_theta\": 10000}, "
		  "\"max_seq_len\": 300, \"expansion_ratio\": 2, \"ffn_config\": {\"ffn_type\": \"mptmlp\", \"fc_type\": \"torch\"}, \"no_bias\": false, \"norm_type\": \"layernorm\"");
	cr_assert(c.kv_heads == 4 && c.clip == 6 && c.attention_scale == 0.5f && c.context_max == 300 && c.intermediate == 192 && c.attention_bias && !c.learned_positions);
	said_good(&c, "MptForCausalLM", MPT_SIZES, "\"attn_config\": {\"attn_type\": \"multiquery_attention\", \"alibi\": false}");
	cr_assert(c.kv_heads == 1 && c.alibi.kind == ALIBI_NONE && c.learned_positions && !c.attention_bias && c.clip == 0 && c.intermediate == 384 && c.tied_embeddings);
}

#define MPT_ATTENTION(fields) "\"attn_config\": {\"alibi\": true, " fields "}"
Test(config_unrotated, what_is_not_computed_of_mpt_is_refused_by_name)
{
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"qk_ln\": true"), ERR_UNSUPPORTED, "\"attn_config\": \"qk_ln\" is set");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"prefix_lm\": true"), ERR_UNSUPPORTED, "\"prefix_lm\" is set");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"rope\": true"), ERR_UNSUPPORTED, "\"rope\" is set");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"sliding_window_size\": 64"), ERR_UNSUPPORTED, "\"sliding_window_size\" is set");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"surprise\": \"yes\""), ERR_UNSUPPORTED, "\"surprise\" is set");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"attn_type\": \"other\""), ERR_UNSUPPORTED, "\"attn_type\" is 'other'");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 5"), ERR_INVALID, "\"kv_n_heads\" is 5, which does not divide the 12 heads");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"attn_type\": \"grouped_query_attention\""), ERR_FORMAT, "\"kv_n_heads\" is missing");
	said_refused(MPT, MPT_SIZES, MPT_ATTENTION("\"clip_qkv\": -1"), ERR_FORMAT, "\"clip_qkv\" must be a number above 0");
	said_refused(MPT, MPT_SIZES, "\"attn_config\": 3", ERR_FORMAT, "\"attn_config\" must be an object");
	said_refused(MPT, MPT_SIZES, "\"attn_config\": {\"alibi\": false}, \"learned_pos_emb\": false", ERR_UNSUPPORTED, "one of them must be true");
	said_refused(MPT, MPT_SIZES, "\"norm_type\": \"rmsnorm\"", ERR_UNSUPPORTED, "(the field \"norm_type\" of a MPTForCausalLM)");
	said_refused(MPT, MPT_SIZES, "\"ffn_config\": {\"ffn_type\": \"mptglu\"}", ERR_UNSUPPORTED, "\"ffn_type\" of \"ffn_config\" is 'mptglu'");
	said_refused(MPT, MPT_SIZES, "\"ffn_config\": {\"ffn_hidden_size\": 99}", ERR_UNSUPPORTED, "\"ffn_config\": \"ffn_hidden_size\" is set");
	said_refused(MPT, MPT_SIZES, "\"logit_scale\": \"inv_sqrt_d_model\"", ERR_UNSUPPORTED, "logit_scale");
	said_refused(MPT, MPT_SIZES, "\"no_bias\": 1", ERR_FORMAT, "(the field \"no_bias\" of a MPTForCausalLM)");
	said_refused(MPT, MPT_SIZES, "\"num_key_value_heads\": 4", ERR_INVALID, "\"num_key_value_heads\" is 4, but by \"attn_config\" there are 12");
	said_refused(MPT, MPT_SIZES, "\"intermediate_size\": 100", ERR_INVALID, "\"intermediate_size\" is 100, but \"expansion_ratio\" times hidden_size");
}

static bool has_window(u32 layer)
{
	return c.layer_flags[layer] & LAYER_WINDOW;
}

Test(config_unrotated, layers_of_gpt_neo_have_windows_by_kind)
{
	said_good(&c, NEO, NEO_SIZES, "\"attention_types\": [[[\"global\", \"local\"], 2]], \"window_size\": 9, \"intermediate_size\": null");
	cr_assert(c.window == 9 && !has_window(0) && has_window(1) && !has_window(2) && has_window(3));
	cr_assert(c.attention_scale == 1 && c.intermediate == 384 && c.layer_flags[0] & LAYER_NO_ROPE && c.tied_embeddings && c.activation == KERN_GELU_TANH);
	said_good(&c, NEO, NEO_SIZES, "\"attention_types\": [[[\"local\"], 1], [[\"global\"], 3]], \"attention_layers\": [\"local\", \"global\", \"global\", \"global\"]");
	cr_assert(c.window == 256 && has_window(0) && !has_window(1) && !has_window(3));
	said_good(&c, NEO, NEO_SIZES, "\"attention_layers\": [\"global\", \"global\", \"global\", \"local\"]");
	cr_assert(!has_window(0) && has_window(3));
}

Test(config_unrotated, kinds_of_gpt_neos_layers_that_are_no_such_list_are_refused)
{
	said_refused(NEO, NEO_SIZES, "", ERR_INVALID, "\"attention_types\" is missing");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[[\"global\", \"local\"], 3]]", ERR_INVALID, "more than 4 layers");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[[\"global\", \"local\"], 1]]", ERR_INVALID, "\"attention_types\" says it of 2 layers; it must be 4");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[[\"global\", \"far\"], 2]]", ERR_UNSUPPORTED, "\"attention_types\" has 'far'");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[\"global\", 4]]", ERR_FORMAT, "\"attention_types\" must be an array of pairs");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[[], 4294967296]]", ERR_FORMAT, "\"attention_types\" must be an array of pairs");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": \"local\"", ERR_FORMAT, "\"attention_types\" must be an array");
	said_refused(NEO, NEO_SIZES, "\"attention_layers\": [\"global\"]", ERR_INVALID, "\"attention_layers\" says it of 1 layers");
	said_refused(NEO, NEO_SIZES, "\"attention_types\": [[[\"global\"], 4]], \"attention_layers\": [\"global\", \"local\", \"global\", \"global\"]", ERR_INVALID,
		     "\"attention_layers\"[1] is another kind");
}

Test(config_unrotated, embeddings_may_be_scaled_before_positions_are_added)
{
	said_good(&c, BIOGPT,
		  "\"vocab_size\": 64, \"hidden_size\": 144, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 12, \"max_position_embeddings\": 128",
		  "\"layer_norm_eps\": 1e-12");
	cr_assert(c.embed_scale == 12 && c.norm_eps == 1e-5f && c.activation == KERN_GELU);
	said_good(&c, XGLM, "\"vocab_size\": 64, \"d_model\": 144, \"ffn_dim\": 80, \"num_layers\": 2, \"attention_heads\": 12, \"max_position_embeddings\": 128",
		  "\"scale_embedding\": false, \"pad_token_id\": 0");
	cr_assert(c.sinusoid_padding == 0 && c.embed_scale == 1 && c.hidden == 144 && c.intermediate == 80 && c.layers == 2 && c.heads == 12);
	said_good(&c, XGLM, "\"vocab_size\": 64, \"d_model\": 144, \"ffn_dim\": 80, \"num_layers\": 2, \"attention_heads\": 12, \"max_position_embeddings\": 128",
		  "\"pad_token_id\": 5");
	cr_assert_eq(c.sinusoid_padding, 5);
	said_refused(XGLM, "\"vocab_size\": 64, \"d_model\": 2, \"ffn_dim\": 80, \"num_layers\": 2, \"attention_heads\": 1, \"max_position_embeddings\": 128", "", ERR_INVALID,
		     "\"hidden_size\" is 2; of a XGLMForCausalLM it must be 4 at least");
}

Test(config_unrotated, sinusoids_begin_at_the_third)
{
	float made[3 * 6], padded[3 * 6];

	sinusoids_fill(made, 3, 6, 1);
	sinusoids_fill(padded, 3, 6, 3);
	for (u32 i = 0; i < 3 * 6; i++)
		cr_assert(padded[i] == (i / 6 == 1 ? 0 : made[i]), "%u", i);
	for (u32 p = 0; p < 3; p++)
		for (u32 i = 0; i < 3; i++) {
			const double angle = (p + 2) * pow(10000, -(double)i / 2);
			cr_assert(fabs(made[p * 6 + i] - sin(angle)) < 1e-5 && fabs(made[p * 6 + 3 + i] - cos(angle)) < 1e-5, "%u, %u", p, i);
		}
}
