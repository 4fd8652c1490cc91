/* Owns the chain of pre-tokenizers: reads it from tokenizer.json, hands pieces from stage to stage. Loading runs once;
 * the chain runs wherever text is encoded and keeps no state of its own. */
#include "text/pretokenize_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/utf8.h"
#include "text/normalize_priv.h"
#include "text/unicode_priv.h"

/* GPT-2's pattern, which ByteLevel applies itself. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { SEQUENCE_DEPTH_MAX = 4 };

enum err pretok_next(struct pretok_run *run, u32 index, struct piece p)
{
	const struct pretokenizer *pre = run->pretokenizer;
	if (index + 1 >= pre->count)
		return run->emit(run->ctx, p.text, p.bytes);
	const struct pretok_stage *st = &pre->stages[index + 1];
	return st->run(st, run, index + 1, p);
}

enum err pretokenizer_run(struct pretok_run *run, struct piece p)
{
	const struct pretokenizer *pre = run->pretokenizer;
	if (p.bytes == 0)
		return ERR_OK;
	return pre->count == 0 ? run->emit(run->ctx, p.text, p.bytes) : pre->stages[0].run(&pre->stages[0], run, 0, p);
}

/* ---- loading ---- */

struct loader {
	struct pretokenizer *out;
	struct err_msg *em;
};

/* NULL (and the message) when the chain is full. */
static struct pretok_stage *add_stage(struct loader *l, pretok_fn run)
{
	if (l->out->count == PRETOK_STAGES_MAX) {
		(void)err_set(l->em, ERR_UNSUPPORTED, "pre_tokenizer: more than %d stages", PRETOK_STAGES_MAX);
		return NULL;
	}
	struct pretok_stage *st = &l->out->stages[l->out->count++];
	*st = (struct pretok_stage){.run = run, .behavior = SPLIT_ISOLATED};
	return st;
}

static enum err load_behavior(struct loader *l, struct pretok_stage *st, json_val v)
{
	static const char *const names[] = {
		[SPLIT_REMOVED] = "Removed",
		[SPLIT_ISOLATED] = "Isolated",
		[SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
		[SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
		[SPLIT_CONTIGUOUS] = "Contiguous",
	};
	const char *name = json_cstr(json_get(v, "behavior"), "Isolated");
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (strcmp(name, names[i]) == 0) {
			st->behavior = (enum split_behavior)i;
			return ERR_OK;
		}
	return err_set(l->em, ERR_FORMAT, "pre_tokenizer: unknown behavior \"%.64s\"", name);
}

static enum err load_split(struct loader *l, json_val v)
{
	struct pretok_stage *st = add_stage(l, pretok_split_pattern);
	if (st == NULL)
		return ERR_UNSUPPORTED;
	enum err e = load_behavior(l, st, v);
	(void)json_bool(json_get(v, "invert"), &st->invert);
	return e != ERR_OK ? e : pattern_load(&st->pattern, json_get(v, "pattern"), "pre_tokenizer Split", l->em);
}

static enum err load_byte_level(struct loader *l, json_val v)
{
	struct pretok_stage *st = add_stage(l, pretok_byte_level);
	struct pretok_stage *map = add_stage(l, pretok_byte_level);
	if (st == NULL || map == NULL)
		return ERR_UNSUPPORTED;
	bool use_regex = true;
	map->map_bytes = true;
	st->add_prefix_space = true;
	(void)json_bool(json_get(v, "add_prefix_space"), &st->add_prefix_space);
	(void)json_bool(json_get(v, "use_regex"), &use_regex);
	return use_regex ? regex_compile(&st->pattern.regex, gpt2_pattern, sizeof(gpt2_pattern) - 1, l->em) : ERR_OK;
}

static enum err load_metaspace(struct loader *l, json_val v)
{
	struct pretok_stage *st = add_stage(l, pretok_metaspace);
	if (st == NULL)
		return ERR_UNSUPPORTED;
	const char *mark = json_cstr(json_get(v, "replacement"), "\xe2\x96\x81");
	if (mark[0] == '\0' || strlen(mark) != unicode_bytes((u8)mark[0]))
		return err_set(l->em, ERR_FORMAT, "pre_tokenizer Metaspace: \"replacement\" must be one character");
	memcpy(st->replacement, mark, strlen(mark) + 1);
	bool prefix = true;
	(void)json_bool(json_get(v, "add_prefix_space"), &prefix);
	const char *scheme = json_cstr(json_get(v, "prepend_scheme"), prefix ? "always" : "never");
	st->prepend = strcmp(scheme, "always") == 0  ? PREPEND_ALWAYS
		      : strcmp(scheme, "first") == 0 ? PREPEND_FIRST
						     : PREPEND_NEVER;
	if (st->prepend == PREPEND_NEVER && strcmp(scheme, "never") != 0)
		return err_set(l->em, ERR_FORMAT,
			       "pre_tokenizer Metaspace: \"prepend_scheme\" must be always, first or never, got %.32s",
			       scheme);
	st->split = true;
	(void)json_bool(json_get(v, "split"), &st->split);
	if (!st->split)
		return ERR_OK;
	st->behavior = SPLIT_MERGED_WITH_NEXT;
	st->pattern.string = strdup(mark);
	st->pattern.string_bytes = strlen(mark);
	return st->pattern.string != NULL ? ERR_OK : ERR_NO_MEMORY;
}

static enum err load_class(struct loader *l, json_val v, pretok_class_fn is_match, enum split_behavior behavior)
{
	(void)v;
	struct pretok_stage *st = add_stage(l, pretok_split_class);
	if (st == NULL)
		return ERR_UNSUPPORTED;
	st->is_match = is_match;
	st->behavior = behavior;
	return ERR_OK;
}

static enum err load_digits(struct loader *l, json_val v)
{
	bool individual = false;
	(void)json_bool(json_get(v, "individual_digits"), &individual);
	return load_class(l, v, unicode_is_numeric, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
}

static enum err load_punctuation(struct loader *l, json_val v)
{
	enum err e = load_class(l, v, unicode_is_punct, SPLIT_ISOLATED);
	return e != ERR_OK ? e : load_behavior(l, &l->out->stages[l->out->count - 1], v);
}

static enum err load_whitespace_split(struct loader *l, json_val v)
{
	return load_class(l, v, unicode_is_space, SPLIT_REMOVED);
}

static enum err load_bert(struct loader *l, json_val v)
{
	enum err e = load_class(l, v, unicode_is_space, SPLIT_REMOVED);
	return e != ERR_OK ? e : load_class(l, v, unicode_is_punct, SPLIT_ISOLATED);
}

static enum err load_whitespace(struct loader *l, json_val v)
{
	(void)v;
	return add_stage(l, pretok_words) != NULL ? ERR_OK : ERR_UNSUPPORTED;
}

static enum err load_char_delimiter(struct loader *l, json_val v)
{
	const char *mark = json_cstr(json_get(v, "delimiter"), "");
	if (mark[0] == '\0' || strlen(mark) != unicode_bytes((u8)mark[0]))
		return err_set(l->em, ERR_FORMAT,
			       "pre_tokenizer CharDelimiterSplit: \"delimiter\" must be one character");
	enum err e = load_class(l, v, NULL, SPLIT_REMOVED);
	size_t at = 0;
	if (e == ERR_OK)
		l->out->stages[l->out->count - 1].delimiter = unicode_next(mark, &at);
	return e;
}

static enum err load_fixed_length(struct loader *l, json_val v)
{
	uint64_t length = 5;
	(void)json_uint(json_get(v, "length"), &length);
	if (length == 0 || length > UINT32_MAX)
		return err_set(l->em, ERR_FORMAT, "pre_tokenizer FixedLength: \"length\" must be at least 1");
	struct pretok_stage *st = add_stage(l, pretok_fixed_length);
	if (st == NULL)
		return ERR_UNSUPPORTED;
	st->delimiter = (u32)length;
	return ERR_OK;
}

struct pretok_type {
	const char *name;
	enum err (*load)(struct loader *l, json_val v);
};
static const struct pretok_type pretok_types[] = {
	{"ByteLevel", load_byte_level},
	{"Split", load_split},
	{"Digits", load_digits},
	{"Metaspace", load_metaspace},
	{"Whitespace", load_whitespace},
	{"WhitespaceSplit", load_whitespace_split},
	{"Punctuation", load_punctuation},
	{"BertPreTokenizer", load_bert},
	{"CharDelimiterSplit", load_char_delimiter},
	{"FixedLength", load_fixed_length},
};

static enum err load_stages(struct loader *l, json_val v, u32 depth)
{
	const char *type = json_cstr(json_get(v, "type"), "");
	if (strcmp(type, "Sequence") == 0) {
		if (depth == SEQUENCE_DEPTH_MAX)
			return err_set(l->em, ERR_UNSUPPORTED, "pre_tokenizer: sequences nested deeper than %d", depth);
		enum err e = ERR_OK;
		for (struct json_iter it = json_iterate(json_get(v, "pretokenizers")); e == ERR_OK && json_next(&it);)
			e = load_stages(l, it.value, depth + 1);
		return e;
	}
	for (size_t i = 0; i < COUNT_OF(pretok_types); i++)
		if (strcmp(type, pretok_types[i].name) == 0)
			return pretok_types[i].load(l, v);
	return err_set(l->em, ERR_UNSUPPORTED, "pre_tokenizer type \"%.64s\" is not supported", type);
}

/* A ByteLevel at the end need not write its stand-ins when the model works on bytes; one that neither cuts nor
 * prepends is then nothing at all. */
static void drop_last_mapping(struct pretokenizer *p)
{
	if (p->count == 0 || !p->stages[p->count - 1].map_bytes)
		return;
	for (u32 i = 0; i + 1 < p->count; i++)
		if (p->stages[i].map_bytes)
			return; /* bytes mapped twice: leave both */
	p->raw_bytes = true;
	p->count--;
	const struct pretok_stage *st = &p->stages[p->count - 1];
	if (!st->add_prefix_space && st->pattern.regex.code == NULL)
		p->count--;
}

enum err pretokenizer_load(struct pretokenizer *p, json_val v, bool bytes_allowed, struct err_msg *em)
{
	*p = (struct pretokenizer){0};
	struct loader l = {.out = p, .em = em};
	enum err e = json_present(v) ? load_stages(&l, v, 0) : ERR_OK;
	if (e != ERR_OK) {
		pretokenizer_fini(p);
		return e;
	}
	if (bytes_allowed)
		drop_last_mapping(p);
	return ERR_OK;
}

void pretokenizer_fini(struct pretokenizer *p)
{
	for (u32 i = 0; i < PRETOK_STAGES_MAX; i++)
		pattern_fini(&p->stages[i].pattern);
	*p = (struct pretokenizer){0};
}
