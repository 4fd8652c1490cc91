/* HTTP/1.0 and 1.1 request heads and chunked bodies, read strictly: whatever two parsers could understand
 * differently (bare CR or LF, folded headers, blanks around a header name, repeated lengths, unknown transfer
 * codings) is an error, so that nothing can be smuggled past a proxy in front. RFC 9112. Pure. */
#ifndef TERCET_PROC_GATEWAY_HTTP_PARSE_H
#define TERCET_PROC_GATEWAY_HTTP_PARSE_H

#include "common/buf.h"
#include "common/types.h"

enum {
	HTTP_HEADERS_MAX = 64,
	HTTP_CHUNK_LINE_MAX = 256, /* size line of a chunk, extensions included; one trailer line */
	HTTP_TRAILER_BYTES_MAX = 4096,
};

enum http_method {
	HTTP_METHOD_GET = 1 << 0,
	HTTP_METHOD_HEAD = 1 << 1,
	HTTP_METHOD_POST = 1 << 2,
	HTTP_METHOD_OPTIONS = 1 << 3,
	HTTP_METHOD_DELETE = 1 << 5,
	HTTP_METHOD_OTHER = 1 << 4, /* a well-formed method that no route here takes */
};

struct http_header {
	const char *name; /* lower case */
	const char *value;
};

/* All text is NUL-terminated and lives in the bytes given to http_head_parse. */
struct http_head {
	enum http_method method;
	const char *method_text;
	const char *path;  /* as sent, without the query */
	const char *query; /* behind the '?'; "" when there is none */
	u32 minor_version; /* 0 or 1 */
	bool keep_alive;
	bool chunked;
	bool expect_continue;
	u64 content_length; /* 0 when there is none */
	u32 header_count;
	struct http_header headers[HTTP_HEADERS_MAX];
};

enum http_parse { HTTP_PARSE_MORE, HTTP_PARSE_DONE, HTTP_PARSE_BAD };

/* Why something is refused: the HTTP status and one sentence for people. */
struct http_fault {
	int status;
	const char *text;
};

/* Looks for the empty line that ends a head. `at` is where the last call stopped (0 at first). DONE:
 * `*head_bytes` counts the head with its empty line. BAD: a line does not end in CR LF. */
enum http_parse http_head_find(const char *data, size_t bytes, size_t *at, size_t *head_bytes,
			       struct http_fault *fault);
/* Parses a whole head in place (writes NULs and lower-cases names). False: `fault`. */
bool http_head_parse(char *data, size_t bytes, struct http_head *out, struct http_fault *fault);
/* Reads the request line of a head that is refused, or is not whole, for the form of the reply: method, path and query, "" where
 * there is no such line in `data` (it may be empty); no headers. Writes NULs into `data`, which `out` then points into. */
void http_head_peek(char *data, size_t bytes, struct http_head *out);
/* The value of a header (name in lower case), NULL when absent. */
const char *http_head_get(const struct http_head *head, const char *name);

/* Undoes %XX in place. False when an escape is malformed or is %00. */
bool http_percent_decode(char *text);

/* Zero-initialised at the start of a body. */
struct http_chunked {
	u32 state;
	u32 line_bytes;
	u32 trailer_bytes;
	u64 left; /* of the current chunk */
};
/* Takes from `data` what belongs to the body and appends the content to `body`. `*used` counts the bytes
 * taken. DONE: the last chunk and the trailer (which is ignored) are read. BAD: malformed (400), longer than
 * `body_max` (413) or out of memory (503). */
enum http_parse http_chunked_read(struct http_chunked *c, const char *data, size_t bytes, size_t *used,
				  struct buf *body, u64 body_max, struct http_fault *fault);

#endif
