/* The reference ops on cases small enough to do by hand: checkkern compares variants with formulas, this file
 * pins what the formulas are. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static struct kern_ops ref_ops(void)
{
	struct kern_ops ops;
	kern_ops_init(&ops, 0);
	return ops;
}

static void near_to(float got, double want)
{
	cr_assert(fabs(got - want) <= 1e-6 * (1 + fabs(want)), "%.9g is not %.9g", (double)got, want);
}

Test(reference, rmsnorm_adds_first_and_may_only_add)
{
	struct kern_ops ops = ref_ops();
	float x[2] = {1, 5}, add[2] = {2, -1}, weight[2] = {1, 10}, out[2];
	struct kern_rmsnorm_args a = {
		.out = out, .x = x, .add = add, .weight = weight, .tokens = 1, .hidden = 2};
	ops.rmsnorm(NULL, &a);
	near_to(out[0], 3 / sqrt(12.5));
	near_to(out[1], 10 * 4 / sqrt(12.5));
	a.out = NULL;
	ops.rmsnorm(NULL, &a);
	near_to(x[0], 5);
	near_to(x[1], 3);
}

Test(reference, an_adapter_adds_what_its_two_matrices_make_of_a_token)
{
	struct kern_ops ops = ref_ops();
	float a[2 * 2] = {1, 2, /* second row */ -1, 3}, b1[1] = {10}, b2[2] = {100, 1000};
	float pa[16], pb1[64], pb2[64], x[3 * 2] = {9, 9, 1, 1, 2, 0}, out[3 * 4] = {0};
	struct kern_lora l = {.dtype = KERN_F32, .k = 2, .rank = 2, .part_count = 2, .a = pa};
	u32 tokens[1] = {6};
	struct kern_lora_group group = {&l, tokens, 1};
	struct kern_lora_args args = {.out = out, .x = x, .groups = &group, .group_count = 1, .first = 5, .x_stride = 2, .out_stride = 4};
	double scratch[2];
	struct kern_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
	kern_lora_set_a(pa, KERN_F32, 0, 2, 2, a, KERN_F32, 2);
	kern_lora_set_b(pb1, KERN_F32, 1, 1, b1, KERN_F32, 1);
	kern_lora_set_b(pb2, KERN_F32, 2, 1, b2, KERN_F32, 1);
	l.parts[0] = (struct kern_lora_part){.b = pb1, .scale = 0.5f, .first = 0, .n = 1, .rank_first = 0, .rank = 1};
	l.parts[1] = (struct kern_lora_part){.b = pb2, .scale = 2, .first = 2, .n = 2, .rank_first = 1, .rank = 1};
	cr_assert_eq(ops.lora(&ctx, &args), ERR_OK);
	const double want[12] = {0, 0, 0, 0, 15, 0, 400, 4000, 0, 0, 0, 0}; /* of x = {1, 1}: A x = {3, 2} */
	for (u32 i = 0; i < 12; i++)
		near_to(out[i], want[i]);
}

Test(reference, activations_are_those_that_their_names_say)
{
	struct kern_ops ops = ref_ops();
	float gate_up[4] = {1, -2, /* up */ 1, 10}, out[2];
	struct kern_act_mul_args a = {.out = out, .gate_up = gate_up, .tokens = 1, .size = 2};
	a.act = KERN_SILU;
	ops.act_mul(NULL, &a);
	near_to(out[0], 0.7310585786);
	near_to(out[1], -20 * 0.1192029220);
	a.act = KERN_GELU; /* the normal distribution: 0.8413 up to 1, 0.02275 up to -2 */
	ops.act_mul(NULL, &a);
	near_to(out[0], 0.8413447461);
	near_to(out[1], -20 * 0.0227501319);
	a.act = KERN_GELU_TANH;
	ops.act_mul(NULL, &a);
	near_to(out[0], 0.8411919906);
	near_to(out[1], -20 * 0.0227011517);
	a.act = KERN_RELU;
	ops.act_mul(NULL, &a);
	near_to(out[0], 1);
	near_to(out[1], 0);
	const float numbers[KERN_XIELU_COUNT] = {3, 2, 0.5f, -1};
	a.ungated = true;
	a.xielu = numbers;
	ops.act_mul(NULL, &a);
	near_to(out[0], 3 + 0.5); /* 3 x^2 + x / 2 */
	near_to(out[1], 2 * (0.1353352832 - 1 + 2) - 1);
	gate_up[0] = -0.25f; /* between eps and 0 */
	ops.act_mul(NULL, &a);
	near_to(out[0], 2 * (0.3678794412 - 1 + 0.25) - 0.125);
}

Test(reference, rope_turns_halves_against_each_other)
{
	struct kern_ops ops = ref_ops();
	float qkv[12] = {1, 2, 3, 4, /* k */ 1, 0, 0, 1, /* v */ 9, 8, 7, 6}, q[4], k[8] = {0}, v[8] = {0};
	float cosine[4] = {1, 1, 0, 0.6f}, sine[4] = {0, 0, 1, 0.8f};
	u32 position = 1;
	i64 slot = 1;
	struct kern_rope_kv_args a = {.q = q,
				      .qkv = qkv,
				      .cos = cosine,
				      .sin = sine,
				      .positions = &position,
				      .slots = &slot,
				      .kv = {k, v, KERN_F32, 2, 1, 4},
				      .tokens = 1,
				      .heads = 1,
				      .rope_dim = 4};
	ops.rope_kv(NULL, &a);
	near_to(q[0], -3); /* 1 cos - 3 sin with a quarter turn */
	near_to(q[2], 1);
	near_to(q[1], 2 * 0.6 - 4 * 0.8);
	near_to(q[3], 4 * 0.6 + 2 * 0.8);
	/* slot 1: offset 1 of block 0; K lies dimension by dimension, V key by key */
	near_to(k[0 * 2 + 1], 0);
	near_to(k[2 * 2 + 1], 1);
	near_to(k[1 * 2 + 1], -0.8);
	near_to(k[3 * 2 + 1], 0.6);
	cr_assert_eq(memcmp(v + 4, qkv + 8, 16), 0);
	for (u32 d = 0; d < 4; d++)
		cr_assert(k[d * 2] == 0 && v[d] == 0, "slot 0 was written");
}

/* Two queries over three keys of one dimension pair: scores are q0 * k0, values tell which keys were seen. */
static void attend(u32 window, float *out)
{
	struct kern_ops ops = ref_ops();
	struct kern_ctx ctx = {0};
	float k[8] = {0, (float)log(2), (float)log(4), 0}, v[8] = {1, 0, 10, 0, 100, 0}, q[4] = {1, 0, 1, 0};
	u32 start[2] = {0, 2}, context = 3, table = 0;
	struct kern_attention_args a = {.out = out,
					.q = q,
					.kv = {k, v, KERN_F32, 4, 1, 2},
					.query_start = start,
					.context = &context,
					.block_tables = &table,
					.block_stride = 1,
					.rows = 1,
					.tokens = 2,
					.heads = 1,
					.scale = 1,
					.window = window};
	ops.attention(&ctx, &a);
}

Test(reference, a_query_sees_itself_and_what_came_before)
{
	float out[4];
	attend(0, out);
	near_to(out[0], (1 * 1 + 2 * 10) / 3.0);
	near_to(out[2], (1 * 1 + 2 * 10 + 4 * 100) / 7.0);
}

Test(reference, a_window_counts_the_query_itself)
{
	float out[4];
	attend(1, out);
	near_to(out[0], 10);
	near_to(out[2], 100);
	attend(2, out);
	near_to(out[2], (2 * 10 + 4 * 100) / 6.0);
}

Test(reference, penalties_follow_bias_and_precede_masks)
{
	struct kern_ops ops = ref_ops();
	float logits[4] = {1, -1, 4, 0};
	u32 seen[3] = {0, 1, 2}, outputs[3] = {2, 0, 1}, biased = 0, masked = 2;
	float bias = 3;
	struct kern_logits_row row = {.logits = logits,
				      .repetition_penalty = 2,
				      .presence_penalty = 0.5f,
				      .frequency_penalty = 0.25f,
				      .seen_ids = seen,
				      .seen_outputs = outputs,
				      .seen_count = 3,
				      .bias_ids = &biased,
				      .bias_values = &bias,
				      .bias_count = 1,
				      .masked_ids = &masked,
				      .masked_count = 1};
	struct kern_logits_args a = {&row, 1, 4};
	ops.logits(NULL, &a);
	near_to(logits[0], (1 + 3) / 2.0 - 2 * 0.25 - 0.5);
	near_to(logits[1], -2); /* only in the prompt: repetition, no frequency */
	cr_assert(isinf(logits[2]) && logits[2] < 0);
	near_to(logits[3], 0);
}

Test(reference, logprobs_rank_ties_by_id)
{
	struct kern_ops ops = ref_ops();
	struct kern_ctx ctx = {0};
	const float logits[4] = {0, 1, 0, 1};
	u32 ids[4], rank;
	float values[4];
	struct kern_logprobs_row row = {logits, 2, 3, ids, values, &rank};
	struct kern_logprobs_args a = {&row, 1, 4};
	ops.logprobs(&ctx, &a);
	cr_assert_eq(rank, 4);
	cr_assert(ids[0] == 2 && ids[1] == 1 && ids[2] == 3 && ids[3] == 0);
	near_to(values[0], -log(2 + 2 * exp(1)));
	near_to(values[1], 1 - log(2 + 2 * exp(1)));
}

Test(reference, embedding_of_a_slice_is_zero_outside_of_it)
{
	struct kern_ops ops = ref_ops();
	const float table[4] = {1, 2, 3, 4};
	const u32 ids[3] = {9, 11, 12};
	float out[6];
	struct kern_embedding_args a = {
		.out = out, .ids = ids, .table = table, .tokens = 3, .hidden = 2, .first = 10, .rows = 2};
	ops.embedding(NULL, &a);
	const float want[6] = {0, 0, 3, 4, 0, 0};
	cr_assert_eq(memcmp(out, want, sizeof(out)), 0);
}

Test(reference, embeddings_may_be_scaled)
{
	struct kern_ops ops = ref_ops();
	const float table[4] = {1, 2, 3, 4};
	const u32 ids[2] = {0, 1};
	float out[4];
	struct kern_embedding_args a = {
		.out = out, .ids = ids, .table = table, .tokens = 2, .hidden = 2, .rows = 2, .scale = 2.5f};
	ops.embedding(NULL, &a);
	const float want[4] = {2.5f, 5, 7.5f, 10};
	cr_assert_eq(memcmp(out, want, sizeof(out)), 0);
}

Test(reference, soft_cap_keeps_what_is_small_and_bounds_what_is_large)
{
	struct kern_ops ops = ref_ops();
	float x[3] = {0.001f, -1e9f, 30};
	struct kern_soft_cap_args a = {.x = x, .cap = 30, .rows = 1, .width = 3};
	ops.soft_cap(NULL, &a);
	near_to(x[0], 0.001);
	near_to(x[1], -30);
	near_to(x[2], 30 * tanh(1));
}

/* Two tokens, three experts, two of them each. */
Test(reference, assignments_are_numbered_by_expert_and_then_by_token)
{
	struct kern_ops ops = ref_ops();
	struct kern_ctx ctx = {0};
	const float logits[6] = {0, 2, 1, /* second token */ 5, 3, 3};
	float weights[4];
	u32 assignments[4], tokens_of[4], start[4];
	struct kern_moe_route_args a = {.logits = logits,
					.weights = weights,
					.assignments = assignments,
					.tokens_of = tokens_of,
					.expert_start = start,
					.tokens = 2,
					.experts = 3,
					.top = 2};
	const u32 starts[4] = {0, 1, 3, 4}, numbers[4] = {1, 3, 0, 2}, tokens[4] = {1, 0, 1, 0};
	ops.moe_route(&ctx, &a);
	cr_assert_arr_eq(start, starts, sizeof(start));
	cr_assert_arr_eq(assignments, numbers, sizeof(numbers));
	cr_assert_arr_eq(tokens_of, tokens, sizeof(tokens));
	near_to(weights[0], exp(2) / (1 + exp(2) + exp(1)));
	near_to(weights[3], exp(3) / (exp(5) + 2 * exp(3)));
	a.normalize = true;
	ops.moe_route(&ctx, &a);
	near_to(weights[0], exp(2) / (exp(2) + exp(1)));
	near_to(weights[0] + weights[1], 1);
}

/* A bias that makes up for the difference of the scores, but not for that of the logits. */
Test(reference, experts_may_be_chosen_by_logits_and_weighed_by_scores)
{
	struct kern_ops ops = ref_ops();
	struct kern_ctx ctx = {0};
	const float logits[2] = {3, 2}, bias[2] = {0, 0.5f};
	float weight;
	u32 assignment, token_of, start[3];
	struct kern_moe_route_args a = {.logits = logits,
					.bias = bias,
					.weights = &weight,
					.assignments = &assignment,
					.tokens_of = &token_of,
					.expert_start = start,
					.tokens = 1,
					.experts = 2,
					.top = 1,
					.sigmoid = true};
	ops.moe_route(&ctx, &a);
	cr_assert(start[1] == 0 && start[2] == 1);
	near_to(weight, 1 / (1 + exp(-2)));
	a.by_logits = true;
	ops.moe_route(&ctx, &a);
	cr_assert(start[1] == 1 && start[2] == 1);
	near_to(weight, 1 / (1 + exp(-3)));
}

Test(reference, what_experts_say_is_weighted_and_so_is_the_one_of_all_tokens)
{
	struct kern_ops ops = ref_ops();
	float x[4] = {1, 2, 10, 20}, weights[2] = {0.5f, 0.25f}, shared[2] = {100, 200}, gate = 0, out[2];
	u32 assignments[2] = {1, 0};
	struct kern_moe_combine_args a = {
		.out = out, .x = x, .weights = weights, .assignments = assignments, .tokens = 1, .top = 2, .hidden = 2};
	ops.moe_combine(NULL, &a);
	near_to(out[0], 0.5 * 10 + 0.25 * 1);
	near_to(out[1], 0.5 * 20 + 0.25 * 2);
	a.shared = shared;
	a.shared_gate = &gate;
	ops.moe_combine(NULL, &a);
	near_to(out[0], 5.25 + 50); /* sigmoid(0) is a half */
	near_to(out[1], 10.5 + 100);
	gate = -2;
	ops.moe_combine(NULL, &a);
	near_to(out[1], 10.5 + 200 * 0.1192029220);
}

Test(reference, grouped_products_take_each_assignments_own_expert)
{
	struct kern_ops ops = ref_ops();
	_Alignas(64) char scratch[4096];
	struct kern_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
	const float w0[2] = {1, 10}, w1[2] = {2, 20}, x[4] = {3, 4, /* second token */ 5, 6};
	const struct kern_weight w[2] = {{.n = 1, .k = 2, .data = w0}, {.n = 1, .k = 2, .data = w1}};
	const u32 source[3] = {1, 0, 1}, start[3] = {0, 1, 3}, assignments[2] = {2, 1};
	const float weights[2] = {0.5f, 2};
	float out[3], sum;
	struct kern_moe_matmul_args a = {.out = out,
					 .x = x,
					 .source = source,
					 .w = w,
					 .expert_start = start,
					 .experts = 2,
					 .assignments = 3,
					 .tokens = 2,
					 .ops = &ops};
	cr_assert_eq(ops.moe_matmul(&ctx, &a), ERR_OK);
	near_to(out[0], 65);
	near_to(out[1], 86);
	near_to(out[2], 130);
	struct kern_moe_combine_args c = {.out = &sum,
					  .x = out,
					  .weights = weights,
					  .assignments = assignments,
					  .tokens = 1,
					  .top = 2,
					  .hidden = 1};
	ops.moe_combine(&ctx, &c);
	near_to(sum, 0.5 * 130 + 2 * 86);
}

Test(reference, products_of_heads_take_each_heads_own_matrix)
{
	struct kern_ops ops = ref_ops();
	struct kern_ctx ctx = {0};
	const float w0[2] = {1, 10}, w1[2] = {2, 20};
	const float x[12] = {3, 4, 7, /* second head */ 5, 6, 8, /* second token */ 1, 2, 9, 3, 1, 10};
	const struct kern_weight w[2] = {{.n = 1, .k = 2, .data = w0}, {.n = 1, .k = 2, .data = w1}};
	float out[8];
	struct kern_head_matmul_args a = {.out = out,
					  .x = x,
					  .w = w,
					  .tokens = 2,
					  .heads = 2,
					  .beside = 1,
					  .x_stride = 6,
					  .x_apart = 3,
					  .out_stride = 4,
					  .out_apart = 2,
					  .ops = &ops};
	const float want[8] = {7, 43, 8, 130, 9, 21, 10, 26};

	cr_assert_eq(ops.head_matmul(&ctx, &a), ERR_OK);
	for (u32 i = 0; i < 8; i++)
		near_to(out[i], want[i]);
}

Test(reference, a_latent_becomes_key_and_value_behind_what_rotates)
{
	struct kern_ops ops = ref_ops();
	const float latents[8] = {1, 2, 3, /* rotates */ 4, /* another's */ 9, 5, 6, 7};
	float qkv[20];
	struct kern_latent_kv_args a = {.qkv = qkv, .latents = latents, .tokens = 1, .heads = 2, .rank = 3, .rope = 1, .latent_stride = 5, .qkv_stride = 18};
	const float want[8] = {4, 1, 2, 3, 0, 1, 2, 3};

	for (u32 i = 0; i < 20; i++)
		qkv[i] = -1;
	cr_assert_eq(ops.latent_kv(NULL, &a), ERR_OK);
	for (u32 i = 0; i < 20; i++)
		cr_assert_eq(qkv[i], i >= 8 && i < 16 ? want[i - 8] : -1);
}

Test(reference, convolutions_begin_with_what_the_last_call_left_or_with_zeros)
{
	struct kern_ops ops = ref_ops();
	const u32 query_start[3] = {0, 2, 3}, context[2] = {7, 1}, slots[2] = {1, 0};
	float states[2] = {NAN, 3}, out[3];
	const float x[3] = {1, 2, 5}, before[3] = {1, 2, 3}, behind[3] = {1, 10, 1}, weight[2] = {100, 1}, bias[1] = {0.5f};
	struct kern_conv_args a = {.out = out, .x = x, .before = before, .behind = behind, .weight = weight, .bias = bias, .channels = 1, .stride = 1, .taps = 2};
	a.state = (struct kern_state){.data = states, .stride = 1, .query_start = query_start, .context = context, .slots = slots, .rows = 2};
	cr_assert_eq(ops.conv(NULL, &a), ERR_OK);
	const float want[3] = {301.5f, 1045, 15.5f};
	for (u32 i = 0; i < 3; i++)
		near_to(out[i], want[i]);
	near_to(states[1], 4);
	near_to(states[0], 15);
	a.silu = true;
	a.before = a.behind = NULL;
	a.state.rows = 1;
	cr_assert_eq(ops.conv(NULL, &a), ERR_OK);
	near_to(out[0], 401.5); /* far from 0 SiLU is what it is given */
}

/* Steps of log 2, so that a state of one value is halved. */
Test(reference, the_delta_rule_adds_a_part_of_what_a_key_does_not_find)
{
	struct kern_ops ops = ref_ops();
	const u32 query_start[2] = {0, 2}, context[1] = {9}, slots[1] = {0};
	const float q[2] = {1000, -7000}, k[2] = {1000, -2000}, v[2] = {3, 1}, zeros[2] = {0, 0};
	float state[1] = {4}, out[2];
	struct kern_recurrent_args a = {.out = out, .q = q, .k = k, .v = v, .decay = zeros, .beta = zeros, .decay_bias = zeros, .rate_log = zeros,
					.kind = KERN_DELTA, .heads = 1, .key_heads = 1, .key_dim = 1, .value_dim = 1, .stride = 1};
	a.state = (struct kern_state){.data = state, .stride = 1, .query_start = query_start, .context = context, .slots = slots, .rows = 1};
	cr_assert_eq(ops.recurrent(NULL, &a), ERR_OK);
	near_to(out[0], 2 + 0.5 * (3 - 2));
	near_to(out[1], -(1.25 - 0.5 * (1 + 1.25))); /* key and query of the other sign */
	near_to(state[0], 1.25 - 0.5 * (1 + 1.25));
}

/* Of a key of two values one is halved, and one is divided by four. */
Test(reference, kimis_delta_attention_lets_every_value_of_a_key_fade_by_itself)
{
	struct kern_ops ops = ref_ops();
	const u32 query_start[2] = {0, 1}, context[1] = {9}, slots[1] = {0};
	const float q[2] = {1000, 0}, k[2] = {3000, 4000}, v[1] = {4.8f}, decay[2] = {0, 1}, bias[2] = {0, logf(3) - 1}, zero[1] = {0};
	float state[2] = {4, 8}, out[1];
	struct kern_recurrent_args a = {.out = out, .q = q, .k = k, .v = v, .decay = decay, .beta = zero, .decay_bias = bias, .rate_log = zero,
					.kind = KERN_KDA, .heads = 1, .key_heads = 1, .key_dim = 2, .value_dim = 1, .stride = 2};
	a.state = (struct kern_state){.data = state, .stride = 2, .query_start = query_start, .context = context, .slots = slots, .rows = 1};
	cr_assert_eq(ops.recurrent(NULL, &a), ERR_OK);
	near_to(state[0], 2 + 0.5 * (4.8 - 2.8) * 0.6);
	near_to(state[1], 2 + 0.5 * (4.8 - 2.8) * 0.8);
	near_to(out[0], 2.6 / sqrt(2));
}

Test(reference, a_scan_keeps_its_steps_within_limits)
{
	struct kern_ops ops = ref_ops();
	const u32 query_start[2] = {0, 1}, context[1] = {2}, slots[1] = {0};
	const float q[2] = {1, 10}, k[2] = {1, -1}, v[1] = {10}, decay[1] = {-1}, bias[1] = {1}, rate[1] = {0}, skip[1] = {3};
	float state[2] = {1, 2}, out[1];
	struct kern_recurrent_args a = {.out = out, .q = q, .k = k, .v = v, .decay = decay, .decay_bias = bias, .rate_log = rate, .skip = skip,
					.kind = KERN_SCAN, .heads = 1, .key_heads = 1, .key_dim = 2, .value_dim = 1, .stride = 2};
	a.state = (struct kern_state){.data = state, .stride = 2, .query_start = query_start, .context = context, .slots = slots, .rows = 1};
	cr_assert_eq(ops.recurrent(NULL, &a), ERR_OK);
	near_to(state[0], 0.5 + 10 * log(2));
	near_to(state[1], 1 - 10 * log(2));
	near_to(out[0], 10.5 - 90 * log(2) + 30);
	a.step_min = 2;
	a.step_max = 5;
	state[0] = 1;
	cr_assert_eq(ops.recurrent(NULL, &a), ERR_OK);
	near_to(state[0], exp(-2) + 2 * 10);
}

Test(reference, a_gate_stands_behind_a_norm_or_in_front_of_it)
{
	struct kern_ops ops = ref_ops();
	const float gate[3] = {0, 0, 50}, weight[2] = {1, 10};
	float x[3] = {3, 4, 7};
	struct kern_gate_args a = {.x = x, .gate = gate, .weight = weight, .tokens = 1, .groups = 1, .width = 2, .stride = 3, .sigmoid = true};
	cr_assert_eq(ops.gate(NULL, &a), ERR_OK);
	near_to(x[0], 0.5 * 3 / sqrt(12.5));
	near_to(x[1], 0.5 * 10 * 4 / sqrt(12.5));
	near_to(x[2], 7);
	x[0] = 3;
	x[1] = 4;
	a.gate_first = true;
	cr_assert_eq(ops.gate(NULL, &a), ERR_OK);
	near_to(x[0], 3 / sqrt(12.5));
	a.weight = NULL;
	a.sigmoid = false;
	a.groups = 3;
	a.width = 1;
	cr_assert_eq(ops.gate(NULL, &a), ERR_OK);
	near_to(x[1], 0);
	near_to(x[2], 350);
}
