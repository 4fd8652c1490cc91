/* Owns the reading of tekken.json, the vocabulary of Mistral's models as mistral-common has it, and its
 * writing as tokenizer.json. Runs once while a model without tokenizer.json loads. The file is checked
 * against its own numbers and never trusted: ids are special tokens first, then the ranks, as many as
 * config.default_vocab_size leaves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/base64_priv.h"
#include "text/convert_priv.h"

enum {
	BASE64_BYTES_MAX = 4096,
	SPECIAL_MAX = 1 << 16,
	RANKS_MAX = 1 << 24,
	FILLER_BYTES = 24,
	BYTE_VALUES = 256
};

struct tekken {
	struct convert_added *special; /* [special_count] */
	char (*fillers)[FILLER_BYTES]; /* names of those that the file does not list */
	u32 special_count;
	u32 ranks;
	const char *pattern;
	size_t pattern_bytes;
	const char *version;
	struct vocab vocab; /* special tokens and, as bytes, the others */
};

static enum err read_count(json_val config, const char *key, u64 max, u32 *out, struct err_msg *em)
{
	uint64_t n;
	if (!json_uint(json_get(config, key), &n) || n > max)
		return err_set(em, ERR_FORMAT, "config.%s must be a number up to %llu", key,
			       (unsigned long long)max);
	*out = (u32)n;
	return ERR_OK;
}

static enum err read_config(struct tekken *t, json_val root, struct err_msg *em)
{
	json_val config = json_get(root, "config");
	u32 size = 0;
	if (json_type(config) != JSON_OBJECT || json_type(json_get(root, "vocab")) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT,
			       "the file must hold an object \"config\" and an array \"vocab\"");
	if (!json_string(json_get(config, "pattern"), &t->pattern, &t->pattern_bytes) ||
	    t->pattern_bytes == 0)
		return err_set(em, ERR_FORMAT, "config.pattern must be a regular expression");
	t->version = json_cstr(json_get(config, "version"), "");
	enum err e = read_count(config, "default_vocab_size", RANKS_MAX, &size, em);
	if (e == ERR_OK)
		e = read_count(config, "default_num_special_tokens", SPECIAL_MAX, &t->special_count, em);
	if (e != ERR_OK)
		return e;
	size_t listed = json_count(json_get(root, "vocab"));
	if (size < t->special_count + BYTE_VALUES || size - t->special_count > listed)
		return err_set(em, ERR_FORMAT,
			       "config.default_vocab_size is %u: with %u special tokens and %zu others it "
			       "must be between %u and %zu",
			       size, t->special_count, listed, t->special_count + BYTE_VALUES,
			       t->special_count + listed);
	t->ranks = size - t->special_count;
	return ERR_OK;
}

/* ---- special tokens ---- */

/* Those of files that list none; such are of versions up to 7. */
static enum err take_old_special(struct tekken *t, struct err_msg *em)
{
	static const char *const names[] = {"<unk>",
					    "<s>",
					    "</s>",
					    "[INST]",
					    "[/INST]",
					    "[AVAILABLE_TOOLS]",
					    "[/AVAILABLE_TOOLS]",
					    "[TOOL_RESULTS]",
					    "[/TOOL_RESULTS]",
					    "[TOOL_CALLS]",
					    "[IMG]",
					    "<pad>",
					    "[IMG_BREAK]",
					    "[IMG_END]",
					    "[PREFIX]",
					    "[MIDDLE]",
					    "[SUFFIX]",
					    "[SYSTEM_PROMPT]",
					    "[/SYSTEM_PROMPT]",
					    "[TOOL_CONTENT]"};
	static const char *const versions[] = {"v1", "v2", "v3", "v7"};
	bool old = false;
	for (size_t i = 0; i < COUNT_OF(versions); i++)
		old = old || strcmp(t->version, versions[i]) == 0;
	if (!old)
		return err_set(em, ERR_FORMAT,
			       "\"special_tokens\" is missing, which files of version v7 and before may "
			       "leave out, not \"%.16s\"",
			       t->version);
	if (t->special_count < COUNT_OF(names))
		return err_set(em, ERR_FORMAT,
			       "config.default_num_special_tokens is %u; files without \"special_tokens\" "
			       "have %zu and more",
			       t->special_count, COUNT_OF(names));
	for (u32 i = 0; i < COUNT_OF(names); i++)
		t->special[i] = (struct convert_added){.text = names[i], .bytes = strlen(names[i])};
	return ERR_OK;
}

/* Ranks from 0 on, in any order, none twice. */
static enum err take_listed_special(struct tekken *t, json_val list, struct err_msg *em)
{
	size_t count = json_count(list);
	if (json_type(list) != JSON_ARRAY || count > t->special_count)
		return err_set(em, ERR_FORMAT, "\"special_tokens\" must be an array of at most %u tokens",
			       t->special_count);
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		uint64_t rank;
		const char *text;
		size_t bytes;
		if (!json_string(json_get(it.value, "token_str"), &text, &bytes) || bytes == 0 ||
		    memchr(text, '\0', bytes) != NULL || !json_uint(json_get(it.value, "rank"), &rank))
			return err_set(em, ERR_FORMAT,
				       "special_tokens: each needs \"rank\" and \"token_str\"");
		if (rank >= count || t->special[rank].text != NULL)
			return err_set(em, ERR_FORMAT, "special_tokens: the rank %llu of \"%.64s\" is %s",
				       (unsigned long long)rank, text,
				       rank >= count ? "out of range" : "there twice");
		t->special[rank] = (struct convert_added){.text = text, .bytes = bytes};
	}
	return ERR_OK;
}

static enum err read_special(struct tekken *t, json_val root, struct err_msg *em)
{
	json_val list = json_get(root, "special_tokens");
	t->special = calloc(t->special_count + 1, sizeof(*t->special));
	t->fillers = calloc(t->special_count + 1, sizeof(*t->fillers));
	if (t->special == NULL || t->fillers == NULL)
		return ERR_NO_MEMORY;
	enum err e = json_present(list) ? take_listed_special(t, list, em) : take_old_special(t, em);
	for (u32 id = 0; e == ERR_OK && id < t->special_count; id++) {
		struct convert_added *a = &t->special[id];
		if (a->text == NULL) {
			snprintf(t->fillers[id], FILLER_BYTES, "<SPECIAL_%u>", id);
			*a = (struct convert_added){.text = t->fillers[id], .bytes = strlen(t->fillers[id])};
		}
		a->id = id;
		a->special = true;
	}
	return e;
}

/* ---- the vocabulary ---- */

static enum err put_rank(struct tekken *t, json_val v, u32 rank, struct err_msg *em)
{
	char token[BASE64_BYTES_MAX];
	const char *text;
	size_t text_bytes, bytes;
	uint64_t stated;
	if (!json_uint(json_get(v, "rank"), &stated) || stated != rank)
		return err_set(em, ERR_FORMAT, "vocab[%u]: \"rank\" must be %u", rank, rank);
	if (!json_string(json_get(v, "token_bytes"), &text, &text_bytes) || text_bytes > BASE64_BYTES_MAX ||
	    !base64_decode(text, text_bytes, token, &bytes) || bytes == 0)
		return err_set(em, ERR_FORMAT, "vocab[%u]: \"token_bytes\" must be base64 of 1 to %d bytes",
			       rank, BASE64_BYTES_MAX / 4 * 3);
	if (rank < BYTE_VALUES && (bytes != 1 || (u8)token[0] != rank))
		return err_set(em, ERR_FORMAT,
			       "vocab[%u]: the first %d tokens must be the bytes in their order", rank,
			       BYTE_VALUES);
	u32 same = vocab_find(&t->vocab, token, bytes);
	if (same != TOKEN_NONE && same < t->special_count)
		return err_set(em, ERR_FORMAT, "vocab[%u] is the special token \"%s\"", rank,
			       t->vocab.tokens[same].text);
	if (same != TOKEN_NONE)
		return err_set(em, ERR_FORMAT, "vocab[%u] is the same token as vocab[%u]", rank,
			       same - t->special_count);
	vocab_put(&t->vocab, t->special_count + rank, token, bytes, TOKEN_IN_MODEL);
	return ERR_OK;
}

static enum err read_vocab(struct tekken *t, json_val list, struct err_msg *em)
{
	size_t text_bytes = 0, bytes;
	const char *text;
	u32 rank = 0;
	for (u32 id = 0; id < t->special_count; id++)
		text_bytes += t->special[id].bytes;
	for (struct json_iter it = json_iterate(list); rank < t->ranks && json_next(&it); rank++)
		text_bytes += json_string(json_get(it.value, "token_bytes"), &text, &bytes) ? bytes : 0;
	enum err e = vocab_init(&t->vocab, t->special_count + t->ranks, text_bytes);
	for (u32 id = 0; e == ERR_OK && id < t->special_count; id++) {
		const struct convert_added *a = &t->special[id];
		u32 same = vocab_find(&t->vocab, a->text, a->bytes);
		if (same != TOKEN_NONE)
			e = err_set(em, ERR_FORMAT,
				    "special_tokens: \"%.64s\" is the token of the ranks %u and %u", a->text,
				    same, id);
		else
			vocab_put(&t->vocab, id, a->text, a->bytes, 0);
	}
	rank = 0;
	for (struct json_iter it = json_iterate(list); e == ERR_OK && rank < t->ranks && json_next(&it);
	     rank++)
		e = put_rank(t, it.value, rank, em);
	return e;
}

/* ---- tokenizer.json ---- */

static enum err write_all(struct buf *out, const struct tekken *t, json_val config, struct err_msg *em)
{
	struct convert_around around = {.vocab = &t->vocab, .add_bos = true, .bos = "<s>", .eos = "</s>"};
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	convert_write_added(&w, t->special, t->special_count, config);
	convert_write_split(&w, t->pattern, t->pattern_bytes, false);
	json_key(&w, "decoder");
	convert_write_byte_level(&w, false, false);
	enum err e = convert_write_around(&w, &around, config, em);
	if (e == ERR_OK)
		e = convert_write_byte_model(&w, &t->vocab);
	json_object_end(&w);
	return e == ERR_OK && !buf_ok(out) ? ERR_NO_MEMORY : e;
}

enum err convert_tekken(struct buf *out, const char *data, size_t bytes, json_val config, struct err_msg *em)
{
	struct tekken t = {0};
	struct json_doc *doc = NULL;
	enum err e = json_parse(&doc, data, bytes, em);
	if (e != ERR_OK)
		return e;
	json_val root = json_root(doc);
	e = read_config(&t, root, em);
	if (e == ERR_OK)
		e = read_special(&t, root, em);
	if (e == ERR_OK)
		e = read_vocab(&t, json_get(root, "vocab"), em);
	if (e == ERR_OK)
		e = write_all(out, &t, config, em);
	vocab_fini(&t.vocab);
	free(t.special);
	free(t.fillers);
	json_free(&doc);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the vocabulary") : e;
}
