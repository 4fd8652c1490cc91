/* The child's side of the handshake with the supervisor. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/ipc.h"

/* Runs `child` in a forked process that has inherited one end; returns our end and the child's pid. */
static int spawn(void (*child)(void), pid_t *pid)
{
	int ends[2];
	char text[16];
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	snprintf(text, sizeof(text), "%d", ends[1]);
	*pid = fork();
	if (*pid == 0) {
		close(ends[0]);
		setenv("TERCET_BOOT_FD", text, 1);
		child();
		_exit(99);
	}
	close(ends[1]);
	return ends[0];
}

static void child_says_everything(void)
{
	struct boot b;
	struct err_msg em = {.text = "no\nsuch model"};
	if (boot_attach(&b, &em) != ERR_OK || getenv("TERCET_BOOT_FD") || !(fcntl(b.fd, F_GETFD) & FD_CLOEXEC))
		_exit(1);
	boot_progress(&b, 0.425, "loading weights");
	boot_note(&b, "port=%d", 8000);
	boot_ready(&b, "blocks=%d", 128);
	boot_failed(&b, &(struct err_msg){.text = "no\nsuch model"});
	enum boot_command c;
	while ((c = boot_poll(&b)) == BOOT_NONE)
		usleep(1000);
	if (c != BOOT_DRAIN)
		_exit(2);
	while ((c = boot_poll(&b)) == BOOT_NONE)
		usleep(1000);
	_exit(c == BOOT_STOP && !b.orphaned ? 0 : 3);
}

static int exit_code(pid_t pid)
{
	int status;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Test(boot, lines_go_up_and_commands_come_down)
{
	static const char expected[] = "progress 0.425 loading weights\nnote port=8000\nready blocks=128\n"
				       "failed no such model\n";
	pid_t pid;
	char text[512] = "";
	size_t bytes = 0;
	int fd = spawn(child_says_everything, &pid);
	while (bytes < sizeof(expected) - 1) {
		ssize_t n = read(fd, text + bytes, sizeof(text) - 1 - bytes);
		cr_assert_gt(n, 0);
		bytes += (size_t)n;
	}
	cr_assert_str_eq(text, expected);
	cr_assert_eq(write(fd, "nonsense\ndra", 12), 12);
	usleep(10000);
	cr_assert_eq(write(fd, "in\nstop\n", 8), 8);
	cr_assert_eq(exit_code(pid), 0);
	close(fd);
}

static void child_waits_for_the_end(void)
{
	struct boot b;
	struct err_msg em;
	enum boot_command c;
	if (boot_attach(&b, &em) != ERR_OK)
		_exit(1);
	boot_ready(&b, "x=1");
	while ((c = boot_poll(&b)) == BOOT_NONE)
		usleep(1000);
	_exit(c == BOOT_STOP && b.orphaned ? 0 : 3);
}

Test(boot, a_closed_end_means_stop)
{
	pid_t pid;
	char text[64];
	int fd = spawn(child_waits_for_the_end, &pid);
	cr_assert_gt(read(fd, text, sizeof(text)), 0);
	close(fd);
	cr_assert_eq(exit_code(pid), 0);
}

static void child_comes_too_late(void)
{
	struct boot b;
	struct err_msg em;
	usleep(50000);
	_exit(boot_attach(&b, &em) == ERR_GONE && b.fd == -1 ? 0 : 1);
}

Test(boot, a_supervisor_that_is_gone_already_is_noticed)
{
	pid_t pid;
	int fd = spawn(child_comes_too_late, &pid);
	close(fd);
	cr_assert_eq(exit_code(pid), 0);
}

Test(boot, started_by_hand_everything_succeeds_and_does_nothing)
{
	struct boot b;
	unsetenv("TERCET_BOOT_FD");
	cr_assert_eq(boot_attach(&b, NULL), ERR_OK);
	boot_progress(&b, 1, "x");
	boot_ready(&b, "x");
	cr_assert_eq(boot_poll(&b), BOOT_NONE);
}

Test(boot, a_descriptor_that_is_none_is_named)
{
	struct boot b;
	struct err_msg em;
	setenv("TERCET_BOOT_FD", "seven", 1);
	cr_assert_eq(boot_attach(&b, &em), ERR_INVALID);
	cr_assert_str_eq(em.text, "TERCET_BOOT_FD='seven' is no open descriptor");
	setenv("TERCET_BOOT_FD", "900", 1);
	cr_assert_eq(boot_attach(&b, &em), ERR_INVALID);
}

static void child_never_looks(void)
{
	struct boot b;
	struct err_msg em;
	if (boot_attach(&b, &em) != ERR_OK)
		_exit(1);
	boot_ready(&b, "x=1");
	for (;;)
		pause();
}

/* A grandchild whose parent dies is killed by the signal that boot_attach asked for. */
Test(boot, a_child_dies_with_its_parent)
{
	int report[2];
	cr_assert_eq(pipe(report), 0);
	pid_t parent = fork();
	if (parent == 0) {
		pid_t child;
		char text[64];
		int fd = spawn(child_never_looks, &child);
		if (read(fd, text, sizeof(text)) <= 0)
			_exit(1);
		if (write(report[1], &child, sizeof(child)) != sizeof(child))
			_exit(1);
		_exit(0);
	}
	pid_t grandchild;
	cr_assert_eq(read(report[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
	cr_assert_eq(exit_code(parent), 0);
	int alive = 0;
	for (u32 i = 0; i < 2000 && (alive = kill(grandchild, 0)) == 0; i++)
		usleep(1000);
	cr_assert_neq(alive, 0);
	close(report[0]);
	close(report[1]);
}
