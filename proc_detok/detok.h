/* The door of proc_detok/: the detokenizer process without its start-up. */
#ifndef TERCET_PROC_DETOK_DETOK_H
#define TERCET_PROC_DETOK_DETOK_H

#include "proc_detok/output_socket.h"
#include "proc_detok/streams.h"
#include "text/text.h"

struct detok_config {
	const char *run_dir;
	const struct tokenizer *tokenizer;
	struct stats_page *stats;
	struct trace *trace;	/* or NULL */
	const char *record_dir; /* or NULL */
	u32 streams_max;
	u64 retention_bytes;
	u32 retention_s;
};

struct detok {
	struct detok_config config;
	struct ipc_context *ctx;
	struct ipc_loop *loop;
	struct ipc_channel *tokens; /* RESULT */
	struct ipc_channel *sched;  /* OPEN, CLOSE in; STOPPED out */
	struct streams *streams;
	struct output_socket output;
	ipc_peer scheduler; /* 0: none known */
	u64 scheduler_epoch;
	bool ask; /* results may be missing: the scheduler is to open everything again */
	u64 asked_ns;
	struct streams_counters logged;
};

/* Binds tokens, streams, output and tap in the run directory. Everything in `config` is borrowed for the life
 * of `d`. ERR_IO, ERR_TOO_LONG, ERR_NO_MEMORY; `d` is then empty. */
MUST_CHECK enum err detok_open(struct detok *d, const struct detok_config *config, struct err_msg *em);
void detok_close(struct detok *d);

#endif
