/* Pre-tokenizers of tokenizer.json: they cut a text into the pieces that the model encodes one by one. */
#ifndef TERCET_TEXT_PRETOKENIZE_PRIV_H
#define TERCET_TEXT_PRETOKENIZE_PRIV_H

#include "common/json.h"
#include "text/scratch_priv.h"

enum split_behavior {
	SPLIT_REMOVED,
	SPLIT_ISOLATED,
	SPLIT_MERGED_WITH_PREVIOUS,
	SPLIT_MERGED_WITH_NEXT,
	SPLIT_CONTIGUOUS,
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretok_stage;
struct pretok_run;

/* A piece on its way; `origin`: how many bytes at its start stand for the first character of the original text. */
struct piece {
	const char *text;
	size_t bytes;
	size_t origin;
};
typedef enum err (*pretok_fn)(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
typedef bool (*pretok_class_fn)(u32 c);

struct pretok_stage {
	pretok_fn run;
	enum split_behavior behavior;
	bool invert;
	struct pattern pattern;
	pretok_class_fn is_match; /* stages that split on a class of characters */
	bool add_prefix_space;
	bool map_bytes;           /* ByteLevel that later stages look at: write the stand-ins */
	enum prepend_scheme prepend;
	bool split;
	char replacement[5];
	u32 delimiter;            /* CharDelimiterSplit; FixedLength: characters a piece */
};

struct pretokenizer {
	struct pretok_stage stages[PRETOK_STAGES_MAX];
	u32 count;
	/* The last stage is ByteLevel and left the bytes as they are: the model has to work on bytes. */
	bool raw_bytes;
};

/* Called for each piece; what it answers other than ERR_OK ends the run. */
typedef enum err (*pretok_emit_fn)(void *ctx, const char *piece, size_t bytes);

struct pretok_run {
	const struct pretokenizer *pretokenizer;
	struct text_scratch *scratch;
	pretok_emit_fn emit;
	void *ctx;
};

/* From the "pre_tokenizer" value (may be null). `bytes_allowed`: the model can work on bytes. */
MUST_CHECK enum err pretokenizer_load(struct pretokenizer *p, json_val v, bool bytes_allowed, struct err_msg *em);
void pretokenizer_fini(struct pretokenizer *p);
/* Runs all stages over a text; empty pieces are dropped. ERR_NO_MEMORY, ERR_TOO_LONG or what `emit` answers. */
MUST_CHECK enum err pretokenizer_run(struct pretok_run *run, struct piece p);

/* Hands a piece to the stage behind `index`, or to `emit`. */
enum err pretok_next(struct pretok_run *run, u32 index, struct piece p);

/* The stages, for the loader's table (pretok_stages.c). */
enum err pretok_split_pattern(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
enum err pretok_split_class(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
enum err pretok_words(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
enum err pretok_byte_level(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
enum err pretok_metaspace(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);
enum err pretok_fixed_length(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p);

#endif
