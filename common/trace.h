/* The timeline: spans of all processes on one clock, kept in a shared-memory ring per process (the last 65,536
 * spans), turned into Chrome/Perfetto JSON by the supervisor at exit. Off: one branch per span. */
#ifndef TERCET_COMMON_TRACE_H
#define TERCET_COMMON_TRACE_H

#include "common/err.h"
#include "common/types.h"

#define TRACE_SPANS(X)                                                                                       \
	X(PLAN, plan) X(ENCODE, encode) X(SEND, send) X(RESULT, result)                                      \
	X(WAIT, wait) X(APPLY, apply) X(INPUTS, inputs) X(FORWARD, forward) X(SAMPLE, sample)                \
	X(DECODE, decode) X(WRITE, write) X(HTTP, http) X(LOAD, load)                                        \
	X(LAUNCH, launch) X(DEVICE, device) /* a step on a device, while the host does something else */

enum trace_span {
#define TRACE_ENUM(id, name) TRACE_##id,
	TRACE_SPANS(TRACE_ENUM)
#undef TRACE_ENUM
	TRACE_SPAN_COUNT
};

struct trace; /* NULL is valid everywhere and means off */

/* Creates RUN_DIR/trace/PROCESS. */
MUST_CHECK enum err trace_create(struct trace **out, const char *run_dir, const char *process, struct err_msg *em);
void trace_destroy(struct trace **t); /* unmaps; the file stays for the supervisor */
/* One span; `step` and `count` are shown as arguments. Single writer, never blocks. */
void trace_add(struct trace *t, enum trace_span span, u64 begin_ns, u64 end_ns, u64 step, u32 count);
/* Merges every ring of RUN_DIR/trace into `path`. ERR_IO names the path. */
MUST_CHECK enum err trace_write_json(const char *run_dir, const char *path, struct err_msg *em);

#endif
