/* Owns the writing of tokenizer.json and tokenizer_config.json from the values of a file in GGUF. Runs once while a model is
 * imported. The vocabulary is written as the file has it; how text is cut and put together is what the name of the tokenizer
 * stands for. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/convert_priv.h"
#include "text/gguf_priv.h"

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"
#define SCORES "tokenizer.ggml.scores"

enum { TOKENS_MAX = 1 << 24 };

/* ---- tokens ---- */

static u64 token_count(const struct gguf *g)
{
	u64 count = 0;
	(void)gguf_array(g, TOKENS, &count);
	return count;
}

bool gguf_token_of(const struct gguf *g, const char *key, i64 *id, struct gguf_text *text)
{
	return gguf_int(g, key, id) && *id >= 0 && (u64)*id < token_count(g) &&
	       gguf_array_string(g, TOKENS, (u64)*id, &text->text, &text->bytes);
}

static u32 add_end(u32 *ids, u32 count, u32 room, i64 id)
{
	for (u32 i = 0; i < count; i++)
		if (ids[i] == (u32)id)
			return count;
	if (count < room)
		ids[count++] = (u32)id;
	return count;
}

/* Many files name one end only, of a text or of a turn. The others are known by their texts, where they are control
 * tokens: as such they are part of no answer. */
static bool ends_turn(struct gguf_text t)
{
	static const char *const ends[] = {"<|eot_id|>",  "<|im_end|>",	  "<|end|>",	     "<end_of_turn>", "<|endoftext|>",
					   "<|eom_id|>",  "<EOT>",	  "<|end_of_text|>", "<|return|>",    "<|END_OF_TURN_TOKEN|>",
					   "<end_of_utterance>", "<turn|>"};
	for (size_t i = 0; i < COUNT_OF(ends); i++)
		if (gguf_text_is(t, ends[i]))
			return true;
	return false;
}

u32 gguf_end_ids(const struct gguf *g, u32 *ids, u32 room)
{
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	u64 tokens = token_count(g);
	struct gguf_text t;
	u32 count = 0;
	i64 id, type;

	for (size_t i = 0; i < COUNT_OF(keys); i++)
		if (gguf_token_of(g, keys[i], &id, &t))
			count = add_end(ids, count, room, id);
	for (u64 i = 0; i < tokens; i++)
		if (gguf_array_int(g, TYPES, i, &type) && type == PIECE_CONTROL &&
		    gguf_array_string(g, TOKENS, i, &t.text, &t.bytes) && ends_turn(t))
			count = add_end(ids, count, room, (i64)i);
	return count;
}

/* ---- the vocabulary ---- */

static bool may_be_type(i64 type)
{
	return type >= PIECE_NORMAL && type <= PIECE_BYTE_VALUE;
}

/* What files say of every token, if they say it: an array of as many numbers. */
static enum err check_numbers(const struct gguf *g, u64 tokens, struct err_msg *em)
{
	u64 types = 0, scores = 0;
	double score;
	i64 type;

	if (gguf_has(g, TYPES) && (!gguf_array(g, TYPES, &types) || types != tokens || !gguf_array_int(g, TYPES, 0, &type)))
		return err_set(em, ERR_FORMAT, TYPES " must be an array of %llu integers, one for each token", (unsigned long long)tokens);
	if (gguf_has(g, SCORES) && (!gguf_array(g, SCORES, &scores) || scores != tokens || !gguf_array_float(g, SCORES, 0, &score)))
		return err_set(em, ERR_FORMAT, SCORES " must be an array of %llu numbers, one for each token", (unsigned long long)tokens);
	return ERR_OK;
}

static enum err read_pieces(struct convert_pieces *m, const struct gguf *g, struct err_msg *em)
{
	u64 count = token_count(g);
	double score;

	if (count == 0 || count > TOKENS_MAX)
		return err_set(em, ERR_FORMAT, TOKENS " holds %llu tokens; it must hold 1 to %d", (unsigned long long)count, TOKENS_MAX);
	enum err e = check_numbers(g, count, em);
	if (e != ERR_OK)
		return e;
	m->pieces = calloc((size_t)count, sizeof(*m->pieces));
	if (m->pieces == NULL)
		return err_set(em, ERR_NO_MEMORY, "out of memory for %llu tokens", (unsigned long long)count);
	for (u64 i = 0; i < count; i++) {
		struct convert_piece *p = &m->pieces[i];
		i64 type = PIECE_NORMAL;
		if (!gguf_array_string(g, TOKENS, i, &p->text, &p->bytes) || !utf8_valid(p->text, p->bytes) ||
		    memchr(p->text, '\0', p->bytes) != NULL)
			return err_set(em, ERR_FORMAT, TOKENS "[%llu] must be a text in UTF-8 without a NUL", (unsigned long long)i);
		if (gguf_array_int(g, TYPES, i, &type) && !may_be_type(type))
			return err_set(em, ERR_UNSUPPORTED, TYPES "[%llu] is %lld; it must be %d to %d", (unsigned long long)i,
				       (long long)type, PIECE_NORMAL, PIECE_BYTE_VALUE);
		if (gguf_array_float(g, SCORES, i, &score))
			p->score = (float)score;
		p->type = (u32)type;
		m->byte_fallback = m->byte_fallback || type == PIECE_BYTE_VALUE;
		m->text_bytes += p->bytes;
	}
	m->count = (u32)count;
	return ERR_OK;
}

/* ---- pieces with scores ---- */

/* Files that were made of a tokenizer.json hold one score for all, from which the order of merges cannot be known. */
static enum err check_scores(const struct convert_pieces *m, struct err_msg *em)
{
	u32 first = 0, normal = 0;

	for (u32 i = 0; i < m->count; i++) {
		if (m->pieces[i].type != PIECE_NORMAL)
			continue;
		first = normal++ == 0 ? i : first;
		if (m->pieces[i].score < m->pieces[first].score || m->pieces[i].score > m->pieces[first].score)
			return ERR_OK;
	}
	return normal < 2 ? ERR_OK
			  : err_set(em, ERR_UNSUPPORTED,
				    "tokenizer.ggml.scores has the same score for all tokens, or there is none: they say in which order pieces are "
				    "put together; convert the model anew from a checkpoint with tokenizer.model");
}

/* Phi 3's tokens take the spaces behind them along, but for these; its files do not say so. */
static void strip_right(struct convert_pieces *m)
{
	static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};

	for (u32 i = 0; i < m->count; i++) {
		struct convert_piece *p = &m->pieces[i];
		p->rstrip = true;
		for (size_t k = 0; k < COUNT_OF(plain); k++)
			if (gguf_text_is((struct gguf_text){p->text, p->bytes}, plain[k]))
				p->rstrip = false;
	}
}

static enum err write_scored(struct buf *out, const struct gguf *g, struct convert_pieces *m, json_val config, struct err_msg *em)
{
	m->model_type = SPM_BPE;
	m->escape_space = m->dummy_prefix = true;
	(void)gguf_bool(g, "tokenizer.ggml.add_space_prefix", &m->dummy_prefix);
	enum err e = check_scores(m, em);
	if (gguf_text_is(gguf_text_of(g, "general.architecture"), "phi3"))
		strip_right(m);
	return e == ERR_OK ? convert_pieces(out, m, config, em) : e;
}

/* ---- pieces of bytes, with merges ---- */

static enum err write_added(struct json_writer *w, const struct convert_pieces *m)
{
	struct convert_added *added = calloc(m->count, sizeof(*added));
	size_t count = 0;

	for (u32 id = 0; added != NULL && id < m->count; id++) {
		const struct convert_piece *p = &m->pieces[id];
		bool special = p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN;
		if ((special || p->type == PIECE_USER_DEFINED) && p->bytes > 0)
			added[count++] = (struct convert_added){.text = p->text, .bytes = p->bytes, .id = id, .special = special};
	}
	if (added == NULL)
		return ERR_NO_MEMORY;
	convert_write_added(w, added, count, (json_val){NULL});
	free(added);
	return ERR_OK;
}

/* Each is "LEFT RIGHT". Of files of before the format's name for spaces a space may be in a side; the first one parts them
 * behind at least one byte. */
static enum err write_merges(struct json_writer *w, const struct gguf *g, struct err_msg *em)
{
	static const char key[] = "tokenizer.ggml.merges";
	const char *text, *space;
	u64 count = 0;
	size_t bytes;

	if (!gguf_array(g, key, &count))
		return err_set(em, ERR_FORMAT, "%s is missing: which pieces are put together, and in which order", key);
	json_key(w, "merges");
	json_array_begin(w);
	for (u64 i = 0; i < count; i++) {
		if (!gguf_array_string(g, key, i, &text, &bytes) || bytes < 3 || !utf8_valid(text, bytes) ||
		    (space = memchr(text + 1, ' ', bytes - 2)) == NULL)
			return err_set(em, ERR_FORMAT, "%s[%llu] must be two pieces with a space between", key, (unsigned long long)i);
		json_array_begin(w);
		json_write_string(w, text, (size_t)(space - text));
		json_write_string(w, space + 1, (size_t)(text + bytes - space - 1));
		json_array_end(w);
	}
	json_array_end(w);
	return ERR_OK;
}

static enum err find_pretok(const struct gguf_pretok **out, const struct gguf *g, struct err_msg *em)
{
	char known[768];
	struct gguf_text name = gguf_text_of(g, "tokenizer.ggml.pre");

	*out = gguf_pretok_find(name);
	if (*out)
		return ERR_OK;
	gguf_pretok_names(known, sizeof(known));
	if (!name.bytes)
		return err_set(em, ERR_UNSUPPORTED,
			       "tokenizer.ggml.pre is missing: it names how text is cut before pieces are put together, which older files do not "
			       "say; convert the model anew");
	return err_set(em, ERR_UNSUPPORTED, "tokenizer.ggml.pre is '%.*s', which is not known; known are: %s", (int)(name.bytes < 64 ? name.bytes : 64),
		       name.text, known);
}

/* Gemma 4's: pieces of characters with merges, in which spaces are U+2581, and bytes where there is no piece. Its files say so by the name of
 * the model alone. */
static bool is_spaced(const struct gguf *g)
{
	return gguf_text_is(gguf_text_of(g, "tokenizer.ggml.model"), "gemma4");
}

static void write_raw(struct json_writer *w, const char *key, const char *text)
{
	json_key(w, key);
	json_write_raw(w, text, strlen(text));
}

static void write_spaced_model(struct json_writer *w, const struct convert_pieces *m)
{
	json_key(w, "unk_token");
	json_write_null(w);
	json_key(w, "byte_fallback");
	json_write_bool(w, m->byte_fallback);
}

static void write_spaced_cuts(struct json_writer *w)
{
	write_raw(w, "normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}");
	write_raw(w, "pre_tokenizer", "null");
	write_raw(w, "decoder",
		  "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
		  "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}");
}

static enum err write_bytes(struct json_writer *w, const struct gguf *g, const struct convert_pieces *m, const struct vocab *v,
			    json_val config, struct err_msg *em)
{
	const struct gguf_pretok *p = NULL;
	struct convert_around around = {.vocab = v, .bos = "", .eos = ""};
	const bool spaced = is_spaced(g);

	enum err e = spaced ? ERR_OK : find_pretok(&p, g, em);
	if (e != ERR_OK)
		return e;
	json_object_begin(w);
	e = write_added(w, m);
	if (spaced) {
		write_spaced_cuts(w);
	} else {
		gguf_pretok_write(w, p);
		write_raw(w, "decoder", "{\"type\":\"ByteLevel\"}");
	}
	if (e == ERR_OK)
		e = convert_write_around(w, &around, config, em);
	json_key(w, "model");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "BPE");
	json_key(w, "ignore_merges");
	json_write_bool(w, p && p->whole_words);
	if (spaced)
		write_spaced_model(w, m);
	convert_write_vocab(w, m, false);
	if (e == ERR_OK)
		e = write_merges(w, g, em);
	json_object_end(w);
	json_object_end(w);
	return e;
}

static enum err write_byte_level(struct buf *out, const struct gguf *g, const struct convert_pieces *m, json_val config, struct err_msg *em)
{
	struct json_writer w;
	struct vocab v = {0};

	json_begin(&w, out);
	enum err e = vocab_init(&v, m->count, m->text_bytes + m->count);
	for (u32 id = 0; id < m->count && e == ERR_OK; id++)
		vocab_put(&v, id, m->pieces[id].text, m->pieces[id].bytes, 0);
	if (e == ERR_OK)
		e = write_bytes(&w, g, m, &v, config, em);
	vocab_fini(&v);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the vocabulary") : e;
}

enum err gguf_write_tokenizer(struct buf *out, const struct gguf *g, json_val config, struct err_msg *em)
{
	struct convert_pieces m = {0};
	struct gguf_text model = gguf_text_of(g, "tokenizer.ggml.model");
	bool scored = gguf_text_is(model, "llama");

	if (!scored && !is_spaced(g) && !gguf_text_is(model, "gpt2"))
		return err_set(em, ERR_UNSUPPORTED, "tokenizer.ggml.model is '%.*s', which is not supported; supported: gpt2, llama, gemma4",
			       (int)(model.bytes < 64 ? model.bytes : 64), model.text);
	enum err e = read_pieces(&m, g, em);
	if (e == ERR_OK)
		e = scored ? write_scored(out, g, &m, config, em) : write_byte_level(out, g, &m, config, em);
	if (e == ERR_OK && !buf_ok(out))
		e = err_set(em, ERR_NO_MEMORY, "out of memory for tokenizer.json");
	free(m.pieces);
	return e;
}

/* ---- tokenizer_config.json ---- */

static void write_text(struct json_writer *w, const char *key, struct gguf_text t)
{
	json_key(w, key);
	json_write_string(w, t.text, t.bytes);
}

static void write_template(struct json_writer *w, const char *name, struct gguf_text t)
{
	json_object_begin(w);
	json_key(w, "name");
	json_write_cstr(w, name);
	write_text(w, "template", t);
	json_object_end(w);
}

/* Beside the template there may be others with a name; of these the one for requests with tools is used. */
static void write_templates(struct json_writer *w, const struct gguf *g)
{
	struct gguf_text plain = gguf_text_of(g, "tokenizer.chat_template"), tools = gguf_text_of(g, "tokenizer.chat_template.tool_use");

	if (plain.bytes && !tools.bytes) {
		write_text(w, "chat_template", plain);
	} else if (plain.bytes) {
		json_key(w, "chat_template");
		json_array_begin(w);
		write_template(w, "default", plain);
		write_template(w, "tool_use", tools);
		json_array_end(w);
	}
}

static void write_flag(struct json_writer *w, const struct gguf *g, const char *key, const char *value, bool fallback)
{
	(void)gguf_bool(g, value, &fallback);
	json_key(w, key);
	json_write_bool(w, fallback);
}

enum err gguf_write_tokenizer_config(struct buf *out, const struct gguf *g, struct err_msg *em)
{
	static const char *const tokens[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
						{"eos_token", "tokenizer.ggml.eos_token_id"},
						{"unk_token", "tokenizer.ggml.unknown_token_id"},
						{"pad_token", "tokenizer.ggml.padding_token_id"}};
	bool scored = gguf_text_is(gguf_text_of(g, "tokenizer.ggml.model"), "llama");
	const struct gguf_pretok *p = gguf_pretok_find(gguf_text_of(g, "tokenizer.ggml.pre"));
	struct json_writer w;
	struct gguf_text t;
	i64 id;

	json_begin(&w, out);
	w.spaced = true;
	json_object_begin(&w);
	for (size_t i = 0; i < COUNT_OF(tokens); i++)
		if (gguf_token_of(g, tokens[i][1], &id, &t))
			write_text(&w, tokens[i][0], t);
		else if (gguf_int(g, tokens[i][1], &id) && id >= 0 && id != UINT32_MAX)
			return err_set(em, ERR_FORMAT, "%s is %lld, but there are only %llu tokens", tokens[i][1], (long long)id,
				       (unsigned long long)token_count(g));
	write_flag(&w, g, "add_bos_token", "tokenizer.ggml.add_bos_token", scored || is_spaced(g) || (p && p->bos));
	write_flag(&w, g, "add_eos_token", "tokenizer.ggml.add_eos_token", false);
	json_key(&w, "legacy"); /* the space in front goes behind special tokens, too */
	json_write_bool(&w, scored);
	json_key(&w, "clean_up_tokenization_spaces");
	json_write_bool(&w, false);
	write_templates(&w, g);
	json_object_end(&w);
	return buf_ok(out) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory for tokenizer_config.json");
}
