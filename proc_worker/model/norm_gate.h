/* Gates of norms (A.X K2): what a norm makes is weighed by a sigmoid of a small MLP of itself. */
#ifndef TERCET_PROC_WORKER_MODEL_NORM_GATE_H
#define TERCET_PROC_WORKER_MODEL_NORM_GATE_H

#include "proc_worker/model/decoder.h"

/* decoder.normed [tokens][hidden], which must be normed, times sigmoid(up * silu(down * itself)), in place. Nothing where `down` has no rows. The errors
 * of the ops. */
MUST_CHECK enum err norm_gate(struct decoder *d, const struct kern_weight *down, const struct kern_weight *up, u32 tokens, struct err_msg *em);

#endif
