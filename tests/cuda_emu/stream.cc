/* Streams and events. Streams are queues of work; what runs next, and whether anything runs before somebody waits, is the
 * schedule's to say, within what the order of each stream and events between them allow:
 *	forward		work runs as soon as it is issued
 *	reverse		nothing runs before it is waited for, then only what that needs, the newest stream first
 *	strided		the same, streams taking turns
 *	ahead		the same, but other streams run as far as they can, too
 *	random		some work runs at any call
 * With a device thread (emu_device_thread) work runs while the host goes on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include <condition_variable>
#include <thread>

#include "tests/cuda_emu/runtime_priv.h"

static struct {
	std::vector<std::shared_ptr<struct CUstream_st>> list; /* [0]: legacy */
	std::condition_variable changed;
	u32 made, turn;
	bool executing, threaded;
} &streams = *new std::remove_reference_t<decltype(streams)>();

static thread_local bool in_host_function;

bool emu_in_host_function(void)
{
	return in_host_function;
}

static std::shared_ptr<struct CUstream_st> make_stream(bool blocking)
{
	auto s = std::make_shared<struct CUstream_st>();
	s->number = streams.made++;
	s->blocking = blocking;
	s->alive = true;
	streams.list.push_back(s);
	return s;
}

std::shared_ptr<struct CUstream_st> emu_stream_find(cudaStream_t stream)
{
	if (streams.list.empty())
		make_stream(false);
	if (stream == NULL || stream == cudaStreamLegacy)
		return streams.list[0];
	for (auto &s : streams.list) {
		if (s.get() == stream && s->alive)
			return s;
	}
	return NULL;
}

/* ---------------------------------------------------------------- execution */

static cudaError_t run_kernel(struct emu_work &work, struct emu_work *next)
{
	struct emu_schedule *schedule = emu_device_schedule();
	cudaError_t e = cudaSuccess;
	if (next != NULL && next->kernel != NULL && next->kernel->dependent && next->early == NULL && work.early == NULL)
		next->early = emu_run_early(next->kernel.get(), schedule, &e);
	if (e == cudaSuccess)
		e = emu_run(work.kernel.get(), schedule, work.early);
	work.early = NULL;
	if (e == cudaSuccess && emu_memory_overrun(work.kernel->name))
		e = cudaErrorIllegalAddress;
	return e;
}

cudaError_t emu_execute(struct emu_work &work, struct emu_work *next)
{
	if (emu_sticky() != cudaSuccess)
		return emu_sticky();
	return work.kernel != NULL ? run_kernel(work, next) : work.call();
}

static bool reached(const struct emu_point &p)
{
	return p.stream->done >= p.count;
}

static bool runnable(const std::shared_ptr<struct CUstream_st> &s)
{
	if (s->queue.empty())
		return false;
	for (const struct emu_point &p : s->queue.front().after) {
		if (!reached(p))
			return false;
	}
	return true;
}

/* The streams whose head may run. `needed`: only those that this point waits for. */
static void collect(const struct emu_point *needed, std::vector<std::shared_ptr<struct CUstream_st>> &out, u32 depth)
{
	if (needed == NULL) {
		for (auto &s : streams.list) {
			if (runnable(s))
				out.push_back(s);
		}
		return;
	}
	if (reached(*needed) || depth > 64)
		return;
	if (runnable(needed->stream))
		out.push_back(needed->stream);
	else if (!needed->stream->queue.empty()) {
		for (const struct emu_point &p : needed->stream->queue.front().after)
			collect(&p, out, depth + 1);
	}
}

static std::shared_ptr<struct CUstream_st> choose_stream(const struct emu_point *until)
{
	struct emu_schedule *s = emu_device_schedule();
	std::vector<std::shared_ptr<struct CUstream_st>> ready;
	bool lazy = s->order == EMU_REVERSE || s->order == EMU_STRIDED;
	collect(lazy ? until : NULL, ready, 0);
	if (ready.empty())
		return NULL;
	switch (s->order) {
	case EMU_FORWARD:
		return ready.front();
	case EMU_REVERSE:
	case EMU_AHEAD:
		return ready.back();
	case EMU_STRIDED:
		return ready[streams.turn++ % ready.size()];
	case EMU_RANDOM:
		break;
	}
	return ready[emu_random_below(&s->random, (u32)ready.size())];
}

/* Runs the head of a stream, without the lock. */
static void run_head(struct emu_call &call, const std::shared_ptr<struct CUstream_st> &s)
{
	struct emu_work work = std::move(s->queue.front());
	struct emu_work *next;
	cudaError_t e;
	s->queue.pop_front();
	next = !s->queue.empty() && s->queue.front().after.empty() ? &s->queue.front() : NULL;
	if (emu_device_schedule()->order == EMU_FORWARD)
		next = NULL;
	streams.executing = true;
	emu_memory_open();
	call.lock->unlock();
	e = emu_execute(work, next); /* appending to the queue leaves `next` where it is */
	call.lock->lock();
	emu_memory_close();
	streams.executing = false;
	if (e != cudaSuccess)
		emu_set_sticky(e);
	s->done++;
	for (size_t i = 1; i < streams.list.size(); i++) {
		if (!streams.list[i]->alive && streams.list[i]->queue.empty())
			streams.list.erase(streams.list.begin() + (long)i--);
	}
	streams.changed.notify_all();
}

/* False: nothing can run. */
static bool step(struct emu_call &call, const struct emu_point *until)
{
	std::shared_ptr<struct CUstream_st> s;
	if (streams.executing || streams.threaded) {
		streams.changed.wait(*call.lock);
		return true;
	}
	s = choose_stream(until);
	if (s == NULL)
		return false;
	run_head(call, s);
	return true;
}

cudaError_t emu_drain(struct emu_call &call, const struct emu_point &until)
{
	while (!reached(until)) {
		if (!step(call, &until)) {
			emu_report_set("cuda_emu: streams wait for each other\n");
			return cudaErrorLaunchTimeout;
		}
	}
	return emu_sticky();
}

cudaError_t emu_drain_all(struct emu_call &call)
{
	for (size_t i = 0; i < streams.list.size(); i++) {
		cudaError_t e = emu_drain(call, {streams.list[i], streams.list[i]->issued});
		if (e != cudaSuccess)
			return e;
	}
	return cudaSuccess;
}

void emu_progress(struct emu_call &call)
{
	std::shared_ptr<struct CUstream_st> s;
	if (streams.executing || streams.threaded) {
		(void)streams.changed.wait_for(*call.lock, std::chrono::microseconds(100));
		return;
	}
	s = choose_stream(NULL);
	if (s != NULL)
		run_head(call, s);
}

static void device_main(void)
{
	(void)prctl(PR_SET_NAME, "emu-device"); /* for tests that hold it */
	struct emu_call call("device thread");
	while (streams.threaded) {
		std::shared_ptr<struct CUstream_st> s = choose_stream(NULL);
		if (s != NULL)
			run_head(call, s);
		else
			streams.changed.wait(*call.lock);
	}
}

void emu_device_thread(void)
{
	struct emu_call call("emu_device_thread");
	if (streams.threaded)
		return;
	streams.threaded = true;
	std::thread(device_main).detach(); /* until the process ends */
}

/* ---------------------------------------------------------------- issuing */

/* The legacy stream waits for all blocking ones, and they for it. */
static void order_with_legacy(const std::shared_ptr<struct CUstream_st> &s, struct emu_work &work)
{
	std::shared_ptr<struct CUstream_st> legacy = streams.list[0];
	if (s->blocking && legacy->done < legacy->issued)
		work.after.push_back({legacy, legacy->issued});
	if (s != legacy)
		return;
	for (auto &other : streams.list) {
		if (other->blocking && other->done < other->issued)
			work.after.push_back({other, other->issued});
	}
}

cudaError_t emu_enqueue(struct emu_call &call, cudaStream_t stream, struct emu_work &&work)
{
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	struct emu_capture *blocking = emu_capture_any(true);
	struct emu_schedule *schedule = emu_device_schedule();
	if (s == NULL)
		return cudaErrorInvalidResourceHandle;
	if (s == streams.list[0] && blocking != NULL)
		return emu_capture_spoil(blocking, cudaErrorStreamCaptureImplicit);
	if (s->capture != NULL) {
		if (s->capture->invalid)
			return cudaErrorStreamCaptureInvalidated;
		emu_capture_add(s.get(), std::move(work));
		return cudaSuccess;
	}
	order_with_legacy(s, work);
	s->queue.push_back(std::move(work));
	s->issued++;
	streams.changed.notify_all();
	if (schedule->order == EMU_FORWARD && !streams.threaded)
		(void)emu_drain(call, {s, s->issued}); /* the work's error is not this call's */
	while (schedule->order == EMU_RANDOM && !streams.threaded && emu_random_below(&schedule->random, 2) == 0)
		emu_progress(call);
	return cudaSuccess;
}

/* ---------------------------------------------------------------- stream calls */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
	EMU_CALL();
	(void)priority;
	if (stream == NULL || (flags & ~1u) != 0)
		return call.result(cudaErrorInvalidValue);
	(void)emu_stream_find(NULL);
	*stream = make_stream((flags & cudaStreamNonBlocking) == 0).get();
	return call.result(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
	EMU_CALL();
	return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	EMU_CALL();
	return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	if (s == NULL || s == streams.list[0])
		return call.result(cudaErrorInvalidResourceHandle);
	if (s->capture != NULL)
		return call.result(emu_capture_spoil(s->capture.get(), cudaErrorStreamCaptureUnsupported));
	s->alive = false; /* its work still runs */
	return call.result(cudaSuccess);
}

/* What waiting for a stream needs first. */
static cudaError_t waitable(const std::shared_ptr<struct CUstream_st> &s)
{
	struct emu_capture *blocking = emu_capture_any(true);
	if (s == NULL)
		return cudaErrorInvalidResourceHandle;
	if (in_host_function)
		return cudaErrorNotPermitted;
	if (s->capture != NULL)
		return emu_capture_spoil(s->capture.get(), cudaErrorStreamCaptureUnsupported);
	if (s == streams.list[0] && blocking != NULL)
		return emu_capture_spoil(blocking, cudaErrorStreamCaptureImplicit);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	cudaError_t e = waitable(s);
	return call.result(e == cudaSuccess ? emu_drain(call, {s, s->issued}) : e);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	cudaError_t e = waitable(s);
	if (e != cudaSuccess)
		return call.result(e);
	if (s->done == s->issued)
		return call.result(cudaSuccess);
	emu_progress(call);
	return call.result(s->done == s->issued ? emu_sticky() : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
	EMU_CALL();
	struct emu_capture *c = emu_capture_any(false);
	if (in_host_function)
		return call.result(cudaErrorNotPermitted);
	if (c != NULL)
		return call.result(emu_capture_spoil(c, cudaErrorStreamCaptureUnsupported));
	return call.result(emu_drain_all(call));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data)
{
	EMU_CALL();
	struct emu_work work = {"host function", NULL, NULL, {}, NULL};
	if (fn == NULL)
		return call.result(cudaErrorInvalidValue);
	work.call = [fn, user_data] {
		in_host_function = true;
		fn(user_data);
		in_host_function = false;
		return cudaSuccess;
	};
	return call.result(emu_enqueue(call, stream, std::move(work)));
}

/* ---------------------------------------------------------------- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
	EMU_CALL();
	if (event == NULL || (flags & ~7u) != 0)
		return call.result(cudaErrorInvalidValue);
	*event = new CUevent_st();
	(*event)->flags = flags;
	return call.result(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	EMU_CALL();
	return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	EMU_CALL();
	if (event == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	delete event;
	return call.result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	struct emu_work work = {"event", NULL, NULL, {}, NULL};
	auto time_ms = std::make_shared<double>(-1.0);
	cudaError_t e;
	if (event == NULL || s == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	event->capture.reset();
	if (s->capture != NULL) {
		if (s->capture->invalid)
			return call.result(cudaErrorStreamCaptureInvalidated);
		event->capture = s->capture;
		event->nodes = s->capture_tail;
		event->recorded = true;
		return call.result(cudaSuccess);
	}
	work.call = [time_ms] {
		struct timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		*time_ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
		return cudaSuccess;
	};
	event->time_ms = time_ms;
	e = emu_enqueue(call, stream, std::move(work));
	event->recorded = true;
	event->point = {s, s->issued};
	return call.result(e);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	struct emu_work work = {"wait", NULL, [] { return cudaSuccess; }, {}, NULL};
	if (s == NULL || event == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	if (flags != 0)
		return call.result(cudaErrorInvalidValue);
	if (!event->recorded)
		return call.result(cudaSuccess);
	std::shared_ptr<struct emu_capture> c = event->capture.lock();
	if (c == NULL && s->capture != NULL)
		return call.result(emu_capture_spoil(s->capture.get(), cudaErrorStreamCaptureIsolation));
	if (c != NULL) {
		if (s == streams.list[0])
			return call.result(emu_capture_spoil(c.get(), cudaErrorStreamCaptureImplicit));
		if (s->capture != NULL && s->capture != c)
			return call.result(emu_capture_spoil(c.get(), cudaErrorStreamCaptureMerge));
		if (s->capture == NULL)
			s->capture_tail.clear();
		s->capture = c;
		s->capture_tail.insert(s->capture_tail.end(), event->nodes.begin(), event->nodes.end());
		return call.result(cudaSuccess);
	}
	if (event->capture.expired() && event->point.stream == NULL)
		return call.result(cudaErrorCapturedEvent); /* of a capture that has ended */
	work.after.push_back(event->point);
	return call.result(emu_enqueue(call, stream, std::move(work)));
}

/* cudaSuccess: the event's point can be waited for, or there is none. */
static cudaError_t event_waitable(cudaEvent_t event)
{
	if (event == NULL)
		return cudaErrorInvalidResourceHandle;
	std::shared_ptr<struct emu_capture> c = event->capture.lock();
	if (c != NULL)
		return emu_capture_spoil(c.get(), cudaErrorCapturedEvent);
	if (event->recorded && event->point.stream == NULL)
		return cudaErrorCapturedEvent;
	return emu_capture_forbids();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	EMU_CALL();
	cudaError_t e = event_waitable(event);
	return call.result(e == cudaSuccess && event->recorded ? emu_drain(call, event->point) : e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	EMU_CALL();
	cudaError_t e = event_waitable(event);
	if (e != cudaSuccess || !event->recorded || reached(event->point))
		return call.result(e);
	emu_progress(call);
	return call.result(reached(event->point) ? emu_sticky() : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
	EMU_CALL();
	if (start == NULL || end == NULL || ((start->flags | end->flags) & cudaEventDisableTiming) != 0 ||
	    start->time_ms == NULL || end->time_ms == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	if (!reached(start->point) || !reached(end->point))
		return call.result(cudaErrorNotReady);
	*ms = (float)(*end->time_ms - *start->time_ms);
	return call.result(cudaSuccess);
}

void emu_streams_leave(struct emu_capture *c)
{
	for (auto &s : streams.list) {
		if (s->capture.get() == c) {
			s->capture_tail.clear();
			s->capture.reset();
		}
	}
}

void emu_streams_reset(void)
{
	for (auto &s : streams.list) {
		s->queue.clear();
		s->done = s->issued;
		s->capture.reset();
	}
}
