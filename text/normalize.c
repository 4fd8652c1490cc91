/* Owns the normalizers. Runs where text is encoded. ASCII takes short cuts: no Unicode normal form changes it.
 * Allocates only in the caller's buffers. */
#include "text/normalize_priv.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/utf8.h"
#include "text/unicode_priv.h"

enum norm_flag {
	STRIP_LEFT = 1,
	STRIP_RIGHT = 2,
	BERT_CLEAN = 1,
	BERT_CJK = 2,
	NONSPACING_ONLY = 1, /* BERT drops Mn, StripAccents every mark */
};

/* Length of the ASCII prefix. */
static size_t ascii_prefix(const char *text, size_t bytes)
{
	size_t i = 0;
	for (; i + 8 <= bytes; i += 8) {
		u64 word;
		memcpy(&word, text + i, 8);
		if (word & 0x8080808080808080u)
			break;
	}
	while (i < bytes && (u8)text[i] < 0x80)
		i++;
	return i;
}

static void put_char(struct buf *out, u32 c)
{
	char utf8[4];
	buf_append(out, utf8, utf8_put(utf8, c));
}

/* Steps that go character by character: what stood for the first one ends where it ended. */
static void move_origin(size_t *origin, size_t before, size_t at, const struct buf *out)
{
	if (at == before)
		*origin = out->bytes;
}

static enum err done(const struct buf *out)
{
	return buf_ok(out) ? ERR_OK : ERR_NO_MEMORY;
}

/* ---- normal forms ---- */

/* The code below the first final consonant composes with nothing; utf8proc (2.8) takes it for none and drops it. */
enum { HANGUL_T_BASE = 0x11a7 };

/* One stretch through utf8proc; `form` is its option mask. */
static enum err map_stretch(u32 form, const char *text, size_t bytes, struct buf *out)
{
	utf8proc_int32_t stack[512], *codes = stack;
	utf8proc_ssize_t room = (utf8proc_ssize_t)COUNT_OF(stack);
	utf8proc_ssize_t n =
		utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, codes, room, form);
	if (n > room) {
		codes = malloc((size_t)n * sizeof(*codes));
		if (codes == NULL)
			return ERR_NO_MEMORY;
		n = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, codes, n, form);
	}
	for (utf8proc_ssize_t at = 0; at < n;) {
		utf8proc_ssize_t end = at + 1;
		while (end < n && codes[end] != HANGUL_T_BASE)
			end++;
		utf8proc_ssize_t left = utf8proc_normalize_utf32(codes + at, end - at, form);
		for (utf8proc_ssize_t i = at; i < at + left; i++)
			put_char(out, (u32)codes[i]);
		at = end;
	}
	if (codes != stack)
		free(codes);
	return n < 0 ? ERR_TOO_LONG : done(out);
}

/* ASCII stays; the rest goes stretch by stretch, each with the ASCII character in front of it, because a following
 * mark may compose with that. */
static enum err norm_form(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			  size_t *origin, struct buf *out)
{
	(void)s;
	if (*origin > 0 && bytes > 0) {
		size_t first = unicode_bytes((u8)text[0]); /* composing may have moved the boundary */
		while (first < *origin && first < bytes)
			first += unicode_bytes((u8)text[first]);
		enum err e = map_stretch(n->form, text, first, out);
		if (e != ERR_OK)
			return e;
		*origin = out->bytes;
		buf_clear(out);
	}
	for (size_t at = 0; at < bytes;) {
		size_t plain = ascii_prefix(text + at, bytes - at);
		if (at + plain == bytes) {
			buf_append(out, text + at, plain);
			break;
		}
		size_t keep = plain > 0 ? plain - 1 : 0;
		buf_append(out, text + at, keep);
		size_t end = at + plain;
		while (end < bytes && (u8)text[end] >= 0x80)
			end++;
		enum err e = map_stretch(n->form, text + at + keep, end - at - keep, out);
		if (e != ERR_OK)
			return e;
		at = end;
	}
	return done(out);
}

static enum err norm_lowercase(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			       size_t *origin, struct buf *out)
{
	(void)n, (void)s;
	size_t before = *origin;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		if (c < 0x80)
			buf_append_char(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
		else if (c == 0x130) /* the one character whose lower case is two */
			buf_append_str(out, "i\xcc\x87");
		else if (utf8proc_tolower((utf8proc_int32_t)c) == (utf8proc_int32_t)c)
			buf_append(out, text + from, at - from);
		else
			put_char(out, (u32)utf8proc_tolower((utf8proc_int32_t)c));
		move_origin(origin, before, at, out);
	}
	return done(out);
}

static enum err norm_strip_accents(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
				   size_t *origin, struct buf *out)
{
	(void)s;
	size_t before = *origin;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		if (c < 0x80 || !(n->form == NONSPACING_ONLY ? unicode_is_nonspacing(c) : unicode_is_mark(c)))
			buf_append(out, text + from, at - from);
		move_origin(origin, before, at, out);
	}
	return done(out);
}

/* ---- strings ---- */

static enum err norm_prepend(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			     size_t *origin, struct buf *out)
{
	(void)s;
	if (bytes > 0)
		buf_append(out, n->text, n->text_bytes);
	if (*origin > 0)
		*origin += n->text_bytes; /* what is put in front stands for the character behind it */
	buf_append(out, text, bytes);
	return done(out);
}

/* The frequent case: one byte (a space) becomes a short string. */
static enum err replace_byte(const struct norm_step *n, const char *text, size_t bytes, struct buf *out)
{
	char byte = n->pattern.string[0];
	const char *to = n->text;
	size_t width = n->text_bytes, count = 0;
	for (size_t i = 0; i < bytes; i++)
		count += text[i] == byte;
	size_t room = bytes - count + count * width;
	if (room == 0) /* nothing was there, or nothing is left: nor need there be memory */
		return ERR_OK;
	if (!buf_reserve(out, room))
		return ERR_NO_MEMORY;
	char *w = out->data + out->bytes;
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] != byte) {
			*w++ = text[i];
			continue;
		}
		memcpy(w, to, width);
		w += width;
	}
	out->bytes = (size_t)(w - out->data);
	return ERR_OK;
}

/* A replacement stands for the last character that it replaces. */
static size_t replaced_origin(const struct norm_step *n, const char *text, size_t begin, size_t end, size_t origin)
{
	if (begin > 0 || origin == 0)
		return origin;
	bool first = end > 0 && unicode_prev(text, end) < origin;
	return first ? n->text_bytes + (origin > end ? origin - end : 0) : 0;
}

static enum err norm_replace(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			     size_t *origin, struct buf *out)
{
	if (n->pattern.string_bytes == 1 && n->pattern.regex.code == NULL && (u8)n->pattern.string[0] < 0x80) {
		if (bytes > 0 && text[0] == n->pattern.string[0])
			*origin = replaced_origin(n, text, 0, 1, *origin);
		return replace_byte(n, text, bytes, out);
	}
	struct pattern_iter it = {0};
	size_t at = 0, begin, end;
	enum err e;
	while ((e = pattern_next(&n->pattern, s, text, bytes, &it, &begin, &end)) == ERR_OK) {
		if (begin == 0)
			*origin = replaced_origin(n, text, begin, end, *origin);
		buf_append(out, text + at, begin - at);
		buf_append(out, n->text, n->text_bytes);
		at = end;
	}
	buf_append(out, text + at, bytes - at);
	return e == ERR_NOT_FOUND ? done(out) : e;
}

static enum err norm_strip(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			   size_t *origin, struct buf *out)
{
	(void)s;
	size_t from = 0, to = bytes;
	while ((n->form & STRIP_LEFT) && from < to) {
		size_t next = from;
		if (!unicode_is_space(unicode_next(text, &next)))
			break;
		from = next;
	}
	while ((n->form & STRIP_RIGHT) && to > from) {
		size_t last = unicode_prev(text, to), next = last;
		if (!unicode_is_space(unicode_next(text, &next)))
			break;
		to = last;
	}
	*origin = *origin > from ? *origin - from : 0;
	buf_append(out, text + from, to - from);
	return done(out);
}

static enum err norm_byte_level(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
				size_t *origin, struct buf *out)
{
	(void)n, (void)s;
	size_t before = *origin;
	for (size_t i = 0; i < bytes; i++) {
		put_char(out, byte_level_char((u8)text[i]));
		move_origin(origin, before, i + 1, out);
	}
	return done(out);
}

static enum err norm_nmt(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			 size_t *origin, struct buf *out)
{
	(void)n, (void)s;
	size_t before = *origin;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		bool dropped = (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
			       c == 0x9f;
		bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
			     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
		if (space)
			buf_append_char(out, ' ');
		else if (!dropped)
			buf_append(out, text + from, at - from);
		move_origin(origin, before, at, out);
	}
	return done(out);
}

/* BERT's cleaning and ideograph spacing in one pass; accents and case are further steps. */
static enum err norm_bert(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			  size_t *origin, struct buf *out)
{
	(void)s;
	size_t before = *origin;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		bool blank = c == '\t' || c == '\n' || c == '\r';
		bool dropped = (n->form & BERT_CLEAN) && (c == 0 || c == 0xfffd || (!blank && unicode_is_control(c)));
		bool cjk = !dropped && (n->form & BERT_CJK) && unicode_is_cjk(c);
		if (cjk)
			buf_append_char(out, ' ');
		if (!dropped && (n->form & BERT_CLEAN) && unicode_is_space(c))
			buf_append_char(out, ' ');
		else if (!dropped)
			buf_append(out, text + from, at - from);
		if (cjk)
			buf_append_char(out, ' ');
		move_origin(origin, before, at, out);
	}
	return done(out);
}

enum err normalizer_run(const struct normalizer *n, struct regex_scratch *s, struct buf work[2], struct norm_text *t)
{
	bool first = t->origin > 0;
	for (u32 i = 0; i < n->count; i++) {
		struct buf *to = &work[i & 1];
		if (n->steps[i].run == norm_form && ascii_prefix(t->text, t->bytes) == t->bytes)
			continue;
		if (n->steps[i].first_only && !first)
			continue;
		/* A skipped step leaves the text in the buffer that is next in turn. */
		if (t->text == to->data)
			to = &work[~i & 1];
		buf_clear(to);
		enum err e = n->steps[i].run(&n->steps[i], s, t->text, t->bytes, &t->origin, to);
		if (e != ERR_OK)
			return e;
		t->text = buf_cstr(to);
		t->bytes = to->bytes;
		t->origin = t->origin > t->bytes ? t->bytes : t->origin;
	}
	return ERR_OK;
}

/* ---- loading ---- */

struct norm_type {
	const char *name;
	norm_fn run;
	u32 form;
};
static const struct norm_type norm_types[] = {
	{"NFC", norm_form, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
	{"NFD", norm_form, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
	{"NFKC", norm_form, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
	{"NFKD", norm_form, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
	{"Lowercase", norm_lowercase, 0},
	{"StripAccents", norm_strip_accents, 0},
	{"ByteLevel", norm_byte_level, 0},
	{"Nmt", norm_nmt, 0},
	{"Prepend", norm_prepend, 0},
	{"Replace", norm_replace, 0},
	{"Strip", norm_strip, 0},
	{"BertNormalizer", norm_bert, 0},
	{"Precompiled", norm_precompiled, 0},
};

static struct norm_step *add_step(struct normalizer *n, norm_fn run, u32 form)
{
	if (n->steps == NULL)
		n->steps = calloc(NORM_STEPS_MAX, sizeof(*n->steps));
	if (n->steps == NULL || n->count == NORM_STEPS_MAX)
		return NULL;
	struct norm_step *step = &n->steps[n->count++];
	*step = (struct norm_step){.run = run, .form = form};
	return step;
}

static enum err load_string(struct norm_step *step, json_val v, const char *key, struct err_msg *em)
{
	const char *text;
	if (!json_string(json_get(v, key), &text, &step->text_bytes))
		return err_set(em, ERR_FORMAT, "normalizer %s: \"%s\" must be a string",
			       json_cstr(json_get(v, "type"), "?"), key);
	step->text = malloc(step->text_bytes + 1);
	if (step->text == NULL)
		return ERR_NO_MEMORY;
	memcpy(step->text, text, step->text_bytes + 1);
	return ERR_OK;
}

static enum err load_bert(struct normalizer *n, struct norm_step *step, json_val v)
{
	bool clean = true, cjk = true, lower = true;
	(void)json_bool(json_get(v, "clean_text"), &clean);
	(void)json_bool(json_get(v, "handle_chinese_chars"), &cjk);
	(void)json_bool(json_get(v, "lowercase"), &lower);
	bool accents = lower;
	(void)json_bool(json_get(v, "strip_accents"), &accents);
	step->form = (clean ? BERT_CLEAN : 0u) | (cjk ? BERT_CJK : 0u);
	bool ok = true;
	if (accents)
		ok = add_step(n, norm_form, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE) != NULL &&
		     add_step(n, norm_strip_accents, NONSPACING_ONLY) != NULL;
	if (ok && lower)
		ok = add_step(n, norm_lowercase, 0) != NULL;
	return ok ? ERR_OK : ERR_NO_MEMORY;
}

static enum err load_fields(struct normalizer *n, struct norm_step *step, json_val v, struct err_msg *em)
{
	if (step->run == norm_prepend) {
		(void)json_bool(json_get(v, "first_only"), &step->first_only); /* written by sentencepiece.c */
		return load_string(step, v, "prepend", em);
	}
	if (step->run == norm_precompiled)
		return precompiled_load(step, v, em);
	if (step->run == norm_bert)
		return load_bert(n, step, v);
	if (step->run == norm_strip) {
		bool left = true, right = true;
		(void)json_bool(json_get(v, "strip_left"), &left);
		(void)json_bool(json_get(v, "strip_right"), &right);
		step->form = (left ? STRIP_LEFT : 0u) | (right ? STRIP_RIGHT : 0u);
	}
	if (step->run != norm_replace)
		return ERR_OK;
	enum err e = load_string(step, v, "content", em);
	return e != ERR_OK ? e : pattern_load(&step->pattern, json_get(v, "pattern"), "normalizer Replace", em);
}

static enum err load_step(struct normalizer *n, json_val v, u32 depth, struct err_msg *em)
{
	const char *type = json_cstr(json_get(v, "type"), "");
	if (strcmp(type, "Sequence") == 0) {
		if (depth > 4)
			return err_set(em, ERR_UNSUPPORTED, "normalizer: sequences nested deeper than 4");
		enum err e = ERR_OK;
		for (struct json_iter it = json_iterate(json_get(v, "normalizers")); e == ERR_OK && json_next(&it);)
			e = load_step(n, it.value, depth + 1, em);
		return e;
	}
	for (size_t i = 0; i < COUNT_OF(norm_types); i++) {
		if (strcmp(type, norm_types[i].name) != 0)
			continue;
		struct norm_step *step = add_step(n, norm_types[i].run, norm_types[i].form);
		return step != NULL ? load_fields(n, step, v, em)
				    : err_set(em, ERR_UNSUPPORTED, "normalizer: more than %d steps", NORM_STEPS_MAX);
	}
	return err_set(em, ERR_UNSUPPORTED, "normalizer type \"%.64s\" is not supported", type);
}

enum err normalizer_load(struct normalizer *n, json_val v, struct err_msg *em)
{
	*n = (struct normalizer){0};
	enum err e = json_present(v) ? load_step(n, v, 0, em) : ERR_OK;
	if (e != ERR_OK)
		normalizer_fini(n);
	return e;
}

void normalizer_fini(struct normalizer *n)
{
	for (u32 i = 0; i < n->count; i++) {
		pattern_fini(&n->steps[i].pattern);
		free(n->steps[i].text);
	}
	free(n->steps);
	*n = (struct normalizer){0};
}

enum err pattern_load(struct pattern *p, json_val v, const char *part, struct err_msg *em)
{
	const char *text;
	size_t bytes;
	*p = (struct pattern){0};
	if (json_string(json_get(v, "Regex"), &text, &bytes))
		return regex_compile(&p->regex, text, bytes, em);
	if (!json_string(json_get(v, "String"), &text, &bytes))
		return err_set(em, ERR_FORMAT, "%s: \"pattern\" must be {\"String\": ...} or {\"Regex\": ...}", part);
	p->string = malloc(bytes + 1);
	if (p->string == NULL)
		return ERR_NO_MEMORY;
	memcpy(p->string, text, bytes + 1);
	p->string_bytes = bytes;
	return ERR_OK;
}
