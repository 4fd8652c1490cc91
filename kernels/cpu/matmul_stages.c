/* Products of many rows that follow each other, such as attention's output, gate and up, down: runs all of them as one task of the pool. Runs in the
 * worker in steps of prefill; owns nothing.
 *
 * A row of one product depends on the same row of the one before alone. So a thread that is done with a product's steps of its own rows begins
 * the next, and nobody waits where there is work: where it has none, it takes steps of others' rows, whichever product they are at. One that has not
 * come, or was taken off its core, holds up what it has in hand, no more: others pack its rows, too, once they have waited for a while.
 *
 * Waiting threads stay awake: what they wait for are pieces of a millisecond. */
#include <sched.h>

#include "common/clock.h"
#include "kernels/cpu/matmul_blocked_priv.h"

enum {
	PATIENT_TURNS = 64, /* of waiting, a few microseconds, before another's rows are packed: it is about to do so itself */
	TURNS_A_CLOCK = 32,
	WAITING_NS = 50000, /* before a thread without work lets others have its core */
};

enum packing { PACKING_OPEN, PACKING_BEGUN, PACKING_DONE };

void matmul_stages_init(struct blocked_stages *s, u32 parts)
{
	ASSERT(parts > 0 && parts <= SHARES_MAX);
	s->count = 0;
	s->parts = parts;
}

void matmul_stages_add(struct blocked_stages *s, struct blocked_job *j, u32 keep, bool handed)
{
	const u32 stage = s->count++, each = j->steps * j->part_blocks;
	ASSERT(stage < BLOCKED_STAGES);
	s->jobs[stage] = j;
	shares_init_each(&s->steps[stage], each * s->parts, each, j->steps_at_once);
	s->steps[stage].keep = keep;
	for (u32 p = 0; p < s->parts; p++) {
		atomic_init(&s->of[p].left[stage], each);
		atomic_init(&s->of[p].packed[stage], handed ? PACKING_DONE : PACKING_OPEN);
	}
}

/* The first stage that has unfinished steps of a part. */
static u32 stage_of(struct blocked_stages *s, u32 part)
{
	u32 stage = 0;
	while (stage < s->count && atomic_load_explicit(&s->of[part].left[stage], memory_order_acquire) == 0)
		stage++;
	return stage;
}

/* Packs the inputs of a part, if `packs`, or computes steps of it, at the stage where it is; false: there is nothing to do now. */
static bool advance(struct blocked_stages *s, u32 part, u32 thread, bool packs)
{
	const u32 stage = stage_of(s, part);
	u32 first, end, open = PACKING_OPEN;
	if (stage == s->count)
		return false;
	_Atomic u32 *packed = &s->of[part].packed[stage];
	switch (atomic_load_explicit(packed, memory_order_acquire)) {
	case PACKING_OPEN:
		if (!packs || !atomic_compare_exchange_strong_explicit(packed, &open, PACKING_BEGUN, memory_order_acquire, memory_order_relaxed))
			return false;
		matmul_blocked_pack(s->jobs[stage], part, thread);
		atomic_store_explicit(packed, PACKING_DONE, memory_order_release);
		return true;
	case PACKING_DONE:
		if (!shares_take_from(&s->steps[stage], part, part == thread, &first, &end))
			return false;
		matmul_blocked_steps(s->jobs[stage], first, end, thread);
		atomic_fetch_sub_explicit(&s->of[part].left[stage], end - first, memory_order_acq_rel);
		return true;
	default:
		return false;
	}
}

/* One thing for others. */
static bool help(struct blocked_stages *s, u32 thread, bool packs)
{
	for (u32 i = 1; i < s->parts; i++)
		if (advance(s, (thread + i) % s->parts, thread, packs))
			return true;
	return false;
}

static bool all_taken(struct blocked_stages *s)
{
	const struct shares *last = &s->steps[s->count - 1];
	for (u32 p = 0; p < s->parts; p++)
		if (shares_left(atomic_load_explicit(&last->of[p].left, memory_order_relaxed)) > 0)
			return false;
	return true;
}

/* Stays until all is taken: what another has in hand may be what the next stage of this thread's rows waits for. */
static void run_thread(void *arg, u32 task, u32 thread)
{
	struct blocked_stages *s = arg;
	u64 end = 0;
	(void)task;
	for (u32 turns = 0; turns == 0 || !all_taken(s);) {
		if (advance(s, thread, thread, true) || help(s, thread, turns >= PATIENT_TURNS)) {
			turns = 0;
			continue;
		}
		kern_pause();
		if (++turns % TURNS_A_CLOCK != 0)
			continue;
		const u64 now = clock_now_ns();
		end = turns == TURNS_A_CLOCK ? now + WAITING_NS : end;
		if (now > end)
			sched_yield();
	}
}

void matmul_stages_run(struct kern_ctx *ctx, struct blocked_stages *s)
{
	kern_parallel(ctx, s->parts, run_thread, s);
}
