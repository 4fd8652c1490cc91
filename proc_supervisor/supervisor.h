/* `tercet serve`: runs an engine from its first process to its last. */
#ifndef TERCET_PROC_SUPERVISOR_SUPERVISOR_H
#define TERCET_PROC_SUPERVISOR_SUPERVISOR_H

#include "common/options.h"

/* Starts every process of the engine, restarts what dies or is stuck, drains on the first SIGTERM, SIGINT or
 * SIGHUP (or when the process that started this one says so or ends), kills on the second one and on SIGQUIT,
 * and returns the exit status once no process is left: 0 after an orderly stop, 1 after a failure, 128 +
 * signal after being told twice. Completes `o` (run directory, port). Blocks; call it from the main thread.
 */
int supervisor_serve(struct options *o);

#endif
