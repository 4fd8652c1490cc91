/* Which tensors the checkpoints of families have in which nothing rotates: heads have ALiBi, or positions are added to embeddings. And rows of those
 * families, which arch_table.c, that alone includes it, has beside others. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_UNROTATED_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_UNROTATED_PRIV_H

#include "proc_worker/model/arch_tensors_gpt_priv.h"

/* clang-format off */
/* q, k and v are fused head by head; in GGUF files they lie one behind the other. */
static const struct arch_tensor BLOOM[] = {
	{SLOT_EMBED, GPT2 "word_embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_NORM(SLOT_EMBED_NORM, SLOT_EMBED_NORM_BIAS, GPT2 "word_embeddings_layernorm"),
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "ln_f"),
	GPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, GPT2_LAYER "input_layernorm"),
	GPT_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, GPT2_LAYER "post_attention_layernorm"),
	FALCON_QKV(SLOT_QKV, ".weight", DIM_HIDDEN, WHEN_ALWAYS), FALCON_QKV(SLOT_QKV_BIAS, ".bias", DIM_NONE, WHEN_ALWAYS),
	{SLOT_ATTN_OUT, GPT2_LAYER "self_attention.dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	GPT_VECTOR(SLOT_ATTN_OUT_BIAS, GPT2_LAYER "self_attention.dense.bias"),
	UNGATED_OF(GPT2_LAYER "mlp.dense_h_to_4h", GPT2_LAYER "mlp.dense_4h_to_h"),
};
#define BLOOM_ARCH \
	{"BloomForCausalLM", BLOOM, COUNT_OF(BLOOM), ARCH_TIED, \
	 .fields = {{"n_embed", "hidden_size"}, {"n_layer", "num_hidden_layers"}, {"n_head", "num_attention_heads"}, {"n_inner", "intermediate_size"}, \
		    {"seq_length", "max_position_embeddings"}}, \
	 .own = {"apply_residual_connection_post_layernorm", "slow_but_exact", "skip_bias_add_qkv"}, .layer_norm = "layer_norm_epsilon", .unrotated = true, \
	 .ungated = true, .alibi = true, .activation = KERN_GELU_TANH, .context = 2048, .inner = 4, .norm_eps = 1e-5f}

/* All that is added, of norms, too, is there unless "no_bias" is true. */
#define MPT_LAYER GPT2 "blocks.{}."
#define MPT_BIAS(slot, name) {slot, name ".bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}
#define MPT_NORM(norm, bias, name) GPT_VECTOR(norm, name ".weight"), MPT_BIAS(bias, name)
#define MPT_QKV_BIAS(rows_, before_) \
	{SLOT_QKV_BIAS, MPT_LAYER "attn.Wqkv.bias", rows_, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS, .whole = DIM_QKV, .before = before_}
static const struct arch_tensor MPT[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_POSITIONS, GPT2 "wpe.weight", DIM_CONTEXT, DIM_HIDDEN, SPLIT_NONE, WHEN_POSITIONS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	MPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "norm_f"),
	MPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, MPT_LAYER "norm_1"), MPT_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, MPT_LAYER "norm_2"),
	PACKED_QKV(SLOT_QKV, MPT_LAYER "attn.Wqkv.weight", DIM_HIDDEN),
	MPT_QKV_BIAS(DIM_HEADS, DIM_NONE), MPT_QKV_BIAS(DIM_KV_HEADS, DIM_HEADS), MPT_QKV_BIAS(DIM_KV_HEADS, DIM_HEADS_KV),
	{SLOT_ATTN_OUT, MPT_LAYER "attn.out_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS}, MPT_BIAS(SLOT_ATTN_OUT_BIAS, MPT_LAYER "attn.out_proj"),
	{SLOT_GATE_UP, MPT_LAYER "ffn.up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP_BIAS, MPT_LAYER "ffn.up_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS},
	{SLOT_DOWN, MPT_LAYER "ffn.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS}, MPT_BIAS(SLOT_DOWN_BIAS, MPT_LAYER "ffn.down_proj"),
};
/* Its files and transformers write the name differently. */
#define MPT_ARCH(name) \
	{name, MPT, COUNT_OF(MPT), ARCH_TIED, \
	 .fields = {{"d_model", "hidden_size"}, {"n_layers", "num_hidden_layers"}, {"n_heads", "num_attention_heads"}, \
		    {"max_seq_len", "max_position_embeddings"}, {"no_bias", "without_bias"}, {"norm_type", "layer_norm_type"}}, \
	 .own = {"attn_config", "without_bias", "expansion_ratio", "learned_pos_emb", "layer_norm_type", "ffn_config"}, .layer_norm = "layer_norm_epsilon", \
	 .unrotated = true, .ungated = true, .alibi = true, .activation = KERN_GELU, .context = 2048, .inner = 4, .norm_eps = 1e-5f}

/* As GPT-J's but for norms, biases and positions. */
static const struct arch_tensor GPT_NEO[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, {SLOT_POSITIONS, GPT2 "wpe.weight", DIM_CONTEXT, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "ln_f"),
	GPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, GPT2_LAYER "ln_1"), GPT_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, GPT2_LAYER "ln_2"),
	{SLOT_QKV, GPT2_LAYER "attn.attention.q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.attention.k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.attention.v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.attention.out_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	GPT_VECTOR(SLOT_ATTN_OUT_BIAS, GPT2_LAYER "attn.attention.out_proj.bias"), UNGATED_OF(GPT2_LAYER "mlp.c_fc", GPT2_LAYER "mlp.c_proj"),
};
#define GPT_NEO_ARCH \
	{"GPTNeoForCausalLM", GPT_NEO, COUNT_OF(GPT_NEO), ARCH_TIED, \
	 .fields = {{"num_layers", "num_hidden_layers"}, {"num_heads", "num_attention_heads"}, {"activation_function", "hidden_act"}, \
		    {"window_size", "sliding_window"}}, \
	 .own = {"attention_types", "attention_layers", "sliding_window"}, .layer_norm = "layer_norm_epsilon", .ungated = true, .positions = true, \
	 .unscaled = true, .activation = KERN_GELU_TANH, .inner = 4, .norm_eps = 1e-5f}

/* Both begin as OPT's layers do. Norms have one epsilon, whatever "layer_norm_eps" says. */
#define EPSILON_UNREAD {"layer_norm_eps", "_layer_norm_eps"}
#define SEQUENCE_LAYER(layer) \
	GPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, layer "self_attn_layer_norm"), GPT_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, layer "final_layer_norm"), \
	{SLOT_QKV, layer "self_attn.q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS}, {SLOT_QKV, layer "self_attn.k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_QKV, layer "self_attn.v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_QKV_BIAS, layer "self_attn.q_proj.bias", DIM_HEADS, DIM_NONE, SPLIT_ROWS}, {SLOT_QKV_BIAS, layer "self_attn.k_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS}, \
	{SLOT_QKV_BIAS, layer "self_attn.v_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS}, \
	{SLOT_ATTN_OUT, layer "self_attn.out_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS}, GPT_VECTOR(SLOT_ATTN_OUT_BIAS, layer "self_attn.out_proj.bias"), \
	UNGATED_OF(layer "fc1", layer "fc2")

#define BIOGPT_ "biogpt."
static const struct arch_tensor BIOGPT[] = {
	{SLOT_EMBED, BIOGPT_ "embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_POSITIONS, BIOGPT_ "embed_positions.weight", DIM_CONTEXT, DIM_HIDDEN, .whole = DIM_CONTEXT_PADDED, .before = DIM_TWO},
	{SLOT_LM_HEAD, "output_projection.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, BIOGPT_ "layer_norm"), SEQUENCE_LAYER(BIOGPT_ "layers.{}."),
};
#define BIOGPT_ARCH \
	{"BioGptForCausalLM", BIOGPT, COUNT_OF(BIOGPT), ARCH_TIED, .fields = {EPSILON_UNREAD}, .own = {"scale_embedding"}, .layer_norm = "layer_norm_eps", \
	 .ungated = true, .positions = true, .activation = KERN_GELU, .norm_eps = 1e-5f}

/* Positions are in no file. */
static const struct arch_tensor XGLM[] = {
	{SLOT_EMBED, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, {SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, "model.layer_norm"), SEQUENCE_LAYER(LAYER),
};
#define XGLM_ARCH \
	{"XGLMForCausalLM", XGLM, COUNT_OF(XGLM), ARCH_TIED, \
	 .fields = {{"d_model", "hidden_size"}, {"num_layers", "num_hidden_layers"}, {"attention_heads", "num_attention_heads"}, {"ffn_dim", "intermediate_size"}, \
		    {"activation_function", "hidden_act"}, EPSILON_UNREAD}, \
	 .own = {"scale_embedding"}, .layer_norm = "layer_norm_eps", .ungated = true, .positions = true, .sinusoids = true, .activation = KERN_GELU, \
	 .norm_eps = 1e-5f}
/* clang-format on */

#endif
