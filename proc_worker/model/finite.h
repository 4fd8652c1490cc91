/* Refusing checkpoints whose values are no finite numbers: one of them is enough for a model to answer nonsense. */
#ifndef TERCET_PROC_WORKER_MODEL_FINITE_H
#define TERCET_PROC_WORKER_MODEL_FINITE_H

#include "proc_worker/model/quant_tensor.h"
#include "proc_worker/model/safetensors.h"

/* Looks at all values of a tensor, which must be `usable`, in all threads (NULL: in the caller). ERR_FORMAT: one is infinite, no
 * number, or (kern_all_finite) would be in `as`; `em` names file, tensor, the first such value and where it is. */
MUST_CHECK enum err finite_check(const struct st_tensor *t, enum kern_dtype as, struct kern_threads *threads, struct err_msg *em);

/* Of rows [first, first + rows) alone. */
MUST_CHECK enum err finite_check_rows(const struct st_tensor *t, u64 first, u64 rows, enum kern_dtype as,
				      struct kern_threads *threads, struct err_msg *em);

/* For a value of a quantized tensor that was found not to be finite in `as`: ERR_FORMAT, with `em` naming the scale, where that is
 * to blame, or the value. */
MUST_CHECK enum err finite_refuse_quantized(const struct quant_tensor *t, u32 row, u32 column, float value, enum kern_dtype as,
					    struct err_msg *em);

#endif
