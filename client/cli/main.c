/* The tercet command: finds the subcommand and hands the rest of the line to it. Owns nothing else. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/suggest.h"
#include "ipc/ipc.h"

const struct cli_command cli_commands[] = {
#define CLI_ROW(function, words, arguments, summary) {words, arguments, summary, cmd_##function},
	CLI_COMMANDS(CLI_ROW)
#undef CLI_ROW
		{NULL, NULL, NULL, NULL},
};

/* How many words of argv[1..] are `words`; 0 when they differ. */
static int matching_words(const char *words, int argc, char **argv)
{
	int count = 0;

	while (*words != '\0') {
		size_t n = strcspn(words, " ");
		if (1 + count >= argc || strlen(argv[1 + count]) != n ||
		    strncmp(argv[1 + count], words, n) != 0)
			return 0;
		count++;
		words += n;
		words += *words == ' ';
	}
	return count;
}

static const struct cli_command *find(int argc, char **argv, int *words)
{
	const struct cli_command *best = NULL;

	/* "bench serve" goes before "bench". */
	for (const struct cli_command *c = cli_commands; c->words != NULL; c++) {
		int n = matching_words(c->words, argc, argv);
		if (n > 0 && (best == NULL || n > *words)) {
			best = c;
			*words = n;
		}
	}
	return best;
}

static int unknown(const char *word)
{
	const char *best = NULL;
	size_t best_distance = (size_t)-1;

	for (const struct cli_command *c = cli_commands; c->words != NULL; c++) {
		size_t distance = suggest_distance(word, strlen(word), c->words);
		if (distance < best_distance) {
			best_distance = distance;
			best = c->words;
		}
	}
	if (suggest_is_near(best_distance, strlen(word)))
		fprintf(stderr, "tercet: there is no command \"%s\"; did you mean \"tercet %s\"?\n", word,
			best);
	else
		fprintf(stderr, "tercet: there is no command \"%s\"; \"tercet help\" lists them\n", word);
	return CLI_USAGE;
}

int main(int argc, char **argv)
{
	int words = 0;

	signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, not the end of the process, */
	signal(SIGXFSZ, SIG_IGN); /* and so is a limit on file sizes */
	boot_raise_file_limit();
	if (argc < 2) {
		cmd_help(1, argv);
		return CLI_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return cmd_help(1, argv);
	if (strcmp(argv[1], "--version") == 0)
		return cmd_version(1, argv);
	const struct cli_command *c = find(argc, argv, &words);
	if (c == NULL)
		return unknown(argv[1]);
	return c->run(argc - words, argv + words);
}
