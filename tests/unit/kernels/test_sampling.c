#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/sampling_priv.h"

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
Test(sampling, philox_gives_the_published_numbers)
{
	static const struct {
		u32 counter[4];
		u64 key;
		u32 out[4];
	} known[] = {
		{{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{~0u, ~0u, ~0u, ~0u}, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
		 0x299f31d0a4093822u,
		 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};
	for (u32 i = 0; i < COUNT_OF(known); i++) {
		u32 out[4];
		philox(known[i].counter, known[i].key, out);
		cr_assert_eq(memcmp(out, known[i].out, sizeof(out)), 0, "vector %u", i);
	}
}

Test(sampling, exp_and_log_agree_with_libm)
{
	for (double x = 0; x > -745; x -= 0.0371) {
		double want = exp(x), got = sampling_exp(x);
		cr_assert(x < -700 ? got == 0 : fabs(got - want) <= 1e-12 * want, "e^%g is %.17g, not %.17g",
			  x, got, want);
	}
	cr_assert_eq(sampling_exp(0), 1);
	cr_assert_eq(sampling_exp(-INFINITY), 0);
	cr_assert_eq(sampling_exp(NAN), 0);
	for (double x = 1e-300; x < 1e300; x *= 1.0371)
		cr_assert(fabs(sampling_log(x) - log(x)) <= 1e-12 * (1 + fabs(log(x))), "ln %g is %.17g", x,
			  sampling_log(x));
}

Test(sampling, gumbel_noise_stays_below_its_bound)
{
	for (u32 ones = 0; ones <= 32; ones++) {
		u32 most = ones == 32 ? ~0u : ~(0x80000000u >> ones),
		    least = ones == 0 ? 0 : ~0u << (32 - ones);
		cr_assert_leq(sampling_gumbel(most), sampling_gumbel_bound(most), "%u leading ones", ones);
		cr_assert_leq(sampling_gumbel(least), sampling_gumbel_bound(least));
	}
	cr_assert(isfinite(sampling_gumbel(0)) && isfinite(sampling_gumbel(~0u)));
}

Test(sampling, keys_order_as_floats_do)
{
	const float rising[] = {-INFINITY, -3e38f, -1, -1e-40f, 0, 1e-40f, 1, 3e38f, INFINITY};
	for (u32 i = 1; i < COUNT_OF(rising); i++)
		cr_assert_lt(sampling_key(rising[i - 1]), sampling_key(rising[i]), "%g and %g",
			     (double)rising[i - 1], (double)rising[i]);
	cr_assert_eq(sampling_key(-0.0f), sampling_key(0.0f));
	cr_assert_eq(sampling_key(NAN), sampling_key(-INFINITY));
}

static u32 draw(const struct kern_sample_row *like, u32 vocab, u64 seed, u32 position)
{
	static struct kern_ops ops;
	struct kern_ctx ctx = {0};
	struct kern_sample_row row = *like;
	u32 token = ~0u;
	struct kern_sample_args a = {&row, &token, 1, vocab};
	kern_ops_init(&ops, kern_caps_detect());
	row.seed = seed;
	row.position = position;
	cr_assert_eq(ops.sample(&ctx, &a), ERR_OK);
	return token;
}

/* Chi-square over 9 ids, 8 degrees of freedom: above 26.1 once in a thousand; the seeds are fixed. */
Test(sampling, tokens_come_as_often_as_their_probability_says)
{
	float logits[9] = {0, 1, 2, -1, 0.5f, 1.5f, -2, 0.1f, 3};
	struct kern_sample_row row = {.logits = logits, .temperature = 0.8f, .top_p = 1};
	u32 seen[9] = {0}, draws = 40000;
	double total = 0, chi = 0;
	for (u32 i = 0; i < 9; i++)
		total += exp(logits[i] / 0.8);
	for (u32 i = 0; i < draws; i++)
		seen[draw(&row, 9, i / 200, i % 200)]++;
	for (u32 i = 0; i < 9; i++) {
		double expected = draws * exp(logits[i] / 0.8) / total;
		chi += (seen[i] - expected) * (seen[i] - expected) / expected;
	}
	cr_assert_lt(chi, 26.1, "chi-square %g", chi);
}

Test(sampling, restrictions_keep_exactly_the_allowed_tokens)
{
	/* probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at ids 3, 1, 4, 0, 2 */
	const float logits[5] = {logf(0.0625f), logf(0.25f), logf(0.0625f), logf(0.5f), logf(0.125f)};
	const struct {
		struct kern_sample_row row;
		u32 allowed; /* bit per id */
	} cases[] = {
		{{.temperature = 1, .top_p = 1}, 0x1f},
		{{.temperature = 1, .top_p = 1, .top_k = 1}, 0x08},
		{{.temperature = 1, .top_p = 1, .top_k = 3}, 0x1a},
		{{.temperature = 1, .top_p = 1, .top_k = 4}, 0x1b}, /* of the equal ids 0 and 2 the lower */
		{{.temperature = 1, .top_p = 0.74f}, 0x0a},
		{{.temperature = 1, .top_p = 0.76f}, 0x1a},
		{{.temperature = 1, .top_p = 0.01f}, 0x08},
		{{.temperature = 1, .top_p = 0.6f, .top_k = 2}, 0x08}, /* 0.5 / 0.75 reaches 0.6 */
		{{.temperature = 1, .top_p = 1, .min_p = 0.2f}, 0x1a},
		{{.temperature = 1, .top_p = 1, .min_p = 1}, 0x08},
		{{.temperature = 0, .top_p = 1}, 0x08},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++) {
		struct kern_sample_row row = cases[i].row;
		u32 seen = 0;
		row.logits = logits;
		for (u32 j = 0; j < 600; j++)
			seen |= 1u << draw(&row, 5, 1234, j);
		cr_assert_eq(seen, cases[i].allowed, "case %u drew %x, allowed are %x", i, seen,
			     cases[i].allowed);
	}
}

Test(sampling, a_token_depends_on_seed_and_position_only)
{
	float logits[300];
	struct kern_sample_row row = {.logits = logits, .temperature = 1, .top_p = 1};
	u32 by_seed = 0, by_position = 0;
	for (u32 i = 0; i < 300; i++)
		logits[i] = (float)(i % 7);
	for (u32 i = 0; i < 50; i++) {
		cr_assert_eq(draw(&row, 300, i, 5), draw(&row, 300, i, 5));
		by_seed += draw(&row, 300, i, 5) != draw(&row, 300, i + 1, 5);
		by_position += draw(&row, 300, 9, i) != draw(&row, 300, 9, i + 1);
	}
	cr_assert_gt(by_seed, 40);
	cr_assert_gt(by_position, 40);
}

/* Frozen: a change of these tokens is a change of what a seed means to users. */
Test(sampling, the_tokens_of_a_seed_are_the_same_for_ever)
{
	static const u32 known[] = {532, 393, 797, 434, 775, 540, 232, 540, 450, 595, 947, 27};
	float logits[1000];
	struct kern_sample_row row = {
		.logits = logits, .temperature = 0.9f, .top_p = 0.95f, .top_k = 200, .min_p = 0.01f};
	for (u32 i = 0; i < 1000; i++)
		logits[i] = (float)(i * 37 % 101) / 16;
	for (u32 i = 0; i < COUNT_OF(known); i++)
		cr_assert_eq(draw(&row, 1000, 42, i), known[i], "position %u gives %u, once gave %u", i,
			     draw(&row, 1000, 42, i), known[i]);
}
