/* Owns the making of a tokenizer from a model's files, and the scratch that encoding needs. Runs once per process that
 * handles text (gateway, detokenizer, tercet command); the result is constant and shared by threads. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/tokenizer_priv.h"

/* ---- tokenizer.json ---- */

static enum err load_model(struct tokenizer *t, json_val model, struct err_msg *em)
{
	switch (t->model) {
	case MODEL_BPE:
		return bpe_load(&t->bpe, &t->vocab, model, t->pretokenizer.raw_bytes, em);
	case MODEL_UNIGRAM:
		return unigram_load(&t->unigram, &t->vocab, model, em);
	case MODEL_WORDPIECE:
	case MODEL_WORDLEVEL:
		break;
	}
	return wordpiece_load(&t->wordpiece, &t->vocab, model, t->model == MODEL_WORDLEVEL, em);
}

static enum err load_parts(struct tokenizer *t, json_val root, struct err_msg *em)
{
	if (json_type(root) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "the file must hold an object, got %s", json_type_name(root));
	json_val model = json_get(root, "model");
	enum err e = model_kind_read(&t->model, model, em);
	if (e != ERR_OK)
		return e;
	/* Working on bytes needs a model that looks at nothing else. */
	bool byte_fallback = false;
	(void)json_bool(json_get(model, "byte_fallback"), &byte_fallback);
	bool bytes_allowed = t->model == MODEL_BPE && !byte_fallback && json_cstr(json_get(model, "continuing_subword_prefix"), "")[0] == '\0' &&
			     json_cstr(json_get(model, "end_of_word_suffix"), "")[0] == '\0' &&
			     json_type(json_get(model, "unk_token")) != JSON_STRING;
	e = normalizer_load(&t->normalizer, json_get(root, "normalizer"), em);
	if (e == ERR_OK)
		e = vocab_load(t, root, em);
	if (e == ERR_OK)
		e = pretokenizer_load(&t->pretokenizer, json_get(root, "pre_tokenizer"), bytes_allowed, em);
	if (e == ERR_OK)
		e = load_model(t, model, em);
	if (e == ERR_OK)
		e = post_processor_load(t, json_get(root, "post_processor"), em);
	if (e == ERR_OK)
		e = decoder_load(&t->decoder, json_get(root, "decoder"), &t->vocab, em);
	return e;
}

enum err tokenizer_parse(struct tokenizer **out, const char *json, size_t bytes, struct err_msg *em)
{
	struct json_doc *doc;
	struct tokenizer *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	t->id = XXH3_64bits(json, bytes) | 1; /* 0 is what a new scratch has */
	enum err e = json_parse(&doc, json, bytes, em);
	if (e == ERR_OK) {
		e = load_parts(t, json_root(doc), em);
		json_free(&doc);
	}
	if (e != ERR_OK) {
		tokenizer_free(&t);
		return e;
	}
	*out = t;
	return ERR_OK;
}

/* ---- tokenizer_config.json, special_tokens_map.json ---- */

/* "bos_token" as a string or as {"content": ...}; NULL when absent. */
static char *special_name(json_val root, const char *key)
{
	json_val v = json_get(root, key);
	const char *text = json_cstr(v, json_cstr(json_get(v, "content"), NULL));
	return text != NULL ? strdup(text) : NULL;
}

/* As transformers: spaces of BPE models mean something, and cleaning them up needs a longer word. */
static void take_clean_up(struct tokenizer *t, json_val root)
{
	bool on = false, even_bpe = false;
	(void)json_bool(json_get(root, "clean_up_tokenization_spaces"), &on);
	(void)json_bool(json_get(root, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"), &even_bpe);
	t->clean_up = on && (t->model != MODEL_BPE || even_bpe);
}

static void take_names(struct tokenizer *t, json_val root)
{
	if (t->bos == NULL)
		t->bos = special_name(root, "bos_token");
	if (t->eos == NULL)
		t->eos = special_name(root, "eos_token");
}

enum err tokenizer_load(struct tokenizer **out, const char *model_dir, struct err_msg *em)
{
	struct tokenizer *t = NULL;
	struct json_doc *config = NULL, *map = NULL;
	enum err e = tokenizer_open_config(&config, model_dir, "tokenizer_config.json", em);
	if (e == ERR_OK)
		e = tokenizer_open_config(&map, model_dir, "special_tokens_map.json", em);
	if (e == ERR_OK)
		e = tokenizer_files_load(&t, model_dir, config != NULL ? json_root(config) : (json_val){NULL},
					 map != NULL ? json_root(map) : (json_val){NULL}, em);
	if (e == ERR_OK && config != NULL)
		take_names(t, json_root(config));
	if (e == ERR_OK && config != NULL)
		take_clean_up(t, json_root(config));
	if (e == ERR_OK && map != NULL)
		take_names(t, json_root(map));
	json_free(&config);
	json_free(&map);
	if (e != ERR_OK)
		return e;
	*out = t;
	return ERR_OK;
}

void tokenizer_free(struct tokenizer **tokenizer)
{
	struct tokenizer *t = *tokenizer;
	if (t == NULL)
		return;
	decoder_release(&t->decoder);
	u32_vec_fini(&t->before);
	u32_vec_fini(&t->after);
	bpe_fini(&t->bpe);
	unigram_fini(&t->unigram);
	pretokenizer_fini(&t->pretokenizer);
	normalizer_fini(&t->normalizer);
	added_set_fini(&t->added);
	added_set_fini(&t->added_normalized);
	vocab_fini(&t->vocab);
	free(t->bos);
	free(t->eos);
	free(t);
	*tokenizer = NULL;
}

/* ---- scratch ---- */

enum err text_scratch_create(struct text_scratch **out)
{
	struct text_scratch *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return ERR_NO_MEMORY;
	s->pieces = aligned_alloc(64, (size_t)PIECE_SETS * PIECE_WAYS * sizeof(*s->pieces));
	if (s->pieces == NULL || regex_scratch_init(&s->regex) != ERR_OK) {
		text_scratch_free(&s);
		return ERR_NO_MEMORY;
	}
	*out = s;
	return ERR_OK;
}

void text_scratch_free(struct text_scratch **scratch)
{
	struct text_scratch *s = *scratch;
	if (s == NULL)
		return;
	regex_scratch_fini(&s->regex);
	for (u32 i = 0; i < PRETOK_STAGES_MAX; i++) {
		buf_fini(&s->stage_text[i]);
		free(s->stage_spans[i]);
	}
	buf_fini(&s->normal[0]);
	buf_fini(&s->normal[1]);
	buf_fini(&s->spelled);
	free(s->symbols);
	free(s->heap);
	free(s->paths);
	free(s->pieces);
	free(s);
	*scratch = NULL;
}

/* ---- questions ---- */

void tokenizer_set_clean_up(struct tokenizer *t, bool on)
{
	t->clean_up = on;
}

u32 tokenizer_vocab_size(const struct tokenizer *t)
{
	return t->vocab.count;
}

bool tokenizer_is_special(const struct tokenizer *t, u32 id)
{
	return id < t->vocab.count && (t->vocab.tokens[id].flags & TOKEN_SPECIAL);
}

bool tokenizer_find(const struct tokenizer *t, const char *token, u32 *id)
{
	u32 found = vocab_find(&t->vocab, token, strlen(token));
	if (found == TOKEN_NONE)
		return false;
	*id = found;
	return true;
}

const char *tokenizer_token_text(const struct tokenizer *t, u32 id)
{
	return id < t->vocab.count ? t->vocab.tokens[id].text : NULL;
}

const char *tokenizer_bos(const struct tokenizer *t)
{
	return t->bos != NULL ? t->bos : "";
}

const char *tokenizer_eos(const struct tokenizer *t)
{
	return t->eos != NULL ? t->eos : "";
}
