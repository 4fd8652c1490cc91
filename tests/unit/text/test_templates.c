/* Every published chat-template case and language feature, line by line. */
#include <criterion/criterion.h>
#include <time.h>

#include "text/text.h"
#include "vectors.h"

struct checker {
	unsigned checks;
	unsigned failures;
};

/* "2025-01-15T12:34:56" as seconds in UTC, which these tests run in. */
static int64_t parse_time(const char *text)
{
	struct tm tm = {0};
	return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) != NULL ? timegm(&tm) : 0;
}

static enum err render(json_val line, const struct chat_request *request, struct buf *out, struct err_msg *em)
{
	const char *source = "";
	size_t bytes = 0;
	struct chat_template *t = NULL;
	cr_assert(json_string(json_get(line, "template"), &source, &bytes));
	enum err e = chat_template_parse(&t, source, bytes, em);
	if (e == ERR_OK)
		e = chat_template_render(t, request, out, em);
	chat_template_free(&t);
	return e;
}

/* The line's "rendered", or any error where it has an "error". */
static void check(struct checker *c, json_val line, const struct chat_request *request, unsigned number)
{
	struct buf out = {0};
	struct err_msg em = {{0}};
	const char *want = NULL;
	size_t bytes = 0;
	enum err e = render(line, request, &out, &em);
	bool renders = json_string(json_get(line, "rendered"), &want, &bytes);
	bool same = renders ? e == ERR_OK && out.bytes == bytes && memcmp(buf_cstr(&out), want, bytes) == 0
			    : e != ERR_OK && em.text[0] != '\0';
	c->checks++;
	c->failures += !same;
	if (!same && c->failures < 12)
		fprintf(stderr, "line %u: %s\n got: %s (%s)\nwant: %s\n", number,
			json_cstr(json_get(line, "name"), json_cstr(json_get(line, "template"), "?")), buf_cstr(&out), em.text,
			want != NULL ? want : json_cstr(json_get(line, "error"), "?"));
	buf_fini(&out);
}

Test(templates, published_cases)
{
	struct vectors v;
	struct checker c = {0};
	json_val line;
	if (!vectors_open(&v, "chat_templates/cases.jsonl"))
		cr_skip_test("no cases");
	setenv("TZ", "UTC", 1);
	while (vectors_next(&v, &line)) {
		struct chat_request r = {.messages = json_get(line, "messages"),
					 .tools = json_get(line, "tools"),
					 .kwargs = json_get(line, "extra"),
					 .now_s = parse_time(json_cstr(json_get(line, "now"), "")),
					 .bos_token = json_cstr(json_get(line, "bos_token"), NULL),
					 .eos_token = json_cstr(json_get(line, "eos_token"), NULL)};
		(void)json_bool(json_get(line, "add_generation_prompt"), &r.add_generation_prompt);
		check(&c, line, &r, v.number);
	}
	vectors_close(&v);
	cr_assert(c.checks > 0 && c.failures == 0, "%u of %u cases failed", c.failures, c.checks);
}

Test(templates, language_features)
{
	struct vectors v;
	struct checker c = {0};
	json_val line;
	if (!vectors_open(&v, "chat_templates/jinja_features.jsonl"))
		cr_skip_test("no features");
	setenv("TZ", "UTC", 1);
	cr_assert(vectors_next(&v, &line));
	struct json_doc *first = v.doc;
	v.doc = NULL;
	struct chat_request r = {.kwargs = json_get(json_root(first), "context"),
				 .now_s = parse_time(json_cstr(json_get(json_root(first), "now"), ""))};
	while (vectors_next(&v, &line))
		check(&c, line, &r, v.number);
	vectors_close(&v);
	json_free(&first);
	cr_assert(c.checks > 0 && c.failures == 0, "%u of %u features failed", c.failures, c.checks);
}
