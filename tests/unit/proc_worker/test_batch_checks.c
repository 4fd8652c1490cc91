/* STEPs that no scheduler sends: each is refused, with words that say what is wrong. */
#include "tests/unit/proc_worker/batch_fixture.h"

/* What is spoiled in a STEP on top of a state with row 1 (4 tokens known, none computed, 1 block). */
enum spoilt {
	DROP_EMPTY,
	DROP_OUTSIDE,
	COPY_SRC,
	COPY_DST,
	COPY_TWICE,
	COPY_CHAIN,
	COPY_HOST,
	COPY_HOST_TWICE,
	GROW_EMPTY,
	GROW_BLOCK,
	GROW_COUNT,
	RUN_EMPTY,
	RUN_MORE,
	RUN_TWICE,
	FORK_TAKEN,
	FORK_OUTSIDE,
	FORK_EMPTY,
	FORK_SHARES,
	FORK_BLOCK,
	FORK_COUNT,
	SET_EMPTY,
	SET_TOKEN,
	SET_PROMPT,
	ADDS, /* from here on an add of 2 tokens to row 2 */
	ADD_TAKEN = ADDS,
	ADD_OUTSIDE,
	ADD_NOTHING,
	ADD_NO_PROMPT,
	ADD_MUCH_PROMPT,
	ADD_COMPUTED,
	ADD_TOKEN,
	ADD_TOKEN_COUNT,
	ADD_PARAM_COUNT,
	ADD_BLOCK,
	ADD_MANY_BLOCKS,
	ADD_MANY_STOPS,
	ADD_STOP,
	ADD_BIAS,
	ADD_PARAM,
	RUN_BEHIND_BLOCKS,
	RUN_OVER_BUDGET,
	SPOILT_COUNT,
};

static const char *const spoilt_texts[SPOILT_COUNT] = {
	[DROP_EMPTY] = "drop_row[0]: row 7 is empty",
	[DROP_OUTSIDE] = "drop_row[0] is 16",
	[COPY_SRC] = "copy_src: 220",
	[COPY_DST] = "copy_dst: 220",
	[COPY_TWICE] = "written twice",
	[COPY_CHAIN] = "read and written",
	[COPY_HOST] = "blocks 200 and 201 are both the host's",
	[COPY_HOST_TWICE] = "copy_dst[1]: block 219 is written twice",
	[GROW_EMPTY] = "grow_row[0]: row 7 is empty",
	[GROW_BLOCK] = "block 200 is not below",
	[GROW_COUNT] = "grow_block has 1 elements; 0 are needed",
	[RUN_EMPTY] = "run_row[0]: row 7 is empty",
	[RUN_MORE] = "run_count[0] is 5; row 1 has 4",
	[RUN_TWICE] = "listed twice",
	[FORK_TAKEN] = "fork_row[0]: row 1 still holds sequence 1",
	[FORK_OUTSIDE] = "fork_row[0] is 16",
	[FORK_EMPTY] = "fork_src[0]: row 7 is empty",
	[FORK_SHARES] = "fork_block[0] is none, but 0 of the 1 blocks of row 1 are full",
	[FORK_BLOCK] = "fork_block[0] is 200",
	[FORK_COUNT] = "fork_seq has 0 elements; 1 are needed",
	[SET_EMPTY] = "set_row[0]: row 7 is empty",
	[SET_TOKEN] = "set_token: 500 is not below 500",
	[SET_PROMPT] = "set_row[0]: the newest token of row 1 is computed or the prompt's",
	[ADD_TAKEN] = "still holds sequence 1",
	[ADD_OUTSIDE] = "add_row[0] is 16",
	[ADD_NOTHING] = "add_token_count[0] is 0",
	[ADD_NO_PROMPT] = "add_prompt_count[0] is 0",
	[ADD_MUCH_PROMPT] = "add_prompt_count[0] is 3",
	[ADD_COMPUTED] = "add_computed[0] is 2",
	[ADD_TOKEN] = "add_tokens: 500",
	[ADD_TOKEN_COUNT] = "add_tokens has 3 elements; 2 are needed",
	[ADD_PARAM_COUNT] = "add_top_p has 0 elements; 1 are needed",
	[ADD_BLOCK] = "block 200 is not below 200",
	[ADD_MANY_BLOCKS] = "more than the 25 blocks",
	[ADD_MANY_STOPS] = "add_stop_count[0] is 65",
	[ADD_STOP] = "add_stop_ids: 500",
	[ADD_BIAS] = "add_bias_ids: 500",
	[ADD_PARAM] = "logprobs",
	[RUN_BEHIND_BLOCKS] = "its 1 blocks hold 4 tokens, this step needs 5",
	[RUN_OVER_BUDGET] = "runs 65 tokens; at most 64",
};

static void spoil(struct mirror *m, enum spoilt what)
{
	static const struct {
		u32 src, dst;
	} copies[][2] = {[COPY_SRC] = {{220, 3}, {5, 6}},
			 [COPY_DST] = {{3, 220}, {5, 6}},
			 [COPY_TWICE] = {{3, 4}, {5, 4}},
			 [COPY_CHAIN] = {{3, 4}, {4, 5}},
			 [COPY_HOST] = {{200, 201}, {5, 6}},
			 [COPY_HOST_TWICE] = {{3, 219}, {4, 219}}};

	switch (what) {
	case DROP_EMPTY:
		mirror_drop(m, 7);
		break;
	case DROP_OUTSIDE:
		m->drop_row[m->msg.drop_row_count++] = 16;
		break;
	case GROW_EMPTY:
		mirror_grow(m, 7, 3);
		break;
	case GROW_BLOCK:
		mirror_grow(m, 1, 200);
		break;
	case GROW_COUNT:
		m->msg.grow_block_count++;
		break;
	case RUN_TWICE:
		mirror_run(m, 1, 1);
		mirror_run(m, 1, 1);
		break;
	case RUN_EMPTY:
	case RUN_MORE:
		mirror_run(m, what == RUN_MORE ? 1 : 7, what == RUN_MORE ? 5 : 1);
		break;
	case FORK_TAKEN ... FORK_COUNT:
		mirror_fork(m, what == FORK_TAKEN ? 1 : what == FORK_OUTSIDE ? 16 : 2, what == FORK_EMPTY ? 7 : 1, 9,
			    what == FORK_SHARES ? UINT32_MAX : what == FORK_BLOCK ? 200 : 3);
		m->msg.fork_seq_count -= what == FORK_COUNT;
		break;
	case SET_EMPTY ... SET_PROMPT:
		mirror_set(m, what == SET_EMPTY ? 7 : 1, what == SET_TOKEN ? 500 : 3);
		break;
	default:
		mirror_copy(m, copies[what][0].src, copies[what][0].dst);
		mirror_copy(m, copies[what][1].src, copies[what][1].dst);
	}
}

static u32 bad_ids[] = {5, 500};

/* The lists of an add. */
static void spoil_lists(struct mirror_add *add, enum spoilt what)
{
	static u32 bad_blocks[] = {200}, stops[STOP_IDS_MAX + 1];
	static f32 values[2];

	if (what == ADD_BLOCK)
		add->blocks = bad_blocks;
	if (what == ADD_MANY_BLOCKS)
		add->block_count = 26;
	if (what == ADD_MANY_STOPS || what == ADD_STOP) {
		add->stop_ids = what == ADD_STOP ? bad_ids : stops;
		add->stop_count = what == ADD_STOP ? 2 : STOP_IDS_MAX + 1;
	}
	if (what == ADD_BIAS) {
		add->bias_ids = bad_ids;
		add->bias_values = values;
		add->bias_count = 2;
	}
}

static void spoil_add(struct mirror *m, enum spoilt what)
{
	struct mirror_add add = prompt(2, 2, 2, 1);
	struct sampling_params p;
	sampling_params_default(&p);

	add.params = &p;
	spoil_lists(&add, what);
	if (what == ADD_TAKEN)
		add.row = 1;
	if (what == ADD_NOTHING)
		add.token_count = 0;
	if (what == ADD_NO_PROMPT)
		add.prompt_count = 0;
	if (what == ADD_MUCH_PROMPT)
		add.prompt_count = 3;
	if (what == ADD_COMPUTED)
		add.computed = 2;
	if (what == ADD_TOKEN)
		add.tokens = bad_ids;
	if (what == ADD_PARAM)
		p.logprobs = 21;
	if (what == RUN_BEHIND_BLOCKS || what == RUN_OVER_BUDGET) {
		add.token_count = add.prompt_count = 66;
		add.block_count = what == RUN_OVER_BUDGET ? 17 : 1;
		mirror_run(m, 2, what == RUN_OVER_BUDGET ? 65 : 5);
	}
	mirror_add(m, &add);
	if (what == ADD_OUTSIDE)
		m->add_row[0] = 16;
	if (what == ADD_TOKEN_COUNT)
		m->msg.add_tokens_count++;
	if (what == ADD_PARAM_COUNT)
		m->msg.add_top_p_count = 0;
}

Test(batch_checks, every_index_and_count_is_checked_before_use)
{
	for (enum spoilt i = 0; i < SPOILT_COUNT; i++) {
		struct batch_state *b = create();
		struct mirror *m = mirror();
		struct mirror_add add = prompt(1, 1, 4, 1);
		struct err_msg em = {{0}};
		mirror_begin(m);
		mirror_add(m, &add);
		step(m, b, NULL);
		mirror_begin(m);
		if (i < ADDS)
			spoil(m, i);
		else
			spoil_add(m, i);
		cr_assert_eq(batch_state_apply(b, &m->msg, &em), ERR_INVALID, "case %d: %s", i, em.text);
		cr_assert(strstr(em.text, spoilt_texts[i]), "case %d: '%s' is not in '%s'", i,
			  spoilt_texts[i], em.text);
		cr_assert(strstr(em.text, "STEP 2"));
		batch_state_destroy(&b);
	}
}
