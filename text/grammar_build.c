/* Owns networks while a front end writes them: nodes, edges, rules, repetitions. Runs wherever a grammar is compiled.
 * Nothing here fails at the call; the first failure is kept, and every limit is checked where something grows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/grammar_priv.h"

enum { REPEAT_TOLD_MIN = 16 };

void gb_init(struct gb *b)
{
	*b = (struct gb){.arena = {.limit_bytes = 64u << 20}, .depth_max = GRAMMAR_DEPTH_MAX};
}

void gb_fini(struct gb *b)
{
	arena_fini(&b->arena);
	free(b->edges);
	free(b->rules);
	free(b->repeats);
	b->edges = NULL;
	b->rules = NULL;
	b->repeats = NULL;
}

void gb_fail(struct gb *b, enum err e, const char *fmt, ...)
{
	if (b->err != ERR_OK)
		return;
	b->err = e;
	va_list args;
	va_start(args, fmt);
	vsnprintf(b->em.text, sizeof(b->em.text), fmt, args);
	va_end(args);
}

/* Room for one more element of `size` bytes; false, with the failure kept, where memory ran out. */
static bool grow(struct gb *b, void *array, u32 count, u32 *capacity, size_t size)
{
	if (count < *capacity)
		return true;
	u32 wanted = *capacity > 0 ? 2 * *capacity : 64;
	void **at = array;
	void *grown = realloc(*at, wanted * size);
	if (grown == NULL) {
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
		return false;
	}
	*at = grown;
	*capacity = wanted;
	return true;
}

u32 gb_node(struct gb *b)
{
	if (b->node_count >= GRAMMAR_NODES_MAX) {
		gb_fail(b, ERR_TOO_LONG,
			"the grammar is too large: it takes more than %d places; use smaller repetitions or fewer parts",
			GRAMMAR_NODES_MAX);
		return 0;
	}
	return b->node_count++;
}

static void add_edge(struct gb *b, struct gb_edge edge)
{
	if (b->err != ERR_OK)
		return;
	if (b->edge_count >= GRAMMAR_EDGES_MAX) {
		gb_fail(b, ERR_TOO_LONG,
			"the grammar is too large: it takes more than %d steps; use smaller repetitions or fewer parts",
			GRAMMAR_EDGES_MAX);
		return;
	}
	if (grow(b, &b->edges, b->edge_count, &b->edge_capacity, sizeof(edge)))
		b->edges[b->edge_count++] = edge;
}

void gb_empty(struct gb *b, u32 from, u32 to)
{
	if (from != to)
		add_edge(b, (struct gb_edge){.from = from, .to = to, .kind = GEDGE_EMPTY});
}

void gb_bytes(struct gb *b, u32 from, u32 to, u8 lo, u8 hi)
{
	add_edge(b, (struct gb_edge){.from = from, .to = to, .kind = GEDGE_BYTES, .lo = lo, .hi = hi});
}

void gb_call(struct gb *b, u32 from, u32 to, u32 rule)
{
	add_edge(b, (struct gb_edge){.from = from, .to = to, .kind = GEDGE_CALL, .rule = rule});
}

u32 gb_rule(struct gb *b, const char *name)
{
	return gb_rule_to(b, name, GRAMMAR_NONE);
}

u32 gb_rule_to(struct gb *b, const char *name, u32 accept)
{
	if (b->rule_count >= GRAMMAR_RULES_MAX) {
		gb_fail(b, ERR_TOO_LONG, "the grammar is too large: it has more than %d rules", GRAMMAR_RULES_MAX);
		return 0;
	}
	if (!grow(b, &b->rules, b->rule_count, &b->rule_capacity, sizeof(*b->rules)))
		return 0;
	u32 start = gb_node(b);
	b->rules[b->rule_count] =
		(struct grammar_rule){.start = start, .accept = accept != GRAMMAR_NONE ? accept : gb_node(b), .name = name};
	return b->rule_count++;
}

u32 gb_text(struct gb *b, u32 from, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes && b->err == ERR_OK; i++) {
		u32 to = gb_node(b);
		gb_bytes(b, from, to, (u8)text[i], (u8)text[i]);
		from = to;
	}
	return from;
}

/* ---- choices ---- */

static int compare_strings(const void *a, const void *b)
{
	const struct gb_string *x = a, *y = b;
	size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
	int order = n > 0 ? memcmp(x->text, y->text, n) : 0;
	return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

u32 gb_strings(struct gb *b, u32 from, struct gb_string *strings, size_t count)
{
	u32 to = gb_node(b);
	if (count == 0)
		return to;
	qsort(strings, count, sizeof(*strings), compare_strings);
	size_t bytes_max = 0;
	for (size_t i = 0; i < count; i++)
		bytes_max = strings[i].bytes > bytes_max ? strings[i].bytes : bytes_max;
	u32 *way = arena_alloc(&b->arena, (bytes_max + 1) * sizeof(*way));
	if (way == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the choices are too long");
		return to;
	}
	way[0] = from;
	for (size_t i = 0; i < count && b->err == ERR_OK; i++) {
		const struct gb_string *s = &strings[i];
		size_t shared = 0;
		if (i > 0) {
			const struct gb_string *before = &strings[i - 1];
			if (compare_strings(before, s) == 0)
				continue;
			while (shared < s->bytes && shared < before->bytes && s->text[shared] == before->text[shared])
				shared++;
		}
		for (size_t k = shared; k < s->bytes; k++) {
			way[k + 1] = gb_node(b);
			gb_bytes(b, way[k], way[k + 1], (u8)s->text[k], (u8)s->text[k]);
		}
		gb_empty(b, way[s->bytes], to);
	}
	return to;
}

/* ---- expressions ---- */

bool gexpr_nullable(const struct gexpr *e)
{
	switch (e->kind) {
	case GEXPR_EMPTY:
		return true;
	case GEXPR_CALL:
		return e->min == 0;
	case GEXPR_SET:
		return false;
	case GEXPR_CAT:
		for (const struct gexpr *c = e->first; c != NULL; c = c->next) {
			if (!gexpr_nullable(c))
				return false;
		}
		return true;
	case GEXPR_ALT:
		for (const struct gexpr *c = e->first; c != NULL; c = c->next) {
			if (gexpr_nullable(c))
				return true;
		}
		return false;
	case GEXPR_REPEAT:
		return e->min == 0 || gexpr_nullable(e->first);
	}
	return true;
}

void gb_tell_repeat(struct gb *b, struct grammar_repeat repeat)
{
	if (repeat.copies > REPEAT_TOLD_MIN && b->err == ERR_OK &&
	    grow(b, &b->repeats, b->repeat_count, &b->repeat_capacity, sizeof(*b->repeats)))
		b->repeats[b->repeat_count++] = repeat;
}

/* Copies of `inner` one behind the other, with a way out of each where `out` is a node. All copies have the same shape. */
static u32 put_copies(struct gb *b, u32 from, const struct gexpr *inner, u32 copies, u32 out)
{
	u32 base = b->node_count, size = 0, repeats = b->repeat_count;
	for (u32 i = 0; i < copies && b->err == ERR_OK; i++) {
		u32 before = b->node_count;
		u32 end = gb_expr(b, from, inner);
		from = gb_node(b);
		gb_empty(b, end, from);
		if (out != GRAMMAR_NONE)
			gb_empty(b, from, out);
		u32 grown = b->node_count - before;
		ASSERT(i == 0 || grown == size || b->err != ERR_OK);
		size = grown;
	}
	/* Repetitions inside have their own shape; only the innermost are told. */
	if (b->repeat_count == repeats && !gexpr_nullable(inner))
		gb_tell_repeat(b, (struct grammar_repeat){.base = base, .size = size, .copies = copies});
	return from;
}

/* Nodes that writing `e` takes, from above, up to `enough`. */
static u32 cost(const struct gexpr *e, u32 enough)
{
	u64 sum = 1;
	if (e->kind == GEXPR_SET)
		sum += e->set.count < 64 ? 4 * e->set.count : 256;
	for (const struct gexpr *c = e->first; c != NULL && sum < enough; c = c->next)
		sum += cost(c, enough) + 1u;
	if (e->kind == GEXPR_REPEAT)
		sum *= e->max == GRAMMAR_NONE ? e->min + 1u : e->max;
	return sum < enough ? (u32)sum : enough;
}

static struct gexpr *copy_expr(struct gb *b, const struct gexpr *e)
{
	struct gexpr *copy = arena_alloc(&b->arena, sizeof(*copy));
	if (copy != NULL) {
		*copy = *e;
		copy->next = NULL;
	}
	return copy;
}

static struct gexpr *without_empty(struct gb *b, const struct gexpr *e);

/* Of nullable parts behind each other one is the first that eats something: one alternative for each. */
static struct gexpr *cat_without_empty(struct gb *b, const struct gexpr *e)
{
	struct gexpr alt = {.kind = GEXPR_ALT}, cat = {.kind = GEXPR_CAT}, **end = &alt.first;
	for (const struct gexpr *c = e->first; c != NULL; c = c->next) {
		if (c->kind == GEXPR_EMPTY)
			continue;
		struct gexpr *first = without_empty(b, c), *one = copy_expr(b, &cat);
		if (first == NULL || one == NULL)
			return NULL;
		one->first = first;
		for (const struct gexpr *rest = c->next; rest != NULL; rest = rest->next) {
			first = first->next = copy_expr(b, rest);
			if (first == NULL)
				return NULL;
		}
		*end = one;
		end = &one->next;
	}
	return alt.first != NULL ? copy_expr(b, &alt) : NULL;
}

/* What `e` matches but for the empty text; NULL: nothing, not known (calls), or out of memory. */
static struct gexpr *without_empty(struct gb *b, const struct gexpr *e)
{
	struct gexpr *copy = copy_expr(b, e), **end;
	if (copy == NULL || !gexpr_nullable(e))
		return copy;
	switch (e->kind) {
	case GEXPR_CAT:
		return cat_without_empty(b, e);
	case GEXPR_REPEAT:
		copy->first = without_empty(b, e->first);
		copy->min = copy->min == 0 || gexpr_nullable(e->first) ? 1 : copy->min;
		return copy->first != NULL && copy->max > 0 ? copy : NULL;
	case GEXPR_ALT:
		end = &copy->first;
		for (const struct gexpr *c = e->first; c != NULL; c = c->next) {
			*end = c->kind != GEXPR_EMPTY ? without_empty(b, c) : NULL;
			if (*end != NULL)
				end = &(*end)->next;
			else if (c->kind != GEXPR_EMPTY)
				return NULL;
		}
		return copy->first != NULL ? copy : NULL;
	default:
		return NULL;
	}
}

static u32 put_repeat(struct gb *b, u32 from, const struct gexpr *e)
{
	const struct gexpr *inner = e->first;
	struct gexpr simple = *e;
	const struct gexpr *eats = e->max > 1 && gexpr_nullable(inner) ? without_empty(b, inner) : NULL;
	if (eats != NULL && cost(eats, GRAMMAR_NODES_MAX) <= 3 * cost(inner, GRAMMAR_NODES_MAX)) {
		/* (x?){m,n} is x{0,n}: copies that may be skipped would all be tried at each place. */
		simple.min = 0;
		simple.first = (struct gexpr *)eats;
		e = &simple;
		inner = eats;
	}
	u32 count = e->max == GRAMMAR_NONE ? e->min : e->max;
	struct gexpr call = {.kind = GEXPR_CALL, .min = gexpr_nullable(inner) ? 0 : 1};
	if (count > 8 && !b->flat && inner->kind != GEXPR_CALL && cost(inner, GRAMMAR_NODES_MAX) * (u64)count > GRAMMAR_INLINE_NODES) {
		call.rule = gb_rule(b, "a repeated part");
		if (b->err != ERR_OK)
			return from;
		struct grammar_rule r = b->rules[call.rule];
		gb_empty(b, gb_expr(b, r.start, inner), r.accept);
		inner = &call;
	}
	from = put_copies(b, from, inner, e->min, GRAMMAR_NONE);
	if (e->max == GRAMMAR_NONE) {
		u32 loop = gb_node(b);
		gb_empty(b, from, loop);
		gb_empty(b, gb_expr(b, loop, inner), loop);
		return loop;
	}
	if (e->max == e->min)
		return from;
	u32 out = gb_node(b);
	gb_empty(b, from, out);
	gb_empty(b, put_copies(b, from, inner, e->max - e->min, out), out);
	return out;
}

u32 gb_expr(struct gb *b, u32 from, const struct gexpr *e)
{
	if (b->err != ERR_OK)
		return from;
	u32 to;
	switch (e->kind) {
	case GEXPR_EMPTY:
		return from;
	case GEXPR_SET:
		return gb_set(b, from, &e->set);
	case GEXPR_CALL:
		to = gb_node(b);
		gb_call(b, from, to, e->rule);
		return to;
	case GEXPR_CAT:
		for (const struct gexpr *c = e->first; c != NULL; c = c->next)
			from = gb_expr(b, from, c);
		return from;
	case GEXPR_ALT:
		to = gb_node(b);
		for (const struct gexpr *c = e->first; c != NULL; c = c->next) {
			/* A start of its own: a loop inside must not lead back into the other branches. */
			u32 begin = gb_node(b);
			gb_empty(b, from, begin);
			gb_empty(b, gb_expr(b, begin, c), to);
		}
		return to;
	case GEXPR_REPEAT:
		return put_repeat(b, from, e);
	}
	return from;
}
