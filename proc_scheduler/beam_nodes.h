/* The outputs of all beams of one search as a tree: a node is one output with its log-probabilities, its path to the
 * root a beam. Beams that part share what they have in common, and what no beam or answer needs is free again. */
#ifndef TERCET_PROC_SCHEDULER_BEAM_NODES_H
#define TERCET_PROC_SCHEDULER_BEAM_NODES_H

#include "common/sampling_params.h"
#include "common/types.h"

#define BEAM_NODE_NONE UINT32_MAX

struct beam_node {
	u32 parent; /* BEAM_NODE_NONE: the prompt */
	u32 refs;   /* children, beams and answers */
	u32 token;
	u32 rank;  /* of the token, from 1 */
	u32 count; /* best tokens listed */
	f32 value; /* log-probability of the token */
};

struct beam_nodes {
	struct beam_node *nodes; /* [capacity]; borrowed memory, used as it is written */
	u32 *ids;		 /* [capacity][LOGPROBS_MAX] */
	f32 *values;
	u32 capacity;
	u32 begun; /* nodes that were ever used since beam_nodes_clear */
	u32 free;  /* chained by parent */
};

/* Bytes for `capacity` nodes. */
size_t beam_nodes_bytes(u32 capacity);
void beam_nodes_init(struct beam_nodes *t, void *memory, u32 capacity);
/* Forgets all. */
void beam_nodes_clear(struct beam_nodes *t);
/* A node with one reference, and one more of its parent. `ids`, `values`: the `n.count` best tokens. There is room for
 * the outputs of twice as many beams as there can be, and one more each. */
u32 beam_nodes_add(struct beam_nodes *t, struct beam_node n, const u32 *ids, const f32 *values);
void beam_nodes_ref(struct beam_nodes *t, u32 node);
/* Gives a reference back; nodes without any are free. BEAM_NODE_NONE is accepted. */
void beam_nodes_unref(struct beam_nodes *t, u32 node);

#endif
