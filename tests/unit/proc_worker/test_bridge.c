/* Ranks of several nodes: one run directory a node, one thread (or process) a rank, everything over the loopback. */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proc_worker/bridge.h"
#include "proc_worker/collectives.h"
#include "proc_worker/node_link.h"
#include "tests/unit/proc_worker/driver.h"

enum { FLOATS = 40000, ROUNDS = 120, NODES = 4, JOIN_MS = 20000, PORTS = 10 };

static char run_dirs[NODES][64];
static struct cluster_secret secrets[2];
static u32 port;

static void set_up(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(a);
	struct err_msg em;

	for (u32 n = 0; n < NODES; n++) {
		snprintf(run_dirs[n], sizeof(run_dirs[n]), "/tmp/tercet-test-XXXXXX");
		cr_assert(mkdtemp(run_dirs[n]));
	}
	cr_assert_eq(cluster_secret_set(&secrets[0], "a secret of the test", 20, "here", &em), ERR_OK);
	cr_assert_eq(cluster_secret_set(&secrets[1], "a secret of others..", 20, "here", &em), ERR_OK);
	/* Below the ports that the kernel and tests/e2e give out; the tests of this file run beside each other. */
	u32 free_count = 0;
	for (port = 4000 + (u32)getpid() % 500 * PORTS; free_count < PORTS; port++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		a.sin_port = htons((u16)port);
		free_count = bind(fd, (struct sockaddr *)&a, bytes) == 0 ? free_count + 1 : 0;
		close(fd);
	}
	port -= PORTS;
}

static void tear_down(void)
{
	for (u32 n = 0; n < NODES; n++)
		cr_assert_eq(rmdir(run_dirs[n]), 0, "the group leaves nothing behind: %s", strerror(errno));
}

TestSuite(bridge, .init = set_up, .fini = tear_down, .timeout = 120);

struct member {
	u32 rank, ranks, nodes;
	u32 secret;
	u64 options_hash;
	u32 join_ms;
};

static enum err join(struct collectives **c, const struct member *m, struct err_msg *em)
{
	struct collectives_nodes nodes = {.index = m->rank / (m->ranks / m->nodes),
					  .count = m->nodes,
					  .address = "127.0.0.1",
					  .port = port,
					  .secret = &secrets[m->secret],
					  .options_hash = m->options_hash,
					  .join_timeout_ms = m->join_ms ? m->join_ms : JOIN_MS};
	struct collectives_config config = {.run_dir = run_dirs[nodes.index],
					    .rank = m->rank,
					    .ranks = m->ranks,
					    .buffer_bytes = FLOATS * sizeof(float),
					    .join_timeout_ms = JOIN_MS,
					    .nodes = &nodes};

	return collectives_join(c, &config, em);
}

static enum err join_as(struct collectives **c, u32 rank, u32 ranks, u32 nodes, struct err_msg *em)
{
	return join(c, &(struct member){.rank = rank, .ranks = ranks, .nodes = nodes}, em);
}

static float value(u32 rank, u32 round, u32 i)
{
	return (float)((rank + 1) * 1000003u % 977u) / 7 + (float)(round * 31 + i % 113) / 3;
}

struct group {
	u32 ranks, nodes;
	u64 ids[DRIVER_RANKS_MAX];
	u32 wrong[DRIVER_RANKS_MAX];
	enum err e[DRIVER_RANKS_MAX];
	struct err_msg em[DRIVER_RANKS_MAX];
};

/* ---------------------------------------------------------------- operations */

static void reduce_rounds(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	float *out = calloc(FLOATS, sizeof(float));

	g->e[rank] = join_as(&c, rank, g->ranks, g->nodes, &g->em[rank]);
	if (!g->e[rank])
		g->ids[rank] = collectives_group(c);
	for (u32 round = 0; !g->e[rank] && round < ROUNDS; round++) {
		u32 count = round % 20 ? 1 + round * 3 : FLOATS;
		float *part = collectives_buffer(c);
		for (u32 i = 0; i < count; i++)
			part[i] = value(rank, round, i);
		g->e[rank] = collectives_all_reduce(c, out, count, &g->em[rank]);
		for (u32 i = 0; i < count; i++) {
			float sum = value(0, round, i);
			for (u32 r = 1; r < g->ranks; r++)
				sum += value(r, round, i);
			g->wrong[rank] += out[i] != sum;
		}
	}
	collectives_leave(&c);
	free(out);
}

static void check_group(u32 ranks, u32 nodes, void (*fn)(void *ctx, u32 rank))
{
	struct group g = {.ranks = ranks, .nodes = nodes};

	driver_parallel(ranks, fn, &g);
	for (u32 r = 0; r < ranks; r++) {
		cr_assert_eq(g.e[r], ERR_OK, "rank %u of %u: %s", r, ranks, g.em[r].text);
		cr_assert_eq(g.wrong[r], 0, "rank %u of %u", r, ranks);
		cr_assert_eq(g.ids[r], g.ids[0]);
	}
}

Test(bridge, sums_are_taken_in_the_order_of_ranks_however_they_are_spread)
{
	check_group(2, 2, reduce_rounds);
	check_group(3, 3, reduce_rounds);
	check_group(4, 2, reduce_rounds);
	check_group(4, 4, reduce_rounds);
}

/* Parts for rank 0 only, and parts that only rank 0 has, in turn. */
static void gather_rounds(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];

	g->e[rank] = join_as(&c, rank, g->ranks, g->nodes, &g->em[rank]);
	for (u32 round = 0; !g->e[rank] && round < 300; round++) {
		*(u32 *)collectives_buffer(c) = rank * 10000 + round;
		g->e[rank] = collectives_gather(c, sizeof(u32), parts, &g->em[rank]);
		for (u32 r = 0; rank == 0 && r < g->ranks; r++)
			g->wrong[rank] += *(const u32 *)parts[r] != r * 10000 + round;
		if (g->e[rank])
			break;
		*(u32 *)collectives_buffer(c) = round;
		g->e[rank] = collectives_all_gather(c, rank == 0 ? sizeof(u32) : 0, parts, &g->em[rank]);
		g->wrong[rank] += *(const u32 *)parts[0] != round;
	}
	collectives_leave(&c);
}

Test(bridge, parts_reach_those_that_read_them)
{
	check_group(4, 2, gather_rounds);
	check_group(3, 3, gather_rounds);
}

/* Rank 0 waits in an operation of epoch 5; rank 1, on another node, begins epoch 6 instead of coming. */
static void change_epoch(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg *em = &g->em[rank];

	g->e[rank] = join_as(&c, rank, 2, 2, em);
	if (!g->e[rank])
		g->e[rank] = collectives_begin(c, 5, em);
	for (u32 i = 0; !g->e[rank] && i < 3; i++)
		g->e[rank] = collectives_all_gather(c, sizeof(u32), parts, em);
	if (rank == 0 && !g->e[rank])
		g->wrong[0] += collectives_all_gather(c, sizeof(u32), parts, em) != ERR_ABORTED;
	else
		usleep(150000);
	if (!g->e[rank])
		g->e[rank] = collectives_begin(c, 6, em);
	for (u32 i = 0; !g->e[rank] && i < 100; i++) {
		*(u32 *)collectives_buffer(c) = rank * 1000 + i;
		g->e[rank] = collectives_all_gather(c, sizeof(u32), parts, em);
		for (u32 r = 0; r < 2; r++)
			g->wrong[rank] += *(const u32 *)parts[r] != r * 1000 + i;
	}
	collectives_leave(&c);
}

Test(bridge, a_new_epoch_frees_ranks_on_other_nodes)
{
	check_group(2, 2, change_epoch);
}

/* ---------------------------------------------------------------- losses */

/* The last rank in a process of its own: takes part in `rounds` operations, then dies, hangs or leaves. */
static pid_t fork_rank(u32 rank, u32 rounds, char what)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;
	if (join_as(&c, rank, 2, 2, &em))
		_exit(1);
	for (u32 i = 0; i < rounds; i++)
		if (collectives_all_gather(c, 4, parts, &em))
			_exit(2);
	if (what == 'l') {
		collectives_farewell(c);
		collectives_leave(&c);
	}
	while (what == 'h')
		pause();
	_exit(0);
}

static struct collectives *join_with(u32 rank, u32 rounds)
{
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;

	cr_assert_eq(join_as(&c, rank, 2, 2, &em), ERR_OK, "%s", em.text);
	for (u32 i = 0; i < rounds; i++)
		cr_assert_eq(collectives_all_gather(c, 4, parts, &em), ERR_OK, "%s", em.text);
	return c;
}

static enum err one_more(struct collectives *c, u64 *ms, struct err_msg *em)
{
	const void *parts[COLLECTIVES_RANKS_MAX];
	u64 begin = clock_now_ns();

	enum err e = collectives_all_gather(c, 4, parts, em);
	*ms = (clock_now_ns() - begin) / 1000000;
	return e;
}

Test(bridge, a_dead_rank_on_another_node_is_an_error_at_once)
{
	struct err_msg em;
	u64 ms;

	pid_t pid = fork_rank(1, 3, 'd');
	struct collectives *c = join_with(0, 3);
	cr_assert_eq(one_more(c, &ms, &em), ERR_GONE);
	cr_assert_lt(ms, 10000);
	cr_assert(strstr(em.text, "node 1"), "%s", em.text);
	cr_assert_eq(collectives_check(c, &em), ERR_GONE);
	cr_assert(strstr(em.text, "node 1 (127.0.0.1) is lost: it has closed the connection"), "%s", em.text);
	collectives_leave(&c);
	waitpid(pid, NULL, 0);
	rmdir(run_dirs[1]);
	cr_assert_eq(access(run_dirs[1], F_OK), 0, "its file is still there");
	char path[128];
	snprintf(path, sizeof(path), "%s/collectives", run_dirs[1]);
	unlink(path);
}

static void freeze(u32 rounds_after, bool idle)
{
	struct err_msg em;
	u64 ms = 0, begin;

	pid_t pid = fork_rank(1, 2, 'h');
	struct collectives *c = join_with(0, 2);
	struct pollfd lost = {.fd = collectives_lost_fd(c), .events = POLLIN};
	cr_assert_eq(poll(&lost, 1, 2 * BRIDGE_SILENCE_MS / 3), 0, "one that only waits is heard of");
	kill(pid, SIGSTOP);
	begin = clock_now_ns();
	if (idle)
		cr_assert_eq(poll(&lost, 1, 20000), 1);
	for (u32 i = 0; !idle && i < rounds_after; i++)
		cr_assert_eq(one_more(c, &ms, &em), ERR_GONE);
	cr_assert_lt((clock_now_ns() - begin) / 1000000, 20000);
	cr_assert_eq(collectives_check(c, &em), ERR_GONE);
	cr_assert(strstr(em.text, "node 1 (127.0.0.1) is lost: it is silent"), "%s", em.text);
	collectives_leave(&c);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	char path[128];
	snprintf(path, sizeof(path), "%s/collectives", run_dirs[1]);
	unlink(path);
}

Test(bridge, a_frozen_rank_is_an_error_within_five_seconds)
{
	freeze(1, false);
}

Test(bridge, a_frozen_rank_is_seen_while_nothing_is_to_do)
{
	freeze(0, true);
}

Test(bridge, a_node_that_leaves_is_told_from_one_that_fails)
{
	struct err_msg em;
	u64 ms;

	pid_t pid = fork_rank(1, 2, 'l');
	struct collectives *c = join_with(0, 2);
	cr_assert_eq(one_more(c, &ms, &em), ERR_GONE);
	cr_assert(strstr(em.text, "has left"), "%s", em.text);
	collectives_leave(&c);
	waitpid(pid, NULL, 0);
	pid = fork_rank(0, 2, 'l');
	c = join_with(1, 2);
	(void)!one_more(c, &ms, &em);
	cr_assert_eq(collectives_check(c, &em), ERR_SHUTDOWN);
	cr_assert(strstr(em.text, "has stopped the engine"), "%s", em.text);
	collectives_leave(&c);
	waitpid(pid, NULL, 0);
}

/* ---------------------------------------------------------------- joining */

static void join_differently(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	struct member m = {.rank = rank, .ranks = 2, .nodes = 2, .join_ms = 3000};

	if (g->wrong[0])
		m.options_hash = rank;
	else
		m.secret = rank;
	g->e[rank] = join(&c, &m, &g->em[rank]);
	collectives_leave(&c);
}

Test(bridge, another_secret_is_refused)
{
	struct group g = {.ranks = 2};

	driver_parallel(2, join_differently, &g);
	cr_assert_eq(g.e[0], ERR_TIMEOUT);
	cr_assert(strstr(g.em[0].text, "node 1 did not come within 3 s"), "%s", g.em[0].text);
	cr_assert_eq(g.e[1], ERR_DENIED, "%s", g.em[1].text);
	cr_assert(strstr(g.em[1].text, "it has another cluster secret"), "%s", g.em[1].text);
}

Test(bridge, other_options_are_refused)
{
	struct group g = {.ranks = 2, .wrong = {1}};

	driver_parallel(2, join_differently, &g);
	cr_assert_eq(g.e[0], ERR_TIMEOUT);
	cr_assert_eq(g.e[1], ERR_INVALID, "%s", g.em[1].text);
	cr_assert(strstr(g.em[1].text, "all nodes need the same"), "%s", g.em[1].text);
}

Test(bridge, a_node_that_never_starts_is_named)
{
	struct collectives *c;
	struct err_msg em;

	cr_assert_eq(join(&c, &(struct member){.rank = 1, .ranks = 2, .nodes = 2, .join_ms = 500}, &em), ERR_TIMEOUT);
	cr_assert(strstr(em.text, "node 0 did not answer"), "%s", em.text);
	cr_assert_eq(join(&c, &(struct member){.rank = 0, .ranks = 3, .nodes = 3, .join_ms = 500}, &em), ERR_TIMEOUT);
	cr_assert(strstr(em.text, "node 1 2 did not come"), "%s", em.text);
}

static int call(u32 to)
{
	struct err_msg em;
	int fd;

	for (u32 i = 0; i < 100; i++) {
		if (node_link_connect(&fd, "127.0.0.1", to, 1000, &em) == ERR_OK)
			return fd;
		usleep(20000);
	}
	cr_assert_fail("nobody listens on port %u: %s", to, em.text);
	return -1;
}

static void join_among_strangers(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	static const char request[200] = "GET / HTTP/1.1\r\nHost: tercet\r\n\r\n";

	if (rank == 1) { /* a browser, a port scanner, one that connects and goes */
		int fd = call(port + 1);
		g->wrong[1] += write(fd, request, sizeof(request)) != sizeof(request);
		int other = call(port + 1);
		close(other);
		g->e[rank] = join_as(&c, 1, 2, 2, &g->em[rank]);
		close(fd);
	} else {
		g->e[rank] = join_as(&c, 0, 2, 2, &g->em[rank]);
	}
	collectives_leave(&c);
}

Test(bridge, strangers_do_not_keep_nodes_from_joining)
{
	check_group(2, 2, join_among_strangers);
}
