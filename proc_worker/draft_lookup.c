/* Owns an index over the tokens of every row: where each sequence of tokens_min tokens stood before. Runs in the worker in
 * every step, on all ranks. Never reads anything but the row's tokens and never changes them. */
#include "proc_worker/draft_lookup.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"

enum {
	PLACES_MAX = 64,      /* that are compared for one guess */
	BUCKETS_MAX = 1 << 16,
	PAUSE_BITS = 5,	      /* at most 2^5 - 1 steps without a guess, after some that were all wrong */
};

struct lookup_row {
	u64 incarnation;
	u32 indexed; /* sequences that end below this position are filed */
	u32 wrong;   /* guesses in a row of which nothing came true */
	u32 pause;   /* steps to pass over */
};

struct draft_lookup {
	struct draft_lookup_config config;
	u32 buckets; /* a power of two */
	struct lookup_row *rows;
	u32 *heads; /* [rows][buckets] 1 + the last position of the newest sequence; 0: none */
	u32 *older; /* [rows][max_model_len] by that position: the one filed before, as heads */
	void *memory;
	size_t memory_bytes;
};

static size_t lay_out(struct draft_lookup *l, char *base)
{
	size_t rows = l->config.rows_max, offset = 0;

	l->rows = region_carve(base, &offset, rows * sizeof(*l->rows));
	l->heads = region_carve(base, &offset, rows * l->buckets * sizeof(u32));
	l->older = region_carve(base, &offset, rows * l->config.max_model_len * sizeof(u32));
	return offset;
}

enum err draft_lookup_create(struct draft_lookup **out, const struct draft_lookup_config *config, struct err_msg *em)
{
	*out = NULL;
	ASSERT(config->tokens_min > 0 && config->tokens_min <= config->tokens_max);
	struct draft_lookup *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	l->config = *config;
	for (l->buckets = 1; l->buckets < config->max_model_len && l->buckets < BUCKETS_MAX;)
		l->buckets *= 2;
	l->memory_bytes = lay_out(l, NULL);
	void *memory = region_reserve(l->memory_bytes);
	if (!memory) {
		size_t bytes = l->memory_bytes;
		free(l);
		return region_refuse(em,
			       "cannot reserve %zu bytes to look tokens up; lower --max-num-seqs or --max-model-len", bytes);
	}
	l->memory = memory;
	lay_out(l, memory);
	*out = l;
	return ERR_OK;
}

void draft_lookup_destroy(struct draft_lookup **out)
{
	struct draft_lookup *l = *out;

	if (!l)
		return;
	region_release(l->memory, l->memory_bytes);
	free(l);
	*out = NULL;
}

/* Of the tokens_min tokens that end at `last`. */
static u32 *bucket(const struct draft_lookup *l, u32 row, const u32 *last)
{
	u64 hash = 0;

	for (u32 i = 0; i < l->config.tokens_min; i++)
		hash = (hash + last[-(ptrdiff_t)i] + 1) * 0x9e3779b97f4a7c15u;
	return l->heads + (size_t)row * l->buckets + (step_digest_mix(hash) & (l->buckets - 1));
}

/* All sequences that end in front of the newest token. */
static void file_tokens(struct draft_lookup *l, const struct batch_state *b, u32 row)
{
	struct lookup_row *r = &l->rows[row];
	const u32 *tokens = batch_state_tokens(b, row);
	u32 *older = l->older + (size_t)row * l->config.max_model_len;

	if (r->incarnation != b->rows[row].incarnation) {
		memset(l->heads + (size_t)row * l->buckets, 0, l->buckets * sizeof(u32));
		*r = (struct lookup_row){.incarnation = b->rows[row].incarnation, .indexed = l->config.tokens_min - 1};
	}
	for (; r->indexed + 1 < b->known[row]; r->indexed++) {
		u32 *head = bucket(l, row, tokens + r->indexed);
		older[r->indexed] = *head;
		*head = r->indexed + 1;
	}
}

/* How many tokens that end at `a` are those that end at `b`, where a < b. */
static u32 common_length(const u32 *tokens, u32 a, u32 b, u32 max)
{
	u32 n = 0;

	while (n < max && n <= a && tokens[a - n] == tokens[b - n])
		n++;
	return n;
}

/* The position behind the best place; 0: there is none. */
static u32 find_place(const struct draft_lookup *l, const u32 *tokens, u32 known, u32 row)
{
	const u32 *older = l->older + (size_t)row * l->config.max_model_len;
	u32 best = l->config.tokens_min - 1, place = 0, looked = 0;

	for (u32 next = *bucket(l, row, tokens + known - 1); next && looked < PLACES_MAX; looked++) {
		u32 n = common_length(tokens, next - 1, known - 1, l->config.tokens_max);
		if (n > best) {
			best = n;
			place = next;
		}
		if (best == l->config.tokens_max)
			break;
		next = older[next - 1];
	}
	return place;
}

u32 draft_lookup_find(struct draft_lookup *l, const struct batch_state *b, u32 row, u32 max, u32 *out)
{
	const u32 *tokens = batch_state_tokens(b, row);
	u32 known = b->known[row];

	file_tokens(l, b, row);
	struct lookup_row *r = &l->rows[row];
	if (r->pause) {
		r->pause--;
		return 0;
	}
	if (known <= l->config.tokens_min)
		return 0;
	u32 place = find_place(l, tokens, known, row);
	if (place == 0)
		return 0;
	/* What repeats itself goes on behind the newest token with what was guessed before. */
	for (u32 i = 0; i < max; i++)
		out[i] = place + i < known ? tokens[place + i] : out[place + i - known];
	return max;
}

void draft_lookup_tell(struct draft_lookup *l, u32 row, u32 accepted)
{
	struct lookup_row *r = &l->rows[row];

	r->wrong = accepted ? 0 : r->wrong + 1;
	/* 0, 1, 3, 7, ... steps */
	r->pause = r->wrong == 0 ? 0 : r->wrong <= PAUSE_BITS ? (1u << (r->wrong - 1)) - 1 : (1u << PAUSE_BITS) - 1;
}
