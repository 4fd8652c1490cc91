/* What a load came to: a table for people and one JSON line for programs. Names as in other serving benchmarks. */
#ifndef TERCET_CLIENT_CLI_BENCH_REPORT_H
#define TERCET_CLIENT_CLI_BENCH_REPORT_H

#include "client/cli/bench_load.h"

/* Of one quantity, in milliseconds. */
struct bench_quantiles {
	double mean, median, p90, p99;
};

struct bench_check {
	bool done;
	u32 distinct;   /* requests run alone */
	u32 mismatches; /* responses that differ from them */
};

struct bench_report {
	u32 completed, failed;
	u64 input_tokens, output_tokens;
	double duration_s;
	struct bench_quantiles ttft, tpot, itl, e2e;
};

/* Sorts the samples in place. */
struct bench_quantiles bench_quantiles_of(double *ms, size_t count);
/* ERR_NO_MEMORY */
MUST_CHECK enum err bench_report_build(struct bench_report *r, const struct bench_outcome *o);
/* To stderr. */
void bench_report_print(const struct bench_report *r, const struct bench_load_config *c,
			const struct bench_check *check);
/* To stdout. */
void bench_report_print_json(const struct bench_report *r, const struct bench_load_config *c,
			     const struct bench_check *check);

#endif
