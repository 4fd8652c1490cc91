/* The door of ipc/: messages, bounded channels over ZeroMQ, the event loop, and the handshake with the supervisor.
 * Everything here belongs to one thread. */
#ifndef TERCET_IPC_IPC_H
#define TERCET_IPC_IPC_H

#include <stdio.h>

#include "common/buf.h"
#include "common/cluster_secret.h"
#include "common/err.h"
#include "common/types.h"
#include "ipc/schema.h"

/* ---------------------------------------------------------------- messages */

enum ipc_role { IPC_ROLE_SUPERVISOR = 1, IPC_ROLE_SCHEDULER, IPC_ROLE_WORKER, IPC_ROLE_DETOK, IPC_ROLE_GATEWAY,
		IPC_ROLE_CLIENT };

enum ipc_type {
#define IPC_TYPE_ENUM(number, NAME, name) IPC_TYPE_##NAME = number,
	IPC_MESSAGES(IPC_TYPE_ENUM)
#undef IPC_TYPE_ENUM
};

/* struct ipc_hello, struct ipc_step, ...: a scalar is a member `name`; an array is `const type *name` and
 * `u32 name_count`. Arrays are borrowed: for sending from the caller, after receiving from the channel until its next
 * receive. */
#define IPC_MEMBER_SCALAR(type, name) type name;
#define IPC_MEMBER_ARRAY(type, name, max)                                                                    \
	const type *name;                                                                                    \
	u32 name##_count;
#define IPC_STRUCT(number, NAME, name)                                                                       \
	struct ipc_##name {                                                                                  \
		IPC_##NAME(IPC_MEMBER_SCALAR, IPC_MEMBER_ARRAY)                                              \
	};
IPC_MESSAGES(IPC_STRUCT)
#undef IPC_STRUCT

struct ipc_msg {
	u32 type; /* enum ipc_type */
	u64 sequence;
	u64 epoch;
	union {
#define IPC_UNION(number, NAME, name) struct ipc_##name name;
		IPC_MESSAGES(IPC_UNION)
#undef IPC_UNION
	};
};

/* Hash over every message's number, field names, types and limits. */
u64 ipc_schema_hash(void);
const char *ipc_type_name(u32 type); /* "STEP"; "unknown" */

/* Appends the encoded message. sequence and epoch are written fixed-width (ipc_patch_sequence).
 * ASSERTs that arrays keep to their limits. Fails only as the buffer does. */
void ipc_encode(const struct ipc_msg *msg, struct buf *out);
/* Overwrites the sequence number of an encoded message in place. */
void ipc_patch_sequence(char *frame, size_t bytes, u64 sequence);

/* Aligned memory that decoded arrays live in; reused from message to message. */
struct ipc_scratch {
	char *data;
	size_t capacity;
};
void ipc_scratch_fini(struct ipc_scratch *s);
/* Checks everything (type, field count, bin lengths, limits) before use. ERR_FORMAT / ERR_TOO_LONG with message and
 * field named; ERR_NO_MEMORY. Arrays point into `s`. */
MUST_CHECK enum err ipc_decode(const char *frame, size_t bytes, struct ipc_scratch *s, struct ipc_msg *out,
			       struct err_msg *em);
/* One line a message: name, sequence, epoch, fields; arrays cut after 8 elements unless `whole`. */
void ipc_print(FILE *out, const struct ipc_msg *msg, bool whole);
/* docs/MESSAGES.md. */
void ipc_print_docs(FILE *out);

/* ---------------------------------------------------------------- channels */

/* The largest frame unless a channel is configured otherwise. A larger one makes the transport of its receiver break
 * the connection without a word, so senders refuse it. */
#define IPC_FRAME_BYTES_MAX (64u << 20)

/* A ZeroMQ context; create after the process was spawned. ERR_NO_MEMORY, also where no threads can be started. */
struct ipc_context;
MUST_CHECK enum err ipc_context_create(struct ipc_context **out, struct err_msg *em);
void ipc_context_destroy(struct ipc_context **ctx); /* channels must be closed before; never lingers */

enum ipc_pattern { IPC_ROUTER, IPC_DEALER, IPC_PUSH, IPC_PULL, IPC_PUB, IPC_SUB };

/* Names a peer of a ROUTER channel for as long as the channel lives; 0 is nobody. Unused elsewhere. */
typedef struct {
	u64 v;
} ipc_peer;

/* Keys of CURVE (https://rfc.zeromq.org/spec/26), which channels between nodes use: the scheduler's and those that all
 * other nodes share. Both pairs are made of the cluster's secret, so whoever has it can prove to be a member, and
 * nobody else can read, forge or even begin a conversation. */
struct ipc_curve {
	u8 scheduler_public[32], scheduler_secret[32];
	u8 node_public[32], node_secret[32];
};
void ipc_curve_init(struct ipc_curve *out, const struct cluster_secret *secret);

struct ipc_channel_config {
	const char *name;     /* "step": for logs and message recordings */
	const char *endpoint; /* "ipc:///run/x/step", "tcp://..." */
	enum ipc_pattern pattern;
	bool bind;
	u32 queue_max;        /* messages per direction; 0: 1000 */
	u64 frame_bytes_max;  /* larger frames are refused; 0: IPC_FRAME_BYTES_MAX */
	u64 epoch;            /* written into what is sent; ipc_channel_set_epoch */
	/* HELLO that is sent first (DEALER, PUSH: at open; ROUTER: in answer to a peer's). */
	enum ipc_role role;
	u32 rank;
	u64 client_id;
	const char *record_dir; /* not NULL: every frame is recorded to DIR/PROCESS.NAME.msgs */
	u32 linger_ms;          /* what close may wait for unsent messages (a good-bye); 0: not at all */
	const struct ipc_curve *curve; /* connects as a node to the scheduler's "tcp://" endpoint; NULL: on this host */
	const char *process;    /* says HELLO and names recordings; NULL: from role and rank, "worker-0" */
};

struct ipc_channel;
/* ERR_IO with endpoint and reason (address in use, no such directory, ...). */
MUST_CHECK enum err ipc_channel_open(struct ipc_channel **out, struct ipc_context *ctx,
				     const struct ipc_channel_config *config, struct err_msg *em);
void ipc_channel_close(struct ipc_channel **ch);
/* A ROUTER that is bound already takes peers at a "tcp://" endpoint as well: nodes that have `curve`'s keys, and nobody
 * else. A connection that is silent for three seconds is broken (also on the side of the node). ERR_BUSY: the port is
 * in use; ERR_NOT_FOUND: no address of this machine; ERR_IO. */
MUST_CHECK enum err ipc_channel_listen(struct ipc_channel *ch, const char *endpoint, const struct ipc_curve *curve,
				       struct err_msg *em);
/* "tcp://HOST:PORT" into `out`, an IPv6 address in brackets. ERR_TOO_LONG. */
MUST_CHECK enum err ipc_tcp_endpoint(char *out, size_t bytes, const char *host, u32 port, struct err_msg *em);
void ipc_channel_set_epoch(struct ipc_channel *ch, u64 epoch);

/* Encodes and sends; never blocks. ERR_BUSY: the bounded queue to this peer is full, nothing was sent, the sequence
 * did not move. ERR_GONE: ROUTER peer unknown or disconnected. `to` is ignored except on ROUTER. */
MUST_CHECK enum err ipc_send(struct ipc_channel *ch, ipc_peer to, const struct ipc_msg *msg);
/* The same with a frame made by ipc_encode; its sequence number is patched in place, its epoch stays. ipc_send writes
 * the channel's epoch whatever `msg` says. ERR_TOO_LONG: above frame_bytes_max. */
MUST_CHECK enum err ipc_send_frame(struct ipc_channel *ch, ipc_peer to, char *frame, size_t bytes);

/* ROUTER: sends `to` another HELLO, upon which the peer says again whatever was under way: for a receiver that has lost
 * something. ERR_GONE; ERR_BUSY: it goes out in front of the next message. */
MUST_CHECK enum err ipc_greet(struct ipc_channel *ch, ipc_peer to);

/* Takes the next message; ERR_AGAIN when there is none. HELLO is checked (version, schema) and then delivered like
 * any other; a peer whose HELLO does not fit gets ERROR and is ignored. A malformed frame, a gap in the sequence
 * (ERR_SEQUENCE) or a message before HELLO is returned as an error with `from` set: log and go on, nothing crashes.
 * The message behind a gap is itself delivered by the next call; one that comes twice is dropped.
 * DEALER, PUSH: ERR_GONE once when an established connection broke; it is made again by itself and begins with a
 * HELLO of ours. A HELLO received a second time means that the peer begins anew and knows nothing of what was sent.
 * PUB/SUB channels accept gaps. Arrays of `out` live until the next ipc_recv on this channel. */
MUST_CHECK enum err ipc_recv(struct ipc_channel *ch, ipc_peer *from, struct ipc_msg *out, struct err_msg *em);

/* For foreign event loops: readable fd, edge-triggered (!): after it fires, after every send and once per turn call
 * ipc_recv until ERR_AGAIN. */
int ipc_channel_fd(struct ipc_channel *ch);
/* A second one, to be treated in the same way, readable when the connection comes or goes; -1 where there is none
 * (ROUTER, PULL, PUB, SUB). */
int ipc_channel_monitor_fd(struct ipc_channel *ch);

/* Messages wait to be received; sees also those whose edge was swallowed by a send of ours. */
bool ipc_channel_readable(struct ipc_channel *ch);

/* Whether an error or an oddity of this channel may be logged now: peers can cause any number of them. The first
 * IPC_LOG_BURST of a second may, the others are counted, and the loop logs their number when the second is over
 * (CHANNEL_LOG_MUTED). For every line that a peer can provoke. */
enum { IPC_LOG_BURST = 10 };
bool ipc_channel_may_log(struct ipc_channel *ch);

/* "ipc://RUN_DIR/NAME" into `out`; ERR_TOO_LONG names the limit of socket paths (107 bytes). */
MUST_CHECK enum err ipc_endpoint(char *out, size_t bytes, const char *run_dir, const char *name,
				 struct err_msg *em);

/* ---------------------------------------------------------------- recordings */

#define IPC_RECORD_MAGIC "TERCETMSGS1\n"

/* In front of every frame of a recording, little-endian. */
struct ipc_record {
	u64 time_ns; /* clock_now_ns */
	u64 peer;    /* ipc_peer of a ROUTER; else 0 */
	u32 bytes;   /* of the frame behind it */
	u8 sent;     /* 1: sent, 0: received */
	u8 unused[3];
};

/* Checks the first line of a recording. ERR_FORMAT. */
MUST_CHECK enum err ipc_record_begin(FILE *file, struct err_msg *em);
/* The next record; its frame into `frame`. ERR_AGAIN at the end; ERR_FORMAT when it is cut; ERR_NO_MEMORY. */
MUST_CHECK enum err ipc_record_read(FILE *file, struct ipc_record *head, struct buf *frame, struct err_msg *em);

/* ---------------------------------------------------------------- event loop */

struct ipc_loop;
typedef void (*ipc_message_fn)(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg);
/* A receive error of a channel (see ipc_recv); may be NULL: it is logged. One that logs asks ipc_channel_may_log. */
typedef void (*ipc_error_fn)(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e, const struct err_msg *em);
typedef void (*ipc_fd_fn)(void *ctx, int fd, u32 epoll_events);
typedef void (*ipc_timer_fn)(void *ctx, u64 now_ns);
/* Called once per turn after all input was drained: "drain everything, then act once". */
typedef void (*ipc_turn_fn)(void *ctx, u64 now_ns);

MUST_CHECK enum err ipc_loop_create(struct ipc_loop **out, struct err_msg *em);
void ipc_loop_destroy(struct ipc_loop **loop);
MUST_CHECK enum err ipc_loop_add_channel(struct ipc_loop *loop, struct ipc_channel *ch, ipc_message_fn on_message,
					 ipc_error_fn on_error, void *ctx);
void ipc_loop_remove_channel(struct ipc_loop *loop, struct ipc_channel *ch);
MUST_CHECK enum err ipc_loop_add_fd(struct ipc_loop *loop, int fd, u32 epoll_events, ipc_fd_fn fn, void *ctx);
void ipc_loop_remove_fd(struct ipc_loop *loop, int fd);
/* Fires every `period_ms`; up to 64 timers. The returned id is for ipc_loop_remove_timer. */
MUST_CHECK enum err ipc_loop_add_timer(struct ipc_loop *loop, u32 period_ms, ipc_timer_fn fn, void *ctx, u32 *id);
void ipc_loop_remove_timer(struct ipc_loop *loop, u32 id);
void ipc_loop_on_turn(struct ipc_loop *loop, ipc_turn_fn fn, void *ctx);
/* One turn: waits up to `timeout_ms` (-1: for ever, 0: not at all), drains at most 256 messages a channel, fires
 * timers, calls on_turn. A channel with more to give makes the next turn not wait. */
MUST_CHECK enum err ipc_loop_turn(struct ipc_loop *loop, int timeout_ms);
/* Turns until ipc_loop_stop. */
MUST_CHECK enum err ipc_loop_run(struct ipc_loop *loop);
void ipc_loop_stop(struct ipc_loop *loop);

/* ---------------------------------------------------------------- handshake with the supervisor */

/* A process spawned by the supervisor inherits one end of a socketpair (its number in TERCET_BOOT_FD). Lines of text:
 * up:   "progress 0.42 loading weights" | "ready key=value ..." | "failed TEXT" | "note key=value ..."
 * up again: "pong"; down: "ping" (boot_poll answers: who does not, hangs)
 * down: "drain" (finish what is there, take nothing new; then "note drained=1" or exit) | "stop"
 * Keys of "ready" that the start-up banner shows: scheduler block_count, max_model_len; worker device, dtype, threads;
 * gateway url ("http://127.0.0.1:8000"). Values hold no spaces.
 * Started by hand (no TERCET_BOOT_FD) everything here succeeds and does nothing, but that boot_failed prints and boot_attach
 * raises the limit of open files. */
struct boot {
	int fd; /* -1: none */
	bool orphaned; /* BOOT_STOP came because the supervisor is gone, not because it said so */
	char line[1024];
	size_t line_bytes;
};

enum boot_command { BOOT_NONE, BOOT_DRAIN, BOOT_STOP };

/* Raises the soft limit of open files of this process and of those that it starts as far as the hard one allows: every peer of a
 * channel is a descriptor, and the transport waits for ever, or ends the process, when it gets none. */
void boot_raise_file_limit(void);
/* Also sets the parent-death signal (SIGKILL) and checks that the parent is still the one that spawned us; resets
 * signal masks; ignores SIGINT, SIGTERM and SIGPIPE (the supervisor decides); raises the limit of open files; asks for
 * short scheduling slices (common/sched_slice.h), which a process that computes takes back. ERR_GONE: the parent is gone already. */
MUST_CHECK enum err boot_attach(struct boot *b, struct err_msg *em);
void boot_progress(struct boot *b, double share, const char *what);
void boot_ready(struct boot *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void boot_note(struct boot *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The last word before a process ends because of an error: the supervisor says it to the person, so nobody else needs
 * to. Without a supervisor it is logged. */
void boot_failed(struct boot *b, const struct err_msg *em);
/* Reads what has come without blocking; BOOT_STOP also when the supervisor closed its end. */
enum boot_command boot_poll(struct boot *b);

#endif
