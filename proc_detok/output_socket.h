/* The output socket: a ROUTER on which clients attach, get their chunks, acknowledge and come back, and the
 * tap, a lossy PUB of all chunks for observers. */
#ifndef TERCET_PROC_DETOK_OUTPUT_SOCKET_H
#define TERCET_PROC_DETOK_OUTPUT_SOCKET_H

#include "common/shm_stats.h"
#include "common/trace.h"
#include "ipc/ipc.h"
#include "proc_detok/clients.h"
#include "proc_detok/streams.h"

struct output_socket_config {
	struct ipc_context *ctx; /* borrowed, like everything here */
	struct ipc_loop *loop;
	struct streams *streams;
	struct stats_page *stats;
	struct trace *trace; /* or NULL */
	const char *output_endpoint;
	const char *tap_endpoint;
	const char *record_dir; /* or NULL */
	u64 epoch;		/* of this process: another one for each life */
	u32 queue_max;		/* messages that wait in the transport for one client; 0: 256 */
	struct clients_config clients;
};

struct output_socket {
	struct output_socket_config config;
	struct ipc_channel *output;
	struct ipc_channel *tap;
	struct clients clients;
	struct buf frame; /* the chunk being made */
	u64 tokens;	  /* given out, for the write span */
	bool waiting;	  /* some client has something to be sent or said that did not go out yet */
	bool retry_set;
	u32 retry_timer;
};

/* Binds both sockets and joins the loop. ERR_IO, ERR_NO_MEMORY. */
MUST_CHECK enum err output_socket_open(struct output_socket *o, const struct output_socket_config *config,
				       struct err_msg *em);
void output_socket_close(struct output_socket *o);
/* Once per turn: makes the chunks of this turn, one a client, and sends what can be sent. Never blocks. */
void output_socket_turn(struct output_socket *o, u64 now_ns);
/* About once a second: closes those who stayed away too long. */
void output_socket_expire(struct output_socket *o, u64 now_ns);

#endif
