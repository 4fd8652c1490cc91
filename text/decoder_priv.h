/* Decoders of tokenizer.json: token texts back to text. */
#ifndef TERCET_TEXT_DECODER_PRIV_H
#define TERCET_TEXT_DECODER_PRIV_H

#include "common/json.h"
#include "text/regex_priv.h"
#include "text/vocab_priv.h"

enum { DECODE_STEPS_MAX = 16 };

/* A list of texts: what a decoder takes and gives. `ends[i]` is where text i ends in `bytes`. */
struct text_list {
	struct buf bytes;
	struct u32_vec ends;
};

struct decode_step;
/* Appends what one text of the list becomes; `first`, `last`: its place in the list. */
typedef void (*decode_text_fn)(const struct decode_step *d, bool first, bool last, const char *text, size_t bytes,
			       struct buf *out);

enum decode_kind {
	DECODE_EACH,          /* text by text, through `each` */
	DECODE_BYTE_LEVEL,    /* stand-ins to bytes, all texts become one */
	DECODE_BYTE_FALLBACK, /* runs of <0xXX> become characters */
	DECODE_FUSE,          /* all texts become one */
};

struct decode_step {
	enum decode_kind kind;
	decode_text_fn each;
	bool first_differs; /* `each` treats the first text differently */
	bool last_differs;
	bool prefixes;      /* puts something in front of texts behind the first */
	struct pattern pattern;
	char *text; /* Replace: content; WordPiece: prefix; BPEDecoder: suffix; owned */
	size_t text_bytes;
	u32 mark;   /* Metaspace: replacement; Strip: content */
	u32 start;  /* Strip: how many at most */
	u32 stop;
	bool cleanup;
	bool keep_first_mark; /* Metaspace that never prepended */
};

/* How a token comes out of the steps that can be applied to it alone. */
enum piece_flag {
	PIECE_PRESENT = 1u << 0,
	PIECE_PLAIN = 1u << 1,   /* whole characters only: can be appended with no further thought */
	PIECE_BYTE = 1u << 2,    /* <0xXX>: its byte waits for the end of the run */
	PIECE_SPECIAL = 1u << 3, /* skipped on request */
	PIECE_ADDED = 1u << 4,
};
struct decode_piece {
	u32 at; /* in `pool` */
	u16 bytes;
	u8 flags;
	u8 byte;
};

/* Chains of the form each* (ByteLevel | ByteFallback)? each* Fuse? Strip? are decoded token by token with a table;
 * `whole` marks all others, which go through the list of all texts. */
struct decoder {
	struct decode_step steps[DECODE_STEPS_MAX];
	u32 count;
	bool whole;
	bool byte_level;
	bool byte_fallback;
	bool first_differs; /* the first token goes through `steps` instead of the table */
	bool fused_strip;   /* Strip behind a Fuse: `strip_mark`, `strip_start`, `strip_stop` */
	u32 strip_mark;
	u32 strip_start;
	u32 strip_stop;
	u32 each_count;     /* steps [0, each_count) up to the Fuse: `each` ones apply to one token */
	u32 run_from;       /* steps [run_from, each_count) apply to what ByteFallback made of a run */
	struct decode_piece *pieces; /* [vocabulary] */
	char *pool; /* 16 readable bytes behind the last piece */
};

/* From the "decoder" value (may be null). ERR_FORMAT, ERR_UNSUPPORTED name the part. */
MUST_CHECK enum err decoder_load(struct decoder *d, json_val v, const struct vocab *vocab, struct err_msg *em);
void decoder_release(struct decoder *d);

/* One token through the steps that apply to it alone. */
void decoder_token(const struct decoder *d, bool first, const char *text, size_t bytes, struct buf *out);
/* The whole chain over a list of texts, appended to `out`. */
void decoder_run_whole(const struct decoder *d, struct text_list *list, struct buf *out);
/* Appends `bytes` bytes with ill-formed parts as U+FFFD. */
void decoder_append_lossy(struct buf *out, const char *text, size_t bytes);
/* The byte of "<0xXX>"; -1 for any other text. */
int decoder_fallback_byte(const char *text, size_t bytes);
/* The bytes that the stand-ins of one text mean; the text itself where a character is none. */
void decoder_byte_level(const char *text, size_t bytes, struct buf *out);
/* Appends the decoded run of byte tokens, through the steps behind ByteFallback. */
void decoder_run_of_bytes(const struct decoder *d, bool first, const char *run, size_t bytes, struct buf *out);

/* Removes the spaces that English typography does not have, from offset `from` on. */
void decoder_clean_up(struct buf *b, size_t from);

/* Reading of one step (decoder_steps.c). */
MUST_CHECK enum err decode_step_load(struct decode_step *d, json_val v, struct err_msg *em);
void decode_step_join(struct decode_step *d); /* what having no decoder means: texts joined by spaces */
void decode_step_fini(struct decode_step *d);

#endif
