/* What config.json says of layers without a window that have heads of their own (Gemma 4), and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                                                  \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, " \
	"\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 128"
#define PLAIN "\"hidden_size_per_layer_input\": 0"
#define TYPES(last) "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\", " last "]"
#define MIXED TYPES("\"sliding_attention\", \"sliding_attention\"")
#define MOE "\"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 2, \"moe_intermediate_size\": 24"

static struct model_config c;

#define good(more)		   said_good(&c, "Gemma4ForCausalLM", SIZES, more)
#define refused(more, error, text) said_refused("Gemma4ForCausalLM", SIZES, more, error, text)

static u32 layers_with(u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

Test(config_global, layers_without_a_window_have_heads_of_their_own)
{
	good(PLAIN);
	cr_assert(c.head_dim == 16 && c.kv_heads == 2 && c.global_head_dim == 512 && c.global_kv_heads == 2 && !c.value_is_key);
	cr_assert(c.window == 512 && layers_with(LAYER_WINDOW) == 31 && layers_with(LAYER_GLOBAL) == 32 && layers_with(LAYER_LOCAL_ROPE) == 31);
	cr_assert(model_head_dim(&c, 0) == 16 && model_head_dim(&c, 5) == 512 && c.own_kv_layers == 6 && model_kv_layer(&c, 5) == 5);
	cr_assert(c.attention_scale == 1 && c.norm_offset == 0 && c.tied_embeddings && c.activation == KERN_GELU_TANH && c.logits_soft_cap == 0);
	good(PLAIN ", \"global_head_dim\": 24, \"num_global_key_value_heads\": 1, \"attention_k_eq_v\": true, \"final_logit_softcapping\": 30");
	cr_assert(c.global_head_dim == 24 && c.global_kv_heads == 1 && c.value_is_key && c.logits_soft_cap == 30);
	good(PLAIN ", \"num_global_key_value_heads\": 1"); /* says nothing without attention_k_eq_v */
	cr_assert(c.global_kv_heads == 2);
	good(PLAIN ", " MIXED); /* of the last layer it is not believed */
	cr_assert(layers_with(LAYER_WINDOW) == 21 && layers_with(LAYER_GLOBAL) == 42);
	good(PLAIN ", \"use_bidirectional_attention\": \"vision\"");
}

Test(config_global, sizes_may_be_said_by_layers_which_agree)
{
	good(PLAIN ", " MIXED ", \"per_layer_config\": {\"1\": {\"head_dim\": 24, \"num_key_value_heads\": 1}, "
		   "\"3\": {\"num_key_value_heads\": 1, \"head_dim\": 24}, \"5\": {\"head_dim\": 24, \"num_key_value_heads\": 1}}");
	cr_assert(c.global_head_dim == 24 && c.global_kv_heads == 1);
	good(PLAIN ", " MIXED ", \"per_layer_config\": {\"01\": {\"head_dim\": 24}, \"003\": {\"head_dim\": 24}, \"5\": {\"head_dim\": 24}}"); /* as transformers writes numbers */
	cr_assert(c.global_head_dim == 24 && c.global_kv_heads == 2);
	refused(PLAIN ", \"per_layer_config\": {\"5\": {\"head_dim\": 24}, \"05\": {\"head_dim\": 24}}", ERR_INVALID, "names layers that there are none of");
	refused(PLAIN ", \"per_layer_config\": {\"5x\": {\"head_dim\": 24}}", ERR_UNSUPPORTED, "layer 5 has 2 KV heads of 16 values");
	good(PLAIN ", \"per_layer_config\": {}");
	cr_assert(c.global_head_dim == 16 && c.global_kv_heads == 2);
	refused(PLAIN ", \"per_layer_config\": [3]", ERR_FORMAT, "\"per_layer_config\" must be an object");
	refused(PLAIN ", \"per_layer_config\": {\"5\": 3}", ERR_FORMAT, "layer 5 of \"per_layer_config\" must be an object, found");
	refused(PLAIN ", \"per_layer_config\": {\"4\": {\"head_dim\": 24}}", ERR_UNSUPPORTED, "layer 4 has 2 KV heads of 24 values");
	refused(PLAIN ", " MIXED ", \"per_layer_config\": {\"1\": {\"head_dim\": 24}, \"3\": {\"head_dim\": 32}, \"5\": {\"head_dim\": 24}}",
		ERR_UNSUPPORTED, "layer 3 has 2 KV heads of 32 values");
	refused(PLAIN ", " MIXED ", \"per_layer_config\": {\"1\": {\"head_dim\": 24}, \"3\": {\"head_dim\": 24}}", ERR_UNSUPPORTED,
		"layer 5 has 2 KV heads of 16 values");
	refused(PLAIN ", \"per_layer_config\": {\"5\": {\"head_dim\": 24, \"sliding_window\": 4}}", ERR_UNSUPPORTED,
		"\"sliding_window\" of layer 5 in \"per_layer_config\" is not supported");
	refused(PLAIN ", \"per_layer_config\": {\"5\": {\"head_dim\": 24}, \"6\": {\"head_dim\": 24}}", ERR_INVALID, "names layers that there are none of");
}

Test(config_global, part_of_the_pairs_of_a_whole_head_rotate)
{
	good(PLAIN ", \"global_head_dim\": 24");
	cr_assert(c.rope.kind == ROPE_PROPORTIONAL && c.rope.dim == 6 && c.rope.head == 24 && c.rope.theta == 1000000);
	cr_assert(c.local_rope.kind == ROPE_PLAIN && c.local_rope.dim == 16 && c.local_rope.head == 0 && c.local_rope.theta == 10000);
	good(PLAIN ", \"global_head_dim\": 24, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 50, "
		   "\"partial_rotary_factor\": 0.3, \"factor\": 2}, \"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 70}}");
	cr_assert(c.rope.dim == 6 && c.rope.theta == 50 && c.rope.factor == 2 && c.local_rope.kind == ROPE_LINEAR && c.local_rope.theta == 70);
	good(PLAIN ", \"global_head_dim\": 24, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 50}}");
	cr_assert(c.rope.kind == ROPE_PLAIN && c.rope.dim == 24 && c.rope.head == 0);
	refused(PLAIN ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 4}}", ERR_UNSUPPORTED,
		"'yarn' is not supported; supported: default, linear, proportional");
	refused(PLAIN ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 1.5}}", ERR_INVALID,
		"it must rotate 2 of them to all");
	refused(PLAIN ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}}", ERR_UNSUPPORTED,
		"\"partial_rotary_factor\" is set");
	refused(PLAIN ", \"rope_theta\": 10000", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for Gemma4ForCausalLM");
	refused(PLAIN ", \"rope_local_base_freq\": 10000", ERR_UNSUPPORTED, "\"rope_local_base_freq\" is set");
	said_refused("LlamaForCausalLM", SIZES ", \"rms_norm_eps\": 1e-6", "\"rope_scaling\": {\"rope_type\": \"proportional\"}", ERR_UNSUPPORTED,
		     "'proportional' is not supported; supported: default, linear, dynamic");
}

Test(config_global, the_last_layers_may_read_the_keys_of_earlier_ones_of_their_kind)
{
	good(PLAIN ", " MIXED ", \"num_kv_shared_layers\": 2, \"use_double_wide_mlp\": true");
	cr_assert(c.own_kv_layers == 4 && layers_with(LAYER_SHARED_KV) == 48 && layers_with(LAYER_WIDE) == 48 && c.wide_intermediate == 160);
	cr_assert(model_kv_layer(&c, 3) == 3 && model_kv_layer(&c, 4) == 2 && model_kv_layer(&c, 5) == 3);
	good(PLAIN ", " MIXED ", \"num_kv_shared_layers\": 4");
	cr_assert(layers_with(LAYER_WIDE) == 0 && model_kv_layer(&c, 2) == 0 && model_kv_layer(&c, 3) == 1 && model_kv_layer(&c, 5) == 1);
	good(PLAIN ", \"use_double_wide_mlp\": true"); /* of layers that there are none of */
	cr_assert(layers_with(LAYER_WIDE) == 0);
	refused(PLAIN ", \"num_kv_shared_layers\": 6", ERR_INVALID, "\"num_kv_shared_layers\" is 6; it must be below num_hidden_layers");
	refused(PLAIN ", \"num_kv_shared_layers\": 1", ERR_INVALID, "layer 5 attends to keys of an earlier layer of the same \"layer_types\"");
}

Test(config_global, what_layers_add_of_a_token_is_there_where_the_file_says_nothing)
{
	good("\"hidden_size_per_layer_input\": 10, \"vocab_size_per_layer_input\": 70");
	cr_assert(c.input_width == 10 && c.input_vocab == 70);
	good("\"head_dim\": 16");
	cr_assert(c.input_width == 256 && c.input_vocab == 262144);
	refused("\"vocab_size_per_layer_input\": 63", ERR_INVALID, "\"vocab_size_per_layer_input\" is 63; it must be vocab_size, which is 64, at least");
	refused("\"hidden_size_per_layer_input\": 1048576", ERR_INVALID, "of 6 layers together it may be");
	said_refused("Gemma3ForCausalLM", SIZES, "\"hidden_size_per_layer_input\": 10", ERR_UNSUPPORTED, "\"hidden_size_per_layer_input\" is set");
}

Test(config_global, experts_stand_beside_the_mlp)
{
	struct model_shard shard;
	struct err_msg em;

	good(PLAIN ", " MOE);
	cr_assert(layers_with(LAYER_EXPERTS) == 63 && c.experts == 8 && c.experts_per_token == 2 && c.expert_intermediate == 24);
	cr_assert(c.normalize_experts && !c.router.sigmoid);
	cr_assert_eq(model_shard_init(&shard, &c, 1, 2, &em), ERR_OK);
	cr_assert(shard.intermediate == 40 && shard.expert_intermediate == 12 && shard.global_kv_heads == 1 && shard.global_kv_first == 1);
	good(PLAIN ", \"num_experts\": 8, \"top_k_experts\": null"); /* of a block that there is none of */
	cr_assert(c.experts == 0 && layers_with(LAYER_EXPERTS) == 0);
	refused(PLAIN ", \"enable_moe_block\": true, \"num_experts\": 8, \"moe_intermediate_size\": 24", ERR_FORMAT, "\"top_k_experts\" is missing");
	refused(PLAIN ", \"enable_moe_block\": true, \"num_experts\": 2, \"top_k_experts\": 3, \"moe_intermediate_size\": 24", ERR_INVALID,
		"\"top_k_experts\" is 3, but there are only 2 experts");
}

Test(config_global, what_is_not_computed_is_refused_by_name)
{
	struct model_shard shard;
	struct err_msg em;

	refused(PLAIN ", \"use_bidirectional_attention\": \"all\"", ERR_UNSUPPORTED, "\"use_bidirectional_attention\" is 'all'; supported: vision or null");
	refused(PLAIN ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set, which is not supported for Gemma4ForCausalLM");
	refused(PLAIN ", \"query_pre_attn_scalar\": 256", ERR_UNSUPPORTED, "\"query_pre_attn_scalar\" is set");
	refused(PLAIN ", \"attn_logit_softcapping\": 50", ERR_UNSUPPORTED, "\"attn_logit_softcapping\" is set");
	refused(PLAIN ", \"sliding_window\": null", ERR_UNSUPPORTED, "\"sliding_window\" is null");
	refused(PLAIN ", \"global_head_dim\": 25", ERR_UNSUPPORTED, "heads of 25 dimensions (\"global_head_dim\"); they must be even");
	refused(PLAIN ", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 3", ERR_INVALID, "not a multiple of num_global_key_value_heads 3");
	said_refused("Gemma3ForCausalLM", SIZES, "\"global_head_dim\": 24", ERR_UNSUPPORTED, "\"global_head_dim\" is set");
	said_good(&c, "Gemma4ForCausalLM",
		  "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 60, \"num_hidden_layers\": 2, \"num_attention_heads\": 12, "
		  "\"num_key_value_heads\": 3, \"head_dim\": 16, \"max_position_embeddings\": 128",
		  PLAIN ", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 2");
	cr_assert_eq(model_shard_init(&shard, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "2 KV heads (of layers without a window)"), "%s", em.text);
}

#define UNIFIED "Gemma4UnifiedForCausalLM"
Test(config_global, the_unified_one_has_neither_inputs_of_layers_nor_experts)
{
	said_good(&c, UNIFIED, SIZES, "\"use_bidirectional_attention\": \"vision\"");
	cr_assert(c.window == 1024 && c.input_width == 0 && c.experts == 0 && layers_with(LAYER_GLOBAL) == 32 && c.global_head_dim == 512 && c.tied_embeddings);
	said_good(&c, UNIFIED, SIZES, PLAIN ", \"enable_moe_block\": false, \"sliding_window\": 8, \"num_kv_shared_layers\": 0");
	cr_assert(c.window == 8);
	said_refused(UNIFIED, SIZES, "\"hidden_size_per_layer_input\": 16, \"vocab_size_per_layer_input\": 64", ERR_UNSUPPORTED,
		     "\"hidden_size_per_layer_input\" is set, which is not supported for " UNIFIED);
	said_refused(UNIFIED, SIZES, MOE, ERR_UNSUPPORTED, "\"enable_moe_block\" is set, which is not supported for " UNIFIED);
}
