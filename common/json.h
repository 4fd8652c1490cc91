/* JSON. Reading: simdjson behind a small C shim (strict UTF-8, 64 levels), as a flat tree of nodes that one
 * document owns. Writing: appended to a `struct buf`, no tree. */
#ifndef TERCET_COMMON_JSON_H
#define TERCET_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum { JSON_LEVELS_MAX = 64 }; /* of nesting, read or written */

struct json_doc;
struct json_node;

enum json_type {
	JSON_MISSING, /* what a look-up of an absent key answers; every reader below takes it */
	JSON_NULL,
	JSON_BOOL,
	JSON_INT,    /* a number without fraction or exponent that fits int64 or uint64 */
	JSON_DOUBLE, /* any other number */
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT,
};

/* A value inside a document, passed by value, valid as long as the document. {NULL} is JSON_MISSING. */
typedef struct {
	const struct json_node *node;
} json_val;

/* Parses `bytes` bytes (copied; no NUL needed). ERR_FORMAT with the reason and, where known, the byte offset.
 * ERR_NO_MEMORY. On success the caller owns `*out` (json_free). */
MUST_CHECK enum err json_parse(struct json_doc **out, const char *text, size_t bytes, struct err_msg *em);
/* The same for a file; ERR_IO names the path and the system's reason. */
MUST_CHECK enum err json_parse_file(struct json_doc **out, const char *path, struct err_msg *em);
/* The same for a file that Python may have written, whose Infinity is no JSON: it is read as {"__float__": "Infinity"}, which newer programs write. */
MUST_CHECK enum err json_parse_python_file(struct json_doc **out, const char *path, struct err_msg *em);
void json_free(struct json_doc **doc); /* NULL accepted */

json_val json_root(const struct json_doc *doc);
enum json_type json_type(json_val v);
/* "null", "boolean", "integer", "number", "string", "array", "object", "missing": for error texts. */
const char *json_type_name(json_val v);
bool json_present(json_val v); /* neither missing nor null */

/* Member by name; the last of duplicates; JSON_MISSING when absent or `v` is no object. */
json_val json_get(json_val v, const char *key);
json_val json_getn(json_val v, const char *key, size_t key_bytes);
/* The first text in `v`, a key or a string at any level, that has a NUL in it, and so is not what it is as a C string; NULL:
 * there is none. Borrowed from the document. For readers to whom texts are C strings. */
const char *json_text_with_nul(json_val v);
/* Levels of nesting: 0 for what is neither array nor object, 1 for one that holds only such. */
uint32_t json_depth(json_val v);
/* Elements or members; 0 for everything else. */
size_t json_count(json_val v);
/* Element by index: O(index). Use an iterator for loops. */
json_val json_at(json_val v, size_t index);

/* for (struct json_iter it = json_iterate(v); json_next(&it);) ... it.value (it.key, it.key_bytes in objects)
 */
struct json_iter {
	json_val value;
	const char *key; /* NUL-terminated too; NULL in arrays */
	size_t key_bytes;
	const struct json_node *next_node;
	size_t left;
};
struct json_iter json_iterate(json_val v);
bool json_next(struct json_iter *it);
/* Whether the member at hand has this key, and no NUL behind it. */
bool json_is_member(const struct json_iter *it, const char *key);

/* Each answers false (and leaves *out alone) when the type does not fit. */
bool json_bool(json_val v, bool *out);
bool json_int(json_val v, int64_t *out);
bool json_uint(json_val v, uint64_t *out);
bool json_double(json_val v, double *out); /* JSON_INT too */
/* Bytes may hold NULs; there is a NUL behind them. Borrowed from the document. */
bool json_string(json_val v, const char **out, size_t *bytes);
/* The string as C string, or `fallback`. */
const char *json_cstr(json_val v, const char *fallback);
bool json_string_equals(json_val v, const char *text);

/* ---- writing: commas are placed by the writer; depth up to 64 ---- */
struct json_writer {
	struct buf *out;     /* borrowed */
	uint64_t has_member; /* bit per level: a comma is due */
	uint32_t depth;
	bool after_key;
	bool spaced; /* set it after json_begin: ", " and ": " as Python's json.dumps writes them */
};
void json_begin(struct json_writer *w, struct buf *out);
void json_object_begin(struct json_writer *w);
void json_object_end(struct json_writer *w);
void json_array_begin(struct json_writer *w);
void json_array_end(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);
/* The key of a member that is copied, which may have a NUL. */
void json_key_of(struct json_writer *w, const struct json_iter *member);
/* Invalid UTF-8 is replaced by U+FFFD; control characters are escaped; '/' and non-ASCII are not. */
void json_write_string(struct json_writer *w, const char *text, size_t bytes);
void json_write_cstr(struct json_writer *w, const char *text);
void json_write_int(struct json_writer *w, int64_t value);
void json_write_uint(struct json_writer *w, uint64_t value);
/* Shortest form that reads back the same; integral values as "1.0"; NaN and infinities as null. */
void json_write_double(struct json_writer *w, double value);
/* Shortest form that reads back the same float: log-probabilities take half the bytes. */
void json_write_float(struct json_writer *w, float value);
void json_write_bool(struct json_writer *w, bool value);
void json_write_null(struct json_writer *w);
/* Verbatim JSON made elsewhere. */
void json_write_raw(struct json_writer *w, const char *json, size_t bytes);
/* A whole value of a document, members in their order; JSON_MISSING as null. */
void json_write_value(struct json_writer *w, json_val v);
/* The escaped string with its quotes, appended to `out`: what JSON demands, and what Unicode takes for ends of lines. */
void json_escape(struct buf *out, const char *text, size_t bytes);

#endif
