/* The tree of a search's outputs; runs inside the scheduling core. Never allocates: its memory is the group's. */
#include "proc_scheduler/beam_nodes.h"

#include <string.h>

#include "common/assert.h"

size_t beam_nodes_bytes(u32 capacity)
{
	return capacity * (sizeof(struct beam_node) + LOGPROBS_MAX * (sizeof(u32) + sizeof(f32)));
}

void beam_nodes_init(struct beam_nodes *t, void *memory, u32 capacity)
{
	*t = (struct beam_nodes){.nodes = memory, .capacity = capacity};
	t->ids = (u32 *)(void *)(t->nodes + capacity);
	t->values = (f32 *)(void *)(t->ids + (size_t)capacity * LOGPROBS_MAX);
	beam_nodes_clear(t);
}

void beam_nodes_clear(struct beam_nodes *t)
{
	t->begun = 0;
	t->free = BEAM_NODE_NONE;
}

u32 beam_nodes_add(struct beam_nodes *t, struct beam_node n, const u32 *ids, const f32 *values)
{
	u32 node = t->free;

	ASSERT(n.count <= LOGPROBS_MAX);
	if (node != BEAM_NODE_NONE)
		t->free = t->nodes[node].parent;
	else
		node = t->begun++;
	ASSERT(node < t->capacity);
	n.refs = 1;
	t->nodes[node] = n;
	if (n.count) {
		memcpy(t->ids + (size_t)node * LOGPROBS_MAX, ids, n.count * sizeof(u32));
		memcpy(t->values + (size_t)node * LOGPROBS_MAX, values, n.count * sizeof(f32));
	}
	if (n.parent != BEAM_NODE_NONE)
		t->nodes[n.parent].refs++;
	return node;
}

void beam_nodes_ref(struct beam_nodes *t, u32 node)
{
	t->nodes[node].refs++;
}

void beam_nodes_unref(struct beam_nodes *t, u32 node)
{
	while (node != BEAM_NODE_NONE && --t->nodes[node].refs == 0) {
		u32 parent = t->nodes[node].parent;
		t->nodes[node].parent = t->free;
		t->free = node;
		node = parent;
	}
}
