/* Collectives between processes that have an emulated device each. A rank is a child; it ends with the line
 * of the check that failed. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proc_worker/device.h"

enum { RANKS_MAX = 3, JOIN_MS = 20000, LINE_BASE = 1 };

/* What the ranks of a test see of each other. */
struct shared {
	u8 id[KERN_COMM_ID_BYTES];
	u32 has_id; /* atomic */
	u32 done;   /* atomic */
};

struct rank {
	struct device device;
	struct kern_comm *comm;
	void *stream;
	struct shared *shared;
	u32 rank, ranks;
	struct err_msg em;
};

/* In a rank. */
#define MUST(condition)                                                                                   \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: rank %u: %s\n", __FILE__, __LINE__, r->rank, r->em.text); \
			_exit(LINE_BASE + __LINE__ % 250);                                                \
		}                                                                                         \
	} while (0)
#define OK(call) MUST((call) == ERR_OK)

static void begin(struct rank *r)
{
	OK(device_open(&r->device, 0, &r->em));
	OK(r->device.api->stream_create(&r->stream, &r->em));
}

static void join(struct rank *r)
{
	if (r->rank == 0) {
		OK(r->device.api->comm_id(r->shared->id, &r->em));
		__atomic_store_n(&r->shared->has_id, 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&r->shared->has_id, __ATOMIC_ACQUIRE))
		sched_yield();
	OK(r->device.api->comm_create(&r->comm, r->shared->id, r->rank, r->ranks, JOIN_MS, &r->em));
}

/* Runs `fn` as so many processes; `want` has their exit statuses, NULL: all 0. */
static void run(u32 ranks, void (*fn)(struct rank *), const int *want)
{
	struct shared *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[RANKS_MAX];

	cr_assert_neq(shared, MAP_FAILED);
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	for (u32 i = 0; i < ranks; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			struct rank r = {.shared = shared, .rank = i, .ranks = ranks};
			begin(&r);
			fn(&r);
			_exit(0);
		}
	}
	for (u32 i = 0; i < ranks; i++) { /* any of them: a dead child lives until it is asked for */
		int status;
		u32 which = 0;
		pid_t ended = waitpid(-1, &status, 0);
		while (which < ranks && pid[which] != ended)
			which++;
		cr_assert_lt(which, ranks);
		cr_assert_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, want ? want[which] : 0,
			     "rank %u: %d", which, status);
	}
	munmap(shared, sizeof(*shared));
}

static void *memory(struct rank *r, size_t bytes)
{
	void *p;

	OK(r->device.api->host_alloc(&p, bytes, &r->em)); /* the device reaches it, too */
	return p;
}

static void sums(struct rank *r)
{
	enum { COUNT = 40000 };
	const struct kern_device_api *api = r->device.api;
	float *x = memory(r, COUNT * sizeof(float)), all = (float)(r->ranks * (r->ranks - 1)) / 2;
	u16 *h = memory(r, 64 * sizeof(u16));
	void *shared;

	join(r);
	for (u32 i = 0; i < COUNT; i++)
		x[i] = (float)(i % 100 + r->rank);
	for (u32 i = 0; i < 64; i++)
		h[i] = r->rank == 0 ? 0x3f80 : 0x4000; /* 1 and 2 as bf16 */
	OK(api->comm_sum(r->comm, r->stream, x, COUNT, KERN_F32, &r->em));
	OK(api->comm_sum(r->comm, r->stream, h, 64, KERN_BF16, &r->em));
	OK(api->comm_alloc(r->comm, &shared, 5000, &r->em));
	OK(api->copy(r->stream, shared, x, 5000, KERN_COPY_UP, &r->em));
	OK(api->comm_sum(r->comm, r->stream, shared, 1250, KERN_F32, &r->em));
	OK(api->stream_sync(r->stream, &r->em));
	for (u32 i = 0; i < COUNT; i++)
		MUST(x[i] == (float)(r->ranks * (i % 100)) + all);
	for (u32 i = 0; i < 64; i++)
		MUST(h[i] == (r->ranks == 2 ? 0x4040 : 0x40a0)); /* 3 and 5 */
	OK(api->copy(r->stream, x, shared, 5000, KERN_COPY_DOWN, &r->em));
	OK(api->stream_sync(r->stream, &r->em));
	for (u32 i = 0; i < 1250; i++)
		MUST(x[i] == (float)r->ranks * ((float)(r->ranks * (i % 100)) + all));
	OK(api->comm_check(r->comm, &r->em));
	MUST(api->comm_sum(r->comm, r->stream, x, 1, KERN_I8, &r->em) == ERR_UNSUPPORTED);
	api->comm_release(r->comm, shared);
	api->comm_destroy(r->comm);
}

Test(comm, sums_are_the_same_on_all_ranks, .timeout = 120)
{
	run(2, sums, NULL);
	run(3, sums, NULL);
}

static void gathers(struct rank *r)
{
	enum { BYTES = 70001 };
	u8 *send = memory(r, BYTES), *all = memory(r, (size_t)r->ranks * BYTES);

	join(r);
	for (u32 i = 0; i < BYTES; i++)
		send[i] = (u8)(i * (r->rank + 3));
	OK(r->device.api->comm_gather(r->comm, r->stream, send, all, BYTES, &r->em));
	OK(r->device.api->stream_sync(r->stream, &r->em));
	for (u32 i = 0; i < r->ranks * BYTES; i++)
		MUST(all[i] == (u8)(i % BYTES * (i / BYTES + 3)));
	r->device.api->comm_destroy(r->comm);
}

Test(comm, gather_puts_ranks_in_their_order, .timeout = 120)
{
	run(2, gathers, NULL);
	setenv("CUDA_EMU_SCHEDULE", "reverse", 1); /* queued is not done */
	run(2, gathers, NULL);
}

static void records(struct rank *r)
{
	const struct kern_device_api *api = r->device.api;
	float *x = memory(r, 8), *all = memory(r, 8);
	struct kern_graph *graph;

	join(r);
	x[0] = (float)r->rank + 1;
	x[1] = 1;
	OK(api->graph_begin(r->stream, &r->em));
	OK(api->comm_sum(r->comm, r->stream, x, 2, KERN_F32, &r->em));
	OK(api->comm_gather(r->comm, r->stream, x, all, 4, &r->em));
	OK(api->graph_end(r->stream, &graph, &r->em));
	OK(api->stream_sync(r->stream, &r->em));
	MUST(x[1] == 1);
	for (u32 i = 0; i < 3; i++)
		OK(api->graph_launch(graph, r->stream, &r->em));
	OK(api->stream_sync(r->stream, &r->em));
	MUST(x[0] == 12 && x[1] == 8); /* 1 + 2, doubled twice */
	MUST(all[0] == 12 && all[1] == 12);
	api->graph_destroy(graph);
	api->comm_destroy(r->comm);
}

Test(comm, collectives_run_as_often_as_their_graph_is_launched, .timeout = 120)
{
	run(2, records, NULL);
}

static void *abort_soon(void *arg)
{
	struct rank *r = arg;

	usleep(300000);
	r->device.api->comm_abort(r->comm);
	return NULL;
}

/* Rank 1 never comes to the sum. */
static void is_stuck(struct rank *r)
{
	const struct kern_device_api *api = r->device.api;
	float *x = memory(r, 4);
	u64 began = clock_now_ns();
	pthread_t thread;

	join(r);
	if (r->rank == 1) {
		while (!__atomic_load_n(&r->shared->done, __ATOMIC_ACQUIRE))
			usleep(1000);
		OK(api->comm_check(r->comm, &r->em));
		_exit(0);
	}
	MUST(pthread_create(&thread, NULL, abort_soon, r) == 0);
	enum err e =
		api->comm_sum(r->comm, r->stream, x, 1, KERN_F32, &r->em); /* may wait, may only be queued */
	MUST(e == ERR_OK || e == ERR_DEVICE);
	OK(api->stream_sync(r->stream, &r->em));
	MUST(clock_now_ns() - began < 30000000000ull);
	MUST(pthread_join(thread, NULL) == 0);
	MUST(api->comm_check(r->comm, &r->em) == ERR_DEVICE && strstr(r->em.text, "rank 0 of 2"));
	MUST(api->comm_sum(r->comm, r->stream, x, 1, KERN_F32, &r->em) == ERR_DEVICE);
	MUST(strstr(r->em.text, "aborted") != NULL);
	__atomic_store_n(&r->shared->done, 1, __ATOMIC_RELEASE);
	api->comm_abort(r->comm); /* a second time: nothing */
	api->comm_destroy(r->comm);
}

Test(comm, abort_from_another_thread_ends_a_collective_that_waits, .timeout = 120)
{
	setenv("CUDA_EMU_NCCL_TIMEOUT", "0", 1);
	run(2, is_stuck, NULL);
	setenv("CUDA_EMU_THREAD", "1", 1); /* and where the host does not run the device's work */
	run(2, is_stuck, NULL);
}

static void records_and_is_stuck(struct rank *r)
{
	const struct kern_device_api *api = r->device.api;
	struct kern_graph *graph;
	float *x = memory(r, 4);
	pthread_t thread;

	join(r);
	OK(api->graph_begin(r->stream, &r->em));
	OK(api->comm_sum(r->comm, r->stream, x, 1, KERN_F32, &r->em));
	OK(api->graph_end(r->stream, &graph, &r->em));
	if (r->rank == 1)
		_exit(0);
	MUST(pthread_create(&thread, NULL, abort_soon, r) == 0);
	OK(api->graph_launch(graph, r->stream, &r->em));
	OK(api->stream_sync(r->stream, &r->em));
	MUST(pthread_join(thread, NULL) == 0);
	OK(api->graph_launch(graph, r->stream, &r->em)); /* the abort may come between launches */
	OK(api->stream_sync(r->stream, &r->em));
	MUST(api->comm_check(r->comm, &r->em) == ERR_DEVICE);
	api->graph_destroy(graph);
	api->comm_destroy(r->comm);
}

Test(comm, abort_ends_a_graph_that_waits_for_a_dead_rank, .timeout = 120)
{
	setenv("CUDA_EMU_NCCL_TIMEOUT", "0", 1);
	run(2, records_and_is_stuck, NULL);
}

static void dies(struct rank *r)
{
	float *x = memory(r, 4);
	u64 began;

	join(r);
	if (r->rank == 1)
		_exit(77);
	began = clock_now_ns();
	OK(r->device.api->comm_sum(r->comm, r->stream, x, 1, KERN_F32, &r->em));
	OK(r->device.api->stream_sync(r->stream, &r->em));
	MUST(r->device.api->comm_check(r->comm, &r->em) == ERR_DEVICE);
	MUST(strstr(r->em.text, "rank 0 of 2") && strstr(r->em.text, "remote process exited"));
	MUST(clock_now_ns() - began < 30000000000ull);
	r->device.api->comm_destroy(r->comm);
}

Test(comm, a_dead_rank_is_an_error_in_the_words_of_the_library, .timeout = 120)
{
	static const int want[2] = {0, 77};

	run(2, dies, want);
}

static void is_alone(struct rank *r)
{
	const struct kern_device_api *api = r->device.api;
	u8 id[KERN_COMM_ID_BYTES];

	OK(api->comm_id(id, &r->em));
	MUST(api->comm_create(&r->comm, id, 2, 2, JOIN_MS, &r->em) == ERR_INVALID);
	MUST(api->comm_create(&r->comm, id, 0, 2, 200, &r->em) == ERR_TIMEOUT);
	MUST(!r->comm && strstr(r->em.text, "not all ranks joined through NCCL within 0.2 s"));
}

static void has_no_library(struct rank *r)
{
	MUST(r->device.api->comm_id(r->shared->id, &r->em) == ERR_DEVICE);
	MUST(strstr(r->em.text, "libnccl.so.2") && strstr(r->em.text, "LD_LIBRARY_PATH"));
	MUST(r->device.api->comm_create(&r->comm, r->shared->id, 0, 1, JOIN_MS, &r->em) == ERR_DEVICE);
	MUST(!r->comm && strstr(r->em.text, "has no ncclCommAbort"));
	OK(r->device.api->comm_id(r->shared->id, &r->em));
	OK(r->device.api->comm_create(&r->comm, r->shared->id, 0, 1, JOIN_MS, &r->em));
	r->device.api->comm_destroy(r->comm);
	r->device.api->comm_destroy(NULL);
}

Test(comm, what_is_missing_is_named, .timeout = 120)
{
	run(1, is_alone, NULL);
	setenv("CUDA_EMU_INJECT", "cu_library_open:1:1,ncclCommAbort:1:1", 1);
	run(1, has_no_library, NULL);
}
