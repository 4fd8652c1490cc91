/* The architectures that the generic decoder can run. Constant data; runs in the worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <stdio.h>
#include <string.h>

static const struct arch_tensor LLAMA[] = {
	{SLOT_EMBED, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_FINAL_NORM, "model.norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_ATTN_NORM, "model.layers.{}.input_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_QKV, "model.layers.{}.self_attn.q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, "model.layers.{}.self_attn.k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, "model.layers.{}.self_attn.v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_ATTN_OUT, "model.layers.{}.self_attn.o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_MLP_NORM, "model.layers.{}.post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_GATE_UP, "model.layers.{}.mlp.gate_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP, "model.layers.{}.mlp.up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_DOWN, "model.layers.{}.mlp.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
};

static const struct arch ARCHS[] = {
	{"LlamaForCausalLM", LLAMA, COUNT_OF(LLAMA)},
};

const struct arch *arch_find(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(ARCHS); i++)
		if (!strcmp(ARCHS[i].name, name))
			return &ARCHS[i];
	return NULL;
}

void arch_names(char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = 0;
	for (size_t i = 0; i < COUNT_OF(ARCHS) && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? ", " : "", ARCHS[i].name);
}

void arch_tensor_name(char *out, size_t bytes, const struct arch_tensor *t, u32 layer)
{
	const char *hole = strstr(t->name, "{}");

	if (hole)
		snprintf(out, bytes, "%.*s%u%s", (int)(hole - t->name), t->name, layer, hole + 2);
	else
		snprintf(out, bytes, "%s", t->name);
}
