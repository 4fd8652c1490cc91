/* Thoughts in the text of answers: every text whole, byte by byte, and in pieces of every size in between says the same;
 * where prompts open them; grammars behind them; replies and streams. */
#include "engine_fixture.h"

#include "../text/grammar_text.h"
#include "proc_gateway/thoughts.h"

struct thought_case {
	enum thought_format format;
	bool open;
	const char *text, *thought, *content;
};

static const struct thought_case cases[] = {
	{THOUGHT_FORMAT_NONE, false, "<think>a</think>b", "", "<think>a</think>b"},
	{THOUGHT_FORMAT_THINK, false, "No thought.", "", "No thought."},
	{THOUGHT_FORMAT_THINK, false, "", "", ""},
	{THOUGHT_FORMAT_THINK, false, " \n", "", " \n"},
	{THOUGHT_FORMAT_THINK, false, "\n <thin", "", "\n <thin"},
	{THOUGHT_FORMAT_THINK, false, "<thing>", "", "<thing>"},
	{THOUGHT_FORMAT_THINK, false, "<think>\nOne\n\ntwo.\n</think>\n\nThree.\n", "One\n\ntwo.", "Three.\n"},
	{THOUGHT_FORMAT_THINK, false, "\n<think>a</think>b", "a", "b"},
	{THOUGHT_FORMAT_THINK, false, "<think>\n\n</think>\n\nb", "", "b"},
	{THOUGHT_FORMAT_THINK, false, "<think>a < b </ c </thin k</think>", "a < b </ c </thin k", ""},
	{THOUGHT_FORMAT_THINK, false, "<think>a<</think>b", "a<", "b"},
	{THOUGHT_FORMAT_THINK, false, "<think>a</think>b <think>c</think> </think>", "a", "b <think>c</think> </think>"},
	{THOUGHT_FORMAT_THINK, false, "<think>cut off </thi", "cut off </thi", ""},
	{THOUGHT_FORMAT_THINK, false, "<think>cut off \n", "cut off \n", ""},
	{THOUGHT_FORMAT_THINK, false, "Say <think>a</think>.", "", "Say <think>a</think>."},
	{THOUGHT_FORMAT_THINK, false,
	 "<think>a\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"
	 "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n</think>b", "a\n\n", "b"},
	{THOUGHT_FORMAT_THINK, true, "a\n</think>\n\nb", "a", "b"},
	{THOUGHT_FORMAT_THINK, true, "\na", "a", ""},
	{THOUGHT_FORMAT_THINK, true, "</think>b", "", "b"},
	{THOUGHT_FORMAT_MISTRAL, false, "[THINK]a [/b][/THINK]c", "a [/b]", "c"},
	{THOUGHT_FORMAT_HARMONY, false, "Plain <|channel|>.", "", "Plain <|channel|>."},
	{THOUGHT_FORMAT_HARMONY, false,
	 "<|channel|>analysis<|message|>Hm < <|en <|end|><|start|>assistant<|channel|>final<|message|>Yes <b>.<|return|>", "Hm < <|en ",
	 "Yes <b>."},
	{THOUGHT_FORMAT_HARMONY, false,
	 "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|start|>assistant<|channel|>final"
	 "<|message|>c",
	 "ab", "c"},
	{THOUGHT_FORMAT_HARMONY, false, "<|channel|>analysis<|message|>cut <|e", "cut <|e", ""},
	{THOUGHT_FORMAT_HARMONY, false, "<|channel|>analysis<|message|>a<|end|><|start|>assist", "a", ""},
	{THOUGHT_FORMAT_HARMONY, false, "<|channel|>commentary<|message|>I look it up.<|end|>", "", "I look it up."},
	{THOUGHT_FORMAT_HARMONY, false,
	 "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>", "", "{\"x\": 1}"},
	{THOUGHT_FORMAT_SEED, false, "<seed:think>a</think></seed:think>c", "a</think>", "c"},
};

static void expect_in_pieces(const struct thought_case *c)
{
	const size_t bytes = strlen(c->text);
	for (size_t size = 1; size <= bytes + 1; size++) {
		struct thoughts t = {.format = c->format, .state = c->open ? THOUGHTS_BEGIN : THOUGHTS_BEFORE};
		struct buf thought = {0}, content = {0};
		for (size_t at = 0; at < bytes; at += size)
			thoughts_feed(&t, c->text + at, bytes - at < size ? bytes - at : size, &thought, &content);
		thoughts_end(&t, &thought, &content);
		cr_expect_str_eq(buf_cstr(&thought), c->thought, "%s in pieces of %zu", c->text, size);
		cr_expect_str_eq(buf_cstr(&content), c->content, "%s in pieces of %zu", c->text, size);
		thoughts_fini(&t);
		buf_fini(&thought);
		buf_fini(&content);
	}
}

Test(thoughts, pieces_of_any_size_say_the_same)
{
	char header[1200];
	for (size_t i = 0; i < COUNT_OF(cases); i++)
		expect_in_pieces(&cases[i]);
	snprintf(header, sizeof(header), "<|channel|>analysis%1000s<|message|>a", "");
	expect_in_pieces(&(struct thought_case){THOUGHT_FORMAT_HARMONY, false, header, "", header}); /* longer than any */
	snprintf(header, sizeof(header), "<|channel|>analysis%994s<|message|>a", "");
	expect_in_pieces(&(struct thought_case){THOUGHT_FORMAT_HARMONY, false, header, "a", ""});
}

/* An answer that goes on behind a text says what stands behind that, down to the white space between them. */
Test(thoughts, what_is_continued_counts_and_is_not_told)
{
	static const struct {
		const char *message, *text, *thought, *content;
	} continued[] = {
		{"<think>I was", " there.</think>Yes", " there.", "Yes"},
		{"<think>I was \n", " there.</think>Yes", " there.", "Yes"},
		{"<think>\n", "\nI was.</think>Yes", "I was.", "Yes"},
		{"<think>a \n</thi", "nk>\nYes", "", "Yes"},
		{"<think>a \n</thi", "s</think>Yes", "s", "Yes"},
		{"<think>a</", "", "", ""},
		{"<think>a</think>", "\n\nYes", "", "Yes"},
		{"<think>a</think>b ", " <think>c</think>", "", " <think>c</think>"},
		{"\n<thi", "nk>a</think>Yes", "a", "Yes"},
		{"\n<thi", "s>", "", "s>"},
		{"So", "<think>a</think>", "", "<think>a</think>"},
		{" ", " ", "", " "},
	};
	for (size_t i = 0; i < COUNT_OF(continued); i++)
		for (size_t size = 1, bytes = strlen(continued[i].text); size <= bytes + 1; size++) {
			struct thoughts t = {.format = THOUGHT_FORMAT_THINK};
			struct buf thought = {0}, content = {0};
			thoughts_continue(&t, continued[i].message, strlen(continued[i].message));
			for (size_t at = 0; at < bytes; at += size)
				thoughts_feed(&t, continued[i].text + at, bytes - at < size ? bytes - at : size, &thought, &content);
			thoughts_end(&t, &thought, &content);
			cr_expect_str_eq(buf_cstr(&thought), continued[i].thought, "%s|%s", continued[i].message, continued[i].text);
			cr_expect_str_eq(buf_cstr(&content), continued[i].content, "%s|%s", continued[i].message, continued[i].text);
			thoughts_fini(&t);
			buf_fini(&thought);
			buf_fini(&content);
		}
}

/* What may still become a mark is all that waits, and of white space a little. */
Test(thoughts, little_is_held_back)
{
	struct thoughts t = {.format = THOUGHT_FORMAT_THINK};
	struct buf thought = {0}, content = {0};
	thoughts_feed(&t, "<think>abc </thi", 16, &thought, &content);
	cr_assert_str_eq(buf_cstr(&thought), "abc");
	thoughts_feed(&t, "ng", 2, &thought, &content);
	cr_assert_str_eq(buf_cstr(&thought), "abc </thing");
	for (u32 i = 0; i < 100000; i++)
		thoughts_feed(&t, "\n", 1, &thought, &content);
	cr_assert_leq(t.held.bytes, 80);
	cr_assert_eq(content.bytes, 0);
	thoughts_fini(&t);
	buf_fini(&thought);
	buf_fini(&content);
}

/* ---------------------------------------------------------------- which marks */

static enum thought_format format_of(const char *source)
{
	struct chat_template *t = NULL;
	struct tokenizer *tokenizer = NULL;
	struct err_msg em = {.text = ""};
	cr_assert_eq(tokenizer_load(&tokenizer, DEMO_DIR, &em), ERR_OK, "%s", em.text);
	if (source)
		cr_assert_eq(chat_template_parse(&t, source, strlen(source), &em), ERR_OK, "%s", em.text);
	enum thought_format format = thought_format_of_model(t, tokenizer);
	chat_template_free(&t);
	tokenizer_free(&tokenizer);
	return format;
}

#define PLAIN "{% for m in messages %}{{ m.content }}{% endfor %}"

Test(thoughts, the_marks_are_those_of_the_template)
{
	cr_expect_eq(format_of(NULL), THOUGHT_FORMAT_NONE);
	cr_expect_eq(format_of(PLAIN), THOUGHT_FORMAT_NONE);
	cr_expect_eq(format_of("{{ raise_exception('no') }}"), THOUGHT_FORMAT_NONE);
	cr_expect_eq(format_of(PLAIN "{% if add_generation_prompt %}<think>\n{% endif %}"), THOUGHT_FORMAT_THINK);
	cr_expect_eq(format_of(PLAIN "{% if enable_thinking and add_generation_prompt %}<seed:think>{% endif %}"),
		     THOUGHT_FORMAT_SEED);
	cr_expect_eq(format_of("{% for m in messages %}{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]"
			       "{% endif %}{% endfor %}"),
		     THOUGHT_FORMAT_MISTRAL);
	cr_expect_eq(format_of("{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
			       "<|message|>{{ m.content }}<|end|>{% endfor %}"),
		     THOUGHT_FORMAT_HARMONY);
	cr_expect_eq(format_of(PLAIN "{# <think> #}"), THOUGHT_FORMAT_NONE, "a comment is not written");
	cr_expect(thought_format_opens(THOUGHT_FORMAT_THINK, "a<think>\n", 9));
	cr_expect(!thought_format_opens(THOUGHT_FORMAT_THINK, "<think>\n\n</think>\n\n", 19));
	cr_expect(!thought_format_opens(THOUGHT_FORMAT_NONE, "<think>", 7));
	cr_expect(!thought_format_opens(THOUGHT_FORMAT_THINK, "think>", 6));
	cr_expect(thought_format_unfinished(THOUGHT_FORMAT_THINK, "\n<think>so", 10));
	cr_expect(!thought_format_unfinished(THOUGHT_FORMAT_THINK, "<think>so</think>", 17));
	cr_expect(!thought_format_unfinished(THOUGHT_FORMAT_THINK, "<think>s\0</think>", 17));
	cr_expect(!thought_format_unfinished(THOUGHT_FORMAT_THINK, "say <think>", 11));
	cr_expect(!thought_format_unfinished(THOUGHT_FORMAT_THINK, " <think>", 7));
}

/* Some vocabularies have the marks as special tokens, which a text without these would not show. */
Test(thoughts, marks_that_are_special_tokens_are_shown)
{
	static const char *const words[] = {"false", "true"};
	for (u32 i = 0; i < 2; i++) {
		struct tokenizer *t = NULL;
		struct err_msg em = {.text = ""};
		char json[512];
		snprintf(json, sizeof(json),
			 "{\"added_tokens\": [{\"id\": 1, \"content\": \"</think>\", \"special\": %s, \"single_word\": false, "
			 "\"lstrip\": false, \"rstrip\": false, \"normalized\": false}], \"model\": {\"type\": \"BPE\", \"vocab\": "
			 "{\"a\": 0, \"</think>\": 1}, \"merges\": []}}",
			 words[i]);
		cr_assert_eq(tokenizer_parse(&t, json, strlen(json), &em), ERR_OK, "%s", em.text);
		cr_expect_eq(thought_format_needs_special(THOUGHT_FORMAT_THINK, t), i == 1);
		cr_expect(!thought_format_needs_special(THOUGHT_FORMAT_SEED, t));
		cr_expect(thought_format_needs_special(THOUGHT_FORMAT_MISTRAL, t));
		tokenizer_free(&t);
	}
}

/* ---------------------------------------------------------------- grammars */

static void expect_behind_thought(struct tongue *tongue, enum thought_format format, enum tercet_grammar kind,
				  const char *source, const char *right, const char *wrong)
{
	static const char *const thoughts[] = {"", "a", "so: {\"a\": 1}\n", "<", "a <</thi< </thinker", "[/THIN<]</think", "a\n\n"};
	struct openai_request r = {.thought_format = format, .thought_open = true, .grammar_kind = kind};
	struct api_error e;
	buf_append_str(&r.grammar, source);
	cr_assert(openai_thoughts_grammar(&r, &e), "%s", source);
	cr_assert_eq(r.grammar_kind, TERCET_GRAMMAR_PARTS);
	for (size_t i = 0; i < COUNT_OF(thoughts); i++) {
		char text[256];
		const char *end = thought_format_end(format);
		snprintf(text, sizeof(text), "%s%s\n\n%s", thoughts[i], end, right);
		cr_expect(takes(tongue, GRAMMAR_PARTS, buf_cstr(&r.grammar), text), "%s: %s", source, text);
		snprintf(text, sizeof(text), "%s%s%s", thoughts[i], end, wrong);
		cr_expect(!takes(tongue, GRAMMAR_PARTS, buf_cstr(&r.grammar), text), "%s: %s", source, text);
		snprintf(text, sizeof(text), "%s%s%s%s", thoughts[i], end, end, right);
		cr_expect(!takes(tongue, GRAMMAR_PARTS, buf_cstr(&r.grammar), text), "%s: %s", source, text);
		snprintf(text, sizeof(text), "%s%s", thoughts[i], right);
		cr_expect(!takes(tongue, GRAMMAR_PARTS, buf_cstr(&r.grammar), text), "the thought never ends: %s", text);
	}
	buf_fini(&r.grammar);
}

Test(thoughts, a_grammar_binds_what_follows_the_thought)
{
	struct tongue t = {0};
	tongue_init(&t, DEMO_DIR);
	expect_behind_thought(&t, THOUGHT_FORMAT_THINK, TERCET_GRAMMAR_JSON_OBJECT, "", "{\"a\": 1}", "[1]");
	expect_behind_thought(&t, THOUGHT_FORMAT_MISTRAL, TERCET_GRAMMAR_JSON_SCHEMA, "{\"type\": \"integer\"}", "12", "x");
	expect_behind_thought(&t, THOUGHT_FORMAT_SEED, TERCET_GRAMMAR_REGEX, "ab+", "abb", "a");
	expect_behind_thought(&t, THOUGHT_FORMAT_THINK, TERCET_GRAMMAR_CHOICE, "[\"yes\", \"no\"]", "no", "n");
	expect_behind_thought(&t, THOUGHT_FORMAT_THINK, TERCET_GRAMMAR_PARTS, "[\"x\", {\"regex\": \"[0-9]\"}]", "x1", "1");
	tongue_fini(&t);
}

Test(thoughts, other_grammars_leave_none)
{
	struct openai_request closed = {.thought_format = THOUGHT_FORMAT_THINK, .grammar_kind = TERCET_GRAMMAR_JSON_OBJECT},
			      rules = {.thought_format = THOUGHT_FORMAT_THINK, .thought_open = true,
				       .grammar_kind = TERCET_GRAMMAR_EBNF};
	struct api_error e;
	cr_assert(openai_thoughts_grammar(&closed, &e));
	cr_assert_eq(closed.thought_format, THOUGHT_FORMAT_NONE);
	cr_assert_eq(closed.grammar_kind, TERCET_GRAMMAR_JSON_OBJECT);
	cr_assert(openai_thoughts_grammar(&rules, &e));
	cr_assert_eq(rules.thought_format, THOUGHT_FORMAT_NONE);
	cr_assert(!rules.thought_open, "its tokens would count as thoughts");
	cr_assert_eq(rules.grammar_kind, TERCET_GRAMMAR_EBNF);
}

/* A schema in a text of its own may be as deep as a body: parts around it make it deeper than JSON is read. */
Test(thoughts, a_schema_that_is_too_deep_behind_one_is_refused)
{
	struct openai_request r = {.thought_format = THOUGHT_FORMAT_THINK, .thought_open = true,
				   .grammar_kind = TERCET_GRAMMAR_JSON_SCHEMA};
	struct api_error e;
	buf_append_str(&r.grammar, "{\"type\": \"integer\", \"examples\": ");
	for (u32 i = 0; i < 2 * (JSON_LEVELS_MAX - 1); i++)
		buf_append_char(&r.grammar, i < JSON_LEVELS_MAX - 1 ? '[' : ']');
	buf_append_char(&r.grammar, '}');
	cr_assert(!openai_thoughts_grammar(&r, &e));
	cr_assert_eq(e.status, 400);
	cr_assert_not_null(strstr(e.message, "nested"), "%s", e.message);
	buf_fini(&r.grammar);
}

/* ---------------------------------------------------------------- through the gateway */

#define CHAT_WITH "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"a\""
#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static const u32 ids[] = {100, 101, 102};

static void ask(struct engine_fixture *f, struct peer *p, const char *fields)
{
	char body[512];
	snprintf(body, sizeof(body), "{" CHAT "%s}", fields);
	peer_post(p, "/v1/chat/completions", body);
	cr_assert(engine_wait(f, p, f->count + 1, NULL));
}

static void answer(struct engine_fixture *f, const char *first, const char *second)
{
	u32 request = f->count - 1;
	fake_emit(f, &(struct fake_output){.request = request, .tokens = ids, .token_count = 1, .text = first});
	fake_emit(f, &(struct fake_output){.request = request, .tokens = ids, .token_count = 2, .text = second,
					   .finish = FAKE_STOP});
}

/* One request after the other, each in a connection of its own; `wanted` is in its reply. */
static void expect_reply(struct engine_fixture *f, const char *fields, const char *first, const char *second,
			 const char *wanted)
{
	struct peer p = engine_connect(f);
	ask(f, &p, fields);
	answer(f, first, second);
	cr_assert(engine_wait(f, &p, f->count, wanted), "%s is not in %s", wanted, buf_cstr(&p.got));
	peer_fini(&p);
}

Test(thoughts, replies_have_them_apart)
{
	static struct engine_fixture f;
	engine_setup(&f, "reasoning_parser", "think");
	expect_reply(&f, "", "<think>\nWell", ".\n</think>\n\nYes.",
		     "\"message\":{\"role\":\"assistant\",\"content\":\"Yes.\",\"reasoning_content\":\"Well.\",");
	expect_reply(&f, "", "<think>\nWell", " so", "\"content\":null,\"reasoning_content\":\"Well so\",");
	expect_reply(&f, "", "Yes", ".", "\"message\":{\"role\":\"assistant\",\"content\":\"Yes.\",\"refusal\":null}");
	expect_reply(&f, ", \"include_reasoning\": false", "<think>\nWell", ".\n</think>\n\nYes.",
		     "\"message\":{\"role\":\"assistant\",\"content\":\"Yes.\",\"refusal\":null}");
	expect_reply(&f, ", \"reasoning_format\": \"none\"", "<think>", "a</think>b",
		     "\"message\":{\"role\":\"assistant\",\"content\":\"<think>a</think>b\",\"refusal\":null}");
	/* in front of tags text is free, and may be a thought */
	expect_reply(&f, ", \"response_format\": {\"type\": \"structural_tag\", \"triggers\": [\"<f\"], \"structures\": [{\"begin\": \"<f>\", "
			 "\"schema\": {\"type\": \"integer\"}, \"end\": \"</f>\"}]}",
		     "<think>\nWell", ".</think>It is <f>7</f>.", "\"content\":\"It is <f>7</f>.\",\"reasoning_content\":\"Well.\"");
	expect_reply(&f, ", \"response_format\": {\"type\": \"json_object\"}", "{", "}", "\"content\":\"{}\",\"refusal\"");
	struct peer p = engine_connect(&f);
	peer_post(&p, "/v1/chat/completions", "{" CHAT ", \"reasoning_format\": \"left\"}");
	cr_assert(engine_wait(&f, &p, f.count, "it must be \\\"auto\\\", \\\"deepseek\\\" or \\\"none\\\""), "%s",
		  buf_cstr(&p.got));
	peer_fini(&p);
	engine_teardown(&f);
}

Test(thoughts, calls_of_harmony_are_calls)
{
	static struct engine_fixture f;
	engine_setup(&f, "reasoning_parser", "harmony");
	const char *tools = ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"add\"}}]";
	expect_reply(&f, tools, "<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>commentary to=functions.add ",
		     "<|constrain|>json<|message|>{\"x\": 1}<|call|>",
		     "\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"x\\\": 1}\"}}]}");
	/* the mark behind a call ends the answer, and is then not in its text; the recipient may stand in front of the channel */
	expect_reply(&f, tools, "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"x\"", ": 2}",
		     "{\"name\":\"add\",\"arguments\":\"{\\\"x\\\": 2}\"}}]},\"logprobs\":null,\"finish_reason\":\"tool_calls\"");
	expect_reply(&f, tools, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|mess", "age|>No.",
		     "\"content\":\"No.\",\"reasoning_content\":\"Hm.\"");
	expect_reply(&f, ", \"response_format\": {\"type\": \"json_object\"}", "{", "}", "\"content\":\"{}\",\"refusal\"");
	engine_teardown(&f);
}

Test(thoughts, streams_have_them_apart)
{
	static struct engine_fixture f;
	engine_setup(&f, "reasoning_parser", "mistral");
	struct peer p = engine_connect(&f);
	ask(&f, &p, ", \"stream\": true");
	cr_assert_eq(f.requests[0].submit.flags & TERCET_SKIP_SPECIAL, 0, "the marks are special tokens");
	answer(&f, "[THINK]We", "ll[/THINK]Yes");
	cr_assert(engine_wait(&f, &p, 1, "data: [DONE]"));
	const char *got = buf_cstr(&p.got);
	cr_assert_not_null(strstr(got, "\"delta\":{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"We\"}"), "%s", got);
	cr_assert_not_null(strstr(got, "\"delta\":{\"content\":\"Yes\",\"reasoning_content\":\"ll\"}"), "%s", got);
	peer_fini(&p);
	engine_teardown(&f);
}

/* The same for a chat that ends with such a message of the assistant. */
static void expect_continued(struct engine_fixture *f, const char *message, const char *fields, const char *first,
			     const char *second, const char *wanted)
{
	struct peer p = engine_connect(f);
	char body[512];
	snprintf(body, sizeof(body), "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]%s%s}",
		 message, *fields == ',' ? "" : ", ", fields);
	peer_post(&p, "/v1/chat/completions", body);
	cr_assert(engine_wait(f, &p, f->count + 1, NULL), "%s: %s", body, buf_cstr(&p.got));
	answer(f, first, second);
	cr_assert(engine_wait(f, &p, f->count, wanted), "%s is not in %s", wanted, buf_cstr(&p.got));
	peer_fini(&p);
}

/* The ids of a message of the assistant with this member. */
static void tokens_with(struct engine_fixture *f, const char *member, char ids_text[256])
{
	struct peer p = engine_connect(f);
	char body[256];
	snprintf(body, sizeof(body), "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"%s}]}", member);
	peer_post(&p, "/tokenize", body);
	cr_assert(engine_wait(f, &p, f->count, "\"tokens\":"), "%s", buf_cstr(&p.got));
	snprintf(ids_text, 256, "%s", strstr(buf_cstr(&p.got), "\"tokens\":"));
	peer_fini(&p);
}

Test(thoughts, a_prompt_that_opens_one_begins_inside)
{
	static struct engine_fixture f;
	char path[] = "/tmp/tercet-test-XXXXXX";
	static const char source[] = "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n"
				     "{% if enable_thinking == false %}\n</think>\n\n{% endif %}{% endif %}";
	int fd = mkstemp(path);
	cr_assert_eq(write(fd, source, sizeof(source) - 1), (ssize_t)sizeof(source) - 1);
	close(fd);
	engine_setup(&f, "chat_template", path);
	expect_reply(&f, "", "Well.", "</think>Yes", "\"content\":\"Yes\",\"reasoning_content\":\"Well.\"");
	expect_reply(&f, ", \"chat_template_kwargs\": {\"enable_thinking\": false}", "Y", "es", "\"content\":\"Yes\",\"refusal\"");
	expect_reply(&f, ", \"response_format\": {\"type\": \"json_object\"}", "Well.", "</think>{}",
		     "\"content\":\"{}\",\"reasoning_content\":\"Well.\"");
	cr_assert_eq(f.requests[2].submit.grammar_kind, TERCET_GRAMMAR_PARTS);
	expect_reply(&f, ", \"tool_choice\": \"none\", \"grammar\": \"root ::= \\\"x\\\"\"", "", "x", "\"content\":\"x\",\"refusal\"");
	/* a session's last prompt that is answered again; where an answer goes on nobody knows */
	static const struct {
		const char *body, *wanted;
	} turns[] = {
		{"{\"messages\": [], \"session_id\": \"s\", \"session_step\": 9}", "\"content\":\"Yes\",\"reasoning_content\":\"Well.\""},
		{"{\"messages\": [], \"session_id\": \"s\", \"session_step\": 9, \"response_format\": {\"type\": \"json_object\"}}",
		 "\"content\":\"Yes\",\"reasoning_content\":\"Well.\""},
		{"{\"messages\": [], \"session_id\": \"s\", \"session_step\": 9, \"chat_template_kwargs\": {\"enable_thinking\": false}}",
		 "\"content\":\"Well.</think>Yes\",\"refusal\""},
		{"{\"messages\": [], \"session_id\": \"s\"}", "\"content\":\"Well.</think>Yes\",\"refusal\""},
	};
	for (size_t i = 0; i < COUNT_OF(turns); i++) {
		struct peer turn = engine_connect(&f);
		peer_post(&turn, "/v1/chat/completions", turns[i].body);
		cr_assert(engine_wait(&f, &turn, f.count + 1, NULL), "%s", buf_cstr(&turn.got));
		answer(&f, "Well.", "</think>Yes");
		cr_assert(engine_wait(&f, &turn, f.count, turns[i].wanted), "%s is not in %s", turns[i].wanted, buf_cstr(&turn.got));
		peer_fini(&turn);
	}
	cr_assert_eq(f.requests[f.count - 3].submit.grammar_kind, TERCET_GRAMMAR_PARTS);
	/* a message that is continued is the answer's beginning, thoughts and all */
	const char *fields = ", \"echo\": true, \"continue_final_message\": true, \"add_generation_prompt\": false", *unfinished = "<think>\\nI was";
	expect_continued(&f, unfinished, fields, " there.</think>", "Yes", "\"content\":\"Yes\",\"reasoning_content\":\"I was there.\"");
	expect_continued(&f, unfinished, fields, " there", ".", "\"content\":null,\"reasoning_content\":\"I was there.\"");
	expect_continued(&f, "<think>a</think>b", fields, "c", "d", "\"content\":\"bcd\",\"reasoning_content\":\"a\"");
	expect_continued(&f, "<think>a\\u0000b</think>c\\u0000", fields, "d", "e", "\"content\":\"c\\u0000de\",\"reasoning_content\":\"a\\u0000b\"");
	expect_continued(&f, "So", fields, " it", " is", "\"content\":\"So it is\",\"refusal\"");
	expect_continued(&f, unfinished, strstr(fields, "\"continue"), " there.</think>", "Yes",
			 "\"content\":\"Yes\",\"reasoning_content\":\" there.\"");
	expect_continued(&f, "<think>I was</thi", strstr(fields, "\"continue"), "nk>Yes", ".", "\"content\":\"Yes.\",\"refusal\"");
	char plain[256], with[256], alias[256];
	tokens_with(&f, "", plain);
	tokens_with(&f, ", \"reasoning_content\": \"b c\"", with);
	tokens_with(&f, ", \"reasoning\": \"b c\"", alias);
	cr_assert_str_neq(plain, with);
	cr_assert_str_eq(alias, with);
	tokens_with(&f, ", \"reasoning\": \"b c\", \"reasoning_content\": null", alias);
	cr_assert_str_eq(alias, with);
	static const char *const wrong[] = {"\"reasoning_content\": 5", "\"reasoning\": {\"a\": 1}"};
	for (size_t i = 0; i < COUNT_OF(wrong); i++) {
		struct peer p = engine_connect(&f);
		char body[256];
		snprintf(body, sizeof(body), "{" CHAT_WITH ", %s}]}", wrong[i]);
		peer_post(&p, "/v1/chat/completions", body);
		cr_assert(engine_wait(&f, &p, f.count, "Field 'messages[1]': "), "%s", buf_cstr(&p.got));
		cr_assert_not_null(strstr(buf_cstr(&p.got), "is no thought; it must be a string"));
		peer_fini(&p);
	}
	unlink(path);
	engine_teardown(&f);
}
