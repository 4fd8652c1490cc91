/* Checks every device kernel against the reference. On the emulated device each case runs under several
 * schedules of threads; --bench times a step of a small model instead.
 * checkkern-cuda [--seed N] [--schedule NAME[:N]] [--bench] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "tests/cuda_emu/emu.h"
#include "tests/kern/device.h"

static int usage(void)
{
	fprintf(stderr, "usage: checkkern-cuda [--seed N] [--schedule NAME[:N]] [--bench]\n");
	return 2;
}

/* One seed for all schedules: what differs is the order of threads alone. */
static void run(u64 seed, const char *schedule, u32 *passed, u32 *failed)
{
	struct device d;
	u64 began = clock_now_ns();
	device_init(&d, seed);
	d.schedule = schedule;
	device_linear(&d);
	device_matmul(&d);
	device_attention(&d);
	device_sampling(&d);
	device_step(&d);
	device_moe(&d);
	device_fini(&d);
	*passed += d.check.passed;
	*failed += d.check.failed;
	printf("%s: %u passed, %u failed, %.1f s\n", schedule, d.check.passed, d.check.failed,
	       (double)(clock_now_ns() - began) * 1e-9);
}

int main(int argc, char **argv)
{
	static const char *const schedules[] = {"forward", "reverse", "ahead:1", "random:2"};
	u64 seed = clock_now_ns() / 1000 % 1000000000;
	const char *only = NULL;
	bool bench = false;
	u32 passed = 0, failed = 0;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--schedule") == 0 && i + 1 < argc)
			only = argv[++i];
		else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--bench") == 0)
			bench = true;
		else
			return usage();
	}
	if (bench) {
		struct device d;
		if (only && !emu_schedule_parse(only))
			return usage();
		device_init(&d, seed);
		device_bench(&d);
		device_fini(&d);
		return 0;
	}
	printf("seed %llu\n", (unsigned long long)seed);
	for (u32 i = 0; i < (only ? 1 : COUNT_OF(schedules)); i++) {
		const char *schedule = only ? only : schedules[i];
		if (!emu_schedule_parse(schedule))
			return usage();
		run(seed, schedule, &passed, &failed);
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed == 0 ? 0 : 1;
}
