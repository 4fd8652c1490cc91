/* AddressSanitizer asks for every vector whether its bytes may be touched, by a call each: dozens of times what a tile takes
 * without. Innermost loops are CHECKED_BY_CALLER: whoever runs them asks once for all that they touch.
 *
 * What is inlined into one is ALWAYS_INLINE, and with arrays of its own CHECKED_BY_CALLER as well: the compiler leaves others
 * calls, and marks their arrays as out of scope without taking the mark away when the function returns. */
#ifndef TERCET_KERNELS_CPU_CHECKED_PRIV_H
#define TERCET_KERNELS_CPU_CHECKED_PRIV_H

#include <stddef.h>
#include <stdint.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>

#define CHECKS_BYTES 1
/* Large code that is written out for each of its constants; here once, or the compiler would take ten minutes for a file. */
#define WRITTEN_OUT __attribute__((noinline, noclone))
#define CHECKED_BY_CALLER __attribute__((no_sanitize("address")))

/* Ends with the sanitizer's report unless all bytes may be touched. */
static inline void check_bytes(const void *from, size_t bytes)
{
	const volatile char *wrong = __asan_region_is_poisoned((void *)(uintptr_t)from, bytes);
	if (wrong)
		(void)*wrong;
}
#else
#define CHECKS_BYTES 0
#define WRITTEN_OUT ALWAYS_INLINE
#define CHECKED_BY_CALLER

static inline void check_bytes(const void *from, size_t bytes)
{
	(void)from;
	(void)bytes;
}
#endif
#endif
