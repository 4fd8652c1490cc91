/* How the counterparts of several nodes come together. That on node 0 waits for the others, then tells them each
 * other's addresses; every further pair is connected by the one on the higher node. Runs in the worker's main thread
 * while it loads; listens only until all are there. Whoever has another secret is passed over, and said so. */
#include "proc_worker/bridge_priv.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"

enum { KEYS_TIMEOUT_MS = 3000, CONNECT_TIMEOUT_MS = 3000, RETRY_MS = 200, REPORT_MS = 1000 };

static const u64 ms_ns = 1000000;

/* Content of INFO: what both ends must agree on. */
struct info {
	u32 rank, ranks, node, nodes;
	u64 part_bytes_max, options_hash;
	u64 group; /* 0: not known yet */
};

struct join {
	struct bridge *b;
	u64 end_ns, reported_ns;
	u64 group;
	int listener; /* -1: none */
};

/* ---------------------------------------------------------------- small things */

static void name_address(char out[BRIDGE_ADDRESS_MAX], const struct sockaddr_storage *a, socklen_t bytes)
{
	if (getnameinfo((const struct sockaddr *)a, bytes, out, BRIDGE_ADDRESS_MAX, NULL, 0, NI_NUMERICHOST) != 0)
		snprintf(out, BRIDGE_ADDRESS_MAX, "?");
	if (strncmp(out, "::ffff:", 7) == 0) /* IPv4 on a socket for both */
		memmove(out, out + 7, strlen(out + 7) + 1);
}

/* The nodes in [from, nodes) that are not there, as text. */
static void name_missing(const struct bridge *b, u32 from, char *out, size_t bytes)
{
	size_t length = (size_t)snprintf(out, bytes, "node");

	for (u32 node = from; node < b->config.nodes && length + 8 < bytes; node++)
		if (node != b->config.node && b->peers[node].link.fd < 0)
			length += (size_t)snprintf(out + length, bytes - length, " %u", node);
}

/* Tells whoever watches that this waits. False: the time is over. */
static bool go_on(struct join *j, const char *what)
{
	u64 now = clock_now_ns();

	if (now >= j->end_ns)
		return false;
	if (now >= j->reported_ns + REPORT_MS * ms_ns && j->b->config.waiting != NULL) {
		j->reported_ns = now;
		j->b->config.waiting(j->b->config.waiting_ctx, what);
	}
	return true;
}

static void pause_ms(u32 ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

	nanosleep(&t, NULL);
}

/* ---------------------------------------------------------------- who is there */

static enum err check_info(const struct join *j, const struct info *own, const struct info *other, struct err_msg *em)
{
	if (other->ranks != own->ranks || other->nodes != own->nodes)
		return err_set(em, ERR_INVALID, "it has --tensor-parallel-size %u and --nnodes %u, this node %u and %u",
			       other->ranks, other->nodes, own->ranks, own->nodes);
	if (other->options_hash != own->options_hash || other->part_bytes_max != own->part_bytes_max)
		return err_set(em, ERR_INVALID,
			       "it has another release, model, --dtype, --quantization, --kv-cache-dtype (auto differs where processors do: name "
			       "one), --max-model-len, --max-num-seqs, --max-num-batched-tokens, --block-size or --speculative-config; all nodes "
			       "need the same");
	if (other->node >= own->nodes || other->node == own->node || other->rank != j->b->peers[other->node].rank)
		return err_set(em, ERR_INVALID, "it is rank %u on --node-rank %u, and this is rank %u on %u: every node needs "
			       "a --node-rank of its own", other->rank, other->node, own->rank, own->node);
	if (other->group != 0 && own->group != 0 && other->group != own->group)
		return err_set(em, ERR_AGAIN, "it belongs to an earlier start");
	return ERR_OK;
}

/* Exchanges INFO over a fresh connection; its node into `*node`. */
static enum err introduce(struct join *j, struct node_link *l, u32 *node, struct err_msg *em)
{
	const struct bridge_config *c = &j->b->config;
	struct bridge_head head = {.kind = BRIDGE_INFO};
	struct info own = {.rank = c->rank,
			   .ranks = c->ranks,
			   .node = c->node,
			   .nodes = c->nodes,
			   .part_bytes_max = c->part_bytes_max,
			   .options_hash = c->options_hash,
			   .group = j->group};
	struct info other;
	size_t bytes = 0;

	enum err e = node_link_send(l, &head, sizeof(head), &own, sizeof(own), NULL);
	if (!e)
		e = node_link_wait(l, j->b->content, &bytes, KEYS_TIMEOUT_MS);
	if (e == ERR_DENIED)
		return err_set(em, e, "it has another cluster secret");
	if (e)
		return err_set(em, e, "the connection %s", e == ERR_TIMEOUT ? "fell silent" : "broke");
	memcpy(&head, j->b->content, bytes < sizeof(head) ? 0 : sizeof(head));
	if (bytes != sizeof(head) + sizeof(other) || head.kind != BRIDGE_INFO)
		return err_set(em, ERR_FORMAT, "it does not say who it is");
	memcpy(&other, j->b->content + sizeof(head), sizeof(other));
	e = check_info(j, &own, &other, em);
	if (!e && j->group == 0)
		j->group = other.group;
	*node = other.node;
	return e;
}

static void keep(struct join *j, u32 node, struct node_link *l, const char *address)
{
	struct bridge_peer *p = &j->b->peers[node];

	node_link_close(&p->link); /* one that came before and began anew */
	p->link = *l;
	snprintf(p->address, sizeof(p->address), "%s", address);
	LOG_INFO("NODE_JOINED", "node=%u rank=%u address=%s", node, p->rank, p->address);
}

/* ---------------------------------------------------------------- accepting */

static int listen_on(const struct addrinfo *list, u32 port, int *reason)
{
	int fd = -1;

	for (const struct addrinfo *a = list; fd < 0 && a != NULL; a = a->ai_next) {
		struct sockaddr_storage address;
		memcpy(&address, a->ai_addr, a->ai_addrlen);
		if (a->ai_family == AF_INET6)
			((struct sockaddr_in6 *)&address)->sin6_port = htons((u16)port);
		else
			((struct sockaddr_in *)&address)->sin_port = htons((u16)port);
		fd = node_link_listen((struct sockaddr *)&address, a->ai_addrlen);
		*reason = errno;
	}
	return fd;
}

/* On the address `host`, or, where that is none of this machine (it stands behind a translated one), on all. */
static enum err start_listening(struct join *j, const char *host, struct err_msg *em)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
	u32 port = j->b->config.port + 1 + j->b->config.rank;
	int reason = 0;

	for (u32 attempt = 0; j->listener < 0 && attempt < 2; attempt++) {
		int failed = getaddrinfo(attempt == 0 ? host : NULL, attempt == 0 ? NULL : "0", &hints, &list);
		if (failed != 0)
			return err_set(em, ERR_NOT_FOUND, "--master-addr %s: %s", host, gai_strerror(failed));
		j->listener = listen_on(list, port, &reason);
		freeaddrinfo(list);
		if (reason != EADDRNOTAVAIL)
			break;
	}
	if (j->listener >= 0)
		return ERR_OK;
	return err_set(em, reason == EADDRINUSE ? ERR_BUSY : ERR_IO,
		       "worker %u cannot listen on %s port %u: %s; other ports are behind another --master-port",
		       j->b->config.rank, host, port, strerror(reason));
}

/* One connection that came in. Strangers are closed. */
static void accept_one(struct join *j)
{
	struct sockaddr_storage from;
	socklen_t bytes = sizeof(from);
	char address[BRIDGE_ADDRESS_MAX];
	struct node_link l;
	struct err_msg em;
	u32 node;

	int fd = accept4(j->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	name_address(address, &from, bytes);
	enum err e = node_link_open(&l, fd, false, j->b->config.key, KEYS_TIMEOUT_MS, &em);
	if (!e)
		e = introduce(j, &l, &node, &em);
	if (!e) {
		keep(j, node, &l, address);
		return;
	}
	LOG_WARN("NODE_REFUSED", "address=%s reason=\"%s\"", address, em.text);
	node_link_close(&l);
}

/* Those that came and have gone again, before all are there. */
static void forget_gone(struct join *j, u32 from)
{
	for (u32 node = from; node < j->b->config.nodes; node++) {
		struct bridge_peer *p = &j->b->peers[node];
		struct pollfd fd = {.fd = p->link.fd, .events = POLLRDHUP};
		if (p->link.fd >= 0 && poll(&fd, 1, 0) == 1)
			node_link_close(&p->link);
	}
}

/* Waits for the counterparts of all nodes from `from`. */
static enum err accept_all(struct join *j, u32 from, struct err_msg *em)
{
	char missing[300], what[320];

	for (;;) {
		struct pollfd fd = {.fd = j->listener, .events = POLLIN};
		bool all = true;
		forget_gone(j, from);
		for (u32 node = from; node < j->b->config.nodes; node++)
			all &= node == j->b->config.node || j->b->peers[node].link.fd >= 0;
		if (all)
			return ERR_OK;
		name_missing(j->b, from, missing, sizeof(missing));
		snprintf(what, sizeof(what), "waiting for %s", missing);
		if (!go_on(j, what))
			return err_set(em, ERR_TIMEOUT, "worker %u: %s did not come within %u s", j->b->config.rank, missing,
				       j->b->config.join_timeout_ms / 1000);
		if (poll(&fd, 1, RETRY_MS) == 1)
			accept_one(j);
	}
}

/* ---------------------------------------------------------------- connecting */

static bool is_final(enum err e)
{
	return e == ERR_DENIED || e == ERR_INVALID || e == ERR_NO_MEMORY || e == ERR_FORMAT;
}

/* Connects with the counterpart on `node` at `host`, which may still have to start. */
static enum err connect_one(struct join *j, u32 node, const char *host, struct err_msg *em)
{
	struct bridge *b = j->b;
	u32 port = b->config.port + 1 + b->peers[node].rank, came;
	struct err_msg why = {""};
	char what[160];

	snprintf(what, sizeof(what), "waiting for node %u at %.100s port %u", node, host, port);
	for (;;) {
		struct node_link l = {.fd = -1};
		int fd;
		enum err e = node_link_connect(&fd, host, port, CONNECT_TIMEOUT_MS, &why);
		if (!e)
			e = node_link_open(&l, fd, true, b->config.key, KEYS_TIMEOUT_MS, &why);
		if (!e)
			e = introduce(j, &l, &came, &why);
		if (!e && came != node)
			e = err_set(&why, ERR_INVALID, "it is node %u", came);
		if (!e) {
			keep(j, node, &l, host);
			return ERR_OK;
		}
		node_link_close(&l);
		if (is_final(e))
			return err_set(em, e, "node %u at %s port %u: %s", node, host, port, why.text);
		if (!go_on(j, what))
			return err_set(em, ERR_TIMEOUT, "node %u did not answer within %u s: %s", node,
				       b->config.join_timeout_ms / 1000, why.text);
		pause_ms(RETRY_MS);
	}
}

/* ---------------------------------------------------------------- address book */

typedef char book[NODES_MAX][BRIDGE_ADDRESS_MAX];

static enum err send_book(struct join *j, struct err_msg *em)
{
	struct bridge_head head = {.kind = BRIDGE_BOOK};
	const u32 nodes = j->b->config.nodes;
	book addresses = {{0}};

	for (u32 node = 1; node < nodes; node++)
		snprintf(addresses[node], sizeof(addresses[node]), "%s", j->b->peers[node].address);
	for (u32 node = 1; node < nodes; node++) {
		enum err e = node_link_send(&j->b->peers[node].link, &head, sizeof(head), addresses,
					    nodes * sizeof(addresses[0]), NULL);
		if (e)
			return err_set(em, ERR_GONE, "node %u (%s) has gone while it joined", node, addresses[node]);
	}
	return ERR_OK;
}

/* Waits until node 0 has heard of all. ERR_GONE: it began anew meanwhile. */
static enum err receive_book(struct join *j, book *out, struct err_msg *em)
{
	struct bridge *b = j->b;
	struct bridge_head head;
	size_t bytes = 0, wanted = sizeof(head) + b->config.nodes * sizeof((*out)[0]);
	enum err e;

	while ((e = node_link_wait(&b->peers[0].link, b->content, &bytes, RETRY_MS)) == ERR_TIMEOUT)
		if (!go_on(j, "waiting for the other nodes"))
			return err_set(em, ERR_TIMEOUT, "worker %u: node 0 waits for other nodes since %u s", b->config.rank,
				       b->config.join_timeout_ms / 1000);
	if (e)
		return e;
	memcpy(&head, b->content, sizeof(head));
	if (bytes != wanted || head.kind != BRIDGE_BOOK)
		return err_set(em, ERR_FORMAT, "node 0 sent something else than the addresses of the nodes");
	memcpy(out, b->content + sizeof(head), wanted - sizeof(head));
	for (u32 node = 0; node < b->config.nodes; node++)
		(*out)[node][BRIDGE_ADDRESS_MAX - 1] = '\0';
	return ERR_OK;
}

/* ---------------------------------------------------------------- all together */

static enum err join_as_first(struct join *j, struct err_msg *em)
{
	enum err e = start_listening(j, j->b->config.address, em);

	if (!e)
		e = accept_all(j, 1, em);
	return e ? e : send_book(j, em);
}

/* The own address on the way to node 0 is that on which higher nodes come. */
static enum err listen_for_higher(struct join *j, struct err_msg *em)
{
	struct sockaddr_storage own;
	socklen_t bytes = sizeof(own);
	char host[BRIDGE_ADDRESS_MAX];

	if (j->b->config.node + 1 == j->b->config.nodes || j->listener >= 0)
		return ERR_OK;
	if (getsockname(j->b->peers[0].link.fd, (struct sockaddr *)&own, &bytes) < 0)
		return err_set(em, ERR_IO, "the connection to node 0: %s", strerror(errno));
	name_address(host, &own, bytes);
	return start_listening(j, host, em);
}

static enum err join_as_other(struct join *j, struct err_msg *em)
{
	u32 own = j->b->config.node;
	book addresses;
	enum err e;

	do {
		j->group = 0;
		e = connect_one(j, 0, j->b->config.address, em);
		if (!e)
			e = listen_for_higher(j, em);
		if (!e)
			e = receive_book(j, &addresses, em);
	} while (e == ERR_GONE);
	for (u32 node = 1; !e && node < own; node++)
		e = connect_one(j, node, addresses[node], em);
	return e ? e : accept_all(j, own + 1, em);
}

enum err bridge_connect_all(struct bridge *b, u64 *group, struct err_msg *em)
{
	struct join j = {.b = b,
			 .end_ns = clock_now_ns() + b->config.join_timeout_ms * ms_ns,
			 .reported_ns = clock_now_ns(),
			 .group = b->config.node == 0 ? *group : 0,
			 .listener = -1};

	enum err e = b->config.node == 0 ? join_as_first(&j, em) : join_as_other(&j, em);
	if (j.listener >= 0)
		close(j.listener);
	*group = j.group;
	return e;
}
