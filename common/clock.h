/* One clock for all processes of a host: CLOCK_MONOTONIC, in nanoseconds. Pure cores take time as an
 * argument. */
#ifndef TERCET_COMMON_CLOCK_H
#define TERCET_COMMON_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);
/* Seconds since the epoch, for people and for the `created` field. */
int64_t clock_wall_s(void);

#endif
