#include "kernels/kernels.h"

static_assert(sizeof(struct kern_ops) == 2 * 30 * sizeof(void *), "an op and its variant's name per slot");
