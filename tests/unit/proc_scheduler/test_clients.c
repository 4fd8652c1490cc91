#include <criterion/criterion.h>

#include "proc_scheduler/clients.h"

static const ipc_peer a = {1}, b = {2};

Test(clients, a_greeting_gives_the_id_to_that_peer)
{
	struct clients c;

	cr_assert_eq(clients_init(&c, 3), ERR_OK);
	cr_assert_eq(clients_greet(&c, 10, a, 100), ERR_OK);
	cr_assert_eq(clients_heard(&c, 10, a, 200), ERR_OK);
	cr_assert_eq(clients_heard(&c, 10, b, 300), ERR_DENIED);
	cr_assert_eq(clients_greet(&c, 10, b, 400), ERR_OK, "it reconnected");
	cr_assert_eq(clients_heard(&c, 10, b, 500), ERR_OK);
	cr_assert_eq(clients_heard(&c, 10, a, 500), ERR_DENIED);
	cr_assert_eq(clients_greet(&c, 0, a, 1), ERR_INVALID);
	clients_fini(&c);
}

Test(clients, only_silent_ones_are_found_and_forgotten_ones_may_come_back)
{
	struct clients c;

	cr_assert_eq(clients_init(&c, 3), ERR_OK);
	cr_assert_eq(clients_greet(&c, 10, a, 100), ERR_OK);
	cr_assert_eq(clients_greet(&c, 11, b, 300), ERR_OK);
	cr_assert_null(clients_find_silent(&c, 100));
	cr_assert_eq(clients_find_silent(&c, 200)->id, 10);
	clients_forget(&c, 10);
	clients_forget(&c, 10);
	cr_assert_null(clients_find_silent(&c, 200));
	cr_assert_eq(clients_heard(&c, 10, b, 400), ERR_OK);
	cr_assert_eq(c.count, 2);
	clients_fini(&c);
}

Test(clients, the_table_is_bounded)
{
	struct clients c;

	cr_assert_eq(clients_init(&c, 3), ERR_OK);
	for (u32 i = 0; i < CLIENTS_MAX; i++)
		cr_assert_eq(clients_greet(&c, i + 1, a, 1), ERR_OK);
	cr_assert_eq(clients_greet(&c, 1000000, a, 1), ERR_BUSY);
	cr_assert_eq(clients_heard(&c, 1000000, a, 1), ERR_BUSY);
	clients_forget(&c, 7);
	cr_assert_eq(clients_greet(&c, 1000000, a, 1), ERR_OK);
	clients_fini(&c);
}
