#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proc_detok/frame_ring.h"

static void content(u64 number, u32 bytes, char *out)
{
	for (u32 i = 0; i < bytes; i++)
		out[i] = (char)(number * 31 + i);
}

Test(frame_ring, numbers_begin_where_they_are_told)
{
	struct frame_ring r;
	frame_ring_init(&r, 58);
	cr_assert(frame_ring_push(&r, "abc", 3, 5));
	u32 bytes;
	u64 made_ns;
	cr_assert_eq(memcmp(frame_ring_get(&r, 58, &bytes, &made_ns), "abc", 3), 0);
	cr_assert_eq(bytes, 3);
	cr_assert_eq(made_ns, 5);
	cr_assert_eq(r.next, 59);
	frame_ring_release(&r, 1000);
	cr_assert_eq(r.first, 59);
	cr_assert_eq(r.bytes, 0);
	frame_ring_fini(&r);
}

Test(frame_ring, steady_load_allocates_once)
{
	struct frame_ring r;
	char frame[900];
	frame_ring_init(&r, 1);
	for (u64 i = 1; i <= 8; i++)
		cr_assert(frame_ring_push(&r, frame, sizeof(frame), i));
	const char *data = r.data;
	for (u64 i = 9; i < 10000; i++) {
		frame_ring_release(&r, i - 8);
		cr_assert(frame_ring_push(&r, frame, sizeof(frame), i));
	}
	cr_assert_eq(r.data, data);
	frame_ring_fini(&r);
}

Test(frame_ring, frames_of_any_size_survive_wraps_and_growth)
{
	static u32 sizes[20001];
	char *frame = malloc(40000);
	struct frame_ring r;
	frame_ring_init(&r, 1);
	srand(77);
	u64 first = 1, total = 0;
	for (u64 n = 1; n <= 20000; n++) {
		sizes[n] = 1 + (u32)rand() % (rand() % 50 == 0 ? 40000 : 700);
		content(n, sizes[n], frame);
		cr_assert(frame_ring_push(&r, frame, sizes[n], n));
		total += sizes[n];
		while (first < n && (rand() % 2 || total > 60000))
			total -= sizes[first++];
		frame_ring_release(&r, first);
		cr_assert_eq(r.bytes, total);
		u64 look = first + (u64)rand() % (n - first + 1);
		u32 bytes;
		const char *got = frame_ring_get(&r, look, &bytes, NULL);
		content(look, sizes[look], frame);
		cr_assert_eq(bytes, sizes[look]);
		cr_assert_eq(memcmp(got, frame, bytes), 0, "frame %llu", (unsigned long long)look);
	}
	cr_assert_leq(r.capacity, 262144);
	frame_ring_fini(&r);
	free(frame);
}
