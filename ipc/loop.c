/* The event loop of a process: channels, descriptors, timers, and one call per turn after all input was drained. Runs
 * in the main thread of every process. It must never trust the readiness of a ZeroMQ descriptor: that is edge-triggered
 * and its edge is swallowed by sends of ours, so every turn begins by asking the channels themselves. */
#include "ipc/ipc_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"

enum { CHANNELS_MAX = 32, FDS_MAX = 64, TIMERS_MAX = 64, MESSAGES_PER_TURN = 256, EVENTS_PER_TURN = 64 };

struct loop_channel {
	struct ipc_channel *ch; /* NULL: free */
	ipc_message_fn on_message;
	ipc_error_fn on_error;
	void *ctx;
};

struct loop_fd {
	int fd; /* -1: free */
	ipc_fd_fn fn;
	void *ctx;
};

struct loop_timer {
	u64 period_ns; /* 0: free */
	u64 due_ns;
	ipc_timer_fn fn;
	void *ctx;
};

struct ipc_loop {
	int epoll_fd;
	bool stopped;
	bool more;  /* a channel was left with messages */
	bool muted; /* a channel has lines to tell of that were not logged */
	ipc_turn_fn on_turn;
	void *turn_ctx;
	struct loop_channel channels[CHANNELS_MAX];
	struct loop_fd fds[FDS_MAX];
	struct loop_timer timers[TIMERS_MAX];
	struct ipc_msg msg; /* being handed out */
};

static const u64 MUTED_WAIT_NS = 1000000000u;

/* Keys of epoll events: channels only wake the loop up. */
enum { KEY_CHANNEL = FDS_MAX };

enum err ipc_loop_create(struct ipc_loop **out, struct err_msg *em)
{
	struct ipc_loop *loop = calloc(1, sizeof(*loop));
	if (!loop)
		return err_set(em, ERR_NO_MEMORY, "no memory for an event loop");
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0) {
		free(loop);
		return err_set(em, ERR_IO, "cannot create an epoll descriptor: %s", strerror(errno));
	}
	for (u32 i = 0; i < FDS_MAX; i++)
		loop->fds[i].fd = -1;
	*out = loop;
	return ERR_OK;
}

void ipc_loop_destroy(struct ipc_loop **loop)
{
	if (!*loop)
		return;
	close((*loop)->epoll_fd);
	free(*loop);
	*loop = NULL;
}

/* ---------------------------------------------------------------- what is watched */

static bool watch(struct ipc_loop *loop, int fd, u32 events, u32 key)
{
	struct epoll_event ev = {.events = events, .data.u32 = key};
	return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static void unwatch(struct ipc_loop *loop, int fd)
{
	if (fd >= 0)
		epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* Level-triggered on purpose: the ZeroMQ descriptor stays readable until its channel was asked for messages. */
enum err ipc_loop_add_channel(struct ipc_loop *loop, struct ipc_channel *ch, ipc_message_fn on_message,
			      ipc_error_fn on_error, void *ctx)
{
	u32 i = 0;
	while (i < CHANNELS_MAX && loop->channels[i].ch)
		i++;
	if (i == CHANNELS_MAX)
		return ERR_BUSY;
	int monitor_fd = ipc_channel_monitor_fd(ch);
	if (!watch(loop, ipc_channel_fd(ch), EPOLLIN, KEY_CHANNEL))
		return ERR_IO;
	if (monitor_fd >= 0 && !watch(loop, monitor_fd, EPOLLIN, KEY_CHANNEL)) {
		unwatch(loop, ipc_channel_fd(ch));
		return ERR_IO;
	}
	loop->channels[i] = (struct loop_channel){ch, on_message, on_error, ctx};
	return ERR_OK;
}

void ipc_loop_remove_channel(struct ipc_loop *loop, struct ipc_channel *ch)
{
	for (u32 i = 0; i < CHANNELS_MAX; i++) {
		if (loop->channels[i].ch != ch)
			continue;
		unwatch(loop, ipc_channel_fd(ch));
		unwatch(loop, ipc_channel_monitor_fd(ch));
		loop->channels[i].ch = NULL;
	}
}

enum err ipc_loop_add_fd(struct ipc_loop *loop, int fd, u32 epoll_events, ipc_fd_fn fn, void *ctx)
{
	u32 i = 0;
	while (i < FDS_MAX && loop->fds[i].fd >= 0)
		i++;
	if (i == FDS_MAX)
		return ERR_BUSY;
	if (!watch(loop, fd, epoll_events, i))
		return errno == EEXIST ? ERR_EXISTS : ERR_IO;
	loop->fds[i] = (struct loop_fd){fd, fn, ctx};
	return ERR_OK;
}

void ipc_loop_remove_fd(struct ipc_loop *loop, int fd)
{
	for (u32 i = 0; i < FDS_MAX; i++) {
		if (fd < 0 || loop->fds[i].fd != fd)
			continue;
		unwatch(loop, fd);
		loop->fds[i].fd = -1;
	}
}

enum err ipc_loop_add_timer(struct ipc_loop *loop, u32 period_ms, ipc_timer_fn fn, void *ctx, u32 *id)
{
	u32 i = 0;
	while (i < TIMERS_MAX && loop->timers[i].period_ns)
		i++;
	if (i == TIMERS_MAX)
		return ERR_BUSY;
	u64 period_ns = (period_ms ? period_ms : 1) * 1000000ull;
	loop->timers[i] = (struct loop_timer){period_ns, clock_now_ns() + period_ns, fn, ctx};
	if (id)
		*id = i;
	return ERR_OK;
}

void ipc_loop_remove_timer(struct ipc_loop *loop, u32 id)
{
	ASSERT(id < TIMERS_MAX);
	loop->timers[id].period_ns = 0;
}

void ipc_loop_on_turn(struct ipc_loop *loop, ipc_turn_fn fn, void *ctx)
{
	loop->on_turn = fn;
	loop->turn_ctx = ctx;
}

/* ---------------------------------------------------------------- turns */

static void report_error(struct loop_channel *c, struct ipc_channel *ch, ipc_peer from, enum err e,
			 const struct err_msg *em)
{
	if (c->on_error)
		c->on_error(c->ctx, ch, from, e, em);
	else if (ipc_channel_may_log(ch))
		LOG_WARN("CHANNEL_ERROR", "channel=%s peer=%llu code=%s text=\"%s\"", ipc_channel_name(ch),
			 (unsigned long long)from.v, err_name(e), em->text);
}

/* True when the channel may have more to give. A callback may remove the channel, or close it. */
static bool drain_channel(struct ipc_loop *loop, struct loop_channel *c)
{
	struct ipc_channel *ch = c->ch;
	for (u32 n = 0; n < MESSAGES_PER_TURN; n++) {
		ipc_peer from;
		struct err_msg em = {.text = ""};
		enum err e = ipc_recv(ch, &from, &loop->msg, &em);
		if (e == ERR_AGAIN)
			return false;
		if (e == ERR_OK)
			c->on_message(c->ctx, ch, from, &loop->msg);
		else
			report_error(c, ch, from, e, &em);
		if (c->ch != ch || e == ERR_IO)
			return false;
	}
	return true;
}

static bool any_readable(struct ipc_loop *loop)
{
	for (u32 i = 0; i < CHANNELS_MAX; i++)
		if (loop->channels[i].ch && ipc_channel_readable(loop->channels[i].ch))
			return true;
	return false;
}

/* How long to wait: not past the next timer, not at all when a channel has something. Rounded up, so that a timer
 * does not make several empty turns. */
static int wait_ms(struct ipc_loop *loop, int timeout_ms)
{
	if (timeout_ms == 0 || loop->more || any_readable(loop))
		return 0;
	u64 now = clock_now_ns();
	u64 wait = timeout_ms < 0 ? UINT64_MAX : timeout_ms * 1000000ull;
	if (loop->muted && wait > MUTED_WAIT_NS)
		wait = MUTED_WAIT_NS;
	for (u32 i = 0; i < TIMERS_MAX; i++) {
		const struct loop_timer *t = &loop->timers[i];
		if (!t->period_ns)
			continue;
		u64 left = t->due_ns > now ? t->due_ns - now : 0;
		wait = left < wait ? left : wait;
	}
	if (wait == UINT64_MAX)
		return -1;
	return wait >= 3600000000000ull ? 3600000 : (int)((wait + 999999) / 1000000);
}

static void fire_timers(struct ipc_loop *loop)
{
	u64 now = clock_now_ns();
	for (u32 i = 0; i < TIMERS_MAX; i++) {
		struct loop_timer *t = &loop->timers[i];
		if (!t->period_ns || t->due_ns > now)
			continue;
		t->due_ns = now + t->period_ns; /* what was missed is not made up for */
		t->fn(t->ctx, now);
	}
}

static void tell_muted(struct ipc_loop *loop)
{
	u64 now = clock_now_ns();
	loop->muted = false;
	for (u32 i = 0; i < CHANNELS_MAX; i++)
		if (loop->channels[i].ch && ipc_channel_log_muted(loop->channels[i].ch, now))
			loop->muted = true;
}

static void handle_fds(struct ipc_loop *loop, const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++) {
		u32 key = events[i].data.u32;
		if (key >= FDS_MAX || loop->fds[key].fd < 0)
			continue; /* a channel, or removed by a callback of this turn */
		loop->fds[key].fn(loop->fds[key].ctx, loop->fds[key].fd, events[i].events);
	}
}

enum err ipc_loop_turn(struct ipc_loop *loop, int timeout_ms)
{
	struct epoll_event events[EVENTS_PER_TURN];
	int count = epoll_wait(loop->epoll_fd, events, EVENTS_PER_TURN, wait_ms(loop, timeout_ms));
	if (count < 0 && errno != EINTR)
		return ERR_IO;
	handle_fds(loop, events, count);
	loop->more = false;
	for (u32 i = 0; i < CHANNELS_MAX; i++)
		if (loop->channels[i].ch && drain_channel(loop, &loop->channels[i]))
			loop->more = true;
	tell_muted(loop);
	fire_timers(loop);
	if (loop->on_turn)
		loop->on_turn(loop->turn_ctx, clock_now_ns());
	return ERR_OK;
}

enum err ipc_loop_run(struct ipc_loop *loop)
{
	enum err e = ERR_OK;
	loop->stopped = false;
	while (!loop->stopped && e == ERR_OK)
		e = ipc_loop_turn(loop, -1);
	return e;
}

void ipc_loop_stop(struct ipc_loop *loop)
{
	loop->stopped = true;
}
