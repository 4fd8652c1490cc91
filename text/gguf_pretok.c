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

/* Letters of scripts with upper and lower case, but for some, as a list of them has it. */
#define CASED_LETTERS \
	"A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}" \
	"\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}" \
	"\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-" \
	"\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-" \
	"\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-" \
	"\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}" \
	"\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-" \
	"\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}" \
	"\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}" \
	"\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
/* As of DeepSeek V3: words with one sign in front, or as one of ASCII, which has no space in front of it. */
#define SIGNED_WORDS \
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_AND_SPACES
/* Of words but those in Han characters, which are apart. */
#define NO_HAN(set) "[" set "&&[^\\p{Han}]]"
#define KIMI_UPPER NO_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define KIMI_LOWER NO_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")
#define KIMI \
	"[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" \
	CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
/* Digits by threes from the end. */
#define THREES_FROM_END "\\p{N}{1,2}(?=(?:\\p{N}{3})+(?!\\p{N}))|\\p{N}{1,3}"
/* Han, Japanese, Thai, Lao, Khmer, Burmese and Korean. */
#define SCRIPTS_WITHOUT_SPACES \
	"[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}" \
	"\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+"
/* Korean, signs that go with it and with Chinese, Bopomofo, Chinese and Japanese. */
#define EAST_ASIAN_RUNS \
	"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}" \
	"\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
/* Korean words with single spaces between them are one. */
#define SPACED_WORDS \
	CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
/* Spaces by powers of two. */
#define POWERS_OF_SPACES \
	CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)" \
	"|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"

/* Words end at spaces and signs of some scripts. */
#define UNTIL_SIGNS " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

/* clang-format off */
static const struct gguf_pretok PRETOKS[] = {
	{"llama-bpe", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"llama3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"llama-v3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"falcon3", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"falcon-h1", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
	{"midm-2.0", {WORDS("\\p{N}{1,3}")}, .whole_words = true, .bos = true},
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
	{"solar-open", {WORDS("\\p{N}")}},
	{"minicpm5", {"\\p{N}{1,3}", WORDS("\\p{N}+")}, .whole_words = true},
	{"jais-2", {POWERS_OF_SPACES}},
	{"exaone-moe", {SPACED_WORDS}},
	{"kimi-k2", {KIMI}, .whole_words = true},
	{"youtu", {EAST_ASIAN_RUNS, CASED_WORDS(CONTRACTIONS "?", "\\p{N}")}, .whole_words = true},
	{"afmoe", {THREES_FROM_END, SCRIPTS_WITHOUT_SPACES, SIGNED_WORDS}},
	{"seed-coder",
	 {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES_AND_SPACES}},
	{"bailingmoe", {BAILING}},
	{"bailingmoe2", {BAILING}},
	{"bloom", {UNTIL_SIGNS}},
	{"gpt3-finnish", {UNTIL_SIGNS}},
	{"poro-chat", {UNTIL_SIGNS}},
	{"qwen35", {MARKED_WORDS}, .nfc = true},
	{"gpt-4o", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"minimax-m2", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"llama4", {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
	{"tekken", {CASED_WORDS("", "\\p{N}")}, .whole_words = true, .bos = true},
	{"deepseek-v3", {"\\p{N}{1,3}", HAN_AND_KANA, SIGNED_WORDS}},
	{"hunyuan-dense", {"\\p{N}{1,3}", HAN_AND_KANA, SIGNED_WORDS}},
	{"deepseek-llm",
	 {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+", "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "\\s+$", HAN_AND_HANGUL},
	 .digits = true},
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
	{"a.x-4.0", .gpt2 = true},
	{"granite-docling", .gpt2 = true},
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
