/* Text to token ids for programs that have no tokenizer of their own, and a look at their grammars. Runs in the client's
 * thread; owns the tokenizer and the last result. Never talks to an engine. */
#include <limits.h>
#include <stdlib.h>

#include "client/tercet.h"
#include "text/grammar.h"
#include "text/text.h"

#define SAME_KIND(name) _Static_assert((int)TERCET_GRAMMAR_##name == (int)GRAMMAR_##name, "kinds travel as they are");
SAME_KIND(CHOICE)
SAME_KIND(REGEX)
SAME_KIND(JSON_SCHEMA)
SAME_KIND(JSON_OBJECT)
SAME_KIND(EBNF)
SAME_KIND(PARTS)
SAME_KIND(COMPACT)

struct tercet_tokenizer {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct u32_vec ids;
};

enum tercet_result tercet_tokenizer_open(struct tercet_tokenizer **out, const char *model_dir,
					 struct tercet_error *error)
{
	struct err_msg *em = (struct err_msg *)error;
	char folder[PATH_MAX];
	bool made;
	struct tercet_tokenizer *t = calloc(1, sizeof(*t));
	*out = NULL;
	if (!t || text_scratch_create(&t->scratch) != ERR_OK) {
		free(t);
		return (enum tercet_result)err_set(em, ERR_NO_MEMORY, "no memory for a tokenizer");
	}
	enum err e = model_folder(folder, sizeof(folder), model_dir, "", &made, em);
	if (e == ERR_OK)
		e = tokenizer_load(&t->tokenizer, folder, em);
	if (e != ERR_OK)
		tercet_tokenizer_close(&t);
	*out = t;
	return (enum tercet_result)e;
}

void tercet_tokenizer_close(struct tercet_tokenizer **t)
{
	if (!*t)
		return;
	tokenizer_free(&(*t)->tokenizer);
	text_scratch_free(&(*t)->scratch);
	u32_vec_fini(&(*t)->ids);
	free(*t);
	*t = NULL;
}

enum tercet_result tercet_tokenize(struct tercet_tokenizer *t, const char *text, size_t bytes, bool add_special,
				   const uint32_t **ids, uint32_t *count, struct tercet_error *error)
{
	struct err_msg *em = (struct err_msg *)error;
	u32_vec_clear(&t->ids);
	enum err e = tokenizer_encode(t->tokenizer, t->scratch, text, bytes, add_special ? TEXT_ADD_SPECIAL : 0,
				      &t->ids, em);
	if (e == ERR_OK && t->ids.failed)
		e = err_set(em, ERR_NO_MEMORY, "no memory for the tokens of the text");
	*ids = t->ids.data;
	*count = (uint32_t)t->ids.count;
	return (enum tercet_result)e;
}

enum tercet_result tercet_check_grammar(enum tercet_grammar kind, uint32_t flags, const char *source, size_t bytes,
					struct tercet_error *error)
{
	struct grammar *g = NULL;
	enum err e = grammar_compile(&g, (enum grammar_kind)kind, flags, source, bytes, (struct err_msg *)error);
	grammar_unref(&g);
	return (enum tercet_result)e;
}
