/* What reading the named values of a GGUF file and reading the rest of it have in common. */
#ifndef TERCET_COMMON_GGUF_PRIV_H
#define TERCET_COMMON_GGUF_PRIV_H

#include "common/arena.h"
#include "common/gguf.h"

/* What is left of a file's header. */
struct gguf_cursor {
	const char *at, *end;
};

struct gguf_value;

/* Of one file, in the order of their keys. */
struct gguf_values {
	struct gguf_value *list;
	u32 count;
};

/* The next `bytes` of a header; false: it has not so many, and nothing was taken. */
bool gguf_take(struct gguf_cursor *c, void *out, size_t bytes);
/* A length and as many bytes, which stay where they are. */
bool gguf_take_string(struct gguf_cursor *c, const char **out, u64 *bytes);
/* A name of at most `bytes_max` bytes, copied into the arena. ERR_FORMAT: it is longer, empty, no UTF-8, has control characters, or the
 * header ends in it; ERR_NO_MEMORY. */
MUST_CHECK enum err gguf_take_name(const char **out, struct gguf_cursor *c, u64 bytes_max, struct arena *arena, struct err_msg *em);

/* Reads `count` keys and values and checks all of what they hold. Keys lie in the arena, values in the file. ERR_FORMAT,
 * ERR_TOO_LONG, ERR_NO_MEMORY; gguf_values_fini in every case. */
MUST_CHECK enum err gguf_values_read(struct gguf_values *v, struct gguf_cursor *c, u64 count, struct arena *arena, struct err_msg *em);
void gguf_values_fini(struct gguf_values *v);
/* As gguf_int of one file's values. */
bool gguf_values_int(const struct gguf_values *v, const char *key, i64 *out);
/* The values of the first file. */
const struct gguf_values *gguf_values_of(const struct gguf *g);

#endif
