/* NCCL's calls: communicators of processes, collectives as work of a stream. Sums are taken in rank order in float, so all
 * ranks get the same bits. A rank that dies or disagrees ends the collective with poison in its output and an error
 * that ncclCommGetAsyncError gives. A communicator that is over stays allocated: graphs may have recorded its collectives,
 * which then fail. */
#include <stdio.h>

#include "tests/cuda_emu/emu_priv.h"
#include "tests/cuda_emu/nccl_meet.h"
#include "tests/cuda_emu/runtime_priv.h"

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

struct ncclComm {
	struct meet meet;
	ncclResult_t async_error; /* atomic */
	bool finalized, over;
};

static std::vector<struct ncclComm *> &ended = *new std::vector<struct ncclComm *>();

/* A collective that waits for the end of its group. */
struct pending {
	ncclComm_t comm;
	struct meet_call call;
	const void *send;
	void *recv;
	cudaStream_t stream;
};

static thread_local struct {
	u32 depth;
	std::vector<struct pending> list;
	ncclResult_t error;
} group;

#define NCCL_CALL() \
	struct emu_call call(__func__); \
	if (call.error != cudaSuccess) \
	return (ncclResult_t)call.error

ncclResult_t ncclGetVersion(int *version)
{
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const text[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
					   "invalid argument", "invalid usage",
					   "remote process exited or there was a network error",
					   "NCCL operation in progress"};
	return (u32)result < COUNT_OF(text) ? text[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	return comm == NULL ? "" : comm->meet.problem;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	NCCL_CALL();
	return id == NULL ? ncclInvalidArgument : meet_id(id);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
	NCCL_CALL();
	struct ncclComm *c = new ncclComm();
	ncclResult_t result = ncclInvalidArgument;
	if (ranks >= 1 && rank >= 0) {
		call.lock->unlock(); /* work goes on while ranks wait for each other */
		result = meet_join(&c->meet, &id, (u32)ranks, (u32)rank);
		call.lock->lock();
	}
	*comm = NULL;
	if (result == ncclSuccess) {
		*comm = c;
		return ncclSuccess;
	}
	fprintf(stderr, "cuda_emu: ncclCommInitRank: %s\n", c->meet.problem);
	delete c;
	return result;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	NCCL_CALL();
	if (comm == NULL)
		return ncclInvalidArgument;
	comm->finalized = true;
	return emu_drain_all(call) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t end(struct ncclComm *comm)
{
	comm->over = true;
	ended.push_back(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	NCCL_CALL();
	if (comm == NULL || comm->over)
		return ncclInvalidArgument;
	(void)emu_drain_all(call);
	meet_leave(&comm->meet);
	return end(comm);
}

/* A collective that waits ends, in this rank. Does not wait for it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	NCCL_CALL();
	if (comm == NULL || comm->over)
		return ncclInvalidArgument;
	meet_give_up(&comm->meet);
	return end(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	NCCL_CALL();
	if (comm == NULL || error == NULL)
		return ncclInvalidArgument;
	*error = __atomic_load_n(&comm->async_error, __ATOMIC_ACQUIRE);
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *ranks)
{
	if (comm == NULL)
		return ncclInvalidArgument;
	*ranks = (int)comm->meet.ranks;
	return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	if (comm == NULL)
		return ncclInvalidArgument;
	*rank = (int)comm->meet.rank;
	return ncclSuccess;
}

/* ---------------------------------------------------------------- memory */

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	NCCL_CALL();
	size_t align = NCCL_WIN_REQUIRED_ALIGNMENT;
	return cudaMalloc(p, (bytes + align - 1) & ~(align - 1)) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *p)
{
	NCCL_CALL();
	return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags)
{
	NCCL_CALL();
	enum emu_memory kind;
	if (comm == NULL || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0 || (uintptr_t)p % NCCL_WIN_REQUIRED_ALIGNMENT != 0 ||
	    !emu_memory_at(p, bytes, &kind) || kind != EMU_DEVICE)
		return ncclInvalidArgument;
	*window = reinterpret_cast<ncclWindow_t>(p);
	return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	NCCL_CALL();
	return comm == NULL || window == NULL ? ncclInvalidArgument : ncclSuccess;
}

/* ---------------------------------------------------------------- numbers */

static size_t type_bytes(u32 type)
{
	static const u8 bytes[] = {1, 1, 4, 4, 8, 0, 2, 4, 8, 2};
	return type < COUNT_OF(bytes) ? bytes[type] : 0;
}

template <typename T> static T combine(u32 op, T a, T b)
{
	if (op == ncclSum)
		return (T)(a + b);
	return (op == ncclMax) == (a > b) ? a : b;
}

template <typename T> static void reduce(const struct meet *m, const struct meet_call *c, size_t n, void *out)
{
	for (size_t i = 0; i < n; i++) {
		T v, other;
		memcpy(&v, m->shared->chunk[0] + i * sizeof(T), sizeof(T));
		for (u32 r = 1; r < m->ranks; r++) {
			memcpy(&other, m->shared->chunk[r] + i * sizeof(T), sizeof(T));
			v = combine(c->op, v, other);
		}
		memcpy(static_cast<char *>(out) + i * sizeof(T), &v, sizeof(T));
	}
}

template <float (*from)(u16), u16 (*to)(float)>
static void reduce_half(const struct meet *m, const struct meet_call *c, size_t n, void *out)
{
	for (size_t i = 0; i < n; i++) {
		u16 half;
		float v = 0;
		for (u32 r = 0; r < m->ranks; r++) {
			memcpy(&half, m->shared->chunk[r] + i * 2, 2);
			v = r == 0 ? from(half) : combine(c->op, v, from(half));
		}
		half = to(v);
		memcpy(static_cast<char *>(out) + i * 2, &half, 2);
	}
}

static void reduce_any(const struct meet *m, const struct meet_call *c, size_t n, void *out)
{
	switch (c->type) {
	case ncclInt8:
		return reduce<int8_t>(m, c, n, out);
	case ncclUint8:
		return reduce<u8>(m, c, n, out);
	case ncclInt32:
		return reduce<i32>(m, c, n, out);
	case ncclUint32:
		return reduce<u32>(m, c, n, out);
	case ncclInt64:
		return reduce<i64>(m, c, n, out);
	case ncclFloat32:
		return reduce<float>(m, c, n, out);
	case ncclFloat64:
		return reduce<double>(m, c, n, out);
	case ncclFloat16:
		return reduce_half<cu_f16_to_f32, cu_f32_to_f16>(m, c, n, out);
	case ncclBfloat16:
		return reduce_half<cu_bf16_to_f32, cu_f32_to_bf16>(m, c, n, out);
	}
}

/* ---------------------------------------------------------------- collectives */

/* Elements [first, first + n) of what each rank sends are in the chunks: takes what of them is this rank's. */
static void take(const struct meet *m, const struct pending *p, size_t first, size_t n)
{
	const struct meet_call *c = &p->call;
	size_t bytes = type_bytes(c->type), own = m->rank * c->count;
	char *recv = static_cast<char *>(p->recv);
	if (c->kind == ALL_REDUCE)
		reduce_any(m, c, n, recv + first * bytes);
	else if (c->kind == BROADCAST)
		memcpy(recv + first * bytes, m->shared->chunk[c->root], n * bytes);
	else if (c->kind == ALL_GATHER) {
		for (u32 r = 0; r < m->ranks; r++)
			memcpy(recv + (r * c->count + first) * bytes, m->shared->chunk[r], n * bytes);
	} else if (first >= own && first < own + c->count)
		reduce_any(m, c, n, recv + (first - own) * bytes);
}

/* Chunks end at the ranks' shares, so that each belongs to one rank. */
static size_t chunk_elements(const struct meet_call *c, size_t first, size_t total)
{
	size_t n = MEET_CHUNK_BYTES / type_bytes(c->type);
	size_t share_end = c->kind == REDUCE_SCATTER ? (first / c->count + 1) * c->count : total;
	return n < share_end - first ? n : share_end - first;
}

static ncclResult_t run_chunks(struct meet *m, const struct pending *p)
{
	const struct meet_call *c = &p->call;
	size_t total = c->kind == REDUCE_SCATTER ? c->count * m->ranks : c->count, bytes = type_bytes(c->type), n;
	ncclResult_t result = meet_agree(m, c);
	for (size_t first = 0; first < total && result == ncclSuccess; first += n) {
		n = chunk_elements(c, first, total);
		if (c->kind != BROADCAST || c->root == m->rank)
			memcpy(m->shared->chunk[m->rank], static_cast<const char *>(p->send) + first * bytes, n * bytes);
		result = meet_wait(m);
		if (result == ncclSuccess) {
			take(m, p, first, n);
			result = meet_wait(m);
		}
	}
	return result;
}

static cudaError_t run(const struct pending *p)
{
	struct ncclComm *comm = p->comm;
	size_t out = p->call.count * type_bytes(p->call.type) * (p->call.kind == ALL_GATHER ? comm->meet.ranks : 1);
	ncclResult_t before = __atomic_load_n(&comm->async_error, __ATOMIC_ACQUIRE), result = before;
	if (before == ncclSuccess)
		result = comm->meet.shared == NULL ? ncclInvalidUsage : run_chunks(&comm->meet, p);
	if (result == ncclSuccess)
		return cudaSuccess;
	if (before == ncclSuccess)
		fprintf(stderr, "cuda_emu: NCCL: %s\n",
			comm->meet.shared == NULL ? "a collective of a communicator that was destroyed" : comm->meet.problem);
	__atomic_store_n(&comm->async_error, result, __ATOMIC_RELEASE);
	memset(p->recv, EMU_POISON, out);
	return cudaSuccess;
}

static ncclResult_t issue(struct emu_call &call, const struct pending &p)
{
	struct emu_work work = {"nccl", NULL, [p] { return run(&p); }, {}, NULL};
	return emu_enqueue(call, p.stream, std::move(work)) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t check(const struct pending *p)
{
	enum emu_memory kind;
	u32 ranks = p->comm == NULL ? 0 : p->comm->meet.ranks;
	size_t bytes = p->call.count * type_bytes(p->call.type);
	size_t send = p->call.kind == REDUCE_SCATTER ? bytes * ranks : bytes;
	size_t recv = p->call.kind == ALL_GATHER ? bytes * ranks : bytes;
	if (ranks == 0 || type_bytes(p->call.type) == 0 || p->call.root >= ranks)
		return ncclInvalidArgument;
	if (p->call.op != ncclSum && p->call.op != ncclMax && p->call.op != ncclMin)
		return ncclInvalidArgument;
	if (p->comm->finalized || p->comm->over)
		return ncclInvalidUsage;
	if (!emu_memory_at(p->recv, recv, &kind) || kind == EMU_PAGEABLE)
		return ncclInvalidArgument;
	if (p->call.kind == BROADCAST && p->call.root != p->comm->meet.rank)
		return ncclSuccess;
	return emu_memory_at(p->send, send, &kind) && kind != EMU_PAGEABLE ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t collective(struct emu_call &call, const struct pending &p)
{
	ncclResult_t result = check(&p);
	if (result != ncclSuccess) {
		if (group.depth > 0)
			group.error = result;
		return result;
	}
	if (group.depth == 0)
		return issue(call, p);
	group.list.push_back(p);
	return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
			   ncclComm_t comm, cudaStream_t stream)
{
	NCCL_CALL();
	return collective(call, {comm, {ALL_REDUCE, (u32)type, (u32)op, 0, count}, send, recv, stream});
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recv_count, ncclDataType_t type, ncclRedOp_t op,
			       ncclComm_t comm, cudaStream_t stream)
{
	NCCL_CALL();
	return collective(call, {comm, {REDUCE_SCATTER, (u32)type, (u32)op, 0, recv_count}, send, recv, stream});
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t send_count, ncclDataType_t type, ncclComm_t comm,
			   cudaStream_t stream)
{
	NCCL_CALL();
	return collective(call, {comm, {ALL_GATHER, (u32)type, ncclSum, 0, send_count}, send, recv, stream});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
			   cudaStream_t stream)
{
	NCCL_CALL();
	return collective(call, {comm, {BROADCAST, (u32)type, ncclSum, (u32)root, count}, send, recv, stream});
}

ncclResult_t ncclGroupStart(void)
{
	NCCL_CALL();
	group.depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	NCCL_CALL();
	if (group.depth == 0)
		return ncclInvalidUsage;
	if (--group.depth > 0)
		return ncclSuccess;
	ncclResult_t result = group.error;
	std::vector<struct pending> list = std::move(group.list);
	group.list.clear();
	group.error = ncclSuccess;
	for (size_t i = 0; i < list.size() && result == ncclSuccess; i++)
		result = issue(call, list[i]);
	return result;
}
