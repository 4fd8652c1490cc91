/* Owns the requests that wait for the end of their session's turn. Runs in the scheduler's I/O shell; never decides. */
#include "proc_scheduler/parked.h"

#include <string.h>

#include "common/assert.h"

static const u64 BYTES_MAX = 16u << 20, NS_PER_MS = 1000000;

void parked_fini(struct parked *p)
{
	while (p->count)
		parked_remove(p, p->count - 1);
	ipc_scratch_fini(&p->scratch);
}

bool parked_add(struct parked *p, ipc_peer from, const struct ipc_msg *msg, u64 now_ns)
{
	struct buf frame = {0};

	ASSERT(msg->type == IPC_TYPE_SUBMIT);
	if (p->count == PARKED_MAX)
		return false;
	ipc_encode(msg, &frame);
	if (!buf_ok(&frame) || p->bytes + frame.bytes > BYTES_MAX) {
		buf_fini(&frame);
		return false;
	}
	p->items[p->count++] = (struct parked_item){.from = from,
						    .client_id = msg->submit.client_id,
						    .req_id = msg->submit.req_id,
						    .due_ns = now_ns + PARKED_MS * NS_PER_MS,
						    .frame = frame};
	p->bytes += frame.bytes;
	return true;
}

bool parked_get(struct parked *p, u32 index, struct ipc_msg *msg)
{
	const struct buf *frame = &p->items[index].frame;

	ASSERT(index < p->count);
	return ipc_decode(frame->data, frame->bytes, &p->scratch, msg, NULL) == ERR_OK;
}

void parked_remove(struct parked *p, u32 index)
{
	ASSERT(index < p->count);
	p->bytes -= p->items[index].frame.bytes;
	buf_fini(&p->items[index].frame);
	p->count--;
	memmove(&p->items[index], &p->items[index + 1], (p->count - index) * sizeof(p->items[0]));
}

u32 parked_find(const struct parked *p, u64 client_id, u64 req_id)
{
	for (u32 i = 0; i < p->count; i++)
		if (p->items[i].client_id == client_id && p->items[i].req_id == req_id)
			return i;
	return PARKED_MAX;
}

void parked_forget_client(struct parked *p, u64 client_id)
{
	for (u32 i = p->count; i-- > 0;)
		if (p->items[i].client_id == client_id)
			parked_remove(p, i);
}
