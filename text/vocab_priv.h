/* The vocabulary: token texts by id, ids by text, and the merges of BPE. Filled once while loading, then constant. */
#ifndef TERCET_TEXT_VOCAB_PRIV_H
#define TERCET_TEXT_VOCAB_PRIV_H

#include "common/buf.h"
#include "common/err.h"
#include "common/types.h"

#define TOKEN_NONE UINT32_MAX

enum token_flag {
	TOKEN_IN_MODEL = 1u << 0, /* the model may produce it; others come from added tokens only */
	TOKEN_ADDED = 1u << 1,
	TOKEN_SPECIAL = 1u << 2,
};

/* `text` is NUL-terminated and borrowed from the vocabulary's pool; NULL where no token has the id. */
struct token {
	const char *text;
	u32 bytes;
	u8 flags;
};

/* Text -> id, open addressing over ids of a token array. */
struct strtab_slot {
	u32 hash;
	u32 id; /* TOKEN_NONE: empty */
};
struct strtab {
	struct strtab_slot *slots;
	u32 mask;
};

/* Room for `count` tokens. ERR_NO_MEMORY. */
MUST_CHECK enum err strtab_init(struct strtab *s, u32 count);
void strtab_fini(struct strtab *s);
/* Inserts tokens[id]; a text that is there already keeps its first id. */
void strtab_put(struct strtab *s, const struct token *tokens, u32 id);
/* TOKEN_NONE when absent. */
u32 strtab_find(const struct strtab *s, const struct token *tokens, const char *text, size_t bytes);
/* The same in steps, for looking up many texts while memory answers: hash, fetch the slot, fetch what it names, find. */
u32 strtab_hash(const char *text, size_t bytes);
static inline void strtab_fetch_slot(const struct strtab *s, u32 hash)
{
	__builtin_prefetch(&s->slots[hash & s->mask]);
}
static inline void strtab_fetch_token(const struct strtab *s, const struct token *tokens, u32 hash)
{
	u32 id = s->slots[hash & s->mask].id;
	if (id != TOKEN_NONE)
		__builtin_prefetch(&tokens[id]);
}
u32 strtab_find_hashed(const struct strtab *s, const struct token *tokens, u32 hash, const char *text, size_t bytes);

/* (left, right) -> (rank, merged id). */
struct merge_slot {
	u64 key; /* UINT64_MAX: empty */
	u32 rank;
	u32 id;
};
struct merges {
	struct merge_slot *slots;
	u32 shift; /* 64 - log2(slots) */
	u32 mask;
	u32 count;
};
MUST_CHECK enum err merges_init(struct merges *m, u32 count);
void merges_fini(struct merges *m);
/* A pair that is there already gets the new rank, as a map filled in file order would. */
void merges_put(struct merges *m, u32 left, u32 right, u32 rank, u32 id);

static inline void merges_fetch(const struct merges *m, u32 left, u32 right)
{
	u64 key = (u64)left << 32 | right;
	__builtin_prefetch(&m->slots[(u32)(key * 0x9e3779b97f4a7c15u >> m->shift) & m->mask], 1);
}

/* NULL when the pair does not merge. */
static inline const struct merge_slot *merges_find(const struct merges *m, u32 left, u32 right)
{
	u64 key = (u64)left << 32 | right;
	for (u32 i = (u32)(key * 0x9e3779b97f4a7c15u >> m->shift);; i++) {
		const struct merge_slot *slot = &m->slots[i & m->mask];
		if (slot->key == key)
			return slot;
		if (slot->key == UINT64_MAX)
			return NULL;
	}
}

/* What an id is decoded from where that is not the token's own text: an added token that is looked for in normalised
 * text shows its normalised form. */
struct shown_token {
	u32 id;
	u32 bytes;
	char *text; /* owned */
};

struct vocab {
	struct token *tokens; /* [count] */
	struct shown_token *shown; /* few */
	u32 shown_count;
	u32 count;
	char *pool;
	size_t pool_bytes;
	size_t pool_used;
	struct strtab by_text;
};

/* Ids 0 .. count-1, texts of `pool_bytes` bytes together (without their NULs). */
MUST_CHECK enum err vocab_init(struct vocab *v, u32 count, size_t pool_bytes);
void vocab_fini(struct vocab *v);
/* Copies the text. An id keeps its first text; the flags of the same text add up. The id must be below `count`. */
void vocab_put(struct vocab *v, u32 id, const char *text, size_t bytes, u32 flags);
/* Copies. ERR_NO_MEMORY. */
MUST_CHECK enum err vocab_show(struct vocab *v, u32 id, const char *text, size_t bytes);
/* The token as it is decoded, with TOKEN_SPECIAL where such a text is skipped; text NULL where there is none. */
struct token vocab_shown(const struct vocab *v, u32 id);
static inline u32 vocab_find(const struct vocab *v, const char *text, size_t bytes)
{
	return strtab_find(&v->by_text, v->tokens, text, bytes);
}
/* The same among tokens that the model may produce. */
static inline u32 vocab_find_in_model(const struct vocab *v, const char *text, size_t bytes)
{
	u32 id = vocab_find(v, text, bytes);
	return id != TOKEN_NONE && (v->tokens[id].flags & TOKEN_IN_MODEL) ? id : TOKEN_NONE;
}

#endif
