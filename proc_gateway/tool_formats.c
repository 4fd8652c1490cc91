/* Owns which form of tool calls a model's chat template writes; runs in the gateway. Never reads an answer.
 */
#include <string.h>

#include "proc_gateway/tool_calls.h"

static const char example[] =
	"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
	"\"\", "
	"\"tool_calls\": [{\"id\": \"abcdefghi\", \"type\": \"function\", \"function\": {\"name\": "
	"\"look_up_x\", "
	"\"arguments\": {\"key_y\": \"z\"}}}]}, {\"role\": \"tool\", \"name\": \"look_up_x\", "
	"\"tool_call_id\": "
	"\"abcdefghi\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": "
	"\"user\", "
	"\"content\": \"q\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look_up_x\", "
	"\"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"key_y\": "
	"{\"type\": "
	"\"string\", \"description\": \"d\"}}, \"required\": [\"key_y\"]}}}]}";

static const char *const names[] = {"none", "hermes", "llama3_json", "qwen3_coder", "mistral", "mistral"};

const char *tool_format_name(enum tool_format format)
{
	return names[format];
}

bool tool_format_needs_special(enum tool_format format)
{
	return format == TOOL_FORMAT_LLAMA3 || tool_format_is_mistral(format);
}

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Whether `text` ends with `mark`, white space aside. */
static bool ends_with(const char *text, size_t bytes, const char *mark)
{
	size_t length = strlen(mark);
	while (bytes > 0 && is_space(text[bytes - 1]))
		bytes--;
	return bytes >= length && memcmp(text + bytes - length, mark, length) == 0;
}

/* By what stands around the example's call; `text` also lists the tool, which has no value of an argument. */
static enum tool_format format_of(const char *text)
{
	static const char name[] = "\"name\": \"look_up_x\"";
	for (const char *at = text; (at = strstr(at, name)) != NULL; at += sizeof(name) - 1) {
		const char *object = at, *behind = at + sizeof(name) - 1;
		while (object > text && is_space(object[-1]))
			object--;
		if (object == text || object[-1] != '{')
			continue;
		size_t before = (size_t)(object - 1 - text);
		bool arguments = strncmp(behind, ", \"arguments\": {\"key_y\"", 23) == 0;
		if (arguments && ends_with(text, before, "<tool_call>"))
			return TOOL_FORMAT_HERMES;
		if (arguments &&
		    (ends_with(text, before, "[TOOL_CALLS] [") || ends_with(text, before, "[TOOL_CALLS][")))
			return TOOL_FORMAT_MISTRAL;
		if (strncmp(behind, ", \"parameters\": {\"key_y\"", 24) == 0)
			return TOOL_FORMAT_LLAMA3;
	}
	if (strstr(text, "<function=look_up_x>") && strstr(text, "<parameter=key_y>"))
		return TOOL_FORMAT_QWEN3_CODER;
	const char *named = strstr(text, "[TOOL_CALLS]look_up_x");
	named = named ? named : strstr(text, "[TOOL_CALLS] look_up_x");
	if (!named)
		return TOOL_FORMAT_NONE;
	return strstr(named, "[ARGS]{\"key_y\"") ? TOOL_FORMAT_MISTRAL_ARGS : TOOL_FORMAT_MISTRAL;
}

enum tool_format tool_format_of_template(const struct chat_template *t)
{
	struct json_doc *doc = NULL;
	struct buf text = {0};
	struct err_msg em;
	enum tool_format format = TOOL_FORMAT_NONE;
	if (!t || json_parse(&doc, example, sizeof(example) - 1, &em) != ERR_OK)
		return TOOL_FORMAT_NONE;
	struct chat_request chat = {.messages = json_get(json_root(doc), "messages"),
				    .tools = json_get(json_root(doc), "tools"),
				    .bos_token = "<s>",
				    .eos_token = "</s>"};
	if (chat_template_render(t, &chat, &text, &em) == ERR_OK && buf_ok(&text))
		format = format_of(buf_cstr(&text));
	buf_fini(&text);
	json_free(&doc);
	return format;
}
