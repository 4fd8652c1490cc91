/* A prompt by itself on a device, for `tercet logits`: the steps that a scheduler would send for it, and the logits that no
 * RESULT has. Runs in a process without channels; waits for every step. */
#include <stdlib.h>

#include "common/assert.h"
#include "common/step_digest.h"
#include "proc_worker/runner_device.h"

enum { SEQ = 1 };

/* The only row's STEPs. Arrays of one element but for blocks. */
struct prompt {
	const u32 *ids;
	u32 count;
	u32 *blocks, block_count; /* 0, 1, 2, ... */
	u32 row, none, run;
	u64 seq;
	struct sampling_params params;
	u64 set; /* of the digest */
	struct ipc_step step;
};

static void fill_add(struct prompt *p)
{
	struct ipc_step *s = &p->step;

#define COLUMN(name, from)    \
	s->add_##name = from; \
	s->add_##name##_count = 1;
	COLUMN(row, &p->row)
	COLUMN(seq, &p->seq)
	COLUMN(computed, &p->none)
	COLUMN(prompt_count, &p->count)
	COLUMN(token_count, &p->count)
	COLUMN(block_count, &p->block_count)
	COLUMN(stop_count, &p->none)
	COLUMN(bias_count, &p->none)
#define PARAM(A, type, name, def, min, max) COLUMN(name, &p->params.name)
	SAMPLING_TABLE(PARAM, 0)
#undef PARAM
#undef COLUMN
	s->add_tokens = p->ids;
	s->add_tokens_count = p->count;
	s->add_blocks = p->blocks;
	s->add_blocks_count = p->block_count;
}

/* Runs tokens [first, first + run). */
static void fill_step(struct prompt *p, u64 number, u32 first)
{
	p->step = (struct ipc_step){.step = number,
				    .run_row = &p->row,
				    .run_row_count = 1,
				    .run_count = &p->run,
				    .run_count_count = 1,
				    .digest = step_digest_step(number, p->set, 1, p->run, first)};
	if (first == 0)
		fill_add(p);
}

static enum err prompt_init(struct prompt *p, const struct runner *r, const u32 *ids, u32 count, struct err_msg *em)
{
	u32 size = r->config.limits.block_size;

	*p = (struct prompt){.ids = ids, .count = count, .block_count = (count + size - 1) / size, .seq = SEQ};
	sampling_params_default(&p->params);
	p->params.temperature = 0;
	p->blocks = malloc(p->block_count * sizeof(*p->blocks));
	if (!p->blocks)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	p->set = step_digest_row(0, SEQ, count, count, 0);
	for (u32 i = 0; i < p->block_count; i++) {
		p->blocks[i] = i;
		p->set += step_digest_block(0, i, i);
	}
	return ERR_OK;
}

static enum err run_step(struct runner *r, const struct ipc_step *step, struct err_msg *em)
{
	enum err e = runner_submit(r, step, em);

	if (!e)
		e = runner_wait(r, em);
	return e ? e : runner_collect(r, em);
}

enum err runner_device_prompt(struct runner *r, const u32 *ids, u32 count, bool all, runner_position_fn on_position,
			      void *ctx, struct err_msg *em)
{
	u32 chunk = r->config.limits.tokens_max;
	struct prompt p;
	u64 step = 0;

	ASSERT(r->device && count > 0 && count < r->max_model_len);
	float *logits = malloc(r->model.vocab_size * sizeof(*logits));
	enum err e = logits ? prompt_init(&p, r, ids, count, em) : err_set(em, ERR_NO_MEMORY, "out of memory");
	if (e) {
		free(logits);
		return e;
	}
	for (u32 first = 0; !e && first < count; first += p.run) {
		p.run = count - first < chunk ? count - first : chunk;
		fill_step(&p, ++step, first);
		e = run_step(r, &p.step, em);
		for (u32 i = all ? 0 : p.run - 1; !e && i < p.run && (all || first + p.run == count); i++) {
			e = gpu_read_logits(r->device->gpu, &i, 1, logits, em);
			if (!e)
				e = on_position(ctx, first + i, logits, em);
		}
	}
	free(p.blocks);
	free(logits);
	return e;
}
