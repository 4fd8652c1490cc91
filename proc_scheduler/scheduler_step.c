/* Talks to the workers: readiness, epochs, steps, results. Runs in the scheduler's loop. Never blocks: while
 * a STEP cannot be sent to every rank, no further one is planned. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/scheduler_priv.h"

enum { FRUITLESS_RESTARTS_MAX = 5 };

/* ---------------------------------------------------------------- epochs */

static struct sched_config core_config(const struct scheduler *s, const struct ipc_worker_ready *w)
{
	const struct options *o = s->options;
	struct sched_config c = {
		.max_num_seqs = (u32)o->max_num_seqs,
		.max_num_batched_tokens = (u32)o->max_num_batched_tokens,
		.long_prefill_token_threshold = (u32)o->long_prefill_token_threshold,
		.max_queued_requests = (u32)o->max_queued_requests,
		.by_priority = o->scheduling_policy == OPTION_POLICY_PRIORITY,
		.async_depth = s->speculative.tokens ? 0 : (u32)o->async_depth,
		.draft_max = s->speculative.tokens,
		.block_size = (u32)o->block_size,
		.block_count = w->block_count,
		.host_block_count = w->host_block_count,
		.max_model_len = w->max_model_len,
		.vocab_size = w->vocab_size,
		.embedding_width = w->embedding_width,
		.headless = w->headless,
		.prefix_caching = o->enable_prefix_caching,
		.recurrent = w->recurrent,
		.state_slots = w->state_slots,
		.seed = (u64)o->seed,
		.eos_count = w->eos_ids_count,
		.kv_switch_len = w->kv_switch_len,
		.kv_by_prompt = w->kv_by_prompt,
		/* Milliseconds since the host started, times eight: a later life begins above whatever this
		   one gives out. */
		.first_number = clock_now_ns() / 1000000 * 8,
		.sessions = s->sessions,
		.loras = &s->loras,
	};

	if (o->max_model_len && (u32)o->max_model_len < c.max_model_len)
		c.max_model_len = (u32)o->max_model_len;
	memcpy(c.eos_ids, w->eos_ids, w->eos_ids_count * sizeof(u32));
	memcpy(c.secret, s->secret, sizeof(c.secret));
	snprintf(c.no_grammars, sizeof(c.no_grammars), "%.*s", (int)w->no_grammars_count, (const char *)w->no_grammars);
	snprintf(c.no_embeddings, sizeof(c.no_embeddings), "%.*s", (int)w->no_embeddings_count, (const char *)w->no_embeddings);
	return c;
}

static enum err create_core(struct scheduler *s, const struct ipc_worker_ready *w, struct err_msg *em)
{
	scheduler_check_sessions(s, w->vocab_size);
	struct sched_config config = core_config(s, w);
	struct sched_sink sink = streams_sink(&s->streams);
	if (config.recurrent && config.draft_max)
		return err_set(em, ERR_UNSUPPORTED, "--speculative-config: the workers' rows keep a state, which cannot go back where a guess does not come true");
	enum err e = sched_create(&s->sched, &config, &sink, s->stats, em);

	if (e)
		return e;
	s->streams.eos_count = config.eos_count;
	memcpy(s->streams.eos_ids, config.eos_ids, sizeof(config.eos_ids));
	if (s->sched->context_max < config.max_model_len)
		LOG_WARN("CONTEXT_CUT",
			 "max_model_len=%u pool_tokens=%u reason=\"the KV cache holds no longer sequence\"",
			 config.max_model_len, s->sched->context_max);
	for (u32 i = 0; i < CLIENTS_MAX && s->clients.count; i++)
		if (s->clients.slots[i].id)
			scheduler_send_engine(s, s->clients.slots[i].peer);
	return ERR_OK;
}

static void send_frame(struct scheduler *s)
{
	enum err e =
		buf_ok(&s->frame) ? workers_send(&s->workers, s->frame.data, s->frame.bytes) : ERR_NO_MEMORY;

	if (e) {
		workers_lost(&s->workers);
		LOG_WARN("WORKERS_LOST", "reason=\"%s\"", err_text(e));
	}
}

static void send_init(struct scheduler *s)
{
	struct ipc_msg msg = {.type = IPC_TYPE_INIT, .epoch = s->epoch};

	msg.init =
		(struct ipc_init){.block_count = s->sched->kv.count, .max_model_len = s->sched->context_max};
	buf_clear(&s->frame);
	ipc_encode(&msg, &s->frame);
	s->workers.up = true;
	send_frame(s);
}

/* Requests in work rely on what the first group of workers could do. */
static enum err check_same_model(const struct sched *core, const struct ipc_worker_ready *w,
				 struct err_msg *em)
{
	if (w->kv_switch_len != core->config.kv_switch_len ||
	    (w->kv_by_prompt != 0) != core->config.kv_by_prompt)
		return err_set(em, ERR_UNSUPPORTED,
			       "the restarted workers rotate positions otherwise than before; is it another model?");
	if ((w->recurrent != 0) != core->config.recurrent)
		return err_set(em, ERR_UNSUPPORTED, "the restarted workers %s a state of each sequence, and did%s before; is it another model?",
			       w->recurrent ? "keep" : "do not keep", w->recurrent ? " not" : "");
	if (w->vocab_size == core->config.vocab_size && w->max_model_len >= core->context_max)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "the restarted workers have a vocabulary of %u and a context length of %u; before it "
		       "was %u and %u",
		       w->vocab_size, w->max_model_len, core->config.vocab_size, core->context_max);
}

/* All ranks are ready (again): a fresh epoch with empty workers. */
static void begin_epoch(struct scheduler *s)
{
	struct ipc_worker_ready w = workers_common(&s->workers);
	struct err_msg em;
	enum err e = ERR_OK;
	bool first = s->sched == NULL;

	s->epoch++;
	s->streams.epoch = s->epoch;
	ipc_channel_set_epoch(s->step_channel, s->epoch);
	ipc_channel_set_epoch(s->submit_channel, s->epoch);
	ipc_channel_set_epoch(s->stream_channel, s->epoch);
	if (first)
		e = create_core(s, &w, &em);
	else
		e = check_same_model(s->sched, &w, &em);
	if (!e && !first) {
		streams_reopen_begin(&s->streams);
		sched_restart_workers(s->sched, w.block_count, w.host_block_count, w.state_slots, s->streams.now_ns);
		streams_reopen_end(&s->streams);
	}
	if (e) {
		scheduler_fail(s, e, &em);
		return;
	}
	send_init(s);
	LOG_INFO("EPOCH", "epoch=%" PRIu64 " ranks=%u blocks=%u host_blocks=%u states=%u context=%u live=%u", s->epoch,
		 s->workers.count, s->sched->kv.count, s->sched->host.count, s->sched->states.count, s->sched->context_max, sched_live_count(s->sched));
	if (!s->announced)
		boot_ready(s->boot, "block_count=%u host_block_count=%u max_model_len=%u vocab_size=%u", s->sched->kv.count, s->sched->host.count,
			   s->sched->context_max, s->sched->config.vocab_size);
	s->announced = true;
}

/* The workers do not do what was asked of them, or lost something: begin anew with them, but not for ever. */
static void restart_epoch(struct scheduler *s, enum err e, const char *why)
{
	LOG_ERROR("WORKER_STATE_LOST", "epoch=%" PRIu64 " code=%s reason=\"%s\"", s->epoch, err_name(e), why);
	if (++s->fruitless_restarts > FRUITLESS_RESTARTS_MAX) {
		struct err_msg em;
		err_set(&em, e, "%s", why);
		err_prefix(&em, "the workers failed %u times in a row without a result",
			   s->fruitless_restarts);
		scheduler_fail(s, e, &em);
		return;
	}
	begin_epoch(s);
}

/* ---------------------------------------------------------------- messages */

static void on_hello(struct scheduler *s, ipc_peer from, const struct ipc_hello *m)
{
	struct err_msg em;
	bool was_up = s->workers.up;

	if (m->role != IPC_ROLE_WORKER) {
		if (ipc_channel_may_log(s->step_channel))
			LOG_WARN("STRANGER", "channel=step role=%u", m->role);
		return;
	}
	enum err e = workers_greeted(&s->workers, m->rank, from, &em);
	if (e && ipc_channel_may_log(s->step_channel))
		LOG_ERROR("WORKER_REFUSED", "reason=\"%s\"", em.text);
	else if (!e && was_up && !s->workers.up)
		LOG_WARN("WORKERS_LOST", "reason=\"rank %u begins anew\" live=%u", m->rank,
			 sched_live_count(s->sched));
}

static void on_ready(struct scheduler *s, ipc_peer from, const struct ipc_worker_ready *m)
{
	struct err_msg em;

	enum err e = workers_ready(&s->workers, from, m, &em);
	if (e == ERR_UNSUPPORTED) /* it would offer the same again */
		scheduler_fail(s, e, &em);
	else if (e && ipc_channel_may_log(s->step_channel))
		LOG_ERROR("WORKER_REFUSED", "reason=\"%s\"", em.text);
	if (e)
		return;
	if (workers_all_ready(&s->workers))
		begin_epoch(s);
}

static void on_result(struct scheduler *s, ipc_peer from, const struct ipc_msg *msg)
{
	struct err_msg em;
	u64 begin = s->streams.now_ns;

	if (!s->workers.up || msg->epoch != s->epoch || from.v != s->workers.ranks[0].peer.v)
		return;
	u32 in_flight = s->sched->flight_count;
	streams_keep_result(&s->streams, &msg->result);
	enum err e = sched_result(s->sched, &msg->result, begin, &em);
	if (e) {
		restart_epoch(s, e, em.text);
		return;
	}
	if (s->sched->flight_count < in_flight) {
		s->fruitless_restarts = 0;
		stats_progress(s->stats, begin, !sched_is_idle(s->sched));
	}
	if (s->trace)
		trace_add(s->trace, TRACE_RESULT, begin, clock_now_ns(), msg->result.step,
			  msg->result.seq_count);
}

static void on_error(struct scheduler *s, const struct ipc_error *m)
{
	struct err_msg em;

	err_set(&em, ERR_DIVERGED, "%.*s", (int)m->text_count, (const char *)m->text);
	if (m->req_id)
		sched_fail(s->sched, m->req_id, em.text, s->streams.now_ns);
	else
		restart_epoch(s, ERR_DIVERGED, em.text);
}

void scheduler_on_worker(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct scheduler *s = ctx;

	s->streams.now_ns = clock_now_ns();
	switch (msg->type) {
	case IPC_TYPE_HELLO:
		on_hello(s, from, &msg->hello);
		break;
	case IPC_TYPE_WORKER_READY:
		on_ready(s, from, &msg->worker_ready);
		break;
	case IPC_TYPE_RESULT:
		on_result(s, from, msg);
		break;
	case IPC_TYPE_ERROR:
		if (s->workers.up && msg->epoch == s->epoch)
			on_error(s, &msg->error);
		break;
	default:
		if (ipc_channel_may_log(ch))
			LOG_WARN("UNEXPECTED_MESSAGE", "channel=step type=%s", ipc_type_name(msg->type));
	}
}

/* ---------------------------------------------------------------- steps */

static bool plan_one(struct scheduler *s)
{
	u64 begin = clock_now_ns();

	s->streams.now_ns = begin;
	const struct ipc_step *step = sched_plan(s->sched, begin);
	if (!step)
		return false;
	u64 planned = clock_now_ns();
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .epoch = s->epoch, .step = *step};
	buf_clear(&s->frame);
	ipc_encode(&msg, &s->frame);
	u64 encoded = clock_now_ns();
	stats_observe(s->stats, STATS_PLAN, (double)(encoded - begin) / 1e9);
	stats_add(s->stats, STATS_DIFF_BYTES, s->frame.bytes);
	u64 number = step->step;
	u32 tokens = s->sched->diff.tokens_run;
	send_frame(s);
	if (s->trace) {
		trace_add(s->trace, TRACE_PLAN, begin, planned, number, tokens);
		trace_add(s->trace, TRACE_ENCODE, planned, encoded, number, (u32)s->frame.bytes);
		trace_add(s->trace, TRACE_SEND, encoded, clock_now_ns(), number, s->workers.count);
	}
	return true;
}

void scheduler_plan(struct scheduler *s)
{
	while (s->sched && s->workers.up && s->workers.outbox.count == 0 && plan_one(s))
		;
}
