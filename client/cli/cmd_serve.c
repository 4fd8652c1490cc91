/* tercet serve: the options, then the supervisor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/log.h"
#include "common/options.h"
#include "common/speculative.h"
#include "proc_supervisor/supervisor.h"
#include "text/text.h"

/* The gateways need the template when the weights are loaded, which is late to learn that it is wrong. */
static enum err check_template(const struct options *o, struct err_msg *em)
{
	struct chat_template *t = NULL;

	if (o->api_server_count == 0)
		return ERR_OK;
	enum err e = chat_template_load(&t, o->model, o->chat_template, em);
	if (e == ERR_OK)
		chat_template_free(&t);
	return e == ERR_NOT_FOUND && o->chat_template[0] == '\0' ? ERR_OK : e;
}

static enum err check_generation(const struct options *o, struct err_msg *em)
{
	const char *dir;

	return options_generation_dir(o, &dir, em);
}

static enum err check_speculative(const struct options *o, struct err_msg *em)
{
	struct speculative s;

	return speculative_parse(&s, o->speculative_config, em);
}

/* As the supervisor writes its lines, which come next. */
static enum err open_model(struct options *o, struct err_msg *em)
{
	char *given = strdup(o->model);

	if (given == NULL)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = cli_open_model(o, em);
	if (e == ERR_OK && strcmp(given, o->model) != 0) {
		log_init("supervisor", (enum log_level)o->log_level, o->log_format == OPTION_LOG_JSON);
		if (access(given, F_OK) == 0)
			LOG_INFO("GGUF", "file=\"%s\" folder=\"%s\"", given, o->model);
		else
			LOG_INFO("DOWNLOADED", "name=\"%s\" folder=\"%s\"", given, o->model);
	}
	free(given);
	return e;
}

int cmd_serve(int argc, char **argv)
{
	const char *group = NULL;
	struct err_msg em = {""};
	struct options o;

	if (cli_help_wanted(argc, argv, &group)) {
		if (!options_has_group(group)) {
			options_help(stderr, group); /* names the groups */
			return CLI_USAGE;
		}
		cli_print_usage("serve");
		options_help(stdout, group);
		return CLI_OK;
	}
	if (options_init(&o) != ERR_OK) {
		err_set(&em, ERR_NO_MEMORY, "out of memory");
		return cli_fail(&em);
	}
	int status = CLI_USAGE;
	options_check_env(stderr);
	if (options_read_args(&o, argc, argv, &em) != ERR_OK || check_speculative(&o, &em) != ERR_OK ||
	    check_generation(&o, &em) != ERR_OK)
		cli_usage_error(&em);
	else if (o.model[0] == '\0')
		fputs("tercet: the model is missing: tercet serve DIRECTORY (config.json, *.safetensors, "
		      "tokenizer.json) or tercet serve FILE.gguf\n",
		      stderr);
	else if (open_model(&o, &em) != ERR_OK || check_template(&o, &em) != ERR_OK)
		status = cli_fail(&em);
	else
		status = supervisor_serve(&o);
	options_fini(&o);
	return status;
}
