/* Normalizers of tokenizer.json. */
#ifndef TERCET_TEXT_NORMALIZE_PRIV_H
#define TERCET_TEXT_NORMALIZE_PRIV_H

#include "common/json.h"
#include "text/regex_priv.h"

enum { NORM_STEPS_MAX = 32 };

struct norm_step;
/* Appends the normalised form of valid UTF-8 to `out` (empty). ERR_NO_MEMORY, ERR_TOO_LONG. */
typedef enum err (*norm_fn)(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			    struct buf *out);

struct norm_step {
	norm_fn run;
	u32 form;               /* enum norm_flag bits or a utf8proc option mask, by `run` */
	struct pattern pattern; /* Replace */
	char *text;             /* Prepend, Replace: what to write; owned */
	size_t text_bytes;
};

struct normalizer {
	struct norm_step *steps;
	u32 count;
};

/* From the "normalizer" value (may be null). ERR_FORMAT, ERR_UNSUPPORTED name the part. */
MUST_CHECK enum err normalizer_load(struct normalizer *n, json_val v, struct err_msg *em);
void normalizer_fini(struct normalizer *n);
/* The normalised text in *out, which points into `text` or one of the two buffers. */
MUST_CHECK enum err normalizer_run(const struct normalizer *n, struct regex_scratch *s, struct buf work[2],
				   const char *text, size_t bytes, const char **out, size_t *out_bytes);

/* "pattern": {"String": ...} or {"Regex": ...}, also used by pre-tokenizers and decoders. */
MUST_CHECK enum err pattern_load(struct pattern *p, json_val v, const char *part, struct err_msg *em);

#endif
