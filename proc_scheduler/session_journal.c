/* Owns the journal's file: what is appended, when it is rewritten, and what is done when the disk is full. Runs in the
 * scheduler's I/O shell. Never stalls the loop: a write goes to the page cache, and after one that failed nothing is
 * written until a rewrite has worked. What cannot be kept is not kept half: a file that misses a turn is emptied. */
#include "proc_scheduler/session_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/session_records.h"

enum { PIECE_BYTES = 256 * 1024, MINIMUM_BYTES = 1 << 20, GROWTH = 4 };
static const u64 RETRY_NS = 30u * 1000000000ull;
static const char file_name[] = "sessions.journal", next_name[] = "sessions.journal.next", lock_name[] = "sessions.lock";

static void path_of(const struct session_journal *j, const char *name, char out[4352])
{
	snprintf(out, 4352, "%s/%s", j->dir, name);
}

/* ---------------------------------------------------------------- writing */

static bool write_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, data, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		data += n;
		bytes -= (size_t)n;
	}
	return true;
}

static void stop_rewrite(struct session_journal *j)
{
	char path[4352];

	if (j->next_fd < 0)
		return;
	close(j->next_fd);
	j->next_fd = -1;
	path_of(j, next_name, path);
	unlink(path);
}

/* A journal that lacks one turn would bring back a history that lacks it: better none. Cutting needs no room. */
static void fail(struct session_journal *j, const char *what)
{
	u64 now = clock_now_ns();

	if (!j->failed || now - j->warned_ns > RETRY_NS) {
		LOG_WARN("SESSION_JOURNAL_FAILED",
			 "dir=\"%s\" reason=\"%s: %s\" effect=\"sessions do not outlive this process until it can be "
			 "written again\"",
			 j->dir, what, strerror(errno));
		j->warned_ns = now;
	}
	j->failed = true;
	j->retry_ns = now + RETRY_NS;
	stop_rewrite(j);
	if (j->fd >= 0 && ftruncate(j->fd, SESSION_RECORD_HEADER_BYTES) == 0)
		j->bytes = SESSION_RECORD_HEADER_BYTES;
}

static void append(struct session_journal *j)
{
	u64 begin = clock_now_ns();

	if (j->failed)
		return;
	if (!buf_ok(&j->record)) {
		errno = ENOMEM;
		fail(j, "no memory for a record");
		return;
	}
	if (!write_all(j->fd, j->record.data, j->record.bytes)) {
		fail(j, "a write failed");
		return;
	}
	j->bytes += j->record.bytes;
	if (j->next_fd >= 0 && !write_all(j->next_fd, j->record.data, j->record.bytes))
		stop_rewrite(j);
	else
		j->next_bytes += j->record.bytes;
	u64 ns = clock_now_ns() - begin;
	if (ns > j->write_ns_max)
		j->write_ns_max = ns;
}

/* ---------------------------------------------------------------- sink */

static void on_begun(void *ctx, const struct session *s)
{
	struct session_journal *j = ctx;

	buf_clear(&j->record);
	session_record_put(&j->record, j->fingerprint, SESSION_RECORD_BEGUN, s, NULL, 0);
	append(j);
}

static void on_ended(void *ctx, const struct session *s, const u32 *tokens, u32 count)
{
	struct session_journal *j = ctx;

	buf_clear(&j->record);
	session_record_put(&j->record, j->fingerprint, SESSION_RECORD_ENDED, s, tokens, count);
	append(j);
}

static void on_dropped(void *ctx, const struct session *s, enum session_end why)
{
	struct session_journal *j = ctx;

	buf_clear(&j->record);
	session_record_put_dropped(&j->record, j->fingerprint, s, why);
	append(j);
}

/* Whole, as a state: a second end of one turn would be taken for a sign that a record is missing. */
static void on_changed(void *ctx, const struct session *s)
{
	struct session_journal *j = ctx;

	buf_clear(&j->record);
	session_record_put_state(&j->record, j->fingerprint, j->sessions, s);
	append(j);
}

/* ---------------------------------------------------------------- rewriting */

static bool begin_rewrite(struct session_journal *j)
{
	char path[4352];

	path_of(j, next_name, path);
	j->next_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->next_fd < 0)
		return false;
	buf_clear(&j->record);
	session_record_header(&j->record, j->fingerprint);
	session_record_put_gone(&j->record, j->fingerprint, j->sessions);
	j->next_slot = 0;
	j->next_bytes = j->record.bytes;
	return buf_ok(&j->record) && write_all(j->next_fd, j->record.data, j->record.bytes);
}

/* Whole sessions, until a piece is full. A turn that comes meanwhile is written into both files: in the new one a later
 * state of the whole session covers it, or it goes on behind an earlier one. */
static bool write_piece(struct session_journal *j)
{
	struct sessions *ss = j->sessions;

	buf_clear(&j->record);
	while (j->next_slot < ss->config.session_max && j->record.bytes < PIECE_BYTES) {
		const struct session *s = &ss->slots[j->next_slot++];
		if (s->name[0])
			session_record_put_state(&j->record, j->fingerprint, ss, s);
	}
	j->next_bytes += j->record.bytes;
	return buf_ok(&j->record) && write_all(j->next_fd, j->record.data, j->record.bytes);
}

static bool finish_rewrite(struct session_journal *j)
{
	char from[4352], to[4352];

	path_of(j, next_name, from);
	path_of(j, file_name, to);
	if (rename(from, to))
		return false;
	if (j->fd >= 0)
		close(j->fd);
	j->fd = j->next_fd;
	j->next_fd = -1;
	j->bytes = j->next_bytes;
	j->next_minimum = j->bytes * GROWTH > MINIMUM_BYTES ? j->bytes * GROWTH : MINIMUM_BYTES;
	if (j->failed)
		LOG_INFO("SESSION_JOURNAL_BACK", "dir=\"%s\" bytes=%" PRIu64, j->dir, j->bytes);
	j->failed = false;
	return true;
}

/* One piece, or the end. */
static void rewrite_step(struct session_journal *j)
{
	bool ok = j->next_fd >= 0 || begin_rewrite(j);

	if (ok)
		ok = write_piece(j);
	if (ok && j->next_slot == j->sessions->config.session_max)
		ok = finish_rewrite(j);
	if (ok)
		return;
	if (j->failed)
		fail(j, "it cannot be rewritten");
	else
		stop_rewrite(j); /* the old file is whole; it goes on growing for a while */
	j->next_minimum = j->bytes + MINIMUM_BYTES;
}

void session_journal_tick(struct session_journal *j, u64 now_ns)
{
	if (!j->sessions)
		return;
	bool due = j->failed ? now_ns >= j->retry_ns : j->bytes >= j->next_minimum;

	/* With a broken file nothing is lost by writing all pieces in a row: they are the first ones. */
	for (u32 i = 0; (j->next_fd >= 0 || due) && i < 4; i++) {
		rewrite_step(j);
		due = false;
	}
}

/* ---------------------------------------------------------------- life */

static enum err open_lock(struct session_journal *j, struct err_msg *em)
{
	char path[4352];

	if (mkdir(j->dir, 0700) && errno != EEXIST)
		return err_set(em, ERR_IO, "session directory %s: %s; name a writable one with --session-dir", j->dir,
			       strerror(errno));
	path_of(j, lock_name, path);
	j->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->lock_fd < 0)
		return err_set(em, ERR_IO, "session directory %s: %s; name a writable one with --session-dir", j->dir,
			       strerror(errno));
	if (flock(j->lock_fd, LOCK_EX | LOCK_NB))
		return err_set(em, ERR_BUSY, "session directory %s: another engine uses it", j->dir);
	return ERR_OK;
}

static enum err open_file(struct session_journal *j, struct err_msg *em)
{
	char path[4352];
	struct stat st;

	path_of(j, next_name, path);
	unlink(path); /* of a life that ended while it was rewritten */
	path_of(j, file_name, path);
	j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->fd < 0 || fstat(j->fd, &st))
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	if (st.st_size < SESSION_RECORD_HEADER_BYTES) {
		if (ftruncate(j->fd, 0))
			return err_set(em, ERR_IO, "%s cannot be written: %s", path, strerror(errno));
		buf_clear(&j->record);
		session_record_header(&j->record, j->fingerprint);
		if (!buf_ok(&j->record) || !write_all(j->fd, j->record.data, j->record.bytes))
			return err_set(em, ERR_IO, "%s cannot be written: %s", path, strerror(errno));
		j->bytes = j->record.bytes;
		return ERR_OK;
	}
	struct session_restore r;
	enum err e = session_records_read(j->fd, path, j->fingerprint, j->sessions, &r, em);
	if (e)
		return e;
	if (r.good_bytes < (u64)st.st_size && ftruncate(j->fd, (off_t)r.good_bytes))
		return err_set(em, ERR_IO, "%s cannot be cut to what is sound: %s", path, strerror(errno));
	if (r.lost_bytes)
		LOG_WARN("SESSION_JOURNAL_DAMAGED", "file=\"%s\" lost_bytes=%" PRIu64 " records=%u dropped_sessions=%u",
			 path, r.lost_bytes, r.records, r.dropped);
	j->bytes = r.good_bytes;
	return ERR_OK;
}

/* A disk without room for a few blocks is found now, not at the first turn. */
static enum err check_room(struct session_journal *j, struct err_msg *em)
{
	static const char zeros[4096];
	off_t end = lseek(j->fd, 0, SEEK_END);

	if (end < 0 || !write_all(j->fd, zeros, sizeof(zeros)) || ftruncate(j->fd, end))
		return err_set(em, ERR_IO, "session directory %s cannot be written: %s; make room, or name another one with "
					   "--session-dir",
			       j->dir, strerror(errno));
	return ERR_OK;
}

enum err session_journal_open(struct session_journal *j, const char *dir, u64 fingerprint, struct sessions *sessions,
			      struct err_msg *em)
{
	*j = (struct session_journal){.fingerprint = fingerprint,
				      .sessions = sessions,
				      .lock_fd = -1,
				      .fd = -1,
				      .next_fd = -1,
				      .next_minimum = MINIMUM_BYTES};
	if (snprintf(j->dir, sizeof(j->dir), "%s", dir) >= (int)sizeof(j->dir))
		return err_set(em, ERR_TOO_LONG, "the path of the session directory is longer than %zu bytes",
			       sizeof(j->dir) - 1);
	enum err e = open_lock(j, em);
	if (!e)
		e = open_file(j, em);
	if (!e)
		e = check_room(j, em);
	if (e) {
		session_journal_close(j);
		return e;
	}
	sessions->sink = (struct sessions_sink){j, on_begun, on_ended, on_dropped, on_changed};
	return ERR_OK;
}

void session_journal_close(struct session_journal *j)
{
	if (!j->sessions)
		return;
	j->sessions->sink = (struct sessions_sink){0};
	stop_rewrite(j);
	if (j->fd >= 0)
		close(j->fd);
	if (j->lock_fd >= 0)
		close(j->lock_fd);
	buf_fini(&j->record);
	*j = (struct session_journal){.lock_fd = -1, .fd = -1, .next_fd = -1};
}
