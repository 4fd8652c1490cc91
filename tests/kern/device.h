/* What the checks of device kernels share. Input is made on the host, rounded to what the device stores, and
 * goes to the reference as floats and to the device as bf16; so whatever differs is the kernel's. */
#ifndef TERCET_TESTS_KERN_DEVICE_H
#define TERCET_TESTS_KERN_DEVICE_H

#include "tests/kern/check.h"

enum { DEVICE_BUFFERS_MAX = 64 };

struct device_buffer {
	void *data;
	size_t bytes;
};

struct device {
	struct check check; /* random numbers, host memory, counting */
	struct kern_ops ops, ref;
	struct kern_device_ops device_ops;
	struct kern_ctx ctx, ref_ctx;
	struct device_buffer buffers[DEVICE_BUFFERS_MAX]; /* of the running case */
	u32 buffer_count;
	const char *schedule; /* what the emulation does with threads; "" on a device */
};

void device_init(struct device *d, u64 seed);
void device_fini(struct device *d);
/* What stopped the last kernel, in lines; "": nothing, or nothing more than the error. */
const char *device_report(void);

/* Device memory of the running case, poisoned and with guards, as of check_alloc. */
void *device_alloc(struct device *d, size_t bytes);
void *device_upload(struct device *d, const void *host, size_t bytes);
/* After all queued work. The host memory is the case's. */
void *device_download(struct device *d, const void *device, size_t bytes);
/* `data` (of device_alloc or device_upload) is poison until a kernel, launched now, writes back what it held: for
 * ops that begin before the kernel in front of them has ended. */
void device_arrives_late(struct device *d, void *data, size_t bytes);
/* Waits for the device; NULL, or what it reports. */
const char *device_problem(struct device *d, enum err e);
/* As check_release. */
const char *device_release(struct device *d, u32 kept);
void device_case_end(struct device *d, const char *problem, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Random floats that bf16 represents; *device is their copy as bf16. */
float *device_bf16s(struct device *d, size_t count, bool outliers, u16 **device);
/* The same as floats on both sides. */
float *device_floats(struct device *d, size_t count, bool outliers, float **device);
u16 *device_upload_bf16(struct device *d, const float *host, size_t count);
float *device_download_bf16(struct device *d, const u16 *device, size_t count);
double device_e4m3(u8 v);
/* fp8: random values and scales, uploaded, and a float weight of the same values. False: there is none. */
bool device_weight_f8(struct device *d, u32 n, u32 k, struct kern_weight *device, struct kern_weight *ref);
/* Makes `ref` the weight that tiles of many tokens compute with: each value rounded to bf16. Its order stays. What the
 * rounding costs a product is then no error of the kernel's, and the check needs no guess at it. */
void device_round_weight(struct device *d, struct kern_weight *ref);
/* NULL, or what is wrong: |got - want| <= error * |want| + floor */
const char *device_close(const float *got, const float *want, size_t count, double error, double floor);

void device_linear(struct device *d);
void device_matmul(struct device *d);
void device_attention(struct device *d);
void device_rope(struct device *d); /* part of it */
void device_heads(struct device *d);
void device_sampling(struct device *d);
void device_step(struct device *d);
void device_moe(struct device *d);
void device_recurrent(struct device *d);
/* Runs the above on the emulated device under four schedules, or `only` that one (NULL: all), and adds the cases to
 * `all`. False: no such schedule. (device_schedules.c) */
bool device_schedules(u64 seed, const char *only, struct check *all);
void device_bench(struct device *d); /* checkkern-cuda only: times of the emulated device */

#endif
