/* Reads a head's share of kv_b_proj, whose parts latent attention wants apart: that of keys turned, so that it goes from queries to
 * latents, and that of values. They are held unquantized, whatever the checkpoint has. Runs in the worker while a model loads; owns
 * nothing. */
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/finite.h"
#include "proc_worker/model/weights_priv.h"

enum { NAME_MAX_BYTES = 256 };

static const struct arch_tensor *find_part(const struct arch *a, enum weight_slot slot)
{
	u32 i = 0;

	while (a->tensors[i].slot != slot)
		i++;
	return &a->tensors[i];
}

bool weights_split_heads(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, char *name, size_t bytes, u64 shape[2])
{
	const char *whole = strstr(t->name, ".kv_b_proj.");
	char split[NAME_MAX_BYTES];

	if (WEIGHTS_SLOTS[t->slot].kind != SLOT_IS_HEADS || !whole)
		return false;
	const u32 latents = weights_dim(p->config, t->columns, layer), part = weights_dim(p->config, t->rows, layer);
	const bool keys = t->slot == SLOT_HEAD_K;
	arch_tensor_name(split, sizeof(split), t, layer, 0);
	char *at = strstr(split, ".kv_b_proj.");
	memmove(at + 2, at + 3, strlen(at + 3) + 1); /* ".k_b_proj." */
	at[1] = keys ? 'k' : 'v';
	if (!safetensors_find(p->checkpoint, split))
		return false;
	snprintf(name, bytes, "%s", split);
	shape[0] = (u64)p->config->heads * (keys ? latents : part);
	shape[1] = keys ? part : latents;
	return true;
}

/* One row of the tensor in the file, as floats. */
static void read_row(const struct quant_tensor *q, u32 row, float *out)
{
	size_t row_bytes = q->values->bytes / q->rows;

	if (q->format != QUANT_NONE)
		quant_tensor_values(q, row, 0, q->columns, out);
	else
		kern_convert(out, KERN_F32, (const char *)q->values->data + row * row_bytes, q->values->dtype, q->columns);
}

enum err weights_read_head(struct weights_reader *r, enum weight_slot slot, u32 layer, u32 head, struct kern_weight *w,
			   struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct arch_tensor *t = find_part(p->config->arch, slot);
	struct quant_tensor q = weights_quant_part(p, t, layer, 0);
	char name[NAME_MAX_BYTES];
	u64 shape[2];

	arch_tensor_name(name, sizeof(name), t, layer, 0);
	const bool split = weights_split_heads(p, t, layer, name, sizeof(name), shape), turns = slot != SLOT_HEAD_V && !split;
	const u32 rows = split ? w->n : weights_dim(p->config, t->rows, layer), columns = split ? w->k : weights_dim(p->config, t->columns, layer);
	const u32 a_head = split ? w->n : weights_rows_of_file(p, t, layer) / p->config->heads, number = p->shard->rank * p->shard->heads + head;
	const u32 first = number * a_head + (split || t->before == DIM_NONE ? 0 : weights_dim(p->config, t->before, layer));

	ASSERT(w->n * w->k == rows * columns && number < p->config->heads);
	if (!weights_stage(r, ((size_t)rows + 1) * columns * sizeof(float)))
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", name);
	float *values = r->staging, *row = values + (size_t)rows * columns;
	for (u32 i = 0; i < rows; i++) {
		read_row(&q, first + i, turns ? row : values + (size_t)i * columns);
		for (u32 j = 0; j < columns && turns; j++)
			values[(size_t)j * rows + i] = row[j];
	}
	if (kern_weight_rows(w, 0, w->n, values, KERN_F32, w->k, p->threads))
		return ERR_OK;
	enum err e = q.format == QUANT_NONE ? finite_check(q.values, w->dtype, p->threads, em) : ERR_OK;
	return e ? e : err_set(em, ERR_FORMAT, "tensor %s has a value that is no finite number in %s", name, kern_dtype_name(w->dtype));
}
