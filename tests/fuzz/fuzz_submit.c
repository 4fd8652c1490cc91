/* Messages of clients, detokenizer and worker against the scheduling core. An input is a run of frames, each
 * behind its length in two bytes. Results are given the step and the positions that are due, so that requests
 * go on. Whatever was taken must end. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "ipc/ipc.h"
#include "proc_scheduler/sched.h"

struct counts {
	u32 accepted, ended;
};

static void on_open(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens)
{
	(void)ctx;
	/* What is told to the detokenizer has to keep to the schema's limits. */
	if (x->stop_count > STOP_IDS_MAX || x->stop_string_count > STOP_STRINGS_MAX || tokens[0] >= 300 ||
	    q->known > 64)
		abort();
}

static void on_close(void *ctx, const struct seq *q, enum finish_reason reason, const char *text)
{
	(void)ctx;
	if (!q->opened || q->session || !text || reason >= FINISH_REASON_COUNT)
		abort();
}

static void on_result(void *ctx, const struct ipc_result *m)
{
	(void)ctx;
	(void)m;
}

static void on_kept(void *ctx, u64 seq, u32 output_count)
{
	(void)ctx;
	(void)seq;
	(void)output_count;
}

static void on_end(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   enum finish_reason reason, const char *text)
{
	(void)q;
	(void)x;
	(void)tokens;
	(void)reason;
	(void)text;
	((struct counts *)ctx)->ended++;
}

/* The oldest step's result, with the tokens of `m`. */
static void result(struct sched *s, const struct ipc_result *m)
{
	u64 seq[8];
	u32 position[8], token[8], n = 0;
	struct err_msg em;

	for (u32 i = 0; i < s->running.count && s->flight_count && n < s->flights[0].tokens_due; i++) {
		const struct seq *q = &s->seqs.slots[s->running.slots[i]];
		if (!q->in_flight)
			continue;
		seq[n] = q->id;
		position[n] = seq_output_count(q);
		token[n] = n < m->token_count ? m->token[n] : n;
		n++;
	}
	struct ipc_result r = {.step = s->flight_count ? s->flights[0].step : m->step,
			       .seq = seq,
			       .seq_count = n,
			       .position = position,
			       .position_count = n,
			       .token = token,
			       .token_count = n};
	if (sched_result(s, &r, 3, &em))
		sched_restart_workers(s, s->kv.capacity, s->host.capacity, 0, 3);
}

static void handle(struct sched *s, struct counts *counts, const struct ipc_msg *msg)
{
	struct sched_admission admission;
	struct err_msg em;

	switch (msg->type) {
	case IPC_TYPE_SUBMIT:
		counts->accepted += sched_submit(s, &msg->submit, 1, &admission, &em) == ERR_OK;
		break;
	case IPC_TYPE_SESSION: {
		struct ipc_session_state state;
		if (msg->session.action ? sched_session_end(s, &msg->session, 3, &state, &em)
					: sched_session_get(s, &msg->session, 3, &state, &em))
			break; /* there is none */
		break;
	}
	case IPC_TYPE_ABORT:
		sched_abort(s, msg->abort.client_id, msg->abort.req_id, 2);
		break;
	case IPC_TYPE_STOPPED:
		sched_stopped(s, msg->stopped.seq, msg->stopped.output_count, 2);
		break;
	case IPC_TYPE_BYE:
		sched_abort_client(s, msg->bye.client_id, 2);
		break;
	case IPC_TYPE_RESULT:
		if (sched_result(s, &msg->result, 3, &em))
			sched_restart_workers(s, s->kv.capacity, s->host.capacity, 0, 3);
		result(s, &msg->result);
		break;
	default:
		break;
	}
	sched_plan(s, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct sched_config config = {.max_num_seqs = 8,
					    .max_num_batched_tokens = 24,
					    .max_queued_requests = 8,
					    .async_depth = 1,
					    .block_size = 4,
					    .block_count = 20,
					    .max_model_len = 64,
					    .vocab_size = 300,
					    .prefix_caching = true,
					    .eos_count = 1,
					    .secret = {1}};
	const struct sessions_config kept = {.session_max = 3, .token_max = 1024};
	struct counts counts = {0};
	struct sched_sink sink = {&counts, on_open, on_close, on_end, on_result, on_kept};
	struct ipc_scratch scratch = {0};
	struct stats_page *stats;
	struct sched *s;
	struct err_msg em;

	if (sessions_create(&config.sessions, &kept, &em) || stats_create(&stats, NULL, "fuzz", &em) || sched_create(&s, &config, &sink, stats, &em))
		abort();
	while (bytes > 2) {
		struct ipc_msg msg;
		size_t frame = (size_t)data[0] | (size_t)data[1] << 8;
		data += 2;
		bytes -= 2;
		frame = frame < bytes ? frame : bytes;
		if (ipc_decode((const char *)data, frame, &scratch, &msg, &em) == ERR_OK)
			handle(s, &counts, &msg);
		data += frame;
		bytes -= frame;
	}
	sched_fail_all(s, "the end", 5);
	if (sched_live_count(s) || counts.accepted != counts.ended || s->kv.free_count != s->kv.count)
		abort();
	ipc_scratch_fini(&scratch);
	sched_destroy(&s);
	sessions_destroy(&config.sessions);
	stats_destroy(&stats);
	return 0;
}
