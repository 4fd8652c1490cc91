/* Loads weights: owns their memory, one mapping, of a file where the weights cache has one. Runs in the worker at
 * start. Reads only what this rank needs. */
#include "proc_worker/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/region.h"
#include "proc_worker/model/alibi.h"
#include "proc_worker/model/finite.h"
#include "proc_worker/model/weights_cache.h"
#include "proc_worker/model/weights_priv.h"

/* ---------------------------------------------------------------- sizes */

/* Rows are looked up one by one, so the table can stay in the file, unless rounding it is what was asked for. That of a checkpoint in
 * float16 has nothing to gain by bfloat16. */
static bool embed_stays(const struct weights_plan *p)
{
	const struct st_tensor *t = weights_embed_tensor(p);

	return t->usable && !p->config->arch->embed_norm && (t->dtype == p->dtype || t->dtype == KERN_F16 || p->dtype == KERN_F32) &&
	       (uintptr_t)t->data % kern_dtype_bytes(t->dtype) == 0;
}

/* The same of what layers add of tokens, which is the larger part of some models. */
static const struct st_tensor *inputs_tensor(const struct weights_plan *p)
{
	const struct arch *a = p->config->arch;
	u32 i = 0;

	while (a->tensors[i].slot != SLOT_INPUTS_EMBED)
		i++;
	return safetensors_find(p->checkpoint, a->tensors[i].name);
}

static bool table_stays(const struct weights_plan *p, enum weight_slot slot)
{
	if (slot != SLOT_INPUTS_EMBED)
		return false;
	const struct st_tensor *t = inputs_tensor(p);
	return t->usable && (uintptr_t)t->data % kern_dtype_bytes(t->dtype) == 0;
}

/* Of one weight of the slot. */
static size_t slot_bytes(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	u32 rows, columns;
	bool ordered;

	weights_slot_shape(p, slot, layer, &rows, &columns);
	if (rows == 0)
		return 0;
	if (slot == SLOT_EMBED)
		return embed_stays(p) ? 0 : weights_round_up((size_t)rows * columns * kern_dtype_bytes(p->dtype));
	if (WEIGHTS_SLOTS[slot].kind == SLOT_IS_TABLE)
		return table_stays(p, slot) ? 0 : weights_round_up((size_t)rows * columns * kern_dtype_bytes(p->dtype));
	if (weights_is_vector(slot))
		return weights_round_up((size_t)rows * columns * sizeof(float));
	enum kern_dtype type = weights_matrix_dtype(p, slot, layer, &ordered);
	return weights_round_up(kern_weight_bytes(rows, columns, type, p->caps)) +
	       (ordered ? weights_round_up(columns * sizeof(u32)) : 0);
}

u64 model_weights_bytes(const struct weights_plan *p)
{
	u64 total = 0;

	for (u32 slot = 0; slot < SLOT_COUNT; slot++)
		for (u32 layer = 0; layer < weights_layers(p, slot); layer++)
			total += (u64)slot_bytes(p, slot, layer) * weights_copies(p, slot);
	return total;
}

/* ---------------------------------------------------------------- load */

struct loader {
	struct weights_reader reader;
	char *memory;
	size_t used;
	bool ready; /* `memory` holds the weights already, and cannot be written to */
	struct kern_weight *experts; /* the next that are free */
};

static void *take(struct loader *l, size_t bytes)
{
	void *p = l->memory + l->used;

	l->used += bytes;
	return p;
}

/* The order of inputs, if there is one, lies behind the weight's own memory. */
static enum err load_matrix(struct loader *l, enum weight_slot slot, u32 layer, u32 expert,
			    struct kern_weight *w, struct err_msg *em)
{
	const struct weights_plan *p = l->reader.plan;
	u32 rows, columns;
	bool ordered;

	weights_slot_shape(p, slot, layer, &rows, &columns);
	enum kern_dtype type = weights_matrix_dtype(p, slot, layer, &ordered);
	char *memory = take(l, slot_bytes(p, slot, layer));
	char *behind = memory + weights_round_up(kern_weight_bytes(rows, columns, type, p->caps));
	u32 *order = ordered ? (u32 *)(void *)behind : NULL;
	if (l->ready) {
		kern_weight_attach(w, rows, columns, type, memory, p->caps);
		w->order = order;
		return ERR_OK;
	}
	enum err e = kern_weight_begin(w, rows, columns, type, memory, p->caps, em);
	if (!e && WEIGHTS_SLOTS[slot].kind == SLOT_IS_HEADS)
		return weights_read_head(&l->reader, slot, layer, expert, w, em);
	return e ? e : weights_read_matrix(&l->reader, slot, layer, expert, w, order, em);
}

/* Or heads. */
static enum err load_experts(struct loader *l, enum weight_slot slot, u32 layer, struct kern_weight **out,
			     struct err_msg *em)
{
	u32 count = weights_copies(l->reader.plan, slot);
	enum err e = ERR_OK;

	*out = l->experts;
	l->experts += count;
	for (u32 x = 0; !e && x < count; x++)
		e = load_matrix(l, slot, layer, x, &(*out)[x], em);
	return e;
}

static enum err load_vector(struct loader *l, enum weight_slot slot, u32 layer, const float **out,
			    struct err_msg *em)
{
	float *memory = take(l, slot_bytes(l->reader.plan, slot, layer));

	*out = memory;
	return l->ready ? ERR_OK : weights_read_vector(&l->reader, slot, layer, memory, em);
}

/* A quantized one is never looked up row by row. */
static enum err load_embed_expanded(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	void *memory = take(l, slot_bytes(l->reader.plan, SLOT_EMBED, 0));

	w->embed = memory;
	w->embed_dtype = l->reader.plan->dtype;
	return l->ready ? ERR_OK : weights_read_embed(&l->reader, memory, em);
}

static enum err load_embed(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->reader.plan;
	const struct st_tensor *st = weights_embed_tensor(p);

	if (!st->usable)
		return load_embed_expanded(l, w, em);
	u32 first = p->shard->vocab_first, rows = p->shard->vocab_rows;
	const void *src = weights_aligned_rows(&l->reader, st, first, rows);
	/* A tied one is looked at when it is packed for lm_head. */
	bool looks = !l->ready && !p->config->tied_embeddings;

	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	enum err e = looks ? finite_check_rows(st, first, rows, embed_stays(p) ? st->dtype : p->dtype, p->threads, em) : ERR_OK;
	if (e)
		return e;
	w->embed_dtype = p->dtype;
	if (embed_stays(p)) {
		w->embed = src;
		w->embed_dtype = st->dtype;
		return ERR_OK;
	}
	void *memory = take(l, slot_bytes(p, SLOT_EMBED, 0));
	if (!l->ready && p->config->arch->embed_norm)
		e = weights_read_table(&l->reader, SLOT_EMBED, memory, em);
	else if (!l->ready)
		kern_convert(memory, p->dtype, src, st->dtype, (size_t)rows * p->config->hidden);
	w->embed = memory;
	return e;
}

static enum err fill_sinusoids(const struct weights_plan *p, void *memory, struct err_msg *em)
{
	const size_t count = (size_t)p->config->context_max * p->config->hidden;
	float *made = malloc(count * sizeof(float));

	if (!made)
		return err_set(em, ERR_NO_MEMORY, "out of memory for positions");
	sinusoids_fill(made, p->config->context_max, p->config->hidden, p->config->sinusoid_padding);
	kern_convert(memory, p->dtype, made, KERN_F32, count);
	free(made);
	return ERR_OK;
}

static enum err load_positions(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->reader.plan;
	void *memory = take(l, slot_bytes(p, SLOT_POSITIONS, 0));

	w->positions = memory;
	w->positions_dtype = p->dtype;
	if (!l->ready && p->config->arch->sinusoids)
		return fill_sinusoids(p, memory, em);
	return l->ready ? ERR_OK : weights_read_table(&l->reader, SLOT_POSITIONS, memory, em);
}

static enum err load_inputs(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->reader.plan;
	const struct st_tensor *t = inputs_tensor(p);

	if (table_stays(p, SLOT_INPUTS_EMBED)) {
		w->inputs_embed = t->data;
		w->inputs_embed_dtype = t->dtype;
		return l->ready ? ERR_OK : finite_check(t, t->dtype, p->threads, em);
	}
	void *memory = take(l, slot_bytes(p, SLOT_INPUTS_EMBED, 0));
	w->inputs_embed = memory;
	w->inputs_embed_dtype = p->dtype;
	return l->ready ? ERR_OK : weights_read_table(&l->reader, SLOT_INPUTS_EMBED, memory, em);
}

/* Into `base`, which is the model's weights or a layer's. */
static enum err load_slot(struct loader *l, enum weight_slot slot, u32 layer, void *base, struct err_msg *em)
{
	void *member = (char *)base + WEIGHTS_SLOTS[slot].offset;
	u32 rows, columns;

	weights_slot_shape(l->reader.plan, slot, layer, &rows, &columns);
	if (rows == 0)
		return ERR_OK;
	switch (WEIGHTS_SLOTS[slot].kind) {
	case SLOT_IS_EMBED:
		return load_embed(l, base, em);
	case SLOT_IS_TABLE:
		return slot == SLOT_POSITIONS ? load_positions(l, base, em) : load_inputs(l, base, em);
	case SLOT_IS_MATRIX:
		return load_matrix(l, slot, layer, 0, member, em);
	case SLOT_IS_EXPERTS:
	case SLOT_IS_HEADS:
		return load_experts(l, slot, layer, member, em);
	case SLOT_IS_NORM:
	case SLOT_IS_BIAS:
		return load_vector(l, slot, layer, member, em);
	}
	return ERR_OK;
}

/* What the first layer with a block has loaded of it the others have, too. */
static void share_blocks(const struct model_config *c, struct layer_weights *layers)
{
	for (u32 i = 0; i < c->blocks.uses; i++) {
		struct layer_weights *w = &layers[c->blocks.layers[i]];
		const struct layer_weights *first = &layers[c->blocks.first[c->blocks.layers[i]]];
		w->attn_norm = first->attn_norm;
		w->qkv = first->qkv;
		w->attn_out = first->attn_out;
		w->mlp_norm = first->mlp_norm;
		w->gate_up = first->gate_up;
		w->gate_up_bias = first->gate_up_bias;
		w->down = first->down;
		w->down_bias = first->down_bias;
	}
}

static enum err load_all(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->reader.plan;
	enum err e = ERR_OK;

	for (u32 slot = SLOT_EMBED; !e && slot <= SLOT_FINAL_NORM_BIAS; slot++)
		e = load_slot(l, slot, 0, w, em);
	for (u32 slot = SLOT_INPUTS_EMBED; !e && slot < SLOT_LAYER_FIRST; slot++)
		e = load_slot(l, slot, 0, w, em);
	for (u32 i = 0; !e && i < w->layer_count; i++) {
		for (u32 slot = SLOT_LAYER_FIRST; !e && slot < SLOT_COUNT; slot++)
			e = load_slot(l, slot, i, &w->layers[i], em);
		if (p->progress && !l->ready)
			p->progress(p->progress_ctx, (i + 1.0) / (w->layer_count + 1));
	}
	share_blocks(p->config, w->layers);
	if (!e)
		e = load_slot(l, SLOT_LM_HEAD, 0, w, em);
	if (!e)
		e = load_slot(l, SLOT_LM_HEAD_BIAS, 0, w, em);
	ASSERT(e || l->used == w->memory_bytes);
	return e;
}

static enum err check_memory(const struct weights_plan *p, u64 bytes, struct err_msg *em)
{
	const u64 mib = 1 << 20;
	bool ordered;
	enum kern_dtype type = weights_matrix_dtype(p, SLOT_QKV, 0, &ordered);

	if (bytes <= p->memory_available)
		return ERR_OK;
	return err_set(em, ERR_NO_SPACE,
		       "not enough memory: the weights need %llu MiB in %s%s, %llu MiB are available; %s",
		       (unsigned long long)((bytes + mib - 1) / mib), kern_dtype_name(type),
		       p->shard->ranks > 1 ? " on each worker" : "",
		       (unsigned long long)(p->memory_available / mib),
		       type == KERN_F32	   ? "--dtype bfloat16 needs half of it"
		       : type == KERN_BF16 ? "--quantization int8 needs about half of it"
		       : type == KERN_I8   ? "--quantization int4 needs about half of it"
					   : "use a smaller model");
}

enum err model_weights_load(struct model_weights *w, const struct weights_plan *p, struct err_msg *em)
{
	struct loader l = {.reader.plan = p};
	struct weights_cache_key key;

	*w = (struct model_weights){0};
	enum err e = model_weights_check(p, em);
	if (e)
		return e;
	w->memory_bytes = model_weights_bytes(p);
	e = check_memory(p, w->memory_bytes, em);
	if (e)
		return e;
	w->layer_count = p->config->layers;
	w->expert_count = 2 * (p->config->experts * (p->config->arch->head_experts ? 2 : 1) + (p->config->arch->latent || p->config->recurrent.kind == RECURRENT_LRU ? p->shard->heads : 0)) * w->layer_count;
	w->layers = calloc(w->layer_count, sizeof(*w->layers));
	w->experts = calloc(w->expert_count + 1, sizeof(*w->experts));
	void *memory = w->layers && w->experts ? weights_cache_find(&key, p, w->memory_bytes) : MAP_FAILED;
	l.ready = w->mapped = memory && memory != MAP_FAILED;
	if (!memory)
		memory = mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		e = region_refuse(em, "cannot allocate %llu bytes for the weights; use a smaller model or --quantization int8",
				  (unsigned long long)w->memory_bytes);
		goto failed;
	}
	w->memory = l.memory = memory;
	l.experts = w->experts;
	if (!l.ready)
		madvise(memory, w->memory_bytes, MADV_HUGEPAGE); /* fewer TLB misses; failing costs nothing else */
	e = load_all(&l, w, em);
	if (!e && !l.ready)
		weights_cache_keep(&key, memory, p);
	w->bytes = w->memory_bytes + (embed_stays(p) ? (u64)p->shard->vocab_rows * p->config->hidden *
							       kern_dtype_bytes(w->embed_dtype)
						     : 0);
	if (p->config->input_width > 0 && table_stays(p, SLOT_INPUTS_EMBED))
		w->bytes += inputs_tensor(p)->bytes;
	weights_reader_fini(&l.reader);
failed:
	if (e)
		model_weights_fini(w);
	return e;
}

void model_weights_fini(struct model_weights *w)
{
	for (u32 i = 0; w->layers && i < w->layer_count; i++) {
		kern_weight_fini(&w->layers[i].qkv);
		kern_weight_fini(&w->layers[i].q_b);
		kern_weight_fini(&w->layers[i].decay_b);
		kern_weight_fini(&w->layers[i].gate_b);
		kern_weight_fini(&w->layers[i].attn_out);
		kern_weight_fini(&w->layers[i].gate_up);
		kern_weight_fini(&w->layers[i].down);
		kern_weight_fini(&w->layers[i].router);
		kern_weight_fini(&w->layers[i].heads_router);
		kern_weight_fini(&w->layers[i].shared_gate);
		kern_weight_fini(&w->layers[i].experts_in);
		kern_weight_fini(&w->layers[i].experts_out);
		kern_weight_fini(&w->layers[i].input_gate);
		kern_weight_fini(&w->layers[i].input_out);
		kern_weight_fini(&w->layers[i].altup_router);
		kern_weight_fini(&w->layers[i].attn_hyper.fn);
		kern_weight_fini(&w->layers[i].mlp_hyper.fn);
		kern_weight_fini(&w->layers[i].laurel_left);
		kern_weight_fini(&w->layers[i].laurel_right);
	}
	for (u32 i = 0; w->experts && i < w->expert_count; i++)
		kern_weight_fini(&w->experts[i]);
	kern_weight_fini(&w->lm_head);
	kern_weight_fini(&w->inputs_projection);
	kern_weight_fini(&w->hyper.fn);
	kern_weight_fini(&w->altup_in);
	for (u32 i = 0; i < COUNT_OF(w->altup_out); i++)
		kern_weight_fini(&w->altup_out[i]);
	free(w->experts);
	free(w->layers);
	if (w->mapped)
		weights_cache_unmap(w->memory, w->memory_bytes);
	else if (w->memory)
		munmap(w->memory, w->memory_bytes);
	*w = (struct model_weights){0};
}

/* Adds the type of a matrix that there is, unless it has been met. */
static void add_type(const struct kern_weight *w, u32 *met, char *text, size_t bytes)
{
	const size_t at = strlen(text);

	if (!w->data || *met & 1u << w->dtype)
		return;
	*met |= 1u << w->dtype;
	snprintf(text + at, bytes - at, "%s%s", at > 0 ? ", " : "", kern_dtype_name(w->dtype));
}

void model_weights_types(const struct model_weights *w, char *text, size_t bytes)
{
	u32 met = 0;

	text[0] = 0;
	for (u32 i = 0; i < w->layer_count; i++) {
		const struct kern_weight *of_layer[] = {&w->layers[i].qkv, &w->layers[i].q_b, &w->layers[i].decay_b, &w->layers[i].gate_b, &w->layers[i].attn_out,
							&w->layers[i].gate_up, &w->layers[i].down};
		for (u32 m = 0; m < COUNT_OF(of_layer); m++)
			add_type(of_layer[m], &met, text, bytes);
	}
	for (u32 i = 0; i < w->expert_count; i++)
		add_type(&w->experts[i], &met, text, bytes);
}
