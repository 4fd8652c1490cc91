/* The simulator's world: clients, the worker, and the wire between them, which delays and repeats. Everything
 * comes from one random state, so that a seed repeats a run exactly. */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/step_digest.h"

u32 sim_random(u64 *rng, u32 below)
{
	*rng += 0x9e3779b97f4a7c15u;
	return below ? (u32)(step_digest_mix(*rng) % below) : 0;
}

void sim_fail(const struct sim_world *w, const char *fmt, ...)
{
	const struct sched_config *c = &w->config;
	va_list args;

	printf("FAILED: seed %" PRIu64 ", step %" PRIu64 ": ", w->seed, w->steps);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\nrows %u, budget %u, threshold %u, queue %u, by priority %d, depth %u, guesses %u, blocks %u (host %u) of %u, context %u, cache "
	       "%d\n",
	       c->max_num_seqs, c->max_num_batched_tokens, c->long_prefill_token_threshold,
	       c->max_queued_requests, c->by_priority, c->async_depth, c->draft_max, c->block_count, c->host_block_count, c->block_size, c->max_model_len,
	       c->prefix_caching);
	exit(EXIT_FAILURE);
}

/* ---------------------------------------------------------------- life */

static void on_open(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens)
{
	struct sim_world *w = ctx;

	(void)x;
	(void)tokens;
	if (!q->opened)
		sim_fail(w, "sequence %" PRIu64 " opened without a mark", q->id);
}

static void on_close(void *ctx, const struct seq *q, enum finish_reason reason, const char *text)
{
	struct sim_world *w = ctx;

	(void)text;
	if (!q->opened)
		sim_fail(w, "sequence %" PRIu64 " closed, but never opened", q->id);
	sim_check_told(w, q, reason);
}

static void on_result(void *ctx, const struct ipc_result *m)
{
	sim_check_result(ctx, m);
}

static void on_kept(void *ctx, u64 seq, u32 output_count)
{
	struct sim_world *w = ctx;

	if (seqs_find(&w->sched->seqs, seq))
		sim_fail(w, "sequence %" PRIu64 " is told to be kept with %u outputs, and runs", seq, output_count);
}

static void on_end(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   enum finish_reason reason, const char *text)
{
	(void)x;
	(void)text;
	sim_check_request_end(ctx, q, tokens, reason);
}

static void *zeroed(size_t count, size_t bytes)
{
	void *p = calloc(count, bytes);

	ASSERT(p);
	return p;
}

struct sim_world *sim_world_create(u64 seed, u64 rng, const struct sched_config *config)
{
	struct sim_world *w = zeroed(1, sizeof(*w));
	struct sched_sink sink = {w, on_open, on_close, on_end, on_result, on_kept};
	struct err_msg em;

	w->seed = seed;
	w->rng = rng;
	w->now_ns = 1000;
	w->config = *config;
	w->epoch = 1;
	enum err e = stats_create(&w->stats, NULL, "sim", &em);
	ASSERT(e == ERR_OK);
	e = sched_create(&w->sched, config, &sink, w->stats, &em);
	ASSERT(e == ERR_OK);
	struct batch_limits limits = {.rows_max = config->max_num_seqs,
				      .tokens_max = config->max_num_batched_tokens,
				      .max_model_len = w->sched->context_max,
				      .block_size = config->block_size,
				      .block_count = config->block_count,
				      .vocab_size = config->vocab_size,
				      .host_block_count = config->host_block_count,
				      .draft_max = config->draft_max,
				      .draft_rows = sim_random(&rng, 3) ? config->max_num_seqs : 2,
				      .draft_end = config->kv_by_prompt ? 0 : config->kv_switch_len,
				      .recurrent = config->recurrent,
				      .state_slots = config->state_slots};
	fake_worker_init(&w->worker, &limits);
	w->results = zeroed(SCHED_FLIGHTS_MAX + 1, sizeof(*w->results));
	w->stale = zeroed(1, sizeof(*w->stale));
	w->requests = zeroed(SIM_REQUESTS_MAX, sizeof(*w->requests));
	w->refs = zeroed(config->block_count, sizeof(u32));
	sim_sessions_init(w);
	w->host_refs = zeroed(config->host_block_count + 1, sizeof(u32));
	return w;
}

void sim_world_destroy(struct sim_world **out)
{
	struct sim_world *w = *out;

	sched_destroy(&w->sched);
	sessions_destroy(&w->config.sessions);
	stats_destroy(&w->stats);
	fake_worker_fini(&w->worker);
	free(w->results);
	free(w->stale);
	free(w->requests);
	free(w->refs);
	free(w->host_refs);
	free(w);
	*out = NULL;
}

/* ---------------------------------------------------------------- clients */

/* What one sequence may have; the pool may have shrunk with a restart. */
static u32 context_now(const struct sim_world *w)
{
	u32 pool_tokens = w->sched->kv.count * w->config.block_size;

	return w->sched->context_max < pool_tokens ? w->sched->context_max : pool_tokens;
}

/* Prompts share beginnings, often whole: few words, few lengths; and some are what another one's answer makes of it. */
static void random_prompt(struct sim_world *w, struct sim_request *r)
{
	u32 room = context_now(w) - 1;
	u32 limit = room < SIM_PROMPT_MAX - 1 ? room : SIM_PROMPT_MAX - 1;
	u32 family = w->alike ? 0 : sim_random(&w->rng, 3);

	r->prompt_count = 1 + sim_random(&w->rng, limit);
	if (sim_random(&w->rng, 2)) {
		u32 blocks = r->prompt_count / w->config.block_size;
		r->prompt_count = blocks ? blocks * w->config.block_size : r->prompt_count;
	}
	for (u32 i = 0; i < r->prompt_count; i++)
		r->tokens[i] = 1 + (family * 7 + i * 3) % (w->config.vocab_size - 1);
	u32 kind = w->alike ? 2 : sim_random(&w->rng, 4);
	if (kind < 2)
		r->tokens[sim_random(&w->rng, r->prompt_count)] = 1 + sim_random(&w->rng, 5);
	for (u32 i = kind == 2 ? SIM_PROMPT_LEAST : r->prompt_count; i < r->prompt_count; i++)
		r->tokens[i] = fake_next_token(r->tokens, i, w->config.vocab_size);
}

/* Some come back from an earlier life with outputs. */
static void random_outputs(struct sim_world *w, struct sim_request *r)
{
	u32 wanted = sim_random(&w->rng, 4) ? 0 : sim_random(&w->rng, r->output_max + 1);
	u32 room = SIM_PROMPT_MAX - r->prompt_count;

	for (; r->start_count < wanted && r->start_count < room; r->start_count++) {
		u32 n = r->prompt_count + r->start_count;
		r->tokens[n] = fake_next_token(r->tokens, n, w->config.vocab_size);
		if (r->tokens[n] == 0 || r->tokens[n] == r->stop_id)
			return; /* it may have ended */
	}
}

struct ipc_submit sim_submit_message(struct sim_world *w, const struct sim_request *r)
{
	struct sampling_params p;
	struct ipc_submit m = {
		.client_id = r->client_id,
		.req_id = r->req_id,
		.cache_salt = !w->alike && sim_random(&w->rng, 6) == 0,
		.priority = w->config.by_priority ? (i32)sim_random(&w->rng, 5) - 2 : 0,
		.output_count = r->start_count,
		.tokens = r->tokens,
		.tokens_count = r->prompt_count + r->start_count,
		.stop_ids = &r->stop_id,
		.stop_ids_count = r->stop_id != UINT32_MAX,
	};

	sampling_params_default(&p);
	p.max_tokens = 1 + sim_random(&w->rng, 40);
	p.min_tokens = sim_random(&w->rng, 3) ? 0 : sim_random(&w->rng, p.max_tokens);
	p.prompt_logprobs = sim_random(&w->rng, 10) ? -1 : 1;
	if (sim_random(&w->rng, 3) == 0)
		p.flags |= SAMPLING_IGNORE_EOS;
	if (sim_random(&w->rng, 8) == 0)
		p.flags |= SAMPLING_NO_CACHE_READ;
#define SET_PARAM(A, type, name, def, min, max) m.name = p.name;
	SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
	return m;
}

u32 sim_grammar(u64 client_id, u64 req_id, const struct sampling_params *p, bool session, char *source)
{
	if (req_id % 3 || p->beam_width || (p->flags & SAMPLING_IGNORE_EOS) || session)
		return 0;
	return (u32)snprintf(source, SIM_GRAMMAR_BYTES_MAX, "%llu of client %llu", (unsigned long long)req_id,
			     (unsigned long long)client_id);
}

/* The fake worker samples as ever: what counts is that the row has its grammar, and no least length. */
static void constrain(const struct sim_request *r, struct ipc_submit *m, char *source)
{
	struct sampling_params p = {.beam_width = m->beam_width, .flags = m->flags};

	m->grammar_count = sim_grammar(r->client_id, r->req_id, &p, false, source);
	m->grammar = (const u8 *)source;
	m->grammar_kind = m->grammar_count ? GRAMMAR_REGEX : GRAMMAR_KIND_NONE;
}

void sim_set_limits(const struct sim_world *w, struct sim_request *r, const struct ipc_submit *m)
{
	u32 room = context_now(w) - r->prompt_count;

	r->output_max = m->max_tokens < room ? m->max_tokens : room;
	r->min_tokens = m->grammar_kind ? 0 : m->min_tokens;
	r->ignore_eos = m->flags & SAMPLING_IGNORE_EOS;
}

/* A third of them searches, with a few outputs: the simulator does all of it once more. */
static void make_search(struct sim_world *w, struct sim_request *r, struct ipc_submit *m)
{
	static const f64 penalties[] = {1, 0, 0.5, 2, -1};
	u32 width_max = w->config.max_num_seqs < w->config.max_num_batched_tokens ? w->config.max_num_seqs
										    : w->config.max_num_batched_tokens;

	if (sim_random(&w->rng, w->alike ? 12 : 3))
		return;
	r->width = 1 + sim_random(&w->rng, width_max < 6 ? width_max : 6);
	r->length_penalty = penalties[sim_random(&w->rng, COUNT_OF(penalties))];
	r->early_stopping = sim_random(&w->rng, 3) == 0;
	m->beam_width = r->width;
	m->answer_count = 1 + sim_random(&w->rng, r->width);
	m->length_penalty = r->length_penalty;
	m->temperature = 0;
	m->max_tokens = 1 + m->max_tokens % 12;
	/* The fake worker does not mask ends. */
	m->min_tokens = 0;
	if (r->early_stopping)
		m->flags |= SAMPLING_EARLY_STOPPING;
}

/* The answers behind the first one are requests of their own to who counts their ends. */
static void add_answers(struct sim_world *w, const struct sim_request *r, u32 count)
{
	for (u32 i = 1; i < count; i++) {
		struct sim_request *a = &w->requests[w->request_count++];
		*a = *r;
		a->answer = i;
		a->req_id += i;
	}
}

void sim_submit(struct sim_world *w)
{
	struct sched_admission admission;
	struct err_msg em;

	if (w->request_count + BEAM_WIDTH_MAX > SIM_REQUESTS_MAX || context_now(w) < 2)
		return;
	if (w->config.sessions && sim_random(&w->rng, 2)) {
		sim_submit_turn(w, context_now(w) - 1);
		return;
	}
	struct sim_request *r = &w->requests[w->request_count];
	*r = (struct sim_request){.client_id = 1 + sim_random(&w->rng, SIM_CLIENTS),
				  .req_id = w->request_count + 1};
	r->stop_id = sim_random(&w->rng, 3) ? UINT32_MAX : sim_random(&w->rng, w->config.vocab_size);
	random_prompt(w, r);
	struct ipc_submit m = sim_submit_message(w, r);
	make_search(w, r, &m);
	char source[SIM_GRAMMAR_BYTES_MAX];
	constrain(r, &m, source);
	sim_set_limits(w, r, &m);
	if (!r->width)
		random_outputs(w, r);
	m.output_count = r->start_count;
	m.tokens_count = r->prompt_count + r->start_count;
	r->live = true;
	w->request_count++; /* it may end at once */
	u32 first = w->request_count - 1;
	add_answers(w, r, m.answer_count);
	enum err e = sched_submit(w->sched, &m, w->now_ns, &admission, &em);
	if (e == ERR_OK) {
		r->seq = admission.seq;
		w->accepted++;
		return;
	}
	w->request_count = first;
	if (e != ERR_BUSY && !(r->width && e == ERR_NEVER_FITS))
		sim_fail(w, "a good request was refused: %s", em.text);
}

static struct sim_request *any_live(struct sim_world *w)
{
	for (u32 tries = 0; tries < 8 && w->request_count; tries++) {
		u32 back = sim_random(&w->rng, w->request_count < 40 ? w->request_count : 40);
		struct sim_request *r = &w->requests[w->request_count - 1 - back];
		if (r->live)
			return r;
	}
	return NULL;
}

void sim_abort_any(struct sim_world *w)
{
	struct sim_request *r = any_live(w);

	if (r && !sched_abort(w->sched, r->client_id, r->req_id, w->now_ns))
		sim_fail(w, "request %" PRIu64 " lives, but cannot be aborted", r->req_id);
	if (r && sched_abort(w->sched, r->client_id, r->req_id, w->now_ns))
		sim_fail(w, "request %" PRIu64 " was aborted twice", r->req_id);
}

void sim_abort_client(struct sim_world *w)
{
	sched_abort_client(w->sched, 1 + sim_random(&w->rng, SIM_CLIENTS), w->now_ns);
}

void sim_stop_any(struct sim_world *w)
{
	struct sim_request *r = any_live(w);

	if (!r || r->answer) /* only the first answer is open before the end */
		return;
	const struct seq *q = seqs_find(&w->sched->seqs, r->seq);
	if (!q)
		return;
	/* The detokenizer may have tokens that the scheduler has not yet, and none that are not on their way. */
	u32 most = seq_output_count(q) + q->in_flight;
	for (u32 i = 0; i < w->result_count; i++)
		most += sim_guessed(&w->results[i], q->id);
	u32 at = most ? 1 + sim_random(&w->rng, most) : 0;
	sched_stopped(w->sched, r->seq, at, w->now_ns);
	sched_stopped(w->sched, r->seq, at, w->now_ns); /* a late one more does nothing */
}

/* ---------------------------------------------------------------- worker and wire */

void sim_restart_workers(struct sim_world *w)
{
	u32 blocks = w->config.block_count, host_blocks = w->config.host_block_count;

	if (sim_random(&w->rng, 3) == 0)
		blocks -= sim_random(&w->rng, blocks / 2 + 1);
	if (sim_random(&w->rng, 3) == 0)
		host_blocks = sim_random(&w->rng, host_blocks + 1);
	u32 states = sim_random(&w->rng, 3) ? w->config.state_slots : sim_random(&w->rng, w->config.state_slots + 1);
	sched_restart_workers(w->sched, blocks, host_blocks, states, w->now_ns);
	fake_worker_reset(&w->worker, w->sched->kv.count, w->sched->context_max);
	w->result_count = 0;
	w->epoch++;
	w->restarts++;
}

static void count_copies(struct sim_world *w, const struct ipc_step *step)
{
	for (u32 i = 0; i < step->copy_src_count; i++) {
		w->swaps_out += step->copy_dst[i] >= w->sched->kv.count;
		w->swaps_in += step->copy_src[i] >= w->sched->kv.count;
	}
	w->copies += step->copy_src_count;
	w->forks += step->fork_row_count;
	w->loads += step->load_slot_count;
	w->saves += step->save_row_count;
}

u32 sim_guessed(const struct fake_result *r, u64 seq)
{
	u32 count = 0;

	for (u32 i = 1; i < r->count; i++)
		count += r->seq[i] == r->seq[i - 1] && (seq == 0 || r->seq[i] == seq);
	return count;
}

bool sim_plan(struct sim_world *w)
{
	struct err_msg em;
	const struct ipc_step *step = sched_plan(w->sched, w->now_ns);

	if (!step)
		return false;
	w->steps++;
	count_copies(w, step);
	ASSERT(w->result_count < SCHED_FLIGHTS_MAX + 1);
	struct fake_result *r = &w->results[w->result_count];
	r->epoch = w->epoch;
	enum err e = fake_worker_step(&w->worker, step, r, &em);
	if (e)
		sim_fail(w, "%s: %s", err_name(e), em.text);
	w->guessed += sim_guessed(r, 0);
	sim_check_step(w, step);
	if (w->config.sessions)
		sim_check_sessions(w);
	if (w->sched->diff.tokens_run)
		w->result_count++;
	return true;
}

static void deliver(struct sim_world *w, const struct fake_result *r)
{
	struct ipc_result m = fake_result_message(r);
	struct err_msg em;

	if (r->epoch != w->epoch)
		return;
	m.forward_us = r->step / 100 % 2 ? 100 : 10000; /* short steps and long ones by turns */
	enum err e = sched_result(w->sched, &m, w->now_ns, &em);
	if (e)
		sim_fail(w, "%s: %s", err_name(e), em.text);
}

bool sim_deliver(struct sim_world *w)
{
	if (w->result_count == 0)
		return false;
	*w->stale = w->results[0];
	w->result_count--;
	memmove(&w->results[0], &w->results[1], w->result_count * sizeof(*w->results));
	deliver(w, w->stale);
	return true;
}

void sim_deliver_stale(struct sim_world *w)
{
	deliver(w, w->stale);
}
