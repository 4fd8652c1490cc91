/* A KV cache of the checks of device kernels: on the device, and what it stands for in the reference's layout. */
#ifndef TERCET_TESTS_KERN_DEVICE_CACHE_H
#define TERCET_TESTS_KERN_DEVICE_CACHE_H

#include "tests/kern/device.h"

/* A cache on the device and what it stands for as floats in the reference's cache. */
struct device_cache {
	struct kern_kv device, ref;
	size_t head_bytes; /* of one KV head of a block, on the device */
	u32 blocks;
	u8 *k, *v; /* host copies of the device's */
};

bool device_cache_is_bytes(enum kern_dtype type);
/* Of K, and as many of V. */
size_t device_cache_bytes(const struct device_cache *c);
/* Host memory of the case for `blocks` blocks of the shape of `kv`; the values are the caller's. */
void device_cache_init(struct device *d, struct device_cache *c, const struct kern_kv *kv, u32 blocks);
void device_cache_upload(struct device *d, struct device_cache *c);
/* Where the reference's cache has that value. */
float *device_cache_ref_k(const struct device_cache *c, size_t block, u32 head, u32 offset, u32 dim);
float *device_cache_ref_v(const struct device_cache *c, size_t block, u32 head, u32 offset, u32 dim);
/* The scale of a token's head in the host's copy of the device's K or V, `side`. */
float *device_cache_scale_at(const struct device_cache *c, u8 *side, size_t block, u32 head, u32 offset);
/* What the device's cache holds there. */
double device_cache_value(const struct device_cache *c, u8 *side, size_t block, u32 head, u32 offset, u32 dim);
/* Random values of one token of one head on both sides. */
void device_cache_fill(struct device *d, struct device_cache *c, bool is_k, size_t block, u32 head, u32 offset, float size);

#endif
