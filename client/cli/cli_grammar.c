/* Flags that say what a reply may be. Run in commands with a prompt; what is wrong with a grammar shows here, before an
 * engine is started. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli_session.h"
#include "common/json.h"

static enum err read_file(struct buf *out, const char *path, struct err_msg *em)
{
	char part[4096];
	size_t n;
	FILE *f = fopen(path, "rb");
	if (!f)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	while ((n = fread(part, 1, sizeof(part), f)) > 0)
		buf_append(out, part, n);
	bool failed = ferror(f);
	fclose(f);
	if (failed)
		return err_set(em, ERR_IO, "%s: it cannot be read", path);
	return buf_ok(out) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "no memory for %s", path);
}

/* "A|B|C" as an array. */
static void split_choices(struct buf *out, const char *text)
{
	struct json_writer w;
	json_begin(&w, out);
	json_array_begin(&w);
	for (const char *end; text; text = *end ? end + 1 : NULL) {
		end = strchrnul(text, '|');
		json_write_string(&w, text, (size_t)(end - text));
	}
	json_array_end(&w);
}

enum err cli_grammar_take(struct cli_grammar *g, int *argc, char **argv, struct err_msg *em)
{
	static const struct {
		const char *name;
		enum tercet_grammar kind;
		bool file;
	} flags[] = {{"--json-schema", TERCET_GRAMMAR_JSON_SCHEMA, true},
		     {"--regex", TERCET_GRAMMAR_REGEX, false},
		     {"--grammar", TERCET_GRAMMAR_EBNF, true},
		     {"--choice", TERCET_GRAMMAR_CHOICE, false}};
	const char *name = NULL;
	enum err e = ERR_OK;

	if (cli_take_flag(argc, argv, "--json")) {
		g->kind = TERCET_GRAMMAR_JSON_OBJECT;
		name = "--json";
	}
	for (size_t i = 0; e == ERR_OK && i < COUNT_OF(flags); i++) {
		const char *value = NULL;
		e = cli_take_text(argc, argv, flags[i].name, &value, em);
		if (e != ERR_OK || !value)
			continue;
		if (name)
			return err_set(em, ERR_INVALID, "both %s and %s say what the reply may be; only one can be given", name,
				       flags[i].name);
		name = flags[i].name;
		g->kind = flags[i].kind;
		if (flags[i].file)
			e = read_file(&g->source, value, em);
		else if (g->kind == TERCET_GRAMMAR_CHOICE)
			split_choices(&g->source, value);
		else
			buf_append_str(&g->source, value);
	}
	if (e == ERR_OK && g->kind != TERCET_GRAMMAR_NONE) {
		e = (enum err)tercet_check_grammar(g->kind, 0, g->source.data ? g->source.data : "", g->source.bytes,
						   (struct tercet_error *)em);
		if (e != ERR_OK)
			err_prefix(em, "%s", name);
	}
	return e;
}

void cli_grammar_apply(const struct cli_grammar *g, struct tercet_request *q)
{
	q->grammar_kind = g->kind;
	q->grammar = g->source.data;
	q->grammar_bytes = (uint32_t)g->source.bytes;
}
