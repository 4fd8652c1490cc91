/* How fast the kernels are on a device, beside what the device can do at most: measured in the same run. */
#ifndef TERCET_TESTS_KERN_GPU_BENCH_H
#define TERCET_TESTS_KERN_GPU_BENCH_H

#include "kernels/device.h"
#include "tests/kern/device.h"

/* What is at most possible here: 1e9 bytes a second read from device memory or copied to the host, 1e12
 * operations a second (a multiply-add is two) of the matrix units on random bf16. 0: not measured. */
struct gpu_ceilings {
	double read_gbytes_s, down_gbytes_s, bf16_tflops;
};

struct gpu_bench {
	struct device d; /* device memory of a part of the benchmark is that of its case */
	struct gpu_ceilings ceilings;
	bool small; /* shapes for the emulated device, whose times mean nothing */
	u32 processors;
	u8 *arena; /* random bf16 values on the device, larger than its cache */
	size_t arena_bytes;
	u8 *out; /* where results go */
	size_t out_bytes;
	u32 failed;
};

/* Queues repetition `i` of what is timed. Repetitions read different parts of the arena. */
typedef enum err (*gpu_queue_fn)(struct gpu_bench *b, void *arg, u32 i);

/* By what a case is judged. */
enum gpu_bound { GPU_READ, GPU_COMPUTE, GPU_HOST };

struct gpu_case {
	const char *op;
	char shape[120];
	enum gpu_bound bound;
	double work;			      /* bytes; GPU_COMPUTE: operations */
	double predicted_low, predicted_high; /* share of the ceiling; 0: nothing was predicted */
	u32 repeats;			      /* in a graph; 0: as many as read 400 MB, 10 at least */
};

/* Microseconds of one repetition: `repeats` of them in a graph, launched until some milliseconds are over;
 * the best of three. Negative: it failed, and that was printed. */
double gpu_bench_us(struct gpu_bench *b, const char *what, gpu_queue_fn queue, void *arg, u32 repeats);
/* Times it and prints a line. */
void gpu_bench_case(struct gpu_bench *b, const struct gpu_case *c, gpu_queue_fn queue, void *arg);
/* The i-th place in the arena for `bytes`, 256-byte aligned. */
void *gpu_bench_place(const struct gpu_bench *b, size_t bytes, u32 i);
/* A failure of something that cannot be left out. */
void gpu_bench_failed(struct gpu_bench *b, const char *what, const char *why);

void gpu_bench_matmul(struct gpu_bench *b);    /* gpu_bench_matmul.c */
void gpu_bench_attention(struct gpu_bench *b); /* gpu_bench_attention.c */
void gpu_bench_small(struct gpu_bench *b);     /* gpu_bench_small.c */
void gpu_bench_recurrent(struct gpu_bench *b); /* gpu_bench_recurrent.c */

/* The ceilings, and all kernels or those of `only`: matmul, attention, small or recurrent. JSON lines on stdout. The program's exit
 * status. */
int gpu_bench(const struct kern_device_info *info, u64 seed, bool small, const char *only);
bool gpu_bench_known(const char *only);

#endif
