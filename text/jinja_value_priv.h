/* Values of the template language: Python's types as far as templates can tell. Everything lives in the arena of one
 * rendering (constants of the source: in the template's) and is immutable, but for namespaces, loops and cyclers. */
#ifndef TERCET_TEXT_JINJA_VALUE_PRIV_H
#define TERCET_TEXT_JINJA_VALUE_PRIV_H

#include "common/buf.h"
#include "common/json.h"
#include "common/types.h"

struct jinja;
struct node;

enum jv_type {
	JV_MISSING, /* no value at all: an argument that was not given */
	JV_UNDEFINED,
	JV_NONE,
	JV_BOOL,
	JV_INT,
	JV_FLOAT,
	JV_STRING,
	JV_LIST,
	JV_TUPLE,
	JV_DICT,
	JV_RANGE,
	JV_VIEW,      /* dict.keys(), .values(), .items() */
	JV_ITERATOR,  /* what map, select and the like give: can be walked once */
	JV_NAMESPACE,
	JV_LOOP,
	JV_MACRO,
	JV_METHOD,    /* a method with its object */
	JV_FUNCTION,  /* a global */
	JV_CYCLER,
	JV_JOINER,
	JV_TYPE_COUNT
};

struct jv {
	u8 type;
	bool safe; /* strings: Markup, which escapes what is joined to it; tuples: a group with .grouper and .list */
	union {
		bool b;
		int64_t i;
		double f;
		struct jstr *s;
		struct jlist *l; /* lists and tuples */
		struct jdict *d; /* dicts and namespaces */
		struct jrange *range;
		struct jview *view;
		struct jiterator *it;
		struct jloop *loop;
		struct jmacro *macro;
		struct jmethod *method;
		const struct builtin *function;
		struct jcycler *cycler;
		const char *hint; /* undefined: the message of the error that using it raises */
	};
};

/* UTF-8, NUL behind it. `chars`: code points, SIZE_MAX while not counted. Strings that grew by concatenation share a
 * store with room behind them, so that x = x + y in a loop costs what y costs. */
struct jstr {
	const char *data;
	size_t bytes;
	size_t chars;
	struct jstore *store;
};
struct jstore {
	char *data;
	size_t used;
	size_t room;
};
struct jlist {
	struct jv *items;
	size_t count;
	size_t room;
};
/* Insertion order; `index` (open addressing, entry + 1) once there are more than a few entries. */
struct jdict {
	struct jentry *entries;
	size_t count;
	size_t room;
	u32 *index;
	size_t index_mask;
};
struct jentry {
	struct jv key;
	struct jv value;
	u64 hash;
};
struct jrange {
	int64_t start, stop, step;
	size_t count;
};
enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };
struct jview {
	enum jview_kind kind;
	struct jdict *dict;
};
/* Worked out at once; an error met on the way is raised when the walk gets there. */
struct jiterator {
	struct jlist items;
	size_t at;
	const char *error; /* NULL: none */
};
struct jcycler {
	struct jlist items;
	size_t at;
};
struct jmethod {
	struct jv self;
	const struct builtin *builtin;
};

#define JV_UNDEF(message) ((struct jv){.type = JV_UNDEFINED, .hint = (message)})
#define JV_NIL            ((struct jv){.type = JV_NONE})
#define JV_BOOLEAN(x)     ((struct jv){.type = JV_BOOL, .b = (x)})
#define JV_INTEGER(x)     ((struct jv){.type = JV_INT, .i = (x)})
#define JV_DOUBLE(x)      ((struct jv){.type = JV_FLOAT, .f = (x)})

static inline bool jv_is_int(struct jv v) /* bool is an int in Python */
{
	return v.type == JV_INT || v.type == JV_BOOL;
}
static inline bool jv_is_number(struct jv v)
{
	return jv_is_int(v) || v.type == JV_FLOAT;
}
static inline int64_t jv_int(struct jv v)
{
	return v.type == JV_BOOL ? v.b : v.i;
}
static inline double jv_float(struct jv v)
{
	return v.type == JV_FLOAT ? v.f : (double)jv_int(v);
}
static inline bool jv_is_sequence(struct jv v)
{
	return v.type == JV_LIST || v.type == JV_TUPLE;
}

/* Makers. All answer false after recording the error (memory, size limit). */
bool jv_string(struct jinja *j, const char *text, size_t bytes, struct jv *out); /* copies */
bool jv_string_buf(struct jinja *j, const struct buf *b, struct jv *out);        /* copies */
bool jv_concat(struct jinja *j, struct jv a, struct jv b, struct jv *out);       /* of two strings, flags of a */
bool jv_list(struct jinja *j, enum jv_type type, size_t room, struct jv *out);
bool jlist_push(struct jinja *j, struct jlist *l, struct jv v);
bool jv_dict(struct jinja *j, enum jv_type type, struct jv *out);
/* Errors too where the key cannot be hashed. */
bool jdict_put(struct jinja *j, struct jdict *d, struct jv key, struct jv value);
bool jdict_get(struct jinja *j, const struct jdict *d, struct jv key, struct jv *out, bool *found);
/* Member by a plain name; false when absent. */
bool jdict_find(const struct jdict *d, const char *name, size_t bytes, struct jv *out);
bool jv_from_json(struct jinja *j, json_val v, struct jv *out);
bool jv_pair(struct jinja *j, struct jv a, struct jv b, struct jv *out); /* a tuple of two */

/* Questions. */
bool jv_truthy(struct jv v);
const char *jv_type_name(struct jv v); /* Python's */
size_t jstr_chars(struct jstr *s);
/* Byte offset of a character; `bytes` at the end. */
size_t jstr_offset(struct jstr *s, size_t chars);
/* False too, and the error recorded, at the limit of steps. */
bool jv_is_hashable(struct jinja *j, struct jv v);
/* ==; false on error (data nested too deeply). */
bool jv_equal(struct jinja *j, struct jv a, struct jv b, bool *out);
/* -1, 0, 1 for two values that have an order; TypeError otherwise. */
bool jv_compare(struct jinja *j, struct jv a, struct jv b, const char *op, int *out);
/* len(); TypeError for what has none. */
bool jv_length(struct jinja *j, struct jv v, size_t *out);
bool jv_contains(struct jinja *j, struct jv container, struct jv item, bool *out);

/* Walking whatever can be walked. Start with jiter_begin (TypeError), then next until `done`. */
struct jiter {
	struct jv over;
	size_t at;
};
bool jiter_begin(struct jinja *j, struct jv v, struct jiter *it);
bool jiter_next(struct jinja *j, struct jiter *it, struct jv *out, bool *done);
/* list(v) */
bool jv_to_list(struct jinja *j, struct jv v, struct jv *out);

/* Text. str(), repr() and json.dumps() append to `out`. */
bool jv_str(struct jinja *j, struct jv v, struct buf *out);
bool jv_repr(struct jinja *j, struct jv v, struct buf *out);
/* str() as a string value; a string is itself, Markup included. */
bool jv_to_string(struct jinja *j, struct jv v, struct jv *out);
void jv_float_repr(double f, struct buf *out);
struct json_style {
	const char *item_separator;
	const char *key_separator;
	const char *indent; /* NULL: on one line */
	bool ensure_ascii;
	bool sort_keys;
};
bool jv_to_json(struct jinja *j, struct jv v, const struct json_style *style, struct buf *out);
/* HTML-escapes unless safe already; the result is safe. */
bool jv_escape(struct jinja *j, struct jv v, struct jv *out);

/* A stable sort by key; of equal keys the first stays first, in reverse order too. */
struct jsort_item {
	struct jv key;
	struct jv value;
};
bool jv_sort(struct jinja *j, struct jsort_item *items, size_t count, bool reverse);

/* Operators. */
bool jv_binary(struct jinja *j, u8 op, struct jv a, struct jv b, struct jv *out);
bool jv_negate(struct jinja *j, struct jv v, struct jv *out);
/* Environment.getattr and .getitem with the sandbox's rules: an undefined value where there is nothing. */
bool jv_getattr(struct jinja *j, struct jv v, const char *name, size_t bytes, struct jv *out);
bool jv_getitem(struct jinja *j, struct jv v, struct jv key, struct jv *out);
bool jv_slice(struct jinja *j, struct jv v, const struct jv bounds[3], struct jv *out);
/* str % args and str.format. */
bool jv_percent(struct jinja *j, struct jv format, struct jv args, struct jv *out);

#endif
