/* Owns which streams belong to which client, which of them have news, and what clients said they hold; runs
 * in the detokenizer. Never decides about a stream's content. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "proc_detok/streams_priv.h"

u32 stream_group_of(struct streams *ss, u64 client_id, u64 now_ns)
{
	u32 index;
	if (map_get(&ss->by_client, client_id, &index))
		return index;
	for (index = 0; index < ss->config.clients_max; index++)
		if (!ss->groups[index].used)
			break;
	if (index == ss->config.clients_max || map_put(&ss->by_client, client_id, index) != ERR_OK)
		return NO_INDEX;
	ss->groups[index] = (struct stream_group){
		.client_id = client_id,
		.since_ns = now_ns,
		.head = NO_INDEX,
		.news_head = NO_INDEX,
		.news_tail = NO_INDEX,
		.next = NO_INDEX,
		.used = true,
	};
	return index;
}

void stream_group_add(struct streams *ss, u32 group, u32 slot)
{
	struct stream_group *g = &ss->groups[group];
	struct stream_slot *t = &ss->slots[slot];

	t->group = group;
	t->prev = NO_INDEX;
	t->next = g->head;
	if (g->head != NO_INDEX)
		ss->slots[g->head].prev = slot;
	g->head = slot;
}

static void news_unlink(struct streams *ss, struct stream_group *g, u32 slot)
{
	u32 before = NO_INDEX;
	for (u32 i = g->news_head; i != slot; i = ss->slots[i].news_next)
		before = i;
	u32 after = ss->slots[slot].news_next;
	if (before == NO_INDEX)
		g->news_head = after;
	else
		ss->slots[before].news_next = after;
	if (g->news_tail == slot)
		g->news_tail = before;
	ss->slots[slot].has_news = false;
}

void stream_group_remove(struct streams *ss, u32 slot)
{
	struct stream_slot *t = &ss->slots[slot];
	struct stream_group *g = &ss->groups[t->group];

	if (t->has_news)
		news_unlink(ss, g, slot);
	if (t->prev != NO_INDEX)
		ss->slots[t->prev].next = t->next;
	else
		g->head = t->next;
	if (t->next != NO_INDEX)
		ss->slots[t->next].prev = t->prev;
	g->bytes -= t->bytes;
	t->bytes = 0;
	t->group = NO_INDEX;
}

/* Lists the group among those that may send, when it has something and may. */
static void group_queue(struct streams *ss, u32 group)
{
	struct stream_group *g = &ss->groups[group];
	if (g->queued || !g->ready || g->hold || g->news_head == NO_INDEX)
		return;
	g->queued = true;
	g->next = NO_INDEX;
	if (ss->groups_head == NO_INDEX)
		ss->groups_head = group;
	else
		ss->groups[ss->groups_tail].next = group;
	ss->groups_tail = group;
}

static void group_dequeue_first(struct streams *ss)
{
	struct stream_group *g = &ss->groups[ss->groups_head];
	ss->groups_head = g->next;
	g->next = NO_INDEX;
	g->queued = false;
}

void stream_group_news(struct streams *ss, u32 slot)
{
	struct stream_slot *t = &ss->slots[slot];
	struct stream_group *g = &ss->groups[t->group];
	u32 bytes = (u32)pending_bytes(&t->s.pending);

	g->bytes += (u64)bytes - t->bytes;
	t->bytes = bytes;
	if (!t->has_news) {
		t->has_news = true;
		t->news_next = NO_INDEX;
		if (g->news_head == NO_INDEX)
			g->news_head = slot;
		else
			ss->slots[g->news_tail].news_next = slot;
		g->news_tail = slot;
	}
	group_queue(ss, t->group);
}

void stream_group_claim(struct streams *ss, u32 slot)
{
	struct stream *s = &ss->slots[slot].s;
	const struct stream_group *g = &ss->groups[ss->slots[slot].group];
	u32 low = 0, high = g->claim_count;

	while (low < high) {
		u32 mid = low + (high - low) / 2;
		if (g->claims[mid].req_id < s->req_id)
			low = mid + 1;
		else
			high = mid;
	}
	if (low < g->claim_count && g->claims[low].req_id == s->req_id)
		stream_set_base(s, g->claims[low].tokens);
}

static int claims_compare(const void *a, const void *b)
{
	u64 x = ((const struct stream_claim *)a)->req_id, y = ((const struct stream_claim *)b)->req_id;
	return (x > y) - (x < y);
}

static enum err claims_set(struct stream_group *g, const struct ipc_attach *attach)
{
	u32 count = attach->live_req_id_count;
	if (attach->live_token_count_count < count)
		count = attach->live_token_count_count;
	free(g->claims);
	g->claims = NULL;
	g->claim_count = 0;
	if (count == 0)
		return ERR_OK;
	g->claims = malloc(count * sizeof(*g->claims));
	if (!g->claims)
		return ERR_NO_MEMORY;
	for (u32 i = 0; i < count; i++)
		g->claims[i] = (struct stream_claim){attach->live_req_id[i], attach->live_token_count[i]};
	qsort(g->claims, count, sizeof(*g->claims), claims_compare);
	g->claim_count = count;
	return ERR_OK;
}

enum err streams_client_ready(struct streams *ss, const struct ipc_attach *attach)
{
	u32 group = stream_group_of(ss, attach->client_id, 0);
	if (group == NO_INDEX)
		return ERR_BUSY;
	struct stream_group *g = &ss->groups[group];
	/* Claims speak of what other processes gave: a client that came back to this one holds what its
	 * chunks say. */
	if (!g->ready) {
		enum err e = claims_set(g, attach);
		if (e != ERR_OK)
			return e;
		for (u32 i = g->head; i != NO_INDEX; i = ss->slots[i].next)
			stream_group_claim(ss, i);
	}
	g->ready = true;
	g->hold = false;
	group_queue(ss, group);
	return ERR_OK;
}

bool streams_client_busy(const struct streams *ss, u64 client_id)
{
	u32 group;
	return map_get(&ss->by_client, client_id, &group) && ss->groups[group].head != NO_INDEX;
}

void streams_client_hold(struct streams *ss, u64 client_id, bool hold)
{
	u32 group;
	if (!map_get(&ss->by_client, client_id, &group))
		return;
	ss->groups[group].hold = hold;
	group_queue(ss, group);
}

u64 streams_client_bytes(const struct streams *ss, u64 client_id)
{
	u32 group;
	return map_get(&ss->by_client, client_id, &group) ? ss->groups[group].bytes : 0;
}

static void group_dequeue(struct streams *ss, u32 group)
{
	if (!ss->groups[group].queued)
		return;
	u32 before = NO_INDEX;
	for (u32 i = ss->groups_head; i != group; i = ss->groups[i].next)
		before = i;
	if (before == NO_INDEX) {
		group_dequeue_first(ss);
		return;
	}
	ss->groups[before].next = ss->groups[group].next;
	if (ss->groups_tail == group)
		ss->groups_tail = before;
	ss->groups[group].queued = false;
}

void streams_client_drop(struct streams *ss, u64 client_id)
{
	u32 group;
	if (!map_get(&ss->by_client, client_id, &group))
		return;
	struct stream_group *g = &ss->groups[group];
	u32 next;
	for (u32 i = g->head; i != NO_INDEX; i = next) {
		next = ss->slots[i].next;
		if (ss->slots[i].s.state != STREAM_ENDED) {
			stream_end(&ss->slots[i].s, FINISH_ABORT, NULL, true);
			stream_slot_ended(ss, i);
			/* nobody was told of this end: should the client ask again, it is a new request */
			map_remove(&ss->ended_by_request,
				   stream_request_key(ss, client_id, ss->slots[i].s.req_id));
		}
		stream_slot_release(ss, i);
	}
	ASSERT(g->head == NO_INDEX);
	group_dequeue(ss, group);
	free(g->claims);
	*g = (struct stream_group){0};
	map_remove(&ss->by_client, client_id);
}

bool streams_client_absent(const struct streams *ss, u64 since_ns, u64 bytes_max, u64 *client_id)
{
	for (u32 i = 0; i < ss->config.clients_max; i++) {
		const struct stream_group *g = &ss->groups[i];
		if (!g->used || g->ready || (g->since_ns >= since_ns && g->bytes <= bytes_max))
			continue;
		*client_id = g->client_id;
		return true;
	}
	return false;
}

/* Fills the writer from the group's news. */
static void group_write(struct streams *ss, struct stream_group *g)
{
	while (g->news_head != NO_INDEX) {
		u32 slot = g->news_head;
		struct stream_slot *t = &ss->slots[slot];
		enum chunk_added added = chunk_writer_add(&ss->writer, &t->s, ss->config.chunk_bytes);
		u32 bytes = (u32)pending_bytes(&t->s.pending);

		g->bytes -= (u64)t->bytes - bytes;
		t->bytes = bytes;
		if (added == CHUNK_PART)
			return;
		g->news_head = t->news_next;
		if (g->news_head == NO_INDEX)
			g->news_tail = NO_INDEX;
		t->has_news = false;
		if (added == CHUNK_ALL && t->s.state == STREAM_ENDED)
			stream_slot_release(ss, slot);
	}
}

bool streams_next_chunk(struct streams *ss, struct ipc_chunk *out)
{
	while (ss->groups_head != NO_INDEX) {
		u32 group = ss->groups_head;
		struct stream_group *g = &ss->groups[group];

		group_dequeue_first(ss);
		if (g->hold)
			continue;
		chunk_writer_clear(&ss->writer);
		group_write(ss, g);
		group_queue(ss, group); /* behind the others, when there is more */
		if (ss->writer.rows == 0)
			continue;
		chunk_writer_message(&ss->writer, g->client_id, out);
		return true;
	}
	return false;
}
