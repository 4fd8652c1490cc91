#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proc_scheduler/outbox.h"
#include "proc_scheduler/workers.h"

struct wire {
	char dir[64];
	struct ipc_context *ipc;
	struct ipc_channel *from, *to;
};

/* A DEALER with room for few messages; nobody is at the other end until wire_bind. */
static struct wire wire(void)
{
	struct wire w = {.dir = "/tmp/tercet-outbox-XXXXXX"};
	char endpoint[128];
	struct err_msg em;

	cr_assert(mkdtemp(w.dir));
	cr_assert_eq(ipc_context_create(&w.ipc, &em), ERR_OK);
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), w.dir, "x", &em), ERR_OK);
	struct ipc_channel_config c = {.name = "x",
				       .endpoint = endpoint,
				       .pattern = IPC_DEALER,
				       .queue_max = 4,
				       .role = IPC_ROLE_SCHEDULER};
	cr_assert_eq(ipc_channel_open(&w.from, w.ipc, &c, &em), ERR_OK);
	return w;
}

static void wire_bind(struct wire *w)
{
	char endpoint[128];
	struct err_msg em;

	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), w->dir, "x", &em), ERR_OK);
	struct ipc_channel_config c = {.name = "x",
				       .endpoint = endpoint,
				       .pattern = IPC_ROUTER,
				       .bind = true,
				       .role = IPC_ROLE_DETOK};
	cr_assert_eq(ipc_channel_open(&w->to, w->ipc, &c, &em), ERR_OK);
}

static void wire_close(struct wire *w)
{
	char command[128];

	ipc_channel_close(&w->from);
	ipc_channel_close(&w->to);
	ipc_context_destroy(&w->ipc);
	snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
	cr_assert_eq(system(command), 0);
}

static struct ipc_msg numbered(u64 n)
{
	return (struct ipc_msg){.type = IPC_TYPE_STOPPED, .stopped = {n, 0}};
}

Test(outbox, what_a_full_channel_does_not_take_arrives_later_and_in_order)
{
	struct wire w = wire();
	struct outbox ob;
	enum { COUNT = 50 };

	cr_assert_eq(outbox_init(&ob, w.from, 100, 1 << 20), ERR_OK);
	for (u32 i = 0; i < COUNT; i++) {
		struct ipc_msg m = numbered(i);
		cr_assert_eq(outbox_send(&ob, (ipc_peer){0}, &m), ERR_OK);
	}
	cr_assert_gt(ob.count, 40, "the channel has room for four");
	wire_bind(&w);
	u32 seen = 0;
	for (u32 tries = 0; tries < 5000 && seen < COUNT; tries++) {
		struct ipc_msg m;
		struct err_msg em;
		ipc_peer from;
		outbox_flush(&ob);
		(void)!ipc_recv(w.from, &from, &m, &em); /* sees the connection */
		while (ipc_recv(w.to, &from, &m, &em) == ERR_OK)
			if (m.type == IPC_TYPE_STOPPED)
				cr_assert_eq(m.stopped.seq, seen++);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	cr_assert_eq(seen, COUNT);
	cr_assert(outbox_flush(&ob));
	cr_assert_eq(ob.bytes, 0);
	outbox_fini(&ob);
	wire_close(&w);
}

Test(outbox, it_is_bounded_in_messages_and_in_bytes)
{
	struct wire w = wire();
	struct outbox ob;
	struct ipc_msg m = numbered(1);
	u32 sent = 0;

	cr_assert_eq(outbox_init(&ob, w.from, 3, 1 << 20), ERR_OK);
	while (outbox_send(&ob, (ipc_peer){0}, &m) == ERR_OK)
		cr_assert_lt(sent++, 20);
	cr_assert_eq(ob.count, 3);
	u64 bytes = ob.bytes;
	outbox_clear(&ob);
	cr_assert_eq(ob.count, 0);
	ob.bytes_max = bytes / 3;
	cr_assert_eq(outbox_send(&ob, (ipc_peer){0}, &m), ERR_OK);
	cr_assert_eq(outbox_send(&ob, (ipc_peer){0}, &m), ERR_BUSY);
	outbox_fini(&ob);
	wire_close(&w);
}

static struct ipc_worker_ready ready(u32 rank, u32 blocks, u32 context)
{
	return (struct ipc_worker_ready){
		.rank = rank, .block_count = blocks, .host_block_count = 6 - rank, .max_model_len = context, .vocab_size = 9};
}

Test(workers, the_group_is_ready_with_its_last_rank_and_gone_with_its_first)
{
	struct workers w;
	struct err_msg em;
	struct ipc_worker_ready a = ready(0, 10, 100), b = ready(1, 12, 80);

	cr_assert_eq(workers_init(&w, NULL, 2), ERR_OK);
	cr_assert_eq(workers_greeted(&w, 0, (ipc_peer){1}, &em), ERR_OK);
	cr_assert_eq(workers_greeted(&w, 1, (ipc_peer){2}, &em), ERR_OK);
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_OK);
	cr_assert_not(workers_all_ready(&w));
	cr_assert_eq(workers_ready(&w, (ipc_peer){2}, &b, &em), ERR_OK);
	cr_assert(workers_all_ready(&w));
	cr_assert_eq(workers_common(&w).block_count, 10);
	cr_assert_eq(workers_common(&w).host_block_count, 5);
	cr_assert_eq(workers_common(&w).max_model_len, 80);
	w.up = true;
	cr_assert_eq(workers_greeted(&w, 1, (ipc_peer){3}, &em), ERR_OK);
	cr_assert_not(w.up);
	b.group = 1;
	cr_assert_eq(workers_ready(&w, (ipc_peer){3}, &b, &em), ERR_OK);
	cr_assert_not(workers_all_ready(&w), "rank 0 has to begin anew, too");
	a.group = 1;
	cr_assert_eq(workers_greeted(&w, 0, (ipc_peer){4}, &em), ERR_OK);
	cr_assert_eq(workers_ready(&w, (ipc_peer){4}, &a, &em), ERR_OK);
	cr_assert(workers_all_ready(&w));
	workers_fini(&w);
}

Test(workers, a_rank_that_only_lost_its_connection_need_not_be_waited_for_by_the_others)
{
	struct workers w;
	struct err_msg em;
	struct ipc_worker_ready a = ready(0, 10, 100), b = ready(1, 12, 80);

	cr_assert_eq(workers_init(&w, NULL, 2), ERR_OK);
	for (u32 i = 0; i < 2; i++)
		cr_assert_eq(workers_greeted(&w, i, (ipc_peer){i + 1}, &em), ERR_OK);
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_OK);
	cr_assert_eq(workers_ready(&w, (ipc_peer){2}, &b, &em), ERR_OK);
	w.up = true;
	cr_assert_eq(workers_greeted(&w, 1, (ipc_peer){3}, &em), ERR_OK);
	cr_assert_not(w.up);
	cr_assert_not(workers_all_ready(&w));
	cr_assert_eq(workers_ready(&w, (ipc_peer){3}, &b, &em), ERR_OK);
	cr_assert(workers_all_ready(&w));
	workers_fini(&w);
}

Test(workers, strangers_and_impossible_numbers_are_refused)
{
	struct workers w;
	struct err_msg em;
	struct ipc_worker_ready a = ready(0, 10, 100), none = ready(0, 0, 100), far = ready(5, 1, 100), many = a;

	cr_assert_eq(workers_init(&w, NULL, 1), ERR_OK);
	cr_assert_eq(workers_greeted(&w, 1, (ipc_peer){1}, &em), ERR_INVALID);
	cr_assert_eq(workers_greeted(&w, 0, (ipc_peer){1}, &em), ERR_OK);
	cr_assert_eq(workers_ready(&w, (ipc_peer){2}, &a, &em), ERR_INVALID);
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &none, &em), ERR_UNSUPPORTED);
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &far, &em), ERR_INVALID);
	many.host_block_count = UINT32_MAX - 10;
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &many, &em), ERR_UNSUPPORTED);
	a.recurrent = 1; /* who is swapped would lose its row's state */
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_UNSUPPORTED);
	a.host_block_count = 0;
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_OK);
	a.state_slots = UINT32_MAX;
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_UNSUPPORTED);
	a.state_slots = 7;
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_OK);
	a.recurrent = 0;
	cr_assert_eq(workers_ready(&w, (ipc_peer){1}, &a, &em), ERR_UNSUPPORTED);
	workers_fini(&w);
}
