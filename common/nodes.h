/* Which of several machines this one is: from the options, else from whoever launched this process. */
#ifndef TERCET_COMMON_NODES_H
#define TERCET_COMMON_NODES_H

#include "common/err.h"
#include "common/options.h"
#include "common/types.h"

enum { NODES_MAX = 64, NODES_PORT_DEFAULT = 29500 };

struct nodes {
	u32 count, index;
	char address[256];      /* of node 0, a name or number; "" with one node */
	char address_else[256]; /* to be taken when the first is unknown here; "": none */
	u32 port;               /* of node 0; the ports behind it, one a worker, are in use too */
	const char *source;     /* "the options", "torchrun", "Slurm", ...: for messages */
};

/* A variable of the environment, or NULL. */
typedef const char *(*nodes_env_fn)(void *ctx, const char *name);

/* Fills `out`. Every value comes from its option when that is given; else from the first of these that has set its
 * variables: torchrun, Slurm, OpenMPI, another MPI launcher (PMI, PMIx), LeaderWorkerSet; else there is one node.
 * ERR_INVALID names what is missing or does not fit: several tasks on one node, an index that is too high, ranks
 * that the nodes cannot share evenly. `env` is called with `ctx`; NULL: getenv. Never resolves a name. */
MUST_CHECK enum err nodes_find(struct nodes *out, const struct options *o, nodes_env_fn env, void *ctx,
			       struct err_msg *em);
/* Takes address_else where address is a name that cannot be resolved. While neither can be, waits for up to `wait_ms`: in
 * a cluster that has just made them, names take a moment to become known. ERR_NOT_FOUND: neither is. Blocks. */
MUST_CHECK enum err nodes_check_address(struct nodes *n, u32 wait_ms, struct err_msg *em);
/* The first name of a Slurm host list such as "n[01-03,7],login" into `out`; false: malformed or longer than
 * `bytes`. */
bool nodes_first_host(char *out, size_t bytes, const char *list);

/* Ranks lie in blocks: node i has the ranks [i * n, (i + 1) * n) with n of nodes_ranks_each. */
static inline u32 nodes_ranks_each(const struct options *o)
{
	return (u32)(o->tensor_parallel_size / (o->nnodes > 1 ? o->nnodes : 1));
}

#endif
