/* What readers of other formats need of the reader of safetensors: one table of types for all. */
#ifndef TERCET_PROC_WORKER_MODEL_SAFETENSORS_PRIV_H
#define TERCET_PROC_WORKER_MODEL_SAFETENSORS_PRIV_H

#include "proc_worker/model/safetensors.h"

/* Gives `t` the type of that name ("BF16"), whose elements have `*bits`. False: there is none of that name. */
bool safetensors_set_type(struct st_tensor *t, const char *name, u32 *bits);

#endif
