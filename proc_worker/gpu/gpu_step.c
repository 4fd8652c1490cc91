/* A step on the device: from the diff to the logits, launched kernel by kernel or, for steps of decoding
 * whose size has come before, as a graph. What a graph reads and what changes from step to step lies in
 * device memory. Runs in the worker in every step; never waits, never allocates (but what recording a graph
 * takes). */
#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "proc_worker/gpu/gpu_priv.h"

/* ---------------------------------------------------------------- kernels of a step */

static enum err build_inputs(struct gpu *g, const struct gpu_shape *shape, struct err_msg *em)
{
	const struct gpu_arena *a = &g->arena;
	struct kern_build_inputs_args args = {.batch = &a->batch,
					      .ids = a->ids,
					      .positions = a->positions,
					      .slots = a->slots,
					      .query_start = a->query_start,
					      .context = a->context,
					      .sample_index = a->sample_index,
					      .sample_rows = a->sample_rows,
					      .sample = a->sample,
					      .logits = a->logits,
					      .counts = a->counts,
					      .tokens = shape->tokens,
					      .samples = shape->samples,
					      .vocab = g->config.model->vocab_size};

	return gpu_op(g->device_ops.build_inputs(&g->ctx, &args), "build_inputs", em);
}

enum err gpu_queue(struct gpu *g, const struct gpu_shape *shape, bool tail, struct err_msg *em)
{
	enum err e = build_inputs(g, shape, em);

	if (!e)
		e = gpu_decode(g, shape, em);
	if (!e)
		e = gpu_logits(g, shape->whole ? NULL : g->arena.sample_index, shape->samples, shape->tokens,
			       em);
	if (!e && tail)
		e = gpu_queue_sampling(g, 0, shape->samples, em);
	if (!e && tail)
		e = gpu_queue_commit(g, em);
	return e;
}

/* ---------------------------------------------------------------- graphs */

/* The least padded size that holds so many tokens; NULL: there is none. */
static struct gpu_graph *graph_for(struct gpu *g, u32 tokens)
{
	for (u32 i = 0; i < g->graph_count; i++)
		if (g->graphs[i].tokens >= tokens)
			return &g->graphs[i];
	return NULL;
}

/* Denser where steps are short: padding costs their share. */
static u32 next_size(u32 size)
{
	if (size < 4)
		return 2 * size;
	return size < 32 ? (size / 8 + 1) * 8 : size < 64 ? size + 16 : size < 512 ? size + 32 : size + 64;
}

void gpu_graphs_init(struct gpu *g)
{
	u32 size = 1;

	while (size < g->samples_max && g->graph_count < GPU_SIZES_MAX - 1) {
		g->graphs[g->graph_count++].tokens = size;
		size = next_size(size);
	}
	g->graphs[g->graph_count++].tokens = g->samples_max;
}

void gpu_graphs_fini(struct gpu *g)
{
	for (u32 i = 0; i < g->graph_count; i++) {
		g->api->graph_destroy(g->graphs[i].forward);
		g->api->graph_destroy(g->graphs[i].forward_tail);
	}
	g->graph_count = 0;
}

static enum err record(struct gpu *g, const struct gpu_shape *shape, bool tail, struct kern_graph **out,
		       struct err_msg *em)
{
	u64 begin = clock_now_ns();

	g->recorded = true;
	enum err e = g->api->graph_begin(g->ctx.stream, em);
	if (e)
		return e;
	e = gpu_queue(g, shape, tail, em);
	if (e)
		g->api->graph_abandon(g->ctx.stream);
	else
		e = g->api->graph_end(g->ctx.stream, out, em);
	if (!e)
		LOG_INFO("GRAPH_RECORDED", "tokens=%u tail=%d us=%llu", shape->tokens, tail,
			 (unsigned long long)((clock_now_ns() - begin) / 1000));
	return e;
}

/* The first step of a size runs as it is, so that what libraries do lazily is done; the second is recorded. A
 * size that cannot be recorded goes on without; but not where ranks sum together, for the others sum padded
 * sizes. */
static enum err run_decode(struct gpu *g, const struct gpu_shape *exact, bool tail, struct err_msg *em)
{
	struct gpu_graph *graph = g->config.graphs ? graph_for(g, exact->tokens) : NULL;

	if (!graph || graph->uses++ == 0)
		return gpu_queue(g, exact, tail, em);
	struct kern_graph **recorded = tail ? &graph->forward_tail : &graph->forward;
	struct gpu_shape padded = {
		.tokens = graph->tokens, .samples = graph->tokens, .decode = true, .whole = true};
	enum err e = *recorded ? ERR_OK : record(g, &padded, tail, recorded, em);
	if (e && g->config.comm) {
		err_prefix(em, "a graph of %u tokens (--enforce-eager does without)", graph->tokens);
		return e;
	}
	if (e) {
		LOG_WARN("GRAPHS_OFF", "tokens=%u error=\"%s\"", graph->tokens, em->text);
		g->config.graphs = false;
		return gpu_queue(g, exact, tail, em);
	}
	return g->api->graph_launch(*recorded, g->ctx.stream, em);
}

/* ---------------------------------------------------------------- the first half */

static struct gpu_shape shape_of(const struct batch_state *b)
{
	bool decode = b->tokens_run == b->run_row_count;

	return (struct gpu_shape){.tokens = b->tokens_run,
				  .samples = b->sample_count,
				  .decode = decode,
				  .whole = decode && b->sample_count == b->tokens_run};
}

/* The slot that the step's results go to; the step before it in there was collected. */
static enum err open_slot(struct gpu *g, u64 step, struct err_msg *em)
{
	struct gpu_slot *s = &g->slots[step % GPU_RING];

	if (s->step != 0 && atomic_load_explicit(&s->done_ns, memory_order_acquire) == 0)
		return err_set(em, ERR_BUSY, "step %llu comes before step %llu was waited for",
			       (unsigned long long)step, (unsigned long long)s->step);
	s->step = 0;
	s->count = s->lp_entries = s->lp_id_count = s->plp_entries = s->plp_id_count = s->embedding_count = 0;
	s->submitted_ns = clock_now_ns();
	atomic_store_explicit(&s->done_ns, 0, memory_order_relaxed);
	return ERR_OK;
}

enum err gpu_forward(struct gpu *g, const struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	struct gpu_shape shape = shape_of(b);
	bool tail = gpu_samples_plainly(b);

	ASSERT(b->applied && g->kv_memory);
	g->tail_queued = g->recorded = false;
	enum err e = open_slot(g, b->step, em);
	if (!e)
		e = gpu_apply(g, b, s, em);
	if (!e)
		e = gpu_apply_lists(g, b, s, em);
	if (!e)
		e = gpu_swap_blocks(g, b, s, em);
	if (!e)
		e = gpu_copy_blocks(g, b, em);
	if (!e)
		e = gpu_upload_rope(g, b, em);
	if (!e)
		e = gpu_states_before(g, b, em);
	if (e || shape.tokens == 0)
		return e;
	g->tail_queued = tail;
	g->picked = !shape.whole;
	e = shape.whole ? run_decode(g, &shape, tail, em) : gpu_queue(g, &shape, tail, em);
	return e ? e : gpu_states_behind(g, b, em);
}

bool gpu_recorded(const struct gpu *g)
{
	return g->recorded;
}
