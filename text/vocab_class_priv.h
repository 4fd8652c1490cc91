/* What a tokenizer of vocab.json and merges.txt has from its class and from the files beside them. */
#ifndef TERCET_TEXT_VOCAB_CLASS_PRIV_H
#define TERCET_TEXT_VOCAB_CLASS_PRIV_H

#include "text/convert_priv.h"

/* Tokens with a name in transformers: bos_token, eos_token and so on. */
enum { VOCAB_NAMES = 7 };

struct vocab_class {
	const char *name;
	const char *pattern; /* NULL: GPT-2's */
	bool nfc;
	bool wraps;			 /* cls and sep go around every text */
	bool plain_special;		 /* special tokens take no spaces along, whatever is said of them */
	const char *tokens[VOCAB_NAMES]; /* where no file says them; NULL: none */
};
/* By tokenizer_class of tokenizer_config.json (`config`) or of config.json (`model`), else by the latter's
 * model_type; GPT-2's where there is none of them. ERR_UNSUPPORTED: not byte-level, or not known; the class
 * is named. */
MUST_CHECK enum err vocab_class_find(const struct vocab_class **out, json_val config, json_val model,
				     struct err_msg *em);

/* The tokens that are looked for in a text. */
struct vocab_special {
	struct convert_added
		*tokens;     /* [room], owned; their texts are borrowed from the files and the class */
	struct token *texts; /* [room], owned: the same for the table */
	u64 *seen; /* [room], owned: which ways of saying a token were met; all: it stays as it is */
	struct strtab by_text;
	u32 count;
	u32 room;
	u32 next_id;		/* for one without an id */
	u32 named[VOCAB_NAMES]; /* index + 1 in `tokens`; 0: none */
};
/* ERR_FORMAT: a file contradicts itself or another; ERR_NO_MEMORY. */
MUST_CHECK enum err vocab_special_read(struct vocab_special *s, const struct vocab_class *c,
				       const struct vocab *v, const struct convert_vocab_files *f,
				       struct err_msg *em);
void vocab_special_fini(struct vocab_special *s);
/* NULL: the tokenizer has none of that name. */
const struct convert_added *vocab_special_named(const struct vocab_special *s, const char *name);

#endif
