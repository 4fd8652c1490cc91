#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "proc_supervisor/run_dir.h"

static char base[32], path[160];
static struct err_msg em;
static struct run_dir d;

static void set_up(void)
{
	strcpy(base, "/tmp/test_run_XXXXXX");
	cr_assert_not_null(mkdtemp(base));
	setenv("XDG_RUNTIME_DIR", base, 1);
}

static void tear_down(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", base);
	cr_assert_eq(system(command), 0);
}

TestSuite(run_dir, .init = set_up, .fini = tear_down);

static const char *in_base(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", base, name);
	return path;
}

static void make_file(const char *name)
{
	int fd = open(in_base(name), O_CREAT | O_WRONLY, 0600);

	cr_assert_geq(fd, 0);
	close(fd);
}

static bool there(const char *name)
{
	return access(in_base(name), F_OK) == 0;
}

Test(run_dir, a_fresh_one_is_private_and_goes_away)
{
	struct stat st;

	cr_assert_eq(run_dir_open(&d, "", &em), ERR_OK, "%s", em.text);
	cr_assert_eq(strncmp(d.path, base, strlen(base)), 0);
	cr_assert_eq(stat(d.path, &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0700);
	char copy[160], inside[300];
	strcpy(copy, d.path);
	snprintf(inside, sizeof(inside), "%s/stats", copy);
	mkdir(inside, 0700);
	snprintf(inside, sizeof(inside), "%s/stats/worker-0", copy);
	close(open(inside, O_CREAT | O_WRONLY, 0600));
	run_dir_close(&d);
	cr_assert_eq(access(copy, F_OK), -1);
	run_dir_close(&d);
}

Test(run_dir, a_named_one_is_made_and_removed)
{
	char wanted[160];

	strcpy(wanted, in_base("mine/"));
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_OK);
	cr_assert_str_eq(d.path, in_base("mine"));
	run_dir_close(&d);
	cr_assert_not(there("mine"));
}

Test(run_dir, an_empty_one_becomes_private_and_stays)
{
	struct stat st;
	char wanted[160];

	strcpy(wanted, in_base("mine"));
	mkdir(wanted, 0755);
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_OK);
	cr_assert_eq(stat(wanted, &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0700);
	make_file("mine/anything");
	run_dir_close(&d);
	cr_assert(there("mine"));
	cr_assert_not(there("mine/anything"));
}

Test(run_dir, what_was_there_before_stays)
{
	char wanted[160];

	strcpy(wanted, in_base("mine"));
	mkdir(wanted, 0700);
	make_file("mine/precious");
	mkdir(in_base("mine/stats"), 0700);
	make_file("mine/stats/old");
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_OK);
	cr_assert_not(there("mine/stats"));
	run_dir_close(&d);
	cr_assert(there("mine/precious"));
	cr_assert_not(there("mine/lock"));
}

Test(run_dir, one_that_others_may_enter_is_refused)
{
	char wanted[160];

	strcpy(wanted, in_base("mine"));
	mkdir(wanted, 0755);
	make_file("mine/precious");
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_DENIED);
	cr_assert_not_null(strstr(em.text, "mode 755"), "%s", em.text);
	cr_assert(there("mine/precious"));
}

Test(run_dir, one_in_use_is_refused_and_left_alone)
{
	struct run_dir second;
	char wanted[160];

	strcpy(wanted, in_base("mine"));
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_OK);
	cr_assert_eq(run_dir_open(&second, wanted, &em), ERR_BUSY);
	cr_assert_not_null(strstr(em.text, "another engine runs in it"));
	run_dir_close(&second);
	cr_assert(there("mine/lock"));
	run_dir_close(&d);
}

Test(run_dir, paths_too_long_for_sockets_are_refused)
{
	char wanted[200];

	snprintf(wanted, sizeof(wanted), "%s/%0*d", base, 90, 0);
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_TOO_LONG);
	cr_assert_not_null(strstr(em.text, "107 bytes"));
	memset(wanted, 'a', sizeof(wanted));
	wanted[0] = '/';
	wanted[sizeof(wanted) - 1] = '\0';
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_TOO_LONG);
}

Test(run_dir, a_place_that_cannot_be_written_is_named)
{
	cr_assert_eq(run_dir_open(&d, "/proc/nowhere", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "run directory /proc/nowhere"));
	make_file("file");
	char wanted[160];
	strcpy(wanted, in_base("file"));
	cr_assert_eq(run_dir_open(&d, wanted, &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "not a directory"));
}

Test(run_dir, a_base_whose_path_is_too_long_is_passed_over)
{
	char longer[300];

	snprintf(longer, sizeof(longer), "%s/%0*d", base, 95, 0);
	mkdir(longer, 0700);
	setenv("XDG_RUNTIME_DIR", longer, 1);
	cr_assert_eq(run_dir_open(&d, "", &em), ERR_OK);
	cr_assert_eq(strncmp(d.path, "/tmp/tercet-", 12), 0);
	run_dir_close(&d);
}

/* A lock that nobody holds, and older than a start takes. */
static void make_dead(const char *name, bool old)
{
	struct timeval times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	char file[64];

	mkdir(in_base(name), 0700);
	snprintf(file, sizeof(file), "%s/lock", name);
	make_file(file);
	if (old)
		cr_assert_eq(utimes(in_base(file), times), 0);
}

Test(run_dir, directories_of_dead_engines_are_cleared_away)
{
	make_dead("tercet-dead01", true);
	make_dead("tercet-young1", false);
	make_dead("tercet-other-name", true);
	mkdir(in_base("tercet-nolock"), 0700);
	cr_assert_eq(run_dir_open(&d, "", &em), ERR_OK);
	cr_assert_not(there("tercet-dead01"));
	cr_assert(there("tercet-young1"));
	cr_assert(there("tercet-other-name"));
	cr_assert(there("tercet-nolock"));
	run_dir_close(&d);
}

Test(run_dir, the_directory_of_a_living_engine_is_never_cleared_away)
{
	struct run_dir second;
	struct timeval times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	char lock[200];

	cr_assert_eq(run_dir_open(&d, "", &em), ERR_OK);
	snprintf(lock, sizeof(lock), "%s/lock", d.path);
	cr_assert_eq(utimes(lock, times), 0);
	cr_assert_eq(run_dir_open(&second, "", &em), ERR_OK);
	cr_assert_eq(access(lock, F_OK), 0);
	run_dir_close(&second);
	run_dir_close(&d);
}
