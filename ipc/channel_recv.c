/* Receiving half of a channel: takes frames, checks greetings and sequence numbers, sees connections break. Runs in
 * the thread that owns the channel. Whatever arrives is outside data: every path ends in a message, an error for the
 * caller or a told peer, never in a crash or in silence. */
#include "ipc/channel_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <zmq.h>

#include "common/assert.h"
#include "common/log.h"

/* Frames of told peers that one ipc_recv skips before it reports them. */
enum { SKIP_MAX = 1024 };

static ipc_peer handle_of(const struct ipc_channel *ch, const struct ipc_peer_state *peer)
{
	return ch->peers ? ipc_peers_handle(ch->peers, peer) : (ipc_peer){0};
}

/* ---------------------------------------------------------------- connections */

static void begin_new_life(struct ipc_channel *ch)
{
	ch->single = (struct ipc_peer_state){.hello_due = true};
}

void ipc_channel_read_monitor(struct ipc_channel *ch)
{
	u8 event[16];
	while (zmq_recv(ch->monitor, event, sizeof(event), ZMQ_DONTWAIT) >= 0) {
		char address[256];
		zmq_recv(ch->monitor, address, sizeof(address), ZMQ_DONTWAIT); /* its second part */
		u16 kind;
		memcpy(&kind, event, sizeof(kind));
		if (kind == ZMQ_EVENT_DISCONNECTED && ch->handshakes)
			ch->broken = true;
		/* The HELLO queued at opening serves the first connection. */
		if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED && ch->handshakes++ > 0)
			begin_new_life(ch);
	}
}

static enum err idle(struct ipc_channel *ch, struct err_msg *em)
{
	if (ch->monitor)
		ipc_channel_read_monitor(ch);
	if (ch->pattern == IPC_PUB)
		ipc_channel_welcome_subscribers(ch);
	if (ch->pattern != IPC_ROUTER)
		(void)!ipc_channel_send_hello(ch, &ch->single);
	if (!ch->broken)
		return ERR_AGAIN;
	ch->broken = false;
	return err_set(em, ERR_GONE, "channel %s: the connection broke", ch->name);
}

/* ---------------------------------------------------------------- telling peers */

/* Only a ROUTER can answer. What cannot be sent is not kept: the peer asked for nothing. */
static void tell(struct ipc_channel *ch, struct ipc_peer_state *peer, enum err code, const char *text)
{
	if (ch->pattern != IPC_ROUTER)
		return;
	struct ipc_msg msg = {
		.type = IPC_TYPE_ERROR,
		.epoch = ch->epoch,
		.error = {.code = code, .text = (const u8 *)text, .text_count = (u32)strlen(text)},
	};
	if (msg.error.text_count > IPC_ERROR_TEXT_MAX)
		msg.error.text_count = IPC_ERROR_TEXT_MAX;
	buf_clear(&ch->greeting);
	ipc_encode(&msg, &ch->greeting);
	if (buf_ok(&ch->greeting))
		(void)!ipc_channel_send_numbered(ch, peer, ch->greeting.data, ch->greeting.bytes);
}

static enum err reject(struct ipc_channel *ch, struct ipc_peer_state *peer, enum err e, struct err_msg *em)
{
	err_prefix(em, "channel %s", ch->name);
	tell(ch, peer, e, em->text);
	return e;
}

/* ---------------------------------------------------------------- greeting */

static enum err check_hello(const struct ipc_channel *ch, const struct ipc_envelope *env, struct err_msg *em)
{
	u64 hash = ipc_schema_hash();
	if (env->version != IPC_PROTOCOL_VERSION || env->schema_hash != hash)
		return err_set(em, ERR_VERSION,
			       "the peer speaks protocol version %u with schema 0x%016" PRIx64 ", %s speaks version "
			       "%d with schema 0x%016" PRIx64 ": both must come from the same release",
			       env->version, env->schema_hash, ch->process, IPC_PROTOCOL_VERSION, hash);
	if (env->sequence != 1 && ch->pattern != IPC_SUB)
		return err_set(em, ERR_SEQUENCE, "HELLO has sequence %" PRIu64 ", it begins a life with 1",
			       env->sequence);
	return ERR_OK;
}

static enum err accept_hello(struct ipc_channel *ch, struct ipc_peer_state *peer, const struct ipc_envelope *env,
			     const char *frame, size_t bytes, struct ipc_msg *out, struct err_msg *em)
{
	if (ch->pattern == IPC_SUB && peer->greeted) {
		peer->received = env->sequence;
		return ERR_AGAIN; /* meant for a subscriber that came after us */
	}
	enum err e = check_hello(ch, env, em);
	if (e == ERR_OK)
		e = ipc_decode(frame, bytes, &ch->scratch, out, em);
	/* A PULL cannot tell its peers apart: a stranger's HELLO must not silence the one that is known. */
	if (e != ERR_OK && ch->pattern == IPC_PULL)
		return reject(ch, peer, e, em);
	peer->greeted = false;
	if (e != ERR_OK) {
		peer->told = true;
		return reject(ch, peer, e, em);
	}
	peer->greeted = true;
	peer->member = out->hello.role != IPC_ROLE_CLIENT && out->hello.role != IPC_ROLE_GATEWAY;
	peer->told = false;
	peer->received = env->sequence;
	if (ch->pattern == IPC_ROUTER) {
		peer->sent = 0;
		peer->hello_due = true;
		(void)!ipc_channel_send_hello(ch, peer);
	}
	return ERR_OK;
}

/* Something else than HELLO of a peer that has not greeted. */
static enum err refuse_stranger(struct ipc_channel *ch, struct ipc_peer_state *peer, const struct ipc_envelope *env,
				struct err_msg *em)
{
	if (ch->pattern == IPC_SUB || peer->told)
		return ERR_AGAIN;
	peer->told = true;
	err_set(em, ERR_SEQUENCE, "%s number %" PRIu64 " came before a HELLO; every life of a peer begins with one",
		ipc_type_name(env->type), env->sequence);
	return reject(ch, peer, ERR_SEQUENCE, em);
}

/* ---------------------------------------------------------------- messages */

static enum err check_sequence(struct ipc_channel *ch, struct ipc_peer_state *peer, struct ipc_msg *msg,
			       struct err_msg *em)
{
	u64 expected = peer->received + 1;
	if (msg->sequence >= expected)
		peer->received = msg->sequence;
	if (msg->sequence == expected || ch->pattern == IPC_SUB)
		return ERR_OK;
	if (msg->sequence < expected)
		return err_set(em, ERR_SEQUENCE, "channel %s: %s number %" PRIu64 " came again", ch->name,
			       ipc_type_name(msg->type), msg->sequence);
	ch->held = true;
	ch->held_from = handle_of(ch, peer);
	ch->held_msg = *msg;
	return err_set(em, ERR_SEQUENCE,
		       "channel %s: %" PRIu64 " messages before %s number %" PRIu64 " are missing", ch->name,
		       msg->sequence - expected, ipc_type_name(msg->type), msg->sequence);
}

/* An ERROR may come before a HELLO: it is how a greeting is refused. That what was still queued for an earlier life
 * of the connection is refused too is no news to anybody. */
static enum err accept_early_error(struct ipc_channel *ch, const char *frame, size_t bytes, struct ipc_msg *out,
				   struct err_msg *em)
{
	enum err e = ipc_decode(frame, bytes, &ch->scratch, out, em);
	if (e == ERR_OK && out->error.code == ERR_SEQUENCE && ch->handshakes > 1)
		return ERR_AGAIN;
	return e;
}

/* The other side has so many peers that it forgot this one: what was sent since is lost, so the greeting begins anew, and
 * the HELLO that answers it says so to whoever uses the channel. */
static bool is_forgotten(const struct ipc_channel *ch, const struct ipc_msg *msg)
{
	return ch->pattern == IPC_DEALER && msg->type == IPC_TYPE_ERROR && msg->error.code == ERR_SEQUENCE &&
	       msg->error.req_id == 0;
}

static enum err greet_again(struct ipc_channel *ch)
{
	LOG_WARN("GREETS_AGAIN", "channel=%s", ch->name);
	begin_new_life(ch);
	(void)!ipc_channel_send_hello(ch, &ch->single); /* still due when it did not go out */
	return ERR_AGAIN;
}

/* ERR_AGAIN: the frame is of no interest. */
static enum err accept_frame(struct ipc_channel *ch, struct ipc_peer_state *peer, const char *frame, size_t bytes,
			     struct ipc_msg *out, struct err_msg *em)
{
	struct ipc_envelope env;
	enum err e = ipc_peek(frame, bytes, &env, em);
	if (e != ERR_OK)
		return peer->told && !peer->greeted ? ERR_AGAIN : reject(ch, peer, e, em);
	if (env.type == IPC_TYPE_HELLO)
		return accept_hello(ch, peer, &env, frame, bytes, out, em);
	if (!peer->greeted && env.type == IPC_TYPE_ERROR && ch->pattern != IPC_ROUTER)
		return accept_early_error(ch, frame, bytes, out, em);
	if (!peer->greeted)
		return refuse_stranger(ch, peer, &env, em);
	e = ipc_decode(frame, bytes, &ch->scratch, out, em);
	if (e != ERR_OK) {
		if (env.sequence > peer->received && ch->pattern != IPC_PULL)
			peer->received = env.sequence; /* it is not missing, it is bad */
		return reject(ch, peer, e, em);
	}
	return is_forgotten(ch, out) ? greet_again(ch) : check_sequence(ch, peer, out, em);
}

/* ---------------------------------------------------------------- frames */

static int take_part(struct ipc_channel *ch, zmq_msg_t *part)
{
	int rc;
	do
		rc = zmq_msg_recv(part, ch->socket, ZMQ_DONTWAIT);
	while (rc < 0 && errno == EINTR);
	return rc;
}

/* Discards what is left of a multipart message. */
static void skip_parts(struct ipc_channel *ch, zmq_msg_t *part)
{
	while (zmq_msg_more(part) && take_part(ch, part) >= 0)
		;
}

/* One message off the socket: its sender, and its only part in `frame`. */
static enum err take_frame(struct ipc_channel *ch, struct ipc_peer_state **peer, zmq_msg_t *frame, struct err_msg *em)
{
	*peer = &ch->single;
	if (take_part(ch, frame) < 0)
		return errno == EAGAIN ? ERR_AGAIN
				       : err_set(em, ERR_IO, "channel %s: %s", ch->name, zmq_strerror(errno));
	if (ch->pattern == IPC_ROUTER) {
		*peer = ipc_peers_take(ch->peers, zmq_msg_data(frame), zmq_msg_size(frame));
		if (!zmq_msg_more(frame) || take_part(ch, frame) < 0) {
			err_set(em, ERR_FORMAT, "a message without content");
			return reject(ch, *peer, ERR_FORMAT, em);
		}
	}
	if (!zmq_msg_more(frame))
		return ERR_OK;
	skip_parts(ch, frame);
	err_set(em, ERR_FORMAT, "a message of several ZeroMQ parts; send one part, without an empty delimiter");
	return reject(ch, *peer, ERR_FORMAT, em);
}

static enum err receive(struct ipc_channel *ch, ipc_peer *from, struct ipc_msg *out, struct err_msg *em)
{
	zmq_msg_t frame;
	zmq_msg_init(&frame);
	enum err e = ERR_AGAIN;
	u32 skipped = 0;
	while (skipped < SKIP_MAX) {
		struct ipc_peer_state *peer;
		e = take_frame(ch, &peer, &frame, em);
		if (e == ERR_AGAIN) {
			e = idle(ch, em);
			break;
		}
		*from = handle_of(ch, peer);
		if (e == ERR_OK) {
			ipc_recorder_add(ch->recorder, false, from->v, zmq_msg_data(&frame), zmq_msg_size(&frame));
			e = accept_frame(ch, peer, zmq_msg_data(&frame), zmq_msg_size(&frame), out, em);
		}
		if (e != ERR_AGAIN)
			break;
		skipped++;
	}
	zmq_msg_close(&frame);
	if (skipped == SKIP_MAX)
		return err_set(em, ERR_DENIED, "channel %s: skipped %d frames of peers without a valid HELLO",
			       ch->name, SKIP_MAX);
	return e;
}

enum err ipc_recv(struct ipc_channel *ch, ipc_peer *from, struct ipc_msg *out, struct err_msg *em)
{
	struct err_msg unread; /* what peers are told is written even when the caller does not care */
	*from = (ipc_peer){0};
	if (ch->held) {
		ch->held = false;
		*from = ch->held_from;
		*out = ch->held_msg;
		return ERR_OK;
	}
	if (ch->pattern == IPC_PUSH || ch->pattern == IPC_PUB)
		return idle(ch, em); /* nobody speaks to them */
	return receive(ch, from, out, em ? em : &unread);
}

bool ipc_channel_readable(struct ipc_channel *ch)
{
	u32 events = 0;
	size_t size = sizeof(events);
	if (ch->held)
		return true;
	return zmq_getsockopt(ch->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}
