/* All sequences on their way from tokens to text: OPEN, CLOSE and RESULT in, CHUNKs and STOPPEDs out. Pure:
 * no sockets, no clock; time and epochs are arguments. */
#ifndef TERCET_PROC_DETOK_STREAMS_H
#define TERCET_PROC_DETOK_STREAMS_H

#include "common/err.h"
#include "ipc/ipc.h"
#include "text/text.h"

struct streams;

struct streams_config {
	const struct tokenizer *tokenizer; /* borrowed for the life of the streams */
	u32 streams_max;		   /* open at once */
	u32 clients_max;
	u32 early_max;	 /* results kept of sequences that are not open yet */
	u64 secret;	 /* mixed into hashes */
	u64 chunk_bytes; /* a chunk is closed when it is larger; 0: 256 KiB */
	u64 orphan_ns;	 /* how long a stream waits for its resubmission after its scheduler died */
	u64 early_ns;	 /* how long early results wait for their OPEN */
	u64 close_ns;	 /* how long a CLOSE waits for the results in front of it, and a gap to be filled */
};

/* Since the start. */
struct streams_counters {
	u64 tokens;	   /* taken */
	u64 late;	   /* results of sequences that have ended, or of an earlier epoch */
	u64 doubled;	   /* positions known already */
	u64 gaps;	   /* results that came although earlier ones were missing */
	u64 lost;	   /* streams that ended because missing results never came */
	u64 early;	   /* results that came before their OPEN */
	u64 early_dropped; /* of these, given up */
	u64 refused;	   /* OPENs that found no room */
	u64 malformed;	   /* RESULTs whose columns do not fit together */
};

/* ERR_NO_MEMORY. */
MUST_CHECK enum err streams_create(struct streams **out, const struct streams_config *config);
void streams_destroy(struct streams **ss);
const struct streams_counters *streams_counters(const struct streams *ss);
/* Sequences that have not ended. */
u32 streams_live(const struct streams *ss);

/* ---------------------------------------------------------------- from the scheduler and the worker */

/* The messages' arrays are borrowed for the call; `epoch` is the sender's. An OPEN for a client and request
 * that are known goes on with their stream, whatever the sequence id. An OPEN that cannot be taken ends in a
 * CHUNK with an error and a STOPPED. */
void streams_open(struct streams *ss, const struct ipc_open *open, u64 epoch, u64 now_ns);
void streams_close(struct streams *ss, const struct ipc_close *close, u64 now_ns);
void streams_result(struct streams *ss, const struct ipc_result *result, u64 epoch, u64 now_ns);
/* The scheduler is a new one: every stream waits for its resubmission; results of older epochs are late. */
void streams_scheduler_restarted(struct streams *ss, u64 epoch, u64 now_ns);
/* Results are missing, and the scheduler may have them: the caller asks it to open everything again. Answers
 * true once until more are missing. */
bool streams_take_gap(struct streams *ss);
/* What waited too long ends. Call about once a second. */
void streams_expire(struct streams *ss, u64 now_ns);

/* ---------------------------------------------------------------- clients */

/* A client's news stay in its streams, where they merge, until it is ready and is not held. `attach->live_*`
 * tells where to go on with requests that this process gave nothing of yet. ERR_BUSY: too many clients;
 * ERR_NO_MEMORY. */
MUST_CHECK enum err streams_client_ready(struct streams *ss, const struct ipc_attach *attach);
/* Whether it has streams that it was not told the end of. */
bool streams_client_busy(const struct streams *ss, u64 client_id);
void streams_client_hold(struct streams *ss, u64 client_id, bool hold);
/* Bytes that wait in the client's streams; 0 for unknown ones. */
u64 streams_client_bytes(const struct streams *ss, u64 client_id);
/* Ends all of the client's streams without giving anything out and tells the scheduler by STOPPED. */
void streams_client_drop(struct streams *ss, u64 client_id);
/* A client that is not ready although it has streams since before `since_ns`; false: none. */
bool streams_client_absent(const struct streams *ss, u64 since_ns, u64 bytes_max, u64 *client_id);

/* ---------------------------------------------------------------- out */

/* Takes news of one client that may be sent: as many of its requests as a chunk holds. The caller numbers the
 * chunk. Arrays live until the next call on `ss`. False: there are no more. */
bool streams_next_chunk(struct streams *ss, struct ipc_chunk *out);
/* The oldest STOPPED that was not yet popped; false: none. */
bool streams_peek_stopped(struct streams *ss, struct ipc_stopped *out);
void streams_pop_stopped(struct streams *ss);

#endif
