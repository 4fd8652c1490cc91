/* The door of text/: tokenizers, streaming decode, chat templates, models in GGUF. Pure: no sockets, no clocks (the date is an
 * argument). A tokenizer is immutable after loading and may be shared by threads; encoding scratch is inside `struct
 * text_scratch`, one per thread. */
#ifndef TERCET_TEXT_TEXT_H
#define TERCET_TEXT_TEXT_H

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "common/types.h"

/* ---------------------------------------------------------------- tokenizer */

struct tokenizer;
struct text_scratch;

/* The files that may hold a model's vocabulary, in the order in which they are looked for: for messages. */
#define TOKENIZER_FILE_NAMES                                                                                   \
	"tokenizer.json, tekken.json, tokenizer.model.v3, tokenizer.model, spiece.model, tiktoken.model, qwen.tiktoken, " \
	"vocab.json with merges.txt"

/* From the first of them in MODEL_DIR (docs/TEXT.md), with tokenizer_config.json and special_tokens_map.json. ERR_IO,
 * ERR_FORMAT, ERR_UNSUPPORTED with the file and the part named. The caller owns `*out`. */
MUST_CHECK enum err tokenizer_load(struct tokenizer **out, const char *model_dir, struct err_msg *em);
/* The same from the text of a tokenizer.json, without the names of bos and eos. */
MUST_CHECK enum err tokenizer_parse(struct tokenizer **out, const char *json, size_t bytes, struct err_msg *em);
/* Whether the folder has one of those files. Looks at names only; blocks for the file system. */
bool tokenizer_exists(const char *model_dir);
void tokenizer_free(struct tokenizer **t); /* NULL accepted */
MUST_CHECK enum err text_scratch_create(struct text_scratch **out);
void text_scratch_free(struct text_scratch **s);

enum text_encode_flag {
	TEXT_ADD_SPECIAL = 1u << 0, /* run the post-processor (BOS and the like) */
	TEXT_PLAIN = 1u << 1,	     /* special tokens that are written in the text are text */
};
/* Appends the ids of `text` (valid UTF-8; ERR_FORMAT otherwise) to `ids`. Added tokens in the text are recognised, as
 * in Hugging Face tokenizers. */
MUST_CHECK enum err tokenizer_encode(const struct tokenizer *t, struct text_scratch *s, const char *text, size_t bytes,
				     u32 flags, struct u32_vec *ids, struct err_msg *em);
/* Whether decoding removes the spaces that English typography does not have. As loaded it does where
 * clean_up_tokenization_spaces in tokenizer_config.json says so and the model is not BPE, whose spaces mean something, or
 * clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output does: as transformers has it. Call it before the
 * tokenizer is shared. */
void tokenizer_set_clean_up(struct tokenizer *t, bool on);
/* Decodes all at once: appends UTF-8 (ill-formed parts as U+FFFD). Ids outside the vocabulary give nothing. */
void tokenizer_decode(const struct tokenizer *t, const u32 *ids, size_t count, bool skip_special, struct buf *out);

/* Ids 0 .. size-1 are in use (vocabulary and added tokens). */
u32 tokenizer_vocab_size(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, u32 id);
/* The id of exactly this token text (as in tokenizer.json); false when absent. */
bool tokenizer_find(const struct tokenizer *t, const char *token, u32 *id);
/* The token as written in tokenizer.json; NULL outside the vocabulary. Borrowed. */
const char *tokenizer_token_text(const struct tokenizer *t, u32 id);
/* Bytes that this one token stands for (not necessarily valid UTF-8), appended: for logprobs' `bytes` field. */
void tokenizer_token_bytes(const struct tokenizer *t, u32 id, struct buf *out);
/* "" when the model has none. From tokenizer_config.json / special_tokens_map.json. Borrowed. */
const char *tokenizer_bos(const struct tokenizer *t);
const char *tokenizer_eos(const struct tokenizer *t);

/* ---------------------------------------------------------------- streaming decode */

enum { TEXT_CLEAN_RULES = 10 };

/* The text of a growing token list: what text_stream_push and text_stream_end append is, all together, what
 * tokenizer_decode gives for the outputs behind that prompt. Never half a character. What cannot be judged yet is held
 * back: an unfinished character, or a run of byte tokens (models with byte fallback: one bad byte turns the whole run
 * into U+FFFD, so the run waits for its end). Memory is taken from the heap only for such a run. */
struct text_stream {
	const struct tokenizer *tokenizer;
	bool skip_special;
	bool at_start;     /* no token yet: metaspace models drop a leading space */
	u8 pending_count;  /* bytes of an unfinished character */
	char pending[4];
	u32 strip_left;    /* leading characters that may still be dropped */
	u32 strip_held;    /* trailing characters held back, dropped if nothing follows */
	bool tight_added;  /* set it after text_stream_init: an added token behind another shows its own text only, without
			    * the space that a decoder puts between tokens (spaces_between_special_tokens: false) */
	bool last_added;
	bool holds_clean;
	u8 clean_held[TEXT_CLEAN_RULES]; /* spaces that cleaning up may still remove, and what follows them */
	struct buf raw;    /* text on its way to being cleaned up */
	struct buf held;   /* a run of byte tokens, or the ids of a decoder that can only judge the whole */
};
/* `prompt_tail`: the last tokens of the prompt (up to 64 are enough), for rules that look back; borrowed for the
 * call. */
void text_stream_init(struct text_stream *s, const struct tokenizer *t, bool skip_special, const u32 *prompt_tail,
		      size_t tail_count);
void text_stream_push(struct text_stream *s, u32 token, struct buf *out);
/* Something is held back: the text so far is not that of all tokens pushed. */
static inline bool text_stream_holds(const struct text_stream *s)
{
	return s->pending_count > 0 || s->strip_held > 0 || s->held.bytes > 0 || s->holds_clean;
}
/* Flushes what is held back (an unfinished character as U+FFFD) and frees it. */
void text_stream_end(struct text_stream *s, struct buf *out);
/* Frees what is held back. Needed only where text_stream_end is not called; harmless after it and on zeroes. */
void text_stream_fini(struct text_stream *s);

/* ---------------------------------------------------------------- folders of models */

/* The folder to read a model from: the path `name`, or, where there is no such path or a `revision` is given, what was downloaded
 * from the Hub under that name (common/hub_cache.h); or, where that is a file *.gguf or a folder with one and no config.json, a folder
 * with what other models have (config.json, generation_config.json, tokenizer.json, tokenizer_config.json) and a link
 * model.gguf to the file. That one is under $XDG_CACHE_HOME/tercet/gguf, else ~/.cache/tercet/gguf, else a folder for temporary
 * files; its last part is that of the path, or models--ORG--NAME of what was downloaded so. It is made when it is asked for the first time, and anew when the file's size or time
 * of change is another (`*made`); several may ask at once. A path that leads nowhere and is no name is given back as it is. ERR_INVALID: the folder
 * holds several models; ERR_UNSUPPORTED, ERR_FORMAT: the file, and what of it is not understood or wrong; ERR_NOT_FOUND: one of
 * several files is missing, or a name is of no download; ERR_IO, ERR_DENIED: the folder cannot be made; ERR_TOO_LONG; ERR_NO_MEMORY. Blocks for the
 * file system. */
MUST_CHECK enum err model_folder(char *out, size_t bytes, const char *name, const char *revision, bool *made, struct err_msg *em);

/* ---------------------------------------------------------------- chat templates */

struct chat_template;

struct chat_request {
	json_val messages;               /* array of objects */
	json_val tools;                  /* array, or missing */
	json_val documents;              /* array, or missing */
	json_val kwargs;                 /* object of further template variables, or missing */
	bool add_generation_prompt;
	bool continue_final_message;
	bool template_from_client;       /* smaller limits: fractions of a second */
	int64_t now_s;                   /* for strftime_now, local time */
	const char *bos_token;           /* "" when none */
	const char *eos_token;
};

/* From `file` when it is not empty, else chat_template.jinja, chat_template.json or tokenizer_config.json of the model
 * (a string, or a list of named ones, of which "default" and, with tools, "tool_use" are used; the latter
 * may also be in additional_chat_templates/tool_use.jinja), else, where tekken.json or tokenizer.model.v3 is the tokenizer, the one of that
 * file's version. ERR_NOT_FOUND: the model has none, or the version is not known. ERR_FORMAT with line and column. */
MUST_CHECK enum err chat_template_load(struct chat_template **out, const char *model_dir, const char *file,
				       struct err_msg *em);
/* The same from source text. */
MUST_CHECK enum err chat_template_parse(struct chat_template **out, const char *source, size_t bytes,
					struct err_msg *em);
void chat_template_free(struct chat_template **t);
/* What stands between the parts of a message's content where it becomes one text. Lives as long as the template. */
const char *chat_template_between_parts(const struct chat_template *t);
/* The text of the template; of one with another for requests with tools, the one for those without. Lives as long as the template. */
const char *chat_template_source(const struct chat_template *t);
/* Whether users' content is read as a list of parts alone, of requests with or without tools: then what comes as a list should stay one. Of templates that
 * chat_template_load has found; others take texts. */
bool chat_template_reads_parts(const struct chat_template *t, bool tools);
/* Appends the prompt. Messages of roles of which a model's template makes nothing where their content is one text get it as a list of one part,
 * {"type": "text", ...}.
 * ERR_INVALID: raise_exception's text, or a run-time error with line and column, or a limit (steps,
 * output bytes, depth) was reached. Thread-safe. */
MUST_CHECK enum err chat_template_render(const struct chat_template *t, const struct chat_request *request,
					 struct buf *out, struct err_msg *em);

/* A chat's turn whose earlier turns are not here. `text` is a conversation of stand-ins with the new messages behind it:
 * the first before_bytes are the stand-ins' up to the end of the last answer, what follows is the turn's; its first
 * end_bytes end the answer, whatever comes behind. */
struct chat_turn {
	struct buf text; /* owned */
	size_t before_bytes, end_bytes;
};

/* `request`: the new messages, at least one, and everything else of the chat. Writes what the template would put behind the
 * turns before, whatever they were. ERR_UNSUPPORTED: with this template that depends on them, or is not all; ERR_INVALID
 * as of chat_template_render. `turn` zeroed before, chat_turn_fini after it in any case. */
MUST_CHECK enum err chat_turn_render(const struct chat_template *t, const struct chat_request *request,
				     struct chat_turn *turn, struct err_msg *em);
void chat_turn_fini(struct chat_turn *turn);
/* Appends the turn's tokens as they are in the whole conversation; *join: so many first ones end the answer before, and the
 * model may have said some of them. `flags` as of tokenizer_encode. ERR_UNSUPPORTED: the answer's last token and the
 * turn's first would be one. */
MUST_CHECK enum err chat_turn_encode(const struct tokenizer *t, struct text_scratch *scratch, const struct chat_turn *turn,
				     uint32_t flags, struct u32_vec *out, uint32_t *join, struct err_msg *em);

#endif
