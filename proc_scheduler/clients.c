/* Owns the table of clients; runs in the scheduler's I/O shell. Never reads the clock, never sends: who is
 * silent for too long is for the shell to end. */
#include "proc_scheduler/clients.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum err clients_init(struct clients *c, u64 secret)
{
	memset(c, 0, sizeof(*c));
	c->slots = calloc(CLIENTS_MAX, sizeof(*c->slots));
	if (!c->slots)
		return ERR_NO_MEMORY;
	enum err e = map_init(&c->by_id, CLIENTS_MAX, secret);
	if (e)
		clients_fini(c);
	return e;
}

void clients_fini(struct clients *c)
{
	free(c->slots);
	map_fini(&c->by_id);
	memset(c, 0, sizeof(*c));
}

static struct client *find(const struct clients *c, u64 id)
{
	u32 i;

	return map_get(&c->by_id, id, &i) ? &c->slots[i] : NULL;
}

static enum err add(struct clients *c, u64 id, struct client **out)
{
	u32 i = 0;

	if (c->count == CLIENTS_MAX)
		return ERR_BUSY;
	while (c->slots[i].id)
		i++;
	enum err e = map_put(&c->by_id, id, i);
	if (e)
		return e;
	c->slots[i].id = id;
	c->count++;
	*out = &c->slots[i];
	return ERR_OK;
}

enum err clients_greet(struct clients *c, u64 id, ipc_peer peer, u64 now_ns)
{
	struct client *client = find(c, id);

	if (id == 0)
		return ERR_INVALID;
	if (!client) {
		enum err e = add(c, id, &client);
		if (e)
			return e;
	}
	client->peer = peer;
	client->heard_ns = now_ns;
	return ERR_OK;
}

enum err clients_heard(struct clients *c, u64 id, ipc_peer peer, u64 now_ns)
{
	struct client *client = find(c, id);

	if (client && client->peer.v != peer.v)
		return ERR_DENIED;
	return clients_greet(c, id, peer, now_ns);
}

void clients_forget(struct clients *c, u64 id)
{
	struct client *client = find(c, id);

	if (!client)
		return;
	bool there = map_remove(&c->by_id, id);
	ASSERT(there);
	*client = (struct client){0};
	c->count--;
}

void clients_mark_busy(struct clients *c, u64 id)
{
	struct client *client = find(c, id);

	if (client)
		client->busy = true;
}

bool clients_forget_idle(struct clients *c)
{
	struct client *idlest = NULL;

	for (u32 i = 0; i < CLIENTS_MAX; i++) {
		struct client *client = &c->slots[i];
		if (client->id && !client->busy && (!idlest || client->heard_ns < idlest->heard_ns))
			idlest = client;
		client->busy = false;
	}
	if (idlest)
		clients_forget(c, idlest->id);
	return idlest != NULL;
}

const struct client *clients_find_silent(const struct clients *c, u64 before_ns)
{
	for (u32 i = 0; i < CLIENTS_MAX && c->count; i++)
		if (c->slots[i].id && c->slots[i].heard_ns < before_ns)
			return &c->slots[i];
	return NULL;
}
