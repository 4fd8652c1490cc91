/* Texts against grammars: with the demo's tokenizer, or those of shared/data. */
#ifndef TERCET_TESTS_GRAMMAR_TEXT_H
#define TERCET_TESTS_GRAMMAR_TEXT_H

#include <criterion/criterion.h>

#include "text/grammar.h"
#include "text/text.h"
#include "vectors.h"

/* A tokenizer with its vocabulary for grammars, and the id that ends a text. */
struct tongue {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct grammar_vocab *vocab;
	u32 eos;
	u32 byte_token[256]; /* tokens of one byte; UINT32_MAX: there is none */
};

static inline void tongue_init(struct tongue *t, const char *model_dir)
{
	struct err_msg em = {.text = ""};
	cr_assert_eq(tokenizer_load(&t->tokenizer, model_dir, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(text_scratch_create(&t->scratch), ERR_OK);
	cr_assert(tokenizer_find(t->tokenizer, tokenizer_eos(t->tokenizer), &t->eos) || tokenizer_find(t->tokenizer, "<|endoftext|>", &t->eos), "%s", model_dir);
	cr_assert_eq(grammar_vocab_create(&t->vocab, t->tokenizer, tokenizer_vocab_size(t->tokenizer), &t->eos, 1, &em),
		     ERR_OK, "%s", em.text);
	memset(t->byte_token, 0xff, sizeof(t->byte_token));
	for (u32 id = tokenizer_vocab_size(t->tokenizer); id-- > 0;) {
		struct buf b = {0};
		tokenizer_token_bytes(t->tokenizer, id, &b);
		if (b.bytes == 1 && !tokenizer_is_special(t->tokenizer, id))
			t->byte_token[(u8)b.data[0]] = id;
		buf_fini(&b);
	}
}

static inline void tongue_fini(struct tongue *t)
{
	grammar_vocab_destroy(&t->vocab);
	text_scratch_free(&t->scratch);
	tokenizer_free(&t->tokenizer);
}

static inline struct grammar *compiled(enum grammar_kind kind, const char *source)
{
	struct grammar *g;
	struct err_msg em = {.text = ""};
	cr_assert_eq(grammar_compile(&g, kind, 0, source, strlen(source), &em), ERR_OK, "%s: %s", source, em.text);
	return g;
}

/* Compiling fails so, and the message has the word. */
static inline void refused(enum grammar_kind kind, const char *source, enum err wanted, const char *word)
{
	struct grammar *g;
	struct err_msg em = {.text = ""};
	enum err e = grammar_compile(&g, kind, 0, source, strlen(source), &em);
	cr_assert_eq(e, wanted, "%s: %s, not %s (%s)", source, err_name(e), err_name(wanted), em.text);
	cr_assert_null(g);
	cr_assert_not_null(strstr(em.text, word), "%s: \"%s\" does not say \"%s\"", source, em.text, word);
}

/* Whether the tokens are taken one by one, each allowed by the mask before it, and the text may end behind them. */
static inline bool takes_tokens(struct tongue *t, struct grammar *g, const u32 *ids, size_t count)
{
	struct grammar_state *s;
	u32 size = tokenizer_vocab_size(t->tokenizer);
	u32 *bits = calloc(grammar_mask_words(size), sizeof(*bits));
	cr_assert_eq(grammar_state_create(&s, g, t->vocab), ERR_OK);
	bool ok = true;
	for (size_t i = 0; i < count && ok; i++) {
		enum err e = grammar_state_mask(s, bits);
		bool allowed = e == ERR_OK && (bits[ids[i] / 32] >> ids[i] % 32 & 1) != 0;
		ok = grammar_state_advance(s, ids[i]) == ERR_OK;
		cr_assert_eq(allowed, ok, "mask and advance differ for token %u, number %zu", ids[i], i);
	}
	ok = ok && grammar_state_may_end(s);
	cr_assert_eq(grammar_state_advance(s, t->eos) == ERR_OK, grammar_state_may_end(s));
	grammar_state_destroy(&s);
	free(bits);
	return ok;
}

/* Whether the grammar takes the text, in the tokens of the tokenizer, which must agree with its bytes one by one. */
static inline bool takes_text(struct tongue *t, struct grammar *g, const char *text, size_t bytes)
{
	struct u32_vec ids = {0}, single = {0};
	struct err_msg em = {.text = ""};
	for (size_t i = 0; i < bytes; i++) {
		cr_assert_neq(t->byte_token[(u8)text[i]], UINT32_MAX);
		u32_vec_push(&single, t->byte_token[(u8)text[i]]);
	}
	bool ok = takes_tokens(t, g, single.data, single.count);
	if (tokenizer_encode(t->tokenizer, t->scratch, text, bytes, 0, &ids, &em) == ERR_OK)
		cr_assert_eq(takes_tokens(t, g, ids.data, ids.count), ok, "tokens and bytes differ: %.*s", (int)bytes, text);
	u32_vec_fini(&ids);
	u32_vec_fini(&single);
	return ok;
}

/* The same for a grammar that is compiled for the call. */
static inline bool takes(struct tongue *t, enum grammar_kind kind, const char *source, const char *text)
{
	struct grammar *g = compiled(kind, source);
	bool ok = takes_text(t, g, text, strlen(text));
	grammar_unref(&g);
	return ok;
}

struct answer {
	const char *text;
	bool wanted;
};

static inline void check(struct tongue *t, enum grammar_kind kind, const char *source, const struct answer *answers, size_t count)
{
	struct grammar *g = compiled(kind, source);
	for (size_t i = 0; i < count; i++)
		cr_assert_eq(takes_text(t, g, answers[i].text, strlen(answers[i].text)), answers[i].wanted, "%s %s %s", source,
			     answers[i].wanted ? "does not take" : "takes", answers[i].text);
	grammar_unref(&g);
}
#define CHECK(t, kind, source, ...)                                                                                    \
	do {                                                                                                           \
		static const struct answer answers_[] = {__VA_ARGS__};                                                 \
		check(t, kind, source, answers_, COUNT_OF(answers_));                                                  \
	} while (0)
#define SCHEMA(t, source, ...) CHECK(t, GRAMMAR_JSON_SCHEMA, source, __VA_ARGS__)

#endif
