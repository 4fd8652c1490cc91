/* Matrices of BitNet checkpoints that are not rounded yet ("quantization_mode": "online"): as training's forward pass rounds them. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_TERNARY_H
#define TERCET_PROC_WORKER_MODEL_QUANT_TERNARY_H

#include "proc_worker/model/quant_tensor.h"

/* Sets what rounds the tensor: ternary_by = 1 / mean magnitude of the whole tensor, which is at least 1e-5, and scale_times = 1 / that, of a bfloat16 tensor
 * rounded to bfloat16 (transformers, integrations/bitnet.py, WeightQuant; Ma et al. 2024). Reads all of it, in parallel over `threads` (NULL: in the caller); the result does not
 * depend on how many there are. Only of one with `at_load`. ERR_FORMAT: a value is no finite number; names tensor and place. ERR_NO_MEMORY. */
MUST_CHECK enum err quant_ternary_begin(struct quant_tensor *t, struct kern_threads *threads, struct err_msg *em);
/* Whether such a scale may become a half, as weights in 4 bits have them: it is normal there. */
static inline bool quant_ternary_is_half(float scale)
{
	const float size = scale < 0 ? -scale : scale;
	return size >= 0x1p-14f && size < 65504;
}
/* Of a tensor that was begun: quant_tensor_values, and the same as codes [count] whose zero is 1 and whose scale is scale_times. */
void quant_ternary_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out);
void quant_ternary_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes);

#endif
