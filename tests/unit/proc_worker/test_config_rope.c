/* What config.json says of rotary positions, in every type of scaling, and the tables that this becomes. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/rope.h"
#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6"

#define good(c, family, more)		   said_good(c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

#define SCALING(text) "\"rope_scaling\": {" text "}"

Test(config_rope, rope_scaling_of_every_type_is_read)
{
	struct model_config c;
	double factor = 0.1 * log(4) + 1;

	good(&c, "LlamaForCausalLM", SCALING("\"type\": \"dynamic\", \"factor\": 2.0"));
	cr_assert(c.rope.kind == ROPE_DYNAMIC && c.context_max == 256 && c.rope.original_context == 128);
	good(&c, "Qwen2ForCausalLM",
	     SCALING("\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64"));
	cr_assert(c.rope.kind == ROPE_YARN && c.context_max == 256 && c.rope.original_context == 64);
	cr_assert_float_eq(c.rope.attention_factor, factor, 1e-12);
	cr_assert(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate);
	good(&c, "Qwen2ForCausalLM",
	     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 5000.0, \"factor\": 4.0, "
	     "\"original_max_position_embeddings\": 32, \"attention_factor\": 1.5, \"beta_fast\": 16, "
	     "\"truncate\": false}");
	cr_assert(c.rope.theta == 5000 && c.rope.attention_factor == 1.5 && !c.rope.truncate &&
		  c.rope.beta_fast == 16 && c.context_max == 128);
	good(&c, "Qwen2ForCausalLM",
	     SCALING("\"type\": \"yarn\", \"factor\": 4.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0"));
	cr_assert_float_eq(c.rope.attention_factor, 1, 1e-12);
	for (u32 i = 0; i < 2; i++) {
		good(&c, "Phi3ForCausalLM",
		     i ? "\"original_max_position_embeddings\": 32, " SCALING(
				 "\"type\": \"su\", \"short_factor\": [1, 1, 1, 1, 1.5, 2], \"long_factor\": "
				 "[2, 3, 4, "
				 "5, 6, 7]")
		       : "\"original_max_position_embeddings\": 32, " SCALING(
				 "\"rope_type\": \"yarn\", \"short_factor\": [1, 1, 1, 1, 1.5, 2], "
				 "\"long_factor\": "
				 "[2, 3, 4, 5, 6, 7]"));
		cr_assert(c.rope.kind == ROPE_LONGROPE && c.rope.factor == 4 && c.context_max == 128);
		cr_assert_float_eq(c.rope.attention_factor, sqrt(1 + log(4) / log(32)), 1e-12);
		cr_assert_float_eq(rope_frequency(&c.rope, 0, 32), 1, 1e-12);
		cr_assert_float_eq(rope_frequency(&c.rope, 0, 33), 0.5, 1e-12);
	}
	good(&c, "Phi3ForCausalLM", "\"partial_rotary_factor\": 0.5");
	cr_assert_eq(c.rope.dim, 6);
}

Test(config_rope, yarn_may_have_a_factor_on_its_scores)
{
	struct model_config c;

	good(&c, "Qwen3ForCausalLM",
	     "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attn_factor\": 0.8782488562869419, "
	     "\"original_max_position_embeddings\": 32}");
	cr_assert_float_eq(c.rope.attention_factor, 1, 1e-6); /* 1 + 0.1 log 4 is its inverse */
	good(&c, "Qwen3ForCausalLM",
	     "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attn_factor\": 0.5, \"attention_factor\": 1.5}");
	cr_assert_float_eq(c.rope.attention_factor, 1.5, 1e-9);
	refused("LlamaForCausalLM", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4, \"attn_factor\": 0.5}",
		ERR_UNSUPPORTED, "\"attn_factor\" in rope_scaling of type 'linear'");
}

Test(config_rope, rope_scaling_that_is_wrong_is_named)
{
	refused("LlamaForCausalLM", SCALING("\"type\": \"linear\", \"factor\": 2, \"alpha\": 3"),
		ERR_UNSUPPORTED, "\"alpha\" in rope_scaling of type 'linear' is not supported");
	refused("LlamaForCausalLM", SCALING("\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 3"),
		ERR_UNSUPPORTED, "\"beta_fast\" in rope_scaling of type 'linear'");
	refused("LlamaForCausalLM", SCALING("\"type\": \"dynamic\""), ERR_FORMAT, "\"factor\" is missing");
	refused("LlamaForCausalLM", SCALING("\"type\": \"yarn\", \"factor\": 0.5"), ERR_INVALID,
		"it must be at least 1");
	refused("Phi3ForCausalLM",
		"\"original_max_position_embeddings\": 32, " SCALING(
			"\"type\": \"longrope\", \"short_factor\": [1, 1], \"long_factor\": [1]"),
		ERR_FORMAT, "\"short_factor\" of rope_scaling must be an array of 6 numbers");
	refused("Phi3ForCausalLM",
		"\"original_max_position_embeddings\": 32, " SCALING(
			"\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 0, 1, 1], \"long_factor\": []"),
		ERR_FORMAT, "\"short_factor\"[3] of rope_scaling must be a number above 0");
	refused("Phi3ForCausalLM", "\"partial_rotary_factor\": 0.25", ERR_INVALID,
		"rotates 3 of a head's 12 dimensions");
	refused("Phi3ForCausalLM", "\"partial_rotary_factor\": 1.5", ERR_INVALID,
		"\"partial_rotary_factor\" 1.5");
}

/* The frequencies of 16 dimensions as in the formula of Peng et al. 2023, computed by hand for the ends. */
Test(config_rope, yarn_keeps_fast_waves_and_divides_slow_ones)
{
	struct rope_config r = {.kind = ROPE_YARN,
				.dim = 16,
				.theta = 10000,
				.factor = 4,
				.beta_fast = 32,
				.beta_slow = 1,
				.truncate = true,
				.original_context = 4096};

	cr_assert_float_eq(rope_frequency(&r, 0, 1), 1, 1e-12);
	cr_assert_float_eq(rope_frequency(&r, 7, 1), pow(10000, -14.0 / 16) / 4, 1e-12);
	/* 32 turns: dimension 2.62, 1 turn: 5.63; the ramp is from 2 to 6 */
	cr_assert_float_eq(rope_frequency(&r, 4, 1), 0.01 / 4 * 0.5 + 0.01 * 0.5, 1e-12);
}

Test(config_rope, dynamic_scaling_begins_behind_the_original_context)
{
	struct rope_config r = {
		.kind = ROPE_DYNAMIC, .dim = 16, .theta = 10000, .factor = 2, .original_context = 32};
	double theta = 10000 * pow(2.0 * 48 / 32 - 1, 16.0 / 14);

	cr_assert_float_eq(rope_frequency(&r, 3, 32), pow(10000, -6.0 / 16), 1e-12);
	cr_assert_float_eq(rope_frequency(&r, 3, 48), pow(theta, -6.0 / 16), 1e-12);
}

/* Two sequences of a step: one that fits the original context, one whose prompt does not. */
Test(config_rope, rotary_rows_follow_the_length_of_the_sequence)
{
	struct rope_config r = {.kind = ROPE_LONGROPE,
				.dim = 2,
				.theta = 10000,
				.original_context = 4,
				.attention_factor = 1,
				.far_factor = 1.5,
				.short_factor = {1},
				.long_factor = {2}};
	u32 positions[] = {0, 3, 0, 1, 6}, start[] = {0, 2, 5}, prompts[] = {2, 6}, added[] = {2, 6};
	struct inputs in = {.tokens = 5,
			    .rows = 2,
			    .positions = positions,
			    .query_start = start,
			    .prompt_count = prompts,
			    .added_count = added};
	struct rope_tables t;
	struct err_msg em;

	cr_assert_eq(rope_tables_init(&t, &r, NULL, 8, 5, &em), ERR_OK);
	const u32 *rows = rope_tables_rows(&t, &in);
	for (u32 i = 0; i < 5; i++)
		cr_assert_float_eq(t.cos[rows[i]], i < 2 ? cos(positions[i]) : 1.5 * cos(positions[i] / 2.0), 1e-6);
	rope_tables_fini(&t);
	r.kind = ROPE_DYNAMIC;
	r.dim = 4;
	r.factor = 2;
	cr_assert_eq(rope_tables_init(&t, &r, NULL, 8, 5, &em), ERR_OK);
	rows = rope_tables_rows(&t, &in);
	for (u32 i = 0; i < 5; i++) {
		u32 length = i < 2 ? 4 : i < 4 ? 6 : 7;
		cr_assert_float_eq(t.sin[rows[i] * 2 + 1], sin(positions[i] * rope_frequency(&r, 1, length)),
				   1e-6);
	}
	rope_tables_fini(&t);
}
