/* An engine as a child of this process, for commands that need one and end with it (tercet run, tercet chat).
 */
#ifndef TERCET_PROC_SUPERVISOR_ENGINE_H
#define TERCET_PROC_SUPERVISOR_ENGINE_H

#include <sys/types.h>

#include "common/err.h"
#include "common/options.h"

struct engine {
	pid_t pid; /* 0: none */
	int pidfd, boot_fd;
	char run_dir[128]; /* where libtercet finds it */
};

/* `share` from 0 to 1 of what has to be loaded. */
typedef void (*engine_progress_fn)(void *ctx, double share, const char *what);

/* Runs `tercet serve` of this executable with `o` (set api_server_count to 0 for one without HTTP) and waits
 * until it is ready. It ends when this process ends, however that happens. `progress` may be NULL.
 * ERR_ABORTED: SIGINT or SIGTERM came while it started. Else the engine's own text. Blocks. */
MUST_CHECK enum err engine_start(struct engine *e, const struct options *o, engine_progress_fn progress,
				 void *ctx, struct err_msg *em);
/* Whether it still runs. Never blocks. */
bool engine_is_alive(const struct engine *e);
/* Stops it without waiting for requests, and waits for its end (some seconds at most). Zero pid: nothing. */
void engine_stop(struct engine *e);

#endif
