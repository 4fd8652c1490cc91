/* Weights of matrix products: choice of layout and packing into it. Runs in the worker while a model loads.
 * Never owns the memory of a matrix. */
#include "kernels/cpu/quantize_priv.h"
#include "kernels/kern_priv.h"

enum {
	PACK_K = 128, /* columns of W per pass over a panel: source lines and destination stay in the L1 cache
		       */
};

static enum kern_layout layout_for(enum kern_dtype dtype, u32 caps)
{
	if (kern_dtype_group(dtype) > 0)
		return KERN_LAYOUT_GROUPS;
	return caps & (KERN_CAP_AVX2 | KERN_CAP_AVX512) ? KERN_LAYOUT_PANEL : KERN_LAYOUT_PLAIN;
}

static size_t panel_bytes(u32 k, enum kern_dtype dtype)
{
	if (kern_dtype_group(dtype) > 0)
		return kern_groups_panel_bytes(dtype, k);
	return (size_t)kern_ceil(k, kern_group(dtype)) * KERN_PANEL * sizeof(u32);
}

size_t kern_weight_bytes(u32 n, u32 k, enum kern_dtype dtype, u32 caps)
{
	if (layout_for(dtype, caps) != KERN_LAYOUT_PLAIN)
		return (size_t)kern_ceil(n, KERN_COLUMNS) * 2 * panel_bytes(k, dtype);
	return (size_t)n * k * kern_dtype_bytes(dtype);
}

void kern_weight_attach(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, const void *memory, u32 caps)
{
	ASSERT(n > 0 && k > 0 && memory && (size_t)memory % KERN_ALIGN == 0);
	*w = (struct kern_weight){.n = n,
				  .k = k,
				  .dtype = dtype,
				  .packed = layout_for(dtype, caps),
				  .caps = caps,
				  .data = memory};
}

enum err kern_weight_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory, u32 caps,
			   struct err_msg *em)
{
	if (dtype != KERN_F32 && dtype != KERN_BF16 && kern_dtype_group(dtype) == 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "weights of matrix products are float32, bfloat16, int8 or int4");
	kern_weight_attach(w, n, k, dtype, memory, caps);
	if (w->packed != KERN_LAYOUT_PLAIN && n % KERN_COLUMNS != 0) {
		size_t bytes = 2 * panel_bytes(k, dtype);
		memset((char *)memory + n / KERN_COLUMNS * bytes, 0, bytes);
	}
	return ERR_OK;
}

struct pack {
	struct kern_weight *w;
	const char *src;
	enum kern_dtype src_dtype;
	size_t src_stride;
	u32 first, rows;
};

static void pack_plain(const struct pack *p, u32 row)
{
	const struct kern_weight *w = p->w;
	char *dst = (char *)w->data + (size_t)row * w->k * kern_dtype_bytes(w->dtype);
	const char *src = p->src + (row - p->first) * p->src_stride * kern_dtype_bytes(p->src_dtype);
	kern_convert(dst, w->dtype, src, p->src_dtype, w->k);
}

/* Columns [k0, k1) of one row; k0 is even. */
static void pack_row(const struct pack *p, u32 row, u32 k0, u32 k1)
{
	const struct kern_weight *w = p->w;
	const char *src = p->src + ((row - p->first) * p->src_stride + k0) * kern_dtype_bytes(p->src_dtype);
	u16 half[PACK_K + 1];
	u32 count = k1 - k0;
	if (w->dtype == KERN_F32) {
		float row_values[PACK_K];
		float *dst = (float *)w->data + kern_panel_index(w->k, w->dtype, row, k0);
		kern_convert(row_values, KERN_F32, src, p->src_dtype, count);
		for (u32 i = 0; i < count; i++)
			dst[(size_t)i * KERN_PANEL] = row_values[i];
		return;
	}
	u16 *dst = (u16 *)w->data + kern_panel_index(w->k, w->dtype, row, k0);
	kern_convert(half, KERN_BF16, src, p->src_dtype, count);
	half[count] = 0; /* the second of the last pair when k is odd */
	for (u32 i = 0; i < count; i += 2)
		memcpy(dst + (size_t)i * KERN_PANEL, half + i, 2 * sizeof(u16));
}

/* Task: the rows that fall into one panel (or as many plain rows). */
static void pack_panel(void *arg, u32 task, u32 thread)
{
	const struct pack *p = arg;
	u32 panel = p->first / KERN_PANEL + task;
	u32 begin = panel * KERN_PANEL > p->first ? panel * KERN_PANEL : p->first;
	u32 end = kern_min((panel + 1) * KERN_PANEL, p->first + p->rows);
	(void)thread;
	if (p->w->packed == KERN_LAYOUT_PLAIN) {
		for (u32 row = begin; row < end; row++)
			pack_plain(p, row);
		return;
	}
	for (u32 k = 0; k < p->w->k; k += PACK_K)
		for (u32 row = begin; row < end; row++)
			pack_row(p, row, k, kern_min(k + PACK_K, p->w->k));
}

static quantize_fn quantize_for(u32 caps)
{
#ifdef KERN_HAVE_X86
	if ((caps & KERN_CAP_AVX2) && (caps & KERN_CAP_AVX512))
		return quantize_panel_avx512;
	if (caps & KERN_CAP_AVX2)
		return quantize_panel_avx2;
#endif
	(void)caps;
	return quantize_panel_generic;
}

static void quantize_task(void *arg, u32 task, u32 thread)
{
	const struct quantize_job *j = arg;
	(void)thread;
	quantize_for(j->w->caps)(j, j->first / KERN_PANEL + task);
}

/* Panels that rows [first, first + rows) touch. */
static u32 panels_of(u32 first, u32 rows)
{
	return rows > 0 ? (first + rows - 1) / KERN_PANEL - first / KERN_PANEL + 1 : 0;
}

void kern_weight_rows(struct kern_weight *w, u32 first, u32 rows, const void *src, enum kern_dtype src_dtype,
		      size_t src_stride, struct kern_threads *threads)
{
	struct pack p = {w, src, src_dtype, src_stride, first, rows};
	struct quantize_job q = {
		.w = w, .src = src, .src_dtype = src_dtype, .src_stride = src_stride, .first = first};
	struct kern_ctx ctx = {.threads = threads};
	ASSERT(first + rows <= w->n && kern_dtype_bytes(src_dtype) > 1);
	q.rows = rows;
	if (w->packed == KERN_LAYOUT_GROUPS)
		kern_parallel(&ctx, panels_of(first, rows), quantize_task, &q);
	else
		kern_parallel(&ctx, panels_of(first, rows), pack_panel, &p);
}

void kern_weight_rows_quantized(struct kern_weight *w, u32 first, u32 rows,
				const struct kern_quantized_rows *src, struct kern_threads *threads)
{
	struct quantize_job q = {.w = w, .ready = src, .first = first, .rows = rows};
	struct kern_ctx ctx = {.threads = threads};
	ASSERT(first + rows <= w->n && w->packed == KERN_LAYOUT_GROUPS);
	kern_parallel(&ctx, panels_of(first, rows), quantize_task, &q);
}

enum err kern_weight_pack(struct kern_weight *w, const void *src, enum kern_dtype src_dtype,
			  size_t src_stride, u32 n, u32 k, enum kern_dtype dtype, void *memory,
			  struct kern_threads *threads, u32 caps, struct err_msg *em)
{
	enum err e = kern_weight_begin(w, n, k, dtype, memory, caps, em);
	if (e != ERR_OK)
		return e;
	if (kern_dtype_bytes(src_dtype) < 2)
		return err_set(em, ERR_UNSUPPORTED, "weights are read from float32, bfloat16 or float16");
	kern_weight_rows(w, 0, n, src, src_dtype, src_stride, threads);
	return ERR_OK;
}

void kern_weight_fini(struct kern_weight *w)
{
	*w = (struct kern_weight){0};
}
