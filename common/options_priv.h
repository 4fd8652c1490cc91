/* The option table as data, shared by the files that set options and those that print them. */
#ifndef TERCET_COMMON_OPTIONS_PRIV_H
#define TERCET_COMMON_OPTIONS_PRIV_H

#include "common/options.h"

enum option_type { OPTION_STR, OPTION_INT, OPTION_SIZE, OPTION_REAL, OPTION_FLAG, OPTION_ENUM, OPTION_LIST };

/* One row; only the members of its type are meaningful. */
struct option_desc {
	const char *group;
	const char *name; /* with '_' */
	const char *help;
	enum option_type type;
	size_t offset; /* in struct options */
	const char *def_str;
	i64 def_int, min_int, max_int;
	u64 def_size, min_size;
	f64 def_real, min_real, max_real;
	bool def_flag;
	u32 def_enum;
	const char *choices; /* "a|b|c" */
};

/* Another name for an option. With `on` it behaves as a flag that sets the option to `on` or `off`. */
struct option_alias {
	const char *name; /* with '_' */
	const char *target;
	const char *on, *off;
};

/* Both end in a row whose name is NULL. */
extern const struct option_desc option_table[];
extern const struct option_alias option_aliases[];

/* The member of `o` that the row describes. */
static inline const void *option_field(const struct options *o, const struct option_desc *d)
{
	return (const char *)o + d->offset;
}

/* What a name on the command line, in a file or in the environment stands for. */
struct option_match {
	const struct option_desc *desc;
	const struct option_alias *alias; /* NULL: its own name */
	bool negated;			  /* --no-name */
	bool is_flag;			  /* takes no value word */
};

/* `name` has '-' or '_' and no leading dashes. False when there is no such option. */
bool option_find(const char *name, size_t bytes, struct option_match *out);
/* The known name nearest to a mistyped one, or NULL; with '_'. */
const char *option_suggest(const char *name, size_t bytes);
/* What to use instead of option `name` of another server; NULL: it is none that is known. Static text. */
const char *option_hint(const char *name, size_t bytes);
/* The same of a value, of an option of ours (with '_'). */
const char *option_value_hint(const char *name, const char *value);

/* "; did you mean --x?" or "". */
void option_suggest_text(char *out, size_t out_bytes, const char *name, size_t name_bytes,
			 const char *dashes);
/* Sets what `match` stands for. `value` may be NULL for flags. `append`: lists grow instead of being
 * replaced. */
MUST_CHECK enum err option_apply(struct options *o, const struct option_match *match, const char *value,
				 bool append, const char *where, struct err_msg *em);

/* The value as text that option_apply reads back: lists comma-separated, sizes in bytes. */
void option_format(const struct options *o, const struct option_desc *d, struct buf *out);
bool option_is_default(const struct options *o, const struct option_desc *d);
/* Copies `name` with '_' replaced by '-'. */
void option_dashed(char *out, size_t out_bytes, const char *name);

enum { OPTION_NAME_BYTES_MAX = 64, OPTION_TABLE_MAX = 128 };

#endif
