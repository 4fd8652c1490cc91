/* Owns the filters that make or remove markup: urlize, xmlattr, striptags. Runs where chat templates are rendered.
 * Patterns are Jinja's own, matched by PCRE2 within a limit of steps. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/jinja_pattern_priv.h"
#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

static bool finish(struct jinja *j, struct buf *b, struct jv *out)
{
	bool ok = jv_string_buf(j, b, out);
	buf_fini(b);
	return ok;
}

/* ---- xmlattr ---- */

static bool put_attribute(struct jinja *j, struct jv key, struct jv value, struct buf *out)
{
	struct jv name, text;
	if (value.type == JV_NONE || value.type == JV_UNDEFINED)
		return true;
	if (key.type != JV_STRING)
		return jinja_fail(j, "xmlattr: a key must be a string, not %s", jv_type_name(key));
	if (!jv_escape(j, key, &name) || !jv_escape(j, value, &text))
		return false;
	buf_printf(out, "%s", out->bytes > 0 ? " " : "");
	buf_append(out, name.s->data, name.s->bytes);
	buf_append_str(out, "=\"");
	buf_append(out, text.s->data, text.s->bytes);
	buf_append_char(out, '"');
	return out->bytes <= j->limits.output || jinja_fail_memory(j);
}

FILTER(filter_xmlattr)
{
	(void)all;
	struct buf b = {0}, spaced = {0};
	bool ok = self.type == JV_DICT || jinja_fail(j, "xmlattr works on a mapping, not on %s", jv_type_name(self));
	for (size_t i = 0; ok && i < self.d->count; i++)
		ok = put_attribute(j, self.d->entries[i].key, self.d->entries[i].value, &b);
	if (ok && b.bytes > 0 && jinja_arg_bool(args[0], true))
		buf_append_char(&spaced, ' ');
	buf_append(&spaced, b.data, b.bytes);
	spaced.failed = spaced.failed || b.failed;
	buf_fini(&b);
	if (ok)
		return finish(j, &spaced, out);
	buf_fini(&spaced);
	return false;
}

/* ---- striptags ---- */

/* Without everything from `open` to the next `close`. */
static void remove_between(struct buf *b, const char *open, const char *close)
{
	size_t from = 0, to = 0;
	while (from < b->bytes) {
		const char *start = memmem(b->data + from, b->bytes - from, open, strlen(open));
		const char *end = start == NULL ? NULL
						: memmem(start + strlen(open), b->bytes - (size_t)(start + strlen(open) - b->data),
							 close, strlen(close));
		size_t plain = end != NULL ? (size_t)(start - b->data) - from : b->bytes - from;
		memmove(b->data + to, b->data + from, plain);
		to += plain;
		if (end == NULL)
			break;
		from = (size_t)(end - b->data) + strlen(close);
	}
	b->bytes = to;
}

/* Words with one space between them. */
static void join_words(struct buf *b)
{
	size_t to = 0;
	bool space = false;
	for (size_t at = 0; at < b->bytes;) {
		size_t from = at;
		if (jstr_is_space(unicode_next(b->data, &at))) {
			space = true;
			continue;
		}
		if (space && to > 0)
			b->data[to++] = ' ';
		space = false;
		memmove(b->data + to, b->data + from, at - from);
		to += at - from;
	}
	b->bytes = to;
}

/* &#38; &#x26; and the usual names; bytes of the reference, 0 when it is none. */
static size_t read_reference(const char *text, size_t bytes, u32 *code)
{
	static const struct {
		const char *name;
		u32 code;
	} names[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}, {"nbsp", 0xa0}, {"copy", 0xa9},
		     {"reg", 0xae}, {"laquo", 0xab}, {"raquo", 0xbb}, {"ndash", 0x2013}, {"mdash", 0x2014}, {"hellip", 0x2026},
		     {"lsquo", 0x2018}, {"rsquo", 0x2019}, {"ldquo", 0x201c}, {"rdquo", 0x201d}, {"bull", 0x2022}, {"euro", 0x20ac},
		     {"trade", 0x2122}, {"times", 0xd7}, {"deg", 0xb0}};
	const char *semicolon = memchr(text, ';', bytes < 12 ? bytes : 12);
	if (semicolon == NULL || bytes < 4)
		return 0;
	size_t n = (size_t)(semicolon - text) + 1;
	if (text[1] == '#') {
		bool hex = text[2] == 'x' || text[2] == 'X';
		char *end;
		if (!isxdigit((unsigned char)text[hex ? 3 : 2]))
			return 0;
		unsigned long value = strtoul(text + (hex ? 3 : 2), &end, hex ? 16 : 10);
		bool character = value > 0 && value < 0x110000 && (value < 0xd800 || value > 0xdfff);
		*code = character ? (u32)value : 0xfffd;
		return end == semicolon ? n : 0;
	}
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (strlen(names[i].name) == n - 2 && memcmp(names[i].name, text + 1, n - 2) == 0) {
			*code = names[i].code;
			return n;
		}
	return 0;
}

FILTER(filter_striptags)
{
	(void)args, (void)all;
	struct buf b = {0}, plain = {0};
	if (!jv_to_string(j, self, &self))
		return false;
	buf_append(&b, self.s->data, self.s->bytes);
	if (buf_ok(&b) && b.bytes > 0) {
		remove_between(&b, "<!--", "-->");
		remove_between(&b, "<", ">");
		join_words(&b);
	}
	(void)buf_cstr(&b); /* a NUL behind it, for reading numbers */
	for (size_t at = 0; at < b.bytes;) {
		u32 code;
		size_t n = b.data[at] == '&' ? read_reference(b.data + at, b.bytes - at, &code) : 0;
		if (n > 0)
			jstr_put_char(&plain, code);
		else
			buf_append_char(&plain, b.data[at]);
		at += n > 0 ? n : 1;
	}
	plain.failed = plain.failed || b.failed;
	buf_fini(&b);
	return finish(j, &plain, out);
}

/* ---- urlize ---- */

static const char http_pattern[] =
	"^((https?://|www\\.)(([\\w%-]+\\.)+)?([a-z]{2,63}|xn--[\\w%]{2,59})"
	"|([\\w%-]{2,63}\\.)+(com|net|int|edu|gov|org|info|mil)"
	"|(https?://)((([\\d]{1,3})(\\.[\\d]{1,3}){3})|(\\[([\\da-f]{0,4}:){2}([\\da-f]{0,4}:?){1,6}])))"
	"(?::[\\d]{1,5})?(?:[/?#]\\S*)?$";
static const char email_pattern[] = "^\\S+@\\w[\\w.-]*\\.\\w+$";

struct urlizer {
	struct jinja *j;
	struct jinja_pattern http;
	struct jinja_pattern email;
	int64_t limit; /* characters of a link's text; negative: all */
	struct buf attributes;
	struct jv schemes; /* list or missing */
	struct buf out;
};

/* A part of a word. */
struct span_text {
	const char *text;
	size_t bytes;
};

static bool begins(struct span_text t, const char *with)
{
	return t.bytes >= strlen(with) && memcmp(t.text, with, strlen(with)) == 0;
}

static bool ends(struct span_text t, const char *with)
{
	return t.bytes >= strlen(with) && memcmp(t.text + t.bytes - strlen(with), with, strlen(with)) == 0;
}

static size_t count_of(struct span_text t, const char *what)
{
	size_t n = 0;
	for (const char *hit; (hit = memmem(t.text, t.bytes, what, strlen(what))) != NULL; n++) {
		hit += strlen(what);
		t.bytes -= (size_t)(hit - t.text);
		t.text = hit;
	}
	return n;
}

static void put_trimmed(struct urlizer *u, struct span_text t)
{
	struct jstr s = {.data = t.text, .bytes = t.bytes, .chars = SIZE_MAX};
	bool cut = u->limit >= 0 && jstr_chars(&s) > (size_t)u->limit;
	buf_append(&u->out, t.text, cut ? jstr_offset(&s, (size_t)u->limit) : t.bytes);
	if (cut)
		buf_append_str(&u->out, "...");
}

static void put_link(struct urlizer *u, const char *scheme, struct span_text target, bool attributes)
{
	buf_printf(&u->out, "<a href=\"%s", scheme);
	buf_append(&u->out, target.text, target.bytes);
	buf_append_char(&u->out, '"');
	if (attributes)
		buf_append(&u->out, u->attributes.data, u->attributes.bytes);
	buf_append_char(&u->out, '>');
}

static bool put_scheme_link(struct urlizer *u, struct span_text t)
{
	for (size_t i = 0; jv_is_sequence(u->schemes) && i < u->schemes.l->count; i++) {
		struct jv s = u->schemes.l->items[i];
		if (s.type != JV_STRING || t.bytes <= s.s->bytes || memcmp(t.text, s.s->data, s.s->bytes) != 0)
			continue;
		put_link(u, "", t, true);
		buf_append(&u->out, t.text, t.bytes);
		buf_append_str(&u->out, "</a>");
		return true;
	}
	return false;
}

static void put_middle(struct urlizer *u, struct span_text t)
{
	struct span_text address = {.text = t.text + 7, .bytes = t.bytes > 7 ? t.bytes - 7 : 0};
	bool mail = begins(t, "mailto:") && jinja_pattern_matches(&u->email, address.text, address.bytes);
	bool bare = memchr(t.text, '@', t.bytes) != NULL && !begins(t, "www.") && memchr(t.text, ':', t.bytes) == NULL;
	if (jinja_pattern_matches(&u->http, t.text, t.bytes)) {
		put_link(u, begins(t, "https://") || begins(t, "http://") ? "" : "https://", t, true);
		put_trimmed(u, t);
	} else if (mail) {
		put_link(u, "", t, false);
		buf_append(&u->out, address.text, address.bytes);
	} else if (bare && jinja_pattern_matches(&u->email, t.text, t.bytes)) {
		put_link(u, "mailto:", t, false);
		buf_append(&u->out, t.text, t.bytes);
	} else {
		if (!put_scheme_link(u, t))
			buf_append(&u->out, t.text, t.bytes);
		return;
	}
	buf_append_str(&u->out, "</a>");
}

/* Brackets in front, punctuation behind; what closes a bracket of the middle belongs to the middle. */
static void put_word(struct urlizer *u, struct span_text word)
{
	static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
	struct span_text middle = word, tail;
	while (begins(middle, "(") || begins(middle, "<") || begins(middle, "&lt;")) {
		size_t n = middle.text[0] == '&' ? 4 : 1;
		middle.text += n;
		middle.bytes -= n;
	}
	buf_append(&u->out, word.text, (size_t)(middle.text - word.text));
	size_t whole = middle.bytes;
	for (;;) {
		if (ends(middle, "&gt;"))
			middle.bytes -= 4;
		else if (middle.bytes > 0 && strchr(")>.,\n", middle.text[middle.bytes - 1]) != NULL)
			middle.bytes--;
		else
			break;
	}
	tail = (struct span_text){.text = middle.text + middle.bytes, .bytes = whole - middle.bytes};
	for (size_t i = 0; i < COUNT_OF(pairs); i++) {
		size_t opened = count_of(middle, pairs[i][0]), closers = count_of(tail, pairs[i][1]);
		if (opened <= count_of(middle, pairs[i][1]))
			continue;
		for (size_t k = opened < closers ? opened : closers; k > 0; k--) {
			const char *hit = memmem(tail.text, tail.bytes, pairs[i][1], strlen(pairs[i][1]));
			size_t n = (size_t)(hit - tail.text) + strlen(pairs[i][1]);
			middle.bytes += n;
			tail.text += n;
			tail.bytes -= n;
		}
	}
	put_middle(u, middle);
	buf_append(&u->out, tail.text, tail.bytes);
}

static bool put_words(struct urlizer *u, const struct jstr *s)
{
	for (size_t at = 0; at < s->bytes;) {
		size_t from = at;
		bool space = jstr_is_space(unicode_next(s->data, &at));
		while (at < s->bytes) {
			size_t next = at;
			if (jstr_is_space(unicode_next(s->data, &next)) != space)
				break;
			at = next;
		}
		if (space)
			buf_append(&u->out, s->data + from, at - from);
		else
			put_word(u, (struct span_text){.text = s->data + from, .bytes = at - from});
		if (u->out.bytes > u->j->limits.output)
			return jinja_fail_memory(u->j);
	}
	return true;
}

/* Each word once, in order, with noopener (and nofollow) among them. */
static bool put_rel(struct urlizer *u, struct jv rel, bool nofollow)
{
	struct jsort_item words[16];
	size_t count = 0;
	struct jv text;
	if (!jv_string(u->j, nofollow ? "nofollow noopener" : "noopener", nofollow ? 17 : 8, &text))
		return false;
	for (int part = 0; part < 2; part++, text = rel) {
		if (text.type != JV_STRING)
			continue;
		for (size_t at = 0; at < text.s->bytes && count < COUNT_OF(words);) {
			size_t n = strcspn(text.s->data + at, " \t\r\n\f\v");
			if (n > 0 && !jv_string(u->j, text.s->data + at, n, &words[count++].key))
				return false;
			at += n + 1;
		}
	}
	if (!jv_sort(u->j, words, count, false))
		return false;
	buf_append_str(&u->attributes, " rel=\"");
	for (size_t i = 0; i < count; i++) {
		struct jv escaped;
		if (i > 0 && strcmp(words[i].key.s->data, words[i - 1].key.s->data) == 0)
			continue;
		if (!jv_escape(u->j, words[i].key, &escaped))
			return false;
		buf_printf(&u->attributes, "%s%s", i > 0 ? " " : "", escaped.s->data);
	}
	buf_append_char(&u->attributes, '"');
	return true;
}

static bool put_target(struct urlizer *u, struct jv target)
{
	struct jv escaped;
	if (!jv_truthy(target))
		return true;
	if (!jv_escape(u->j, target, &escaped))
		return false;
	buf_printf(&u->attributes, " target=\"%s\"", escaped.s->data);
	return true;
}

FILTER(filter_urlize)
{
	(void)all;
	struct urlizer u = {.j = j, .limit = -1, .schemes = args[4]};
	struct jv text;
	bool trims = args[0].type != JV_MISSING && args[0].type != JV_NONE;
	bool ok = (!trims || jinja_arg_int(j, args[0], -1, &u.limit)) && jinja_pattern_init(j, &u.http, http_pattern, true) &&
		  jinja_pattern_init(j, &u.email, email_pattern, false) && jv_escape(j, self, &text) &&
		  put_rel(&u, args[3], jinja_arg_bool(args[1], false)) && put_target(&u, args[2]) && put_words(&u, text.s);
	jinja_pattern_fini(&u.http);
	jinja_pattern_fini(&u.email);
	buf_fini(&u.attributes);
	if (ok)
		return finish(j, &u.out, out);
	buf_fini(&u.out);
	return false;
}

const struct builtin jinja_markup_filters[] = {
	{"striptags", filter_striptags, "", 0},
	{"urlize", filter_urlize, "trim_url_limit,nofollow,target,rel,extra_schemes", 0},
	{"xmlattr", filter_xmlattr, "autospace", 0},
	{NULL, NULL, NULL, 0},
};
