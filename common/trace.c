/* One ring of spans per process in a file of the run directory. The owner writes without looking back; the
 * supervisor reads the rings when the owners are gone. Never blocks, never allocates after creation. */
#include "common/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"

enum { TRACE_MAGIC = 0x54545231, TRACE_RING = 65536, TRACE_PROCESSES_MAX = 256 };

struct span {
	u64 begin_ns, end_ns, step;
	u32 count, kind;
};

struct trace {
	u32 magic;
	i32 pid;
	char process[32];
	_Atomic u64 next; /* spans written so far; the newest TRACE_RING of them are kept */
	struct span ring[TRACE_RING];
};

enum err trace_create(struct trace **out, const char *run_dir, const char *process, struct err_msg *em)
{
	char path[512];

	*out = NULL;
	if (snprintf(path, sizeof(path), "%s/trace/%s", run_dir, process) >= (int)sizeof(path))
		return err_set(em, ERR_TOO_LONG, "%s: the path of the run directory is too long", run_dir);
	char *slash = strrchr(path, '/');
	*slash = '\0';
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	*slash = '/';
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	struct trace *t = MAP_FAILED;
	int e = posix_fallocate(fd, 0, (off_t)sizeof(*t));
	if (e == 0) {
		t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		e = errno;
	}
	close(fd);
	if (t == MAP_FAILED)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(e));
	/* The spans of a predecessor under the same name stay: they show what happened before it died. */
	if (t->magic != TRACE_MAGIC)
		atomic_store(&t->next, 0);
	t->pid = (i32)getpid();
	snprintf(t->process, sizeof(t->process), "%s", process);
	t->magic = TRACE_MAGIC;
	*out = t;
	return ERR_OK;
}

void trace_destroy(struct trace **t)
{
	if (*t == NULL)
		return;
	munmap(*t, sizeof(**t));
	*t = NULL;
}

void trace_add(struct trace *t, enum trace_span span, u64 begin_ns, u64 end_ns, u64 step, u32 count)
{
	if (t == NULL)
		return;
	DASSERT(span < TRACE_SPAN_COUNT);
	u64 n = atomic_load_explicit(&t->next, memory_order_relaxed);
	t->ring[n % TRACE_RING] = (struct span){begin_ns, end_ns, step, count, (u32)span};
	atomic_store_explicit(&t->next, n + 1, memory_order_release);
}

/* ---------------------------------------------------------------- merging */

struct rings {
	const struct trace *t[TRACE_PROCESSES_MAX];
	u32 count;
};

static int by_process(const void *a, const void *b)
{
	const struct trace *const *x = a, *const *y = b;

	return strncmp((*x)->process, (*y)->process, sizeof((*x)->process));
}

static enum err map_rings(struct rings *r, const char *run_dir, struct err_msg *em)
{
	char path[512];
	struct dirent *entry;

	snprintf(path, sizeof(path), "%s/trace", run_dir);
	DIR *dir = opendir(path);
	if (dir == NULL)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	while (r->count < TRACE_PROCESSES_MAX && (entry = readdir(dir)) != NULL) {
		struct stat st;
		int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0)
			continue;
		void *p = MAP_FAILED;
		if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(struct trace))
			p = mmap(NULL, sizeof(struct trace), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		if (p == MAP_FAILED)
			continue;
		if (((const struct trace *)p)->magic == TRACE_MAGIC)
			r->t[r->count++] = p;
		else
			munmap(p, sizeof(struct trace));
	}
	closedir(dir);
	qsort(r->t, r->count, sizeof(r->t[0]), by_process); /* the same run gives the same file */
	return ERR_OK;
}

static void unmap_rings(struct rings *r)
{
	for (u32 i = 0; i < r->count; i++)
		munmap((void *)(uintptr_t)r->t[i], sizeof(struct trace));
}

static u64 first_kept(const struct trace *t)
{
	u64 next = atomic_load(&t->next);

	return next > TRACE_RING ? next - TRACE_RING : 0;
}

/* A process that was killed may have left one span half written. */
static bool is_whole(const struct span *s)
{
	return s->kind < TRACE_SPAN_COUNT && s->begin_ns != 0 && s->end_ns >= s->begin_ns;
}

static u64 earliest(const struct rings *r)
{
	u64 begin = UINT64_MAX;

	for (u32 i = 0; i < r->count; i++)
		for (u64 n = first_kept(r->t[i]); n < atomic_load(&r->t[i]->next); n++) {
			const struct span *s = &r->t[i]->ring[n % TRACE_RING];
			if (is_whole(s) && s->begin_ns < begin)
				begin = s->begin_ns;
		}
	return begin == UINT64_MAX ? 0 : begin;
}

static void write_ring(FILE *out, const struct trace *t, u32 index, u64 origin_ns)
{
	static const char *const names[] = {
#define TRACE_NAME(id, name) #name,
		TRACE_SPANS(TRACE_NAME)
#undef TRACE_NAME
	};

	/* One line of the timeline per process name, whatever pids it had, and one for its device. */
	fprintf(out,
		"%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"%.32s\"}},\n"
		"{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":{\"sort_index\":%u}}",
		index != 0 ? ",\n" : "", index + 1, t->process, index + 1, index);
	for (u64 n = first_kept(t); n < atomic_load(&t->next); n++) {
		const struct span *s = &t->ring[n % TRACE_RING];
		if (!is_whole(s))
			continue;
		u64 begin = s->begin_ns - origin_ns, duration = s->end_ns - s->begin_ns;
		fprintf(out,
			",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%d,\"ts\":%" PRIu64
			".%03u,\"dur\":%" PRIu64 ".%03u,\"args\":{\"step\":%" PRIu64 ",\"count\":%" PRIu32
			"}}",
			names[s->kind], index + 1, s->kind == TRACE_DEVICE ? 2 : 1, begin / 1000, (unsigned)(begin % 1000), duration / 1000,
			(unsigned)(duration % 1000), s->step, s->count);
	}
}

enum err trace_write_json(const char *run_dir, const char *path, struct err_msg *em)
{
	struct rings r = {.count = 0};
	enum err e = map_rings(&r, run_dir, em);

	if (e != ERR_OK)
		return e;
	FILE *out = fopen(path, "we");
	if (out == NULL) {
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
		goto unmap;
	}
	u64 origin_ns = earliest(&r);
	/* the origin lets readers find spans by a clock of their own */
	fprintf(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"origin_ns\":\"%" PRIu64
		     "\"},\"traceEvents\":[\n",
		origin_ns);
	for (u32 i = 0; i < r.count; i++)
		write_ring(out, r.t[i], i, origin_ns);
	fputs("\n]}\n", out);
	bool failed = ferror(out) != 0;
	if (fclose(out) != 0 || failed)
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
unmap:
	unmap_rings(&r);
	return e;
}
