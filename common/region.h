/* One block of memory that an owner takes at start and lays its arrays out in. Laying out is done twice by one function: with a
 * NULL base it only measures, with the reserved block it places. */
#ifndef TERCET_COMMON_REGION_H
#define TERCET_COMMON_REGION_H

#include <stddef.h>

enum { REGION_ALIGN = 64 }; /* a cache line: no two arrays share one */

/* The place of the next `bytes` at `base` + *offset, NULL with a NULL base; *offset moves behind them, up to a multiple of
 * REGION_ALIGN. `base` must be aligned to that, and *offset begin at 0. */
void *region_carve(void *base, size_t *offset, size_t bytes);

/* Address space for `bytes` that reads as zeros and becomes memory only as it is written: nothing is counted
 * against the host's limit before. NULL: there is no room, or `bytes` is 0. Given back by region_release with the same `bytes`. */
void *region_reserve(size_t bytes);
void region_release(void *region, size_t bytes); /* NULL accepted */

#endif
