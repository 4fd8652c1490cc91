/* Owns the mapped files of a model in the format of ggml and the table of their tensors. Runs in any process. Never trusts a
 * header: a model is a file that somebody downloaded. */
#include "common/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/gguf_priv.h"
#include "common/region.h"

enum {
	FILES_MAX = 4096,
	TENSORS_MAX = 1024 * 1024,
	NAME_BYTES_MAX = 255,
	ALIGNMENT_USUAL = 32,
	ALIGNMENT_MAX = 1 << 24,
	TENSOR_BYTES_MIN = 8 + 1 + 4 + 4 + 8, /* of its entry in the header */
	LINKS_MAX = 16,
};

struct gguf_file {
	const char *name;
	const char *map;
	u64 bytes, header_bytes;
	i64 changed[2]; /* seconds and nanoseconds */
};

struct gguf {
	struct arena arena; /* names */
	struct gguf_file *files;
	u32 file_count;
	struct gguf_values values; /* of the first file */
	struct gguf_tensor *tensors;
	u32 tensor_count;
	u32 *by_name; /* their indices, in the order of their names */
};

/* ---------------------------------------------------------------- one file */

static enum err map_file(struct gguf_file *f, const char *path, struct err_msg *em)
{
	struct stat st;
	enum err e = ERR_OK;

	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait for a writer */
	if (fd < 0)
		return err_set(em, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0)
		e = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		e = err_set(em, ERR_IO, "%s: not a regular file", path);
	else if (st.st_size == 0)
		e = err_set(em, ERR_FORMAT, "%s: the file is empty", path);
	if (e)
		goto out;
	f->bytes = (u64)st.st_size;
	f->changed[0] = st.st_mtim.tv_sec;
	f->changed[1] = st.st_mtim.tv_nsec;
	void *map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED && errno == ENOMEM)
		e = region_refuse(em, "%s: there is no room to map its %llu bytes; use a smaller model", path, (unsigned long long)f->bytes);
	else if (map == MAP_FAILED)
		e = err_set(em, ERR_IO, "%s: cannot map %llu bytes: %s", path, (unsigned long long)f->bytes, strerror(errno));
	else
		f->map = map;
out:
	close(fd);
	return e;
}

/* Magic and version. */
static enum err read_start(struct gguf_cursor *c, struct err_msg *em)
{
	static const char lfs[] = "version ";
	char magic[4];
	u32 version;

	if ((size_t)(c->end - c->at) >= sizeof(lfs) - 1 && !memcmp(c->at, lfs, sizeof(lfs) - 1))
		return err_set(em, ERR_FORMAT, "a pointer of Git LFS instead of the file itself; fetch that by \"git lfs pull\"");
	if (!gguf_take(c, magic, sizeof(magic)) || memcmp(magic, "GGUF", sizeof(magic)) != 0)
		return err_set(em, ERR_FORMAT, "this is no GGUF file: it does not begin with \"GGUF\"");
	if (!gguf_take(c, &version, sizeof(version)))
		return err_set(em, ERR_FORMAT, "truncated: the file ends behind \"GGUF\"");
	if ((version & 0xffff) == 0 && version != 0)
		return err_set(em, ERR_UNSUPPORTED, "a file for big-endian machines; convert the model again, for little-endian ones");
	if (version != 2 && version != 3)
		return err_set(em, ERR_UNSUPPORTED, "version %u of the format; 2 and 3 are supported", version);
	return ERR_OK;
}

/* One entry of the header. `*offset`: where its data begins, from the begin of all data on. */
static enum err read_tensor(struct gguf_tensor *t, struct gguf_cursor *c, u64 *offset, struct err_msg *em)
{
	u32 block, block_bytes;
	u64 elements = 1;

	if (!gguf_take(c, &t->dims, sizeof(t->dims)))
		return err_set(em, ERR_FORMAT, "truncated: the file ends inside the table of tensors");
	if (t->dims > GGUF_DIMS_MAX)
		return err_set(em, ERR_FORMAT, "%u dimensions; at most %d are possible", t->dims, GGUF_DIMS_MAX);
	for (u32 i = t->dims; i > 0; i--) {
		u64 *n = &t->shape[i - 1];
		if (!gguf_take(c, n, sizeof(*n)))
			return err_set(em, ERR_FORMAT, "truncated: the file ends inside the table of tensors");
		if (*n == 0 || *n > INT64_MAX || __builtin_mul_overflow(elements, *n, &elements))
			return err_set(em, ERR_FORMAT, "a dimension of 0, or more elements than can be counted");
	}
	if (!gguf_take(c, &t->type, sizeof(t->type)) || !gguf_take(c, offset, sizeof(*offset)))
		return err_set(em, ERR_FORMAT, "truncated: the file ends inside the table of tensors");
	if (!gguf_type_block(t->type, &block, &block_bytes))
		return ERR_OK;
	u64 row = t->dims ? t->shape[t->dims - 1] : 1;
	if (row % block)
		return err_set(em, ERR_FORMAT, "rows of %llu elements of %s, which has them in blocks of %u", (unsigned long long)row,
			       gguf_type_name(t->type), block);
	if (__builtin_mul_overflow(elements / block, (u64)block_bytes, &t->bytes))
		return err_set(em, ERR_FORMAT, "more bytes than can be counted");
	return ERR_OK;
}

/* The data of the tensors is in the order of the table, so that no two of them overlap. `*end`: where the one in front of it
 * ends. */
static enum err place_tensor(struct gguf_tensor *t, const struct gguf_file *f, u64 begin, u64 offset, u64 alignment, u64 *end,
			     struct err_msg *em)
{
	const u64 room = f->bytes - begin;

	if (offset % alignment)
		return err_set(em, ERR_FORMAT, "its data begins at byte %llu, which is no multiple of the file's alignment, %llu",
			       (unsigned long long)offset, (unsigned long long)alignment);
	if (offset < *end)
		return err_set(em, ERR_FORMAT, "its data begins at byte %llu, in front of byte %llu where the tensor before it ends",
			       (unsigned long long)offset, (unsigned long long)*end);
	if (offset > room || t->bytes > room - offset)
		return err_set(em, ERR_FORMAT,
			       "its %llu bytes of data begin at byte %llu, but the file has only %llu bytes of data: truncated, or the offsets "
			       "are wrong",
			       (unsigned long long)t->bytes, (unsigned long long)offset, (unsigned long long)room);
	if (t->bytes)
		t->data = f->map + begin + offset;
	*end = offset + t->bytes;
	return ERR_OK;
}

static enum err grow_tensors(struct gguf *g, u64 extra, u64 header_left, struct err_msg *em)
{
	if (extra > header_left / TENSOR_BYTES_MIN)
		return err_set(em, ERR_FORMAT, "truncated: %llu tensors are announced, and %llu bytes are left for their names",
			       (unsigned long long)extra, (unsigned long long)header_left);
	if (g->tensor_count + extra > TENSORS_MAX)
		return err_set(em, ERR_TOO_LONG, "more than %d tensors", TENSORS_MAX);
	if (extra == 0)
		return ERR_OK;
	struct gguf_tensor *grown = realloc(g->tensors, (g->tensor_count + (size_t)extra) * sizeof(*grown));
	if (!grown)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	g->tensors = grown;
	return ERR_OK;
}

static enum err read_alignment(const struct gguf_values *v, u64 *out, struct err_msg *em)
{
	i64 given = ALIGNMENT_USUAL;

	gguf_values_int(v, "general.alignment", &given);
	if (given < 1 || given > ALIGNMENT_MAX || (given & (given - 1)) != 0)
		return err_set(em, ERR_FORMAT, "general.alignment is %lld; it must be a power of two, at most %d", (long long)given,
			       ALIGNMENT_MAX);
	*out = (u64)given;
	return ERR_OK;
}

/* Offsets are known when the whole table is: they count from behind it. */
static enum err read_tensors(struct gguf *g, struct gguf_file *f, struct gguf_cursor *c, u64 count, u64 alignment, struct err_msg *em)
{
	u64 end = 0, *offsets;
	const u32 first = g->tensor_count;

	enum err e = grow_tensors(g, count, (u64)(c->end - c->at), em);
	if (e)
		return e;
	offsets = calloc(count ? (size_t)count : 1, sizeof(*offsets));
	if (!offsets)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u64 i = 0; !e && i < count; i++) {
		struct gguf_tensor *t = &g->tensors[first + i];
		*t = (struct gguf_tensor){.file = f->name};
		e = gguf_take_name(&t->name, c, NAME_BYTES_MAX, &g->arena, em);
		if (e) {
			err_prefix(em, "tensor %llu of %llu", (unsigned long long)i, (unsigned long long)count);
			break;
		}
		e = read_tensor(t, c, &offsets[i], em);
		if (e)
			err_prefix(em, "tensor %s", t->name);
	}
	f->header_bytes = (u64)(c->at - f->map);
	u64 begin = (f->header_bytes + alignment - 1) / alignment * alignment;
	begin = begin < f->bytes ? begin : f->bytes; /* without tensors there may be nothing behind it */
	for (u64 i = 0; !e && i < count; i++) {
		struct gguf_tensor *t = &g->tensors[first + i];
		e = place_tensor(t, f, begin, offsets[i], alignment, &end, em);
		if (e)
			err_prefix(em, "tensor %s", t->name);
	}
	g->tensor_count += e ? 0 : (u32)count;
	free(offsets);
	return e;
}

static enum err read_header(struct gguf *g, struct gguf_file *f, struct gguf_values *v, struct err_msg *em)
{
	struct gguf_cursor c = {f->map, f->map + f->bytes};
	u64 tensors, values, alignment = 1;

	enum err e = read_start(&c, em);
	if (!e && (!gguf_take(&c, &tensors, sizeof(tensors)) || !gguf_take(&c, &values, sizeof(values))))
		e = err_set(em, ERR_FORMAT, "truncated: the file has %llu bytes", (unsigned long long)f->bytes);
	if (!e)
		e = gguf_values_read(v, &c, values, &g->arena, em);
	if (!e)
		e = read_alignment(v, &alignment, em);
	if (!e)
		e = read_tensors(g, f, &c, tensors, alignment, em);
	if (e)
		err_prefix(em, "%s", f->name);
	return e;
}

/* ---------------------------------------------------------------- the files of a model */

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The length of a path without "-00001-of-00003.gguf"; 0: it does not end in that. */
static size_t stem_of(const char *path, i64 count)
{
	char end[48];
	int length = snprintf(end, sizeof(end), "-00001-of-%05lld.gguf", (long long)count);
	size_t bytes = strlen(path);

	if (length < 0 || bytes <= (size_t)length || strcmp(path + bytes - (size_t)length, end) != 0)
		return 0;
	return bytes - (size_t)length;
}

/* Follows a link, a step only: caches of downloads have links beside each other to files of quite other names. False: it is none. */
static bool follow(char path[PATH_MAX])
{
	char to[PATH_MAX];
	ssize_t bytes = readlink(path, to, sizeof(to) - 1);

	if (bytes <= 0)
		return false;
	to[bytes] = 0;
	size_t folder = to[0] == '/' ? 0 : (size_t)(name_of(path) - path);
	if (folder + (size_t)bytes >= PATH_MAX)
		return false;
	memcpy(path + folder, to, (size_t)bytes + 1);
	return true;
}

static enum err open_one(struct gguf *g, const char *path, struct gguf_values *v, struct err_msg *em)
{
	struct gguf_file *grown = realloc(g->files, (g->file_count + 1) * sizeof(*grown));

	if (!grown)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	g->files = grown;
	struct gguf_file *f = &g->files[g->file_count];
	*f = (struct gguf_file){.name = arena_strdup(&g->arena, name_of(path))};
	if (!f->name)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = map_file(f, path, em);
	if (e)
		return e;
	g->file_count++;
	return read_header(g, f, v, em);
}

static enum err open_other(struct gguf *g, const char *path, i64 number, i64 count, struct err_msg *em)
{
	struct gguf_values v = {0};
	i64 own_number = -1, own_count = -1;

	enum err e = open_one(g, path, &v, em);
	if (!e) {
		gguf_values_int(&v, "split.no", &own_number);
		gguf_values_int(&v, "split.count", &own_count);
		if (own_number != number || own_count != count)
			e = err_set(em, ERR_FORMAT, "%s: it says to be file %lld of %lld (split.no, split.count); file %lld of %lld was expected",
				    name_of(path), (long long)own_number + 1, (long long)own_count, (long long)number + 1, (long long)count);
	}
	gguf_values_fini(&v);
	return e;
}

static enum err check_tensors_told(const struct gguf *g, struct err_msg *em)
{
	i64 told;

	if (!gguf_values_int(&g->values, "split.tensors.count", &told) || told == (i64)g->tensor_count)
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "%s and the files beside it have %u tensors; by split.tensors.count they should have %lld", g->files[0].name,
		       g->tensor_count, (long long)told);
}

static enum err open_others(struct gguf *g, const char *first, struct err_msg *em)
{
	char path[PATH_MAX], other[PATH_MAX + 32];
	i64 count = 1, number = 0;
	enum err e = ERR_OK;
	size_t stem;

	gguf_values_int(&g->values, "split.count", &count);
	gguf_values_int(&g->values, "split.no", &number);
	if (count == 0 || count == 1)
		return ERR_OK;
	if (count < 0 || count > FILES_MAX)
		return err_set(em, ERR_FORMAT, "%s: split.count is %lld; it must be 1 to %d", g->files[0].name, (long long)count, FILES_MAX);
	if (number != 0)
		return err_set(em, ERR_INVALID, "%s is file %lld of %lld of a model; give the first one, which ends in -00001-of-%05lld.gguf",
			       g->files[0].name, (long long)number + 1, (long long)count, (long long)count);
	if ((size_t)snprintf(path, sizeof(path), "%s", first) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the path of %s is longer than %d bytes", g->files[0].name, PATH_MAX - 1);
	for (u32 links = 0; !(stem = stem_of(path, count)); links++)
		if (links == LINKS_MAX || !follow(path))
			return err_set(em, ERR_INVALID,
				       "%s is the first of %lld files, but its name does not end in -00001-of-%05lld.gguf: the others cannot be found",
				       g->files[0].name, (long long)count, (long long)count);
	for (i64 i = 1; !e && i < count; i++) {
		snprintf(other, sizeof(other), "%.*s-%05lld-of-%05lld.gguf", (int)stem, path, (long long)i + 1, (long long)count);
		e = open_other(g, other, i, count, em);
	}
	return e ? e : check_tensors_told(g, em);
}

/* ---------------------------------------------------------------- the table of tensors */

static int compare_names(const void *a, const void *b, void *arg)
{
	const struct gguf_tensor *tensors = arg;

	return strcmp(tensors[*(const u32 *)a].name, tensors[*(const u32 *)b].name);
}

static enum err sort_tensors(struct gguf *g, struct err_msg *em)
{
	g->by_name = calloc(g->tensor_count ? g->tensor_count : 1, sizeof(*g->by_name));
	if (!g->by_name)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u32 i = 0; i < g->tensor_count; i++)
		g->by_name[i] = i;
	qsort_r(g->by_name, g->tensor_count, sizeof(*g->by_name), compare_names, g->tensors);
	for (u32 i = 1; i < g->tensor_count; i++) {
		const struct gguf_tensor *t = &g->tensors[g->by_name[i]], *before = &g->tensors[g->by_name[i - 1]];
		if (!strcmp(before->name, t->name))
			return err_set(em, ERR_FORMAT, "tensor %s is there twice (%s, %s)", t->name, before->file, t->file);
	}
	return ERR_OK;
}

enum err gguf_open(struct gguf **out, const char *path, struct err_msg *em)
{
	*out = NULL;
	struct gguf *g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = open_one(g, path, &g->values, em);
	if (!e)
		e = open_others(g, path, em);
	if (!e)
		e = sort_tensors(g, em);
	if (e)
		gguf_close(&g);
	else
		*out = g;
	return e;
}

void gguf_close(struct gguf **out)
{
	struct gguf *g = *out;

	if (!g)
		return;
	for (u32 i = 0; i < g->file_count; i++)
		munmap((void *)(uintptr_t)g->files[i].map, g->files[i].bytes);
	gguf_values_fini(&g->values);
	free(g->files);
	free(g->tensors);
	free(g->by_name);
	arena_fini(&g->arena);
	free(g);
	*out = NULL;
}

enum err gguf_check(const void *file, size_t bytes, struct err_msg *em)
{
	struct gguf g = {0};
	struct gguf_file f = {.name = "file", .map = file, .bytes = bytes};

	enum err e = read_header(&g, &f, &g.values, em);
	if (!e)
		e = sort_tensors(&g, em);
	gguf_values_fini(&g.values);
	free(g.tensors);
	free(g.by_name);
	arena_fini(&g.arena);
	return e;
}

void gguf_advise(const struct gguf *g, bool keep)
{
	for (u32 i = 0; i < g->file_count; i++) {
		void *map = (void *)(uintptr_t)g->files[i].map;
		madvise(map, g->files[i].bytes, keep ? MADV_SEQUENTIAL : MADV_RANDOM);
		if (!keep)
			madvise(map, g->files[i].bytes, MADV_DONTNEED);
	}
}

u64 gguf_identity(const struct gguf *g)
{
	u64 hash = 0;

	for (u32 i = 0; i < g->file_count; i++) {
		const struct gguf_file *f = &g->files[i];
		hash = XXH3_64bits_withSeed(f->name, strlen(f->name) + 1, hash);
		hash = XXH3_64bits_withSeed(&f->bytes, sizeof(f->bytes), hash);
		hash = XXH3_64bits_withSeed(f->changed, sizeof(f->changed), hash);
		hash = XXH3_64bits_withSeed(f->map, f->header_bytes, hash);
	}
	return hash;
}

const struct gguf_values *gguf_values_of(const struct gguf *g)
{
	return &g->values;
}

u32 gguf_tensor_count(const struct gguf *g)
{
	return g->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, u32 index)
{
	return &g->tensors[index];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
	for (u32 low = 0, high = g->tensor_count; low < high;) {
		u32 middle = low + (high - low) / 2;
		const struct gguf_tensor *t = &g->tensors[g->by_name[middle]];
		int order = strcmp(name, t->name);
		if (order == 0)
			return t;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}
