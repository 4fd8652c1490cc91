/* Owns the named values of a file in the format of ggml. Runs in any process. Never trusts a length: what a value holds was
 * checked when the file was opened, and strings of arrays, whose places are found by their lengths, are again when they are read. */
#include <stdlib.h>
#include <string.h>

#include "common/gguf_priv.h"
#include "common/utf8.h"

enum {
	VALUES_MAX = 1 << 16,
	KEY_BYTES_MAX = 65535, /* the format's own limit */
	NESTED_MAX = 4,
};

enum kind { KIND_U8, KIND_I8, KIND_U16, KIND_I16, KIND_U32, KIND_I32, KIND_F32, KIND_BOOL, KIND_STRING, KIND_ARRAY, KIND_U64, KIND_I64, KIND_F64 };

/* Bytes of a number; 0: it is none. */
static const u8 KIND_BYTES[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct gguf_value {
	const char *key;
	u32 kind, element;	/* enum kind; the latter of an array's elements */
	u64 count;		/* of an array's elements; else 1 */
	const char *data, *end; /* the first element, and behind the last one */
	/* Strings of an array have no places of their own: the one that is read next, most likely. */
	u64 next;
	const char *next_at;
};

/* ---------------------------------------------------------------- reading the header */

bool gguf_take(struct gguf_cursor *c, void *out, size_t bytes)
{
	if ((size_t)(c->end - c->at) < bytes)
		return false;
	memcpy(out, c->at, bytes); /* little-endian, as every host we run on */
	c->at += bytes;
	return true;
}

static bool skip(struct gguf_cursor *c, u64 bytes)
{
	if ((u64)(c->end - c->at) < bytes)
		return false;
	c->at += bytes;
	return true;
}

bool gguf_take_string(struct gguf_cursor *c, const char **out, u64 *bytes)
{
	struct gguf_cursor was = *c;

	if (gguf_take(c, bytes, sizeof(*bytes))) {
		*out = c->at;
		if (skip(c, *bytes))
			return true;
	}
	*c = was;
	return false;
}

/* Names are put into messages as they are. */
static bool is_name(const char *text, size_t bytes)
{
	bool controls = false;

	for (size_t i = 0; i < bytes; i++)
		controls = controls || (u8)text[i] < 0x20 || text[i] == 0x7f;
	return !controls && utf8_valid(text, bytes);
}

enum err gguf_take_name(const char **out, struct gguf_cursor *c, u64 bytes_max, struct arena *arena, struct err_msg *em)
{
	const char *text;
	u64 bytes;

	if (!gguf_take_string(c, &text, &bytes))
		return err_set(em, ERR_FORMAT, "truncated: the file ends inside a name, or the name's length is wrong");
	if (bytes == 0 || bytes > bytes_max || !is_name(text, (size_t)bytes))
		return err_set(em, ERR_FORMAT, "a name of %llu bytes that is none; it must have 1 to %llu, of UTF-8 without control characters",
			       (unsigned long long)bytes, (unsigned long long)bytes_max);
	*out = arena_strndup(arena, text, (size_t)bytes);
	return *out ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static enum err cut_short(struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "truncated: the file ends inside of it, or one of its lengths is wrong");
}

static enum err check_bools(const char *data, u64 count, struct err_msg *em)
{
	for (u64 i = 0; i < count; i++)
		if ((u8)data[i] > 1)
			return err_set(em, ERR_FORMAT, "a truth value is %u; it must be 0 or 1", (u8)data[i]);
	return ERR_OK;
}

/* `count` elements of a kind that is not an array. */
static enum err pass_elements(struct gguf_cursor *c, u32 kind, u64 count, struct err_msg *em)
{
	const char *first = c->at, *text;
	u64 bytes;

	if (kind != KIND_STRING) {
		if (__builtin_mul_overflow(count, (u64)KIND_BYTES[kind], &bytes) || !skip(c, bytes))
			return cut_short(em);
		return kind == KIND_BOOL ? check_bools(first, count, em) : ERR_OK;
	}
	for (u64 i = 0; i < count; i++)
		if (!gguf_take_string(c, &text, &bytes))
			return cut_short(em);
	return ERR_OK;
}

static enum err take_array(struct gguf_cursor *c, u32 *element, u64 *count, struct err_msg *em)
{
	if (!gguf_take(c, element, sizeof(*element)) || !gguf_take(c, count, sizeof(*count)))
		return cut_short(em);
	if (*element > KIND_F64)
		return err_set(em, ERR_FORMAT, "an array of elements of kind %u; 0 to %d are known", *element, KIND_F64);
	return ERR_OK;
}

/* Arrays of arrays are passed over: nothing asks for them. */
static enum err pass_array(struct gguf_cursor *c, u32 element, u64 count, u32 depth, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (element != KIND_ARRAY)
		return pass_elements(c, element, count, em);
	if (depth == NESTED_MAX)
		return err_set(em, ERR_FORMAT, "arrays in arrays, more than %d deep", NESTED_MAX);
	for (u64 i = 0; !e && i < count; i++) {
		u32 inner;
		u64 inner_count;
		e = take_array(c, &inner, &inner_count, em);
		if (!e)
			e = pass_array(c, inner, inner_count, depth + 1, em);
	}
	return e;
}

static enum err read_value(struct gguf_value *v, struct gguf_cursor *c, struct err_msg *em)
{
	enum err e = ERR_OK;

	v->count = 1;
	if (!gguf_take(c, &v->kind, sizeof(v->kind)))
		return cut_short(em);
	if (v->kind > KIND_F64)
		return err_set(em, ERR_FORMAT, "a value of kind %u; 0 to %d are known", v->kind, KIND_F64);
	v->element = v->kind;
	if (v->kind == KIND_ARRAY)
		e = take_array(c, &v->element, &v->count, em);
	v->data = v->next_at = c->at;
	if (!e)
		e = pass_array(c, v->element, v->count, 0, em);
	v->end = c->at;
	return e;
}

static int compare_keys(const void *a, const void *b)
{
	const struct gguf_value *x = a, *y = b;

	return strcmp(x->key, y->key);
}

enum err gguf_values_read(struct gguf_values *v, struct gguf_cursor *c, u64 count, struct arena *arena, struct err_msg *em)
{
	*v = (struct gguf_values){0};
	if (count > VALUES_MAX)
		return err_set(em, ERR_TOO_LONG, "%llu named values; at most %d are read", (unsigned long long)count, VALUES_MAX);
	v->list = calloc(count ? count : 1, sizeof(*v->list));
	if (!v->list)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (; v->count < count; v->count++) {
		struct gguf_value *at = &v->list[v->count];
		enum err e = gguf_take_name(&at->key, c, KEY_BYTES_MAX, arena, em);
		if (e) {
			err_prefix(em, "value %u of %llu", v->count, (unsigned long long)count);
			return e;
		}
		e = read_value(at, c, em);
		if (e) {
			err_prefix(em, "%.200s", at->key);
			return e;
		}
	}
	qsort(v->list, v->count, sizeof(*v->list), compare_keys);
	for (u32 i = 1; i < v->count; i++)
		if (!strcmp(v->list[i - 1].key, v->list[i].key))
			return err_set(em, ERR_FORMAT, "%.200s: there are two values of this name", v->list[i].key);
	return ERR_OK;
}

void gguf_values_fini(struct gguf_values *v)
{
	free(v->list);
	*v = (struct gguf_values){0};
}

/* ---------------------------------------------------------------- values */

static struct gguf_value *find(const struct gguf_values *v, const char *key)
{
	const struct gguf_value wanted = {.key = key};

	return v->count ? bsearch(&wanted, v->list, v->count, sizeof(wanted), compare_keys) : NULL;
}

#define READ_AS(type) \
	do { \
		type x; \
		memcpy(&x, at, sizeof(x)); \
		*out = x; \
		return true; \
	} while (0)

static bool int_at(u32 kind, const char *at, i64 *out)
{
	u64 large;

	switch (kind) {
	case KIND_U8:
	case KIND_BOOL:
		READ_AS(u8);
	case KIND_I8:
		READ_AS(int8_t);
	case KIND_U16:
		READ_AS(u16);
	case KIND_I16:
		READ_AS(int16_t);
	case KIND_U32:
		READ_AS(u32);
	case KIND_I32:
		READ_AS(i32);
	case KIND_I64:
		READ_AS(i64);
	case KIND_U64:
		memcpy(&large, at, sizeof(large));
		if (large > INT64_MAX)
			return false;
		*out = (i64)large;
		return true;
	default:
		return false;
	}
}

static bool float_at(u32 kind, const char *at, double *out)
{
	i64 whole;

	if (kind == KIND_F64)
		READ_AS(double);
	if (kind == KIND_F32)
		READ_AS(float);
	if (!int_at(kind, at, &whole))
		return false;
	*out = (double)whole;
	return true;
}

static const struct gguf_value *find_number(const struct gguf_values *v, const char *key)
{
	const struct gguf_value *value = find(v, key);

	return value && value->kind != KIND_ARRAY && value->kind != KIND_STRING && value->kind != KIND_BOOL ? value : NULL;
}

bool gguf_values_int(const struct gguf_values *v, const char *key, i64 *out)
{
	const struct gguf_value *value = find_number(v, key);

	return value && int_at(value->kind, value->data, out);
}

bool gguf_has(const struct gguf *g, const char *key)
{
	return find(gguf_values_of(g), key) != NULL;
}

const char *gguf_key_at(const struct gguf *g, u32 index)
{
	const struct gguf_values *v = gguf_values_of(g);

	return index < v->count ? v->list[index].key : NULL;
}

bool gguf_int(const struct gguf *g, const char *key, i64 *out)
{
	return gguf_values_int(gguf_values_of(g), key, out);
}

bool gguf_float(const struct gguf *g, const char *key, double *out)
{
	const struct gguf_value *value = find_number(gguf_values_of(g), key);

	return value && float_at(value->kind, value->data, out);
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out)
{
	const struct gguf_value *value = find(gguf_values_of(g), key);

	if (!value || value->kind != KIND_BOOL)
		return false;
	*out = *value->data != 0;
	return true;
}

bool gguf_string(const struct gguf *g, const char *key, const char **out, size_t *bytes)
{
	const struct gguf_value *value = find(gguf_values_of(g), key);
	const char *text;
	u64 length;

	if (!value || value->kind != KIND_STRING)
		return false;
	struct gguf_cursor c = {value->data, value->end};
	if (!gguf_take_string(&c, &text, &length))
		return false;
	*out = text;
	*bytes = (size_t)length;
	return true;
}

bool gguf_array(const struct gguf *g, const char *key, u64 *count)
{
	const struct gguf_value *value = find(gguf_values_of(g), key);

	if (!value || value->kind != KIND_ARRAY)
		return false;
	*count = value->count;
	return true;
}

static struct gguf_value *find_element(const struct gguf *g, const char *key, u64 index)
{
	struct gguf_value *value = find(gguf_values_of(g), key);

	return value && value->kind == KIND_ARRAY && index < value->count ? value : NULL;
}

bool gguf_array_string(const struct gguf *g, const char *key, u64 index, const char **out, size_t *bytes)
{
	struct gguf_value *value = find_element(g, key, index);
	const char *text = NULL;
	u64 length = 0;

	if (!value || value->element != KIND_STRING)
		return false;
	if (index < value->next) {
		value->next = 0;
		value->next_at = value->data;
	}
	for (; value->next <= index; value->next++) {
		struct gguf_cursor c = {value->next_at, value->end};
		if (!gguf_take_string(&c, &text, &length))
			return false;
		value->next_at = c.at;
	}
	*out = text;
	*bytes = (size_t)length;
	return true;
}

/* NULL: it is no array of numbers. */
static const char *number_of(const struct gguf_value *value, u64 index)
{
	if (!value || value->element == KIND_STRING || value->element == KIND_ARRAY)
		return NULL;
	return value->data + index * KIND_BYTES[value->element];
}

bool gguf_array_int(const struct gguf *g, const char *key, u64 index, i64 *out)
{
	const struct gguf_value *value = find_element(g, key, index);
	const char *at = number_of(value, index);

	return at && int_at(value->element, at, out);
}

bool gguf_array_float(const struct gguf *g, const char *key, u64 index, double *out)
{
	const struct gguf_value *value = find_element(g, key, index);
	const char *at = number_of(value, index);

	return at && value->element != KIND_BOOL && float_at(value->element, at, out);
}
