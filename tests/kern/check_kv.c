/* See check_kv.h. */
#include <math.h>
#include <string.h>

#include "tests/kern/check_kv.h"

const enum kern_dtype check_kv_types[CHECK_KV_TYPES] = {KERN_F32, KERN_BF16, KERN_I8, KERN_F8E4M3, KERN_I16};

const char *check_kv_name(enum kern_dtype type)
{
	return type == KERN_F32 ? "f32" : type == KERN_BF16 ? "bf16" : type == KERN_I8 ? "i8" : type == KERN_I16 ? "i16" : "f8";
}

bool check_kv_has_scales(enum kern_dtype type)
{
	return type == KERN_I8 || type == KERN_F8E4M3 || type == KERN_I16;
}

double check_kv_most(enum kern_dtype type)
{
	return type == KERN_I8 ? 127 : type == KERN_I16 ? 16383 : 448;
}

static size_t element(const struct kern_kv *kv)
{
	return kv->dtype == KERN_F32 ? 4 : kv->dtype == KERN_BF16 || kv->dtype == KERN_I16 ? 2 : 1;
}

/* Bytes of a head's elements in a block: 8-bit ones in fours. */
static size_t elements(const struct kern_kv *kv)
{
	size_t dim = element(kv) == 1 ? (kv->head_dim + 3u) / 4 * 4 : kv->head_dim;
	return kv->block_size * dim * element(kv);
}

static size_t head_bytes(const struct kern_kv *kv)
{
	return elements(kv) + (check_kv_has_scales(kv->dtype) ? kv->block_size * sizeof(float) : 0);
}

size_t check_kv_bytes(const struct kern_kv *kv, u32 blocks)
{
	return (size_t)blocks * kv->kv_heads * head_bytes(kv) + (blocks > 0 ? (blocks - 1) / (1u << kv->run) * kv->gap : 0);
}

void check_kv_apart(struct check *c, struct kern_kv *kv)
{
	kv->run = check_random(c, 4);
	kv->gap = check_random(c, 2) * (1 + check_random(c, 300)) * sizeof(float);
}

/* Where a head of a block begins in its array. */
static size_t head_at(const struct kern_kv *kv, size_t block, u32 head)
{
	return (block * kv->kv_heads + head) * head_bytes(kv) + block / (1u << kv->run) * kv->gap;
}

void check_kv_alloc(struct check *c, struct kern_kv *kv, u32 blocks)
{
	kv->k = check_alloc(c, check_kv_bytes(kv, blocks));
	kv->v = check_alloc(c, check_kv_bytes(kv, blocks));
}

size_t check_kv_at(const struct kern_kv *kv, const struct check_kv_place *p)
{
	size_t base = head_at(kv, p->block, p->head), c = 4 / element(kv);
	if (p->value)
		return base + p->offset * (elements(kv) / kv->block_size) + p->dim * element(kv);
	return base + (p->dim / c * kv->block_size + p->offset) * 4 + p->dim % c * element(kv);
}

size_t check_kv_scale_at(const struct kern_kv *kv, const struct check_kv_place *p)
{
	return head_at(kv, p->block, p->head) + elements(kv) + p->offset * sizeof(float);
}

static char *array_of(const struct kern_kv *kv, const struct check_kv_place *p)
{
	return p->value ? kv->v : kv->k;
}

float check_kv_scale(const struct kern_kv *kv, const struct check_kv_place *p)
{
	float scale;
	memcpy(&scale, array_of(kv, p) + check_kv_scale_at(kv, p), sizeof(scale));
	return scale;
}

static double f8_value(u8 code)
{
	int exponent = code >> 3 & 15, mantissa = code & 7;
	double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
	if ((code & 127) == 127)
		return NAN;
	return code & 128 ? -size : size;
}

/* An element as stored. */
static double stored_value(enum kern_dtype type, const char *at)
{
	float x;
	int16_t whole;
	u16 half;
	u32 bits;
	switch (type) {
	case KERN_I16:
		memcpy(&whole, at, sizeof(whole));
		return whole;
	case KERN_I8:
		return *(const u8 *)at - 128;
	case KERN_F8E4M3:
		return f8_value(*(const u8 *)at);
	case KERN_BF16:
		memcpy(&half, at, sizeof(half));
		bits = (u32)half << 16;
		memcpy(&x, &bits, sizeof(x));
		return x;
	default:
		memcpy(&x, at, sizeof(x));
		return x;
	}
}

double check_kv_load(const struct kern_kv *kv, const struct check_kv_place *p)
{
	const double scale = check_kv_has_scales(kv->dtype) ? (double)check_kv_scale(kv, p) : 1;
	return stored_value(kv->dtype, array_of(kv, p) + check_kv_at(kv, p)) * scale;
}

void check_kv_load_head(const struct kern_kv *kv, struct check_kv_place p, double *x)
{
	const double scale = check_kv_has_scales(kv->dtype) ? (double)check_kv_scale(kv, &p) : 1;
	const u32 in_word = (u32)(4 / element(kv));
	for (p.dim = 0; p.dim < kv->head_dim; p.dim += in_word) { /* elements of a word lie side by side */
		const char *at = array_of(kv, &p) + check_kv_at(kv, &p);
		for (u32 i = 0; i < in_word && p.dim + i < kv->head_dim; i++)
			x[p.dim + i] = stored_value(kv->dtype, at + i * element(kv)) * scale;
	}
}

void check_kv_fill(struct check *c, const struct kern_kv *kv, struct check_kv_place p, float size)
{
	for (p.dim = 0; p.dim < kv->head_dim; p.dim++) {
		char *at = array_of(kv, &p) + check_kv_at(kv, &p);
		float x = check_uniform(c) * (check_random(c, 64) == 0 ? size : 1);
		u8 code = (u8)check_random(c, 256);
		if (kv->dtype == KERN_I8)
			code = code == 0 ? 128 : code; /* -128 is never stored */
		else if ((code & 127) == 127)
			code -= 1; /* a NaN */
		int16_t whole = (int16_t)((int)check_random(c, 2 * 16383 + 1) - 16383);
		if (kv->dtype == KERN_I16)
			memcpy(at, &whole, sizeof(whole));
		else if (check_kv_has_scales(kv->dtype))
			memcpy(at, &code, 1);
		else
			kern_convert(at, kv->dtype, &x, KERN_F32, 1);
	}
	if (!check_kv_has_scales(kv->dtype))
		return;
	for (; element(kv) == 1 && p.dim < (kv->head_dim + 3u) / 4 * 4; p.dim++)
		array_of(kv, &p)[check_kv_at(kv, &p)] = (char)(kv->dtype == KERN_I8 ? 128 : 0);
	float scale = (check_uniform(c) + 1.01f) / (float)check_kv_most(kv->dtype);
	scale *= check_random(c, 64) == 0 ? size : 1;
	scale = check_random(c, 32) == 0 ? 0 : scale;
	memcpy(array_of(kv, &p) + check_kv_scale_at(kv, &p), &scale, sizeof(scale));
}

double check_kv_error(const struct kern_kv *kv, double value, double largest)
{
	const double rounding = largest * 4e-6; /* of what is stored, before it is */
	switch (kv->dtype) {
	case KERN_BF16:
		return fabs(value) * 0x1p-8 + rounding;
	case KERN_I8:
		return largest / 127 / 2 + rounding;
	case KERN_I16:
		return largest / 16383 / 2 + rounding;
	case KERN_F8E4M3:
		return fmax(fabs(value) * 0x1p-4, largest / 448 * 0x1p-10) + rounding;
	default:
		return largest * 2e-6;
	}
}
