/* What the device's kernels can compute, asked before a model is loaded. Runs in the worker at start; looks
 * at numbers only. The limits are those of docs/CUDA_KERNELS.md. */
#include "proc_worker/gpu/gpu_priv.h"

#include <stdio.h>

#include "proc_worker/model/latent.h"
#include "proc_worker/model/recurrent.h"

enum {
	COLUMNS = 32, /* a product's inputs come in multiples of it */
	HIDDEN_MAX = 16384,
	ROWS_MAX = 8192,
	VOCAB_MAX = 1 << 22,
	EXPERTS_MAX = 512,
	EXPERTS_PER_TOKEN_MAX = 32,
	BLOCK_LEAST = 4,
	LATENT_HEADS_MAX = 256,
	INPUT_WIDTH_MAX = 256,
};

/* Compute capabilities whose blocks may have the shared memory that heads of GPU_LARGE_HEADS and more values take, 165 KiB and more. Of larger ones
 * the cache is bfloat16. */
enum { ROOM_FROM = 90, ROOM_UNTIL = 110 };

static const u32 HEAD_DIMS[] = {16, 32, 48, 64, 80, 96, 128, 256, 320, 512, 576};

static enum err check_types(const struct gpu_config *c, struct err_msg *em)
{
	enum kern_dtype matrix = c->weights->matrix_dtype;

	if (c->weights->dtype != KERN_BF16)
		return err_set(
			em, ERR_UNSUPPORTED,
			"devices compute in bfloat16, not in %s: use --dtype bfloat16, or --device cpu",
			kern_dtype_name(c->weights->dtype));
	if (kern_dtype_group(matrix) > 0 && kern_weight_device_bytes(COLUMNS, COLUMNS, matrix) == 0)
		return err_set(em, ERR_UNSUPPORTED, "devices have no kernels for weights of %s",
			       kern_dtype_name(matrix));
	if (c->kv_dtype != KERN_BF16 && c->kv_dtype != KERN_I8 && c->kv_dtype != KERN_F8E4M3)
		return err_set(em, ERR_UNSUPPORTED,
			       "KV caches on devices are bfloat16, int8 or fp8, not %s (--kv-cache-dtype)",
			       kern_dtype_name(c->kv_dtype));
	return ERR_OK;
}

/* Layers that attend do so with as many KV heads each, and none has a matrix in place of a block. */
static enum err check_layers(const struct gpu_config *c, struct err_msg *em)
{
	const struct model_config *m = c->model;

	for (u32 i = 0; m->arch->by_layer && i < m->layers; i++) {
		if (m->layer_flags[i] & (LAYER_LINEAR_MIXER | LAYER_LINEAR_MLP))
			return err_set(em, ERR_UNSUPPORTED, "layer %u of this %s has a matrix in place of a block (replace_with_linear), which devices do not compute: use --device cpu", i,
				       m->arch->name);
		if (model_attends(m, i) && model_kv_heads(m, i) != m->kv_heads)
			return err_set(em, ERR_UNSUPPORTED, "layer %u of this %s has %u KV heads, others have %u; devices compute layers of one number: use --device cpu", i,
				       m->arch->name, model_kv_heads(m, i), m->kv_heads);
	}
	return ERR_OK;
}

static enum err check_family(const struct gpu_config *c, struct err_msg *em)
{
	const struct model_config *m = c->model;
	const struct arch *a = m->arch;
	const struct {
		bool is_so;
		const char *before, *behind; /* the family's name */
	} refused[] = {
		{a->global_heads && m->experts, "the experts of this ", " stand beside an MLP and have a weight each of their own (enable_moe_block); devices have no kernel for that: use "
		 "--device cpu"},
		{a->altup, "devices do not compute a ", ", whose residual stream is several (altup_num_inputs) and whose gates are sparse (activation_sparsity_pattern): use "
		 "--device cpu"},
		{a->hyper, "devices do not compute a ", ", whose residual stream is several (hc_mult): use --device cpu"},
		{a->gated_norms, "devices do not compute a ", ", whose norms have gates (gated_norm_rank): use --device cpu"},
		{a->sub_norms, "devices do not compute a ", ", whose last products read norms (attn_sub_norm, ffn_sub_norm): use --device cpu"},
		{m->alibi.kind, "devices do not compute this ", ", whose scores fall with the distance of keys (ALiBi): use --device cpu"},
		{a->sinusoids, "devices do not compute a ", ", no file of which has its positions: use --device cpu"},
		{a->head_norm_biases && m->head_norms, "the heads of this ", " have norms with biases (qk_layernorm); devices have no kernel for that: use --device cpu"},
		{a->chunked, "devices do not compute a ", ", whose layers attend to chunks (attention_chunk_size) and whose experts' weights multiply what they read: use "
		 "--device cpu"},
		{a->head_layer_norms && m->head_norms, "the heads of this ", " have norms with weights of their own (use_qk_norm, qk_layernorm); devices have no kernel for that: use --device cpu"},
		{m->parallel && m->experts, "devices do not compute a ", ", whose experts stand beside attention: use --device cpu"},
		{a->gate_softplus, "the heads of this ", " have gates of another kind (gating), and their number may differ between layers; devices have no kernel for that: "
		 "use --device cpu"},
		{m->limited, "the gates of this ", " have bounds; devices have no kernel for that: use --device cpu"},
		{a->latent && m->output_gate, "the heads of this ", " attend to latents and have gates; devices have no kernel for that: use --device cpu"},
		{m->gate_by_head, "the heads of this ", " have a gate each, and their number may differ between layers; devices have no kernel for that: use --device cpu"},
		{m->experts_narrow > 0, "devices do not compute the experts of this ", ", which read another width than the stream has (moe_latent_size): use --device cpu"},
		{a->shortcut, "devices do not compute a ", ", whose experts skip every other layer (zero_expert_num): use --device cpu"},
		{a->state_beside, "devices do not compute the layers of a ", ", which attend and keep a state side by side: use --device cpu"},
		{m->recurrent.kind == RECURRENT_SELECTIVE, "devices have no kernel for the layers of a ", " that are of Mamba's first generation: use --device cpu"},
		{a->attention_free, "devices do not compute a ", ", no layer of which is of attention: use --device cpu"},
		{a->shared_blocks, "devices do not compute a ", ", whose layers share blocks of attention (num_mem_blocks): use --device cpu"},
		{a->differential, "devices do not compute a ", ", half of whose heads take away from the others: use --device cpu"},
		{a->head_experts, "devices do not compute a ", ", whose heads are a mixture of experts: use --device cpu"},
		{a->normed_residual, "devices do not compute a ", ", whose blocks add to what they read: use --device cpu"},
		{m->recurrent.kind == RECURRENT_LRU, "devices have no kernel for the layers of a ", " that keep a state: use --device cpu"},
		{m->recurrent.kind == RECURRENT_KDA, "devices do not compute a ", ", every value of whose keys fades by itself: use --device cpu"},
	};

	for (size_t i = 0; i < COUNT_OF(refused); i++)
		if (refused[i].is_so)
			return err_set(em, ERR_UNSUPPORTED, "%s%s%s", refused[i].before, a->name, refused[i].behind);
	return ERR_OK;
}

/* Of one size of heads that the model has. */
static enum err check_head_dim(const struct gpu_config *c, u32 head_dim, struct err_msg *em)
{
	const char *what = c->model->arch->latent ? "the model's heads share keys (kv_lora_rank and qk_rope_head_dim) of" : "the model's heads have";
	u32 capability = c->device->info.capability;
	char known[96] = "";
	size_t used = 0;

	if (head_dim >= GPU_LARGE_HEADS && (capability < ROOM_FROM || capability >= ROOM_UNTIL))
		return err_set(em, ERR_UNSUPPORTED,
			       "%s %u values; the device's attention has room for them on compute capability 9.0 and 10.x, and this is %u.%u: use "
			       "--device cpu",
			       what, head_dim, capability / 10, capability % 10);
	if (head_dim > GPU_LARGE_HEADS && c->kv_dtype != KERN_BF16)
		return err_set(em, ERR_UNSUPPORTED, "%s %u values; more than %d are on devices in bfloat16, not in %s: use --kv-cache-dtype bfloat16", what,
			       head_dim, GPU_LARGE_HEADS, kern_dtype_name(c->kv_dtype));
	for (size_t i = 0; i < COUNT_OF(HEAD_DIMS); i++) {
		if (HEAD_DIMS[i] == head_dim)
			return ERR_OK;
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%u", used ? ", " : "",
					 HEAD_DIMS[i]);
	}
	return err_set(em, ERR_UNSUPPORTED, "%s %u values; the device's attention is made for %s: use --device cpu", what, head_dim, known);
}

static enum err check_blocks(const struct gpu_config *c, struct err_msg *em)
{
	u32 size = c->limits.block_size;

	if (size >= BLOCK_LEAST && (size & (size - 1)) == 0)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "--block-size %u: on devices it is a power of two from %d on, 16 for instance", size,
		       BLOCK_LEAST);
}

/* Numbers that are bounded, or multiples of another one. */
static enum err check_numbers(const struct gpu_config *c, struct err_msg *em)
{
	const struct model_config *m = c->model;
	const struct {
		const char *what;
		u32 value, multiple, max;
	} numbers[] = {
		{"hidden_size", m->hidden, COLUMNS, HIDDEN_MAX},
		{"the width of all heads of a worker", c->shard->heads * m->head_dim, COLUMNS, UINT32_MAX},
		{"the width of a worker's layers that keep a state", recurrent_layout(m, c->shard).out_width, COLUMNS, UINT32_MAX},
		{"the width of all heads of a worker in layers without a window", c->shard->heads * m->global_head_dim, COLUMNS, UINT32_MAX},
		{"the rotated part of a head", m->rope.dim, 4, m->arch->global_heads ? m->global_head_dim : m->head_dim},
		{"hidden_size_per_layer_input", m->input_width, COLUMNS, INPUT_WIDTH_MAX},
		{"hidden_size_per_layer_input of all layers together", m->layers * m->input_width, 8, HIDDEN_MAX},
		{"qk_nope_head_dim", m->latent.key, COLUMNS, UINT32_MAX},
		{"qk_rope_head_dim", m->latent.rope, 8, UINT32_MAX},
		{"q_lora_rank", m->latent.q_rank, COLUMNS, UINT32_MAX},
		{"kv_lora_rank", m->latent.rank, COLUMNS, UINT32_MAX},
		{"the width of the values of all heads of a worker", c->shard->heads * m->latent.value, COLUMNS, UINT32_MAX},
		{"of a worker what latent attention begins with", m->arch->latent ? latent_low_width(m, c->shard) : 0, 8, HIDDEN_MAX},
		{"the number of heads of a worker that share keys", m->arch->latent ? c->shard->heads : 0, 1, LATENT_HEADS_MAX},
		{"vocab_size", m->vocab_size, 1, VOCAB_MAX - 1},
		{"the number of experts", m->experts, 1, EXPERTS_MAX},
		{"the number of experts of a token", m->experts_per_token, 1, EXPERTS_PER_TOKEN_MAX},
		{"--max-num-seqs", c->limits.rows_max, 1, ROWS_MAX},
	};

	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		if (numbers[i].value % numbers[i].multiple != 0)
			return err_set(
				em, ERR_UNSUPPORTED,
				"%s is %u; the device's kernels want a multiple of %u: use --device cpu",
				numbers[i].what, numbers[i].value, numbers[i].multiple);
		if (numbers[i].value > numbers[i].max)
			return err_set(em, ERR_UNSUPPORTED, "%s is %u; the device's kernels take %u at most%s",
				       numbers[i].what, numbers[i].value, numbers[i].max, numbers[i].what[0] == '-' ? "" : ": use --device cpu");
	}
	return ERR_OK;
}

enum err gpu_check(const struct gpu_config *c, struct err_msg *em)
{
	enum err e = check_family(c, em);

	if (!e)
		e = check_layers(c, em);
	if (!e)
		e = check_types(c, em);
	if (!e)
		e = check_head_dim(c, c->model->head_dim, em);
	if (!e && c->model->arch->global_heads)
		e = check_head_dim(c, c->model->global_head_dim, em);
	if (!e)
		e = check_blocks(c, em);
	return e ? e : check_numbers(c, em);
}
