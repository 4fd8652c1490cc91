/* Owns what is made of the statistics pages; runs in the gateway, which maps them read-only for each scrape.
 * Never changes another process' page. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "proc_gateway/metrics.h"

/* Boards made for vLLM show the size of the cache from these labels. */
static void cache_config_write(const struct options *o, const struct stats_page *const *pages, u32 count,
			       struct buf *out)
{
	static const char *const dtypes[] = {
		[OPTION_KV_DTYPE_AUTO] = "auto",       [OPTION_KV_DTYPE_BFLOAT16] = "bfloat16",
		[OPTION_KV_DTYPE_FLOAT32] = "float32", [OPTION_KV_DTYPE_INT8] = "int8",
		[OPTION_KV_DTYPE_FP8] = "fp8",	       [OPTION_KV_DTYPE_FP8_E4M3] = "fp8_e4m3",
		[OPTION_KV_DTYPE_INT16] = "int16"};
	u64 blocks = 0;
	for (u32 i = 0; i < count; i++)
		blocks += atomic_load_explicit(&pages[i]->values[STATS_KV_BLOCKS], memory_order_relaxed);
	buf_printf(out,
		   "# HELP vllm:cache_config_info Settings of the KV cache\n"
		   "# TYPE vllm:cache_config_info gauge\n"
		   "vllm:cache_config_info{engine=\"0\",block_size=\"%lld\",num_gpu_blocks=\"%llu\","
		   "cache_dtype=\"%s\",gpu_memory_utilization=\"%g\",kv_cache_memory_bytes=\"%llu\","
		   "enable_prefix_caching=\"%s\"} 1\n",
		   (long long)o->block_size, (unsigned long long)blocks, dtypes[o->kv_cache_dtype],
		   o->gpu_memory_utilization, (unsigned long long)o->kv_cache_memory,
		   o->enable_prefix_caching ? "True" : "False");
}

enum err metrics_write(const struct options *o, const char *model_name, struct buf *out, struct err_msg *em)
{
	const struct stats_page *pages[METRICS_PAGES_MAX];
	u32 count = 0;
	enum err e = stats_map_all(pages, METRICS_PAGES_MAX, &count, o->run_dir, em);
	if (e)
		return e;
	stats_export(out, pages, count, model_name);
	cache_config_write(o, pages, count, out);
	stats_unmap(pages, count);
	return ERR_OK;
}

/* The letter of /proc/PID/stat: 'R', 'S', 'T' (stopped), 'Z' (ended, not yet reaped), ...; 0 when there is
 * none. */
static char process_letter(i32 pid)
{
	char path[32], line[256];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[n > 0 ? n : 0] = '\0';
	const char *name_end = strrchr(line, ')'); /* the name may hold anything */
	return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

/* NULL: all is well. */
static const char *process_trouble(const struct stats_page *p, u64 stuck_ms, u64 now_ns, u64 *silent_ms)
{
	u64 progress_ns = atomic_load_explicit(&p->progress_ns, memory_order_relaxed);
	bool pending = atomic_load_explicit(&p->work_pending, memory_order_relaxed) != 0;
	*silent_ms = pending && now_ns > progress_ns ? (now_ns - progress_ns) / 1000000 : 0;
	if (p->pid > 0 && kill(p->pid, 0) != 0 && errno == ESRCH)
		return "dead";
	switch (process_letter(p->pid)) {
	case 'Z':
	case 'X':
		return "dead";
	case 'T':
	case 't':
		return "stopped"; /* it waits for SIGCONT; those that wait for it will look stuck */
	default:
		break;
	}
	return *silent_ms > stuck_ms ? "stuck" : NULL;
}

bool metrics_health(const struct stats_page *const *pages, u32 count, bool engine_ready, u64 stuck_ms,
		    u64 now_ns, struct buf *out)
{
	struct json_writer w;
	bool well = engine_ready;
	for (u32 i = 0; i < count; i++) {
		u64 silent_ms;
		well &= process_trouble(pages[i], stuck_ms, now_ns, &silent_ms) == NULL;
	}
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "status");
	json_write_cstr(&w, well ? "ok" : "unhealthy");
	json_key(&w, "engine");
	json_write_cstr(&w, engine_ready ? "ready" : "not answering");
	json_key(&w, "processes");
	json_array_begin(&w);
	for (u32 i = 0; i < count; i++) {
		u64 silent_ms;
		const char *trouble = process_trouble(pages[i], stuck_ms, now_ns, &silent_ms);
		json_object_begin(&w);
		json_key(&w, "process");
		json_write_cstr(&w, pages[i]->process);
		json_key(&w, "state");
		json_write_cstr(&w, trouble ? trouble : "ok");
		if (trouble && silent_ms > 0) {
			json_key(&w, "seconds_without_progress");
			json_write_uint(&w, silent_ms / 1000);
		}
		json_object_end(&w);
	}
	json_array_end(&w);
	json_object_end(&w);
	return well;
}

bool metrics_health_of(const char *run_dir, bool engine_ready, u64 stuck_ms, u64 now_ns, struct buf *out)
{
	const struct stats_page *pages[METRICS_PAGES_MAX];
	u32 count = 0;
	struct err_msg em;
	if (stats_map_all(pages, METRICS_PAGES_MAX, &count, run_dir, &em))
		count = 0;
	bool well = metrics_health(pages, count, engine_ready, stuck_ms, now_ns, out);
	stats_unmap(pages, count);
	return well;
}
