/* Command-line words that belong to one subcommand only, and the messages all of them print. */
#include "client/cli/cli.h"
#include "common/mistral_folder.h"
#include "common/types.h"
#include "text/text.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_fail(const struct err_msg *em)
{
	fprintf(stderr, "tercet: %s\n", em->text);
	return CLI_FAILED;
}

int cli_usage_error(const struct err_msg *em)
{
	cli_fail(em);
	return CLI_USAGE;
}

static bool is_end(const char *word)
{
	return strcmp(word, "--") == 0;
}

bool cli_help_wanted(int argc, char **argv, const char **group)
{
	for (int i = 1; i < argc && !is_end(argv[i]); i++) {
		bool plain = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
		if (!plain && strncmp(argv[i], "--help=", 7) != 0)
			continue;
		if (group != NULL)
			*group = plain ? NULL : argv[i] + 7;
		return true;
	}
	return false;
}

static enum err check_folder(const char *path, struct err_msg *em)
{
	char config[PATH_MAX];
	struct stat st;

	if (stat(path, &st) != 0)
		return err_set(em, ERR_NOT_FOUND,
			       "the model directory %.300s cannot be opened: %s (a model is a local directory, or the name of "
			       "one that was downloaded from the Hub; nothing is downloaded here)",
			       path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(em, ERR_NOT_FOUND,
			       "the model %.300s is a file; it must be the directory with config.json, "
			       "*.safetensors (or pytorch_model*.bin) and "
			       "tokenizer.json, or a file *.gguf",
			       path);
	if ((size_t)snprintf(config, sizeof(config), "%s/config.json", path) >= sizeof(config))
		return err_set(em, ERR_TOO_LONG, "the path of the model is longer than %d bytes", PATH_MAX);
	bool has_config = access(config, F_OK) == 0 || mistral_folder_is(path);
	if (!has_config || !tokenizer_exists(path))
		return err_set(em, ERR_NOT_FOUND,
			       "the model directory %.300s has no %s; it must hold config.json, *.safetensors (or pytorch_model*.bin), or params.json and consolidated*.safetensors, and a "
			       "tokenizer (" TOKENIZER_FILE_NAMES "), or a file *.gguf",
			       path, has_config ? "tokenizer" : "config.json");
	return ERR_OK;
}

enum err cli_find_model(struct options *o, struct err_msg *em)
{
	char folder[PATH_MAX];
	bool made;

	enum err e = model_folder(folder, sizeof(folder), o->model, o->revision, &made, em);
	if (e == ERR_OK && strcmp(folder, o->model) != 0)
		e = options_set(o, "model", folder, "the model", em);
	return e == ERR_OK ? options_set(o, "revision", "", "the model", em) : e; /* the folder is that of the revision */
}

enum err cli_open_model(struct options *o, struct err_msg *em)
{
	enum err e = cli_find_model(o, em);

	return e == ERR_OK ? check_folder(o->model, em) : e;
}

static void remove_words(int *argc, char **argv, int at, int count)
{
	/* The NULL at the end moves too. */
	memmove(argv + at, argv + at + count, (size_t)(*argc - at - count + 1) * sizeof(*argv));
	*argc -= count;
}

bool cli_take_flag(int *argc, char **argv, const char *name)
{
	bool found = false;

	for (int i = 1; i < *argc && !is_end(argv[i]);) {
		if (strcmp(argv[i], name) != 0) {
			i++;
			continue;
		}
		remove_words(argc, argv, i, 1);
		found = true;
	}
	return found;
}

enum err cli_take_text(int *argc, char **argv, const char *name, const char **value, struct err_msg *em)
{
	size_t bytes = strlen(name);

	for (int i = 1; i < *argc && !is_end(argv[i]);) {
		if (strncmp(argv[i], name, bytes) != 0 || (argv[i][bytes] != '\0' && argv[i][bytes] != '=')) {
			i++;
			continue;
		}
		bool joined = argv[i][bytes] == '=';
		if (!joined && (i + 1 == *argc || is_end(argv[i + 1])))
			return err_set(em, ERR_INVALID, "%s needs a value", name);
		*value = joined ? argv[i] + bytes + 1 : argv[i + 1];
		remove_words(argc, argv, i, joined ? 1 : 2);
	}
	return ERR_OK;
}

enum err cli_take_int(int *argc, char **argv, const char *name, long long min, long long max,
		      long long *value, struct err_msg *em)
{
	const char *text = NULL;
	char *end;
	enum err e = cli_take_text(argc, argv, name, &text, em);

	if (e != ERR_OK || text == NULL)
		return e;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || v < min || v > max)
		return err_set(em, ERR_INVALID,
			       "%s is \"%.100s\": it must be an integer between %lld and %lld", name, text,
			       min, max);
	*value = v;
	return ERR_OK;
}

enum err cli_take_real(int *argc, char **argv, const char *name, double min, double max, double *value,
		       struct err_msg *em)
{
	const char *text = NULL;
	char *end;
	enum err e = cli_take_text(argc, argv, name, &text, em);

	if (e != ERR_OK || text == NULL)
		return e;
	double v = strtod(text, &end);
	if (end == text || *end != '\0' || !(v >= min && v <= max))
		return err_set(em, ERR_INVALID, "%s is \"%.100s\": it must be a number between %g and %g",
			       name, text, min, max);
	*value = v;
	return ERR_OK;
}

const char *cli_take_word(int *argc, char **argv)
{
	for (int i = 1; i < *argc; i++) {
		if (is_end(argv[i])) {
			if (i + 1 == *argc)
				return NULL;
			const char *behind = argv[i + 1];
			remove_words(argc, argv, i + 1, 1);
			return behind;
		}
		if (argv[i][0] == '-' && argv[i][1] != '\0')
			continue;
		const char *word = argv[i];
		remove_words(argc, argv, i, 1);
		return word;
	}
	return NULL;
}
