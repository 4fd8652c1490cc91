/* Owns str % args and str.format with Python's format language. Runs where chat templates are rendered. Widths and
 * precisions are bounded. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

enum { WIDTH_MAX = 100000, PRECISION_MAX = 400 };

struct spec {
	char fill[5];
	char align;  /* < > ^ =, 0: by type */
	char sign;   /* + - space, 0: - */
	char group;  /* , or _ */
	char type;
	bool alternate;
	int width;
	int precision; /* -1: none */
};

/* ---- numbers ---- */

/* Thousands separators into the leading digits of `digits`. */
static void put_grouped(struct buf *out, const char *digits, char group, int every)
{
	size_t n = strspn(digits, "0123456789abcdefABCDEF");
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && (n - i) % (size_t)every == 0)
			buf_append_char(out, group);
		buf_append_char(out, digits[i]);
	}
	buf_append_str(out, digits + n);
}

/* Sign, padding and digits; '=' pads between sign and digits. */
static void put_padded(struct buf *out, const struct spec *s, const char *sign, const char *body, char align)
{
	struct jstr text = {.data = body, .bytes = strlen(body), .chars = SIZE_MAX};
	int chars = (int)(strlen(sign) + jstr_chars(&text));
	int total = s->width > chars ? s->width - chars : 0;
	int before = align == '<' ? 0 : align == '^' ? total / 2 : total;
	if (align == '=')
		buf_append_str(out, sign);
	for (int i = 0; i < before; i++)
		buf_append_str(out, s->fill);
	if (align != '=')
		buf_append_str(out, sign);
	buf_append(out, text.data, text.bytes);
	for (int i = before; i < total; i++)
		buf_append_str(out, s->fill);
}

static const char *sign_text(const struct spec *s, bool negative)
{
	return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static void put_int(struct buf *out, const struct spec *s, int64_t value)
{
	char digits[72], sign[8];
	struct buf body = {0};
	u64 magnitude = value < 0 ? 0 - (u64)value : (u64)value;
	const char *prefix = "";
	int every = 3;
	size_t n = sizeof(digits) - 1;
	u32 base = s->type == 'b' ? 2 : s->type == 'o' ? 8 : (s->type | 32) == 'x' ? 16 : 10;
	digits[n] = '\0';
	do {
		digits[--n] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
		magnitude /= base;
	} while (magnitude > 0);
	if (base != 10)
		every = 4;
	if (s->alternate)
		prefix = base == 2 ? "0b" : base == 8 ? "0o" : s->type == 'X' ? "0X" : base == 16 ? "0x" : "";
	snprintf(sign, sizeof(sign), "%s%s", sign_text(s, value < 0), prefix);
	for (int i = (int)strlen(digits + n); i < s->precision; i++) /* %.5d */
		buf_append_char(&body, '0');
	if (s->group != 0)
		put_grouped(&body, digits + n, s->group, every);
	else
		buf_append_str(&body, digits + n);
	put_padded(out, s, sign, buf_cstr(&body), s->align != 0 ? s->align : '>');
	buf_fini(&body);
}

static void put_float(struct buf *out, const struct spec *s, double value)
{
	char digits[PRECISION_MAX + 400];
	struct buf body = {0};
	bool negative = signbit(value) && !isnan(value);
	double magnitude = fabs(value);
	int precision = s->precision < 0 ? 6 : s->precision;
	char type = s->type == 'n' || s->type == 0 ? 'g' : s->type == '%' ? 'f' : s->type;
	if (isnan(value) || isinf(value)) {
		buf_append_str(&body, isnan(value) ? "nan" : "inf");
	} else if (s->type == 0 && s->precision < 0) {
		jv_float_repr(magnitude, &body);
	} else {
		const char format[] = {'%', s->alternate ? '#' : '.', s->alternate ? '.' : '*',
				       s->alternate ? '*' : type, s->alternate ? type : '\0', '\0'};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(digits, sizeof(digits), format, precision, s->type == '%' ? magnitude * 100 : magnitude);
#pragma GCC diagnostic pop
		if (s->group != 0)
			put_grouped(&body, digits, s->group, 3);
		else
			buf_append_str(&body, digits);
		if (s->type == 0 && strpbrk(digits, ".e") == NULL)
			buf_append_str(&body, ".0");
	}
	if (s->type == '%')
		buf_append_char(&body, '%');
	put_padded(out, s, sign_text(s, negative), buf_cstr(&body), s->align != 0 ? s->align : '>');
	buf_fini(&body);
}

static void put_text(struct buf *out, const struct spec *s, const struct jstr *text)
{
	struct jstr copy = *text;
	copy.chars = SIZE_MAX;
	struct buf body = {0};
	buf_append(&body, copy.data, s->precision < 0 ? copy.bytes : jstr_offset(&copy, (size_t)s->precision));
	put_padded(out, s, "", buf_cstr(&body), s->align == 0 || s->align == '=' ? '<' : s->align);
	buf_fini(&body);
}

/* ---- str % args ---- */

struct percent {
	struct jinja *j;
	struct jv format;
	struct jv args;
	size_t next;   /* positional */
	const char *at;
	const char *end;
	struct buf out;
};

static bool percent_next(struct percent *p, struct jv *out)
{
	bool tuple = p->args.type == JV_TUPLE;
	if (p->next >= (tuple ? p->args.l->count : 1))
		return jinja_fail(p->j, "not enough arguments for format string");
	*out = tuple ? p->args.l->items[p->next] : p->args;
	p->next++;
	return true;
}

/* Digits, or * for an argument. */
static bool percent_number(struct percent *p, int max, int *out)
{
	int64_t value = 0;
	struct jv v;
	if (p->at < p->end && *p->at == '*') {
		p->at++;
		if (!percent_next(p, &v) || !jinja_arg_int(p->j, v, 0, &value))
			return false;
	}
	for (; p->at < p->end && isdigit((u8)*p->at) && value <= max; p->at++)
		value = value * 10 + (*p->at - '0');
	if (value > max || value < -max)
		return jinja_fail(p->j, "a width or precision above %d", max);
	*out = (int)value;
	return true;
}

static bool percent_spec(struct percent *p, struct spec *s, struct jv *key)
{
	*s = (struct spec){.fill = " ", .precision = -1};
	if (*p->at == '(') {
		const char *close = memchr(p->at, ')', (size_t)(p->end - p->at));
		if (close == NULL)
			return jinja_fail(p->j, "incomplete format key");
		if (p->args.type != JV_DICT)
			return jinja_fail(p->j, "format requires a mapping");
		if (!jv_string(p->j, p->at + 1, (size_t)(close - p->at - 1), key))
			return false;
		p->at = close + 1;
	}
	for (; p->at < p->end && strchr("#0- +", *p->at) != NULL; p->at++) {
		if (*p->at == '#')
			s->alternate = true;
		else if (*p->at == '-')
			s->align = '<';
		else if (*p->at == '0')
			s->align = s->align == 0 ? '=' : s->align;
		else if (s->sign != '+')
			s->sign = *p->at;
	}
	if (!percent_number(p, WIDTH_MAX, &s->width))
		return false;
	if (s->width < 0) {
		s->align = '<';
		s->width = -s->width;
	}
	if (p->at < p->end && *p->at == '.') {
		p->at++;
		if (!percent_number(p, PRECISION_MAX, &s->precision))
			return false;
	}
	while (p->at < p->end && strchr("hlL", *p->at) != NULL)
		p->at++;
	if (p->at >= p->end)
		return jinja_fail(p->j, "incomplete format");
	s->type = *p->at++;
	if (s->align == '=')
		memcpy(s->fill, "0", 2);
	return true;
}

static bool percent_text(struct percent *p, const struct spec *s, struct jv v)
{
	struct buf text = {0};
	struct jv string;
	bool ok = s->type == 's' ? jv_str(p->j, v, &text) : jv_repr(p->j, v, &text);
	ok = ok && jv_string_buf(p->j, &text, &string);
	buf_fini(&text);
	if (ok && p->format.safe) {
		string.safe = v.type == JV_STRING && v.safe;
		ok = jv_escape(p->j, string, &string);
	}
	struct spec plain = *s;
	memcpy(plain.fill, " ", 2);
	plain.align = s->align == '<' ? '<' : '>';
	if (ok)
		put_text(&p->out, &plain, string.s);
	return ok;
}

static bool percent_char(struct percent *p, struct spec *s, struct jv v)
{
	struct buf c = {0};
	struct jv string = v;
	if (jv_is_int(v) && jv_int(v) >= 0 && jv_int(v) < 0x110000) {
		jstr_put_char(&c, (u32)jv_int(v));
		bool ok = jv_string_buf(p->j, &c, &string);
		buf_fini(&c);
		if (!ok)
			return false;
	} else if (v.type != JV_STRING || jstr_chars(v.s) != 1) {
		return jinja_fail(p->j, "%%c requires int or char");
	}
	s->precision = -1;
	s->align = s->align == '<' ? '<' : '>';
	put_text(&p->out, s, string.s);
	return true;
}

static bool percent_one(struct percent *p)
{
	struct spec s;
	struct jv key = {.type = JV_MISSING}, v;
	if (!percent_spec(p, &s, &key))
		return false;
	if (s.type == '%') {
		buf_append_char(&p->out, '%');
		return true;
	}
	bool found = true;
	if (key.type == JV_MISSING ? !percent_next(p, &v) : !jdict_get(p->j, p->args.d, key, &v, &found))
		return false;
	if (!found)
		return jinja_fail(p->j, "no key '%s' in the mapping", key.s->data);
	if (s.type == 's' || s.type == 'r' || s.type == 'a')
		return percent_text(p, &s, v);
	if (s.type == 'c')
		return percent_char(p, &s, v);
	if (strchr("diuoxX", s.type) != NULL) {
		if (v.type == JV_FLOAT && (s.type == 'd' || s.type == 'i' || s.type == 'u') && fabs(v.f) < 9e18)
			v = JV_INTEGER((int64_t)v.f);
		if (!jv_is_int(v))
			return jinja_fail(p->j, "%%%c format: a real number is required, not %s", s.type, jv_type_name(v));
		put_int(&p->out, &s, jv_int(v));
		return true;
	}
	if (strchr("eEfFgG", s.type) == NULL)
		return jinja_fail(p->j, "unsupported format character '%c'", s.type);
	if (!jv_is_number(v))
		return jinja_fail(p->j, "must be real number, not %s", jv_type_name(v));
	put_float(&p->out, &s, jv_float(v));
	return true;
}

bool jv_percent(struct jinja *j, struct jv format, struct jv args, struct jv *out)
{
	struct percent p = {.j = j, .format = format, .args = args, .at = format.s->data};
	p.end = p.at + format.s->bytes;
	bool ok = true;
	while (ok && p.at < p.end) {
		const char *percent = memchr(p.at, '%', (size_t)(p.end - p.at));
		size_t plain = percent != NULL ? (size_t)(percent - p.at) : (size_t)(p.end - p.at);
		buf_append(&p.out, p.at, plain);
		p.at += plain;
		if (percent == NULL)
			break;
		p.at++;
		ok = p.at < p.end ? percent_one(&p) : jinja_fail(j, "incomplete format");
		if (ok && p.out.bytes > j->limits.output)
			ok = jinja_fail_memory(j);
	}
	size_t given = args.type == JV_TUPLE ? args.l->count : 1;
	bool mapping = args.type == JV_DICT || args.type == JV_LIST || args.type == JV_RANGE || args.type == JV_UNDEFINED;
	if (ok && p.next < given && !mapping)
		ok = jinja_fail(j, "not all arguments converted during string formatting");
	ok = ok && jv_string_buf(j, &p.out, out);
	out->safe = format.safe;
	buf_fini(&p.out);
	return ok;
}

/* ---- format(value, spec) ---- */

/* [[fill]align][sign][#][0][width][group][.precision][type] */
static bool read_spec(struct jinja *j, const char *text, struct spec *s)
{
	*s = (struct spec){.fill = " ", .precision = -1};
	size_t first = text[0] != '\0' ? unicode_bytes((u8)text[0]) : 0;
	if (first > 0 && strlen(text) > first && strchr("<>^=", text[first]) != NULL) {
		memcpy(s->fill, text, first);
		s->fill[first] = '\0';
		s->align = text[first];
		text += first + 1;
	} else if (*text != '\0' && strchr("<>^=", *text) != NULL) {
		s->align = *text++;
	}
	if (*text != '\0' && strchr("+- ", *text) != NULL)
		s->sign = *text++;
	if (*text == '#') {
		s->alternate = true;
		text++;
	}
	if (*text == '0') {
		if (s->align == 0) {
			s->align = '=';
			memcpy(s->fill, "0", 2);
		}
		text++;
	}
	for (; isdigit((u8)*text) && s->width <= WIDTH_MAX; text++)
		s->width = s->width * 10 + (*text - '0');
	if (*text == ',' || *text == '_')
		s->group = *text++;
	if (*text == '.') {
		s->precision = 0;
		for (text++; isdigit((u8)*text) && s->precision <= PRECISION_MAX; text++)
			s->precision = s->precision * 10 + (*text - '0');
	}
	if (*text != '\0')
		s->type = *text++;
	if (*text != '\0' || s->width > WIDTH_MAX || s->precision > PRECISION_MAX)
		return jinja_fail(j, "invalid format specifier");
	return true;
}

static bool format_value(struct jinja *j, struct jv v, const char *text, struct buf *out)
{
	struct spec s;
	if (text[0] == '\0')
		return jv_str(j, v, out);
	if (!read_spec(j, text, &s))
		return false;
	if (v.type == JV_STRING && (s.type == 0 || s.type == 's')) {
		if (s.group != 0)
			return jinja_fail(j, "Cannot specify '%c' with 's'.", s.group);
		put_text(out, &s, v.s);
	} else if (jv_is_int(v) && (s.type == 0 || strchr("bdoxXn", s.type) != NULL)) {
		if (s.precision >= 0)
			return jinja_fail(j, "precision not allowed in integer format specifier");
		put_int(out, &s, jv_int(v));
	} else if (jv_is_number(v) && (s.type == 0 || strchr("eEfFgGn%", s.type) != NULL)) {
		put_float(out, &s, jv_float(v));
	} else if (v.type == JV_STRING || jv_is_number(v)) {
		return jinja_fail(j, "unknown format code '%c' for object of type '%s'", s.type, jv_type_name(v));
	} else {
		return jinja_fail(j, "unsupported format string passed to %s.__format__", jv_type_name(v));
	}
	return out->bytes <= j->limits.output || jinja_fail_memory(j);
}

/* ---- str.format ---- */

struct formatter {
	struct jinja *j;
	const struct jargs *args;
	bool safe;
	size_t automatic; /* the next {} */
	struct buf out;
};

static bool format_field(struct formatter *f, const char *field, size_t bytes, struct jv *out)
{
	struct jinja *j = f->j;
	size_t n = strcspn(field, ".[");
	n = n < bytes ? n : bytes;
	size_t index = 0;
	bool number = n > 0 && strspn(field, "0123456789") >= n;
	if (n == 0 || number) {
		index = n == 0 ? f->automatic++ : strtoul(field, NULL, 10);
		if (index >= f->args->count)
			return jinja_fail(j, "replacement index %zu out of range for positional args tuple", index);
		*out = f->args->positional[index];
	} else {
		size_t i = 0;
		while (i < f->args->named_count && (f->args->named[i].key.s->bytes != n ||
						    memcmp(f->args->named[i].key.s->data, field, n) != 0))
			i++;
		if (i == f->args->named_count)
			return jinja_fail(j, "no argument '%.*s' for the format string", (int)n, field);
		*out = f->args->named[i].value;
	}
	for (size_t at = n; at < bytes;) {
		bool attribute = field[at] == '.';
		size_t from = at + 1, to = from;
		while (to < bytes && (attribute ? field[to] != '.' && field[to] != '[' : field[to] != ']'))
			to++;
		struct jv key;
		if (!jv_string(j, field + from, to - from, &key))
			return false;
		if (!attribute && strspn(key.s->data, "0123456789") == key.s->bytes && key.s->bytes > 0)
			key = JV_INTEGER(strtoll(key.s->data, NULL, 10));
		if (attribute ? !jv_getattr(j, *out, key.s->data, key.s->bytes, out) : !jv_getitem(j, *out, key, out))
			return false;
		at = to + !attribute;
	}
	return true;
}

/* Between { and }: field [!conversion] [:spec]. */
static bool format_one(struct formatter *f, const char *text, size_t bytes)
{
	struct jinja *j = f->j;
	char spec[64] = "";
	struct jv v;
	size_t field = 0;
	while (field < bytes && text[field] != '!' && text[field] != ':')
		field++;
	char *name = jinja_printf(j, "%.*s", (int)field, text);
	if (name == NULL || !format_field(f, name, strlen(name), &v))
		return false;
	size_t at = field;
	if (at + 1 < bytes && text[at] == '!') {
		struct buf b = {0};
		bool ok = text[at + 1] == 's' ? jv_str(j, v, &b) : jv_repr(j, v, &b);
		ok = ok && jv_string_buf(j, &b, &v);
		buf_fini(&b);
		if (!ok)
			return false;
		at += 2;
	}
	if (at < bytes && text[at] == ':')
		snprintf(spec, sizeof(spec), "%.*s", (int)(bytes - at - 1), text + at + 1);
	if (strchr(spec, '{') != NULL)
		return jinja_fail(j, "nested replacement fields are not supported");
	struct buf b = {0};
	struct jv formatted;
	bool ok = format_value(j, v, spec, &b) && jv_string_buf(j, &b, &formatted);
	buf_fini(&b);
	if (ok && f->safe) {
		formatted.safe = v.type == JV_STRING && v.safe;
		ok = jv_escape(j, formatted, &formatted);
	}
	if (ok)
		buf_append(&f->out, formatted.s->data, formatted.s->bytes);
	return ok;
}

bool jstr_format(struct jinja *j, struct jv format, const struct jargs *args, struct jv *out)
{
	struct formatter f = {.j = j, .args = args, .safe = format.safe};
	const char *at = format.s->data, *end = at + format.s->bytes;
	bool ok = true;
	while (ok && at < end) {
		char c = *at;
		if (c != '{' && c != '}') {
			buf_append_char(&f.out, c);
			at++;
		} else if (at + 1 < end && at[1] == c) {
			buf_append_char(&f.out, c);
			at += 2;
		} else if (c == '}') {
			ok = jinja_fail(j, "single '}' encountered in format string");
		} else {
			const char *close = memchr(at, '}', (size_t)(end - at));
			ok = close != NULL ? format_one(&f, at + 1, (size_t)(close - at - 1))
					   : jinja_fail(j, "expected '}' before end of string");
			at = close != NULL ? close + 1 : end;
		}
		ok = ok && (f.out.bytes <= j->limits.output || jinja_fail_memory(j));
	}
	ok = ok && jv_string_buf(j, &f.out, out);
	out->safe = format.safe;
	buf_fini(&f.out);
	return ok;
}
