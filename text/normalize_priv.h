/* Normalizers of tokenizer.json. */
#ifndef TERCET_TEXT_NORMALIZE_PRIV_H
#define TERCET_TEXT_NORMALIZE_PRIV_H

#include "common/json.h"
#include "text/regex_priv.h"

enum { NORM_STEPS_MAX = 32 };

struct norm_step;
/* Appends the normalised form of valid UTF-8 to `out` (empty). `*origin` is how many bytes at the start of the text
 * stand for the first character of the original text (pieces that begin there may be treated differently); the step
 * changes it to the same of its output where that is not the first character. ERR_NO_MEMORY, ERR_TOO_LONG. */
typedef enum err (*norm_fn)(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			    size_t *origin, struct buf *out);

struct norm_step {
	norm_fn run;
	bool first_only;        /* Prepend: at the start of the original text, not behind added tokens */
	bool longest;           /* Precompiled: the longest match at each place, not grapheme by grapheme */
	u32 form;               /* enum norm_flag bits or a utf8proc option mask, by `run` */
	struct pattern pattern; /* Replace */
	char *text;             /* Prepend, Replace: what to write; Precompiled: its charsmap; owned */
	size_t text_bytes;
};

struct normalizer {
	struct norm_step *steps;
	u32 count;
};

/* From the "normalizer" value (may be null). ERR_FORMAT, ERR_UNSUPPORTED name the part. */
MUST_CHECK enum err normalizer_load(struct normalizer *n, json_val v, struct err_msg *em);
void normalizer_fini(struct normalizer *n);
/* A text on its way: `origin` as above, 0 for a text that begins behind the start of the original. */
struct norm_text {
	const char *text;
	size_t bytes;
	size_t origin;
};
/* Replaces the text by its normalised form, which points into the old one or one of the two buffers. */
MUST_CHECK enum err normalizer_run(const struct normalizer *n, struct regex_scratch *s, struct buf work[2],
				   struct norm_text *text);

/* Precompiled (precompiled.c): reads the base64 text of "precompiled_charsmap" into the step. ERR_FORMAT. */
MUST_CHECK enum err precompiled_load(struct norm_step *step, json_val v, struct err_msg *em);
enum err norm_precompiled(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			  size_t *origin, struct buf *out);

/* "pattern": {"String": ...} or {"Regex": ...}, also used by pre-tokenizers and decoders. */
MUST_CHECK enum err pattern_load(struct pattern *p, json_val v, const char *part, struct err_msg *em);

#endif
