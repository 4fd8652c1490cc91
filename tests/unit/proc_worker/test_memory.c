/* Memory: what is available, and how many KV blocks it gives. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kern_priv.h"
#include "proc_worker/host_memory.h"
#include "proc_worker/kv_memory.h"
#include "proc_worker/profile.h"
#include "proc_worker/state_memory.h"

static const u64 GIB = 1ull << 30, MIB = 1 << 20;
static char root[64];

static void put(const char *path, const char *text)
{
	char command[512], full[256];

	snprintf(full, sizeof(full), "%s%s", root, path);
	snprintf(command, sizeof(command), "mkdir -p $(dirname %s)", full);
	cr_assert_eq(system(command), 0);
	FILE *f = fopen(full, "w");
	cr_assert(f && fputs(text, f) >= 0);
	fclose(f);
}

static void begin(void)
{
	snprintf(root, sizeof(root), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(root));
	put("/proc/meminfo",
	    "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   16777216 kB\n");
}

static u64 available(void)
{
	struct err_msg em;
	u64 bytes = 0;

	cr_assert_eq(host_memory_available(root, &bytes, &em), ERR_OK, "%s", em.text);
	return bytes;
}

static void end(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", root);
	cr_assert_eq(system(command), 0);
}

Test(host_memory, is_what_the_kernel_says_without_groups)
{
	begin();
	cr_assert_eq(available(), 16 * GIB);
	put("/proc/self/cgroup", "0::/\n");
	cr_assert_eq(available(), 16 * GIB);
	end();
}

Test(host_memory, is_bounded_by_every_group_above)
{
	begin();
	put("/proc/self/cgroup", "0::/system.slice/tercet.service\n");
	put("/sys/fs/cgroup/system.slice/tercet.service/memory.max", "max\n");
	put("/sys/fs/cgroup/system.slice/tercet.service/memory.current", "1000\n");
	cr_assert_eq(available(), 16 * GIB);
	put("/sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/system.slice/memory.current", "3221225472\n");
	cr_assert_eq(available(), 1 * GIB);
	put("/sys/fs/cgroup/system.slice/memory.stat", "anon 5\nfile 2147483648\ninactive_file 1073741824\n");
	cr_assert_eq(available(), 2 * GIB);
	put("/sys/fs/cgroup/memory.max", "1048576\n");
	put("/sys/fs/cgroup/memory.current", "2097152\n");
	cr_assert_eq(available(), 0);
	end();
}

Test(host_memory, knows_groups_of_the_first_version)
{
	begin();
	put("/proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "77\n");
	put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
	put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "536870912\n");
	cr_assert_eq(available(), 512 * MIB);
	end();
}

Test(host_memory, without_a_kernel_is_an_error)
{
	struct err_msg em;
	u64 bytes;

	cr_assert_eq(host_memory_available("/nowhere", &bytes, &em), ERR_IO);
	cr_assert(strstr(em.text, "/nowhere/proc/meminfo"));
	cr_assert_eq(host_memory_available("", &bytes, &em), ERR_OK);
	cr_assert_gt(bytes, 0);
	cr_assert_gt(host_memory_resident(""), 0);
}

static struct kv_budget budget(void)
{
	return (struct kv_budget){.available = 10 * GIB,
				  .utilization = 0.9,
				  .workers = 1,
				  .block_bytes = MIB,
				  .block_size = 16,
				  .max_model_len = 4096,
				  .rows_max = 64};
}

static u32 blocks(const struct kv_budget *b)
{
	struct err_msg em;
	u32 n = 0;

	cr_assert_eq(kv_budget_blocks(b, &n, &em), ERR_OK, "%s", em.text);
	return n;
}

Test(kv_budget, automatic_is_at_most_four_gib_and_what_the_batch_can_use)
{
	struct kv_budget b = budget();

	cr_assert_eq(blocks(&b), 4096);
	b.rows_max = 8;
	cr_assert_eq(blocks(&b), 8 * 256);
	b.rows_max = 64;
	b.available = 2 * GIB;
	b.utilization = 0.5;
	cr_assert_eq(blocks(&b), 1024);
	b.workers = 2;
	cr_assert_eq(blocks(&b), 512);
}

/* As many as the batch can use, or as 16 MiB of ids, 4 bytes each, are; but for a sequence that needs more. */
Test(kv_budget, without_keys_and_values_blocks_count_as_the_ids_of_their_tokens)
{
	struct kv_budget b = budget();
	struct err_msg em;
	u32 n;

	b.block_bytes = 0;
	cr_assert_eq(blocks(&b), 64 * 256);
	b.rows_max = 4096;
	cr_assert_eq(blocks(&b), 1 << 18);
	b.max_model_len = 1 << 23;
	cr_assert_eq(blocks(&b), 1 << 19);
	b.max_model_len = 4096;
	b.requested = 300 * 64 + 63;
	cr_assert_eq(blocks(&b), 300);
	b.requested = 255 * 64;
	cr_assert_eq(kv_budget_blocks(&b, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "--kv-cache-memory 16320 bytes is too small: one sequence of 4096 tokens needs 1 MiB"), "%s", em.text);
}

Test(kv_budget, swap_space_is_taken_off_what_the_cache_may_use)
{
	struct kv_budget b = budget();
	struct err_msg em;
	u32 n = 0;

	b.workers = 2;
	cr_assert_eq(kv_budget_swap(&b, 0.5, &n, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(n, 512);
	cr_assert_eq(b.available, 9 * GIB);
	cr_assert_eq(kv_budget_swap(&b, 4.6, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "--swap-space asks for 4.6 GiB for each worker, 4.50 GiB are available"), "%s",
		  em.text);
	cr_assert_eq(kv_budget_swap(&b, 0.0001, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "one block of 16 tokens needs 1024 KiB"), "%s", em.text);
	cr_assert_eq(b.available, 9 * GIB);
}

Test(kv_budget, one_long_sequence_may_pass_the_automatic_bound)
{
	struct kv_budget b = budget();

	b.max_model_len = 16 * 6000;
	cr_assert_eq(blocks(&b), 6000);
}

Test(kv_budget, a_request_is_taken_as_it_is_or_refused)
{
	struct kv_budget b = budget();
	struct err_msg em;
	u32 n;

	b.requested = 6 * GIB + 12345;
	cr_assert_eq(blocks(&b), 6144);
	b.workers = 2;
	cr_assert_eq(kv_budget_blocks(&b, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text,
			 "asks for 6145 MiB on each worker, 10240 MiB are available; at most 5120MiB fits"),
		  "%s", em.text);
	b.requested = 100 * MIB;
	cr_assert_eq(kv_budget_blocks(&b, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "one sequence of 4096 tokens needs 256 MiB on each worker"), "%s", em.text);
	cr_assert(strstr(em.text, "--max-model-len 1600"), "%s", em.text);
}

Test(kv_budget, too_little_memory_says_what_fits)
{
	struct kv_budget b = budget();
	struct err_msg em;
	u32 n;

	b.available = 200 * MIB;
	cr_assert_eq(kv_budget_blocks(&b, &n, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "needs 256 MiB, 180 MiB may be used (200 MiB available"), "%s", em.text);
	cr_assert(strstr(em.text, "--max-model-len 2880 fits"), "%s", em.text);
}

Test(kv_memory, layers_without_keys_and_values_have_no_memory)
{
	const struct kv_layer layers[] = {{.of = 0}, {.of = 1}};
	const struct kv_shape shape = {.layers = 2, .kv_heads = 1, .head_dim = 2, .block_size = 4, .dtype = KERN_F32, .by_layer = layers};
	struct kv_memory kv;

	cr_assert_eq(kv_block_bytes(&shape), 0);
	cr_assert_eq(kv_memory_init(&kv, &shape, 1000, NULL), ERR_OK);
	cr_assert(kv.memory_bytes == 0 && kv.block_count == 1000 && kv.layer_count == 2 && kern_kv_block_bytes(&kv.layers[1]) == 0);
	kv_memory_fini(&kv);
}

Test(kv_memory, blocks_of_all_layers_lie_apart)
{
	struct kv_shape shape = {
		.layers = 3, .kv_heads = 2, .head_dim = 8, .block_size = 4, .dtype = KERN_BF16};
	struct kv_memory kv;
	size_t half = 5 * 2 * 8 * 4 * 2;

	cr_assert_eq(kv_block_bytes(&shape), 2 * 3 * 2 * 8 * 4 * 2);
	cr_assert_eq(kv_memory_init(&kv, &shape, 5, NULL), ERR_OK);
	for (u32 l = 0; l < 3; l++) {
		memset(kv.layers[l].k, 2 * (int)l + 1, half);
		memset(kv.layers[l].v, 2 * (int)l + 2, half);
	}
	for (u32 l = 0; l < 3; l++) {
		cr_assert_eq(((u8 *)kv.layers[l].k)[0], 2 * l + 1);
		cr_assert_eq(((u8 *)kv.layers[l].k)[half - 1], 2 * l + 1);
		cr_assert_eq(((u8 *)kv.layers[l].v)[half - 1], 2 * l + 2);
	}
	kv_memory_fini(&kv);
}

static u8 *block_of(const struct kern_kv *kv, bool value, u32 block)
{
	return (u8 *)(value ? kv->v : kv->k) + block * kern_kv_block_bytes(kv) + (block >> kv->run) * kv->gap;
}

/* Few pages then hold a short sequence. */
Test(kv_memory, blocks_near_each_other_are_so_in_all_layers)
{
	enum { BLOCKS = 50, LAYERS = 3, SIDES = 2 * LAYERS };
	static const struct kv_layer layers[LAYERS] = {{2, 64, 0}, {1, 32, 1}, {2, 64, 2}};
	const struct kv_shape shape = {.layers = LAYERS, .block_size = 16, .dtype = KERN_BF16, .by_layer = layers};
	struct kv_memory kv;

	cr_assert_eq(kv_memory_init(&kv, &shape, BLOCKS, NULL), ERR_OK);
	for (u32 i = 0; i < SIDES * BLOCKS; i++) {
		struct kern_kv *layer = &kv.layers[i % SIDES / 2];
		u8 *at = block_of(layer, i % 2, i / SIDES);

		cr_assert_eq(1u << layer->run, 16, "the least run of 64 KiB of 4 KiB each");
		cr_assert(at >= (u8 *)kv.memory && at + kern_kv_block_bytes(layer) <= (u8 *)kv.memory + kv.memory_bytes);
		const size_t run = i / SIDES / 16 * 16 * kv_block_bytes(&shape);
		cr_assert(at >= (u8 *)kv.memory + run && at < (u8 *)kv.memory + run + 16 * kv_block_bytes(&shape));
		memset(at, (int)(i % 251) + 1, kern_kv_block_bytes(layer));
	}
	for (u32 i = 0; i < SIDES * BLOCKS; i++) {
		const struct kern_kv *layer = &kv.layers[i % SIDES / 2];
		const u8 *at = block_of(layer, i % 2, i / SIDES);

		for (size_t b = 0; b < kern_kv_block_bytes(layer); b++)
			cr_assert_eq(at[b], i % 251 + 1, "block %u, side %u", i / SIDES, i % SIDES);
	}
	kv_memory_fini(&kv);
}

Test(kv_memory, layers_have_blocks_of_their_own_size_or_those_of_an_earlier_one)
{
	static const struct kv_layer layers[] = {{4, 8, 0}, {1, 16, 1}, {4, 8, 2}, {1, 16, 1}, {4, 8, 2}};
	const struct kv_shape shape = {.layers = 5, .block_size = 4, .dtype = KERN_BF16, .by_layer = layers};
	const size_t block[] = {4 * 8 * 4 * 2, 1 * 16 * 4 * 2, 4 * 8 * 4 * 2};
	struct kv_memory kv;

	cr_assert_eq(kv_block_bytes(&shape), 2 * (block[0] + block[1] + block[2]));
	cr_assert_eq(kv_memory_init(&kv, &shape, 5, NULL), ERR_OK);
	cr_assert(kv.layer_count == 5 && kv.own_count == 3);
	cr_assert(kv.memory_bytes >= 5 * kv_block_bytes(&shape) && kv.memory_bytes < 5 * kv_block_bytes(&shape) + 6 * 64);
	for (u32 l = 0; l < 3; l++) {
		cr_assert(kv.layers[l].kv_heads == layers[l].kv_heads && kv.layers[l].head_dim == layers[l].head_dim);
		cr_assert_eq(kern_kv_block_bytes(&kv.layers[l]), block[l]);
		memset(kv.layers[l].k, 2 * (int)l + 1, 5 * block[l]);
		memset(kv.layers[l].v, 2 * (int)l + 2, 5 * block[l]);
	}
	for (u32 l = 0; l < 3; l++) {
		cr_assert_eq(((u8 *)kv.layers[l].k)[0], 2 * l + 1);
		cr_assert_eq(((u8 *)kv.layers[l].k)[5 * block[l] - 1], 2 * l + 1);
		cr_assert_eq(((u8 *)kv.layers[l].v)[5 * block[l] - 1], 2 * l + 2);
	}
	cr_assert(kv.layers[3].k == kv.layers[1].k && kv.layers[3].head_dim == 16 && kv.layers[4].v == kv.layers[2].v);
	kv_memory_fini(&kv);
}

Test(kv_memory, layers_of_keys_alone_have_no_room_for_values)
{
	enum { BLOCKS = 40 };
	static const struct kv_layer layers[] = {{1, 64, 0, false}, {0, 64, 1, true}, {1, 32, 2, true}, {1, 16, 3, true}};
	const struct kv_shape shape = {.layers = 4, .block_size = 16, .dtype = KERN_BF16, .by_layer = layers};
	const size_t block[] = {64 * 16 * 2, 0, 32 * 16 * 2, 16 * 16 * 2};
	const u32 src[] = {3}, dst[] = {BLOCKS - 1};
	struct kv_memory kv;

	cr_assert_eq(kv_block_bytes(&shape), 2 * block[0] + block[2] + block[3]);
	cr_assert_eq(kv_memory_init(&kv, &shape, BLOCKS, NULL), ERR_OK);
	cr_assert(kv.layers[0].v && !kv.layers[1].v && !kv.layers[2].v && !kv.layers[3].v);
	for (u32 i = 0; i < BLOCKS; i++) {
		memset(block_of(&kv.layers[0], false, i), (int)i + 1, block[0]);
		memset(block_of(&kv.layers[0], true, i), (int)i + 51, block[0]);
		memset(block_of(&kv.layers[2], false, i), (int)i + 101, block[2]);
		memset(block_of(&kv.layers[3], false, i), (int)i + 151, block[3]);
	}
	const struct kern_block_copy_args copy = {.layers = kv.layers, .layer_count = kv.own_count, .src = src, .dst = dst, .count = 1};
	cr_assert_eq(block_copy_ref(NULL, &copy), ERR_OK);
	for (u32 i = 0; i < BLOCKS; i++) {
		const u32 of = i == BLOCKS - 1 ? 3 : i;
		cr_assert(*block_of(&kv.layers[0], false, i) == of + 1 && block_of(&kv.layers[0], false, i)[block[0] - 1] == of + 1);
		cr_assert(*block_of(&kv.layers[0], true, i) == of + 51 && block_of(&kv.layers[0], true, i)[block[0] - 1] == of + 51);
		cr_assert(*block_of(&kv.layers[2], false, i) == of + 101 && block_of(&kv.layers[2], false, i)[block[2] - 1] == of + 101);
		cr_assert(*block_of(&kv.layers[3], false, i) == of + 151 && block_of(&kv.layers[3], false, i)[block[3] - 1] == of + 151);
	}
	kv_memory_fini(&kv);
}

Test(memory, states_of_layers_lie_in_slots)
{
	static const size_t floats[] = {0, 33, 0, 16, 5}, nothing[] = {0, 0};
	struct state_memory s;
	struct err_msg em;

	cr_assert_eq(state_memory_init(&s, nothing, 2, 4, &em), ERR_OK);
	cr_assert(!s.data && !s.offsets && s.memory_bytes == 0);
	cr_assert_eq(state_memory_init(&s, floats, 5, 4, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(s.stride, 48 + 16 + 16);
	cr_assert_eq(s.memory_bytes, 4 * 80 * sizeof(float));
	cr_assert(s.offsets[1] == 0 && s.offsets[3] == 48 && s.offsets[4] == 64 && s.offsets[5] == 80);
	for (u32 i = 0; i < 4 * 80; i++)
		cr_assert_eq(s.data[i], 0);
	for (u32 i = 0; i < 80; i++)
		s.data[80 + i] = (float)i;
	state_memory_copy(&s, 1, 3);
	cr_assert_eq(memcmp(s.data + 80, s.data + 240, 80 * sizeof(float)), 0);
	state_memory_copy_layer(&s, 3, 3, 0);
	cr_assert(s.data[47] == 0 && s.data[48] == 48 && s.data[63] == 63 && s.data[64] == 0);
	struct state_memory elsewhere;
	cr_assert_eq(state_memory_lay_out(&elsewhere, floats, 5, 4, &em), ERR_OK, "%s", em.text);
	cr_assert(!elsewhere.data && elsewhere.memory_bytes == 0 && elsewhere.slots == 4 && elsewhere.stride == s.stride);
	cr_assert_arr_eq(elsewhere.offsets, s.offsets, 6 * sizeof(*s.offsets));
	state_memory_fini(&elsewhere);
	state_memory_fini(&s);
	const size_t huge[] = {(size_t)1 << 50};
	cr_assert_eq(state_memory_init(&s, huge, 1, 4, &em), ERR_NO_MEMORY);
	cr_assert(strstr(em.text, "for the states of 4 sequences; lower --max-num-seqs"), "%s", em.text);
	state_memory_fini(&s);
}
