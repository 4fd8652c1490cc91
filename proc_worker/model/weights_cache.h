/* Packed weights of one rank in a file, so that the next start maps what this one packed. A cache is never needed
 * and never trusted: whatever is wrong with it costs a message and the time to pack. */
#ifndef TERCET_PROC_WORKER_MODEL_WEIGHTS_CACHE_H
#define TERCET_PROC_WORKER_MODEL_WEIGHTS_CACHE_H

#include "proc_worker/model/weights.h"

enum {
	WEIGHTS_CACHE_HEAD = 2 << 20,  /* bytes before the weights: header, checksums, a hole */
	WEIGHTS_CACHE_BLOCK = 4 << 20, /* bytes that share a checksum */
};

/* What a file of the cache is for. Two numbers tell whether its weights are those that this start would pack; the
 * name of the file says for which model folder, types and rank, so that a changed model replaces its file. */
struct weights_cache_key {
	char path[4096]; /* of the file */
	u64 checkpoint;	 /* config.json whole; of the checkpoint's files names, sizes, times and headers */
	u64 packing;	 /* types, rank, instruction sets, version, and how this program packs a sample */
	u64 bytes;	 /* of the weights */
};

/* For plan->cache_dir and the weights' size. ERR_IO, ERR_TOO_LONG: the model folder cannot be read, a path is too
 * long; ERR_UNSUPPORTED: more than fits into a file of the cache. */
MUST_CHECK enum err weights_cache_key_init(struct weights_cache_key *key, const struct weights_plan *plan, u64 bytes,
					   struct err_msg *em);

/* Maps the weights of the file, read-only, after comparing the key and every checksum, in all threads of the plan and
 * with its progress. `*memory` is the caller's until weights_cache_unmap; it is 64-byte aligned. The file may be
 * replaced meanwhile, but not written to. ERR_NOT_FOUND: there is none. ERR_FORMAT: stale, cut short or damaged; `em`
 * says what was found. ERR_IO. */
MUST_CHECK enum err weights_cache_map(void **memory, const struct weights_cache_key *key,
				      const struct weights_plan *plan, struct err_msg *em);
void weights_cache_unmap(void *memory, u64 bytes);

/* Writes the file: under another name, then renamed over what is there. It does not wait for the disk, since
 * checksums tell what a power cut left incomplete. Blocks until all is written. ERR_BUSY: another process is
 * writing it. ERR_NO_SPACE, ERR_IO: `em` says why; nothing of it is left behind. */
MUST_CHECK enum err weights_cache_store(const struct weights_cache_key *key, const void *memory,
					const struct weights_plan *plan, struct err_msg *em);

/* What loading does with them. Both do nothing without plan->cache_dir, and never fail: what is wrong is logged. find:
 * fills `key`, returns the mapped weights or NULL. keep: stores what was packed because find returned NULL. */
void *weights_cache_find(struct weights_cache_key *key, const struct weights_plan *plan, u64 bytes);
void weights_cache_keep(const struct weights_cache_key *key, const void *memory, const struct weights_plan *plan);

#endif
