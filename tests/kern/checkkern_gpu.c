/* The checks of checkkern-cuda on the device of this machine, and how fast its kernels are; tools/gpu-check
 * runs it. The same program is built for the emulated device, so that it has run before it meets a real one.
 * Exit status 77: there is no device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "kernels/device.h"
#include "tests/kern/device.h"
#include "tests/kern/gpu_bench.h"

enum { EXIT_USAGE = 2, EXIT_SKIPPED = 77 };

struct group {
	const char *name;
	void (*run)(struct device *d);
};

static const struct group groups[] = {
	{"linear", device_linear},     {"matmul", device_matmul}, {"attention", device_attention},
	{"sampling", device_sampling}, {"step", device_step},	  {"moe", device_moe},
	{"recurrent", device_recurrent}, {"heads", device_heads},
};

struct line {
	u64 seed;
	const char *only; /* groups, with commas; NULL: all */
	bool bench, small;
};

static int usage(void)
{
	fprintf(stderr, "usage: checkkern-gpu [--seed N] [--only GROUP,...] [--bench [--small]]\ngroups of checks:");
	for (u32 i = 0; i < COUNT_OF(groups); i++)
		fprintf(stderr, " %s", groups[i].name);
	fprintf(stderr, "\ngroups of --bench, one at most: matmul, attention, small, recurrent\n");
	return EXIT_USAGE;
}

/* Whether `name` is one of the words of `list`. */
static bool listed(const char *list, const char *name)
{
	const size_t bytes = strlen(name);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, bytes) == 0 && (at[bytes] == ',' || at[bytes] == 0))
			return true;
	}
	return false;
}

/* False: a word is no group's name. */
static bool groups_known(const char *list)
{
	u32 words = 1, found = 0;

	for (const char *at = list; *at; at++)
		words += *at == ',';
	for (u32 i = 0; i < COUNT_OF(groups); i++)
		found += listed(list, groups[i].name);
	return found == words;
}

static bool read_line(struct line *l, int argc, char **argv)
{
	l->seed = clock_now_ns() / 1000 % 1000000000;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			l->seed = strtoull(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
			l->only = argv[++i];
		else if (strcmp(argv[i], "--bench") == 0)
			l->bench = true;
		else if (strcmp(argv[i], "--small") == 0)
			l->small = true;
		else
			return false;
	}
	return (!l->only || (l->bench ? gpu_bench_known(l->only) : groups_known(l->only))) && (!l->small || l->bench);
}

static int run_checks(const struct line *l)
{
	u32 passed = 0, failed = 0;

	printf("seed %llu\n", (unsigned long long)l->seed);
	for (u32 i = 0; i < COUNT_OF(groups); i++) {
		struct device d;
		const u64 began = clock_now_ns();

		if (l->only && !listed(l->only, groups[i].name))
			continue;
		device_init(&d, l->seed);
		groups[i].run(&d);
		device_fini(&d);
		printf("%s: %u passed, %u failed, %.1f s\n", groups[i].name, d.check.passed, d.check.failed,
		       (double)(clock_now_ns() - began) * 1e-9);
		passed += d.check.passed;
		failed += d.check.failed;
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	struct line l = {0};
	struct kern_device_info info;
	struct err_msg em = {""};

	if (!read_line(&l, argc, argv))
		return usage();
	if (kern_device_api.open(0, &info, &em) != ERR_OK) {
		printf("no device: %s\n", em.text);
		return EXIT_SKIPPED;
	}
	printf("%s, compute capability %u.%u, %u processors\n", info.name, info.capability / 10,
	       info.capability % 10, info.processors);
	fflush(stdout);
	return l.bench ? gpu_bench(&info, l.seed, l.small, l.only) : run_checks(&l);
}
