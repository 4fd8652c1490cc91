/* What tests of families with random weights have in common: greedy tokens that do not depend on how they are computed, logits with caches of
 * fewer bits, adapters that are refused. */
#ifndef TERCET_TESTS_RANDOM_RUNS_H
#define TERCET_TESTS_RANDOM_RUNS_H

#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/random_model.h"

enum { RANDOM_RUNS_VOCAB = 96, RANDOM_RUNS_TYPES = 5 };

/* Of the KV cache: float32 first, then those that lose something. */
extern const enum option_kv_dtype random_runs_types[RANDOM_RUNS_TYPES];

/* `text`: config.json, of RANDOM_RUNS_VOCAB tokens. Tokens are those of every prompt alone when several are computed together, in chunks,
 * with preemption, in blocks of other sizes and by several threads, with every type of the cache. */
void random_runs_check_ways(const char *text);
/* The same with one type of the cache, of models with products so wide that it takes long. */
void random_runs_check_wide(const char *text);
/* Logits are off by no more than `allowed` in the mean, and by something. */
void random_runs_check_caches(const char *text, const double allowed[RANDOM_RUNS_TYPES]);
/* Of a runner of `model`, which it borrows: one rank and thread, what the processor can, four rows, a cache of 1 MiB in bfloat16, blocks of 16 tokens. */
struct runner_config random_runs_config(const struct random_model *model, enum option_dtype dtype, enum option_quantization quantization);
/* A runner with an adapter ends with ERR_UNSUPPORTED and a text that has `words`. */
void random_runs_check_no_adapters(const char *text, const char *words);

#endif
