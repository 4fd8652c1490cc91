#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/shm_stats.h"

static char run_dir[32];
static struct err_msg em;

static void set_up(void)
{
	strcpy(run_dir, "/tmp/test_stats_XXXXXX");
	cr_assert_not_null(mkdtemp(run_dir));
}

static void tear_down(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", run_dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(shm_stats, .init = set_up, .fini = tear_down);

static struct stats_page *created(const char *process)
{
	struct stats_page *p;

	cr_assert_eq(stats_create(&p, run_dir, process, &em), ERR_OK, "%s", em.text);
	return p;
}

static const char *exported(const struct stats_page *const *pages, u32 count, const char *model)
{
	static struct buf b;

	buf_clear(&b);
	stats_export(&b, pages, count, model);
	return buf_cstr(&b);
}

#define HAS(text, line) cr_assert_not_null(strstr(text, line), "no \"%s\" in\n%s", line, text)

Test(shm_stats, pages_of_all_processes_are_seen_and_summed)
{
	struct stats_page *a = created("scheduler"), *b = created("gateway-0");
	const struct stats_page *pages[8];
	u32 count;

	stats_add(a, STATS_PROMPT_TOKENS, 30);
	stats_add(b, STATS_PROMPT_TOKENS, 12);
	stats_set(a, STATS_NUM_REQUESTS_RUNNING, 5);
	stats_set(a, STATS_KV_CACHE_USAGE, 250000);
	cr_assert_eq(stats_map_all(pages, 8, &count, run_dir, &em), ERR_OK);
	cr_assert_eq(count, 2);
	const char *text = exported(pages, count, "demo");
	HAS(text, "vllm:prompt_tokens_total{model_name=\"demo\"} 42\n");
	HAS(text, "tercet_prompt_tokens_total{model_name=\"demo\"} 42\n");
	HAS(text,
	    "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"demo\"} 5\n");
	HAS(text, "vllm:kv_cache_usage_perc{model_name=\"demo\"} 0.25\n");
	stats_add(a, STATS_PROMPT_TOKENS, 1);
	HAS(exported(pages, count, "demo"), "tercet_prompt_tokens_total{model_name=\"demo\"} 43\n");
	stats_unmap(pages, count);
	stats_destroy(&a);
	stats_destroy(&b);
	cr_assert_null(a);
}

Test(shm_stats, reasons_of_success_are_one_family)
{
	struct stats_page *p = created("scheduler");
	const struct stats_page *pages[] = {p};

	stats_add(p, STATS_REQUESTS_STOP, 3);
	stats_add(p, STATS_REQUESTS_ABORT, 1);
	const char *text = exported(pages, 1, "m");
	HAS(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 3\n");
	HAS(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1\n");
	const char *first = strstr(text, "# TYPE vllm:request_success_total");
	cr_assert_not_null(first);
	cr_assert_null(strstr(first + 1, "# TYPE vllm:request_success_total"));
	stats_destroy(&p);
}

Test(shm_stats, histograms_count_below_their_bounds)
{
	struct stats_page *p = created("gateway-0");
	const struct stats_page *pages[] = {p};

	stats_observe(p, STATS_STEP_TOKENS, 1);
	stats_observe(p, STATS_STEP_TOKENS, 2);
	stats_observe(p, STATS_STEP_TOKENS, 3);
	stats_observe(p, STATS_STEP_TOKENS, 1e9);
	stats_observe(p, STATS_TTFT, 0.0005);
	stats_observe(p, STATS_TTFT, 0.002);
	const char *text = exported(pages, 1, "m");
	HAS(text, "tercet_iteration_tokens_total_bucket{model_name=\"m\",le=\"1\"} 1\n");
	HAS(text, "tercet_iteration_tokens_total_bucket{model_name=\"m\",le=\"2\"} 2\n");
	HAS(text, "tercet_iteration_tokens_total_bucket{model_name=\"m\",le=\"4\"} 3\n");
	HAS(text, "tercet_iteration_tokens_total_bucket{model_name=\"m\",le=\"524288\"} 3\n");
	HAS(text, "tercet_iteration_tokens_total_bucket{model_name=\"m\",le=\"+Inf\"} 4\n");
	HAS(text, "tercet_iteration_tokens_total_count{model_name=\"m\"} 4\n");
	HAS(text, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.001\"} 1\n");
	HAS(text, "vllm:time_to_first_token_seconds_sum{model_name=\"m\"} 0.0025\n");
	stats_destroy(&p);
}

Test(shm_stats, busy_ratio_is_forward_time_of_a_worker_over_the_time_with_work)
{
	struct stats_page *s = created("scheduler"), *w0 = created("worker-0"), *w1 = created("worker-1");
	const struct stats_page *pages[] = {s, w0, w1};

	HAS(exported(pages, 3, "m"), "tercet_device_busy_ratio{model_name=\"m\"} 0\n");
	stats_add(s, STATS_BUSY_NS, 1000);
	stats_add(w0, STATS_FORWARD_NS, 980);
	stats_add(w1, STATS_FORWARD_NS, 960);
	HAS(exported(pages, 3, "m"), "tercet_device_busy_ratio{model_name=\"m\"} 0.97\n");
	HAS(exported(pages, 2, "m"), "tercet_device_busy_ratio{model_name=\"m\"} 0.98\n");
	stats_destroy(&s);
	stats_destroy(&w0);
	stats_destroy(&w1);
}

Test(shm_stats, labels_are_escaped)
{
	struct stats_page *p = created("worker-0");
	const struct stats_page *pages[] = {p};

	HAS(exported(pages, 1, "a\"b\\c\nd"), "vllm:num_requests_running{model_name=\"a\\\"b\\\\c d\"} 0\n");
	stats_destroy(&p);
}

Test(shm_stats, a_restarted_process_goes_on_counting_but_forgets_its_gauges)
{
	struct stats_page *p = created("scheduler");

	stats_add(p, STATS_STEPS, 7);
	stats_set(p, STATS_NUM_REQUESTS_WAITING, 9);
	stats_busy(p, 100);
	stats_destroy(&p);
	p = created("scheduler");
	cr_assert_eq(atomic_load(&p->values[STATS_STEPS]), 7);
	cr_assert_eq(atomic_load(&p->values[STATS_NUM_REQUESTS_WAITING]), 0);
	cr_assert_eq(atomic_load(&p->work_pending), 0);
	cr_assert_eq(p->pid, getpid());
	stats_destroy(&p);
}

Test(shm_stats, progress_tells_since_when_work_is_there)
{
	struct stats_page *p;

	cr_assert_eq(stats_create(&p, NULL, "worker-0", &em), ERR_OK);
	stats_busy(p, 1000);
	stats_busy(p, 2000);
	cr_assert_eq(atomic_load(&p->progress_ns), 1000);
	cr_assert_eq(atomic_load(&p->work_pending), 1);
	stats_progress(p, 3000, true);
	cr_assert_eq(atomic_load(&p->progress_ns), 3000);
	cr_assert_eq(atomic_load(&p->work_done), 1);
	stats_progress(p, 4000, false);
	cr_assert_eq(atomic_load(&p->work_pending), 0);
	stats_busy(p, 5000);
	cr_assert_eq(atomic_load(&p->progress_ns), 5000);
	stats_idle(p);
	cr_assert_eq(atomic_load(&p->work_pending), 0);
	stats_destroy(&p);
}

Test(shm_stats, files_that_are_no_pages_are_passed_over)
{
	struct stats_page *p = created("scheduler");
	const struct stats_page *pages[4];
	char path[64];
	u32 count;

	snprintf(path, sizeof(path), "%s/stats/short", run_dir);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	snprintf(path, sizeof(path), "%s/stats/zero", run_dir);
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	cr_assert_eq(ftruncate(fd, 100000), 0);
	close(fd);
	cr_assert_eq(stats_map_all(pages, 4, &count, run_dir, &em), ERR_OK);
	cr_assert_eq(count, 1);
	cr_assert_str_eq(pages[0]->process, "scheduler");
	stats_unmap(pages, count);
	stats_destroy(&p);
}

Test(shm_stats, errors_name_the_path)
{
	struct stats_page *p;
	const struct stats_page *pages[1];
	u32 count;
	char long_dir[600];

	cr_assert_eq(stats_create(&p, "/proc/nowhere", "x", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "/proc/nowhere/stats"));
	cr_assert_eq(stats_map_all(pages, 1, &count, "/nowhere", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "/nowhere/stats: No such file"));
	memset(long_dir, 'd', sizeof(long_dir));
	long_dir[sizeof(long_dir) - 1] = '\0';
	cr_assert_eq(stats_create(&p, long_dir, "x", &em), ERR_TOO_LONG);
}
