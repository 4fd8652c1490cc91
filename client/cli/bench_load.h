/* A load on an OpenAI-compatible server: which requests, how many at once or how often, and what came of each. */
#ifndef TERCET_CLIENT_CLI_BENCH_LOAD_H
#define TERCET_CLIENT_CLI_BENCH_LOAD_H

#include "client/cli/bench_http.h"

struct bench_load_config {
	const struct bench_target *target;
	const char *model;
	u32 request_count;
	u32 distinct;       /* request i is number i % distinct: the same prompt and the same seed */
	u32 concurrency;    /* most at once */
	double request_rate; /* per second, Poisson arrivals; 0: as soon as there is room */
	u32 input_words;
	u32 output_tokens;
	double temperature;
	u64 seed;
	bool ignore_eos;
	bool keep_output;   /* ids and text are kept, for comparison */
	u32 timeout_s;      /* of one request */
	bool progress;      /* on stderr */
	const char *phase;  /* what the progress line is about */
};

struct bench_result {
	u64 begin_ns;
	u64 first_ns;  /* first tokens; 0: none came */
	u64 last_ns;   /* latest tokens */
	u64 end_ns;
	u32 prompt_tokens;
	u32 output_tokens;
	bool done;
	bool failed;
	char error[200];
	char finish[16];
	struct buf text;    /* keep_output */
	struct u32_vec ids;
};

/* Gaps between chunks of a response, of all responses. */
struct bench_gaps {
	float *ms; /* owned */
	size_t count;
	size_t capacity;
};

struct bench_outcome {
	struct bench_result *results; /* [request_count], owned */
	u32 count;
	struct bench_gaps gaps;
	double duration_s;
};

/* Runs the load to its end. ERR_NO_MEMORY, ERR_IO when the load generator itself fails; failures of requests are in
 * their results. The caller frees `out` in any case. Blocks. */
MUST_CHECK enum err bench_load_run(const struct bench_load_config *config, struct bench_outcome *out,
				   struct err_msg *em);
void bench_outcome_fini(struct bench_outcome *out);
/* The name of the first model of the server, into `name`. ERR_IO, ERR_FORMAT. Blocks. */
MUST_CHECK enum err bench_find_model(const struct bench_target *target, char *name, size_t bytes, struct err_msg *em);

#endif
