/* Channels between nodes: keys of CURVE, and the gate that lets only members in. The gate is a thread of the context
 * that answers ZeroMQ's question (https://rfc.zeromq.org/spec/27) whether a key may connect; ZeroMQ asks it from its own
 * threads, so it must answer without the loop of the process. It knows one key and nothing else. */
#include "ipc/channel_priv.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <zmq.h>

#include "common/assert.h"
#include "common/log.h"

enum { HEARTBEAT_MS = 1000, HEARTBEAT_TIMEOUT_MS = 3000, CONNECT_TIMEOUT_MS = 3000, GATE_PARTS = 7, GATE_PART_BYTES = 256 };

_Static_assert(sizeof(((struct ipc_curve *)0)->node_secret) == crypto_scalarmult_SCALARBYTES, "CURVE's keys are X25519's");

void ipc_curve_init(struct ipc_curve *out, const struct cluster_secret *secret)
{
	int failed = sodium_init() < 0;

	ASSERT(!failed);
	cluster_secret_derive(secret, "scheduler", out->scheduler_secret);
	cluster_secret_derive(secret, "node", out->node_secret);
	failed = crypto_scalarmult_base(out->scheduler_public, out->scheduler_secret) |
		 crypto_scalarmult_base(out->node_public, out->node_secret);
	ASSERT(!failed);
}

enum err ipc_tcp_endpoint(char *out, size_t bytes, const char *host, u32 port, struct err_msg *em)
{
	bool ipv6 = strchr(host, ':') != NULL;
	int n = snprintf(out, bytes, "tcp://%s%s%s:%u", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);

	return n > 0 && (size_t)n < bytes ? ERR_OK : err_set(em, ERR_TOO_LONG, "the address %.100s is too long", host);
}

static bool set_int(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool set_key(void *socket, int option, const u8 key[32])
{
	return zmq_setsockopt(socket, option, key, 32) == 0;
}

bool ipc_curve_use(void *socket, const struct ipc_curve *curve, const char *endpoint, bool server)
{
	static const char domain[] = "tercet";
	bool ok = set_int(socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS) &&
		  set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS) &&
		  set_int(socket, ZMQ_HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS) &&
		  set_int(socket, ZMQ_CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS) &&
		  set_int(socket, ZMQ_IPV6, strchr(endpoint, '[') != NULL || strchr(endpoint, '*') != NULL || !server);

	if (server)
		return ok && set_int(socket, ZMQ_CURVE_SERVER, 1) &&
		       set_key(socket, ZMQ_CURVE_SECRETKEY, curve->scheduler_secret) &&
		       zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, sizeof(domain) - 1) == 0;
	return ok && set_key(socket, ZMQ_CURVE_SERVERKEY, curve->scheduler_public) &&
	       set_key(socket, ZMQ_CURVE_PUBLICKEY, curve->node_public) &&
	       set_key(socket, ZMQ_CURVE_SECRETKEY, curve->node_secret);
}

/* ---------------------------------------------------------------- the gate */

struct part {
	char data[GATE_PART_BYTES];
	size_t bytes;
};

/* version, request id, domain, address, identity, mechanism, credentials. False: the context ends, or no question. */
static bool take_question(void *socket, struct part *parts, bool *whole)
{
	int more = 1;
	size_t size = sizeof(more);
	u32 count = 0;

	for (*whole = true; more; count++) {
		struct part *p = &parts[count < GATE_PARTS ? count : GATE_PARTS - 1];
		int n;
		do
			n = zmq_recv(socket, p->data, sizeof(p->data), 0);
		while (n < 0 && errno == EINTR);
		if (n < 0)
			return false;
		*whole &= (size_t)n <= sizeof(p->data) && count < GATE_PARTS;
		p->bytes = (size_t)n < sizeof(p->data) ? (size_t)n : sizeof(p->data);
		zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
	}
	*whole &= count == GATE_PARTS;
	return true;
}

static bool answer(void *socket, const struct part *id, bool welcome)
{
	const struct {
		const void *data;
		size_t bytes;
	} parts[] = {{"1.0", 3}, {id->data, id->bytes}, {welcome ? "200" : "400", 3}, {"", 0}, {"", 0}, {"", 0}};
	bool ok = true;

	for (size_t i = 0; i < COUNT_OF(parts); i++)
		ok &= zmq_send(socket, parts[i].data, parts[i].bytes, i + 1 < COUNT_OF(parts) ? ZMQ_SNDMORE : 0) >= 0;
	return ok;
}

static void *keep_gate(void *arg)
{
	struct ipc_context *ctx = arg;
	struct part parts[GATE_PARTS] = {{.bytes = 0}};
	bool whole;

	while (take_question(ctx->gate, parts, &whole)) {
		const struct part *mechanism = &parts[5], *key = &parts[6];
		bool welcome = whole && mechanism->bytes == 5 && memcmp(mechanism->data, "CURVE", 5) == 0 &&
			       key->bytes == sizeof(ctx->gate_key) &&
			       sodium_memcmp(key->data, ctx->gate_key, sizeof(ctx->gate_key)) == 0;
		if (!welcome)
			LOG_WARN("STRANGER_REFUSED", "address=%.*s reason=\"it does not have the cluster's secret\"",
				 (int)parts[3].bytes, parts[3].data);
		if (!answer(ctx->gate, &parts[1], welcome))
			break;
	}
	zmq_close(ctx->gate);
	return NULL;
}

enum err ipc_gate_start(struct ipc_context *ctx, const u8 key[32], struct err_msg *em)
{
	if (ctx->gate_runs) {
		ASSERT(memcmp(ctx->gate_key, key, sizeof(ctx->gate_key)) == 0); /* one engine, one secret */
		return ERR_OK;
	}
	memcpy(ctx->gate_key, key, sizeof(ctx->gate_key));
	ctx->gate = zmq_socket(ctx->zmq, ZMQ_REP);
	if (ctx->gate == NULL || !set_int(ctx->gate, ZMQ_LINGER, 0) || zmq_bind(ctx->gate, "inproc://zeromq.zap.01")) {
		err_set(em, ERR_IO, "cannot watch over connections: %s", zmq_strerror(errno));
		goto close_gate;
	}
	int failed = pthread_create(&ctx->gate_thread, NULL, keep_gate, ctx);
	if (failed == 0) {
		ctx->gate_runs = true;
		return ERR_OK;
	}
	err_set(em, ERR_IO, "cannot start a thread: %s", strerror(failed));
close_gate:
	if (ctx->gate != NULL)
		zmq_close(ctx->gate);
	ctx->gate = NULL;
	return ERR_IO;
}

void ipc_gate_stop(struct ipc_context *ctx)
{
	if (ctx->gate_runs)
		pthread_join(ctx->gate_thread, NULL);
	ctx->gate_runs = false;
}
