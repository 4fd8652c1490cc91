/* An answer that may hold tool calls: whole and in pieces, whose size the first byte chooses, content and
 * calls are the same, and nothing is told twice. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proc_gateway/tool_calls.h"

static void read_answer(struct tool_calls *t, const char *text, size_t bytes, size_t piece,
			struct buf *content)
{
	for (size_t at = 0; at < bytes; at += piece) {
		struct buf delta = {0};
		tool_calls_feed(t, text + at, piece < bytes - at ? piece : bytes - at, content);
		tool_calls_write_delta(t, &delta);
		if (tool_calls_due(t))
			abort();
		buf_fini(&delta);
	}
	tool_calls_end(t, content);
}

static bool same(const struct buf *a, const struct buf *b)
{
	return a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const char names[] = "[{\"name\": \"f\"}]";
	struct json_doc *tools = NULL;
	struct buf contents[2] = {{0}, {0}};
	struct tool_calls readers[2];
	if (bytes < 2 || json_parse(&tools, names, sizeof(names) - 1, NULL) != ERR_OK)
		return 0;
	enum tool_format format = TOOL_FORMAT_HERMES + data[0] % 3;
	size_t piece = 1 + data[0] / 3 % 16;
	for (int i = 0; i < 2; i++) {
		readers[i] = (struct tool_calls){
			.format = format, .tools = json_root(tools), .one = data[0] >= 192};
		read_answer(&readers[i], (const char *)data + 1, bytes - 1, i ? piece : bytes, &contents[i]);
	}
	if (!same(&contents[0], &contents[1]) || readers[0].count != readers[1].count)
		abort();
	for (uint32_t i = 0; i < readers[0].count; i++) {
		if (!same(&readers[0].calls[i].name, &readers[1].calls[i].name) ||
		    !same(&readers[0].calls[i].arguments, &readers[1].calls[i].arguments))
			abort();
	}
	for (int i = 0; i < 2; i++) {
		buf_fini(&contents[i]);
		tool_calls_fini(&readers[i]);
	}
	json_free(&tools);
	return 0;
}
