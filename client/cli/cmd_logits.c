/* tercet logits: the logits after a prompt, for comparing a model with another implementation. Becomes the worker's
 * program, which has the model's code; nothing of it runs in this one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/log.h"
#include "common/options.h"
#include "proc_supervisor/plan.h"

struct logits {
	struct options options;
	const char *ids;
	long long top;
	bool all;
};

static void print_help(void)
{
	cli_print_usage("logits");
	printf("\nLoads the model in this process alone, computes the prompt (in chunks of --max-num-batched-tokens) and "
	       "prints\none JSON line: {\"position\", \"token_count\", \"vocab_size\", \"dtype\", \"ids\": best first, "
	       "\"logits\", \"logprobs\"}.\n\n"
	       "  --ids 1,2,3                the prompt as token ids\n"
	       "  --top N                    how many ids (default: 20); 0: the whole vocabulary in its order\n"
	       "  --all                      a line for every position of the prompt\n"
	       "\nOptions of the engine, as for \"tercet serve\":\n\n");
	options_help(stdout, "model");
	options_help(stdout, "device");
}

static enum err read_line(struct logits *l, int argc, char **argv, struct err_msg *em)
{
	enum err e = cli_take_text(&argc, argv, "--ids", &l->ids, em);

	l->top = 20;
	if (e == ERR_OK)
		e = cli_take_int(&argc, argv, "--top", 0, UINT32_MAX, &l->top, em);
	l->all = cli_take_flag(&argc, argv, "--all");
	if (e == ERR_OK)
		e = options_read_args(&l->options, argc, argv, em);
	if (e != ERR_OK)
		return e;
	if (l->ids == NULL)
		return err_set(em, ERR_INVALID, "the prompt is missing: tercet logits --model DIR --ids 1,2,3");
	if (!l->options.model[0])
		return err_set(em, ERR_INVALID, "the model is missing: tercet logits --model DIR --ids 1,2,3");
	if (l->options.log_level == LOG_LEVEL_INFO) /* what is wanted are the logits */
		l->options.log_level = LOG_LEVEL_ERROR;
	return ERR_OK;
}

/* NUL-separated strings and then the list of them. */
static char **make_arguments(struct buf *text, const struct logits *l, const char *path)
{
	size_t count = 0, i = 0;
	char **list;

	buf_append(text, path, strlen(path) + 1);
	options_to_args(&l->options, text);
	buf_printf(text, "logits%c%s%c%lld%c", '\0', l->all ? "all" : "last", '\0', l->top, '\0');
	buf_append(text, l->ids, strlen(l->ids) + 1);
	if (!buf_ok(text))
		return NULL;
	for (size_t k = 0; k < text->bytes; k++)
		count += text->data[k] == '\0';
	list = calloc(count + 1, sizeof(*list));
	for (size_t k = 0; list && k < text->bytes; k += strlen(text->data + k) + 1)
		list[i++] = text->data + k;
	return list;
}

/* The arguments say it all: a variable must not say anything else. */
static void drop_variables(void)
{
	for (char **e = environ; *e != NULL;) {
		char name[128];
		size_t bytes = strcspn(*e, "=");
		if (!options_owns_env(*e) || bytes >= sizeof(name)) {
			e++;
			continue;
		}
		memcpy(name, *e, bytes);
		name[bytes] = '\0';
		unsetenv(name); /* moves the rest up */
	}
}

/* Only returns when it fails. */
static int become_worker(const struct logits *l, struct err_msg *em)
{
	char path[4096];
	struct buf text = {0};
	char **list = NULL;

	enum err e = plan_find_program(path, sizeof(path), "tercet-worker", em);
	if (e == ERR_OK) {
		list = make_arguments(&text, l, path);
		if (list == NULL)
			e = err_set(em, ERR_NO_MEMORY, "out of memory");
	}
	if (e == ERR_OK) {
		drop_variables();
		execv(path, list);
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	}
	free(list);
	buf_fini(&text);
	return cli_fail(em);
}

int cmd_logits(int argc, char **argv)
{
	struct logits l = {.ids = NULL};
	struct err_msg em = {.text = ""};

	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	if (options_init(&l.options) != ERR_OK) {
		(void)err_set(&em, ERR_NO_MEMORY, "out of memory");
		return cli_fail(&em);
	}
	int status;
	if (read_line(&l, argc, argv, &em) != ERR_OK)
		status = cli_usage_error(&em);
	else
		status = cli_find_model(&l.options, &em) == ERR_OK ? become_worker(&l, &em) : cli_fail(&em);
	options_fini(&l.options);
	return status;
}
