/* Owns the reading of HTTP/1 request heads and chunked bodies; runs in the gateway, in its tests and in its
 * fuzzer. Never does input or output and never accepts what RFC 9112 leaves to the reader's guess. */
#include <string.h>
#include <strings.h>

#include "common/assert.h"
#include "proc_gateway/http_parse.h"

static bool fault_set(struct http_fault *fault, int status, const char *text)
{
	*fault = (struct http_fault){.status = status, .text = text};
	return false;
}

enum http_parse http_head_find(const char *data, size_t bytes, size_t *at, size_t *head_bytes,
			       struct http_fault *fault)
{
	while (*at < bytes) {
		const char *newline = memchr(data + *at, '\n', bytes - *at);
		if (!newline) {
			*at = bytes;
			return HTTP_PARSE_MORE;
		}
		size_t end = (size_t)(newline - data);
		if (end == 0 || data[end - 1] != '\r') {
			fault_set(fault, 400, "A line of the request head does not end in CR LF.");
			return HTTP_PARSE_BAD;
		}
		*at = end + 1;
		if (end >= 3 && data[end - 2] == '\n') {
			*head_bytes = end + 1;
			return HTTP_PARSE_DONE;
		}
	}
	return HTTP_PARSE_MORE;
}

/* RFC 9110 5.6.2: characters of method and header names. */
static bool is_token_char(unsigned char c)
{
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		return true;
	return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static enum http_method method_from_text(const char *text)
{
	if (strcmp(text, "GET") == 0)
		return HTTP_METHOD_GET;
	if (strcmp(text, "POST") == 0)
		return HTTP_METHOD_POST;
	if (strcmp(text, "HEAD") == 0)
		return HTTP_METHOD_HEAD;
	if (strcmp(text, "OPTIONS") == 0)
		return HTTP_METHOD_OPTIONS;
	if (strcmp(text, "DELETE") == 0)
		return HTTP_METHOD_DELETE;
	return HTTP_METHOD_OTHER;
}

static bool parse_target(char *target, struct http_head *out, struct http_fault *fault)
{
	if (strncasecmp(target, "http://", 7) == 0) { /* the absolute form that proxies are sent */
		target = strchr(target + 7, '/');
		if (!target)
			return fault_set(fault, 400, "The request target has no path.");
	}
	if (*target != '/' && strcmp(target, "*") != 0)
		return fault_set(fault, 400, "The request target does not begin with '/'.");
	char *question = strchr(target, '?');
	if (question)
		*question = '\0';
	out->path = target;
	out->query = question ? question + 1 : "";
	return true;
}

/* `line` is one line, NUL-terminated in place of its CR. */
static bool parse_request_line(char *line, struct http_head *out, struct http_fault *fault)
{
	char *p = line;
	while (is_token_char((unsigned char)*p))
		p++;
	if (p == line || *p != ' ')
		return fault_set(fault, 400, "The request line does not begin with a method and one space.");
	*p++ = '\0';
	out->method_text = line;
	out->method = method_from_text(line);
	char *target = p;
	while ((unsigned char)*p > ' ' && *p != 0x7f)
		p++;
	if (p == target || *p != ' ')
		return fault_set(fault, 400,
				 "The request target is empty or holds blanks or control characters.");
	*p++ = '\0';
	if (strncmp(p, "HTTP/", 5) != 0)
		return fault_set(fault, 400, "The request line does not end in the HTTP version.");
	if (!parse_target(target, out, fault))
		return false;
	if (strcmp(p, "HTTP/1.1") != 0 && strcmp(p, "HTTP/1.0") != 0)
		return fault_set(fault, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
	out->minor_version = p[7] == '1';
	return true;
}

static bool parse_header_line(char *line, size_t bytes, struct http_head *out, struct http_fault *fault)
{
	if (*line == ' ' || *line == '\t')
		return fault_set(fault, 400, "Folded header lines are not accepted.");
	size_t at = 0;
	while (at < bytes && is_token_char((unsigned char)line[at])) {
		if (line[at] >= 'A' && line[at] <= 'Z')
			line[at] = (char)(line[at] - 'A' + 'a');
		at++;
	}
	if (at == 0 || at == bytes || line[at] != ':')
		return fault_set(fault, 400, "A header line is not of the form \"name: value\".");
	if (out->header_count == HTTP_HEADERS_MAX)
		return fault_set(fault, 431, "The request has more than 64 headers.");
	line[at++] = '\0';
	while (at < bytes && (line[at] == ' ' || line[at] == '\t'))
		at++;
	size_t end = bytes;
	while (end > at && (line[end - 1] == ' ' || line[end - 1] == '\t'))
		end--;
	for (size_t i = at; i < end; i++) {
		unsigned char c = (unsigned char)line[i];
		if ((c < ' ' && c != '\t') || c == 0x7f)
			return fault_set(fault, 400, "A header value holds a control character.");
	}
	line[end] = '\0'; /* the CR at the latest */
	out->headers[out->header_count++] = (struct http_header){.name = line, .value = line + at};
	return true;
}

const char *http_head_get(const struct http_head *head, const char *name)
{
	for (u32 i = 0; i < head->header_count; i++) {
		if (strcmp(head->headers[i].name, name) == 0)
			return head->headers[i].value;
	}
	return NULL;
}

static bool parse_content_length(const char *text, u64 *out)
{
	size_t digits = strspn(text, "0123456789");
	if (digits == 0 || digits > 18 || text[digits] != '\0')
		return false;
	*out = 0;
	for (const char *p = text; *p; p++)
		*out = *out * 10 + (u64)(*p - '0');
	return true;
}

/* Whether the comma-separated list holds `word`, whatever its case. */
static bool list_has(const char *list, const char *word)
{
	size_t word_bytes = strlen(word);
	while (*list) {
		list += strspn(list, " \t,");
		size_t bytes = strcspn(list, " \t,");
		if (bytes == word_bytes && strncasecmp(list, word, bytes) == 0)
			return true;
		list += bytes;
	}
	return false;
}

struct framing {
	u32 hosts, lengths, codings;
};

static bool apply_framing_header(const struct http_header *h, struct http_head *out, struct framing *seen,
				 struct http_fault *fault)
{
	if (strcmp(h->name, "host") == 0) {
		seen->hosts++;
	} else if (strcmp(h->name, "content-encoding") == 0) {
		if (strcasecmp(h->value, "identity") != 0)
			return fault_set(fault, 415, "Request bodies are taken as they are, not compressed: leave Content-Encoding away.");
	} else if (strcmp(h->name, "content-length") == 0) {
		if (seen->lengths++ > 0)
			return fault_set(fault, 400, "Content-Length is given more than once.");
		if (!parse_content_length(h->value, &out->content_length))
			return fault_set(fault, 400, "Content-Length is not a number.");
	} else if (strcmp(h->name, "transfer-encoding") == 0) {
		if (seen->codings++ > 0 || strcasecmp(h->value, "chunked") != 0)
			return fault_set(fault, 501, "The only Transfer-Encoding taken is \"chunked\".");
		out->chunked = true;
	} else if (strcmp(h->name, "connection") == 0) {
		if (list_has(h->value, "close"))
			out->keep_alive = false;
		else if (out->minor_version == 0 && list_has(h->value, "keep-alive"))
			out->keep_alive = true;
	} else if (strcmp(h->name, "expect") == 0) {
		if (strcasecmp(h->value, "100-continue") != 0)
			return fault_set(fault, 417, "The only expectation met is \"100-continue\".");
		out->expect_continue = out->minor_version == 1;
	}
	return true;
}

static bool apply_framing(struct http_head *out, struct http_fault *fault)
{
	struct framing seen = {0};
	out->keep_alive = out->minor_version == 1;
	for (u32 i = 0; i < out->header_count; i++) {
		if (!apply_framing_header(&out->headers[i], out, &seen, fault))
			return false;
	}
	if (seen.hosts > 1 || (seen.hosts == 0 && out->minor_version == 1))
		return fault_set(fault, 400, "A request has to have exactly one Host header.");
	if (out->chunked && (seen.lengths > 0 || out->minor_version == 0))
		return fault_set(fault, 400,
				 "Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0.");
	return true;
}

bool http_head_parse(char *data, size_t bytes, struct http_head *out, struct http_fault *fault)
{
	ASSERT(bytes >= 4 && data[bytes - 1] == '\n');
	memset(out, 0, offsetof(struct http_head, headers));
	char *line = data;
	bool first = true;
	for (;;) {
		char *newline = memchr(line, '\n', (size_t)(data + bytes - line));
		ASSERT(newline && newline > data && newline[-1] == '\r');
		size_t line_bytes = (size_t)(newline - 1 - line);
		if (line_bytes == 0)
			break;
		if (memchr(line, '\0', line_bytes))
			return fault_set(fault, 400, "The request head holds a NUL.");
		line[line_bytes] = '\0';
		if (first ? !parse_request_line(line, out, fault)
			  : !parse_header_line(line, line_bytes, out, fault))
			return false;
		first = false;
		line = newline + 1;
	}
	if (first)
		return fault_set(fault, 400, "The request line is missing.");
	return apply_framing(out, fault);
}

void http_head_peek(char *data, size_t bytes, struct http_head *out)
{
	struct http_fault ignored;
	char *newline = bytes ? memchr(data, '\n', bytes) : NULL;
	memset(out, 0, offsetof(struct http_head, headers));
	if (newline && newline > data && newline[-1] == '\r' && !memchr(data, '\0', (size_t)(newline - data))) {
		newline[-1] = '\0';
		(void)!parse_request_line(data, out, &ignored);
	}
	out->minor_version = 1;
	if (out->path)
		return;
	out->method = 0;
	out->method_text = out->path = out->query = "";
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool http_percent_decode(char *text)
{
	char *out = text;
	for (const char *p = text; *p; p++) {
		if (*p != '%') {
			*out++ = *p;
			continue;
		}
		int high = hex_value(p[1]);
		int low = high < 0 ? -1 : hex_value(p[2]);
		if (low < 0 || (high == 0 && low == 0))
			return false;
		*out++ = (char)(high * 16 + low);
		p += 2;
	}
	*out = '\0';
	return true;
}

/* ---------------------------------------------------------------- chunked bodies */

enum chunk_state {
	CHUNK_SIZE_FIRST, /* at least one digit */
	CHUNK_SIZE,
	CHUNK_EXTENSION,
	CHUNK_SIZE_LF,
	CHUNK_DATA,
	CHUNK_DATA_CR,
	CHUNK_DATA_LF,
	CHUNK_TRAILER, /* at the start of a line */
	CHUNK_TRAILER_LINE,
	CHUNK_TRAILER_LF,
	CHUNK_END_LF,
};

/* One byte of framing. False when it does not belong there. */
static bool chunk_step(struct http_chunked *c, char byte)
{
	switch ((enum chunk_state)c->state) {
	case CHUNK_SIZE_FIRST:
	case CHUNK_SIZE:
		if (hex_value(byte) >= 0) {
			if (c->left >> 56)
				return false;
			c->left = c->left * 16 + (u64)hex_value(byte);
			c->state = CHUNK_SIZE;
			return true;
		}
		if (c->state == CHUNK_SIZE_FIRST ||
		    (byte != '\r' && byte != ';' && byte != ' ' && byte != '\t'))
			return false;
		c->state = byte == '\r' ? CHUNK_SIZE_LF : CHUNK_EXTENSION;
		return true;
	case CHUNK_EXTENSION:
		if (byte == '\r')
			c->state = CHUNK_SIZE_LF;
		return byte != '\n' && byte != '\0';
	case CHUNK_SIZE_LF:
		c->line_bytes = 0;
		c->state = c->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
		return byte == '\n';
	case CHUNK_DATA_CR:
		c->state = CHUNK_DATA_LF;
		return byte == '\r';
	case CHUNK_DATA_LF:
		c->line_bytes = 0;
		c->state = CHUNK_SIZE_FIRST;
		return byte == '\n';
	case CHUNK_TRAILER:
		c->state = byte == '\r' ? CHUNK_END_LF : CHUNK_TRAILER_LINE;
		return byte != '\n' && byte != '\0';
	case CHUNK_TRAILER_LINE:
		if (byte == '\r')
			c->state = CHUNK_TRAILER_LF;
		return byte != '\n' && byte != '\0';
	case CHUNK_TRAILER_LF:
		c->state = CHUNK_TRAILER;
		return byte == '\n';
	case CHUNK_END_LF:
		return byte == '\n';
	case CHUNK_DATA:
		break;
	}
	ASSERT(false);
	return false;
}

static bool chunk_line_fits(struct http_chunked *c)
{
	if (c->state >= CHUNK_TRAILER)
		return ++c->trailer_bytes <= HTTP_TRAILER_BYTES_MAX;
	return ++c->line_bytes <= HTTP_CHUNK_LINE_MAX;
}

enum http_parse http_chunked_read(struct http_chunked *c, const char *data, size_t bytes, size_t *used,
				  struct buf *body, u64 body_max, struct http_fault *fault)
{
	*used = 0;
	while (*used < bytes) {
		if (c->state == CHUNK_DATA) {
			size_t n = bytes - *used < c->left ? bytes - *used : (size_t)c->left;
			buf_append(body, data + *used, n);
			if (!buf_ok(body)) {
				fault_set(fault, 503, "There is no memory for the request body.");
				return HTTP_PARSE_BAD;
			}
			*used += n;
			c->left -= n;
			if (c->left == 0)
				c->state = CHUNK_DATA_CR;
			continue;
		}
		u32 before = c->state;
		if (!chunk_step(c, data[*used]) || !chunk_line_fits(c)) {
			fault_set(fault, 400, "The chunked request body is malformed.");
			return HTTP_PARSE_BAD;
		}
		++*used;
		if (before == CHUNK_END_LF)
			return HTTP_PARSE_DONE;
		if (c->left > body_max - (body->bytes < body_max ? body->bytes : body_max)) {
			fault_set(fault, 413, "The request body is longer than the limit.");
			return HTTP_PARSE_BAD;
		}
	}
	return HTTP_PARSE_MORE;
}
