/* What tests of replies made of items share: a template that shows all that a message has, requests, answers. */
#ifndef TERCET_TESTS_ITEMS_FIXTURE_H
#define TERCET_TESTS_ITEMS_FIXTURE_H

#include "engine_fixture.h"

/* Writes all that a message has, the tools, and two variables. */
static const char template_source[] =
	"{{ tools | tojson if tools else '' }}{{ enable_thinking }}{{ reasoning_effort }}{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.reasoning_content or '' }}|"
	"{{ m.tool_call_id or '' }}|{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
	"{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}]{% endfor %}";

static inline void setup(struct engine_fixture *f, char path[32])
{
	snprintf(path, 32, "/tmp/tercet-test-XXXXXX");
	int fd = mkstemp(path);
	cr_assert_eq(write(fd, template_source, sizeof(template_source) - 1), (ssize_t)sizeof(template_source) - 1);
	close(fd);
	engine_setup(f, "chat_template", path);
	unlink(path);
}

static inline void ask(struct engine_fixture *f, struct peer *p, const char *path, const char *body)
{
	peer_post(p, path, body);
	cr_assert(engine_wait(f, p, f->count + 1, NULL), "%s: %s", body, buf_cstr(&p->got));
}

/* `n` lists in each other, the most that a body has room for there, are refused as `wanted`. */
static inline void expect_too_deep(struct engine_fixture *f, const char *path, const char *before, u32 n, const char *behind,
			    const char *wanted)
{
	struct buf body = {0};
	buf_append_str(&body, before);
	for (u32 i = 0; i < 2 * n; i++)
		buf_append_char(&body, i < n ? '[' : ']');
	buf_append_str(&body, behind);
	struct peer p = engine_connect(f);
	peer_post(&p, path, buf_cstr(&body));
	cr_expect(engine_wait(f, &p, 0, wanted), "%s: %s", before, buf_cstr(&p.got));
	cr_expect_not_null(strstr(buf_cstr(&p.got), "HTTP/1.1 400"));
	peer_fini(&p);
	buf_fini(&body);
}

static inline void emit(struct engine_fixture *f, const char *text, enum finish_reason finish)
{
	static const u32 ids[] = {100};
	fake_emit(f, &(struct fake_output){.request = f->count - 1, .tokens = ids, .token_count = 1, .text = text, .finish = finish});
}

/* The last line of a reply or stream that begins with `head`, as JSON. */
static inline struct json_doc *json_behind(const char *got, const char *head)
{
	struct json_doc *doc = NULL;
	const char *at = NULL;
	for (const char *next = strstr(got, head); next; next = strstr(next + 1, head))
		at = next + strlen(head);
	cr_assert_not_null(at, "%s is not in %s", head, got);
	cr_assert_eq(json_parse(&doc, at, strcspn(at, "\r\n"), NULL), ERR_OK, "%s", at);
	return doc;
}

static inline const char *cstr_at(json_val v, const char *key)
{
	return json_cstr(json_get(v, key), "");
}

static inline void setup_forms(struct engine_fixture *f, char path[32])
{
	setup(f, path);
	f->gateway.model.thought_format = THOUGHT_FORMAT_THINK; /* which the template does not write */
	cr_assert_eq(f->gateway.model.tool_format, TOOL_FORMAT_HERMES);
}

#endif
