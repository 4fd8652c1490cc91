/* Owns places in a text: sets of configurations (a dset and the stack of where to go on when its rule is over), interned,
 * with their steps over bytes. Runs in workers. Never forgets while a walk is under way: what is full says so. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/assert.h"
#include "text/grammar_priv.h"

enum {
	DSET_NONE = 1,
	FIRST_INDEX = 2, /* of dsets and places: 0 and 1 have a meaning */
	CACHE_BYTES_MAX = 24 << 20,
	/* Of one place. A text that can be read in more ways than that keeps these; each of them can be finished, so that a text
	 * is never stuck, and which ones they are does not depend on what came before. */
	CONFIGS_MAX = 256,
	WORK_MAX = 8 * CONFIGS_MAX, /* with those that are passed on the way to what eats bytes */
};

static size_t table_bytes(const struct grammar_cache *c)
{
	size_t next = ((size_t)c->dset_count + c->place_count) * c->grammar->class_count * sizeof(u32);
	return next + c->dset_count * sizeof(*c->dsets) + c->place_count * sizeof(*c->places) + c->pool.count * sizeof(u32) +
	       c->config_count * sizeof(*c->configs) + c->stack_count * sizeof(*c->stacks);
}

bool cache_is_large(const struct grammar_cache *c)
{
	return table_bytes(c) > CACHE_BYTES_MAX / 2;
}

/* ---- stacks ---- */

static u32 hash_cell(u32 back, u32 below)
{
	u32 key[2] = {back, below};
	return (u32)XXH3_64bits(key, sizeof(key));
}

static u32 hash_of_stack(const struct grammar_cache *c, u32 index)
{
	return hash_cell(c->stacks[index].back, c->stacks[index].below);
}

static bool stack_equals(const struct grammar_cache *c, u32 index, const void *key)
{
	const struct stack_cell *cell = key;
	return c->stacks[index].back == cell->back && c->stacks[index].below == cell->below;
}

static enum err push_frame(struct grammar_cache *c, u32 back, u32 below, u32 *out)
{
	u64 keys[2] = {c->dsets[back].key, c->stacks[below].key};
	struct stack_cell cell = {.back = back, .below = below, .depth = c->stacks[below].depth + 1, .alias = {GRAMMAR_NONE, GRAMMAR_NONE},
				  .key = XXH3_64bits(keys, sizeof(keys))};
	u32 hash = hash_cell(back, below);
	*out = intern_find(&c->stack_table, c, hash, stack_equals, &cell);
	if (*out != GRAMMAR_NONE)
		return ERR_OK;
	if (!cache_grow(&c->stacks, c->stack_count, &c->stack_capacity, sizeof(*c->stacks)) ||
	    !intern_reserve(&c->stack_table, c, hash_of_stack))
		return ERR_NO_MEMORY;
	*out = c->stack_count++;
	c->stacks[*out] = cell;
	intern_put(&c->stack_table, hash, *out);
	return ERR_OK;
}

/* ---- places ---- */

struct place_key {
	const struct config *configs;
	u32 count;
	bool ends;
};

static u32 hash_configs(const struct config *configs, u32 count, bool ends)
{
	return (u32)XXH3_64bits(configs, count * sizeof(*configs)) + ends;
}

static u32 hash_of_place(const struct grammar_cache *c, u32 index)
{
	const struct place *p = &c->places[index];
	return hash_configs(c->configs + p->configs_at, p->config_count, p->ends);
}

static bool place_equals(const struct grammar_cache *c, u32 index, const void *key)
{
	const struct place_key *k = key;
	const struct place *p = &c->places[index];
	return p->config_count == k->count && p->ends == k->ends &&
	       (k->count == 0 || memcmp(c->configs + p->configs_at, k->configs, k->count * sizeof(*k->configs)) == 0);
}

static bool grow_places(struct grammar_cache *c, u32 configs)
{
	u32 capacity = c->place_capacity;
	if (!cache_grow(&c->places, c->place_count, &c->place_capacity, sizeof(*c->places)))
		return false;
	if (capacity != c->place_capacity) {
		u32 *next = realloc(c->place_next, (size_t)c->place_capacity * c->grammar->class_count * sizeof(*next));
		if (next == NULL) {
			c->place_capacity = capacity;
			return false;
		}
		c->place_next = next;
	}
	while (c->config_capacity < c->config_count + configs) {
		if (!cache_grow(&c->configs, c->config_capacity, &c->config_capacity, sizeof(*c->configs)))
			return false;
	}
	return true;
}

static int compare_configs(const void *a, const void *b, void *cache)
{
	const struct grammar_cache *c = cache;
	const struct config *x = a, *y = b;
	u64 p = c->dsets[x->dset].key, q = c->dsets[y->dset].key;
	if (p == q) {
		p = c->stacks[x->stack].key;
		q = c->stacks[y->stack].key;
	}
	return p < q ? -1 : p > q;
}

/* The place of c->work, which holds configurations that eat bytes. */
static enum err intern_work(struct grammar_cache *c, u32 *out)
{
	if (c->work_count == 0 && !c->work_ends) {
		*out = PLACE_DEAD;
		return ERR_OK;
	}
	if (c->work_count > 1)
		qsort_r(c->work, c->work_count, sizeof(*c->work), compare_configs, c);
	struct place_key key = {c->work, c->work_count, c->work_ends};
	u32 hash = hash_configs(key.configs, key.count, key.ends);
	*out = intern_find(&c->place_table, c, hash, place_equals, &key);
	if (*out != GRAMMAR_NONE) {
		struct place *p = &c->places[*out];
		p->need = c->work_need > p->need ? c->work_need : p->need;
		return ERR_OK;
	}
	if (table_bytes(c) > CACHE_BYTES_MAX)
		return ERR_TOO_LONG;
	if (!grow_places(c, key.count) || !intern_reserve(&c->place_table, c, hash_of_place))
		return ERR_NO_MEMORY;
	*out = c->place_count++;
	c->places[*out] = (struct place){.configs_at = c->config_count, .config_count = key.count, .mask = GRAMMAR_NONE,
					 .need = c->work_need, .ends = key.ends};
	if (key.count > 0)
		memcpy(c->configs + c->config_count, key.configs, key.count * sizeof(*key.configs));
	c->config_count += key.count;
	size_t classes = c->grammar->class_count;
	memset(c->place_next + *out * classes, 0, classes * sizeof(u32));
	intern_put(&c->place_table, hash, *out);
	return ERR_OK;
}

/* ---- what is reached without a byte ---- */

static void begin_work(struct grammar_cache *c)
{
	c->work_count = 0;
	c->work_need = 0;
	c->work_ends = false;
}

/* Whether `dset` can be finished on `stack` within the limit on depth; that it was asked is remembered. */
static bool fits(struct grammar_cache *c, u32 dset, u32 stack)
{
	u32 need = c->stacks[stack].depth + c->dsets[dset].height;
	if (need > c->work_need)
		c->work_need = (u16)need;
	return need <= c->grammar->depth_max;
}

static enum err add_work(struct grammar_cache *c, u32 dset, u32 stack)
{
	if (!fits(c, dset, stack))
		return ERR_OK;
	c->effort += EFFORT_CONFIG + c->work_count / 4;
	for (u32 i = 0; i < c->work_count; i++) {
		if (c->work[i].dset == dset && c->work[i].stack == stack)
			return ERR_OK;
	}
	if (c->work_count >= WORK_MAX)
		return ERR_OK;
	if (!cache_grow(&c->work, c->work_count, &c->work_capacity, sizeof(*c->work)))
		return ERR_NO_MEMORY;
	c->work[c->work_count++] = (struct config){dset, stack};
	return ERR_OK;
}

/* A call whose frame has nothing left to do is not pushed: recursion at the end of a rule needs no stack. */
static enum err add_call(struct grammar_cache *c, struct dset_call call, u32 stack)
{
	const struct dset *back = &c->dsets[call.back];
	if (!fits(c, call.back, stack))
		return ERR_OK;
	enum err e = ERR_OK;
	if (back->eats || back->calls)
		e = push_frame(c, call.back, stack, &stack);
	u32 start;
	if (e == ERR_OK)
		e = dset_of_rule(c, call.rule, &start);
	if (e == ERR_OK && start != DSET_NONE)
		e = add_work(c, start, stack);
	return e;
}

/* Completes c->work by what calls and ends of rules lead to, and keeps what eats bytes. */
static enum err close_work(struct grammar_cache *c)
{
	enum err e = ERR_OK;
	for (u32 i = 0; e == ERR_OK && i < c->work_count; i++) {
		struct config at = c->work[i];
		if (c->dsets[at.dset].calls)
			e = dset_find_calls(c, at.dset);
		if (e != ERR_OK)
			break;
		struct dset d = c->dsets[at.dset];
		for (u32 k = 0; d.calls && e == ERR_OK && k < d.call_count; k++)
			e = add_call(c, c->calls[d.calls_at + k], at.stack);
		if (e == ERR_OK && d.accepts && at.stack == STACK_BOTTOM)
			c->work_ends = true;
		else if (e == ERR_OK && d.accepts)
			e = add_work(c, c->stacks[at.stack].back, c->stacks[at.stack].below);
	}
	u32 kept = 0;
	for (u32 i = 0; i < c->work_count && kept < CONFIGS_MAX; i++) {
		if (c->dsets[c->work[i].dset].eats)
			c->work[kept++] = c->work[i];
	}
	c->work_count = kept;
	return e;
}

static enum err close_and_intern(struct grammar_cache *c, u32 *place)
{
	enum err e = close_work(c);
	return e == ERR_OK ? intern_work(c, place) : e;
}

static enum err make_one_step(struct grammar_cache *c, u32 place, u32 class_index, u32 *next)
{
	begin_work(c);
	enum err e = ERR_OK;
	for (u32 i = 0; e == ERR_OK && i < c->places[place].config_count; i++) {
		struct config from = c->configs[c->places[place].configs_at + i];
		u32 dset;
		e = dset_step(c, from.dset, class_index, &dset);
		if (e == ERR_OK && dset != DSET_NONE)
			e = add_work(c, dset, from.stack);
	}
	if (e == ERR_OK)
		e = close_and_intern(c, next);
	if (e == ERR_OK)
		c->place_next[(size_t)place * c->grammar->class_count + class_index] = *next;
	return e;
}

/* A place of one configuration: the classes that lead to the same dset lead to the same place. */
static void share_step(struct grammar_cache *c, u32 place, u32 class_index, u32 next)
{
	u32 classes = c->grammar->class_count, dset = c->configs[c->places[place].configs_at].dset;
	const u32 *steps = c->dset_next + (size_t)dset * classes;
	for (u32 k = 0; k < classes; k++) {
		if (steps[k] == steps[class_index])
			c->place_next[(size_t)place * classes + k] = next;
	}
}

enum err cache_make_step(struct grammar_cache *c, u32 place, u8 byte, u32 *next)
{
	u32 class_index = c->grammar->class_of[byte];
	ASSERT(place >= FIRST_INDEX && place < c->place_count);
	if (c->effort > c->effort_max)
		return ERR_TIMEOUT;
	enum err e = make_one_step(c, place, class_index, next);
	if (e == ERR_OK && c->places[place].config_count == 1)
		share_step(c, place, class_index, *next);
	return e;
}

enum err cache_pop(struct grammar_cache *c, u32 stack, u32 *place)
{
	ASSERT(stack != STACK_BOTTOM);
	begin_work(c);
	enum err e = add_work(c, c->stacks[stack].back, c->stacks[stack].below);
	return e == ERR_OK ? close_and_intern(c, place) : e;
}

enum err cache_single(struct grammar_cache *c, struct config config, u32 *place)
{
	begin_work(c);
	enum err e = add_work(c, config.dset, config.stack);
	return e == ERR_OK ? intern_work(c, place) : e;
}

/* ---- aliases ---- */

static enum err alias_stack(struct grammar_cache *c, u32 stack, enum alias_kind kind, u32 *alias)
{
	*alias = STACK_BOTTOM;
	if (stack == STACK_BOTTOM)
		return ERR_OK;
	*alias = c->stacks[stack].alias[kind];
	if (*alias != GRAMMAR_NONE)
		return ERR_OK;
	u32 back, below;
	enum err e = alias_stack(c, c->stacks[stack].below, kind, &below); /* as deep as the grammar's limit on depth */
	if (e == ERR_OK)
		e = dset_alias(c, c->stacks[stack].back, kind, &back);
	if (e == ERR_OK)
		e = push_frame(c, back, below, alias);
	if (e == ERR_OK)
		c->stacks[stack].alias[kind] = *alias;
	return e;
}

enum err cache_alias(struct grammar_cache *c, u32 place, enum alias_kind kind, u32 *alias)
{
	*alias = place;
	if (c->grammar->repeat_count == 0)
		return ERR_OK;
	begin_work(c);
	c->work_ends = c->places[place].ends;
	enum err e = ERR_OK;
	bool differs = false;
	for (u32 i = 0; e == ERR_OK && i < c->places[place].config_count; i++) {
		struct config from = c->configs[c->places[place].configs_at + i], to = {0};
		e = dset_alias(c, from.dset, kind, &to.dset);
		if (e == ERR_OK)
			e = alias_stack(c, from.stack, kind, &to.stack);
		if (e == ERR_OK)
			e = add_work(c, to.dset, to.stack);
		differs = differs || to.dset != from.dset || to.stack != from.stack;
	}
	return e == ERR_OK && differs ? intern_work(c, alias) : e;
}

/* ---- life ---- */

void cache_drop_masks(struct grammar_cache *c)
{
	for (u32 i = 0; i < c->local_count; i++) {
		if (!c->locals[i].borrowed)
			local_mask_fini(&c->locals[i]);
	}
	for (u32 i = 0; i < c->mask_count; i++)
		local_mask_fini(&c->masks[i]);
	for (u32 i = FIRST_INDEX; i < c->dset_count; i++)
		c->dsets[i].local = GRAMMAR_NONE;
	for (u32 i = FIRST_INDEX; i < c->place_count; i++)
		c->places[i].mask = GRAMMAR_NONE;
	c->local_count = c->mask_count = 0;
	c->mask_bytes = 0;
}

static void fini_tables(struct grammar_cache *c)
{
	cache_drop_masks(c);
	free(c->locals);
	free(c->masks);
	free(c->dsets);
	free(c->dset_next);
	free(c->calls);
	free(c->stacks);
	free(c->places);
	free(c->place_next);
	free(c->configs);
	free(c->seen);
	free(c->work);
	free(c->rule_start);
	u32_vec_fini(&c->pool);
	u32_vec_fini(&c->nodes);
	u32_vec_fini(&c->pending);
	u32_vec_fini(&c->lists);
	intern_fini(&c->dset_table);
	intern_fini(&c->stack_table);
	intern_fini(&c->place_table);
}

static enum err init_tables(struct grammar_cache *c, struct grammar *g, struct grammar_vocab *v)
{
	*c = (struct grammar_cache){.grammar = g, .vocab = v, .effort_max = UINT64_MAX};
	c->seen = calloc(g->node_count, sizeof(*c->seen));
	c->rule_start = calloc(g->rule_count, sizeof(*c->rule_start));
	if (c->seen == NULL || c->rule_start == NULL || !cache_grow(&c->stacks, 0, &c->stack_capacity, sizeof(*c->stacks)))
		goto fini_tables;
	c->stacks[STACK_BOTTOM] = (struct stack_cell){.back = DSET_NONE, .alias = {STACK_BOTTOM, STACK_BOTTOM}};
	c->stack_count = 1;
	c->dset_count = c->place_count = FIRST_INDEX;
	begin_work(c);
	u32 start;
	enum err e = dset_of_rule(c, 0, &start);
	if (e == ERR_OK)
		e = add_work(c, start, STACK_BOTTOM);
	if (e == ERR_OK)
		e = close_and_intern(c, &c->start);
	if (e == ERR_OK && c->start == PLACE_DEAD)
		e = ERR_TOO_LONG;
	if (e == ERR_OK)
		return ERR_OK;
	fini_tables(c);
	return e;
fini_tables:
	fini_tables(c);
	return ERR_NO_MEMORY;
}

enum err cache_check(struct grammar *g)
{
	struct grammar_cache c;
	enum err e = init_tables(&c, g, NULL);
	if (e == ERR_OK)
		fini_tables(&c);
	return e;
}

enum err cache_acquire(struct grammar_cache **out, struct grammar *g, struct grammar_vocab *v)
{
	for (struct grammar_cache *c = g->caches; c != NULL; c = c->next) {
		if (c->vocab == v) {
			*out = c;
			return ERR_OK;
		}
	}
	struct grammar_cache *c = malloc(sizeof(*c));
	enum err e = c != NULL ? init_tables(c, g, v) : ERR_NO_MEMORY;
	if (e != ERR_OK) {
		free(c);
		return e;
	}
	grammar_ref(g);
	c->next = g->caches;
	g->caches = c;
	c->next_in_vocab = v->caches;
	v->caches = c;
	*out = c;
	return ERR_OK;
}

void cache_release(struct grammar_cache *c)
{
	if (c->states != NULL)
		return;
	struct grammar *g = c->grammar;
	struct grammar_cache **at = &g->caches;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	at = &c->vocab->caches;
	while (*at != c)
		at = &(*at)->next_in_vocab;
	*at = c->next_in_vocab;
	c->vocab->learnt_bytes -= c->told_bytes;
	fini_tables(c);
	free(c);
	grammar_unref(&g);
}

/* ---- forgetting ---- */

static enum err move_dset(const struct grammar_cache *from, struct grammar_cache *to, u32 dset, u32 *out)
{
	const struct dset *d = &from->dsets[dset];
	u32_vec_clear(&to->nodes);
	u32_vec_append(&to->nodes, from->pool.data + d->nodes_at, d->node_count);
	return dset_of_nodes(to, out);
}

static enum err move_stack(const struct grammar_cache *from, struct grammar_cache *to, u32 stack, u32 *out)
{
	u32 back, below;
	*out = STACK_BOTTOM;
	if (stack == STACK_BOTTOM)
		return ERR_OK;
	enum err e = move_stack(from, to, from->stacks[stack].below, &below); /* as deep as the limit on depth */
	if (e == ERR_OK)
		e = move_dset(from, to, from->stacks[stack].back, &back);
	return e == ERR_OK ? push_frame(to, back, below, out) : e;
}

static enum err move_place(const struct grammar_cache *from, struct grammar_cache *to, u32 place, u32 *out)
{
	const struct place *p = &from->places[place];
	struct config *moved = calloc((size_t)p->config_count + 1, sizeof(*moved));
	enum err e = moved != NULL ? ERR_OK : ERR_NO_MEMORY;
	for (u32 i = 0; e == ERR_OK && i < p->config_count; i++) {
		const struct config *c = &from->configs[p->configs_at + i];
		e = move_dset(from, to, c->dset, &moved[i].dset);
		if (e == ERR_OK)
			e = move_stack(from, to, c->stack, &moved[i].stack);
	}
	begin_work(to);
	to->work_ends = p->ends;
	for (u32 i = 0; e == ERR_OK && i < p->config_count; i++)
		e = add_work(to, moved[i].dset, moved[i].stack);
	free(moved);
	return e == ERR_OK ? intern_work(to, out) : e;
}

enum err cache_flush(struct grammar_cache *c)
{
	struct grammar_cache fresh;
	enum err e = init_tables(&fresh, c->grammar, c->vocab);
	if (e != ERR_OK)
		return e;
	u32 count = 0, i = 0;
	for (struct grammar_state *s = c->states; s != NULL; s = s->next)
		count++;
	u32 *places = malloc((count + 1) * sizeof(*places));
	e = places != NULL ? ERR_OK : ERR_NO_MEMORY;
	for (struct grammar_state *s = c->states; e == ERR_OK && s != NULL; s = s->next)
		e = move_place(c, &fresh, s->place, &places[i++]);
	if (e != ERR_OK) {
		fini_tables(&fresh);
		free(places);
		return e;
	}
	i = 0;
	for (struct grammar_state *s = c->states; s != NULL; s = s->next)
		s->place = places[i++];
	free(places);
	fresh.next = c->next;
	fresh.next_in_vocab = c->next_in_vocab;
	fresh.told_bytes = c->told_bytes;
	fresh.walks_are_large = c->walks_are_large;
	fresh.effort += c->effort;
	fresh.effort_max = c->effort_max;
	fresh.states = c->states;
	fini_tables(c);
	*c = fresh;
	return ERR_OK;
}

static void tell(struct grammar_cache *c)
{
	size_t bytes = table_bytes(c) + c->mask_bytes + c->grammar->node_count * sizeof(*c->seen);
	c->vocab->learnt_bytes += bytes - c->told_bytes;
	c->told_bytes = bytes;
}

void cache_tell_bytes(struct grammar_cache *c)
{
	struct grammar_vocab *v = c->vocab;
	tell(c);
	/* What is there right after forgetting cannot be forgotten: it is not tried again before much more is there. */
	if (v->learnt_bytes <= v->learnt_bytes_max || v->learnt_bytes <= v->learnt_bytes_kept + v->learnt_bytes_max / 4)
		return;
	for (struct grammar_cache *at = v->caches; at != NULL; at = at->next_in_vocab) {
		if (cache_flush(at) == ERR_OK) /* where memory is short it stays as it is */
			tell(at);
	}
	v->learnt_bytes_kept = v->learnt_bytes;
}
