/* The harness of the tests of the scheduler's I/O shell. */
#include "tests/unit/proc_scheduler/shell.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "proc_scheduler/scheduler.h"

const struct batch_limits shell_limits = {256, 2048, 256, 16, SHELL_BLOCKS, SHELL_VOCAB, 0};

enum { WAIT_MS = 5000 };

static void *run(void *arg)
{
	struct shell *s = arg;
	struct scheduler *scheduler;

	s->run_result = scheduler_create(&scheduler, &s->options, &s->boot, &s->run_text);
	if (!s->run_result)
		s->run_result = scheduler_run(scheduler, &s->run_text);
	scheduler_destroy(&scheduler);
	close(s->boot.fd);
	return NULL;
}

static void bind_detok(struct shell *s)
{
	char endpoint[128];
	struct err_msg em;

	cr_assert_eq(ipc_context_create(&s->detok_ipc, &em), ERR_OK);
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), s->run_dir, "streams", &em), ERR_OK);
	struct ipc_channel_config c = {.name = "streams",
				       .endpoint = endpoint,
				       .pattern = IPC_ROUTER,
				       .bind = true,
				       .role = IPC_ROLE_DETOK};
	cr_assert_eq(ipc_channel_open(&s->detok, s->detok_ipc, &c, &em), ERR_OK, "%s", em.text);
}

struct shell *shell_start(const char *const *extra)
{
	struct shell *s = calloc(1, sizeof(*s));
	struct err_msg em;
	int fds[2];

	cr_assert(s);
	strcpy(s->run_dir, "/tmp/tercet-sched-XXXXXX");
	cr_assert(mkdtemp(s->run_dir));
	cr_assert_eq(options_init(&s->options), ERR_OK);
	cr_assert_eq(options_set(&s->options, "run_dir", s->run_dir, "test", &em), ERR_OK);
	cr_assert_eq(options_set(&s->options, "model", "tiny", "test", &em), ERR_OK);
	for (; extra && *extra; extra++) {
		char name[64];
		const char *value = strchr(*extra, '=') + 1;
		snprintf(name, sizeof(name), "%.*s", (int)(value - 1 - *extra), *extra);
		cr_assert_eq(options_set(&s->options, name, value, "test", &em), ERR_OK, "%s", em.text);
	}
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	s->boot.fd = fds[0];
	s->supervisor_fd = fds[1];
	cr_assert_eq(ipc_context_create(&s->ipc, &em), ERR_OK);
	bind_detok(s);
	cr_assert_eq(pthread_create(&s->thread, NULL, run, s), 0);
	return s;
}

void shell_command(struct shell *s, const char *line)
{
	cr_assert_eq(send(s->supervisor_fd, line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
}

void shell_join(struct shell *s)
{
	if (!s->joined)
		cr_assert_eq(pthread_join(s->thread, NULL), 0);
	s->joined = true;
}

enum err shell_stop(struct shell **out)
{
	struct shell *s = *out;

	(void)!send(s->supervisor_fd, "stop\n", 5, MSG_NOSIGNAL); /* it may have ended by itself */
	shell_join(s);
	enum err e = s->run_result;
	close(s->supervisor_fd);
	ipc_channel_close(&s->detok);
	ipc_context_destroy(&s->detok_ipc);
	ipc_context_destroy(&s->ipc);
	options_fini(&s->options);
	char command[128];
	snprintf(command, sizeof(command), "rm -rf '%s'", s->run_dir);
	cr_assert_eq(system(command), 0);
	free(s);
	*out = NULL;
	return e;
}

const char *shell_line(struct shell *s, char *out, size_t bytes)
{
	struct pollfd p = {.fd = s->supervisor_fd, .events = POLLIN};
	size_t n = 0;

	while (n + 1 < bytes && poll(&p, 1, WAIT_MS) == 1 && recv(s->supervisor_fd, out + n, 1, 0) == 1 &&
	       out[n] != '\n')
		n++;
	out[n] = '\0';
	return out;
}

void shell_connect(struct shell *s, struct peer *p, const char *name, enum ipc_role role, u32 rank,
		   u64 client_id)
{
	char endpoint[128];
	struct err_msg em;

	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), s->run_dir, name, &em), ERR_OK);
	struct ipc_channel_config c = {.name = name,
				       .endpoint = endpoint,
				       .pattern = IPC_DEALER,
				       .role = role,
				       .rank = rank,
				       .client_id = client_id,
				       .linger_ms = 200};
	*p = (struct peer){0};
	cr_assert_eq(ipc_channel_open(&p->channel, s->ipc, &c, &em), ERR_OK, "%s", em.text);
	shell_expect(p, IPC_TYPE_HELLO);
}

void shell_disconnect(struct peer *p)
{
	ipc_channel_close(&p->channel);
}

void shell_send(struct peer *p, u32 type, struct ipc_msg msg)
{
	msg.type = type;
	ipc_channel_set_epoch(p->channel, msg.epoch);
	cr_assert_eq(ipc_send(p->channel, (ipc_peer){0}, &msg), ERR_OK);
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

bool shell_comes(struct peer *p, u32 type, u32 ms)
{
	u64 end = clock_now_ns() + ms * 1000000ull;
	struct err_msg em;
	ipc_peer from;

	do {
		enum err e = ipc_recv(p->channel, &from, &p->msg, &em);
		if (e == ERR_OK && p->msg.type == type)
			return true;
		if (e == ERR_AGAIN)
			nap();
	} while (clock_now_ns() < end);
	return false;
}

const struct ipc_msg *shell_expect(struct peer *p, u32 type)
{
	cr_assert(shell_comes(p, type, WAIT_MS), "no %s came", ipc_type_name(type));
	return &p->msg;
}

const struct ipc_msg *shell_expect_stream(struct shell *s, struct peer *p, u32 type)
{
	u64 end = clock_now_ns() + WAIT_MS * 1000000ull;
	struct err_msg em;
	ipc_peer from;

	do {
		enum err e = ipc_recv(s->detok, &from, &p->msg, &em);
		if (e == ERR_OK)
			s->detok_peer = from;
		if (e == ERR_OK && p->msg.type == type)
			return &p->msg;
		if (e == ERR_AGAIN)
			nap();
	} while (clock_now_ns() < end);
	cr_assert(false, "no %s came to the detokenizer", ipc_type_name(type));
	return NULL;
}

void shell_restart_detok(struct shell *s)
{
	ipc_channel_close(&s->detok);
	ipc_context_destroy(&s->detok_ipc);
	bind_detok(s);
}

void shell_worker(struct shell *s, struct peer *p, u32 rank, u32 blocks)
{
	static const u32 eos[1] = {0};
	struct ipc_msg m = {0};

	shell_connect(s, p, "step", IPC_ROLE_WORKER, rank, 0);
	m.worker_ready = (struct ipc_worker_ready){.rank = rank,
						   .block_count = blocks,
						   .max_model_len = 256,
						   .vocab_size = SHELL_VOCAB,
						   .eos_ids = eos,
						   .eos_ids_count = 1};
	shell_send(p, IPC_TYPE_WORKER_READY, m);
}

void shell_client(struct shell *s, struct peer *p, u64 client_id)
{
	shell_connect(s, p, "submit", IPC_ROLE_CLIENT, 0, client_id);
	shell_expect(p, IPC_TYPE_ENGINE);
}

void shell_submit(struct peer *p, u64 client_id, u64 req_id, u32 count, u32 max_tokens)
{
	u32 tokens[256];
	struct sampling_params params;
	struct ipc_msg m = {0};

	cr_assert_leq(count, COUNT_OF(tokens));
	for (u32 i = 0; i < count; i++)
		tokens[i] = i % (SHELL_VOCAB - 1) + 1;
	sampling_params_default(&params);
	params.max_tokens = max_tokens;
	params.flags |= SAMPLING_IGNORE_EOS;
	m.submit = (struct ipc_submit){
		.client_id = client_id, .req_id = req_id, .tokens = tokens, .tokens_count = count};
#define SET_PARAM(A, type, name, def, min, max) m.submit.name = params.name;
	SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
	shell_send(p, IPC_TYPE_SUBMIT, m);
}

void shell_serve_step(struct peer *worker, struct fake_worker *w, struct fake_result *r)
{
	struct err_msg em;
	const struct ipc_msg *m = shell_expect(worker, IPC_TYPE_STEP);
	struct ipc_msg reply = {.epoch = m->epoch};

	cr_assert_eq(fake_worker_step(w, &m->step, r, &em), ERR_OK, "%s", em.text);
	reply.result = fake_result_message(r);
	shell_send(worker, IPC_TYPE_RESULT, reply);
}
