/* Brings rows of a quantized checkpoint's matrix into a weight, some at a time. Runs in the worker while a
 * model loads; its buffer lives for one matrix. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "proc_worker/model/finite.h"
#include "proc_worker/model/quant_ternary.h"

enum { SLICE_ROWS = 128, TASK_ROWS = 8, GROUP_LEAST = 32 };

/* Rows on their way: in the checkpoint's codes, or as values that the weight rounds anew. */
struct slice {
	const struct quant_tensor *tensor;
	enum kern_dtype type; /* KERN_F32: values */
	u32 row, rows, first, count, groups;
	const u32 *order;
	u8 *codes;	       /* [SLICE_ROWS][count] */
	float *values;	       /* [SLICE_ROWS][count] */
	float *scales, *zeros; /* [SLICE_ROWS][groups] */
	_Atomic bool not_finite; /* one of the scales */
};

/* Values are looked at when they are rounded anew. */
static void slice_row(struct slice *s, u32 i, bool has_codes)
{
	size_t at = (size_t)i * s->count, groups = (size_t)i * s->groups;

	if (s->type == KERN_F32) {
		quant_tensor_values(s->tensor, s->row + i, s->first, s->count, s->values + at);
		return;
	}
	quant_tensor_codes(s->tensor, s->type, s->row + i, s->first, s->count, s->order, has_codes ? NULL : s->codes + at,
			   s->scales + groups, s->zeros + groups);
	u32 width = kern_dtype_group(s->type);
	if (!kern_all_finite(s->scales + groups, KERN_F32, KERN_F32, (s->count + width - 1) / width))
		atomic_store(&s->not_finite, true);
}

/* Eight rows. */
static void slice_task(void *arg, u32 task, u32 thread)
{
	struct slice *s = arg;
	u32 begin = task * TASK_ROWS, end = begin + TASK_ROWS < s->rows ? begin + TASK_ROWS : s->rows;
	bool has_codes = s->type != KERN_F32 && !s->order && end - begin == TASK_ROWS &&
			 quant_tensor_eight_codes(s->tensor, s->row + begin, s->first, s->count,
						  s->codes + (size_t)begin * s->count);

	(void)thread;
	for (u32 i = begin; i < end; i++)
		slice_row(s, i, has_codes);
}

static void slice_fill(struct slice *s, u32 row, u32 rows, struct kern_threads *threads)
{
	u32 tasks = (rows + TASK_ROWS - 1) / TASK_ROWS;

	s->row = row;
	s->rows = rows;
	if (threads)
		kern_threads_run(threads, tasks, slice_task, s);
	for (u32 i = 0; i < tasks && !threads; i++)
		slice_task(s, i, 0);
}

enum { MXFP4_BLOCK = 32, E8M0_NAN = 255, E8M0_LARGE = 253 /* with one from here on some values of a block overflow */ };

/* Block `block` of a row has such a scale. */
static enum err check_block(const struct quant_tensor *t, u32 row, u32 block, u32 scale, struct err_msg *em)
{
	float values[MXFP4_BLOCK];

	if (scale == E8M0_NAN)
		return err_set(em, ERR_FORMAT, "%s: tensor %s: the scale of block %u of row %u is 255, which is no number in MXFP4",
			       t->scales->file, t->scales->name, block, row);
	quant_tensor_values(t, row, block * MXFP4_BLOCK, MXFP4_BLOCK, values);
	for (u32 i = 0; i < MXFP4_BLOCK; i++)
		if (!isfinite(values[i]))
			return err_set(em, ERR_FORMAT,
				       "%s: tensor %s: with the scale of block %u of row %u, 2^%u, input %u is too large for a float",
				       t->scales->file, t->scales->name, block, row, scale - 127, block * MXFP4_BLOCK + i);
	return ERR_OK;
}

/* Whether all values are numbers, by the scales, of which nearly all are small enough. */
static enum err check_finite(const struct quant_tensor *t, u32 first_row, u32 rows, u32 first, u32 count, struct err_msg *em)
{
	u32 begin = first / MXFP4_BLOCK, end = (first + count + MXFP4_BLOCK - 1) / MXFP4_BLOCK;

	if (t->format != QUANT_MXFP4)
		return ERR_OK;
	for (u32 row = first_row; row < first_row + rows; row++) {
		const u8 *scales = (const u8 *)t->scales->data + (size_t)row * (t->columns / MXFP4_BLOCK);
		u8 most = 0;
		for (u32 b = begin; b < end; b++)
			most = scales[b] > most ? scales[b] : most;
		for (u32 b = begin; b < end && most >= E8M0_LARGE; b++) {
			enum err e = scales[b] < E8M0_LARGE ? ERR_OK : check_block(t, row, b, scales[b], em);
			if (e)
				return e;
		}
	}
	return ERR_OK;
}

/* The slice has a value or a scale that is not finite in `type`: which. */
static enum err refuse(const struct slice *s, enum kern_dtype type, struct err_msg *em)
{
	for (u32 i = 0; i < s->rows; i++)
		for (u32 k = 0; k < s->count; k++) {
			bool values = s->type == KERN_F32;
			u32 column = s->order ? s->order[k] : s->first + k;
			float x = values ? s->values[(size_t)i * s->count + k] : quant_tensor_scale(s->tensor, s->row + i, column);
			if (!kern_all_finite(&x, KERN_F32, values ? type : KERN_F32, 1))
				return finite_refuse_quantized(s->tensor, s->row + i, column, x, type, em);
		}
	return err_set(em, ERR_FORMAT, "%s: tensor %s has scales that are no finite numbers", s->tensor->scales->file,
		       s->tensor->scales->name);
}

enum err quant_tensor_load(struct kern_weight *w, u32 to, const struct quant_tensor *t, u32 first_row,
			   u32 rows, u32 first_column, struct kern_threads *threads, struct err_msg *em)
{
	enum kern_dtype type = quant_tensor_holds(t, w->dtype) ? w->dtype : quant_tensor_type(t, first_column, w->k);
	bool as_is = type != KERN_F32 && type == w->dtype && (w->order != NULL) == quant_tensor_is_ordered(t);
	struct slice s = {.tensor = t,
			  .type = as_is ? type : KERN_F32,
			  .first = first_column,
			  .count = w->k,
			  .groups = w->k / GROUP_LEAST + 1,
			  .order = w->order};
	size_t values = (size_t)SLICE_ROWS * s.count, groups = (size_t)SLICE_ROWS * s.groups;
	struct quant_tensor begun = *t;
	enum err e = check_finite(t, first_row, rows, first_column, w->k, em);
	if (!e && t->at_load) {
		e = quant_ternary_begin(&begun, threads, em);
		s.tensor = &begun;
		if (!e && as_is && !quant_ternary_is_half(begun.scale_times))
			e = err_set(em, ERR_UNSUPPORTED, "%s: tensor %s has a mean magnitude of %g, which 4 bits do not hold; load it without --quantization int4", t->values->file,
				    t->values->name, (double)begun.scale_times);
	}
	float *memory = e ? NULL : malloc((values + 2 * groups) * sizeof(float));

	if (e)
		return e;
	if (!memory)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", t->values->name);
	s.scales = memory;
	s.zeros = memory + groups;
	s.values = memory + 2 * groups;
	s.codes = (u8 *)s.values;
	const struct kern_quantized_rows ready = {.q = s.codes,
						  .scale = s.scales,
						  .zero = w->dtype == KERN_I8 ? NULL : s.zeros,
						  .q_stride = s.count,
						  .group_stride = s.groups};
	for (u32 at = 0; !e && at < rows; at += SLICE_ROWS) {
		u32 n = rows - at < SLICE_ROWS ? rows - at : SLICE_ROWS;
		slice_fill(&s, first_row + at, n, threads);
		if (as_is)
			kern_weight_rows_quantized(w, to + at, n, &ready, threads);
		bool finite = as_is ? !s.not_finite : kern_weight_rows(w, to + at, n, s.values, KERN_F32, s.count, threads);
		e = finite ? ERR_OK : refuse(&s, w->dtype, em);
	}
	free(memory);
	return e;
}

enum err quant_tensor_expand(void *out, enum kern_dtype type, const struct quant_tensor *t, u32 first_row, u32 rows,
			     struct kern_threads *threads, struct err_msg *em)
{
	struct slice s = {.tensor = t, .type = KERN_F32, .count = t->columns};
	const size_t row_bytes = (size_t)t->columns * kern_dtype_bytes(type);
	enum err e = ERR_OK;

	s.values = malloc((size_t)SLICE_ROWS * s.count * sizeof(float));
	if (!s.values)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", t->values->name);
	for (u32 at = 0; !e && at < rows; at += SLICE_ROWS) {
		u32 n = rows - at < SLICE_ROWS ? rows - at : SLICE_ROWS;
		slice_fill(&s, first_row + at, n, threads);
		if (!kern_all_finite(s.values, KERN_F32, type, (size_t)n * s.count))
			e = refuse(&s, type, em);
		kern_convert((char *)out + at * row_bytes, type, s.values, KERN_F32, (size_t)n * s.count);
	}
	free(s.values);
	return e;
}
