/* Headers of safetensors files: their tensors' names, types, shapes and places. Runs in the worker while it loads. Never trusts a header: a
 * checkpoint is a file that somebody downloaded. */
#include "proc_worker/model/safetensors_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/json.h"

enum {
	TENSORS_MAX = 1024 * 1024,
	HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the format's own limit */
};

static const struct {
	const char *name;
	u32 bits;
	bool usable;
	enum kern_dtype dtype;
} DTYPES[] = {
	{"F32", 32, true, KERN_F32}, {"BF16", 16, true, KERN_BF16}, {"F16", 16, true, KERN_F16},
	{"F64", 64, false, 0},	     {"I64", 64, false, 0},	    {"I32", 32, false, 0},
	{"I16", 16, false, 0},	     {"I8", 8, false, 0},	    {"U64", 64, false, 0},
	{"U32", 32, false, 0},	     {"U16", 16, false, 0},	    {"U8", 8, false, 0},
	{"BOOL", 8, false, 0},	     {"F8_E4M3", 8, false, 0},	    {"F8_E5M2", 8, false, 0},
	{"F8_E8M0", 8, false, 0},    {"C64", 64, false, 0},
};

bool safetensors_set_type(struct st_tensor *t, const char *name, u32 *bits)
{
	for (size_t i = 0; i < COUNT_OF(DTYPES); i++)
		if (!strcmp(DTYPES[i].name, name)) {
			t->dtype_name = DTYPES[i].name;
			t->usable = DTYPES[i].usable;
			t->dtype = DTYPES[i].dtype;
			*bits = DTYPES[i].bits;
			return true;
		}
	return false;
}

static enum err check_length(const char *path, u64 bytes, struct err_msg *em)
{
	if (bytes >= 8)
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "%s: truncated: %llu bytes, a safetensors file has at least 8", path,
		       (unsigned long long)bytes);
}

static enum err read_shape(struct st_tensor *t, json_val shape, u64 *elements, struct err_msg *em)
{
	if (json_type(shape) != JSON_ARRAY || json_count(shape) > ST_DIMS_MAX)
		return err_set(em, ERR_FORMAT, "\"shape\" must be an array of at most %d numbers, found %s",
			       ST_DIMS_MAX, json_type_name(shape));
	*elements = 1;
	for (struct json_iter it = json_iterate(shape); json_next(&it);) {
		u64 n;
		if (!json_uint(it.value, &n))
			return err_set(em, ERR_FORMAT, "\"shape\" holds a %s, not a count",
				       json_type_name(it.value));
		if (__builtin_mul_overflow(*elements, n, elements))
			return err_set(em, ERR_FORMAT, "\"shape\" has more elements than can be counted");
		t->shape[t->dims++] = n;
	}
	return ERR_OK;
}

static enum err read_dtype(struct st_tensor *t, json_val dtype, u32 *bits, struct err_msg *em)
{
	const char *name = json_cstr(dtype, "");

	/* one with a NUL in it is none, whatever it begins with */
	if (json_string_equals(dtype, name) && safetensors_set_type(t, name, bits))
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "unknown \"dtype\" '%.32s'", name);
}

/* One entry of the header: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}. */
static enum err read_tensor(struct st_tensor *t, const struct st_file *f, json_val v, struct err_msg *em)
{
	json_val offsets = json_get(v, "data_offsets");
	u64 begin, end, elements = 0, bytes;
	u64 room = f->bytes - f->data_begin;
	u32 bits = 0;

	enum err e = read_dtype(t, json_get(v, "dtype"), &bits, em);
	if (!e)
		e = read_shape(t, json_get(v, "shape"), &elements, em);
	if (e)
		return e;
	if (json_count(offsets) != 2 || !json_uint(json_at(offsets, 0), &begin) ||
	    !json_uint(json_at(offsets, 1), &end) || begin > end)
		return err_set(em, ERR_FORMAT, "\"data_offsets\" must be [begin, end] with begin <= end");
	if (__builtin_mul_overflow(elements, bits / 8, &bytes) || bytes != end - begin) {
		char shape[128];
		safetensors_print_shape(shape, sizeof(shape), t->shape, t->dims);
		return err_set(em, ERR_FORMAT, "%s of %s does not fit %llu bytes of data", t->dtype_name,
			       shape, (unsigned long long)(end - begin));
	}
	if (end > room)
		return err_set(em, ERR_FORMAT,
			       "its data ends at byte %llu, but the file has only %llu bytes of data: "
			       "truncated, or the offsets are wrong",
			       (unsigned long long)end, (unsigned long long)room);
	t->data = f->map + f->data_begin + begin;
	t->bytes = bytes;
	return ERR_OK;
}

enum err safetensors_grow(struct safetensors *st, size_t extra, struct err_msg *em)
{
	size_t needed = st->tensor_count + extra;

	if (needed > TENSORS_MAX)
		return err_set(em, ERR_TOO_LONG, "more than %d tensors", TENSORS_MAX);
	if (needed <= st->tensor_capacity)
		return ERR_OK;
	struct st_tensor *grown = realloc(st->tensors, needed * sizeof(*grown));
	if (!grown)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	st->tensors = grown;
	st->tensor_capacity = (u32)needed;
	return ERR_OK;
}

static int compare_data(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;

	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* The tensors must cover the data without gap and without overlap, as the format demands. */
static enum err check_cover(struct st_file *f, struct st_tensor *tensors, u32 count, struct err_msg *em)
{
	const char *expected = f->map + f->data_begin;

	if (count)
		qsort(tensors, count, sizeof(*tensors), compare_data);
	for (u32 i = 0; i < count; i++) {
		const char *begin = tensors[i].data;
		if (begin != expected)
			return err_set(
				em, ERR_FORMAT, "%s: tensor %s begins at byte %lld of the data, %s at %lld",
				f->name, tensors[i].name, (long long)(begin - f->map - (i64)f->data_begin),
				begin < expected ? "inside the one that ends" : "behind a gap that begins",
				(long long)(expected - f->map - (i64)f->data_begin));
		expected = begin + tensors[i].bytes;
	}
	if (expected != f->map + f->bytes)
		return err_set(em, ERR_FORMAT, "%s: %lld bytes behind the last tensor", f->name,
			       (long long)(f->map + f->bytes - expected));
	return ERR_OK;
}

/* Names are C strings here: what one begins with may be the name of another. */
enum err safetensors_refuse_nul(const char *file, const char *text, struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "%s: there is a NUL in \"%.200s\\u0000...\"; no name may have one", file, text);
}

static enum err read_entries(struct safetensors *st, struct st_file *f, json_val root, struct err_msg *em)
{
	u32 first = st->tensor_count;

	enum err e = safetensors_grow(st, json_count(root), em);
	if (e)
		return e;
	for (struct json_iter it = json_iterate(root); json_next(&it);) {
		struct st_tensor *t = &st->tensors[st->tensor_count];
		if (memchr(it.key, '\0', it.key_bytes))
			return safetensors_refuse_nul(f->name, it.key, em);
		if (!strcmp(it.key, "__metadata__"))
			continue;
		*t = (struct st_tensor){.name = arena_strdup(&st->arena, it.key), .file = f->name};
		if (!t->name)
			return err_set(em, ERR_NO_MEMORY, "out of memory");
		e = read_tensor(t, f, it.value, em);
		if (e) {
			err_prefix(em, "%s: tensor %.200s", f->name, it.key);
			return e;
		}
		st->tensor_count++;
	}
	return check_cover(f, st->tensor_count > first ? st->tensors + first : NULL, st->tensor_count - first,
			   em);
}

enum err safetensors_read_header(struct safetensors *st, struct st_file *f, struct err_msg *em)
{
	struct json_doc *doc = NULL;
	u64 header;

	enum err e = check_length(f->name, f->bytes, em);
	if (e)
		return e;
	memcpy(&header, f->map, sizeof(header)); /* little-endian, as every host we run on */
	if (!memcmp(f->map, "version ", sizeof(header)))
		return err_set(em, ERR_FORMAT, "%s: a pointer of Git LFS instead of the file itself; fetch that by \"git lfs pull\"",
			       f->name);
	if (header > HEADER_BYTES_MAX)
		return err_set(em, ERR_FORMAT, "%s: a header of %llu bytes; this is no safetensors file",
			       f->name, (unsigned long long)header);
	if (header > f->bytes - 8)
		return err_set(em, ERR_FORMAT, "%s: truncated: its header has %llu bytes, the file %llu",
			       f->name, (unsigned long long)header, (unsigned long long)f->bytes);
	f->data_begin = 8 + header;
	f->header_hash = XXH3_64bits(f->map, f->data_begin);
	e = json_parse(&doc, f->map + 8, header, em);
	if (!e && json_type(json_root(doc)) != JSON_OBJECT)
		e = err_set(em, ERR_FORMAT, "must be an object, found %s", json_type_name(json_root(doc)));
	if (e)
		err_prefix(em, "%s: header", f->name);
	else
		e = read_entries(st, f, json_root(doc), em);
	json_free(&doc);
	return e;
}
