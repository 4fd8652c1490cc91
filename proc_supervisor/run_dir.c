/* Owns the run directory of an engine. Runs in the supervisor only. It must never remove what it did not put
 * there: a directory that held something before keeps everything that has none of our names. */
#include "proc_supervisor/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/ipc.h"

enum { STALE_AGE_S = 10 };

static const char lock_name[] = "lock";
/* The longest endpoint name decides whether socket paths fit. */
static const char longest_endpoint[] = "streams";

/* ---------------------------------------------------------------- removing */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)where;
	if (kind == FTW_DP)
		rmdir(path);
	else
		unlink(path);
	return 0;
}

static void remove_tree(const char *path)
{
	nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void remove_content(const char *path, bool all)
{
	struct dirent *entry;
	DIR *dir = opendir(path);

	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL) {
		const char *name = entry->d_name;
		bool ours = entry->d_type == DT_SOCK || strcmp(name, "stats") == 0 ||
			    strcmp(name, "trace") == 0 || strcmp(name, "sessions") == 0 || strcmp(name, lock_name) == 0;
		char whole[512];
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (!all && !ours))
			continue;
		if (snprintf(whole, sizeof(whole), "%s/%s", path, name) < (int)sizeof(whole))
			remove_tree(whole);
	}
	closedir(dir);
}

/* ---------------------------------------------------------------- stale ones */

/* Left by an engine that was killed: nobody holds its lock, and it did not come into being just now. */
static bool is_stale(const char *path)
{
	struct stat st;
	char lock[600];

	if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return false;
	snprintf(lock, sizeof(lock), "%s/%s", path, lock_name);
	int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	bool stale = fstat(fd, &st) == 0 && time(NULL) - st.st_mtime > STALE_AGE_S &&
		     flock(fd, LOCK_EX | LOCK_NB) == 0;
	close(fd);
	return stale;
}

static void remove_stale(const char *base)
{
	struct dirent *entry;
	DIR *dir = opendir(base);

	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL) {
		char path[512];
		if (strncmp(entry->d_name, "tercet-", 7) != 0 || strlen(entry->d_name) != 13 ||
		    snprintf(path, sizeof(path), "%s/%s", base, entry->d_name) >= (int)sizeof(path))
			continue;
		if (is_stale(path))
			remove_tree(path);
	}
	closedir(dir);
}

/* ---------------------------------------------------------------- making */

static bool fits(const char *path)
{
	char endpoint[256];

	return strlen(path) < sizeof(((struct run_dir *)0)->path) &&
	       ipc_endpoint(endpoint, sizeof(endpoint), path, longest_endpoint, NULL) == ERR_OK;
}

static enum err make_fresh(struct run_dir *d, struct err_msg *em)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	const char *bases[] = {runtime, "/tmp"};
	int error = 0;

	for (size_t i = 0; i < COUNT_OF(bases); i++) {
		char path[512];
		if (bases[i] == NULL || bases[i][0] != '/' ||
		    snprintf(path, sizeof(path), "%s/tercet-XXXXXX", bases[i]) >= (int)sizeof(path) ||
		    !fits(path))
			continue;
		remove_stale(bases[i]);
		if (mkdtemp(path) != NULL) {
			snprintf(d->path, sizeof(d->path), "%s", path);
			d->created = d->was_empty = true;
			return ERR_OK;
		}
		error = errno;
	}
	return err_set(em, ERR_IO,
		       "cannot make a run directory in /tmp: %s; name a writable one with --run-dir",
		       strerror(error));
}

static bool is_empty(const char *path)
{
	struct dirent *entry;
	DIR *dir = opendir(path);
	bool empty = dir != NULL;

	while (dir != NULL && (entry = readdir(dir)) != NULL)
		empty &= strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	if (dir != NULL)
		closedir(dir);
	return empty;
}

static enum err take_existing(struct run_dir *d, struct err_msg *em)
{
	struct stat st;

	if (stat(d->path, &st) < 0)
		return err_set(em, ERR_IO, "run directory %s: %s", d->path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(em, ERR_IO, "run directory %s: it is not a directory", d->path);
	d->was_empty = is_empty(d->path);
	if ((st.st_mode & 077) != 0 && d->was_empty && chmod(d->path, 0700) == 0)
		return ERR_OK;
	if ((st.st_mode & 077) != 0)
		return err_set(em, ERR_DENIED,
			       "run directory %s: other users may enter it (mode %03o); it must have mode "
			       "700",
			       d->path, (unsigned)(st.st_mode & 0777));
	return ERR_OK;
}

static enum err take_wanted(struct run_dir *d, const char *wanted, struct err_msg *em)
{
	char cwd[256] = "", path[512];

	if (wanted[0] != '/' && getcwd(cwd, sizeof(cwd)) == NULL)
		return err_set(em, ERR_IO, "run directory %s: %s", wanted, strerror(errno));
	int n = snprintf(path, sizeof(path), "%s%s%s", cwd, cwd[0] != '\0' ? "/" : "", wanted);
	while (n > 1 && n < (int)sizeof(path) && path[n - 1] == '/')
		path[--n] = '\0';
	if (n >= (int)sizeof(path) || !fits(path))
		return err_set(em, ERR_TOO_LONG,
			       "run directory %.300s: the paths of its sockets would be longer than 107 "
			       "bytes; choose a shorter one with --run-dir",
			       path);
	snprintf(d->path, sizeof(d->path), "%.*s", (int)sizeof(d->path) - 1, path);
	if (mkdir(d->path, 0700) == 0) {
		d->created = d->was_empty = true;
		return ERR_OK;
	}
	if (errno != EEXIST)
		return err_set(em, ERR_IO, "run directory %s: %s; name a writable one with --run-dir",
			       d->path, strerror(errno));
	return take_existing(d, em);
}

static enum err take_lock(struct run_dir *d, struct err_msg *em)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", d->path, lock_name);
	d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (d->lock_fd < 0)
		return err_set(em, ERR_IO, "run directory %s: %s; name a writable one with --run-dir",
			       d->path, strerror(errno));
	if (flock(d->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		close(d->lock_fd);
		d->lock_fd = -1;
		return err_set(em, ERR_BUSY, "run directory %s: another engine runs in it", d->path);
	}
	if (ftruncate(d->lock_fd, 0) == 0)
		dprintf(d->lock_fd, "%d\n", (int)getpid());
	return ERR_OK;
}

enum err run_dir_open(struct run_dir *d, const char *wanted, struct err_msg *em)
{
	enum err e;

	*d = (struct run_dir){.lock_fd = -1};
	e = wanted[0] != '\0' ? take_wanted(d, wanted, em) : make_fresh(d, em);
	if (e == ERR_OK)
		e = take_lock(d, em);
	if (e != ERR_OK) {
		if (d->created)
			rmdir(d->path);
		*d = (struct run_dir){.lock_fd = -1};
		return e;
	}
	if (!d->was_empty) {
		/* Sockets and pages of a crashed engine; the lock is ours now and stays. */
		char path[256];
		snprintf(path, sizeof(path), "%s/stats", d->path);
		remove_tree(path);
		snprintf(path, sizeof(path), "%s/trace", d->path);
		remove_tree(path);
		snprintf(path, sizeof(path), "%s/sessions", d->path);
		remove_tree(path);
	}
	return ERR_OK;
}

void run_dir_close(struct run_dir *d)
{
	if (d->lock_fd < 0)
		return;
	remove_content(d->path, d->was_empty);
	if (d->created)
		rmdir(d->path);
	close(d->lock_fd);
	*d = (struct run_dir){.lock_fd = -1};
}
