/* Finds values that are no finite numbers. Runs in the worker while a model or an adapter loads; owns nothing. Matrices are looked
 * at while they are packed (kern_weight_rows); here is what is read otherwise, and where in a tensor the value was. */
#include "proc_worker/model/finite.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"

enum { PIECE = 1 << 16, PLACE_BYTES = 128 };

struct search {
	const struct st_tensor *tensor;
	enum kern_dtype as;
	u64 first, end;	 /* values */
	_Atomic u64 bad; /* the first piece with such a value; UINT64_MAX: none */
};

static const char *value_at(const struct st_tensor *t, u64 i)
{
	const u64 row_bytes = t->turns ? t->bytes / t->shape[0] : 0, at = i * kern_dtype_bytes(t->dtype);

	return t->turns ? (const char *)safetensors_row(t, at / row_bytes, row_bytes) + at % row_bytes : (const char *)t->data + at;
}

static bool all_finite(const struct search *s, u64 first, u64 count)
{
	if (!s->tensor->turns)
		return kern_all_finite(value_at(s->tensor, first), s->tensor->dtype, s->as, (size_t)count);
	for (u64 i = 0; i < count; i++)
		if (!kern_all_finite(value_at(s->tensor, first + i), s->tensor->dtype, s->as, 1))
			return false;
	return true;
}

static void search_task(void *arg, u32 task, u32 thread)
{
	struct search *s = arg;
	u64 first = s->first + (u64)task * PIECE, left = s->end - first, bad = atomic_load(&s->bad);

	(void)thread;
	if (task >= bad || all_finite(s, first, left < PIECE ? left : PIECE))
		return;
	while (task < bad && !atomic_compare_exchange_weak(&s->bad, &bad, task))
		;
}

static void print_place(char *out, const struct st_tensor *t, u64 i)
{
	u64 place[ST_DIMS_MAX];

	for (u32 d = t->dims; d-- > 0; i /= t->shape[d])
		place[d] = i % t->shape[d];
	safetensors_print_shape(out, PLACE_BYTES, place, t->dims);
}

static enum err refuse(const struct st_tensor *t, const char *place, float value, enum kern_dtype as, struct err_msg *em)
{
	if (isfinite(value))
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the value %g at %s, which is too large for %s", t->file, t->name,
			       (double)value, place, kern_dtype_name(as));
	return err_set(em, ERR_FORMAT,
		       "%s: tensor %s has the value %s at %s; all must be finite numbers: the file is damaged, or training or "
		       "converting the model went wrong",
		       t->file, t->name, isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity", place);
}

enum err finite_check_rows(const struct st_tensor *t, u64 first, u64 rows, enum kern_dtype as, struct kern_threads *threads,
			   struct err_msg *em)
{
	u64 count = t->bytes / kern_dtype_bytes(t->dtype), row = t->dims ? count / t->shape[0] : 1;
	struct search s = {.tensor = t, .as = as, .first = first * row, .end = (first + rows) * row, .bad = UINT64_MAX};
	char place[PLACE_BYTES];
	float value;

	ASSERT(t->usable && s.end <= count);
	u32 tasks = (u32)((rows * row + PIECE - 1) / PIECE);
	if (threads)
		kern_threads_run(threads, tasks, search_task, &s);
	for (u32 i = 0; i < tasks && !threads; i++)
		search_task(&s, i, 0);
	if (s.bad == UINT64_MAX)
		return ERR_OK;
	u64 at = s.first + s.bad * PIECE;
	while (kern_all_finite(value_at(t, at), t->dtype, as, 1))
		at++;
	ASSERT(at < s.end);
	kern_convert(&value, KERN_F32, value_at(t, at), t->dtype, 1);
	print_place(place, t, at);
	return refuse(t, place, value, as, em);
}

enum err finite_check(const struct st_tensor *t, enum kern_dtype as, struct kern_threads *threads, struct err_msg *em)
{
	return finite_check_rows(t, 0, t->dims ? t->shape[0] : 1, as, threads, em);
}

enum err finite_refuse_quantized(const struct quant_tensor *t, u32 row, u32 column, float value, enum kern_dtype as, struct err_msg *em)
{
	float scale = quant_tensor_scale(t, row, column);
	char place[PLACE_BYTES];

	if (!isfinite(scale) && t->scales) {
		const struct quant_nested *n = &t->nested;
		bool table = n->scales && !kern_all_finite(n->table->data, KERN_F32, KERN_F32, n->table->bytes / sizeof(float));
		snprintf(place, sizeof(place), "the scale of [%" PRIu32 ", %" PRIu32 "]", row, column);
		return refuse(table ? n->table : n->scales ? n->scales : t->scales, place, scale, as, em);
	}
	snprintf(place, sizeof(place), "[%" PRIu32 ", %" PRIu32 "]", row, column);
	return refuse(t->values, place, value, as, em);
}
