/* Which fields config.json may have. Runs in the worker at start. A field that nobody here knows is refused by name, for it may change what the
 * model computes. */
#include <math.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum {
	EVERY = 1u << 30, /* every family */
	EXPERTS = ARCH_EXPERTS_ALL | ARCH_EXPERTS_SOME | ARCH_EXPERTS_OWN,
	WINDOWS = ARCH_WINDOW_ALL | ARCH_WINDOW_UPPER | ARCH_WINDOW_EVEN | ARCH_WINDOW_PATTERN | ARCH_NO_ROPE |
		  ARCH_WINDOW_LISTED,
};

/* Fields that are read, and by which families: with one of the traits, or that have it for their own. For others they must be
 * neutral. */
static const struct {
	const char *name;
	u32 traits;	/* any of them */
	double neutral; /* a number that changes nothing, beside null, false and the empty list; else NAN */
} USED[] = {
	{"architectures", EVERY, NAN},
	{"vocab_size", EVERY, NAN},
	{"hidden_size", EVERY, NAN},
	{"intermediate_size", EVERY, NAN},
	{"num_hidden_layers", EVERY, NAN},
	{"num_attention_heads", EVERY, NAN},
	{"num_key_value_heads", EVERY, NAN},
	{"head_dim", EVERY, NAN},
	{"word_embed_proj_dim", EVERY, NAN},
	{"hidden_act", EVERY, NAN},
	{"rms_norm_eps", EVERY, NAN},
	{"max_position_embeddings", EVERY, NAN},
	{"original_max_position_embeddings", EVERY, NAN},
	{"rope_theta", EVERY, NAN},
	{"rope_scaling", EVERY, NAN},
	{"rope_parameters", EVERY, NAN},
	{"layer_types", EVERY, NAN},
	{"tie_word_embeddings", EVERY, NAN},
	{"torch_dtype", EVERY, NAN},
	{"dtype", EVERY, NAN},
	{"eos_token_id", EVERY, NAN},
	{"quantization_config", EVERY, NAN},
	{"compression_config", EVERY, NAN},
	{"attention_bias", ARCH_ATTENTION_BIAS, NAN},
	{"mlp_bias", ARCH_MLP_BIAS, NAN},
	{"partial_rotary_factor", ARCH_PARTIAL_ROTARY, 1},
	{"sliding_window", WINDOWS, NAN},
	{"sliding_window_size", ARCH_WINDOW_EVEN, NAN},
	{"use_sliding_window", ARCH_WINDOW_UPPER | ARCH_NO_ROPE | ARCH_WINDOW_LISTED, NAN},
	{"sliding_window_pattern", ARCH_WINDOW_PATTERN, NAN},
	{"layer_switch", ARCH_WINDOW_PATTERN, NAN},
	{"rope_local_base_freq", ARCH_LOCAL_ROPE, NAN},
	{"no_rope_layers", ARCH_NO_ROPE, NAN},
	{"no_rope_layer_interval", ARCH_NO_ROPE, NAN},
	{"cross_attention_layers", 0, NAN},
	{"vision_lora", 0, NAN},
	{"speech_lora", 0, NAN},
	{"full_attn_mod", 0, 1},
	{"interpolate_factor", 0, 1},
	{"hidden_activation", ARCH_GELU, NAN},
	{"attn_logit_softcapping", ARCH_ATTENTION_CAP, 0},
	{"final_logit_softcapping", ARCH_SOFT_CAPS, 0},
	{"query_pre_attn_scalar", ARCH_SOFT_CAPS, NAN},
	{"num_local_experts", ARCH_EXPERTS_ALL | ARCH_EXPERTS_SOME, 0},
	{"num_experts", EXPERTS, 0},
	{"num_experts_per_tok", EXPERTS, 0},
	{"moe_intermediate_size", ARCH_EXPERTS_SOME | ARCH_EXPERTS_OWN, 0},
	{"norm_topk_prob", ARCH_EXPERTS_SOME | ARCH_EXPERTS_NORM, NAN},
	{"decoder_sparse_step", ARCH_EXPERTS_SOME, 0},
	{"mlp_only_layers", ARCH_EXPERTS_SOME, NAN},
	{"shared_expert_intermediate_size", ARCH_SHARED_EXPERT, 0},
	{"qkv_bias", ARCH_QKV_BIAS, NAN},
	{"embedding_multiplier", ARCH_MULTIPLIERS, 1},
	{"residual_multiplier", ARCH_MULTIPLIERS, 1},
	{"attention_multiplier", ARCH_MULTIPLIERS, NAN},
	{"logits_scaling", ARCH_MULTIPLIERS, 1},
	/* What the decoder has for no family, at the number that stands for its absence. */
	{"attention_out_bias", 0, 0},
	{"full_attn_mod", 0, 1},
	{"interpolate_factor", 0, 1},
	{"logit_scale", ARCH_LOGIT_SCALE, 1},
	{"use_bias", ARCH_USE_BIAS, 0},
	{"use_qkv_bias", 0, 0},
	{"use_qk_norm", 0, NAN},
	{"clip_qkv", 0, NAN},
	{"n_group", 0, 1},
	{"topk_group", 0, 1},
	{"routed_scaling_factor", 0, 1},
	{"first_k_dense_replace", 0, NAN},
	{"moe_layer_start_index", 0, NAN},
	{"moe_layer_end_index", 0, NAN},
	{"moe_layer_interval", 0, NAN},
	{"moe_norm_min", 0, NAN},
	{"shared_intermediate_size", 0, 0},
	{"use_parallel_residual", ARCH_PARALLEL_CHOICE, NAN},
	{"qk_layernorm", 0, NAN},
	{"num_nextn_predict_layers", 0, 0},
	{"n_shared_experts", 0, 0},
	{"moe_shared_expert_intermediate_size", 0, 0},
	{"rotary_pct", 0, 1},
	{"use_expert_bias", 0, NAN},
	{"block_auto_adjust_ff_dim", 0, NAN},
	{"block_ffn_dim_multiplier", 0, NAN},
	{"block_multiple_of", 0, NAN},
	{"block_dim", 0, NAN},
	{"block_norm_eps", 0, NAN},
	{"conv_dim", 0, NAN},
	{"conv_dim_out", 0, NAN},
	{"num_heads", 0, NAN},
	{"full_attn_idxs", 0, NAN},
	{"attn_layer_indices", 0, NAN},
	{"full_attention_interval", 0, NAN},
	{"attn_layer_period", 0, NAN},
	{"attn_layer_offset", 0, NAN},
	{"expert_layer_period", 0, NAN},
	{"expert_layer_offset", 0, NAN},
	{"mixer_rms_eps", 0, NAN},
	{"output_gate_type", 0, NAN},
	{"hybrid_override_pattern", 0, NAN},
	{"expand", 0, NAN}, /* of how wide heads together are, which others say */
	{"norm_eps", 0, NAN},
	{"mamba_hidden_act", 0, NAN},
	{"moe_latent_size", 0, NAN},
	{"gated_norm_rank", 0, NAN},
	{"mamba_ssm_dtype", 0, NAN}, /* of what others hold a state in; here it is float32 */
	{"linear_allow_neg_eigval", 0, NAN},
	{"lm_head_bias", 0, NAN},
	{"moe_layer_freq", 0, 1},
	{"compression_ratio", 0, 1},
	{"weight_share_add_bias", 0, NAN}, /* of biases */
	{"mlp_layer_types", 0, NAN},
	{"is_moe_layer", 0, NAN},
	{"topk_method", 0, NAN},
	{"scoring_func", 0, NAN},
	{"rope_interleave", 0, NAN},
	{"scale_emb", 0, 1},
	{"scale_depth", 0, NAN},
	{"dim_model_base", 0, NAN},
	{"rotary_dim", 0, NAN},
	{"attn_type_list", 0, NAN},
	{"shared_moe_mode", 0, NAN}, /* of an expert of all tokens, which another field says there is none of */
	{"full_attn_alpha_factor", 0, 1},
	{"full_attn_beta_factor", 0, 1},
	{"linear_attn_alpha_factor", 0, 1},
	{"linear_attn_beta_factor", 0, 1},
	{"mlp_alpha_factor", 0, 1},
	{"mlp_beta_factor", 0, 1},
	{"position_embedding_type", 0, NAN},
	{"initial_context_length", 0, NAN},
	{"layer_rope_theta", 0, NAN},
	{"attention_chunk_size", 0, NAN},
	{"attn_temperature_tuning", 0, NAN},
	{"attn_scale", 0, NAN},
	{"floor_scale", 0, NAN},
	{"moe_layers", 0, NAN},
	{"interleave_moe_layer_step", 0, NAN},
	{"intermediate_size_mlp", 0, NAN},
	{"num_expert_groups", 0, 1},
	{"num_limited_groups", 0, 1},
	{"mup_enabled", 0, NAN},
	{"layer_norm_eps", 0, NAN}, /* where norms are of another kind */
	{"prefix_dense_intermediate_size", 0, NAN},
	{"prefix_dense_sliding_window_pattern", 0, NAN},
	{"expert_selection_fn", 0, NAN},
	{"shared_expert_combination_strategy", 0, NAN},
	{"capacity_factor", 0, NAN}, /* of dropping tokens, which another field says */
	{"moe_layer_num_skipped", 0, 0},
	{"global_head_dim", 0, NAN},
	{"num_global_key_value_heads", 0, NAN},
	{"per_layer_config", 0, NAN},
	{"attention_k_eq_v", 0, NAN},
	{"hidden_size_per_layer_input", 0, 0},
	{"vocab_size_per_layer_input", 0, NAN},
	{"output_vocab_size", 0, NAN},
	{"num_attention_heads_per_layer", 0, NAN},
	{"gating", 0, NAN},
	{"hc_mult", 0, 1},
	{"hc_magnitude", 0, NAN},
	{"hc_eps", 0, NAN},
	{"swiglu_limit", 0, NAN},
	{"layer_group_size", 0, NAN},
	{"short_conv_kernel_size", 0, NAN},
	{"kda_safe_gate", 0, NAN},
	{"kda_lower_bound", 0, NAN},
	{"swiglu_limits", 0, NAN},
	{"swiglu_limits_shared", 0, NAN},
	{"moe_every_n_layer", 0, 1},
	{"moe_layer_offset", 0, 0},
	{"moe_apply_router_weight_on_input", 0, 0},
	{"moe_router_logit_softcapping", 0, 0},
	{"qk_scale_factor", 0, 1},
	{"output_multiplier", 0, 1},
	{"post_norm_eps", 0, NAN},
	{"num_kv_shared_layers", 0, 0},
	{"use_double_wide_mlp", 0, NAN},
	{"altup_num_inputs", 0, 1},
	{"altup_active_idx", 0, 0},
	{"altup_coef_clip", 0, NAN},
	{"altup_correct_scale", 0, NAN},
	{"laurel_rank", 0, 0},
	{"activation_sparsity_pattern", 0, NAN},
	{"enable_moe_block", 0, NAN},
	{"top_k_experts", 0, 0},
	{"use_bidirectional_attention", 0, NAN},
	{"mamba_d_ssm", 0, NAN},
	{"mamba_rms_norm", 0, NAN},
	{"mamba_norm_before_gate", 0, NAN},
	{"norm_before_gate", 0, NAN}, /* of a kernel that others train with: whatever files say, gates come first */
	{"linear_attn_config", 0, NAN},
	{"use_post_norm", 0, NAN},
	{"use_attention_gate", 0, NAN},
	{"alibi", 0, NAN},
	{"attn_config", 0, NAN},
	{"without_bias", 0, NAN},
	{"expansion_ratio", 0, NAN},
	{"learned_pos_emb", 0, NAN},
	{"layer_norm_type", 0, NAN},
	{"ffn_config", 0, NAN},
	{"attention_types", 0, NAN},
	{"attention_layers", 0, NAN},
	{"scale_embedding", 0, NAN},
	{"num_layers", 0, NAN},
	{"zero_expert_num", 0, 0},
	{"use_dynamic_ntk", 0, NAN},
	{"use_logn_attn", 0, NAN},
	{"block_configs", 0, NAN},
	{"num_mem_blocks", 0, NAN},
	{"adapter_rank", 0, NAN},
	{"use_shared_attention_adapter", 0, NAN},
	{"use_mem_rope", 0, NAN},
	{"attention_hidden_size", 0, NAN},
	{"ffn_hidden_size", 0, NAN},
	{"kv_channels", 0, NAN},
	{"num_query_groups", 0, NAN},
	{"hybrid_layer_ids", 0, NAN},
	{"num_key_value_heads_per_layer", 0, NAN},
	{"multi_query", 0, NAN},
	{"new_decoder_architecture", 0, NAN},
	{"num_ln_in_parallel_attn", 0, NAN},
	{"mlp_expansion_factor", 0, NAN}, /* of how wide the MLP is, which another field says */
	{"ff_factor", 0, NAN}, /* likewise */
	{"projectors_bias", 0, 0},
};

/* Fields that say what a family has anyway: one with the traits, or, without any, that has the field for its own. */
static const struct {
	const char *name;
	u32 traits;
	bool value;
} FIXED[] = {
	{"is_causal", EVERY, true}, /* else tokens see those behind them, as embeddings are made by some */
	{"scale_attn_weights", EVERY, true},
	{"do_layer_norm_before", EVERY, true},
	{"layer_norm_elementwise_affine", EVERY, true},
	{"_remove_final_layer_norm", EVERY, false},
	{"use_cla", EVERY, false},
	{"use_rotary_pos_emb", EVERY, true},
	{"add_classification_head", EVERY, false},
	{"use_qk_norm", ARCH_HEAD_NORMS, true},
	{"moe_use_aux_free", ARCH_EXPERTS_OWN, true},
	{"use_gated_activation", ARCH_LOGIT_SCALE, true},
	{"use_parallel_block", ARCH_LOGIT_SCALE, true},
	{"use_parallel_embedding", ARCH_LOGIT_SCALE, false},
	{"use_embedding_sharing", ARCH_LOGIT_SCALE, true},
	{"use_qk_norm", ARCH_QK_NORMS, true},
	{"use_routing_bias", 0, true},
	{"use_mixed_mlp_moe", 0, true},
	{"qk_norm", 0, true},
	{"use_3d_rope", 0, true},
	{"rope_is_neox_style", 0, true},
	{"postnorm", 0, true},
	{"use_pos_enc", 0, true},
	{"embeddings_scale_by_sqrt_dim", 0, true},
	{"block_use_swiglu", 0, true},
	{"attn_output_gate", 0, true},
	{"mamba_use_mlp", 0, true},
	{"route_norm", 0, true},
	{"mamba_inner_layernorms", 0, true},
	{"rms_norm", 0, true},
	{"no_bias", 0, true},
	{"mla_scale_q_lora", 0, true},
	{"mla_scale_kv_lora", 0, true},
	{"router_bias", 0, false},
	{"use_rmsnorm", 0, true},
	{"norm_head", 0, false}, /* columns of lm_head divided by their length */
	{"mla_use_nope", 0, true},
	{"use_conv_bias", 0, true},
	{"use_shared_mlp_adapter", 0, true},
	{"use_long_context", 0, false}, /* which programs disagree about */
	{"apply_residual_connection_post_layernorm", 0, false},
	{"slow_but_exact", 0, false},
	{"skip_bias_add_qkv", 0, false},
	{"rotary", 0, true},
	{"use_grouped_topk", 0, true},
	{"moe_router_enable_expert_bias", 0, true},
	{"moe_router_use_sigmoid", 0, true},
	{"moe_router_enable_routed_scaling", 0, true},
	{"moe_router_enable_shared_expert", 0, true},
	{"use_moe", 0, true},
	{"norm_expert_weight", 0, true},
	{"use_head_wise_attn_gate", 0, true},
	{"use_moe_router_bias", 0, true},
	{"zero_centered", 0, true},
	{"attention_bias", 0, true},
	{"tie_word_embeddings", 0, false}, /* which programs disagree about */
};

/* The same in words. */
static const struct {
	const char *name, *value;
	bool layer_norm; /* of families with it, else of others that have the field for their own */
} FIXED_WORDS[] = {
	{"mlp_type", "default", true},
	{"norm_type", "layer_norm", true},
	{"norm_type", "rms", false},
	{"order_of_interleaved_layers", "local_attn_first", true},
	{"position_embedding_type", "rope_gptj", true},
	{"normalization_function", "rmsnorm", false},
	{"qk_norm_type", "per_layer", false},
	{"zero_expert_type", "identity", false},
	{"attention_method", "MLA", false},
	{"att_impl_type", "GQA", false},
};

/* Fields that say nothing about the computation of logits: training, generation, book-keeping. */
/* clang-format off */
static const char *const INERT[] = {
	/* where it comes from, and for whom */
	"model_type", "transformers_version", "auto_map", "finetuning_task", "task_specific_params",
	"problem_type", "id2label", "label2id", "num_labels", "tokenizer_class", "prefix",
	"is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version", "model_name",
	"name_or_path",
	/* training */
	"initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "embd_pdrop",
	"loss_type", "resid_pdrop", "attn_pdrop", "dropout", "classifier_dropout", "hidden_dropout_prob",
	"residual_dropout", "resid_dropout", "emb_pdrop", "embedding_dropout", "embed_dropout", "emb_dropout_prob", "attn_dropout_prob", "z_loss_weight", "mtp_loss_scaling_factor", "learnable_sink_init", "output_dropout", "activation_dropout", "layerdrop", "init_std",
	"attention_probs_dropout_prob", "moe_capacity", "router_aux_loss_coef", "aux_loss_coef", "router_jitter_noise",
	"input_jitter_noise", "load_balance_coeff", "aux_loss_alpha", "seq_aux", "ep_size",
	"block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",
	"rescale_prenorm_residual", "time_step_scale", "time_step_init_scheme", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank",
	"altup_lr_multiplier", "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
	"init_method", "lambda_std_dev", "w_init_variance_scale", "final_w_init_variance_scale", "embedding_initializer_range", "output_router_logits", "gradient_checkpointing", "neftune_noise_alpha", "summary_type",
	"summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
	/* how others run it; pretraining_tp: products in pieces, the same sums */
	"pretraining_tp",
	"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input", "pre_allocate_kv_cache",
	"pad_key_length", "max_batch_size", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add", "offset_alibi",
	"init_config", "init_device", "verbose", "tokenizer_name", "embedding_fraction", "use_pad_tok_in_ffn", "fc_type",
	"residual_in_fp32", "router_dtype", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
	"num_logits_to_keep", "calc_logits_for_entire_prompt", "fused_add_norm", "pad_vocab_size_multiple", "use_mambapy", "use_falcon_mambapy",
	"enable_attention_fp32_softmax", "enable_lm_head_fp32", "need_fp32_gate", "enable_moe_fp32_combine", "use_associative_scan", "use_grouped_mm", "use_mamba_kernels", "z_loss_coefficient", "bf16", "fp16", "fp32", "softmax_in_fp32", "onnx_safe", "use_cache_kernel",
	"use_mem_eff_path", "use_cache", "cache_implementation", "attn_implementation", "return_dict", "output_hidden_states",
	"output_attentions", "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward",
	"is_decoder", "tie_encoder_decoder", "max_window_layers", "use_flash_attn",
	"use_flash_attention", "use_flash_attention_2", "max_sequence_length", "n_ctx", "reorder_and_upcast_attn", "model_max_length", "seq_length", "seq_len",
	"max_seq_len", "torch_compile", "trust_remote_code", "keys_to_ignore_at_inference", "output_past",
	/* of layers behind the model's own that guess further tokens, or of models that do */
	"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mtp_layer_types", "mtp_mlp_layer_types", "mtp_num_hidden_layers",
	"mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_use_dedicated_embeddings", "mup_denominator",
	/* images and sound, which are not computed */
	"vision_config", "audio_config", "audio_processor", "img_processor", "embd_layer", "image_token_id", "video_token_id", "vision_token_id", "vision_start_token_id",
	"vision_end_token_id", "perceiver_config", "pixel_shuffle_factor", "is_composition",
	/* text */
	"bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "add_bos_token", "add_eos_token",
	/* generation */
	"max_new_tokens",
	"eod_token_id", "end_token_id", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "pad_id", "text_end_id",
	"ignored_index", "text_start_id", "org_vocab_size", "cla_share_factor", "class_num", "pool_type", "dense_list",
	"bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
	"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
	"diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
	"length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
	"num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
	"forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
	"suppress_tokens", "begin_suppress_tokens",
};
/* clang-format on */

static bool is_neutral(json_val v, double neutral)
{
	bool flag;
	double number;

	if (json_bool(v, &flag))
		return !flag;
	if (json_double(v, &number))
		return number == neutral;
	return !json_present(v) || (json_type(v) != JSON_STRING && json_count(v) == 0);
}

bool config_is_inert(const char *name)
{
	if (name[0] == '_') /* by convention what a program notes for itself */
		return true;
	for (size_t i = 0; i < COUNT_OF(INERT); i++)
		if (!strcmp(INERT[i], name))
			return true;
	return false;
}

/* A window that is switched off is one in no family. */
static bool window_is_off(const char *name, json_val v)
{
	bool on = true;

	return !strcmp(name, "sliding_window") && json_bool(json_get(v, "use_sliding_window"), &on) && !on;
}

/* What a field of a family must say; NULL: it is none of FIXED_WORDS. */
static const char *only_word(const struct arch *arch, const char *name)
{
	for (size_t i = 0; i < COUNT_OF(FIXED_WORDS); i++)
		if (!strcmp(FIXED_WORDS[i].name, name) && (FIXED_WORDS[i].layer_norm ? arch->layer_norm != NULL : arch_has_own(arch, name)))
			return FIXED_WORDS[i].value;
	return NULL;
}

static enum err check_field(const struct arch *arch, json_val v, const char *name, json_val value,
			    struct err_msg *em)
{
	double neutral = NAN;
	bool known = false, flag;

	for (size_t i = 0; i < COUNT_OF(FIXED); i++)
		if (!strcmp(FIXED[i].name, name) &&
		    (FIXED[i].traits ? FIXED[i].traits & (arch->traits | EVERY) : arch_has_own(arch, name))) {
			if (!json_present(value) || (json_bool(value, &flag) && flag == FIXED[i].value))
				return ERR_OK;
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" must be %s for %s", name,
				       FIXED[i].value ? "true" : "false", arch->name);
		}
	if (config_is_inert(name) || window_is_off(name, v) || (arch->layer_norm && !strcmp(name, arch->layer_norm)))
		return ERR_OK;
	if (arch->clamped && (!strcmp(name, "swiglu_limit") || !strcmp(name, "swiglu_alpha")))
		return ERR_OK;
	if ((arch->latent && config_is_latent_field(name)) || config_is_index_field(arch, name) ||
	    config_is_recurrent_field(arch, name) || config_is_scale_field(arch, name))
		return ERR_OK;
	if (arch->experts_alike && (!strcmp(name, "num_shared_expert") || !strcmp(name, "moe_intermediate_size")))
		return ERR_OK;
	const char *word = only_word(arch, name);
	if (word && json_string_equals(value, word))
		return ERR_OK;
	for (size_t i = 0; i < COUNT_OF(USED); i++) {
		if (strcmp(USED[i].name, name) != 0)
			continue;
		if ((USED[i].traits & (arch->traits | EVERY)) || arch_has_own(arch, name))
			return ERR_OK;
		known = true;
		neutral = USED[i].neutral;
	}
	if (is_neutral(value, neutral))
		return ERR_OK;
	if (word)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" must be '%s' for %s", name, word, arch->name);
	if (known)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"%s\" is set, which is not supported for %s", name, arch->name);
	return err_set(
		em, ERR_UNSUPPORTED,
		"config.json: unknown field \"%.64s\": it may change what the model computes; if it does "
		"not, take it out of the file",
		name);
}

enum err config_check_fields(const struct arch *arch, json_val v, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (struct json_iter it = json_iterate(v); !e && json_next(&it);)
		e = check_field(arch, v, it.key, it.value, em);
	return e;
}
