/* Short names of the fixed-width types that message and option tables are written in.
 * The rest of the code spells uint32_t and friends; tables read better this way. */
#ifndef TERCET_COMMON_TYPES_H
#define TERCET_COMMON_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
