/* Errors. Every fallible function returns `enum err`; values leave through out-parameters.
 * What a person has to read is put into a `struct err_msg` that the caller owns. */
#ifndef TERCET_COMMON_ERR_H
#define TERCET_COMMON_ERR_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text). Append only: the numbers travel in REFUSED and CLOSE messages. */
#define ERR_MAP(X)                                                                                           \
	X(OK, "success")                                                                                     \
	X(AGAIN, "nothing to do now; try again later")                                                       \
	X(BUSY, "a bounded queue or pool is full")                                                           \
	X(GONE, "the peer is gone or was never there")                                                       \
	X(INVALID, "invalid argument or request")                                                            \
	X(TOO_LONG, "longer than the limit")                                                                 \
	X(NOT_FOUND, "no such thing")                                                                        \
	X(EXISTS, "exists already")                                                                          \
	X(UNSUPPORTED, "not supported")                                                                      \
	X(FORMAT, "malformed data")                                                                          \
	X(VERSION, "protocol version or schema differs")                                                     \
	X(SEQUENCE, "message out of sequence")                                                               \
	X(DIVERGED, "replicated state differs")                                                              \
	X(IO, "input/output error")                                                                          \
	X(NO_MEMORY, "out of memory")                                                                        \
	X(NO_SPACE, "not enough memory for the configuration")                                               \
	X(KV_FULL, "no free KV blocks")                                                                      \
	X(NEVER_FITS, "can never fit into the KV cache")                                                     \
	X(ABORTED, "aborted")                                                                                \
	X(TIMEOUT, "timed out")                                                                              \
	X(DENIED, "not allowed")                                                                             \
	X(SHUTDOWN, "shutting down")                                                                         \
	X(DEVICE, "device error")                                                                            \
	X(INTERNAL, "internal error")                                                                        \
	X(CONFLICT, "in use, or not in a state for that")                                                    \
	X(DROPPED, "no longer kept")

enum err {
#define ERR_ENUM(name, text) ERR_##name,
	ERR_MAP(ERR_ENUM)
#undef ERR_ENUM
	ERR_COUNT
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* The text of `e`, static; "unknown error" outside the table. */
const char *err_text(enum err e);
/* The name of `e` without the ERR_ prefix, static. */
const char *err_name(enum err e);

/* A message for people: what is wrong and what would be right. Plain memory, no ownership. */
struct err_msg {
	char text[1024];
};

/* Writes the message (cut to fit) and returns `e`, so that `return err_set(em, ERR_IO, ...)` reads well.
 * `em` may be NULL. */
enum err err_set(struct err_msg *em, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Puts "prefix: " in front of the text that is there. */
void err_prefix(struct err_msg *em, const char *fmt, ...) PRINTF_LIKE(2, 3);

#ifdef __cplusplus
}
#endif
#endif
