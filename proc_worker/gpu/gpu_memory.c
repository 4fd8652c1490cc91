/* Memory of a device's engine: one arena on the device for all that a step needs, one piece of pinned memory. Everything is taken at start;
 * sizes follow from the limits alone. Runs in the worker at start. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "ipc/schema.h"
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/model/latent.h"
#include "proc_worker/profile.h"

enum { ALIGN = 256 };

static const u64 MIB = 1 << 20;

static unsigned long long mib_up(u64 bytes)
{
	return (bytes + MIB - 1) / MIB;
}

static void *carve(u8 *base, size_t *offset, size_t bytes)
{
	void *p = base ? base + *offset : NULL;

	*offset += (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
	return p;
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t most(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* ---------------------------------------------------------------- the arena */

static void lay_out_batch(struct gpu *g, u8 *base, size_t *offset)
{
	struct kern_batch *b = &g->arena.batch;
	struct gpu_arena *a = &g->arena;
	size_t rows = g->config.limits.rows_max;

	*b = (struct kern_batch){.rows = (u32)rows,
				 .block_size = g->config.limits.block_size,
				 .token_stride = (g->config.limits.max_model_len + 31) / 16 * 16};
	u32 blocks = (g->config.limits.max_model_len + b->block_size - 1) / b->block_size;
	b->block_stride = (blocks + 15) / 16 * 16;
	b->known = carve(base, offset, rows * sizeof(u32));
	b->computed = carve(base, offset, rows * sizeof(u32));
	b->run = carve(base, offset, rows * sizeof(u32));
	b->prompt = carve(base, offset, rows * sizeof(u32));
	b->params = carve(base, offset, rows * sizeof(*b->params));
	b->tokens = carve(base, offset, rows * b->token_stride * sizeof(u32));
	b->blocks = carve(base, offset, rows * b->block_stride * sizeof(u32));
	a->bias_ids = carve(base, offset, rows * BIAS_MAX * sizeof(u32));
	a->bias_values = carve(base, offset, rows * BIAS_MAX * sizeof(f32));
	a->masked = carve(base, offset, rows * GPU_MASKED_MAX * sizeof(u32));
	a->allowed = carve(base, offset,
			   (size_t)g->samples_max * ((g->config.model->vocab_size + 31) / 32) * sizeof(u32));
	a->no_diff = carve(base, offset, KERN_DIFF_WORDS * sizeof(u32));
	a->saves = g->config.states->stride ? carve(base, offset, 2 * rows * sizeof(u32)) : NULL;
	a->upload = carve(base, offset, g->stage_bytes);
	a->kv_layers = carve(base, offset, g->kv_count * sizeof(struct kern_kv));
}

/* Of the rotary tables: rows of layers with positions of their own may be of another width. */
static size_t angle_count(const struct gpu *g)
{
	const struct rope_tables *t = g->config.rope;
	const struct rope_config *local = model_local_rope(g->config.model);
	size_t rows = t->local ? t->local : t->rows, others = t->local ? t->rows - t->local : 0;

	return rows * (g->config.model->rope.dim / 2) + (others ? others * (local->dim / 2) : 0);
}

static void lay_out_inputs(struct gpu *g, u8 *base, size_t *offset)
{
	struct gpu_arena *a = &g->arena;
	const struct rope_tables *rope = g->config.rope;
	size_t tokens = g->config.limits.tokens_max, rows = g->config.limits.rows_max;
	size_t angles = angle_count(g);

	a->ids = carve(base, offset, tokens * sizeof(u32));
	a->positions = carve(base, offset, tokens * sizeof(u32));
	a->rope_rows = rope->far ? carve(base, offset, tokens * sizeof(u32)) : a->positions;
	a->slots = carve(base, offset, tokens * sizeof(i64));
	a->query_start = carve(base, offset, (rows + 1) * sizeof(u32));
	a->context = carve(base, offset, rows * sizeof(u32));
	a->sample_index = carve(base, offset, g->samples_max * sizeof(u32));
	a->sample_rows = carve(base, offset, g->samples_max * sizeof(u32));
	a->rows_themselves = g->config.model->arch->global_heads ? carve(base, offset, tokens * sizeof(u32)) : NULL;
	a->counts = carve(base, offset, 2 * sizeof(u32));
	a->sample = carve(base, offset, g->samples_max * sizeof(*a->sample));
	a->cos = carve(base, offset, angles * sizeof(float));
	a->sin = carve(base, offset, angles * sizeof(float));
	a->q_scales = rope->q_scales ? carve(base, offset, rope->rows * sizeof(float)) : NULL;
}

static void lay_out_experts(struct gpu *g, u8 *base, size_t *offset)
{
	const struct model_config *m = g->config.model;
	struct gpu_arena *a = &g->arena;
	size_t tokens = g->moe_tokens, rows = tokens * m->experts_per_token;
	size_t width = (g->config.shard->expert_intermediate + 31) / 32 * 32;

	if (!m->experts)
		return;
	a->expert_gate_up = carve(base, offset, rows * 2 * width * sizeof(u16));
	a->expert_activated = carve(base, offset, rows * width * sizeof(u16));
	a->expert_down = carve(base, offset, rows * m->hidden * sizeof(u16));
	a->tokens_of = carve(base, offset, rows * sizeof(u32));
	a->assignments = carve(base, offset, rows * sizeof(u32));
	a->expert_start = carve(base, offset, (m->experts + 1) * sizeof(u32));
	a->router_logits = carve(base, offset, tokens * m->experts * sizeof(float));
	a->expert_weights = carve(base, offset, rows * sizeof(float));
	if (m->shared_intermediate) {
		width = (g->config.shard->shared_intermediate + 31) / 32 * 32;
		a->shared_gate_up = carve(base, offset, tokens * 2 * width * sizeof(u16));
		a->shared_activated = carve(base, offset, tokens * width * sizeof(u16));
		a->shared = carve(base, offset, tokens * m->hidden * sizeof(u16));
		a->shared_gate = carve(base, offset, tokens * sizeof(float));
	}
}

static void lay_out_latent(struct gpu *g, u8 *base, size_t *offset)
{
	const struct model_config *m = g->config.model;
	const struct model_shard *s = g->config.shard;
	struct gpu_arena *a = &g->arena;
	size_t tokens = g->config.limits.tokens_max, low = tokens * latent_low_width(m, s);

	a->low = carve(base, offset, low * sizeof(float));
	if (m->latent.q_rank > 0) {
		a->low_rounded = carve(base, offset, low * sizeof(u16));
		a->queries = carve(base, offset, tokens * s->heads * latent_query_width(m) * sizeof(float));
	}
	a->values = carve(base, offset, tokens * s->heads * m->latent.value * sizeof(u16));
}

static void lay_out_activations(struct gpu *g, u8 *base, size_t *offset)
{
	const struct model_config *m = g->config.model;
	const struct model_shard *s = g->config.shard;
	struct gpu_arena *a = &g->arena;
	size_t tokens = g->config.limits.tokens_max;
	size_t width = (most(s->intermediate, s->wide_intermediate) + 31) / 32 * 32, mlp_tokens = least(tokens, GPU_MLP_TOKENS);

	a->normed = carve(base, offset, tokens * m->hidden * sizeof(u16));
	/* Nobody writes those of padding tokens: they stay what attention, or what a layer has instead, wrote there before, or zero. */
	a->attended = carve(base, offset, tokens * gpu_attended_widest(g) * sizeof(u16));
	if (m->input_width) {
		float *inputs_memory = carve(base, offset, (tokens * m->layers + 1) * m->input_width * sizeof(float));
		a->inputs = inputs_memory ? inputs_memory + m->input_width : NULL;
	}
	size_t mlp = *offset, experts = *offset, inputs = *offset;
	a->qkv = carve(base, offset, tokens * gpu_qkv_widest(g) * sizeof(float));
	a->q = carve(base, offset, tokens * s->heads * most(m->head_dim, m->global_head_dim) * sizeof(u16));
	if (m->arch->latent)
		lay_out_latent(g, base, offset);
	a->gate_up = carve(base, &mlp, mlp_tokens * (m->arch->ungated ? 1 : 2) * width * sizeof(u16));
	a->activated = carve(base, &mlp, mlp_tokens * width * sizeof(u16));
	lay_out_experts(g, base, &experts);
	if (m->input_width) {
		a->inputs_projected = carve(base, &inputs, tokens * m->layers * m->input_width * sizeof(u16));
		a->input_gate = carve(base, &mlp, tokens * 2 * m->input_width * sizeof(u16));
		a->input_activated = carve(base, &mlp, tokens * m->input_width * sizeof(u16));
	}
	*offset = most(most(*offset, inputs), most(mlp, experts));
}

static void lay_out_logits(struct gpu *g, u8 *base, size_t *offset)
{
	const struct model_config *m = g->config.model;
	struct gpu_arena *a = &g->arena;
	size_t rows = g->samples_max;

	a->picked = carve(base, offset, rows * m->hidden * sizeof(float));
	a->picked_normed = carve(base, offset, rows * m->hidden * sizeof(u16));
	a->logits = carve(base, offset, rows * m->vocab_size * sizeof(float));
	a->raw = carve(base, offset, GPU_RAW_ROWS * (size_t)m->vocab_size * sizeof(float));
	a->token_counts = carve(base, offset, least(rows, GPU_COUNTED_ROWS) * m->vocab_size * sizeof(u32));
	a->sampled = carve(base, offset, rows * sizeof(u32));
	a->sampled_ring = carve(base, offset, GPU_RING * rows * sizeof(u32));
}

/* For what ops need beside: choices of experts, rows that are sampled by several blocks, and a quantized matrix of a layer
 * widened for many tokens. An lm_head that is quantized is read as it is, in tiles or slices: widened it would be the largest
 * thing of all. */
static size_t scratch_bytes(const struct gpu *g)
{
	size_t bytes = most((size_t)g->moe_tokens * g->config.model->experts_per_token * sizeof(u32),
			    kern_sample_scratch_bytes(g->samples_max, g->config.model->vocab_size));

	for (u32 i = 0; i < g->weights.layer_count; i++) {
		const struct layer_weights *w = &g->weights.layers[i];
		const struct kern_weight *matrices[] = {&w->qkv, &w->attn_out, &w->gate_up, &w->down, &w->q_b, &w->input_gate, &w->input_out};
		for (size_t j = 0; j < COUNT_OF(matrices); j++)
			if (matrices[j]->dtype != KERN_BF16)
				bytes = most(bytes, (size_t)matrices[j]->n * matrices[j]->k * sizeof(u16));
	}
	return g->weights.inputs_projection.dtype == KERN_BF16
		       ? bytes
		       : most(bytes, (size_t)g->weights.inputs_projection.n * g->weights.inputs_projection.k * sizeof(u16));
}

/* What collectives read and write: with several ranks in memory of its own, the same on each. */
static void lay_out_summed(struct gpu *g, u8 *base, size_t *offset)
{
	struct gpu_arena *a = &g->arena;
	u32 ranks = g->config.shard->ranks;
	size_t stream = (size_t)g->config.limits.tokens_max * g->config.model->hidden;
	size_t part = ranks > 1 ? (size_t)g->samples_max * g->share_max * sizeof(float) : 0;

	a->x = carve(base, offset, stream * sizeof(float));
	a->delta = carve(base, offset, stream * sizeof(u16));
	if (g->config.model->arch->latent || g->config.model->arch->traits & ARCH_QK_NORMS)
		a->squares = carve(base, offset, 2 * (size_t)g->config.limits.tokens_max * sizeof(float));
	a->logit_part = carve(base, offset, part);
	a->logit_parts = carve(base, offset, ranks * part);
}

static size_t lay_out(struct gpu *g, u8 *base)
{
	struct gpu_arena *a = &g->arena;
	size_t offset = 0;

	if (!g->config.comm)
		lay_out_summed(g, base, &offset);
	lay_out_batch(g, base, &offset);
	lay_out_inputs(g, base, &offset);
	lay_out_activations(g, base, &offset);
	lay_out_logits(g, base, &offset);
	for (u32 i = 0; i < g->attention_count; i++) {
		struct kern_attention_limits decode = gpu_attention_limits(g, &g->attentions[i], true),
					     any = gpu_attention_limits(g, &g->attentions[i], false);
		a->plans[i] = carve(base, &offset,
				    most(g->device_ops.attention_plan_bytes(&decode),
					 g->device_ops.attention_plan_bytes(&any)));
	}
	a->scratch_bytes = scratch_bytes(g);
	a->scratch = carve(base, &offset, a->scratch_bytes);
	a->workspace = carve(base, &offset, GPU_WORKSPACE_BYTES);
	return offset;
}

/* ---------------------------------------------------------------- pinned and host memory */

static size_t lay_out_pinned(struct gpu *g, u8 *base)
{
	size_t samples = g->samples_max, tokens = g->config.limits.tokens_max;
	size_t offset = 0;

	for (u32 i = 0; i < GPU_STAGES; i++)
		g->stages[i].memory = carve(base, &offset, g->stage_bytes);
	for (u32 i = 0; i < GPU_RING; i++) {
		struct gpu_slot *s = &g->slots[i];
		s->tokens = carve(base, &offset, samples * sizeof(u32));
		s->lp_rank = carve(base, &offset, samples * sizeof(u32));
		s->lp_ids = carve(base, &offset, samples * (LOGPROBS_MAX + 1) * sizeof(u32));
		s->lp_values = carve(base, &offset, samples * (LOGPROBS_MAX + 1) * sizeof(f32));
		s->plp_rank = carve(base, &offset, tokens * sizeof(u32));
		s->plp_ids = carve(base, &offset, tokens * (LOGPROBS_MAX + 1) * sizeof(u32));
		s->plp_values = carve(base, &offset, tokens * (LOGPROBS_MAX + 1) * sizeof(f32));
		s->embeddings = carve(base, &offset, (size_t)g->embeddings_max * g->config.model->hidden * sizeof(u16));
	}
	return offset;
}

static size_t lay_out_host(struct gpu *g, u8 *base)
{
	size_t samples = g->samples_max, tokens = g->config.limits.tokens_max,
	       rows = g->config.limits.rows_max;
	size_t offset = 0;

	for (u32 i = 0; i < GPU_RING; i++) {
		struct gpu_slot *s = &g->slots[i];
		s->lp_entry = carve(base, &offset, samples * sizeof(u32));
		s->lp_count = carve(base, &offset, samples * sizeof(u32));
		s->plp_seq = carve(base, &offset, tokens * sizeof(u64));
		s->plp_position = carve(base, &offset, tokens * sizeof(u32));
		s->plp_count = carve(base, &offset, tokens * sizeof(u32));
		s->embedded = carve(base, &offset, g->embeddings_max * sizeof(u32));
	}
	g->grown = carve(base, &offset, rows * sizeof(u32));
	g->anew = carve(base, &offset, rows * sizeof(u32));
	struct inputs *in = &g->rope_inputs;
	in->positions = carve(base, &offset, tokens * sizeof(u32));
	in->query_start = carve(base, &offset, (rows + 1) * sizeof(u32));
	in->prompt_count = carve(base, &offset, rows * sizeof(u32));
	in->added_count = carve(base, &offset, rows * sizeof(u32));
	g->kv = carve(base, &offset, g->config.model->layers * sizeof(*g->kv));
	return offset;
}

/* Room for the longest sequence that one step may add, and for what any other upload of one step takes. */
static size_t stage_bytes(const struct gpu *g)
{
	size_t tokens = g->config.limits.tokens_max, rows = g->config.limits.rows_max;
	size_t length = g->config.limits.max_model_len, blocks = length / g->config.limits.block_size + 1;
	size_t diff = (KERN_DIFF_WORDS + 4 * rows + KERN_ADD_WORDS + length + blocks) * sizeof(u32);
	size_t logits = rows * (sizeof(struct kern_logits_row) + sizeof(struct kern_logprobs_row));
	size_t prompts = tokens * (sizeof(struct kern_logprobs_row) + sizeof(u32));
	size_t rope = tokens * sizeof(u32);

	if (g->config.rope->far && g->config.model->rope.kind == ROPE_DYNAMIC)
		rope += tokens * g->config.model->rope.dim * sizeof(float);
	size_t bytes = most(most(diff, logits), most(prompts, rope)) + 2 * ALIGN;
	return (most(bytes, GPU_STAGE_BYTES) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static enum err take_host(struct gpu *g, struct err_msg *em)
{
	g->host_bytes = lay_out_host(g, NULL);
	void *host = mmap(NULL, g->host_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (host == MAP_FAILED)
		return err_set(em, ERR_NO_MEMORY,
			       "cannot reserve %zu bytes for results; lower --max-num-seqs", g->host_bytes);
	g->host = host;
	(void)lay_out_host(g, g->host);
	g->pinned_bytes = lay_out_pinned(g, NULL);
	void *pinned;
	enum err e = g->api->host_alloc(&pinned, g->pinned_bytes, em);
	if (e) {
		err_prefix(em, "memory between host and device; lower --max-num-seqs or --max-model-len");
		return e;
	}
	g->pinned = pinned;
	memset(pinned, 0, g->pinned_bytes);
	(void)lay_out_pinned(g, g->pinned);
	return ERR_OK;
}

/* ---------------------------------------------------------------- init */

static void decide_sizes(struct gpu *g)
{
	const struct model_config *m = g->config.model;
	u32 tokens = g->config.limits.tokens_max, rows = g->config.limits.rows_max;
	size_t width = 3 * (size_t)g->config.shard->expert_intermediate + m->hidden;

	g->samples_max = rows < tokens ? rows : tokens; /* a row runs a token at least */
	g->embeddings_max = !m->no_embeddings[0] && (size_t)rows * m->hidden <= IPC_EMBEDDING_VALUES_MAX ? rows : 0;
	g->share_max = m->vocab_size / g->config.shard->ranks + 1;
	gpu_list_attentions(g);
	if (m->experts) {
		size_t at_once = ((size_t)256 << 20) / (width * sizeof(u16) * m->experts_per_token);
		g->moe_tokens = (u32)least(most(at_once, tokens / m->experts_per_token + 1), tokens);
	}
	g->stage_bytes = stage_bytes(g);
}

static enum err upload_rope(struct gpu *g, struct err_msg *em)
{
	const struct rope_tables *t = g->config.rope;
	size_t angles = angle_count(g) * sizeof(float);
	const struct {
		float *to;
		const float *from;
		size_t bytes;
	} tables[] = {{g->arena.cos, t->cos, angles},
		      {g->arena.sin, t->sin, angles},
		      {g->arena.q_scales, t->q_scales, t->q_scales ? t->rows * sizeof(float) : 0}};

	for (u32 i = 0; i < COUNT_OF(tables); i++)
		for (size_t at = 0, n; at < tables[i].bytes; at += n) {
			struct gpu_stage *s;
			n = least(tables[i].bytes - at, g->stage_bytes);
			enum err e = gpu_stage_take(g, &s, em);
			if (e)
				return e;
			memcpy(s->memory, (const u8 *)tables[i].from + at, n);
			e = gpu_stage_copy(g, s, (u8 *)tables[i].to + at, 0, n, em);
			if (!e)
				e = gpu_stage_sent(g, s, em);
			if (e)
				return e;
		}
	return ERR_OK;
}

static enum err upload_rows(struct gpu *g, struct err_msg *em)
{
	u32 count = g->config.limits.tokens_max, most_rows = (u32)(g->stage_bytes / sizeof(u32));
	enum err e = ERR_OK;

	for (u32 first = 0, n; !e && first < count; first += n) {
		struct gpu_stage *s;
		n = count - first < most_rows ? count - first : most_rows;
		e = gpu_stage_take(g, &s, em);
		if (e)
			return e;
		for (u32 i = 0; i < n; i++)
			((u32 *)(void *)s->memory)[i] = first + i;
		e = gpu_stage_copy(g, s, g->arena.rows_themselves + first, 0, n * sizeof(u32), em);
		if (!e)
			e = gpu_stage_sent(g, s, em);
	}
	return e;
}

/* Zeroed: what padding reads is a number. */
static enum err take_arena(struct gpu *g, struct err_msg *em)
{
	struct kern_device_info info = {0};
	struct kern_comm *comm = g->config.comm;
	size_t bytes = lay_out(g, NULL), summed = 0;
	void *memory;

	if (comm)
		lay_out_summed(g, NULL, &summed);
	g->arena.memory_bytes = bytes + summed;
	enum err e = g->api->memory(&info, em);
	if (!e && bytes + summed > info.memory_free)
		e = err_set(em, ERR_NO_SPACE,
			    "not enough memory on the device: activations and logits of a step need %llu "
			    "MiB, %llu MiB "
			    "are free; lower --max-num-batched-tokens or --max-num-seqs",
			    mib_up(bytes + summed), (unsigned long long)(info.memory_free / MIB));
	if (!e)
		e = g->api->alloc(&memory, bytes, em);
	if (e)
		return e;
	g->arena.memory = memory;
	(void)lay_out(g, g->arena.memory);
	e = g->api->zero(g->ctx.stream, memory, bytes, em);
	if (e || !comm)
		return e;
	e = g->api->comm_alloc(comm, &memory, summed, em);
	if (e)
		return e;
	g->arena.summed = memory;
	size_t offset = 0;
	lay_out_summed(g, g->arena.summed, &offset);
	return g->api->zero(g->ctx.stream, memory, summed, em);
}

enum err gpu_memory_init(struct gpu *g, struct err_msg *em)
{
	decide_sizes(g);
	enum err e = take_arena(g, em);
	if (e)
		return e;
	g->ctx.scratch = g->arena.scratch;
	g->ctx.scratch_bytes = g->arena.scratch_bytes;
	e = take_host(g, em);
	for (u32 i = 0; !e && i < GPU_STAGES; i++)
		e = g->api->event_create(&g->stages[i].copied, true, em);
	for (u32 i = 0; !e && i < GPU_RING; i++)
		e = g->api->event_create(&g->slots[i].done, true, em);
	if (!e)
		e = g->api->event_create(&g->computed, false, em);
	if (!e)
		e = upload_rope(g, em);
	return e || !g->arena.rows_themselves ? e : upload_rows(g, em);
}

void gpu_memory_fini(struct gpu *g)
{
	for (u32 i = 0; i < GPU_STAGES; i++)
		g->api->event_destroy(g->stages[i].copied);
	for (u32 i = 0; i < GPU_RING; i++)
		g->api->event_destroy(g->slots[i].done);
	g->api->event_destroy(g->computed);
	if (g->arena.summed)
		g->api->comm_release(g->config.comm, g->arena.summed);
	g->api->release(g->arena.memory);
	g->api->host_release(g->pinned);
	if (g->host)
		munmap(g->host, g->host_bytes);
}
