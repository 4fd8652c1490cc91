/* The worker process: a runner behind two channels. It connects to the scheduler ("step": INIT and STEP in,
 * WORKER_READY and RESULT out) and, as rank 0, to the detokenizer ("tokens": the same RESULTs).
 *
 * The parts, from the outside in:
 *   worker.c                     channels, commands
 *   worker_step.c                epochs, steps, results, statistics, trace
 *   runner.c, runner_load.c,     one step; loading
 *   runner_embeddings.c
 *   runner_prompt_logprobs.c
 *   runner_device.c,             steps that are queued on a device; opening it
 *   runner_device_load.c, device.c
 *   gpu/                         the engine of a device
 *   batch_state.c                rows: a pure function of the STEPs
 *   inputs.c, sampler.c          arrays of a step; tokens from logits
 *   constraints.c                rows that follow a grammar
 *   profile.c, host_memory.c,    how many KV blocks fit; their memory
 *   kv_memory.c
 *   collectives.c                the other ranks of the host
 *   logits.c                     one prompt without channels (tercet logits)
 *   model/                       config, checkpoint, architecture table, weights, rotary tables, decoder */
#ifndef TERCET_PROC_WORKER_WORKER_H
#define TERCET_PROC_WORKER_WORKER_H

#include "common/err.h"
#include "common/options.h"
#include "ipc/ipc.h"

struct worker;

/* Loads the model (progress goes to the supervisor) and opens the channels of rank `rank`. Options and `boot`
 * are borrowed until worker_destroy. Errors: those of runner_create; ERR_INVALID for options. The caller owns
 * `*out`. */
MUST_CHECK enum err worker_create(struct worker **out, const struct options *o, u32 rank, struct boot *boot,
				  struct err_msg *em);
void worker_destroy(struct worker **w);

/* Tells the supervisor that it is ready and works until that says stop. An error means that the process must
 * end: the supervisor restarts the group. */
MUST_CHECK enum err worker_run(struct worker *w, struct err_msg *em);

/* The rank in TERCET_RANK's text; NULL is rank 0. ERR_INVALID. */
MUST_CHECK enum err worker_parse_rank(const char *text, u32 ranks, u32 *rank, struct err_msg *em);

#endif
