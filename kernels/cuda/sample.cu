/* One token per row, no sort of it. The same arithmetic as the CPU's (sampling_priv.h), compiled without fused
 * multiply-add, so that equal logits give the same token on both, whatever shares the batch.
 *
 * Three kernels with several blocks a row: the maximum; the weights of buckets of logits, of rows that are restricted;
 * the choice. What decides is computed in double by those few ids that a float, and an error it cannot have, leave in
 * question. One block for a whole row, which is slow, does what is rare: where scratch is missing, logits or
 * temperatures that no float can be trusted with, and more ids at the end of a set than the list has places. */
#include "kernels/cuda/row.cuh"

enum { THREADS = 1024, THREADS_SMALL = 256, VOCAB_SMALL = 4096, VOCAB_MAX = 1u << (2 * SELECT_BITS) };

struct candidate {
	double score;
	u32 id;
};

CU_INLINE bool is_better(double score, u32 id, const struct candidate *than)
{
	return score > than->score || (score == than->score && id < than->id);
}

/* The best of the warp in each of its lanes. */
CU_INLINE void warp_best(struct candidate *c)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const double score = cu_shfl_xor(c->score, i);
		const u32 id = cu_shfl_xor(c->id, i);
		if (is_better(score, id, c))
			*c = {score, id};
	}
}

/* The best of the block in each of its threads. */
CU_INLINE struct candidate block_best(struct candidate c, struct select_shared *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, warps = blockDim.x / CU_WARP;
	double *scores = (double *)s->warps;
	warp_best(&c);
	if (lane == 0) {
		scores[warp] = c.score;
		s->groups[warp] = c.id;
	}
	cu_sync(); /* all warps' best are there */
	c = {lane < warps ? scores[lane] : -INFINITY, lane < warps ? (u32)s->groups[lane] : ~0u};
	warp_best(&c);
	return c;
}

/* Noise of an id, of the four that its group of four ids has. */
CU_INLINE u32 noise_bits(const u32 noise[4], u32 id)
{
	return id % 4 == 0 ? noise[0] : id % 4 == 1 ? noise[1] : id % 4 == 2 ? noise[2] : noise[3];
}

CU_INLINE void group_noise(u32 position, u64 seed, u32 id, u32 noise[4])
{
	const u32 counter[4] = {position, id / 4, 0, 0};
	philox(counter, seed, noise);
}

CU_INLINE double noise_of(u32 position, u64 seed, u32 id, double bound, double least)
{
	u32 noise[4];
	group_noise(position, seed, id, noise);
	const u32 bits = noise_bits(noise, id);
	return bound + sampling_gumbel_bound(bits) < least ? -INFINITY : sampling_gumbel(bits);
}

/* ---------------------------------------------------------------- a block a row */

CU_INLINE double floor_of(const struct kern_sample_row *r)
{
	const double floor = r->min_p > 0 ? sampling_log((double)r->min_p) : -1.7976931348623157e308;
	return floor < 0 ? floor : 0;
}

/* The weight that a set of top_p has to reach, of the `total` there is. */
CU_INLINE u64 mass_target(const struct kern_sample_row *r, u64 total)
{
	const double target = ceil((double)r->top_p * (double)total);
	return target < 1 ? 1 : target < (double)total ? (u64)target : total;
}

/* The member of greatest scaled logit + Gumbel noise. `floor`: the least scaled logit allowed (min_p). */
CU_INLINE u32 gumbel_max(const struct select_row *row, u32 best, double floor, u64 seed, u32 position,
			 struct select_shared *s)
{
	const double widest = sampling_gumbel_bound(0xffffffffu);
	/* The likeliest token first: its score lets most others be passed over. */
	struct candidate c = {noise_of(position, seed, best, 0, -INFINITY), best};
	select_each<4>(row->logits, row->vocab, [&](u32 id, float x) {
		const double z = select_scaled(row, x);
		if (!(z >= floor) || z + widest < c.score ||
		    !select_is_member(&row->cut, sampling_key(x), id))
			return;
		const double score = z + noise_of(position, seed, id, z, c.score);
		if (is_better(score, id, &c))
			c = {score, id};
	});
	return block_best(c, s).id;
}

CU_INLINE u32 sample_row(const struct kern_sample_row *r, u32 vocab, struct select_shared *s)
{
	struct select_row row = {r->logits, vocab, 0, 0, {0, vocab - 1}};
	const u32 best = select_arg_max(r->logits, vocab, s);
	row.maximum = r->logits[best];
	if (!(r->temperature > 0) || !(row.maximum > -INFINITY))
		return best;
	if (row.maximum > 3.402823466e+38f)
		row.maximum = 3.402823466e+38f;
	row.inverse_temperature = 1.0 / (double)r->temperature;
	if (r->top_k > 0 && r->top_k < vocab)
		select_beginning(&row, true, r->top_k, s);
	if (r->top_p < 1) {
		u64 total = 0;
		select_each<4>(row.logits, vocab, [&](u32 id, float x) {
			const u32 key = sampling_key(x);
			if (key >= row.cut.key && select_is_member(&row.cut, key, id))
				total += select_weight(&row, x, false);
		});
		total = select_sum(total, s);
		select_beginning(&row, false, mass_target(r, total), s);
	}
	return gumbel_max(&row, best, floor_of(r), r->seed, r->position, s);
}

static __global__ void __launch_bounds__(THREADS)
	sample_kernel(const struct kern_sample_row *rows, u32 *tokens, u32 vocab)
{
	SHARED(struct select_shared, shared, 1);
	const struct kern_sample_row row = rows[blockIdx.x];
	const u32 token = sample_row(&row, vocab, shared);
	if (threadIdx.x == 0)
		tokens[blockIdx.x] = token;
}

/* ---------------------------------------------------------------- several blocks a row */

enum restriction { FREE, BY_COUNT, BY_MASS, BY_BOTH };

/* Where a restricted set ends: of buckets from `sure` on all ids belong to it; those between `listed` and `sure` are
 * listed, to be told apart one by one, until their weight reaches `target`. */
struct ending {
	u32 listed, sure;
	u64 target;
};

/* A row as the kernels behind the maximum see it. One for the block in shared memory: registers are scarce. */
struct choice {
	struct row row;
	struct kern_sample_row params;
	struct select_row exact; /* for select_scaled */
	enum restriction restriction;
	float inverse, scale; /* 1 / temperature; buckets a unit of the scaled logit */
	double floor;
	struct ending ending;
};

struct sample_shared {
	struct row_shared row;
	struct choice choice;
};

CU_INLINE enum restriction restriction_of(const struct kern_sample_row *r, u32 vocab)
{
	const bool count = r->top_k > 0 && r->top_k < vocab, mass = r->top_p < 1;
	return count && mass ? BY_BOTH : count ? BY_COUNT : mass ? BY_MASS : FREE;
}

constexpr float BUCKETS_UNIT = 64; /* so bucket 0 begins 32 below the maximum: those have no mass and never win */

/* False: floats are not to be trusted with such numbers. */
CU_INLINE bool is_plain(const struct kern_sample_row *r, const struct row *row)
{
	return r->temperature > 0x1p-60f && r->temperature < 0x1p60f && fabsf(row->maximum) < 0x1p100f;
}

CU_INLINE void choice_begin(const struct kern_sample_row *r, const struct row *row, struct choice *c)
{
	if (threadIdx.x == 0) {
		const double inverse = 1.0 / (double)r->temperature;
		c->row = *row;
		c->params = *r;
		c->exact = {row->logits, row->vocab, row->maximum, inverse, {0, row->vocab - 1}};
		c->restriction = restriction_of(r, row->vocab);
		c->inverse = (float)inverse;
		c->scale = c->inverse * BUCKETS_UNIT;
		c->floor = floor_of(r);
	}
	cu_sync(); /* the choice is there */
}

/* Adds the weights of this lane's part of a chunk to the block's buckets. Masses are computed four side by side, for each
 * is a long chain. */
CU_INLINE void weigh_chunk(const struct choice *c, const float x[ROW_VALUES], struct select_shared *s)
{
	const bool by_mass = c->restriction == BY_MASS;
#pragma unroll
	for (u32 first = 0; first < ROW_VALUES; first += 4) {
		u32 buckets[4];
		u64 masses[4];
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			buckets[i] = row_bucket(c->row.maximum, x[first + i], c->scale);
		if ((buckets[0] | buckets[1] | buckets[2] | buckets[3]) == 0)
			continue;
		if (by_mass) {
#pragma unroll
			for (u32 i = 0; i < 4; i++)
				masses[i] = select_weight(&c->exact, x[first + i], false);
#pragma unroll
			for (u32 i = 0; i < 4; i++)
				if (buckets[i] > 0 && masses[i] > 0)
					select_add(s, buckets[i], masses[i]);
		} else {
#pragma unroll
			for (u32 i = 0; i < 4; i++)
				if (buckets[i] > 0)
					select_count(s, buckets[i]);
		}
	}
}

static __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS_WEIGH)
	sample_weigh_kernel(const struct kern_sample_row *rows, struct row_scratch m)
{
	SHARED(struct select_shared, shared, 1);
	SHARED(struct choice, choice, 1);
	struct select_shared *s = shared;
	cu_grid_begin(); /* the chunks' best are there */
	const struct kern_sample_row r = rows[row_number(&m)];
	if (!(r.temperature > 0) || restriction_of(&r, m.vocab) == FREE)
		return;
	select_clear(s);
	struct row row = row_of(&m, r.logits);
	row_find_best(&row, s);
	if (!is_plain(&r, &row))
		return;
	choice_begin(&r, &row, choice);
	row_each(
		&choice->row, [&](float best) { return row_bucket(choice->row.maximum, best, choice->scale) > 0; },
		[&](u32, const float x[ROW_VALUES]) { weigh_chunk(choice, x, s); });
	row_add_weights(&row, s);
}

/* Into c->ending. False: the list would be too long. */
CU_INLINE bool find_ending(struct choice *c, struct select_shared *s)
{
	struct ending e = {0, 0, 0};
	u64 inside = 0;
	if (c->restriction != FREE) {
		const u64 total = row_take_weights(&c->row, s);
		inside = total;
		e.target = c->restriction == BY_MASS ? mass_target(&c->params, total) : c->params.top_k;
		if (c->restriction != BY_MASS && e.target >= total) {
			e.listed = e.sure = 1; /* what is left of the set is in bucket 0 */
		} else {
			e.listed = select_bucket(s, &e.target);
			e.sure = e.listed + 1;
			inside = c->params.top_k - e.target + select_bucket_sum(s, e.listed);
		}
	}
	if (c->restriction == BY_BOTH) {
		e.sure = SELECT_BUCKETS; /* masses are told apart one by one, too */
		e.target = c->params.top_k;
	}
	if (threadIdx.x == 0)
		c->ending = e;
	cu_sync(); /* the ending is there */
	return c->restriction != BY_BOTH || inside <= ROW_LIST;
}

/* A thread's best so far, as floats see it. */
struct pick {
	float score; /* near the exact one */
	float least; /* what loses to this by floats loses exactly */
	u32 id;	     /* ~0: none yet */
};

constexpr float MARGIN = 1e-3f; /* more than twice the error of a score in float: 5e-5 */
constexpr float WIDEST = 22.9f; /* no noise is greater */
constexpr float LN2 = 0.693147180559945f, LOG2E = 1.44269504088896f;

/* sampling_gumbel in float: near 1 from 1 - u, which has the bits that u has not. */
CU_INLINE float gumbel_near(u32 bits)
{
	const float u = ((float)bits + 0.5f) * 0x1p-32f, v = ((float)~bits + 0.5f) * 0x1p-32f;
	const float e = v < 0x1p-6f ? v * (1 + v * (0.5f + v * (0.33333334f + v * 0.25f))) : -LN2 * cu_log2(u);
	return -LN2 * cu_log2(e);
}

CU_INLINE double exact_score(const struct choice *c, u32 id, float logit)
{
	u32 noise[4];
	group_noise(c->params.position, c->params.seed, id, noise);
	return select_scaled(&c->exact, logit) + sampling_gumbel(noise_bits(noise, id));
}

/* Takes the id for the thread's best if it is. Few come here, so nothing is kept for them: noise is made again. */
CU_INLINE void pick_offer(const struct choice *c, u32 id, struct pick *p)
{
	const double z = select_scaled(&c->exact, c->row.logits[id]);
	u32 noise[4];
	group_noise(c->params.position, c->params.seed, id, noise);
	const float score = (float)z + gumbel_near(noise_bits(noise, id));
	if (!(z >= c->floor) || score < p->score - MARGIN)
		return;
	if (p->id != ~0u && score <= p->score + MARGIN) { /* only double can tell */
		struct candidate best = {-INFINITY, ~0u};
#pragma unroll 1
		for (u32 i = 0; i < 2; i++) {
			const u32 one = i == 0 ? id : p->id;
			const double exact = exact_score(c, one, c->row.logits[one]);
			if (is_better(exact, one, &best))
				best = {exact, one};
		}
		id = best.id;
	}
	*p = {fmaxf(score, p->score), fmaxf(p->least, score - MARGIN), id};
}

/* Of four neighbouring ids from `first` on, as bits: doubtful members, and sure ones that may win. */
struct found {
	u32 doubtful, sure;
};

CU_INLINE struct found look_at(const struct choice *c, u32 first, const float x[4], const struct pick *p)
{
	const struct ending *e = &c->ending;
	struct found f = {0, 0};
	float z[4], most = -INFINITY;
	u32 noise[4];
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		z[i] = (x[i] - c->row.maximum) * c->inverse;
		const u32 bucket = e->sure > 0 ? row_bucket(c->row.maximum, x[i], c->scale) : 0;
		if (bucket < e->sure) {
			z[i] = -INFINITY;
			f.doubtful |= bucket >= e->listed ? 1u << i : 0;
		}
		most = fmaxf(most, z[i]); /* a NaN is passed over */
	}
	if (!(most + WIDEST >= p->least) || most < (float)c->floor - MARGIN)
		return f;
	group_noise(c->params.position, c->params.seed, first, noise);
	/* -ln(-ln u) <= -ln(1 - u), so there is no hope beyond 1 - u = e^(z - least). */
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		if (((float)~noise[i] + 0.5f) * 0x1p-32f <= cu_exp2((z[i] - p->least) * LOG2E) * 1.001f)
			f.sure |= 1u << i;
	return f;
}

CU_INLINE void take_chunk(const struct choice *c, u32 chunk, const float x[ROW_VALUES], struct pick *p,
			  struct row_shared *s)
{
	u32 doubtful = 0, sure = 0;
#pragma unroll
	for (u32 i = 0; i < ROW_VALUES; i += 4) {
		const struct found f = look_at(c, row_id(chunk, i), x + i, p);
		doubtful |= f.doubtful << i;
		sure |= f.sure << i;
	}
#pragma unroll 1
	for (; doubtful; doubtful &= doubtful - 1) {
		const u32 id = row_id(chunk, cu_ffs(doubtful) - 1);
		row_list_add(s, row_entry(c->row.logits[id], id));
	}
#pragma unroll 1
	for (; sure; sure &= sure - 1)
		pick_offer(c, row_id(chunk, cu_ffs(sure) - 1), p);
}

/* The best of the block's sure members, exactly. */
CU_INLINE struct candidate best_of_picks(const struct choice *c, const struct pick *p, struct select_shared *s)
{
	const float top = row_entry_logit(select_max(row_entry(p->score, 0), s));
	struct candidate mine = {-INFINITY, ~0u};
	if (p->id != ~0u && p->score >= top - MARGIN)
		mine = {exact_score(c, p->id, c->row.logits[p->id]), p->id};
	return block_best(mine, s);
}

/* The best of the listed ids that belong to the set; they are in order. */
CU_INLINE struct candidate best_of_list(const struct choice *c, u32 count, struct row_shared *s)
{
	const bool by_mass = c->restriction != BY_COUNT;
	struct candidate best = {-INFINITY, ~0u};
	u64 target = c->ending.target, before = 0, total = 0;
	if (c->restriction != BY_MASS && target < count)
		count = (u32)target;
	if (c->restriction == BY_BOTH) {
#pragma unroll 1
		for (u32 i = threadIdx.x; i < count; i += ROW_THREADS)
			total += select_weight(&c->exact, row_entry_logit(s->list[i]), false);
		target = mass_target(&c->params, select_sum(total, &s->select));
	}
#pragma unroll 1
	for (u32 base = 0; base < count; base += ROW_THREADS) {
		const u32 i = base + threadIdx.x;
		const u64 entry = i < count ? s->list[i] : 0;
		const u32 id = row_entry_id(entry);
		const float logit = row_entry_logit(entry);
		bool inside = i < count;
		if (by_mass) {
			const u64 weight = inside ? select_weight(&c->exact, logit, false) : 0;
			const u64 ahead = before + row_sum_before(weight, &total, &s->select);
			inside = inside && ahead < target;
			before += total;
		}
		if (!inside || !(select_scaled(&c->exact, logit) >= c->floor))
			continue;
		const double score = exact_score(c, id, logit);
		if (is_better(score, id, &best))
			best = {score, id};
	}
	return block_best(best, &s->select);
}

constexpr u32 NO_TOKEN = ~0u, /* of this block */
	      ALONE = ~0u - 1; /* a block alone has to find it */

/* The token, in the row's last block. */
CU_INLINE u32 choose(const struct choice *c, u32 part, u32 parts, struct row_shared *s)
{
	const u32 listed = c->ending.listed;
	u32 noise[4];
	group_noise(c->params.position, c->params.seed, c->row.best, noise);
	/* The likeliest token's score lets most others be passed over. */
	struct pick p = {-INFINITY, gumbel_near(noise_bits(noise, c->row.best)) - MARGIN, ~0u};
	row_list_begin(s);
	row_each(
		&c->row,
		[&](float best) {
			return listed > 0 ? row_bucket(c->row.maximum, best, c->scale) >= listed
					  : (best - c->row.maximum) * c->inverse + WIDEST >= p.least;
		},
		[&](u32 chunk, const float x[ROW_VALUES]) { take_chunk(c, chunk, x, &p, s); });
	row_list_end(&c->row, s);
	struct candidate best = best_of_picks(c, &p, &s->select);
	if (threadIdx.x == 0) {
		c->row.state->scores[part] = best.score;
		c->row.state->ids[part] = best.id;
	}
	if (!cu_block_is_last(&c->row.state->done, parts))
		return NO_TOKEN;
	const u32 count = cu_load<u32>(&c->row.state->list_count);
	if (count > ROW_LIST)
		return ALONE;
	best = {-INFINITY, ~0u};
	if (threadIdx.x < parts)
		best = {cu_load<double>(&c->row.state->scores[threadIdx.x]), cu_load<u32>(&c->row.state->ids[threadIdx.x])};
	best = block_best(best, &s->select);
	if (count > 0) {
		row_list_sort(&c->row, count, s);
		const struct candidate listed = best_of_list(c, count, s);
		if (is_better(listed.score, listed.id, &best))
			best = listed;
	}
	return best.id;
}

CU_INLINE u32 token_of(const struct kern_sample_row *rows, const struct row_scratch *m, struct sample_shared *s)
{
	const struct kern_sample_row *r = rows + row_number(m);
	const u32 part = row_part(m);
	struct row row = row_of(m, r->logits);
	if (!(r->temperature > 0) && part > 0)
		return NO_TOKEN;
	row_find_best(&row, &s->row.select);
	if (!(r->temperature > 0) || !(row.maximum > -INFINITY))
		return part == 0 ? row.best : NO_TOKEN;
	if (!is_plain(r, &row))
		return part == 0 ? ALONE : NO_TOKEN;
	choice_begin(r, &row, &s->choice);
	if (!find_ending(&s->choice, &s->row.select))
		return part == 0 ? ALONE : NO_TOKEN;
	return choose(&s->choice, part, m->parts, &s->row);
}

static __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS_LAST)
	sample_choose_kernel(const struct kern_sample_row *rows, u32 *tokens, struct row_scratch m)
{
	SHARED(struct sample_shared, shared, 1);
	cu_grid_begin(); /* the weights are there */
	u32 token = token_of(rows, &m, shared);
	if (token == ALONE)
		token = sample_row(rows + row_number(&m), m.vocab, &shared->row.select);
	if (threadIdx.x == 0 && token != NO_TOKEN)
		tokens[row_number(&m)] = token;
}

static cudaError_t sample_together(cudaStream_t stream, const struct kern_sample_row *rows, u32 *tokens, u32 count,
				   const struct row_scratch *m)
{
	const struct row_scratch best = row_spread(m, count, ROW_BLOCKS_BEST),
				 weigh = row_spread(m, count, ROW_BLOCKS_WEIGH),
				 last = row_spread(m, count, ROW_BLOCKS_LAST);
	cudaError_t e = LAUNCH_DEPENDENT(row_best_kernel<struct kern_sample_row>, count * best.parts, ROW_THREADS, 0, stream,
					 rows, best);
	if (e == cudaSuccess)
		e = LAUNCH_DEPENDENT(sample_weigh_kernel, count * weigh.parts, ROW_THREADS, 0, stream, rows, weigh);
	if (e == cudaSuccess)
		e = LAUNCH_DEPENDENT(sample_choose_kernel, count * last.parts, ROW_THREADS, 0, stream, rows, tokens,
				     last);
	return e;
}

CUDA_OP(sample)
{
	const u32 threads = a->vocab <= VOCAB_SMALL ? (u32)THREADS_SMALL : (u32)THREADS;
	struct row_scratch m;
	if (a->vocab == 0)
		return ERR_INVALID;
	if (a->vocab > VOCAB_MAX)
		return ERR_UNSUPPORTED;
	if (a->row_count == 0)
		return ERR_OK;
	const u32 together = row_plan(ctx, a->row_count, a->vocab, &m);
	if (together == 0)
		return cuda_launched(LAUNCH(sample_kernel, a->row_count, threads, 0, cuda_stream(ctx), a->rows, a->tokens,
					    a->vocab));
	enum err e = ERR_OK;
	for (u32 i = 0; i < a->row_count && !e; i += together)
		e = cuda_launched(sample_together(cuda_stream(ctx), a->rows + i, a->tokens + i,
						  least(together, a->row_count - i), &m));
	return e;
}
