/* Loads weights: owns their memory, one mapping, of a file where the weights cache has one. Runs in the worker at
 * start. Reads only what this rank needs, never trusts a shape. */
#include "proc_worker/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "proc_worker/model/quant_tensor.h"
#include "proc_worker/model/weights_cache.h"

enum { NAME_MAX_BYTES = 256, ALIGN = 64 };

/* ---------------------------------------------------------------- shapes and shares */

static u32 dim_size(const struct model_config *c, enum arch_dim d)
{
	switch (d) {
	case DIM_NONE:
		return 1;
	case DIM_VOCAB:
		return c->vocab_size;
	case DIM_HIDDEN:
		return c->hidden;
	case DIM_HEAD:
		return c->head_dim;
	case DIM_HEADS:
		return c->heads * c->head_dim;
	case DIM_KV_HEADS:
		return c->kv_heads * c->head_dim;
	case DIM_HEADS_KV:
		return (c->heads + c->kv_heads) * c->head_dim;
	case DIM_QKV:
		return (c->heads + 2 * c->kv_heads) * c->head_dim;
	case DIM_INTERMEDIATE:
		return c->intermediate;
	case DIM_GATE_UP:
		return 2 * c->intermediate;
	case DIM_EXPERTS:
		return c->experts;
	case DIM_EXPERT_INTERMEDIATE:
		return c->expert_intermediate;
	}
	ASSERT(!"a dimension of the table");
	return 0;
}

struct range {
	u32 first, count;
};

/* This rank's part of a dimension that is divided. */
static struct range dim_share(const struct weights_plan *p, enum arch_dim d)
{
	const struct model_config *c = p->config;
	const struct model_shard *s = p->shard;

	switch (d) {
	case DIM_VOCAB:
		return (struct range){s->vocab_first, s->vocab_rows};
	case DIM_HEADS:
		return (struct range){s->rank * s->heads * c->head_dim, s->heads * c->head_dim};
	case DIM_KV_HEADS:
		return (struct range){s->kv_first * c->head_dim, s->kv_heads * c->head_dim};
	case DIM_INTERMEDIATE:
		return (struct range){s->rank * s->intermediate, s->intermediate};
	case DIM_EXPERT_INTERMEDIATE:
		return (struct range){s->rank * s->expert_intermediate, s->expert_intermediate};
	default:
		return (struct range){0, dim_size(c, d)};
	}
}

/* Rows of the tensor in the file. */
static struct range rows_share(const struct weights_plan *p, const struct arch_tensor *t)
{
	u32 before = t->before == DIM_NONE ? 0 : dim_size(p->config, t->before);
	struct range r = {0, dim_size(p->config, t->rows)};

	if (t->split == SPLIT_ROWS)
		r = dim_share(p, t->rows);
	r.first += before;
	return r;
}

static u32 rows_of_file(const struct weights_plan *p, const struct arch_tensor *t)
{
	return dim_size(p->config, t->whole == DIM_NONE ? t->rows : t->whole);
}

static struct range columns_share(const struct weights_plan *p, const struct arch_tensor *t)
{
	return t->split == SPLIT_COLUMNS ? dim_share(p, t->columns)
					 : (struct range){0, dim_size(p->config, t->columns)};
}

/* What a slot is, and where its weight goes. */
enum slot_kind { SLOT_IS_EMBED, SLOT_IS_NORM, SLOT_IS_BIAS, SLOT_IS_MATRIX, SLOT_IS_EXPERTS };

static const struct {
	enum slot_kind kind;
	size_t offset; /* in struct model_weights, or, of the slots of layers, in struct layer_weights */
} SLOTS[SLOT_COUNT] = {
#define IN_MODEL(slot, kind, member) [slot] = {kind, offsetof(struct model_weights, member)}
#define IN_LAYER(slot, kind, member) [slot] = {kind, offsetof(struct layer_weights, member)}
	IN_MODEL(SLOT_EMBED, SLOT_IS_EMBED, embed),
	IN_MODEL(SLOT_FINAL_NORM, SLOT_IS_NORM, final_norm),
	IN_MODEL(SLOT_LM_HEAD, SLOT_IS_MATRIX, lm_head),
	IN_LAYER(SLOT_ATTN_NORM, SLOT_IS_NORM, attn_norm),
	IN_LAYER(SLOT_QKV, SLOT_IS_MATRIX, qkv),
	IN_LAYER(SLOT_QKV_BIAS, SLOT_IS_BIAS, qkv_bias),
	IN_LAYER(SLOT_Q_NORM, SLOT_IS_NORM, q_norm),
	IN_LAYER(SLOT_K_NORM, SLOT_IS_NORM, k_norm),
	IN_LAYER(SLOT_ATTN_OUT, SLOT_IS_MATRIX, attn_out),
	IN_LAYER(SLOT_ATTN_OUT_BIAS, SLOT_IS_BIAS, attn_out_bias),
	IN_LAYER(SLOT_ATTN_POST_NORM, SLOT_IS_NORM, attn_post_norm),
	IN_LAYER(SLOT_MLP_NORM, SLOT_IS_NORM, mlp_norm),
	IN_LAYER(SLOT_GATE_UP, SLOT_IS_MATRIX, gate_up),
	IN_LAYER(SLOT_GATE_UP_BIAS, SLOT_IS_BIAS, gate_up_bias),
	IN_LAYER(SLOT_DOWN, SLOT_IS_MATRIX, down),
	IN_LAYER(SLOT_DOWN_BIAS, SLOT_IS_BIAS, down_bias),
	IN_LAYER(SLOT_MLP_POST_NORM, SLOT_IS_NORM, mlp_post_norm),
	IN_LAYER(SLOT_ROUTER, SLOT_IS_MATRIX, router),
	IN_LAYER(SLOT_EXPERT_GATE_UP, SLOT_IS_EXPERTS, expert_gate_up),
	IN_LAYER(SLOT_EXPERT_DOWN, SLOT_IS_EXPERTS, expert_down),
#undef IN_MODEL
#undef IN_LAYER
};

static bool slot_is_vector(enum weight_slot slot)
{
	return SLOTS[slot].kind == SLOT_IS_NORM || SLOTS[slot].kind == SLOT_IS_BIAS;
}

static bool slot_is_matrix(enum weight_slot slot)
{
	return SLOTS[slot].kind == SLOT_IS_MATRIX || SLOTS[slot].kind == SLOT_IS_EXPERTS;
}

/* How many weights of a slot a layer (or the model) has. */
static u32 slot_copies(const struct weights_plan *p, enum weight_slot slot)
{
	return SLOTS[slot].kind == SLOT_IS_EXPERTS ? p->config->experts : 1;
}

static u32 slot_layers(const struct weights_plan *p, enum weight_slot slot)
{
	return slot >= SLOT_LAYER_FIRST ? p->config->layers : 1;
}

/* Whether a tensor of the table is there in `layer`. */
static bool tensor_applies(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	bool experts = p->config->layer_flags[layer] & LAYER_EXPERTS;

	switch (t->when) {
	case WHEN_ALWAYS:
		return true;
	case WHEN_ATTENTION_BIAS:
		return p->config->attention_bias;
	case WHEN_MLP_BIAS:
		return p->config->mlp_bias;
	case WHEN_DENSE:
		return !experts;
	case WHEN_EXPERTS:
		return experts;
	}
	return false;
}

/* With tied embeddings lm_head is made from the embedding's tensor. */
static enum weight_slot source_slot(const struct weights_plan *p, enum weight_slot slot)
{
	return slot == SLOT_LM_HEAD && p->config->tied_embeddings ? SLOT_EMBED : slot;
}

/* Rows and columns that this rank holds of a fused weight of `layer`; none: 0. */
static void slot_shape(const struct weights_plan *p, enum weight_slot slot, u32 layer, u32 *rows,
		       u32 *columns)
{
	const struct arch *a = p->config->arch;

	*rows = *columns = 0;
	slot = source_slot(p, slot);
	for (u32 i = 0; i < a->tensor_count; i++)
		if (a->tensors[i].slot == slot && tensor_applies(p, &a->tensors[i], layer)) {
			*rows += rows_share(p, &a->tensors[i]).count;
			*columns = columns_share(p, &a->tensors[i]).count;
		}
}

/* ---------------------------------------------------------------- check */

static enum err check_tensor(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, u32 expert,
			     struct err_msg *em)
{
	char name[NAME_MAX_BYTES], found[128], wanted[128];
	u64 shape[2] = {rows_of_file(p, t), dim_size(p->config, t->columns)};
	u32 dims = t->columns == DIM_NONE ? 1 : 2;

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	if (slot_is_matrix(t->slot)) {
		struct quant_tensor q;
		enum err e = quant_tensor_find(&q, p->checkpoint, &p->config->quant, name, (u32)shape[0],
					       (u32)shape[1], em);
		if (e || q.format != QUANT_NONE)
			return e;
	}
	const struct st_tensor *st = safetensors_find(p->checkpoint, name);
	safetensors_print_shape(wanted, sizeof(wanted), shape, dims);
	if (!st)
		return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s (%s expected)", name,
			       wanted);
	if (st->dims != dims || memcmp(st->shape, shape, dims * sizeof(u64)) != 0) {
		safetensors_print_shape(found, sizeof(found), st->shape, st->dims);
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s; by config.json it must be %s",
			       st->file, name, found, wanted);
	}
	if (!st->usable)
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s is of type %s; supported: BF16, F16, F32",
			       st->file, name, st->dtype_name);
	return ERR_OK;
}

/* One tensor of the table, in all layers and for all experts. */
static enum err check_tensors(const struct weights_plan *p, const struct arch_tensor *t, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 layer = 0; layer < slot_layers(p, t->slot); layer++)
		for (u32 x = 0; !e && tensor_applies(p, t, layer) && x < slot_copies(p, t->slot); x++)
			e = check_tensor(p, t, layer, x, em);
	return e;
}

enum err model_weights_check(const struct weights_plan *p, struct err_msg *em)
{
	const struct arch *a = p->config->arch;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < a->tensor_count; i++)
		if (source_slot(p, a->tensors[i].slot) == a->tensors[i].slot)
			e = check_tensors(p, &a->tensors[i], em);
	return e;
}

/* ---------------------------------------------------------------- sizes */

static size_t round_up(size_t n)
{
	return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static const struct st_tensor *embed_tensor(const struct weights_plan *p)
{
	const struct arch *a = p->config->arch;

	for (u32 i = 0; i < a->tensor_count; i++)
		if (a->tensors[i].slot == SLOT_EMBED)
			return safetensors_find(p->checkpoint, a->tensors[i].name);
	return NULL;
}

/* Rows are looked up one by one, so the table can stay in the file, unless rounding it is what was asked for.
 */
static bool embed_stays(const struct weights_plan *p)
{
	const struct st_tensor *t = embed_tensor(p);

	return (t->dtype == p->dtype || p->dtype == KERN_F32) &&
	       (uintptr_t)t->data % kern_dtype_bytes(t->dtype) == 0;
}

/* The part `t` of a weight, as the checkpoint has it; model_weights_check has found it right. */
static struct quant_tensor quant_part(const struct weights_plan *p, const struct arch_tensor *t, u32 layer,
				      u32 expert)
{
	char name[NAME_MAX_BYTES];
	struct quant_tensor q;
	struct err_msg em;

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	enum err e = quant_tensor_find(&q, p->checkpoint, &p->config->quant, name, rows_of_file(p, t),
				       dim_size(p->config, t->columns), &em);
	ASSERT(!e);
	return q;
}

static bool same_order(const struct quant_tensor *a, const struct quant_tensor *b)
{
	if (!a->groups || !b->groups)
		return a->groups == b->groups;
	return a->groups->bytes == b->groups->bytes &&
	       memcmp(a->groups->data, b->groups->data, a->groups->bytes) == 0;
}

/* The quantized type in which a weight can be held as the checkpoint has it, if all its parts agree on one
 * and on the order of inputs (`*ordered`: another than theirs); else KERN_F32. */
static enum kern_dtype stored_type(const struct weights_plan *p, enum weight_slot slot, u32 layer,
				   bool *ordered)
{
	const struct arch *a = p->config->arch;
	enum kern_dtype type = KERN_F32;
	struct quant_tensor first;
	u32 parts = 0;

	*ordered = false;
	slot = source_slot(p, slot);
	for (u32 i = 0; i < a->tensor_count && p->config->quant.format != QUANT_NONE; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != slot || !slot_is_matrix(slot) || !tensor_applies(p, t, layer))
			continue;
		struct quant_tensor q = quant_part(p, t, layer, 0);
		struct range columns = columns_share(p, t);
		enum kern_dtype mine = quant_tensor_type(&q, columns.first, columns.count);
		if (parts++ == 0) {
			first = q;
			type = mine;
		}
		if (mine != type || !same_order(&q, &first) ||
		    (q.groups && SLOTS[slot].kind == SLOT_IS_EXPERTS))
			return KERN_F32;
		*ordered = q.groups != NULL;
	}
	return type;
}

/* A router is small, and which experts it picks matters more than any digit. */
static enum kern_dtype matrix_dtype(const struct weights_plan *p, enum weight_slot slot, u32 layer,
				    bool *ordered)
{
	*ordered = false;
	if (slot == SLOT_ROUTER)
		return p->dtype;
	if (kern_dtype_group(p->matrix_dtype) > 0)
		return p->matrix_dtype;
	enum kern_dtype stored = stored_type(p, slot, layer, ordered);
	if (kern_dtype_group(stored) > 0)
		return stored;
	*ordered = false;
	return p->dtype;
}

/* Of one weight of the slot. */
static size_t slot_bytes(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	u32 rows, columns;
	bool ordered;

	slot_shape(p, slot, layer, &rows, &columns);
	if (rows == 0)
		return 0;
	if (slot == SLOT_EMBED)
		return embed_stays(p) ? 0 : round_up((size_t)rows * columns * kern_dtype_bytes(p->dtype));
	if (slot_is_vector(slot))
		return round_up(rows * sizeof(float));
	enum kern_dtype type = matrix_dtype(p, slot, layer, &ordered);
	return round_up(kern_weight_bytes(rows, columns, type, p->caps)) +
	       (ordered ? round_up(columns * sizeof(u32)) : 0);
}

u64 model_weights_bytes(const struct weights_plan *p)
{
	u64 total = 0;

	for (u32 slot = 0; slot < SLOT_COUNT; slot++)
		for (u32 layer = 0; layer < slot_layers(p, slot); layer++)
			total += (u64)slot_bytes(p, slot, layer) * slot_copies(p, slot);
	return total;
}

/* ---------------------------------------------------------------- load */

struct loader {
	const struct weights_plan *plan;
	char *memory;
	size_t used;
	bool ready; /* `memory` holds the weights already, and cannot be written to */
	struct kern_weight *experts; /* the next that are free */
	void *staging;		     /* an aligned copy of rows whose place in the file is not aligned */
	size_t staging_bytes;
};

static void *take(struct loader *l, size_t bytes)
{
	void *p = l->memory + l->used;

	l->used += bytes;
	return p;
}

/* The tensor's rows from `first` on, aligned to its element size: in the file, or copied. NULL: out of
 * memory. */
static const void *aligned_rows(struct loader *l, const struct st_tensor *t, u32 first, u32 rows)
{
	size_t row_bytes = t->bytes / t->shape[0];
	const char *src = (const char *)t->data + first * row_bytes;
	size_t bytes = rows * row_bytes;

	if ((uintptr_t)src % kern_dtype_bytes(t->dtype) == 0)
		return src;
	if (bytes > l->staging_bytes) {
		void *grown = realloc(l->staging, bytes);
		if (!grown)
			return NULL;
		l->staging = grown;
		l->staging_bytes = bytes;
	}
	return memcpy(l->staging, src, bytes);
}

static const struct st_tensor *find_tensor(const struct loader *l, const struct arch_tensor *t, u32 layer,
					   u32 expert)
{
	char name[NAME_MAX_BYTES];

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	const struct st_tensor *st = safetensors_find(l->plan->checkpoint, name);
	ASSERT(st); /* model_weights_check */
	return st;
}

static enum err load_plain(struct loader *l, const struct arch_tensor *t, const struct st_tensor *st,
			   struct range r, u32 done, struct kern_weight *w, struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	const char *src = aligned_rows(l, st, r.first, r.count);

	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	kern_weight_rows(w, done, r.count, src + columns_share(p, t).first * kern_dtype_bytes(st->dtype),
			 st->dtype, dim_size(p->config, t->columns), p->threads);
	return ERR_OK;
}

/* The order of inputs, behind the weight's own memory; without `q` it is there. */
static void order_inputs(struct kern_weight *w, const struct quant_tensor *q, void *memory, u32 rows,
			 u32 columns, u32 caps)
{
	u32 *order =
		(u32 *)(void *)((char *)memory + round_up(kern_weight_bytes(rows, columns, w->dtype, caps)));

	if (w->order)
		return;
	if (q)
		quant_tensor_order(q, order);
	w->order = order;
}

static enum err load_matrix(struct loader *l, enum weight_slot slot, u32 layer, u32 expert,
			    struct kern_weight *w, struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	const struct arch *a = p->config->arch;
	enum weight_slot source = source_slot(p, slot);
	u32 rows, columns, done = 0;
	bool ordered;

	slot_shape(p, slot, layer, &rows, &columns);
	void *memory = take(l, slot_bytes(p, slot, layer));
	enum kern_dtype dtype = matrix_dtype(p, slot, layer, &ordered);
	if (l->ready) {
		kern_weight_attach(w, rows, columns, dtype, memory, p->caps);
		if (ordered)
			order_inputs(w, NULL, memory, rows, columns, p->caps);
		return ERR_OK;
	}
	enum err e = kern_weight_begin(w, rows, columns, dtype, memory, p->caps, em);
	for (u32 i = 0; !e && i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != source || !tensor_applies(p, t, layer))
			continue;
		struct range r = rows_share(p, t);
		struct quant_tensor q = {.format = QUANT_NONE};
		if (slot_is_matrix(source))
			q = quant_part(p, t, layer, expert);
		if (ordered)
			order_inputs(w, &q, memory, rows, columns, p->caps);
		e = q.format == QUANT_NONE
			    ? load_plain(l, t, find_tensor(l, t, layer, expert), r, done, w, em)
			    : quant_tensor_load(w, done, &q, r.first, r.count, columns_share(p, t).first,
						p->threads, em);
		done += r.count;
	}
	ASSERT(e || done == rows);
	return e;
}

static enum err load_experts(struct loader *l, enum weight_slot slot, u32 layer, struct kern_weight **out,
			     struct err_msg *em)
{
	u32 count = l->plan->config->experts;
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
	const struct weights_plan *p = l->plan;
	const struct arch *a = p->config->arch;
	float *memory = take(l, slot_bytes(p, slot, layer));
	float offset = SLOTS[slot].kind == SLOT_IS_NORM ? p->config->norm_offset : 0;
	u32 done = 0;

	*out = memory;
	for (u32 i = 0; i < a->tensor_count && !l->ready; i++) {
		if (a->tensors[i].slot != slot || !tensor_applies(p, &a->tensors[i], layer))
			continue;
		const struct st_tensor *st = find_tensor(l, &a->tensors[i], layer, 0);
		struct range r = rows_share(p, &a->tensors[i]);
		const void *src = aligned_rows(l, st, r.first, r.count);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		kern_convert(memory + done, KERN_F32, src, st->dtype, r.count);
		done += r.count;
	}
	for (u32 i = 0; i < done && offset != 0; i++)
		memory[i] += offset;
	return ERR_OK;
}

static enum err load_embed(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	const struct st_tensor *st = embed_tensor(p);
	u32 first = p->shard->vocab_first, rows = p->shard->vocab_rows;
	const void *src = aligned_rows(l, st, first, rows);

	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	w->embed_dtype = p->dtype;
	if (embed_stays(p)) {
		w->embed = src;
		w->embed_dtype = st->dtype;
		return ERR_OK;
	}
	void *memory = take(l, slot_bytes(p, SLOT_EMBED, 0));
	if (!l->ready)
		kern_convert(memory, p->dtype, src, st->dtype, (size_t)rows * p->config->hidden);
	w->embed = memory;
	return ERR_OK;
}

/* Into `base`, which is the model's weights or a layer's. */
static enum err load_slot(struct loader *l, enum weight_slot slot, u32 layer, void *base, struct err_msg *em)
{
	void *member = (char *)base + SLOTS[slot].offset;
	u32 rows, columns;

	slot_shape(l->plan, slot, layer, &rows, &columns);
	if (rows == 0)
		return ERR_OK;
	switch (SLOTS[slot].kind) {
	case SLOT_IS_EMBED:
		return load_embed(l, base, em);
	case SLOT_IS_MATRIX:
		return load_matrix(l, slot, layer, 0, member, em);
	case SLOT_IS_EXPERTS:
		return load_experts(l, slot, layer, member, em);
	case SLOT_IS_NORM:
	case SLOT_IS_BIAS:
		return load_vector(l, slot, layer, member, em);
	}
	return ERR_OK;
}

static enum err load_all(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	enum err e = load_slot(l, SLOT_EMBED, 0, w, em);

	if (!e)
		e = load_slot(l, SLOT_FINAL_NORM, 0, w, em);
	for (u32 i = 0; !e && i < w->layer_count; i++) {
		for (u32 slot = SLOT_LAYER_FIRST; !e && slot < SLOT_COUNT; slot++)
			e = load_slot(l, slot, i, &w->layers[i], em);
		if (p->progress && !l->ready)
			p->progress(p->progress_ctx, (i + 1.0) / (w->layer_count + 1));
	}
	if (!e)
		e = load_slot(l, SLOT_LM_HEAD, 0, w, em);
	ASSERT(e || l->used == w->memory_bytes);
	return e;
}

static enum err check_memory(const struct weights_plan *p, u64 bytes, struct err_msg *em)
{
	const u64 mib = 1 << 20;
	bool ordered;
	enum kern_dtype type = matrix_dtype(p, SLOT_QKV, 0, &ordered);

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
	struct loader l = {.plan = p};
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
	w->expert_count = 2 * p->config->experts * w->layer_count;
	w->layers = calloc(w->layer_count, sizeof(*w->layers));
	w->experts = calloc(w->expert_count + 1, sizeof(*w->experts));
	void *memory = w->layers && w->experts ? weights_cache_find(&key, p, w->memory_bytes) : MAP_FAILED;
	l.ready = w->mapped = memory && memory != MAP_FAILED;
	if (!memory)
		memory = mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		e = err_set(em, ERR_NO_MEMORY, "cannot allocate %llu bytes for the weights",
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
	free(l.staging);
failed:
	if (e)
		model_weights_fini(w);
	return e;
}

void model_weights_fini(struct model_weights *w)
{
	for (u32 i = 0; w->layers && i < w->layer_count; i++) {
		kern_weight_fini(&w->layers[i].qkv);
		kern_weight_fini(&w->layers[i].attn_out);
		kern_weight_fini(&w->layers[i].gate_up);
		kern_weight_fini(&w->layers[i].down);
		kern_weight_fini(&w->layers[i].router);
	}
	for (u32 i = 0; w->experts && i < w->expert_count; i++)
		kern_weight_fini(&w->experts[i]);
	kern_weight_fini(&w->lm_head);
	free(w->experts);
	free(w->layers);
	if (w->mapped)
		weights_cache_unmap(w->memory, w->memory_bytes);
	else if (w->memory)
		munmap(w->memory, w->memory_bytes);
	*w = (struct model_weights){0};
}
