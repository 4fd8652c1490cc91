/* Owns the single steps of decoding that work text by text, and their reading from tokenizer.json. Runs in the
 * detokenizer, the gateway and the tercet command. Never keeps state between texts. */
#include "text/decoder_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/normalize_priv.h"
#include "text/unicode_priv.h"

static void each_replace(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
			 struct buf *out)
{
	(void)first, (void)last;
	struct regex_scratch s = {0};
	/* Only a regex needs scratch; decoders with one are rare, and they run over the vocabulary while loading. */
	if (d->pattern.regex.code != NULL && regex_scratch_init(&s) != ERR_OK) {
		out->failed = true;
		return;
	}
	struct pattern_iter it = {0};
	size_t at = 0, begin, end;
	while (pattern_next(&d->pattern, &s, text, bytes, &it, &begin, &end) == ERR_OK) {
		buf_append(out, text + at, begin - at);
		buf_append(out, d->text, d->text_bytes);
		at = end;
	}
	buf_append(out, text + at, bytes - at);
	regex_scratch_fini(&s);
}

static void each_strip(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
		       struct buf *out)
{
	(void)first, (void)last;
	size_t from = 0, to = bytes;
	for (u32 i = 0; i < d->start && from < bytes; i++) {
		size_t next = from;
		if (unicode_next(text, &next) != d->mark)
			break;
		from = next;
	}
	for (u32 i = 0; i < d->stop && to > from; i++) {
		size_t before = unicode_prev(text, to), next = before;
		if (unicode_next(text, &next) != d->mark)
			break;
		to = before;
	}
	buf_append(out, text + from, to - from);
}

static void each_metaspace(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
			   struct buf *out)
{
	(void)last;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		if (unicode_next(text, &at) != d->mark)
			buf_append(out, text + from, at - from);
		else if (!first || d->keep_first_mark)
			buf_append_char(out, ' ');
	}
}

static void replace_all(struct buf *b, size_t from, const char *what, const char *with)
{
	size_t what_bytes = strlen(what), with_bytes = strlen(with);
	for (size_t at = from; at + what_bytes <= b->bytes;) {
		char *hit = memmem(b->data + at, b->bytes - at, what, what_bytes);
		if (hit == NULL)
			return;
		memcpy(hit, with, with_bytes);
		memmove(hit + with_bytes, hit + what_bytes,
			(size_t)(b->data + b->bytes - (hit + what_bytes)));
		b->bytes -= what_bytes - with_bytes;
		at = (size_t)(hit - b->data) + with_bytes;
	}
}

/* The spaces that English typography does not have. Every replacement is shorter than what it replaces. */
void decoder_clean_up(struct buf *b, size_t from)
{
	static const char *const rules[][2] = {
		{" .", "."},	 {" ?", "?"},	  {" !", "!"},	   {" ,", ","},	      {" ' ", "'"},   {" n't", "n't"},
		{" 'm", "'m"},	 {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
	};
	for (size_t i = 0; i < COUNT_OF(rules) && !b->failed; i++)
		replace_all(b, from, rules[i][0], rules[i][1]);
}

static void each_wordpiece(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
			   struct buf *out)
{
	(void)last;
	size_t from = out->bytes;
	if (!first && bytes >= d->text_bytes && memcmp(text, d->text, d->text_bytes) == 0) {
		text += d->text_bytes;
		bytes -= d->text_bytes;
	} else if (!first) {
		buf_append_char(out, ' ');
	}
	buf_append(out, text, bytes);
	if (d->cleanup)
		decoder_clean_up(out, from);
}

static void each_suffix(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
			struct buf *out)
{
	(void)first;
	struct pattern_iter it = {0};
	struct pattern suffix = {.string = d->text, .string_bytes = d->text_bytes};
	size_t at = 0, begin, end;
	while (pattern_next(&suffix, NULL, text, bytes, &it, &begin, &end) == ERR_OK) {
		buf_append(out, text + at, begin - at);
		if (!last)
			buf_append_char(out, ' ');
		at = end;
	}
	buf_append(out, text + at, bytes - at);
}

static void each_join(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
		      struct buf *out)
{
	(void)d, (void)last;
	if (!first)
		buf_append_char(out, ' ');
	buf_append(out, text, bytes);
}

/* ---- loading ---- */

static enum err take_string(struct decode_step *d, json_val v, const char *key, const char *fallback,
			    struct err_msg *em)
{
	const char *text = fallback;
	size_t bytes = fallback != NULL ? strlen(fallback) : 0;
	if (!json_string(json_get(v, key), &text, &bytes) && fallback == NULL)
		return err_set(em, ERR_FORMAT, "decoder %s: \"%s\" must be a string",
			       json_cstr(json_get(v, "type"), "?"), key);
	d->text = malloc(bytes + 1);
	if (d->text == NULL)
		return ERR_NO_MEMORY;
	memcpy(d->text, text, bytes);
	d->text[bytes] = '\0';
	d->text_bytes = bytes;
	return ERR_OK;
}

static enum err take_mark(struct decode_step *d, json_val v, const char *key, const char *fallback, struct err_msg *em)
{
	const char *text = json_cstr(json_get(v, key), fallback);
	size_t at = 0;
	if (text[0] == '\0' || strlen(text) != unicode_bytes((u8)text[0]))
		return err_set(em, ERR_FORMAT, "decoder %s: \"%s\" must be one character",
			       json_cstr(json_get(v, "type"), "?"), key);
	d->mark = unicode_next(text, &at);
	return ERR_OK;
}

static enum err load_replace(struct decode_step *d, json_val v, struct err_msg *em)
{
	d->each = each_replace;
	enum err e = take_string(d, v, "content", NULL, em);
	return e != ERR_OK ? e : pattern_load(&d->pattern, json_get(v, "pattern"), "decoder Replace", em);
}

static enum err load_strip(struct decode_step *d, json_val v, struct err_msg *em)
{
	d->each = each_strip;
	uint64_t start = 0, stop = 0;
	(void)json_uint(json_get(v, "start"), &start);
	(void)json_uint(json_get(v, "stop"), &stop);
	if (start > 1u << 20 || stop > 1u << 20)
		return err_set(em, ERR_FORMAT, "decoder Strip: \"start\" and \"stop\" must be at most %u", 1u << 20);
	d->start = (u32)start;
	d->stop = (u32)stop;
	return take_mark(d, v, "content", " ", em);
}

static enum err load_metaspace(struct decode_step *d, json_val v, struct err_msg *em)
{
	d->each = each_metaspace;
	bool prefix = true;
	(void)json_bool(json_get(v, "add_prefix_space"), &prefix);
	d->keep_first_mark =
		strcmp(json_cstr(json_get(v, "prepend_scheme"), prefix ? "always" : "never"), "never") == 0;
	d->first_differs = !d->keep_first_mark;
	return take_mark(d, v, "replacement", "\xe2\x96\x81", em);
}

static enum err load_wordpiece(struct decode_step *d, json_val v, struct err_msg *em)
{
	d->each = each_wordpiece;
	d->first_differs = d->prefixes = true;
	d->cleanup = true;
	(void)json_bool(json_get(v, "cleanup"), &d->cleanup);
	return take_string(d, v, "prefix", "##", em);
}

static enum err load_suffix(struct decode_step *d, json_val v, struct err_msg *em)
{
	d->each = each_suffix;
	d->last_differs = true;
	return take_string(d, v, "suffix", "</w>", em);
}

static enum err load_byte_level(struct decode_step *d, json_val v, struct err_msg *em)
{
	(void)v, (void)em;
	d->kind = DECODE_BYTE_LEVEL;
	return ERR_OK;
}

static enum err load_byte_fallback(struct decode_step *d, json_val v, struct err_msg *em)
{
	(void)v, (void)em;
	d->kind = DECODE_BYTE_FALLBACK;
	return ERR_OK;
}

static enum err load_fuse(struct decode_step *d, json_val v, struct err_msg *em)
{
	(void)v, (void)em;
	d->kind = DECODE_FUSE;
	return ERR_OK;
}

struct decode_type {
	const char *name;
	enum err (*load)(struct decode_step *d, json_val v, struct err_msg *em);
};
static const struct decode_type decode_types[] = {
	{"ByteLevel", load_byte_level}, {"ByteFallback", load_byte_fallback}, {"Fuse", load_fuse},
	{"Replace", load_replace},      {"Strip", load_strip},                {"Metaspace", load_metaspace},
	{"WordPiece", load_wordpiece},  {"BPEDecoder", load_suffix},
};

enum err decode_step_load(struct decode_step *d, json_val v, struct err_msg *em)
{
	const char *type = json_cstr(json_get(v, "type"), "");
	*d = (struct decode_step){0};
	for (size_t i = 0; i < COUNT_OF(decode_types); i++)
		if (strcmp(type, decode_types[i].name) == 0)
			return decode_types[i].load(d, v, em);
	return err_set(em, ERR_UNSUPPORTED, "decoder type \"%.64s\" is not supported", type);
}

void decode_step_join(struct decode_step *d)
{
	*d = (struct decode_step){.each = each_join, .first_differs = true, .prefixes = true};
}

void decode_step_fini(struct decode_step *d)
{
	pattern_fini(&d->pattern);
	free(d->text);
	*d = (struct decode_step){0};
}
