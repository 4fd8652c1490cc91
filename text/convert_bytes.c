/* Owns the writing of vocabularies whose tokens are bytes as the BPE model of a tokenizer.json: names in the
 * stand-ins of bytes, merges by rank, pieces cut by one pattern. Runs once while a model without
 * tokenizer.json loads. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/convert_priv.h"
#include "text/unicode_priv.h"

/* The stand-ins of bytes. */
static const char *spell(struct buf *b, const struct token *t)
{
	buf_clear(b);
	for (u32 i = 0; i < t->bytes; i++) {
		char utf8[4];
		buf_append(b, utf8, utf8_put(utf8, byte_level_char((u8)t->text[i])));
	}
	return buf_cstr(b);
}

static enum err write_merges(struct json_writer *w, const struct vocab *v, struct buf *name)
{
	struct convert_merges merges = {0};
	enum err e = ERR_OK;
	for (u32 id = 0; id < v->count && e == ERR_OK; id++)
		if (v->tokens[id].flags & TOKEN_IN_MODEL) /* by rank, whatever the sides are */
			e = convert_merges_add(&merges, v, id, 0, true);
	json_key(w, "merges");
	json_array_begin(w);
	for (size_t i = 0; i < merges.count && e == ERR_OK; i++) {
		json_array_begin(w);
		json_write_cstr(w, spell(name, &v->tokens[merges.items[i].left]));
		json_write_cstr(w, spell(name, &v->tokens[merges.items[i].right]));
		json_array_end(w);
	}
	json_array_end(w);
	free(merges.items);
	return e;
}

enum err convert_write_byte_model(struct json_writer *w, const struct vocab *v)
{
	struct buf name = {0};
	json_key(w, "model");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "BPE");
	json_key(w, "ignore_merges");
	json_write_bool(w, true);
	json_key(w, "vocab");
	json_object_begin(w);
	for (u32 id = 0; id < v->count; id++)
		if (v->tokens[id].flags & TOKEN_IN_MODEL) {
			json_key(w, spell(&name, &v->tokens[id]));
			json_write_uint(w, id);
		}
	json_object_end(w);
	enum err e = write_merges(w, v, &name);
	json_object_end(w);
	e = e == ERR_OK && name.failed ? ERR_NO_MEMORY : e;
	buf_fini(&name);
	return e;
}

void convert_write_split(struct json_writer *w, const char *pattern, size_t bytes, bool add_prefix_space)
{
	json_key(w, "pre_tokenizer");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "Sequence");
	json_key(w, "pretokenizers");
	json_array_begin(w);
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "Split");
	json_key(w, "behavior");
	json_write_cstr(w, "Isolated");
	json_key(w, "pattern");
	json_object_begin(w);
	json_key(w, "Regex");
	json_write_string(w, pattern, bytes);
	json_object_end(w);
	json_object_end(w);
	convert_write_byte_level(w, add_prefix_space, false);
	json_array_end(w);
	json_object_end(w);
}

void convert_write_byte_level(struct json_writer *w, bool add_prefix_space, bool use_regex)
{
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "ByteLevel");
	json_key(w, "add_prefix_space");
	json_write_bool(w, add_prefix_space);
	json_key(w, "use_regex");
	json_write_bool(w, use_regex);
	json_object_end(w);
}
