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

int main(int argc, char **argv)
{
	static struct check all;
	u64 seed = clock_now_ns() / 1000 % 1000000000;
	const char *only = NULL;
	bool bench = false;
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
	if (!device_schedules(seed, only, &all))
		return usage();
	printf("%u passed, %u failed\n", all.passed, all.failed);
	return all.failed == 0 ? 0 : 1;
}
