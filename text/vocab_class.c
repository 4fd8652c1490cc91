/* Owns what transformers knows of byte-level BPE tokenizers by their class, and which of their tokens are
 * looked for in a text. Runs once while a model with vocab.json and merges.txt loads. */
#include "text/vocab_class_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

/* The order in which tokens without an id get one. */
static const char *const token_keys[VOCAB_NAMES] = {"bos_token", "eos_token", "unk_token", "sep_token",
						    "pad_token", "cls_token", "mask_token"};
enum { ADDED_MAX = 1 << 24 };
enum { KEY_BOS, KEY_EOS, KEY_UNK, KEY_SEP, KEY_PAD, KEY_CLS, KEY_MASK };

#define END_OF_TEXT "<|endoftext|>"
#define GPT2_TOKENS                                                                       \
	{                                                                                 \
		[KEY_BOS] = END_OF_TEXT, [KEY_EOS] = END_OF_TEXT, [KEY_UNK] = END_OF_TEXT \
	}
#define ROBERTA_TOKENS                                                                          \
	{                                                                                       \
		[KEY_BOS] = "<s>", [KEY_EOS] = "</s>", [KEY_UNK] = "<unk>", [KEY_SEP] = "</s>", \
		[KEY_PAD] = "<pad>", [KEY_CLS] = "<s>", [KEY_MASK] = "<mask>"                   \
	}

/* The first is the default. */
static const struct vocab_class classes[] = {
	{.name = "GPT2Tokenizer", .tokens = GPT2_TOKENS},
	{.name = "CodeGenTokenizer", .tokens = GPT2_TOKENS},
	{.name = "GPTNeoXTokenizer",
	 .nfc = true,
	 .tokens = {[KEY_BOS] = END_OF_TEXT,
		    [KEY_EOS] = END_OF_TEXT,
		    [KEY_UNK] = END_OF_TEXT,
		    [KEY_PAD] = "<|padding|>"}},
	{.name = "Qwen2Tokenizer",
	 .pattern = CONVERT_WORDS_PATTERN("\\p{N}"),
	 .nfc = true,
	 .plain_special = true,
	 .tokens = {[KEY_EOS] = END_OF_TEXT, [KEY_UNK] = END_OF_TEXT, [KEY_PAD] = END_OF_TEXT}},
	{.name = "RobertaTokenizer", .wraps = true, .tokens = ROBERTA_TOKENS},
	{.name = "BartTokenizer", .wraps = true, .tokens = ROBERTA_TOKENS},
};

/* Those that transformers has for models whose files name none. */
static const struct {
	const char *model_type;
	const char *class;
} by_model_type[] = {
	{"gpt2", "GPT2Tokenizer"},	    {"gpt_neo", "GPT2Tokenizer"},
	{"gptj", "GPT2Tokenizer"},	    {"gpt_bigcode", "GPT2Tokenizer"},
	{"opt", "GPT2Tokenizer"},	    {"codegen", "GPT2Tokenizer"},
	{"phi", "GPT2Tokenizer"},	    {"starcoder2", "GPT2Tokenizer"},
	{"dbrx", "GPT2Tokenizer"},	    {"jais2", "GPT2Tokenizer"},
	{"granite", "GPT2Tokenizer"},	    {"granitemoe", "GPT2Tokenizer"},
	{"gpt_neox", "GPTNeoXTokenizer"},   {"stablelm", "GPTNeoXTokenizer"},
	{"olmo", "GPTNeoXTokenizer"},	    {"olmoe", "GPTNeoXTokenizer"},
	{"mpt", "GPTNeoXTokenizer"},	    {"mamba", "GPTNeoXTokenizer"},
	{"mamba2", "GPTNeoXTokenizer"},	    {"falcon_mamba", "GPTNeoXTokenizer"},
	{"rwkv", "GPTNeoXTokenizer"},	    {"xlstm", "GPTNeoXTokenizer"},
	{"qwen2", "Qwen2Tokenizer"},	    {"qwen2_moe", "Qwen2Tokenizer"},
	{"qwen2_vl", "Qwen2Tokenizer"},	    {"qwen2_5_vl", "Qwen2Tokenizer"},
	{"qwen2_audio", "Qwen2Tokenizer"},  {"qwen2_5_omni", "Qwen2Tokenizer"},
	{"qwen3", "Qwen2Tokenizer"},	    {"qwen3_moe", "Qwen2Tokenizer"},
	{"qwen3_next", "Qwen2Tokenizer"},   {"qwen3_vl", "Qwen2Tokenizer"},
	{"qwen3_vl_moe", "Qwen2Tokenizer"}, {"qwen3_omni_moe", "Qwen2Tokenizer"},
	{"roberta", "RobertaTokenizer"},    {"bart", "RobertaTokenizer"},
};

static const struct vocab_class *class_named(const char *name)
{
	size_t bytes = strlen(name);
	if (bytes > 4 && strcmp(name + bytes - 4, "Fast") == 0)
		bytes -= 4;
	for (size_t i = 0; i < COUNT_OF(classes); i++)
		if (strlen(classes[i].name) == bytes && memcmp(classes[i].name, name, bytes) == 0)
			return &classes[i];
	return NULL;
}

enum err vocab_class_find(const struct vocab_class **out, json_val config, json_val model, struct err_msg *em)
{
	const char *type = json_cstr(json_get(model, "model_type"), NULL);
	const char *name = json_cstr(json_get(config, "tokenizer_class"),
				     json_cstr(json_get(model, "tokenizer_class"), NULL));
	for (size_t i = 0; name == NULL && type != NULL && i < COUNT_OF(by_model_type); i++)
		if (strcmp(by_model_type[i].model_type, type) == 0)
			name = by_model_type[i].class;
	if (name == NULL && type != NULL)
		return err_set(em, ERR_UNSUPPORTED,
			       "vocab.json: which kind of tokenizer a model of type \"%.64s\" has is not "
			       "known; name it as "
			       "\"tokenizer_class\" in tokenizer_config.json, or save the tokenizer as "
			       "tokenizer.json",
			       type);
	*out = name != NULL ? class_named(name) : &classes[0];
	if (*out == NULL)
		return err_set(em, ERR_UNSUPPORTED,
			       "vocab.json of class %.64s is not supported (supported: GPT2Tokenizer, "
			       "CodeGenTokenizer, "
			       "GPTNeoXTokenizer, Qwen2Tokenizer, RobertaTokenizer, BartTokenizer); save the "
			       "tokenizer as tokenizer.json",
			       name);
	return ERR_OK;
}

/* ---- the list of tokens ---- */

/* What a reading of the files is made of. */
struct reader {
	struct vocab_special *s;
	const struct vocab *v;
	struct err_msg *em;
};

static struct convert_added *find(const struct vocab_special *s, const char *text, size_t bytes)
{
	u32 index = strtab_find(&s->by_text, s->texts, text, bytes);
	return index != TOKEN_NONE ? &s->tokens[index] : NULL;
}

static bool flag(json_val v, const char *key, bool fallback)
{
	(void)json_bool(json_get(v, key), &fallback);
	return fallback;
}

/* A string, or an object with "content". */
static bool token_text(json_val v, const char **text, size_t *bytes)
{
	json_val inner = json_type(v) == JSON_OBJECT ? json_get(v, "content") : v;
	return json_string(inner, text, bytes) && *bytes > 0 && memchr(*text, '\0', *bytes) == NULL;
}

/* `id`: TOKEN_NONE where no file says one; the vocabulary's own goes first. */
static enum err append(struct reader *r, struct convert_added token, u32 id, u64 seen)
{
	struct vocab_special *s = r->s;
	ASSERT(s->count < s->room);
	u32 known = vocab_find(r->v, token.text, token.bytes);
	token.id = known != TOKEN_NONE ? known : id != TOKEN_NONE ? id : s->next_id;
	if (known == TOKEN_NONE && token.id < r->v->count && r->v->tokens[token.id].text != NULL)
		return err_set(
			r->em, ERR_FORMAT,
			"the added token \"%.64s\" has the id %u, which is that of \"%.64s\" in vocab.json",
			token.text, token.id, r->v->tokens[token.id].text);
	s->next_id = token.id >= s->next_id ? token.id + 1 : s->next_id;
	s->texts[s->count] = (struct token){.text = token.text, .bytes = (u32)token.bytes};
	s->tokens[s->count] = token;
	s->seen[s->count] = seen;
	strtab_put(&s->by_text, s->texts, s->count++);
	return ERR_OK;
}

/* A string is a token without any flags. */
static struct convert_added token_of(json_val v, const char *text, size_t bytes, bool special)
{
	struct convert_added token = {.text = text,
				      .bytes = bytes,
				      .special = special || flag(v, "special", false),
				      .lstrip = flag(v, "lstrip", false),
				      .rstrip = flag(v, "rstrip", false),
				      .single_word = flag(v, "single_word", false)};
	token.normalized = flag(v, "normalized", !token.special);
	return token;
}

/* A special token by its name or in a list. What was said of it elsewhere with an id stays; otherwise what is
 * said last holds, and what was said before is not said again, as where transformers adds them one by one to
 * a list without repetitions. */
static enum err define(struct reader *r, struct convert_added token, bool object)
{
	u64 way = 1ull << (object ? token.lstrip | token.rstrip << 1 | token.single_word << 2 |
					    token.normalized << 3
				  : 16);
	struct convert_added *known = find(r->s, token.text, token.bytes);
	if (known == NULL)
		return append(r, token, TOKEN_NONE, way);
	u64 *seen = &r->s->seen[known - r->s->tokens];
	if (*seen & way)
		return ERR_OK;
	*seen |= way;
	token.id = known->id;
	*known = token;
	return ERR_OK;
}

static bool read_id(const char *text, u32 *id)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);
	*id = (u32)n;
	return text[0] >= '0' && text[0] <= '9' && *end == '\0' && n < TOKEN_NONE - 1;
}

static enum err read_decoder(struct reader *r, json_val decoder)
{
	enum err e = ERR_OK;
	if (json_type(decoder) != JSON_OBJECT)
		return err_set(r->em, ERR_FORMAT,
			       "tokenizer_config.json: added_tokens_decoder must be an object, got %s",
			       json_type_name(decoder));
	for (struct json_iter it = json_iterate(decoder); e == ERR_OK && json_next(&it);) {
		u32 id;
		const char *text;
		size_t bytes;
		if (!read_id(it.key, &id) || json_type(it.value) != JSON_OBJECT ||
		    !token_text(it.value, &text, &bytes))
			return err_set(r->em, ERR_FORMAT,
				       "tokenizer_config.json: added_tokens_decoder must be ids and objects "
				       "with \"content\"");
		if (find(r->s, text, bytes) == NULL)
			e = append(r, token_of(it.value, text, bytes, false), id, UINT64_MAX);
	}
	return e;
}

/* ---- names ---- */

/* The value of a key: in special_tokens_map.json, unless the configuration has added_tokens_decoder and so is
 * a newer file, else in the configuration. */
static json_val named_value(const struct convert_vocab_files *f, bool use_map, const char *key)
{
	json_val v = use_map ? json_get(f->map, key) : (json_val){NULL};
	return json_type(v) != JSON_MISSING ? v : json_get(f->config, key);
}

/* The text of a name; false where the tokenizer has none. */
static bool named_text(const struct convert_vocab_files *f, bool use_map, const struct vocab_class *c,
		       u32 key, const char **text, size_t *bytes)
{
	json_val v = named_value(f, use_map, token_keys[key]);
	if (json_type(v) != JSON_MISSING)
		return token_text(v, text, bytes);
	*text = c->tokens[key];
	*bytes = c->tokens[key] != NULL ? strlen(c->tokens[key]) : 0;
	return c->tokens[key] != NULL;
}

/* The lists of special tokens without a name: arrays, or an object whose values they are. */
enum { EXTRA_LISTS = 4 };
static void extra_lists(const struct convert_vocab_files *f, bool use_map, json_val lists[static EXTRA_LISTS])
{
	static const char *const keys[] = {"extra_special_tokens", "additional_special_tokens"};
	for (size_t i = 0; i < EXTRA_LISTS; i++) {
		bool of_map = i % 2 == 1;
		json_val root = of_map ? f->map : f->config;
		lists[i] = of_map && !use_map ? (json_val){NULL} : json_get(root, keys[i / 2]);
	}
}

static bool same_text(json_val v, const char *text, size_t bytes)
{
	const char *other;
	size_t other_bytes;
	return token_text(v, &other, &other_bytes) && other_bytes == bytes && memcmp(other, text, bytes) == 0;
}

/* By a name or in a list. */
static bool is_special(const struct convert_vocab_files *f, const struct vocab_class *c, const char *text,
		       size_t bytes)
{
	json_val lists[EXTRA_LISTS];
	for (u32 key = 0; key < VOCAB_NAMES; key++) {
		const char *named;
		size_t named_bytes;
		if (named_text(f, true, c, key, &named, &named_bytes) && named_bytes == bytes &&
		    memcmp(named, text, bytes) == 0)
			return true;
	}
	extra_lists(f, true, lists);
	for (size_t i = 0; i < EXTRA_LISTS; i++)
		for (struct json_iter it = json_iterate(lists[i]); json_next(&it);)
			if (same_text(it.value, text, bytes))
				return true;
	return false;
}

/* added_tokens.json, {"token": id}: special where a name or a list has it. */
static enum err read_added(struct reader *r, const struct convert_vocab_files *f, const struct vocab_class *c)
{
	enum err e = ERR_OK;
	if (json_present(f->added) && json_type(f->added) != JSON_OBJECT)
		return err_set(r->em, ERR_FORMAT,
			       "added_tokens.json must hold an object of tokens and their ids, got %s",
			       json_type_name(f->added));
	for (struct json_iter it = json_iterate(f->added); e == ERR_OK && json_next(&it);) {
		uint64_t id;
		if (!json_uint(it.value, &id) || id >= TOKEN_NONE - 1)
			return err_set(r->em, ERR_FORMAT,
				       "added_tokens.json: the id of \"%.64s\" must be a number from 0 on",
				       it.key);
		if (it.key_bytes == 0 || memchr(it.key, '\0', it.key_bytes) != NULL ||
		    find(r->s, it.key, it.key_bytes) != NULL)
			continue;
		bool special = is_special(f, c, it.key, it.key_bytes);
		e = append(r,
			   (struct convert_added){.text = it.key,
						  .bytes = it.key_bytes,
						  .special = special,
						  .normalized = !special},
			   (u32)id, UINT64_MAX);
	}
	return e;
}

/* Named or listed as special, whatever else is said of it. */
static void make_special(struct convert_added *token, const struct vocab_class *c)
{
	token->special = true;
	if (c->plain_special)
		token->lstrip = token->rstrip = token->single_word = token->normalized = false;
}

static enum err read_named(struct reader *r, const struct convert_vocab_files *f, bool use_map,
			   const struct vocab_class *c)
{
	enum err e = ERR_OK;
	for (u32 key = 0; e == ERR_OK && key < VOCAB_NAMES; key++) {
		const char *text;
		size_t bytes;
		if (!named_text(f, use_map, c, key, &text, &bytes))
			continue;
		json_val v = named_value(f, use_map, token_keys[key]);
		e = define(r, token_of(v, text, bytes, true), json_type(v) == JSON_OBJECT);
		struct convert_added *token = find(r->s, text, bytes);
		if (e != ERR_OK || token == NULL)
			continue;
		make_special(token, c);
		r->s->named[key] = (u32)(token - r->s->tokens) + 1;
	}
	return e;
}

/* ---- tokens with other names, and without ---- */

static enum err add_special(struct reader *r, json_val v, const struct vocab_class *c, bool force)
{
	const char *text;
	size_t bytes;
	if (!token_text(v, &text, &bytes))
		return ERR_OK;
	enum err e = define(r, token_of(v, text, bytes, true), json_type(v) == JSON_OBJECT);
	if (e == ERR_OK && (force || c->plain_special))
		make_special(find(r->s, text, bytes), c);
	return e;
}

static bool is_key(const char *key, size_t bytes)
{
	for (u32 i = 0; i < VOCAB_NAMES; i++)
		if (strlen(token_keys[i]) == bytes && memcmp(token_keys[i], key, bytes) == 0)
			return true;
	return false;
}

/* image_token and the like. */
static enum err read_other_names(struct reader *r, json_val root, const struct vocab_class *c)
{
	static const char ending[] = "_token";
	const size_t ending_bytes = sizeof(ending) - 1;
	enum err e = ERR_OK;
	for (struct json_iter it = json_iterate(root); e == ERR_OK && json_next(&it);)
		if (json_type(it.value) == JSON_STRING && it.key_bytes > ending_bytes &&
		    !is_key(it.key, it.key_bytes) &&
		    memcmp(it.key + it.key_bytes - ending_bytes, ending, ending_bytes) == 0)
			e = add_special(r, it.value, c, true);
	return e;
}

static enum err read_extra(struct reader *r, const struct convert_vocab_files *f, bool use_map,
			   const struct vocab_class *c)
{
	json_val lists[EXTRA_LISTS];
	enum err e = ERR_OK;
	extra_lists(f, use_map, lists);
	for (size_t i = 0; i < EXTRA_LISTS; i++)
		for (struct json_iter it = json_iterate(lists[i]); e == ERR_OK && json_next(&it);)
			e = add_special(r, it.value, c, json_type(lists[i]) == JSON_OBJECT);
	return e;
}

/* ---- all of them ---- */

static int compare_ids(const void *a, const void *b)
{
	const struct convert_added *x = *(struct convert_added *const *)a,
				   *y = *(struct convert_added *const *)b;
	return x->id < y->id ? -1 : x->id > y->id;
}

static enum err check_ids(const struct vocab_special *s, struct err_msg *em)
{
	const struct convert_added **sorted = calloc(s->count + 1, sizeof(const struct convert_added *));
	enum err e = sorted != NULL ? ERR_OK : ERR_NO_MEMORY;
	for (u32 i = 0; e == ERR_OK && i < s->count; i++)
		sorted[i] = &s->tokens[i];
	if (e == ERR_OK && s->count > 1)
		qsort(sorted, s->count, sizeof(const struct convert_added *), compare_ids);
	for (u32 i = 1; e == ERR_OK && i < s->count; i++) {
		const struct convert_added *first = sorted[i - 1] < sorted[i] ? sorted[i - 1] : sorted[i];
		const struct convert_added *second = sorted[i - 1] < sorted[i] ? sorted[i] : sorted[i - 1];
		if (first->id == second->id)
			e = err_set(em, ERR_FORMAT,
				    "the added tokens \"%.64s\" and \"%.64s\" have the same id, %u",
				    first->text, second->text, first->id);
	}
	free(sorted);
	return e;
}

/* As many as the files can name. */
static size_t count_at_most(const struct convert_vocab_files *f)
{
	static const char *const lists[] = {"added_tokens_decoder", "extra_special_tokens",
					    "additional_special_tokens"};
	size_t count = VOCAB_NAMES + json_count(f->added) + json_count(f->config) + json_count(f->map);
	for (size_t i = 0; i < COUNT_OF(lists); i++)
		count += json_count(json_get(f->config, lists[i])) + json_count(json_get(f->map, lists[i]));
	return count;
}

static enum err init(struct vocab_special *s, const struct vocab *v, size_t room, struct err_msg *em)
{
	*s = (struct vocab_special){.next_id = v->count, .room = (u32)room};
	if (room > ADDED_MAX)
		return err_set(em, ERR_FORMAT, "%zu added tokens, of which there may be %d", room, ADDED_MAX);
	s->tokens = calloc(room, sizeof(*s->tokens));
	s->texts = calloc(room, sizeof(*s->texts));
	s->seen = calloc(room, sizeof(*s->seen));
	return s->tokens != NULL && s->texts != NULL && s->seen != NULL ? strtab_init(&s->by_text, s->room)
									: ERR_NO_MEMORY;
}

enum err vocab_special_read(struct vocab_special *s, const struct vocab_class *c, const struct vocab *v,
			    const struct convert_vocab_files *f, struct err_msg *em)
{
	json_val decoder = json_get(f->config, "added_tokens_decoder");
	bool old = json_type(decoder) == JSON_MISSING;
	struct reader r = {.s = s, .v = v, .em = em};
	enum err e = init(s, v, count_at_most(f), em);
	if (e == ERR_OK)
		e = old ? read_added(&r, f, c) : read_decoder(&r, decoder);
	if (e == ERR_OK)
		e = read_named(&r, f, old, c);
	if (e == ERR_OK)
		e = read_other_names(&r, f->config, c);
	if (e == ERR_OK && old)
		e = read_other_names(&r, f->map, c);
	if (e == ERR_OK)
		e = read_extra(&r, f, old, c);
	return e == ERR_OK ? check_ids(s, em) : e;
}

void vocab_special_fini(struct vocab_special *s)
{
	free(s->tokens);
	free(s->texts);
	free(s->seen);
	strtab_fini(&s->by_text);
	*s = (struct vocab_special){0};
}

const struct convert_added *vocab_special_named(const struct vocab_special *s, const char *name)
{
	for (u32 key = 0; key < VOCAB_NAMES; key++)
		if (strcmp(token_keys[key], name) == 0)
			return s->named[key] != 0 ? &s->tokens[s->named[key] - 1] : NULL;
	return NULL;
}
