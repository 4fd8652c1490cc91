/* Harness of the checks of device kernels: device memory of the running case, conversion, comparison. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/device.h"

enum { GUARD_BYTES = 256 /* as cudaMalloc aligns */, GUARD = 0xb7 };

static void must(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "checkkern-cuda: %s: %s\n%s", what, cudaGetErrorString(e), device_report());
	exit(1);
}

void device_init(struct device *d, u64 seed)
{
	cudaStream_t stream;
	memset(d, 0, sizeof(*d));
	check_init(&d->check, seed);
	d->check.variant = "cuda";
	kern_ops_init(&d->ref, 0);
	kern_ops_init_cuda(&d->ops, &d->device_ops);
	must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
	d->ctx.stream = stream;
	d->ref_ctx.threads = d->check.pools[1];
	d->schedule = "";
}

void device_fini(struct device *d)
{
	must(cudaStreamDestroy(d->ctx.stream), "stream");
	check_fini(&d->check);
}

void *device_alloc(struct device *d, size_t bytes)
{
	struct device_buffer *b = &d->buffers[d->buffer_count++];
	if (d->buffer_count > DEVICE_BUFFERS_MAX) {
		fprintf(stderr, "checkkern-cuda: more than %d buffers in a case\n", DEVICE_BUFFERS_MAX);
		exit(1);
	}
	b->bytes = bytes;
	must(cudaMalloc(&b->data, bytes + 2 * GUARD_BYTES), "memory");
	must(cudaMemset(b->data, GUARD, bytes + 2 * GUARD_BYTES), "guards");
	must(cudaMemset((char *)b->data + GUARD_BYTES, 0xff, bytes), "poison");
	must(cudaDeviceSynchronize(), "poison"); /* the ops run in a stream of their own */
	return (char *)b->data + GUARD_BYTES;
}

void *device_upload(struct device *d, const void *host, size_t bytes)
{
	void *p = device_alloc(d, bytes);
	if (bytes > 0)
		must(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "upload");
	/* It returns when it has read pageable memory, and other streams do not wait for what is still to be written. */
	must(cudaStreamSynchronize(NULL), "upload");
	return p;
}

void *device_download(struct device *d, const void *device, size_t bytes)
{
	void *p = check_alloc(&d->check, bytes);
	if (bytes > 0)
		must(cudaMemcpy(p, device, bytes, cudaMemcpyDeviceToHost), "download");
	return p;
}

cudaError_t device_late(void *data, void *copy, size_t bytes, void *stream); /* device_kernels.cu */

void device_arrives_late(struct device *d, void *data, size_t bytes)
{
	must(device_late(data, device_alloc(d, bytes), bytes, d->ctx.stream), "late input");
}

const char *device_problem(struct device *d, enum err e)
{
	static _Thread_local char text[100];
	cudaError_t error = cudaStreamSynchronize(d->ctx.stream);
	if (e != ERR_OK) {
		snprintf(text, sizeof(text), "answers '%s'", err_text(e));
		return text;
	}
	if (error == cudaSuccess)
		return NULL;
	printf("%s", device_report());
	snprintf(text, sizeof(text), "the kernel was stopped: %s", cudaGetErrorName(error));
	printf("case %u: %s\n", d->check.passed + d->check.failed + 1, text); /* whatever fails next ends the program */
	fflush(stdout);
	return text;
}

static bool guards_hold(const struct device_buffer *b)
{
	unsigned char guards[2 * GUARD_BYTES];
	must(cudaMemcpy(guards, b->data, GUARD_BYTES, cudaMemcpyDeviceToHost), "guards");
	must(cudaMemcpy(guards + GUARD_BYTES, (char *)b->data + GUARD_BYTES + b->bytes, GUARD_BYTES,
			cudaMemcpyDeviceToHost),
	     "guards");
	for (size_t i = 0; i < sizeof(guards); i++)
		if (guards[i] != GUARD)
			return false;
	return true;
}

const char *device_release(struct device *d, u32 kept)
{
	const char *problem = NULL;
	for (u32 i = kept; i < d->buffer_count; i++) {
		if (!guards_hold(&d->buffers[i]))
			problem = "wrote outside of a buffer";
		must(cudaFree(d->buffers[i].data), "free");
	}
	d->buffer_count = kept;
	return problem;
}

void device_case_end(struct device *d, const char *problem, const char *fmt, ...)
{
	char text[200];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (!problem)
		problem = device_release(d, 0);
	check_case_end(&d->check, problem, "%s %s", text, d->schedule);
	fflush(stdout); /* a device whose kernel was stopped frees nothing: that ends the program */
	(void)device_release(d, 0);
}

u16 *device_upload_bf16(struct device *d, const float *host, size_t count)
{
	u16 *halves = check_alloc(&d->check, count * sizeof(u16));
	kern_convert(halves, KERN_BF16, host, KERN_F32, count);
	return device_upload(d, halves, count * sizeof(u16));
}

float *device_bf16s(struct device *d, size_t count, bool outliers, u16 **device)
{
	float *p = check_floats(&d->check, count, outliers);
	u16 *halves = check_alloc(&d->check, count * sizeof(u16));
	kern_convert(halves, KERN_BF16, p, KERN_F32, count);
	kern_convert(p, KERN_F32, halves, KERN_BF16, count);
	*device = device_upload(d, halves, count * sizeof(u16));
	return p;
}

float *device_floats(struct device *d, size_t count, bool outliers, float **device)
{
	float *p = check_floats(&d->check, count, outliers);
	*device = device_upload(d, p, count * sizeof(float));
	return p;
}

float *device_download_bf16(struct device *d, const u16 *device, size_t count)
{
	u16 *halves = device_download(d, device, count * sizeof(u16));
	float *p = check_alloc(&d->check, count * sizeof(float));
	kern_convert(p, KERN_F32, halves, KERN_BF16, count);
	return p;
}

double device_e4m3(u8 v)
{
	const u32 exponent = v >> 3 & 15, mantissa = v & 7;
	double x = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, (int)exponent - 10);
	if ((v & 0x7f) == 0x7f)
		x = NAN;
	return v & 0x80 ? -x : x;
}

bool device_weight_f8(struct device *d, u32 n, u32 k, struct kern_weight *device, struct kern_weight *ref)
{
	struct check *c = &d->check;
	struct err_msg em = {""};
	const u32 groups = (k + 127) / 128;
	u8 *q = check_alloc(c, (size_t)n * k);
	float *scale = check_alloc(c, (size_t)n * groups * sizeof(float)),
	      *values = check_alloc(c, (size_t)n * k * sizeof(float));
	const size_t bytes = kern_weight_device_bytes(n, k, KERN_F8E4M3);
	void *memory = check_alloc(c, bytes);
	for (size_t i = 0; i < (size_t)n * groups; i++)
		scale[i] = (1 + check_uniform(c) / 2) / 240;
	for (size_t at = 0; at < (size_t)n * k; at++) {
		q[at] = (u8)(check_random(c, 0x7f) | (check_random(c, 2) << 7)); /* not NaN */
		values[at] = (float)(device_e4m3(q[at]) * scale[at / k * groups + at % k / 128]);
	}
	const struct kern_quantized_rows rows = {q, scale, NULL, k, groups};
	if (kern_weight_device_begin(device, n, k, KERN_F8E4M3, memory, &em))
		return false;
	kern_weight_device_rows(device, 0, n, &rows);
	device->data = device_upload(d, memory, bytes);
	*ref = (struct kern_weight){.n = n, .k = k, .dtype = KERN_F32, .data = values};
	return true;
}

void device_round_weight(struct device *d, struct kern_weight *ref)
{
	const size_t count = (size_t)ref->n * ref->k;
	float *values = check_alloc(&d->check, count * sizeof(float));
	for (size_t i = 0; i < count; i++)
		values[i] = kern_bf16_to_float(
			kern_float_to_bf16(kern_weight_at(ref, (u32)(i / ref->k), (u32)(i % ref->k))));
	*ref = (struct kern_weight){.n = ref->n, .k = ref->k, .dtype = KERN_F32, .data = values, .order = ref->order};
}

const char *device_close(const float *got, const float *want, size_t count, double error, double floor)
{
	static _Thread_local char text[160];
	for (size_t i = 0; i < count; i++) {
		double off = fabs((double)got[i] - want[i]), allowed = error * fabs((double)want[i]) + floor;
		if (off <= allowed || got[i] == want[i]) /* -inf is */
			continue;
		snprintf(text, sizeof(text),
			 "value %zu of %zu is %.9g, should be %.9g (off by %.3g, allowed %.3g)", i, count,
			 (double)got[i], (double)want[i], off, allowed);
		return text;
	}
	return NULL;
}
