/* Encoded chunks of one client that may have to be sent (again): a queue of frames in one block of memory.
 * Pure. */
#ifndef TERCET_PROC_DETOK_FRAME_RING_H
#define TERCET_PROC_DETOK_FRAME_RING_H

#include "common/types.h"

struct frame_place {
	u64 made_ns;
	u32 offset;
	u32 bytes;
};

/* Zero-initialised is empty and valid. Chunk numbers are consecutive. */
struct frame_ring {
	char *data; /* owned; whole frames lie between head and tail, with a gap before a wrap */
	u32 capacity;
	u32 head;		    /* offset of the oldest frame */
	u32 tail;		    /* behind the newest */
	u64 bytes;		    /* of all frames */
	struct frame_place *places; /* owned ring of place_capacity, a power of two */
	u32 place_capacity;
	u64 first; /* number of the oldest frame; == next: empty */
	u64 next;  /* number that the next frame gets */
};

/* Empty; the next frame gets number `next`. */
void frame_ring_init(struct frame_ring *r, u64 next);
void frame_ring_fini(struct frame_ring *r);
/* Copies a frame behind the newest. False: out of memory. */
bool frame_ring_push(struct frame_ring *r, const char *frame, u32 bytes, u64 now_ns);
/* The frame numbered `number`, which must be in the ring; may be written to (sequence numbers are). */
char *frame_ring_get(struct frame_ring *r, u64 number, u32 *bytes, u64 *made_ns);
/* Forgets the frames numbered below `number`. */
void frame_ring_release(struct frame_ring *r, u64 number);

#endif
