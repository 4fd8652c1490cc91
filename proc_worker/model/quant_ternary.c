/* Rounds plain matrices to three values as they are read. Runs in the worker while a model loads; owns nothing between calls. */
#include "proc_worker/model/quant_ternary.h"

#include <math.h>
#include <stdlib.h>

#include "common/assert.h"
#include "proc_worker/model/finite.h"

enum { TASK_ROWS = 16, AT_ONCE = 256 };

struct magnitudes {
	const struct quant_tensor *tensor;
	double *sums; /* one a task */
};

static void read_floats(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	const size_t bytes = kern_dtype_bytes(t->values->dtype), at = (size_t)row * t->columns + first;

	kern_convert(out, KERN_F32, (const char *)t->values->data + at * bytes, t->values->dtype, count);
}

static void sum_task(void *arg, u32 task, u32 thread)
{
	const struct magnitudes *m = arg;
	const u32 begin = task * TASK_ROWS, columns = m->tensor->columns;
	const u32 end = begin + TASK_ROWS < m->tensor->rows ? begin + TASK_ROWS : m->tensor->rows;
	float x[AT_ONCE];
	double sum = 0;

	(void)thread;
	for (u32 row = begin; row < end; row++)
		for (u32 first = 0, n; first < columns; first += n) {
			n = columns - first < AT_ONCE ? columns - first : AT_ONCE;
			read_floats(m->tensor, row, first, n, x);
			for (u32 i = 0; i < n; i++)
				sum += (double)fabsf(x[i]);
		}
	m->sums[task] = sum;
}

enum err quant_ternary_begin(struct quant_tensor *t, struct kern_threads *threads, struct err_msg *em)
{
	const float least = 1e-5f; /* of a mean */
	const u32 tasks = (t->rows + TASK_ROWS - 1) / TASK_ROWS;
	const enum kern_dtype stored = t->values->dtype == KERN_BF16 ? KERN_BF16 : KERN_F32;
	struct magnitudes m = {t, malloc(tasks * sizeof(double))};
	double sum = 0;
	char element[sizeof(float)];

	ASSERT(t->at_load && !t->values->turns);
	if (!m.sums)
		return err_set(em, ERR_NO_MEMORY, "out of memory for tensor %s", t->values->name);
	if (threads)
		kern_threads_run(threads, tasks, sum_task, &m);
	for (u32 i = 0; i < tasks; i++) {
		if (!threads)
			sum_task(&m, i, 0);
		sum += m.sums[i];
	}
	free(m.sums);
	if (!isfinite(sum)) {
		const enum err e = finite_check(t->values, KERN_F32, threads, em);
		ASSERT(e);
		return e;
	}
	const float mean = (float)(sum / ((double)t->rows * t->columns)), by = 1 / (mean < least ? least : mean), value = 1 / by;
	t->ternary_by = by;
	kern_convert(element, stored, &value, KERN_F32, 1);
	kern_convert(&t->scale_times, KERN_F32, element, stored, 1);
	return ERR_OK;
}

/* -1, 0 or 1. */
static float rounded(const struct quant_tensor *t, float x)
{
	return fminf(fmaxf(rintf(x * t->ternary_by), -1), 1);
}

void quant_ternary_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	read_floats(t, row, first, count, out);
	for (u32 i = 0; i < count; i++)
		out[i] = rounded(t, out[i]) * t->scale_times;
}

void quant_ternary_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes)
{
	float x[AT_ONCE];

	for (u32 at = 0, n; at < count; at += n) {
		n = count - at < AT_ONCE ? count - at : AT_ONCE;
		read_floats(t, row, first + at, n, x);
		for (u32 i = 0; i < n; i++)
			codes[at + i] = (u8)(rounded(t, x[i]) + 1);
	}
}
