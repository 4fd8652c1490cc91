/* The states that recurrent layers of one worker keep of sequences: a slot for each row of the batch, and behind these others for states that are
 * saved; one mapping. */
#ifndef TERCET_PROC_WORKER_STATE_MEMORY_H
#define TERCET_PROC_WORKER_STATE_MEMORY_H

#include "common/err.h"
#include "common/types.h"

struct state_memory {
	float *data;	 /* slot s begins at data + s * stride; NULL: nothing is kept, or not here */
	size_t stride;	 /* of slots, in floats: a multiple of 16 */
	size_t *offsets; /* [layers + 1], or NULL: nothing is kept; where a layer's state begins in a slot, and that before it ends, in floats: multiples of 16 */
	u32 slots;
	size_t memory_bytes;
};

/* `floats` [layers]: what each layer keeps, 0: nothing. Where everything lies, for memory that is elsewhere: of a device. All of `floats` 0: `s` is
 * zeroed. ERR_NO_MEMORY. */
MUST_CHECK enum err state_memory_lay_out(struct state_memory *s, const size_t *floats, u32 layers, u32 slots, struct err_msg *em);
/* The same, and reserves `slots` zeroed states; pages are taken as they are written, so that rows that are never used cost nothing. */
MUST_CHECK enum err state_memory_init(struct state_memory *s, const size_t *floats, u32 layers, u32 slots, struct err_msg *em);
void state_memory_fini(struct state_memory *s); /* zeroed accepted */
/* Slot `to` becomes what slot `from` is, in all layers; in one. */
void state_memory_copy(const struct state_memory *s, u32 from, u32 to);
void state_memory_copy_layer(const struct state_memory *s, u32 layer, u32 from, u32 to);

#endif
