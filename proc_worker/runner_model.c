/* What a runner finds out before it makes anything: its model's config.json and checkpoint, and the context, the types and the device that
 * it computes with. Runs in the worker at start; whatever can be refused is refused here, before it costs time. */
#include "proc_worker/runner_device.h"

#include <stdlib.h>

#include "common/log.h"
#include "proc_worker/model/tensor_names.h"

/* ---------------------------------------------------------------- decisions */

static enum err decide_length(struct runner *r, struct err_msg *em)
{
	u32 wanted = r->config.limits.max_model_len;

	if (r->model.context_max < CONTEXT_MIN)
		return err_set(em, ERR_INVALID,
			       "config.json: a context of %u (%s) leaves no room for a prompt and an answer; it must be at least %d", r->model.context_max,
			       r->model.context_bound ? r->model.context_bound : arch_field_in_file(r->model.arch, "max_position_embeddings"), CONTEXT_MIN);
	if (wanted > r->model.context_max && r->model.context_bound)
		return err_set(em, ERR_INVALID,
			       "--max-model-len %u is more than \"%s\" %u (config.json), behind which a %s computes in another way, which is not supported",
			       wanted, r->model.context_bound, r->model.context_max, r->model.arch->name);
	if (wanted > r->model.context_max)
		return err_set(em, ERR_INVALID,
			       "--max-model-len %u is more than the model's %u tokens (config.json)", wanted, r->model.context_max);
	if (wanted && wanted < CONTEXT_MIN)
		return err_set(em, ERR_INVALID,
			       "--max-model-len %u leaves no room for a prompt and an answer: it must be 0 "
			       "(the model's) or "
			       "from %d to %u",
			       wanted, CONTEXT_MIN, r->model.context_max);
	r->max_model_len = wanted ? wanted : r->model.context_max;
	if (r->model.context_bound && r->config.rank == 0)
		LOG_WARN("CONTEXT_BOUNDED", "max_model_len=%u %s=%u reason=\"behind so many tokens a %s computes in another way, which is not supported\"",
			 r->max_model_len, r->model.context_bound, r->model.context_max, r->model.arch->name);
	if (r->max_model_len <= r->model.index.top)
		model_drop_index(&r->model);
	return ERR_OK;
}

/* Blocks of a GGUF file, which float32 would expand. */
static bool has_blocks(const struct safetensors *st)
{
	for (u32 i = 0; i < safetensors_count(st); i++)
		if (safetensors_at(st, i)->block_type && !safetensors_at(st, i)->usable)
			return true;
	return false;
}

/* "auto" is what the checkpoint is stored in; float16 has no arithmetic here and becomes bfloat16, as everything does
 * on a device. */
static void decide_dtype(struct runner *r)
{
	const struct st_tensor *first = safetensors_find(r->checkpoint, r->model.arch->tensors[0].name);
	enum kern_dtype stored = r->model.has_dtype ? r->model.dtype : first ? first->dtype : KERN_BF16;

	if (r->config.dtype == OPTION_DTYPE_AUTO)
		r->dtype = stored == KERN_F32 && !r->device && !has_blocks(r->checkpoint) ? KERN_F32 : KERN_BF16;
	else
		r->dtype = r->config.dtype == OPTION_DTYPE_FLOAT32 || r->config.dtype == OPTION_DTYPE_FLOAT ? KERN_F32 : KERN_BF16;
	r->matrix_dtype = r->config.quantization == OPTION_QUANTIZATION_INT8   ? KERN_I8
			  : r->config.quantization == OPTION_QUANTIZATION_INT4 ? (r->device ? KERN_I4_64 : kern_dtype_int4(r->config.caps))
									       : r->dtype;
}

static enum kern_dtype decide_kv_dtype(const struct runner *r)
{
	switch (r->config.kv_dtype) {
	case OPTION_KV_DTYPE_BFLOAT16:
		return KERN_BF16;
	case OPTION_KV_DTYPE_FLOAT32:
		return KERN_F32;
	case OPTION_KV_DTYPE_INT8:
		return KERN_I8;
	case OPTION_KV_DTYPE_FP8:
	case OPTION_KV_DTYPE_FP8_E4M3:
		return KERN_F8E4M3;
	case OPTION_KV_DTYPE_INT16:
		return KERN_I16;
	case OPTION_KV_DTYPE_AUTO:
		break;
	}
	return r->dtype == KERN_BF16 && !r->device ? kern_dtype_kv(r->config.caps, r->model.head_dim) : r->dtype;
}

/* Scales take a few hundredths of a cache: what was measured for one of bfloat16, to the byte, gets one. */
static void decide_kv_scales(struct runner *r)
{
	const u64 blocks = (r->max_model_len + r->kv_shape.block_size - 1) / r->kv_shape.block_size;

	if (r->config.kv_dtype == OPTION_KV_DTYPE_AUTO && r->kv_shape.dtype == KERN_I16 && r->config.kv_cache_memory > 0 &&
	    blocks * kv_block_bytes(&r->kv_shape) > r->config.kv_cache_memory)
		r->kv_shape.dtype = KERN_BF16;
}

/* Of models whose layers' heads differ, or some of which have no keys and values, or have keys of an indexer, which are behind the others. */
static enum err describe_kv(struct runner *r, struct err_msg *em)
{
	const struct model_config *m = &r->model;
	const u32 count = m->index.top ? 2 * m->layers : m->layers;

	free(r->kv_layers);
	r->kv_layers = NULL;
	if (!m->arch->global_heads && !m->arch->altup && !m->arch->by_layer && !m->recurrent.kind && !m->index.top)
		return ERR_OK;
	r->kv_layers = calloc(count, sizeof(*r->kv_layers));
	if (!r->kv_layers)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u32 i = 0; i < m->layers; i++)
		r->kv_layers[i] = model_attends(m, i) ? (struct kv_layer){.kv_heads = model_shard_kv_heads(&r->shard, m, i),
									 .head_dim = model_head_dim(m, i),
									 .of = model_kv_layer(m, i)}
						      : (struct kv_layer){.of = i};
	for (u32 i = m->layers; i < count; i++)
		r->kv_layers[i] = (struct kv_layer){.kv_heads = model_chooses(m, i - m->layers), .head_dim = m->index.width, .keys_alone = true, .of = i};
	return ERR_OK;
}

static void decide_types(struct runner *r)
{
	decide_dtype(r);
	r->kv_shape = (struct kv_shape){.layers = r->model.index.top ? 2 * r->model.layers : r->model.layers,
					.kv_heads = r->shard.kv_heads,
					.head_dim = r->model.head_dim,
					.block_size = r->config.limits.block_size,
					.dtype = decide_kv_dtype(r),
					.by_layer = r->kv_layers};
	decide_kv_scales(r);
	r->plan = (struct weights_plan){.config = &r->model,
					.shard = &r->shard,
					.checkpoint = r->checkpoint,
					.dtype = r->dtype,
					.matrix_dtype = r->matrix_dtype,
					.caps = r->config.caps,
					.model_dir = r->config.model_dir};
	if (r->config.weights_cache && *r->config.weights_cache)
		r->plan.cache_dir = r->config.weights_cache;
}

static void log_ignored(const struct runner *r)
{
	if (r->config.rank == 0 && r->model.recurrent.kind && r->config.swap_space > 0)
		LOG_WARN("SWAP_SPACE_UNUSED", "reason=\"%s keeps a state of each sequence: who is preempted is computed again\"", r->model.arch->name);
}

static void log_dtype(const struct runner *r)
{
	if (r->config.rank == 0 && (r->config.dtype == OPTION_DTYPE_FLOAT16 || r->config.dtype == OPTION_DTYPE_HALF))
		LOG_WARN("DTYPE_BFLOAT16", "asked=float16 computed=bfloat16 reason=\"there is no arithmetic in float16 here; --dtype float32 "
					   "keeps all bits of a checkpoint in float16\"");
}

/* Devices have no indexer: their contexts are those of which all tokens are chosen. */
static enum err bound_index(struct runner *r, struct err_msg *em)
{
	const u32 top = r->model.index.top, wanted = r->config.limits.max_model_len;

	if (wanted > top)
		return err_set(em, ERR_INVALID,
			       "--max-model-len %u is more than \"index_topk\" %u (config.json), behind which a %s attends to tokens that it chooses, which is "
			       "computed on CPUs alone: lower it, or use --device cpu",
			       wanted, top, r->model.arch->name);
	model_drop_index(&r->model);
	r->model.context_max = top;
	r->model.context_bound = "index_topk";
	enum err e = decide_length(r, em);
	if (!e)
		e = describe_kv(r, em);
	if (!e)
		decide_types(r);
	return e;
}

/* A device computes in types of its own, so it is chosen first; and whether it can compute this model depends on them. */
static enum err decide_device(struct runner *r, struct err_msg *em)
{
	enum err e = runner_device_open(r, em);

	if (e)
		return e;
	if (r->device && r->config.speculative.tokens)
		return err_set(em, ERR_UNSUPPORTED,
			       "--speculative-config: tokens are proposed ahead on the CPU alone, and this worker computes on a "
			       "device; leave it away, or use --device cpu");
	if (r->model.recurrent.kind && r->config.speculative.tokens)
		return err_set(em, ERR_UNSUPPORTED,
			       "--speculative-config: %s keeps a state of each sequence, which cannot go back where a token that was proposed does not "
			       "come true; leave it away",
			       r->model.arch->name);
	decide_types(r);
	if (r->device)
		e = runner_device_check(r, em);
	if (!e && r->device && r->model.index.top)
		e = bound_index(r, em);
	if (!e && !r->device)
		decide_types(r);
	if (!e)
		log_dtype(r);
	if (!e)
		log_ignored(r);
	return e;
}

/* ---------------------------------------------------------------- the model */

enum err runner_read_model(struct runner *r, struct err_msg *em)
{
	enum err e = model_config_read(&r->model, r->config.model_dir, em);

	if (!e)
		e = model_shard_init(&r->shard, &r->model, r->config.rank, r->config.ranks, em);
	if (!e)
		e = decide_length(r, em);
	if (!e)
		e = describe_kv(r, em);
	if (!e)
		e = safetensors_open(&r->checkpoint, r->config.model_dir, em);
	if (!e)
		e = tensor_names_add(r->checkpoint, &r->model, em);
	if (!e)
		tensor_names_find_unsaid(r->checkpoint, &r->model);
	return e ? e : decide_device(r, em);
}
