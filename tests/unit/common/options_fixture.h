/* One set of options, made anew for each test, and the message of what failed. */
#ifndef TERCET_TESTS_UNIT_COMMON_OPTIONS_FIXTURE_H
#define TERCET_TESTS_UNIT_COMMON_OPTIONS_FIXTURE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/options.h"

static struct options o;
static struct err_msg em;
static char file_path[] = "/tmp/test_options_XXXXXX";

static inline void set_up(void)
{
	em.text[0] = '\0';
	cr_assert_eq(options_init(&o), ERR_OK);
}

static inline void tear_down(void)
{
	options_fini(&o);
	unlink(file_path);
}

#define READ(...) read_args((const char *[]){"tercet", __VA_ARGS__, NULL})

/* The end is NULL. */
static inline enum err read_args(const char **argv)
{
	int argc = 0;

	while (argv[argc] != NULL)
		argc++;
	return options_read_args(&o, argc, (char **)argv, &em);
}

/* The path of a file with that text. Once in a test, unless it makes file_path a template again. */
static inline const char *yaml(const char *text)
{
	int fd = mkstemp(file_path);

	cr_assert(fd >= 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	return file_path;
}

/* The message of the last failure has the word. */
static inline void says(const char *word)
{
	cr_assert_not_null(strstr(em.text, word), "\"%s\" does not say \"%s\"", em.text, word);
}

#endif
