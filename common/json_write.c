/* Writing JSON straight into a buffer. The writer keeps one bit per open container and nothing else; errors
 * of memory stay in the buffer (buf_ok). */
#include "common/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/json_priv.h"
#include "common/utf8.h"

void json_begin(struct json_writer *w, struct buf *out)
{
	*w = (struct json_writer){.out = out};
}

/* What has to stand in front of a value or key at this place. */
static void separate(struct json_writer *w)
{
	if (w->after_key) {
		w->after_key = false;
		return;
	}
	if (w->depth == 0)
		return;
	uint64_t bit = 1ull << (w->depth - 1);
	if (w->has_member & bit)
		buf_append(w->out, ", ", w->spaced ? 2 : 1);
	w->has_member |= bit;
}

static void open_container(struct json_writer *w, char c)
{
	ASSERT(w->depth < JSON_LEVELS_MAX);
	separate(w);
	buf_append_char(w->out, c);
	w->depth++;
	w->has_member &= ~(1ull << (w->depth - 1));
}

static void close_container(struct json_writer *w, char c)
{
	ASSERT(w->depth > 0 && !w->after_key);
	w->depth--;
	buf_append_char(w->out, c);
}

void json_object_begin(struct json_writer *w)
{
	open_container(w, '{');
}

void json_object_end(struct json_writer *w)
{
	close_container(w, '}');
}

void json_array_begin(struct json_writer *w)
{
	open_container(w, '[');
}

void json_array_end(struct json_writer *w)
{
	close_container(w, ']');
}

static void write_key(struct json_writer *w, const char *key, size_t bytes)
{
	ASSERT(!w->after_key);
	separate(w);
	json_escape(w->out, key, bytes);
	buf_append(w->out, ": ", w->spaced ? 2 : 1);
	w->after_key = true;
}

void json_key(struct json_writer *w, const char *key)
{
	write_key(w, key, strlen(key));
}

void json_key_of(struct json_writer *w, const struct json_iter *member)
{
	write_key(w, member->key, member->key_bytes);
}

void json_write_string(struct json_writer *w, const char *text, size_t bytes)
{
	separate(w);
	json_escape(w->out, text, bytes);
}

void json_write_cstr(struct json_writer *w, const char *text)
{
	json_write_string(w, text, strlen(text));
}

void json_write_int(struct json_writer *w, int64_t value)
{
	separate(w);
	buf_printf(w->out, "%" PRId64, value);
}

void json_write_uint(struct json_writer *w, uint64_t value)
{
	separate(w);
	buf_printf(w->out, "%" PRIu64, value);
}

void json_write_double(struct json_writer *w, double value)
{
	char text[JSON_DOUBLE_BYTES_MAX];

	if (!isfinite(value)) {
		json_write_null(w);
		return;
	}
	separate(w);
	buf_append(w->out, text, json_shim_format_double(text, value));
}

void json_write_float(struct json_writer *w, float value)
{
	char text[JSON_DOUBLE_BYTES_MAX];

	if (!isfinite(value)) {
		json_write_null(w);
		return;
	}
	separate(w);
	buf_append(w->out, text, json_shim_format_float(text, value));
}

void json_write_bool(struct json_writer *w, bool value)
{
	separate(w);
	buf_append_str(w->out, value ? "true" : "false");
}

void json_write_null(struct json_writer *w)
{
	separate(w);
	buf_append_str(w->out, "null");
}

void json_write_raw(struct json_writer *w, const char *json, size_t bytes)
{
	separate(w);
	buf_append(w->out, json, bytes);
}

void json_write_value(struct json_writer *w, json_val v)
{
	switch (json_type(v)) {
	case JSON_MISSING:
	case JSON_NULL:
		json_write_null(w);
		break;
	case JSON_BOOL:
		json_write_bool(w, v.node->b);
		break;
	case JSON_INT:
		if (v.node->is_unsigned)
			json_write_uint(w, v.node->u);
		else
			json_write_int(w, v.node->i);
		break;
	case JSON_DOUBLE:
		json_write_double(w, v.node->d);
		break;
	case JSON_STRING:
		json_write_string(w, v.node->text, v.node->size);
		break;
	case JSON_ARRAY:
		json_array_begin(w);
		for (struct json_iter it = json_iterate(v); json_next(&it);)
			json_write_value(w, it.value);
		json_array_end(w);
		break;
	case JSON_OBJECT:
		json_object_begin(w);
		for (struct json_iter it = json_iterate(v); json_next(&it);) {
			write_key(w, it.key, it.key_bytes);
			json_write_value(w, it.value);
		}
		json_object_end(w);
		break;
	}
}

static void escape_char(struct buf *out, unsigned char c)
{
	static const char shorts[] = "\bb\ff\nn\rr\tt\"\"\\\\";
	static const char hex[] = "0123456789abcdef";

	for (size_t i = 0; i + 1 < sizeof(shorts); i += 2)
		if ((unsigned char)shorts[i] == c) {
			char text[2] = {'\\', shorts[i + 1]};
			buf_append(out, text, 2);
			return;
		}
	char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
	buf_append(out, text, 6);
}

/* Ends of lines to Unicode, and to many a reader of JSON lines and event streams, though not to JSON. */
static bool ends_line(uint32_t code)
{
	return code == 0x85 || code == 0x2028 || code == 0x2029;
}

static void escape_line_end(struct buf *out, uint32_t code)
{
	buf_append_str(out, code == 0x85 ? "\\u0085" : code == 0x2028 ? "\\u2028" : "\\u2029");
}

void json_escape(struct buf *out, const char *text, size_t bytes)
{
	size_t run = 0; /* begin of what can be copied as it is */

	if (!buf_reserve(out, bytes + 2))
		return;
	buf_append_char(out, '"');
	for (size_t i = 0; i < bytes;) {
		unsigned char c = (unsigned char)text[i];
		if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
			i++;
			continue;
		}
		if (c >= 0x80) {
			uint32_t code;
			int n = utf8_next(text + i, bytes - i, &code);
			if (n > 0 && !ends_line(code)) {
				i += (size_t)n;
				continue;
			}
			buf_append(out, text + run, i - run);
			if (n > 0)
				escape_line_end(out, code);
			else
				buf_append_str(out, "\xef\xbf\xbd");
			i += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : bytes - i;
		} else {
			buf_append(out, text + run, i - run);
			escape_char(out, c);
			i++;
		}
		run = i;
	}
	buf_append(out, text + run, bytes - run);
	buf_append_char(out, '"');
}
