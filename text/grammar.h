/* The grammar side of structured output: a grammar says which texts an answer may be, a vocabulary knows which bytes
 * each token stands for, and a state says which tokens may come next. Pure: no sockets, no clocks; equal calls give equal
 * answers in every process. What is supported and what it costs: docs/STRUCTURED_OUTPUT.md. */
#ifndef TERCET_TEXT_GRAMMAR_H
#define TERCET_TEXT_GRAMMAR_H

#include "common/err.h"
#include "common/grammar_kind.h"
#include "common/types.h"

struct grammar;
struct grammar_vocab;
struct grammar_state;
struct tokenizer;

enum {
	GRAMMAR_JSON_LEVELS_MAX = 60, /* of nesting in an answer */
};

/* Reads and compiles `source` (UTF-8, at most GRAMMAR_SOURCE_MAX bytes; borrowed for the call). Needs no tokenizer, so that a gateway can refuse a bad one.
 * ERR_FORMAT: malformed; ERR_INVALID: nothing can match; ERR_UNSUPPORTED: a part that constrains and is not supported, named
 * with its place (a JSON pointer, or the offset) and what would be right; ERR_TOO_LONG: larger than the limits;
 * ERR_NO_MEMORY. Bounded in time (tens of milliseconds at the limits) and memory. Blocks for nothing. The caller owns a
 * reference to `*out`. */
MUST_CHECK enum err grammar_compile(struct grammar **out, enum grammar_kind kind, u32 flags, const char *source,
				    size_t bytes, struct err_msg *em);
/* The flag with which JSON has no other white space between its tokens than the expression (GRAMMAR_REGEX) matches: none (0), or
 * GRAMMAR_COMPACT. ERR_UNSUPPORTED: it does not match the empty text, which always is possible; else as grammar_compile. */
MUST_CHECK enum err grammar_space_flags(u32 *flags, const char *pattern, size_t bytes, struct err_msg *em);
/* One more reference to `g`, and `g`. Counts are atomic. */
struct grammar *grammar_ref(struct grammar *g);
/* Gives the reference back and clears `*g`; NULL accepted. States hold references of their own. */
void grammar_unref(struct grammar **g);
/* Heap memory of the compiled grammar, without what its states learn. */
size_t grammar_bytes(const struct grammar *g);

/* What every token says in the middle of a text, in a trie. Ids at or above vocab_size (the width of the logits) are left out;
 * those between the tokenizer's size and vocab_size are never allowed, nor are tokens that say nothing, nor special ones, but for
 * those that a text of GRAMMAR_PARTS names in full. `eos`: the ids that end an answer (copied), allowed only where the text may end; ids at or above
 * vocab_size are ignored. `t` is borrowed for the call. ERR_INVALID: no eos id is left, or vocab_size is 0;
 * ERR_NO_MEMORY. The caller owns `*out`. Takes well under a second. */
MUST_CHECK enum err grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t, u32 vocab_size,
					 const u32 *eos, size_t eos_count, struct err_msg *em);
/* NULL accepted. Every state on it must be gone. */
void grammar_vocab_destroy(struct grammar_vocab **v);
/* Heap memory of the vocabulary, with what the states of all grammars have learnt (which is bounded). */
size_t grammar_vocab_bytes(const struct grammar_vocab *v);
/* Words of a mask: bit i%32 of word i/32 is token i. */
static inline size_t grammar_mask_words(u32 vocab_size)
{
	return ((size_t)vocab_size + 31) / 32;
}

/* A place in a text of the grammar: 48 bytes. What states learn about their grammar (which masks belong
 * where) is kept with grammar and vocabulary, bounded, and shared: all states of one vocabulary, and of one grammar, belong
 * to one thread at a time. Takes a reference to `g`; `v` must outlive the state. ERR_NO_MEMORY. */
MUST_CHECK enum err grammar_state_create(struct grammar_state **out, struct grammar *g, struct grammar_vocab *v);
/* A second state at the same place. ERR_NO_MEMORY. */
MUST_CHECK enum err grammar_state_copy(struct grammar_state **out, const struct grammar_state *s);
void grammar_state_destroy(struct grammar_state **s); /* NULL accepted */
/* Steps over `token`. ERR_INVALID: not allowed here, nothing changed; ERR_TOO_LONG: the grammar needs more memory here
 * than the limits give, nothing changed; ERR_NO_MEMORY. An eos id is allowed where the text may end, and nothing but eos
 * ids behind it. */
MUST_CHECK enum err grammar_state_advance(struct grammar_state *s, u32 token);
/* Goes to the start and over `count` tokens: after a crash, or for a sequence that is computed anew. Errors as of
 * grammar_state_advance; the state is then in front of the token that failed, whose index is *failed (may be NULL). */
MUST_CHECK enum err grammar_state_replay(struct grammar_state *s, const u32 *tokens, size_t count, size_t *failed);
/* Writes grammar_mask_words(vocab_size) words: a set bit is a token that grammar_state_advance takes. ERR_NOT_FOUND: no bit
 * is set, because the vocabulary cannot say what the grammar wants (never with tokens for all bytes). ERR_TIMEOUT: the state's
 * masks have taken more than about 0.4 s and 5 ms for each of its tokens, counted in steps, not by a clock; ERR_TOO_LONG,
 * ERR_NO_MEMORY as above; then the words are undefined. */
MUST_CHECK enum err grammar_state_mask(struct grammar_state *s, u32 *bits);
/* Whether the text so far is whole: an eos id is allowed. */
bool grammar_state_may_end(const struct grammar_state *s);
/* An eos id was stepped over, or nothing but one is left. */
bool grammar_state_must_end(const struct grammar_state *s);

#endif
