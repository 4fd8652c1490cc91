/* Owns masks: which tokens may come at a place. A walk over the trie of all tokens tells it; most of it depends on the
 * innermost rule only and is remembered there (local masks), the rest on what is below. Runs in workers. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/grammar_priv.h"

enum {
	MASK_BYTES_MAX = 8 << 20,
	CONFIGS_APART = 16, /* of more, one walk over all tokens is faster than one for each */
};

struct walk {
	struct grammar_cache *c;
	u32 *bits;
	u32 *places;         /* by depth in the trie */
	struct u32_vec *pops; /* of a local walk, else NULL */
	u32 need;
	u32 longer_than; /* only tokens of more bytes are looked at */
};

static void set_tokens(const struct grammar_vocab *v, u32 *bits, struct trie_node n)
{
	if (n.token == GRAMMAR_NONE)
		return;
	bits[n.token / 32] |= 1u << n.token % 32;
	for (u32 token = n.same ? v->same[n.token] : GRAMMAR_NONE; token != GRAMMAR_NONE; token = v->same[token])
		bits[token / 32] |= 1u << token % 32;
}

/* Walks what is below `node`, where the text is at `place`. */
static enum err walk_below(struct walk *w, u32 node, u32 place)
{
	struct grammar_cache *c = w->c;
	const struct grammar_vocab *v = c->vocab;
	const struct trie_node *nodes = v->nodes;
	u32 end = nodes[node].skip;
	w->places[nodes[node].depth] = place;
	u64 looked_at = 0;
	enum err e = ERR_OK;
	for (u32 i = node + 1; i < end; looked_at++) {
		struct trie_node n = nodes[i];
		u32 next;
		if (v->deep[i] <= w->longer_than && w->longer_than > 0) {
			i = n.skip;
			continue;
		}
		e = cache_step(c, w->places[n.depth - 1], n.byte, &next);
		if (e != ERR_OK)
			break;
		if (next == PLACE_DEAD) {
			i = n.skip;
			continue;
		}
		const struct place *p = &c->places[next];
		w->need = p->need > w->need ? p->need : w->need;
		if (n.depth > w->longer_than)
			set_tokens(v, w->bits, n);
		if (p->ends && w->pops != NULL && n.skip > i + 1)
			u32_vec_push(w->pops, i);
		if (p->config_count == 0) {
			i = n.skip;
			continue;
		}
		w->places[n.depth] = next;
		i++;
	}
	c->effort += EFFORT_TRIE * looked_at;
	return e;
}

/* ---- local masks ---- */

static size_t mask_bytes(const struct grammar_cache *c)
{
	return grammar_mask_words(c->vocab->size) * sizeof(u32);
}

static size_t local_bytes(const struct grammar_cache *c, const struct local_mask *l)
{
	return (l->bits != NULL ? mask_bytes(c) : 0) + ((size_t)l->token_count + l->pop_count) * sizeof(u32);
}

void local_mask_fini(struct local_mask *l)
{
	free(l->bits);
	free(l->tokens);
	free(l->pops);
}

/* Copies the bits where there are many, else lists them. */
static enum err keep_bits(const struct grammar_cache *c, struct local_mask *l, const u32 *bits)
{
	size_t words = grammar_mask_words(c->vocab->size);
	u32 count = 0;
	for (size_t i = 0; i < words; i++)
		count += (u32)__builtin_popcount(bits[i]);
	if (count > words / 4) {
		l->bits = malloc(mask_bytes(c));
		if (l->bits != NULL)
			memcpy(l->bits, bits, mask_bytes(c));
		return l->bits != NULL ? ERR_OK : ERR_NO_MEMORY;
	}
	l->tokens = malloc(((size_t)count + 1) * sizeof(u32));
	for (size_t i = 0; l->tokens != NULL && i < words; i++) {
		for (u32 word = bits[i]; word != 0; word &= word - 1)
			l->tokens[l->token_count++] = (u32)(i * 32) + (u32)__builtin_ctz(word);
	}
	return l->tokens != NULL ? ERR_OK : ERR_NO_MEMORY;
}

/* Computes what tokens mean inside `dset`. */
static enum err walk_local(struct grammar_cache *c, u32 dset, struct local_mask *l)
{
	struct u32_vec pops = {0};
	struct walk w = {.c = c, .pops = &pops};
	u32 place;
	w.bits = calloc(1, mask_bytes(c));
	w.places = malloc(((size_t)c->vocab->token_bytes_max + 1) * sizeof(u32));
	enum err e = w.bits != NULL && w.places != NULL ? ERR_OK : ERR_NO_MEMORY;
	if (e == ERR_OK)
		e = cache_single(c, (struct config){dset, STACK_BOTTOM}, &place);
	if (e == ERR_OK && place != PLACE_DEAD)
		e = walk_below(&w, 0, place);
	free(w.places);
	if (e == ERR_OK && pops.failed)
		e = ERR_NO_MEMORY;
	if (e == ERR_OK)
		e = keep_bits(c, l, w.bits);
	free(w.bits);
	if (e != ERR_OK) {
		u32_vec_fini(&pops);
		return e;
	}
	l->need = (u16)w.need;
	l->pops = pops.data;
	l->pop_count = (u32)pops.count;
	return ERR_OK;
}

/* The common rule that the dset belongs to, or COMMON_RULES. */
static u32 common_rule_of(const struct grammar_cache *c, u32 dset)
{
	const struct dset *d = &c->dsets[dset];
	u32 first = c->pool.data[d->nodes_at], last = c->pool.data[d->nodes_at + d->node_count - 1], rule = 0;
	while (rule < COMMON_RULES && !(first >= c->grammar->common[rule].start && last < c->grammar->common[rule].end))
		rule++;
	return rule;
}

static const struct local_mask *find_common(const struct grammar_cache *c, u32 dset, u32 rule)
{
	const struct dset *d = &c->dsets[dset];
	const u32 *nodes = c->pool.data + d->nodes_at;
	for (u32 i = 0; i < c->vocab->common_count; i++) {
		const struct common_local *l = &c->vocab->common[i];
		u32 k = 0;
		if (l->rule != rule || l->node_count != d->node_count)
			continue;
		while (k < d->node_count && nodes[k] - c->grammar->common[rule].start == l->nodes[k])
			k++;
		if (k == d->node_count)
			return &l->mask;
	}
	return NULL;
}

/* Gives `l` to the vocabulary, for other grammars; where memory is short it stays here. */
static void share_common(struct grammar_cache *c, u32 dset, u32 rule, struct local_mask *l)
{
	struct grammar_vocab *v = c->vocab;
	const struct dset *d = &c->dsets[dset];
	struct common_local entry = {.rule = rule, .node_count = d->node_count};
	if (!cache_grow(&v->common, v->common_count, &v->common_capacity, sizeof(*v->common)))
		return;
	entry.nodes = malloc(d->node_count * sizeof(u32));
	if (entry.nodes == NULL)
		return;
	for (u32 k = 0; k < d->node_count; k++)
		entry.nodes[k] = c->pool.data[d->nodes_at + k] - c->grammar->common[rule].start;
	entry.mask = *l;
	l->borrowed = true;
	v->common[v->common_count++] = entry;
	v->common_bytes += sizeof(entry) + local_bytes(c, l) + d->node_count * sizeof(u32);
}

static enum err make_local(struct grammar_cache *c, u32 dset)
{
	struct local_mask l = {0};
	if (!cache_grow(&c->locals, c->local_count, &c->local_capacity, sizeof(*c->locals)))
		return ERR_NO_MEMORY;
	u32 rule = common_rule_of(c, dset);
	const struct local_mask *known = rule < COMMON_RULES ? find_common(c, dset, rule) : NULL;
	if (known != NULL) {
		l = *known;
		l.borrowed = true;
	} else {
		enum err e = walk_local(c, dset, &l);
		if (e != ERR_OK)
			return e;
		if (rule < COMMON_RULES)
			share_common(c, dset, rule, &l);
	}
	if (!l.borrowed)
		c->mask_bytes += local_bytes(c, &l);
	c->dsets[dset].local = c->local_count;
	c->locals[c->local_count++] = l;
	return ERR_OK;
}

static void add_local(const struct local_mask *l, u32 *bits, size_t words)
{
	if (l->bits != NULL) {
		for (size_t i = 0; i < words; i++)
			bits[i] |= l->bits[i];
	}
	for (u32 i = 0; i < l->token_count; i++)
		bits[l->tokens[i] / 32] |= 1u << l->tokens[i] % 32;
}

/* ---- whole masks ---- */

static enum err add_config(struct walk *w, struct config at)
{
	struct grammar_cache *c = w->c;
	if (c->dsets[at.dset].local == GRAMMAR_NONE) {
		enum err e = make_local(c, at.dset);
		if (e != ERR_OK)
			return e;
	}
	struct local_mask l = c->locals[c->dsets[at.dset].local];
	u32 place;
	if (l.need + c->stacks[at.stack].depth > c->grammar->depth_max) { /* near the limit on depth it is another mask */
		enum err e = cache_single(c, at, &place);
		return e == ERR_OK && place != PLACE_DEAD ? walk_below(w, 0, place) : e;
	}
	add_local(&l, w->bits, grammar_mask_words(c->vocab->size));
	if (at.stack == STACK_BOTTOM || l.pop_count == 0)
		return ERR_OK;
	enum err e = cache_pop(c, at.stack, &place);
	if (e != ERR_OK || place == PLACE_DEAD || c->places[place].config_count == 0)
		return e;
	for (u32 i = 0; e == ERR_OK && i < l.pop_count; i++)
		e = walk_below(w, l.pops[i], place);
	return e;
}

static enum err make_mask(struct grammar_cache *c, u32 place, u32 *bits)
{
	struct walk w = {.c = c, .bits = bits};
	w.places = malloc(((size_t)c->vocab->token_bytes_max + 1) * sizeof(u32));
	enum err e = w.places != NULL ? ERR_OK : ERR_NO_MEMORY;
	memset(bits, 0, mask_bytes(c));
	bool together = c->places[place].config_count > CONFIGS_APART && !c->walks_are_large;
	if (e == ERR_OK && together)
		e = walk_below(&w, 0, place);
	c->walks_are_large = c->walks_are_large || (together && e == ERR_TOO_LONG);
	for (u32 i = 0; e == ERR_OK && !together && i < c->places[place].config_count; i++)
		e = add_config(&w, c->configs[c->places[place].configs_at + i]);
	free(w.places);
	return e;
}

/* Adds the long tokens that may come. */
static enum err add_long(struct grammar_cache *c, u32 place, u32 *bits)
{
	struct walk w = {.c = c, .bits = bits, .longer_than = TOKEN_SHORT};
	w.places = malloc(((size_t)c->vocab->token_bytes_max + 1) * sizeof(u32));
	enum err e = w.places != NULL ? walk_below(&w, 0, place) : ERR_NO_MEMORY;
	free(w.places);
	return e;
}

static bool copy_known(const struct grammar_cache *c, u32 place, u32 *bits)
{
	if (c->places[place].mask == GRAMMAR_NONE)
		return false;
	const struct local_mask *known = &c->masks[c->places[place].mask];
	if (known->bits != NULL) {
		memcpy(bits, known->bits, mask_bytes(c));
	} else {
		memset(bits, 0, mask_bytes(c));
		add_local(known, bits, 0);
	}
	return true;
}

/* It is a cache only: where memory is short nothing is kept. */
static void keep_mask(struct grammar_cache *c, u32 place, const u32 *bits)
{
	if (!cache_grow(&c->masks, c->mask_count, &c->mask_capacity, sizeof(*c->masks)))
		return;
	struct local_mask kept = {0};
	if (keep_bits(c, &kept, bits) != ERR_OK)
		return;
	c->places[place].mask = c->mask_count;
	c->masks[c->mask_count++] = kept;
	c->mask_bytes += local_bytes(c, &kept) + sizeof(kept);
}

static enum err write_whole(struct grammar_cache *c, u32 place, u32 *bits)
{
	if (copy_known(c, place, bits))
		return ERR_OK;
	enum err e = make_mask(c, place, bits);
	if (e == ERR_OK)
		keep_mask(c, place, bits);
	return e;
}

enum err mask_write(struct grammar_cache *c, u32 place, u32 *bits)
{
	u32 far;
	enum err e = cache_alias(c, place, ALIAS_ANY, &place);
	if (e != ERR_OK || copy_known(c, place, bits))
		return e;
	if (c->mask_bytes > MASK_BYTES_MAX)
		cache_drop_masks(c);
	e = cache_alias(c, place, ALIAS_SHORT, &far);
	if (e != ERR_OK || far == place)
		return e == ERR_OK ? write_whole(c, place, bits) : e;
	/* Near enough to the end of a repetition that it cuts off some long tokens, too far for short ones. */
	e = write_whole(c, far, bits);
	for (size_t i = 0; e == ERR_OK && i < grammar_mask_words(c->vocab->size); i++)
		bits[i] &= c->vocab->short_bits[i];
	if (e == ERR_OK)
		e = add_long(c, place, bits);
	if (e == ERR_OK)
		keep_mask(c, place, bits);
	return e;
}
