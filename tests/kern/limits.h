/* What this machine can do at most, measured: memory read and multiply-adds. For benchmarks. */
#ifndef TERCET_TESTS_KERN_LIMITS_H
#define TERCET_TESTS_KERN_LIMITS_H

#include "kernels/kernels.h"

/* LIMIT_WIDE, LIMIT_NARROW: what AVX2 has for weights in 8 and 4 bits, products summed up by twos in 32 or 16 bits and then added:
 * two instructions, which share their ports. */
enum limit_kind { LIMIT_AVX2, LIMIT_WIDE, LIMIT_NARROW, LIMIT_AVX_VNNI, LIMIT_AVX512, LIMIT_BF16, LIMIT_VNNI, LIMIT_AMX_BF16, LIMIT_AMX_BYTES, LIMIT_KINDS };

const char *limits_name(enum limit_kind k);
/* Whether a processor with these capabilities has the instructions. */
bool limits_has(enum limit_kind k, u32 caps);
/* 1e9 operations a second (a multiply-add is two) of all threads of the pool, nothing read; the best of some
 * runs of together `ms` milliseconds. */
double limits_gops(enum limit_kind k, struct kern_threads *threads, u32 ms);
/* The same, not of the best run but of all: what the machine gave in that time, to whatever ran. */
double limits_gops_mean(enum limit_kind k, struct kern_threads *threads, u32 ms);

/* Memory to read, several times larger than the largest cache, so that nothing of what a run reads is left there from the time before.
 * A run reads `window` bytes, and the next one those behind them. */
struct limits_memory {
	void *data;
	size_t bytes, window, at;
};
/* False: no memory. */
bool limits_memory_init(struct limits_memory *m);
void limits_memory_fini(struct limits_memory *m);
/* 1e9 bytes a second read by all threads of the pool: the best of some runs of together `ms` milliseconds,
 * each thread reading a part of its own, from beginning to end or in four streams, which are asked for ahead or not, line by line or some lines of
 * one stream before the next: what is fastest. */
double limits_read(struct limits_memory *m, struct kern_threads *threads, u32 ms);

#endif
