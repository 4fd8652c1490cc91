/* tercet chat-template: the prompts that chat templates make of messages, for a file of JSON lines. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/cli/cli.h"
#include "common/clock.h"
#include "text/text.h"

struct render {
	struct chat_template *fallback; /* for lines without a template of their own; NULL: none */
	struct json_doc *context;       /* from a first line {"context": ...} */
	struct json_doc *variables;     /* of the line in hand, where its own are not enough */
	struct buf rendered;
};

static void print_help(void)
{
	cli_print_usage("chat-template");
	printf("\nReads lines {\"messages\": [...], ...} from FILE (- is standard input) and answers each with a line "
	       "{\"rendered\": ...}\nor {\"error\": ...}. A line may have: template, messages, tools, documents, "
	       "add_generation_prompt,\ncontinue_final_message, bos_token, eos_token, extra (further variables) and now "
	       "(2025-01-15T12:34:56, for\nstrftime_now). A first line {\"context\": {...}} gives variables to all lines, "
	       "and no answer.\n\n"
	       "  --jsonl FILE               the lines\n"
	       "  --model DIR                whose template is used for lines without one; or a file *.gguf\n"
	       "  --chat-template FILE       the same from a file\n");
}

/* Local time in ISO form; now when there is none. */
static int64_t line_time(json_val line, json_val context)
{
	struct tm tm = {.tm_isdst = -1};
	const char *text = json_cstr(json_get(line, "now"), json_cstr(json_get(context, "now"), ""));
	if (strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) == NULL)
		return clock_wall_s();
	return mktime(&tm);
}

/* An empty token is a value here, unlike in a model's configuration, where it means that there is none. */
static bool is_empty_string(json_val v)
{
	return json_string_equals(v, "");
}

static enum err merge_variables(struct render *r, json_val line, json_val extra, json_val *out, struct err_msg *em)
{
	static const char *const names[] = {"bos_token", "eos_token"};
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_object_begin(&w);
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (is_empty_string(json_get(line, names[i]))) {
			json_key(&w, names[i]);
			json_write_cstr(&w, "");
		}
	for (struct json_iter it = json_iterate(extra); json_next(&it);) {
		json_key(&w, it.key);
		json_write_value(&w, it.value);
	}
	json_object_end(&w);
	json_free(&r->variables);
	enum err e = json_parse(&r->variables, buf_cstr(&text), text.bytes, em);
	buf_fini(&text);
	if (e == ERR_OK)
		*out = json_root(r->variables);
	return e;
}

static enum err render_line(struct render *r, json_val line, struct err_msg *em)
{
	json_val context = r->context != NULL ? json_root(r->context) : (json_val){NULL};
	json_val extra = json_get(line, "extra");
	struct chat_request request = {
		.messages = json_get(line, "messages"),
		.tools = json_get(line, "tools"),
		.documents = json_get(line, "documents"),
		.kwargs = json_present(extra) ? extra : json_get(context, "context"),
		.now_s = line_time(line, context),
		.bos_token = json_cstr(json_get(line, "bos_token"), NULL),
		.eos_token = json_cstr(json_get(line, "eos_token"), NULL),
	};
	(void)json_bool(json_get(line, "add_generation_prompt"), &request.add_generation_prompt);
	(void)json_bool(json_get(line, "continue_final_message"), &request.continue_final_message);
	if (is_empty_string(json_get(line, "bos_token")) || is_empty_string(json_get(line, "eos_token"))) {
		enum err e = merge_variables(r, line, request.kwargs, &request.kwargs, em);
		if (e != ERR_OK)
			return e;
	}
	const char *source;
	size_t bytes;
	struct chat_template *own = NULL;
	if (json_string(json_get(line, "template"), &source, &bytes)) {
		enum err e = chat_template_parse(&own, source, bytes, em);
		if (e != ERR_OK)
			return e;
	} else if (r->fallback == NULL) {
		return err_set(em, ERR_INVALID, "the line has no \"template\", and there is no --model or --chat-template");
	}
	buf_clear(&r->rendered);
	enum err e = chat_template_render(own != NULL ? own : r->fallback, &request, &r->rendered, em);
	chat_template_free(&own);
	return e;
}

static void print_answer(struct render *r, enum err e, const struct err_msg *em)
{
	struct buf out = {0};
	struct json_writer w;
	json_begin(&w, &out);
	json_object_begin(&w);
	json_key(&w, e == ERR_OK ? "rendered" : "error");
	if (e == ERR_OK)
		json_write_string(&w, buf_cstr(&r->rendered), r->rendered.bytes);
	else
		json_write_cstr(&w, em->text);
	json_object_end(&w);
	buf_append_char(&out, '\n');
	fwrite(out.data, 1, out.bytes, stdout);
	buf_fini(&out);
}

static enum err render_file(struct render *r, const char *path, struct err_msg *em)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rbe");
	if (f == NULL)
		return err_set(em, ERR_IO, "%s: %m", path);
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	for (bool first = true; (n = getline(&line, &room, f)) > 0; first = false) {
		struct err_msg line_em = {.text = ""};
		struct json_doc *doc = NULL;
		enum err e = json_parse(&doc, line, (size_t)n, &line_em);
		if (e == ERR_OK && first && json_type(json_get(json_root(doc), "context")) == JSON_OBJECT) {
			r->context = doc;
			continue;
		}
		if (e == ERR_OK)
			e = render_line(r, json_root(doc), &line_em);
		print_answer(r, e, &line_em);
		json_free(&doc);
	}
	free(line);
	enum err e = ferror(f) ? err_set(em, ERR_IO, "%s: %m", path) : ERR_OK;
	if (f != stdin)
		fclose(f);
	return e;
}

int cmd_chat_template(int argc, char **argv)
{
	struct render r = {0};
	struct err_msg em = {.text = ""};
	const char *model = NULL, *file = NULL, *jsonl = NULL;
	char folder[PATH_MAX] = ".";
	bool made;
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	enum err e = cli_take_text(&argc, argv, "--model", &model, &em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--chat-template", &file, &em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--jsonl", &jsonl, &em);
	if (e == ERR_OK && (jsonl == NULL || argc > 1))
		e = err_set(&em, ERR_INVALID, "tercet chat-template --jsonl FILE renders lines of JSON (see --help)");
	if (e != ERR_OK)
		return cli_usage_error(&em);
	if (model != NULL)
		e = model_folder(folder, sizeof(folder), model, "", &made, &em);
	if (e == ERR_OK && (model != NULL || file != NULL))
		e = chat_template_load(&r.fallback, folder, file, &em);
	if (e == ERR_OK)
		e = render_file(&r, jsonl, &em);
	chat_template_free(&r.fallback);
	json_free(&r.context);
	json_free(&r.variables);
	buf_fini(&r.rendered);
	return e == ERR_OK ? CLI_OK : cli_fail(&em);
}
