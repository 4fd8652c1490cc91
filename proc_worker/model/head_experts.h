/* Mixtures of attention heads (arch.head_experts; Shen et al. 2024): experts make a token's queries, and turn what these attend to into what is added to the
 * stream; keys and values are those of all tokens. A query head of each expert of a token reads one KV head. */
#ifndef TERCET_PROC_WORKER_MODEL_HEAD_EXPERTS_H
#define TERCET_PROC_WORKER_MODEL_HEAD_EXPERTS_H

#include "proc_worker/model/decoder.h"

/* Places d->heads for steps of `tokens`; nothing of another family. */
void head_experts_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens);
/* From decoder.normed to decoder.qkv, as kern_rope_kv_args reads it; the experts chosen are kept for head_experts_sum. The errors of the ops. */
MUST_CHECK enum err head_experts_project(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* From what attention has left in decoder.qkv to `out` [tokens][hidden], the sum of all ranks. Errors of the ops and of the collectives. */
MUST_CHECK enum err head_experts_sum(struct decoder *d, u32 index, float *out, u32 tokens, struct err_msg *em);

#endif
