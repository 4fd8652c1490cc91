/* What to use instead of options that users of other servers know. Constant data. */
#include <string.h>

#include "common/options_priv.h"

/* With dashes, as others spell them. */
static const struct {
	const char *name, *hint;
} HINTS[] = {
	/* vLLM */
	{"tokenizer", "the tokenizer of the model folder is used"},
	{"tokenizer-mode", "the tokenizer of the model folder is used"},
	{"tokenizer-revision", "the tokenizer of the model folder is used (--revision says which of a download)"},
	{"code-revision", "no code of a model folder is run"},
	{"trust-remote-code", "no code of a model folder is run, nor needed: leave it away"},
	{"download-dir", "nothing is downloaded: give the model's local folder, or its name and HF_HUB_CACHE where it was downloaded to"},
	{"hf-token", "nothing is downloaded: give the model's local folder, or the name of a download"},
	{"override-generation-config", "use --generation-config FOLDER, with a generation_config.json of your own in it"},
	{"hf-overrides", "edit the config.json of the model folder"},
	{"load-format", "safetensors, GGUF and PyTorch files are read, whichever the model is: leave it away"},
	{"enable-chunked-prefill", "prompts are always computed in chunks of up to --max-num-batched-tokens: leave it away"},
	{"no-enable-chunked-prefill", "prompts are always computed in chunks of up to --max-num-batched-tokens"},
	{"enable-auto-tool-choice", "tools need no switch: leave it away (--tool-call-parser says in which form a model calls)"},
	{"disable-log-requests", "requests are not logged: leave it away (--log-level says what is)"},
	{"no-enable-log-requests", "requests are not logged: leave it away (--log-level says what is)"},
	{"disable-log-stats", "leave it away; /metrics has the figures"},
	{"distributed-executor-backend", "every worker is a process of its own: leave it away"},
	{"pipeline-parallel-size", "every layer is divided instead: use --tensor-parallel-size"},
	{"data-parallel-size", "start several servers, and a load balancer in front of them"},
	{"cpu-offload-gb", "weights are not offloaded; --quantization int8 or int4 makes them smaller"},
	{"ssl-keyfile", "there is no TLS: put a proxy in front that has it"},
	{"ssl-certfile", "there is no TLS: put a proxy in front that has it"},
	{"compilation-config", "nothing is compiled at the start: leave it away"},
	{"max-seq-len-to-capture", "steps of all lengths are captured: leave it away"},
	/* llama-server */
	{"m", "the model's folder is a word of its own: tercet serve FOLDER"},
	{"c", "use --max-model-len"},
	{"ctx-size", "use --max-model-len"},
	{"np", "use --max-num-seqs"},
	{"parallel", "use --max-num-seqs"},
	{"b", "use --max-num-batched-tokens"},
	{"batch-size", "use --max-num-batched-tokens"},
	{"ub", "use --max-num-batched-tokens"},
	{"ubatch-size", "use --max-num-batched-tokens"},
	{"t", "use --threads"},
	{"ngl", "use --device cuda, which computes all layers there"},
	{"gpu-layers", "use --device cuda, which computes all layers there"},
	{"n-gpu-layers", "use --device cuda, which computes all layers there"},
	{"a", "use --served-model-name"},
	{"alias", "use --served-model-name"},
	{"v", "use --log-level debug"},
	{"verbose", "use --log-level debug"},
	{"jinja", "chat templates are always run: leave it away"},
	{"cache-type-k", "use --kv-cache-dtype, for K and V alike"},
	{"cache-type-v", "use --kv-cache-dtype, for K and V alike"},
	{"hf-repo", "nothing is downloaded: give the model's local folder"},
	{"lora", "use --lora-modules NAME=FOLDER"},
};

static bool same_name(const char *dashed, const char *name, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (dashed[i] == '\0' || dashed[i] != (name[i] == '_' ? '-' : name[i]))
			return false;
	return dashed[bytes] == '\0';
}

const char *option_hint(const char *name, size_t bytes)
{
	for (size_t i = 0; i < COUNT_OF(HINTS); i++)
		if (same_name(HINTS[i].name, name, bytes))
			return HINTS[i].hint;
	return NULL;
}

/* ---------------------------------------------------------------- values */

#define STORED "a checkpoint that is quantized is read as it is: leave it away"

static const struct {
	const char *name, *value, *hint;
} VALUES[] = {
	{"quantization", "awq", STORED},
	{"quantization", "awq_marlin", STORED},
	{"quantization", "gptq", STORED},
	{"quantization", "gptq_marlin", STORED},
	{"quantization", "compressed-tensors", STORED},
	{"quantization", "mxfp4", STORED},
	{"quantization", "fp8", "an FP8 checkpoint is read as it is: leave it away; others are rounded to int8 or int4"},
	{"quantization", "modelopt", STORED},
	{"quantization", "modelopt_fp4", STORED},
	{"quantization", "fbgemm_fp8", STORED},
	{"quantization", "auto-round", STORED},
	{"quantization", "bitsandbytes", "a checkpoint that is quantized so is read as it is: leave it away; others are rounded to int8 or int4"},
	{"quantization", "none", "auto leaves the checkpoint as it is"},
	{"kv_cache_dtype", "fp8_e5m2", "fp8 is e4m3 here"},
	{"kv_cache_dtype", "f16", "auto has 16 bits beside weights in 16"},
	{"kv_cache_dtype", "float16", "auto has 16 bits beside weights in 16"},
	{"kv_cache_dtype", "q8_0", "int8 is the nearest"},
	{"device", "gpu", "GPUs are called cuda"},
	{"device", "cuda:0", "CUDA_VISIBLE_DEVICES says which ones"},
	{"reasoning_parser", "deepseek_r1", "its marks are those of think"},
	{"reasoning_parser", "qwen3", "its marks are those of think"},
	{"reasoning_parser", "gptoss", "gpt-oss's are called harmony"},
	{"reasoning_parser", "openai_gptoss", "gpt-oss's are called harmony"},
};

const char *option_value_hint(const char *name, const char *value)
{
	for (size_t i = 0; i < COUNT_OF(VALUES); i++)
		if (strcmp(VALUES[i].name, name) == 0 && strcmp(VALUES[i].value, value) == 0)
			return VALUES[i].hint;
	return NULL;
}
