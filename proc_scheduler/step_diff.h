/* Builds the STEP message and mirrors what it makes of the workers' state: digest, rows, the sum of computed
 * counts. Drops may be recorded at any time; they go into the next step. The size of a step follows the
 * changes: a sequence whose prompt is computed runs one token a step without being mentioned. */
#ifndef TERCET_PROC_SCHEDULER_STEP_DIFF_H
#define TERCET_PROC_SCHEDULER_STEP_DIFF_H

#include "ipc/ipc.h"
#include "proc_scheduler/seqs.h"

struct step_row {
	u64 set_sum; /* digest items of the row */
	u32 added_tokens, added_computed; /* as they entered the digest; a fork has those of its source */
	bool present;
};

struct step_diff {
	u32 row_max;
	u32 token_max, block_max; /* room for the tokens and blocks of one step's adds */
	u32 copy_max;
	/* mirror */
	u64 step; /* the last one built */
	u64 set_sum, computed_sum;
	struct step_row *rows; /* [row_max] */
	/* of the step in the making */
	bool finished; /* the message was given out; what comes next begins another */
	u32 rows_run, tokens_run;
	struct ipc_step msg; /* its arrays are the columns below */
	u32 *drop_row, *copy_src, *copy_dst, *grow_row, *grow_block, *run_row, *run_count;
	u32 *add_row, *add_computed, *add_prompt_count, *add_token_count, *add_tokens, *add_block_count,
		*add_blocks;
	u32 *add_stop_count, *add_stop_ids, *add_bias_count, *add_bias_ids;
	f32 *add_bias_values;
	u64 *add_seq, *fork_seq;
	u32 *fork_row, *fork_src, *fork_block, *set_row, *set_token;
	u32 *grammar_add, *grammar_kind, *grammar_flags, *grammar_bytes;
	u8 *grammar_text;
	u32 *add_lora;
	u32 *load_slot, *save_row, *save_slot, *save_tokens;
#define STEP_DIFF_COLUMN(A, type, name, def, min, max) type *add_##name;
	SAMPLING_TABLE(STEP_DIFF_COLUMN, 0)
#undef STEP_DIFF_COLUMN
	void *memory;
	size_t memory_bytes;
};

/* `sequence_tokens`, `sequence_blocks`: the most one sequence can have. ERR_NO_MEMORY. */
MUST_CHECK enum err step_diff_init(struct step_diff *d, u32 row_max, u32 sequence_tokens,
				   u32 sequence_blocks);
void step_diff_fini(struct step_diff *d); /* zeroed accepted */
/* A new epoch: no rows, step 0, nothing pending. */
void step_diff_reset(struct step_diff *d);

/* The row is given up; it had that many tokens computed. At any time. */
void step_diff_drop(struct step_diff *d, u32 row, u32 computed);
/* Makes sure that an empty step has begun behind the one given out last. */
void step_diff_begin(struct step_diff *d);
/* There is room for one copy a row. More than that have to ask. */
void step_diff_copy(struct step_diff *d, u32 src, u32 dst);
/* Whether `count` copies fit into this step beside one a row. */
bool step_diff_has_copy_room(const struct step_diff *d, u32 count);
/* Whether the tokens and blocks of one more sequence fit into this step, and the source of its grammar. */
bool step_diff_has_room(const struct step_diff *d, u32 tokens, u32 blocks, u32 grammar_bytes);
/* Adds `q` (its row, known tokens, computed count) with its block table. */
void step_diff_add(struct step_diff *d, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   const u32 *blocks);
/* The sequence that was added last has this grammar: x->grammar_bytes of `source`. */
void step_diff_constrain(struct step_diff *d, const struct seq_extra *x, const u8 *source);
/* The sequence that was added last begins with the state in `slot`: that of its first `computed` tokens. */
void step_diff_load(struct step_diff *d, u32 slot);
/* When the step has run, `slot` has the state of `row` behind its first `tokens`, of which the step runs the last. Once a row. */
void step_diff_save(struct step_diff *d, u32 row, u32 slot, u32 tokens);
/* `q` (its row, block count and computed count) begins as a copy of `src`; `blocks` is its table, the last of which is
 * its own when `block` is not KV_BLOCK_NONE. */
void step_diff_fork(struct step_diff *d, const struct seq *q, u32 src, const u32 *blocks, u32 block);
/* The newest token of `row` is another one than was sampled. */
void step_diff_set(struct step_diff *d, u32 row, u32 token);
void step_diff_grow(struct step_diff *d, u32 row, u32 index, u32 block);
/* `count` tokens of `row` run; `rule`: how many would without being mentioned (0 or 1). */
void step_diff_run(struct step_diff *d, u32 row, u32 count, u32 rule);
/* A row that is present has computed that many tokens more than its steps have listed. */
void step_diff_computed(struct step_diff *d, u32 count);
/* True when a step would say nothing and run nothing; then what it said of rows that do not run is forgotten. */
bool step_diff_is_empty(struct step_diff *d);
/* Numbers the step, computes its digest and moves the mirror on. The message lives until step_diff_begin or
 * step_diff_drop, which begin the next one. */
const struct ipc_step *step_diff_finish(struct step_diff *d);

#endif
