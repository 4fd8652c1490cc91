/* Owns the mapping that the ranks of a host share: the first one makes its file, the others wait for it, and all look after each other's processes
 * from then on, until they leave. Runs in every worker of a tensor-parallel group, when it begins and ends. */
#include "proc_worker/collectives_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "common/assert.h"
#include "common/clock.h"

static const u64 MAGIC = 0x3143454c4c4f4354u; /* "TCOLLEC1" */

enum { POLL_MS = 5 };

static size_t file_bytes(u32 ranks, size_t buffer_bytes)
{
	return HEAD_BYTES + 2 * (size_t)ranks * buffer_bytes;
}

static enum err map_file(struct collectives *c, int fd, struct err_msg *em)
{
	void *p = mmap(NULL, c->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return err_set(em, ERR_NO_MEMORY, "%s: cannot map %zu bytes: %s", c->path, c->mapped_bytes,
			       strerror(errno));
	c->shared = p;
	return ERR_OK;
}

/* The first rank here: a complete file appears under the final name, whatever an earlier group left there. */
static enum err create_file(struct collectives *c, struct err_msg *em)
{
	char fresh[sizeof(c->path) + 8];

	snprintf(fresh, sizeof(fresh), "%s.new", c->path);
	unlink(fresh);
	int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_set(em, ERR_IO, "%s: %s", fresh, strerror(errno));
	int rc = posix_fallocate(
		fd, 0, (off_t)c->mapped_bytes); /* a full disk is an error here, not a fault later */
	enum err e = rc ? err_set(em, ERR_NO_SPACE, "%s: %zu bytes for the exchange between workers: %s",
				  fresh, c->mapped_bytes, strerror(rc))
			: map_file(c, fd, em);
	close(fd);
	if (!e) {
		c->shared->ranks = c->ranks;
		c->shared->buffer_bytes = c->buffer_bytes;
		c->shared->group = c->group;
		atomic_store(&c->shared->lines[c->rank].pid, getpid());
		atomic_store(&c->shared->magic, MAGIC);
		if (rename(fresh, c->path) < 0)
			e = err_set(em, ERR_IO, "%s: %s", c->path, strerror(errno));
	}
	if (e)
		unlink(fresh);
	return e;
}

static bool creator_is_alive(const struct collectives *c)
{
	int fd = (int)syscall(SYS_pidfd_open, atomic_load(&c->shared->lines[c->first].pid), 0);
	bool alive = fd >= 0 && !process_is_dead(fd);

	if (fd >= 0)
		close(fd);
	return alive;
}

static enum err check_shared(const struct collectives *c, size_t wanted_bytes, struct err_msg *em)
{
	const struct shared *s = c->shared;

	if (atomic_load(&s->magic) == MAGIC && s->ranks == c->ranks && s->buffer_bytes == c->buffer_bytes &&
	    c->mapped_bytes == wanted_bytes)
		return ERR_OK;
	return err_set(em, ERR_INVALID,
		       "%s: made for %u workers and %llu bytes; this worker has %u and %zu: all workers "
		       "need the same options",
		       c->path, s->ranks, (unsigned long long)s->buffer_bytes, c->ranks, c->buffer_bytes);
}

/* Other ranks: ERR_AGAIN while the file is not there or belongs to a group that has died. */
static enum err open_file(struct collectives *c, struct err_msg *em)
{
	struct stat st;
	size_t wanted = file_bytes(c->ranks, c->buffer_bytes);

	int fd = open(c->path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? ERR_AGAIN : err_set(em, ERR_IO, "%s: %s", c->path, strerror(errno));
	enum err e = ERR_AGAIN;
	if (fstat(fd, &st) == 0 && st.st_size >= HEAD_BYTES) {
		c->mapped_bytes = (size_t)st.st_size;
		e = map_file(c, fd, em);
	}
	close(fd);
	if (e)
		return e;
	if (creator_is_alive(c))
		return check_shared(c, wanted, em);
	munmap(c->shared, c->mapped_bytes);
	c->shared = NULL;
	return ERR_AGAIN;
}

static enum err open_or_wait(struct collectives *c, struct err_msg *em)
{
	u64 end = clock_now_ns() + c->most_ns;
	struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
	enum err e;

	while ((e = open_file(c, em)) == ERR_AGAIN) {
		if (clock_now_ns() > end)
			return err_set(em, ERR_TIMEOUT, "worker %u did not make %s within %llu ms", c->first,
				       c->path, (unsigned long long)(c->most_ns / MS));
		nanosleep(&pause, NULL);
	}
	if (e)
		return e;
	c->group = c->shared->group;
	atomic_store(&c->shared->lines[c->rank].pid, getpid());
	announce(&c->shared->lines[c->rank]);
	return ERR_OK;
}

static enum err meet(struct collectives *c, struct err_msg *em)
{
	for (u32 r = c->first; r < c->first + c->here; r++) {
		if (r == c->rank)
			continue;
		enum err e = collectives_wait_joined(c, r, em);
		if (e)
			return e;
		c->pidfds[r] = (int)syscall(SYS_pidfd_open, atomic_load(&c->shared->lines[r].pid), 0);
		if (c->pidfds[r] < 0)
			return err_set(em, ERR_GONE, "worker %u (pid %d) has died", r,
				       atomic_load(&c->shared->lines[r].pid));
	}
	return ERR_OK;
}

enum err collectives_join(struct collectives **out, const struct collectives_config *config,
			  struct err_msg *em)
{
	*out = NULL;
	ASSERT(config->ranks >= 2 && config->ranks <= COLLECTIVES_RANKS_MAX && config->rank < config->ranks);
	ASSERT(!config->nodes || config->ranks % config->nodes->count == 0);
	struct collectives *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	c->rank = config->rank;
	c->ranks = config->ranks;
	c->here = config->ranks / (config->nodes ? config->nodes->count : 1);
	c->first = config->nodes ? config->nodes->index * c->here : 0;
	c->buffer_bytes = (config->buffer_bytes + 63) & ~(size_t)63;
	c->mapped_bytes = file_bytes(c->ranks, c->buffer_bytes);
	collectives_set_timeout(c, config->join_timeout_ms, config->join_timeout_ms);
	c->left_ns = clock_now_ns();
	c->threads = config->threads;
	pthread_mutex_init(&c->lost_mutex, NULL);
	for (u32 r = 0; r < COLLECTIVES_RANKS_MAX; r++)
		c->pidfds[r] = -1;
	enum err e = ERR_OK;
	if ((size_t)snprintf(c->path, sizeof(c->path), "%s/collectives", config->run_dir) >= sizeof(c->path))
		e = err_set(em, ERR_TOO_LONG, "the run directory's path is longer than %zu bytes",
			    sizeof(c->path) - 16);
	if (!e && getrandom(&c->group, sizeof(c->group), 0) != (ssize_t)sizeof(c->group))
		e = err_set(em, ERR_IO, "no random bytes: %s", strerror(errno));
	if (!e)
		e = c->rank == c->first ? create_file(c, em) : open_or_wait(c, em);
	if (!e)
		e = meet(c, em);
	if (!e && c->here < c->ranks)
		e = collectives_build_bridge(c, config, em);
	if (e)
		collectives_leave(&c);
	else
		*out = c;
	return e;
}

void collectives_leave(struct collectives **out)
{
	struct collectives *c = *out;

	if (!c)
		return;
	bridge_leave(&c->bridge, c->farewell);
	for (u32 r = 0; r < c->ranks; r++)
		if (c->pidfds[r] >= 0)
			close(c->pidfds[r]);
	if (c->rank == c->first && c->shared)
		unlink(c->path);
	if (c->shared)
		munmap(c->shared, c->mapped_bytes);
	pthread_mutex_destroy(&c->lost_mutex);
	free(c);
	*out = NULL;
}
