/* Writes a small checkpoint of any family that the table knows, with random weights in bfloat16, or in FP8 by
 * blocks if config.json says so. For tests that need
 * shapes which device kernels take. */
#ifndef TERCET_TESTS_RANDOM_MODEL_H
#define TERCET_TESTS_RANDOM_MODEL_H

#include "common/types.h"

struct random_model {
	char dir[64];
};

/* `config`: the text of config.json. The same seed gives the same weights. */
void random_model_write(struct random_model *m, const char *config, u64 seed);
void random_model_remove(struct random_model *m);

#endif
