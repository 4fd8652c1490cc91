/* Steps of a device: queued by the worker's thread without waiting, awaited by a thread of its own, watched by another
 * (runner_device_watch.c), collected by the worker's thread when they are done. Never allocates after start; the worker's
 * thread waits for the device only where somebody says so (an INIT, more steps than there is room for), and never for
 * long. */
#include "proc_worker/runner_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/region.h"
#include "common/sched_slice.h"

enum {
	LOOK_MS = 100,	  /* how often who waits looks whether it waits in vain */
	FINISH_MS = 2000, /* what is queued at the end gets that long; with other ranks less: one that is gone never */
	LEAVE_MS = 500,	  /* comes to the collective that this one waits in */
	ABORT_MS = 1000,  /* and that long after an abort */
};

static const u64 MS = 1000000;

static struct timespec deadline(u64 ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* ---------------------------------------------------------------- the completion thread */

void runner_device_signal(const struct runner_device *d)
{
	u64 one = 1;

	while (write(d->fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* The next step to wait for; 0: the end. */
static u64 next_step(struct runner_device *d)
{
	pthread_mutex_lock(&d->mutex);
	while (!d->stop && d->done == d->queued)
		pthread_cond_wait(&d->changed, &d->mutex);
	u64 step = d->done < d->queued ? d->flights[d->done % RUNNER_FLIGHTS_MAX].step : 0;
	pthread_mutex_unlock(&d->mutex);
	return step;
}

static bool step_ended(struct runner_device *d, u64 step, enum err e, struct err_msg *em)
{
	if (e)
		err_prefix(em, "step %llu on %s", (unsigned long long)step, d->device.info.name);
	pthread_mutex_lock(&d->mutex);
	if (e && !d->failed) { /* what came of an abort is not why */
		d->failed = e;
		d->failed_text = *em;
	} else if (!e) {
		const struct runner_flight *f = &d->flights[d->done % RUNNER_FLIGHTS_MAX];
		u64 now = clock_now_ns();
		if (!f->recorded)
			step_limit_learn(&d->limit, f->counts.tokens, now - d->waiting_since_ns);
		d->done++;
		d->waiting_since_ns = now;
	}
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
	runner_device_signal(d);
	return e == ERR_OK;
}

static void *wait_for_steps(void *arg)
{
	struct runner_device *d = arg;
	struct err_msg em = {""};
	u64 step;

	(void)sched_slice_short();
	do {
		step = next_step(d);
	} while (step && step_ended(d, step, gpu_wait(d->gpu, step, &em), &em));
	pthread_mutex_lock(&d->mutex);
	d->ended = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
	return NULL;
}

/* ---------------------------------------------------------------- waiting for it */

/* What a device that waits for other ranks does not say itself. */
static enum err look_at_ranks(const struct runner *r, struct err_msg *em)
{
	const struct runner_device *d = r->device;
	enum err e = r->collectives ? collectives_check(r->collectives, em) : ERR_OK;

	return e || !d->comm ? e : d->device.api->comm_check(d->comm, em);
}

enum err runner_device_look(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;

	pthread_mutex_lock(&d->mutex);
	enum err e = d->failed;
	if (e)
		*em = d->failed_text;
	pthread_mutex_unlock(&d->mutex);
	return e ? e : look_at_ranks(r, em);
}

static bool wait_a_moment(struct runner_device *d, u64 count)
{
	struct timespec until = deadline(clock_now_ns() + LOOK_MS * MS);
	int timed_out = 0;

	pthread_mutex_lock(&d->mutex);
	while (d->done < count && !d->failed && !timed_out)
		timed_out = pthread_cond_timedwait(&d->changed, &d->mutex, &until);
	bool done = d->done >= count;
	pthread_mutex_unlock(&d->mutex);
	return done;
}

/* Until that many steps since create are done. */
static enum err wait_until_done(struct runner *r, u64 count, struct err_msg *em)
{
	enum err e = ERR_OK;

	while (!e && !wait_a_moment(r->device, count))
		e = runner_device_look(r, em);
	return e;
}

enum err runner_device_wait(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;

	return d->collected < d->queued ? wait_until_done(r, d->collected + 1, em) : ERR_AGAIN;
}

/* ---------------------------------------------------------------- start and end */

static size_t lay_out(struct runner_device *d, u32 rows, char *base)
{
	size_t offset = 0;

	for (u32 i = 0; i < RUNNER_FLIGHTS_MAX; i++) {
		struct runner_flight *f = &d->flights[i];
		f->rows = region_carve(base, &offset, rows * sizeof(u32));
		f->index = region_carve(base, &offset, rows * sizeof(u32));
		f->position = region_carve(base, &offset, rows * sizeof(u32));
		f->incarnation = region_carve(base, &offset, rows * sizeof(u64));
		f->seq = region_carve(base, &offset, rows * sizeof(u64));
		f->beam_entry = region_carve(base, &offset, rows * sizeof(u32));
	}
	return offset;
}

static void start_locks(struct runner_device *d)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&d->changed, &monotonic);
	pthread_cond_init(&d->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&d->mutex, NULL);
}

enum err runner_device_start(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;

	step_limit_init(&d->limit, r->config.step_timeout_ms * MS);
	d->collectives = r->collectives;
	d->far_from_rank_0 = r->config.nodes && r->config.nodes->index != 0;
	d->memory_bytes = lay_out(d, r->config.limits.rows_max, NULL);
	void *memory = region_reserve(d->memory_bytes);
	if (!memory)
		return err_set(em, ERR_NO_MEMORY, "cannot reserve %zu bytes for steps in flight", d->memory_bytes);
	d->memory = memory;
	lay_out(d, r->config.limits.rows_max, memory);
	d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->fd < 0)
		return err_set(em, ERR_IO, "cannot make an eventfd: %s", strerror(errno));
	start_locks(d);
	int failed = pthread_create(&d->thread, NULL, wait_for_steps, d);
	if (failed)
		return err_set(em, ERR_NO_MEMORY, "cannot start the thread that waits for the device: %s",
			       strerror(failed));
	d->has_thread = true;
	return runner_device_watch(d, em);
}

static bool wait_for_end(struct runner_device *d, u64 ms)
{
	struct timespec until = deadline(clock_now_ns() + ms * MS);
	int timed_out = 0;

	while (!(d->ended && (d->watch_ended || !d->has_watchdog)) && !timed_out)
		timed_out = pthread_cond_timedwait(&d->changed, &d->mutex, &until);
	return !timed_out;
}

bool runner_device_stop(struct runner_device *d)
{
	if (d->has_thread) {
		pthread_mutex_lock(&d->mutex);
		d->stop = true;
		pthread_cond_broadcast(&d->changed);
		pthread_cond_broadcast(&d->work);
		bool ended = wait_for_end(d, d->comm ? LEAVE_MS : FINISH_MS);
		if (!ended) {
			gpu_abort(d->gpu);
			ended = wait_for_end(d, ABORT_MS);
		}
		pthread_mutex_unlock(&d->mutex);
		if (!ended)
			return false;
		pthread_join(d->thread, NULL);
		if (d->has_watchdog)
			pthread_join(d->watchdog, NULL);
		pthread_cond_destroy(&d->changed);
		pthread_cond_destroy(&d->work);
		pthread_mutex_destroy(&d->mutex);
	}
	if (d->fd >= 0)
		close(d->fd);
	region_release(d->memory, d->memory_bytes);
	return true;
}

/* ---------------------------------------------------------------- submit */

static void take_off(struct runner *r, struct runner_flight *f, const struct ipc_step *step)
{
	const struct batch_state *b = r->batch;

	f->step = step->step;
	f->count = b->sample_count;
	f->beam_count = 0;
	for (u32 i = 0; i < f->count; i++) {
		u32 row = b->sample_rows[i];
		f->rows[i] = row;
		f->index[i] = b->known[row];
		f->position[i] = b->known[row] - b->rows[row].prompt_count;
		f->incarnation[i] = b->rows[row].incarnation;
		f->seq[i] = b->rows[row].seq;
		if (b->rows[row].params.beam_width)
			f->beam_entry[f->beam_count++] = i;
	}
	f->counts = (struct runner_counts){.rows = b->row_count,
					   .run_rows = b->run_row_count,
					   .tokens = b->tokens_run,
					   .samples = b->sample_count};
}

/* Whether a row with a grammar samples whose tokens before are not all known. */
static bool awaits_tokens(const struct runner *r)
{
	const struct runner_device *d = r->device;
	const struct batch_state *b = r->batch;

	for (u64 n = d->collected; b->grammar_count && n < d->queued; n++) {
		const struct runner_flight *f = &d->flights[n % RUNNER_FLIGHTS_MAX];
		for (u32 i = 0; i < f->count; i++)
			if (batch_state_present(b, f->rows[i]) && b->rows[f->rows[i]].grammar_kind &&
			    b->rows[f->rows[i]].incarnation == f->incarnation[i] && b->run[f->rows[i]])
				return true;
	}
	return false;
}

/* The second half of a step, when all that its grammars have to see is known; the device is still in the first. */
static enum err queue_sampling(struct runner *r, struct err_msg *em)
{
	if (r->constraints) {
		constraints_begin(r->constraints, r->batch);
		r->constrained = constraints_finish(r->constraints);
	}
	return gpu_sample(r->device->gpu, r->batch, r->constrained ? r->constrained->allowed : NULL, em);
}

/* From here on the watch counts the step's time: a full queue of the device makes the host wait in the middle of it. */
static void begin_queueing(struct runner_device *d)
{
	pthread_mutex_lock(&d->mutex);
	d->flights[d->queued % RUNNER_FLIGHTS_MAX].recorded = false;
	d->queueing = true;
	if (d->done == d->queued) {
		d->waiting_since_ns = clock_now_ns();
		if (d->watch_idle)
			pthread_cond_signal(&d->work);
	}
	pthread_mutex_unlock(&d->mutex);
}

static void end_queueing(struct runner_device *d, bool queued)
{
	pthread_mutex_lock(&d->mutex);
	d->queueing = false;
	if (queued) {
		d->flights[d->queued % RUNNER_FLIGHTS_MAX].recorded = gpu_recorded(d->gpu);
		d->queued++;
	}
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
}

/* Half of it may be queued, so that nothing can follow. A node that is lost or has stopped is no fault of the device. */
static enum err not_queued(struct runner_device *d, u64 step, enum err e, struct err_msg *em)
{
	if (e == ERR_GONE || e == ERR_SHUTDOWN)
		return e;
	err_prefix(em, "step %llu on %s", (unsigned long long)step, d->device.info.name);
	pthread_mutex_lock(&d->mutex);
	if (!d->failed) {
		d->failed = e == ERR_NO_MEMORY ? e : ERR_DEVICE; /* whatever an op says of its args: an INIT does not help */
		d->failed_text = *em;
	}
	*em = d->failed_text; /* the first one counts */
	e = d->failed;
	pthread_mutex_unlock(&d->mutex);
	return e;
}

static enum err end_submit(struct runner *r, struct runner_flight *f, enum err e, struct err_msg *em)
{
	struct runner_device *d = r->device;

	if (e) {
		end_queueing(d, false);
		r->batch->broken = true;
		r->batch->applied = false;
		return not_queued(d, f->step, e, em);
	}
	batch_state_advance(r->batch);
	f->queued = clock_now_ns();
	end_queueing(d, true);
	return ERR_OK;
}

enum err runner_device_submit(struct runner *r, const struct ipc_step *step, struct err_msg *em)
{
	struct runner_device *d = r->device;
	struct runner_flight *f = &d->flights[d->queued % RUNNER_FLIGHTS_MAX];
	struct batch_state *b = r->batch;

	ASSERT(d->queued - d->collected < RUNNER_FLIGHTS_MAX);
	f->begin = clock_now_ns();
	enum err e = batch_state_apply(b, step, em);
	if (e)
		return e;
	f->applied = clock_now_ns();
	take_off(r, f, step);
	r->constrained = NULL;
	begin_queueing(d);
	e = gpu_forward(d->gpu, b, step, em);
	r->awaits_tokens = !e && awaits_tokens(r);
	if (r->awaits_tokens) {
		end_queueing(d, false);
		r->in_flight++;
		return ERR_OK;
	}
	if (!e)
		e = queue_sampling(r, em);
	e = end_submit(r, f, e, em);
	r->in_flight += !e;
	return e;
}

/* What runner_device_submit has left. */
static enum err resume(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;

	r->awaits_tokens = false;
	begin_queueing(d);
	enum err e = queue_sampling(r, em);
	e = end_submit(r, &d->flights[d->queued % RUNNER_FLIGHTS_MAX], e, em);
	r->in_flight -= e != ERR_OK;
	return e;
}

/* ---------------------------------------------------------------- collect */

static bool is_done(struct runner_device *d, enum err *e, struct err_msg *em)
{
	pthread_mutex_lock(&d->mutex);
	bool done = d->done > d->collected;
	*e = ERR_AGAIN;
	if (!done && d->failed) {
		*e = d->failed;
		*em = d->failed_text;
	}
	pthread_mutex_unlock(&d->mutex);
	return done;
}

/* Signals are cleared before the second look, so that none that comes later is lost. */
static bool has_done(struct runner_device *d, enum err *e, struct err_msg *em)
{
	u64 count;

	if (is_done(d, e, em))
		return true;
	(void)!read(d->fd, &count, sizeof(count));
	return is_done(d, e, em);
}

static void fill_result(struct runner *r, const struct runner_flight *f, const struct gpu_result *g)
{
	struct ipc_result *out = &r->result;

	out->seq = f->seq;
	out->position = f->position;
	out->token = g->tokens;
	out->seq_count = out->position_count = out->token_count = f->count;
	out->beam_entry = f->beam_entry;
	out->beam_entry_count = f->beam_count;
#define COLUMN(name, array, count)  \
	out->name = g->array;       \
	out->name##_count = g->count;
	RUNNER_LOGPROB_COLUMNS(COLUMN)
#undef COLUMN
	if (g->embedding_count)
		runner_device_embeddings(r, f, g);
}

static void mark_finished(struct runner *r, const struct runner_flight *f, const u32 *tokens)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0; i < f->count; i++)
		if (batch_state_present(b, f->rows[i]) &&
		    b->rows[f->rows[i]].incarnation == f->incarnation[i])
			runner_mark_finished(r, f->rows[i], f->position[i] + 1, tokens[i]);
}

/* The device works on one step at a time, whatever its clock says of when it began with the next. */
static void fill_times(struct runner *r, const struct runner_flight *f, const struct gpu_result *g)
{
	struct runner_device *d = r->device;
	u64 began = g->started_ns > d->last_done_ns ? g->started_ns : d->last_done_ns;
	u64 done = g->done_ns > began ? g->done_ns : began;

	d->last_done_ns = done;
	r->times = (struct runner_times){.begin = f->begin,
					 .applied = f->applied,
					 .queued = f->queued,
					 .built = began,
					 .forwarded = done,
					 .sampled = done,
					 .collected = clock_now_ns()};
}

enum err runner_device_collect(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;
	const struct runner_flight *f = &d->flights[d->collected % RUNNER_FLIGHTS_MAX];
	struct gpu_result result;
	enum err e;

	if (r->awaits_tokens && !awaits_tokens(r)) {
		e = resume(r, em);
		if (e)
			return e;
	}
	if (!has_done(d, &e, em))
		return e;
	e = gpu_result(d->gpu, f->step, &result, em);
	if (e)
		return e;
	ASSERT(result.count == f->count);
	batch_state_tokens_known(r->batch, &(struct batch_tokens){.count = f->count,
								  .rows = f->rows,
								  .incarnation = f->incarnation,
								  .index = f->index,
								  .tokens = result.tokens});
	r->result = (struct ipc_result){.step = f->step};
	if (r->config.rank == 0)
		fill_result(r, f, &result);
	mark_finished(r, f, result.tokens);
	fill_times(r, f, &result);
	r->counts = f->counts;
	d->collected++;
	r->in_flight--;
	return ERR_OK;
}

/* ---------------------------------------------------------------- INIT */

/* What was queued must come to its end before the batch is emptied. With several ranks it can only when all have queued
 * the same steps: a scheduler that died may have sent one to some of them alone, and those wait in its first collective
 * for ever. */
static enum err compare_ranks(struct runner *r, struct err_msg *em)
{
	struct runner_device *d = r->device;
	const void *parts[COLLECTIVES_RANKS_MAX];
	u64 begun = d->queued + r->awaits_tokens;

	memcpy(collectives_buffer(r->collectives), &begun, sizeof(begun));
	enum err e = collectives_all_gather(r->collectives, sizeof(begun), parts, em);
	for (u32 i = 0; !e && i < r->config.ranks; i++)
		if (memcmp(parts[i], &begun, sizeof(begun)) != 0)
			e = err_set(em, ERR_DEVICE,
				    "the ranks have queued different steps when the scheduler was lost, so none of them can "
				    "end what it has begun");
	if (e == ERR_DEVICE)
		gpu_abort(d->gpu);
	return e;
}

enum err runner_device_begin(struct runner *r, u64 epoch, u32 block_count, u32 max_model_len, struct err_msg *em)
{
	struct runner_device *d = r->device;
	enum err e = runner_device_look(r, em);

	if (!e && r->collectives) {
		e = collectives_begin(r->collectives, epoch, em);
		if (!e)
			e = compare_ranks(r, em);
	}
	if (!e)
		e = wait_until_done(r, d->queued, em);
	while (!e && r->awaits_tokens) /* other ranks may have queued its end, and that may be a collective */
		e = runner_device_collect(r, em);
	if (!e || e == ERR_AGAIN)
		e = wait_until_done(r, d->queued, em);
	if (e)
		return e;
	d->collected = d->queued;
	r->in_flight = 0;
	e = batch_state_reset(r->batch, block_count, max_model_len, em);
	return e ? e : gpu_begin(d->gpu, em);
}
