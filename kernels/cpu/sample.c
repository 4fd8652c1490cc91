/* Sampling for AVX2: the reference's arithmetic and the reference's tokens, 64 ids at a
 * time. Chunks whose best logit cannot matter are passed over; the loops over a chunk are written for the
 * compiler to make vectors of. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"
#include "kernels/sampling_priv.h"

enum {
	CHUNK = 64,
	RADIX_BITS = 11,
	BUCKETS = 1u << RADIX_BITS,
	LEVELS = 3, /* 11 + 11 + 10 bits of a key */
};

/* The members of a restricted set: keys above `key`, and those equal to it up to id `last_id`. */
struct cut {
	u32 key, last_id;
};

struct row {
	const float *logits;
	u32 vocab;
	u32 best;      /* arg-max */
	float maximum; /* its logit, finite */
	double inverse_temperature;
	struct cut cut;
};

static inline bool is_member(const struct cut *cut, u32 key, u32 id)
{
	return key > cut->key || (key == cut->key && id <= cut->last_id);
}

static inline double scaled(const struct row *row, float logit)
{
	float x = logit > FLT_MAX ? FLT_MAX : logit;
	return ((double)x - row->maximum) * row->inverse_temperature;
}

/* The largest of `count` logits, NaN passed over; -inf if there is none. */
static float highest(const float *logits, u32 count)
{
	vec best[4] = {vec_set1(-INFINITY), vec_set1(-INFINITY), vec_set1(-INFINITY), vec_set1(-INFINITY)};
	u32 i = 0;
	for (; i + 4 * VEC_LANES <= count; i += 4 * VEC_LANES)
#pragma GCC unroll 4
		for (u32 v = 0; v < 4; v++)
			best[v] = vec_max(vec_load(logits + i + v * VEC_LANES), best[v]);
	float result = vec_highest(vec_max(vec_max(best[0], best[1]), vec_max(best[2], best[3])));
	for (; i < count; i++)
		result = logits[i] > result ? logits[i] : result;
	return result;
}

static u32 arg_max(const float *logits, u32 vocab)
{
	float best = -INFINITY;
	u32 at = 0;
	for (u32 first = 0; first < vocab; first += 4 * CHUNK) {
		float here = highest(logits + first, kern_min(4 * CHUNK, vocab - first));
		if (here > best) {
			best = here;
			at = first;
		}
	}
	while (best > -INFINITY && logits[at] != best)
		at++;
	return at;
}

static void chunk_keys(const struct row *row, u32 first, u32 count, u32 *keys)
{
	for (u32 i = 0; i < count; i++)
		keys[i] = sampling_key(row->logits[first + i]);
}

static void chunk_masses(const struct row *row, u32 first, u32 count, u64 *masses)
{
	for (u32 i = 0; i < count; i++)
		masses[i] = sampling_mass(scaled(row, row->logits[first + i]));
}

/* True if no id of the chunk is in the set and of a key >= `least` or, where `mass` is set, weighs anything.
 */
static bool passes_over(const struct row *row, u32 first, u32 count, u32 least, bool mass)
{
	float best = highest(row->logits + first, count);
	u32 key = sampling_key(best);
	return key < row->cut.key || key < least || (mass && scaled(row, best) < -29);
}

struct selection {
	bool count;	 /* members weigh 1, not their mass */
	u64 target;	 /* weight to reach, at least 1 */
	double fraction; /* or, where target is 0, the part of all weight */
	u64 weights[BUCKETS];
};

/* Weights of all members by the upper bits of their keys. */
static void weigh_all(const struct row *row, struct selection *s)
{
	u32 keys[CHUNK];
	u64 masses[CHUNK];
	memset(s->weights, 0, sizeof(s->weights));
	for (u32 first = 0; first < row->vocab; first += CHUNK) {
		u32 count = kern_min(CHUNK, row->vocab - first);
		if (passes_over(row, first, count, 0, !s->count))
			continue;
		chunk_keys(row, first, count, keys);
		if (!s->count)
			chunk_masses(row, first, count, masses);
		for (u32 i = 0; i < count; i++)
			if (is_member(&row->cut, keys[i], first + i))
				s->weights[keys[i] >> (32 - RADIX_BITS)] += s->count ? 1 : masses[i];
	}
}

/* Weights by the `bits` bits above `shift`, of the few members whose bits above those equal `prefix`. */
static void weigh_some(const struct row *row, struct selection *s, u32 prefix, u32 shift, u32 bits)
{
	u32 keys[CHUNK], above = shift + bits;
	memset(s->weights, 0, sizeof(s->weights));
	for (u32 first = 0; first < row->vocab; first += CHUNK) {
		u32 count = kern_min(CHUNK, row->vocab - first), any = 0;
		if (passes_over(row, first, count, prefix << above, !s->count))
			continue;
		chunk_keys(row, first, count, keys);
		for (u32 i = 0; i < count; i++)
			any |= keys[i] >> above == prefix;
		for (u32 i = 0; i < count && any; i++)
			if (keys[i] >> above == prefix && is_member(&row->cut, keys[i], first + i))
				s->weights[keys[i] >> shift & ((1u << bits) - 1)] +=
					s->count ? 1 : sampling_mass(scaled(row, row->logits[first + i]));
	}
}

/* The last id of key `key` that is needed to reach `target`. */
static u32 last_of_key(const struct row *row, const struct selection *s, u32 key, u64 target)
{
	u32 last = row->vocab - 1;
	for (u32 first = 0; first < row->vocab; first += CHUNK) {
		u32 end = kern_min(first + CHUNK, row->vocab);
		if (passes_over(row, first, end - first, key, false))
			continue;
		for (u32 id = first; id < end; id++) {
			if (sampling_key(row->logits[id]) != key || !is_member(&row->cut, key, id))
				continue;
			u64 weight = s->count ? 1 : sampling_mass(scaled(row, row->logits[id]));
			last = id;
			if (weight >= target)
				return last;
			target -= weight;
		}
	}
	return last;
}

/* Shrinks row->cut to the smallest beginning, by falling logit and then rising id, whose weight reaches the
 * target. */
static void select_beginning(struct row *row, struct selection *s)
{
	u64 target = s->target;
	u32 prefix = 0, shift = 32;
	for (u32 level = 0; level < LEVELS; level++) {
		u32 bits = level == LEVELS - 1 ? 32 - (LEVELS - 1) * RADIX_BITS : RADIX_BITS,
		    bucket = (1u << bits) - 1;
		shift -= bits;
		if (level == 0)
			weigh_all(row, s);
		else
			weigh_some(row, s, prefix, shift, bits);
		if (target == 0) {
			u64 total = 0;
			for (u32 i = 0; i < BUCKETS; i++)
				total += s->weights[i];
			double wanted = ceil(s->fraction * (double)total);
			target = wanted < 1 ? 1 : wanted < (double)total ? (u64)wanted : total;
		}
		for (; bucket > 0 && s->weights[bucket] < target; bucket--)
			target -= s->weights[bucket];
		prefix = prefix << bits | bucket;
	}
	row->cut = (struct cut){prefix, last_of_key(row, s, prefix, target)};
}

/* Noise of ids first + 4 g + j, at [j][g]. */
static void chunk_noise(u64 seed, u32 position, u32 first, u32 noise[4][CHUNK / 4])
{
	for (u32 g = 0; g < CHUNK / 4; g++) {
		u32 counter[4] = {position, first / 4 + g, 0, 0}, out[4];
		philox(counter, seed, out);
		noise[0][g] = out[0];
		noise[1][g] = out[1];
		noise[2][g] = out[2];
		noise[3][g] = out[3];
	}
}

/* Noise below this cannot lift a scaled logit by `needed`: it has too few leading ones
 * (sampling_gumbel_bound). */
static u32 least_noise(double needed)
{
	double ones = needed / 0.693147180559946 - 2;
	if (ones < 1)
		return 0;
	return ones >= 32 ? 0xffffffffu : 0xffffffffu << (32 - (u32)ones);
}

static bool any_reaches(u32 noise[4][CHUNK / 4], u32 least)
{
	u32 any = 0;
	for (u32 j = 0; j < 4; j++)
		for (u32 g = 0; g < CHUNK / 4; g++)
			any |= noise[j][g] >= least;
	return any != 0;
}

struct winner {
	u32 id;
	double score;
};

static void try_id(const struct row *row, u32 id, u32 noise, double floor, struct winner *w)
{
	double z = scaled(row, row->logits[id]);
	if (!(z >= floor) || z + sampling_gumbel_bound(noise) < w->score ||
	    !is_member(&row->cut, sampling_key(row->logits[id]), id))
		return;
	double score = z + sampling_gumbel(noise);
	if (score > w->score || (score == w->score && id < w->id))
		*w = (struct winner){id, score};
}

/* The member of greatest scaled logit + Gumbel noise. `floor`: the least scaled logit allowed (min_p). */
static u32 gumbel_max(const struct row *row, double floor, u64 seed, u32 position)
{
	u32 noise[4][CHUNK / 4], start = row->best / CHUNK * CHUNK;
	const double widest = sampling_gumbel_bound(0xffffffffu);
	/* The likeliest token first: its score lets most others be passed over. */
	chunk_noise(seed, position, start, noise);
	struct winner w = {row->best, sampling_gumbel(noise[row->best % 4][row->best % CHUNK / 4])};
	for (u32 first = 0; first < row->vocab; first += CHUNK) {
		u32 count = kern_min(CHUNK, row->vocab - first);
		float best = highest(row->logits + first, count);
		double z = scaled(row, best);
		if (!(z >= floor) || z + widest < w.score || sampling_key(best) < row->cut.key)
			continue;
		u32 least = least_noise(w.score - z);
		chunk_noise(seed, position, first, noise);
		if (!any_reaches(noise, least))
			continue;
		for (u32 i = 0; i < count; i++)
			if (noise[i % 4][i / 4] >= least)
				try_id(row, first + i, noise[i % 4][i / 4], floor, &w);
	}
	return w.id;
}

static u32 sample_row(const struct kern_sample_row *r, u32 vocab)
{
	struct row row = {.logits = r->logits, .vocab = vocab, .best = arg_max(r->logits, vocab)};
	struct selection s;
	row.cut = (struct cut){0, vocab - 1};
	row.maximum = r->logits[row.best];
	if (!(r->temperature > 0) || !(row.maximum > -INFINITY))
		return row.best;
	if (row.maximum > FLT_MAX)
		row.maximum = FLT_MAX;
	row.inverse_temperature = 1.0 / (double)r->temperature;
	if (r->top_k > 0 && r->top_k < vocab) {
		s.count = true;
		s.target = r->top_k;
		select_beginning(&row, &s);
	}
	if (r->top_p < 1) {
		s.count = false;
		s.target = 0;
		s.fraction = (double)r->top_p;
		select_beginning(&row, &s);
	}
	double floor = r->min_p > 0 ? sampling_log((double)r->min_p) : -DBL_MAX;
	return gumbel_max(&row, floor < 0 ? floor : 0, r->seed, r->position);
}

static void one_row(void *arg, u32 task, u32 thread)
{
	const struct kern_sample_args *a = arg;
	(void)thread;
	a->tokens[task] = sample_row(&a->rows[task], a->vocab);
}

enum err VARIANT(sample)(struct kern_ctx *ctx, const struct kern_sample_args *a)
{
	struct kern_sample_args args = *a;
	ASSERT(a->vocab > 0);
	kern_parallel(ctx, a->row_count, one_row, &args);
	return ERR_OK;
}
