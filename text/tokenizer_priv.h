/* A loaded tokenizer: the parts of tokenizer.json in the order in which a text goes through them. */
#ifndef TERCET_TEXT_TOKENIZER_PRIV_H
#define TERCET_TEXT_TOKENIZER_PRIV_H

#include "text/added_priv.h"
#include "text/bpe_priv.h"
#include "text/decoder_priv.h"
#include "text/normalize_priv.h"
#include "text/pretokenize_priv.h"
#include "text/text.h"
#include "text/unigram_priv.h"
#include "text/vocab_priv.h"
#include "text/wordpiece_priv.h"

/* Texts longer than this are refused. */
#define TEXT_BYTES_MAX (64u << 20)

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

struct tokenizer {
	u64 id; /* hash of the files: tells whose pieces a scratch remembers */
	struct vocab vocab;
	struct added_set added;            /* looked for in the text as it comes */
	struct added_set added_normalized; /* looked for in the normalised text */
	struct normalizer normalizer;
	struct pretokenizer pretokenizer;
	enum model_kind model; /* which of the following is in use */
	struct bpe bpe;
	struct unigram unigram;
	struct wordpiece wordpiece; /* and WordLevel */
	struct u32_vec before; /* what the post-processor puts in front and behind */
	struct u32_vec after;
	struct decoder decoder;
	bool clean_up; /* clean_up_tokenization_spaces */
	char *bos; /* owned, "" when none */
	char *eos;
};

/* Reads the "post_processor" value into before and after. */
MUST_CHECK enum err post_processor_load(struct tokenizer *t, json_val v, struct err_msg *em);
/* Which kind the "model" object describes; older files have no "type". ERR_FORMAT, ERR_UNSUPPORTED. */
MUST_CHECK enum err model_kind_read(enum model_kind *out, json_val model, struct err_msg *em);
/* Reads "model" and "added_tokens" into the vocabulary and the sets of added tokens; needs the normalizer. */
MUST_CHECK enum err vocab_load(struct tokenizer *t, json_val root, struct err_msg *em);
/* A file of the folder that is not there gives NULL; one that is there must be right. */
MUST_CHECK enum err tokenizer_open_config(struct json_doc **out, const char *model_dir, const char *name, struct err_msg *em);
/* From the file of `model_dir` that holds the vocabulary. `config`, `map`: the roots of tokenizer_config.json and
 * special_tokens_map.json, or missing. Sets bos and eos where only that file or its kind says them. ERR_IO, ERR_FORMAT,
 * ERR_UNSUPPORTED with the file named. Blocks for the file system. */
MUST_CHECK enum err tokenizer_files_load(struct tokenizer **out, const char *model_dir, json_val config, json_val map,
					 struct err_msg *em);

#endif
