#include <criterion/criterion.h>
#include <stdlib.h>

#include "common/map.h"

Test(map, put_get_replace_remove)
{
	struct map m;
	uint32_t v = 0;

	cr_assert_eq(map_init(&m, 4, 1), ERR_OK);
	cr_assert_not(map_get(&m, 7, &v));
	cr_assert_eq(map_put(&m, 7, 70), ERR_OK);
	cr_assert_eq(map_put(&m, 7, 71), ERR_OK);
	cr_assert_eq(m.count, 1);
	cr_assert(map_get(&m, 7, &v));
	cr_assert_eq(v, 71);
	cr_assert(map_get(&m, 7, NULL));
	cr_assert(map_remove(&m, 7));
	cr_assert_not(map_remove(&m, 7));
	cr_assert_not(map_get(&m, 7, NULL));
	map_fini(&m);
}

Test(map, is_busy_when_its_capacity_is_used)
{
	struct map m;

	cr_assert_eq(map_init(&m, 3, 99), ERR_OK);
	for (uint64_t k = 0; k < 3; k++)
		cr_assert_eq(map_put(&m, k, 0), ERR_OK);
	cr_assert_eq(map_put(&m, 3, 0), ERR_BUSY);
	cr_assert_eq(map_put(&m, 2, 5), ERR_OK);
	map_remove(&m, 0);
	cr_assert_eq(map_put(&m, 3, 0), ERR_OK);
	map_fini(&m);
}

Test(map, zero_capacity_holds_nothing)
{
	struct map m;

	cr_assert_eq(map_init(&m, 0, 0), ERR_OK);
	cr_assert_eq(map_put(&m, 1, 1), ERR_BUSY);
	cr_assert_not(map_get(&m, 1, NULL));
	map_fini(&m);
}

Test(map, a_capacity_that_cannot_be_allocated_is_refused)
{
	struct map m;

	cr_assert_eq(map_init(&m, 0xffffffffu, 0), ERR_NO_MEMORY);
}

Test(map, clear_empties_and_keeps_working)
{
	struct map m;

	cr_assert_eq(map_init(&m, 100, 3), ERR_OK);
	for (uint64_t k = 0; k < 100; k++)
		cr_assert_eq(map_put(&m, k << 32, (uint32_t)k), ERR_OK);
	map_clear(&m);
	cr_assert_eq(m.count, 0);
	cr_assert_not(map_get(&m, 5ull << 32, NULL));
	cr_assert_eq(map_put(&m, 1, 1), ERR_OK);
	map_fini(&m);
}

/* A flat array of 512 possible keys is the oracle; small key spaces make collisions and wrap-arounds
 * frequent. */
Test(map, agrees_with_an_array_through_random_changes)
{
	enum { KEYS = 512, CAPACITY = 300, CHANGES = 400000 };
	for (unsigned seed = 1; seed <= 3; seed++) {
		struct map m;
		int64_t oracle[KEYS];
		uint32_t count = 0;

		srand(seed);
		cr_assert_eq(map_init(&m, CAPACITY, seed * 0x123456789abcdefull), ERR_OK);
		for (int i = 0; i < KEYS; i++)
			oracle[i] = -1;
		for (int i = 0; i < CHANGES; i++) {
			uint64_t key = (uint64_t)(rand() % KEYS);
			uint32_t value = (uint32_t)rand();
			if (rand() % 2) {
				enum err e = map_put(&m, key, value);
				if (oracle[key] < 0 && count == CAPACITY) {
					cr_assert_eq(e, ERR_BUSY);
					continue;
				}
				cr_assert_eq(e, ERR_OK);
				count += oracle[key] < 0;
				oracle[key] = value;
			} else {
				cr_assert_eq(map_remove(&m, key), oracle[key] >= 0);
				count -= oracle[key] >= 0;
				oracle[key] = -1;
			}
			uint64_t probe = (uint64_t)(rand() % KEYS);
			uint32_t got = 0;
			cr_assert_eq(map_get(&m, probe, &got), oracle[probe] >= 0, "seed %u change %d", seed,
				     i);
			if (oracle[probe] >= 0)
				cr_assert_eq(got, (uint32_t)oracle[probe]);
			cr_assert_eq(m.count, count);
		}
		map_fini(&m);
	}
}
