/* What config.json says of layers of Mamba's first generation, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define JAMBA "JambaForCausalLM"
#define MAMBA "MambaForCausalLM"
#define FALCON "FalconMambaForCausalLM"
#define JAMBA_SIZES                                                                                       \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 12, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128"
#define MAMBA_SIZES "\"vocab_size\": 64, \"hidden_size\": 50, \"num_hidden_layers\": 3"

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

Test(config_selective, jamba_attends_and_has_experts_in_one_layer_of_so_many)
{
	const struct recurrent_config *r = &c.recurrent;

	good(JAMBA, JAMBA_SIZES, "");
	cr_assert(r->kind == RECURRENT_SELECTIVE && r->heads == 96 && r->value_dim == 1 && r->key_heads == 1 && r->key_dim == 16 && r->step_rank == 3);
	cr_assert(r->taps == 4 && r->conv_bias && !r->bias && r->normed && r->gate_eps == 1e-6f && c.norm_eps == 1e-6f);
	cr_assert_eq(layers_with(LAYER_RECURRENT), 0xfff & ~(1 << 4));
	cr_assert(layers_with(LAYER_EXPERTS) == 0xaaa && c.experts == 16 && c.experts_per_token == 2 && c.expert_intermediate == 90 && !c.normalize_experts);
	cr_assert(layers_with(LAYER_NO_ROPE) == 0xfff && c.own_kv_layers == 12 && c.head_dim == 12 && !c.router.sigmoid);
	good(JAMBA, JAMBA_SIZES, "\"attn_layer_period\": 4, \"attn_layer_offset\": 3, \"expert_layer_period\": 3, \"expert_layer_offset\": 0, \"num_local_experts\": 5, "
				 "\"num_experts_per_tok\": 5, \"mamba_dt_rank\": 7, \"mamba_expand\": 3, \"mamba_d_state\": 256, \"mamba_d_conv\": 2, "
				 "\"mamba_conv_bias\": false, \"mamba_proj_bias\": true, \"mamba_inner_layernorms\": true, \"sliding_window\": null");
	cr_assert(layers_with(LAYER_RECURRENT) == 0x777 && layers_with(LAYER_EXPERTS) == 0x249 && c.experts == 5);
	cr_assert(r->heads == 144 && r->step_rank == 7 && r->key_dim == 256 && r->taps == 2 && !r->conv_bias && r->bias);
	good(JAMBA, JAMBA_SIZES, "\"num_experts\": 1, \"num_experts_per_tok\": 2, \"mamba_dt_rank\": \"auto\"");
	cr_assert(layers_with(LAYER_EXPERTS) == 0 && c.experts == 0 && c.intermediate == 90 && r->step_rank == 3);
}

#define TYPES "[\"mamba\", \"mamba\", \"mamba\", \"mamba\", \"attention\", \"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\"]"
Test(config_selective, what_jamba_says_is_checked)
{
	good(JAMBA, JAMBA_SIZES, "\"layers_block_type\": " TYPES);
	refused(JAMBA, JAMBA_SIZES, "\"attn_layer_offset\": 3, \"layers_block_type\": " TYPES, ERR_INVALID,
		"\"layer_types\"[3] is 'mamba', but by \"attn_layer_period\" the layer is full_attention");
	refused(JAMBA, JAMBA_SIZES, "\"attn_layer_period\": 4, \"attn_layer_offset\": 4", ERR_INVALID,
		"\"attn_layer_offset\" is 4; it must be below \"attn_layer_period\", which is 4");
	refused(JAMBA, JAMBA_SIZES, "\"attn_layer_period\": 40, \"attn_layer_offset\": 39", ERR_UNSUPPORTED,
		"none of the layers is one of attention (\"attn_layer_period\", \"attn_layer_offset\"); a " JAMBA);
	refused(JAMBA, JAMBA_SIZES, "\"attn_layer_period\": 0", ERR_INVALID, "\"attn_layer_period\" is 0; it must be 1 to 4096");
	refused(JAMBA, JAMBA_SIZES, "\"expert_layer_offset\": 2", ERR_INVALID, "\"expert_layer_offset\" is 2; it must be below \"expert_layer_period\", which is 2");
	refused(JAMBA, JAMBA_SIZES, "\"num_experts\": 4, \"num_experts_per_tok\": 5", ERR_INVALID, "\"num_experts_per_tok\" is 5, but there are only 4 experts");
	refused(JAMBA, JAMBA_SIZES, "\"num_experts\": 4, \"num_local_experts\": 5", ERR_INVALID, "\"num_experts\" and \"num_local_experts\" say the same");
	refused(JAMBA, JAMBA_SIZES, "\"moe_intermediate_size\": 20", ERR_UNSUPPORTED, "\"moe_intermediate_size\" is set, which is not supported for " JAMBA);
	refused(JAMBA, JAMBA_SIZES, "\"norm_topk_prob\": true", ERR_UNSUPPORTED, "\"norm_topk_prob\" is set, which is not supported for " JAMBA);
	refused(JAMBA, JAMBA_SIZES, "\"mamba_d_state\": 257", ERR_INVALID, "\"mamba_d_state\" is 257; it must be 1 to 256");
	refused(JAMBA, JAMBA_SIZES, "\"mamba_d_conv\": 9", ERR_UNSUPPORTED, "\"mamba_d_conv\" is 9; convolutions over 2 to 8 tokens are supported");
	refused(JAMBA, JAMBA_SIZES, "\"mamba_dt_rank\": \"some\"", ERR_FORMAT, "\"mamba_dt_rank\" is 'some'; it must be an integer from 1 to 1048576, or \"auto\", which is 3 here");
	refused(JAMBA, JAMBA_SIZES, "\"mamba_expand\": 1000000", ERR_INVALID, "\"mamba_expand\" is 1000000: times hidden_size, which is 48");
	refused(JAMBA, JAMBA_SIZES, "\"mamba_inner_layernorms\": false", ERR_UNSUPPORTED, "\"mamba_inner_layernorms\" must be true for " JAMBA);
	refused(JAMBA, JAMBA_SIZES, "\"mamba_n_heads\": 4", ERR_UNSUPPORTED, "unknown field \"mamba_n_heads\"");
	refused(JAMBA, JAMBA_SIZES, "\"rope_theta\": 10000", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for " JAMBA);
	refused(JAMBA, JAMBA_SIZES, "\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " JAMBA " it must be silu");
	refused("LlamaForCausalLM", JAMBA_SIZES, "\"rms_norm_eps\": 1e-5, \"attn_layer_period\": 8", ERR_UNSUPPORTED,
		"\"attn_layer_period\" is set, which is not supported for LlamaForCausalLM");
}

Test(config_selective, mamba_has_no_layer_of_attention)
{
	const struct recurrent_config *r = &c.recurrent;

	good(MAMBA, MAMBA_SIZES, "\"ssm_cfg\": {}, \"fused_add_norm\": true, \"rms_norm\": true, \"d_model\": 50, \"n_layer\": 3, \"d_inner\": 100, \"time_step_rank\": \"auto\"");
	cr_assert(r->kind == RECURRENT_SELECTIVE && r->heads == 100 && r->key_dim == 16 && r->step_rank == 4 && !r->normed && r->conv_bias && !r->bias);
	cr_assert(layers_with(LAYER_RECURRENT) == 7 && layers_with(LAYER_NO_MLP) == 7 && !model_attends(&c, 0) && c.tied_embeddings && c.norm_eps == 1e-5f);
	cr_assert(c.context_max == 1 << 20 && c.intermediate == 0 && c.own_kv_layers == 3);
	good(FALCON, MAMBA_SIZES, "\"expand\": 16, \"intermediate_size\": 96, \"state_size\": 8, \"conv_kernel\": 3, \"use_conv_bias\": false, \"use_bias\": true, "
				  "\"layer_norm_epsilon\": 1e-4, \"mixer_rms_eps\": 1e-3, \"tie_word_embeddings\": false, \"max_position_embeddings\": 77, "
				  "\"time_step_rank\": 9, \"layer_types\": [\"linear_attention\", \"mamba\", \"linear_attention\"]");
	cr_assert(r->heads == 96 && r->key_dim == 8 && r->taps == 3 && r->normed && !r->conv_bias && r->bias && r->step_rank == 9);
	cr_assert(c.norm_eps == 1e-4f && r->gate_eps == 1e-3f && !c.tied_embeddings && c.context_max == 77);
	good(FALCON, MAMBA_SIZES, "");
	cr_assert(r->gate_eps == 1e-6f && c.norm_eps == 1e-5f);
}

Test(config_selective, what_mamba_says_is_checked)
{
	refused(MAMBA, MAMBA_SIZES, "\"num_attention_heads\": 4", ERR_UNSUPPORTED, "\"num_attention_heads\" is set; no layer of a " MAMBA " is of attention");
	refused(MAMBA, MAMBA_SIZES, "\"rope_theta\": 1e4", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for " MAMBA);
	refused(MAMBA, MAMBA_SIZES, "\"d_inner\": 64, \"intermediate_size\": 96", ERR_INVALID, "\"d_inner\" and \"intermediate_size\" are the same field of a " MAMBA);
	refused(MAMBA, MAMBA_SIZES, "\"layer_types\": [\"mamba\", \"attention\", \"mamba\"]", ERR_UNSUPPORTED, "1 of the layers are of attention (\"layer_types\")");
	refused(MAMBA, MAMBA_SIZES, "\"layer_types\": [\"attention\", \"attention\", \"attention\"]", ERR_UNSUPPORTED, "3 of the layers are of attention");
	refused(MAMBA, MAMBA_SIZES, "\"layer_types\": [\"mamba\"]", ERR_FORMAT, "\"layer_types\" must be an array of 3 strings");
	refused(MAMBA, MAMBA_SIZES, "\"ssm_cfg\": {\"layer\": \"Mamba2\"}", ERR_UNSUPPORTED, "unknown field \"ssm_cfg\"");
	refused(MAMBA, MAMBA_SIZES, "\"rms_norm\": false", ERR_UNSUPPORTED, "\"rms_norm\" must be true for " MAMBA);
	refused(MAMBA, MAMBA_SIZES, "\"mixer_rms_eps\": 1e-6", ERR_UNSUPPORTED, "\"mixer_rms_eps\" is set, which is not supported for " MAMBA);
	refused(MAMBA, MAMBA_SIZES, "\"state_size\": 0", ERR_INVALID, "\"mamba_d_state\" is 0; it must be 1 to 256 (the field \"state_size\" of a " MAMBA);
	refused(FALCON, MAMBA_SIZES, "\"mixer_rms_eps\": 2", ERR_INVALID, "\"mixer_rms_eps\" is 2; it must be at most 1");
	refused(FALCON, MAMBA_SIZES, "\"mixer_rms_eps\": 0", ERR_FORMAT, "\"mixer_rms_eps\" must be a number above 0");
	refused(FALCON, MAMBA_SIZES, "\"num_experts\": 4", ERR_UNSUPPORTED, "\"num_experts\" is set, which is not supported for " FALCON);
}

Test(config_selective, ranks_share_channels)
{
	struct model_shard s;
	struct err_msg em = {""};

	good(JAMBA, JAMBA_SIZES, "");
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_heads == 48 && s.recurrent_key_heads == 1 && s.heads == 2 && s.expert_intermediate == 45);
	good(MAMBA, MAMBA_SIZES, "");
	cr_assert_eq(model_shard_init(&s, &c, 4, 5, &em), ERR_OK, "%s", em.text);
	cr_assert(s.recurrent_heads == 20 && s.recurrent_key_heads == 1);
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's 100 channels of layers that keep a state cannot be divided by it; these counts would do: 1, 2, 4, 5, 10, 20"), "%s", em.text);
}
