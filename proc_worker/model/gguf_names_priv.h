/* What tensors are called in GGUF files of each architecture (gguf, constants.py and tensor_mapping.py). Only gguf_architectures_priv.h includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_GGUF_NAMES_PRIV_H
#define TERCET_PROC_WORKER_MODEL_GGUF_NAMES_PRIV_H

#include "common/types.h"

/* Without ".weight" and ".bias" at the end, which are the same in both. "{}" is the expert, or of the model's own tensors which of several it is;
 * where it is not in the file's name, too, the tensor has all of them. */
struct name {
	const char *file, *here;
	bool flat;     /* its one row is a vector in the file */
	bool heads;    /* of three dimensions, the first two of which are one here */
	bool vector;   /* a vector here, whatever dimensions it has in the file */
	bool channels; /* a convolution: each channel is of one input, which the file leaves out */
	bool turns;    /* rows take turns with those of the tensor of up, which has no row of its own in the table */
	bool halves;   /* of each expert the first half of the rows is gate's, the second up's, which are called ...gate_proj and ...up_proj */
	bool bare;     /* without ".weight" or ".bias" here */
};

/* clang-format off */
static const struct name WHOLE[] = {
	{"token_embd", "model.embed_tokens"},
	{"output_norm", "model.norm"},
	{"output", "lm_head"},
	{NULL, NULL},
};

static const struct name WHOLE_LFM2[] = {
	{"token_embd_norm", "model.embedding_norm"},
	{NULL, NULL},
};

static const struct name WHOLE_NEMOTRON_H[] = {
	{"token_embd", "model.embeddings"},
	{"output_norm", "model.norm_f"},
	{NULL, NULL},
};

static const struct name WHOLE_JAMBA[] = {
	{"output_norm", "model.final_layernorm"},
	{NULL, NULL},
};

/* What follows is of layers. */
static const struct name USUAL[] = {
	{"attn_norm", "input_layernorm"},
	{"attn_q", "self_attn.q_proj"},
	{"attn_k", "self_attn.k_proj"},
	{"attn_v", "self_attn.v_proj"},
	{"attn_qkv", "self_attn.qkv_proj"},
	{"attn_output", "self_attn.o_proj"},
	{"attn_q_norm", "self_attn.q_norm"},
	{"attn_k_norm", "self_attn.k_norm"},
	{"ffn_norm", "post_attention_layernorm"},
	{"ffn_gate", "mlp.gate_proj"},
	{"ffn_up", "mlp.up_proj"},
	{"ffn_down", "mlp.down_proj"},
	{"ffn_gate_inp", "mlp.gate"},
	{"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
	{"ffn_up_exps", "mlp.experts.{}.up_proj"},
	{"ffn_down_exps", "mlp.experts.{}.down_proj"},
	{NULL, NULL},
};

static const struct name MIXTRAL[] = {
	{"ffn_gate_inp", "block_sparse_moe.gate"},
	{"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
	{"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
	{"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
	/* in the first files, where each expert has tensors of its own */
	{"ffn_gate.{}", "block_sparse_moe.experts.{}.w1"},
	{"ffn_up.{}", "block_sparse_moe.experts.{}.w3"},
	{"ffn_down.{}", "block_sparse_moe.experts.{}.w2"},
	{NULL, NULL},
};

static const struct name GRANITE_MOE[] = {
	{"ffn_gate_inp", "block_sparse_moe.router.layer"},
	{"ffn_gate_exps", "block_sparse_moe.experts.{}.gate_proj"},
	{"ffn_up_exps", "block_sparse_moe.experts.{}.up_proj"},
	{"ffn_down_exps", "block_sparse_moe.experts.{}.down_proj"},
	{NULL, NULL},
};

static const struct name SHARED_EXPERT[] = {
	{"ffn_gate_inp_shexp", "mlp.shared_expert_gate", .flat = true},
	{"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_expert.up_proj"},
	{"ffn_down_shexp", "mlp.shared_expert.down_proj"},
	{NULL, NULL},
};

static const struct name SHARED_EXPERTS[] = {
	{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_experts.up_proj"},
	{"ffn_down_shexp", "mlp.shared_experts.down_proj"},
	{"exp_probs_b", "mlp.gate.e_score_correction_bias", .bare = true},
	{NULL, NULL},
};

static const struct name LATENT[] = {
	{"attn_q_a", "self_attn.q_a_proj"},
	{"attn_q_a_norm", "self_attn.q_a_layernorm"},
	{"attn_q_b", "self_attn.q_b_proj"},
	{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
	{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
	{"attn_kv_b", "self_attn.kv_b_proj"},
	/* or in two, head by head: that of keys turned, [heads][latents][keys], and [heads][values][latents] */
	{"attn_k_b", "self_attn.k_b_proj", .heads = true},
	{"attn_v_b", "self_attn.v_b_proj", .heads = true},
	{NULL, NULL},
};

static const struct name GATE_UP[] = {
	{"ffn_up", "mlp.gate_up_proj"},
	{NULL, NULL},
};

/* Norms of what blocks read and of what they add. */
static const struct name GEMMA2[] = {
	{"post_attention_norm", "post_attention_layernorm"},
	{"ffn_norm", "pre_feedforward_layernorm"},
	{"post_ffw_norm", "post_feedforward_layernorm"},
	{NULL, NULL},
};

static const struct name GLM4[] = {
	{"post_attention_norm", "post_self_attn_layernorm"},
	{"post_ffw_norm", "post_mlp_layernorm"},
	{NULL, NULL},
};

/* Norms of what blocks add only, or the one of what the MLP reads by the place where it is. */
static const struct name NORMS_BEHIND[] = {
	{"post_attention_norm", "post_attention_layernorm"},
	{"post_ffw_norm", "post_feedforward_layernorm"},
	{NULL, NULL},
};

static const struct name WHOLE_STARCODER[] = {
	{"token_embd", "transformer.wte"},
	{"position_embd", "transformer.wpe"},
	{"output_norm", "transformer.ln_f"},
	{NULL, NULL},
};

static const struct name STARCODER[] = {
	{"attn_norm", "ln_1"},
	{"attn_qkv", "attn.c_attn"},
	{"attn_output", "attn.c_proj"},
	{"ffn_norm", "ln_2"},
	{"ffn_up", "mlp.c_fc"},
	{"ffn_down", "mlp.c_proj"},
	{NULL, NULL},
};

/* What it has beside STARCODER's: its checkpoints have matrices transposed. */
static const struct name GPT2[] = {
	{"attn_qkv.weight", "attn.c_attn_rows"},
	{"attn_output.weight", "attn.c_proj_rows"},
	{"ffn_up.weight", "mlp.c_fc_rows"},
	{"ffn_down.weight", "mlp.c_proj_rows"},
	{NULL, NULL},
};

static const struct name WHOLE_GPT_NEOX[] = {
	{"token_embd", "gpt_neox.embed_in"},
	{"output_norm", "gpt_neox.final_layer_norm"},
	{"output", "embed_out"},
	{NULL, NULL},
};

/* Queries of all heads lie before their keys and values there. */
static const struct name GPT_NEOX[] = {
	{"attn_qkv", "attention.qkv"},
	{"attn_output", "attention.dense"},
	{"ffn_up", "mlp.dense_h_to_4h"},
	{"ffn_down", "mlp.dense_4h_to_h"},
	{NULL, NULL},
};

static const struct name WHOLE_FALCON[] = {
	{"token_embd", "transformer.word_embeddings"},
	{"output_norm", "transformer.ln_f"},
	{NULL, NULL},
};

/* Queries of all heads lie before their keys and values there. */
static const struct name FALCON[] = {
	{"attn_norm", "input_layernorm"},
	{"attn_qkv", "self_attention.qkv"},
	{"attn_output", "self_attention.dense"},
	{"ffn_up", "mlp.dense_h_to_4h"},
	{"ffn_down", "mlp.dense_4h_to_h"},
	{NULL, NULL},
};

/* BLOOM's layers have FALCON's names. */
static const struct name WHOLE_BLOOM[] = {
	{"token_embd", "transformer.word_embeddings"},
	{"token_embd_norm", "transformer.word_embeddings_layernorm"},
	{"output_norm", "transformer.ln_f"},
	{NULL, NULL},
};

static const struct name WHOLE_MPT[] = {
	{"token_embd", "transformer.wte"},
	{"position_embd", "transformer.wpe"},
	{"output_norm", "transformer.norm_f"},
	{NULL, NULL},
};
static const struct name MPT[] = {
	{"attn_norm", "norm_1"},
	{"attn_qkv", "attn.Wqkv"},
	{"attn_output", "attn.out_proj"},
	{"ffn_norm", "norm_2"},
	{"ffn_up", "ffn.up_proj"},
	{"ffn_down", "ffn.down_proj"},
	{NULL, NULL},
};

/* Where there is a norm for each block the first one is the MLP's. */
static const struct name FALCON_NORMS[] = {
	{"attn_norm", "ln_mlp"},
	{"attn_norm_2", "ln_attn"},
	{NULL, NULL},
};

static const struct name STARCODER2[] = {
	{"ffn_up", "mlp.c_fc"},
	{"ffn_down", "mlp.c_proj"},
	{NULL, NULL},
};

static const struct name HUNYUAN[] = {
	{"attn_q_norm", "self_attn.query_layernorm"},
	{"attn_k_norm", "self_attn.key_layernorm"},
	{NULL, NULL},
};

/* Layers that keep a state, and those of attention with other names than usual. */
static const struct name LFM2[] = {
	{"attn_norm", "operator_norm"},
	{"attn_output", "self_attn.out_proj"},
	{"attn_q_norm", "self_attn.q_layernorm"},
	{"attn_k_norm", "self_attn.k_layernorm"},
	{"shortconv.in_proj", "conv.in_proj"},
	{"shortconv.conv", "conv.conv", .channels = true},
	{"shortconv.out_proj", "conv.out_proj"},
	{"ffn_norm", "ffn_norm"},
	{"ffn_gate", "feed_forward.w1"},
	{"ffn_up", "feed_forward.w3"},
	{"ffn_down", "feed_forward.w2"},
	{"ffn_gate_inp", "feed_forward.gate"},
	{"ffn_gate_exps", "feed_forward.experts.{}.w1"},
	{"ffn_up_exps", "feed_forward.experts.{}.w3"},
	{"ffn_down_exps", "feed_forward.experts.{}.w2"},
	{"exp_probs_b", "feed_forward.expert_bias", .bare = true},
	{NULL, NULL},
};

static const struct name DELTA_RULE[] = {
	{"attn_qkv", "linear_attn.in_proj_qkv"},
	{"attn_gate", "linear_attn.in_proj_z"},
	{"ssm_in", "linear_attn.in_proj_qkvz"}, /* in the first files, instead of these two */
	{"ssm_beta", "linear_attn.in_proj_b"},
	{"ssm_alpha", "linear_attn.in_proj_a"},
	{"ssm_ba", "linear_attn.in_proj_ba"},
	{"ssm_conv1d", "linear_attn.conv1d", .channels = true},
	{"ssm_a", "linear_attn.A_log", .vector = true},
	{"ssm_dt", "linear_attn.dt_bias", .bare = true},
	{"ssm_norm", "linear_attn.norm"},
	{"ssm_out", "linear_attn.out_proj"},
	{NULL, NULL},
};

#define MAMBA(at) \
	{"ssm_in", at "in_proj"}, {"ssm_conv1d", at "conv1d", .channels = true}, {"ssm_a", at "A_log", .vector = true}, \
	{"ssm_d", at "D", .vector = true}, {"ssm_dt", at "dt_bias", .bare = true}, {"ssm_norm", at "norm", .vector = true}, \
	{"ssm_out", at "out_proj"}

static const struct name GRANITE_SHARED[] = {
	{"ffn_gate_shexp", "shared_mlp.gate_proj"},
	{"ffn_up_shexp", "shared_mlp.up_proj"},
	{"ffn_down_shexp", "shared_mlp.output_linear"},
	{NULL, NULL},
};

static const struct name GRANITE_HYBRID[] = {
	MAMBA("mamba."),
	/* of models without experts */
	{"ffn_gate", "shared_mlp.gate_proj"},
	{"ffn_up", "shared_mlp.up_proj"},
	{"ffn_down", "shared_mlp.output_linear"},
	{NULL, NULL},
};

static const struct name NEMOTRON_H[] = {
	MAMBA("mixer."),
	{"attn_norm", "norm"},
	{"attn_q", "mixer.q_proj"},
	{"attn_k", "mixer.k_proj"},
	{"attn_v", "mixer.v_proj"},
	{"attn_output", "mixer.o_proj"},
	{"ffn_up", "mixer.up_proj"},
	{"ffn_down", "mixer.down_proj"},
	{"ffn_gate_inp", "mixer.gate"},
	{"exp_probs_b", "mixer.gate.e_score_correction_bias", .bare = true},
	{"ffn_up_exps", "mixer.experts.{}.up_proj"},
	{"ffn_down_exps", "mixer.experts.{}.down_proj"},
	{"ffn_up_shexp", "mixer.shared_experts.up_proj"},
	{"ffn_down_shexp", "mixer.shared_experts.down_proj"},
	{"ffn_latent_down", "mixer.fc1_latent_proj"},
	{"ffn_latent_up", "mixer.fc2_latent_proj"},
	{NULL, NULL},
};

static const struct name FALCON_H1[] = {
	MAMBA("mamba."),
	{"ffn_norm", "pre_ff_layernorm"},
	{"ffn_gate", "feed_forward.gate_proj"},
	{"ffn_up", "feed_forward.up_proj"},
	{"ffn_down", "feed_forward.down_proj"},
	{NULL, NULL},
};

/* Mamba's first generation. */
#define SELECTIVE(at) \
	{"ssm_in", at "in_proj"}, {"ssm_conv1d", at "conv1d", .channels = true}, {"ssm_x", at "x_proj"}, {"ssm_dt", at "dt_proj"}, {"ssm_a", at "A_log"}, \
	{"ssm_d", at "D"}, {"ssm_out", at "out_proj"}

static const struct name JAMBA[] = {
	SELECTIVE("mamba."),
	{"ssm_dt_norm", "mamba.dt_layernorm"},
	{"ssm_b_norm", "mamba.b_layernorm"},
	{"ssm_c_norm", "mamba.c_layernorm"},
	{"ffn_norm", "pre_ff_layernorm"},
	{"ffn_gate", "feed_forward.gate_proj"},
	{"ffn_up", "feed_forward.up_proj"},
	{"ffn_down", "feed_forward.down_proj"},
	{"ffn_gate_inp", "feed_forward.router"},
	{"ffn_gate_exps", "feed_forward.experts.{}.gate_proj"},
	{"ffn_up_exps", "feed_forward.experts.{}.up_proj"},
	{"ffn_down_exps", "feed_forward.experts.{}.down_proj"},
	{NULL, NULL},
};

static const struct name MAMBA_ALONE[] = {
	SELECTIVE("mixer."),
	{"attn_norm", "norm"},
	{NULL, NULL},
};

static const struct name MAMBA2_ALONE[] = {
	MAMBA("mixer."),
	{"attn_norm", "norm"},
	{NULL, NULL},
};

static const struct name APERTUS[] = {
	{"attn_norm", "attention_layernorm"},
	{"ffn_norm", "feedforward_layernorm"},
	{NULL, NULL},
};

static const struct name HUNYUAN_MOE[] = {
	{"ffn_gate_inp", "mlp.gate.wg"},
	{"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
	{"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
	{NULL, NULL},
};

static const struct name ERNIE_MOE[] = {
	{"exp_probs_b", "mlp.moe_statics.e_score_correction_bias", .flat = true, .bare = true},
	{NULL, NULL},
};

static const struct name GPT_OSS[] = {
	{"attn_sinks", "self_attn.sinks", .bare = true},
	{"ffn_gate_inp", "mlp.router"},
	{"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", .bare = true, .turns = true},
	{"ffn_down_exps.bias", "mlp.experts.down_proj_bias", .bare = true},
	{"ffn_gate_exps", "mlp.experts.{}.gate_up", .turns = true},
	{"ffn_down_exps", "mlp.experts.{}.down"},
	{"ffn_up_exps", NULL},
	{NULL, NULL},
};

static const struct name WHOLE_GEMMA4[] = {
	{"per_layer_token_embd", "model.embed_tokens_per_layer"},
	{"per_layer_model_proj", "model.per_layer_model_projection"},
	{"per_layer_proj_norm", "model.per_layer_projection_norm"},
	{NULL, NULL},
};

/* What it has beside GEMMA2's. */
static const struct name GEMMA4[] = {
	{"layer_output_scale", "layer_scalar", .bare = true},
	{"inp_gate", "per_layer_input_gate"},
	{"proj", "per_layer_projection"},
	{"post_norm", "post_per_layer_input_norm"},
	{"ffn_gate_inp", "router.proj"},
	{"ffn_gate_inp.scale", "router.scale"},
	{"ffn_down_exps.scale", "router.per_expert_scale"},
	{"ffn_gate_up_exps", "experts.{}.", .halves = true},
	{"ffn_gate_exps", "experts.{}.gate_proj"},
	{"ffn_up_exps", "experts.{}.up_proj"},
	{"ffn_down_exps", "experts.{}.down_proj"},
	{"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
	{"post_ffw_norm_1", "post_feedforward_layernorm_1"},
	{"post_ffw_norm_2", "post_feedforward_layernorm_2"},
	{NULL, NULL},
};

static const struct name WHOLE_GEMMA3N[] = {
	{"per_layer_token_embd", "model.embed_tokens_per_layer"},
	{"per_layer_model_proj", "model.per_layer_model_projection"},
	{"per_layer_proj_norm", "model.per_layer_projection_norm"},
	{"altup_proj", "model.altup_projections.{}"},
	{"altup_unembd_proj", "model.altup_unembed_projections.{}"},
	{NULL, NULL},
};

/* What it has beside GEMMA2's. */
static const struct name GEMMA3N[] = {
	{"inp_gate", "per_layer_input_gate"},
	{"proj", "per_layer_projection"},
	{"post_norm", "post_per_layer_input_norm"},
	{"altup_correct_coef", "altup.correction_coefs"},
	{"altup_correct_scale", "altup.correct_output_scale", .bare = true},
	{"altup_predict_coef", "altup.prediction_coefs"},
	{"altup_router", "altup.modality_router"},
	{"altup_router_norm", "altup.router_norm"},
	{"laurel_l", "laurel.linear_left"},
	{"laurel_r", "laurel.linear_right"},
	{"laurel_post_norm", "laurel.post_laurel_norm"},
	{NULL, NULL},
};

static const struct name WHOLE_LING[] = {
	{"token_embd", "model.word_embeddings"},
	{NULL, NULL},
};

static const struct name LING[] = {
	{"attn_qkv", "attention.query_key_value"},
	{"attn_output", "attention.dense"},
	{"attn_q_norm", "attention.query_layernorm"},
	{"attn_k_norm", "attention.key_layernorm"},
	{"exp_probs_b", "mlp.gate.expert_bias", .bare = true},
	{NULL, NULL},
};

static const struct name WHOLE_PHI2[] = {
	{"output_norm", "model.final_layernorm"},
	{NULL, NULL},
};

static const struct name PHI2[] = {
	{"attn_output", "self_attn.dense"},
	{"ffn_up", "mlp.fc1"},
	{"ffn_down", "mlp.fc2"},
	{NULL, NULL},
};

static const struct name LLAMA4[] = {
	{"ffn_gate", "feed_forward.gate_proj"},
	{"ffn_up", "feed_forward.up_proj"},
	{"ffn_down", "feed_forward.down_proj"},
	{"ffn_gate_inp", "feed_forward.router"},
	{"ffn_gate_exps", "feed_forward.experts.{}.gate"},
	{"ffn_up_exps", "feed_forward.experts.{}.up"},
	{"ffn_down_exps", "feed_forward.experts.{}.down"},
	{"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
	{"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
	{"ffn_down_shexp", "feed_forward.shared_expert.down_proj"},
	{NULL, NULL},
};

/* Norms before and behind the blocks. */
static const struct name STEP35[] = {
	{"attn_gate", "self_attn.g_proj"},
	{NULL, NULL},
};

static const struct name AFMOE[] = {
	{"attn_gate", "self_attn.gate_proj"},
	{"post_attention_norm", "post_attention_layernorm"},
	{"ffn_norm", "pre_mlp_layernorm"},
	{"post_ffw_norm", "post_mlp_layernorm"},
	{"ffn_gate_inp", "mlp.router.gate"},
	{"exp_probs_b", "mlp.expert_bias", .bare = true},
	{NULL, NULL},
};

/* Experts' gates and values in one tensor. */
static const struct name GATE_UP_EXPERTS[] = {
	{"ffn_gate_up_exps", "mlp.experts.{}.", .halves = true},
	{NULL, NULL},
};

static const struct name KIMI_LINEAR[] = {
	{"ssm_conv1d_q", "self_attn.q_conv1d", .channels = true},
	{"ssm_conv1d_k", "self_attn.k_conv1d", .channels = true},
	{"ssm_conv1d_v", "self_attn.v_conv1d", .channels = true},
	{"ssm_f_a", "self_attn.f_a_proj"},
	{"ssm_f_b", "self_attn.f_b_proj"},
	{"ssm_g_a", "self_attn.g_a_proj"},
	{"ssm_g_b", "self_attn.g_b_proj"},
	{"ssm_beta", "self_attn.b_proj"},
	{"ssm_a", "self_attn.A_log", .vector = true},
	{"ssm_dt", "self_attn.dt_bias", .bare = true},
	{"ssm_norm", "self_attn.o_norm"},
	{"exp_probs_b", "block_sparse_moe.gate.e_score_correction_bias", .bare = true},
	{"ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"},
	{"ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"},
	{"ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"},
	{NULL, NULL},
};

/* What chooses tokens. */
static const struct name INDEXER[] = {
	{"indexer.k_norm", "self_attn.indexer.k_norm"},
	{"indexer.proj", "self_attn.indexer.weights_proj"},
	{"indexer.attn_k", "self_attn.indexer.wk"},
	{"indexer.attn_q_b", "self_attn.indexer.wq_b"},
	{NULL, NULL},
};

static const struct name WHOLE_QWEN[] = {
	{"token_embd", "transformer.wte"},
	{"output_norm", "transformer.ln_f"},
	{NULL, NULL},
};

static const struct name QWEN[] = {
	{"attn_norm", "ln_1"},
	{"attn_qkv", "attn.c_attn"},
	{"attn_output", "attn.c_proj"},
	{"ffn_norm", "ln_2"},
	{"ffn_gate", "mlp.w2"},
	{"ffn_up", "mlp.w1"},
	{"ffn_down", "mlp.c_proj"},
	{NULL, NULL},
};

/* Norms of all heads in one tensor. */
static const struct name STABLELM[] = {
	{"attn_q_norm", "self_attn.q_layernorm.norms.{}"},
	{"attn_k_norm", "self_attn.k_layernorm.norms.{}"},
	{NULL, NULL},
};

static const struct name BITNET[] = {
	{"attn_sub_norm", "self_attn.attn_sub_norm"},
	{"ffn_sub_norm", "mlp.ffn_sub_norm"},
	{NULL, NULL},
};

static const struct name CHOICE_BIAS[] = {
	{"exp_probs_b", "block_sparse_moe.e_score_correction_bias", .bare = true},
	{NULL, NULL},
};
/* clang-format on */

#endif
