/* Attention whose heads share one latent (DeepSeek-AI 2024, "Multi-head Latent Attention"), in the form that never expands it: the
 * cache holds a token's latent and, in front of it, the part of its key that rotates, as one KV head. A head's query goes through
 * its part of kv_b_proj for keys and is held against latents; what attention makes of these goes through its part for values. */
#ifndef TERCET_PROC_WORKER_MODEL_LATENT_H
#define TERCET_PROC_WORKER_MODEL_LATENT_H

#include "proc_worker/model/decoder.h"
#include "proc_worker/model/qk_norm.h"

/* Values of a head's query before its own product: what does not rotate, and what does. */
u32 latent_query_width(const struct model_config *m);
/* Values of a row of decoder.low. */
/* Gates of this rank's heads, which are in front of what the first product makes; 0: there are none. */
u32 latent_gate_width(const struct model_config *m, const struct model_shard *s);
u32 latent_low_width(const struct model_config *m, const struct model_shard *s);
/* What a head has in decoder.q and decoder.attended at most: they hold other things in between. */
u32 latent_head_width(const struct model_config *m);

/* Inputs of a rank's last product of a layer's attention, or of what layers have instead, if that has more. */
u32 latent_attended_width(const struct model_config *m, const struct model_shard *s);

/* What the ops of norms are told of the queries' low rank, if they have one, and of the latent behind it, in `low` [tokens][w->qkv.n], in place; every
 * rank has all of both. `squares` [tokens][2]. All pointers are borrowed, and all of memory that the ops compute in. */
void latent_norm_args_init(struct qk_norm_args *a, const struct model_config *m, const struct layer_weights *w, u32 tokens, float *low,
			   float *squares);
/* From decoder.low, the product of SLOT_QKV, to decoder.qkv as kern_rope_kv_args reads it; overwrites decoder.attended. The errors of
 * the ops. */
MUST_CHECK enum err latent_project(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em);
/* From decoder.attended to decoder.q, [tokens][heads][value]. The errors of the ops. */
MUST_CHECK enum err latent_values(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em);

#endif
