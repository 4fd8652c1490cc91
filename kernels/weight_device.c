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

/* Where column `k` lies in its row: byte, and for 4 bits the shift. A lane has columns 8t .. 8t + 7 of each
 * slab of 32 of its unit. */
static size_t place_of(enum kern_dtype dtype, u32 k, u32 *shift)
{
	u32 columns = weight_device_columns(dtype), within = k % columns, slab = within / 32,
	    lane = within % 32 / 8, i = k % 8;
	size_t unit = (size_t)(k / columns) * WEIGHT_DEVICE_UNIT + lane * 16;
	*shift = 0;
	if (dtype == KERN_BF16)
		return unit + i * sizeof(u16);
	if (!weight_device_is_int4(dtype))
		return unit + slab * 8 + i;
	u32 nibble = i / 2 + i % 2 * 4; /* the lower halves of a word's pairs, then the upper ones */
	*shift = nibble % 2 * 4;
	return unit + slab * 4 + nibble / 2;
}

void kern_weight_device_rows(struct kern_weight *w, u32 first, u32 rows,
			     const struct kern_quantized_rows *src)
{
	u32 groups = weight_device_groups(w->k, w->dtype), shift;
	size_t row_bytes = weight_device_row_bytes(w->k, w->dtype);
	bool int4 = weight_device_is_int4(w->dtype);
	char *scales = (char *)(uintptr_t)w->data + w->n * row_bytes;
	char *zeros = scales + weight_device_scales_bytes(w->n, w->k, w->dtype);
	ASSERT(first + rows <= w->n && groups > 0);
	for (u32 r = 0; r < rows; r++) {
		u8 *to = (u8 *)(uintptr_t)w->data + (first + r) * row_bytes;
		size_t at = (size_t)(first + r) * groups;
		for (u32 k = 0; k < w->k; k++) {
			size_t place = place_of(w->dtype, k, &shift);
			to[place] |= (u8)(src->q[r * src->q_stride + k] << shift);
		}
		for (u32 g = 0; g < groups; g++) {
			float scale = src->scale[r * src->group_stride + g];
			float zero = src->zero ? src->zero[r * src->group_stride + g] : 8;
			if (!int4) {
				((float *)(void *)scales)[at + g] = scale;
				continue;
			}
			((u16 *)(void *)scales)[at + g] = kern_float_to_f16(scale);
			((u16 *)(void *)zeros)[at + g] = kern_float_to_f16(zero);
		}
	}
}

/* Row `n` of a packed quantized matrix, taken apart. */
static void unpack_row(const struct kern_weight *w, u32 n, u8 *q, float *scale, float *zero)
{
	for (u32 k = 0; k < w->k; k++) {
		const u8 *group = (const u8 *)w->data + kern_group_offset(w, n, k);
		const u16 *halves = (const u16 *)(const void *)group;
		u8 byte = group[kern_unit_offset(w->dtype, n, k)];
		u32 g = k / kern_dtype_group(w->dtype);
		if (weight_device_is_int4(w->dtype)) {
			q[k] = k % 8 < 4 ? byte & 15 : byte >> 4;
			scale[g] = kern_f16_to_float(halves[n % KERN_PANEL]);
			zero[g] = kern_f16_to_float(halves[KERN_PANEL + n % KERN_PANEL]);
		} else {
			q[k] = byte ^ 0x80;
			scale[g] = ((const float *)(const void *)group)[n % KERN_PANEL];
		}
	}
}

enum err kern_weight_to_device(struct kern_weight *out, const struct kern_weight *w, void *memory,
			       struct err_msg *em)
{
	enum err e = kern_weight_device_begin(out, w->n, w->k, w->dtype, memory, em);
	if (e != ERR_OK)
		return e;
	out->order = w->order;
	if (w->dtype == KERN_BF16) {
		for (u32 n = 0; n < w->n; n++)
			for (u32 k = 0; k < w->k; k++)
				((u16 *)memory)[(size_t)n * w->k + k] =
					((const u16 *)
						 w->data)[w->packed == KERN_LAYOUT_PANEL
								  ? kern_panel_index(w->k, w->dtype, n, k)
								  : (size_t)n * w->k + k];
		return ERR_OK;
	}
	u32 groups = weight_device_groups(w->k, w->dtype);
	u8 *q = malloc(w->k);
	float *scale = malloc(groups * sizeof(float)), *zero = malloc(groups * sizeof(float));
	if (q && scale && zero) {
		struct kern_quantized_rows row = {q, scale, zero, w->k, groups};
		for (u32 n = 0; n < w->n; n++) {
			unpack_row(w, n, q, scale, zero);
			kern_weight_device_rows(out, n, 1, &row);
		}
	} else {
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	}
	free(q);
	free(scale);
	free(zero);
	return e;
}
