/* The thread pool of the ops: owns its threads, runs in the worker process.
 *
 * A run is done when its tasks are done, not when every thread has been seen: a thread that is asleep or has
 * no core costs a run nothing, for the others (at the latest the caller) take its tasks. Waiting spins for a
 * bounded time only, so a machine with fewer free cores than threads loses at most that time per wait. A
 * thread that finds itself on the caller's processor moves away: where low-priority work fills the other
 * processors, the kernel wakes it there and leaves it there, and two threads in turn on one processor are
 * slower than one.
 *
 * Must never hold a lock while tasks run; allocates only in create. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "kernels/kern_priv.h"

enum {
	THREADS_MAX = 1024,
	SPIN_NS = 50000,    /* ops of a step follow each other within a few microseconds */
	PAUSES_A_CLOCK = 8, /* pauses between two looks at the clock */
	LINE = 64,
	LINES_AT_ONCE = 4, /* fetched between two looks for tasks */
	ARG_LINES = 4,	   /* of a run's `arg`, fetched while the first task is taken */
	CPUS_MAX = 4096,
};

/* What a thread has still to fetch of what kern_threads_ahead named. */
struct fetch {
	u32 turn;
	size_t at, left; /* an address that need not be one */
};

struct kern_threads {
	/* All that changes with every run is one line, for taking it from another processor is what handing over costs: a
	 * quarter of a microsecond where the two have no cache in common. `state`: number of the run << 32 | tasks not yet
	 * taken; a compare-and-swap takes a task of exactly this run. */
	_Alignas(64) _Atomic u64 state;
	_Atomic u32 pending; /* tasks that are not the caller's first and not yet finished; the caller sleeps on it */
	_Atomic u32 caller_sleeps;
	/* The run: written before `state` is, read after a task was taken, hence never while it changes; but `arg` also
	 * before, to fetch what it points to. */
	kern_task_fn fn;
	_Atomic(void *) arg;
	u32 tasks;
	u32 run;
	atomic_int caller_cpu;
	_Alignas(64) _Atomic u32 wakeups; /* the others sleep on it */
	_Atomic u32 sleepers;
	atomic_bool stop;
	u32 count; /* with the caller */
	_Atomic u32 next_index;
	/* Named by kern_threads_ahead, whose calls `ahead_turn` counts. Read without order: who sees parts of two
	 * fetches memory for nothing. */
	_Alignas(64) _Atomic u32 ahead_turn;
	_Atomic size_t ahead_base, ahead_stride, ahead_bytes;
	_Alignas(64) struct fetch caller_fetch;
	cpu_set_t *allowed; /* CPUS_MAX processors: those of the process when the pool was made */
	pthread_t ids[];
};

static void futex_wait(_Atomic u32 *word, u32 seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic u32 *word, u32 count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Excludes the caller's processor, for this thread, until the caller is met elsewhere. Keeps the others open.
 */
static void leave_cpu(const struct kern_threads *t, int cpu, cpu_set_t *others)
{
	const size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);
	memcpy(others, t->allowed, bytes);
	CPU_CLR_S((size_t)cpu, bytes, others);
	if (CPU_COUNT_S(bytes, others) > 0)
		sched_setaffinity(0, bytes, others);
}

static bool take_task(struct kern_threads *t, u32 *left)
{
	u64 seen = atomic_load_explicit(&t->state, memory_order_acquire);
	while ((u32)seen != 0)
		if (atomic_compare_exchange_weak_explicit(&t->state, &seen, seen - 1, memory_order_acq_rel,
							  memory_order_acquire)) {
			*left = (u32)seen;
			return true;
		}
	return false;
}

/* Takes tasks until there are none. Whoever finishes last wakes the caller. */
static bool work(struct kern_threads *t, u32 thread)
{
	u32 left, done = 0;
	for (; take_task(t, &left); done++)
		t->fn(atomic_load_explicit(&t->arg, memory_order_relaxed), t->tasks - left, thread);
	if (done > 0 && atomic_fetch_sub(&t->pending, done) == done && atomic_load(&t->caller_sleeps))
		futex_wake(&t->pending, 1);
	return done > 0;
}

/* Uses a moment of waiting. */
static void wait_a_moment(struct kern_threads *t, u32 thread, struct fetch *f)
{
	u32 turn = atomic_load_explicit(&t->ahead_turn, memory_order_acquire);
	if (turn != f->turn) {
		f->turn = turn;
		f->left = atomic_load_explicit(&t->ahead_bytes, memory_order_relaxed);
		f->at = atomic_load_explicit(&t->ahead_base, memory_order_relaxed) +
			thread * atomic_load_explicit(&t->ahead_stride, memory_order_relaxed);
	}
	if (f->left == 0) {
		kern_pause();
		return;
	}
	for (u32 i = 0; i < LINES_AT_ONCE; i++)
		__builtin_prefetch((const void *)(f->at + (size_t)i * LINE), 0, 2);
	f->at += (size_t)LINES_AT_ONCE * LINE;
	f->left -= f->left < (size_t)LINES_AT_ONCE * LINE ? f->left : (size_t)LINES_AT_ONCE * LINE;
}

/* What the caller has just written for its tasks. Of another run it is no loss. */
static void fetch_arg(struct kern_threads *t)
{
	const char *arg = atomic_load_explicit(&t->arg, memory_order_relaxed);
	for (u32 i = 0; i < ARG_LINES; i++)
		__builtin_prefetch(arg + (size_t)i * LINE, 0, 3);
}

/* True as soon as there is something to take, false after SPIN_NS without. */
static bool spin_for_work(struct kern_threads *t, u32 thread, struct fetch *f)
{
	u64 end = clock_now_ns() + SPIN_NS;
	do {
		for (u32 i = 0; i < PAUSES_A_CLOCK; i++) {
			if ((u32)atomic_load_explicit(&t->state, memory_order_relaxed) != 0) {
				fetch_arg(t);
				return true;
			}
			if (atomic_load_explicit(&t->stop, memory_order_relaxed))
				return true;
			wait_a_moment(t, thread, f);
		}
	} while (clock_now_ns() < end);
	return false;
}

static void sleep_for_work(struct kern_threads *t)
{
	u32 seen = atomic_load(&t->wakeups);
	/* Sequentially consistent against the store of `state` in run: either it sees this sleeper, or this
	 * thread sees its tasks. */
	atomic_fetch_add(&t->sleepers, 1);
	if ((u32)atomic_load(&t->state) == 0 && !atomic_load(&t->stop))
		futex_wait(&t->wakeups, seen);
	atomic_fetch_sub(&t->sleepers, 1);
}

static void *thread_main(void *arg)
{
	struct kern_threads *t = arg;
	u32 index = atomic_fetch_add(&t->next_index, 1);
	cpu_set_t others[CPUS_MAX / CPU_SETSIZE];
	struct fetch fetch = {0};
	char name[16];
	snprintf(name, sizeof(name), "kern-%u", index);
	pthread_setname_np(pthread_self(), name);
	while (!atomic_load(&t->stop)) {
		int cpu = atomic_load_explicit(&t->caller_cpu, memory_order_relaxed);
		if (work(t, index) && cpu >= 0 && sched_getcpu() == cpu)
			leave_cpu(t, cpu, others);
		if (!spin_for_work(t, index, &fetch))
			sleep_for_work(t);
	}
	return NULL;
}

/* The number of the first thread of the core that `cpu` belongs to; `cpu` itself where that is unknown. */
static u32 core_of(u32 cpu)
{
	char path[96];
	u32 first = cpu;
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
	FILE *f = fopen(path, "re");
	if (!f)
		return cpu;
	if (fscanf(f, "%u", &first) != 1 || first >= CPUS_MAX)
		first = cpu;
	fclose(f);
	return first;
}

/* CPUs' worth of time that the control group grants, rounded up; 0: no limit. */
static u32 quota_cpus(void)
{
	unsigned long long quota, period;
	u32 cpus = 0;
	FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
	if (!f)
		return 0;
	if (fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0)
		cpus = (u32)((quota + period - 1) / period);
	fclose(f);
	return cpus;
}

/* Cores (not hyper-threads: two on one core share its vector units) that this process may use. */
static u32 cores_available(const cpu_set_t *allowed)
{
	bool seen[CPUS_MAX] = {false};
	u32 count = 0, quota = quota_cpus();
	for (u32 cpu = 0; cpu < CPUS_MAX; cpu++) {
		u32 core;
		if (!CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(CPUS_MAX), allowed) || seen[core = core_of(cpu)])
			continue;
		seen[core] = true;
		count++;
	}
	if (quota > 0 && quota < count)
		count = quota;
	return count > 0 ? count : 1;
}

static void stop_threads(struct kern_threads *t, u32 started)
{
	atomic_store(&t->stop, true);
	atomic_fetch_add(&t->wakeups, 1);
	futex_wake(&t->wakeups, INT_MAX);
	for (u32 i = 0; i < started; i++)
		pthread_join(t->ids[i], NULL);
}

enum err kern_threads_create(struct kern_threads **out, u32 threads, struct err_msg *em)
{
	struct kern_threads *t;
	sigset_t all, old;
	u32 started = 0;
	int rc = 0;

	*out = NULL;
	if (threads > THREADS_MAX)
		return err_set(em, ERR_INVALID, "%u threads for the kernels: at most %u, 0 for automatic",
			       threads, (u32)THREADS_MAX);
	cpu_set_t *allowed = CPU_ALLOC(CPUS_MAX);
	if (!allowed)
		goto no_memory;
	memset(allowed, 0, CPU_ALLOC_SIZE(CPUS_MAX));
	sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), allowed);
	if (threads == 0)
		threads = cores_available(allowed);
	size_t bytes = sizeof(*t) + threads * sizeof(t->ids[0]);
	t = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!t)
		goto no_memory;
	memset(t, 0, bytes);
	t->count = threads;
	t->allowed = allowed;
	atomic_store(&t->next_index, 1);
	atomic_store(&t->caller_cpu, -1);

	/* Signals belong to the process's own loop. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (started + 1 < threads && rc == 0) {
		rc = pthread_create(&t->ids[started], NULL, thread_main, t);
		if (rc == 0)
			started++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc != 0) {
		stop_threads(t, started);
		CPU_FREE(allowed);
		free(t);
		return err_set(em, ERR_NO_MEMORY, "cannot start thread %u of %u for the kernels: %s",
			       started + 2, threads, strerror(rc));
	}
	*out = t;
	return ERR_OK;
no_memory:
	CPU_FREE(allowed);
	return err_set(em, ERR_NO_MEMORY, "no memory for a pool of %u threads", threads);
}

void kern_threads_destroy(struct kern_threads **t)
{
	if (!*t)
		return;
	stop_threads(*t, (*t)->count - 1);
	CPU_FREE((*t)->allowed);
	free(*t);
	*t = NULL;
}

u32 kern_threads_count(const struct kern_threads *t)
{
	return t->count;
}

void kern_threads_ahead(struct kern_threads *t, const void *base, size_t stride, size_t bytes)
{
	atomic_store_explicit(&t->ahead_base, (size_t)base, memory_order_relaxed);
	atomic_store_explicit(&t->ahead_stride, stride, memory_order_relaxed);
	atomic_store_explicit(&t->ahead_bytes, base ? bytes : 0, memory_order_relaxed);
	/* The caller alone writes it: an atomic addition would wait for the line. */
	u32 turn = atomic_load_explicit(&t->ahead_turn, memory_order_relaxed);
	atomic_store_explicit(&t->ahead_turn, turn + 1, memory_order_release);
}

/* Waits until the tasks that others took are finished. */
static void wait_for_others(struct kern_threads *t)
{
	u64 end = 0;
	u32 left;
	for (u32 i = 0; (left = atomic_load_explicit(&t->pending, memory_order_acquire)) != 0; i++) {
		wait_a_moment(t, 0, &t->caller_fetch);
		if (i % PAUSES_A_CLOCK != PAUSES_A_CLOCK - 1)
			continue;
		u64 now = clock_now_ns();
		if (end == 0)
			end = now + SPIN_NS;
		if (now < end)
			continue;
		atomic_store(&t->caller_sleeps, 1);
		left = atomic_load(&t->pending);
		if (left != 0)
			futex_wait(&t->pending, left);
		atomic_store(&t->caller_sleeps, 0);
	}
}

void kern_threads_run(struct kern_threads *t, u32 tasks, kern_task_fn fn, void *arg)
{
	if (tasks < 2 || t->count == 1) {
		for (u32 i = 0; i < tasks; i++)
			fn(arg, i, 0);
		return;
	}
	ASSERT(atomic_load_explicit(&t->pending, memory_order_relaxed) == 0);
	int cpu = sched_getcpu();
	t->fn = fn;
	atomic_store_explicit(&t->arg, arg, memory_order_relaxed);
	t->tasks = tasks;
	t->run++;
	atomic_store_explicit(&t->caller_cpu, cpu, memory_order_relaxed);
	atomic_store_explicit(&t->pending, tasks - 1, memory_order_relaxed);
	atomic_store(&t->state, (u64)t->run << 32 | (tasks - 1)); /* the caller's first is taken */
	u32 sleepers = atomic_load(&t->sleepers);
	if (sleepers > 0) {
		atomic_fetch_add(&t->wakeups, 1);
		futex_wake(&t->wakeups, sleepers < tasks - 1 ? sleepers : tasks - 1);
	}
	fn(arg, 0, 0);
	work(t, 0);
	wait_for_others(t);
}
