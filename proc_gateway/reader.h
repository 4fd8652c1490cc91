/* Reads long request bodies, and those with a grammar to compile, on a thread of its own, so that encoding a prompt of a
 * megabyte or compiling a schema for a tenth of a second does not hold up the tokens of everybody else's streams. One thread, first come, first served. */
#ifndef TERCET_PROC_GATEWAY_READER_H
#define TERCET_PROC_GATEWAY_READER_H

#include "proc_gateway/http_server.h"
#include "proc_gateway/openai_request.h"

struct event_base;
struct reader;

enum {
	READER_BODY_BYTES = 16 * 1024
}; /* shorter bodies are read where they are: that is faster than waking a thread */

/* Whether a body is one for the thread: long, or with the name of a field that may hold a grammar. */
bool reader_is_for(const char *body, size_t bytes);

struct reader_job {
	/* in */
	struct http_request *http; /* NULL from the moment on in which the client went away */
	enum openai_endpoint endpoint;
	u64 tenant;
	struct buf body; /* owned */
	/* out */
	bool ok;
	struct openai_request request; /* owned by whoever gets the job */
	struct api_error error;
	struct buf reply; /* of /tokenize and /detokenize; owned */
	/* the reader's */
	struct reader_job *next;
	struct openai_model model;
};

/* In the event loop. Frees nothing: reader_job_free when done with it. */
typedef void (*reader_done_fn)(void *ctx, struct reader_job *job);

/* ERR_NO_MEMORY, ERR_IO (no thread). */
MUST_CHECK enum err reader_create(struct reader **out, struct event_base *base, reader_done_fn done,
				  void *ctx, struct err_msg *em);
/* Waits for the job in work, frees all others; no more callbacks. NULL accepted. */
void reader_destroy(struct reader **reader);
/* Takes over the body of `http` (and its close callback, until the job is done). False: out of memory,
 * nothing was done. `model` is copied. */
bool reader_submit(struct reader *reader, struct http_request *http, const struct openai_model *model,
		   enum openai_endpoint endpoint, u64 tenant);
void reader_job_free(struct reader_job *job);

#endif
