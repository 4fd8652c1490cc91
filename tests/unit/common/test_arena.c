#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "common/arena.h"

Test(arena, memory_is_aligned_and_does_not_overlap)
{
	struct arena a = {.chunk_bytes = 256};
	unsigned char *p[200];

	for (size_t i = 0; i < 200; i++) {
		p[i] = arena_alloc(&a, i);
		cr_assert_not_null(p[i]);
		cr_assert_eq((uintptr_t)p[i] % 16, 0);
		memset(p[i], (int)i, i);
	}
	for (size_t i = 0; i < 200; i++)
		for (size_t k = 0; k < i; k++)
			cr_assert_eq(p[i][k], i);
	arena_fini(&a);
}

Test(arena, zalloc_is_zero_even_in_used_memory)
{
	struct arena a = {0};

	memset(arena_alloc(&a, 1000), 0xff, 1000);
	arena_reset(&a);
	char *p = arena_zalloc(&a, 1000);
	for (int i = 0; i < 1000; i++)
		cr_assert_eq(p[i], 0);
	arena_fini(&a);
}

Test(arena, copies_of_strings_are_terminated)
{
	struct arena a = {0};

	cr_assert_str_eq(arena_strndup(&a, "abcdef", 3), "abc");
	cr_assert_str_eq(arena_strdup(&a, "whole"), "whole");
	cr_assert_str_eq(arena_strndup(&a, NULL, 0), "");
	arena_fini(&a);
}

Test(arena, limit_is_kept)
{
	struct arena a = {.limit_bytes = 1024};

	cr_assert_not_null(arena_alloc(&a, 1000));
	cr_assert_null(arena_alloc(&a, 100));
	cr_assert_not_null(arena_alloc(&a, 16));
	cr_assert_null(arena_alloc(&a, 1));
	arena_reset(&a);
	cr_assert_not_null(arena_alloc(&a, 1024));
	arena_fini(&a);
}

Test(arena, sizes_that_cannot_exist_are_refused)
{
	struct arena a = {0};

	cr_assert_null(arena_alloc(&a, SIZE_MAX));
	cr_assert_null(arena_alloc(&a, SIZE_MAX - 8));
	cr_assert_null(arena_strndup(&a, "x", SIZE_MAX));
	cr_assert_eq(a.used_bytes, 0);
	arena_fini(&a);
}

Test(arena, reset_reuses_the_largest_chunk)
{
	struct arena a = {.chunk_bytes = 64};

	arena_alloc(&a, 64);
	void *large = arena_alloc(&a, 100000);
	arena_alloc(&a, 64);
	arena_reset(&a);
	cr_assert_eq(a.used_bytes, 0);
	cr_assert_eq(arena_alloc(&a, 90000), large);
	arena_fini(&a);
}
