/* The batch between and around the steps' forwards: applying a diff, building the arrays that the ops read,
 * and taking in what was sampled. One block each: they touch some words per row, and their phases follow each
 * other. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 1024, WARPS = THREADS / CU_WARP, ROWS_MAX = 8192 };

/* ---------------------------------------------------------------- apply */

/* Row and parameters of an added sequence, by one thread. */
CU_INLINE void add_row(const struct kern_batch *b, const u32 *record)
{
	const u32 row = record[KERN_ADD_ROW];
	struct kern_sample_row *p = &b->params[row];
	b->known[row] = record[KERN_ADD_TOKENS];
	b->computed[row] = record[KERN_ADD_COMPUTED];
	b->prompt[row] = record[KERN_ADD_PROMPT];
	p->logits = NULL;
	p->temperature = cu_float(record[KERN_ADD_TEMPERATURE]);
	p->top_p = cu_float(record[KERN_ADD_TOP_P]);
	p->min_p = cu_float(record[KERN_ADD_MIN_P]);
	p->top_k = record[KERN_ADD_TOP_K];
	p->seed = (u64)record[KERN_ADD_SEED_HIGH] << 32 | record[KERN_ADD_SEED_LOW];
	p->position = 0;
}

static __global__ void __launch_bounds__(THREADS)
	apply_diff_kernel(const struct kern_batch b, const u32 *diff)
{
	const u32 *drops = diff + KERN_DIFF_WORDS, *grows = drops + diff[KERN_DIFF_DROPS],
		  *runs = grows + 3 * (size_t)diff[KERN_DIFF_GROWS],
		  *adds = runs + 2 * (size_t)diff[KERN_DIFF_RUNS];
	for (u32 i = threadIdx.x; i < diff[KERN_DIFF_DROPS]; i += THREADS)
		b.known[drops[i]] = b.computed[drops[i]] = 0;
	cu_sync(); /* a dropped row may be added again */
	for (u32 i = 0; i < diff[KERN_DIFF_ADDS]; i++) {
		const u32 *record = diff + adds[i], *tokens = record + KERN_ADD_WORDS,
			  *blocks = tokens + record[KERN_ADD_TOKENS];
		const size_t row = record[KERN_ADD_ROW];
		if (threadIdx.x == 0)
			add_row(&b, record);
		for (u32 j = threadIdx.x; j < record[KERN_ADD_TOKENS]; j += THREADS)
			b.tokens[row * b.token_stride + j] = tokens[j];
		for (u32 j = threadIdx.x; j < record[KERN_ADD_BLOCKS]; j += THREADS)
			b.blocks[row * b.block_stride + j] = blocks[j];
	}
	for (u32 i = threadIdx.x; i < diff[KERN_DIFF_GROWS]; i += THREADS)
		b.blocks[(size_t)grows[3 * i] * b.block_stride + grows[3 * i + 1]] = grows[3 * i + 2];
	cu_sync(); /* added rows are counted */
	for (u32 row = threadIdx.x; row < b.rows; row += THREADS)
		b.run[row] = b.known[row] - b.computed[row] == 1;
	cu_sync(); /* exceptions come on top of the rule */
	for (u32 i = threadIdx.x; i < diff[KERN_DIFF_RUNS]; i += THREADS)
		b.run[runs[2 * i]] = runs[2 * i + 1];
}

extern "C" enum err apply_diff_cuda(struct kern_ctx *ctx, const struct kern_apply_diff_args *a)
{
	return cuda_launched(LAUNCH(apply_diff_kernel, 1, THREADS, 0, cuda_stream(ctx), *a->batch, a->diff));
}

/* ---------------------------------------------------------------- inputs */

/* The sum of `x` over the threads before this one; *total over all. `shared`: [WARPS]. */
CU_INLINE u32 block_scan(u32 x, u32 *shared, u32 *total)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	u32 sum = x;
#pragma unroll
	for (u32 i = 1; i < CU_WARP; i *= 2) {
		const u32 before = cu_shfl_up(sum, i);
		sum += lane >= i ? before : 0;
	}
	if (lane == CU_WARP - 1)
		shared[warp] = sum;
	cu_sync(); /* all warps' sums are there */
	const u32 mine = shared[lane];
	const u32 before = cu_reduce_add(lane < warp ? mine : 0);
	*total = cu_reduce_add(mine);
	cu_sync(); /* everybody has read them */
	return before + sum - x;
}

/* query_start and context of all rows, and the rows that sample. `start`: query_start in shared memory. */
CU_INLINE void build_rows(const struct kern_batch *b, const struct kern_build_inputs_args *a, u32 *start,
			  u32 *shared, u32 *tokens, u32 *samples)
{
	*tokens = *samples = 0;
	for (u32 first = 0; first < b->rows; first += THREADS) {
		const u32 row = first + threadIdx.x;
		const bool inside = row < b->rows;
		const u32 run = inside ? b->run[row] : 0, end = inside ? b->computed[row] + run : 0;
		const bool sampled = run > 0 && end == b->known[row];
		u32 run_total, sample_total;
		const u32 at = *tokens + block_scan(run, shared, &run_total),
			  place = *samples + block_scan(sampled, shared, &sample_total);
		if (inside) {
			start[row] = at;
			a->query_start[row] = at;
			a->context[row] = run > 0 ? end : 0;
		}
		if (sampled && place < a->samples) {
			struct kern_sample_row p = b->params[row];
			p.logits = a->logits + (size_t)place * a->vocab;
			p.position = end - b->prompt[row];
			a->sample[place] = p;
			a->sample_index[place] = at + run - 1;
			a->sample_rows[place] = row;
		}
		*tokens += run_total;
		*samples += sample_total;
	}
	if (threadIdx.x == 0) {
		start[b->rows] = *tokens;
		a->query_start[b->rows] = *tokens;
		a->counts[0] = *tokens;
		a->counts[1] = *samples;
	}
}

/* The row that token `t` belongs to: the last that begins at or before it. */
CU_INLINE u32 row_of(const u32 *start, u32 rows, u32 t)
{
	u32 low = 0, high = rows; /* start[low] <= t < start[high] */
	while (high - low > 1) {
		const u32 middle = (low + high) / 2;
		if (start[middle] <= t)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static __global__ void __launch_bounds__(THREADS)
	build_inputs_kernel(const struct kern_batch b, const struct kern_build_inputs_args a)
{
	SHARED_DYNAMIC(u32, start); /* [rows + 1] */
	SHARED(u32, shared, WARPS);
	cu_grid_begin();
	u32 tokens, samples;
	build_rows(&b, &a, start, shared, &tokens, &samples);
	cu_sync(); /* the rows' first tokens are known */
	for (u32 t = threadIdx.x; t < a.tokens; t += THREADS) {
		if (t >= tokens) {
			a.ids[t] = a.positions[t] = 0;
			a.slots[t] = -1;
			continue;
		}
		const size_t row = row_of(start, b.rows, t);
		const u32 position = b.computed[row] + t - start[row];
		const u32 block = b.blocks[row * b.block_stride + position / b.block_size];
		a.ids[t] = b.tokens[row * b.token_stride + position];
		a.positions[t] = position;
		a.slots[t] = (i64)block * b.block_size + position % b.block_size;
	}
	for (u32 i = samples + threadIdx.x; i < a.samples; i += THREADS) {
		struct kern_sample_row p = {};
		p.logits = a.logits + (size_t)i * a.vocab;
		p.top_p = 1;
		a.sample[i] = p;
		a.sample_index[i] = a.sample_rows[i] = 0;
	}
}

extern "C" enum err build_inputs_cuda(struct kern_ctx *ctx, const struct kern_build_inputs_args *a)
{
	if (a->batch->block_size == 0)
		return ERR_INVALID;
	if (a->batch->rows > ROWS_MAX)
		return ERR_UNSUPPORTED;
	return cuda_launched(LAUNCH_DEPENDENT(build_inputs_kernel, 1, THREADS, (a->batch->rows + 1) * sizeof(u32),
				    cuda_stream(ctx), *a->batch, *a));
}

/* ---------------------------------------------------------------- commit */

static __global__ void __launch_bounds__(THREADS) commit_kernel(const struct kern_batch b, const u32 *sampled,
								const u32 *sample_rows, const u32 *counts)
{
	cu_grid_begin();
	for (u32 i = threadIdx.x; i < counts[1]; i += THREADS) {
		const size_t row = sample_rows[i];
		b.tokens[row * b.token_stride + b.known[row]] = sampled[i];
		b.known[row]++;
	}
	for (u32 row = threadIdx.x; row < b.rows; row += THREADS)
		b.computed[row] += b.run[row];
}

extern "C" enum err commit_cuda(struct kern_ctx *ctx, const struct kern_commit_args *a)
{
	return cuda_launched(LAUNCH_DEPENDENT(commit_kernel, 1, THREADS, 0, cuda_stream(ctx), *a->batch, a->sampled,
				    a->sample_rows, a->counts));
}
