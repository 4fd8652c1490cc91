#include "stream_oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/finish.h"
#include "common/utf8.h"

static const char *const words[] = {"a",
				    "b",
				    "ab",
				    "ba",
				    "aab",
				    "b\xc3",
				    "\xa9",
				    "\xc3\xa9",
				    "\xe2\x82\xac",
				    "\xe2",
				    "\x82\xac",
				    "bab",
				    "",
				    "\xf0\x9f",
				    "\x98\x80"
				    "a",
				    "aaaa"};
static const char *const stop_choices[] = {"ab",
					   "ba",
					   "aaa",
					   "b\xc3\xa9",
					   "\xe2\x82\xac",
					   "abab",
					   "\xf0\x9f\x98\x80"
					   "a",
					   "bb",
					   "\xef\xbf\xbd"};

static bool hides(const struct scenario *c, u32 token, bool last_stop)
{
	if (last_stop && !(c->flags & SAMPLING_INCLUDE_STOP))
		return true;
	return (token == TOK_EOS || token == TOK_SPECIAL) && c->flags & SAMPLING_SKIP_SPECIAL;
}

static void bytes_of(u32 token, char *out)
{
	if (token < TOK_SPECIAL)
		snprintf(out, 16, "%c", (char)token);
	else if (token == TOK_SPECIAL || token == TOK_EOS)
		snprintf(out, 16, token == TOK_EOS ? "</s>" : "<s>");
	else
		snprintf(out, 16, "%s", words[token - TOK_WORDS]);
}

size_t naive_text(const struct scenario *c, u32 count, bool last_stop, bool flush, char *out)
{
	char raw[1024], piece[16];
	size_t n = 0, bytes = 0;
	for (u32 i = 0; i < count; i++) {
		if (hides(c, c->tokens[i], last_stop && i == count - 1))
			continue;
		bytes_of(c->tokens[i], piece);
		memcpy(raw + n, piece, strlen(piece));
		n += strlen(piece);
	}
	for (size_t at = 0; at < n;) {
		u32 code;
		int len = utf8_next(raw + at, n - at, &code);
		if (len == 0 && !flush)
			break;
		if (len > 0) {
			memcpy(out + bytes, raw + at, (size_t)len);
			bytes += (size_t)len;
			at += (size_t)len;
		} else {
			memcpy(out + bytes, "\xef\xbf\xbd", 3);
			bytes += 3;
			at = len == 0 ? n : at + (size_t)-len;
		}
	}
	return bytes;
}

/* The first stop that completes in the text, behind its first `from` bytes. */
static bool naive_stop(const struct scenario *c, const char *text, size_t bytes, size_t from, size_t *end,
		       u32 *index)
{
	for (*end = from + 1; *end <= bytes; (*end)++)
		for (*index = 0; *index < c->stop_count; (*index)++) {
			size_t n = strlen(c->stops[*index]);
			if (n <= *end && memcmp(text + *end - n, c->stops[*index], n) == 0)
				return true;
		}
	return false;
}

void oracle_run(const struct scenario *c, struct oracle *o)
{
	memset(o, 0, sizeof(*o));
	size_t searched = 0;
	for (u32 n = 1; n <= c->token_count; n++) {
		u32 token = c->tokens[n - 1];
		bool stop = n >= c->output_min && (token == TOK_EOS || token == c->stop_id);
		bool ends = stop || n >= c->output_max;
		size_t bytes = naive_text(c, n, stop, ends, o->text), end;
		u32 index;
		o->token_count = n;
		o->text_bytes = bytes;
		if (n > c->output_min && naive_stop(c, o->text, bytes, searched, &end, &index)) {
			o->text_bytes =
				c->flags & SAMPLING_INCLUDE_STOP ? end : end - strlen(c->stops[index]);
			o->finish = FINISH_STOP;
			o->stop_kind = 2;
			o->stop_value = index;
			return;
		}
		searched = bytes;
		if (!ends)
			continue;
		o->finish = stop ? FINISH_STOP : FINISH_LENGTH;
		o->stop_kind = stop && token != TOK_EOS;
		o->stop_value = o->stop_kind ? token : 0;
		return;
	}
}

void scenario_draw(struct scenario *c)
{
	c->token_count = 1 + (u32)rand() % 24;
	for (u32 i = 0; i < c->token_count; i++) {
		u32 x = (u32)rand() % 40;
		c->tokens[i] = x == 0	? TOK_EOS
			       : x == 1 ? TOK_SPECIAL
			       : x < 6	? (u32)'a' + x % 2
					: TOK_WORDS + (u32)rand() % 16;
	}
	c->stop_count = (u32)rand() % 4;
	for (u32 i = 0; i < c->stop_count; i++)
		c->stops[i] = stop_choices[(u32)rand() % COUNT_OF(stop_choices)];
	c->stop_id = rand() % 4 == 0 ? TOK_WORDS + (u32)rand() % 16 : 9999;
	c->flags = (rand() % 2 ? SAMPLING_SKIP_SPECIAL : 0) | (rand() % 3 == 0 ? SAMPLING_INCLUDE_STOP : 0);
	c->output_min = rand() % 3 == 0 ? (u32)rand() % 8 : 0;
	c->output_max = c->output_min + 1 + (u32)rand() % 24;
}

struct ipc_open scenario_open(const struct scenario *c, u64 seq, struct stop_list *list)
{
	struct ipc_open open = fixture_open(seq, 7, seq);
	open.flags = c->flags;
	open.output_min = c->output_min;
	open.output_max = c->output_max;
	open.stop_ids = &c->stop_id;
	open.stop_ids_count = 1;
	fixture_stops(&open, list, c->stops, c->stop_count);
	return open;
}

void oracle_words(void)
{
	for (u32 i = 0; i < COUNT_OF(words); i++)
		fixture_words[i] = words[i];
}
