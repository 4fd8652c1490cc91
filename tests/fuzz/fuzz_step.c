/* STEP messages against the worker's state, of models whose rows keep none and of those whose rows do. An input is a run of frames, each behind
 * its length in two bytes; the digest is corrected, so that what is accepted goes on. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state.h"
#include "proc_worker/inputs.h"

#define LIMITS_COMMON .rows_max = 8, .tokens_max = 64, .max_model_len = 64, .block_size = 4, .block_count = 100, .vocab_size = 300
enum { STATE_SLOTS = 5 };
static const struct batch_limits LIMITS[] = {
	{LIMITS_COMMON, .host_block_count = 20},
	{LIMITS_COMMON, .recurrent = true, .state_slots = STATE_SLOTS},
};

/* What the worker would copy. */
static void check_states(const struct batch_state *b, const struct inputs *in)
{
	const u32 rows = b->limits.rows_max, slots = rows + b->limits.state_slots;

	for (u32 i = 0; i < b->load_count; i++)
		if (b->load_row[i] >= rows || b->load_slot[i] >= b->limits.state_slots || !b->computed[b->load_row[i]])
			abort();
	for (u32 i = 0; i < b->fork_count; i++)
		if (b->fork_src[i] >= rows || b->fork_row[i] >= rows)
			abort();
	u32 saves = 0;
	for (u32 i = 0; i < in->rows; i++) {
		saves += in->save_at[i] != 0;
		if (in->save_at[i] && (in->save_at[i] > in->query_start[i + 1] - in->query_start[i] || in->save_slots[i] < rows || in->save_slots[i] >= slots))
			abort();
	}
	if (saves != b->save_count)
		abort();
}

static void run(struct batch_state *b, struct inputs *in, struct ipc_step *step)
{
	static const u32 sampled[8];
	struct err_msg em;

	step->step = b->step + 1;
	if (batch_state_apply(b, step, &em) == ERR_DIVERGED) {
		b->broken = false; /* as if the digest had been right */
		b->applied = true;
	}
	if (!b->applied)
		return;
	inputs_build(in, b);
	for (u32 i = 0; i < in->tokens; i++)
		if (in->ids[i] >= b->limits.vocab_size || in->slots[i] < 0 || in->slots[i] >= 400 ||
		    in->positions[i] >= 64)
			abort();
	check_states(b, in);
	batch_state_commit(b, sampled);
}

static void run_all(const struct batch_limits *limits, const uint8_t *data, size_t bytes)
{
	struct ipc_scratch scratch = {0};
	struct batch_state *b;
	struct inputs in;
	struct err_msg em;

	if (batch_state_create(&b, limits, &em) || inputs_init(&in, limits, &em))
		abort();
	while (bytes > 2 && !b->broken) {
		struct ipc_msg msg;
		size_t frame = (size_t)data[0] | (size_t)data[1] << 8;
		data += 2;
		bytes -= 2;
		frame = frame < bytes ? frame : bytes;
		if (ipc_decode((const char *)data, frame, &scratch, &msg, &em) == ERR_OK &&
		    msg.type == IPC_TYPE_STEP)
			run(b, &in, &msg.step);
		data += frame;
		bytes -= frame;
	}
	ipc_scratch_fini(&scratch);
	inputs_fini(&in);
	batch_state_destroy(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	for (size_t i = 0; i < sizeof(LIMITS) / sizeof(*LIMITS); i++)
		run_all(&LIMITS[i], data, bytes);
	return 0;
}
