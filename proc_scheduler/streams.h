/* The scheduler's side of the detokenizer: OPEN and CLOSE, kept while it is away, told again when it comes
 * back. */
#ifndef TERCET_PROC_SCHEDULER_STREAMS_H
#define TERCET_PROC_SCHEDULER_STREAMS_H

#include "proc_scheduler/kept_results.h"
#include "proc_scheduler/outbox.h"
#include "proc_scheduler/sched.h"

enum { STREAM_ENDS_MAX = 1024 };

/* A request that ended lately: if the detokenizer dies before it delivered the end, its successor is told. */
struct stream_end {
	u64 time_ns;
	struct buf open, close; /* encoded */
};

struct streams {
	struct outbox outbox;
	u64 epoch;
	u32 eos_count;
	u32 eos_ids[EOS_IDS_MAX];
	bool connected;		 /* it said HELLO and the connection did not break since */
	bool was_greeted;	 /* there was a connection: the next HELLO is that of another life */
	struct stream_end *ends; /* [STREAM_ENDS_MAX], a ring */
	u32 end_first, end_count;
	u64 end_bytes;
	struct kept_results kept;
	struct buf outputs; /* encoded RESULTs that follow the kept ones, each behind its length; within reopen_begin and _end */
	struct ipc_scratch decoded;
	u64 now_ns; /* of the event that is handled */
};

/* ERR_NO_MEMORY. The channel is borrowed. */
MUST_CHECK enum err streams_init(struct streams *st, struct ipc_channel *channel);
void streams_fini(struct streams *st); /* zeroed accepted */
/* For sched_create; its ctx is `st`. */
struct sched_sink streams_sink(struct streams *st);
/* The connection broke: nothing is sent until the detokenizer greets. */
void streams_lost(struct streams *st);
/* A HELLO. True: it is not the first one, so what is live has to be opened again and what ended lately, too. */
bool streams_greeted(struct streams *st);
/* Around sched_reopen_streams and streams_resend_ends, or whatever opens streams again: their outputs come with the
 * log-probabilities that are still known. */
void streams_reopen_begin(struct streams *st);
void streams_reopen_end(struct streams *st);
/* Opens and closes again what ended lately. */
void streams_resend_ends(struct streams *st, u64 now_ns);
/* A result, before it is applied: by that an answer of a beam search may end, whose stream needs the rows of its prompt. Its
 * log-probabilities may be needed again. */
void streams_keep_result(struct streams *st, const struct ipc_result *m);
/* About once a second. */
void streams_expire(struct streams *st, u64 now_ns);
/* Whether new requests may be taken: false while the bounded queue to the detokenizer is nearly full. */
bool streams_have_room(const struct streams *st);

#endif
