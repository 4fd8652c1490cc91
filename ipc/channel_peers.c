/* The peers of a ROUTER channel: routing id <-> handle, with the sequence numbers of each. Owns a fixed table; runs
 * in every process that binds a ROUTER. It must never grow: peers come from outside, so when the table is full one is
 * forgotten. One that was forgotten and is there is told so when it speaks, and greets again. */
#include "ipc/ipc_priv.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/map.h"

struct ipc_peers {
	struct ipc_peer_state *states; /* [IPC_PEERS_MAX] */
	struct map by_id;              /* hash of the routing id -> index */
	u64 secret;
	u64 generation; /* of the last peer made */
	u64 heard;      /* counts messages */
	u32 used;       /* states [0, used) were in use at some time */
	u32 free_count;
	u32 free[IPC_PEERS_MAX];
};

enum { HANDLE_INDEX_BITS = 12 };
_Static_assert(1 << HANDLE_INDEX_BITS == IPC_PEERS_MAX, "a handle is generation and index");

enum err ipc_peers_create(struct ipc_peers **out)
{
	struct ipc_peers *peers = calloc(1, sizeof(*peers));
	if (!peers)
		return ERR_NO_MEMORY;
	peers->secret = clock_now_ns() * 0x9e3779b97f4a7c15u;
	peers->states = calloc(IPC_PEERS_MAX, sizeof(*peers->states));
	if (!peers->states || map_init(&peers->by_id, IPC_PEERS_MAX, peers->secret) != ERR_OK) {
		ipc_peers_destroy(&peers);
		return ERR_NO_MEMORY;
	}
	*out = peers;
	return ERR_OK;
}

void ipc_peers_destroy(struct ipc_peers **peers)
{
	if (!*peers)
		return;
	map_fini(&(*peers)->by_id);
	free((*peers)->states);
	free(*peers);
	*peers = NULL;
}

static u64 id_key(const struct ipc_peers *peers, const u8 *id, size_t id_bytes)
{
	return XXH3_64bits_withSeed(id, id_bytes, peers->secret);
}

static u32 standing(const struct ipc_peer_state *peer)
{
	return peer->greeted ? 1 + peer->member : 0;
}

static struct ipc_peer_state *least(struct ipc_peers *peers)
{
	struct ipc_peer_state *found = &peers->states[0];
	for (u32 i = 1; i < IPC_PEERS_MAX; i++) {
		struct ipc_peer_state *peer = &peers->states[i];
		if (standing(peer) < standing(found) ||
		    (standing(peer) == standing(found) && peer->heard < found->heard))
			found = peer;
	}
	return found;
}

static struct ipc_peer_state *take_free(struct ipc_peers *peers)
{
	if (peers->free_count)
		return &peers->states[peers->free[--peers->free_count]];
	if (peers->used < IPC_PEERS_MAX)
		return &peers->states[peers->used++];
	ipc_peers_drop(peers, least(peers));
	return &peers->states[peers->free[--peers->free_count]];
}

struct ipc_peer_state *ipc_peers_take(struct ipc_peers *peers, const u8 *id, size_t id_bytes)
{
	ASSERT(id_bytes <= sizeof(peers->states[0].id));
	u64 key = id_key(peers, id, id_bytes);
	u32 index;
	if (map_get(&peers->by_id, key, &index)) {
		struct ipc_peer_state *known = &peers->states[index];
		if (known->id_bytes == id_bytes && !memcmp(known->id, id, id_bytes)) {
			known->heard = ++peers->heard;
			return known;
		}
		ipc_peers_drop(peers, known); /* two ids with one 64-bit hash: the newer one stays */
	}
	struct ipc_peer_state *peer = take_free(peers);
	*peer = (struct ipc_peer_state){
		.generation = ++peers->generation, .heard = ++peers->heard, .in_use = true, .id_bytes = (u8)id_bytes};
	memcpy(peer->id, id, id_bytes);
	enum err e = map_put(&peers->by_id, key, (u32)(peer - peers->states));
	ASSERT(e == ERR_OK); /* as many keys as states */
	return peer;
}

struct ipc_peer_state *ipc_peers_find(struct ipc_peers *peers, ipc_peer handle)
{
	struct ipc_peer_state *peer = &peers->states[handle.v & (IPC_PEERS_MAX - 1)];
	return peer->in_use && peer->generation == handle.v >> HANDLE_INDEX_BITS ? peer : NULL;
}

ipc_peer ipc_peers_handle(const struct ipc_peers *peers, const struct ipc_peer_state *peer)
{
	return (ipc_peer){peer->generation << HANDLE_INDEX_BITS | (u64)(peer - peers->states)};
}

void ipc_peers_drop(struct ipc_peers *peers, struct ipc_peer_state *peer)
{
	ASSERT(peer->in_use);
	map_remove(&peers->by_id, id_key(peers, peer->id, peer->id_bytes));
	peer->in_use = false;
	peers->free[peers->free_count++] = (u32)(peer - peers->states);
}
