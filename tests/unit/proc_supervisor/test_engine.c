/* An engine as a child. A plain program, because the child is this executable again: with "serve" it is a
 * supervisor whose processes are fakes, with "hold" it starts an engine and waits. Prints "N passed, N
 * failed". */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proc_supervisor/engine.h"
#include "proc_supervisor/supervisor.h"

struct tests {
	int passed, failed;
};

#define CHECK(t, expression)                                                                        \
	do {                                                                                        \
		if (expression)                                                                     \
			(t)->passed++;                                                              \
		else                                                                                \
			(t)->failed += printf("test_engine.c:%d: %s\n", __LINE__, #expression) > 0; \
	} while (0)

static void sleep_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&t, NULL);
}

static bool gone_within(const char *path, int ms)
{
	for (; ms > 0; ms -= 10) {
		if (access(path, F_OK) != 0)
			return true;
		sleep_ms(10);
	}
	return false;
}

static bool there_within(const char *path, int ms)
{
	for (; ms > 0; ms -= 10) {
		if (access(path, F_OK) == 0)
			return true;
		sleep_ms(10);
	}
	return false;
}

static void make_options(struct options *o, const char *run_dir)
{
	struct err_msg em;

	if (options_init(o) != ERR_OK || options_set(o, "model", "model", "", &em) != ERR_OK ||
	    options_set(o, "run-dir", run_dir, "", &em) != ERR_OK)
		exit(99);
	o->api_server_count = 0;
}

static void on_progress(void *ctx, double share, const char *what)
{
	if (strcmp(what, "loading weights") == 0)
		*(double *)ctx = share;
}

static void test_life(struct tests *t, const char *run_dir)
{
	struct options o;
	struct engine e;
	struct err_msg em = {""};
	double share = 0;

	make_options(&o, run_dir);
	setenv("FAKE_WORKER", "progress=0.5;ready", 1);
	CHECK(t, engine_start(&e, &o, on_progress, &share, &em) == ERR_OK);
	CHECK(t, share == 0.5);
	CHECK(t, strcmp(e.run_dir, run_dir) == 0);
	CHECK(t, engine_is_alive(&e));
	CHECK(t, access(run_dir, F_OK) == 0);
	engine_stop(&e);
	CHECK(t, e.pid == 0 && !engine_is_alive(&e));
	CHECK(t, access(run_dir, F_OK) != 0);
	engine_stop(&e);
	options_fini(&o);
}

static void test_failures(struct tests *t, const char *run_dir)
{
	struct options o;
	struct engine e;
	struct err_msg em = {""};

	make_options(&o, run_dir);
	setenv("FAKE_WORKER", "fail=config.json: there is no such file", 1);
	CHECK(t, engine_start(&e, &o, NULL, NULL, &em) == ERR_IO);
	CHECK(t, strcmp(em.text, "config.json: there is no such file") == 0);
	CHECK(t, e.pid == 0);
	setenv("FAKE_WORKER", "ready", 1);
	free(o.run_dir);
	o.run_dir = strdup("/proc/nowhere");
	CHECK(t, engine_start(&e, &o, NULL, NULL, &em) == ERR_IO);
	CHECK(t, strstr(em.text, "/proc/nowhere") != NULL);
	options_fini(&o);
}

static void test_interrupt(struct tests *t, const char *run_dir)
{
	struct options o;
	struct engine e;
	struct err_msg em = {""};
	sigset_t set, old;

	make_options(&o, run_dir);
	setenv("FAKE_WORKER", "sleep=60000", 1);
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, &old);
	raise(SIGINT); /* as if it came while the engine loads */
	CHECK(t, engine_start(&e, &o, NULL, NULL, &em) == ERR_ABORTED);
	CHECK(t, e.pid == 0);
	CHECK(t, access(run_dir, F_OK) != 0);
	signal(SIGINT, SIG_IGN); /* takes the pending one away */
	signal(SIGINT, SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	setenv("FAKE_WORKER", "ready", 1);
	options_fini(&o);
}

/* The command is killed: nobody can tell the engine, and still it ends. */
static void test_orphan(struct tests *t, const char *self, const char *run_dir)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(self, self, "hold", run_dir, (char *)NULL);
		_exit(98);
	}
	char lock[256];
	snprintf(lock, sizeof(lock), "%s/held", getenv("FAKE_DIR"));
	CHECK(t, there_within(lock, 20000));
	CHECK(t, access(run_dir, F_OK) == 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(t, gone_within(run_dir, 10000));
}

static int hold(const char *run_dir)
{
	struct options o;
	struct engine e;
	struct err_msg em;
	char path[256];

	make_options(&o, run_dir);
	if (engine_start(&e, &o, NULL, NULL, &em) != ERR_OK)
		return 97;
	snprintf(path, sizeof(path), "%s/held", getenv("FAKE_DIR"));
	FILE *f = fopen(path, "w");
	if (f != NULL)
		fclose(f);
	for (;;)
		pause();
}

static int serve(int argc, char **argv)
{
	struct options o;
	struct err_msg em = {""};

	if (options_init(&o) != ERR_OK || options_read_args(&o, argc - 1, argv + 1, &em) != ERR_OK)
		return 96;
	int status = supervisor_serve(&o);
	options_fini(&o);
	return status;
}

static void make_fakes(const char *dir, const char *fake)
{
	static const char *const roles[] = {"scheduler", "detok", "worker", "gateway"};
	char path[256];

	for (size_t i = 0; i < COUNT_OF(roles); i++) {
		snprintf(path, sizeof(path), "%s/tercet-%s", dir, roles[i]);
		if (symlink(fake, path) < 0)
			exit(95);
	}
	setenv("TERCET_LIBEXEC", dir, 1);
	setenv("FAKE_DIR", dir, 1);
}

int main(int argc, char **argv)
{
	struct tests t = {0, 0};
	char dir[] = "/tmp/test_engine_XXXXXX", run_dir[64], command[64];

	if (argc > 1 && strcmp(argv[1], "serve") == 0)
		return serve(argc, argv);
	if (argc > 2 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2]);
	if (argc < 2 || mkdtemp(dir) == NULL) {
		fprintf(stderr, "usage: test_engine FAKE_CHILD\n");
		return 2;
	}
	make_fakes(dir, argv[1]);
	snprintf(run_dir, sizeof(run_dir), "%s/run", dir);
	test_life(&t, run_dir);
	test_failures(&t, run_dir);
	test_interrupt(&t, run_dir);
	test_orphan(&t, "/proc/self/exe", run_dir);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	t.failed += system(command) != 0;
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed != 0;
}
