/* A worker without a model, for the scheduler's tests: real decoding, the real batch state, and KV cells that
 * hold a hash of the tokens up to their position. A token is a hash of its prefix, so every request has one
 * right output, and every step checks that each block a row reads holds exactly its prefix, and a row's state, of models that keep one. */
#ifndef TERCET_TESTS_SIM_FAKE_WORKER_H
#define TERCET_TESTS_SIM_FAKE_WORKER_H

#include "common/buf.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state.h"

struct fake_result {
	u64 epoch, step;
	u32 count;
	u64 seq[IPC_ROWS_MAX];
	u32 position[IPC_ROWS_MAX];
	u32 token[IPC_ROWS_MAX];
	/* Of beams. */
	u32 beam_count, list_count;
	u32 beam_entry[IPC_ROWS_MAX];
	u32 lp_count[IPC_ROWS_MAX], lp_rank[IPC_ROWS_MAX];
	u32 lp_ids[IPC_LOGPROBS_MAX];
	f32 lp_values[IPC_LOGPROBS_MAX];
};

struct fake_worker {
	struct batch_state *batch;
	struct ipc_scratch scratch;
	struct buf frame;
	u64 *cells;  /* [blocks of both pools][block_size]: hash of the prefix whose last token is stored there; 0: never
			written */
	u64 *prefix; /* [rows][context + 1]: hash of the first n tokens of the row */
	u32 *hashed; /* [rows]: how many of them are computed */
	u64 *hashed_for;  /* [rows]: for which incarnation of the row */
	u64 *writer_step; /* [blocks]: last step in which it was written */
	u32 *writer_row;
	u64 frame_bytes; /* of all steps */
	u64 *state;	 /* [rows + state_slots], with batch_limits.recurrent: hash of what the row has computed, as its recurrent layers would keep it */
	u64 guesses;	 /* state of what decides which tokens are guessed ahead */
};

/* The token behind `count` tokens. */
u32 fake_next_token(const u32 *tokens, u32 count, u32 vocab_size);

/* The `n` best tokens behind them with their log-probabilities, of which some are equal. Returns how many there are. */
u32 fake_best_tokens(const u32 *tokens, u32 count, u32 vocab_size, u32 n, u32 *ids, f32 *values);

/* Aborts when memory runs out. */
void fake_worker_init(struct fake_worker *w, const struct batch_limits *limits);
void fake_worker_fini(struct fake_worker *w);
void fake_worker_reset(struct fake_worker *w, u32 block_count, u32 max_model_len);
/* Encodes, decodes, applies and runs the step. The error is that of the batch state, or ERR_INTERNAL when a
 * row reads a block that does not hold its prefix, or has a state that is not its prefix's, or two rows write one block. */
MUST_CHECK enum err fake_worker_step(struct fake_worker *w, const struct ipc_step *step,
				     struct fake_result *out, struct err_msg *em);
/* `r` as a message; borrows its arrays. */
struct ipc_result fake_result_message(const struct fake_result *r);

#endif
