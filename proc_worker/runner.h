/* A loaded model and the batch it works on: takes STEP messages, answers RESULT messages. No sockets here.
 *
 *     runner_submit(r, step)     the CPU computes it there and then; a device gets it queued, and nobody waits
 *     runner_collect(r)          r->result: what the oldest step says that has not been collected
 *
 * The CPU has one step at a time, and it can be collected at once. A device has up to RUNNER_FLIGHTS_MAX;
 * runner_fd tells when one is done. All functions belong to one thread. */
#ifndef TERCET_PROC_WORKER_RUNNER_H
#define TERCET_PROC_WORKER_RUNNER_H

#include "common/options.h"
#include "common/speculative.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state.h"
#include "proc_worker/collectives.h"
#include "proc_worker/constraints.h"
#include "proc_worker/draft_lookup.h"
#include "proc_worker/inputs.h"
#include "proc_worker/kv_memory.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/decoder.h"
#include "proc_worker/model/weights.h"
#include "proc_worker/profile.h"
#include "proc_worker/sampler.h"
#include "proc_worker/state_memory.h"

/* Steps that may be submitted and not collected: what the scheduler sends ahead, and some. */
enum { RUNNER_FLIGHTS_MAX = 6 };

struct runner_config {
	const char *model_dir;
	const char *weights_cache; /* --weights-cache; NULL or "": none */
	const char *run_dir; /* of the collectives; may be NULL with one rank */
	u32 rank, ranks;
	const struct collectives_nodes *nodes; /* that the ranks are spread over; NULL: one. options_hash is not read */
	u32 threads; /* 0: automatic, the cores divided by the ranks */
	u32 caps;    /* enum kern_cap */
	enum option_device device;
	bool enforce_eager; /* device: no graphs */
	u32 step_timeout_ms; /* device: for each step; 0: none */
	enum option_dtype dtype;
	enum option_kv_dtype kv_dtype;
	enum option_quantization quantization;
	struct {
		u32 rows_max, tokens_max; /* --max-num-seqs, --max-num-batched-tokens */
		u32 max_model_len;	  /* 0: the model's */
		u32 block_size;
	} limits;
	u64 kv_cache_memory; /* 0: automatic */
	double memory_utilization;
	double swap_space; /* GiB; 0: none; below: automatic */
	const struct lora_modules *loras; /* NULL: none; must outlive the runner */
	struct speculative speculative; /* zeroed: nothing is guessed */
	bool saves_states; /* of recurrent layers: others may begin with them (--enable-prefix-caching) */
	bool constrains;   /* rows may have grammars: the tokenizer is loaded for them */
	void (*progress)(void *ctx, double share, const char *what); /* NULL: none */
	void *progress_ctx;
};

/* When the parts of the collected step ended, clock_now_ns: it was computed from `built` to `sampled`. On a device the
 * host was done with it at `queued` (CPU: 0), and there are no inputs and no sampling apart from the forward. */
struct runner_times {
	u64 begin, applied, queued, built, forwarded, sampled, collected;
};

/* The size of the collected step. */
struct runner_counts {
	u32 rows, run_rows, tokens, samples;
	u32 drafts, draft_tokens, accepted; /* guesses, their tokens, those of them that came true and are samples */
};

/* Columns of the RESULT; see ipc/schema.h. */
struct runner_columns {
	u64 *seq;
	u32 *position;
	u32 *beam_entry;
	struct sampler_logprobs lp;
	u64 *plp_seq;
	u32 *plp_position, *plp_count, *plp_rank, *plp_ids;
	f32 *plp_values;
	u32 plp_entries, plp_id_count;
	u32 *portion_token; /* [logit_rows_max] prompt positions that are worked on */
	struct kern_logprobs_row *portion_rows;
	void *memory;
	size_t memory_bytes;
};

struct runner_device;

/* Read-only outside runner*.c and profile.c. With a device, what computes on the CPU is empty: weights, ops, decoder,
 * kv, inputs, sampler, profile. */
struct runner {
	struct runner_config config;
	struct model_config model;
	struct model_shard shard;
	struct safetensors *checkpoint;
	struct model_weights weights;
	struct lora_set loras;
	struct rope_tables rope;
	enum kern_dtype dtype;	      /* of weights, and of the KV cache unless --kv-cache-dtype says otherwise */
	enum kern_dtype matrix_dtype; /* of the matrices: `dtype`, or a quantized one */
	u32 max_model_len;
	struct kern_ops ops;
	struct kern_ctx ctx;
	struct collectives *collectives; /* NULL with one rank */
	struct weights_plan plan;
	struct runner_device *device; /* NULL: the CPU */
	struct decoder decoder;
	struct kv_shape kv_shape;
	struct kv_layer *kv_layers; /* [kv_shape.layers] where they differ, or NULL */
	struct kv_memory kv;
	struct state_memory states; /* of recurrent layers, for each row of the batch; with a device without memory */
	struct batch_state *batch;
	struct inputs inputs;
	bool keeps_tokens; /* for tests, that ask for logits of any token of a step */
	struct sampler *sampler; /* rank 0 */
	struct draft_lookup *lookup; /* with config.speculative; else NULL */
	struct constraints *constraints; /* of ranks that sample, with config.constrains; else NULL */
	struct profile profile;
	u32 block_count, host_block_count; /* of the KV cache; what WORKER_READY says, as the next */
	u64 weight_bytes, kv_block_bytes;
	u32 state_slots; /* for saved states, of recurrent layers */

	u32 in_flight; /* steps that were submitted and not collected */
	bool awaits_tokens; /* device: the last of them is queued up to its sampling, since a grammar has to see tokens first */
	const struct constraints_step *constrained; /* of the step submitted last; NULL: no row has a grammar. Until the next */
	u32 *sampled;  /* [samples] tokens of the last step */
	u32 *kept;     /* [samples] of batch_state_accept */
	u64 *finished; /* [rows_max] incarnation that has reached its end; the scheduler may not know yet */
	struct runner_columns columns;
	struct ipc_result result; /* of the collected step; arrays live until the next submit */
	struct runner_times times;
	struct runner_counts counts;
};

/* What the options say of a rank's runner, without progress; strings are borrowed from `o`. */
struct runner_config runner_config_from(const struct options *o, u32 rank);

/* Ranks that share this host's cores and memory. */
static inline u32 runner_ranks_here(const struct runner *r)
{
	return r->config.ranks / (r->config.nodes ? r->config.nodes->count : 1);
}

/* Reads, checks and loads the model, profiles it, and takes the KV cache. With several ranks all do so
 * together. Errors say what is wrong with folder, options or memory. The caller owns `*out`. */
MUST_CHECK enum err runner_create(struct runner **out, const struct runner_config *config,
				  struct err_msg *em);
void runner_destroy(struct runner **r);

/* INIT: empty state, that many blocks; waits for what is in flight and forgets it. ERR_INVALID: more than there are;
 * ERR_DEVICE; the errors of collectives_begin. */
MUST_CHECK enum err runner_begin(struct runner *r, u64 epoch, u32 block_count, u32 max_model_len,
				 struct err_msg *em);

/* STEP: computes it, or queues it on the device, where there must be room (runner_is_full). What a grammar constrains
 * is queued up to its sampling while tokens before it are on their way; runner_collect queues the rest when it has them,
 * and until then there is no room. The errors of
 * batch_state_apply: the state is lost, a begin helps. The errors of the collectives: so is the step. ERR_DEVICE in
 * the device's words: only a new process helps. */
MUST_CHECK enum err runner_submit(struct runner *r, const struct ipc_step *step, struct err_msg *em);

/* Of the oldest submitted step fills r->result (rank 0; on the others the step number alone), r->times and r->counts.
 * ERR_AGAIN: none is done. ERR_DEVICE: it failed. Never waits. */
MUST_CHECK enum err runner_collect(struct runner *r, struct err_msg *em);

/* Readable when a step of the device is done or has failed, until runner_collect says ERR_AGAIN; -1 on the CPU, where a
 * submitted step is done. */
int runner_fd(const struct runner *r);
static inline bool runner_is_full(const struct runner *r)
{
	return r->awaits_tokens || r->in_flight == (r->device ? RUNNER_FLIGHTS_MAX : 1);
}
/* Waits until a step can be collected. ERR_AGAIN: none is in flight. ERR_DEVICE: it failed or took too long. Also the
 * errors of collectives_check. */
MUST_CHECK enum err runner_wait(struct runner *r, struct err_msg *em);
/* To be called now and then while steps are in flight: ERR_DEVICE when one takes longer than step_timeout_ms, or a
 * collective of the device has failed; the errors of collectives_check. */
MUST_CHECK enum err runner_look(struct runner *r, struct err_msg *em);
/* "cpu", "cuda"; and how the device calls itself ("" for the CPU), borrowed from `r`. */
const char *runner_device_kind(const struct runner *r);
const char *runner_device_name(const struct runner *r);

/* A row of the last step goes on: there will be a STEP, and waiting for it is waiting for the scheduler. */
bool runner_is_live(const struct runner *r);

/* With a device: computes a prompt alone, in steps of at most tokens_max, and calls `on_position` with the logits (vocab,
 * for the call) after its last token, or after each. After a begin; a prompt is shorter than max_model_len. The errors
 * of submit, wait and collect, and what on_position says. Blocks. */
typedef enum err (*runner_position_fn)(void *ctx, u32 position, const float *logits, struct err_msg *em);
MUST_CHECK enum err runner_device_prompt(struct runner *r, const u32 *ids, u32 count, bool all,
					 runner_position_fn on_position, void *ctx, struct err_msg *em);

/* Reads config.json and the checkpoint's headers, and decides on context, types and device: sets all but the progress of r->plan. Does
 * not block but on files. ERR_INVALID, ERR_FORMAT, ERR_UNSUPPORTED, ERR_IO, ERR_NO_MEMORY: what is wrong and what would be right is in *em, and
 * runner_destroy frees what was made. For runner_create alone. */
MUST_CHECK enum err runner_read_model(struct runner *r, struct err_msg *em);

/* For the files of the runner: memory for the states of recurrent layers, none of other models; with a device only where everything lies in it, and
 * how many states are worth saving. ERR_NO_MEMORY. */
MUST_CHECK enum err runner_make_states(struct runner *r, struct err_msg *em);
/* Between batch_state_apply and the forward: states that rows begin with, saved ones or those of the rows that they are copies of. */
void runner_copy_states(struct runner *r);
/* Between apply and the forward: guesses what rows say next (config.speculative). */
void runner_draft(struct runner *r);
/* Behind the sampling, on the rank that samples: takes back what was sampled behind drafts that a grammar does not allow. */
void runner_forget_unguided(struct runner *r);
/* Between sampling and commit: what came true of it stays among the samples. */
void runner_accept(struct runner *r);
/* Whether the row ends with `token` as its output number `output` (from 1); `ctx` is the runner. */
bool runner_ends(void *ctx, u32 row, u32 output, u32 token);

/* Log-probabilities of the prompt positions that the current step computes, for rows that asked; between
 * apply and commit, after the forward. All ranks call it. */
MUST_CHECK enum err runner_prompt_logprobs(struct runner *r, struct err_msg *em);
/* The embeddings of prompts that end with the current step, of rows that asked: what the final norm made of the prompt's last
 * token. Behind decoder_logits of the step's samples, and of runner_prompt_logprobs, on rank 0. */
void runner_embeddings(struct runner *r);
/* Whether a row of the applied step asks for log-probabilities of its prompt. */
bool runner_prompt_logprobs_wanted(const struct batch_state *b);

#endif
