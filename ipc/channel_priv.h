/* The inside of a channel, shared by channel.c (opening, sending) and channel_recv.c (receiving, greeting). */
#ifndef TERCET_IPC_CHANNEL_PRIV_H
#define TERCET_IPC_CHANNEL_PRIV_H

#include <pthread.h>

#include "ipc/ipc_priv.h"

struct ipc_context {
	void *zmq;
	/* curve.c: who may connect with which key; belongs to its thread while that runs. */
	void *gate;
	bool gate_runs;
	pthread_t gate_thread;
	u8 gate_key[32];
	u32 channels; /* open */
	u32 monitors; /* ever made */
};

struct ipc_channel {
	struct ipc_context *ctx;
	void *socket;
	void *monitor; /* connection events of a DEALER or PUSH; NULL elsewhere */
	int fd;
	int monitor_fd;
	enum ipc_pattern pattern;
	char name[32];
	char process[64];
	u64 frame_bytes_max;
	u64 epoch;
	enum ipc_role role;
	u32 rank;
	u64 client_id;

	struct ipc_peers *peers;       /* ROUTER */
	struct ipc_peer_state single;  /* everything else */
	u32 handshakes;                /* connections made so far */
	bool broken;                   /* an established connection broke; not reported yet */

	struct buf out;                /* the frame being sent by ipc_send */
	struct buf greeting;           /* HELLO and ERROR frames, made while `out` may be in use */
	struct ipc_scratch scratch;
	u64 log_since_ns;              /* begin of the second that log_count and log_muted belong to */
	u32 log_count;
	u32 log_muted;
	bool held;                     /* the message behind a gap, due at the next ipc_recv */
	ipc_peer held_from;
	struct ipc_msg held_msg;
	struct ipc_recorder *recorder;
};

/* Numbers and sends one frame. ERR_BUSY, ERR_GONE (a ROUTER's peer is forgotten then), ERR_IO. */
MUST_CHECK enum err ipc_channel_send_numbered(struct ipc_channel *ch, struct ipc_peer_state *peer, char *frame,
					      size_t bytes);
/* Sends our HELLO if it is due. ERR_BUSY: still due. */
MUST_CHECK enum err ipc_channel_send_hello(struct ipc_channel *ch, struct ipc_peer_state *peer);
/* PUB: every subscriber that came since the last call makes a HELLO go out to all. */
void ipc_channel_welcome_subscribers(struct ipc_channel *ch);

/* curve.c: sets the socket up for its next endpoint. False with errno. */
MUST_CHECK bool ipc_curve_use(void *socket, const struct ipc_curve *curve, const char *endpoint, bool server);
/* The context's sockets take connections with `key` only, where they ask for keys at all. ERR_IO, ERR_NO_MEMORY. */
MUST_CHECK enum err ipc_gate_start(struct ipc_context *ctx, const u8 key[32], struct err_msg *em);
/* Once the context is terminated. */
void ipc_gate_stop(struct ipc_context *ctx);

/* DEALER, PUSH: takes notice of connections that came or went; a new one makes our HELLO due. */
void ipc_channel_read_monitor(struct ipc_channel *ch);

#endif
