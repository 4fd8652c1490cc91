/* What config.json says of layers that mix tokens by a real-gated linear recurrent unit, by lightning attention, by mixtures of heads or by differences of them, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define GRIFFIN "RecurrentGemmaForCausalLM"
#define MINIMAX "MiniMaxForCausalLM"
#define TEXT01	"MiniMaxText01ForCausalLM"
#define M1	"MiniMaxM1ForCausalLM"
#define GRIFFIN_SIZES                                                                                    \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 5, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 1"
#define MINIMAX_SIZES                                                                                     \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 4, "  \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, "      \
	"\"num_local_experts\": 6, \"num_experts_per_tok\": 2"
#define DIFF "DiffLlamaForCausalLM"
#define DIFF_SIZES                                                                                      \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 2, " \
	"\"num_attention_heads\": 8, \"max_position_embeddings\": 128"
#define JETMOE "JetMoeForCausalLM"
#define JETMOE_SIZES                                                                                                      \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 2, \"kv_channels\": 10, " \
	"\"num_key_value_heads\": 3, \"max_position_embeddings\": 128, \"num_local_experts\": 6"
#define TEXT01_SIZES MINIMAX_SIZES ", \"postnorm\": true"

static struct model_config c;

#define good(family, sizes, more)		  said_good(&c, family, sizes, more)
#define refused(family, sizes, more, error, text) said_refused(family, sizes, more, error, text)

static u32 layers_with(u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

Test(config_mixers, recurrent_gemma_attends_to_windows_in_every_third_layer)
{
	const struct recurrent_config *r = &c.recurrent;

	good(GRIFFIN, GRIFFIN_SIZES, "");
	cr_assert(r->kind == RECURRENT_LRU && r->heads == 4 && r->key_heads == 4 && r->value_dim == 12 && r->key_dim == 1 && r->taps == 4);
	cr_assert(r->bias && r->conv_bias && !r->normed && c.intermediate == 45 && c.activation == KERN_GELU_TANH && c.tied_embeddings);
	cr_assert(layers_with(LAYER_RECURRENT) == 0x1b && layers_with(LAYER_WINDOW) == 4 && c.window == 2048 && c.context_max == 8192);
	cr_assert(c.rope.dim == 6 && c.rope.theta == 10000 && c.logits_soft_cap == 30 && c.norm_eps == 1e-6f && c.norm_offset == 1);
	cr_assert_eq(c.embed_scale, 6.9375f, "the root of 48 in bfloat16, found %.9g", (double)c.embed_scale);
	good(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": [\"attention\", \"recurrent\"], \"lru_width\": 40, \"conv1d_width\": 2, \"attention_window_size\": 9, "
				     "\"logits_soft_cap\": 5.0, \"hidden_activation\": \"silu\", \"attention_bias\": true, \"partial_rotary_factor\": 1.0, "
				     "\"head_dim\": 12, \"embeddings_scale_by_sqrt_dim\": true, \"w_init_variance_scale\": 0.01, \"final_w_init_variance_scale\": 0.07");
	cr_assert(layers_with(LAYER_RECURRENT) == 0xa && layers_with(LAYER_WINDOW) == 0x15 && r->value_dim == 10 && r->taps == 2 && c.window == 9);
	cr_assert(c.logits_soft_cap == 5 && c.activation == KERN_SILU && c.attention_bias && c.rope.dim == 12);
	good(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": [\"attention\"], \"lru_width\": null");
	cr_assert(layers_with(LAYER_RECURRENT) == 0 && r->kind == RECURRENT_NONE && c.embed_scale == 6.9375f);
}

Test(config_mixers, what_recurrent_gemma_says_is_checked)
{
	refused(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": [\"recurrent\"]", ERR_UNSUPPORTED, "none of the layers is one of attention (\"block_types\"); a " GRIFFIN);
	refused(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": [\"attention\", \"conv\"]", ERR_UNSUPPORTED, "\"block_types\"[1] is 'conv'; supported: recurrent, attention");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": []", ERR_FORMAT, "\"block_types\" must be an array of strings, each recurrent or attention, found array of 0");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"block_types\": null", ERR_FORMAT, "\"block_types\" must be an array of strings, each recurrent or attention, found null of 0");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"head_dim\": 16", ERR_UNSUPPORTED, "\"head_dim\" is 16; of a " GRIFFIN " it must be hidden_size / num_attention_heads, 48 / 4");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"lru_width\": 50", ERR_INVALID, "\"lru_width\" is 50; it must be a multiple of num_attention_heads, which is 4");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"lru_width\": 4100", ERR_UNSUPPORTED, "\"lru_width\" is 4100; at most 1024 values for each of 4 heads");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"conv1d_width\": 9", ERR_UNSUPPORTED, "\"conv1d_width\" is 9; convolutions over 2 to 8 tokens are supported");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"attention_window_size\": null", ERR_INVALID, "\"sliding_window\" is null");
	refused(GRIFFIN, GRIFFIN_SIZES, "\"embeddings_scale_by_sqrt_dim\": false", ERR_UNSUPPORTED, "\"embeddings_scale_by_sqrt_dim\" must be true for " GRIFFIN);
	refused(GRIFFIN, GRIFFIN_SIZES, "\"attn_logit_softcapping\": 50.0", ERR_UNSUPPORTED, "\"attn_logit_softcapping\" is set, which is not supported for " GRIFFIN);
	refused("GemmaForCausalLM", GRIFFIN_SIZES, "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"lru_width\": 48", ERR_UNSUPPORTED, "unknown field \"lru_width\"");
}

Test(config_mixers, minimax_has_lightning_attention_in_every_other_layer)
{
	const struct recurrent_config *r = &c.recurrent;

	good(MINIMAX, MINIMAX_SIZES, "");
	cr_assert(r->kind == RECURRENT_LIGHTNING && r->heads == 4 && r->key_heads == 4 && r->key_dim == 12 && r->value_dim == 12 && r->step_min == 1 && r->step_max == 1);
	cr_assert(layers_with(LAYER_RECURRENT) == 0xa && layers_with(LAYER_EXPERTS) == 0xf && layers_with(LAYER_WINDOW) == 0 && c.normalize_experts);
	cr_assert(r->gate_eps == 1e-6f && c.norm_eps == 1e-5f && c.rope.theta == 1000000 && c.rope.dim == 12 && !c.router.sigmoid);
	for (u32 k = 0; k < RESIDUAL_KINDS; k++)
		cr_assert(c.residuals[k].kept == 1 && c.residuals[k].said == 1);
	good(MINIMAX, MINIMAX_SIZES, "\"layer_types\": [\"linear_attention\", \"full_attention\", \"linear_attention\", \"linear_attention\"], \"head_dim\": 20, "
				     "\"block_size\": 256, \"sliding_window\": null, \"full_attn_alpha_factor\": 3, \"full_attn_beta_factor\": 2, "
				     "\"linear_attn_alpha_factor\": 1, \"linear_attn_beta_factor\": 0.5, \"mlp_alpha_factor\": 0.25");
	cr_assert(layers_with(LAYER_RECURRENT) == 0xd && r->value_dim == 20);
	cr_assert(c.residuals[RESIDUAL_ATTENTION].kept == 1.5f && c.residuals[RESIDUAL_ATTENTION].said == 2);
	cr_assert(c.residuals[RESIDUAL_STATE].kept == 2 && c.residuals[RESIDUAL_STATE].said == 0.5f);
	cr_assert(c.residuals[RESIDUAL_MLP].kept == 0.25f && c.residuals[RESIDUAL_MLP].said == 1);
}

Test(config_mixers, older_files_of_minimax_number_their_layers)
{
	static const char *const families[] = {TEXT01, M1};

	for (u32 i = 0; i < COUNT_OF(families); i++) {
		good(families[i], TEXT01_SIZES, "\"attn_type_list\": [0, 0, 1, 0], \"rotary_dim\": 6, \"shared_intermediate_size\": 0, \"shared_moe_mode\": \"sigmoid\", "
						"\"layernorm_full_attention_alpha\": 3.5, \"layernorm_linear_attention_beta\": 2.0, \"layernorm_mlp_alpha\": 4.0");
		cr_assert(layers_with(LAYER_RECURRENT) == 0xb && c.rope.dim == 6 && c.residuals[RESIDUAL_ATTENTION].kept == 3.5f);
		cr_assert(c.residuals[RESIDUAL_STATE].said == 2 && c.residuals[RESIDUAL_STATE].kept == 0.5f && c.residuals[RESIDUAL_MLP].kept == 4);
	}
	good(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\", \"linear_attention\"]");
	cr_assert_eq(layers_with(LAYER_RECURRENT), 0x9);
}

Test(config_mixers, what_minimax_says_is_checked)
{
	refused(TEXT01, TEXT01_SIZES, "\"rotary_dim\": 6", ERR_FORMAT, "\"attn_type_list\" is missing; of a " TEXT01 " it must be an array of 4 numbers");
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1]", ERR_FORMAT, "\"attn_type_list\" must be an array of 4 numbers (num_hidden_layers), found array of 2");
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 2, 0]", ERR_FORMAT, "\"attn_type_list\"[2] must be 0, lightning attention, or 1");
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 0, 0, 0]", ERR_UNSUPPORTED, "none of the layers is one of attention (\"attn_type_list\"); a " TEXT01);
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", \"linear_attention\"]",
		ERR_INVALID, "\"layer_types\"[0] is 'full_attention', but by \"attn_type_list\" the layer is linear_attention");
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"shared_intermediate_size\": 64", ERR_UNSUPPORTED, "\"shared_intermediate_size\" is set");
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"rotary_dim\": 5", ERR_INVALID, "\"rotary_dim\" is 5; it must be even");
	refused(TEXT01, MINIMAX_SIZES, "\"attn_type_list\": [0, 1, 1, 0]", ERR_UNSUPPORTED, "\"postnorm\" must be true for " TEXT01);
	refused(TEXT01, MINIMAX_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"postnorm\": false", ERR_UNSUPPORTED, "\"postnorm\" must be true for " TEXT01);
	refused(TEXT01, TEXT01_SIZES, "\"attn_type_list\": [0, 1, 1, 0], \"layernorm_mlp_beta\": 0", ERR_FORMAT, "\"layernorm_mlp_beta\"");
	refused(MINIMAX, MINIMAX_SIZES, "\"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set, which is not supported for " MINIMAX);
	refused(MINIMAX, MINIMAX_SIZES, "\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " MINIMAX " it must be silu");
	refused(MINIMAX, MINIMAX_SIZES, "\"head_dim\": 514", ERR_UNSUPPORTED, "heads of 514 values; those of lightning attention may have 512");
	refused(MINIMAX, MINIMAX_SIZES, "\"mlp_alpha_factor\": 1e38, \"mlp_beta_factor\": 1e-3", ERR_INVALID, "\"mlp_alpha_factor\"");
	refused(MINIMAX, MINIMAX_SIZES, "\"layer_types\": [\"linear_attention\"]", ERR_FORMAT, "\"layer_types\" must be an array of 4 strings");
	refused(MINIMAX, MINIMAX_SIZES, "\"attn_type_list\": [0, 1, 1, 0]", ERR_UNSUPPORTED, "\"attn_type_list\" is set, which is not supported for " MINIMAX);
	refused("MixtralForCausalLM", MINIMAX_SIZES, "\"rms_norm_eps\": 1e-5, \"mlp_alpha_factor\": 2", ERR_UNSUPPORTED,
		"\"mlp_alpha_factor\" is set, which is not supported for MixtralForCausalLM");
}

Test(config_mixers, ranks_share_heads)
{
	struct model_shard s;
	struct err_msg em;

	good(GRIFFIN, GRIFFIN_SIZES, "");
	c.intermediate = 44;
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_heads == 2 && s.recurrent_key_heads == 2 && s.recurrent_channels == 0);
	good(MINIMAX, MINIMAX_SIZES, "");
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_heads == 2 && s.recurrent_key_heads == 2);
}

Test(config_mixers, jetmoe_has_a_head_for_each_kv_head_and_expert_of_a_token)
{
	struct model_shard s;
	struct err_msg em;

	good(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 4, \"rms_norm_eps\": 1e-4, \"activation_function\": \"gelu\", \"aux_loss_coef\": 0.01");
	cr_assert(c.heads == 12 && c.kv_heads == 3 && c.head_dim == 10 && c.experts == 6 && c.experts_per_token == 4 && c.expert_intermediate == 90);
	cr_assert(c.norm_eps == 1e-6f && c.final_norm_eps == 1e-4f && c.activation == KERN_GELU && c.tied_embeddings && c.normalize_experts);
	cr_assert_eq(model_shard_init(&s, &c, 1, 3, &em), ERR_OK, "%s", em.text);
	cr_assert(s.heads == 4 && s.kv_heads == 1);
	cr_assert_eq(model_shard_init(&s, &c, 1, 6, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "--tensor-parallel-size 6: the model's 3 KV heads cannot be divided by it"), "%s", em.text);
	good(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 2, \"num_attention_heads\": 6");
	cr_assert(c.heads == 6 && c.final_norm_eps == 1e-6f && c.rope.dim == 10);
	refused(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 2, \"num_attention_heads\": 3", ERR_INVALID,
		"\"num_attention_heads\" is 3; by \"num_key_value_heads\" and \"num_experts_per_tok\" it must be 6");
	refused(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 7", ERR_INVALID, "\"num_experts_per_tok\" is 7, but there are only 6 experts");
	refused(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 65000", ERR_INVALID, "is more than 65536 heads");
	refused(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 2, \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set, which is not supported for " JETMOE);
	refused(JETMOE, JETMOE_SIZES, "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true", ERR_UNSUPPORTED, "\"norm_topk_prob\" is set, which is not supported for " JETMOE);
}

Test(config_mixers, diffllama_has_twice_as_many_heads_as_its_file_says)
{
	struct model_shard s;
	struct err_msg em;

	good(DIFF, DIFF_SIZES, "\"num_key_value_heads\": 4, \"lambda_std_dev\": 0.1, \"attention_bias\": true");
	cr_assert(c.heads == 16 && c.kv_heads == 8 && c.head_dim == 6 && c.attention_bias && c.norm_eps == 1e-5f && c.rope.dim == 6);
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.heads == 8 && s.kv_heads == 4);
	good(DIFF, DIFF_SIZES, "\"head_dim\": 20");
	cr_assert(c.heads == 16 && c.kv_heads == 16 && c.head_dim == 20);
	good(DIFF, DIFF_SIZES, "\"num_key_value_heads\": 2");
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "--tensor-parallel-size 2: the model's 1 pairs of KV heads cannot be divided by it"), "%s", em.text);
	refused(DIFF, DIFF_SIZES, "\"num_key_value_heads\": 1", ERR_INVALID, "\"num_key_value_heads\" is 1; of a " DIFF " it must be even");
	refused(DIFF, DIFF_SIZES, "\"num_key_value_heads\": 3", ERR_INVALID, "num_attention_heads 8 is not a multiple of num_key_value_heads 3");
	refused(DIFF, DIFF_SIZES, "\"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set, which is not supported for " DIFF);
	refused(DIFF, DIFF_SIZES, "\"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set, which is not supported for " DIFF);
}
