/* Owns the merging of one piece: symbols, lowest rank first, leftmost among equals. Runs where text is encoded.
 * Short pieces scan an array; long ones use a heap, so a megabyte without a space stays O(n log n).
 * Allocates only when a piece is longer than any before it in the same scratch. */
#include "text/bpe_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/piece_cache_priv.h"
#include "text/unicode_priv.h"

enum {
	SCAN_SYMBOLS_MAX = 48, /* up to here scanning beats the heap */
	AFFIX_ROOM = 2 * BPE_AFFIX_BYTES_MAX + 4,
};
#define RANK_NONE UINT32_MAX
#define END       UINT32_MAX

/* ---- symbols ---- */

static enum err reserve_symbols(struct text_scratch *s, size_t count)
{
	if (count <= s->symbols_max)
		return ERR_OK;
	size_t max = s->symbols_max < 256 ? 256 : s->symbols_max;
	while (max < count)
		max *= 2;
	struct symbol *symbols = realloc(s->symbols, max * sizeof(*symbols));
	if (symbols == NULL)
		return ERR_NO_MEMORY;
	s->symbols = symbols;
	s->symbols_max = (u32)max;
	return ERR_OK;
}

/* Each merge pushes up to two pairs, and there are fewer merges than symbols. */
static enum err reserve_heap(struct text_scratch *s, size_t symbols)
{
	size_t count = symbols * 3;
	if (count <= s->heap_max)
		return ERR_OK;
	u64 *heap = realloc(s->heap, count * sizeof(*heap));
	if (heap == NULL)
		return ERR_NO_MEMORY;
	s->heap = heap;
	s->heap_max = (u32)count;
	return ERR_OK;
}

static u32 bytes_to_symbols(const struct bpe *b, struct symbol *symbols, const char *piece, size_t bytes)
{
	u32 n = 0;
	for (size_t i = 0; i < bytes; i++) {
		u32 id = b->byte_ids[(u8)piece[i]];
		if (id != TOKEN_NONE)
			symbols[n++].id = id;
	}
	return n;
}

/* A character as the vocabulary spells it at its place in the piece. */
struct spelling {
	const char *text;
	size_t bytes;
	char room[AFFIX_ROOM];
};

static void spell(const struct bpe *b, struct spelling *s, const char *c, size_t bytes, bool first, bool last)
{
	size_t prefix = first ? 0 : strlen(b->prefix), suffix = last ? strlen(b->suffix) : 0;
	s->text = c;
	s->bytes = prefix + bytes + suffix;
	if (prefix + suffix == 0)
		return;
	ASSERT(s->bytes <= sizeof(s->room));
	memcpy(s->room, b->prefix, prefix);
	memcpy(s->room + prefix, c, bytes);
	memcpy(s->room + prefix + bytes, b->suffix, suffix);
	s->text = s->room;
}

/* Byte tokens for a character outside the vocabulary; false when one of them is missing. */
static bool fall_back_to_bytes(const struct bpe *b, struct symbol *symbols, u32 *n, const char *c, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (b->byte_ids[(u8)c[i]] == TOKEN_NONE)
			return false;
	for (size_t i = 0; i < bytes; i++)
		symbols[(*n)++].id = b->byte_ids[(u8)c[i]];
	return true;
}

static u32 chars_to_symbols(const struct bpe *b, struct symbol *symbols, const char *piece, size_t bytes)
{
	u32 n = 0;
	bool unk_pending = false;
	struct spelling s;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(piece, &at);
		spell(b, &s, piece + from, at - from, from == 0, at == bytes);
		u32 id = b->char_ids != NULL && c < 0x10000 ? b->char_ids[c]
							     : vocab_find_in_model(b->vocab, s.text, s.bytes);
		if (id != TOKEN_NONE) {
			if (unk_pending)
				symbols[n++].id = b->unk_id;
			unk_pending = false;
			symbols[n++].id = id;
		} else if (b->byte_fallback && fall_back_to_bytes(b, symbols, &n, s.text, s.bytes)) {
			continue;
		} else if (b->unk_id != TOKEN_NONE) {
			if (unk_pending && !b->fuse_unk)
				symbols[n++].id = b->unk_id;
			unk_pending = true;
		}
	}
	if (unk_pending)
		symbols[n++].id = b->unk_id;
	return n;
}

static void link_symbols(const struct bpe *b, struct symbol *symbols, u32 n)
{
	for (u32 i = 0; i < n; i++) {
		const struct merge_slot *m =
			i + 1 < n ? merges_find(&b->merges, symbols[i].id, symbols[i + 1].id) : NULL;
		symbols[i].prev = i == 0 ? END : i - 1;
		symbols[i].next = i + 1 < n ? i + 1 : END;
		symbols[i].rank = m != NULL ? m->rank : RANK_NONE;
		symbols[i].merged = m != NULL ? m->id : TOKEN_NONE;
	}
}

/* ---- merging ---- */

static void judge_pair(const struct bpe *b, struct symbol *symbols, u32 at)
{
	struct symbol *s = &symbols[at];
	const struct merge_slot *m =
		s->next != END ? merges_find(&b->merges, s->id, symbols[s->next].id) : NULL;
	s->rank = m != NULL ? m->rank : RANK_NONE;
	s->merged = m != NULL ? m->id : TOKEN_NONE;
}

/* Merges the pair at `at` with its right neighbour and judges the two pairs that changed. */
static void merge_at(const struct bpe *b, struct symbol *symbols, u32 at)
{
	struct symbol *s = &symbols[at];
	u32 right = s->next;
	s->id = s->merged;
	s->next = symbols[right].next;
	symbols[right].rank = RANK_NONE;
	if (s->next != END)
		symbols[s->next].prev = at;
	judge_pair(b, symbols, at);
	if (s->prev != END)
		judge_pair(b, symbols, s->prev);
}

static void merge_by_scan(const struct bpe *b, struct symbol *symbols)
{
	for (;;) {
		u32 best = END, best_rank = RANK_NONE;
		for (u32 i = 0; i != END; i = symbols[i].next)
			if (symbols[i].rank < best_rank) {
				best_rank = symbols[i].rank;
				best = i;
			}
		if (best == END)
			return;
		merge_at(b, symbols, best);
	}
}

static void heap_down(u64 *heap, u32 count, u32 i)
{
	u64 value = heap[i];
	for (;;) {
		u32 child = i * 2 + 1;
		if (child >= count)
			break;
		if (child + 1 < count && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= value)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = value;
}

static void heap_push(u64 *heap, u32 *count, u64 value)
{
	u32 i = (*count)++;
	while (i > 0 && heap[(i - 1) / 2] > value) {
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = value;
}

/* Heap entries are rank << 32 | position, so equal ranks come leftmost first. An entry is stale when the pair at its
 * position has another rank by now. */
static void merge_by_heap(const struct bpe *b, struct text_scratch *s, u32 n)
{
	struct symbol *symbols = s->symbols;
	u64 *heap = s->heap;
	u32 count = 0;
	for (u32 i = 0; i < n; i++)
		if (symbols[i].rank != RANK_NONE)
			heap[count++] = (u64)symbols[i].rank << 32 | i;
	for (u32 i = count / 2; i-- > 0;)
		heap_down(heap, count, i);
	while (count > 0) {
		u32 at = (u32)heap[0], rank = (u32)(heap[0] >> 32);
		heap[0] = heap[--count];
		if (count > 0)
			heap_down(heap, count, 0);
		if (symbols[at].rank != rank)
			continue;
		merge_at(b, symbols, at);
		u32 prev = symbols[at].prev;
		if (symbols[at].rank != RANK_NONE)
			heap_push(heap, &count, (u64)symbols[at].rank << 32 | at);
		if (prev != END && symbols[prev].rank != RANK_NONE)
			heap_push(heap, &count, (u64)symbols[prev].rank << 32 | prev);
	}
}

static enum err merge_piece(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes,
			    struct u32_vec *ids)
{
	/* A symbol a byte, and with byte fallback those of every affix too. */
	size_t affixes = b->prefix[0] != '\0' || b->suffix[0] != '\0' ? strlen(b->prefix) * bytes + strlen(b->suffix) : 0;
	if (reserve_symbols(s, bytes + affixes) != ERR_OK)
		return ERR_NO_MEMORY;
	u32 n = b->raw_bytes ? bytes_to_symbols(b, s->symbols, piece, bytes)
			     : chars_to_symbols(b, s->symbols, piece, bytes);
	if (n == 0)
		return ERR_OK;
	link_symbols(b, s->symbols, n);
	if (n <= SCAN_SYMBOLS_MAX) {
		merge_by_scan(b, s->symbols);
	} else {
		if (reserve_heap(s, n) != ERR_OK)
			return ERR_NO_MEMORY;
		merge_by_heap(b, s, n);
	}
	for (u32 i = 0; i != END; i = s->symbols[i].next)
		u32_vec_push(ids, s->symbols[i].id);
	return ids->failed ? ERR_NO_MEMORY : ERR_OK;
}

/* ---- pieces ---- */

/* The token that stands for these bytes, which the vocabulary spells with GPT-2's stand-ins. */
static u32 find_bytes(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes)
{
	buf_clear(&s->spelled);
	if (!buf_reserve(&s->spelled, bytes * 2))
		return TOKEN_NONE;
	char *to = s->spelled.data;
	for (size_t i = 0; i < bytes; i++) {
		u32 c = byte_level_char((u8)piece[i]);
		if (c >= 0x80)
			*to++ = (char)(0xc0 | c >> 6);
		*to++ = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
	}
	return vocab_find_in_model(b->vocab, s->spelled.data, (size_t)(to - s->spelled.data));
}

/* A piece that is not remembered. */
static enum err encode_afresh(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes,
			      struct u32_vec *ids)
{
	if (!b->ignore_merges)
		return merge_piece(b, s, piece, bytes, ids);
	u32 id = b->raw_bytes ? find_bytes(b, s, piece, bytes) : vocab_find_in_model(b->vocab, piece, bytes);
	if (s->spelled.failed)
		return ERR_NO_MEMORY;
	if (id == TOKEN_NONE)
		return merge_piece(b, s, piece, bytes, ids);
	u32_vec_push(ids, id);
	return ids->failed ? ERR_NO_MEMORY : ERR_OK;
}

static enum err encode_remembering(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes,
				   struct u32_vec *ids)
{
	struct piece_place place;
	if (piece_recall(s, piece, bytes, ids, &place))
		return ERR_OK;
	size_t before = ids->count;
	enum err e = encode_afresh(b, s, piece, bytes, ids);
	if (e == ERR_OK && ids->count > before)
		piece_remember(&place, piece, bytes, ids->data + before, ids->count - before);
	return e;
}

/* Offset of the next U+2581 that follows another character, from `from` on; `bytes` when there is none. */
static size_t metaspace_cut(const char *text, size_t bytes, size_t from)
{
	for (size_t at = from; at < bytes;) {
		const char *hit = memchr(text + at, 0xe2, bytes - at);
		if (hit == NULL)
			return bytes;
		size_t i = (size_t)(hit - text);
		bool metaspace = (u8)text[i + 1] == 0x96 && (u8)text[i + 2] == 0x81;
		bool run = i >= from + 3 && memcmp(text + i - 3, "\xe2\x96\x81", 3) == 0;
		if (metaspace && i > from && !run)
			return i;
		at = i + 3;
	}
	return bytes;
}

/* Parts between cuts are remembered one by one: a text without a pre-tokenizer is one long piece. */
static enum err encode_cut(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes,
			   struct u32_vec *ids)
{
	for (size_t at = 0; at < bytes;) {
		size_t cut = metaspace_cut(piece, bytes, at);
		enum err e = encode_remembering(b, s, piece + at, cut - at, ids);
		if (e != ERR_OK)
			return e;
		at = cut;
	}
	return ERR_OK;
}

enum err bpe_encode(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes, struct u32_vec *ids)
{
	ASSERT(bytes > 0);
	return b->cut_at_metaspace ? encode_cut(b, s, piece, bytes, ids) : encode_remembering(b, s, piece, bytes, ids);
}
