/* What a worker does with INIT and STEP, and what it sends. Runs in the loop of worker.c. Never drops a result: while a
 * peer's queue is full it waits, since computing ahead of a peer that cannot keep up is of no use to anybody. */
#include "proc_worker/worker_priv.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

enum { RETRY_US = 200 };

/* ---------------------------------------------------------------- sending */

/* Sends the encoded frame, waiting for as long as the peer's queue is full. */
static void send_frame(struct worker *w, struct ipc_channel *ch, const char *name)
{
	struct timespec pause = {.tv_nsec = RETRY_US * 1000L};
	bool waited = false;
	enum err e;

	while ((e = ipc_send_frame(ch, (ipc_peer){0}, w->frame.data, w->frame.bytes)) == ERR_BUSY &&
	       !w->stopping) {
		if (!waited) {
			LOG_WARN("BACK_PRESSURE", "channel=%s", name);
			stats_idle(w->stats); /* the peer is stuck, not this process */
		}
		waited = true;
		if (w->runner->collectives)
			collectives_beat(w->runner->collectives); /* nor is it to those that wait for it */
		nanosleep(&pause, NULL);
		worker_on_command(w);
	}
	if (e && e != ERR_BUSY) {
		struct err_msg em;
		err_set(&em, e, "channel %s: cannot send a result: %s", name, err_text(e));
		worker_fail(w, e, &em);
	}
}

static void send_message(struct worker *w, const struct ipc_msg *msg)
{
	buf_clear(&w->frame);
	ipc_encode(msg, &w->frame);
	if (!buf_ok(&w->frame)) {
		struct err_msg em;
		err_set(&em, ERR_NO_MEMORY, "out of memory for a message");
		worker_fail(w, ERR_NO_MEMORY, &em);
		return;
	}
	send_frame(w, w->step_channel, "step");
}

void worker_send_ready(struct worker *w)
{
	const struct runner *r = w->runner;
	struct ipc_msg msg = {.type = IPC_TYPE_WORKER_READY, .epoch = w->epoch};
	const char *problem = r->constraints ? constraints_problem(r->constraints) : "";
	const char *no_embeddings = r->model.no_embeddings;

	msg.worker_ready = (struct ipc_worker_ready){.rank = w->rank,
						     .block_count = r->block_count,
						     .host_block_count = r->host_block_count,
						     .max_model_len = r->max_model_len,
						     .vocab_size = r->model.vocab_size,
						     .weight_bytes = r->weight_bytes,
						     .kv_bytes_per_block = r->kv_block_bytes,
						     .group = r->collectives ? collectives_group(r->collectives) : 0,
						     .eos_ids = r->model.eos_ids,
						     .eos_ids_count = r->model.eos_count,
						     .kv_switch_len = r->rope.far ? r->rope.near : 0,
						     .kv_by_prompt = r->model.rope.kind == ROPE_DYNAMIC,
						     .no_grammars = (const u8 *)problem,
						     .no_grammars_count = (u32)strnlen(problem, IPC_ERROR_TEXT_MAX),
						     .recurrent = r->model.recurrent.kind != RECURRENT_NONE,
						     .state_slots = r->state_slots,
						     .embedding_width = r->model.hidden,
						     .no_embeddings = (const u8 *)no_embeddings,
						     .no_embeddings_count = (u32)strlen(no_embeddings),
						     .headless = r->model.headless};
	send_message(w, &msg);
}

/* `seq` 0: of the worker itself. */
static void send_error(struct worker *w, u64 seq, enum err e, const struct err_msg *em)
{
	struct ipc_msg msg = {.type = IPC_TYPE_ERROR, .epoch = w->epoch};
	size_t bytes = strlen(em->text);

	msg.error = (struct ipc_error){
		.code = e,
		.req_id = seq,
		.text = (const u8 *)em->text,
		.text_count = (u32)(bytes < IPC_ERROR_TEXT_MAX ? bytes : IPC_ERROR_TEXT_MAX)};
	send_message(w, &msg);
}

/* One encoding, the same bytes to both. The detokenizer is spared results that say nothing. */
static void send_result(struct worker *w, u64 waited_ns)
{
	struct runner *r = w->runner;
	struct ipc_msg msg = {.type = IPC_TYPE_RESULT, .epoch = w->epoch, .result = r->result};

	msg.result.wait_us = (u32)(waited_ns / 1000);
	msg.result.forward_us = (u32)((r->times.sampled - r->times.built) / 1000);
	send_message(w, &msg);
	if (!w->fatal && (msg.result.seq_count > msg.result.beam_entry_count || msg.result.plp_seq_count))
		send_frame(w, w->tokens_channel, "tokens");
}

/* ---------------------------------------------------------------- steps */

void worker_begin_epoch(struct worker *w, u64 epoch, const struct ipc_init *m)
{
	struct err_msg em;

	w->epoch = epoch;
	w->broken = false;
	w->idle_since_ns = 0;
	ipc_channel_set_epoch(w->step_channel, epoch);
	if (w->tokens_channel)
		ipc_channel_set_epoch(w->tokens_channel, epoch);
	enum err e = runner_begin(w->runner, epoch, m->block_count, m->max_model_len, &em);
	if ((e == ERR_GONE || e == ERR_SHUTDOWN) && worker_check_nodes(w))
		return;
	if (e == ERR_ABORTED) {
		w->broken = true; /* the INIT of a later epoch is on its way */
	} else if (e == ERR_INVALID) {
		w->broken = true;
		LOG_ERROR("INIT_REFUSED", "epoch=%llu reason=\"%s\"", (unsigned long long)epoch, em.text);
		send_error(w, 0, e, &em);
	} else if (e) {
		worker_fail(w, e, &em);
	}
}

/* A device's steps are spans of their own, on a line of their own: the host does other things meanwhile. */
static void trace_computing(const struct worker *w)
{
	const struct runner_times *t = &w->runner->times;
	const struct runner_counts *c = &w->runner->counts;
	u64 step = w->runner->result.step;

	if (t->queued) {
		trace_add(w->trace, TRACE_LAUNCH, t->applied, t->queued, step, c->tokens);
		trace_add(w->trace, TRACE_DEVICE, t->built, t->sampled, step, c->tokens);
		return;
	}
	trace_add(w->trace, TRACE_INPUTS, t->applied, t->built, step, c->run_rows);
	trace_add(w->trace, TRACE_FORWARD, t->built, t->forwarded, step, c->tokens);
	trace_add(w->trace, TRACE_SAMPLE, t->forwarded, t->sampled, step, c->samples);
}

static void trace_step(const struct worker *w, u64 waited_since, u64 sent_ns)
{
	const struct runner_times *t = &w->runner->times;
	u64 step = w->runner->result.step;

	if (!w->trace)
		return;
	if (waited_since && waited_since < t->begin)
		trace_add(w->trace, TRACE_WAIT, waited_since, t->begin, step, 0);
	trace_add(w->trace, TRACE_APPLY, t->begin, t->applied, step, w->runner->counts.rows);
	trace_computing(w);
	trace_add(w->trace, TRACE_SEND, t->collected, sent_ns, step, (u32)w->frame.bytes);
}

static bool is_state_error(enum err e)
{
	return e == ERR_DIVERGED || e == ERR_SEQUENCE || e == ERR_INVALID;
}

static void on_step_failed(struct worker *w, enum err e, const struct err_msg *em)
{
	w->broken = true;
	w->idle_since_ns = 0;
	stats_idle(w->stats);
	/* A device says only that it was interrupted. */
	if ((e == ERR_GONE || e == ERR_SHUTDOWN || e == ERR_DEVICE) && worker_check_nodes(w))
		return;
	if (e == ERR_ABORTED) {
		LOG_WARN("STEP_ABANDONED", "epoch=%llu reason=\"%s\"", (unsigned long long)w->epoch,
			 em->text);
	} else if (is_state_error(e)) {
		LOG_ERROR("STATE_LOST", "epoch=%llu reason=\"%s\"", (unsigned long long)w->epoch, em->text);
		send_error(w, 0, e, em);
	} else {
		worker_fail(w, e, em);
	}
}

/* Between the end of one step and the beginning of the next, when there were rows to run. The CPU begins when the STEP
 * is there; a device begins with what is queued by itself, and how late it did so counts. */
static u64 waited_ns(const struct worker *w)
{
	const struct runner_times *t = &w->runner->times;
	u64 until = t->queued ? t->built : t->begin;

	return w->idle_since_ns && until > w->idle_since_ns ? until - w->idle_since_ns : 0;
}

/* Sequences that their grammars have left no way on; before the RESULT, so that the scheduler ends them first. */
static void tell_failures(struct worker *w)
{
	struct runner *r = w->runner;
	const struct constraints_step *c = r->constrained;

	if (!c)
		return;
	r->constrained = NULL; /* told */
	stats_add(w->stats, STATS_GRAMMARS_COMPILED, c->compiled);
	stats_add(w->stats, STATS_GRAMMAR_MASKS, c->masks);
	stats_add(w->stats, STATS_GRAMMAR_NS, c->work_ns);
	for (u32 i = 0; w->rank == 0 && i < c->failure_count; i++) {
		LOG_WARN("GRAMMAR_STUCK", "seq=%llu reason=\"%s\"", (unsigned long long)c->failures[i].seq,
			 c->failures[i].text.text);
		send_error(w, c->failures[i].seq, ERR_INVALID, &c->failures[i].text);
	}
}

static void count_drafts(const struct worker *w)
{
	const struct runner_counts *c = &w->runner->counts;

	if (w->rank != 0 || c->drafts == 0)
		return;
	stats_add(w->stats, STATS_SPEC_DRAFTS, c->drafts);
	stats_add(w->stats, STATS_SPEC_DRAFT_TOKENS, c->draft_tokens);
	stats_add(w->stats, STATS_SPEC_ACCEPTED, c->accepted);
}

/* A step is done and collected. */
static void finish_step(struct worker *w)
{
	const struct runner *r = w->runner;
	const struct runner_times *t = &r->times;
	u64 waited = waited_ns(w);

	if (w->rank == 0)
		send_result(w, waited);
	u64 now = clock_now_ns();
	stats_add(w->stats, STATS_FORWARD_NS, t->sampled - t->built);
	stats_add(w->stats, STATS_WAITED_NS, waited);
	count_drafts(w);
	stats_progress(w->stats, now, r->in_flight > 0);
	trace_step(w, w->idle_since_ns, now);
	if (r->in_flight || runner_is_live(r))
		w->idle_since_ns = t->queued ? t->sampled : now;
	else
		w->idle_since_ns = 0;
}

void worker_collect(struct worker *w)
{
	struct err_msg em;
	enum err e = ERR_OK;

	while (!w->fatal && !w->stopping && (e = runner_collect(w->runner, &em)) == ERR_OK) {
		tell_failures(w);
		finish_step(w);
	}
	tell_failures(w); /* of a step whose end the last call has queued */
	if (e && e != ERR_AGAIN)
		on_step_failed(w, e, &em);
}

void worker_run_step(struct worker *w, const struct ipc_step *step)
{
	struct err_msg em;
	enum err e = ERR_OK;

	/* More steps ahead than any scheduler of ours sends, or one whose grammars have to see tokens first. */
	while (!e && !w->broken && runner_is_full(w->runner)) {
		e = runner_wait(w->runner, &em);
		if (!e)
			worker_collect(w);
		if (w->fatal || w->stopping)
			return;
	}
	if (w->broken)
		return;
	stats_busy(w->stats, clock_now_ns());
	if (!e)
		e = runner_submit(w->runner, step, &em);
	tell_failures(w);
	if (e)
		on_step_failed(w, e, &em);
	else if (runner_fd(w->runner) < 0)
		worker_collect(w);
}
