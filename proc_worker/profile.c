/* Measures the worker before its KV cache is sized. Runs in the worker at start. */
#include "proc_worker/profile.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proc_worker/host_memory.h"
#include "proc_worker/runner.h"

enum { DUMMY_TOKENS = 4 }; /* a step of decoding: some milliseconds */

static const u64 MIB = 1 << 20;

static unsigned long long mib_up(u64 bytes)
{
	return (bytes + MIB - 1) / MIB;
}

/* ---------------------------------------------------------------- sizing */

static enum err explain_too_small(const struct kv_budget *b, u64 bytes, u64 one, struct err_msg *em)
{
	u64 fits = bytes / b->block_bytes * b->block_size;
	const char *share = b->workers > 1 ? " on each worker" : "";

	if (b->requested && fits < CONTEXT_MIN)
		return err_set(em, ERR_NO_SPACE,
			       "--kv-cache-memory %llu bytes is too small: one block of %u tokens needs %llu "
			       "KiB, one sequence "
			       "of %u tokens %llu MiB%s",
			       (unsigned long long)b->requested, b->block_size,
			       (unsigned long long)(b->block_bytes + 1023) / 1024, b->max_model_len,
			       mib_up(one), share);
	if (b->requested)
		return err_set(em, ERR_NO_SPACE,
			       "--kv-cache-memory %llu bytes is too small: one sequence of %u tokens needs "
			       "%llu MiB%s; give that much, or --max-model-len %llu",
			       (unsigned long long)b->requested, b->max_model_len, mib_up(one), share,
			       (unsigned long long)fits);
	return err_set(
		em, ERR_NO_SPACE,
		"not enough memory: the KV cache of one sequence of %u tokens needs %llu MiB%s, %llu MiB "
		"may be used (%llu MiB available, --gpu-memory-utilization %.2f); --max-model-len %llu "
		"fits, or --kv-cache-memory %lluMiB takes more",
		b->max_model_len, mib_up(one), share, (unsigned long long)(bytes / MIB),
		(unsigned long long)(b->available / MIB), b->utilization, (unsigned long long)fits,
		mib_up(one));
}

/* Of models without keys and values blocks count tokens, and are as large as the ids of these. */
static struct kv_budget counted(const struct kv_budget *b)
{
	struct kv_budget c = *b;

	if (c.block_bytes == 0)
		c.block_bytes = b->block_size * sizeof(u32);
	return c;
}

enum err kv_budget_blocks(const struct kv_budget *given, u32 *blocks, struct err_msg *em)
{
	const struct kv_budget own = counted(given), *b = &own;
	const u64 most = given->block_bytes ? (u64)KV_AUTOMATIC_GIB_MAX << 30 : KV_IDS_MIB_MAX * MIB;
	u64 per_row = (b->max_model_len + b->block_size - 1) / b->block_size;
	u64 one = per_row * b->block_bytes;
	u64 bytes = b->requested;

	if (bytes && bytes > b->available / b->workers)
		return err_set(em, ERR_NO_SPACE,
			       "not enough memory: --kv-cache-memory asks for %llu MiB%s, %llu MiB are "
			       "available; at most %lluMiB fits",
			       mib_up(bytes), b->workers > 1 ? " on each worker" : "",
			       (unsigned long long)(b->available / MIB),
			       (unsigned long long)(b->available / b->workers / MIB));
	if (!bytes) {
		u64 useful = per_row * b->rows_max * b->block_bytes;
		bytes = (u64)(b->utilization * (double)b->available / b->workers);
		if (bytes > most)
			bytes = most;
		/* A model that needs more for a single sequence gets it if it is there. */
		if (bytes < one && one <= b->utilization * (double)b->available / b->workers)
			bytes = one;
		if (bytes > useful)
			bytes = useful;
	}
	if (bytes < one)
		return explain_too_small(b, bytes, one, em);
	u64 count = bytes / b->block_bytes;
	*blocks = count < UINT32_MAX ? (u32)count : UINT32_MAX;
	return ERR_OK;
}

enum err kv_budget_swap(struct kv_budget *b, double gib, u32 *blocks, struct err_msg *em)
{
	u64 share = b->available / b->workers;
	double bytes = gib * (double)(1 << 30);

	*blocks = 0;
	if (bytes > (double)share)
		return err_set(em, ERR_NO_SPACE,
			       "not enough memory: --swap-space asks for %g GiB%s, %.2f GiB are available", gib,
			       b->workers > 1 ? " for each worker" : "", (double)share / (1 << 30));
	u64 count = (u64)bytes / b->block_bytes;
	if (count == 0)
		return err_set(em, ERR_NO_SPACE,
			       "--swap-space %g GiB is too small: one block of %u tokens needs %llu KiB; give more, or 0", gib,
			       b->block_size, (unsigned long long)(b->block_bytes + 1023) / 1024);
	*blocks = count < INT32_MAX ? (u32)count : INT32_MAX;
	b->available -= *blocks * b->block_bytes * b->workers;
	return ERR_OK;
}

/* ---------------------------------------------------------------- dummy step */

/* Rows of equal length; slots of -1 write nothing, all tables are block 0. */
static u32 fill_inputs(struct runner *r, u32 tokens)
{
	struct inputs *in = &r->inputs;
	u32 rows = r->config.limits.rows_max < tokens ? r->config.limits.rows_max : tokens;
	u32 length = tokens / rows < r->max_model_len ? tokens / rows : r->max_model_len;

	for (u32 i = 0; i < rows; i++) {
		in->query_start[i] = i * length;
		in->context[i] = length;
		in->batch_rows[i] = i;
		in->sample_index[i] = (i + 1) * length - 1;
		for (u32 j = 0; j < length; j++) {
			in->ids[i * length + j] = (i * length + j) % r->model.vocab_size;
			in->positions[i * length + j] = j;
			in->slots[i * length + j] = -1;
		}
	}
	in->save_count = 0;
	in->query_start[rows] = rows * length;
	in->rows = rows;
	in->tokens = rows * length;
	return rows;
}

static enum err sample_dummies(struct runner *r, const float *logits, u32 rows, struct err_msg *em)
{
	struct kern_sample_row *list = calloc(rows, sizeof(*list));

	if (!list)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u32 i = 0; i < rows; i++)
		list[i] = (struct kern_sample_row){.logits = logits + (size_t)i * r->model.vocab_size,
						   .temperature = 1,
						   .top_p = 0.9f,
						   .seed = i};
	struct kern_sample_args a = {
		.rows = list, .tokens = r->sampled, .row_count = rows, .vocab = r->model.vocab_size};
	enum err e = r->ops.sample(&r->ctx, &a);
	free(list);
	return e ? err_set(em, e, "sampling: %s", err_text(e)) : ERR_OK;
}

static enum err dummy_step(struct runner *r, struct profile *p, struct err_msg *em)
{
	struct kv_memory kv;
	float *logits;

	enum err e = kv_memory_init(&kv, &r->kv_shape, 1, em);
	if (e)
		return e;
	u32 tokens = r->config.limits.tokens_max < DUMMY_TOKENS ? r->config.limits.tokens_max : DUMMY_TOKENS;
	u32 rows = fill_inputs(r, tokens);
	u64 begin = clock_now_ns();
	e = decoder_forward(&r->decoder, &r->inputs, kv.layers, em);
	if (!e)
		e = decoder_logits(&r->decoder, r->inputs.sample_index, rows, &logits, em);
	if (!e && logits)
		e = sample_dummies(r, logits, rows, em);
	p->tokens = r->inputs.tokens;
	p->step_ns = clock_now_ns() - begin;
	kv_memory_fini(&kv);
	return e;
}

/* The states of all rows that there may be, for one that comes must find room; and of those that may be saved as many as half of what is left then
 * has room for. */
static enum err take_states(const struct runner *r, struct profile *p, struct err_msg *em)
{
	const u64 rows = r->config.limits.rows_max, one = r->states.stride * sizeof(float) * runner_ranks_here(r), bytes = rows * one;

	if (bytes <= p->available) {
		const u64 room = one ? (p->available - bytes) / 2 / one : 0, slots = r->states.slots ? r->states.slots - rows : 0;
		p->state_slots = (u32)(room < slots ? room : slots);
		p->available -= bytes + p->state_slots * one;
		return ERR_OK;
	}
	if (p->available < one)
		return err_set(em, ERR_NO_SPACE, "not enough memory: this model keeps a state of every sequence, %llu MiB, and %llu MiB are available",
			       mib_up(one), (unsigned long long)(p->available / MIB));
	return err_set(em, ERR_NO_SPACE,
		       "not enough memory: this model keeps a state of every sequence, %llu MiB for --max-num-seqs %llu, and %llu MiB are "
		       "available; --max-num-seqs %llu fits",
		       mib_up(bytes), (unsigned long long)rows, (unsigned long long)(p->available / MIB),
		       (unsigned long long)(p->available / one));
}

enum err profile_run(struct runner *r, struct profile *p, struct err_msg *em)
{
	*p = (struct profile){0};
	enum err e = dummy_step(r, p, em);
	if (!e)
		e = host_memory_available("", &p->available, em);
	u64 reserved = (r->decoder.memory_bytes + r->ctx.scratch_bytes) * (u64)runner_ranks_here(r);
	/* Pages of a mapped file count as available, but are read in every step. */
	if (r->weights.mapped)
		reserved += r->weights.memory_bytes * runner_ranks_here(r);
	p->available -= reserved < p->available ? reserved : p->available;
	p->resident = host_memory_resident("");
	if (!e)
		e = take_states(r, p, em);
	if (e)
		err_prefix(em, "profiling");
	return e;
}
