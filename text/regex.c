/* Owns compiled patterns and their matching. Runs where text is encoded. Matching is bounded (PCRE2's match limit) and
 * never allocates. */
#include "text/regex_priv.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/assert.h"
#include "text/unicode_priv.h"

enum {
	JIT_STACK_FIRST = 32 * 1024,
	JIT_STACK_MAX = 1024 * 1024,
	/* Generous for the interpreter, where one long run may cost a step a byte; it stops exponential patterns. */
	MATCH_STEPS_MAX = 50 * 1000 * 1000,
	MATCH_HEAP_KIB_MAX = 64 * 1024,
};

enum err regex_compile(struct regex *r, const char *pattern, size_t bytes, struct err_msg *em)
{
	struct buf rewritten = {0};
	r->code = NULL;
	enum err e = regex_rewrite(&rewritten, pattern, bytes, em);
	if (e != ERR_OK)
		goto fini_buf;
	int code;
	PCRE2_SIZE offset;
	pcre2_code *compiled =
		pcre2_compile((PCRE2_SPTR)buf_cstr(&rewritten), rewritten.bytes,
			      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE, &code, &offset, NULL);
	if (compiled == NULL) {
		char reason[128];
		pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
		e = err_set(em, ERR_FORMAT, "regex \"%.*s\" does not compile: %s (near \"%.40s\")",
			    (int)(bytes < 200 ? bytes : 200), pattern, reason, buf_cstr(&rewritten) + offset);
		goto fini_buf;
	}
	/* Without JIT (unsupported CPU) the interpreter runs: slower, same result. */
	r->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
	r->code = compiled;
fini_buf:
	buf_fini(&rewritten);
	return e;
}

void regex_fini(struct regex *r)
{
	pcre2_code_free(r->code);
	r->code = NULL;
}

enum err regex_scratch_init(struct regex_scratch *s)
{
	*s = (struct regex_scratch){
		.match = pcre2_match_data_create(1, NULL),
		.context = pcre2_match_context_create(NULL),
		.stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MAX, NULL),
	};
	if (s->match == NULL || s->context == NULL) {
		regex_scratch_fini(s);
		return ERR_NO_MEMORY;
	}
	if (s->stack != NULL)
		pcre2_jit_stack_assign(s->context, NULL, s->stack);
	pcre2_set_match_limit(s->context, MATCH_STEPS_MAX);
	pcre2_set_heap_limit(s->context, MATCH_HEAP_KIB_MAX);
	return ERR_OK;
}

void regex_scratch_fini(struct regex_scratch *s)
{
	pcre2_match_data_free(s->match);
	pcre2_match_context_free(s->context);
	pcre2_jit_stack_free(s->stack);
	*s = (struct regex_scratch){0};
}

enum err regex_match(const struct regex *r, struct regex_scratch *s, const char *text, size_t bytes, size_t from,
		     size_t *begin, size_t *end)
{
	int n = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, s->match, s->context)
		       : pcre2_match(r->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, s->match, s->context);
	if (n == PCRE2_ERROR_NOMATCH)
		return ERR_NOT_FOUND;
	if (n < 0)
		return ERR_TOO_LONG;
	const PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match);
	*begin = found[0];
	*end = found[1] < found[0] ? found[0] : found[1]; /* \K may move the start behind the end */
	return ERR_OK;
}

static enum err string_next(const struct pattern *p, const char *text, size_t bytes, struct pattern_iter *it,
			    size_t *begin, size_t *end)
{
	if (p->string_bytes == 0)
		return ERR_NOT_FOUND;
	const char *hit = memmem(text + it->at, bytes - it->at, p->string, p->string_bytes);
	if (hit == NULL)
		return ERR_NOT_FOUND;
	*begin = (size_t)(hit - text);
	*end = *begin + p->string_bytes;
	it->at = *end;
	return ERR_OK;
}

enum err pattern_next(const struct pattern *p, struct regex_scratch *s, const char *text, size_t bytes,
		      struct pattern_iter *it, size_t *begin, size_t *end)
{
	if (p->regex.code == NULL)
		return string_next(p, text, bytes, it, begin, end);
	while (!it->done && it->at <= bytes) {
		enum err e = regex_match(&p->regex, s, text, bytes, it->at, begin, end);
		if (e != ERR_OK)
			return e;
		if (*begin != *end) {
			it->at = it->last_end = *end;
			return ERR_OK;
		}
		/* An empty match: step over a character, and do not report one right behind the last match. */
		bool repeated = *end == it->last_end && it->at != 0;
		it->done = *end >= bytes;
		it->at = it->done ? bytes : *end + unicode_bytes((u8)text[*end]);
		if (!repeated) {
			it->last_end = *end;
			return ERR_OK;
		}
	}
	return ERR_NOT_FOUND;
}

void pattern_fini(struct pattern *p)
{
	if (p->regex.code != NULL)
		regex_fini(&p->regex);
	free(p->string);
	*p = (struct pattern){0};
}
