/* Device memory and pinned host memory: every allocation has pages of its own between pages that nobody may touch, ends
 * as close to the second as its alignment allows, and holds poison. What is freed is never handed out again soon. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_emu/emu_asan.h"
#include "tests/cuda_emu/runtime_priv.h"

enum { ALIGN = 256, SLACK = 256, FREED_MAX = 4096 };

struct allocation {
	enum emu_memory kind;
	size_t bytes;
	char *map; /* NULL: registered, not ours */
	size_t map_bytes;
	char *cells; /* race.cc's, one a byte; NULL: not yet */
};

static struct {
	std::map<uintptr_t, struct allocation> live;
	std::deque<std::pair<char *, size_t>> freed;
	size_t used, total;
	bool protect;
	u32 users; /* who run work now: the device's thread and the host's copies do so side by side */
} &memory = *new std::remove_reference_t<decltype(memory)>();

static size_t page(void)
{
	static const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	return bytes;
}

static size_t total_bytes(void)
{
	if (memory.total == 0) {
		const char *set = getenv("CUDA_EMU_MEMORY");
		memory.total = set != NULL ? (size_t)strtoull(set, NULL, 10) : (size_t)4 << 30;
	}
	return memory.total;
}

void emu_memory_size(size_t bytes)
{
	struct emu_call call("emu_memory_size");
	memory.total = bytes;
}

void emu_protect(bool on)
{
	struct emu_call call("emu_protect");
	emu_memory_open();
	memory.protect = on;
	emu_memory_close();
}

static void protect_all(int how)
{
	if (!memory.protect)
		return;
	for (auto &[at, a] : memory.live) {
		if (a.kind == EMU_DEVICE)
			(void)mprotect(a.map + page(), a.map_bytes - 2 * page(), how);
	}
}

void emu_memory_open(void)
{
	memory.users++;
	protect_all(PROT_READ | PROT_WRITE);
}

void emu_memory_close(void)
{
	if (--memory.users == 0)
		protect_all(PROT_NONE);
}

/* The pages: [none] [slack, data, slack up to the alignment] [none] */
static void *allocate(size_t bytes, enum emu_memory kind)
{
	size_t rounded = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
	size_t inner = (rounded + SLACK + page() - 1) & ~(page() - 1);
	struct allocation a = {kind, bytes, NULL, inner + 2 * page(), NULL};
	void *m = mmap(NULL, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *data;
	if (m == MAP_FAILED)
		return NULL;
	a.map = static_cast<char *>(m);
	if (mprotect(a.map + page(), inner, PROT_READ | PROT_WRITE) != 0) {
		(void)munmap(m, a.map_bytes);
		return NULL;
	}
	data = a.map + page() + inner - rounded;
	memset(data - SLACK, EMU_POISON, SLACK + rounded);
	EMU_POISON_MEMORY(a.map + page(), inner);
	EMU_UNPOISON(data, bytes);
	memory.live[(uintptr_t)data] = a;
	return data;
}

u64 emu_memory_frees;

struct emu_cells emu_memory_cells(const void *p)
{
	struct emu_call call("emu_memory_cells");
	uintptr_t at = (uintptr_t)p;
	auto it = memory.live.upper_bound(at);
	if (it == memory.live.begin() || at >= std::prev(it)->first + std::prev(it)->second.bytes)
		return {};
	const uintptr_t start = std::prev(it)->first;
	struct allocation &a = std::prev(it)->second;
	if (a.cells == NULL) {
		void *m = mmap(NULL, a.bytes * emu_cell_bytes(), PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (m == MAP_FAILED)
			return {};
		a.cells = static_cast<char *>(m);
	}
	return {reinterpret_cast<const unsigned char *>(start), a.bytes, reinterpret_cast<struct emu_cell *>(a.cells),
		emu_memory_frees};
}

static void drop_cells(struct allocation *a)
{
	emu_memory_frees++;
	if (a->cells != NULL)
		(void)munmap(a->cells, a->bytes * emu_cell_bytes());
	a->cells = NULL;
}

static void release(std::map<uintptr_t, struct allocation>::iterator it)
{
	struct allocation a = it->second;
	drop_cells(&a);
	memory.live.erase(it);
	EMU_UNPOISON(a.map + page(), a.map_bytes - 2 * page());
	(void)mmap(a.map, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	memory.freed.push_back({a.map, a.map_bytes});
	if (memory.freed.size() > FREED_MAX) {
		(void)munmap(memory.freed.front().first, memory.freed.front().second);
		memory.freed.pop_front();
	}
}

bool emu_memory_at(const void *p, size_t bytes, enum emu_memory *kind)
{
	uintptr_t at = (uintptr_t)p;
	auto it = memory.live.upper_bound(at);
	*kind = EMU_PAGEABLE;
	if (it != memory.live.begin()) {
		const auto &[start, a] = *std::prev(it);
		if (at < start + a.bytes || (at == start && a.bytes == 0)) {
			*kind = a.kind;
			return at + bytes <= start + a.bytes;
		}
		if (a.map != NULL && at < (uintptr_t)a.map + a.map_bytes)
			return false; /* beside an allocation */
	}
	for (const auto &[map, map_bytes] : memory.freed) {
		if (p >= map && p < map + map_bytes)
			return false;
	}
	return true;
}

static bool intact(const char *p, size_t bytes)
{
	/* each byte is the one before it */
	return bytes == 0 || ((unsigned char)*p == EMU_POISON && memcmp(p, p + 1, bytes - 1) == 0);
}

bool emu_memory_overrun(const char *who)
{
#ifndef EMU_ASAN /* there it has trapped already */
	for (const auto &[start, a] : memory.live) {
		const char *data = (const char *)start;
		if (a.map == NULL)
			continue;
		size_t behind = (size_t)(a.map + a.map_bytes - page() - (data + a.bytes));
		if (!intact(data - SLACK, SLACK) || !intact(data + a.bytes, behind)) {
			char text[300];
			snprintf(text, sizeof(text), "cuda_emu: %s has written %s an allocation of %zu bytes (at %p)\n", who,
				 intact(data - SLACK, SLACK) ? "behind" : "before", a.bytes, data);
			emu_report_set(text);
			memset((void *)(start - SLACK), EMU_POISON, SLACK);
			memset((void *)(start + a.bytes), EMU_POISON, behind);
			return true;
		}
	}
#else
	(void)who;
	(void)intact;
#endif
	return false;
}

/* ---------------------------------------------------------------- calls */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	EMU_CALL();
	*total = total_bytes();
	*free_bytes = *total - memory.used;
	return call.result(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
	EMU_CALL();
	size_t granted = (bytes + 511) & ~(size_t)511;
	cudaError_t e = emu_capture_forbids();
	if (e != cudaSuccess)
		return call.result(e);
	*p = NULL;
	if (bytes == 0)
		return call.result(cudaSuccess);
	if (bytes > total_bytes() || granted > total_bytes() - memory.used)
		return call.result(cudaErrorMemoryAllocation);
	emu_memory_open();
	*p = allocate(bytes, EMU_DEVICE);
	if (*p != NULL)
		memory.used += granted;
	emu_memory_close();
	return call.result(*p != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t free_memory(struct emu_call &call, void *p, enum emu_memory kind)
{
	cudaError_t e = emu_capture_forbids();
	auto it = memory.live.find((uintptr_t)p);
	if (e == cudaSuccess && p != NULL && (it == memory.live.end() || it->second.kind != kind || it->second.map == NULL))
		e = cudaErrorInvalidValue;
	if (e == cudaSuccess)
		e = emu_drain_all(call); /* work in flight may use it: freeing waits for the device */
	if (e != cudaSuccess || p == NULL)
		return e;
	if (kind == EMU_DEVICE)
		memory.used -= (it->second.bytes + 511) & ~(size_t)511;
	release(it);
	return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
	EMU_CALL();
	return call.result(free_memory(call, p, EMU_DEVICE));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int flags)
{
	EMU_CALL();
	cudaError_t e = emu_capture_forbids();
	*p = NULL;
	if (e == cudaSuccess && (flags & ~7u) != 0)
		e = cudaErrorInvalidValue;
	if (e != cudaSuccess || bytes == 0)
		return call.result(e);
	*p = allocate(bytes, EMU_PINNED);
	return call.result(*p != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	EMU_CALL();
	return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *p)
{
	EMU_CALL();
	return call.result(free_memory(call, p, EMU_PINNED));
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags)
{
	EMU_CALL();
	enum emu_memory kind;
	cudaError_t e = emu_capture_forbids();
	if (e == cudaSuccess && (p == NULL || bytes == 0 || (flags & ~0xfu) != 0))
		e = cudaErrorInvalidValue;
	if (e == cudaSuccess && (!emu_memory_at(p, bytes, &kind) || kind != EMU_PAGEABLE))
		e = cudaErrorHostMemoryAlreadyRegistered;
	if (e == cudaSuccess)
		memory.live[(uintptr_t)p] = {EMU_PINNED, bytes, NULL, 0, NULL};
	return call.result(e);
}

cudaError_t cudaHostUnregister(void *p)
{
	EMU_CALL();
	auto it = memory.live.find((uintptr_t)p);
	cudaError_t e = emu_capture_forbids();
	if (e == cudaSuccess && (it == memory.live.end() || it->second.map != NULL))
		e = cudaErrorHostMemoryNotRegistered;
	if (e == cudaSuccess)
		e = emu_drain_all(call);
	if (e == cudaSuccess) {
		drop_cells(&it->second);
		memory.live.erase(it);
	}
	return call.result(e);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned int flags)
{
	EMU_CALL();
	enum emu_memory kind;
	if (flags != 0 || !emu_memory_at(host, 1, &kind) || kind != EMU_PINNED)
		return call.result(cudaErrorInvalidValue);
	*out = host; /* unified addressing */
	return call.result(cudaSuccess);
}

/* ---------------------------------------------------------------- copies */

struct rows {
	char *to;
	const char *from;
	size_t to_pitch, from_pitch, width, height;
};

static size_t span(size_t pitch, size_t width, size_t height)
{
	return height == 0 ? 0 : (height - 1) * pitch + width;
}

static void copy_rows(const struct rows &r)
{
	for (size_t i = 0; i < r.height; i++)
		memmove(r.to + i * r.to_pitch, r.from + i * r.from_pitch, r.width);
}

static cudaError_t check_kind(enum cudaMemcpyKind kind, enum emu_memory to, enum emu_memory from)
{
	if ((u32)kind > cudaMemcpyDefault)
		return cudaErrorInvalidMemcpyDirection;
	if (kind == cudaMemcpyDefault)
		return cudaSuccess;
	bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
	bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
	/* pinned memory is a device's address, too */
	bool to_fits = to == EMU_PINNED || to_device == (to == EMU_DEVICE);
	bool from_fits = from == EMU_PINNED || from_device == (from == EMU_DEVICE);
	return to_fits && from_fits ? cudaSuccess : cudaErrorInvalidValue;
}

/* Pageable memory is not read later than the call that names it, nor written later: the device's engine cannot reach
 * it. */
static cudaError_t copy(struct emu_call &call, const struct rows &r, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	enum emu_memory to, from;
	struct emu_work work = {"memcpy", NULL, NULL, {}, NULL};
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	cudaError_t e = cudaErrorInvalidValue;
	if (emu_memory_at(r.to, span(r.to_pitch, r.width, r.height), &to) &&
	    emu_memory_at(r.from, span(r.from_pitch, r.width, r.height), &from))
		e = check_kind(kind, to, from);
	if (e == cudaSuccess && s == NULL)
		e = cudaErrorInvalidResourceHandle;
	if (e == cudaSuccess && s->capture != NULL && (to == EMU_PAGEABLE || from == EMU_PAGEABLE))
		e = emu_capture_spoil(s->capture.get(), cudaErrorStreamCaptureUnsupported);
	if (e != cudaSuccess)
		return e;
	if (from == EMU_PAGEABLE && r.width * r.height > 0) {
		auto kept = std::make_shared<std::vector<char>>(r.width * r.height);
		copy_rows({kept->data(), r.from, r.width, r.from_pitch, r.width, r.height});
		work.call = [r, kept] {
			copy_rows({r.to, kept->data(), r.to_pitch, r.width, r.width, r.height});
			return cudaSuccess;
		};
	} else
		work.call = [r] {
			copy_rows(r);
			return cudaSuccess;
		};
	e = emu_enqueue(call, stream, std::move(work));
	if (e == cudaSuccess && to == EMU_PAGEABLE)
		e = emu_drain(call, {s, s->issued});
	return e;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	EMU_CALL();
	return call.result(copy(call, {static_cast<char *>(dst), static_cast<const char *>(src), bytes, bytes, bytes, 1},
				kind, stream));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
			      size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	EMU_CALL();
	if (width > dst_pitch || width > src_pitch)
		return call.result(cudaErrorInvalidPitchValue);
	return call.result(copy(call,
				{static_cast<char *>(dst), static_cast<const char *>(src), dst_pitch, src_pitch, width,
				 height},
				kind, stream));
}

/* Pageable memory has been read when a copy returns, but what it goes to need not be written yet; a copy within the device
 * is not waited for at all. A stream that does not wait for the legacy one may come first. */
static bool returns_early(const void *dst, const void *src, size_t bytes)
{
	enum emu_memory to, from;
	return emu_memory_at(dst, bytes, &to) && emu_memory_at(src, bytes, &from) && to == EMU_DEVICE && from != EMU_PINNED;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
	EMU_CALL();
	cudaError_t e = emu_capture_forbids();
	if (e == cudaSuccess)
		e = copy(call, {static_cast<char *>(dst), static_cast<const char *>(src), bytes, bytes, bytes, 1}, kind, NULL);
	if (e == cudaSuccess && !returns_early(dst, src, bytes)) {
		std::shared_ptr<struct CUstream_st> legacy = emu_stream_find(NULL);
		e = emu_drain(call, {legacy, legacy->issued});
	}
	return call.result(e);
}

static cudaError_t set(struct emu_call &call, void *p, int value, size_t bytes, cudaStream_t stream)
{
	enum emu_memory kind;
	struct emu_work work = {"memset", NULL, NULL, {}, NULL};
	if (!emu_memory_at(p, bytes, &kind) || kind == EMU_PAGEABLE)
		return cudaErrorInvalidValue;
	work.call = [p, value, bytes] {
		memset(p, value, bytes);
		return cudaSuccess;
	};
	return emu_enqueue(call, stream, std::move(work));
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
	EMU_CALL();
	return call.result(set(call, p, value, bytes, stream));
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
	EMU_CALL();
	cudaError_t e = emu_capture_forbids();
	return call.result(e == cudaSuccess ? set(call, p, value, bytes, NULL) : e);
}
