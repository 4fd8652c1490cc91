/* Files of packed weights. Runs in the worker while it loads; owns no memory between calls but what it mapped for
 * the caller. Must never make a start fail, and never believe a length that a file states.
 *
 * A file: header, checksums of the blocks from CHECKSUMS_AT on, the weights from WEIGHTS_CACHE_HEAD on, exactly as
 * they lie in memory. Pointers into them follow from the plan alone. */
#include "proc_worker/model/weights_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mistral_folder.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum {
	VERSION = 2, /* of the file and of the order in which weights are laid out */
	CHECKSUMS_AT = 4096,
	BLOCKS_MAX = (WEIGHTS_CACHE_HEAD - CHECKSUMS_AT) / 8,
	BLOCKS_A_TURN = 64, /* between two reports of progress */
	SAMPLE_ROWS = 96,
	SAMPLE_COLUMNS = 320,
	TEMPORARY_TRIES = 8,
};

static const char MAGIC[8] = "TERCETWC";

struct header {
	char magic[8];
	u32 version, block_bytes;
	u64 checkpoint, packing, bytes;
	u64 checksums; /* of the list of checksums */
	u64 header;    /* of what stands before */
};

/* ---------------------------------------------------------------- key */

static u64 mix(u64 hash, const void *data, size_t bytes)
{
	return XXH3_64bits_withSeed(data, bytes, hash);
}

static enum err hash_config(u64 *hash, const char *model_dir, struct err_msg *em)
{
	char path[4096], piece[4096];
	size_t n;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", model_dir, mistral_folder_is(model_dir) ? MISTRAL_PARAMS : "config.json") >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the model's path is too long");
	FILE *f = fopen(path, "re");
	if (!f)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	while ((n = fread(piece, 1, sizeof(piece), f)) > 0)
		*hash = mix(*hash, piece, n);
	bool failed = ferror(f);
	fclose(f);
	return failed ? err_set(em, ERR_IO, "%s: cannot be read", path) : ERR_OK;
}

/* Packs a few made-up rows as the plan's weights are packed: what makes this program pack otherwise than the one
 * that wrote a file shows in the bytes, whoever forgot to count up VERSION. */
static enum err hash_sample(u64 *hash, const struct weights_plan *p, enum kern_dtype dtype, struct err_msg *em)
{
	size_t bytes = kern_weight_bytes(SAMPLE_ROWS, SAMPLE_COLUMNS, dtype, p->caps);
	float *rows = malloc(SAMPLE_ROWS * SAMPLE_COLUMNS * sizeof(float));
	void *memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	struct kern_weight w;
	u32 state = 1;
	enum err e = ERR_OK;

	for (u32 i = 0; rows && i < SAMPLE_ROWS * SAMPLE_COLUMNS; i++) {
		state = state * 1664525 + 1013904223; /* Numerical Recipes' */
		rows[i] = (float)(i32)state * 0x1p-31f;
	}
	if (!rows || !memory)
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	else
		memset(memory, 0, bytes);
	if (!e)
		e = kern_weight_pack(&w, rows, KERN_F32, SAMPLE_COLUMNS, SAMPLE_ROWS, SAMPLE_COLUMNS, dtype, memory, NULL,
				     p->caps, em);
	if (!e)
		*hash = mix(*hash, memory, bytes);
	free(rows);
	free(memory);
	return e;
}

static enum err hash_packing(u64 *hash, const struct weights_plan *p, u64 bytes, struct err_msg *em)
{
	const u64 settings[] = {VERSION, p->dtype, p->matrix_dtype, p->caps, p->shard->rank, p->shard->ranks, bytes};
	const enum kern_dtype kinds[] = {KERN_F32, KERN_BF16, KERN_I8, KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS};
	enum err e = ERR_OK;

	*hash = mix(0, settings, sizeof(settings));
	*hash = mix(*hash, TERCET_VERSION, strlen(TERCET_VERSION));
	for (size_t i = 0; !e && i < COUNT_OF(kinds); i++)
		e = hash_sample(hash, p, kinds[i], em);
	return e;
}

static const char *short_name(enum kern_dtype dtype)
{
	return dtype == KERN_F32 ? "f32" : dtype == KERN_BF16 ? "bf16" : dtype == KERN_I8 ? "int8" : "int4";
}

/* DIR/MODEL-bf16-int8-0of2-0123456789abcdef.weights; the digits are of the folder's full path and the instruction
 * sets. */
static enum err name_file(struct weights_cache_key *key, const struct weights_plan *p, struct err_msg *em)
{
	char *path = realpath(p->model_dir, NULL);

	if (!path)
		return err_set(em, ERR_IO, "%s: %s", p->model_dir, strerror(errno));
	const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : "model";
	u64 hash = mix(mix(0, path, strlen(path)), &p->caps, sizeof(p->caps));
	int n = snprintf(key->path, sizeof(key->path), "%s/%.100s-%s-%s-%uof%u-%016llx.weights", p->cache_dir, base,
			 short_name(p->dtype), short_name(p->matrix_dtype), p->shard->rank, p->shard->ranks,
			 (unsigned long long)hash);
	free(path);
	return n < 0 || (size_t)n >= sizeof(key->path) - sizeof(".tmp")
		       ? err_set(em, ERR_TOO_LONG, "the path of the weights cache is too long")
		       : ERR_OK;
}

enum err weights_cache_key_init(struct weights_cache_key *key, const struct weights_plan *p, u64 bytes,
				struct err_msg *em)
{
	*key = (struct weights_cache_key){.bytes = bytes};
	if (bytes > (u64)BLOCKS_MAX * WEIGHTS_CACHE_BLOCK)
		return err_set(em, ERR_UNSUPPORTED, "a file of the weights cache holds %llu GiB, these weights take %llu",
			       (unsigned long long)BLOCKS_MAX * WEIGHTS_CACHE_BLOCK >> 30, (unsigned long long)bytes >> 30);
	key->checkpoint = safetensors_identity(p->checkpoint);
	enum err e = hash_config(&key->checkpoint, p->model_dir, em);
	if (!e)
		e = hash_packing(&key->packing, p, bytes, em);
	if (!e)
		e = name_file(key, p, em);
	return e;
}

/* ---------------------------------------------------------------- blocks */

static u32 block_count(u64 bytes)
{
	return (u32)((bytes + WEIGHTS_CACHE_BLOCK - 1) / WEIGHTS_CACHE_BLOCK);
}

static size_t block_bytes(u64 bytes, u32 block)
{
	u64 left = bytes - (u64)block * WEIGHTS_CACHE_BLOCK;

	return left < WEIGHTS_CACHE_BLOCK ? (size_t)left : WEIGHTS_CACHE_BLOCK;
}

struct blocks {
	const char *memory;
	u64 bytes;
	u64 *checksums;	    /* [block] */
	u32 first;	    /* of this turn */
	int fd;		    /* to write to; -1: compare */
	_Atomic u32 bad;    /* the least block that is not as it should be; UINT32_MAX: none */
	_Atomic int failed; /* errno of a write or of a page that cannot be read */
};

static void note_bad(struct blocks *b, u32 block)
{
	u32 bad = atomic_load(&b->bad);

	while (block < bad && !atomic_compare_exchange_weak(&b->bad, &bad, block))
		;
}

static int write_all(int fd, const char *data, size_t bytes, u64 at)
{
	while (bytes > 0) {
		ssize_t n = pwrite(fd, data, bytes, (off_t)at);
		if (n < 0 && errno != EINTR)
			return errno;
		if (n > 0) {
			data += n;
			bytes -= (size_t)n;
			at += (u64)n;
		}
	}
	return 0;
}

/* Task: one block. Asking for its pages first reads ahead, and tells an unreadable disk by an error, where touching
 * them would be a fault. */
static void visit_block(void *arg, u32 task, u32 thread)
{
	struct blocks *b = arg;
	u32 block = b->first + task;
	const char *data = b->memory + (u64)block * WEIGHTS_CACHE_BLOCK;
	size_t bytes = block_bytes(b->bytes, block);
	int failed = 0;

	(void)thread;
	if (atomic_load(&b->failed))
		return;
	if (b->fd < 0 && madvise((void *)(uintptr_t)data, bytes, MADV_POPULATE_READ) < 0 &&
	    (errno == EFAULT || errno == EHWPOISON))
		failed = errno == EFAULT ? EIO : errno;
	u64 checksum = failed ? 0 : XXH3_64bits(data, bytes);
	if (b->fd < 0 && checksum != b->checksums[block])
		note_bad(b, block);
	if (b->fd >= 0) {
		b->checksums[block] = checksum;
		failed = write_all(b->fd, data, bytes, WEIGHTS_CACHE_HEAD + (u64)block * WEIGHTS_CACHE_BLOCK);
	}
	if (failed)
		atomic_store(&b->failed, failed);
}

static void visit_blocks(struct blocks *b, const struct weights_plan *p, bool report)
{
	u32 count = block_count(b->bytes);

	b->bad = UINT32_MAX;
	for (b->first = 0; b->first < count && !b->failed; b->first += BLOCKS_A_TURN) {
		u32 left = count - b->first;
		u32 tasks = left < BLOCKS_A_TURN ? left : BLOCKS_A_TURN;
		if (p->threads)
			kern_threads_run(p->threads, tasks, visit_block, b);
		for (u32 i = 0; i < tasks && !p->threads; i++)
			visit_block(b, i, 0);
		if (p->progress) /* after packing nothing is left to show but life */
			p->progress(p->progress_ctx, report ? (b->first + 1.0) / count : 1);
	}
}

/* ---------------------------------------------------------------- map */

static u64 header_checksum(const struct header *h)
{
	return XXH3_64bits(h, offsetof(struct header, header));
}

static enum err check_header(const struct header *h, const struct weights_cache_key *key, u64 file_bytes,
			     struct err_msg *em)
{
	if (memcmp(h->magic, MAGIC, sizeof(MAGIC)) != 0)
		return err_set(em, ERR_FORMAT, "it is no file of packed weights");
	if (h->version != VERSION || h->block_bytes != WEIGHTS_CACHE_BLOCK)
		return err_set(em, ERR_FORMAT, "it has version %u, this program writes %d", h->version, VERSION);
	if (h->header != header_checksum(h))
		return err_set(em, ERR_FORMAT, "its header is damaged");
	if (h->checkpoint != key->checkpoint)
		return err_set(em, ERR_FORMAT, "the model's files have changed since it was written");
	if (h->packing != key->packing || h->bytes != key->bytes)
		return err_set(em, ERR_FORMAT, "it was packed by another version of the program or for other settings");
	if (file_bytes != WEIGHTS_CACHE_HEAD + key->bytes)
		return err_set(em, ERR_FORMAT, "it has %llu bytes and should have %llu", (unsigned long long)file_bytes,
			       (unsigned long long)(WEIGHTS_CACHE_HEAD + key->bytes));
	return ERR_OK;
}

static enum err check_blocks(const struct header *h, const char *map, const struct weights_cache_key *key,
			     const struct weights_plan *p, struct err_msg *em)
{
	struct blocks b = {.memory = map + WEIGHTS_CACHE_HEAD,
			   .bytes = key->bytes,
			   .checksums = (u64 *)(uintptr_t)(map + CHECKSUMS_AT),
			   .fd = -1};

	if (XXH3_64bits(b.checksums, block_count(key->bytes) * sizeof(u64)) != h->checksums)
		return err_set(em, ERR_FORMAT, "its checksums are damaged");
	visit_blocks(&b, p, true);
	if (b.failed)
		return err_set(em, ERR_IO, "it cannot be read: %s", strerror(b.failed));
	if (b.bad != UINT32_MAX)
		return err_set(em, ERR_FORMAT, "its weights are damaged (block %u of %u has another checksum)", b.bad + 1,
			       block_count(key->bytes));
	return ERR_OK;
}

enum err weights_cache_map(void **memory, const struct weights_cache_key *key, const struct weights_plan *p,
			   struct err_msg *em)
{
	struct header h = {.version = 0};
	struct stat st;
	enum err e = ERR_OK;
	char *map = MAP_FAILED;
	size_t bytes = WEIGHTS_CACHE_HEAD + key->bytes;

	*memory = NULL;
	int fd = open(key->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_set(em, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s", strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		e = err_set(em, ERR_IO, "it is no regular file");
	else if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
		e = err_set(em, ERR_FORMAT, "it is cut short: %llu bytes", (unsigned long long)st.st_size);
	if (!e)
		e = check_header(&h, key, (u64)st.st_size, em);
	if (!e) {
		map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
		e = map == MAP_FAILED ? err_set(em, ERR_IO, "it cannot be mapped: %s", strerror(errno)) : ERR_OK;
	}
	close(fd);
	if (e)
		return e;
	madvise(map, bytes, MADV_HUGEPAGE); /* where the file system has them */
	e = check_blocks(&h, map, key, p, em);
	if (e)
		munmap(map, bytes);
	else
		*memory = map + WEIGHTS_CACHE_HEAD;
	return e;
}

void weights_cache_unmap(void *memory, u64 bytes)
{
	if (memory)
		munmap((char *)memory - WEIGHTS_CACHE_HEAD, WEIGHTS_CACHE_HEAD + bytes);
}

/* ---------------------------------------------------------------- store */

static enum err io_error(int code, struct err_msg *em)
{
	return err_set(em, code == ENOSPC || code == EDQUOT ? ERR_NO_SPACE : ERR_IO, "%s", strerror(code));
}

/* Makes the folder if only its last part is missing, and looks whether files can be made in it. */
static enum err open_folder(const char *dir, struct err_msg *em)
{
	struct stat st;

	if (mkdir(dir, 0755) < 0 && errno != EEXIST)
		return errno == ENOENT ? err_set(em, ERR_IO, "the folder that %s would be in is not there: make it", dir)
				       : io_error(errno, em);
	if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
		return io_error(ENOTDIR, em);
	return access(dir, W_OK | X_OK) < 0 ? io_error(errno, em) : ERR_OK;
}

/* The file under its other name, empty and locked. A file that a killed process left there is taken over; one that
 * its writer has renamed meanwhile is let go of. */
static enum err open_temporary(const char *path, int *out, struct err_msg *em)
{
	struct stat mine, named;

	for (u32 i = 0; i < TEMPORARY_TRIES; i++) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
		if (fd < 0)
			return io_error(errno, em);
		if (fstat(fd, &mine) < 0 || !S_ISREG(mine.st_mode)) {
			close(fd);
			return err_set(em, ERR_IO, "%s is there and no regular file: remove it", path);
		}
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			int code = errno;
			close(fd);
			return code == EWOULDBLOCK ? err_set(em, ERR_BUSY, "another process is writing it")
						   : io_error(code, em);
		}
		if (stat(path, &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev &&
		    ftruncate(fd, 0) == 0) {
			*out = fd;
			return ERR_OK;
		}
		close(fd);
	}
	return err_set(em, ERR_BUSY, "other processes are writing it");
}

static int write_file(int fd, const struct weights_cache_key *key, const void *memory, u64 *checksums,
		      const struct weights_plan *p)
{
	struct blocks b = {.memory = memory, .bytes = key->bytes, .checksums = checksums, .fd = fd};
	size_t list = block_count(key->bytes) * sizeof(u64);
	struct header h = {.version = VERSION,
			   .block_bytes = WEIGHTS_CACHE_BLOCK,
			   .checkpoint = key->checkpoint,
			   .packing = key->packing,
			   .bytes = key->bytes};

	/* All of it or nothing, and in one piece. Some file systems cannot promise. */
	if (fallocate(fd, 0, 0, (off_t)(WEIGHTS_CACHE_HEAD + key->bytes)) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
		return errno;
	visit_blocks(&b, p, false);
	if (b.failed)
		return b.failed;
	memcpy(h.magic, MAGIC, sizeof(MAGIC));
	h.checksums = XXH3_64bits(checksums, list);
	h.header = header_checksum(&h);
	int failed = write_all(fd, (const char *)checksums, list, CHECKSUMS_AT);
	return failed ? failed : write_all(fd, (const char *)&h, sizeof(h), 0);
}

enum err weights_cache_store(const struct weights_cache_key *key, const void *memory, const struct weights_plan *p,
			     struct err_msg *em)
{
	char temporary[sizeof(key->path)];
	int fd = -1, failed = 0;

	enum err e = open_folder(p->cache_dir, em);
	if (e)
		return e;
	int n = snprintf(temporary, sizeof(temporary), "%s.tmp", key->path);
	ASSERT(n > 0 && (size_t)n < sizeof(temporary));
	u64 *checksums = malloc(block_count(key->bytes) * sizeof(u64));
	if (!checksums)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	e = open_temporary(temporary, &fd, em);
	if (!e) {
		failed = write_file(fd, key, memory, checksums, p);
		if (!failed && rename(temporary, key->path) < 0)
			failed = errno;
		if (failed) {
			unlink(temporary);
			e = io_error(failed, em);
		}
		close(fd); /* and unlocks */
	}
	free(checksums);
	return e;
}

/* ---------------------------------------------------------------- at start */

static double seconds_since(u64 begin)
{
	return (double)(clock_now_ns() - begin) / 1e9;
}

static void say_not_written(const struct weights_cache_key *key, enum err e, const struct err_msg *em)
{
	LOG_WARN("WEIGHTS_CACHE_NOT_WRITTEN", "file=\"%s\" reason=\"%s\" then=\"%s\"", key->path, em->text,
		 e == ERR_BUSY ? "the next start uses what that one writes" : "the next start packs again");
}

void *weights_cache_find(struct weights_cache_key *key, const struct weights_plan *p, u64 bytes)
{
	struct err_msg em = {""};
	void *memory = NULL;
	u64 begin = clock_now_ns();

	if (!p->cache_dir)
		return NULL;
	enum err e = weights_cache_key_init(key, p, bytes, &em);
	if (e) {
		key->path[0] = '\0';
		LOG_WARN("WEIGHTS_CACHE_OFF", "dir=\"%s\" reason=\"%s\"", p->cache_dir, em.text);
		return NULL;
	}
	e = weights_cache_map(&memory, key, p, &em);
	if (!e)
		LOG_INFO("WEIGHTS_CACHE_USED", "file=\"%s\" bytes=%lluMiB checked_s=%.2f", key->path,
			 (unsigned long long)(bytes >> 20), seconds_since(begin));
	else if (e != ERR_NOT_FOUND)
		LOG_WARN("WEIGHTS_CACHE_REFUSED", "file=\"%s\" reason=\"%s\" then=\"the weights are packed anew\"",
			 key->path, em.text);
	if (e) { /* now, not after minutes of packing */
		e = open_folder(p->cache_dir, &em);
		if (e) {
			say_not_written(key, e, &em);
			key->path[0] = '\0';
		}
	}
	return memory;
}

void weights_cache_keep(const struct weights_cache_key *key, const void *memory, const struct weights_plan *p)
{
	struct err_msg em = {""};
	u64 begin = clock_now_ns();

	if (!p->cache_dir || !key->path[0])
		return;
	enum err e = weights_cache_store(key, memory, p, &em);
	if (!e)
		LOG_INFO("WEIGHTS_CACHE_WRITTEN", "file=\"%s\" bytes=%lluMiB seconds=%.2f", key->path,
			 (unsigned long long)(key->bytes >> 20), seconds_since(begin));
	else
		say_not_written(key, e, &em);
}
