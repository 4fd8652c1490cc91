/* Llama 4's config.json: chunks, layers that do not rotate, where experts are, and what is refused in it. */
#include <criterion/criterion.h>
#include <math.h>

#include "proc_worker/model/rope.h"
#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                                                  \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 24, \"intermediate_size_mlp\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"num_local_experts\": 8, "           \
	"\"num_experts_per_tok\": 1"
#define LLAMA4 "Llama4ForCausalLM"
#define ROPE(low, high) \
	"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 16, \"low_freq_factor\": " low ", \"high_freq_factor\": " high ", \"original_max_position_embeddings\": 32}"

static struct model_config c;

#define good(more)		   said_good(&c, LLAMA4, SIZES, more)
#define refused(more, error, text) said_refused(LLAMA4, SIZES, more, error, text)

static bool rotates(u32 layer)
{
	return !(c.layer_flags[layer] & LAYER_NO_ROPE);
}

static bool is_chunked(u32 layer)
{
	return c.layer_flags[layer] & LAYER_WINDOW;
}

static bool has_experts(u32 layer)
{
	return c.layer_flags[layer] & LAYER_EXPERTS;
}

Test(config_llama4, what_the_file_leaves_out_is_the_familys)
{
	good("");
	cr_assert(c.head_dim == 128 && c.rope.theta == 500000 && c.window == 8192 && c.interleaved && c.head_norms && c.arch->norm_behind);
	cr_assert(c.intermediate == 80 && c.expert_intermediate == 24 && c.shared_intermediate == 24);
	cr_assert(c.router.sigmoid && !c.normalize_experts && has_experts(0) && has_experts(3));
	cr_assert(rotates(2) && is_chunked(2) && !rotates(3) && !is_chunked(3));
	cr_assert(c.rope.query_floor == 8192 && c.rope.query_ahead == 1 && c.rope.query_unrotated);
	cr_assert_float_eq(c.rope.query_beta, 0.1, 1e-9);
}

Test(config_llama4, layers_that_rotate_see_chunks_unless_the_file_lists_others)
{
	good("\"no_rope_layers\": [0, 1, 1, 0], \"attention_chunk_size\": 16");
	cr_assert(c.window == 16 && !is_chunked(0) && is_chunked(1) && is_chunked(2) && !is_chunked(3) && !rotates(0));
	good("\"no_rope_layers\": [], \"no_rope_layer_interval\": 2");
	cr_assert(rotates(0) && !rotates(1) && rotates(2) && !rotates(3));
	good("\"attention_chunk_size\": null");
	cr_assert(c.window == 0 && !is_chunked(0));
	good("\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", \"chunked_attention\"]");
	cr_assert(!is_chunked(0) && rotates(0) && is_chunked(3) && !rotates(3));
	refused("\"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]", ERR_UNSUPPORTED,
		"\"layer_types\"[0] is 'sliding_attention'; supported: full_attention, chunked_attention");
	refused("\"attention_chunk_size\": null, \"layer_types\": [\"chunked_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]",
		ERR_INVALID, "but no \"attention_chunk_size\" is in force");
	refused("\"attention_chunk_size\": 0", ERR_INVALID, "\"attention_chunk_size\" is 0");
	refused("\"sliding_window\": 16", ERR_UNSUPPORTED, "\"sliding_window\" is set, which is not supported for " LLAMA4);
	refused("\"no_rope_layers\": [1, 1]", ERR_FORMAT, "\"no_rope_layers\" must be an array of 4 numbers");
}

Test(config_llama4, queries_of_layers_that_do_not_rotate_count_by_their_positions)
{
	struct rope_tables t;
	struct err_msg em;

	good("\"attn_scale\": 0.5, \"floor_scale\": 8");
	cr_assert_eq(rope_tables_init(&t, &c.rope, NULL, 100, 8, &em), ERR_OK);
	cr_assert_eq(t.q_scales[6], 1);
	cr_assert_float_eq(t.q_scales[7], 1 + 0.5 * log(2), 1e-6);
	cr_assert_float_eq(t.q_scales[99], 1 + 0.5 * log(13), 1e-6);
	rope_tables_fini(&t);
	good("\"attn_temperature_tuning\": false");
	cr_assert_eq(c.rope.query_beta, 0);
	good("\"attn_temperature_tuning\": 4"); /* as older files say it */
	cr_assert(c.rope.query_beta > 0);
	refused("\"attn_temperature_tuning\": \"yes\"", ERR_FORMAT, "\"attn_temperature_tuning\" must be true or false");
	refused("\"attn_scale\": -1", ERR_FORMAT, "\"attn_scale\" must be a number above 0");
	refused("\"attn_scale\": 1e30", ERR_INVALID, "\"attn_scale\" is 1e+30; it must be at most 65536");
	refused("\"floor_scale\": 0", ERR_INVALID, "\"floor_scale\" is 0");
}

Test(config_llama4, experts_are_in_every_so_many_layers_or_in_those_listed)
{
	good("\"interleave_moe_layer_step\": 2");
	cr_assert(!has_experts(0) && has_experts(1) && !has_experts(2) && has_experts(3));
	good("\"interleave_moe_layer_step\": 2, \"moe_layers\": [0]");
	cr_assert(has_experts(0) && !has_experts(1) && !has_experts(3));
	refused("\"moe_layers\": [4]", ERR_FORMAT, "\"moe_layers\" must hold numbers of layers, below 4");
	refused("\"moe_layers\": 3", ERR_FORMAT, "\"moe_layers\" must be an array");
	refused("\"n_shared_experts\": 2", ERR_UNSUPPORTED, "\"n_shared_experts\" is set, which is not supported for " LLAMA4);
}

Test(config_llama4, frequencies_may_have_no_ramp)
{
	good(ROPE("1", "1"));
	cr_assert_float_eq(rope_frequency(&c.rope, 0, 1), 1, 1e-9); /* 32 positions are five turns */
	cr_assert_float_eq(rope_frequency(&c.rope, 63, 1) * 16, pow(500000, -126.0 / 128), 1e-9);
	refused(ROPE("4", "1"), ERR_INVALID, "\"high_freq_factor\" 1 must not be below \"low_freq_factor\" 4");
}

Test(config_llama4, other_families_have_none_of_its_fields)
{
	static const char sizes[] = "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 24, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
				    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5";

	said_refused("LlamaForCausalLM", sizes, "\"attention_chunk_size\": 16", ERR_UNSUPPORTED, "\"attention_chunk_size\" is set");
	said_refused("LlamaForCausalLM", sizes, "\"attn_temperature_tuning\": true", ERR_UNSUPPORTED, "\"attn_temperature_tuning\" is set");
	said_refused("LlamaForCausalLM", sizes, "\"intermediate_size_mlp\": 16", ERR_UNSUPPORTED, "\"intermediate_size_mlp\" is set");
}
