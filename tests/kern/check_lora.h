/* Shapes of low-rank adapters: parts of these widths over rows of k. */
#ifndef TERCET_TESTS_KERN_CHECK_LORA_H
#define TERCET_TESTS_KERN_CHECK_LORA_H

#include "tests/kern/bench.h"

struct lora_shape {
	u32 k, parts, n[KERN_LORA_PARTS_MAX];
};

void bench_lora(struct check *c, u32 target, u32 pool);

#endif
