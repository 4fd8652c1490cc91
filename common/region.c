/* Owns nothing: takes address space of the system for others, and gives it back. Runs in every process at start and end. */
#include "common/region.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

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

enum err region_refuse(struct err_msg *em, const char *fmt, ...)
{
	struct rlimit limit;
	char text[sizeof(em->text)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return err_set(em, ERR_NO_MEMORY, "%s", text);
	return err_set(em, ERR_NO_MEMORY, "%s, or raise the limit of a process's address space (ulimit -v), which is %llu MiB", text,
		       (unsigned long long)limit.rlim_cur >> 20);
}
