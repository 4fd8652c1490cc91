/* Patterns that Jinja's own filters match with, in Python's syntax as far as PCRE2 reads it alike. */
#ifndef TERCET_TEXT_JINJA_PATTERN_PRIV_H
#define TERCET_TEXT_JINJA_PATTERN_PRIV_H

#include "text/jinja_priv.h"

struct jinja_pattern {
	void *code; /* pcre2_code */
	void *match;
	void *context;
};

/* False after recording the error (memory). */
bool jinja_pattern_init(struct jinja *j, struct jinja_pattern *p, const char *pattern, bool ignore_case);
void jinja_pattern_fini(struct jinja_pattern *p); /* zeroes accepted */
/* The first match at or behind `from`; false when there is none, or none within the limit of steps. */
bool jinja_pattern_find(const struct jinja_pattern *p, const char *text, size_t bytes, size_t from, size_t *begin,
			size_t *end);
static inline bool jinja_pattern_matches(const struct jinja_pattern *p, const char *text, size_t bytes)
{
	size_t begin, end;
	return jinja_pattern_find(p, text, bytes, 0, &begin, &end);
}

#endif
