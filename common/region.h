/* One block of memory that an owner takes at start and lays its arrays out in. Laying out is done twice by one function: with a
 * NULL base it only measures, with the reserved block it places. */
#ifndef TERCET_COMMON_REGION_H
#define TERCET_COMMON_REGION_H

#include <stddef.h>

#include "common/err.h"

enum { REGION_ALIGN = 64 }; /* a cache line: no two arrays share one */

/* The place of the next `bytes` at `base` + *offset, NULL with a NULL base; *offset moves behind them, up to a multiple of
 * REGION_ALIGN. `base` must be aligned to that, and *offset begin at 0. */
void *region_carve(void *base, size_t *offset, size_t bytes);

/* Address space for `bytes` that reads as zeros and becomes memory only as it is written: nothing is counted
 * against the host's limit before. NULL: there is no room, or `bytes` is 0. Given back by region_release with the same `bytes`. */
void *region_reserve(size_t bytes);
void region_release(void *region, size_t bytes); /* NULL accepted */

/* ERR_NO_MEMORY with this text, which should name what would need less; behind it the limit of address space, if this process has one:
 * then it is that, and not the memory of the host, that is short. */
enum err region_refuse(struct err_msg *em, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
