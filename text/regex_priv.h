/* Patterns of tokenizer.json: Oniguruma's syntax, matched by PCRE2 after a rewrite. */
#ifndef TERCET_TEXT_REGEX_PRIV_H
#define TERCET_TEXT_REGEX_PRIV_H

#include "common/buf.h"
#include "common/err.h"
#include "common/types.h"

struct regex {
	void *code; /* pcre2_code, shared by threads */
	bool jit;
};
/* What matching writes to: one per thread. */
struct regex_scratch {
	void *match;
	void *context;
	void *stack;
};

/* Rewrites what Oniguruma and PCRE2 read differently: \s \S \w \W \h \H, script and long property names, POSIX
 * property names, nested classes and && in classes, {n,m}+ (a repeated group there, possessive here).
 * ERR_UNSUPPORTED names what cannot be said in PCRE2. */
MUST_CHECK enum err regex_rewrite(struct buf *out, const char *pattern, size_t bytes, struct err_msg *em);

/* ERR_FORMAT with the pattern and the position; ERR_UNSUPPORTED; ERR_NO_MEMORY. */
MUST_CHECK enum err regex_compile(struct regex *r, const char *pattern, size_t bytes, struct err_msg *em);
void regex_fini(struct regex *r);
MUST_CHECK enum err regex_scratch_init(struct regex_scratch *s);
void regex_scratch_fini(struct regex_scratch *s);

/* First match that begins at or behind `from` in valid UTF-8. ERR_NOT_FOUND: none. ERR_TOO_LONG: the pattern took more
 * steps than its limit. Never allocates. */
enum err regex_match(const struct regex *r, struct regex_scratch *s, const char *text, size_t bytes, size_t from,
		     size_t *begin, size_t *end);

/* All matches of a pattern that may be a plain string or a regex, one after the other, as find_iter does. */
struct pattern {
	struct regex regex; /* code NULL: the string */
	char *string;       /* owned */
	size_t string_bytes;
};
struct pattern_iter {
	size_t at;
	size_t last_end;
	bool done;
};
/* Next match; ERR_NOT_FOUND at the end. Start with a zeroed iterator. */
enum err pattern_next(const struct pattern *p, struct regex_scratch *s, const char *text, size_t bytes,
		      struct pattern_iter *it, size_t *begin, size_t *end);
void pattern_fini(struct pattern *p);

#endif
