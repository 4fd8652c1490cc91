/* NCCL between processes: the collectives, groups, and what happens when a rank fails. A rank ends with the line of the
 * check that failed. */
#include <criterion/criterion.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

enum { RANKS_MAX = 4 };

#define MUST(condition) \
	do { \
		if (!(condition)) \
			_exit(__LINE__ % 250 + 1); \
	} while (0)

static char *device(size_t bytes)
{
	void *p;
	MUST(cudaMallocHost(&p, bytes) == cudaSuccess);
	return static_cast<char *>(p);
}

/* Runs `fn` as so many processes; which of them failed, and where. */
static void run(int ranks, void (*fn)(ncclComm_t comm, int ranks, int rank), const int *want)
{
	ncclUniqueId id;
	pid_t pid[RANKS_MAX];
	cr_assert_eq(ncclGetUniqueId(&id), ncclSuccess);
	for (int r = 0; r < ranks; r++) {
		pid[r] = fork();
		if (pid[r] == 0) {
			ncclComm_t comm;
			emu_schedule((enum emu_order)(r % EMU_ORDERS), (u64)r);
			MUST(ncclCommInitRank(&comm, ranks, id, r) == ncclSuccess);
			fn(comm, ranks, r);
			_exit(0);
		}
	}
	for (int r = 0; r < ranks; r++) {
		int status;
		cr_assert_eq(waitpid(pid[r], &status, 0), pid[r]);
		cr_assert_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, want == NULL ? 0 : want[r], "rank %d: %d", r, status);
	}
}

static void sums(ncclComm_t comm, int ranks, int rank)
{
	enum { COUNT = 100000 }; /* more than one chunk */
	float *x = (float *)device(COUNT * 4);
	u16 *h = (u16 *)device(40), *out = (u16 *)device(40);
	int n;
	for (int i = 0; i < COUNT; i++)
		x[i] = (float)(i % 100 + rank);
	for (int i = 0; i < 20; i++)
		h[i] = cu_f32_to_bf16((float)(i * (rank + 1)));
	MUST(ncclCommCount(comm, &n) == ncclSuccess && n == ranks);
	MUST(ncclCommUserRank(comm, &n) == ncclSuccess && n == rank);
	MUST(ncclAllReduce(x, x, COUNT, ncclFloat32, ncclSum, comm, NULL) == ncclSuccess);
	MUST(ncclAllReduce(h, out, 20, ncclBfloat16, ncclMax, comm, NULL) == ncclSuccess);
	MUST(cudaDeviceSynchronize() == cudaSuccess);
	for (int i = 0; i < COUNT; i++)
		MUST(x[i] == (float)(ranks * (i % 100) + ranks * (ranks - 1) / 2));
	for (int i = 0; i < 20; i++)
		MUST(cu_bf16_to_f32(out[i]) == (float)(i * ranks));
	MUST(ncclCommDestroy(comm) == ncclSuccess);
}

Test(cuda_emu_nccl, all_reduce_sums_over_processes, .timeout = 120)
{
	run(1, sums, NULL);
	run(2, sums, NULL);
	run(4, sums, NULL);
}

static void moves(ncclComm_t comm, int ranks, int rank)
{
	enum { COUNT = 30001 };
	int *mine = (int *)device(COUNT * 4), *all = (int *)device((size_t)ranks * COUNT * 4), *one = (int *)device(COUNT * 4);
	for (int i = 0; i < COUNT; i++)
		mine[i] = rank * 1000000 + i;
	MUST(ncclGroupStart() == ncclSuccess);
	MUST(ncclAllGather(mine, all, COUNT, ncclInt32, comm, NULL) == ncclSuccess);
	MUST(ncclBroadcast(rank == 1 ? mine : NULL, one, COUNT, ncclInt32, 1, comm, NULL) == ncclSuccess);
	MUST(ncclGroupEnd() == ncclSuccess);
	MUST(cudaDeviceSynchronize() == cudaSuccess);
	for (int i = 0; i < ranks * COUNT; i++)
		MUST(all[i] == i / COUNT * 1000000 + i % COUNT);
	for (int i = 0; i < COUNT; i++)
		MUST(one[i] == 1000000 + i);
	MUST(ncclReduceScatter(all, one, COUNT, ncclInt32, ncclSum, comm, NULL) == ncclSuccess);
	MUST(cudaDeviceSynchronize() == cudaSuccess);
	for (int i = 0; i < COUNT; i++)
		MUST(one[i] == ranks * (rank * 1000000 + i));
	MUST(ncclCommFinalize(comm) == ncclSuccess);
	MUST(ncclCommDestroy(comm) == ncclSuccess);
}

Test(cuda_emu_nccl, gather_broadcast_and_scatter_move_every_element, .timeout = 120)
{
	run(2, moves, NULL);
	run(3, moves, NULL);
}

static void captured(ncclComm_t comm, int ranks, int rank)
{
	float *x = (float *)device(4);
	cudaStream_t s;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
	MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
	MUST(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s) == ncclSuccess);
	MUST(cudaStreamEndCapture(s, &graph) == cudaSuccess);
	MUST(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
	*x = (float)(rank + 1);
	for (int i = 0; i < 3; i++)
		MUST(cudaGraphLaunch(exec, s) == cudaSuccess);
	MUST(cudaStreamSynchronize(s) == cudaSuccess);
	MUST(*x == (float)(ranks * (ranks + 1) / 2 * ranks * ranks));
}

Test(cuda_emu_nccl, collectives_are_captured_in_graphs, .timeout = 120)
{
	run(3, captured, NULL);
}

static void disagree(ncclComm_t comm, int ranks, int rank)
{
	float *x = (float *)device(400);
	ncclResult_t async;
	(void)ranks;
	MUST(ncclAllReduce(x, x, rank == 0 ? 100 : 99, ncclFloat32, ncclSum, comm, NULL) == ncclSuccess);
	MUST(cudaDeviceSynchronize() == cudaSuccess);
	MUST(ncclCommGetAsyncError(comm, &async) == ncclSuccess);
	MUST(async == ncclInvalidUsage || async == ncclRemoteError);
	MUST(x[3] != x[3]);
	MUST(ncclCommAbort(comm) == ncclSuccess);
}

Test(cuda_emu_nccl, ranks_that_disagree_get_an_error_instead_of_waiting_for_ever, .timeout = 120)
{
	run(2, disagree, NULL);
}

static void one_dies(ncclComm_t comm, int ranks, int rank)
{
	float *x = (float *)device(4);
	ncclResult_t async;
	(void)ranks;
	if (rank == 1)
		_exit(77);
	MUST(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, NULL) == ncclSuccess);
	MUST(cudaDeviceSynchronize() == cudaSuccess);
	MUST(ncclCommGetAsyncError(comm, &async) == ncclSuccess);
	MUST(async == ncclRemoteError || async == ncclSystemError);
}

Test(cuda_emu_nccl, a_rank_that_dies_or_does_not_come_is_an_asynchronous_error, .timeout = 120)
{
	static const int want[2] = {0, 77};
	/* a dead child is not gone before its parent has asked for it, so rank 0 finds it by the time */
	setenv("CUDA_EMU_NCCL_TIMEOUT", "5", 1);
	run(2, one_dies, want);
}

static void refused(ncclComm_t comm, int ranks, int rank)
{
	float *x = (float *)device(16), host[4] = {};
	(void)ranks;
	(void)rank;
	MUST(ncclAllReduce(host, x, 4, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidArgument);
	MUST(ncclAllReduce(x, x, 5, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidArgument);
	MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclAvg, comm, NULL) == ncclInvalidArgument);
	MUST(ncclBroadcast(x, x, 4, ncclFloat32, 1, comm, NULL) == ncclInvalidArgument);
	MUST(ncclGroupEnd() == ncclInvalidUsage);
	emu_inject("ncclAllReduce", 1, ncclInternalError);
	MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, NULL) == ncclInternalError);
	MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, NULL) == ncclSuccess);
}

Test(cuda_emu_nccl, wrong_arguments_are_refused)
{
	ncclUniqueId id = {};
	ncclComm_t comm;
	run(1, refused, NULL);
	cr_assert_eq(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument);
	cr_assert_eq(ncclGetUniqueId(&id), ncclSuccess);
	cr_assert_eq(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
	cr_assert_null(comm);
}

static bool maps_the_meeting(pid_t pid)
{
	char path[64], line[512];
	bool found = false;
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	FILE *f = fopen(path, "re");
	cr_assert_not_null(f);
	while (!found && fgets(line, sizeof(line), f) != NULL)
		found = strstr(line, "cuda_emu_nccl") != NULL;
	fclose(f);
	return found;
}

Test(cuda_emu_nccl, a_rank_that_is_killed_while_it_waits_leaves_nothing_behind, .timeout = 120)
{
	ncclUniqueId id;
	ncclComm_t comm;
	cr_assert_eq(ncclGetUniqueId(&id), ncclSuccess);
	pid_t child = fork();
	cr_assert_geq(child, 0);
	if (child == 0) {
		(void)ncclCommInitRank(&comm, 2, id, 0);
		_exit(1); /* the other rank never comes */
	}
	while (!maps_the_meeting(child))
		sched_yield();
	cr_assert_eq(kill(child, SIGKILL), 0);
	cr_assert_eq(waitpid(child, NULL, 0), child);
	char path[sizeof(id.internal) + 16];
	snprintf(path, sizeof(path), "/dev/shm%s", id.internal);
	cr_assert_neq(access(path, F_OK), 0, "%s", path);
}
