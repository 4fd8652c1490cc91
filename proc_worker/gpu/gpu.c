/* The life of a device's engine. Runs in the worker. */
#include "proc_worker/gpu/gpu.h"

bool gpu_needs_history(const struct batch_state *b)
{
	for (u32 i = 0; i < b->sample_count; i++) {
		const struct sampling_params *p = &b->rows[b->sample_rows[i]].params;
		if (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0)
			return true;
	}
	return false;
}
