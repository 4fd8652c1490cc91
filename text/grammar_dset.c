/* Owns the deterministic form of single rules, made as texts need it: sets of nodes, their steps over bytes, their calls.
 * Runs in workers. Never knows what called the rule. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/assert.h"
#include "text/grammar_priv.h"

enum { DSET_NONE = 1, POOL_MAX = 4 * 1000 * 1000 };

/* ---- interning ---- */

void intern_fini(struct intern *t)
{
	free(t->slots);
	*t = (struct intern){0};
}

u32 intern_find(const struct intern *t, const struct grammar_cache *c, u32 hash, intern_equal_fn equal, const void *key)
{
	if (t->slots == NULL)
		return GRAMMAR_NONE;
	for (u32 i = hash & t->mask; t->slots[i] != 0; i = (i + 1) & t->mask) {
		if (equal(c, t->slots[i] - 1, key))
			return t->slots[i] - 1;
	}
	return GRAMMAR_NONE;
}

bool intern_reserve(struct intern *t, const struct grammar_cache *c, u32 (*hash_of)(const struct grammar_cache *c, u32 index))
{
	if (t->slots != NULL && t->count < t->mask / 2)
		return true;
	struct intern larger = {.mask = t->slots != NULL ? 2 * t->mask + 1 : 63};
	larger.slots = calloc((size_t)larger.mask + 1, sizeof(*larger.slots));
	if (larger.slots == NULL)
		return false;
	for (u32 i = 0; t->slots != NULL && i <= t->mask; i++) {
		if (t->slots[i] != 0)
			intern_put(&larger, hash_of(c, t->slots[i] - 1), t->slots[i] - 1);
	}
	free(t->slots);
	*t = larger;
	return true;
}

void intern_put(struct intern *t, u32 hash, u32 index)
{
	u32 i = hash & t->mask;
	while (t->slots[i] != 0)
		i = (i + 1) & t->mask;
	t->slots[i] = index + 1;
	t->count++;
}

bool cache_grow(void *array, u32 count, u32 *capacity, size_t size)
{
	if (count < *capacity)
		return true;
	u32 wanted = *capacity > 0 ? 2 * *capacity : 32;
	void **at = array;
	void *grown = realloc(*at, wanted * size);
	if (grown == NULL)
		return false;
	*at = grown;
	*capacity = wanted;
	return true;
}

/* ---- sets of nodes ---- */

struct node_list {
	const u32 *nodes;
	u32 count;
};

static u32 hash_nodes(const u32 *nodes, u32 count)
{
	return (u32)XXH3_64bits(nodes, count * sizeof(*nodes));
}

static u32 hash_of_dset(const struct grammar_cache *c, u32 index)
{
	return hash_nodes(c->pool.data + c->dsets[index].nodes_at, c->dsets[index].node_count);
}

static bool dset_equals(const struct grammar_cache *c, u32 index, const void *key)
{
	const struct node_list *list = key;
	const struct dset *d = &c->dsets[index];
	return d->node_count == list->count &&
	       memcmp(c->pool.data + d->nodes_at, list->nodes, list->count * sizeof(u32)) == 0;
}

static int compare_u32(const void *a, const void *b)
{
	u32 x = *(const u32 *)a, y = *(const u32 *)b;
	return x < y ? -1 : x > y;
}

/* Replaces c->nodes by what they reach without a byte or a call, as far as it does something and can end. Sorted. */
static bool close_nodes(struct grammar_cache *c)
{
	const struct grammar *g = c->grammar;
	c->stamp++;
	u32_vec_clear(&c->pending);
	u32_vec_append(&c->pending, c->nodes.data, c->nodes.count);
	u32_vec_clear(&c->nodes);
	u64 looked_at = 0;
	for (; c->pending.count > 0 && !c->nodes.failed; looked_at++) {
		u32 v = c->pending.data[--c->pending.count];
		if (c->seen[v] == c->stamp || g->height[v] > g->depth_max)
			continue;
		c->seen[v] = c->stamp;
		bool works = g->accepts[v];
		for (u32 i = g->first_edge[v]; i < g->first_edge[v + 1]; i++) {
			if (g->edges[i].kind == GEDGE_EMPTY)
				u32_vec_push(&c->pending, g->edges[i].to);
			else
				works = true;
		}
		if (works)
			u32_vec_push(&c->nodes, v);
	}
	if (c->nodes.count > 1)
		qsort(c->nodes.data, c->nodes.count, sizeof(u32), compare_u32);
	c->effort += EFFORT_NODE * (looked_at + c->nodes.count) + EFFORT_CONFIG;
	return !c->nodes.failed && !c->pending.failed;
}

static struct dset describe(const struct grammar_cache *c)
{
	const struct grammar *g = c->grammar;
	struct dset d = {.nodes_at = (u32)c->pool.count, .node_count = (u32)c->nodes.count, .calls_at = GRAMMAR_NONE,
			 .local = GRAMMAR_NONE, .alias = {GRAMMAR_NONE, GRAMMAR_NONE}, .height = UINT8_MAX};
	for (size_t k = 0; k < c->nodes.count; k++) {
		u32 v = c->nodes.data[k];
		d.height = g->height[v] < d.height ? g->height[v] : d.height;
		d.accepts = d.accepts || g->accepts[v];
		for (u32 i = g->first_edge[v]; i < g->first_edge[v + 1]; i++) {
			d.eats = d.eats || g->edges[i].kind == GEDGE_BYTES;
			d.calls = d.calls || g->edges[i].kind == GEDGE_CALL;
		}
	}
	return d;
}

static bool grow_dsets(struct grammar_cache *c)
{
	u32 capacity = c->dset_capacity;
	if (!cache_grow(&c->dsets, c->dset_count, &c->dset_capacity, sizeof(*c->dsets)))
		return false;
	if (capacity == c->dset_capacity)
		return true;
	u32 *next = realloc(c->dset_next, (size_t)c->dset_capacity * c->grammar->class_count * sizeof(*next));
	if (next == NULL) {
		c->dset_capacity = capacity;
		return false;
	}
	c->dset_next = next;
	return true;
}

enum err dset_of_nodes(struct grammar_cache *c, u32 *dset)
{
	if (!close_nodes(c))
		return ERR_NO_MEMORY;
	if (c->nodes.count == 0) {
		*dset = DSET_NONE;
		return ERR_OK;
	}
	struct node_list list = {c->nodes.data, (u32)c->nodes.count};
	u32 hash = hash_nodes(list.nodes, list.count);
	*dset = intern_find(&c->dset_table, c, hash, dset_equals, &list);
	if (*dset != GRAMMAR_NONE)
		return ERR_OK;
	if (c->pool.count + list.count > POOL_MAX)
		return ERR_TOO_LONG;
	if (!grow_dsets(c) || !intern_reserve(&c->dset_table, c, hash_of_dset) || !u32_vec_reserve(&c->pool, list.count))
		return ERR_NO_MEMORY;
	*dset = c->dset_count++;
	c->dsets[*dset] = describe(c);
	c->dsets[*dset].key = XXH3_64bits(list.nodes, list.count * sizeof(*list.nodes));
	u32_vec_append(&c->pool, list.nodes, list.count);
	size_t classes = c->grammar->class_count;
	memset(c->dset_next + *dset * classes, 0, classes * sizeof(u32));
	intern_put(&c->dset_table, hash, *dset);
	return ERR_OK;
}

/* Puts the nodes behind `byte` into c->nodes. */
static void list_targets(struct grammar_cache *c, u32 dset, u8 byte)
{
	const struct grammar *g = c->grammar;
	const struct dset *d = &c->dsets[dset];
	u32_vec_clear(&c->nodes);
	c->effort += (u64)EFFORT_TARGET * d->node_count;
	for (u32 k = 0; k < d->node_count; k++) {
		u32 v = c->pool.data[d->nodes_at + k];
		for (u32 i = g->first_edge[v]; i < g->first_edge[v + 1]; i++) {
			const struct grammar_edge *e = &g->edges[i];
			if (e->kind == GEDGE_BYTES && byte >= e->lo && byte <= e->hi)
				u32_vec_push(&c->nodes, e->to);
		}
	}
}

/* All steps of a dset at once: most classes lead to the same nodes, and one look-up serves them all. */
static enum err fill_steps(struct grammar_cache *c, u32 dset)
{
	u32 classes = c->grammar->class_count, begins[256], results[256], kinds = 0;
	u32_vec_clear(&c->lists);
	for (u32 k = 0; k < classes; k++) {
		list_targets(c, dset, c->grammar->class_byte[k]);
		u32 kind = 0, count = (u32)c->nodes.count;
		for (; kind < kinds; kind++) {
			const u32 *list = c->lists.data + begins[kind];
			if (list[0] == count && (count == 0 || memcmp(list + 1, c->nodes.data, count * sizeof(u32)) == 0))
				break;
		}
		if (kind == kinds) {
			begins[kinds] = (u32)c->lists.count;
			u32_vec_push(&c->lists, count);
			u32_vec_append(&c->lists, c->nodes.data, count);
			enum err e = c->lists.failed || c->nodes.failed ? ERR_NO_MEMORY : dset_of_nodes(c, &results[kinds]);
			if (e != ERR_OK)
				return e;
			kinds++;
		}
		c->dset_next[(size_t)dset * classes + k] = results[kind];
	}
	return ERR_OK;
}

enum err dset_step(struct grammar_cache *c, u32 dset, u32 class_index, u32 *next)
{
	size_t at = (size_t)dset * c->grammar->class_count + class_index;
	enum err e = c->dset_next[at] != 0 ? ERR_OK : fill_steps(c, dset);
	*next = c->dset_next[at];
	return e;
}

enum err dset_of_rule(struct grammar_cache *c, u32 rule, u32 *dset)
{
	*dset = c->rule_start[rule];
	if (*dset != 0)
		return ERR_OK;
	u32_vec_clear(&c->nodes);
	u32_vec_push(&c->nodes, c->grammar->rules[rule].start);
	enum err e = dset_of_nodes(c, dset);
	if (e == ERR_OK)
		c->rule_start[rule] = *dset;
	return e;
}

/* ---- calls ---- */

static int compare_calls(const void *a, const void *b)
{
	const struct dset_call *x = a, *y = b;
	if (x->rule != y->rule)
		return x->rule < y->rule ? -1 : 1;
	return x->back < y->back ? -1 : x->back > y->back;
}

/* The edges that call, sorted by rule; `back` is the node. */
static enum err list_calls(const struct grammar_cache *c, u32 dset, struct dset_call **out, u32 *count)
{
	const struct grammar *g = c->grammar;
	const struct dset *d = &c->dsets[dset];
	u32 capacity = 0;
	*out = NULL;
	*count = 0;
	for (u32 k = 0; k < d->node_count; k++) {
		u32 v = c->pool.data[d->nodes_at + k];
		for (u32 i = g->first_edge[v]; i < g->first_edge[v + 1]; i++) {
			if (g->edges[i].kind != GEDGE_CALL)
				continue;
			if (!cache_grow(out, *count, &capacity, sizeof(**out)))
				return ERR_NO_MEMORY;
			(*out)[(*count)++] = (struct dset_call){.rule = g->edges[i].rule, .back = g->edges[i].to};
		}
	}
	if (*count > 1)
		qsort(*out, *count, sizeof(**out), compare_calls);
	return ERR_OK;
}

enum err dset_find_calls(struct grammar_cache *c, u32 dset)
{
	if (c->dsets[dset].calls_at != GRAMMAR_NONE)
		return ERR_OK;
	struct dset_call *edges;
	u32 count, from = c->call_count;
	enum err e = list_calls(c, dset, &edges, &count);
	for (u32 i = 0; e == ERR_OK && i < count;) {
		u32 rule = edges[i].rule, back;
		u32_vec_clear(&c->nodes);
		for (; i < count && edges[i].rule == rule; i++)
			u32_vec_push(&c->nodes, edges[i].back);
		e = dset_of_nodes(c, &back);
		if (e == ERR_OK && back != DSET_NONE) {
			if (cache_grow(&c->calls, c->call_count, &c->call_capacity, sizeof(*c->calls)))
				c->calls[c->call_count++] = (struct dset_call){rule, back};
			else
				e = ERR_NO_MEMORY;
		}
	}
	free(edges);
	if (e != ERR_OK) {
		c->call_count = from;
		return e;
	}
	c->dsets[dset].calls_at = from;
	c->dsets[dset].call_count = c->call_count - from;
	return ERR_OK;
}

/* ---- repetitions ---- */

/* The node that a token cannot tell from `node`: in the same copy, as near to the end of the repetition as `far` allows. */
static u32 alias_node(const struct grammar *g, u32 node, u32 far)
{
	u32 low = 0, high = g->repeat_count;
	while (low < high) { /* the first repetition behind the node */
		u32 middle = (low + high) / 2;
		if (g->repeats[middle].base <= node)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return node;
	const struct grammar_repeat *r = &g->repeats[low - 1];
	u32 copy = (node - r->base) / r->size;
	if (r->backwards) {
		u32 near = far > r->behind ? far - r->behind : 0;
		return copy < r->copies && copy > near ? node - (copy - near) * r->size : node;
	}
	if (copy >= r->copies || r->copies - 1 - copy <= far)
		return node;
	return node + (r->copies - 1 - far - copy) * r->size;
}

enum err dset_alias(struct grammar_cache *c, u32 dset, enum alias_kind kind, u32 *alias)
{
	*alias = c->dsets[dset].alias[kind];
	if (*alias != GRAMMAR_NONE)
		return ERR_OK;
	*alias = dset;
	bool differs = false;
	if (c->grammar->repeat_count > 0) {
		u32 far = (kind == ALIAS_ANY ? c->vocab->token_bytes_max : TOKEN_SHORT) + 1;
		u32_vec_clear(&c->nodes);
		for (u32 k = 0; k < c->dsets[dset].node_count; k++) {
			u32 v = c->pool.data[c->dsets[dset].nodes_at + k];
			u32 other = alias_node(c->grammar, v, far);
			differs = differs || other != v;
			u32_vec_push(&c->nodes, other);
		}
	}
	enum err e = differs ? dset_of_nodes(c, alias) : ERR_OK;
	if (e == ERR_OK)
		c->dsets[dset].alias[kind] = *alias;
	return e;
}
