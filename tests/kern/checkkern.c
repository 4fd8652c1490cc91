/* Checks every op in every variant: the reference, those that this processor can run, and the device's on the emulated
 * device; or times the processor's (--bench). checkkern [--seed N] [--only cpu|products|others|recurrent|cuda] [--bench [OP]]; products and
 * others are the halves of cpu, recurrent is a part of others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "tests/kern/device.h"

static int usage(void)
{
	fprintf(stderr, "usage: checkkern [--seed N] [--only cpu|products|others|recurrent|cuda] [--bench [OP]]\n");
	return 2;
}

static void check_products(struct check *c)
{
	check_matmul(c);
	check_fused(c);
	check_stages(c);
	check_moe(c);
	check_heads(c);
	check_lora(c);
}

static void check_others(struct check *c)
{
	check_linear(c);
	check_streams(c);
	check_rope(c);
	check_attention(c);
	check_index(c);
	check_sampling(c);
}

static void check_cpu(struct check *c, bool products, bool others, bool recurrent)
{
	const u64 began = clock_now_ns();
	char names[800];
	for (u32 i = 0; i < c->target_count; i++) {
		kern_ops_print(&c->targets[i].ops, names, sizeof(names));
		printf("target %u: %s\n", i, names);
	}
	if (products)
		check_products(c);
	if (others)
		check_others(c);
	if (recurrent)
		check_recurrent(c);
	printf("processor: %u passed, %u failed, %.1f s\n", c->passed, c->failed,
	       (double)(clock_now_ns() - began) * 1e-9);
}

int main(int argc, char **argv)
{
	u64 seed = clock_now_ns() / 1000 % 1000000000;
	const char *only = NULL;
	bool bench = false, products = true, others = true, recurrent = true, cuda = true;
	static struct check c;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--bench") == 0) {
			bench = true;
			only = i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : NULL;
		} else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
			const bool cpu = strcmp(argv[++i], "cpu") == 0;
			products = cpu || strcmp(argv[i], "products") == 0;
			others = cpu || strcmp(argv[i], "others") == 0;
			recurrent = others || strcmp(argv[i], "recurrent") == 0;
			cuda = strcmp(argv[i], "cuda") == 0;
			if (!products && !recurrent && !cuda)
				return usage();
		} else
			return usage();
	}
	check_init(&c, seed);
	if (bench) {
		bench_all(&c, only);
		check_fini(&c);
		return 0;
	}
	check_add_emulated(&c);
	printf("seed %llu\n", (unsigned long long)seed);
	if (products || recurrent)
		check_cpu(&c, products, others, recurrent);
	if (cuda)
		(void)device_schedules(seed, NULL, &c);
	check_print_counts(&c);
	check_fini(&c);
	printf("%u passed, %u failed\n", c.passed, c.failed);
	return c.failed == 0 ? 0 : 1;
}
