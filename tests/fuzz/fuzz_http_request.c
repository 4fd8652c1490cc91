/* Request heads and chunked bodies from outside, cut into two pieces at a place that the first byte chooses:
 * both ways of reading must see the same. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proc_gateway/http_parse.h"

static enum http_parse find(const char *text, size_t bytes, size_t cut, size_t *head_bytes)
{
	struct http_fault fault;
	size_t at = 0;
	enum http_parse got = HTTP_PARSE_MORE;
	if (cut < bytes)
		got = http_head_find(text, cut, &at, head_bytes, &fault);
	return got == HTTP_PARSE_MORE ? http_head_find(text, bytes, &at, head_bytes, &fault) : got;
}

static enum http_parse read_body(const char *text, size_t bytes, size_t cut, struct buf *body, size_t *total)
{
	struct http_chunked c = {0};
	struct http_fault fault;
	size_t used = 0;
	*total = 0;
	enum http_parse got = HTTP_PARSE_MORE;
	if (cut < bytes) {
		got = http_chunked_read(&c, text, cut, &used, body, 4096, &fault);
		*total = used;
	}
	if (got == HTTP_PARSE_MORE) {
		got = http_chunked_read(&c, text + *total, bytes - *total, &used, body, 4096, &fault);
		*total += used;
	}
	return got;
}

/* What is read of a head that is refused is what the whole one says. */
static void peek(const char *text, size_t bytes, const char *path)
{
	struct http_head head;
	char *copy = malloc(bytes + 1);
	memcpy(copy, text, bytes);
	http_head_peek(copy, bytes, &head);
	if (strlen(head.method_text) + strlen(head.path) + strlen(head.query) > bytes || (path && strcmp(head.path, path) != 0))
		abort();
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct http_head head;
	struct http_fault fault;
	struct buf whole = {0}, pieces = {0};
	size_t one = 0, two = 0, one_total, two_total;
	if (bytes < 2)
		return 0;
	size_t cut = 1 + data[0] % bytes;
	const char *text = (const char *)data + 1;
	bytes--;
	enum http_parse found = find(text, bytes, bytes, &one);
	if (found != find(text, bytes, cut, &two) || one != two)
		abort();
	if (found == HTTP_PARSE_DONE) {
		char *copy = malloc(one);
		memcpy(copy, text, one);
		bool whole_head = http_head_parse(copy, one, &head, &fault);
		if (whole_head && head.chunked && head.content_length)
			abort();
		peek(text, bytes, whole_head ? head.path : NULL);
		free(copy);
	} else {
		peek(text, bytes, NULL);
	}
	const char *rest = text + (found == HTTP_PARSE_DONE ? one : 0);
	size_t rest_bytes = bytes - (size_t)(rest - text);
	enum http_parse first = read_body(rest, rest_bytes, rest_bytes, &whole, &one_total);
	enum http_parse second = read_body(rest, rest_bytes, cut, &pieces, &two_total);
	if (first != second || whole.bytes != pieces.bytes || one_total != two_total ||
	    (whole.bytes && memcmp(whole.data, pieces.data, whole.bytes) != 0))
		abort();
	buf_fini(&whole);
	buf_fini(&pieces);
	return 0;
}
