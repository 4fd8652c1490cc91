/* What config.json says of several residual streams, sparse gates and the like (Gemma 3n), and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES_BUT_WIDTH(layers)                                                                                                            \
	"\"hidden_size\": 48, \"num_hidden_layers\": " #layers ", \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, " \
	"\"max_position_embeddings\": 128, \"vocab_size\": 64"
#define SIZES SIZES_BUT_WIDTH(6) ", \"intermediate_size\": 80"
#define SHARED "\"num_kv_shared_layers\": 1, "
#define FAMILY "Gemma3nForCausalLM"

static struct model_config c;

#define good(more)		   said_good(&c, FAMILY, SIZES, more)
#define refused(more, error, text) said_refused(FAMILY, SIZES, more, error, text)

static u32 layers_with(u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

Test(config_altup, what_the_file_leaves_out_is_what_the_family_has)
{
	said_good(&c, FAMILY, SIZES_BUT_WIDTH(20) ", \"intermediate_size\": 80", "");
	cr_assert(c.altup.streams == 4 && c.altup.active == 0 && c.altup.laurel_rank == 64 && c.altup.scaled);
	cr_assert(c.input_width == 256 && c.input_vocab == 262144 && c.own_kv_layers == 5 && c.window == 512);
	cr_assert(layers_with(LAYER_SPARSE) == 0x3ff && layers_with(LAYER_WINDOW) == 0x7bdef && layers_with(LAYER_GLOBAL) == 0);
	cr_assert(fabsf(c.gate_deviations[9] - 1.6448536f) < 1e-6f, "%.9g", (double)c.gate_deviations[9]);
	cr_assert(c.attention_scale == 1 && c.norm_offset == 0 && c.tied_embeddings && c.activation == KERN_GELU_TANH && c.logits_soft_cap == 30);
	cr_assert(c.rope.theta == 1000000 && c.local_rope.theta == 10000 && c.rope.dim == 16 && c.embed_scale == sqrtf(48));
	good(SHARED "\"final_logit_softcapping\": 5");
	cr_assert(layers_with(LAYER_SPARSE) == 0 && c.logits_soft_cap == 5); /* of few layers none is */
	refused("", ERR_INVALID, "\"num_kv_shared_layers\" is 15; it must be below num_hidden_layers, which is 6");
}

Test(config_altup, streams_are_a_few_of_which_one_is_active)
{
	good(SHARED "\"altup_num_inputs\": 8, \"altup_active_idx\": 7, \"altup_correct_scale\": false, \"laurel_rank\": 3, \"altup_coef_clip\": null");
	cr_assert(c.altup.streams == 8 && c.altup.active == 7 && !c.altup.scaled && c.altup.laurel_rank == 3);
	good(SHARED "\"altup_lr_multiplier\": 2.0, \"query_pre_attn_scalar\": 256, \"rope_scaling\": null");
	cr_assert(c.attention_scale == 1);
	refused(SHARED "\"altup_num_inputs\": 1", ERR_UNSUPPORTED, "\"altup_num_inputs\" is 1; supported: 2 to 8");
	refused(SHARED "\"altup_num_inputs\": 9", ERR_INVALID, "\"altup_num_inputs\" is 9");
	refused(SHARED "\"altup_num_inputs\": 3, \"altup_active_idx\": 3", ERR_INVALID, "\"altup_active_idx\" is 3; it must be below altup_num_inputs, which is 3");
	refused(SHARED "\"altup_active_idx\": -1", ERR_FORMAT, "\"altup_active_idx\"");
	refused(SHARED "\"altup_coef_clip\": -3", ERR_FORMAT, "\"altup_coef_clip\"");
	refused(SHARED "\"altup_correct_scale\": 3", ERR_FORMAT, "\"altup_correct_scale\"");
	refused(SHARED "\"laurel_rank\": 0", ERR_INVALID, "\"laurel_rank\"");
	refused(SHARED "\"hidden_size_per_layer_input\": 0", ERR_INVALID, "\"hidden_size_per_layer_input\"");
	refused(SHARED "\"hidden_size_per_layer_input\": 1048576", ERR_INVALID, "of 6 layers together it may be");
}

Test(config_altup, gates_are_sparse_by_layers)
{
	good(SHARED "\"activation_sparsity_pattern\": [0.95, 0.5, 0.0, 0, 0.001, 0.9999999]");
	cr_assert(layers_with(LAYER_SPARSE) == 0x33);
	cr_assert(fabsf(c.gate_deviations[1]) < 1e-6f && fabsf(c.gate_deviations[4] + 3.0902323f) < 1e-5f, "%g", (double)c.gate_deviations[4]);
	cr_assert(c.gate_deviations[5] > 5 && c.gate_deviations[5] < 5.5f);
	refused(SHARED "\"activation_sparsity_pattern\": [0.95, 0.5]", ERR_FORMAT, "must be an array of 6 numbers (num_hidden_layers), found array of 2");
	refused(SHARED "\"activation_sparsity_pattern\": 0.95", ERR_FORMAT, "must be an array of 6 numbers (num_hidden_layers), found");
	refused(SHARED "\"activation_sparsity_pattern\": [0.95, 0.5, 1.0, 0, 0, 0]", ERR_INVALID, "\"activation_sparsity_pattern\"[2] must be a number from 0");
	refused(SHARED "\"activation_sparsity_pattern\": [-0.1, 0.5, 0, 0, 0, 0]", ERR_INVALID, "\"activation_sparsity_pattern\"[0] must be a number from 0");
	refused(SHARED "\"activation_sparsity_pattern\": [0, 0, 0, 0, 0, \"x\"]", ERR_INVALID, "\"activation_sparsity_pattern\"[5] must be a number from 0");
	refused(SHARED "\"activation_sparsity_pattern\": [0.99999999999, 0, 0, 0, 0, 0]", ERR_INVALID, "[0] must be a number from 0 to less than 1");
}

Test(config_altup, the_last_layers_read_keys_of_earlier_ones_of_their_kind)
{
	good("\"num_kv_shared_layers\": 3, \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\", "
	     "\"sliding_attention\", \"sliding_attention\"]");
	cr_assert(c.own_kv_layers == 3 && layers_with(LAYER_SHARED_KV) == 0x38 && layers_with(LAYER_WINDOW) == 0x35);
	cr_assert(model_kv_layer(&c, 3) == 1 && model_kv_layer(&c, 5) == 2 && model_head_dim(&c, 1) == 16);
	refused("\"num_kv_shared_layers\": 2", ERR_INVALID, "layer 4 attends to keys of an earlier layer of the same \"layer_types\"");
	refused(SHARED "\"sliding_window\": null", ERR_UNSUPPORTED, "\"sliding_window\" is null; of a Gemma3nForCausalLM it must be a number");
}

Test(config_altup, widths_may_be_said_by_layers_which_agree)
{
	said_good(&c, FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"layer_types\": [\"full_attention\", \"full_attention\"], \"intermediate_size\": [80, 80]");
	cr_assert_eq(c.intermediate, 80);
	said_refused(FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"intermediate_size\": [80, 96]", ERR_UNSUPPORTED,
		     "\"intermediate_size\"[1] is 96, and that of the first layer 80; only layers of one size are supported");
	said_refused(FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"intermediate_size\": [80]", ERR_FORMAT, "one for each of the 2 layers (num_hidden_layers), found an array of 1");
	said_refused(FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"intermediate_size\": []", ERR_FORMAT, "found an array of 0");
	said_refused(FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"intermediate_size\": [80, 0]", ERR_FORMAT, "\"intermediate_size\"[1] must be an integer from 1");
	said_refused(FAMILY, SIZES_BUT_WIDTH(2), SHARED "\"head_dim\": 16", ERR_FORMAT, "\"intermediate_size\" is missing");
}

Test(config_altup, what_is_not_computed_is_refused_by_name)
{
	refused(SHARED "\"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set, which is not supported for Gemma3nForCausalLM");
	refused(SHARED "\"attn_logit_softcapping\": 50", ERR_UNSUPPORTED, "\"attn_logit_softcapping\" is set");
	refused(SHARED "\"use_bidirectional_attention\": true", ERR_UNSUPPORTED, "\"use_bidirectional_attention\" is set");
	said_refused("Gemma3ForCausalLM", SIZES, "\"altup_num_inputs\": 4", ERR_UNSUPPORTED, "\"altup_num_inputs\" is set");
	said_refused("Gemma3ForCausalLM", SIZES, "\"laurel_rank\": 4", ERR_UNSUPPORTED, "\"laurel_rank\" is set");
	said_refused("Gemma3ForCausalLM", SIZES, "\"activation_sparsity_pattern\": [0.9]", ERR_UNSUPPORTED, "\"activation_sparsity_pattern\" is set");
}
