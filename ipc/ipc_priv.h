/* Shared by the files of ipc/ and by its tests: the schema as data, and what the loop needs of a channel. */
#ifndef TERCET_IPC_IPC_PRIV_H
#define TERCET_IPC_IPC_PRIV_H

#include "ipc/ipc.h"

/* ---------------------------------------------------------------- the schema as data (schema.c) */

#define IPC_FIELD_TYPES(X) X(u8) X(u16) X(u32) X(u64) X(i32) X(i64) X(f32) X(f64)

enum ipc_field_type {
#define IPC_FIELD_TYPE_ENUM(type) IPC_FIELD_##type,
	IPC_FIELD_TYPES(IPC_FIELD_TYPE_ENUM)
#undef IPC_FIELD_TYPE_ENUM
};

struct ipc_field {
	const char *name;
	const char *type_name; /* "u32" */
	u8 type;               /* enum ipc_field_type */
	u8 bytes;              /* of one element */
	bool array;
	u32 max;          /* elements of an array */
	u32 offset;       /* in the message's struct: the value, or the pointer of an array */
	u32 count_offset; /* in the message's struct: element count of an array */
};

struct ipc_message_info {
	u32 number;
	const char *name; /* "STEP" */
	const struct ipc_field *fields;
	u32 field_count;
};

enum { IPC_ENVELOPE_FIELDS = 3 }; /* number, sequence, epoch */

enum { IPC_NUMBER_MAX = 127 }; /* a message number is one byte on the wire */

/* NULL: no message has this number. */
const struct ipc_message_info *ipc_message_info(u32 number);

/* Every member of the union of struct ipc_msg begins here. */
static inline char *ipc_msg_body(struct ipc_msg *msg)
{
	return (char *)&msg->hello;
}

static inline const char *ipc_msg_body_const(const struct ipc_msg *msg)
{
	return (const char *)&msg->hello;
}

/* ---------------------------------------------------------------- codec */

struct ipc_envelope {
	u32 type;
	u64 sequence;
	u64 epoch;
	/* Of a HELLO; 0 otherwise. They come first in it in every protocol version. */
	u32 version;
	u64 schema_hash;
};
/* Reads the beginning of a frame only. ERR_FORMAT. */
MUST_CHECK enum err ipc_peek(const char *frame, size_t bytes, struct ipc_envelope *out, struct err_msg *em);

/* Overwrites the epoch of an encoded message in place. */
void ipc_patch_epoch(char *frame, size_t bytes, u64 epoch);

/* ---------------------------------------------------------------- channels */

const char *ipc_channel_name(const struct ipc_channel *ch);
/* Logs how many lines were muted once their second is over. True: some are still to be told. */
bool ipc_channel_log_muted(struct ipc_channel *ch, u64 now_ns);

/* What a ROUTER knows of a peer, and the single counterpart of every other pattern. */
struct ipc_peer_state {
	u64 generation;   /* with the index it makes the handle */
	u64 sent;         /* sequence of the last message sent */
	u64 received;     /* sequence of the last message received */
	u64 heard;        /* counts up with every message of the channel: the least is the one to forget */
	bool in_use;
	bool greeted;     /* its HELLO was good */
	bool member;      /* of the engine itself, not a client */
	bool told;        /* it got our ERROR about what came instead of a good HELLO */
	bool hello_due;   /* our HELLO is still to be sent */
	u8 id_bytes;
	u8 id[255];       /* ZeroMQ routing id */
};

enum { IPC_PEERS_MAX = 4096 };

struct ipc_peers;
MUST_CHECK enum err ipc_peers_create(struct ipc_peers **out);
void ipc_peers_destroy(struct ipc_peers **peers);
/* The peer with this routing id, made when unknown. When the table is full, one goes: strangers before clients, clients before
 * processes of the engine, of each kind the one not heard of for longest. */
struct ipc_peer_state *ipc_peers_take(struct ipc_peers *peers, const u8 *id, size_t id_bytes);
/* NULL: nobody (any more) has this handle. */
struct ipc_peer_state *ipc_peers_find(struct ipc_peers *peers, ipc_peer handle);
ipc_peer ipc_peers_handle(const struct ipc_peers *peers, const struct ipc_peer_state *peer);
void ipc_peers_drop(struct ipc_peers *peers, struct ipc_peer_state *peer);

/* ---------------------------------------------------------------- documentation (print.c) */

/* The part of docs/PROTOCOL.md that lists the messages of clients. */
void ipc_print_client_docs(FILE *out);

/* ---------------------------------------------------------------- recordings (record.c) */

struct ipc_recorder;
/* Begins DIR/PROCESS.CHANNEL.msgs. ERR_IO names the path. */
MUST_CHECK enum err ipc_recorder_create(struct ipc_recorder **out, const char *dir, const char *process,
					const char *channel, struct err_msg *em);
void ipc_recorder_destroy(struct ipc_recorder **r);
/* One frame. A full disk is logged once and ends the recording. NULL `r`: nothing. */
void ipc_recorder_add(struct ipc_recorder *r, bool sent, u64 peer, const char *frame, size_t bytes);

#endif
