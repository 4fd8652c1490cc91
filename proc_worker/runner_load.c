/* Makes and unmakes a runner: model (runner_model.c), threads, collectives, weights, activations, profile, KV
 * cache, in this order, so that whatever can be refused is refused before it costs time. Runs in the worker
 * at start. */
#include "proc_worker/runner_device.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/region.h"
#include "common/step_digest.h"
#include "proc_worker/host_memory.h"
#include "proc_worker/model/indexer.h"
#include "proc_worker/model/latent.h"
#include "proc_worker/model/lru.h"
#include "proc_worker/model/mistral_params.h"
#include "proc_worker/model/recurrent.h"
#include "proc_worker/model/tensor_names.h"

enum {
	JOIN_TIMEOUT_MS = 60 * 1000,
	LOAD_TIMEOUT_MS =
		60 * 60 * 1000, /* a rank that dies while it loads is noticed at once all the same */
	STEP_TIMEOUT_MS = 20 * 1000,
	STEP_TIMEOUT_LEAST_MS = 4 * 1000, /* whatever hiccup a host has is over by then */
	SCRATCH_ALIGN = 64,
	DEVICE_EXCHANGE_BYTES = 4096, /* ranks with devices tell each other numbers only */
};

struct runner_config runner_config_from(const struct options *o, u32 rank)
{
	return (struct runner_config){
		.model_dir = o->model,
		.weights_cache = o->weights_cache,
		.run_dir = o->run_dir,
		.rank = rank,
		.ranks = (u32)o->tensor_parallel_size,
		.threads = (u32)o->threads,
		.caps = kern_caps_detect(),
		.device = (enum option_device)o->device,
		.enforce_eager = o->enforce_eager,
		.step_timeout_ms = (u32)o->progress_timeout * 1000 / 2,
		.dtype = (enum option_dtype)o->dtype,
		.quantization = (enum option_quantization)o->quantization,
		.kv_dtype = (enum option_kv_dtype)o->kv_cache_dtype,
		.limits = {.rows_max = (u32)o->max_num_seqs,
			   .tokens_max = (u32)o->max_num_batched_tokens,
			   .max_model_len = (u32)o->max_model_len,
			   .block_size = (u32)o->block_size},
		.kv_cache_memory = o->kv_cache_memory,
		.memory_utilization = o->gpu_memory_utilization,
		.swap_space = o->swap_space,
		.saves_states = o->enable_prefix_caching,
	};
}

static void report(const struct runner *r, double share, const char *what)
{
	if (r->config.progress)
		r->config.progress(r->config.progress_ctx, share, what);
}

static void weights_progress(void *ctx, double share)
{
	report(ctx, 0.05 + 0.85 * share, "loading weights");
}

/* ---------------------------------------------------------------- parts */

static enum err start_threads(struct runner *r, struct err_msg *em)
{
	enum err e = kern_threads_create(&r->ctx.threads, r->config.threads, em);

	if (e || r->config.threads || runner_ranks_here(r) == 1)
		return e;
	/* Automatic: all cores were counted; this rank takes its share. */
	u32 share = kern_threads_count(r->ctx.threads) / runner_ranks_here(r);
	kern_threads_destroy(&r->ctx.threads);
	return kern_threads_create(&r->ctx.threads, share ? share : 1, em);
}

static void on_waiting(void *ctx, const char *what)
{
	report(ctx, 0.02, what);
}

/* Of whatever has to be the same on all nodes, which each reads for itself. */
static u64 options_hash(const struct runner *r)
{
	const u64 values[] = {ipc_schema_hash(),	r->dtype,
			      r->matrix_dtype,		r->device != NULL,
			      r->max_model_len,		r->config.limits.rows_max,
			      r->config.limits.tokens_max, r->config.limits.block_size,
			      r->config.kv_dtype,
			      r->model.layers,		r->model.hidden,
			      r->model.vocab_size,	r->model.head_dim,
			      r->model.context_max,	r->model.eos_count,
			      kv_block_bytes(&r->kv_shape),
			      r->config.speculative.tokens, r->config.speculative.lookup_max,
			      r->config.speculative.lookup_min, r->config.speculative.batch_max};
	u64 hash = 0;

	for (size_t i = 0; i < COUNT_OF(values); i++)
		hash = step_digest_mix(hash ^ values[i]);
	return hash;
}

static enum err join(struct runner *r, struct err_msg *em)
{
	struct collectives_nodes nodes;
	struct collectives_config c = {.run_dir = r->config.run_dir,
				       .rank = r->config.rank,
				       .ranks = r->config.ranks,
				       .join_timeout_ms = JOIN_TIMEOUT_MS,
				       .threads = r->ctx.threads};

	if (r->config.ranks == 1)
		return ERR_OK;
	if (r->config.nodes) {
		nodes = *r->config.nodes;
		nodes.options_hash = options_hash(r);
		nodes.waiting = on_waiting;
		nodes.waiting_ctx = r;
		c.nodes = &nodes;
	}
	c.buffer_bytes = r->device ? DEVICE_EXCHANGE_BYTES
				   : decoder_exchange_bytes(&r->model, r->config.ranks, r->config.limits.tokens_max);
	enum err e = collectives_join(&r->collectives, &c, em);
	if (!e)
		collectives_set_timeout(r->collectives, LOAD_TIMEOUT_MS, LOAD_TIMEOUT_MS);
	return e;
}

/* All ranks of the host look at its memory before any of them takes some. */
static enum err memory_share(struct runner *r, u64 *bytes, struct err_msg *em)
{
	const void *parts[COLLECTIVES_RANKS_MAX];
	enum err e = host_memory_available("", bytes, em);

	*bytes /= runner_ranks_here(r);
	if (!e && r->collectives)
		e = collectives_all_gather(r->collectives, 0, parts, em);
	return e;
}

static enum err load_weights(struct runner *r, struct err_msg *em)
{
	enum err e = model_weights_load(&r->weights, &r->plan, em);

	if (e)
		return e;
	safetensors_trim(r->checkpoint);
	if (r->config.loras)
		e = lora_set_load(&r->loras, r->config.loras, &r->plan, em);
	if (e)
		return e;
	r->weight_bytes = r->weights.bytes + r->loras.bytes;
	return rope_tables_init(&r->rope, &r->model.rope, model_local_rope(&r->model), r->max_model_len,
				r->config.limits.tokens_max, em);
}

static u32 most(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* The most inputs of any product but those of the hidden size and those behind attention. */
static u32 widest_inputs(const struct runner *r)
{
	const struct model_config *m = &r->model;
	const struct model_shard *s = &r->shard;
	const u32 mlp = most(most(s->intermediate, s->wide_intermediate), most(s->expert_intermediate, s->shared_intermediate));
	const u32 state = most(recurrent_layout(m, s).out_width, most(m->recurrent.step_rank, m->recurrent.key_dim));
	const u32 latent = m->arch->latent ? most((m->latent.gated ? 2 : 1) * m->latent.q_rank, latent_head_width(m)) : 0;
	const u32 low = most(most(latent, m->experts_narrow), most(most(m->input_width, m->altup.laurel_rank), m->hyper.streams * m->hidden));

	return most(mlp, most(state, low));
}

/* A step of so many tokens takes hardly longer than one of a single token: reading the weights bounds it. Measured:
 * docs/SCHEDULER.md. */
enum { DRAFT_SHARE = 16 };

/* Without the pools, of which not all know yet. */
static struct batch_limits batch_limits(const struct runner *r)
{
	u32 batch_max = r->config.speculative.batch_max;

	return (struct batch_limits){.rows_max = r->config.limits.rows_max,
				     .tokens_max = r->config.limits.tokens_max,
				     .max_model_len = r->max_model_len,
				     .block_size = r->config.limits.block_size,
				     .vocab_size = r->model.vocab_size,
				     .lora_count = r->config.loras ? r->config.loras->count : 0,
				     .draft_max = r->config.speculative.tokens,
				     .draft_rows = batch_max ? batch_max : DRAFT_SHARE,
				     .draft_share = batch_max ? 0 : DRAFT_SHARE,
				     .draft_end = r->rope.far && r->model.rope.kind != ROPE_DYNAMIC ? r->rope.near : 0,
				     .recurrent = r->model.recurrent.kind != RECURRENT_NONE,
				     .state_slots = r->state_slots};
}

static u32 samples_max(const struct runner *r)
{
	struct batch_limits l = batch_limits(r);

	return batch_samples_max(&l);
}

/* Of heads as most layers have them, and as those without a window have them where they differ. */
static size_t scratch_bytes(const struct runner *r, struct kern_limits limits)
{
	size_t local = kern_scratch_bytes(&limits);

	limits.kv_heads = r->shard.global_kv_heads;
	limits.head_dim = r->model.global_head_dim;
	size_t global = limits.kv_heads ? kern_scratch_bytes(&limits) : 0, bytes = local > global ? local : global;
	return (bytes + SCRATCH_ALIGN - 1) & ~(size_t)(SCRATCH_ALIGN - 1);
}

/* Inputs of the product behind attention, or behind what a layer has instead, of families with products of heads; 0: those of heads. */
static u32 attended_width(const struct model_config *m, const struct model_shard *s)
{
	const u32 gates = lru_width(m, s), heads = s->heads * m->head_dim;

	if (m->arch->latent)
		return latent_attended_width(m, s);
	return gates > heads || gates == 0 ? gates : heads;
}

static enum err make_decoder(struct runner *r, struct err_msg *em)
{
	u32 rows = r->config.limits.rows_max, tokens = r->config.limits.tokens_max, samples = samples_max(r);
	struct decoder_config c = {.model = &r->model,
				   .shard = &r->shard,
				   .weights = &r->weights,
				   .rope = &r->rope,
				   .ops = &r->ops,
				   .ctx = &r->ctx,
				   .collectives = r->collectives,
				   .loras = &r->loras,
				   .states = &r->states,
				   .context_max = r->max_model_len,
				   .tokens_max = tokens,
				   .logit_rows_max =
					   samples < tokens ? samples : tokens}; /* each is behind a token that runs */
	struct kern_limits limits = {.tokens = tokens,
				     .rows = r->model.index.top && rows < INDEXER_QUERIES ? INDEXER_QUERIES : rows,
				     .heads = r->shard.heads,
				     .kv_heads = r->shard.kv_heads,
				     .head_dim = r->model.head_dim,
				     .hidden = r->model.hidden,
				     .intermediate = widest_inputs(r),
				     .experts = r->model.experts + r->model.zero_experts,
				     .attended = attended_width(&r->model, &r->shard),
				     .lora_rank = r->loras.rank_sum_max,
				     .vocab = r->model.vocab_size,
				     .context = r->max_model_len,
				     .threads = kern_threads_count(r->ctx.threads),
				     .caps = r->config.caps};

	r->ctx.scratch_bytes = scratch_bytes(r, limits);
	r->ctx.scratch = aligned_alloc(SCRATCH_ALIGN, r->ctx.scratch_bytes);
	if (!r->ctx.scratch)
		return region_refuse(em, "cannot allocate %zu bytes of scratch; lower --max-num-batched-tokens, --max-num-seqs or --threads",
				     r->ctx.scratch_bytes);
	return decoder_init(&r->decoder, &c, em);
}

static size_t lay_out_columns(struct runner *r, char *base)
{
	struct runner_columns *c = &r->columns;
	size_t rows = r->config.limits.rows_max, samples = samples_max(r), ids = samples * (LOGPROBS_MAX + 1);
	size_t tokens = r->config.limits.tokens_max, prompt_ids = tokens * (LOGPROBS_MAX + 1);
	size_t embeddings = rows * r->model.hidden;
	size_t offset = 0;

	r->sampled = region_carve(base, &offset, samples * sizeof(u32));
	r->kept = region_carve(base, &offset, samples * sizeof(u32));
	r->finished = region_carve(base, &offset, rows * sizeof(u64));
	c->seq = region_carve(base, &offset, samples * sizeof(u64));
	c->position = region_carve(base, &offset, samples * sizeof(u32));
	c->beam_entry = region_carve(base, &offset, samples * sizeof(u32));
	c->lp.entry = region_carve(base, &offset, samples * sizeof(u32));
	c->lp.count = region_carve(base, &offset, samples * sizeof(u32));
	c->lp.rank = region_carve(base, &offset, samples * sizeof(u32));
	c->lp.ids = region_carve(base, &offset, ids * sizeof(u32));
	c->lp.values = region_carve(base, &offset, ids * sizeof(f32));
	c->plp_seq = region_carve(base, &offset, tokens * sizeof(u64));
	c->plp_position = region_carve(base, &offset, tokens * sizeof(u32));
	c->plp_count = region_carve(base, &offset, tokens * sizeof(u32));
	c->plp_rank = region_carve(base, &offset, tokens * sizeof(u32));
	c->plp_ids = region_carve(base, &offset, (prompt_ids + embeddings) * sizeof(u32));
	c->plp_values = region_carve(base, &offset, (prompt_ids + embeddings) * sizeof(f32));
	c->portion_token = region_carve(base, &offset, samples * sizeof(u32)); /* logit_rows_max is not above samples */
	c->portion_rows = region_carve(base, &offset, samples * sizeof(*c->portion_rows));
	return offset;
}

static enum err make_columns(struct runner *r, struct err_msg *em)
{
	struct runner_columns *c = &r->columns;

	c->memory_bytes = lay_out_columns(r, NULL);
	void *memory = region_reserve(c->memory_bytes);
	if (!memory)
		return region_refuse(em, "cannot reserve %zu bytes for results; lower --max-num-batched-tokens or --max-num-seqs",
				     c->memory_bytes);
	c->memory = memory;
	lay_out_columns(r, memory);
	return ERR_OK;
}

static enum err make_sampler(struct runner *r, struct err_msg *em)
{
	struct sampler_config c = {.rows_max = r->config.limits.rows_max,
				   .vocab = r->model.vocab_size,
				   .max_model_len = r->max_model_len,
				   .samples_max = samples_max(r),
				   .eos_ids = r->model.eos_ids,
				   .eos_count = r->model.eos_count};

	return r->config.rank == 0 ? sampler_create(&r->sampler, &c, em) : ERR_OK;
}

/* The CPU's rank 0 draws for all; of devices each does. */
static enum err make_constraints(struct runner *r, struct err_msg *em)
{
	struct constraints_config c = {.model_dir = r->config.model_dir,
				       .rows_max = r->config.limits.rows_max,
				       .samples_max = samples_max(r),
				       .vocab = r->model.vocab_size,
				       .eos_ids = r->model.eos_ids,
				       .eos_count = r->model.eos_count};

	return r->config.constrains && (r->device || r->config.rank == 0) ? constraints_create(&r->constraints, &c, em) : ERR_OK;
}

/* The dummy step, the number of blocks that are left room for, and the blocks. */
static enum err make_kv(struct runner *r, struct err_msg *em)
{
	const void *parts[COLLECTIVES_RANKS_MAX];
	u32 blocks = 0, host_blocks = 0;

	enum err e = profile_run(r, &r->profile, em);
	if (!e && r->collectives)
		e = collectives_all_gather(r->collectives, 0, parts, em);
	struct kv_budget budget = {.available = r->profile.available,
				   .utilization = r->config.memory_utilization,
				   .requested = r->config.kv_cache_memory,
				   .workers = runner_ranks_here(r),
				   .block_bytes = kv_block_bytes(&r->kv_shape),
				   .block_size = r->config.limits.block_size,
				   .max_model_len = r->max_model_len,
				   .rows_max = r->config.limits.rows_max};
	/* It is the same memory here, so nobody gets a swap space unasked; and what came back without its row's state would be of no use. */
	if (!e && r->config.swap_space > 0 && !r->states.data)
		e = kv_budget_swap(&budget, r->config.swap_space, &host_blocks, em);
	if (!e)
		e = kv_budget_blocks(&budget, &blocks, em);
	/* And one pool: the ids of the host's blocks follow the others, and copies know no difference. */
	if (!e)
		e = kv_memory_init(&r->kv, &r->kv_shape, blocks + host_blocks, em);
	r->block_count = blocks;
	r->host_block_count = host_blocks;
	r->kv_block_bytes = budget.block_bytes;
	r->state_slots = r->profile.state_slots;
	return e;
}

static enum err make_lookup(struct runner *r, struct err_msg *em)
{
	struct draft_lookup_config c = {.rows_max = r->config.limits.rows_max,
					.max_model_len = r->max_model_len,
					.tokens_min = r->config.speculative.lookup_min,
					.tokens_max = r->config.speculative.lookup_max};

	return r->config.speculative.tokens ? draft_lookup_create(&r->lookup, &c, em) : ERR_OK;
}

static enum err make_batch(struct runner *r, struct err_msg *em)
{
	struct batch_limits limits = batch_limits(r);

	limits.block_count = r->block_count;
	limits.host_block_count = r->host_block_count;
	enum err e = batch_state_create(&r->batch, &limits, em);
	return e ? e : make_lookup(r, em);
}

static enum err make_inputs(struct runner *r, struct err_msg *em)
{
	struct batch_limits limits = batch_limits(r);

	return inputs_init(&r->inputs, &limits, em);
}

static void log_loaded(const struct runner *r)
{
	char variants[800], types[256];

	model_weights_types(&r->weights, types, sizeof(types));
	kern_ops_print(&r->ops, variants, sizeof(variants));
	LOG_INFO("MODEL_LOADED",
		 "arch=%s dtype=%s matrices=\"%s\" kv_dtype=%s rank=%u/%u threads=%u weights=%lluMiB activations=%zuMiB "
		 "max_model_len=%u "
		 "kv_blocks=%u host_blocks=%u kv=%lluMiB states=%zuMiB resident=%lluMiB profiled=%u_tokens profile_ms=%llu ops=\"%s\"",
		 r->model.arch->name, kern_dtype_name(r->dtype), types, kv_dtype_name(r->kv_shape.dtype),
		 r->config.rank, r->config.ranks, kern_threads_count(r->ctx.threads),
		 (unsigned long long)(r->weight_bytes >> 20), r->decoder.memory_bytes >> 20,
		 r->max_model_len, r->block_count, r->host_block_count,
		 (unsigned long long)(r->kv.memory_bytes >> 20), r->states.memory_bytes >> 20,
		 (unsigned long long)(r->profile.resident >> 20), r->profile.tokens,
		 (unsigned long long)(r->profile.step_ns / 1000000), variants);
}

/* What computes, when it is the CPU. */
static enum err make_cpu(struct runner *r, struct err_msg *em)
{
	kern_ops_init(&r->ops, r->config.caps);
	enum err e = load_weights(r, em);
	if (!e)
		e = runner_make_states(r, em);
	if (!e)
		e = make_decoder(r, em);
	if (!e)
		e = make_inputs(r, em);
	if (!e)
		e = make_sampler(r, em);
	if (!e) {
		report(r, 0.9, "profiling memory");
		e = make_kv(r, em);
	}
	return e;
}

static void log_unread(const struct runner *r)
{
	const struct st_tensor *t;
	char name[256];
	u32 from = 0;

	while (r->config.rank == 0 && (t = model_weights_unread(&r->plan, &from))) {
		snprintf(name, sizeof(name), "%s", t->name);
		tensor_names_in_file(name, sizeof(name), r->checkpoint, &r->model);
		LOG_WARN("TENSOR_NOT_READ", "file=\"%s\" tensor=%s reason=\"by %s the model has none\"", t->file, name,
			 r->model.from_params ? "params.json" : "config.json");
	}
}

static enum err make_all(struct runner *r, struct err_msg *em)
{
	report(r, 0, "reading config.json");
	enum err e = runner_read_model(r, em);
	r->plan.progress = weights_progress;
	r->plan.progress_ctx = r;
	if (!e)
		e = make_constraints(r, em); /* loads beside all that follows */
	if (!e)
		e = start_threads(r, em);
	r->plan.threads = r->ctx.threads;
	if (!e)
		e = model_weights_check(&r->plan, em);
	if (!e)
		log_unread(r);
	if (!e)
		e = join(r, em);
	if (!e)
		e = memory_share(r, &r->plan.memory_available, em);
	if (!e)
		e = make_columns(r, em);
	if (!e)
		e = r->device ? runner_device_create(r, em) : make_cpu(r, em);
	if (!e)
		e = make_batch(r, em);
	if (!e && r->collectives)
		collectives_set_timeout(r->collectives, STEP_TIMEOUT_LEAST_MS, STEP_TIMEOUT_MS);
	if (e)
		return e;
	if (r->device)
		runner_device_log(r);
	else
		log_loaded(r);
	return ERR_OK;
}

enum err runner_create(struct runner **out, const struct runner_config *config, struct err_msg *em)
{
	*out = NULL;
	ASSERT(config->rank < config->ranks);
	struct runner *r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	r->config = *config;
	enum err e = make_all(r, em);
	if (e && em && r->checkpoint)
		tensor_names_in_file(em->text, sizeof(em->text), r->checkpoint, &r->model);
	if (e && em && r->model.from_params)
		mistral_params_in_file(em->text, sizeof(em->text));
	if (e)
		runner_destroy(&r);
	else
		*out = r;
	return e;
}

void runner_destroy(struct runner **out)
{
	struct runner *r = *out;

	if (!r)
		return;
	runner_device_destroy(r);
	constraints_destroy(&r->constraints);
	batch_state_destroy(&r->batch);
	kv_memory_fini(&r->kv);
	state_memory_fini(&r->states);
	free(r->kv_layers);
	sampler_destroy(&r->sampler);
	draft_lookup_destroy(&r->lookup);
	if (r->columns.memory)
		region_release(r->columns.memory, r->columns.memory_bytes);
	inputs_fini(&r->inputs);
	decoder_fini(&r->decoder);
	free(r->ctx.scratch);
	rope_tables_fini(&r->rope);
	lora_set_fini(&r->loras);
	model_weights_fini(&r->weights);
	collectives_leave(&r->collectives);
	kern_threads_destroy(&r->ctx.threads);
	safetensors_close(&r->checkpoint);
	free(r);
	*out = NULL;
}
