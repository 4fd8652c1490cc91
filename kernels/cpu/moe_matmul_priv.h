/* How many rows of an expert a thread computes at once, by which the scratch is sized. */
#ifndef TERCET_KERNELS_CPU_MOE_MATMUL_PRIV_H
#define TERCET_KERNELS_CPU_MOE_MATMUL_PRIV_H

#include "kernels/kern_priv.h"

enum { MOE_CHUNK_ROWS = 128 };

#endif
