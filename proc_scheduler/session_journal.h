/* The journal of sessions: a file that lets them outlive the scheduler. Every change of a history is appended when it
 * happens, with one write and no sync: the death of processes loses nothing, the loss of power may lose the last
 * seconds. Records carry checksums and the numbers of their turns, so that a torn or damaged part is noticed and no
 * session comes back with a hole in it. A file that grew beyond what lives is rewritten a piece at a time. */
#ifndef TERCET_PROC_SCHEDULER_SESSION_JOURNAL_H
#define TERCET_PROC_SCHEDULER_SESSION_JOURNAL_H

#include "common/buf.h"
#include "proc_scheduler/sessions.h"

struct session_journal {
	struct sessions *sessions; /* borrowed */
	char dir[4096];
	int lock_fd, fd;   /* -1: none */
	int next_fd;	   /* the file that is being rewritten; -1: none */
	u64 fingerprint;   /* of the tokenizer: tokens of another one mean nothing */
	u64 bytes, next_bytes;
	u32 next_slot;	   /* sessions below it are in the rewritten file */
	bool failed;	   /* what comes is not written: the disk is full, or worse */
	u64 warned_ns, retry_ns;
	u64 next_minimum;  /* a file is not rewritten before it has so many bytes */
	struct buf record;
	u64 write_ns_max;
};

/* Opens (or creates, mode 0600, the directory 0700) the journal in `dir`, brings what it has into `sessions`, which must
 * be empty, and from then on listens to its sink. ERR_IO: it cannot be written, with the reason. ERR_BUSY: another
 * engine uses it. ERR_INVALID: it is that of another model. Damage is logged and not an error. */
MUST_CHECK enum err session_journal_open(struct session_journal *j, const char *dir, u64 fingerprint,
					 struct sessions *sessions, struct err_msg *em);
void session_journal_close(struct session_journal *j); /* zeroed accepted */
/* Rewrites a piece of the file, or tries again after an error; about once a second. Takes at most about a
 * millisecond for each of its pieces of 256 KiB. */
void session_journal_tick(struct session_journal *j, u64 now_ns);
/* XXH3-64 of the model's tokenizer, or of the directory's name where it has none. */
u64 session_journal_fingerprint(const char *model_dir);

#endif
