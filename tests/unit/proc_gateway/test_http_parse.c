/* Request heads and chunked bodies: what is taken, and what is refused with which status. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_gateway/http_parse.h"

struct parsed {
	char bytes[4096];
	struct http_head head;
	struct http_fault fault;
	bool ok;
};

static void parse(struct parsed *p, const char *text, size_t bytes)
{
	size_t at = 0, head_bytes = 0;
	memcpy(p->bytes, text, bytes);
	p->fault = (struct http_fault){0};
	enum http_parse found = http_head_find(p->bytes, bytes, &at, &head_bytes, &p->fault);
	cr_assert_neq(found, HTTP_PARSE_MORE);
	p->ok = found == HTTP_PARSE_DONE && http_head_parse(p->bytes, head_bytes, &p->head, &p->fault);
}

static int status_of(const char *text)
{
	struct parsed p;
	parse(&p, text, strlen(text));
	return p.ok ? 0 : p.fault.status;
}

Test(http_parse, reads_method_path_query_and_headers)
{
	struct parsed p;
	const char *text =
		"POST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nX-Some:  v w \r\n\r\n";
	parse(&p, text, strlen(text));
	cr_assert(p.ok, "%s", p.fault.text);
	cr_assert_eq(p.head.method, HTTP_METHOD_POST);
	cr_assert_str_eq(p.head.path, "/v1/completions");
	cr_assert_str_eq(p.head.query, "a=b");
	cr_assert_eq(p.head.content_length, 12);
	cr_assert(p.head.keep_alive);
	cr_assert_str_eq(http_head_get(&p.head, "x-some"), "v w");
	cr_assert_null(http_head_get(&p.head, "absent"));
}

Test(http_parse, head_end_is_found_at_every_split)
{
	const char *text = "GET / HTTP/1.1\r\nHost: x\r\n\r\nrest";
	size_t whole = strlen(text) - 4;
	for (size_t cut = 0; cut <= strlen(text); cut++) {
		size_t at = 0, head_bytes = 0;
		struct http_fault fault;
		enum http_parse first = http_head_find(text, cut, &at, &head_bytes, &fault);
		cr_assert_eq(first, cut >= whole ? HTTP_PARSE_DONE : HTTP_PARSE_MORE, "cut %zu", cut);
		if (first == HTTP_PARSE_MORE)
			cr_assert_eq(http_head_find(text, strlen(text), &at, &head_bytes, &fault),
				     HTTP_PARSE_DONE);
		cr_assert_eq(head_bytes, whole);
	}
}

Test(http_parse, keep_alive_follows_version_and_header)
{
	struct {
		const char *text;
		bool keep;
	} cases[] = {
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
		{"GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n", false},
		{"GET / HTTP/1.0\r\n\r\n", false},
		{"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct parsed p;
		parse(&p, cases[i].text, strlen(cases[i].text));
		cr_assert(p.ok);
		cr_assert_eq(p.head.keep_alive, cases[i].keep, "case %zu", i);
	}
}

Test(http_parse, what_two_readers_could_understand_differently_is_refused)
{
	cr_expect_eq(status_of("GET / HTTP/1.1\nHost: x\n\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\n Content-Length: 3\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n"),
		     400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"),
		     400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"),
		     400);
	cr_expect_eq(status_of("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
			       "chunked\r\n\r\n"),
		     400);
	cr_expect_eq(status_of("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n"), 501);
	cr_expect_eq(status_of("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
		     501);
	cr_expect_eq(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n"), 417);
	cr_expect_eq(status_of("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
	cr_expect_eq(status_of("GET  / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET relative HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"), 400);
	cr_expect_eq(status_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
	cr_expect_eq(status_of("GET http://h/p HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
	cr_expect_eq(status_of("GET http://h HTTP/2.0\r\nHost: x\r\n\r\n"), 400);
}

Test(http_parse, nul_bytes_and_too_many_headers_are_refused)
{
	struct parsed p;
	const char nul[] = "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n";
	parse(&p, nul, sizeof(nul) - 1);
	cr_assert(!p.ok);
	cr_assert_eq(p.fault.status, 400);
	char many[4096] = "GET / HTTP/1.1\r\nHost: x\r\n";
	for (int i = 0; i < HTTP_HEADERS_MAX; i++)
		strcat(many, "A: b\r\n");
	strcat(many, "\r\n");
	cr_assert_eq(status_of(many), 431);
}

Test(http_parse, percent_escapes_are_undone)
{
	char good[] = "a%2Fb%20c";
	cr_assert(http_percent_decode(good));
	cr_assert_str_eq(good, "a/b c");
	char nul[] = "a%00", cut[] = "a%4", bad[] = "%zz";
	cr_assert(!http_percent_decode(nul));
	cr_assert(!http_percent_decode(cut));
	cr_assert(!http_percent_decode(bad));
}

static enum http_parse read_chunked(const char *text, size_t step, u64 limit, struct buf *body, size_t *total,
				    int *status)
{
	struct http_chunked c = {0};
	struct http_fault fault = {0};
	size_t bytes = strlen(text);
	*total = 0;
	enum http_parse got = HTTP_PARSE_MORE;
	while (*total < bytes && got == HTTP_PARSE_MORE) {
		size_t used, n = bytes - *total < step ? bytes - *total : step;
		got = http_chunked_read(&c, text + *total, n, &used, body, limit, &fault);
		*total += used;
	}
	*status = fault.status;
	return got;
}

Test(http_parse, chunked_body_is_the_same_at_every_split)
{
	const char *text = "5;ext=1\r\nhello\r\n1\r\n \r\n05\r\nworld\r\n0\r\nTrailer: x\r\n\r\nGET";
	for (size_t step = 1; step < strlen(text); step++) {
		struct buf body = {0};
		size_t total;
		int status;
		cr_assert_eq(read_chunked(text, step, 100, &body, &total, &status), HTTP_PARSE_DONE,
			     "step %zu", step);
		cr_assert_str_eq(buf_cstr(&body), "hello world");
		cr_assert_eq(total, strlen(text) - 3);
		buf_fini(&body);
	}
}

Test(http_parse, malformed_and_oversized_chunks_are_refused)
{
	struct {
		const char *text;
		int status;
	} cases[] = {
		{"g\r\n", 400},
		{"\r\n", 400},
		{"5\nhello", 400},
		{"5\r\nhelloX", 400},
		{"-1\r\n", 400},
		{"fffffffffffffffffff\r\n", 413},
		{"0x5\r\nhello\r\n", 400},
		{"65\r\n", 413},
		{"32\r\n01234567890123456789012345678901234567890123456789"
		 "\r\n33\r\n",
		 413},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct buf body = {0};
		size_t total;
		int status;
		cr_assert_eq(read_chunked(cases[i].text, 7, 100, &body, &total, &status), HTTP_PARSE_BAD,
			     "case %zu", i);
		cr_assert_eq(status, cases[i].status, "case %zu: %d", i, status);
		buf_fini(&body);
	}
}

Test(http_parse, request_lines_of_refused_heads_are_read)
{
	static const struct {
		const char *data, *method, *path, *query;
	} heads[] = {
		{"", "", "", ""},
		{"POST /v1/mess", "", "", ""},
		{"POST /a HTTP/1.1\n", "", "", ""},
		{"\n", "", "", ""},
		{"POST  /a HTTP/1.1\r\n", "", "", ""},
		{"POST /a?b HTTP/1.1\r\nHost", "POST", "/a", "b"},
		{"HEAD http://h/a HTTP/9.9\r\n", "HEAD", "/a", ""},
	};
	for (size_t i = 0; i < COUNT_OF(heads); i++) {
		char data[64];
		struct http_head head;
		snprintf(data, sizeof(data), "%s", heads[i].data);
		http_head_peek(data, strlen(heads[i].data), &head);
		cr_expect_str_eq(head.method_text, heads[i].method, "%s", heads[i].data);
		cr_expect_eq(head.method == HTTP_METHOD_HEAD, strcmp(heads[i].method, "HEAD") == 0);
		cr_expect_str_eq(head.path, heads[i].path, "%s", heads[i].data);
		cr_expect_str_eq(head.query, heads[i].query, "%s", heads[i].data);
		cr_expect_eq(head.header_count, 0);
	}
	struct http_head head;
	http_head_peek(NULL, 0, &head);
	cr_expect_str_eq(head.path, "");
}
