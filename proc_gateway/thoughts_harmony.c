/* Owns the form in which gpt-oss answers, which OpenAI calls harmony: messages in channels,
 *
 *	<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
 *
 * of which analysis is thought and final is said. A call is a message in the channel commentary with a recipient,
 * "to=functions.NAME", whose text is the arguments; it is handed on in the form that the reader of tool calls knows. Runs in
 * the gateway. Never waits for more than a header or a mark. */
#include <string.h>

#include "proc_gateway/thoughts.h"

enum { HEADER_MAX = 1024 }; /* bytes; a longer one is no header */

static const char channel[] = "<|channel|>", start[] = "<|start|>", message[] = "<|message|>";
static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", start, channel};

/* Whether `text` is `mark`, or its beginning. */
static bool may_be(const char *text, size_t bytes, const char *mark)
{
	const size_t length = strlen(mark);
	return memcmp(text, mark, bytes < length ? bytes : length) == 0;
}

/* A channel's name begins a header, and so does a message's start. Anything else is text as it stands. */
static bool outside(struct thoughts *t)
{
	const size_t least = t->held.bytes;
	if (!may_be(t->held.data, least, channel) && !may_be(t->held.data, least, start)) {
		t->state = THOUGHTS_CONTENT;
		return true;
	}
	const char *mark = may_be(t->held.data, least, channel) ? channel : start;
	if (least < strlen(mark))
		return false;
	if (mark == start) /* the role stands in front of the channel */
		buf_consume(&t->held, strlen(mark));
	t->state = THOUGHTS_BEGIN;
	return true;
}

/* The word behind `key` in a header, up to white space or a mark. */
static const char *word_behind(const char *header, size_t header_bytes, const char *key, size_t *bytes)
{
	const char *at = memmem(header, header_bytes, key, strlen(key)), *end = header + header_bytes;
	*bytes = 0;
	if (!at)
		return "";
	at += strlen(key);
	while (at + *bytes < end && !strchr(" \t\r\n<", at[*bytes]))
		++*bytes;
	return at;
}

static bool header(struct thoughts *t, struct buf *content)
{
	/* no further, so that pieces of any size say the same */
	const char *end = memmem(t->held.data, t->held.bytes < HEADER_MAX ? t->held.bytes : HEADER_MAX, message, strlen(message));
	if (!end && t->held.bytes >= HEADER_MAX)
		t->state = THOUGHTS_CONTENT;
	if (!end)
		return t->state == THOUGHTS_CONTENT;
	const size_t bytes = (size_t)(end - t->held.data);
	size_t name_bytes, to_bytes;
	const char *name = word_behind(t->held.data, bytes, channel, &name_bytes),
		   *to = word_behind(t->held.data, bytes, "to=", &to_bytes);
	const bool analysis = name_bytes == strlen("analysis") && memcmp(name, "analysis", name_bytes) == 0;
	t->call = t->calls && to_bytes > 0;
	t->state = analysis && !t->call ? THOUGHTS_INSIDE : THOUGHTS_BEHIND;
	if (t->call) {
		static const char space[] = "functions.";
		const bool spaced = to_bytes > strlen(space) && memcmp(to, space, strlen(space)) == 0;
		buf_append_str(content, "<tool_call>{\"name\": ");
		json_escape(content, spaced ? to + strlen(space) : to, spaced ? to_bytes - strlen(space) : to_bytes);
		buf_append_str(content, ", \"arguments\": ");
	}
	buf_consume(&t->held, bytes + strlen(message));
	return true;
}

/* The text of a message up to a mark, or up to what may become one. */
static bool body(struct thoughts *t, struct buf *to)
{
	size_t bytes = 0;
	const char *mark = NULL;
	for (; bytes < t->held.bytes && !mark; bytes++) {
		const char *at = memchr(t->held.data + bytes, '<', t->held.bytes - bytes);
		bytes = at ? (size_t)(at - t->held.data) : t->held.bytes;
		for (size_t i = 0; at && i < COUNT_OF(ends) && !mark; i++)
			mark = may_be(at, t->held.bytes - bytes, ends[i]) ? ends[i] : NULL;
		if (mark || !at)
			break;
	}
	const bool whole = mark && t->held.bytes - bytes >= strlen(mark);
	buf_append(to, t->held.data, bytes);
	if (whole && t->call)
		buf_append_str(to, "}</tool_call>");
	const bool next = mark == start || mark == channel; /* begins what comes */
	buf_consume(&t->held, bytes + (whole && !next ? strlen(mark) : 0));
	if (whole) {
		t->state = THOUGHTS_BEFORE;
		t->call = false;
	}
	return whole;
}

void thoughts_harmony_feed(struct thoughts *t, struct buf *thought, struct buf *content)
{
	for (bool again = true; again && t->held.bytes > 0;) {
		switch (t->state) {
		case THOUGHTS_BEFORE:
			again = outside(t);
			break;
		case THOUGHTS_BEGIN:
			again = header(t, content);
			break;
		case THOUGHTS_INSIDE:
			again = body(t, thought);
			break;
		case THOUGHTS_BEHIND:
			again = body(t, content);
			break;
		case THOUGHTS_CONTENT:
			buf_append(content, t->held.data, t->held.bytes);
			buf_clear(&t->held);
			again = false;
			break;
		}
	}
}
