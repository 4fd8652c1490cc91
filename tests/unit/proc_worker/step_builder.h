/* A small scheduler for tests: keeps its own mirror of every row, builds STEP messages column by column and
 * computes their digest independently of batch_state.c. */
#ifndef TERCET_TESTS_STEP_BUILDER_H
#define TERCET_TESTS_STEP_BUILDER_H

#include "common/sampling_params.h"
#include "ipc/ipc.h"

enum { MIRROR_ROWS = 16, MIRROR_TOKENS = 1024, MIRROR_BLOCKS = 256, MIRROR_LIST = 4096 };

struct mirror_row {
	bool present;
	u64 seq;
	u32 prompt_count, added_tokens, added_computed, known, computed, run;
	u32 tokens[MIRROR_TOKENS];
	u32 blocks[MIRROR_BLOCKS];
	u32 block_count;
};

struct mirror {
	u64 step;
	u32 block_size;
	struct mirror_row rows[MIRROR_ROWS];
	struct ipc_step msg; /* arrays below */
	u32 drop_row[MIRROR_LIST], copy_src[MIRROR_LIST], copy_dst[MIRROR_LIST];
	u32 grow_row[MIRROR_LIST], grow_block[MIRROR_LIST], run_row[MIRROR_LIST], run_count[MIRROR_LIST];
	u32 add_row[MIRROR_LIST], add_computed[MIRROR_LIST], add_prompt_count[MIRROR_LIST];
	u32 add_token_count[MIRROR_LIST], add_block_count[MIRROR_LIST], add_stop_count[MIRROR_LIST];
	u32 add_bias_count[MIRROR_LIST], add_tokens[16 * MIRROR_LIST], add_blocks[MIRROR_LIST];
	u32 add_stop_ids[MIRROR_LIST], add_bias_ids[MIRROR_LIST];
	f32 add_bias_values[MIRROR_LIST];
	u64 add_seq[MIRROR_LIST];
	u32 fork_row[MIRROR_ROWS], fork_src[MIRROR_ROWS], fork_block[MIRROR_ROWS], set_row[MIRROR_ROWS],
		set_token[MIRROR_ROWS];
	u64 fork_seq[MIRROR_ROWS];
	u32 grammar_add[MIRROR_LIST], grammar_kind[MIRROR_LIST], grammar_flags[MIRROR_LIST], grammar_bytes[MIRROR_LIST];
	u8 grammar_text[16 * MIRROR_LIST];
	u32 add_lora[MIRROR_LIST];
	u32 load_slot[MIRROR_LIST], save_row[MIRROR_LIST], save_slot[MIRROR_LIST], save_tokens[MIRROR_LIST];
#define MIRROR_PARAM(A, type, name, def, min, max) type add_##name[MIRROR_LIST];
	SAMPLING_TABLE(MIRROR_PARAM, 0)
#undef MIRROR_PARAM
};

struct mirror_add {
	u32 row;
	u64 seq;
	const u32 *tokens;
	u32 token_count, prompt_count, computed;
	const u32 *blocks;
	u32 block_count;
	const struct sampling_params *params; /* NULL: greedy */
	const u32 *stop_ids;
	u32 stop_count;
	const u32 *bias_ids;
	const f32 *bias_values;
	u32 bias_count;
	u32 grammar_kind; /* enum grammar_kind */
	const char *grammar;
	u32 lora; /* number of the adapter; 0: none */
};

void mirror_init(struct mirror *m, u32 block_size);
void mirror_begin(struct mirror *m); /* an empty STEP with the next number */
void mirror_drop(struct mirror *m, u32 row);
void mirror_copy(struct mirror *m, u32 src, u32 dst);
void mirror_add(struct mirror *m, const struct mirror_add *add);
/* `block`: of the fork's own, in place of the source's last one; UINT32_MAX: none. */
void mirror_fork(struct mirror *m, u32 row, u32 src, u64 seq, u32 block);
void mirror_set(struct mirror *m, u32 row, u32 token);
void mirror_grow(struct mirror *m, u32 row, u32 block);
void mirror_load(struct mirror *m, u32 slot); /* of the row that was added last */
void mirror_save(struct mirror *m, u32 row, u32 slot, u32 tokens);
void mirror_run(struct mirror *m, u32 row, u32 count); /* an exception */
/* Applies the rule, fills the digest; the finished message. */
const struct ipc_step *mirror_end(struct mirror *m);
/* computed += run; `tokens[i]` is appended to the i-th row that samples, in row order. Returns how many did.
 */
u32 mirror_commit(struct mirror *m, const u32 *tokens);
bool mirror_samples(const struct mirror *m, u32 row);

#endif
