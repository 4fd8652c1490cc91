/* One TCP connection between two workers of different nodes: authenticated by the cluster's secret, encrypted, in
 * frames. Both ends make fresh X25519 keys; the keys of the connection are BLAKE2b, under a key derived from the
 * secret, of their shared point and both public keys, one for each direction; every frame is ChaCha20-Poly1305
 * (RFC 8439) with its number as the nonce. So who lacks the secret can neither take part nor read, change, repeat or
 * reorder what passes; a secret that leaks later opens nothing that was recorded.
 *
 * On the wire a frame is its length as u32, little-endian, and so many bytes of ciphertext and tag. */
#ifndef TERCET_PROC_WORKER_NODE_LINK_H
#define TERCET_PROC_WORKER_NODE_LINK_H

#include <stdatomic.h>
#include <sys/socket.h>

#include "common/cluster_secret.h"
#include "common/err.h"
#include "common/types.h"

enum { NODE_LINK_FRAME_MAX = 65536, /* bytes of content in one frame */
       NODE_LINK_TAG = 16,
       NODE_LINK_WIRE_MAX = 4 + NODE_LINK_FRAME_MAX + NODE_LINK_TAG };

struct node_link {
	int fd; /* -1: none; not blocking */
	u8 send_key[32], receive_key[32];
	u64 sent, received; /* frames so far: the next nonces */
	u8 *out;            /* [NODE_LINK_WIRE_MAX], owned */
	u8 *in;             /* [NODE_LINK_WIRE_MAX], owned */
	size_t in_bytes;    /* of a frame that is not whole */
};

/* Takes over `fd` (closed also upon failure) and agrees on keys within `timeout_ms`; one end is the `initiator`.
 * ERR_GONE, ERR_TIMEOUT; ERR_FORMAT: not one of ours; ERR_NO_MEMORY. That both have the same secret shows with the
 * first frame. Blocks. */
MUST_CHECK enum err node_link_open(struct node_link *l, int fd, bool initiator, const u8 secret[CLUSTER_KEY_BYTES],
				   u32 timeout_ms, struct err_msg *em);
void node_link_close(struct node_link *l); /* zeroed with fd -1 accepted */

/* Sends a frame of `head` and, behind it, `bytes` of `data`: NODE_LINK_FRAME_MAX together at most. Waits while the
 * connection is full, looking at `*stop` (may be NULL) ten times a second: not 0 is ERR_ABORTED. ERR_GONE: the
 * connection broke. After an error the link is of no use but to be closed. */
MUST_CHECK enum err node_link_send(struct node_link *l, const void *head, size_t head_bytes, const void *data,
				   size_t bytes, const _Atomic u32 *stop);
/* The next frame's content into `out` (room for NODE_LINK_FRAME_MAX), its length into `*bytes`. Never blocks.
 * ERR_AGAIN: it is not whole yet. ERR_GONE: the other end has closed or the connection broke. ERR_DENIED: it was not
 * made with the same secret, or somebody has changed it. ERR_FORMAT: no frame of ours. */
MUST_CHECK enum err node_link_receive(struct node_link *l, void *out, size_t *bytes);
/* The same, waiting up to `timeout_ms` for it: ERR_TIMEOUT. */
MUST_CHECK enum err node_link_wait(struct node_link *l, void *out, size_t *bytes, u32 timeout_ms);

/* A listening socket on the address (port included); -1 with errno set. */
int node_link_listen(const struct sockaddr *address, socklen_t bytes);
/* A connection to one of the addresses of `host`, made within `timeout_ms`. ERR_NOT_FOUND: the name is unknown;
 * ERR_GONE: nobody listens; ERR_TIMEOUT. The caller owns `*fd`. */
MUST_CHECK enum err node_link_connect(int *fd, const char *host, u32 port, u32 timeout_ms, struct err_msg *em);

#endif
