/* Reads a rank's share of tensors into weights and vectors. Runs in the worker while a model loads; the
 * tensors were found right by model_weights_check. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "kernels/recurrent.h"
#include "proc_worker/model/finite.h"
#include "proc_worker/model/lightning.h"
#include "proc_worker/model/weights_priv.h"

enum {
	NAME_MAX_BYTES = 256,
	SCALED_ROWS = 256, /* at a time: what is made of them stays in caches */
};

void weights_reader_fini(struct weights_reader *r)
{
	free(r->staging);
	free(r->untiled);
	*r = (struct weights_reader){0};
}

bool weights_stage(struct weights_reader *r, size_t bytes)
{
	if (bytes > r->staging_bytes) {
		void *grown = realloc(r->staging, bytes);
		if (!grown)
			return false;
		r->staging = grown;
		r->staging_bytes = bytes;
	}
	return true;
}

static size_t row_bytes_of(const struct st_tensor *t)
{
	return t->dims ? t->bytes / t->shape[0] : t->bytes; /* a number alone is a row */
}

static const void *aligned_rows(struct weights_reader *r, const struct st_tensor *t, size_t row_bytes, u32 first, u32 rows)
{
	const char *src = (const char *)t->data + first * row_bytes;
	size_t bytes = rows * row_bytes;

	if (t->turns) {
		for (u32 i = 0; weights_stage(r, bytes) && i < rows; i++)
			memcpy((char *)r->staging + i * row_bytes, safetensors_row(t, (u64)first + i, row_bytes), row_bytes);
		return r->staging_bytes < bytes ? NULL : r->staging;
	}
	if ((uintptr_t)src % kern_dtype_bytes(t->dtype) == 0)
		return src;
	return weights_stage(r, bytes) ? memcpy(r->staging, src, bytes) : NULL;
}

const void *weights_aligned_rows(struct weights_reader *r, const struct st_tensor *t, u32 first, u32 rows)
{
	return aligned_rows(r, t, row_bytes_of(t), first, rows);
}

const void *weights_part_rows(struct weights_reader *r, const struct arch_tensor *t, const struct st_tensor *st, u32 layer,
			      struct weights_range rows)
{
	size_t row_bytes = st->bytes / weights_rows_of_file(r->plan, t, layer);
	struct weights_range run = weights_file_rows(r->plan, t, layer, rows);

	if (run.count == rows.count)
		return aligned_rows(r, st, row_bytes, run.first, run.count);
	if (!weights_stage(r, rows.count * row_bytes))
		return NULL;
	for (u32 at = 0; at < rows.count; at += run.count) {
		run = weights_file_rows(r->plan, t, layer, (struct weights_range){rows.first + at, rows.count - at});
		memcpy((char *)r->staging + at * row_bytes, (const char *)st->data + run.first * row_bytes,
		       run.count * row_bytes);
	}
	return r->staging;
}

/* A matrix [columns][wide] of which some columns become rows: some rows a task, so that what is written stays in caches. */
struct transpose {
	const char *from;
	char *to; /* [rows][columns] */
	size_t columns, wide, first, rows, bytes;
};

enum { TRANSPOSE_ROWS = 64 };

static void transpose_task(void *arg, u32 task, u32 thread)
{
	const struct transpose *t = arg;
	size_t begin = (size_t)task * TRANSPOSE_ROWS, end = begin + TRANSPOSE_ROWS < t->rows ? begin + TRANSPOSE_ROWS : t->rows;

	(void)thread;
	for (size_t c = 0; c < t->columns; c++) {
		const char *from = t->from + (c * t->wide + t->first) * t->bytes;
		char *to = t->to + c * t->bytes;
		for (size_t i = begin; i < end && t->bytes == sizeof(u16); i++)
			memcpy(to + i * t->columns * sizeof(u16), from + i * sizeof(u16), sizeof(u16));
		for (size_t i = begin; i < end && t->bytes == sizeof(u32); i++)
			memcpy(to + i * t->columns * sizeof(u32), from + i * sizeof(u32), sizeof(u32));
	}
}

/* Rows of the part, of a tensor that has them as columns. */
static const void *transposed_rows(struct weights_reader *r, const struct arch_tensor *t, const struct st_tensor *st, u32 layer,
				   struct weights_range rows)
{
	size_t columns = st->shape[0], wide = st->shape[1], bytes = kern_dtype_bytes(st->dtype);
	struct weights_range run = weights_file_rows(r->plan, t, layer, rows);

	ASSERT(run.count == rows.count); /* none of the table is in groups, too */
	if (!weights_stage(r, rows.count * columns * bytes))
		return NULL;
	struct transpose job = {st->data, r->staging, columns, wide, run.first, rows.count, bytes};
	u32 tasks = (rows.count + TRANSPOSE_ROWS - 1) / TRANSPOSE_ROWS;
	if (r->plan->threads)
		kern_threads_run(r->plan->threads, tasks, transpose_task, &job);
	for (u32 i = 0; i < tasks && !r->plan->threads; i++)
		transpose_task(&job, i, 0);
	return r->staging;
}

static const struct st_tensor *find_tensor(const struct weights_plan *p, const struct arch_tensor *t,
					   u32 layer, u32 expert)
{
	char name[NAME_MAX_BYTES];

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	const struct st_tensor *st = safetensors_find(p->checkpoint, name);
	ASSERT(st); /* model_weights_check */
	return st;
}

/* What a part of the table is multiplied by. */
static float part_factor(const struct weights_plan *p, const struct arch_tensor *t)
{
	return t->scale == SCALE_NONE ? 1 : p->config->scales[t->scale];
}

/* Of lm_head of a family with arch.unit_head: rows are divided by their lengths. */
static bool has_unit_rows(const struct weights_plan *p, const struct arch_tensor *t)
{
	return p->config->unit_head && t->slot == SLOT_LM_HEAD;
}

static void divide_rows(float *values, u32 rows, size_t columns)
{
	const double least = 1e-12; /* as the authors' program has it */

	for (u32 r = 0; r < rows; r++, values += columns) {
		double squares = 0;
		for (size_t i = 0; i < columns; i++)
			squares += (double)values[i] * (double)values[i];
		const double length = fmax(sqrt(squares), least);
		for (size_t i = 0; i < columns; i++)
			values[i] = (float)((double)values[i] / length);
	}
}

/* Of a family with arch.embed_norm: what its norm makes of a token is the same wherever it stands. */
static bool has_normed_rows(const struct weights_plan *p, const struct arch_tensor *t)
{
	return p->config->arch->embed_norm && t->slot == SLOT_EMBED;
}

static void norm_rows(float *values, u32 rows, size_t columns, double eps)
{
	for (u32 r = 0; r < rows; r++, values += columns) {
		double squares = 0;
		for (size_t i = 0; i < columns; i++)
			squares += (double)values[i] * (double)values[i];
		const double factor = 1 / sqrt(squares / (double)columns + eps);
		for (size_t i = 0; i < columns; i++)
			values[i] = (float)((double)values[i] * factor);
	}
}

/* Rows that are multiplied, divided or normed before they are rounded, some at a time. */
static enum err read_scaled(struct weights_reader *r, const struct arch_tensor *t, const struct st_tensor *st, u32 layer, struct weights_range rows,
			    struct kern_weight *w, u32 to, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const size_t columns = weights_dim(p->config, t->columns, layer), row_bytes = row_bytes_of(st);
	const float factor = part_factor(p, t);
	bool finite = true;

	if (!weights_stage(r, SCALED_ROWS * columns * sizeof(float)))
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	float *values = r->staging;
	for (u32 at = 0, n; at < rows.count; at += n) {
		struct weights_range run = weights_file_rows(p, t, layer, (struct weights_range){rows.first + at, rows.count - at});
		n = run.count < SCALED_ROWS ? run.count : SCALED_ROWS;
		kern_convert(values, KERN_F32, (const char *)st->data + run.first * row_bytes, st->dtype, n * columns);
		for (size_t i = 0; i < n * columns; i++)
			values[i] *= factor;
		if (has_unit_rows(p, t))
			divide_rows(values, n, columns);
		if (has_normed_rows(p, t))
			norm_rows(values, n, columns, (double)p->config->norm_eps);
		finite = kern_weight_rows(w, to + at, n, values + weights_columns(p, t, layer).first, KERN_F32, columns, p->threads) && finite;
	}
	enum err e = finite ? ERR_OK : finite_check(st, w->dtype, p->threads, em);
	return finite || e ? e
			   : err_set(em, ERR_FORMAT, "tensor %s: multiplied by %g, as config.json says, some of its values are not finite as %s", st->name,
				     (double)factor, kern_dtype_name(w->dtype));
}

/* Rows' columns of this rank one behind the other, where the file has them in another order. */
static const char *untiled(struct weights_reader *r, const struct arch_tensor *t, u32 layer, const char *src, size_t element, u32 rows)
{
	const struct weights_range columns = weights_columns(r->plan, t, layer);
	const struct tiles tiles = weights_column_tiles(r->plan, t);
	const size_t whole = weights_dim(r->plan->config, t->columns, layer), bytes = rows * columns.count * element;

	if (bytes > r->untiled_bytes) {
		void *grown = realloc(r->untiled, bytes);
		if (!grown)
			return NULL;
		r->untiled = grown;
		r->untiled_bytes = bytes;
	}
	char *to = r->untiled;
	for (u32 i = 0; i < rows; i++, src += whole * element)
		for (u32 done = 0, n, at; done < columns.count; done += n, to += n * element) {
			n = tiles_run(&tiles, columns.first + done, columns.count - done, &at);
			memcpy(to, src + at * element, n * element);
		}
	return r->untiled;
}

static enum err read_plain(struct weights_reader *r, const struct arch_tensor *t, const struct st_tensor *st, u32 layer,
			   struct weights_range rows, struct kern_weight *w, u32 to, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	if (part_factor(p, t) != 1 || has_unit_rows(p, t) || has_normed_rows(p, t))
		return read_scaled(r, t, st, layer, rows, w, to, em);
	const char *src = t->transposed ? transposed_rows(r, t, st, layer, rows) : weights_part_rows(r, t, st, layer, rows);
	const bool tiled = weights_column_tiles(p, t).width > 0;

	if (src && tiled)
		src = untiled(r, t, layer, src, kern_dtype_bytes(st->dtype), rows.count);
	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	bool finite = kern_weight_rows(w, to, rows.count, tiled ? src : src + weights_columns(p, t, layer).first * kern_dtype_bytes(st->dtype), st->dtype,
				       tiled ? w->k : weights_dim(p->config, t->columns, layer), p->threads);
	return finite ? ERR_OK : finite_check(st, w->dtype, p->threads, em);
}

/* Of quantized rows, which are values while they are divided. */
static enum err read_quantized_units(struct weights_reader *r, const struct quant_tensor *q, struct weights_range rows, struct kern_weight *w, u32 to,
				     struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	enum err e = ERR_OK;

	if (!weights_stage(r, SCALED_ROWS * (size_t)q->columns * sizeof(float)))
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", q->values->name);
	float *values = r->staging;
	for (u32 at = 0, n; !e && at < rows.count; at += n) {
		n = rows.count - at < SCALED_ROWS ? rows.count - at : SCALED_ROWS;
		e = quant_tensor_expand(values, KERN_F32, q, rows.first + at, n, p->threads, em);
		if (e)
			break;
		divide_rows(values, n, q->columns);
		if (!kern_weight_rows(w, to + at, n, values, KERN_F32, q->columns, p->threads))
			e = err_set(em, ERR_FORMAT, "tensor %s: divided by the lengths of rows, some of its values are not finite", q->values->name);
	}
	return e;
}

static enum err read_part(struct weights_reader *r, const struct arch_tensor *t, const struct quant_tensor *q,
			  u32 layer, u32 expert, struct weights_range rows, struct kern_weight *w, u32 to,
			  struct err_msg *em)
{
	const struct weights_plan *p = r->plan;

	if (q->format == QUANT_NONE)
		return read_plain(r, t, find_tensor(p, t, layer, expert), layer, rows, w, to, em);
	if (has_unit_rows(p, t) && w->order)
		return err_set(em, ERR_UNSUPPORTED, "an lm_head of a %s whose inputs are in another order (desc_act) is not read: its rows are divided by their lengths; use the checkpoint "
						    "that it was made from with --quantization", p->config->arch->name);
	if (part_factor(p, t) != 1)
		return err_set(em, ERR_UNSUPPORTED,
			       "quantized checkpoints of a %s are not read whose config.json has multipliers: use the checkpoint that it was made from with "
			       "--quantization",
			       p->config->arch->name);
	enum err e = ERR_OK;
	for (u32 at = 0, n; !e && at < rows.count; at += n) {
		struct weights_range run = weights_file_rows(p, t, layer, (struct weights_range){rows.first + at, rows.count - at});
		n = run.count;
		e = has_unit_rows(p, t) ? read_quantized_units(r, q, run, w, to + at, em)
					: quant_tensor_load(w, to + at, q, run.first, n, weights_columns(p, t, layer).first, p->threads, em);
	}
	return e;
}

static struct quant_tensor part_of(const struct weights_plan *p, const struct arch_tensor *t, u32 layer,
				   u32 expert)
{
	return weights_may_be_quantized(p, t->slot) ? weights_quant_part(p, t, layer, expert)
					  : (struct quant_tensor){.format = QUANT_NONE};
}

enum err weights_read_rows(struct weights_reader *r, const struct arch_tensor *t, u32 layer, u32 expert,
			   u32 first, u32 count, struct kern_weight *w, u32 to, struct err_msg *em)
{
	struct weights_range share = weights_rows(r->plan, t, layer), rows = {share.first + first, count};
	struct quant_tensor q = part_of(r->plan, t, layer, expert);

	ASSERT(first + count <= share.count);
	return read_part(r, t, &q, layer, expert, rows, w, to, em);
}

enum err weights_read_matrix(struct weights_reader *r, enum weight_slot slot, u32 layer, u32 expert,
			     struct kern_weight *w, u32 *order, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct arch *a = p->config->arch;
	enum weight_slot source = weights_source_slot(p, slot);
	enum err e = ERR_OK;
	u32 done = 0;

	for (u32 i = 0; !e && i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != source || !weights_tensor_applies(p, t, layer))
			continue;
		struct weights_range rows = weights_rows(p, t, layer);
		struct quant_tensor q = part_of(p, t, layer, expert);
		if (order && !w->order) {
			quant_tensor_order(&q, order);
			w->order = order;
		}
		e = read_part(r, t, &q, layer, expert, rows, w, done, em);
		done += rows.count;
	}
	ASSERT(e || done == w->n);
	return e;
}

enum err weights_read_embed(struct weights_reader *r, void *out, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct arch_tensor *t = p->config->arch->tensors;

	while (t->slot != SLOT_EMBED)
		t++;
	struct weights_range rows = weights_rows(p, t, 0);
	struct quant_tensor q = weights_quant_part(p, t, 0, 0);
	return quant_tensor_expand(out, p->dtype, &q, rows.first, rows.count, p->threads, em);
}

static enum err read_normed_rows(struct weights_reader *r, const struct st_tensor *st, struct weights_range rows, size_t columns, void *out, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const size_t row_bytes = row_bytes_of(st);

	if (!weights_stage(r, SCALED_ROWS * columns * sizeof(float)))
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
	float *values = r->staging;
	for (u32 at = 0, n; at < rows.count; at += n) {
		const char *from = (const char *)st->data + (rows.first + at) * row_bytes;
		n = rows.count - at < SCALED_ROWS ? rows.count - at : SCALED_ROWS;
		kern_convert(values, KERN_F32, from, st->dtype, n * columns);
		norm_rows(values, n, columns, (double)p->config->norm_eps);
		kern_convert((char *)out + at * columns * kern_dtype_bytes(p->dtype), p->dtype, values, KERN_F32, n * columns);
	}
	return ERR_OK;
}

enum err weights_read_table(struct weights_reader *r, enum weight_slot slot, void *out, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct arch *a = p->config->arch;

	for (u32 i = 0; i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != slot)
			continue;
		const struct st_tensor *st = find_tensor(p, t, 0, 0);
		struct weights_range rows = weights_rows(p, t, 0);
		if (!st->usable) { /* blocks: never looked up row by row */
			struct quant_tensor q = weights_quant_part(p, t, 0, 0);
			return quant_tensor_expand(out, p->dtype, &q, rows.first, rows.count, p->threads, em);
		}
		if (has_normed_rows(p, t))
			return read_normed_rows(r, st, rows, weights_dim(p->config, t->columns, 0), out, em);
		const void *src = weights_part_rows(r, t, st, 0, rows);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		size_t count = (size_t)rows.count * weights_dim(p->config, t->columns, 0);
		if (!kern_all_finite(src, st->dtype, p->dtype, count))
			return finite_check(st, p->dtype, p->threads, em);
		kern_convert(out, p->dtype, src, st->dtype, count);
	}
	return ERR_OK;
}

/* Of each row this rank's columns; vectors have one. Returns how many values that is. */
static u32 convert_rows(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, const void *src, enum kern_dtype dtype, u32 rows,
			float *out)
{
	struct weights_range columns = weights_columns(p, t, layer);
	size_t whole = weights_dim(p->config, t->columns, layer), bytes = kern_dtype_bytes(dtype);

	if (columns.count == whole) {
		kern_convert(out, KERN_F32, src, dtype, rows * whole);
		return rows * columns.count;
	}
	for (u32 i = 0; i < rows; i++)
		kern_convert(out + (size_t)i * columns.count, KERN_F32, (const char *)src + (i * whole + columns.first) * bytes,
			     dtype, columns.count);
	return rows * columns.count;
}

/* Channels, each with its taps or its rates, become columns of a matrix of all channels, whose rows are these. */
static u32 convert_channels(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, const void *src, enum kern_dtype dtype,
			    u32 rows, float *out)
{
	const float factor = part_factor(p, t);
	float taps[KERN_SELECTIVE_DIM_MAX];
	u32 channels, count;

	weights_slot_shape(p, t->slot, layer, &channels, &count);
	ASSERT(count <= KERN_SELECTIVE_DIM_MAX);
	for (u32 i = 0; i < rows; i++) {
		kern_convert(taps, KERN_F32, (const char *)src + (size_t)i * count * kern_dtype_bytes(dtype), dtype, count);
		for (u32 j = 0; j < count; j++)
			out[(size_t)j * channels + i] = taps[j] * factor;
	}
	return rows;
}

static float softplus(float x)
{
	return (float)(fmax((double)x, 0) + log1p(exp(-fabs((double)x))));
}

/* What files hold as it was learned, of which no value makes the curve fall. */
static void make_xielu(float *n)
{
	n[KERN_XIELU_POSITIVE] = softplus(n[KERN_XIELU_POSITIVE]);
	n[KERN_XIELU_NEGATIVE] = n[KERN_XIELU_BETA] + softplus(n[KERN_XIELU_NEGATIVE]);
}

/* GGUF files have what states decay by, which is below 0, where others have the logarithm of how fast. */
static enum err make_rates(const struct st_tensor *st, float *out, u32 count, struct err_msg *em)
{
	for (u32 i = 0; i < count; i++) {
		if (out[i] > 0)
			return err_set(em, ERR_FORMAT, "%s: tensor %s has %g at [%u]; what states decay by must be 0 at most", st->file, st->name,
				       (double)out[i], i);
		out[i] = out[i] < 0 ? logf(-out[i]) : -FLT_MAX;
	}
	return ERR_OK;
}

/* Rates are floats when they are used, and an infinite one times a step of 0 would be no number. */
static enum err bound_rates(const struct st_tensor *st, float *out, u32 count, struct err_msg *em)
{
	const float most = 88.72283f; /* the logarithm of the largest float */

	for (u32 i = 0; i < count; i++) {
		if (out[i] > most)
			return err_set(em, ERR_FORMAT, "%s: tensor %s has %g at [%u]; e to the power of it is what states decay by, and must be a number: it must be "
						       "%g at most", st->file, st->name, (double)out[i], i, (double)most);
		out[i] = fminf(out[i], KERN_RATE_LOG_MAX);
	}
	return ERR_OK;
}

/* Of states whose values each decay by themselves, what is held: not the logarithm. */
static enum err expand_rates(const struct weights_plan *p, const struct st_tensor *st, float *out, u32 count, struct err_msg *em)
{
	const bool gguf = quant_config_has(&p->config->quant, QUANT_GGUF);

	for (u32 i = 0; i < count; i++) {
		if (gguf && out[i] > 0)
			return err_set(em, ERR_FORMAT, "%s: tensor %s has %g; what states decay by must be 0 at most", st->file, st->name, (double)out[i]);
		out[i] = gguf ? -out[i] : fminf(expf(out[i]), FLT_MAX);
	}
	return ERR_OK;
}

/* What a vector is multiplied by so that nothing else has to be. */
static float vector_factor(const struct weights_plan *p, enum weight_slot slot)
{
	switch (slot) {
	case SLOT_FINAL_NORM: /* of what lm_head reads, and so of the logits */
	case SLOT_FINAL_NORM_BIAS:
	case SLOT_LM_HEAD_BIAS:
		return p->config->logits_scale;
	case SLOT_Q_NORM: /* of what both low ranks are multiplied by */
		return p->config->arch->shortcut ? sqrtf((float)p->config->hidden / (float)p->config->latent.q_rank) : 1;
	case SLOT_K_NORM:
		return p->config->arch->shortcut ? sqrtf((float)p->config->hidden / (float)p->config->latent.rank) : 1;
	case SLOT_ATTN_POST_NORM:
	case SLOT_MLP_POST_NORM:
		return p->config->scales[SCALE_POST_NORM];
	case SLOT_INPUTS_NORM:
		return WEIGHTS_INPUTS_SHARE;
	case SLOT_ROUTER_NORM:
		return 1 / sqrtf((float)p->config->hidden);
	default:
		return 1;
	}
}

/* Vectors of this rank's heads, one behind the other, to out[*done], which moves on. */
static enum err read_heads(struct weights_reader *r, const struct arch_tensor *t, u32 layer, float *out, u32 *done, struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct weights_range rows = weights_rows(p, t, layer);
	const u32 width = p->config->head_dim;

	for (u32 at = rows.first; at < rows.first + rows.count; at += width, *done += width) {
		const struct st_tensor *st = find_tensor(p, t, layer, at / width);
		const void *src = weights_aligned_rows(r, st, 0, width);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		if (!kern_all_finite(src, st->dtype, KERN_F32, width))
			return finite_check(st, KERN_F32, p->threads, em);
		kern_convert(out + *done, KERN_F32, src, st->dtype, width);
	}
	return ERR_OK;
}

enum err weights_read_vector(struct weights_reader *r, enum weight_slot slot, u32 layer, float *out,
			     struct err_msg *em)
{
	const struct weights_plan *p = r->plan;
	const struct arch *a = p->config->arch;
	const bool plainly = weights_plain_width(p, slot, layer) > 0 || (slot == SLOT_FINAL_NORM && a->plain_final_norm);
	float offset = WEIGHTS_SLOTS[slot].kind == SLOT_IS_NORM && !plainly ? p->config->norm_offset : 0;
	u32 done = 0;

	for (const u32 plain = weights_plain_width(p, slot, layer); done < plain; done++)
		out[done] = 1;
	if (lightning_plain_width(p, slot, layer) > 0)
		lightning_plain_values(p, slot, layer, out);
	for (u32 i = 0; i < a->tensor_count; i++) {
		if (a->tensors[i].slot != slot || !weights_tensor_applies(p, &a->tensors[i], layer))
			continue;
		if (a->tensors[i].by_head) {
			enum err e = read_heads(r, &a->tensors[i], layer, out, &done, em);
			if (e)
				return e;
			continue;
		}
		const struct st_tensor *st = find_tensor(p, &a->tensors[i], layer, 0);
		struct weights_range rows = weights_rows(p, &a->tensors[i], layer);
		const void *src = weights_part_rows(r, &a->tensors[i], st, layer, rows);
		if (!src)
			return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", st->name);
		if (!kern_all_finite(src, st->dtype, KERN_F32, (size_t)rows.count * weights_dim(p->config, a->tensors[i].columns, layer)))
			return finite_check(st, KERN_F32, p->threads, em);
		const u32 before = done;
		done += slot == SLOT_CONV || slot == SLOT_RATES ? convert_channels(p, &a->tensors[i], layer, src, st->dtype, rows.count, out + done)
					  : convert_rows(p, &a->tensors[i], layer, src, st->dtype, rows.count, out + done);
		enum err e = ERR_OK;
		if (slot == SLOT_RATE_LOG && quant_config_has(&p->config->quant, QUANT_GGUF))
			e = make_rates(st, out + before, done - before, em);
		if (!e && slot == SLOT_RATE_LOG)
			e = bound_rates(st, out + before, done - before, em);
		else if (!e && slot == SLOT_RATES) /* one tensor, of which columns have become rows */
			e = expand_rates(p, st, out, rows.count * weights_dim(p->config, a->tensors[i].columns, layer), em);
		if (e)
			return e;
	}
	if (slot == SLOT_XIELU)
		make_xielu(out);
	for (u32 i = 0; i < done && slot == SLOT_LRU_RATE; i++)
		out[i] = softplus(out[i]);
	float factor = vector_factor(p, slot);
	for (u32 i = 0; i < done && (offset != 0 || factor != 1); i++)
		out[i] = (out[i] + offset) * factor;
	return ERR_OK;
}
