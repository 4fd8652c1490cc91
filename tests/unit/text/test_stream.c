/* Streams say what whole decoding says, for every tokenizer family and every way to cut the ids into steps. */
#include <criterion/criterion.h>
#include <string.h>

#include "common/utf8.h"
#include "fixtures.h"
#include "text/tokenizer_priv.h"
#include "vectors.h"

/* TERCET_STREAM_TOKENS=1000000 in the environment checks so many tokens of every family. */
enum { IDS_PER_FAMILY = 100000, RUN_MAX = 60 };

static u64 random_state = 1;

static u32 random_below(u32 n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (u32)((random_state >> 33) % n);
}

/* Bytes of one character often, so that characters are spread over tokens. */
static u32 random_id(const struct tokenizer *t, const u32 *byte_ids)
{
	u32 kind = random_below(4);
	if (kind == 0 && byte_ids[0xf0] != TOKEN_NONE)
		return byte_ids[0x80 + random_below(0x80)];
	return random_below(tokenizer_vocab_size(t) + (kind == 1 ? 2 : 0));
}

static void byte_tokens(const struct tokenizer *t, u32 *byte_ids)
{
	for (u32 b = 0; b < 256; b++)
		byte_ids[b] = t->bpe.raw_bytes || t->bpe.byte_fallback ? t->bpe.byte_ids[b] : TOKEN_NONE;
}

/* One replacement behind the other, each over all of the text. */
static void clean_by_definition(struct buf *b)
{
	static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},	 {" !", "!"},	 {" ,", ","},	   {" ' ", "'"},
					       {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
	for (size_t i = 0; i < COUNT_OF(rules); i++) {
		struct buf next = {0};
		const char *at = buf_cstr(b), *end = at + b->bytes;
		size_t bytes = strlen(rules[i][0]);
		for (const char *hit; (hit = memmem(at, (size_t)(end - at), rules[i][0], bytes)) != NULL; at = hit + bytes) {
			buf_append(&next, at, (size_t)(hit - at));
			buf_append_str(&next, rules[i][1]);
		}
		buf_append(&next, at, (size_t)(end - at));
		buf_fini(b);
		*b = next;
	}
}

/* The definition: all texts in a list through all decoders. */
static void decode_by_definition(const struct tokenizer *t, const u32 *ids, u32 count, bool skip, struct buf *out)
{
	struct text_list list = {{0}, {0}};
	for (u32 i = 0; i < count; i++) {
		struct token shown = ids[i] < t->vocab.count ? vocab_shown(&t->vocab, ids[i]) : (struct token){.text = NULL};
		if (shown.text == NULL || (skip && (shown.flags & TOKEN_SPECIAL)))
			continue;
		buf_append(&list.bytes, shown.text, shown.bytes);
		u32_vec_push(&list.ends, (u32)list.bytes.bytes);
	}
	decoder_run_whole(&t->decoder, &list, out);
	if (t->clean_up)
		clean_by_definition(out);
	buf_fini(&list.bytes);
	u32_vec_fini(&list.ends);
}

static void check_run(const struct tokenizer *t, const u32 *ids, u32 count, bool skip)
{
	struct buf whole = {0}, defined = {0}, all = {0}, step = {0};
	struct text_stream s;
	tokenizer_decode(t, ids, count, skip, &whole);
	decode_by_definition(t, ids, count, skip, &defined);
	text_stream_init(&s, t, skip, NULL, 0);
	for (u32 i = 0; i < count;) {
		buf_clear(&step);
		for (u32 n = 1 + random_below(4); n > 0 && i < count; n--)
			text_stream_push(&s, ids[i++], &step);
		cr_assert(utf8_valid(step.data, step.bytes), "a step ends inside a character");
		buf_append(&all, step.data, step.bytes);
	}
	text_stream_end(&s, &all);
	cr_assert_str_eq(buf_cstr(&whole), buf_cstr(&defined));
	cr_assert(whole.bytes == defined.bytes && all.bytes == whole.bytes);
	cr_assert(memcmp(buf_cstr(&all), buf_cstr(&whole), whole.bytes) == 0, "\"%s\" instead of \"%s\"", buf_cstr(&all),
		  buf_cstr(&whole));
	buf_fini(&whole);
	buf_fini(&defined);
	buf_fini(&all);
	buf_fini(&step);
}

static void check_tokenizer(const struct tokenizer *t, u32 total)
{
	u32 byte_ids[256], ids[RUN_MAX];
	byte_tokens(t, byte_ids);
	for (u32 done = 0; done < total;) {
		u32 count = random_below(RUN_MAX);
		for (u32 i = 0; i < count; i++)
			ids[i] = random_id(t, byte_ids);
		check_run(t, ids, count, random_below(2));
		done += count + 1;
	}
}

static void check_family(const char *name)
{
	char path[4096];
	struct err_msg em = {.text = ""};
	struct tokenizer *t;
	if (!vectors_path(path, sizeof(path), name))
		cr_skip_test("no %s", name);
	cr_assert(tokenizer_load(&t, path, &em) == ERR_OK, "%s", em.text);
	const char *wanted = getenv("TERCET_STREAM_TOKENS");
	u32 total = wanted != NULL ? (u32)strtoul(wanted, NULL, 10) : IDS_PER_FAMILY;
	check_tokenizer(t, total);
	printf("%s: %u tokens\n", name, total);
	tokenizer_free(&t);
}

#define FAMILY(test, name)                                                                                   \
	Test(stream, test)                                                                                   \
	{                                                                                                    \
		check_family("tokenizers/" name);                                                            \
	}
FAMILY(llama3, "llama3")
FAMILY(qwen2, "qwen2")
FAMILY(gpt2, "gpt2")
FAMILY(starcoder2, "starcoder2")
FAMILY(llama2, "llama2")
FAMILY(phi3, "phi3")
FAMILY(mistral_style, "mistral-style")
FAMILY(gemma_style, "gemma-style")

#define KEPT(test, name)                                                                                     \
	Test(stream, test)                                                                                   \
	{                                                                                                    \
		check_family("tests/unit/text/models/" name);                                                \
	}
KEPT(bert, "bert")
KEPT(bloom, "bloom")
KEPT(clip, "clip")
KEPT(deepseek_v3, "deepseek-v3")
KEPT(falcon, "falcon")
KEPT(gemma, "gemma")
KEPT(gpt_neox, "gpt-neox")
KEPT(mistral, "mistral")
KEPT(sentencepiece_bpe, "sentencepiece-bpe")
KEPT(sentencepiece_unigram, "sentencepiece-unigram")
KEPT(tiktoken, "tiktoken")
KEPT(opt, "opt")
KEPT(qwen_vocab, "qwen-vocab")
KEPT(tekken, "tekken")

Test(stream, every_kind_of_decoder)
{
	static const struct fixture fixtures[] = {
		FIXTURE_GPT2,
		FIXTURE_LLAMA,
		FIXTURE_METASPACE,
		FIXTURE_GEMMA,
		FIXTURE_WORDPIECE_DECODER,
		FIXTURE_PLAIN,
		{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\",\"replacement\":"
			    "\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":"
			    "\"a\",\"start\":2,\"stop\":0}]}"},
		{.decoder = "{\"type\":\"BPEDecoder\",\"suffix\":\"e\"}"},
		{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
			    "\"he\"},\"content\":\"x\"}]}"},
		{.added_tokens = "[{\"id\":500,\"content\":\"<s>\",\"special\":true},{\"id\":501,\"content\":\" x \"}]",
		 .decoder = "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}"},
	};
	for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
		struct tokenizer *t = fixture_load(&fixtures[i]);
		check_tokenizer(t, 20000);
		tokenizer_set_clean_up(t, true);
		check_tokenizer(t, 20000);
		tokenizer_free(&t);
	}
}

/* The text that ids give behind a prompt, token by token. */
static const char *behind(const struct tokenizer *t, const char *prompt, const char *output, bool skip)
{
	static struct buf out;
	struct text_scratch *scratch;
	struct u32_vec ids = {0};
	struct err_msg em;
	struct text_stream s;
	buf_clear(&out);
	cr_assert(text_scratch_create(&scratch) == ERR_OK);
	cr_assert(tokenizer_encode(t, scratch, prompt, strlen(prompt), 0, &ids, &em) == ERR_OK);
	text_stream_init(&s, t, skip, ids.data, ids.count);
	u32_vec_clear(&ids);
	cr_assert(tokenizer_encode(t, scratch, output, strlen(output), 0, &ids, &em) == ERR_OK);
	for (size_t i = 0; i < ids.count; i++)
		text_stream_push(&s, ids.data[i], &out);
	text_stream_end(&s, &out);
	u32_vec_fini(&ids);
	text_scratch_free(&scratch);
	return buf_cstr(&out);
}

Test(stream, a_leading_space_stays_behind_a_prompt_and_goes_without_one)
{
	struct fixture f = FIXTURE_LLAMA;
	struct tokenizer *t = fixture_load(&f);
	cr_assert_str_eq(behind(t, "", "hello", false), "hello");
	cr_assert_str_eq(behind(t, "a", "hello", false), " hello");
	tokenizer_free(&t);
	f = (struct fixture)FIXTURE_METASPACE;
	t = fixture_load(&f);
	cr_assert_str_eq(behind(t, "", "the", false), "the");
	cr_assert_str_eq(behind(t, "a", "the", false), " the");
	tokenizer_free(&t);
}

Test(stream, skipped_special_tokens_are_no_start)
{
	struct fixture f = FIXTURE_LLAMA;
	f.added_tokens = "[{\"id\":400,\"content\":\"<s>\",\"special\":true}]";
	struct tokenizer *t = fixture_load(&f);
	cr_assert_str_eq(behind(t, "<s>", "the", true), "the");
	cr_assert_str_eq(behind(t, "<s>", "the", false), " the");
	tokenizer_free(&t);
}

Test(stream, whole_characters_of_the_prompt_do_not_come_back)
{
	struct fixture f = FIXTURE_LLAMA;
	struct tokenizer *t = fixture_load(&f);
	u32 prompt[3], first;
	struct text_stream s;
	struct buf out = {0};
	cr_assert(tokenizer_find(t, "<0xE4>", &prompt[0]) && tokenizer_find(t, "<0xBD>", &prompt[1]) &&
		  tokenizer_find(t, "<0xA0>", &prompt[2]) && tokenizer_find(t, "a", &first));
	text_stream_init(&s, t, false, prompt, 3);
	text_stream_push(&s, first, &out);
	cr_assert_str_eq(buf_cstr(&out), "a");
	buf_clear(&out);
	text_stream_init(&s, t, false, prompt, 2); /* an unfinished one is finished by the output */
	text_stream_push(&s, prompt[2], &out);
	text_stream_push(&s, first, &out);
	cr_assert_str_eq(buf_cstr(&out), "\xe4\xbd\xa0"
					 "a");
	text_stream_fini(&s);
	buf_fini(&out);
	tokenizer_free(&t);
}

/* Spaces, quotation marks and letters of the rules, so that they meet often. */
Test(stream, cleaned_up_text_is_that_of_replacing_one_after_the_other)
{
	struct fixture f = {.decoder = "{\"type\":\"Fuse\"}"};
	struct tokenizer *t = fixture_load(&f);
	static const char *const texts[] = {" ", " ", " ", ".", "?", "!", ",", "'", "'", "n", "t", "m", "s", "v", "e", "r"};
	u32 ids[RUN_MAX];
	tokenizer_set_clean_up(t, true);
	for (u32 run = 0; run < 20000; run++) {
		u32 count = random_below(RUN_MAX);
		for (u32 i = 0; i < count; i++)
			cr_assert(tokenizer_find(t, texts[random_below(COUNT_OF(texts))], &ids[i]));
		check_run(t, ids, count, false);
	}
	tokenizer_free(&t);
}

Test(stream, cleaning_up_holds_back_a_space_and_gives_it_out_at_the_end)
{
	struct fixture f = {.decoder = "{\"type\":\"Fuse\"}"};
	struct tokenizer *t = fixture_load(&f);
	struct text_stream s;
	struct buf out = {0};
	u32 a, space, dot;
	cr_assert(tokenizer_find(t, "a", &a) && tokenizer_find(t, " ", &space) && tokenizer_find(t, ".", &dot));
	tokenizer_set_clean_up(t, true);
	text_stream_init(&s, t, false, NULL, 0);
	text_stream_push(&s, a, &out);
	cr_assert(!text_stream_holds(&s));
	text_stream_push(&s, space, &out);
	cr_assert(text_stream_holds(&s) && out.bytes == 1);
	text_stream_push(&s, dot, &out);
	text_stream_push(&s, space, &out);
	text_stream_end(&s, &out);
	cr_assert_str_eq(buf_cstr(&out), "a. ");
	buf_fini(&out);
	tokenizer_free(&t);
}

Test(stream, added_tokens_in_a_row_come_close_on_request)
{
	struct fixture f = FIXTURE_WORDPIECE_DECODER;
	f.added_tokens = "[{\"id\":400,\"content\":\"[A]\",\"special\":true},{\"id\":401,\"content\":\"[B]\",\"special\":true}]";
	struct tokenizer *t = fixture_load(&f);
	u32 ids[] = {400, 401, 0, 400, 400};
	for (int tight = 0; tight < 2; tight++) {
		struct text_stream s;
		struct buf out = {0};
		cr_assert(tokenizer_find(t, "a", &ids[2]));
		text_stream_init(&s, t, false, NULL, 0);
		s.tight_added = tight;
		for (size_t i = 0; i < COUNT_OF(ids); i++)
			text_stream_push(&s, ids[i], &out);
		text_stream_end(&s, &out);
		cr_assert_str_eq(buf_cstr(&out), tight ? "[A][B] a [A][A]" : "[A] [B] a [A] [A]");
		buf_fini(&out);
	}
	tokenizer_free(&t);
}
