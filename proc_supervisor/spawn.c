/* posix_spawn with everything that keeps a child from outliving, disturbing or outlistening its parent. fork
 * would copy page tables; nothing here runs between fork and exec. */
#include "proc_supervisor/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cluster_secret.h"

extern char **environ;

/* A NULL-terminated list of strings in one buffer. */
struct words {
	struct buf text; /* one behind the other, each with its NUL */
	char **list;
};

static void words_add(struct words *w, const char *word)
{
	buf_append(&w->text, word, strlen(word) + 1);
}

static void words_fini(struct words *w)
{
	free(w->list);
	buf_fini(&w->text);
}

/* Makes the list once the text no longer moves. */
static bool words_close(struct words *w)
{
	size_t count = 0, i = 0;

	if (!buf_ok(&w->text))
		return false;
	for (size_t k = 0; k < w->text.bytes; k++)
		count += w->text.data[k] == '\0';
	w->list = calloc(count + 1, sizeof(*w->list));
	if (w->list == NULL)
		return false;
	for (size_t k = 0; k < w->text.bytes; k += strlen(w->text.data + k) + 1)
		w->list[i++] = w->text.data + k;
	return true;
}

static bool make_arguments(struct words *w, const char *path, const char *first_arg, const struct options *o)
{
	const char *slash = strrchr(path, '/');

	words_add(w, slash != NULL ? slash + 1 : path);
	if (first_arg != NULL)
		words_add(w, first_arg);
	options_to_args(o, &w->text);
	return words_close(w);
}

/* Variables of ours that describe this process and not its children. */
static bool is_own_variable(const char *entry)
{
	static const char *const own[] = {"TERCET_BOOT_FD=", "TERCET_RANK=", "NOTIFY_SOCKET=", "WATCHDOG_"};

	for (size_t i = 0; i < COUNT_OF(own); i++)
		if (strncmp(entry, own[i], strlen(own[i])) == 0)
			return true;
	return options_owns_env(entry);
}

static bool is_cluster_secret(const char *entry)
{
	return strncmp(entry, CLUSTER_SECRET_ENV "=", sizeof(CLUSTER_SECRET_ENV)) == 0;
}

static bool make_environment(struct words *w, const struct options *o, u32 rank, u32 secrets, int boot_fd)
{
	char entry[64];

	for (char **e = environ; *e != NULL; e++)
		if (!is_own_variable(*e) && ((secrets & SPAWN_CLUSTER_SECRET) || !is_cluster_secret(*e)))
			words_add(w, *e);
	snprintf(entry, sizeof(entry), "TERCET_BOOT_FD=%d", boot_fd);
	words_add(w, entry);
	snprintf(entry, sizeof(entry), "TERCET_RANK=%u", rank);
	words_add(w, entry);
	if ((secrets & SPAWN_API_KEYS) && o->api_key.count != 0) {
		buf_append_str(&w->text, "TERCET_API_KEY=");
		for (u32 i = 0; i < o->api_key.count; i++)
			buf_printf(&w->text, "%s%s", i != 0 ? "," : "", o->api_key.items[i]);
		buf_append_char(&w->text, '\0');
	}
	return words_close(w);
}

/* An own session, no blocked and no ignored signals but those that the child sets itself. */
static int set_attributes(posix_spawnattr_t *attributes)
{
	sigset_t none, all;

	sigemptyset(&none);
	sigfillset(&all);
	int e = posix_spawnattr_setsigmask(attributes, &none);
	if (e == 0)
		e = posix_spawnattr_setsigdefault(attributes, &all);
	if (e == 0)
		e = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
								 POSIX_SPAWN_SETSID);
	return e;
}

/* The pid, or an error number. */
static int run(pid_t *pid, const char *path, int boot_fd, char **argv, char **envp)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int e = posix_spawn_file_actions_init(&actions);

	if (e != 0)
		return e;
	e = posix_spawnattr_init(&attributes);
	if (e != 0)
		goto destroy_actions;
	e = set_attributes(&attributes);
	if (e == 0)
		e = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (e == 0) /* onto itself: takes close-on-exec away, in the child only */
		e = posix_spawn_file_actions_adddup2(&actions, boot_fd, boot_fd);
	if (e == 0)
		e = posix_spawn(pid, path, &actions, &attributes, argv, envp);
	posix_spawnattr_destroy(&attributes);
destroy_actions:
	posix_spawn_file_actions_destroy(&actions);
	return e;
}

enum err spawn_process(struct spawned *out, const char *path, const char *first_arg, const struct options *o,
		       u32 rank, u32 secrets, struct err_msg *em)
{
	struct words argv = {0}, envp = {0};
	int ends[2];
	enum err e = ERR_OK;

	*out = (struct spawned){.pidfd = -1, .boot_fd = -1};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_set(em, ERR_IO, "socketpair: %s", strerror(errno));
	if (!make_arguments(&argv, path, first_arg, o) ||
	    !make_environment(&envp, o, rank, secrets, ends[1])) {
		e = err_set(em, ERR_NO_MEMORY, "%s: no memory for its arguments", path);
		goto close_ends;
	}
	int failed = run(&out->pid, path, ends[1], argv.list, envp.list);
	if (failed != 0) {
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(failed));
		goto close_ends;
	}
	/* The child is ours and not waited for yet, so the number cannot mean another process. */
	out->pidfd = (int)syscall(SYS_pidfd_open, out->pid, 0);
	if (out->pidfd < 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0) {
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
		kill(out->pid, SIGKILL);
		goto close_ends; /* reaped with the adopted ones */
	}
	out->boot_fd = ends[0];
	ends[0] = -1;
close_ends:
	close(ends[1]);
	if (ends[0] >= 0)
		close(ends[0]);
	words_fini(&envp);
	words_fini(&argv);
	return e;
}
