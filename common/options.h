/* Every option of the engine, once: the command line, TERCET_* environment, --config YAML, --help, the man page
 * and shell completion expand from OPTIONS. Frozen after start. */
#ifndef TERCET_COMMON_OPTIONS_H
#define TERCET_COMMON_OPTIONS_H

#include <stdio.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/types.h"

/* Enumerations: choices in the order of their values. */
enum option_dtype {
	OPTION_DTYPE_AUTO,
	OPTION_DTYPE_BFLOAT16,
	OPTION_DTYPE_FLOAT32,
	OPTION_DTYPE_FLOAT16, /* computed in bfloat16 */
	OPTION_DTYPE_HALF,    /* the same */
	OPTION_DTYPE_FLOAT,   /* float32 */
};
enum option_kv_dtype {
	OPTION_KV_DTYPE_AUTO,
	OPTION_KV_DTYPE_BFLOAT16,
	OPTION_KV_DTYPE_FLOAT32,
	OPTION_KV_DTYPE_INT8,
	OPTION_KV_DTYPE_FP8,
	OPTION_KV_DTYPE_FP8_E4M3, /* the same */
	OPTION_KV_DTYPE_INT16,
};
enum option_quantization { OPTION_QUANTIZATION_AUTO, OPTION_QUANTIZATION_INT8, OPTION_QUANTIZATION_INT4 };
enum option_device { OPTION_DEVICE_AUTO, OPTION_DEVICE_CPU, OPTION_DEVICE_CUDA };
enum option_log_format { OPTION_LOG_TEXT, OPTION_LOG_JSON };
enum option_scheduling_policy { OPTION_POLICY_FCFS, OPTION_POLICY_PRIORITY };
enum option_tool_call_parser {
	OPTION_TOOLS_AUTO,
	OPTION_TOOLS_NONE,
	OPTION_TOOLS_HERMES,
	OPTION_TOOLS_LLAMA3_JSON,
	OPTION_TOOLS_MISTRAL,
	OPTION_TOOLS_QWEN3_CODER,
};
enum option_reasoning_parser {
	OPTION_REASONING_AUTO,
	OPTION_REASONING_NONE,
	OPTION_REASONING_THINK,
	OPTION_REASONING_MISTRAL,
	OPTION_REASONING_SEED_OSS,
	OPTION_REASONING_HARMONY,
};

/* STR(group, name, default, help)                 char *name
 * INT(group, name, default, min, max, help)       i64 name
 * SIZE(group, name, default, min, help)           u64 name, bytes; "4GiB", "512M", "1.5g" are understood
 * REAL(group, name, default, min, max, help)      f64 name
 * FLAG(group, name, default, help)                bool name; --name and --no-name
 * ENUM(group, name, default, choices, help)       u32 name; choices "a|b|c"
 * LIST(group, name, help)                         repeatable or comma-separated: struct option_list name
 * Names are written with '_' here and '-' on the command line. A default of -1 or 0 whose help says "automatic"
 * means: decided at start, and printed in the banner. */
#define OPTIONS(STR, INT, SIZE, REAL, FLAG, ENUM, LIST)                                                      \
	STR(model, model, "", "Model directory (config.json, *.safetensors, tokenizer.json), a file *.gguf, or the name of a download from the Hub") \
	STR(model, revision, "", "Branch, tag or commit of a model that was downloaded from the Hub; \"\" is main") \
	LIST(model, served_model_name, "Names the API answers to; default: the model directory's name")      \
	ENUM(model, dtype, 0, "auto|bfloat16|float32|float16|half|float",                                    \
	     "Type of weights; float16 and half are computed in bfloat16, float is float32")                 \
	ENUM(model, quantization, 0, "auto|int8|int4", "Bits of matrices; auto: as in the checkpoint")       \
	STR(model, weights_cache, "", "Directory that keeps packed weights for the next start")              \
	INT(model, max_model_len, 0, 0, 16777216, "Context length; 0: automatic, from config.json")          \
	INT(model, seed, 0, 0, INT64_MAX, "Seed of requests that bring none: 0 draws a fresh one for each")   \
	STR(model, chat_template, "", "File with a Jinja chat template to use instead of the model's")       \
	FLAG(model, trust_request_chat_template, false, "Render chats with the chat_template of the request") \
	ENUM(model, tool_call_parser, 0, "auto|none|hermes|llama3_json|mistral|qwen3_coder",                 \
	     "Form in which the model writes tool calls; auto: as its chat template")                        \
	ENUM(model, reasoning_parser, 0, "auto|none|think|mistral|seed_oss|harmony",                         \
	     "Marks between which the model thinks; auto: as its chat template or vocabulary")               \
	STR(model, generation_config, "auto",                                                                \
	    "Default sampling parameters: auto (the model's), none or vllm (the API's), or a folder with generation_config.json") \
	FLAG(model, enable_lora, false, "Serve LoRA adapters beside the model (--lora-modules)")             \
	LIST(model, lora_modules, "Adapters: NAME=PATH of a PEFT folder, or {\"name\": NAME, \"path\": PATH}") \
	INT(model, max_lora_rank, 16, 1, 512, "Largest rank an adapter may have")                            \
	INT(model, max_loras, 0, 0, 1024, "Most adapters workers may hold; 0: as many as --lora-modules names") \
	ENUM(device, device, 0, "auto|cpu|cuda", "Where workers compute; auto: on GPUs where there are enough") \
	INT(device, tensor_parallel_size, 1, 1, 64, "Workers that share every layer")                        \
	INT(device, threads, 0, 0, 1024, "Compute threads of each worker; 0: automatic, cores / workers")    \
	REAL(device, gpu_memory_utilization, 0.9, 0.01, 1.0, "Share of device memory the engine may use")    \
	FLAG(device, enforce_eager, false, "Launch the kernels of every step one by one: no CUDA graphs")    \
	SIZE(device, kv_cache_memory, 0, 0, "KV cache bytes per worker; 0: automatic")                       \
	REAL(device, swap_space, -1, -1, 65536, "GiB of host memory a worker keeps KV of preempted requests in; -1: automatic") \
	ENUM(device, kv_cache_dtype, 0, "auto|bfloat16|float32|int8|fp8|fp8_e4m3|int16",                     \
	     "Type of the KV cache; auto: as many bits as --dtype")                                          \
	INT(device, block_size, 16, 1, 256, "Tokens in a KV block")                                          \
	INT(nodes, nnodes, 0, 0, 64, "Machines that share the model; 0: from torchrun, Slurm, MPI or LeaderWorkerSet, else 1") \
	INT(nodes, node_rank, -1, -1, 63, "Which of them this is, from 0; -1: from the same")                \
	STR(nodes, master_addr, "", "Address of node 0, as the others reach it")                             \
	INT(nodes, master_port, 0, 0, 65000, "Port of node 0 and first of one more a worker; 0: MASTER_PORT, else 29500") \
	STR(nodes, cluster_secret_file, "", "File with the secret that the nodes share; default: TERCET_CLUSTER_SECRET") \
	INT(scheduler, max_num_seqs, 256, 1, 1024, "Sequences running at once")                              \
	ENUM(scheduler, scheduling_policy, 0, "fcfs|priority", "Who goes first: arrival, or the lowest field priority") \
	INT(scheduler, max_num_batched_tokens, 2048, 1, 65536, "Token budget of one step")                   \
	INT(scheduler, long_prefill_token_threshold, 0, 0, 65536, "Longest prefill chunk; 0: the budget")    \
	INT(scheduler, max_queued_requests, 1024, 1, 1048576, "Waiting requests before new ones are refused")\
	FLAG(scheduler, enable_prefix_caching, true, "Reuse KV blocks of equal prompt beginnings")           \
	INT(scheduler, async_depth, 2, 0, 2, "Steps planned ahead of the one that computes")                 \
	STR(scheduler, speculative_config, "", "JSON: tokens to propose ahead, as {\"method\":\"ngram\",\"num_speculative_tokens\":4}; default: none") \
	INT(scheduler, client_lease, 30, 1, 86400, "Seconds of silence after which a client's requests end") \
	INT(scheduler, max_sessions, 4096, 0, 65536, "Conversations whose history the engine keeps; 0: no sessions") \
	INT(scheduler, session_tokens, 16777216, 256, 1073741824, "Tokens of all sessions' histories together") \
	INT(scheduler, session_ttl, 3600, 0, 31536000, "Seconds after its last turn until a session is dropped; 0: never") \
	STR(scheduler, session_dir, "", "Directory in which sessions outlive the engine; default: they end with it") \
	STR(server, host, "127.0.0.1", "Address the HTTP server binds; empty: every one")                    \
	INT(server, port, 8000, 0, 65535, "HTTP port; 0: any free one")                                      \
	INT(server, api_server_count, 1, 0, 64, "Gateway processes; 0: no HTTP, only libtercet")              \
	LIST(server, api_key, "Bearer keys of the HTTP API (but for /health, /ping and /); none: open")                          \
	LIST(server, allowed_origins, "Origins allowed by CORS; default: *")                                 \
	SIZE(server, max_body_size, 33554432, 1024, "Largest HTTP request body")                             \
	INT(server, max_connections, 4096, 1, 1048576, "HTTP connections per gateway")                       \
	INT(server, http_read_timeout, 30, 1, 3600, "Seconds a client may take to send a request")           \
	INT(server, max_logprobs, 20, 0, 20, "Most log-probabilities per token a request may ask for")       \
	INT(server, shutdown_timeout, 30, 0, 86400, "Seconds that running requests get after SIGTERM")       \
	SIZE(output, output_retention, 4194304, 4096, "Bytes of chunks kept per output-socket client")       \
	INT(output, output_retention_time, 60, 1, 86400, "Seconds that chunks of an absent client are kept") \
	INT(run, progress_timeout, 60, 0, 86400, "Seconds without progress until a process is restarted; 0: never") \
	STR(run, run_dir, "", "Directory of sockets and shared pages; default: a fresh one, mode 0700")      \
	STR(run, trace, "", "Write a Chrome/Perfetto timeline of all processes to this file at exit")        \
	STR(run, trace_messages, "", "Directory in which every process records its messages")                \
	ENUM(run, log_level, 1, "debug|info|warn|error", "Least level that is logged")                       \
	ENUM(run, log_format, 0, "text|json", "Form of log lines")

struct option_list {
	char **items; /* owned */
	uint32_t count;
};

struct options {
#define OPT_STR(group, name, def, help) char *name;
#define OPT_INT(group, name, def, min, max, help) i64 name;
#define OPT_SIZE(group, name, def, min, help) u64 name;
#define OPT_REAL(group, name, def, min, max, help) f64 name;
#define OPT_FLAG(group, name, def, help) bool name;
#define OPT_ENUM(group, name, def, choices, help) u32 name;
#define OPT_LIST(group, name, help) struct option_list name;
	OPTIONS(OPT_STR, OPT_INT, OPT_SIZE, OPT_REAL, OPT_FLAG, OPT_ENUM, OPT_LIST)
#undef OPT_STR
#undef OPT_INT
#undef OPT_SIZE
#undef OPT_REAL
#undef OPT_FLAG
#undef OPT_ENUM
#undef OPT_LIST
};

/* Defaults; every string owned by `o`. ERR_NO_MEMORY. */
MUST_CHECK enum err options_init(struct options *o);
void options_fini(struct options *o);

/* Sets one option from text; `where` ("--port", "TERCET_PORT", "conf.yaml: port") goes into the message, which
 * names the value, what is wrong and the range or choices. Unknown names: ERR_NOT_FOUND with a suggestion. */
MUST_CHECK enum err options_set(struct options *o, const char *name, const char *value, const char *where,
				struct err_msg *em);
/* TERCET_<NAME> for every option; empty and unknown TERCET_ variables are left alone, but an empty TERCET_API_KEY is
 * ERR_INVALID: it would open what a key was to close. */
MUST_CHECK enum err options_read_env(struct options *o, struct err_msg *em);
/* Warns of TERCET_ variables that look like a mistyped option: one line each to `out`, never an error (others put
 * variables of that name there, too: a service called "tercet" under Kubernetes). */
void options_check_env(FILE *out);
/* Whether an environment entry ("TERCET_PORT" or "TERCET_PORT=1") is read by options_read_args: a parent that hands
 * options down as arguments takes these out of its children's environment. */
bool options_owns_env(const char *variable);
/* Flat YAML: keys are the long names with '-' or '_'; sequences for lists. */
MUST_CHECK enum err options_read_yaml(struct options *o, const char *path, struct err_msg *em);
/* Reads the environment, the --config file (or TERCET_CONFIG) and argv[1..]; precedence is defaults < env < file <
 * command line, whatever the order on the line. A list of one source replaces that of the source before.
 * A first word without dashes is the model. `--name value`, `--name=value`, `-tp N` and aliases are understood. */
MUST_CHECK enum err options_read_args(struct options *o, int argc, char **argv, struct err_msg *em);
/* The same for commands with more plain words than the model: up to `max` words behind it, borrowed from argv. */
MUST_CHECK enum err options_read_words(struct options *o, int argc, char **argv, const char **words, u32 max,
				       u32 *count, struct err_msg *em);

/* Where default sampling parameters come from: `*dir` becomes the folder of a generation_config.json, borrowed from `o`, or NULL
 * where there is to be none. That of the model may have no such file. ERR_NOT_FOUND: another folder has none. */
MUST_CHECK enum err options_generation_dir(const struct options *o, const char **dir, struct err_msg *em);

/* argv for a child process: every option that differs from its default, as "--name=value" (api keys excepted:
 * they go through the environment). `out` receives NUL-separated strings. */
void options_to_args(const struct options *o, struct buf *out);

void options_help(FILE *out, const char *group); /* NULL: all groups; an unknown one prints the groups */
bool options_has_group(const char *group);       /* true for NULL: all of them */
void options_man(FILE *out);                     /* the sections OPTIONS, ENVIRONMENT, FILES in troff */
/* Completion of the tercet command: `commands` (ends in NULL) and every option. ERR_UNSUPPORTED: another shell than
 * bash, zsh, fish. */
MUST_CHECK enum err options_completion(FILE *out, const char *shell, const char *const *commands,
				       struct err_msg *em);
void options_print_yaml(FILE *out, const struct options *o); /* what is in force; API keys are not shown */

#endif
