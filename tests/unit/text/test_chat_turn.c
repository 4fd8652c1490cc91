/* A chat's turn alone, against the whole conversation, by every published template: what is taken must be exactly what
 * the whole conversation gives, and what is refused must differ from it. */
#include <criterion/criterion.h>

#include "text/text.h"
#include "vectors.h"

enum { SHAPES = 5, TEMPLATES_MAX = 256 };

/* Everything up to the last answer, and new messages behind it. */
static const char *const fronts[SHAPES] = {
	"{\"role\":\"user\",\"content\":\"Who wrote Faust?\"}",
	"{\"role\":\"system\",\"content\":\"Answer in verse.\"},{\"role\":\"user\",\"content\":\"Why?\"}",
	"{\"role\":\"user\",\"content\":\"1 + 1?\"},{\"role\":\"assistant\",\"content\":\"2\"},"
	"{\"role\":\"user\",\"content\":\"And 2 + 2?\"}",
	"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
	"{\"role\":\"assistant\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"e\"}",
	"{\"role\":\"user\",\"content\":\"Think!\"}",
};
static const char *const answers[SHAPES] = {"Goethe did.", "Because.", "4, of course", "f", "<think>\nhm\n</think>\n\n42"};
static const char more[] = "{\"role\":\"user\",\"content\":\"Say more, \\\"please\\\".\"}";

struct line {
	struct chat_template *t;
	struct chat_request request;
};

static enum err render(const struct line *l, const char *messages, bool prompt, struct buf *out)
{
	struct chat_request r = l->request;
	struct json_doc *doc = NULL;
	struct err_msg em;

	buf_clear(out);
	cr_assert_eq(json_parse(&doc, messages, strlen(messages), &em), ERR_OK, "%s", em.text);
	r.messages = json_root(doc);
	r.add_generation_prompt = prompt;
	enum err e = chat_template_render(l->t, &r, out, &em);
	json_free(&doc);
	return e;
}

/* What the whole conversation puts behind the answer; false: the template does not take it, or does not go on from the
 * shorter one. *rendered: it takes the shorter one. */
static bool whole(const struct line *l, u32 shape, struct buf *behind, bool *rendered)
{
	struct buf front = {0}, all = {0}, text = {0}, answer = {0};

	json_escape(&answer, answers[shape], strlen(answers[shape]));
	buf_printf(&text, "[%s]", fronts[shape]);
	*rendered = render(l, buf_cstr(&text), true, &front) == ERR_OK;
	buf_clear(&text);
	buf_printf(&text, "[%s,{\"role\":\"assistant\",\"content\":%s},%s]", fronts[shape], buf_cstr(&answer), more);
	bool ok = *rendered && render(l, buf_cstr(&text), true, &all) == ERR_OK;
	buf_append_str(&front, answers[shape]);
	ok = ok && all.bytes >= front.bytes && memcmp(all.data, front.data, front.bytes) == 0;
	buf_clear(behind);
	if (ok)
		buf_append(behind, all.data + front.bytes, all.bytes - front.bytes);
	buf_fini(&front);
	buf_fini(&all);
	buf_fini(&text);
	buf_fini(&answer);
	return ok;
}

static bool same(const struct buf *a, const char *data, size_t bytes)
{
	return a->bytes == bytes && (bytes == 0 || memcmp(a->data, data, bytes) == 0);
}

/* Whether a session may be used; asserts that this is right. */
static bool check(const struct line *l, const char *name)
{
	struct chat_turn turn = {0};
	struct chat_request r = l->request;
	struct json_doc *doc = NULL;
	struct err_msg em = {""};
	struct buf behind = {0}, first = {0};
	char messages[256];
	bool rendered, all_alike = true, any = false;

	snprintf(messages, sizeof(messages), "[%s]", more);
	cr_assert_eq(json_parse(&doc, messages, strlen(messages), NULL), ERR_OK);
	r.messages = json_root(doc);
	r.add_generation_prompt = true;
	enum err e = chat_turn_render(l->t, &r, &turn, &em);
	const char *text = e ? "" : turn.text.data + turn.before_bytes;
	size_t bytes = e ? 0 : turn.text.bytes - turn.before_bytes;
	for (u32 i = 0; i < SHAPES; i++) {
		bool ok = whole(l, i, &behind, &rendered);
		if (!rendered)
			continue;
		all_alike &= ok && (!any || same(&first, behind.data ? behind.data : "", behind.bytes));
		if (!any)
			buf_append(&first, behind.data ? behind.data : "", behind.bytes);
		any = true;
		if (!e)
			cr_assert(ok && same(&behind, text, bytes), "%s, shape %u: a turn is \"%.*s\", the whole has \"%s\"", name, i,
				  (int)bytes, text, buf_cstr(&behind));
	}
	if (e)
		cr_assert(!all_alike || !any, "%s is refused without need: %s", name, em.text);
	if (e == ERR_UNSUPPORTED)
		cr_assert(strstr(em.text, "send the whole conversation"), "%s", em.text);
	if (!e)
		cr_assert_leq(turn.end_bytes, bytes);
	chat_turn_fini(&turn);
	json_free(&doc);
	buf_fini(&behind);
	buf_fini(&first);
	return e == ERR_OK;
}

Test(chat_turn, every_published_template_is_exact_or_refused)
{
	struct vectors v;
	json_val line;
	unsigned taken = 0, refused = 0;
	char last[256] = "";

	if (!vectors_open(&v, "chat_templates/cases.jsonl"))
		cr_skip_test("no cases");
	while (vectors_next(&v, &line)) {
		struct line l = {.request = {.kwargs = json_get(line, "extra"),
					     .bos_token = json_cstr(json_get(line, "bos_token"), NULL),
					     .eos_token = json_cstr(json_get(line, "eos_token"), NULL)}};
		const char *name = json_cstr(json_get(line, "name"), "?");
		size_t stem = strcspn(name, "/");
		if (strncmp(name, last, stem) == 0 && last[stem] == '\0')
			continue; /* the same template with other messages */
		snprintf(last, sizeof(last), "%.*s", (int)stem, name);
		const char *source = json_cstr(json_get(line, "template"), "");
		if (chat_template_parse(&l.t, source, strlen(source), NULL) != ERR_OK)
			continue;
		bool ok = check(&l, name);
		taken += ok;
		refused += !ok;
		fprintf(stderr, "%s %s\n", ok ? "taken  " : "refused", last);
		chat_template_free(&l.t);
	}
	vectors_close(&v);
	fprintf(stderr, "%u templates taken, %u refused\n", taken, refused);
	cr_assert(taken > 10 && refused > 5, "%u taken, %u refused", taken, refused);
}

static const char chatml[] =
	"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
	"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

Test(chat_turn, the_end_of_the_answer_is_known)
{
	struct chat_turn turn = {0};
	struct chat_template *t = NULL;
	struct json_doc *doc = NULL;
	struct err_msg em;
	static const char messages[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";

	cr_assert_eq(chat_template_parse(&t, chatml, strlen(chatml), &em), ERR_OK);
	cr_assert_str_eq(chat_template_source(t), chatml);
	cr_assert_eq(json_parse(&doc, messages, strlen(messages), &em), ERR_OK);
	struct chat_request r = {.messages = json_root(doc), .add_generation_prompt = true};
	cr_assert_eq(chat_turn_render(t, &r, &turn, &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(buf_cstr(&turn.text) + turn.before_bytes,
			 "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
	cr_assert_eq(turn.end_bytes, strlen("<|im_end|>\n"));
	chat_turn_fini(&turn);
	json_free(&doc);
	chat_template_free(&t);
}
