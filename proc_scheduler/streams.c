/* Owns what the detokenizer has to be told; runs in the scheduler's I/O shell. Never blocks; never lets an
 * end get lost: while the detokenizer is away its ends are kept, and ends of the last seconds are told to a
 * new one, since the old one may have died with them. */
#include "proc_scheduler/streams.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"

enum { OUTBOX_ITEMS_MAX = 65536, PROMPT_TAIL_MAX = 64 };
static const u64 OUTBOX_BYTES_MAX = 256u << 20;
static const u64 ENDS_BYTES_MAX = 16u << 20;
static const u64 ENDS_AGE_NS_MAX = 30u * 1000000000ull;

enum err streams_init(struct streams *st, struct ipc_channel *channel)
{
	memset(st, 0, sizeof(*st));
	st->ends = calloc(STREAM_ENDS_MAX, sizeof(*st->ends));
	if (!st->ends)
		return ERR_NO_MEMORY;
	enum err e = outbox_init(&st->outbox, channel, OUTBOX_ITEMS_MAX, OUTBOX_BYTES_MAX);
	if (!e)
		e = kept_results_init(&st->kept);
	if (e)
		streams_fini(st);
	return e;
}

void streams_fini(struct streams *st)
{
	for (u32 i = 0; st->ends && i < STREAM_ENDS_MAX; i++) {
		buf_fini(&st->ends[i].open);
		buf_fini(&st->ends[i].close);
	}
	free(st->ends);
	kept_results_fini(&st->kept);
	buf_fini(&st->outputs);
	ipc_scratch_fini(&st->decoded);
	outbox_fini(&st->outbox);
	memset(st, 0, sizeof(*st));
}

/* ---------------------------------------------------------------- messages */

static struct ipc_msg open_message(const struct streams *st, const struct seq *q, const struct seq_extra *x,
				   const u32 *tokens)
{
	u32 tail = q->prompt_count < PROMPT_TAIL_MAX ? q->prompt_count : PROMPT_TAIL_MAX;
	struct ipc_msg msg = {.type = IPC_TYPE_OPEN, .epoch = st->epoch};

	msg.open = (struct ipc_open){
		.seq = q->id,
		.client_id = q->client_id,
		.req_id = q->req_id,
		.prompt_count = q->prompt_count,
		.cached_count = q->cached_count,
		.output_max = q->token_end - q->prompt_count,
		.output_min = seq_output_min(q, x),
		.flags = q->params.flags,
		.held_count = q->held_count,
		.confirm = q->session && !(q->session_flags & SESSION_END),
		.prompt_tail = tokens + q->prompt_count - tail,
		.prompt_tail_count = tail,
		.output_tokens = tokens + q->prompt_count,
		.output_tokens_count = seq_final_count(q),
		.eos_ids = st->eos_ids,
		.eos_ids_count = st->eos_count,
		.stop_ids = x->stop_ids,
		.stop_ids_count = x->stop_count,
		.stop_string_bytes = x->stop_string_bytes,
		.stop_string_bytes_count = x->stop_string_count,
		.stop_strings = x->stop_strings,
		.stop_strings_count = x->stop_string_bytes_sum,
	};
	return msg;
}

static struct ipc_msg close_message(const struct streams *st, const struct seq *q, enum finish_reason reason,
				    const char *text)
{
	struct ipc_msg msg = {.type = IPC_TYPE_CLOSE, .epoch = st->epoch};

	msg.close = (struct ipc_close){
		.seq = q->id,
		.reason = reason,
		.output_count = seq_kept_count(q),
		.text = (const u8 *)text,
		.text_count = (u32)strnlen(text, IPC_ERROR_TEXT_MAX),
	};
	return msg;
}

/* What is not sent while the detokenizer is away is told when it is back: live streams by
 * sched_reopen_streams, ends by streams_resend_ends. */
static void send(struct streams *st, const struct ipc_msg *msg)
{
	if (st->was_greeted && !st->connected)
		return;
	enum err e = outbox_send(&st->outbox, (ipc_peer){0}, msg);
	if (e)
		LOG_ERROR("STREAM_MESSAGE_LOST", "type=%s reason=\"%s\"", ipc_type_name(msg->type),
			  err_text(e));
}

static void send_frame(struct streams *st, char *data, size_t bytes)
{
	if (st->was_greeted && !st->connected)
		return;
	enum err e = outbox_send_frame(&st->outbox, (ipc_peer){0}, data, bytes);
	if (e)
		LOG_ERROR("STREAM_MESSAGE_LOST", "type=RESULT reason=\"%s\"", err_text(e));
}

/* ---------------------------------------------------------------- ends */

static struct stream_end *end_at(struct streams *st, u32 i)
{
	return &st->ends[(st->end_first + i) % STREAM_ENDS_MAX];
}

static void forget_oldest(struct streams *st)
{
	struct stream_end *end = end_at(st, 0);

	st->end_bytes -= end->open.bytes + end->close.bytes;
	buf_fini(&end->open);
	buf_fini(&end->close);
	st->end_first = (st->end_first + 1) % STREAM_ENDS_MAX;
	st->end_count--;
}

static void keep_end(struct streams *st, const struct ipc_msg *open, const struct ipc_msg *close)
{
	while (st->end_count && (st->end_count == STREAM_ENDS_MAX || st->end_bytes > ENDS_BYTES_MAX ||
				 st->now_ns - end_at(st, 0)->time_ns > ENDS_AGE_NS_MAX))
		forget_oldest(st);
	struct stream_end *end = end_at(st, st->end_count++);
	end->time_ns = st->now_ns;
	ipc_encode(open, &end->open);
	ipc_encode(close, &end->close);
	st->end_bytes += end->open.bytes + end->close.bytes;
}

/* Outputs of a sequence of which only log-probabilities of the prompt are kept: put by until those were sent. They are what
 * a RESULT would say, so that all is decoded as it was at first. */
static void keep_outputs(struct streams *st, const struct ipc_open *open)
{
	u64 seqs[IPC_ROWS_MAX];
	u32 positions[IPC_ROWS_MAX];

	for (u32 at = 0, n; at < open->output_tokens_count; at += n) {
		n = open->output_tokens_count - at < IPC_ROWS_MAX ? open->output_tokens_count - at : IPC_ROWS_MAX;
		for (u32 i = 0; i < n; i++) {
			seqs[i] = open->seq;
			positions[i] = at + i;
		}
		struct ipc_msg msg = {.type = IPC_TYPE_RESULT, .epoch = st->epoch};
		msg.result = (struct ipc_result){.seq = seqs,
						 .seq_count = n,
						 .position = positions,
						 .position_count = n,
						 .token = open->output_tokens + at,
						 .token_count = n};
		size_t begin = st->outputs.bytes;
		u32 bytes = 0;
		buf_append(&st->outputs, &bytes, sizeof(bytes));
		ipc_encode(&msg, &st->outputs);
		if (!buf_ok(&st->outputs))
			return;
		bytes = (u32)(st->outputs.bytes - begin - sizeof(bytes));
		memcpy(st->outputs.data + begin, &bytes, sizeof(bytes));
	}
}

/* How many outputs the OPEN carries. Those from the first kept one on follow with their log-probabilities. If only those of
 * its prompt are kept, all outputs follow behind them: the OPEN's might hold a stop string, or be all there are, and the
 * stream would be over before they come. */
static u32 outputs_of_open(struct streams *st, const struct ipc_open *open)
{
	u32 count = kept_results_open(&st->kept, open->seq, open->output_tokens_count);

	if (count == 0 || !kept_results_only_prompt(&st->kept, open->seq))
		return count;
	keep_outputs(st, open);
	return 0;
}

static enum err send_open_of_end(struct streams *st, struct stream_end *end)
{
	struct ipc_msg msg;

	if (st->kept.index_count == 0)
		return outbox_send_frame(&st->outbox, (ipc_peer){0}, end->open.data, end->open.bytes);
	enum err e = ipc_decode(end->open.data, end->open.bytes, &st->decoded, &msg, NULL);
	if (e)
		return e;
	msg.open.output_tokens_count = outputs_of_open(st, &msg.open);
	return outbox_send(&st->outbox, (ipc_peer){0}, &msg);
}

void streams_resend_ends(struct streams *st, u64 now_ns)
{
	for (u32 i = 0; i < st->end_count; i++) {
		struct stream_end *end = end_at(st, i);
		if (now_ns - end->time_ns > ENDS_AGE_NS_MAX || !buf_ok(&end->open) || !buf_ok(&end->close))
			continue;
		enum err e = send_open_of_end(st, end);
		if (!e)
			e = outbox_send_frame(&st->outbox, (ipc_peer){0}, end->close.data, end->close.bytes);
		if (e)
			LOG_ERROR("STREAM_END_LOST", "reason=\"%s\"", err_text(e));
	}
}

/* ---------------------------------------------------------------- log-probabilities */

void streams_keep_result(struct streams *st, const struct ipc_result *m)
{
	kept_results_add(&st->kept, m, st->now_ns);
}

void streams_expire(struct streams *st, u64 now_ns)
{
	kept_results_expire(&st->kept, now_ns);
}

void streams_reopen_begin(struct streams *st)
{
	kept_results_begin(&st->kept);
}

static void send_result(void *ctx, const struct ipc_result *m)
{
	struct streams *st = ctx;
	struct ipc_msg msg = {.type = IPC_TYPE_RESULT, .epoch = st->epoch, .result = *m};

	send(st, &msg);
}

static void send_outputs(struct streams *st)
{
	u32 bytes;

	if (!buf_ok(&st->outputs))
		LOG_ERROR("STREAM_MESSAGE_LOST", "type=RESULT reason=\"%s\"", err_text(ERR_NO_MEMORY));
	for (size_t at = 0; buf_ok(&st->outputs) && at < st->outputs.bytes; at += bytes) {
		memcpy(&bytes, st->outputs.data + at, sizeof(bytes));
		at += sizeof(bytes);
		send_frame(st, st->outputs.data + at, bytes);
	}
	buf_fini(&st->outputs);
}

void streams_reopen_end(struct streams *st)
{
	kept_results_give(&st->kept, send_result, st);
	send_outputs(st);
	kept_results_end(&st->kept);
}

/* ---------------------------------------------------------------- sink */

static void on_open(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens)
{
	struct streams *st = ctx;
	struct ipc_msg msg = open_message(st, q, x, tokens);

	msg.open.output_tokens_count = outputs_of_open(st, &msg.open);
	send(st, &msg);
}

static void on_close(void *ctx, const struct seq *q, enum finish_reason reason, const char *text)
{
	struct streams *st = ctx;
	struct ipc_msg msg = close_message(st, q, reason, text);

	send(st, &msg);
}

static void on_end(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   enum finish_reason reason, const char *text)
{
	struct streams *st = ctx;
	struct ipc_msg open = open_message(st, q, x, tokens);
	struct ipc_msg close = close_message(st, q, reason, text);

	keep_end(st, &open, &close);
}

/* Told to who holds an end until the scheduler has the same; nobody else knows of that sequence any more. */
static void on_kept(void *ctx, u64 seq, u32 output_count)
{
	struct streams *st = ctx;
	struct ipc_msg msg = {.type = IPC_TYPE_CLOSE, .epoch = st->epoch};

	msg.close = (struct ipc_close){.seq = seq, .output_count = output_count};
	send(st, &msg);
}

/* An answer of a beam search, which ends the stream. The worker told the detokenizer of the prompt on another socket, which may
 * be read later, so that rows of it go first here, too; the detokenizer passes over what it has. */
static void on_result(void *ctx, const struct ipc_result *m)
{
	struct streams *st = ctx;

	if (m->seq_count && m->position[0] == 0)
		kept_results_give_prompt(&st->kept, m->seq[0], send_result, ctx);
	send_result(ctx, m);
	streams_keep_result(ctx, m);
}

struct sched_sink streams_sink(struct streams *st)
{
	return (struct sched_sink){st, on_open, on_close, on_end, on_result, on_kept};
}

/* ---------------------------------------------------------------- connection */

void streams_lost(struct streams *st)
{
	st->connected = false;
	st->was_greeted = true; /* what it was told may be lost even if it died before its HELLO came */
}

bool streams_greeted(struct streams *st)
{
	bool again = st->was_greeted;

	st->connected = st->was_greeted = true;
	if (again) /* it was meant for one that is no more */
		outbox_clear(&st->outbox);
	return again;
}

bool streams_have_room(const struct streams *st)
{
	return st->outbox.count < OUTBOX_ITEMS_MAX / 4 && st->outbox.bytes < OUTBOX_BYTES_MAX / 4;
}
