#include <criterion/criterion.h>
#include <string.h>

#include "proc_detok/clients.h"

static struct clients cs;
static struct err_msg em;

static void setup(void)
{
	struct clients_config config = {
		.clients_max = 4, .retention_bytes = 1000, .retention_ns = 100, .secret = 3};
	cr_assert_eq(clients_init(&cs, &config), ERR_OK);
}

static void teardown(void)
{
	clients_fini(&cs);
}

TestSuite(clients, .init = setup, .fini = teardown);

static struct client *attach(u64 id, u64 last_chunk, u64 peer)
{
	struct client_attached a;
	cr_assert_eq(clients_attach(&cs, id, last_chunk, peer, &a, &em), ERR_OK, "%s", em.text);
	return a.client;
}

static enum err keep(struct client *c, u32 bytes, u64 now_ns)
{
	char frame[2000] = {0};
	return client_keep(&cs, c, frame, bytes, now_ns);
}

static u32 send_all(struct client *c)
{
	u32 bytes, n = 0;
	while (client_next_frame(c, &bytes)) {
		client_sent(c);
		n++;
	}
	return n;
}

Test(clients, unknown_client_goes_on_behind_its_last_chunk)
{
	struct client *c = attach(1, 57, 9);
	cr_assert_eq(c->send, 58);
	cr_assert_eq(c->ring.next, 58);
}

Test(clients, resume_sends_again_exactly_what_was_not_seen)
{
	struct client *c = attach(1, 0, 9);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(keep(c, 10, 0), ERR_OK);
	cr_assert_eq(send_all(c), 5);
	client_lost(c, 1);
	cr_assert_eq(keep(c, 10, 0), ERR_OK);
	cr_assert_eq(send_all(c), 0, "nothing is sent to nobody");
	c = attach(1, 3, 10);
	cr_assert_eq(c->send, 4);
	cr_assert_eq(c->unsent_bytes, 30);
	cr_assert_eq(send_all(c), 3);
}

Test(clients, another_socket_replaces_the_first)
{
	struct client_attached a;
	attach(1, 0, 9);
	cr_assert_eq(clients_attach(&cs, 1, 0, 10, &a, &em), ERR_OK);
	cr_assert_eq(a.replaced, 9);
	cr_assert_eq(a.client->peer, 10);
	cr_assert_eq(clients_attach(&cs, 1, 0, 10, &a, &em), ERR_OK);
	cr_assert_eq(a.replaced, 0);
}

Test(clients, acknowledged_chunks_are_released_unsent_ones_are_not)
{
	struct client *c = attach(1, 0, 9);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(keep(c, 10, 0), ERR_OK);
	client_ack(c, 5);
	cr_assert_eq(c->ring.first, 1, "none was sent");
	send_all(c);
	client_ack(c, 3);
	cr_assert_eq(c->ring.first, 4);
	cr_assert_eq(c->ring.bytes, 20);
	client_ack(c, 2);
	cr_assert_eq(c->ring.first, 4);
}

Test(clients, sent_chunks_give_way_and_are_missed_later)
{
	struct client_attached a;
	struct client *c = attach(1, 0, 9);
	for (int i = 0; i < 30; i++) {
		cr_assert_eq(keep(c, 100, 0), ERR_OK);
		send_all(c);
	}
	cr_assert_eq(c->ring.bytes, 1000);
	cr_assert_eq(c->ring.first, 21);
	cr_assert_eq(clients_attach(&cs, 1, 20, 10, &a, &em), ERR_OK);
	cr_assert_eq(clients_attach(&cs, 1, 19, 11, &a, &em), ERR_GONE);
	cr_assert(strstr(em.text, "chunks 20 to 20 are no longer kept"), "%s", em.text);
	cr_assert_null(clients_find(&cs, 1));
}

Test(clients, unsent_chunks_above_the_limit_are_too_many)
{
	struct client *c = attach(1, 0, 9);
	for (int i = 0; i < 10; i++)
		cr_assert_eq(keep(c, 100, 0), ERR_OK);
	cr_assert_eq(keep(c, 1, 0), ERR_TOO_LONG);
	struct client *other = attach(2, 0, 8);
	cr_assert_eq(keep(other, 1500, 0), ERR_OK, "one chunk is always possible");
	cr_assert_eq(keep(other, 1, 0), ERR_TOO_LONG);
}

Test(clients, chunk_from_the_future_is_refused)
{
	struct client_attached a;
	struct client *c = attach(1, 0, 9);
	cr_assert_eq(keep(c, 10, 0), ERR_OK);
	cr_assert_eq(clients_attach(&cs, 1, 2, 10, &a, &em), ERR_INVALID);
	cr_assert_eq(clients_find(&cs, 1)->peer, 9);
}

Test(clients, a_number_that_would_wrap_around_is_refused)
{
	struct client_attached a;

	for (u64 last = UINT64_MAX; last > UINT64_MAX - 3; last--) {
		cr_assert_eq(clients_attach(&cs, 1, last, 9, &a, &em), ERR_INVALID);
		cr_assert_not_null(strstr(em.text, "nobody has been sent that many"), "%s", em.text);
		cr_assert_null(clients_find(&cs, 1));
	}
}

Test(clients, a_new_life_does_not_get_the_old_ones_chunks)
{
	struct client *c = attach(1, 0, 9);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(keep(c, 10, 0), ERR_OK);
	send_all(c);
	client_ack(c, 1);
	c = attach(1, 0, 10);
	cr_assert_eq(c->send, 4);
	cr_assert_eq(c->unsent_bytes, 0);
}

Test(clients, closed_client_hears_why_and_may_begin_anew)
{
	struct client_attached a;
	struct client *c = attach(1, 0, 9);
	cr_assert_eq(keep(c, 10, 0), ERR_OK);
	client_close(c, ERR_BUSY, "too slow", 5);
	cr_assert_eq(clients_attach(&cs, 1, 1, 10, &a, &em), ERR_GONE);
	cr_assert(strstr(em.text, "too slow"));
	cr_assert_eq(attach(1, 0, 10)->send, 1);
}

Test(clients, time_releases_sent_chunks_and_absent_clients)
{
	struct client *c = attach(1, 0, 9);
	cr_assert_eq(keep(c, 10, 50), ERR_OK);
	send_all(c);
	cr_assert_eq(keep(c, 10, 50), ERR_OK);
	cr_assert_null(clients_expire(&cs, 150));
	cr_assert_eq(c->ring.first, 1);
	cr_assert_null(clients_expire(&cs, 200));
	cr_assert_eq(c->ring.first, 2, "unsent chunks stay");
	client_lost(c, 200);
	cr_assert_null(clients_expire(&cs, 300));
	cr_assert_eq(clients_expire(&cs, 301), c);
	clients_remove(&cs, c);
	cr_assert_null(clients_find(&cs, 1));
	cr_assert_null(clients_expire(&cs, 301));
}

Test(clients, table_is_bounded)
{
	struct client_attached a;
	for (u64 id = 1; id <= 4; id++)
		attach(id, 0, id);
	cr_assert_eq(clients_attach(&cs, 5, 0, 5, &a, &em), ERR_BUSY);
	clients_remove(&cs, clients_find(&cs, 2));
	attach(5, 0, 5);
}
