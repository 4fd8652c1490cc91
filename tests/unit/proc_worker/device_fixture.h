/* What tests begin with of runners around an engine of a device that they control themselves (fake_gpu.h). */
#ifndef TERCET_TESTS_UNIT_PROC_WORKER_DEVICE_FIXTURE_H
#define TERCET_TESTS_UNIT_PROC_WORKER_DEVICE_FIXTURE_H

#include "proc_worker/runner.h"

/* Borrows `model_dir`. */
static inline struct runner_config device_config(const char *model_dir)
{
	return (struct runner_config){
		.model_dir = model_dir,
		.ranks = 1,
		.threads = 1,
		.device = OPTION_DEVICE_CUDA,
		.step_timeout_ms = 60000,
		.limits = {.rows_max = 8, .tokens_max = 64, .block_size = 16},
		.memory_utilization = 0.5,
	};
}

#endif
