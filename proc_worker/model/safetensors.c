/* Owns the mapped checkpoint files and the table of their tensors. Runs in the worker while it loads. Never
 * trusts a header: a checkpoint is a file that somebody downloaded. */
#include "proc_worker/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/arena.h"
#include "common/json.h"
#include "common/region.h"
#include "proc_worker/model/gguf_names.h"
#include "proc_worker/model/safetensors_priv.h"
#include "proc_worker/model/torch_file.h"

enum {
	FILES_MAX = 4096,
	TENSORS_MAX = 1024 * 1024,
	HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the format's own limit */
};

static const char GGUF_FILE[] = "model.gguf";

/* How checkpoints of a format are named, and how a file is read. */
struct format {
	const char *single, *index;
	bool torch; /* of torch.save */
};

static const struct format SAFETENSORS = {"model.safetensors", "model.safetensors.index.json", false};
static const struct format TORCH = {"pytorch_model.bin", "pytorch_model.bin.index.json", true};

struct st_file {
	const char *name;
	const char *map;
	u64 bytes;
	u64 data_begin; /* of safetensors */
	u64 header_hash; /* of all that is not data */
	i64 changed[2]; /* seconds and nanoseconds */
};

struct safetensors {
	struct arena arena; /* names */
	struct st_file *files;
	u32 file_count, file_capacity;
	struct gguf *gguf; /* instead of files */
	struct st_tensor *tensors;
	u32 tensor_count, tensor_capacity;
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

void safetensors_print_shape(char *out, size_t bytes, const u64 *shape, u32 dims)
{
	size_t used = (size_t)snprintf(out, bytes, "[");

	for (u32 i = 0; i < dims && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%llu", i ? ", " : "",
					 (unsigned long long)shape[i]);
	if (used < bytes)
		snprintf(out + used, bytes - used, "]");
}

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

/* ---------------------------------------------------------------- one file */

static enum err check_length(const char *path, u64 bytes, struct err_msg *em)
{
	if (bytes >= 8)
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "%s: truncated: %llu bytes, a safetensors file has at least 8", path,
		       (unsigned long long)bytes);
}

static enum err map_file(struct st_file *f, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct stat st;
	enum err e = ERR_OK;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, f->name) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the path of %s is longer than %zu bytes", f->name,
			       sizeof(path) - 1);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait for a writer */
	if (fd < 0)
		return err_set(em, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0) {
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
		goto out;
	}
	if (!S_ISREG(st.st_mode)) {
		e = err_set(em, ERR_IO, "%s: not a regular file", path);
		goto out;
	}
	f->bytes = (u64)st.st_size;
	f->changed[0] = st.st_mtim.tv_sec;
	f->changed[1] = st.st_mtim.tv_nsec;
	if (f->bytes == 0)
		e = err_set(em, ERR_FORMAT, "%s: the file is empty", path);
	if (e)
		goto out;
	void *map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED && errno == ENOMEM)
		e = region_refuse(em, "%s: there is no room to map its %llu bytes; use a smaller model", path, (unsigned long long)f->bytes);
	else if (map == MAP_FAILED)
		e = err_set(em, ERR_IO, "%s: cannot map %llu bytes: %s", path, (unsigned long long)f->bytes,
			    strerror(errno));
	else
		f->map = map;
	if (!e)
		madvise(map, f->bytes, MADV_SEQUENTIAL); /* read ahead: loading goes through it once */
out:
	close(fd);
	return e;
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

static enum err grow_tensors(struct safetensors *st, size_t extra, struct err_msg *em)
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
static enum err refuse_nul(const char *file, const char *text, struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "%s: there is a NUL in \"%.200s\\u0000...\"; no name may have one", file, text);
}

static enum err read_entries(struct safetensors *st, struct st_file *f, json_val root, struct err_msg *em)
{
	u32 first = st->tensor_count;

	enum err e = grow_tensors(st, json_count(root), em);
	if (e)
		return e;
	for (struct json_iter it = json_iterate(root); json_next(&it);) {
		struct st_tensor *t = &st->tensors[st->tensor_count];
		if (memchr(it.key, '\0', it.key_bytes))
			return refuse_nul(f->name, it.key, em);
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

static enum err read_header(struct safetensors *st, struct st_file *f, struct err_msg *em)
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

/* Of torch.save. */
static enum err read_torch(struct safetensors *st, struct st_file *f, struct err_msg *em)
{
	struct st_tensor *tensors;
	u32 count;

	enum err e = torch_file_read(&tensors, &count, &f->header_hash, f->name, f->map, f->bytes, &st->arena, em);
	if (!e)
		e = grow_tensors(st, count, em);
	if (!e)
		memcpy(st->tensors + st->tensor_count, tensors, count * sizeof(*tensors));
	st->tensor_count += e ? 0 : count;
	free(tensors);
	return e;
}

static enum err add_file(struct safetensors *st, const char *dir, const char *name, bool torch, struct err_msg *em)
{
	if (st->file_count == st->file_capacity) {
		u32 capacity = st->file_capacity ? 2 * st->file_capacity : 8;
		if (capacity > FILES_MAX)
			return err_set(em, ERR_TOO_LONG, "more than %d shards", FILES_MAX);
		struct st_file *grown = realloc(st->files, capacity * sizeof(*grown));
		if (!grown)
			return err_set(em, ERR_NO_MEMORY, "out of memory");
		st->files = grown;
		st->file_capacity = capacity;
	}
	struct st_file *f = &st->files[st->file_count];
	*f = (struct st_file){.name = arena_strdup(&st->arena, name)};
	if (!f->name)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = map_file(f, dir, em);
	if (e)
		return e;
	st->file_count++;
	return torch ? read_torch(st, f, em) : read_header(st, f, em);
}

/* ---------------------------------------------------------------- the checkpoint */

static bool has_file(const struct safetensors *st, const char *name)
{
	for (u32 i = 0; i < st->file_count; i++)
		if (!strcmp(st->files[i].name, name))
			return true;
	return false;
}

static int compare_names(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static enum err sort_tensors(struct safetensors *st, struct err_msg *em)
{
	if (st->tensor_count)
		qsort(st->tensors, st->tensor_count, sizeof(*st->tensors), compare_names);
	for (u32 i = 1; i < st->tensor_count; i++)
		if (!strcmp(st->tensors[i - 1].name, st->tensors[i].name))
			return err_set(em, ERR_FORMAT, "tensor %s is there twice (%s, %s)",
				       st->tensors[i].name, st->tensors[i - 1].file, st->tensors[i].file);
	return ERR_OK;
}

static enum err open_shards(struct safetensors *st, const char *dir, const struct format *format, json_val map, struct err_msg *em)
{
	if (json_type(map) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "%s: \"weight_map\" must be an object, found %s", format->index,
			       json_type_name(map));
	const char *nul = json_text_with_nul(map);
	if (nul)
		return refuse_nul(format->index, nul, em);
	for (struct json_iter it = json_iterate(map); json_next(&it);) {
		const char *shard = json_cstr(it.value, "");
		if (!*shard || strchr(shard, '/'))
			return err_set(em, ERR_FORMAT,
				       "%s: the shard of %.200s is '%.200s'; it must be a file name",
				       format->index, it.key, shard);
		if (has_file(st, shard))
			continue;
		enum err e = add_file(st, dir, shard, format->torch, em);
		if (e == ERR_NOT_FOUND)
			return err_set(em, e, "%s names shard %.200s (for tensor %.200s), which is not in %s",
				       format->index, shard, it.key, dir);
		if (e)
			return e;
	}
	enum err e = sort_tensors(st, em);
	if (e)
		return e;
	for (struct json_iter it = json_iterate(map); json_next(&it);) {
		const struct st_tensor *t = safetensors_find(st, it.key);
		const char *shard = json_cstr(it.value, "");
		if (!t || strcmp(t->file, shard))
			return err_set(em, ERR_FORMAT,
				       "%s says that tensor %.200s is in %.200s, but it is %s", format->index,
				       it.key, shard, t ? "elsewhere" : "in no shard");
	}
	return ERR_OK;
}

static enum err open_gguf(struct safetensors *st, const char *path, struct err_msg *em)
{
	enum err e = gguf_open(&st->gguf, path, em);

	if (!e)
		e = gguf_names_read(&st->tensors, &st->tensor_count, st->gguf, &st->arena, em);
	st->tensor_capacity = st->tensor_count;
	if (!e)
		gguf_advise(st->gguf, true);
	return e ? e : sort_tensors(st, em);
}

/* The one file of the format, or its shards. ERR_NOT_FOUND, and *there false: there is neither. */
static enum err open_format(struct safetensors *st, const char *dir, const struct format *format, bool *there, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;
	struct stat info;

	*there = true;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, format->index) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the model's path is longer than %zu bytes",
			       sizeof(path) - 1);
	enum err e = add_file(st, dir, format->single, format->torch, em);
	if (!e)
		return sort_tensors(st, em);
	if (e != ERR_NOT_FOUND)
		return e;
	*there = stat(path, &info) == 0;
	if (!*there)
		return e;
	e = json_parse_file(&doc, path, em);
	if (!e)
		e = open_shards(st, dir, format, json_get(json_root(doc), "weight_map"), em);
	json_free(&doc);
	return e;
}

/* Formats in turn: a folder that has several is read from the first of them. */
static enum err open_checkpoint(struct safetensors *st, const char *dir, struct err_msg *em)
{
	char gguf[4096];
	struct stat info;
	bool there;

	enum err e = open_format(st, dir, &SAFETENSORS, &there, em);
	if (there)
		return e;
	snprintf(gguf, sizeof(gguf), "%s/%s", dir, GGUF_FILE); /* shorter than the index of safetensors, which fits */
	if (lstat(gguf, &info) == 0) /* a link that leads nowhere is named when it is opened */
		return open_gguf(st, gguf, em);
	e = open_format(st, dir, &TORCH, &there, em);
	if (there)
		return e;
	return err_set(em, ERR_NOT_FOUND, "%s holds neither %s nor %s, nor %s, nor %s nor %s; save the model with safetensors", dir, SAFETENSORS.single,
		       SAFETENSORS.index, GGUF_FILE, TORCH.single, TORCH.index);
}

enum err safetensors_open(struct safetensors **out, const char *dir, struct err_msg *em)
{
	*out = NULL;
	struct safetensors *st = calloc(1, sizeof(*st));
	if (!st)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = open_checkpoint(st, dir, em);
	if (e)
		safetensors_close(&st);
	else
		*out = st;
	return e;
}

static bool has_end(const char *text, const char *end)
{
	const size_t bytes = strlen(text), end_bytes = strlen(end);

	return bytes >= end_bytes && !strcmp(text + bytes - end_bytes, end);
}

enum err safetensors_open_file(struct safetensors **out, const char *dir, const char *file, struct err_msg *em)
{
	*out = NULL;
	struct safetensors *st = calloc(1, sizeof(*st));
	if (!st)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = add_file(st, dir, file, has_end(file, ".bin"), em);
	if (e == ERR_NOT_FOUND)
		err_set(em, e, "%s holds no %s", dir, file);
	if (!e)
		e = sort_tensors(st, em);
	if (e)
		safetensors_close(&st);
	else
		*out = st;
	return e;
}

void safetensors_close(struct safetensors **out)
{
	struct safetensors *st = *out;

	if (!st)
		return;
	for (u32 i = 0; i < st->file_count; i++)
		munmap((void *)(uintptr_t)st->files[i].map, st->files[i].bytes);
	gguf_close(&st->gguf);
	free(st->files);
	free(st->tensors);
	arena_fini(&st->arena);
	free(st);
	*out = NULL;
}

void safetensors_trim(struct safetensors *st)
{
	if (st->gguf)
		gguf_advise(st->gguf, false);
	for (u32 i = 0; i < st->file_count; i++) {
		void *map = (void *)(uintptr_t)st->files[i].map;
		madvise(map, st->files[i].bytes,
			MADV_RANDOM); /* what is left: single rows of the embedding */
		madvise(map, st->files[i].bytes, MADV_DONTNEED);
	}
}

u64 safetensors_identity(const struct safetensors *st)
{
	u64 hash = st->gguf ? gguf_identity(st->gguf) : 0;

	for (u32 i = 0; i < st->file_count; i++) {
		const struct st_file *f = &st->files[i];
		hash = XXH3_64bits_withSeed(f->name, strlen(f->name) + 1, hash);
		hash = XXH3_64bits_withSeed(&f->bytes, sizeof(f->bytes), hash);
		hash = XXH3_64bits_withSeed(f->changed, sizeof(f->changed), hash);
		hash = XXH3_64bits_withSeed(&f->header_hash, sizeof(f->header_hash), hash);
	}
	return hash;
}

u32 safetensors_count(const struct safetensors *st)
{
	return st->tensor_count;
}

const struct st_tensor *safetensors_at(const struct safetensors *st, u32 index)
{
	return &st->tensors[index];
}

enum err safetensors_add(struct safetensors *st, const struct st_tensor *tensors, u32 count, struct err_msg *em)
{
	enum err e = grow_tensors(st, count, em);

	for (u32 i = 0; !e && i < count; i++) {
		struct st_tensor *t = &st->tensors[st->tensor_count];
		*t = tensors[i];
		t->name = arena_strdup(&st->arena, tensors[i].name);
		if (!t->name)
			return err_set(em, ERR_NO_MEMORY, "out of memory");
		st->tensor_count++;
	}
	return e ? e : sort_tensors(st, em);
}

const struct st_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
	struct st_tensor key = {.name = name};

	if (!st->tensor_count)
		return NULL;
	return bsearch(&key, st->tensors, st->tensor_count, sizeof(key), compare_names);
}

enum err safetensors_check(const void *file, size_t bytes, struct err_msg *em)
{
	struct safetensors st = {0};
	struct st_file f = {.name = "file", .map = file, .bytes = bytes};

	enum err e = read_header(&st, &f, em);
	if (!e)
		e = sort_tensors(&st, em);
	free(st.tensors);
	arena_fini(&st.arena);
	return e;
}
