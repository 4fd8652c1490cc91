/* Captures and graphs: what streams are given between two calls becomes nodes with edges, which a launch runs in any
 * order that the edges allow. What a capture forbids spoils it, as on a device. */
#include "tests/cuda_emu/runtime_priv.h"

static struct {
	std::vector<std::weak_ptr<struct emu_capture>> list;
} &captures = *new std::remove_reference_t<decltype(captures)>();

static thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---------------------------------------------------------------- captures */

static std::vector<std::shared_ptr<struct emu_capture>> active(void)
{
	std::vector<std::shared_ptr<struct emu_capture>> out;
	for (size_t i = 0; i < captures.list.size(); i++) {
		std::shared_ptr<struct emu_capture> c = captures.list[i].lock();
		if (c != NULL)
			out.push_back(c);
		else
			captures.list.erase(captures.list.begin() + (long)i--);
	}
	return out;
}

struct emu_capture *emu_capture_any(bool blocking_only)
{
	for (auto &c : active()) {
		if (!blocking_only || c->origin->blocking)
			return c.get(); /* kept alive by its streams */
	}
	return NULL;
}

cudaError_t emu_capture_spoil(struct emu_capture *c, cudaError_t e)
{
	c->invalid = true;
	return e;
}

/* Calls that might wait for the device or change its memory, in a thread that has not promised (relaxed mode) to know
 * what it does. */
cudaError_t emu_capture_forbids(void)
{
	if (emu_in_host_function())
		return cudaErrorNotPermitted;
	if (thread_mode == cudaStreamCaptureModeRelaxed)
		return cudaSuccess;
	for (auto &c : active()) {
		bool mine = c->thread == emu_this_thread();
		if ((c->mode == cudaStreamCaptureModeGlobal && (mine || thread_mode == cudaStreamCaptureModeGlobal)) ||
		    (c->mode == cudaStreamCaptureModeThreadLocal && mine))
			return emu_capture_spoil(c.get(), cudaErrorStreamCaptureUnsupported);
	}
	return cudaSuccess;
}

void emu_capture_add(struct CUstream_st *s, struct emu_work &&work)
{
	std::vector<struct emu_node> &nodes = s->capture->graph.nodes;
	nodes.push_back({std::move(work), s->capture_tail});
	s->capture_tail = {(u32)nodes.size() - 1};
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	EMU_CALL();
	std::swap(*mode, thread_mode);
	return call.result(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	if (s == NULL || (u32)mode > cudaStreamCaptureModeRelaxed)
		return call.result(s == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
	if (s == emu_stream_find(NULL))
		return call.result(cudaErrorStreamCaptureUnsupported);
	if (s->capture != NULL)
		return call.result(cudaErrorIllegalState);
	s->capture = std::make_shared<struct emu_capture>();
	s->capture->origin = s.get();
	s->capture->mode = mode;
	s->capture->thread = emu_this_thread();
	s->capture_tail.clear();
	captures.list.push_back(s->capture);
	return call.result(cudaSuccess);
}

/* Does everything in the graph come before these nodes? */
static bool joined(const struct CUgraph_st &g, const std::vector<u32> &tail)
{
	std::vector<bool> before(g.nodes.size());
	for (u32 n : tail)
		before[n] = true;
	for (size_t i = g.nodes.size(); i-- > 0;) {
		for (u32 n : g.nodes[i].after) {
			if (before[i])
				before[n] = true;
		}
	}
	for (bool b : before) {
		if (!b)
			return false;
	}
	return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	cudaError_t e = cudaSuccess;
	*graph = NULL;
	if (s == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	std::shared_ptr<struct emu_capture> c = s->capture;
	if (c == NULL)
		return call.result(cudaErrorIllegalState);
	if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != emu_this_thread())
		return call.result(cudaErrorStreamCaptureWrongThread);
	if (c->origin != s.get())
		e = emu_capture_spoil(c.get(), cudaErrorStreamCaptureUnmatched);
	else if (c->invalid)
		e = cudaErrorStreamCaptureInvalidated;
	else if (!joined(c->graph, s->capture_tail))
		e = cudaErrorStreamCaptureUnjoined;
	else
		*graph = new CUgraph_st(std::move(c->graph));
	if (c->origin == s.get())
		emu_streams_leave(c.get());
	return call.result(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	if (s == NULL)
		return call.result(cudaErrorInvalidResourceHandle);
	*status = s->capture == NULL	? cudaStreamCaptureStatusNone
		  : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
					: cudaStreamCaptureStatusActive;
	return call.result(cudaSuccess);
}

/* ---------------------------------------------------------------- graphs */

/* The node that comes after this one and nothing else: it may begin early if it is a dependent kernel. */
static struct emu_work *sole_follower(std::vector<struct emu_node> &nodes, u32 n)
{
	for (size_t i = n + 1; i < nodes.size(); i++) {
		if (nodes[i].after.size() == 1 && nodes[i].after[0] == n)
			return &nodes[i].work;
	}
	return NULL;
}

static size_t choose_node(const std::vector<u32> &ready)
{
	struct emu_schedule *s = emu_device_schedule();
	if (s->order == EMU_FORWARD || s->order == EMU_AHEAD)
		return 0;
	return s->order == EMU_REVERSE ? ready.size() - 1 : emu_random_below(&s->random, (u32)ready.size());
}

static cudaError_t run_graph(std::vector<struct emu_node> nodes)
{
	std::vector<u32> left(nodes.size()), ready;
	cudaError_t e = cudaSuccess;
	for (u32 i = 0; i < nodes.size(); i++) {
		left[i] = (u32)nodes[i].after.size();
		if (left[i] == 0)
			ready.push_back(i);
	}
	while (!ready.empty() && e == cudaSuccess) {
		size_t at = choose_node(ready);
		u32 n = ready[at];
		ready.erase(ready.begin() + (long)at);
		e = emu_execute(nodes[n].work, sole_follower(nodes, n));
		for (u32 i = n + 1; i < nodes.size(); i++) {
			for (u32 before : nodes[i].after) {
				if (before == n && --left[i] == 0)
					ready.push_back(i);
			}
		}
	}
	return e;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	EMU_CALL();
	if (graph == NULL || (flags & ~8ull) != 0)
		return call.result(cudaErrorInvalidValue);
	*exec = new CUgraphExec_st();
	(*exec)->nodes = std::make_shared<std::vector<struct emu_node>>(graph->nodes);
	return call.result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
	EMU_CALL();
	return call.result(exec == NULL || emu_stream_find(stream) == NULL ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	EMU_CALL();
	std::shared_ptr<struct CUstream_st> s = emu_stream_find(stream);
	struct emu_work work = {"graph", NULL, NULL, {}, NULL};
	cudaError_t e;
	if (exec == NULL || s == NULL)
		return call.result(exec == NULL ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
	if (s->capture != NULL) /* a graph within a graph is nothing the engine needs */
		return call.result(emu_capture_spoil(s->capture.get(), cudaErrorStreamCaptureUnsupported));
	if (exec->last.stream != NULL)
		work.after.push_back(exec->last);
	work.call = [nodes = exec->nodes] { return run_graph(*nodes); };
	e = emu_enqueue(call, stream, std::move(work));
	exec->last = {s, s->issued};
	return call.result(e);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	EMU_CALL();
	if (exec == NULL)
		return call.result(cudaErrorInvalidValue);
	delete exec; /* launches in flight hold its nodes */
	return call.result(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	EMU_CALL();
	if (graph == NULL)
		return call.result(cudaErrorInvalidValue);
	delete graph;
	return call.result(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
	EMU_CALL();
	if (graph == NULL || count == NULL)
		return call.result(cudaErrorInvalidValue);
	if (nodes == NULL)
		*count = graph->nodes.size();
	for (size_t i = 0; nodes != NULL && i < *count; i++)
		nodes[i] = i < graph->nodes.size() ? reinterpret_cast<cudaGraphNode_t>(&graph->nodes[i]) : NULL;
	return call.result(cudaSuccess);
}
