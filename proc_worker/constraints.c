/* Owns the grammars of rows: compiled ones by their source, a place in its text for every row, and the masks of a step.
 * Runs in workers that sample, on a thread of its own, to which grammars, vocabulary and states belong; the step's thread
 * hands it a list and waits for it before it samples. Never changes the batch. */
#include "proc_worker/constraints.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/region.h"
#include "text/grammar.h"
#include "text/text.h"

enum {
	COMPILED_MAX = 64,		 /* grammars that are kept, */
	COMPILED_BYTES_MAX = 64 << 20, /* unless they are larger together */
	LIVE_BYTES_MAX = 512 << 20,    /* of grammars that are not kept, but rows follow */
};

/* A compiled grammar with a state at its start, which keeps what other states have learnt. */
struct compiled {
	u64 hash;
	u32 kind, flags;
	char *source;
	size_t source_bytes, bytes;
	struct grammar *grammar;
	struct grammar_state *start;
	u64 used; /* number of the use; 0: an empty place */
};

struct row_state {
	u64 incarnation; /* that `state` follows; 0: none */
	struct grammar_state *state; /* NULL: it failed */
	u32 outputs;		 /* so many are stepped over */
	u64 hash;		 /* of the grammar's source */
	size_t bytes;		 /* of the grammar */
};

struct constraints {
	struct constraints_config config;
	size_t words; /* of a mask */
	struct row_state *rows;
	struct compiled compiled[COMPILED_MAX];
	u64 uses;
	size_t live_bytes_max;
	struct grammar_vocab *vocab;

	/* Of the step: what begin writes, the thread reads, and the other way round what finish tells. */
	const struct batch_state *batch;
	const u32 **allowed; /* [samples_max] by sample */
	u32 *masks;	     /* [samples_max][words] */
	struct constraint_failure failures[CONSTRAINT_FAILURES_MAX];
	struct constraints_step step;
	bool begun; /* by this step, and not finished; the step's thread alone looks */
	void *memory;
	size_t memory_bytes;

	pthread_mutex_t mutex; /* of all below */
	pthread_cond_t changed;
	bool loaded, working, stop;
	struct err_msg problem; /* once loaded it stays */
	pthread_t thread;
	bool has_thread;
};

/* ---------------------------------------------------------------- compiled grammars */

static void forget(struct compiled *k)
{
	grammar_state_destroy(&k->start);
	grammar_unref(&k->grammar);
	free(k->source);
	*k = (struct compiled){0};
}

static struct compiled *find(struct constraints *c, const struct batch_row *r, const char *source, u64 hash)
{
	for (u32 i = 0; i < COMPILED_MAX; i++) {
		struct compiled *k = &c->compiled[i];
		if (k->used && k->hash == hash && k->kind == r->grammar_kind && k->flags == r->grammar_flags &&
		    k->source_bytes == r->grammar_bytes && memcmp(k->source, source, r->grammar_bytes) == 0)
			return k;
	}
	return NULL;
}

/* An empty place: what was used longest ago leaves, and more of it while all are too large together. */
static struct compiled *make_room(struct constraints *c, size_t bytes)
{
	for (;;) {
		struct compiled *oldest = NULL, *empty = NULL;
		size_t total = bytes;
		for (u32 i = 0; i < COMPILED_MAX; i++) {
			struct compiled *k = &c->compiled[i];
			if (!k->used)
				empty = k;
			else if (!oldest || k->used < oldest->used)
				oldest = k;
			total += k->bytes;
		}
		if (empty && (total <= COMPILED_BYTES_MAX || !oldest))
			return empty;
		forget(oldest);
	}
}

/* Bytes of the grammars that rows follow and that are kept no longer; one of several rows counts for each. */
static size_t live_bytes(const struct constraints *c)
{
	size_t total = 0;

	for (u32 row = 0; row < c->config.rows_max; row++) {
		const struct row_state *s = &c->rows[row];
		bool kept = !s->state;
		for (u32 i = 0; i < COMPILED_MAX && !kept; i++)
			kept = c->compiled[i].used && c->compiled[i].hash == s->hash;
		total += kept ? 0 : s->bytes;
	}
	return total;
}

static enum err compile(struct constraints *c, const struct batch_row *r, const char *source, u64 hash,
			struct compiled **out, struct err_msg *em)
{
	struct compiled k = {.hash = hash,
			     .kind = r->grammar_kind,
			     .flags = r->grammar_flags,
			     .source_bytes = r->grammar_bytes};

	if (live_bytes(c) > c->live_bytes_max)
		return err_set(em, ERR_BUSY, "the grammars of the requests that run take more than %zu MiB; send it again when some of them have ended, or with a smaller grammar",
			       c->live_bytes_max >> 20);
	enum err e = grammar_compile(&k.grammar, k.kind, k.flags, source, k.source_bytes, em);
	if (e) {
		err_prefix(em, "the grammar");
		return e;
	}
	k.source = malloc(k.source_bytes + 1);
	e = k.source ? grammar_state_create(&k.start, k.grammar, c->vocab) : ERR_NO_MEMORY;
	if (e) {
		forget(&k);
		return err_set(em, e, "no memory for a grammar");
	}
	memcpy(k.source, source, k.source_bytes);
	k.bytes = grammar_bytes(k.grammar) + k.source_bytes;
	*out = make_room(c, k.bytes);
	**out = k;
	c->step.compiled++;
	return ERR_OK;
}

/* ---------------------------------------------------------------- one row */

/* A state at the start of its text for a row that is seen for the first time. */
static enum err meet(struct constraints *c, const struct batch_state *b, u32 row, struct err_msg *em)
{
	struct row_state *s = &c->rows[row];
	const struct batch_row *r = &b->rows[row];
	const char *source = batch_state_grammar(b, row);
	u64 hash = XXH3_64bits_withSeed(source, r->grammar_bytes, r->grammar_kind);
	enum err e = ERR_OK;

	grammar_state_destroy(&s->state);
	*s = (struct row_state){.incarnation = r->incarnation};
	if (c->problem.text[0])
		return err_set(em, ERR_UNSUPPORTED, "this server cannot constrain outputs: %s", c->problem.text);
	struct compiled *k = find(c, r, source, hash);
	if (!k)
		e = compile(c, r, source, hash, &k, em);
	if (e)
		return e;
	k->used = ++c->uses;
	s->hash = hash;
	s->bytes = k->bytes;
	e = grammar_state_copy(&s->state, k->start);
	return e ? err_set(em, e, "no memory for a grammar's state") : ERR_OK;
}

static enum err follow(struct constraints *c, const struct batch_state *b, u32 row, struct err_msg *em)
{
	struct row_state *s = &c->rows[row];
	u32 prompt = b->rows[row].prompt_count, outputs = b->known[row] - prompt;
	const u32 *tokens = batch_state_tokens(b, row) + prompt;

	for (; s->outputs < outputs; s->outputs++) {
		enum err e = grammar_state_advance(s->state, tokens[s->outputs]);
		if (e)
			return err_set(em, e, "output %u, token %u: %s", s->outputs, tokens[s->outputs],
				       e == ERR_INVALID ? "the grammar does not allow it there" : err_text(e));
	}
	return ERR_OK;
}

static bool clear_bits(u32 *mask, size_t words, const u32 *ids, u32 count)
{
	bool any = false;

	for (u32 i = 0; i < count; i++)
		if (ids[i] / 32 < words)
			mask[ids[i] / 32] &= ~(1u << ids[i] % 32);
	for (size_t i = 0; i < words && !any; i++)
		any = mask[i] != 0;
	return any;
}

/* Of the place behind `outputs` tokens. Below the least length what would end the request is kept away, for as long as the
 * grammar leaves anything else. */
static enum err make_mask(struct constraints *c, const struct batch_state *b, u32 row, struct grammar_state *s, u32 outputs,
			  u32 *mask, struct err_msg *em)
{
	const struct batch_row *r = &b->rows[row];

	enum err e = grammar_state_mask(s, mask);
	if (!e && outputs < r->params.min_tokens) {
		bool any = clear_bits(mask, c->words, c->config.eos_ids, c->config.eos_count);
		if (any && r->stop_count)
			any = clear_bits(mask, c->words, b->stop_ids + (size_t)row * STOP_IDS_MAX, r->stop_count);
		if (!any)
			e = grammar_state_mask(s, mask);
	}
	c->step.masks += e == ERR_OK;
	if (e == ERR_NOT_FOUND)
		return err_set(em, e, "behind output %u no token of the vocabulary says what the grammar wants", outputs);
	if (e == ERR_TIMEOUT)
		return err_set(em, e, "behind output %u: which tokens the grammar allows takes too long to tell, and other requests wait for it; write it with fewer repetitions inside repetitions and fewer parts that can be read in several ways",
			       outputs);
	return e ? err_set(em, e, "behind output %u the grammar has no mask: %s", outputs, err_text(e)) : ERR_OK;
}

/* Masks behind a row's drafts, up to the first that the grammar does not take. What fails here is no failure of the row:
 * the drafts are guesses, and where one came true the next step tells. */
static void serve_drafts(struct constraints *c, const struct batch_state *b, u32 row, u32 sample)
{
	const u32 *drafts = batch_state_tokens(b, row) + b->known[row];
	u32 outputs = b->known[row] - b->rows[row].prompt_count;
	struct grammar_state *s = NULL;
	struct err_msg em;

	enum err e = grammar_state_copy(&s, c->rows[row].state);
	for (u32 i = 0; !e && i < b->drafts[row]; i++) {
		u32 *mask = c->masks + (sample + 1 + i) * c->words;
		e = grammar_state_advance(s, drafts[i]);
		if (!e)
			e = make_mask(c, b, row, s, outputs + 1 + i, mask, &em);
		if (!e)
			c->allowed[sample + 1 + i] = mask;
	}
	grammar_state_destroy(&s);
}

/* `mask` NULL: it does not sample yet, but its grammar is compiled. */
static void serve(struct constraints *c, const struct batch_state *b, u32 row, u32 *mask, const u32 **allowed)
{
	struct row_state *s = &c->rows[row];
	bool met = s->incarnation == b->rows[row].incarnation;
	struct err_msg em;

	if (met && !s->state)
		return;
	enum err e = met ? ERR_OK : meet(c, b, row, &em);
	if (!e && mask)
		e = follow(c, b, row, &em);
	if (!e && mask)
		e = make_mask(c, b, row, s->state, b->known[row] - b->rows[row].prompt_count, mask, &em);
	if (!e) {
		if (mask)
			*allowed = mask;
		return;
	}
	if (c->step.failure_count == CONSTRAINT_FAILURES_MAX) { /* told of in the next step */
		s->incarnation = s->state ? s->incarnation : 0;
		return;
	}
	grammar_state_destroy(&s->state);
	c->failures[c->step.failure_count++] = (struct constraint_failure){.seq = b->rows[row].seq, .text = em};
}

/* ---------------------------------------------------------------- the thread */

/* What rows followed that are no longer there, or others by now. */
static void release_stale(struct constraints *c, const struct batch_state *b)
{
	u32 rows = c->config.rows_max < b->limits.rows_max ? c->config.rows_max : b->limits.rows_max;

	for (u32 row = 0; row < rows; row++) {
		struct row_state *s = &c->rows[row];
		if (s->state && (!batch_state_present(b, row) || b->rows[row].incarnation != s->incarnation))
			grammar_state_destroy(&s->state);
	}
}

static void work(struct constraints *c)
{
	const struct batch_state *b = c->batch;
	u64 begin = clock_now_ns();
	u32 sample = 0;

	release_stale(c, b);
	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i];
		bool samples = sample < b->sample_count && b->sample_rows[sample] == row;
		if (b->rows[row].grammar_kind)
			serve(c, b, row, samples ? c->masks + sample * c->words : NULL, &c->allowed[sample]);
		if (samples && b->drafts[row] && c->allowed[sample])
			serve_drafts(c, b, row, sample);
		sample += samples ? 1 + b->drafts[row] : 0;
	}
	c->step.work_ns = clock_now_ns() - begin;
}

static void load(struct constraints *c, struct err_msg *problem)
{
	struct tokenizer *t = NULL;
	u64 begin = clock_now_ns();

	if (!tokenizer_exists(c->config.model_dir)) {
		(void)err_set(problem, ERR_NOT_FOUND, "the folder of the model has no tokenizer");
		return;
	}
	enum err e = tokenizer_load(&t, c->config.model_dir, problem);
	if (!e)
		e = grammar_vocab_create(&c->vocab, t, c->config.vocab, c->config.eos_ids, c->config.eos_count, problem);
	tokenizer_free(&t);
	if (e && !problem->text[0])
		(void)err_set(problem, e, "%s", err_text(e));
	if (!e)
		LOG_INFO("GRAMMARS_READY", "vocab=%u memory=%zuKiB ms=%llu", c->config.vocab,
			 grammar_vocab_bytes(c->vocab) >> 10, (unsigned long long)((clock_now_ns() - begin) / 1000000));
	else
		LOG_WARN("NO_GRAMMARS", "reason=\"%s\"", problem->text);
}

static void *serve_steps(void *arg)
{
	struct constraints *c = arg;
	struct err_msg problem = {""};

	load(c, &problem);
	pthread_mutex_lock(&c->mutex);
	c->problem = problem;
	c->loaded = true;
	pthread_cond_broadcast(&c->changed);
	for (;;) {
		while (!c->working && !c->stop)
			pthread_cond_wait(&c->changed, &c->mutex);
		if (c->stop)
			break;
		pthread_mutex_unlock(&c->mutex);
		work(c);
		pthread_mutex_lock(&c->mutex);
		c->working = false;
		pthread_cond_broadcast(&c->changed);
	}
	pthread_mutex_unlock(&c->mutex);
	return NULL;
}

/* ---------------------------------------------------------------- life */

static size_t lay_out(struct constraints *c, char *base)
{
	size_t rows = c->config.rows_max, samples = c->config.samples_max, offset = 0;

	c->rows = region_carve(base, &offset, rows * sizeof(*c->rows));
	c->allowed = region_carve(base, &offset, samples * sizeof(*c->allowed));
	c->masks = region_carve(base, &offset, samples * c->words * sizeof(u32));
	return offset;
}

enum err constraints_create(struct constraints **out, const struct constraints_config *config, struct err_msg *em)
{
	*out = NULL;
	struct constraints *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	c->config = *config;
	c->live_bytes_max = LIVE_BYTES_MAX;
	if (c->config.samples_max < c->config.rows_max)
		c->config.samples_max = c->config.rows_max;
	c->words = grammar_mask_words(config->vocab);
	c->memory_bytes = lay_out(c, NULL);
	void *memory = region_reserve(c->memory_bytes);
	if (!memory) {
		size_t bytes = c->memory_bytes;
		free(c);
		return region_refuse(em, "cannot reserve %zu bytes for grammars; lower --max-num-seqs", bytes);
	}
	c->memory = memory;
	lay_out(c, memory);
	pthread_mutex_init(&c->mutex, NULL);
	pthread_cond_init(&c->changed, NULL);
	c->has_thread = pthread_create(&c->thread, NULL, serve_steps, c) == 0;
	if (!c->has_thread) {
		constraints_destroy(&c);
		return err_set(em, ERR_NO_MEMORY, "cannot start the thread that follows grammars");
	}
	*out = c;
	return ERR_OK;
}

void constraints_destroy(struct constraints **out)
{
	struct constraints *c = *out;

	if (!c)
		return;
	if (c->has_thread) {
		pthread_mutex_lock(&c->mutex);
		c->stop = true;
		pthread_cond_broadcast(&c->changed);
		pthread_mutex_unlock(&c->mutex);
		pthread_join(c->thread, NULL);
	}
	for (u32 i = 0; i < c->config.rows_max; i++)
		grammar_state_destroy(&c->rows[i].state);
	for (u32 i = 0; i < COMPILED_MAX; i++)
		forget(&c->compiled[i]);
	grammar_vocab_destroy(&c->vocab);
	region_release(c->memory, c->memory_bytes);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->mutex);
	free(c);
	*out = NULL;
}

const char *constraints_problem(struct constraints *c)
{
	pthread_mutex_lock(&c->mutex);
	while (!c->loaded)
		pthread_cond_wait(&c->changed, &c->mutex);
	pthread_mutex_unlock(&c->mutex);
	return c->problem.text;
}

/* ---------------------------------------------------------------- steps */

static bool runs_constrained(const struct batch_state *b)
{
	for (u32 i = 0; b->grammar_count && i < b->run_row_count; i++)
		if (b->rows[b->run_rows[i]].grammar_kind)
			return true;
	return false;
}

void constraints_begin(struct constraints *c, const struct batch_state *b)
{
	ASSERT(b->applied && !c->begun && b->sample_count <= c->config.samples_max);
	if (!runs_constrained(b))
		return;
	memset(c->allowed, 0, b->sample_count * sizeof(*c->allowed));
	c->step = (struct constraints_step){.allowed = (const u32 *const *)c->allowed, .failures = c->failures};
	c->batch = b;
	c->begun = true;
	pthread_mutex_lock(&c->mutex);
	c->working = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->mutex);
}

const struct constraints_step *constraints_finish(struct constraints *c)
{
	if (!c->begun)
		return NULL;
	pthread_mutex_lock(&c->mutex);
	while (c->working)
		pthread_cond_wait(&c->changed, &c->mutex);
	pthread_mutex_unlock(&c->mutex);
	c->begun = false;
	return &c->step;
}
