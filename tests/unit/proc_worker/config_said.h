/* What a config.json of a family says, for tests of single fields: `sizes` are the fields that every one of a test's cases has, `more` those
 * behind them, or "". */
#ifndef TERCET_TESTS_UNIT_PROC_WORKER_CONFIG_SAID_H
#define TERCET_TESTS_UNIT_PROC_WORKER_CONFIG_SAID_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/config.h"

static inline enum err said_parse(struct model_config *c, const char *family, const char *sizes, const char *more, struct err_msg *em)
{
	char text[4096];
	int bytes = snprintf(text, sizeof(text), "{\"architectures\": [\"%s\"], %s%s%s}", family, sizes, more[0] ? ", " : "", more);

	em->text[0] = 0;
	return model_config_parse(c, text, (size_t)bytes, em);
}

static inline void said_good(struct model_config *c, const char *family, const char *sizes, const char *more)
{
	struct err_msg em;

	cr_assert_eq(said_parse(c, family, sizes, more, &em), ERR_OK, "%s {%s}: %s", family, more, em.text);
}

static inline void said_refused(const char *family, const char *sizes, const char *more, enum err expected, const char *text)
{
	struct model_config c;
	struct err_msg em;
	enum err e = said_parse(&c, family, sizes, more, &em);

	cr_assert_eq(e, expected, "%s {%s}: %s: %s", family, more, err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
}

#endif
