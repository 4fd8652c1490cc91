/* Bounded channels over ZeroMQ: opening, greeting and sending. A channel belongs to one thread of the process that
 * opened it. No send ever blocks and nothing is dropped without a word: a full queue is ERR_BUSY, a vanished peer
 * ERR_GONE, and sequence numbers show whatever a dying peer took with it. */
#include "ipc/channel_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"

enum { QUEUE_MAX_DEFAULT = 1000, RECONNECT_MS = 20, RECONNECT_MS_MAX = 500, ZEROMQ_THREADS = 2 };

/* ---------------------------------------------------------------- context */

static void *pass(void *lock)
{
	pthread_mutex_lock(lock);
	pthread_mutex_unlock(lock);
	return NULL;
}

/* ZeroMQ starts its threads with the first socket and ends the process where it cannot: as many are tried before. 0, or the
 * system's error. */
static int try_threads(void)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_t threads[ZEROMQ_THREADS];
	u32 started = 0;
	int failed = 0;
	pthread_mutex_lock(&lock);
	while (started < ZEROMQ_THREADS && !(failed = pthread_create(&threads[started], NULL, pass, &lock)))
		started++;
	pthread_mutex_unlock(&lock);
	for (u32 i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return failed;
}

enum err ipc_context_create(struct ipc_context **out, struct err_msg *em)
{
	struct ipc_context *ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return err_set(em, ERR_NO_MEMORY, "no memory for a ZeroMQ context");
	int failed = try_threads();
	if (failed) {
		free(ctx);
		return err_set(em, ERR_NO_MEMORY,
			       "cannot start the threads of ZeroMQ: %s; the limits of processes (ulimit -u), address space "
			       "(ulimit -v) or the container's pids leave none",
			       strerror(failed));
	}
	ctx->zmq = zmq_ctx_new();
	if (!ctx->zmq) {
		free(ctx);
		return err_set(em, ERR_NO_MEMORY, "cannot create a ZeroMQ context: %s", zmq_strerror(errno));
	}
	*out = ctx;
	return ERR_OK;
}

void ipc_context_destroy(struct ipc_context **ctx)
{
	if (!*ctx)
		return;
	ASSERT((*ctx)->channels == 0); /* termination would wait for them for ever */
	while (zmq_ctx_term((*ctx)->zmq) && errno == EINTR)
		;
	ipc_gate_stop(*ctx);
	free(*ctx);
	*ctx = NULL;
}

/* ---------------------------------------------------------------- opening */

static const int zmq_types[] = {
	[IPC_ROUTER] = ZMQ_ROUTER, [IPC_DEALER] = ZMQ_DEALER, [IPC_PUSH] = ZMQ_PUSH,
	[IPC_PULL] = ZMQ_PULL,     [IPC_PUB] = ZMQ_XPUB,      [IPC_SUB] = ZMQ_SUB,
};

static bool set_int(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool set_options(struct ipc_channel *ch, const struct ipc_channel_config *config)
{
	int queue = config->queue_max ? (int)config->queue_max : QUEUE_MAX_DEFAULT;
	i64 frame_max = (i64)ch->frame_bytes_max;
	bool ok = set_int(ch->socket, ZMQ_LINGER, (int)config->linger_ms) && set_int(ch->socket, ZMQ_SNDHWM, queue) &&
		  set_int(ch->socket, ZMQ_RCVHWM, queue) &&
		  set_int(ch->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS) &&
		  set_int(ch->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX) &&
		  zmq_setsockopt(ch->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max)) == 0;
	if (ch->pattern == IPC_ROUTER)
		ok = ok && set_int(ch->socket, ZMQ_ROUTER_MANDATORY, 1);
	if (ch->pattern == IPC_PUB) /* every subscription shows, so that its subscriber gets a HELLO */
		ok = ok && set_int(ch->socket, ZMQ_XPUB_VERBOSE, 1);
	if (ch->pattern == IPC_SUB)
		ok = ok && zmq_setsockopt(ch->socket, ZMQ_SUBSCRIBE, "", 0) == 0;
	return ok;
}

/* DEALER and PUSH speak first on every new connection, so they have to see connections come and go. */
static bool open_monitor(struct ipc_channel *ch)
{
	char address[64];
	/* numbered, since the address of a closed channel stays taken until the transport has let go of it */
	snprintf(address, sizeof(address), "inproc://monitor-%u", ++ch->ctx->monitors);
	if (zmq_socket_monitor(ch->socket, address, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED))
		return false;
	ch->monitor = zmq_socket(ch->ctx->zmq, ZMQ_PAIR);
	size_t size = sizeof(ch->monitor_fd);
	return ch->monitor && set_int(ch->monitor, ZMQ_LINGER, 0) && zmq_connect(ch->monitor, address) == 0 &&
	       zmq_getsockopt(ch->monitor, ZMQ_FD, &ch->monitor_fd, &size) == 0;
}

static void name_process(struct ipc_channel *ch, const char *process)
{
	static const char *const roles[] = {"process", "supervisor", "scheduler", "worker",
					    "detok",   "gateway",    "client"};
	const char *role = roles[ch->role < COUNT_OF(roles) ? ch->role : 0];
	if (process)
		snprintf(ch->process, sizeof(ch->process), "%s", process);
	else if (ch->role == IPC_ROLE_WORKER || ch->role == IPC_ROLE_GATEWAY)
		snprintf(ch->process, sizeof(ch->process), "%s-%u", role, ch->rank);
	else
		snprintf(ch->process, sizeof(ch->process), "%s", role);
}

static enum err open_socket(struct ipc_channel *ch, const struct ipc_channel_config *config, struct err_msg *em)
{
	ch->socket = zmq_socket(ch->ctx->zmq, zmq_types[ch->pattern]);
	if (!ch->socket)
		return err_set(em, ERR_IO, "channel %s: cannot create a socket: %s", ch->name, zmq_strerror(errno));
	bool speaks_first = ch->pattern == IPC_DEALER || ch->pattern == IPC_PUSH;
	if (!set_options(ch, config) || (speaks_first && !open_monitor(ch)) ||
	    (config->curve && !ipc_curve_use(ch->socket, config->curve, config->endpoint, false)))
		return err_set(em, ERR_IO, "channel %s: cannot set up its socket: %s", ch->name,
			       zmq_strerror(errno));
	int rc = config->bind ? zmq_bind(ch->socket, config->endpoint) : zmq_connect(ch->socket, config->endpoint);
	if (rc)
		return err_set(em, ERR_IO, "channel %s: cannot %s '%s': %s", ch->name,
			       config->bind ? "bind" : "connect to", config->endpoint, zmq_strerror(errno));
	size_t size = sizeof(ch->fd);
	if (zmq_getsockopt(ch->socket, ZMQ_FD, &ch->fd, &size))
		return err_set(em, ERR_IO, "channel %s: no descriptor: %s", ch->name, zmq_strerror(errno));
	ch->single.hello_due = speaks_first;
	return ERR_OK;
}

enum err ipc_channel_open(struct ipc_channel **out, struct ipc_context *ctx, const struct ipc_channel_config *config,
			  struct err_msg *em)
{
	ASSERT(config->name && config->endpoint && config->pattern < COUNT_OF(zmq_types));
	struct ipc_channel *ch = calloc(1, sizeof(*ch));
	if (!ch)
		return err_set(em, ERR_NO_MEMORY, "channel %s: no memory", config->name);
	ctx->channels++;
	*ch = (struct ipc_channel){
		.ctx = ctx,
		.fd = -1,
		.monitor_fd = -1,
		.pattern = config->pattern,
		.frame_bytes_max = config->frame_bytes_max ? config->frame_bytes_max : IPC_FRAME_BYTES_MAX,
		.epoch = config->epoch,
		.role = config->role,
		.rank = config->rank,
		.client_id = config->client_id,
	};
	snprintf(ch->name, sizeof(ch->name), "%s", config->name);
	name_process(ch, config->process);
	enum err e = ERR_OK;
	if (ch->pattern == IPC_ROUTER && (e = ipc_peers_create(&ch->peers)) != ERR_OK)
		err_set(em, e, "channel %s: no memory for its peers", ch->name);
	if (e == ERR_OK && config->record_dir)
		e = ipc_recorder_create(&ch->recorder, config->record_dir, ch->process, ch->name, em);
	if (e == ERR_OK)
		e = open_socket(ch, config, em);
	if (e == ERR_OK)
		(void)!ipc_channel_send_hello(ch, &ch->single); /* still due when it did not go out */
	if (e != ERR_OK)
		ipc_channel_close(&ch);
	else
		*out = ch;
	return e;
}

enum err ipc_channel_listen(struct ipc_channel *ch, const char *endpoint, const struct ipc_curve *curve,
			    struct err_msg *em)
{
	ASSERT(ch->pattern == IPC_ROUTER);
	enum err e = ipc_gate_start(ch->ctx, curve->node_public, em);
	if (e != ERR_OK)
		return e;
	/* What is set now holds for this endpoint; those that are bound already keep what they have. */
	if (ipc_curve_use(ch->socket, curve, endpoint, true) && zmq_bind(ch->socket, endpoint) == 0)
		return ERR_OK;
	e = errno == EADDRINUSE ? ERR_BUSY : errno == EADDRNOTAVAIL || errno == ENODEV ? ERR_NOT_FOUND : ERR_IO;
	return err_set(em, e, "channel %s: cannot listen at %s: %s", ch->name, endpoint, zmq_strerror(errno));
}

void ipc_channel_close(struct ipc_channel **out)
{
	struct ipc_channel *ch = *out;
	if (!ch)
		return;
	if (ch->socket && ch->monitor)
		zmq_socket_monitor(ch->socket, NULL, 0);
	if (ch->monitor)
		zmq_close(ch->monitor);
	if (ch->socket)
		zmq_close(ch->socket);
	ipc_peers_destroy(&ch->peers);
	ipc_recorder_destroy(&ch->recorder);
	ipc_scratch_fini(&ch->scratch);
	buf_fini(&ch->out);
	buf_fini(&ch->greeting);
	ch->ctx->channels--;
	free(ch);
	*out = NULL;
}

void ipc_channel_set_epoch(struct ipc_channel *ch, u64 epoch)
{
	ch->epoch = epoch;
}

int ipc_channel_fd(struct ipc_channel *ch)
{
	return ch->fd;
}

int ipc_channel_monitor_fd(struct ipc_channel *ch)
{
	return ch->monitor_fd;
}

const char *ipc_channel_name(const struct ipc_channel *ch)
{
	return ch->name;
}

/* ---------------------------------------------------------------- what peers make us log */

static const u64 LOG_SECOND_NS = 1000000000u;

bool ipc_channel_log_muted(struct ipc_channel *ch, u64 now_ns)
{
	if (!ch->log_muted)
		return false;
	if (now_ns - ch->log_since_ns < LOG_SECOND_NS)
		return true;
	LOG_WARN("CHANNEL_LOG_MUTED", "channel=%s lines=%u", ch->name, ch->log_muted);
	ch->log_muted = 0;
	return false;
}

bool ipc_channel_may_log(struct ipc_channel *ch)
{
	u64 now = clock_now_ns();
	(void)ipc_channel_log_muted(ch, now);
	if (now - ch->log_since_ns >= LOG_SECOND_NS) {
		ch->log_since_ns = now;
		ch->log_count = 0;
	}
	if (ch->log_count < IPC_LOG_BURST) {
		ch->log_count++;
		return true;
	}
	ch->log_muted++;
	return false;
}

enum err ipc_endpoint(char *out, size_t bytes, const char *run_dir, const char *name, struct err_msg *em)
{
	enum { SOCKET_PATH_MAX = 107 };
	size_t path = strlen(run_dir) + 1 + strlen(name);
	if (path > SOCKET_PATH_MAX)
		return err_set(em, ERR_TOO_LONG,
			       "the socket path '%s/%s' has %zu bytes, at most %d are possible: shorten --run-dir",
			       run_dir, name, path, SOCKET_PATH_MAX);
	int n = snprintf(out, bytes, "ipc://%s/%s", run_dir, name);
	return n > 0 && (size_t)n < bytes ? ERR_OK : err_set(em, ERR_TOO_LONG, "no room for an endpoint");
}

/* ---------------------------------------------------------------- sending */

static enum err send_error(void)
{
	if (errno == EAGAIN)
		return ERR_BUSY;
	return errno == EHOSTUNREACH ? ERR_GONE : ERR_IO;
}

static enum err send_part(struct ipc_channel *ch, const void *data, size_t bytes, int flags)
{
	int rc;
	do
		rc = zmq_send(ch->socket, data, bytes, flags | ZMQ_DONTWAIT);
	while (rc < 0 && errno == EINTR);
	return rc < 0 ? send_error() : ERR_OK;
}

enum err ipc_channel_send_numbered(struct ipc_channel *ch, struct ipc_peer_state *peer, char *frame, size_t bytes)
{
	ipc_patch_sequence(frame, bytes, peer->sent + 1);
	enum err e = ERR_OK;
	/* With ROUTER_MANDATORY a full or missing peer shows at the routing id; the part behind it is then taken. */
	if (ch->pattern == IPC_ROUTER)
		e = send_part(ch, peer->id, peer->id_bytes, ZMQ_SNDMORE);
	if (e == ERR_OK)
		e = send_part(ch, frame, bytes, 0);
	if (e == ERR_OK) {
		peer->sent++;
		ipc_recorder_add(ch->recorder, true, ch->peers ? ipc_peers_handle(ch->peers, peer).v : 0, frame,
				 bytes);
	} else if (e == ERR_GONE && ch->peers) {
		ipc_peers_drop(ch->peers, peer);
	}
	return e;
}

enum err ipc_channel_send_hello(struct ipc_channel *ch, struct ipc_peer_state *peer)
{
	if (!peer->hello_due)
		return ERR_OK;
	struct ipc_msg msg = {
		.type = IPC_TYPE_HELLO,
		.epoch = ch->epoch,
		.hello = {.version = IPC_PROTOCOL_VERSION,
			  .schema_hash = ipc_schema_hash(),
			  .role = ch->role,
			  .rank = ch->rank,
			  .client_id = ch->client_id,
			  .name = (const u8 *)ch->process,
			  .name_count = (u32)strlen(ch->process)},
	};
	buf_clear(&ch->greeting);
	ipc_encode(&msg, &ch->greeting);
	if (!buf_ok(&ch->greeting))
		return ERR_NO_MEMORY;
	enum err e = ipc_channel_send_numbered(ch, peer, ch->greeting.data, ch->greeting.bytes);
	if (e == ERR_OK)
		peer->hello_due = false;
	return e;
}

enum err ipc_greet(struct ipc_channel *ch, ipc_peer to)
{
	ASSERT(ch->pattern == IPC_ROUTER);
	struct ipc_peer_state *peer = ipc_peers_find(ch->peers, to);
	if (!peer || !peer->greeted)
		return ERR_GONE;
	peer->sent = 0;
	peer->hello_due = true;
	return ipc_channel_send_hello(ch, peer);
}

void ipc_channel_welcome_subscribers(struct ipc_channel *ch)
{
	char subscription[64];
	int n;
	while ((n = zmq_recv(ch->socket, subscription, sizeof(subscription), ZMQ_DONTWAIT)) >= 0)
		if (n >= 1 && subscription[0] == 1)
			ch->single.hello_due = true;
}

enum err ipc_send_frame(struct ipc_channel *ch, ipc_peer to, char *frame, size_t bytes)
{
	if (bytes > ch->frame_bytes_max)
		return ERR_TOO_LONG;
	struct ipc_peer_state *peer = &ch->single;
	if (ch->pattern == IPC_ROUTER) {
		peer = ipc_peers_find(ch->peers, to);
		if (!peer || !peer->greeted)
			return ERR_GONE;
	}
	if (ch->pattern == IPC_PUB)
		ipc_channel_welcome_subscribers(ch);
	if (ch->pattern == IPC_PUSH) /* nobody receives on it, so a new connection shows here */
		ipc_channel_read_monitor(ch);
	enum err e = ipc_channel_send_hello(ch, peer);
	return e == ERR_OK ? ipc_channel_send_numbered(ch, peer, frame, bytes) : e;
}

enum err ipc_send(struct ipc_channel *ch, ipc_peer to, const struct ipc_msg *msg)
{
	buf_clear(&ch->out);
	ipc_encode(msg, &ch->out);
	if (!buf_ok(&ch->out))
		return ERR_NO_MEMORY;
	ipc_patch_epoch(ch->out.data, ch->out.bytes, ch->epoch);
	return ipc_send_frame(ch, to, ch->out.data, ch->out.bytes);
}
