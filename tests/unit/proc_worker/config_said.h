/* What a config.json of a family says, for tests of single fields. Included behind the test's own SIZES, the fields that every one of its
 * cases has. */
#ifndef TERCET_TESTS_UNIT_PROC_WORKER_CONFIG_SAID_H
#define TERCET_TESTS_UNIT_PROC_WORKER_CONFIG_SAID_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/config.h"

static struct model_config c;

/* `more`: fields behind SIZES, or "". */
static enum err parse(const char *family, const char *more, struct err_msg *em)
{
	char text[4096];
	int bytes = snprintf(text, sizeof(text), "{\"architectures\": [\"%s\"], " SIZES "%s%s}", family, more[0] ? ", " : "", more);

	em->text[0] = 0;
	return model_config_parse(&c, text, (size_t)bytes, em);
}

static void good(const char *family, const char *more)
{
	struct err_msg em;

	cr_assert_eq(parse(family, more, &em), ERR_OK, "%s {%s}: %s", family, more, em.text);
}

static void refused(const char *family, const char *more, enum err expected, const char *text)
{
	struct err_msg em;
	enum err e = parse(family, more, &em);

	cr_assert_eq(e, expected, "%s {%s}: %s: %s", family, more, err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
}

#endif
