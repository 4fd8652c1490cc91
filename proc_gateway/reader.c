/* Owns the thread that reads long bodies and those with grammars, and the two queues between it and the event loop. Runs in the
 * gateway. The thread never touches anything but its job, the tokenizer and the chat template (both
 * immutable), and its scratch. */
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/assert.h"
#include "proc_gateway/openai_response.h"
#include "proc_gateway/reader.h"

struct job_queue {
	struct reader_job *head, **tail;
};

struct reader {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct job_queue waiting, done; /* under `lock` */
	bool stopping;			/* under `lock` */
	struct text_scratch *scratch;	/* the thread's */
	int done_fd;
	struct event *done_event;
	reader_done_fn on_done;
	void *ctx;
};

static void queue_init(struct job_queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static void queue_push(struct job_queue *q, struct reader_job *job)
{
	job->next = NULL;
	*q->tail = job;
	q->tail = &job->next;
}

static struct reader_job *queue_pop(struct job_queue *q)
{
	struct reader_job *job = q->head;
	if (job) {
		q->head = job->next;
		if (!q->head)
			q->tail = &q->head;
	}
	return job;
}

bool reader_is_for(const char *body, size_t bytes)
{
	static const char *const names[] = {"\"response_format\"", "\"structured_outputs\"", "\"guided_", "\"grammar\"", "\"json_schema\"", "\"format\"", "\"output_format\"",
					    "\"tool_choice\""};

	for (size_t i = 0; bytes <= READER_BODY_BYTES && i < COUNT_OF(names); i++)
		if (memmem(body, bytes, names[i], strlen(names[i])))
			return true;
	return bytes > READER_BODY_BYTES;
}

void reader_job_free(struct reader_job *job)
{
	openai_request_fini(&job->request);
	buf_fini(&job->body);
	buf_fini(&job->reply);
	free(job);
}

/* ---------------------------------------------------------------- the thread */

static void *run(void *arg)
{
	struct reader *r = arg;
	pthread_mutex_lock(&r->lock);
	while (!r->stopping) {
		struct reader_job *job = queue_pop(&r->waiting);
		if (!job) {
			pthread_cond_wait(&r->wake, &r->lock);
			continue;
		}
		pthread_mutex_unlock(&r->lock);
		job->model.scratch = r->scratch;
		job->ok = openai_any_read(&job->request, &job->model, job->endpoint, buf_cstr(&job->body),
					  job->body.bytes, job->tenant, &job->error);
		if (job->ok && openai_is_tokens(job->endpoint))
			openai_tokens_write(&job->model, &job->request, &job->reply);
		pthread_mutex_lock(&r->lock);
		queue_push(&r->done, job);
		ASSERT(eventfd_write(r->done_fd, 1) == 0);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* ---------------------------------------------------------------- the event loop */

static void on_http_close(void *ctx, struct http_request *http)
{
	struct reader_job *job = ctx;
	ASSERT(job->http == http);
	job->http = NULL;
}

static void on_done_readable(evutil_socket_t fd, short what, void *arg)
{
	struct reader *r = arg;
	eventfd_t count;
	(void)fd;
	(void)what;
	eventfd_read(r->done_fd, &count);
	for (;;) {
		pthread_mutex_lock(&r->lock);
		struct reader_job *job = queue_pop(&r->done);
		pthread_mutex_unlock(&r->lock);
		if (!job)
			return;
		if (!job->http) {
			reader_job_free(job);
			continue;
		}
		http_request_on_close(job->http, NULL, NULL);
		r->on_done(r->ctx, job);
	}
}

bool reader_submit(struct reader *reader, struct http_request *http, const struct openai_model *model,
		   enum openai_endpoint endpoint, u64 tenant)
{
	struct reader_job *job = calloc(1, sizeof(*job));
	if (!job)
		return false;
	job->http = http;
	job->endpoint = endpoint;
	job->tenant = tenant;
	job->model = *model;
	http_request_take_body(http, &job->body);
	http_request_on_close(http, on_http_close, job);
	pthread_mutex_lock(&reader->lock);
	queue_push(&reader->waiting, job);
	pthread_cond_signal(&reader->wake);
	pthread_mutex_unlock(&reader->lock);
	return true;
}

/* Signals are for the event loop's thread. */
static bool start_thread(struct reader *r)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool ok = pthread_create(&r->thread, NULL, run, r) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ok;
}

enum err reader_create(struct reader **out, struct event_base *base, reader_done_fn done, void *ctx,
		       struct err_msg *em)
{
	enum err e = ERR_NO_MEMORY;
	struct reader *r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(em, e, "no memory for the reader of long requests");
	r->on_done = done;
	r->ctx = ctx;
	queue_init(&r->waiting);
	queue_init(&r->done);
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->wake, NULL);
	r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->done_fd < 0 || text_scratch_create(&r->scratch) != ERR_OK)
		goto fail;
	r->done_event = event_new(base, r->done_fd, EV_READ | EV_PERSIST, on_done_readable, r);
	if (!r->done_event || event_add(r->done_event, NULL) != 0)
		goto fail;
	e = ERR_IO;
	if (!start_thread(r))
		goto fail;
	*out = r;
	return ERR_OK;
fail:
	if (r->done_event)
		event_free(r->done_event);
	text_scratch_free(&r->scratch);
	if (r->done_fd >= 0)
		close(r->done_fd);
	free(r);
	return err_set(em, e, "the reader of long requests cannot be started: %s", err_text(e));
}

static void free_jobs(struct job_queue *q)
{
	for (struct reader_job *job; (job = queue_pop(q));) {
		if (job->http)
			http_request_on_close(job->http, NULL, NULL);
		reader_job_free(job);
	}
}

void reader_destroy(struct reader **reader)
{
	struct reader *r = *reader;
	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->stopping = true;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	free_jobs(&r->waiting);
	free_jobs(&r->done);
	event_free(r->done_event);
	text_scratch_free(&r->scratch);
	close(r->done_fd);
	pthread_cond_destroy(&r->wake);
	pthread_mutex_destroy(&r->lock);
	free(r);
	*reader = NULL;
}
