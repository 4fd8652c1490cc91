/* How many rows of a head a thread computes at once, by which the scratch is sized. */
#ifndef TERCET_KERNELS_CPU_HEAD_MATMUL_PRIV_H
#define TERCET_KERNELS_CPU_HEAD_MATMUL_PRIV_H

#include "kernels/kern_priv.h"

enum { HEAD_CHUNK_ROWS = 128 };

#endif
