/* /health over statistics pages. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proc_gateway/metrics.h"

enum { STUCK_MS = 60 * 1000 };

static struct stats_page *page(const char *name)
{
	struct stats_page *p;
	struct err_msg em;
	cr_assert_eq(stats_create(&p, NULL, name, &em), ERR_OK, "%s", em.text);
	return p;
}

Test(metrics, health_names_the_part_that_is_stuck)
{
	struct stats_page *scheduler = page("scheduler"), *worker = page("worker-0");
	const struct stats_page *pages[] = {scheduler, worker};
	struct buf out = {0};
	u64 now = clock_now_ns() + 1000000000000ull;
	stats_progress(scheduler, now, true);
	stats_progress(worker, now, true);
	cr_assert(metrics_health(pages, 2, true, STUCK_MS, now + 1000000, &out), "%s", buf_cstr(&out));
	cr_assert_not_null(strstr(buf_cstr(&out), "\"status\":\"ok\""));
	buf_clear(&out);
	u64 later = now + (STUCK_MS + 5000) * 1000000ull;
	stats_progress(scheduler, later, true);
	cr_assert(!metrics_health(pages, 2, true, STUCK_MS, later, &out));
	cr_assert_not_null(
		strstr(buf_cstr(&out),
		       "{\"process\":\"worker-0\",\"state\":\"stuck\",\"seconds_without_progress\":65}"),
		"%s", buf_cstr(&out));
	cr_assert_not_null(strstr(buf_cstr(&out), "{\"process\":\"scheduler\",\"state\":\"ok\"}"));
	buf_fini(&out);
	stats_destroy(&scheduler);
	stats_destroy(&worker);
}

Test(metrics, idle_processes_are_well_however_long_nothing_happens)
{
	struct stats_page *worker = page("worker-0");
	const struct stats_page *pages[] = {worker};
	struct buf out = {0};
	stats_progress(worker, 1, false);
	cr_assert(metrics_health(pages, 1, true, STUCK_MS, clock_now_ns() + 3600ull * 1000000000, &out));
	buf_fini(&out);
	stats_destroy(&worker);
}

Test(metrics, dead_processes_and_a_silent_engine_are_unhealthy)
{
	struct stats_page *worker = page("worker-0");
	const struct stats_page *pages[] = {worker};
	struct buf out = {0};
	cr_assert(!metrics_health(pages, 1, false, STUCK_MS, clock_now_ns(), &out));
	cr_assert_not_null(strstr(buf_cstr(&out), "not answering"));
	buf_clear(&out);
	worker->pid = 0x3ffffff0; /* beyond pid_max */
	cr_assert(!metrics_health(pages, 1, true, STUCK_MS, clock_now_ns(), &out));
	cr_assert_not_null(strstr(buf_cstr(&out), "\"state\":\"dead\""), "%s", buf_cstr(&out));
	buf_fini(&out);
	stats_destroy(&worker);
}

Test(metrics, a_process_stopped_by_a_signal_is_named)
{
	struct stats_page *worker = page("worker-0");
	const struct stats_page *pages[] = {worker};
	struct buf out = {0};
	pid_t child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	worker->pid = child;
	cr_assert(metrics_health(pages, 1, true, STUCK_MS, clock_now_ns(), &out), "%s", buf_cstr(&out));
	cr_assert_eq(kill(child, SIGSTOP), 0);
	cr_assert_eq(waitpid(child, NULL, WUNTRACED), child);
	buf_clear(&out);
	cr_assert(!metrics_health(pages, 1, true, STUCK_MS, clock_now_ns(), &out));
	cr_assert_not_null(strstr(buf_cstr(&out), "\"state\":\"stopped\""), "%s", buf_cstr(&out));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	buf_fini(&out);
	stats_destroy(&worker);
}
