/* Requests that wait for the end of their session's turn: kept as they came, bounded. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proc_scheduler/parked.h"

static struct ipc_msg submit(u64 client_id, u64 req_id, const u32 *tokens, u32 count)
{
	struct ipc_msg msg = {.type = IPC_TYPE_SUBMIT, .sequence = 1};

	msg.submit = (struct ipc_submit){.client_id = client_id,
					 .req_id = req_id,
					 .tokens = tokens,
					 .tokens_count = count,
					 .session = (const u8 *)"talk",
					 .session_count = 4,
					 .session_step = 7};
	return msg;
}

Test(parked, a_request_comes_back_as_it_was)
{
	static struct parked p;
	u32 tokens[3] = {5, 6, 7};
	struct ipc_msg msg = submit(1, 2, tokens, 3);

	cr_assert(parked_add(&p, (ipc_peer){9}, &msg, 1000));
	memset(tokens, 0, sizeof(tokens)); /* a copy was kept */
	cr_assert(parked_get(&p, 0, &msg));
	cr_assert_eq(p.items[0].from.v, 9);
	cr_assert_eq(p.items[0].due_ns, 1000 + (u64)PARKED_MS * 1000000);
	parked_remove(&p, 0);
	cr_assert_eq(msg.submit.tokens[2], 7); /* still there, as long as no other one is read */
	cr_assert_eq(msg.submit.session_step, 7);
	cr_assert_eq(memcmp(msg.submit.session, "talk", 4), 0);
	cr_assert_eq(p.bytes, 0);
	parked_fini(&p);
}

Test(parked, they_are_found_and_forgotten_by_client_and_bounded)
{
	static struct parked p;

	for (u32 i = 0; i < PARKED_MAX; i++) {
		struct ipc_msg msg = submit(i % 2, i, NULL, 0);
		cr_assert(parked_add(&p, (ipc_peer){0}, &msg, 0));
	}
	struct ipc_msg one_more = submit(3, 3, NULL, 0);
	cr_assert_not(parked_add(&p, (ipc_peer){0}, &one_more, 0));
	cr_assert_eq(parked_find(&p, 1, 3), 3);
	cr_assert_eq(parked_find(&p, 0, 3), PARKED_MAX);
	parked_remove(&p, 0);
	cr_assert_eq(parked_find(&p, 1, 3), 2);
	parked_forget_client(&p, 1);
	cr_assert_eq(p.count, PARKED_MAX / 2 - 1);
	u32 *many = calloc(5u << 20, sizeof(*many)); /* 20 MiB */
	cr_assert_not_null(many);
	one_more = submit(3, 3, many, 5u << 20);
	cr_assert_not(parked_add(&p, (ipc_peer){0}, &one_more, 0));
	free(many);
	parked_fini(&p);
	cr_assert_eq(p.count, 0);
}
