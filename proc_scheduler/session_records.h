/* What stands in a journal of sessions: a header, then records, each with its length, a checksum, the session and
 * tokens. Numbers are little-endian, as they lie in memory; the file is read by the host that wrote it. */
#ifndef TERCET_PROC_SCHEDULER_SESSION_RECORDS_H
#define TERCET_PROC_SCHEDULER_SESSION_RECORDS_H

#include "common/buf.h"
#include "proc_scheduler/sessions.h"

enum { SESSION_RECORD_HEADER_BYTES = 32 };

enum session_record_kind {
	SESSION_RECORD_STATE = 1, /* a whole session */
	SESSION_RECORD_BEGUN,	  /* a turn began */
	SESSION_RECORD_ENDED,	  /* it ended: tokens from turn_base on */
	SESSION_RECORD_DROPPED,
};

struct session_restore {
	u64 good_bytes; /* the file up to the end of its last sound record */
	u64 lost_bytes; /* damaged ones, in front of or behind that */
	u32 records, dropped;
};

/* Appends; shows failure as buf_ok does. */
void session_record_header(struct buf *out, u64 fingerprint);
void session_record_put(struct buf *out, u64 fingerprint, enum session_record_kind kind, const struct session *s,
			const u32 *tokens, u32 count);
void session_record_put_state(struct buf *out, u64 fingerprint, const struct sessions *ss, const struct session *s);

void session_record_put_dropped(struct buf *out, u64 fingerprint, const struct session *s, enum session_end why);
/* All that left and are remembered, in their order. */
void session_record_put_gone(struct buf *out, u64 fingerprint, const struct sessions *ss);

/* Brings the file's sessions into `ss`, whose sink must be empty. A record that is damaged is passed over, as is every
 * session whose turns show that one of theirs is missing. ERR_INVALID: another model's or no journal. ERR_IO,
 * ERR_NO_MEMORY. */
MUST_CHECK enum err session_records_read(int fd, const char *path, u64 fingerprint, struct sessions *ss,
					 struct session_restore *out, struct err_msg *em);

#endif
