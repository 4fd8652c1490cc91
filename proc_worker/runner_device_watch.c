/* The watch over the steps of a device: a thread of its own, since the worker's thread may wait itself, for room to queue
 * more, and the completion thread does nothing else. Finds a step that takes far longer than its like, aborts the
 * collectives that it may wait in, and says so. Never touches the device otherwise. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "proc_worker/runner_device.h"

enum { WATCH_MS = 250 };

static const u64 MS = 1000000;

/* All below with the mutex. Steps are done in their order, so one that is being queued is the oldest only when no other
 * is there. */
static const struct runner_flight *oldest(const struct runner_device *d)
{
	return d->done < d->queued || d->queueing ? &d->flights[d->done % RUNNER_FLIGHTS_MAX] : NULL;
}

/* Time in which nobody could look, because the machine slept or was paused, is no time that the device had. And a rank
 * that says that it waits for somebody else is not stuck, though the device waits for it. */
static void forgive(struct runner_device *d, u64 now)
{
	u64 beats = d->collectives ? collectives_beats(d->collectives) : 0;

	if (beats != d->beats || (d->looked_ns && now > d->looked_ns + 4 * WATCH_MS * MS))
		d->waiting_since_ns = now;
	d->beats = beats;
	d->looked_ns = now;
}

/* Rank 0 of another node may wait for the detokenizer without a beat that is seen here. The ranks beside it see it, and
 * notice whoever else hangs, too. */
static u64 limit_of(const struct runner_device *d, const struct runner_flight *f)
{
	return f->recorded || d->far_from_rank_0 ? d->limit.most_ns : step_limit_ns(&d->limit, f->counts.tokens);
}

static void say_why(struct runner_device *d, const struct runner_flight *f, u64 limit)
{
	char usual[80] = "half of --progress-timeout";

	if (limit != d->limit.most_ns)
		snprintf(usual, sizeof(usual), "steps of its size take %llu ms",
			 (unsigned long long)((step_limit_usual_ns(&d->limit, f->counts.tokens) + MS - 1) / MS));
	d->failed = err_set(&d->failed_text, ERR_DEVICE, "%s has not ended step %llu within %llu ms (%s)",
			    d->device.info.name, (unsigned long long)f->step, (unsigned long long)(limit / MS), usual);
}

static void look(struct runner_device *d)
{
	u64 now = clock_now_ns();
	const struct runner_flight *f = oldest(d);

	forgive(d, now);
	u64 limit = f ? limit_of(d, f) : 0;
	if (!limit || now < d->waiting_since_ns + limit)
		return;
	say_why(d, f, limit);
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
	gpu_abort(d->gpu);
	runner_device_signal(d);
	pthread_mutex_lock(&d->mutex);
}

static void *watch(void *arg)
{
	struct runner_device *d = arg;

	pthread_mutex_lock(&d->mutex);
	while (!d->stop) {
		if (!oldest(d) || d->failed) {
			d->watch_idle = true;
			pthread_cond_wait(&d->work, &d->mutex);
			d->watch_idle = false;
			d->looked_ns = 0;
			continue;
		}
		u64 until = clock_now_ns() + WATCH_MS * MS;
		struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
		pthread_cond_timedwait(&d->work, &d->mutex, &at);
		if (!d->stop && !d->failed)
			look(d);
	}
	d->watch_ended = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
	return NULL;
}

enum err runner_device_watch(struct runner_device *d, struct err_msg *em)
{
	int failed = pthread_create(&d->watchdog, NULL, watch, d);

	if (failed)
		return err_set(em, ERR_NO_MEMORY, "cannot start the thread that watches the device: %s", strerror(failed));
	d->has_watchdog = true;
	return ERR_OK;
}
