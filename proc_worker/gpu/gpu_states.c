/* The states that recurrent layers keep of sequences, on a device: a slot for each row of the batch, as row r has slot r, and
 * behind these others for states that are saved. Owns their memory. Runs in the worker at start and in every step; queues copies,
 * never waits. Never decides whose a slot is: the STEP does, and batch_state_states.c has checked it. */
#include <string.h>

#include "common/assert.h"
#include "proc_worker/gpu/gpu_priv.h"

/* Of a device's memory, what saved states take at most. */
enum { SAVED_SHARE = 16 };

static size_t slot_bytes(const struct gpu *g)
{
	return g->config.states->stride * sizeof(float);
}

static unsigned long long mib_up(u64 bytes)
{
	return (bytes + (1 << 20) - 1) >> 20;
}

/* ---------------------------------------------------------------- memory */

static enum err explain(const struct gpu *g, u64 left, struct err_msg *em)
{
	const u64 one = slot_bytes(g), rows = g->config.limits.rows_max;

	if (left < one)
		return err_set(em, ERR_NO_SPACE,
			       "not enough memory on the device: this model keeps a state of every sequence, %llu MiB, and %llu MiB are left "
			       "(--gpu-memory-utilization %.2f); use more devices (--tensor-parallel-size)",
			       mib_up(one), (unsigned long long)(left >> 20), g->config.memory_utilization);
	return err_set(em, ERR_NO_SPACE,
		       "not enough memory on the device: this model keeps a state of every sequence, %llu MiB for --max-num-seqs %llu, and %llu MiB "
		       "are left (--gpu-memory-utilization %.2f); --max-num-seqs %llu fits",
		       mib_up(rows * one), (unsigned long long)rows, (unsigned long long)(left >> 20), g->config.memory_utilization,
		       (unsigned long long)(left / one));
}

/* Of those that are worth saving as many as are a small share of the device, and half of what the rows' own leave at most: keys and values want
 * the rest, and those of one sequence come first. */
static u32 saved_states(const struct gpu *g, u64 left, u64 rows_bytes)
{
	const struct gpu_config *c = &g->config;
	const u64 one = slot_bytes(g), wanted = c->states->slots - c->limits.rows_max;
	const u64 rest = left - rows_bytes, asked = c->kv_cache_memory < rest ? c->kv_cache_memory : rest;
	const u64 sequence = (u64)(c->limits.max_model_len + c->limits.block_size - 1) / c->limits.block_size * g->block_bytes;
	const u64 behind = sequence < rest ? rest - sequence : 0, half = rest / 2 < behind ? rest / 2 : behind;
	const u64 room = c->kv_cache_memory ? rest - asked : half, share = c->device->info.memory_total / SAVED_SHARE;
	const u64 fit = (room < share ? room : share) / one;

	return (u32)(wanted < fit ? wanted : fit);
}

enum err gpu_states_init(struct gpu *g, struct err_msg *em)
{
	const u64 rows_bytes = (u64)g->config.limits.rows_max * slot_bytes(g);
	u64 left, free_bytes;
	void *memory;

	if (rows_bytes == 0)
		return ERR_OK;
	ASSERT(g->config.states->slots >= g->config.limits.rows_max);
	enum err e = gpu_memory_left(g, &left, &free_bytes, em);
	if (!e && rows_bytes > left)
		e = explain(g, left, em);
	if (e)
		return e;
	g->states.saved = saved_states(g, left, rows_bytes);
	g->states.bytes = rows_bytes + g->states.saved * slot_bytes(g);
	e = g->api->alloc(&memory, g->states.bytes, em);
	if (e) {
		err_prefix(em, "states of %u sequences and %u saved ones; lower --max-num-seqs", g->config.limits.rows_max, g->states.saved);
		return e;
	}
	g->states.data = memory;
	return g->api->zero(g->ctx.stream, memory, g->states.bytes, em);
}

void gpu_states_fini(struct gpu *g)
{
	g->api->release(g->states.data);
	g->states = (struct gpu_states){0};
}

/* ---------------------------------------------------------------- a step */

static enum err copy(struct gpu *g, u32 from, u32 to, struct err_msg *em)
{
	const size_t stride = g->config.states->stride, slots = g->config.limits.rows_max + g->states.saved;

	ASSERT(from < slots && to < slots);
	return g->api->copy(g->ctx.stream, g->states.data + to * stride, g->states.data + from * stride, slot_bytes(g), KERN_COPY_DEVICE, em);
}

/* By row, as graphs read it. */
static enum err send_saves(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	const u32 rows = g->config.limits.rows_max;
	const size_t bytes = 2 * (size_t)rows * sizeof(u32);
	struct gpu_stage *s;

	enum err e = gpu_stage_take(g, &s, em);
	if (e)
		return e;
	u32 *at = (u32 *)(void *)s->memory, *slots = at + rows;
	memset(at, 0, bytes);
	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i];
		if (!b->save_tokens[row])
			continue;
		at[row] = b->save_tokens[row] - b->computed[row];
		slots[row] = rows + b->save_slot[row];
	}
	e = gpu_stage_copy(g, s, g->arena.saves, 0, bytes, em);
	return e ? e : gpu_stage_sent(g, s, em);
}

enum err gpu_states_before(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < b->load_count; i++)
		e = copy(g, g->config.limits.rows_max + b->load_slot[i], b->load_row[i], em);
	for (u32 i = 0; !e && g->states.data && i < b->fork_count; i++)
		e = copy(g, b->fork_src[i], b->fork_row[i], em);
	return e || !b->save_count ? e : send_saves(g, b, em);
}

enum err gpu_states_begin(struct gpu *g, struct err_msg *em)
{
	const size_t bytes = 2 * (size_t)g->config.limits.rows_max * sizeof(u32);

	return g->arena.saves ? g->api->zero(g->ctx.stream, g->arena.saves, bytes, em) : ERR_OK;
}

enum err gpu_states_behind(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	return b->save_count ? gpu_states_begin(g, em) : ERR_OK;
}
