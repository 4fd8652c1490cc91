/* An encrypted connection between workers of two nodes. Runs in the worker, while it joins in the main thread, later
 * sending in the thread that computes and receiving in the bridge's. Trusts nothing that comes before it is decrypted,
 * and waits for nobody longer than it was told. */
#include "proc_worker/node_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"

enum { POLL_SLICE_MS = 100, BACKLOG = 128, HELLO_BYTES = 8 + crypto_box_PUBLICKEYBYTES };

static const char magic[8] = {'T', 'E', 'R', 'C', 'E', 'T', 'L', '1'};
static const u64 ms_ns = 1000000;

_Static_assert(NODE_LINK_TAG == crypto_aead_chacha20poly1305_ietf_ABYTES, "the tag is that of RFC 8439");
_Static_assert(sizeof(((struct node_link *)0)->send_key) == crypto_aead_chacha20poly1305_ietf_KEYBYTES, "and the key");

/* ---------------------------------------------------------------- bytes */

/* Waits for the event until `end_ns`. False: in vain. */
static bool wait_for(int fd, short events, u64 end_ns)
{
	struct pollfd p = {.fd = fd, .events = events};

	for (;;) {
		u64 now = clock_now_ns();
		if (now >= end_ns)
			return false;
		int n = poll(&p, 1, (int)((end_ns - now + ms_ns - 1) / ms_ns));
		if (n > 0)
			return true;
		if (n < 0 && errno != EINTR)
			return false;
	}
}

static bool would_block(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static enum err send_all(int fd, const u8 *data, size_t bytes, const _Atomic u32 *stop)
{
	while (bytes != 0) {
		ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			data += n;
			bytes -= (size_t)n;
			continue;
		}
		if (n < 0 && !would_block())
			return ERR_GONE;
		if (stop != NULL && atomic_load_explicit(stop, memory_order_relaxed))
			return ERR_ABORTED;
		(void)wait_for(fd, POLLOUT, clock_now_ns() + POLL_SLICE_MS * ms_ns);
	}
	return ERR_OK;
}

/* Exactly `bytes`, while the keys are agreed on. */
static enum err receive_all(int fd, u8 *data, size_t bytes, u64 end_ns)
{
	while (bytes != 0) {
		if (!wait_for(fd, POLLIN, end_ns))
			return ERR_TIMEOUT;
		ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && !would_block()))
			return ERR_GONE;
		if (n > 0) {
			data += n;
			bytes -= (size_t)n;
		}
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- keys */

static bool make_keys(struct node_link *l, bool initiator, const u8 *secret, const u8 *own_secret, const u8 *own_public,
		      const u8 *other_public)
{
	struct {
		u8 point[crypto_scalarmult_BYTES];
		u8 initiator[crypto_box_PUBLICKEYBYTES], responder[crypto_box_PUBLICKEYBYTES];
	} input;
	u8 keys[64];
	bool ok = crypto_scalarmult(input.point, own_secret, other_public) == 0;

	memcpy(input.initiator, initiator ? own_public : other_public, sizeof(input.initiator));
	memcpy(input.responder, initiator ? other_public : own_public, sizeof(input.responder));
	crypto_generichash(keys, sizeof(keys), (const u8 *)&input, sizeof(input), secret, CLUSTER_KEY_BYTES);
	memcpy(l->send_key, keys + (initiator ? 0 : 32), 32);
	memcpy(l->receive_key, keys + (initiator ? 32 : 0), 32);
	sodium_memzero(keys, sizeof(keys));
	sodium_memzero(&input, sizeof(input));
	return ok;
}

static enum err agree(struct node_link *l, bool initiator, const u8 *secret, u64 end_ns, struct err_msg *em)
{
	u8 own_secret[crypto_box_SECRETKEYBYTES], hello[HELLO_BYTES], other[HELLO_BYTES];

	memcpy(hello, magic, sizeof(magic));
	crypto_box_keypair(hello + sizeof(magic), own_secret);
	enum err e = send_all(l->fd, hello, sizeof(hello), NULL);
	if (!e)
		e = receive_all(l->fd, other, sizeof(other), end_ns);
	if (e)
		err_set(em, e, "the connection %s before the keys were agreed on", e == ERR_TIMEOUT ? "fell silent" : "broke");
	else if (memcmp(other, magic, sizeof(magic)) != 0)
		e = err_set(em, ERR_FORMAT, "whoever is there is no worker of this release");
	else if (!make_keys(l, initiator, secret, own_secret, hello + sizeof(magic), other + sizeof(magic)))
		e = err_set(em, ERR_FORMAT, "the other side offers a key that is none");
	sodium_memzero(own_secret, sizeof(own_secret));
	return e;
}

enum err node_link_open(struct node_link *l, int fd, bool initiator, const u8 secret[CLUSTER_KEY_BYTES], u32 timeout_ms,
			struct err_msg *em)
{
	int yes = 1;

	*l = (struct node_link){.fd = fd};
	int failed = sodium_init() < 0;
	ASSERT(!failed);
	l->out = malloc(NODE_LINK_WIRE_MAX);
	l->in = malloc(NODE_LINK_WIRE_MAX);
	enum err e = l->out == NULL || l->in == NULL ? err_set(em, ERR_NO_MEMORY, "out of memory") : ERR_OK;
	if (!e && (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) < 0))
		e = err_set(em, ERR_IO, "cannot set up a connection: %s", strerror(errno));
	if (!e)
		e = agree(l, initiator, secret, clock_now_ns() + timeout_ms * ms_ns, em);
	if (e)
		node_link_close(l);
	return e;
}

void node_link_close(struct node_link *l)
{
	if (l->fd >= 0)
		close(l->fd);
	free(l->out);
	free(l->in);
	sodium_memzero(l, sizeof(*l));
	l->fd = -1;
}

/* ---------------------------------------------------------------- frames */

static void make_nonce(u8 nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES], u64 number)
{
	memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
	memcpy(nonce, &number, sizeof(number));
}

enum err node_link_send(struct node_link *l, const void *head, size_t head_bytes, const void *data, size_t bytes,
			const _Atomic u32 *stop)
{
	u8 nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
	u32 wire = (u32)(head_bytes + bytes + NODE_LINK_TAG);
	u8 *content = l->out + sizeof(wire);
	unsigned long long sealed;

	ASSERT(head_bytes + bytes <= NODE_LINK_FRAME_MAX);
	make_nonce(nonce, l->sent++);
	memcpy(l->out, &wire, sizeof(wire));
	if (head_bytes != 0)
		memcpy(content, head, head_bytes);
	if (bytes != 0)
		memcpy(content + head_bytes, data, bytes);
	crypto_aead_chacha20poly1305_ietf_encrypt(content, &sealed, content, head_bytes + bytes, l->out, sizeof(wire), NULL,
						  nonce, l->send_key);
	return send_all(l->fd, l->out, sizeof(wire) + wire, stop);
}

/* The bytes that a whole frame has, as far as is known: its length comes first. */
static enum err wanted_bytes(const struct node_link *l, size_t *out)
{
	u32 wire;

	*out = sizeof(wire);
	if (l->in_bytes < sizeof(wire))
		return ERR_OK;
	memcpy(&wire, l->in, sizeof(wire));
	if (wire < NODE_LINK_TAG || wire > NODE_LINK_FRAME_MAX + NODE_LINK_TAG)
		return l->received == 0 ? ERR_DENIED : ERR_FORMAT;
	*out += wire;
	return ERR_OK;
}

static enum err open_frame(struct node_link *l, void *out, size_t *bytes)
{
	u8 nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
	unsigned long long opened;

	make_nonce(nonce, l->received++);
	if (crypto_aead_chacha20poly1305_ietf_decrypt(out, &opened, NULL, l->in + 4, l->in_bytes - 4, l->in, 4, nonce,
						      l->receive_key) != 0)
		return ERR_DENIED;
	*bytes = (size_t)opened;
	l->in_bytes = 0;
	return ERR_OK;
}

enum err node_link_receive(struct node_link *l, void *out, size_t *bytes)
{
	size_t wanted;

	for (;;) {
		enum err e = wanted_bytes(l, &wanted);
		if (e)
			return e;
		if (l->in_bytes > 4 && l->in_bytes == wanted)
			return open_frame(l, out, bytes);
		ssize_t n = recv(l->fd, l->in + l->in_bytes, wanted - l->in_bytes, MSG_DONTWAIT);
		if (n == 0)
			return ERR_GONE;
		if (n < 0)
			return would_block() ? ERR_AGAIN : ERR_GONE;
		l->in_bytes += (size_t)n;
	}
}

enum err node_link_wait(struct node_link *l, void *out, size_t *bytes, u32 timeout_ms)
{
	u64 end = clock_now_ns() + timeout_ms * ms_ns;
	enum err e;

	while ((e = node_link_receive(l, out, bytes)) == ERR_AGAIN)
		if (!wait_for(l->fd, POLLIN, end))
			return ERR_TIMEOUT;
	return e;
}

/* ---------------------------------------------------------------- sockets */

int node_link_listen(const struct sockaddr *address, socklen_t bytes)
{
	int yes = 1;
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 && bind(fd, address, bytes) == 0 &&
	    listen(fd, BACKLOG) == 0)
		return fd;
	int reason = errno;
	close(fd);
	errno = reason;
	return -1;
}

static int try_connect(const struct addrinfo *a, u64 end_ns)
{
	int error = 0;
	socklen_t size = sizeof(error);
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
		error = errno;
		if (error == EINPROGRESS && !wait_for(fd, POLLOUT, end_ns))
			error = ETIMEDOUT;
		else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
			error = errno;
	}
	if (error == 0)
		return fd;
	close(fd);
	errno = error;
	return -1;
}

enum err node_link_connect(int *fd, const char *host, u32 port, u32 timeout_ms, struct err_msg *em)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
	u64 end = clock_now_ns() + timeout_ms * ms_ns;
	char service[16];

	*fd = -1;
	snprintf(service, sizeof(service), "%u", port);
	int failed = getaddrinfo(host, service, &hints, &list);
	if (failed != 0)
		return err_set(em, ERR_NOT_FOUND, "the address %s: %s", host, gai_strerror(failed));
	for (const struct addrinfo *a = list; *fd < 0 && a != NULL; a = a->ai_next)
		*fd = try_connect(a, end);
	int reason = errno;
	freeaddrinfo(list);
	if (*fd >= 0)
		return ERR_OK;
	return err_set(em, reason == ETIMEDOUT ? ERR_TIMEOUT : ERR_GONE, "%s port %u: %s", host, port, strerror(reason));
}
