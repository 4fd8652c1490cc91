/* Gates of an MLP of which only the largest count: those that are more than so many standard deviations above the mean of their token's. */
#ifndef TERCET_PROC_WORKER_MODEL_SPARSE_GATE_H
#define TERCET_PROC_WORKER_MODEL_SPARSE_GATE_H

#include "proc_worker/model/decoder.h"

/* Of a layer with LAYER_SPARSE: from d->gate_up of `tokens` tokens, of which ranks have some columns each, what their gates must be above, into
 * d->altup.cutoffs. With several ranks it is one collective operation. Errors are those of ops and of collectives. */
MUST_CHECK enum err sparse_gate_cutoffs(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);

#endif
