/* Owns the reading of vocab.json and merges.txt, byte-level BPE as the first tokenizers of transformers have
 * it, and their writing as tokenizer.json. Runs once while a model without tokenizer.json loads. Which tokens
 * are special, and what cuts a text into pieces, is in other files and in the tokenizer's class
 * (vocab_class.c). */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/convert_priv.h"
#include "text/vocab_class_priv.h"

/* Ids may have gaps, but not so many that a small file asks for much memory. */
enum { ID_GAP_MAX = 65536, TOKENS_MAX = 1 << 26 };

/* ---- vocab.json ---- */

static enum err measure(json_val root, u32 *ids, size_t *text_bytes, struct err_msg *em)
{
	uint64_t highest = 0, id;
	size_t count = json_count(root);
	*text_bytes = 0;
	if (json_type(root) != JSON_OBJECT || count == 0)
		return err_set(em, ERR_FORMAT, "vocab.json must hold an object of tokens and their ids");
	for (struct json_iter it = json_iterate(root); json_next(&it);) {
		if (!json_uint(it.value, &id))
			return err_set(em, ERR_FORMAT,
				       "vocab.json: the id of \"%.64s\" must be a number from 0 on", it.key);
		if (memchr(it.key, '\0', it.key_bytes) != NULL)
			return err_set(em, ERR_FORMAT,
				       "vocab.json: the token with the id %llu has a NUL in it",
				       (unsigned long long)id);
		highest = id > highest ? id : highest;
		*text_bytes += it.key_bytes;
	}
	if (highest > count * 2 + ID_GAP_MAX || highest >= TOKENS_MAX)
		return err_set(em, ERR_FORMAT, "vocab.json: the id %llu is out of range for %zu tokens",
			       (unsigned long long)highest, count);
	*ids = (u32)highest + 1;
	return ERR_OK;
}

static enum err read_vocab(struct vocab *v, json_val root, struct err_msg *em)
{
	u32 ids = 0;
	size_t text_bytes = 0;
	uint64_t id = 0;
	enum err e = measure(root, &ids, &text_bytes, em);
	if (e == ERR_OK)
		e = vocab_init(v, ids, text_bytes);
	for (struct json_iter it = json_iterate(root); e == ERR_OK && json_next(&it);) {
		(void)json_uint(it.value, &id);
		if (v->tokens[id].text != NULL)
			e = err_set(em, ERR_FORMAT,
				    "vocab.json: \"%.64s\" and \"%.64s\" have the same id, %llu",
				    v->tokens[id].text, it.key, (unsigned long long)id);
		else if (vocab_find(v, it.key, it.key_bytes) != TOKEN_NONE)
			e = err_set(em, ERR_FORMAT, "vocab.json: \"%.64s\" is there twice", it.key);
		else
			vocab_put(v, (u32)id, it.key, it.key_bytes, TOKEN_IN_MODEL);
	}
	return e;
}

static void write_vocab(struct json_writer *w, const struct vocab *v)
{
	json_key(w, "vocab");
	json_object_begin(w);
	for (u32 id = 0; id < v->count; id++) {
		if (v->tokens[id].text == NULL)
			continue;
		json_key(w, v->tokens[id].text);
		json_write_uint(w, id);
	}
	json_object_end(w);
}

/* ---- merges.txt ---- */

struct merge_line {
	const char *text;
	size_t bytes;
	u32 number;
};

static enum err fail_line(const struct merge_line *l, const char *problem, struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "merges.txt line %u (\"%.*s\"): %s", l->number,
		       (int)(l->bytes < 64 ? l->bytes : 64), l->text, problem);
}

/* "LEFT RIGHT", both of them and what they make in the vocabulary. */
static enum err write_merge(struct json_writer *w, const struct vocab *v, const struct merge_line *l,
			    struct buf *joined, struct err_msg *em)
{
	if (!utf8_valid(l->text, l->bytes))
		return err_set(em, ERR_FORMAT, "merges.txt line %u is no valid UTF-8", l->number);
	const char *space = memchr(l->text, ' ', l->bytes);
	size_t left = space != NULL ? (size_t)(space - l->text) : 0,
	       right = space != NULL ? l->bytes - left - 1 : 0;
	if (left == 0 || right == 0 || memchr(space + 1, ' ', right) != NULL)
		return fail_line(l, "must be two tokens with a space between", em);
	if (vocab_find(v, l->text, left) == TOKEN_NONE)
		return fail_line(l, "the left token is not in vocab.json", em);
	if (vocab_find(v, space + 1, right) == TOKEN_NONE)
		return fail_line(l, "the right token is not in vocab.json", em);
	buf_clear(joined);
	buf_append(joined, l->text, left);
	buf_append(joined, space + 1, right);
	if (vocab_find(v, buf_cstr(joined), joined->bytes) == TOKEN_NONE)
		return fail_line(l, "what the two make is not in vocab.json", em);
	json_write_string(w, l->text, l->bytes);
	return ERR_OK;
}

/* Lines end with LF or CRLF. Empty ones, and those that name a version, are none of the merges. */
static enum err write_merges(struct json_writer *w, const struct vocab *v, const char *data, size_t bytes,
			     struct err_msg *em)
{
	static const char version[] = "#version";
	const char *end = data + bytes;
	struct buf joined = {0};
	enum err e = ERR_OK;
	u32 number = 0;
	json_key(w, "merges");
	json_array_begin(w);
	for (const char *at = data; at < end && e == ERR_OK;) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		stop = stop != NULL ? stop : end;
		struct merge_line l = {.text = at, .bytes = (size_t)(stop - at), .number = ++number};
		at = stop < end ? stop + 1 : end;
		if (l.bytes > 0 && l.text[l.bytes - 1] == '\r')
			l.bytes--;
		bool names_version =
			l.bytes >= sizeof(version) - 1 && memcmp(l.text, version, sizeof(version) - 1) == 0;
		if (l.bytes > 0 && !names_version)
			e = write_merge(w, v, &l, &joined, em);
	}
	json_array_end(w);
	e = e == ERR_OK && joined.failed ? ERR_NO_MEMORY : e;
	buf_fini(&joined);
	return e;
}

/* ---- tokenizer.json ---- */

static void write_pieces(struct json_writer *w, const struct vocab_class *c, json_val config)
{
	static const char nfc[] = "{\"type\":\"NFC\"}";
	bool prefix = false;
	(void)json_bool(json_get(config, "add_prefix_space"), &prefix);
	json_key(w, "normalizer");
	json_write_raw(w, c->nfc ? nfc : "null", c->nfc ? sizeof(nfc) - 1 : 4);
	if (c->pattern != NULL) {
		convert_write_split(w, c->pattern, strlen(c->pattern), prefix);
	} else {
		json_key(w, "pre_tokenizer");
		convert_write_byte_level(w, prefix, true);
	}
	json_key(w, "decoder");
	convert_write_byte_level(w, false, true);
}

/* bos and eos as the configuration has it; RoBERTa's kind always has its own two around a text. */
static void write_around(struct json_writer *w, const struct vocab_class *c, const struct vocab_special *s,
			 json_val config)
{
	bool before = false, after = false;
	(void)json_bool(json_get(config, "add_bos_token"), &before);
	(void)json_bool(json_get(config, "add_eos_token"), &after);
	const struct convert_added *first = vocab_special_named(s, c->wraps ? "cls_token" : "bos_token");
	const struct convert_added *last = vocab_special_named(s, c->wraps ? "sep_token" : "eos_token");
	before = (before || c->wraps) && first != NULL;
	after = (after || c->wraps) && last != NULL;
	convert_write_template(w, before ? first->text : NULL, before ? first->id : 0,
			       after ? last->text : NULL, after ? last->id : 0);
}

static enum err write_all(struct buf *out, const struct vocab *v, const struct vocab_class *c,
			  const struct vocab_special *s, const struct convert_vocab_files *f,
			  struct err_msg *em)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	convert_write_added(&w, s->tokens, s->count, (json_val){NULL});
	write_pieces(&w, c, f->config);
	write_around(&w, c, s, f->config);
	json_key(&w, "model");
	json_object_begin(&w);
	json_key(&w, "type");
	json_write_cstr(&w, "BPE");
	write_vocab(&w, v);
	enum err e = write_merges(&w, v, f->merges, f->merges_bytes, em);
	json_object_end(&w);
	json_object_end(&w);
	return e == ERR_OK && !buf_ok(out) ? ERR_NO_MEMORY : e;
}

static enum err keep_name(char **out, const struct convert_added *token)
{
	*out = token != NULL ? strdup(token->text) : NULL;
	return token != NULL && *out == NULL ? ERR_NO_MEMORY : ERR_OK;
}

enum err convert_vocab_merges(struct buf *out, const struct convert_vocab_files *f,
			      struct convert_names *names, struct err_msg *em)
{
	const struct vocab_class *class = NULL;
	struct vocab_special special = {0};
	struct vocab v = {0};
	struct json_doc *doc = NULL;
	*names = (struct convert_names){0};
	enum err e = vocab_class_find(&class, f->config, f->model, em);
	if (e != ERR_OK)
		return e;
	e = json_parse(&doc, f->vocab, f->vocab_bytes, em);
	if (e != ERR_OK) {
		err_prefix(em, "vocab.json");
		return e;
	}
	e = read_vocab(&v, json_root(doc), em);
	if (e == ERR_OK)
		e = vocab_special_read(&special, class, &v, f, em);
	if (e == ERR_OK)
		e = write_all(out, &v, class, &special, f, em);
	if (e == ERR_OK)
		e = keep_name(&names->bos, vocab_special_named(&special, "bos_token"));
	if (e == ERR_OK)
		e = keep_name(&names->eos, vocab_special_named(&special, "eos_token"));
	vocab_special_fini(&special);
	vocab_fini(&v);
	json_free(&doc);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the vocabulary") : e;
}
