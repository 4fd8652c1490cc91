/* Chains of blocks in the host's memory. */
#include <criterion/criterion.h>

#include "proc_scheduler/host_blocks.h"

static u32 length(const struct host_blocks *h, u32 first)
{
	u32 count = 0;

	for (; first != HOST_BLOCK_NONE; first = h->next[first])
		count++;
	return count;
}

Test(host_blocks, chains_share_no_block_and_all_come_back)
{
	struct host_blocks h;
	u32 seen[10] = {0};

	cr_assert_eq(host_blocks_init(&h, 10), ERR_OK);
	u32 a = host_blocks_take(&h, 3), b = host_blocks_take(&h, 1), c = host_blocks_take(&h, 6);
	cr_assert_eq(h.free_count, 0);
	cr_assert_eq(length(&h, a), 3);
	cr_assert_eq(length(&h, b), 1);
	cr_assert_eq(length(&h, c), 6);
	const u32 firsts[] = {a, b, c};
	for (u32 i = 0; i < 3; i++)
		for (u32 block = firsts[i]; block != HOST_BLOCK_NONE; block = h.next[block])
			cr_assert_eq(seen[block]++, 0);
	host_blocks_release(&h, b, 1);
	host_blocks_release(&h, a, 3);
	cr_assert_eq(h.free_count, 4);
	a = host_blocks_take(&h, 4);
	cr_assert_eq(length(&h, a), 4);
	host_blocks_release(&h, c, 6);
	host_blocks_release(&h, a, 4);
	cr_assert_eq(h.free_count, 10);
	cr_assert_eq(length(&h, h.first_free), 10);
	host_blocks_fini(&h);
}

Test(host_blocks, a_reset_frees_everything_in_a_smaller_pool)
{
	struct host_blocks h;

	cr_assert_eq(host_blocks_init(&h, 10), ERR_OK);
	host_blocks_take(&h, 7);
	host_blocks_reset(&h, 4);
	cr_assert_eq(h.free_count, 4);
	cr_assert_eq(length(&h, h.first_free), 4);
	for (u32 block = host_blocks_take(&h, 4); block != HOST_BLOCK_NONE; block = h.next[block])
		cr_assert_lt(block, 4);
	host_blocks_fini(&h);
}

Test(host_blocks, a_pool_of_none_has_none)
{
	struct host_blocks h;

	cr_assert_eq(host_blocks_init(&h, 0), ERR_OK);
	cr_assert_eq(h.free_count, 0);
	host_blocks_reset(&h, 0);
	host_blocks_fini(&h);
}
