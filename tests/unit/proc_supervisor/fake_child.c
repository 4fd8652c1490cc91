/* A process of the engine that does what its script says: the supervisor is tested with it. The script is in
 * FAKE_<ROLE> (FAKE_SCHEDULER, ...), words separated by ';':
 *   progress=X  sleep=MS  ready=FACTS  fail=TEXT  exit=N  crash  deaf (ignores stop)  child (starts a
 * sleeping process) frozen (does nothing more)  stuck (work and no progress)  idle (a page without work)  env=FILE
 * (writes the environment)  args=FILE drain=MS (how long a drain takes) With FAKE_<ROLE>_FIRST the first
 * spawn runs that instead. FAKE_DIR holds what was spawned and ended. At the end of the script it serves
 * until it is told to stop. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/options.h"
#include "common/shm_stats.h"
#include "ipc/ipc.h"

extern char **environ;

struct fake {
	struct boot boot;
	struct options options;
	struct stats_page *page;
	int argc;
	char **argv;
	char name[32];
	bool deaf;
	bool is_gateway;
	long drain_ms;
};

static void sleep_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&t, NULL);
}

static void record(const struct fake *f, const char *what)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/log", getenv("FAKE_DIR"));
	FILE *log = fopen(path, "a");
	if (log == NULL)
		return;
	fprintf(log, "%s %s %d\n", what, f->name, (int)getpid());
	fclose(log);
}

static void write_lines(const char *path, char **lines)
{
	FILE *out = fopen(path, "w");

	if (out == NULL)
		exit(99);
	for (; *lines != NULL; lines++)
		fprintf(out, "%s\n", *lines);
	fclose(out);
}

static void open_page(struct fake *f, bool busy)
{
	struct err_msg em;

	if (stats_create(&f->page, f->options.run_dir, f->name, &em) != ERR_OK)
		exit(98);
	if (busy)
		stats_busy(f->page, clock_now_ns());
}

static void do_word(struct fake *f, const char *word)
{
	const char *value = strchr(word, '=');
	struct err_msg em;

	value = value != NULL ? value + 1 : "";
	if (strncmp(word, "progress=", 9) == 0) {
		boot_progress(&f->boot, atof(value), "loading weights");
	} else if (strncmp(word, "sleep=", 6) == 0) {
		sleep_ms(atol(value));
	} else if (strncmp(word, "ready", 5) == 0) {
		boot_ready(&f->boot, "%s", value);
	} else if (strncmp(word, "fail=", 5) == 0) {
		err_set(&em, ERR_IO, "%s", value);
		boot_failed(&f->boot, &em);
		_exit(1);
	} else if (strncmp(word, "exit=", 5) == 0) {
		_exit(atoi(value));
	} else if (strcmp(word, "crash") == 0) {
		signal(SIGSEGV, SIG_DFL); /* a sanitizer would make an exit of it */
		raise(SIGSEGV);
	} else if (strcmp(word, "frozen") == 0) {
		for (;;)
			pause();
	} else if (strcmp(word, "deaf") == 0) {
		f->deaf = true;
	} else if (strcmp(word, "child") == 0) {
		if (fork() == 0) {
			execlp("sleep", "sleep", "1000", (char *)NULL);
			exit(97);
		}
	} else if (strcmp(word, "stuck") == 0 || strcmp(word, "idle") == 0) {
		open_page(f, word[0] == 's');
	} else if (strncmp(word, "env=", 4) == 0) {
		write_lines(value, environ);
	} else if (strncmp(word, "args=", 5) == 0) {
		write_lines(value, f->argv);
	} else if (strncmp(word, "drain=", 6) == 0) {
		f->drain_ms = atol(value);
	}
}

static void serve(struct fake *f)
{
	struct pollfd p = {.fd = f->boot.fd, .events = POLLIN};

	for (;;) {
		poll(&p, 1, -1);
		enum boot_command command = boot_poll(&f->boot);
		if (command == BOOT_DRAIN) {
			record(f, "drain");
			sleep_ms(f->drain_ms);
			if (f->is_gateway)
				return;
			boot_note(&f->boot, "drained=1");
		}
		if (command == BOOT_STOP) {
			record(f, "stop");
			if (!f->deaf)
				return;
			for (;;)
				pause();
		}
	}
}

/* Whether nobody of this name was spawned before. */
static bool is_first(const struct fake *f)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s.spawned", getenv("FAKE_DIR"), f->name);
	if (access(path, F_OK) == 0)
		return false;
	FILE *mark = fopen(path, "w");
	if (mark != NULL)
		fclose(mark);
	return true;
}

int main(int argc, char **argv)
{
	struct fake f = {.argc = argc, .argv = argv, .drain_ms = 0};
	const char *role = strrchr(argv[0], '-') + 1, *rank = getenv("TERCET_RANK");
	char variable[64];
	struct err_msg em = {""};

	f.is_gateway = strcmp(role, "gateway") == 0;
	if (f.is_gateway || strcmp(role, "worker") == 0)
		snprintf(f.name, sizeof(f.name), "%.16s-%.8s", role, rank);
	else
		snprintf(f.name, sizeof(f.name), "%.16s", role);
	if (boot_attach(&f.boot, &em) != ERR_OK || options_init(&f.options) != ERR_OK ||
	    options_read_args(&f.options, argc, argv, &em) != ERR_OK) {
		fprintf(stderr, "fake: %s\n", em.text);
		return 96;
	}
	record(&f, "spawn");
	snprintf(variable, sizeof(variable), "FAKE_%.16s_FIRST", role);
	for (char *p = variable; *p != '\0'; p++)
		*p = (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
	const char *script = is_first(&f) ? getenv(variable) : NULL;
	if (script == NULL) {
		variable[strlen(variable) - strlen("_FIRST")] = '\0';
		script = getenv(variable);
	}
	char *words = strdup(script != NULL ? script : "ready"), *rest = words;
	for (char *word; (word = strsep(&rest, ";")) != NULL;)
		do_word(&f, word);
	serve(&f);
	record(&f, "end");
	free(words);
	stats_destroy(&f.page);
	options_fini(&f.options);
	return 0;
}
