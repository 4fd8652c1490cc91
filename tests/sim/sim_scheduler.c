/* The scheduler's simulator: random requests, ends, disturbances and configurations against the real core and
 * the real batch state, reproducible from the seed it prints. After every step the workers' state is compared
 * with the scheduler's own tables, and blocks, budgets and ends are checked (sim_check.c).
 *
 *   sim_scheduler [--seed N] [--runs N] [--steps N] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "tests/sim/sim_world.h"

enum { RUNS_DEFAULT = 400, STEPS_DEFAULT = 500, DRAIN_TURNS_MAX = 200000 };

/* ---------------------------------------------------------------- one run */

static struct sched_config random_config(u64 *rng)
{
	static const u32 block_sizes[] = {1, 2, 4, 8, 16};
	struct sched_config c = {
		.max_num_seqs = 1 + sim_random(rng, 12),
		.max_num_batched_tokens = 1 + sim_random(rng, 64),
		.long_prefill_token_threshold = sim_random(rng, 3) ? 0 : 1 + sim_random(rng, 16),
		.max_queued_requests = 1 + sim_random(rng, 24),
		.by_priority = sim_random(rng, 3) == 0,
		.async_depth = sim_random(rng, 3),
		.block_size = block_sizes[sim_random(rng, COUNT_OF(block_sizes))],
		.max_model_len = 8 + sim_random(rng, 90),
		.vocab_size = 40,
		.prefix_caching = sim_random(rng, 4) != 0,
		.eos_count = 1,
		.eos_ids = {0},
		.first_number = sim_random(rng, 1000),
	};

	/* Workers that guess ahead know the positions when the step before is told of. */
	c.draft_max = sim_random(rng, 3) ? 0 : 1 + sim_random(rng, 7);
	if (c.draft_max)
		c.async_depth = 0;
	/* Sequences that outgrow a length are preempted, and searches as a whole. */
	c.kv_switch_len = sim_random(rng, 4) ? 0 : 4 + sim_random(rng, c.max_model_len);
	c.kv_by_prompt = sim_random(rng, 3) == 0;

	/* From pools that barely hold one sequence to roomy ones. */
	u32 blocks_of_one = (c.max_model_len + c.block_size - 1) / c.block_size;
	c.block_count = 1 + sim_random(rng, blocks_of_one * (sim_random(rng, 2) ? 2 : c.max_num_seqs + 2));
	if (c.block_count * c.block_size < 4)
		c.block_count = 4;
	/* Host memory for nobody, for some, for all. */
	c.host_block_count = sim_random(rng, 3) ? sim_random(rng, 2 * c.block_count + 1) : 0;
	c.recurrent = sim_random(rng, 4) == 0;
	if (c.recurrent) {
		c.state_slots = sim_random(rng, 3) ? sim_random(rng, sim_random(rng, 2) ? 4 : 12) : 0;
		c.host_block_count = c.draft_max = 0;
	}
	for (u32 i = 0; i < PREFIX_SECRET_BYTES; i++)
		c.secret[i] = (u8)sim_random(rng, 256);
	/* Room for all conversations, or not. */
	struct sessions_config sessions = {.session_max = 1 + sim_random(rng, SIM_TALKS),
					   .token_max = SESSION_CHUNK_TOKENS * (1 + sim_random(rng, SIM_TALKS)),
					   .secret = *rng};
	enum err e = sim_random(rng, 3) ? sessions_create(&c.sessions, &sessions, NULL) : ERR_OK;
	ASSERT(e == ERR_OK);
	return c;
}

static void disturb(struct sim_world *w)
{
	if (w->alike && sim_random(&w->rng, 8))
		return;
	switch (sim_random(&w->rng, 12)) {
	case 0:
		sim_abort_any(w);
		break;
	case 1:
		sim_stop_any(w);
		break;
	case 2:
		sim_deliver_stale(w);
		break;
	case 3:
		if (sim_random(&w->rng, 20) == 0)
			sim_restart_workers(w);
		break;
	case 4:
		if (sim_random(&w->rng, 10) == 0)
			sched_reopen_streams(w->sched);
		break;
	case 5:
		if (sim_random(&w->rng, 40) == 0)
			sim_abort_client(w);
		break;
	default:
		break;
	}
}

static void run(u64 seed, u32 steps, struct sim_totals *totals)
{
	u64 rng = seed * 0x9e3779b97f4a7c15u + 1;
	struct sched_config config = random_config(&rng);
	struct sim_world *w = sim_world_create(seed, rng, &config);
	u32 pressure = 1 + sim_random(&w->rng, 6);

	w->alike = config.recurrent && sim_random(&w->rng, 2);

	while (w->steps < steps && w->turns < steps * 20) {
		w->now_ns += 1 + sim_random(&w->rng, 2000000);
		if (sim_random(&w->rng, pressure) == 0)
			sim_submit(w);
		disturb(w);
		while (sim_random(&w->rng, 3) && sim_plan(w))
			;
		while (sim_random(&w->rng, 2) && sim_deliver(w))
			;
		w->turns++;
	}
	for (u32 i = 0; i < DRAIN_TURNS_MAX && !sched_is_idle(w->sched); i++) {
		w->now_ns += 1000;
		sim_plan(w);
		sim_deliver(w);
	}
	while (sim_plan(w)) /* what ended last is dropped */
		;
	sim_check_end(w);
	totals->steps += w->steps;
	totals->accepted += w->accepted;
	totals->preemptions += atomic_load(&w->stats->values[STATS_NUM_PREEMPTIONS]);
	totals->hits += atomic_load(&w->stats->values[STATS_PREFIX_CACHE_HITS]);
	totals->copies += w->copies - w->swaps_out - w->swaps_in;
	totals->swaps_out += w->swaps_out;
	totals->swaps_in += w->swaps_in;
	totals->restarts += w->restarts;
	totals->turns_taken += w->turns_taken;
	totals->forks += w->forks;
	totals->loads += w->loads;
	totals->saves += w->saves;
	totals->answers += w->answers;
	totals->guessed += w->guessed;
	for (u32 i = 0; i < FINISH_REASON_COUNT; i++)
		totals->ends[i] += w->ends[i];
	sim_world_destroy(&w);
}

static u64 argument(int argc, char **argv, const char *name, u64 fallback)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], name))
			return strtoull(argv[i + 1], NULL, 0);
	return fallback;
}

int main(int argc, char **argv)
{
	u64 first = argument(argc, argv, "--seed", 0);
	u32 runs = (u32)argument(argc, argv, "--runs", first ? 1 : RUNS_DEFAULT);
	u32 steps = (u32)argument(argc, argv, "--steps", STEPS_DEFAULT);
	struct sim_totals t = {0};

	if (!first)
		first = clock_now_ns() % 1000000 + 1;
	printf("seeds %" PRIu64 " to %" PRIu64 ", %u steps each (repeat one: --seed N --steps %u)\n", first,
	       first + runs - 1, steps, steps);
	fflush(stdout);
	for (u32 i = 0; i < runs; i++)
		run(first + i, steps, &t);
	printf("%" PRIu64 " steps, %" PRIu64 " requests: %" PRIu64 " stop, %" PRIu64 " length, %" PRIu64
	       " abort, %" PRIu64 " error; %" PRIu64 " preemptions, %" PRIu64 " cached tokens, %" PRIu64
	       " copies, %" PRIu64 " blocks swapped out, %" PRIu64 " in, %" PRIu64 " worker restarts, %" PRIu64
	       " turns of sessions, %" PRIu64 " forks of beams, %" PRIu64 " answers of searches, %" PRIu64 " tokens guessed, %" PRIu64 " states saved, %" PRIu64
	       " found\n",
	       t.steps, t.accepted, t.ends[FINISH_STOP], t.ends[FINISH_LENGTH], t.ends[FINISH_ABORT],
	       t.ends[FINISH_ERROR], t.preemptions, t.hits, t.copies, t.swaps_out, t.swaps_in, t.restarts, t.turns_taken,
	       t.forks, t.answers, t.guessed, t.saves, t.loads);
	/* A simulation that exercised nothing proves nothing. */
	if (runs >= RUNS_DEFAULT &&
	    (!t.preemptions || !t.hits || !t.copies || !t.swaps_out || !t.swaps_in || !t.restarts || !t.turns_taken ||
	     !t.forks || !t.answers || !t.guessed || !t.saves || !t.loads || !t.ends[FINISH_STOP] ||
	     !t.ends[FINISH_LENGTH] || !t.ends[FINISH_ABORT])) {
		printf("something was never exercised\n");
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
