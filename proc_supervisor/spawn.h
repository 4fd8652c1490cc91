/* Starting a process of the engine. */
#ifndef TERCET_PROC_SUPERVISOR_SPAWN_H
#define TERCET_PROC_SUPERVISOR_SPAWN_H

#include <sys/types.h>

#include "common/err.h"
#include "common/options.h"

struct spawned {
	pid_t pid;
	int pidfd;   /* owned by the caller */
	int boot_fd; /* our end of the socketpair, not blocking; owned by the caller */
};

/* Secrets that a process needs; each goes through its environment, and no other process gets it. */
enum spawn_secret { SPAWN_API_KEYS = 1, SPAWN_CLUSTER_SECRET = 2 };

/* Runs `path` with `first_arg` (may be NULL) and the options as arguments, the boot socket in TERCET_BOOT_FD
 * and the rank in TERCET_RANK, in a session of its own: a Ctrl-C in the terminal reaches the supervisor only.
 * The options' environment variables are taken out (the arguments say it all); of the secrets those in `secrets`
 * (enum spawn_secret, or-ed) stay, the API keys as TERCET_API_KEY. Call it from the main thread only: the child's parent-death signal fires when the
 * thread that created it ends. ERR_IO names the program and the reason. */
MUST_CHECK enum err spawn_process(struct spawned *out, const char *path, const char *first_arg,
				  const struct options *o, u32 rank, u32 secrets, struct err_msg *em);

#endif
