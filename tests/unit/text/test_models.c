/* Unigram, WordPiece and WordLevel: ids as Hugging Face tokenizers gives them, and refusals. */
#include <criterion/criterion.h>
#include <string.h>

#include "text/tokenizer_priv.h"

#define M "\xe2\x96\x81"
#define UNIGRAM_VOCAB                                                                                        \
	"[\"<unk>\",0.0],[\"" M "\",-3.0],[\"h\",-4.0],[\"e\",-4.0],[\"l\",-4.0],[\"o\",-4.0],[\"he\",-3.5],"    \
	"[\"ll\",-3.5],[\"hello\",-6.0],[\"" M "hello\",-5.0],[\"lo\",-5.0],[\"a\",-2.0],[\"aa\",-4.0],"        \
	"[\"\xe4\xbd\xa0\xe5\xa5\xbd\",-3.0]"

static struct tokenizer *tokenizer;
static struct text_scratch *scratch;

static enum err parse(const char *model, struct err_msg *em)
{
	struct buf json = {0};
	buf_printf(&json, "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
			  "\"decoder\":null,\"model\":%s}",
		   model);
	enum err e = tokenizer_parse(&tokenizer, buf_cstr(&json), json.bytes, em);
	buf_fini(&json);
	return e;
}

static void load(const char *model)
{
	struct err_msg em = {.text = ""};
	cr_assert(parse(model, &em) == ERR_OK, "%s", em.text);
	cr_assert(text_scratch_create(&scratch) == ERR_OK);
}

static void unload(void)
{
	text_scratch_free(&scratch);
	tokenizer_free(&tokenizer);
}

/* The ids of a text, joined by spaces; an error's text where it cannot be encoded. */
static const char *ids_of(const char *text, size_t bytes)
{
	static struct buf joined;
	static struct err_msg em;
	struct u32_vec ids = {0};
	buf_clear(&joined);
	enum err e = tokenizer_encode(tokenizer, scratch, text, bytes, 0, &ids, &em);
	for (size_t i = 0; i < ids.count; i++)
		buf_printf(&joined, "%s%u", i > 0 ? " " : "", ids.data[i]);
	u32_vec_fini(&ids);
	return e == ERR_OK ? buf_cstr(&joined) : em.text;
}

static void expect(const char *text, const char *wanted)
{
	cr_assert_str_eq(ids_of(text, strlen(text)), wanted);
	cr_assert_str_eq(ids_of(text, strlen(text)), wanted, "remembered, the piece is the same");
}

Test(models, unigram_takes_the_way_with_the_highest_score)
{
	load("{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNIGRAM_VOCAB "]}");
	expect("hello", "8");
	expect("hellohell", "8 6 7");
	expect(M "hello" M "hello", "9 9");
	expect("aaa", "11 12");
	expect("aaaaaaaa", "12 12 12 12");
	expect("\xe4\xbd\xa0\xe5\xa5\xbd", "13");
	unload();
}

Test(models, unigram_fuses_unknown_characters)
{
	load("{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNIGRAM_VOCAB "]}");
	expect("xyz", "0");
	expect("xhellox", "0 8 0");
	expect("h\xc3\xa9", "2 0");
	unload();
}

Test(models, unigram_falls_back_to_bytes)
{
	struct buf model = {0};
	buf_append_str(&model, "{\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[" UNIGRAM_VOCAB);
	for (unsigned b = 0; b < 256; b++)
		buf_printf(&model, ",[\"<0x%02X>\",-20.0]", b);
	buf_append_str(&model, "]}"); /* without a type: told by the vocabulary's shape */
	load(buf_cstr(&model));
	expect("xyz", "134 135 136");
	expect("\xe4\xbd\xa0", "242 203 174");
	expect("h\xc3\xa9", "2 209 183");
	buf_fini(&model);
	unload();
}

Test(models, unigram_is_linear_where_tokens_do_not_overlap)
{
	enum { BYTES = 1 << 20 };
	struct buf text = {0};
	load("{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNIGRAM_VOCAB "]}");
	for (size_t i = 0; i < BYTES / 4; i++)
		buf_append_str(&text, "a" M);
	cr_assert_neq(ids_of(buf_cstr(&text), text.bytes)[0], '\0');
	cr_assert(scratch->paths_max < 1024, "the search holds %zu positions", scratch->paths_max);
	buf_fini(&text);
	unload();
}

Test(models, unknown_parts_without_an_unknown_token_are_refused)
{
	load("{\"type\":\"Unigram\",\"unk_id\":null,\"vocab\":[[\"a\",-1.0],[\"ab\",-2.0]]}");
	expect("aab", "0 1");
	expect("b", "the text has a part that the vocabulary lacks, and the tokenizer has no unknown token");
	expect("aab", "0 1");
	unload();
	load("{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\",\"vocab\":{\"a\":0}}");
	expect("a", "0");
	expect("b", "the text has a part that the vocabulary lacks, and the tokenizer has no unknown token");
	unload();
}

Test(models, wordpiece_takes_the_longest_token_first)
{
	load("{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
	     "\"max_input_chars_per_word\":8,\"vocab\":{\"[UNK]\":0,\"un\":1,\"##aff\":2,\"##able\":3,\"##a\":4,"
	     "\"##ff\":5,\"a\":6,\"\xc3\xa9\":7,\"##\xc3\xa9\":8,\"able\":9}}");
	expect("unaff", "1 2");
	expect("unable", "1 3");
	expect("able", "9");
	expect("a\xc3\xa9", "6 8");
	expect("##able", "3");
	unload();
}

Test(models, wordpiece_knows_no_half_words_and_no_long_ones)
{
	load("{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
	     "\"max_input_chars_per_word\":8,\"vocab\":{\"[UNK]\":0,\"a\":1,\"##a\":2,\"\xc3\xa9\":3,\"##\xc3\xa9\":4}}");
	expect("ax", "0");
	expect("aaaaaaaa", "1 2 2 2 2 2 2 2");
	expect("aaaaaaaaa", "0");
	expect("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "3 4 4 4 4 4 4 4");
	unload();
}

static void expect_refusal(const char *model, const char *wanted)
{
	struct err_msg em = {.text = ""};
	cr_assert_neq(parse(model, &em), ERR_OK);
	cr_assert(strstr(em.text, wanted) != NULL, "\"%s\" instead of \"%s\"", em.text, wanted);
}

Test(models, damaged_models_are_refused_with_the_field)
{
	expect_refusal("{\"type\":\"Unigram\",\"vocab\":{}}", "model.vocab of Unigram must be an array, got object");
	expect_refusal("{\"type\":\"BPE\",\"vocab\":[]}", "model.vocab of BPE must be an object, got array");
	expect_refusal("{\"type\":\"Unigram\",\"unk_id\":2,\"vocab\":[[\"a\",0.0]]}", "model.unk_id must be an index");
	expect_refusal("{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",\"b\"]]}", "model.vocab[0]: the score must be");
	expect_refusal("{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[1,0.0]]}", "model.vocab[0] must be");
	expect_refusal("{\"type\":\"WordPiece\",\"max_input_chars_per_word\":\"x\",\"vocab\":{}}", "max_input_chars_per_word");
	expect_refusal("{\"type\":\"Morse\",\"vocab\":{}}",
		       "model type \"Morse\" is not supported (supported: BPE, Unigram, WordPiece, WordLevel)");
}
