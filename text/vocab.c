/* Owns the tables of the vocabulary. Filled while a model loads (gateway, detokenizer, tercet command); constant and
 * shared by threads afterwards. */
#include "text/vocab_priv.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/assert.h"

/* At most half full: probes stay short. */
static u32 slots_for(u32 count)
{
	u32 slots = 16;
	while (slots < count * 2)
		slots *= 2;
	return slots;
}

enum err strtab_init(struct strtab *s, u32 count)
{
	ASSERT(count < 1u << 28);
	u32 slots = slots_for(count);
	*s = (struct strtab){.slots = malloc(slots * sizeof(*s->slots)), .mask = slots - 1};
	if (s->slots == NULL)
		return ERR_NO_MEMORY;
	memset(s->slots, 0xff, slots * sizeof(*s->slots));
	return ERR_OK;
}

void strtab_fini(struct strtab *s)
{
	free(s->slots);
	*s = (struct strtab){0};
}

static bool slot_matches(const struct strtab_slot *slot, u32 hash, const struct token *tokens, const char *text,
			 size_t bytes)
{
	const struct token *t = &tokens[slot->id];
	return slot->hash == hash && t->bytes == bytes && memcmp(t->text, text, bytes) == 0;
}

void strtab_put(struct strtab *s, const struct token *tokens, u32 id)
{
	const struct token *t = &tokens[id];
	u32 hash = (u32)XXH3_64bits(t->text, t->bytes);
	for (u32 i = hash;; i++) {
		struct strtab_slot *slot = &s->slots[i & s->mask];
		if (slot->id == TOKEN_NONE) {
			*slot = (struct strtab_slot){.hash = hash, .id = id};
			return;
		}
		if (slot_matches(slot, hash, tokens, t->text, t->bytes))
			return;
	}
}

u32 strtab_hash(const char *text, size_t bytes)
{
	return (u32)XXH3_64bits(text, bytes);
}

u32 strtab_find_hashed(const struct strtab *s, const struct token *tokens, u32 hash, const char *text, size_t bytes)
{
	for (u32 i = hash;; i++) {
		const struct strtab_slot *slot = &s->slots[i & s->mask];
		if (slot->id == TOKEN_NONE || slot_matches(slot, hash, tokens, text, bytes))
			return slot->id;
	}
}

u32 strtab_find(const struct strtab *s, const struct token *tokens, const char *text, size_t bytes)
{
	return strtab_find_hashed(s, tokens, strtab_hash(text, bytes), text, bytes);
}

enum err merges_init(struct merges *m, u32 count)
{
	ASSERT(count < 1u << 28);
	u32 slots = slots_for(count);
	*m = (struct merges){.slots = malloc(slots * sizeof(*m->slots)), .mask = slots - 1};
	if (m->slots == NULL)
		return ERR_NO_MEMORY;
	memset(m->slots, 0xff, slots * sizeof(*m->slots));
	m->shift = 64u - (u32)__builtin_ctz(slots);
	return ERR_OK;
}

void merges_fini(struct merges *m)
{
	free(m->slots);
	*m = (struct merges){0};
}

void merges_put(struct merges *m, u32 left, u32 right, u32 rank, u32 id)
{
	u64 key = (u64)left << 32 | right;
	for (u32 i = (u32)(key * 0x9e3779b97f4a7c15u >> m->shift);; i++) {
		struct merge_slot *slot = &m->slots[i & m->mask];
		if (slot->key != UINT64_MAX && slot->key != key)
			continue;
		m->count += slot->key == UINT64_MAX;
		*slot = (struct merge_slot){.key = key, .rank = rank, .id = id};
		return;
	}
}

enum err vocab_init(struct vocab *v, u32 count, size_t pool_bytes)
{
	*v = (struct vocab){.count = count, .pool_bytes = pool_bytes + count + 1};
	v->tokens = calloc(count + 1, sizeof(*v->tokens));
	v->pool = malloc(v->pool_bytes);
	if (v->tokens == NULL || v->pool == NULL || strtab_init(&v->by_text, count) != ERR_OK) {
		vocab_fini(v);
		return ERR_NO_MEMORY;
	}
	return ERR_OK;
}

void vocab_fini(struct vocab *v)
{
	for (u32 i = 0; i < v->shown_count; i++)
		free(v->shown[i].text);
	free(v->shown);
	strtab_fini(&v->by_text);
	free(v->tokens);
	free(v->pool);
	*v = (struct vocab){0};
}

void vocab_put(struct vocab *v, u32 id, const char *text, size_t bytes, u32 flags)
{
	ASSERT(id < v->count);
	struct token *t = &v->tokens[id];
	if (t->text != NULL && t->bytes == bytes && memcmp(t->text, text, bytes) == 0) {
		t->flags |= (u8)flags;
		return;
	}
	if (t->text != NULL)
		return; /* the id keeps its first text: slots of the table point at it */
	ASSERT(v->pool_used + bytes + 1 <= v->pool_bytes);
	char *copy = v->pool + v->pool_used;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	v->pool_used += bytes + 1;
	*t = (struct token){.text = copy, .bytes = (u32)bytes, .flags = (u8)flags};
	strtab_put(&v->by_text, v->tokens, id);
}

enum err vocab_show(struct vocab *v, u32 id, const char *text, size_t bytes)
{
	struct shown_token *shown = realloc(v->shown, (v->shown_count + 1) * sizeof(*shown));
	if (shown == NULL)
		return ERR_NO_MEMORY;
	v->shown = shown;
	char *copy = malloc(bytes + 1);
	if (copy == NULL)
		return ERR_NO_MEMORY;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	shown[v->shown_count++] = (struct shown_token){.id = id, .bytes = (u32)bytes, .text = copy};
	return ERR_OK;
}

struct token vocab_shown(const struct vocab *v, u32 id)
{
	for (u32 i = 0; i < v->shown_count; i++) {
		const struct shown_token *s = &v->shown[i];
		if (s->id != id)
			continue;
		u32 same = vocab_find(v, s->text, s->bytes);
		u8 special = same != TOKEN_NONE ? v->tokens[same].flags & TOKEN_SPECIAL : 0;
		return (struct token){.text = s->text, .bytes = s->bytes, .flags = TOKEN_ADDED | special};
	}
	return v->tokens[id];
}
