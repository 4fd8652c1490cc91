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
#include "common/mistral_folder.h"
#include "common/region.h"
#include "proc_worker/model/gguf_names.h"
#include "proc_worker/model/safetensors_priv.h"
#include "proc_worker/model/torch_file.h"

enum { FILES_MAX = 4096 };

static const char GGUF_FILE[] = "model.gguf";

/* How checkpoints of a format are named, and how a file is read. */
struct format {
	const char *single, *index;
	bool torch; /* of torch.save */
};

static const struct format SAFETENSORS = {"model.safetensors", "model.safetensors.index.json", false};
static const struct format MISTRAL = {MISTRAL_WEIGHTS, MISTRAL_INDEX, false};
static const struct format TORCH = {"pytorch_model.bin", "pytorch_model.bin.index.json", true};

void safetensors_print_shape(char *out, size_t bytes, const u64 *shape, u32 dims)
{
	size_t used = (size_t)snprintf(out, bytes, "[");

	for (u32 i = 0; i < dims && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%llu", i ? ", " : "",
					 (unsigned long long)shape[i]);
	if (used < bytes)
		snprintf(out + used, bytes - used, "]");
}

/* ---------------------------------------------------------------- one file */

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

/* Of torch.save. */
static enum err read_torch(struct safetensors *st, struct st_file *f, struct err_msg *em)
{
	struct st_tensor *tensors;
	u32 count;

	enum err e = torch_file_read(&tensors, &count, &f->header_hash, f->name, f->map, f->bytes, &st->arena, em);
	if (!e)
		e = safetensors_grow(st, count, em);
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
	return torch ? read_torch(st, f, em) : safetensors_read_header(st, f, em);
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
		return safetensors_refuse_nul(format->index, nul, em);
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

/* Formats in turn: a folder that has several is read from the first of them, and only one that is described by params.json from Mistral AI's own. */
static enum err open_checkpoint(struct safetensors *st, const char *dir, struct err_msg *em)
{
	char gguf[4096];
	struct stat info;
	bool there;

	enum err e = open_format(st, dir, mistral_folder_is(dir) ? &MISTRAL : &SAFETENSORS, &there, em);
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
	enum err e = safetensors_grow(st, count, em);

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

	enum err e = safetensors_read_header(&st, &f, em);
	if (!e)
		e = sort_tensors(&st, em);
	free(st.tensors);
	arena_fini(&st.arena);
	return e;
}
