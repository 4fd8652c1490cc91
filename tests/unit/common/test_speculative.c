/* What --speculative-config says, and everything it can have wrong. */
#include <criterion/criterion.h>
#include <string.h>

#include "common/speculative.h"

static struct speculative parsed(const char *text)
{
	struct speculative s;
	struct err_msg em = {""};

	cr_assert_eq(speculative_parse(&s, text, &em), ERR_OK, "%s: %s", text, em.text);
	return s;
}

static void expect(const char *text, u32 tokens, u32 lookup_min, u32 lookup_max, u32 batch_max)
{
	struct speculative s = parsed(text);

	cr_assert_eq(s.tokens, tokens, "%s", text);
	cr_assert_eq(s.lookup_min, lookup_min, "%s", text);
	cr_assert_eq(s.lookup_max, lookup_max, "%s", text);
	cr_assert_eq(s.batch_max, batch_max, "%s", text);
}

Test(speculative, is_off_by_default)
{
	expect("", 0, 0, 0, 0);
}

Test(speculative, lengths_that_are_missing_follow_from_the_others)
{
	expect("{\"method\":\"ngram\",\"num_speculative_tokens\":4}", 4, 5, 5, 0);
	expect("{\"method\":\"ngram\",\"num_speculative_tokens\":32,\"prompt_lookup_max\":3}", 32, 3, 3, 0);
	expect("{\"method\":\"ngram\",\"num_speculative_tokens\":1,\"prompt_lookup_min\":64}", 1, 64, 64, 0);
	expect(" {\"prompt_lookup_min\": 2, \"prompt_lookup_max\": 7, \"num_speculative_tokens\": 3, \"method\": \"ngram\", "
	       "\"disable_by_batch_size\": 1024} ",
	       3, 2, 7, 1024);
	expect("{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"disable_by_batch_size\":null}", 4, 5, 5, 0);
}

Test(speculative, what_is_wrong_is_named)
{
	static const struct {
		const char *text;
		enum err e;
		const char *says;
	} cases[] = {
		{"{", ERR_INVALID, "no JSON"},
		{"ngram", ERR_INVALID, "no JSON"},
		{"3", ERR_INVALID, "a JSON integer"},
		{"null", ERR_INVALID, "a JSON null"},
		{"{}", ERR_INVALID, "\"method\" is missing"},
		{"{\"method\":null,\"num_speculative_tokens\":1}", ERR_UNSUPPORTED, "must be \"ngram\""},
		{"{\"method\":\"eagle\",\"num_speculative_tokens\":1}", ERR_UNSUPPORTED, "\"eagle\""},
		{"{\"method\":3,\"num_speculative_tokens\":1}", ERR_UNSUPPORTED, "must be \"ngram\""},
		{"{\"method\":\"ngram\"}", ERR_INVALID, "\"num_speculative_tokens\" is missing"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":0}", ERR_INVALID, "between 1 and 32"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":33}", ERR_INVALID, "between 1 and 32"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":-1}", ERR_INVALID, "between 1 and 32"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":2.5}", ERR_INVALID, "between 1 and 32"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":\"2\"}", ERR_INVALID, "between 1 and 32"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"prompt_lookup_max\":65}", ERR_INVALID, "between 1 and 64"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"prompt_lookup_min\":4,\"prompt_lookup_max\":3}", ERR_INVALID,
		 "is 4; it must not be above \"prompt_lookup_max\", 3"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"disable_by_batch_size\":0}", ERR_INVALID,
		 "between 1 and 1024"},
		{"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"model\":\"x\"}", ERR_INVALID, "\"model\" is none of"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct speculative s;
		struct err_msg em = {""};
		cr_assert_eq(speculative_parse(&s, cases[i].text, &em), cases[i].e, "%s", cases[i].text);
		cr_assert(strstr(em.text, cases[i].says), "%s: %s", cases[i].text, em.text);
		cr_assert(strstr(em.text, "--speculative-config"), "%s", em.text);
		cr_assert_eq(s.tokens, 0);
	}
}
