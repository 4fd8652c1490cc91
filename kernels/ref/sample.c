/* Reference: one token per row, by arg-max or by Gumbel-max over a restricted set. No sort: a
 * restriction finds the key of its last member by three histogram passes (radix select).
 *
 * All sums are of integers and all comparisons exact, so neither thread count nor instruction set can change
 * a token. */
#include <float.h>
#include <math.h>

#include "kernels/kern_priv.h"
#include "kernels/sampling_priv.h"

enum {
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

/* (logit - maximum) / temperature: at most 0 */
static inline double scaled(const struct row *row, u32 id)
{
	float x = row->logits[id];
	x = x > FLT_MAX ? FLT_MAX : x; /* a NaN stays one: no mass, never chosen */
	return ((double)x - row->maximum) * row->inverse_temperature;
}

static inline u64 mass_of(const struct row *row, u32 id)
{
	return sampling_mass(scaled(row, id));
}

static u32 arg_max(const float *logits, u32 vocab)
{
	float best = -INFINITY;
	u32 at = 0;
	for (u32 i = 0; i < vocab; i++)
		if (logits[i] > best) {
			best = logits[i];
			at = i;
		}
	return at;
}

/* Shrinks row->cut to the smallest beginning, by falling logit and then rising id, whose weight reaches
 * `target` >= 1. A member weighs its mass, or 1 where `count` is set. */
static void select_beginning(struct row *row, bool count, u64 target)
{
	u64 weights[BUCKETS];
	u32 prefix = 0, shift = 32;
	for (u32 level = 0; level < LEVELS; level++) {
		u32 bits = level == LEVELS - 1 ? 32 - (LEVELS - 1) * RADIX_BITS : RADIX_BITS;
		u32 above = shift, bucket = (1u << bits) - 1;
		shift -= bits;
		memset(weights, 0, sizeof(weights));
		for (u32 id = 0; id < row->vocab; id++) {
			u32 key = sampling_key(row->logits[id]);
			if (key < row->cut.key || (level > 0 && key >> above != prefix) ||
			    !is_member(&row->cut, key, id))
				continue;
			weights[key >> shift & ((1u << bits) - 1)] += count ? 1 : mass_of(row, id);
		}
		for (; bucket > 0 && weights[bucket] < target; bucket--)
			target -= weights[bucket];
		prefix = prefix << bits | bucket;
	}
	u32 last = row->vocab - 1;
	for (u32 id = 0; id < row->vocab; id++) {
		if (sampling_key(row->logits[id]) != prefix || !is_member(&row->cut, prefix, id))
			continue;
		u64 weight = count ? 1 : mass_of(row, id);
		last = id;
		if (weight >= target)
			break;
		target -= weight;
	}
	row->cut = (struct cut){prefix, last};
}

static u64 total_mass(const struct row *row)
{
	u64 total = 0;
	for (u32 id = 0; id < row->vocab; id++) {
		u32 key = sampling_key(row->logits[id]);
		if (key >= row->cut.key && is_member(&row->cut, key, id))
			total += mass_of(row, id);
	}
	return total;
}

/* The member of greatest scaled logit + Gumbel noise. `floor`: the least scaled logit allowed (min_p). */
static u32 gumbel_max(const struct row *row, double floor, u64 seed, u32 position)
{
	u32 best = row->best, counter[4] = {position, best / 4, 0, 0}, noise[4];
	philox(counter, seed, noise);
	/* The likeliest token first: its score lets most others be passed over. */
	double best_score = sampling_gumbel(noise[best % 4]), widest = sampling_gumbel_bound(0xffffffffu);
	counter[1] = UINT32_MAX;
	for (u32 id = 0; id < row->vocab; id++) {
		double z = scaled(row, id);
		u32 key = sampling_key(row->logits[id]);
		if (!(z >= floor) || z + widest < best_score || !is_member(&row->cut, key, id))
			continue;
		if (counter[1] != id / 4) {
			counter[1] = id / 4;
			philox(counter, seed, noise);
		}
		if (z + sampling_gumbel_bound(noise[id % 4]) < best_score)
			continue;
		double score = z + sampling_gumbel(noise[id % 4]);
		if (score > best_score || (score == best_score && id < best)) {
			best_score = score;
			best = id;
		}
	}
	return best;
}

static u32 sample_row(const struct kern_sample_row *r, u32 vocab)
{
	struct row row = {.logits = r->logits, .vocab = vocab, .best = arg_max(r->logits, vocab)};
	row.cut = (struct cut){0, vocab - 1};
	row.maximum = r->logits[row.best];
	if (!(r->temperature > 0) || !(row.maximum > -INFINITY))
		return row.best;
	if (row.maximum > FLT_MAX)
		row.maximum = FLT_MAX;
	row.inverse_temperature = 1.0 / (double)r->temperature;
	if (r->top_k > 0 && r->top_k < vocab)
		select_beginning(&row, true, r->top_k);
	if (r->top_p < 1) {
		u64 total = total_mass(&row);
		double target = ceil((double)r->top_p * (double)total);
		select_beginning(&row, false, target < 1 ? 1 : target < (double)total ? (u64)target : total);
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

enum err sample_ref(struct kern_ctx *ctx, const struct kern_sample_args *a)
{
	struct kern_sample_args args = *a;
	ASSERT(a->vocab > 0);
	kern_parallel(ctx, a->row_count, one_row, &args);
	return ERR_OK;
}
