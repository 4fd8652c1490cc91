/* STEP messages against the worker's state. An input is a run of frames, each behind its length in two bytes;
 * the digest is corrected, so that what is accepted goes on. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state.h"
#include "proc_worker/inputs.h"

static const struct batch_limits LIMITS = {.rows_max = 8,
					   .tokens_max = 64,
					   .max_model_len = 64,
					   .block_size = 4,
					   .block_count = 100,
					   .vocab_size = 300,
					   .host_block_count = 20};

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
		if (in->ids[i] >= LIMITS.vocab_size || in->slots[i] < 0 || in->slots[i] >= 400 ||
		    in->positions[i] >= 64)
			abort();
	batch_state_commit(b, sampled);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct ipc_scratch scratch = {0};
	struct batch_state *b;
	struct inputs in;
	struct err_msg em;

	if (batch_state_create(&b, &LIMITS, &em) || inputs_init(&in, &LIMITS, &em))
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
	return 0;
}
