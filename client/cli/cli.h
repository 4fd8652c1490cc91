/* The tercet command: one row a subcommand, and what all of them need. */
#ifndef TERCET_CLIENT_CLI_CLI_H
#define TERCET_CLIENT_CLI_CLI_H

#include <stdbool.h>

#include "common/err.h"
#include "common/options.h"

/* X(function, "word or words", "arguments", "summary"). The function is `int cmd_<function>(int argc, char **argv)`
 * in cmd_<function>.c; argv[0] is the last word of the subcommand, so that argv fits options_read_args; what it
 * returns is the exit status. Every command answers --help itself (cli_help_wanted). */
#define CLI_COMMANDS(X)                                                                                      \
	X(serve, "serve", "MODEL [flags]", "Serve a model over HTTP and the output socket")                  \
	X(run, "run", "MODEL [PROMPT]", "Complete a prompt and print the reply as it comes")                 \
	X(chat, "chat", "MODEL", "Talk to a model on the terminal")                                          \
	X(attach, "attach", "--run-dir DIR", "Watch what an engine says, or take up a client's output")      \
	X(logits, "logits", "--model DIR --ids 1,2,3 [flags]", "Print the logits after a prompt of token ids") \
	X(tokenize, "tokenize", "--model DIR [TEXT | --jsonl FILE]", "Turn text into token ids and back")        \
	X(chat_template, "chat-template", "--jsonl FILE [flags]", "Render messages with chat templates")         \
	X(trace, "trace", "--messages FILE...", "Print recorded messages")                                   \
	X(bench_serve, "bench serve", "[flags]", "Load a server over HTTP and measure latencies and throughput") \
	X(bench_control_plane, "bench control-plane", "[flags]",                                            \
	  "Time planning, encoding and applying of steps without a model")                                    \
	X(completion, "completion", "bash|zsh|fish", "Print a completion script for a shell")                \
	X(man, "man", "", "Print the manual page (tercet man | man -l -)")                                   \
	X(version, "version", "", "Print the version")                                                       \
	X(help, "help", "[COMMAND]", "Explain a command")

#define CLI_DECLARE(function, words, arguments, summary) int cmd_##function(int argc, char **argv);
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

struct cli_command {
	const char *words;
	const char *arguments;
	const char *summary;
	int (*run)(int argc, char **argv);
};

/* Ends in a row whose words are NULL. */
extern const struct cli_command cli_commands[];

/* Exit status. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* "tercet: TEXT" to stderr; returns CLI_FAILED, or CLI_USAGE for errors of the command line. */
int cli_fail(const struct err_msg *em);
int cli_usage_error(const struct err_msg *em);

/* --help, -h or --help=GROUP before a "--". `*group` is NULL without a group; `group` may be NULL. */
bool cli_help_wanted(int argc, char **argv, const char **group);
/* "usage: tercet WORDS ARGUMENTS" and the summary to stdout. */
void cli_print_usage(const char *words);

/* Makes of o->model the folder that the model is read from, which is another one for models in GGUF (model_folder in
 * text/text.h, with its errors). Blocks for the file system. */
MUST_CHECK enum err cli_find_model(struct options *o, struct err_msg *em);
/* The same, and whether there is a model: a directory with config.json and tokenizer.json. ERR_NOT_FOUND names what is not
 * there; said before anything is started. */
MUST_CHECK enum err cli_open_model(struct options *o, struct err_msg *em);

/* Options that only one command has: each takes its words out of argv (before a "--"), so that the rest can go to
 * options_read_args. */
/* --name; true when it was there. */
bool cli_take_flag(int *argc, char **argv, const char *name);
/* --name VALUE or --name=VALUE; the last one wins, *value is left alone when there is none. ERR_INVALID: no value. */
MUST_CHECK enum err cli_take_text(int *argc, char **argv, const char *name, const char **value, struct err_msg *em);
/* The same for a whole number between min and max, and for a real one. */
MUST_CHECK enum err cli_take_int(int *argc, char **argv, const char *name, long long min, long long max,
				 long long *value, struct err_msg *em);
MUST_CHECK enum err cli_take_real(int *argc, char **argv, const char *name, double min, double max, double *value,
				  struct err_msg *em);
/* The first word without dashes behind argv[0], or NULL; only sound once all options with values are taken. */
const char *cli_take_word(int *argc, char **argv);

#endif
