/* Checks of apply_diff, build_inputs and commit against a plain mirror of the batch, over steps of random
 * diffs. */
#include <stdio.h>
#include <string.h>

#include "tests/kern/device.h"

enum {
	BLOCK = 4,
	LENGTH_MAX = 60,
	TABLE = LENGTH_MAX / BLOCK,
	ROWS_MAX = 1100,
	DIFF_MAX = 1 << 17,
	VOCAB = 9,
};

struct mirror_row {
	u32 known, computed, run, prompt, block_count;
	u32 tokens[LENGTH_MAX], blocks[TABLE];
	struct kern_sample_row params;
};

struct mirror {
	struct mirror_row rows[ROWS_MAX];
	u32 row_count;
	struct kern_batch device;
};

/* A diff in the making: the lists, then the records. */
struct diff {
	u32 drops[ROWS_MAX], grows[ROWS_MAX * TABLE][3], runs[ROWS_MAX][2], adds[ROWS_MAX];
	u32 counts[KERN_DIFF_WORDS];
	u32 records[DIFF_MAX], record_words;
	u32 words[2 * DIFF_MAX];
};

static u32 float_bits(float x)
{
	u32 bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static void add_sequence(struct check *c, struct mirror_row *r, u32 row, struct diff *d)
{
	u32 *record = d->records + d->record_words, at = KERN_ADD_WORDS;
	r->known = 1 + check_random(c, LENGTH_MAX / 2);
	r->computed = check_random(c, r->known);
	r->prompt = 1 + check_random(c, r->known);
	r->block_count = (r->known + BLOCK - 1) / BLOCK;
	r->params = (struct kern_sample_row){.temperature = check_uniform(c) + 1,
					     .top_p = 0.9f,
					     .min_p = 0.1f,
					     .top_k = check_random(c, 40),
					     .seed = (u64)check_random(c, UINT32_MAX) << 32 | 77};
	record[KERN_ADD_ROW] = row;
	record[KERN_ADD_TOKENS] = r->known;
	record[KERN_ADD_COMPUTED] = r->computed;
	record[KERN_ADD_PROMPT] = r->prompt;
	record[KERN_ADD_BLOCKS] = r->block_count;
	record[KERN_ADD_TEMPERATURE] = float_bits(r->params.temperature);
	record[KERN_ADD_TOP_P] = float_bits(r->params.top_p);
	record[KERN_ADD_MIN_P] = float_bits(r->params.min_p);
	record[KERN_ADD_TOP_K] = r->params.top_k;
	record[KERN_ADD_SEED_LOW] = (u32)r->params.seed;
	record[KERN_ADD_SEED_HIGH] = (u32)(r->params.seed >> 32);
	for (u32 i = 0; i < r->known; i++)
		record[at++] = r->tokens[i] = check_random(c, 1000);
	for (u32 i = 0; i < r->block_count; i++)
		record[at++] = r->blocks[i] = check_random(c, 5000);
	d->adds[d->counts[KERN_DIFF_ADDS]++] = d->record_words;
	d->record_words += at;
}

/* What happens to one row in this step. */
static void change_row(struct check *c, struct mirror_row *r, u32 row, struct diff *d)
{
	if (r->known > 0 && (check_random(c, 8) == 0 || r->known == LENGTH_MAX)) {
		d->drops[d->counts[KERN_DIFF_DROPS]++] = row;
		r->known = r->computed = 0;
	}
	if (r->known == 0 && check_random(c, 3) == 0)
		add_sequence(c, r, row, d);
	/* room for one token more than is known */
	while (r->known > 0 && r->known >= r->block_count * BLOCK && r->block_count < TABLE) {
		const u32 block = check_random(c, 5000);
		u32 *grow = d->grows[d->counts[KERN_DIFF_GROWS]++];
		grow[0] = row;
		grow[1] = r->block_count;
		grow[2] = block;
		r->blocks[r->block_count++] = block;
	}
	const u32 left = r->known - r->computed, rule = left == 1;
	r->run = left > 1 || check_random(c, 10) == 0 ? check_random(c, left + 1) : rule;
	if (r->run != rule) {
		u32 *run = d->runs[d->counts[KERN_DIFF_RUNS]++];
		run[0] = row;
		run[1] = r->run;
	}
}

static u32 encode(struct diff *d)
{
	u32 n = KERN_DIFF_WORDS;
	memcpy(d->words, d->counts, sizeof(d->counts));
	memcpy(d->words + n, d->drops, d->counts[KERN_DIFF_DROPS] * sizeof(u32));
	n += d->counts[KERN_DIFF_DROPS];
	memcpy(d->words + n, d->grows, d->counts[KERN_DIFF_GROWS] * 3 * sizeof(u32));
	n += 3 * d->counts[KERN_DIFF_GROWS];
	memcpy(d->words + n, d->runs, d->counts[KERN_DIFF_RUNS] * 2 * sizeof(u32));
	n += 2 * d->counts[KERN_DIFF_RUNS];
	for (u32 i = 0; i < d->counts[KERN_DIFF_ADDS]; i++)
		d->words[n + i] = n + d->counts[KERN_DIFF_ADDS] + d->adds[i];
	n += d->counts[KERN_DIFF_ADDS];
	memcpy(d->words + n, d->records, d->record_words * sizeof(u32));
	return n + d->record_words;
}

static void upload_batch(struct device *d, struct mirror *m)
{
	const u32 rows = m->row_count;
	u32 *zeros = check_alloc(&d->check, rows * sizeof(u32));
	memset(zeros, 0, rows * sizeof(u32));
	m->device = (struct kern_batch){
		.rows = rows, .token_stride = LENGTH_MAX + 3, .block_stride = TABLE + 1, .block_size = BLOCK};
	m->device.known = device_upload(d, zeros, rows * sizeof(u32));
	m->device.computed = device_upload(d, zeros, rows * sizeof(u32));
	m->device.run = device_upload(d, zeros, rows * sizeof(u32));
	m->device.prompt = device_upload(d, zeros, rows * sizeof(u32));
	m->device.tokens = device_alloc(d, rows * m->device.token_stride * sizeof(u32));
	m->device.blocks = device_alloc(d, rows * m->device.block_stride * sizeof(u32));
	m->device.params = device_alloc(d, rows * sizeof(struct kern_sample_row));
}

/* Inputs of the step, as the device has them, on the host. */
static struct kern_build_inputs_args download_inputs(struct device *d, const struct kern_build_inputs_args *a,
						     u32 rows)
{
	struct kern_build_inputs_args h = *a;
	h.ids = device_download(d, a->ids, a->tokens * sizeof(u32));
	h.positions = device_download(d, a->positions, a->tokens * sizeof(u32));
	h.slots = device_download(d, a->slots, a->tokens * sizeof(i64));
	h.query_start = device_download(d, a->query_start, (rows + 1) * sizeof(u32));
	h.context = device_download(d, a->context, rows * sizeof(u32));
	h.sample_index = device_download(d, a->sample_index, a->samples * sizeof(u32));
	h.sample_rows = device_download(d, a->sample_rows, a->samples * sizeof(u32));
	h.sample = device_download(d, a->sample, a->samples * sizeof(struct kern_sample_row));
	h.counts = device_download(d, a->counts, 2 * sizeof(u32));
	return h;
}

static bool sample_right(const struct kern_build_inputs_args *h, u32 place, const struct mirror_row *r,
			 u32 row, u32 at)
{
	const struct kern_sample_row *p = &h->sample[place];
	return h->sample_rows[place] == row && h->sample_index[place] == at - 1 &&
	       p->logits == h->logits + (size_t)place * VOCAB && p->position == r->known - r->prompt &&
	       p->temperature == r->params.temperature && p->top_p == r->params.top_p &&
	       p->min_p == r->params.min_p && p->top_k == r->params.top_k && p->seed == r->params.seed;
}

static const char *inputs_right(const struct mirror *m, const struct kern_build_inputs_args *h)
{
	u32 at = 0, samples = 0;
	for (u32 row = 0; row < m->row_count; row++) {
		const struct mirror_row *r = &m->rows[row];
		if (h->query_start[row] != at || h->context[row] != (r->run > 0 ? r->computed + r->run : 0))
			return "query_start or context is another";
		for (u32 i = 0; i < r->run; i++, at++) {
			const u32 position = r->computed + i;
			if (h->ids[at] != r->tokens[position] || h->positions[at] != position ||
			    h->slots[at] != (i64)r->blocks[position / BLOCK] * BLOCK + position % BLOCK)
				return "a token's id, position or slot is another";
		}
		if (r->run > 0 && r->computed + r->run == r->known && !sample_right(h, samples++, r, row, at))
			return "a row that samples is another";
	}
	if (h->query_start[m->row_count] != at || h->counts[0] != at || h->counts[1] != samples)
		return "the counts are others";
	for (u32 i = at; i < h->tokens; i++)
		if (h->ids[i] != 0 || h->positions[i] != 0 || h->slots[i] != -1)
			return "a padding token is none";
	for (u32 i = samples; i < h->samples; i++)
		if (h->sample[i].temperature != 0 || h->sample_index[i] != 0)
			return "a padding row is none";
	return NULL;
}

static const char *one_step(struct device *d, struct mirror *m, struct diff *diff)
{
	struct check *c = &d->check;
	const u32 rows = m->row_count, tokens = rows * LENGTH_MAX;
	diff->record_words = 0;
	memset(diff->counts, 0, sizeof(diff->counts));
	for (u32 row = 0; row < rows; row++)
		change_row(c, &m->rows[row], row, diff);
	const u32 words = encode(diff);
	const struct kern_apply_diff_args apply = {&m->device,
						   device_upload(d, diff->words, words * sizeof(u32))};
	struct kern_build_inputs_args a = {
		.batch = &m->device, .tokens = tokens, .samples = rows, .vocab = VOCAB};
	a.ids = device_alloc(d, tokens * sizeof(u32));
	a.positions = device_alloc(d, tokens * sizeof(u32));
	a.slots = device_alloc(d, tokens * sizeof(i64));
	a.query_start = device_alloc(d, (rows + 1) * sizeof(u32));
	a.context = device_alloc(d, rows * sizeof(u32));
	a.sample_index = device_alloc(d, rows * sizeof(u32));
	a.sample_rows = device_alloc(d, rows * sizeof(u32));
	a.sample = device_alloc(d, rows * sizeof(struct kern_sample_row));
	a.logits = device_alloc(d, (size_t)rows * VOCAB * sizeof(float));
	a.counts = device_alloc(d, 2 * sizeof(u32));
	const char *problem = device_problem(d, d->device_ops.apply_diff(&d->ctx, &apply));
	if (!problem)
		problem = device_problem(d, d->device_ops.build_inputs(&d->ctx, &a));
	if (problem)
		return problem;
	const struct kern_build_inputs_args h = download_inputs(d, &a, rows);
	problem = inputs_right(m, &h);
	u32 *sampled = check_alloc(c, rows * sizeof(u32));
	for (u32 i = 0; i < rows; i++)
		sampled[i] = check_random(c, 1000);
	const struct kern_commit_args commit = {&m->device, device_upload(d, sampled, rows * sizeof(u32)),
						a.sample_rows, a.counts};
	if (!problem)
		problem = device_problem(d, d->device_ops.commit(&d->ctx, &commit));
	for (u32 row = 0, sample = 0; row < rows; row++) {
		struct mirror_row *r = &m->rows[row];
		const bool samples = r->run > 0 && r->computed + r->run == r->known;
		r->computed += r->run;
		if (samples)
			r->tokens[r->known++] = sampled[sample++];
	}
	return problem;
}

static void step_case(struct device *d, u32 rows, u32 steps)
{
	static struct mirror m;
	static struct diff diff;
	const char *problem = NULL;
	memset(&m, 0, sizeof(m));
	m.row_count = rows;
	upload_batch(d, &m);
	const u32 device_kept = d->buffer_count, host_kept = d->check.buffer_count;
	for (u32 i = 0; i < steps && !problem; i++) {
		problem = one_step(d, &m, &diff);
		/* the memory of the step goes, that of the batch stays */
		const char *guards = device_release(d, device_kept);
		problem = problem ? problem : guards;
		guards = check_release(&d->check, host_kept);
		problem = problem ? problem : guards;
	}
	device_case_end(d, problem, "apply_diff+build_inputs+commit rows=%u", rows);
}

void device_step(struct device *d)
{
	step_case(d, 1, 12);
	step_case(d, 7, 12);
	step_case(d, 33, 8);
	step_case(d, ROWS_MAX, 3);
}
