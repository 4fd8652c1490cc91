/* Counters of one process in a shared page, and the Prometheus text that sums the pages of all.
 * The owner writes with relaxed atomics; nobody else writes. Never blocks after creation. */
#include "common/shm_stats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/buf.h"

enum { STATS_MAGIC = 0x54535431, STATS_VERSION = 2 };

enum stats_kind { STATS_COUNTER, STATS_GAUGE, STATS_HISTOGRAM };

struct stats_desc {
	enum stats_kind kind;
	const char *name, *help;
	double first, factor; /* histograms */
};

#define STATS_ROW_C(id, n, h)	    [STATS_##id] = {STATS_COUNTER, #n, h, 0, 0},
#define STATS_ROW_G(id, n, h)	    [STATS_##id] = {STATS_GAUGE, #n, h, 0, 0},
#define STATS_ROW_H(id, n, h, a, f) [STATS_##id] = {STATS_HISTOGRAM, #n, h, a, f},
static const struct stats_desc stats_table[STATS_COUNT] = {
	STATS_TABLE(STATS_ROW_C, STATS_ROW_G, STATS_ROW_H)};

/* ---------------------------------------------------------------- pages */

static void reset(struct stats_page *p, const char *process)
{
	bool valid = p->magic == STATS_MAGIC && p->version == STATS_VERSION &&
		     strncmp(p->process, process, sizeof(p->process)) == 0;

	if (!valid)
		memset(p, 0, sizeof(*p));
	/* Counters of a process that was restarted go on, as Prometheus expects; what describes a moment does
	 * not. */
	for (int i = 0; i < STATS_COUNT; i++)
		if (stats_table[i].kind == STATS_GAUGE)
			stats_set(p, (enum stats_id)i, 0);
	atomic_store(&p->work_pending, 0);
	atomic_store(&p->progress_ns, 0);
	snprintf(p->process, sizeof(p->process), "%s", process);
	p->pid = (i32)getpid();
	p->version = STATS_VERSION;
	atomic_thread_fence(memory_order_release); /* readers take a page only once the magic is there */
	p->magic = STATS_MAGIC;
}

static enum err map_private(struct stats_page **out, const char *process, struct err_msg *em)
{
	void *p = mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return err_set(em, ERR_NO_MEMORY, "no memory for a statistics page");
	reset(p, process);
	*out = p;
	return ERR_OK;
}

enum err stats_create(struct stats_page **out, const char *run_dir, const char *process, struct err_msg *em)
{
	char path[512];

	*out = NULL;
	if (run_dir == NULL)
		return map_private(out, process, em);
	if (snprintf(path, sizeof(path), "%s/stats/%s", run_dir, process) >= (int)sizeof(path))
		return err_set(em, ERR_TOO_LONG, "%s: the path of the run directory is too long", run_dir);
	char *slash = strrchr(path, '/');
	*slash = '\0';
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	*slash = '/';
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	void *p = MAP_FAILED;
	/* Allocated, not only sized: a full file system must show here, not as SIGBUS later. */
	int e = posix_fallocate(fd, 0, (off_t)sizeof(**out));
	if (e == 0) {
		p = mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		e = errno;
	}
	close(fd);
	if (p == MAP_FAILED)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(e));
	reset(p, process);
	*out = p;
	return ERR_OK;
}

void stats_destroy(struct stats_page **page)
{
	if (*page == NULL)
		return;
	munmap(*page, sizeof(**page));
	*page = NULL;
}

/* The page in `name`, or NULL when it is not one (yet). */
static const struct stats_page *map_page(int dir_fd, const char *name)
{
	struct stat st;
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return NULL;
	void *p = MAP_FAILED;
	if (fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof(struct stats_page))
		p = mmap(NULL, sizeof(struct stats_page), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	const struct stats_page *page = p;
	if (page->magic == STATS_MAGIC && page->version == STATS_VERSION) {
		atomic_thread_fence(memory_order_acquire);
		return page;
	}
	munmap(p, sizeof(struct stats_page));
	return NULL;
}

enum err stats_map_one(const struct stats_page **page, const char *run_dir, const char *process,
		       struct err_msg *em)
{
	char path[512];

	*page = NULL;
	if (snprintf(path, sizeof(path), "%s/stats/%s", run_dir, process) < (int)sizeof(path))
		*page = map_page(AT_FDCWD, path);
	return *page != NULL
		       ? ERR_OK
		       : err_set(em, ERR_NOT_FOUND, "%s has no statistics page in %s", process, run_dir);
}

enum err stats_map_all(const struct stats_page **pages, u32 max, u32 *count, const char *run_dir,
		       struct err_msg *em)
{
	char path[512];
	struct dirent *entry;

	*count = 0;
	if (snprintf(path, sizeof(path), "%s/stats", run_dir) >= (int)sizeof(path))
		return err_set(em, ERR_TOO_LONG, "%s: the path of the run directory is too long", run_dir);
	DIR *dir = opendir(path);
	if (dir == NULL)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	while (*count < max && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		const struct stats_page *page = map_page(dirfd(dir), entry->d_name);
		if (page != NULL)
			pages[(*count)++] = page;
	}
	closedir(dir);
	return ERR_OK;
}

void stats_unmap(const struct stats_page **pages, u32 count)
{
	for (u32 i = 0; i < count; i++) {
		munmap((void *)(uintptr_t)pages[i], sizeof(struct stats_page));
		pages[i] = NULL;
	}
}

/* ---------------------------------------------------------------- writing */

void stats_observe(struct stats_page *p, enum stats_id id, double value)
{
	stats_observe_many(p, id, value, 1);
}

void stats_observe_many(struct stats_page *p, enum stats_id id, double value, u64 count)
{
	const struct stats_desc *d = &stats_table[id];
	struct stats_histogram *h = &p->histograms[id];
	double bound = d->first;
	int k = 0;

	DASSERT(d->kind == STATS_HISTOGRAM);
	while (k < STATS_BUCKETS && !(value <= bound)) {
		bound *= d->factor;
		k++;
	}
	atomic_fetch_add_explicit(&h->buckets[k], count, memory_order_relaxed);
	if (value > 0 && value < 1e12)
		atomic_fetch_add_explicit(&h->sum_millionths, count * (u64)(value * 1e6 + 0.5),
					  memory_order_relaxed);
}

void stats_progress(struct stats_page *p, u64 now_ns, bool pending)
{
	atomic_fetch_add_explicit(&p->work_done, 1, memory_order_relaxed);
	atomic_store_explicit(&p->progress_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&p->work_pending, pending, memory_order_relaxed);
}

void stats_busy(struct stats_page *p, u64 now_ns)
{
	if (atomic_load_explicit(&p->work_pending, memory_order_relaxed) != 0)
		return;
	atomic_store_explicit(&p->progress_ns, now_ns, memory_order_relaxed);
	/* Whoever sees the work sees since when. */
	atomic_store_explicit(&p->work_pending, 1, memory_order_release);
}

void stats_idle(struct stats_page *p)
{
	atomic_store_explicit(&p->work_pending, 0, memory_order_relaxed);
}

/* ---------------------------------------------------------------- Prometheus text */

/* What vLLM calls the same thing; boards made for it then work unchanged. Without ending: counters get
 * "_total". */
static const struct {
	enum stats_id id;
	const char *name;
	const char *reason; /* value of the label finished_reason */
} vllm_names[] = {
	{STATS_NUM_REQUESTS_RUNNING, "num_requests_running", NULL},
	{STATS_NUM_REQUESTS_WAITING, "num_requests_waiting", NULL},
	{STATS_NUM_REQUESTS_SWAPPED, "num_requests_swapped", NULL},
	{STATS_KV_CACHE_USAGE, "kv_cache_usage_perc", NULL},
	{STATS_HOST_CACHE_USAGE, "cpu_cache_usage_perc", NULL},
	{STATS_PREFIX_CACHE_QUERIES, "prefix_cache_queries", NULL},
	{STATS_PREFIX_CACHE_HITS, "prefix_cache_hits", NULL},
	{STATS_NUM_PREEMPTIONS, "num_preemptions", NULL},
	{STATS_PROMPT_TOKENS, "prompt_tokens", NULL},
	{STATS_GENERATION_TOKENS, "generation_tokens", NULL},
	{STATS_SPEC_DRAFTS, "spec_decode_num_drafts", NULL},
	{STATS_SPEC_DRAFT_TOKENS, "spec_decode_num_draft_tokens", NULL},
	{STATS_SPEC_ACCEPTED, "spec_decode_num_accepted_tokens", NULL},
	{STATS_REQUESTS_STOP, "request_success", "stop"},
	{STATS_REQUESTS_LENGTH, "request_success", "length"},
	{STATS_REQUESTS_ABORT, "request_success", "abort"},
	{STATS_REQUESTS_ERROR, "request_success", "error"},
	{STATS_TTFT, "time_to_first_token_seconds", NULL},
	{STATS_ITL, "inter_token_latency_seconds", NULL},
	{STATS_E2E, "e2e_request_latency_seconds", NULL},
	{STATS_QUEUE, "request_queue_time_seconds", NULL},
	{STATS_PREFILL, "request_prefill_time_seconds", NULL},
	{STATS_DECODE, "request_decode_time_seconds", NULL},
	{STATS_INFERENCE, "request_inference_time_seconds", NULL},
	{STATS_STEP_TOKENS, "iteration_tokens_total", NULL},
	{STATS_PROMPT_LEN, "request_prompt_tokens", NULL},
	{STATS_OUTPUT_LEN, "request_generation_tokens", NULL},
	{STATS_TPOT, "request_time_per_output_token_seconds", NULL},
	{STATS_PARAMS_MAX_TOKENS, "request_params_max_tokens", NULL},
	{STATS_PARAMS_N, "request_params_n", NULL},
	{STATS_MAX_OUTPUT_LEN, "request_max_num_generation_tokens", NULL},
};

struct exporter {
	struct buf *out;
	const struct stats_page *const *pages;
	u32 count;
	char labels[600]; /* model_name="..." */
};

static u64 sum_value(const struct exporter *x, enum stats_id id)
{
	u64 sum = 0;

	for (u32 i = 0; i < x->count; i++)
		sum += atomic_load_explicit(&x->pages[i]->values[id], memory_order_relaxed);
	return sum;
}

static void put_header(struct exporter *x, const char *prefix, const char *name, const char *ending,
		       const struct stats_desc *d)
{
	static const char *const types[] = {"counter", "gauge", "histogram"};

	buf_printf(x->out, "# HELP %s%s%s %s\n# TYPE %s%s%s %s\n", prefix, name, ending, d->help, prefix,
		   name, ending, types[d->kind]);
}

static void put_scalar(struct exporter *x, const char *prefix, const char *name, enum stats_id id,
		       const char *reason)
{
	const char *ending = stats_table[id].kind == STATS_COUNTER ? "_total" : "";

	/* A family has one header: those of request_success stand together, the first one writes it. */
	if (reason == NULL)
		put_header(x, prefix, name, ending, &stats_table[id]);
	else if (strcmp(reason, "stop") == 0)
		put_header(x, prefix, name, ending,
			   &(struct stats_desc){.kind = STATS_COUNTER, .help = "Requests ended, by reason"});
	buf_printf(x->out, "%s%s%s{%s", prefix, name, ending, x->labels);
	if (reason != NULL)
		buf_printf(x->out, ",finished_reason=\"%s\"", reason);
	if (id == STATS_KV_CACHE_USAGE || id == STATS_HOST_CACHE_USAGE) /* kept in millionths */
		buf_printf(x->out, "} %g\n", (double)sum_value(x, id) / 1e6);
	else
		buf_printf(x->out, "} %" PRIu64 "\n", sum_value(x, id));
}

static void put_histogram(struct exporter *x, const char *prefix, const char *name, enum stats_id id)
{
	const struct stats_desc *d = &stats_table[id];
	double bound = d->first;
	u64 below = 0, sum = 0;

	put_header(x, prefix, name, "", d);
	for (int k = 0; k <= STATS_BUCKETS; k++) {
		for (u32 i = 0; i < x->count; i++)
			below += atomic_load_explicit(&x->pages[i]->histograms[id].buckets[k],
						      memory_order_relaxed);
		buf_printf(x->out, "%s%s_bucket{%s,le=\"", prefix, name, x->labels);
		if (k < STATS_BUCKETS)
			buf_printf(x->out, "%.6g", bound);
		else
			buf_append_str(x->out, "+Inf");
		buf_printf(x->out, "\"} %" PRIu64 "\n", below);
		bound *= d->factor;
	}
	for (u32 i = 0; i < x->count; i++)
		sum += atomic_load_explicit(&x->pages[i]->histograms[id].sum_millionths,
					    memory_order_relaxed);
	buf_printf(x->out, "%s%s_sum{%s} %.9g\n%s%s_count{%s} %" PRIu64 "\n", prefix, name, x->labels,
		   (double)sum / 1e6, prefix, name, x->labels, below);
}

static void put_metric(struct exporter *x, const char *prefix, const char *name, enum stats_id id,
		       const char *reason)
{
	if (stats_table[id].kind == STATS_HISTOGRAM)
		put_histogram(x, prefix, name, id);
	else
		put_scalar(x, prefix, name, id, reason);
}

/* Forward time of a worker over the time in which the scheduler had something to compute. */
static void put_busy_ratio(struct exporter *x)
{
	double forward = (double)sum_value(x, STATS_FORWARD_NS);
	double busy = (double)sum_value(x, STATS_BUSY_NS);
	u32 workers = 0;

	for (u32 i = 0; i < x->count; i++)
		workers += strncmp(x->pages[i]->process, "worker", 6) == 0;
	busy *= workers;
	buf_printf(x->out,
		   "# HELP tercet_device_busy_ratio Forward time over wall time while requests run or wait\n"
		   "# TYPE tercet_device_busy_ratio gauge\ntercet_device_busy_ratio{%s} %.6g\n",
		   x->labels, busy > 0 ? (forward < busy ? forward / busy : 1.0) : 0.0);
}

static void put_labels(struct exporter *x, const char *model_name)
{
	size_t n = (size_t)snprintf(x->labels, sizeof(x->labels), "model_name=\"");

	for (; *model_name != '\0' && n + 4 < sizeof(x->labels); model_name++) {
		if (*model_name == '\\' || *model_name == '"')
			x->labels[n++] = '\\';
		x->labels[n++] = *model_name == '\n' ? ' ' : *model_name;
	}
	memcpy(x->labels + n, "\"", 2);
}

void stats_export(struct buf *out, const struct stats_page *const *pages, u32 count, const char *model_name)
{
	struct exporter x = {.out = out, .pages = pages, .count = count};

	put_labels(&x, model_name);
	for (size_t i = 0; i < COUNT_OF(vllm_names); i++)
		put_metric(&x, "vllm:", vllm_names[i].name, vllm_names[i].id, vllm_names[i].reason);
	for (int id = 0; id < STATS_COUNT; id++)
		put_metric(&x, "tercet_", stats_table[id].name, (enum stats_id)id, NULL);
	put_busy_ratio(&x);
}
