/* Owns Unigram models: their reading from tokenizer.json and the search for the best cut of a piece (Viterbi; Kudo
 * 2018, "Subword Regularization", section 3.2). Runs where text is encoded. Allocates only when tokens overlap over a
 * longer stretch than any before it in the same scratch. */
#include "text/unigram_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/piece_cache_priv.h"
#include "text/unicode_priv.h"

/* How much worse than the worst token a character is that is no token. */
#define UNK_PENALTY 10.0
#define UNREACHED   UINT32_MAX

/* ---- the search ---- */

/* Tokens of one piece in the order of the text. Neighbouring unknown characters become one. */
struct emitter {
	const struct unigram *unigram;
	const char *piece;
	struct u32_vec *ids;
	size_t unk_from; /* the unknown characters waiting: [unk_from, unk_to) */
	size_t unk_to;
};

static u32 find_token(const struct unigram *u, const char *text, size_t bytes)
{
	u32 node = 0, token = TOKEN_NONE;
	for (size_t i = 0; i < bytes; i++) {
		const struct merge_slot *m = merges_find(&u->trie, node, (u8)text[i]);
		if (m == NULL)
			return TOKEN_NONE;
		node = m->id;
		token = m->rank;
	}
	return token;
}

static void emit_unknown(struct emitter *e)
{
	const struct unigram *u = e->unigram;
	const char *text = e->piece + e->unk_from;
	size_t bytes = e->unk_to - e->unk_from;
	e->unk_from = e->unk_to = 0;
	if (bytes == 0)
		return;
	u32 id = find_token(u, text, bytes); /* several unknown characters may spell a token */
	bool fall_back = id == TOKEN_NONE && u->byte_fallback;
	for (size_t i = 0; fall_back && i < bytes; i++)
		fall_back = u->byte_ids[(u8)text[i]] != TOKEN_NONE;
	for (size_t i = 0; fall_back && i < bytes; i++)
		u32_vec_push(e->ids, u->byte_ids[(u8)text[i]]);
	if (!fall_back)
		u32_vec_push(e->ids, id != TOKEN_NONE ? id : u->unk_id);
}

static void emit_token(struct emitter *e, u32 id, size_t from, size_t to)
{
	if (id == e->unigram->unk_id) {
		if (e->unk_to == e->unk_from)
			e->unk_from = from;
		e->unk_to = to;
		return;
	}
	emit_unknown(e);
	u32_vec_push(e->ids, id);
}

/* What is searched at once: from `base` up to a position that no token crosses. Everything before it is settled. */
struct window {
	struct best_path *paths; /* [room], by offset from base */
	size_t room;
	size_t base;
	size_t reach;            /* the furthest end of a token so far */
};

static enum err window_reserve(struct window *w, struct text_scratch *s, size_t offset)
{
	if (offset < w->room)
		return ERR_OK;
	size_t room = w->room < 128 ? 128 : w->room;
	while (room <= offset)
		room *= 2;
	struct best_path *paths = realloc(s->paths, room * sizeof(*paths));
	if (paths == NULL)
		return ERR_NO_MEMORY;
	for (size_t i = w->room; i < room; i++)
		paths[i].from = UNREACHED;
	s->paths = w->paths = paths;
	s->paths_max = w->room = room;
	return ERR_OK;
}

static enum err offer(struct window *w, struct text_scratch *s, size_t from, size_t to, double score, u32 id)
{
	enum err e = window_reserve(w, s, to - w->base);
	if (e != ERR_OK)
		return e;
	struct best_path *p = &w->paths[to - w->base];
	if (p->from != UNREACHED && score <= p->score)
		return ERR_OK;
	if (id == TOKEN_NONE) /* an unknown character is the best way, and there is no unknown token */
		return ERR_NOT_FOUND;
	*p = (struct best_path){.score = score, .from = (u32)(from - w->base), .id = id};
	if (to > w->reach)
		w->reach = to;
	return ERR_OK;
}

/* Offers every token that begins at `at`. */
static enum err offer_tokens(const struct unigram *u, struct text_scratch *s, struct window *w, const char *piece,
			     size_t bytes, size_t at)
{
	double before = w->paths[at - w->base].score;
	size_t width = unicode_bytes((u8)piece[at]);
	bool single = false;
	u32 node = 0;
	for (size_t end = at; end < bytes;) {
		const struct merge_slot *m = merges_find(&u->trie, node, (u8)piece[end++]);
		if (m == NULL)
			break;
		node = m->id;
		if (m->rank == TOKEN_NONE)
			continue;
		enum err e = offer(w, s, at, end, u->scores[m->rank] + before, m->rank);
		if (e != ERR_OK)
			return e;
		single = single || end - at == width;
	}
	return single ? ERR_OK : offer(w, s, at, at + width, u->unk_score + before, u->unk_id);
}

/* Emits the best way to `at`, which no token crosses, and begins a new window there. */
static void settle(struct window *w, struct emitter *e, size_t at)
{
	struct best_path *paths = w->paths;
	u32 end = (u32)(at - w->base);
	for (u32 to = end; to > 0; to = paths[to].from)
		paths[paths[to].from].next = to;
	for (u32 from = 0; from < end; from = paths[from].next)
		emit_token(e, paths[paths[from].next].id, w->base + from, w->base + paths[from].next);
	paths[0].score = paths[end].score; /* sums go on as if there had been no cut: ties fall as they would */
	for (u32 i = 1; i <= end; i++)
		paths[i].from = UNREACHED;
	w->base = at;
}

static enum err search(const struct unigram *u, struct text_scratch *s, const char *piece, size_t bytes,
		       struct u32_vec *ids)
{
	struct emitter em = {.unigram = u, .piece = piece, .ids = ids};
	struct window w = {.paths = s->paths, .room = s->paths_max};
	enum err e = window_reserve(&w, s, 1);
	if (e == ERR_OK)
		w.paths[0].score = 0;
	for (size_t at = 0; e == ERR_OK && at < bytes; at += unicode_bytes((u8)piece[at])) {
		if (at > 0 && w.reach == at)
			settle(&w, &em, at);
		e = offer_tokens(u, s, &w, piece, bytes, at);
	}
	for (size_t i = 0; e != ERR_OK && i < w.room; i++)
		w.paths[i].from = UNREACHED; /* the next piece finds a clean window */
	if (e != ERR_OK)
		return e;
	settle(&w, &em, bytes);
	emit_unknown(&em);
	return ERR_OK;
}

enum err unigram_encode(const struct unigram *u, struct text_scratch *s, const char *piece, size_t bytes,
			struct u32_vec *ids)
{
	struct piece_place place;
	ASSERT(bytes > 0);
	if (piece_recall(s, piece, bytes, ids, &place))
		return ERR_OK;
	size_t before = ids->count;
	enum err e = search(u, s, piece, bytes, ids);
	if (e == ERR_OK && ids->failed)
		e = ERR_NO_MEMORY;
	if (e == ERR_OK)
		piece_remember(&place, piece, bytes, ids->data + before, ids->count - before);
	return e;
}

/* ---- loading ---- */

static int compare_texts(const void *a, const void *b)
{
	const struct token *x = *(const struct token *const *)a, *y = *(const struct token *const *)b;
	int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
	return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static size_t common_prefix(const struct token *a, const struct token *b)
{
	size_t n = 0;
	while (n < a->bytes && n < b->bytes && a->text[n] == b->text[n])
		n++;
	return n;
}

/* Nodes that the tokens need besides the root: what each adds to the one before it in order. */
static u32 count_nodes(const struct token **sorted, u32 count)
{
	size_t nodes = 0;
	for (u32 i = 0; i < count; i++)
		nodes += sorted[i]->bytes - (i > 0 ? common_prefix(sorted[i - 1], sorted[i]) : 0);
	return nodes < 1u << 27 ? (u32)nodes : UINT32_MAX;
}

/* Of two equal tokens the later one counts. */
static void trie_put(struct merges *trie, u32 *nodes, const struct token *t, u32 id)
{
	u32 node = 0;
	for (u32 i = 0; i < t->bytes; i++) {
		const struct merge_slot *m = merges_find(trie, node, (u8)t->text[i]);
		u32 child = m != NULL ? m->id : ++*nodes;
		bool last = i + 1 == t->bytes;
		if (m == NULL || last)
			merges_put(trie, node, (u8)t->text[i], last ? id : TOKEN_NONE, child);
		node = child;
	}
}

static enum err build_trie(struct unigram *u)
{
	const struct vocab *v = u->vocab;
	const struct token **sorted = calloc(v->count + 1, sizeof(*sorted));
	if (sorted == NULL)
		return ERR_NO_MEMORY;
	u32 count = 0, nodes = 0;
	for (u32 id = 0; id < v->count; id++)
		if (v->tokens[id].flags & TOKEN_IN_MODEL)
			sorted[count++] = &v->tokens[id];
	qsort(sorted, count, sizeof(*sorted), compare_texts);
	u32 needed = count_nodes(sorted, count);
	free(sorted);
	if (needed == UINT32_MAX || merges_init(&u->trie, needed + 1) != ERR_OK)
		return ERR_NO_MEMORY;
	for (u32 id = 0; id < v->count; id++)
		if (v->tokens[id].flags & TOKEN_IN_MODEL)
			trie_put(&u->trie, &nodes, &v->tokens[id], id);
	return ERR_OK;
}

static enum err load_scores(struct unigram *u, json_val vocab, struct err_msg *em)
{
	double worst = INFINITY;
	u32 id = 0;
	u->scores = calloc(u->vocab->count + 1, sizeof(*u->scores));
	if (u->scores == NULL)
		return ERR_NO_MEMORY;
	for (struct json_iter it = json_iterate(vocab); json_next(&it); id++) {
		if (!json_double(json_at(it.value, 1), &u->scores[id]))
			return err_set(em, ERR_FORMAT, "model.vocab[%u]: the score must be a number", id);
		worst = u->scores[id] < worst ? u->scores[id] : worst;
	}
	u->unk_score = worst - UNK_PENALTY;
	return ERR_OK;
}

static enum err load_unknown(struct unigram *u, json_val model, struct err_msg *em)
{
	json_val v = json_get(model, "unk_id");
	size_t count = json_count(json_get(model, "vocab"));
	uint64_t id;
	u->unk_id = TOKEN_NONE;
	if (!json_present(v))
		return ERR_OK;
	if (!json_uint(v, &id) || id >= count)
		return err_set(em, ERR_FORMAT, "model.unk_id must be an index of model.vocab, which has %zu tokens", count);
	u->unk_id = (u32)id;
	return ERR_OK;
}

enum err unigram_load(struct unigram *u, const struct vocab *vocab, json_val model, struct err_msg *em)
{
	*u = (struct unigram){.vocab = vocab};
	(void)json_bool(json_get(model, "byte_fallback"), &u->byte_fallback);
	enum err e = load_unknown(u, model, em);
	if (e == ERR_OK)
		e = load_scores(u, json_get(model, "vocab"), em);
	if (e == ERR_OK)
		e = build_trie(u);
	for (u32 i = 0; e == ERR_OK && i < 256; i++) {
		char text[8];
		snprintf(text, sizeof(text), "<0x%02X>", i);
		u->byte_ids[i] = find_token(u, text, 6);
	}
	if (e != ERR_OK)
		unigram_fini(u);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the model") : e;
}

void unigram_fini(struct unigram *u)
{
	merges_fini(&u->trie);
	free(u->scores);
	*u = (struct unigram){0};
}
