/* What the tests of the device's engine share: a small random model, some requests to it, and a run of them on the emulated
 * device. Criterion gives every test a process of its own, and so variables of its own. */
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
/* Those of a request that names none, with a seed and room for 64 tokens. */
void set_params(struct sampling_params *p);

#endif
