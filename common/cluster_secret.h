/* The secret that the nodes of one engine share, and the keys that are made of it. Whoever has it may join the
 * engine as a node; nothing else between nodes is trusted. */
#ifndef TERCET_COMMON_CLUSTER_SECRET_H
#define TERCET_COMMON_CLUSTER_SECRET_H

#include "common/err.h"
#include "common/types.h"

enum { CLUSTER_SECRET_BYTES_MIN = 16, CLUSTER_SECRET_BYTES_MAX = 4096, CLUSTER_KEY_BYTES = 32 };

#define CLUSTER_SECRET_ENV "TERCET_CLUSTER_SECRET"

struct cluster_secret {
	u8 key[CLUSTER_KEY_BYTES];
};

/* From the text, whose leading and trailing white space does not count. `where` names its place in messages.
 * ERR_INVALID: shorter or longer than the limits above. */
MUST_CHECK enum err cluster_secret_set(struct cluster_secret *out, const char *text, size_t bytes, const char *where,
				       struct err_msg *em);
/* From the file `path`, or, when that is "", from TERCET_CLUSTER_SECRET. ERR_DENIED: there is none; the message says
 * how to make one. ERR_IO, ERR_INVALID. A file that every user may read is warned of in the log. */
MUST_CHECK enum err cluster_secret_read(struct cluster_secret *out, const char *path, struct err_msg *em);
/* One key for one purpose: BLAKE2b of `purpose` under the secret. Keys of different purposes tell nothing about each
 * other. */
void cluster_secret_derive(const struct cluster_secret *secret, const char *purpose, u8 key[CLUSTER_KEY_BYTES]);

#endif
