/* What the statistics pages of all processes say: /metrics and /health. */
#ifndef TERCET_PROC_GATEWAY_METRICS_H
#define TERCET_PROC_GATEWAY_METRICS_H

#include "common/buf.h"
#include "common/options.h"
#include "common/shm_stats.h"

enum { METRICS_PAGES_MAX = 256 };

/* Appends Prometheus text over all processes of the run directory, and the cache's settings as labels of
 * vllm:cache_config_info. ERR_IO. */
MUST_CHECK enum err metrics_write(const struct options *o, const char *model_name, struct buf *out,
				  struct err_msg *em);

/* Appends {"status": "ok"|"unhealthy", "engine": ..., "processes": [{"process", "state", ...}]}; a process is
 * "ok", "stuck" (it has work and completed none for more than `stuck_ms`; with the seconds), "stopped" (by a
 * signal) or "dead". `engine_ready`: the scheduler answers this gateway. Returns whether all is well. */
bool metrics_health(const struct stats_page *const *pages, u32 count, bool engine_ready, u64 stuck_ms,
		    u64 now_ns, struct buf *out);
/* The same over the run directory. */
bool metrics_health_of(const char *run_dir, bool engine_ready, u64 stuck_ms, u64 now_ns, struct buf *out);

#endif
