#include <criterion/criterion.h>
#include <string.h>

#include "text/pretokenize_priv.h"
#include "text/text.h"

static enum err collect(void *ctx, const char *piece, size_t bytes)
{
	struct buf *out = ctx;
	if (out->bytes > 0)
		buf_append_char(out, '|');
	buf_append(out, piece, bytes);
	return ERR_OK;
}

/* The pieces, joined by "|". `origin`: the text begins where the original begins. */
static const char *pieces_from(const char *json, const char *text, bool origin)
{
	static struct buf out;
	struct json_doc *doc;
	struct err_msg em = {.text = ""};
	struct pretokenizer p;
	struct text_scratch *s;
	buf_clear(&out);
	cr_assert(json_parse(&doc, json, strlen(json), &em) == ERR_OK, "%s", em.text);
	cr_assert(pretokenizer_load(&p, json_root(doc), false, &em) == ERR_OK, "%s", em.text);
	cr_assert(text_scratch_create(&s) == ERR_OK);
	struct pretok_run run = {.pretokenizer = &p, .scratch = s, .emit = collect, .ctx = &out};
	struct piece piece = {.text = text, .bytes = strlen(text), .origin = origin};
	cr_assert(pretokenizer_run(&run, piece) == ERR_OK);
	text_scratch_free(&s);
	pretokenizer_fini(&p);
	json_free(&doc);
	return buf_cstr(&out);
}

static const char *pieces(const char *json, const char *text)
{
	return pieces_from(json, text, true);
}

#define SPLIT(pattern, behavior, invert)                                                                     \
	"{\"type\":\"Split\",\"pattern\":{" pattern "},\"behavior\":\"" behavior "\",\"invert\":" invert "}"

Test(pretokenize, each_behaviour_puts_the_match_in_its_place)
{
	cr_assert_str_eq(pieces(SPLIT("\"String\":\"-\"", "Removed", "false"), "the-final--countdown"), "the|final|countdown");
	cr_assert_str_eq(pieces(SPLIT("\"String\":\"-\"", "Isolated", "false"), "the-final--countdown"), "the|-|final|-|-|countdown");
	cr_assert_str_eq(pieces(SPLIT("\"String\":\"-\"", "MergedWithPrevious", "false"), "the-final--countdown"), "the-|final-|-|countdown");
	cr_assert_str_eq(pieces(SPLIT("\"String\":\"-\"", "MergedWithNext", "false"), "the-final--countdown"), "the|-final|-|-countdown");
	cr_assert_str_eq(pieces(SPLIT("\"String\":\"-\"", "Contiguous", "false"), "the-final--countdown"), "the|-|final|--|countdown");
}

Test(pretokenize, invert_swaps_matches_and_gaps)
{
	cr_assert_str_eq(pieces(SPLIT("\"Regex\":\"[a-z]+\"", "Removed", "true"), "ab12cd"), "ab|cd");
	cr_assert_str_eq(pieces(SPLIT("\"Regex\":\"[a-z]+\"", "Removed", "false"), "ab12cd"), "12");
}

Test(pretokenize, gpt2_pattern_is_what_byte_level_cuts_with)
{
	cr_assert_str_eq(pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "it's 12\n\n x"),
			 "\xc4\xa0it|'s|\xc4\xa0" "12|\xc4\x8a\xc4\x8a|\xc4\xa0x");
	cr_assert_str_eq(pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "a b"), "a\xc4\xa0" "b");
}

Test(pretokenize, stages_behind_byte_level_see_its_stand_ins)
{
	/* The byte 0xb2 stands for itself, a superscript two, which is a digit to Digits. */
	cr_assert_str_eq(pieces("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":"
				"false},{\"type\":\"Digits\",\"individual_digits\":true}]}",
				"a\xc2\xb2"),
			 "a\xc3\x82|\xc2\xb2");
}

Test(pretokenize, metaspace_prepends_as_its_scheme_says)
{
#define METASPACE(scheme, split)                                                                             \
	"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
	cr_assert_str_eq(pieces(METASPACE("always", "true"), "hi  you"), "_hi|_|_you");
	cr_assert_str_eq(pieces(METASPACE("never", "true"), "hi you"), "hi|_you");
	cr_assert_str_eq(pieces(METASPACE("always", "false"), " hi you"), "_hi_you");
	cr_assert_str_eq(pieces_from(METASPACE("first", "true"), "hi", true), "_hi");
	cr_assert_str_eq(pieces_from(METASPACE("first", "true"), "hi", false), "hi");
	cr_assert_str_eq(pieces("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}", "a b"), "a|_b");
}

Test(pretokenize, classes_of_characters)
{
	cr_assert_str_eq(pieces("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b"), "a|1|2|b");
	cr_assert_str_eq(pieces("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b"), "a|12|b");
	cr_assert_str_eq(pieces("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a,!b"), "a|,!|b");
	cr_assert_str_eq(pieces("{\"type\":\"Whitespace\"}", " a-b  c"), "a|-|b|c");
	cr_assert_str_eq(pieces("{\"type\":\"WhitespaceSplit\"}", " a-b  c"), "a-b|c");
	cr_assert_str_eq(pieces("{\"type\":\"BertPreTokenizer\"}", "a-b c"), "a|-|b|c");
	cr_assert_str_eq(pieces("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axxb"), "a|b");
	cr_assert_str_eq(pieces("{\"type\":\"FixedLength\",\"length\":2}", "abcde"), "ab|cd|e");
}

Test(pretokenize, what_is_not_known_is_named)
{
	struct json_doc *doc;
	struct err_msg em;
	struct pretokenizer p;
	const char *json = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Runes\"}]}";
	cr_assert(json_parse(&doc, json, strlen(json), &em) == ERR_OK);
	cr_assert_eq(pretokenizer_load(&p, json_root(doc), true, &em), ERR_UNSUPPORTED);
	cr_assert_not_null(strstr(em.text, "Runes"), "%s", em.text);
	json_free(&doc);
}
