/* Owns nothing: takes address space of the system for others, and gives it back. Runs in every process at start and end. */
#include "common/region.h"

#include <stdint.h>
#include <sys/mman.h>

#include "common/assert.h"

void *region_carve(void *base, size_t *offset, size_t bytes)
{
	void *p = base ? (char *)base + *offset : NULL;

	ASSERT(*offset % REGION_ALIGN == 0 && bytes <= SIZE_MAX - *offset - REGION_ALIGN);
	*offset += (bytes + REGION_ALIGN - 1) & ~(size_t)(REGION_ALIGN - 1);
	return p;
}

void *region_reserve(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

void region_release(void *region, size_t bytes)
{
	if (region && munmap(region, bytes) < 0)
		ASSERT(!"munmap of what region_reserve gave");
}
