/* Vocabularies that come as vocab.json and merges.txt, as tekken.json or as tokenizer.model.v3: which file is taken, what the other
 * files say of the special tokens, and refusals. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/text.h"
#include "text/unicode_priv.h"
#include "vectors.h"

#define PATTERN "\\\\p{L}+|\\\\p{N}|[^\\\\p{L}\\\\p{N}]"
#define GPT2	"\"tokenizer_class\":\"GPT2Tokenizer\""

struct file {
	const char *name;
	const char *text; /* NULL: none */
};
enum { FILES_MAX = 6 };

static char folder[] = "/tmp/tercet-vocab-XXXXXX";

static void put(const char *name, const char *text, size_t bytes)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	cr_assert_not_null(f);
	cr_assert_eq(fwrite(text, 1, bytes, f), bytes);
	fclose(f);
}

static void make_folder(void)
{
	cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void)
{
	static const char *const names[] = {"vocab.json",
					    "merges.txt",
					    "tekken.json",
					    "tokenizer.model.v3",
					    "tokenizer.model.v1",
					    "tokenizer.model",
					    "tokenizer.json",
					    "tokenizer_config.json",
					    "special_tokens_map.json",
					    "added_tokens.json",
					    "config.json"};
	char path[512];
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
}

TestSuite(vocab_files, .init = make_folder, .fini = remove_folder);

/* The ids of a text, joined by spaces; where the folder cannot be loaded, why. */
static const char *ids_of(const char *text, u32 flags)
{
	static struct buf joined;
	static struct err_msg em;
	struct tokenizer *t = NULL;
	struct text_scratch *s = NULL;
	struct u32_vec ids = {0};
	em.text[0] = '\0';
	buf_clear(&joined);
	if (tokenizer_load(&t, folder, &em) != ERR_OK) {
		cr_assert_neq(em.text[0], '\0', "a refusal without a reason");
		return em.text;
	}
	cr_assert(text_scratch_create(&s) == ERR_OK);
	cr_assert(tokenizer_encode(t, s, text, strlen(text), flags, &ids, &em) == ERR_OK, "%s", em.text);
	for (size_t i = 0; i < ids.count; i++)
		buf_printf(&joined, "%s%u", i > 0 ? " " : "", ids.data[i]);
	buf_printf(&joined, "|%s|%s", tokenizer_bos(t), tokenizer_eos(t));
	u32_vec_fini(&ids);
	text_scratch_free(&s);
	tokenizer_free(&t);
	return buf_cstr(&joined);
}

/* ---- vocab.json and merges.txt ---- */

#define VOCAB  "{\"a\":0,\"b\":1,\"ab\":2,\"abb\":3,\"\xc4\xa0\":4,\"<|endoftext|>\":5,\"#\":6,\"##\":7}"
#define MERGES "#version: 0.2\na b\nab b\n"

static void put_vocab(const char *vocab, const char *merges, const struct file *others)
{
	put("vocab.json", vocab, strlen(vocab));
	put("merges.txt", merges, strlen(merges));
	for (const struct file *f = others; f != NULL && f->name != NULL; f++)
		put(f->name, f->text, strlen(f->text));
}

Test(vocab_files, merges_have_any_ends_of_lines)
{
	static const char *const same[] = {MERGES, "a b\nab b", "#version: 0.2\r\na b\r\n\r\nab b\r\n",
					   "\n\na b\n#version x\nab b\n\n"};
	for (size_t i = 0; i < COUNT_OF(same); i++) {
		put_vocab(VOCAB, same[i], NULL);
		cr_assert_str_eq(ids_of("abb ab", 0), "3 4 2|<|endoftext|>|<|endoftext|>", "%zu", i);
	}
	put_vocab(VOCAB, "#version: 0.2\n# #\n", NULL); /* no comment */
	cr_assert_str_eq(ids_of("##", 0), "7|<|endoftext|>|<|endoftext|>");
}

Test(vocab_files, lies_of_merges_are_told_by_line)
{
	static const struct {
		const char *merges;
		const char *wanted;
	} lies[] = {
		{"a b\na", "merges.txt line 2 (\"a\"): must be two tokens"},
		{"a b c\n", "merges.txt line 1 (\"a b c\"): must be two tokens"},
		{"a b \n", "must be two tokens"},
		{" a\n", "must be two tokens"},
		{"#version: 0.2\n\na x\n",
		 "merges.txt line 3 (\"a x\"): the right token is not in vocab.json"},
		{"x b\n", "the left token is not in vocab.json"},
		{"b a\n", "what the two make is not in vocab.json"},
		{"a \xff\n", "merges.txt line 1 is no valid UTF-8"},
	};
	for (size_t i = 0; i < COUNT_OF(lies); i++) {
		put_vocab(VOCAB, lies[i].merges, NULL);
		cr_assert(strstr(ids_of("a", 0), lies[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), lies[i].wanted);
	}
}

Test(vocab_files, lies_of_the_vocabulary_are_told_by_token)
{
	static const struct {
		const char *vocab;
		const char *wanted;
	} lies[] = {
		{"{\"a\":0,\"b\":1", "vocab.json: "},
		{"", "vocab.json: "},
		{"[\"a\"]", "vocab.json must hold an object"},
		{"{}", "vocab.json must hold an object"},
		{"{\"a\":\"0\"}", "vocab.json: the id of \"a\" must be a number"},
		{"{\"a\":-1}", "vocab.json: the id of \"a\" must be a number"},
		{"{\"a\":1.5}", "vocab.json: the id of \"a\" must be a number"},
		{"{\"a\":0,\"b\":0}", "vocab.json: \"a\" and \"b\" have the same id, 0"},
		{"{\"a\":0,\"a\":1}", "vocab.json: \"a\" is there twice"},
		{"{\"a\":0,\"b\":70000}", "vocab.json: the id 70000 is out of range for 2 tokens"},
		{"{\"a\":18446744073709551615}", "is out of range"},
		{"{\"a\\u0000\":0}", "has a NUL in it"},
		{"{\"\xff\":0}", "vocab.json: "},
	};
	for (size_t i = 0; i < COUNT_OF(lies); i++) {
		put_vocab(lies[i].vocab, "", NULL);
		cr_assert(strstr(ids_of("a", 0), lies[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), lies[i].wanted);
	}
	put_vocab("{\"a\":3,\"b\":9}", "", NULL); /* holes are none; what is added goes behind the highest */
	cr_assert_str_eq(ids_of("ba<|endoftext|>", 0), "9 3 10|<|endoftext|>|<|endoftext|>");
}

Test(vocab_files, tokens_around_a_text_are_as_the_files_say)
{
	static const struct {
		struct file others[FILES_MAX];
		const char *wanted; /* of "a<x> b" */
	} rows[] = {
		{{{0}}, "0 4 1|<|endoftext|>|<|endoftext|>"}, /* what is not in the vocabulary vanishes, as in
								 the Hugging Face library */
		{{{"tokenizer_config.json",
		   "{" GPT2 ",\"add_bos_token\":true,\"add_eos_token\":true,\"eos_token\":\"b\"}"}},
		 "5 0 4 1 1|<|endoftext|>|b"},
		{{{"tokenizer_config.json", "{" GPT2 ",\"add_bos_token\":true,\"bos_token\":null}"}},
		 "0 4 1||<|endoftext|>"},
		{{{"tokenizer_config.json", "{" GPT2 ",\"add_prefix_space\":true,\"pad_token\":{\"content\":"
					    "\"<x>\",\"__type\":\"AddedToken\"}}"}},
		 "4 0 8 4 1|<|endoftext|>|<|endoftext|>"},
		{{{"special_tokens_map.json", "{\"bos_token\":{\"content\":\"<x>\",\"rstrip\":true}}"}},
		 "0 8 1|<x>|<|endoftext|>"},
		{{{"added_tokens.json", "{\"<x>\":11}"}}, "0 11 4 1|<|endoftext|>|<|endoftext|>"},
		{{{"tokenizer_config.json", "{" GPT2 ",\"bos_token\":\"a\"}"},
		  {"special_tokens_map.json", "{\"bos_token\":\"b\"}"}},
		 "0 4 1|b|<|endoftext|>"},
		/* a file with added_tokens_decoder is a newer one: the map and added_tokens.json are not
		   asked */
		{{{"tokenizer_config.json", "{" GPT2 ",\"bos_token\":\"a\",\"added_tokens_decoder\":{\"9\":{"
					    "\"content\":\"<x>\",\"lstrip\":true}}}"},
		  {"special_tokens_map.json", "{\"bos_token\":\"b\"}"},
		  {"added_tokens.json", "{\"<x>\":11}"}},
		 "0 9 4 1|a|<|endoftext|>"},
		{{{"tokenizer_config.json", "{" GPT2 ",\"additional_special_tokens\":[\"<y>\",{\"content\":"
					    "\"<x>\"}],\"image_token\":\"<i>\"}"}},
		 "0 10 4 1|<|endoftext|>|<|endoftext|>"},
		{{{"tokenizer_config.json",
		   "{\"tokenizer_class\":\"RobertaTokenizerFast\",\"cls_token\":\"a\",\"sep_token\":\"b\"}"}},
		 "0 0 4 1 1|<s>|</s>"},
		{{{"config.json", "{\"model_type\":\"qwen2\",\"x\":Infinity}"}}, "0 4 1||<|endoftext|>"},
	};
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		put_vocab(VOCAB, MERGES, rows[i].others);
		cr_assert_str_eq(ids_of("a<x> b", TEXT_ADD_SPECIAL), rows[i].wanted, "row %zu: %s", i,
				 ids_of("a<x> b", TEXT_ADD_SPECIAL));
		remove_folder();
		strcpy(folder + strlen(folder) - 6, "XXXXXX");
		make_folder();
	}
}

Test(vocab_files, what_other_files_contradict_is_refused)
{
	static const struct {
		struct file others[FILES_MAX];
		const char *wanted;
	} rows[] = {
		{{{"tokenizer_config.json", "{\"tokenizer_class\":\"CLIPTokenizer\"}"}},
		 "class CLIPTokenizer is not supported (supported: GPT2Tokenizer"},
		{{{"tokenizer_config.json", "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}"}},
		 "class PreTrainedTokenizerFast is not supported"},
		{{{"config.json", "{\"tokenizer_class\":\"MarianTokenizer\"}"}},
		 "class MarianTokenizer is not supported"},
		{{{"config.json", "{\"model_type\":\"whisper\"}"}}, "type \"whisper\" has is not known"},
		{{{"added_tokens.json", "{\"<x>\":0}"}},
		 "the added token \"<x>\" has the id 0, which is that of \"a\""},
		{{{"added_tokens.json", "{\"<x>\":8,\"<y>\":8}"}},
		 "the added tokens \"<x>\" and \"<y>\" have the same id, 8"},
		{{{"added_tokens.json", "{\"<x>\":\"8\"}"}},
		 "added_tokens.json: the id of \"<x>\" must be a number"},
		{{{"added_tokens.json", "{\"<x>\":900000}"}}, "900000"},
		{{{"added_tokens.json", "{\"<x>\""}}, "added_tokens.json"},
		{{{"added_tokens.json", "[\"<x>\"]"}}, "added_tokens.json must hold an object"},
		{{{"tokenizer_config.json", "{\"added_tokens_decoder\":[3]}"}},
		 "added_tokens_decoder must be an object, got array"},
		{{{"tokenizer_config.json", "[1]"},
		  {"special_tokens_map.json", "[2]"},
		  {"config.json", "[]"},
		  {"added_tokens.json", "{\"<x>\":5}"}},
		 "the added token \"<x>\" has the id 5"},
		{{{"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<x>\"}}}"}},
		 "added_tokens_decoder must be"},
		{{{"tokenizer_config.json", "{\"added_tokens_decoder\":{\"8\":\"<x>\"}}"}},
		 "added_tokens_decoder must be"},
	};
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		put_vocab(VOCAB, MERGES, rows[i].others);
		cr_assert(strstr(ids_of("a", 0), rows[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), rows[i].wanted);
		remove_folder();
		strcpy(folder + strlen(folder) - 6, "XXXXXX");
		make_folder();
	}
}

Test(vocab_files, a_folder_without_any_is_told_all_names)
{
	cr_assert_not(tokenizer_exists(folder));
	cr_assert(strstr(ids_of("a", 0),
			 "has no tokenizer: no tokenizer.json, tekken.json, tokenizer.model.v3, tokenizer.model, spiece.model, "
			 "tiktoken.model, qwen.tiktoken, vocab.json with merges.txt") != NULL);
	put("vocab.json", VOCAB, strlen(VOCAB));
	cr_assert(tokenizer_exists(folder));
	cr_assert(strstr(ids_of("a", 0), "merges.txt: No such file") != NULL, "%s", ids_of("a", 0));
}

/* ---- tekken.json ---- */

static void append_base64(struct buf *b, const char *data, size_t bytes)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	u32 bits = (u32)(u8)data[0] << 16 | (bytes > 1 ? (u32)(u8)data[1] << 8 : 0) |
		   (bytes > 2 ? (u8)data[2] : 0);
	for (u32 k = 0; k < 4; k++)
		buf_append_char(b, k <= bytes ? digits[bits >> (18 - 6 * k) & 63] : '=');
}

/* The bytes, then `more` tokens of up to three bytes; `special` as JSON, or NULL. */
static void put_tekken(const char *config, const char *const *more, const char *special)
{
	struct buf json = {0};
	buf_printf(&json, "{\"config\":{\"pattern\":\"" PATTERN "\",%s},\"vocab\":[", config);
	for (u32 rank = 0;; rank++) {
		char byte = (char)rank;
		const char *token = rank < 256 ? &byte : more[rank - 256];
		if (token == NULL)
			break;
		buf_printf(&json, "%s{\"rank\":%u,\"token_bytes\":\"", rank > 0 ? "," : "", rank);
		append_base64(&json, token, rank < 256 ? 1 : strlen(token));
		buf_append_str(&json, "\",\"token_str\":null}");
	}
	buf_printf(&json, "]%s%s}", special != NULL ? ",\"special_tokens\":" : "",
		   special != NULL ? special : "");
	put("tekken.json", buf_cstr(&json), json.bytes);
	buf_fini(&json);
}

#define SIZES(vocab, special) \
	"\"default_vocab_size\":" #vocab ",\"default_num_special_tokens\":" #special ",\"version\":"
static const char *const tokens[] = {"ab", "abb", "bc", NULL};

Test(vocab_files, ids_of_tekken_are_special_tokens_then_ranks)
{
	put_tekken(SIZES(281, 22) "\"v3\"", tokens, NULL); /* as old files: 20 names, the rest filled up */
	cr_assert_str_eq(ids_of("abbc bc", 0), "279 121 54 280|<s>|</s>");
	cr_assert_str_eq(ids_of("[INST]<SPECIAL_20><SPECIAL_21>ab<pad><SPECIAL_22", TEXT_ADD_SPECIAL),
			 "1 3 20 21 278 11 82 105 102 91 89 95 87 98 117 72 72|<s>|</s>");
	put_tekken(SIZES(280, 22) "\"v3\"", tokens, NULL); /* cut */
	cr_assert_str_eq(ids_of("abbc bc", 0), "279 121 54 120 121|<s>|</s>");
	put_tekken(SIZES(262, 4) "\"v13\"", tokens,
		   "[{\"rank\":1,\"token_str\":\"<s>\"},{\"rank\":0,\"token_str\":\"[T]\"},{\"rank\":2,"
		   "\"token_str\":\"</s>\"}]");
	cr_assert_str_eq(ids_of("[T]ab<SPECIAL_3>", TEXT_ADD_SPECIAL), "1 0 260 3|<s>|</s>");
	static const char config[] = "{\"add_bos_token\":false,\"eos_token\":\"[T]\"}";
	put("tokenizer_config.json", config, sizeof(config) - 1);
	cr_assert_str_eq(ids_of("ab", TEXT_ADD_SPECIAL), "260|<s>|[T]");
}

Test(vocab_files, tekken_stands_behind_tokenizer_json_and_before_the_others)
{
	static const char json[] =
		"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"ab\":7},\"unk_token\":\"ab\"}}";
	put_vocab(VOCAB, MERGES, NULL);
	put_tekken(SIZES(281, 22) "\"v3\"", tokens, NULL);
	cr_assert_str_eq(ids_of("ab", 0), "278|<s>|</s>");
	put("tokenizer.json", json, sizeof(json) - 1);
	cr_assert_str_eq(ids_of("ab", 0), "7||");
}

Test(vocab_files, lies_of_tekken_are_told)
{
	static const char *const twice[] = {"ab", "ab", NULL}, *const collides[] = {"<s>", NULL};
	static const char listed[] = "[{\"rank\":0,\"token_str\":\"<s>\"}]";
	static const struct {
		const char *config;
		const char *const *more;
		const char *special;
		const char *wanted;
	} lies[] = {
		{SIZES(281, 22) "\"v11\"", tokens, NULL, "\"special_tokens\" is missing"},
		{SIZES(281, 22) "3", tokens, NULL, "\"special_tokens\" is missing"},
		{SIZES(270, 11) "\"v3\"", tokens, NULL, "config.default_num_special_tokens is 11"},
		{SIZES(282, 22) "\"v3\"", tokens, NULL, "must be between 278 and 281"},
		{SIZES(200, 22) "\"v3\"", tokens, NULL, "must be between 278 and 281"},
		{SIZES(281, 70000) "\"v3\"", tokens, NULL,
		 "config.default_num_special_tokens must be a number up to 65536"},
		{SIZES("x", 22) "\"v3\"", tokens, NULL, "config.default_vocab_size must be a number"},
		{SIZES(259, 1) "\"v13\"", twice, listed, "vocab[257] is the same token as vocab[256]"},
		{SIZES(258, 1) "\"v13\"", collides, listed, "vocab[256] is the special token \"<s>\""},
		{SIZES(259, 1) "\"v13\"", tokens, "{}",
		 "\"special_tokens\" must be an array of at most 1 tokens"},
		{SIZES(259, 1) "\"v13\"", tokens, "[{\"rank\":0,\"token_str\":\"\"}]",
		 "each needs \"rank\" and \"token_str\""},
		{SIZES(259, 1) "\"v13\"", tokens, "[{\"rank\":1,\"token_str\":\"a\"}]",
		 "the rank 1 of \"a\" is out of range"},
		{SIZES(260, 2) "\"v13\"", tokens,
		 "[{\"rank\":0,\"token_str\":\"x\"},{\"rank\":0,\"token_str\":\"y\"}]",
		 "the rank 0 of \"y\" is there twice"},
		{SIZES(260, 2) "\"v13\"", tokens,
		 "[{\"rank\":0,\"token_str\":\"x\"},{\"rank\":1,\"token_str\":\"x\"}]",
		 "is the token of the ranks 0 and 1"},
		{SIZES(260, 2) "\"v13\"", tokens, "[{\"rank\":0,\"token_str\":\"<SPECIAL_1>\"}]",
		 "is the token of the ranks 0 and 1"},
		{SIZES(259, 1) "\"v13\"", tokens, "[{\"rank\":0,\"token_str\":\"x\"}]",
		 "vocab[120] is the special token \"x\""},
		{SIZES(257, 1) "\"v13\"", tokens, "[{\"rank\":0,\"token_str\":\"<x>\"}]",
		 "the token \"<s>\" that goes around every text"},
	};
	for (size_t i = 0; i < COUNT_OF(lies); i++) {
		put_tekken(lies[i].config, lies[i].more, lies[i].special);
		cr_assert(strstr(ids_of("a", 0), lies[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), lies[i].wanted);
	}
}

Test(vocab_files, damaged_tekken_is_refused_with_the_part)
{
	static const struct {
		const char *text;
		const char *wanted;
	} lies[] = {
		{"", "tekken.json"},
		{"{\"config\":", "tekken.json"},
		{"[]", "must hold an object \"config\" and an array \"vocab\""},
		{"{\"config\":{},\"vocab\":{}}", "must hold an object \"config\""},
		{"{\"config\":{\"pattern\":\"\"},\"vocab\":[]}",
		 "config.pattern must be a regular expression"},
		{"{\"config\":{\"pattern\":\"a\"},\"vocab\":[]}",
		 "config.default_vocab_size must be a number"},
		{"{\"config\":{\"pattern\":\"a\",\"default_vocab_size\":5,\"default_num_special_tokens\":1},"
		 "\"vocab\":[]}",
		 "must be between"},
	};
	for (size_t i = 0; i < COUNT_OF(lies); i++) {
		put("tekken.json", lies[i].text, strlen(lies[i].text));
		cr_assert(strstr(ids_of("a", 0), lies[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), lies[i].wanted);
	}
}

/* One token of an otherwise right file, as JSON. */
static void put_with(u32 at, const char *entry)
{
	struct buf json = {0};
	buf_append_str(&json,
		       "{\"config\":{\"pattern\":\"" PATTERN "\"," SIZES(276, 20) "\"v3\"},\"vocab\":[");
	for (u32 rank = 0; rank < 256; rank++) {
		char byte = (char)rank;
		buf_append_str(&json, rank > 0 ? "," : "");
		if (rank == at) {
			buf_append_str(&json, entry);
			continue;
		}
		buf_printf(&json, "{\"rank\":%u,\"token_bytes\":\"", rank);
		append_base64(&json, &byte, 1);
		buf_append_str(&json, "\"}");
	}
	buf_append_str(&json, "]}");
	put("tekken.json", buf_cstr(&json), json.bytes);
	buf_fini(&json);
}

Test(vocab_files, tokens_of_tekken_are_checked)
{
	static const struct {
		const char *entry;
		const char *wanted;
	} lies[] = {
		{"{\"rank\":4,\"token_bytes\":\"Aw==\"}", "vocab[3]: \"rank\" must be 3"},
		{"{\"token_bytes\":\"Aw==\"}", "vocab[3]: \"rank\" must be 3"},
		{"3", "vocab[3]: \"rank\" must be 3"},
		{"{\"rank\":3,\"token_bytes\":\"A!==\"}", "vocab[3]: \"token_bytes\" must be base64"},
		{"{\"rank\":3,\"token_bytes\":\"\"}", "vocab[3]: \"token_bytes\" must be base64"},
		{"{\"rank\":3}", "vocab[3]: \"token_bytes\" must be base64"},
		{"{\"rank\":3,\"token_bytes\":\"BQ==\"}",
		 "vocab[3]: the first 256 tokens must be the bytes in their order"},
	};
	for (size_t i = 0; i < COUNT_OF(lies); i++) {
		put_with(3, lies[i].entry);
		cr_assert(strstr(ids_of("a", 0), lies[i].wanted) != NULL, "\"%s\" instead of \"%s\"",
			  ids_of("a", 0), lies[i].wanted);
	}
	put_with(256, "");
	cr_assert_str_eq(ids_of("a", 0), "117|<s>|</s>");
}

/* ---- streams and bytes ---- */

Test(vocab_files, bytes_that_are_no_utf8_are_replaced_and_special_tokens_left_out)
{
	static const u32 ids[] = {1, 0xe4 + 22, 0xbd + 22, 0xa0 + 22, 0xff + 22, 2, 0xe4 + 22};
	struct tokenizer *t = NULL;
	struct err_msg em = {.text = ""};
	struct buf all = {0}, skipped = {0};
	put_tekken(SIZES(281, 22) "\"v3\"", tokens, NULL);
	cr_assert(tokenizer_load(&t, folder, &em) == ERR_OK, "%s", em.text);
	tokenizer_decode(t, ids, COUNT_OF(ids), false, &all);
	tokenizer_decode(t, ids, COUNT_OF(ids), true, &skipped);
	cr_assert_str_eq(buf_cstr(&all), "<s>\xe4\xbd\xa0\xef\xbf\xbd</s>\xef\xbf\xbd");
	cr_assert_str_eq(buf_cstr(&skipped), "\xe4\xbd\xa0\xef\xbf\xbd\xef\xbf\xbd");
	cr_assert(tokenizer_is_special(t, 21) && !tokenizer_is_special(t, 22));
	cr_assert_eq(tokenizer_vocab_size(t), 281u);
	buf_fini(&all);
	buf_fini(&skipped);
	tokenizer_free(&t);
}

/* ---- tokenizer.model.v3 ---- */

static void put_piece(struct buf *model, const char *text, float score, char type)
{
	const char head[] = {0x0a, (char)(2 + strlen(text) + 5 + 2), 0x0a, (char)strlen(text)}, tail[] = {0x18, type};
	buf_append(model, head, sizeof(head));
	buf_append_str(model, text);
	buf_append_char(model, 0x15);
	buf_append(model, &score, sizeof(score));
	buf_append(model, tail, sizeof(tail));
}

/* BPE, with a space in front of texts and spaces kept. */
static void put_pieces(const char *name)
{
	static const char settings[] = {0x12, 0x02, 0x18, 0x02, 0x1a, 0x06, 0x18, 0x01, 0x20, 0x00, 0x28, 0x01};
	static const char *const special[] = {"<s>", "</s>", "[INST]", "[/INST]"}, *const usual[] = {"\xe2\x96\x81", "a", "b", "\xe2\x96\x81" "a"};
	struct buf model = {0};
	put_piece(&model, "<unk>", 0, 2);
	for (size_t i = 0; i < COUNT_OF(special); i++)
		put_piece(&model, special[i], 0, 3);
	for (size_t i = 0; i < COUNT_OF(usual); i++)
		put_piece(&model, usual[i], i == 3 ? -1 : -2, 1);
	buf_append(&model, settings, sizeof(settings));
	put(name, model.data, model.bytes);
	buf_fini(&model);
}

Test(vocab_files, what_stands_between_special_tokens_of_a_versioned_model_is_a_text_of_its_own)
{
	put_pieces("tokenizer.model");
	cr_assert_str_eq(ids_of("[INST]a[/INST]b", 0), "3 6 4 7||");
	put_pieces("tokenizer.model.v3");
	cr_assert_str_eq(ids_of("[INST]a[/INST]b", 0), "3 8 4 5 7|<s>|</s>");
	cr_assert_str_eq(ids_of("a", TEXT_ADD_SPECIAL), "1 8|<s>|</s>");
	cr_assert_str_eq(ids_of("a[INST][/INST] a", 0), "8 3 4 5 8|<s>|</s>");
	put("tokenizer_config.json", "{\"legacy\": false, \"bos_token\": \"</s>\"}", strlen("{\"legacy\": false, \"bos_token\": \"</s>\"}"));
	cr_assert_str_eq(ids_of("[INST]a[/INST]b", 0), "3 6 4 7|</s>|</s>", "what the configuration says counts");
}

Test(vocab_files, a_damaged_versioned_model_is_named)
{
	put("tokenizer.model.v3", "\x0a\x7f", 2);
	cr_assert(strstr(ids_of("a", 0), "tokenizer.model.v3: the file is no SentencePiece model"), "%s", ids_of("a", 0));
	put("tekken.json", "{", 1);
	cr_assert(strstr(ids_of("a", 0), "tekken.json"), "tekken.json goes before it");
}
