#include <criterion/criterion.h>

#include "proc_scheduler/kv_blocks.h"

static const u8 secret[PREFIX_SECRET_BYTES] = {1, 2, 3};

struct pool {
	struct kv_blocks kv;
	struct prefix_cache cache;
};

static struct pool *pool(u32 count)
{
	static struct pool p;

	cr_assert_eq(prefix_cache_init(&p.cache, count, 4, secret), ERR_OK);
	cr_assert_eq(kv_blocks_init(&p.kv, count, &p.cache), ERR_OK);
	return &p;
}

static void close_pool(struct pool *p)
{
	kv_blocks_fini(&p->kv);
	prefix_cache_fini(&p->cache);
}

static void file(struct pool *p, u32 block, u32 word)
{
	u32 tokens[4] = {word, word, word, word};

	prefix_cache_put(&p->cache, block,
			 prefix_cache_chain(&p->cache, prefix_cache_root(&p->cache, 0), tokens), 1);
}

Test(kv_blocks, fresh_blocks_come_in_order_and_once)
{
	struct pool *p = pool(4);
	u32 got[4];

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, got, 4), ERR_OK);
	for (u32 i = 0; i < 4; i++) {
		cr_assert_eq(got[i], i);
		cr_assert_eq(kv_blocks_refs(&p->kv, i), 1);
	}
	cr_assert_eq(p->kv.free_count, 0);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, got, 1), ERR_KV_FULL);
	close_pool(p);
}

Test(kv_blocks, shared_block_is_freed_at_the_last_reference)
{
	struct pool *p = pool(2);
	u32 a;

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &a, 1), ERR_OK);
	kv_blocks_take(&p->kv, a);
	kv_blocks_release(&p->kv, a);
	cr_assert_eq(p->kv.free_count, 1);
	kv_blocks_release(&p->kv, a);
	cr_assert_eq(p->kv.free_count, 2);
	close_pool(p);
}

Test(kv_blocks, unknown_content_is_reused_first_and_ends_before_beginnings)
{
	struct pool *p = pool(4);
	u32 table[4], next[4];

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 4), ERR_OK);
	for (u32 i = 0; i < 3; i++)
		file(p, table[i], i); /* the last one is not full */
	kv_blocks_release_all(&p->kv, table, 4);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, next, 4), ERR_OK);
	cr_assert_eq(next[0], table[3]);
	cr_assert_eq(next[1], table[2]);
	cr_assert_eq(next[2], table[1]);
	cr_assert_eq(next[3], table[0]);
	close_pool(p);
}

Test(kv_blocks, handing_out_a_cached_block_revokes_its_hash)
{
	struct pool *p = pool(1);
	u32 a, b;

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &a, 1), ERR_OK);
	file(p, a, 9);
	kv_blocks_release(&p->kv, a);
	cr_assert(prefix_cache_has(&p->cache, a), "a free block keeps its content");
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &b, 1), ERR_OK);
	cr_assert_not(prefix_cache_has(&p->cache, b));
	close_pool(p);
}

Test(kv_blocks, a_hit_in_the_free_list_counts_as_needed)
{
	struct pool *p = pool(3);
	u32 table[3], fresh[3];

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 3), ERR_OK);
	file(p, table[0], 1);
	kv_blocks_release_all(&p->kv, table, 3);
	/* One hit and three new ones are four blocks; there are three. */
	cr_assert_eq(kv_blocks_grow(&p->kv, table, 1, fresh, 3), ERR_KV_FULL);
	cr_assert_eq(kv_blocks_grow(&p->kv, table, 1, fresh, 2), ERR_OK);
	cr_assert_neq(fresh[0], table[0], "the hit was handed out in the same call");
	cr_assert_neq(fresh[1], table[0], "the hit was handed out in the same call");
	cr_assert(prefix_cache_has(&p->cache, table[0]));
	close_pool(p);
}

Test(kv_blocks, a_failed_grow_changes_nothing)
{
	struct pool *p = pool(3);
	u32 table[3], fresh[3];

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 2), ERR_OK);
	file(p, table[0], 1);
	file(p, table[1], 2);
	kv_blocks_release_all(&p->kv, table, 2);
	u32 first = p->kv.blocks[p->kv.capacity].next;
	cr_assert_eq(kv_blocks_grow(&p->kv, table, 2, fresh, 2), ERR_KV_FULL);
	cr_assert_eq(kv_blocks_refs(&p->kv, table[0]), 0);
	cr_assert_eq(kv_blocks_refs(&p->kv, table[1]), 0);
	cr_assert_eq(p->kv.free_count, 3);
	cr_assert_eq(p->cache.count, 2);
	cr_assert_eq(p->kv.blocks[p->kv.capacity].next, first);
	close_pool(p);
}

Test(kv_blocks, a_hit_is_evicted_after_what_was_used_before_it)
{
	struct pool *p = pool(2);
	u32 a, b, c;

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &a, 1), ERR_OK);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &b, 1), ERR_OK);
	file(p, a, 1);
	file(p, b, 2);
	kv_blocks_release(&p->kv, a);
	kv_blocks_release(&p->kv, b);
	kv_blocks_take(&p->kv, a); /* used again: now b is the older one */
	kv_blocks_release(&p->kv, a);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, &c, 1), ERR_OK);
	cr_assert_eq(c, b);
	close_pool(p);
}

Test(kv_blocks, reset_frees_all_and_may_shrink_the_pool)
{
	struct pool *p = pool(4);
	u32 table[4];

	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 4), ERR_OK);
	file(p, table[0], 1);
	kv_blocks_reset(&p->kv, 2);
	cr_assert_eq(p->kv.free_count, 2);
	cr_assert_eq(p->cache.count, 0);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 3), ERR_KV_FULL);
	cr_assert_eq(kv_blocks_grow(&p->kv, NULL, 0, table, 2), ERR_OK);
	close_pool(p);
}
