/* Everything that is printed from the option table: help, man page sections, shell completion, YAML. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "common/options.h"
#include "common/options_priv.h"

enum { HELP_INDENT = 34, HELP_WIDTH_DEFAULT = 100 };

static const struct {
	const char *group, *title;
} group_titles[] = {
	{"model", "Model"},
	{"device", "Device and memory"},
	{"nodes", "Several machines"},
	{"scheduler", "Scheduler"},
	{"server", "Server"},
	{"output", "Output socket"},
	{"run", "Running and looking inside"},
};

static const char *value_word(const struct option_desc *d)
{
	switch (d->type) {
	case OPTION_STR:
		return "TEXT";
	case OPTION_INT:
		return "N";
	case OPTION_SIZE:
		return "BYTES";
	case OPTION_REAL:
		return "X";
	case OPTION_ENUM:
		return d->choices;
	case OPTION_LIST:
		return "A[,B...]";
	case OPTION_FLAG:
		break;
	}
	return "";
}

/* The default as a person writes it; "" where the help text tells it or there is none. */
static void default_text(const struct option_desc *d, char *out, size_t bytes)
{
	u32 index = d->def_enum;
	const char *choice = d->choices;

	out[0] = '\0';
	switch (d->type) {
	case OPTION_STR:
		snprintf(out, bytes, "%s", d->def_str);
		break;
	case OPTION_INT:
		if (d->def_int != 0 || strchr(d->help, '0') == NULL)
			snprintf(out, bytes, "%" PRId64, d->def_int);
		break;
	case OPTION_SIZE:
		if (d->def_size == 0)
			break;
		if (d->def_size % (1024 * 1024) == 0)
			snprintf(out, bytes, "%" PRIu64 "M", d->def_size / (1024 * 1024));
		else
			snprintf(out, bytes, "%" PRIu64, d->def_size);
		break;
	case OPTION_REAL:
		snprintf(out, bytes, "%g", d->def_real);
		break;
	case OPTION_ENUM:
		for (; index > 0; index--)
			choice += strcspn(choice, "|") + 1;
		snprintf(out, bytes, "%.*s", (int)strcspn(choice, "|"), choice);
		break;
	case OPTION_FLAG:
		snprintf(out, bytes, "%s", d->def_flag ? "on" : "off");
		break;
	case OPTION_LIST:
		break;
	}
}

static void describe(const struct option_desc *d, char *out, size_t bytes)
{
	char def[64];

	default_text(d, def, sizeof(def));
	if (def[0] != '\0')
		snprintf(out, bytes, "%s (default: %s)", d->help, def);
	else
		snprintf(out, bytes, "%s", d->help);
}

static size_t terminal_width(void)
{
	const char *columns = getenv("COLUMNS");
	long width = columns != NULL ? strtol(columns, NULL, 10) : 0;

	return width >= 60 && width <= 400 ? (size_t)width : HELP_WIDTH_DEFAULT;
}

/* Up to where `text` may be broken: the default at its end stays whole. */
static size_t word_bytes(const char *text)
{
	return strncmp(text, "(default:", 9) == 0 ? strlen(text) : strcspn(text, " ");
}

/* `text` from the current column on, broken at spaces. */
static void print_wrapped(FILE *out, const char *text, size_t column, size_t width)
{
	while (*text != '\0') {
		size_t word = word_bytes(text);
		if (column + word > width && column > HELP_INDENT) {
			fprintf(out, "\n%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		}
		fprintf(out, "%.*s", (int)word, text);
		column += word;
		text += word;
		if (*text == ' ') {
			fputc(' ', out);
			column++;
			text++;
		}
	}
	fputc('\n', out);
}

static void help_option(FILE *out, const struct option_desc *d, size_t width)
{
	char name[OPTION_NAME_BYTES_MAX], text[512], left[160];

	option_dashed(name, sizeof(name), d->name);
	if (d->type == OPTION_FLAG)
		snprintf(left, sizeof(left), "  --[no-]%s", name);
	else
		snprintf(left, sizeof(left), "  --%s %s", name, value_word(d));
	describe(d, text, sizeof(text));
	if (strlen(left) + 2 > HELP_INDENT)
		fprintf(out, "%s\n%*s", left, HELP_INDENT, "");
	else
		fprintf(out, "%-*s", HELP_INDENT, left);
	print_wrapped(out, text, HELP_INDENT, width);
}

static void help_group(FILE *out, size_t g, size_t width)
{
	fprintf(out, "\n%s (--help=%s):\n", group_titles[g].title, group_titles[g].group);
	for (const struct option_desc *d = option_table; d->name != NULL; d++)
		if (strcmp(d->group, group_titles[g].group) == 0)
			help_option(out, d, width);
}

bool options_has_group(const char *group)
{
	for (size_t g = 0; group != NULL && g < COUNT_OF(group_titles); g++)
		if (strcasecmp(group, group_titles[g].group) == 0)
			return true;
	return group == NULL;
}

void options_help(FILE *out, const char *group)
{
	size_t width = terminal_width();
	bool any = false;

	for (size_t g = 0; g < COUNT_OF(group_titles); g++)
		if (group == NULL || strcasecmp(group, group_titles[g].group) == 0) {
			help_group(out, g, width);
			any = true;
		}
	if (!any) {
		fprintf(out, "There is no group of options \"%s\". Groups:", group);
		for (size_t g = 0; g < COUNT_OF(group_titles); g++)
			fprintf(out, " %s", group_titles[g].group);
		fputc('\n', out);
		return;
	}
	fprintf(out,
		"\nAlso: -tp N for --tensor-parallel-size, --kv-cache-memory-bytes for --kv-cache-memory,\n"
		"--async-scheduling and --no-async-scheduling for --async-depth 2 and 0.\n"
		"Each option can also be set as TERCET_NAME in the environment or in a YAML file (--config "
		"FILE);\n"
		"the command line goes before the file, the file before the environment.\n");
}

/* ---------------------------------------------------------------- man page */

/* Troff reads '-' as a hyphen, '\' as an escape and a leading '.' or '\'' as a request. */
static void man_text(FILE *out, const char *text)
{
	if (*text == '.' || *text == '\'')
		fputs("\\&", out);
	for (; *text != '\0'; text++) {
		if (*text == '\\')
			fputs("\\e", out);
		else if (*text == '-')
			fputs("\\-", out);
		else
			fputc(*text, out);
	}
}

void options_man(FILE *out)
{
	char name[OPTION_NAME_BYTES_MAX], text[512];

	fputs(".SH OPTIONS\n", out);
	for (size_t g = 0; g < COUNT_OF(group_titles); g++) {
		fprintf(out, ".SS %s\n", group_titles[g].title);
		for (const struct option_desc *d = option_table; d->name != NULL; d++) {
			if (strcmp(d->group, group_titles[g].group) != 0)
				continue;
			option_dashed(name, sizeof(name), d->name);
			fputs(".TP\n\\fB\\-\\-", out);
			if (d->type == OPTION_FLAG)
				fputs("[no\\-]", out);
			man_text(out, name);
			fputs("\\fR", out);
			if (d->type != OPTION_FLAG) {
				fputs(" \\fI", out);
				man_text(out, value_word(d));
				fputs("\\fR", out);
			}
			fputc('\n', out);
			describe(d, text, sizeof(text));
			man_text(out, text);
			fputs(".\n", out);
		}
	}
	fputs(".SH ENVIRONMENT\nEach option can be set as \\fBTERCET_\\fINAME\\fR, in capitals and with "
	      "underscores.\n"
	      ".SH FILES\n\\fB\\-\\-config\\fR \\fIFILE\\fR reads options from a flat YAML file whose keys "
	      "are the long "
	      "names. The command line goes before the file, the file before the environment.\n",
	      out);
}

/* ---------------------------------------------------------------- completion */

/* Every long option word, separated by `separator`. */
static void print_words(FILE *out, const char *separator)
{
	char name[OPTION_NAME_BYTES_MAX];

	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		option_dashed(name, sizeof(name), d->name);
		fprintf(out, "--%s%s", name, separator);
		if (d->type == OPTION_FLAG)
			fprintf(out, "--no-%s%s", name, separator);
	}
	fprintf(out, "--config%s--help", separator);
}

static void complete_bash(FILE *out, const char *const *commands)
{
	char name[OPTION_NAME_BYTES_MAX];

	fputs("_tercet()\n{\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
	      "\tCOMPREPLY=()\n\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tCOMPREPLY=($(compgen -W \"",
	      out);
	for (; *commands != NULL; commands++)
		fprintf(out, "%s ", *commands);
	fputs("\" -- \"$cur\"))\n\t\treturn\n\tfi\n\tcase $prev in\n", out);
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		if (d->type != OPTION_ENUM)
			continue;
		option_dashed(name, sizeof(name), d->name);
		fprintf(out, "\t--%s) COMPREPLY=($(compgen -W \"", name);
		for (const char *p = d->choices; *p != '\0'; p++)
			fputc(*p == '|' ? ' ' : *p, out);
		fputs("\" -- \"$cur\")); return ;;\n", out);
	}
	fputs("\tesac\n\tcase $cur in\n\t-*) COMPREPLY=($(compgen -W \"", out);
	print_words(out, " ");
	fputs("\" -- \"$cur\")) ;;\n\t*) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n\tesac\n}\n"
	      "complete -o filenames -F _tercet tercet\n",
	      out);
}

/* A word for zsh's _arguments: brackets, colons and quotes are special in it. */
static void zsh_text(FILE *out, const char *text)
{
	for (; *text != '\0'; text++) {
		if (strchr("[]:\\", *text) != NULL)
			fputc('\\', out);
		if (*text == '\'')
			fputs("'\\''", out);
		else
			fputc(*text, out);
	}
}

static void complete_zsh(FILE *out, const char *const *commands)
{
	char name[OPTION_NAME_BYTES_MAX];

	fputs("#compdef tercet\n_arguments \\\n\t'1:command:(", out);
	for (const char *const *c = commands; *c != NULL; c++)
		fprintf(out, "%s%s", c != commands ? " " : "", *c);
	fputs(")' \\\n", out);
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		option_dashed(name, sizeof(name), d->name);
		fprintf(out, "\t'--%s%s[", name, d->type == OPTION_FLAG ? "" : "=");
		zsh_text(out, d->help);
		fputs("]", out);
		if (d->type == OPTION_ENUM) {
			fprintf(out, ":value:(");
			for (const char *p = d->choices; *p != '\0'; p++)
				fputc(*p == '|' ? ' ' : *p, out);
			fputs(")", out);
		} else if (d->type != OPTION_FLAG) {
			fputs(":value:_files", out);
		}
		fputs("' \\\n", out);
		if (d->type == OPTION_FLAG)
			fprintf(out, "\t'--no-%s' \\\n", name);
	}
	fputs("\t'--config=[YAML file with options]:file:_files' \\\n\t'*:file:_files'\n", out);
}

static void complete_fish(FILE *out, const char *const *commands)
{
	char name[OPTION_NAME_BYTES_MAX];

	for (; *commands != NULL; commands++)
		fprintf(out, "complete -c tercet -n __fish_use_subcommand -f -a %s\n", *commands);
	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		option_dashed(name, sizeof(name), d->name);
		fprintf(out, "complete -c tercet -l %s", name);
		if (d->type == OPTION_ENUM) {
			fputs(" -x -a '", out);
			for (const char *p = d->choices; *p != '\0'; p++)
				fputc(*p == '|' ? ' ' : *p, out);
			fputs("'", out);
		} else if (d->type != OPTION_FLAG) {
			fputs(" -r", out);
		}
		fputs(" -d '", out);
		for (const char *p = d->help; *p != '\0'; p++)
			fprintf(out, *p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
		fputs("'\n", out);
		if (d->type == OPTION_FLAG)
			fprintf(out, "complete -c tercet -l no-%s\n", name);
	}
	fputs("complete -c tercet -l config -r -d 'YAML file with options'\n", out);
}

enum err options_completion(FILE *out, const char *shell, const char *const *commands, struct err_msg *em)
{
	if (strcmp(shell, "bash") == 0)
		complete_bash(out, commands);
	else if (strcmp(shell, "zsh") == 0)
		complete_zsh(out, commands);
	else if (strcmp(shell, "fish") == 0)
		complete_fish(out, commands);
	else
		return err_set(em, ERR_UNSUPPORTED,
			       "there is no completion for the shell \"%s\": it must be bash, zsh "
			       "or fish",
			       shell);
	return ERR_OK;
}

/* ---------------------------------------------------------------- YAML */

void options_print_yaml(FILE *out, const struct options *o)
{
	char name[OPTION_NAME_BYTES_MAX];
	struct buf text = {0};

	for (const struct option_desc *d = option_table; d->name != NULL; d++) {
		const struct option_list *l = option_field(o, d);
		option_dashed(name, sizeof(name), d->name);
		buf_clear(&text);
		if (strcmp(d->name, "api_key") == 0) {
			fprintf(out, "# %s: %u in force, not shown\n", name, l->count);
			continue;
		}
		if (d->type == OPTION_LIST) {
			buf_append_char(&text, '[');
			for (uint32_t i = 0; i < l->count; i++) {
				buf_append_str(&text, i != 0 ? ", " : "");
				json_escape(&text, l->items[i], strlen(l->items[i]));
			}
			buf_append_char(&text, ']');
		} else if (d->type == OPTION_STR) {
			const char *value = *(char *const *)option_field(o, d);
			json_escape(&text, value, strlen(value));
		} else {
			option_format(o, d, &text);
		}
		fprintf(out, "%s: %s\n", name, buf_cstr(&text));
	}
	buf_fini(&text);
}
