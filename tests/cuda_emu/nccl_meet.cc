/* Shared memory between ranks: joining, waiting for each other, noticing that one has died. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda_emu/nccl_meet.h"

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pause_for(u32 tries)
{
	if (tries < 200)
		sched_yield();
	else
		usleep(tries < 2000 ? 20 : 500);
}

/* The memory has no name that could outlive the ranks, however they end: they find it as an open file of the process that made the
 * id, which has it open until it has joined, or as long as it lives if it is no rank itself. */
static const char ID[] = "/proc/%d/fd/%d";

ncclResult_t meet_id(ncclUniqueId *id)
{
	memset(id, 0, sizeof(*id));
	int fd = memfd_create("cuda_emu_nccl", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(struct meet_shared)) != 0) {
		if (fd >= 0)
			close(fd);
		return ncclSystemError;
	}
	snprintf(id->internal, sizeof(id->internal), ID, (int)getpid(), fd);
	return ncclSuccess;
}

static ncclResult_t problem(struct meet *m, ncclResult_t result, const char *text, u32 rank)
{
	snprintf(m->problem, sizeof(m->problem), "rank %u: %s (rank %u)", m->rank, text, rank);
	return result;
}

static bool valid_id(const ncclUniqueId *id, int *pid, int *fd)
{
	return memchr(id->internal, '\0', sizeof(id->internal)) != NULL && sscanf(id->internal, ID, pid, fd) == 2;
}

static bool dead(i32 pid)
{
	return pid != 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

/* Waits until `reached` says so for every rank. */
static ncclResult_t wait_all(struct meet *m, bool (*reached)(const struct meet *, u32))
{
	double until = now_s() + m->timeout_s;
	for (u32 r = 0, tries = 0; r < m->ranks;) {
		if (reached(m, r)) {
			r++;
			continue;
		}
		if (__atomic_load_n(&m->shared->failed, __ATOMIC_ACQUIRE) != 0)
			return problem(m, ncclRemoteError, "another rank has given up", r);
		if (__atomic_load_n(&m->given_up, __ATOMIC_ACQUIRE) != 0)
			return problem(m, ncclRemoteError, "the communicator was aborted while it waited", r);
		if (m->timeout_s <= 0) {
			pause_for(tries++);
			continue;
		}
		if (tries % 64 == 63 && dead(__atomic_load_n(&m->shared->pid[r], __ATOMIC_ACQUIRE))) {
			meet_abort(m);
			return problem(m, ncclRemoteError, "a rank has died", r);
		}
		if (tries % 64 == 63 && now_s() > until) {
			meet_abort(m);
			return problem(m, ncclSystemError, "a rank did not come within the time", r);
		}
		pause_for(tries++);
	}
	return ncclSuccess;
}

static bool has_joined(const struct meet *m, u32 rank)
{
	return __atomic_load_n(&m->shared->pid[rank], __ATOMIC_ACQUIRE) != 0;
}

static bool has_arrived(const struct meet *m, u32 rank)
{
	return __atomic_load_n(&m->shared->arrived[rank], __ATOMIC_ACQUIRE) >= m->rounds;
}

static ncclResult_t take_place(struct meet *m)
{
	i32 nobody = 0, own = (i32)getpid();
	u32 unset = 0;
	if (!__atomic_compare_exchange_n(&m->shared->ranks, &unset, m->ranks, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    unset != m->ranks)
		return problem(m, ncclInvalidArgument, "another rank knows of another number of ranks", m->rank);
	for (u32 r = 0; r < m->ranks; r++) {
		if (__atomic_load_n(&m->shared->pid[r], __ATOMIC_ACQUIRE) == own)
			return problem(m, ncclInvalidUsage, "two ranks in one process have one device", r);
	}
	if (!__atomic_compare_exchange_n(&m->shared->pid[m->rank], &nobody, own, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return problem(m, ncclInvalidUsage, "the rank is taken", m->rank);
	__atomic_fetch_add(&m->shared->joined, 1, __ATOMIC_ACQ_REL);
	return wait_all(m, has_joined);
}

ncclResult_t meet_join(struct meet *m, const ncclUniqueId *id, u32 ranks, u32 rank)
{
	const char *seconds = getenv("CUDA_EMU_NCCL_TIMEOUT");
	ncclResult_t result;
	int fd, maker, makers_fd;
	void *p;
	memset(m, 0, sizeof(*m));
	m->rank = rank;
	m->ranks = ranks;
	m->timeout_s = seconds != NULL ? atof(seconds) : 60.0;
	if (ranks < 1 || ranks > MEET_RANKS_MAX || rank >= ranks || !valid_id(id, &maker, &makers_fd))
		return problem(m, ncclInvalidArgument, "a wrong rank, number of ranks or id", rank);
	fd = open(id->internal, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return problem(m, ncclSystemError, strerror(errno), rank);
	p = mmap(NULL, sizeof(struct meet_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return problem(m, ncclSystemError, strerror(errno), rank);
	m->shared = static_cast<struct meet_shared *>(p);
	result = take_place(m);
	if (maker == (int)getpid())
		close(makers_fd); /* all have it open, or nobody will */
	if (result != ncclSuccess) {
		(void)munmap(m->shared, sizeof(struct meet_shared));
		m->shared = NULL;
	}
	return result;
}

void meet_leave(struct meet *m)
{
	if (m->shared != NULL)
		(void)munmap(m->shared, sizeof(struct meet_shared));
	m->shared = NULL;
}

void meet_abort(struct meet *m)
{
	__atomic_store_n(&m->shared->failed, 1, __ATOMIC_RELEASE);
}

void meet_give_up(struct meet *m)
{
	__atomic_store_n(&m->given_up, 1, __ATOMIC_RELEASE);
}

ncclResult_t meet_wait(struct meet *m)
{
	m->rounds++;
	__atomic_store_n(&m->shared->arrived[m->rank], m->rounds, __ATOMIC_RELEASE);
	return wait_all(m, has_arrived);
}

ncclResult_t meet_agree(struct meet *m, const struct meet_call *call)
{
	ncclResult_t result;
	m->shared->call[m->rank] = *call;
	result = meet_wait(m);
	for (u32 r = 0; r < m->ranks && result == ncclSuccess; r++) {
		if (memcmp(&m->shared->call[r], call, sizeof(*call)) != 0)
			result = problem(m, ncclInvalidUsage, "ranks call different collectives, or with different sizes", r);
	}
	if (result == ncclSuccess)
		result = meet_wait(m); /* nobody writes its next call before all have read this one */
	if (result == ncclInvalidUsage)
		meet_abort(m);
	return result;
}
