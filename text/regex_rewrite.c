/* Owns the translation of Oniguruma's regex syntax (what tokenizer.json is written in) to PCRE2's. Runs once per
 * pattern while a tokenizer loads. It keeps the meaning of what it knows and leaves the judgement of everything else
 * to PCRE2's compiler. Why each rewrite: PCRE2's \s holds U+180E under UCP and \w lacks marks; \p{Han} means script
 * extensions there; \h is a hex digit here; classes nest and intersect here; x{n,m}+ repeats here and is possessive
 * there. */
#include "text/regex_priv.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/types.h"

enum { CLASS_DEPTH_MAX = 8, GROUP_DEPTH_MAX = 64, PROPERTY_BYTES_MAX = 48 };

#define SET_SPACE "\\p{White_Space}"
/* Inside classes; alone, \w also takes Latin-1's superscripts and fractions: Oniguruma asks another table then. */
#define SET_WORD       "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define SET_WORD_ALONE SET_WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define SET_ALPHA      "\\p{Alphabetic}\\x{363}-\\x{36f}"
#define SET_HEX        "0-9a-fA-F"
/* A character that is (not) in the word set, for \b. */
#define WORD_BOUNDARY                                                                                        \
	"(?:(?<=[" SET_WORD_ALONE "])(?![" SET_WORD_ALONE "])|(?<![" SET_WORD_ALONE "])(?=[" SET_WORD_ALONE "]))"

struct rewriter {
	const char *at;
	const char *end;
	struct buf *out;
	struct err_msg *em;
	size_t group_start[GROUP_DEPTH_MAX];
	u32 group_depth;
	size_t atom_start;
};

struct property {
	const char *name;
	const char *set;
	const char *posix; /* [:name:] where it differs */
};
/* Names of Oniguruma (lower case, without separators) that PCRE2 lacks or reads differently. */
static const struct property properties[] = {
	{"letter", "\\p{L}"},
	{"casedletter", "\\p{L&}"},
	{"uppercaseletter", "\\p{Lu}"},
	{"lowercaseletter", "\\p{Ll}"},
	{"titlecaseletter", "\\p{Lt}"},
	{"modifierletter", "\\p{Lm}"},
	{"otherletter", "\\p{Lo}"},
	{"mark", "\\p{M}"},
	{"nonspacingmark", "\\p{Mn}"},
	{"spacingmark", "\\p{Mc}"},
	{"enclosingmark", "\\p{Me}"},
	{"number", "\\p{N}"},
	{"decimalnumber", "\\p{Nd}"},
	{"letternumber", "\\p{Nl}"},
	{"othernumber", "\\p{No}"},
	{"punctuation", "\\p{P}"},
	{"connectorpunctuation", "\\p{Pc}"},
	{"dashpunctuation", "\\p{Pd}"},
	{"openpunctuation", "\\p{Ps}"},
	{"closepunctuation", "\\p{Pe}"},
	{"initialpunctuation", "\\p{Pi}"},
	{"finalpunctuation", "\\p{Pf}"},
	{"otherpunctuation", "\\p{Po}"},
	{"symbol", "\\p{S}"},
	{"mathsymbol", "\\p{Sm}"},
	{"currencysymbol", "\\p{Sc}"},
	{"modifiersymbol", "\\p{Sk}"},
	{"othersymbol", "\\p{So}"},
	{"separator", "\\p{Z}"},
	{"spaceseparator", "\\p{Zs}"},
	{"lineseparator", "\\p{Zl}"},
	{"paragraphseparator", "\\p{Zp}"},
	{"other", "\\p{C}"},
	{"control", "\\p{Cc}"},
	{"format", "\\p{Cf}"},
	{"privateuse", "\\p{Co}"},
	{"unassigned", "\\p{Cn}"},
	{"alphabetic", SET_ALPHA},
	{"alpha", SET_ALPHA},
	{"alnum", SET_ALPHA "\\p{Nd}"},
	{"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"},
	{"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}"},
	{"digit", "\\p{Nd}"},
	{"space", SET_SPACE},
	{"word", SET_WORD_ALONE, SET_WORD},
	{"upper", "\\p{Uppercase}"},
	{"lower", "\\p{Lowercase}"},
	{"punct", "\\p{P}", "\\p{P}\\p{S}"},
	{"xdigit", SET_HEX},
	{"cntrl", "\\p{Cc}"},
	{"blank", "\\p{Zs}\\t"},
};

static bool script_exists(const char *name)
{
	char probe[PROPERTY_BYTES_MAX + 16];
	int n = snprintf(probe, sizeof(probe), "\\p{sc:%s}", name);
	int code;
	PCRE2_SIZE offset;
	pcre2_code *c = pcre2_compile((PCRE2_SPTR)probe, (PCRE2_SIZE)n, PCRE2_UTF, &code, &offset, NULL);
	pcre2_code_free(c);
	return c != NULL;
}

/* The contents of a class for the property, into `set`. */
static void property_set(char *set, size_t room, const char *name)
{
	char plain[PROPERTY_BYTES_MAX];
	size_t n = 0;
	for (const char *p = name; *p != '\0'; p++)
		if (*p != '_' && *p != '-' && *p != ' ')
			plain[n++] = (char)tolower((unsigned char)*p);
	plain[n] = '\0';
	for (size_t i = 0; i < COUNT_OF(properties); i++)
		if (strcmp(plain, properties[i].name) == 0) {
			snprintf(set, room, "%s", properties[i].set);
			return;
		}
	bool script = n > 2 && script_exists(name);
	snprintf(set, room, script ? "\\p{sc:%s}" : "\\p{%s}", name);
}

/* An escape that stands for a set of characters: its set and whether it is negated. False: not such an escape, `at`
 * unmoved. */
static bool read_set_escape(struct rewriter *w, bool alone, char *set, size_t room, bool *negated)
{
	const char *p = w->at;
	if (w->end - p < 2 || p[0] != '\\')
		return false;
	const char *fixed = p[1] == 's' || p[1] == 'S'   ? SET_SPACE
			    : p[1] == 'w' || p[1] == 'W' ? (alone ? SET_WORD_ALONE : SET_WORD)
			    : p[1] == 'h' || p[1] == 'H' ? SET_HEX
							 : NULL;
	if (fixed != NULL) {
		snprintf(set, room, "%s", fixed);
		*negated = isupper((unsigned char)p[1]);
		w->at += 2;
		return true;
	}
	if ((p[1] != 'p' && p[1] != 'P') || w->end - p < 4 || p[2] != '{')
		return false;
	const char *close = memchr(p, '}', (size_t)(w->end - p));
	if (close == NULL || close - p >= PROPERTY_BYTES_MAX)
		return false;
	*negated = p[1] == 'P';
	p += 3;
	if (*p == '^') {
		*negated = !*negated;
		p++;
	}
	char name[PROPERTY_BYTES_MAX];
	snprintf(name, sizeof(name), "%.*s", (int)(close - p), p);
	property_set(set, room, name);
	w->at = close + 1;
	return true;
}

/* \uHHHH, which PCRE2 writes \x{HHHH}. */
static bool copy_hex4(struct rewriter *w, struct buf *out)
{
	if (w->end - w->at < 6 || w->at[0] != '\\' || w->at[1] != 'u')
		return false;
	buf_printf(out, "\\x{%.4s}", w->at + 2);
	w->at += 6;
	return true;
}

/* ---- classes ---- */

/* One operand of &&: plain members, and alternatives that cannot be members (negated sets). */
struct operand {
	struct buf members;
	struct buf others; /* "|[^...]|[^...]" */
};

static enum err read_class(struct rewriter *w, struct buf *fragment, struct buf *flat, u32 depth);

static void operand_put(struct operand *o, const char *set, bool negated)
{
	if (!negated)
		buf_append_str(&o->members, set);
	else if (strncmp(set, "\\p{", 3) == 0 && strchr(set + 3, '\\') == NULL && set[strlen(set) - 1] == '}')
		buf_printf(&o->members, "\\P%s", set + 2);
	else
		buf_printf(&o->others, "|[^%s]", set);
}

/* [:name:] and [:^name:] inside a class. */
static bool read_posix(struct rewriter *w, struct operand *o)
{
	if (w->end - w->at < 4 || w->at[0] != '[' || w->at[1] != ':')
		return false;
	const char *p = w->at + 2;
	bool negated = *p == '^';
	p += negated;
	const char *close = memmem(p, (size_t)(w->end - p), ":]", 2);
	if (close == NULL || close - p >= 12 || close == p)
		return false;
	for (const char *c = p; c < close; c++)
		if (!isalpha((unsigned char)*c))
			return false;
	char name[16];
	snprintf(name, sizeof(name), "%.*s", (int)(close - p), p);
	w->at = close + 2;
	for (size_t i = 0; i < COUNT_OF(properties); i++)
		if (strcmp(name, properties[i].name) == 0) {
			const char *posix = properties[i].posix;
			operand_put(o, posix != NULL ? posix : properties[i].set, negated);
			return true;
		}
	buf_printf(&o->members, "[:%s%s:]", negated ? "^" : "", name);
	return true;
}

/* Reads one member (or nested class) into the operand. */
static enum err read_member(struct rewriter *w, struct operand *o, u32 depth)
{
	char set[160];
	bool negated;
	if (read_set_escape(w, false, set, sizeof(set), &negated)) {
		operand_put(o, set, negated);
		return ERR_OK;
	}
	if (copy_hex4(w, &o->members) || read_posix(w, o))
		return ERR_OK;
	if (*w->at == '[') {
		struct buf fragment = {0}, flat = {0};
		w->at++;
		enum err e = read_class(w, &fragment, &flat, depth + 1);
		if (e == ERR_OK && flat.bytes > 0)
			buf_append(&o->members, flat.data, flat.bytes);
		else if (e == ERR_OK)
			buf_printf(&o->others, "|%s", buf_cstr(&fragment));
		buf_fini(&fragment);
		buf_fini(&flat);
		return e;
	}
	if (*w->at == '\\' && w->end - w->at >= 2)
		buf_append_char(&o->members, *w->at++);
	buf_append_char(&o->members, *w->at++);
	return ERR_OK;
}

static void operand_fragment(const struct operand *o, bool negated, struct buf *out)
{
	if (o->others.bytes == 0)
		buf_printf(out, "[%s%.*s]", negated ? "^" : "", (int)o->members.bytes, o->members.data);
	else if (o->members.bytes == 0)
		buf_printf(out, "%s%.*s%s", negated ? "(?:(?!" : "(?:", (int)o->others.bytes - 1, o->others.data + 1,
			   negated ? ")(?s:.))" : ")");
	else
		buf_printf(out, "%s[%.*s]%.*s%s", negated ? "(?:(?!" : "(?:", (int)o->members.bytes, o->members.data,
			   (int)o->others.bytes, o->others.data, negated ? ")(?s:.))" : ")");
}

/* After '['. Writes a fragment that matches one character; where the class is a plain list of members that may be
 * spliced into another class, `flat` gets them too. */
static enum err read_class(struct rewriter *w, struct buf *fragment, struct buf *flat, u32 depth)
{
	if (depth > CLASS_DEPTH_MAX)
		return err_set(w->em, ERR_UNSUPPORTED, "regex: classes nested deeper than %d", CLASS_DEPTH_MAX);
	struct operand o = {0};
	struct buf before = {0}; /* lookaheads of the operands before the last && */
	enum err e = ERR_OK;
	bool negated = w->at < w->end && *w->at == '^';
	w->at += negated;
	if (w->at < w->end && *w->at == ']') {
		buf_append_str(&o.members, "\\]");
		w->at++;
	}
	while (e == ERR_OK && w->at < w->end && *w->at != ']') {
		if (w->end - w->at >= 2 && w->at[0] == '&' && w->at[1] == '&') {
			w->at += 2;
			buf_append_str(&before, "(?=");
			operand_fragment(&o, false, &before);
			buf_append_char(&before, ')');
			buf_clear(&o.members);
			buf_clear(&o.others);
			continue;
		}
		e = read_member(w, &o, depth);
	}
	if (e == ERR_OK && w->at >= w->end)
		e = err_set(w->em, ERR_FORMAT, "regex: a class \"[\" has no \"]\"");
	w->at++;
	if (e == ERR_OK && before.bytes > 0) {
		buf_printf(fragment, negated ? "(?:(?!%s" : "(?:%s", buf_cstr(&before));
		operand_fragment(&o, false, fragment);
		buf_append_str(fragment, negated ? ")(?s:.))" : ")");
	} else if (e == ERR_OK) {
		operand_fragment(&o, negated, fragment);
		if (!negated && o.others.bytes == 0)
			buf_append(flat, o.members.data, o.members.bytes);
	}
	buf_fini(&before);
	buf_fini(&o.members);
	buf_fini(&o.others);
	return e;
}

/* ---- outside classes ---- */

/* (?im-x) and (?im-x: : Ruby's m is PCRE2's s. */
static void copy_group_open(struct rewriter *w)
{
	if (w->group_depth < GROUP_DEPTH_MAX)
		w->group_start[w->group_depth] = w->out->bytes;
	w->group_depth++;
	buf_append_char(w->out, *w->at++);
	if (w->end - w->at < 2 || *w->at != '?')
		return;
	const char *p = w->at + 1;
	while (p < w->end && strchr("imx-", *p) != NULL)
		p++;
	if (p == w->at + 1 || p >= w->end || (*p != ')' && *p != ':'))
		return;
	for (; w->at < p; w->at++)
		buf_append_char(w->out, *w->at == 'm' ? 's' : *w->at);
}

/* x{n,m}+ -> (?:x{n,m})+ */
static bool copy_repeated_interval(struct rewriter *w)
{
	const char *p = w->at + 1;
	while (p < w->end && (isdigit((unsigned char)*p) || *p == ','))
		p++;
	if (p >= w->end || *p != '}' || p + 1 >= w->end || p[1] != '+' || !buf_reserve(w->out, 3))
		return false;
	memmove(w->out->data + w->atom_start + 3, w->out->data + w->atom_start, w->out->bytes - w->atom_start);
	memcpy(w->out->data + w->atom_start, "(?:", 3);
	w->out->bytes += 3;
	buf_append(w->out, w->at, (size_t)(p + 1 - w->at));
	buf_append_char(w->out, ')');
	w->at = p + 1;
	return true;
}

static enum err rewrite_escape(struct rewriter *w)
{
	char set[160];
	bool negated;
	w->atom_start = w->out->bytes;
	if (read_set_escape(w, true, set, sizeof(set), &negated)) {
		bool single = strncmp(set, "\\p{", 3) == 0 && strchr(set + 3, '\\') == NULL && !negated;
		buf_printf(w->out, single ? "%s%s" : "[%s%s]", negated ? "^" : "", set);
		return ERR_OK;
	}
	if (copy_hex4(w, w->out))
		return ERR_OK;
	if (w->end - w->at >= 2 && (w->at[1] == 'b' || w->at[1] == 'O')) {
		buf_append_str(w->out, w->at[1] == 'b' ? WORD_BOUNDARY : "(?s:.)");
		w->at += 2;
		return ERR_OK;
	}
	buf_append_char(w->out, *w->at++);
	if (w->at < w->end)
		buf_append_char(w->out, *w->at++);
	return ERR_OK;
}

static enum err rewrite_one(struct rewriter *w)
{
	struct buf flat = {0};
	enum err e = ERR_OK;
	switch (*w->at) {
	case '\\':
		return rewrite_escape(w);
	case '[':
		w->at++;
		w->atom_start = w->out->bytes;
		e = read_class(w, w->out, &flat, 0);
		buf_fini(&flat);
		return e;
	case '(':
		if (w->end - w->at >= 3 && w->at[1] == '?' && w->at[2] == '~')
			return err_set(w->em, ERR_UNSUPPORTED, "regex: the absent operator (?~ is not supported");
		copy_group_open(w);
		return ERR_OK;
	case ')':
		if (w->group_depth > 0)
			w->group_depth--;
		w->atom_start = w->group_depth < GROUP_DEPTH_MAX ? w->group_start[w->group_depth] : w->out->bytes;
		break;
	case '{':
		if (copy_repeated_interval(w))
			return ERR_OK;
		break;
	case '*':
	case '+':
	case '?':
		break;
	default:
		w->atom_start = w->out->bytes;
	}
	/* A character of several bytes is one atom. */
	do {
		buf_append_char(w->out, *w->at++);
	} while (w->at < w->end && ((u8)*w->at & 0xc0) == 0x80);
	return ERR_OK;
}

enum err regex_rewrite(struct buf *out, const char *pattern, size_t bytes, struct err_msg *em)
{
	struct rewriter w = {.at = pattern, .end = pattern + bytes, .out = out, .em = em};
	while (w.at < w.end) {
		enum err e = rewrite_one(&w);
		if (e != ERR_OK)
			return e;
	}
	return buf_ok(out) ? ERR_OK : ERR_NO_MEMORY;
}
