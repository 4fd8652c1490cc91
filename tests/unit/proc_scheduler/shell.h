/* A scheduler process in a thread, and its neighbours played by the test over real sockets. */
#ifndef TERCET_TESTS_UNIT_PROC_SCHEDULER_SHELL_H
#define TERCET_TESTS_UNIT_PROC_SCHEDULER_SHELL_H

#include <pthread.h>

#include "common/options.h"
#include "ipc/ipc.h"
#include "proc_scheduler/scheduler.h"
#include "tests/sim/fake_worker.h"

enum { SHELL_VOCAB = 500, SHELL_BLOCKS = 64 };

struct shell {
	struct options options;
	struct boot boot;
	int supervisor_fd; /* our end of the boot socket */
	char run_dir[64];
	pthread_t thread;
	bool joined;
	enum err run_result;
	struct err_msg run_text;
	struct ipc_context *ipc;
	struct ipc_context *detok_ipc; /* its own: when it is gone, its socket's path is, too */
	struct ipc_channel *detok;     /* ROUTER */
	ipc_peer detok_peer;
};

/* Of the fake workers. */
extern const struct batch_limits shell_limits;

/* A neighbour that connects. */
struct peer {
	struct ipc_channel *channel;
	struct ipc_msg msg; /* the last one received */
};

/* `extra`: options as "name=value", ended by NULL. Starts the scheduler and the detokenizer's socket. */
struct shell *shell_start(const char *const *extra);
/* Waits until it ended by itself; the result is in run_result and run_text. */
void shell_join(struct shell *s);
/* Says stop, joins, cleans up; the result of scheduler_run. */
enum err shell_stop(struct shell **s);
void shell_command(struct shell *s, const char *line);
/* The next line the scheduler told the supervisor, without its end, within five seconds. */
const char *shell_line(struct shell *s, char *out, size_t bytes);

void shell_connect(struct shell *s, struct peer *p, const char *name, enum ipc_role role, u32 rank,
		   u64 client_id);
void shell_disconnect(struct peer *p);
void shell_send(struct peer *p, u32 type, struct ipc_msg msg);
/* Skips other messages until one of `type` comes; fails the test after five seconds. */
const struct ipc_msg *shell_expect(struct peer *p, u32 type);
/* True when one of `type` comes within `ms`. */
bool shell_comes(struct peer *p, u32 type, u32 ms);
/* The same for what the detokenizer gets; `copy_tokens`: outputs of an OPEN, at most 64. */
const struct ipc_msg *shell_expect_stream(struct shell *s, struct peer *p, u32 type);
/* A new life of the detokenizer: closes its socket and binds it again. */
void shell_restart_detok(struct shell *s);

/* Greets as a worker rank and says that it is ready with `blocks` blocks. */
void shell_worker(struct shell *s, struct peer *p, u32 rank, u32 blocks);
/* Greets as a client and takes ENGINE. */
void shell_client(struct shell *s, struct peer *p, u64 client_id);
/* SUBMIT of `count` tokens 1, 2, 3, ... */
void shell_submit(struct peer *p, u64 client_id, u64 req_id, u32 count, u32 max_tokens);
/* Takes a STEP, runs it on `w` and answers for the worker; the answer is left in `r`. */
void shell_serve_step(struct peer *worker, struct fake_worker *w, struct fake_result *r);

#endif
