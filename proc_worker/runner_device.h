/* The runner's part for a device: steps are queued there, and a thread waits for them. Only runner*.c look in here.
 *
 * The main thread queues steps and collects them; the completion thread waits for the oldest that is queued, and says on
 * an eventfd that it is done; the watch sees to it that this takes no longer than it may. Nothing else is shared. */
#ifndef TERCET_PROC_WORKER_RUNNER_DEVICE_H
#define TERCET_PROC_WORKER_RUNNER_DEVICE_H

#include <pthread.h>

#include "proc_worker/device.h"
#include "proc_worker/gpu/gpu.h"
#include "proc_worker/runner.h"
#include "proc_worker/step_limit.h"

/* The columns of a RESULT beside its tokens: C(column, array, elements), which struct runner_columns and struct gpu_result
 * have by the same names. */
#define RUNNER_LOGPROB_COLUMNS(C)               \
	C(lp_entry, lp.entry, lp.entries)       \
	C(lp_count, lp.count, lp.entries)       \
	C(lp_rank, lp.rank, lp.entries)         \
	C(lp_ids, lp.ids, lp.id_count)          \
	C(lp_values, lp.values, lp.id_count)    \
	RUNNER_PROMPT_LOGPROB_COLUMNS(C)
#define RUNNER_PROMPT_LOGPROB_COLUMNS(C)        \
	C(plp_seq, plp_seq, plp_entries)        \
	C(plp_position, plp_position, plp_entries) \
	C(plp_count, plp_count, plp_entries)    \
	C(plp_rank, plp_rank, plp_entries)      \
	C(plp_ids, plp_ids, plp_id_count)       \
	C(plp_values, plp_values, plp_id_count)

/* A step that was queued, by what was true when it was: arrays have an element per row that samples. */
struct runner_flight {
	u64 step;
	u32 count;
	u32 *rows, *index, *position; /* index: tokens the row had; position: of the new one among its outputs */
	u64 *incarnation, *seq;
	u32 *beam_entry, beam_count; /* of RESULT */
	struct runner_counts counts;
	u64 begin, applied, queued; /* clock_now_ns */
	bool recorded;		    /* it recorded a graph, and its time says nothing of others */
};

struct runner_device {
	struct device device;
	struct kern_comm *comm; /* NULL with one rank */
	struct gpu *gpu;
	const struct collectives *collectives; /* the runner's */
	bool far_from_rank_0;		       /* which is on another node */
	u64 last_done_ns;

	/* Numbers of flights since create: flights[n % RUNNER_FLIGHTS_MAX]. collected <= done <= queued. */
	struct runner_flight flights[RUNNER_FLIGHTS_MAX];
	u64 collected;
	void *memory;
	size_t memory_bytes;

	pthread_mutex_t mutex; /* of all below */
	pthread_cond_t changed;
	u64 queued, done;
	bool queueing;	      /* flights[queued] is being queued */
	u64 waiting_since_ns; /* when the oldest that is not done, or is being queued, became it */
	struct step_limit limit;
	pthread_cond_t work; /* there is something to watch; or an end of that */
	u64 looked_ns, beats; /* the watch's last look, 0: none since it had nothing to do; collectives_beats of then */
	bool stop, ended;     /* the thread shall end; has ended */
	enum err failed;      /* of a step: nothing comes after it */
	struct err_msg failed_text;
	int fd; /* -1: none yet */
	pthread_t thread, watchdog;
	bool has_thread, has_watchdog, watch_idle, watch_ended;
};

/* Opens the device that the options mean and leaves NULL in r->device for the CPU. Errors of device_choose. */
MUST_CHECK enum err runner_device_open(struct runner *r, struct err_msg *em);
/* Whether it has kernels for the model (r->plan). With --device auto the CPU takes over what it has none for. */
MUST_CHECK enum err runner_device_check(struct runner *r, struct err_msg *em);
/* Communicator, weights, arenas, KV pool, the completion thread. All ranks call it together. */
MUST_CHECK enum err runner_device_create(struct runner *r, struct err_msg *em);
/* Steps that are queued come to their end, or are aborted after a moment. A device that has failed or does not answer is
 * left as it is: the process ends, and with it what it had there. */
void runner_device_destroy(struct runner *r);
void runner_device_log(const struct runner *r);

/* As those of runner.h. */
MUST_CHECK enum err runner_device_begin(struct runner *r, u64 epoch, u32 block_count, u32 max_model_len,
					struct err_msg *em);
MUST_CHECK enum err runner_device_submit(struct runner *r, const struct ipc_step *step, struct err_msg *em);
MUST_CHECK enum err runner_device_collect(struct runner *r, struct err_msg *em);
MUST_CHECK enum err runner_device_wait(struct runner *r, struct err_msg *em);
MUST_CHECK enum err runner_device_look(struct runner *r, struct err_msg *em);

/* Starts the threads and makes room for flights; undoes it (true), or finds that the device does not
 * answer (false). */
MUST_CHECK enum err runner_device_start(struct runner *r, struct err_msg *em);
bool runner_device_stop(struct runner_device *d);
/* Starts the watch over steps; its thread ends with d->stop. */
MUST_CHECK enum err runner_device_watch(struct runner_device *d, struct err_msg *em);
/* Wakes the main thread. Any thread. */
void runner_device_signal(const struct runner_device *d);

/* The embeddings of a step, behind the log-probabilities of its prompts: r->columns in the place of the device's arrays in r->result. */
void runner_device_embeddings(struct runner *r, const struct runner_flight *f, const struct gpu_result *g);

/* Marks rows that a sampled token ends, by the rule that scheduler and detokenizer follow, too. */
void runner_mark_finished(struct runner *r, u32 row, u32 output, u32 token);

#endif
