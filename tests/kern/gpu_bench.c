/* Times on a device: graphs of many repetitions, so that what is timed is the kernels and not their launches;
 * and the ceilings that they are compared with. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "kernels/kern_priv.h"
#include "tests/kern/gpu_bench.h"

cudaError_t device_read(const void *data, size_t bytes, void *out, unsigned blocks,
			void *stream); /* device_kernels.cu */

enum { RUNS = 3, REPEATS_MIN = 10, REPEATS_MAX = 400, LAUNCHES_MAX = 2000 };
static const double RUN_NS = 8e6, READ_BYTES = 4e8;

static cudaStream_t stream_of(const struct gpu_bench *b)
{
	return b->d.ctx.stream;
}

void gpu_bench_failed(struct gpu_bench *b, const char *what, const char *why)
{
	b->failed++;
	printf("{\"bench\":\"gpu_kernels\",\"op\":\"%s\",\"error\":\"%s\"}\n", what, why);
	fflush(stdout);
}

void *gpu_bench_place(const struct gpu_bench *b, size_t bytes, u32 i)
{
	const size_t room = (bytes + 255) & ~(size_t)255, places = b->arena_bytes / room;

	ASSERT(places > 0);
	return b->arena + i % places * room;
}

/* ---------------------------------------------------------------- time */

/* NULL: could not be queued or captured; what was queued is gone. */
static cudaGraphExec_t capture(struct gpu_bench *b, gpu_queue_fn queue, void *arg, u32 repeats)
{
	cudaGraph_t graph = NULL;
	cudaGraphExec_t exec = NULL;
	enum err e = ERR_OK;

	if (cudaStreamBeginCapture(stream_of(b), cudaStreamCaptureModeThreadLocal) != cudaSuccess)
		return NULL;
	for (u32 i = 0; i < repeats && e == ERR_OK; i++)
		e = queue(b, arg, i);
	const cudaError_t ended = cudaStreamEndCapture(stream_of(b), &graph);
	if (e == ERR_OK && ended == cudaSuccess)
		(void)cudaGraphInstantiate(&exec, graph, 0);
	if (graph)
		(void)cudaGraphDestroy(graph);
	return exec;
}

/* Nanoseconds of `launches` launches; negative: an error. */
static double launched_ns(struct gpu_bench *b, cudaGraphExec_t exec, u32 launches)
{
	const u64 begin = clock_now_ns();

	for (u32 i = 0; i < launches; i++)
		if (cudaGraphLaunch(exec, stream_of(b)) != cudaSuccess)
			return -1;
	return cudaStreamSynchronize(stream_of(b)) == cudaSuccess ? (double)(clock_now_ns() - begin) : -1;
}

static double best_ns(struct gpu_bench *b, cudaGraphExec_t exec)
{
	double best = launched_ns(b, exec, 1), once = best < 0 || b->small ? best : launched_ns(b, exec, 1);

	if (once < 0 || b->small)
		return once;
	const u32 launches = RUN_NS / once > LAUNCHES_MAX ? LAUNCHES_MAX : 1 + (u32)(RUN_NS / once);
	best = once;
	for (u32 run = 0; run < RUNS; run++) {
		const double ns = launched_ns(b, exec, launches);
		if (ns < 0)
			return ns;
		best = ns / launches < best ? ns / launches : best;
	}
	return best;
}

double gpu_bench_us(struct gpu_bench *b, const char *what, gpu_queue_fn queue, void *arg, u32 repeats)
{
	const enum err e = queue(b, arg, 0); /* what is loaded or refused at the first time is so here */

	if (e != ERR_OK || cudaStreamSynchronize(stream_of(b)) != cudaSuccess) {
		gpu_bench_failed(b, what, e != ERR_OK ? err_text(e) : "the kernel was stopped");
		printf("%s", device_report());
		return -1;
	}
	cudaGraphExec_t exec = capture(b, queue, arg, repeats);
	if (!exec) {
		gpu_bench_failed(b, what, "cannot be recorded as a graph");
		return -1;
	}
	const double ns = best_ns(b, exec);
	(void)cudaGraphExecDestroy(exec);
	if (ns < 0)
		gpu_bench_failed(b, what, "a repetition failed");
	return ns < 0 ? ns : ns / 1000 / repeats;
}

static void print_case(const struct gpu_bench *b, const struct gpu_case *c, double us)
{
	const double ceilings[] = {[GPU_READ] = b->ceilings.read_gbytes_s,
				   [GPU_COMPUTE] = b->ceilings.bf16_tflops,
				   [GPU_HOST] = b->ceilings.down_gbytes_s};
	static const char *const names[] = {
		[GPU_READ] = "read", [GPU_COMPUTE] = "bf16", [GPU_HOST] = "copy to the host"};
	const double rate = c->work / us / (c->bound == GPU_COMPUTE ? 1e6 : 1e3);

	printf("{\"bench\":\"gpu_kernels\",\"op\":\"%s\",\"shape\":\"%s\",\"us\":%.2f,\"%s\":%.4g", c->op,
	       c->shape, us, c->bound == GPU_COMPUTE ? "tflops" : "gbytes_s", rate);
	if (ceilings[c->bound] > 0)
		printf(",\"ceiling\":\"%s\",\"share\":%.3f", names[c->bound], rate / ceilings[c->bound]);
	if (c->predicted_high > 0)
		printf(",\"predicted\":[%.2f,%.2f]", c->predicted_low, c->predicted_high);
	printf("}\n");
	fflush(stdout);
}

void gpu_bench_case(struct gpu_bench *b, const struct gpu_case *c, gpu_queue_fn queue, void *arg)
{
	double repeats = c->repeats > 0 ? c->repeats : REPEATS_MIN;
	char what[160];

	if (c->repeats == 0 && c->bound == GPU_READ && READ_BYTES / c->work > repeats)
		repeats = READ_BYTES / c->work;
	if (repeats > REPEATS_MAX)
		repeats = REPEATS_MAX;
	snprintf(what, sizeof(what), "%s %s", c->op, c->shape);
	const double us = gpu_bench_us(b, what, queue, arg, b->small ? 2 : (u32)repeats);
	if (us >= 0)
		print_case(b, c, us);
}

/* ---------------------------------------------------------------- ceilings */

static void print_ceiling(const char *what, const char *unit, double value)
{
	printf("{\"bench\":\"gpu_ceilings\",\"what\":\"%s\",\"%s\":%.4g}\n", what, unit, value);
	fflush(stdout);
}

struct range {
	void *host; /* pinned; NULL: within the device */
	size_t bytes;
	bool up;
	u32 blocks;
};

static enum err queue_read(struct gpu_bench *b, void *arg, u32 i)
{
	const struct range *r = arg;

	(void)i;
	return device_read(b->arena, r->bytes, b->out, r->blocks, b->d.ctx.stream) == cudaSuccess
		       ? ERR_OK
		       : ERR_DEVICE;
}

static enum err queue_copy(struct gpu_bench *b, void *arg, u32 i)
{
	const struct range *r = arg;
	const enum cudaMemcpyKind kind = !r->host ? cudaMemcpyDeviceToDevice
					 : r->up  ? cudaMemcpyHostToDevice
						  : cudaMemcpyDeviceToHost;
	void *dst = r->host && !r->up ? r->host : b->out;
	const void *src = r->host && r->up ? r->host : b->arena;

	(void)i;
	return cudaMemcpyAsync(dst, src, r->bytes, kind, stream_of(b)) == cudaSuccess ? ERR_OK : ERR_DEVICE;
}

static void ceiling_of_reading(struct gpu_bench *b)
{
	/* how many blocks it takes differs from device to device */
	for (u32 blocks = 2; blocks <= 8; blocks *= 2) {
		struct range r = {NULL, b->arena_bytes, false, blocks * b->processors};
		const double us = gpu_bench_us(b, "reading memory", queue_read, &r, 2);
		if (us > 0 && (double)r.bytes / us / 1e3 > b->ceilings.read_gbytes_s)
			b->ceilings.read_gbytes_s = (double)r.bytes / us / 1e3;
	}
	print_ceiling("memory read", "gbytes_s", b->ceilings.read_gbytes_s);
}

static void ceilings_of_copies(struct gpu_bench *b)
{
	struct range r = {NULL, b->out_bytes, false, 0};
	double us = gpu_bench_us(b, "copying memory", queue_copy, &r, 2);

	if (us > 0) /* every byte is read and written */
		print_ceiling("memory copy", "gbytes_s", 2 * (double)r.bytes / us / 1e3);
	if (cudaMallocHost(&r.host, r.bytes) != cudaSuccess) {
		gpu_bench_failed(b, "copies to the host", "no pinned memory");
		return;
	}
	memset(r.host, 0, r.bytes);
	us = gpu_bench_us(b, "copying to the host", queue_copy, &r, 2);
	if (us > 0) {
		b->ceilings.down_gbytes_s = (double)r.bytes / us / 1e3;
		print_ceiling("copy to the host", "gbytes_s", b->ceilings.down_gbytes_s);
	}
	r.up = true;
	us = gpu_bench_us(b, "copying to the device", queue_copy, &r, 2);
	if (us > 0)
		print_ceiling("copy to the device", "gbytes_s", (double)r.bytes / us / 1e3);
	(void)cudaFreeHost(r.host);
}

/* A large product through cuBLASLt, at its fastest algorithm. */
static enum err queue_product(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.ops.matmul(&b->d.ctx, arg);
}

static void ceiling_of_products(struct gpu_bench *b)
{
	const u32 size = b->small ? 64 : 8192;
	const size_t bytes = (size_t)size * size * sizeof(u16);
	struct kern_weight w = {.n = size, .k = size, .dtype = KERN_BF16, .packed = KERN_LAYOUT_DEVICE};
	struct kern_matmul_args a = {.w = &w,
				     .tokens = size,
				     .x_stride = size,
				     .out_stride = size,
				     .dtype = KERN_BF16,
				     .out_dtype = KERN_BF16};
	w.data = gpu_bench_place(b, bytes, 0);
	a.x_bf16 = gpu_bench_place(b, bytes, 1);
	a.out_bf16 = (u16 *)(void *)b->out;
	const enum err e = kern_cuda_tune(&b->d.ctx, &a);
	if (e != ERR_OK) {
		gpu_bench_failed(b, "tuning a large product", err_text(e));
		return;
	}
	const double us = gpu_bench_us(b, "a large product", queue_product, &a, 4);
	if (us > 0)
		b->ceilings.bf16_tflops = 2.0 * size * size * size / us / 1e6;
	print_ceiling("bf16 product, cuBLASLt", "tflops", b->ceilings.bf16_tflops);
}

/* What a kernel that does nothing costs in a graph. */
static enum err queue_nothing(struct gpu_bench *b, void *arg, u32 i)
{
	(void)arg;
	(void)i;
	return device_read(b->arena, 0, b->out, 1, b->d.ctx.stream) == cudaSuccess ? ERR_OK : ERR_DEVICE;
}

/* ---------------------------------------------------------------- set-up */

/* Bell-shaped, around zero and of ordinary size: power, and with it the clock, depends on the bits. */
static bool fill_arena(struct gpu_bench *b)
{
	enum { CHUNK = 1 << 20 };
	u16 *host = malloc(CHUNK * sizeof(u16));
	bool ok = host != NULL;

	for (u32 i = 0; ok && i < CHUNK; i++) {
		struct check *c = &b->d.check;
		const float x = check_uniform(c) + check_uniform(c) + check_uniform(c);
		kern_convert(&host[i], KERN_BF16, &x, KERN_F32, 1);
	}
	for (size_t at = 0; ok && at < b->arena_bytes; at += CHUNK * sizeof(u16)) {
		const size_t left = b->arena_bytes - at,
			     bytes = left < CHUNK * sizeof(u16) ? left : CHUNK * sizeof(u16);
		ok = cudaMemcpy(b->arena + at, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
	}
	free(host);
	return ok && cudaStreamSynchronize(NULL) == cudaSuccess; /* a copy returns before its last bytes are written */
}

static bool make_memory(struct gpu_bench *b)
{
	void *arena = NULL, *out = NULL;

	b->arena_bytes = b->small ? (size_t)1 << 20 : (size_t)2 << 30;
	b->out_bytes = b->small ? (size_t)1 << 18 : (size_t)512 << 20;
	if (cudaMalloc(&arena, b->arena_bytes) != cudaSuccess ||
	    cudaMalloc(&out, b->out_bytes) != cudaSuccess)
		return false;
	b->arena = arena;
	b->out = out;
	return fill_arena(b);
}

static const struct {
	const char *name;
	void (*run)(struct gpu_bench *b);
} benches[] = {{"matmul", gpu_bench_matmul}, {"attention", gpu_bench_attention}, {"small", gpu_bench_small},
	     {"recurrent", gpu_bench_recurrent}};

bool gpu_bench_known(const char *only)
{
	for (u32 i = 0; i < COUNT_OF(benches); i++)
		if (strcmp(only, benches[i].name) == 0)
			return true;
	return false;
}

int gpu_bench(const struct kern_device_info *info, u64 seed, bool small, const char *only)
{
	enum { WORKSPACE = 32 << 20, SCRATCH = 256 << 20, SMALL = 1 << 20 };
	struct gpu_bench b = {.small = small, .processors = info->processors};
	struct err_msg em = {""};

	device_init(&b.d, seed);
	if (!make_memory(&b)) {
		printf("no room on the device for %zu MiB\n", (b.arena_bytes + b.out_bytes) >> 20);
		return EXIT_FAILURE;
	}
	b.d.ctx.scratch_bytes = small ? SMALL : SCRATCH;
	b.d.ctx.scratch = device_alloc(&b.d, b.d.ctx.scratch_bytes);
	const struct kern_cuda_config config = {device_alloc(&b.d, small ? SMALL : WORKSPACE),
						small ? SMALL : WORKSPACE, NULL};
	if (kern_cuda_create(&b.d.ctx.device, &config, &em) != ERR_OK) {
		printf("%s\n", em.text);
		return EXIT_FAILURE;
	}
	ceiling_of_reading(&b);
	ceilings_of_copies(&b);
	ceiling_of_products(&b);
	const double us = gpu_bench_us(&b, "an empty kernel", queue_nothing, NULL, 100);
	if (us > 0)
		printf("{\"bench\":\"gpu_ceilings\",\"what\":\"empty kernel in a graph\",\"us\":%.2f}\n", us);
	for (u32 i = 0; i < COUNT_OF(benches); i++)
		if (!only || strcmp(only, benches[i].name) == 0)
			benches[i].run(&b);
	kern_cuda_destroy(&b.d.ctx.device);
	(void)device_release(&b.d, 0);
	(void)cudaFree(b.arena);
	(void)cudaFree(b.out);
	device_fini(&b.d);
	return b.failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
