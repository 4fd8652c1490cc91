/* Weights of matrix products as device kernels read them (layout KERN_LAYOUT_DEVICE, described in
 * kern_priv.h). Runs in the worker while a model loads, before the upload. */
#include <stdlib.h>

#include "kernels/kern_priv.h"
#include "kernels/weight_device_priv.h"

size_t kern_weight_device_bytes(u32 n, u32 k, enum kern_dtype dtype)
{
	if (weight_device_columns(dtype) == 0)
		return 0;
	return n * weight_device_row_bytes(k, dtype) +
	       weight_device_scales_bytes(n, k, dtype) * (weight_device_is_int4(dtype) ? 2 : 1);
}

enum err kern_weight_device_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory,
				  struct err_msg *em)
{
	if (kern_weight_device_bytes(n, k, dtype) == 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "weights on devices are bfloat16, float8 (e4m3), int8 or int4, not %s",
			       kern_dtype_name(dtype));
	if (k % 32 != 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "a weight of %u columns: on devices they are a multiple of 32", k);
	ASSERT(n > 0 && k > 0 && memory && (size_t)memory % KERN_ALIGN == 0);
	*w = (struct kern_weight){
		.n = n, .k = k, .dtype = dtype, .packed = KERN_LAYOUT_DEVICE, .data = memory};
	memset(memory, 0, kern_weight_device_bytes(n, k, dtype));
	return ERR_OK;
}

/* Columns k .. k + 7 of a row, k a multiple of 8: a lane's part of a slab of 32. `to`: the row. */
static void put_eight(u8 *to, enum kern_dtype dtype, u32 k, const u8 *q)
{
	u32 columns = weight_device_columns(dtype), within = k % columns, slab = within / 32,
	    lane = within % 32 / 8;
	u8 *unit = to + (size_t)(k / columns) * WEIGHT_DEVICE_UNIT + lane * 16;

	if (!weight_device_is_int4(dtype)) {
		memcpy(unit + slab * 8, q, 8);
		return;
	}
	/* The lower halves of a word's pairs, then the upper ones. */
	const u8 halves[4] = {(u8)(q[0] | q[2] << 4), (u8)(q[4] | q[6] << 4), (u8)(q[1] | q[3] << 4),
			      (u8)(q[5] | q[7] << 4)};
	memcpy(unit + slab * 4, halves, sizeof(halves));
}

void kern_weight_device_rows(struct kern_weight *w, u32 first, u32 rows,
			     const struct kern_quantized_rows *src)
{
	u32 groups = weight_device_groups(w->k, w->dtype);
	size_t row_bytes = weight_device_row_bytes(w->k, w->dtype);
	bool int4 = weight_device_is_int4(w->dtype);
	char *scales = (char *)(uintptr_t)w->data + w->n * row_bytes;
	char *zeros = scales + weight_device_scales_bytes(w->n, w->k, w->dtype);
	ASSERT(first + rows <= w->n && groups > 0);
	for (u32 r = 0; r < rows; r++) {
		u8 *to = (u8 *)(uintptr_t)w->data + (first + r) * row_bytes;
		for (u32 k = 0; k < w->k; k += 8)
			put_eight(to, w->dtype, k, src->q + r * src->q_stride + k);
		for (u32 g = 0; g < groups; g++) {
			float scale = src->scale[r * src->group_stride + g];
			float zero = src->zero ? src->zero[r * src->group_stride + g] : 8;
			size_t at = (size_t)g * weight_device_scale_rows(w->n) + first + r;
			if (!int4) {
				((float *)(void *)scales)[at] = scale;
				continue;
			}
			((u16 *)(void *)scales)[at] = kern_float_to_f16(scale);
			((u16 *)(void *)zeros)[at] = kern_float_to_f16(zero);
		}
	}
}

/* Row `n` of a packed quantized matrix, taken apart. */
static void unpack_row(const struct kern_weight *w, u32 n, u8 *q, float *scale, float *zero)
{
	u32 width = kern_dtype_group(w->dtype), values = kern_unit_values(w->dtype);
	bool int4 = weight_device_is_int4(w->dtype);

	for (u32 first = 0, g = 0; first < w->k; first += width, g++) {
		const u8 *group = (const u8 *)w->data + kern_group_offset(w, n, first);
		const u16 *halves = (const u16 *)(const void *)group;
		const u8 *bytes = group + kern_unit_offset(w->dtype, n, 0);
		u32 end = kern_min(first + width, w->k);
		scale[g] = int4 ? kern_f16_to_float(halves[n % KERN_PANEL])
				: ((const float *)(const void *)group)[n % KERN_PANEL];
		zero[g] = int4 ? kern_f16_to_float(halves[KERN_PANEL + n % KERN_PANEL]) : 0;
		/* Four bytes of a unit are this row's; k is a multiple of what they hold. */
		for (u32 k = first; k < end; k += values, bytes += KERN_GROUP_UNIT)
			for (u32 i = 0; i < 4; i++) {
				q[k + i] = int4 ? bytes[i] & 15 : bytes[i] ^ 0x80;
				if (int4)
					q[k + 4 + i] = bytes[i] >> 4;
			}
	}
}

/* Rows on their way from one layout to the other; a buffer a thread. */
struct transfer {
	struct kern_weight *to;
	const struct kern_weight *from;
	u32 groups, rows;      /* rows of a task */
	u8 *q;		       /* [threads][k] */
	float *scales, *zeros; /* [threads][groups] */
};

static void transfer_plain(const struct transfer *t, u32 n)
{
	const struct kern_weight *w = t->from;
	u16 *to = (u16 *)(uintptr_t)t->to->data + (size_t)n * w->k;

	for (u32 k = 0; k < w->k; k++)
		to[k] = ((const u16 *)w->data)[w->packed == KERN_LAYOUT_PANEL
						       ? kern_panel_index(w->k, w->dtype, n, k)
						       : (size_t)n * w->k + k];
}

static void transfer_task(void *arg, u32 task, u32 thread)
{
	const struct transfer *t = arg;
	u32 end = kern_min((task + 1) * t->rows, t->to->n), k = t->from->k;
	u8 *q = t->q + (size_t)thread * k;
	float *scale = t->scales + (size_t)thread * t->groups, *zero = t->zeros + (size_t)thread * t->groups;
	const struct kern_quantized_rows row = {q, scale, zero, k, t->groups};

	for (u32 n = task * t->rows; n < end; n++) {
		if (t->from->dtype == KERN_BF16) {
			transfer_plain(t, n);
			continue;
		}
		unpack_row(t->from, n, q, scale, zero);
		kern_weight_device_rows(t->to, n, 1, &row);
	}
}

enum err kern_weight_to_device(struct kern_weight *out, const struct kern_weight *w, void *memory,
			       struct kern_threads *threads, struct err_msg *em)
{
	struct kern_ctx ctx = {.threads = threads};
	struct transfer t = {.to = out,
			     .from = w,
			     .groups = weight_device_groups(w->k, w->dtype),
			     .rows = kern_rows_a_task(w->k)};
	size_t count = kern_thread_count(&ctx);
	enum err e = kern_weight_device_begin(out, w->n, w->k, w->dtype, memory, em);
	if (e != ERR_OK)
		return e;
	out->order = w->order;
	t.q = malloc(count * w->k);
	t.scales = malloc(count * (t.groups + 1) * sizeof(float));
	t.zeros = malloc(count * (t.groups + 1) * sizeof(float));
	if (t.q && t.scales && t.zeros)
		kern_parallel(&ctx, kern_ceil(w->n, t.rows), transfer_task, &t);
	else
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	free(t.q);
	free(t.scales);
	free(t.zeros);
	return e;
}
