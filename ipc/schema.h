/* Every message, once. Structs, encoding, decoding, validation, the printer, docs/MESSAGES.md and the round-trip
 * tests expand from this table.
 *
 * S(type, name): scalar. A(type, name, max): array of at most `max` elements, sent as MessagePack bin, little-endian
 * (nil when empty). Flat columns only. Append fields, never reuse a message number.
 *
 * On the wire a message is one MessagePack array: [number, sequence, epoch, field, field, ...]. `sequence` counts
 * the messages of this sender on this channel to this peer from 1, so that a loss is seen; `epoch` is the sender's. */
#ifndef TERCET_IPC_SCHEMA_H
#define TERCET_IPC_SCHEMA_H

#include "common/grammar_kind.h"
#include "common/sampling_params.h"
#include "common/session.h"
#include "common/types.h"

#define IPC_PROTOCOL_VERSION 1

enum {
	IPC_ROWS_MAX = 1024,             /* rows of a batch */
	IPC_TOKENS_MAX = 16 * 1024 * 1024, /* tokens of one message */
	IPC_BLOCKS_MAX = 1024 * 1024,
	IPC_TEXT_MAX = 64 * 1024 * 1024,
	IPC_NAME_MAX = 256,
	IPC_ERROR_TEXT_MAX = 1024,
	IPC_STOPS_MAX = IPC_ROWS_MAX * STOP_IDS_MAX,
	IPC_BIASES_MAX = IPC_ROWS_MAX * BIAS_MAX,
	IPC_GRAMMARS_MAX = IPC_ROWS_MAX * GRAMMAR_SOURCE_MAX,
	IPC_LOGPROBS_MAX = IPC_ROWS_MAX * (LOGPROBS_MAX + 1),
	IPC_PROMPT_LOGPROBS_MAX = 65536,
	IPC_EMBEDDING_VALUES_MAX = 2 * 1024 * 1024, /* of a step's embeddings together */
	IPC_PROMPT_LOGPROB_IDS_MAX = IPC_PROMPT_LOGPROBS_MAX * (LOGPROBS_MAX + 1) + IPC_EMBEDDING_VALUES_MAX,
};

/* The sampling table as scalars of SUBMIT and as columns of STEP. */
#define IPC_PARAM_SCALAR(S, type, name, def, min, max) S(type, name)
#define IPC_PARAM_COLUMN(A, type, name, def, min, max) A(type, add_##name, IPC_ROWS_MAX)

/* First message of both sides of every channel. */
#define IPC_HELLO(S, A)                                                                                      \
	S(u32, version)                                                                                      \
	S(u64, schema_hash)                                                                                  \
	S(u32, role) /* enum ipc_role */                                                                     \
	S(u32, rank)                                                                                         \
	S(u64, client_id)                                                                                    \
	A(u8, name, IPC_NAME_MAX)

/* Something the peer sent cannot be taken; text for people. From a worker with a sequence in `req_id`: it cannot go on,
 * the others can. */
#define IPC_ERROR(S, A)                                                                                      \
	S(u32, code) /* enum err */                                                                          \
	S(u64, req_id) /* 0: the channel itself */                                                           \
	A(u8, text, IPC_ERROR_TEXT_MAX)

/* scheduler -> client, after its HELLO */
#define IPC_ENGINE(S, A)                                                                                     \
	S(u32, max_model_len)                                                                                \
	S(u32, vocab_size)                                                                                   \
	S(u32, block_size)                                                                                   \
	S(u32, block_count)                                                                                  \
	S(u32, max_num_seqs)                                                                                 \
	S(u32, client_lease_s)                                                                               \
	A(u32, eos_ids, EOS_IDS_MAX)                                                                         \
	A(u8, model, 4096)                                                                                   \
	S(u32, embedding_width) /* numbers of an embedding; 0: it gives none */

/* client -> scheduler. `tokens`: the prompt and behind it `output_count` tokens generated in an earlier life. With a
 * `session` the prompt is that conversation's history and behind it `tokens` (common/session.h). With beam_width it is a
 * beam search, and gives answers number 0 to answer_count - 1 (0 counts as 1), the best first, as requests req_id +
 * number. With a `grammar_kind` every token is chosen so that the output can become a text of that grammar, and the
 * end-of-sequence token where it is one. */
#define IPC_SUBMIT(S, A)                                                                                     \
	S(u64, client_id)                                                                                    \
	S(u64, req_id)                                                                                       \
	S(u64, cache_salt) /* prefix cache is shared only within a salt */                                   \
	S(i32, priority)                                                                                     \
	S(u32, output_count)                                                                                 \
	SAMPLING_TABLE(IPC_PARAM_SCALAR, S)                                                                  \
	A(u32, tokens, IPC_TOKENS_MAX)                                                                       \
	A(u32, stop_ids, STOP_IDS_MAX)                                                                       \
	A(u32, bias_ids, BIAS_MAX)                                                                           \
	A(f32, bias_values, BIAS_MAX)                                                                        \
	A(u32, stop_string_bytes, STOP_STRINGS_MAX) /* length of each */                                     \
	A(u8, stop_strings, STOP_STRING_BYTES_MAX)  /* UTF-8, one behind the other */                        \
	S(u64, session_owner) /* of several tenants: whose session; the same name is another session for another */ \
	S(u32, session_flags) /* enum session_flag */                                                        \
	S(u32, session_step)  /* with SESSION_STEP: go back to so many tokens first */                       \
	S(u32, session_join)  /* first ones of `tokens` that are left out where the history ends with them */ \
	A(u8, session, SESSION_NAME_MAX) /* empty: none */\
	S(u32, answer_count)                                                                                 \
	S(f64, length_penalty)                                                                               \
	S(u32, grammar_kind) /* enum grammar_kind */                                                         \
	S(u32, grammar_flags) /* enum grammar_flag */                                                        \
	A(u8, grammar, GRAMMAR_SOURCE_MAX) /* its source, UTF-8 */                                           \
	A(u8, lora, IPC_NAME_MAX) /* name of the adapter (--lora-modules), UTF-8; empty: the model alone */

#define IPC_ACCEPTED(S, A)                                                                                   \
	S(u64, req_id)                                                                                       \
	S(u64, seq)                                                                                          \
	S(u32, waiting) /* requests in front of it */

#define IPC_REFUSED(S, A)                                                                                    \
	S(u64, req_id)                                                                                       \
	S(u32, code) /* enum err */                                                                          \
	S(u32, retry_after_ms) /* 0: trying again is of no use */                                            \
	A(u8, text, IPC_ERROR_TEXT_MAX)

#define IPC_ABORT(S, A)                                                                                      \
	S(u64, client_id)                                                                                    \
	S(u64, req_id)

/* client -> scheduler at least three times per lease; silence for a lease aborts its requests */
#define IPC_ALIVE(S, A) S(u64, client_id)

/* worker -> scheduler after loading and profiling; the scheduler takes the least of all ranks.
 * kv_switch_len, 0: none: the KV of a sequence longer than that is another one from its first token on (rotary
 * embeddings that depend on the length). kv_by_prompt 0: such a sequence's KV is computed anew when it grows beyond;
 * 1: it depends on the length of the prompt, beyond that one, and stays what it is. recurrent 1: what is computed of a
 * sequence is not in its blocks alone but in its row, too, so that a row begins with nothing computed, as a fork, or with one of
 * state_slots states that were saved. embedding_width: how many numbers an embedding has. */
#define IPC_WORKER_READY(S, A)                                                                               \
	S(u32, rank)                                                                                         \
	S(u32, block_count)                                                                                  \
	S(u32, max_model_len)                                                                                \
	S(u32, vocab_size)                                                                                   \
	S(u64, weight_bytes)                                                                                 \
	S(u64, kv_bytes_per_block)                                                                           \
	A(u32, eos_ids, EOS_IDS_MAX)                                                                         \
	S(u32, kv_switch_len)                                                                                \
	S(u32, kv_by_prompt)                                                                                 \
	S(u64, group) /* names the coming together of all ranks, which it is the same for; 0: one rank */    \
	S(u32, host_block_count) /* in the host's memory: their ids follow those of the INIT's block_count */ \
	A(u8, no_grammars, IPC_ERROR_TEXT_MAX) /* why no grammar can constrain an output; empty: they can */ \
	S(u32, recurrent) \
	S(u32, state_slots) \
	S(u32, embedding_width) \
	A(u8, no_embeddings, IPC_ERROR_TEXT_MAX) /* why it gives none; empty: it does */ \
	S(u32, headless) /* 1: it has no lm_head, and gives nothing else */

/* scheduler -> worker: begin an epoch with empty state and a pool of that many blocks */
#define IPC_INIT(S, A)                                                                                       \
	S(u32, block_count)                                                                                  \
	S(u32, max_model_len)

/* scheduler -> every worker, once a step. Order of application: drop, copy, add, fork, set, grow, run.
 * Columns named add_* have one element per added row, except the concatenated ones (add_tokens, add_blocks,
 * add_stop_ids, add_bias_*), whose lengths stand in the *_count columns.
 * copy_*: pairs of KV blocks, of the device or the host (at most one of them), in no order among each other: no block
 * is read and written, and none is written twice. Blocks of rows are the device's.
 * fork_*: an empty row becomes a copy of the present row fork_src under another sequence id. It shares that row's
 * blocks; fork_block takes the place of the last one, unless that is full of computed tokens (then: UINT32_MAX).
 * set_*: the row's newest token, which is not computed yet, is set_token and not the one that was sampled.
 * grammar_*: of the added rows whose output a grammar constrains, in order of their indices: grammar_add is the index
 * into the add_* columns, grammar_bytes the length of its source in grammar_text.
 * load_slot: of models whose rows keep states (WORKER_READY), for each added row with something computed, in order, the slot that its state was saved in.
 * save_*: when the step has run, the slot has the state of the row behind its first save_tokens, of which the last runs in this step. Loads
 * come before saves; no row and no slot is saved twice in a step.
 * add_lora: the adapter's place in --lora-modules, from 1; 0: none. Empty when no added row has one.
 * Rule: after application every row whose known tokens but the last are computed runs one token, every other row
 * none; run_row/run_count list the exceptions. A row listed with 0 pauses for this step only. */
#define IPC_STEP(S, A)                                                                                       \
	S(u64, step) /* 1, 2, 3, ... within an epoch */                                                      \
	S(u64, digest) /* step_digest_step after application */                                              \
	A(u32, drop_row, IPC_ROWS_MAX)                                                                       \
	A(u32, copy_src, IPC_BLOCKS_MAX)                                                                     \
	A(u32, copy_dst, IPC_BLOCKS_MAX)                                                                     \
	A(u32, grow_row, IPC_BLOCKS_MAX)                                                                     \
	A(u32, grow_block, IPC_BLOCKS_MAX)                                                                   \
	A(u32, run_row, IPC_ROWS_MAX)                                                                        \
	A(u32, run_count, IPC_ROWS_MAX)                                                                      \
	A(u32, add_row, IPC_ROWS_MAX)                                                                        \
	A(u64, add_seq, IPC_ROWS_MAX)                                                                        \
	A(u32, add_computed, IPC_ROWS_MAX) /* tokens whose KV is there before this step */                   \
	A(u32, add_prompt_count, IPC_ROWS_MAX) /* of add_tokens; the rest are outputs */                     \
	A(u32, add_token_count, IPC_ROWS_MAX)                                                                \
	A(u32, add_tokens, IPC_TOKENS_MAX)                                                                   \
	A(u32, add_block_count, IPC_ROWS_MAX)                                                                \
	A(u32, add_blocks, IPC_BLOCKS_MAX)                                                                   \
	A(u32, add_stop_count, IPC_ROWS_MAX)                                                                 \
	A(u32, add_stop_ids, IPC_STOPS_MAX)                                                                  \
	A(u32, add_bias_count, IPC_ROWS_MAX)                                                                 \
	A(u32, add_bias_ids, IPC_BIASES_MAX)                                                                 \
	A(f32, add_bias_values, IPC_BIASES_MAX)                                                              \
	SAMPLING_TABLE(IPC_PARAM_COLUMN, A)                                                                  \
	A(u32, fork_row, IPC_ROWS_MAX)                                                                       \
	A(u32, fork_src, IPC_ROWS_MAX)                                                                       \
	A(u64, fork_seq, IPC_ROWS_MAX)                                                                       \
	A(u32, fork_block, IPC_ROWS_MAX)                                                                     \
	A(u32, set_row, IPC_ROWS_MAX)                                                                        \
	A(u32, set_token, IPC_ROWS_MAX)                                                                      \
	A(u32, grammar_add, IPC_ROWS_MAX)                                                                    \
	A(u32, grammar_kind, IPC_ROWS_MAX) /* enum grammar_kind */                                           \
	A(u32, grammar_flags, IPC_ROWS_MAX) /* enum grammar_flag */                                          \
	A(u32, grammar_bytes, IPC_ROWS_MAX)                                                                  \
	A(u8, grammar_text, IPC_GRAMMARS_MAX)                                                                \
	A(u32, add_lora, IPC_ROWS_MAX)                                                                       \
	A(u32, load_slot, IPC_ROWS_MAX)                                                                      \
	A(u32, save_row, IPC_ROWS_MAX)                                                                       \
	A(u32, save_slot, IPC_ROWS_MAX)                                                                      \
	A(u32, save_tokens, IPC_ROWS_MAX)

/* worker rank 0 -> scheduler and detokenizer, the same bytes. One element per row that got a token.
 * `position`: number of this output in the request, from 0. lp_*: for entries that asked, in order: lp_entry is the
 * index into seq, lp_count the ids listed (the sampled one first, then the best), lp_rank the sampled one's rank from 1.
 * plp_*: prompt log-probabilities, one element per prompt position (>= 1), the prompt's own token first. An embedding is one
 * more element behind these, of the position that follows the prompt: its numbers are the values, their indices the ids.
 * beam_entry: indices into seq of rows that are beams. What they list is for the scheduler, which answers of it are
 * told to the detokenizer it decides at the end of the search. */
#define IPC_RESULT(S, A)                                                                                     \
	S(u64, step)                                                                                         \
	S(u32, wait_us)    /* waited for this step */                                                        \
	S(u32, forward_us) /* computed */                                                                    \
	A(u64, seq, IPC_ROWS_MAX)                                                                            \
	A(u32, position, IPC_ROWS_MAX)                                                                       \
	A(u32, token, IPC_ROWS_MAX)                                                                          \
	A(u32, lp_entry, IPC_ROWS_MAX)                                                                       \
	A(u32, lp_count, IPC_ROWS_MAX)                                                                       \
	A(u32, lp_rank, IPC_ROWS_MAX)                                                                        \
	A(u32, lp_ids, IPC_LOGPROBS_MAX)                                                                     \
	A(f32, lp_values, IPC_LOGPROBS_MAX)                                                                  \
	A(u64, plp_seq, IPC_PROMPT_LOGPROBS_MAX)                                                             \
	A(u32, plp_position, IPC_PROMPT_LOGPROBS_MAX)                                                        \
	A(u32, plp_count, IPC_PROMPT_LOGPROBS_MAX)                                                           \
	A(u32, plp_rank, IPC_PROMPT_LOGPROBS_MAX)                                                            \
	A(u32, plp_ids, IPC_PROMPT_LOGPROB_IDS_MAX)                                                          \
	A(f32, plp_values, IPC_PROMPT_LOGPROB_IDS_MAX)                                                       \
	A(u32, beam_entry, IPC_ROWS_MAX)

/* scheduler -> detokenizer, before the sequence's first STEP (and again for every live one after a restart).
 * A request that ends without having run is opened and closed at once: every ACCEPTED one ends in a chunk. */
#define IPC_OPEN(S, A)                                                                                       \
	S(u64, seq)                                                                                          \
	S(u64, client_id)                                                                                    \
	S(u64, req_id)                                                                                       \
	S(u32, prompt_count)                                                                                 \
	S(u32, cached_count) /* prompt tokens found in the prefix cache */                                   \
	S(u32, output_max)   /* struct finish_rule */                                                        \
	S(u32, output_min)                                                                                   \
	S(u32, flags) /* enum sampling_flag */                                                               \
	S(u32, held_count) /* outputs that the client had when it asked, and did not need to be told again */ \
	A(u32, prompt_tail, 64)                                                                              \
	A(u32, output_tokens, IPC_TOKENS_MAX) /* known so far, in this life or an earlier one */             \
	A(u32, eos_ids, EOS_IDS_MAX)                                                                         \
	A(u32, stop_ids, STOP_IDS_MAX)                                                                       \
	A(u32, stop_string_bytes, STOP_STRINGS_MAX)                                                          \
	A(u8, stop_strings, STOP_STRING_BYTES_MAX)                                                           \
	S(u32, confirm) /* 1: the end that its tokens give is given out when a CLOSE has come */

/* scheduler -> detokenizer: ends for another reason than its tokens, after `output_count` outputs; or, with reason 0,
 * has ended by them (or by STOPPED), and `output_count` outputs of it are kept: only then a session's turn is over for its
 * client, who may rely on it whatever dies next. If that are more than the detokenizer has found it to have, STOPPED is on its
 * way, and will be answered by another one with the count that is kept then */
#define IPC_CLOSE(S, A)                                                                                      \
	S(u64, seq)                                                                                          \
	S(u32, reason) /* enum finish_reason; 0: see above */                                                \
	S(u32, output_count)                                                                                 \
	A(u8, text, IPC_ERROR_TEXT_MAX)

/* detokenizer -> scheduler: a stop string ended it at this many outputs; or, of a turn of a session that has stop strings and was given
 * up, it ended there. Answered by CLOSE where turns of sessions are kept */
#define IPC_STOPPED(S, A)                                                                                    \
	S(u64, seq)                                                                                          \
	S(u32, output_count)

/* client -> output socket. `last_chunk`: the highest chunk number seen, 0: none. live_*: what the client holds of
 * its unfinished requests, so that a detokenizer without memory of them goes on where the client's text ends. */
#define IPC_ATTACH(S, A)                                                                                     \
	S(u64, client_id)                                                                                    \
	S(u64, last_chunk)                                                                                   \
	A(u64, live_req_id, 65536)                                                                           \
	A(u32, live_token_count, 65536)                                                                      \
	A(u32, live_text_bytes, 65536)

#define IPC_ATTACHED(S, A)                                                                                   \
	S(u64, client_id)                                                                                    \
	S(u64, next_chunk)

/* client -> output socket: chunks up to this one need not be kept */
#define IPC_ACK(S, A)                                                                                        \
	S(u64, client_id)                                                                                    \
	S(u64, chunk)

/* output socket -> client: the client was closed (slow, or its chunks are gone) */
#define IPC_DETACHED(S, A)                                                                                   \
	S(u64, client_id)                                                                                    \
	S(u32, code) /* enum err */                                                                          \
	A(u8, text, IPC_ERROR_TEXT_MAX)

/* output socket -> client. One element per request that has news; `tokens` and `text` are concatenated.
 * The text of an entry is the decoded form of exactly its tokens. lp_*: one element per token of an entry
 * whose request asked (lp_token: index into tokens). */
#define IPC_CHUNK(S, A)                                                                                      \
	S(u64, client_id)                                                                                    \
	S(u64, chunk) /* 1, 2, 3, ... per client */                                                          \
	A(u64, req_id, IPC_ROWS_MAX)                                                                         \
	A(u32, first_token, IPC_ROWS_MAX) /* output number of the entry's first token */                     \
	A(u32, token_count, IPC_ROWS_MAX)                                                                    \
	A(u32, text_bytes, IPC_ROWS_MAX)                                                                     \
	A(u32, prompt_count, IPC_ROWS_MAX)                                                                   \
	A(u32, cached_count, IPC_ROWS_MAX)                                                                   \
	A(u8, finish, IPC_ROWS_MAX)      /* enum finish_reason; not 0: the request's last entry */           \
	A(u8, stop_kind, IPC_ROWS_MAX)   /* 0 none, 1 stop id, 2 stop string */                              \
	A(u32, stop_value, IPC_ROWS_MAX) /* the id, or the index of the string */                            \
	A(u32, tokens, IPC_TOKENS_MAX)                                                                       \
	A(u8, text, IPC_TEXT_MAX)                                                                            \
	A(u32, lp_token, IPC_TOKENS_MAX)                                                                     \
	A(u32, lp_count, IPC_TOKENS_MAX)                                                                     \
	A(u32, lp_rank, IPC_TOKENS_MAX)                                                                      \
	A(u32, lp_ids, IPC_TOKENS_MAX)                                                                       \
	A(f32, lp_values, IPC_TOKENS_MAX)                                                                    \
	A(u32, plp_entry, IPC_PROMPT_LOGPROBS_MAX)                                                           \
	A(u32, plp_position, IPC_PROMPT_LOGPROBS_MAX)                                                        \
	A(u32, plp_count, IPC_PROMPT_LOGPROBS_MAX)                                                           \
	A(u32, plp_rank, IPC_PROMPT_LOGPROBS_MAX)                                                            \
	A(u32, plp_ids, IPC_PROMPT_LOGPROB_IDS_MAX)                                                          \
	A(f32, plp_values, IPC_PROMPT_LOGPROB_IDS_MAX)                                                       \
	A(u8, error_text, IPC_ERROR_TEXT_MAX) /* of the entry with FINISH_ERROR */

/* client -> scheduler: asks for a session's state, or ends it. Answered by SESSION_STATE with the same number. */
#define IPC_SESSION(S, A)                                                                                    \
	S(u64, client_id)                                                                                    \
	S(u64, req_id) /* any; numbers of requests are apart from these */                                   \
	S(u32, action) /* enum session_action */                                                             \
	S(u64, session_owner)                                                                                \
	A(u8, session, SESSION_NAME_MAX)

/* scheduler -> client. `code` is not 0: there is no such session, and `text` says why. */
#define IPC_SESSION_STATE(S, A)                                                                              \
	S(u64, req_id)                                                                                       \
	S(u32, code) /* enum err */                                                                          \
	S(u32, token_count) /* of its history, without the turn that runs */                                 \
	S(u32, turn_count)                                                                                   \
	S(u32, cached_count) /* of these tokens, whose KV the prefix cache has now */                        \
	S(u32, running)      /* 1: a turn runs */                                                            \
	S(u32, age_s)                                                                                        \
	S(u32, idle_s)                                                                                       \
	S(u32, ttl_s) /* of idleness, after which it is dropped; 0: never */                                 \
	A(u8, text, IPC_ERROR_TEXT_MAX)

/* Leaves in good order; what follows is silence. */
#define IPC_BYE(S, A) S(u64, client_id)

/* M(number, NAME, name) */
#define IPC_MESSAGES(M)                                                                                      \
	M(1, HELLO, hello)                                                                                   \
	M(2, ERROR, error)                                                                                   \
	M(3, ENGINE, engine)                                                                                 \
	M(4, SUBMIT, submit)                                                                                 \
	M(5, ACCEPTED, accepted)                                                                             \
	M(6, REFUSED, refused)                                                                               \
	M(7, ABORT, abort)                                                                                   \
	M(8, ALIVE, alive)                                                                                   \
	M(9, WORKER_READY, worker_ready)                                                                     \
	M(10, INIT, init)                                                                                    \
	M(11, STEP, step)                                                                                    \
	M(12, RESULT, result)                                                                                \
	M(13, OPEN, open)                                                                                    \
	M(14, CLOSE, close)                                                                                  \
	M(15, STOPPED, stopped)                                                                              \
	M(16, ATTACH, attach)                                                                                \
	M(17, ATTACHED, attached)                                                                            \
	M(18, ACK, ack)                                                                                      \
	M(19, DETACHED, detached)                                                                            \
	M(20, CHUNK, chunk)                                                                                  \
	M(21, BYE, bye)                                                                                      \
	M(22, SESSION, session)                                                                              \
	M(23, SESSION_STATE, session_state)

#endif
