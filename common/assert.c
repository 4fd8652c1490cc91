/* The end of a process that found a bug of ours: one log line, then abort, so that the supervisor sees a
 * signal. */
#include "common/assert.h"

#include <stdlib.h>

#include "common/log.h"

_Noreturn void assert_failed(const char *expr, const char *file, int line, const char *func)
{
	LOG_ERROR("ASSERT_FAILED", "at=%s:%d function=%s expression=\"%s\"", file, line, func, expr);
	abort();
}
