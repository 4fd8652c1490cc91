/* Message recordings: one file per channel and process, for `tercet trace --messages`. Runs in every process that was
 * asked to record; owns the file. It must never stop a process: a disk that is full ends the recording, nothing else.
 *
 * A file is the line "TERCETMSGS1\n" and then records, all numbers little-endian: u64 time (ns, monotonic clock), u64
 * peer, u32 bytes, u8 1 for sent and 0 for received, 3 bytes 0, then the frame. */
#include "ipc/ipc_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

struct ipc_recorder {
	FILE *file; /* NULL after an error */
	char path[512];
};

enum err ipc_recorder_create(struct ipc_recorder **out, const char *dir, const char *process, const char *channel,
			     struct err_msg *em)
{
	struct ipc_recorder *r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(em, ERR_NO_MEMORY, "no memory for a message recording");
	int n = snprintf(r->path, sizeof(r->path), "%s/%s.%s.msgs", dir, process, channel);
	if (n < 0 || (size_t)n >= sizeof(r->path)) {
		free(r);
		return err_set(em, ERR_TOO_LONG, "the path of the recording directory '%s' is too long", dir);
	}
	r->file = fopen(r->path, "wbe");
	if (!r->file || fputs(IPC_RECORD_MAGIC, r->file) == EOF) {
		enum err e = err_set(em, ERR_IO, "cannot write the recording '%s': %s", r->path, strerror(errno));
		ipc_recorder_destroy(&r);
		return e;
	}
	*out = r;
	return ERR_OK;
}

void ipc_recorder_destroy(struct ipc_recorder **r)
{
	if (!*r)
		return;
	if ((*r)->file)
		fclose((*r)->file);
	free(*r);
	*r = NULL;
}

void ipc_recorder_add(struct ipc_recorder *r, bool sent, u64 peer, const char *frame, size_t bytes)
{
	if (!r || !r->file)
		return;
	struct ipc_record head = {.time_ns = clock_now_ns(), .peer = peer, .bytes = (u32)bytes, .sent = sent};
	if (fwrite(&head, sizeof(head), 1, r->file) == 1 && fwrite(frame, 1, bytes, r->file) == bytes &&
	    fflush(r->file) == 0)
		return;
	LOG_ERROR("RECORDING_ENDED", "path=\"%s\" reason=\"%s\"", r->path, strerror(errno));
	fclose(r->file);
	r->file = NULL;
}

enum err ipc_record_read(FILE *file, struct ipc_record *head, struct buf *frame, struct err_msg *em)
{
	buf_clear(frame);
	size_t n = fread(head, 1, sizeof(*head), file);
	if (n == 0 && !ferror(file))
		return ERR_AGAIN;
	if (n != sizeof(*head))
		return err_set(em, ERR_FORMAT, "the recording ends inside a record");
	if (!buf_reserve(frame, head->bytes))
		return err_set(em, ERR_NO_MEMORY, "no memory for a record of %u bytes", head->bytes);
	if (fread(frame->data, 1, head->bytes, file) != head->bytes)
		return err_set(em, ERR_FORMAT, "the recording ends inside a frame of %u bytes", head->bytes);
	frame->bytes = head->bytes;
	return ERR_OK;
}

enum err ipc_record_begin(FILE *file, struct err_msg *em)
{
	char magic[sizeof(IPC_RECORD_MAGIC) - 1];
	if (fread(magic, 1, sizeof(magic), file) != sizeof(magic) || memcmp(magic, IPC_RECORD_MAGIC, sizeof(magic)))
		return err_set(em, ERR_FORMAT, "no message recording (it does not begin with TERCETMSGS1)");
	return ERR_OK;
}
