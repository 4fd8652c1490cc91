#include "tests/unit/proc_worker/driver.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- ranks */

struct rank_call {
	void (*fn)(void *ctx, u32 rank);
	void *ctx;
	u32 rank;
};

static void *rank_main(void *arg)
{
	struct rank_call *call = arg;

	call->fn(call->ctx, call->rank);
	return NULL;
}

void driver_parallel(u32 ranks, void (*fn)(void *ctx, u32 rank), void *ctx)
{
	pthread_t threads[DRIVER_RANKS_MAX];
	struct rank_call calls[DRIVER_RANKS_MAX];

	for (u32 r = 1; r < ranks; r++) {
		calls[r] = (struct rank_call){fn, ctx, r};
		cr_assert_eq(pthread_create(&threads[r], NULL, rank_main, &calls[r]), 0);
	}
	fn(ctx, 0);
	for (u32 r = 1; r < ranks; r++)
		pthread_join(threads[r], NULL);
}

struct opening {
	struct driver *d;
	enum err e[DRIVER_RANKS_MAX];
	struct err_msg em[DRIVER_RANKS_MAX];
};

static void open_rank(void *ctx, u32 rank)
{
	struct opening *o = ctx;
	const struct driver_config *c = &o->d->config;
	struct runner_config config = {
		.model_dir = c->model_dir,
		.run_dir = o->d->run_dir,
		.device = OPTION_DEVICE_CPU,
		.rank = rank,
		.ranks = c->ranks,
		.threads = c->threads,
		.caps = c->caps,
		.dtype = c->dtype,
		.kv_dtype = c->kv_dtype,
		.limits = {.rows_max = c->rows_max, .tokens_max = c->tokens_max, .block_size = c->block_size},
		.memory_utilization = 0.5,
	};

	o->e[rank] = runner_create(&o->d->runners[rank], &config, &o->em[rank]);
	if (!o->e[rank])
		o->e[rank] = runner_begin(o->d->runners[rank], 1, o->d->runners[rank]->block_count,
					  o->d->runners[rank]->max_model_len, &o->em[rank]);
}

void driver_open(struct driver *d, const struct driver_config *config)
{
	struct opening o = {.d = d};

	memset(d, 0, sizeof(*d));
	d->config = *config;
	d->random = config->seed;
	snprintf(d->run_dir, sizeof(d->run_dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(d->run_dir));
	driver_parallel(config->ranks, open_rank, &o);
	for (u32 r = 0; r < config->ranks; r++)
		cr_assert_eq(o.e[r], ERR_OK, "rank %u: %s", r, o.em[r].text);
	mirror_init(&d->mirror, config->block_size);
	d->block_count = d->runners[0]->block_count;
	if (d->block_count > 400)
		d->block_count = 400;
	d->blocks = malloc(d->block_count * sizeof(u32));
	for (u32 i = 0; i < d->block_count; i++)
		d->blocks[i] = i;
	for (u32 i = 0; i < MIRROR_ROWS; i++)
		d->row_request[i] = -1;
}

void driver_close(struct driver *d)
{
	for (u32 r = d->config.ranks; r-- > 0;)
		runner_destroy(&d->runners[r]);
	free(d->blocks);
	rmdir(d->run_dir);
}

/* ---------------------------------------------------------------- planning */

static u32 next(struct driver *d)
{
	d->random = d->random * 6364136223846793005u + 1442695040888963407u;
	return (u32)(d->random >> 33);
}

/* Blocks come back in random order, so that tables are not contiguous. */
static u32 take_block(struct driver *d)
{
	cr_assert_gt(d->block_count, 0);
	u32 at = next(d) % d->block_count;
	u32 block = d->blocks[at];

	d->blocks[at] = d->blocks[--d->block_count];
	return block;
}

static void drop(struct driver *d, u32 row)
{
	const struct mirror_row *m = &d->mirror.rows[row];

	for (u32 i = 0; i < m->block_count; i++)
		d->blocks[d->block_count++] = m->blocks[i];
	mirror_drop(&d->mirror, row);
	d->row_request[row] = -1;
}

static void drop_rows(struct driver *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		int i = d->row_request[row];
		if (i < 0)
			continue;
		if (d->requests[i].outputs == d->requests[i].output_count) {
			d->done[i] = true;
			drop(d, row);
		} else if (d->config.preempt_every && next(d) % d->config.preempt_every == 0) {
			d->started[i] = false;
			drop(d, row);
		}
	}
}

static void add(struct driver *d, u32 row, u32 index)
{
	struct driver_request *q = &d->requests[index];
	u32 tokens[MIRROR_TOKENS], blocks[MIRROR_BLOCKS];
	u32 count = q->prompt_count + q->outputs;
	u32 block_count = (count + d->config.block_size - 1) / d->config.block_size;

	memcpy(tokens, q->prompt, q->prompt_count * sizeof(u32));
	memcpy(tokens + q->prompt_count, q->output, q->outputs * sizeof(u32));
	for (u32 i = 0; i < block_count; i++)
		blocks[i] = take_block(d);
	struct mirror_add a = {.row = row,
			       .seq = ++d->next_seq,
			       .tokens = tokens,
			       .token_count = count,
			       .prompt_count = q->prompt_count,
			       .blocks = blocks,
			       .block_count = block_count,
			       .params = q->params,
			       .stop_ids = q->stop_ids,
			       .stop_count = q->stop_count,
			       .bias_ids = q->bias_ids,
			       .bias_values = q->bias_values,
			       .bias_count = q->bias_count};
	mirror_add(&d->mirror, &a);
	d->row_request[row] = (int)index;
	d->started[index] = true;
}

static void add_rows(struct driver *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		u32 first = next(d) % d->request_count;
		for (u32 i = 0; d->row_request[row] < 0 && i < d->request_count; i++) {
			u32 index = (first + i) % d->request_count;
			if (!d->started[index] && next(d) % 3)
				add(d, row, index);
		}
	}
}

static void plan_runs(struct driver *d)
{
	u32 budget = d->config.tokens_max - d->config.rows_max;

	for (u32 row = 0; row < d->config.rows_max; row++) {
		struct mirror_row *m = &d->mirror.rows[row];
		if (!m->present)
			continue;
		u32 left = m->known - m->computed;
		if (left > 1) {
			u32 run = left < d->config.chunk ? left : d->config.chunk;
			run = run < budget ? run : budget;
			budget -= run;
			mirror_run(&d->mirror, row, run);
		} else if (m->computed + 1 > m->block_count * d->config.block_size) {
			mirror_grow(&d->mirror, row, take_block(d));
		}
	}
}

/* ---------------------------------------------------------------- running */

struct stepping {
	struct driver *d;
	const struct ipc_step *step;
	enum err e[DRIVER_RANKS_MAX];
	struct err_msg em[DRIVER_RANKS_MAX];
};

/* Logits of every prompt token of one row of the step. */
static enum err read_row_logits(struct driver *d, u32 rank, u32 index, struct err_msg *em)
{
	struct runner *r = d->runners[rank];
	u32 row = r->batch->run_rows[index], run = r->batch->run[row];
	u32 begin = r->batch->computed[row] - run; /* after commit */
	struct driver_request *q = &d->requests[d->row_request[row]];
	size_t vocab = r->model.vocab_size;
	u32 tokens[MIRROR_ROWS];
	float *logits;

	if (!q->prompt_logits || begin >= q->prompt_count)
		return ERR_OK;
	run = run < q->prompt_count - begin ? run : q->prompt_count - begin;
	for (u32 first = 0, n; first < run; first += n) {
		n = run - first < d->config.rows_max ? run - first : d->config.rows_max;
		for (u32 i = 0; i < n; i++)
			tokens[i] = r->inputs.query_start[index] + first + i;
		enum err e = decoder_logits(&r->decoder, tokens, n, &logits, em);
		if (e)
			return e;
		if (rank == 0)
			memcpy(q->prompt_logits + (begin + first) * vocab, logits, n * vocab * sizeof(float));
	}
	return ERR_OK;
}

static enum err read_logits(struct driver *d, u32 rank, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < d->runners[rank]->batch->run_row_count; i++)
		e = read_row_logits(d, rank, i, em);
	return e;
}

static void step_rank(void *ctx, u32 rank)
{
	struct stepping *s = ctx;

	for (u32 i = 0; i < s->d->request_count; i++)
		s->d->runners[rank]->keeps_tokens |= s->d->requests[i].prompt_logits != NULL;
	s->e[rank] = runner_submit(s->d->runners[rank], s->step, &s->em[rank]);
	if (!s->e[rank])
		s->e[rank] = runner_collect(s->d->runners[rank], &s->em[rank]);
	if (!s->e[rank])
		s->e[rank] = read_logits(s->d, rank, &s->em[rank]);
}

static struct driver_request *request_of(struct driver *d, u64 seq)
{
	for (u32 row = 0; row < MIRROR_ROWS; row++)
		if (d->mirror.rows[row].present && d->mirror.rows[row].seq == seq)
			return &d->requests[d->row_request[row]];
	cr_assert(false, "a result for sequence %llu, which does not run", (unsigned long long)seq);
	return NULL;
}

static void take_logprobs(struct driver *d, const struct ipc_result *r)
{
	for (u32 i = 0, at = 0; i < r->lp_entry_count; at += r->lp_count[i++]) {
		struct driver_request *q = request_of(d, r->seq[r->lp_entry[i]]);
		u32 position = r->position[r->lp_entry[i]];
		q->lp_count[position] = r->lp_count[i];
		q->lp_rank[position] = r->lp_rank[i];
		memcpy(q->lp_ids[position], r->lp_ids + at, r->lp_count[i] * sizeof(u32));
		memcpy(q->lp_values[position], r->lp_values + at, r->lp_count[i] * sizeof(f32));
	}
	for (u32 i = 0, at = 0; i < r->plp_seq_count; at += r->plp_count[i++]) {
		struct driver_request *q = request_of(d, r->plp_seq[i]);
		u32 position = r->plp_position[i];
		q->plp_count[position] = r->plp_count[i];
		q->plp_rank[position] = r->plp_rank[i];
		memcpy(q->plp_ids[position], r->plp_ids + at, r->plp_count[i] * sizeof(u32));
		memcpy(q->plp_values[position], r->plp_values + at, r->plp_count[i] * sizeof(f32));
	}
}

static void take_results(struct driver *d)
{
	const struct ipc_result *r = &d->runners[0]->result;

	cr_assert_eq(r->step, d->mirror.step);
	take_logprobs(d, r);
	for (u32 i = 0; i < r->seq_count; i++) {
		struct driver_request *q = request_of(d, r->seq[i]);
		cr_assert_eq(r->position[i], q->outputs);
		q->output[q->outputs++] = r->token[i];
	}
	cr_assert_eq(mirror_commit(&d->mirror, r->token), r->seq_count);
}

static bool all_done(const struct driver *d)
{
	for (u32 i = 0; i < d->request_count; i++)
		if (!d->done[i])
			return false;
	return true;
}

void driver_run(struct driver *d, struct driver_request *requests, u32 count)
{
	d->requests = requests;
	d->request_count = count;
	d->started = calloc(count, sizeof(bool));
	d->done = calloc(count, sizeof(bool));
	while (!all_done(d)) {
		struct stepping s = {.d = d};
		cr_assert_lt(d->steps++, 100000);
		mirror_begin(&d->mirror);
		drop_rows(d);
		add_rows(d);
		plan_runs(d);
		s.step = mirror_end(&d->mirror);
		driver_parallel(d->config.ranks, step_rank, &s);
		for (u32 r = 0; r < d->config.ranks; r++)
			cr_assert_eq(s.e[r], ERR_OK, "rank %u: %s", r, s.em[r].text);
		take_results(d);
	}
	free(d->started);
	free(d->done);
}

const char *reference_dir(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/../shared/data/%s", SOURCE_ROOT, name);
	return access(path, R_OK) == 0 ? path : NULL;
}
