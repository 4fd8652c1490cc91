/* Owns frames that wait for room in a channel; runs in the scheduler's I/O shell. Never blocks, never
 * reorders the messages of one peer, never grows beyond its bounds. Memory is taken only when a channel is
 * full, which is off the hot path. */
#include "proc_scheduler/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum { BUSY_PEERS_MAX = 16 };

enum err outbox_init(struct outbox *ob, struct ipc_channel *channel, u32 capacity, u64 bytes_max)
{
	*ob = (struct outbox){.channel = channel, .capacity = capacity, .bytes_max = bytes_max};
	ob->items = calloc(capacity, sizeof(*ob->items));
	return ob->items ? ERR_OK : ERR_NO_MEMORY;
}

void outbox_clear(struct outbox *ob)
{
	for (u32 i = 0; i < ob->count; i++)
		free(ob->items[i].frame);
	ob->count = 0;
	ob->bytes = 0;
}

void outbox_fini(struct outbox *ob)
{
	outbox_clear(ob);
	free(ob->items);
	memset(ob, 0, sizeof(*ob));
}

static enum err keep(struct outbox *ob, ipc_peer to, const char *frame, size_t bytes)
{
	if (ob->count == ob->capacity || bytes > ob->bytes_max - ob->bytes)
		return ERR_BUSY;
	char *copy = malloc(bytes);
	if (!copy)
		return ERR_BUSY;
	memcpy(copy, frame, bytes);
	ob->items[ob->count++] = (struct outbox_item){to, (u32)bytes, copy};
	ob->bytes += bytes;
	return ERR_OK;
}

static bool has_waiting(const struct outbox *ob, ipc_peer to)
{
	for (u32 i = 0; i < ob->count; i++)
		if (ob->items[i].to.v == to.v)
			return true;
	return false;
}

enum err outbox_send_frame(struct outbox *ob, ipc_peer to, char *frame, size_t bytes)
{
	enum err e = has_waiting(ob, to) ? ERR_BUSY : ipc_send_frame(ob->channel, to, frame, bytes);

	return e == ERR_BUSY ? keep(ob, to, frame, bytes) : e;
}

enum err outbox_send(struct outbox *ob, ipc_peer to, const struct ipc_msg *msg)
{
	struct buf frame = {0};

	if (!has_waiting(ob, to)) {
		enum err e = ipc_send(ob->channel, to, msg);
		if (e != ERR_BUSY)
			return e;
	}
	ipc_encode(msg, &frame);
	enum err e = buf_ok(&frame) ? keep(ob, to, frame.data, frame.bytes) : ERR_NO_MEMORY;
	buf_fini(&frame);
	return e;
}

struct busy_peers {
	u64 v[BUSY_PEERS_MAX];
	u32 count;
};

static bool is_busy(const struct busy_peers *busy, ipc_peer to)
{
	for (u32 i = 0; i < busy->count; i++)
		if (busy->v[i] == to.v)
			return true;
	return busy->count == BUSY_PEERS_MAX; /* enough for this time */
}

bool outbox_flush(struct outbox *ob)
{
	struct busy_peers busy = {.count = 0};
	u32 kept = 0;

	for (u32 i = 0; i < ob->count; i++) {
		struct outbox_item item = ob->items[i];
		enum err e = ERR_BUSY;
		if (!is_busy(&busy, item.to))
			e = ipc_send_frame(ob->channel, item.to, item.frame, item.bytes);
		if (e == ERR_BUSY) {
			if (!is_busy(&busy, item.to))
				busy.v[busy.count++] = item.to.v;
			ob->items[kept++] = item;
			continue;
		}
		ob->bytes -= item.bytes;
		free(item.frame);
	}
	ob->count = kept;
	return kept == 0;
}
