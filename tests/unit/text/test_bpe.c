#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "text/tokenizer_priv.h"

static struct tokenizer *tokenizer;
static struct text_scratch *scratch;

static void load(struct fixture f)
{
	tokenizer = fixture_load(&f);
	cr_assert(text_scratch_create(&scratch) == ERR_OK);
}

static void unload(void)
{
	text_scratch_free(&scratch);
	tokenizer_free(&tokenizer);
}

/* The tokens of a text, joined by "|". */
static const char *tokens(const char *text, size_t bytes)
{
	static struct buf joined;
	struct u32_vec ids = {0};
	struct err_msg em = {.text = ""};
	cr_assert(tokenizer_encode(tokenizer, scratch, text, bytes, 0, &ids, &em) == ERR_OK, "%s", em.text);
	buf_clear(&joined);
	for (size_t i = 0; i < ids.count; i++)
		buf_printf(&joined, "%s%s", i > 0 ? "|" : "", tokenizer_token_text(tokenizer, ids.data[i]));
	u32_vec_fini(&ids);
	return buf_cstr(&joined);
}

static void expect(const char *text, const char *wanted)
{
	cr_assert_str_eq(tokens(text, strlen(text)), wanted);
	cr_assert_str_eq(tokens(text, strlen(text)), wanted, "remembered, the piece is the same");
}

Test(bpe, lowest_rank_goes_first_and_leftmost_among_equals)
{
	load((struct fixture)FIXTURE_GPT2);
	expect("hello", "hello");
	expect("aaaaa", "aaaa|a");
	expect("aaa", "aa|a");
	expect(" the hell", "\xc4\xa0the|\xc4\xa0|hell");
	unload();
}

Test(bpe, bytes_outside_ascii_are_tokens_of_their_own)
{
	load((struct fixture)FIXTURE_GPT2);
	expect("\xc3\xa9", "\xc3\x83|\xc2\xa9");
	unload();
}

Test(bpe, characters_outside_the_vocabulary_fall_back_to_bytes)
{
	load((struct fixture)FIXTURE_LLAMA);
	expect("\xe4\xbd\xa0", "\xe2\x96\x81|<0xE4>|<0xBD>|<0xA0>");
	expect("\xc3\xa9", "\xe2\x96\x81|\xc3\xa9");
	unload();
}

Test(bpe, unknown_characters_fuse_when_told_to)
{
	struct fixture f = {.model_fields = "\"vocab2\":0,"};
	struct buf json = {0};
	struct err_msg em;
	fixture_json(&f, &json);
	char *fallback = strstr(buf_cstr(&json), "\"byte_fallback\":true");
	memcpy(fallback, "\"byte_fallback\":null", 20);
	cr_assert(tokenizer_parse(&tokenizer, buf_cstr(&json), json.bytes, &em) == ERR_OK);
	cr_assert(text_scratch_create(&scratch) == ERR_OK);
	expect("\xe4\xbd\xa0\xe4\xbd\xa0"
	       "a",
	       "<unk>|a");
	buf_fini(&json);
	unload();
}

Test(bpe, a_piece_that_is_a_token_ignores_merges_when_told_to)
{
	struct fixture f = FIXTURE_GPT2;
	f.model_fields = "\"ignore_merges\":true,";
	load(f);
	expect("aaaa", "aaaa");
	expect("aaaaaa", "aaaa|aa");
	unload();
}

/* What merging one pair at a time, by definition, gives. */
static void merge_plainly(const struct bpe *b, u32 *ids, u32 *count)
{
	for (;;) {
		u32 best = UINT32_MAX, at = 0, id = 0;
		for (u32 i = 0; i + 1 < *count; i++) {
			const struct merge_slot *m = merges_find(&b->merges, ids[i], ids[i + 1]);
			if (m != NULL && m->rank < best) {
				best = m->rank;
				at = i;
				id = m->id;
			}
		}
		if (best == UINT32_MAX)
			return;
		ids[at] = id;
		memmove(ids + at + 1, ids + at + 2, (*count - at - 2) * sizeof(*ids));
		--*count;
	}
}

Test(bpe, long_pieces_merge_as_short_ones_do)
{
	enum { LENGTH = 700 };
	struct fixture f = FIXTURE_GPT2;
	f.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
	load(f);
	srand(7);
	for (int round = 0; round < 60; round++) {
		char text[LENGTH];
		u32 plain[LENGTH], count = 1 + (u32)rand() % LENGTH;
		u32 bytes = count;
		struct u32_vec ids = {0};
		struct err_msg em;
		for (u32 i = 0; i < bytes; i++) {
			text[i] = "hello the a"[rand() % 11];
			plain[i] = tokenizer->bpe.byte_ids[(u8)text[i]];
		}
		merge_plainly(&tokenizer->bpe, plain, &count);
		cr_assert(tokenizer_encode(tokenizer, scratch, text, bytes, 0, &ids, &em) == ERR_OK);
		cr_assert_eq(ids.count, count, "round %d", round);
		cr_assert_arr_eq(ids.data, plain, count * sizeof(u32), "round %d", round);
		u32_vec_fini(&ids);
	}
	unload();
}

Test(bpe, a_megabyte_without_a_space_takes_no_time, .timeout = 120)
{
	size_t bytes = 1 << 20;
	char *text = malloc(bytes);
	struct u32_vec ids = {0};
	struct err_msg em;
	load((struct fixture)FIXTURE_LLAMA);
	memset(text, 'a', bytes);
	cr_assert(tokenizer_encode(tokenizer, scratch, text, bytes, 0, &ids, &em) == ERR_OK);
	cr_assert_eq(ids.count, bytes / 4 + 1);
	cr_assert_lt(scratch->symbols_max, 1u << 20, "an unusual piece leaves no unusual memory behind");
	free(text);
	u32_vec_fini(&ids);
	unload();
}

Test(bpe, one_scratch_serves_several_tokenizers)
{
	load((struct fixture)FIXTURE_GPT2);
	expect("hello", "hello");
	struct tokenizer *first = tokenizer;
	struct fixture other = FIXTURE_METASPACE;
	tokenizer = fixture_load(&other);
	expect("hello", "\xe2\x96\x81hello");
	tokenizer_free(&tokenizer);
	tokenizer = first;
	expect("hello", "hello");
	unload();
}

/* Those that are not special are what the vocabulary has them for, whoever writes them. */
Test(bpe, special_tokens_that_are_written_are_text_when_told_to)
{
	struct fixture f = FIXTURE_GPT2;
	struct u32_vec ids = {0}, plain = {0};
	struct err_msg em;
	static const char text[] = "he<s>he<u><s>";
	f.added_tokens = "[{\"id\":266,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
			 "{\"id\":267,\"content\":\"<u>\",\"special\":false,\"normalized\":false},"
			 "{\"id\":268,\"content\":\"<n>\",\"special\":true,\"normalized\":true}]";
	load(f);
	expect(text, "he|<s>|he|<u>|<s>");
	cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, sizeof(text) - 1, TEXT_PLAIN, &ids, &em), ERR_OK);
	cr_assert_eq(ids.count, 9);
	for (size_t i = 0; i < ids.count; i++)
		cr_expect_str_eq(tokenizer_token_text(tokenizer, ids.data[i]), ((const char *const[]){"he", "<", "s", ">", "he", "<u>", "<", "s", ">"})[i]);
	cr_assert_eq(tokenizer_encode(tokenizer, scratch, "<n>", 3, TEXT_PLAIN, &plain, &em), ERR_OK);
	cr_expect_eq(plain.count, 3);
	expect("<n>", "<n>");
	u32_vec_fini(&ids);
	u32_vec_fini(&plain);
	unload();
}
