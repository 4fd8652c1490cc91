/* tercet bench control-plane: what a step costs besides the model. The real scheduling core plans, the real
 * codec encodes and decodes, the real batch state applies; tokens are made up. One JSON line on standard
 * output.
 *
 * Steady decode: all requests run, one token a step each, async depth as given. A process of its own, run by
 * hand; links the scheduler and the worker as only tests and benchmarks may. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/step_digest.h"
#include "ipc/ipc.h"
#include "proc_scheduler/sched.h"
#include "proc_worker/batch_state.h"

enum {
	PROMPT_MIN = 64,
	PROMPT_SPREAD = 256,
	VOCAB_SIZE = 32000,
	WARM_STEPS = 200,
	FULL_STATE_SAMPLES = 4,
	EXIT_USAGE = 2
};
enum span { SPAN_PLAN, SPAN_ENCODE, SPAN_APPLY, SPAN_TOTAL, SPAN_RESULT, SPAN_COUNT };

static const char *const span_names[SPAN_COUNT] = {"plan_us", "encode_us", "apply_us", "total_us",
						   "result_us"};

struct bench_config {
	u32 requests, steps, block_size, depth;
	bool prefix_caching;
};

struct bench_flight {
	u64 step;
	u32 count;
	u64 seq[IPC_ROWS_MAX];
	u32 position[IPC_ROWS_MAX], token[IPC_ROWS_MAX];
};

struct bench {
	struct bench_config config;
	struct sched *sched;
	struct stats_page *stats;
	struct batch_state *batch;
	struct buf frame;
	struct ipc_scratch scratch;
	struct bench_flight flights[SCHED_DEPTH_MAX + 1];
	u32 flight_count;
	u32 *ns[SPAN_COUNT]; /* [steps] */
	u32 measured;
	u64 diff_bytes, full_bytes, full_samples;
};

static void die(const char *what, enum err e, const struct err_msg *em)
{
	fprintf(stderr, "bench control-plane: %s: %s: %s\n", what, err_text(e), em->text);
	exit(EXIT_FAILURE);
}

/* ---------------------------------------------------------------- set-up */

static void on_open(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens)
{
	(void)ctx, (void)q, (void)x, (void)tokens;
}

static void on_close(void *ctx, const struct seq *q, enum finish_reason reason, const char *text)
{
	(void)ctx, (void)q, (void)reason, (void)text;
}

static void on_result(void *ctx, const struct ipc_result *m)
{
	(void)ctx;
	(void)m;
}

static void on_kept(void *ctx, u64 seq, u32 output_count)
{
	(void)ctx, (void)seq, (void)output_count;
}

static void on_end(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   enum finish_reason reason, const char *text)
{
	(void)ctx, (void)q, (void)x, (void)tokens, (void)reason, (void)text;
}

static void create(struct bench *b)
{
	const struct bench_config *c = &b->config;
	u32 context = PROMPT_MIN + PROMPT_SPREAD + WARM_STEPS + c->steps + c->requests;
	u32 blocks_of_one = context / c->block_size + 2;
	struct sched_config sc = {
		.max_num_seqs = c->requests,
		.max_num_batched_tokens = 8192,
		.max_queued_requests = c->requests,
		.async_depth = c->depth,
		.block_size = c->block_size,
		.block_count = blocks_of_one * c->requests,
		.max_model_len = context,
		.vocab_size = VOCAB_SIZE,
		.prefix_caching = c->prefix_caching,
		.secret = {1, 2, 3, 4, 5, 6, 7, 8, 9},
	};
	struct batch_limits limits = {c->requests, 8192, context, c->block_size, sc.block_count, VOCAB_SIZE, 0};
	struct sched_sink sink = {b, on_open, on_close, on_end, on_result, on_kept};
	struct err_msg em = {""};
	enum err e = stats_create(&b->stats, NULL, "bench", &em);

	if (!e)
		e = sched_create(&b->sched, &sc, &sink, b->stats, &em);
	if (!e)
		e = batch_state_create(&b->batch, &limits, &em);
	for (u32 i = 0; i < SPAN_COUNT; i++) {
		b->ns[i] = calloc(c->steps, sizeof(u32));
		if (!b->ns[i])
			e = err_set(&em, ERR_NO_MEMORY, "no memory for %u samples", c->steps);
	}
	if (e)
		die("cannot start", e, &em);
}

static void submit_all(struct bench *b)
{
	u32 prompt[PROMPT_MIN + PROMPT_SPREAD];
	struct sampling_params p;
	struct sched_admission admission;
	struct err_msg em;
	u64 rng = 1;

	sampling_params_default(&p);
	p.max_tokens = 0x7fffffff;
	p.flags |= SAMPLING_IGNORE_EOS;
	for (u32 i = 0; i < b->config.requests; i++) {
		/* Lengths spread, so that blocks do not fill up in the same step for all. */
		struct ipc_submit m = {.client_id = 1, .req_id = i + 1, .tokens = prompt};
		m.tokens_count = PROMPT_MIN + (u32)(step_digest_mix(++rng) % PROMPT_SPREAD);
		for (u32 j = 0; j < m.tokens_count; j++)
			prompt[j] = (u32)(step_digest_mix(++rng) % VOCAB_SIZE);
#define SET_PARAM(A, type, name, def, min, max) m.name = p.name;
		SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
		enum err e = sched_submit(b->sched, &m, clock_now_ns(), &admission, &em);
		if (e)
			die("submit", e, &em);
	}
}

/* ---------------------------------------------------------------- steps */

static void sample(struct bench *b, u64 step)
{
	struct bench_flight *f = &b->flights[b->flight_count++];
	const struct batch_state *w = b->batch;

	f->step = step;
	f->count = w->sample_count;
	for (u32 i = 0; i < f->count; i++) {
		u32 row = w->sample_rows[i];
		f->seq[i] = w->rows[row].seq;
		f->position[i] = w->known[row] - w->rows[row].prompt_count;
		f->token[i] = (u32)(step_digest_mix(f->seq[i] + f->position[i]) % VOCAB_SIZE);
	}
	batch_state_commit(b->batch, f->token);
}

static u32 deliver(struct bench *b)
{
	struct bench_flight *f = &b->flights[0];
	struct ipc_result m = {
		.step = f->step,
		.seq = f->seq,
		.seq_count = f->count,
		.position = f->position,
		.position_count = f->count,
		.token = f->token,
		.token_count = f->count,
	};
	struct err_msg em;
	u64 begin = clock_now_ns();
	enum err e = sched_result(b->sched, &m, begin, &em);

	if (e)
		die("result", e, &em);
	u32 ns = (u32)(clock_now_ns() - begin);
	b->flight_count--;
	memmove(&b->flights[0], &b->flights[1], b->flight_count * sizeof(b->flights[0]));
	return ns;
}

/* One step through plan, codec and batch state; its times go to `ns` unless that is NULL. */
static void step(struct bench *b, u32 ns[SPAN_COUNT])
{
	struct err_msg em;
	struct ipc_msg received;
	u64 t0 = clock_now_ns();
	const struct ipc_step *planned = sched_plan(b->sched, t0);
	u64 t1 = clock_now_ns();

	ASSERT(planned);
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .epoch = 1, .step = *planned};
	buf_clear(&b->frame);
	ipc_encode(&msg, &b->frame);
	u64 t2 = clock_now_ns();
	enum err e = ipc_decode(b->frame.data, b->frame.bytes, &b->scratch, &received, &em);
	if (!e)
		e = batch_state_apply(b->batch, &received.step, &em);
	u64 t3 = clock_now_ns();
	if (e)
		die("apply", e, &em);
	sample(b, planned->step);
	if (!ns)
		return;
	ns[SPAN_PLAN] = (u32)(t1 - t0);
	ns[SPAN_ENCODE] = (u32)(t2 - t1);
	ns[SPAN_APPLY] = (u32)(t3 - t2);
	ns[SPAN_TOTAL] = (u32)(t3 - t0);
	b->diff_bytes += b->frame.bytes;
}

/* What a message would have that carries every row whole, as engines without a mirrored state have to send
 * it. */
static void measure_full_state(struct bench *b)
{
	const struct sched *s = b->sched;
	struct step_diff full;
	u64 tokens = 0, blocks = 0;

	for (u32 i = 0; i < s->running.count; i++) {
		tokens += s->seqs.slots[s->running.slots[i]].known;
		blocks += s->seqs.slots[s->running.slots[i]].block_count;
	}
	enum err e = step_diff_init(&full, b->config.requests, (u32)tokens, (u32)blocks);
	if (e)
		die("full state", e, &(struct err_msg){""});
	for (u32 i = 0; i < s->running.count; i++) {
		const struct seq *q = &s->seqs.slots[s->running.slots[i]];
		step_diff_add(&full, q, seqs_extra(&s->seqs, q), seqs_tokens(&s->seqs, q),
			      sched_blocks(s, q));
	}
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .epoch = 1, .step = *step_diff_finish(&full)};
	struct buf frame = {0};
	ipc_encode(&msg, &frame);
	b->full_bytes += frame.bytes;
	b->full_samples++;
	buf_fini(&frame);
	step_diff_fini(&full);
}

static void warm_up(struct bench *b)
{
	u32 steps = 0;

	while (steps < WARM_STEPS || b->sched->waiting.count) {
		step(b, NULL);
		if (b->flight_count > b->config.depth)
			deliver(b);
		steps++;
	}
}

static void measure(struct bench *b)
{
	u32 every = b->config.steps / FULL_STATE_SAMPLES;

	for (u32 i = 0; i < b->config.steps; i++) {
		u32 ns[SPAN_COUNT] = {0};
		step(b, ns);
		if (b->flight_count > b->config.depth)
			ns[SPAN_RESULT] = deliver(b);
		for (u32 j = 0; j < SPAN_COUNT; j++)
			b->ns[j][i] = ns[j];
		if (every && i % every == every / 2)
			measure_full_state(b);
	}
}

/* ---------------------------------------------------------------- report */

static int compare_u32(const void *a, const void *b)
{
	u32 x = *(const u32 *)a, y = *(const u32 *)b;

	return x < y ? -1 : x > y;
}

static double rounded(double value, double unit)
{
	return (double)(i64)(value / unit + 0.5) * unit;
}

static void report(struct bench *b)
{
	const struct bench_config *c = &b->config;
	struct buf out = {0};
	struct json_writer w;
	double bytes = (double)b->diff_bytes / c->steps;

	json_begin(&w, &out);
	json_object_begin(&w);
	json_key(&w, "bench");
	json_write_cstr(&w, "control-plane");
	json_key(&w, "requests");
	json_write_uint(&w, c->requests);
	json_key(&w, "steps");
	json_write_uint(&w, c->steps);
	json_key(&w, "block_size");
	json_write_uint(&w, c->block_size);
	json_key(&w, "async_depth");
	json_write_uint(&w, c->depth);
	for (u32 i = 0; i < SPAN_COUNT; i++) {
		qsort(b->ns[i], c->steps, sizeof(u32), compare_u32);
		json_key(&w, span_names[i]);
		json_object_begin(&w);
		json_key(&w, "p50");
		json_write_double(&w, (double)b->ns[i][c->steps / 2] / 1e3);
		json_key(&w, "p99");
		json_write_double(&w, (double)b->ns[i][(u64)c->steps * 99 / 100] / 1e3);
		json_object_end(&w);
	}
	json_key(&w, "diff_bytes_per_step");
	json_write_double(&w, rounded(bytes, 0.25));
	json_key(&w, "diff_bytes_per_request_and_step");
	json_write_double(&w, rounded(bytes / c->requests, 1.0 / 1024));
	json_key(&w, "full_state_bytes_per_step");
	json_write_uint(&w, b->full_samples ? b->full_bytes / b->full_samples : 0);
	json_object_end(&w);
	puts(buf_cstr(&out));
	buf_fini(&out);
}

static void destroy(struct bench *b)
{
	sched_destroy(&b->sched);
	batch_state_destroy(&b->batch);
	stats_destroy(&b->stats);
	buf_fini(&b->frame);
	ipc_scratch_fini(&b->scratch);
	for (u32 i = 0; i < SPAN_COUNT; i++)
		free(b->ns[i]);
}

static const char usage[] = "usage: tercet bench control-plane [--requests N] [--steps N] [--block-size N] "
			    "[--async-depth N] [--no-prefix-cache]\n"
			    "\n"
			    "Times planning, encoding and applying of steps in steady decode without a "
			    "model; prints one JSON line.\n"
			    "  --requests N      running requests, 1 to 1024 (256)\n"
			    "  --steps N         steps measured, 1 to 1000000 (5000)\n"
			    "  --block-size N    tokens in a KV block, 1 to 256 (16)\n"
			    "  --async-depth N   0, 1 or 2 (2)\n"
			    "  --no-prefix-cache\n";

static bool read_number(const char *text, u32 min, u32 max, u32 *out)
{
	char *end;
	unsigned long v = text ? strtoul(text, &end, 10) : 0;

	if (!text || *text < '0' || *text > '9' || *end || v < min || v > max)
		return false;
	*out = (u32)v;
	return true;
}

static bool read_arguments(int argc, char **argv, struct bench_config *c)
{
	const struct {
		const char *name;
		u32 min, max, *out;
	} numbers[] = {
		{"--requests", 1, IPC_ROWS_MAX, &c->requests},
		{"--steps", 1, 1000000, &c->steps},
		{"--block-size", 1, 256, &c->block_size},
		{"--async-depth", 0, SCHED_DEPTH_MAX, &c->depth},
	};

	for (int i = 1; i < argc; i++) {
		u32 k = 0;
		while (k < COUNT_OF(numbers) && strcmp(argv[i], numbers[k].name))
			k++;
		if (k < COUNT_OF(numbers)) {
			if (!read_number(argv[++i], numbers[k].min, numbers[k].max, numbers[k].out)) {
				fprintf(stderr, "bench control-plane: %s needs a number from %u to %u\n",
					numbers[k].name, numbers[k].min, numbers[k].max);
				return false;
			}
		} else if (!strcmp(argv[i], "--no-prefix-cache")) {
			c->prefix_caching = false;
		} else {
			fprintf(stderr, "bench control-plane: unknown argument '%s'\n%s", argv[i], usage);
			return false;
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	struct bench b = {.config = {256, 5000, 16, 2, true}};

	if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage, stdout);
		return EXIT_SUCCESS;
	}
	if (!read_arguments(argc, argv, &b.config))
		return EXIT_USAGE;
	create(&b);
	submit_all(&b);
	warm_up(&b);
	measure(&b);
	report(&b);
	destroy(&b);
	return EXIT_SUCCESS;
}
