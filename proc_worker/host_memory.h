/* How much memory this process may still take. */
#ifndef TERCET_PROC_WORKER_HOST_MEMORY_H
#define TERCET_PROC_WORKER_HOST_MEMORY_H

#include "common/err.h"
#include "common/types.h"

/* The least of MemAvailable and of what every control group (v2 and v1) above this process leaves; page cache
 * counts as free. `root` is put in front of /proc and /sys: "" but in tests. ERR_IO names the file. */
MUST_CHECK enum err host_memory_available(const char *root, u64 *bytes, struct err_msg *em);
/* Memory of this process that is not a mapped file, in bytes; 0 where unknown. */
u64 host_memory_resident(const char *root);

#endif
