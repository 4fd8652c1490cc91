/* Figures of others, for comparison. Constant data. */
#include "bench/cpu_peers.h"

#include <string.h>

static const struct peer_case CASES[] = {
	{2048, PEER_BF16, 1, "prefill", 128, 88.8, 102.2},
	{2048, PEER_BF16, 1, "prefill", 512, 79.6, 95},
	{2048, PEER_BF16, 1, "decode", 1, 10.8, 10.4},
	{2048, PEER_BF16, 2, "prefill", 128, 150.6, 191.4},
	{2048, PEER_BF16, 2, "prefill", 512, 135.8, 160.4},
	{2048, PEER_BF16, 2, "decode", 1, 17.3, 16.8},
	{2048, PEER_INT8, 1, "prefill", 128, 57.4, 108},
	{2048, PEER_INT8, 1, "prefill", 512, 52.7, 108.6},
	{2048, PEER_INT8, 1, "decode", 1, 14.1, 21.9},
	{2048, PEER_INT8, 2, "prefill", 128, 104.6, 202.9},
	{2048, PEER_INT8, 2, "prefill", 512, 99.1, 205.1},
	{2048, PEER_INT8, 2, "decode", 1, 23.4, 37.7},
	{2048, PEER_INT4, 1, "prefill", 128, 62, 106.7},
	{2048, PEER_INT4, 1, "prefill", 512, 56.5, 105.7},
	{2048, PEER_INT4, 1, "decode", 1, 25.1, 27.6},
	{2048, PEER_INT4, 2, "prefill", 128, 117.5, 196.9},
	{2048, PEER_INT4, 2, "prefill", 512, 105.5, 199.4},
	{2048, PEER_INT4, 2, "decode", 1, 43.6, 43},
	{576, PEER_BF16, 1, "prefill", 128, 543.6, 680.1},
	{576, PEER_BF16, 1, "prefill", 512, 391.9, 610.4},
	{576, PEER_BF16, 1, "decode", 1, 83.4, 57.2},
	{576, PEER_BF16, 2, "prefill", 128, 992.9, 1153.5},
	{576, PEER_BF16, 2, "prefill", 512, 713.3, 1114.1},
	{576, PEER_BF16, 2, "decode", 1, 101.7, 106.8},
	{576, PEER_INT8, 1, "prefill", 128, 412.9, 700.9},
	{576, PEER_INT8, 1, "prefill", 512, 316.7, 654.3},
	{576, PEER_INT8, 1, "decode", 1, 124.7, 140.9},
	{576, PEER_INT8, 2, "prefill", 128, 729.7, 1310.8},
	{576, PEER_INT8, 2, "prefill", 512, 545.3, 981.1},
	{576, PEER_INT8, 2, "decode", 1, 134.8, 207},
	{576, PEER_INT4, 1, "prefill", 128, 462.7, 733.7},
	{576, PEER_INT4, 1, "prefill", 512, 338.4, 650.4},
	{576, PEER_INT4, 1, "decode", 1, 176, 182.8},
	{576, PEER_INT4, 2, "prefill", 128, 810.6, 1346.5},
	{576, PEER_INT4, 2, "prefill", 512, 611.9, 1171.7},
	{576, PEER_INT4, 2, "decode", 1, 206.5, 237.5},
	{2048, PEER_BF16, 2, "decode", 4, 38, 54},
	{2048, PEER_BF16, 2, "decode", 8, 51, 83},
	{2048, PEER_BF16, 2, "decode", 16, 60, 87},
	{2048, PEER_BF16, 2, "decode", 32, 46, 81},
	{2048, PEER_INT8, 2, "decode", 4, 42, 77},
	{2048, PEER_INT8, 2, "decode", 8, 48, 78},
	{2048, PEER_INT8, 2, "decode", 16, 48, 84},
	{2048, PEER_INT8, 2, "decode", 32, 40, 81},
	{2048, PEER_INT4, 2, "decode", 4, 47, 86},
	{2048, PEER_INT4, 2, "decode", 8, 48, 94},
	{2048, PEER_INT4, 2, "decode", 16, 53, 87},
	{2048, PEER_INT4, 2, "decode", 32, 39, 76},
	{576, PEER_BF16, 2, "decode", 4, 177, 292},
	{576, PEER_BF16, 2, "decode", 8, 196, 383},
	{576, PEER_BF16, 2, "decode", 16, 167, 351},
	{576, PEER_BF16, 2, "decode", 32, 145, 267},
	{576, PEER_INT8, 2, "decode", 4, 156, 319},
	{576, PEER_INT8, 2, "decode", 8, 171, 309},
	{576, PEER_INT8, 2, "decode", 16, 165, 259},
	{576, PEER_INT8, 2, "decode", 32, 120, 237},
	{576, PEER_INT4, 2, "decode", 4, 208, 329},
	{576, PEER_INT4, 2, "decode", 8, 199, 327},
	{576, PEER_INT4, 2, "decode", 16, 176, 267},
	{576, PEER_INT4, 2, "decode", 32, 115, 240},
};

const char *peer_format_name(enum peer_format f)
{
	static const char *const names[PEER_FORMATS] = {"bf16", "int8", "int4"};

	return names[f];
}

const struct peer_case *peer_find(u32 hidden, u32 vocab, enum peer_format f, u32 threads, const char *what, u32 size)
{
	if (vocab != (hidden == 2048 ? 128256 : 49152)) /* others are as wide */
		return NULL;
	for (size_t i = 0; i < COUNT_OF(CASES); i++) {
		const struct peer_case *c = &CASES[i];
		if (c->hidden == hidden && c->format == f && c->threads == threads && c->size == size &&
		    !strcmp(c->what, what))
			return c;
	}
	return NULL;
}

double peer_gbytes_s(u32 threads)
{
	return threads == 1 ? 35 : 63.5;
}

double peer_gops(enum peer_format f, u32 threads)
{
	return (f == PEER_BF16 ? 236 : 472) * (double)threads; /* of the instructions, at 3.7 GHz */
}
