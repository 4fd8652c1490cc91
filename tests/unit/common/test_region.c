#include <criterion/criterion.h>
#include <sys/resource.h>
#include <stdint.h>
#include <string.h>

#include "common/region.h"

struct columns {
	unsigned char *a, *b, *c;
};

static size_t lay_out(struct columns *t, char *base)
{
	size_t offset = 0;

	t->a = region_carve(base, &offset, 1);
	t->b = region_carve(base, &offset, REGION_ALIGN);
	t->c = region_carve(base, &offset, REGION_ALIGN + 1);
	return offset;
}

Test(region, measures_without_a_base_what_it_places_with_one)
{
	struct columns t;

	size_t bytes = lay_out(&t, NULL);
	cr_assert_eq(bytes, 4 * REGION_ALIGN);
	cr_assert_null(t.a);
	cr_assert_null(t.c);
	char *base = region_reserve(bytes);
	cr_assert_not_null(base);
	cr_assert_eq(lay_out(&t, base), bytes);
	cr_assert_eq((char *)t.a, base);
	cr_assert_eq((char *)t.b, base + REGION_ALIGN);
	cr_assert_eq((char *)t.c, base + 2 * REGION_ALIGN);
	region_release(base, bytes);
}

Test(region, carving_nothing_moves_nothing)
{
	_Alignas(REGION_ALIGN) char base[REGION_ALIGN];
	size_t offset = 0;

	cr_assert_eq(region_carve(base, &offset, 0), base);
	cr_assert_eq(offset, 0);
}

Test(region, reads_as_zeros_and_is_aligned)
{
	size_t bytes = 3 << 20;
	unsigned char *p = region_reserve(bytes);

	cr_assert_not_null(p);
	cr_assert_eq((uintptr_t)p % REGION_ALIGN, 0);
	for (size_t i = 0; i < bytes; i += 4096)
		cr_assert_eq(p[i], 0);
	memset(p, 1, bytes);
	region_release(p, bytes);
}

Test(region, more_than_there_is_is_refused)
{
	cr_assert_null(region_reserve((size_t)1 << 60));
	cr_assert_null(region_reserve(0));
	region_release(NULL, 100);
}

Test(region, what_is_refused_names_the_limit_of_address_space_where_there_is_one)
{
	struct err_msg em = {""};
	struct rlimit before;
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
	if (before.rlim_cur == RLIM_INFINITY) {
		cr_assert_eq(region_refuse(&em, "no room for %d; lower --some", 7), ERR_NO_MEMORY);
		cr_assert_str_eq(em.text, "no room for 7; lower --some");
	}
	limit = before;
	limit.rlim_cur = 1ull << 40; /* more than anything here has */
	cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
	cr_assert_eq(region_refuse(&em, "no room for %d; lower --some", 7), ERR_NO_MEMORY);
	cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0); /* a sanitizer's shadow alone is 20 TiB of addresses */
	cr_assert_str_eq(em.text, "no room for 7; lower --some, or raise the limit of a process's address space (ulimit -v), which is "
				  "1048576 MiB");
}
