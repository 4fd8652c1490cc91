/* A small batch, its mirror and a prompt: what tests of the batch's state begin with. */
#ifndef TERCET_TESTS_UNIT_PROC_WORKER_BATCH_FIXTURE_H
#define TERCET_TESTS_UNIT_PROC_WORKER_BATCH_FIXTURE_H

#include <criterion/criterion.h>
#include <string.h>

#include "proc_worker/batch_state.h"
#include "tests/unit/proc_worker/step_builder.h"

static const struct batch_limits LIMITS = {.rows_max = 16,
					   .tokens_max = 64,
					   .max_model_len = 100,
					   .block_size = 4,
					   .block_count = 200,
					   .vocab_size = 500,
					   .host_block_count = 20};

static inline struct batch_state *create(void)
{
	struct batch_state *b;
	struct err_msg em;

	cr_assert_eq(batch_state_create(&b, &LIMITS, &em), ERR_OK);
	return b;
}

static inline struct mirror *mirror(void)
{
	static struct mirror m;

	mirror_init(&m, LIMITS.block_size);
	return &m;
}

static const u32 TOKENS[100] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
static const u32 BLOCKS[30] = {20, 21, 22, 23, 24, 25};

static inline struct mirror_add prompt(u32 row, u64 seq, u32 tokens, u32 blocks)
{
	return (struct mirror_add){.row = row,
				   .seq = seq,
				   .tokens = TOKENS,
				   .token_count = tokens,
				   .prompt_count = tokens,
				   .blocks = BLOCKS,
				   .block_count = blocks};
}

static inline void step(struct mirror *m, struct batch_state *b, const u32 *sampled)
{
	struct err_msg em = {{0}};

	enum err e = batch_state_apply(b, mirror_end(m), &em);
	cr_assert_eq(e, ERR_OK, "%s", em.text);
	batch_state_commit(b, sampled);
	mirror_commit(m, sampled);
}

/* Applies the step that is being built and answers the error. */
static inline enum err refused(struct mirror *m, struct batch_state *b, const char *text)
{
	struct err_msg em = {{0}};

	enum err e = batch_state_apply(b, mirror_end(m), &em);
	cr_assert_neq(e, ERR_OK);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	return e;
}

#endif
