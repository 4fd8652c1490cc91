/* Blocks of attention and an MLP that several layers share (Zamba 2; Glorioso et al. 2024). Such a block reads the stream and, beside it, the token's embedding; what
 * its MLP says goes through a matrix of the layer's own and is added to what the layer of a state behind it reads, not to the stream. Each layer has low-rank adapters of its own of
 * the block's first matrices. In the decoder the block is a layer with LAYER_SHARED_BLOCK, in front of that with the state. */
#ifndef TERCET_PROC_WORKER_MODEL_SHARED_BLOCK_H
#define TERCET_PROC_WORKER_MODEL_SHARED_BLOCK_H

#include "proc_worker/model/decoder.h"

/* Where in `base` (NULL: nowhere, only `*offset` moves on) the arrays of a step of so many tokens are. */
void shared_block_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens);
/* Behind the embedding: keeps it. Nothing in families without such blocks. */
void shared_block_begin(struct decoder *d, u32 tokens);
/* The whole layer. Errors are those of the ops and of the collectives. */
MUST_CHECK enum err shared_block_run(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em);
/* What the layer behind such a block reads, d->input: a norm of the stream and what the block has said. The stream stays as it is. */
MUST_CHECK enum err shared_block_input(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* Adds to gate and up, `a` with its input, what the layer's adapter makes of that; nothing where there is none. */
MUST_CHECK enum err shared_block_adapt_mlp(struct decoder *d, u32 index, const struct kern_matmul_args *a, struct err_msg *em);

#endif
