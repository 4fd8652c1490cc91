/* The generic decoder: embedding, layers of attention and gated MLP (or experts) on a residual stream, final
 * norm, lm_head; composed from the ops of kernels/kernels.h. With several ranks each holds a share of heads,
 * MLP and vocabulary, and the partial sums meet after attention and MLP. */
#ifndef TERCET_PROC_WORKER_MODEL_DECODER_H
#define TERCET_PROC_WORKER_MODEL_DECODER_H

#include <stdatomic.h>

#include "proc_worker/collectives.h"
#include "proc_worker/inputs.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/lora.h"
#include "proc_worker/model/moe.h"
#include "proc_worker/model/rope.h"
#include "proc_worker/state_memory.h"
#include "proc_worker/model/weights.h"

struct decoder_config {
	const struct model_config *model;
	const struct model_shard *shard;
	const struct model_weights *weights;
	struct rope_tables *rope;
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	struct collectives *collectives; /* NULL with one rank */
	u32 tokens_max;			 /* of a step */
	u32 logit_rows_max;		 /* of one decoder_logits */
	const struct lora_set *loras;	 /* NULL: none */
	const struct state_memory *states; /* of recurrent layers, a slot for each row of the batch; NULL: there are none */
	u32 context_max; /* of models with an indexer: tokens of a sequence */
	_Atomic u64 *progress_ns;	 /* NULL, or where the time goes at which the last layer was done */
};

/* Of families with arch.altup: altup.h. */
struct altup_memory {
	float *streams; /* [tokens of the step][streams][hidden]; NULL: there is one stream, which is decoder.x */
	float *routed;	/* [tokens of the step][streams] */
	float *mix;	/* [streams][streams + 1], of as many tokens or rows */
	float *moments; /* [streams][2], likewise */
	float *cutoffs; /* [tokens of the step] of a layer's sparse gates */
	float *picked, *unembedded; /* [logit_rows_max][streams][hidden] */
	float *low; /* [tokens of the step][laurel_rank] */
};

/* Of families with arch.head_experts: head_experts.h. [tokens of the step * experts_per_token][...] but the logits, of tokens. */
struct head_experts_memory {
	float *rows; /* [kv_heads * head_dim] queries, and what they attend to */
	float *said; /* [hidden] */
	float *logits, *weights;
	u32 *assignments, *tokens_of, *expert_start;
};

/* Of families with arch.hyper: hyper.h. */
struct hyper_memory {
	float *streams; /* [tokens of the step][streams][hidden] */
	float *gates;	/* [2 streams], of as many tokens or rows: what each counts, and adds */
	float *moments; /* [2], likewise */
	float *picked;	/* [logit_rows_max][streams][hidden] */
};

/* Of families with arch.shared_blocks: shared_block.h. */
struct shared_block_memory {
	float *embedded; /* [tokens of the step][hidden] */
	float *joined;	 /* [2 hidden] the block's input: the stream's norm and the embedding's */
	float *said;	 /* [hidden] what the next layer reads of it, while `waits` */
	float *low;	 /* [3 rank] of adapters */
	bool waits;
};

/* Of models with an indexer: indexer.h. */
struct indexer_memory {
	u32 *chosen; /* [tokens of the step][top], of the last layer that chose */
	float *keys, *normed; /* [tokens][width] */
	float *queries, *weights; /* [tokens][heads][width], [tokens][heads] */
	struct kern_index_query *list; /* [count], room for all tokens: the queries that choose */
	u32 *places;		       /* [count] where in decoder.qkv each is */
	u32 count;
	float *scores; /* [scored_most][score_stride] */
	size_t score_stride;
	u32 scored_most;
	char *gathered; /* keys and values of some queries */
	size_t gathered_bytes;
	u32 *starts, *contexts, *tables; /* of one call of attention */
};

struct decoder {
	struct decoder_config config;
	/* [tokens of the step][...] */
	float *zeros; /* of models with recurrent.decay_bound, [heads * key_dim] */
	float *x;      /* the residual stream */
	float *delta;  /* what the last block left beside it, while `pending`; added by the next norm */
	bool pending;
	const float *scale; /* what the stream is multiplied by when that is added: of the layer before; or NULL */
	float *normed;
	const float *input; /* of the next product: normed, or x where a family has no norm before its blocks */
	const float *unnormed; /* the weights of the norm that `input` still wants, of x: products of many tokens do it; or NULL */
	bool put_off; /* attention's last product, which the MLP's are to follow in one call */
	float *qkv; /* where queries are rotated in place, and what attention makes of them takes theirs: it is still in a core's caches */
	float *low; /* of latent attention the product of SLOT_QKV: what queries are made from, the latent, what rotates of the key */
	float *steps; /* [channels] of RECURRENT_SELECTIVE, whose x_proj goes to `low`; of RECURRENT_LRU the gates of what fades, those of what comes in being in `low` */
	float *queries, *values; /* of latent attention: before the heads' own products and behind them; of arch.differential the latter alone */
	float *squares; /* [2], of families with norms over all heads, with latent attention or with norms before last products */
	const u32 *rope_rows;	    /* [tokens] of the rotary tables; of the step */
	float *gate_up, *activated; /* share their memory with the four above: never alive together */
	float *inputs; /* [layers][input_width] what layers add of a token by themselves; NULL: nothing */
	float *inputs_projected; /* the part of it that is made of the embedding, before the first layer: shares that memory, too */
	float *input_gate, *input_activated; /* [2 input_width], [input_width], behind the MLP: they, too */
	float *shortcut; /* [tokens][hidden] what a layer's experts add behind the next one; NULL: no layer has such */
	float *norm_low, *norm_low_activated, *norm_gates; /* [norm_gate_rank] twice, [hidden], of arch.gated_norms */
	float *routed, *beside; /* of experts beside an MLP: what their router reads, what they add */
	struct moe moe;		    /* its buffers, too */
	struct altup_memory altup;
	struct head_experts_memory heads;
	struct hyper_memory hyper;
	struct shared_block_memory block;
	struct indexer_memory indexer;
	u32 *input_ids; /* [tokens of the step] those that the table of inputs has; NULL: it has all */
	struct lora_step lora;
	/* [logit_rows_max, no more than tokens of the step][...] */
	float *picked, *picked_delta, *picked_normed;
	float *logits; /* of [vocab] each; rank 0 */
	/* Of a step with `last_only`, the last layer with keys and values of which kept one token a row. */
	bool narrowed;
	u32 tokens, rows;  /* of the step */
	u32 *last;	   /* [rows] the token kept */
	u32 *last_positions, *last_rope_rows; /* [rows] its position, and row of the rotary tables */
	u32 *single_start; /* [tokens_max + 1] rows of one query each */
	float *slopes; /* [heads of this rank] of ALiBi; NULL: none */
	void *memory;
	size_t memory_bytes;
};

/* Bytes that a part of the collectives' buffer must have. */
size_t decoder_exchange_bytes(const struct model_config *model, u32 ranks, u32 tokens_max);
/* Bytes of activations that decoder_init allocates. */
size_t decoder_bytes(const struct decoder_config *config);

/* Everything in `config` must outlive the decoder. ERR_NO_MEMORY. */
MUST_CHECK enum err decoder_init(struct decoder *d, const struct decoder_config *config, struct err_msg *em);
void decoder_fini(struct decoder *d);

/* Runs the tokens of a step through all layers and writes their K and V into `kv` [layers], of models with an indexer its keys into as many behind these.
 * Errors are those of the ops (ERR_DEVICE) and of the collectives. */
MUST_CHECK enum err decoder_forward(struct decoder *d, const struct inputs *in, const struct kern_kv *kv,
				    struct err_msg *em);
/* Logits of `count` <= logit_rows_max tokens of the last forward (of rows' last ones, if that was `last_only`): *out [count][vocab] on rank 0, NULL on the
 * others; lives until the next call. */
MUST_CHECK enum err decoder_logits(struct decoder *d, const u32 *tokens, u32 count, float **out,
				   struct err_msg *em);

#endif
