/* Owns the reading of a BPE model from tokenizer.json. Runs while a model loads (gateway, detokenizer, tercet
 * command); never afterwards. */
#include "text/bpe_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode_priv.h"

/* The two sides of a merge, "a b" or ["a", "b"]. */
struct merge_text {
	const char *left;
	const char *right;
	size_t left_bytes;
	size_t right_bytes;
};

static bool read_merge(json_val v, struct merge_text *m)
{
	if (json_type(v) == JSON_ARRAY)
		return json_count(v) == 2 && json_string(json_at(v, 0), &m->left, &m->left_bytes) &&
		       json_string(json_at(v, 1), &m->right, &m->right_bytes);
	size_t bytes;
	if (!json_string(v, &m->left, &bytes))
		return false;
	const char *space = memchr(m->left, ' ', bytes);
	if (space == NULL)
		return false;
	m->left_bytes = (size_t)(space - m->left);
	m->right = space + 1;
	m->right_bytes = bytes - m->left_bytes - 1;
	return memchr(m->right, ' ', m->right_bytes) == NULL;
}

/* U+2581 behind another character? */
static bool has_metaspace_inside(const char *text, size_t bytes)
{
	bool other = false;
	for (size_t at = 0; at < bytes;) {
		bool metaspace = unicode_next(text, &at) == 0x2581;
		if (metaspace && other)
			return true;
		other = other || !metaspace;
	}
	return false;
}

/* Merges are looked up in groups: with hundreds of thousands of them, waiting for memory one after the other is most
 * of the time that loading a tokenizer takes. */
enum { GROUP_MERGES = 16, SIDES = 3 };

/* The left, the right and the merged token of one merge. */
struct merge_lookup {
	const char *text[SIDES];
	size_t bytes[SIDES];
	u32 hash[SIDES];
	u32 id[SIDES];
};
struct merge_group {
	struct merge_lookup items[GROUP_MERGES];
	size_t joined_at[GROUP_MERGES]; /* in `joined`, which may move while it grows */
	u32 count;
	u32 first_rank;
	struct buf joined;
};

static enum err fail_merge(const struct merge_lookup *m, u32 rank, struct err_msg *em)
{
	static const char *const names[SIDES] = {"its left side", "its right side", "the merged token"};
	u32 missing = 0;
	while (m->id[missing] != TOKEN_NONE)
		missing++;
	return err_set(em, ERR_FORMAT, "merge %u (\"%.*s\" + \"%.*s\"): %s is not in the vocabulary", rank,
		       (int)(m->bytes[0] < 64 ? m->bytes[0] : 64), m->text[0],
		       (int)(m->bytes[1] < 64 ? m->bytes[1] : 64), m->text[1], names[missing]);
}

static void add_to_group(const struct bpe *b, struct merge_group *g, const struct merge_text *m)
{
	struct merge_lookup *l = &g->items[g->count];
	size_t skip = strlen(b->prefix);
	if (m->right_bytes < skip)
		skip = m->right_bytes;
	l->text[0] = m->left;
	l->bytes[0] = m->left_bytes;
	l->text[1] = m->right;
	l->bytes[1] = m->right_bytes;
	g->joined_at[g->count++] = g->joined.bytes;
	buf_append(&g->joined, m->left, m->left_bytes);
	buf_append(&g->joined, m->right + skip, m->right_bytes - skip);
	l->bytes[2] = m->left_bytes + m->right_bytes - skip;
}

static u32 find_in_model(const struct vocab *v, const struct merge_lookup *l, int side)
{
	u32 id = strtab_find_hashed(&v->by_text, v->tokens, l->hash[side], l->text[side], l->bytes[side]);
	return id != TOKEN_NONE && (v->tokens[id].flags & TOKEN_IN_MODEL) ? id : TOKEN_NONE;
}

/* Each loop asks for what the next one reads. */
static void look_up_group(const struct bpe *b, struct merge_group *g)
{
	const struct vocab *v = b->vocab;
	for (u32 i = 0; i < g->count; i++) {
		struct merge_lookup *l = &g->items[i];
		l->text[2] = buf_cstr(&g->joined) + g->joined_at[i];
		for (int side = 0; side < SIDES; side++) {
			l->hash[side] = strtab_hash(l->text[side], l->bytes[side]);
			strtab_fetch_slot(&v->by_text, l->hash[side]);
		}
	}
	for (u32 i = 0; i < g->count; i++)
		for (int side = 0; side < SIDES; side++)
			strtab_fetch_token(&v->by_text, v->tokens, g->items[i].hash[side]);
	for (u32 i = 0; i < g->count; i++) {
		struct merge_lookup *l = &g->items[i];
		for (int side = 0; side < SIDES; side++)
			l->id[side] = find_in_model(v, l, side);
		merges_fetch(&b->merges, l->id[0], l->id[1]);
	}
}

static enum err put_group(struct bpe *b, struct merge_group *g, struct err_msg *em)
{
	if (!buf_ok(&g->joined))
		return ERR_NO_MEMORY;
	look_up_group(b, g);
	for (u32 i = 0; i < g->count; i++) {
		const struct merge_lookup *l = &g->items[i];
		u32 rank = g->first_rank + i;
		if (l->id[0] == TOKEN_NONE || l->id[1] == TOKEN_NONE || l->id[2] == TOKEN_NONE)
			return fail_merge(l, rank, em);
		if (b->cut_at_metaspace && has_metaspace_inside(l->text[2], l->bytes[2]))
			b->cut_at_metaspace = false;
		merges_put(&b->merges, l->id[0], l->id[1], rank, l->id[2]);
	}
	g->first_rank += g->count;
	g->count = 0;
	buf_clear(&g->joined);
	return ERR_OK;
}

static enum err load_merges(struct bpe *b, json_val merges, struct err_msg *em)
{
	if (json_type(merges) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "model.merges must be an array, got %s", json_type_name(merges));
	if (json_count(merges) >= 1u << 27)
		return err_set(em, ERR_FORMAT, "model.merges has %zu entries", json_count(merges));
	if (merges_init(&b->merges, (u32)json_count(merges)) != ERR_OK)
		return ERR_NO_MEMORY;
	struct merge_group g = {.count = 0};
	enum err e = ERR_OK;
	u32 number = 0;
	for (struct json_iter it = json_iterate(merges); e == ERR_OK && json_next(&it); number++) {
		struct merge_text m;
		if (!read_merge(it.value, &m)) {
			e = err_set(em, ERR_FORMAT, "model.merges[%u] must be \"a b\" or [\"a\", \"b\"]", number);
			break;
		}
		add_to_group(b, &g, &m);
		if (g.count == GROUP_MERGES)
			e = put_group(b, &g, em);
	}
	if (e == ERR_OK)
		e = put_group(b, &g, em);
	buf_fini(&g.joined);
	return e;
}

/* ---- first symbols ---- */

static void load_raw_bytes(struct bpe *b)
{
	for (u32 i = 0; i < 256; i++) {
		char text[4];
		u32 c = byte_level_char((u8)i);
		size_t n = c < 0x80 ? 1 : 2;
		text[0] = (char)(n == 1 ? c : 0xc0 | c >> 6);
		text[1] = (char)(0x80 | (c & 0x3f));
		b->byte_ids[i] = vocab_find_in_model(b->vocab, text, n);
	}
}

static void load_byte_fallback(struct bpe *b)
{
	for (u32 i = 0; i < 256; i++) {
		char text[8];
		snprintf(text, sizeof(text), "<0x%02X>", i);
		b->byte_ids[i] = vocab_find_in_model(b->vocab, text, 6);
	}
}

static bool has_all_bytes(const struct bpe *b)
{
	for (u32 i = 0; i < 256; i++)
		if (b->byte_ids[i] == TOKEN_NONE)
			return false;
	return true;
}

static enum err load_char_ids(struct bpe *b)
{
	b->char_ids = malloc(65536 * sizeof(*b->char_ids));
	if (b->char_ids == NULL)
		return ERR_NO_MEMORY;
	memset(b->char_ids, 0xff, 65536 * sizeof(*b->char_ids));
	for (u32 id = 0; id < b->vocab->count; id++) {
		const struct token *t = &b->vocab->tokens[id];
		if (t->text == NULL || !(t->flags & TOKEN_IN_MODEL) || t->bytes == 0 || t->bytes > 3)
			continue;
		size_t at = 0;
		u32 c = unicode_next(t->text, &at);
		if (at == t->bytes && vocab_find(b->vocab, t->text, t->bytes) == id)
			b->char_ids[c] = id;
	}
	return ERR_OK;
}

/* ---- the model object ---- */

static enum err load_affix(json_val model, const char *key, char **out, struct err_msg *em)
{
	json_val v = json_get(model, key);
	const char *text = json_cstr(v, "");
	if (json_present(v) && json_type(v) != JSON_STRING)
		return err_set(em, ERR_FORMAT, "model.%s must be a string or null", key);
	if (strlen(text) > BPE_AFFIX_BYTES_MAX)
		return err_set(em, ERR_FORMAT, "model.%s is longer than %d bytes", key, BPE_AFFIX_BYTES_MAX);
	*out = strdup(text);
	return *out != NULL ? ERR_OK : ERR_NO_MEMORY;
}

static enum err load_flags(struct bpe *b, json_val model, struct err_msg *em)
{
	double dropout = 0;
	(void)json_double(json_get(model, "dropout"), &dropout);
	if (dropout > 0)
		return err_set(em, ERR_UNSUPPORTED, "model.dropout %g: encoding would be random; it must be null",
			       dropout);
	(void)json_bool(json_get(model, "byte_fallback"), &b->byte_fallback);
	(void)json_bool(json_get(model, "fuse_unk"), &b->fuse_unk);
	(void)json_bool(json_get(model, "ignore_merges"), &b->ignore_merges);
	b->unk_id = TOKEN_NONE;
	const char *unk;
	size_t bytes;
	if (json_string(json_get(model, "unk_token"), &unk, &bytes)) {
		b->unk_id = vocab_find_in_model(b->vocab, unk, bytes);
		if (b->unk_id == TOKEN_NONE)
			return err_set(em, ERR_FORMAT, "model.unk_token \"%.64s\" is not in the vocabulary", unk);
	}
	enum err e = load_affix(model, "continuing_subword_prefix", &b->prefix, em);
	return e != ERR_OK ? e : load_affix(model, "end_of_word_suffix", &b->suffix, em);
}

static enum err load_first_symbols(struct bpe *b)
{
	if (b->raw_bytes) {
		load_raw_bytes(b);
		return ERR_OK;
	}
	if (b->byte_fallback)
		load_byte_fallback(b);
	return b->prefix[0] == '\0' && b->suffix[0] == '\0' ? load_char_ids(b) : ERR_OK;
}

enum err bpe_load(struct bpe *b, const struct vocab *vocab, json_val model, bool raw_bytes, struct err_msg *em)
{
	*b = (struct bpe){.vocab = vocab, .raw_bytes = raw_bytes, .cut_at_metaspace = !raw_bytes};
	enum err e = load_flags(b, model, em);
	if (e == ERR_OK)
		e = load_merges(b, json_get(model, "merges"), em);
	if (e == ERR_OK)
		e = load_first_symbols(b);
	if (e != ERR_OK) {
		bpe_fini(b);
		return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the merges") : e;
	}
	/* Where characters may vanish, what lies on both sides of them meets; and a piece that might be one token is not
	 * cut. */
	bool complete = b->unk_id != TOKEN_NONE || (b->byte_fallback && has_all_bytes(b));
	b->cut_at_metaspace = b->cut_at_metaspace && complete && !b->ignore_merges && b->char_ids != NULL && b->char_ids[0x2581] != TOKEN_NONE;
	return ERR_OK;
}

void bpe_fini(struct bpe *b)
{
	merges_fini(&b->merges);
	free(b->char_ids);
	free(b->prefix);
	free(b->suffix);
	*b = (struct bpe){0};
}
