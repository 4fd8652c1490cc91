/* Where a document that is no JSON goes wrong: the parser itself does not say. Runs only behind an error. */
#include <string.h>

#include "common/json_priv.h"
#include "common/types.h"

/* What comes next. */
enum place { VALUE, VALUE_OR_END, KEY, KEY_OR_END, COLON, BEHIND };

struct walk {
	const char *text;
	size_t bytes, at;
	enum place place;
	u64 objects; /* a bit for each open bracket, the innermost lowest: it is one of an object */
	u32 depth;
	const char *reason;
};

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool starts_with(const struct walk *w, const char *word)
{
	size_t bytes = strlen(word);

	return w->bytes - w->at >= bytes && memcmp(w->text + w->at, word, bytes) == 0;
}

static bool fault(struct walk *w, const char *reason)
{
	w->reason = reason;
	return false;
}

static bool take_string(struct walk *w, enum place next)
{
	for (size_t i = w->at + 1; i < w->bytes; i++) {
		if (w->text[i] == '\\') {
			i++;
		} else if (w->text[i] == '"') {
			w->at = i + 1;
			w->place = next;
			return true;
		}
	}
	return fault(w, "a string is not closed");
}

static bool take_open(struct walk *w, bool object)
{
	if (w->depth++ == 64)
		return fault(w, "it is nested deeper than 64 levels");
	w->objects = w->objects << 1 | object;
	w->place = object ? KEY_OR_END : VALUE_OR_END;
	w->at++;
	return true;
}

static bool take_close(struct walk *w)
{
	w->objects >>= 1;
	w->depth--;
	w->place = BEHIND;
	w->at++;
	return true;
}

/* Numbers are not judged here. */
static bool take_value(struct walk *w)
{
	static const char *const words[] = {"true", "false", "null"};
	static const char *const others[] = {"NaN", "nan", "Infinity", "-Infinity", "-NaN", "inf", "-inf"};
	char c = w->text[w->at];

	if (c == '{' || c == '[')
		return take_open(w, c == '{');
	if (c == ']' && w->place == VALUE_OR_END)
		return take_close(w);
	if (c == '"')
		return take_string(w, BEHIND);
	for (size_t i = 0; i < COUNT_OF(others); i++)
		if (starts_with(w, others[i]))
			return fault(w, "NaN and Infinity are no JSON; a number or null would be");
	w->place = BEHIND;
	for (size_t i = 0; i < COUNT_OF(words); i++)
		if (starts_with(w, words[i])) {
			w->at += strlen(words[i]);
			return true;
		}
	if (c != '-' && (c < '0' || c > '9'))
		return fault(w, "a value is missing or misplaced");
	while (w->at < w->bytes && w->text[w->at] && strchr("+-.eE0123456789", w->text[w->at]))
		w->at++;
	return true;
}

static bool take_behind(struct walk *w)
{
	char c = w->text[w->at];
	bool object = w->objects & 1;

	if (w->depth == 0)
		return fault(w, "what stands behind the end is misplaced");
	if (c == (object ? '}' : ']'))
		return take_close(w);
	if (c != ',')
		return fault(w, object ? "a comma or } is missing or misplaced" : "a comma or ] is missing or misplaced");
	w->place = object ? KEY : VALUE;
	w->at++;
	return true;
}

static bool take_key(struct walk *w)
{
	char c = w->text[w->at];

	if (c == '}' && w->place == KEY_OR_END)
		return take_close(w);
	return c == '"' ? take_string(w, COLON) : fault(w, "a key in double quotes is missing or misplaced");
}

static bool take(struct walk *w)
{
	switch (w->place) {
	case VALUE:
	case VALUE_OR_END:
		return take_value(w);
	case KEY:
	case KEY_OR_END:
		return take_key(w);
	case COLON:
		if (w->text[w->at] != ':')
			return fault(w, "a colon is missing or misplaced");
		w->at++;
		w->place = VALUE;
		return true;
	case BEHIND:
		return take_behind(w);
	}
	return false;
}

size_t json_locate(const char *text, size_t bytes, const char **reason)
{
	struct walk w = {.text = text, .bytes = bytes, .place = VALUE};

	for (;;) {
		while (w.at < bytes && is_space(text[w.at]))
			w.at++;
		if (w.at == bytes)
			break;
		if (!take(&w)) {
			*reason = w.reason;
			return w.at;
		}
	}
	if (w.depth == 0 && w.place == BEHIND)
		return SIZE_MAX;
	*reason = "it ends too early: a bracket or value is missing or misplaced";
	return bytes;
}
