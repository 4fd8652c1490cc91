/* Weights of matrix products: choice of layout and packing into it. Runs in the worker while a model loads.
 * Never owns the memory of a matrix. */
#include <stdatomic.h>

#include "kernels/cpu/quantize_priv.h"
#include "kernels/kern_priv.h"

enum {
	PACK_K = 128, /* columns of W per pass over a panel: source lines and destination stay in the L1 cache
		       */
	PACK_ROWS = 4, /* of W at a time: as many columns of a panel are one vector of every x86 processor */
	CACHE_LINE = 64,
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
	struct quantize_job quantize; /* the same, for types in groups */
	_Atomic bool not_finite;
};

static void pack_plain(const struct pack *p, u32 row)
{
	const struct kern_weight *w = p->w;
	char *dst = (char *)w->data + (size_t)row * w->k * kern_dtype_bytes(w->dtype);
	const char *src = p->src + (row - p->first) * p->src_stride * kern_dtype_bytes(p->src_dtype);
	kern_convert(dst, w->dtype, src, p->src_dtype, w->k);
}

/* What one column of W has at one place of k: a float, or two bfloat16 values. */
typedef u32 units __attribute__((vector_size(PACK_ROWS * 4)));

/* `count` values of a row from column k0 on as the panel has them: in place where they are stored so, else in `buffer`.
 * The next pass is fetched ahead: the processor does not follow as many rows by itself. */
static const char *row_units(const struct pack *p, u32 row, u32 k0, u32 count, u32 *buffer)
{
	const struct kern_weight *w = p->w;
	size_t bytes = kern_dtype_bytes(p->src_dtype);
	const char *src = p->src + ((row - p->first) * p->src_stride + k0) * bytes;

	for (size_t i = 0; i < count * bytes && k0 + 2 * count <= w->k; i += CACHE_LINE)
		__builtin_prefetch(src + count * bytes + i);
	if (p->src_dtype == w->dtype && count % kern_group(w->dtype) == 0)
		return src;
	kern_convert(buffer, w->dtype, src, p->src_dtype, count);
	if (w->dtype == KERN_BF16)
		((u16 *)buffer)[count] = 0; /* the second of the last pair when k is odd */
	return (const char *)buffer;
}

/* PACK_ROWS rows become as many columns: [k][KERN_PANEL]. */
static void transpose(u32 *dst, const char *const *rows, u32 count)
{
	u32 k = 0;

	for (; k + PACK_ROWS <= count; k += PACK_ROWS) {
		units a, b, c, d;
		memcpy(&a, rows[0] + k * sizeof(u32), sizeof(a));
		memcpy(&b, rows[1] + k * sizeof(u32), sizeof(b));
		memcpy(&c, rows[2] + k * sizeof(u32), sizeof(c));
		memcpy(&d, rows[3] + k * sizeof(u32), sizeof(d));
		units ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
		units ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
		const units columns[PACK_ROWS] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5),
						  __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
						  __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5),
						  __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};
		for (u32 i = 0; i < PACK_ROWS; i++)
			memcpy(dst + (size_t)(k + i) * KERN_PANEL, &columns[i], sizeof(columns[i]));
	}
	for (; k < count; k++)
		for (u32 r = 0; r < PACK_ROWS; r++)
			memcpy(dst + (size_t)k * KERN_PANEL + r, rows[r] + k * sizeof(u32), sizeof(u32));
}

/* Columns [k0, k1) of `rows` rows, at most PACK_ROWS; k0 is even. */
static void pack_rows(const struct pack *p, u32 row, u32 rows, u32 k0, u32 k1)
{
	const struct kern_weight *w = p->w;
	u32 buffers[PACK_ROWS][PACK_K], values = kern_group(w->dtype), count = kern_ceil(k1 - k0, values);
	u32 *dst = (u32 *)w->data + kern_panel_index(w->k, w->dtype, row, k0) / values;
	const char *src[PACK_ROWS];

	for (u32 r = 0; r < rows; r++)
		src[r] = row_units(p, row + r, k0, k1 - k0, buffers[r]);
	if (rows == PACK_ROWS) {
		transpose(dst, src, count);
		return;
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 k = 0; k < count; k++)
			memcpy(dst + (size_t)k * KERN_PANEL + r, src[r] + k * sizeof(u32), sizeof(u32));
}

static void pack_panel(const struct pack *p, u32 begin, u32 end)
{
	if (p->w->packed == KERN_LAYOUT_PLAIN) {
		for (u32 row = begin; row < end; row++)
			pack_plain(p, row);
		return;
	}
	for (u32 k = 0; k < p->w->k; k += PACK_K)
		for (u32 row = begin; row < end; row += PACK_ROWS)
			pack_rows(p, row, kern_min(PACK_ROWS, end - row), k, kern_min(k + PACK_K, p->w->k));
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

/* Values one row behind the other, which the processor follows by itself; a panel's then come from the cache. */
static bool rows_are_finite(const struct pack *p, u32 begin, u32 end)
{
	size_t bytes = kern_dtype_bytes(p->src_dtype);
	bool finite = true;

	for (u32 row = begin; row < end; row++)
		finite &= kern_all_finite(p->src + (row - p->first) * p->src_stride * bytes, p->src_dtype, p->w->dtype, p->w->k);
	return finite;
}

/* Task: the rows that fall into one panel (or as many plain rows). */
static void rows_task(void *arg, u32 task, u32 thread)
{
	struct pack *p = arg;
	u32 panel = p->first / KERN_PANEL + task;
	u32 begin = panel * KERN_PANEL > p->first ? panel * KERN_PANEL : p->first;
	u32 end = kern_min((panel + 1) * KERN_PANEL, p->first + p->rows);

	if (!rows_are_finite(p, begin, end))
		atomic_store(&p->not_finite, true);
	if (p->w->packed == KERN_LAYOUT_GROUPS)
		quantize_task(&p->quantize, task, thread);
	else
		pack_panel(p, begin, end);
}

/* Panels that rows [first, first + rows) touch. */
static u32 panels_of(u32 first, u32 rows)
{
	return rows > 0 ? (first + rows - 1) / KERN_PANEL - first / KERN_PANEL + 1 : 0;
}

bool kern_weight_rows(struct kern_weight *w, u32 first, u32 rows, const void *src, enum kern_dtype src_dtype,
		      size_t src_stride, struct kern_threads *threads)
{
	struct pack p = {.w = w, .src = src, .src_dtype = src_dtype, .src_stride = src_stride, .first = first, .rows = rows};
	struct kern_ctx ctx = {.threads = threads};
	ASSERT(first + rows <= w->n && kern_dtype_bytes(src_dtype) > 1);
	p.quantize = (struct quantize_job){
		.w = w, .src = src, .src_dtype = src_dtype, .src_stride = src_stride, .first = first, .rows = rows};
	kern_parallel(&ctx, panels_of(first, rows), rows_task, &p);
	return !atomic_load(&p.not_finite);
}

void kern_weight_rows_quantized(struct kern_weight *w, u32 first, u32 rows,
				const struct kern_quantized_rows *src, struct kern_threads *threads)
{
	struct quantize_job q = {.w = w, .ready = src, .first = first, .rows = rows};
	struct kern_ctx ctx = {.threads = threads};
	ASSERT(first + rows <= w->n && w->packed == KERN_LAYOUT_GROUPS && w->dtype != KERN_I4_STEPS);
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
	(void)kern_weight_rows(w, 0, n, src, src_dtype, src_stride, threads);
	return ERR_OK;
}

void kern_weight_fini(struct kern_weight *w)
{
	*w = (struct kern_weight){0};
}
