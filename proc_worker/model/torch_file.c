/* Reads the dictionary of a file of torch.save as a table of tensors. Runs in the worker while it loads. Owns nothing but what it
 * gives away. Runs nothing of the file, and trusts no shape. */
#include "proc_worker/model/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "proc_worker/model/safetensors_priv.h"
#include "proc_worker/model/torch_storages_priv.h"

enum { TENSORS_MAX = 1024 * 1024, NAME_BYTES_MAX = 1024, NAMES_BYTES_MAX = 64 << 20, SHOWN_BYTES = 201 };

/* What values of a file may take: there is little else in a pickle of weights than places and names. */
static const u64 VALUES_BYTES_LEAST = 64 << 20, VALUES_BYTES_MAX = 1 << 30;

/* The call that makes a tensor; NULL: the value is none. Parameters are tensors of a class of their own. */
static const struct pickle_value *tensor_of(const struct pickle_value *v)
{
	if (v->kind == PICKLE_CALL && v->global->id == TORCH_PARAMETER && v->count > 0)
		v = v->items[0];
	return v->kind == PICKLE_CALL && (v->global->id == TORCH_TENSOR || v->global->id == TORCH_TENSOR_OF) ? v : NULL;
}

/* Numbers of a tuple, or of torch.Size of one. */
static enum err read_numbers(u64 out[ST_DIMS_MAX], u32 *count, const struct pickle_value *v, const char *what, struct err_msg *em)
{
	if (v->kind == PICKLE_CALL && v->global->id == TORCH_OTHER && v->count == 1)
		v = v->items[0];
	if (v->kind != PICKLE_TUPLE || v->count > ST_DIMS_MAX)
		return err_set(em, ERR_FORMAT, "its %s must be a tuple of at most %d numbers, found %s of %u", what, ST_DIMS_MAX, pickle_kind_name(v->kind),
			       v->kind == PICKLE_TUPLE ? v->count : 0);
	for (u32 i = 0; i < v->count; i++) {
		if (v->items[i]->kind != PICKLE_INT || v->items[i]->integer < 0)
			return err_set(em, ERR_FORMAT, "its %s holds something other than a count", what);
		out[i] = (u64)v->items[i]->integer;
	}
	*count = v->count;
	return ERR_OK;
}

/* Whether elements lie row by row, without anything in between; strides of dimensions of one element mean nothing. Otherwise `how` says it. */
static enum err read_places(struct st_tensor *t, const struct pickle_value *shape, const struct pickle_value *strides, u64 *elements, bool *in_rows,
			    char how[static SHOWN_BYTES], struct err_msg *em)
{
	u64 stride[ST_DIMS_MAX], next = 1;
	char text[64], found[64];
	u32 dims;

	enum err e = read_numbers(t->shape, &t->dims, shape, "shape", em);
	if (!e)
		e = read_numbers(stride, &dims, strides, "strides", em);
	if (e)
		return e;
	*elements = 1;
	*in_rows = true;
	for (u32 i = 0; i < t->dims; i++)
		if (__builtin_mul_overflow(*elements, t->shape[i], elements))
			return err_set(em, ERR_FORMAT, "its shape has more elements than can be counted");
	for (u32 i = t->dims; i > 0 && dims == t->dims && *elements > 0; i--) {
		*in_rows = *in_rows && (t->shape[i - 1] == 1 || stride[i - 1] == next);
		next *= t->shape[i - 1];
	}
	safetensors_print_shape(text, sizeof(text), t->shape, t->dims);
	safetensors_print_shape(found, sizeof(found), stride, dims);
	if (dims != t->dims)
		return err_set(em, ERR_FORMAT, "its shape is %s, and its strides are %s", text, found);
	snprintf(how, SHOWN_BYTES, "not row by row (strides %s); save the weights again, with .contiguous() of every tensor", found);
	return ERR_OK;
}

/* What views of negated or conjugated values say of themselves, behind all that others have. */
static bool has_metadata(const struct pickle_value *v, u32 usual)
{
	const struct pickle_value *m = v->count > usual ? v->items[usual] : NULL;

	return m && m->kind != PICKLE_NONE && !(m->kind == PICKLE_DICT && m->count == 0);
}

/* Nobody may want a tensor whose elements are never read: whoever does is told by its type. */
static enum err set_aside(struct st_tensor *t, const char *how, const void *data, struct arena *arena, struct err_msg *em)
{
	char type[2 * SHOWN_BYTES];

	snprintf(type, sizeof(type), "%s, %s", t->dtype_name, how);
	t->dtype_name = arena_strdup(arena, type);
	t->usable = false;
	t->data = data;
	t->bytes = 0;
	return t->dtype_name ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static enum err read_tensor(struct st_tensor *t, const struct torch_storages *s, const struct pickle_value *v, struct arena *arena, struct err_msg *em)
{
	const struct pickle_value *const *a = v->items;
	const bool typed = v->global->id == TORCH_TENSOR;
	struct torch_storage storage;
	char how[SHOWN_BYTES];
	u64 elements = 0, begin;
	bool in_rows = true;
	u32 bits = 0;

	if (v->count < (typed ? 6u : 7u) || a[0]->kind != PICKLE_PERSISTENT || a[1]->kind != PICKLE_INT || a[1]->integer < 0 ||
	    (!typed && (a[6]->kind != PICKLE_GLOBAL || a[6]->global->id < TORCH_DTYPE)))
		return err_set(em, ERR_FORMAT, "it is not made of (storage, offset, shape, strides, ..)");
	if (has_metadata(v, typed ? 6 : 7))
		return err_set(em, ERR_UNSUPPORTED, "it is a view with something said of its values (negated, conjugated); save the weights again, with .clone() of it");
	enum err e = torch_storages_find(s, a[0], &storage, em);
	if (!e)
		e = read_places(t, a[2], a[3], &elements, &in_rows, how, em);
	if (e)
		return e;
	if (!safetensors_set_type(t, typed ? storage.type : torch_type_of(a[6]->global), &bits))
		return err_set(em, ERR_FORMAT, "its type is not known");
	if (!in_rows)
		return set_aside(t, how, storage.data, arena, em);
	if (__builtin_mul_overflow((u64)a[1]->integer, bits / 8, &begin) || __builtin_mul_overflow(elements, bits / 8, &t->bytes) ||
	    begin > storage.bytes || t->bytes > storage.bytes - begin) {
		char shape[128];
		safetensors_print_shape(shape, sizeof(shape), t->shape, t->dims);
		return err_set(em, ERR_FORMAT, "%s of %s from element %lld on does not fit its storage of %llu bytes", t->dtype_name, shape,
			       (long long)a[1]->integer, (unsigned long long)storage.bytes);
	}
	t->data = storage.data + begin;
	return ERR_OK;
}

/* A name as others have it, for it is printed and compared. */
static enum err read_name(const char **out, const struct pickle_value *key, struct arena *arena, struct err_msg *em)
{
	if (key->count == 0 || key->count > NAME_BYTES_MAX)
		return err_set(em, ERR_FORMAT, "its name has %u bytes; it must have 1 to %d", key->count, NAME_BYTES_MAX);
	for (u32 i = 0; i < key->count; i++)
		if ((u8)key->text[i] < 0x20 || key->text[i] == 0x7f)
			return err_set(em, ERR_FORMAT, "there is a control character in its name");
	if (!utf8_valid(key->text, key->count))
		return err_set(em, ERR_FORMAT, "its name is no UTF-8");
	*out = arena_strndup(arena, key->text, key->count);
	return *out ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static enum err read_tensors(struct st_tensor *tensors, u32 *count, const struct torch_storages *s, const char *name, struct arena *arena,
			     struct err_msg *em)
{
	const struct pickle_value *dict = s->weights.value;
	char shown[SHOWN_BYTES];
	enum err e = ERR_OK;
	u64 named = 0; /* one text of the file may be the name of many */

	for (u32 i = 0; !e && i + 1 < dict->count; i += 2) {
		const struct pickle_value *key = dict->items[i], *v = tensor_of(dict->items[i + 1]);
		if (!v || key->kind != PICKLE_STRING)
			continue;
		struct st_tensor *t = &tensors[*count];
		*t = (struct st_tensor){.file = name};
		named += key->count;
		e = named > NAMES_BYTES_MAX ? err_set(em, ERR_TOO_LONG, "names of more than %d bytes", NAMES_BYTES_MAX) : read_name(&t->name, key, arena, em);
		if (!e)
			e = read_tensor(t, s, v, arena, em);
		if (e)
			err_prefix(em, "tensor %s", pickle_print_text(shown, sizeof(shown), key->text, key->count));
		else
			(*count)++;
	}
	return e;
}

static enum err read_weights(struct st_tensor **out, u32 *count, const struct torch_storages *s, const char *name, struct arena *arena,
			     struct err_msg *em)
{
	const struct pickle_value *dict = s->weights.value;

	if (dict->kind != PICKLE_DICT)
		return err_set(em, ERR_FORMAT, "it holds %s; it must be a dictionary of tensors, as model.state_dict() is", pickle_kind_name(dict->kind));
	if (dict->count / 2 > TENSORS_MAX)
		return err_set(em, ERR_TOO_LONG, "more than %d tensors", TENSORS_MAX);
	*out = calloc(dict->count / 2 + 1, sizeof(**out));
	if (!*out)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = read_tensors(*out, count, s, name, arena, em);
	if (!e && *count == 0)
		e = err_set(em, ERR_FORMAT, "no tensors: none of the %u values of its dictionary is one; it must be that of model.state_dict()", dict->count / 2);
	return e;
}

enum err torch_file_read(struct st_tensor **out, u32 *count, u64 *identity, const char *name, const void *file, u64 bytes, struct arena *arena,
			 struct err_msg *em)
{
	const u64 many = VALUES_BYTES_LEAST + (bytes < VALUES_BYTES_MAX / 64 ? 64 * bytes : VALUES_BYTES_MAX);
	struct arena values = {.chunk_bytes = 256 * 1024, .limit_bytes = many < VALUES_BYTES_MAX ? many : VALUES_BYTES_MAX};
	struct torch_storages s;

	*out = NULL;
	*count = 0;
	enum err e = torch_storages_read(&s, &values, file, bytes, em);
	*identity = s.identity;
	if (!e)
		e = read_weights(out, count, &s, name, arena, em);
	if (e)
		err_prefix(em, "%s", name);
	torch_storages_fini(&s);
	arena_fini(&values);
	return e;
}

enum err torch_file_check(const void *file, size_t bytes, struct err_msg *em)
{
	struct st_tensor *tensors;
	struct arena arena = {0};
	u64 identity;
	u32 count;

	enum err e = torch_file_read(&tensors, &count, &identity, "file", file, bytes, &arena, em);
	free(tensors);
	arena_fini(&arena);
	return e;
}
