/* `tercet logits`: owns the runners of all ranks for one prompt. Runs in a process of its own, as a worker
 * without channels; prints nothing but logits. */
#include "proc_worker/logits.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/json.h"
#include "proc_worker/runner.h"

enum { ROWS_MAX = 16 /* positions whose logits are computed at once */ };

struct scored {
	float logit;
	u32 id;
};

/* What the ranks share. */
struct job {
	const struct options *options;
	const struct logits_request *request;
	struct lora_modules loras; /* one at most */
	FILE *out;
	char dir[32]; /* of the collectives; empty with one rank */
	atomic_bool failed;
};

struct rank {
	struct job *job;
	u32 rank;
	struct runner *runner;
	struct scored *scored; /* [vocab]; rank 0 */
	struct buf line;
	enum err e;
	struct err_msg em;
};

/* ---------------------------------------------------------------- printing */

static int best_first(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static double log_sum_exp(const float *logits, u32 vocab)
{
	double best = -INFINITY, sum = 0;

	for (u32 i = 0; i < vocab; i++)
		best = logits[i] > best ? logits[i] : best;
	for (u32 i = 0; i < vocab; i++)
		sum += exp(logits[i] - best);
	return best + log(sum);
}

static void write_array(struct json_writer *w, const char *key, const struct scored *s, u32 count,
			double minus)
{
	json_key(w, key);
	json_array_begin(w);
	for (u32 i = 0; i < count; i++)
		json_write_float(w, (float)(s[i].logit - minus));
	json_array_end(w);
}

static enum err print_position(struct rank *r, u32 position, const float *logits, struct err_msg *em)
{
	const struct logits_request *q = r->job->request;
	u32 vocab = r->runner->model.vocab_size, count = q->top && q->top < vocab ? q->top : vocab;
	struct json_writer w;

	for (u32 i = 0; i < vocab; i++)
		r->scored[i] = (struct scored){logits[i], i};
	if (q->top)
		qsort(r->scored, vocab, sizeof(*r->scored), best_first);
	buf_clear(&r->line);
	json_begin(&w, &r->line);
	w.spaced = true;
	json_object_begin(&w);
	json_key(&w, "position");
	json_write_uint(&w, position);
	json_key(&w, "token_count");
	json_write_uint(&w, q->count);
	json_key(&w, "vocab_size");
	json_write_uint(&w, vocab);
	json_key(&w, "dtype");
	json_write_cstr(&w, r->runner->dtype == KERN_F32 ? "float32" : "bfloat16");
	json_key(&w, "ids");
	json_array_begin(&w);
	for (u32 i = 0; i < count; i++)
		json_write_uint(&w, r->scored[i].id);
	json_array_end(&w);
	write_array(&w, "logits", r->scored, count, 0);
	write_array(&w, "logprobs", r->scored, count, log_sum_exp(logits, vocab));
	json_object_end(&w);
	buf_append_char(&r->line, '\n');
	if (!buf_ok(&r->line))
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	if (fwrite(r->line.data, 1, r->line.bytes, r->job->out) != r->line.bytes)
		return err_set(em, ERR_IO, "cannot write the logits: %s", strerror(errno));
	return ERR_OK;
}

/* ---------------------------------------------------------------- computing */

/* Tokens [first, first + count) of the prompt as the only row of a step; its blocks are 0, 1, 2, ... */
static void fill_inputs(struct rank *r, u32 first, u32 count)
{
	const struct logits_request *q = r->job->request;
	struct inputs *in = &r->runner->inputs;

	for (u32 i = 0; i < count; i++) {
		in->ids[i] = q->ids[first + i];
		in->positions[i] = first + i;
		in->slots[i] = first + i;
	}
	for (u32 i = 0; i < in->block_stride; i++)
		in->block_tables[i] = i;
	in->query_start[0] = 0;
	in->query_start[1] = count;
	in->context[0] = first + count;
	in->prompt_count[0] = in->added_count[0] = q->count;
	in->lora[0] = in->lora_rows = r->job->loras.count; /* the only one, or none */
	in->rows = 1;
	in->tokens = count;
}

/* Logits after tokens [from, count) of the chunk that begins at `first`. */
static enum err print_chunk(struct rank *r, u32 first, u32 from, u32 count)
{
	u32 rows_max = r->runner->decoder.config.logit_rows_max, vocab = r->runner->model.vocab_size;
	u32 tokens[ROWS_MAX];
	float *logits;
	enum err e = ERR_OK;

	ASSERT(rows_max <= ROWS_MAX);
	for (u32 at = from; !e && at < count; at += rows_max) {
		u32 n = count - at < rows_max ? count - at : rows_max;
		for (u32 i = 0; i < n; i++)
			tokens[i] = at + i;
		e = decoder_logits(&r->runner->decoder, tokens, n, &logits, &r->em);
		for (u32 i = 0; !e && logits && i < n; i++)
			e = print_position(r, first + at + i, logits + (size_t)i * vocab, &r->em);
	}
	return e;
}

static enum err print_device_position(void *ctx, u32 position, const float *logits, struct err_msg *em)
{
	return print_position(ctx, position, logits, em);
}

static enum err compute(struct rank *r)
{
	const struct logits_request *q = r->job->request;
	struct runner *runner = r->runner;
	u32 chunk = runner->config.limits.tokens_max;
	enum err e = ERR_OK;

	if (runner->device)
		return runner_device_prompt(runner, q->ids, q->count, q->all, print_device_position, r, &r->em);
	for (u32 first = 0; !e && first < q->count; first += chunk) {
		u32 count = q->count - first < chunk ? q->count - first : chunk;
		bool last = first + count == q->count;
		fill_inputs(r, first, count);
		e = decoder_forward(&runner->decoder, &runner->inputs, runner->kv.layers, &r->em);
		if (!e && (q->all || last))
			e = print_chunk(r, first, q->all ? 0 : count - 1, count);
	}
	return e;
}

static enum err check_request(const struct options *o, const struct logits_request *q, struct err_msg *em)
{
	bool device = o->device == OPTION_DEVICE_CUDA;
	if (device && o->tensor_parallel_size > 1)
		return err_set(em, ERR_UNSUPPORTED,
			       "logits are computed in one process, which uses one device: leave "
			       "--tensor-parallel-size %lld away, or use --device cpu",
			       (long long)o->tensor_parallel_size);
	struct model_config *c = malloc(sizeof(*c));
	if (!c)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = model_config_read(c, o->model, em);
	for (u32 i = 0; !e && i < q->count; i++)
		if (q->ids[i] >= c->vocab_size)
			e = err_set(em, ERR_INVALID, "id %u is not below the vocabulary's %u", q->ids[i],
				    c->vocab_size);
	if (!e && device && c->index.top) /* devices have no indexer */
		c->context_max = c->index.top;
	if (!e && q->count > c->context_max)
		e = err_set(em, ERR_INVALID, "%u ids are more than the model's context of %u tokens",
			    q->count, c->context_max);
	if (!e && device && q->count == c->context_max)
		e = err_set(em, ERR_INVALID,
			    "%u ids fill the model's context; a device needs room for a token behind them: leave one "
			    "away, or use --device cpu",
			    q->count);
	free(c);
	return e;
}

static enum err load(struct rank *r)
{
	struct runner_config config = runner_config_from(r->job->options, r->rank);
	u32 count = r->job->request->count;

	config.run_dir = r->job->dir;
	config.loras = &r->job->loras;
	if (config.device != OPTION_DEVICE_CUDA)
		config.device = OPTION_DEVICE_CPU;
	count += config.device == OPTION_DEVICE_CUDA; /* where the sampled token would go, which nobody wants */
	config.swap_space = 0;
	config.limits.rows_max = ROWS_MAX;
	config.limits.max_model_len = count < CONTEXT_MIN ? CONTEXT_MIN : count;
	enum err e = runner_create(&r->runner, &config, &r->em);
	if (!e && r->runner->model.headless)
		e = err_set(&r->em, ERR_UNSUPPORTED, "the model has no logits: its files have no lm_head");
	if (!e)
		e = runner_begin(r->runner, 1, r->runner->block_count, r->runner->max_model_len, &r->em);
	if (!e && r->rank == 0) {
		r->scored = calloc(r->runner->model.vocab_size, sizeof(*r->scored));
		e = r->scored ? ERR_OK : err_set(&r->em, ERR_NO_MEMORY, "out of memory");
	}
	return e;
}

/* ---------------------------------------------------------------- ranks */

static void remove_dir(const struct job *job)
{
	char path[sizeof(job->dir) + 16];

	if (!job->dir[0])
		return;
	snprintf(path, sizeof(path), "%s/collectives", job->dir);
	unlink(path);
	rmdir(job->dir);
}

static void *run_rank(void *arg)
{
	struct rank *r = arg;

	r->e = load(r);
	if (!r->e)
		r->e = compute(r);
	if (r->e && r->job->dir[0]) {
		if (atomic_exchange(&r->job->failed, true))
			for (;;)
				pause(); /* the first one ends the process */
		fprintf(stderr, "tercet: %s\n", r->em.text);
		remove_dir(r->job);
		fflush(r->job->out);
		_exit(EXIT_FAILURE);
	}
	return NULL;
}

static void close_rank(struct rank *r)
{
	runner_destroy(&r->runner);
	free(r->scored);
	buf_fini(&r->line);
}

static enum err read_adapter(struct job *job, struct err_msg *em)
{
	enum err e = lora_modules_read(&job->loras, job->options, em);

	return e || job->loras.count <= 1
		       ? e
		       : err_set(em, ERR_INVALID, "%u adapters are given (--lora-modules); logits are those of one", job->loras.count);
}

enum err logits_print(const struct options *o, const struct logits_request *q, FILE *out, struct err_msg *em)
{
	struct job job = {.options = o, .request = q, .out = out};
	u32 ranks = (u32)o->tensor_parallel_size, started = 1;
	pthread_t threads[COLLECTIVES_RANKS_MAX];
	struct rank list[COLLECTIVES_RANKS_MAX] = {{0}};

	enum err e = check_request(o, q, em);
	if (!e && ranks > 1) {
		snprintf(job.dir, sizeof(job.dir), "/tmp/tercet-logits-XXXXXX");
		if (!mkdtemp(job.dir))
			return err_set(em, ERR_IO, "%s: %s", job.dir, strerror(errno));
	}
	if (!e)
		e = read_adapter(&job, em);
	if (e)
		goto end;
	for (u32 i = 0; i < ranks; i++)
		list[i] = (struct rank){.job = &job, .rank = i};
	for (; started < ranks; started++)
		if (pthread_create(&threads[started], NULL, run_rank, &list[started]) != 0) {
			e = err_set(em, ERR_NO_MEMORY, "cannot start a thread for rank %u", started);
			goto end;
		}
	run_rank(&list[0]);
	for (u32 i = 1; i < ranks; i++)
		pthread_join(threads[i], NULL);
	e = list[0].e;
	*em = list[0].em;
	for (u32 i = ranks; i-- > 0;)
		close_rank(&list[i]);
end:
	remove_dir(&job);
	lora_modules_fini(&job.loras);
	if (!e && fflush(out) != 0)
		e = err_set(em, ERR_IO, "cannot write the logits: %s", strerror(errno));
	return e;
}

/* ---------------------------------------------------------------- words */

static enum err parse_ids(struct logits_request *q, const char *text, struct err_msg *em)
{
	size_t commas = 0;
	char *end;

	for (const char *p = text; *p; p++)
		commas += *p == ',';
	u32 *ids = calloc(commas + 1, sizeof(*ids));
	if (!ids)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	q->ids = ids;
	for (const char *at = text;; at = end + 1) {
		errno = 0;
		unsigned long v = strtoul(at, &end, 10);
		if (end == at || *at == '-' || errno || v > UINT32_MAX || (*end && *end != ','))
			return err_set(em, ERR_INVALID,
				       "--ids is \"%.60s\": it must be token ids separated by commas", text);
		ids[q->count++] = (u32)v;
		if (!*end)
			return ERR_OK;
	}
}

enum err logits_parse(struct logits_request *q, const char *which, const char *top, const char *ids,
		      struct err_msg *em)
{
	char *end;

	*q = (struct logits_request){.all = !strcmp(which, "all")};
	if (!q->all && strcmp(which, "last") != 0)
		return err_set(em, ERR_INVALID, "\"%.60s\" is neither \"last\" nor \"all\"", which);
	errno = 0;
	unsigned long n = strtoul(top, &end, 10);
	if (errno || end == top || *end || *top == '-' || n > UINT32_MAX)
		return err_set(em, ERR_INVALID, "--top is \"%.60s\": it must be a whole number", top);
	q->top = (u32)n;
	return parse_ids(q, ids, em);
}
