/* Opening a device's shared object, and what lies behind its table: the emulated device. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/device.h"

static struct device device;
static struct err_msg em;

static void open_emulated(void)
{
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	cr_assert_eq(device_open(&device, 0, &em), ERR_OK, "%s", em.text);
}

TestSuite(device, .init = open_emulated);

#define OK(call) cr_assert_eq(call, ERR_OK, "%s", em.text)

Test(device, says_what_it_is)
{
	cr_assert_geq(device.info.count, 1);
	cr_assert_geq(device.info.capability, 80);
	cr_assert_gt(device.info.processors, 0);
	cr_assert_gt(device.info.memory_free, 0);
	cr_assert_leq(device.info.memory_free, device.info.memory_total);
	cr_assert_neq(strstr(device.info.name, "CUDA device 0"), NULL, "%s", device.info.name);
}

Test(device, memory_goes_down_and_up_again)
{
	struct kern_device_info before = device.info, during, after;
	void *p;

	OK(device.api->alloc(&p, 1 << 20, &em));
	cr_assert_eq((uintptr_t)p % 256, 0);
	OK(device.api->memory(&during, &em));
	cr_assert_leq(during.memory_free, before.memory_free - (1 << 20));
	device.api->release(p);
	OK(device.api->memory(&after, &em));
	cr_assert_eq(after.memory_free, before.memory_free);
}

Test(device, too_much_memory_is_refused_with_the_number)
{
	void *p;

	cr_assert_eq(device.api->alloc(&p, (size_t)1 << 50, &em), ERR_NO_MEMORY);
	cr_assert_null(p);
	cr_assert_neq(strstr(em.text, "1125899906842624"), NULL, "%s", em.text);
	OK(device.api->alloc(&p, 16, &em)); /* and the device goes on */
	device.api->release(p);
}

Test(device, bytes_travel_up_across_and_down)
{
	enum { BYTES = 100000 };
	void *stream, *a, *b, *host;

	OK(device.api->stream_create(&stream, &em));
	OK(device.api->alloc(&a, BYTES, &em));
	OK(device.api->alloc(&b, BYTES, &em));
	OK(device.api->host_alloc(&host, BYTES, &em));
	for (u32 i = 0; i < BYTES; i++)
		((u8 *)host)[i] = (u8)(i * 7);
	OK(device.api->copy(stream, a, host, BYTES, KERN_COPY_UP, &em));
	OK(device.api->zero(stream, b, BYTES, &em));
	OK(device.api->copy(stream, (u8 *)b + 3, (u8 *)a + 1, 1000, KERN_COPY_DEVICE, &em));
	OK(device.api->stream_sync(stream, &em));
	memset(host, 0xee, BYTES);
	OK(device.api->copy(stream, host, b, BYTES, KERN_COPY_DOWN, &em));
	OK(device.api->stream_sync(stream, &em));
	for (u32 i = 0; i < BYTES; i++)
		cr_assert_eq(((u8 *)host)[i], i >= 3 && i < 1003 ? (u8)((i - 2) * 7) : 0, "byte %u", i);
	device.api->host_release(host);
	device.api->release(b);
	device.api->release(a);
	device.api->stream_destroy(stream);
}

Test(device, an_event_tells_when_what_came_before_it_is_done)
{
	void *stream, *other, *host, *a;
	struct kern_event *event;

	OK(device.api->stream_create(&stream, &em));
	OK(device.api->stream_create(&other, &em));
	OK(device.api->event_create(&event, true, &em));
	OK(device.api->alloc(&a, 4096, &em));
	OK(device.api->host_alloc(&host, 4096, &em));
	memset(host, 5, 4096);
	OK(device.api->copy(stream, a, host, 4096, KERN_COPY_UP, &em));
	OK(device.api->event_record(event, stream, &em));
	OK(device.api->stream_wait(other, event, &em));
	OK(device.api->copy(other, (u8 *)host + 2048, a, 2048, KERN_COPY_DOWN, &em));
	OK(device.api->event_sync(event, &em));
	cr_assert_eq(device.api->event_query(event, &em), ERR_OK);
	OK(device.api->stream_sync(other, &em));
	cr_assert_eq(((u8 *)host)[4095], 5);
	device.api->event_destroy(event);
	device.api->host_release(host);
	device.api->release(a);
	device.api->stream_destroy(other);
	device.api->stream_destroy(stream);
}

Test(device, a_graph_runs_an_op_as_often_as_it_is_launched)
{
	enum { HIDDEN = 64, ROWS = 4 };
	struct kern_ops ops = {0};
	struct kern_device_ops more = {0};
	struct kern_ctx ctx = {0};
	struct kern_graph *graph;
	u16 *table, *halves;
	float *out, *host;
	u32 *ids, *host_ids;

	device.api->ops_init(&ops, &more);
	OK(device.api->stream_create(&ctx.stream, &em));
	OK(device.api->alloc((void **)&table, ROWS * HIDDEN * 2, &em));
	OK(device.api->alloc((void **)&out, HIDDEN * sizeof(float), &em));
	OK(device.api->alloc((void **)&ids, 16, &em));
	OK(device.api->host_alloc((void **)&host, ROWS * HIDDEN * sizeof(float), &em));
	halves = (u16 *)(void *)host;
	OK(device.api->host_alloc((void **)&host_ids, 16, &em));
	for (u32 i = 0; i < ROWS * HIDDEN; i++)
		halves[i] = (u16)(0x3f80 + i / HIDDEN); /* 1, 1 + 1/128, ... */
	OK(device.api->copy(ctx.stream, table, host, ROWS * HIDDEN * 2, KERN_COPY_UP, &em));

	struct kern_embedding_args a = {.out = out,
					.ids = ids,
					.table = table,
					.table_dtype = KERN_BF16,
					.tokens = 1,
					.hidden = HIDDEN,
					.rows = ROWS};
	OK(device.api->graph_begin(ctx.stream, &em));
	OK(ops.embedding(&ctx, &a));
	OK(device.api->graph_end(ctx.stream, &graph, &em));
	for (u32 row = 0; row < ROWS; row++) {
		host_ids[0] = row;
		OK(device.api->copy(ctx.stream, ids, host_ids, 4, KERN_COPY_UP, &em));
		OK(device.api->graph_launch(graph, ctx.stream, &em));
		OK(device.api->copy(ctx.stream, host, out, HIDDEN * sizeof(float), KERN_COPY_DOWN, &em));
		OK(device.api->stream_sync(ctx.stream, &em));
		for (u32 i = 0; i < HIDDEN; i++)
			cr_assert_eq(host[i], 1 + row / 128.0f, "row %u, %u: %g", row, i, (double)host[i]);
	}
	device.api->graph_destroy(graph);
	device.api->host_release(host_ids);
	device.api->host_release(host);
	device.api->release(ids);
	device.api->release(out);
	device.api->release(table);
	device.api->stream_destroy(ctx.stream);
}

Test(device, a_forbidden_call_ends_a_recording_and_the_stream_lives_on)
{
	struct kern_graph *graph;
	void *stream;

	OK(device.api->stream_create(&stream, &em));
	OK(device.api->graph_begin(stream, &em));
	cr_assert_eq(device.api->stream_sync(stream, &em), ERR_DEVICE);
	device.api->graph_abandon(stream);
	OK(device.api->stream_sync(stream, &em));
	OK(device.api->graph_begin(stream, &em));
	OK(device.api->graph_end(stream, &graph, &em));
	OK(device.api->graph_launch(graph, stream, &em));
	OK(device.api->stream_sync(stream, &em));
	device.api->graph_destroy(graph);
	device.api->stream_destroy(stream);
}

Test(device, a_device_that_is_not_there_is_named)
{
	struct device d;

	cr_assert_eq(device_open(&d, 63, &em), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "device 63 is not there"), NULL, "%s", em.text);
}

Test(device_files, what_is_no_object_of_ours_is_refused)
{
	struct device d;

	unsetenv("TERCET_CUDA_KERNELS");
	cr_assert_eq(device_open(&d, 0, &em), ERR_NOT_FOUND);
	cr_assert_neq(strstr(em.text, "tercet-cuda.so"), NULL, "%s", em.text);
	setenv("TERCET_CUDA_KERNELS", "/nonexistent/kernels.so", 1);
	cr_assert_eq(device_open(&d, 0, &em), ERR_NOT_FOUND);
	cr_assert_neq(strstr(em.text, "/nonexistent/kernels.so"), NULL, "%s", em.text);
	setenv("TERCET_CUDA_KERNELS", SOURCE_ROOT "/README.md", 1);
	cr_assert_eq(device_open(&d, 0, &em), ERR_DEVICE);
	setenv("TERCET_CUDA_KERNELS", "libm.so.6", 1);
	cr_assert_eq(device_open(&d, 0, &em), ERR_NOT_FOUND); /* a file, not a name to search for */
}
