/* What a streamed token costs in the gateway: a fake engine sends one token to every stream at each tick,
 *clients on loopback read the events. Three processes: engine (this one), gateway, clients. Prints one JSON
 *line.
 *
 *	bench_gateway MODEL_DIR [--streams 256] [--ticks 200] [--rate 50]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "ipc/ipc.h"
#include "proc_gateway/gateway.h"

enum { STREAMS_MAX = 1024 };

struct bench {
	const char *model;
	u32 streams, ticks, rate;
	char run_dir[64];
	int port_pipe[2], result_pipe[2];
	/* the engine's side */
	struct ipc_channel *submit, *output;
	ipc_peer submit_peer, output_peer;
	u64 client_id, chunk;
	u64 req_ids[STREAMS_MAX];
	u32 count;
};

struct result {
	u64 events, bytes, errors, end_ns;
};

_Noreturn static void die(const char *what, const struct err_msg *em)
{
	fprintf(stderr, "bench_gateway: %s: %s\n", what, em ? em->text : strerror(errno));
	exit(1);
}

/* ---------------------------------------------------------------- gateway */

_Noreturn static void run_gateway(struct bench *b)
{
	struct options o;
	struct gateway g;
	struct err_msg em = {""};
	if (options_init(&o) || options_set(&o, "model", b->model, "bench", &em) ||
	    options_set(&o, "run_dir", b->run_dir, "bench", &em) ||
	    options_set(&o, "port", "0", "bench", &em))
		die("options", &em);
	if (gateway_init(&g, &o, 0, &em))
		die("gateway", &em);
	while (!g.ready)
		event_base_loop(g.base, EVLOOP_ONCE);
	u16 port = http_server_port(g.http);
	if (write(b->port_pipe[1], &port, sizeof(port)) != sizeof(port))
		die("pipe", NULL);
	int status = gateway_run(&g);
	gateway_fini(&g);
	options_fini(&o);
	exit(status);
}

/* ---------------------------------------------------------------- clients */

static int connect_stream(u16 port, const struct bench *b)
{
	char request[512], body[256];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
		die("connect", NULL);
	snprintf(body, sizeof(body), "{\"prompt\": [1, 2, 3], \"max_tokens\": %u, \"stream\": true}",
		 b->ticks);
	snprintf(request, sizeof(request),
		 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
		 "%zu\r\n\r\n%s",
		 strlen(body), body);
	if (send(fd, request, strlen(request), 0) < 0)
		die("send", NULL);
	return fd;
}

static void count_events(struct result *r, const char *text, ssize_t bytes)
{
	r->bytes += (u64)bytes;
	for (const char *p = text; (p = memmem(p, (size_t)(text + bytes - p), "data: ", 6)); p += 6)
		r->events++;
}

_Noreturn static void run_clients(struct bench *b)
{
	struct result r = {0};
	u16 port;
	char text[65536];
	if (read(b->port_pipe[0], &port, sizeof(port)) != sizeof(port))
		exit(1);
	int epoll = epoll_create1(0);
	for (u32 i = 0; i < b->streams; i++) {
		struct epoll_event e = {.events = EPOLLIN};
		e.data.fd = connect_stream(port, b);
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, e.data.fd, &e) != 0)
			die("epoll", NULL);
	}
	for (u32 open = b->streams; open > 0;) {
		struct epoll_event ready[256];
		int n = epoll_wait(epoll, ready, 256, 20000);
		if (n <= 0) {
			r.errors += open;
			break;
		}
		for (int i = 0; i < n; i++) {
			ssize_t got = recv(ready[i].data.fd, text, sizeof(text), 0);
			if (got > 0) {
				count_events(&r, text, got);
				continue;
			}
			r.errors += got < 0;
			close(ready[i].data.fd);
			open--;
		}
	}
	r.end_ns = clock_now_ns();
	exit(write(b->result_pipe[1], &r, sizeof(r)) != sizeof(r));
}

/* ---------------------------------------------------------------- engine */

static void send_now(struct ipc_channel *ch, ipc_peer to, const struct ipc_msg *m)
{
	enum err e;
	while ((e = ipc_send(ch, to, m)) == ERR_BUSY)
		usleep(200);
	if (e)
		die("send to the gateway", &(struct err_msg){"failed"});
}

static struct ipc_channel *open_channel(struct bench *b, struct ipc_context *ctx, const char *name)
{
	char endpoint[128];
	struct err_msg em;
	struct ipc_channel *ch;
	struct ipc_channel_config config = {.name = name,
					    .endpoint = endpoint,
					    .pattern = IPC_ROUTER,
					    .bind = true,
					    .epoch = 1,
					    .role = IPC_ROLE_SCHEDULER};
	if (ipc_endpoint(endpoint, sizeof(endpoint), b->run_dir, name, &em) ||
	    ipc_channel_open(&ch, ctx, &config, &em))
		die(name, &em);
	return ch;
}

static void on_message(struct bench *b, ipc_peer from, const struct ipc_msg *m)
{
	struct ipc_msg reply = {.type = IPC_TYPE_ENGINE};
	if (m->type == IPC_TYPE_HELLO && b->submit_peer.v == 0) {
		b->submit_peer = from;
		reply.engine = (struct ipc_engine){.max_model_len = 4096,
						   .vocab_size = 4096,
						   .block_size = 16,
						   .block_count = 100000,
						   .max_num_seqs = STREAMS_MAX,
						   .client_lease_s = 60};
		send_now(b->submit, from, &reply);
	} else if (m->type == IPC_TYPE_SUBMIT && b->count < STREAMS_MAX) {
		b->req_ids[b->count++] = m->submit.req_id;
		reply.type = IPC_TYPE_ACCEPTED;
		reply.accepted = (struct ipc_accepted){.req_id = m->submit.req_id, .seq = b->count};
		send_now(b->submit, from, &reply);
	} else if (m->type == IPC_TYPE_ATTACH) {
		b->output_peer = from;
		b->client_id = m->attach.client_id;
		reply.type = IPC_TYPE_ATTACHED;
		reply.attached = (struct ipc_attached){.client_id = b->client_id, .next_chunk = 1};
		send_now(b->output, from, &reply);
	}
}

static void receive(struct bench *b)
{
	struct ipc_msg m;
	struct err_msg em;
	ipc_peer from;
	while (ipc_recv(b->submit, &from, &m, &em) == ERR_OK)
		on_message(b, from, &m);
	while (ipc_recv(b->output, &from, &m, &em) == ERR_OK) {
		if (m.type == IPC_TYPE_ATTACH)
			on_message(b, from, &m);
	}
}

/* One token of three bytes for every stream; in the last tick they end. */
static void send_tick(struct bench *b, u32 tick)
{
	static u32 first[STREAMS_MAX], ones[STREAMS_MAX], threes[STREAMS_MAX], zeros[STREAMS_MAX],
		tokens[STREAMS_MAX];
	static u8 finish[STREAMS_MAX], zero_bytes[STREAMS_MAX], text[3 * STREAMS_MAX];
	struct ipc_msg m = {.type = IPC_TYPE_CHUNK};
	struct ipc_chunk *c = &m.chunk;
	u32 n = b->count;
	for (u32 i = 0; i < n; i++) {
		first[i] = tick;
		ones[i] = 1;
		threes[i] = 3;
		tokens[i] = 100 + i;
		finish[i] = tick + 1 == b->ticks ? 2 : 0;
		memcpy(text + (size_t)i * 3, " ab", 3);
	}
	*c = (struct ipc_chunk){.client_id = b->client_id,
				.chunk = ++b->chunk,
				.req_id = b->req_ids,
				.req_id_count = n,
				.first_token = first,
				.first_token_count = n,
				.token_count = ones,
				.token_count_count = n,
				.text_bytes = threes,
				.text_bytes_count = n,
				.prompt_count = threes,
				.prompt_count_count = n,
				.cached_count = zeros,
				.cached_count_count = n,
				.finish = finish,
				.finish_count = n,
				.stop_kind = zero_bytes,
				.stop_kind_count = n,
				.stop_value = zeros,
				.stop_value_count = n,
				.tokens = tokens,
				.tokens_count = n,
				.text = text,
				.text_count = n * 3};
	send_now(b->output, b->output_peer, &m);
}

static u64 run_engine(struct bench *b)
{
	u64 deadline_ns = clock_now_ns() + 20000000000ull;
	while (b->count < b->streams || b->output_peer.v == 0) {
		receive(b);
		usleep(500);
		if (clock_now_ns() > deadline_ns)
			die("the streams did not begin", &(struct err_msg){"time is up"});
	}
	u64 begin_ns = clock_now_ns();
	for (u32 tick = 0; tick < b->ticks; tick++) {
		u64 due_ns = begin_ns + (b->rate ? (u64)tick * 1000000000 / b->rate : 0);
		u64 now_ns = clock_now_ns();
		if (due_ns > now_ns)
			usleep((useconds_t)((due_ns - now_ns) / 1000));
		send_tick(b, tick);
		receive(b);
	}
	return begin_ns;
}

/* ---------------------------------------------------------------- the whole */

static void read_args(struct bench *b, int argc, char **argv)
{
	*b = (struct bench){.streams = 256, .ticks = 200, .rate = 50};
	for (int i = 1; i < argc; i++) {
		u32 *number = strcmp(argv[i], "--streams") == 0 ? &b->streams
			      : strcmp(argv[i], "--ticks") == 0 ? &b->ticks
			      : strcmp(argv[i], "--rate") == 0	? &b->rate
								: NULL;
		if (number && i + 1 < argc)
			*number = (u32)strtoul(argv[++i], NULL, 10);
		else
			b->model = argv[i];
	}
	if (!b->model || b->streams == 0 || b->streams > STREAMS_MAX || b->ticks == 0 || b->ticks > 4000) {
		fprintf(stderr, "usage: bench_gateway MODEL_DIR [--streams 1..1024] [--ticks 1..4000] "
				"[--rate TICKS_PER_S]\n");
		exit(2);
	}
}

static double seconds(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

int main(int argc, char **argv)
{
	static struct bench b;
	struct ipc_context *ctx;
	struct err_msg em;
	struct result r = {0};
	struct rusage usage;
	int status = 0;
	char command[128];
	log_init("bench", LOG_LEVEL_ERROR, false);
	read_args(&b, argc, argv);
	snprintf(b.run_dir, sizeof(b.run_dir), "/tmp/tercet-bench-XXXXXX");
	if (!mkdtemp(b.run_dir) || pipe(b.port_pipe) != 0 || pipe(b.result_pipe) != 0)
		die("run directory", NULL);
	pid_t gateway = fork();
	if (gateway == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_gateway(&b);
	}
	pid_t clients = fork();
	if (clients == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_clients(&b);
	}
	if (ipc_context_create(&ctx, &em))
		die("context", &em);
	b.submit = open_channel(&b, ctx, "submit");
	b.output = open_channel(&b, ctx, "output");
	u64 begin_ns = run_engine(&b);
	if (read(b.result_pipe[0], &r, sizeof(r)) != sizeof(r))
		r.errors++;
	kill(gateway, SIGTERM);
	wait4(gateway, &status, 0, &usage);
	waitpid(clients, NULL, 0);
	double cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime),
	       wall = (double)(r.end_ns - begin_ns) / 1e9;
	u64 expected = (u64)b.streams * (b.ticks + 1);
	printf("{\"bench\":\"gateway\",\"streams\":%u,\"ticks\":%u,\"rate\":%u,\"events\":%llu,\"lost\":%lld,"
	       "\"errors\":%llu,"
	       "\"events_per_s\":%.0f,\"cpu_us_per_event\":%.2f,\"user_us_per_event\":%.2f,\"rss_mb\":%.1f}"
	       "\n",
	       b.streams, b.ticks, b.rate, (unsigned long long)r.events, (long long)(expected - r.events),
	       (unsigned long long)r.errors, (double)r.events / wall, cpu * 1e6 / (double)r.events,
	       seconds(usage.ru_utime) * 1e6 / (double)r.events, (double)usage.ru_maxrss / 1024);
	ipc_channel_close(&b.submit);
	ipc_channel_close(&b.output);
	ipc_context_destroy(&ctx);
	snprintf(command, sizeof(command), "rm -rf %s", b.run_dir);
	return system(command) != 0 || r.errors != 0 || r.events != expected || status != 0;
}
