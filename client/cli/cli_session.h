/* What tercet run and tercet chat share: an engine to talk to, sampling flags, and streaming one reply. */
#ifndef TERCET_CLIENT_CLI_CLI_SESSION_H
#define TERCET_CLIENT_CLI_CLI_SESSION_H

#include "client/cli/cli.h"
#include "client/tercet.h"
#include "common/buf.h"
#include "common/options.h"
#include "proc_supervisor/engine.h"

/* Flags that only commands with a prompt have; taken out of argv before the engine's options are read. */
struct cli_sampling {
	struct tercet_params params;
	bool have_seed; /* else every reply draws one */
	const char *stop;
	bool ids_out;
	/* Given on the line: these win over the model's generation_config.json. */
	bool have_temperature, have_top_p, have_top_k, have_min_p, have_repetition_penalty;
};

#define CLI_SAMPLING_HELP                                                                                    \
	"  --max-tokens N             most tokens of a reply (256)\n"                                        \
	"  --temperature T            0: greedy; default: the model's generation_config.json, else 0.8\n"    \
	"  --top-p P --top-k K --min-p P --repetition-penalty R\n"                                           \
	"  --seed N                   the same seed gives the same reply; default: a new one each time\n"     \
	"  --stop TEXT                end the reply before this text\n"                                      \
	"  --ignore-eos               go on after the end-of-sequence token\n"                               \
	"  --output-ids               print token ids instead of text\n"

MUST_CHECK enum err cli_sampling_take(struct cli_sampling *s, int *argc, char **argv, struct err_msg *em);
/* Fills what was not given from the generation_config.json that --generation-config means, if that is there. ERR_NOT_FOUND: it names
 * a folder without one. ERR_FORMAT, ERR_INVALID, ERR_IO: it cannot be read, or has a value out of its range. */
MUST_CHECK enum err cli_sampling_defaults(struct cli_sampling *s, const struct options *o, struct err_msg *em);

/* What the reply may be. */
struct cli_grammar {
	enum tercet_grammar kind; /* NONE: anything */
	struct buf source;	  /* the caller frees it */
};

#define CLI_GRAMMAR_HELP                                                                                     \
	"  --json-schema FILE         the reply is JSON that this schema allows; --json: any JSON object\n"  \
	"  --regex EXPRESSION         the reply matches it; --grammar FILE: what the rules (GBNF) derive\n"  \
	"  --choice \"A|B|C\"           the reply is one of these\n"

/* Takes these flags out of argv. ERR_INVALID: more than one of them, or the grammar is wrong; ERR_IO: its file. */
MUST_CHECK enum err cli_grammar_take(struct cli_grammar *g, int *argc, char **argv, struct err_msg *em);
void cli_grammar_apply(const struct cli_grammar *g, struct tercet_request *q); /* `g` stays borrowed */

struct cli_session {
	struct options options;
	struct engine engine; /* pid 0: a running one is used (--run-dir) */
	struct tercet *client;
};

/* ERR_NOT_FOUND: no engine has its socket `name` in this run directory. */
MUST_CHECK enum err cli_find_socket(const char *run_dir, const char *name, struct err_msg *em);
/* With --run-dir connects to that engine, else starts one of `s->options` as a child, with progress on a terminal.
 * Blocks. ERR_ABORTED: interrupted. */
MUST_CHECK enum err cli_session_open(struct cli_session *s, const char *name, struct err_msg *em);
void cli_session_close(struct cli_session *s);

struct cli_reply {
	struct buf text;
	enum tercet_finish finish;
	uint32_t token_count;
	uint32_t prompt_count; /* of the engine's prompt: of a conversation that it keeps, all of it */
	double first_s; /* to the first token */
	double total_s;
	bool interrupted;
};

/* Submits and prints what comes to stdout until the end. `signal_fd` (or -1) becomes readable when the user wants the
 * reply to end: it is aborted. The caller frees reply->text. Refusals and errors come back as such. Blocks. */
MUST_CHECK enum err cli_session_stream(struct cli_session *s, const struct tercet_request *request, bool ids_out,
				       int signal_fd, struct cli_reply *reply, struct err_msg *em);
/* "[stop, 57 tokens in 0.84 s, 68 tokens/s, seed 5]" to stderr, if that is a terminal or `always`. */
void cli_reply_summary(const struct cli_reply *reply, uint64_t seed, bool always);
uint64_t cli_random_seed(void);

#endif
