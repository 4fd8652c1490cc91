/* Finds the dictionary and the storages in files of torch.save, of which there are two forms, and owns the tables of where they lie.
 * Runs in the worker while it loads. Never trusts a length, a count or a name. */
#include "proc_worker/model/torch_storages_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "proc_worker/model/safetensors_priv.h"

enum {
	STORAGES_MAX = 1024 * 1024,
	KEY_BYTES_MAX = 128,
	ROOT_BYTES_MAX = 1024,
	SHOWN_BYTES = 128,   /* of a text of the file in messages */
	WIDEST_ELEMENT = 16,
	PROTOCOL = 1001,     /* of the older form: the only one there was */
};

/* ---------------------------------------------------------------- what pickles may name */

/* Elements, by the class of a storage and the name of the type; NULL: it has none. */
static const struct {
	const char *storage, *dtype, *type;
} TYPES[] = {
	{"FloatStorage", "float32", "F32"},    {"HalfStorage", "float16", "F16"}, {"BFloat16Storage", "bfloat16", "BF16"},
	{"DoubleStorage", "float64", "F64"},   {"LongStorage", "int64", "I64"},	  {"IntStorage", "int32", "I32"},
	{"ShortStorage", "int16", "I16"},      {"CharStorage", "int8", "I8"},	  {"ByteStorage", "uint8", "U8"},
	{"BoolStorage", "bool", "BOOL"},       {NULL, "uint16", "U16"},		  {NULL, "uint32", "U32"},
	{NULL, "uint64", "U64"},	       {NULL, "float8_e4m3fn", "F8_E4M3"}, {NULL, "float8_e5m2", "F8_E5M2"},
	{NULL, "float8_e8m0fnu", "F8_E8M0"},   {"ComplexFloatStorage", "complex64", "C64"},
};

static const struct pickle_global NAMES[] = {
	{"collections", "OrderedDict", PICKLE_MAPPING, TORCH_DICT},
	{"torch._utils", "_rebuild_tensor_v2", PICKLE_CALLED, TORCH_TENSOR},
	{"torch._utils", "_rebuild_tensor_v3", PICKLE_CALLED, TORCH_TENSOR_OF},
	{"torch._utils", "_rebuild_parameter", PICKLE_CALLED, TORCH_PARAMETER},
	{"torch", "Size", PICKLE_CALLED, TORCH_OTHER},
	{"torch", "device", PICKLE_CALLED, TORCH_OTHER},
	{"torch.storage", "UntypedStorage", PICKLE_NAMED, TORCH_STORAGE + 8}, /* of bytes */
	{"torch.storage", "_UntypedStorage", PICKLE_NAMED, TORCH_STORAGE + 8},
	{"torch", "UntypedStorage", PICKLE_NAMED, TORCH_STORAGE + 8},
};

const char *torch_type_of(const struct pickle_global *g)
{
	u32 base = g->id >= TORCH_DTYPE ? TORCH_DTYPE : TORCH_STORAGE;

	return TYPES[g->id - base].type;
}

enum err torch_pickle_read(struct pickle *p, struct arena *arena, const void *data, u64 bytes, struct err_msg *em)
{
	enum { MOST = COUNT_OF(NAMES) + 2 * COUNT_OF(TYPES) };
	struct pickle_global *known = arena_alloc(arena, MOST * sizeof(*known));
	u32 count = COUNT_OF(NAMES);

	if (!known)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	memcpy(known, NAMES, sizeof(NAMES));
	for (u32 i = 0; i < COUNT_OF(TYPES); i++) {
		if (TYPES[i].storage)
			known[count++] = (struct pickle_global){"torch", TYPES[i].storage, PICKLE_NAMED, TORCH_STORAGE + i};
		known[count++] = (struct pickle_global){"torch", TYPES[i].dtype, PICKLE_NAMED, TORCH_DTYPE + i};
	}
	return pickle_read(p, arena, data, bytes, known, count, em);
}

/* ---------------------------------------------------------------- a storage */

static bool is_global(const struct pickle_value *v, u32 first, u32 end)
{
	return v->kind == PICKLE_GLOBAL && v->global->id >= first && v->global->id < end;
}

enum err torch_storage_read(struct torch_storage *s, const struct pickle_value *id, struct err_msg *em)
{
	const struct pickle_value *const *v = id->items;
	struct st_tensor t = {0};
	u32 bits = 0;

	if (id->count < 5 || !pickle_is_string(v[0], "storage") || !is_global(v[1], TORCH_STORAGE, TORCH_DTYPE) || v[2]->kind != PICKLE_STRING ||
	    v[4]->kind != PICKLE_INT || v[4]->integer < 0)
		return err_set(em, ERR_FORMAT, "the id of a storage is not (\"storage\", class, key, location, count of elements)");
	if (id->count > 5 && v[5]->kind != PICKLE_NONE)
		return err_set(em, ERR_UNSUPPORTED, "a storage that is a part of another, as PyTorch before 0.4 had them; save the weights again with a later one");
	*s = (struct torch_storage){.key = v[2]->text, .key_bytes = v[2]->count, .type = torch_type_of(v[1]->global), .elements = (u64)v[4]->integer};
	if (!safetensors_set_type(&t, s->type, &bits) || __builtin_mul_overflow(s->elements, bits / 8, &s->bytes))
		return err_set(em, ERR_FORMAT, "a storage of %llu elements, which are more than can be counted", (unsigned long long)s->elements);
	return ERR_OK;
}

static const char *shown(char out[SHOWN_BYTES], const char *text, u64 bytes)
{
	return pickle_print_text(out, SHOWN_BYTES, text, bytes);
}

/* ---------------------------------------------------------------- a ZIP archive */

static const struct zip_entry *find_entry(const struct torch_storages *s, const char *folder, const char *name, u32 name_bytes)
{
	char path[ROOT_BYTES_MAX + KEY_BYTES_MAX + 16];

	if (name_bytes > KEY_BYTES_MAX)
		return NULL;
	int n = snprintf(path, sizeof(path), "%.*s/%s%.*s", (int)s->root_bytes, s->root, folder, (int)name_bytes, name);
	return n > 0 && (size_t)n < sizeof(path) ? zip_map_find(&s->zip, path, (size_t)n) : NULL;
}

/* FOLDER/data.pkl, the only one of that name. */
static enum err find_pickle(struct torch_storages *s, const struct zip_entry **out, struct err_msg *em)
{
	static const char name[] = "/data.pkl";
	const u32 name_bytes = sizeof(name) - 1;

	*out = NULL;
	for (u32 i = 0; i < s->zip.count; i++) {
		const struct zip_entry *x = &s->zip.entries[i];
		if (x->name_bytes <= name_bytes || memcmp(x->name + x->name_bytes - name_bytes, name, name_bytes) != 0 ||
		    memchr(x->name, '/', x->name_bytes - name_bytes) || x->name_bytes - name_bytes > ROOT_BYTES_MAX)
			continue;
		if (*out)
			return err_set(em, ERR_FORMAT, "the archive has two entries data.pkl; it must have one");
		*out = x;
		s->root = x->name;
		s->root_bytes = x->name_bytes - name_bytes;
	}
	return *out ? ERR_OK : err_set(em, ERR_FORMAT, "a ZIP archive without an entry NAME/data.pkl, which torch.save writes");
}

static enum err read_zip(struct torch_storages *s, struct arena *arena, const u8 *file, u64 bytes, struct err_msg *em)
{
	const struct zip_entry *pickle;

	enum err e = zip_map_read(&s->zip, file, bytes, em);
	if (!e)
		e = find_pickle(s, &pickle, em);
	if (e)
		return e;
	const struct zip_entry *order = find_entry(s, "", "byteorder", 9);
	if (order && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0)) {
		char text[SHOWN_BYTES];
		return err_set(em, ERR_UNSUPPORTED, "entry byteorder says \"%s\"; only \"little\" is read: save the weights again on a little-endian machine",
			       shown(text, (const char *)order->data, order->bytes));
	}
	s->identity = XXH3_64bits_withSeed(s->zip.directory, s->zip.directory_bytes, 0);
	s->identity = XXH3_64bits_withSeed(pickle->data, pickle->bytes, s->identity);
	e = torch_pickle_read(&s->weights, arena, pickle->data, pickle->bytes, em);
	if (!e && s->weights.bytes != pickle->bytes)
		e = err_set(em, ERR_FORMAT, "%llu bytes behind the pickle", (unsigned long long)(pickle->bytes - s->weights.bytes));
	if (e)
		err_prefix(em, "entry data.pkl");
	return e;
}

static enum err find_in_zip(const struct torch_storages *s, struct torch_storage *x, struct err_msg *em)
{
	const struct zip_entry *entry = find_entry(s, "data/", x->key, x->key_bytes);
	char key[SHOWN_BYTES];

	shown(key, x->key, x->key_bytes);
	if (!entry)
		return err_set(em, ERR_FORMAT, "the archive has no entry data/%s, where its storage should be", key);
	/* of bytes that are seen as wider elements a few may be left over */
	if (entry->bytes < x->bytes || (x->elements > 0 && entry->bytes - x->bytes >= x->bytes / x->elements) || (x->elements == 0 && entry->bytes >= WIDEST_ELEMENT))
		return err_set(em, ERR_FORMAT, "entry data/%s has %llu bytes; its %llu elements of %s need %llu", key, (unsigned long long)entry->bytes,
			       (unsigned long long)x->elements, x->type, (unsigned long long)x->bytes);
	x->data = entry->data;
	return ERR_OK;
}

/* ---------------------------------------------------------------- the older form */

static int compare_keys(const void *a, const void *b)
{
	const struct torch_storage *x = a, *y = b;
	const u32 shorter = x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes;
	int order = memcmp(x->key, y->key, shorter);

	return order ? order : x->key_bytes < y->key_bytes ? -1 : x->key_bytes > y->key_bytes;
}

static struct torch_storage *find_key(const struct torch_storages *s, const char *text, u32 bytes)
{
	const struct torch_storage key = {.key = text, .key_bytes = bytes};

	return s->count ? bsearch(&key, s->list, s->count, sizeof(key), compare_keys) : NULL;
}

/* All ids of the pickle, each storage once. */
static enum err list_storages(struct torch_storages *s, struct err_msg *em)
{
	u32 count = 0, last = 0;
	char key[SHOWN_BYTES];
	enum err e = ERR_OK;

	for (const struct pickle_value *id = s->weights.persistent; id; id = id->before)
		count++;
	if (count == 0)
		return ERR_OK;
	if (count > STORAGES_MAX)
		return err_set(em, ERR_TOO_LONG, "more than %d storages", STORAGES_MAX);
	s->list = calloc(count, sizeof(*s->list));
	if (!s->list)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (const struct pickle_value *id = s->weights.persistent; !e && id; id = id->before)
		e = torch_storage_read(&s->list[s->count++], id, em);
	if (e)
		return e;
	qsort(s->list, count, sizeof(*s->list), compare_keys);
	for (u32 i = 1; i < count; i++) {
		const struct torch_storage *x = &s->list[last], *y = &s->list[i];
		if (compare_keys(x, y) != 0)
			s->list[++last] = *y;
		else if (x->type != y->type || x->elements != y->elements)
			return err_set(em, ERR_FORMAT, "storage %s is %llu elements of %s, and %llu of %s", shown(key, x->key, x->key_bytes),
				       (unsigned long long)x->elements, x->type, (unsigned long long)y->elements, y->type);
	}
	s->count = last + 1;
	return ERR_OK;
}

/* One storage: how many elements it has, and their bytes. */
static enum err place_storage(struct torch_storages *s, const struct pickle_value *key, const u8 **at, const u8 *end, struct err_msg *em)
{
	char text[SHOWN_BYTES];
	u64 elements;

	if (key->kind != PICKLE_STRING)
		return err_set(em, ERR_FORMAT, "a storage's key is %s; it must be a string", pickle_kind_name(key->kind));
	struct torch_storage *x = find_key(s, key->text, key->count);
	shown(text, key->text, key->count);
	if (!x)
		return err_set(em, ERR_FORMAT, "there is a storage %s, which no tensor has, and whose length is therefore not known", text);
	if (x->data)
		return err_set(em, ERR_FORMAT, "storage %s is there twice", text);
	if ((u64)(end - *at) < sizeof(elements))
		return err_set(em, ERR_FORMAT, "truncated: the file ends in front of storage %s", text);
	memcpy(&elements, *at, sizeof(elements));
	*at += sizeof(elements);
	if (elements != x->elements)
		return err_set(em, ERR_FORMAT, "storage %s has %llu elements; its tensors say %llu", text, (unsigned long long)elements, (unsigned long long)x->elements);
	if (x->bytes > (u64)(end - *at))
		return err_set(em, ERR_FORMAT, "truncated: storage %s has %llu bytes, and %llu are left of the file", text, (unsigned long long)x->bytes,
			       (unsigned long long)(end - *at));
	x->data = *at;
	*at += x->bytes;
	return ERR_OK;
}

/* The keys of all storages, and behind them these. */
static enum err place_storages(struct torch_storages *s, struct arena *arena, const u8 *at, const u8 *end, const u8 **header_end, struct err_msg *em)
{
	struct pickle keys;

	enum err e = torch_pickle_read(&keys, arena, at, (u64)(end - at), em);
	if (!e && keys.value->kind != PICKLE_LIST)
		e = err_set(em, ERR_FORMAT, "%s; it must be a list", pickle_kind_name(keys.value->kind));
	if (e) {
		err_prefix(em, "the storages' keys");
		return e;
	}
	at += keys.bytes;
	*header_end = at;
	for (u32 i = 0; !e && i < keys.value->count; i++)
		e = place_storage(s, keys.value->items[i], &at, end, em);
	if (!e && at != end)
		e = err_set(em, ERR_FORMAT, "%llu bytes behind the last storage", (unsigned long long)(end - at));
	return e;
}

/* Whether it is the number that the older form begins with. */
static bool is_magic(const struct pickle_value *v)
{
	static const u8 magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

	return v->kind == PICKLE_LONG && v->count == sizeof(magic) && !memcmp(v->text, magic, sizeof(magic));
}

/* What is said of the machine that wrote the file. */
static enum err check_machine(const struct pickle_value *v, struct err_msg *em)
{
	if (v->kind != PICKLE_DICT)
		return err_set(em, ERR_FORMAT, "what is said of the machine is %s; it must be a dictionary", pickle_kind_name(v->kind));
	for (u32 i = 0; i + 1 < v->count; i += 2)
		if (pickle_is_string(v->items[i], "little_endian") && (v->items[i + 1]->kind != PICKLE_BOOL || !v->items[i + 1]->integer))
			return err_set(em, ERR_UNSUPPORTED, "a file of a big-endian machine; save the weights again on a little-endian one");
	return ERR_OK;
}

static enum err read_older(struct torch_storages *s, struct arena *arena, const u8 *file, u64 bytes, struct err_msg *em)
{
	static const char *const what[] = {"magic number", "protocol", "machine", "weights"};
	const u8 *at = file, *end = file + bytes;
	struct pickle p;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < COUNT_OF(what); i++) {
		e = torch_pickle_read(&p, arena, at, (u64)(end - at), em);
		at += p.bytes;
		if (!e && i == 0 && !is_magic(p.value))
			e = err_set(em, ERR_FORMAT, "a pickle, but not one of torch.save: it begins with %s in place of its magic number", pickle_kind_name(p.value->kind));
		else if (!e && i == 1 && (p.value->kind != PICKLE_INT || p.value->integer != PROTOCOL))
			e = err_set(em, ERR_UNSUPPORTED, "another protocol than %d", PROTOCOL);
		else if (!e && i == 2)
			e = check_machine(p.value, em);
		if (e)
			err_prefix(em, "pickle %u (%s)", i + 1, what[i]);
	}
	s->weights = p;
	if (!e)
		e = list_storages(s, em);
	const u8 *header_end = at;
	if (!e)
		e = place_storages(s, arena, at, end, &header_end, em);
	s->identity = XXH3_64bits(file, (size_t)(header_end - file));
	return e;
}

static enum err find_older(const struct torch_storages *s, struct torch_storage *out, struct err_msg *em)
{
	const struct torch_storage *x = find_key(s, out->key, out->key_bytes);
	char key[SHOWN_BYTES];

	if (!x || !x->data)
		return err_set(em, ERR_FORMAT, "the file has no storage %s, in which it should lie", shown(key, out->key, out->key_bytes));
	*out = *x;
	return ERR_OK;
}

/* ---------------------------------------------------------------- both */

enum err torch_storages_read(struct torch_storages *s, struct arena *arena, const void *file, u64 bytes, struct err_msg *em)
{
	static const char lfs[] = "version ";
	const u8 *data = file;

	*s = (struct torch_storages){0};
	if (bytes >= sizeof(lfs) - 1 && !memcmp(data, lfs, sizeof(lfs) - 1))
		return err_set(em, ERR_FORMAT, "a pointer of Git LFS instead of the file itself; fetch that by \"git lfs pull\"");
	if (bytes >= 4 && !memcmp(data, "PK\3\4", 4))
		return read_zip(s, arena, data, bytes, em);
	if (bytes >= 2 && data[0] == 0x80)
		return read_older(s, arena, data, bytes, em);
	return err_set(em, ERR_FORMAT, "this is no file of torch.save: it begins neither as a ZIP archive nor as a pickle%s", bytes < 4 ? " (truncated)" : "");
}

void torch_storages_fini(struct torch_storages *s)
{
	zip_map_fini(&s->zip);
	free(s->list);
	*s = (struct torch_storages){0};
}

enum err torch_storages_find(const struct torch_storages *s, const struct pickle_value *id, struct torch_storage *out, struct err_msg *em)
{
	enum err e = torch_storage_read(out, id, em);

	if (e)
		return e;
	return s->root ? find_in_zip(s, out, em) : find_older(s, out, em);
}
