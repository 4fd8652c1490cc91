#include <criterion/criterion.h>
#include <stddef.h>

#include "common/finish.h"

enum { EOS = 2, EOS_TOO = 3, STOP = 50, WORD = 7 };

static const uint32_t eos_ids[] = {EOS, EOS_TOO};
static const uint32_t stop_ids[] = {STOP, 51};

static struct finish_rule rule_of(uint32_t max)
{
	return (struct finish_rule){
		.output_max = max, .eos_ids = eos_ids, .eos_count = 2, .stop_ids = stop_ids, .stop_count = 2};
}

/* Runs the rule over several tokens as both users do; answers how many were kept. */
static uint32_t run(const struct finish_rule *rule, const uint32_t *tokens, uint32_t count, struct finish *f)
{
	for (uint32_t i = 0; i < count; i++) {
		*f = finish_check(rule, i + 1, tokens[i]);
		if (f->reason != FINISH_NONE)
			return i + 1;
	}
	return count;
}

Test(finish, words_go_on)
{
	struct finish_rule rule = rule_of(100);

	cr_assert_eq(finish_check(&rule, 1, WORD).reason, FINISH_NONE);
	cr_assert_eq(finish_check(&rule, 99, WORD).reason, FINISH_NONE);
}

Test(finish, eos_stops_without_a_stop_id)
{
	struct finish_rule rule = rule_of(100);

	cr_assert_eq(finish_check(&rule, 1, EOS).reason, FINISH_STOP);
	cr_assert_eq(finish_check(&rule, 1, EOS_TOO).reason, FINISH_STOP);
	cr_assert_not(finish_check(&rule, 1, EOS).by_stop_id);
}

Test(finish, ignored_eos_goes_through_to_the_length)
{
	struct finish_rule rule = rule_of(5);
	uint32_t tokens[] = {EOS, EOS, WORD, EOS, EOS, EOS};
	struct finish f;

	rule.ignore_eos = true;
	cr_assert_eq(run(&rule, tokens, 6, &f), 5);
	cr_assert_eq(f.reason, FINISH_LENGTH);
}

Test(finish, stop_id_stops_and_is_reported)
{
	struct finish_rule rule = rule_of(100);
	struct finish f = finish_check(&rule, 3, STOP);

	cr_assert_eq(f.reason, FINISH_STOP);
	cr_assert(f.by_stop_id);
	rule.ignore_eos = true;
	cr_assert_eq(finish_check(&rule, 3, STOP).reason, FINISH_STOP);
}

Test(finish, eos_that_is_a_stop_id_too_counts_as_eos_unless_it_is_ignored)
{
	struct finish_rule rule = rule_of(100);
	uint32_t both[] = {EOS};

	rule.stop_ids = both;
	rule.stop_count = 1;
	cr_assert_not(finish_check(&rule, 1, EOS).by_stop_id);
	rule.ignore_eos = true;
	cr_assert(finish_check(&rule, 1, EOS).by_stop_id);
}

Test(finish, nothing_stops_before_the_minimum)
{
	struct finish_rule rule = rule_of(100);

	rule.output_min = 5;
	for (uint32_t n = 1; n < 5; n++) {
		cr_assert_eq(finish_check(&rule, n, EOS).reason, FINISH_NONE);
		cr_assert_eq(finish_check(&rule, n, STOP).reason, FINISH_NONE);
	}
	cr_assert_eq(finish_check(&rule, 5, EOS).reason, FINISH_STOP);
	cr_assert_eq(finish_check(&rule, 5, STOP).reason, FINISH_STOP);
}

Test(finish, one_token_is_exactly_one_token)
{
	struct finish_rule rule = rule_of(1);

	cr_assert_eq(finish_check(&rule, 1, WORD).reason, FINISH_LENGTH);
}

Test(finish, tokens_behind_an_eos_in_the_middle_are_not_kept)
{
	struct finish_rule rule = rule_of(100);
	uint32_t tokens[] = {WORD, WORD, EOS, WORD, STOP};
	struct finish f;

	cr_assert_eq(run(&rule, tokens, 5, &f), 3);
	cr_assert_eq(f.reason, FINISH_STOP);
}

Test(finish, length_in_the_middle_of_several_tokens_cuts_exactly)
{
	struct finish_rule rule = rule_of(3);
	uint32_t tokens[] = {WORD, WORD, WORD, WORD, EOS};
	struct finish f;

	cr_assert_eq(run(&rule, tokens, 5, &f), 3);
	cr_assert_eq(f.reason, FINISH_LENGTH);
}

Test(finish, stop_goes_before_length_at_the_same_token)
{
	struct finish_rule rule = rule_of(4);

	cr_assert_eq(finish_check(&rule, 4, EOS).reason, FINISH_STOP);
	cr_assert_eq(finish_check(&rule, 4, STOP).reason, FINISH_STOP);
	cr_assert_eq(finish_check(&rule, 4, WORD).reason, FINISH_LENGTH);
}

Test(finish, length_holds_even_below_the_minimum)
{
	struct finish_rule rule = rule_of(4);

	rule.output_min = 10;
	cr_assert_eq(finish_check(&rule, 4, EOS).reason, FINISH_LENGTH);
}

Test(finish, reasons_have_the_names_of_the_api)
{
	cr_assert_str_eq(finish_reason_name(FINISH_NONE), "");
	cr_assert_str_eq(finish_reason_name(FINISH_STOP), "stop");
	cr_assert_str_eq(finish_reason_name(FINISH_LENGTH), "length");
	cr_assert_str_eq(finish_reason_name(FINISH_ABORT), "abort");
	cr_assert_str_eq(finish_reason_name(FINISH_ERROR), "error");
	cr_assert_str_eq(finish_reason_name((enum finish_reason)99), "unknown");
}
