/* Owns what the converters to tokenizer.json share: merges, added tokens, what is put around a text. Runs once while
 * a model without tokenizer.json loads. */
#include "text/convert_priv.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_priv.h"

/* ---- merges ---- */

static enum err push_merge(struct convert_merges *m, struct convert_merge merge)
{
	if (m->count == m->room) {
		size_t room = m->room == 0 ? 4096 : m->room * 2;
		struct convert_merge *items = realloc(m->items, room * sizeof(*items));
		if (items == NULL)
			return ERR_NO_MEMORY;
		m->items = items;
		m->room = room;
	}
	m->items[m->count++] = merge;
	return ERR_OK;
}

static u32 count_chars(const char *text, size_t bytes, bool raw)
{
	u32 n = 0;
	for (size_t i = 0; i < bytes; i++)
		n += raw || ((u8)text[i] & 0xc0) != 0x80;
	return n;
}

/* Within one token: by the id of the left side, then of the right one. */
static int compare_splits(const void *a, const void *b)
{
	const struct convert_merge *x = a, *y = b;
	if (x->left != y->left)
		return x->left < y->left ? -1 : 1;
	return x->right < y->right ? -1 : x->right > y->right;
}

enum err convert_merges_add(struct convert_merges *m, const struct vocab *v, u32 id, float score, bool raw)
{
	const struct token *t = &v->tokens[id];
	size_t first = m->count;
	enum err e = ERR_OK;
	for (size_t at = 1; at < t->bytes && e == ERR_OK; at++) {
		if (!raw && ((u8)t->text[at] & 0xc0) == 0x80)
			continue;
		u32 left = vocab_find_in_model(v, t->text, at);
		u32 right = left == TOKEN_NONE ? TOKEN_NONE : vocab_find_in_model(v, t->text + at, t->bytes - at);
		if (right == TOKEN_NONE)
			continue;
		e = push_merge(m, (struct convert_merge){.left = left,
							 .right = right,
							 .merged = id,
							 .left_chars = count_chars(t->text, at, raw),
							 .right_chars = count_chars(t->text + at, t->bytes - at, raw),
							 .score = score});
	}
	if (m->count > first + 1)
		qsort(m->items + first, m->count - first, sizeof(*m->items), compare_splits);
	for (size_t i = first; i < m->count; i++)
		m->items[i].order = (u32)i;
	return e;
}

/* Higher scores first, then longer left sides, then longer right ones; the rest as it came. */
static int compare_merges(const void *a, const void *b)
{
	const struct convert_merge *x = a, *y = b;
	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	if (x->left_chars != y->left_chars)
		return x->left_chars > y->left_chars ? -1 : 1;
	if (x->right_chars != y->right_chars)
		return x->right_chars > y->right_chars ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

void convert_merges_sort(struct convert_merges *m)
{
	if (m->count > 0)
		qsort(m->items, m->count, sizeof(*m->items), compare_merges);
}

/* ---- added tokens ---- */

static bool flag(json_val v, const char *key, bool fallback)
{
	(void)json_bool(json_get(v, key), &fallback);
	return fallback;
}

static void write_flag(struct json_writer *w, const char *key, bool value)
{
	json_key(w, key);
	json_write_bool(w, value);
}

/* "13" -> 13; false for anything else. */
static bool read_id(const char *text, u32 *id)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);
	*id = (u32)n;
	return end != text && *end == '\0' && n < TOKEN_NONE;
}

static bool in_decoder(json_val decoder, u32 id)
{
	u32 listed;
	for (struct json_iter it = json_iterate(decoder); json_next(&it);)
		if (read_id(it.key, &listed) && listed == id)
			return true;
	return false;
}

void convert_write_added(struct json_writer *w, const struct convert_added *added, size_t count, json_val config)
{
	static const char *const flags[] = {"lstrip", "rstrip", "single_word", "normalized"};
	json_val decoder = json_get(config, "added_tokens_decoder");
	json_key(w, "added_tokens");
	json_array_begin(w);
	for (size_t i = 0; i < count; i++) {
		if (in_decoder(decoder, added[i].id))
			continue;
		json_object_begin(w);
		json_key(w, "id");
		json_write_uint(w, added[i].id);
		json_key(w, "content");
		json_write_string(w, added[i].text, added[i].bytes);
		write_flag(w, "special", added[i].special);
		write_flag(w, "normalized", added[i].normalized);
		if (added[i].rstrip)
			write_flag(w, "rstrip", true);
		if (added[i].lstrip)
			write_flag(w, "lstrip", true);
		if (added[i].single_word)
			write_flag(w, "single_word", true);
		json_object_end(w);
	}
	for (struct json_iter it = json_iterate(decoder); json_next(&it);) {
		u32 id;
		if (json_type(it.value) != JSON_OBJECT || !read_id(it.key, &id))
			continue;
		bool special = flag(it.value, "special", false);
		json_object_begin(w);
		json_key(w, "id");
		json_write_uint(w, id);
		json_key(w, "content");
		json_write_value(w, json_get(it.value, "content"));
		write_flag(w, "special", special);
		for (size_t i = 0; i < COUNT_OF(flags); i++)
			write_flag(w, flags[i], flag(it.value, flags[i], i == 3 && !special));
		json_object_end(w);
	}
	json_array_end(w);
}

void convert_write_vocab(struct json_writer *w, const struct convert_pieces *m, bool all)
{
	struct buf name = {0};

	json_key(w, "vocab");
	json_object_begin(w);
	for (u32 id = 0; id < m->count; id++) {
		const struct convert_piece *p = &m->pieces[id];
		if (!all && (p->type == PIECE_UNUSED || p->bytes == 0))
			continue;
		buf_clear(&name);
		buf_append(&name, p->text, p->bytes);
		json_key(w, buf_cstr(&name));
		json_write_uint(w, id);
	}
	json_object_end(w);
	w->out->failed = w->out->failed || name.failed;
	buf_fini(&name);
}

/* ---- around the text ---- */

static const char *token_name(json_val config, const char *key, const char *fallback)
{
	json_val v = json_get(config, key);
	return json_cstr(v, json_cstr(json_get(v, "content"), fallback));
}

static bool token_id(const struct vocab *v, json_val config, const char *name, u32 *id)
{
	for (struct json_iter it = json_iterate(json_get(config, "added_tokens_decoder")); json_next(&it);)
		if (json_string_equals(json_get(it.value, "content"), name) && read_id(it.key, id))
			return true;
	*id = vocab_find(v, name, strlen(name));
	return *id != TOKEN_NONE;
}

static void write_piece(struct json_writer *w, const char *kind, const char *id)
{
	json_object_begin(w);
	json_key(w, kind);
	json_object_begin(w);
	json_key(w, "id");
	json_write_cstr(w, id);
	json_object_end(w);
	json_object_end(w);
}

static void write_special(struct json_writer *w, const char *name, u32 id)
{
	json_key(w, name);
	json_object_begin(w);
	json_key(w, "ids");
	json_array_begin(w);
	json_write_uint(w, id);
	json_array_end(w);
	json_object_end(w);
}

enum err convert_write_around(struct json_writer *w, const struct convert_around *around, json_val config,
			      struct err_msg *em)
{
	bool bos = flag(config, "add_bos_token", around->add_bos), eos = flag(config, "add_eos_token", around->add_eos);
	const char *names[2] = {token_name(config, "bos_token", around->bos), token_name(config, "eos_token", around->eos)};
	u32 ids[2] = {0, 0};
	if ((bos && !token_id(around->vocab, config, names[0], &ids[0])) ||
	    (eos && !token_id(around->vocab, config, names[1], &ids[1])))
		return err_set(em, ERR_FORMAT, "the token \"%.64s\" that goes around every text is not in the vocabulary",
			       bos && !token_id(around->vocab, config, names[0], &ids[0]) ? names[0] : names[1]);
	convert_write_template(w, bos ? names[0] : NULL, ids[0], eos ? names[1] : NULL, ids[1]);
	return ERR_OK;
}

void convert_write_template(struct json_writer *w, const char *before, u32 before_id, const char *after, u32 after_id)
{
	json_key(w, "post_processor");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "TemplateProcessing");
	json_key(w, "single");
	json_array_begin(w);
	if (before != NULL)
		write_piece(w, "SpecialToken", before);
	write_piece(w, "Sequence", "A");
	if (after != NULL)
		write_piece(w, "SpecialToken", after);
	json_array_end(w);
	json_key(w, "special_tokens");
	json_object_begin(w);
	if (before != NULL)
		write_special(w, before, before_id);
	if (after != NULL)
		write_special(w, after, after_id);
	json_object_end(w);
	json_object_end(w);
}
