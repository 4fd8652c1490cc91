/* The KV caches of the checks of device kernels. The layout of the device's cache is written out here once more, from
 * kernels.h. */
#include "tests/kern/device_cache.h"

bool device_cache_is_bytes(enum kern_dtype type)
{
	return type == KERN_I8 || type == KERN_F8E4M3;
}

size_t device_cache_bytes(const struct device_cache *c)
{
	return c->blocks * c->device.kv_heads * c->head_bytes;
}

void device_cache_init(struct device *d, struct device_cache *c, const struct kern_kv *kv, u32 blocks)
{
	const size_t values = (size_t)blocks * kv->kv_heads * kv->block_size * kv->head_dim;
	c->device = c->ref = *kv;
	c->ref.dtype = KERN_F32;
	c->blocks = blocks;
	c->head_bytes = (size_t)kv->block_size *
			(device_cache_is_bytes(kv->dtype) ? kv->head_dim + sizeof(float) : kv->head_dim * sizeof(u16));
	c->k = check_alloc(&d->check, device_cache_bytes(c));
	c->v = check_alloc(&d->check, device_cache_bytes(c));
	c->ref.k = check_alloc(&d->check, values * sizeof(float));
	c->ref.v = check_alloc(&d->check, values * sizeof(float));
}

void device_cache_upload(struct device *d, struct device_cache *c)
{
	c->device.k = device_upload(d, c->k, device_cache_bytes(c));
	c->device.v = device_upload(d, c->v, device_cache_bytes(c));
}

float *device_cache_ref_k(const struct device_cache *c, size_t block, u32 head, u32 offset, u32 dim)
{
	const struct kern_kv *kv = &c->ref;
	return (float *)kv->k + ((block * kv->kv_heads + head) * kv->head_dim + dim) * kv->block_size +
	       offset;
}

float *device_cache_ref_v(const struct device_cache *c, size_t block, u32 head, u32 offset, u32 dim)
{
	const struct kern_kv *kv = &c->ref;
	return (float *)kv->v + ((block * kv->kv_heads + head) * kv->block_size + offset) * kv->head_dim +
	       dim;
}

float *device_cache_scale_at(const struct device_cache *c, u8 *side, size_t block, u32 head, u32 offset)
{
	u8 *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	return (float *)(void *)(part + (size_t)c->device.block_size * c->device.head_dim) + offset;
}

/* What the device's cache holds there. */
double device_cache_value(const struct device_cache *c, u8 *side, size_t block, u32 head, u32 offset, u32 dim)
{
	const u8 *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	const size_t at = (size_t)offset * c->device.head_dim + dim;
	float x;
	if (c->device.dtype == KERN_BF16) {
		kern_convert(&x, KERN_F32, (const u16 *)(const void *)part + at, KERN_BF16, 1);
		return x;
	}
	return (c->device.dtype == KERN_I8 ? (double)(int8_t)part[at] : device_e4m3(part[at])) *
	       *device_cache_scale_at(c, side, block, head, offset);
}

/* Random values of one token of one head on both sides. */
void device_cache_fill(struct device *d, struct device_cache *c, bool is_k, size_t block, u32 head, u32 offset,
		       float size)
{
	u8 *side = is_k ? c->k : c->v, *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	for (u32 i = 0; i < c->device.head_dim; i++) {
		const size_t at = (size_t)offset * c->device.head_dim + i;
		const float x = check_uniform(&d->check) * (check_random(&d->check, 64) == 0 ? size : 1);
		if (c->device.dtype == KERN_BF16)
			kern_convert((u16 *)(void *)part + at, KERN_BF16, &x, KERN_F32, 1);
		else if (c->device.dtype == KERN_I8)
			part[at] = (u8)(int8_t)(x / size * 127);
		else
			part[at] = (u8)check_random(&d->check, 0x78) | (x < 0 ? 0x80 : 0);
		if (device_cache_is_bytes(c->device.dtype))
			*device_cache_scale_at(c, side, block, head, offset) = size /
								  (c->device.dtype == KERN_I8 ? 127 : 240) *
								  (0.5f + 0.01f * (float)offset);
	}
	for (u32 i = 0; i < c->device.head_dim; i++)
		*(is_k ? device_cache_ref_k : device_cache_ref_v)(c, block, head, offset, i) =
			(float)device_cache_value(c, side, block, head, offset, i);
}
