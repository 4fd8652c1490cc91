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
		.loras = c->loras,
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
	d->rows = (struct request_rows){.rows_max = config->rows_max,
					.tokens_max = config->tokens_max,
					.block_size = config->block_size,
					.chunk = config->chunk,
					.random = config->seed};
	snprintf(d->run_dir, sizeof(d->run_dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(d->run_dir));
	driver_parallel(config->ranks, open_rank, &o);
	for (u32 r = 0; r < config->ranks; r++)
		cr_assert_eq(o.e[r], ERR_OK, "rank %u: %s", r, o.em[r].text);
	mirror_init(&d->mirror, config->block_size);
	u32 blocks = d->runners[0]->block_count;
	request_rows_init(&d->rows, blocks < 400 ? blocks : 400);
}

void driver_close(struct driver *d)
{
	for (u32 r = d->config.ranks; r-- > 0;)
		runner_destroy(&d->runners[r]);
	rmdir(d->run_dir);
}

/* ---------------------------------------------------------------- planning */

static void drop_rows(struct driver *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		int i = d->rows.of_row[row];
		if (i < 0)
			continue;
		if (d->rows.requests[i].outputs == d->rows.requests[i].output_count) {
			d->done[i] = true;
			request_rows_drop(&d->rows, &d->mirror, row);
		} else if (d->config.preempt_every && request_rows_draw(&d->rows) % d->config.preempt_every == 0) {
			d->started[i] = false;
			request_rows_drop(&d->rows, &d->mirror, row);
		}
	}
}

static void add(struct driver *d, u32 row, u32 index)
{
	u32 blocks[MIRROR_BLOCKS], count = request_rows_take_blocks(&d->rows, index, blocks);

	request_rows_add(&d->rows, &d->mirror, row, index, blocks, count, 0);
	d->started[index] = true;
}

static void add_rows(struct driver *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		u32 first = request_rows_draw(&d->rows) % d->request_count;
		for (u32 i = 0; d->rows.of_row[row] < 0 && i < d->request_count; i++) {
			u32 index = (first + i) % d->request_count;
			if (!d->started[index] && request_rows_draw(&d->rows) % 3)
				add(d, row, index);
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
	struct driver_request *q = &d->rows.requests[d->rows.of_row[row]];
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
		s->d->runners[rank]->keeps_tokens |= s->d->rows.requests[i].prompt_logits != NULL;
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
			return &d->rows.requests[d->rows.of_row[row]];
	cr_assert(false, "a result for sequence %llu, which does not run", (unsigned long long)seq);
	return NULL;
}

static void take_logprobs(struct driver *d, const struct ipc_result *r)
{
	for (u32 i = 0, at = 0; i < r->lp_entry_count; at += r->lp_count[i++]) {
		struct logprob_list l = {r->lp_count[i], r->lp_rank[i], r->lp_ids + at, r->lp_values + at};
		request_take_logprobs(request_of(d, r->seq[r->lp_entry[i]]), r->position[r->lp_entry[i]], &l);
	}
	for (u32 i = 0, at = 0; i < r->plp_seq_count; at += r->plp_count[i++]) {
		struct logprob_list l = {r->plp_count[i], r->plp_rank[i], r->plp_ids + at, r->plp_values + at};
		request_take_prompt_logprobs(request_of(d, r->plp_seq[i]), r->plp_position[i], &l);
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
	d->rows.requests = requests;
	d->request_count = count;
	d->started = calloc(count, sizeof(bool));
	d->done = calloc(count, sizeof(bool));
	while (!all_done(d)) {
		struct stepping s = {.d = d};
		cr_assert_lt(d->steps++, 100000);
		mirror_begin(&d->mirror);
		drop_rows(d);
		add_rows(d);
		request_rows_plan(&d->rows, &d->mirror, 0);
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
