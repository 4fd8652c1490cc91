/* Small tokenizers made on the spot: every part of tokenizer.json can be given, the vocabulary is ours. */
#ifndef TERCET_TESTS_TEXT_FIXTURES_H
#define TERCET_TESTS_TEXT_FIXTURES_H

#include <stdio.h>
#include <stdlib.h>

#include "text/text.h"
#include "text/unicode_priv.h"

/* JSON values; NULL means null. */
struct fixture {
	const char *normalizer;
	const char *pre_tokenizer;
	const char *post_processor;
	const char *decoder;
	const char *added_tokens; /* NULL: [] */
	const char *model_fields; /* "\"ignore_merges\": true, " */
	bool byte_level;          /* tokens are GPT-2's stand-ins for bytes; otherwise characters with <0xXX> */
};

#define FIXTURE_LLAMA                                                                                        \
	{                                                                                                    \
		.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"            \
			      "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}",  \
		.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"   \
			   "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":" \
			   "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"                              \
	}
#define FIXTURE_GPT2                                                                                         \
	{                                                                                                    \
		.byte_level = true,                                                                          \
		.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}",  \
		.decoder = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}"          \
	}
#define FIXTURE_METASPACE                                                                                    \
	{                                                                                                    \
		.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"," \
				 "\"split\":true}",                                                           \
		.decoder = "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}"      \
	}
#define FIXTURE_GEMMA                                                                                        \
	{                                                                                                    \
		.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}",       \
		.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"             \
				 "\"MergedWithPrevious\",\"invert\":false}",                                  \
		.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"   \
			   "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"     \
	}
#define FIXTURE_WORDPIECE_DECODER                                                                            \
	{                                                                                                    \
		.pre_tokenizer = "{\"type\":\"BertPreTokenizer\"}",                                            \
		.normalizer = "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true," \
			      "\"strip_accents\":null,\"lowercase\":true}",                                   \
		.decoder = "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"                      \
	}
#define FIXTURE_PLAIN {.decoder = NULL}

static inline void fixture_bytes(struct buf *json, u32 *id)
{
	for (u32 i = 0; i < 256; i++) {
		u32 c = byte_level_char((u8)i);
		buf_printf(json, "%s\"", i > 0 ? "," : "");
		if (c == '"' || c == '\\')
			buf_append_char(json, '\\');
		char utf8[2] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
		buf_append(json, utf8, c < 0x80 ? 1 : 2);
		buf_printf(json, "\":%u", (*id)++);
	}
}

static inline void fixture_chars(struct buf *json, u32 *id)
{
	buf_append_str(json, "\"<unk>\":0");
	*id = 1;
	for (u32 i = 0; i < 256; i++)
		buf_printf(json, ",\"<0x%02X>\":%u", i, (*id)++);
	for (char c = 32; c < 127; c++)
		if (c != '"' && c != '\\')
			buf_printf(json, ",\"%c\":%u", c, (*id)++);
	buf_printf(json, ",\"\xe2\x96\x81\":%u,\"\xc3\xa9\":%u", *id, *id + 1);
	*id += 2;
}

/* A few merges, so that there is something to merge. */
static inline void fixture_merges(struct buf *json, struct buf *merges, const char *space, u32 *id)
{
	const char *const pairs[][2] = {{"h", "e"}, {"l", "l"}, {"t", "he"}, {space, "the"}, {"he", "ll"},
					{"hell", "o"}, {space, "hello"}, {"a", "a"}, {"aa", "aa"}, {space, space}};
	for (size_t i = 0; i < COUNT_OF(pairs); i++) {
		buf_printf(json, ",\"%s%s\":%u", pairs[i][0], pairs[i][1], (*id)++);
		buf_printf(merges, "%s[\"%s\",\"%s\"]", i > 0 ? "," : "", pairs[i][0], pairs[i][1]);
	}
}

static inline void fixture_json(const struct fixture *f, struct buf *json)
{
	struct buf merges = {0};
	u32 id = 0;
#define OR_NULL(x) ((x) != NULL ? (x) : "null")
	buf_printf(json, "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,",
		   f->added_tokens != NULL ? f->added_tokens : "[]", OR_NULL(f->normalizer), OR_NULL(f->pre_tokenizer),
		   OR_NULL(f->post_processor), OR_NULL(f->decoder));
#undef OR_NULL
	buf_printf(json, "\"model\":{\"type\":\"BPE\",%s%s\"vocab\":{", f->model_fields != NULL ? f->model_fields : "",
		   f->byte_level ? "" : "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,");
	if (f->byte_level)
		fixture_bytes(json, &id);
	else
		fixture_chars(json, &id);
	fixture_merges(json, &merges, f->byte_level ? "\xc4\xa0" : "\xe2\x96\x81", &id);
	buf_printf(json, "},\"merges\":[%s]}}", buf_cstr(&merges));
	buf_fini(&merges);
}

/* Aborts with the message when the fixture does not load. */
static inline struct tokenizer *fixture_load(const struct fixture *f)
{
	struct buf json = {0};
	struct err_msg em = {.text = ""};
	struct tokenizer *t;
	fixture_json(f, &json);
	if (tokenizer_parse(&t, buf_cstr(&json), json.bytes, &em) != ERR_OK) {
		fprintf(stderr, "fixture: %s\n", em.text);
		abort();
	}
	buf_fini(&json);
	return t;
}

#endif
