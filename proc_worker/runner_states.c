/* The states of recurrent layers: how many there are room for, and whose they become when rows come. Runs in the worker; on devices gpu/gpu_states.c has
 * the memory and copies. */
#include "proc_worker/model/recurrent.h"
#include "proc_worker/runner.h"

/* States that are saved for others: a few of each row. Nobody's memory until they are written. */
enum { SAVED_STATES_A_ROW = 4, SAVED_STATES_MIN = 16 };
static const size_t SAVED_STATES_BYTES_MAX = (size_t)2 << 30;

static u32 saved_states(const struct runner *r, size_t bytes)
{
	const u32 wanted = SAVED_STATES_A_ROW * r->config.limits.rows_max;
	const size_t fit = bytes ? SAVED_STATES_BYTES_MAX / bytes : 0;
	const u32 most = wanted > SAVED_STATES_MIN ? wanted : SAVED_STATES_MIN;

	if (!r->config.saves_states)
		return 0;
	return fit < most ? (u32)fit : most;
}

/* What the model's layers keep of each row of the batch, and what may be saved of it. */
enum err runner_make_states(struct runner *r, struct err_msg *em)
{
	size_t floats[MODEL_LAYERS_MAX], sum = 0;

	for (u32 i = 0; i < r->model.layers; i++)
		sum += floats[i] = recurrent_floats(&r->model, &r->shard, i);
	const u32 slots = r->config.limits.rows_max + saved_states(r, sum * sizeof(float));
	return r->device ? state_memory_lay_out(&r->states, floats, r->model.layers, slots, em)
			 : state_memory_init(&r->states, floats, r->model.layers, slots, em);
}

/* Rows that were added in the middle of a sequence begin with the state that was saved there, and copies of others with theirs. */
void runner_copy_states(struct runner *r)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0; i < b->load_count; i++)
		state_memory_copy(&r->states, b->limits.rows_max + b->load_slot[i], b->load_row[i]);
	for (u32 i = 0; r->states.data && i < b->fork_count; i++)
		state_memory_copy(&r->states, b->fork_src[i], b->fork_row[i]);
}
