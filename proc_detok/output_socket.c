/* Owns the sockets towards the clients; runs in the detokenizer's only thread. Never waits for a client: what
 * a slow one does not take is merged in its streams and kept up to --output-retention, then the client is
 * closed and its requests are stopped, so that they do not compute for nobody. */
#include "proc_detok/output_socket.h"

#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"

enum {
	QUEUE_MAX_DEFAULT = 256,
	UNSENT_MAX = 16, /* chunks; from here on news merge in the streams instead of becoming more chunks */
	RETRY_MS = 2,
	LINGER_MS = 500, /* last chunks at the end of the process */
};

/* ---------------------------------------------------------------- messages to clients */

static enum err detached_send(struct output_socket *o, u64 client_id, u64 peer, enum err code,
			      const char *text)
{
	struct ipc_msg msg = {
		.type = IPC_TYPE_DETACHED,
		.detached = {.client_id = client_id,
			     .code = code,
			     .text = (const u8 *)text,
			     .text_count = (u32)strlen(text)},
	};
	return ipc_send(o->output, (ipc_peer){peer}, &msg);
}

/* Tells a closed client why; true when it need not be known any longer. */
static bool closed_tell(struct output_socket *o, struct client *c)
{
	if (c->peer == 0)
		return false;
	enum err e = detached_send(o, c->id, c->peer, c->close_code, c->close_text);
	if (e == ERR_OK)
		return true;
	if (e == ERR_BUSY)
		o->waiting = true;
	else
		client_lost(c, c->since_ns);
	return false;
}

static void client_end(struct output_socket *o, struct client *c, enum err code, const char *text, u64 now_ns)
{
	LOG_WARN("CLIENT_CLOSED", "client=%llu code=%s text=\"%s\"", (unsigned long long)c->id,
		 err_name(code), text);
	streams_client_drop(o->config.streams, c->id);
	client_close(c, code, text, now_ns);
	if (closed_tell(o, c))
		clients_remove(&o->clients, c);
}

static void client_too_slow(struct output_socket *o, struct client *c, u64 now_ns)
{
	char text[160];
	snprintf(text, sizeof(text),
		 "%s while more than %llu bytes of its output waited (see --output-retention)",
		 c->state == CLIENT_ABSENT ? "the client was away" : "the client did not read",
		 (unsigned long long)o->clients.config.retention_bytes);
	stats_add(o->config.stats, STATS_CLIENTS_CLOSED_SLOW, 1);
	client_end(o, c, ERR_BUSY, text, now_ns);
}

/* Sends what the client's queue takes. */
static void client_pump(struct output_socket *o, struct client *c, u64 now_ns)
{
	char *frame;
	u32 bytes;

	while ((frame = client_next_frame(c, &bytes))) {
		enum err e = ipc_send_frame(o->output, (ipc_peer){c->peer}, frame, bytes);
		if (e == ERR_OK) {
			client_sent(c);
			stats_add(o->config.stats, STATS_CHUNKS_SENT, 1);
			continue;
		}
		if (e == ERR_BUSY) {
			o->waiting = true;
			return;
		}
		if (e != ERR_GONE)
			LOG_ERROR("CHUNK_NOT_SENT", "client=%llu error=%s", (unsigned long long)c->id,
				  err_name(e));
		LOG_INFO("CLIENT_LOST", "client=%llu unsent=%u", (unsigned long long)c->id, client_unsent(c));
		client_lost(c, now_ns);
		return;
	}
}

/* ---------------------------------------------------------------- messages from clients */

static bool is_busy(void *ctx, u64 client_id)
{
	return streams_client_busy(ctx, client_id);
}

/* Who went without a word while nothing was to be sent is not noticed to be gone. Should it be there after all, it is
 * greeted when it speaks and attaches again. */
static bool make_room(struct output_socket *o)
{
	struct client *c = clients_idlest(&o->clients, is_busy, o->config.streams);

	if (!c)
		return false;
	LOG_INFO("CLIENT_FORGOTTEN", "client=%llu reason=\"room for another\"", (unsigned long long)c->id);
	streams_client_drop(o->config.streams, c->id);
	clients_remove(&o->clients, c);
	return true;
}

static enum err attach(struct output_socket *o, ipc_peer from, const struct ipc_attach *m, struct client_attached *out,
		       struct err_msg *em)
{
	enum err e = clients_attach(&o->clients, m->client_id, m->last_chunk, from.v, out, em);

	if (e == ERR_BUSY && make_room(o))
		e = clients_attach(&o->clients, m->client_id, m->last_chunk, from.v, out, em);
	return e;
}

static void on_attach(struct output_socket *o, ipc_peer from, const struct ipc_attach *m)
{
	u64 now_ns = clock_now_ns();
	struct client *before = clients_find(&o->clients, m->client_id);
	bool live = before && before->state != CLIENT_CLOSED;
	struct client_attached attached;
	struct err_msg em = {.text = ""};

	enum err e = attach(o, from, m, &attached, &em);
	if (e == ERR_GONE && live)
		streams_client_drop(o->config.streams, m->client_id);
	if (e == ERR_OK) {
		e = streams_client_ready(o->config.streams, m);
		if (e != ERR_OK) {
			(void)err_set(&em, e, "cannot take one more client: %s", err_text(e));
			clients_remove(&o->clients, attached.client);
		}
	}
	if (attached.replaced)
		(void)!detached_send(o, m->client_id, attached.replaced, ERR_EXISTS,
				     "the client attached again from another socket");
	if (e != ERR_OK) {
		if (ipc_channel_may_log(o->output))
			LOG_WARN("ATTACH_REFUSED", "client=%llu last_chunk=%llu code=%s text=\"%s\"",
				 (unsigned long long)m->client_id, (unsigned long long)m->last_chunk,
				 err_name(e), em.text);
		(void)!detached_send(o, m->client_id, from.v, e, em.text);
		return;
	}

	struct client *c = attached.client;
	LOG_INFO("CLIENT_ATTACHED", "client=%llu last_chunk=%llu next_chunk=%llu", (unsigned long long)c->id,
		 (unsigned long long)m->last_chunk, (unsigned long long)c->send);
	struct ipc_msg msg = {
		.type = IPC_TYPE_ATTACHED,
		.attached = {.client_id = c->id, .next_chunk = c->send},
	};
	/* chunks without it would not tell where they begin: without room for it the peer counts as gone */
	if (ipc_send(o->output, from, &msg) != ERR_OK)
		client_lost(c, now_ns);
	client_pump(o, c, now_ns);
}

static void on_ack(struct output_socket *o, ipc_peer from, const struct ipc_ack *ack)
{
	struct client *c = clients_find(&o->clients, ack->client_id);

	if (!c) {
		(void)!ipc_greet(o->output, from); /* it believes to be attached: another HELLO makes it attach again */
	} else if (c->peer == from.v && c->state == CLIENT_ATTACHED) {
		client_hear(&o->clients, c);
		client_ack(c, ack->chunk);
	}
}

static void on_bye(struct output_socket *o, struct client *c)
{
	LOG_INFO("CLIENT_LEFT", "client=%llu", (unsigned long long)c->id);
	streams_client_drop(o->config.streams, c->id);
	clients_remove(&o->clients, c);
}

static void unexpected(struct output_socket *o, ipc_peer from, const struct ipc_msg *msg)
{
	char text[96];
	snprintf(text, sizeof(text), "%s does not belong on the output socket", ipc_type_name(msg->type));
	struct ipc_msg answer = {
		.type = IPC_TYPE_ERROR,
		.error = {.code = ERR_UNSUPPORTED, .text = (const u8 *)text, .text_count = (u32)strlen(text)},
	};
	(void)!ipc_send(o->output, from, &answer); /* who does not read it loses nothing */
}

static void on_output(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct output_socket *o = ctx;
	struct client *c;
	(void)ch;

	switch (msg->type) {
	case IPC_TYPE_HELLO:
		return;
	case IPC_TYPE_ATTACH:
		on_attach(o, from, &msg->attach);
		return;
	case IPC_TYPE_ACK:
		on_ack(o, from, &msg->ack);
		return;
	case IPC_TYPE_BYE:
		c = clients_find(&o->clients, msg->bye.client_id);
		if (c && c->peer == from.v)
			on_bye(o, c);
		return;
	default:
		unexpected(o, from, msg);
	}
}

static void on_output_error(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e,
			    const struct err_msg *em)
{
	(void)ctx;
	/* the peer was told already; a gap in what clients send loses acknowledgements at most */
	if (!ipc_channel_may_log(ch))
		return;
	LOG_WARN("OUTPUT_ERROR", "peer=%llu code=%s text=\"%s\"", (unsigned long long)from.v, err_name(e),
		 em->text);
}

/* Nobody speaks on the tap; receiving is how it notices subscribers. */
static void on_tap(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	(void)ctx;
	(void)ch;
	(void)from;
	(void)msg;
}

/* ---------------------------------------------------------------- a turn */

static void chunk_out(struct output_socket *o, struct ipc_chunk *chunk, u64 now_ns)
{
	struct client *c = clients_find(&o->clients, chunk->client_id);
	ASSERT(c && c->state != CLIENT_CLOSED); /* streams give out nothing for others */

	chunk->chunk = c->ring.next;
	struct ipc_msg msg = {.type = IPC_TYPE_CHUNK, .epoch = o->config.epoch, .chunk = *chunk};
	buf_clear(&o->frame);
	ipc_encode(&msg, &o->frame);
	/* what left the streams must not get lost; a restarted detokenizer loses nothing */
	ASSERT(buf_ok(&o->frame));
	o->tokens += chunk->tokens_count;
	(void)!ipc_send_frame(o->tap, (ipc_peer){0}, o->frame.data, o->frame.bytes); /* lossy by design */

	enum err e = client_keep(&o->clients, c, o->frame.data, (u32)o->frame.bytes, now_ns);
	if (e != ERR_OK) {
		client_too_slow(o, c, now_ns);
		return;
	}
	client_pump(o, c, now_ns);
	if (client_unsent(c) >= UNSENT_MAX)
		streams_client_hold(o->config.streams, c->id, true);
}

/* Clients with unsent chunks: another try, and the limit. True when some may give news again. */
static bool waiting_pump(struct output_socket *o, u64 now_ns)
{
	bool released = false;
	o->waiting = false;
	for (u32 i = 0; i < o->clients.used; i++) {
		struct client *c = &o->clients.items[i];
		if (c->state == CLIENT_NONE)
			continue;
		if (c->state == CLIENT_CLOSED) {
			if (closed_tell(o, c))
				clients_remove(&o->clients, c);
			continue;
		}
		bool held = client_unsent(c) >= UNSENT_MAX;
		client_pump(o, c, now_ns);
		if (held && client_unsent(c) < UNSENT_MAX) {
			streams_client_hold(o->config.streams, c->id, false);
			released = true;
		}
		if (c->unsent_bytes + streams_client_bytes(o->config.streams, c->id) >
			    o->clients.config.retention_bytes &&
		    client_unsent(c) > 0)
			client_too_slow(o, c, now_ns);
	}
	return released;
}

static void on_retry(void *ctx, u64 now_ns)
{
	(void)ctx;
	(void)now_ns; /* the turn that follows does it */
}

/* The transport does not say when a full queue has room again, so as long as something waits it is asked. */
static void retry_arm(struct output_socket *o)
{
	if (o->waiting == o->retry_set)
		return;
	if (o->waiting)
		o->retry_set =
			ipc_loop_add_timer(o->config.loop, RETRY_MS, on_retry, o, &o->retry_timer) == ERR_OK;
	else {
		ipc_loop_remove_timer(o->config.loop, o->retry_timer);
		o->retry_set = false;
	}
}

void output_socket_turn(struct output_socket *o, u64 now_ns)
{
	struct ipc_chunk chunk;
	u64 tokens = o->tokens;
	u32 chunks = 0;

	do {
		while (streams_next_chunk(o->config.streams, &chunk)) {
			chunk_out(o, &chunk, now_ns);
			chunks++;
		}
	} while (o->waiting && waiting_pump(o, now_ns));
	retry_arm(o);
	if (chunks > 0)
		trace_add(o->config.trace, TRACE_WRITE, now_ns, clock_now_ns(), chunks,
			  (u32)(o->tokens - tokens));
}

void output_socket_expire(struct output_socket *o, u64 now_ns)
{
	struct client *c;
	u64 id;
	u64 retention_ns = o->clients.config.retention_ns;
	u64 oldest_ns = now_ns > retention_ns ? now_ns - retention_ns : 0;

	while ((c = clients_expire(&o->clients, now_ns))) {
		if (c->state == CLIENT_ABSENT) {
			LOG_WARN("CLIENT_FORGOTTEN", "client=%llu unsent=%u", (unsigned long long)c->id,
				 client_unsent(c));
			streams_client_drop(o->config.streams, c->id);
		}
		clients_remove(&o->clients, c);
	}
	while (streams_client_absent(o->config.streams, oldest_ns, o->clients.config.retention_bytes, &id)) {
		LOG_WARN("CLIENT_NEVER_ATTACHED", "client=%llu", (unsigned long long)id);
		streams_client_drop(o->config.streams, id);
	}
	/* absent clients do not set `waiting`, but what gathers for them has a limit too */
	(void)waiting_pump(o, now_ns);
	retry_arm(o);
}

/* ---------------------------------------------------------------- life */

static enum err channels_open(struct output_socket *o, struct err_msg *em)
{
	const struct output_socket_config *c = &o->config;
	struct ipc_channel_config channel = {
		.name = "output",
		.endpoint = c->output_endpoint,
		.pattern = IPC_ROUTER,
		.bind = true,
		.queue_max = c->queue_max ? c->queue_max : QUEUE_MAX_DEFAULT,
		.epoch = c->epoch,
		.role = IPC_ROLE_DETOK,
		.record_dir = c->record_dir,
		.linger_ms = LINGER_MS,
	};
	enum err e = ipc_channel_open(&o->output, c->ctx, &channel, em);
	if (e != ERR_OK)
		return e;
	channel.name = "tap";
	channel.endpoint = c->tap_endpoint;
	channel.pattern = IPC_PUB;
	channel.queue_max = 0;
	channel.record_dir = NULL;
	channel.linger_ms = 0;
	e = ipc_channel_open(&o->tap, c->ctx, &channel, em);
	if (e == ERR_OK)
		e = ipc_loop_add_channel(c->loop, o->output, on_output, on_output_error, o);
	if (e == ERR_OK)
		e = ipc_loop_add_channel(c->loop, o->tap, on_tap, NULL, o);
	return e;
}

enum err output_socket_open(struct output_socket *o, const struct output_socket_config *config,
			    struct err_msg *em)
{
	*o = (struct output_socket){.config = *config};
	enum err e = clients_init(&o->clients, &config->clients);
	if (e != ERR_OK)
		return err_set(em, e, "no memory for %u output clients", config->clients.clients_max);
	e = channels_open(o, em);
	if (e != ERR_OK)
		output_socket_close(o);
	return e;
}

void output_socket_close(struct output_socket *o)
{
	if (o->retry_set)
		ipc_loop_remove_timer(o->config.loop, o->retry_timer);
	if (o->output)
		ipc_loop_remove_channel(o->config.loop, o->output);
	if (o->tap)
		ipc_loop_remove_channel(o->config.loop, o->tap);
	ipc_channel_close(&o->output);
	ipc_channel_close(&o->tap);
	clients_fini(&o->clients);
	buf_fini(&o->frame);
	*o = (struct output_socket){0};
}
