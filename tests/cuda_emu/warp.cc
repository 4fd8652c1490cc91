/* Operations of a warp: lanes meet under their mask, the last to come computes the results of all. */
#include "tests/cuda_emu/emu_priv.h"

static struct emu_meeting *find_meeting(struct emu_warp *w, u32 mask, struct emu_site site)
{
	struct emu_meeting *idle = NULL;
	if (w->latest != NULL && w->latest->mask == mask && w->latest->arrived != 0)
		return w->latest;
	for (struct emu_meeting &m : w->meeting) {
		if (m.mask == mask && m.arrived != 0)
			return &m;
		if (m.arrived == 0 && idle == NULL)
			idle = &m;
	}
	if (idle == NULL)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line, "lanes of one warp wait under more than %d masks",
			 EMU_MEETINGS);
	idle->mask = mask;
	w->latest = idle;
	return idle;
}

/* All lanes are there: `arrived` get their results. */
static void complete(struct emu_block *b, u32 warp, struct emu_meeting *m, u32 arrived)
{
	struct emu_warp *w = &b->warp[warp];
	m->arrived = 0;
	w->meetings--;
	if (m->fn == emu_op_sync)
		w->epoch++;
	m->fn(w->lane, arrived);
}

static void close_meeting(struct emu_block *b, u32 warp, struct emu_meeting *m)
{
	u32 arrived = m->arrived;
	complete(b, warp, m, arrived);
	emu_make_ready(b, warp, arrived);
}

void emu_warp_lane_gone(struct emu_block *b, u32 warp)
{
	struct emu_warp *w = &b->warp[warp];
	if (w->meetings == 0)
		return;
	for (struct emu_meeting &m : w->meeting) {
		if (m.arrived != 0 && m.arrived == (m.mask & w->alive))
			close_meeting(b, warp, &m);
	}
}

EMU_PLAIN void emu_warp_sync(u32 mask, emu_warp_fn fn, bool aligned, const char *what, struct emu_site site)
{
	struct emu_block *b = emu_now;
	struct emu_thread *t = emu_self;
	struct emu_warp *w = &b->warp[t->warp];
	struct emu_meeting *m;
	if ((mask >> t->lane & 1) == 0)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line, "%s: lane %u is not in its own mask %08x", what,
			 t->lane, mask);
	if (aligned && w->alive != ~0u)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "%s needs the whole warp, and lanes %08x have returned", what, ~w->alive);
	m = find_meeting(w, mask, site);
	if (m->arrived == 0) {
		w->meetings++;
		m->fn = fn;
		m->what = what;
		m->site = site;
	} else if (m->fn != fn || (aligned && m->site.line != site.line))
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "lanes %08x of the warp wait in %s at %s:%d, and lane %u comes to %s under the same mask", m->arrived,
			 m->what, m->site.file, m->site.line, t->lane, what);
	m->arrived |= 1u << t->lane;
	if (m->arrived == (mask & w->alive)) {
		u32 others = m->arrived & ~(1u << t->lane);
		complete(b, t->warp, m, others | 1u << t->lane);
		emu_make_ready(b, t->warp, others);
		emu_counted.warp_ops++;
		emu_maybe_yield();
	} else
		emu_wait(what, site, mask, -1);
}

/* ---------------------------------------------------------------- shuffles, votes, reductions */

#define EACH_LANE(i, mask) \
	for (u32 left_##i = (mask), i = left_##i != 0 ? (u32)__builtin_ctz(left_##i) : 0; left_##i != 0; \
	     left_##i &= left_##i - 1, i = left_##i != 0 ? (u32)__builtin_ctz(left_##i) : 0)

void emu_op_sync(struct emu_lane lanes[32], u32 mask)
{
	(void)lanes;
	(void)mask;
}

/* A lane that does not take part gives whatever its register holds. */
static u64 value_of(struct emu_lane lanes[32], u32 mask, u32 lane)
{
	return (mask >> lane & 1) != 0 ? lanes[lane].shuffle.value : ~(u64)0;
}

void emu_op_shfl(struct emu_lane lanes[32], u32 mask)
{
	EACH_LANE(i, mask)
		lanes[i].shuffle.result = value_of(lanes, mask, lanes[i].shuffle.operand % 32);
}

void emu_op_shfl_xor(struct emu_lane lanes[32], u32 mask)
{
	for (u32 i = 0; i < 32 && mask == CU_ALL; i++)
		lanes[i].shuffle.result = lanes[(i ^ lanes[i].shuffle.operand) % 32].shuffle.value;
	if (mask == CU_ALL)
		return;
	EACH_LANE(i, mask)
		lanes[i].shuffle.result = value_of(lanes, mask, (i ^ lanes[i].shuffle.operand) % 32);
}

void emu_op_shfl_up(struct emu_lane lanes[32], u32 mask)
{
	EACH_LANE(i, mask)
		lanes[i].shuffle.result = value_of(lanes, mask, i < lanes[i].shuffle.operand ? i : i - lanes[i].shuffle.operand);
}

void emu_op_shfl_down(struct emu_lane lanes[32], u32 mask)
{
	EACH_LANE(i, mask)
		lanes[i].shuffle.result = value_of(lanes, mask, lanes[i].shuffle.operand > 31 - i ? i : i + lanes[i].shuffle.operand);
}

static void all_get(struct emu_lane lanes[32], u32 mask, u32 value)
{
	EACH_LANE(i, mask)
		lanes[i].shuffle.result = value;
}

void emu_op_ballot(struct emu_lane lanes[32], u32 mask)
{
	u32 set = 0;
	EACH_LANE(i, mask)
		set |= (u32)(lanes[i].shuffle.value != 0) << i;
	all_get(lanes, mask, set);
}

void emu_op_reduce_add(struct emu_lane lanes[32], u32 mask)
{
	u32 sum = 0;
	EACH_LANE(i, mask)
		sum += (u32)lanes[i].shuffle.value;
	all_get(lanes, mask, sum);
}

void emu_op_reduce_min(struct emu_lane lanes[32], u32 mask)
{
	u32 least = ~0u;
	EACH_LANE(i, mask)
		least = (u32)lanes[i].shuffle.value < least ? (u32)lanes[i].shuffle.value : least;
	all_get(lanes, mask, least);
}

void emu_op_reduce_max(struct emu_lane lanes[32], u32 mask)
{
	u32 most = 0;
	EACH_LANE(i, mask)
		most = (u32)lanes[i].shuffle.value > most ? (u32)lanes[i].shuffle.value : most;
	all_get(lanes, mask, most);
}
