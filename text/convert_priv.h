/* Tokenizers that come without tokenizer.json: their files as the text of one, so that there is one way to load and
 * to run a tokenizer. What the files do not say comes from tokenizer_config.json, as in transformers. */
#ifndef TERCET_TEXT_CONVERT_PRIV_H
#define TERCET_TEXT_CONVERT_PRIV_H

#include "common/json.h"
#include "text/vocab_priv.h"

/* Each appends the tokenizer.json to `out`. `config`: the root of tokenizer_config.json, or missing. ERR_FORMAT,
 * ERR_UNSUPPORTED with what is wrong; ERR_NO_MEMORY. */
MUST_CHECK enum err convert_sentencepiece(struct buf *out, const char *data, size_t bytes, json_val config,
					  struct err_msg *em);
/* The same as mistral-common reads it, which encodes what stands between special tokens piece by piece: "legacy" where the configuration does not say. */
MUST_CHECK enum err convert_mistral_pieces(struct buf *out, const char *data, size_t bytes, json_val config, struct err_msg *em);
/* Lines "BASE64 RANK". `qwen`: with Qwen's pattern, which takes digits one by one; otherwise with Llama 3's. */
MUST_CHECK enum err convert_tiktoken(struct buf *out, const char *data, size_t bytes, bool qwen, json_val config,
				     struct err_msg *em);
/* tekken.json. The names of bos and eos are those of mistral-common, "<s>" and "</s>". */
MUST_CHECK enum err convert_tekken(struct buf *out, const char *data, size_t bytes, json_val config, struct err_msg *em);
/* vocab.json and merges.txt: byte-level BPE. What is in other files, as their roots, or missing. */
struct convert_vocab_files {
	const char *vocab;
	size_t vocab_bytes;
	const char *merges;
	size_t merges_bytes;
	json_val config; /* tokenizer_config.json */
	json_val map;	 /* special_tokens_map.json */
	json_val added;	 /* added_tokens.json */
	json_val model;	 /* config.json */
};
/* What these files and the tokenizer's class call bos and eos; owned by the caller, NULL: nothing. */
struct convert_names {
	char *bos;
	char *eos;
};
/* As above; messages name the file. */
MUST_CHECK enum err convert_vocab_merges(struct buf *out, const struct convert_vocab_files *f, struct convert_names *names,
					 struct err_msg *em);
/* A SentencePiece model begins with a piece, a file of tiktoken with base64. */
bool convert_is_tiktoken(const char *data, size_t bytes);

/* A vocabulary whose pieces have scores, as SentencePiece has it. Numbers as in its files. */
enum convert_piece_type {
	PIECE_NORMAL = 1,
	PIECE_UNKNOWN,
	PIECE_CONTROL,
	PIECE_USER_DEFINED,
	PIECE_UNUSED,
	PIECE_BYTE_VALUE,
};
enum convert_model_type { SPM_UNIGRAM = 1, SPM_BPE = 2 };

struct convert_piece {
	const char *text; /* points into what was read */
	size_t bytes;
	float score;
	u32 type;
	bool rstrip; /* of a token that is looked for in the text: takes the spaces behind it along */
};
struct convert_pieces {
	struct convert_piece *pieces; /* owned */
	u32 count;
	u32 room;
	size_t text_bytes;
	u32 model_type;
	bool byte_fallback;
	bool suffix_spaces;
	bool dummy_prefix;
	bool one_space;	   /* remove_extra_whitespaces */
	bool escape_space; /* spaces are U+2581 in the vocabulary */
	bool legacy;	   /* where the configuration does not say: each stretch of text begins with a space, not the first alone */
	const char *charsmap;
	size_t charsmap_bytes;
};
/* Appends the tokenizer.json of `m`; `config` as above. ERR_FORMAT: a token that goes around every text is missing;
 * ERR_NO_MEMORY. */
MUST_CHECK enum err convert_pieces(struct buf *out, const struct convert_pieces *m, json_val config, struct err_msg *em);

/* ---- shared by the converters ---- */

/* A token of the model that is looked for in the text as it comes. */
struct convert_added {
	const char *text;
	size_t bytes;
	u32 id;
	bool special;
	bool rstrip; /* takes the spaces behind it along */
	bool lstrip;
	bool single_word;
	bool normalized; /* looked for in the normalised text instead */
};
/* Writes "added_tokens": those of the model, then "added_tokens_decoder" of the configuration. */
void convert_write_added(struct json_writer *w, const struct convert_added *added, size_t count, json_val config);
/* Writes "vocab": the number of each piece. `all`: else those that only fill it up are left out, unused ones and ones without a text. */
void convert_write_vocab(struct json_writer *w, const struct convert_pieces *m, bool all);
/* Writes "post_processor": the tokens named bos_token and eos_token in the configuration (or by default), as
 * add_bos_token and add_eos_token say. A token without an id in `vocab` or the configuration is ERR_FORMAT. */
struct convert_around {
	const struct vocab *vocab;
	bool add_bos; /* where the configuration does not say */
	bool add_eos;
	const char *bos;
	const char *eos;
};
MUST_CHECK enum err convert_write_around(struct json_writer *w, const struct convert_around *around, json_val config,
					 struct err_msg *em);

/* The same from names and ids; NULL where nothing is put there. */
void convert_write_template(struct json_writer *w, const char *before, u32 before_id, const char *after, u32 after_id);

/* Words with one sign in front, numbers, signs with the ends of lines behind them: Llama 3's and Qwen's pattern. */
#define CONVERT_WORDS_PATTERN(digits)                                                                         \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                  \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Writes "pre_tokenizer": pieces cut by the pattern, then bytes. */
void convert_write_split(struct json_writer *w, const char *pattern, size_t bytes, bool add_prefix_space);
/* Writes the object alone. `use_regex`: GPT-2's pattern cuts first. */
void convert_write_byte_level(struct json_writer *w, bool add_prefix_space, bool use_regex);
/* Writes "model": BPE of the tokens with TOKEN_IN_MODEL, whose texts are bytes; tokens with smaller ids merge first.
 * ERR_NO_MEMORY. */
MUST_CHECK enum err convert_write_byte_model(struct json_writer *w, const struct vocab *v);

/* Every way to make a token of two others, in the order in which they merge. */
struct convert_merge {
	u32 left;
	u32 right;
	u32 merged;
	u32 left_chars;
	u32 right_chars;
	float score; /* of the merged token: higher merges first */
	u32 order;   /* among equals */
};
struct convert_merges {
	struct convert_merge *items; /* owned */
	size_t count;
	size_t room;
};
/* The splits of one token at character boundaries (`raw`: at every byte), into tokens with TOKEN_IN_MODEL.
 * ERR_NO_MEMORY. */
MUST_CHECK enum err convert_merges_add(struct convert_merges *m, const struct vocab *v, u32 id, float score, bool raw);
void convert_merges_sort(struct convert_merges *m);

#endif
