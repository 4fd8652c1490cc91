/* Which lists of names the tensors of GGUF files have, by their architecture. Only gguf_names.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_GGUF_ARCHITECTURES_PRIV_H
#define TERCET_PROC_WORKER_MODEL_GGUF_ARCHITECTURES_PRIV_H

#include "proc_worker/model/gguf_names_priv.h"

enum { TABLES_MAX = 4 };

/* clang-format off */
/* "general.architecture", and what it has beside the usual names, or for some of them. */
static const struct {
	const char *name;
	const struct name *tables[TABLES_MAX]; /* of layers */
	const struct name *whole;
	const char *layers; /* what stands in front of a layer's number here; NULL: "model.layers" */
	const char *with; /* the row is that of files that have this tensor; another one follows for the others */
} ARCHITECTURES[] = {
	{"llama", {MIXTRAL}},
	{"mistral3", {MIXTRAL}},
	{"mistral4", {GATE_UP_EXPERTS, LATENT, SHARED_EXPERTS}},
	{"llama4", {LLAMA4}},
	{"deci", {0}},
	{"xverse", {0}},
	{"qwen", {QWEN}, WHOLE_QWEN, "transformer.h"},
	{"qwen2", {0}},
	{"qwen3", {0}},
	{"qwen2vl", {0}},
	{"qwen3vl", {0}},
	{"qwen2moe", {SHARED_EXPERT}},
	{"qwen3moe", {0}},
	{"phi3", {GATE_UP}},
	{"gemma", {0}},
	{"gemma2", {GEMMA2}},
	{"gemma3", {GEMMA2}},
	{"gemma3n", {GEMMA2, GEMMA3N}, WHOLE_GEMMA3N},
	{"gemma4", {GEMMA2, GEMMA4}, WHOLE_GEMMA4},
	{"phi2", {PHI2}, WHOLE_PHI2},
	{"phimoe", {MIXTRAL}},
	{"granite", {0}},
	{"granitemoe", {GRANITE_MOE, GRANITE_SHARED}},
	{"smollm3", {0}},
	{"falcon", {FALCON_NORMS, FALCON}, WHOLE_FALCON, "transformer.h", "blk.0.attn_norm_2.weight"},
	{"falcon", {FALCON}, WHOLE_FALCON, "transformer.h"},
	{"bloom", {FALCON}, WHOLE_BLOOM, "transformer.h"},
	{"mpt", {MPT}, WHOLE_MPT, "transformer.blocks"},
	{"gpt2", {GPT2, STARCODER}, WHOLE_STARCODER, "transformer.h"},
	{"gptneox", {GPT_NEOX}, WHOLE_GPT_NEOX, "gpt_neox.layers"},
	{"starcoder", {STARCODER}, WHOLE_STARCODER, "transformer.h"},
	{"starcoder2", {STARCODER2}},
	{"stablelm", {STABLELM}},
	{"nemotron", {0}},
	{"arcee", {0}},
	{"olmo", {0}},
	{"olmo2", {NORMS_BEHIND}},
	{"olmoe", {0}},
	{"exaone", {0}},
	{"exaone4", {NORMS_BEHIND}},
	{"seed_oss", {NORMS_BEHIND}},
	{"command-r", {0}},
	{"cohere2", {0}},
	{"cohere2moe", {SHARED_EXPERTS}},
	{"chatglm", {GATE_UP}},
	{"glm4", {GATE_UP, GLM4}},
	{"glm4moe", {SHARED_EXPERTS, NORMS_BEHIND}},
	{"hunyuan-dense", {HUNYUAN}},
	{"internlm2", {0}},
	{"ernie4_5", {0}},
	{"deepseek2", {GATE_UP_EXPERTS, LATENT, SHARED_EXPERTS}},
	{"deepseek32", {INDEXER, GATE_UP_EXPERTS, LATENT, SHARED_EXPERTS}},
	{"glm-dsa", {INDEXER, GATE_UP_EXPERTS, LATENT, SHARED_EXPERTS}},
	{"kimi-linear", {KIMI_LINEAR, LATENT, MIXTRAL}},
	{"afmoe", {AFMOE, SHARED_EXPERTS}},
	{"baichuan", {0}},
	{"orion", {0}},
	{"jais2", {0}},
	{"pangu-embedded", {0}},
	{"paddleocr", {0}},
	{"bitnet", {BITNET}},
	{"minicpm3", {LATENT}},
	{"exaone-moe", {SHARED_EXPERTS}},
	{"apertus", {APERTUS}},
	{"ernie4_5-moe", {ERNIE_MOE, SHARED_EXPERTS}},
	{"hunyuan-moe", {HUNYUAN, HUNYUAN_MOE}},
	{"gpt-oss", {GPT_OSS, NORMS_BEHIND}},
	{"mellum", {0}},
	{"step35", {STEP35, SHARED_EXPERTS}},
	{"qwen3vlmoe", {0}},
	{"minimax-m2", {CHOICE_BIAS, MIXTRAL}},
	{"dots1", {SHARED_EXPERTS}},
	{"bailingmoe2", {LING, SHARED_EXPERTS}, WHOLE_LING},
	{"minicpm", {0}},
	{"lfm2", {LFM2}, WHOLE_LFM2},
	{"lfm2moe", {LFM2}, WHOLE_LFM2},
	{"qwen3next", {DELTA_RULE, SHARED_EXPERT, NORMS_BEHIND}},
	{"qwen35", {DELTA_RULE, NORMS_BEHIND}},
	{"qwen35moe", {DELTA_RULE, SHARED_EXPERT, NORMS_BEHIND}},
	{"granitehybrid", {GRANITE_HYBRID, GRANITE_MOE, GRANITE_SHARED}},
	{"nemotron_h", {NEMOTRON_H}, WHOLE_NEMOTRON_H},
	{"nemotron_h_moe", {NEMOTRON_H}, WHOLE_NEMOTRON_H},
	{"falcon-h1", {FALCON_H1}, WHOLE_JAMBA},
	{"jamba", {JAMBA}, WHOLE_JAMBA},
	{"mamba", {MAMBA_ALONE}, WHOLE_NEMOTRON_H},
	{"mamba2", {MAMBA2_ALONE}, WHOLE_NEMOTRON_H},
};
/* clang-format on */

#endif
