/* Owns places of single texts: which tokens came, which may come. Runs in workers. Never holds more than its place: what
 * grammars learn is in their caches. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/grammar_priv.h"

/* A text may take a start of EFFORT_OWED_MAX, and EFFORT_PER_TOKEN for each of its tokens: 0.4 s and 5 ms. */
enum { EFFORT_OWED_MAX = 400 * 1000 * 1000, EFFORT_PER_TOKEN = 5 * 1000 * 1000 };

static void link_state(struct grammar_state *s)
{
	s->prev = NULL;
	s->next = s->cache->states;
	if (s->next != NULL)
		s->next->prev = s;
	s->cache->states = s;
}

enum err grammar_state_create(struct grammar_state **out, struct grammar *g, struct grammar_vocab *v)
{
	*out = NULL;
	struct grammar_state *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return ERR_NO_MEMORY;
	enum err e = cache_acquire(&s->cache, g, v);
	if (e != ERR_OK) {
		free(s);
		return e;
	}
	s->place = s->cache->start;
	link_state(s);
	*out = s;
	return ERR_OK;
}

enum err grammar_state_copy(struct grammar_state **out, const struct grammar_state *from)
{
	struct grammar_state *s = malloc(sizeof(*s));
	*out = s;
	if (s == NULL)
		return ERR_NO_MEMORY;
	*s = *from;
	link_state(s);
	return ERR_OK;
}

void grammar_state_destroy(struct grammar_state **s)
{
	struct grammar_state *at = *s;
	*s = NULL;
	if (at == NULL)
		return;
	if (at->next != NULL)
		at->next->prev = at->prev;
	if (at->prev != NULL)
		at->prev->next = at->next;
	else
		at->cache->states = at->next;
	cache_release(at->cache);
	free(at);
}

static bool is_eos(const struct grammar_vocab *v, u32 token)
{
	for (u32 i = 0; i < v->eos_count; i++) {
		if (v->eos[i] == token)
			return true;
	}
	return false;
}

/* The place behind the token, from s->place. */
static enum err walk_token(const struct grammar_state *s, u32 token, u32 *place)
{
	const struct grammar_vocab *v = s->cache->vocab;
	*place = s->place;
	for (u32 i = v->first[token]; i < v->first[token + 1]; i++) {
		enum err e = cache_step(s->cache, *place, (u8)v->pool[i], place);
		if (e != ERR_OK)
			return e;
		if (*place == PLACE_DEAD)
			return ERR_INVALID;
	}
	return v->first[token] == v->first[token + 1] ? ERR_INVALID : ERR_OK;
}

/* A walk that finds the cache full may try again from an empty one: so what a state can do never depends on what others
 * did. */
static enum err make_room(struct grammar_state *s, enum err e)
{
	return e == ERR_TOO_LONG ? cache_flush(s->cache) : e;
}

/* What is owed grows by what walks took, and every token pays some of it. */
static void pay(struct grammar_state *s, u64 effort_before)
{
	s->debt += s->cache->effort - effort_before;
	s->debt -= s->debt < EFFORT_PER_TOKEN ? s->debt : EFFORT_PER_TOKEN;
}

enum err grammar_state_advance(struct grammar_state *s, u32 token)
{
	const struct grammar_vocab *v = s->cache->vocab;
	if (token >= v->size)
		return ERR_INVALID;
	if (is_eos(v, token)) {
		if (!grammar_state_may_end(s))
			return ERR_INVALID;
		s->ended = true;
		return ERR_OK;
	}
	if (s->ended)
		return ERR_INVALID;
	if (cache_is_large(s->cache)) {
		enum err e = cache_flush(s->cache);
		if (e != ERR_OK)
			return e;
	}
	u32 place;
	u64 before = s->cache->effort;
	enum err e = walk_token(s, token, &place);
	if (e == ERR_TOO_LONG) {
		e = make_room(s, e);
		if (e == ERR_OK)
			e = walk_token(s, token, &place);
	}
	if (e == ERR_OK) {
		s->place = place;
		pay(s, before);
	}
	return e;
}

enum err grammar_state_replay(struct grammar_state *s, const u32 *tokens, size_t count, size_t *failed)
{
	s->place = s->cache->start;
	s->ended = false;
	s->debt = 0;
	for (size_t i = 0; i < count; i++) {
		enum err e = grammar_state_advance(s, tokens[i]);
		if (e != ERR_OK) {
			if (failed != NULL)
				*failed = i;
			return e;
		}
	}
	return ERR_OK;
}

/* mask_write within what the state may still owe. */
static enum err write_mask(struct grammar_state *s, u32 *bits)
{
	struct grammar_cache *c = s->cache;
	u64 before = c->effort;
	c->effort_max = before + (s->debt < EFFORT_OWED_MAX ? EFFORT_OWED_MAX - s->debt : 0);
	enum err e = mask_write(c, s->place, bits);
	if (e == ERR_TOO_LONG) {
		e = make_room(s, e);
		if (e == ERR_OK)
			e = mask_write(c, s->place, bits);
	}
	c->effort_max = UINT64_MAX;
	s->debt += c->effort - before;
	return e;
}

enum err grammar_state_mask(struct grammar_state *s, u32 *bits)
{
	struct grammar_cache *c = s->cache;
	const struct grammar_vocab *v = c->vocab;
	enum err e = ERR_OK;
	if (s->ended)
		memset(bits, 0, grammar_mask_words(v->size) * sizeof(u32));
	else
		e = write_mask(s, bits);
	if (e != ERR_OK)
		return e;
	cache_tell_bytes(c);
	if (grammar_state_may_end(s)) {
		for (u32 i = 0; i < v->eos_count; i++)
			bits[v->eos[i] / 32] |= 1u << v->eos[i] % 32;
		return ERR_OK;
	}
	for (size_t i = 0; i < grammar_mask_words(v->size); i++) {
		if (bits[i] != 0)
			return ERR_OK;
	}
	return ERR_NOT_FOUND;
}

bool grammar_state_may_end(const struct grammar_state *s)
{
	return s->ended || s->cache->places[s->place].ends;
}

bool grammar_state_must_end(const struct grammar_state *s)
{
	return s->ended || s->cache->places[s->place].config_count == 0;
}
