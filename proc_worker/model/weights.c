/* Loads weights: owns their memory, one mapping. Runs in the worker at start. Reads only what this rank
 * needs, never trusts a shape. */
#include "proc_worker/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"

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
	case DIM_HEADS:
		return c->heads * c->head_dim;
	case DIM_KV_HEADS:
		return c->kv_heads * c->head_dim;
	case DIM_INTERMEDIATE:
		return c->intermediate;
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
	default:
		return (struct range){0, dim_size(c, d)};
	}
}

static struct range rows_share(const struct weights_plan *p, const struct arch_tensor *t)
{
	return t->split == SPLIT_ROWS ? dim_share(p, t->rows)
				      : (struct range){0, dim_size(p->config, t->rows)};
}

static struct range columns_share(const struct weights_plan *p, const struct arch_tensor *t)
{
	return t->split == SPLIT_COLUMNS ? dim_share(p, t->columns)
					 : (struct range){0, dim_size(p->config, t->columns)};
}

static bool slot_is_norm(enum weight_slot slot)
{
	return slot == SLOT_FINAL_NORM || slot == SLOT_ATTN_NORM || slot == SLOT_MLP_NORM;
}

/* With tied embeddings lm_head is made from the embedding's tensor. */
static enum weight_slot source_slot(const struct weights_plan *p, enum weight_slot slot)
{
	return slot == SLOT_LM_HEAD && p->config->tied_embeddings ? SLOT_EMBED : slot;
}

/* Rows and columns that this rank holds of a fused weight. */
static void slot_shape(const struct weights_plan *p, enum weight_slot slot, u32 *rows, u32 *columns)
{
	const struct arch *a = p->config->arch;

	*rows = *columns = 0;
	slot = source_slot(p, slot);
	for (u32 i = 0; i < a->tensor_count; i++)
		if (a->tensors[i].slot == slot) {
			*rows += rows_share(p, &a->tensors[i]).count;
			*columns = columns_share(p, &a->tensors[i]).count;
		}
}

/* ---------------------------------------------------------------- check */

static enum err check_tensor(const struct weights_plan *p, const struct arch_tensor *t, u32 layer,
			     struct err_msg *em)
{
	char name[NAME_MAX_BYTES], found[128], wanted[128];
	u64 shape[2] = {dim_size(p->config, t->rows), dim_size(p->config, t->columns)};
	u32 dims = t->columns == DIM_NONE ? 1 : 2;

	arch_tensor_name(name, sizeof(name), t, layer);
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

enum err model_weights_check(const struct weights_plan *p, struct err_msg *em)
{
	const struct arch *a = p->config->arch;

	for (u32 i = 0; i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		u32 count = t->slot >= SLOT_LAYER_FIRST ? p->config->layers : 1;
		if (source_slot(p, t->slot) != t->slot)
			continue;
		for (u32 layer = 0; layer < count; layer++) {
			enum err e = check_tensor(p, t, layer, em);
			if (e)
				return e;
		}
	}
	return ERR_OK;
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

static size_t slot_bytes(const struct weights_plan *p, enum weight_slot slot)
{
	u32 rows, columns;

	slot_shape(p, slot, &rows, &columns);
	if (slot == SLOT_EMBED)
		return embed_stays(p) ? 0 : round_up((size_t)rows * columns * kern_dtype_bytes(p->dtype));
	if (slot_is_norm(slot))
		return round_up(rows * sizeof(float));
	return round_up(kern_weight_bytes(rows, columns, p->dtype, p->caps));
}

u64 model_weights_bytes(const struct weights_plan *p)
{
	u64 total = 0;

	for (u32 slot = 0; slot < SLOT_COUNT; slot++)
		total += (u64)slot_bytes(p, slot) * (slot >= SLOT_LAYER_FIRST ? p->config->layers : 1);
	return total;
}

/* ---------------------------------------------------------------- load */

struct loader {
	const struct weights_plan *plan;
	char *memory;
	size_t used;
	void *staging; /* an aligned copy of rows whose place in the file is not aligned */
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

static const struct st_tensor *find_tensor(const struct loader *l, const struct arch_tensor *t, u32 layer)
{
	char name[NAME_MAX_BYTES];

	arch_tensor_name(name, sizeof(name), t, layer);
	const struct st_tensor *st = safetensors_find(l->plan->checkpoint, name);
	ASSERT(st); /* model_weights_check */
	return st;
}

static enum err load_matrix(struct loader *l, enum weight_slot slot, u32 layer, struct kern_weight *w,
			    struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	const struct arch *a = p->config->arch;
	enum weight_slot source = source_slot(p, slot);
	u32 rows, columns, done = 0;

	slot_shape(p, slot, &rows, &columns);
	void *memory = take(l, slot_bytes(p, slot));
	enum err e = kern_weight_begin(w, rows, columns, p->dtype, memory, p->caps, em);
	if (e)
		return e;
	for (u32 i = 0; i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != source)
			continue;
		const struct st_tensor *st = find_tensor(l, t, layer);
		struct range r = rows_share(p, t);
		size_t first_column = columns_share(p, t).first;
		const char *src = aligned_rows(l, st, r.first, r.count);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		kern_weight_rows(w, done, r.count, src + first_column * kern_dtype_bytes(st->dtype),
				 st->dtype, dim_size(p->config, t->columns), p->threads);
		done += r.count;
	}
	ASSERT(done == rows);
	return ERR_OK;
}

static enum err load_norm(struct loader *l, enum weight_slot slot, u32 layer, const float **out,
			  struct err_msg *em)
{
	const struct arch *a = l->plan->config->arch;
	float *memory = take(l, slot_bytes(l->plan, slot));

	for (u32 i = 0; i < a->tensor_count; i++) {
		if (a->tensors[i].slot != slot)
			continue;
		const struct st_tensor *st = find_tensor(l, &a->tensors[i], layer);
		const void *src = aligned_rows(l, st, 0, (u32)st->shape[0]);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		kern_convert(memory, KERN_F32, src, st->dtype, st->shape[0]);
	}
	*out = memory;
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
	void *memory = take(l, slot_bytes(p, SLOT_EMBED));
	kern_convert(memory, p->dtype, src, st->dtype, (size_t)rows * p->config->hidden);
	w->embed = memory;
	return ERR_OK;
}

static enum err load_layer(struct loader *l, struct layer_weights *w, u32 layer, struct err_msg *em)
{
	enum err e = load_norm(l, SLOT_ATTN_NORM, layer, &w->attn_norm, em);

	if (!e)
		e = load_matrix(l, SLOT_QKV, layer, &w->qkv, em);
	if (!e)
		e = load_matrix(l, SLOT_ATTN_OUT, layer, &w->attn_out, em);
	if (!e)
		e = load_norm(l, SLOT_MLP_NORM, layer, &w->mlp_norm, em);
	if (!e)
		e = load_matrix(l, SLOT_GATE_UP, layer, &w->gate_up, em);
	if (!e)
		e = load_matrix(l, SLOT_DOWN, layer, &w->down, em);
	return e;
}

static enum err load_all(struct loader *l, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = l->plan;
	enum err e = load_embed(l, w, em);

	if (!e)
		e = load_norm(l, SLOT_FINAL_NORM, 0, &w->final_norm, em);
	for (u32 i = 0; !e && i < w->layer_count; i++) {
		e = load_layer(l, &w->layers[i], i, em);
		if (p->progress)
			p->progress(p->progress_ctx, (i + 1.0) / (w->layer_count + 1));
	}
	if (!e)
		e = load_matrix(l, SLOT_LM_HEAD, 0, &w->lm_head, em);
	ASSERT(e || l->used == w->memory_bytes);
	return e;
}

static enum err check_memory(const struct weights_plan *p, u64 bytes, struct err_msg *em)
{
	const u64 mib = 1 << 20;

	if (bytes <= p->memory_available)
		return ERR_OK;
	return err_set(
		em, ERR_NO_SPACE,
		"not enough memory: the weights need %llu MiB in %s%s, %llu MiB are available; %s",
		(unsigned long long)((bytes + mib - 1) / mib), p->dtype == KERN_F32 ? "float32" : "bfloat16",
		p->shard->ranks > 1 ? " on each worker" : "", (unsigned long long)(p->memory_available / mib),
		p->dtype == KERN_F32 ? "--dtype bfloat16 needs half of it" : "use a smaller model");
}

enum err model_weights_load(struct model_weights *w, const struct weights_plan *p, struct err_msg *em)
{
	struct loader l = {.plan = p};

	*w = (struct model_weights){0};
	enum err e = model_weights_check(p, em);
	if (e)
		return e;
	w->memory_bytes = model_weights_bytes(p);
	e = check_memory(p, w->memory_bytes, em);
	if (e)
		return e;
	w->layer_count = p->config->layers;
	w->layers = calloc(w->layer_count, sizeof(*w->layers));
	void *memory = w->layers ? mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
				 : MAP_FAILED;
	if (memory == MAP_FAILED) {
		e = err_set(em, ERR_NO_MEMORY, "cannot allocate %llu bytes for the weights",
			    (unsigned long long)w->memory_bytes);
		goto failed;
	}
	w->memory = l.memory = memory;
	madvise(memory, w->memory_bytes, MADV_HUGEPAGE); /* fewer TLB misses; failing costs nothing else */
	e = load_all(&l, w, em);
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
	}
	kern_weight_fini(&w->lm_head);
	free(w->layers);
	if (w->memory)
		munmap(w->memory, w->memory_bytes);
	*w = (struct model_weights){0};
}
