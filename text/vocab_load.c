/* Owns the reading of vocabulary and added tokens from tokenizer.json. Runs once while a model loads. */
#include <string.h>

#include "text/tokenizer_priv.h"

/* Ids may have gaps, but not so many that a small file asks for much memory. */
enum { ID_GAP_MAX = 65536 };

struct extent {
	u32 ids;
	size_t bytes;
};

/* The vocabulary is {"token": id, ...}, or [["token", score], ...] where the index is the id. */
static enum err measure_vocab(json_val vocab, struct extent *x, uint64_t *highest, struct err_msg *em)
{
	bool listed = json_type(vocab) == JSON_ARRAY;
	uint64_t id = 0;
	const char *text;
	size_t bytes;
	for (struct json_iter it = json_iterate(vocab); json_next(&it); id += listed) {
		if (listed && !json_string(json_at(it.value, 0), &text, &bytes))
			return err_set(em, ERR_FORMAT, "model.vocab[%llu] must be [\"token\", score]", (unsigned long long)id);
		if (!listed && !json_uint(it.value, &id))
			return err_set(em, ERR_FORMAT, "model.vocab: the id of \"%.64s\" must be a number", it.key);
		*highest = id > *highest ? id : *highest;
		x->bytes += listed ? bytes : it.key_bytes;
	}
	return ERR_OK;
}

/* How many ids and bytes the vocabulary and the added tokens need. */
static enum err measure(json_val vocab, json_val added, struct extent *x, struct err_msg *em)
{
	uint64_t highest = 0, id;
	size_t entries = json_count(vocab) + json_count(added);
	enum err e = measure_vocab(vocab, x, &highest, em);
	if (e != ERR_OK)
		return e;
	for (struct json_iter it = json_iterate(added); json_next(&it);) {
		const char *text;
		size_t bytes;
		if (!json_string(json_get(it.value, "content"), &text, &bytes) ||
		    !json_uint(json_get(it.value, "id"), &id))
			return err_set(em, ERR_FORMAT, "added_tokens: each needs \"id\" and \"content\"");
		highest = id > highest ? id : highest;
		x->bytes += bytes;
	}
	if (highest > entries * 2 + ID_GAP_MAX || highest >= 1u << 28)
		return err_set(em, ERR_FORMAT, "token id %llu is out of range for %zu tokens",
			       (unsigned long long)highest, entries);
	x->ids = entries == 0 ? 0 : (u32)highest + 1;
	return ERR_OK;
}

static bool flag(json_val v, const char *key, bool fallback)
{
	(void)json_bool(json_get(v, key), &fallback);
	return fallback;
}

/* Into the set of the text as it comes, or, normalised as the text will be, into the other. */
static enum err add_to_set(struct tokenizer *t, json_val v, const char *text, size_t bytes, u32 id)
{
	u32 flags = (flag(v, "lstrip", false) ? ADDED_LSTRIP : 0u) | (flag(v, "rstrip", false) ? ADDED_RSTRIP : 0u) |
		    (flag(v, "single_word", false) ? ADDED_SINGLE_WORD : 0u);
	if (!flag(v, "normalized", !flag(v, "special", false)))
		return added_set_add(&t->added, text, bytes, id, flags);
	struct regex_scratch s;
	struct buf work[2] = {{0}, {0}};
	enum err e = regex_scratch_init(&s);
	if (e != ERR_OK)
		return e;
	struct norm_text normal = {.text = text, .bytes = bytes};
	e = normalizer_run(&t->normalizer, &s, work, &normal);
	if (e == ERR_OK && normal.bytes > 0)
		e = added_set_add(&t->added_normalized, normal.text, normal.bytes, id, flags);
	if (e == ERR_OK && (normal.bytes != bytes || memcmp(normal.text, text, bytes) != 0))
		e = vocab_show(&t->vocab, id, normal.text, normal.bytes);
	regex_scratch_fini(&s);
	buf_fini(&work[0]);
	buf_fini(&work[1]);
	return e;
}

static enum err load_added(struct tokenizer *t, json_val added, bool special, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(added); json_next(&it);) {
		const char *text = "";
		size_t bytes = 0;
		uint64_t file_id = 0;
		if (flag(it.value, "special", false) != special)
			continue;
		(void)json_string(json_get(it.value, "content"), &text, &bytes);
		(void)json_uint(json_get(it.value, "id"), &file_id);
		if (bytes == 0)
			continue;
		/* A token that the model has keeps the model's id. */
		u32 id = vocab_find(&t->vocab, text, bytes);
		if (id == TOKEN_NONE)
			id = (u32)file_id;
		vocab_put(&t->vocab, id, text, bytes, TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0u));
		enum err e = add_to_set(t, it.value, text, bytes, id);
		if (e != ERR_OK)
			return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the added tokens") : e;
	}
	return ERR_OK;
}

/* ---- the model's own tokens ---- */

enum err model_kind_read(enum model_kind *out, json_val model, struct err_msg *em)
{
	static const char *const names[] = {[MODEL_BPE] = "BPE",
					    [MODEL_UNIGRAM] = "Unigram",
					    [MODEL_WORDPIECE] = "WordPiece",
					    [MODEL_WORDLEVEL] = "WordLevel"};
	if (json_type(model) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "\"model\" must be an object, got %s", json_type_name(model));
	json_val vocab = json_get(model, "vocab");
	const char *guess = json_present(json_get(model, "merges"))                      ? "BPE"
			    : json_type(vocab) == JSON_ARRAY                             ? "Unigram"
			    : json_present(json_get(model, "continuing_subword_prefix")) ? "WordPiece"
											 : "WordLevel";
	const char *type = json_cstr(json_get(model, "type"), guess);
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		if (strcmp(type, names[i]) != 0)
			continue;
		enum json_type wanted = i == MODEL_UNIGRAM ? JSON_ARRAY : JSON_OBJECT;
		*out = (enum model_kind)i;
		return json_type(vocab) == wanted ? ERR_OK
						  : err_set(em, ERR_FORMAT, "model.vocab of %s must be an %s, got %s", type,
							    wanted == JSON_ARRAY ? "array" : "object", json_type_name(vocab));
	}
	return err_set(em, ERR_UNSUPPORTED,
		       "model type \"%.64s\" is not supported (supported: BPE, Unigram, WordPiece, WordLevel)", type);
}

static void put_model_tokens(struct vocab *v, json_val vocab)
{
	u32 index = 0;
	for (struct json_iter it = json_iterate(vocab); json_next(&it); index++) {
		uint64_t id = index;
		const char *text = it.key;
		size_t bytes = it.key_bytes;
		if (text == NULL)
			(void)json_string(json_at(it.value, 0), &text, &bytes);
		else
			(void)json_uint(it.value, &id);
		vocab_put(v, (u32)id, text, bytes, TOKEN_IN_MODEL);
	}
}

enum err vocab_load(struct tokenizer *t, json_val root, struct err_msg *em)
{
	json_val model = json_get(root, "model"), added = json_get(root, "added_tokens");
	json_val vocab = json_get(model, "vocab");
	struct extent x = {0};
	enum err e = measure(vocab, added, &x, em);
	if (e == ERR_OK && vocab_init(&t->vocab, x.ids, x.bytes + json_count(vocab) + json_count(added)) != ERR_OK)
		e = err_set(em, ERR_NO_MEMORY, "out of memory for %u tokens", x.ids);
	if (e != ERR_OK)
		return e;
	put_model_tokens(&t->vocab, vocab);
	/* Special tokens first: of two equal texts the special one wins. */
	e = load_added(t, added, true, em);
	if (e == ERR_OK)
		e = load_added(t, added, false, em);
	added_set_finish(&t->added);
	added_set_finish(&t->added_normalized);
	return e;
}
