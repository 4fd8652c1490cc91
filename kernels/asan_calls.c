/* The calls that stand for checks of addresses where those in place would take the compiler too long (meson.build): linked as
 * --wrap of AddressSanitizer's, in builds with it alone. Vectors of 32 and 64 bytes are most of what kernels access, and the
 * library's own check of them takes longer than all that is done with them. Not itself instrumented. */
#include <string.h>

#include "common/types.h"

/* Where AddressSanitizer of gcc keeps a byte for each 8 of memory, 0 if all of them may be accessed. */
static const size_t shadow = 0x7fff8000;

void __real___asan_loadN(const void *p, size_t bytes);
void __real___asan_storeN(void *p, size_t bytes);
void __wrap___asan_loadN(const void *p, size_t bytes);
void __wrap___asan_storeN(void *p, size_t bytes);

/* Whether a vector lies within memory that may be accessed; false where that takes another look. */
static inline bool is_vector_within(const void *p, size_t bytes)
{
	const char *first = (const char *)(((size_t)p >> 3) + shadow), *last = (const char *)((((size_t)p + bytes - 1) >> 3) + shadow);
	u64 eight;
	u32 four;
	if (bytes == 32) {
		memcpy(&four, first, sizeof(four));
		return (four | (u8)*last) == 0;
	}
	if (bytes != 64)
		return false;
	memcpy(&eight, first, sizeof(eight));
	return (eight | (u8)*last) == 0;
}

/* Each ends in a jump to the library's, so that a report begins where the access is. */
void __wrap___asan_loadN(const void *p, size_t bytes)
{
	if (!is_vector_within(p, bytes))
		__real___asan_loadN(p, bytes);
}

void __wrap___asan_storeN(void *p, size_t bytes)
{
	if (!is_vector_within(p, bytes))
		__real___asan_storeN(p, bytes);
}
