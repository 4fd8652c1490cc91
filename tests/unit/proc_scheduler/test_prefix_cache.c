#include <criterion/criterion.h>
#include <string.h>

#include "proc_scheduler/prefix_cache.h"

static u8 secret_a[PREFIX_SECRET_BYTES] = {1, 2, 3, 4}, secret_b[PREFIX_SECRET_BYTES] = {1, 2, 3, 5};
static const u32 words[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 5}};

static struct prefix_cache cache_with(const u8 *secret)
{
	struct prefix_cache pc;

	cr_assert_eq(prefix_cache_init(&pc, 8, 4, secret), ERR_OK);
	return pc;
}

static bool same(struct block_hash a, struct block_hash b)
{
	return a.low == b.low && a.high == b.high;
}

Test(prefix_cache, the_hash_depends_on_tokens_parent_salt_and_secret)
{
	struct prefix_cache a = cache_with(secret_a), b = cache_with(secret_b);
	struct block_hash root = prefix_cache_root(&a, 0);
	struct block_hash one = prefix_cache_chain(&a, root, words[0]);

	cr_assert(same(one, prefix_cache_chain(&a, prefix_cache_root(&a, 0), words[0])));
	cr_assert_not(same(one, prefix_cache_chain(&a, root, words[1])), "tokens");
	cr_assert_not(same(one, prefix_cache_chain(&a, one, words[0])), "parent");
	cr_assert_not(same(one, prefix_cache_chain(&a, prefix_cache_root(&a, 7), words[0])), "salt");
	cr_assert_not(same(one, prefix_cache_chain(&b, prefix_cache_root(&b, 0), words[0])), "secret");
	prefix_cache_fini(&a);
	prefix_cache_fini(&b);
}

Test(prefix_cache, equal_secrets_give_equal_hashes_in_two_processes)
{
	struct prefix_cache a = cache_with(secret_a), b = cache_with(secret_a);

	cr_assert(same(prefix_cache_chain(&a, prefix_cache_root(&a, 3), words[0]),
		       prefix_cache_chain(&b, prefix_cache_root(&b, 3), words[0])));
	prefix_cache_fini(&a);
	prefix_cache_fini(&b);
}

Test(prefix_cache, finds_what_was_put_until_it_is_forgotten)
{
	struct prefix_cache pc = cache_with(secret_a);
	struct block_hash h = prefix_cache_chain(&pc, prefix_cache_root(&pc, 0), words[0]);

	cr_assert_eq(prefix_cache_find(&pc, h), KV_BLOCK_NONE);
	prefix_cache_put(&pc, 5, h, 3);
	cr_assert_eq(prefix_cache_find(&pc, h), 5);
	cr_assert_eq(prefix_cache_step(&pc, 5), 3);
	prefix_cache_forget(&pc, 5);
	prefix_cache_forget(&pc, 5);
	cr_assert_eq(prefix_cache_find(&pc, h), KV_BLOCK_NONE);
	cr_assert_eq(pc.count, 0);
	prefix_cache_fini(&pc);
}

Test(prefix_cache, keeps_duplicates_and_finds_the_other_when_one_goes)
{
	struct prefix_cache pc = cache_with(secret_a);
	struct block_hash h = prefix_cache_chain(&pc, prefix_cache_root(&pc, 0), words[0]);

	prefix_cache_put(&pc, 1, h, 1);
	prefix_cache_put(&pc, 2, h, 1);
	prefix_cache_put(&pc, 3, h, 1);
	prefix_cache_forget(&pc, 2);
	prefix_cache_forget(&pc, prefix_cache_find(&pc, h));
	u32 left = prefix_cache_find(&pc, h);
	cr_assert(left == 1 || left == 3);
	prefix_cache_forget(&pc, left);
	cr_assert_eq(prefix_cache_find(&pc, h), KV_BLOCK_NONE);
	prefix_cache_fini(&pc);
}

Test(prefix_cache, holds_every_block_of_the_pool)
{
	enum { BLOCKS = 1000 };
	struct prefix_cache pc;
	struct block_hash h[BLOCKS];

	cr_assert_eq(prefix_cache_init(&pc, BLOCKS, 1, secret_a), ERR_OK);
	for (u32 i = 0; i < BLOCKS; i++) {
		h[i] = prefix_cache_chain(&pc, prefix_cache_root(&pc, 0), &i);
		prefix_cache_put(&pc, i, h[i], 1);
	}
	for (u32 i = 0; i < BLOCKS; i++)
		cr_assert_eq(prefix_cache_find(&pc, h[i]), i);
	prefix_cache_clear(&pc);
	cr_assert_eq(prefix_cache_find(&pc, h[0]), KV_BLOCK_NONE);
	prefix_cache_fini(&pc);
}
