/* What weights_device.c and weights_device_place.c share: what a device holds of each slot. */
#ifndef TERCET_PROC_WORKER_MODEL_WEIGHTS_DEVICE_PRIV_H
#define TERCET_PROC_WORKER_MODEL_WEIGHTS_DEVICE_PRIV_H

#include "proc_worker/model/weights_priv.h"

enum { WEIGHTS_DEVICE_ALIGN = 256, WEIGHTS_DEVICE_COLUMNS = 32 };

/* What a device holds of a slot. */
struct weights_placed {
	u32 rows, columns;		 /* of the checkpoint, this rank's */
	u32 device_rows, device_columns; /* with zeros behind the intermediate size */
	enum kern_dtype type;
	bool ordered;
};

/* Of a matrix or bias whose outputs are the intermediate size: gate and up, or one of them alone. */
static inline u32 weights_device_sides(const struct weights_plan *p)
{
	return p->config->arch->ungated ? 1 : 2;
}

/* How many lie one behind the other, each with its zeros: neighbours have them behind both. */
static inline u32 weights_device_parts(const struct weights_plan *p)
{
	return p->config->arch->clamped ? 1 : weights_device_sides(p);
}

static inline size_t weights_device_round_up(size_t n)
{
	return (n + WEIGHTS_DEVICE_ALIGN - 1) & ~(size_t)(WEIGHTS_DEVICE_ALIGN - 1);
}

/* In bfloat16 the embedding and a tied lm_head are the same bytes. */
static inline bool weights_device_is_shared(const struct weights_plan *p, enum weight_slot slot, const struct weights_placed *s)
{
	return slot == SLOT_LM_HEAD && p->config->tied_embeddings && s->type == KERN_BF16;
}

/* Of layer `layer`; of slots that have one for all layers it is 0. */
struct weights_placed weights_device_place(const struct weights_plan *p, enum weight_slot slot, u32 layer);

/* Of one copy; 0: this rank has nothing of it, or it is another one's bytes. */
size_t weights_device_slot_bytes(const struct weights_plan *p, enum weight_slot slot, const struct weights_placed *s);

#endif
