/* The requests of the batch as a worker knows them: a pure function of the STEP messages since INIT and of
 * the tokens sampled in between. A step is
 *
 *     batch_state_apply(b, step)      drop, copy, add, fork, set, grow, run; the digest is compared
 *     ... forward, sampling of b->sample_rows ...
 *     batch_state_commit(b, sampled)  computed += run; sampled tokens become known
 *
 * or, where steps are queued on a device before the tokens of earlier ones have come back,
 *
 *     batch_state_advance(b)          computed += run; rows that sample have one known token more, whose value is
 *     ... further steps ...           not there yet
 *     batch_state_tokens_known(b, t)  the values of one step
 *
 * Nothing that a STEP or its digest says depends on a sampled token's value, so steps can be applied ahead.
 *
 * The rule for a step, where `known` counts a row's prompt and output tokens and `computed` those whose KV is
 * there: a row with known - computed == 1 runs one token, every other row none; run_row/run_count list the
 * exceptions. A row samples if and only if computed + run == known. With several steps in flight the
 * scheduler says nothing about the tokens it has not seen yet: the worker appends them itself.
 *
 * Between apply and the forward a row that samples may be given drafts, tokens that are guessed to follow: it runs them,
 * too, and samples behind each. No STEP tells of them and no digest counts them; what came true is known when the step
 * ends, and counted by both sides from its RESULT on. */
#ifndef TERCET_PROC_WORKER_BATCH_STATE_H
#define TERCET_PROC_WORKER_BATCH_STATE_H

#include "common/err.h"
#include "common/grammar_kind.h"
#include "common/sampling_params.h"
#include "common/types.h"

struct ipc_step;

enum { BATCH_SAMPLES_MAX = 1024 }; /* that fit into a RESULT: IPC_ROWS_MAX */
#define BATCH_NO_TOKEN UINT32_MAX  /* a sample behind drafts that cannot be told */

struct batch_limits {
	u32 rows_max;	   /* --max-num-seqs; at most IPC_ROWS_MAX */
	u32 tokens_max;	   /* --max-num-batched-tokens: tokens of one step */
	u32 max_model_len; /* known tokens of a row */
	u32 block_size;	   /* tokens in a KV block */
	u32 block_count;   /* blocks of the pool: valid ids are below it */
	u32 vocab_size;	   /* valid token ids are below it */
	u32 host_block_count; /* blocks in the host's memory: their ids follow the pool's; copies alone name them */
	u32 lora_count;	      /* adapters: their numbers are 1 to that */
	u32 draft_max;	      /* drafts of a row in one step; 0: there are none */
	u32 draft_rows;	      /* while more rows than this are present there are none */
	u32 draft_share;      /* rows share so many tokens of a step, drafts among them; 0: any */
	u32 draft_end;	      /* drafts do not cross this position, where a row is added anew (kv_switch_len); 0: none is */
	bool recurrent;	      /* rows keep a state that no block holds: they are added with nothing computed, with a saved one, or forked */
	u32 state_slots;      /* that states can be saved in */
};

/* Tokens that a step can sample. */
static inline u32 batch_samples_max(const struct batch_limits *l)
{
	u32 rows = l->draft_rows < l->rows_max ? l->draft_rows : l->rows_max;
	u64 drafted = (u64)rows * (1 + l->draft_max);

	drafted = l->draft_share && l->draft_share < drafted ? l->draft_share : drafted;
	drafted = drafted < BATCH_SAMPLES_MAX ? drafted : BATCH_SAMPLES_MAX;
	return drafted > l->rows_max ? (u32)drafted : l->rows_max;
}

/* What a row was added with; it stays until the row is dropped. */
struct batch_row {
	u64 seq;
	u64 incarnation; /* number of this add since create, from 1: what is derived from a row is kept under
			    it */
	u32 prompt_count;
	u32 added_tokens, added_computed; /* as they entered the digest */
	u32 block_count;
	u32 stop_count, bias_count;
	u32 grammar_kind, grammar_flags, grammar_bytes; /* common/grammar_kind.h; the source: batch_state_grammar */
	u32 lora; /* number of the adapter, from 1; 0: the model alone */
	struct sampling_params params;
};

/* Read-only outside batch_state.c. Arrays have one element per row unless said otherwise; an absent row has
 * known 0. */
struct batch_state {
	struct batch_limits limits; /* as of the last reset */
	u64 step;		    /* the last one applied; 0 after a reset */
	u32 row_count;		    /* rows present */
	u64 set_sum;		    /* wrapping sum of the digest items of all rows */
	u64 computed_sum;	    /* over all rows */
	u64 adds;		    /* rows added since create */
	u32 grammar_count;	    /* rows present that have a grammar */
	bool broken;		    /* an apply failed: only a reset helps */
	bool applied;		    /* between apply and commit or advance */

	u32 *known, *computed;
	u32 *capacity; /* tokens that the row's blocks hold */
	u32 *run;      /* tokens of the current step */
	u32 *last_token;
	struct batch_row *rows;

	/* The current step. */
	u32 *run_rows;	  /* [run_row_count] rows with run > 0, ascending */
	u32 *sample_rows; /* [sample_count] those of them that sample, ascending; with drafts once more for each */
	u32 *sample_ahead; /* [sample_count] drafts of the row that the sample is behind */
	u32 *drafts;	  /* [rows] their number, at positions known, known + 1, ... of the row's tokens */
	u32 run_row_count, sample_count, tokens_run; /* tokens_run: without drafts */
	u32 draft_count;
	const u32 *copy_src,
		*copy_dst; /* [copy_count] block pairs to copy before the forward; borrowed from the STEP */
	u32 copy_count;
	const u32 *fork_src, *fork_row; /* [fork_count] rows that became copies of others, in this order; borrowed, too */
	u32 fork_count;
	u32 *load_row, *load_slot;  /* [load_count] rows whose state is the saved one */
	u32 load_count;
	u32 *save_tokens, *save_slot; /* [rows] when the step has run the slot has the row's state behind so many of its tokens; 0: none is saved */
	u32 save_count;

	/* Storage. Strides are those of the limits given to create. */
	struct batch_limits created;
	size_t token_stride, block_stride; /* in elements */
	u32 *tokens;			   /* [rows][token_stride] */
	u32 *blocks;			   /* [rows][block_stride] */
	u32 *stop_ids;			   /* [rows][STOP_IDS_MAX] */
	u32 *bias_ids;			   /* [rows][BIAS_MAX] */
	f32 *bias_values;		   /* [rows][BIAS_MAX] */
	u8 *grammars;			   /* [rows][GRAMMAR_SOURCE_MAX] */
	u64 *run_stamp;			   /* last step that listed the row */
	u64 *block_stamp;		   /* [blocks of both pools] last step in which the block was part of a copy */
	u64 *state_stamp;		   /* [state_slots] last step in which a state was saved there */
	void *memory;
	size_t memory_bytes;
};

/* Reserves everything for `limits` (address space; memory is used as it is written) and resets.
 * ERR_INVALID names the limit that is zero or too large. ERR_NO_MEMORY. The caller owns `*out`. */
MUST_CHECK enum err batch_state_create(struct batch_state **out, const struct batch_limits *limits,
				       struct err_msg *em);
void batch_state_destroy(struct batch_state **b);

/* Empty state of a new epoch with that many blocks and that context length, both at most those of create
 * (else ERR_INVALID and nothing happened). */
MUST_CHECK enum err batch_state_reset(struct batch_state *b, u32 block_count, u32 max_model_len,
				      struct err_msg *em);

/* Applies a diff. Every count and index is checked before its use. Never blocks, never allocates.
 * ERR_SEQUENCE: not the step after the last one. ERR_INVALID: names the field, its value and what would be
 * right. ERR_DIVERGED: applied, but the digest is another one. After any of them the state is broken: every
 * apply answers ERR_DIVERGED until a reset. The arrays of `step` stay borrowed (copy_src, copy_dst, fork_src, fork_row) until
 * commit or advance. */
MUST_CHECK enum err batch_state_apply(struct batch_state *b, const struct ipc_step *step, struct err_msg *em);

/* Between apply and the forward: how many drafts this row of sample_rows may still be given. None: beams, rows with a
 * prompt in work, and whoever has them already. */
u32 batch_state_draft_room(const struct batch_state *b, u32 row);
/* Gives the row `count` >= 1 drafts, no more than there is room for; rows in the order of sample_rows. */
void batch_state_draft(struct batch_state *b, u32 row, const u32 *drafts, u32 count);
/* After the last of them: sample_rows and sample_ahead list them, each row's behind each other. */
void batch_state_drafts_end(struct batch_state *b);

/* The row's token behind what the sample is of: a draft, when another sample follows it. */
static inline u32 batch_state_sample_index(const struct batch_state *b, u32 i)
{
	return b->known[b->sample_rows[i]] + b->sample_ahead[i];
}

/* With drafts, before commit: keeps of every row's samples those up to the first that is not the draft behind it, or that
 * `ends` says is the last of its row, or in front of a BATCH_NO_TOKEN, and takes the others out of sample_rows,
 * sample_ahead and `sampled`. kept[i] is what number i was before. Returns how many drafts came true. */
typedef bool (*batch_ends_fn)(void *ctx, u32 row, u32 output_count, u32 token);
u32 batch_state_accept(struct batch_state *b, u32 *sampled, u32 *kept, batch_ends_fn ends, void *ctx);

/* Ends the step: `sampled[i]` is the token of sample_rows[i]. */
void batch_state_commit(struct batch_state *b, const u32 *sampled);

/* Ends the step before its tokens are there: rows of sample_rows count one known token more. Until
 * batch_state_tokens_known gives its value, batch_state_tokens and last_token hold an old one in its place. */
void batch_state_advance(struct batch_state *b);

/* Tokens that a step has sampled, by what was true of their rows between apply and advance. */
struct batch_tokens {
	u32 count;
	const u32 *rows;
	const u64 *incarnation; /* of the row then: a row that was dropped since is passed over */
	const u32 *index;	/* `known` of the row then: where the token goes */
	const u32 *tokens;
};
/* After an advance or any number of them; steps in any order. Tokens of rows that are gone change nothing. */
void batch_state_tokens_known(struct batch_state *b, const struct batch_tokens *t);

static inline bool batch_state_present(const struct batch_state *b, u32 row)
{
	return b->known[row] != 0;
}

/* The row's known tokens [known] and its block table [rows[row].block_count]. */
static inline const u32 *batch_state_tokens(const struct batch_state *b, u32 row)
{
	return b->tokens + row * b->token_stride;
}

static inline const u32 *batch_state_blocks(const struct batch_state *b, u32 row)
{
	return b->blocks + row * b->block_stride;
}

/* The source of the row's grammar, rows[row].grammar_bytes of UTF-8. */
static inline const char *batch_state_grammar(const struct batch_state *b, u32 row)
{
	return (const char *)b->grammars + (size_t)row * GRAMMAR_SOURCE_MAX;
}

/* The digest that a STEP with number b->step must carry for the state as it is between apply and commit. */
u64 batch_state_digest(const struct batch_state *b);

#endif
