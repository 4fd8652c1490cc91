/* Log lines to stderr, one write(2) each, so that the lines of several threads and processes never mix.
 * The only file with mutable state at file level: it is set once at start, before threads exist. */
#include "common/log.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/utf8.h"

enum { LINE_BYTES_MAX = 2000 };

static struct {
	char process[32];
	enum log_level level;
	bool json;
	bool colour;
	bool journal; /* systemd reads stderr: priorities go in front as "<6>" */
} log_state = {.process = "tercet", .level = LOG_LEVEL_INFO};

void log_init(const char *process, enum log_level level, bool json)
{
	const char *no_colour = getenv("NO_COLOR");
	const char *terminal = getenv("TERM");

	snprintf(log_state.process, sizeof(log_state.process), "%s", process);
	log_state.level = level;
	log_state.json = json;
	log_state.colour = !json && isatty(STDERR_FILENO) && (no_colour == NULL || no_colour[0] == '\0') &&
			   terminal != NULL && strcmp(terminal, "dumb") != 0;
	log_state.journal = !json && !isatty(STDERR_FILENO) && getenv("JOURNAL_STREAM") != NULL;
}

bool log_enabled(enum log_level level)
{
	return level >= log_state.level;
}

/* A line under construction; what does not fit is cut. Two bytes stay free for the end of the line. */
struct line {
	char text[LINE_BYTES_MAX];
	size_t bytes;
};

static void line_put(struct line *l, const char *text, size_t bytes)
{
	size_t room = sizeof(l->text) - 2 - l->bytes;

	if (bytes > room)
		bytes = room;
	memcpy(l->text + l->bytes, text, bytes);
	l->bytes += bytes;
}

static void line_puts(struct line *l, const char *text)
{
	line_put(l, text, strlen(text));
}

/* A JSON string; whole escapes only, so that a cut line is still closed properly by the caller. */
static void line_put_json(struct line *l, const char *text, size_t bytes)
{
	line_puts(l, "\"");
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		char escaped[8];
		if (c == '"' || c == '\\')
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		else if (c < 0x20)
			snprintf(escaped, sizeof(escaped), "\\u%04x", c);
		else
			snprintf(escaped, sizeof(escaped), "%c", c);
		size_t need = c >= 0xc0 ? 4 : strlen(escaped); /* no character is cut */
		if (l->bytes + need + 8 > sizeof(l->text))
			break;
		line_puts(l, escaped);
	}
	line_puts(l, "\"");
}

/* Whether `text` is a number of JSON's grammar that readers with 64-bit floats keep as it is: identifiers of more
 * digits stay strings. */
static bool is_json_number(const char *text, size_t bytes)
{
	enum { DIGITS_MAX = 15 };
	const char *p = text, *end = text + bytes;
	size_t digits = 0;

	p += p < end && *p == '-';
	const char *first = p;
	while (p < end && *p >= '0' && *p <= '9')
		p++;
	digits = (size_t)(p - first);
	if (digits == 0 || digits > DIGITS_MAX || (digits > 1 && *first == '0'))
		return false;
	if (p == end)
		return true;
	if (*p != '.')
		return false;
	const char *fraction = ++p;
	while (p < end && *p >= '0' && *p <= '9')
		p++;
	return p == end && p > fraction;
}

static void put_time(struct line *l)
{
	struct timespec ts;
	struct tm tm;
	char text[48];

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	n += (size_t)snprintf(text + n, sizeof(text) - n, ".%03ldZ", ts.tv_nsec / 1000000);
	line_put(l, text, n);
}

static const char *level_name(enum log_level level)
{
	static const char *const names[] = {"debug", "info", "warn", "error"};

	return names[level];
}

struct pair {
	const char *key, *value;
	size_t key_bytes; /* 0: a bare word */
	size_t value_bytes;
	bool quoted;
};

/* One key=value or key="quoted value" from `p`; returns what follows. */
static const char *next_pair(const char *p, struct pair *out)
{
	size_t n = strcspn(p, " =");

	*out = (struct pair){.key = p, .key_bytes = p[n] == '=' ? n : 0};
	if (p[n] == '=')
		p += n + 1;
	if (*p == '"' && out->key_bytes != 0) {
		const char *end = strchr(p + 1, '"');
		if (end == NULL)
			end = p + strlen(p);
		out->quoted = true;
		out->value = p + 1;
		out->value_bytes = (size_t)(end - out->value);
		p = *end == '"' ? end + 1 : end;
	} else {
		out->value = p;
		out->value_bytes = strcspn(p, " ");
		p += out->value_bytes;
	}
	return p + strspn(p, " ");
}

static void format_json(struct line *l, enum log_level level, const char *event, const char *pairs)
{
	line_puts(l, "{\"time\":\"");
	put_time(l);
	line_puts(l, "\",\"process\":");
	line_put_json(l, log_state.process, strlen(log_state.process));
	line_puts(l, ",\"level\":\"");
	line_puts(l, level_name(level));
	line_puts(l, "\",\"event\":");
	line_put_json(l, event, strlen(event));
	while (*pairs != '\0') {
		struct pair pair;
		pairs = next_pair(pairs, &pair);
		if (l->bytes + pair.key_bytes + 32 > sizeof(l->text))
			break;
		line_puts(l, ",");
		line_put_json(l, pair.key_bytes != 0 ? pair.key : "text",
			      pair.key_bytes != 0 ? pair.key_bytes : 4);
		line_puts(l, ":");
		if (!pair.quoted && is_json_number(pair.value, pair.value_bytes))
			line_put(l, pair.value, pair.value_bytes);
		else
			line_put_json(l, pair.value, pair.value_bytes);
	}
	line_puts(l, "}");
}

static void format_text(struct line *l, enum log_level level, const char *event, const char *pairs)
{
	static const char *const colours[] = {"\033[2m", "", "\033[33m", "\033[31m"};
	static const char *const priorities[] = {"<7>", "<6>", "<4>", "<3>"};

	if (log_state.journal)
		line_puts(l, priorities[level]);
	if (log_state.colour)
		line_puts(l, colours[level]);
	put_time(l);
	line_puts(l, " ");
	line_puts(l, log_state.process);
	line_puts(l, " ");
	line_puts(l, level_name(level));
	line_puts(l, " ");
	line_puts(l, event);
	if (pairs[0] != '\0')
		line_puts(l, " ");
	size_t begin = l->bytes;
	size_t reserve = log_state.colour ? 8 : 0;
	size_t bytes = strlen(pairs);
	if (bytes > sizeof(l->text) - 2 - reserve - l->bytes)
		bytes = sizeof(l->text) - 2 - reserve - l->bytes;
	line_put(l, pairs, bytes);
	/* A value must not be able to forge a line of its own. */
	for (size_t i = begin; i < l->bytes; i++)
		if ((unsigned char)l->text[i] < 0x20 || l->text[i] == 0x7f)
			l->text[i] = ' ';
	if (log_state.colour && colours[level][0] != '\0')
		line_puts(l, "\033[0m");
}

/* Values come from peers and files: what is no text must not make a line that collectors reject. */
static void replace_invalid(char *text)
{
	size_t bytes = strlen(text), at = 0;
	uint32_t code;

	while (at < bytes) {
		int n = utf8_next(text + at, bytes - at, &code);
		if (n > 0) {
			at += (size_t)n;
			continue;
		}
		for (size_t end = n < 0 ? at + (size_t)-n : bytes; at < end; at++)
			text[at] = '?';
	}
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
	char pairs[LINE_BYTES_MAX];
	struct line l = {.bytes = 0};
	va_list args;

	if (!log_enabled(level))
		return;
	va_start(args, fmt);
	vsnprintf(pairs, sizeof(pairs), fmt, args);
	va_end(args);
	replace_invalid(pairs);
	if (log_state.json)
		format_json(&l, level, event, pairs);
	else
		format_text(&l, level, event, pairs);
	l.text[l.bytes++] = '\n';
	/* A full or closed stderr must not stop an engine. */
	if (write(STDERR_FILENO, l.text, l.bytes) < 0)
		return;
}
