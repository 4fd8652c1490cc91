/* The node array behind json.h, shared by the C++ shim that fills it and the C code that reads it. */
#ifndef TERCET_COMMON_JSON_PRIV_H
#define TERCET_COMMON_JSON_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nodes stand in document order, a container in front of what it holds, in objects each key (a string node)
 * in front of its value: the next sibling of a container is `span` nodes further on. */
struct json_node {
	uint8_t type;	  /* enum json_type */
	bool is_unsigned; /* JSON_INT above INT64_MAX: read `u` */
	uint32_t size; /* strings: bytes; containers: nodes of the whole subtree, itself included; else 1 */
	union {
		bool b;
		int64_t i;
		uint64_t u;
		double d;
		const char *text; /* NUL behind it */
		uint64_t count;	  /* elements or members */
	};
};

struct json_doc {
	struct json_node *nodes; /* malloc */
	unsigned char *strings;	 /* the shim's; json_shim_free */
};

enum json_shim_status { JSON_SHIM_OK, JSON_SHIM_MALFORMED, JSON_SHIM_TOO_LONG, JSON_SHIM_NO_MEMORY };

/* What went wrong; `offset` is SIZE_MAX when unknown. */
struct json_shim_error {
	const char *reason; /* static */
	size_t offset;
};

/* Fills `doc` from strict JSON. On failure `doc` is left empty. */
enum json_shim_status json_shim_parse(struct json_doc *doc, const char *text, size_t bytes,
				      struct json_shim_error *error);
void json_shim_free(struct json_doc *doc);

/* Where text that is no JSON goes wrong, and how; SIZE_MAX, and `reason` as it was, where only the inside of a string or number
 * does. */
size_t json_locate(const char *text, size_t bytes, const char **reason);

enum { JSON_DOUBLE_BYTES_MAX = 32 };
/* Shortest decimal that reads back the same, in the form of Python's repr; finite values only. Returns its
 * length. */
size_t json_shim_format_double(char out[JSON_DOUBLE_BYTES_MAX], double value);
size_t json_shim_format_float(char out[JSON_DOUBLE_BYTES_MAX], float value);

#ifdef __cplusplus
}
#endif
#endif
