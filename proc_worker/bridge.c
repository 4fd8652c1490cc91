/* The bridge at work: sends parts and epochs from the rank's thread, and receives in a thread of its own. Runs in
 * workers of engines with several nodes. The thread never waits for a single counterpart, so that none can keep it
 * from hearing the others. */
#include "proc_worker/bridge_priv.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/sched_slice.h"

enum { TURN_MS = 250, FRAMES_A_TURN = 64 };

static const u64 ms_ns = 1000000;

const char *bridge_loss_text(enum bridge_loss loss)
{
	static const char *const texts[] = {"is there", "has closed the connection", "is silent", "sent what cannot be read",
					    "has left"};

	ASSERT(loss < COUNT_OF(texts));
	return texts[loss];
}

static void ring(int fd)
{
	u64 one = 1;

	(void)!write(fd, &one, sizeof(one));
}

/* ---------------------------------------------------------------- sending */

static enum err send_frame(struct bridge_peer *p, const struct bridge_head *head, const void *data, size_t bytes)
{
	pthread_mutex_lock(&p->sending);
	enum err e = atomic_load(&p->lost) ? ERR_GONE : node_link_send(&p->link, head, sizeof(*head), data, bytes, &p->lost);
	atomic_store_explicit(&p->sent_ns, clock_now_ns(), memory_order_relaxed);
	pthread_mutex_unlock(&p->sending);
	return e ? ERR_GONE : ERR_OK;
}

static enum err send_part(struct bridge_peer *p, u64 sequence, const char *data, size_t bytes)
{
	struct bridge_head head = {.kind = BRIDGE_PART, .sequence = sequence, .total = bytes};
	enum err e;

	do {
		size_t n = bytes - head.offset < BRIDGE_CONTENT_MAX ? bytes - head.offset : BRIDGE_CONTENT_MAX;
		e = send_frame(p, &head, data + head.offset, n);
		head.offset += n;
	} while (!e && head.offset < bytes);
	return e;
}

enum err bridge_send_part(struct bridge *b, u64 sequence, const void *data, size_t bytes, bool first_node_only)
{
	const struct bridge_config *c = &b->config;
	enum err e = ERR_OK;

	ASSERT(bytes <= c->part_bytes_max);
	/* The next node first: not all at once to the same one. */
	for (u32 i = 1; !e && i < c->nodes; i++) {
		u32 node = (c->node + i) % c->nodes;
		e = send_part(&b->peers[node], sequence, data, first_node_only && node != 0 ? 0 : bytes);
	}
	return e;
}

enum err bridge_send_epoch(struct bridge *b, u64 epoch, u64 base)
{
	struct bridge_head head = {.kind = BRIDGE_EPOCH, .sequence = epoch, .total = base};
	enum err e = ERR_OK;

	for (u32 node = 0; !e && node < b->config.nodes; node++)
		if (node != b->config.node)
			e = send_frame(&b->peers[node], &head, NULL, 0);
	return e;
}

static bool has_room(const struct bridge_peer *p)
{
	struct pollfd fd = {.fd = p->link.fd, .events = POLLOUT};

	return poll(&fd, 1, 0) == 1 && (fd.revents & POLLOUT) != 0;
}

/* A small frame that never waits: a connection that is full or in use needs no sign of life. */
static void send_small(struct bridge_peer *p, u32 kind)
{
	struct bridge_head head = {.kind = kind};

	if (atomic_load(&p->lost) || pthread_mutex_trylock(&p->sending) != 0)
		return;
	if (has_room(p))
		(void)!node_link_send(&p->link, &head, sizeof(head), NULL, 0, &p->lost);
	atomic_store_explicit(&p->sent_ns, clock_now_ns(), memory_order_relaxed);
	pthread_mutex_unlock(&p->sending);
}

/* ---------------------------------------------------------------- receiving */

static void lose(struct bridge *b, struct bridge_peer *p, enum bridge_loss loss)
{
	if (atomic_load(&p->lost))
		return;
	atomic_store(&p->lost, loss);
	shutdown(p->link.fd, SHUT_RDWR); /* whoever sends on it is told at once; closed when the bridge ends */
	LOG_WARN("NODE_LOST", "rank=%u address=%s reason=\"%s\"", p->rank, p->address, bridge_loss_text(loss));
	b->config.sink.lost(b->config.sink.ctx, p->rank, loss);
	ring(b->lost_fd);
}

/* False: it cannot be. */
static bool take_part(struct bridge *b, struct bridge_peer *p, const struct bridge_head *head, const u8 *data, size_t bytes)
{
	const struct bridge_sink *sink = &b->config.sink;

	if (head->offset == 0) {
		p->sequence = head->sequence;
		p->have = 0;
	}
	if (head->sequence != p->sequence || head->offset != p->have || head->total > b->config.part_bytes_max ||
	    bytes > head->total - p->have)
		return false;
	if (bytes != 0)
		memcpy((char *)sink->part(sink->ctx, p->rank, head->sequence) + p->have, data, bytes);
	p->have += bytes;
	if (p->have == head->total)
		sink->arrived(sink->ctx, p->rank, head->sequence);
	return true;
}

static void take_frame(struct bridge *b, struct bridge_peer *p, size_t bytes)
{
	struct bridge_head head = {0};
	bool good = bytes >= sizeof(head);

	if (good)
		memcpy(&head, b->content, sizeof(head));
	switch (head.kind) {
	case BRIDGE_PART:
		good = take_part(b, p, &head, b->content + sizeof(head), bytes - sizeof(head));
		break;
	case BRIDGE_EPOCH:
		b->config.sink.epoch(b->config.sink.ctx, p->rank, head.sequence, head.total);
		break;
	case BRIDGE_PULSE:
		break;
	case BRIDGE_BYE:
		lose(b, p, BRIDGE_LEFT);
		break;
	default:
		good = false;
	}
	if (!good)
		lose(b, p, BRIDGE_GARBLED);
}

static void receive(struct bridge *b, struct bridge_peer *p)
{
	for (u32 i = 0; i < FRAMES_A_TURN && !atomic_load(&p->lost); i++) {
		size_t bytes;
		enum err e = node_link_receive(&p->link, b->content, &bytes);
		if (e == ERR_AGAIN)
			return;
		if (e) {
			lose(b, p, e == ERR_GONE ? BRIDGE_CLOSED : BRIDGE_GARBLED);
			return;
		}
		p->heard_ns = clock_now_ns();
		take_frame(b, p, bytes);
	}
}

/* Pulses where they are due, and whoever has been silent for too long. `paused`: this process did not run itself, so
 * it judges nobody. */
static void look_after(struct bridge *b, struct bridge_peer *p, u64 now, bool paused)
{
	u64 sent = atomic_load_explicit(&p->sent_ns, memory_order_relaxed);

	if (paused)
		p->heard_ns = now;
	if (now > p->heard_ns + BRIDGE_SILENCE_MS * ms_ns)
		lose(b, p, BRIDGE_SILENT);
	else if (now > sent + BRIDGE_PULSE_MS * ms_ns)
		send_small(p, BRIDGE_PULSE);
}

static u32 poll_list(struct bridge *b, struct pollfd *fds, struct bridge_peer **peers)
{
	u32 count = 0;

	for (u32 node = 0; node < b->config.nodes; node++) {
		struct bridge_peer *p = &b->peers[node];
		if (node == b->config.node || atomic_load(&p->lost))
			continue;
		peers[count] = p;
		fds[count++] = (struct pollfd){.fd = p->link.fd, .events = POLLIN};
	}
	return count;
}

static void *work(void *arg)
{
	struct bridge *b = arg;
	struct pollfd fds[NODES_MAX + 1];
	struct bridge_peer *peers[NODES_MAX];
	u64 before = clock_now_ns();

	sched_slice_short(); /* a rank that computes waits for what comes in here */
	while (!atomic_load(&b->stop)) {
		u32 count = poll_list(b, fds, peers);
		fds[count] = (struct pollfd){.fd = b->wake_fd, .events = POLLIN};
		(void)!poll(fds, count + 1, TURN_MS);
		for (u32 i = 0; i < count; i++)
			if (fds[i].revents)
				receive(b, peers[i]);
		u64 now = clock_now_ns();
		bool paused = now > before + BRIDGE_SILENCE_MS / 2 * ms_ns;
		before = now;
		for (u32 i = 0; i < count; i++)
			look_after(b, peers[i], now, paused);
	}
	return NULL;
}

/* ---------------------------------------------------------------- life */

int bridge_lost_fd(const struct bridge *b)
{
	return b->lost_fd;
}

enum bridge_loss bridge_first_loss(const struct bridge *b, u32 *node, const char **address)
{
	enum bridge_loss first = BRIDGE_NO_LOSS;

	for (u32 n = 0; n < b->config.nodes; n++) {
		enum bridge_loss loss = (enum bridge_loss)atomic_load(&b->peers[n].lost);
		/* That the engine has been stopped explains everything else. */
		if (loss == BRIDGE_NO_LOSS || (first != BRIDGE_NO_LOSS && loss != BRIDGE_LEFT))
			continue;
		first = loss;
		*node = n;
		*address = b->peers[n].address;
	}
	return first;
}

static enum err start(struct bridge *b, struct err_msg *em)
{
	u64 now = clock_now_ns();

	for (u32 node = 0; node < b->config.nodes; node++) {
		b->peers[node].heard_ns = now;
		atomic_store(&b->peers[node].sent_ns, now);
	}
	int failed = pthread_create(&b->thread, NULL, work, b);
	if (failed != 0)
		return err_set(em, ERR_NO_MEMORY, "cannot start a thread: %s", strerror(failed));
	b->running = true;
	return ERR_OK;
}

enum err bridge_join(struct bridge **out, const struct bridge_config *config, u64 *group, struct err_msg *em)
{
	*out = NULL;
	ASSERT(config->nodes >= 2 && config->nodes <= NODES_MAX && config->ranks % config->nodes == 0);
	ASSERT(config->rank / bridge_ranks_each(config) == config->node);
	struct bridge *b = calloc(1, sizeof(*b));
	if (!b)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	b->config = *config;
	b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	b->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	b->content = malloc(NODE_LINK_FRAME_MAX);
	for (u32 node = 0; node < NODES_MAX; node++) {
		b->peers[node].link.fd = -1;
		b->peers[node].rank = bridge_counterpart(config, node);
		pthread_mutex_init(&b->peers[node].sending, NULL);
	}
	enum err e = ERR_OK;
	if (b->wake_fd < 0 || b->lost_fd < 0 || b->content == NULL)
		e = err_set(em, ERR_NO_MEMORY, "cannot set up the way to other nodes: %s", strerror(errno));
	if (!e)
		e = bridge_connect_all(b, group, em);
	if (!e)
		e = start(b, em);
	if (e)
		bridge_leave(&b, false);
	else
		*out = b;
	return e;
}

void bridge_leave(struct bridge **out, bool farewell)
{
	struct bridge *b = *out;

	if (!b)
		return;
	if (b->running) {
		atomic_store(&b->stop, 1);
		ring(b->wake_fd);
		pthread_join(b->thread, NULL);
	}
	for (u32 node = 0; node < NODES_MAX; node++) {
		struct bridge_peer *p = &b->peers[node];
		if (farewell && p->link.fd >= 0)
			send_small(p, BRIDGE_BYE);
		node_link_close(&p->link);
		pthread_mutex_destroy(&p->sending);
	}
	if (b->wake_fd >= 0)
		close(b->wake_fd);
	if (b->lost_fd >= 0)
		close(b->lost_fd);
	free(b->content);
	free(b);
	*out = NULL;
}
