/* Owns the cutting of a template's source into tokens, with the white-space rules of trim_blocks and lstrip_blocks.
 * Runs where chat templates are loaded. Linear in the source; keeps no state between sources. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

enum { BRACKETS_MAX = 256 };

struct lexer {
	const char *text;
	size_t bytes;
	size_t at;
	bool line_starting; /* the token before ended a line */
	struct tok_list *out;
	struct arena *arena;
	struct err_msg *em;
	char brackets[BRACKETS_MAX]; /* closing ones that are due */
	u32 bracket_count;
	/* position of `pos_at`, moved along */
	size_t pos_at;
	struct token_pos pos;
};

/* ---- places and errors ---- */

static struct token_pos position(struct lexer *l, size_t at)
{
	if (at < l->pos_at) {
		l->pos_at = 0;
		l->pos = (struct token_pos){.line = 1, .column = 1};
	}
	for (; l->pos_at < at; l->pos_at++) {
		if (l->text[l->pos_at] == '\n') {
			l->pos.line++;
			l->pos.column = 1;
		} else if (((u8)l->text[l->pos_at] & 0xc0) != 0x80) {
			l->pos.column++;
		}
	}
	return l->pos;
}

static enum err fail(struct lexer *l, size_t at, const char *what)
{
	struct token_pos p = position(l, at);
	return err_set(l->em, ERR_FORMAT, "line %u, column %u: %s", p.line, p.column, what);
}

static enum err push(struct lexer *l, struct tok t)
{
	struct tok_list *out = l->out;
	if (out->count == out->room) {
		size_t room = out->room == 0 ? 256 : out->room * 2;
		struct tok *items = realloc(out->items, room * sizeof(*items));
		if (items == NULL)
			return ERR_NO_MEMORY;
		out->items = items;
		out->room = room;
	}
	out->items[out->count++] = t;
	return ERR_OK;
}

static enum err push_plain(struct lexer *l, enum tok_type type, size_t at)
{
	return push(l, (struct tok){.type = type, .pos = position(l, at), .text = ""});
}

static enum err push_text(struct lexer *l, enum tok_type type, size_t at, const char *text, size_t bytes)
{
	const char *copy = arena_strndup(l->arena, text, bytes);
	if (copy == NULL)
		return ERR_NO_MEMORY;
	return push(l, (struct tok){.type = type, .pos = position(l, at), .text = copy, .bytes = bytes});
}

/* ---- white space ---- */

/* Bytes of the white-space character at `at`; 0 when it is none. Python's str.isspace, which \s is as well. */
static size_t space_at(const struct lexer *l, size_t at)
{
	if (at >= l->bytes)
		return 0;
	size_t next = at;
	u32 c = unicode_next(l->text, &next);
	return unicode_is_space(c) || (c >= 0x1c && c <= 0x1f) ? next - at : 0;
}

static void skip_spaces(struct lexer *l)
{
	size_t n;
	while ((n = space_at(l, l->at)) > 0)
		l->at += n;
}

/* End of [from, to) without the white space at its end. */
static size_t rstrip(const struct lexer *l, size_t from, size_t to)
{
	while (to > from) {
		size_t last = unicode_prev(l->text, to);
		if (space_at(l, last) == 0)
			break;
		to = last;
	}
	return to;
}

static bool all_spaces(const struct lexer *l, size_t from, size_t to)
{
	return rstrip(l, from, to) == from;
}

/* What of the text in front of a tag stays: all of it, or up to the line's start, or without trailing white space. */
static size_t text_end(const struct lexer *l, size_t from, size_t to, char sign, bool variable)
{
	if (sign == '-')
		return rstrip(l, from, to);
	if (sign == '+' || variable)
		return to;
	size_t line = to;
	while (line > from && l->text[line - 1] != '\n')
		line--;
	bool at_line_start = line > from || l->line_starting;
	return at_line_start && line < to && all_spaces(l, line, to) ? line : to;
}

static bool looking_at(const struct lexer *l, size_t at, const char *what)
{
	size_t n = strlen(what);
	return l->bytes - at >= n && memcmp(l->text + at, what, n) == 0;
}

/* After a tag: -%} takes all white space, %} one newline (trim_blocks), +%} nothing. True when `at` is a tag's end;
 * then `at` is behind it. */
static bool tag_end(struct lexer *l, const char *end, bool trim)
{
	char sign = l->text[l->at];
	size_t skip = sign == '-' || (sign == '+' && trim) ? 1 : 0;
	if (l->at >= l->bytes || !looking_at(l, l->at + skip, end))
		return false;
	l->at += skip + 2;
	if (skip > 0 && sign == '-')
		skip_spaces(l);
	else if (skip == 0 && trim && l->at < l->bytes && l->text[l->at] == '\n')
		l->at++;
	l->line_starting = l->text[l->at - 1] == '\n';
	return true;
}

/* ---- comments and raw ---- */

static enum err lex_comment(struct lexer *l, size_t begin)
{
	for (; l->at + 2 <= l->bytes; l->at++) {
		bool sign = l->text[l->at] == '-' || l->text[l->at] == '+';
		if ((sign && looking_at(l, l->at + 1, "#}")) || looking_at(l, l->at, "#}")) {
			(void)tag_end(l, "#}", true);
			return ERR_OK;
		}
	}
	return fail(l, begin, "missing end of comment tag");
}

/* At "{%": is it {% raw %}? Then `at` is behind it. */
static bool raw_begin(struct lexer *l)
{
	size_t before = l->at;
	l->at += 2;
	if (l->at < l->bytes && (l->text[l->at] == '-' || l->text[l->at] == '+'))
		l->at++;
	skip_spaces(l);
	if (looking_at(l, l->at, "raw")) {
		l->at += 3;
		skip_spaces(l);
		if (looking_at(l, l->at, "-%}")) {
			l->at += 3;
			skip_spaces(l);
			return true;
		}
		if (looking_at(l, l->at, "%}")) {
			l->at += 2;
			return true;
		}
	}
	l->at = before;
	return false;
}

/* Text up to {% endraw %}. */
static enum err lex_raw(struct lexer *l)
{
	size_t from = l->at;
	l->line_starting = l->at > 0 && l->text[l->at - 1] == '\n';
	for (size_t tag = from; tag + 2 <= l->bytes; tag++) {
		if (!looking_at(l, tag, "{%"))
			continue;
		l->at = tag + 2;
		char sign = l->at < l->bytes && (l->text[l->at] == '-' || l->text[l->at] == '+') ? l->text[l->at] : 0;
		l->at += sign != 0;
		skip_spaces(l);
		if (!looking_at(l, l->at, "endraw"))
			continue;
		l->at += 6;
		skip_spaces(l);
		size_t end = text_end(l, from, tag, sign, false);
		if (!tag_end(l, "%}", true))
			continue;
		return end > from ? push_text(l, TOK_DATA, from, l->text + from, end - from) : ERR_OK;
	}
	return fail(l, from, "missing end of raw directive");
}

/* ---- inside tags ---- */

struct operator_name {
	const char *text;
	enum tok_type type;
};
/* Longer ones first. */
static const struct operator_name operators[] = {
	{"//", TOK_FLOORDIV}, {"**", TOK_POW},      {"==", TOK_EQ},      {"!=", TOK_NE},       {">=", TOK_GTEQ},
	{"<=", TOK_LTEQ},     {"+", TOK_ADD},       {"-", TOK_SUB},      {"/", TOK_DIV},       {"*", TOK_MUL},
	{"%", TOK_MOD},       {"~", TOK_TILDE},     {"[", TOK_LBRACKET}, {"]", TOK_RBRACKET},  {"(", TOK_LPAREN},
	{")", TOK_RPAREN},    {"{", TOK_LBRACE},    {"}", TOK_RBRACE},   {">", TOK_GT},        {"<", TOK_LT},
	{"=", TOK_ASSIGN},    {".", TOK_DOT},       {":", TOK_COLON},    {"|", TOK_PIPE},      {",", TOK_COMMA},
	{";", TOK_SEMICOLON},
};

static enum err balance(struct lexer *l, char c)
{
	char message[64];
	char closing = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
	if (closing != 0) {
		if (l->bracket_count == BRACKETS_MAX)
			return fail(l, l->at, "brackets nested too deeply");
		l->brackets[l->bracket_count++] = closing;
		return ERR_OK;
	}
	if (c != ')' && c != ']' && c != '}')
		return ERR_OK;
	if (l->bracket_count > 0 && l->brackets[l->bracket_count - 1] == c) {
		l->bracket_count--;
		return ERR_OK;
	}
	if (l->bracket_count == 0)
		snprintf(message, sizeof(message), "unexpected '%c'", c);
	else
		snprintf(message, sizeof(message), "unexpected '%c', expected '%c'", c,
			 l->brackets[l->bracket_count - 1]);
	return fail(l, l->at, message);
}

static enum err lex_operator(struct lexer *l)
{
	for (size_t i = 0; i < COUNT_OF(operators); i++) {
		if (!looking_at(l, l->at, operators[i].text))
			continue;
		enum err e = balance(l, l->text[l->at]);
		if (e == ERR_OK)
			e = push_plain(l, operators[i].type, l->at);
		l->at += strlen(operators[i].text);
		return e;
	}
	return fail(l, l->at, "unexpected character");
}

static enum err lex_string(struct lexer *l)
{
	char quote = l->text[l->at];
	size_t from = l->at + 1, at = from;
	while (at < l->bytes && l->text[at] != quote)
		at += l->text[at] == '\\' ? 2 : 1;
	if (at >= l->bytes)
		return fail(l, l->at, "a string is not closed");
	struct buf text = {0};
	enum err e = jinja_unescape(&text, l->text + from, at - from, position(l, l->at), l->em);
	if (e == ERR_OK)
		e = push_text(l, TOK_STRING, l->at, buf_cstr(&text), text.bytes);
	buf_fini(&text);
	l->at = at + 1;
	return e;
}

/* Digits with single underscores between them; returns where they end. */
static size_t digits_end(const struct lexer *l, size_t at, bool hex)
{
	size_t end = at;
	while (at < l->bytes) {
		bool digit = hex ? isxdigit((u8)l->text[at]) : isdigit((u8)l->text[at]);
		if (digit)
			end = at + 1;
		else if (l->text[at] != '_' || end != at || at == 0 || l->text[at - 1] == '_')
			break;
		at++;
	}
	return end;
}

/* Is the literal a float (1.5, 1e3, 1.5e-3)? Its end, 0 when it is none. */
static size_t float_end(const struct lexer *l, size_t at)
{
	size_t end = digits_end(l, at, false), mark = end;
	bool fraction = false;
	if (end < l->bytes && l->text[end] == '.' && end + 1 < l->bytes && isdigit((u8)l->text[end + 1])) {
		mark = end = digits_end(l, end + 1, false);
		fraction = true;
	}
	if (mark < l->bytes && (l->text[mark] | 32) == 'e') {
		size_t exponent = mark + 1;
		if (exponent < l->bytes && (l->text[exponent] == '+' || l->text[exponent] == '-'))
			exponent++;
		if (exponent < l->bytes && isdigit((u8)l->text[exponent]))
			return digits_end(l, exponent, false);
	}
	return fraction ? end : 0;
}

/* The literal without underscores, as a C string. */
static void plain_number(const struct lexer *l, size_t from, size_t to, char *out, size_t room)
{
	size_t n = 0;
	for (size_t i = from; i < to && n + 1 < room; i++)
		if (l->text[i] != '_')
			out[n++] = l->text[i];
	out[n] = '\0';
}

static enum err lex_number(struct lexer *l)
{
	char number[128];
	bool after_dot = l->at > 0 && l->text[l->at - 1] == '.';
	size_t end = after_dot ? 0 : float_end(l, l->at);
	struct tok t = {.type = TOK_FLOAT, .pos = position(l, l->at), .text = ""};
	if (end != 0) {
		plain_number(l, l->at, end, number, sizeof(number));
		t.number = strtod(number, NULL);
		l->at = end;
		return push(l, t);
	}
	char kind = l->text[l->at] == '0' && l->at + 1 < l->bytes ? (char)(l->text[l->at + 1] | 32) : 0;
	int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
	size_t from = l->at + (base == 10 ? 0 : 2);
	end = digits_end(l, from, base == 16);
	if (base == 10 && l->text[l->at] == '0')
		for (size_t i = l->at; i < end; i++)
			if (l->text[i] != '0' && l->text[i] != '_')
				end = i; /* 012 is 0 followed by 12 */
	plain_number(l, from, end, number, sizeof(number));
	errno = 0;
	t.integer = strtoll(number, NULL, base);
	if (errno != 0 || end - from >= sizeof(number))
		return fail(l, l->at, "an integer does not fit 64 bits");
	t.type = TOK_INTEGER;
	l->at = end;
	return push(l, t);
}

static enum err lex_name(struct lexer *l)
{
	size_t from = l->at;
	while (l->at < l->bytes) {
		size_t next = l->at;
		u32 c = unicode_next(l->text, &next);
		if (!unicode_is_word(c))
			break;
		l->at = next;
	}
	return push_text(l, TOK_NAME, from, l->text + from, l->at - from);
}

static enum err lex_token(struct lexer *l)
{
	u8 c = (u8)l->text[l->at];
	size_t next = l->at;
	u32 code = unicode_next(l->text, &next);
	if (c == '"' || c == '\'')
		return lex_string(l);
	if (isdigit(c))
		return lex_number(l);
	if (unicode_is_word(code))
		return lex_name(l);
	return lex_operator(l);
}

/* From behind {{ or {% up to and with its end. Inside brackets the end is none: {{ {'a': {}} }}. */
static enum err lex_tag(struct lexer *l, bool variable, size_t begin)
{
	const char *end = variable ? "}}" : "%}";
	l->bracket_count = 0;
	enum err e = ERR_OK;
	while (e == ERR_OK && l->at < l->bytes) {
		skip_spaces(l);
		if (l->at >= l->bytes)
			break;
		size_t here = l->at;
		if (l->bracket_count == 0 && tag_end(l, end, !variable))
			return push_plain(l, variable ? TOK_VARIABLE_END : TOK_BLOCK_END, here);
		e = lex_token(l);
	}
	if (e != ERR_OK)
		return e;
	return fail(l, begin, variable ? "\"{{\" is not closed" : "\"{%\" is not closed");
}

/* ---- outside tags ---- */

/* The next {{, {% or {#; `bytes` when there is none. */
static size_t next_tag(const struct lexer *l)
{
	size_t at = l->at;
	while (at + 1 < l->bytes) {
		const char *brace = memchr(l->text + at, '{', l->bytes - at - 1);
		if (brace == NULL)
			break;
		at = (size_t)(brace - l->text);
		if (strchr("{%#", l->text[at + 1]) != NULL && l->text[at + 1] != '\0')
			return at;
		at++;
	}
	return l->bytes;
}

static enum err lex_data(struct lexer *l)
{
	size_t from = l->at, tag = next_tag(l);
	if (tag == l->bytes) {
		l->at = l->bytes;
		return push_text(l, TOK_DATA, from, l->text + from, tag - from);
	}
	char kind = l->text[tag + 1];
	char sign = tag + 2 < l->bytes && (l->text[tag + 2] == '-' || l->text[tag + 2] == '+') ? l->text[tag + 2] : 0;
	size_t end = text_end(l, from, tag, sign, kind == '{');
	enum err e = end > from ? push_text(l, TOK_DATA, from, l->text + from, end - from) : ERR_OK;
	if (e != ERR_OK)
		return e;
	l->at = tag;
	if (kind == '%' && raw_begin(l))
		return lex_raw(l);
	l->at = tag + 2 + (sign != 0);
	l->line_starting = false;
	if (kind == '#')
		return lex_comment(l, tag);
	e = push_plain(l, kind == '{' ? TOK_VARIABLE_BEGIN : TOK_BLOCK_BEGIN, tag);
	return e != ERR_OK ? e : lex_tag(l, kind == '{', tag);
}

/* \r\n and \r become \n; one newline at the end goes. */
static char *normalized_source(struct arena *arena, const char *source, size_t *bytes)
{
	char *text = arena_alloc(arena, *bytes + 1);
	if (text == NULL)
		return NULL;
	size_t n = 0;
	for (size_t i = 0; i < *bytes; i++) {
		if (source[i] == '\r' && i + 1 < *bytes && source[i + 1] == '\n')
			continue;
		text[n++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (n > 0 && text[n - 1] == '\n')
		n--;
	text[n] = '\0';
	*bytes = n;
	return text;
}

enum err jinja_lex(struct tok_list *out, struct arena *arena, const char *source, size_t bytes, struct err_msg *em)
{
	char *text = normalized_source(arena, source, &bytes);
	if (text == NULL)
		return ERR_NO_MEMORY;
	struct lexer l = {.text = text,
			  .bytes = bytes,
			  .line_starting = true,
			  .out = out,
			  .arena = arena,
			  .em = em,
			  .pos = {.line = 1, .column = 1}};
	enum err e = ERR_OK;
	while (e == ERR_OK && l.at < l.bytes)
		e = lex_data(&l);
	return e != ERR_OK ? e : push_plain(&l, TOK_EOF, l.bytes);
}
