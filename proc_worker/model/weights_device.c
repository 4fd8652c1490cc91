/* Loads weights onto a device: the same tables and readers as for the CPU, the layouts of device kernels.
 * Runs in the worker at start. Owns host memory for one quantized matrix at most, never device memory. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/finite.h"
#include "proc_worker/model/weights_device_priv.h"

struct uploader {
	struct weights_reader reader;
	const struct weights_device *device;
	size_t used;
	struct kern_weight *experts; /* the next that are free */
	void *packed, *laid_out;     /* a quantized matrix as the CPU packs it, and as the device reads it */
	size_t packed_bytes, laid_out_bytes;
	float *vector;
	u32 vector_count;
	float scale; /* of the layer; 0: none */
};

/* ---------------------------------------------------------------- bytes on their way */

static char *take(struct uploader *u, size_t bytes)
{
	char *p = u->device->memory + u->used;

	u->used += bytes;
	return p;
}

static enum err send(struct uploader *u, char *to, const void *from, size_t bytes, struct err_msg *em)
{
	const struct weights_device *d = u->device;
	enum err e = ERR_OK;

	for (size_t at = 0, n; !e && at < bytes; at += n) {
		void *room;
		n = bytes - at < d->room_bytes ? bytes - at : d->room_bytes;
		e = d->room(d->ctx, &room, em);
		if (e)
			return e;
		memcpy(room, (const char *)from + at, n);
		e = d->send(d->ctx, to + at, n, em);
	}
	return e;
}

static enum err need(void **memory, size_t *have, size_t bytes, struct err_msg *em)
{
	if (bytes <= *have)
		return ERR_OK;
	free(*memory);
	*have = 0;
	*memory = aligned_alloc(WEIGHTS_ALIGN, weights_round_up(bytes));
	if (!*memory)
		return err_set(em, ERR_NO_MEMORY,
			       "cannot allocate %zu bytes for a matrix on its way to the device", bytes);
	*have = bytes;
	return ERR_OK;
}

/* ---------------------------------------------------------------- matrices */

/* Rows of `columns` values of so many bytes become rows of `wide`, zeros behind; the last row first, since they move up. */
static void widen(void *values, size_t bytes, u32 rows, u32 columns, u32 wide)
{
	for (u32 r = rows; wide != columns && r-- > 0;) {
		char *to = (char *)values + (size_t)r * wide * bytes;
		memmove(to, (char *)values + (size_t)r * columns * bytes, columns * bytes);
		memset(to + columns * bytes, 0, (wide - columns) * bytes);
	}
}

/* Rows of one part of a bfloat16 matrix. */
static enum err send_part(struct uploader *u, const struct arch_tensor *t, u32 layer, u32 expert,
			  const struct weights_placed *s, char *to, struct err_msg *em)
{
	const struct weights_device *d = u->device;
	size_t row_bytes = s->device_columns * sizeof(u16);
	u32 rows = weights_rows(u->reader.plan, t, layer).count, most = (u32)(d->room_bytes / row_bytes);
	enum err e = ERR_OK;

	ASSERT(most > 0);
	for (u32 at = 0, n; !e && at < rows; at += n) {
		struct kern_weight piece;
		void *room;
		n = rows - at < most ? rows - at : most;
		e = d->room(d->ctx, &room, em);
		if (!e)
			e = kern_weight_begin(&piece, n, s->columns, KERN_BF16, room, 0, em);
		if (!e)
			e = weights_read_rows(&u->reader, t, layer, expert, at, n, &piece, 0, em);
		if (e)
			return e;
		widen(room, sizeof(u16), n, s->columns, s->device_columns);
		e = d->send(d->ctx, to + at * row_bytes, n * row_bytes, em);
	}
	return e;
}

static enum err send_zero_rows(struct uploader *u, char *to, size_t bytes, struct err_msg *em)
{
	const struct weights_device *d = u->device;
	void *room;

	ASSERT(bytes <= d->room_bytes * (size_t)WEIGHTS_DEVICE_COLUMNS);
	for (size_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < d->room_bytes ? bytes - at : d->room_bytes;
		enum err e = d->room(d->ctx, &room, em);
		if (e)
			return e;
		memset(room, 0, n);
		e = d->send(d->ctx, to + at, n, em);
		if (e)
			return e;
	}
	return ERR_OK;
}

/* Part after part; where the intermediate size is filled up, behind each of gate and up. */
static enum err send_plain(struct uploader *u, enum weight_slot slot, u32 layer, u32 expert,
			   const struct weights_placed *s, char *to, struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	const struct arch *a = p->config->arch;
	size_t row_bytes = s->device_columns * sizeof(u16);
	u32 zero_rows = (s->device_rows - s->rows) / weights_device_parts(p);
	enum err e = ERR_OK;

	slot = weights_source_slot(p, slot);
	for (u32 i = 0; !e && i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != slot || !weights_tensor_applies(p, t, layer))
			continue;
		e = send_part(u, t, layer, expert, s, to, em);
		to += weights_rows(p, t, layer).count * row_bytes;
		if (!e && zero_rows)
			e = send_zero_rows(u, to, zero_rows * row_bytes, em);
		to += zero_rows * row_bytes;
	}
	return e;
}

/* Packed as for the CPU, by which it is rounded in the same way, and taken apart from there. */
static enum err send_quantized(struct uploader *u, enum weight_slot slot, u32 layer, u32 expert,
			       const struct weights_placed *s, char *to, const u32 **order, struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	size_t device_bytes = kern_weight_device_bytes(s->rows, s->columns, s->type);
	size_t packed_bytes = weights_round_up(kern_weight_bytes(s->rows, s->columns, s->type, p->caps));
	size_t order_bytes = s->ordered ? s->columns * sizeof(u32) : 0;
	struct kern_weight packed, laid_out;

	enum err e = need(&u->packed, &u->packed_bytes, packed_bytes + order_bytes, em);
	if (!e)
		e = need(&u->laid_out, &u->laid_out_bytes, device_bytes, em);
	if (!e)
		e = kern_weight_begin(&packed, s->rows, s->columns, s->type, u->packed, p->caps, em);
	if (e)
		return e;
	char *host_order = (char *)u->packed + packed_bytes;
	e = weights_read_matrix(&u->reader, slot, layer, expert, &packed,
				s->ordered ? (u32 *)(void *)host_order : NULL, em);
	if (!e)
		e = kern_weight_to_device(&laid_out, &packed, u->laid_out, p->threads, em);
	if (!e)
		e = send(u, to, u->laid_out, device_bytes, em);
	if (!e && s->ordered)
		e = send(u, to + weights_device_round_up(device_bytes), host_order, order_bytes, em);
	*order = s->ordered ? (const u32 *)(const void *)(to + weights_device_round_up(device_bytes)) : NULL;
	kern_weight_fini(&packed);
	return e;
}

/* Rows of a part of an FP8 matrix, each by one thread. */
struct f8_rows {
	const struct quant_tensor *part;
	struct kern_weight *w;
	u32 from, to, count, first_column, groups;
	float *scales; /* [count][groups] */
	_Atomic bool not_finite;
};

enum { F8_TASK_ROWS = 16 };

/* E4M3 has no infinities, and two codes that are no numbers. */
static bool f8_all_finite(const u8 *codes, u32 count)
{
	u8 most = 0;

	for (u32 i = 0; i < count; i++)
		most = (codes[i] & 127) > most ? codes[i] & 127 : most;
	return most < 127;
}

static void f8_task(void *arg, u32 task, u32 thread)
{
	struct f8_rows *f = arg;
	u32 end = (task + 1) * F8_TASK_ROWS < f->count ? (task + 1) * F8_TASK_ROWS : f->count;

	(void)thread;
	for (u32 i = task * F8_TASK_ROWS; i < end; i++) {
		float *scales = f->scales + (size_t)i * f->groups;
		const u8 *codes = quant_tensor_f8_row(f->part, f->from + i, f->first_column, f->w->k, scales);
		if (!f8_all_finite(codes, f->w->k) || !kern_all_finite(scales, KERN_F32, KERN_F32, (f->w->k + 127) / 128))
			atomic_store(&f->not_finite, true);
		const struct kern_quantized_rows row = {
			.q = codes, .scale = scales, .q_stride = f->w->k, .group_stride = f->groups};
		kern_weight_device_rows(f->w, f->to + i, 1, &row);
	}
}

/* One of the rows just laid out has such a value: which. */
static enum err f8_refuse(const struct f8_rows *f, struct err_msg *em)
{
	for (u32 row = f->from; row < f->from + f->count; row++)
		for (u32 k = f->first_column; k < f->first_column + f->w->k; k++) {
			float x;
			quant_tensor_values(f->part, row, k, 1, &x);
			if (!isfinite(x) || !isfinite(quant_tensor_scale(f->part, row, k)))
				return finite_refuse_quantized(f->part, row, k, x, KERN_F32, em);
		}
	return err_set(em, ERR_FORMAT, "%s: tensor %s has values that are no finite numbers", f->part->values->file,
		       f->part->values->name);
}

/* All of this rank's, from f->to on. */
static enum err f8_part(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, struct f8_rows *f, struct err_msg *em)
{
	struct weights_range rows = weights_rows(p, t, layer);

	for (u32 at = 0; at < rows.count; at += f->count, f->to += f->count) {
		struct weights_range run = weights_file_rows(p, t, layer, (struct weights_range){rows.first + at, rows.count - at});
		u32 tasks = (run.count + F8_TASK_ROWS - 1) / F8_TASK_ROWS;
		f->from = run.first;
		f->count = run.count;
		if (p->threads)
			kern_threads_run(p->threads, tasks, f8_task, f);
		for (u32 task = 0; !p->threads && task < tasks; task++)
			f8_task(f, task, 0);
		if (f->not_finite)
			return f8_refuse(f, em);
	}
	return ERR_OK;
}

static enum err lay_out_f8(struct uploader *u, enum weight_slot slot, u32 layer, u32 expert,
			   struct kern_weight *w, struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	const struct arch *a = p->config->arch;
	u32 done = 0, groups = w->k / 128 + 1;

	enum err e = need(&u->packed, &u->packed_bytes, (size_t)w->n * groups * sizeof(float), em);
	for (u32 i = 0; !e && i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != slot || !weights_tensor_applies(p, t, layer))
			continue;
		struct quant_tensor q = weights_quant_part(p, t, layer, expert);
		struct f8_rows f = {.part = &q,
				    .w = w,
				    .to = done,
				    .first_column = weights_columns(p, t, layer).first,
				    .groups = groups,
				    .scales = u->packed};
		e = f8_part(p, t, layer, &f, em);
		done += weights_rows(p, t, layer).count;
	}
	return e;
}

static enum err send_f8(struct uploader *u, enum weight_slot slot, u32 layer, u32 expert,
			const struct weights_placed *s, char *to, struct err_msg *em)
{
	size_t bytes = kern_weight_device_bytes(s->rows, s->columns, s->type);
	struct kern_weight w;

	enum err e = need(&u->laid_out, &u->laid_out_bytes, bytes, em);
	if (!e)
		e = kern_weight_device_begin(&w, s->rows, s->columns, s->type, u->laid_out, em);
	if (!e)
		e = lay_out_f8(u, weights_source_slot(u->reader.plan, slot), layer, expert, &w, em);
	return e ? e : send(u, to, u->laid_out, bytes, em);
}

/* `w` as placed, at `memory`. The layout's number is that of the least matrix of it. */
static enum err describe(struct kern_weight *w, const struct weights_placed *s, const void *memory, struct err_msg *em)
{
	_Alignas(64) u16 row[WEIGHTS_DEVICE_COLUMNS];
	struct kern_weight shape;
	enum err e = kern_weight_device_begin(&shape, 1, WEIGHTS_DEVICE_COLUMNS, KERN_BF16, row, em);

	if (!e)
		*w = (struct kern_weight){.n = s->device_rows, .k = s->device_columns, .dtype = s->type, .packed = shape.packed, .data = memory};
	return e;
}

static enum err upload_matrix(struct uploader *u, enum weight_slot slot, u32 layer, u32 expert,
			      const struct weights_placed *s, struct kern_weight *w, const void *embed,
			      struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	char *memory = take(u, weights_device_slot_bytes(p, slot, s));
	const u32 *order = NULL;

	enum err e = describe(w, s, memory, em);
	if (e)
		return e;
	if (weights_device_is_shared(p, slot, s))
		w->data = embed;
	else if (s->type == KERN_BF16)
		e = send_plain(u, slot, layer, expert, s, memory, em);
	else if (s->type == KERN_F8E4M3)
		e = send_f8(u, slot, layer, expert, s, memory, em);
	else
		e = send_quantized(u, slot, layer, expert, s, memory, &order, em);
	w->order = order;
	return e;
}

static enum err upload_experts(struct uploader *u, enum weight_slot slot, u32 layer, struct kern_weight **out,
			       struct err_msg *em)
{
	struct weights_placed s = weights_device_place(u->reader.plan, slot, layer);
	u32 count = u->reader.plan->config->experts;
	enum err e = ERR_OK;

	*out = u->experts;
	u->experts += count;
	for (u32 x = 0; !e && x < count; x++)
		e = upload_matrix(u, slot, layer, x, &s, &(*out)[x], NULL, em);
	return e;
}

/* Read a matrix of a head at a time, as the CPU's are: they are small, and in bfloat16 devices hold them in the same order. */
static enum err upload_heads(struct uploader *u, enum weight_slot slot, u32 layer, struct kern_weight **out, struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	const struct weights_placed s = weights_device_place(p, slot, layer);
	const size_t bytes = kern_weight_device_bytes(s.rows, s.columns, s.type);
	enum err e = need(&u->packed, &u->packed_bytes, kern_weight_bytes(s.rows, s.columns, s.type, 0), em);

	*out = u->experts;
	u->experts += p->shard->heads;
	for (u32 h = 0; !e && h < p->shard->heads; h++) {
		struct kern_weight *w = &(*out)[h], host;
		char *memory = take(u, weights_device_slot_bytes(p, slot, &s));
		e = describe(w, &s, memory, em);
		if (!e)
			e = kern_weight_begin(&host, s.rows, s.columns, s.type, u->packed, 0, em);
		if (!e)
			e = weights_read_head(&u->reader, slot, layer, h, &host, em);
		if (!e)
			e = send(u, memory, u->packed, bytes, em);
	}
	return e;
}

/* ---------------------------------------------------------------- the rest */

static enum err upload_vector(struct uploader *u, enum weight_slot slot, u32 layer, const float **out,
			      struct err_msg *em)
{
	struct weights_placed s = weights_device_place(u->reader.plan, slot, layer);
	u32 parts = weights_device_parts(u->reader.plan), rows = s.rows / parts, wide = s.device_rows / parts;
	char *memory = take(u, weights_device_slot_bytes(u->reader.plan, slot, &s));
	size_t bytes = (size_t)s.device_rows * s.device_columns * sizeof(float), have = u->vector_count * sizeof(float);
	void *values = u->vector;

	enum err e = need(&values, &have, bytes, em);
	u->vector = values;
	u->vector_count = (u32)(have / sizeof(float));
	if (!e)
		e = weights_read_vector(&u->reader, slot, layer, u->vector, em);
	if (e)
		return e;
	for (u32 i = parts; s.device_rows != s.rows && i-- > 0;) { /* the last one first: they move up */
		memmove(u->vector + i * wide, u->vector + i * rows, rows * sizeof(float));
		memset(u->vector + i * wide + rows, 0, (wide - rows) * sizeof(float));
	}
	widen(u->vector, sizeof(float), s.rows, s.columns, s.device_columns);
	*out = (const float *)(const void *)memory;
	if (slot == SLOT_LAYER_SCALE)
		u->scale = u->vector[0];
	return send(u, memory, u->vector, bytes, em);
}

static enum err upload_table(struct uploader *u, enum weight_slot slot, const void **table, enum kern_dtype *dtype,
			     struct err_msg *em)
{
	struct weights_placed s = weights_device_place(u->reader.plan, slot, 0);
	char *memory = take(u, weights_device_slot_bytes(u->reader.plan, slot, &s));

	*table = memory;
	*dtype = KERN_BF16;
	return send_plain(u, slot, 0, 0, &s, memory, em);
}

static enum err upload_slot(struct uploader *u, enum weight_slot slot, u32 layer, struct model_weights *w,
			    struct err_msg *em)
{
	char *base = slot >= SLOT_LAYER_FIRST ? (char *)&w->layers[layer] : (char *)w;
	void *member = base + WEIGHTS_SLOTS[slot].offset;
	struct weights_placed s;
	u32 rows, columns;

	weights_slot_shape(u->reader.plan, slot, layer, &rows, &columns);
	if (rows == 0)
		return ERR_OK;
	switch (WEIGHTS_SLOTS[slot].kind) {
	case SLOT_IS_EMBED:
		return upload_table(u, slot, &w->embed, &w->embed_dtype, em);
	case SLOT_IS_TABLE:
		return slot == SLOT_POSITIONS ? upload_table(u, slot, &w->positions, &w->positions_dtype, em)
					      : upload_table(u, slot, &w->inputs_embed, &w->inputs_embed_dtype, em);
	case SLOT_IS_MATRIX:
		s = weights_device_place(u->reader.plan, slot, layer);
		return upload_matrix(u, slot, layer, 0, &s, member, w->embed, em);
	case SLOT_IS_EXPERTS:
		return upload_experts(u, slot, layer, member, em);
	case SLOT_IS_NORM:
	case SLOT_IS_BIAS:
		return upload_vector(u, slot, layer, member, em);
	case SLOT_IS_HEADS:
		return upload_heads(u, slot, layer, member, em);
	}
	return ERR_OK;
}

static enum err upload_all(struct uploader *u, struct model_weights *w, struct err_msg *em)
{
	const struct weights_plan *p = u->reader.plan;
	enum err e = upload_slot(u, SLOT_EMBED, 0, w, em);

	if (!e)
		e = upload_slot(u, SLOT_POSITIONS, 0, w, em);
	if (!e)
		e = upload_slot(u, SLOT_FINAL_NORM, 0, w, em);
	if (!e)
		e = upload_slot(u, SLOT_FINAL_NORM_BIAS, 0, w, em);
	if (!e)
		e = upload_slot(u, SLOT_LM_HEAD_BIAS, 0, w, em);
	for (u32 slot = SLOT_INPUTS_EMBED; !e && slot < SLOT_LAYER_FIRST; slot++)
		e = upload_slot(u, slot, 0, w, em);
	for (u32 i = 0; !e && i < w->layer_count; i++) {
		u->scale = 0;
		for (u32 slot = SLOT_LAYER_FIRST; !e && slot < SLOT_COUNT; slot++)
			e = upload_slot(u, slot, i, w, em);
		w->layers[i].scale_value = u->scale;
		if (p->progress)
			p->progress(p->progress_ctx, (i + 1.0) / (w->layer_count + 1));
	}
	return e ? e : upload_slot(u, SLOT_LM_HEAD, 0, w, em);
}

enum err model_weights_upload(struct model_weights *w, const struct weights_plan *p,
			      const struct weights_device *d, struct err_msg *em)
{
	struct uploader u = {.reader.plan = p, .device = d};

	*w = (struct model_weights){.layer_count = p->config->layers};
	enum err e = model_weights_device_bytes(p, &w->bytes, em);
	if (e)
		return e;
	w->expert_count = 2 * (p->config->experts + (p->config->arch->latent ? p->shard->heads : 0)) * w->layer_count;
	w->layers = calloc(w->layer_count, sizeof(*w->layers));
	w->experts = calloc(w->expert_count + 1, sizeof(*w->experts));
	u.experts = w->experts;
	e = w->layers && w->experts ? upload_all(&u, w, em) : err_set(em, ERR_NO_MEMORY, "out of memory");
	ASSERT(e || u.used == w->bytes);
	weights_reader_fini(&u.reader);
	free(u.packed);
	free(u.laid_out);
	free(u.vector);
	if (e)
		model_weights_fini(w);
	return e;
}
