/* Sparse attention over latents (DeepSeek-AI 2025, DeepSeek V3.2): beside attention an indexer with heads of its own, which share one key, scores all
 * tokens that a query may attend to, and the query attends to those that score best. Keys of the indexer lie in the KV cache, as further layers behind the
 * model's: that of layer i is layer model.layers + i. While a query sees no more tokens than would be chosen, it attends to all, as if there were no
 * indexer; its token's key is written all the same. Every rank has the whole indexer, so that all choose the same. */
#ifndef TERCET_PROC_WORKER_MODEL_INDEXER_H
#define TERCET_PROC_WORKER_MODEL_INDEXER_H

#include "proc_worker/model/decoder.h"

enum { INDEXER_QUERIES = 64 /* that choose of which attention is computed at once, each a row of its own */ };

/* Places d->indexer for a step of so many tokens: what outlives a layer at `*kept`, the rest at `*offset`; both move on. `base` NULL: counts alone. */
void indexer_lay_out_kept(struct decoder *d, char *base, size_t *kept, size_t tokens);
void indexer_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens);

/* From decoder.input, which must be normed, and decoder.low behind latent_project: writes the keys of the step's tokens of a layer that chooses, and
 * makes the queries of those that choose. `kv`: of the layer, among those of decoder_forward. The errors of the ops. */
MUST_CHECK enum err indexer_project(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em);
/* Attention as `a` says, with the step's queries where they are in decoder.qkv, of all of them to what they attend to. The errors of the ops. */
MUST_CHECK enum err indexer_attend(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, const struct kern_attention_args *a,
				   struct err_msg *em);

#endif
