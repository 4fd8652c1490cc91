/* The clients of the output socket: who they are, which chunks they may still need, and when one is too slow.
 * Pure: peers are numbers, time is an argument. */
#ifndef TERCET_PROC_DETOK_CLIENTS_H
#define TERCET_PROC_DETOK_CLIENTS_H

#include "common/err.h"
#include "common/map.h"
#include "common/types.h"
#include "proc_detok/frame_ring.h"

enum client_state {
	CLIENT_NONE,
	CLIENT_ATTACHED,
	CLIENT_ABSENT, /* its connection is gone; chunks are kept for it */
	CLIENT_CLOSED, /* its chunks are gone; kept to say why when it comes back */
};

struct client {
	u64 id;
	u64 peer; /* ATTACHED, and CLOSED while it has to be told; 0: nobody */
	enum client_state state;
	u32 close_code; /* CLOSED: enum err */
	char close_text[160];
	u64 since_ns;      /* ABSENT, CLOSED */
	u64 heard;         /* counts up over all clients: the least was not heard of for longest */
	u64 send;          /* number of the next chunk to send */
	u64 unsent_bytes;
	struct frame_ring ring;
};

struct clients_config {
	u32 clients_max;
	u64 retention_bytes;
	u64 retention_ns;
	u64 secret;
};

struct clients {
	struct clients_config config;
	struct client *items;
	u32 used; /* items at and above were never used */
	struct map by_id;
	u64 heard;
};

MUST_CHECK enum err clients_init(struct clients *cs, const struct clients_config *config);
void clients_fini(struct clients *cs);
/* NULL: unknown. Valid until the client is removed. */
struct client *clients_find(struct clients *cs, u64 id);

struct client_attached {
	struct client *client;
	u64 replaced; /* peer that had it before; 0: none, or the same */
};
/* The client is there, on `peer`, and has seen chunks up to `last_chunk`. Chunks behind that are sent
 * (again). A client without memory here goes on with the number behind `last_chunk`; one that comes with 0
 * although it was known begins a new life: it gets what is retained only if that reaches back to chunk 1.
 * ERR_GONE: chunks that it needs are gone, or it was closed; `em` says which, and the client is forgotten.
 * ERR_INVALID: it names a chunk that was never made; nothing changed. ERR_BUSY: too many clients. */
MUST_CHECK enum err clients_attach(struct clients *cs, u64 id, u64 last_chunk, u64 peer, struct client_attached *out,
				   struct err_msg *em);
/* It said something. */
void client_hear(struct clients *cs, struct client *c);
/* Of those with nothing to send the one not heard of for longest; NULL: there is none. `busy` says of
 * whom not. */
struct client *clients_idlest(struct clients *cs, bool (*busy)(void *ctx, u64 id), void *ctx);
/* Chunks up to `chunk` need not be kept. */
void client_ack(struct client *c, u64 chunk);
/* The peer is gone; chunks are kept. */
void client_lost(struct client *c, u64 now_ns);
void clients_remove(struct clients *cs, struct client *c);

/* Keeps the frame of chunk `c->ring.next`. Sent chunks give way above the retention limit. ERR_TOO_LONG: the
 * unsent ones alone are above it: the client is to be closed. ERR_NO_MEMORY. */
MUST_CHECK enum err client_keep(const struct clients *cs, struct client *c, const char *frame, u32 bytes,
				u64 now_ns);
/* The next frame to send; NULL: none. client_sent moves on. */
char *client_next_frame(struct client *c, u32 *bytes);
void client_sent(struct client *c);
u32 client_unsent(const struct client *c);

/* Frees the chunks; the client stays CLOSED until it was told, or came back, or the retention time is over.
 */
void client_close(struct client *c, enum err code, const char *text, u64 now_ns);
/* Forgets chunks older than the retention time that were sent. The first client that has been ABSENT or
 * CLOSED for longer than that, else NULL: the caller removes it and calls again. */
struct client *clients_expire(struct clients *cs, u64 now_ns);

#endif
