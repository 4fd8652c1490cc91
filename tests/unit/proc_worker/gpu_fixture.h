/* What the tests of the device's engine share: a small random model, some requests to it, and a run of them on the emulated
 * device, as a whole or step by step. Criterion gives every test a process of its own, and so variables of its own. */
#ifndef TERCET_TESTS_GPU_FIXTURE_H
#define TERCET_TESTS_GPU_FIXTURE_H

#include "tests/unit/proc_worker/device_run.h"
#include "tests/unit/proc_worker/random_model.h"

enum { REQUESTS = 6, PROMPT_MAX = 48 };

/* Of a config.json, without the architecture and the braces. */
#define SMALL                                                                                                \
	"\"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "    \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"rms_norm_eps\": 1e-5, " \
	"\"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3"
#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], " SMALL "}"

extern struct device_run run;
extern struct driver_request requests[REQUESTS];
extern struct random_model model;
extern struct err_msg em;

#define OK(call) cr_assert_eq(call, ERR_OK, "%s", em.text)

/* Rows and blocks for all of them, graphs, two steps in flight. */
struct device_run_config gpu_test_config(void);
/* Greedy ones with log-probabilities of prompt and outputs; returns `count`. */
u32 make_requests(u32 count, u32 vocab, u32 outputs);
/* The requests, from an engine's beginning to its end. */
void run_model(const struct device_run_config *c, u32 count);
/* bfloat16 activations against float ones: `worst` for the worst of hundreds, a tenth of it on average. */
void expect_near(const struct device_run_config *c, u32 count, double worst);
/* Both have the same outputs, to the bit. */
void expect_same(const struct driver_request *a, const struct driver_request *b, u32 count,
			const char *what);
/* The device refuses the model or its limits in these words, and leaves no engine. */
void expect_refusal(const struct gpu_config *c, enum err expected, const char *words);
/* Those of a request that names none, with a seed and room for 64 tokens. */
void set_params(struct sampling_params *p);

/* ---------------------------------------------------------------- a model as a whole; `text`: its config.json */

/* Three requests to it, as expect_near. `what` is printed with the differences. */
void check_family(const char *what, const char *text, double worst);
/* Where two experts are nearly as good, the other one may be chosen: few values are far off then, others not; all of them
 * `mean` on average. */
void check_experts(const char *what, const char *text, double mean);

/* How a test's steps are run: as they come, or from graphs, and how many are in flight; and how often states are saved. */
struct step_way {
	const char *what;
	bool graphs;
	u32 depth, save_every;
};
/* Greedy and sampled rows have the same outputs either way. */
void check_ways(const char *text, const struct step_way *ways, u32 count);
/* Of few blocks in the cache, preempted rows have some in the host's memory, and go on where they were. `schedule`: an order
 * of the emulation's streams; under those that begin nothing before somebody waits for it a missing event is a wrong answer. */
void check_swaps(const char *text, const char *schedule, enum kern_dtype kv, u32 host_blocks);

/* ---------------------------------------------------------------- step by step */

/* An engine of a random model, with gpu_test_config. */
void open_model(const char *text, u64 seed);
void close_model(void);
/* A prompt that is in the vocabulary of all. */
void make_tokens(u32 *tokens, u32 count);
/* Into the step that is being written, as a sequence that was not there before. */
void add_row(u32 row, const u32 *tokens, u32 count, u32 computed, const u32 *blocks, u32 block_count);
/* One step, collected at once; the tokens of the rows that sample. */
struct gpu_result do_step(const struct ipc_step *s);

#endif
