#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/sampling_params.h"

static struct sampling_params defaults(void)
{
	struct sampling_params p;

	sampling_params_default(&p);
	return p;
}

#define REFUSED(member, value, word)                                       \
	do {                                                               \
		struct sampling_params p = defaults();                     \
		struct err_msg em = {""};                                  \
		p.member = (value);                                        \
		cr_assert_eq(sampling_params_check(&p, &em), ERR_INVALID); \
		cr_assert_not_null(strstr(em.text, #member));              \
		cr_assert_not_null(strstr(em.text, word), "%s", em.text);  \
	} while (0)

#define TAKEN(member, value)                                           \
	do {                                                           \
		struct sampling_params p = defaults();                 \
		p.member = (value);                                    \
		cr_assert_eq(sampling_params_check(&p, NULL), ERR_OK); \
	} while (0)

Test(sampling_params, defaults_are_valid_and_those_of_the_table)
{
	struct sampling_params p = defaults();

	cr_assert_eq(sampling_params_check(&p, NULL), ERR_OK);
	cr_assert_eq(p.temperature, 1.0f);
	cr_assert_eq(p.max_tokens, 16);
	cr_assert_eq(p.logprobs, -1);
	cr_assert_eq(p.flags, SAMPLING_SKIP_SPECIAL);
}

Test(sampling_params, values_outside_of_the_range_are_refused_by_name)
{
	REFUSED(temperature, -0.1f, "between 0 and 100");
	REFUSED(temperature, 101.0f, "101");
	REFUSED(top_p, 0.0f, "above 0");
	REFUSED(top_p, 1.1f, "1.1");
	REFUSED(min_p, -1.0f, "between 0 and 1");
	REFUSED(top_k, 0x80000000u, "2147483648");
	REFUSED(repetition_penalty, 0.0f, "0.01");
	REFUSED(presence_penalty, 2.5f, "between -2 and 2");
	REFUSED(frequency_penalty, -2.5f, "between -2 and 2");
	REFUSED(max_tokens, 0, "between 1");
	REFUSED(min_tokens, 17, "at most max_tokens (16)");
	REFUSED(logprobs, 21, "between -1 and 20");
	REFUSED(prompt_logprobs, -2, "between -1 and 20");
	REFUSED(flags, 256, "255");
	REFUSED(beam_width, BEAM_WIDTH_MAX + 1, "between 0 and 10");
}

Test(sampling_params, not_a_number_is_in_no_range)
{
	REFUSED(temperature, NAN, "between");
	REFUSED(top_p, NAN, "between");
	REFUSED(min_p, (float)INFINITY, "inf");
	REFUSED(repetition_penalty, NAN, "between");
}

Test(sampling_params, limits_themselves_are_taken)
{
	TAKEN(temperature, 0.0f);
	TAKEN(temperature, 100.0f);
	TAKEN(top_p, 1.0f);
	TAKEN(top_p, 1e-6f);
	TAKEN(min_p, 1.0f);
	TAKEN(presence_penalty, -2.0f);
	TAKEN(seed, UINT64_MAX);
	TAKEN(min_tokens, 16);
	TAKEN(logprobs, 20);
}
