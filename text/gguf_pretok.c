/* Owns the table of the ways in which byte-level models cut their text: files in GGUF hold only a name for it, and what it
 * stands for is in the tokenizer.json of the family's first model. Runs once while a model is imported. */
#include <stdio.h>
#include <string.h>

#include "text/gguf_priv.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* As of tiktoken's cl100k: words with one sign in front, numbers, signs with the ends of lines behind them. */
#define WORDS(digits) \
	CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
/* As of o200k: a change from lower to upper case begins a word. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(behind, digits) \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" behind "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" behind "|" digits \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES
#define MARKED_WORDS \
	CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES

/* Of an end of lines one alone. */
#define BAILING \
	"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

#define HAN_AND_HANGUL "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"
#define HAN_AND_KANA "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+"

/* clang-format off */
static const struct gguf_pretok PRETOKS[] = {
	{"llama-bpe", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"llama3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"llama-v3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"falcon3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"lfm2", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"pixtral", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"smaug-bpe", {WORDS("\\p{N}{1,3}")}},
	{"dbrx", {WORDS("\\p{N}{1,3}")}},
	{"chatglm-bpe", {WORDS("\\p{N}{1,3}")}},
	{"glm4", {WORDS("\\p{N}{1,3}")}},
	{"qwen2", {WORDS("\\p{N}")}, .nfc = true},
	{"megrez", {WORDS("\\p{N}")}, .nfc = true},
	{"deepseek-r1-qwen", {WORDS("\\p{N}")}},
	{"stablelm2", {WORDS("\\p{N}")}},
	{"hunyuan", {WORDS("\\p{N}")}},
	{"seed-coder",
	 {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES_AND_SPACES}},
	{"bailingmoe", {BAILING}},
	{"bailingmoe2", {BAILING}},
	{"qwen35", {MARKED_WORDS}, .nfc = true},
	{"gpt-4o", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"minimax-m2", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"llama4", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"tekken", {CASED_WORDS("", "\\p{N}")}, .whole_words = true, .bos = true},
	{"deepseek-v3",
	 {"\\p{N}{1,3}", HAN_AND_KANA,
	  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
	  "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_AND_SPACES}},
	{"hunyuan-dense",
	 {"\\p{N}{1,3}", HAN_AND_KANA,
	  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
	  "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_AND_SPACES}},
	{"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_HANGUL}, .digits = true},
	{"starcoder", .digits = true, .gpt2 = true},
	{"refact", .digits = true, .gpt2 = true},
	{"command-r", .digits = true, .gpt2 = true, .nfc = true},
	{"smollm", .digits = true, .gpt2 = true},
	{"codeshell", .digits = true, .gpt2 = true},
	{"exaone", .digits = true, .gpt2 = true},
	{"minerva-7b", .digits = true, .gpt2 = true},
	{"exaone4", .gpt2 = true},
	{"falcon", {"[0-9][0-9][0-9]"}, .gpt2 = true, .falcon = true},
	{"gpt-2", .gpt2 = true},
	{"phi-2", .gpt2 = true},
	{"mpt", .gpt2 = true},
	{"olmo", .gpt2 = true, .nfc = true},
	{"gigachat", .gpt2 = true},
	{"jais", .gpt2 = true},
	{"mellum", .gpt2 = true},
	{"trillion", .gpt2 = true},
};
/* clang-format on */

bool gguf_text_is(struct gguf_text t, const char *word)
{
	return t.bytes == strlen(word) && memcmp(t.text, word, t.bytes) == 0;
}

const struct gguf_pretok *gguf_pretok_find(struct gguf_text name)
{
	for (size_t i = 0; i < COUNT_OF(PRETOKS); i++)
		if (gguf_text_is(name, PRETOKS[i].name))
			return &PRETOKS[i];
	return NULL;
}

void gguf_pretok_names(char *out, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < COUNT_OF(PRETOKS) && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? ", " : "", PRETOKS[i].name);
}

static void begin(struct json_writer *w, const char *type)
{
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, type);
}

static void write_flag(struct json_writer *w, const char *key, bool value)
{
	json_key(w, key);
	json_write_bool(w, value);
}

static void write_split(struct json_writer *w, const char *pattern)
{
	begin(w, "Split");
	json_key(w, "pattern");
	json_object_begin(w);
	json_key(w, "Regex");
	json_write_cstr(w, pattern);
	json_object_end(w);
	json_key(w, "behavior");
	json_write_cstr(w, "Isolated");
	write_flag(w, "invert", false);
	json_object_end(w);
}

static void write_splits(struct json_writer *w, const struct gguf_pretok *p)
{
	for (size_t i = 0; i < GGUF_SPLITS_MAX && p->splits[i]; i++)
		write_split(w, p->splits[i]);
}

static void write_digits(struct json_writer *w, bool one_by_one)
{
	begin(w, "Digits");
	write_flag(w, "individual_digits", one_by_one);
	json_object_end(w);
}

static void write_byte_level(struct json_writer *w, bool pattern)
{
	begin(w, "ByteLevel");
	write_flag(w, "add_prefix_space", false);
	write_flag(w, "use_regex", pattern);
	json_object_end(w);
}

static void write_falcon(struct json_writer *w, const struct gguf_pretok *p)
{
	begin(w, "Punctuation");
	json_key(w, "behavior");
	json_write_cstr(w, "Contiguous");
	json_object_end(w);
	write_byte_level(w, p->gpt2);
	write_digits(w, false);
	write_splits(w, p);
}

void gguf_pretok_write(struct json_writer *w, const struct gguf_pretok *p)
{
	json_key(w, "normalizer");
	if (p->nfc) {
		begin(w, "NFC");
		json_object_end(w);
	} else {
		json_write_null(w);
	}
	json_key(w, "pre_tokenizer");
	begin(w, "Sequence");
	json_key(w, "pretokenizers");
	json_array_begin(w);
	if (p->falcon) {
		write_falcon(w, p);
	} else {
		write_splits(w, p);
		if (p->digits)
			write_digits(w, true);
		write_byte_level(w, p->gpt2);
	}
	json_array_end(w);
	json_object_end(w);
}
