/* A KV cache for the checks: its layout and its types with scales, written out once more from kernels.h, so that a
 * change of them cannot go unnoticed. */
#ifndef TERCET_TESTS_KERN_CHECK_KV_H
#define TERCET_TESTS_KERN_CHECK_KV_H

#include "tests/kern/check.h"

/* The types of a KV cache, in the order in which cases go through them. */
enum { CHECK_KV_TYPES = 5 };
extern const enum kern_dtype check_kv_types[CHECK_KV_TYPES];
const char *check_kv_name(enum kern_dtype type);

/* A place in a cache: which of its two arrays, and whose dimension. */
struct check_kv_place {
	bool value; /* of V, else of K */
	size_t block;
	u32 head, offset, dim;
};

/* Half of all caches then have gaps between runs of blocks, of a random length of run; nothing may be written into them. */
void check_kv_apart(struct check *c, struct kern_kv *kv);
/* Of one array: up to the end of its last block. */
size_t check_kv_bytes(const struct kern_kv *kv, u32 blocks);
/* Both arrays, poisoned, of the running case. */
void check_kv_alloc(struct check *c, struct kern_kv *kv, u32 blocks);
/* Byte offset in its array, of an element and of its scale. */
size_t check_kv_at(const struct kern_kv *kv, const struct check_kv_place *p);
size_t check_kv_scale_at(const struct kern_kv *kv, const struct check_kv_place *p);
/* Whether values of the type have scales, and what the largest of a token's head is stored as where they have. */
bool check_kv_has_scales(enum kern_dtype type);
double check_kv_most(enum kern_dtype type);
float check_kv_scale(const struct kern_kv *kv, const struct check_kv_place *p);
/* The value there, exactly. */
double check_kv_load(const struct kern_kv *kv, const struct check_kv_place *p);
/* All of p's head: x[dim]. */
void check_kv_load_head(const struct kern_kv *kv, struct check_kv_place p, double *x);
/* Random values for all dimensions of p's head, of magnitudes up to `size`, and a scale where there is one.
 */
void check_kv_fill(struct check *c, const struct kern_kv *kv, struct check_kv_place p, float size);
/* How far a stored value may be from what it stands for, in a head whose largest magnitude is `largest`. */
double check_kv_error(const struct kern_kv *kv, double value, double largest);

#endif
