/* Owns what is kept for the clients of the output socket; runs in the detokenizer. Never sends:
 * output_socket.c does. Memory of a client is bounded by --output-retention: sent chunks give way, unsent
 * ones are the end of it. */
#include "proc_detok/clients.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/assert.h"

static const u64 LAST_CHUNK_MAX = UINT64_MAX / 2;

enum err clients_init(struct clients *cs, const struct clients_config *config)
{
	*cs = (struct clients){.config = *config};
	cs->items = calloc(config->clients_max, sizeof(*cs->items));
	if (!cs->items || map_init(&cs->by_id, config->clients_max, config->secret) != ERR_OK) {
		clients_fini(cs);
		return ERR_NO_MEMORY;
	}
	return ERR_OK;
}

void clients_fini(struct clients *cs)
{
	for (u32 i = 0; i < cs->used; i++)
		frame_ring_fini(&cs->items[i].ring);
	free(cs->items);
	map_fini(&cs->by_id);
	*cs = (struct clients){0};
}

struct client *clients_find(struct clients *cs, u64 id)
{
	u32 index;
	return map_get(&cs->by_id, id, &index) ? &cs->items[index] : NULL;
}

void clients_remove(struct clients *cs, struct client *c)
{
	ASSERT(c->state != CLIENT_NONE);
	map_remove(&cs->by_id, c->id);
	frame_ring_fini(&c->ring);
	*c = (struct client){0};
}

static struct client *client_add(struct clients *cs, u64 id, u64 next_chunk)
{
	u32 index = 0;
	while (index < cs->used && cs->items[index].state != CLIENT_NONE)
		index++;
	if (index == cs->config.clients_max || map_put(&cs->by_id, id, index) != ERR_OK)
		return NULL;
	if (index == cs->used)
		cs->used++;
	struct client *c = &cs->items[index];
	*c = (struct client){.id = id, .send = next_chunk};
	frame_ring_init(&c->ring, next_chunk);
	return c;
}

/* What attaching means for a client that is known. */
static enum err attach_known(struct clients *cs, struct client *c, u64 last_chunk, struct err_msg *em)
{
	if (c->state == CLIENT_CLOSED) {
		enum err e = err_set(em, ERR_GONE,
				     "the client was closed: %s; attach with last_chunk 0 to begin anew",
				     c->close_text);
		clients_remove(cs, c);
		return e;
	}
	if (last_chunk >= c->ring.next)
		return err_set(em, ERR_INVALID, "chunk %llu was never sent, the newest is %llu",
			       (unsigned long long)last_chunk, (unsigned long long)c->ring.next - 1);
	if (last_chunk > 0 && last_chunk + 1 < c->ring.first) {
		enum err e = err_set(
			em, ERR_GONE,
			"chunks %llu to %llu are no longer kept (see --output-retention); attach with "
			"last_chunk 0 to begin anew",
			(unsigned long long)last_chunk + 1, (unsigned long long)c->ring.first - 1);
		clients_remove(cs, c);
		return e;
	}
	if (last_chunk == 0 && c->ring.first > 1)
		frame_ring_release(&c->ring, c->ring.next);
	else
		frame_ring_release(&c->ring, last_chunk + 1);
	c->send = c->ring.first;
	c->unsent_bytes = c->ring.bytes;
	return ERR_OK;
}

enum err clients_attach(struct clients *cs, u64 id, u64 last_chunk, u64 peer, struct client_attached *out,
			struct err_msg *em)
{
	ASSERT(peer != 0);
	struct client *c = clients_find(cs, id);
	*out = (struct client_attached){0};
	/* counting on from a number that somebody made up must not wrap around */
	if (last_chunk > LAST_CHUNK_MAX)
		return err_set(em, ERR_INVALID, "last_chunk is %llu; nobody has been sent that many chunks",
			       (unsigned long long)last_chunk);
	if (c && c->peer != peer)
		out->replaced = c->peer;
	if (c && c->state == CLIENT_CLOSED && last_chunk == 0) {
		clients_remove(cs, c);
		c = NULL;
	}
	if (c) {
		enum err e = attach_known(cs, c, last_chunk, em);
		if (e != ERR_OK)
			return e;
	} else {
		c = client_add(cs, id, last_chunk + 1);
		if (!c)
			return err_set(em, ERR_BUSY,
				       "the output socket has %u clients already, more are not possible",
				       cs->config.clients_max);
	}
	c->state = CLIENT_ATTACHED;
	c->peer = peer;
	client_hear(cs, c);
	out->client = c;
	return ERR_OK;
}

void client_hear(struct clients *cs, struct client *c)
{
	c->heard = ++cs->heard;
}

struct client *clients_idlest(struct clients *cs, bool (*busy)(void *ctx, u64 id), void *ctx)
{
	struct client *found = NULL;

	for (u32 i = 0; i < cs->used; i++) {
		struct client *c = &cs->items[i];
		bool nothing_waits = c->state == CLIENT_CLOSED || client_unsent(c) == 0;
		if (c->state != CLIENT_NONE && nothing_waits && (!found || c->heard < found->heard) &&
		    !busy(ctx, c->id))
			found = c;
	}
	return found;
}

void client_ack(struct client *c, u64 chunk)
{
	if (chunk < c->send)
		frame_ring_release(&c->ring, chunk + 1);
}

void client_lost(struct client *c, u64 now_ns)
{
	c->peer = 0;
	if (c->state == CLIENT_CLOSED)
		return;
	c->state = CLIENT_ABSENT;
	c->since_ns = now_ns;
}

enum err client_keep(const struct clients *cs, struct client *c, const char *frame, u32 bytes, u64 now_ns)
{
	u64 limit = cs->config.retention_bytes;

	ASSERT(c->state == CLIENT_ATTACHED || c->state == CLIENT_ABSENT);
	while (c->ring.first < c->send && c->ring.bytes + bytes > limit)
		frame_ring_release(&c->ring, c->ring.first + 1);
	/* one chunk is always possible, however small the limit */
	if (c->unsent_bytes > 0 && c->unsent_bytes + bytes > limit)
		return ERR_TOO_LONG;
	if (!frame_ring_push(&c->ring, frame, bytes, now_ns))
		return ERR_NO_MEMORY;
	c->unsent_bytes += bytes;
	return ERR_OK;
}

char *client_next_frame(struct client *c, u32 *bytes)
{
	if (c->state != CLIENT_ATTACHED || c->send == c->ring.next)
		return NULL;
	return frame_ring_get(&c->ring, c->send, bytes, NULL);
}

void client_sent(struct client *c)
{
	u32 bytes;
	frame_ring_get(&c->ring, c->send, &bytes, NULL);
	ASSERT(c->unsent_bytes >= bytes);
	c->unsent_bytes -= bytes;
	c->send++;
}

u32 client_unsent(const struct client *c)
{
	return (u32)(c->ring.next - c->send);
}

void client_close(struct client *c, enum err code, const char *text, u64 now_ns)
{
	frame_ring_fini(&c->ring);
	c->state = CLIENT_CLOSED;
	c->close_code = code;
	c->since_ns = now_ns;
	c->unsent_bytes = 0;
	snprintf(c->close_text, sizeof(c->close_text), "%s", text);
}

static void ring_expire(struct client *c, u64 oldest_ns)
{
	while (c->ring.first < c->send && c->ring.first < c->ring.next) {
		u64 made_ns;
		frame_ring_get(&c->ring, c->ring.first, NULL, &made_ns);
		if (made_ns >= oldest_ns)
			break;
		frame_ring_release(&c->ring, c->ring.first + 1);
	}
}

struct client *clients_expire(struct clients *cs, u64 now_ns)
{
	u64 oldest_ns = now_ns > cs->config.retention_ns ? now_ns - cs->config.retention_ns : 0;

	for (u32 i = 0; i < cs->used; i++) {
		struct client *c = &cs->items[i];
		if (c->state == CLIENT_ATTACHED)
			ring_expire(c, oldest_ns);
		else if (c->state != CLIENT_NONE && c->since_ns < oldest_ns)
			return c;
	}
	return NULL;
}
