/* tercet help, version, man, completion: everything printed from the command and option tables. */
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/options.h"
#include "common/types.h"

static const struct cli_command *find_words(const char *words)
{
	for (const struct cli_command *c = cli_commands; c->words != NULL; c++)
		if (strcmp(c->words, words) == 0)
			return c;
	return NULL;
}

void cli_print_usage(const char *words)
{
	const struct cli_command *c = find_words(words);

	if (c != NULL)
		printf("usage: tercet %s %s\n\n%s.\n", c->words, c->arguments, c->summary);
}

int cmd_help(int argc, char **argv)
{
	char words[128] = "";

	for (int i = 1; i < argc; i++) {
		size_t n = strlen(words);
		snprintf(words + n, sizeof(words) - n, "%s%s", i > 1 ? " " : "", argv[i]);
	}
	if (words[0] != '\0') {
		const struct cli_command *c = find_words(words);
		if (c == NULL) {
			fprintf(stderr, "tercet: there is no command \"%s\"; \"tercet help\" lists them\n",
				words);
			return CLI_USAGE;
		}
		char help[] = "--help";
		char *help_argv[] = {argv[argc - 1], help, NULL};
		return c->run == cmd_help ? cmd_help(1, argv) : c->run(2, help_argv);
	}
	printf("Tercet serves large language models.\n\nusage: tercet COMMAND ...\n\n");
	for (const struct cli_command *c = cli_commands; c->words != NULL; c++) {
		char left[64];
		snprintf(left, sizeof(left), "%s %s", c->words, c->arguments);
		printf("  %-34s %s\n", left, c->summary);
	}
	printf("\n\"tercet COMMAND --help\" explains a command.\n");
	return CLI_OK;
}

int cmd_version(int argc, char **argv)
{
	if (cli_help_wanted(argc, argv, NULL))
		cli_print_usage("version");
	else
		printf("tercet %s\n", TERCET_VERSION_TEXT);
	return CLI_OK;
}

int cmd_man(int argc, char **argv)
{
	if (cli_help_wanted(argc, argv, NULL)) {
		cli_print_usage("man");
		return CLI_OK;
	}
	printf(".TH TERCET 1 \"\" \"tercet %s\"\n.SH NAME\ntercet \\- serve large language models\n"
	       ".SH SYNOPSIS\n.B tercet\n.I COMMAND\n[\\fIarguments\\fR]\n.SH COMMANDS\n",
	       TERCET_VERSION_TEXT);
	for (const struct cli_command *c = cli_commands; c->words != NULL; c++)
		printf(".TP\n\\fB%s\\fR %s\n%s.\n", c->words, c->arguments, c->summary);
	options_man(stdout);
	printf(".SH \"EXIT STATUS\"\n0: success. 1: something failed; the text says what. 2: the command "
	       "line is "
	       "wrong.\n");
	return CLI_OK;
}

int cmd_completion(int argc, char **argv)
{
	const char *first_words[64 + 1];
	struct err_msg em;
	size_t n = 0;

	if (argc != 2 || cli_help_wanted(argc, argv, NULL)) {
		cli_print_usage("completion");
		return argc == 2 ? CLI_OK : CLI_USAGE;
	}
	for (const struct cli_command *c = cli_commands; c->words != NULL && n + 2 < COUNT_OF(first_words);
	     c++)
		if (strchr(c->words, ' ') == NULL)
			first_words[n++] = c->words;
	first_words[n++] = "bench"; /* of two words: "bench serve", "bench control-plane" */
	first_words[n++] = NULL;
	if (options_completion(stdout, argv[1], first_words, &em) != ERR_OK)
		return cli_usage_error(&em);
	return CLI_OK;
}
