/* Owns the border between what a model thinks and what it says; runs in the gateway. Never looks at what lies behind the
 * first thought: an answer that speaks of the marks keeps them. */
#include <string.h>

#include "proc_gateway/thoughts.h"

static const struct {
	const char *name, *begin, *end;
	bool special;
} formats[] = {
	[THOUGHT_FORMAT_NONE] = {"none", "", "", false},
	[THOUGHT_FORMAT_THINK] = {"think", "<think>", "</think>", false},
	[THOUGHT_FORMAT_MISTRAL] = {"mistral", "[THINK]", "[/THINK]", true},
	[THOUGHT_FORMAT_SEED] = {"seed_oss", "<seed:think>", "</seed:think>", false},
	[THOUGHT_FORMAT_HARMONY] = {"harmony", "<|channel|>", "", true},
};

enum { SPACE_MAX = 64 }; /* bytes of white space that may belong to a mark */

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---------------------------------------------------------------- which marks */

const char *thought_format_name(enum thought_format format)
{
	return formats[format].name;
}

const char *thought_format_end(enum thought_format format)
{
	return formats[format].end;
}

bool thought_format_needs_special(enum thought_format format, const struct tokenizer *t)
{
	const char *const marks[] = {formats[format].begin, formats[format].end};
	bool special = formats[format].special;
	for (u32 i = 0, id; i < COUNT_OF(marks) && !special; i++)
		special = *marks[i] && tokenizer_find(t, marks[i], &id) && tokenizer_is_special(t, id);
	return special;
}

bool thought_format_opens(enum thought_format format, const char *prompt, size_t bytes)
{
	const size_t length = *formats[format].end ? strlen(formats[format].begin) : 0;
	while (bytes > 0 && is_space(prompt[bytes - 1]))
		bytes--;
	return length > 0 && bytes >= length && memcmp(prompt + bytes - length, formats[format].begin, length) == 0;
}

bool thought_format_unfinished(enum thought_format format, const char *text, size_t bytes)
{
	const char *begin = formats[format].begin, *end = formats[format].end;
	if (!*end)
		return false;
	for (; bytes > 0 && is_space(*text); bytes--)
		text++;
	return bytes >= strlen(begin) && memcmp(text, begin, strlen(begin)) == 0 && !memmem(text, bytes, end, strlen(end));
}

/* The marks in what a template makes of `chat`. */
static enum thought_format format_in(const struct chat_template *template, const struct chat_request *chat)
{
	enum thought_format found = THOUGHT_FORMAT_NONE;
	struct buf text = {0};
	struct err_msg em;
	if (chat_template_render(template, chat, &text, &em) == ERR_OK && buf_ok(&text))
		for (u32 f = 1; f < COUNT_OF(formats) && found == THOUGHT_FORMAT_NONE; f++)
			if (strstr(buf_cstr(&text), formats[f].begin))
				found = (enum thought_format)f;
	buf_fini(&text);
	return found;
}

/* An answer with thoughts, which templates write while no question follows; and the end of a prompt. */
static enum thought_format format_of_template(const struct chat_template *template)
{
	static const char example[] =
		"{\"kwargs\": {\"enable_thinking\": true, \"thinking\": true}, \"asked\": [{\"role\": \"user\", \"content\": "
		"\"q\"}], \"answered\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", "
		"\"reasoning_content\": \"r\"}]}";
	struct json_doc *doc = NULL;
	if (json_parse(&doc, example, sizeof(example) - 1, NULL) != ERR_OK)
		return THOUGHT_FORMAT_NONE;
	struct chat_request chat = {.messages = json_get(json_root(doc), "asked"),
				    .kwargs = json_get(json_root(doc), "kwargs"),
				    .bos_token = "<s>",
				    .eos_token = "</s>",
				    .add_generation_prompt = true};
	enum thought_format format = format_in(template, &chat);
	chat.messages = json_get(json_root(doc), "answered");
	chat.add_generation_prompt = false;
	if (format == THOUGHT_FORMAT_NONE)
		format = format_in(template, &chat);
	json_free(&doc);
	return format;
}

enum thought_format thought_format_of_model(const struct chat_template *template, const struct tokenizer *t)
{
	enum thought_format format = template ? format_of_template(template) : THOUGHT_FORMAT_NONE;
	for (u32 f = 1; f < COUNT_OF(formats) && format == THOUGHT_FORMAT_NONE; f++) {
		u32 id;
		if (tokenizer_find(t, *formats[f].end ? formats[f].end : formats[f].begin, &id))
			format = (enum thought_format)f;
	}
	return format;
}

/* ---------------------------------------------------------------- reading */

/* How many bytes at the end of `text` may become `mark`, together with the white space in front of them. */
static size_t undecided(const char *text, size_t bytes, const char *mark)
{
	size_t kept = strlen(mark) - 1;
	kept = kept < bytes ? kept : bytes;
	while (kept > 0 && memcmp(text + bytes - kept, mark, kept) != 0)
		kept--;
	for (size_t most = kept + SPACE_MAX; kept < most && kept < bytes && is_space(text[bytes - kept - 1]);)
		kept++;
	return kept;
}

static size_t leading_space(const struct buf *held)
{
	size_t n = 0;
	while (n < held->bytes && is_space(held->data[n]))
		n++;
	return n;
}

/* The first `bytes` of what is held, but for what stands in front of the answer. */
static void tell(const struct thoughts *t, size_t bytes, struct buf *out)
{
	if (bytes > t->told)
		buf_append(out, t->held.data + t->told, bytes - t->told);
}

static void drop(struct thoughts *t, size_t bytes)
{
	buf_consume(&t->held, bytes);
	t->told -= t->told < bytes ? t->told : bytes;
}

/* Whether the state has changed, so that what is held has to be looked at again. */
static bool before(struct thoughts *t)
{
	const char *mark = formats[t->format].begin;
	const size_t space = leading_space(&t->held), bytes = t->held.bytes - space, length = strlen(mark);
	if (space > SPACE_MAX || memcmp(t->held.data + space, mark, bytes < length ? bytes : length) != 0) {
		t->state = THOUGHTS_CONTENT;
		return true;
	}
	if (bytes < length)
		return false;
	drop(t, space + length);
	t->state = THOUGHTS_BEGIN;
	return true;
}

static bool inside(struct thoughts *t, struct buf *thought)
{
	const char *mark = formats[t->format].end;
	const char *at = memmem(t->held.data, t->held.bytes, mark, strlen(mark));
	size_t bytes = at ? (size_t)(at - t->held.data) : t->held.bytes - undecided(t->held.data, t->held.bytes, mark);
	const size_t until = at ? bytes + strlen(mark) : bytes;
	/* no more than may wait, so that pieces of any size say the same */
	for (const size_t least = bytes > SPACE_MAX ? bytes - SPACE_MAX : 0; at && bytes > least && is_space(t->held.data[bytes - 1]);)
		bytes--;
	tell(t, bytes, thought);
	drop(t, until);
	if (at)
		t->state = THOUGHTS_BEHIND;
	return at != NULL;
}

/* White space behind a mark. */
static bool skip_space(struct thoughts *t)
{
	drop(t, leading_space(&t->held));
	if (t->held.bytes == 0)
		return false;
	t->state = t->state == THOUGHTS_BEGIN ? THOUGHTS_INSIDE : THOUGHTS_CONTENT;
	return true;
}

static bool step(struct thoughts *t, struct buf *thought, struct buf *content)
{
	switch (t->state) {
	case THOUGHTS_BEFORE:
		return before(t);
	case THOUGHTS_BEGIN:
	case THOUGHTS_BEHIND:
		return skip_space(t);
	case THOUGHTS_INSIDE:
		return inside(t, thought);
	case THOUGHTS_CONTENT:
		tell(t, t->held.bytes, content);
		drop(t, t->held.bytes);
		return false;
	}
	return false;
}

void thoughts_feed(struct thoughts *t, const char *text, size_t bytes, struct buf *thought, struct buf *content)
{
	if (t->format == THOUGHT_FORMAT_NONE || (t->state == THOUGHTS_CONTENT && t->held.bytes == 0)) {
		buf_append(content, text, bytes);
		return;
	}
	buf_append(&t->held, text, bytes);
	content->failed |= t->held.failed;
	if (bytes == 0 || !buf_ok(&t->held))
		return;
	if (t->format == THOUGHT_FORMAT_HARMONY) {
		thoughts_harmony_feed(t, thought, content);
		return;
	}
	while (step(t, thought, content))
		;
}

void thoughts_continue(struct thoughts *t, const char *text, size_t bytes)
{
	struct buf nowhere = {0};
	thoughts_feed(t, text, bytes, &nowhere, &nowhere);
	t->told = t->held.bytes;
	buf_fini(&nowhere);
}

void thoughts_end(struct thoughts *t, struct buf *thought, struct buf *content)
{
	if (t->format == THOUGHT_FORMAT_HARMONY && t->state == THOUGHTS_BEGIN)
		buf_clear(&t->held); /* a header that was cut off says nothing */
	tell(t, t->held.bytes, t->state == THOUGHTS_INSIDE ? thought : content);
	drop(t, t->held.bytes);
}

bool thoughts_in_thought(const struct thoughts *t)
{
	if (t->format == THOUGHT_FORMAT_HARMONY) /* a header may be one of what is said: its tokens are marks, too */
		return t->state == THOUGHTS_BEGIN || t->state == THOUGHTS_INSIDE;
	return t->state == THOUGHTS_BEGIN || t->state == THOUGHTS_INSIDE || t->state == THOUGHTS_BEHIND;
}

void thoughts_fini(struct thoughts *t)
{
	buf_fini(&t->held);
}
