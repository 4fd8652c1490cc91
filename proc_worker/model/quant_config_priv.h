/* What reading the configurations of several methods has in common. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_PRIV_H
#define TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_PRIV_H

#include "proc_worker/model/quant_config.h"

/* Fields of a method, and for each what it may be. */
enum field_kind {
	FIELD_READ,  /* read elsewhere, or says nothing about the weights */
	FIELD_FALSE, /* must be false, null, empty or 0 */
};

struct field {
	const char *name;
	enum field_kind kind;
};

/* `where` of the functions below: what the object `v` is called in messages. ERR_UNSUPPORTED, ERR_FORMAT: name the field. */

/* false, null, empty or 0. */
bool quant_field_is_off(json_val v);
/* Nothing to say where `v` is missing or null; it is wrong where it is no object. */
MUST_CHECK enum err quant_check_fields(json_val v, const char *where, const struct field *fields, size_t count, struct err_msg *em);
/* A number from `least` to `most`. */
MUST_CHECK enum err quant_need_int(json_val v, const char *where, const char *name, i64 least, i64 most, i64 *out, struct err_msg *em);
/* `fallback`: where the field is missing. */
MUST_CHECK enum err quant_need_flag(json_val v, const char *where, const char *name, bool fallback, bool *out, struct err_msg *em);
/* One of `choices`: its number. `fallback` NULL: it must be there. */
MUST_CHECK enum err quant_need_text(json_val v, const char *where, const char *name, const char *fallback,
				    const char *const *choices, size_t count, u32 *out, struct err_msg *em);
/* -1 (all inputs) or a number above 0 into q->group. */
MUST_CHECK enum err quant_read_group(struct quant_scheme *q, json_val v, const char *where, const char *name, struct err_msg *em);
/* Two numbers above 0 into q->block_rows and q->block_columns. */
MUST_CHECK enum err quant_read_block(struct quant_scheme *q, json_val v, const char *where, const char *name, struct err_msg *em);

/* Unless it is there already. ERR_UNSUPPORTED: there is no room. */
MUST_CHECK enum err quant_add_scheme(struct quant_config *q, const struct quant_scheme *s, struct err_msg *em);

/* quant_config_gptq.c: words of 32 bits, and the tools that write them. */
MUST_CHECK enum err quant_read_awq(struct quant_config *q, json_val v, struct err_msg *em);
MUST_CHECK enum err quant_read_gptq(struct quant_config *q, json_val v, struct err_msg *em);
MUST_CHECK enum err quant_read_auto_round(struct quant_config *q, json_val v, struct err_msg *em);
/* quant_config_quark.c */
MUST_CHECK enum err quant_read_quark(struct quant_config *q, json_val v, struct err_msg *em);
/* quant_config_groups.c: schemes of groups of modules, and of single ones. */
MUST_CHECK enum err quant_read_compressed(struct quant_config *q, json_val v, struct err_msg *em);
MUST_CHECK enum err quant_read_modelopt(struct quant_config *q, json_val v, struct err_msg *em);

extern const char QUANT_WHERE[]; /* "quantization_config" */

#endif
