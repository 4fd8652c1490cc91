/* Collectives between the devices of processes: NCCL, opened when the first communicator is made.
 *
 * Communicators are blocking ones: of others NCCL starts a thread at every collective. What may wait for
 * other ranks on the host is only the joining, so that runs in a thread of its own, which is left behind if
 * the time is over; a process that failed to join ends anyway. */
#include "kernels/cuda/runtime.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cuda/nccl.h"

static const char LIBRARY_NAME[] = "libnccl.so.2";
enum {
	VERSION_MIN = 20900, /* 2.9.0: the first whose collectives graphs may record */
	WORDS_MAX = 256,
	ABORT_GRACE_MS = 100,
};
static const size_t WINDOW_ALIGN = 4096;

struct comm_buffer {
	void *data;
	ncclWindow_t window; /* NULL: none */
	bool plain;	     /* of cudaMalloc */
};

struct kern_comm {
	struct nccl_library nccl;
	pthread_mutex_t lock; /* held by who uses `comm` in check, abort and destroy */
	ncclComm_t comm;      /* NULL: aborted */
	u32 rank, ranks;
	bool aborted; /* atomic */
	u32 calls;    /* atomic: collectives that are being queued */
	struct comm_buffer buffers[KERN_COMM_BUFFERS];
};

/* ---------------------------------------------------------------- the library */

static enum err check_version(const struct nccl_library *l, struct err_msg *em)
{
	int v = 0;

	if (l->ncclGetVersion(&v) == ncclSuccess && v >= VERSION_MIN)
		return ERR_OK;
	return err_set(em, ERR_DEVICE, "%s is of version code %d; needed is NCCL 2.9 or later", LIBRARY_NAME,
		       v);
}

static enum err open_library(struct nccl_library *l, struct err_msg *em)
{
	char problem[WORDS_MAX] = "";
	const char *missing = NULL;

	l->handle = cu_library_open(LIBRARY_NAME, problem, sizeof(problem));
	if (!l->handle)
		return err_set(em, ERR_DEVICE,
			       "several ranks need NCCL 2.9 or later, whose library cannot be opened: %s "
			       "(install it, "
			       "or name its folder in LD_LIBRARY_PATH)",
			       problem);
#define FIND(name)	  l->name = reinterpret_cast<decltype(l->name)>(cu_library_symbol(l->handle, #name));
#define FIND_NEEDED(name) FIND(name) missing = l->name ? missing : #name;
	NCCL_NEEDED(FIND_NEEDED)
	NCCL_OPTIONAL(FIND)
#undef FIND_NEEDED
#undef FIND
	if (missing)
		return err_set(em, ERR_DEVICE, "%s has no %s: it is no NCCL 2.9 or later", LIBRARY_NAME,
			       missing);
	return check_version(l, em);
}

/* `comm` may be NULL: what NCCL says last. */
static void words(const struct nccl_library *l, ncclComm_t comm, ncclResult_t result, char *out, size_t bytes)
{
	const char *last = l->ncclGetLastError ? l->ncclGetLastError(comm) : NULL;

	snprintf(out, bytes, "%s%s%s", l->ncclGetErrorString(result), last && *last ? ": " : "",
		 last && *last ? last : "");
}

static enum err nccl_failed(const struct kern_comm *c, ncclResult_t result, const char *what,
			    struct err_msg *em)
{
	char text[WORDS_MAX];

	words(&c->nccl, c->comm, result, text, sizeof(text));
	return err_set(em, ERR_DEVICE, "rank %u of %u: %s: NCCL: %s", c->rank, c->ranks, what, text);
}

enum err cuda_comm_id(u8 id[KERN_COMM_ID_BYTES], struct err_msg *em)
{
	static_assert(KERN_COMM_ID_BYTES == sizeof(ncclUniqueId), "an id is carried as bytes");
	struct nccl_library l = {};
	ncclUniqueId made;
	char text[WORDS_MAX];
	enum err e = open_library(&l, em);

	if (e)
		return e;
	ncclResult_t result = l.ncclGetUniqueId(&made);
	if (result == ncclSuccess) {
		memcpy(id, &made, sizeof(made));
		return ERR_OK;
	}
	words(&l, NULL, result, text, sizeof(text));
	return err_set(em, ERR_DEVICE, "naming the group of ranks: NCCL: %s", text);
}

/* ---------------------------------------------------------------- joining */

/* What the joining thread and its creator share; the last of them frees it. */
struct join {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct nccl_library nccl;
	ncclUniqueId id;
	u32 rank, ranks;
	bool done, left; /* left: nobody waits any more */
	ncclResult_t result;
	ncclComm_t comm;
};

static void join_free(struct join *j)
{
	pthread_cond_destroy(&j->changed);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

static void *join_main(void *arg)
{
	struct join *j = static_cast<struct join *>(arg);
	ncclComm_t comm = NULL;

	cuda_bind_thread();
	ncclResult_t result = j->nccl.ncclCommInitRank(&comm, (int)j->ranks, j->id, (int)j->rank);
	pthread_mutex_lock(&j->lock);
	j->comm = comm;
	j->result = result;
	j->done = true;
	bool left = j->left;
	pthread_cond_signal(&j->changed);
	pthread_mutex_unlock(&j->lock);
	if (left)
		join_free(j);
	return NULL;
}

static struct join *join_start(const struct kern_comm *c, const u8 *id)
{
	struct join *j = static_cast<struct join *>(calloc(1, sizeof(*j)));
	pthread_condattr_t attr;
	pthread_t thread;

	if (!j)
		return NULL;
	j->nccl = c->nccl;
	memcpy(&j->id, id, sizeof(j->id));
	j->rank = c->rank;
	j->ranks = c->ranks;
	pthread_mutex_init(&j->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&j->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (pthread_create(&thread, NULL, join_main, j) == 0) {
		pthread_detach(thread);
		return j;
	}
	join_free(j);
	return NULL;
}

/* Takes `j`. */
static enum err join_wait(struct kern_comm *c, struct join *j, u32 timeout_ms, struct err_msg *em)
{
	struct timespec until;
	int late = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&j->lock);
	while (!j->done && !late)
		late = pthread_cond_timedwait(&j->changed, &j->lock, &until);
	bool done = j->done;
	j->left = true;
	pthread_mutex_unlock(&j->lock);
	if (!done)
		return err_set(em, ERR_TIMEOUT,
			       "rank %u of %u: not all ranks joined through NCCL within %.3g s", c->rank,
			       c->ranks, timeout_ms / 1000.0);
	ncclResult_t result = j->result;
	c->comm = j->comm;
	join_free(j);
	return result == ncclSuccess ? ERR_OK : nccl_failed(c, result, "joining the others", em);
}

enum err cuda_comm_create(struct kern_comm **out, const u8 *id, u32 rank, u32 ranks, u32 timeout_ms,
			  struct err_msg *em)
{
	*out = NULL;
	if (rank >= ranks)
		return err_set(em, ERR_INVALID, "there is no rank %u among %u", rank, ranks);
	struct kern_comm *c = static_cast<struct kern_comm *>(calloc(1, sizeof(*c)));
	if (!c)
		return err_set(em, ERR_NO_MEMORY, "a communicator");
	pthread_mutex_init(&c->lock, NULL);
	c->rank = rank;
	c->ranks = ranks;
	enum err e = open_library(&c->nccl, em);
	if (!e) {
		struct join *j = join_start(c, id);
		e = j ? join_wait(c, j, timeout_ms, em)
		      : err_set(em, ERR_NO_MEMORY, "a thread that joins the other ranks");
	}
	if (!e) {
		*out = c;
		return ERR_OK;
	}
	pthread_mutex_destroy(&c->lock);
	free(c);
	return e;
}

/* ---------------------------------------------------------------- ends */

static bool is_aborted(const struct kern_comm *c)
{
	return __atomic_load_n(&c->aborted, __ATOMIC_SEQ_CST);
}

static enum err aborted(const struct kern_comm *c, struct err_msg *em)
{
	return err_set(em, ERR_DEVICE, "rank %u of %u: the collectives were aborted", c->rank, c->ranks);
}

enum err cuda_comm_check(struct kern_comm *c, struct err_msg *em)
{
	ncclResult_t now = ncclSuccess, result;

	if (is_aborted(c))
		return aborted(c, em);
	cuda_bind_thread();
	pthread_mutex_lock(&c->lock);
	result = c->comm ? c->nccl.ncclCommGetAsyncError(c->comm, &now) : ncclSuccess;
	if (result == ncclSuccess)
		result = now;
	enum err e = result == ncclSuccess || result == ncclInProgress
			     ? ERR_OK
			     : nccl_failed(c, result, "a collective", em);
	pthread_mutex_unlock(&c->lock);
	return e;
}

/* A collective that is being queued is given a moment: NCCL's call may be using what the abort frees. If it
 * waits for others there, the abort is what ends it. */
static void wait_for_calls(const struct kern_comm *c)
{
	const struct timespec pause = {0, 1000000};

	for (u32 i = 0; i < ABORT_GRACE_MS && __atomic_load_n(&c->calls, __ATOMIC_SEQ_CST) > 0; i++)
		nanosleep(&pause, NULL);
}

void cuda_comm_abort(struct kern_comm *c)
{
	if (__atomic_exchange_n(&c->aborted, true, __ATOMIC_SEQ_CST))
		return;
	cuda_bind_thread();
	wait_for_calls(c);
	pthread_mutex_lock(&c->lock);
	(void)c->nccl.ncclCommAbort(c->comm);
	c->comm = NULL;
	pthread_mutex_unlock(&c->lock);
}

void cuda_comm_destroy(struct kern_comm *c)
{
	struct err_msg unused;

	if (!c)
		return;
	if (cuda_comm_check(c, &unused) != ERR_OK)
		cuda_comm_abort(c); /* or destroying would wait for ranks that are gone */
	pthread_mutex_lock(&c->lock);
	if (c->comm)
		(void)c->nccl.ncclCommDestroy(c->comm);
	c->comm = NULL;
	pthread_mutex_unlock(&c->lock);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---------------------------------------------------------------- collectives */

/* Around a call that queues a collective. */
static enum err enter(struct kern_comm *c, struct err_msg *em)
{
	__atomic_fetch_add(&c->calls, 1, __ATOMIC_SEQ_CST);
	if (!is_aborted(c))
		return ERR_OK;
	__atomic_fetch_sub(&c->calls, 1, __ATOMIC_SEQ_CST);
	return aborted(c, em);
}

static enum err leave(struct kern_comm *c, ncclResult_t result, const char *what, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (is_aborted(c))
		e = aborted(c, em);
	else if (result != ncclSuccess)
		e = nccl_failed(c, result, what, em);
	__atomic_fetch_sub(&c->calls, 1, __ATOMIC_SEQ_CST);
	return e;
}

enum err cuda_comm_sum(struct kern_comm *c, void *stream, void *buffer, size_t count, enum kern_dtype dtype,
		       struct err_msg *em)
{
	ncclDataType_t type = ncclFloat32;

	if (dtype != KERN_F32 && dtype != KERN_BF16 && dtype != KERN_F16)
		return err_set(em, ERR_UNSUPPORTED, "a sum over ranks of type %u", dtype);
	if (dtype != KERN_F32)
		type = dtype == KERN_BF16 ? ncclBfloat16 : ncclFloat16;
	enum err e = enter(c, em);
	if (e)
		return e;
	return leave(
		c, c->nccl.ncclAllReduce(buffer, buffer, count, type, ncclSum, c->comm, (cudaStream_t)stream),
		"queueing a sum", em);
}

enum err cuda_comm_gather(struct kern_comm *c, void *stream, const void *send, void *recv, size_t bytes,
			  struct err_msg *em)
{
	enum err e = enter(c, em);

	if (e)
		return e;
	return leave(c, c->nccl.ncclAllGather(send, recv, bytes, ncclUint8, c->comm, (cudaStream_t)stream),
		     "queueing a gathering", em);
}

/* ---------------------------------------------------------------- memory */

static bool has_windows(const struct nccl_library *l)
{
	return l->ncclMemAlloc && l->ncclMemFree && l->ncclCommWindowRegister && l->ncclCommWindowDeregister;
}

static enum err alloc_window(struct kern_comm *c, struct comm_buffer *b, size_t bytes, struct err_msg *em)
{
	bytes = (bytes + WINDOW_ALIGN - 1) / WINDOW_ALIGN * WINDOW_ALIGN;
	ncclResult_t result = c->nccl.ncclMemAlloc(&b->data, bytes);
	if (result != ncclSuccess)
		return nccl_failed(c, result, "allocating memory that ranks share", em);
	result = c->nccl.ncclCommWindowRegister(c->comm, b->data, bytes, &b->window, NCCL_WIN_COLL_SYMMETRIC);
	if (result == ncclSuccess)
		return ERR_OK;
	enum err e = nccl_failed(c, result, "registering memory that ranks share", em);
	(void)c->nccl.ncclMemFree(b->data);
	*b = comm_buffer{};
	return e;
}

enum err cuda_comm_alloc(struct kern_comm *c, void **out, size_t bytes, struct err_msg *em)
{
	struct comm_buffer *b = c->buffers;

	*out = NULL;
	while (b < c->buffers + KERN_COMM_BUFFERS && b->data)
		b++;
	if (b == c->buffers + KERN_COMM_BUFFERS || bytes == 0)
		return err_set(em, ERR_INVALID, "a communicator has at most %d buffers, none of them empty",
			       KERN_COMM_BUFFERS);
	enum err e = enter(c, em);
	if (e)
		return e;
	if (has_windows(&c->nccl)) {
		e = alloc_window(c, b, bytes, em);
	} else {
		e = cuda_failed(cudaMalloc(&b->data, bytes), "allocating memory for collectives", em);
		b->plain = true;
	}
	if (e)
		*b = comm_buffer{};
	*out = b->data;
	__atomic_fetch_sub(&c->calls, 1, __ATOMIC_SEQ_CST);
	return e;
}

void cuda_comm_release(struct kern_comm *c, void *p)
{
	for (u32 i = 0; p && i < KERN_COMM_BUFFERS; i++) {
		struct comm_buffer *b = &c->buffers[i];
		if (b->data != p)
			continue;
		if (b->window && c->comm)
			(void)c->nccl.ncclCommWindowDeregister(c->comm, b->window);
		if (b->plain)
			(void)cudaFree(p);
		else
			(void)c->nccl.ncclMemFree(p);
		*b = comm_buffer{};
	}
}
