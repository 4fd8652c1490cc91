/* Owns sets of texts that are held against each other: several expressions become one deterministic network, which knows at
 * each place which of them match. So a pattern may be wanted beside another one, or not wanted. Runs wherever a grammar is
 * compiled. Only for what calls no rules. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/grammar_priv.h"

enum {
	STATES_MAX = 10 * 1000,
	POOL_MAX = 600 * 1000,
	LOOKS_MAX = 60 * 1000 * 1000, /* at edges, in a whole grammar: a tenth of a second */
};

/* A state is a set of nodes of the scratch network; states[i] is pool[at .. at + count). */
struct state {
	u32 at, count;
	u32 node; /* in the target */
};
struct subsets {
	struct product *p;
	struct state *states;
	u32 count, capacity;
	u32 *slots; /* state + 1 by hash */
	u32 slot_mask;
	u32 *seen; /* [node]: stamp */
	u32 stamp;
	struct u32_vec pool, work, nodes;
	bool bounds[257]; /* bytes at which edges begin or end */
};

void product_init(struct product *p, struct gb *b)
{
	*p = (struct product){.b = b};
	gb_init(&p->scratch);
	p->scratch.flat = true;
	p->scratch.json = b->json;
	p->scratch.look_level = b->look_level + 1;
	b->products++;
}

void product_fini(struct product *p)
{
	p->b->looks += p->scratch.looks;
	free(p->first_edge);
	free(p->order);
	gb_fini(&p->scratch);
}

u32 product_begin(struct product *p)
{
	if (p->count >= PRODUCT_PARTS_MAX) {
		gb_fail(&p->scratch, ERR_TOO_LONG, "more than %d patterns apply to one text", PRODUCT_PARTS_MAX);
		return 0;
	}
	p->parts[p->count].start = gb_node(&p->scratch);
	return p->parts[p->count].start;
}

u32 product_end(struct product *p, u32 end)
{
	if (p->count >= PRODUCT_PARTS_MAX)
		return 0;
	p->parts[p->count].end = end;
	return p->count++;
}

u32 product_regex(struct product *p, const char *pattern, size_t bytes, bool search)
{
	u32 start = product_begin(p);
	return product_end(p, gb_regex(&p->scratch, start, pattern, bytes, search));
}

/* ---- subsets ---- */

static int compare_u32(const void *a, const void *b)
{
	u32 x = *(const u32 *)a, y = *(const u32 *)b;
	return x < y ? -1 : x > y;
}

static bool sort_edges(struct product *p)
{
	const struct gb *g = &p->scratch;
	p->first_edge = calloc((size_t)g->node_count + 2, sizeof(*p->first_edge));
	p->order = malloc(((size_t)g->edge_count + 1) * sizeof(*p->order));
	if (p->first_edge == NULL || p->order == NULL)
		return false;
	p->b->looks += g->node_count + 4ull * g->edge_count;
	for (u32 i = 0; i < g->edge_count; i++)
		p->first_edge[g->edges[i].from + 2]++;
	for (u32 v = 2; v <= g->node_count + 1; v++)
		p->first_edge[v] += p->first_edge[v - 1];
	for (u32 i = 0; i < g->edge_count; i++)
		p->order[p->first_edge[g->edges[i].from + 1]++] = i;
	return true;
}

/* Where all parts begin, in s->nodes. False: p->b->err is set. */
static bool subsets_init(struct subsets *s, struct product *p)
{
	const struct gb *g = &p->scratch;
	*s = (struct subsets){.p = p};
	if (g->err != ERR_OK)
		gb_fail(p->b, g->err, "%s", g->em.text);
	if (p->b->err != ERR_OK)
		return false;
	s->seen = calloc((size_t)g->node_count + 1, sizeof(*s->seen));
	if (s->seen == NULL || (p->first_edge == NULL && !sort_edges(p))) {
		gb_fail(p->b, ERR_NO_MEMORY, "no memory for a grammar");
		return false;
	}
	p->b->looks += g->node_count / 8;
	for (u32 i = 0; i < p->count; i++)
		u32_vec_push(&s->nodes, p->parts[i].start);
	return true;
}

static void subsets_fini(struct subsets *s)
{
	free(s->seen);
	free(s->slots);
	free(s->states);
	u32_vec_fini(&s->pool);
	u32_vec_fini(&s->work);
	u32_vec_fini(&s->nodes);
}

/* s->nodes and all that they reach without a byte, sorted. */
static void close_nodes(struct subsets *s)
{
	const struct gb *g = &s->p->scratch;
	s->stamp++;
	s->p->b->looks += s->nodes.count;
	u32_vec_clear(&s->work);
	u32_vec_append(&s->work, s->nodes.data, s->nodes.count);
	u32_vec_clear(&s->nodes);
	while (s->work.count > 0) {
		u32 v = s->work.data[--s->work.count];
		if (s->seen[v] == s->stamp)
			continue;
		s->seen[v] = s->stamp;
		u32_vec_push(&s->nodes, v);
		s->p->b->looks += s->p->first_edge[v + 1] - s->p->first_edge[v] + 1;
		for (u32 i = s->p->first_edge[v]; i < s->p->first_edge[v + 1]; i++) {
			const struct gb_edge *e = &g->edges[s->p->order[i]];
			if (e->kind == GEDGE_EMPTY)
				u32_vec_push(&s->work, e->to);
		}
	}
	if (s->nodes.count > 1)
		qsort(s->nodes.data, s->nodes.count, sizeof(u32), compare_u32);
	if (s->nodes.failed || s->work.failed)
		gb_fail(s->p->b, ERR_NO_MEMORY, "no memory for a grammar");
	if (s->p->b->looks > LOOKS_MAX)
		gb_fail(s->p->b, ERR_TOO_LONG, "the patterns that apply to one text are too large together: they take too long to compile");
}

/* The parts that have any of the nodes, which are sorted; `ended`: those that match what came. */
static u64 parts_with(const struct product *p, const u32 *nodes, size_t count, bool ended)
{
	u64 bits = 0;
	u32 i = 0;
	for (size_t k = 0; k < count; k++) { /* parts are in the order of their nodes */
		u32 v = nodes[k];
		while (i + 1 < p->count && v >= p->parts[i + 1].start)
			i++;
		if (!ended || v == p->parts[i].end)
			bits |= 1ull << i;
	}
	return bits;
}

static u64 parts_of(const struct subsets *s, u32 state, bool ended)
{
	return parts_with(s->p, s->pool.data + s->states[state].at, s->states[state].count, ended);
}

/* The state of s->nodes, made where it is new; GRAMMAR_NONE: there is none, or no room. */
static u32 intern(struct subsets *s)
{
	struct gb *b = s->p->b;
	close_nodes(s);
	if (s->nodes.count == 0 || b->err != ERR_OK)
		return GRAMMAR_NONE;
	u32 slot = (u32)XXH3_64bits(s->nodes.data, s->nodes.count * sizeof(u32)) & s->slot_mask;
	for (; s->slots[slot] != 0; slot = (slot + 1) & s->slot_mask) {
		const struct state *known = &s->states[s->slots[slot] - 1];
		if (known->count == s->nodes.count && memcmp(s->pool.data + known->at, s->nodes.data, known->count * sizeof(u32)) == 0)
			return s->slots[slot] - 1;
	}
	if (s->count >= STATES_MAX || s->pool.count + s->nodes.count > POOL_MAX) {
		gb_fail(b, ERR_TOO_LONG, "the patterns that apply to one text are too large together: more than %d places", STATES_MAX);
		return GRAMMAR_NONE;
	}
	if (!cache_grow(&s->states, s->count, &s->capacity, sizeof(*s->states))) {
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
		return GRAMMAR_NONE;
	}
	s->states[s->count] = (struct state){.at = (u32)s->pool.count, .count = (u32)s->nodes.count};
	u32_vec_append(&s->pool, s->nodes.data, s->nodes.count);
	if (s->pool.failed)
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
	if (b->err != ERR_OK)
		return GRAMMAR_NONE;
	bool wanted = (parts_of(s, s->count, false) & s->p->needed) == s->p->needed;
	s->states[s->count].node = wanted ? gb_node(b) : GRAMMAR_NONE; /* else a text that is known to fail */
	s->slots[slot] = ++s->count;
	return s->count - 1;
}

/* The state behind `byte`. */
static void list_targets(struct subsets *s, const u32 *nodes, size_t count, u8 byte)
{
	const struct product *p = s->p;
	u32_vec_clear(&s->nodes);
	for (size_t k = 0; k < count; k++) {
		u32 v = nodes[k];
		p->b->looks += p->first_edge[v + 1] - p->first_edge[v] + 1;
		for (u32 i = p->first_edge[v]; i < p->first_edge[v + 1]; i++) {
			const struct gb_edge *e = &p->scratch.edges[p->order[i]];
			if (e->kind == GEDGE_BYTES && byte >= e->lo && byte <= e->hi)
				u32_vec_push(&s->nodes, e->to);
		}
	}
}

static u32 step(struct subsets *s, u32 state, u8 byte)
{
	list_targets(s, s->pool.data + s->states[state].at, s->states[state].count, byte);
	return intern(s);
}

static void put_steps(struct subsets *s, u32 state)
{
	struct gb *b = s->p->b;
	u32 begin = 0, before = GRAMMAR_NONE;
	for (u32 byte = 0; byte <= 256 && b->err == ERR_OK; byte++) {
		if (byte > 0 && byte < 256 && !s->bounds[byte])
			continue;
		u32 next = byte < 256 ? step(s, state, (u8)byte) : GRAMMAR_NONE;
		if (next != GRAMMAR_NONE && s->states[next].node == GRAMMAR_NONE)
			next = GRAMMAR_NONE;
		if (next == before && byte < 256)
			continue;
		if (before != GRAMMAR_NONE)
			gb_bytes(b, s->states[state].node, s->states[before].node, (u8)begin, (u8)(byte - 1));
		begin = byte;
		before = next;
	}
}

static bool prepare_states(struct subsets *s)
{
	const struct gb *g = &s->p->scratch;
	for (u32 i = 0; i < g->edge_count; i++) {
		if (g->edges[i].kind == GEDGE_BYTES)
			s->bounds[g->edges[i].lo] = s->bounds[g->edges[i].hi + 1] = true;
	}
	s->slot_mask = 4 * STATES_MAX / 3; /* a power of two less one, above it */
	while (s->slot_mask & (s->slot_mask + 1))
		s->slot_mask |= s->slot_mask >> 1;
	s->slots = calloc((size_t)s->slot_mask + 1, sizeof(*s->slots));
	s->p->b->looks += s->slot_mask + g->edge_count;
	if (s->slots == NULL)
		gb_fail(s->p->b, ERR_NO_MEMORY, "no memory for a grammar");
	return s->slots != NULL;
}

void product_put(struct product *p, u32 from, product_exit_fn exit, void *ctx)
{
	struct gb *b = p->b;
	struct subsets s;
	u32 first = subsets_init(&s, p) && prepare_states(&s) ? intern(&s) : GRAMMAR_NONE;
	if (first != GRAMMAR_NONE && s.states[first].node != GRAMMAR_NONE)
		gb_empty(b, from, s.states[first].node);
	for (u32 i = 0; i < s.count && b->err == ERR_OK; i++) {
		if (s.states[i].node == GRAMMAR_NONE)
			continue;
		u64 matching = parts_of(&s, i, true);
		if (!(matching & p->final))
			put_steps(&s, i);
		u32 to = b->err == ERR_OK ? exit(ctx, matching) : GRAMMAR_NONE;
		if (to != GRAMMAR_NONE)
			gb_empty(b, s.states[i].node, to);
	}
	subsets_fini(&s);
}

u64 product_match(struct product *p, const char *text, size_t bytes)
{
	struct subsets s;
	struct u32_vec at = {0};
	bool ok = subsets_init(&s, p);
	if (ok)
		close_nodes(&s);
	for (size_t i = 0; ok && i < bytes && s.nodes.count > 0 && p->b->err == ERR_OK; i++) {
		u32_vec_clear(&at);
		u32_vec_append(&at, s.nodes.data, s.nodes.count);
		list_targets(&s, at.data, at.count, (u8)text[i]);
		close_nodes(&s);
	}
	if (at.failed)
		gb_fail(p->b, ERR_NO_MEMORY, "no memory for a grammar");
	u64 bits = ok && p->b->err == ERR_OK ? parts_with(p, s.nodes.data, s.nodes.count, true) : 0;
	u32_vec_fini(&at);
	subsets_fini(&s);
	return bits;
}
