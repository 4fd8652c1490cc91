/* The fixture of the scheduler's unit tests. */
#include "tests/unit/proc_scheduler/fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct sched_config fixture_config(void)
{
	struct sched_config c = {
		.max_num_seqs = 8,
		.max_num_batched_tokens = 64,
		.max_queued_requests = 16,
		.async_depth = 0,
		.block_size = 4,
		.block_count = 64,
		.max_model_len = 128,
		.vocab_size = FIXTURE_VOCAB,
		.prefix_caching = true,
	};

	for (u32 i = 0; i < PREFIX_SECRET_BYTES; i++)
		c.secret[i] = (u8)(i * 7 + 1);
	return c;
}

static void on_open(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens)
{
	struct fixture *f = ctx;

	(void)x;
	(void)tokens;
	cr_assert_lt(f->opened_count, FIXTURE_RECORDS_MAX);
	f->opened[f->opened_count] = q->id;
	f->opened_outputs[f->opened_count++] = seq_output_count(q);
}

static void on_close(void *ctx, const struct seq *q, enum finish_reason reason, const char *text)
{
	struct fixture *f = ctx;

	(void)text;
	f->closed_reason[f->closed_count] = reason;
	f->closed_kept[f->closed_count] = q->session == 0;
	f->closed_outputs[f->closed_count] = seq_kept_count(q);
	f->closed[f->closed_count++] = q->id;
}

static void on_kept(void *ctx, u64 seq, u32 output_count)
{
	struct fixture *f = ctx;

	cr_assert_lt(f->closed_count, FIXTURE_RECORDS_MAX);
	f->closed_reason[f->closed_count] = FINISH_NONE;
	f->closed_kept[f->closed_count] = true;
	f->closed_outputs[f->closed_count] = output_count;
	f->closed[f->closed_count++] = seq;
}

static void on_result(void *ctx, const struct ipc_result *m)
{
	struct fixture *f = ctx;

	f->told_rows += m->seq_count;
	f->told_lists += m->lp_entry_count;
}

static void on_end(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   enum finish_reason reason, const char *text)
{
	struct fixture *f = ctx;
	struct fixture_end *e = &f->ends[f->end_count++];

	(void)x;
	cr_assert_leq(f->end_count, FIXTURE_RECORDS_MAX);
	cr_assert_leq(q->known, FIXTURE_TOKENS_MAX);
	*e = (struct fixture_end){q->id, q->req_id, reason, q->prompt_count, q->known, {0}, ""};
	memcpy(e->tokens, tokens, q->known * sizeof(u32));
	strncpy(e->text, text, sizeof(e->text) - 1);
}

struct fixture *fixture_create(const struct sched_config *config)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct sched_sink sink = {f, on_open, on_close, on_end, on_result, on_kept};
	struct err_msg em;

	cr_assert(f);
	f->now_ns = 1000000;
	cr_assert_eq(stats_create(&f->stats, NULL, "test", &em), ERR_OK);
	cr_assert_eq(sched_create(&f->s, config, &sink, f->stats, &em), ERR_OK, "%s", em.text);
	struct batch_limits limits = {.rows_max = config->max_num_seqs,
				      .tokens_max = config->max_num_batched_tokens,
				      .max_model_len = f->s->context_max,
				      .block_size = config->block_size,
				      .block_count = config->block_count,
				      .vocab_size = config->vocab_size,
				      .host_block_count = config->host_block_count,
				      .lora_count = config->loras ? config->loras->count : 0,
				      .draft_max = config->draft_max,
				      .draft_rows = config->max_num_seqs,
				      .recurrent = config->recurrent,
				      .state_slots = config->state_slots};
	fake_worker_init(&f->worker, &limits);
	return f;
}

void fixture_destroy(struct fixture **out)
{
	struct fixture *f = *out;

	sched_destroy(&f->s);
	stats_destroy(&f->stats);
	fake_worker_fini(&f->worker);
	free(f);
	*out = NULL;
}

struct ipc_submit fixture_message(u64 req_id, u32 first, u32 count, u32 max_tokens)
{
	static u32 tokens[FIXTURE_TOKENS_MAX];
	struct sampling_params p;
	struct ipc_submit m = {.client_id = 1, .req_id = req_id, .tokens = tokens, .tokens_count = count};

	cr_assert_leq(count, FIXTURE_TOKENS_MAX);
	for (u32 i = 0; i < count; i++)
		tokens[i] = (first + i) % FIXTURE_VOCAB;
	sampling_params_default(&p);
	p.max_tokens = max_tokens;
#define SET_PARAM(A, type, name, def, min, max) m.name = p.name;
	SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
	return m;
}

u64 fixture_submit(struct fixture *f, u32 first, u32 count, u32 max_tokens)
{
	struct ipc_submit m = fixture_message(++f->next_req_id, first, count, max_tokens);
	struct sched_admission a;
	struct err_msg em;

	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

struct seq *fixture_seq(struct fixture *f, u64 seq)
{
	return seqs_find(&f->s->seqs, seq);
}

const struct ipc_step *fixture_plan(struct fixture *f)
{
	struct err_msg em;
	const struct ipc_step *step = sched_plan(f->s, f->now_ns += 1000);

	if (!step)
		return NULL;
	enum err e = fake_worker_step(&f->worker, step, &f->results[f->result_count], &em);
	cr_assert_eq(e, ERR_OK, "%s", em.text);
	if (f->worker.batch->tokens_run || f->s->diff.tokens_run)
		f->result_count++;
	return step;
}

void fixture_deliver(struct fixture *f)
{
	struct ipc_result m = fake_result_message(&f->results[0]);
	struct err_msg em;

	cr_assert_gt(f->result_count, 0);
	m.forward_us = f->forward_us;
	cr_assert_eq(sched_result(f->s, &m, f->now_ns += 1000, &em), ERR_OK, "%s", em.text);
	f->result_count--;
	memmove(&f->results[0], &f->results[1], f->result_count * sizeof(f->results[0]));
}

void fixture_run(struct fixture *f)
{
	for (u32 i = 0; i < 10000; i++) {
		bool planned = fixture_plan(f) != NULL;
		if (!planned && f->result_count == 0)
			return;
		if (f->result_count)
			fixture_deliver(f);
	}
	cr_assert(false, "the scheduler never came to an end");
}

const struct fixture_end *fixture_end_of(const struct fixture *f, u64 seq)
{
	const struct fixture_end *found = NULL;

	for (u32 i = 0; i < f->end_count; i++) {
		if (f->ends[i].seq != seq)
			continue;
		cr_assert_null(found, "it ended twice");
		found = &f->ends[i];
	}
	return found;
}

bool fixture_is_solo_run(const struct fixture_end *e)
{
	for (u32 n = e->prompt_count; n < e->token_count; n++)
		if (e->tokens[n] != fake_next_token(e->tokens, n, FIXTURE_VOCAB))
			return false;
	return true;
}

u64 fixture_count(const struct fixture *f, enum stats_id id)
{
	return atomic_load(&f->stats->values[id]);
}
