/* Owns what a request says about thoughts, and how a grammar and a thought in front of it go together. Runs in the
 * gateway; never reads an answer. */
#include <string.h>

#include "proc_gateway/openai_request.h"
#include "text/grammar.h"

bool openai_thoughts_read(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const char *format = r->fields.has_reasoning_format ? r->fields.reasoning_format : "auto";
	if (strcmp(format, "none") == 0)
		return true;
	r->thought_format = m->thought_format;
	return strcmp(format, "auto") == 0 || strcmp(format, "deepseek") == 0 ||
	       api_error_field(e, "reasoning_format", json_get(json_root(r->doc), "reasoning_format"), "is not known",
			       "\"auto\", \"deepseek\" or \"none\"");
}

void openai_thoughts_begin(struct openai_request *r, const struct chat_request *chat, const char *prompt, size_t bytes)
{
	json_val last = json_at(chat->messages, json_count(chat->messages) - 1);
	const char *text;
	size_t text_bytes;
	if (chat->continue_final_message)
		r->thought_open = json_string(json_get(last, "content"), &text, &text_bytes) &&
				  thought_format_unfinished(r->thought_format, text, text_bytes);
	else
		r->thought_open = thought_format_opens(r->thought_format, prompt, bytes);
}

/* ---------------------------------------------------------------- a grammar behind a thought */

/* A character of `text` as an expression spells it. */
static void put_char(struct buf *out, char c)
{
	if (strchr("\\^$.*+?()[]{}|/", c))
		buf_append_char(out, '\\');
	buf_append_char(out, c);
}

/* Any text in which `mark` does not stand, whose first character it has once: characters that are not that one, and
 * beginnings of the mark that go on otherwise. Behind a beginning another one may follow at once. */
static void put_text_without(struct buf *out, const char *mark)
{
	const size_t length = strlen(mark);
	struct buf begun = {0};
	for (size_t i = 0; i + 1 < length; i++) {
		buf_append_str(&begun, i ? "(?:" : "");
		put_char(&begun, mark[i]);
	}
	for (size_t i = 2; i < length; i++)
		buf_append_str(&begun, ")?");
	buf_append_str(out, "(?:[^");
	put_char(out, mark[0]);
	buf_printf(out, "]|(?:%s)*(?:", buf_cstr(&begun));
	for (size_t i = 1; i < length; i++) {
		for (size_t k = 0; k < i; k++)
			put_char(out, mark[k]);
		buf_append_str(out, "[^");
		put_char(out, mark[i]);
		put_char(out, mark[0]);
		buf_append_str(out, i + 1 < length ? "]|" : "]");
	}
	buf_printf(out, "))*(?:%s)*", buf_cstr(&begun));
	out->failed |= begun.failed;
	buf_fini(&begun);
}

static void put_part(struct json_writer *w, const char *kind, const char *text, size_t bytes)
{
	json_object_begin(w);
	json_key(w, kind);
	json_write_string(w, text, bytes);
	json_object_end(w);
}

/* As it came, which has been compiled: it may be as deep as JSON may be, and compiling says that it is too deep here. */
static void put_schema(struct json_writer *w, const char *source, size_t bytes)
{
	json_object_begin(w);
	json_key(w, "json_schema");
	json_write_raw(w, source, bytes);
	json_object_end(w);
}

/* What the request asked for, as parts. */
static void put_asked(struct json_writer *w, const struct openai_request *r)
{
	const char *source = r->grammar.data ? r->grammar.data : "";
	struct json_doc *doc = NULL;
	switch (r->grammar_kind) {
	case TERCET_GRAMMAR_JSON_OBJECT:
		put_schema(w, "{\"type\": \"object\"}", strlen("{\"type\": \"object\"}"));
		break;
	case TERCET_GRAMMAR_JSON_SCHEMA:
		put_schema(w, source, r->grammar.bytes);
		break;
	case TERCET_GRAMMAR_REGEX:
		put_part(w, "regex", source, r->grammar.bytes);
		break;
	default: /* choices, each a list of one part; or parts already */
		if (json_parse(&doc, source, r->grammar.bytes, NULL) != ERR_OK)
			break;
		if (r->grammar_kind == TERCET_GRAMMAR_CHOICE) {
			json_object_begin(w);
			json_key(w, "any");
			json_array_begin(w);
		}
		for (struct json_iter it = json_iterate(json_root(doc)); json_next(&it);) {
			if (r->grammar_kind == TERCET_GRAMMAR_CHOICE)
				json_array_begin(w);
			json_write_value(w, it.value);
			if (r->grammar_kind == TERCET_GRAMMAR_CHOICE)
				json_array_end(w);
		}
		if (r->grammar_kind == TERCET_GRAMMAR_CHOICE) {
			json_array_end(w);
			json_object_end(w);
		}
		json_free(&doc);
	}
}

bool openai_thoughts_grammar(struct openai_request *r, struct api_error *e)
{
	if (!r->thought_open && r->grammar_is_tags && *thought_format_end(r->thought_format))
		return true; /* in front of the first tag text is free, and may be a thought */
	if (!r->thought_open || r->grammar_kind == TERCET_GRAMMAR_EBNF) { /* always so of harmony */
		r->thought_format = THOUGHT_FORMAT_NONE;
		r->thought_open = false; /* nothing of it is a thought, nor counted as one */
		return true;
	}
	struct buf parts = {0}, without = {0};
	struct grammar *g = NULL;
	struct err_msg em = {""};
	struct json_writer w;
	put_text_without(&without, thought_format_end(r->thought_format));
	json_begin(&w, &parts);
	json_array_begin(&w);
	put_part(&w, "regex", without.data, without.bytes);
	json_write_cstr(&w, thought_format_end(r->thought_format));
	put_part(&w, "regex", "\\s{0,8}", strlen("\\s{0,8}"));
	put_asked(&w, r);
	json_array_end(&w);
	parts.failed |= without.failed;
	buf_fini(&without);
	buf_fini(&r->grammar);
	r->grammar = parts;
	r->grammar_kind = TERCET_GRAMMAR_PARTS;
	enum err err = buf_ok(&parts) ? grammar_compile(&g, GRAMMAR_PARTS, r->grammar_flags, parts.data, parts.bytes, &em)
				      : ERR_NO_MEMORY;
	grammar_unref(&g);
	if (err == ERR_NO_MEMORY)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	return err == ERR_OK ||
	       api_error_set(e, 400, NULL, err == ERR_UNSUPPORTED ? "unsupported_parameter" : NULL,
			     "What the answer may be cannot follow the model's thoughts: %s; \"chat_template_kwargs\": "
			     "{\"enable_thinking\": false} leaves them out with most models.", em.text);
}
