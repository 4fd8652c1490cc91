/* What the two parts of the writing of config.json share. */
#ifndef TERCET_TEXT_GGUF_CONFIG_PRIV_H
#define TERCET_TEXT_GGUF_CONFIG_PRIV_H

#include "text/gguf_priv.h"

enum { GGUF_ARCH_BYTES_MAX = 32, GGUF_KEYS_MAX = 64 };

struct gguf_family;

/* One config.json on its way. Errors stick: after the first one nothing is read any more. */
struct gguf_config {
	const struct gguf *g;
	const struct gguf_family *family;
	char arch[GGUF_ARCH_BYTES_MAX + 1]; /* what the names of the family's values begin with */
	char key[128];			    /* the whole name of the value that was asked for last */
	const char *asked[GGUF_KEYS_MAX];   /* all that were asked for, without `arch` */
	u32 asked_count;
	u32 layers, heads, head_dim, hidden, context;
	struct json_writer w;
	struct err_msg *em;
	enum err e;
};

/* Values by their names behind "ARCH.". The first three answer false where there is none; one that is of another kind or
 * negative is an error. A list of numbers that are all the same is that number. */
bool gguf_config_int(struct gguf_config *c, const char *name, u32 *out);
bool gguf_config_float(struct gguf_config *c, const char *name, double *out);
struct gguf_text gguf_config_text(struct gguf_config *c, const char *name);
/* A value of that name is no news. */
void gguf_config_know(struct gguf_config *c, const char *name);
/* Sets the error, unless there is one. */
void gguf_config_fail(struct gguf_config *c, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

void gguf_config_write_uint(struct gguf_config *c, const char *field, u32 value);
void gguf_config_write_float(struct gguf_config *c, const char *field, double value);
void gguf_config_write_bool(struct gguf_config *c, const char *field, bool value);

/* Writes "rope_theta", "partial_rotary_factor" and "rope_scaling". `partial`: the family has such a factor; `queries`: its yarn has
 * more numbers, one by which scores of far tokens count more. */
void gguf_config_write_rope(struct gguf_config *c, bool partial, bool queries);

#endif
