/* Owns the step from a network that a front end wrote to the constant grammar: it can end, it does not call itself before it
 * has read anything, and how many calls inside calls each place needs. Runs wherever a grammar is compiled. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_priv.h"

enum { NO_HEIGHT = 255 };

/* Edges sorted by one of their ends: those of node v are order[first[v]] .. order[first[v + 1]] - 1. */
struct sorted_edges {
	u32 *first;
	u32 *order;
};

static bool sort_edges(const struct gb *b, struct sorted_edges *s, bool by_target)
{
	s->first = calloc((size_t)b->node_count + 2, sizeof(*s->first));
	s->order = malloc(((size_t)b->edge_count + 1) * sizeof(*s->order));
	if (s->first == NULL || s->order == NULL)
		return false;
	for (u32 i = 0; i < b->edge_count; i++)
		s->first[(by_target ? b->edges[i].to : b->edges[i].from) + 2]++;
	for (u32 v = 2; v <= b->node_count + 1; v++)
		s->first[v] += s->first[v - 1];
	for (u32 i = 0; i < b->edge_count; i++)
		s->order[s->first[(by_target ? b->edges[i].to : b->edges[i].from) + 1]++] = i;
	return true;
}

static void sorted_edges_fini(struct sorted_edges *s)
{
	free(s->first);
	free(s->order);
}

/* ---- heights ---- */

struct heights {
	const struct gb *b;
	struct sorted_edges back;
	u8 *height;
	u32 *queue;
	u32 queued;
};

static void reach(struct heights *h, u32 node, u8 level)
{
	if (h->height[node] == NO_HEIGHT) {
		h->height[node] = level;
		h->queue[h->queued++] = node;
	}
}

static bool call_fits(const struct heights *h, const struct gb_edge *e, u32 level)
{
	return h->height[h->b->rules[e->rule].start] < level;
}

static void spread(struct heights *h, u32 from, u8 level)
{
	for (u32 at = from; at < h->queued; at++) {
		u32 v = h->queue[at];
		for (u32 i = h->back.first[v]; i < h->back.first[v + 1]; i++) {
			const struct gb_edge *e = &h->b->edges[h->back.order[i]];
			if (e->kind != GEDGE_CALL || call_fits(h, e, level))
				reach(h, e->from, level);
		}
	}
}

/* height of a node: 0 where the rule ends; over an empty step or a byte that of the next node; over a call the larger of the
 * next node's and one more than that of the called rule's start; of several ways the least. */
static void find_heights(struct heights *h)
{
	const struct gb *b = h->b;
	memset(h->height, NO_HEIGHT, b->node_count);
	for (u32 r = 0; r < b->rule_count; r++)
		reach(h, b->rules[r].accept, 0);
	spread(h, 0, 0);
	for (u32 level = 1; level <= b->depth_max; level++) {
		u32 from = h->queued;
		for (u32 i = 0; i < b->edge_count; i++) {
			const struct gb_edge *e = &b->edges[i];
			if (e->kind == GEDGE_CALL && h->height[e->to] <= level && call_fits(h, e, level))
				reach(h, e->from, (u8)level);
		}
		if (from == h->queued)
			return;
		spread(h, from, (u8)level);
	}
}

/* ---- calls before any byte ---- */

/* A list of rules that wait for another one. */
struct waiting {
	u32 rule;
	u32 next;
};
struct starts {
	const struct gb *b;
	const struct sorted_edges *out;
	bool *nullable; /* [rule] */
	u32 *stamp;     /* [node] */
	u32 round;
	struct u32_vec stack;
	struct u32_vec calls; /* of the rule that was walked last */
	u32 *first;           /* [rule]: index into `waiting` of those that wait for it, or GRAMMAR_NONE */
	struct waiting *waiting;
	u32 waiting_count, waiting_capacity;
	u32 *left; /* [rule]: calls that are not settled yet */
	bool failed;
};

/* Walks what rule `r` reaches without a byte; its calls go to s->calls. True: its end is reached. */
static bool walk_start(struct starts *s, u32 r)
{
	const struct gb *b = s->b;
	s->round++;
	u32_vec_clear(&s->calls);
	u32_vec_push(&s->stack, b->rules[r].start);
	bool ends = false;
	while (s->stack.count > 0) {
		u32 v = s->stack.data[--s->stack.count];
		if (s->stamp[v] == s->round)
			continue;
		s->stamp[v] = s->round;
		ends = ends || v == b->rules[r].accept;
		for (u32 i = s->out->first[v]; i < s->out->first[v + 1]; i++) {
			const struct gb_edge *e = &b->edges[s->out->order[i]];
			if (e->kind == GEDGE_CALL)
				u32_vec_push(&s->calls, e->rule);
			if (e->kind == GEDGE_EMPTY || (e->kind == GEDGE_CALL && s->nullable[e->rule]))
				u32_vec_push(&s->stack, e->to);
		}
	}
	return ends;
}

static void wait_for(struct starts *s, u32 rule, u32 other)
{
	if (s->waiting_count == s->waiting_capacity) {
		u32 capacity = s->waiting_capacity > 0 ? 2 * s->waiting_capacity : 256;
		struct waiting *grown = realloc(s->waiting, capacity * sizeof(*grown));
		if (grown == NULL) {
			s->failed = true;
			return;
		}
		s->waiting = grown;
		s->waiting_capacity = capacity;
	}
	s->waiting[s->waiting_count] = (struct waiting){rule, s->first[other]};
	s->first[other] = s->waiting_count++;
}

static void forget_waiting(struct starts *s)
{
	memset(s->first, 0xff, s->b->rule_count * sizeof(*s->first));
	s->waiting_count = 0;
}

/* Rules are walked again when one that they call at their start turns out to be nullable. */
static void find_nullable(struct starts *s)
{
	struct u32_vec pending = {0};
	forget_waiting(s);
	for (u32 r = 0; r < s->b->rule_count; r++)
		u32_vec_push(&pending, r);
	while (pending.count > 0 && !s->failed) {
		u32 r = pending.data[--pending.count];
		if (s->nullable[r])
			continue;
		s->nullable[r] = walk_start(s, r);
		for (size_t i = 0; !s->nullable[r] && i < s->calls.count; i++) {
			if (!s->nullable[s->calls.data[i]])
				wait_for(s, r, s->calls.data[i]);
		}
		for (u32 w = s->nullable[r] ? s->first[r] : GRAMMAR_NONE; w != GRAMMAR_NONE; w = s->waiting[w].next)
			u32_vec_push(&pending, s->waiting[w].rule);
	}
	s->failed = s->failed || pending.failed;
	u32_vec_fini(&pending);
}

/* Settles rules all of whose first calls are settled; what is left over calls itself first. Returns one of these, or
 * GRAMMAR_NONE. */
static u32 find_left_recursion(struct starts *s)
{
	struct u32_vec pending = {0};
	forget_waiting(s);
	for (u32 r = 0; r < s->b->rule_count && !s->failed; r++) {
		walk_start(s, r);
		s->left[r] = (u32)s->calls.count;
		for (size_t i = 0; i < s->calls.count; i++)
			wait_for(s, r, s->calls.data[i]);
		if (s->calls.count == 0)
			u32_vec_push(&pending, r);
	}
	while (pending.count > 0 && !s->failed) {
		u32 r = pending.data[--pending.count];
		for (u32 w = s->first[r]; w != GRAMMAR_NONE; w = s->waiting[w].next) {
			if (--s->left[s->waiting[w].rule] == 0)
				u32_vec_push(&pending, s->waiting[w].rule);
		}
	}
	s->failed = s->failed || pending.failed;
	u32_vec_fini(&pending);
	for (u32 r = 0; r < s->b->rule_count; r++) {
		if (s->left[r] > 0)
			return r;
	}
	return GRAMMAR_NONE;
}

static void check_starts(struct gb *b, const struct sorted_edges *out)
{
	struct starts s = {.b = b, .out = out};
	s.nullable = calloc(b->rule_count, sizeof(*s.nullable));
	s.stamp = calloc(b->node_count, sizeof(*s.stamp));
	s.first = calloc(b->rule_count, sizeof(*s.first));
	s.left = calloc(b->rule_count, sizeof(*s.left));
	s.failed = s.nullable == NULL || s.stamp == NULL || s.first == NULL || s.left == NULL;
	if (!s.failed) {
		find_nullable(&s);
		u32 r = s.failed ? GRAMMAR_NONE : find_left_recursion(&s);
		const char *name = r != GRAMMAR_NONE && b->rules[r].name != NULL ? b->rules[r].name : "a rule";
		if (r != GRAMMAR_NONE && name[0] == '#') /* the place of a schema */
			gb_fail(b, ERR_INVALID, "%s refers to itself before it says anything", name);
		else if (r != GRAMMAR_NONE)
			gb_fail(b, ERR_UNSUPPORTED,
				"%s calls itself before it has read anything (left recursion); write a repetition, as in: list ::= item (\",\" item)*",
				name);
	}
	if (s.failed || s.stack.failed || s.calls.failed)
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
	free(s.nullable);
	free(s.stamp);
	free(s.first);
	free(s.left);
	free(s.waiting);
	u32_vec_fini(&s.stack);
	u32_vec_fini(&s.calls);
}

/* ---- the constant form ---- */

static void find_classes(const struct gb *b, struct grammar *g)
{
	bool begins[257] = {true};
	for (u32 i = 0; i < b->edge_count; i++) {
		if (b->edges[i].kind == GEDGE_BYTES)
			begins[b->edges[i].lo] = begins[b->edges[i].hi + 1] = true;
	}
	for (u32 byte = 0; byte < 256; byte++) {
		if (begins[byte])
			g->class_byte[g->class_count++] = (u8)byte;
		g->class_of[byte] = (u8)(g->class_count - 1);
	}
}

static int compare_repeats(const void *a, const void *b)
{
	const struct grammar_repeat *x = a, *y = b;
	return x->base < y->base ? -1 : x->base > y->base;
}

static enum err fill(struct gb *b, struct grammar *g, struct sorted_edges *out)
{
	g->edges = malloc(((size_t)b->edge_count + 1) * sizeof(*g->edges));
	g->accepts = calloc((size_t)b->node_count + 1, sizeof(*g->accepts));
	struct heights h = {.b = b};
	h.height = g->height = malloc((size_t)b->node_count + 1);
	h.queue = malloc(((size_t)b->node_count + 1) * sizeof(*h.queue));
	bool ok = g->edges != NULL && g->accepts != NULL && h.height != NULL && h.queue != NULL && sort_edges(b, &h.back, true);
	if (ok) {
		for (u32 i = 0; i < b->edge_count; i++) {
			const struct gb_edge *e = &b->edges[out->order[i]];
			g->edges[i] = (struct grammar_edge){.to = e->to, .rule = e->rule, .kind = e->kind, .lo = e->lo, .hi = e->hi};
		}
		find_heights(&h);
		if (h.height[b->rules[0].start] == NO_HEIGHT)
			gb_fail(b, ERR_INVALID, "no text matches: a part that is always needed matches nothing, never ends, or takes rules inside rules of more than %u levels", b->depth_max);
	}
	free(h.queue);
	sorted_edges_fini(&h.back);
	if (!ok)
		return ERR_NO_MEMORY;
	find_classes(b, g);
	g->first_edge = out->first;
	out->first = NULL;
	g->rules = b->rules;
	g->repeats = b->repeats;
	b->rules = NULL;
	b->repeats = NULL;
	for (u32 r = 0; r < b->rule_count; r++) {
		g->rules[r].name = NULL;
		g->accepts[g->rules[r].accept] = true;
	}
	if (b->repeat_count > 0)
		qsort(g->repeats, b->repeat_count, sizeof(*g->repeats), compare_repeats);
	return ERR_OK;
}

enum err gb_finish(struct gb *b, struct grammar **out, struct err_msg *em)
{
	struct sorted_edges forward = {0};
	struct grammar *g = NULL;
	if (b->err == ERR_OK && !sort_edges(b, &forward, false))
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
	if (b->err == ERR_OK)
		check_starts(b, &forward);
	if (b->err == ERR_OK) {
		g = calloc(1, sizeof(*g));
		if (g != NULL) {
			*g = (struct grammar){.references = 1,
					      .node_count = b->node_count,
					      .rule_count = b->rule_count,
					      .repeat_count = b->repeat_count,
					      .depth_max = b->depth_max};
			memcpy(g->common, b->common, sizeof(g->common));
		}
		if (g == NULL || fill(b, g, &forward) != ERR_OK)
			gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
	}
	sorted_edges_fini(&forward);
	enum err e = b->err == ERR_OK ? cache_check(g) : ERR_OK;
	if (e != ERR_OK)
		gb_fail(b, e, "the grammar is too ambiguous: a text can begin in too many ways at once; use fewer optional parts inside repetitions");
	if (b->err != ERR_OK) {
		grammar_unref(&g);
		return err_set(em, b->err, "%s", b->em.text);
	}
	*out = g;
	return ERR_OK;
}
