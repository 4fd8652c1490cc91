/* Owns the reading of SentencePiece's ModelProto (BPE and Unigram) and its writing as tokenizer.json. Runs once while
 * a model without tokenizer.json loads. The file is checked against its own lengths and never trusted. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/convert_priv.h"

#define METASPACE "\xe2\x96\x81"

enum { STRIP_MAX = 1 << 20 };

/* ---- protobuf ---- */

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct wire {
	const u8 *at;
	const u8 *end;
};
struct wire_field {
	u32 number;
	u64 value;        /* varint, fixed */
	const char *text; /* bytes */
	size_t bytes;
};

static bool wire_varint(struct wire *w, u64 *out)
{
	*out = 0;
	for (u32 shift = 0; shift < 64 && w->at < w->end; shift += 7) {
		u8 byte = *w->at++;
		*out |= (u64)(byte & 0x7f) << shift;
		if (byte < 0x80)
			return true;
	}
	return false;
}

/* The next field; false at the end and, with `*damaged`, where the bytes are no field. */
static bool wire_next(struct wire *w, struct wire_field *f, bool *damaged)
{
	u64 key, length = 0;
	if (w->at == w->end)
		return false;
	*damaged = true;
	if (!wire_varint(w, &key))
		return false;
	*f = (struct wire_field){.number = (u32)(key >> 3)};
	switch (key & 7) {
	case WIRE_VARINT:
		*damaged = !wire_varint(w, &f->value);
		return !*damaged;
	case WIRE_64:
	case WIRE_32:
		length = (key & 7) == WIRE_64 ? 8 : 4;
		break;
	case WIRE_BYTES:
		if (!wire_varint(w, &length))
			return false;
		break;
	default:
		return false;
	}
	if (length > (size_t)(w->end - w->at))
		return false;
	f->text = (const char *)w->at;
	f->bytes = (size_t)length;
	if ((key & 7) != WIRE_BYTES)
		memcpy(&f->value, w->at, f->bytes);
	w->at += length;
	*damaged = false;
	return true;
}

static struct wire wire_of(const char *data, size_t bytes)
{
	return (struct wire){.at = (const u8 *)data, .end = (const u8 *)data + bytes};
}

/* ---- the model ---- */

static enum err read_piece(struct convert_pieces *m, struct wire w, struct err_msg *em)
{
	struct convert_piece p = {.type = PIECE_NORMAL};
	struct wire_field f;
	bool damaged = false;
	while (wire_next(&w, &f, &damaged)) {
		if (f.number == 1 && f.text != NULL) {
			p.text = f.text;
			p.bytes = f.bytes;
		} else if (f.number == 2 && f.bytes == 4) {
			memcpy(&p.score, f.text, 4);
		} else if (f.number == 3) {
			p.type = (u32)f.value;
		}
	}
	if (damaged || p.bytes == 0 || !utf8_valid(p.text, p.bytes))
		return err_set(em, ERR_FORMAT, "piece %u is damaged", m->count);
	if (p.type == PIECE_UNUSED)
		return err_set(em, ERR_UNSUPPORTED, "piece %u is marked as unused: cut-down vocabularies are not supported",
			       m->count);
	if (m->count == m->room) {
		u32 room = m->room == 0 ? 4096 : m->room * 2;
		struct convert_piece *pieces = realloc(m->pieces, room * sizeof(*pieces));
		if (pieces == NULL)
			return ERR_NO_MEMORY;
		m->pieces = pieces;
		m->room = room;
	}
	m->pieces[m->count++] = p;
	m->text_bytes += p.bytes;
	return ERR_OK;
}

static bool read_trainer(struct convert_pieces *m, struct wire w)
{
	struct wire_field f;
	bool damaged = false;
	while (wire_next(&w, &f, &damaged)) {
		if (f.number == 3)
			m->model_type = (u32)f.value;
		else if (f.number == 24)
			m->suffix_spaces = f.value != 0;
		else if (f.number == 35)
			m->byte_fallback = f.value != 0;
	}
	return !damaged;
}

static bool read_normalizer(struct convert_pieces *m, struct wire w)
{
	struct wire_field f;
	bool damaged = false;
	while (wire_next(&w, &f, &damaged)) {
		if (f.number == 2 && f.text != NULL) {
			m->charsmap = f.text;
			m->charsmap_bytes = f.bytes;
		} else if (f.number == 3) {
			m->dummy_prefix = f.value != 0;
		} else if (f.number == 4) {
			m->one_space = f.value != 0;
		} else if (f.number == 5) {
			m->escape_space = f.value != 0;
		}
	}
	return !damaged;
}

static enum err read_model(struct convert_pieces *m, const char *data, size_t bytes, struct err_msg *em)
{
	struct wire w = wire_of(data, bytes);
	struct wire_field f;
	bool damaged = false;
	enum err e = ERR_OK;
	*m = (struct convert_pieces){.model_type = SPM_UNIGRAM, .dummy_prefix = true, .one_space = true, .escape_space = true};
	while (e == ERR_OK && wire_next(&w, &f, &damaged)) {
		if (f.number == 1 && f.text != NULL)
			e = read_piece(m, wire_of(f.text, f.bytes), em);
		else if (f.number == 2 && f.text != NULL)
			damaged = !read_trainer(m, wire_of(f.text, f.bytes));
		else if (f.number == 3 && f.text != NULL)
			damaged = !read_normalizer(m, wire_of(f.text, f.bytes));
		if (damaged)
			break;
	}
	if (e != ERR_OK)
		return e;
	if (damaged || m->count == 0)
		return err_set(em, ERR_FORMAT, "the file is no SentencePiece model, or damaged");
	if (m->model_type != SPM_BPE && m->model_type != SPM_UNIGRAM)
		return err_set(em, ERR_UNSUPPORTED, "SentencePiece model type %u is not supported (supported: 1 Unigram, 2 BPE)",
			       m->model_type);
	if (m->suffix_spaces)
		return err_set(em, ERR_UNSUPPORTED, "treat_whitespace_as_suffix is not supported");
	return ERR_OK;
}

/* ---- tokenizer.json ---- */

static void write_typed(struct json_writer *w, const char *type)
{
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, type);
}

static void write_pair(struct json_writer *w, const char *key, const char *value)
{
	json_key(w, key);
	json_write_cstr(w, value);
}

static void write_replace(struct json_writer *w, const char *kind, const char *pattern, const char *content)
{
	write_typed(w, "Replace");
	json_key(w, "pattern");
	json_object_begin(w);
	write_pair(w, kind, pattern);
	json_object_end(w);
	write_pair(w, "content", content);
	json_object_end(w);
}

static void write_base64(struct json_writer *w, const char *data, size_t bytes)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	struct buf text = {0};
	for (size_t i = 0; i < bytes; i += 3) {
		u32 left = (u32)(bytes - i < 3 ? bytes - i : 3), bits = 0;
		for (u32 k = 0; k < 3; k++)
			bits = bits << 8 | (k < left ? (u8)data[i + k] : 0u);
		for (u32 k = 0; k < 4; k++)
			buf_append_char(&text, k <= left ? digits[bits >> (18 - 6 * k) & 63] : '=');
	}
	json_write_string(w, buf_cstr(&text), text.bytes);
	w->out->failed = w->out->failed || text.failed;
	buf_fini(&text);
}

/* Map characters, one space for several and none at the ends, a space in front, spaces as U+2581. Without "legacy" the
 * space in front goes to the start of the text only, not behind special tokens too. */
static void write_normalizer(struct json_writer *w, const struct convert_pieces *m, json_val config)
{
	bool legacy = m->legacy, prefix = m->dummy_prefix;
	(void)json_bool(json_get(config, "legacy"), &legacy);
	(void)json_bool(json_get(config, "add_prefix_space"), &prefix);
	json_key(w, "normalizer");
	write_typed(w, "Sequence");
	json_key(w, "normalizers");
	json_array_begin(w);
	if (m->charsmap_bytes > 0) {
		write_typed(w, "Precompiled");
		json_key(w, "precompiled_charsmap");
		write_base64(w, m->charsmap, m->charsmap_bytes);
		json_key(w, "longest");
		json_write_bool(w, true);
		json_object_end(w);
	}
	if (m->one_space) {
		write_replace(w, "Regex", "\\A +|[ " METASPACE "]+\\z", "");
		write_replace(w, "Regex", " {2,}", " ");
	}
	if (prefix) {
		write_typed(w, "Prepend");
		write_pair(w, "prepend", m->escape_space ? METASPACE : " ");
		json_key(w, "first_only");
		json_write_bool(w, !legacy);
		json_object_end(w);
	}
	if (m->escape_space)
		write_replace(w, "String", " ", METASPACE);
	json_array_end(w);
	json_object_end(w);
}

static void write_decoder(struct json_writer *w, const struct convert_pieces *m)
{
	json_key(w, "decoder");
	write_typed(w, "Sequence");
	json_key(w, "decoders");
	json_array_begin(w);
	write_replace(w, "String", METASPACE, " ");
	if (m->byte_fallback) {
		write_typed(w, "ByteFallback");
		json_object_end(w);
	}
	write_typed(w, "Fuse");
	json_object_end(w);
	if (m->dummy_prefix || m->one_space) { /* texts of models with one space for several begin with none */
		write_typed(w, "Strip");
		write_pair(w, "content", " ");
		json_key(w, "start");
		json_write_uint(w, m->one_space ? STRIP_MAX : 1);
		json_key(w, "stop");
		json_write_uint(w, 0);
		json_object_end(w);
	}
	json_array_end(w);
	json_object_end(w);
}

static enum err write_merges(struct json_writer *w, const struct convert_pieces *m, const struct vocab *v)
{
	struct convert_merges merges = {0};
	enum err e = ERR_OK;
	for (u32 id = 0; id < m->count && e == ERR_OK; id++)
		if (m->pieces[id].type == PIECE_NORMAL || m->pieces[id].type == PIECE_USER_DEFINED)
			e = convert_merges_add(&merges, v, id, m->pieces[id].score, false);
	convert_merges_sort(&merges);
	json_key(w, "merges");
	json_array_begin(w);
	for (size_t i = 0; i < merges.count && e == ERR_OK; i++) {
		const struct token *l = &v->tokens[merges.items[i].left], *r = &v->tokens[merges.items[i].right];
		json_array_begin(w);
		json_write_string(w, l->text, l->bytes);
		json_write_string(w, r->text, r->bytes);
		json_array_end(w);
	}
	json_array_end(w);
	free(merges.items);
	return e;
}

static u32 find_unknown(const struct convert_pieces *m)
{
	for (u32 id = 0; id < m->count; id++)
		if (m->pieces[id].type == PIECE_UNKNOWN)
			return id;
	return TOKEN_NONE;
}

static enum err write_bpe(struct json_writer *w, const struct convert_pieces *m, const struct vocab *v)
{
	u32 unk = find_unknown(m);
	write_pair(w, "type", "BPE");
	if (unk != TOKEN_NONE) {
		json_key(w, "unk_token");
		json_write_string(w, m->pieces[unk].text, m->pieces[unk].bytes);
	}
	json_key(w, "fuse_unk");
	json_write_bool(w, true);
	convert_write_vocab(w, m, true);
	return write_merges(w, m, v);
}

static void write_unigram(struct json_writer *w, const struct convert_pieces *m)
{
	u32 unk = find_unknown(m);
	write_pair(w, "type", "Unigram");
	json_key(w, "unk_id");
	if (unk == TOKEN_NONE)
		json_write_null(w);
	else
		json_write_uint(w, unk);
	json_key(w, "vocab");
	json_array_begin(w);
	for (u32 id = 0; id < m->count; id++) {
		json_array_begin(w);
		json_write_string(w, m->pieces[id].text, m->pieces[id].bytes);
		json_write_double(w, (double)m->pieces[id].score);
		json_array_end(w);
	}
	json_array_end(w);
}

static void write_added(struct json_writer *w, const struct convert_pieces *m, json_val config, enum err *e)
{
	struct convert_added *added = calloc(m->count, sizeof(*added));
	size_t count = 0;
	for (u32 id = 0; added != NULL && id < m->count; id++) {
		const struct convert_piece *p = &m->pieces[id];
		bool special = p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN;
		if (special || p->type == PIECE_USER_DEFINED)
			added[count++] = (struct convert_added){.text = p->text,
								.bytes = p->bytes,
								.id = id,
								.special = special,
								.rstrip = p->rstrip};
	}
	*e = added == NULL ? ERR_NO_MEMORY : *e;
	convert_write_added(w, added, count, config);
	free(added);
}

/* XLM-R and its like number the pieces differently from the file; they come with tokenizer.json. */
static enum err check_class(json_val config, struct err_msg *em)
{
	static const char *const shifted[] = {"XLMRoberta", "Camembert", "MBart", "Barthez", "NllbTokenizer", "M2M100",
					      "XGLM", "Pegasus", "BigBird", "Reformer", "Albert", "XLNet", "Deberta"};
	const char *class = json_cstr(json_get(config, "tokenizer_class"), "");
	for (size_t i = 0; i < COUNT_OF(shifted); i++)
		if (strncmp(class, shifted[i], strlen(shifted[i])) == 0)
			return err_set(em, ERR_UNSUPPORTED,
				       "a SentencePiece model of class %s changes what the file says; save the tokenizer as "
				       "tokenizer.json",
				       class);
	return ERR_OK;
}

static enum err write_all(struct json_writer *w, const struct convert_pieces *m, const struct vocab *v, json_val config,
			  struct err_msg *em)
{
	bool t5 = strncmp(json_cstr(json_get(config, "tokenizer_class"), ""), "T5", 2) == 0;
	struct convert_around around = {.vocab = v, .add_bos = !t5, .add_eos = t5, .bos = "<s>", .eos = "</s>"};
	around.add_bos = around.add_bos && m->model_type == SPM_BPE;
	enum err e = ERR_OK;
	json_object_begin(w);
	write_added(w, m, config, &e);
	write_normalizer(w, m, config);
	write_decoder(w, m);
	if (e == ERR_OK)
		e = convert_write_around(w, &around, config, em);
	json_key(w, "model");
	json_object_begin(w);
	json_key(w, "byte_fallback");
	json_write_bool(w, m->byte_fallback);
	if (m->model_type == SPM_UNIGRAM)
		write_unigram(w, m);
	else if (e == ERR_OK)
		e = write_bpe(w, m, v);
	json_object_end(w);
	json_object_end(w);
	return e == ERR_OK && !buf_ok(w->out) ? ERR_NO_MEMORY : e;
}

enum err convert_pieces(struct buf *out, const struct convert_pieces *m, json_val config, struct err_msg *em)
{
	struct vocab v = {0};
	struct json_writer w;
	enum err e = vocab_init(&v, m->count, m->text_bytes + m->count);
	for (u32 id = 0; id < m->count && e == ERR_OK; id++) {
		u32 type = m->pieces[id].type;
		bool merges = type == PIECE_NORMAL || type == PIECE_USER_DEFINED;
		vocab_put(&v, id, m->pieces[id].text, m->pieces[id].bytes, merges ? TOKEN_IN_MODEL : 0);
	}
	json_begin(&w, out);
	if (e == ERR_OK)
		e = write_all(&w, m, &v, config, em);
	vocab_fini(&v);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the pieces of the vocabulary") : e;
}

static enum err convert_model(struct buf *out, const char *data, size_t bytes, bool legacy, json_val config, struct err_msg *em)
{
	struct convert_pieces m = {0};
	enum err e = read_model(&m, data, bytes, em);
	m.legacy = legacy;
	if (e == ERR_NO_MEMORY)
		err_set(em, e, "out of memory for the SentencePiece model");
	if (e == ERR_OK)
		e = check_class(config, em);
	if (e == ERR_OK)
		e = convert_pieces(out, &m, config, em);
	free(m.pieces);
	return e;
}

enum err convert_sentencepiece(struct buf *out, const char *data, size_t bytes, json_val config, struct err_msg *em)
{
	return convert_model(out, data, bytes, false, config, em);
}

enum err convert_mistral_pieces(struct buf *out, const char *data, size_t bytes, json_val config, struct err_msg *em)
{
	return convert_model(out, data, bytes, true, config, em);
}
