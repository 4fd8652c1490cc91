/* Reading JSON documents: look-ups in the flat node array that the shim built. Documents are immutable after
 * parsing, so any thread may read them. */
#include "common/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/json_priv.h"

/* ---------------------------------------------------------------- parsing */

enum err json_parse(struct json_doc **out, const char *text, size_t bytes, struct err_msg *em)
{
	struct json_shim_error error;
	struct json_doc *doc = calloc(1, sizeof(*doc));

	*out = NULL;
	if (doc == NULL)
		return err_set(em, ERR_NO_MEMORY, "no memory for a JSON document");
	enum json_shim_status status = json_shim_parse(doc, text, bytes, &error);
	if (status == JSON_SHIM_OK) {
		*out = doc;
		return ERR_OK;
	}
	free(doc);
	if (status == JSON_SHIM_NO_MEMORY)
		return err_set(em, ERR_NO_MEMORY, "no memory for a JSON document of %zu bytes", bytes);
	if (status == JSON_SHIM_TOO_LONG)
		return err_set(em, ERR_TOO_LONG, "a JSON document may have 4 GiB, this one has %zu bytes",
			       bytes);
	size_t line = 1;
	for (size_t i = 0; error.offset != SIZE_MAX && i < error.offset; i++)
		line += text[i] == '\n';
	if (line > 1)
		return err_set(em, ERR_FORMAT, "invalid JSON: %s (at byte %zu, in line %zu)", error.reason, error.offset, line);
	if (error.offset != SIZE_MAX)
		return err_set(em, ERR_FORMAT, "invalid JSON: %s (at byte %zu)", error.reason, error.offset);
	return err_set(em, ERR_FORMAT, "invalid JSON: %s", error.reason);
}

/* The whole file in malloc'ed memory. */
static enum err read_file(const char *path, char **data, size_t *bytes, struct err_msg *em)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait for a writer */
	enum err e = ERR_OK;

	if (fd < 0)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0) {
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
		goto close_fd;
	}
	if (!S_ISREG(st.st_mode)) {
		e = err_set(em, ERR_IO, "%s: not a regular file", path);
		goto close_fd;
	}
	char *p = malloc((size_t)st.st_size + 1);
	if (p == NULL) {
		e = err_set(em, ERR_NO_MEMORY, "%s: no memory for %" PRId64 " bytes", path,
			    (int64_t)st.st_size);
		goto close_fd;
	}
	size_t have = 0;
	while (have < (size_t)st.st_size) {
		ssize_t n = read(fd, p + have, (size_t)st.st_size - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
			free(p);
			goto close_fd;
		}
		if (n == 0)
			break;
		have += (size_t)n;
	}
	*data = p;
	*bytes = have;
close_fd:
	close(fd);
	return e;
}

/* `text` with an object for every Infinity outside of strings. Returns whether there is one. */
static bool spell_infinity(struct buf *out, const char *text, size_t bytes)
{
	static const char word[] = "Infinity", object[] = "{\"__float__\": \"Infinity\"}";
	const size_t width = sizeof(word) - 1;
	bool quoted = false;
	size_t copied = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (quoted && text[i] == '\\') {
			i++;
		} else if (text[i] == '"') {
			quoted = !quoted;
		} else if (!quoted && bytes - i >= width && memcmp(text + i, word, width) == 0) {
			buf_append(out, text + copied, i - copied);
			buf_append(out, object, sizeof(object) - 1);
			i += width - 1;
			copied = i + 1;
		}
	}
	buf_append(out, text + copied, bytes - copied);
	return copied > 0;
}

/* What was wrong with `text`, if there still is something, is already in `em`. */
static enum err parse_spelled(struct json_doc **out, const char *text, size_t bytes, enum err found)
{
	struct buf spelled = {0};
	struct err_msg ignored;
	enum err e = found;

	if (spell_infinity(&spelled, text, bytes) && buf_ok(&spelled) &&
	    json_parse(out, spelled.data, spelled.bytes, &ignored) == ERR_OK)
		e = ERR_OK;
	buf_fini(&spelled);
	return e;
}

static enum err parse_file(struct json_doc **out, const char *path, bool python, struct err_msg *em)
{
	char *data = NULL;
	size_t bytes = 0, skip = 0;
	enum err e;

	*out = NULL;
	e = read_file(path, &data, &bytes, em);
	if (e != ERR_OK)
		return e;
	if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
		skip = 3; /* a byte order mark, which some editors write */
	e = json_parse(out, data + skip, bytes - skip, em);
	if (e == ERR_FORMAT && python)
		e = parse_spelled(out, data + skip, bytes - skip, e);
	free(data);
	if (e != ERR_OK)
		err_prefix(em, "%s", path);
	return e;
}

enum err json_parse_file(struct json_doc **out, const char *path, struct err_msg *em)
{
	return parse_file(out, path, false, em);
}

enum err json_parse_python_file(struct json_doc **out, const char *path, struct err_msg *em)
{
	return parse_file(out, path, true, em);
}

void json_free(struct json_doc **doc)
{
	if (*doc == NULL)
		return;
	json_shim_free(*doc);
	free(*doc);
	*doc = NULL;
}

/* ---------------------------------------------------------------- looking around */

static const struct json_node *after(const struct json_node *n)
{
	return n + (n->type == JSON_ARRAY || n->type == JSON_OBJECT ? n->size : 1);
}

json_val json_root(const struct json_doc *doc)
{
	return (json_val){doc != NULL ? doc->nodes : NULL};
}

enum json_type json_type(json_val v)
{
	return v.node != NULL ? (enum json_type)v.node->type : JSON_MISSING;
}

const char *json_type_name(json_val v)
{
	switch (json_type(v)) {
	case JSON_NULL:
		return "null";
	case JSON_BOOL:
		return "boolean";
	case JSON_INT:
		return "integer";
	case JSON_DOUBLE:
		return "number";
	case JSON_STRING:
		return "string";
	case JSON_ARRAY:
		return "array";
	case JSON_OBJECT:
		return "object";
	case JSON_MISSING:
		break;
	}
	return "missing";
}

bool json_present(json_val v)
{
	return json_type(v) != JSON_MISSING && json_type(v) != JSON_NULL;
}

json_val json_get(json_val v, const char *key)
{
	return json_getn(v, key, strlen(key));
}

bool json_is_member(const struct json_iter *it, const char *key)
{
	return it->key_bytes == strlen(key) && memcmp(it->key, key, it->key_bytes) == 0;
}

json_val json_getn(json_val v, const char *key, size_t key_bytes)
{
	json_val found = {NULL};

	if (json_type(v) != JSON_OBJECT)
		return found;
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if (it.key_bytes == key_bytes && memcmp(it.key, key, key_bytes) == 0)
			found = it.value;
	return found;
}

const char *json_text_with_nul(json_val v)
{
	const char *found = NULL, *text;
	size_t bytes;

	if (json_string(v, &text, &bytes))
		return memchr(text, '\0', bytes) ? text : NULL;
	for (struct json_iter it = json_iterate(v); !found && json_next(&it);)
		found = it.key && memchr(it.key, '\0', it.key_bytes) ? it.key : json_text_with_nul(it.value);
	return found;
}

uint32_t json_depth(json_val v)
{
	uint32_t deepest = 0;

	if (json_type(v) != JSON_ARRAY && json_type(v) != JSON_OBJECT)
		return 0;
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		uint32_t depth = json_depth(it.value);
		deepest = depth > deepest ? depth : deepest;
	}
	return deepest + 1;
}

size_t json_count(json_val v)
{
	enum json_type t = json_type(v);

	return t == JSON_ARRAY || t == JSON_OBJECT ? (size_t)v.node->count : 0;
}

json_val json_at(json_val v, size_t index)
{
	if (index >= json_count(v))
		return (json_val){NULL};
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if (index-- == 0)
			return it.value;
	return (json_val){NULL};
}

struct json_iter json_iterate(json_val v)
{
	struct json_iter it = {.left = json_count(v)};

	if (it.left != 0)
		it.next_node = v.node + 1;
	if (json_type(v) == JSON_OBJECT)
		it.key = ""; /* tells json_next that keys stand between the values */
	return it;
}

bool json_next(struct json_iter *it)
{
	if (it->left == 0)
		return false;
	it->left--;
	if (it->key != NULL) {
		it->key = it->next_node->text;
		it->key_bytes = it->next_node->size;
		it->next_node++;
	}
	it->value = (json_val){it->next_node};
	it->next_node = after(it->next_node);
	return true;
}

/* ---------------------------------------------------------------- reading values */

bool json_bool(json_val v, bool *out)
{
	if (json_type(v) != JSON_BOOL)
		return false;
	*out = v.node->b;
	return true;
}

bool json_int(json_val v, int64_t *out)
{
	if (json_type(v) != JSON_INT || v.node->is_unsigned)
		return false;
	*out = v.node->i;
	return true;
}

bool json_uint(json_val v, uint64_t *out)
{
	if (json_type(v) != JSON_INT || (!v.node->is_unsigned && v.node->i < 0))
		return false;
	*out = v.node->u; /* for what is not negative both members hold the same bits */
	return true;
}

bool json_double(json_val v, double *out)
{
	if (json_type(v) == JSON_INT)
		*out = v.node->is_unsigned ? (double)v.node->u : (double)v.node->i;
	else if (json_type(v) == JSON_DOUBLE)
		*out = v.node->d;
	else
		return false;
	return true;
}

bool json_string(json_val v, const char **out, size_t *bytes)
{
	if (json_type(v) != JSON_STRING)
		return false;
	*out = v.node->text;
	*bytes = v.node->size;
	return true;
}

const char *json_cstr(json_val v, const char *fallback)
{
	return json_type(v) == JSON_STRING ? v.node->text : fallback;
}

bool json_string_equals(json_val v, const char *text)
{
	return json_type(v) == JSON_STRING && v.node->size == strlen(text) &&
	       memcmp(v.node->text, text, v.node->size) == 0;
}
